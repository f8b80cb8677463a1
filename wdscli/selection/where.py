"""This module evaluates the expressions and places of all options and of the loader: :class:`Value`. A
:class:`NewField` is a field whose payload is such a value.

An expression has the names ``key``, ``shard``, ``index`` (the sample's place in its shard), ``size`` (bytes by field)
and ``fields``. Any other name is a field (:mod:`wdscli.selection.places`), which is decoded only when it is evaluated.
Four functions take the name of a field and read the header of its payload: ``width(jpg)``, ``height(jpg)``,
``seconds(wav)``, ``shape(npy)``. ``dhash(jpg)`` and ``simhash(txt)`` are hashes of what a picture and a text look like
(:mod:`wdscli.selection.near`). Two read any field as text: ``len(py)`` counts its characters and ``lines(py)`` its
lines. All names are those of the shard, before ``--rename``. An expression is parsed and checked once, so that a
mistake is an error before anything is read. simpleeval then evaluates it for each sample, with values that are computed
on demand; a place needs no simpleeval. The size of values, and the time of ``search`` and of ``for``, are
limited.

An attribute of a mapping is one of its keys (``json.width``, ``size.jpg``; ``size["seg.png"]`` for a name with dots).
An attribute of a list gives the values of all elements. Only the methods of text listed here can be called. A missing
field, key or place, or a JSON null as an operand, makes the whole expression missing, which is false; after ``for``, it
makes only the test of the element false. A payload that cannot be decoded, and values that cannot be compared or
computed (a division by zero), raise DataError ``undecodable``.

``cls`` is a whole number if the payload is one. If the manifest has class names, it also equals its class's name.

:meth:`Value.using` replaces the parts of an expression whose values an index stores.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from json import dumps
from time import thread_time
from typing import Any, NamedTuple

from simpleeval import InvalidExpression, SimpleEval
from xxhash import xxh3_64_intdigest

from wdscli.errors import DataError, UsageError, WdsError
from wdscli.samples import check_name
from wdscli.samples.grouping import SampleAt
from wdscli.selection import language
from wdscli.selection.expressions import MATCH_SECONDS
from wdscli.selection.named import MissingName, Named, SeenNames, hint_of, listed
from wdscli.selection.places import (
    OTHER_NAMES,
    Absent,
    EachValue,
    FloatText,
    decoder_of,
    is_document,
    parse_place,
    step_into,
    unpacked,
)
from wdscli.text import to_bytes, to_text

_SKIP_HINT = "--on-error skip skips such samples"


_LACKING = ("'NoneType'", "arg is an empty sequence", "argument is empty")
"""Parts of Python's messages for operands that are missing."""
_STEPS_PER_LOOK = 64
_OF_SAMPLES = (*OTHER_NAMES, "rand")
_COMPACT: dict[str, Any] = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False}


class ClassNumber(int):
    """The number of a class, which also equals the name of the class."""

    name: str

    def __eq__(self, value: object) -> bool:
        return self.name == value if isinstance(value, str) else int.__eq__(self, value)

    def __ne__(self, value: object) -> bool:
        return not self == value

    __hash__ = int.__hash__


class Value:
    """A place or an expression, parsed and checked. ``option`` is named in messages. ``classes`` are the names of the
    numbers in ``cls``, if known; ``stored`` are the names of stored values, which every sample's batch has. Raises
    UsageError for an invalid expression."""

    def __init__(
        self,
        text: str,
        option: str = "--where",
        classes: Sequence[str] = (),
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self.text = text
        self.option = option
        self.classes = classes
        self.stored = stored
        self.place = parse_place(text.strip())
        """The place, if the whole text names one."""
        self.is_field = self.place is not None and not self.place.path and not self.place.is_packed
        """Whether the text is only the name of a field, so that its payload is text."""
        try:
            tree = language.parse(text) if self.place is None else language.tree_of(self.place)
        except UsageError as error:
            raise self._of_option(error) from None
        self.is_tuple = isinstance(tree, ast.Tuple)
        self.normal = language.normal(tree)
        """The normal form of the text: ``json["a"]`` is ``json.a``."""
        self.named = language.names_in(tree)
        if self.place is not None:
            self.named = (self.named[0]._replace(text=text.strip(), path=self.place.path or None),)
        self.places = [name.place for name in self.named if name.place is not None]
        self.is_of_payloads = bool(self.named) and language.is_of_payloads(tree)
        """Whether the value depends only on payloads and their sizes, so that an index can store it."""
        self._tree = tree if not stored else language.StoredParts(stored, bool(classes)).visit(tree)
        self.payload_fields = frozenset(language.payloads_in(self._tree))
        self.size_of = language.sized_field(tree)
        """The field in ``size.FIELD``."""
        self._field = to_text(self.place.field) if self.place else ""
        self._is_at_place = self.place is not None and bool(self.payload_fields)
        self._evaluator = _Evaluator(classes)
        self._using: dict[frozenset[str], Value] = {}
        self._used = self

    @classmethod
    def of_payloads(cls, text: str, option: str) -> Value:
        """Return the value for an option whose names are all fields: there, ``index`` is a field. Raises UsageError."""
        return cls(f".{text}" if text in OTHER_NAMES else text, option)

    @property
    def names_sample(self) -> bool:
        """Whether the expression has a name or function of the sample itself, such as ``key``."""
        return any(isinstance(node, ast.Name) and node.id in _OF_SAMPLES for node in ast.walk(self._tree))

    def __reduce__(self) -> tuple[Any, ...]:
        return Value, (self.text, self.option, self.classes, self.stored)

    def _of_option(self, error: WdsError) -> WdsError:
        """Name the option in an error of the language."""
        error.message = error.message.replace("--where", self.option)
        error.hint = error.hint and error.hint.replace("--where", self.option)
        return error

    def with_classes(self, classes: Sequence[str]) -> Value:
        """The same expression with other class names."""
        return Value(self.text, self.option, classes)

    def using(self, names: frozenset[str]) -> Value:
        """The same expression, which takes the values of these names from the batch of a sample and so reads fewer
        payloads. :meth:`value` does so by itself. Names that are no part of the expression change nothing."""
        if not names:
            return self
        if names not in self._using:
            self._using[names] = Value(self.text, self.option, self.classes, names)
        return self._using[names]

    def named_for(self, purpose: str) -> list[Named]:
        """The names that some sample must have, with a purpose for messages."""
        return [name._replace(purpose=purpose) for name in self.named]

    @property
    def missing_names(self) -> list[MissingName]:
        """Texts compared with ``cls`` that are not class names, if class names are known."""
        unknown = [text for text in language.class_texts(self._tree) if text not in self.classes]
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

    def value(self, sample: SampleAt, exact: bool = False, documents: dict[str, Any] | None = None) -> Any:
        """Return the expression's value for one sample, or None if the sample lacks a name in it. With ``exact``, the
        fractions at a place in JSON are :class:`FloatText`. ``documents`` may be shared by the places of a sample, or
        by other values without ``exact``, so that each field is decoded once. Raises DataError ``undecodable``."""
        value = self._value(sample, exact, documents)
        return None if value is Absent else value

    def of(self, sample: SampleAt, lenient: bool = False) -> bytes | None:
        """Return the value of one sample as text that is compared and named, or None: text and payloads without white
        space at both ends, and any other value as compact JSON. Raises DataError ``undecodable``; with ``lenient``,
        such a value is None."""
        try:
            return self._text(sample)
        except DataError as error:
            if not lenient or error.code != "undecodable":
                raise
            return None

    def _text(self, sample: SampleAt) -> bytes | None:
        if self.is_field and self.place:
            field = self.place.field
            return sample.payload(field).strip() or None if field in sample.fields else None
        value = self.value(sample)
        if value is None:
            return None
        try:
            text = value if isinstance(value, str) else dumps(value, **_COMPACT)
        except (TypeError, ValueError, RecursionError) as error:
            raise sample.error(f"{self.text} cannot be text: {error}", "undecodable") from None
        return text.encode("utf-8", "surrogatepass").strip() or None

    def number(self, sample: SampleAt) -> tuple[float | None, bool]:
        """Return the expression's value as a number that an index can store, or None if it is no number. Also return
        whether it is exact (:class:`wdscli.selection.values.Numbers`). Raises DataError ``undecodable``."""
        return _as_number(self._value(sample, exact=True, documents=None))

    def _value(self, sample: SampleAt, exact: bool, documents: dict[str, Any] | None) -> Any:
        """Return the value, or Absent."""
        if sample.batch.values and not self.stored:
            self._used = self.using(frozenset(sample.batch.values))
            return self._used._value(sample, exact, documents)
        if self.size_of is not None:
            member = sample.member(self.size_of)
            return Absent if member is None else sample.batch.sizes[member]
        self._used, documents = self, {} if documents is None else documents
        if self._is_at_place:
            return self._at_place(sample, exact, documents)
        try:
            return self._evaluator.value(self.text, self._tree, sample, documents)
        except WdsError as error:
            raise self._of_option(error) from None
        except Absent:
            return Absent
        except InvalidExpression as error:
            raise UsageError(f"{self.option}: {error}") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            if _is_lacking(error):
                return Absent
            raise self._failed(sample, error) from None
        except RecursionError:
            raise UsageError(f"{self.option}: the expression is nested too deeply") from None

    def _at_place(self, sample: SampleAt, exact: bool, documents: dict[str, Any]) -> Any:
        """Return the value of a place, or Absent."""
        assert self.place is not None
        evaluator, name = self._evaluator, self._field
        evaluator.sample, evaluator.documents = sample, documents
        try:
            if name not in documents:
                documents[name] = evaluator.decoded(self.place.field, name, decoder_of(name, exact))
            value = documents[name]
            for step in self.place.path:
                value = step_into(value, step)
            return value
        except Absent:
            return Absent

    def _failed(self, sample: SampleAt, error: Exception) -> DataError:
        hint = "convert a value with int(), float() or str()"
        if isinstance(error, ArithmeticError):
            hint = "test the value first: json.h > 0 and json.w / json.h > 2"
        elif "'dict'" in str(error):
            hint = "name a value: size.jpg, sum(size), json.width"
        elif "'EachValue'" in str(error):
            hint = "test each element: any(a.w > 9 for a in json.boxes)"
        message = f"{self.option} cannot be evaluated: {error}"
        return sample.error(message, "undecodable", hint=f"{hint}; {_SKIP_HINT}")

    def look(self, seen_names: SeenNames) -> None:
        """Look for the expression's places in the documents of the last sample that were decoded."""
        evaluator = self._used._evaluator
        for place in self.places:
            field = to_text(place.field)
            if place in seen_names.places:
                continue
            if field in evaluator.documents:
                seen_names.see_document(place, evaluator.documents[field])
            elif evaluator.values.get(language.STORED_MARK + language.place_name(place)) is not None:
                seen_names.places.add(place)


class NewField(NamedTuple):
    """A new field of ``--column FIELD=EXPR``. Its payload is a value of the sample, whose fields are those of the
    shard, before ``--drop`` and ``--rename``. ``text`` is the option as typed."""

    text: str
    field: bytes
    value: Value

    @classmethod
    def parse(cls, text: str) -> NewField:
        """Parse ``FIELD=EXPR``. Raises UsageError.

        >>> NewField.parse("txt=json.caption").field
        b'txt'
        """
        name, equals, expression = text.partition("=")
        field = name.strip().removeprefix(".")
        if not (field and equals and expression.strip()):
            raise UsageError(
                f'not a new field: "{text}"', hint="--column FIELD=EXPR: --column txt=json.caption"
            )
        check_name(b"key", to_bytes(field))
        return cls(text, to_bytes(field), Value.of_payloads(expression.strip(), "--column"))

    def payload(self, sample: SampleAt) -> bytes | None:
        """Return the payload, or None if the sample lacks the value. It is what ``create --column`` writes for a cell
        of a table. Raises DataError."""
        value = self.value
        if value.is_field and value.place:
            is_there = value.place.field in sample.fields
            cell = sample.payload(value.place.field) if is_there else None
        else:
            cell = value.value(sample)
        if cell is None:
            return None
        from wdscli.codecs.cells import cell_payload

        try:
            return cell_payload(cell, value.text, to_text(self.field))
        except DataError as error:
            message = error.message.replace("column", "--column", 1)
            raise sample.error(message, error.code, hint=error.hint) from None


def _is_lacking(error: Exception) -> bool:
    return any(part in str(error) for part in _LACKING)


_STORED_BITS = 63


def _as_number(value: Any) -> tuple[float | None, bool]:
    """See :meth:`Value.number`."""
    if value is Absent:
        return None, True
    if isinstance(value, int):
        if value.bit_length() <= _STORED_BITS:
            return int(value), type(value) is int
        return (float(value) if value.bit_length() < 1024 else None), False
    is_exact = True
    if type(value) is FloatText:
        value, is_exact = value.number, value.is_exact
    if not isinstance(value, float) or value != value:
        return None, False
    return float(value), type(value) is float and is_exact and abs(value) != float("inf")


class _Evaluator(SimpleEval):  # type: ignore[misc]
    """simpleeval over the names of one sample, whose values are computed on demand. It has lists, and attributes as
    keys, and does not check every value for functions."""

    sample: SampleAt

    def __init__(self, classes: Sequence[str]) -> None:
        of_fields = {name: partial(self.measure, name) for name in language.FIELD_FUNCTIONS}
        functions = {**language.FUNCTIONS, **of_fields, "rand": self.rand}
        super().__init__(operators=language.OPERATORS, functions=functions)
        self.nodes[ast.List] = self.nodes[ast.Tuple] = lambda node: [self._eval(part) for part in node.elts]
        self.nodes[ast.Set] = self.nodes[ast.List]
        self.nodes[language.Field] = lambda node: self.field(node.id)
        self.nodes[language.FieldText] = lambda node: self.text(node.id)
        self.nodes[language.Element] = lambda node: self._elements[node.id]
        self.nodes[ast.GeneratorExp] = self._generator
        self._classes = classes
        self.documents: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self._elements: dict[str, Any] = {}

    def value(self, text: str, tree: ast.expr, sample: SampleAt, documents: dict[str, Any]) -> Any:
        """Return the value of an expression for a sample. ``documents`` has the decoded payloads of its fields. Raises
        Absent, and the errors of functions and operators."""
        self.sample, self.documents, self.values = sample, documents, {}
        self._looks, self._until = 0, 0.0
        return self.eval(text, tree)

    def _eval_name(self, node: ast.Name) -> Any:
        name = node.id
        if name not in self.values:
            is_stored = name.startswith(language.STORED_MARK)
            self.values[name] = self._stored(name) if is_stored else _VALUES[name](self)
        return self.values[name]

    def field(self, name: str) -> Any:
        """Return the decoded payload of a field. Raises Absent."""
        if name not in self.documents:
            self.documents[name] = self.decoded(to_bytes(name), name, decoder_of(name))
        value = self.documents[name]
        if self._classes and name == "cls" and type(value) is int and 0 <= value < len(self._classes):
            value = ClassNumber(value)
            value.name = self._classes[value]
        return value

    def payload(self, name: str) -> Any:
        """Return the payload of a field, decompressed. Raises Absent."""
        return self.decoded(to_bytes(name), name, partial(unpacked, name))

    def parts(self, name: str) -> Any:
        """Return the payload of a field for reading headers. Raises Absent."""
        field, head = to_bytes(name), f"/{name}"
        if field not in self.sample.fields:
            raise Absent
        if head not in self.documents:  # no field begins with a slash
            self.documents[head] = self.sample.parts(field)
        return self.documents[head]

    def text(self, name: str) -> Any:
        """Return the payload of a field as text. Raises Absent."""
        return self.decoded(to_bytes(name), name, lambda data: unpacked(name, data).decode())

    def decoded(self, field: bytes, name: str, decode: Callable[[bytes], Any]) -> Any:
        """Return what ``decode`` makes of a payload. Raises Absent, DataError."""
        sample = self.sample
        if field not in sample.fields:
            raise Absent
        payload = sample.payload(field)
        try:
            return decode(payload)
        except UsageError:
            raise
        except Exception as error:
            raise self.undecodable(name, error) from None

    def undecodable(self, field: str, error: Exception) -> DataError:
        why = error.message if isinstance(error, DataError) else str(error)
        if isinstance(error, UnicodeDecodeError) and not is_document(field):
            why = f"it is not UTF-8 at byte {error.start}"
        text = f"{field} cannot be decoded: {why}"
        return self.sample.error(text, "undecodable", to_bytes(field), hint=_SKIP_HINT)

    def _check_time(self) -> None:
        """Raise UsageError if the elements of a list take too long."""
        self._looks += 1
        if self._looks % _STEPS_PER_LOOK == 0:
            self._until = self._until or thread_time() + MATCH_SECONDS
            if thread_time() > self._until:
                raise UsageError(
                    f"--where: the lists of one sample take more than {MATCH_SECONDS:g} seconds",
                    hint="compare with one list at a time",
                )

    def _stored(self, name: str) -> float:
        batch, row = self.sample.batch, self.sample.row
        number: float | None = batch.values[name[len(language.STORED_MARK) :]].at(batch.index + row)
        if number is None:
            raise Absent
        return number

    def measure(self, function: str, field: str) -> Any:
        """The number of lines of a text, the hash of a picture or text, or the value in the header of a payload."""
        from wdscli.codecs import headers
        from wdscli.selection import near

        if function == "simhash":
            return near.simhash(self.text(field))
        if function == "lines":
            text = self.text(field)
            return text.count("\n") + (text != "" and not text.endswith("\n"))
        data = self.parts(field) if language.reads_head(function, field) else self.payload(field)
        try:
            if function == "dhash":
                return near.dhash(data)
            if function == "shape":
                return headers.array_shape(data)
            is_sound = function == "seconds"
            return headers.seconds(data) if is_sound else getattr(headers.picture_size(data), function)
        except ValueError as error:
            raise self.undecodable(field, ValueError(f"{function}() fails: {error}")) from None

    def rand(self, seed: int = 0) -> float:
        """A number from 0 to below 1 that depends on the sample's key and the seed only."""
        return (xxh3_64_intdigest(self.sample.key, seed & language.SEEDS) >> 11) / (1 << 53)

    def _eval_attribute(self, node: ast.Attribute) -> Any:
        value = self._eval(node.value)
        if type(value) is dict and node.attr in value:
            return value[node.attr]
        if type(value) is str and node.attr in language.TEXT_METHODS:
            return getattr(value, node.attr)
        if getattr(node, language.CALLED_MARK, False) and value is not None:
            raise TypeError(f"{language.normal(node.value)} is not text, so it has no .{node.attr}()")
        if type(value) in (list, EachValue):
            return step_into(value, node.attr)
        raise Absent

    def _eval_subscript(self, node: ast.Subscript) -> Any:
        return step_into(self._eval(node.value), self._eval(node.slice))

    def _generator(self, node: ast.GeneratorExp, depth: int = 0) -> Iterator[Any]:
        """Yield the values of ``EXPRESSION for NAME in LIST``."""
        generator = node.generators[depth]
        elements = self._eval(generator.iter)
        if not isinstance(elements, list | dict):
            raise Absent if elements is None else TypeError(f"{language.normal(generator.iter)} is no list")
        for element in elements:
            self._check_time()
            self._elements[generator.target.id] = element  # type: ignore[attr-defined]
            if not all((passes := self._or_absent(test)) and passes is not Absent for test in generator.ifs):
                continue
            if depth + 1 < len(node.generators):
                yield from self._generator(node, depth + 1)
                continue
            value = self._or_absent(node.elt)
            if value is not Absent or getattr(node, language.LACKING_MARK):
                yield value is not Absent and value

    def _or_absent(self, node: ast.expr) -> Any:
        """Return the value for one element, or Absent, also for null."""
        try:
            value = self._eval(node)
            return Absent if value is None else value
        except Absent:
            return Absent
        except (TypeError, ValueError) as error:
            if _is_lacking(error):
                return Absent
            raise

    def _check_disallowed_items(self, value: object) -> None:
        """Check nothing: simpleeval would walk every JSON document at every step. All values are plain data, since they
        come from the sample, FUNCTIONS and TEXT_METHODS."""


_VALUES: dict[str, Callable[[_Evaluator], Any]] = {
    "key": lambda at: to_text(at.sample.key),
    "shard": lambda at: at.sample.shard,
    "index": lambda at: at.sample.batch.index + at.sample.row,
    "size": lambda at: at.sample.batch.sizes_by_field(at.sample.row),
    "fields": lambda at: list(map(to_text, at.sample.fields)),
}
