"""The names of classes, which a manifest holds for the numbers in ``cls``, go where the numbers go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shard_cases import Ran

from wdscli.loader import IndexedDataset
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


@pytest.mark.exhaustive
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
    assert "the same number in cls means different classes in different inputs" in said.err
    assert classes("out") is None
    assert "means different classes" not in good("merge", "one", "two", "-o", "again/x-%d.tar").err


def test_by_a_plan(good: Command, here: Path) -> None:
    good("shuffle", "one", "-o", "out/x-%d.tar", "--shards", "2", "--plan", "one.plan")
    good("run", "one.plan")
    assert classes("out") == ("cat", "dog")


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("cls == 'cat'", ["cat/one0"]),
        ("'cat' != cls", ["dog/one1"]),
        ("cls in ['dog', 'cat']", ["cat/one0", "dog/one1"]),
        ("cls not in {'cat'}", ["dog/one1"]),
        ("cls == 'dog' and cls == 1 and cls > 0", ["dog/one1"]),
    ],
)
def test_where_knows_them(good: Command, here: Path, where: str, keys: list[str]) -> None:
    for command in (["split"], ["split", "-j2"], ["cat"]):
        name = "out/x-0.tar" if command == ["cat"] else "out/x-%d.tar"
        good(*command, "one", "-o", name, "--where", where, "--force")
        assert [one["key"] for one in good("ls", "out/x-0.tar", "--json").objects] == keys
    listed = good("ls", "one", "--where", where, "--json")
    assert [one["key"] for one in listed.objects] == keys
    assert not listed.err
    assert len(IndexedDataset("one", where=where)) == len(keys)


def test_where_of_sets_that_have_none(good: Command, here: Path) -> None:
    for inputs in (["one/x-0.tar", "one/x-1.tar"], ["one", "other"]):
        if len(inputs[0]) > 3:
            Path("one/x-manifest.json").rename("manifest")
        assert not good("ls", *inputs, "--where", "cls == 'cat'").out
        assert good("ls", *inputs, "--where", "cls == 0").out
        if len(inputs[0]) > 3:
            Path("manifest").rename("one/x-manifest.json")


def test_a_name_that_no_class_has(good: Command, run: Command, here: Path) -> None:
    where = ["--where", "cls in ['catt', 'dog']"]
    said = "no class is named catt for --where: did you mean cat?"
    listed = good("ls", "one", *where)
    assert said in listed.err
    assert listed.out
    ran = run("split", "one", "-o", "out/x-%d.tar", *where)
    assert ran.code == 3
    assert "no class is named catt" in ran.err
    assert said in good("split", "one", "-o", "out/x-%d.tar", *where, "--allow-empty").err
    with pytest.warns(UserWarning, match="no class is named catt for where: did you mean cat"):
        IndexedDataset("one", where=where[1])


def test_parts_have_their_names(good: Command, here: Path) -> None:
    good("split", "one", "--by", "cls", "-o", "parts/{part}/x-%d.tar")
    good("split", "one", "other", "--by", "cls", "-o", "numbers/{part}/x-%d.tar")
    assert sorted(path.name for path in Path("parts").iterdir()) == ["cat", "dog"]
    assert sorted(path.name for path in Path("numbers").iterdir()) == ["0", "1"]


def test_a_dry_run_has_one_row_for_a_part_of_one_shard(good: Command, here: Path) -> None:
    split = ["split", "one", "--by", "cls", "-n", "-o"]
    ran = good(*split, "parts/{part}/x-%d.tar")
    assert ran.out.count(b"cat") == 1
    assert "cat" not in ran.err
    assert "cat: 1 sample in 2 shards" in good(*split, "parts/{part}/x-{0..1}.tar").err
