"""The training script is killed and continued: it ends with exactly the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch_processes import Program

from wdscli.cli.main import main

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "examples" / "train.py"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 150 small pictures of three classes."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("pictures")
    command = [sys.executable, "-m", "wdscli.demo", folder / "photos", "150"]
    subprocess.run(command, check=True)
    out = f"{folder}/set/train-%06d.tar"
    assert (
        main(["create", f"{folder}/photos", "-o", out, "--label-from", "parent", "--max-count", "40", "-q"])
        == 0
    )
    return folder / "set"


def train(pictures: Path, folder: Path, workers: int) -> Program:
    return Program(
        SCRIPT, pictures, "--checkpoint", folder / "run.pt", "--workers", workers, "--batch", 4, "--every", 3
    )


def weights(said: str) -> str:
    return said.splitlines()[-1]


def test_killed_and_gone_on_with(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    undisturbed, _ = train(pictures, tmp_path, 0).communicate()
    killed = train(pictures, tmp_path / "killed", 2)
    for line in killed.stdout:
        if "batch 30" in line:
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    time.sleep(0.1)
    resumed, _ = train(pictures, tmp_path / "killed", 3).communicate()
    assert resumed.startswith("continuing after batch 3")
    assert weights(resumed) == weights(undisturbed)
    assert "76 batches" in weights(resumed)
