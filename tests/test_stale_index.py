"""An index that is stale, and a payload that is handed out (issue 9, points 1 and 5).

Each case changes a shard so that its size stays, and makes it older than its index, as ``rsync -a`` or ``cp -p`` would:
nothing but the headers in front of the payloads tells. No way of reading may give what the index says.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Members, tar_of, wds, write_shards

from wdscli.errors import DataError
from wdscli.loader import IndexedDataset, WebDataset

COUNT, PER_SHARD, CHANGED = 40, 20, 27
"""Samples, samples a shard, and the one that is changed: neither first, middle nor last of its shard."""
LONG = "deep/" * 25
"""What makes a name too long for a header's first field."""
FORMATS: dict[str, dict[str, Any]] = {
    "canonical": {},
    "gnu": {"format": tarfile.GNU_FORMAT, "uname": "me"},
    "webdataset": {"format": tarfile.PAX_FORMAT, "mtime": 1700000000.25},
}


def samples(prefix: str = "", image: int = 900) -> list[Members]:
    return [
        [
            (f"{prefix}n{number:03d}.cls", b"%d" % (number % 10)),
            (f"{prefix}n{number:03d}.jpg", bytes([number]) * image),
            (f"{prefix}n{number:03d}.json", b'{"width": %d}' % (number + 100)),
            (f"{prefix}n{number:03d}.txt", b"text %d" % (number + 100)),
        ]
        for number in range(COUNT)
    ]


def label(members: Members) -> Members:
    return [(name, b"12" if name.endswith(".cls") else data) for name, data in members]


def grown(members: Members) -> Members:
    return [(name, data + b" and more" if name.endswith(".txt") else data) for name, data in members]


def shrunk(members: Members) -> Members:
    return [(name, data[:3] if name.endswith(".txt") else data) for name, data in members]


def swapped(members: Members) -> Members:
    """The JSON comes before the picture's place would have been, in blocks of one size."""
    return [*members[:2], members[3], members[2]]


def renamed(members: Members) -> Members:
    return [(name.replace(".txt", ".tex"), data) for name, data in members]


CHANGES: dict[str, Callable[[Members], Members]] = {
    "label": label,
    "grown": grown,
    "shrunk": shrunk,
    "swapped": swapped,
    "renamed": renamed,
}


class Set:
    """Two shards with indexes and a manifest, of which one sample is changed later on."""

    def __init__(self, folder: Path, how: dict[str, Any], prefix: str = "", image: int = 900) -> None:
        self.folder, self.how = folder, how
        self.samples = samples(prefix, image)
        self.shards = write_shards(folder, self._cut(), **how)
        assert wds("index", folder).code == 0
        self.manifest = str(folder / "in-manifest.json")

    def _cut(self) -> list[list[Members]]:
        return [self.samples[first : first + PER_SHARD] for first in range(0, COUNT, PER_SHARD)]

    @property
    def changed(self) -> str:
        """The shard that is changed."""
        return self.shards[CHANGED // PER_SHARD]

    def change(self, change: Callable[[Members], Members], number: int = CHANGED) -> None:
        sizes = [os.path.getsize(shard) for shard in self.shards]
        self.samples[number] = change(self.samples[number])
        write_shards(self.folder, self._cut(), **self.how)
        assert [os.path.getsize(shard) for shard in self.shards] == sizes
        for shard in self.shards:
            os.utime(shard, ns=(0, 0))


@pytest.fixture(params=FORMATS, ids=str)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Set:
    return Set(tmp_path / "set", FORMATS[request.param])


def batches(data: Any) -> list[Any]:
    from torch.utils.data import DataLoader

    return list(DataLoader(data, batch_size=None, num_workers=2))


READ: dict[str, Callable[[str, list[str] | None], Any]] = {
    "in order": lambda urls, fields: list(WebDataset(urls, shuffle="none", fields=fields)),
    "window": lambda urls, fields: list(WebDataset(urls, shuffle="window", fields=fields)),
    "full": lambda urls, fields: list(WebDataset(urls, shuffle="full", fields=fields)),
    "threads": lambda urls, fields: list(WebDataset(urls, threads=3, fields=fields)),
    "batched": lambda urls, fields: list(WebDataset(urls, fields=fields).batched(7)),
    "slice": lambda urls, fields: list(WebDataset(urls, shuffle="none", fields=fields).slice(25, 30)),
    "one": lambda urls, fields: IndexedDataset(urls, fields=fields)[CHANGED],
    "key": lambda urls, fields: IndexedDataset(urls, fields=fields)[f"n{CHANGED:03d}"],
    "some": lambda urls, fields: IndexedDataset(urls, fields=fields).__getitems__([3, CHANGED, 1, 30]),
    "many": lambda urls, fields: IndexedDataset(urls, fields=fields).__getitems__(list(range(39, 10, -1))),
    "table": lambda urls, fields: list(IndexedDataset(urls, fields=fields)[20:]),
}


class TestLoader:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("fields", [None, ["cls", "json", "txt"]], ids=["all", "fields"])
    def test_every_way_of_reading_notices(self, made: Set, change: str, fields: list[str] | None) -> None:
        made.change(CHANGES[change])
        for way, read in READ.items():
            with pytest.raises(DataError) as caught:
                print(way, read(made.manifest, fields))
            assert (caught.value.code, caught.value.shard) == ("changed", made.changed), way
            assert "wds index" in (caught.value.hint or "")

    @pytest.mark.parametrize("image", [900, 40_000])
    def test_what_was_not_changed_is_read(self, tmp_path: Path, image: int) -> None:
        """Long names, pax headers and large payloads are what they are."""
        for number, how in enumerate(FORMATS.values()):
            for prefix in ("", LONG):
                made = Set(tmp_path / f"{number}{bool(prefix)}", how, prefix, image)
                for way, read in READ.items():
                    if way != "key":
                        assert read(made.manifest, None), way
                        assert read(made.manifest, ["json"]), way
                true = [{name.partition(".")[2]: data for name, data in one} for one in made.samples]
                found = [
                    {name: data for name, data in one.items() if name[0] != "_"}
                    for one in IndexedDataset(made.manifest)
                ]
                assert found == true

    @pytest.mark.parametrize("change", CHANGES)
    def test_long_names_and_large_payloads(self, tmp_path: Path, change: str) -> None:
        made = Set(tmp_path / "set", FORMATS["canonical"], LONG, image=40_000)
        made.change(CHANGES[change])
        for way, read in READ.items():
            for fields in (None, ["cls", "json", "txt"]):
                if way != "key":
                    with pytest.raises(DataError) as caught:
                        print(way, read(made.manifest, fields))
                    assert caught.value.code == "changed", way

    def test_a_large_payload_that_shrank(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", FORMATS["canonical"], image=40_000)
        made.change(
            lambda some: [(name, data[:39_990]) if "jpg" in name else (name, data) for name, data in some]
        )
        for way, read in READ.items():
            for fields in (None, ["jpg"]):
                with pytest.raises(DataError) as caught:
                    print(way, read(made.manifest, fields))
                assert caught.value.code == "changed", way

    def test_batches_of_raw_bytes_that_cross_processes(self, made: Set) -> None:
        pytest.importorskip("torch")
        made.change(label)
        with pytest.raises(DataError, match="is not what the index says"):
            batches(WebDataset(made.manifest).to_tuple("jpg", "cls").batched(8))

    def test_an_expression_over_payloads(self, made: Set) -> None:
        """Sample 27 is of class 7 for the index, and of class 12 as it is."""
        made.change(lambda members: label(members))
        for read in (
            lambda: len(WebDataset(made.manifest, where="cls == 1")),
            lambda: IndexedDataset(made.manifest, where="cls == 7"),
            lambda: IndexedDataset(made.manifest).select("cls == 1"),
        ):
            with pytest.raises(DataError) as caught:
                read()
            assert (caught.value.code, caught.value.shard) == ("changed", made.changed)

    def test_a_field_that_nobody_asks_for_may_be_another(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(grown)
        assert IndexedDataset(made.manifest, fields=["cls"])[CHANGED]["cls"] == b"7"

    def test_skip_counts_it(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(label)
        data = WebDataset(made.manifest, on_error="skip", shuffle="none")
        with pytest.warns(UserWarning, match="left out"):
            assert len(list(data)) == COUNT - 1
        assert data.stats()["dropped"] == {made.changed: {"read: changed": 1}}


def test_tar_of_makes_what_the_cases_need() -> None:
    assert tar_of([("a.txt", b"1")]) != tar_of([("a.txt", b"1")], **FORMATS["webdataset"])
