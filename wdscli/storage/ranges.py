"""Objects on other machines, read by ranges, each as one version of itself.

What it is: :class:`RemoteSource` (ranges of an object whose size is known), and who fetches its ranges from S3 and from
any other store that fsspec knows; :mod:`wdscli.storage.web` does from web servers. How: fsspec's file objects are not
used for reading, since they fetch blocks of 5 to 50 MiB; each read is one range request, unless it was expected: then
:mod:`wdscli.storage.ahead` has fetched it with its neighbours. All requests begin in :meth:`RemoteSource._fetch`, and
are made again by :mod:`wdscli.storage.retry`, nowhere else. The first answer says which version of the object there is,
and all others must be of the same. What has no size or no ranges is a stream.

S3 and web servers are asked for the first bytes, 64 KiB or as many as the caller is sure to want, and the answer tells
the size, unless a listing of S3 has told it or the caller knows size and version (:class:`Known`). On S3 the ETag of
the first answer is asked for by every other request (If-Match), and every answer is compared with it, because some
stores that speak S3 do not know If-Match; s3fs's own ``cat_file`` takes no condition and shows no headers, hence the
call one step below it. It must not know shards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import cache, partial
from typing import Any, NamedTuple

from wdscli.errors import InputError, InputIsFolderError
from wdscli.storage.addresses import is_web, scheme
from wdscli.storage.ahead import Ahead, Block, Range, copy, line_to
from wdscli.storage.ends import Source, replaced
from wdscli.storage.fast import FastS3, fast_reader
from wdscli.storage.remote import (
    NOTE,
    S3_KINDS,
    explained,
    filesystem,
    is_bucket_missing,
    is_file_name,
    look_at,
)
from wdscli.storage.retry import (
    Buffer,
    Fetch,
    Network,
    Replaced,
    Transient,
    code_of,
    count_traffic,
    fetched,
    network,
    retried,
)
from wdscli.storage.streams import StreamSource
from wdscli.storage.web import AnswerReader, WebFile, check_range
from wdscli.threads import DaemonPool

HEAD_BYTES = 1 << 16
"""What the first read fetches at least, so that a look at the first bytes is no request of its own."""
THREADS = 16
"""Reads at a time from stores whose client knows no others than such as wait."""
_PIECE_BYTES = 1 << 20
_VERSIONS = ("ETag", "etag", "blob_id", "md5Hash", "LastModified", "last_modified", "mtime", "created")

Start = Callable[[int, int], "Future[Block]"]
"""Begins one request, by its first byte and the byte behind its last."""


class RemoteSource(Source):
    """An object of known size, read by ranges. ``start(begin, end)`` begins one request, whose future raises
    :class:`Replaced` where it can tell; where it cannot, ``version_now()`` asks for the version there is now. ``first``
    bytes are read together when the first of them are wanted."""

    __slots__ = (
        "_ahead",
        "_first",
        "_head",
        "_length",
        "_start",
        "_version_now",
    )

    def __init__(
        self,
        name: str,
        size: int,
        start: Start,
        head: Block = b"",
        version_now: Callable[[], str] | None = None,
        first: int = HEAD_BYTES,
    ) -> None:
        super().__init__(name, size=size, seekable=True)
        self._start = start
        self._version_now = version_now
        self._head = head
        self._first = first
        self._length = size
        room = network().read_ahead_bytes
        self._ahead = Ahead(lambda begin, end: self._fetch(begin, end), self._came, line_to(name), room)
        if first > HEAD_BYTES:
            self._ahead.will_be_used(room)

    def expect(self, ranges: Iterable[Range], *, gap_bytes: int | None = None, keep: bool = False) -> None:
        near = len(self._head)
        some = [(max(begin, near), min(end, self._length)) for begin, end in ranges]
        self._ahead.expect(some, gap_bytes, keep=keep)

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._length)
        if end <= offset:
            return b""
        near = self._head[offset:end]
        if len(near) == end - offset:
            return near
        found = self._ahead.read(offset + len(near), end)
        if found is not None:
            return near + found
        if offset == 0 and end <= self._first:
            self._head = self._direct(0, min(self._first, self._length))
            return self._head[:end]
        return self._direct(offset, end)[:]

    def read_into(self, offset: int, view: memoryview) -> int:
        near = len(self._head)
        size = min(len(view), (near if offset < near else self._length) - offset)
        if size > 0 and offset < near:
            copy(self._head, offset, view[:size])
        elif size <= 0 or not self._ahead.read_into(offset, view[:size]):
            return super().read_into(offset, view)
        return size

    def expect_all(self) -> None:
        """Begin to read an object of known size of which all will be wanted."""
        self.expect([(0, self._length)])

    def begin(self, size: Callable[[], int], answer: Future[Block] | None = None) -> None:
        """Read the first bytes of an object whose ``size`` is known after that; their ``answer`` may be on its way.
        Raises what the request raises."""
        if (known := size()) > self._first > HEAD_BYTES:
            # What follows is on its way at the same time.
            self._ahead.expect([(self._first, known)])
        try:
            self._head = (answer or self._fetch(0, self._first)).result()
        except Replaced:
            raise replaced(self.name, 0) from None
        self.size = self._length = size()

    def _direct(self, begin: int, end: int) -> Block:
        return self._came(self._fetch(begin, end), begin, end)

    def _fetch(self, begin: int, end: int) -> Future[Block]:
        """Every range request of every remote address begins here."""
        with explained(self.name):
            return self._start(begin, end)

    def _came(self, answer: Future[Block], begin: int, end: int) -> Block:
        """All of a range, or InputError."""
        with explained(self.name):
            try:
                data = answer.result()
            except Replaced:
                raise replaced(self.name, begin) from None
        if len(data) != end - begin:
            came = f"{len(data)} bytes came where {end - begin} were asked for"
            raise InputError(f"cannot read {self.name}: {came}, from byte {begin}")
        return data

    def close(self) -> None:
        self._ahead.close()

    def confirm(self) -> None:
        if self._version_now is None or not self.version:
            return
        with explained(self.name):
            try:
                now = self._version_now()
            except FileNotFoundError:
                raise replaced(self.name) from None
        if now != self.version:
            raise replaced(self.name)


def open_remote(address: str, first: int = HEAD_BYTES, known: Known | None = None) -> Source:
    """A source for an address with a scheme, of which at least ``first`` bytes will be wanted. Raises InputError."""
    patience = network()
    first = min(first, max(patience.read_ahead_bytes // 4, 1))
    with explained(address):
        fs, path = filesystem(address, fresh=False)
        is_s3 = scheme(address) in S3_KINDS
        if is_web(address):
            return _open_web(address, WebFile(fs, path, patience), first, patience)
        if is_s3:
            about = _known_of_s3(fs, path, known)
            if about is None and (source := _open_s3(address, fs, path, first, patience)):
                return source
        else:
            about = None
        if about is None:
            about = retried(lambda: look_at(fs, path), address)
        if about.get("type") == "directory":
            raise InputIsFolderError(
                f"cannot read {address}: it is a folder", hint=f"{address.rstrip('/')}/ stands for its shards"
            )
        if about.get("size") is None:
            return StreamSource(address, _FileReader(address, fs.open(path, "rb", block_size=0)))
    size = int(about["size"])
    if is_s3:
        pinned = _S3Object(fs, path, size, known.etag if known is not None else "")
        source = pinned.source = RemoteSource(
            address, size, starter(fs.loop, pinned.fetch, patience, name=address), first=first
        )
        if first > HEAD_BYTES:
            source.expect_all()
    else:
        source = RemoteSource(
            address,
            size,
            _range_starter(address, fs, path, patience, about),
            version_now=lambda: _version(retried(lambda: filesystem(address)[0].info(path), address)),
            first=first,
        )
    source.version = _version(about)
    source.is_pinned = is_s3 and bool(about.get("ETag"))
    return source


def version_at(address: str) -> tuple[int, str] | None:
    """Size and version of what is at a remote address now, by the smallest request that tells; None for what has no
    size. Raises InputError."""
    with explained(address):
        fs, path = filesystem(address)
        if not is_web(address):
            about = retried(lambda: fs.info(path), address)
            is_file = about.get("size") is not None and about.get("type") != "directory"
            return (int(about["size"]), _version(about)) if is_file else None
        file = WebFile(fs, path, network())
        if found := retried(file.look, address, counts=False):
            return found
    # A server that knows no HEAD.
    with open_remote(address) as source:
        return None if source.size is None else (source.size, source.version)


def _open_web(address: str, file: WebFile, first: int, patience: Network) -> Source:
    answer = retried(lambda: file.begin(first), address, counts=False)
    if file.total is None:
        return StreamSource(address, AnswerReader(address, file, answer, patience))
    start = starter(file.loop, file.fetch, patience, lambda: file.total, address)
    source = RemoteSource(address, file.total, start, first=first)
    if file.total:
        source.begin(lambda: file.total or 0, start(0, first))
    source.version = file.version
    return source


def starter(
    loop: Any, fetch: Fetch, patience: Network, size: Callable[[], int | None] = lambda: None, name: str = ""
) -> Start:
    """What begins requests in the thread of an event loop, each of which ends well or with its last error."""
    from asyncio import run_coroutine_threadsafe

    return lambda begin, end: run_coroutine_threadsafe(fetched(fetch, begin, end, patience, size, name), loop)


class Known(NamedTuple):
    """An object as somebody has found it: bytes of any other are not read."""

    size: int
    etag: str


def _known_of_s3(fs: Any, path: str, known: Known | None) -> dict[str, Any] | None:
    """What can be said of an object on S3 without a request. Raises FileNotFoundError for what its folder, which was
    listed, does not hold."""
    if known is not None:
        return {"size": known.size, "ETag": known.etag}
    listed = fs._ls_from_cache(path) or ()
    return next((one for one in listed if one.get("name") == path and one.get("type") == "file"), None)


def _open_s3(address: str, fs: Any, path: str, first: int, patience: Network) -> RemoteSource | None:
    """A source for one object, by its first bytes; None for one that has none, or is not there."""
    pinned = _S3Object(fs, path)
    start = starter(fs.loop, pinned.fetch, patience, lambda: pinned.size, address)
    source = pinned.source = RemoteSource(address, first, start, first=first)
    try:
        source.begin(lambda: pinned.size or 0)
    except FileNotFoundError as error:
        if is_bucket_missing(error) or is_file_name(path):
            raise
        return None
    except OSError as error:
        if code_of(error.__cause__) in ("InvalidRange", "416"):
            return None
        raise
    return source


def _version(about: dict[str, Any]) -> str:
    """What a backend says that tells one content from another, by whichever of its names."""
    found = next((name for name in _VERSIONS if about.get(name)), None)
    return "" if found is None else f"{found.lower()}:{about[found]}"


def _range_starter(address: str, fs: Any, path: str, patience: Network, about: dict[str, Any]) -> Start:
    from fsspec.spec import AbstractFileSystem

    if fs.async_impl:
        read_version = _of_version(fs, path, about)

        async def fetch(begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
            count_traffic(requests=1)
            keep(await read_version(begin, end))

        return starter(fs.loop, fetch, patience, name=address)
    # The generic cat_file opens a file object; without a cache it fetches the range and no block around it.
    options = {"cache_type": "none"} if type(fs).cat_file is AbstractFileSystem.cat_file else {}

    def read(begin: int, end: int) -> bytes:
        data = bytes(fs.cat_file(path, start=begin, end=end, **options))
        count_traffic(requests=1, received=len(data))
        if len(data) != end - begin:
            raise Transient(f"{len(data)} bytes came where {end - begin} were requested")
        return data

    if fs.protocol == "memory":
        return lambda begin, end: _done(lambda: read(begin, end))
    # Its reads wait: several do so at a time, each in a thread.
    threads = _threads_of(os.getpid())
    return lambda begin, end: threads.submit(
        copy_context().run, lambda: retried(lambda: read(begin, end), address, counts=False)
    )


def _of_version(fs: Any, path: str, about: dict[str, Any]) -> Callable[[int, int], Awaitable[bytes]]:
    """What reads a range of the version that was found, where a store can be held to it: Google's by its generation,
    Azure's by its ETag. It raises Replaced."""
    schemes = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)

    async def of_google(begin: int, end: int) -> bytes:
        try:
            data: bytes = await fs._cat_file(path, begin, end, generation=about["generation"])
        except FileNotFoundError:
            raise Replaced from None
        return data

    async def of_azure(begin: int, end: int) -> bytes:
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError

        container, blob, _ = fs.split_path(path)
        pinned = {"etag": about["etag"], "match_condition": MatchConditions.IfNotModified}
        try:
            async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
                answer = await client.download_blob(offset=begin, length=end - begin, **pinned)
                data: bytes = await answer.readall()
        except (ResourceModifiedError, ResourceNotFoundError):
            raise Replaced from None
        return data

    if "gs" in schemes and about.get("generation"):
        return of_google
    if "az" in schemes and about.get("etag"):
        return of_azure
    return partial(fs._cat_file, path)


def _done(read: Callable[[], bytes]) -> Future[Block]:
    answer: Future[Block] = Future()
    try:
        answer.set_result(read())
    except Exception as error:
        answer.set_exception(error)
    return answer


@cache
def _threads_of(process: int) -> DaemonPool:
    """The threads of this process that wait for stores; a fork has none of its parent's."""
    return DaemonPool(THREADS, "wdscli-ranges")


class _FileReader:
    """A file object of fsspec as a raw reader, for what has no size."""

    def __init__(self, name: str, file: Any) -> None:
        self._name, self._file = name, file

    def read(self, length: int, /) -> bytes:
        with explained(self._name):
            return bytes(self._file.read(length))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()


class _S3Object:
    """One object on S3, of the version that the first answer is of; ``source`` is told of it. Of an unknown ``size``
    the first answer tells it, and may be shorter than was asked for."""

    source: Source

    def __init__(self, fs: Any, path: str, size: int | None = None, etag: str = "") -> None:
        self._fs = fs
        self.size = size
        self.etag = etag
        bucket, key, version_id = fs.split_path(path)
        self._of = {"Bucket": bucket, "Key": key, **({"VersionId": version_id} if version_id else {})}
        self._fast = None if version_id else fast_reader(fs, bucket, key, network())

    async def fetch(self, begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
        """One range, as :mod:`wdscli.storage.retry` asks for it."""
        count_traffic(requests=1)
        if self._fast is not None and self._fast.is_able:
            pinned = {"if_match": self.etag} if self.etag else {}
            check = partial(self._check, begin=begin, end=end)
            if await self._fast.fetch(self._of["Key"], begin, end, pinned, check, keep):
                return
        if isinstance(self._fs, FastS3):
            await self._fs.by_full(lambda fs: self._by_s3fs(fs, begin, end, keep))
        else:
            await self._by_s3fs(self._fs, begin, end, keep)

    async def _by_s3fs(self, fs: Any, begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
        condition = {"IfMatch": self.etag} if self.etag else {}
        try:
            answer = await fs._call_s3(
                "get_object", **self._of, Range=f"bytes={begin}-{end - 1}", **condition
            )
        except Exception as error:
            if self._is_replaced(error):
                self._fs.invalidate_cache()
                raise Replaced from None
            raise
        body = answer["Body"]
        try:
            self._check(answer, begin, end)
            while data := await body.read(_PIECE_BYTES):
                keep(data)
        finally:
            body.close()

    def _is_replaced(self, error: Exception) -> bool:
        """Whether the store refused because the object is another, or has no such range any more."""
        codes = (
            ("PreconditionFailed", "412")
            if self.size is None
            else ("PreconditionFailed", "412", "InvalidRange", "416")
        )
        return code_of(error.__cause__) in codes

    def _check(self, answer: Mapping[str, Any], begin: int, end: int) -> None:
        """Raise Replaced for an answer that is of another object; the first says which is the right one."""
        etag = answer.get("ETag") or ""
        if self.etag and etag and etag != self.etag:
            self._fs.invalidate_cache()
            raise Replaced
        size = self.size if self.size is not None else _size_by(answer)
        check_range(answer.get("ContentRange") or "", begin, min(end, size), size)
        self.size = size
        if etag and not self.etag:
            self.etag = etag
            # What a listing said may be older than the first answer.
            self.source.version, self.source.is_pinned = f"etag:{etag}", True
            self.source.note = (answer.get("Metadata") or {}).get(NOTE, "")


def _size_by(answer: Mapping[str, Any]) -> int:
    """The size of an object, as the first answer of it tells."""
    whole = (answer.get("ContentRange") or "").rpartition("/")[2]
    return int(whole if whole.isascii() and whole.isdigit() else answer["ContentLength"])
