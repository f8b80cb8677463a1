"""Values of samples as numbers: ``--values json.tokens,width(jpg)``.

:class:`Numbers` has one number for each sample of a shard. :func:`value_names` parses the option, and
:class:`SampleNumbers` computes the numbers while samples are read or written. A value is an expression of ``--where``
over the payloads of a sample. Names that change when a sample moves (``key``, ``shard``, ``index``, ``fields``,
``rand()``) are refused. The module does not know where the numbers are stored.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.arrays import Mask, numpy
from wdscli.errors import DataError, UsageError
from wdscli.samples import SampleBatch
from wdscli.selection.sample import PayloadOf, SampleAt

if TYPE_CHECKING:
    from wdscli.selection.where import Where

MISSING = -(1 << 63)
"""The missing value in an int64 column; in a float64 column it is NaN."""
_HINT = "a place in JSON or an expression of payloads: json.tokens, len(txt), width(jpg), seconds(wav)"


class Numbers(NamedTuple):
    """One number for each sample of a shard: ``array`` is int64 or float64. If ``exact`` is true, the numbers and gaps
    are exactly the values of the payloads, with type and all digits, so the payloads need not be read. A column is not
    exact, for example, if it has both whole numbers and fractions, or if a sample has a text or null instead of a
    number."""

    array: Any
    exact: bool

    @property
    def missing(self) -> Mask:
        """True for each sample without a number."""
        found: Mask = numpy.isnan(self.array) if self.array.dtype.kind == "f" else self.array == MISSING
        return found

    def at(self, row: int) -> int | float | None:
        """The number of one sample as Python's own number; None if it is missing."""
        number: int | float = self.array.item(row)
        return None if number == MISSING or number != number else number

    def as_float(self) -> Numbers:
        """The same numbers as float64; exact only if there are none."""
        if self.array.dtype.kind == "f":
            return self
        missing = self.missing
        return Numbers(
            numpy.where(missing, math.nan, self.array.astype("<f8")), self.exact and bool(missing.all())
        )

    def as_whole(self) -> Numbers:
        """The same numbers as int64, if there are no fractions."""
        if self.array.dtype.kind == "i":
            return self
        return Numbers(numpy.full(len(self.array), MISSING, dtype="<i8"), self.exact)


class GrowingNumbers:
    """Numbers that are added one by one; eight bytes a sample in memory."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._exact = True
        self._has_some = False

    def add(self, number: float | None, exact: bool = True) -> None:
        """Add the number of the next sample. The first fraction makes all numbers fractions."""
        if number is None:
            number = MISSING if self._numbers.typecode == "q" else math.nan
        else:
            if isinstance(number, float) and self._numbers.typecode == "q":
                floats = self.numbers().as_float()
                self._numbers, self._exact = array("d", floats.array.tobytes()), floats.exact
            elif isinstance(number, int) and self._numbers.typecode == "d":
                number, exact = float(number), False
            self._has_some = True
        self._numbers.append(number)  # type: ignore[arg-type]
        self._exact &= exact

    def numbers(self) -> Numbers:
        """All numbers so far."""
        kind = "<i8" if self._numbers.typecode == "q" else "<f8"
        return Numbers(numpy.array(self._numbers, dtype=kind), self._exact)


def joined(parts: list[Numbers]) -> Numbers:
    """The numbers of several shards, one after the other: float64 if one of them has fractions."""
    is_float = any(part.array.dtype.kind == "f" and not part.missing.all() for part in parts)
    parts = [part.as_float() if is_float else part.as_whole() for part in parts]
    arrays = [part.array for part in parts] or [numpy.zeros(0, dtype="<i8")]
    return Numbers(numpy.concatenate(arrays), all(part.exact for part in parts))


def value_names(given: str | Sequence[str] | None, option: str = "--values") -> tuple[str, ...]:
    """The normal forms of values that an option names, separated by commas. Raises UsageError.

    >>> value_names(["json['width'], width( jpg )", "round(json.s, 2)"])
    ('json.width', 'width(jpg)', 'round(json.s, 2)')
    """
    import ast

    found: dict[str, None] = {}
    for text in [given] if isinstance(given, str) else given or ():
        try:
            parts = ast.parse(f"[{text.strip()}\n]", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UsageError(f'{option} cannot be read: "{text}"', hint=_HINT) from None
        for part in parts.elts if isinstance(parts, ast.List) else [parts]:
            found[_checked(ast.unparse(part), option).normal] = None
    if given is not None and not found:
        raise UsageError(f"{option} is empty", hint=_HINT)
    return tuple(found)


def _parsed(text: str) -> Where:
    from wdscli.selection.where import Where

    return Where(text)


def _checked(text: str, option: str) -> Where:
    try:
        where = _parsed(text)
    except UsageError as error:
        error.message = error.message.replace("--where", option)
        raise
    if not where.is_of_payloads:
        raise UsageError(f"{option}: {text} is not a value of payloads", hint=_HINT)
    return where


class SampleNumbers:
    """The numbers of the samples of one shard, by name, added sample by sample."""

    def __init__(self, names: Sequence[str], *, lenient: bool = False) -> None:
        self.names = tuple(names)
        self._values = {name: _parsed(name) for name in names}
        self._columns = {name: GrowingNumbers() for name in names}
        self._lenient = lenient
        self._failures: dict[str, list[DataError]] = {}
        self.payload_fields = frozenset[bytes]().union(*(one.payload_fields for one in self._values.values()))

    def add(self, sample: SampleAt) -> None:
        """Add the numbers of one sample. Raises DataError ``undecodable`` for a payload that cannot be decoded; then
        none is added."""
        found = []
        for name, value in self._values.items():
            try:
                found.append(value.number(sample))
            except DataError as error:
                if error.code != "undecodable":
                    raise
                if not self._lenient:
                    error.hint = "write without values; `wds index --values` stores such a value as missing"
                    raise
                found.append((None, False))
                self._failures.setdefault(name, []).append(error)
        for column, number in zip(self._columns.values(), found):
            column.add(*number)

    def add_batch(self, batch: SampleBatch, shard: str, payload_of: PayloadOf) -> None:
        """Add the numbers of all samples of a batch."""
        for row in range(len(batch.keys)):
            self.add(SampleAt(batch, row, shard, payload_of))

    def add_fields(self, key: bytes, fields: Sequence[tuple[bytes, Any]], shard: str) -> None:
        """Add the numbers of a sample that is written."""
        names, payloads = [name for name, _ in fields], [data for _, data in fields]
        sizes, zeros = list(map(len, payloads)), [0] * len(names)
        batch = SampleBatch(0, [key], [0, len(names)], names, zeros, zeros, sizes, zeros, [0])
        self.add(SampleAt(batch, 0, shard, lambda _, field: bytes(payloads[names.index(field)])))

    def remarks(self) -> tuple[str, ...]:
        """With ``lenient``: for each name, how many values could not be computed, and the first error."""
        return tuple(
            f"{name}: {len(some)} values are missing, because their payloads cannot be decoded; the first: {some[0]}"
            for name, some in self._failures.items()
        )

    def numbers(self) -> dict[str, Numbers]:
        """The numbers of all samples by name."""
        return {name: column.numbers() for name, column in self._columns.items()}
