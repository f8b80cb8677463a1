"""Samples whose members are not next to each other are found by the rule of `wds verify`."""

from __future__ import annotations

import random

import numpy
import pytest

from wdscli.arrays import SampleArrays
from wdscli.samples import new_batch
from wdscli.samples.keys import SeparatedSamples
from wdscli.verify.keys import INTERLEAVED, KeyColumns

FIELDS = [(b"png",), (b"txt",), (b"png", b"txt"), (b"json",), (b"txt", b"json")]


def made(rng: random.Random, shapes: int) -> list[tuple[bytes, tuple[bytes, ...]]]:
    keys = [b"%d" % rng.randrange(8) for _ in range(12)]
    return [(key, rng.choice(FIELDS[:shapes])) for key in keys]


@pytest.mark.parametrize("seed", range(40))
def test_parts_are_those_of_verify(seed: int) -> None:
    rng = random.Random(seed)
    samples = made(rng, 1 + seed % len(FIELDS))
    columns, batch = KeyColumns(), new_batch()
    for key, fields in samples:
        batch.keys.append(key)
        batch.starts.extend([0] * len(fields))
        batch.fields.extend(fields)
        batch.firsts.append(len(batch.fields))
    columns.add(batch, [columns.mask(fields) for _, fields in samples])
    repeats = columns.repeats()
    expected = [] if repeats is None else repeats.rows(INTERLEAVED).tolist()
    one_by_one = SeparatedSamples()
    assert [row for row, sample in enumerate(samples) if one_by_one.add(*sample)] == expected
    in_batches, first = SeparatedSamples(), rng.randrange(len(samples))
    rows = []
    for low, high in ((0, first), (first, len(samples))):
        part = batch.part(low, high)
        rows += [low + row for row in in_batches.add_batch(part.keys, part.firsts, part.fields)]
    assert rows == expected
    by_arrays = SeparatedSamples()
    until_repeated = next((row for row in range(12) if samples[row][0] in dict(samples[:row])), 12)
    by_arrays.add_arrays(arrays_of(samples[: until_repeated // 2]))
    by_arrays.add_arrays(arrays_of(samples[until_repeated // 2 : until_repeated]))
    rows = [row for row, sample in enumerate(samples) if row >= until_repeated and by_arrays.add(*sample)]
    assert rows == expected


def arrays_of(samples: list[tuple[bytes, tuple[bytes, ...]]]) -> SampleArrays:
    """Samples as the core finds them at the beginning of a shard, without their places."""
    fields = sorted({field for _, names in samples for field in names})
    columns = [
        numpy.array(column, dtype=numpy.int64)
        for column in (
            [len(key) for key, _ in samples],
            [len(names) for _, names in samples],
            [fields.index(field) for _, names in samples for field in names],
        )
    ]
    key_lengths, counts, codes = columns
    keys, none = b"".join(key for key, _ in samples), numpy.zeros(0, dtype=numpy.int64)
    return SampleArrays(keys, key_lengths, none, none, counts, fields, codes, none, none)


def test_memory_is_bounded() -> None:
    search = SeparatedSamples(most_keys=3)
    assert [search.add(key, ["png"]) for key in "abc"] == [False] * 3
    assert not search.add("a", ["txt"])
    assert not search._keys
    assert not search._fields
