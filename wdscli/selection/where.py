"""This module implements ``--where EXPR``: it finds the samples for which an expression is true.

An expression has the names ``key``, ``shard``, ``index`` (the sample's place in its shard), ``size`` (bytes by field),
``fields``, and ``json``, ``cls``, ``txt``, which are decoded only when they are evaluated. Four functions take the name
of a field and read the header of its payload: ``width(jpg)``, ``height(jpg)``, ``seconds(wav)``, ``shape(npy)``. Two
read any field as text: ``len(py)`` counts its characters and ``lines(py)`` its lines. All names are those of the shard,
before ``--rename``. An expression is parsed and checked once, so that a mistake is an error before anything is read.
simpleeval then evaluates it for each sample, with a scope that computes values on demand. The size of values and the
time of ``search`` are limited.

An attribute of a mapping is one of its keys (``json.width``, ``size.jpg``; ``size["seg.png"]`` for a name with dots).
Only the methods of text listed here can be called. A missing field, key or place, or a JSON null as an operand, makes
the whole expression false. A payload that cannot be decoded, and values that cannot be compared or computed (a division
by zero), raise DataError ``undecodable``.

``cls`` is a whole number if the payload is one. If the manifest has class names, it also equals its class's name.

:meth:`Where.using` replaces the parts of an expression whose values an index stores.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simpleeval import InvalidExpression, SimpleEval
from xxhash import xxh3_64_intdigest

from wdscli.errors import DataError, UsageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.samples.grouping import SampleAt
from wdscli.selection.language import (
    CALLED_MARK,
    FIELD_FUNCTIONS,
    FUNCTIONS,
    OPERATORS,
    SEEDS,
    STORED_MARK,
    TEXT_METHODS,
    StoredParts,
    class_texts,
    is_of_payloads,
    names_in,
    normal,
    parse,
    payloads_in,
    place_name,
)
from wdscli.selection.named import MissingName, Place, SeenNames, class_number, hint_of, listed

__all__ = ["FUNCTIONS", "TEXT_METHODS", "Number", "Where"]

_SKIP_HINT = "--on-error skip skips such samples"


class _Missing(Exception):
    """The sample lacks a field or value of the expression."""


class Number(int):
    """The number of a class, which also equals the name of the class."""

    name: str

    def __eq__(self, value: object) -> bool:
        return self.name == value if isinstance(value, str) else int.__eq__(self, value)

    def __ne__(self, value: object) -> bool:
        return not self == value

    __hash__ = int.__hash__


class Where:
    """One expression, parsed and checked. ``classes`` are the names of the numbers in ``cls``, if known; ``stored``
    are the names of stored values, which every sample's batch has. Raises UsageError for an invalid expression."""

    def __init__(self, text: str, classes: Sequence[str] = (), stored: frozenset[str] = frozenset()) -> None:
        self.text = text
        self.classes = classes
        self.stored = stored
        tree = parse(text)
        self.normal = normal(tree)
        """The normal form of the text: ``json["a"]`` is ``json.a``."""
        self.named = names_in(tree)
        self.places = [Place(b"json", name.path) for name in self.named if name.path is not None]
        self._tree = tree if not stored else StoredParts(stored, bool(classes)).visit(tree)
        self.payload_fields = frozenset(payloads_in(self._tree))
        self._scope = _Scope(classes)
        self._evaluator = _Evaluator(self._scope)
        self.is_of_payloads = bool(self.named) and is_of_payloads(tree)
        """Whether the value depends only on payloads and their sizes, so that an index can store it."""
        self._using: dict[frozenset[str], Where] = {}
        self._used = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Where, (self.text, self.classes, self.stored)

    def with_classes(self, classes: Sequence[str]) -> Where:
        """The same expression with other class names."""
        return Where(self.text, classes)

    def using(self, names: frozenset[str]) -> Where:
        """The same expression, which takes the values of these names from the batch of a sample and so reads fewer
        payloads. :meth:`value` does so by itself. Names that are no part of the expression change nothing."""
        if not names:
            return self
        if names not in self._using:
            self._using[names] = Where(self.text, self.classes, names)
        return self._using[names]

    @property
    def missing_names(self) -> list[MissingName]:
        """Texts compared with ``cls`` that are not class names, if class names are known."""
        unknown = [text for text in class_texts(self._tree) if text not in self.classes]
        if not unknown or not self.classes:
            return []
        return [
            MissingName(
                f"no class is named {listed(unknown, ' or ')} for --where", hint_of(unknown, self.classes)
            )
        ]

    def holds(self, sample: SampleAt) -> bool:
        """Return whether the expression is true of one sample. Raises DataError ``undecodable``."""
        return bool(self.value(sample))

    def value(self, sample: SampleAt) -> Any:
        """Return the expression's value for one sample, or None if the sample lacks a name in it. Raises DataError
        ``undecodable``."""
        return self._value(sample, None, None)

    def number(self, sample: SampleAt) -> tuple[float | None, bool]:
        """Return the expression's value as a number that an index can store, or None if it is no number. Also return
        whether it is exact (:class:`wdscli.selection.values.Numbers`). Raises DataError ``undecodable``."""
        return _as_number(self._value(sample, _Missing, _fraction))

    def _value(self, sample: SampleAt, missing: Any, parse_float: Callable[[str], float] | None) -> Any:
        """Return the value, or ``missing``."""
        if sample.batch.values and not self.stored:
            self._used = self.using(frozenset(sample.batch.values))
            return self._used._value(sample, missing, parse_float)
        self._used = self
        self._scope.enter(sample, parse_float)
        try:
            return self._evaluator.eval(self.text, self._tree)
        except WdsError:
            raise
        except _Missing:
            return missing
        except InvalidExpression as error:
            raise UsageError(f"--where: {error}") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            if "'NoneType'" in str(error):
                return missing
            hint = "convert a value with int(), float() or str()"
            if isinstance(error, ArithmeticError):
                hint = "test the value first: json.h > 0 and json.w / json.h > 2"
            elif "'dict'" in str(error):
                hint = "name a value: size.jpg, sum(size), json.width"
            raise sample.error(
                f"--where cannot be evaluated: {error}", "undecodable", hint=f"{hint}; {_SKIP_HINT}"
            ) from None
        except RecursionError:
            raise UsageError("--where: the expression is nested too deeply") from None

    def look(self, seen_names: SeenNames) -> None:
        """Look for the expression's places in the JSON of the last sample, if it was decoded."""
        values = self._used._scope.values
        for place in self.places:
            if place in seen_names.places:
                continue
            if "json" in values:
                seen_names.see_document(place, values["json"])
            elif values.get(STORED_MARK + place_name(place.path)) is not None:
                seen_names.places.add(place)


_STORED_BITS = 63


def _as_number(value: Any) -> tuple[float | None, bool]:
    """See :meth:`Where.number`."""
    if value is _Missing:
        return None, True
    if isinstance(value, int):
        if value.bit_length() <= _STORED_BITS:
            return int(value), type(value) is int
        return (float(value) if value.bit_length() < 1024 else None), False
    if not isinstance(value, float) or value != value:
        return None, False
    return float(value), type(value) is float and abs(value) != float("inf")


class _Inexact(float):
    """A fraction with more digits in JSON than a float can represent."""


def _fraction(text: str) -> float:
    """Parse a number in JSON. Sorting compares all of its digits, so a float is exact only if it has the same
    digits."""
    from decimal import Decimal

    value = float(text)
    return value if repr(value) == text or Decimal(repr(value)) == Decimal(text) else _Inexact(value)


class _Scope:
    """The names of one sample as a mapping for simpleeval; values are computed on demand."""

    sample: SampleAt

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes

    def enter(self, sample: SampleAt, parse_float: Callable[[str], float] | None = None) -> None:
        self.sample = sample
        self._parse_float = parse_float
        self.values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            is_stored = name.startswith(STORED_MARK)
            if is_stored:
                self.values[name] = self._stored(name)
            else:
                self.values[name] = _VALUES[name](self) if name in _VALUES else self.text(name)
        return self.values[name]

    def _stored(self, name: str) -> float:
        batch, row = self.sample.batch, self.sample.row
        number: float | None = batch.values[name[len(STORED_MARK) :]].at(batch.index + row)
        if number is None:
            raise _Missing
        return number

    def measure(self, function: str, field: str) -> Any:
        """The number of lines of a text, or the value in the header of a payload."""
        from wdscli.codecs import containers, headers

        if function == "lines":
            text = self.text(field)
            return text.count("\n") + (text != "" and not text.endswith("\n"))
        data = self.payload(field)
        try:
            if function == "shape":
                return headers.array_shape(data)
            return (
                containers.seconds(data)
                if function == "seconds"
                else getattr(headers.picture_size(data), function)
            )
        except ValueError as error:
            raise self.undecodable(field, f"{function}() fails: {error}") from None

    def rand(self, seed: int = 0) -> float:
        """A number from 0 to below 1 that depends on the sample's key and the seed only."""
        return (xxh3_64_intdigest(self.sample.key, seed & SEEDS) >> 11) / (1 << 53)

    def payload(self, field: str) -> bytes:
        if to_bytes(field) not in self.sample.fields:
            raise _Missing
        return self.sample.payload(to_bytes(field))

    def text(self, field: str) -> str:
        data = self.payload(field)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.undecodable(field, f"it is not UTF-8 at byte {error.start}") from None

    def cls(self) -> int | str:
        """Return the payload as a whole number, by webdataset's rule, or else as text."""
        text = self.text("cls").strip()
        number = class_number(text)
        if number is None or not 0 <= number < len(self._classes):
            return text if number is None else number
        named_number = Number(number)
        named_number.name = self._classes[number]
        return named_number

    def json(self) -> Any:
        import json

        data = self.payload("json")
        try:
            return json.loads(data, parse_float=self._parse_float)
        except (ValueError, RecursionError) as error:
            raise self.undecodable("json", str(error)) from None

    def undecodable(self, field: str, why: str) -> DataError:
        text = f"{field} cannot be decoded: {why}"
        return self.sample.error(text, "undecodable", to_bytes(field), hint=_SKIP_HINT)


_VALUES: dict[str, Callable[[_Scope], Any]] = {
    "key": lambda scope: to_text(scope.sample.key),
    "shard": lambda scope: scope.sample.shard,
    "index": lambda scope: scope.sample.batch.index + scope.sample.row,
    "size": lambda scope: scope.sample.batch.sizes_by_field(scope.sample.row),
    "fields": lambda scope: list(map(to_text, scope.sample.fields)),
    "json": _Scope.json,
    "cls": _Scope.cls,
    "txt": lambda scope: scope.text("txt"),
}


class _Evaluator(SimpleEval):  # type: ignore[misc]
    """simpleeval with lists, with attributes as keys, and without its check of every value for functions."""

    def __init__(self, scope: _Scope) -> None:
        of_fields = {name: partial(scope.measure, name) for name in FIELD_FUNCTIONS}
        functions = {**FUNCTIONS, **of_fields, "rand": scope.rand}
        super().__init__(operators=OPERATORS, functions=functions, names=scope)
        self.nodes[ast.Attribute] = self._attribute
        self.nodes[ast.Subscript] = self._subscript
        self.nodes[ast.List] = self.nodes[ast.Tuple] = lambda node: [self._eval(part) for part in node.elts]
        self.nodes[ast.Set] = self.nodes[ast.List]

    def _attribute(self, node: ast.Attribute) -> Any:
        value = self._eval(node.value)
        if type(value) is dict and node.attr in value:
            return value[node.attr]
        if type(value) is str and node.attr in TEXT_METHODS:
            return getattr(value, node.attr)
        if getattr(node, CALLED_MARK, False) and value is not None:
            raise TypeError(f"{ast.unparse(node.value)} is not text, so it has no .{node.attr}()")
        raise _Missing

    def _subscript(self, node: ast.Subscript) -> Any:
        value, place = self._eval(node.value), self._eval(node.slice)
        try:
            return value[place]
        except (TypeError, LookupError):
            raise _Missing from None

    def _check_disallowed_items(self, value: object) -> None:
        """Check nothing: simpleeval would walk every JSON document at every step. All values are plain data, since they
        come from the scope, FUNCTIONS and TEXT_METHODS."""
