"""A process that may open 12 files: commands and the loader work, or say what to do."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from shard_cases import numbered, write_shards

SHARDS, SAMPLES = 20, 3
FEW = 12
READ = """
import sys, wdscli.loader as loader
print(len(list(loader.WebDataset(sys.argv[1:], shuffle="full"))))
table = loader.IndexedDataset(sys.argv[1:])
together = table.__getitems__([*range(len(table))])
assert together == [table[row] for row in range(len(table))]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    write_shards(folder / "in", [numbered(SAMPLES, f"k{number:02d}") for number in range(SHARDS)])
    (folder / "up.py").write_text("def up(sample):\n    return sample\n")
    (folder / "files").mkdir()
    for number in range(50):
        (folder / "files" / f"{number}.txt").write_text("a")
    assert run(folder, "shuffle in -o v.json -q", 1024).returncode == 0
    return folder


def run(folder: Path, line: str, files: int = FEW) -> subprocess.CompletedProcess[str]:
    words = ["-c", READ, *line.split()[1:]] if line.startswith("READ") else ["-m", "wdscli", *line.split()]
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # noqa: E731
    return subprocess.run(
        [sys.executable, *words], cwd=folder, preexec_fn=limit, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "line",
    [
        "shuffle in -o shuffle-%d.tar --shards 3 -j1 -q", "sort in -o sort.tar -q", "merge in -o merge.tar -q",
        "shuffle in -o spill-%d.tar --shards 3 -j1 -q --strategy spill", "cat v.json -o cat.tar -q", "ls v.json",
        "create files -o create-%d.tar --max-count 10 -j1 -q", "verify v.json -q -j1", "READ in", "READ v.json",
    ],
)  # fmt: skip
def test_it_works(folder: Path, line: str) -> None:
    """issue 36, B 4: all pools of open shards count together."""
    ran = run(folder, line)
    assert ran.returncode == 0, ran.stderr
    if line.startswith("READ"):
        assert ran.stdout == f"{SHARDS * SAMPLES}\n"


def test_what_needs_more_says_so(folder: Path) -> None:
    """issue 35, 20: map starts a process for functions."""
    for files in (8, FEW):
        ran = run(folder, "map in -o map.tar -j1 -q --python up.py:up", files)
        assert ran.returncode in (4, 5)
        assert "too many open files" in ran.stderr
        assert "hint: allow more open files: ulimit -n 4096" in ran.stderr
    ran = run(folder, "create files -o none.tar -j1 -q", 8)
    assert ran.returncode == 0 or "hint: allow more open files" in ran.stderr, ran.stderr
