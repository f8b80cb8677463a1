"""``wds run``: a plan's file in, some of its shards or the whole set out."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from wdscli.cli.options import EngineOptions, GeneralOptions, TaskOptions, Text, grouped, panel
from wdscli.cli.output import Out, facts, plural
from wdscli.shown import shown

if TYPE_CHECKING:
    from wdscli.plan.plan import ReorderPlan
    from wdscli.progress import Progress

_tasks = panel("Tasks")


@_tasks("""
    --task K  Make shard K only, counted from 0; or several: 0-9,12, or K/N for job K of N.
    --finish  Check that all tasks are done and write the manifest.
    -n, --dry-run, --list  List the tasks and their state, and write nothing.
    """)
class ChoiceOptions(NamedTuple):
    """Which tasks."""

    task: Text = None
    finish: bool = False
    dry_run: bool = False


@grouped
def run(
    *,
    plan: Annotated[str, typer.Argument(metavar="FILE", help="A plan, as --plan FILE has written it.")],
    choice: ChoiceOptions,
    tasks: Annotated[TaskOptions, "without post"],
    work: Annotated[EngineOptions, "without strategy tmp resume if_changed plan_file"],
    general: GeneralOptions,
) -> None:
    """Carry out a plan: some of its tasks, or all that are not done.

    The tasks of a plan may run in any number of processes, in any order, and more than once. After all tasks and
    --finish the output has the same bytes, manifest included, as the command without --plan would have written.

    Examples:

        wds shuffle set -o 'mixed/%06d.tar' --shards 4 --plan mixed.plan
        wds run mixed.plan --task 0
        wds run mixed.plan --task 1-3
        wds run mixed.plan --finish
    """
    from wdscli.cli.reordering import print_report
    from wdscli.errors import UsageError
    from wdscli.ops import run as ops
    from wdscli.plan.planfile import load_plan

    if (choice.task is not None) + choice.finish + choice.dry_run > 1:
        raise UsageError("--task, --finish and --dry-run exclude each other")
    out = Out.of(general)
    progress = out.progress()
    loaded = load_plan(
        plan,
        trust_addresses=general.trust_addresses,
        jobs=tasks.jobs,
        engine=work.engine,
        memory=work.memory,
    )
    if choice.dry_run:
        rows = [one._replace(address=shown(one.address)) for one in ops.states(loaded)]
        out.listing(("task", "shard", "samples", "bytes", "state"), rows, right=(0, 2, 3))
        done = sum(one.state == "done" for one in rows)
        out.summary(f"{done} of {len(rows)} tasks are done")
    elif choice.task is not None:
        _run_tasks(out, loaded, choice.task, progress)
    elif choice.finish:
        print_report(out, ops.finish(loaded, plan, progress=progress), loaded.counts.oversized)
    else:
        print_report(out, ops.run_all(loaded, progress=progress), loaded.counts.oversized)


def _run_tasks(out: Out, plan: "ReorderPlan", text: str, progress: "Progress") -> None:
    from wdscli.ops import run as ops
    from wdscli.units import human_size

    tasks = ops.parse_tasks(text, len(plan.planned))
    report = ops.run_tasks_of(plan, tasks, progress=progress)
    if out.json:
        out.object({"tasks": tasks, **facts(report, "made kept samples bytes=size_bytes")})
    kept = f", {report.kept} there already" if report.kept else ""
    total = f"{plural(report.samples, 'sample')}, {human_size(report.size_bytes)}"
    out.done(f"made {plural(report.made, 'shard')}{kept}: {total}", report.size_bytes)
