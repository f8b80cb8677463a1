"""Views of a source are what lists would be; spans lay its epochs end to end."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdscli.loader.order.order import key
from wdscli.loader.order.source import (
    ENDLESS,
    BatchSlice,
    EpochReader,
    Passes,
    PositionSource,
    PositionView,
    RandomShare,
    ShuffledPositions,
    Slice,
    SourceView,
)
from wdscli.ordering import mix

LENGTHS = st.integers(0, 300)
PLACES = st.none() | st.integers(-320, 320)
SLICES = st.builds(Slice, PLACES, PLACES, st.none() | st.integers(1, 9))


def seen(view: PositionView, length: int, epoch: int = 0) -> list[int]:
    """All positions of a view, asked for in a strange order."""
    count = view.count(length)
    order = numpy.random.default_rng(1).permutation(count).astype(numpy.int64)
    found = numpy.empty(count, dtype=numpy.int64)
    if count:
        for some in numpy.array_split(order, 3):
            found[some] = view.placed(length, epoch)(some)
    return [int(place) for place in found]


@given(SLICES, LENGTHS)
def test_a_slice_is_a_slice(chosen: Slice, length: int) -> None:
    assert seen(chosen, length) == list(range(length))[chosen.start : chosen.stop : chosen.step]


@given(SLICES, st.integers(1, 17), LENGTHS)
def test_a_slice_of_batches_is_a_slice_of_batches(chosen: Slice, size: int, length: int) -> None:
    batches = [list(range(length))[at : at + size] for at in range(0, length, size)]
    kept = batches[chosen.start : chosen.stop : chosen.step]
    assert seen(BatchSlice(chosen, size), length) == [place for batch in kept for place in batch]


@given(st.floats(0, 1), st.integers(0, 5), LENGTHS, st.integers(0, 9))
def test_a_sampling_is_what_is_written_down(p: float, seed: int, length: int, epoch: int) -> None:
    count = round(p * length)
    of_epoch = key(seed, epoch, 5)
    expected = []
    for stretch in range(count):
        begin, end = length * stretch // count, length * (stretch + 1) // count
        expected.append(
            (begin + mix(of_epoch ^ stretch) % (end - begin) + key(of_epoch, 1) % length) % length
        )
    found = seen(RandomShare(p, seed), length, epoch)
    assert found == sorted(expected)
    assert len(set(found)) == count


@pytest.mark.exhaustive
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_sampling_prefers_no_position(p: float) -> None:
    times: Counter[int] = Counter()
    for epoch in range(1000):
        times.update(seen(RandomShare(p, 3), 20, epoch))
    for place in range(20):
        assert abs(times[place] / 1000 - p) < 0.08, (place, times)


GOLDEN = [1, 6, 10, 16, 17, 24, 28, 30, 36, 38]


def test_a_sampling_does_not_change_with_a_version() -> None:
    assert seen(RandomShare(0.25, 0), 40) == GOLDEN
    assert seen(RandomShare(0.25, 0), 40, epoch=1) != GOLDEN


@given(LENGTHS, st.integers(0, 3))
def test_a_mix_is_a_permutation(length: int, epoch: int) -> None:
    found = seen(ShuffledPositions(7), length, epoch)
    assert sorted(found) == list(range(length))
    if length > 20:
        assert found != seen(ShuffledPositions(7), length, epoch + 1)
        assert found != seen(ShuffledPositions(8), length, epoch)


class Letters(PositionSource):
    """A source: epoch e has ``count`` samples, (e, position)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.opened = 0

    def identity(self) -> dict[str, Any]:
        return {"letters": 1}

    def length(self, epoch: int) -> int:
        return self.count

    def reader(self, epoch: int) -> Any:
        self.opened += 1
        return _Reader(self, epoch)


class _Reader(EpochReader):
    def __init__(self, source: Letters, epoch: int) -> None:
        self._source, self._epoch = source, epoch

    def read(self, positions: Any) -> list[tuple[int, int]]:
        assert all(0 <= place < self._source.length(self._epoch) for place in positions)
        return [(self._epoch, int(place)) for place in positions]

    def close(self) -> None:
        self._source.opened -= 1


def all_of(source: Any, epoch: int, first: int = 0, count: int | None = None) -> list[Any]:
    reader = source.reader(epoch)
    count = source.length(epoch) - first if count is None else count
    found = []
    for at in range(first, first + count, 7):
        found += reader.read(numpy.arange(at, min(at + 7, first + count), dtype=numpy.int64))
    reader.close()
    return found


@pytest.mark.parametrize("length", [1, 5, 40])
def test_spans_lay_epochs_end_to_end(length: int) -> None:
    source = Letters(length)
    line = [(epoch, place) for epoch in range(200) for place in range(source.length(epoch))]
    cut = Passes(source, None, 11, [])
    assert [sample for epoch in range(9) for sample in all_of(cut, epoch)] == line[:99]
    twice = Passes(source, 2, None, [])
    whole = list(islice((one for epoch in range(4) for one in all_of(twice, epoch)), 400))
    assert whole == [sample for sample in line if sample[0] < 8]
    both = Passes(source, 2, 4, [])
    assert all_of(both, 3) == [sample for sample in line if 6 <= sample[0] < 8][:4]
    endless = Passes(source, None, None, [])
    assert endless.length(0) == ENDLESS
    assert all_of(endless, 0, 60, 30) == line[60:90]
    assert source.opened == 0


def test_an_epoch_of_nothing_is_not_repeated_for_ever() -> None:
    assert Passes(Letters(0), None, 5, []).length(0) == 0
    assert all_of(Passes(Letters(0), 2, None, []), 0) == []


def test_views_and_spans_are_told_apart_by_identity() -> None:
    source = Letters(9)
    views = [
        Slice(1, 2, None),
        Slice(1, 3, None),
        BatchSlice(Slice(1, 2, None), 4),
        RandomShare(0.5, 0),
        ShuffledPositions(0),
        ShuffledPositions(1),
    ]
    identities = [SourceView(source, view).identity() for view in views]
    identities += [
        SourceView(SourceView(source, views[0]), views[1]).identity(),
        Passes(source, None, 5, [None, 5]).identity(),
    ]
    assert len({str(one) for one in identities}) == len(identities)
