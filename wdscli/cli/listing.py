"""How ``wds ls`` lays out what it lists: rows for a pipe or a terminal, JSON Lines, the page of a summary.

How: rows go to :class:`~wdscli.cli.output.Out` a page at a time. For a pipe a whole page is put into bytes by
one format, because a call a row would take longer than reading it; a page with a TAB or a line break in a
name takes the exact path. It must not know where rows come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from wdscli.cli.output import Cell, Out
from wdscli.look.listing import Listing, LsReport, MemberPage, Page
from wdscli.model import to_bytes, to_text
from wdscli.samples import split_name
from wdscli.selection.choice import OnError
from wdscli.shown import shown
from wdscli.tar import KIND_MASK, KIND_NAMES, REGULAR

Row = tuple[bytes | int, ...]
_ESCAPES = ((b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


def print_samples(out: Out, found: Listing, *, long: bool) -> None:
    """A row for each sample."""
    if out.json:
        for page in found.samples():
            for row in range(len(page.batch.keys)):
                out.object(_sample_object(page, row, long))
    elif long:
        header = ("key", "fields", "bytes", "shard", "offset", "bytes by field")
        print_rows(out, header, map(_long_sample_rows, found.samples()), right=(2, 4))
    else:
        print_rows(out, ("key", "fields", "bytes"), map(_sample_rows, found.samples()), right=(2,))


def _sample_rows(page: Page) -> list[Row]:
    _, keys, firsts, fields, _, _, sizes, *_ = page.batch
    return [
        (key, b",".join(fields[first:end]), sum(sizes[first:end]))
        for key, first, end in zip(keys, firsts, firsts[1:], strict=False)
    ]


def _long_sample_rows(page: Page) -> list[Row]:
    batch, shard = page.batch, to_bytes(shown(page.shard))
    rows: list[Row] = []
    for row, (key, fields, total) in enumerate(_sample_rows(page)):
        first, end = batch.firsts[row], batch.firsts[row + 1]
        sizes = b",".join([b"%d" % size for size in batch.sizes[first:end]])
        rows.append((key, fields, total, shard, batch.starts[first], sizes))
    return rows


def _sample_object(page: Page, row: int, long: bool) -> dict[str, Any]:
    batch = page.batch
    first, end = batch.firsts[row], batch.firsts[row + 1]
    plain: dict[str, Any] = {
        "key": to_text(batch.keys[row]),
        "fields": [to_text(field) for field in batch.fields[first:end]],
        "bytes": sum(batch.sizes[first:end]),
    }
    if long:
        plain["shard"] = shown(page.shard)
        plain["index"] = page.places[row]
        plain["offset"] = batch.starts[first]
        plain["sizes"] = batch.sizes[first:end]
    return plain


def print_members(out: Out, found: Listing, *, long: bool) -> None:
    """A row for each member."""
    if out.json:
        for page in found.members():
            for row in _long_member_rows(page):
                out.object(_member_object(shown(page.shard), row, long))
    elif long:
        header = ("name", "bytes", "shard", "offset", "kind", "field")
        print_rows(out, header, map(_long_member_rows, found.members()), right=(1, 3))
    elif out.terminal:
        print_rows(out, ("name", "bytes"), map(_member_rows, found.members()), right=(1,))
    else:
        for page in found.members():
            out.write(_member_lines(page))


class _Ends(dict[int, bytes]):
    """The end of a member's line by its size; sizes repeat."""

    def __missing__(self, size: int) -> bytes:
        if len(self) > 1 << 16:
            self.clear()
        end = self[size] = b"\t%d\n" % size
        return end


_ENDS = _Ends()


def _member_lines(page: MemberPage) -> bytes:
    """The same as :func:`lines` of the rows, in half the time: GNU tar lists three million members a second."""
    names, sizes = page.columns.names, page.columns.sizes
    parts = [b""] * (2 * len(names))
    parts[::2] = names
    parts[1::2] = map(_ENDS.__getitem__, sizes)
    text = b"".join(parts)
    return text if _is_plain(text, len(names), 2) else lines(_member_rows(page))


def _member_rows(page: MemberPage) -> list[Row]:
    return list(zip(page.columns.names, page.columns.sizes, strict=True))


def _long_member_rows(page: MemberPage) -> list[Row]:
    names, _, offsets, sizes, flags = page.columns
    shard = to_bytes(shown(page.shard))
    kinds = [KIND_NAMES[flag & KIND_MASK].encode() for flag in flags]
    fields = [_field(name, flag & KIND_MASK) for name, flag in zip(names, flags, strict=True)]
    return list(zip(names, sizes, [shard] * len(names), offsets, kinds, fields, strict=True))


def _field(name: bytes, kind: int) -> bytes:
    """The field of a member, or nothing when it is part of no sample."""
    parts = split_name(name) if kind == REGULAR else None
    return b"" if parts is None else parts[1]


def _member_object(shard: str, row: Row, long: bool) -> dict[str, Any]:
    name, size, _, offset, kind, field = row
    plain: dict[str, Any] = {"name": _text(name), "bytes": size}
    if long:
        plain |= {"shard": shard, "offset": offset, "kind": _text(kind), "field": _text(field) or None}
    return plain


def _text(cell: bytes | int) -> str:
    return to_text(cell) if isinstance(cell, bytes) else str(cell)


def print_shards(out: Out, found: Listing) -> None:
    """A row for each shard."""
    if out.json:
        for row in found.shards():
            out.object(
                {
                    "shard": shown(row.shard),
                    "samples": row.samples,
                    "members": row.members,
                    "bytes": row.size_bytes,
                    "payload_bytes": row.payload_bytes,
                    "mean_sample_bytes": _mean(row.payload_bytes, row.samples),
                }
            )
        return
    header = ("shard", "samples", "members", "bytes", "payload", "mean sample")
    rows = (
        [(to_bytes(shown(shard)), samples, members, size, payload, _mean(payload, samples))]
        for shard, samples, members, size, payload in found.shards()
    )
    print_rows(out, header, rows, right=(1, 2, 3, 4, 5))


def _mean(total: int, count: int) -> int:
    return round(total / count) if count else 0


def print_report(out: Out, report: LsReport, on_error: OnError) -> None:
    """What the user should hear once the listing is over. Raises InputNotFoundError when the set is not whole, and that
    is not to be skipped."""
    for remark in report.remarks:
        out.warn(remark)
    odd = {kind: count for kind, count in report.ignored.items() if kind in KIND_NAMES[REGULAR + 2 :]}
    if odd:
        out.warn(f"members that no sample may have: {counts(odd)} (`wds verify` says which)")
    if report.ignored:
        out.note(f"members of no sample: {counts(report.ignored)}")
    if report.dropped:
        out.note(f"samples left out: {counts(report.dropped)}")
    if report.missing:
        from wdscli.shards.inputs import missing_error, say_missing

        if on_error != "skip":
            raise missing_error(report.missing)
        out.warn(say_missing(report.missing))


def counts(found: dict[str, int]) -> str:
    """
    >>> counts({"where": 12, "keys": 3})
    '3 keys, 12 where'
    """
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


def print_rows(
    out: Out, header: Sequence[str], pages: Iterable[Sequence[Row]], *, right: Sequence[int] = ()
) -> None:
    """Rows, a page at a time: in a pipe at once, on a terminal in columns."""
    if out.terminal:
        rows: Iterator[Sequence[Cell]] = chain.from_iterable(pages)
        out.rows(header, rows, right=right)
        return
    for page in pages:
        if page:
            out.write(lines(page))


def lines(rows: Sequence[Row]) -> bytes:
    r"""Rows with a TAB between cells and a line break after each; such bytes in a cell become escapes.

    >>> lines([(b"a\tb", 1), (b"c", 2)])
    b'a\\tb\t1\nc\t2\n'
    """
    pattern = b"\t".join([b"%d" if isinstance(cell, int) else b"%b" for cell in rows[0]]) + b"\n"
    text = (pattern * len(rows)) % tuple(chain.from_iterable(rows))
    if _is_plain(text, len(rows), len(rows[0])):
        return text
    return b"".join([pattern % tuple(map(_escaped, row)) for row in rows])


def _is_plain(text: bytes, rows: int, columns: int) -> bool:
    """Whether no cell of ``text`` holds a TAB or a line break."""
    return text.count(b"\n") == rows and text.count(b"\t") == rows * (columns - 1) and b"\r" not in text


def _escaped(cell: bytes | int) -> bytes | int:
    if isinstance(cell, bytes):
        for raw, escape in _ESCAPES:
            cell = cell.replace(raw, escape)
    return cell


def print_summary(out: Out, found: Listing) -> None:
    """The whole set in one view."""
    from wdscli.cli.summary import print_summary_of
    from wdscli.look.summary import summarize

    print_summary_of(out, summarize(found))
