"""What a run that ended early leaves beside its shards: receipts of whole ones, and temporary files.

What it is: where a receipt lies (:func:`receipt_address`), :func:`remove_temporaries` and :func:`remove_abandoned`.
How: by names. A temporary file is ``.NAME.<12 hexadecimal digits>.tmp``, and only those of names that the caller calls
its own go, and none that is locked: somebody writes it just now. It must not know what receipts say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from wdscli.errors import InputError
from wdscli.shards.index import FOLDER, SUFFIX
from wdscli.storage import base_name, folder_of, is_local, list_folder, local_path, remove, sibling
from wdscli.storage.local import remove_if_abandoned

RECEIPT = ".done"
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
_CUT = 50
"""Of a very long name, a temporary file keeps so many characters."""


def receipt_address(address: str) -> str:
    """Where the receipt of a shard lies: ``.wds/<name>.done`` in the shard's folder."""
    return sibling(address, f"{FOLDER}/{base_name(address)}{RECEIPT}")


def names_in(folder: str, keep: Callable[[str], bool] = bool) -> set[str]:
    """What lies in a folder, as far as ``keep`` is true of it; nothing for one that is not there."""
    try:
        return set(list_folder(folder, keep))
    except InputError:
        return set()


def remove_abandoned(folder: str, is_own: Callable[[str], bool]) -> int:
    """Remove temporary files in a folder of this machine, and in its ``.wds``, of which it is known that nobody writes
    them any more. ``is_own`` is asked of names of shards and manifests. Gives their number."""
    removed = 0
    for inside, ends in ((folder, ("",)), (f"{folder}{FOLDER}/", (SUFFIX, RECEIPT))):
        for found in names_in(inside, _is_temporary):
            name = _TEMPORARY.fullmatch(found)[1]  # type: ignore[index]
            if any(name.endswith(end) and is_own(name.removesuffix(end)) for end in ends):
                removed += remove_if_abandoned(local_path(inside + found)) or False
    return removed


def _is_temporary(name: str) -> bool:
    return name.endswith(".tmp") and _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(addresses: Iterable[str]) -> int:
    """Remove temporary files of these shards (or other files), of their indexes and receipts, also where nobody can
    tell whether somebody writes them. Gives their number."""
    folders: dict[str, set[str]] = {}
    for address in addresses:
        folder, name = folder_of(address), base_name(address)
        folders.setdefault(folder, set()).add(name)
        folders.setdefault(f"{folder}{FOLDER}/", set()).update((name + SUFFIX, name + RECEIPT))
    return sum(_remove_in(folder, names) for folder, names in folders.items())


def _remove_in(folder: str, names: set[str]) -> int:
    names = names | {name[:_CUT] for name in names if len(os.fsencode(name)) > 4 * _CUT}
    removed = 0
    for found in names_in(folder, _is_temporary):
        match = _TEMPORARY.fullmatch(found)
        if match and match[1] in names:
            gone = remove_if_abandoned(local_path(folder + found)) if is_local(folder) else None
            if gone is None:
                remove(folder + found)
            removed += gone is not False
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
