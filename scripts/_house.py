"""The size of the house in one line: code lines of trunk and leaves, modules, what a run reaches, what is longest.

    python scripts/_house.py            the line that scripts/check prints; fails above a limit
    python scripts/_house.py --longest  and the longest functions
    python scripts/_house.py --names    and the modules with names that say nothing

A code line is one that is neither blank, nor comment, nor docstring. Leaves are the rooms that the contract "Leaves" of
pyproject.toml lists.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOP = Path(__file__).parents[1]
HOUSE = TOP / "wdscli"
LONG_LINES = 40
MANY_PARAMETERS = 7
MOST_MODULES = 16
"""The most modules of a folder, so that a reader can survey it."""
MOST_MODULE_LINES = 640
"""A module is one idea, up to about 600 lines."""
MOST_HELP_LINES = 60
"""``--help`` fits a screen."""
_EMPTY = "found one some at given known more other made rest there said others seen here item obj res val"
EMPTY_NAMES = frozenset(_EMPTY.split())
"""Names that say nothing about what they hold (STYLE, Names)."""
MOST_EMPTY_NAMES = 2.0
"""The bound for empty names, in 1,000 lines."""
RECORDS = {"NamedTuple", "TypedDict"}


def name_of(path: Path) -> str:
    """The name of a module."""
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(HOUSE.rglob("*.py"))}


@cache
def tree(path: Path) -> ast.Module:
    """A module's source, parsed."""
    return ast.parse(path.read_text())


def docstrings(path: Path) -> Iterator[tuple[ast.Expr, str]]:
    """The strings of a module that are statements of their own, and their texts."""
    for node in ast.walk(tree(path)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node, node.value.value


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a module, with its comments."""
    return tokenize.generate_tokens(io.StringIO(path.read_text()).readline)


def code_lines(path: Path) -> int:
    """Lines of a file that are neither blank, nor comment, nor docstring."""
    docs = {
        line
        for node, _ in docstrings(path)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    passed = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokens(path):
        if token.type not in passed:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def leaves() -> set[str]:
    """The rooms and modules that nothing but their own command imports."""
    contract = re.search(
        r'name = "Leaves.*?(?=\n\[)', (TOP / "pyproject.toml").read_text() + "\n[", re.DOTALL
    )
    listed = re.search(r"protected_modules = \[(.*?)\]", contract[0], re.DOTALL) if contract else None
    return set(re.findall(r'"(wdscli[\w.]*)"', listed[1])) if listed else set()


def is_leaf(module: str) -> bool:
    """Whether a module lies in a leaf room."""
    return any(f"{module}.".startswith(f"{leaf}.") for leaf in leaves())


def imports(module: str) -> set[str]:
    """The modules of ours that a module names in an import outside of ``TYPE_CHECKING``."""
    found = set()
    for node in _running(tree(MODULES[module])):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wdscli"):
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.add(below if below in MODULES else str(node.module))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in MODULES)
    return found - {module}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _running(child)


def reach(start: str, rooms: tuple[str, ...]) -> set[str]:
    """The modules of some rooms that are reached from one, itself among them."""
    found, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module not in found and module.split(".")[1:2] and module.split(".")[1] in rooms:
            found.add(module)
            waiting += imports(module)
    return found


@dataclass(frozen=True)
class Function:
    """A function: its lines and its parameters, ``self`` not counted."""

    name: str
    lines: int
    parameters: int


def functions() -> Iterator[Function]:
    """All functions of the house."""
    for module, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in taken)
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield Function(f"{module}.{node.name}", lines, count)


def records() -> int:
    """Dataclasses, named tuples and typed dictionaries."""
    count = 0
    for path in MODULES.values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).split("[")[0] for base in node.bases}
                count += bool(bases & RECORDS) or any(
                    "dataclass" in ast.unparse(one) for one in node.decorator_list
                )
    return count


def option_names() -> set[str]:
    """The long names of all options that a help shows; ``--no-x`` of ``--x`` is the same option."""
    sys.path.insert(0, str(HOUSE.parent))
    from wdscli.cli.commands import COMMANDS
    from wdscli.cli.group import load

    found = set()
    for name in COMMANDS:
        command = load(name)
        for one in command.get_params(command.context_class(command, **command.context_settings)):
            if not getattr(one, "hidden", False):
                found |= {spelled for spelled in one.opts if spelled.startswith("--")}
    return found


def bound_names(path: Path) -> Iterator[str]:
    """The names that a module binds: variables, loop variables and parameters. Attributes do not count."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def empty_names() -> dict[str, int]:
    """How many empty names each module binds; modules without any are left out."""
    counts = {name: sum(map(EMPTY_NAMES.__contains__, bound_names(path))) for name, path in MODULES.items()}
    return {name: count for name, count in counts.items() if count}


def module_lines() -> int:
    """All lines of all modules."""
    return sum(len(path.read_text().splitlines()) for path in MODULES.values())


def beyond_limits() -> list[str]:
    """What is longer than its limit: modules, folders, and helps at 80 columns."""
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    texts = [f"{name} has {count} lines" for name, count in lines.items() if count > MOST_MODULE_LINES]
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    texts += [
        f"{folder.relative_to(TOP)} has {count} modules"
        for folder, count in folders.items()
        if count > MOST_MODULES
    ]
    helps = {name: help_lines(name) for name in commands()}
    return texts + [
        f"wds {name} --help has {count} lines" for name, count in helps.items() if count > MOST_HELP_LINES
    ]


def commands() -> list[str]:
    """The names of all commands."""
    sys.path.insert(0, str(HOUSE.parent))
    from wdscli.cli.commands import COMMANDS

    return [*COMMANDS]


def help_lines(name: str) -> int:
    """The lines of a command's ``--help`` at 80 columns."""
    from wdscli.cli.group import load

    os.environ["COLUMNS"] = "80"
    command = load(name)
    context = command.context_class(command, info_name=f"wds {name}", **command.context_settings)
    return len(command.get_help(context).splitlines())


def main() -> None:
    """Print the line, and then what is beyond a limit."""
    lines = {module: code_lines(path) for module, path in MODULES.items()}
    leaf = sum(count for module, count in lines.items() if is_leaf(module))
    reached = reach("wdscli.run.execute", ("ops", "plan", "copy", "run"))
    reached_lines = sum(len(MODULES[module].read_text().splitlines()) for module in reached)
    every = sorted(functions(), key=lambda one: -one.lines)
    core = sum(len(path.read_text().splitlines()) for path in (HOUSE / "tar").glob("*.[ch]"))
    print(
        f"code lines {sum(lines.values()) - leaf:,} trunk, {leaf:,} leaves; {len(MODULES)} modules; "
        f"a run reaches {len(reached)} modules, {reached_lines:,} lines; "
        f"{sum(one.lines >= LONG_LINES for one in every)} functions of {LONG_LINES} lines, "
        f"{sum(one.parameters >= MANY_PARAMETERS for one in every)} of {MANY_PARAMETERS} parameters, "
        f"longest {every[0].name} ({every[0].lines}); {records()} records; C core {core:,} lines; "
        f"{len(option_names())} option names; "
        f"{1000 * sum(empty_names().values()) / module_lines():.1f} empty names in 1,000 lines"
    )
    if "--longest" in sys.argv:
        for one in every[:30]:
            print(f"{one.lines:5} {one.parameters:3}  {one.name}")
    if "--names" in sys.argv:
        for name, count in sorted(empty_names().items(), key=lambda pair: -pair[1]):
            print(f"{count:5}  {name}")
    if texts := beyond_limits():
        sys.exit("\n".join(texts))


if __name__ == "__main__":
    main()
