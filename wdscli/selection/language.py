"""This module has the language of ``--where``: its names and functions, the check of a text, and normal forms.

:func:`parse` makes a checked tree of a text, so that a mistake is an error before anything is read. :func:`normal`
gives one text for all ways to write an expression; indexes store values under it. The functions and operators make no
value that is much larger than their operands. This module does not evaluate anything;
:mod:`wdscli.selection.where` does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy
from keyword import iskeyword
from typing import Any

from simpleeval import DEFAULT_OPERATORS
from xxhash import xxh3_64_intdigest

from wdscli.errors import UsageError
from wdscli.model import to_bytes
from wdscli.selection.expressions import expression
from wdscli.selection.named import Named, Path, hint_of, is_like

PAYLOADS = ("json", "cls", "txt")
NAMES = ("key", "shard", "index", "size", "fields", *PAYLOADS)
_TEXT_NAMES = ("key", "shard", "txt")

# None of these makes a result much longer than its input.
_CALLED = (
    "casefold count endswith find lower lstrip partition removeprefix removesuffix rfind rpartition rsplit"
)
_ASKED = "isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace isupper"
TEXT_METHODS = frozenset(f"{_CALLED} {_ASKED} rstrip split splitlines startswith strip upper".split())
CALLED_MARK = "is_called"
"""An attribute that :func:`parse` sets on attribute nodes: whether the attribute is called."""
_MAX_LENGTH = 10_000
_MAX_BITS = 4096
SEEDS = (1 << 64) - 1

_LOGIC = "BoolOp And Or Not IfExp UnaryOp BinOp USub UAdd"
_ARITHMETIC = "Add Sub Mult Div FloorDiv Mod Pow"
_ORDER = "Compare Eq NotEq Lt LtE Gt GtE In NotIn Is IsNot"
_VALUE = "Constant List Tuple Set Name Load Attribute Subscript Slice Call keyword"
_NODES = tuple(getattr(ast, name) for name in f"{_LOGIC} {_ARITHMETIC} {_ORDER} {_VALUE}".split())
_TWINS = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.Invert: ("~", "not")}


FIELD_FUNCTIONS = ("height", "lines", "seconds", "shape", "width")
"""Functions of a payload, most of its header. The argument is the name of a field."""
FIELD_MARK = "is_field"
"""An attribute that :func:`parse` sets on the name in ``len(FIELD)``: the name of a field with a text."""
STORED_MARK = "="
"""The first character of a name that :class:`StoredParts` puts into a tree."""


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
    return xxh3_64_intdigest(to_bytes(str(value)), seed & SEEDS)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "float": float,
    "get": _get,
    "hash": _hash,
    **dict.fromkeys(FIELD_FUNCTIONS, len),  # each scope has its own
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


OPERATORS = {**DEFAULT_OPERATORS, ast.Mult: _product, ast.Pow: _power, ast.Mod: _modulo}


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
    _FieldCalls().visit(tree)
    _check_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise _not_allowed(node)
        if isinstance(node, ast.Compare):
            _check_identity(node)
    return tree


class _FieldCalls(ast.NodeTransformer):
    """Makes a text of the argument of each function of a field: ``width(seg.png)`` is ``width("seg.png")``. Marks the
    field in ``len(FIELD)``: ``len(py)`` is the length of a text, as ``len(txt)``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            field = _field_in(node.args[0])
            if field and not isinstance(node.args[0], ast.Constant) and field.split(".")[0] not in NAMES:
                node.args = [ast.Name(field, ast.Load())]
                setattr(node.args[0], FIELD_MARK, True)
                return node
        if not (isinstance(node.func, ast.Name) and node.func.id in FIELD_FUNCTIONS):
            return self.generic_visit(node)
        field = _field_in(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        if field is None:
            name = node.func.id
            hint = f'{name}(seg.png), or {name}("2.seg.png")'
            raise UsageError(f"--where: {name}() takes the name of a field", hint=hint)
        node.args = [ast.Constant(field)]
        return node


def _field_in(node: ast.expr) -> str | None:
    """The field that a name, dots between names, or a text in quotes means."""
    if isinstance(node, ast.Attribute):
        before = None if isinstance(node.value, ast.Constant) else _field_in(node.value)
        return None if before is None else f"{before}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    return (
        node.value.removeprefix(".") if isinstance(node, ast.Constant) and type(node.value) is str else None
    )


def _is_field_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FIELD_FUNCTIONS


def _is_payload(node: ast.Name) -> bool:
    return node.id in PAYLOADS or getattr(node, FIELD_MARK, False)


def payloads_in(tree: ast.expr) -> Iterator[bytes]:
    """The fields whose payloads an expression reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and _is_payload(node):
            yield to_bytes(node.id)
        elif _is_field_call(node):
            yield to_bytes(node.args[0].value)  # type: ignore[attr-defined]


def is_of_payloads(tree: ast.expr) -> bool:
    """Return whether an expression has no name that changes when a sample gets another place, key or list of fields."""
    sized = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)}
    return not any(
        isinstance(node, ast.Name)
        and (
            node.id in ("key", "shard", "index", "fields", "rand")
            or (node.id == "size" and id(node) not in sized)
        )
        for node in ast.walk(tree)
    )


def normal(tree: ast.expr) -> str:
    """The normal form of an expression: one text for all ways to write it.

    >>> normal(parse("len( txt )+json['a'].b['c d']")), normal(parse("width('seg.png')"))
    ("len(txt) + json.a.b['c d']", 'width(seg.png)')
    """
    return ast.unparse(_Normal().visit(deepcopy(tree)))


def place_name(path: Path) -> str:
    """The normal form of a place in the JSON of the field ``json``.

    >>> place_name(("a", 0, "b c"))
    "json.a[0]['b c']"
    """
    return "json" + "".join(
        f".{step}" if isinstance(step, str) and _is_attribute(step) else f"[{step!r}]" for step in path
    )


def _is_attribute(name: str) -> bool:
    """Return whether ``.name`` means the same as ``["name"]``."""
    is_name = name.isascii() and name.isidentifier() and not iskeyword(name)
    return is_name and name not in TEXT_METHODS and not name.startswith("__")


class _Normal(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        name = _constant(node.slice)
        if isinstance(name, str) and _is_attribute(name):
            return ast.Attribute(node.value, name, node.ctx)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not _is_field_call(node):
            return self.generic_visit(node)
        field = node.args[0].value  # type: ignore[attr-defined]
        if all(map(_is_attribute, field.split("."))):
            node.args = [ast.Name(field)]
        return node


class StoredParts(ast.NodeTransformer):
    """Replaces each part of an expression that has one of ``names`` as its normal form by a name for the scope."""

    def __init__(self, names: frozenset[str], has_classes: bool) -> None:
        self._names = names - {"cls"} if has_classes else names

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _STORABLE) and (name := normal(node)) in self._names:
            return ast.Name(STORED_MARK + name)
        return super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # The method of a text is not a value.
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        node.args = [self.visit(argument) for argument in node.args]
        return node


_STORABLE = (ast.Attribute, ast.BinOp, ast.Call, ast.IfExp, ast.Name, ast.Subscript, ast.UnaryOp)


def _syntax_error(text: str, error: SyntaxError) -> UsageError:
    hint = "compare with ==, combine with and, or, not; quote text: key == 'a/b' and size.jpg < 1e6"
    offset = error.offset or 0
    code, start = text.strip(), max(offset - 1, 0)
    word = code[start : (error.end_offset or 1) - 1]
    if iskeyword(word) and code[:start].endswith("."):
        hint = f"{word} is a keyword of Python: write json['{word}'] for json.{word}"
    where = f"at character {offset}" if 0 < offset <= len(text.rstrip()) else "at the end"
    return UsageError(f'--where cannot be read: {error.msg} {where} of "{text}"', hint=hint)


def _not_allowed(node: ast.AST) -> UsageError:
    twin = _TWINS.get(type(getattr(node, "op", node)))  # type: ignore[arg-type]
    if twin is not None:
        return UsageError(f"--where: {twin[0]} is not allowed", hint=f"write {twin[1]}")
    return UsageError(
        f"--where: {type(node).__name__} is not allowed",
        hint="allowed: comparisons, and, or, not, in, arithmetic, lists, indexing and calls of: "
        + ", ".join(FUNCTIONS),
    )


def _check_identity(node: ast.Compare) -> None:
    """Raise UsageError for ``is``, except with None, True or False: two equal values may be two objects."""
    operands = [node.left, *node.comparators]
    alone = any(
        isinstance(operand, ast.Constant) and isinstance(operand.value, bool | None) for operand in operands
    )
    if not alone and any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
        raise UsageError("--where: `is` does not compare values", hint="write ==, or != for `is not`")


def _check_names(tree: ast.expr) -> None:
    """Raise UsageError for a name, attribute or call that is not allowed."""
    called = {id(node.func): node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not _is_payload(node):
            _check_name(node.id, FUNCTIONS if id(node) in called else NAMES)
        elif isinstance(node, ast.Attribute):
            _check_attribute(node, is_called=id(node) in called)
            setattr(node, CALLED_MARK, id(node) in called)
    for function in called.values():
        if not isinstance(function, (ast.Name, ast.Attribute)):
            raise _not_allowed(function)


def _check_name(name: str, allowed: Any) -> None:
    if name in allowed:
        return
    if allowed is FUNCTIONS:
        raise UsageError(
            f"--where: no such function: {name}", hint=hint_of([name], [*FUNCTIONS], len(FUNCTIONS))
        )
    if name in FUNCTIONS:
        raise UsageError(f"--where: {name} is a function", hint=f"call it: {name}(...)")
    similar = hint_of([name], NAMES)
    advice = f"a value in JSON is json.{name}, a size is size.{name}, text is '{name}'; "
    raise UsageError(
        f"--where: no such name: {name}", hint=similar if similar.startswith("did") else advice + similar
    )


def _check_attribute(node: ast.Attribute, *, is_called: bool) -> None:
    name = node.attr
    if name.startswith("__"):
        raise UsageError(f"--where: .{name} is not allowed")
    if is_called and name not in TEXT_METHODS:
        hint = (
            "get(json, 'name', default)"
            if name == "get"
            else f"call it: {name}(...)"
            if name in FUNCTIONS
            else "methods of text: " + ", ".join(sorted(TEXT_METHODS))
        )
        raise UsageError(f"--where: no such method: .{name}()", hint=hint)
    if not is_called and isinstance(node.value, ast.Name) and node.value.id in _TEXT_NAMES:
        hint = f"call it: {node.value.id}.{name}(...)" if name in TEXT_METHODS else f"{node.value.id} is text"
        raise UsageError(f"--where: {node.value.id} has no .{name}", hint=hint)


def class_texts(tree: ast.expr) -> list[str]:
    """The texts compared with ``cls``: ``cls == "a"``, ``cls in ["a", "b"]``."""
    texts: dict[str, None] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        for left, test, right in zip([node.left, *node.comparators], node.ops, node.comparators):
            both = (left, right)
            is_class = any(isinstance(operand, ast.Name) and operand.id == "cls" for operand in both)
            if is_class and isinstance(test, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
                parts = [part for operand in both for part in getattr(operand, "elts", [operand])]
                texts.update((text, None) for text in map(_constant, parts) if isinstance(text, str))
    return list(texts)


def names_in(tree: ast.expr) -> tuple[Named, ...]:
    """The fields and places in JSON whose values an expression needs: ``json.width``, ``json["a"][0]``, ``size.jpg``,
    ``cls``. The operands of ``in`` and the names in ``get()`` are not needed.

    >>> [name.text for name in names_in(ast.parse("json.a[0].b.lower() == txt and 'x' in size", mode="eval").body)]
    ['json', 'json.a[0].b', 'txt']
    """
    names: dict[Named, None] = {}
    _Names(names).visit(tree)
    return tuple(names)


class _Names(ast.NodeVisitor):
    def __init__(self, names: dict[Named, None]) -> None:
        self._names = names

    def _add(self, text: str, field: str, path: Path | None = None) -> None:
        self._names[Named(text, " for --where", (field,), path)] = None

    def visit_Name(self, node: ast.Name) -> None:
        if _is_payload(node):
            self._add(node.id, node.id)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_field_call(node):
            field = node.args[0].value  # type: ignore[attr-defined]
            self._add(normal(node), field)
            return
        # A method of a text is not a place in JSON.
        self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for argument in node.args:
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        """Find a path of constant names and places in JSON. The path ends before brackets that contain no constant."""
        path: list[str | int] = []
        expression: ast.expr = node
        place = expression
        while isinstance(expression, ast.Attribute | ast.Subscript):
            step = expression.attr if isinstance(expression, ast.Attribute) else _constant(expression.slice)
            if step is None:
                path, place = [], expression.value
                self.visit(expression.slice)  # type: ignore[union-attr]
            else:
                path.insert(0, step)
            expression = expression.value
        if isinstance(expression, ast.Name) and expression.id == "json":
            self._add("json", "json")
            if path:
                self._add(ast.unparse(place), "json", tuple(path))
        elif isinstance(expression, ast.Name) and expression.id == "size":
            if path and isinstance(path[0], str):
                self._add(f"size.{path[0]}", path[0])
        else:
            self.visit(expression)

    visit_Subscript = visit_Attribute


def _constant(node: ast.expr) -> str | int | None:
    """The constant name or place in brackets; None if it is not constant."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) in (str, int) else None
