"""One walk through a shard: by index, by scan and by salvage, of files and of streams, with the same samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from shard_cases import numbered, tar_of, wds

from wdscli.errors import DataError
from wdscli.selection import Selection, Walk
from wdscli.selection.reading import MemberReader, Salvage
from wdscli.shards.proof import scan_index
from wdscli.shards.reading import index_batches
from wdscli.storage import open_source
from wdscli.tar import core

OPTIONS: list[dict[str, Any]] = [
    {},
    {"where": "cls == 3"},
    {"keys": ["n002", "n005"]},
    {"slice": "1:9:3"},
    {"limit": 2},
    {"where": "cls > 1", "limit": 3},
    {"sample": "50%"},
]


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of([member for sample in numbered(12, "n") for member in sample]))
    return str(path)


def walked(address: str, road: str, **options: Any) -> tuple[list[bytes], list[bytes], dict[str, int]]:
    """The selected keys, a payload of each, and what was dropped."""
    selection = Selection.parse(**options)
    state, dropped = selection.new_state(), dict[str, int]()
    keys, read = list[bytes](), list[bytes]()
    with open_source(address) as source:
        payloads = MemberReader(source, selection.payload_fields | {b"cls"}, by_index=road == "index")
        salvage = Salvage(lambda error: None, dropped) if road == "salvage" else None
        indexed = None
        if road == "index":
            builder, ignored = scan_index(source)
            indexed = index_batches(builder.index(address, source.size or 0, ignored))
        for batch, rows in Walk(selection, state, payloads, ignored=Counter[str](), salvage=salvage).chosen(
            indexed
        ):
            keys += [batch.keys[row] for row in rows]
            read += [payloads(row, b"cls") for row in rows]
    return keys, read, {**state.dropped, **dropped}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_road_gives_the_same_samples(shard: str, options: dict[str, Any]) -> None:
    expected = walked(shard, "scan", **options)
    assert expected[0]
    for address, road in [
        (shard, "index"),
        (shard, "salvage"),
        (f"pipe:cat {shard}", "scan"),
        (f"pipe:cat {shard}", "salvage"),
    ]:
        assert walked(address, road, **options) == expected, (address, road)


def test_payloads_of_a_damaged_stream_are_looked_into(shard: str) -> None:
    """`ls --on-error skip --where` ended at the damage if it read standard input."""
    data = bytearray(Path(shard).read_bytes())
    data[data.index(b"n003.")] ^= 1
    Path(shard).write_bytes(data)
    by_file = wds("ls", shard, "--where", "cls >= 0", "--on-error", "skip")
    by_stream = wds("ls", "-", "--where", "cls >= 0", "--on-error", "skip", stdin=bytes(data))
    assert by_file.out == by_stream.out
    assert by_file.out.count(b"\n") >= 10


@pytest.mark.parametrize("road", ["scan", "salvage"])
def test_unsafe_names_of_a_walk(tmp_path: Path, road: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of([("a.txt", b"1"), ("../b.txt", b"2"), ("c.txt", b"3")]))
    selection, dropped = Selection(), dict[str, int]()
    salvage = Salvage(lambda error: None, dropped) if road == "salvage" else None
    with open_source(str(path)) as source:
        payloads = MemberReader(source, frozenset())
        walk = Walk(selection, selection.new_state(), payloads, salvage=salvage, checks_names=True)
        if salvage is None:
            with pytest.raises(DataError, match="unsafe name"):
                list(walk.chosen())
            return
        keys = [batch.keys[row] for batch, rows in walk.chosen() for row in rows]
    assert (keys, dropped) == ([b"a", b"c"], {"unsafe-name": 1})


@pytest.mark.parametrize("has_descriptor", [True, False])
@pytest.mark.parametrize("has_core", [True, False])
def test_payloads_of_an_index_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_descriptor: bool, has_core: bool
) -> None:
    if not has_core:
        monkeypatch.setattr(core, "CORE", None)
    expected = [b"%d" % number * (number % 7) for number in range(600)]
    # A name of more than 100 bytes has an unusual header.
    names = [f"n{number:04}" + "x" * 150 * (number == 99) for number in range(600)]
    path = tmp_path / "a.tar"
    path.write_bytes(
        tar_of([(f"{name}.txt", payload) for name, payload in zip(names, expected, strict=True)])
    )
    with open_source(str(path)) as source:
        builder, ignored = scan_index(source)
        [batch] = index_batches(builder.index(str(path), source.size or 0, ignored))
    data = bytearray(path.read_bytes())
    data[data.index(b"n0300.txt")] = ord("m")
    path.write_bytes(data)
    reads = []
    with open_source(str(path)) as source:
        if not has_descriptor:
            source.fd = None
        original = source.read_at
        monkeypatch.setattr(
            source, "read_at", lambda offset, length: reads.append(offset) or original(offset, length)
        )
        reader = MemberReader(source, frozenset({b"txt"}), by_index=True)
        reader.batch = batch
        reader.request(reader.fields, range(600))
        for row in range(600):
            if row == 300:
                with pytest.raises(DataError, match="stale"):
                    reader(row, b"txt")
            else:
                assert reader(row, b"txt") == expected[row]
        assert len(reads) < 40
        reads.clear()
        # Without a request, and after a jump, only the requested payloads are read.
        assert reader(20, b"txt") == expected[20]
        assert len(reads) <= 1
