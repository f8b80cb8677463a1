"""What --help shows: in 80 columns, with examples that run."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import threading
from pathlib import Path

import pytest
from shard_cases import Ran, tar_of, wds

from wdscli.cli import group as layout
from wdscli.cli.commands import COMMANDS
from wdscli.cli.group import build, load

CODES = {"verify": {0, 1}, "repair": {0, 1}, "diff": {0, 1}, "index": {0, 1}}
"""Exit codes of examples, where 0 is not the only good one."""
QUICK = {"bench": ["--seconds", "0.05"], "map": ["-j1"], "shuffle": ["-j1"]}


def help_of(name: str | None, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = wds(*([name] if name else []), "--help")
    assert ran.code == 0
    return ran.out.decode()


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_it_fits_and_is_grouped(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = help_of(name, 80, monkeypatch)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    headings = re.findall(r"^([A-Z][^:\n]*):$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)) >= 3
    wide = help_of(name, 200, monkeypatch)
    assert max(map(len, wide.splitlines())) <= 110
    assert text.split() == wide.split()


def examples(name: str) -> list[str]:
    """The lines of a command's help under Examples, those that end with a backslash joined."""
    text = load(name).help.partition("Examples:")[2].replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_there_are_three_examples(name: str) -> None:
    found = examples(name)
    assert len(found) >= 3
    assert sum(line.startswith(f"wds {name} ") for line in found) >= 3


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that examples name."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("examples")
    picture = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 20, 20)).save(picture, "JPEG")
    jpg = picture.getvalue()

    def shard(path: str, keys: list[str], odd: bytes = b"") -> None:
        members = []
        for number, key in enumerate(keys):
            facts = {"width": 500 + number, "patient": number % 2, "label": "cat", "caption": f"cat {number}"}
            fields = {
                "cls": b"%d" % (number % 3),
                "jpg": jpg + odd + b"%d" % number,
                "json": json.dumps(facts).encode(),
            }
            members += [(f"{key}.{name}", payload) for name, payload in {**fields, "txt": b"a cat"}.items()]
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(tar_of(members))

    for number in range(10):
        for prefix in ("train-", "small-", "train/train-"):
            shard(f"{prefix}{number:06d}.tar", [f"{prefix[0]}{number}/{n}" for n in range(2)])
    for name in ("shards", "set", "images", "old", "raw"):
        for number in range(2):
            shard(f"{name}/train-{number:06d}.tar", [f"n0{number + 1}/img{n}" for n in range(4, 9)])
    for name in ("real", "drawn", "crawl-1", "crawl-2", "new", "small"):
        shard(f"{name}/{name}-000000.tar", [f"{name}/{n}" for n in range(3)], name.encode())
    shard("big.tar", [f"b/{n}" for n in range(5)])
    shard("broken.tar", ["x/0", "x/1"])
    os.truncate(folder / "broken.tar", os.path.getsize(folder / "broken.tar") - 3000)
    for label in ("cats", "dogs"):
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(3):
            (folder / f"photos/{label}/{number}.jpg").write_bytes(jpg)
            (folder / f"photos/{label}/{number}.json").write_text('{"width": 16}')
    rows = "".join(f"n01/img{n},photos/cats/0.jpg,a red cat\n" for n in range(4, 9))
    (folder / "captions.csv").write_text("id,path,caption\n" + rows)
    (folder / "keys.txt").write_text("".join(f"n0{s}/img{n}\n" for n in range(4, 9) for s in (2, 1)))
    (folder / "clean.py").write_text(
        "def keep_large(sample):\n    return sample if len(sample['jpg']) > 9 else None\n"
    )
    job = {
        "extension": ".tar", "bck": {"name": "images"}, "input_format": "train-{000000..000001}",
        "output_format": "shuffled-shard-%d", "algorithm": {"kind": "shuffle"}, "output_bck": {"name": "out"},
        "output_shard_size": "1MB",
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    assert wds("index", "train-{000000..000009}.tar", cwd=folder).code == 0
    assert wds("index", "train", cwd=folder).code == 0
    return folder


def run_example(line: str, folder: Path) -> Ran:
    """A line's first command, without torch. Stores and folders elsewhere are here."""
    for there, here in (
        ("s3://bucket/", ""),
        ("s3://my-", ""),
        ("/data/", ""),
        ("--jobs 4", "--jobs 0"),
    ):
        line = line.replace(there, here)
    words = shlex.split(line)
    ends = [words.index(mark) for mark in ("|", "||", "<", ">") if mark in words]
    stdin = (folder / words[words.index("<") + 1]).read_bytes() if "<" in words else None
    words = words[1 : min(ends, default=len(words))]
    return wds(*words, *QUICK.get(words[0], []), "-q", cwd=folder, stdin=stdin)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_examples_run(name: str, stage: Path, tmp_path: Path) -> None:
    """Each in a folder of its own, but those of a plan, which go on from each other."""
    for number, line in enumerate(examples(name)):
        folder = tmp_path / str(0 if name == "run" else number)
        if not folder.exists():
            # What create writes is not there yet.
            leave = shutil.ignore_patterns("train*" if name == "create" else "")
            shutil.copytree(stage, folder, copy_function=os.link, ignore=leave)
        ran = run_example(line, folder)
        if "pip install" in ran.err and ran.code:
            continue  # an extra that is not here
        assert ran.code in CODES.get(line.split()[1], {0}), f"{line}\n{ran.err}"


def test_help_is_laid_out_for_a_terminal_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not known, for 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert threading.current_thread() is threading.main_thread()
    context = build().context_class(build(), info_name="wds")
    assert max(map(len, layout.render(build(), context).splitlines())) <= 80


RIDDLES = [
    r"can be had", r"\bwhoever\b", r"\bnobody\b", r"(is|are|was|were|be|being) (told|asked)\b", r"\btold (of|by)\b",
    r"\basked (for|about)\b", r"what becomes of", r"comes? of it", r"makes? no sense", r"of no (meaning|use|sample)\b",
    r"passed over", r"the whole of it", r"what else", r"no good\b", r"\bwho (wants|asks|reads)\b",
]  # fmt: skip
"""Phrases that a reader of git's and ripgrep's pages would stop at. Say requested, reported, skipped, unknown."""


def faces() -> dict[str, str]:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *root.glob("man/guides/*.md"), *root.glob("man/man[157]/*")]
    return {str(path.relative_to(root)): path.read_text() for path in pages} | {
        f"wds {name} --help": " ".join([load(name).help, *(one.help or "" for one in load(name).params)])
        for name in COMMANDS
    }


def test_words_are_plain() -> None:
    """Users read help, pages, guides and README, some in their second language."""
    found = []
    for name, text in faces().items():
        text = " ".join(text.split())
        found += [
            f"{name}: ...{text[max(0, m.start() - 40) : m.end() + 20]}..."
            for p in RIDDLES
            for m in re.finditer(p, text)
        ]
    assert not found, "\n".join(found)
