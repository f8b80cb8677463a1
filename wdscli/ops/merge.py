"""``merge``: the samples of several sets as one set.

The engine is :mod:`wdscli.ops.reorder`; here is the order it is given. It must not know where samples are written.
"""

from __future__ import annotations

from wdscli.ops.orders import InputOrder
from wdscli.ops.reorder import ReorderPlan, Request, make_plan
from wdscli.ops.running import ReorderReport, reorder
from wdscli.ops.scratch import Scratch
from wdscli.progress import QUIET, Progress


def plan_merge(
    request: Request, scratch: Scratch | None = None, *, progress: Progress = QUIET
) -> ReorderPlan:
    """What :func:`merge` would do. Reads headers or indexes, and writes nothing but copies of what can be read only
    once to ``scratch``; without it such inputs are refused."""
    return make_plan(request, InputOrder("merge"), scratch, progress=progress)


def merge(request: Request, *, progress: Progress = QUIET) -> ReorderReport:
    """Merge ``request.inputs`` into ``request.output``. Raises UsageError, InputError, DataError, OutputError."""
    return reorder(request, InputOrder("merge"), progress=progress)
