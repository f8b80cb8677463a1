"""Samples without duplicates, where an order wants that: in memory, or of more samples than memory holds.

What it is: :func:`without_duplicates`; on disc :func:`without_repeated_keys` too. How, on disc: hashes are sorted, so
that equal ones lie side by side; candidates are sorted by the first sample of their hash, compared some thousand at a
time as in memory (``dedup.py``), and sorted back into input order; a last pass leaves out those that repeat. It must
not know what makes a duplicate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from wdscli.model import to_text
from wdscli.ops.dedup import PAIR, Comparison, Dedup
from wdscli.ops.duplicates import AT_ONCE, Duplicates
from wdscli.ops.external import Stored, sort_records, store
from wdscli.ops.large import Found, StoredSamples, keyed, repeated_records
from wdscli.ops.orders import Order, Pool
from wdscli.ops.rows import Samples, row_type
from wdscli.ops.scratch import Input
from wdscli.ops.survey import Survey, SurveyTask
from wdscli.progress import QUIET, Progress

if TYPE_CHECKING:
    from typing import TypeAlias

    from wdscli.ops.rows import Rows

    Records: TypeAlias = Any

REASON = "duplicate"
_HASHED = [("key", "<u8"), ("row", "<u8")]
_NAMED_COST = 500
"""Bytes that a sample takes whose name and whose payloads' places are known."""
_LEAST = 1 << 10


@runtime_checkable
class Deduplicating(Protocol):
    """An order that may leave duplicates out."""

    @property
    def dedup(self) -> Dedup | None:
        """What makes a duplicate, None to keep all."""


def without_duplicates(
    order: Order,
    pool: Pool,
    surveys: Sequence[Survey],
    inputs: Sequence[Input],
    template: SurveyTask,
    dropped: dict[str, int],
    progress: Progress,
) -> tuple[Pool, Duplicates | None]:
    """The samples without duplicates, where the order wants that; these are counted in ``dropped``."""
    if not isinstance(order, Deduplicating) or order.dedup is None:
        return pool, None
    if order.dedup.fields and pool.samples.total and _is_elsewhere(order.dedup, pool, surveys):
        names = " and ".join(map(to_text, order.dedup.fields))
        progress.warn(f"no sample has {names} to tell duplicates by")
    if isinstance(pool.samples, StoredSamples):
        has_values = order.dedup.extract is not None
        values = Found(pool.samples, surveys).values if has_values else None
        pool, found = _sifted(order.dedup, pool, pool.samples, values, inputs, template, progress)
    else:
        pool, found = order.dedup.sift(pool, inputs, template, progress)
    if found.total:
        dropped[REASON] = found.total
    return pool, found


def _is_elsewhere(dedup: Dedup, pool: Pool, surveys: Sequence[Survey]) -> bool:
    """Whether there are the fields by which duplicates are told, but no selected sample has them."""
    there = set[bytes]().union(*(found.sightings.fields for found in surveys))
    if not there.issuperset(dedup.fields):
        return False  # which was told
    return not any(any(values) for values in Found(pool.samples, surveys).values())


def _sifted(
    dedup: Dedup,
    pool: Pool,
    samples: StoredSamples,
    values: Callable[[], Iterator[list[bytes]]] | None,
    inputs: Sequence[Input],
    template: SurveyTask,
    progress: Progress,
) -> tuple[Pool, Duplicates]:
    """What ``Dedup.sift`` does, on disc."""
    comparison = Comparison(dedup, samples, inputs, template)
    pairs = _pairs(comparison, samples, values, progress)
    gone = _stored(samples, "duplicates", _chosen(samples, pairs, True))
    firsts = (samples.take(some["first"].tolist()).rows for some in pairs.blocks())
    found = Duplicates(
        dedup.names, gone, _stored(samples, "firsts", firsts), inputs, template, _at_once(samples)
    )
    pool = _without(pool, samples, pairs)
    os.unlink(pairs.path)
    return pool, found


def without_repeated_keys(
    pool: Pool, samples: StoredSamples, inputs: Sequence[Input], template: SurveyTask
) -> tuple[Pool, Stored]:
    """The samples on disc whose key, or new key, no earlier one has; and records (``PAIR``) of the others, by rows."""
    comparison = Comparison(Dedup(True, ()), samples, inputs, template, template.rekey)
    pairs = _pairs(comparison, samples, None, QUIET)
    return _without(pool, samples, pairs), pairs


def _without(pool: Pool, samples: StoredSamples, pairs: Stored) -> Pool:
    if not pairs.total:
        return pool
    return pool._replace(samples=_stored(samples, "rows", _chosen(samples, pairs, False)))


def _stored(like: StoredSamples, name: str, blocks: Iterable[Rows]) -> StoredSamples:
    stored = store(blocks, row_type(), like.new_path(name))
    return StoredSamples(stored, 0, stored.total, like.new_path, like.limit)


def _at_once(samples: StoredSamples) -> int:
    """Samples whose names are held together."""
    return max(_LEAST, min(AT_ONCE, samples.limit // _NAMED_COST))


def _pairs(
    comparison: Comparison,
    samples: StoredSamples,
    values: Callable[[], Iterator[list[bytes]]] | None,
    progress: Progress,
) -> Stored:
    """Each sample that repeats another, and the first that it repeats; by rising rows."""
    new_path, limit = samples.new_path, samples.limit
    hashes = keyed(samples.parts(), _HASHED) if values is None else _hashed(values())
    by_hash = sort_records(hashes, _HASHED, _column("key"), new_path, limit)
    candidates = sort_records(_grouped(by_hash), PAIR, _column("first"), new_path, limit)
    os.unlink(by_hash.path)
    progress.start("comparing", candidates.total, "samples")
    repeats = comparison.repeats(candidates.blocks(_at_once(samples)), progress)
    pairs = sort_records(repeats, PAIR, _column("row"), new_path, limit)
    progress.finish()
    os.unlink(candidates.path)
    return pairs


def _column(name: str) -> Any:
    return lambda records: records[name]


def _hashed(blocks: Iterator[list[bytes]]) -> Iterator[Records]:
    """Half of each digest with its row: what has that in common is compared anyway. None for a sample without."""
    import numpy

    at = 0
    for values in blocks:
        rows = [row for row, value in enumerate(values) if value]
        records: Records = numpy.empty(len(rows), dtype=_HASHED)
        together = b"".join([values[row][:8] for row in rows])
        records["key"], records["row"] = numpy.frombuffer(together, dtype="<u8"), rows
        records["row"] += numpy.uint64(at)
        at += len(values)
        yield records


def _grouped(by_hash: Stored) -> Iterator[Records]:
    """Those whose hash others have too, each with the first of them."""
    import numpy

    key, first = -1, 0
    for some in repeated_records(by_hash):
        if not len(some):
            continue
        begins: Any = numpy.append(int(some["key"][0]) != key, some["key"][1:] != some["key"][:-1])
        # The row of the group's first record: of this block, or of one before.
        last = numpy.maximum.accumulate(numpy.where(begins, numpy.arange(1, len(some) + 1), 0))
        records: Records = numpy.empty(len(some), dtype=PAIR)
        records["row"] = some["row"]
        records["first"] = numpy.append(numpy.uint64(first), some["row"])[last]
        key, first = int(some["key"][-1]), int(records["first"][-1])
        yield records


def _chosen(samples: Samples, pairs: Stored, repeating: bool) -> Iterator[Rows]:
    """The rows that repeat others, or those that do not."""
    import numpy

    at = met = 0
    for part in samples.parts():
        gone = pairs.read(met, met + part.total)["row"]
        gone = gone[gone < at + part.total].astype(numpy.int64) - at
        rows = part.rows
        yield rows[gone] if repeating else numpy.delete(rows, gone)
        at, met = at + part.total, met + len(gone)
