"""How ``--quality`` is told: a table, or one object of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdscli.errors import UsageError

if TYPE_CHECKING:
    from wdscli.cli.options import OutputOptions
    from wdscli.cli.output import Out
    from wdscli.look.quality import Quality

_ORDERS = ("input", "output", "random")


def check_quality(wanted: bool, window: int | None, output: OutputOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if window is not None and not wanted:
        raise UsageError("--window is for --quality", hint="give both, or neither")
    if wanted and output.output == "-" and not output.dry_run:
        raise UsageError(
            "--quality and the shard cannot share standard output", hint="-o out-%06d.tar, or -n"
        )


def print_quality(out: Out, quality: Quality) -> None:
    """The three orders side by side."""
    orders = [quality.input, quality.output, quality.random]
    if out.json:
        facts = {name: one._asdict() for name, one in zip(_ORDERS, orders, strict=True)}
        out.object({"quality": {**quality._asdict(), **facts}})
        return
    names = {
        "shards_per_window": f"shards in {quality.window} samples",
        "fewest_shards": "fewest of these",
        "displacement": "displacement",
        "correlation": "rank correlation",
        "class_run": "class run",
    }
    rows = []
    for field, name in names.items():
        found = [getattr(one, field) for one in orders]
        if any(value is not None for value in found):
            rows.append([name, *map(_number, found)])
    out.table(("order", *_ORDERS), rows, right=(1, 2, 3))


def _number(value: float | None) -> str:
    """Three places behind the point at most, which is as much as anybody can use."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
