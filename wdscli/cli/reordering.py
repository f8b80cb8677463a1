"""What the commands that reorder have in common once their options are read: plan, tell, run, tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdscli.cli.made import plural, print_plan, print_report
from wdscli.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from wdscli.cli.output import Out
    from wdscli.plan.orders import Order, Planner
    from wdscli.plan.request import ReorderPlan, Request


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
    from wdscli.plan.plan import make_plan
    from wdscli.plan.scratch import Scratch
    from wdscli.run.execute import run_plan

    if request.plan_file is not None and not dry_run:
        check_free(request.plan_file, request.settings.force)
    progress = out.progress()
    with Scratch(request.tmp) as scratch:
        plan = make_plan(request, order, scratch, progress=progress)
        out.note(f"strategy {plan.strategy}: {plan.reason}")
        if planned is not None:
            planned(plan)
        if dry_run:
            print_plan(out, plan)
            if request.resume:
                tell_kept(out, plan)
            return
        if request.plan_file is not None:
            store_plan(out, plan, request.plan_file)
            return
        report = run_plan(plan, progress=progress)
    print_report(out, report, done, plan.oversized)


def tell_kept(out: Out, plan: ReorderPlan) -> None:
    """How much of what would be written is there already, as far as receipts tell."""
    from wdscli.ops.run import states

    done = sum(one.state == "done" for one in states(plan))
    out.summary(f"{done} of {plural(len(plan.planned), 'shard')} are there already")


def check_free(address: str, force: bool) -> None:
    """Raise OutputExistsError early when something is in the plan's place."""
    from wdscli.errors import OutputExistsError
    from wdscli.storage import exists

    if not force and exists(address):
        raise OutputExistsError(
            f"{address} exists", hint="choose another name for the plan, or replace it with --force"
        )


def store_plan(out: Out, plan: ReorderPlan, address: str) -> None:
    """Write the plan, and say how it is run."""
    from wdscli.plan.planfile import write_plan
    from wdscli.units import human_size

    write_plan(plan, address, force=plan.request.settings.force)
    tasks = len(plan.planned)
    if out.json:
        out.object(
            {"plan": shown(address), "tasks": tasks, "samples": plan.samples, "bytes": plan.size_bytes}
        )
    shards = plural(tasks, "shard")
    total = f"{plural(plan.samples, 'sample')} in {shards}, {human_size(plan.size_bytes)}"
    out.summary(f"planned {total}: {address}")
    if tasks > 1:
        out.summary(f"wds run {address} --task K, for K from 0 to {tasks - 1}, makes one shard each")
        out.summary(
            f"wds run {address} --finish then writes the manifest; wds run {address} alone does it all"
        )
    else:
        out.summary(f"wds run {address} does it")
