"""Keys that come twice: found over all inputs, and dealt with.

What it is: :func:`repeated_rows`, which finds the samples whose key an earlier sample has, and :func:`renamed`,
which gives them new keys. How: equal XXH3-64 make candidates, found by one sort; only
their keys are read again and compared, so that a collision of hashes is never taken for a repeated key. It must not
know of orders or cuts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.plan.rekey import Rekey, shard_stem
from wdscli.plan.scratch import Input
from wdscli.plan.survey import RENAMED, SurveyTask, hash_key, out_length, out_sizes, samples_at
from wdscli.plan.table import PlanTable
from wdscli.samples import SampleBatch

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.table import I64

_AT_ONCE = 1 << 14
KeysOf: TypeAlias = Callable[[list[int]], Iterator[tuple[int, bytes]]]
HINT = "leave out or rename the later ones with --on-duplicate skip|rekey, or give all new keys with --rekey FORMAT"


class Pairs(NamedTuple):
    """Samples that repeat an earlier one, by rising rows: their rows, and the first that each repeats."""

    rows: I64
    firsts: I64

    @classmethod
    def of(cls, rows: array[int], firsts: array[int]) -> Pairs:
        """From what was found in any order."""
        import numpy

        found = numpy.frombuffer(rows, dtype=numpy.int64)
        order = numpy.argsort(found)
        return cls(found[order], numpy.frombuffer(firsts, dtype=numpy.int64)[order])


def repeated_rows(
    samples: PlanTable, inputs: Sequence[Input], template: SurveyTask, *, first_only: bool = False
) -> Pairs:
    """The samples that repeat a key. With ``first_only`` the search ends soon after the first."""

    def keys(rows: list[int]) -> Iterator[tuple[int, bytes]]:
        return _keys_of(samples, inputs, template, rows)

    return _repeats(samples, keys, first_only)


def _repeats(samples: PlanTable, keys_of: KeysOf, first_only: bool) -> Pairs:
    """The repeats among the candidates, some thousand of these at a time, by name."""
    found, firsts = array("q"), array("q")
    for rows in _batches(_candidates(samples)):
        first: dict[bytes, int] = {}
        for row, key in keys_of(rows):
            before = first.setdefault(key, row)
            if before != row:
                found.append(row)
                firsts.append(before)
        if found and first_only:
            break
    return Pairs.of(found, firsts)


def _batches(groups: Iterator[list[int]]) -> Iterator[list[int]]:
    """The rows of groups, in rising order; no group is divided."""
    rows: list[int] = []
    for group in groups:
        rows += group
        if len(rows) >= _AT_ONCE:
            yield sorted(rows)
            rows = []
    if rows:
        yield sorted(rows)


def _candidates(samples: PlanTable) -> Iterator[list[int]]:
    """Groups of rows whose keys have one hash, in the order of their second rows."""
    import numpy

    rows, hashes = samples.repeated()
    if not len(rows):
        return
    begins: NDArray[numpy.int64] = numpy.flatnonzero(numpy.append(True, hashes[1:] != hashes[:-1]))
    ends: NDArray[numpy.int64] = numpy.append(begins[1:], len(rows))
    for at in numpy.argsort(rows[begins + 1], kind="stable").tolist():
        yield rows[int(begins[at]) : int(ends[at])].tolist()


def _keys_of(
    samples: PlanTable, inputs: Sequence[Input], template: SurveyTask, rows: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Rows, given in rising order, and their keys."""
    for row, address, batch, at in read_again(samples, inputs, template, rows):
        key = batch.keys[at]
        if template.rekey is not None:
            key = template.rekey.key(key, shard_stem(address), batch.index + at)
        yield row, key


def read_again(
    samples: PlanTable, inputs: Sequence[Input], template: SurveyTask, rows: Sequence[int]
) -> Iterator[tuple[int, str, SampleBatch, int]]:
    """Rows in rising order, each with its shard's address and its batch and row there."""
    for first in range(0, len(rows), _AT_ONCE):
        chosen = rows[first : first + _AT_ONCE]
        taken = samples.take(list(chosen))
        facts = zip(chosen, taken.shards.tolist(), taken.places.tolist(), strict=True)
        for shard, group in groupby(facts, key=lambda fact: fact[1]):
            some = list(group)
            places = [place for _, _, place in some]
            yield from _read_places(
                template._replace(input=inputs[shard]), [row for row, _, _ in some], places
            )


def _read_places(
    task: SurveyTask, rows: Sequence[int], places: Sequence[int]
) -> Iterator[tuple[int, str, SampleBatch, int]]:
    """Rows of one shard by their places there."""
    found = 0
    for row, (batch, at) in zip(rows, samples_at(task, places)):
        yield row, task.address, batch, at
        found += 1
    if found < len(rows):
        raise DataError(
            f"sample {places[found]} is there no longer",
            code="changed",
            shard=task.address,
            hint="the shard was changed while it was read: start again",
        )


def repeated_error(
    samples: PlanTable, inputs: Sequence[Input], template: SurveyTask, pairs: Pairs
) -> DataError:
    """The error that names both samples with one key, the first such."""
    row, first = int(pairs.rows[0]), int(pairs.firsts[0])
    _, key = next(_keys_of(samples, inputs, template, [row]))
    return _error(samples, inputs, key, row, first, HINT)


def _error(
    samples: PlanTable, inputs: Sequence[Input], key: bytes, row: int, first: int, hint: str
) -> DataError:
    both = samples.take([first, row])
    before, again = [inputs[shard].address for shard in both.shards.tolist()]
    return DataError(
        f'key "{to_text(key)}" a second time (first: sample {int(both.places[0])} of {before})',
        code="duplicate-key",
        shard=again,
        offset=int(both.starts[1]),
        hint=hint,
    )


def renamed(
    samples: PlanTable, inputs: Sequence[Input], template: SurveyTask, rows: Sequence[int], rekey: Rekey
) -> PlanTable:
    """The same table, in which these samples get new keys. Raises DataError when a new key is taken."""
    for first in range(0, len(rows), _AT_ONCE):
        some = list(rows[first : first + _AT_ONCE])
        new = samples.take(some)
        for place, (_, address, batch, at) in enumerate(read_again(samples, inputs, template, some)):
            key = rekey.key(batch.keys[at], shard_stem(address), batch.index + at)
            sizes = out_sizes(batch, at, template.selection, address, key)
            new.out_lengths[place] = out_length(sizes, template.form)
            new.marks[place] |= RENAMED
            new.keys[place] = hash_key(key)
        samples.put(some, new)
    _check_new_keys(samples, inputs, template, frozenset(rows), rekey)
    return samples


def _check_new_keys(
    samples: PlanTable, inputs: Sequence[Input], template: SurveyTask, renamed: frozenset[int], rekey: Rekey
) -> None:
    def keys(rows: list[int]) -> Iterator[tuple[int, bytes]]:
        for row, address, batch, at in read_again(samples, inputs, template, rows):
            key = batch.keys[at]
            yield row, rekey.key(key, shard_stem(address), batch.index + at) if row in renamed else key

    pairs = _repeats(samples, keys, True)
    if len(pairs.rows):
        row, first = int(pairs.rows[0]), int(pairs.firsts[0])
        _, key = next(keys([row]))
        raise _error(
            samples,
            inputs,
            key,
            row,
            first,
            "use a --rekey FORMAT with {shard} and {index}; shards of one name need {key} too",
        )
