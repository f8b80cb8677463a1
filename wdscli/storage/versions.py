"""Which of several files that had one name stands there now: a short text for each.

What it is: :func:`local_version` and :func:`etag_version`, which a sink tells of what it has committed, and
:func:`versions_at`, which asks the same of addresses later. How: a file of this machine is its inode and its size, an
object its ETag. Different texts mean that something else may stand there, not that it must: who hears of one looks at
the bytes. It must not know shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from wdscli.storage.addresses import is_local, local_path

_REQUESTS = 16
GONE = "gone"
"""For what is not there."""


def local_version(status: os.stat_result) -> str:
    """Of a file of this machine."""
    return f"inode:{status.st_ino}:{status.st_size}"


def etag_version(etag: Any) -> str:
    """Of an object; empty where its store gives no ETag."""
    return "etag:" + str(etag).strip('"') if etag else ""


def versions_at(addresses: Sequence[str]) -> Iterator[str]:
    """What stands at each address now: :data:`GONE` for nothing, empty where nobody can tell."""
    if all(map(is_local, addresses)):
        yield from map(_version_at, addresses)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_REQUESTS) as threads:
        yield from threads.map(_version_at, addresses)


def _version_at(address: str) -> str:
    try:
        if is_local(address):
            return local_version(os.stat(local_path(address)))
        from wdscli.storage.remote import filesystem

        fs, path = filesystem(address)
        fs.invalidate_cache()
        about = fs.info(path)
    except FileNotFoundError:
        return GONE
    except Exception:  # backends raise what they like, and a question that fails says nothing
        return ""
    return etag_version(about.get("ETag") or about.get("etag"))
