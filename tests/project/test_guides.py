"""The pages in man/guides, followed from top to bottom as a stranger would: every block runs and prints what is shown.

A block in ``sh`` is run by bash; a language and a FILE make a file to write; ``text`` is part of what the block before
printed, with ``...`` where something else stands. ``wds`` is this environment's; S3 is moto's server, and ``sbatch``
runs the tasks of an array one after the other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from storage_servers import S3, s3_server
from stores import hub

ROOT = Path(__file__).resolve().parents[2]
ALL = sorted((ROOT / "man" / "guides").glob("*.md"))
GUIDES = [path for path in ALL if not path.stem.startswith("train-")]
"""Programs for frameworks are run by tests/loader/test_loader_guides.py and tests/interop."""
BLOCK = re.compile(r"^```(\w*) ?([\w./-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {
    "duckdb": "duckdb",
    "datasets": "datasets",
    "tfrecord": "tfrecord",
    "lmdb": "lmdb",
    "webdataset": "webdataset",
    "torch": "torch",
}
"""Programs that import these are skipped where they are not installed."""
SBATCH = """#!/bin/bash
set -eu
[ "$1" = --wait ] && shift
array=${{1#--array=}}; shift
for SLURM_ARRAY_TASK_ID in $(seq "${{array%-*}}" "${{array#*-}}"); do
    export SLURM_ARRAY_TASK_ID
    if [ "$1" = --wrap ]; then sh -c "$2"; else bash "$1"; fi
done
"""


class Block(NamedTuple):
    """What stands between two fences, and where."""

    language: str
    file: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The page's blocks, in order."""
    text = page.read_text()
    return [
        Block(*match.groups(), line=text.count("\n", 0, match.start()) + 1) for match in BLOCK.finditer(text)
    ]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("mine")
        yield server
        for name in server.names("mine"):
            server.client.delete_object(Bucket="mine", Key=name)


@pytest.fixture
def hub_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The Hub's stand-in, for the program hf."""
    pytest.importorskip("huggingface_hub")
    with hub("ada/pets") as (_, environment):
        yield environment | {"HF_HOME": str(tmp_path / "hf-home")}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands that pages call."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "wds").write_text(f'#!/bin/sh\nexec {sys.executable} -m wdscli "$@"\n')
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "sbatch").write_text(SBATCH.format())
    for tool in folder.iterdir():
        tool.chmod(0o755)
    return folder


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_block_runs(page: Path, tools: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = blocks(page)
    whole = "".join(block.text for block in found)
    for word, module in NEEDS.items():
        if re.search(rf"(?:import|from) {word}\b", whole):
            pytest.importorskip(module)
    if "s3://" in whole:
        request.getfixturevalue("s3")
    uploads = request.getfixturevalue("hub_environment") if "hf upload" in whole else {}
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"} | uploads
    said = ""
    for block in found:
        where = f"{page.name}, line {block.line}"
        if block.file:
            file = tmp_path / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
            file.chmod(0o755)
        elif block.language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            said = f"{done.stdout}\n{done.stderr}"
            assert done.returncode == 0, f"{where}:\n{block.text}\n{said}"
            assert not re.search("^note: .* is now ", said, re.MULTILINE), f"{where}: {said}"
        elif block.language == "text":
            for line in block.text.splitlines():
                pattern = r"\s+".join(".*".join(map(re.escape, word.split("..."))) for word in line.split())
                assert re.search(rf"^\s*{pattern}\s*$", said, re.MULTILINE), (
                    f"{where}: {line}\nis not in\n{said}"
                )
        else:
            pytest.fail(f"{where}: a block of {block.language or 'no language'} is neither run nor a file")


def test_every_page_is_listed() -> None:
    index = (ROOT / "README.md").read_text()
    assert [page.name for page in ALL if f"man/guides/{page.name}" not in index] == []
