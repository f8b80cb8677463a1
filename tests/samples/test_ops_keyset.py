"""Keys seen before: against a plain set, small and large, in one batch and in many."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from crafted_keys import one_core_hash, one_low_lane, one_xxh3_64, one_xxh3_128
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import seconds_of
from xxhash import xxh3_64_intdigest

from wdscli.errors import DataError, OutputError
from wdscli.samples import keys as keyset
from wdscli.samples.keys import KeySet, hashes_of_joined, joined_may_be_unsafe, may_be_unsafe
from wdscli.tar import core


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python's table."""
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


def by_keyset(batches: Sequence[Sequence[bytes]]) -> list[list[int]]:
    keys = KeySet()
    return [keys.add(batch) for batch in batches]


few = st.integers(0, 40).map(lambda number: b"k%d" % number)


@given(st.lists(st.lists(few, max_size=12), max_size=12))
@settings(deadline=None)
def test_it_says_what_a_set_says(batches: list[list[bytes]]) -> None:
    assert by_keyset(batches) == by_hand(batches)


def random_batches(most: int, seed: int = 0) -> list[list[bytes]]:
    rng = random.Random(seed)
    return [[b"%d" % rng.randrange(most) for _ in range(rng.randrange(1, 60))] for _ in range(400)]


@pytest.mark.parametrize("most", [90, 4000, 100_000])
def test_many_batches(most: int) -> None:
    assert by_keyset(random_batches(most)) == by_hand(random_batches(most))


def test_keys_that_differ_in_one_bit_only() -> None:
    keys = KeySet()
    names = [bytes([byte]) for byte in range(256)]
    assert keys.add(names[:128]) == []
    assert keys.add(names) == list(range(128))


@pytest.mark.parametrize("multiplier", [0, 1 << 60])
def test_keys_of_one_hash_are_told_apart(multiplier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "MULTIPLIER", multiplier)
    assert by_keyset(random_batches(90)) == by_hand(random_batches(90))


@pytest.mark.parametrize("multiplier", [0, 77])
def test_all_or_none_of_a_batch_is_added(multiplier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "MULTIPLIER", multiplier)
    keys = KeySet()
    assert keys.add_new([b"a", b"b"])
    assert not keys.add_new([b"c", b"d", b"b"])
    assert not keys.add_new([b"c", b"d", b"c"])
    assert keys.add_new([b"c", b"d", b"aa"])
    assert keys.add([b"d", b"e", b"", b"a"]) == [0, 3]
    assert keys.add([b"e", b"", b"f"]) == [0, 1]


def test_keys_that_are_many_lie_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "HELD_BYTES", 300)
    test_many_batches(4000)


def test_a_file_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(keyset, "HELD_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(OutputError, match="cannot write scratch space"):
        KeySet().add([b"a"])


def test_a_key_that_is_too_long_is_an_error() -> None:
    keys = KeySet()
    assert keys.add([b"a" * ((1 << 24) - 1), b"b" * ((1 << 24) - 1)]) == []
    with pytest.raises(DataError, match="a key of more than 16777215 bytes"):
        keys.add([b"a" * (1 << 24)])


def test_keys_made_to_collide_take_no_longer_than_others() -> None:
    usual = [b"%048d" % number for number in range(20_000)]
    crafted = one_low_lane(20_000)
    assert seconds_of(lambda: KeySet().add_new(crafted)) < 20 * seconds_of(lambda: KeySet().add_new(usual))


def test_keys_made_to_collide_are_told_apart() -> None:
    for keys in one_core_hash(50), one_low_lane(50), one_xxh3_64(50), one_xxh3_128(50):
        assert KeySet().add(keys) == []
        assert KeySet().add_new(keys)


@pytest.mark.parametrize("seed", [0, 1, 0x9E3779B97F4A7C15])
def test_hashes_of_joined_keys_are_those_of_xxhash(seed: int) -> None:
    rng = random.Random(seed)
    keys = [rng.randbytes(length) for length in [*range(241), 0, 16, 17, 240]]
    for group in keys, [*keys, rng.randbytes(241)]:
        lengths = array("q", map(len, group))
        expected = [xxh3_64_intdigest(key, seed) for key in group]
        assert hashes_of_joined(b"".join(group), lengths, seed).tolist() == expected


@pytest.mark.parametrize("field", [b"txt", b"../txt"])
@pytest.mark.parametrize("key", [b"a", b"", b"/a", b"a/../b", b"a/b", b"a\0b"])
def test_joined_keys_are_as_unsafe_as_keys_apart(key: bytes, field: bytes) -> None:
    for keys in [key], [b"k", key], [key, b"k"]:
        lengths = numpy.array(list(map(len, keys)))
        is_unsafe = may_be_unsafe(keys) or may_be_unsafe([b"cls", field])
        assert joined_may_be_unsafe(b"".join(keys), lengths, [b"cls", field]) == is_unsafe


@pytest.mark.parametrize("core_name", ["compiled", "plain"])
class TestTable:
    """What is kept, by the compiled core and without it."""

    @pytest.fixture(autouse=True)
    def chosen_core(self, core_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if core_name == "plain":
            monkeypatch.setattr(core, "CORE", None)

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
