"""``wds map``: options in; new samples out."""

from typing import Literal, NamedTuple

from wdscli.cli.options import (
    JsonOptions,
    MapInputOptions,
    OutputOptions,
    PlannedCutOptions,
    PlannedWorkOptions,
    Positive,
    Shards,
    TaskOptions,
    Text,
    grouped,
    panel,
)

_what = panel("What is done")


@_what("""
    --cmd CMD  Run CMD for each sample, in a folder that holds sample.FIELD files. What it holds then is the
        new sample; an empty folder drops the sample.
    --filter FIELD CMD  Replace the payload of FIELD by what CMD, which reads it, writes.
    --python FUNCTION  Call module:function, or file.py:function, with each sample as a dictionary. It returns
        a dictionary, None, or several.
    --multi  With --cmd: files sample-NAME.FIELD make a sample for each NAME.
    --batch N  With --cmd and --python: N samples to a call.
    --resize PIXELS  Resize all pictures.
    --resize-mode  What is PIXELS long: the shorter side, the longer side, the shorter side of what is then
        cut to a square, or the longer side of what is then padded with white.
    only_if_bigger: --resize-only-if-bigger  Leave smaller pictures as they are.
    --format  Write pictures in this format. Default: their own.
    --quality N  Of JPEG and WebP, 1 to 100. Default: 95.
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


@grouped
def map(
    *,
    shards: Shards,
    output: OutputOptions,
    what: MapOptions,
    cuts: PlannedCutOptions,
    tasks: TaskOptions,
    work: PlannedWorkOptions,
    json: JsonOptions,
    inputs: MapInputOptions,
) -> None:
    """Make new samples of samples, by a command, a function, or to another size.

    Samples keep their order and keys, and each input shard becomes one output shard unless a cut is given, with {name}
    in OUT under its own name. A command finds WDS_KEY, WDS_SHARD, WDS_INDEX and WDS_PWD in its environment. The bytes
    do not depend on -j.

    Examples:

        wds map shards/ -o 'small/{name}.tar' --resize 256 --format webp --quality 90
        wds map shards/ -o 'out-%06d.tar' --cmd 'convert sample.jpg -resize 50% sample.png && rm sample.jpg'
        wds map shards/ -o 'out-%06d.tar' --filter json 'jq -c .caption'
        wds map shards/ -o 'out-%06d.tar' --python clean.py:keep_large --on-error skip
    """
    from wdscli.cli.output import Out
    from wdscli.cli.reordering import read_request, reorder
    from wdscli.ops.map import map_order
    from wdscli.plan.cut import Cuts
    from wdscli.transform.transform import make_transform

    on_error = inputs.errors.on_error
    transform = make_transform(**what._asdict(), timeout=inputs.network.timeout, on_failure=on_error)
    out = Out(inputs.common, json=json.json)
    limits = Cuts(*cuts.plain, cuts.divisible_by)
    settings = {**tasks._asdict(), **work._asdict(), "on_error": "skip" if on_error == "skip" else "stop"}
    request = read_request(shards, output, inputs, cuts=limits, **settings)
    reorder(out, request, map_order(request, transform), dry_run=output.dry_run)
