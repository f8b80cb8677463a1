"""webdataset's ``gopen``: a file object for any address that wdscli reads.

What it is: :func:`gopen`, :data:`gopen_schemes` and ``rewrite_url``. How: files of this machine are opened as such;
anything else is read by :mod:`wdscli.storage`, through a file object. A function that is put into ``gopen_schemes``
opens all addresses of its scheme that are read, for ``gopen`` and datasets alike: what it gives is read from front to
back. It must not know archives.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import UserDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wdscli.errors import UsageError
from wdscli.loader.compat.gone import lacking
from wdscli.loader.compat.utils import SecurityError as SecurityError
from wdscli.loader.compat.utils import want_trust
from wdscli.storage import OPENERS, is_local, local_path, open_source, scheme
from wdscli.storage.streams import stream_of

__all__ = ["gopen", "gopen_schemes", "rewrite_url"]


class _Schemes(UserDict[str, Callable[..., Any]]):
    """Functions of (address, mode, size of the buffer) by scheme, of the user's own."""

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        warnings.warn(
            f"gopen_schemes[{name!r}]: WebDataset reads {name}: addresses by this function, from front to back",
            stacklevel=2,
        )
        super().__setitem__(name, function)
        OPENERS[name] = self._open

    @staticmethod
    def _open(url: str) -> Any:
        return gopen(url)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        OPENERS.pop(name, None)


gopen_schemes = _Schemes()


def gopen(url: str, mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any:
    """A file object that reads ``url``: a path, ``-``, ``pipe:CMD``, ``file:``, ``http:``, ``s3:`` or any other address
    that wdscli reads."""
    if mode != "rb":
        raise UsageError(
            f'gopen(mode="{mode}"): gopen only reads',
            hint="wds.TarWriter(address) or wds.ShardWriter(pattern) write samples, open(path, mode) any file",
        )
    if url == "-":
        return sys.stdin.buffer
    url = rewrite_url(url)
    kind = scheme(url)
    if kind == "pipe":
        want_trust("gopen_pipe: unsafe_gopen is False, cannot open pipe URLs")
    if is_local(url):
        want_trust("gopen: unsafe_gopen is False, cannot open local files")
    if kind in gopen_schemes:
        return gopen_schemes[kind](url, mode, bufsize, **kw)
    if kw:
        raise UsageError(f"gopen({', '.join(kw)}=): no such option")
    if url.startswith("file:"):
        url = urlsplit(url).path
    if is_local(url):
        return open(local_path(url), mode)
    return stream_of(open_source(url, decompress=False), bufsize)


def rewrite_url(url: str) -> str:
    """``url`` as the variable ``GOPEN_REWRITE`` (``old=new;...``, patterns at the start) changes it."""
    rules = os.environ.get("GOPEN_REWRITE")
    if rules is None:
        return url
    want_trust("rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables")
    for old, new in (rule.split("=", 1) for rule in rules.split(";")):
        changed = re.sub("^" + old, new, url)
        if changed != url:
            return changed
    return url


if not TYPE_CHECKING:  # a type checker would take every name for one that is there
    __getattr__ = partial(lacking, __name__)
