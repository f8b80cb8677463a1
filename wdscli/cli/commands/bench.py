"""``wds bench``: options in, one call into the loader, a few lines out."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Annotated, Literal

import typer

from wdscli.cli.options import CommonOptions, JsonOptions, Shards, TrustOptions, grouped
from wdscli.cli.output import Out
from wdscli.errors import UsageError
from wdscli.loader.bench import BenchReport
from wdscli.loader.bench import bench as run
from wdscli.units import human_size

_LOOP = "The loop"


@grouped
def bench(
    shards: Shards,
    *,
    decode: Annotated[
        str | None,
        typer.Option(
            "--decode",
            metavar="HOW",
            help="Decode as the loader's decode(HOW) does: pil, rgb8, torchrgb, ... Default: raw bytes.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            metavar="N",
            min=0,
            help="Worker processes of torch's DataLoader; 0 reads in this process, without torch.",
            rich_help_panel=_LOOP,
        ),
    ] = 0,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            help="Threads that decode, in each process.",
            rich_help_panel=_LOOP,
        ),
    ] = 1,
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            metavar="N",
            min=0,
            help="Samples of a batch; 0 for single ones.",
            rich_help_panel=_LOOP,
        ),
    ] = 64,
    shuffle: Annotated[
        Literal["window", "full", "none"],
        typer.Option("--shuffle", help="The loader's order.", rich_help_panel=_LOOP),
    ] = "window",
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--fields",
            metavar="EXT,...",
            help="Read these fields only. May be given more than once.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    prefetch: Annotated[
        str,
        typer.Option(
            "--prefetch",
            metavar="SIZE",
            help="Bytes that each process may read ahead.",
            rich_help_panel=_LOOP,
        ),
    ] = "256MB",
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", help="How long to measure.", rich_help_panel=_LOOP),
    ] = 10.0,
    json: JsonOptions,
    trust: TrustOptions,
    common: CommonOptions,
) -> None:
    """Measure how fast the loader reads a set, and say what limits it.

    Batches are taken as a training would take them, and nothing is done with them.

    Examples:

        wds bench shards/
        wds bench --decode pil --workers 4 --batch 64 shards/
        wds bench --fields json,cls --shuffle full --json 's3://bucket/train-{000000..000999}.tar'
    """
    if not 0 < seconds < inf:
        why = "leaves no time to measure" if seconds <= 0 else "is no time to measure"
        raise UsageError(f"--seconds {seconds:g} {why}")
    out = Out(common, json=json.json)
    with _warnings_by(out):
        report = run(
            shards,
            decode=decode,
            workers=workers,
            threads=threads,
            batch=batch,
            shuffle=shuffle,
            fields=[name for names in fields for name in names.split(",")] if fields else None,
            prefetch=prefetch,
            seconds=seconds,
            trust_addresses=trust.trust_addresses,
        )
    if json.json:
        out.object(_object(report))
        return
    for line in _lines(report):
        out.line(line)


@contextmanager
def _warnings_by(out: Out) -> Iterator[None]:
    """What the loader warns of, as commands warn."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: out.warn(str(message))
        yield


def _object(report: BenchReport) -> dict[str, object]:
    shares = {name: round(share, 4) for name, share in report.shares._asdict().items()}
    return {
        **report._asdict(),
        "shares": shares,
        "samples_per_second": round(report.samples_per_second, 1),
        "bytes_per_second": round(report.bytes_per_second),
    }


def _lines(report: BenchReport) -> list[str]:
    shares = report.shares
    return [
        f"{report.samples_per_second:,.0f} samples/s, {human_size(report.bytes_per_second)}/s "
        f"({report.samples:,} samples in {report.seconds:.1f} s; the first batch took {report.first_seconds:.2f} s)",
        f"reading {shares.reading:.0%}, decoding and batching {shares.decoding:.0%}, "
        f"handing over {shares.handing_over:.0%}",
        report.bottleneck,
    ]
