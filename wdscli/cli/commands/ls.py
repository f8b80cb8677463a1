"""``wds ls``: options in; rows for a pipe or a terminal, JSON Lines, or the page of a summary out.

How: rows go to :class:`~wdscli.cli.output.Out` in pages. For a pipe a page becomes bytes at once, because a call for
each row would take longer than reading it. A summary has two blocks: facts of the set, then a row for each field. On
a terminal its numbers are rounded; in a pipe the facts are ``name TAB value`` with whole numbers, for scripts. This
module does not know how rows are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.cli.files import parse_form
from wdscli.cli.options import (
    ErrorOptions,
    GeneralOptions,
    SelectionOptions,
    Shards,
    Text,
    Texts,
    changed_options,
    grouped,
    library_word,
    panel,
)
from wdscli.cli.output import Cell, Out, facts, is_plain, plural, tab_lines
from wdscli.errors import UsageError
from wdscli.look.listing import Listing, LsReport, MemberPage, Page
from wdscli.look.listing import ls as open_listing
from wdscli.model import to_bytes, to_text
from wdscli.samples import split_name
from wdscli.shown import shown
from wdscli.tar import KIND_MASK, KIND_NAMES, REGULAR
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.summary import FieldSizes, Summary

Row = tuple[bytes | int, ...]

_show = panel("Listing")
_BARS = "·▁▂▃▄▅▆▇█"
_COUNTS = "shards samples members bytes=size_bytes payload_bytes overhead_bytes repeated_keys"
_SIZES = "count=occurrences min=smallest median median_is_exact=is_exact max=largest total histogram"
_FIELD_HEADER = ("field", "count", "share", "min", "median", "max", "total", "sizes (log)")


@_show("""
    -l, --long  Print more columns. Samples: shard, offset of the first header, size of each field. Members: shard,
        offset of the payload, kind, field.
    --members  List members: name, size.
    --by-shard  List shards. Columns: samples, members, size, payload size, mean payload of a sample.
    --summary  Print totals, sizes by field, and balance of shards. Also overhead and repeated keys.
    exact: --bytes  Now the default in a pipe.
    """)
class ShowOptions(NamedTuple):
    """What is listed."""

    long: bool = False
    members: bool = False
    by_shard: bool = False
    summary: bool = False
    exact: bool = False


@panel("Table")("""
    --to FILE  Write the list as a table: .csv, .tsv or .parquet. A row for each sample: key, shard, index in the
        shard, offset, bytes, size.EXT for each field. csv alone writes to standard output, parquet:FILE to a file of
        any name.
    looked_into: --with EXT,...  With --to: add values of JSON and text fields. Of JSON the values at the top, each in
        a column. Repeatable.
    --force  Replace an existing table.
    """)
class TableOptions(NamedTuple):
    """A table of all samples."""

    to: Text = None
    looked_into: Texts = None
    force: bool = False


@grouped
def ls(
    *,
    shards: Shards,
    show: ShowOptions,
    table: TableOptions,
    selection: SelectionOptions,
    general: GeneralOptions,
    errors: ErrorOptions,
) -> None:
    """List samples, members or shards, or print a summary.

    Prints a line per sample (key, fields, size) as soon as it is read: columns on a terminal, TAB-separated in a pipe.
    On a terminal sizes are rounded; in a pipe and with --json they are in bytes.

    Examples:

        wds ls train-000000.tar | head
        wds ls --members -l 'train-{000000..000009}.tar'
        wds ls --summary s3://bucket/train/
        wds ls --where 'json.width >= 512 and size.jpg < 1e6' shards/
        wds ls --to train.parquet --with json,cls shards/
    """
    if show.members + show.by_shard + show.summary > 1:
        raise UsageError(
            "--members, --by-shard and --summary are three different lists", hint="choose one of them"
        )
    if show.long and (show.by_shard or show.summary):
        raise UsageError("-l is for samples and members", hint="leave it out, or --by-shard and --summary")
    _check_table(table, show)
    out = Out.of(general)
    form, address = (None, "-") if table.to is None else parse_form(table.to)
    prints_rows = not show.summary and address in (None, "-")
    found = open_listing(
        shards,
        selection=selection.parse(),
        on_error=library_word(errors.on_error),
        trust_addresses=general.trust_addresses,
        progress=out.progress(rows=prints_rows),
    )
    if form is not None:
        _write_table(out, found, table, form, address or "-")
    elif show.summary:
        _print_summary(out, found, show.exact)
    elif show.by_shard:
        _print_shards(out, found, show.exact)
    elif show.members:
        _print_members(out, found, show)
    else:
        _print_samples(out, found, show)
    _print_remarks(out, found.report(), skips=errors.on_error == "skip")


def _check_table(table: TableOptions, show: ShowOptions) -> None:
    """Raise UsageError for options that exclude each other."""
    if table.to is None:
        if given := changed_options(table):
            needing = given[0].replace("--looked-into", "--with")
            raise UsageError(f"{needing} needs --to", hint="--to csv writes to standard output")
        return
    if parse_form(table.to)[0] not in ("csv", "tsv", "parquet"):
        raise UsageError(f"--to {table.to}: a list is csv, tsv or parquet", hint="--json prints JSON Lines")
    if any(show):
        raise UsageError(
            "a table has a row per sample, with sizes in bytes",
            hint="leave out -l, --members, --by-shard and --summary",
        )


def _write_table(out: Out, found: Listing, table: TableOptions, form: str, address: str) -> None:
    """Write the list as a table, and print its size."""
    from wdscli.cli.files import write_file
    from wdscli.look.table import listing_table

    if out.json and address == "-":
        raise UsageError(
            "--json and the table would both be on standard output", hint="give the table a name"
        )
    fields = [word.strip() for text in table.looked_into or () for word in text.split(",")]
    if not all(fields):
        raise UsageError("--with has an empty name", hint="--with json,txt")
    made = []

    def pieces() -> Iterator[bytes]:
        made.append(listing_table(found, form, fields))
        yield from made[0].pieces()

    size = write_file(out, address, pieces(), inputs=found.set.addresses, force=table.force, table=form)
    (written,) = made
    if written.not_utf8:
        how = "binary columns" if form == "parquet" else "bytes as they are"
        out.warn(f"text that is not UTF-8 is written as {how}: {', '.join(written.not_utf8)}")
    if out.json:
        out.object(
            {"file": shown(address), "samples": written.rows, "columns": written.columns, "bytes": size}
        )
    total = f"{plural(written.rows, 'sample')}, {plural(written.columns, 'column')}"
    if address != "-":
        out.done(f"wrote {total} to {shown(address)}, {human_size(size)}", size)


def _for_people(
    out: Out, exact: bool, pages: Iterable[list[Row]], sizes: Sequence[int]
) -> Iterable[list[Row]]:
    """The pages; on a terminal, unless ``exact``, with rounded sizes in the columns ``sizes``."""
    if exact or not out.terminal:
        return pages
    return (
        [tuple(_human(cell) if at in sizes else cell for at, cell in enumerate(row)) for row in page]
        for page in pages
    )


def _human(sizes: bytes | int) -> bytes:
    """
    >>> _human(1536), _human(b"10,2000")
    (b'1.54 kB', b'10 B, 2.00 kB')
    """
    each = [sizes] if isinstance(sizes, int) else sizes.split(b",")
    return ", ".join([human_size(int(one)) for one in each]).encode()


def _print_samples(out: Out, found: Listing, show: ShowOptions) -> None:
    """Print a row for each sample."""
    if out.json:
        for page in found.samples():
            for sample in _sample_objects(page, show.long):
                out.object(sample)
    elif show.long:
        header = ("key", "fields", "bytes", "shard", "offset", "bytes by field")
        rows = map(_long_sample_rows, found.samples())
        out.pages(header, _for_people(out, show.exact, rows, (2, 5)), right=(2, 4))
    else:
        rows = map(_sample_rows, found.samples())
        out.pages(("key", "fields", "bytes"), _for_people(out, show.exact, rows, (2,)), right=(2,))


def _sample_rows(page: Page) -> list[Row]:
    _, keys, firsts, fields, _, _, sizes, *_ = page.batch
    return [
        (key, b",".join(fields[first:end]), sum(sizes[first:end]))
        for key, first, end in zip(keys, firsts, firsts[1:], strict=False)
    ]


def _long_sample_rows(page: Page) -> list[Row]:
    batch, shard = page.batch, to_bytes(shown(page.shard))
    rows: list[Row] = []
    for sample, (first, end) in zip(_sample_rows(page), pairwise(batch.firsts), strict=True):
        sizes = b",".join([b"%d" % size for size in batch.sizes[first:end]])
        rows.append((*sample, shard, batch.starts[first], sizes))
    return rows


def _sample_objects(page: Page, long: bool) -> Iterator[dict[str, Any]]:
    batch, shard = page.batch, shown(page.shard)
    for key, place, (first, end) in zip(batch.keys, page.places, pairwise(batch.firsts), strict=True):
        sizes = batch.sizes[first:end]
        fields = list(map(to_text, batch.fields[first:end]))
        plain = {"key": to_text(key), "fields": fields, "bytes": sum(sizes)}
        if long:
            plain |= {"shard": shard, "index": place, "offset": batch.starts[first], "sizes": sizes}
        yield plain


def _print_members(out: Out, found: Listing, show: ShowOptions) -> None:
    """Print a row for each member."""
    if out.json:
        for page in found.members():
            for row in _long_member_rows(page):
                name, size, shard, offset, kind, field = map(_plain, row)
                plain: dict[str, Any] = {"name": name, "bytes": size}
                if show.long:
                    plain |= {"shard": shard, "offset": offset, "kind": kind, "field": field or None}
                out.object(plain)
    elif show.long:
        header = ("name", "bytes", "shard", "offset", "kind", "field")
        rows = map(_long_member_rows, found.members())
        out.pages(header, _for_people(out, show.exact, rows, (1,)), right=(1, 3))
    elif out.terminal:
        rows = map(_member_rows, found.members())
        out.pages(("name", "bytes"), _for_people(out, show.exact, rows, (1,)), right=(1,))
    else:
        for page in found.members():
            out.write(_member_lines(page))


class _Ends(dict[int, bytes]):
    """A cache of the ends of members' lines, by size."""

    def __missing__(self, size: int) -> bytes:
        if len(self) > 1 << 16:
            self.clear()
        end = self[size] = b"\t%d\n" % size
        return end


_ENDS = _Ends()


def _member_lines(page: MemberPage) -> bytes:
    """The same as :func:`tab_lines` of the rows, in half the time."""
    names, sizes = page.columns.names, page.columns.sizes
    parts = [b""] * (2 * len(names))
    parts[::2] = names
    parts[1::2] = map(_ENDS.__getitem__, sizes)
    text = b"".join(parts)
    return text if is_plain(text, len(names), 2) else tab_lines(_member_rows(page))


def _member_rows(page: MemberPage) -> list[Row]:
    return list(zip(page.columns.names, page.columns.sizes, strict=True))


def _long_member_rows(page: MemberPage) -> list[Row]:
    names, _, offsets, sizes, flags = page.columns
    shard = to_bytes(shown(page.shard))
    kinds = [KIND_NAMES[flag & KIND_MASK].encode() for flag in flags]
    fields = [_field(name, flag & KIND_MASK) for name, flag in zip(names, flags, strict=True)]
    return list(zip(names, sizes, [shard] * len(names), offsets, kinds, fields, strict=True))


def _field(name: bytes, kind: int) -> bytes:
    """The field of a member, or empty bytes for a member of no sample."""
    parts = split_name(name) if kind == REGULAR else None
    return b"" if parts is None else parts[1]


def _plain(cell: bytes | int) -> str | int:
    return to_text(cell) if isinstance(cell, bytes) else cell


def _print_shards(out: Out, found: Listing, exact: bool) -> None:
    """Print a row for each shard."""
    names = ("shard", "samples", "members", "bytes", "payload_bytes", "mean_sample_bytes")
    header = ("shard", "samples", "members", "bytes", "payload", "mean sample")
    rows: Iterator[tuple[Cell, ...]] = (
        (*one._replace(shard=shown(one.shard)), round(one.payload_bytes / one.samples) if one.samples else 0)
        for one in found.shards()
    )
    if out.terminal and not (out.json or exact):
        rows = ((*row[:3], *(human_size(int(size)) for size in row[3:])) for row in rows)
    out.listing(names if out.json else header, rows, right=range(1, 6))


def _print_remarks(out: Out, report: LsReport, *, skips: bool) -> None:
    """Print warnings after the listing. Raises InputNotFoundError if shards are missing, unless ``skips``."""
    for remark in report.remarks:
        out.warn(remark)
    odd = {kind: count for kind, count in report.ignored.items() if kind in KIND_NAMES[REGULAR + 2 :]}
    if odd:
        count = plural(sum(odd.values()), "member")
        out.warn(f"{count} not allowed in samples: {_counts(odd)} (`wds verify` lists them)")
    kept = f", {plural(report.samples, 'sample')} selected" if report.samples else ""
    out.note(f"read {plural(report.shards, 'shard')}{kept}")
    if report.ignored:
        out.note(f"members that belong to no sample: {_counts(report.ignored)}")
    if report.dropped:
        out.note(f"samples left out: {_counts(report.dropped)}")
    if report.missing:
        from wdscli.shards.inputs import missing_error, say_missing

        if not skips:
            raise missing_error(report.missing)
        out.warn(say_missing(report.missing))


def _counts(found: dict[str, int]) -> str:
    """
    >>> _counts({"where": 12, "keys": 3})
    '3 keys, 12 where'
    """
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


def _print_summary(out: Out, found: Listing, exact: bool) -> None:
    """Print facts and fields, or one JSON object."""
    from wdscli.look.summary import summarize

    summary = summarize(found)
    if out.json:
        out.object(_summary_object(summary))
        return
    if out.terminal and not exact:
        for name, value in _human_facts(summary):
            out.line(f"{name:<13}{value}")
    else:
        out.rows(("fact", "value"), _plain_facts(summary))
    if summary.fields:
        size = human_size if out.terminal and not exact else str
        out.write(b"\n")
        rows = [_field_row(field, summary.samples, size) for field in summary.fields]
        out.table(_FIELD_HEADER, rows, right=range(1, 7))


def _sparkline(histogram: list[int]) -> str:
    """
    >>> _sparkline([1, 0, 4, 8])
    '▁·▄█'
    """
    most = max(histogram)
    return "".join(_BARS[-(-count * 8 // most)] for count in histogram)


def _field_row(field: "FieldSizes", samples: int, size: Any) -> list[Cell]:
    share = f"{100 * field.occurrences / samples:.1f}%" if samples else ""
    median = size(field.median) if field.is_exact else "~" + size(field.median)
    return [
        field.field,
        field.occurrences,
        share,
        size(field.smallest),
        median,
        size(field.largest),
        size(field.total),
        _sparkline(field.histogram),
    ]


def _plain_facts(summary: "Summary") -> Iterator[tuple[str, Cell]]:
    for name, count in facts(summary, _COUNTS).items():
        yield name.replace("_", " "), count
    if summary.balance is not None:
        names = ("fewest samples in a shard", "most samples in a shard", "smallest shard", "largest shard")
        yield from zip(names, summary.balance, strict=True)
    for reason, count in sorted(summary.report.ignored.items()):
        yield f"ignored {reason}", count
    for reason, count in sorted(summary.report.dropped.items()):
        yield f"left out {reason}", count
    if summary.report.broken:
        yield "broken shards", _broken_shards(summary)


def _human_facts(summary: "Summary") -> Iterator[tuple[str, str]]:
    samples, members, report = summary.samples, summary.members, summary.report
    share = 100 * summary.overhead_bytes / summary.size_bytes if summary.size_bytes else 0.0
    overhead = f"{human_size(summary.overhead_bytes)} of headers and padding ({share:.1f}%)"
    yield "samples", f"{samples:,}"
    yield "members", f"{members:,}"
    yield "bytes", f"{human_size(summary.size_bytes)}, {overhead}"
    yield "shards", f"{summary.shards:,}{_balance_text(summary)}"
    if samples:
        mean = human_size(summary.payload_bytes / samples)
        yield "mean sample", f"{mean}, {members / samples:.3g} members"
    count = "1 key is" if summary.repeated_keys == 1 else f"{summary.repeated_keys:,} keys are"
    more = f"{count} repeated: `wds verify` lists them"
    yield "keys", more if summary.repeated_keys else "all different"
    if report.ignored:
        yield "ignored", f"members that belong to no sample: {_counts(report.ignored)}"
    if report.dropped:
        yield "left out", f"samples: {_counts(report.dropped)}"
    if report.broken:
        yield "damaged", f"{_broken_shards(summary)} shards; their undamaged samples are counted"


def _broken_shards(summary: "Summary") -> int:
    """Number of damaged shards; one may have several errors."""
    return len({error.shard for error in summary.report.broken})


def _balance_text(summary: "Summary") -> str:
    balance = summary.balance
    if balance is None or summary.shards == 1:
        return ""
    samples = f"{balance.fewest_samples:,} to {balance.most_samples:,} samples"
    sizes = f"{human_size(balance.smallest_bytes)} to {human_size(balance.largest_bytes)}"
    return f", of {samples} and {sizes} each"


def _summary_object(summary: "Summary") -> dict[str, Any]:
    """The summary for JSON; all sizes in bytes."""
    balance, report = summary.balance, summary.report
    return {
        **facts(summary, _COUNTS),
        "balance": None if balance is None else balance._asdict(),
        "fields": {field.field: facts(field, _SIZES) for field in summary.fields},
        **facts(report, "ignored dropped"),
        "broken": [str(error) for error in report.broken],
    }
