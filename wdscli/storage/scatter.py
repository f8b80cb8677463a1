"""This module reads many ranges of many files. It knows files and bytes, not samples, and how they share requests.

:class:`Ranges` has a file, a range in it and a place in the buffer for each read. :class:`Sources` has the open files.
:func:`announce` announces ranges of local files to the kernel, and :meth:`Sources.expect` those of remote files.
:func:`read` fills the buffer: one call of the compiled core reads all plain local files. Other sources read their own
ranges (:meth:`~wdscli.storage.ends.Source.scatter`): stores, compressed files, and views, which name ranges of their
bases.

All range requests to a remote object are scheduled here too, by :class:`Ahead`. It joins announced ranges with a short
gap between them into one request, and cuts long ranges into requests of some MiB. The number of bytes in flight or in
memory is always limited. The answers are kept as blocks, and reads take their bytes from these blocks. The least
recently used block is dropped first. So one request can serve headers and payloads that are read alternately.

A gap is read if that is faster than another request. Another request costs as much time as reading latency times
bandwidth in bytes. Both are measured (:class:`Line`).

This module does not know its readers, or how a request is made.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from itertools import accumulate, islice, pairwise
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from wdscli.arrays import I64, U64, distinct, edges, numpy, runs
from wdscli.errors import WdsError
from wdscli.storage.ends import LARGE_BYTES, EndsEarly, ReceivedBytes, Source
from wdscli.storage.local import HeldSource, is_cold, may_open, most_descriptors, will_need
from wdscli.tar import core
from wdscli.threads import holding

REQUEST_BYTES = LARGE_BYTES
"""The size limit of one request."""
READ_AHEAD_BYTES = 64 << 20
"""The default limit for bytes in flight or in memory, for all objects that a process reads."""
FILL_BYTES = 8 * LARGE_BYTES
"""The size limit of a request by :func:`fill_all`."""
FILLS_AT_ONCE = 8
MOST_LOCAL = 256
"""The most local files that are open at once, because each needs a descriptor."""
MOST_REMOTE = 1 << 12
LONG_RANGE_BYTES = REQUEST_BYTES
"""A remote range of at least this many bytes is read into memory directly, and not ahead."""
LEAST_SHARE_BYTES = 1 << 20
"""The smallest share of the read-ahead limit for one object."""
FIRST_GAP_BYTES = 1 << 20
"""The longest gap that is read while the speed of the line is unknown."""
LEAST_GAP_BYTES, MOST_GAP_BYTES = 1 << 16, REQUEST_BYTES
MOST_BLOCKS = 1 << 20
"""The most requests that are planned for one object, because the size in a listing may be wrong. Bytes after them are
not read ahead."""
_USUAL_LATENCY_SECONDS = 0.02
_AT_ONCE = READ_AHEAD_BYTES // REQUEST_BYTES
"""The most requests in flight at the same time."""
_LATENCY_BYTES = 1 << 17
"""Answers with fewer bytes measure the latency of a line, and longer answers measure its bandwidth."""

_BUSY: WeakSet[Ahead] = WeakSet()
"""The readers that expect ranges. They share the limit."""

_TOGETHER: ContextVar[int] = ContextVar("together", default=0)
"""The bytes that are announced to several objects together. It is 0 if each object is announced alone."""

END = 1 << 62
"""A number larger than the size of any object."""

Range = tuple[int, int]
"""A range: its first byte, and the byte after its last byte."""
Block = bytes | ReceivedBytes
"""The received bytes of one request."""
Opened = TypeVar("Opened", bound="Sources")


def copy(data: Block, begin: int, view: memoryview) -> None:
    """Fill ``view`` with the bytes of ``data`` from byte ``begin``."""
    if isinstance(data, ReceivedBytes):
        data.copy(begin, view)
    else:
        view[:] = memoryview(data)[begin : begin + len(view)]


def together(size_bytes: int) -> AbstractContextManager[None]:
    """Announce ranges of several objects, with ``size_bytes`` in total, in this block. They are read in any order. So
    each object gets as large a part of the limit as its ranges are of these bytes."""
    return holding(_TOGETHER, size_bytes)


class Line:
    """The measured speed of the line to a store: the smallest latency, and a moving average of the bandwidth."""

    def __init__(self) -> None:
        self._latency_seconds = self._bytes_per_second = 0.0

    def note(self, size_bytes: int, seconds: float) -> None:
        """Record one request: its bytes and its duration."""
        if size_bytes < _LATENCY_BYTES:
            least = self._latency_seconds
            self._latency_seconds = min(least, seconds) if least else seconds
        else:
            rate = size_bytes / max(seconds - self._latency_seconds, 1e-6)
            mean_rate = self._bytes_per_second
            self._bytes_per_second = 0.8 * mean_rate + 0.2 * rate if mean_rate else rate

    @property
    def gap_bytes(self) -> int:
        """The longest gap that is faster to read than to skip, in bytes."""
        if not (self._latency_seconds and self._bytes_per_second):
            return FIRST_GAP_BYTES
        worth = int(self._latency_seconds * self._bytes_per_second)
        return max(LEAST_GAP_BYTES, min(worth, MOST_GAP_BYTES))

    def seconds(self, requests: int, size_bytes: int) -> float:
        """Return the estimated time for this many requests with this many bytes in total. Several requests are in
        flight at the same time."""
        latency = self._latency_seconds or _USUAL_LATENCY_SECONDS
        rate = self._bytes_per_second or FIRST_GAP_BYTES / _USUAL_LATENCY_SECONDS
        return requests * latency / _AT_ONCE + size_bytes / rate


_LINES: dict[str, Line] = {}
"""The measured lines, by scheme and host or bucket."""


def line_to(address: str) -> Line:
    """Return the line to the store of an address, with the speed that this process has measured."""
    return _LINES.setdefault("/".join(address.split("/", 3)[:3]), Line())


def joined(ranges: Iterable[Range], gap_bytes: int, most_bytes: int = READ_AHEAD_BYTES) -> list[Range]:
    """Sort ranges, and join those with a gap of less than ``gap_bytes`` between them. The shortest gaps are closed
    first, as long as the total is at most ``most_bytes``.

    >>> joined([(30, 40), (0, 10), (12, 20)], 8), joined([(0, 10), (12, 20), (30, 40)], 16, 30)
    ([(0, 20), (30, 40)], [(0, 20), (30, 40)])
    """
    apart: list[Range] = []
    for begin, end in sorted(ranges):
        if apart and begin <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        elif end > begin:
            apart.append((begin, end))
    gaps = sorted(gap for gap in (begin - end for (_, end), (begin, _) in pairwise(apart)) if gap < gap_bytes)
    room = most_bytes - sum(end - begin for begin, end in apart)
    fitting = bisect_right(list(accumulate(gaps)), room)
    # If a gap does not fit, all gaps of the same length are skipped too.
    limit = gaps[fitting] if fitting < len(gaps) else gap_bytes
    merged: list[Range] = []
    for begin, end in apart:
        if merged and begin - merged[-1][1] < limit:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return merged


def fill_all(parts: Iterable[tuple[Source, int, memoryview]]) -> None:
    """Fill buffers from sources, each from a byte offset. Several requests are in flight. They put the bytes into the
    buffers, so that no other memory is needed. Raises InputError."""
    flying: deque[Callable[[], object]] = deque()
    for source, offset, view in parts:
        for first in range(0, len(view), FILL_BYTES):
            if len(flying) == FILLS_AT_ONCE:
                flying.popleft()()
            flying.append(source.start_fill(offset + first, view[first : first + FILL_BYTES]))
    for wait in flying:
        wait()


def _requests(ranges: Iterable[Range], step: int, requested: list[Range]) -> Iterator[Range]:
    """Cut ``ranges`` into requests of ``step`` bytes. The ``requested`` ones, which are in flight or answered, are
    reused unchanged, even if they reach beyond a range.

    >>> list(_requests([(0, 25), (40, 45)], 10, [(5, 8), (22, 42)]))
    [(0, 5), (5, 8), (8, 18), (18, 22), (22, 42), (42, 45)]
    """
    offset = number = 0
    for begin, end in ranges:
        offset = max(offset, begin)
        while offset < end:
            while number < len(requested) and requested[number][1] <= offset:
                number += 1
            following = requested[number] if number < len(requested) else (end, end)
            block = following if following[0] <= offset else (offset, min(offset + step, end, following[0]))
            yield block
            offset = block[1]


class Ahead:
    """The blocks of one object, for one thread. ``fetch(begin, end)`` starts a request and returns its future.
    ``result`` waits for a future, and raises its error. ``line`` records the speed of requests. ``read_ahead_bytes`` is
    the limit that all objects share (None: the default)."""

    def __init__(
        self,
        fetch: Callable[[int, int], Future[Block]],
        result: Callable[[Future[Block], int, int], Block],
        line: Line,
        read_ahead_bytes: int | None = None,
    ) -> None:
        self._read_ahead_bytes = read_ahead_bytes
        self._fetch, self._result = fetch, result
        self._line = line
        self._blocks: list[Range] = []
        self._begins: list[int] = []
        self._kept: set[int] = set()
        """The numbers of blocks that are held but not expected."""
        self._held: OrderedDict[int, Future[Block]] = OrderedDict()
        """By number, the block that was used longest ago first."""
        self._held_bytes = self._used_bytes = 0
        self._step = REQUEST_BYTES
        self._goes_back = True
        self._part = 0.0
        """The part of the limit for ranges that were announced :func:`together` with others."""

    def _share(self) -> int:
        """The limit for bytes in flight or in memory for this object."""
        most = READ_AHEAD_BYTES if self._read_ahead_bytes is None else self._read_ahead_bytes
        if self._part:
            return max(int(most * self._part), 1)
        return max(most // max(len(_BUSY), 1), min(LEAST_SHARE_BYTES, most))

    def will_be_used(self, size_bytes: int) -> None:
        """Read ahead as if ``size_bytes`` had already been used. Call this if the reader will continue, and never go
        back."""
        self._used_bytes = max(self._used_bytes, size_bytes)
        self._goes_back = False

    def expect(self, ranges: Iterable[Range], gap_bytes: int | None = None, *, keep: bool = False) -> None:
        """Announce the ranges that will be read next, in any order. Forget earlier ranges. With ``keep``, keep their
        blocks until the memory is needed, because the reader will read the whole object. Gaps of ``gap_bytes`` or more
        are skipped. If ``gap_bytes`` is None, the line's speed and the limit decide."""
        most, is_chosen, ranges = END, gap_bytes is not None, list(ranges)
        total = _TOGETHER.get()
        self._part = sum(max(end - begin, 0) for begin, end in ranges) / total if total else 0.0
        futures = {self._blocks[number]: future for number, future in self._held.items()}
        _BUSY.add(self)
        share = self._share()
        if gap_bytes is None:
            gap_bytes, most = self._line.gap_bytes, share
        # Divide a small share too, so that several requests are in flight. With a chosen gap there are already several
        # ranges.
        self._step = min(REQUEST_BYTES, max(share // 4, min(LEAST_GAP_BYTES, share)))
        longest = REQUEST_BYTES if is_chosen else self._step
        requests = _requests(joined(ranges, gap_bytes, most), longest, sorted(futures))
        self._blocks = list(islice(requests, MOST_BLOCKS))
        if is_chosen:
            self._step = max((end - begin for begin, end in self._blocks), default=longest)
        wanted = set(self._blocks)
        if keep or is_chosen:
            self.will_be_used(END)
        if keep:
            self._blocks = sorted(wanted.union(futures))
        self._kept = {number for number, block in enumerate(self._blocks) if block not in wanted}
        if not self._blocks:
            _BUSY.discard(self)
        self._begins = [begin for begin, _ in self._blocks]
        self._held, self._held_bytes = OrderedDict(), 0
        numbers = {block: number for number, block in enumerate(self._blocks)}
        for block, future in futures.items():
            if block in numbers:
                self._keep(numbers[block], future)
            else:
                future.cancel()
        unkept = (number for number in range(len(self._blocks)) if number not in self._kept)
        self._go_on(next(unkept, len(self._blocks)))

    def read(self, begin: int, end: int) -> bytes | None:
        """Return some bytes, or None if not all of them were expected. Raises the errors of ``result``."""
        parts: list[bytes] = []
        if not self._each(begin, end, lambda data, first, stop: parts.append(data[first:stop])):
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, begin: int, view: memoryview) -> bool:
        """Do the work of :meth:`read` into a buffer. Return False if not all of the bytes were expected."""
        filled = 0

        def take(data: Block, first: int, stop: int) -> None:
            nonlocal filled
            copy(data, first, view[filled : filled + stop - first])
            filled += stop - first

        return self._each(begin, begin + len(view), take)

    def _each(self, begin: int, end: int, take: Callable[[Block, int, int], None]) -> bool:
        """Pass the parts of blocks with some bytes to ``take``, if the bytes were expected. Return whether all bytes
        were expected."""
        number = bisect_right(self._begins, begin) - 1
        if number < 0 or begin >= self._blocks[number][1]:
            return False
        offset = begin
        while offset < end:
            if number == len(self._blocks) or not self._blocks[number][0] <= offset < self._blocks[number][1]:
                return False
            if number in self._kept and number not in self._held:
                return False
            start, stop = self._blocks[number]
            self._go_on(number)
            data = self._result(self._held[number], start, stop)
            self._held.move_to_end(number)
            take(data, offset - start, min(end, stop) - start)
            self._used_bytes += min(end, stop) - offset
            offset, number = stop, number + 1
        return True

    def _go_on(self, number: int) -> None:
        """Start the requests from block ``number`` that fit into the limit, and always the request for this block. More
        requests are started after more bytes were used, because a reader that expects a whole object may read only its
        beginning."""
        block_number, ahead = number, 0
        room = self._share() // 2 if self._goes_back else self._share() - self._step
        most = min(max(REQUEST_BYTES, 2 * self._used_bytes), room)
        while block_number < len(self._blocks):
            if block_number in self._kept:
                block_number += 1
                continue
            begin, end = self._blocks[block_number]
            ahead += end - begin
            if block_number > number and ahead > most:
                return
            if block_number not in self._held:
                self._make_room(end - begin, number, block_number)
                self._keep(block_number, self._timed(begin, end))
            block_number += 1

    def _make_room(self, size: int, first: int, end: int) -> None:
        """Drop the least recently used blocks, but keep the blocks ``first`` to ``end - 1``."""
        share = self._share()
        for number in list(self._held):
            if self._held_bytes + size <= share:
                return
            if number != first and (not first < number < end or number in self._kept):
                begin, stop = self._blocks[number]
                self._held_bytes -= stop - begin
                self._held.pop(number).cancel()

    def _keep(self, number: int, future: Future[Block]) -> None:
        begin, end = self._blocks[number]
        self._held[number] = future
        self._held_bytes += end - begin

    def _timed(self, begin: int, end: int) -> Future[Block]:
        started = time.monotonic()

        def note(future: Future[Block]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._line.note(end - begin, time.monotonic() - started)

        future = self._fetch(begin, end)
        future.add_done_callback(note)
        return future

    def close(self) -> None:
        """Cancel the requests in flight."""
        _BUSY.discard(self)
        for future in self._held.values():
            future.cancel()
        self._held.clear()
        self._blocks, self._begins, self._held_bytes = [], [], 0
        self._kept = set()


class Ranges(NamedTuple):
    """Ranges of files, and their places in a buffer. A range has ``lengths`` bytes from byte ``begins``. The columns
    are contiguous in memory."""

    files: I64
    begins: I64
    lengths: I64
    places: I64

    @classmethod
    def in_turn(cls, files: I64, begins: I64 | U64, lengths: I64 | U64) -> Ranges:
        """Return ranges that follow each other in the buffer."""
        numbers, starts, sizes = (column.astype(numpy.int64) for column in (files, begins, lengths))
        return cls(numbers, starts, sizes, numpy.cumsum(sizes) - sizes)

    def take(self, rows: I64 | slice) -> Ranges:
        """Return some of the ranges."""
        return Ranges(*(column[rows] for column in self))

    def joined(self) -> Ranges:
        """Join neighbours that are adjacent in their file and in the buffer."""
        files, begins, lengths, places = self
        stops = begins[:-1] + lengths[:-1], places[:-1] + lengths[:-1]
        firsts = edges(
            (files[1:] != files[:-1]) | (begins[1:] != stops[0]) | (places[1:] != stops[1]), len(files)
        )[:-1]
        sizes: I64 = numpy.add.reduceat(lengths, firsts) if len(firsts) else lengths
        return Ranges(files[firsts], begins[firsts], sizes, places[firsts])

    def by_file(self) -> Iterator[tuple[int, I64]]:
        """Yield each file and the rows of its ranges, in the order of their first bytes."""
        order = numpy.lexsort((self.begins, self.files))
        for first, end in runs(self.files[order]):
            yield int(self.files[order[first]]), order[first:end]


class Sources:
    """Open files by number. ``open_file`` opens a file. ``remote`` has the numbers of the files on stores. If too many
    are open, those opened first are closed after :meth:`confirm_file`."""

    def __init__(self, open_file: Callable[[int], Source], remote: Collection[int] = ()) -> None:
        self._open_file = open_file
        self._remote = remote
        self.opened: dict[int, Source] = {}
        self.descriptors: dict[int, int | memoryview | bytes] = {}
        """The descriptors of open files that are plain local files, and the bytes of those in memory."""

    def __getitem__(self, number: int) -> Source:
        """Return a file, open. Raises InputError, DataError."""
        source = self.opened.get(number)
        if source is None:
            self._make_room(is_remote=number in self._remote)
            source = self.put(number, self._open_file(number))
        return source

    def put(self, number: int, source: Source) -> Source:
        """Take an open file."""
        self.opened[number] = source
        if isinstance(source, HeldSource):
            self.descriptors[number] = source.data
        elif source.fd is not None:
            self.descriptors[number] = source.fd
        return source

    def open_local(self, numbers: Iterable[int]) -> None:
        """Open local files, so that one call can read them. A file that cannot be opened stays closed."""
        with suppress(WdsError):
            for number in map(int, numbers):
                if number in self.opened:
                    # Opening the next file must not close this file.
                    self.opened[number] = self.opened.pop(number)
                elif number not in self._remote:
                    self[number]

    def is_remote(self, number: int) -> bool:
        """Return whether a file's bytes come from another machine."""
        return number in self._remote and number not in self.descriptors

    def expect(
        self, ranges: Ranges, gap_bytes: int | None = None, *, keep: bool = False, by_bytes: bool = False
    ) -> None:
        """Announce to remote files the ranges that will be read next (:meth:`Source.expect`). Other files forget
        earlier ranges. With ``by_bytes``, files share the memory by the bytes of their ranges."""
        if not self._remote:
            return
        wanted = {number: rows for number, rows in ranges.by_file() if number in self._remote}
        for number, source in self.opened.items():
            if number not in wanted and self.is_remote(number):
                source.expect((), keep=keep)
        sizes = (int(ranges.lengths[rows].sum()) for rows in wanted.values())
        with together(sum(sizes)) if by_bytes else nullcontext():
            for number, rows in wanted.items():
                source, begins = self[number], ranges.begins[rows]
                ends = begins + ranges.lengths[rows]
                if source.fd is None:
                    source.expect(zip(begins.tolist(), ends.tolist()), gap_bytes=gap_bytes, keep=keep)

    def _make_room(self, is_remote: bool) -> None:
        alike = [
            number
            for number, source in self.opened.items()
            if self.is_remote(number) == is_remote and not isinstance(source, HeldSource)
        ]
        while alike and not (len(alike) < MOST_REMOTE if is_remote else may_open(len(alike), MOST_LOCAL)):
            number = alike.pop(0)
            self.descriptors.pop(number, None)
            with self.opened.pop(number) as source:
                self.confirm_file(number, source)

    def confirm_file(self, number: int, source: Source) -> None:
        """Raise InputError if a file was changed during the reads."""
        source.confirm()

    def confirm(self) -> None:
        """Raise InputError for a file that was changed during the reads. Call it after the last read."""
        for number, source in self.opened.items():
            self.confirm_file(number, source)

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for source in self.opened.values():
            source.close()
        self.opened.clear()
        self.descriptors.clear()


def announce(sources: Sources, ranges: Ranges) -> bool:
    """Let the kernel read ranges of local files in advance, if they are not in memory. Return whether it does."""
    # Some of the ranges may be in memory, because their neighbours were read, and some first bytes may be, because a
    # small field was read.
    for row in {0, len(ranges.files) // 2, len(ranges.files) - 1} if len(ranges.files) else ():
        source = sources[int(ranges.files[row])]
        if source.fd is not None and is_cold(source.fd, int(ranges.begins[row] + ranges.lengths[row] // 2)):
            will_need(descriptors_of(sources, ranges))
            return True
    return False


def descriptors_of(sources: Sources, ranges: Ranges) -> Iterator[tuple[int | None, int, int]]:
    """Yield (descriptor, first byte, length) of ranges, adjacent ones together."""
    joined = ranges.joined()
    for file, begin, length in zip(*(column.tolist() for column in joined[:3])):
        yield sources[file].fd, begin, length


def read(sources: Sources, ranges: Ranges, buffer: memoryview) -> None:
    """Read all ranges into the buffer. Raises InputError, DataError, and EndsEarly with the row of a range that its
    file does not have as a whole."""
    numbers = distinct(ranges.files) if core.CORE is not None else ()
    # All pools of a process share its descriptors, so one call uses a part of them.
    most = max(1, min(MOST_LOCAL, int(min(most_descriptors(), END) // 8)))
    if len(numbers) <= most:
        _read_together(sources, ranges, numbers, buffer)
        return
    for first in range(0, len(numbers), most):
        group = numbers[first : first + most]
        rows = numpy.flatnonzero((ranges.files >= group[0]) & (ranges.files <= group[-1]))
        try:
            _read_together(sources, ranges.take(rows), group, buffer)
        except EndsEarly as error:
            error.row = int(rows[error.row])
            raise


def _read_together(
    sources: Sources, ranges: Ranges, numbers: Sequence[int] | I64, buffer: memoryview
) -> None:
    """Do the work of :func:`read` for ranges of the files ``numbers``, which may be open together. Without the core,
    ``numbers`` may be empty."""
    if core.CORE is not None:
        sources.open_local(numbers)
        if sources.descriptors and core.CORE.scatter(buffer, ranges, sources.descriptors):
            return
    # A file is no plain local file, or has changed.
    for file, rows in ranges.by_file():
        try:
            part = ranges.take(rows)
            sources[file].scatter(part.begins, part.lengths, part.places, buffer)
        except EndsEarly as error:
            error.row = int(rows[error.row])
            raise


def load(sources: Sources, ranges: Ranges, buffer: memoryview, direct_bytes: int | None = None) -> None:
    """Do the work of :func:`read` for ranges that were not announced. Remote ranges of at least ``direct_bytes`` (None:
    :data:`LONG_RANGE_BYTES`) are read directly into the buffer, several at a time."""
    direct_bytes = LONG_RANGE_BYTES if direct_bytes is None else direct_bytes
    pairs = zip(ranges.files.tolist(), ranges.lengths.tolist())
    direct = numpy.array([size >= direct_bytes and sources[file].fd is None for file, size in pairs], bool)
    others = ranges.take(numpy.flatnonzero(~direct))
    sources.expect(others, by_bytes=True)
    long_ranges = zip(*(column.tolist() for column in ranges.take(numpy.flatnonzero(direct))))
    fill_all((sources[file], begin, buffer[place : place + size]) for file, begin, size, place in long_ranges)
    read(sources, others, buffer)
