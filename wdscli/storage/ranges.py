"""This module reads ranges of remote objects. All bytes read from one object are of the same version.

:class:`RemoteSource` reads ranges of an object with a known size. It uses the requests of S3, of web servers
(:class:`WebFile`) or of any other store that fsspec knows. :class:`AnswerReader` reads a stream, for an object without
size and for a server without ranges. fsspec's file objects are not used for reading, because they fetch blocks of 5 to
50 MiB. Each read is one range request, unless :mod:`wdscli.storage.scatter` has already fetched the range. All requests
begin in :meth:`RemoteSource._fetch`, and only :mod:`wdscli.storage.retry` retries them. The first answer sets the
version of the object, and all later answers must have the same version.

The first request to S3 and web servers is for 64 KiB, or for as many bytes as the caller will surely read. Its answer
has the size of the object, which may already be known from a listing or the caller. Every later request to S3 requires
the ETag of the first answer (If-Match). Every answer is also compared with this ETag, because some S3-like stores
ignore If-Match. A web server with ranges answers 206 with the total size. An answer 200 is read as a stream. If a
stream breaks off and the server supports ranges, reading continues at the same position. If nothing was read yet, it
starts again. Otherwise it is an error.

This module does not know shards.
"""

from __future__ import annotations

import contextlib
import os
import time
from asyncio import get_running_loop, run_coroutine_threadsafe
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import cache, partial
from math import inf
from typing import Any

from wdscli.errors import InputError, InputIsFolderError
from wdscli.storage.addresses import is_web
from wdscli.storage.ends import SMALL_BYTES, Source, replaced
from wdscli.storage.kinds import Entry, Store, is_file_name
from wdscli.storage.remote import explained, found_current, is_bucket_missing, store_of
from wdscli.storage.retry import (
    CONNECT_SECONDS,
    Attempts,
    Buffer,
    Fetch,
    Network,
    ObjectReplaced,
    RangeAnswer,
    Transient,
    answer_of,
    code_of,
    count_traffic,
    fetched,
    kinds_of,
    network,
    noticed,
    retried,
)
from wdscli.storage.s3_obstore import S3Store
from wdscli.storage.scatter import Ahead, Block, Range, copy, line_to
from wdscli.storage.streams import FileReader, StreamSource
from wdscli.threads import DaemonPool
from wdscli.units import whole_number

HEAD_BYTES = SMALL_BYTES
"""The smallest size of the first request, so that reading the first bytes needs no separate request."""
THREADS = 16
"""The most reads at the same time from a store with a blocking client."""

Start = Callable[[int, int, memoryview | None], "Future[Block]"]
"""A function that starts one request, for a range from its first byte to the byte after its last. The bytes are put
into a buffer, if it is given."""


class RemoteSource(Source):
    """Reads ranges of an object with a known size. ``start`` starts one request. Its future raises
    :class:`ObjectReplaced` if the answer has another version. If answers have no version, ``version_now()`` requests
    the current version. The first read fetches ``first`` bytes."""

    def __init__(
        self,
        name: str,
        size: int,
        start: Start,
        version_now: Callable[[], str] | None = None,
        first: int = HEAD_BYTES,
    ) -> None:
        super().__init__(name, size=size, seekable=True)
        self._start = start
        self._version_now = version_now
        self._head: Block = b""
        self._first = first
        self._length = size
        room = network().read_ahead_bytes
        self._ahead = Ahead(lambda begin, end: self._fetch(begin, end), self._came, line_to(name), room)
        if first > HEAD_BYTES:
            self._ahead.will_be_used(room)

    def expect(self, ranges: Iterable[Range], *, gap_bytes: int | None = None, keep: bool = False) -> None:
        held = len(self._head)
        unread_ranges = [(max(begin, held), min(end, self._length)) for begin, end in ranges]
        self._ahead.expect(unread_ranges, gap_bytes, keep=keep)

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._length)
        if end <= offset:
            return b""
        held = self._head[offset:end]
        if len(held) == end - offset:
            return held
        following = self._ahead.read(offset + len(held), end)
        if following is not None:
            return held + following
        if offset == 0 and end <= self._first:
            self._head = self._direct(0, min(self._first, self._length))
            return self._head[:end]
        return self._direct(offset, end)[:]

    def read_into(self, offset: int, view: memoryview) -> int:
        held = len(self._head)
        size = min(len(view), (held if offset < held else self._length) - offset)
        if size > 0 and offset < held:
            copy(self._head, offset, view[:size])
        elif size <= 0 or not self._ahead.read_into(offset, view[:size]):
            return super().read_into(offset, view)
        return size

    def start_fill(self, offset: int, view: memoryview) -> Callable[[], object]:
        end = offset + len(view)
        return partial(self._came, self._fetch(offset, end, view), offset, end)

    def begin(self, size: Callable[[], int], answer: Future[Block] | None = None) -> None:
        """Read the first bytes of an object. After that, ``size`` is known. ``answer`` is the future of this request,
        if it was already started. Raises the errors of the request."""
        if (size_bytes := size()) > self._first > HEAD_BYTES:
            # Fetch the following bytes at the same time.
            self._ahead.expect([(self._first, size_bytes)])
        try:
            self._head = (answer or self._fetch(0, self._first)).result()
        except ObjectReplaced:
            raise replaced(self.name, 0) from None
        self.size = self._length = size()

    def _direct(self, begin: int, end: int) -> Block:
        return self._came(self._fetch(begin, end), begin, end)

    def _fetch(self, begin: int, end: int, into: memoryview | None = None) -> Future[Block]:
        """Start a range request. Every range request for every remote address begins here."""
        with explained(self.name):
            return self._start(begin, end, into)

    def _came(self, answer: Future[Block], begin: int, end: int) -> Block:
        """Return all bytes of a range. Raises InputError."""
        with explained(self.name):
            try:
                data = answer.result()
            except ObjectReplaced:
                raise replaced(self.name, begin) from None
        if len(data) != end - begin:
            came = f"{len(data)} of {end - begin} bytes came"
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


def open_remote(address: str, first: int = HEAD_BYTES, version: tuple[int, str] | None = None) -> Source:
    """Open a source for a remote address. The caller will read at least ``first`` bytes. ``version`` is the size and
    version of an object on S3; then no other version is read. Raises InputError."""
    patience = network()
    first = min(first, max(patience.read_ahead_bytes // 4, 1))
    etag = version[1].partition(":")[2] if version else ""
    entry = Entry(path="", size=version[0], version=version[1], etag=etag) if version else None
    with explained(address):
        store, path = store_of(address, fresh=False)
        if is_web(address):
            return _open_web(address, WebFile(store.fs, path, patience), first, patience)
        if isinstance(store, S3Store):
            entry = entry or found_current(address, store)
            if entry is None and (source := _open_s3(address, store, path, first, patience)):
                return source
        entry = entry or retried(lambda: store.look(path), address)
        if entry.is_folder:
            raise InputIsFolderError(
                f"cannot read {address}: it is a folder",
                hint=f"use {address.rstrip('/')}/ for the shards in it",
            )
        if entry.size is None:
            return StreamSource(
                address, FileReader(address, lambda _: store.fs.open(path, "rb", block_size=0))
            )
    if isinstance(store, S3Store):
        pinned = _S3Object(store, path, entry.size, etag)
        start = starter(store.loop, pinned.fetch, patience, name=address)
        source = pinned.source = RemoteSource(address, entry.size, start, first=first)
        if first > HEAD_BYTES:
            source.expect([(0, entry.size)])
    else:
        start = _range_starter(address, store, path, patience, entry.pin)
        source = RemoteSource(address, entry.size, start, partial(_version_now, address), first)
    source.version = entry.version
    source.is_pinned = store.kind.is_s3 and bool(entry.etag)
    return source


def _version_now(address: str) -> str:
    store, path = store_of(address)
    return retried(lambda: store.info(path), address).version


def version_at(address: str) -> tuple[int, str] | None:
    """Return the current size and version of a remote address, by the smallest request. Return None if the size is
    unknown. Raises InputError."""
    with explained(address):
        store, path = store_of(address)
        if not is_web(address):
            entry = retried(lambda: store.info(path), address)
            return None if entry.size is None or entry.is_folder else (entry.size, entry.version)
        file = WebFile(store.fs, path, network())
        if version := retried(file.look, address, counts=False):
            return version
    # The server does not support HEAD.
    with open_remote(address) as source:
        return None if source.size is None else (source.size, source.version)


def _open_web(address: str, file: WebFile, first: int, patience: Network) -> Source:
    answer = retried(lambda: file.begin(first), address, counts=False)
    if file.total is None:
        return StreamSource(address, AnswerReader(address, file, answer, patience))
    start = starter(file.loop, file.fetch, patience, lambda: file.total, address)
    source = RemoteSource(address, file.total, start, first=first)
    if file.total:
        source.begin(lambda: file.total or 0, start(0, first, None))
    source.version = file.version
    return source


def starter(
    loop: Any, fetch: Fetch, patience: Network, size: Callable[[], int | None] = lambda: None, name: str = ""
) -> Start:
    """Return a function that starts requests in the thread of an event loop. A request ends with its bytes, or with its
    last error."""
    return lambda begin, end, into: run_coroutine_threadsafe(
        fetched(fetch, begin, end, Attempts(patience, name), size, into), loop
    )


def _open_s3(address: str, store: S3Store, path: str, first: int, patience: Network) -> RemoteSource | None:
    """Open a source for one object, by a request for its first bytes. Return None if the object is empty or does not
    exist."""
    pinned = _S3Object(store, path)
    start = starter(store.loop, pinned.fetch, patience, lambda: pinned.size, address)
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


def _range_starter(address: str, store: Store, path: str, patience: Network, pin: Any) -> Start:
    from fsspec.asyn import get_loop
    from fsspec.spec import AbstractFileSystem

    fs, kind = store.fs, store.kind
    pinned = kind.read_version(fs, path, pin) if pin and kind.read_version else None
    # The generic cat_file opens a file object. Without a cache, the file object fetches only the range.
    options = {"cache_type": "none"} if type(fs).cat_file is AbstractFileSystem.cat_file else {}

    async def fetch(begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
        count_traffic(requests=1)
        try:
            if fs.async_impl:
                data = await (pinned(begin, end) if pinned else fs._cat_file(path, begin, end))
            else:
                read = partial(fs.cat_file, path, start=begin, end=end, **options)
                data = await get_running_loop().run_in_executor(_threads_of(os.getpid()), read)
        except Exception as error:
            if pinned and kind.replaced & kinds_of(error):
                raise ObjectReplaced from None
            raise
        # These clients return a body without its headers. A body of another length is no part of the range.
        if len(data) != end - begin:
            raise Transient(f"the answer has {len(data)} bytes instead of {end - begin}")
        keep(data)

    if fs.async_impl:
        return starter(fs.loop, fetch, patience, name=address)
    # A blocking client returns no bytes before the end of an answer, so its silence is no failure.
    return starter(get_loop(), fetch, patience._replace(timeout_seconds=inf), name=address)


@cache
def _threads_of(process: int) -> DaemonPool:
    """Return the threads of this process that wait for stores. A forked process does not inherit its parent's
    threads."""
    return DaemonPool(THREADS, "wdscli-ranges")


class _S3Object:
    """One object on S3, in the version of the first answer. The first answer also sets the version of ``source``. If
    ``size`` is unknown, the first answer sets it too, and may be shorter than the request."""

    source: Source

    def __init__(self, store: S3Store, path: str, size: int | None = None, etag: str = "") -> None:
        self._store, self._of = store, store.split(path)
        self.size, self.etag = size, etag

    async def fetch(self, begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
        """Fetch one range, as :mod:`wdscli.storage.retry` describes it."""
        count_traffic(requests=1)
        check = partial(self._check, begin=begin, end=end)
        try:
            await self._store.fetch(self._of, (begin, end), self.etag, check, keep)
        except ObjectReplaced:
            self._store.forget()
            raise

    def _check(self, answer: RangeAnswer, begin: int, end: int) -> None:
        """Do the work of :meth:`RangeAnswer.check`. The first answer sets the version."""
        self.size = answer.check(begin, end, self.size, self.etag)
        if answer.etag and not self.etag:
            self.etag = answer.etag
            # The size from a listing may be older than the first answer.
            self.source.version, self.source.is_pinned = f"etag:{answer.etag}", True
            self.source.note = answer.note


class WebFile:
    """One URL, in the version of the first answer. ``total`` is the size, or None if the URL cannot be read by
    ranges."""

    def __init__(self, fs: Any, url: str, patience: Network) -> None:
        self._fs, self._url, self._patience = fs, url, patience
        self.loop = fs.loop
        self._etag = self._changed = ""
        self._opened: Any = None
        """The first answer, until it is read."""
        self.total: int | None = None

    @property
    def version(self) -> str:
        """The version of the file, if its server reports one."""
        return self._etag or self._changed

    def sync(self, function: Any, *arguments: Any) -> Any:
        """Run a coroutine in fsspec's thread and wait for it."""
        from fsspec.asyn import sync

        return sync(self.loop, function, *arguments)

    def close(self, answer: Any) -> None:
        """Close an answer, also before its end, in fsspec's thread, because this thread owns the connection."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(answer.close)

    def begin(self, first: int) -> Any:
        """Request the ``first`` bytes. Return None if the server supports ranges; the first range is then in flight.
        Otherwise return an answer to read as a stream. Raises the client's errors, and FileNotFoundError for 404 and
        410."""
        answer = self.sync(self.get, (0, first))
        about = _about(answer)
        self.total = about.size if about.status == 416 or (about.status == 206 and about.part) else None
        if self.total is None and (answer.status != 200 or _is_encoded(answer)):
            # The total is unknown, or the encoded bytes can only be decoded as a whole.
            self.close(answer)
            answer = self.sync(self.get, None)
        about = _about(answer)
        self._etag, self._changed = about.etag, about.changed
        if self.total is None:
            return answer
        if self.total:
            self._opened = answer
        else:
            self.close(answer)
        return None

    async def fetch(self, begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
        """Fetch one range, as :mod:`wdscli.storage.retry` describes it."""
        answer, self._opened = self._opened or await self.get((begin, end), self._condition), None
        try:
            _about(answer).check(begin, end, self.total, self._etag, self._changed)
            while data := await answer.content.readany():
                keep(data)
        finally:
            answer.close()

    @property
    def _condition(self) -> dict[str, str]:
        """Return the headers that make a server refuse to send ranges of another version (RFC 9110, 13.1.1: only strong
        tags)."""
        return {"If-Match": self._etag} if self._etag.startswith('"') else {}

    async def rest(self, position: int) -> Any:
        """Return an answer with all bytes from ``position``. Raises Replaced, and OSError if the server cannot send
        them."""
        answer = await self.get((position, None) if position else None, self._condition)
        try:
            about = _about(answer)
            about.check_version(self._etag, self._changed)
            if position and (about.status != 206 or about.part is None):
                raise OSError(
                    f"the answer ended after {position} bytes, and the server does not support ranges"
                )
            if position and about.part and about.part[0] != position:
                raise Transient("the server sent other bytes than were requested")
        except BaseException:
            answer.close()
            raise
        return answer

    def look(self) -> tuple[int, str] | None:
        """Return size and version by a HEAD request, or None if the server does not report the size. Raises the
        client's errors, and FileNotFoundError for 404 and 410."""
        answer = self.sync(self.get, None, None, "HEAD", (200, 403, 405, 501))
        self.close(answer)
        size = answer.headers.get("Content-Length") or ""
        if answer.status != 200 or _is_encoded(answer) or not (size.isascii() and size.isdigit()):
            return None
        about = _about(answer)
        return whole_number(size), about.etag or about.changed

    async def get(
        self,
        part: tuple[int, int | None] | None,
        condition: dict[str, str] | None = None,
        verb: str = "GET",
        allowed: Collection[int] = (),
    ) -> Any:
        """Request the whole file or its range ``part``, and return the answer when its headers have arrived. An answer
        to a range may have status 412 or 416, and any answer may have an ``allowed`` status. Other error statuses are
        raised."""
        import aiohttp

        session = await self._fs.set_session()
        options = dict(self._fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **(condition or {})}
        if part:
            headers["Range"] = f"bytes={part[0]}-{'' if part[1] is None else part[1] - 1}"
        # The client's default limit is five minutes for the whole answer. This is too short for a shard on a slow line.
        silence = self._patience.timeout_seconds
        options.setdefault(
            "timeout",
            aiohttp.ClientTimeout(total=None, sock_connect=min(silence, CONNECT_SECONDS), sock_read=silence),
        )
        count_traffic(requests=1)
        answer = await session.request(verb, self._fs.encode_url(self._url), headers=headers, **options)
        if answer.status in allowed:
            return answer
        if answer.status in (404, 410):
            answer.close()
            raise FileNotFoundError(self._url)
        if answer.status not in (412, 416) or not part:
            try:
                answer.raise_for_status()
            except BaseException:
                answer.close()
                raise
        return answer


class AnswerReader:
    """A raw reader of an answer's body. If the body breaks off, further requests continue it. Raises an error for a
    body that is shorter than promised."""

    def __init__(self, name: str, file: WebFile, answer: Any, patience: Network) -> None:
        self._name, self._file, self._patience = name, file, patience
        self._answer: Any = answer
        # Offsets of decoded bytes are not offsets in the file.
        self._encoded = _is_encoded(answer)
        self._position = 0

    def read(self, length: int, /) -> bytes:
        attempts = Attempts(self._patience, self._name)
        with explained(self._name):
            while True:
                try:
                    if self._answer is None:
                        if self._position and self._encoded:
                            broken = f"the answer broke off after {self._position} bytes"
                            raise OSError(f"{broken}, and a compressed answer cannot be continued")
                        self._answer = self._file.sync(self._file.rest, self._position)
                    data = bytes(self._file.sync(noticed, self._answer.content.read(length), attempts))
                    count_traffic(received=len(data))
                    self._position += len(data)
                    return data
                except ObjectReplaced:
                    raise replaced(self._name, self._position) from None
                except Exception as error:
                    self.close()
                    time.sleep(attempts.pause_after(error))

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._file.close(answer)


def _about(answer: Any) -> RangeAnswer:
    """Describe an answer. Encoded bytes are no range of the file."""
    about = answer_of(answer.status, answer.headers)
    return about._replace(part=None) if _is_encoded(answer) else about


def _is_encoded(answer: Any) -> bool:
    return answer.headers.get("Content-Encoding", "identity").lower() not in ("", "identity")
