"""This module balances the classes of one set, with ``mix(data, by="cls")``.

:func:`classes_of` finds the class of each sample once: in the indexes, or else in the payloads. :class:`ByClass` is a
view of the set: it maps the positions of an epoch to samples. A :class:`~wdscli.loader.order.schedule.Pattern` chooses
the class of each position, so shares are exact. Each class is an endless sequence of passes, and each pass has the
class's samples in another order: a permutation by ``key(seed, 13, class, pass)``. Classes are numbered by their names.
Each epoch continues every class where the last epoch ended. So a class that is drawn too rarely for a whole pass gives
other samples in the next epoch. This module does not know how samples are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from json import dumps
from operator import attrgetter
from typing import Any, NamedTuple
from warnings import warn

from xxhash import xxh3_64_hexdigest

from wdscli.arrays import I64, numpy, runs
from wdscli.errors import DataError, UsageError
from wdscli.loader.checks import want_whole
from wdscli.loader.order.order import CLASSES, Permutation, key, rising
from wdscli.loader.order.schedule import LARGEST, Pattern, Schedule, Stop, quotas_of
from wdscli.loader.order.source import SourceView
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.reading import IndexedSource
from wdscli.loader.stages.flow import Pipeline
from wdscli.samples.grouping import SampleAt
from wdscli.selection import Selection, Walk
from wdscli.selection.reading import MemberReader
from wdscli.selection.where import Value
from wdscli.shards.reading import index_batches, unstored_text
from wdscli.shown import shown
from wdscli.text import to_text
from wdscli.threads import Recent

PERMUTED = 1 << 22
"""The largest number of samples in the permutations that are kept. A sample takes eight bytes."""
NAMED = 3
"""The largest number of classes that a message names."""


class SampleClasses(NamedTuple):
    """The classes of a set. Sample i, counted in the order of the set, has the class ``names[numbers[i]]``. Names are
    sorted. ``named`` are the classes that the manifest names: the text of ``cls`` for each name."""

    names: list[str]
    numbers: I64
    named: Mapping[str, str] = {}


def classes_of(catalog: Catalog, expression: str) -> SampleClasses:
    """Return the class of each sample: the text of ``expression``. Raises UsageError for an invalid expression, and
    DataError for a sample without the value or that cannot be read."""
    value = Value(expression, "by")
    columns = list(catalog.each(partial(_texts_of_shard, catalog, value)))
    names = sorted({text for texts, _, _ in columns for text in texts})
    if all(map(bytes.isdigit, names)) and not all(is_stored for _, _, is_stored in columns):
        warn(unstored_text(value.normal), stacklevel=4)
    number_of = {name: number for number, name in enumerate(names)}
    parts = [
        numpy.array([number_of[text] for text in texts], dtype=numpy.int64)[codes]
        for texts, codes, _ in columns
    ]
    in_manifest = catalog.manifest.classes if catalog.manifest and value.text.strip() == "cls" else ()
    named = {name: str(number) for number, name in enumerate(in_manifest or ())}
    return SampleClasses([to_text(name) for name in names], numpy.concatenate(parts), named)


def _texts_of_shard(catalog: Catalog, value: Value, shard: int) -> tuple[list[bytes], I64, bool]:
    """Return the different texts in a shard, the place of each counted sample's text among them, and whether the index
    has stored the values."""
    index, kept = catalog.index(shard), catalog.kept(shard)
    value = copy(value)  # an expression stores its current sample, and shards are read by threads
    stored = index.exact.get(value.normal)
    if stored is not None:
        numbers, codes = numpy.unique(stored.array, return_inverse=True)
        texts: list[bytes | None] = [dumps(number).encode() for number in numbers.tolist()]
        if stored.missing.any():
            texts[int(codes[stored.missing.argmax()])] = None
    else:
        codes_by_text: dict[bytes | None, int] = {}
        with catalog.open(catalog.addresses[shard]) as source:
            payloads = MemberReader(source, value.payload_fields, by_index=True)
            walk = Walk(Selection(), Selection().new_state(), payloads)
            samples = (
                value.of(SampleAt(batch, row, source.name, payloads))
                for batch, rows in walk.chosen(index_batches(index), requested=payloads.fields)
                for row in rows
            )
            codes = numpy.fromiter(
                (codes_by_text.setdefault(text, len(codes_by_text)) for text in samples), dtype=numpy.int64
            )
        texts = list(codes_by_text)
    used, codes = numpy.unique(codes if kept is None else codes[kept], return_inverse=True)
    counted = [texts[code] for code in used.tolist()]
    if None in counted:
        row = int((codes == counted.index(None)).argmax())
        raise DataError(
            f"the sample has no {value.text}",
            code="missing-field",
            shard=catalog.addresses[shard],
            member=catalog.table(shard).key(row if kept is None else int(kept[row])),
            hint="leave out such samples with where=",
        )
    return [text or b"" for text in counted], codes, stored is not None


class ByClass:
    """A view of a set in its own order, which draws samples by their classes. ``numbers`` has the class of each sample.
    ``pattern`` chooses the class of each position. An epoch has ``length`` positions. The ``facts`` must be the same in
    a saved state and here."""

    def __init__(self, numbers: I64, pattern: Pattern, length: int, facts: list[Any], seed: int) -> None:
        self._rows = rising(numbers)
        self._counts = numpy.bincount(numbers, minlength=len(pattern.sets))
        self._firsts = self._counts.cumsum() - self._counts
        self._schedule, self._length, self._facts, self._seed = pattern, length, facts, seed
        self._taken: I64 = numpy.array(pattern.counts(length), dtype=numpy.int64)
        self._permutations: Recent[int, Permutation] = Recent(PERMUTED, attrgetter("held"))

    def count(self, length: int) -> int:
        """Return the number of samples in an epoch."""
        return self._length

    def placed(self, length: int, epoch: int) -> Callable[[I64], I64]:
        """Return the function that maps positions of an epoch to samples of the set."""
        return partial(self._places, epoch)

    def identity(self) -> list[Any]:
        """Return the facts that must be the same in a saved state and here."""
        return ["by", *self._facts]

    def _places(self, epoch: int, positions: I64) -> I64:
        which, turns = self._schedule.locate(positions)
        passes, places = numpy.divmod(turns + epoch * self._taken[which], self._counts[which])
        names = passes * len(self._counts) + which
        order, samples = rising(names), numpy.empty_like(positions)
        for first, end in runs(names[order]):
            rows = order[first:end]
            permuted = self._permutation(int(names[rows[0]])).at(places[rows])
            samples[rows] = self._rows[self._firsts[which[rows[0]]] + permuted]
        return samples

    def _permutation(self, name: int) -> Permutation:
        """Return the permutation with number ``name``: pass * classes + class."""
        kept = self._permutations.used(name)
        if kept is None:
            number, which = divmod(name, len(self._counts))
            made = Permutation(int(self._counts[which]), key(self._seed, CLASSES, which, number))
            kept = self._permutations.keep(name, made)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_permutations": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._permutations = Recent(PERMUTED, attrgetter("held"))


def _quotas(classes: SampleClasses, weights: Any) -> tuple[int, ...]:
    """Return the quota of each class. Raises UsageError."""
    if not isinstance(weights, Mapping):
        raise UsageError(f"mix(by=, weights={weights!r})", hint='weights={"cat": 2, "dog": 1}')
    names, by_name = classes.names, {str(name): weight for name, weight in weights.items()}
    by_name = {classes.named.get(name, name): weight for name, weight in by_name.items()}
    odd = [name for name in by_name if name not in {*names}] or [
        name for name in names if name not in by_name
    ]
    if odd:
        sort = (
            "classes without a weight" if odd[0] in names else "weights of classes that the set does not have"
        )
        more = ", ..." if len(odd) > NAMED else ""
        raise UsageError(
            f"mix(by=): {sort}: {', '.join(map(shown, odd[:NAMED]))}{more}",
            hint="weights= names all classes; where= leaves classes out",
        )
    if len(names) > LARGEST // 2:
        raise UsageError(f"mix(by=, weights=) has {len(names):,} classes, more than {LARGEST // 2:,}")
    return quotas_of([by_name[name] for name in names])


def by_class(
    dataset: Any, expression: Any, weights: Any, choose: Any, stop: Stop | None, seed: int | None
) -> Any:
    """Return ``dataset`` with the samples of an epoch drawn by class. ``weights`` are the weights by class, ``choose``
    is the number of samples of each class in an epoch, and ``stop`` says when an epoch ends. With neither ``choose``
    nor ``stop``, an epoch has as many samples as the set. With ``seed`` None, the classes take turns. Raises UsageError
    for impossible shares, for a dataset that is not a set of shards with random access, and for one that has slices,
    batches or generators."""
    source, stages = getattr(dataset, "source", None), getattr(dataset, "pipeline", Pipeline())
    if not isinstance(source, IndexedSource) or stages.batch or stages.generators or dataset._cuts:
        raise UsageError(
            "mix(by=) needs a set of shards with random access, without slices, batches and generators",
            hint='mix(wds.WebDataset(...), by="cls").batched(64)',
        )
    if not isinstance(expression, str) or stop not in (None, "first", "repeat"):
        raise UsageError(
            f"mix(by={expression!r}, stop={stop!r})", hint='by="cls" and stop="first" or "repeat"'
        )
    if choose is not None:
        want_whole("choose", choose, 1)
        if stop is not None or weights is not None:
            raise UsageError("mix(by=, choose=) takes neither stop= nor weights=", hint="leave them out")
    classes = classes_of(source.catalog, expression)
    if not classes.names:
        raise UsageError(
            "mix(by=) needs a set with samples, and this one has no samples", hint="check where="
        )
    count, numbers = len(classes.names), classes.numbers
    quotas = (1,) * count if weights is None else _quotas(classes, weights)
    length = len(numbers) if choose is None else count * choose
    if stop is not None:
        length = Schedule(quotas, numpy.bincount(numbers).tolist(), stop=stop, seed=seed).length
    facts = [expression, length, seed, xxh3_64_hexdigest(dumps(quotas).encode())]
    view = ByClass(numbers, Pattern(quotas, range(count), seed, 0), length, facts, source.seed)
    set_order = IndexedSource(source.catalog, seed=source.seed, shuffle="none", fields=source.fields)
    set_order.is_shuffled = True  # the view shuffles it
    return dataset._with(source=SourceView(set_order, view), _shards=None)
