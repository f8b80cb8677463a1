"""Help on two floors, and how many words there are to know."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from shard_cases import wds

from wdscli.cli.commands import COMMANDS
from wdscli.cli.group import build, load

MOST_NAMES = 126


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from _house import MOST_HELP_LINES, option_names  # noqa: E402


def params(command: Any) -> list[Any]:
    return list(command.get_params(command.context_class(command, **command.context_settings)))


@pytest.mark.parametrize("name", [*COMMANDS])
def test_help_fits_a_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usual, all_of_it = (wds(name, option).out.decode() for option in ("--help", "--help-all"))
    assert len(usual.splitlines()) <= MOST_HELP_LINES
    assert len(all_of_it.splitlines()) > len(usual.splitlines())
    assert f"wds {name} --help-all" in usual


@pytest.mark.parametrize("name", [*COMMANDS])
def test_a_command_says_what_it_does_in_three_sentences(name: str) -> None:
    """After the first line, and before the examples."""
    first, _, rest = load(name).help.partition("\n\n")
    body = "" if rest.startswith("Examples:") else rest.partition("\n\nExamples:")[0]
    assert 0 < first.count(".") + first.count(":") <= 2
    assert "\n\n" not in body
    assert sum(body.count(end) for end in (".\n", ". ")) + body.endswith(".") <= 4


def test_all_options_are_on_the_second_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        text = wds(command, "--help-all").out.decode()
        shown = [one.opts[-1] for one in params(load(command)) if not getattr(one, "hidden", False)]
        assert [name for name in shown if name.startswith("--") and name not in text] == []


def test_there_are_few_names() -> None:
    names = option_names()
    assert "--help-all" in names
    assert len(names) <= MOST_NAMES, sorted(names)


def test_the_group_has_one_floor() -> None:
    assert "--help-all" not in wds("--help").out.decode()
    assert "--version" in build().get_help(build().context_class(build(), info_name="wds"))
