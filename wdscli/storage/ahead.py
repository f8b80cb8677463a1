"""Ranges of one remote object that will be wanted, fetched before they are: the one scheduler of ranges.

What it is: :class:`Ahead`. Who reads says which ranges it wants (:meth:`Ahead.expect`); those with gaps that are
cheaper to read than to ask again become one, long ones are cut into requests of some MiB, and a bounded number of bytes
is on its way or held at any time. What is read is cut out of the blocks that came; a block is let go of when others
need its room, the one that was used longest ago first, so that headers and payloads that are read one after the other
come from one request. How long a gap pays is told by the requests themselves: latency times bandwidth (:class:`Line`).

It must not know who reads, nor how a request is made.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import accumulate, pairwise
from weakref import WeakSet

from wdscli.storage.retry import Landed

REQUEST_BYTES = 8 << 20
"""The most that one request asks for."""
READ_AHEAD_BYTES = 64 << 20
"""On their way or held at a time, of all objects that a process reads, where nothing else is said."""
LEAST_SHARE_BYTES = 1 << 20
"""Of one object, however many there are."""
FIRST_GAP_BYTES = 1 << 20
"""What a gap may have as long as nothing was measured."""
LEAST_GAP_BYTES, MOST_GAP_BYTES = 1 << 16, REQUEST_BYTES
_USUAL_LATENCY_SECONDS = 0.02
_AT_ONCE = READ_AHEAD_BYTES // REQUEST_BYTES
"""So many requests are on their way together."""
_LATENCY_BYTES = 1 << 17
"""An answer of fewer bytes tells the latency of a line, a longer one its bandwidth."""

_BUSY: WeakSet[Ahead] = WeakSet()
"""Those that expect something: they share what may be on its way or held."""

END = 1 << 62
"""More bytes than there are."""

Range = tuple[int, int]
"""First byte, and the byte behind the last."""
Block = bytes | Landed
"""The bytes of a range, as they came."""


def copy(data: Block, begin: int, view: memoryview) -> None:
    """Fill ``view`` from byte ``begin`` of ``data`` on."""
    if isinstance(data, Landed):
        data.copy(begin, view)
    else:
        view[:] = memoryview(data)[begin : begin + len(view)]


class Line:
    """What a line to a store is worth, by the requests that went over it: the least latency, and the mean bandwidth of
    the last answers."""

    def __init__(self) -> None:
        self._latency_seconds = self._bytes_per_second = 0.0

    def note(self, size_bytes: int, seconds: float) -> None:
        """One request and what it took."""
        if size_bytes < _LATENCY_BYTES:
            known = self._latency_seconds
            self._latency_seconds = min(known, seconds) if known else seconds
        else:
            rate = size_bytes / max(seconds - self._latency_seconds, 1e-6)
            known = self._bytes_per_second
            self._bytes_per_second = 0.8 * known + 0.2 * rate if known else rate

    @property
    def gap_bytes(self) -> int:
        """The longest gap that is read rather than left out."""
        if not (self._latency_seconds and self._bytes_per_second):
            return FIRST_GAP_BYTES
        worth = int(self._latency_seconds * self._bytes_per_second)
        return max(LEAST_GAP_BYTES, min(worth, MOST_GAP_BYTES))

    def seconds(self, requests: int, size_bytes: int) -> float:
        """What so many requests of so many bytes take, several at a time."""
        latency = self._latency_seconds or _USUAL_LATENCY_SECONDS
        rate = self._bytes_per_second or FIRST_GAP_BYTES / _USUAL_LATENCY_SECONDS
        return requests * latency / _AT_ONCE + size_bytes / rate


_LINES: dict[str, Line] = {}
"""By scheme and host or bucket."""


def line_to(address: str) -> Line:
    """The line to the store of an address, as far as this process has used it."""
    return _LINES.setdefault("/".join(address.split("/", 3)[:3]), Line())


def joined(ranges: Iterable[Range], gap_bytes: int, most_bytes: int = READ_AHEAD_BYTES) -> list[Range]:
    """Ranges in rising order, those joined between which less than ``gap_bytes`` lie: the shortest gaps first, and no
    more than fit in ``most_bytes`` with what was wanted.

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
    # Of gaps as long as the first that does not fit, none is read.
    limit = gaps[fitting] if fitting < len(gaps) else gap_bytes
    found: list[Range] = []
    for begin, end in apart:
        if found and begin - found[-1][1] < limit:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def _requests(ranges: Iterable[Range], step: int, known: list[Range]) -> Iterator[Range]:
    """What to request for ``ranges``, ``step`` bytes at a time. Requests that are ``known``, because they are on their
    way or answered, stay as they are, and reach beyond a range where they do.

    >>> list(_requests([(0, 25), (40, 45)], 10, [(5, 8), (22, 42)]))
    [(0, 5), (5, 8), (8, 18), (18, 22), (22, 42), (42, 45)]
    """
    at = number = 0
    for begin, end in ranges:
        at = max(at, begin)
        while at < end:
            while number < len(known) and known[number][1] <= at:
                number += 1
            following = known[number] if number < len(known) else (end, end)
            block = following if following[0] <= at else (at, min(at + step, end, following[0]))
            yield block
            at = block[1]


class Ahead:
    """Blocks of one object. ``fetch(begin, end)`` starts a request and gives its future, ``result`` waits for it and
    says what is wrong with it; ``line`` learns from both. ``read_ahead_bytes`` is what all objects share (None: the
    usual). For one thread."""

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
        """The numbers of blocks that are held without being expected."""
        self._held: OrderedDict[int, Future[Block]] = OrderedDict()
        """By the number of the block, that which was used longest ago first."""
        self._held_bytes = self._used_bytes = 0
        self._step = REQUEST_BYTES
        self._goes_back = True

    def _share(self) -> int:
        """The bytes that may be on their way or held here."""
        most = READ_AHEAD_BYTES if self._read_ahead_bytes is None else self._read_ahead_bytes
        return max(most // max(len(_BUSY), 1), min(LEAST_SHARE_BYTES, most))

    def will_be_used(self, size_bytes: int) -> None:
        """Go as far ahead at once as if so much had been used: the reader is known to read on, and not to go back."""
        self._used_bytes = max(self._used_bytes, size_bytes)
        self._goes_back = False

    def expect(self, ranges: Iterable[Range], gap_bytes: int | None = None, *, keep: bool = False) -> None:
        """What will be wanted next, in any order; forgets what was expected before, with ``keep`` once others need the
        room: who keeps is known to read all of it. A gap of ``gap_bytes`` and more is not read; None stands for what
        the line tells, as far as there is room for it."""
        most = END
        known = {self._blocks[number]: future for number, future in self._held.items()}
        _BUSY.add(self)
        share = self._share()
        if gap_bytes is None:
            gap_bytes, most = self._line.gap_bytes, share
        # Of a small share several requests are on their way too.
        self._step = min(REQUEST_BYTES, max(share // 4, min(LEAST_GAP_BYTES, share)))
        self._blocks = list(_requests(joined(ranges, gap_bytes, most), self._step, sorted(known)))
        wanted = set(self._blocks)
        if keep:
            self.will_be_used(END)
            self._blocks = sorted(wanted.union(known))
        self._kept = {number for number, block in enumerate(self._blocks) if block not in wanted}
        if not self._blocks:
            _BUSY.discard(self)
        self._begins = [begin for begin, _ in self._blocks]
        self._held, self._held_bytes = OrderedDict(), 0
        numbers = {block: number for number, block in enumerate(self._blocks)}
        for block, future in known.items():
            if block in numbers:
                self._keep(numbers[block], future)
            else:
                future.cancel()
        self._go_on(next((at for at in range(len(self._blocks)) if at not in self._kept), len(self._blocks)))

    def read(self, begin: int, end: int) -> bytes | None:
        """Some bytes; None when not all of them were expected. Raises what ``result`` raises."""
        parts: list[bytes] = []
        if not self._each(begin, end, lambda data, first, stop: parts.append(data[first:stop])):
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, begin: int, view: memoryview) -> bool:
        """:meth:`read` to where the bytes are wanted; False when not all of them were expected."""
        at = 0

        def take(data: Block, first: int, stop: int) -> None:
            nonlocal at
            copy(data, first, view[at : at + stop - first])
            at += stop - first

        return self._each(begin, begin + len(view), take)

    def _each(self, begin: int, end: int, take: Callable[[Block, int, int], None]) -> bool:
        """Give out some bytes as parts of blocks, as far as they were expected; whether all of them were."""
        number = bisect_right(self._begins, begin) - 1
        if number < 0 or begin >= self._blocks[number][1]:
            return False
        at = begin
        while at < end:
            if number == len(self._blocks) or not self._blocks[number][0] <= at < self._blocks[number][1]:
                return False
            if number in self._kept and number not in self._held:
                return False
            start, stop = self._blocks[number]
            self._go_on(number)
            data = self._result(self._held[number], start, stop)
            self._held.move_to_end(number)
            take(data, at - start, min(end, stop) - start)
            self._used_bytes += min(end, stop) - at
            at, number = stop, number + 1
        return True

    def _go_on(self, number: int) -> None:
        """Start what fits of the blocks from ``number`` on, that one in any case: the more, the more was used, because
        who expects a whole object may look at its beginning alone."""
        at, ahead = number, 0
        room = self._share() // 2 if self._goes_back else self._share() - self._step
        most = min(max(REQUEST_BYTES, 2 * self._used_bytes), room)
        while at < len(self._blocks):
            if at in self._kept:
                at += 1
                continue
            begin, end = self._blocks[at]
            ahead += end - begin
            if at > number and ahead > most:
                return
            if at not in self._held:
                self._make_room(end - begin, number, at)
                self._keep(at, self._timed(begin, end))
            at += 1

    def _make_room(self, size: int, first: int, end: int) -> None:
        """Let go of what was used longest ago, but of nothing from block ``first`` up to ``end``."""
        share = self._share()
        for number in list(self._held):
            if self._held_bytes + size <= share:
                return
            if not first <= number < end or number in self._kept:
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
        """Give up what is on its way."""
        _BUSY.discard(self)
        for future in self._held.values():
            future.cancel()
        self._held.clear()
        self._blocks, self._begins, self._held_bytes = [], [], 0
        self._kept = set()
