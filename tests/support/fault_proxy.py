"""A proxy that spoils answers, between a client and a server on 127.0.0.1.

What it is: :func:`fault_proxy`, a server in a thread of its own that hands requests on, each by a connection of its
own, and answers back. How: before an answer goes out, the first of ``faults`` that fits the request and is not used up
spoils it. It counts the requests and the bytes of bodies by method. HTTP is read as far as that takes: heads, and
bodies with a Content-Length.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

STEP_BYTES = 1 << 16


@dataclass
class Fault:
    """What is done to an answer, ``times`` times, of those whose request line ``where`` is found in.

    - ``cut``, ``reset`` and ``stall``: the body ends after ``after`` bytes: the connection is closed, torn down, or
      nothing more comes.
    - ``slow``: the body comes in pieces of ``after`` bytes with ``seconds`` between them.
    - ``status``: the answer is ``status``, with ``headers`` and ``body``, and the request goes no further.
    - ``lost``: the request goes on, and its answer is ``status``, with ``headers`` and ``body``.
    - ``more`` and ``less``: Content-Length says so many bytes (``after``) more or less than there are.
    - ``call``: ``call()`` is called before the request goes on, which replaces what it is for.
    """

    kind: str
    times: float = 1
    where: str = "^GET "
    after: int = 0
    seconds: float = 0.0
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    call: Callable[[], object] = lambda: None
    skip: int = 0
    """So many answers are let through before."""


class FaultProxy:
    """Listens on ``port``; ``url`` is where clients are led."""

    def __init__(self, upstream: int) -> None:
        self.faults: list[Fault] = []
        self.delay_seconds = 0.0
        self.requests: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.lines: list[str] = []
        """The first line of each request."""
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def clear(self, *faults: Fault) -> None:
        """Begin counting anew, with these faults."""
        self.faults = list(faults)
        self.requests.clear()
        self.sent_bytes.clear()
        self.lines.clear()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, TimeoutError
        ):
            while await self._answer(reader, writer):
                pass
        with contextlib.suppress(Exception):
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request. Whether the connection can go on."""
        head = await reader.readuntil(b"\r\n\r\n")
        if re.search(rb"(?i)\r\nexpect: *100-continue", head):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head)
        body = await reader.readexactly(_length(head) or 0)
        line = head.partition(b"\r\n")[0].decode()
        method = line.partition(" ")[0]
        self.lines.append(line)
        self.requests[method] += 1
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        fault = self._fault(line)
        if fault is not None and fault.kind in ("status", "lost"):
            if fault.kind == "lost":
                await self._ask(head, body)
            extra = "".join(f"{name}: {value}\r\n" for name, value in fault.headers.items())
            length = f"Content-Length: {len(fault.body)}\r\n\r\n"
            page = b"" if method == "HEAD" else fault.body
            writer.write(f"HTTP/1.1 {fault.status} Odd\r\n{extra}{length}".encode() + page)
            return True
        if fault is not None and fault.kind == "call":
            await self._loop.run_in_executor(None, fault.call)
            fault = None
        return await self._hand_on(head, body, method, writer, fault)

    def _fault(self, line: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.where, line):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    async def _hand_on(
        self, head: bytes, body: bytes, method: str, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> bool:
        there, back = await self._forwarded(head, body)
        try:
            answer = await there.readuntil(b"\r\n\r\n")
            length = _length(answer)
            answer = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", answer)
            ends = length is None and method != "HEAD"
            if ends:
                answer = answer[:-2] + b"Connection: close\r\n\r\n"
            if fault is not None and fault.kind in ("more", "less"):
                told = (length or 0) + (fault.after if fault.kind == "more" else -fault.after)
                answer = re.sub(
                    rb"(?i)\r\ncontent-length:[^\r]*", b"\r\nContent-Length: %d" % max(told, 0), answer
                )
            writer.write(answer)
            if method != "HEAD":
                await self._body(there, inf if length is None else length, writer, method, fault)
            await writer.drain()
            return not ends and fault is None
        finally:
            back.close()

    async def _forwarded(self, head: bytes, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server, on which the request was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream, limit=1 << 20)
        alone = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head[:-4])
        writer.write(alone + b"\r\nConnection: close\r\n\r\n" + body)
        return reader, writer

    async def _ask(self, head: bytes, body: bytes) -> None:
        """Let the server answer a request, and throw the answer away."""
        reader, writer = await self._forwarded(head, body)
        await reader.read()
        writer.close()

    async def _body(
        self,
        there: asyncio.StreamReader,
        left: float,
        writer: asyncio.StreamWriter,
        method: str,
        fault: Fault | None,
    ) -> None:
        """The body, of which so much is ``left``, as far as the fault lets it through."""
        if fault is not None and fault.kind in ("cut", "reset", "stall"):
            left = min(left, fault.after)
        step = fault.after if fault is not None and fault.kind == "slow" else STEP_BYTES
        while left > 0 and (data := await there.read(int(min(step, left)))):
            writer.write(data)
            await writer.drain()
            self.sent_bytes[method] += len(data)
            left -= len(data)
            if fault is not None and fault.kind == "slow":
                await asyncio.sleep(fault.seconds)
        if fault is not None and fault.kind == "stall":
            await asyncio.sleep(3600)
        if fault is not None and fault.kind == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def _length(head: bytes) -> int | None:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else None


@contextlib.contextmanager
def fault_proxy(upstream: int) -> Iterator[FaultProxy]:
    """A proxy before the server at a port."""
    proxy = FaultProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
