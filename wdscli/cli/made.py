"""What the commands that write sets say in the end: the plan of a dry run, the summary of a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.cli.output import Out
    from wdscli.ops.reorder import ReorderPlan
    from wdscli.ops.running import ReorderReport


def plural(count: int, word: str) -> str:
    """``1 sample``, ``2 samples``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def print_plan(out: Out, planned: ReorderPlan) -> None:
    """A line per shard that would be written (name, samples, bytes), and the totals."""
    rows = [(shard.address, shard.samples, shard.size) for shard in planned.planned]
    if out.json:
        for name, samples, size in rows:
            out.object({"shard": name, "samples": samples, "bytes": size})
    else:
        out.rows(("shard", "samples", "bytes"), rows, right=(1, 2))
    total = f"{plural(planned.samples, 'sample')} in {plural(len(rows), 'shard')}, {human_size(planned.size_bytes)}"
    out.summary(f"would write {total} ({planned.strategy}: {planned.reason})")
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
                "members": report.members,
                "shards": report.shards,
                "bytes_in": report.bytes_in,
                "bytes": report.bytes_out,
                "dropped": report.dropped,
                "ignored": report.ignored,
                "strategy": report.strategy,
                **whole,
            }
        )
    shards = plural(report.shards, "shard")
    out.summary(f"{done} {plural(report.samples, 'sample')} into {shards}, {human_size(report.bytes_out)}")
    _tell_losses(out, report.dropped, report.ignored, oversized)


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
