"""``wds cat``: parse the options, and write a tar, raw payloads, files, JSON Lines or a table."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

from wdscli.cli.options import (
    Column,
    GeneralOptions,
    InputOptions,
    OnError,
    OutputOptions,
    Shards,
    TaskOptions,
    Text,
    changed_options,
    decode_limit,
    grouped,
    library_word,
    panel,
)
from wdscli.cli.output import FileTarget, Out, by_reason, escaped_json, facts, parse_form, plural, write_file
from wdscli.cli.reordering import print_losses, read_request
from wdscli.errors import UsageError
from wdscli.progress import QUIET, Progress
from wdscli.shown import shown
from wdscli.storage.patterns import NAME
from wdscli.text import to_bytes
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.picking import Part, SampleReader
    from wdscli.plan.request import Request

_PLAIN = re.compile(r"[^*?\[,]+")
"""Matches the name of one field, without wildcards or commas."""
_TO_STDOUT = OutputOptions("-")
_MEANT = {"keys", "not-keys", "where", "sample", "slice"}
"""Reasons for samples that the user left out on purpose."""


@panel("Other formats than tar")("""
    --to FILE|FOLDER/  Write a table, or files, instead of a tar. FILE ends in .parquet, .csv, .tsv (a row for each
        sample: key and fields) or .jsonl (a line of JSON for each sample). FOLDER/ gets a file for each member.
        A format alone (raw, jsonl, csv or tsv) goes to standard output. The format raw writes the payloads of the
        field in --fields. With csv:FILE, parquet:FILE, tsv:FILE or jsonl:FILE, the file can have any name.
    --base64  With --to: write fields that are not text in base 64. Without this option, .jsonl has only the sizes of
        these fields. Parquet needs no base 64.
    """)
@panel("Output")("""
    --link  With {name} in OUT: hard-link unchanged shards instead of copying them. A link and its original are one
        file. Shards on another disc are copied; -v lists them.
    +--resume  With {name} in OUT: continue an interrupted run. Finished shards are kept. For a folder of this machine,
        the interrupted run also needs this option.
    """)
class CatOptions(NamedTuple):
    """The output's format, and which samples are read."""

    link: bool = False
    resume: bool = False
    to: Text = None
    base64: bool = False
    inputs: Annotated[InputOptions, "without report"] = InputOptions()
    column: Column = None
    on_error: OnError = "error"


class CatForm(NamedTuple):
    """The meaning of ``--to``. ``kind`` is the format; it is None for a tar. ``address`` is the output, and
    ``max_decoded`` limits decoding, in bytes. Raw payloads have a ``field``, and a ``key`` if only one sample is
    written."""

    kind: str | None
    address: str
    max_decoded: int
    base64: bool = False
    field: str | None = None
    key: str | None = None

    @property
    def is_table(self) -> bool:
        return self.kind in ("csv", "tsv", "parquet")

    @classmethod
    def parse(cls, form: CatOptions, output: str) -> "tuple[CatForm, InputOptions]":
        """Return the parsed options, and the remaining input options. For raw payloads, the field is taken out of
        the selection, and so is a single key without wildcards. Raises UsageError for options that exclude each
        other."""
        selection = form.inputs.selection
        kind, address = (None, None) if form.to is None else parse_form(form.to)
        if address is not None and output != "-":
            raise UsageError("--to NAME and -o exclude each other", hint="choose one of them")
        if form.link and NAME not in output:
            raise UsageError("--link works only for whole shards", hint=f"-o 'out/{NAME}.tar' --link")
        if form.base64 and kind not in ("jsonl", "csv", "tsv"):
            raise UsageError("--base64 needs --to with jsonl, csv or tsv", hint="--to captions.csv --base64")
        field = key = None
        if kind == "raw":
            fields = selection.fields or []
            if len(fields) != 1 or not _PLAIN.fullmatch(fields[0]):
                raise UsageError("--to raw writes one field", hint="--to raw --fields jpg")
            field, selection = fields[0].removeprefix("."), selection._replace(fields=None)
            if len(selection.keys or ()) == 1 and not set("*?[") & set((selection.keys or [""])[0]):
                [key], selection = selection.keys or [], selection._replace(keys=None)
        what = cls(kind, address or output, decode_limit(), form.base64, field, key)
        return what, form.inputs._replace(selection=selection)


@grouped
def cat(
    *,
    shards: Shards,
    output: OutputOptions = _TO_STDOUT,
    work: TaskOptions,
    form: CatOptions,
    general: GeneralOptions,
) -> None:
    """Write the selected samples as one tar, in input order.

    The tar goes to standard output, or to -o OUT with an index and a manifest. With {name} in OUT, each shard is copied
    as a whole and keeps its name. --to writes a table or files instead. -o NAME.json writes a view, which copies no
    bytes.

    Examples:

        wds cat 'train-{000000..000009}.tar' -o all.tar
        wds cat shards/ -o 'packed/{name}.tar.zst'
        wds cat --keys 'n01/*' --limit 100 shards/ | tar tv
        wds cat --to raw --fields jpg --keys n01/img7 shards/ > img7.jpg
        wds cat --to jsonl shards/ | jq .fields.json.caption
        wds cat --to captions.tsv --fields txt,cls shards/
        wds cat --to unpacked/ shards/
    """
    what, inputs = CatForm.parse(form, output.output)
    if what.kind is not None:
        _check_tar_options(form, output, work, inputs)
    out = Out.of(general, "" if what.kind == "dir" or output.dry_run else what.address)
    if what.kind is not None or NAME not in output.output:
        _refuse_options_of_each(work, form)
    on_error = library_word(form.on_error)
    request = read_request(
        shards, output, inputs, general, column=form.column, on_error=on_error, **work._asdict()
    )
    if what.kind is None:
        _write_tar(out, request, form, output.dry_run)
    else:
        _write_other(out, request, what, output)


def _refuse_options_of_each(work: TaskOptions, form: CatOptions) -> None:
    """Raise UsageError for an option that needs ``{name}`` in the output."""
    only_each = [*(["-j"] if work.jobs is not None else []), *(["--resume"] if form.resume else [])]
    if only_each:
        raise UsageError(
            f"{only_each[0]} works only if each shard is copied to its own output",
            hint=f"-o 'out/{NAME}.tar' copies each shard",
        )


def _write_other(out: Out, request: "Request", what: CatForm, output: OutputOptions) -> None:
    """Write files, a table, payloads or JSON Lines, and print what was written."""
    from wdscli.look.picking import SampleReader
    from wdscli.look.unpack import unpack

    progress, is_folder = out.progress(), what.kind == "dir"
    picker = SampleReader(
        request,
        writes_names=is_folder,
        counts_later=what.field is not None,
        part=_part(what),
        progress=progress,
    )
    picker.start("reading")
    inputs = picker.set.addresses
    counts: dict[str, int] = {}
    if is_folder:
        files, size = unpack(picker, what.address, force=output.force)
        counts = {"files": files, "bytes": size}
    else:
        pieces = _pieces(request, picker, what, progress)
        if out.terminal and what.address == "-" and what.kind == "raw":
            pieces = _checked_text(pieces)
        if out.terminal and what.address == "-" and what.kind == "jsonl":
            pieces = map(escaped_json, pieces)
        target = FileTarget(what.address, what.kind if what.is_table else None, output.force, output.fsync)
        counts["bytes"] = write_file(out, target, pieces, inputs)
    progress.finish()
    out.note(f"in: {plural(len(inputs), 'shard')}, {picker.bytes_in} bytes")
    _print_losses(out, picker.dropped, picker.ignored)
    if out.json:
        plain = {"operation": "cat", "output": shown(what.address), "samples": picker.samples, **counts}
        out.object({**plain, **facts(picker, "bytes_in dropped ignored")})
    if what.address != "-":
        into = f" into {plural(counts['files'], 'file')}" if is_folder else ""
        total = f"{'unpacked' if is_folder else 'wrote'} {plural(picker.samples, 'sample')}{into}"
        out.done(f"{total}, {human_size(counts['bytes'])}", counts["bytes"])


def _pieces(request: "Request", picker: "SampleReader", what: CatForm, progress: Progress) -> Iterator[bytes]:
    """Yield the bytes of a table, of payloads, or of JSON Lines."""
    from wdscli.look import unpack

    if what.is_table:
        return _table(request, picker, what, progress)
    if what.field is not None:
        return unpack.payloads(picker, what.field, what.key)
    return unpack.json_lines(picker, base64=what.base64, max_decoded=what.max_decoded)


def _checked_text(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces. Raises UsageError before the first one that a terminal cannot show."""
    from wdscli.look.unpack import guessed_text

    for piece in pieces:
        if piece and not guessed_text(piece):
            hint = "redirect it: wds cat ... > FILE; or show it: wds ls --show"
            raise UsageError("cannot write bytes that are not text to a terminal", hint=hint)
        yield piece


def _part(what: CatForm) -> "Part | None":
    """Return the part of each sample that is read: one field, or the text fields. None means all fields."""
    from wdscli.look.picking import Part
    from wdscli.look.unpack import text_form

    if what.field is not None:
        return Part(to_bytes(what.field).__eq__, None if what.key is None else to_bytes(what.key))
    is_text = what.kind in ("jsonl", "csv", "tsv") and not what.base64
    return Part(text_form) if is_text else None


def _write_tar(out: Out, request: "Request", form: CatOptions, dry_run: bool) -> None:
    """Write one archive, or one archive for each shard, and print the totals."""
    from wdscli.ops.cat import cat as write
    from wdscli.shards.view import is_view

    settings = request.settings._replace(links=form.link)
    request = request._replace(settings=settings, resume=form.resume)
    report = write(request, dry_run=dry_run, progress=out.progress())
    written_shards = None if report.manifest is None else report.manifest.shards
    if out.json:
        plain = {
            "operation": "cat",
            **facts(report, "samples members"),
            **({} if written_shards is None else {"shards": len(written_shards)}),
            **facts(report, "bytes_in bytes=bytes_out dropped ignored"),
        }
        if report.manifest is not None:
            plain["fingerprint"] = report.manifest.fingerprint
        out.object(plain)
    out.note(f"in: {report.bytes_in} bytes; out: {plural(report.members, 'member')}")
    if moved := [shard.size_bytes for shard in written_shards or () if shard.is_copy]:
        how = "linked" if request.settings.links else "moved by the store"
        out.note(f"{how}: {sum(moved)} bytes; copied by this command: {report.bytes_in - sum(moved)} bytes")
    if report.kept:
        out.summary(f"kept {plural(report.kept, 'shard')} of an earlier run")
    _print_losses(out, report.dropped, report.ignored)
    if request.output != "-" or dry_run:
        verb = "would write" if dry_run else "wrote"
        has_many = written_shards is not None and (NAME in request.output or is_view(request.output))
        many = f" in {plural(len(written_shards or ()), 'shard')}" if has_many else ""
        total = f"{verb} {plural(report.samples, 'sample')}{many}, {human_size(report.bytes_out)}"
        if is_view(request.output):
            total, verb = f"{verb} a view of {total.removeprefix(verb + ' ')}", ""
        out.done(total, 0 if is_view(request.output) else report.bytes_out, dry_run=dry_run)


def _table(request: "Request", picker: "SampleReader", what: CatForm, progress: Progress) -> Iterator[bytes]:
    """Yield the pieces of a table of payloads. If the shards can be read twice, their headers give the columns."""
    from wdscli.look.listing import ls
    from wdscli.look.table import PayloadCells, are_read_once, payload_schema, payload_table

    how, schema = PayloadCells(what.kind or "", what.base64, what.max_decoded), None
    if not are_read_once(picker.set):
        listing = ls(
            request.inputs,
            selection=request.selection,
            trust_addresses=request.trust_addresses,
            on_error=request.on_error,
            # Skipped samples are reported later, when payloads are read.
            progress=progress if request.on_error == "stop" else QUIET,
        )
        schema = payload_schema(listing, how)
    picker.start("reading")
    yield from payload_table(picker, how, schema)


def _check_tar_options(
    form: CatOptions, output: OutputOptions, work: TaskOptions, inputs: InputOptions
) -> None:
    """Raise UsageError for options that only a tar uses."""
    instead = f"--to {form.to}"
    tar_options = changed_options(output._replace(force=False, fsync=False))
    tar_options += changed_options(inputs.duplicates) + changed_options(work._replace(jobs=None))
    tar_options += ["--column"] if form.column else []
    if instead.endswith("/") and output.fsync:
        tar_options.append("--fsync")
    if tar_options:
        raise UsageError(
            f"{instead} cannot be combined with {tar_options[0]}",
            hint=f"leave {tar_options[0]} out; it works only for tar output",
        )


def _print_losses(out: Out, dropped: dict[str, int], ignored: dict[str, int]) -> None:
    """Print the counts of samples and members that were not written. With -v, also count what the selection left
    out."""
    print_losses(out, {reason: count for reason, count in dropped.items() if reason not in _MEANT}, {})
    if dropped:
        out.note(f"not selected: {by_reason(dropped)}")
    print_losses(out, {}, ignored)
