"""What starting a command costs, told by the modules it loads and not by a clock."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from loaded_modules import HEAVY, loaded

RUN = "from wdscli.cli.main import main\ncode = main()\nassert code == 0, code"


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("x.cls", "y.cls"):
            tar.addfile(tarfile.TarInfo(name))
    return path


def test_version_loads_nothing() -> None:
    code = "import wdscli.__main__ as m\nm.main()"
    assert not loaded(code, "--version") & (HEAVY | {"typer", "wdscli.cli", "inspect"})


def test_help_loads_no_command_and_nothing_heavy() -> None:
    names = loaded(RUN, "--help")
    assert not names & HEAVY
    assert not [
        name for name in names if name.startswith(("wdscli.cli.commands.", "wdscli.ops", "wdscli.tar"))
    ]


def test_local_ls_loads_nothing_heavy(shard: Path) -> None:
    names = loaded(RUN, "ls", str(shard))
    assert not names & (
        HEAVY
        | {"typer", "shutil", "subprocess", "dataclasses", "inspect", "wdscli.codecs.kinds", "wdscli.model"}
    )


def test_typer_reads_only_a_line_that_is_not_plain(shard: Path) -> None:
    assert "typer" in loaded(RUN, "ls", "-qv", str(shard))


@pytest.mark.parametrize("row", ["member", "shard"])
def test_other_local_listings_load_nothing_heavy(shard: Path, row: str) -> None:
    assert not loaded(RUN, "ls", "--by", row, str(shard)) & {"fsspec", "s3fs", "numpy", "pydantic", "rich"}


def test_a_shuffle_of_local_shards_loads_no_client_of_stores(shard: Path) -> None:
    names = loaded(RUN, "shuffle", str(shard), "-o", str(shard.parent / "out.tar"), "-q", "-j1")
    assert "numpy" in names
    assert not names & {"asyncio", "ssl", "fsspec", "s3fs", "obstore", "numpy.ma", "rich", "pydantic"}


def test_reading_and_writing_shards_loads_neither_the_command_nor_torch() -> None:
    names = loaded("from wdscli.shards import ShardReader, ShardWriter")
    assert not names & {"typer", "rich", "torch", "fsspec", "s3fs"}
    assert not [name for name in names if name.startswith(("wdscli.cli", "wdscli.ops"))]


def test_workers_that_are_spawned_load_no_command_line() -> None:
    assert "typer" not in loaded("import wdscli.__main__")


def test_numpy_starts_no_threads_under_the_command() -> None:
    """Threads for linear algebra cost each process a tenth of a second of processor time."""
    program = (
        "import os, sys\n"
        "from wdscli import __main__\n"
        "sys.argv = ['wds', '--help']\n"
        "__main__._run()\n"
        "import numpy\n"
        "print(len(os.listdir('/proc/self/task')), file=sys.stderr)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stderr.split()[-1] == "1"
