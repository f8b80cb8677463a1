"""This module reads and writes streams: ``-``, ``pipe:CMD`` and named pipes. The bytes of a stream pass once, in order.

:class:`StreamSource` reads at rising offsets from a raw reader. This module also has the raw readers, the sinks for
streams, and :func:`stream_of`, which makes a Python file from any source. Descriptors are read and written directly,
without Python's buffers.

A command runs in a shell, like in webdataset. If a command fails, this is always an error, even if it has sent all
bytes. If the reader closes early, the command is terminated, and its exit status is ignored. This module does not know
what the bytes mean.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from fcntl import fcntl
from typing import TYPE_CHECKING, Any, Protocol

from wdscli.errors import InputError, OutputError, UsageError
from wdscli.shown import shown
from wdscli.storage.ends import LARGE_BYTES, PIECE_BYTES, SMALL_BYTES, Data, Sink, Source
from wdscli.storage.local import reason, write_all

if TYPE_CHECKING:
    import subprocess

_SET_PIPE_SIZE = 1031
_PATIENCE_SECONDS = 5.0


class RawReader(Protocol):
    """The interface for reading the bytes of a stream.

    ``read`` returns at most ``length`` bytes, as soon as some bytes are available. An empty result means the end; if
    the sender failed, ``read`` raises an error there. ``close`` may be called before the end, and then ignores such a
    failure.
    """

    def read(self, length: int, /) -> bytes: ...

    def close(self) -> None: ...


class StreamSource(Source):
    """A source that reads from a raw reader, only once. Small reads use a buffer."""

    def __init__(self, name: str, raw: RawReader) -> None:
        super().__init__(name, size=None, seekable=False)
        self._raw = raw
        self._buffer = b""
        self._at = self._position = 0

    def peek(self, length: int) -> bytes:
        """Return the next ``length`` bytes, or fewer at the end, without consuming them."""
        buffer = self._buffer[self._at :]
        while len(buffer) < length and (data := self._raw.read(SMALL_BYTES)):
            buffer += data
        self._buffer, self._at = buffer, 0
        return buffer[:length]

    def read_some(self, offset: int, length: int) -> bytes:
        if offset != self._position:
            self._pass_to(offset)
        if length <= 0 or self._position < offset:
            return b""
        # A damaged header may contain any length.
        return self._next(min(length, LARGE_BYTES))

    def _next(self, length: int) -> bytes:
        """Return some bytes from the current position. At the end, set ``size``."""
        if self._at == len(self._buffer):
            if length >= SMALL_BYTES:
                data = self._raw.read(length)
                self._note(data)
                return data
            self._buffer, self._at = self._raw.read(SMALL_BYTES), 0
        data = self._buffer[self._at : self._at + length]
        self._at += len(data)
        self._note(data)
        return data

    def _note(self, data: bytes) -> None:
        self._position += len(data)
        if not data:
            self.size = self._position

    def _pass_to(self, offset: int) -> None:
        if offset < self._position:
            raise InputError(
                f"cannot go back to byte {offset} of {self.name}: a stream can be read only once"
            )
        while self._position < offset and self._next(min(offset - self._position, PIECE_BYTES)):
            pass

    def close(self) -> None:
        self._raw.close()


class _SourceFile(io.RawIOBase):
    """A raw Python file that reads from a source. Closing the file closes the source."""

    def __init__(self, source: Source) -> None:
        self._source, self._position = source, 0
        self.name = source.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._source.seekable and self._source.size is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self.seekable():
            raise io.UnsupportedOperation("seek")
        self._position = (0, self._position, self._source.size or 0)[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._source.read_some(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def stream_of(source: Source, buffer_bytes: int = SMALL_BYTES) -> io.BufferedReader:
    """Return a Python file with the bytes of a source. When the file is closed or garbage-collected, it closes the
    source."""
    return io.BufferedReader(_SourceFile(source), max(buffer_bytes, SMALL_BYTES))


class DescriptorReader:
    """Reads a descriptor. An ``owned`` descriptor is closed at the end."""

    def __init__(self, name: str, descriptor: int, *, owned: bool) -> None:
        self._name, self._fd, self._owned = name, descriptor, owned

    def read(self, length: int, /) -> bytes:
        try:
            return os.read(self._fd, length)
        except OSError as error:
            raise InputError(f"cannot read {self._name}: {reason(error)}", cause=error) from error

    def close(self) -> None:
        if self._owned and self._fd >= 0:
            os.close(self._fd)
        self._fd = -1 if self._owned else self._fd


class FileReader:
    """A raw reader of an object that a function of the calling program has opened: a file object, or a context manager
    that returns a file object. Any error becomes an InputError."""

    def __init__(self, address: str, opener: Callable[[str], Any]) -> None:
        self._address, self._open = address, contextlib.ExitStack()
        with self._failing():
            file = opener(address)
            if hasattr(file, "__exit__"):
                file = self._open.enter_context(file)
            elif hasattr(file, "close"):
                self._open.callback(file.close)
            self._read = file.read

    def read(self, length: int, /) -> bytes:
        with self._failing():
            data: bytes = self._read(length)
        return data

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._open.close()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise InputError(f"cannot read {shown(self._address)}: {error}", cause=error) from error


class CommandReader(DescriptorReader):
    """Reads the output of a shell command. At the end of the output, raises an error if the command failed."""

    def __init__(self, name: str, command: str) -> None:
        import subprocess

        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, bufsize=0)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot run {name}: {error}", cause=error) from error
        assert self._process.stdout is not None
        super().__init__(name, self._process.stdout.fileno(), owned=False)
        widen_pipe(self._fd)

    def read(self, length: int, /) -> bytes:
        process = self._process
        if process is None:
            return b""
        data = super().read(length)
        if not data:
            self._process = None
            _close_pipes(process)
            if process.wait():
                raise InputError(f"{self._name} failed: {outcome(process.returncode)}")
        return data

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # A shell does not forward signals to its children.
            started = [] if process.poll() is not None else _descendants(process.pid)
            _close_pipes(process)
            for child in started:
                _signal(child, signal.SIGTERM)
            stop(process, signal.SIGTERM)


class DescriptorSink(Sink):
    """A sink for standard output, a named pipe or a device. Bytes are written immediately, and cannot be discarded.

    If the reader of standard output closes early, this raises BrokenPipeError, so that the caller can end quietly.
    Standard output is not ``owned``. For an ``owned`` descriptor, OutputError is raised.
    """

    def __init__(self, name: str, descriptor: int, *, owned: bool) -> None:
        super().__init__(name)
        self._descriptor, self._owned = descriptor, owned

    def _put(self, data: Data) -> None:
        try:
            write_all(self._descriptor, data)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not self._owned:
                raise
            raise OutputError(f"cannot write {self.name}: {reason(error)}", cause=error) from error

    def _commit(self) -> None:
        self._discard()

    def _discard(self) -> None:
        if self._owned:
            os.close(self._descriptor)


class CommandSink(Sink):
    """A sink for the input of a shell command. It is committed when the command has read everything and succeeded.

    A discard kills the command and its children before their input ends, so that they do not use partial input as if it
    were complete.
    """

    def __init__(self, name: str, command: str) -> None:
        import subprocess

        super().__init__(name)
        try:
            self._process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, bufsize=0)
        except (OSError, ValueError) as error:
            raise OutputError(f"cannot run {name}: {error}", cause=error) from error
        assert self._process.stdin is not None
        self._descriptor = self._process.stdin.fileno()
        widen_pipe(self._descriptor)

    def _put(self, data: Data) -> None:
        try:
            write_all(self._descriptor, data)
        except BrokenPipeError as error:
            _close_pipes(self._process)
            code = self._process.wait()
            raise OutputError(f"{self.name} stopped reading: {outcome(code)}", cause=error) from error
        except OSError as error:
            raise OutputError(f"cannot write {self.name}: {reason(error)}", cause=error) from error

    def _commit(self) -> None:
        _close_pipes(self._process)
        if self._process.wait():
            raise OutputError(f"{self.name} failed: {outcome(self._process.returncode)}")

    def _discard(self) -> None:
        for child in _held(self._process):
            _signal(child, signal.SIGKILL)
        stop(self._process, signal.SIGKILL)
        _close_pipes(self._process)


def refuse_terminal(address: str, descriptor: int, *, output: bool) -> None:
    """Refuse to read tar from a terminal, or to write tar to a terminal. If a redirection is forgotten, a read would
    wait forever."""
    if os.isatty(descriptor):
        way, hint = "write a tar to", "wds ... > out.tar, or wds ... | command"
        if not output:
            way, hint = "read a tar from", "wds ... - < in.tar, or command | wds ... -"
        raise UsageError(f"cannot {way} a terminal ({address})", hint=hint)


def widen_pipe(descriptor: int) -> None:
    """Request a pipe buffer of 1 MiB, so that each read and write moves more bytes. Ignore a refusal."""
    with contextlib.suppress(OSError):
        fcntl(descriptor, _SET_PIPE_SIZE, PIECE_BYTES)


def outcome(code: int) -> str:
    """Return a text on how a command ended."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def is_running(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except PermissionError:  # it belongs to another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a command and wait for it. Its exit status is ignored."""
    if process.poll() is None:
        _signal(process.pid, number)
    if sys.is_finalizing():  # at this point, imports and waits no longer work
        return
    import subprocess

    try:
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _held(process: subprocess.Popen[bytes]) -> list[int]:
    """Pause a command and all its children by SIGSTOP, so that the shell cannot continue when a child ends. Return the
    children."""
    if process.poll() is not None:
        return []
    _signal(process.pid, signal.SIGSTOP)
    held: list[int] = []
    while new := [child for child in _descendants(process.pid) if child not in held]:
        for child in new:
            _signal(child, signal.SIGSTOP)
        held += new
    return held


def _descendants(pid: int) -> list[int]:
    """Return the processes that a shell started, from Linux's /proc. On other systems, return none."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            pids = [int(child) for child in children.read().split()]
    except OSError:
        return []
    return pids + [below for child in pids for below in _descendants(child)]


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
