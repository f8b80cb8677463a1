"""``wds cat``: options in; a tar, raw payloads, files or JSON Lines out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from wdscli.cli.options import (
    DecodeOptions,
    InputOptions,
    JobsOptions,
    OutputOptions,
    Shards,
    Text,
    changed_options,
    grouped,
    panel,
)
from wdscli.cli.output import Out, by_reason, plural
from wdscli.cli.reordering import print_losses, read_request
from wdscli.errors import UsageError
from wdscli.storage.patterns import NAME
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.picking import Picker
    from wdscli.plan.request import Request

_instead = panel("Instead of a tar")
_TO_STDOUT = OutputOptions("-")
_MEANT = {"keys", "not-keys", "where", "slice"}
"""Why samples are left out that a selection was meant to leave out."""


@_instead("""
    --field FIELD  The payloads of one field, one after the other.
    --key KEY  With --field: of this sample alone.
    --to-dir DIR  A file per member, below DIR.
    --to-jsonl  A line of JSON per sample: text fields as text, the bytes of the others.
    --base64  With --to-jsonl: the payloads of the others in base 64.
    """)
@panel("Output")("""
    --preserve  Keep headers as they are: modes, owners, times, pax records. Default: the canonical form.
    """)
class FormOptions(NamedTuple):
    """In which form samples leave their shards."""

    preserve: bool = False
    field: Text = None
    key: Text = None
    to_dir: Text = None
    to_jsonl: bool = False
    base64: bool = False
    decoding: DecodeOptions = DecodeOptions()


@grouped
def cat(
    *,
    shards: Shards,
    output: OutputOptions = _TO_STDOUT,
    work: JobsOptions,
    form: FormOptions,
    inputs: InputOptions,
) -> None:
    """Write the selected samples as one tar, in input order.

    The tar goes to standard output, or to -o OUT with its index and manifest. With {name} in OUT each shard is
    copied whole, under its own name. Samples can also leave their shards: as raw payloads, as files, as JSON
    Lines.

    Examples:

        wds cat 'train-{000000..000009}.tar' -o all.tar
        wds cat shards/ -o 'packed/{name}.tar.zst'
        wds cat --keys 'n01/*' --limit 100 shards/ | tar tv
        wds cat --field jpg --key n01/img7 shards/ > img7.jpg
        wds cat --to-jsonl shards/ | jq .fields.json.caption
        wds cat --to-dir unpacked shards/
    """
    preserve, field, key, to_dir, to_jsonl, base64, decoding = form
    instead = {"--field": field, "--to-dir": to_dir, "--to-jsonl": to_jsonl}
    others = [name for name, given in instead.items() if given not in (None, False)]
    if len(others) > 1:
        raise UsageError(f"{others[0]} and {others[1]} exclude each other", hint="choose one of them")
    if key is not None and field is None:
        raise UsageError("--key needs --field", hint="for whole samples: --keys KEY")
    if base64 and not to_jsonl:
        raise UsageError("--base64 needs --to-jsonl")
    if to_dir is not None and output.output != "-":
        raise UsageError("--to-dir and -o exclude each other", hint="choose one of them")
    if others:
        _check_tar_options(others[0], output, inputs, preserve)
    limit = decoding.limit(None if to_jsonl else "--to-jsonl")
    out = Out(inputs.common)
    progress = out.progress()
    if work.jobs is not None and (others or NAME not in output.output):
        raise UsageError(
            "-j is for shards that are copied one by one", hint=f"-o 'out/{NAME}.tar' copies each shard"
        )
    request = read_request(shards, output, inputs, jobs=work.jobs)
    if not others:
        from wdscli.ops.cat import cat as write

        report = write(request, preserve=preserve, dry_run=output.dry_run, progress=progress)
        _print_losses(out, report.dropped, report.ignored)
        if request.output != "-" or output.dry_run:
            verb = "would write" if output.dry_run else "wrote"
            shown = ""
            if report.manifest is not None and NAME in request.output:
                shown = f" in {plural(len(report.manifest.shards), 'shard')}"
            total = f"{verb} {plural(report.samples, 'sample')}{shown}, {human_size(report.bytes_out)}"
            out.done(total, report.bytes_out, dry_run=output.dry_run)
        return
    from wdscli.look import unpack
    from wdscli.look.picking import Picker

    picker = Picker(
        request, writes_names=to_dir is not None, counts_later=field is not None, progress=progress
    )
    progress.start("reading", len(picker.set.addresses), "shards")
    if field is not None:
        _put(out, request, picker, unpack.payloads(picker, field, key))
    elif to_dir is not None:
        done = unpack.unpack(picker, to_dir, force=output.force)
        progress.finish()
        total = f"{plural(done.samples, 'sample')} into {plural(done.files, 'file')}"
        out.done(f"unpacked {total}, {human_size(done.size_bytes)}", done.size_bytes)
    else:
        _put(out, request, picker, unpack.json_lines(picker, base64=base64, max_decoded=limit))
    progress.finish()
    _print_losses(out, picker.dropped, picker.ignored)


def _check_tar_options(instead: str, output: OutputOptions, inputs: InputOptions, preserve: bool) -> None:
    """Options that only a tar has a use for."""
    given = changed_options(output._replace(force=False, fsync=False))
    given += changed_options(inputs.duplicates)
    if instead == "--to-dir" and output.fsync:
        given.append("--fsync")
    if preserve:
        given.append("--preserve")
    if given:
        raise UsageError(f"{instead} goes with no {given[0]}", hint=f"{given[0]} is for a tar")


def _put(out: Out, request: "Request", picker: "Picker", pieces: Iterable[bytes]) -> None:
    """Bytes to standard output or to a file that gets its name at the end."""
    if request.output == "-":
        for piece in pieces:
            out.write(piece)
        out.flush()
        return
    from wdscli.storage import open_sink, same_file

    for address in picker.set.addresses:
        if same_file(address, request.output):
            raise UsageError(
                f"{address} is an input and would be an output too", hint="give the output another name"
            )
    with open_sink(request.output, force=request.settings.force, fsync=request.settings.fsync) as sink:
        for piece in pieces:
            sink.write(piece)


def _print_losses(out: Out, dropped: dict[str, int], ignored: dict[str, int]) -> None:
    """What was read and not written. Samples that a selection left out were meant to be; they are told with -v."""
    print_losses(out, {reason: count for reason, count in dropped.items() if reason not in _MEANT}, {})
    if dropped:
        out.note(f"not selected: {by_reason(dropped)}")
    print_losses(out, {}, ignored)
