"""The names in an expression for ``--where``: fields, and places in JSON, that samples must have somewhere.

What it is: :func:`names_in`. How: one walk over the tree; a chain of attributes and constants in brackets is a place.
It must not know how expressions are worked out.
"""

from __future__ import annotations

import ast

from wdscli.selection.named import Named, Path

_PAYLOADS = ("json", "cls", "txt")


def names_in(tree: ast.expr) -> tuple[Named, ...]:
    """The fields and places in JSON that an expression for ``--where`` wants values of: ``json.width``,
    ``json["a"][0]``, ``size.jpg``, ``cls``. Whether something is ``in`` something, and what ``get`` asks for, may be
    nowhere.

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
        if node.id in _PAYLOADS:
            self._add(node.id, node.id)

    def visit_Call(self, node: ast.Call) -> None:
        # The method of a text is no place in it.
        self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for argument in node.args:
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._visit_place(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._visit_place(node)

    def _visit_place(self, node: ast.Attribute | ast.Subscript) -> None:
        """A chain of names and places; what is between brackets and no constant ends it."""
        path: list[str | int] = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute | ast.Subscript):
            step = at.attr if isinstance(at, ast.Attribute) else _constant(at.slice)
            if step is None:
                path = []
                self.visit(at.slice)  # type: ignore[union-attr]
            else:
                path.insert(0, step)
            at = at.value
        if isinstance(at, ast.Name) and at.id == "json":
            self._add("json", "json")
            if path:
                self._add(ast.unparse(_without(node, len(path))), "json", tuple(path))
        elif isinstance(at, ast.Name) and at.id == "size":
            if path and isinstance(path[0], str):
                self._add(f"size.{path[0]}", path[0])
        else:
            self.visit(at)


def _without(node: ast.expr, steps: int) -> ast.expr:
    """The first so many steps of a chain."""
    chain: list[ast.expr] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        chain.insert(0, node)
        node = node.value
    return chain[steps - 1]


def _constant(node: ast.expr) -> str | int | None:
    """A name or a place that stands between brackets."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) in (str, int) else None
