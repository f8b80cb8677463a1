"""``wds bench``: parse the options, call the loader's benchmark, and print a few lines."""

import warnings
from math import inf
from typing import Annotated, Literal, NamedTuple

from wdscli.bench import BenchReport
from wdscli.bench import bench as run
from wdscli.cli.options import GeneralOptions, Shards, Text, Texts, grouped, panel
from wdscli.cli.output import Out
from wdscli.codecs.images import SPECS
from wdscli.errors import UsageError
from wdscli.units import human_size


@panel("Measurement")("""
    decode: --decoder HOW  Decode as the loader's decode(HOW) does: pil, rgb8, torchrgb, ... Default: raw bytes.
    workers: -j, --jobs N  Number of DataLoader worker processes. With 0, the default, the command itself reads,
        without torch.
    --threads N  Number of decoding threads in each process.
    --batch N  Number of samples in a batch; 0 for single samples.
    shuffle: --order  Order of the loader.
    --fields EXT,...  Read only these fields. Repeatable.
    --seconds S  Duration of the measurement.
    """)
class LoopOptions(NamedTuple):
    """How samples are read: the arguments of the loader's ``bench``."""

    decode: Annotated[Text, SPECS] = None
    workers: Annotated[int, 0] = 0
    threads: Annotated[int, 1] = 1
    batch: Annotated[int, 0] = 64
    shuffle: Literal["window", "blocks", "shards", "full", "none"] = "window"
    fields: Texts = None
    seconds: float = 10.0


@grouped
def bench(shards: Shards, loop: LoopOptions, general: GeneralOptions) -> None:
    """Measure how fast the loader reads a set, and what limits it.

    Reads batches as a training loop does, and discards them.

    Examples:

        wds bench shards/
        wds bench --decoder pil --jobs 4 --batch 64 shards/
        wds bench --fields json,cls --order full s3://bucket/train/
    """
    if not 0 < loop.seconds < inf:
        why = "leaves no time to measure" if loop.seconds <= 0 else "is no time to measure"
        raise UsageError(f"--seconds {loop.seconds:g} {why}")
    out = Out.of(general)
    with warnings.catch_warnings():
        # Print the loader's warnings in the same way as the command's own warnings.
        warnings.showwarning = lambda message, *_, **__: out.warn(str(message))
        fields = [name for names in loop.fields or () for name in names.split(",")] or None
        out.note(", ".join(f"{name} {value}" for name, value in loop._asdict().items() if value is not None))
        report = run(
            shards, **loop._replace(fields=fields)._asdict(), trust_addresses=general.trust_addresses
        )
    if out.json:
        shares = {name: round(share, 4) for name, share in report.shares._asdict().items()}
        rates = {
            "samples_per_second": round(report.samples_per_second, 1),
            "bytes_per_second": round(report.bytes_per_second),
        }
        out.object({**report._asdict(), "shares": shares, **rates})
    else:
        _print(out, report)


def _print(out: Out, report: BenchReport) -> None:
    shares = report.shares
    out.line(
        f"{report.samples_per_second:,.0f} samples/s, {human_size(report.bytes_per_second)}/s "
        f"({report.samples:,} samples in {report.seconds:.1f} s; the first batch took {report.first_seconds:.2f} s)"
    )
    out.line(
        f"reading {shares.reading:.0%}, decoding and batching {shares.decoding:.0%}, "
        f"handing over {shares.handing_over:.0%}"
    )
    out.line(report.bottleneck)
