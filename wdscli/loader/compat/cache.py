"""webdataset's stage that opens addresses, for pipelines that name it. See :mod:`~wdscli.loader.compat.tariterators`.

What it is: :class:`StreamingOpen`. How: each shard is read from front to back. It must not know archives; whole remote
shards are kept by ``WebDataset(urls, cache_dir=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from wdscli.loader.compat.gone import lacking
from wdscli.loader.compat.gopen import gopen
from wdscli.loader.read.failures import Handler, each, reraise_exception
from wdscli.storage import is_local, local_path

__all__ = ["StreamingOpen"]


class StreamingOpen:
    """Addresses to ``{"url": ..., "stream": ...}``, and ``local_path`` for files of this machine."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each(_opened, urls, self.handler)


def _opened(given: Any) -> dict[str, Any]:
    url = given["url"] if isinstance(given, dict) else given
    found = {"url": url, "stream": gopen(url)}
    return {**found, "local_path": local_path(url)} if is_local(url) else found


if not TYPE_CHECKING:  # a type checker would take every name for one that is there
    __getattr__ = partial(lacking, __name__)
