"""``--where EXPR``: samples for which an expression is true.

What it is: an expression over ``key``, ``shard``, ``index`` (the sample's place in its shard), ``size`` (bytes by
field), ``fields``, and ``json``, ``cls``, ``txt``, which are decoded only when they are evaluated. All names are those
of the shard, before ``--rename``. How: an expression is parsed and checked once, so that a mistake is an error before
anything is read. simpleeval then evaluates it for each sample, with a scope that computes values on demand. The size of
values and the time of ``search`` are limited.

An attribute of a mapping is one of its keys (``json.width``, ``size.jpg``; ``size["seg.png"]`` for a name with dots).
Only the methods of text listed here can be called. A missing field, key or place, or a JSON null as an operand, makes
the whole expression false. A payload that cannot be decoded, and values that cannot be compared or computed (a division
by zero), raise DataError ``undecodable``.

``cls`` is a whole number if the payload is one. If the manifest has class names, it also equals its class's name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from simpleeval import DEFAULT_OPERATORS, InvalidExpression, SimpleEval
from xxhash import xxh3_64_intdigest

from wdscli.errors import DataError, UsageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.selection.expressions import expression
from wdscli.selection.named import (
    MissingName,
    Named,
    Path,
    Place,
    SeenNames,
    class_number,
    hint_of,
    is_like,
    listed,
)
from wdscli.selection.sample import SampleAt

PAYLOADS = ("json", "cls", "txt")
NAMES = ("key", "shard", "index", "size", "fields", *PAYLOADS)
_TEXT_NAMES = ("key", "shard", "txt")

# None of these makes a result much longer than its input.
_CALLED = (
    "casefold count endswith find lower lstrip partition removeprefix removesuffix rfind rpartition rsplit"
)
_ASKED = "isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace isupper"
TEXT_METHODS = frozenset(f"{_CALLED} {_ASKED} rstrip split splitlines startswith strip upper".split())
_CALLED_MARK = "is_called"
"""An attribute that :func:`parse` sets on attribute nodes: whether the attribute is called."""
_MAX_LENGTH = 10_000
_MAX_BITS = 4096
_SEEDS = (1 << 64) - 1
_SKIP_HINT = "--on-error skip skips such samples"

_LOGIC = "BoolOp And Or Not IfExp UnaryOp BinOp USub UAdd"
_ARITHMETIC = "Add Sub Mult Div FloorDiv Mod Pow"
_ORDER = "Compare Eq NotEq Lt LtE Gt GtE In NotIn Is IsNot"
_VALUE = "Constant List Tuple Set Name Load Attribute Subscript Slice Call keyword"
_NODES = tuple(getattr(ast, name) for name in f"{_LOGIC} {_ARITHMETIC} {_ORDER} {_VALUE}".split())
_TWINS = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.Invert: ("~", "not")}


class _Missing(Exception):
    """The sample lacks a field or value of the expression."""


def _get(mapping: Any, name: Any, default: Any = None) -> Any:
    return mapping.get(name, default) if isinstance(mapping, dict) else default


def _total(values: Any) -> Any:
    return sum(values.values() if isinstance(values, dict) else values)


def _rounded(number: Any, digits: int | None = None) -> Any:
    """``round`` with limited digits: Python's takes forever for a whole number and very negative digits."""
    if digits is not None and not -100 <= digits <= 100:
        raise UsageError(f"--where: round(..., {digits}) has too many digits")
    return round(number, digits)


def _search(pattern: str, text: str) -> bool:
    return expression(pattern, "--where").search(text) is not None


def _hash(value: Any, seed: int = 0) -> int:
    """XXH3-64 of a value's text, as ``str`` writes it."""
    return xxh3_64_intdigest(to_bytes(str(value)), seed & _SEEDS)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "float": float,
    "get": _get,
    "hash": _hash,
    "int": int,
    "len": len,
    "like": is_like,
    "max": max,
    "min": min,
    "rand": _hash,
    "round": _rounded,
    "search": _search,
    "str": str,
    "sum": _total,
}


def _power(base: Any, exponent: Any) -> Any:
    """A power of limited size: simpleeval's limit allows many megabytes."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent * base.bit_length() > _MAX_BITS:
        raise UsageError(f"--where: {base} ** {exponent} is too large a number")
    return base**exponent


def _modulo(left: Any, right: Any) -> Any:
    """The remainder. Formatting of text is refused, because it can make texts of any length."""
    if isinstance(left, (str, bytes)):
        raise TypeError("unsupported operand type(s) for %: 'str'")
    return left % right


def _product(left: Any, right: Any) -> Any:
    """The product. Repeated lists are refused, because nested ones can make values of any size."""
    product = DEFAULT_OPERATORS[ast.Mult](left, right)
    if isinstance(product, list):
        raise TypeError("unsupported operand type(s) for *: 'list'")
    return product


_OPERATORS = {**DEFAULT_OPERATORS, ast.Mult: _product, ast.Pow: _power, ast.Mod: _modulo}


class Number(int):
    """The number of a class, which also equals the name of the class."""

    name: str

    def __eq__(self, other: object) -> bool:
        return self.name == other if isinstance(other, str) else int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class Where:
    """One expression, parsed and checked. ``classes`` are the names of the numbers in ``cls``, if known. Raises
    UsageError for an invalid expression."""

    __slots__ = ("_evaluator", "_scope", "_tree", "classes", "named", "payload_fields", "places", "text")

    def __init__(self, text: str, classes: Sequence[str] = ()) -> None:
        self.text = text
        self.classes = classes
        self._tree = parse(text)
        named = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        self.payload_fields = frozenset(name.encode() for name in named.intersection(PAYLOADS))
        self.named = names_in(self._tree)
        self.places = [Place(b"json", name.path) for name in self.named if name.path is not None]
        self._scope = _Scope(classes)
        self._evaluator = _Evaluator(self._scope)

    def __reduce__(self) -> tuple[Any, ...]:
        return Where, (self.text, self.classes)

    def with_classes(self, classes: Sequence[str]) -> Where:
        """The same expression with other class names."""
        return Where(self.text, classes)

    @property
    def missing_names(self) -> list[MissingName]:
        """Texts compared with ``cls`` that are not class names, if class names are known."""
        unknown = [text for text in _class_texts(self._tree) if text not in self.classes]
        if not unknown or not self.classes:
            return []
        return [
            MissingName(
                f"no class is named {listed(unknown, ' or ')} for --where", hint_of(unknown, self.classes)
            )
        ]

    def holds(self, sample: SampleAt) -> bool:
        """Whether the expression is true of one sample. Raises DataError ``undecodable``."""
        return bool(self.value(sample))

    def value(self, sample: SampleAt) -> Any:
        """The expression's value for one sample; None if the sample lacks a name in it. Raises DataError
        ``undecodable``."""
        self._scope.enter(sample)
        try:
            return self._evaluator.eval(self.text, self._tree)
        except WdsError:
            raise
        except _Missing:
            return None
        except InvalidExpression as error:
            raise UsageError(f"--where: {error}") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            if "'NoneType'" in str(error):
                return None
            hint = "convert a value with int(), float() or str()"
            if isinstance(error, ArithmeticError):
                hint = "test the value first: json.h > 0 and json.w / json.h > 2"
            raise sample.error(
                f"--where cannot be evaluated: {error}", "undecodable", hint=f"{hint}; {_SKIP_HINT}"
            ) from None
        except RecursionError:
            raise UsageError("--where: the expression is nested too deeply") from None

    def look(self, seen_names: SeenNames) -> None:
        """Look for the expression's places in the JSON of the last sample, if it was decoded."""
        known = self._scope.known
        for place in self.places if "json" in known else ():
            if place not in seen_names.places:
                seen_names.see_document(place, known["json"])


class _Scope:
    """The names of one sample as a mapping for simpleeval; values are computed on demand."""

    sample: SampleAt

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes

    def enter(self, sample: SampleAt) -> None:
        self.sample = sample
        self.known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.known:
            self.known[name] = _VALUES[name](self)
        return self.known[name]

    def rand(self, seed: int = 0) -> float:
        """A number from 0 to below 1 that depends on the sample's key and the seed only."""
        return (xxh3_64_intdigest(self.sample.key, seed & _SEEDS) >> 11) / (1 << 53)

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
        """The payload as a whole number, as webdataset reads it; else as text."""
        text = self.text("cls").strip()
        number = class_number(text)
        if number is None or not 0 <= number < len(self._classes):
            return text if number is None else number
        found = Number(number)
        found.name = self._classes[number]
        return found

    def json(self) -> Any:
        import json

        data = self.payload("json")
        try:
            return json.loads(data)
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
        super().__init__(operators=_OPERATORS, functions={**FUNCTIONS, "rand": scope.rand}, names=scope)
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
        if getattr(node, _CALLED_MARK, False) and value is not None:
            raise TypeError(f"{ast.unparse(node.value)} is not text, so it has no .{node.attr}()")
        raise _Missing

    def _subscript(self, node: ast.Subscript) -> Any:
        value, place = self._eval(node.value), self._eval(node.slice)
        try:
            return value[place]
        except (TypeError, LookupError):
            raise _Missing from None

    def _check_disallowed_items(self, item: object) -> None:
        """Check nothing: simpleeval would walk every JSON document at every step. All values are plain data, since they
        come from the scope, FUNCTIONS and TEXT_METHODS."""


def parse(text: str) -> ast.expr:
    """The expression's tree. Raises UsageError for a node or name that is not allowed."""
    if not text.strip():
        raise UsageError("--where is empty", hint="--where 'json.width >= 512 and size.jpg < 1e6'")
    if len(text) > _MAX_LENGTH:
        raise UsageError(f"--where is longer than {_MAX_LENGTH} characters")
    import warnings

    try:
        # Python warns of the backslash in search('\\d', key).
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise _syntax_error(text, error) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"--where cannot be read: {error}") from None
    _check_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise _not_allowed(node)
    return tree


def _syntax_error(text: str, error: SyntaxError) -> UsageError:
    hint = "compare with ==, combine with and, or, not; quote text: key == 'a/b' and size.jpg < 1e6"
    offset = error.offset or 0
    where = f"at character {offset}" if 0 < offset <= len(text.rstrip()) else "at the end"
    return UsageError(f'--where cannot be read: {error.msg} {where} of "{text}"', hint=hint)


def _not_allowed(node: ast.AST) -> UsageError:
    twin = _TWINS.get(type(getattr(node, "op", node)))  # type: ignore[arg-type]
    if twin is not None:
        return UsageError(f"--where: {twin[0]} is not allowed", hint=f"write {twin[1]}")
    return UsageError(
        f"--where: {type(node).__name__} is not allowed",
        hint="comparisons, and, or, not, in, arithmetic, lists, indexing and calls of: "
        + ", ".join(FUNCTIONS),
    )


def _check_names(tree: ast.expr) -> None:
    """Raise UsageError for a name, attribute or call that is not allowed."""
    called = {id(node.func): node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            _check_name(node.id, FUNCTIONS if id(node) in called else NAMES)
        elif isinstance(node, ast.Attribute):
            _check_attribute(node, is_called=id(node) in called)
            setattr(node, _CALLED_MARK, id(node) in called)
    for function in called.values():
        if not isinstance(function, (ast.Name, ast.Attribute)):
            raise _not_allowed(function)


def _check_name(name: str, known: Any) -> None:
    if name in known:
        return
    if known is FUNCTIONS:
        raise UsageError(
            f"--where: no such function: {name}", hint=hint_of([name], [*FUNCTIONS], len(FUNCTIONS))
        )
    if name in FUNCTIONS:
        raise UsageError(f"--where: {name} is a function", hint=f"call it: {name}(...)")
    raise UsageError(f"--where: no such name: {name}", hint=hint_of([name], NAMES))


def _check_attribute(node: ast.Attribute, *, is_called: bool) -> None:
    name = node.attr
    if name.startswith("__"):
        raise UsageError(f"--where: .{name} is not allowed")
    if is_called and name not in TEXT_METHODS:
        hint = (
            "get(json, 'name', default)"
            if name == "get"
            else "methods of text: " + ", ".join(sorted(TEXT_METHODS))
        )
        raise UsageError(f"--where: no such method: .{name}()", hint=hint)
    if not is_called and isinstance(node.value, ast.Name) and node.value.id in _TEXT_NAMES:
        hint = f"call it: {node.value.id}.{name}(...)" if name in TEXT_METHODS else f"{node.value.id} is text"
        raise UsageError(f"--where: {node.value.id} has no .{name}", hint=hint)


def _class_texts(tree: ast.expr) -> list[str]:
    """The texts compared with ``cls``: ``cls == "a"``, ``cls in ["a", "b"]``."""
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        for left, test, right in zip([node.left, *node.comparators], node.ops, node.comparators):
            both = (left, right)
            if isinstance(test, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) and any(map(_is_class, both)):
                parts = [part for one in both for part in getattr(one, "elts", [one])]
                found.update((text, None) for text in map(_constant, parts) if isinstance(text, str))
    return list(found)


def _is_class(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "cls"


def names_in(tree: ast.expr) -> tuple[Named, ...]:
    """The fields and places in JSON whose values an expression needs: ``json.width``, ``json["a"][0]``, ``size.jpg``,
    ``cls``. The operands of ``in`` and the names in ``get()`` are not needed.

    >>> [name.text for name in names_in(ast.parse("json.a[0].b.lower() == txt and 'x' in size", mode="eval").body)]
    ['json', 'json.a[0].b', 'txt']
    """
    found: dict[Named, None] = {}
    _Names(found).visit(tree)
    return tuple(found)


class _Names(ast.NodeVisitor):
    def __init__(self, found: dict[Named, None]) -> None:
        self._found = found

    def _add(self, text: str, field: str, path: Path | None = None) -> None:
        self._found[Named(text, " for --where", (field,), path)] = None

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in PAYLOADS:
            self._add(node.id, node.id)

    def visit_Call(self, node: ast.Call) -> None:
        # A method of a text is not a place in JSON.
        self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for argument in node.args:
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        """A chain of names and places; brackets without a constant end it."""
        path: list[str | int] = []
        at: ast.expr = node
        place = at
        while isinstance(at, ast.Attribute | ast.Subscript):
            step = at.attr if isinstance(at, ast.Attribute) else _constant(at.slice)
            if step is None:
                path, place = [], at.value
                self.visit(at.slice)  # type: ignore[union-attr]
            else:
                path.insert(0, step)
            at = at.value
        if isinstance(at, ast.Name) and at.id == "json":
            self._add("json", "json")
            if path:
                self._add(ast.unparse(place), "json", tuple(path))
        elif isinstance(at, ast.Name) and at.id == "size":
            if path and isinstance(path[0], str):
                self._add(f"size.{path[0]}", path[0])
        else:
            self.visit(at)

    visit_Subscript = visit_Attribute


def _constant(node: ast.expr) -> str | int | None:
    """The constant name or place in brackets; None if it is not constant."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) in (str, int) else None
