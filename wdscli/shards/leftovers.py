"""What a run that ended early leaves beside its shards: receipts of whole ones, and temporary files.

What it is: where a receipt lies (:func:`receipt_address`), and :func:`remove_temporaries`. How: by names alone. A
temporary file is ``.NAME.<12 hexadecimal digits>.tmp``, and only those of names that the caller calls its own go. It
must not know what receipts say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from wdscli.errors import InputError
from wdscli.shards.index import FOLDER, SUFFIX
from wdscli.storage import base_name, folder_of, is_local, list_folder, local_path, remove, sibling

RECEIPT = ".done"
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
_CUT = 50
"""Of a very long name, a temporary file keeps so many characters."""


def receipt_address(address: str) -> str:
    """Where the receipt of a shard lies: ``.wds/<name>.done`` in the shard's folder."""
    return sibling(address, f"{FOLDER}/{base_name(address)}{RECEIPT}")


def names_in(folder: str) -> set[str]:
    """What lies in a folder; nothing for one that is not there."""
    try:
        return set(list_folder(folder))
    except InputError:
        return set()


def remove_temporaries(addresses: Iterable[str]) -> int:
    """Remove temporary files of these shards (or other files), of their indexes and receipts. Gives their number."""
    folders: dict[str, set[str]] = {}
    for address in addresses:
        folder, name = folder_of(address), base_name(address)
        folders.setdefault(folder, set()).add(name)
        folders.setdefault(f"{folder}{FOLDER}/", set()).update((name + SUFFIX, name + RECEIPT))
    return sum(_remove_in(folder, names) for folder, names in folders.items())


def _remove_in(folder: str, names: set[str]) -> int:
    names = names | {name[:_CUT] for name in names if len(os.fsencode(name)) > 4 * _CUT}
    removed = 0
    for found in names_in(folder):
        match = _TEMPORARY.fullmatch(found)
        if match and match[1] in names:
            remove(folder + found)
            removed += 1
    return removed


def remove_receipts(addresses: Iterable[str]) -> None:
    """Remove the receipts of these shards, and the folder they were in when nothing else is left there."""
    folders: dict[str, set[str]] = {}
    for address in addresses:
        folders.setdefault(folder_of(address), set()).add(base_name(address) + RECEIPT)
    for folder, names in folders.items():
        inside = f"{folder}{FOLDER}/"
        there = names_in(inside)
        for name in sorted(there & names):
            remove(inside + name)
        if there and there <= names and is_local(inside):
            _remove_folder(local_path(inside))


def _remove_folder(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        return
