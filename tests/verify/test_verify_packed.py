"""Small canonical samples are checked a buffer at a time, with the findings and counts of the scan."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from shard_cases import wds_here

from wdscli.samples import reading
from wdscli.shards import ShardWriter
from wdscli.tar import CANONICAL, END_OF_ARCHIVE, Form, build_header, core, padding
from wdscli.verify.shard import Checks, HeaderPass, VerifyTask, check_shard

pytestmark = pytest.mark.skipif(core.CORE is None, reason="plain Python scans every shard")

Members = list[tuple[bytes, bytes]]
PLAIN: Members = [
    (b"k%03d.%s" % (number, field), b"x" * (number + 1))
    for number in range(300)
    for field in (b"cls", b"txt")
]


def archive(members: Members, form: Form = CANONICAL) -> bytes:
    blocks = [build_header(name, len(data), form) + data + padding(len(data)) for name, data in members]
    return b"".join(blocks) + END_OF_ARCHIVE


def changed(row: int, name: bytes, data: bytes = b"x") -> bytes:
    """The plain archive with another member in one place."""
    return archive([*PLAIN[:row], (name, data), *PLAIN[row + 1 :]])


CASES = {
    "plain": archive(PLAIN),
    "different-fields": archive([member for number, member in enumerate(PLAIN) if number % 7]),
    "empty": changed(301, b"k150.txt", b""),
    "unsafe": changed(301, b"../k150.txt"),
    "no-field": changed(301, b"k150"),
    "same-field-twice": changed(301, b"k150.cls"),
    "repeated-key": changed(301, b"k003.txt"),
    "other-case": archive([*PLAIN, (b"K003.cls", b"1")]),
    "last-field": archive([*PLAIN, (b"z.txt", b"1")]),
    "foreign": archive(PLAIN[:200])[:-1024] + archive(PLAIN[200:], Form(mtime=5)),
    "damaged": archive(PLAIN)[:200_000] + b"?" * 1000 + archive(PLAIN)[201_000:],
    "truncated": archive(PLAIN)[:200_100],
    "truncated-at-a-header": archive(PLAIN[:201])[:-1024],
    "data-after-end": archive(PLAIN) + archive([(b"more.txt", b"1")]),
}


def checked(path: Path, checks: Checks) -> dict[str, Any]:
    result = check_shard(VerifyTask(str(path), checks))
    shapes = {fields: (shape.count, shape.offset, shape.key) for fields, shape in result.shapes.items()}
    ledger = result.ledger
    facts = {
        name: getattr(result, name) for name in ("samples", "members", "size_bytes", "digests", "ignored")
    }
    return facts | {"shapes": shapes, "findings": ledger.findings, "counts": ledger.counts}


@pytest.mark.parametrize("checks", [Checks(), Checks(required=(b"txt",))], ids=["usual", "required"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("buffer_bytes", [1 << 12, 1 << 22])
def test_it_finds_what_the_scan_finds(
    case: str, checks: Checks, buffer_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(CASES[case])
    scanned = checked(path, checks)
    monkeypatch.setattr(reading, "SMALL_SHARD_BYTES", 0)
    monkeypatch.setattr(reading, "BUFFER_BYTES", buffer_bytes)
    assert checked(path, checks) == scanned


def test_an_index_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SMALL_SHARD_BYTES", 0)
    for folder, label in (("a", b"1"), ("b", b"12")):
        with ShardWriter(f"{tmp_path}/{folder}/s-%06d.tar") as writer:
            for number in range(50):
                writer.write(f"k{number}", {"cls": label, "txt": b"words"})
    index = Path(".wds") / "s-000000.tar.wdx"
    assert not checked(tmp_path / "a" / "s-000000.tar", Checks())["findings"]
    (tmp_path / "a" / index).write_bytes((tmp_path / "b" / index).read_bytes())
    assert [finding.code for finding in checked(tmp_path / "a" / "s-000000.tar", Checks())["findings"]] == [
        "stale-index"
    ]


def test_members_of_other_writers_are_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their places are not where canonical members would be."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in PLAIN:
            member = tarfile.TarInfo(name.decode())
            member.size, member.mtime = len(data), 1.25  # type: ignore[assignment]
            tar.addfile(member, io.BytesIO(data))
    assert wds_here("index", path, "-q").code == 0
    monkeypatch.setattr(reading, "SMALL_SHARD_BYTES", 0)
    result = checked(path, Checks())
    assert (result["findings"], result["members"]) == ([], len(PLAIN))


def test_only_the_last_sample_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[bytes] = []
    monkeypatch.setattr(reading, "SMALL_SHARD_BYTES", 0)
    add = HeaderPass.add

    def note(headers: HeaderPass, window: Any) -> None:
        scanned.extend(window.columns.names)
        add(headers, window)

    monkeypatch.setattr(HeaderPass, "add", note)
    (tmp_path / "x.tar").write_bytes(archive(PLAIN))
    assert checked(tmp_path / "x.tar", Checks())["members"] == len(PLAIN)
    assert scanned == [b"k299.cls", b"k299.txt"]
