"""Keys that come twice: found over all inputs, and dealt with.

What it is: :func:`repeated_rows`, which finds the samples whose key an earlier sample has, and :func:`without` and
:func:`renamed`, which leave them out or give them new keys. How: equal XXH3-64 make candidates, found by one sort; only
their keys are read again and compared, so that a collision of hashes is never taken for a repeated key. It must not
know of orders or cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.ops.plan import Samples
from wdscli.ops.rekey import Rekey, shard_stem
from wdscli.ops.survey import RENAMED, SurveyTask, hash_key, out_length, out_sizes, samples_at
from wdscli.samples import SampleBatch

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_AT_ONCE = 1 << 12
HINT = "leave out or rename the later ones with --on-duplicate skip|rekey, or give all new keys with --rekey FORMAT"


def repeated_rows(
    samples: Samples, addresses: Sequence[str], template: SurveyTask, *, first_only: bool = False
) -> list[tuple[int, int]]:
    """(row, row of the first sample with that key) for each sample that repeats a key, in input order. With
    ``first_only`` the search ends at the first."""
    pairs = _candidates(samples)
    found: list[tuple[int, int]] = []
    for at in range(0, len(pairs), _AT_ONCE):
        some = pairs[at : at + _AT_ONCE]
        keys = _keys_of(samples, addresses, template, sorted({row for pair in some for row in pair}))
        found += [pair for pair in some if keys[pair[0]] == keys[pair[1]]]
        if found and first_only:
            return found[:1]
    return found


def _candidates(samples: Samples) -> list[tuple[int, int]]:
    """(row, first row) of samples whose hash an earlier one has, by row."""
    import numpy

    order = numpy.argsort(samples.keys, kind="stable")
    hashes = samples.keys[order]
    same: NDArray[numpy.bool_] = hashes[1:] == hashes[:-1]
    if not same.any():
        return []
    begins = numpy.concatenate(([True], ~same))
    first = order[numpy.flatnonzero(begins)][numpy.cumsum(begins) - 1]
    later = ~begins
    pairs = zip(order[later].tolist(), first[later].tolist(), strict=True)
    return sorted(pairs)


def _keys_of(
    samples: Samples, addresses: Sequence[str], template: SurveyTask, rows: list[int]
) -> dict[int, bytes]:
    """The keys of some rows, given in rising order."""
    keys: dict[int, bytes] = {}
    for row, address, batch, at in _read_again(samples, addresses, template, rows):
        key = batch.keys[at]
        if template.rekey is not None:
            key = template.rekey.key(key, shard_stem(address), batch.index + at)
        keys[row] = key
    return keys


def _read_again(
    samples: Samples, addresses: Sequence[str], template: SurveyTask, rows: Sequence[int]
) -> Iterator[tuple[int, str, SampleBatch, int]]:
    """Rows in rising order, each with its shard's address and its batch and row there."""
    for shard, group in groupby(rows, key=lambda row: int(samples.shards[row])):
        some = list(group)
        places = [int(samples.places[row]) for row in some]
        task = template._replace(address=addresses[shard])
        for row, (batch, at) in zip(some, samples_at(task, places), strict=True):
            yield row, addresses[shard], batch, at


def repeated_error(
    samples: Samples, addresses: Sequence[str], template: SurveyTask, pair: tuple[int, int]
) -> DataError:
    """The error that names both samples with one key."""
    row, first = pair
    key = to_text(_keys_of(samples, addresses, template, [row])[row])
    before = addresses[int(samples.shards[first])]
    return DataError(
        f'key "{key}" a second time (first: sample {int(samples.places[first])} of {before})',
        code="duplicate-key",
        shard=addresses[int(samples.shards[row])],
        offset=int(samples.starts[row]),
        hint=HINT,
    )


def without(samples: Samples, rows: Sequence[int]) -> Samples:
    """All samples but these."""
    import numpy

    return Samples(*[numpy.delete(column, rows) for column in samples])


def renamed(
    samples: Samples, addresses: Sequence[str], template: SurveyTask, rows: Sequence[int], rekey: Rekey
) -> Samples:
    """The same samples, these with new keys. Raises DataError when a new key is taken."""
    changed = samples._replace(
        out_lengths=samples.out_lengths.copy(), marks=samples.marks.copy(), keys=samples.keys.copy()
    )
    for row, address, batch, at in _read_again(samples, addresses, template, rows):
        key = rekey.key(batch.keys[at], shard_stem(address), batch.index + at)
        sizes = out_sizes(batch, at, template.selection, address, key)
        changed.out_lengths[row] = out_length(sizes, template.form)
        changed.marks[row] |= RENAMED
        changed.keys[row] = hash_key(key)
    still = _candidates(changed)
    if still:
        row = still[0][0]
        raise DataError(
            f"--rekey gives sample {int(samples.places[row])} a key that another sample has",
            code="duplicate-key",
            shard=addresses[int(samples.shards[row])],
            hint="use a --rekey FORMAT with {shard} and {index}; shards of one name need {key} too",
        )
    return changed
