"""What importing the storage, and reading a local shard through it, may load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {
    *(
        "aiohttp",
        "asyncio",
        "braceexpand",
        "bz2",
        "dataclasses",
        "difflib",
        "fsspec",
        "glob",
        "gzip",
        "inspect",
    ),
    *(
        "isal",
        "json",
        "logging",
        "lz4",
        "lzma",
        "numpy",
        "pathlib",
        "s3fs",
        "shutil",
        "subprocess",
        "tempfile",
    ),
    *("urllib.parse", "zlib", "zstandard"),
}


def loaded(code: str, folder: Path) -> set[str]:
    """The modules that ``code`` loads beyond those of a bare interpreter."""
    path = f"import sys\nsys.path[:] = {sys.path!r}\nbefore = set(sys.modules)"
    script = f"{path}\n{code}\nprint(*set(sys.modules) - before)"
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, check=True, cwd=folder, text=True)
    return set(done.stdout.split())


def test_importing_is_cheap(tmp_path: Path) -> None:
    assert not loaded("import wdscli.storage", tmp_path) & HEAVY


def test_reading_and_writing_a_local_shard_is_cheap(tmp_path: Path) -> None:
    code = """if True:
        from wdscli.storage import expand, open_sink, open_source
        with open_sink("a.tar") as sink:
            sink.write(b"hi")
        with open_source(expand("a.tar")[0]) as source:
            assert source.read_at(0, 2) == b"hi"
    """
    assert not loaded(code, tmp_path) & HEAVY
