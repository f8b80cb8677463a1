"""``create``: make a shard set from folders, files, lists and tables.

:func:`create` has two halves. :func:`plan_create` finds and measures all files, sorts them bytewise, and groups them
into samples. It then selects and orders the samples, and cuts them into shards by real tar bytes. :func:`run_create`
runs one task per shard, in one process, in several processes, or on an engine. The bytes are always the same. Receipts
let an interrupted run resume. A file that changes between the halves is an error. With ``--append``, the keys of the
existing set are compared with the keys of the new samples. This module does not print, and does not know tar headers.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from xxhash import xxh3_128

from wdscli.arrays import numpy
from wdscli.create import grouping
from wdscli.create.files import Files, KeyRule, is_value, numbers_of
from wdscli.create.grouping import Samples
from wdscli.create.left_out import LeftOut, Unit
from wdscli.create.packing import PackMaker, PackTask
from wdscli.create.payloads import SourcePayloads, payload_at, read_recipe
from wdscli.create.rows import table_format
from wdscli.create.table import TableOptions, read_table
from wdscli.create.walk import FolderWalk, Globs, OwnOutputs
from wdscli.errors import DataError, InputError, InputNotFoundError, UsageError
from wdscli.plan.cut import Cuts, PlannedShard, Sizes, cut
from wdscli.plan.names import Rekey
from wdscli.plan.orders import LIMIT
from wdscli.plan.plan import DUPLICATE_KEY, Contents, Counts, ReorderPlan
from wdscli.plan.planfile import write_plan
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.strategy import check_post, check_reach
from wdscli.progress import QUIET, Progress
from wdscli.run.digests import digest_of, mark_of, run_digest, shaping_mark, source_version
from wdscli.run.execute import locked, run_plan
from wdscli.run.existing import find_unchanged, run_of, tidy, tidy_set
from wdscli.samples import iter_batches
from wdscli.shards.index import Check
from wdscli.shards.inputs import read_manifest
from wdscli.shards.manifest import Manifest, Provenance, Standing
from wdscli.shards.proof import find_index
from wdscli.shards.reading import index_batches
from wdscli.shards.view import check_new_names
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import addresses_of, base_name, folder_of, open_sink, open_source
from wdscli.storage.blocks import kind_of_name
from wdscli.storage.opening import at_once
from wdscli.storage.patterns import plain_name
from wdscli.text import to_text

_DIGITS = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """The options about samples. Each field is the option of ``wds create`` with the same name.

    ``no_follow`` leaves out links below a source. Unless ``incomplete`` is ``error``, members without a source file are
    left out; with ``skip``, also their samples. ``report`` names a file that gets a line of JSON for each file, row,
    field and sample that is left out. ``order`` is ``path`` (bytewise by key) or ``shuffle`` (by ``seed``). If it is
    None, samples keep the order of the list or table; without a list or table it means ``path``. At most ``limit``
    samples are written. ``append`` adds shards to an existing set.
    """

    from_list: str | Sequence[str] | None = None
    table: TableOptions | None = None
    key_rule: str = "first-dot"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    no_follow: bool = False
    require: Sequence[str] = ()
    incomplete: Literal["error", "skip", "keep"] = "error"
    label_from: Literal["parent", "top"] | None = None
    order: Literal["path", "shuffle"] | None = None
    seed: int = 0
    limit: int | None = None
    report: str | None = None
    append: bool = False

    @property
    def has_lists(self) -> bool:
        """Whether rows with the same key become one sample, whose JSON fields hold lists."""
        return self.table is not None and self.table.has_lists


@dataclass(frozen=True, slots=True)
class CreateReport:
    """The result. After a dry run, it describes the plan.

    ``skipped`` counts files and values that belong to no sample, by reason. ``incomplete`` counts samples that lack a
    required field, and ``oversized`` counts samples that are larger than ``max_size``. ``renamed_keys`` counts changed
    keys, and ``renamed`` maps at most ten thousand new keys to their old keys. ``manifest`` is None for a dry run.
    """

    shards: tuple[PlannedShard, ...]
    skipped: Mapping[str, int]
    incomplete: int = 0
    renamed: Mapping[str, str] = field(default_factory=dict)
    renamed_keys: int = 0
    oversized: int = 0
    classes: tuple[str, ...] | None = None
    manifest: Manifest | None = None
    manifest_address: str | None = None
    kept: int = 0
    """The number of shards that an earlier run made."""
    unread: int = 0
    """The number of sources that could not be read. Their members are left out, and ``report`` lists them."""
    left_out: Mapping[Unit, Mapping[str, int]] = field(default_factory=dict)
    """Counts of files, rows, fields and samples that were left out, by unit and reason. A field's reason begins with
    the field's name."""
    links_outside: int = 0
    """The number of links that point outside the given folder."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Counts of samples that were left out because of a repeated key or the limit, by reason."""
    matched: Mapping[str, int] = field(default_factory=dict)
    """Counts of files that matched each glob of ``--include`` and ``--exclude``, by option and glob."""
    is_unchanged: bool = False
    """True if ``--if-changed`` found the set up to date, so that nothing was done."""

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def members(self) -> int:
        return sum(shard.members for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        if self.manifest is not None:
            written = self.manifest.shards[len(self.manifest.shards) - len(self.shards) :]
            return sum(shard.size_bytes for shard in written)
        return sum(shard.size_bytes for shard in self.shards)


class CreatePlan(NamedTuple):
    """A complete plan. It exists before any shard is written."""

    output: OutputSet
    request: Request
    options: CreateOptions
    samples: Samples
    report: CreateReport
    stamp: str | None = None
    """The digest for ``--if-changed``. It is None without this option."""
    values: str = ""
    """A digest of the payloads that come from no file."""

    def task(self, number: int) -> PackTask:
        """Return the task that makes one shard."""
        order, shard = self.samples.order, self.report.shards[number]
        firsts = numpy.asarray(self.samples.firsts[shard.first : shard.end + 1])
        members = order[firsts[0] : firsts[-1]]
        firsts = numbers_of(firsts - firsts[0], len(order) + 1)
        return PackTask(shard.address, self.output.settings, self.samples.files, members, firsts)

    def work(self) -> ReorderPlan:
        """Return the plan in the form that ``wdscli.run`` carries out. It has shards, but no rows of inputs."""
        create_request, samples, report = self.request, self.samples, self.report
        request = Request(
            [],
            self.output.pattern.text,
            self.output.settings,
            jobs=create_request.jobs,
            engine=create_request.engine,
            post=create_request.post,
            resume=create_request.resume,
            if_changed=create_request.if_changed and not create_request.settings.force,
        )
        seed = self.options.seed if self.options.order == "shuffle" else None
        total, payload_bytes = samples.total, sum(int(part.sizes.sum()) for part in samples.columns())
        plan = ReorderPlan(
            request,
            Provenance(
                "create",
                _shaping(create_request, self.options),
                seed,
                classes=report.classes,
                stamp=self.stamp,
            ),
            Contents((self.output,), report.shards),
            Counts(total, total, len(samples.order), payload_bytes, 0, {}, {}, report.oversized),
            parcel=lambda number: self.task(number).parcel(),
        )
        mark = _mark(self, shaping_mark(plan))
        return replace(plan, mark=mark, provenance=plan.provenance._replace(plan=mark.text))


def create(
    request: Request,
    options: CreateOptions = CreateOptions(),
    *,
    dry_run: bool = False,
    progress: Progress = QUIET,
) -> CreateReport:
    """Make the shard set ``request.output`` (``out-%06d.tar``, ``out-{0000..0127}.tar``, one file, ``-``) from the
    folders and files in ``request.inputs``, and from the other sources in ``options``.

    ``on_error="skip"`` leaves out members whose source cannot be read. ``on_duplicate`` applies to a sample whose key
    already came from another folder, line or row. ``rekey`` is a format for new keys: of all samples, or only of
    samples with a repeated key (:mod:`wdscli.create.grouping`). ``trust_addresses`` lets a downloaded list or table
    name any address, and lets a local table name commands (:mod:`wdscli.storage.addresses`). The request's selection
    and its options about copying have no effect.

    Raises UsageError, InputError and OutputError. Raises DataError for a repeated field, a sample that lacks a required
    field, and a file that changes during the run. Shards that were complete before an error stay. The manifest is
    written last. A set without a manifest is not complete.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("a.txt", "a.cls", "b.txt"):
    ...     _ = (folder / name).write_text(name)
    >>> report = create(Request([str(folder)], str(folder / "out-%06d.tar"), cuts=Cuts(max_count=1)))
    >>> [(shard.samples, shard.members) for shard in report.shards]
    [(1, 2), (1, 1)]
    """
    named = {"--append": options.append, "--plan": request.plan_file, "--if-changed": request.if_changed}
    if len(exclusive := [name for name, value in named.items() if value]) > 1:
        raise UsageError(f"{exclusive[0]} and {exclusive[1]} exclude each other", hint="give one of them")
    standing = standing_set(request.output, request.settings) if options.append else None
    if standing is not None and request.resume and not dry_run:
        done = _added_before(request, options, standing, progress)
        if done is not None:
            return done
    with _payloads(request, options, progress) as payloads:
        plan = plan_create(request, options, payloads, standing=standing, progress=progress)
        return _carried_out(plan, payloads.left_out, dry_run=dry_run, progress=progress)


def standing_set(output: str, settings: ShardSettings) -> Standing:
    """Return the existing set of an output. Raises UsageError for an output that names a fixed number of shards,
    InputNotFoundError if there is no set, and DataError."""
    out = OutputSet(output, settings)
    address = out.manifest_address
    if address is None or out.pattern.single or out.pattern.count is not None:
        raise UsageError(
            f"{output} is a fixed name, so no shards can be added",
            hint="--append needs an output such as out-%06d.tar",
        )
    try:
        manifest = read_manifest(address)
    except InputNotFoundError:
        raise InputNotFoundError(
            f"there is no set to append to: {address} does not exist",
            hint="make the set without --append; `wds index` writes the manifest of existing shards",
        ) from None
    return Standing.of(out.pattern, manifest, folder_of(address))


def _carried_out(plan: CreatePlan, left_out: LeftOut, *, dry_run: bool, progress: Progress) -> CreateReport:
    """Write the shards of a plan, or its plan file. Write nothing for a dry run, or if the set is up to date."""
    request, standing = plan.request, plan.output.standing
    if request.if_changed:
        plan = plan._replace(stamp=_stamp(plan))
        if (manifest := find_unchanged(plan.output, plan.stamp)) is not None:
            if not dry_run:
                tidy_set(plan.output, manifest)
            return replace(plan.report, manifest=manifest, kept=len(manifest.shards), is_unchanged=True)
    if dry_run:
        return plan.report
    _write_report(plan.options.report, left_out)
    if standing is not None and not plan.report.shards:
        return replace(plan.report, manifest=standing.manifest)
    if request.plan_file is not None:
        work = plan.work()
        write_plan(work, mark_of(work), request.plan_file, force=request.settings.force)
        return plan.report
    return run_create(plan, progress=progress)


def _payloads(request: Request, options: CreateOptions, progress: Progress) -> SourcePayloads:
    left_out = LeftOut(
        progress,
        on_error=request.on_error,
        incomplete=options.incomplete,
        has_report=options.report is not None,
    )
    return SourcePayloads(request.trust_addresses, left_out)


def _added_before(
    request: Request, options: CreateOptions, standing: Standing, progress: Progress
) -> CreateReport | None:
    """Return the report of ``--append --resume`` if the same command has already added its shards; otherwise return
    None."""
    last = standing.before_last()
    if last is None:
        return None
    before, mark = last
    with suppress(DataError), _payloads(request, options, progress) as payloads:
        plan = plan_create(request, options, payloads, standing=before, progress=progress)
        work = plan.work()
        if (run := run_of(work)).mark.text == mark:
            with locked(run):
                tidy(work)
            return replace(plan.report, manifest=standing.manifest, kept=len(plan.report.shards))
    return None


def plan_create(
    request: Request,
    options: CreateOptions,
    payloads: SourcePayloads,
    *,
    standing: Standing | None = None,
    progress: Progress = QUIET,
) -> CreatePlan:
    """Find and measure all files, and decide the samples of each shard. The commands in a list write temporary files,
    which exist until ``payloads`` is closed. ``standing`` is the set to which shards are added."""
    creating = _Creating(request, options, payloads, standing, progress)
    creating.find()
    creating.arrange()
    return creating.cut()


_ARCHIVES = (".zip", ".7z", ".rar")


def _check_containers(sources: Sequence[str], output: OutputSet, progress: Progress) -> None:
    """Warn if all sources are tables, or all are archives: they become one file each, which is rarely what is meant.
    Raise UsageError for shards next to other sources, or with names like the output's: the shell has expanded the
    braces of the output."""
    tars = [source for source in sources if plain_name(source) != source and not os.path.isdir(source)]
    brace_names = _DIGITS.sub("#", output.pattern.text)
    of_output = [source for source in tars if _DIGITS.sub("#", source) == brace_names]
    if of_output or (tars and len(tars) < len(sources)):
        raise UsageError(
            f"{(of_output or tars)[0]} is a shard, not a source of samples",
            hint="if -o has braces, quote the braces: -o 'out-{0000..0127}.tar'; wds merge reads shards",
        )
    if not sources or not all(map(os.path.isfile, sources)):
        return
    what = f"{sources[0]} is packed as one file"
    if all(map(table_format, sources)):
        progress.warn(f"{what}; to make a sample of each row, use --from {sources[0]}")
    elif tars:
        progress.warn(f"{what}; to rewrite shards, use wds split {sources[0]}")
    elif all(source.endswith(_ARCHIVES) for source in sources):
        progress.warn(f"{what}; to make samples of the files in it, unpack it first")


class _Creating:
    """The state of one call of :func:`plan_create`. Each step uses the results of the steps before it."""

    samples: Samples
    """The remaining samples, in their order."""
    walked: array[int] | None = None
    """The files found in folders, in order, if a list or table is read after them."""
    classes: tuple[str, ...] | None = None
    """The class names, if a table or labels give them."""
    has_names = False
    """Whether a table gives class names in the field ``cls``, which must be numbered."""

    def __init__(
        self,
        request: Request,
        options: CreateOptions,
        payloads: SourcePayloads,
        standing: Standing | None,
        progress: Progress,
    ) -> None:
        # With --if-changed, check_replaceable later decides whether an existing set may be replaced.
        output, settings = request.output, request.settings
        check_new_names(output)
        settings = settings._replace(force=settings.force or request.if_changed)
        self.output = out = OutputSet(output, settings, standing=standing)
        _check_containers(request.inputs, out, progress)
        self.base = None if standing is None else standing.manifest
        """The set that samples are added to."""
        self.request, self.options, self.payloads, self.progress = request, options, payloads, progress
        self.rule, self.left_out = KeyRule(options.key_rule), payloads.left_out
        self.files = Files(by_source=request.on_duplicate != "error")
        check_post(request.post, output, is_stream=out.pattern.is_stream)
        # An output with one name and no limit is one shard of any size.
        is_one = out.pattern.single and request.cuts == Cuts()
        self.cuts = Cuts(shards=1) if is_one else request.cuts.checked(out.pattern.count)
        out.check(may_exist=request.resume)
        if request.engine is not None:
            check_reach(Request([], output, engine=request.engine), [], is_stream=out.pattern.is_stream)

    def find(self) -> None:
        """Find all files."""
        options, files, left_out, progress = self.options, self.files, self.left_out, self.progress
        sources = self.request.inputs
        lists = addresses_of(options.from_list, "--from list:")
        if not sources and not lists and options.table is None:
            raise UsageError("no source was given", hint="name folders or files, or use --from FILE")
        self.payloads.outputs = outputs = OwnOutputs(self.output)
        self.globs = globs = Globs(options.include, "--include"), Globs(options.exclude, "--exclude")
        skips = self.request.on_error == "skip"
        follows = not options.no_follow
        walk = FolderWalk(self.rule, *globs, outputs, files, left_out, progress, skips, follows)
        progress.start("finding files", None, "files")
        for source in sources:
            files.begin_source()
            walk.add(source)
        for glob in globs:
            glob.check(progress)
        files.first_listed = len(files)
        if lists or options.table is not None:
            self.walked = grouping.sorted_numbers(files)
        for address in lists:
            files.begin_source()
            read_recipe(address, self.rule, files, self.payloads, progress)
        if options.table is not None:
            table = options.table, self.rule, files, self.payloads, progress
            self.classes, self.has_names = read_table(*table)
        progress.finish()
        self.renamed_keys = self.rule.count_renamed(files.keys)
        if self.base is not None and self.classes not in (None, self.base.classes):
            raise UsageError(
                "the classes of the table differ from the classes in the set's manifest",
                hint="make a set without --append",
            )

    def _grouped(self, rekey: Rekey | None, first_index: int) -> tuple[Samples, int]:
        """Group the files into samples. Return the samples, and the number of left out repeated keys."""
        if self.options.has_lists:
            samples, repeated = grouping.in_lists(self.files, self.payloads.keep), 0
        else:
            samples, repeated = grouping.separated(
                self.files, self.request.on_duplicate, rekey, self.left_out, first_index
            )
        if self.rule.is_first_dot and (dotted := grouping.dotted_names(samples)):
            self.progress.warn(
                f"{dotted}; --key-rule last-dot makes a sample of each file name without its suffix"
            )
        return samples, repeated

    def arrange(self) -> None:
        """Group the files into samples, leave out unwanted samples, and order the rest."""
        request, options, base, left_out = self.request, self.options, self.base, self.left_out
        rekey = None if request.rekey is None else Rekey.parse(request.rekey, grouping.REKEY_NAMES)
        first_index = 0 if base is None else base.samples
        samples, repeated = self._grouped(rekey, first_index)
        if options.label_from is not None:
            samples = grouping.add_labels(samples, options.label_from)
        if options.table is not None and options.table.is_exported:
            samples = grouping.fields_as_given(samples)
        if self.walked is not None and options.order != "path":
            samples = grouping.as_given(samples, self.walked)
        if left_out.lacking:
            samples = grouping.without(samples, left_out.drop_samples())
        self.incomplete = len(left_out.lacking)
        if options.require:
            samples, lacking = grouping.require(samples, options.require, options.incomplete, left_out)
            self.incomplete += lacking
        if options.label_from is not None or self.has_names:
            self.classes = self._numbered_classes(samples)
        if options.order == "shuffle":
            samples = grouping.shuffled(samples, options.seed)
        if rekey is not None and request.on_duplicate != "rekey":
            samples = grouping.rekeyed(samples, rekey, first_index)
        if base is not None:
            keys = partial(_keys_of, self.output, base, self.progress)
            samples, existing = grouping.settled(
                samples, keys, request.on_duplicate, rekey, first_index, left_out
            )
            repeated += existing
        self.dropped = {DUPLICATE_KEY: repeated} if repeated else {}
        if options.limit is not None and options.limit < samples.total:
            self.dropped[LIMIT] = samples.total - options.limit
            samples = grouping.take(samples, range(options.limit))
        self.samples = samples

    def _numbered_classes(self, samples: Samples) -> tuple[str, ...]:
        """Number the class names in the samples, and return the names. Raises UsageError."""
        if self.base is not None and self.base.classes is None:
            option = "--column cls" if self.has_names else "--label-from"
            raise UsageError("the set's manifest has no class names", hint=f"leave out {option}")
        known_classes = () if self.base is None else self.base.classes or ()
        return tuple(grouping.number_labels(samples, known_classes))

    def cut(self) -> CreatePlan:
        """Cut the samples into shards. Raises InputError if there are none."""
        out, samples, left_out, dropped = self.output, self.samples, self.left_out, self.dropped
        counts = left_out.counts
        # With --append, the set may already contain all samples.
        if not samples.total and not (self.base is not None and dropped.keys() == {DUPLICATE_KEY}):
            reasons = ", ".join(f"{count} {reason}" for reason, count in {**counts, **dropped}.items())
            raise InputError(
                "no samples found" + (f" ({reasons})" if reasons else ""),
                hint="a sample is one or more files that share a name up to the first dot: cat7.jpg, cat7.json",
            )
        ends = grouping.sample_ends(samples, self.request.settings.form)
        members = numpy.diff(numpy.asarray(samples.firsts)).astype(numpy.uint32)
        sizes = Sizes(ends, members)
        report = CreateReport(
            shards=tuple(sizes.shards(out, cut(sizes.totals, self.cuts) if samples.total else ())),
            skipped=counts,
            incomplete=self.incomplete,
            renamed={to_text(new): to_text(old) for new, old in sorted(self.rule.renamed.items())},
            renamed_keys=self.renamed_keys,
            oversized=sizes.oversized(self.cuts),
            classes=self.classes,
            manifest_address=out.manifest_address,
            unread=left_out.unread,
            links_outside=left_out.outside,
            left_out=left_out.summary(),
            dropped=dropped,
            matched={
                f"{globs.option} {glob}": count
                for globs in self.globs
                for glob, count in globs.matched.items()
            },
        )
        self._say(report)
        return CreatePlan(out, self.request, self.options, samples, report, values=self.payloads.digest)

    def _say(self, report: CreateReport) -> None:
        """Note new keys. Warn of samples that are too large, and of fields that only the existing set has."""
        for new, old in report.renamed.items():
            self.progress.note(f"key {old} is written as {new}")
        if report.oversized:
            what = "sample is" if report.oversized == 1 else "samples are"
            limit = f"--max-size ({self.cuts.max_size} bytes)"
            self.progress.warn(f"{report.oversized} {what} larger than {limit}; each has a shard of its own")
        common = () if self.base is None or not self.samples.total else self.base.common_fields
        if common and (lacks := set(common).difference(map(to_text, self.samples.fields(0)))):
            key, names = to_text(self.samples.key(0)), ", ".join(sorted(lacks))
            self.progress.warn(f'every sample of the set has {names}, but new sample "{key}" does not')


def _keys_of(out: OutputSet, base: Manifest, progress: Progress) -> Iterator[list[bytes]]:
    """Yield the keys of an existing set in batches. They come from current indexes, or else from headers. Raises
    InputError, and DataError for a shard that differs from the manifest."""
    folder, shards = folder_of(out.manifest_address or ""), base.shards
    progress.start("reading the keys of the set", len(shards), "shards")
    for shard in shards:
        address = folder + shard.name
        with open_source(address) as source:
            if kind_of_name(address) is None and source.size not in (None, shard.size_bytes):
                raise DataError(
                    f"it has {source.size} bytes, but its manifest says {shard.size_bytes}",
                    code="manifest-mismatch",
                    shard=address,
                    hint="check the set with `wds verify`",
                )
            index = find_index(address, source, progress.warn, check=Check.ALL_LOCAL)
            for batch in iter_batches(source) if index is None else index_batches(index):
                yield batch.keys
        progress.advance(1)
    progress.finish()


def run_create(plan: CreatePlan, *, progress: Progress = QUIET) -> CreateReport:
    """Write the missing shards of a plan, then their manifest. Call it only once."""
    work = plan.work()
    done = run_plan(work, PackMaker(work, plan.task), progress=progress)
    return replace(plan.report, manifest=done.manifest, kept=done.kept)


def _write_report(address: str | None, left_out: LeftOut) -> None:
    """Write a line of JSON for each thing that is left out."""
    if address is None:
        return
    with open_sink(address, force=True) as sink:
        for line in left_out.lines():
            sink.write(line)


def _mark(plan: CreatePlan, options: str) -> PlanMark:
    """Return the fingerprint of a plan. It covers the options, the names and sizes of all files in order, the values,
    and the shards. File contents are unknown here, so a resumed run also compares the times of files."""
    rows = xxh3_128(plan.values.encode())
    for part in plan.samples.columns():
        for column in (part.rows, part.ends, part.sizes):
            rows.update(column)
    shards = plan.report.shards
    facts = [[base_name(shard.address), shard.samples, shard.members, shard.size_bytes] for shard in shards]
    bounds = [0, *(shard.end for shard in shards)]
    return PlanMark("", options, rows.hexdigest(), digest_of([*facts, bounds]))


def _stamp(plan: CreatePlan) -> str:
    """Return the digest for ``--if-changed``. It covers names, sizes and times of local files, versions of remote
    files, and values."""
    files, request, options = plan.samples.files, plan.request, plan.options
    order = plan.samples.order
    places = map(files.place, order)
    remote = list(dict.fromkeys(place for place in places if isinstance(place, str)))
    versions = dict(zip(remote, at_once(source_version, remote)))
    digest = xxh3_128()
    for number in order:
        place = files.place(number)
        if is_value(place):
            content: Any = payload_at(place, files.size(number))
        else:
            content = source_version(to_text(place)) if isinstance(place, bytes) else versions[str(place)]
        row, content = files.row(number), content if isinstance(content, bytes) else repr(content).encode()
        digest.update(b"%d:%b%d:%b" % (len(row), row, len(content), content))
    facts, shaping = [request.post, plan.report.classes], _shaping(request, options)
    return run_digest("create", shaping, options.seed, request.settings, facts, [digest.hexdigest()])


def _shaping(request: Request, options: CreateOptions) -> dict[str, Any]:
    """Return the options for the manifest: those that change the set, without paths and defaults."""
    on_duplicate = None if request.on_duplicate == "error" else request.on_duplicate
    shaping: dict[str, Any] = {
        "key_rule": options.key_rule,
        "include": list(options.include),
        "exclude": list(options.exclude),
        "no_follow": options.no_follow or None,
        "require": list(options.require),
        "incomplete": options.incomplete if options.require else None,
        "label_from": options.label_from,
        "order": options.order,
        "on_duplicate": "list" if options.has_lists else on_duplicate,
        "rekey": request.rekey,
        "limit": options.limit,
        **request.cuts._asdict(),
        **request.settings.form._asdict(),
    }
    return {name: value for name, value in shaping.items() if value not in (None, [], ())}
