"""``import wdscli.loader.as_webdataset``: programs written for webdataset run unmodified, workers included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from wdscli.shards import ShardWriter

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
    import sys
    import webdataset as wds
    import webdataset.filters
    from webdataset import autodecode, utils
    from webdataset.filters import _shuffle
    from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander, url_opener
    from webdataset.utils import pytorch_worker_seed

    def keyed(sample):
        assert "wdscli" in sys.modules["webdataset"].map.__module__
        return sample["__key__"]

    if __name__ == "__main__":
        assert wds.filters is webdataset.filters and callable(wds.gopen) and wds.mix.RandomMix
        assert wds.__version__ == "1.0.2"
        data = wds.DataPipeline(
            wds.SimpleShardList(sys.argv[1]), wds.tarfile_to_samples(), wds.map(keyed), wds.batched(5)
        )
        print(sorted(key for batch in data for key in batch))
"""
SPAWNED = (
    PROGRAM
    + """
        from torch.utils.data import DataLoader
        loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        print(sorted(key for batch in loader for key in batch))
"""
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards")
    with ShardWriter(f"{folder}/in-%06d.tar", max_count=4) as writer:
        for number in range(10):
            writer.write(f"n{number}", {"cls": b"0"})
    return f"{folder}/in-{{000000..000002}}.tar"


def ran(folder: Path, program: str, *arguments: str, line: str = "") -> subprocess.CompletedProcess[str]:
    """A program of its own file, begun by ``arguments`` of Python with PROGRAM for the file."""
    (folder / "program.py").write_text(line + dedent(program))
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


KEYS = f"{[f'n{number}' for number in range(10)]}\n"
LINE = "import wdscli.loader.as_webdataset\n"


@pytest.mark.exhaustive
def test_one_line_in_front_of_a_program(shards: str, tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM, "program.py", shards, line=LINE)
    assert (done.stdout, done.stderr) == (KEYS, "")


@pytest.mark.exhaustive
def test_no_line_at_all_and_workers_that_are_spawned(shards: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = ran(tmp_path, SPAWNED, "-m", "wdscli.loader.as_webdataset", "program.py", shards)
    assert (done.stdout, done.stderr) == (KEYS * 2, "")


@pytest.mark.exhaustive
def test_a_module_that_is_run_by_its_name(shards: str, tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM, "-m", "wdscli.loader.as_webdataset", "-m", "program", shards)
    assert (done.stdout, done.stderr) == (KEYS, "")


def test_the_real_one_must_not_be_there_before(tmp_path: Path) -> None:
    (tmp_path / "webdataset.py").write_text("")
    done = ran(tmp_path, "import webdataset\nimport wdscli.loader.as_webdataset\n", "program.py")
    assert done.returncode != 0
    assert "UsageError: webdataset is already imported" in done.stderr
    assert "first in the program" in done.stderr


@pytest.mark.exhaustive
def test_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    program = """
        import wdscli.loader.as_webdataset
        import importlib.util, sys
        import wdscli.loader.as_webdataset
        assert importlib.util.find_spec("webdataset").name == "webdataset"
        for line in ("import webdataset.multi", "from webdataset import nothing", "import webdataset.filter",
                     "import webdataset.tenbin", "from webdataset.cache import FileCache"):
            try:
                exec(line)
            except ImportError as error:
                print(error)
        from webdataset import *
        print(map, ResampledShards, filters.__name__, filters.__spec__.name)
    """
    done = ran(tmp_path, program, "program.py")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("webdataset.multi does not exist")
    assert "nothing" in lines[1]
    assert lines[2].startswith("webdataset.filter does not exist")
    assert lines[3].startswith("webdataset has no tenbin; write encode_tensors(arrays)")
    assert lines[4].startswith(
        "wdscli.loader.compat.cache has no FileCache; write WebDataset(urls, cache_dir="
    )
    assert lines[5].count("wdscli.loader.compat.filters") == 2


def test_the_command_without_a_program(tmp_path: Path) -> None:
    done = ran(tmp_path, "", "-m", "wdscli.loader.as_webdataset")
    assert done.returncode != 0
    assert done.stderr.startswith("usage: python -m wdscli.loader.as_webdataset")
