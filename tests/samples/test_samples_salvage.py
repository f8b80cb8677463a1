"""What ``--on-error skip`` keeps of broken shards: whole samples only, the same of files and of streams."""

from __future__ import annotations

import random
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from shard_cases import numbered, sample, samples_of, tar_of

from wdscli.errors import DataError
from wdscli.look.picking import SampleReader
from wdscli.look.unpack import selected_samples
from wdscli.plan.request import Request
from wdscli.samples.grouping import Salvager
from wdscli.storage import open_source
from wdscli.tar import END_OF_ARCHIVE

Saved = tuple[list[Any], dict[str, int], list[str]]


def saved(address: str) -> Saved:
    """Samples as (key, fields with payloads), counts of what was left out, codes of the trouble."""
    picker = SampleReader(Request([address], "", on_error="skip"))
    found = [
        (one.key.decode(), tuple((part.field.decode(), part.whole()) for part in one.parts))
        for one in selected_samples(picker)
    ]
    return found, picker.dropped, [error.code for error in picker.troubles]


def both_ways(folder: Path, data: bytes) -> Saved:
    """From a file, and the same from a stream."""
    path = folder / "broken.tar"
    path.write_bytes(data)
    by_file, by_stream = saved(str(path)), saved(f"pipe:cat {path}")
    assert by_file[0] == by_stream[0]
    assert by_file[1] == by_stream[1]
    return by_file


def flat(samples: list[Any]) -> list[Any]:
    return [member for one in samples for member in one]


@pytest.fixture
def whole() -> bytes:
    return tar_of(flat(numbered(12)))


def test_nothing_wrong(tmp_path: Path, whole: bytes) -> None:
    assert both_ways(tmp_path, whole) == (samples_of(whole), {}, [])


@pytest.mark.parametrize("seed", range(8))
def test_cuts_anywhere(tmp_path: Path, whole: bytes, seed: int) -> None:
    rng = random.Random(seed)
    originals = samples_of(whole)
    for _ in range(8):
        at = rng.randrange(1, len(whole))
        found, dropped, codes = both_ways(tmp_path, whole[:at])
        assert found == originals[: len(found)]
        # 3584 bytes a sample: one may be in doubt, no more.
        assert len(found) >= min(12, at // 3584) - 1
        assert codes
        assert sum(dropped.values()) <= 1


def test_a_cut_in_a_payload_costs_its_sample(tmp_path: Path, whole: bytes) -> None:
    """Also in the first member, and in one that the samples before it do not have."""
    originals = samples_of(whole)
    for at in (3584 * 4 + 512, 3584 * 4 + 513, 3584 * 4 + 1024 + 515):
        assert both_ways(tmp_path, whole[:at]) == (originals[:4], {"damaged": 1}, ["truncated"])
    more = [*numbered(3), [*sample("z", 1), ("z.more", bytes(9))]]
    data = tar_of(flat(more)).removesuffix(END_OF_ARCHIVE)
    assert both_ways(tmp_path, data[:-510]) == (originals[:3], {"damaged": 1}, ["truncated"])


def test_a_sample_beside_damage_has_every_field_of_those_before_it(tmp_path: Path) -> None:
    """The damaged member may be its third, as other samples have it."""
    samples = [
        sample("a", 1, [10, 20]),
        sample("b", 2, [10]),
        sample("c", 3, [10, 20]),
        sample("d", 4, [10, 20]),
    ]
    data = bytearray(tar_of(flat(samples)))
    data[8 * 1024 - 1024 + 20] ^= 1  # the header of c.seg.png
    found, dropped, codes = both_ways(tmp_path, bytes(data))
    assert [key for key, _ in found] == ["a", "b", "d"]
    assert (dropped, codes) == ({"damaged": 1}, ["bad-checksum"])


@pytest.mark.parametrize("seed", range(8))
def test_flips_anywhere_in_headers(tmp_path: Path, whole: bytes, seed: int) -> None:
    """A header that is hit costs its sample, and at most the one beside it."""
    rng = random.Random(seed)
    originals = samples_of(whole)
    starts = [at for at in range(0, len(whole) - 1024, 512) if whole[at + 257 : at + 262] == b"ustar"]
    for _ in range(6):
        data = bytearray(whole)
        data[rng.choice(starts) + rng.randrange(500)] ^= 1 << rng.randrange(8)
        found, _, codes = both_ways(tmp_path, bytes(data))
        assert set(found) <= set(originals), "never half a sample"
        assert found == [one for one in originals if one in found]
        assert len(found) >= 10
        # The checksum field does not count itself: a blank in it may be another without harm.
        assert codes or found == originals


def test_several_hits(tmp_path: Path, whole: bytes) -> None:
    rng = random.Random(4)
    originals = set(samples_of(whole))
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(4):
            at = rng.randrange(0, len(data), 512)
            data[at : at + 512] = rng.randbytes(512)
        found, _, _ = both_ways(tmp_path, bytes(data))
        keys = {key for key, _ in originals}
        for key, fields in found:
            assert key in keys
            assert [name for name, _ in fields] == ["cls", "jpg", "seg.png"]


def test_interleaved_samples(tmp_path: Path) -> None:
    """A key that comes back is another run: what the keys' owner does with it is decided above; no run is torn."""
    a, b = sample("a", 1), sample("b", 2)
    data = tar_of([a[0], b[0], a[1], b[1], a[2], b[2]])
    found, dropped, codes = both_ways(tmp_path, data)
    assert [key for key, _ in found] == ["a", "b"] * 3
    assert (dropped, codes) == ({}, [])


def test_a_field_that_comes_twice(tmp_path: Path) -> None:
    data = tar_of([*sample("a", 1), *sample("b", 2), sample("b", 2)[1], *sample("c", 3)])
    found, dropped, _ = both_ways(tmp_path, data)
    assert [key for key, _ in found] == ["a", "c"]
    assert dropped == {"duplicate-field": 1}


def test_unsafe_names(tmp_path: Path) -> None:
    data = tar_of([*sample("a", 1), *sample("../b", 2), *sample("c", 3)])
    found, dropped, _ = both_ways(tmp_path, data)
    assert [key for key, _ in found] == ["a", "c"]
    assert dropped == {"unsafe-name": 1}


def test_places_are_those_in_the_shard(tmp_path: Path, whole: bytes) -> None:
    """What is left out is counted on, so that a shuffle keeps the order of the rest."""
    data = tar_of(flat([*numbered(3), [*sample("x", 1), ("x.cls", b"2")], *numbered(3, "m")]))
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with open_source(str(path)) as source:
        places = [
            (batch.index + row, key)
            for batch in Salvager(source, lambda _: None, {}, ignored=Counter[str]()).batches()
            for row, key in enumerate(batch.keys)
        ]
    assert places == [(0, b"n000"), (1, b"n001"), (2, b"n002"), (4, b"m000"), (5, b"m001"), (6, b"m002")]


def test_archives_one_behind_the_other(tmp_path: Path) -> None:
    first, second = tar_of(flat(numbered(3))), tar_of(flat(numbered(3, "m")))
    found, _, codes = both_ways(tmp_path, first + second)
    assert [key for key, _ in found] == ["n000", "n001", "n002", "m000", "m001", "m002"]
    assert "data-after-end" in codes


def test_nothing_to_save(tmp_path: Path) -> None:
    for data in (b"", b"x" * 5000, END_OF_ARCHIVE[:512]):
        found, _, codes = both_ways(tmp_path, data)
        assert found == []
        assert codes


def test_a_large_member_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By way of the scratch file of a stream, too; a cut in the padding counts."""
    monkeypatch.setattr("wdscli.selection.reading.HELD_BYTES", 1000)
    data = tar_of(flat([sample("a", 1, [3_000_001]), sample("b", 2, [3_000_001])]))
    for cut in (1024 + 512 + 2, 1024 + 512 + 100, 5000, 1_000_000):
        found, _, codes = both_ways(tmp_path, data[:-cut])
        assert [key for key, _ in found] == ["a"]
        assert codes == ["truncated"]


def test_the_report_has_the_place(tmp_path: Path, whole: bytes) -> None:
    data = bytearray(whole)
    data[3584 * 4 + 20] ^= 1
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    heard: list[DataError] = []
    with open_source(str(path)) as source:
        list(Salvager(source, heard.append, {}).batches())
    assert [(error.code, error.shard, error.offset) for error in heard] == [
        ("bad-checksum", str(path), 3584 * 4)
    ]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_sample_that_lost_a_member_is_not_whole(tmp_path: Path, kind: bytes, place: int) -> None:
    """Whichever member it is, and also if samples before it do not have the field."""
    whole, lost = sample("a", 1), sample("b", 2)
    before, after = [*whole, *lost[:place]], [*lost[place + 1 :], *sample("c", 3)]
    header = tarfile.TarInfo(lost[place][0])
    header.type, header.linkname = kind, "a.jpg"
    block = header.tobuf(tarfile.GNU_FORMAT)
    data = tar_of(before).removesuffix(END_OF_ARCHIVE) + block + tar_of(after)
    found, dropped, codes = both_ways(tmp_path, data)
    assert [key for key, _ in found] == ["a", "c"]
    code = {tarfile.FIFOTYPE: "special", tarfile.GNUTYPE_SPARSE: "sparse"}.get(kind, "link")
    assert (dropped, codes) == ({code: 1}, [code])


def test_a_sample_of_links_alone_is_counted(tmp_path: Path) -> None:
    links = b""
    for name in ("b.cls", "b.jpg", "latest"):
        header = tarfile.TarInfo(name)
        header.type, header.linkname = tarfile.LNKTYPE, "a.jpg"
        links += header.tobuf()
    data = tar_of(sample("a", 1)).removesuffix(END_OF_ARCHIVE) + links + tar_of(sample("c", 3))
    (tmp_path / "x.tar").write_bytes(data)
    picker = SampleReader(Request([str(tmp_path / "x.tar")], "", on_error="skip"))
    assert [one.key for one in selected_samples(picker)] == [b"a", b"c"]
    assert (picker.dropped, picker.ignored) == ({"link": 1}, {"link": 1})
