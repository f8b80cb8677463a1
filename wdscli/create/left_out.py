"""What is left out of a new set: files, rows of tables, fields and samples, each with its reason.

:class:`LeftOut` is the one place where everything is counted that ``create``, or a table of a join, leaves out. It
decides by the options whether a source that cannot be read and a bad row may be left out. ``-v`` shows each of them,
and with ``has_report`` each becomes a line of JSON in a scratch file. Bad rows that are not left out are collected, so
that one error names all of them. This module does not know how sources and rows are read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter
from tempfile import TemporaryFile
from typing import IO, Any, Literal

from wdscli.create.delimited import RowPlace
from wdscli.errors import DataError, InputError, InputNotFoundError, WdsError
from wdscli.progress import QUIET, Progress
from wdscli.selection.choice import OnError
from wdscli.shown import shown_in
from wdscli.text import to_bytes, to_text

Unit = Literal["files", "rows", "fields", "samples"]
MAX_BAD_ROWS = 100
"""Reading stops after this number of bad rows, unless they are left out."""
NO_VALUE, NO_SOURCE, BAD_ROW, INCOMPLETE = "no-value", "no-source", "bad-row", "incomplete"
TEXTS = {
    NO_VALUE: "empty cell",
    NO_SOURCE: "file missing",
    "unreadable": "cannot be read",
    BAD_ROW: "bad row",
    "duplicate-key": "key repeated",
}
"""The texts of reasons in the summary."""


class LeftOut:
    """With ``on_error="skip"``, sources that cannot be read and bad rows are left out. With the
    policy ``incomplete="keep"``, missing sources are left out; with ``skip``, their samples too. ``lacking`` then
    has their keys, each with the unit and the reason."""

    def __init__(
        self,
        progress: Progress = QUIET,
        *,
        on_error: OnError = "stop",
        incomplete: str | None = None,
        has_report: bool = False,
    ) -> None:
        self.reasons: dict[Unit, Counter[str]] = {}
        """Counts of each unit by reason."""
        self.totals: dict[Unit, Counter[str]] = {}
        """Counts of each unit by the text of the reason. For a field, its name and a colon precede the text."""
        self.unread = 0
        """The number of sources that could not be read. Their members are left out."""
        self.lacking: dict[bytes, tuple[Unit, str]] = {}
        self.outside = 0
        """The number of links that point outside the given folder."""
        self._on_error, self._incomplete = on_error, incomplete
        self._note = progress.note
        self._bad_rows: list[tuple[RowPlace, WdsError]] = []
        self._lines: IO[bytes] | None = TemporaryFile() if has_report else None  # noqa: SIM115 - see lines

    def add(
        self,
        code: str,
        name: bytes,
        unit: Unit = "files",
        *,
        text: str = "",
        place: RowPlace | None = None,
        **facts: str,
    ) -> None:
        """Count and list one thing that is left out. ``code`` is the reason in JSON, and ``text`` the reason in the
        summary. ``name`` is for ``-v``, and ``facts`` are for the report: key, field, source, and as ``reason`` the
        message of an error."""
        text = text or TEXTS.get(code, code)
        self.count(code, unit, f"{facts['field']}: {text}" if unit == "fields" else text)
        if unit == "files":
            facts = {"source": to_text(name), **facts}
        self._list(name, unit, place, {"reason": text, **facts})

    def count(self, code: str, unit: Unit, text: str) -> None:
        """Count one thing that is left out, for the summary."""
        self.reasons.setdefault(unit, Counter())[code] += 1
        self.totals.setdefault(unit, Counter())[text] += 1

    def _list(self, name: bytes, unit: Unit, place: RowPlace | None, facts: Mapping[str, str]) -> None:
        """Note one thing for ``-v``, and write its line of the report."""
        where = "" if place is None or to_text(name) == str(place) else f" ({place})"
        self._note(f"skipped {to_text(name)}{where}: {facts['reason']}")
        if self._lines is None:
            return
        line: dict[str, Any] = {"left_out": unit[:-1], "key": "", "field": "", "source": "", **facts}
        if place is not None:
            line |= {"table": place.table, "row": place.row or None, "line": place.line or None}
        self._lines.write(json.dumps(shown_in(line)).encode("ascii") + b"\n")

    def add_outside(self, path: bytes) -> None:
        """Count a link that points outside the given folder."""
        self.outside += 1
        self._note(f"{to_text(path)} leads to {to_text(os.path.realpath(path))}")

    def lose(
        self, key: bytes, field: bytes, source: str, error: InputError, place: RowPlace | None = None
    ) -> None:
        """Leave out a source that cannot be read, if the options allow this. Otherwise raise the error."""
        is_absent = isinstance(error, InputNotFoundError)
        if not ((is_absent and self._incomplete in ("skip", "keep")) or self._on_error == "skip"):
            if key:
                sample_hint = ", --missing skip also its sample" if is_absent and self._incomplete else ""
                error.hint = error.hint or f"--on-error skip leaves it out{sample_hint}"
            raise error
        self.unread += 1
        code = NO_SOURCE if place is not None else "unreadable"
        text = TEXTS[NO_SOURCE if is_absent else "unreadable"]
        if isinstance(error, EmptyCellError):
            text = TEXTS[NO_VALUE]
        facts = {"key": to_text(key), "field": to_text(field), "source": source, "reason": error.message}
        name = key + b"." + field if key else to_bytes(source)
        if key and self._incomplete == "skip":
            # The sample is counted once, by `drop_samples`.
            unit: Unit = "samples" if place is None else "rows"
            self.lacking.setdefault(key, (unit, text))
            self.reasons.setdefault("fields", Counter())[code] += 1
            self._list(name, unit, place, facts)
        else:
            self.add(code, name, "fields" if key else "files", text=text, place=place, **facts)

    def drop_samples(self) -> Collection[bytes]:
        """Count the samples that are left out because of a missing source, and return their keys."""
        for unit, text in self.lacking.values():
            self.count(INCOMPLETE, unit, text)
        return self.lacking

    def refuse(self, place: RowPlace, error: WdsError) -> None:
        """Leave out a bad row, or collect its error for :meth:`check_rows`."""
        if self._on_error == "skip":
            self.add(BAD_ROW, to_bytes(str(place)), "rows", place=place, reason=error.message)
            return
        self._bad_rows.append((place, error))
        if len(self._bad_rows) >= MAX_BAD_ROWS:
            self.check_rows()

    def check_rows(self) -> None:
        """Raise one error for all bad rows, if there are any."""
        if not self._bad_rows:
            return
        self._bad_rows.sort(key=itemgetter(0))
        messages = [f"{place}: {error.message}" for place, error in self._bad_rows]
        error = self._bad_rows[0][1]
        hint = error.hint or "--on-error skip leaves out bad rows; --report FILE lists them"
        if len(messages) == 1:
            error.message, error.hint = messages[0], hint
            raise error
        or_more = " or more" if len(messages) >= MAX_BAD_ROWS else ""
        text = f"{len(messages)}{or_more} bad rows"
        every: WdsError = DataError(text, code="bad-table", hint=hint)
        for kind in (InputError, InputNotFoundError):
            if all(isinstance(error, kind) for _, error in self._bad_rows):
                every = kind(text, hint=hint)
        every.details = tuple(messages)
        raise every

    @property
    def counts(self) -> dict[str, int]:
        """Counts of files, rows, fields and samples together, by reason."""
        return dict(sorted(sum(self.reasons.values(), Counter()).items()))

    def summary(self) -> dict[Unit, dict[str, int]]:
        """Return the totals by unit and reason."""
        return {unit: dict(sorted(counts.items())) for unit, counts in self.totals.items()}

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the report."""
        if self._lines is not None:
            self._lines.seek(0)
            yield from self._lines
            self._lines.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Remove the scratch file."""
        if self._lines is not None:
            self._lines.close()


class EmptyCellError(InputNotFoundError):
    """A cell that should name a file is empty."""
