"""Names that may not be written, wherever they come from.

Names written are relative, have no ``..``, no NUL and no leading slash. Whatever an input says: what comes out is an
error, or an archive in which Python's tarfile finds the same names.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reorders import shuffle
from shard_cases import Ran, leftovers, wds
from tiers import examples
from verify_cases import tar_bytes

from wdscli.cli.main import main
from wdscli.errors import DataError, UsageError
from wdscli.loader import TarWriter as LoaderTarWriter
from wdscli.ops.cat import cat
from wdscli.plan.request import Request
from wdscli.shards import ShardWriter
from wdscli.tar import END_OF_ARCHIVE, TarWriter, build_header
from wdscli.tar.header import extended, pax_record
from wdscli.verify.set import verify


def member(name: bytes, payload: bytes) -> bytes:
    """A member by a pax path, which can say any name."""
    header = extended(b"x", pax_record(b"path", name)) + build_header(b"short", len(payload))
    return header + payload.ljust((len(payload) + 511) & -512, b"\0")


def archive_of(*names: bytes) -> bytes:
    return b"".join(member(name, b"%d" % at) for at, name in enumerate(names)) + END_OF_ARCHIVE


BAD = {
    "nul-in-key": b"b\0ad.txt",
    "nul-in-field": b"bad.t\0xt",
    "nul-at-end": b"bad.txt\0",
    "absolute": b"/bad.txt",
    "dots": b"../bad.txt",
    "dots-inside": b"x/../bad.txt",
}
WRITERS = {
    "cat": ["cat", "{in}", "-o", "{out}/o.tar"],
    "cat-stdout": ["cat", "{in}"],
    "cat-fields": ["cat", "{in}", "--fields", "txt", "-o", "{out}/o.tar"],
    "to-dir": ["cat", "{in}", "--to", "{out}/d/"],
    "shuffle": ["shuffle", "{in}", "-o", "{out}/o-%d.tar"],
    "spill": ["shuffle", "{in}", "--strategy", "spill", "-o", "{out}/o-%d.tar"],
    "sort": ["sort", "{in}", "-o", "{out}/o-%d.tar"],
    "sort-index": ["sort", "{in}", "-o", "{out}/o-%d.tar"],
    "split": ["split", "{in}", "--max-count", "1", "-o", "{out}/o-%d.tar"],
    "merge": ["merge", "{in}", "{other}", "-o", "{out}/o-%d.tar"],
    "interleave": ["merge", "--weights", "equal", "{in}", "{other}", "-o", "{out}/o-%d.tar"],
    "join": ["merge", "--join", "left", "{other}", "{in}", "-o", "{out}/o-%d.tar"],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_command_writes_them(writer: str, bad: str, tmp_path: Path, capfdbinary: object) -> None:
    shard, other, out = tmp_path / "in.tar", tmp_path / "other.tar", tmp_path / "out"
    out.mkdir()
    shard.write_bytes(archive_of(b"a.txt", BAD[bad], b"c.txt"))
    other.write_bytes(tar_bytes((b"z.txt", b"z")))
    if writer == "sort-index" and b"\0" not in BAD[bad].partition(b".")[2]:
        assert main(["index", str(shard)]) == 0
    line = [part.format(**{"in": shard, "out": out, "other": other}) for part in WRITERS[writer]]
    code = main(line)
    said = capfdbinary.readouterr()  # type: ignore[attr-defined]
    assert code == 3, said.err
    text = said.err.decode()
    assert "unsafe name" in text
    assert "Traceback" not in text
    assert str(shard) in text
    assert "at byte 2048" in text
    # Nothing of the sample is there, nor a file under a final name.
    assert not [path for path in out.rglob("*") if path.is_file() and path.name not in ("a.txt",)]
    assert b"bad" not in said.out


def test_samples_with_such_names_can_be_passed_over(tmp_path: Path) -> None:
    shard = tmp_path / "in.tar"
    shard.write_bytes(archive_of(b"a.txt", *BAD.values(), b"c.txt"))
    ran = wds("cat", shard, "--on-error", "skip", "-o", tmp_path / "out.tar")
    assert ran.code == 0, ran.err
    assert "unsafe-name" in ran.err
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames() == ["a.txt", "c.txt"]


def test_verify_reports_each(tmp_path: Path) -> None:
    shard = tmp_path / "in.tar"
    shard.write_bytes(archive_of(b"a.txt", *BAD.values()))
    report = verify([str(shard)])
    assert report.counts["unsafe-name"] == len(BAD)


def test_an_index_cannot_hold_a_nul_in_a_field(tmp_path: Path) -> None:
    """Fields are joined by NULs in it."""
    shard = tmp_path / "in.tar"
    shard.write_bytes(archive_of(b"a.t\0xt"))
    ran = wds("index", shard)
    assert ran.code == 3
    assert "NUL" in ran.err
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", [b"", b"a\0.txt", b"\0"])
def test_the_last_place_before_bytes(name: bytes) -> None:
    if name:
        with pytest.raises(DataError, match="a tar cannot hold"):
            build_header(name, 1)
    with pytest.raises(UsageError):
        TarWriter(io.BytesIO()).add(name, b"")
    with pytest.raises(UsageError):
        TarWriter(io.BytesIO()).begin(name, 0)


@pytest.mark.parametrize("key", ["a\0b", "/a", "../a", "x/../a", "n" * 70_000])
def test_the_library_refuses_them(key: str, tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "a-%d.tar")) as writer:
        with pytest.raises(UsageError):
            writer.write(key, {"txt": b"1"})
        writer.write("ok", {"txt": b"1"})
    with LoaderTarWriter(io.BytesIO()) as loader:
        with pytest.raises(UsageError):
            loader.write({"__key__": key, "txt": "1"})
        loader.write({"__key__": "ok", "txt": "1"})


def test_keys_that_unpack_to_one_file_are_not_unpacked(tmp_path: Path) -> None:
    """With --force the second would have replaced the first."""
    shard = tmp_path / "in.tar"
    shard.write_bytes(archive_of(b"a/b.txt", b"a//b.txt"))
    ran = wds("cat", shard, "--to", f"{tmp_path / 'd'}/", "--force")
    assert ran.code == 3
    assert "replace each other" in ran.err


NAMES = st.lists(
    st.text(st.sampled_from("a./\0_ \né"), min_size=1, max_size=9)
    .map(lambda stem: stem.encode() + b".x")
    .filter(lambda name: name.strip(b"/")),
    min_size=1,
    max_size=5,
    unique=True,
)


@pytest.mark.exhaustive
@given(NAMES, st.booleans())
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_an_error_or_the_same_names(tmp_path: Path, names: list[bytes], by_plan: bool) -> None:
    shard, out = tmp_path / "in.tar", tmp_path / "out.tar"
    shard.write_bytes(archive_of(*names))
    for left in (out, tmp_path / ".wds" / "out.tar.wdx", tmp_path / "out-manifest.json"):
        left.unlink(missing_ok=True)
    try:
        if by_plan:
            shuffle(Request([str(shard)], str(out)))
        else:
            cat(Request([str(shard)], str(out)))
    except DataError as error:
        assert error.exit_code == 3
        assert not out.exists()
        return
    with tarfile.open(out) as tar:
        read = sorted(one.name.encode() for one in tar.getmembers())
    kept = [name for name in names if is_sample(name)]
    assert read == sorted(kept)


def is_sample(name: bytes) -> bool:
    base = name.rpartition(b"/")[2]
    head = name.partition(b"/")[0]
    is_dunder = len(head) >= 4 and head.startswith(b"__") and head.endswith(b"__")
    return not (base.startswith(b".") or is_dunder)


def test_json_lines_show_any_name(tmp_path: Path) -> None:
    """What is only shown is escaped, not refused."""
    shard = tmp_path / "in.tar"
    shard.write_bytes(archive_of(b"a\0b.txt"))
    ran: Ran = wds("cat", shard, "--to", "jsonl")
    assert ran.code == 0
    assert json.loads(ran.out)["key"] == "a\0b"
