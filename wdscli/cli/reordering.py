"""What the commands that reorder have in common once their options are read: plan, tell, run, tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdscli.cli.made import print_plan, print_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from wdscli.cli.output import Out
    from wdscli.ops.orders import Order, Planner
    from wdscli.ops.reorder import ReorderPlan, Request


def reorder(
    out: Out,
    request: Request,
    order: Order | Planner,
    done: str,
    *,
    dry_run: bool,
    planned: Callable[[ReorderPlan], None] | None = None,
) -> None:
    """Do what ``request`` asks in this order. ``done`` is the summary's verb: ``shuffled``; ``planned`` is called once
    the plan is made."""
    from wdscli.ops.reorder import make_plan
    from wdscli.ops.running import run_plan
    from wdscli.ops.scratch import Scratch

    progress = out.progress()
    with Scratch(request.tmp) as scratch:
        plan = make_plan(request, order, scratch, progress=progress)
        out.note(f"strategy {plan.strategy}: {plan.reason}")
        if planned is not None:
            planned(plan)
        if dry_run:
            print_plan(out, plan)
            return
        report = run_plan(plan, progress=progress)
    print_report(out, report, done, plan.oversized)
