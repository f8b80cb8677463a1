"""The names of classes, which a manifest holds for the numbers in ``cls``, go where the numbers go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shard_cases import Ran

from wdscli.shards.inputs import read_manifest

Command = Callable[..., Ran]
COMMAND = ()


@pytest.fixture
def here(good: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``one`` and ``two`` with the classes cat and dog, ``other`` with dog and owl, ``texts`` with none."""
    monkeypatch.chdir(tmp_path)
    for name, kinds in {"one": ("cat", "dog"), "two": ("cat", "dog"), "other": ("dog", "owl")}.items():
        for number, kind in enumerate(kinds):
            file = Path(f"files-{name}/{kind}/{name}{number}.jpg")
            file.parent.mkdir(parents=True)
            file.write_bytes(b"%d" % number)
            text = Path(f"files-texts/{kind}/{name}{number}.txt")
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(kind)
        good(
            "create", f"files-{name}", "-o", f"{name}/x-%d.tar", "--label-from", "parent", "--max-count", "1"
        )
    good("create", "files-texts", "-o", "texts/x-%d.tar")
    return tmp_path


def classes(folder: str) -> tuple[str, ...] | None:
    return read_manifest(f"{folder}/x-manifest.json").classes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shuffle one", ("cat", "dog")),
        ("shuffle one/x-manifest.json", ("cat", "dog")),
        ("shuffle one/x-1.tar", ("cat", "dog")),
        ("sort one two", ("cat", "dog")),
        ("split one --max-count 1", ("cat", "dog")),
        ("cat one", ("cat", "dog")),
        ("map one --filter jpg cat", ("cat", "dog")),
        ("map one --filter cls cat", None),
        ("map one --cmd true", None),
        ("merge one two", ("cat", "dog")),
        ("merge one texts --on-duplicate rekey", None),
        ("merge one texts --join left", ("cat", "dog")),
    ],
)
def test_they_go_along(good: Command, here: Path, line: str, expected: tuple[str, ...] | None) -> None:
    name = "out/x-0.tar" if line.startswith("cat") else "out/x-%d.tar"
    good(*line.split(), "-o", name)
    found = "out/x-0-manifest.json" if line.startswith("cat") else "out/x-manifest.json"
    assert read_manifest(found).classes == expected


def test_sets_that_number_them_differently(good: Command, here: Path) -> None:
    said = good("merge", "one", "other", "-o", "out/x-%d.tar")
    assert "the same number in cls means another class" in said.err
    assert classes("out") is None
    assert "another class" not in good("merge", "one", "two", "-o", "again/x-%d.tar").err


def test_by_a_plan(good: Command, here: Path) -> None:
    good("shuffle", "one", "-o", "out/x-%d.tar", "--shards", "2", "--plan", "one.plan")
    good("run", "one.plan")
    assert classes("out") == ("cat", "dog")
