"""Plans that are larger than their share of memory: rows in scratch files, orders by external sorts.

What it is: what :func:`~wdscli.ops.reorder.make_plan` does with the rows of surveys, for more of them than memory
holds: :func:`stored_samples` instead of one array, :func:`arranged_on_disc` instead of ``Order.arrange``; and
:class:`StoredSamples` and :class:`StoredOrdered`, which stand in for their namesakes in memory. How: an order that can
be told by a number a sample (``ranks``), by the byte strings it took (``by_value``) or by a number for each of these
(``by_routes``), or that is the input's, needs no sight of all samples at once; one that goes over rows on disc in a way
of its own says so (:class:`OnDisc`). What else there is is arranged in memory, with a warning.

It must not know what the orders mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from wdscli.errors import EngineError
from wdscli.ops.external import BLOCK, Stored, read_values, sort_by_values, sort_records, store
from wdscli.ops.memory import Limits, available
from wdscli.ops.orders import Arranged, InputOrder, Order, Part
from wdscli.ops.overflow import Keep
from wdscli.ops.rounds import Naming
from wdscli.ops.rows import Ordered, Samples, row_type
from wdscli.ops.scratch import Scratch
from wdscli.ops.survey import Survey, SurveyTask
from wdscli.shards.shardfile import index_address
from wdscli.storage import is_local
from wdscli.storage.addresses import local_path
from wdscli.units import human_size

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy
    from numpy.typing import NDArray

    from wdscli.ops.rows import I64, U64, Rows

    Mask: TypeAlias = NDArray[numpy.bool_]

ROW_COST = 100
"""Bytes that a sample of a plan takes in memory while it is made: a row, a place in the order, a sort's work."""
VALUE_COST = 120
"""The same for the byte string that an order took of it."""
LEAST_SHARE = 1 << 12
MOST_SHARE = 1 << 26
"""Rows that a survey may hold at least; and so many that no limit is needed, because no shard has them."""
INDEX_COST = 6
"""Bytes of memory for each byte of an index file, while it is read and made into rows."""
HELD = 1 << 16
"""Slices of fewer rows are read at once."""


class StoredSamples(Samples):
    """Samples whose rows are in a file: some of its records, from ``first`` on. Columns and ``rows`` read all of them;
    use :meth:`part`."""

    __slots__ = ("_first", "_stored", "_total", "limit", "new_path")

    def __init__(
        self, stored: Stored, first: int, end: int, new_path: Callable[[str], str] | None, limit: int
    ) -> None:
        self._stored = stored
        self._first = first
        self._total = end - first
        self.new_path = new_path or _nowhere
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        # What goes to other processes reads, and sorts nothing.
        return StoredSamples, (self._stored, self._first, self._first + self._total, None, self.limit)

    @property
    def rows(self) -> Rows:
        return self._stored.read(self._first, self._first + self._total)

    @property
    def total(self) -> int:
        return self._total

    def part(self, first: int, end: int) -> Samples:
        end = min(end, self._total)
        if end - first <= HELD:
            return Samples(self._stored.read(self._first + first, self._first + end))
        return StoredSamples(self._stored, self._first + first, self._first + end, None, self.limit)

    def first(self, count: int) -> StoredSamples:
        end = self._first + min(count, self._total)
        return StoredSamples(self._stored, self._first, end, self.new_path, self.limit)

    def take(self, rows: I64 | list[int]) -> Samples:
        return Samples(self._stored.take([self._first + int(row) for row in rows]))

    def without(self, rows: Sequence[int]) -> Samples:
        import numpy

        gone = numpy.asarray(rows, dtype=numpy.int64)
        kept = store(_left(self.parts(), gone), row_type(), self.new_path("rows"))
        return StoredSamples(kept, 0, kept.total, self.new_path, self.limit)

    def repeated(self) -> tuple[I64, U64]:
        """Only those rows whose hash others have too."""
        import numpy

        kind = numpy.dtype([("key", "<u8"), ("row", "<u8")])
        sorted_keys = sort_records(keyed(self.parts(), kind), kind, _key_of, self.new_path, self.limit)
        repeated = list(repeated_records(sorted_keys))
        found = numpy.concatenate(repeated) if repeated else numpy.empty(0, dtype=kind)
        return found["row"].astype(numpy.int64), found["key"]

    def changeable(self) -> Samples:
        return self

    def put(self, rows: Sequence[int], changed: Samples) -> None:
        self._stored.put([self._first + row for row in rows], changed.rows)


def _nowhere(_: str) -> str:
    raise AssertionError("a slice of stored samples sorts nothing")


def _key_of(records: Any) -> Any:
    return records["key"]


def _left(parts: Iterable[Samples], gone: I64) -> Iterator[Rows]:
    """The rows of ``parts`` without some, which are given in rising order."""
    import numpy

    at = 0
    for part in parts:
        low, high = int(gone.searchsorted(at)), int(gone.searchsorted(at + part.total))
        yield numpy.delete(part.rows, gone[low:high] - at)
        at += part.total


def keyed(parts: Iterable[Samples], kind: Any) -> Iterator[Any]:
    """Hashes with their rows."""
    import numpy

    at = 0
    for part in parts:
        records = numpy.empty(part.total, dtype=kind)
        records["key"], records["row"] = part.keys, numpy.arange(at, at + part.total)
        at += part.total
        yield records


def repeated_records(sorted_keys: Stored) -> Iterator[Any]:
    """The records whose key a neighbour has."""
    import numpy

    for first in range(0, sorted_keys.total, BLOCK):
        begin = max(0, first - 1)
        some = sorted_keys.read(begin, first + BLOCK + 1)
        keys = some["key"]
        same = keys[1:] == keys[:-1]
        either: Mask = numpy.zeros(len(some), dtype=bool)
        either[1:] |= same
        either[:-1] |= same
        yield some[first - begin : first - begin + BLOCK][either[first - begin : first - begin + BLOCK]]


class StoredOrdered(Ordered):
    """The samples of a plan in output order, as they lie in a file."""

    __slots__ = ()

    def __init__(self, samples: Samples) -> None:
        super().__init__(samples, None)

    def first(self, count: int) -> Ordered:
        return StoredOrdered(self.samples.first(count))

    def column(self, name: str, first: int, end: int) -> U64:
        values: U64 = self.samples.part(first, end).rows[name]
        return values

    def out_lengths(self) -> U64:
        import numpy

        found = [part.out_lengths for part in self.samples.parts()]
        return numpy.concatenate(found) if found else numpy.empty(0, dtype=numpy.uint64)


class Found(NamedTuple):
    """All surveyed samples on disc, and where the byte strings are that the order took of them."""

    samples: Samples
    surveys: Sequence[Survey]
    gone: Stored | None = None
    """Records whose field ``row`` has the rows that were taken out, in rising order."""
    sets: Sequence[int] = ()
    """For each input shard the number of the input that named it."""
    naming: Naming | None = None
    """What samples that come again get their keys from."""

    def blocks(self) -> Iterator[tuple[list[bytes], Rows]]:
        """Byte strings and rows, some thousand at a time."""
        at = 0
        for values in self.values():
            yield values, self.samples.part(at, at + len(values)).rows
            at += len(values)

    def values(self) -> Iterator[list[bytes]]:
        """The byte strings alone, of as many samples as there are."""
        left = self.samples.total
        for values in self._values():
            yield values[:left]
            left -= len(values)
            if left <= 0:
                return

    def _values(self) -> Iterator[list[bytes]]:
        at = met = 0
        for values in _values(self.surveys):
            some = self.gone.read(met, met + len(values))["row"].tolist() if self.gone is not None else ()
            gone = {row - at for row in some if row < at + len(values)}
            at, met = at + len(values), met + len(gone)
            yield [value for row, value in enumerate(values) if row not in gone] if gone else values


@runtime_checkable
class OnDisc(Protocol):
    """An order that can do without all samples in memory, and knows how."""

    def arrange_on_disc(self, found: Found) -> tuple[Ordered, Arranged]:
        """What ``arrange`` does. Raises DataError, UsageError, OutputError."""


def _values(surveys: Sequence[Survey]) -> Iterator[list[bytes]]:
    for found in surveys:
        if found.stored is None:
            yield from _sliced(found.values or [])
            continue
        with open(found.stored.path + ".values", "rb") as file:
            for first in range(0, found.stored.total, BLOCK):
                yield read_values(file, min(BLOCK, found.stored.total - first))


def _sliced(values: list[bytes]) -> Iterator[list[bytes]]:
    for first in range(0, len(values), BLOCK):
        yield values[first : first + BLOCK]


def bounded(tasks: Sequence[SurveyTask], scratch: Scratch, limits: Limits) -> list[SurveyTask]:
    """The same surveys; each writes its rows to scratch space when they are more than its share, and reads headers
    where the index would be."""
    tasks = [_within(task, limits) for task in tasks]
    share = max(LEAST_SHARE, limits.plan // (2 * ROW_COST * max(1, len(tasks))))
    if share >= MOST_SHARE:
        return tasks
    return [
        task._replace(keep=Keep(share, scratch.path_of(f"survey-{number}")))
        for number, task in enumerate(tasks)
    ]


def _within(task: SurveyTask, limits: Limits) -> SurveyTask:
    """The same survey, which does without an index that takes more memory than there is for it."""
    if not limits.given or not is_local(task.address):
        return task
    try:
        size = os.stat(local_path(index_address(task.address))).st_size
    except OSError:
        return task
    return task._replace(use_index=False) if size * INDEX_COST > limits.plan + limits.task else task


def is_too_large(surveys: Sequence[Survey], order: Order, limits: Limits) -> bool:
    """Whether the rows of all samples are more than their share of memory."""
    return needed(surveys, order) > limits.plan


def needed(surveys: Sequence[Survey], order: Order) -> int:
    """Bytes that a plan over all these samples takes."""
    each = ROW_COST if order.extract is None else ROW_COST + VALUE_COST
    return each * sum(found.total for found in surveys)


def can_be_external(order: Order) -> bool:
    """Whether the order needs no sight of all samples at once."""
    return (
        isinstance(order, InputOrder | OnDisc)
        or bool(getattr(order, "by_value", False) or getattr(order, "by_routes", False))
        or _ranks_of(order) is not None
    )


def check_memory(surveys: Sequence[Survey], order: Order) -> str:
    """The warning for an order that needs all samples in memory, more than it should; EngineError when they cannot be
    had at all."""
    wanted, free = needed(surveys, order), available()
    text = f"this {order.operation} holds all samples in memory, {human_size(wanted)} of it"
    if wanted > free:
        raise EngineError(
            f"{text}; {human_size(free)} are free", hint="reorder parts of the set, or use a larger machine"
        )
    return text


def stored_samples(surveys: Sequence[Survey], scratch: Scratch, limit: int) -> StoredSamples:
    """The rows of all surveys in one file, which are then let go of."""
    stored = store(_rows_of(surveys), row_type(), scratch.new_path("rows"))
    return StoredSamples(stored, 0, stored.total, scratch.new_path, limit)


def _rows_of(surveys: Sequence[Survey]) -> Iterator[Rows]:
    for number, found in enumerate(surveys):
        for rows in found.blocks():
            rows["shard"] = number
            yield rows
        found.let_go()


def arranged_on_disc(order: Order, found: Found) -> tuple[Ordered, Arranged]:
    """The samples in the order that ``order`` wants, and what else it says of them."""
    samples = found.samples
    assert isinstance(samples, StoredSamples)
    if isinstance(order, OnDisc):
        return order.arrange_on_disc(found)
    ranks = _ranks_of(order)
    if ranks is not None:
        parts = _parts(order, samples, ranks)
        kept = sort_records(_blocks(samples), row_type(), ranks, samples.new_path, samples.limit)
    elif getattr(order, "by_value", False):
        from wdscli.ops.value_order import order_by_values

        parts = None
        order.check(value for values in found.values() for value in values)  # type: ignore[attr-defined]
        kept = sort_by_values(found.blocks(), row_type(), order_by_values, samples.new_path, samples.limit)
    elif getattr(order, "by_routes", False):
        return _routed(order, found, samples)
    else:
        return StoredOrdered(samples), Arranged()
    ordered = StoredSamples(kept, 0, kept.total, samples.new_path, samples.limit)
    return StoredOrdered(ordered), Arranged(None, parts)


def _routed(order: Any, found: Found, samples: StoredSamples) -> tuple[Ordered, Arranged]:
    """Samples by the number that the order's ``routes`` give to the byte string of each."""
    import numpy

    routes = order.routes(found.values, (samples.new_path, samples.limit))
    counts = numpy.zeros(routes.total, dtype=numpy.int64)
    kind = numpy.dtype([("row", row_type()), ("number", "<u4")])

    def numbered() -> Iterator[Any]:
        for values, rows in found.blocks():
            records: Any = numpy.empty(len(rows), dtype=kind)
            records["row"], records["number"] = rows, routes.numbers_of(values)
            counts[:] += numpy.bincount(records["number"], minlength=routes.total)
            yield records

    by_number = sort_records(numbered(), kind, _number_of, samples.new_path, samples.limit)
    kept = store((some["row"] for some in by_number.blocks()), row_type(), samples.new_path("parts"))
    os.unlink(by_number.path)
    arranged: Arranged = routes.arranged(counts.tolist(), None)
    total = sum(part.samples for part in arranged.parts or ())
    return StoredOrdered(StoredSamples(kept, 0, total, samples.new_path, samples.limit)), arranged


def _number_of(records: Any) -> Any:
    return records["number"].astype("<u8")


def _blocks(samples: Samples) -> Iterator[Rows]:
    return (part.rows for part in samples.parts())


def _ranks_of(order: Order) -> Callable[[Rows], U64] | None:
    """The order's number of each sample, as a function of rows."""
    ranks = getattr(order, "ranks", None)
    if ranks is None or order.extract is not None:
        return None
    return lambda rows: ranks(Samples(rows))


def _parts(order: Order, samples: Samples, ranks: Callable[[Rows], U64]) -> list[Part] | None:
    """How many samples each part has, where an order's ranks are the numbers of parts."""
    import numpy

    names: Sequence[str] | None = getattr(order, "part_names", None)
    if names is None:
        return None
    counts: I64 = numpy.zeros(len(names), dtype=numpy.int64)
    for rows in _blocks(samples):
        counts += numpy.bincount(ranks(rows).astype(numpy.int64), minlength=len(names))
    return [Part(name, count) for name, count in zip(names, counts.tolist(), strict=True)]
