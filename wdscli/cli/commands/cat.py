"""``wds cat``: options in; a tar, raw payloads, files, JSON Lines or a table out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from wdscli.cli.files import write_file
from wdscli.cli.options import (
    DecodeOptions,
    ErrorOptions,
    GeneralOptions,
    InputOptions,
    OutputOptions,
    Shards,
    TaskOptions,
    Text,
    changed_options,
    grouped,
    panel,
)
from wdscli.cli.output import Out, by_reason, facts, plural
from wdscli.cli.reordering import print_losses, read_request
from wdscli.errors import UsageError
from wdscli.model import to_bytes
from wdscli.progress import QUIET, Progress
from wdscli.shown import shown
from wdscli.storage.patterns import NAME
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.picking import Part, Picker
    from wdscli.plan.request import Request

_instead = panel("Other formats than tar")
_TO_STDOUT = OutputOptions("-")
_MEANT = {"keys", "not-keys", "where", "sample", "slice"}
"""Why samples are left out that a selection was meant to leave out."""


@_instead("""
    --field FIELD  Write the payloads of one field, one after the other.
    --key KEY  With --field: only of this sample.
    --to-dir DIR  Write each member to a file below DIR.
    --to-jsonl  Write a line of JSON per sample: text fields as text, of other fields the size.
    --to-parquet FILE  Write a Parquet file, one row per sample: the key, text fields as strings, other
        payloads unchanged.
    --to-tsv FILE  Write TAB-separated values, one row per sample: the key, and text fields.
    --base64  With --to-jsonl and --to-tsv: other payloads in base 64.
    """)
@panel("Output")("""
    --preserve  Keep headers unchanged: modes, owners, times, pax records. Default: the canonical form.
    """)
class FormOptions(NamedTuple):
    """In which form samples leave their shards."""

    preserve: bool = False
    field: Text = None
    key: Text = None
    to_dir: Text = None
    to_jsonl: bool = False
    to_parquet: Text = None
    to_tsv: Text = None
    base64: bool = False
    decoding: DecodeOptions = DecodeOptions()

    @property
    def others(self) -> list[str]:
        """The options that ask for something else than a tar."""
        return [name for name in changed_options(self) if name == "--field" or name.startswith("--to-")]

    @property
    def own_output(self) -> str | None:
        """The option that says itself where its output goes."""
        return next((name for name in self.others if name in ("--to-dir", "--to-parquet", "--to-tsv")), None)

    def check(self) -> None:
        """Raise UsageError for options that make no sense together."""
        others = self.others
        if len(others) > 1:
            raise UsageError(f"{others[0]} and {others[1]} exclude each other", hint="choose one of them")
        if self.key is not None and self.field is None:
            raise UsageError("--key needs --field", hint="for whole samples: --keys KEY")
        if self.base64 and not (self.to_jsonl or self.to_tsv):
            raise UsageError("--base64 needs --to-jsonl or --to-tsv")


@grouped
def cat(
    *,
    shards: Shards,
    output: OutputOptions = _TO_STDOUT,
    work: TaskOptions,
    form: FormOptions,
    inputs: InputOptions,
    errors: ErrorOptions,
    general: GeneralOptions,
) -> None:
    """Write the selected samples as one tar, in input order.

    The tar goes to standard output, or to -o OUT with its index and manifest. With {name} in OUT each shard is
    copied whole, under its own name. Samples can also be written as raw payloads, as files, as JSON Lines, or as a
    table.

    Examples:

        wds cat 'train-{000000..000009}.tar' -o all.tar
        wds cat shards/ -o 'packed/{name}.tar.zst'
        wds cat --keys 'n01/*' --limit 100 shards/ | tar tv
        wds cat --field jpg --key n01/img7 shards/ > img7.jpg
        wds cat --to-jsonl shards/ | jq .fields.json.caption
        wds cat --to-tsv captions.tsv --fields txt,cls shards/
        wds cat --to-dir unpacked shards/
    """
    form.check()
    if form.own_output and output.output != "-":
        raise UsageError(f"{form.own_output} and -o exclude each other", hint="choose one of them")
    others = form.others
    if others:
        _check_tar_options(others[0], output, work, inputs, form.preserve)
    limited = form.to_jsonl or form.to_parquet is not None or form.to_tsv is not None
    limit = form.decoding.limit(None if limited else "--to-jsonl, --to-parquet or --to-tsv")
    file = next(one for one in (form.to_parquet, form.to_tsv, output.output) if one is not None)
    out = Out.of(general, "" if form.to_dir or output.dry_run else file)
    progress = out.progress()
    if work.jobs is not None and (others or NAME not in output.output):
        raise UsageError(
            "-j is for shards that are copied one by one", hint=f"-o 'out/{NAME}.tar' copies each shard"
        )
    request = read_request(shards, output, inputs, general, **errors._asdict(), **work._asdict())
    if not others:
        _write_tar(out, request, form.preserve, output.dry_run)
        return
    from wdscli.look import unpack
    from wdscli.look.picking import Picker

    picker = Picker(
        request,
        writes_names=form.to_dir is not None,
        counts_later=form.field is not None,
        part=_part(form),
        progress=progress,
    )
    picker.start("reading")
    counts: dict[str, int] = {}
    if form.to_dir is not None:
        done = unpack.unpack(picker, form.to_dir, force=output.force)
        counts = {"files": done.files, "bytes": done.size_bytes}
    else:
        kind = "parquet" if form.to_parquet is not None else "tsv" if form.to_tsv is not None else None
        if kind is not None:
            pieces = _table(request, picker, kind, form.base64, limit, progress)
        elif form.field is not None:
            pieces = unpack.payloads(picker, form.field, form.key)
        else:
            pieces = unpack.json_lines(picker, base64=form.base64, max_decoded=limit)
        read, force, fsync = picker.set.addresses, output.force, output.fsync
        counts["bytes"] = write_file(out, file, pieces, inputs=read, force=force, fsync=fsync, table=kind)
    progress.finish()
    out.note(f"in: {plural(len(picker.set.addresses), 'shard')}, {picker.bytes_in} bytes")
    _print_losses(out, picker.dropped, picker.ignored)
    where = file if form.to_dir is None else form.to_dir
    if out.json:
        plain = {"operation": "cat", "output": shown(where), "samples": picker.samples, **counts}
        out.object({**plain, **facts(picker, "bytes_in dropped ignored")})
    if where != "-":
        total = plural(picker.samples, "sample")
        if form.to_dir is not None:
            total += f" into {plural(counts['files'], 'file')}"
        verb = "wrote" if form.to_dir is None else "unpacked"
        out.done(f"{verb} {total}, {human_size(counts['bytes'])}", counts["bytes"])


def _part(form: FormOptions) -> "Part | None":
    """What is read of each sample where it is not all: one field, or text."""
    from wdscli.look.picking import Part
    from wdscli.look.unpack import kind_of

    if form.field is not None:
        return Part(to_bytes(form.field).__eq__, None if form.key is None else to_bytes(form.key))
    is_text = (form.to_jsonl or form.to_tsv is not None) and not form.base64
    return Part(kind_of) if is_text else None


def _write_tar(out: Out, request: "Request", preserve: bool, dry_run: bool) -> None:
    """One archive, or one for each shard."""
    from wdscli.ops.cat import cat as write

    report = write(request, preserve=preserve, dry_run=dry_run, progress=out.progress())
    made = None if report.manifest is None else report.manifest.shards
    if out.json:
        plain = {
            "operation": "cat",
            **facts(report, "samples members"),
            **({} if made is None else {"shards": len(made)}),
            **facts(report, "bytes_in bytes=bytes_out dropped ignored"),
        }
        if report.manifest is not None:
            plain["fingerprint"] = report.manifest.fingerprint
        out.object(plain)
    out.note(f"in: {report.bytes_in} bytes; out: {plural(report.members, 'member')}")
    _print_losses(out, report.dropped, report.ignored)
    if request.output != "-" or dry_run:
        verb = "would write" if dry_run else "wrote"
        many = f" in {plural(len(made), 'shard')}" if made is not None and NAME in request.output else ""
        total = f"{verb} {plural(report.samples, 'sample')}{many}, {human_size(report.bytes_out)}"
        out.done(total, report.bytes_out, dry_run=dry_run)


def _table(
    request: "Request", picker: "Picker", kind: str, base64: bool, max_decoded: int, progress: Progress
) -> Iterator[bytes]:
    """Payloads as a table. Its columns come from the headers of all shards, unless these are read only once."""
    from wdscli.look.listing import ls
    from wdscli.look.table import Payloads, are_read_once, payload_schema, payload_table

    how, schema = Payloads(kind, base64, max_decoded), None
    if not are_read_once(picker.set):
        found = ls(
            request.inputs,
            selection=request.selection,
            trust_addresses=request.trust_addresses,
            on_error=request.on_error,
            # What is skipped is said when the payloads are read.
            progress=progress if request.on_error == "stop" else QUIET,
        )
        schema = payload_schema(found, how)
    picker.start("reading")
    yield from payload_table(picker, how, schema)


def _check_tar_options(
    instead: str, output: OutputOptions, work: TaskOptions, inputs: InputOptions, preserve: bool
) -> None:
    """Options that only a tar has a use for."""
    given = changed_options(output._replace(force=False, fsync=False))
    given += changed_options(inputs.duplicates) + changed_options(work._replace(jobs=None))
    if instead == "--to-dir" and output.fsync:
        given.append("--fsync")
    if preserve:
        given.append("--preserve")
    if given:
        raise UsageError(f"{instead} cannot be combined with {given[0]}", hint=f"{given[0]} is for a tar")


def _print_losses(out: Out, dropped: dict[str, int], ignored: dict[str, int]) -> None:
    """What was read and not written. Samples that a selection left out were meant to be; they are told with -v."""
    print_losses(out, {reason: count for reason, count in dropped.items() if reason not in _MEANT}, {})
    if dropped:
        out.note(f"not selected: {by_reason(dropped)}")
    print_losses(out, {}, ignored)
