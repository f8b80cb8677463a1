"""Repeated keys within and across shards, other fields than most, and what findings may cost in memory."""

from __future__ import annotations

import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest
from verify_cases import GOOD, good_tar, tar_bytes, write
from verify_options import checks_of

from wdscli.tar import END_OF_ARCHIVE
from wdscli.verify import keys as keys_module
from wdscli.verify.findings import Ledger
from wdscli.verify.keys import repeats_across
from wdscli.verify.set import VerifyReport, verify


def found(report: VerifyReport) -> list[tuple[str, str, str]]:
    return [(f.code, Path(f.shard).name, f.message) for f in report.findings]


def test_many_shards_with_the_same_keys(tmp_path: Path) -> None:
    shards = [write(tmp_path, good_tar(), f"{number}.tar") for number in range(4)]
    report = verify(shards, checks_of(max_findings=2))
    assert report.counts == {"duplicate-key": 9}
    assert [(Path(f.shard).name, f.member) for f in report.findings] == [("1.tar", "a"), ("1.tar", "b")]
    assert all(shards[0] in f.message for f in report.findings)


def test_repeats_are_the_same_by_sets_and_by_sorting(tmp_path: Path, monkeypatch: Any) -> None:
    members = [(b"%d.%s" % (n % 50, b"abcdefgh"[n % 7 : n % 7 + 1]), b"x") for n in range(300)]
    shards = [
        write(tmp_path, tar_bytes(*members), "1.tar"),
        write(tmp_path, tar_bytes(*members[:20]), "2.tar"),
    ]
    before = verify(shards)
    monkeypatch.setattr(keys_module, "FEW_DIGESTS", 1)
    assert verify(shards) == before
    assert before.counts["interleaved-key"]
    assert before.counts["duplicate-key"]


def test_across_tells_where_a_key_was_first() -> None:
    packed = [array("Q", part).tobytes() for part in ([1, 2, 3], [4, 5], [5, 2], [2, 9])]
    assert list(repeats_across([*packed], 10)) == [(2, [(5, 1), (2, 0)], 0), (3, [(2, 0)], 0)]
    assert list(repeats_across([*packed], 1)) == [(2, [(5, 1)], 1), (3, [(2, 0)], 0)]


def test_interleaved_until_a_field_repeats(tmp_path: Path) -> None:
    members = [
        (b"a.x", b"1"),
        (b"b.x", b"1"),
        (b"a.y", b"1"),
        (b"b.x", b"1"),
        (b"a.z", b"1"),
        (b"c.x", b"1"),
        (b"a.y", b"1"),
    ]
    report = verify([write(tmp_path, tar_bytes(*members))])
    assert [(f.code, f.offset) for f in report.findings if f.code != "mixed-fields"] == [
        ("interleaved-key", 2048),
        ("interleaved-key", 4096),
        ("duplicate-key", 3072),
        ("duplicate-key", 6144),
    ]


def test_more_fields_than_bits(tmp_path: Path) -> None:
    members = [(b"a.f%d" % n, b"1") for n in range(100)] + [(b"b.f0", b"1"), (b"a.new", b"1")]
    report = verify([write(tmp_path, tar_bytes(*members))])
    assert report.counts["interleaved-key" if "interleaved-key" in report.counts else "duplicate-key"] == 1


def test_a_ledger_does_not_grow() -> None:
    ledger = Ledger("x.tar", 3)
    for number in range(1000):
        ledger.add("link", "m", offset=number)
    assert len(ledger.findings) == 3
    assert ledger.counts == {"link": 1000}


@pytest.mark.exhaustive
def test_a_million_bad_members_are_counted_in_little_memory(tmp_path: Path) -> None:
    bad = tar_bytes(*[(b"/%d.jpg" % n, b"") for n in range(2000)], end=b"")
    address = write(tmp_path, bad * 10 + END_OF_ARCHIVE)
    verify([write(tmp_path, bad[:5120] * 2 + END_OF_ARCHIVE, "warm.tar")], checks_of(profiles=["hf"]), jobs=1)
    tracemalloc.start()
    report = verify([address], checks_of(profiles=["hf"]), jobs=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.counts["unsafe-name"] == 20_000
    assert report.counts["empty-payload"] == 20_000
    assert report.counts["duplicate-key"] == 18_000
    assert peak < 10 << 20


def test_other_fields_are_told_once_a_shard(tmp_path: Path) -> None:
    odd = [(b"%d.txt" % n, b"x") for n in range(40)]
    usual = [(b"u%d.jpg" % n, b"x") for n in range(50)]
    report = verify(
        [write(tmp_path, tar_bytes(*odd, *GOOD), "1.tar"), write(tmp_path, tar_bytes(*usual), "2.tar")]
    )
    assert found(report) == [
        ("mixed-fields", "1.tar", "the first of 40 samples with txt; most have jpg"),
        ("mixed-fields", "1.tar", "the first of 3 samples with cls, jpg; most have jpg"),
    ]


def test_two_keys_of_one_digest_are_two_keys(tmp_path: Path, monkeypatch: Any) -> None:
    # Files in this process only: the digest below is not that of other processes.
    monkeypatch.setattr(keys_module, "digest", lambda key, seed: len(key))
    one = write(tmp_path, tar_bytes((b"a.x", b"1"), (b"b.x", b"1"), (b"c.x", b"1")), "1.tar")
    two = write(tmp_path, tar_bytes((b"d.x", b"1"), (b"ee.x", b"1"), (b"d.x", b"1")), "2.tar")
    assert verify([one], jobs=1).counts == {}
    assert verify([one, two], jobs=1).counts == {"duplicate-key": 1}


def test_more_kinds_of_samples_than_are_remembered(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("wdscli.verify.shard.MAX_NAMES", 4)
    members = [(b"%d.%s" % (n, field), b"x") for n in range(9) for field in (b"a", b"b%d" % n)]
    report = verify([write(tmp_path, tar_bytes(*members))], checks_of(require=["c"]))
    assert report.counts == {"missing-field": 9, "mixed-fields": 1}
