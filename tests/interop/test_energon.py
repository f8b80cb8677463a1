"""Megatron-Energon loads a set with the files we write for it and one file that says what the samples mean."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")
from conftest import flagged, write_set
from indexing import index

from wdscli.errors import DataError

#: What we leave to a person: what the samples are.
DATASET = """
__module__: megatron.energon
__class__: CrudeWebdataset
"""


def load(folder: Path) -> list[dict]:
    """All samples of the part ``train``, by energon's own loader."""
    from megatron.energon import (
        DefaultTaskEncoder,
        WorkerConfig,
        get_savable_loader,
        get_val_dataset,
        stateless,
    )
    from megatron.energon.task_encoder.cooking import Cooker, basic_sample_keys

    @stateless
    def cook(sample):  # type: ignore[no-untyped-def]
        return {**basic_sample_keys(sample), **{k: v for k, v in sample.items() if not k.startswith("_")}}

    class Encoder(DefaultTaskEncoder):
        cookers = [Cooker(cook)]  # noqa: RUF012

        @stateless
        def batch(self, samples):  # type: ignore[no-untyped-def]
            return samples

    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(
        str(folder), split_part="train", worker_config=workers, batch_size=1, task_encoder=Encoder()
    )
    return [sample for batch in get_savable_loader(data) for sample in batch]


def prepare(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = "from megatron.energon.cli.main import main; main()"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            command,
            "prepare",
            "--non-interactive",
            "--num-workers",
            "1",
            *options,
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(shards: list[str]) -> Path:
    return Path(shards[0]).parent


def test_energon_loads_by_our_files_and_a_dataset_yaml(shards, folder, content):
    index(shards, dialects=["energon"])
    (folder / ".nv-meta" / "dataset.yaml").write_text(DATASET)
    found = load(folder)
    assert [sample["__key__"] for sample in found] == list(content)
    # Energon decodes by field: text to str, pictures to tensors.
    assert [sample["txt"].encode() for sample in found] == [fields["txt"] for fields in content.values()]
    assert [sample["json"]["caption"] for sample in found][-1] == "picture 9"
    assert [round(float(sample["png"].max()) * 255) for sample in found] == list(range(10))


def test_our_files_are_what_energon_prepare_writes(shards, folder, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(folder, theirs)
    done = prepare(theirs, "--split-ratio", "1,0,0")
    assert done.returncode == 0, done.stderr
    index(shards, dialects=["energon"])
    for shard in shards:
        name = Path(shard).name + ".idx"
        assert (folder / name).read_bytes() == (theirs / name).read_bytes()
    ours, other = (json.loads((place / ".nv-meta/.info.json").read_text()) for place in (folder, theirs))
    assert ours["shard_counts"] == other["shard_counts"]
    assert rows(folder) == rows(theirs)


def rows(folder: Path) -> list[list[tuple]]:
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as database:
        return [
            database.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
            for table in ("samples", "sample_parts")
        ] + [sorted(row[0] for row in database.execute("SELECT name FROM sqlite_master"))]


def test_energon_finds_a_sample_by_its_key_in_our_database(shards, folder, content):
    from megatron.energon.cache.file_store import WebdatasetFileStore
    from megatron.energon.epathlib import EPath

    index(shards, dialects=["energon"])
    data, _ = WebdatasetFileStore(EPath(str(folder)))["n01/img0007.png"]
    assert data == content["n01/img0007"]["png"]


def test_a_key_twice_in_the_set_is_refused_as_energon_refuses_it(tmp_path):
    folder = tmp_path / "set"
    shards = write_set(folder, {f"k{n}": {"txt": b"%d" % n} for n in range(2)}, max_count=1)
    Path(shards[1]).write_bytes(Path(shards[0]).read_bytes())
    with pytest.raises(DataError, match="twice"):
        index(shards, dialects=["energon"])
    assert prepare(folder, "--split-ratio", "1,0,0", "--force-overwrite").returncode != 0


def test_an_empty_shard_is_flagged_and_refused(tmp_path):
    folder = tmp_path / "set"
    shards = write_set(folder, {"k": {"txt": b"t"}})
    (folder / "train-000001.tar").write_bytes(bytes(1024))
    shards.append(str(folder / "train-000001.tar"))
    assert flagged(shards, "energon") == {"energon-empty-shard"}
    with pytest.raises(DataError):
        index(shards, dialects=["energon"])
    assert prepare(folder, "--split-ratio", "1,0,0").returncode != 0


def test_a_name_of_underscores_is_flagged_and_passed_over(tmp_path):
    import io
    import tarfile

    place = tmp_path / "set" / "x.tar"
    place.parent.mkdir()
    with tarfile.open(place, "w") as tar:
        for name in ("__a__/b.txt", "c.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    assert flagged([str(place)], "energon") == {"energon-skipped"}
    assert prepare(place.parent, "--split-ratio", "1,0,0").returncode == 0
    info = json.loads((place.parent / ".nv-meta/.info.json").read_text())
    assert info["shard_counts"] == {"x.tar": 1}


def test_a_set_that_the_profile_passes_is_prepared(shards, folder):
    assert flagged(shards, "energon") == set()
    assert prepare(folder, "--split-ratio", "1,0,0").returncode == 0
