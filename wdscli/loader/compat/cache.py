"""webdataset's stage that opens addresses, for pipelines that name it. See :mod:`~wdscli.loader.compat.tariterators`.

What it is: :class:`StreamingOpen`. How: each shard is read from front to back. It must not know archives;
``WebDataset(urls, cache_dir=...)`` keeps whole remote shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wdscli.loader.compat.gone import add_hints
from wdscli.loader.compat.gopen import gopen
from wdscli.loader.read.failures import Handler, each, reraise_exception
from wdscli.storage import is_local, local_path

__all__ = ["StreamingOpen"]


class StreamingOpen:
    """Makes ``{"url": ..., "stream": ...}`` of each address, with ``local_path`` for a local file."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each(_opened, urls, self.handler)


def _opened(given: Any) -> dict[str, Any]:
    url = given["url"] if isinstance(given, dict) else given
    found = {"url": url, "stream": gopen(url)}
    return {**found, "local_path": local_path(url)} if is_local(url) else found


add_hints(__name__)
