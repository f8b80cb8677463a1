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

from wdscli.codecs.handlers import HeadOf, held_extension
from wdscli.errors import UsageError
from wdscli.selection.expressions import expression
from wdscli.selection.named import Named, hint_of, is_like
from wdscli.selection.places import NAMES, PAYLOADS, Path, Place, field_and_steps, is_document, is_reserved
from wdscli.text import to_bytes, to_text

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
_VALUE = "Constant List Tuple Set Name Load Attribute Subscript Slice Call keyword GeneratorExp comprehension Store"
_NODES = tuple(getattr(ast, name) for name in f"{_LOGIC} {_ARITHMETIC} {_ORDER} {_VALUE}".split())
_TWINS = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.Invert: ("~", "not")}


HEADER_FUNCTIONS = ("height", "seconds", "shape", "width")
FIELD_FUNCTIONS = ("dhash", "field", "lines", "simhash", *HEADER_FUNCTIONS)
"""Functions of a payload, many only of its header. The argument is the name of a field."""
LIST_FUNCTIONS = ("all", "any", "max", "min", "sum")
"""The functions that take ``EXPRESSION for NAME in LIST``."""
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
            tree: ast.expr = _Names().visit(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise _syntax_error(text, error) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"--where cannot be read: {error}") from None
    _check_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise _not_allowed(node)
        if isinstance(node, ast.Compare):
            _check_identity(node)
    return tree


class Field(ast.Name):
    """The name of a field in a tree. Its value is decoded by this name."""


class FieldText(Field):
    """The name of a field in ``len(FIELD)``. Its value is the whole text."""


class Element(ast.Name):
    """The name of an element of a list, after ``for``."""


class _Names(ast.NodeTransformer):
    """Replaces the names of fields and elements by nodes of their own types: in ``info.json.w``, the field is
    ``info.json``. The argument of a function of a field becomes a text: ``width(seg.png)`` is ``width("seg.png")``."""

    def __init__(self) -> None:
        self._elements: set[str] = set()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._place([node.id])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        names = _dotted(node)
        if names:
            return self._place(names)
        node.value = self.visit(node.value)
        return node

    def _place(self, names: list[str]) -> ast.expr:
        if names[0] in self._elements:
            return _with_steps(Element(names[0], ast.Load()), names[1:])
        if names[0] == "size" and len(names) > 1:
            return ast.Attribute(ast.Name("size", ast.Load()), ".".join(names[1:]), ast.Load())
        if is_reserved(names) or (len(names) == 1 and names[0] in FUNCTIONS):
            root = Field if names[0] in PAYLOADS else ast.Name
            return _with_steps(root(names[0], ast.Load()), names[1:])
        field, steps = field_and_steps(names)
        return _with_steps(Field(field, ast.Load()), steps)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        alone = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if name in LIST_FUNCTIONS and isinstance(alone, ast.GeneratorExp):
            node.args = [self._generator(alone, name)]
            return node
        if name not in FIELD_FUNCTIONS:
            node.args = [self.visit(argument) for argument in node.args]
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            if name == "len" and type(alone := node.args[0] if node.args else None) is Field:
                is_text = alone.id not in NAMES and not is_document(alone.id)
                node.args[0] = FieldText(alone.id, ast.Load()) if is_text else alone
            return node
        field = "" if alone is None else _field_in(alone)
        if not field:
            hint = f'{name}(seg.png), or {name}("2.seg.png")'
            raise UsageError(f"--where: {name}() takes the name of a field", hint=hint)
        node.args = [ast.Constant(field)]
        return Field(field, ast.Load()) if name == "field" else node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        functions = ", ".join(f"{name}()" for name in LIST_FUNCTIONS)
        raise UsageError(
            f"--where: `for` is allowed only in {functions}", hint="any(a.w > 9 for a in json.boxes)"
        )

    def _generator(self, node: ast.GeneratorExp, function: str) -> ast.expr:
        before = set(self._elements)
        for generator in node.generators:
            name = generator.target.id if isinstance(generator.target, ast.Name) else ""
            if not name or name in (*NAMES, *FUNCTIONS, *self._elements) or generator.is_async:
                raise UsageError(
                    f"--where: `for {ast.unparse(generator.target)}` needs a new name",
                    hint="for a in json.boxes",
                )
            generator.iter = self.visit(generator.iter)
            self._elements.add(name)
            generator.target = Element(name, ast.Store())
            generator.ifs = [self.visit(test) for test in generator.ifs]
        node.elt = self.visit(node.elt)
        self._elements = before
        setattr(node, LACKING_MARK, function in ("all", "any"))
        return node


LACKING_MARK = "is_false"
"""An attribute of a generator: whether an element that lacks the value is False. Otherwise it is left out."""


def _with_steps(node: ast.expr, steps: list[str]) -> ast.expr:
    for step in steps:
        node = ast.Attribute(node, step, ast.Load())
    return node


def tree_of(place: Place) -> ast.expr:
    """Return the tree of a place, as :func:`parse` would make it."""
    node: ast.expr = Field(to_text(place.field), ast.Load())
    for step in place.path:
        node = ast.Subscript(node, ast.Constant(step), ast.Load())
    return node


def sized_field(tree: ast.expr) -> bytes | None:
    """Return the field of ``size.FIELD``, or None for any other expression."""
    is_size = isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Name) and tree.value.id == "size"
    return to_bytes(tree.attr) if is_size else None  # type: ignore[attr-defined]


def _dotted(node: ast.expr) -> list[str]:
    """Return the names in ``a.b.c``; an empty list for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else []
    return before and [*before, node.attr]  # type: ignore[attr-defined]


def _field_in(node: ast.expr) -> str:
    """The field that a name, dots between names, or a text in quotes means; empty if there is none."""
    if isinstance(node, ast.Constant) and type(node.value) is str:
        return node.value.removeprefix(".")
    return ".".join(_dotted(node))


def _is_field_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FIELD_FUNCTIONS


def payloads_in(tree: ast.expr) -> Iterator[bytes]:
    """The fields whose payloads an expression reads, as :class:`HeadOf` if it reads a header."""
    for node in ast.walk(tree):
        if isinstance(node, Field):
            yield to_bytes(node.id)
        elif _is_field_call(node):
            field: str = node.args[0].value  # type: ignore[attr-defined]
            function: str = node.func.id  # type: ignore[attr-defined]
            yield HeadOf(to_bytes(field)) if reads_head(function, field) else to_bytes(field)


def reads_head(function: str, field: str) -> bool:
    """Return whether a function of a field reads only parts of the payload. A compressed payload is read as a whole."""
    return function in HEADER_FUNCTIONS and not held_extension(field)[1]


def is_of_payloads(tree: ast.expr) -> bool:
    """Return whether an expression has no name that changes when a sample gets another place, key or list of fields."""
    sized = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)}
    return not any(
        type(node) is ast.Name
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


def place_name(place: Place) -> str:
    """The normal form of a place.

    >>> place_name(Place(b"info.json", ("a", 0, "b c"))), place_name(Place(b"2.txt"))
    ("info.json.a[0]['b c']", "field('2.txt')")
    """
    return normal(tree_of(place))


def _is_attribute(name: str) -> bool:
    """Return whether ``.name`` means the same as ``["name"]``."""
    is_name = name.isascii() and name.isidentifier() and not iskeyword(name)
    return is_name and name not in TEXT_METHODS and not name.startswith("__")


class _Normal(ast.NodeTransformer):
    def visit_Field(self, node: Field) -> ast.expr:
        names = node.id.split(".")
        is_plain = all(map(_is_attribute, names)) and (len(names) > 1 or names[0] not in FUNCTIONS)
        if is_plain and not is_reserved(names) and field_and_steps(names) == (node.id, []):
            return ast.Name(node.id)
        return ast.Call(ast.Name("field"), [ast.Constant(node.id)], [])

    visit_FieldText = visit_Field

    def visit_Element(self, node: Element) -> ast.expr:
        return ast.Name(node.id)

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
        if type(node) is ast.Name:
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
    raise UsageError(f"--where: no such name: {name}", hint=hint_of([name], NAMES))


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
    """The fields and places whose values an expression needs: ``json.width``, ``json["a"][0]``, ``size.jpg``, ``cls``.
    The operands of ``in`` and the names in ``get()`` are not needed.

    >>> [name.text for name in names_in(parse("json.a[0].b.lower() == txt and 'x' in size"))]
    ['json', 'json.a[0].b', 'txt']
    """
    names: dict[Named, None] = {}
    _NeededNames(names).visit(tree)
    return tuple(names)


class _NeededNames(ast.NodeVisitor):
    def __init__(self, names: dict[Named, None]) -> None:
        self._names = names

    def _add(self, text: str, field: str, path: Path | None = None) -> None:
        hint = f"text is '{field}'" if path is None and text not in NAMES and text.isidentifier() else ""
        self._names[Named(text, " for --where", (field,), path, hint=hint)] = None

    def visit_Field(self, node: Field) -> None:
        self._add(node.id, node.id)

    visit_FieldText = visit_Field

    def visit_Call(self, node: ast.Call) -> None:
        if _is_field_call(node):
            field = node.args[0].value  # type: ignore[attr-defined]
            self._add(normal(node), field)
            return
        # A method of a text is not a place.
        self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for argument in node.args:
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        """Find a path of constant names and places. The path ends before brackets that contain no constant."""
        path: list[str | int] = []
        root: ast.expr = node
        place = root
        while isinstance(root, ast.Attribute | ast.Subscript):
            step = root.attr if isinstance(root, ast.Attribute) else _constant(root.slice)
            if step is None:
                path, place = [], root.value
                self.visit(root.slice)  # type: ignore[union-attr]
            else:
                path.insert(0, step)
            root = root.value
        if isinstance(root, Field) and is_document(root.id):
            self._add(root.id, root.id)
            if path:
                self._add(normal(place), root.id, tuple(path))
        elif isinstance(root, ast.Name) and root.id == "size":
            if path and isinstance(path[0], str):
                self._add(f"size.{path[0]}", path[0])
        else:
            self.visit(root)

    visit_Subscript = visit_Attribute


def _constant(node: ast.expr) -> str | int | None:
    """The constant name or place in brackets; None if it is not constant."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) in (str, int) else None
