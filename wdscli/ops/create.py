"""``create``: folders, files, lists and tables to a shard set.

What it is: :func:`create`, and its two halves :func:`plan_create` and :func:`run_create`. How: first
everything is found and measured, sorted bytewise, grouped into samples, selected, ordered and cut by real tar
bytes; then each shard is one task, written in this process or in several, with the same bytes either way. A
file that changes between the halves is an error. It must not print, and knows no tar headers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from wdscli.create import grouping
from wdscli.create.files import Files, Skipped, numbers_of
from wdscli.create.grouping import Samples
from wdscli.create.keys import KeyRule
from wdscli.create.packing import PackTask, pack
from wdscli.create.payloads import Payloads
from wdscli.create.recipe import read_recipe
from wdscli.create.table import TableOptions, read_table
from wdscli.create.walk import Globs, Outputs, Wanted, walk
from wdscli.errors import InputError, UsageError
from wdscli.executors import make_executor, run_tasks
from wdscli.model import to_text
from wdscli.plan.cut import END_BYTES, Cuts
from wdscli.plan.strategy import check_post, useful_jobs
from wdscli.progress import QUIET, Progress
from wdscli.shards.manifest import Manifest
from wdscli.shards.writing import OutputSet, ShardSettings, make_form
from wdscli.storage import addresses_of

WORTH_PROCESSES_BYTES = 400_000_000
BYTES_PER_MEMBER = 13_000
"""To open a file costs as much as to copy so many bytes."""


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """How shards are made of files; each is the option of the same name of ``wds create``.

    ``post`` is a shell command to run for each shard that has its name (:mod:`wdscli.run.post_hook`).
    ``trust_addresses`` lets a list or table that was fetched name anything (:mod:`wdscli.storage.addresses`).
    ``order`` is ``path`` (bytewise by key), ``shuffle`` (by ``seed``), or None: the order of the list or
    table where one is given, else ``path``. ``settings`` say how shards are written. ``jobs`` None is one a processor;
    it never shows in the bytes.
    """

    from_list: str | Sequence[str] | None = None
    table: TableOptions | None = None
    key_rule: str = "first-dot"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    require: Sequence[str] = ()
    incomplete: Literal["error", "skip", "keep"] = "error"
    label_from: Literal["parent"] | None = None
    order: Literal["path", "shuffle"] | None = None
    seed: int = 0
    cuts: Cuts = field(default_factory=Cuts)
    settings: ShardSettings = field(default_factory=lambda: ShardSettings(make_form()))
    jobs: int | None = None
    post: str | None = None
    trust_addresses: bool = False


class CreatedShard(NamedTuple):
    """One shard of the report: its address, samples, members, and bytes of tar."""

    address: str
    samples: int
    members: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CreateReport:
    """What was made, or with a dry run what would be.

    ``skipped`` counts what is part of no sample by reason, ``incomplete`` the samples that lack a required
    field (left out or kept, as was asked), ``renamed`` maps keys written to keys found where they differ (of
    ``renamed_keys`` at most ten thousand),
    ``oversized`` counts samples larger than ``max_size`` on their own. ``manifest`` is None for a dry run.
    """

    shards: tuple[CreatedShard, ...]
    skipped: Mapping[str, int]
    incomplete: int = 0
    renamed: Mapping[str, str] = field(default_factory=dict)
    renamed_keys: int = 0
    oversized: int = 0
    classes: tuple[str, ...] | None = None
    manifest: Manifest | None = None
    manifest_address: str | None = None

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def members(self) -> int:
        return sum(shard.members for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)


class CreatePlan(NamedTuple):
    """Everything decided, nothing written. ``bounds`` are the shards' first samples and, at the end, their
    number."""

    output: OutputSet
    options: CreateOptions
    samples: Samples
    bounds: list[int]
    report: CreateReport

    def tasks(self) -> Iterator[PackTask]:
        """One task a shard, in order."""
        files, order, firsts = self.samples.files, self.samples.order, self.samples.firsts
        for number, (first, end) in enumerate(pairwise(self.bounds)):
            low, high = firsts[first], firsts[end]
            yield PackTask(
                self.output.address(number),
                self.output.settings,
                files,
                order[low:high],
                numbers_of((at - low for at in firsts[first : end + 1]), len(order) + 1),
                self.options.post,
            )


def create(
    sources: Sequence[str],
    output: str,
    options: CreateOptions | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = QUIET,
) -> CreateReport:
    """Make a shard set ``output`` (``out-%06d.tar``, ``out-{0000..0127}.tar``, one file, ``-``) of
    ``sources``, folders and files, and of what ``options`` name.

    Raises UsageError, InputError, DataError (a field that comes twice, a sample that lacks a required field,
    a file that changes meanwhile) and OutputError. Shards that were whole before an error keep their names;
    the manifest, without which a set is not complete, is written last.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("a.txt", "a.cls", "b.txt"):
    ...     _ = (folder / name).write_text(name)
    >>> report = create([str(folder)], str(folder / "out-%06d.tar"), CreateOptions(cuts=Cuts(max_count=1)))
    >>> [(shard.samples, shard.members) for shard in report.shards]
    [(1, 2), (1, 1)]
    """
    options = options or CreateOptions()
    with Payloads(options.trust_addresses) as payloads:
        plan = plan_create(sources, output, options, payloads, progress=progress)
        return plan.report if dry_run else run_create(plan, progress=progress)


def plan_create(
    sources: Sequence[str],
    output: str,
    options: CreateOptions,
    payloads: Payloads,
    *,
    progress: Progress = QUIET,
) -> CreatePlan:
    """Find and measure everything, and decide what goes where. Files that had to be made on the way (what a
    command of a list printed) live until ``payloads`` is closed."""
    out = OutputSet(output, options.settings)
    check_post(options.post, output, is_stream=out.pattern.is_stream)
    # What has one name and no limit is one shard, however large.
    is_one = out.pattern.single and options.cuts == Cuts()
    cuts = Cuts(shards=1) if is_one else options.cuts.checked(out.pattern.count)
    out.check()
    rule, skipped = KeyRule(options.key_rule), Skipped(progress)
    payloads.outputs = outputs = Outputs(out)
    wanted = Wanted(rule, Globs(options.include), Globs(options.exclude), outputs)
    files, walked = _find(sources, options, wanted, payloads, skipped, progress)
    renamed_keys = rule.count_renamed(files.keys)
    samples, incomplete, classes = _arrange(files, walked, options, skipped)
    counts = dict(sorted(skipped.counts.items()))
    if not samples.total:
        found = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        raise InputError(
            "no samples found" + (f" ({found})" if found else ""),
            hint="a sample is one or more files that share a name up to the first dot: cat7.jpg, cat7.json",
        )
    ends = grouping.sample_ends(samples, options.settings.form)
    bounds = grouping.cut(ends, cuts)
    shards = tuple(
        CreatedShard(
            out.address(number),
            end - first,
            samples.firsts[end] - samples.firsts[first],
            ends[end] - ends[first] + END_BYTES,
        )
        for number, (first, end) in enumerate(pairwise(bounds))
    )
    limit = cuts.max_size
    report = CreateReport(
        shards=shards,
        skipped=counts,
        incomplete=incomplete,
        renamed={to_text(new): to_text(old) for new, old in sorted(rule.renamed.items())},
        renamed_keys=renamed_keys,
        oversized=0 if limit is None else sum(shard.size_bytes > limit for shard in shards),
        classes=None if classes is None else tuple(classes),
        manifest_address=out.manifest_address,
    )
    for new, old in report.renamed.items():
        progress.note(f"key {old} is written as {new}")
    if report.oversized:
        what = "sample is" if report.oversized == 1 else "samples are"
        progress.warn(
            f"{report.oversized} {what} larger than --max-size ({limit} bytes); each has a shard of its own"
        )
    return CreatePlan(out, options, samples, bounds, report)


def _find(
    sources: Sequence[str],
    options: CreateOptions,
    wanted: Wanted,
    payloads: Payloads,
    skipped: Skipped,
    progress: Progress,
) -> tuple[Files, array[int] | None]:
    """All files, and where a list or table gives an order, those that do not come from there, in theirs."""
    lists = addresses_of(options.from_list, "--from-list")
    if not sources and not lists and options.table is None:
        raise UsageError(
            "nothing to make shards of", hint="name folders or files, or use --from-list or --from-table"
        )
    files, walked = Files(), None
    progress.start("finding files", None, "files")
    for source in sources:
        walk(source, wanted, files, skipped, progress)
    if lists or options.table is not None:
        walked = grouping.sorted_numbers(files)
    for address in lists:
        read_recipe(address, wanted.rule, files, payloads, progress)
    if options.table is not None:
        read_table(options.table, wanted.rule, files, payloads, skipped, progress)
    progress.finish()
    return files, walked


def _arrange(
    files: Files, walked: array[int] | None, options: CreateOptions, skipped: Skipped
) -> tuple[Samples, int, list[str] | None]:
    """The samples in their order, how many are incomplete, and the classes."""
    samples = grouping.group(files)
    if options.label_from is not None:
        grouping.add_labels(samples)
        samples = grouping.group(files)
    if walked is not None and options.order != "path":
        samples = grouping.as_given(samples, walked)
    incomplete = 0
    if options.require:
        samples, incomplete = grouping.require(samples, options.require, options.incomplete, skipped)
    classes = grouping.number_labels(samples) if options.label_from is not None else None
    if options.order == "shuffle":
        samples = grouping.shuffled(samples, options.seed)
    return samples, incomplete, classes


def run_create(plan: CreatePlan, *, progress: Progress = QUIET) -> CreateReport:
    """Write the shards of a plan, then their manifest. May be called once."""
    options, report = plan.options, plan.report
    with plan.output.claimed():
        progress.start("writing shards", report.size_bytes, "bytes")
        # What other processes can take off the largest shard's task is all that there is to win; one where starting a
        # process would take longer than the work.
        work = [shard.size_bytes + BYTES_PER_MEMBER * shard.members for shard in report.shards]
        jobs = useful_jobs(options.jobs, len(work), sum(work) - max(work), WORTH_PROCESSES_BYTES)
        if plan.output.pattern.is_stream:
            jobs = 1
        tasks = plan.tasks() if jobs == 1 else (task.portable() for task in plan.tasks())
        with make_executor(jobs) as executor:
            # A task has its files' names, so that few are made before they are needed.
            window, advance, amount = jobs + 1, progress.advance, attrgetter("size_bytes")
            infos = list(run_tasks(executor, pack, tasks, window=window, advance=advance, amount=amount))
        progress.finish()
        manifest = plan.output.finish(
            infos,
            operation="create",
            options=_shaping(options),
            seed=options.seed if options.order == "shuffle" else None,
            classes=report.classes,
        )
    return replace(report, manifest=manifest)


def _shaping(options: CreateOptions) -> dict[str, Any]:
    """The options that shape the set, as the manifest tells them; no paths, and none that leave no trace."""
    shaping: dict[str, Any] = {
        "key_rule": options.key_rule,
        "include": list(options.include),
        "exclude": list(options.exclude),
        "require": list(options.require),
        "incomplete": options.incomplete if options.require else None,
        "label_from": options.label_from,
        "order": options.order,
        **options.cuts._asdict(),
        **options.settings.form._asdict(),
    }
    return {name: value for name, value in shaping.items() if value not in (None, [], ())}
