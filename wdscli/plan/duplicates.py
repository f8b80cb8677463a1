"""This module finds samples that repeat a key or a payload, over all inputs.

:func:`repeated_keys` and :class:`Dedup` find candidates by hashes: of keys, and of the payloads that ``--dedup`` names.
:class:`Comparison` then finds the true repeats among samples with equal hashes. :func:`rename` gives repeats new keys.
:class:`Duplicates` lists the samples left out.

Every row has the XXH3-64 of its key. For payloads, a survey takes an XXH3-128 with a secret random seed. Without the
secret, an attacker could make many payloads with equal hashes, which would all be compared with each other. One sort
finds hashes that occur more than once. Only these samples are read again (:class:`Rereader`) and compared byte for
byte. So a hash collision never counts as a repeat. This module does not know orders, cuts, or the later use of the
samples.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple, TypeAlias

from xxhash import xxh3_128

from wdscli.arrays import I64, U64, blocks_of, edges, numpy, runs
from wdscli.errors import DataError, UsageError
from wdscli.ordering import repeated
from wdscli.plan.inputs import Input, Inputs
from wdscli.plan.names import Rekey, shard_stem
from wdscli.plan.request import Request
from wdscli.plan.survey import SurveyTask, hash_key, out_length, out_sizes, samples_at
from wdscli.plan.table import RENAMED, Extract, PlanTable, Values
from wdscli.progress import QUIET, Progress
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import Named
from wdscli.selection.near import NearHashes, checked_bits, hash_of
from wdscli.selection.reading import MemberReader
from wdscli.selection.values import split_texts
from wdscli.selection.where import Value
from wdscli.storage.ends import PIECE_BYTES, cut_short
from wdscli.text import to_text

SAMPLES_AT_ONCE = 1 << 14
"""The number of samples that are read again together. Their names are in memory at the same time."""
DIGEST_BYTES = 16
_NO_DIGEST = b"\xff" * DIGEST_BYTES
"""The digest of a sample that lacks a field. Samples with this digest are not compared."""
DUPLICATE = "duplicate"
"""The reason for leaving out a sample that ``--dedup`` finds."""
KEY = "key"
"""The word in ``--dedup`` that means the key, not a field."""
HINT = "--on-duplicate skip drops later samples, and rekey renames them; --rekey FORMAT renames all"
JOIN_HINT = "--join inner joins sets by key; --on-duplicate skip drops later samples, and rekey renames them"
HINT_IN_ONE_SHARD = (
    "--on-duplicate skip drops it, and rekey renames it; wds repair SHARDS -o OUT joins separated files"
)


class RereadSample(NamedTuple):
    """A sample that was read again: its row in the plan's table, and the number of its input. The payloads of ``at``
    can be read until the next sample."""

    row: int
    number: int
    at: SampleAt
    first: int = 0
    """The number of samples in the inputs before."""

    @property
    def key(self) -> bytes:
        """The sample's key in the input."""
        return self.at.key

    def new_key(self, rekey: Rekey) -> bytes:
        """The sample's new key."""
        stem, place = shard_stem(self.at.shard), self.at.batch.index + self.at.row
        return rekey.key(self.key, stem, place, self.first, self.at if rekey.values else None)


KeyOf: TypeAlias = Callable[[RereadSample], bytes]


class Rereader(NamedTuple):
    """Reads samples of a plan again. ``template`` is the survey task that found them."""

    inputs: Sequence[Input]
    template: SurveyTask

    def samples(self, table: PlanTable, rows: Sequence[int]) -> Iterator[RereadSample]:
        """Yield the samples for some rows of a table, which must be in rising order. Raises InputError, DataError."""
        for part in blocks_of(len(rows), SAMPLES_AT_ONCE):
            chosen = rows[part]
            taken = table.take(list(chosen))
            facts = zip(chosen, taken.shards.tolist(), taken.places.tolist(), strict=True)
            for number, group in groupby(facts, key=lambda fact: fact[1]):
                yield from self._of_shard(number, {place: row for row, _, place in group})

    def _of_shard(self, number: int, rows: dict[int, int]) -> Iterator[RereadSample]:
        """Yield samples of one shard. ``rows`` maps places in the shard to rows."""
        task, read_samples = self.template._replace(input=self.inputs[number]), 0
        for row, sample in zip(rows.values(), samples_at(task, list(rows))):
            yield RereadSample(row, number, sample, task.input.first)
            read_samples += 1
        if read_samples < len(rows):
            raise DataError(
                f"sample {list(rows)[read_samples]} has disappeared",
                code="changed",
                shard=task.address,
                hint="another program changed the shard: run the command again",
            )

    def key(self, table: PlanTable, row: int) -> bytes:
        """Return the key of one sample in its input."""
        return next(self.samples(table, [row])).key

    def written_key(self, sample: RereadSample) -> bytes:
        """Return the key of a sample in the output, which ``--rekey`` may have changed."""
        rekey = self.template.rekey
        return sample.key if rekey is None else sample.new_key(rekey)


class Pairs(NamedTuple):
    """Samples that repeat an earlier sample: their rows in rising order, and for each the row of the first equal
    sample."""

    rows: I64
    firsts: I64


class _Facts(NamedTuple):
    """The facts to compare a sample: the number of its input; its texts and the sizes of its payloads, which are
    compared first; and (offset, size) of its payloads."""

    number: int
    exact: tuple[tuple[bytes | None, ...], tuple[int, ...]]
    places: list[tuple[int, int]]


class Comparison(NamedTuple):
    """Compares samples with equal hashes: by key, if ``key_of`` gives one, by ``values``, and by the payloads of
    ``fields``."""

    table: PlanTable
    reader: Rereader
    key_of: KeyOf | None
    fields: Sequence[bytes] = ()
    values: Sequence[Value] = ()

    def pairs(self, groups: Groups, *, first_only: bool = False, progress: Progress = QUIET) -> Pairs:
        """Return the repeats in all groups. With ``first_only``, the search ends soon after the first repeat. Raises
        InputError, DataError."""
        rows, firsts = array("q"), array("q")
        with Inputs(dict(enumerate(self.reader.inputs))) as inputs:
            for block in groups.lists():
                facts = self._read(sorted(chain(*block)))
                for group in block:
                    for row, first in self._repeats(group, facts, inputs):
                        rows.append(row)
                        firsts.append(first)
                    progress.advance(len(group))
                if rows and first_only:
                    break
        repeats = numpy.frombuffer(rows, dtype=numpy.int64)
        order = numpy.argsort(repeats)
        return Pairs(repeats[order], numpy.frombuffer(firsts, dtype=numpy.int64)[order])

    def _read(self, rows: list[int]) -> dict[int, _Facts]:
        facts_of_rows = {}
        for sample in self.reader.samples(self.table, rows):
            key = b"" if self.key_of is None else self.key_of(sample)
            batch = sample.at.batch
            members = [member for field in self.fields if (member := sample.at.member(field)) is not None]
            places = [(batch.offsets[member], batch.sizes[member]) for member in members]
            texts = [key, *(value.of(sample.at) for value in self.values)]
            exact = tuple(texts), tuple(size for _, size in places)
            facts_of_rows[sample.row] = _Facts(sample.number, exact, places)
        return facts_of_rows

    def _repeats(
        self, group: Sequence[int], facts: dict[int, _Facts], inputs: Inputs
    ) -> Iterator[tuple[int, int]]:
        """Yield the repeats in a group, each with the first equal sample. A sample is compared with the distinct
        samples before it."""
        unlike: dict[tuple[tuple[bytes | None, ...], tuple[int, ...]], list[int]] = {}
        for row in group:
            near = unlike.setdefault(facts[row].exact, [])
            for first in near:
                if _have_one_content(facts[first], facts[row], inputs):
                    yield row, first
                    break
            else:
                near.append(row)


def _have_one_content(first: _Facts, second: _Facts, inputs: Inputs) -> bool:
    """Return whether the payloads of two samples have equal bytes. Their sizes must be equal."""
    for (first_offset, size), (second_offset, _) in zip(first.places, second.places, strict=True):
        for piece_start in range(0, size, PIECE_BYTES):
            length, pieces = min(PIECE_BYTES, size - piece_start), []
            for number, begin in ((first.number, first_offset), (second.number, second_offset)):
                # Open the shard again for each piece, because the limit of open shards may have closed it.
                pieces.append(inputs[number].read_at(begin + piece_start, length))
                if len(pieces[-1]) < length:
                    raise cut_short(inputs[number].name, begin + piece_start)
            if pieces[0] != pieces[1]:
                return False
    return True


class Groups(NamedTuple):
    """Groups of rows with equal hashes. The rows of a group rise, and the groups are sorted by their second rows."""

    rows: I64
    begins: I64
    ends: I64

    @classmethod
    def of(cls, hashes: U64) -> Groups:
        """Group all rows with a hash that occurs more than once."""
        rows, row_hashes = repeated(hashes)
        bounds = edges(row_hashes[1:] != row_hashes[:-1], len(rows))
        begins, ends = bounds[:-1], bounds[1:]
        sequence = numpy.argsort(rows[begins + 1], kind="stable")
        return cls(rows, begins[sequence], ends[sequence])

    @property
    def sizes(self) -> I64:
        """The number of rows in each group."""
        return self.ends - self.begins

    def lists(self) -> Iterator[list[list[int]]]:
        """Yield all groups in lists of about :data:`SAMPLES_AT_ONCE` samples."""
        for first, stop in runs(numpy.cumsum(self.sizes) // SAMPLES_AT_ONCE):
            pairs = zip(self.begins[first:stop].tolist(), self.ends[first:stop].tolist(), strict=True)
            yield [self.rows[begin:end].tolist() for begin, end in pairs]


def repeated_keys(
    table: PlanTable, reader: Rereader, key_of: KeyOf | None = None, *, first_only: bool = False
) -> Pairs:
    """Find the samples that repeat a key. ``key_of`` returns the key of a sample; None means the key in the output."""
    groups = Groups.of(table.keys)
    return Comparison(table, reader, key_of or reader.written_key).pairs(groups, first_only=first_only)


def repeated_error(
    table: PlanTable, reader: Rereader, pairs: Pairs, key_of: KeyOf | None = None, hint: str = HINT
) -> DataError:
    """Return the error that names the first two samples with the same key."""
    row, first = int(pairs.rows[0]), int(pairs.firsts[0])
    samples = reader.samples(table, [row])  # keeps the shard open
    key = (key_of or reader.written_key)(next(samples))
    both = table.take([first, row])
    before, again = [reader.inputs[number].address for number in both.shards.tolist()]
    return DataError(
        f'repeated key "{to_text(key)}" (first: sample {int(both.places[0])} of {before})',
        code="duplicate-key",
        shard=again,
        offset=int(both.starts[1]),
        hint=HINT_IN_ONE_SHARD if before == again and hint is HINT else hint,
    )


def rename(table: PlanTable, reader: Rereader, rows: Sequence[int], rekey: Rekey) -> None:
    """Give new keys to the samples of ``rows``, which are in ascending order. Raises DataError if another sample has
    the new key."""
    template, chosen = reader.template, frozenset(rows)
    for sample in reader.samples(table, rows):
        key = sample.new_key(rekey)
        sizes = out_sizes(sample.at, template.selection, key)
        table.out_lengths[sample.row] = out_length(sizes, template.form)
        table.marks[sample.row] |= RENAMED
        table.keys[sample.row] = hash_key(key)

    def key_of(sample: RereadSample) -> bytes:
        return sample.new_key(rekey) if sample.row in chosen else sample.key

    pairs = repeated_keys(table, reader, key_of, first_only=True)
    if len(pairs.rows):
        hint = "use a --rekey FORMAT with {shard} and {index}; shards with equal names need {key} too"
        raise repeated_error(table, reader, pairs, key_of, hint)


class Duplicate(NamedTuple):
    """One omitted sample, and the sample that it repeats: the key, the shard and the place in the shard of both, and
    the bytes saved."""

    key: str
    shard: str
    place: int
    size_bytes: int
    first_key: str
    first_shard: str
    first_place: int


class Duplicates(NamedTuple):
    """The omitted samples, each with the sample that it repeats. ``by`` names the compared key and fields."""

    by: tuple[str, ...]
    samples: PlanTable
    firsts: PlanTable
    reader: Rereader

    @property
    def total(self) -> int:
        """The number of omitted samples."""
        return self.samples.total

    @property
    def size_bytes(self) -> int:
        """The bytes of the omitted samples in the inputs."""
        return int(self.samples.lengths.sum())

    def listed(self) -> Iterator[Duplicate]:
        """Yield each duplicate, in input order. This reads the names again, and raises InputError and DataError."""
        for part in blocks_of(self.total, SAMPLES_AT_ONCE):
            samples, firsts = PlanTable(self.samples.rows[part]), PlanTable(self.firsts.rows[part])
            keys, first_keys = self._keys(samples), self._keys(firsts)
            for row, key, first_key in zip(range(samples.total), keys, first_keys, strict=True):
                size = int(samples.lengths[row])
                yield Duplicate(key, *self._place(samples, row), size, first_key, *self._place(firsts, row))

    def _place(self, samples: PlanTable, row: int) -> tuple[str, int]:
        return self.reader.inputs[int(samples.shards[row])].address, int(samples.places[row])

    def _keys(self, samples: PlanTable) -> list[str]:
        """The keys of some samples in their inputs."""
        where = samples.shards.astype(numpy.uint64) << numpy.uint64(32) | samples.places
        # If several samples repeat the same sample, it is read once.
        _, rows, which = numpy.unique(where, return_index=True, return_inverse=True)
        distinct = samples.take(rows)
        keys = [to_text(sample.key) for sample in self.reader.samples(distinct, range(distinct.total))]
        return [keys[place] for place in which.tolist()]


class LeftOutSamples(NamedTuple):
    """The samples that a plan leaves out, for the report: the repeated samples, an error for each damaged part of a
    shard, and a line of JSON for each row and field of a joined table that is left out."""

    duplicates: tuple[Duplicates, ...] = ()
    damage: tuple[str, ...] = ()
    rows: Sequence[bytes] = ()


class Dedup(NamedTuple):
    """The condition for duplicates: equal keys, equal payloads of some fields, equal values of expressions, or several
    of these. A sample that lacks a field or value is never a duplicate. If ``rekeyed`` is true, all samples get new
    keys, but the old keys are compared. With ``lenient``, a value that cannot be decoded counts as missing."""

    by_key: bool
    fields: tuple[bytes, ...]
    rekeyed: bool = False
    values: tuple[Value, ...] = ()
    lenient: bool = False
    near: int | None = None
    """The number of bits that may differ. The only compared value is then a hash."""

    @classmethod
    def of(cls, request: Request) -> Dedup | None:
        """Return the condition in a request's options, or None without ``--dedup``. Raises UsageError."""
        rekeyed = request.rekey is not None and request.on_duplicate != "rekey"
        if not request.dedup:
            return None
        dedup, near = cls.parse(request.dedup), request.near
        if near is not None:
            checked_bits(near)
            if dedup.by_key or dedup.fields or len(dedup.values) != 1:
                raise UsageError("--near compares one hash", hint="--dedup 'dhash(jpg)' --near 3")
        return dedup._replace(rekeyed=rekeyed, lenient=request.on_error == "skip", near=near)

    @classmethod
    def parse(cls, words: Sequence[str]) -> Dedup:
        """Parse texts such as ``key``, ``jpg``, ``key,jpg`` or ``json.url``. Raises UsageError.

        >>> dedup = Dedup.parse(["key,jpg", "len( txt )"])
        >>> dedup.by_key, dedup.fields, dedup.names
        (True, (b'jpg',), ['key', 'jpg', 'len(txt)'])
        """
        if not words or not all(word.strip(", ") for word in words):
            raise UsageError("--dedup needs a value", hint="use --dedup key, or a field: --dedup jpg")
        texts = dict.fromkeys(split_texts(words, "--dedup"))
        by_key = KEY in texts
        compared = [Value.of_payloads(text, "--dedup") for text in texts if text != KEY]
        for value in compared:
            if not value.named and not value.names_sample:
                raise UsageError(
                    f"--dedup {value.text} is the same for all samples", hint="name a field, as .1"
                )
        fields = dict.fromkeys(value.place.field for value in compared if value.place and value.is_field)
        return cls(by_key, tuple(fields), values=tuple(value for value in compared if not value.is_field))

    @property
    def names(self) -> list[str]:
        """The names of the compared key, fields and values, as in the option."""
        fields = map(to_text, self.fields)
        return [KEY] * self.by_key + [*fields, *(value.normal for value in self.values)]

    @property
    def named(self) -> list[Named]:
        """The fields and places that some sample must have."""
        named = [Named(name, " to compare", (name,)) for name in map(to_text, self.fields)]
        return named + [name for value in self.values for name in value.named_for(" to compare")]

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads are read."""
        return frozenset(self.fields).union(*(value.payload_fields for value in self.values))

    def using(self, names: frozenset[str]) -> Dedup:
        """Return the condition that takes the values with these names from batches (:meth:`Value.using`)."""
        return self._replace(values=tuple(value.using(names) for value in self.values))

    def extract(self, order_extract: Extract | None) -> Extract | None:
        """Return the extract for a survey, which also takes the values of ``order_extract``. If the hashes of keys in
        the rows are enough, return ``order_extract`` itself."""
        if self.fields or self.values or self.rekeyed:
            return Digests(self, int.from_bytes(os.urandom(8), "little"), order_extract)
        return order_extract

    def warn_of_none(self, set_fields: Set[bytes], progress: Progress) -> None:
        """Warn that no sample has all of the fields and values. If some field is not in ``set_fields``, the fields of
        all samples, the check of names reports it instead."""
        if (self.fields or self.values) and set_fields >= set(self.fields):
            progress.warn(
                f"--dedup compared nothing: no sample has {' and '.join(self.names[self.by_key :])}"
            )

    def content(
        self, sample: SampleAt, pieces_of: Callable[[int], Iterable[bytes]]
    ) -> Iterator[bytes] | None:
        """Return the bytes of a sample that are compared: its key, values and payloads. If there are several, their
        lengths come last. ``pieces_of`` reads the payload of one member of the batch. Return None for a sample that
        lacks a field or value. Raises DataError ``undecodable``."""
        batch = sample.batch
        members = [member for field in self.fields if (member := sample.member(field)) is not None]
        if len(members) < len(self.fields):
            return None
        texts = [sample.key] * self.by_key
        for value in self.values:
            try:
                text = value.of(sample, self.lenient)
            except DataError as error:
                if error.code == "undecodable":
                    error.hint = "--on-error skip keeps such samples without comparing them"
                raise
            if text is None:
                return None
            texts.append(text)
        pieces = chain(texts, chain.from_iterable(map(pieces_of, members)))
        lengths = [*map(len, texts), *(batch.sizes[member] for member in members)]
        return chain(pieces, [array("Q", lengths).tobytes()]) if len(lengths) > 1 else pieces

    def find(
        self,
        table: PlanTable,
        digests: Values | None,
        set_fields: Set[bytes],
        reader: Rereader,
        progress: Progress,
    ) -> tuple[Pairs, Duplicates]:
        """Find the samples that repeat another sample. ``digests`` are the values of :class:`Digests`; they are None if
        only keys are compared. ``set_fields`` are the fields of all samples. Raises InputError, DataError."""
        if digests is None:
            pairs = repeated_keys(table, reader)
        elif self.near is not None:
            pairs = _near_pairs(digests, self.near)
        else:
            halves = digests.fixed(DIGEST_BYTES).view("<u8")
            rows: I64 = numpy.flatnonzero((halves != numpy.uint64((1 << 64) - 1)).any(axis=1))
            if digests.total and not len(rows):
                self.warn_of_none(set_fields, progress)
            # Half of a digest is enough, because samples in a group are compared.
            groups = Groups.of(halves[rows, 0])
            groups = groups._replace(rows=rows[groups.rows])
            progress.start("comparing", int(groups.sizes.sum()), "samples")
            key_of: KeyOf | None = (lambda sample: sample.key) if self.by_key else None
            pairs = Comparison(table, reader, key_of, self.fields, self.values).pairs(
                groups, progress=progress
            )
            progress.finish()
        repeats, originals = map(table.apart, pairs)
        return pairs, Duplicates(tuple(self.names), repeats, originals, reader)


def _near_pairs(values: Values, bits: int) -> Pairs:
    """Return the samples whose hash is similar to the hash of an earlier sample that stays."""
    halves = values.fixed(DIGEST_BYTES).view("<u8")
    hashes, rows_of_hashes = NearHashes(bits), array("q")
    rows, firsts = array("q"), array("q")
    for block in blocks_of(len(halves)):
        for row, (number, mark) in enumerate(halves[block].tolist(), block.start):
            if mark:
                continue  # the sample has no hash
            place = hashes.add(number)
            if place is None:
                rows_of_hashes.append(row)
            else:
                rows.append(row)
                firsts.append(rows_of_hashes[place])
    return Pairs(numpy.frombuffer(rows, dtype=numpy.int64), numpy.frombuffer(firsts, dtype=numpy.int64))


@dataclass(frozen=True)
class Digests(Extract):
    """An extract that takes a digest of 16 bytes from each sample, followed by the value that ``order_extract``
    takes."""

    dedup: Dedup
    seed: int = 0
    order_extract: Extract | None = None

    @property
    def payload_fields(self) -> frozenset[bytes]:
        order_fields = () if self.order_extract is None else self.order_extract.payload_fields
        return self.dedup.payload_fields.union(order_fields)

    def using(self, names: frozenset[str]) -> Digests:
        order_extract = self.order_extract and self.order_extract.using(names)
        return replace(self, dedup=self.dedup.using(names), order_extract=order_extract)

    @property
    def named(self) -> Sequence[Named]:
        return [*self.dedup.named, *(() if self.order_extract is None else self.order_extract.named)]

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: MemberReader
    ) -> list[bytes]:
        digests = [self._digest(SampleAt(batch, row, shard, payload_of), payload_of) for row in rows]
        if self.order_extract is None:
            return digests
        return list(map(bytes.__add__, digests, self.order_extract.values(batch, rows, shard, payload_of)))

    def _digest(self, sample: SampleAt, payload_of: MemberReader) -> bytes:
        content = self.dedup.content(sample, payload_of.pieces)
        if content is None:
            return _NO_DIGEST
        if self.dedup.near is not None:
            return hash_of(b"".join(content), "--dedup").to_bytes(DIGEST_BYTES, "little")
        return digest_of(content, self.seed)


def digest_of(pieces: Iterable[bytes], seed: int) -> bytes:
    """Return the XXH3-128 of some pieces together."""
    state = xxh3_128(seed=seed)
    for piece in pieces:
        state.update(piece)
    return state.digest()
