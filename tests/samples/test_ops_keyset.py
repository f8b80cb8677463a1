"""Keys seen before: against a plain set, small and large, in one batch and in many."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdscli.samples import keyset
from wdscli.samples.keyset import KeySet
from wdscli.tar import core


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python's arrays."""
    monkeypatch.setattr(core, "CORE", None)


def by_hand(batches: Sequence[Sequence[bytes]]) -> list[list[int]]:
    seen: set[bytes] = set()
    found = []
    for batch in batches:
        repeated = []
        for at, key in enumerate(batch):
            if key in seen:
                repeated.append(at)
            seen.add(key)
        found.append(repeated)
    return found


def by_keyset(batches: Sequence[Sequence[bytes]], small: int) -> list[list[int]]:
    keys = KeySet(small)
    return [keys.add(batch) for batch in batches]


few = st.integers(0, 40).map(lambda number: b"k%d" % number)


@given(st.lists(st.lists(few, max_size=12), max_size=12), st.integers(0, 20))
@settings(deadline=None)
def test_it_says_what_a_set_says(batches: list[list[bytes]], small: int) -> None:
    assert by_keyset(batches, small) == by_hand(batches)


@pytest.mark.parametrize("small", [0, 1, 7, 1000])
def test_many_runs(small: int) -> None:
    rng = random.Random(small)
    batches = [[b"%d" % rng.randrange(4000) for _ in range(rng.randrange(1, 60))] for _ in range(150)]
    assert by_keyset(batches, small) == by_hand(batches)


def test_keys_that_differ_in_one_bit_only() -> None:
    keys = KeySet(2)
    names = [bytes([byte]) for byte in range(256)]
    assert keys.add(names[:128]) == []
    assert keys.add(names) == list(range(128))


def test_half_a_hash_is_not_enough(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys whose first 64 bits are equal are told apart by the others."""
    monkeypatch.setattr(keyset, "xxh3_128_intdigest", lambda key: (7 << 64) | int(key))
    keys = KeySet(2)
    assert keys.add([b"1", b"2", b"3"]) == []
    assert keys.add([b"4", b"5", b"6"]) == []
    assert keys.add([b"0", b"5", b"7", b"2"]) == [1, 3]


def test_memory_is_16_bytes_a_key(plain: None) -> None:
    keys = KeySet(1000)
    for first in range(0, 200_000, 500):
        assert keys.add([b"%d" % number for number in range(first, first + 500)]) == []
    held = sum(run.nbytes for pair in keys._runs for run in pair)
    assert held <= 16 * 200_000
    assert held + 16 * len(keys._small) >= 16 * 199_000
    assert len(keys._runs) <= 10


class TestTable:
    """What the compiled core keeps."""

    @pytest.fixture(autouse=True)
    def compiled(self, running_core: str) -> None:
        if running_core == "plain":
            pytest.skip("plain Python keeps no table")

    def test_it_is_never_fuller_than_three_quarters(self) -> None:
        keys = KeySet()
        for first in range(0, 50_000, 1000):
            assert keys.add_new([b"%d" % number for number in range(first, first + 1000)])
        assert 50_000 * 16 * 4 / 3 <= len(keys._table) <= 2 * 50_000 * 16 * 4 / 3
        assert keys.add([b"%d" % number for number in range(0, 51_000, 500)]) == list(range(100))

    def test_of_a_batch_that_repeats_something_nothing_stays(self) -> None:
        keys = KeySet()
        assert keys.add_new([b"a", b"b"])
        before = bytes(keys._table)
        some = [b"%d" % number for number in range(2000)]
        assert not keys.add_new([*some, b"b"])
        assert not keys.add_new([*some, some[0]])
        assert keys._table == before
        assert keys.add_new(some)

    @pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 33, 300])
    def test_every_bit_of_a_key_counts(self, length: int) -> None:
        key = bytes(length)
        others = [bytes([*key[:at], 1 << bit, *key[at + 1 :]]) for at in range(length) for bit in range(8)]
        assert KeySet().add_new([key, key + b"\0", key + b"\1", *others])
