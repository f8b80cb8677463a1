"""Rename pictures whose field has the name of another format: a ``jpg`` that holds PNG or WebP becomes ``png`` or
``webp``. Payloads, keys and the order of fields stay. :func:`wdscli.codecs.cells.held_picture` says which format a
payload has. This module does not know shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wdscli.codecs.cells import held_picture
from wdscli.text import to_bytes, to_text
from wdscli.transform.transform import Call, CallError, InputSample, OutputSample, Remark, Transform, checked


def call_of(transform: Transform, folder: str, remarks: Counter[Remark]) -> Call:
    """Return the function that renames fields, and counts them in ``remarks``."""

    def renamed(samples: Sequence[InputSample]) -> list[OutputSample]:
        return [checked(sample.key, _renamed(sample, remarks)) for sample in samples]

    return renamed


def _renamed(sample: InputSample, remarks: Counter[Remark]) -> list[tuple[bytes, bytes]]:
    """Return the fields of a sample under their right names. Raises CallError if another field has such a name."""
    fields: list[tuple[bytes, bytes]] = []
    taken = {field for field, _ in sample.fields}
    for field, payload in sample.fields:
        name = to_text(field)
        if held := held_picture(name, payload):
            new_name = name[: name.rfind(".") + 1] + held
            field = to_bytes(new_name)
            if field in taken:
                raise CallError(f"it holds {held}, but the sample already has a field {new_name}", field=name)
            taken.add(field)
            remarks[Remark(name, f"renamed to {new_name}")] += 1
        fields.append((field, payload))
    return fields
