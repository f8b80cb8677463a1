"""The commands that reorder as functions: one request, run with the order of the command of this name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wdscli.plan.join import Join
from wdscli.plan.orders import ShuffledOrder, merge_order
from wdscli.plan.request import Request
from wdscli.plan.sort import sort_order
from wdscli.plan.split import SplitOptions, split_order
from wdscli.progress import QUIET, Progress
from wdscli.run.execute import ReorderReport, reorder


def shuffle(request: Request, seed: int = 0, *, progress: Progress = QUIET) -> ReorderReport:
    """Shuffle the inputs into the output."""
    return reorder(request, ShuffledOrder(seed), progress=progress)


def sort(request: Request, **options: Any) -> ReorderReport:
    """Sort the inputs into the output, with the options of ``sort_order``."""
    return reorder(request, sort_order(**options, lenient=request.on_error == "skip"))


def split(
    request: Request,
    options: SplitOptions = SplitOptions(),
    *,
    progress: Progress = QUIET,
) -> ReorderReport:
    """Divide the inputs into the parts of the options."""
    return reorder(request, split_order(request, options), progress=progress)


def merge(request: Request, *, dedup: Sequence[str] = (), **options: Any) -> ReorderReport:
    """Merge the inputs into the output, with the options of ``merge_order``."""
    request = request._replace(dedup=dedup or request.dedup)
    return reorder(request, merge_order(request, **options))


def join(request: Request, how: Join) -> ReorderReport:
    """Join the inputs into the output."""
    return reorder(request, how)
