"""The page on webdataset's names, wdscli-webdataset(7), lists all of them, each with the status that it has."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

import wdscli.loader as wds

theirs = pytest.importorskip("webdataset")

PAGE = Path(__file__).resolve().parents[2] / "man" / "prose" / "wdscli-webdataset.7"


def listed() -> dict[str, dict[str, set[str]]]:
    """{section: {its part: names in tags}}."""
    found: dict[str, dict[str, set[str]]] = {}
    text = PAGE.read_text().replace("\\\n", "")
    section = part = ""
    for line in text.splitlines():
        if line.startswith(".Sh "):
            section, part = line[4:], ""
        elif line.startswith(".Ss "):
            part = line[4:]
        elif line.startswith(".It "):
            found.setdefault(section, {}).setdefault(part, set()).update(re.findall(r"Sy (\w+)", line))
    return found


LISTED = listed()
ARGUMENTS, METHODS, NAMES = (
    LISTED[section] for section in ("ARGUMENTS OF WEBDATASET", "METHODS", "FUNCTIONS AND CLASSES")
)


def all_of(parts: dict[str, set[str]]) -> list[str]:
    return sorted(name for names in parts.values() for name in names)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_name_of_webdataset_is_listed_once() -> None:
    modules = set(all_of(LISTED["MODULES"])) & public(theirs)
    everything = [*all_of(NAMES), *(modules - {"gopen"})]
    assert len(everything) == len(set(everything))
    assert set(everything) == public(theirs)


def test_every_method_of_webdataset_is_listed_once() -> None:
    everything = all_of(METHODS)
    methods = set()
    for kind in (theirs.WebDataset, theirs.WebLoader):
        methods |= {name for name in public(kind) if callable(getattr(kind, name))}
    assert len(everything) == len(set(everything))
    assert set(everything) == methods


def test_every_argument_of_webdataset_is_listed_once() -> None:
    everything = all_of(ARGUMENTS)
    assert len(everything) == len(set(everything))
    assert set(everything) == set(signature(theirs.WebDataset.__init__).parameters) - {"self"}


def test_every_module_of_webdataset_is_listed_once_and_is_there() -> None:
    modules = {module.name for module in iter_modules(theirs.__path__)} - {"gopen"}
    missing = LISTED["MODULES"]["Missing modules"]
    assert set(all_of(LISTED["MODULES"])) == modules
    for name in modules - missing:
        assert isinstance(import_module(f"wdscli.loader.compat.{name}"), ModuleType)


def test_names_are_there_unless_they_are_said_not_to_be() -> None:
    for name in sorted(NAMES["Names that work in the same way"] | NAMES["Names that work differently"]):
        assert not isinstance(getattr(wds, name), ModuleType), name
    for name in NAMES["Missing names"]:
        with pytest.raises(ImportError, match=f"has no {name}; write "):
            getattr(wds, name)


def test_methods_are_there_unless_they_are_said_not_to_be() -> None:
    missing = METHODS["Missing methods"]
    for name in all_of(METHODS):
        assert hasattr(wds.WebDataset, name) == (name not in missing), name


def test_arguments_have_the_names_of_theirs() -> None:
    """Every argument of a method can be given as there."""
    for name in all_of(METHODS):
        if name in METHODS["Missing methods"] | {"shuffle", "slice"}:
            continue
        wanted = signature(getattr(theirs.WebDataset, name)).parameters
        ours = signature(getattr(wds.WebDataset, name)).parameters
        named = {p.name for p in wanted.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        assert named <= set(ours), name
    assert {"size", "initial", "rng", "seed", "handler"} <= set(signature(wds.WebDataset.shuffle).parameters)


@pytest.mark.parametrize(
    "name", ["Cached", "associate", "batched", "decode", "map", "shuffle", "slice", "xdecode"]
)
def test_a_stage_is_a_stage_whatever_was_imported_before(name: str) -> None:
    import wdscli.loader.stages.per_sample  # noqa: F401

    assert callable(getattr(wds, name))
