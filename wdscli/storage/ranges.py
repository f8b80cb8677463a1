"""Objects on other machines, read by ranges, each as one version of itself.

What it is: :class:`RemoteSource` (ranges of an object whose size is known), and who fetches its ranges: a plain web
server, S3, any other store that fsspec knows. How: fsspec's file objects are not used for reading, since they fetch
blocks of 5 to 50 MiB; each read is one range request, unless it was expected: then :mod:`wdscli.storage.ahead` has
fetched it with its neighbours. All requests begin in :meth:`RemoteSource._fetch`. The first answer says which version
of the object there is, and all others must be of the same. What has no size or no ranges is a stream.

A web server is asked for the first 64 KiB, and the answer tells all: 206 with the total means ranges work, 200 means
they do not and the same answer is read on as a stream, so that a server is never asked twice for what it sent. The
session is fsspec's. On S3 the ETag of the first answer is asked for by every other request (If-Match), and every answer
is compared with it, because some stores that speak S3 do not know If-Match; s3fs's own ``cat_file`` takes no condition
and shows no headers, hence the call one step below it. It must not know shards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from wdscli.errors import InputError, InputIsFolderError
from wdscli.storage.addresses import is_web
from wdscli.storage.ahead import Ahead, Line, Range
from wdscli.storage.ends import Source, replaced
from wdscli.storage.remote import code_of, explained, filesystem
from wdscli.storage.streams import StreamSource

HEAD_BYTES = 1 << 16
"""What the first read fetches at least, so that a look at the first bytes is no request of its own."""
_CONNECT_SECONDS = 30.0
_SILENCE_SECONDS = 60.0
_NO_CONDITION: Mapping[str, str] = MappingProxyType({})
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "created")


class Replaced(Exception):
    """Raised by who reads ranges: the object is another one than the first answer was of."""


_LINES: dict[str, Line] = {}
"""By scheme and host or bucket."""

Start = Callable[[int, int], "Future[bytes]"]
"""Begins one request, by its first byte and the byte behind its last."""


class RemoteSource(Source):
    """An object of known size, read by ranges. ``start(begin, end)`` begins one request, whose future raises
    :class:`Replaced` where it can tell; where it cannot, ``version_now()`` asks for the version there is now."""

    __slots__ = ("_ahead", "_head", "_length", "_start", "_version_now")

    def __init__(
        self,
        name: str,
        size: int,
        start: Start,
        head: bytes = b"",
        version_now: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(name, size=size, seekable=True)
        self._start = start
        self._version_now = version_now
        self._head = head
        self._length = size
        line = _LINES.setdefault("/".join(name.split("/", 3)[:3]), Line())
        self._ahead = Ahead(lambda begin, end: self._fetch(begin, end), self._came, line)

    def expect(self, ranges: Iterable[Range], *, gap_bytes: int | None = None) -> None:
        near = len(self._head)
        some = [(max(begin, near), min(end, self._length)) for begin, end in ranges]
        self._ahead.expect(some, gap_bytes)

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._length)
        if end <= offset:
            return b""
        if end > len(self._head) and offset == 0 and end <= HEAD_BYTES:
            self._head = self._direct(0, min(HEAD_BYTES, self._length))
        if end <= len(self._head):
            return self._head[offset:end]
        near = self._head[offset:]
        found = self._ahead.read(offset + len(near), end)
        return self._direct(offset, end) if found is None else near + found

    def _direct(self, begin: int, end: int) -> bytes:
        return self._came(self._fetch(begin, end), begin, end)

    def _fetch(self, begin: int, end: int) -> Future[bytes]:
        """Every range request of every remote address begins here."""
        with explained(self.name):
            return self._start(begin, end)

    def _came(self, answer: Future[bytes], begin: int, end: int) -> bytes:
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


def open_remote(address: str) -> Source:
    """A source for an address with a scheme. Raises InputError."""
    with explained(address):
        fs, path = filesystem(address, fresh=False)
        if is_web(address):
            return _open_web(address, fs, path)
        about = fs.info(path)
        if about.get("type") == "directory":
            raise InputIsFolderError(
                f"cannot read {address}: it is a folder", hint=f"{address.rstrip('/')}/ stands for its shards"
            )
        if about.get("size") is None:
            return StreamSource(address, _FileReader(address, fs.open(path, "rb", block_size=0)))
    size = int(about["size"])
    if hasattr(fs, "_call_s3"):
        pinned = _S3Object(fs, path, size)
        source = pinned.source = RemoteSource(address, size, partial(_begun, fs, pinned.read))
    else:
        source = RemoteSource(
            address,
            size,
            _range_starter(fs, path),
            version_now=lambda: _version(filesystem(address)[0].info(path)),
        )
    source.version = _version(about)
    return source


def _version(about: dict[str, Any]) -> str:
    """What a backend says that tells one content from another, by whichever of its names."""
    found = next((name for name in _VERSIONS if about.get(name)), None)
    return "" if found is None else f"{found.lower()}:{about[found]}"


def _range_starter(fs: Any, path: str) -> Start:
    from fsspec.spec import AbstractFileSystem

    if fs.async_impl:
        return lambda begin, end: _begun(fs, partial(fs._cat_file, path), begin, end)
    # The generic cat_file opens a file object; without a cache it fetches the range and no block around it.
    options = {"cache_type": "none"} if type(fs).cat_file is AbstractFileSystem.cat_file else {}

    def start(begin: int, end: int) -> Future[bytes]:
        answer: Future[bytes] = Future()
        try:
            answer.set_result(bytes(fs.cat_file(path, start=begin, end=end, **options)))
        except Exception as error:
            answer.set_exception(error)
        return answer

    return start


def _begun(fs: Any, function: Callable[..., Coroutine[Any, Any, bytes]], *arguments: Any) -> Future[bytes]:
    """Begin a coroutine in fsspec's thread."""
    from asyncio import run_coroutine_threadsafe

    return run_coroutine_threadsafe(function(*arguments), fs.loop)


def _sync(fs: Any, function: Any, *arguments: Any) -> Any:
    """Run a coroutine in fsspec's thread and wait for it."""
    from fsspec.asyn import sync

    return sync(fs.loop, function, *arguments)


def _check_range(text: str, start: int, end: int, total: int) -> None:
    """Raise Replaced when an answer is a part of a whole of another size, OSError when it is another part than was
    asked for. ``text`` is its Content-Range; an empty one says nothing."""
    # RFC 9110, 14.4: bytes 0-65535/1000000, or bytes 0-65535/*
    part, _, whole = text.removeprefix("bytes").strip().partition("/")
    if whole.isascii() and whole.isdigit() and int(whole) != total:
        raise Replaced
    if part and part != f"{start}-{end - 1}":
        raise OSError(f"the server sent bytes {part} where {start}-{end - 1} were asked for")


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
    """One object on S3, of the version that the first answer is of; ``source`` is told of it."""

    source: Source

    def __init__(self, fs: Any, path: str, size: int) -> None:
        self._fs = fs
        self._size = size
        self._etag = ""
        bucket, key, version_id = fs.split_path(path)
        self._of = {"Bucket": bucket, "Key": key, **({"VersionId": version_id} if version_id else {})}

    async def read(self, start: int, end: int) -> bytes:
        """One range. Raises Replaced, and what s3fs raises."""
        from s3fs.core import _error_wrapper

        try:
            # As s3fs reads: a body that breaks off is asked for again, as often as it is told to.
            data: bytes = await _error_wrapper(self._read, args=(start, end), retries=self._fs.retries)
            return data
        except Exception as error:
            if code_of(error.__cause__) in ("PreconditionFailed", "412"):
                self._fs.invalidate_cache()
                raise Replaced from None
            raise

    async def _read(self, start: int, end: int) -> bytes:
        condition = {"IfMatch": self._etag} if self._etag else {}
        answer = await self._fs._call_s3(
            "get_object", **self._of, Range=f"bytes={start}-{end - 1}", **condition
        )
        body = answer["Body"]
        try:
            etag = answer.get("ETag") or ""
            if self._etag and etag and etag != self._etag:
                self._fs.invalidate_cache()
                raise Replaced
            _check_range(answer.get("ContentRange") or "", start, end, self._size)
            data = bytes(await body.read())
        finally:
            body.close()
        if etag and not self._etag:
            self._etag = etag
            # What a listing said may be older than the first answer.
            self.source.version = f"etag:{etag}"
        elif etag and etag != self._etag:  # two that were first at once
            raise Replaced
        return data


def _open_web(address: str, fs: Any, url: str) -> Source:
    """A source for one URL. Raises what the client raises, FileNotFoundError for 404 and 410."""
    answer = _sync(fs, _get, fs, url, (0, HEAD_BYTES))
    try:
        total = None if _is_encoded(answer) else _total(answer)
        if total is None and (answer.status != 200 or _is_encoded(answer)):
            # Ranges of unknown length, or of an encoding that only makes sense as a whole.
            _close(fs, answer)
            answer = _sync(fs, _get, fs, url, None)
        if total is None:
            return StreamSource(address, _AnswerReader(address, fs, answer))
        head = _sync(fs, answer.read) if total else b""
    except BaseException:
        _close(fs, answer)
        raise
    _close(fs, answer)
    pinned = _WebFile(answer.headers.get("ETag") or "", answer.headers.get("Last-Modified") or "", total)
    source = RemoteSource(
        address, total, lambda begin, end: _begun(fs, _range, fs, url, begin, end, pinned), head
    )
    source.version = pinned.etag or pinned.changed
    return source


class _WebFile(NamedTuple):
    """What the first answer said of a file, which every further answer must say too."""

    etag: str
    changed: str
    total: int

    @property
    def condition(self) -> dict[str, str]:
        """Headers by which a server refuses to send parts of another file (RFC 9110, 13.1.1: only strong tags)."""
        return {"If-Match": self.etag} if self.etag.startswith('"') else {}

    def check(self, answer: Any) -> None:
        """Raise Replaced for an answer that is of another file."""
        etag, changed = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
        if self.etag and etag:
            # Servers of one file may tell another time; the tag is what they agree on.
            if etag != self.etag:
                raise Replaced
        elif self.changed and changed and changed != self.changed:
            raise Replaced


class _AnswerReader:
    """The body of one answer as a raw reader. A body shorter than was promised raises."""

    def __init__(self, name: str, fs: Any, answer: Any) -> None:
        self._name, self._fs, self._answer = name, fs, answer

    def read(self, length: int, /) -> bytes:
        with explained(self._name):
            return bytes(_sync(self._fs, self._answer.content.read, length))

    def close(self) -> None:
        _close(self._fs, self._answer)


def _close(fs: Any, answer: Any) -> None:
    """Let go of an answer, read to its end or not; the connection belongs to fsspec's thread."""
    with contextlib.suppress(RuntimeError):
        fs.loop.call_soon_threadsafe(answer.close)


async def _get(
    fs: Any, url: str, part: tuple[int, int] | None, condition: Mapping[str, str] = _NO_CONDITION
) -> Any:
    """An answer, its headers read: all of a file, or ``part`` of it (then 412 and 416 are answers too)."""
    import aiohttp

    session = await fs.set_session()
    options = dict(fs.kwargs)
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **condition}
    if part:
        headers["Range"] = f"bytes={part[0]}-{part[1] - 1}"
    # The client's own limit is five minutes for the whole answer; a shard on a slow line takes longer.
    options.setdefault(
        "timeout",
        aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
    )
    answer = await session.get(fs.encode_url(url), headers=headers, **options)
    if answer.status in (404, 410):
        answer.close()
        raise FileNotFoundError(url)
    if answer.status not in (412, 416) or not part:
        try:
            answer.raise_for_status()
        except BaseException:
            answer.close()
            raise
    return answer


async def _range(fs: Any, url: str, start: int, end: int, pinned: _WebFile) -> bytes:
    answer = await _get(fs, url, (start, end), pinned.condition)
    try:
        if answer.status == 412:
            raise Replaced
        pinned.check(answer)
        total = _total(answer)
        if answer.status == 416 and total not in (None, pinned.total):
            raise Replaced
        if answer.status != 206:
            raise OSError(f"the server no longer serves ranges (status {answer.status})")
        _check_range(answer.headers.get("Content-Range", ""), start, end, pinned.total)
        return bytes(await answer.read())
    finally:
        answer.close()


def _total(answer: Any) -> int | None:
    """The whole size, when the server honoured the range."""
    if answer.status not in (206, 416):
        return None
    # RFC 9110, 14.4: Content-Range: bytes 0-65535/1000000, or bytes */0 with 416.
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isascii() and total.isdigit() else None


def _is_encoded(answer: Any) -> bool:
    return answer.headers.get("Content-Encoding", "identity").lower() not in ("", "identity")
