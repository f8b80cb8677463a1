"""NVIDIA DALI reads our shards, with its own look at the tar and through the index we write for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvidia.dali", reason="nvidia-dali-cuda120 is not installed")
from conftest import flagged, write_set
from indexing import index

from wdscli.errors import DataError
from wdscli.tar import Form


def read(
    shards: list[str], fields: list[str], count: int, indexes: list[str] | None = None
) -> list[list[bytes]]:
    """``count`` samples by ``fn.readers.webdataset`` on the CPU; a list of payloads per field."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=count, num_threads=1, device_id=None)
    def pipeline():  # type: ignore[no-untyped-def]
        out = fn.readers.webdataset(
            paths=shards, index_paths=indexes, ext=fields, missing_component_behavior="error", name="reader"
        )
        return tuple(out) if len(fields) > 1 else out

    built = pipeline()
    built.build()
    assert built.epoch_size("reader") == count
    return [[bytes(out.at(row).tobytes()) for row in range(count)] for out in built.run()]


def indexes_of(shards: list[str]) -> list[str]:
    return [shard.removesuffix(".tar") + ".idx" for shard in shards]


@pytest.mark.parametrize("with_index", [False, True])
def test_dali_reads_what_we_write(shards, content, with_index):
    if with_index:
        index(shards, dialects=["dali"])
    found = read(shards, ["png", "cls"], 10, indexes_of(shards) if with_index else None)
    assert found == [[fields[name] for fields in content.values()] for name in ("png", "cls")]


def test_our_index_is_what_wds2idx_writes(shards, tmp_path):
    pytest.importorskip("wds2idx")
    index(shards, dialects=["dali"])
    for shard, ours in zip(shards, indexes_of(shards)):
        theirs = tmp_path / "theirs.idx"
        subprocess.run(
            [sys.executable, "-m", "wds2idx", shard, str(theirs)], check=True, stdout=subprocess.DEVNULL
        )
        assert Path(ours).read_bytes() == theirs.read_bytes()


def test_the_index_is_what_dali_reads_by(shards, content):
    """Not by a look of its own: with the lines of two samples exchanged, their payloads are."""
    index(shards, dialects=["dali"])
    place = Path(indexes_of(shards)[0])
    lines = place.read_text().splitlines()
    lines[1], lines[2] = lines[2], lines[1]
    place.write_text("\n".join(lines) + "\n")
    first, second, *_ = read(shards, ["png"], 10, indexes_of(shards))[0]
    kept = list(content.values())
    assert (first, second) == (kept[1]["png"], kept[0]["png"])


LONG = {"folder/" * 40 + f"img{number}": {"cls": b"%d" % number, "txt": b"long"} for number in range(3)}


def test_gnu_long_names_load(tmp_path):
    shards = write_set(tmp_path / "gnu", LONG, form=Form(long_names="gnu"))
    assert flagged(shards, "dali") == set()
    assert read(shards, ["cls"], 3) == [[b"0", b"1", b"2"]]


def test_pax_names_are_flagged_and_do_not_load(tmp_path):
    shards = write_set(tmp_path / "pax", LONG)
    assert flagged(shards, "dali") == {"dali-pax-header"}
    with pytest.raises((RuntimeError, AssertionError)):
        assert read(shards, ["cls"], 3) == [[b"0", b"1", b"2"]]


def test_pax_names_load_through_our_index(tmp_path):
    """DALI jumps to the payload then, and never sees the pax header."""
    shards = write_set(tmp_path / "pax", LONG)
    index(shards, dialects=["dali"])
    assert read(shards, ["cls"], 3, indexes_of(shards)) == [[b"0", b"1", b"2"]]


def test_names_that_are_not_ascii_load(tmp_path):
    shards = write_set(tmp_path / "set", {"a\u00e9": {"cls": b"1"}, "b": {"cls": b"2"}})
    index(shards, dialects=["dali"])
    assert read(shards, ["cls"], 2) == [[b"1", b"2"]]
    assert read(shards, ["cls"], 2, indexes_of(shards)) == [[b"1", b"2"]]


def test_blanks_are_flagged_and_refused_by_the_index(tmp_path):
    shards = write_set(tmp_path / "set", {"a b": {"cls": b"1"}})
    assert flagged(shards, "dali") == {"dali-blank"}
    with pytest.raises(DataError, match="white space"):
        index(shards, dialects=["dali"])
    # Without an index it loads.
    assert read(shards, ["cls"], 1) == [[b"1"]]
    # What wds2idx makes of it: an index that DALI cannot read.
    place = tmp_path / "theirs.idx"
    subprocess.run(
        [sys.executable, "-m", "wds2idx", shards[0], str(place)], check=True, stdout=subprocess.DEVNULL
    )
    with pytest.raises(RuntimeError):
        read(shards, ["cls"], 1, [str(place)])


def test_a_missing_component_is_flagged_and_an_error(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"cls": b"1", "txt": b"t"}, "b": {"cls": b"2"}})
    assert flagged(shards, "dali") == {"dali-missing-component"}
    with pytest.raises(RuntimeError):
        read(shards, ["cls", "txt"], 2)


def test_a_set_that_the_profile_passes_loads(shards, content):
    assert flagged(shards, "dali") == set()
    assert read(shards, ["txt"], 10)[0][:2] == [b"text of 0", b"text of 1"]


def test_a_compressed_shard_is_flagged_and_does_not_load(shards, tmp_path):
    import gzip

    place = tmp_path / "packed.tar.gz"
    with open(shards[0], "rb") as plain, gzip.open(place, "wb") as packed:
        shutil.copyfileobj(plain, packed)
    assert flagged([str(place)], "dali") == {"dali-compressed"}
    with pytest.raises(RuntimeError):
        read([str(place)], ["cls"], 4)
