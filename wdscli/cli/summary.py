"""The page that ``wds ls --summary`` prints, and its JSON object.

Two blocks: facts of the set, then a row for each field. On a terminal numbers are rounded to what people
read; in a pipe the facts are ``name TAB value`` with whole numbers, so that a script can take one by name.
"""

from __future__ import annotations

from typing import Any

from wdscli.cli.listing import counts
from wdscli.cli.output import Cell, Out
from wdscli.look.summary import FieldSizes, Summary
from wdscli.units import human_size

_BARS = "·▁▂▃▄▅▆▇█"
FIELD_HEADER = ("field", "count", "share", "min", "median", "max", "total", "sizes (log)")


def print_summary_of(out: Out, summary: Summary) -> None:
    """Facts and fields, or one JSON object."""
    if out.json:
        out.object(summary_object(summary))
        return
    if out.terminal:
        for name, value in _human_facts(summary):
            out.line(f"{name:<13}{value}")
    else:
        out.rows(("fact", "value"), _plain_facts(summary))
    if summary.fields:
        size = human_size if out.terminal else str
        out.write(b"\n")
        out.table(
            FIELD_HEADER,
            [_field_row(field, summary.samples, size) for field in summary.fields],
            right=range(1, 7),
        )


def sparkline(histogram: list[int]) -> str:
    """
    >>> sparkline([1, 0, 4, 8])
    '▁·▄█'
    """
    most = max(histogram)
    return "".join(_BARS[-(-count * 8 // most)] for count in histogram)


def _field_row(field: FieldSizes, samples: int, size: Any) -> list[Cell]:
    share = f"{100 * field.occurrences / samples:.1f}%" if samples else ""
    median = size(field.median) if field.is_exact else "~" + size(field.median)
    return [
        field.field,
        field.occurrences,
        share,
        size(field.smallest),
        median,
        size(field.largest),
        size(field.total),
        sparkline(field.histogram),
    ]


def _plain_facts(summary: Summary) -> list[tuple[str, Cell]]:
    facts: list[tuple[str, Cell]] = [
        ("shards", summary.shards),
        ("samples", summary.samples),
        ("members", summary.members),
        ("bytes", summary.size_bytes),
        ("payload bytes", summary.payload_bytes),
        ("overhead bytes", summary.overhead_bytes),
        ("repeated keys", summary.repeated_keys),
    ]
    balance = summary.balance
    if balance is not None:
        facts += [
            ("fewest samples in a shard", balance.fewest_samples),
            ("most samples in a shard", balance.most_samples),
            ("smallest shard", balance.smallest_bytes),
            ("largest shard", balance.largest_bytes),
        ]
    facts += [(f"ignored {reason}", count) for reason, count in sorted(summary.report.ignored.items())]
    facts += [(f"left out {reason}", count) for reason, count in sorted(summary.report.dropped.items())]
    if summary.report.broken:
        facts.append(("broken shards", _broken_shards(summary)))
    return facts


def _human_facts(summary: Summary) -> list[tuple[str, str]]:
    share = 100 * summary.overhead_bytes / summary.size_bytes if summary.size_bytes else 0.0
    overhead = f"{human_size(summary.overhead_bytes)} of headers and padding ({share:.1f}%)"
    facts = [
        ("samples", f"{summary.samples:,}"),
        ("members", f"{summary.members:,}"),
        ("bytes", f"{human_size(summary.size_bytes)}, {overhead}"),
        ("shards", _balance_text(summary)),
    ]
    if summary.samples:
        mean = human_size(summary.payload_bytes / summary.samples)
        facts.append(("mean sample", f"{mean}, {summary.members / summary.samples:.3g} members"))
    facts.append(("keys", _keys_text(summary.repeated_keys)))
    if summary.report.ignored:
        facts.append(("ignored", f"members of no sample: {counts(summary.report.ignored)}"))
    if summary.report.dropped:
        facts.append(("left out", f"samples: {counts(summary.report.dropped)}"))
    if summary.report.broken:
        facts.append(("broken", f"{_broken_shards(summary)} shards; what is whole in them is counted"))
    return facts


def _broken_shards(summary: Summary) -> int:
    """A shard may be broken in several places."""
    return len({error.shard for error in summary.report.broken})


def _keys_text(repeated: int) -> str:
    if not repeated:
        return "each comes once"
    what = "1 key comes" if repeated == 1 else f"{repeated:,} keys come"
    return f"{what} more than once: see which with `wds verify`"


def _balance_text(summary: Summary) -> str:
    balance = summary.balance
    if balance is None or summary.shards == 1:
        return f"{summary.shards:,}"
    samples = f"{balance.fewest_samples:,} to {balance.most_samples:,} samples"
    return (
        f"{summary.shards:,}, of {samples} and "
        f"{human_size(balance.smallest_bytes)} to {human_size(balance.largest_bytes)} each"
    )


def summary_object(summary: Summary) -> dict[str, Any]:
    """The summary for JSON; all sizes in bytes."""
    balance = summary.balance
    return {
        "shards": summary.shards,
        "samples": summary.samples,
        "members": summary.members,
        "bytes": summary.size_bytes,
        "payload_bytes": summary.payload_bytes,
        "overhead_bytes": summary.overhead_bytes,
        "repeated_keys": summary.repeated_keys,
        "balance": None if balance is None else balance._asdict(),
        "fields": {field.field: _field_object(field) for field in summary.fields},
        "ignored": summary.report.ignored,
        "dropped": summary.report.dropped,
        "broken": [str(error) for error in summary.report.broken],
    }


def _field_object(field: FieldSizes) -> dict[str, Any]:
    return {
        "count": field.occurrences,
        "min": field.smallest,
        "median": field.median,
        "median_is_exact": field.is_exact,
        "max": field.largest,
        "total": field.total,
        "histogram": field.histogram,
    }
