"""Samples that repeat an earlier one, by key or by the content of fields: found and left out.

What it is: :class:`Dedup`, what samples must have in common to be taken for one, and how those are found. How: a
survey takes the XXH3-128 of what is compared; samples of one hash are candidates, and these are compared byte for byte,
so that a collision of hashes never drops a sample. By key alone the hashes that every plan has are enough. Payloads are
hashed and compared in pieces. It must not know what becomes of the samples that stay.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128, xxh3_128_digest

from wdscli.errors import UsageError
from wdscli.model import to_bytes, to_text
from wdscli.plan.duplicates import AT_ONCE, Duplicates
from wdscli.plan.inputs import Inputs
from wdscli.plan.ranges import PIECE, cut_short
from wdscli.plan.repeats import Pairs, read_again, repeated_rows
from wdscli.plan.scratch import Input
from wdscli.plan.survey import PayloadOf, SurveyTask
from wdscli.plan.table import ROWS_PER_BLOCK, PlanTable
from wdscli.plan.values import Pool
from wdscli.progress import Progress
from wdscli.samples import SampleBatch
from wdscli.selection.named import Named

if TYPE_CHECKING:
    from wdscli.plan.table import I64, Mask
    from wdscli.plan.values import Values

KEY = "key"
"""What ``--dedup`` takes for the key, not for a field."""
REASON = "duplicate"
"""Why a sample is left out."""
DIGEST_BYTES = 16


class Dedup(NamedTuple):
    """What two samples have in common when the later one is a duplicate: their keys, the payloads of some fields, or
    all of these. A sample that lacks one of the fields is no duplicate. ``rekeyed`` says that all samples get new keys:
    compared are the old ones."""

    by_key: bool
    fields: tuple[bytes, ...]
    rekeyed: bool = False

    @classmethod
    def parse(cls, words: Sequence[str], *, rekeyed: bool = False) -> Dedup:
        """From ``key``, ``jpg`` or ``key,jpg``. Raises UsageError.

        >>> Dedup.parse(["key,jpg"])
        Dedup(by_key=True, fields=(b'jpg',), rekeyed=False)
        """
        names = [name.strip() for word in words for name in word.split(",")]
        if not names or not all(names):
            raise UsageError("--dedup names nothing", hint="--dedup key, or a field: --dedup jpg")
        fields = tuple(dict.fromkeys(to_bytes(name.removeprefix(".")) for name in names if name != KEY))
        return cls(KEY in names, fields, rekeyed)

    @property
    def names(self) -> list[str]:
        """What is compared, as it is given."""
        return [KEY] * self.by_key + [to_text(field) for field in self.fields]

    @property
    def extract(self) -> Digests | None:
        """What a survey takes of each sample; None where the plan's hashes of keys do."""
        if self.fields or self.rekeyed:
            return Digests(self.by_key, self.fields)
        return None

    def sift(
        self,
        pool: Pool,
        there: Set[bytes],
        inputs: Sequence[Input],
        template: SurveyTask,
        progress: Progress,
    ) -> tuple[Pool, Duplicates]:
        """The samples that repeat none, and the others. ``there`` are the fields that any sample has. Raises
        InputError, DataError."""
        # A field that is nowhere was reported before.
        is_elsewhere = bool(self.fields) and there >= set(self.fields)
        if is_elsewhere and pool.samples.total and pool.values is not None and not pool.values.lengths.any():
            progress.warn(f"no sample has {' and '.join(map(to_text, self.fields))} to tell duplicates by")
        if pool.values is None:
            pairs = repeated_rows(pool.samples, inputs, template)
        else:
            pairs = Comparison(self, pool.samples, inputs, template).pairs(pool.values, progress)
            pool = pool._replace(values=None)
        repeats, originals = map(pool.samples.apart, pairs)
        found = Duplicates(self.names, repeats, originals, inputs, template)
        return pool.without(pairs.rows), found


def without_duplicates(
    dedup: Dedup | None,
    pool: Pool,
    there: Set[bytes],
    inputs: Sequence[Input],
    template: SurveyTask,
    dropped: dict[str, int],
    progress: Progress,
) -> tuple[Pool, Duplicates | None]:
    """The samples without duplicates, where that is asked for; these are counted in ``dropped``."""
    if dedup is None:
        return pool, None
    pool, found = dedup.sift(pool, there, inputs, template, progress)
    if found.total:
        dropped[REASON] = found.total
    return pool, found


class Digests(NamedTuple):
    """16 bytes for each sample (:class:`~wdscli.plan.survey.Extract`); none for one that lacks a field."""

    by_key: bool
    fields: tuple[bytes, ...]

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return frozenset(self.fields)

    @property
    def named(self) -> Sequence[Named]:
        names = map(to_text, self.fields)
        return [Named(name, " to tell duplicates by", (name,)) for name in names]

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        return [self._value(batch, row, payload_of) for row in rows]

    def _value(self, batch: SampleBatch, row: int, payload_of: PayloadOf) -> bytes:
        places = places_of(batch, row, self.fields)
        if places is None:
            return b""
        if len(places) == 1 and not self.by_key and places[0][1] <= PIECE:
            return digest_of([payload_of(row, self.fields[0])])
        return digest_of(self._pieces(batch, row, payload_of, [size for _, size in places]))

    def _pieces(
        self, batch: SampleBatch, row: int, payload_of: PayloadOf, sizes: Sequence[int]
    ) -> Iterator[bytes]:
        """Key and payloads; of several things each comes after its length."""
        several = self.by_key + len(self.fields) > 1
        if self.by_key:
            yield from ([len(batch.keys[row]).to_bytes(8, "little")] if several else [])
            yield batch.keys[row]
        for field, size in zip(self.fields, sizes, strict=True):
            yield from ([size.to_bytes(8, "little")] if several else [])
            yield from payload_of.pieces(row, field) if size > PIECE else [payload_of(row, field)]


def digest_of(pieces: Iterable[bytes]) -> bytes:
    """The XXH3-128 of some pieces together."""
    if isinstance(pieces, list):
        return xxh3_128_digest(b"".join(pieces))
    state = xxh3_128()
    for piece in pieces:
        state.update(piece)
    return state.digest()


def places_of(batch: SampleBatch, row: int, fields: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """(offset, size) of some fields of a sample, None when it lacks one."""
    found = []
    first, end = batch.firsts[row], batch.firsts[row + 1]
    names = batch.fields[first:end]
    for field in fields:
        if field not in names:
            return None
        at = first + names.index(field)
        found.append((batch.offsets[at], batch.sizes[at]))
    return found


class Known(NamedTuple):
    """What a sample is compared by: the number of its shard, its key, and (offset, size) of the payloads."""

    shard: int
    key: bytes
    places: list[tuple[int, int]]


class Comparison:
    """The samples of one hash, compared byte for byte. Keys are those of the inputs."""

    def __init__(
        self, dedup: Dedup, samples: PlanTable, inputs: Sequence[Input], template: SurveyTask
    ) -> None:
        self._dedup = dedup
        self._samples = samples
        self._numbered = inputs
        self._template = template

    def pairs(self, values: Values, progress: Progress) -> Pairs:
        """Each sample that repeats another, and the first that it repeats; by rising rows."""
        rows, firsts = array("q"), array("q")
        candidates, groups = _groups(values)
        progress.start("comparing", candidates, "samples")
        with Inputs(dict(enumerate(self._numbered))) as inputs:
            for some in _by_count(groups):
                known = self._read(sorted(row for group in some for row in group))
                for group in some:
                    for row, first in self._compare(group, known, inputs):
                        rows.append(row)
                        firsts.append(first)
                    progress.advance(len(group))
        progress.finish()
        return Pairs.of(rows, firsts)

    def _read(self, rows: list[int]) -> dict[int, Known]:
        again = read_again(self._samples, self._numbered, self._template, rows)
        shards = self._samples.take(rows).shards.tolist()
        return {
            row: Known(shard, batch.keys[at], places_of(batch, at, self._dedup.fields) or [])
            for (row, address, batch, at), shard in zip(again, shards, strict=True)
        }

    def _compare(
        self, group: Sequence[int], known: dict[int, Known], inputs: Inputs
    ) -> Iterator[tuple[int, int]]:
        """The repeats among samples of one hash, each with the first that it repeats: each is compared with those that
        are unlike each other so far."""
        unlike: list[int] = []
        for row in group:
            first = next((one for one in unlike if self._are_equal(known[one], known[row], inputs)), None)
            if first is None:
                unlike.append(row)
            else:
                yield row, first

    def _are_equal(self, one: Known, other: Known, inputs: Inputs) -> bool:
        if self._dedup.by_key and one.key != other.key:
            return False
        if [size for _, size in one.places] != [size for _, size in other.places]:
            return False
        return all(
            self._piece(inputs, one.shard, offset + at, length)
            == self._piece(inputs, other.shard, other_offset + at, length)
            for (offset, size), (other_offset, _) in zip(one.places, other.places, strict=True)
            for at, length in ((at, min(PIECE, size - at)) for at in range(0, size, PIECE))
        )

    def _piece(self, inputs: Inputs, number: int, offset: int, length: int) -> bytes:
        """Some bytes of a shard, which may have been closed since the last: only so many are open at a time."""
        data = inputs[number].read_at(offset, length)
        if len(data) < length:
            raise cut_short(self._numbered[number].address, offset)
        return data


def _groups(values: Values) -> tuple[int, Iterator[list[int]]]:
    """Groups of rising rows whose values are the same and not empty, in the order of their first rows, for each value
    that comes more than once; and how many rows are in them."""
    import numpy

    rows: I64 = numpy.flatnonzero(values.lengths)
    halves = values.fixed(DIGEST_BYTES).view("<u8")
    order = numpy.lexsort((halves[:, 1], halves[:, 0]))
    same: Mask = numpy.empty(len(order), dtype=bool)
    same[:1] = False
    for first in range(1, len(order), ROWS_PER_BLOCK):
        some = halves[order[first - 1 : first + ROWS_PER_BLOCK]]
        same[first : first + ROWS_PER_BLOCK] = (some[1:] == some[:-1]).all(axis=1)
    del halves
    begins: I64 = numpy.flatnonzero(~same)
    ends: I64 = numpy.append(begins[1:], len(order))
    several = ends - begins > 1
    begins, ends = begins[several], ends[several]
    # The sort is stable, so that the first of a group is its first row.
    sequence = numpy.argsort(order[begins])
    begins, ends = begins[sequence], ends[sequence]
    groups = (
        rows[order[begin:end]].tolist() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    )
    return int((ends - begins).sum()), groups


def _by_count(groups: Iterator[list[int]]) -> Iterator[list[list[int]]]:
    """So many groups at a time that about :data:`AT_ONCE` samples are in them."""
    some: list[list[int]] = []
    count = 0
    for group in groups:
        some.append(group)
        count += len(group)
        if count >= AT_ONCE:
            yield some
            some, count = [], 0
    if some:
        yield some
