"""Sets taken in turn where their rows are on disc: a merge of as many sequences as there are sets.

What it is: :func:`in_turn`, which does what :func:`~wdscli.ops.interleave.interleaved` and
:func:`~wdscli.ops.rounds.in_rounds` do in memory. How: nothing is sorted. The turns of a short time are a short run of
each set, and the arithmetic orders them; then comes the next time. Sets that are begun again are first written out as
many times as they come, each row under its new key, so that they are runs too; their names are read once for all
rounds.

It must not know why sets take turns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from wdscli.ops.external import BLOCK, sort_records, store, store_at
from wdscli.ops.interleave import Shares, turn_blocks
from wdscli.ops.large import Found, StoredOrdered, StoredSamples
from wdscli.ops.orders import Again
from wdscli.ops.repeats import check_keys_in_rounds
from wdscli.ops.rounds import InputsOfRounds, Naming, named_samples
from wdscli.ops.rows import Ordered, Samples, row_type

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U64, Rows
    from wdscli.ops.scratch import Input


def as_they_are(found: Found) -> Ordered:
    """All samples in input order."""
    return StoredOrdered(found.samples)


def counts_of(found: Found, sets: int) -> list[int]:
    """How many samples each set has."""
    import numpy

    set_of: I64 = numpy.asarray(found.sets, dtype=numpy.int64)
    counts: I64 = numpy.zeros(sets, dtype=numpy.int64)
    for part in found.samples.parts():
        counts += numpy.bincount(set_of[part.shards], minlength=sets)
    of_sets: list[int] = counts.tolist()
    return of_sets


def in_turn(
    found: Found, counts: Sequence[int], taken: Sequence[int], shares: Shares
) -> tuple[Ordered, Again | None]:
    """The samples of sets of so many, ``taken`` of each, in turn. Raises DataError when a sample that comes again gets
    a key that is taken."""
    samples, again = found.samples, None
    assert isinstance(samples, StoredSamples)
    firsts = list(accumulate(counts, initial=0))[:-1]
    if any(take > count for take, count in zip(taken, counts, strict=True)):
        assert found.naming is not None
        samples, inputs = _again_and_again(samples, found.naming, counts, taken)
        again = Again(samples.total - sum(counts), inputs)
        firsts = list(accumulate(taken, initial=0))[:-1]
    merged = store(_merged(samples, firsts, taken, shares), row_type(), samples.new_path("turns"))
    return StoredOrdered(StoredSamples(merged, 0, merged.total, samples.new_path, samples.limit)), again


def _merged(samples: Samples, firsts: Sequence[int], taken: Sequence[int], shares: Shares) -> Iterator[Rows]:
    """The rows of all sets, each of which begins at one of ``firsts``, by time."""
    import numpy

    for spans, order in turn_blocks(taken, shares, BLOCK):
        runs = [
            samples.part(first + begin, first + end).rows
            for first, (begin, end) in zip(firsts, spans, strict=True)
            if begin < end
        ]
        if runs:
            yield numpy.concatenate(runs)[order]


def _again_and_again(
    samples: StoredSamples, naming: Naming, counts: Sequence[int], taken: Sequence[int]
) -> tuple[StoredSamples, Sequence[Input]]:
    """All turns of the first set, then all of the second, and so on; and the inputs of all rounds."""

    def turns() -> Iterator[tuple[int, Rows]]:
        first = at = 0
        for count, take in zip(counts, taken, strict=True):
            for begin in range(0, count, BLOCK):
                end = min(begin + BLOCK, count)
                for turn, rows in _turns(samples, naming, (first, begin, end, count), take):
                    yield at + turn, rows
            first, at = first + count, at + take

    stored = store_at(turns(), row_type(), sum(taken), samples.new_path("rounds"))
    whole = StoredSamples(stored, 0, stored.total, samples.new_path, samples.limit)
    rounds = max(-(-take // count) for take, count in zip(taken, counts, strict=True) if count)
    inputs = InputsOfRounds(naming.inputs, rounds)
    _check_keys(whole, naming, inputs)
    return whole, inputs


def _turns(
    samples: Samples, naming: Naming, where: tuple[int, int, int, int], take: int
) -> Iterator[tuple[int, Rows]]:
    """All turns of some samples of a set of ``count``: ``begin`` to ``end`` of those from row ``first`` on. Rows of
    turns that follow each other, and the first of these turns."""
    import numpy

    first, begin, end, count = where
    base = samples.part(first + begin, first + end).rows
    yield begin, base
    sources = list(
        named_samples(naming, samples, range(first + begin, first + end), base["mark"])
        if take > count + begin
        else ()
    )
    # A set that is in memory as a whole comes many times at once.
    rounds = max(1, BLOCK // count) if end - begin == count else 1
    for number in range(1, -(-take // count), rounds):
        turn = number * count + begin
        turns = numpy.arange(turn, min(take, (number + rounds - 1) * count + end))
        if len(turns):
            places: I64 = turns % count - begin
            numbers: I64 = turns // count
            added = Samples(base[places])
            for at, (place, round_number) in enumerate(zip(places.tolist(), numbers.tolist(), strict=True)):
                sources[place].put(added, at, round_number)
            added.shards[:] += (numbers * len(naming.inputs)).astype(numpy.uint32)
            yield turn, added.rows


def _check_keys(whole: StoredSamples, naming: Naming, inputs: Sequence[Input]) -> None:
    """Raise DataError for a new key that is taken; in the order of rounds and places, so that the error is always the
    same."""
    by_shard = sort_records(
        (part.rows for part in whole.parts()), row_type(), _shard_of, whole.new_path, whole.limit
    )
    samples = StoredSamples(by_shard, 0, by_shard.total, whole.new_path, whole.limit)
    check_keys_in_rounds(samples, inputs, naming.template, naming.rekey)
    os.unlink(by_shard.path)


def _shard_of(rows: Rows) -> U64:
    shards: U64 = rows["shard"].astype("<u8")
    return shards
