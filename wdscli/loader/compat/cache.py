"""webdataset's cache of whole shards, for pipelines that name it as a stage: addresses in, open files out.

What it is: :class:`FileCache` and :class:`StreamingOpen`, which take ``{"url": ...}`` and give it with a ``stream``,
and :class:`LRUCleanup`. How: a shard is copied under a name of its own and takes its name in the cache when it is
whole. ``WebDataset`` needs none of it: it reads the ranges that it needs. It must not know archives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

from wdscli.errors import DataError, UsageError
from wdscli.loader.compat.gopen import gopen
from wdscli.loader.stages.handlers import Handler, each, reraise_exception
from wdscli.storage import is_local, local_path, open_sink

__all__ = [
    "FileCache",
    "LRUCleanup",
    "StreamingOpen",
    "check_tar_format",
    "default_cache_dir",
    "download",
    "islocal",
    "pipe_cleaner",
    "url_to_cache_name",
]

COPY_BUFFER_BYTES = 1 << 20
default_cache_dir = os.environ.get("WDS_CACHE", "./_cache")
_PLAIN_SCHEMES = ("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7z", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")


def islocal(url: str) -> bool:
    """Whether an address is a file of this machine."""
    return is_local(url)


def pipe_cleaner(spec: str) -> str:
    """The first word of a ``pipe:`` command that is an address, else ``spec``."""
    words = spec[len("pipe:") :].split(" ") if spec.startswith("pipe:") else []
    known = ("http:", "https:", "hdfs:", "gs:", "ais:", "s3:")
    return next((word for word in words if word.startswith(known)), spec)


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """The name of a shard in a cache: that of the file and of ``ndir`` folders above it."""
    assert isinstance(url, str)
    parts = urlsplit(url)
    if parts.scheme not in _PLAIN_SCHEMES:
        return quote(url, safe="_+{}*,-")[-128:]
    return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])


def check_tar_format(fname: str) -> bool:
    """Whether a file begins as a tar archive does, or a compressed one."""
    with open(fname, "rb") as file:
        head = file.read(512)
    return head[257:262] == b"ustar" or head.startswith(_COMPRESSED)


def download(url: str, dest: str, chunk_size: int = COPY_BUFFER_BYTES, verbose: bool = False) -> None:
    """Copy what is at ``url`` to the file ``dest``, which is there when it is whole."""
    with gopen(url) as stream, open_sink(dest, force=True, packed=True) as sink:
        while data := stream.read(chunk_size):
            sink.write(data)


class LRUCleanup:
    """Keeps a folder below ``cache_size`` bytes: removes what ``keyfn`` says is oldest, at most every ``interval``
    seconds, None for each time."""

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: float = 10**12,
        keyfn: Callable[[str], float] = os.path.getctime,
        verbose: bool = False,
        interval: float | None = 30,
    ) -> None:
        self.cache_dir, self.cache_size, self.keyfn = cache_dir, cache_size, keyfn
        self.interval = interval
        self._latest = float("-inf")

    def set_cache_dir(self, cache_dir: str) -> None:
        """Look after another folder."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Remove what is too much now."""
        if self.cache_dir is None or (
            self.interval is not None and monotonic() - self._latest < self.interval
        ):
            return
        self._latest = monotonic()
        found = []
        for folder, _, names in os.walk(os.fspath(self.cache_dir)):
            for path in [os.path.join(folder, name) for name in names]:
                with suppress(OSError):  # another process was first
                    found.append((self.keyfn(path), os.path.getsize(path), path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=itemgetter(0)):
            if left <= self.cache_size:
                return
            with suppress(OSError):
                os.remove(path)
            left -= size


def _url(given: Any) -> str:
    url: str = given["url"] if isinstance(given, dict) else given
    return url


class StreamingOpen:
    """Addresses to ``{"url": ..., "stream": ...}``, and ``local_path`` for files of this machine."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each(_opened, map(_url, urls), self.handler)


def _opened(url: str) -> dict[str, Any]:
    found = {"url": url, "stream": gopen(url)}
    return {**found, "local_path": local_path(url)} if is_local(url) else found


class FileCache:
    """Addresses to ``{"url": ..., "stream": ..., "local_path": ...}`` of copies in ``cache_dir``, which are made once.
    ``url_to_name`` names them, ``validator`` says whether a copy is an archive, ``cache_size`` bytes are kept, -1 for
    all."""

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], bool] | None = check_tar_format,
        handler: Handler = reraise_exception,
        cache_size: int = -1,
        cache_cleanup_interval: float | None = 30,
    ) -> None:
        self.cache_dir = os.fspath(default_cache_dir if cache_dir is None else cache_dir)
        self.url_to_name, self.validator, self.handler = url_to_name, validator, handler
        self.cleaner = LRUCleanup(self.cache_dir, cache_size, interval=cache_cleanup_interval)
        self._is_limited = cache_size > 0

    def get_file(self, url: str) -> str:
        """The path of the copy of ``url``, made when it is not there; of a file of this machine its own."""
        if is_local(url):
            return local_path(url)
        name = self.url_to_name(url)
        if not name or "/" in name or name in (".", ".."):
            raise UsageError(f"{name!r} is no name for {url} in a cache", hint="url_to_name= gives another")
        path = os.path.join(self.cache_dir, name)
        if not os.path.exists(path):
            if self._is_limited:
                self.cleaner.cleanup()
            os.makedirs(self.cache_dir, exist_ok=True)
            self._fetch(url, path)
        return path

    def _fetch(self, url: str, path: str) -> None:
        download(url, path)
        if self.validator is not None and not self.validator(path):
            os.remove(path)
            raise DataError("this is no tar archive", code="no-archive", shard=url)

    def _cached(self, url: str) -> dict[str, Any]:
        path = self.get_file(url)
        return {"url": url, "stream": open(path, "rb"), "local_path": path}

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each(self._cached, map(_url, urls), self.handler)
