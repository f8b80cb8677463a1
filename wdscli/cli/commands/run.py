"""``wds run``: make some or all shards of a plan file, or carry out a job of AIStore's dSort.

Options that a plan or a job cannot use are refused.
"""

from typing import TYPE_CHECKING, Annotated, NamedTuple

from wdscli.cli.options import (
    EngineOptions,
    GeneralOptions,
    InputOptions,
    OnError,
    Option,
    OutputOptions,
    TaskOptions,
    Text,
    Texts,
    changed_options,
    grouped,
    library_word,
    panel,
)
from wdscli.cli.output import Out, plural
from wdscli.errors import DataError, UsageError
from wdscli.shown import shown

if TYPE_CHECKING:
    from wdscli.plan.plan import ReorderPlan
    from wdscli.progress import Progress

_file = "A plan that --plan FILE has written, or a dSort job in JSON or YAML."
File = Annotated[str, Option((), "FILE", _file)]


@panel("Plans")("""
    --task K  Make only shard K, counted from 0. Several shards: 0-9,12. K/N is part K of N equal parts.
    --finish  Check that all tasks are done and write the manifest.
    """)
@panel("dSort jobs")("""
    --bucket NAME=WHERE  Folder or URL of a bucket. The default depends on the provider in the job: s3://NAME,
        gs://NAME, az://NAME, or the folder NAME for AIStore itself. Repeatable.
    """)
class RunOptions(NamedTuple):
    """The options that choose tasks of a plan, and the options of a dSort job. A plan file already contains most
    options of a job."""

    task: Text = None
    finish: bool = False
    bucket: Texts = None
    output: Annotated[OutputOptions, "without output"] = OutputOptions("")
    tasks: TaskOptions = TaskOptions()
    work: EngineOptions = EngineOptions()
    on_error: OnError = "error"

    def check_fit(self) -> None:
        """Raise UsageError for options that a plan cannot use."""
        unusable = ["--bucket"] if self.bucket else []
        for group in (
            self.output._replace(dry_run=False),
            self.tasks._replace(jobs=None),
            self.work._replace(engine=None, memory=None),
        ):
            unusable += changed_options(group)
        unusable += ["--on-error"] if self.on_error != "error" else []
        if unusable:
            name = "--plan" if unusable[0] == "--plan-file" else unusable[0]
            raise UsageError(
                f"{name} does not apply to a plan",
                hint="use this option with the command that writes the plan",
            )

    def places(self) -> dict[str, str]:
        """Return the address of each bucket, by the bucket's name. Raises UsageError."""
        where: dict[str, str] = {}
        for text in self.bucket or ():
            name, equals, place = text.partition("=")
            if not name or not equals or not place or name in where:
                raise UsageError(
                    f"--bucket {text} is not NAME=WHERE, or the bucket has a value already",
                    hint="--bucket images=DIR",
                )
            where[name] = place
        return where


@grouped
def run(*, plan: File, how: RunOptions, general: GeneralOptions) -> None:
    """Run a plan or some of its tasks, or a dSort job of AIStore.

    The tasks of a plan may run in any number of processes, in any order, and more than once. After all tasks and
    --finish, the output has the same bytes as without --plan. A dSort job runs on this machine; its default seed is 0.

    Examples:

        wds shuffle set -o 'mixed/%06d.tar' --shards 4 --plan mixed.plan
        wds run mixed.plan --task 0
        wds run mixed.plan --task 1-3
        wds run mixed.plan --finish
        wds run job.json --bucket images=s3://my-images --bucket out=/data/out
    """
    from wdscli.ops.dsort_job import is_job

    out = Out.of(general)
    if is_job(plan):
        if how.task is not None or how.finish:
            option = "--finish" if how.task is None else "--task"
            raise UsageError(
                f"{option} works only for a plan, but FILE is a dSort job",
                hint="name a file that --plan wrote",
            )
        _run_job(out, plan, how, general)
        return
    how.check_fit()
    if (how.task is not None) + how.finish + how.output.dry_run > 1:
        raise UsageError("--task, --finish and --dry-run exclude each other", hint="give one of them")
    _run_plan(out, plan, how, trust_addresses=general.trust_addresses)


def _run_job(out: Out, spec: str, how: RunOptions, general: GeneralOptions) -> None:
    from wdscli.cli.reordering import read_request, reorder
    from wdscli.ops.dsort import dsort_order
    from wdscli.ops.dsort_job import read_job

    job = read_job(spec, how.places(), trust_addresses=general.trust_addresses)
    if job.unused:
        out.summary(f"note: ignored here: {', '.join(job.unused)}")
    on_error = library_word(how.on_error)
    settings = {"on_error": on_error, **how.tasks._asdict(), **how.work._asdict()}
    request = read_request((), how.output, InputOptions(), general, **settings)
    meant = dsort_order(job, request)
    dry_run = how.output.dry_run or job.is_dry
    try:
        reorder(out, meant.request, meant.order, dry_run=dry_run, planned=meant.check)
    except DataError as error:
        if error.code == "duplicate-key":
            error.hint = '"duplicated_records": "ignore" in the job leaves out the later ones'
        raise


def _run_plan(out: Out, address: str, how: RunOptions, *, trust_addresses: bool) -> None:
    from wdscli.cli.reordering import print_report
    from wdscli.plan.planfile import load_plan
    from wdscli.run.execute import finish, run_plan
    from wdscli.run.existing import done_tasks, run_of

    plan = load_plan(
        address,
        trust_addresses=trust_addresses,
        jobs=how.tasks.jobs,
        engine=how.work.engine,
        memory=how.work.memory,
    )
    progress = out.progress()
    if how.output.dry_run:
        done, shards = done_tasks(run_of(plan)), plan.contents.shards
        rows = [
            (
                task,
                shown(shard.address),
                shard.samples,
                shard.size_bytes,
                "done" if task in done else "missing",
            )
            for task, shard in enumerate(shards)
        ]
        out.listing(("task", "shard", "samples", "bytes", "state"), rows, right=(0, 2, 3))
        out.summary(f"{len(done)} of {len(rows)} tasks are done")
    elif how.task is not None:
        _run_tasks(out, plan, how.task, progress)
    elif how.finish:
        print_report(out, finish(plan, address, progress=progress))
    else:
        print_report(out, run_plan(plan, progress=progress))


def _run_tasks(out: Out, plan: "ReorderPlan", text: str, progress: "Progress") -> None:
    from wdscli.run.execute import parse_tasks, run_tasks_of
    from wdscli.units import human_size

    tasks = parse_tasks(text, len(plan.contents.shards))
    new, kept = run_tasks_of(plan, tasks, progress=progress)
    samples = sum(shard.samples for shard in [*new, *kept])
    size = sum(shard.size_bytes for shard in [*new, *kept])
    if out.json:
        counts = {"made": len(new), "kept": len(kept), "samples": samples, "bytes": size}
        out.object({"tasks": tasks, **counts})
    done = f", {len(kept)} already done" if kept else ""
    out.done(f"made {plural(len(new), 'shard')}{done}: {plural(samples, 'sample')}, {human_size(size)}", size)
