"""What lies beside shards, compared with them: index, manifest, checksums."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from verify_cases import flipped, good_tar, tar_bytes, write
from verify_options import checks_of
from xxhash import xxh3_64

from wdscli.errors import UsageError
from wdscli.shards.writer import ShardWriter
from wdscli.verify.set import VerifyReport, verify


def make_set(folder: Path, prefix: str = "t", count: int = 6, checksum: str = "xxh3_128") -> list[str]:
    with ShardWriter(str(folder / f"{prefix}-%06d.tar"), max_count=2, checksum=checksum) as writer:
        for number in range(count):
            writer.write(f"{prefix}{number}", {"jpg": b"x" * number + b"y", "cls": b"%d" % number})
    return [str(folder / shard.name) for shard in writer.manifest.shards]


def found(report: VerifyReport) -> list[tuple[str, str, str]]:
    return [(f.code, Path(f.shard).name, f.message) for f in report.findings]


def codes(report: VerifyReport) -> set[str]:
    return set(report.counts)


def test_a_set_with_manifest_and_indexes_is_clean(tmp_path: Path) -> None:
    make_set(tmp_path)
    for inputs in ([str(tmp_path)], [str(tmp_path / "t-manifest.json")]):
        report = verify(inputs, checks_of(checksums=True), jobs=1)
        assert report.findings == ()
        assert (report.shards, report.samples, report.members) == (3, 6, 12)


def index_of(shard: str) -> Path:
    path = Path(shard)
    return path.parent / ".wds" / (path.name + ".wdx")


def test_an_index_of_other_headers_is_stale(tmp_path: Path) -> None:
    shard = make_set(tmp_path, count=2)[0]
    (tmp_path / "t-manifest.json").unlink()
    assert codes(verify([shard])) == set()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(make_set(other, prefix="u", count=2)[0], shard)
    assert codes(verify([shard])) == {"stale-index"}


def test_an_index_that_had_to_wait_in_a_file_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a shard with very many samples."""
    monkeypatch.setattr("wdscli.shards.index.HELD_BYTES", 50)
    make_set(tmp_path)
    assert verify([str(tmp_path)], checks_of(checksums=True), jobs=1).findings == ()


def test_an_index_of_another_shard_is_stale(tmp_path: Path) -> None:
    one, two, _ = make_set(tmp_path)
    (tmp_path / "t-manifest.json").unlink()
    shutil.copy(index_of(one), index_of(two))
    report = verify([one, two])
    assert [(f.code, f.shard) for f in report.findings] == [("stale-index", two)]
    assert "wds index" in (report.findings[0].hint or "")


def test_an_index_of_another_size_is_stale(tmp_path: Path) -> None:
    shard = make_set(tmp_path, count=2)[0]
    (tmp_path / "t-manifest.json").unlink()
    Path(shard).write_bytes(Path(shard).read_bytes() + bytes(512))
    report = verify([shard])
    assert codes(report) == {"stale-index"}
    assert "bytes" in report.findings[0].message


@pytest.mark.parametrize(
    "key", ["samples", "members", "marks", "ignored", "mtime", "digest", "version", "keys"]
)
def test_every_part_of_an_index_is_compared(key: str, tmp_path: Path) -> None:
    shard = make_set(tmp_path, count=2)[0]
    (tmp_path / "t-manifest.json").unlink()
    raw: dict[str, Any] = msgpack.unpackb(index_of(shard).read_bytes())
    changed = {
        "marks": b"\x08\x00", "ignored": {"no-field": 1}, "digest": "0" * 16, "keys": b"t0t9", "mtime": 7
    }  # fmt: skip
    raw[key] = changed.get(key, 99)
    sealed = msgpack.packb(raw)[:-8]
    index_of(shard).write_bytes(sealed + xxh3_64(sealed).digest())
    assert codes(verify([shard])) == {"stale-index"}


def change_manifest(folder: Path, change: Any) -> None:
    path = folder / "t-manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("nsamples", 9, "9 samples"),
        ("filesize", 51200, "51200 bytes"),
        ("members", 9, "9 members"),
        ("headers", "0" * 16, "other names"),
        ("fields", {"jpg": {"count": 2, "bytes": 9}}, "other fields"),
    ],
)
def test_every_number_of_the_manifest_is_compared(name: str, value: Any, says: str, tmp_path: Path) -> None:
    make_set(tmp_path)
    change_manifest(tmp_path, lambda document: document["shardlist"][1].update({name: value}))
    report = verify([str(tmp_path)])
    # But for the headers, the totals contradict the list then too.
    places = ["t-000001.tar"] if name == "headers" else ["t-manifest.json", "t-000001.tar"]
    assert [(code, shard) for code, shard, _ in found(report)] == [("manifest-mismatch", at) for at in places]
    assert says in report.findings[-1].message


def test_missing_and_extra_shards(tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    Path(shards[1]).unlink()
    write(tmp_path, tar_bytes((b"n.jpg", b"1"), (b"n.cls", b"1")), "t-000009.tar")
    report = verify([str(tmp_path)])
    assert found(report) == [
        ("manifest-mismatch", "t-manifest.json", "it lists t-000001.tar, which does not exist"),
        ("manifest-mismatch", "t-000009.tar", f"{tmp_path}/t-manifest.json does not list the shard"),
    ]
    given = verify([str(tmp_path / "t-manifest.json")])
    assert found(given) == [
        (
            "manifest-mismatch",
            "t-000001.tar",
            f"{tmp_path}/t-manifest.json lists the shard, but the shard does not exist",
        )
    ]
    assert given.is_complete


def test_part_of_a_set_and_two_sets_in_a_folder_are_no_findings(tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    make_set(tmp_path, prefix="v")
    assert verify(shards[:1]).findings == ()
    assert verify([str(tmp_path)], checks_of(checksums=True)).findings == ()


def test_a_broken_manifest_is_a_finding(tmp_path: Path) -> None:
    make_set(tmp_path)
    (tmp_path / "t-manifest.json").write_text("{")
    assert [(c, s) for c, s, _ in found(verify([str(tmp_path)]))] == [
        ("manifest-mismatch", "t-manifest.json")
    ]


def test_a_manifest_of_another_tool_is_no_finding(tmp_path: Path) -> None:
    write(tmp_path, good_tar())
    (tmp_path / "manifest.json").write_text('{"name": "app"}')
    assert verify([str(tmp_path / "x.tar")]).findings == ()
    (tmp_path / "manifest.json").write_text('{"__kind__": "wids-shard-index-v1", "shardlist": [')
    assert codes(verify([str(tmp_path / "x.tar")])) == {"manifest-mismatch"}


def test_fields_of_one_set_are_not_required_of_another(tmp_path: Path) -> None:
    make_set(tmp_path)
    loose = write(tmp_path, tar_bytes((b"z.txt", b"1")), "loose.tar")
    assert codes(verify([str(tmp_path)])) == {"mixed-fields"}
    assert codes(verify([loose])) == set()


def test_checksums_find_what_headers_do_not_show(tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    path = Path(shards[1])
    path.write_bytes(flipped(path.read_bytes(), 512))
    assert verify([str(tmp_path)]).findings == ()
    report = verify([str(tmp_path)], checks_of(checksums=True))
    assert [(c, s) for c, s, _ in found(report)] == [("checksum-mismatch", "t-000001.tar")]


def test_checksums_of_sha256(tmp_path: Path) -> None:
    shards = make_set(tmp_path, checksum="sha256")
    assert verify([str(tmp_path)], checks_of(checksums=True)).findings == ()
    path = Path(shards[0])
    path.write_bytes(flipped(path.read_bytes(), 512))
    assert codes(verify([str(tmp_path)], checks_of(checksums=True))) == {"checksum-mismatch"}


def test_checksums_with_nothing_to_compare(tmp_path: Path) -> None:
    shards = make_set(tmp_path, checksum="none")
    with pytest.raises(UsageError, match="needs a manifest with checksums"):
        verify([str(tmp_path)], checks_of(checksums=True))
    with pytest.raises(UsageError, match="needs a manifest with checksums"):
        verify([write(tmp_path / ".wds", good_tar())], checks_of(checksums=True))
    make_set(tmp_path, prefix="v")
    report = verify([str(tmp_path)], checks_of(checksums=True))
    assert [(f.code, f.shard, f.severity) for f in report.findings] == [
        ("unchecked", shard, "warning") for shard in shards
    ]


@pytest.mark.exhaustive
@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_flip_of_a_shard_is_found(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = flip_set(tmp_path_factory)
    path = folder / "t-000000.tar"
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) * 8 - 1))
    try:
        path.write_bytes(flipped(good, at // 8, at % 8))
        report = verify([str(path)], checks_of(checksums=True), jobs=1)
    finally:
        path.write_bytes(good)
    assert "checksum-mismatch" in report.counts
    assert report.errors


_FLIPS: dict[str, Path] = {}


def flip_set(factory: Any) -> Path:
    if "folder" not in _FLIPS:
        _FLIPS["folder"] = factory.mktemp("flips")
        make_set(_FLIPS["folder"], count=2)
    return _FLIPS["folder"]


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_flip_of_an_index_is_found(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = flip_set(tmp_path_factory)
    path = index_of(str(folder / "t-000000.tar"))
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) * 8 - 1))
    try:
        path.write_bytes(flipped(good, at // 8, at % 8))
        report = verify([str(folder / "t-000000.tar")], jobs=1)
    finally:
        path.write_bytes(good)
    assert codes(report) == {"stale-index"}


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(garbage=st.binary(max_size=3000), cut=st.integers(0, 8000))
def test_garbage_gives_findings_and_never_another_error(
    garbage: bytes, cut: int, tmp_path_factory: Any
) -> None:
    folder = flip_set(tmp_path_factory)
    address = write(folder, garbage, "x.tar")
    assert verify(
        [address], checks_of(decode=True, profiles=["webdataset", "hf", "dali", "energon"]), jobs=1
    ).errors
    good = good_tar()
    address = write(folder, good[:cut] + garbage, "x.tar")
    verify([address, f"pipe:cat {address}"], checks_of(decode=True, profiles=["hf", "dali"]), jobs=1)
