"""The order of interleaved sets: a plain oracle, quotas in every prefix, stops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from wdscli.errors import UsageError
from wdscli.ordering import LARGEST_WEIGHT, Stop, interleaved, parse_weights


def by_the_book(
    counts: list[int], shares: tuple[int, ...], stop: Stop = "all"
) -> tuple[list[tuple[int, int, int]], int]:
    """(set, place, round) of each sample in the order that the manual defines, and how many are left out."""

    def time(number: int, turn: int) -> tuple[Fraction, int]:
        return Fraction(2 * turn + 1, 2 * shares[number]), number

    if stop == "first":
        end = min(time(number, count) for number, count in enumerate(counts))
    else:
        end = None
    found = []
    for number, count in enumerate(counts):
        turn = 0
        while count and (turn < count if end is None else time(number, turn) < end):
            found.append((time(number, turn), turn))
            turn += 1
    order = [(number, turn % counts[number], turn // counts[number]) for (_, number), turn in sorted(found)]
    return order, sum(counts) - sum(1 for one in order if one[2] == 0)


def found(
    counts: list[int], shares: Sequence[int], stop: Stop = "all"
) -> tuple[list[tuple[int, int, int]], int]:
    """The same by the library."""
    order, left = interleaved(counts, shares, stop)
    places = [(number, place) for number, count in enumerate(counts) for place in range(count)]
    return [(*places[row], 0) for row in order.tolist()], left


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("seed", range(12))
def test_it_is_that_of_the_book(stop: Stop, seed: int) -> None:
    rng = random.Random(seed)
    sets = rng.randint(1, 5)
    counts = [rng.choice([0, 1, 2, 7, 30, 100]) for _ in range(sets)]
    shares = tuple(rng.choice([1, 2, 3, 10, rng.randint(1, 99)]) for _ in range(sets))
    assert found(counts, shares, stop) == by_the_book(counts, shares, stop)


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_shares_without_a_small_common_multiple(stop: Stop, seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 5, 40]) for _ in range(40)]
    shares = tuple(rng.randint(50, 2000) for _ in range(40))
    assert found(counts, shares, stop) == by_the_book(counts, shares, stop)


@pytest.mark.parametrize("stop", ["first", "all"])
def test_weights_that_no_float_tells_apart(stop: Stop) -> None:
    shares = (LARGEST_WEIGHT, LARGEST_WEIGHT - 1, LARGEST_WEIGHT - 2)
    counts = [50, 60, 40]
    assert found(counts, shares, stop) == by_the_book(counts, shares, stop)


def test_equal_times_go_by_set() -> None:
    assert [one[0] for one in found([2, 2, 2], [1] * 3)[0]] == [0, 1, 2, 0, 1, 2]
    assert [one[0] for one in found([3, 1], (3, 1))[0]] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "text", ["0.7,0.3", "1,1", "0.5,0.25,0.25", "0.9,0.05,0.05", "5,4,3,2,1,1", "97,1,1,1"]
)
def test_every_prefix_has_its_shares(text: str) -> None:
    shares = parse_weights(text)
    weights = [Fraction(share, sum(shares)) for share in shares]
    counts = [int(weight * 3000) for weight in weights]
    given = [0] * len(counts)
    for total, (number, _, _) in enumerate(found(counts, shares)[0], 1):
        given[number] += 1
        for count, weight in zip(given, weights, strict=True):
            off = abs(count - weight * total)
            assert off <= Fraction(1, 2) + (len(counts) - 2) * weight / 2
            assert off < 1 or len(counts) > 3


@pytest.mark.parametrize("sets", [2, 3, 8, 40])
def test_equal_weights_are_never_off_by_one(sets: int) -> None:
    given = [0] * sets
    for total, (number, _, _) in enumerate(found([20] * sets, [1] * sets)[0], 1):
        given[number] += 1
        assert all(abs(count - Fraction(total, sets)) < 1 for count in given)


def test_a_million_samples() -> None:
    order, left = interleaved([700_000, 300_000], parse_weights("0.7,0.3"))
    assert (len(order), left) == (1_000_000, 0)
    assert int((order[:1000] < 700_000).sum()) == 700


class TestStops:
    def test_first_ends_where_a_set_has_none_left(self) -> None:
        order, left = found([3, 5], [1] * 2, "first")
        assert [one[:2] for one in order] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
        assert left == 2

    def test_an_empty_set_is_passed_over(self) -> None:
        assert [one[:2] for one in found([0, 3, 0], [1] * 3)[0]] == [(1, 0), (1, 1), (1, 2)]

    def test_an_empty_set_ends_it_at_its_first_turn(self) -> None:
        assert found([3, 0, 3], [1] * 3, "first") == ([(0, 0, 0)], 5)

    @pytest.mark.parametrize("stop", ["first", "all"])
    def test_nothing_at_all(self, stop: Stop) -> None:
        assert found([0, 0], [1] * 2, stop) == ([], 0)


class TestWeights:
    @pytest.mark.parametrize(
        ("text", "numbers"),
        [("0.7,0.3", (7, 3)), ("1/3, 2/3", (1, 2)), ("10,20,30", (1, 2, 3)), (".5,1.", (1, 2)), ("4", (1,))],
    )
    def test_weights(self, text: str, numbers: tuple[int, ...]) -> None:
        assert parse_weights(text) == numbers

    @pytest.mark.parametrize("text", ["", "0.7,", "a,b", "-1,2", "nan,1", "1e9,1", "1/0,1", "0,1", "٣,1"])
    def test_what_is_no_weight(self, text: str) -> None:
        with pytest.raises(UsageError) as error:
            parse_weights(text)
        assert error.value.hint

    def test_weights_that_are_too_fine(self) -> None:
        with pytest.raises(UsageError, match="too many digits"):
            parse_weights("0.123456789012,0.876543210987")
