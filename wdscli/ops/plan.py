"""A plan: for each output shard, which runs of which input shards it is made of.

What it is: columns of all selected samples in input order (:class:`Samples`), an order over them, cuts through that
order, and :class:`Plan`, from which the tasks are made. How: everything is an array; ten million samples are ordered
and cut in seconds. It must not read or write anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wdscli.errors import UsageError
from wdscli.ops.survey import Survey
from wdscli.ordering import rank_array
from wdscli.tar import END_OF_ARCHIVE

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    U64: TypeAlias = NDArray[numpy.uint64]
    I64: TypeAlias = NDArray[numpy.int64]

DEFAULT_MAX_SIZE = 1_000_000_000
END_BYTES = len(END_OF_ARCHIVE)


class Cuts(NamedTuple):
    """Where shards end. With none of the three given, a shard holds at most 1 GB; ``shards`` makes that many, whose
    counts differ by at most one. Sizes are real tar bytes, end of archive included."""

    max_count: int | None = None
    max_size: int | None = None
    shards: int | None = None

    def checked(self, fixed: int | None) -> Cuts:
        """The cuts together with an output pattern that names exactly ``fixed`` shards. Raises UsageError."""
        wanted = self.shards
        if fixed is not None:
            if wanted not in (None, fixed):
                raise UsageError(
                    f"the output names {fixed} shards, --shards asks for {wanted}", hint="give one of them"
                )
            wanted = fixed
        if wanted is not None and (self.max_count is not None or self.max_size is not None):
            raise UsageError(
                "a number of shards and a limit for each exclude each other",
                hint="give --shards (or braces in the output), or --max-count and --max-size",
            )
        for value, name in (
            (wanted, "--shards"),
            (self.max_count, "--max-count"),
            (self.max_size, "--max-size"),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if wanted is None and self.max_count is None and self.max_size is None:
            return self._replace(max_size=DEFAULT_MAX_SIZE)
        return self._replace(shards=wanted)


class Samples(NamedTuple):
    """All selected samples in input order, as arrays of one length."""

    shards: NDArray[numpy.uint32]
    places: U64
    starts: U64
    lengths: U64
    out_lengths: U64
    marks: NDArray[numpy.uint8]
    keys: U64

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.places)

    def take(self, rows: I64) -> Samples:
        """Some samples, in the order of ``rows``."""
        return Samples(*[column[rows] for column in self])


def gather_samples(surveys: Sequence[Survey]) -> Samples:
    """The columns of all input shards, one after the other."""
    import numpy

    counts = [len(found.places) for found in surveys]
    shards: NDArray[numpy.uint32] = numpy.repeat(numpy.arange(len(surveys), dtype=numpy.uint32), counts)

    def joined(name: str, kind: type) -> NDArray[numpy.uint64]:
        columns: list[U64] = [numpy.frombuffer(getattr(found, name), dtype=kind) for found in surveys]
        return numpy.concatenate(columns) if columns else numpy.empty(0, dtype=kind)

    return Samples(
        shards,
        joined("places", numpy.uint64),
        joined("starts", numpy.uint64),
        joined("lengths", numpy.uint64),
        joined("out_lengths", numpy.uint64),
        joined("marks", numpy.uint8).astype(numpy.uint8),
        joined("keys", numpy.uint64),
    )


def shuffled(samples: Samples, seed: int) -> I64:
    """The rows in shuffled order: by (rank, shard, place), as section 3 of the design pins it."""
    import numpy

    ranks: U64 = numpy.empty(samples.total, dtype=numpy.uint64)
    if not samples.total:
        return ranks.astype(numpy.int64)
    bounds = numpy.flatnonzero(numpy.diff(samples.shards, prepend=numpy.uint32(0xFFFFFFFF)))
    ends = [*bounds[1:].tolist(), samples.total]
    for first, end in zip(bounds.tolist(), ends, strict=True):
        places = samples.places[first:end]
        of_shard = rank_array(seed, int(samples.shards[first]), int(places[-1]) + 1)
        ranks[first:end] = of_shard[places.astype(numpy.int64)]
    # The rows are in (shard, place) order, so a stable sort settles ties as pinned.
    return numpy.argsort(ranks, kind="stable").astype(numpy.int64)


def cut(lengths: U64, cuts: Cuts) -> list[int]:
    """The ends (exclusive) of the shards in a sequence of samples of these output lengths."""
    count = len(lengths)
    if cuts.shards is not None:
        return [count * (number + 1) // cuts.shards for number in range(cuts.shards)]
    import numpy

    totals = numpy.concatenate(([0], numpy.cumsum(lengths, dtype=numpy.int64)))
    ends: list[int] = []
    first = 0
    while first < count:
        end = count if cuts.max_count is None else min(count, first + cuts.max_count)
        if cuts.max_size is not None:
            room = int(totals[first]) + cuts.max_size - END_BYTES
            end = min(end, int(numpy.searchsorted(totals, room, side="right")) - 1)
        end = max(end, first + 1)
        ends.append(end)
        first = end
    return ends


class Plan(NamedTuple):
    """Samples in output order and the ends of the shards among them."""

    samples: Samples
    ends: list[int]

    def shards(self) -> Iterator[Samples]:
        """The samples of each output shard."""
        first = 0
        for end in self.ends:
            yield Samples(*[column[first:end] for column in self.samples])
            first = end

    def sizes(self) -> list[int]:
        """Bytes of each output shard."""
        return [int(shard.out_lengths.sum()) + END_BYTES for shard in self.shards()]


def oversized(lengths: U64, cuts: Cuts) -> int:
    """How many samples are larger than ``max_size`` on their own."""
    if cuts.max_size is None:
        return 0
    return int((lengths.astype("int64") + END_BYTES > cuts.max_size).sum())
