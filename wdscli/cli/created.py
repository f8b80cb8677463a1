"""What ``create`` asks for, and what it says in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdscli.cli.made import by_reason, plural
from wdscli.create.table import TableOptions
from wdscli.errors import UsageError
from wdscli.ops.create import CreateOptions, CreateReport
from wdscli.plan.cut import Cuts
from wdscli.shown import shown
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.cli.commands.create import SampleOptions, SourceOptions
    from wdscli.cli.options import CutOptions, OutputOptions, TrustOptions
    from wdscli.cli.output import Out

_SHOWN_RENAMES = 3


def create_options(
    sources: SourceOptions,
    samples: SampleOptions,
    cuts: CutOptions,
    output: OutputOptions,
    trust: TrustOptions,
) -> CreateOptions:
    """The options as the operation takes them. Raises UsageError for some that do not go together."""
    return CreateOptions(
        from_list=tuple(sources.from_list or ()),
        table=_table(sources),
        key_rule=samples.key_rule,
        include=tuple(sources.include or ()),
        exclude=tuple(sources.exclude or ()),
        require=tuple(name for text in samples.require or () for name in text.split(",") if name),
        incomplete=samples.incomplete,
        label_from=samples.label_from,
        order=samples.order,
        seed=samples.seed,
        cuts=Cuts(*cuts),
        mtime=output.mtime,
        long_names=output.long_names,
        checksum=output.checksum,
        index=not output.no_index,
        force=output.force,
        fsync=output.fsync,
        jobs=output.jobs,
        post=output.post,
        trust_addresses=trust.trust_addresses,
    )


def _table(sources: SourceOptions) -> TableOptions | None:
    if sources.from_table:
        return TableOptions(
            tuple(sources.from_table),
            sources.key,
            sources.rekey,
            tuple(sources.field or ()),
            sources.json_rest,
        )
    given = {
        "--key": sources.key,
        "--rekey": sources.rekey,
        "--field": sources.field,
        "--json-rest": sources.json_rest,
    }
    for name, value in given.items():
        if value:
            raise UsageError(f"{name} is for tables", hint="name the table with --from-table")
    return None


def print_created(out: Out, report: CreateReport) -> None:
    """The plan of a dry run, a line a shard; the summary of a real one; with JSON one object last."""
    if report.manifest is None:
        _print_plan(out, report)
    if out.json:
        out.object(_plain(report))
    done = "wrote" if report.manifest is not None else "would write"
    total = f"{plural(report.samples, 'sample')} ({plural(report.members, 'file')})"
    out.summary(f"{done} {total} into {plural(len(report.shards), 'shard')}, {human_size(report.size_bytes)}")
    if report.skipped:
        out.summary(f"skipped what is in no sample: {by_reason(dict(report.skipped))}")
    if report.incomplete and "incomplete" not in report.skipped:
        out.summary(f"kept {plural(report.incomplete, 'sample')} without a required field")
    if report.classes is not None:
        kinds = "1 class" if len(report.classes) == 1 else f"{len(report.classes)} classes"
        out.summary(f"labelled {kinds}; the manifest has their names")
    _tell_renames(out, report)


def _print_plan(out: Out, report: CreateReport) -> None:
    if out.json:
        for shard in report.shards:
            out.object(
                {
                    "shard": shown(shard.address),
                    "samples": shard.samples,
                    "members": shard.members,
                    "bytes": shard.size_bytes,
                }
            )
        return
    rows = [(shown(shard.address), *shard[1:]) for shard in report.shards]
    out.rows(("shard", "samples", "members", "bytes"), rows, right=(1, 2, 3))


def _plain(report: CreateReport) -> dict[str, object]:
    manifest = report.manifest
    return {
        "operation": "create",
        "dry_run": manifest is None,
        "samples": report.samples,
        "members": report.members,
        "shards": len(report.shards),
        "bytes": report.size_bytes,
        "skipped": dict(report.skipped),
        "incomplete": report.incomplete,
        "renamed": dict(report.renamed),
        "renamed_keys": report.renamed_keys,
        "classes": None if report.classes is None else list(report.classes),
        "oversized": report.oversized,
        "manifest": shown(report.manifest_address)
        if manifest is not None and report.manifest_address
        else None,
        "fingerprint": manifest.fingerprint if manifest is not None else None,
    }


def _tell_renames(out: Out, report: CreateReport) -> None:
    if not report.renamed:
        return
    shown = [f"{old} -> {new}" for new, old in list(report.renamed.items())[:_SHOWN_RENAMES]]
    more = ", ..." if report.renamed_keys > len(shown) else ""
    out.summary(f"renamed {plural(report.renamed_keys, 'key')}: {', '.join(shown)}{more}")
