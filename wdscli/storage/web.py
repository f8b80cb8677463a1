"""Files on plain web servers.

What it is: the first request of an http(s) source and its range requests. How: the first request asks for the
first 64 KiB and the answer tells all: 206 with the total means ranges work, 200 means they do not and the
same answer is read on as a stream, so that a server is never asked twice for what it sent. It uses the
connection that fsspec keeps and must not know more of fsspec than that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wdscli.shown import cause_of
from wdscli.storage.ends import Source
from wdscli.storage.remote import HEAD_BYTES, RemoteSource, Replaced, input_error
from wdscli.storage.streams import StreamSource

_CONNECT_SECONDS = 30.0
_SILENCE_SECONDS = 60.0
NO_CONDITION: Mapping[str, str] = MappingProxyType({})


def open_web(address: str, fs: Any, url: str) -> Source:
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
        head = _sync(fs, _body, answer) if total else b""
    except BaseException:
        _close(fs, answer)
        raise
    _close(fs, answer)
    pinned = _Pinned(answer.headers.get("ETag") or "", answer.headers.get("Last-Modified") or "", total)
    source = RemoteSource(
        address, total, lambda start, end: _sync(fs, _range, fs, url, start, end, pinned), head
    )
    source.version = pinned.etag or pinned.changed
    return source


class _Pinned(NamedTuple):
    """What the first answer said of the file, which every further answer must say too."""

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
        try:
            return bytes(_sync(self._fs, _some, self._answer, length))
        except Exception as error:
            raise input_error(self._name, error) from cause_of(error)

    def close(self) -> None:
        _close(self._fs, self._answer)


def _sync(fs: Any, function: Any, *arguments: Any) -> Any:
    """Run a coroutine in fsspec's thread and wait for it."""
    from fsspec.asyn import sync

    return sync(fs.loop, function, *arguments)


def _close(fs: Any, answer: Any) -> None:
    """Let go of an answer, read to its end or not; the connection belongs to fsspec's thread."""
    with contextlib.suppress(RuntimeError):
        fs.loop.call_soon_threadsafe(answer.close)


async def _get(
    fs: Any, url: str, part: tuple[int, int] | None, condition: Mapping[str, str] = NO_CONDITION
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


async def _range(fs: Any, url: str, start: int, end: int, pinned: _Pinned) -> bytes:
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
        check_range(answer.headers.get("Content-Range", ""), start, end, pinned.total)
        return bytes(await answer.read())
    finally:
        answer.close()


def check_range(text: str, start: int, end: int, total: int) -> None:
    """Raise Replaced when an answer is a part of a whole of another size, OSError when it is another part than was
    asked for. ``text`` is its Content-Range; an empty one says nothing."""
    # RFC 9110, 14.4: bytes 0-65535/1000000, or bytes 0-65535/*
    part, _, whole = text.removeprefix("bytes").strip().partition("/")
    if whole.isascii() and whole.isdigit() and int(whole) != total:
        raise Replaced
    if part and part != f"{start}-{end - 1}":
        raise OSError(f"the server sent bytes {part} where {start}-{end - 1} were asked for")


async def _body(answer: Any) -> bytes:
    return bytes(await answer.read())


async def _some(answer: Any, length: int) -> bytes:
    return bytes(await answer.content.read(length))


def _total(answer: Any) -> int | None:
    """The whole size, when the server honoured the range."""
    if answer.status not in (206, 416):
        return None
    # RFC 9110, 14.4: Content-Range: bytes 0-65535/1000000, or bytes */0 with 416.
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isascii() and total.isdigit() else None


def _is_encoded(answer: Any) -> bool:
    return answer.headers.get("Content-Encoding", "identity").lower() not in ("", "identity")
