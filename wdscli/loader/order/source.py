"""This module has sources of samples by position, and views of sources: parts, other orders, other epochs.

A :class:`PositionSource` has a length for each epoch, and returns the samples at any positions of the epoch. Every
process gets the same samples. An :class:`EpochReader` reads one epoch of a source. The base class has defaults for the
attributes that an engine reads, so a source defines only the values that differ.

A view maps its positions to positions of a source: :class:`Slice`, :class:`RandomShare` (``rsample``),
:class:`ShuffledPositions` (``shuffle`` after a slice or rsample), :class:`BatchSlice` (a view of whole batches).
:class:`SourceView` is a source seen through a view. :class:`OrderOfProcess` gives different processes different orders
of a source. :class:`Passes` joins epochs of a source, for ``with_epoch``, ``repeat``, endless epochs and the sets of a
mix. The source's epochs keep their orders, so no sample comes twice before all samples have come once. Views are only
arithmetic on positions, so no sample is read unnecessarily, and a state stays exact. This module does not know ranks,
workers, batches or stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from wdscli.arrays import F64, I64, numpy, runs
from wdscli.errors import UsageError
from wdscli.loader.order.order import ENDLESS, MIXED, THINNED, EpochOrder, gathered, groups, key, rising
from wdscli.ordering import mix_array
from wdscli.threads import ForkLock

SOUGHT = 1 << 18
"""The number of positions that are searched together for a key."""


class Fact:
    """A question about the samples of a set, such as their keys. The set's index answers the question without reading
    payloads."""

    def __call__(self, catalog: Any, shards: I64, places: I64) -> Sequence[Any]:
        """Return the answer for each sample. The samples are given by their shards in ``catalog`` and their places in
        these shards."""
        raise NotImplementedError

    def of_set(self, name: str) -> Fact:
        """Return the question for the set ``name`` of a mix."""
        return self

    def prepare(self, catalog: Any) -> None:
        """Compute the answers that the indexes of a catalog lack. The loader calls this method once, before workers
        start."""


class Keys(Fact):
    """The question for the key of each sample."""

    def __call__(self, catalog: Any, shards: I64, places: I64) -> list[str]:
        return [catalog.table(shard).key(place) for shard, place in zip(shards.tolist(), places.tolist())]


class Addresses(Fact):
    """The question for the address of each sample's shard."""

    def __call__(self, catalog: Any, shards: I64, places: I64) -> list[str]:
        return [catalog.addresses[shard] for shard in shards.tolist()]


class Holds(Fact):
    """The question whether a sample is the sample that the catalog finds by ``key``."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.places: dict[int, tuple[int, int] | None] = {}
        """The (shard, place) of the sample, or None, by the id() of each catalog that was searched."""

    def __call__(self, catalog: Any, shards: I64, places: I64) -> Any:
        number = id(catalog)
        if number not in self.places:
            self.places[number] = catalog.find(self.key)
        shard, place = self.places[number] or (-1, -1)
        return (shards == shard) & (places == place)


class ValueFact(Fact):
    """The question for the value of ``expression`` of each sample. In a mix, each set may have its own expression. A
    missing value is NaN. The values come from :meth:`Catalog.values <wdscli.loader.read.catalog.Catalog.values>`."""

    def __init__(self, expression: str | Mapping[str, str]) -> None:
        self.expression = expression

    def __call__(self, catalog: Any, shards: I64, places: I64) -> F64:
        if not isinstance(self.expression, str):
            raise UsageError(
                f"one value per set is allowed only for a mix: {dict(self.expression)}", hint='"json.tokens"'
            )
        values: F64 = numpy.empty(len(shards))
        order = rising(shards)
        for first, end in runs(shards[order]):
            rows = order[first:end]
            values[rows] = catalog.values(int(shards[rows[0]]), self.expression)[places[rows]]
        return values

    def prepare(self, catalog: Any) -> None:
        """If the first index does not have the values, read the payloads of all samples once."""
        if isinstance(self.expression, str):
            catalog.find_values(self.expression)

    def of_set(self, name: str) -> ValueFact:
        """Return the question for the set ``name``. Raises UsageError if the set has no expression."""
        if isinstance(self.expression, str):
            return self
        if name not in self.expression:
            raise UsageError(f"no expression for the set {name} of the mix", hint=f"{{{name!r}: ...}}")
        return ValueFact(self.expression[name])


class EpochReader:
    """Reads one epoch of a source, for one thread. The caller closes the reader."""

    waits = False
    """Whether a read waits for a remote store, so that it is faster to read ahead."""
    jumps = False
    """Whether neighbouring positions are in different shards, so that reading many samples together is faster."""
    sample_bytes = 0.0
    """The approximate bytes per sample if samples are fetched long before they are read, otherwise 0."""

    @property
    def wants_more(self) -> bool:
        """Whether :meth:`expect` should be called with more positions before the next read."""
        return False

    def read(self, positions: I64) -> list[Any]:
        """Return the samples at these positions, in the same order. A sample that cannot be read is a Failed."""
        raise NotImplementedError

    def expect(self, positions: I64) -> None:
        """Note the positions of a later read, so that their samples can be fetched ahead. The caller notes one read
        ahead, and further reads while :attr:`wants_more` is true."""

    def about(self, positions: I64, fact: Fact) -> Any:
        """Return the answers of ``fact`` for the samples at these positions, in the same order, without reading
        payloads. Raises UsageError if it is unknown where the samples are in the shards."""
        raise UsageError(
            "batches by values need shards with random access",
            hint="copy the shards to plain files, or call batched() without values",
        )

    def find(self, key: str, searched: range) -> int | None:
        """Return the first of the positions ``searched`` that has the sample with this key, or None if there is no such
        position. No payload is read."""
        fact = Holds(key)
        for first in searched[::SOUGHT]:
            positions: I64 = numpy.arange(first, min(first + SOUGHT, searched.stop), dtype=numpy.int64)
            rows = numpy.asarray(self.about(positions, fact)).nonzero()[0]
            if len(rows):
                return first + int(rows[0])
            if searched.stop >= ENDLESS and not any(fact.places.values()):
                break
        return None

    def instead(self, position: int, step: int, length: int) -> Any:
        """Return a substitute: the sample ``step`` positions after ``position``, or Failed. After the last of the
        ``length`` positions, position 0 follows."""
        [sample] = self.read(numpy.array([(position + step) % length], dtype=numpy.int64))
        return sample

    def close(self) -> None:
        """Close all files."""


class PositionSource:
    """The samples of each epoch by position. A source can be pickled, and the pickle is small."""

    seed = 0
    """The seed of the source's order and of the random choices in the dataset's stages."""
    is_shuffled = False
    is_stream = False
    """Whether samples can only be read from beginning to end."""
    is_appended = False
    """Whether a user appended this source to an empty pipeline, where stages cannot use methods of a dataset."""
    has_same_samples = True
    """Whether every epoch has the same samples."""
    facts = ""
    """A description for repr() of a dataset."""

    def identity(self) -> dict[str, Any]:
        """Return the facts that must be the same in a saved state and in this source, as plain values of a few hundred
        bytes."""
        raise NotImplementedError

    def length(self, epoch: int) -> int:
        """Return the number of positions in an epoch."""
        raise NotImplementedError

    def reader(self, epoch: int) -> EpochReader:
        """Return a reader of the epoch's samples."""
        raise NotImplementedError

    def prepare(self, fact: Fact) -> None:
        """Prepare all sets for ``fact``, see :meth:`Fact.prepare`. The default does nothing."""

    def base(self) -> PositionSource:
        """Return the innermost source, without views, orders and spans."""
        return self

    def begun_by(self, stage: Any) -> PositionSource | None:
        """Return the source that ``stage`` provides, if this is the empty source of an empty pipeline."""
        return None


class DerivedSource(PositionSource):
    """A source that takes its samples from another source, ``source``."""

    def __init__(self, source: PositionSource) -> None:
        self.source, self.facts = source, source.facts
        self.has_same_samples = source.has_same_samples

    def over(self, source: PositionSource) -> PositionSource:
        """Return the same view of another source."""
        new = copy(self)
        new.source = source
        return new

    def identity(self) -> dict[str, Any]:
        return self.source.identity()

    def length(self, epoch: int) -> int:
        return self.source.length(epoch)

    def prepare(self, fact: Fact) -> None:
        self.source.prepare(fact)

    def base(self) -> PositionSource:
        return self.source.base()


class Spare:
    """A second reader of an epoch, which reads substitutes while another thread may use the first reader. The reader is
    opened when the first substitute is needed. Several threads may use the reader."""

    def __init__(self, source: PositionSource, epoch: int) -> None:
        self._source, self._epoch = source, epoch
        self._reader: EpochReader | None = None
        self._lock = ForkLock()

    def instead(self, position: int, step: int, length: int) -> Any:
        """Return a substitute, as :meth:`EpochReader.instead` does."""
        with self._lock:
            self._reader = self._reader or self._source.reader(self._epoch)
            return self._reader.instead(position, step, length)

    def close(self) -> None:
        """Close all files."""
        if self._reader is not None:
            self._reader.close()


Placed: TypeAlias = "Callable[[I64], I64]"
"""A function that converts positions of a view to positions of its source."""

OPEN_EPOCHS = 3
"""The number of epoch readers that stay open. A batch may have samples of two epochs, and the epoch after these is read
ahead."""


class Slice(NamedTuple):
    """The positions ``range(length)[start:stop:step]`` of a source. Without negative numbers, a slice is also a
    generator stage, which keeps these of the items."""

    start: int | None
    stop: int | None
    step: int | None

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return islice(items, *self)

    def range(self, length: int) -> range:
        if length >= ENDLESS and min(self.start or 0, self.stop or 0) < 0:
            raise UsageError(
                "slice() counts from the end of an epoch that has no end", hint="use non-negative indices"
            )
        return range(*slice(self.start, self.stop, self.step).indices(length))

    def count(self, length: int) -> int:
        return ENDLESS if length >= ENDLESS and self.stop is None else len(self.range(length))

    def placed(self, length: int, epoch: int) -> Placed:
        chosen = self.range(length)
        return lambda positions: chosen.start + chosen.step * positions

    def identity(self) -> list[Any]:
        return ["slice", self.start, self.stop, self.step]


class RandomShare(NamedTuple):
    """A random choice of ``round(p * length)`` positions, evenly spread and in rising order. Each epoch has a new
    choice, and all positions are equally likely.

    This choice is fixed for all versions. Let n = length, m = round(p * n) and k = ``key(seed, epoch, 5)``. Stretch i
    of m stretches is from n*i // m to n*(i+1) // m, and one position is chosen in it: its begin plus ``mix(k ^ i)``
    modulo its size. All chosen positions are rotated by ``key(k, 1)`` modulo n, and then sorted.
    """

    p: float | Fraction
    seed: int

    def count(self, length: int) -> int:
        return round(self.p * length)

    def placed(self, length: int, epoch: int) -> Placed:
        return partial(self._places, length, key(self.seed, epoch, THINNED))

    def _places(self, length: int, of_epoch: int, positions: I64) -> I64:
        count = self.count(length)
        turn = key(of_epoch, 1) % length
        first = self._stretch_after(length - turn, length, of_epoch)
        return (self._chosen((positions + first) % count, length, of_epoch) + turn) % length

    def _chosen(self, stretches: I64, length: int, of_epoch: int) -> I64:
        """Return the chosen position in each stretch, before the rotation."""
        count = self.count(length)
        begins, ends = stretches * length // count, (stretches + 1) * length // count
        hashes = mix_array(stretches.astype(numpy.uint64) ^ numpy.uint64(of_epoch))
        return begins + (hashes % (ends - begins).astype(numpy.uint64)).astype(numpy.int64)

    def _stretch_after(self, place: int, length: int, of_epoch: int) -> int:
        """Return the first stretch with a chosen position at or after ``place``, before the rotation. If there is no
        such stretch, return the number of stretches."""
        if place == length:
            return 0
        stretch = ((place + 1) * self.count(length) - 1) // length
        chosen = self._chosen(numpy.array([stretch], dtype=numpy.int64), length, of_epoch)
        return stretch if int(chosen[0]) >= place else stretch + 1

    def identity(self) -> list[Any]:
        return ["rsample", self.p, self.seed]


class ShuffledPositions(NamedTuple):
    """All positions, shuffled with ``shuffle="window"`` as if they were the samples of one shard."""

    seed: int

    def count(self, length: int) -> int:
        return length

    def placed(self, length: int, epoch: int) -> Placed:
        counts = numpy.array([length], dtype=numpy.int64)
        order = EpochOrder(counts, seed=key(self.seed, MIXED), epoch=epoch)
        return lambda positions: order.locate(positions)[1]

    def identity(self) -> list[Any]:
        return ["shuffle", self.seed]


class BatchSlice(NamedTuple):
    """A slice of batches of ``size`` positions each. An incomplete last batch is kept, or dropped with ``whole``."""

    chosen: Slice
    size: int
    whole: bool = False

    def count(self, length: int) -> int:
        if length >= ENDLESS:
            return min(ENDLESS, self.chosen.count(length) * self.size)
        length = self._length(length)
        blocks = -(-length // self.size)
        chosen = self.chosen.range(blocks)
        short = blocks * self.size - length if chosen and chosen[-1] == blocks - 1 else 0
        return len(chosen) * self.size - short

    def placed(self, length: int, epoch: int) -> Placed:
        blocks = length if length >= ENDLESS else -(-self._length(length) // self.size)
        chosen, size = self.chosen.range(blocks), self.size
        return lambda positions: (chosen.start + chosen.step * (positions // size)) * size + positions % size

    def _length(self, length: int) -> int:
        return length // self.size * self.size if self.whole else length

    def identity(self) -> list[Any]:
        return ["batches", *self.chosen.identity(), *(["whole"] if self.whole else [])]


class PositionView(Protocol):
    """Positions of a source. They may depend on the epoch, but their number must not."""

    def count(self, length: int) -> int:
        """Return the number of positions in the view of a source with ``length`` positions."""

    def placed(self, length: int, epoch: int) -> Placed:
        """Return a function that converts positions of the view to positions of the source."""

    def identity(self) -> list[Any]:
        """Return the facts that must be the same in a saved state and here, as plain values."""


class SourceView(DerivedSource):
    """The samples of a source that a view shows."""

    def __init__(self, source: PositionSource, view: PositionView) -> None:
        super().__init__(source)
        self.view = view
        self.has_same_samples = source.has_same_samples and isinstance(view, ShuffledPositions)

    def identity(self) -> dict[str, Any]:
        inner = dict(self.source.identity())
        earlier = inner.get("view", [])
        # A length of epochs inside a view is a part of the view, because the order of both makes a difference.
        if "epoch length" in inner:
            earlier = [*earlier, ["epochs", *inner.pop("epoch length")]]
        return {**inner, "view": [*earlier, self.view.identity()]}

    def length(self, epoch: int) -> int:
        return self.view.count(self.source.length(epoch))

    def reader(self, epoch: int) -> EpochReader:
        return _ViewReader(self.source.reader(epoch), self.view.placed(self.source.length(epoch), epoch))


def seen_as(view: PositionSource, source: PositionSource) -> PositionSource:
    """Return ``source`` with the same views as the source ``view`` has."""
    return view.over(seen_as(view.source, source)) if isinstance(view, DerivedSource) else source


class _ViewReader(EpochReader):
    def __init__(self, reader: EpochReader, placed: Placed) -> None:
        self._reader, self._placed = reader, placed
        self.waits, self.jumps, self.sample_bytes = reader.waits, reader.jumps, reader.sample_bytes

    @property
    def wants_more(self) -> bool:
        return self._reader.wants_more

    def expect(self, positions: I64) -> None:
        self._reader.expect(self._placed(positions))

    def read(self, positions: I64) -> list[Any]:
        return self._reader.read(self._placed(positions))

    def about(self, positions: I64, fact: Fact) -> Any:
        return self._reader.about(self._placed(positions), fact)

    def close(self) -> None:
        self._reader.close()


class OrderOfProcess(DerivedSource):
    """A source in order ``number`` of ``orders`` different orders. The epochs of the source are divided among these
    orders."""

    def __init__(self, source: PositionSource, number: int, orders: int) -> None:
        super().__init__(source)
        self._number, self._orders = number, orders

    def identity(self) -> dict[str, Any]:
        return {**self.source.identity(), "orders": self._orders}

    def reader(self, epoch: int) -> EpochReader:
        return self.source.reader(epoch * self._orders + self._number)


class Passes(DerivedSource):
    """A source whose epochs join passes; a pass is an epoch of ``source``. An epoch has ``passes`` passes, cut after
    ``positions`` positions. With ``passes`` None, only the cut ends an epoch. With ``positions`` None, there is no cut.
    All passes must have the same length.

    With ``passes`` None, an epoch continues where the last epoch was cut. Otherwise an epoch begins with a new pass.
    With ``is_drawn``, the last pass is not cut: :class:`RandomShare` draws its positions. ``shared`` has plain values
    that must be the same in a saved state and here.
    """

    def __init__(
        self,
        source: PositionSource,
        passes: int | None,
        positions: int | None,
        shared: list[Any],
        is_drawn: bool = False,
    ) -> None:
        super().__init__(source)
        self.passes, self.positions, self.is_drawn = passes, positions, is_drawn
        self.has_same_samples = self.has_same_samples and passes is not None and positions is None
        self._shared = shared

    def identity(self) -> dict[str, Any]:
        inner = self.source.identity()
        earlier = {"earlier length": inner["epoch length"]} if "epoch length" in inner else {}
        if self.is_drawn:
            drawn = ["drawn", self.positions, self.passes, self.base().seed]
            earlier["view"] = [*inner.get("view", []), drawn]
        return {**inner, **earlier, "epoch length": self._shared}

    def length(self, epoch: int) -> int:
        limit = ENDLESS if self.positions is None else self.positions
        if self.passes is None:
            return limit if self.source.length(0) else 0
        return min(limit, self.passes * self.source.length(0))

    def reader(self, epoch: int) -> EpochReader:
        if self.passes is not None:
            reader = _PassReader(self.source, epoch * self.passes, 0)
            return _ViewReader(reader, self._drawn(epoch)) if self.is_drawn else reader
        if self.positions is None:
            return _PassReader(self.source, epoch, 0)
        return _PassReader(self.source, 0, epoch * self.positions)

    def _drawn(self, epoch: int) -> Placed:
        """Return a function that converts positions of an epoch to positions of its passes."""
        assert self.passes is not None
        assert self.positions is not None
        length = self.source.length(0)
        whole = (self.passes - 1) * length
        last = RandomShare(Fraction(self.positions - whole, length), self.base().seed).placed(length, epoch)
        return lambda positions: numpy.where(positions < whole, positions, whole + last(positions - whole))


class _PassReader(EpochReader):
    """Reads the epochs of a source as one sequence. Position 0 of the sequence is ``skipped`` positions after the
    beginning of the source's epoch ``first``."""

    def __init__(self, source: PositionSource, first: int, skipped: int) -> None:
        self._source = source
        self._length = max(1, source.length(first))
        skipped_passes, self._skipped = divmod(skipped, self._length)
        self._first = first + skipped_passes
        self._readers: OrderedDict[int, EpochReader] = OrderedDict()
        self._at = self._noted = 0
        """The epoch at the end of the latest read, and the last epoch of all noted positions."""
        reader = self._reader(0)
        self.waits, self.jumps, self.sample_bytes = reader.waits, reader.jumps, reader.sample_bytes

    @property
    def wants_more(self) -> bool:
        return self._noted - self._at < OPEN_EPOCHS - 1 and self._reader(self._noted).wants_more

    def expect(self, positions: I64) -> None:
        epochs, places = numpy.divmod(positions + self._skipped, self._length)
        for epoch, rows in groups(epochs):
            self._reader(epoch).expect(places[rows])
            self._noted = max(self._noted, epoch)

    def read(self, positions: I64) -> list[Any]:
        epochs, places = numpy.divmod(positions + self._skipped, self._length)
        if len(epochs):
            self._at = int(epochs[-1])
        return gathered(epochs, lambda epoch, rows: self._reader(epoch).read(places[rows]))

    def about(self, positions: I64, fact: Fact) -> Any:
        epochs, places = numpy.divmod(positions + self._skipped, self._length)
        return gathered(epochs, lambda epoch, rows: self._reader(epoch).about(places[rows], fact))

    def instead(self, position: int, step: int, length: int) -> Any:
        """Return a substitute from the same epoch of the source."""
        epoch, place = divmod(position + self._skipped, self._length)
        return self._reader(epoch).instead(place, step, self._length)

    def _reader(self, number: int) -> EpochReader:
        reader = self._readers.get(number)
        if reader is None:
            reader = self._readers[number] = self._source.reader(self._first + number)
            if len(self._readers) > OPEN_EPOCHS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(number)
        return reader

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
