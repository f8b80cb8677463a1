"""Files of web servers: read by ranges where the server has them, else as one stream.

What it is: :class:`WebFile`, which fetches ranges, and :class:`AnswerReader`, a stream. How: the server is asked for
the first bytes, and the answer tells all: 206 with the total means ranges work, 200 means they do not and the same
answer is read on as a stream, so that a server is never asked twice for what it sent. All answers are held to the
version of the first, by its ETag or its time of change. A stream that breaks off goes on where it was with a server
that knows ranges after all; with any other it begins anew as long as nothing was handed out, and is an error
afterwards. The session is fsspec's. It must not know shards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from wdscli.storage.ends import replaced
from wdscli.storage.remote import CONNECT_SECONDS, explained
from wdscli.storage.retry import Attempts, Buffer, Network, Replaced, count_traffic, noticed


class WebFile:
    """One URL, and the version of what lies there: that of the first answer. ``total`` is None where ranges do not
    help."""

    def __init__(self, fs: Any, url: str, patience: Network) -> None:
        self._fs, self._url, self._patience = fs, url, patience
        self._version = _Version("", "")
        self._opened: Any = None
        """The first answer, until it is read."""
        self.total: int | None = None

    @property
    def version(self) -> str:
        """What tells the file from another at its address, as far as its server says so."""
        return self._version.etag or self._version.changed

    @property
    def loop(self) -> Any:
        """The event loop of fsspec's thread."""
        return self._fs.loop

    def sync(self, function: Any, *arguments: Any) -> Any:
        """Run a coroutine in fsspec's thread and wait for it."""
        from fsspec.asyn import sync

        return sync(self.loop, function, *arguments)

    def close(self, answer: Any) -> None:
        """Let go of an answer, read to its end or not; the connection belongs to fsspec's thread."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(answer.close)

    def begin(self, first: int) -> Any:
        """Ask for the ``first`` bytes. Gives an answer to be read as a stream; or None where ranges work, and then the
        first of them is on its way. Raises what the client raises, FileNotFoundError for 404 and 410."""
        answer = self.sync(self.get, (0, first))
        self.total = None if _is_encoded(answer) else _total(answer)
        if self.total is None and (answer.status != 200 or _is_encoded(answer)):
            # Ranges of unknown length, or of an encoding that only makes sense as a whole.
            self.close(answer)
            answer = self.sync(self.get, None)
        self._version = _Version.of(answer)
        if self.total is None:
            return answer
        if self.total:
            self._opened = answer
        else:
            self.close(answer)
        return None

    async def fetch(self, begin: int, end: int, keep: Callable[[Buffer], object]) -> None:
        """One range, as :mod:`wdscli.storage.retry` asks for it."""
        answer, self._opened = self._opened or await self.get((begin, end), self._version.condition), None
        try:
            self._check(answer)
            if answer.status != 206:
                raise OSError(f"the server no longer serves ranges (status {answer.status})")
            check_range(answer.headers.get("Content-Range", ""), begin, min(end, self.total or 0), self.total)
            while data := await answer.content.readany():
                keep(data)
        finally:
            answer.close()

    def _check(self, answer: Any) -> None:
        """Raise Replaced for an answer that is of another file."""
        if answer.status == 412 or self._version.differs(_Version.of(answer)):
            raise Replaced
        if answer.status == 416 and _total(answer) not in (None, self.total):
            raise Replaced

    async def rest(self, position: int) -> Any:
        """An answer with all from ``position`` on. Raises Replaced, and OSError where the server cannot."""
        answer = await self.get((position, None) if position else None, self._version.condition)
        try:
            self._check(answer)
            if position and (answer.status != 206 or _is_encoded(answer)):
                raise OSError(f"the answer broke off after {position} bytes, and the server has no ranges")
            if position and not answer.headers.get("Content-Range", "").startswith(f"bytes {position}-"):
                raise OSError("the server sent other bytes than were requested")
        except BaseException:
            answer.close()
            raise
        return answer

    def look(self) -> tuple[int, str] | None:
        """Size and version, without the bytes; None where the server does not tell. Raises what the client raises,
        FileNotFoundError for 404 and 410."""
        answer = self.sync(self.get, None, None, "HEAD", (200, 403, 405, 501))
        self.close(answer)
        size = answer.headers.get("Content-Length") or ""
        if answer.status != 200 or _is_encoded(answer) or not (size.isascii() and size.isdigit()):
            return None
        version = _Version.of(answer)
        return int(size), version.etag or version.changed

    async def get(
        self,
        part: tuple[int, int | None] | None,
        condition: dict[str, str] | None = None,
        verb: str = "GET",
        allowed: Collection[int] = (),
    ) -> Any:
        """An answer, its headers read: all of a file, or ``part`` of it (then 412 and 416 are answers too, and those of
        an ``allowed`` status always)."""
        import aiohttp

        session = await self._fs.set_session()
        options = dict(self._fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **(condition or {})}
        if part:
            headers["Range"] = f"bytes={part[0]}-{'' if part[1] is None else part[1] - 1}"
        # The client's own limit is five minutes for the whole answer; a shard on a slow line takes longer.
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
    """The body of one answer as a raw reader, and of further ones where it breaks off. A body shorter than was promised
    raises."""

    def __init__(self, name: str, file: WebFile, answer: Any, patience: Network) -> None:
        self._name, self._file, self._patience = name, file, patience
        self._answer: Any = answer
        # What is decoded on the way has other offsets than the file.
        self._encoded = _is_encoded(answer)
        self._position = 0

    def read(self, length: int, /) -> bytes:
        attempts = Attempts(self._patience, self._name)
        with explained(self._name):
            while True:
                try:
                    if self._answer is None:
                        self._answer = self._again()
                    data = bytes(self._file.sync(noticed, self._answer.content.read(length), attempts))
                    count_traffic(received=len(data))
                    self._position += len(data)
                    return data
                except Replaced:
                    raise replaced(self._name, self._position) from None
                except Exception as error:
                    self.close()
                    time.sleep(attempts.pause_after(error))

    def _again(self) -> Any:
        if self._position and self._encoded:
            raise OSError(f"the answer broke off after {self._position} bytes, and is encoded as a whole")
        return self._file.sync(self._file.rest, self._position)

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._file.close(answer)


class _Version(NamedTuple):
    """What an answer says of the file that it is of."""

    etag: str
    changed: str

    @classmethod
    def of(cls, answer: Any) -> _Version:
        return cls(answer.headers.get("ETag") or "", answer.headers.get("Last-Modified") or "")

    @property
    def condition(self) -> dict[str, str]:
        """Headers by which a server refuses to send parts of another file (RFC 9110, 13.1.1: only strong tags)."""
        return {"If-Match": self.etag} if self.etag.startswith('"') else {}

    def differs(self, other: _Version) -> bool:
        if self.etag and other.etag:
            # Servers of one file may tell another time; the tag is what they agree on.
            return self.etag != other.etag
        return bool(self.changed and other.changed and self.changed != other.changed)


def check_range(text: str, begin: int, end: int, total: int | None) -> None:
    """Raise Replaced when an answer is a part of a whole of another size, OSError when it is another part than was
    asked for. ``text`` is its Content-Range; an empty one says nothing."""
    # RFC 9110, 14.4: bytes 0-65535/1000000, or bytes 0-65535/*
    part, _, whole = text.removeprefix("bytes").strip().partition("/")
    if whole.isascii() and whole.isdigit() and int(whole) != total:
        raise Replaced
    if part and part != f"{begin}-{end - 1}":
        raise OSError(f"the server sent bytes {part} where {begin}-{end - 1} were asked for")


def _total(answer: Any) -> int | None:
    """The whole size, when the server honoured the range."""
    if answer.status not in (206, 416):
        return None
    # RFC 9110, 14.4: Content-Range: bytes 0-65535/1000000, or bytes */0 with 416.
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isascii() and total.isdigit() else None


def _is_encoded(answer: Any) -> bool:
    return answer.headers.get("Content-Encoding", "identity").lower() not in ("", "identity")
