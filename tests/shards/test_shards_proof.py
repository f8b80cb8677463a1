"""Whether an index belongs to a shard: what evidence proves, what contradicts it, and which headers are read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from wdscli.shards import ShardWriter, proof
from wdscli.shards.index import Check, Index, index_address
from wdscli.shards.proof import (
    Evidence,
    Proof,
    StoredIndex,
    checking,
    find_index,
    prove_index,
    proven_by,
    read_index,
    scanned_index,
)
from wdscli.storage import open_source
from wdscli.tar import Form

MD5, OTHER_MD5 = (f's3 "{digit}00150983cd24fb0d6963f7d28e17f72"' for digit in "98")


def write(folder: Path, third: str = "k2", payload: str = "2") -> str:
    """A shard with stored values. The third sample is neither first, middle nor last."""
    address = str(folder / "a.tar")
    with ShardWriter(address, force=True, values=["json.n"]) as writer:
        for number in range(9):
            value = payload if number == 2 else number
            writer.write(third if number == 2 else f"k{number}", {"json": b'{"n": %s}' % str(value).encode()})
    return address


def proven(address: str, **options: Any) -> proof.ProvenIndex:
    with open_source(address) as source:
        return prove_index(address, source, **options)


def replace(address: str, folder: Path, **other: str) -> None:
    """Move another shard of the same size, but older, to the address of a shard."""
    (folder / "other").mkdir()
    os.replace(write(folder / "other", **other), address)
    os.utime(address, (1e9, 1e9))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that were scanned."""
    scanned: list[str] = []
    scan = proof.scan_index

    def noted(source: Any, *options: Any) -> Any:
        scanned.append(source.name)
        return scan(source, *options)

    monkeypatch.setattr(proof, "scan_index", noted)
    return scanned


@pytest.fixture
def index(tmp_path: Path) -> Index:
    index = read_index(write(tmp_path)).index
    assert index is not None
    return index


class TestEvidence:
    """Evidence alone: no shard is opened."""

    @pytest.mark.parametrize(
        ("version", "noted", "now", "wanted"),
        [
            ("", "", "", (Proof.NOTHING, "")),
            ("", "", MD5, (Proof.NOTHING, "")),
            (MD5, "", MD5, (Proof.PAYLOADS, "")),
            ("", MD5, MD5, (Proof.PAYLOADS, "")),
            (OTHER_MD5, "", MD5, (Proof.NOTHING, "the store has another version of the shard")),
            ("", OTHER_MD5, MD5, (Proof.NOTHING, "")),
            ('gs "1"', "", MD5, (Proof.NOTHING, "")),
            ('s3 "5f3e-9c"', "", 's3 "5f3e-9c"', (Proof.NOTHING, "")),
        ],
    )
    def test_versions(
        self, index: Index, version: str, noted: str, now: str, wanted: tuple[Proof, str]
    ) -> None:
        index.version, index.noted = version, noted
        assert proven_by(index, Evidence(index.size, now)) == wanted
        assert proven_by(index, Evidence(None, now)) == wanted

    def test_no_version_outweighs_another_size(self, index: Index) -> None:
        index.version = MD5
        found, reason = proven_by(index, Evidence(index.size + 512, MD5))
        assert (found, reason) == (
            Proof.NOTHING,
            f"the shard has {index.size + 512} bytes, the index is for {index.size}",
        )

    def test_a_pinned_index_has_no_values(self, index: Index) -> None:
        assert StoredIndex(None).pinned is StoredIndex(index).pinned is None
        index.noted = MD5
        pinned = StoredIndex(index).pinned
        assert pinned is not None
        assert pinned.index is not None
        assert (pinned.proof, pinned.version) == (Proof.NOTHING, f"etag:{MD5[3:]}")
        assert (pinned.index.numbers, pinned.stored_values) == ({}, {"json.n"})
        assert index.numbers.keys() == {"json.n"}


class TestLocal:
    def test_a_shard_as_it_was_written(self, tmp_path: Path, scans: list[str]) -> None:
        address = write(tmp_path)
        for check in (Check.SOME, Check.ALL_LOCAL):
            found = proven(address, check=check)
            assert found.index is not None
            assert (found.proof, found.reason, *found.index.values) == (Proof.PAYLOADS, "", "json.n")
        assert not scans
        assert proven(address, check=Check.ALL).proof is Proof.PAYLOADS
        assert len(scans) == 1

    def test_a_newer_shard_keeps_its_places_and_loses_its_values(
        self, tmp_path: Path, scans: list[str]
    ) -> None:
        address = write(tmp_path)
        os.utime(address, (2e9, 2e9))
        found = proven(address)
        assert found.index is not None
        assert (found.proof, len(scans), found.index.numbers) == (Proof.HEADERS, 1, {})
        assert found.stored_values == {"json.n"}

    def test_an_older_shard_with_another_key(self, tmp_path: Path, scans: list[str]) -> None:
        """Some headers do not show it: this is for callers that read the others."""
        address = write(tmp_path)
        replace(address, tmp_path, third="k1x")
        assert proven(address).proof is Proof.PAYLOADS
        assert not scans
        for found in (proven(address, check=Check.ALL_LOCAL), proven(address, check=Check.ALL)):
            assert (found.index, found.reason) == (None, "it does not match the shard's headers")
        with checking(Check.ALL_LOCAL):
            assert proven(address).index is None
        assert proven(address).index is not None

    @pytest.mark.parametrize("kind", ["renamed", "linked", "symlink", "copied back", "touched"])
    def test_whatever_touches_a_shard_is_noticed(self, tmp_path: Path, scans: list[str], kind: str) -> None:
        address, other = write(tmp_path), str(tmp_path / "other.tar")
        shutil.copy2(address, other)
        match kind:
            case "renamed":
                os.replace(other, address)
            case "linked":
                os.unlink(address)
                os.link(other, address)
            case "symlink":
                os.rename(address, other)
                os.symlink(other, address)
            case "copied back":
                # The index is younger than the shard, but it was not written at that time.
                place = Path(index_address(address))
                data = place.read_bytes()
                place.unlink()
                place.write_bytes(data)
                os.utime(place, (2e9, 2e9))
            case "touched":
                os.utime(address, (1e9, 1e9))
        found = proven(address, check=Check.ALL_LOCAL)
        assert (found.proof, len(scans)) == (Proof.PAYLOADS, 1)

    def test_the_reasons(self, tmp_path: Path) -> None:
        address = write(tmp_path)
        place, data = Path(index_address(address)), Path(address).read_bytes()
        Path(address).write_bytes(data + bytes(512))
        assert "the index is for" in proven(address).reason
        Path(address).write_bytes(data[:512].replace(b"k0", b"j0") + data[512:])
        assert proven(address).reason == "sample 0 of the shard is not where the index says"
        place.write_bytes(place.read_bytes()[:-1])
        assert "not a valid index" in proven(address).reason
        place.unlink()
        assert proven(address) == proof.ProvenIndex()
        warned: list[str] = []
        with open_source(address) as source:
            assert find_index(address, source, warned.append) is None
        assert not warned

    def test_an_index_of_another_form_is_right_but_not_used(self, tmp_path: Path) -> None:
        address = write(tmp_path)
        warned: list[str] = []
        with open_source(address) as source:
            assert find_index(address, source, warned.append, form=Form(7)) is None
            assert find_index(address, source, warned.append, form=Form()) is not None
            assert scanned_index(address, source).digest == scanned_index(address, source, Form(7)).digest
        assert not warned


class TestChecksums:
    """A checksum that a store keeps of all bytes."""

    @pytest.mark.parametrize(
        ("kept", "version", "wanted"),
        [
            ({"crc32": "0000002a"}, "", (Proof.PAYLOADS, "")),
            ({"crc32": "0000002b"}, "", (Proof.NOTHING, "the store keeps another checksum")),
            # A copy has another ETag.
            ({"crc32": "0000002a"}, OTHER_MD5, (Proof.PAYLOADS, "")),
            # Even the same ETag does not outweigh another checksum.
            ({"crc32": "0000002b"}, MD5, (Proof.NOTHING, "the store keeps another checksum")),
            # Nothing can be compared, so the version counts.
            ({"sha256": "0"}, MD5, (Proof.PAYLOADS, "")),
            (
                {"crc32": "0000002b-2"},
                OTHER_MD5,
                (Proof.NOTHING, "the store has another version of the shard"),
            ),
            ({"crc32": "0000002c-1"}, OTHER_MD5, (Proof.PAYLOADS, "")),
        ],
    )
    def test_against_versions(
        self, index: Index, kept: dict[str, str], version: str, wanted: tuple[Proof, str]
    ) -> None:
        index.version = MD5
        index.checksums = {"crc32": "0000002a", "crc32-parts": "0000002c-1"}
        assert proven_by(index, Evidence(index.size, version, checksums=kept)) == wanted

    def test_another_size_is_another_shard(self, index: Index) -> None:
        index.checksums = {"crc32": "0000002a"}
        proof, reason = proven_by(index, Evidence(index.size + 512, checksums=dict(index.checksums)))
        assert (proof, "bytes" in reason) == (Proof.NOTHING, True)

    def test_values_that_are_not_proven_take_checksums_with_them(self, index: Index) -> None:
        assert (index.without_values().checksums, index.without_values().unproven) == ({}, {"json.n"})
