"""What is said of samples that were left out because they repeat others: on standard error, as JSON, in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wdscli.cli.output import json_line
from wdscli.errors import UsageError
from wdscli.shown import shown
from wdscli.storage import open_sink

if TYPE_CHECKING:
    from wdscli.cli.output import Out
    from wdscli.plan.duplicates import Duplicate, Duplicates

SAID_AT_MOST = 20


def check_report(report: str | None, dedup: object) -> None:
    """Raise UsageError for a report that would have nothing to say, or nowhere to go."""
    if report is not None and not dedup:
        raise UsageError("--report lists duplicates", hint="--dedup key, or --dedup FIELD, finds them")
    if report == "-":
        raise UsageError("--report names a file", hint="--json lists the duplicates on standard output")


def tell_duplicates(out: Out, found: Duplicates, report: str | None, *, force: bool) -> None:
    """Each duplicate: with ``--json`` an object, with ``-v`` a line, and a line of JSON in the file ``report``."""
    if not (found.total or report) or not (out.json or out.talk.verbose or report):
        return
    if report is None:
        _tell(out, found, None)
        return
    with open_sink(report, force=force) as sink:
        _tell(out, found, sink)


def _tell(out: Out, found: Duplicates, sink: Any) -> None:
    for number, one in enumerate(found.listed()):
        told = as_object(one, found.by)
        if out.json:
            out.object(told)
        if number < SAID_AT_MOST:
            out.note(as_line(one, found.by))
        elif number == SAID_AT_MOST:
            out.note(f"... and {found.total - number} more" + ("" if sink else ": --report FILE lists all"))
        if sink is not None:
            sink.write(json_line(told))


def as_object(one: Duplicate, by: tuple[str, ...]) -> dict[str, Any]:
    """One duplicate as JSON has it."""
    return {
        "duplicate": one.key,
        "shard": shown(one.shard),
        "index": one.place,
        "bytes": one.size_bytes,
        "by": list(by),
        "of": {"key": one.first_key, "shard": shown(one.first_shard), "index": one.first_place},
    }


def as_line(one: Duplicate, by: tuple[str, ...]) -> str:
    """One duplicate as ``-v`` has it."""
    return (
        f"left out {one.key} (sample {one.place} of {one.shard}): same {' and '.join(by)} as "
        f"{one.first_key} (sample {one.first_place} of {one.first_shard})"
    )
