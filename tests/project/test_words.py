"""Messages, pages and docstrings use plain words (scripts/_words.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import _words


@pytest.mark.exhaustive
def test_users_read_no_more_hard_words_than_the_bound() -> None:
    assert len(_words.words_of_users()) <= _words.MOST_IN_TEXT


@pytest.mark.exhaustive
def test_docstrings_have_no_more_hard_words_than_the_bound() -> None:
    assert len(_words.words_of_docstrings()) <= _words.MOST_IN_DOCSTRINGS


@pytest.mark.exhaustive
def test_messages_and_hints_fit_in_a_line() -> None:
    assert len(_words.long_messages()) <= _words.MOST_LONG_MESSAGES


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('raise UsageError(f"nobody has {name}")', ["nobody"]),
        ('raise UsageError("no such file", hint="what is there: a, b")', ["what is there"]),
        ('progress.warn(f"{count} samples go on with the old run")', ["go on with"]),
        ('Option("--jobs", help="As many as were asked for.")', ["asked"]),
        ('name = "nobody"', []),
        ('raise UsageError(f"so far {count} samples, a far store")', ["far"]),
    ],
)
def test_words_in_messages_are_found(line: str, found: list[str], tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(line)
    texts = sorted(_words.messages(module))
    words = [one.word for number, text in texts for one in _words._found(module, number, text)]
    assert words == found


def test_code_in_a_page_is_not_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Use `nobody`.\n\n```\nasked\n```\n\n    told\n\nSomebody reads.\n")
    assert [one.word for one in _words.in_text(page)] == ["Somebody"]
