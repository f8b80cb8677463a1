"""``wds map``: options in; new samples out."""

from typing import Annotated, Literal, NamedTuple

from wdscli.cli.options import (
    EngineOptions,
    GeneralOptions,
    InputOptions,
    OutputOptions,
    PlannedCutOptions,
    Positive,
    Shards,
    TaskOptions,
    Text,
    grouped,
    panel,
)

_what = panel("Transformation")


@_what("""
    --cmd CMD  Run CMD for each sample in a scratch folder with the files sample.FIELD. The files that are
        there afterwards are the new sample; no files drop the sample.
    --filter FIELD CMD  Pipe the payload of FIELD through CMD.
    --python FUNCTION  Call module:function, or file.py:function, with each sample as a dictionary. It
        returns a dictionary, None, or several dictionaries.
    --multi  With --cmd: files sample-NAME.FIELD make one sample for each NAME.
    --batch N  With --cmd and --python: N samples per call.
    --resize PIXELS  Resize pictures.
    --resize-mode  PIXELS is the length of the shorter side (keep_ratio), the longer side
        (keep_ratio_largest), the shorter side before cropping to a square (center_crop), or the longer side
        before padding to a square with white (border).
    only_if_bigger: --resize-only-if-bigger  Leave smaller pictures unchanged.
    --format  Encode pictures in this format. Default: unchanged.
    --quality N  Quality of JPEG and WebP, 1 to 100. Default: 95.
    """)
class MapOptions(NamedTuple):
    """What is done to each sample."""

    cmd: Text = None
    filter: tuple[str, str] | None = None
    python: Text = None
    multi: bool = False
    batch: Positive = None
    resize: Positive = None
    resize_mode: Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border"] = "keep_ratio"
    only_if_bigger: bool = False
    format: Literal["jpg", "png", "webp"] | None = None
    quality: Positive = None


@panel("Errors")("""
    --on-error  Failed call: stop, skip the sample, or keep it unchanged. skip also keeps the whole samples of
        broken shards.
    """)
class FailureOptions(NamedTuple):
    """What is done about a call that fails."""

    on_error: Literal["stop", "skip", "keep"] = "stop"


@grouped
def map(
    *,
    shards: Shards,
    output: OutputOptions,
    what: MapOptions,
    cuts: PlannedCutOptions,
    tasks: TaskOptions,
    work: Annotated[EngineOptions, "without strategy"],
    inputs: InputOptions,
    errors: FailureOptions,
    general: GeneralOptions,
) -> None:
    """Transform samples by a command, a Python function, or by resizing pictures.

    Samples keep their order and keys. Each input shard becomes one output shard unless a shard size is given; {name}
    in OUT is the name of the input shard. Commands have WDS_KEY, WDS_SHARD, WDS_INDEX and WDS_PWD in their
    environment. The output is the same for any number of processes.

    Examples:

        wds map shards/ -o 'small/{name}.tar' --resize 256 --format webp
        wds map shards/ -o 'out-%06d.tar' --cmd 'md5sum sample.jpg > sample.md5'
        wds map shards/ -o 'out-%06d.tar' --filter txt 'tr a-z A-Z'
        wds map shards/ -o 'out-%06d.tar' --python clean.py:keep_large
    """
    from wdscli.cli.output import Out
    from wdscli.cli.reordering import read_request, reorder
    from wdscli.ops.map import map_order
    from wdscli.transform.transform import make_transform

    transform = make_transform(**what._asdict(), timeout=general.network.timeout, on_failure=errors.on_error)
    out = Out.of(general, "" if output.dry_run else output.output)
    more = {**tasks._asdict(), **work._asdict(), "on_error": "skip" if errors.on_error == "skip" else "stop"}
    request = read_request(shards, output, inputs, general, cuts=cuts.parse(), **more)
    with map_order(request, transform) as order:
        reorder(out, request, order, dry_run=output.dry_run)
