"""The shape of the house: what a newcomer must hold in the head stays small. import-linter holds the layers."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2] / "wdscli"
sys.path.insert(0, str(HOUSE.parent / "scripts"))
import _house  # noqa: E402
from _house import MODULES, tree  # noqa: E402

COMPILED = {"wdscli.tar._core", "wdscli.tar._crc"}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a module. Several tests look through them."""
    return list(ast.walk(tree(path)))


@cache
def imports() -> dict[str, set[str]]:
    """Which modules of ours each module names in an import anywhere in it, for type checkers and by name too."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("wdscli"):
                for alias in node.names:
                    below = f"{node.module}.{alias.name}"
                    if below not in COMPILED:
                        found[name].add(below if below in MODULES else node.module)
            elif isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names if alias.name in MODULES)
            elif isinstance(node, ast.Call) and called(node) == "import_module":
                found[name].update(by_name(name, node.args[0]))
    return found


def called(call: ast.Call) -> str:
    """The last name of the function that is called."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


@cache
def callers() -> dict[str, set[str]]:
    """The modules that call a function, by its name."""
    modules: dict[str, set[str]] = defaultdict(set)
    for name, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.Call):
                modules[called(node)].add(name.removeprefix("wdscli."))
    return modules


def by_name(importer: str, argument: ast.expr) -> set[str]:
    """The modules that ``import_module`` may load: of an f-string, all that begin with its text. A package may choose
    among its own modules."""
    if isinstance(argument, ast.Constant):
        return {str(argument.value)} & MODULES.keys()
    text = argument.values[0] if isinstance(argument, ast.JoinedStr) else None
    start = str(text.value) if isinstance(text, ast.Constant) else ""
    own = ".".join(importer.split(".")[:2]) + "."
    is_foreign = start.startswith("wdscli.") and not start.startswith(own)
    return {name for name in MODULES if is_foreign and name.startswith(start)}


@pytest.mark.parametrize("text", ['"wdscli.shards.view_shards"', 'f"wdscli.shards.{name}"'])
def test_imports_by_name_are_seen(text: str) -> None:
    """Storage imported a module of shards by name, and 15 modules were one circle."""
    argument = ast.parse(text, mode="eval").body
    assert "wdscli.shards.view_shards" in by_name("wdscli.storage.opening", argument)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """What is left of a graph when, again and again, what imports nothing of it is taken away."""
    left = {name: others & graph.keys() for name, others in graph.items()}
    while leaves := {name for name, others in left.items() if not others}:
        left = {name: others - leaves for name, others in left.items() if name not in leaves}
    return [[name, *sorted(others)] for name, others in sorted(left.items())]


@pytest.mark.exhaustive
def test_no_circle_of_modules() -> None:
    """Faces of packages and imports for type checkers included."""
    found = imports()
    assert not circles({name: found[name] - {name} for name in MODULES})


@pytest.mark.parametrize("package", ["wdscli", "wdscli.loader"])
def test_no_circle_of_rooms(package: str) -> None:
    """The modules and folders of a package, a folder as one, import each other in one direction."""
    found = imports()
    rooms: dict[str, set[str]] = defaultdict(set)
    for name in [name for name in MODULES if name.startswith(f"{package}.")]:
        others = [other for other in found[name] if other.startswith(f"{package}.")]
        rooms[room(package, name)].update(room(package, other) for other in others)
    assert not circles({one: others - {one} for one, others in rooms.items()})


def room(package: str, module: str) -> str:
    """The module or folder right below a package that a module is, or lies in."""
    return module.removeprefix(f"{package}.").partition(".")[0]


CALLERS = {
    "is_other_version": "shards.proof",
    "parse_index": "ops.index shards.proof",
    "preadv": "create.payloads storage.local",
    "proven_by": "shards.proof verify.shard",
    "read_index": "loader.read.catalog shards.moving shards.proof verify.shard",
    "scan_index": "ops.index shards.proof shards.reading",
}
"""The modules that call a piece with which a question was once answered in several places. All others call the function
that answers it: ``find_index`` or ``prove_index`` of ``shards/proof.py``, and ``read`` of ``storage/scatter.py``."""


@pytest.mark.parametrize("piece", CALLERS)
def test_a_question_is_answered_in_one_place(piece: str) -> None:
    assert sorted(callers()[piece]) == CALLERS[piece].split()


def test_modules_folders_and_helps_have_their_limits() -> None:
    """``scripts/check`` says the same."""
    assert _house.beyond_limits() == []


def test_limits_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_house, "MOST_MODULE_LINES", 600)
    monkeypatch.setattr(_house, "MOST_MODULES", 15)
    monkeypatch.setattr(_house, "MOST_HELP_LINES", 55)
    words = " ".join(_house.beyond_limits())
    assert all(text in words for text in (" lines", " modules", "wds create --help has"))


@pytest.mark.exhaustive
def test_few_names_say_nothing() -> None:
    """``python scripts/_house.py --names`` lists the modules with such names."""
    assert 1000 * sum(_house.empty_names().values()) / _house.module_lines() <= _house.MOST_EMPTY_NAMES


def test_empty_names_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f(given, x):\n    found = [one for one in given]\n    x.found = seen = found\n")
    assert sorted(set(_house.bound_names(path)) & _house.EMPTY_NAMES) == ["found", "given", "one", "seen"]


def test_every_module_opens_with_what_it_is() -> None:
    bare = [
        name for name, path in MODULES.items() if path.stat().st_size and not ast.get_docstring(tree(path))
    ]
    assert not bare


def test_nothing_at_the_top_of_a_module_is_unused() -> None:
    """A function or class that no other place names is dead, unless it is a face of the library."""
    words: dict[str, int] = defaultdict(int)
    for user in (*MODULES.values(), *HOUSE.parent.glob("scripts/*.py")):
        for node in nodes(user):
            if isinstance(node, ast.Name):
                words[node.id] += 1
            elif isinstance(node, ast.Attribute):
                words[node.attr] += 1
            elif isinstance(node, ast.alias):
                words[node.name] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                words[node.value] += 1
    dead = []
    for name, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not words[node.name]:
                dead.append(f"{name}.{node.name}")
    faces = {"wdscli.tar.reader.next_header"}
    assert not [name for name in dead if name not in faces and not name.rsplit(".", 1)[1].startswith("__")]


SHARED_NAMES = frozenset(["Number", "Page", "Place", "ShardWriter", "TarWriter"])
"""Public classes of two modules with one name. ShardWriter and TarWriter are webdataset's names."""
PARTICIPLES = frozenset(["Cached", "Mixed", "Named", "Packed", "Planned", "Stored"])
"""Classes that are named by a participle. Cached, Mixed and Packed are names that users know."""
MOST_SHARED_NAMES = 20


def classes_by_name() -> dict[str, list[str]]:
    """The modules that define a public class of each name."""
    modules: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module)
    return modules


def test_one_noun_has_one_meaning() -> None:
    """Give a class a name that no other module has. A name that is free again leaves the list."""
    shared = {name: modules for name, modules in classes_by_name().items() if len(modules) > 1}
    assert not {name: modules for name, modules in shared.items() if name not in SHARED_NAMES}
    assert len(SHARED_NAMES) <= MOST_SHARED_NAMES


def test_classes_are_named_for_what_they_hold() -> None:
    """``SourceView``, not ``Viewed``: a noun says what an object is, a participle what was done to it."""
    participle = re.compile("[A-Z][a-z]+(ed|wn)|Apart|Held|Kept|Sent|Meant")
    named = {name for name in classes_by_name() if participle.fullmatch(name)}
    assert not named - PARTICIPLES


@pytest.mark.parametrize("name", ["Viewed", "Drawn", "Apart", "Sent"])
def test_participles_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "wdscli.other", HOUSE / "model.py")
    monkeypatch.setattr(sys.modules[__name__], "tree", lambda _: ast.parse(f"class {name}: ..."))
    with pytest.raises(AssertionError):
        test_classes_are_named_for_what_they_hold()
    with pytest.raises(AssertionError):
        test_one_noun_has_one_meaning()
