"""``wds cat``: options in; a tar, raw payloads, files or JSON Lines out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

from wdscli.cli.options import (
    InputOptions,
    MaxDecoded,
    OutputOptions,
    Shards,
    Text,
    changed_options,
    decoded_limit,
    grouped,
    panel,
)
from wdscli.cli.output import Out, by_reason, plural
from wdscli.cli.reordering import print_losses, read_request
from wdscli.errors import UsageError
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.look.picking import Picker
    from wdscli.plan.request import Request
    from wdscli.progress import Progress

_instead = panel("Instead of a tar")
_TO_STDOUT = OutputOptions("-")
_MEANT = {"keys", "where", "slice"}
"""Why samples are left out that a selection was meant to leave out."""


class InsteadOptions(NamedTuple):
    """Other ways for samples to leave their shards."""

    field: Annotated[Text, _instead("--field FIELD", "The payloads of one field, one after the other.")] = (
        None
    )
    key: Annotated[Text, _instead("--key KEY", "With --field: of this sample alone.")] = None
    to_dir: Annotated[Text, _instead("--to-dir DIR", "A file per member, below DIR.")] = None
    to_jsonl: Annotated[
        bool,
        _instead("--to-jsonl", "A line of JSON per sample: text fields as text, the bytes of the others."),
    ] = False
    base64: Annotated[
        bool, _instead("--base64", "With --to-jsonl: the payloads of the others in base 64.")
    ] = False
    max_decoded: MaxDecoded = None


@grouped
def cat(
    *,
    shards: Shards,
    output: OutputOptions = _TO_STDOUT,
    preserve: Annotated[
        bool,
        panel("Output")(
            "--preserve",
            "Keep headers as they are: modes, owners, times, pax records. Default: the canonical form.",
        ),
    ] = False,
    other: InsteadOptions,
    inputs: InputOptions,
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
    field, key, to_dir, to_jsonl, base64, max_decoded = other
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
    limit = decoded_limit(max_decoded, None if to_jsonl else "--to-jsonl")
    out = Out(inputs.common)
    progress = out.progress()
    request = read_request(shards, output, inputs, jobs=1)
    if not others:
        _write_tar(out, request, progress, preserve, output.dry_run)
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
        out.summary(f"unpacked {total}, {human_size(done.size_bytes)}")
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


def _write_tar(out: Out, request: "Request", progress: "Progress", preserve: bool, dry_run: bool) -> None:
    from wdscli.ops.cat import cat as write

    report = write(request, preserve=preserve, dry_run=dry_run, progress=progress)
    if request.output != "-" or dry_run:
        done = "would write" if dry_run else "wrote"
        out.summary(f"{done} {plural(report.samples, 'sample')}, {human_size(report.bytes_out)}")
    _print_losses(out, report.dropped, report.ignored)


def _print_losses(out: Out, dropped: dict[str, int], ignored: dict[str, int]) -> None:
    """What was read and not written. Samples that a selection left out were meant to be; they are told with -v."""
    print_losses(out, {reason: count for reason, count in dropped.items() if reason not in _MEANT}, {})
    if dropped:
        out.note(f"not selected: {by_reason(dropped)}")
    print_losses(out, {}, ignored)
