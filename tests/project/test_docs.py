"""What is written about the commands is complete, fresh and true."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shard_cases import wds

from wdscli.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.exhaustive
def test_no_man_page_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make-man", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_a_stale_man_page_fails_the_check(tmp_path: Path) -> None:
    for name in ("man", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "wdscli").symlink_to(ROOT / "wdscli")
    page = tmp_path / "man" / "man1" / "wdscli-ls.1"
    page.write_text(page.read_text() + "more\n")
    done = subprocess.run(
        [sys.executable, "scripts/make-man", "--check"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "stale: man/man1/wdscli-ls.1" in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    assert (ROOT / "man" / "man1" / f"wdscli-{name}.1").exists()
    prose = (ROOT / "man" / "prose" / f"wdscli-{name}.1").read_text()
    assert ".Sh DESCRIPTION" in prose
    assert ".Sh EXAMPLES" in prose
    assert f"| `{name}` |" in README


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_nothing_to_say() -> None:
    pages = sorted(map(str, ROOT.glob("man/man[157]/*")))
    assert pages
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "all", *pages], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small set, its manifest and its indexes."""
    from wdscli.shards import ShardWriter

    folder = tmp_path_factory.mktemp("set")
    with ShardWriter(str(folder / "train-%06d.tar"), max_count=2) as writer:
        for number in range(3):
            writer.write(f"n/{number}", {"cls": b"7", "txt": b"x" * number})
    planned = run_line("wds merge train-manifest.json -o out/%d.tar --plan one.plan", folder)
    assert planned.returncode == 0, planned.stderr
    return folder


def section_five_program(page: str) -> str:
    """The program in the page's EXAMPLES, as mandoc would show it."""
    text = (ROOT / "man" / "man5" / page).read_text().split(".Sh EXAMPLES")[1]
    return text.split("-offset indent\n")[1].split(".Ed")[0].replace("\\e", "\\")


@pytest.mark.parametrize(
    ("page", "file", "said"),
    [
        ("wdscli-index.5", ".wds/train-000000.tar.wdx", "n/0 cls,txt 1\nn/1 cls,txt 2\n"),
        ("wdscli-manifest.5", "train-manifest.json", "train-000000.tar 2 4608\ntrain-000001.tar 1 3072\n"),
        ("wdscli-plan.5", "one.plan", "0 3 6656 train-000000.tar 0\n"),
    ],
)
def test_programs_in_the_format_pages_read_the_formats(
    written: Path, page: str, file: str, said: str
) -> None:
    command = [sys.executable, "-c", section_five_program(page), str(written / file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (said, "")


def readme_table() -> dict[str, tuple[str, str]]:
    """Command -> its summary and its example."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| `(wds .+?)` \|$", README, re.MULTILINE)
    return {name: (told, example.replace("\\|", "|")) for name, told, example in rows}


def test_readme_tells_of_each_command_what_help_tells() -> None:
    assert {name: summary for name, (summary, _) in readme_table().items()} == COMMANDS


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the README's examples run: photos in it, and shards of them where an example reads shards;
    and a job of AIStore's dSort."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("readme")
    for number in range(12):
        stem = folder / "photos" / f"class{number % 3}" / f"img{number:03d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number * 20, 0, 0)).save(stem.with_suffix(".jpg"))
        stem.with_suffix(".json").write_text(f'{{"width": 32, "caption": "picture {number}"}}')
    job = {"bck": "images", "output_bck": "by-md5", "input_format": "train-", "output_format": "train-%d"}
    (folder / "job.json").write_text(
        json.dumps({**job, "output_shard_size": "1MB", "algorithm": {"kind": "md5"}})
    )
    return folder


def run_line(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of the README, as a shell would run it, with this environment's ``wds``."""
    line = re.sub(r"\bwds\b(?= )", f"{sys.executable} -m wdscli", line)
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_readme_examples_run(pictures: Path) -> None:
    """In the table's order: the first makes what the others read."""
    table = readme_table()
    assert list(table) == list(COMMANDS)
    for name, (_, example) in table.items():
        for line in example.split(" && "):
            ran = wds(*shlex.split(line)[1:], cwd=pictures)
            assert ran.code == 0, f"{name}: {line}\n{ran.out.decode()}{ran.err}"


def without_times(line: str) -> str:
    """A printed line without its times and what follows them, and with single spaces."""
    return re.sub(r"([\d.]+ kB, )?in [\d.]+ s.*", "", " ".join(line.split()))


@pytest.mark.exhaustive
def test_readme_first_steps_print_what_is_shown(tmp_path: Path) -> None:
    """And then the program for the library, on the set that they write."""
    pytest.importorskip("PIL")
    steps = README.split("```console\n$ ")[1].split("```")[0].split("\n$ ")
    assert len(steps) == 6
    for step in steps:
        command, *shown = step.splitlines()
        done = run_line(command.replace("python ", f"{sys.executable} ", 1), tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed = [without_times(line) for line in (done.stdout + done.stderr).splitlines()]
        assert [line for line in shown if without_times(line) not in printed] == [], printed
    program = README.split("```python\n")[2].split("```")[0]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("circle/0000 ['cls', 'jpg', 'json', 'txt']"), done.stderr


@pytest.mark.exhaustive
def test_readme_makes_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number, text in enumerate(["a = 1\n" * 90, "b = 2\n" * 80, "a = 1\n" * 90, "short = 1\n"]):
        (tmp_path / "src" / f"p{number}.py").write_text(text)
    (tmp_path / "meta.py").write_text(
        "def add(sample):\n    return {**sample, 'json': {'words': len(sample['py'].split())}}\n"
    )
    for line in README.split("```sh\nwds create src")[1].split("```")[0].splitlines():
        ran = run_line(line if line.startswith("wds") else f"wds create src{line}", tmp_path)
        assert ran.returncode == 0, ran.stderr
    assert run_line("wds ls --where 'json.words > 250' corpus", tmp_path).stdout.split()[0] == "p0"
    assert run_line("wds ls corpus", tmp_path).stdout.count("\n") == 2


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 162


def test_contributing_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = {name for name in re.findall(r"`((?:[\w-]+/)+[\w.-]+\.\w+)`", text) if "NAME" not in name}
    assert len(files) > 50
    found = {
        name: base / name for name in files for base in (ROOT, ROOT / "wdscli") if (base / name).exists()
    }
    assert sorted(files - set(found)) == []
    named = re.findall(r"`(\w+)` (?:in|of) `([\w/.]+)`", text)
    named += [(word, file) for file, word in re.findall(r"`([\w/.]+)`, `(\w+)(?:\.\w+)?`", text)]
    assert len(named) > 10
    assert [
        (word, file) for word, file in named if file in found and word not in found[file].read_text()
    ] == []
