"""What a set is called that was not written by a pattern of ours, and how its manifest names its shards.

What it is: text in, text out. How: the set's folder is the deepest one that holds all shards, its prefix what their
names begin with, less the number; a shard's name is its path from the folder of the manifest. It must not open
anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence

from wdscli.errors import UsageError
from wdscli.shown import shown
from wdscli.storage import base_name, folder_of, is_local, is_stream, scheme
from wdscli.storage.addresses import local_path

_SUFFIX = re.compile(r"\.(tar|tgz)(\.[A-Za-z0-9]+)?$")
_NUMBER = re.compile(r"(^|[-_.])[0-9]+$")
_JOINTS = "-_."


def common_folder(addresses: Sequence[str]) -> str:
    """The address of the deepest folder that holds all shards, with its last slash; empty for the current one.

    Raises UsageError when there is none, as for shards on two machines.
    """
    folders = {folder_of(address) for address in addresses}
    if len(folders) == 1:
        return folders.pop()
    common = _shared(folders)
    common = common[: common.rfind("/") + 1]
    everywhere_relative = all(is_local(f) and not local_path(f).startswith("/") for f in folders)
    if (
        not common.removesuffix("//").partition("://")[2 if "://" in common else 0]
        and not everywhere_relative
    ):
        raise UsageError(
            "the shards lie in different places",
            hint="say with -o where their manifest goes, or do one place at a time",
        )
    return common


def set_prefix(addresses: Sequence[str]) -> str:
    """What the shards' file names begin with, without number and joint: ``train`` for ``train-000000.tar`` and so on.

    >>> set_prefix(["a/train-000000.tar", "a/train-000001.tar"]), set_prefix(["train-000007.tar"])
    ('train', 'train')
    >>> set_prefix(["img7.tar"]), set_prefix(["000000.tar", "000001.tar"])
    ('img7', '')
    """
    stems = [_SUFFIX.sub("", base_name(address)) for address in addresses]
    if len(stems) == 1:
        return _NUMBER.sub("", stems[0]).rstrip(_JOINTS)
    return _shared(stems).rstrip("0123456789").rstrip(_JOINTS)


def _shared(texts: Collection[str]) -> str:
    """What all texts begin with."""
    first, last = min(texts), max(texts)
    length = next((at for at, (one, other) in enumerate(zip(first, last)) if one != other), len(first))
    return first[:length]


def name_from(folder: str, address: str) -> str:
    """The path of the shard at ``address`` from ``folder``, both as addresses; the address itself where there is no
    path from one to the other. Never an absolute path of this machine, nor an address with a password in it.

    >>> name_from("data/", "data/train-0.tar"), name_from("s3://b/", "s3://b/x/0.tar"), name_from("", "s3://b/0.tar")
    ('train-0.tar', 'x/0.tar', 's3://b/0.tar')
    >>> name_from("data/meta/", "data/train-0.tar")
    '../train-0.tar'
    """
    if not is_local(address):
        name = address[len(folder) :] if folder and address.startswith(folder) else address
        if shown(name) != name:
            raise UsageError(
                f"the manifest would hold a password, token or signature: {address}",
                hint="name the shards without, and set credentials in the environment",
            )
        return name
    path = local_path(address)
    if is_stream(folder) or not is_local(folder):
        raise UsageError(
            f"a manifest at {folder} cannot name {address}",
            hint=f"{scheme(folder)} has no path to files of this machine",
        )
    return os.path.relpath(path, local_path(folder) or ".")
