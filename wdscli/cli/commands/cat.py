"""``wds cat``: options in; a tar, raw payloads, files or JSON Lines out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from wdscli.cli.made import by_reason, plural
from wdscli.cli.options import (
    AllowEmpty,
    CommonOptions,
    CutOptions,
    DuplicateOptions,
    ErrorOptions,
    MaxDecoded,
    Preserve,
    SelectionOptions,
    Shards,
    StreamOptions,
    TrustOptions,
    decoded_limit,
    grouped,
)
from wdscli.cli.output import Out
from wdscli.cli.requests import reorder_request
from wdscli.errors import UsageError
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.picking import Picker
    from wdscli.plan.request import Request
    from wdscli.progress import Progress

_INSTEAD = "Instead of a tar"


@grouped
def cat(
    *,
    shards: Shards,
    output: StreamOptions,
    preserve: Preserve = False,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="FIELD",
            help="The payloads of one field, one after the other.",
            rich_help_panel=_INSTEAD,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="With --field: of this sample alone.", rich_help_panel=_INSTEAD
        ),
    ] = None,
    to_dir: Annotated[
        str | None,
        typer.Option(
            "--to-dir", metavar="DIR", help="A file per member, below DIR.", rich_help_panel=_INSTEAD
        ),
    ] = None,
    to_jsonl: Annotated[
        bool,
        typer.Option(
            "--to-jsonl",
            help="A line of JSON per sample: text fields as text, the bytes of the others.",
            rich_help_panel=_INSTEAD,
        ),
    ] = False,
    base64: Annotated[
        bool,
        typer.Option(
            "--base64",
            help="With --to-jsonl: the payloads of the others in base 64.",
            rich_help_panel=_INSTEAD,
        ),
    ] = False,
    max_decoded: MaxDecoded = None,
    selection: SelectionOptions,
    allow_empty: AllowEmpty = False,
    duplicates: DuplicateOptions,
    errors: ErrorOptions,
    trust: TrustOptions,
    common: CommonOptions,
) -> None:
    """Write the selected samples as one tar, in input order.

    The tar goes to standard output, or to -o OUT with its index and manifest. Samples can also leave their
    shards: as raw payloads, as files, as JSON Lines.

    Examples:

        wds cat 'train-{000000..000009}.tar' -o all.tar
        wds cat --keys 'n01/*' --limit 100 shards/ | tar tv
        wds cat --field jpg --key n01/img7 shards/ > img7.jpg
        wds cat --to-jsonl shards/ | jq .fields.json.caption
        wds cat --to-dir unpacked shards/
    """
    _check(field, key, to_dir, to_jsonl, base64, output, duplicates, preserve)
    limit = decoded_limit(max_decoded, None if to_jsonl else "--to-jsonl")
    out = Out(common)
    progress = out.progress()
    request = reorder_request(
        shards,
        output,
        CutOptions(),
        selection,
        duplicates,
        errors,
        allow_empty=allow_empty,
        trust=trust,
    )
    if field is not None:
        _stream_field(out, request, progress, field, key)
    elif to_jsonl:
        _stream_json(out, request, progress, base64, limit)
    elif to_dir is not None:
        _unpack(out, request, progress, to_dir)
    else:
        _write_tar(out, request, progress, preserve, output.dry_run)


def _check(
    field: str | None,
    key: str | None,
    to_dir: str | None,
    to_jsonl: bool,
    base64: bool,
    output: StreamOptions,
    duplicates: DuplicateOptions,
    preserve: bool,
) -> None:
    """Options that exclude or need each other."""
    others = [
        name for name, given in (("--field", field), ("--to-dir", to_dir), ("--to-jsonl", to_jsonl)) if given
    ]
    if len(others) > 1:
        raise UsageError(f"{others[0]} and {others[1]} exclude each other", hint="choose one of them")
    if key is not None and field is None:
        raise UsageError("--key needs --field", hint="for whole samples: --keys KEY")
    if base64 and not to_jsonl:
        raise UsageError("--base64 needs --to-jsonl")
    if to_dir is not None and output.output != "-":
        raise UsageError("--to-dir and -o exclude each other", hint="choose one of them")
    if others:
        _check_tar_options(others[0], output, duplicates, preserve)


def _check_tar_options(
    instead: str, output: StreamOptions, duplicates: DuplicateOptions, preserve: bool
) -> None:
    """Options that only a tar has a use for."""
    plain = StreamOptions(output=output.output, force=output.force, fsync=output.fsync)
    given = [
        "--" + name.replace("_", "-")
        for name, value, default in zip(output._fields, output, plain)
        if value != default
    ]
    given += [
        "--" + name.replace("_", "-")
        for name, value in zip(duplicates._fields, duplicates)
        if value not in (None, "error")
    ]
    if instead == "--to-dir" and output.fsync:
        given.append("--fsync")
    if preserve:
        given.append("--preserve")
    if given:
        raise UsageError(f"{instead} goes with no {given[0]}", hint=f"{given[0]} is for a tar")


def _picker(
    request: Request, progress: Progress, *, writes_names: bool, counts_later: bool = False
) -> Picker:
    from wdscli.look.picking import Picker

    picker = Picker(
        request.inputs,
        request.selection,
        on_error=request.on_error,
        trust_addresses=request.trust_addresses,
        writes_names=writes_names,
        allow_empty=request.allow_empty,
        counts_later=counts_later,
        progress=progress,
    )
    progress.start("reading", len(picker.set.addresses), "shards")
    return picker


def _put(out: Out, request: Request, inputs: Sequence[str], pieces: Iterable[bytes]) -> None:
    """Bytes to standard output or to a file that gets its name at the end."""
    if request.output == "-":
        for piece in pieces:
            out.write(piece)
        out.flush()
        return
    from wdscli.storage import open_sink, same_file

    for address in inputs:
        if same_file(address, request.output):
            raise UsageError(
                f"{address} is an input and would be an output too", hint="give the output another name"
            )
    with open_sink(request.output, force=request.settings.force, fsync=request.settings.fsync) as sink:
        for piece in pieces:
            sink.write(piece)


def _stream_field(out: Out, request: Request, progress: Progress, field: str, key: str | None) -> None:
    from wdscli.look.unpack import payloads

    picker = _picker(request, progress, writes_names=False, counts_later=True)
    _put(out, request, picker.set.addresses, payloads(picker, field, key))
    progress.finish()
    _tell_losses(out, picker)


def _stream_json(out: Out, request: Request, progress: Progress, base64: bool, max_decoded: int) -> None:
    from wdscli.look.unpack import json_lines

    picker = _picker(request, progress, writes_names=False)
    _put(out, request, picker.set.addresses, json_lines(picker, base64=base64, max_decoded=max_decoded))
    progress.finish()
    _tell_losses(out, picker)


def _unpack(out: Out, request: Request, progress: Progress, folder: str) -> None:
    from wdscli.look.unpack import unpack

    picker = _picker(request, progress, writes_names=True)
    done = unpack(picker, folder, force=request.settings.force)
    progress.finish()
    out.summary(
        f"unpacked {plural(done.samples, 'sample')} into {plural(done.files, 'file')}, {human_size(done.size_bytes)}"
    )
    _tell_losses(out, picker)


def _write_tar(out: Out, request: Request, progress: Progress, preserve: bool, dry_run: bool) -> None:
    from wdscli.ops.cat import cat as write

    report = write(request, preserve=preserve, dry_run=dry_run, progress=progress)
    if request.output != "-" or dry_run:
        done = "would write" if dry_run else "wrote"
        out.summary(f"{done} {plural(report.samples, 'sample')}, {human_size(report.bytes_out)}")
    _tell(out, report.dropped, report.ignored)


def _tell_losses(out: Out, picker: Picker) -> None:
    _tell(out, picker.dropped, picker.ignored)


def _tell(out: Out, dropped: dict[str, int], ignored: dict[str, int]) -> None:
    """What was read and not written. Samples that a selection left out were meant to be; they are told with -v."""
    meant = {"keys", "where", "slice"}
    lost = {reason: count for reason, count in dropped.items() if reason not in meant}
    if lost:
        out.summary(f"left out {plural(sum(lost.values()), 'sample')}: {by_reason(lost)}")
    if dropped:
        out.note(f"not selected: {by_reason(dropped)}")
    if ignored:
        out.summary(
            f"passed over {plural(sum(ignored.values()), 'member')} of no sample: {by_reason(ignored)}"
        )
