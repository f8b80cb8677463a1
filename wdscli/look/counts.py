"""Counts of values: ``wds ls --count FIELD``.

What it is: :func:`count`, which reads a listing once, and :class:`Counted`, the result for each FIELD. How: FIELD is an
expression of ``--where``, or else a field or a place in its JSON. A value is counted as its JSON text. When there are
many values, they go to scratch files with their counts (:class:`~wdscli.plan.values.GrowingValues`); at the end they
are sorted and the counts of equal values are added up. So counts and quantiles are exact for any number of values, and
memory has at most MAX_VALUES of them and 40 bytes for each line of the scratch files. It must not know how a table is
printed.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from wdscli.arrays import I64, Mask, numpy
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.look.listing import Listing
from wdscli.model import to_text
from wdscli.plan.sort import decoded, json_code, order_of_values
from wdscli.plan.table import Growing, blocks_of
from wdscli.plan.values import GrowingValues, Packed, Values
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import SeenNames, class_name
from wdscli.selection.values import FieldValue, stored_name
from wdscli.selection.where import Where
from wdscli.shards.inputs import classes_of

MANY_NUMBERS = 100
"""More distinct numbers are shown as quantiles, unless they are classes."""
MAX_VALUES, MAX_BYTES = 1 << 17, 1 << 26
"""Values in memory before they go to scratch files: their number, and the bytes of their text."""
MAX_CHARACTERS = 1 << 16
"""The longest value, as JSON."""
LINES_AT_ONCE = 1 << 10
QUANTILES = {"min": 0.0, "1%": 0.01, "25%": 0.25, "median": 0.5, "75%": 0.75, "99%": 0.99, "max": 1.0}
_PLACE = re.compile(r"""[\w-]+(\.[\w-]+|\[-?[0-9]+\]|\["[^"]*"\]|\['[^']*'\])*""")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_EXACT = 1e16
_IS_NUMBER = json_code(decoded(b"0"))[:1]


class CountRow(NamedTuple):
    """A value, the name of its class or of the quantile, and how many samples have it (None for a quantile)."""

    value: Any
    name: str | None
    samples: int | None


class Counted(NamedTuple):
    """The values of a FIELD in ``samples`` samples: ``distinct`` values, most frequent first, equally frequent ones in
    their own order; or the quantiles of many numbers. ``rows`` can be iterated once; the last row counts missing
    values."""

    field: str
    samples: int
    missing: int
    distinct: int
    has_names: bool
    has_quantiles: bool
    rows: Iterator[CountRow]


def count(found: Listing, fields: Sequence[str]) -> list[Counted]:
    """Read a listing to its end, and count the values of each of ``fields``. Names that no sample has become remarks of
    the listing. Raises UsageError for an invalid FIELD, DataError for a value that cannot be decoded (with
    ``on_error="skip"`` the sample is skipped and counted)."""
    classes = classes_of(found.set) or ()
    counts = [_Counts(field, classes) for field in dict.fromkeys(fields)]
    for sample in found.each(lambda names: frozenset().union(*(one.payload_fields(names) for one in counts))):
        try:
            values = [one.value(sample) for one in counts]
        except DataError as error:
            if not found.skips or error.code != "undecodable":
                raise
            found.drop("undecodable")
            continue
        for one, value in zip(counts, values):
            one.add(value, sample)
    for one in counts:
        found.remark(one.missing_names())
    return [one.result() for one in counts]


class _Counts:
    """The counts of one FIELD so far."""

    def __init__(self, field: str, classes: Sequence[str]) -> None:
        self._field = field
        self._of = _parsed(field, classes)
        self._classes = classes if field.strip() == "cls" else ()
        self._samples = self._missing = self._bytes = 0
        self._counts = Counter[str]()
        self._values, self._totals = GrowingValues(), Growing()
        self._seen = SeenNames()

    def payload_fields(self, stored: frozenset[str]) -> frozenset[bytes]:
        """The fields whose payloads are read if the samples have ``stored`` values."""
        of = self._of
        if isinstance(of, Where):
            return of.using(stored).payload_fields
        return frozenset() if stored_name(of.field, of.path) in stored else of.payload_fields

    def value(self, sample: SampleAt) -> str | None:
        """The JSON text of a sample's value; None if it has none. Raises DataError."""
        try:
            if isinstance(self._of, FieldValue):
                text = self._of.of(sample)
                value = None if text is None else _number_or_text(to_text(text))
            else:
                value = self._of.value(sample)
            found = _text(value)
        except WdsError as error:
            raise _for_count(error) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise sample.error(
                f"--count {self._field}: cannot count this value: {error}", "undecodable"
            ) from None
        if found is not None and len(found) > MAX_CHARACTERS:
            message = f"--count {self._field}: a value of {len(found)} characters, more than {MAX_CHARACTERS}"
            raise sample.error(message, "undecodable", hint=f"--count 'len({self._field})' counts lengths")
        return found

    def add(self, value: str | None, sample: SampleAt) -> None:
        """Count the value of a sample."""
        self._samples += 1
        if value is None:
            self._missing += 1
            self._seen.fields.update(sample.fields)
            if isinstance(self._of, Where):
                self._of.look(self._seen)
            return
        before = len(self._counts)
        self._counts[value] += 1
        if len(self._counts) > before:
            self._bytes += len(value)
            if len(self._counts) >= MAX_VALUES or self._bytes >= MAX_BYTES:
                self._put_away()

    def missing_names(self) -> list[Any]:
        """The names in FIELD that no sample has, if none has a value."""
        names = self._of.named("") if isinstance(self._of, FieldValue) else self._of.named
        named = [one._replace(purpose=" for --count", needed=False) for one in names]
        return self._seen.absent(named) if self._missing == self._samples > 0 else []

    def _put_away(self) -> None:
        """Move values and counts to the scratch files. A line is the code by which values sort, the value, and the
        length of the code."""
        lines = []
        for text in self._counts:
            code = json_code(decoded(text.encode()))
            lines.append(code + text.encode() + len(code).to_bytes(4, "big"))
        self._values.append(Packed.of(lines))
        self._totals.append(array("q", self._counts.values()))
        self._counts.clear()
        self._bytes = 0

    def result(self) -> Counted:
        """The table. Nothing can be added afterwards."""
        self._put_away()
        values, totals = _added_up(
            self._values.values(), numpy.frombuffer(self._totals.mapped(), dtype=numpy.int64)
        )
        ends = (values.part(0, 1) + values.part(values.total - 1, values.total)) if values.total else [b""]
        are_numbers = all(line.startswith(_IS_NUMBER) for line in ends)
        is_cut = are_numbers and values.total > MANY_NUMBERS and self._field.strip() != "cls"
        rows = self._quantiles(values, totals) if is_cut else self._frequent(values, totals)
        has_names = bool(self._classes or self._missing)
        return Counted(self._field, self._samples, self._missing, values.total, has_names, is_cut, rows)

    def _frequent(self, values: Values, totals: I64) -> Iterator[CountRow]:
        order: I64 = numpy.argsort(-totals, kind="stable")
        counts = iter(totals[order])
        for line in _lines(values.taken(order)):
            value = _read(line)
            yield CountRow(value, class_name(value, self._classes), int(next(counts)))
        if self._missing:
            yield CountRow(None, "missing", self._missing)

    def _quantiles(self, values: Values, totals: I64) -> Iterator[CountRow]:
        ends = numpy.cumsum(totals)
        total = int(ends[-1])
        for name, share in QUANTILES.items():
            at = int(numpy.searchsorted(ends, max(1, math.ceil(share * total))))
            yield CountRow(_read(values.part(at, at + 1)[0]), name, None)
        mean = math.fsum(_read(line) * (int(some) / total) for line, some in zip(_lines(values), totals))
        yield CountRow(mean, "mean", None)
        yield CountRow(None, "missing", self._missing)


def _parsed(field: str, classes: Sequence[str]) -> Where | FieldValue:
    """An expression of --where, or else a field or a place in its JSON. Raises UsageError."""
    try:
        return Where(field, classes)
    except UsageError as error:
        if not _PLACE.fullmatch(field):
            raise _for_count(error) from None
    return FieldValue.parse(field, "--count")


def _for_count(error: WdsError) -> WdsError:
    """An error of --where as one of --count."""
    error.message = error.message.replace("--where", "--count")
    error.hint = error.hint and error.hint.replace("--where", "--count")
    return error


def _number_or_text(text: str) -> Any:
    """The number that a decimal text is; other text unchanged.

    >>> _number_or_text("7"), _number_or_text("0.50"), _number_or_text("007")
    (7, 0.5, '007')
    """
    return json.loads(text) if len(text) < 17 and _DECIMAL.fullmatch(text) else text


def _text(value: Any) -> str | None:
    """A value as JSON, the same for equal numbers; infinities as text; None for null and NaN.

    >>> _text(2.0), _text("2"), _text([True]), _text(-math.inf)
    ('2', '"2"', '[true]', '"-inf"')
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            value = None if math.isnan(value) else str(value)
        elif value.is_integer() and abs(value) < _EXACT:
            value = int(value)
    return None if value is None else json.dumps(value, sort_keys=True)


def _lines(values: Values) -> Iterator[bytes]:
    """All values, few at a time, because they may be long."""
    for some in blocks_of(values.total, LINES_AT_ONCE):
        yield from values.part(some.start, some.stop)


def _read(line: bytes) -> Any:
    """The value of a line of the scratch file."""
    return json.loads(line[int.from_bytes(line[-4:], "big") : -4])


def _added_up(values: Values, totals: I64) -> tuple[Values, I64]:
    """Values in order without repeats, and the sum of the counts of each."""
    order = order_of_values(values)
    is_new: Mask = numpy.ones(values.total, dtype=bool)
    last = b""
    for at, line in enumerate(_lines(values.taken(order))):
        is_new[at], last = line != last, line
    if not values.total:
        return values, totals
    firsts = numpy.flatnonzero(is_new)
    return values.taken(order[firsts]), numpy.add.reduceat(totals[order], firsts)
