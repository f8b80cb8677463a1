"""The demo does what it says, on pictures it makes and on a folder of somebody's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(data: Path, *args: str) -> str:
    environ = os.environ | {"WDSCLI_VENV": sys.prefix, "DEMO_DATA": str(data), "DEMO_PICTURES": "40"}
    done = subprocess.run(
        [ROOT / "scripts" / "demo", *args],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_demo_on_its_own_pictures_twice_in_a_row(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for _ in range(2):
        said = demo(tmp_path)
        assert said.count("webdataset read 40 samples") == 3
        for command in ("create", "ls --summary", "cat", "verify --decode", "shuffle", "verify", "split", "sort",
                        "merge --join", "run"):  # fmt: skip
            assert f"$ wds {command} " in said


def test_demo_on_a_folder_of_ones_own(tmp_path: Path) -> None:
    photos = tmp_path / "my photos"
    photos.mkdir()
    for number in range(5):
        (photos / f"{number}.txt").write_text(f"text {number}")
        (photos / f"{number}.cls").write_text(str(number))
    said = demo(tmp_path / "data", str(photos))
    assert said.count("webdataset read 5 samples") == 3
