"""``shuffle`` and ``sort`` as functions: one request, run with the order of the command of this name."""

from __future__ import annotations

from typing import Any

from wdscli.ops.sort import sort_order
from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.request import Request
from wdscli.progress import QUIET, Progress
from wdscli.run.execute import ReorderReport, reorder


def shuffle(request: Request, seed: int = 0, *, progress: Progress = QUIET) -> ReorderReport:
    """Shuffle the inputs into the output."""
    return reorder(request, ShuffledOrder(seed), progress=progress)


def sort(request: Request, **options: Any) -> ReorderReport:
    """Sort the inputs into the output, with the options of ``sort_order``."""
    return reorder(request, sort_order(**options, lenient=request.on_error == "skip"))
