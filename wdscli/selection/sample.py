"""One sample of a batch, for who looks into it: an expression, a sort key, what a split goes by.

What it is: :class:`SampleAt`, a batch and a row of it, which finds members and payloads by field and makes the errors
that name the sample. How: commands work on batches, so that one is made only where a sample is looked at by itself. It
must not know what is looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import SampleBatch

PayloadOf = Callable[[int, bytes], bytes]
"""``payload_of(row, field)``: the payload of one member of a batch; called only for fields that the sample
has."""


class SampleAt(NamedTuple):
    """Sample ``row`` of a batch of ``shard``, whose payloads ``payload_of`` gives where they may be asked for."""

    batch: SampleBatch
    row: int
    shard: str
    payload_of: PayloadOf | None = None

    @property
    def key(self) -> bytes:
        return self.batch.keys[self.row]

    @property
    def fields(self) -> list[bytes]:
        """The fields of its members, in its own order."""
        return self.batch.fields[self.batch.firsts[self.row] : self.batch.firsts[self.row + 1]]

    def member(self, field: bytes) -> int | None:
        """The place in the batch of the member of this field, None where there is none."""
        fields = self.fields
        return self.batch.firsts[self.row] + fields.index(field) if field in fields else None

    def payload(self, field: bytes) -> bytes:
        """The payload of a field that it has."""
        assert self.payload_of is not None
        return self.payload_of(self.row, field)

    def error(
        self, message: str, code: str, field: bytes | None = None, hint: str | None = None
    ) -> DataError:
        """The error of the sample, or of its member of this field, with its place."""
        at = None if field is None else self.member(field)
        return DataError(
            message,
            code=code,
            shard=self.shard,
            offset=self.batch.start(self.row) if at is None else self.batch.starts[at],
            member=to_text(self.key if field is None else self.key + b"." + field),
            hint=hint,
        )
