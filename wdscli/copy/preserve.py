"""Unchanged headers, for ``cat --preserve``.

What it is: copies of members with their own header blocks instead of canonical ones: modes, owners, times and records
of pax headers, unknown ones too. How: the blocks from a member's start to its payload are copied byte for byte. Records
of a pax global header would be lost at another place in another archive; they are written into the member's own pax
header (POSIX.1-2001: a member's own record wins over a global one).

It must not know orders, cuts or outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wdscli.errors import UsageError
from wdscli.plan.inputs import pieces_of
from wdscli.samples import RAGGED, SampleBatch
from wdscli.selection import Selection
from wdscli.storage import Source
from wdscli.tar import GLOBAL, padded
from wdscli.tar.header import BLOCK, extended, parse_pax, parse_size, pax_record


def check_preserve(selection: Selection, rekey: str | None, on_duplicate: str) -> None:
    """Raise UsageError for options that would need other headers."""
    renames = selection.field_rule is not None and bool(selection.field_rule.renames)
    if renames or rekey is not None or on_duplicate == "rekey":
        raise UsageError("--preserve keeps all names", hint="leave out --rename and --rekey, or --preserve")


def kept_mark(mark: int) -> int:
    """The part of a sample's mark that matters for unchanged headers: whether it can be copied as one run."""
    return mark & (RAGGED | GLOBAL)


class Kept(NamedTuple):
    """One member to write: its field, header blocks, payload's bytes and the payload itself."""

    field: bytes
    header: bytes
    size: int
    pieces: Iterator[bytes]


def kept_members(
    source: Source,
    batch: SampleBatch,
    row: int,
    selection: Selection,
    globals_before: dict[bytes, bytes] | None,
) -> Iterator[Kept]:
    """Yield the members of one sample that a selection keeps."""
    first = batch.firsts[row]
    for place, field in selection.plan_of(batch, row, source.name):
        at = first + place
        start, offset, size = batch.starts[at], batch.offsets[at], batch.sizes[at]
        header = source.read_at(start, offset - start)
        if globals_before:
            header = with_globals(header, globals_before)
        yield Kept(field, header, size, pieces_of(source, offset, size))


def with_globals(header: bytes, globals_before: dict[bytes, bytes]) -> bytes:
    """A member's header blocks with records of a global header added to its own pax header."""
    records, others, at = dict(globals_before), b"", 0
    while at < len(header):
        block = header[at : at + BLOCK]
        end = at + BLOCK
        if block[156:157] in b"xXgLK":
            size = parse_size(block[124:136])
            end += padded(size)
            if block[156:157] in b"xX":
                records.update(parse_pax(header[at + BLOCK : at + BLOCK + size]))
        if block[156:157] not in b"xXg":
            others += header[at:end]
        at = end
    # An empty value cancels a record, and need not be written for a member without the record.
    data = b"".join(pax_record(keyword, value) for keyword, value in records.items() if value)
    return extended(b"x", data) + others if data else others


def kept_length(kept: Iterable[Kept]) -> int:
    """Bytes that members take in the output."""
    return sum(len(member.header) + padded(member.size) for member in kept)
