"""Names that no sample has, and outputs that would have no sample: refused, unless that was allowed.

What it is: :func:`check_named` and :func:`check_empty`, which every command that writes selected samples calls when
all of them were seen and before anything has its final name. It must not know how samples were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wdscli.errors import DataError
from wdscli.progress import Progress
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.selection.named import Absence

_ALLOW = "--allow-empty writes all the same"


def check_named(absences: Iterable[Absence], *, allow: bool, progress: Progress) -> None:
    """Raise DataError ``not-found`` for names that no sample has; warn of those that may be nowhere, and with ``allow``
    of all."""
    refused = []
    for absence in absences:
        if absence.needed and not allow:
            refused.append(absence)
        else:
            progress.warn(absence.text)
    if refused:
        hints = [*dict.fromkeys(one.hint for one in refused if one.hint), _ALLOW]
        message = "; ".join(one.message for one in refused)
        raise DataError(message, code="not-found", hint="; ".join(hints))


def check_empty(
    samples: int, selection: Selection, on_error: OnError, dropped: Mapping[str, int], *, allow: bool
) -> None:
    """Raise DataError ``empty`` when no sample is left of those that the inputs have. Sound inputs without samples, of
    which nothing was selected, make an output without samples."""
    if samples or allow or (selection.is_trivial and not dropped and on_error == "stop"):
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    raise DataError(
        "no sample is left to write" + (f": {counts}" if counts else ""),
        code="empty",
        hint="--allow-empty writes a set without samples",
    )
