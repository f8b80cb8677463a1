"""``wds ls``: parse the options, and print rows, JSON Lines, counts, samples or a summary.

Rows go to :class:`~wdscli.cli.output.Out` in pages. For a pipe, one call turns a whole page into bytes, because one
call per row would take longer than reading the row. A summary has two blocks: facts about the set, then a row for each
field. A terminal gets rounded numbers. A pipe gets facts as ``name TAB value`` with exact numbers, for scripts.
This module does not know how rows are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.cli.batch import BatchOptions, check_batch, print_batch
from wdscli.cli.cells import Cell, is_plain, tab_lines
from wdscli.cli.options import (
    GeneralOptions,
    OnError,
    SelectionOptions,
    Shards,
    Text,
    Texts,
    changed_options,
    grouped,
    library_word,
    panel,
)
from wdscli.cli.output import FileTarget, Out, facts, json_line, parse_form, plural, write_file
from wdscli.errors import UsageError, printable
from wdscli.look.listing import Listing, LsReport, Page
from wdscli.look.listing import ls as open_listing
from wdscli.samples import split_name
from wdscli.shown import shown
from wdscli.storage import base_name
from wdscli.tar import KIND_MASK, KIND_NAMES, REGULAR, Columns
from wdscli.text import to_bytes, to_text
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.summary import FieldSizes, Summary
    from wdscli.look.table import CountRow, FieldCounts
    from wdscli.look.unpack import ShownField

Row = tuple[bytes | int, ...]

_BARS = "·▁▂▃▄▅▆▇█"
_COUNTS = "shards samples members bytes=size_bytes payload_bytes overhead_bytes repeated_keys"
_SIZES = "count=occurrences min=smallest median median_is_exact=is_exact max=largest total histogram"
SHOWN_ROWS, SHOWN_CHARACTERS, BAR_CHARACTERS = 40, 50, 24
"""Limits for a table of counts on a terminal."""
_FIELD_HEADER = ("field", "count", "share", "min", "median", "max", "total", "sizes (log)")


@panel("Listing")("""
    -l, --long  Print more columns. Samples get the columns shard, offset of the first header, and size of each field.
        Members get the columns shard, offset of the payload, kind and field. Shards get the checksum in the manifest.
    --by  List samples, members or shards. Members have the columns name and size. Shards have the columns samples,
        members, size, payload size, and mean payload size of a sample.
    --summary  Print totals, the size of each field, the balance of shards, overhead and repeated keys.
    counted: --count FIELD  Count the values of a field, most frequent first. FIELD is a field (cls), a place in JSON
        (json.category) or an expression as in --where. More than 100 different numbers are shown as quantiles,
        unless FIELD is cls. Repeatable.
    --show  Show samples: texts, JSON, arrays, pictures. By default, this is the first sample; --sample, --limit and
        --slice choose others.
    """)
@panel("Table")("""
    --to FILE  Write the list as a table: .csv, .tsv or .parquet. The table has a row for each sample, with key, shard,
        index in the shard, offset, bytes, and size.EXT for each field. With --count, the table has a row for each
        value, with the columns field, value, name and count. If FILE is only the word csv, the table goes to standard
        output. With parquet:FILE, the file can have any name.
    --column FIELD,...  With --to: add values of fields, places (json.width) or expressions. Each value at the top level
        of JSON becomes a column. Repeatable.
    --force  Replace an existing table.
    """)
class ShowOptions(NamedTuple):
    """The options about the list and its table."""

    long: bool = False
    by: Literal["sample", "member", "shard"] = "sample"
    summary: bool = False
    counted: Texts = None
    show: bool = False
    to: Text = None
    column: Texts = None
    force: bool = False
    batch: BatchOptions = BatchOptions()

    @property
    def lists(self) -> list[str]:
        """The options that choose what is listed, as typed."""
        choices = {"--summary": self.summary, "--count": self.counted, "--show": self.show}
        by = [] if self.by == "sample" else [f"--by {self.by}"]
        return by + [name for name, value in choices.items() if value]

    @property
    def place(self) -> tuple[str, str]:
        """The table's format and its address. The format is empty if no table is written."""
        form, address = ("", None) if self.to is None else parse_form(self.to)
        return form, address or "-"


@grouped
def ls(
    *,
    shards: Shards,
    show: ShowOptions,
    selection: SelectionOptions,
    general: GeneralOptions,
    on_error: OnError = "error",
) -> None:
    """List samples, members or shards, count values, or show samples.

    Prints a line for each sample (key, fields, size) while it reads the shards. On a terminal, the columns are aligned
    and sizes are rounded. In a pipe, TABs separate the columns. In a pipe and with --json, sizes are in bytes.

    Examples:

        wds ls train-000000.tar | head
        wds ls --by member -l 'train-{000000..000009}.tar'
        wds ls --summary s3://bucket/train/
        wds ls --where 'json.width >= 512 and size.jpg < 1e6' shards/
        wds ls --count cls --count 'json.width / json.height' shards/
        wds ls --sample 3 --show shards/
        wds ls --to train.parquet --column json,cls shards/
    """
    _check_lists(show)
    out = Out.of(general)
    if show.show or show.batch.epoch is not None:
        print_few = _show_samples if show.show else partial(print_batch, show.batch)
        print_few(out, shards, selection, on_error, general.trust_addresses)
        return
    listing = open_listing(
        shards,
        selection=selection.parse(),
        on_error=library_word(on_error),
        trust_addresses=general.trust_addresses,
        progress=out.progress(rows=show.place[1] == "-" and not (show.summary or show.counted)),
    )
    _print_list(out, listing, show)
    _print_remarks(out, listing.report(), skips=on_error == "skip")


def _print_list(out: Out, listing: Listing, show: ShowOptions) -> None:
    """Write a table, or print counts, a summary, or a row for each shard, member or sample."""
    if show.to is not None:
        _write_table(out, listing, show)
    elif show.counted:
        _print_counts(out, listing, show.counted)
    elif show.summary:
        _print_summary(out, listing)
    elif show.by == "shard":
        _print_shards(out, listing, show)
    elif show.by == "member":
        _print_members(out, listing, show)
    else:
        _print_samples(out, listing, show)


def _check_lists(show: ShowOptions) -> None:
    """Raise UsageError for options that exclude each other."""
    check_batch(show.batch, changed_options(show._replace(batch=BatchOptions())))
    if len(show.lists) > 1:
        raise UsageError(f"{' and '.join(show.lists)} print different lists", hint="choose one of them")
    if show.long and show.lists not in ([], ["--by member"], ["--by shard"]):
        raise UsageError(
            "-l works only for lists of samples, members or shards", hint=f"leave out -l or {show.lists[0]}"
        )
    if show.to is None:
        if show.column or show.force:
            option = "--column" if show.column else "--force"
            raise UsageError(f"{option} needs --to", hint="add --to csv to print a table")
        return
    if show.place[0] not in ("csv", "tsv", "parquet"):
        raise UsageError(
            f"--to {show.to}: wds ls writes only csv, tsv or parquet", hint="use --json to print JSON Lines"
        )
    if show.counted and show.column:
        raise UsageError(
            "--column works only for a table with one row per sample", hint="leave out --column or --count"
        )
    list_options = ["-l"] * show.long + show.lists
    if list_options and list_options != ["--count"]:
        raise UsageError(
            "a table has one row per sample (with --count, per value); sizes are in bytes",
            hint=f"leave out {list_options[0]}",
        )


def _write_table(out: Out, listing: Listing, show: ShowOptions) -> None:
    """Write the list or counts as a table, and print its size."""
    from wdscli.look.table import count_table, listing_table
    from wdscli.selection.values import split_texts
    from wdscli.shards.tables import encoded

    (form, address), counted = show.place, show.counted
    if out.json and address == "-":
        raise UsageError(
            "--json and the table would both go to standard output", hint="give the table a file name"
        )
    fields = list(split_texts(show.column or (), "--column"))
    spools = []

    def pieces() -> Iterator[bytes]:
        spools.append(
            count_table(listing, form, counted) if counted else listing_table(listing, form, fields)
        )
        yield from encoded(form, spools[0].schema(), spools[0].chunks())

    size = write_file(out, FileTarget(address, form, show.force), pieces(), listing.set.addresses)
    (written,) = spools
    schema = written.schema()
    if not_utf8 := [column.name for column, kind in schema.items() if kind == "binary"]:
        how = "binary columns" if form == "parquet" else "bytes as they are"
        out.warn(f"text that is not UTF-8 is written as {how}: {', '.join(not_utf8)}")
    row = "row" if counted else "sample"
    if out.json:
        out.object({"file": shown(address), f"{row}s": written.rows, "columns": len(schema), "bytes": size})
    total = f"{plural(written.rows, row)}, {plural(len(schema), 'column')}"
    if address != "-":
        out.done(f"wrote {total} to {shown(address)}, {human_size(size)}", size)


def _for_people(out: Out, pages: Iterable[list[Row]], sizes: Sequence[int]) -> Iterable[list[Row]]:
    """Yield the pages. On a terminal, the sizes in the columns ``sizes`` are rounded."""
    if not out.terminal:
        return pages
    return (
        [tuple(_human(cell) if column in sizes else cell for column, cell in enumerate(row)) for row in page]
        for page in pages
    )


def _human(sizes: bytes | int) -> bytes:
    """
    >>> _human(1536), _human(b"10,2000")
    (b'1.54 kB', b'10 B, 2.00 kB')
    """
    each = [sizes] if isinstance(sizes, int) else sizes.split(b",")
    return ", ".join([human_size(int(size)) for size in each]).encode()


def _print_samples(out: Out, listing: Listing, show: ShowOptions) -> None:
    """Print a row for each sample."""
    if out.json:
        for page in listing.samples():
            for sample in _sample_objects(page, show.long):
                out.object(sample)
    elif show.long:
        header = ("key", "fields", "bytes", "shard", "offset", "bytes by field")
        rows = map(_long_sample_rows, listing.samples())
        out.pages(header, _for_people(out, rows, (2, 5)), right=(2, 4), droppable=(5, 4, 3))
    else:
        rows = map(_sample_rows, listing.samples())
        out.pages(("key", "fields", "bytes"), _for_people(out, rows, (2,)), right=(2,))


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


def _print_members(out: Out, listing: Listing, show: ShowOptions) -> None:
    """Print a row for each member."""
    if out.json:
        for address, columns in listing.members():
            for row in _long_member_rows(address, columns):
                name, size, shard, offset, kind, field = map(_plain, row)
                plain: dict[str, Any] = {"name": name, "bytes": size}
                if show.long:
                    plain |= {"shard": shard, "offset": offset, "kind": kind, "field": field or None}
                out.object(plain)
    elif show.long:
        header = ("name", "bytes", "shard", "offset", "kind", "field")
        rows = (_long_member_rows(shard, columns) for shard, columns in listing.members())
        out.pages(header, _for_people(out, rows, (1,)), right=(1, 3), droppable=(5, 4, 3, 2))
    elif out.terminal:
        rows = (_member_rows(columns) for _, columns in listing.members())
        out.pages(("name", "bytes"), _for_people(out, rows, (1,)), right=(1,))
    else:
        for _, columns in listing.members():
            out.write(_member_lines(columns))


class _Ends(dict[int, bytes]):
    """A cache from a member's size to the end of its line: a TAB, the size and a line break."""

    def __missing__(self, size: int) -> bytes:
        if len(self) > 1 << 16:
            self.clear()
        end = self[size] = b"\t%d\n" % size
        return end


_ENDS = _Ends()


def _member_lines(columns: Columns) -> bytes:
    """Make the same bytes as :func:`tab_lines`, in half the time."""
    names, sizes = columns.names, columns.sizes
    parts = [b""] * (2 * len(names))
    parts[::2] = names
    parts[1::2] = map(_ENDS.__getitem__, sizes)
    text = b"".join(parts)
    return text if is_plain(text, len(names), 2) else tab_lines(_member_rows(columns))


def _member_rows(columns: Columns) -> list[Row]:
    return list(zip(columns.names, columns.sizes, strict=True))


def _long_member_rows(address: str, columns: Columns) -> list[Row]:
    names, _, offsets, sizes, flags = columns
    shard = to_bytes(shown(address))
    kinds = [KIND_NAMES[flag & KIND_MASK].encode() for flag in flags]
    fields = [_field(name, flag & KIND_MASK) for name, flag in zip(names, flags, strict=True)]
    return list(zip(names, sizes, [shard] * len(names), offsets, kinds, fields, strict=True))


def _field(name: bytes, kind: int) -> bytes:
    """Return the field of a member. It is empty if the member belongs to no sample."""
    parts = split_name(name) if kind == REGULAR else None
    return b"" if parts is None else parts[1]


def _plain(cell: bytes | int) -> str | int:
    return to_text(cell) if isinstance(cell, bytes) else cell


def _print_shards(out: Out, listing: Listing, show: ShowOptions) -> None:
    """Print a row for each shard."""
    names = ["shard", "samples", "members", "bytes", "payload_bytes", "mean_sample_bytes"]
    header = ["shard", "samples", "members", "bytes", "payload", "mean sample"]
    rows: Iterator[tuple[Cell, ...]] = (
        (*row._replace(shard=shown(row.shard)), round(row.payload_bytes / row.samples) if row.samples else 0)
        for row in listing.shards()
    )
    if out.terminal and not out.json:
        rows = ((*row[:3], *(human_size(int(size)) for size in row[3:])) for row in rows)
    if show.long:
        checksums = _checksums(listing)
        names, header = [*names, "checksum"], [*header, "checksum"]
        rows = ((*row, checksums.get(base_name(str(row[0])), "")) for row in rows)
    out.listing(
        names if out.json else header, rows, right=range(1, 6), droppable=(6, 4, 5, 2)[not show.long :]
    )


def _checksums(listing: Listing) -> dict[str, str]:
    """Return the checksums in the manifest by the name of the shard."""
    from wdscli.shards.inputs import manifest_beside

    shards, manifest = listing.set, listing.set.manifest
    if manifest is None and (beside := manifest_beside(shards.addresses, shards.listings)) is not None:
        manifest = beside[1]
    return {base_name(shard.name): shard.checksum or "" for shard in manifest.shards} if manifest else {}


def _print_counts(out: Out, listing: Listing, fields: Sequence[str]) -> None:
    """Print a table for each field: all rows in a pipe, the first ones with bars on a terminal."""
    from wdscli.look.table import count

    for number, counted in enumerate(count(listing, fields)):
        if out.json:
            for row in counted.rows:
                out.object(
                    {"field": counted.field, "value": row.value, "name": row.name, "count": row.samples}
                )
            continue
        if number:
            out.write(b"\n")
        if counted.has_quantiles:
            text = _rounded if out.terminal else _value_text
            cells = [(row.name or "", text(row.value) or str(row.samples)) for row in counted.rows]
            out.table((counted.field, "value"), cells, right=(1,))
            continue
        header = [counted.field, *["name"] * counted.has_names, "count", "share"]
        lines = (_count_line(row, counted) for row in counted.rows)
        if not out.terminal:
            out.rows(header, chain([header], lines))
            continue
        first = list(islice(lines, SHOWN_ROWS))
        most = max([counted.missing, *(int(line[-2]) for line in first)])
        bars = [[_cut(line[0]), *line[1:], _bar(int(line[-2]) / most)] for line in first]
        share = len(header) - 1
        out.table([*header, ""], bars, right=(share - 1, share), droppable=(share + 1, share))
        if (rows_left := counted.distinct + bool(counted.missing) - len(first)) > 0:
            samples_left = counted.total - sum(int(line[-2]) for line in first)
            out.line(f"and {rows_left:,} more in {plural(samples_left, 'sample')} (a pipe gets all of them)")


def _count_line(row: "CountRow", counted: "FieldCounts") -> list[str]:
    """Return the cells for one row of counts."""
    share = f"{100 * (row.samples or 0) / counted.total:.1f}%"
    return [_value_text(row.value), *[row.name or ""] * counted.has_names, str(row.samples), share]


def _value_text(value: Any) -> str:
    """Return a JSON value as text. A string loses its quotes.

    >>> _value_text("a"), _value_text(0.1), _value_text([1, None]), _value_text(None)
    ('a', '0.1', '[1,null]', '')
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return "" if value is None else json_line(value).decode().rstrip()


def _rounded(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _value_text(value)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _bar(share: float) -> str:
    """
    >>> _bar(1.0), _bar(0.11)
    ('████████████████████████', '██▋')
    """
    eighths = max(1, round(share * 8 * BAR_CHARACTERS))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _show_samples(
    out: Out, shards: Sequence[str], selection: SelectionOptions, on_error: str, trusts: bool
) -> None:
    """Print samples with their contents, and small pictures on a terminal."""
    from wdscli.look.picking import SampleReader
    from wdscli.look.unpack import show
    from wdscli.plan.request import Request

    if out.json:
        raise UsageError("--show does not print JSON", hint="wds cat --to jsonl prints samples as JSON Lines")
    chosen = selection.parse()
    if selection.sample is None and selection.limit is None and selection.slice is None:
        chosen = chosen._replace(limit=1)
    request = Request(
        shards,
        "-",
        selection=chosen,
        on_error=library_word(on_error),
        allow_empty=True,
        trust_addresses=trusts,
    )
    progress = out.progress(rows=True)
    picker = SampleReader(request, writes_names=False, progress=progress)
    number = 0
    for number, (sample, fields) in enumerate(show(picker), 1):
        out.write(b"\n" if number > 1 else b"")
        out.line(f"{printable(to_text(sample.key))}  {shown(sample.shard)}, sample {sample.place:,}")
        _print_fields(out, fields)
    if not number:
        out.warn("no sample is selected")


def _print_fields(out: Out, fields: "Sequence[ShownField]") -> None:
    """Print a line for each field of a sample, or several for a long text, and its picture."""
    from wdscli.cli.pictures import draw

    width = max(len(field.field) for field in fields)
    for field in fields:
        first, *further_lines = [printable(line.expandtabs()) for line in field.text.splitlines()] or [""]
        head = f"  {printable(field.field):<{width}}  {human_size(field.size_bytes):>7}"
        out.line(head if further_lines else f"{head}  {first}".rstrip())
        for line in (first, *further_lines) if further_lines else ():
            out.line(f"    {line}")
        if field.picture:
            out.write(draw(field.picture))


def _print_remarks(out: Out, report: LsReport, *, skips: bool) -> None:
    """Print warnings after the listing. Raises InputNotFoundError if shards are missing, unless ``skips``."""
    for remark in report.remarks:
        out.warn(remark)
    odd = {kind: count for kind, count in report.ignored.items() if kind in KIND_NAMES[REGULAR + 2 :]}
    if odd:
        out.warn(f"members that are not regular files: {_counts(odd)} (`wds verify` lists them)")
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


def _counts(counts: dict[str, int]) -> str:
    """
    >>> _counts({"where": 12, "keys": 3})
    '3 keys, 12 where'
    """
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _print_summary(out: Out, listing: Listing) -> None:
    """Print facts and fields, or one JSON object."""
    from wdscli.look.summary import summarize

    summary = summarize(listing)
    manifest = listing.set.manifest
    view = None if manifest is None else manifest.view
    if out.json:
        sets = {} if view is None else {"ancestors": [ancestor._asdict() for ancestor in view.ancestors]}
        out.object({**_summary_object(summary), **sets})
        return
    lines = view.descent(manifest.name) if view is not None and manifest is not None else ()
    descent = [("descent", " <- ".join(line)) for line in lines]
    if out.terminal:
        for name, value in [*_human_facts(summary), *descent]:
            out.line(f"{name:<13}{value}")
    else:
        out.rows(("fact", "value"), [*_plain_facts(summary), *descent])
    if summary.fields:
        size = human_size if out.terminal else str
        out.write(b"\n")
        rows = [_field_row(field, summary.samples, size) for field in summary.fields]
        out.table(_FIELD_HEADER, rows, right=range(1, 7), droppable=(7, 3, 5, 2))


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
    repeated_text = f"{count} repeated: `wds verify` lists them"
    yield "keys", repeated_text if summary.repeated_keys else "all different"
    if report.ignored:
        yield "ignored", f"members that belong to no sample: {_counts(report.ignored)}"
    if report.dropped:
        yield "left out", f"samples: {_counts(report.dropped)}"
    if report.broken:
        yield "damaged", f"{_broken_shards(summary)} shards; their undamaged samples are counted"


def _broken_shards(summary: "Summary") -> int:
    """Return the number of damaged shards. A shard may have several errors."""
    return len({error.shard for error in summary.report.broken})


def _balance_text(summary: "Summary") -> str:
    balance = summary.balance
    if balance is None or summary.shards == 1:
        return ""
    samples = f"{balance.fewest_samples:,} to {balance.most_samples:,} samples"
    sizes = f"{human_size(balance.smallest_bytes)} to {human_size(balance.largest_bytes)}"
    return f", of {samples} and {sizes} each"


def _summary_object(summary: "Summary") -> dict[str, Any]:
    """Return the summary as an object for JSON. All sizes are in bytes."""
    balance, report = summary.balance, summary.report
    return {
        **facts(summary, _COUNTS),
        "balance": None if balance is None else balance._asdict(),
        "fields": {field.field: facts(field, _SIZES) for field in summary.fields},
        **facts(report, "ignored dropped"),
        "broken": [str(error) for error in report.broken],
    }
