"""What a split asks of each sample: the name of its family, or the hash of what it must stay together with.

What it is: the :class:`~wdscli.plan.survey.Extract` of each way to split. How: a value is bytes; two values that no
other could be stand for samples that have none. It must not know how many samples there are, nor where they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.plan.field_values import Value, WholeKey
from wdscli.plan.indexed import packed_keys
from wdscli.plan.outputs import checked_part
from wdscli.plan.survey import PayloadOf
from wdscli.samples import SampleBatch
from wdscli.selection.named import Named

if TYPE_CHECKING:
    from wdscli.plan.values import Packed
    from wdscli.shards.index import Index

MISSING = b""
"""The value of a sample that is left out because it has none."""
UNDECODABLE = b"\0"
"""The value of one whose value cannot be decoded; no part can have this name."""
DIGEST_BYTES = 8
_LONGEST_CLASS = 64
"""A class is kept for every sample, so that a longer one is kept as a hash."""


class Asked(NamedTuple):
    """A value to be taken for an ``option``, and what happens without one: ``missing`` is ``error`` or ``drop``; with
    ``lenient`` a sample whose value cannot be decoded is left out instead of being an error."""

    value: Value
    option: str
    missing: str = "error"
    lenient: bool = False

    @property
    def named(self) -> list[Named]:
        """What some sample must have."""
        return self.value.named(f" for {self.option}")

    def of(self, batch: SampleBatch, row: int, shard: str, payload_of: PayloadOf) -> bytes:
        """The value of one sample, MISSING or UNDECODABLE. Raises DataError."""
        try:
            found = self.value.of(batch, row, shard, payload_of)
        except DataError as error:
            if self.lenient and error.code == "undecodable":
                return UNDECODABLE
            raise
        if found is None and self.missing == "error":
            raise DataError(
                f"no value for {self.option} {self.value.text}",
                code="missing",
                shard=shard,
                offset=batch.start(row),
                member=to_text(batch.keys[row]),
                hint="leave such samples out with --missing drop"
                + (", or name a part for them: --missing PART" if self.option == "--by" else ""),
            )
        return MISSING if found is None else found


class FamilyNames(NamedTuple):
    """The name of each sample's part. ``fallback`` is the part of samples that have no value, if they have one."""

    asked: Asked
    fallback: str | None = None

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return self.asked.value.payload_fields

    @property
    def named(self) -> Sequence[Named]:
        return self.asked.named

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """A name each. Raises DataError for one that cannot be the name of a part."""
        names: dict[bytes, bytes] = {MISSING: (self.fallback or "").encode(), UNDECODABLE: UNDECODABLE}
        found = []
        for row in rows:
            value = self.asked.of(batch, row, shard, payload_of)
            name = names.get(value)
            if name is None:
                name = names[value] = self._checked(value, batch, row, shard)
            found.append(name)
        return found

    def _checked(self, value: bytes, batch: SampleBatch, row: int, shard: str) -> bytes:
        try:
            checked_part(to_text(value[:4096]))
        except UsageError as error:
            raise DataError(
                f"{self.asked.value.text}: {error.message}",
                code="bad-part",
                shard=shard,
                offset=batch.start(row),
                member=to_text(batch.keys[row]),
                hint="say with --by-map FILE which part each key belongs to",
            ) from None
        return value


class Keys(NamedTuple):
    """Keys, as the inputs have them."""

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return frozenset()

    @property
    def named(self) -> Sequence[Named]:
        return ()

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """A key each."""
        return [batch.keys[row] for row in rows]

    def values_of_index(self, index: Index) -> Packed | None:
        """The same of all samples of an index."""
        return packed_keys(index)


class GroupDigests(NamedTuple):
    """The XXH3-64 of each sample's group, 8 little-endian bytes; after it the sample's class, if that is ``stratify``
    asked for."""

    group: Asked = Asked(WholeKey(), "key")
    stratify: Asked | None = None

    @property
    def payload_fields(self) -> frozenset[bytes]:
        fields = self.group.value.payload_fields
        return fields if self.stratify is None else fields | self.stratify.value.payload_fields

    @property
    def named(self) -> Sequence[Named]:
        return self.group.named if self.stratify is None else [*self.group.named, *self.stratify.named]

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """A digest (and a class) each, or MISSING or UNDECODABLE."""
        return [self._value(batch, row, shard, payload_of) for row in rows]

    def _value(self, batch: SampleBatch, row: int, shard: str, payload_of: PayloadOf) -> bytes:
        group = self.group.of(batch, row, shard, payload_of)
        kind = b"" if self.stratify is None else self.stratify.of(batch, row, shard, payload_of)
        for value in (group, kind) if self.stratify is not None else (group,):
            if value in (MISSING, UNDECODABLE):
                return value
        if len(kind) > _LONGEST_CLASS:
            kind = xxh3_128_digest(kind)
        return xxh3_64_intdigest(group).to_bytes(DIGEST_BYTES, "little") + kind
