"""The common part of commands that reorder: plan, print the plan, run, report.

:func:`read_options` turns the options into the library's request. :func:`reorder` is the body of split, merge, shuffle,
sort and map. :func:`print_plan` and :func:`print_report` are also for ``wds run``. :class:`~wdscli.cli.output.Out`
prints everything, as JSON or as text. This module treats all orders alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.cli.output import Out, by_reason, facts, json_line, plural
from wdscli.errors import UsageError
from wdscli.shown import shown
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.cli.options import GeneralOptions, InputOptions, OutputOptions, ReorderOptions
    from wdscli.ops.create import CreateReport
    from wdscli.plan.duplicates import Duplicates, LeftOutSamples
    from wdscli.plan.orders import Order
    from wdscli.plan.plan import ReorderPlan
    from wdscli.plan.request import Request
    from wdscli.plan.table import JoinCounts
    from wdscli.run.execute import ReorderReport

PARTS_SHOWN = 20
"""Number of parts that are listed without ``-v``."""
DUPLICATES_SHOWN = 20
"""Number of duplicates that are listed with ``-v``."""
_DONE = {"shuffle": "shuffled", "sort": "sorted", "merge": "merged", "map": "mapped", "create": "wrote"}

_ORDINALS = ("first", "second", "third", "fourth")


class PartTotals(NamedTuple):
    """Totals of one part of an output."""

    part: str
    samples: int
    shards: int
    bytes: int


def read_options(
    shards: Sequence[str],
    output: OutputOptions,
    options: ReorderOptions,
    *,
    own_seed: bool = False,
    column: list[str] | None = None,
) -> tuple[Out, Request]:
    """Return the command's printer and the library's request. ``own_seed`` is true if the command uses the seed not
    only for --sample. Raises UsageError."""
    from wdscli.cli.options import library_word

    out = Out.of(options.general, "" if output.dry_run else output.output)
    return out, read_request(
        shards,
        output,
        options.inputs,
        options.general,
        own_seed=own_seed,
        column=column,
        cuts=options.cuts.parse(),
        on_error=library_word(options.on_error),
        **options.tasks._asdict(),
        **options.engine._asdict(),
    )


def read_request(
    shards: Sequence[str],
    output: OutputOptions,
    inputs: InputOptions,
    general: GeneralOptions,
    *,
    own_seed: bool = False,
    column: list[str] | None = None,
    **request_fields: Any,
) -> Request:
    """Return the library's request. ``column`` has new fields. ``request_fields`` are further fields of the request.
    Raises UsageError."""
    from wdscli.plan.request import Request

    if inputs.report == "-":
        raise UsageError("--report needs a file name", hint="--json lists the duplicates on standard output")
    # The options as typed, without defaults. A repeatable option that was given once is stored as a value, not as a
    # list.
    typed = {name: value for name, value in inputs.selection._asdict().items() if value not in (None, [], ())}
    if "sample" not in typed or not typed.get("seed"):
        typed.pop("seed", None)
    typed |= {"column": column} if column else {}
    for name in ("keys_from", "not_keys_from", "where"):
        if len(typed.get(name, ())) == 1:
            typed[name] = typed[name][0]
    return Request(
        inputs=shards,
        output=output.output,
        settings=output.settings(),
        selection=inputs.selection.parse(own_seed=own_seed, has_dedup=bool(inputs.dedup), column=column),
        selection_text=typed,
        allow_empty=inputs.allow_empty,
        dedup=inputs.dedup or (),
        near=inputs.selection.near,
        trust_addresses=general.trust_addresses,
        report=inputs.report,
        **inputs.duplicates._asdict(),
        **request_fields,
    )


def reorder(
    out: Out,
    request: Request,
    order: Order,
    *,
    dry_run: bool,
    planned: Callable[[ReorderPlan], None] = lambda plan: None,
) -> None:
    """Plan the request in this order, and run, print or write the plan. ``planned`` is called with the plan."""
    from wdscli.executors.local import keep_freed_memory
    from wdscli.plan.plan import make_plan
    from wdscli.plan.planfile import write_plan
    from wdscli.plan.scratch import Scratch
    from wdscli.run.digests import mark_of
    from wdscli.run.execute import plan_of_run, run_plan, unchanged_run

    keep_freed_memory()
    force = request.settings.force
    check_plan_file(None if dry_run else request.plan_file, force=force)
    runs, progress = not dry_run and request.plan_file is None, out.progress()
    with Scratch(request.tmp) as scratch:
        request, finished = unchanged_run(request, order, dry_run=dry_run)
        if finished is not None:
            print_report(out, finished)
            return
        plan = (plan_of_run if runs else make_plan)(request, order, scratch, progress=progress)
        out.note(f"strategy {': '.join(plan.choice)}")
        report = None if dry_run else request.report
        _print_left_out(out, plan.left_out, report, force=force or request.resume)
        planned(plan)
        if dry_run:
            print_plan(out, plan)
        elif request.plan_file is not None:
            write_plan(plan, mark_of(plan), request.plan_file, force=force)
            print_stored(out, request.plan_file, len(plan.contents.shards), plan)
        else:
            written = run_plan(plan, progress=progress)
            print_report(out, written)
            _say_lone_shards(out, request, written)


def _say_lone_shards(out: Out, request: Request, report: ReorderReport) -> None:
    """For training sets of one shard, name the option that writes more. webdataset gives each worker whole shards, and
    fails if a worker gets none."""
    is_for_training = report.operation == "shuffle" or report.parts != ("",)
    if not is_for_training or "%" not in request.output or any(request.cuts):
        return
    lone = [
        name
        for name, manifest in zip(report.parts, report.manifests, strict=True)
        if len(manifest.shards) == 1 and manifest.samples > 1
    ]
    if lone:
        which = f"{' and '.join(lone)}: " if any(lone) else ""
        out.summary(f"{which}one shard; webdataset needs one for each worker: --shards N writes N shards")


def _print_left_out(out: Out, left_out: LeftOutSamples, report: str | None, *, force: bool) -> None:
    """Print each duplicate: as an object with ``--json``, as a line with ``-v``. Write a line of JSON to the file
    ``report`` for everything that is left out."""
    from contextlib import nullcontext

    from wdscli.storage import open_sink

    if not (out.json or out.talk.verbose or report):
        return
    with nullcontext() if report is None else open_sink(report, force=force) as sink:
        write = sink.write if sink is not None else lambda line: None
        for line in left_out.rows:
            write(line)
        for reason in left_out.damage:
            write(json_line({"left_out": "sample", "reason": shown(reason)}))
        for duplicates in left_out.duplicates:
            _print_duplicates(out, duplicates, write, "" if sink else ": --report FILE lists all")


def _print_duplicates(out: Out, duplicates: Duplicates, write: Callable[[bytes], object], hint: str) -> None:
    by = " and ".join(duplicates.by)
    for number, copy in enumerate(duplicates.listed()):
        facts = {
            "duplicate": copy.key,
            "shard": shown(copy.shard),
            "index": copy.place,
            "bytes": copy.size_bytes,
            "by": list(duplicates.by),
            "of": {"key": copy.first_key, "shard": shown(copy.first_shard), "index": copy.first_place},
        }
        if out.json:
            out.object(facts)
        if number < DUPLICATES_SHOWN:
            out.note(
                f"left out {copy.key} (sample {copy.place} of {copy.shard}): same {by} as "
                f"{copy.first_key} (sample {copy.first_place} of {copy.first_shard})"
            )
        elif number == DUPLICATES_SHOWN:
            out.note(f"... and {duplicates.total - number} more{hint}")
        write(json_line(facts))


def check_plan_file(address: str | None, *, force: bool) -> None:
    """Raise OutputExistsError if a file of the plan exists and may not be replaced."""
    from wdscli.shards.view import refuse_existing

    if address is not None and not force:
        refuse_existing(address)


def print_stored(out: Out, address: str, tasks: int, plan: ReorderPlan | CreateReport) -> None:
    """Print that a plan is written, and how to run it."""
    if out.json:
        out.object({"plan": shown(address), "tasks": tasks, **facts(plan, "samples bytes=size_bytes")})
    out.summary(f"planned {_total(plan, tasks)}: {address}")
    if tasks > 1:
        out.summary(f"wds run {address} --task K, for K from 0 to {tasks - 1}, makes one shard each")
        out.summary(f"wds run {address} --finish then writes the manifest; wds run {address} alone does both")
    else:
        out.summary(f"wds run {address} runs the plan")


def _total(plan: ReorderPlan | CreateReport, shards: int) -> str:
    return f"{plural(plan.samples, 'sample')} in {plural(shards, 'shard')}, {human_size(plan.size_bytes)}"


def print_plan(out: Out, plan: ReorderPlan) -> None:
    """Print a line for each shard of the plan (name, samples, bytes), and the totals."""
    contents = plan.contents
    rows = [(shown(shard.address), shard.samples, shard.size_bytes) for shard in contents.shards]
    # The dictionary is empty if the output has no parts.
    parts = [
        PartTotals(part.part, 0, 0, 0) for part in contents.outputs if part.part or len(contents.outputs) > 1
    ]
    for shard in contents.shards if parts else ():
        name, samples, shards, size = parts[shard.part]
        parts[shard.part] = PartTotals(name, samples + shard.samples, shards + 1, size + shard.size_bytes)
    joined = None if contents.joined is None else contents.joined.counts
    if out.json:
        for shard, (name, samples, size) in zip(contents.shards, rows, strict=True):
            part = {"part": contents.outputs[shard.part].part} if parts else {}
            out.object({"shard": name, "samples": samples, "bytes": size, **part})
        for totals in parts:
            out.object(totals._asdict())
        if joined is not None:
            out.object(_joined_object(joined))
    else:
        out.rows(("shard", "samples", "bytes"), rows, right=(1, 2))
    out.summary(f"would write {_total(plan, len(rows))} ({': '.join(plan.choice)})")
    # If each part is one shard, the rows of shards already show the totals of parts.
    listed = parts if len(rows) > len(parts) else []
    _print_contents(out, listed, sum(not shard.samples for shard in contents.shards), joined)
    print_losses(out, plan.counts.dropped, plan.counts.ignored, plan.counts.oversized)
    if plan.request.resume:
        from wdscli.run.existing import done_tasks, run_of

        out.summary(f"{len(done_tasks(run_of(plan)))} of {plural(len(rows), 'shard')} are already done")


def print_report(out: Out, report: ReorderReport) -> None:
    """Print the totals of input and output, as text or as one JSON object."""
    if report.is_unchanged:
        print_unchanged(out, report, _report_object(report))
        return
    written = list(zip(report.parts, report.manifests, strict=True))
    if out.json:
        out.object(_report_object(report))
    for way, samples, members, size in (
        ("in", report.samples_in, report.members_in, report.payload_bytes_in),
        ("out", report.samples, report.members, report.payload_bytes),
    ):
        out.note(f"{way}: {plural(samples, 'sample')}, {plural(members, 'member')}, {size} bytes of payload")
    done = _DONE.get(report.operation, report.operation) if report.joined is None else "joined"
    shards = plural(report.shards, "shard")
    if report.kept:
        out.summary(f"kept {plural(report.kept, 'shard')} of an earlier run")
    parts = [
        PartTotals(name, manifest.samples, len(manifest.shards), manifest.size_bytes)
        for name, manifest in written
        if report.parts != ("",)
    ]
    empty = sum(not shard.samples for manifest in report.manifests for shard in manifest.shards)
    _print_contents(out, parts, empty, report.joined)
    print_losses(out, report.dropped, report.ignored, report.oversized)
    is_view = any(manifest.view is not None for manifest in report.manifests)
    into = f"{shards} of a view" if is_view else shards
    total = f"{plural(report.samples, 'sample')} into {into}, {human_size(report.bytes_out)}"
    out.done(f"{done} {total}", 0 if is_view else report.bytes_out)


def print_unchanged(out: Out, report: ReorderReport | CreateReport, plain: dict[str, Any]) -> None:
    """Print that the output is up to date. ``plain`` is the report as an object for JSON."""
    if out.json:
        out.object({**plain, "unchanged": True})
    total = f"{plural(report.samples, 'sample')} in {plural(report.kept, 'shard')}"
    out.summary(f"nothing to do: inputs and options have not changed since the set was written, {total}")


def _report_object(report: ReorderReport) -> dict[str, Any]:
    plain = facts(
        report,
        "operation samples_in samples members_in members shards kept bytes_in bytes=bytes_out "
        "payload_bytes_in payload_bytes dropped ignored strategy",
    )
    if report.joined is not None:
        plain |= _joined_object(report.joined)
    if report.parts == ("",):
        return {**plain, "fingerprint": report.manifest.fingerprint}
    plain["parts"] = {
        name: {
            "samples": manifest.samples,
            "shards": len(manifest.shards),
            **facts(manifest, "bytes=size_bytes fingerprint"),
        }
        for name, manifest in zip(report.parts, report.manifests, strict=True)
    }
    return plain


def _joined_object(counts: JoinCounts) -> dict[str, Any]:
    """Return the counts of a join as an object for JSON."""
    names = (
        "matched unmatched partners fields_replaced=replaced fields_left_out=left_out fields_renamed=renamed"
    )
    return {"joined": facts(counts, names)}


def _print_contents(
    out: Out, parts: Sequence[PartTotals], empty_shards: int, joined: JoinCounts | None
) -> None:
    """Print the contents of a written or planned output."""
    listed = parts if out.talk.verbose else parts[:PARTS_SHOWN]
    for name, samples, shards, size in listed:
        out.summary(f"  {name}: {plural(samples, 'sample')} in {plural(shards, 'shard')}, {human_size(size)}")
    if len(listed) < len(parts):
        out.summary(f"  and {plural(len(parts) - len(listed), 'more part')}")
    if empty_shards:
        out.warn(f"{plural(empty_shards, 'shard')} without samples")
    if joined is None:
        return
    samples = joined.matched + joined.unmatched[0]
    in_all = f" in all {len(joined.unmatched)} sets" if len(joined.unmatched) > 2 else ""
    alone = [_alone(joined, number) for number, count in enumerate(joined.unmatched) if count]
    out.summary("; ".join([f"matched {joined.matched} of {plural(samples, 'sample')}{in_all}", *alone]))
    for field, counts in joined.conflicts.items():
        done = ", ".join(f"{word} in {plural(count, 'sample')}" for word, count in counts.items())
        out.summary(f"{field}: {done}")


def _alone(joined: JoinCounts, number: int) -> str:
    """Return a text on how many samples of a set lack a partner, and whether they are kept."""
    count, sets = joined.unmatched[number], len(joined.unmatched)
    name = f"the {_ORDINALS[number]} set" if number < len(_ORDINALS) else f"set {number + 1}"
    lack = f"{'has' if count == 1 else 'have'} no partner{' in some set' if sets > 2 else ''}"
    if joined.kind == "left" and number and sets > 2:
        return f"{count} of {name} {lack}"  # samples that have a partner in the first set are kept
    is_kept = joined.kind == "outer" or (joined.kind == "left" and not number)
    return f"{count} of {name} {lack} ({'kept' if is_kept else 'left out'}: --join {joined.kind})"


def print_losses(out: Out, dropped: dict[str, int], ignored: dict[str, int], oversized: int = 0) -> None:
    """Print the counts of samples and members that were left out, by reason."""
    if dropped:
        out.summary(f"left out {plural(sum(dropped.values()), 'sample')}: {by_reason(dropped)}")
    if ignored:
        count = sum(ignored.values())
        belong = "belongs" if count == 1 else "belong"
        out.summary(f"skipped {plural(count, 'member')} that {belong} to no sample: {by_reason(ignored)}")
    if oversized:
        out.warn(f"{plural(oversized, 'sample')} larger than --max-size, each in a shard of its own")
