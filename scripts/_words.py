"""Words that make text hard to read, counted in what users read and in docstrings and comments.

    python scripts/_words.py            one line of counts, which scripts/check prints; fails above the bounds
    python scripts/_words.py --list     each place: file, line, the word and the text around it

Users read the README, the guides, the manual pages, the unreleased part of the changelog, and every string in the code
that is an error, a hint, a warning, a note or help. The words are those of a translated style ("what was told", "who
has so many"); the list is in WORDS. A word in ``code`` or in a block of code does not count.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from _house import MODULES, TOP, docstrings, tokens, tree

MOST_IN_TEXT = 0
MOST_IN_DOCSTRINGS = 0
MOST_LONG_MESSAGES = 0
"""Bounds that only go down."""
LONGEST_MESSAGE = 100
"""Columns of a message or a hint, without the values it names."""

WORDS = re.compile(
    r"\b(told|asked|stands?|nobody|somebody|whoever|(?:go|goes|gone|went) on with|lets? go|dice|afar|anew|dear|heard"
    r"|of which|that which|in the place of|where there is one|what is there|is another|made again|(?<!--)near|far)\b"
    r"(?<!so far)(?<!as far)(?<!how far)(?!-)",
    re.IGNORECASE,
)
SPEAKING = {"warn", "note", "start", "say", "echo", "Option", "Argument", "print"}
"""Functions whose strings a person reads, beside errors."""


class Found(NamedTuple):
    """A word in its place."""

    path: Path
    line: int
    word: str
    text: str


def in_text(path: Path) -> Iterator[Found]:
    """The words in a page, outside of code."""
    is_code = False
    for number, line in enumerate(_pages_part(path).splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        if not is_code and not line.startswith("    "):
            yield from _found(path, number, line)


def _pages_part(path: Path) -> str:
    text = path.read_text()
    return re.split(r"(?m)^## (?!Unreleased)", text)[0] if path.name == "CHANGELOG.md" else text


def _found(path: Path, line: int, text: str) -> Iterator[Found]:
    for match in WORDS.finditer(re.sub(r"`[^`]*`", " ", text)):
        yield Found(path, line, match[0], text.strip())


@cache
def messages(path: Path) -> frozenset[tuple[int, str]]:
    """Line and text of each string that a user may read: of errors, hints, warnings, notes and help."""
    return frozenset(_messages(path))


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from _strings(node.exc)
        elif isinstance(node, ast.keyword) and node.arg in ("hint", "help", "epilog"):
            yield from _strings(node.value)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in SPEAKING or name.endswith(("Error", "Option", "Finding")):
                for one in node.args:
                    yield from _strings(one)


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts of an expression; a value in braces is left out."""
    if isinstance(node, ast.JoinedStr):
        parts = [one.value for one in node.values if isinstance(one, ast.Constant)]
        yield node.lineno, "".join(map(str, parts))
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings and comments of a module."""
    for node, text in docstrings(path):
        yield node.lineno, text
    for token in tokens(path):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def pages() -> list[Path]:
    """The pages that people read. Manual pages of section 1 are made of ``man/prose`` and the options."""
    top = [TOP / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((TOP / "man" / "guides").rglob("*.md")), *sorted((TOP / "man" / "prose").iterdir())]


def words_of_users() -> list[Found]:
    """The words in what users read."""
    found = {one for path in pages() for one in in_text(path)}
    for path in MODULES.values():
        for line, text in messages(path):
            found.update(_found(path, line, text))
    return sorted(found)


def words_of_docstrings() -> list[Found]:
    """The words in docstrings and comments."""
    return sorted(
        {
            one
            for path in MODULES.values()
            for line, text in comments(path)
            for one in _found(path, line, text)
        }
    )


def long_messages() -> list[tuple[Path, int, str]]:
    """Messages and hints that are wider than a line without the values they name."""
    every = {(path, line, text) for path in MODULES.values() for line, text in messages(path)}
    return sorted(one for one in every if max(map(len, one[2].splitlines()), default=0) > LONGEST_MESSAGE)


def main() -> int:
    """Print the counts; 1 when one is above its bound."""
    users, docs, wide = words_of_users(), words_of_docstrings(), long_messages()
    if "--list" in sys.argv:
        for one in (*users, *docs):
            print(f"{one.path.relative_to(TOP)}:{one.line}: {one.word}: {' '.join(one.text.split())[:160]}")
        for path, line, text in wide:
            print(f"{path.relative_to(TOP)}:{line}: {len(text)} columns: {text}")
    print(
        f"hard words: {len(users)} in text for users (at most {MOST_IN_TEXT}), "
        f"{len(docs)} in docstrings and comments (at most {MOST_IN_DOCSTRINGS}); "
        f"{len(wide)} messages over {LONGEST_MESSAGE} columns"
    )
    is_above = (len(users) > MOST_IN_TEXT, len(docs) > MOST_IN_DOCSTRINGS, len(wide) > MOST_LONG_MESSAGES)
    return int(any(is_above))


if __name__ == "__main__":
    sys.exit(main())
