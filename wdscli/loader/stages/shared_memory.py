"""Reused shared memory, in which large columns of a batch cross from a worker of WebLoader to the trainer.

What it is: :class:`Lender`, which writes arrays and bytes into segments of shared memory; :func:`crossing`, which
prepares a batch in the worker; and :func:`received`, which finds the bytes in the main process. Why: torch makes new
shared memory for each tensor; the kernel must clear its pages and both processes must map them, which takes several
times as long as copying the bytes; and a list of bytes objects is pickled one by one. How: a segment is a file in
memory without a name, so that it disappears with both processes and uses nothing of ``/dev/shm``. Its descriptor
crosses once, then only its number. The first byte of its first page is set while the receiver refers to the segment;
after that the worker writes there again. A batch that the trainer keeps stays valid: its segment is not reused. A
column that is collated into a segment (:func:`shared_array`) crosses without a copy. Without such files, or with too
many segments lent, a batch is pickled as usual. Only values that :func:`crossing` has marked are pickled in another
way. It must not know what a batch means."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, NamedTuple

from wdscli.arrays import U8, numpy

SHARED_FROM_BYTES = 1 << 17
"""From this size on a segment costs less than a pipe."""
HEADER_BYTES = mmap.PAGESIZE
MOST_SEGMENTS = 64
"""The most segments of a worker; each is an open file."""
BUFFERS_PER_WRITE = 512
"""The number that one system call accepts everywhere."""


class Loan:
    """The memory of an array in a segment, for numpy; ``ended`` is called after its last reference."""

    def __init__(self, memory: mmap.mmap, size_bytes: int, ended: Callable[[], None]) -> None:
        address = numpy.frombuffer(memory, numpy.uint8).ctypes.data + HEADER_BYTES
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size_bytes,),
            "data": (address, False),
        }
        self._memory, self._ended = memory, ended

    def __del__(self) -> None:
        self._ended()


class Segment:
    """Shared memory of a worker, its ``number``-th, with room for ``room`` bytes."""

    def __init__(self, number: int, room: int) -> None:
        self.number, self.room = number, room
        self.file = os.memfd_create("wdscli-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, HEADER_BYTES + room)
            self.memory = mmap.mmap(self.file, HEADER_BYTES + room)
        except BaseException:
            os.close(self.file)
            raise
        self.is_lent = False
        """Whether an array of this process is here."""
        self.was_sent = False
        """Whether the receiver has that array, too."""
        self.is_known = False
        """Whether the receiver has the file."""

    @property
    def is_free(self) -> bool:
        """Whether no process refers to the segment."""
        return not (self.is_lent or self.memory[0])

    def lend(self, size_bytes: int) -> U8:
        """Return the memory as an array of bytes of this process."""
        self.is_lent = True
        array: U8 = numpy.asarray(Loan(self.memory, size_bytes, self._end))
        return array

    def _end(self) -> None:
        self.was_sent = False
        self.is_lent = False

    def write(self, parts: Sequence[Any]) -> None:
        """Write these bytes, one part after the other, without mapping pages. Raises OSError."""
        at = HEADER_BYTES
        for first in range(0, len(parts), BUFFERS_PER_WRITE):
            some = parts[first : first + BUFFERS_PER_WRITE]
            size = sum(map(len, some))
            if size and os.pwritev(self.file, some, at) != size:
                raise OSError("shared memory is full")
            at += size


class Sent(NamedTuple):
    """A message: ``size_bytes`` in segment ``number`` of a worker, with its ``file`` the first time."""

    process: int
    token: bytes
    number: int
    size_bytes: int
    file: Any


class Lender:
    """The segments of this process."""

    def __init__(self) -> None:
        self.process, self._token = os.getpid(), os.urandom(8)
        self._segments: list[Segment] = []
        self._lent: dict[int, Segment] = {}
        """Segments by the address of their memory."""
        self._lock = Lock()

    def array(self, size_bytes: int) -> U8 | None:
        """Return memory for an array that crosses without a copy; None without a free segment."""
        with self._lock:
            segment = self._free(size_bytes)
            if segment is None:
                return None
            array = segment.lend(size_bytes)
        self._lent[array.ctypes.data] = segment
        return array

    def lent(self, array: U8) -> Sent | None:
        """Return the message for an array, which is in a segment, or is written to one. None without a free segment."""
        with self._lock:
            segment = self._lent.get(array.ctypes.data)
            if segment is not None and segment.is_lent and not segment.was_sent:
                segment.was_sent = True
                return self._sent(segment, len(array))
        return self.written([memoryview(array)], len(array))

    def written(self, parts: Sequence[Any], size_bytes: int) -> Sent | None:
        """Return the message for bytes, one part after the other. None without a free segment."""
        with self._lock:
            segment = self._free(size_bytes)
            if segment is None:
                return None
            sent = self._sent(segment, size_bytes)
        try:
            segment.write(parts)
        except OSError:
            segment.memory[0], segment.is_known = 0, False
            return None
        return sent

    def _free(self, size_bytes: int) -> Segment | None:
        room = 1 << max(size_bytes - 1, SHARED_FROM_BYTES - 1).bit_length()
        for segment in self._segments:
            if segment.room == room and segment.is_free:
                return segment
        if len(self._segments) >= MOST_SEGMENTS:
            return None
        try:
            segment = Segment(len(self._segments), room)
        except (AttributeError, OSError):  # the system has no such files, or no more of them
            return None
        self._segments.append(segment)
        return segment

    def _sent(self, segment: Segment, size_bytes: int) -> Sent:
        from multiprocessing.reduction import DupFd

        segment.memory[0] = 1
        file = None if segment.is_known else DupFd(segment.file)
        segment.is_known = True
        return Sent(self.process, self._token, segment.number, size_bytes, file)


_lenders: list[Lender] = []


def lend_here() -> None:
    """Let this worker of WebLoader lend segments."""
    _lenders[:] = [Lender()]


def lender() -> Lender | None:
    """Return the lender of this process; None outside of WebLoader's workers."""
    return _lenders[0] if _lenders and _lenders[0].process == os.getpid() else None


_received: dict[tuple[int, bytes], dict[int, mmap.mmap]] = {}
"""The segments that this process has mapped, by the worker's process and token, and by number."""


def received(sent: Sent) -> U8:
    """Return the sent bytes as an array that may be changed; the worker reuses its memory after its last reference."""
    segments = _received.setdefault((sent.process, sent.token), {})
    if sent.file is not None:
        file = sent.file.detach()
        try:
            segments[sent.number] = mmap.mmap(file, 0)
        finally:
            os.close(file)
    memory, process = segments[sent.number], os.getpid()

    def ended() -> None:
        if os.getpid() == process:  # not in a fork of it
            memory[0] = 0
            _forget_dead()

    array: U8 = numpy.asarray(Loan(memory, sent.size_bytes, ended))
    return array


def _forget_dead() -> None:
    """Unmap the segments of ended workers."""
    for process, token in tuple(_received):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            _received.pop((process, token), None)
        except OSError:  # another user's process: it is running
            pass


def shared_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array for the output of :func:`numpy.stack`, which crosses without a copy; None outside of workers, for
    small ones, and without a free segment."""
    import math

    size_bytes = math.prod(shape) * dtype.itemsize
    mine = lender() if size_bytes >= SHARED_FROM_BYTES and not dtype.hasobject else None
    array = None if mine is None else mine.array(size_bytes)
    return None if array is None else array.view(dtype).reshape(shape)


def sent_bytes(parts: Sequence[Any], size_bytes: int) -> Sent | None:
    """Return the message for bytes, one part after the other; None for few bytes and without a free segment."""
    mine = lender() if size_bytes >= SHARED_FROM_BYTES else None
    return None if mine is None else mine.written(parts, size_bytes)


def crossing(batch: Any) -> Any:
    """Mark the columns of ``batch`` that are pickled faster; it arrives unchanged. Searches plain lists, tuples and
    dictionaries; anything else is pickled as usual."""
    kind = type(batch)
    if kind is dict:
        return {name: crossing(value) for name, value in batch.items()}
    if kind is list and len(batch) > 1 and all(type(value) is bytes for value in batch):
        return _Column(batch)
    if kind is list or kind is tuple:
        return kind(map(crossing, batch))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return kind(*map(crossing, batch))
    if kind is numpy.ndarray or (kind.__module__ == "torch" and kind.__name__ == "Tensor"):
        return _Large(batch) if batch.nbytes >= SHARED_FROM_BYTES else batch
    return batch


class _Column:
    """A list of bytes objects to send: one buffer, and their sizes."""

    __slots__ = ("_values",)

    def __init__(self, values: list[bytes]) -> None:
        self._values = values

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = list(map(len, self._values))
        sent = sent_bytes(self._values, sum(sizes))
        return _list_of, (b"".join(self._values) if sent is None else sent, numpy.array(sizes).tobytes())


def _list_of(data: Any, sizes: bytes) -> list[bytes]:
    buffer = memoryview(received(data) if isinstance(data, Sent) else data)
    ends = accumulate(numpy.frombuffer(sizes, numpy.int64).tolist(), initial=0)
    return [bytes(buffer[begin:end]) for begin, end in pairwise(ends)]


class _Large:
    """A large array or tensor to send."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        value = self._value
        return _reduced_array(value) if type(value) is numpy.ndarray else _reduced_tensor(value)


def _reduced_array(array: Any) -> Any:
    is_plain = array.flags.c_contiguous and not array.dtype.hasobject
    mine = lender() if is_plain else None
    sent = None if mine is None else mine.lent(array.reshape(-1).view("u1"))
    return array.__reduce__() if sent is None else (_array_of, (sent, array.dtype, array.shape))


def _array_of(sent: Sent, dtype: Any, shape: tuple[int, ...]) -> Any:
    return received(sent).view(dtype).reshape(shape)


def _reduced_tensor(tensor: Any) -> Any:
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    mine = lender() if _is_plain(tensor) else None
    sent = None if mine is None else mine.lent(tensor.reshape(-1).view(torch.uint8).numpy())
    return reduce_tensor(tensor) if sent is None else (_tensor_of, (sent, tensor.dtype, tensor.shape))


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor has only its bytes, and shares them with no other."""
    import torch

    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested
    if (
        not is_dense
        or not tensor.is_contiguous()
        or tensor.requires_grad
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_quantized
    ):
        return False
    return bool(tensor.untyped_storage().nbytes() == tensor.nbytes and not tensor.is_shared())


def _tensor_of(sent: Sent, dtype: Any, shape: Any) -> Any:
    import torch

    return torch.from_numpy(received(sent)).view(dtype).view(shape)
