"""Shards that break in the middle of an epoch: raised by name, skipped, or another sample given; always counted."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import warnings
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from loader_cases import Cls, World, make_set
from shard_cases import tar_of

import wdscli.loader as wds
from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.loader.dataset import PositionDataset
from wdscli.shards.proof import scan_index
from wdscli.storage import open_source

BROKEN = "in-000003.tar"
LOST = set(range(39, 52))
FIELDS = [("bin", bytes(10)), ("cls", b"77")]
"""The numbers in the broken shard."""
pytestmark = pytest.mark.filterwarnings("ignore:skipped")


def cut(path: Path) -> None:
    os.truncate(path, 20 * 512 + 100)


def garble(path: Path) -> None:
    """Other bytes, as many."""
    path.write_bytes(b"\xa5" * path.stat().st_size)


def replace(path: Path) -> None:
    """A shard of the same size, as good as any, with other samples."""
    members = [(f"m{number:04d}.{field}", payload) for number in LOST for field, payload in FIELDS]
    path.write_bytes(tar_of(members)[: path.stat().st_size])


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


BREAKS: list[tuple[Callable[[Path], None], type[WdsError], str]] = [
    (cut, DataError, "truncated"),
    (garble, DataError, "not-a-tar"),
    (replace, DataError, "changed"),
    (Path.unlink, InputError, "unreadable"),
    (unreadable, InputError, "unreadable"),
]
NAMES = ["cut", "garbled", "replaced", "vanished", "a folder"]


def data(folder: Path, batch: int = 6, world: int = 1, rank: int = 0, **how: Any) -> PositionDataset:
    how = {"shuffle": "window", "window": 3, "seed": 1, "tail": "uneven", **how}
    made = wds.WebDataset(f"{folder}/in-manifest.json", rank=rank, world_size=world, **how)
    return made.map(Cls()).listed(batch // world)


@pytest.fixture
def whole(tmp_path: Path) -> list[list[int]]:
    make_set(tmp_path)
    return list(data(tmp_path))


@pytest.mark.parametrize(("breaks", "kind", "reason"), BREAKS, ids=NAMES)
def test_raise_names_the_shard_and_keeps_what_came_before(
    tmp_path: Path, whole: list[list[int]], breaks: Any, kind: type[WdsError], reason: str
) -> None:
    broken = data(tmp_path)
    breaks(tmp_path / BROKEN)
    first = next(number for number, batch in enumerate(whole) if LOST & set(batch))
    source, given = iter(broken), []
    with pytest.raises(kind, match=BROKEN):
        for batch in source:
            given.append(batch)
    assert given == whole[:first]
    state = broken.state_dict()
    assert state["next"] == first
    # Repaired, it goes on there.
    other_folder = tmp_path / "again"
    make_set(other_folder)
    again = data(other_folder)
    again.load_state_dict(state)
    assert list(again) == whole[first:]


@pytest.mark.parametrize(("breaks", "kind", "reason"), BREAKS, ids=NAMES)
def test_skip_makes_batches_smaller_and_moves_nothing(
    tmp_path: Path, whole: list[list[int]], breaks: Any, kind: type[WdsError], reason: str
) -> None:
    breaks(tmp_path / BROKEN)
    broken = data(tmp_path, on_error="skip")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        given = list(broken)
    assert given == [[one for one in batch if one not in LOST] for batch in whole]
    assert broken.stats()["dropped"] == {str(tmp_path / BROKEN): {f"read: {reason}": len(LOST)}}
    [warning] = [one for one in warned if "skipped" in str(one.message)]
    assert BROKEN in str(warning.message)


@pytest.mark.parametrize(("breaks", "kind", "reason"), BREAKS, ids=NAMES)
def test_substitute_gives_another_sample_which_is_the_same_for_any_world(
    tmp_path: Path,
    whole: list[list[int]],
    breaks: Any,
    kind: type[WdsError],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaks(tmp_path / BROKEN)
    broken = data(tmp_path, on_error="substitute")
    given = list(broken)
    assert [len(batch) for batch in given] == [len(batch) for batch in whole]
    line = [one for batch in whole for one in batch]
    for position, (had, got) in enumerate(zip(line, [one for batch in given for one in batch])):
        steps = [0] + [2**step for step in range(7)]
        others = [line[(position + step) % len(line)] for step in steps]
        assert got == (had if had not in LOST else next(one for one in others if one not in LOST))
    assert broken.stats()["dropped"] == {str(tmp_path / BROKEN): {f"read: {reason}": len(LOST)}}
    for world, workers in ((2, 0), (3, 2)):

        def make(rank: int, world_size: int) -> PositionDataset:
            return data(tmp_path, world=world_size, rank=rank, on_error="substitute", tail="drop")

        assert World(monkeypatch, world, workers).batches(make) == given[:16]


def test_only_the_samples_that_are_broken_are_left_out(tmp_path: Path, whole: list[list[int]]) -> None:
    """One header in a shard is bad; the samples that are read with it are fine."""
    path = tmp_path / BROKEN
    content = bytearray(path.read_bytes())
    at = content.index(b"n0042.bin")
    content[at : at + 5] = b"x0042"
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    broken = data(tmp_path, on_error="skip")
    assert sorted(one for batch in broken for one in batch) == [one for one in range(101) if one != 42]
    assert broken.stats()["dropped"] == {str(path): {"read: changed": 1}}


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_shard_that_is_cut_while_it_is_open(tmp_path: Path, size: int) -> None:
    """Its descriptor stays, its bytes go."""
    make_set(tmp_path, count=150, max_count=150, size=size)
    one = wds.WebDataset(f"{tmp_path}/in-manifest.json", on_error="skip", prefetch=0).map(Cls()).listed(1)
    source = iter(one)
    given = [next(source)[0]]
    os.truncate(tmp_path / "in-000000.tar", (tmp_path / "in-000000.tar").stat().st_size // 2)
    given += [batch[0] for batch in source]
    assert given == list(range(len(given)))
    assert len(given) + sum(one.stats()["dropped"].get(f"{tmp_path}/in-000000.tar", {}).values()) == 150
    if size == 100_000:
        assert len(given) < 150


def test_a_shard_that_vanishes_or_changes_between_epochs(tmp_path: Path, whole: list[list[int]]) -> None:
    broken = data(tmp_path, on_error="skip")
    assert list(broken) == whole
    kept = data(tmp_path)
    kept.set_epoch(1)
    second = list(kept)
    (tmp_path / BROKEN).unlink()
    assert list(broken) == [[one for one in batch if one not in LOST] for batch in second]
    make_set(tmp_path / "other", count=101, size=20)
    os.replace(tmp_path / "other" / BROKEN, tmp_path / BROKEN)
    third = list(broken)
    assert not LOST & {one for batch in third for one in batch}
    assert broken.stats()["dropped"][str(tmp_path / BROKEN)] == {"read: changed": 13, "read: unreadable": 13}
    strict = data(tmp_path)
    with pytest.raises(DataError, match="manifest"):
        list(strict)


def test_nothing_can_be_substituted_when_nothing_can_be_read(tmp_path: Path) -> None:
    make_set(tmp_path)
    for path in tmp_path.glob("in-*.tar"):
        path.unlink()
    with pytest.raises(DataError, match="found no readable sample"):
        list(data(tmp_path, on_error="substitute"))
    assert [batch for batch in data(tmp_path, on_error="skip") if batch] == []


def test_handlers_of_webdataset_decide_too(tmp_path: Path, whole: list[list[int]]) -> None:
    (tmp_path / BROKEN).unlink()
    ignoring = data(tmp_path, handler=wds.ignore_and_continue)
    assert list(ignoring) == [[one for one in batch if one not in LOST] for batch in whole]
    assert sum(ignoring.stats()["dropped"][str(tmp_path / BROKEN)].values()) == len(LOST)
    first = next(number for number, batch in enumerate(whole) if LOST & set(batch))
    before = list(takewhile(lambda one: one not in LOST, whole[first]))
    assert before
    for threads in (1, 3):
        stopping = data(tmp_path, handler=wds.ignore_and_stop, threads=threads)
        assert list(stopping) == [*whole[:first], before]


def test_a_policy_has_one_of_three_names(tmp_path: Path) -> None:
    make_set(tmp_path)
    with pytest.raises(UsageError, match="on_error='ignore' is not one of"):
        data(tmp_path, on_error="ignore")


def test_an_error_survives_the_way_between_processes(tmp_path: Path, whole: list[list[int]]) -> None:
    (tmp_path / BROKEN).unlink()
    with pytest.raises(InputError) as caught:
        list(data(tmp_path))
    assert BROKEN in str(pickle.loads(pickle.dumps(caught.value)))


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_of_workers_reach_the_main_process(
    tmp_path: Path, whole: list[list[int]], workers: int
) -> None:
    pytest.importorskip("torch")
    (tmp_path / BROKEN).unlink()
    loader = wds.WebLoader(data(tmp_path, on_error="skip"), num_workers=workers, collate_fn=list)
    for epochs in (1, 2):
        given = [one for batch in loader for one in batch]
        assert len(given) == 101 - len(LOST)
        assert loader.stats()["dropped"] == {str(tmp_path / BROKEN): {"read: unreadable": epochs * len(LOST)}}
    with pytest.raises(WdsError, match=BROKEN):
        data(tmp_path)


UNDECODABLE = {3, 17, 18, 40, 41, 42, 77, 100}


def write_undecodable(folder: Path, prefix: str = "in") -> str:
    """101 samples of a number each; some have broken JSON."""
    with wds.ShardWriter(f"{folder}/{prefix}-%06d.tar", maxcount=13) as writer:
        for number in range(101):
            payload = b"{" if number in UNDECODABLE else b"{}"
            writer.write({"__key__": f"{prefix}{number:03d}", "cls": number, "json": payload})
    return f"{folder}/{prefix}-manifest.json"


def decoded(address: Any, batch: int = 6, world: int = 1, rank: int = 0, **how: Any) -> PositionDataset:
    how = {"shuffle": "window", "window": 3, "seed": 1, "tail": "uneven", "on_error": "substitute", **how}
    made = wds.WebDataset(address, rank=rank, world_size=world, **how)
    return made.decode().map(Number()).listed(batch // world)


class Number:
    def __call__(self, sample: Any) -> int:
        return int(sample["cls"])


class TestUndecodable:
    def test_another_is_given_and_it_is_counted_once(self, tmp_path: Path) -> None:
        address = write_undecodable(tmp_path)
        plain = wds.WebDataset(address, window=3, seed=1, shuffle="window")
        line = [int(one["cls"]) for one in plain.decode(only="cls")]
        for threads in (1, 3):
            data = decoded(address, threads=threads)
            given = [one for batch in data for one in batch]
            for position, (had, got) in enumerate(zip(line, given, strict=True)):
                others = [line[(position + 2**step) % len(line)] for step in range(7)]
                wanted = next(one for one in [had, *others] if one not in UNDECODABLE)
                assert got == wanted
            dropped = [reasons for _, reasons in sorted(data.stats()["dropped"].items())]
            assert sum(reasons["decode: DataError"] for reasons in dropped) == len(UNDECODABLE)

    def test_the_same_for_any_world_and_behind_a_resume(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = write_undecodable(tmp_path)
        given = list(decoded(address))
        for world, workers in ((2, 0), (3, 2)):

            def make(rank: int, world_size: int) -> PositionDataset:
                return decoded(address, world=world_size, rank=rank, tail="drop")

            assert World(monkeypatch, world, workers).batches(make) == given[:16]
        later = decoded(address)
        begun = iter(decoded(address))
        for _ in range(4):
            next(begun)
        later.load_state_dict({**decoded(address).state_dict(), "next": 4})
        assert list(later) == given[4:]

    def test_where_the_shard_is_broken_too(self, tmp_path: Path) -> None:
        address = write_undecodable(tmp_path)
        cut(tmp_path / BROKEN)
        data = decoded(address)
        given = [one for batch in data for one in batch]
        assert len(given) == 101
        assert not set(given) & (UNDECODABLE | LOST)
        counted = [n for reasons in data.stats()["dropped"].values() for n in reasons.values()]
        assert sum(counted) == len(UNDECODABLE | LOST)

    @pytest.mark.parametrize("per", ["sample", "batch"])
    def test_in_a_mix_it_is_of_the_same_set(self, tmp_path: Path, per: Any) -> None:
        address = write_undecodable(tmp_path, "x")
        good = make_set(tmp_path / "good", count=40)
        sets = {
            "x": (wds.WebDataset(address, on_error="substitute", shuffle="window").decode(), 3),
            "good": (wds.WebDataset(good).decode(), 1),
        }
        if per == "batch":
            sets = {name: (one.listed(4), weight) for name, (one, weight) in sets.items()}
        data = wds.mix(sets, per=per, label="set").with_epoch(20 if per == "batch" else 80)
        items = list(data)
        samples = items if per == "sample" else [one for batch in items for one in batch]
        assert len(samples) == 80
        assert [one["set"] for one in samples].count("x") == 60
        assert not {one["cls"] for one in samples if one["set"] == "x"} & UNDECODABLE
        assert all(one["__key__"].startswith("x") for one in samples if one["set"] == "x")

    def test_in_a_table(self, tmp_path: Path) -> None:
        table = wds.IndexedDataset(write_undecodable(tmp_path), on_error="substitute").decode()
        assert table[17]["cls"] == 19
        assert [one["cls"] for one in table.__getitems__([2, 3, 41, 100])] == [2, 4, 43, 0]
        assert sum(n for one in table.stats()["dropped"].values() for n in one.values()) == 4

    def test_none_can_be_decoded(self, tmp_path: Path) -> None:
        with wds.ShardWriter(f"{tmp_path}/in-%06d.tar", maxcount=13) as writer:
            for number in range(5):
                writer.write({"__key__": str(number), "json": b"{"})
        with pytest.raises(DataError, match="found no readable sample") as caught:
            list(wds.WebDataset(str(tmp_path), on_error="substitute").decode())
        assert "cannot decode" in str(caught.value.__cause__)

    def test_a_handler_that_ends_the_epoch_still_does(self, tmp_path: Path) -> None:
        address = write_undecodable(tmp_path)

        def stop(sample: Any) -> Any:
            if sample["cls"] == 20:
                raise ValueError
            return sample["cls"]

        data = wds.WebDataset(address, on_error="substitute").decode().map(stop, handler=wds.ignore_and_stop)
        plain = list(data)
        assert plain == [*range(3), 4, *range(4, 17), 19, 19, 19]
        assert [one for batch in data.listed(6) for one in batch] == plain


def set_with_links(folder: Path) -> str:
    """Four samples; links take the place of members of two of them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("a.jpg", "a.txt", "b.jpg", "b.txt", "c.jpg", "c.txt", "d.jpg", "d.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            if name in ("b.jpg", "c.txt"):
                info.type, info.linkname, info.size = tarfile.LNKTYPE, "a.jpg", 0
            tar.addfile(info, io.BytesIO(b"x"))
    path = folder / "links.tar"
    path.write_bytes(out.getvalue())
    return str(path)


@pytest.mark.parametrize("prefix", ["", "pipe:cat "])
def test_samples_that_lost_a_member_are_left_out_and_counted(tmp_path: Path, prefix: str) -> None:
    address = prefix + set_with_links(tmp_path)
    with pytest.raises(DataError, match="link member"):
        list(wds.WebDataset(address))
    loader = wds.WebDataset(address, on_error="skip")
    assert [(sample["__key__"], len(sample)) for sample in loader] == [("a", 4), ("d", 4)]
    assert loader.stats()["dropped"] == {address: {"read: link": 2}}


def test_a_table_counts_samples_that_lost_a_member(tmp_path: Path) -> None:
    address = set_with_links(tmp_path)
    table = wds.IndexedDataset(address, on_error="skip")
    assert [sample["__key__"] for sample in table] == ["a", "d"]
    assert table.stats()["dropped"] == {address: {"read: link": 2}}


def separated(folder: Path, name: str = "i.tar") -> str:
    """A shard of four half samples and a whole one, as GNU tar writes it if the files are named in this order."""
    members = [
        ("0.png", b"p"),
        ("1.png", b"p"),
        ("2.png", b"p"),
        ("2.txt", b"t"),
        ("0.txt", b"t"),
        ("1.txt", b"t"),
    ]
    (folder / name).write_bytes(tar_of(members))
    return str(folder / name)


class TestSamplesInParts:
    """Commands refuse a shard whose samples are in several parts; the loader read each part as a sample."""

    ERROR = r'the key comes back with other fields in sample "0" in .*i\.tar at byte 4096'

    @pytest.mark.parametrize("kind", [wds.WebDataset, wds.IndexedDataset])
    def test_they_are_an_error(self, tmp_path: Path, kind: Any) -> None:
        with pytest.raises(DataError, match=self.ERROR) as caught:
            kind(separated(tmp_path))
        assert caught.value.code == "interleaved-key"
        assert "wds repair" in (caught.value.hint or "")

    @pytest.mark.parametrize("kind", [wds.WebDataset, wds.IndexedDataset])
    def test_skip_counts_all_parts(self, tmp_path: Path, kind: Any) -> None:
        shard = separated(tmp_path)
        data = kind(shard, on_error="skip")
        assert [(sample["__key__"], len(sample) - 2) for sample in data] == [("2", 2)]
        assert data.stats()["dropped"] == {shard: {"read: interleaved-key": 4}}

    @pytest.mark.parametrize("kind", [wds.WebDataset, wds.IndexedDataset])
    def test_an_index_is_no_excuse(self, tmp_path: Path, kind: Any) -> None:
        """Any tool may write an index and a wids manifest of such a shard."""
        shard = separated(tmp_path)
        with open_source(shard) as source:
            builder, ignored = scan_index(source)
            data = builder.to_bytes(shard="i.tar", size=source.size, ignored=ignored)
        (tmp_path / ".wds").mkdir()
        (tmp_path / ".wds" / "i.tar.wdx").write_bytes(data)
        with pytest.raises(DataError, match=self.ERROR):
            kind(shard)
        manifest = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "shardlist": [{"url": "i.tar", "nsamples": 5}],
        }
        (tmp_path / "i.json").write_text(json.dumps(manifest))
        with pytest.raises(DataError, match=self.ERROR):
            list(kind(f"{tmp_path}/i.json"))

    @pytest.mark.parametrize("how", ["pipe:cat {}", "gz", "pipeline"])
    def test_streams(self, tmp_path: Path, how: str) -> None:
        shard = separated(tmp_path)
        address = how.format(shard)
        if how == "gz":
            address = shard + ".gz"
            Path(address).write_bytes(gzip.compress(Path(shard).read_bytes()))
        if how == "pipeline":
            stages = wds.SimpleShardList([shard]), wds.split_by_worker, wds.tarfile_to_samples()
            with pytest.raises(DataError, match="the key comes back with other fields"):
                list(wds.DataPipeline(*stages))
            return
        with pytest.raises(DataError, match="the key comes back with other fields"):
            list(wds.WebDataset(address))
        data = wds.WebDataset(address, on_error="skip")
        assert [(sample["__key__"], len(sample) - 2) for sample in data] == [("0", 1), ("1", 1), ("2", 2)]
        assert data.stats()["dropped"] == {address: {"read: interleaved-key": 2}}

    def test_a_repeated_key_is_another_sample(self, tmp_path: Path) -> None:
        """A set may hold a sample twice, as webdataset reads it."""
        members = [("0.png", b"p"), ("0.txt", b"t"), ("1.png", b"p"), ("0.png", b"q"), ("0.json", b"{}")]
        (tmp_path / "r.tar").write_bytes(tar_of(members))
        assert [sample["__key__"] for sample in wds.WebDataset(str(tmp_path / "r.tar"))] == ["0", "1", "0"]
