"""``wds shuffle``: write a shuffled set. With --measure, print a table that shows how well it is mixed."""

from typing import TYPE_CHECKING, NamedTuple

from wdscli.cli.options import Column, OutputOptions, Positive, ReorderOptions, Shards, grouped, panel
from wdscli.cli.output import Out
from wdscli.cli.reordering import read_options, reorder
from wdscli.errors import UsageError

if TYPE_CHECKING:
    from wdscli.look.quality import Quality
    from wdscli.plan.plan import ReorderPlan

_ORDERS = ("input", "output", "random")


@panel("Order")("""
    --seed N  Seed of the order and of --sample.
    quality: --measure  Print how well input and output are mixed. This reads the field cls of all samples.
    +--window N  With --measure: count the source shards of N neighbouring samples. Default: 1000.
    """)
class ShuffleOptions(NamedTuple):
    """The options that choose an order, and measure its quality."""

    seed: int = 0
    quality: bool = False
    window: Positive = None

    def check(self, output: OutputOptions) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.window is not None and not self.quality:
            raise UsageError("--window needs --measure", hint="add --measure")
        if self.quality and output.output == "-" and not output.dry_run:
            raise UsageError(
                "--measure and the shard cannot both go to standard output", hint="-o out-%06d.tar, or -n"
            )


@grouped
def shuffle(
    *,
    shards: Shards,
    output: OutputOptions,
    order: ShuffleOptions,
    column: Column = None,
    options: ReorderOptions,
) -> None:
    """Shuffle all samples; the order depends only on the seed.

    The same input, options and seed give the same bytes, for any number of processes and on any machine. Shards hold
    at most 1 GB unless their size is given. -o NAME.json writes a view, which copies no bytes.

    Examples:

        wds shuffle 'train-{000000..000009}.tar' -o 'mixed-%06d.tar' --seed 7
        wds shuffle shards/ -o 'mixed-{0000..0127}.tar'
        wds shuffle shards/ -o 'mixed-%06d.tar' --max-count 10000
        wds shuffle shards/ -o 'mixed-%06d.tar' --measure -n
    """
    from wdscli.plan.orders import ShuffledOrder

    order.check(output)
    out, request = read_options(shards, output, options, own_seed=True, column=column)
    if not order.quality:
        reorder(out, request, ShuffledOrder(order.seed), dry_run=output.dry_run)
        return
    from wdscli.look.quality import WINDOW, MeasuredShuffle

    measured = MeasuredShuffle(order.seed, order.window or WINDOW)

    def show(_: "ReorderPlan") -> None:
        if measured.quality is not None:
            _print_quality(out, measured.quality)

    reorder(out, request, measured, dry_run=output.dry_run, planned=show)


def _print_quality(out: Out, quality: "Quality") -> None:
    """Print a table that compares three orders, or one JSON object."""
    orders = [quality.input, quality.output, quality.random]
    if out.json:
        facts = {name: order._asdict() for name, order in zip(_ORDERS, orders, strict=True)}
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
        values = [getattr(order, field) for order in orders]
        if any(value is not None for value in values):
            rows.append([name, *map(_number, values)])
    out.table(("order", *_ORDERS), rows, right=(1, 2, 3))


def _number(value: float | None) -> str:
    """Return a number as text with at most three decimals."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
