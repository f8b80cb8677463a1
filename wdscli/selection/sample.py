"""One sample of a batch, for expressions, sort keys and the values of a split.

:class:`SampleAt` is a batch and a row of it, which finds members and payloads by field and makes errors that name the
sample. Commands work on batches; this record is made only if a sample is read by itself. This module does not know who
reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import SampleBatch

PayloadOf = Callable[[int, bytes], bytes]
"""``payload_of(row, field)`` returns the payload of one member of a batch, of a field that the sample has."""


class SampleAt(NamedTuple):
    """Sample ``row`` of a batch of ``shard``. ``payload_of`` returns its payloads; None if they cannot be read."""

    batch: SampleBatch
    row: int
    shard: str
    payload_of: PayloadOf | None = None

    @property
    def key(self) -> bytes:
        return self.batch.keys[self.row]

    @property
    def fields(self) -> list[bytes]:
        """The fields of its members in the sample's order."""
        return self.batch.fields[self.batch.firsts[self.row] : self.batch.firsts[self.row + 1]]

    def member(self, field: bytes) -> int | None:
        """The place of a field's member in the batch; None if the sample lacks the field."""
        fields = self.fields
        return self.batch.firsts[self.row] + fields.index(field) if field in fields else None

    def payload(self, field: bytes) -> bytes:
        """The payload of a field, which the sample must have."""
        assert self.payload_of is not None
        return self.payload_of(self.row, field)

    def error(
        self, message: str, code: str, field: bytes | None = None, hint: str | None = None
    ) -> DataError:
        """A DataError with the place of the sample, or of its member of this field."""
        at = None if field is None else self.member(field)
        return DataError(
            message,
            code=code,
            shard=self.shard,
            offset=self.batch.start(self.row) if at is None else self.batch.starts[at],
            member=to_text(self.key if field is None else self.key + b"." + field),
            hint=hint,
        )
