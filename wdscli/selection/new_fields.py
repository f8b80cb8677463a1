"""New fields of ``--column FIELD=EXPR``: :class:`NewField`.

The payload is what ``create --column`` writes for a cell of a table. The fields of an expression are those of the
shard, before ``--drop`` and ``--rename``. This module does not know how samples are read or written.
"""

from __future__ import annotations

from typing import NamedTuple

from wdscli.codecs.cells import cell_payload
from wdscli.errors import DataError, UsageError
from wdscli.samples import check_name
from wdscli.samples.grouping import SampleAt
from wdscli.selection.where import Value
from wdscli.text import to_bytes, to_text


class NewField(NamedTuple):
    """A field whose payload is a value of the sample. ``text`` is the option as typed."""

    text: str
    field: bytes
    value: Value

    @classmethod
    def parse(cls, text: str) -> NewField:
        """Parse ``FIELD=EXPR``. Raises UsageError.

        >>> NewField.parse("txt=json.caption").field
        b'txt'
        """
        name, equals, expression = text.partition("=")
        field = name.strip().removeprefix(".")
        if not (field and equals and expression.strip()):
            raise UsageError(
                f'not a new field: "{text}"', hint="--column FIELD=EXPR: --column txt=json.caption"
            )
        check_name(b"key", to_bytes(field))
        return cls(text, to_bytes(field), Value.of_payloads(expression.strip(), "--column"))

    def payload(self, sample: SampleAt) -> bytes | None:
        """Return the payload, or None if the sample lacks the value. Raises DataError."""
        value = self.value
        if value.is_field and value.place:
            is_there = value.place.field in sample.fields
            cell = sample.payload(value.place.field) if is_there else None
        else:
            cell = value.value(sample)
        try:
            return None if cell is None else cell_payload(cell, value.text, to_text(self.field))
        except DataError as error:
            message = error.message.replace("column", "--column", 1)
            raise sample.error(message, error.code, hint=error.hint) from None
