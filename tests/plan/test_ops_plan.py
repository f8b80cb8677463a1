"""The plan: the pinned order, the cuts, and what is said of them."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import mix, shuffled_by_the_book

from wdscli.errors import UsageError
from wdscli.plan.cut import END_BYTES, Cuts, Sizes, cut
from wdscli.plan.orders import shuffled
from wdscli.plan.request import Request
from wdscli.plan.survey import Survey, SurveyedRows
from wdscli.plan.table import OrderedSamples, PackedValues, PlanTable, RowBlock, row_type
from wdscli.selection import Selection
from wdscli.shards.writing import OutputSet, ShardSettings


def survey_of(places: list[int], length: int = 1024) -> Survey:
    """A shard of which these samples are selected."""
    rows = numpy.zeros(len(places), dtype=row_type())
    rows["place"] = places
    rows["start"] = [place * length for place in places]
    rows["length"] = rows["out"] = length
    rows["key"] = range(len(places))
    rows["members"] = 2
    survey = Survey()
    survey.blocks, survey.total = [RowBlock(rows, PackedValues.of([]))], len(rows)
    return survey


def samples_of(*shards: list[int]) -> PlanTable:
    collected = SurveyedRows()
    for places in shards:
        collected.take(survey_of(places))
    return collected.table()


def order_of(samples: PlanTable, seed: int) -> list[tuple[int, int]]:
    rows = shuffled(samples, seed)
    return [(int(samples.shards[row]), int(samples.places[row])) for row in rows]


class TestOrder:
    @pytest.mark.parametrize("seed", [0, 1, 7, 2**64 - 1, 2**63])
    @pytest.mark.parametrize("counts", [[1], [5], [3, 4, 5], [0, 7, 0, 0, 2, 0], [1] * 20, [1000, 1, 500]])
    def test_it_is_that_of_the_design(self, seed: int, counts: list[int]) -> None:
        shards = [list(range(count)) for count in counts]
        by_hand = shuffled_by_the_book(
            [[(s, place) for place in places] for s, places in enumerate(shards)], seed
        )
        assert order_of(samples_of(*shards), seed) == by_hand

    def test_seeds_are_taken_modulo_2_64(self) -> None:
        samples = samples_of(list(range(50)))
        assert order_of(samples, -1) == order_of(samples, 2**64 - 1)
        assert order_of(samples, 2**64 + 3) == order_of(samples, 3)

    @given(st.integers(0, 2**64 - 1), st.lists(st.sets(st.integers(0, 60)), max_size=5))
    def test_a_selection_does_not_reorder_what_it_keeps(self, seed: int, kept: list[set[int]]) -> None:
        whole = order_of(samples_of(*[list(range(61)) for _ in kept]), seed)
        some = order_of(samples_of(*map(sorted, kept)), seed)
        assert some == [(shard, place) for shard, place in whole if place in kept[shard]]

    def test_ties_are_settled_by_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def same(seed: int, shards: Any, places: Any) -> Any:
            return places.astype(numpy.uint64) % numpy.uint64(3)

        monkeypatch.setattr("wdscli.plan.orders.rank_places", same)
        samples = samples_of(list(range(400)), list(range(300)))
        places = [(s, p) for s, count in ((0, 400), (1, 300)) for p in range(count)]
        assert order_of(samples, 3) == sorted(places, key=lambda at: (at[1] % 3, *at))

    def test_seeds_differ(self) -> None:
        samples = samples_of(list(range(30)))
        assert len({tuple(order_of(samples, seed)) for seed in range(200)}) == 200

    def test_all_permutations_are_about_equally_likely(self) -> None:
        """Chi squared over the 24 orders of 4 samples, 4800 seeds: 23 degrees of freedom, far below 1 in 10^6."""
        samples = samples_of([0, 1], [0, 1])
        counts = Counter(tuple(order_of(samples, seed)) for seed in range(4800))
        assert set(counts) == set(permutations([(0, 0), (0, 1), (1, 0), (1, 1)]))
        assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 75

    def test_every_sample_comes_to_every_place(self) -> None:
        """The mean place of each of 100 samples over 400 seeds: within six standard deviations of the middle."""
        samples = samples_of(list(range(50)), list(range(50)))
        places: Counter[tuple[int, int]] = Counter()
        for seed in range(400):
            for place, which in enumerate(order_of(samples, seed)):
                places[which] += place
        assert all(abs(total / 400 - 49.5) < 6 * 28.87 / 20 for total in places.values())

    def test_nothing(self) -> None:
        assert order_of(samples_of(), 0) == []
        assert order_of(samples_of([], []), 0) == []

    def test_the_oracle_is_splitmix64(self) -> None:
        """The first outputs of the reference implementation for the state 0."""
        assert [hex(mix(n * 0x9E3779B97F4A7C15)) for n in range(3)] == [
            "0xe220a8397b1dcdaf",
            "0x6e789e6aa1b965f4",
            "0x6c45d188009454f",
        ]


def sizes_of(lengths: list[int], ends: list[int]) -> list[int]:
    return [sum(lengths[first:end]) + END_BYTES for first, end in pairwise([0, *ends])]


def cuts_of(lengths: list[int], cuts: Cuts) -> list[int]:
    """The cuts, the same wherever the bytes before the first sample begin."""
    totals = numpy.cumsum([0, *lengths], dtype=numpy.int64)
    found = cut(totals, cuts)
    assert cut(totals + 77 * 512, cuts) == found
    return found


def ordered_of(lengths: list[int]) -> OrderedSamples:
    rows = numpy.zeros(len(lengths), dtype=row_type())
    rows["out"] = lengths
    return OrderedSamples(PlanTable(rows))


blocks = st.integers(2, 40).map(lambda count: 512 * count)


class TestCut:
    @given(st.lists(blocks, min_size=1, max_size=60), st.integers(1024, 60_000))
    def test_no_shard_exceeds_the_size_and_each_takes_what_fits(self, lengths: list[int], limit: int) -> None:
        ends = cuts_of(lengths, Cuts(max_size=limit))
        assert ends[-1] == len(lengths)
        for (first, end), size in zip(pairwise([0, *ends]), sizes_of(lengths, ends), strict=True):
            assert end > first
            assert size <= limit or end - first == 1
            if end < len(lengths):
                assert size + lengths[end] > limit, "the next one would have fitted"

    def test_the_last_byte_counts(self) -> None:
        lengths = [1024, 1024, 1024]
        assert cuts_of(lengths, Cuts(max_size=2048 + END_BYTES)) == [2, 3]
        assert cuts_of(lengths, Cuts(max_size=2048 + END_BYTES - 1)) == [1, 2, 3]

    @given(st.lists(blocks, max_size=60), st.integers(1, 70))
    def test_counts(self, lengths: list[int], limit: int) -> None:
        ends = cuts_of(lengths, Cuts(max_count=limit))
        counts = [end - first for first, end in pairwise([0, *ends])]
        assert counts == [limit] * (len(lengths) // limit) + [len(lengths) % limit] * (
            len(lengths) % limit > 0
        )

    @given(st.lists(blocks, max_size=60), st.integers(1, 70))
    def test_a_number_of_shards(self, lengths: list[int], wanted: int) -> None:
        ends = cuts_of(lengths, Cuts(shards=wanted))
        counts = [end - first for first, end in pairwise([0, *ends])]
        assert len(counts) == wanted
        assert sum(counts) == len(lengths)
        assert max(counts) - min(counts) <= 1

    def test_both_limits(self) -> None:
        lengths = [1024] * 4 + [4096] * 3
        assert cuts_of(lengths, Cuts(max_count=3, max_size=4096 + 1024 + END_BYTES)) == [3, 5, 6, 7]

    @given(
        st.lists(blocks, min_size=1, max_size=60),
        st.sampled_from([None, 1, 3, 10]),
        st.sampled_from([None, 6000, 20_000, 60_000]),
        st.integers(1, 9),
    )
    def test_a_multiple(self, lengths: list[int], count: int | None, size: int | None, of: int) -> None:
        limits = Cuts(max_count=count, max_size=size).checked(None)
        needed = len(cuts_of(lengths, limits))
        wanted = -(-needed // of) * of
        cuts = limits._replace(divisible_by=of)
        if len(lengths) < wanted:
            with pytest.raises(UsageError, match=f"{len(lengths)} samples are too few for {wanted} shards"):
                cuts_of(lengths, cuts)
            return
        ends = cuts_of(lengths, cuts)
        counts = [end - first for first, end in pairwise([0, *ends])]
        assert (len(counts), sum(counts)) == (wanted, len(lengths))
        assert min(counts) > 0
        assert max(counts) <= (count or len(lengths))
        for number, bytes_ in zip(counts, sizes_of(lengths, ends), strict=True):
            assert number == 1 or bytes_ <= (size or bytes_)
        if size is None:
            assert max(counts) - min(counts) <= 1

    def test_a_multiple_where_sizes_forbid_equal_counts(self) -> None:
        """Four shards; the two large samples cannot share one, so one shard has them alone."""
        lengths = [1024] * 10 + [8192, 8192] + [1024] * 4
        cuts = Cuts(max_size=8192 + 4096 + END_BYTES, divisible_by=4)
        ends = cuts_of(lengths, cuts)
        counts = [end - first for first, end in pairwise([0, *ends])]
        assert len(counts) == 4
        assert max(counts) == 5
        assert max(sizes_of(lengths, ends)) <= 8192 + 4096 + END_BYTES

    def test_a_multiple_of_given_shards(self) -> None:
        assert Cuts(shards=5, divisible_by=4).checked(None).shards == 8
        assert Cuts(divisible_by=4).checked(8).shards == 8
        assert Cuts(divisible_by=4).checked(None) == Cuts(max_size=10**9, divisible_by=4)
        with pytest.raises(UsageError, match="7 shards, which is not a multiple of 4"):
            Cuts(divisible_by=4).checked(7)
        assert cuts_of([], Cuts(shards=8, divisible_by=4)) == []

    def test_sums_beyond_32_bits(self) -> None:
        lengths = [3 << 30] * 9
        assert cuts_of(lengths, Cuts(max_size=(6 << 30) + END_BYTES)) == [2, 4, 6, 8, 9]

    def test_oversized_samples_are_counted(self) -> None:
        lengths = ordered_of([1024, 5120, 1024, 8192])
        assert Sizes.of(lengths).oversized(Cuts(max_size=1024 + END_BYTES)) == 2
        assert Sizes.of(lengths).oversized(Cuts(max_count=1)) == 0


class TestCuts:
    def test_without_any_a_shard_holds_a_gigabyte(self) -> None:
        assert Cuts().checked(None) == Cuts(max_size=10**9)

    def test_braces_are_a_number_of_shards(self) -> None:
        assert Cuts().checked(8).shards == 8
        assert Cuts(shards=8).checked(8).shards == 8
        with pytest.raises(UsageError, match="is for 8 shards, but --shards is 7"):
            Cuts(shards=7).checked(8)

    @pytest.mark.parametrize("cuts", [Cuts(max_count=5, shards=2), Cuts(max_size=5000, shards=2)])
    def test_a_number_and_a_limit_exclude_each_other(self, cuts: Cuts) -> None:
        with pytest.raises(UsageError, match="--shards excludes"):
            cuts.checked(None)
        with pytest.raises(UsageError, match="--shards excludes"):
            cuts._replace(shards=None).checked(4)

    @pytest.mark.parametrize("name", ["max_count", "max_size", "shards", "divisible_by"])
    @pytest.mark.parametrize("value", [0, -3])
    def test_less_than_one(self, name: str, value: int) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            Cuts(**{name: value}).checked(None)


class TestPlan:
    def test_shards_and_sizes(self) -> None:
        samples = samples_of(list(range(4)), list(range(3)))
        rows = list(range(7))
        random.Random(1).shuffle(rows)
        ordered = OrderedSamples(samples, numpy.array(rows))
        bounds = [0, 3, 3, 7]
        sizes = Sizes.of(ordered)
        planned = sizes.shards(OutputSet("out-%06d.tar", ShardSettings()), bounds[1:])
        assert [(shard.size_bytes, shard.members) for shard in planned] == [
            (3 * 1024 + END_BYTES, 6),
            (END_BYTES, 0),
            (4 * 1024 + END_BYTES, 8),
        ]
        shards = [ordered.part(first, end) for first, end in pairwise(bounds)]
        assert [shard.total for shard in shards] == [3, 0, 4]
        assert [int(n) for shard in shards for n in shard.starts] == [
            int(samples.starts[row]) for row in rows
        ]


@pytest.mark.parametrize("option", ["keys_from", "not_keys_from"])
def test_what_a_file_of_keys_selects_is_not_said_by_its_name(tmp_path: Path, option: str) -> None:
    """A plan that was kept is used again only where options tell which samples it is of: the file may have changed."""
    keys = tmp_path / "keys.txt"
    keys.write_text("a\n")
    assert Request([], "-").is_repeatable
    assert not Request([], "-", selection=Selection.parse(**{option: str(keys)})).is_repeatable
