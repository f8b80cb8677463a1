"""What the commands that write sets say in the end: the plan of a dry run, the summary of a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.shown import shown
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.cli.output import Out
    from wdscli.plan.join.parts import JoinCounts
    from wdscli.plan.request import ReorderPlan
    from wdscli.run.execute import ReorderReport

PARTS_TOLD = 20
"""So many parts are told one by one; more only with ``-v``."""


class PartTotals(NamedTuple):
    """What one part of an output holds."""

    part: str
    samples: int
    shards: int
    bytes: int


def _joined(counts: JoinCounts | None) -> dict[str, Any]:
    if counts is None:
        return {}
    from wdscli.cli.joining import joined_object

    return {"joined": joined_object(counts)}


def plural(count: int, word: str) -> str:
    """``1 sample``, ``2 samples``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def print_plan(out: Out, planned: ReorderPlan) -> None:
    """A line per shard that would be written (name, samples, bytes), and the totals."""
    rows = [(shown(shard.address), shard.samples, shard.size) for shard in planned.planned]
    parts = _planned_parts(planned)
    counts = planned.joined.counts if planned.joined is not None else None
    if out.json:
        for shard, (name, samples, size) in zip(planned.planned, rows, strict=True):
            part = {"part": planned.parts[shard.part].name} if parts else {}
            out.object({"shard": name, "samples": samples, "bytes": size, **part})
        for totals in parts:
            out.object(totals._asdict())
        if counts is not None:
            out.object(_joined(counts))
    else:
        out.rows(("shard", "samples", "bytes"), rows, right=(1, 2))
    total = f"{plural(planned.samples, 'sample')} in {plural(len(rows), 'shard')}, {human_size(planned.size_bytes)}"
    out.summary(f"would write {total} ({planned.strategy}: {planned.reason})")
    _tell_parts(out, parts)
    _tell_empty(out, sum(1 for shard in planned.planned if not shard.samples))
    _tell_joined(out, counts)
    _tell_losses(out, planned.dropped, planned.ignored, planned.oversized)


def print_report(out: Out, report: ReorderReport, done: str, oversized: int = 0) -> None:
    """What was read and written; with JSON one object."""
    if out.json:
        whole: dict[str, Any] = {}
        if report.parts == ("",):
            whole["fingerprint"] = report.manifest.fingerprint
        else:
            whole["parts"] = {
                name: {
                    "samples": manifest.samples,
                    "shards": len(manifest.shards),
                    "bytes": manifest.size_bytes,
                    "fingerprint": manifest.fingerprint,
                }
                for name, manifest in zip(report.parts, report.manifests, strict=True)
            }
        out.object(
            {
                "operation": report.operation,
                "samples_in": report.samples_in,
                "samples": report.samples,
                "members_in": report.members_in,
                "members": report.members,
                "shards": report.shards,
                "kept": report.kept,
                "bytes_in": report.bytes_in,
                "bytes": report.bytes_out,
                "payload_bytes_in": report.payload_bytes_in,
                "payload_bytes": report.payload_bytes,
                "dropped": report.dropped,
                "ignored": report.ignored,
                "strategy": report.strategy,
                **_joined(report.joined),
                **whole,
            }
        )
    for way, samples, members, size in (
        ("in", report.samples_in, report.members_in, report.payload_bytes_in),
        ("out", report.samples, report.members, report.payload_bytes),
    ):
        out.note(f"{way}: {plural(samples, 'sample')}, {plural(members, 'member')}, {size} bytes in them")
    shards = plural(report.shards, "shard")
    out.summary(f"{done} {plural(report.samples, 'sample')} into {shards}, {human_size(report.bytes_out)}")
    if report.kept:
        out.summary(f"kept {plural(report.kept, 'shard')} that an earlier run had made")
    if report.parts != ("",):
        written = zip(report.parts, report.manifests, strict=True)
        _tell_parts(out, [PartTotals(name, m.samples, len(m.shards), m.size_bytes) for name, m in written])
    _tell_empty(out, sum(1 for one in report.manifests for shard in one.shards if not shard.samples))
    _tell_joined(out, report.joined)
    _tell_losses(out, report.dropped, report.ignored, oversized)


def _planned_parts(planned: ReorderPlan) -> list[PartTotals]:
    """What each part would hold; none for an output that has no parts."""
    names = [part.name for part in planned.parts]
    if names == [""]:
        return []
    totals = [[0, 0, 0] for _ in names]
    for shard in planned.planned:
        of_part = totals[shard.part]
        of_part[0] += shard.samples
        of_part[1] += 1
        of_part[2] += shard.size
    return [PartTotals(name, *of_part) for name, of_part in zip(names, totals, strict=True)]


def _tell_parts(out: Out, parts: Sequence[PartTotals]) -> None:
    told = parts if out.talk.verbose else parts[:PARTS_TOLD]
    for name, samples, shards, size in told:
        out.summary(f"  {name}: {plural(samples, 'sample')} in {plural(shards, 'shard')}, {human_size(size)}")
    if len(told) < len(parts):
        out.summary(f"  and {plural(len(parts) - len(told), 'more part')}")


def _tell_empty(out: Out, shards: int) -> None:
    if shards:
        out.warn(f"{plural(shards, 'shard')} without samples: fewer samples than shards")


def _tell_joined(out: Out, found: JoinCounts | None) -> None:
    if found is not None:
        from wdscli.cli.joining import joined_lines

        for line in joined_lines(found):
            out.summary(line)


def _tell_losses(out: Out, dropped: dict[str, int], ignored: dict[str, int], oversized: int) -> None:
    """What was read and not written, by reason."""
    if dropped:
        out.summary(f"left out {plural(sum(dropped.values()), 'sample')}: {by_reason(dropped)}")
    if ignored:
        out.summary(
            f"passed over {plural(sum(ignored.values()), 'member')} of no sample: {by_reason(ignored)}"
        )
    if oversized:
        out.warn(f"{plural(oversized, 'sample')} larger than --max-size, each in a shard of its own")


def by_reason(counts: dict[str, int]) -> str:
    """``where 3, keys 2``."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
