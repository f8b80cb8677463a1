"""Reading ahead, stages in threads, batches of raw bytes between processes, and where the time is said to have gone."""

from __future__ import annotations

import copy
import functools
import io
import os
import pickle
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest

import wdscli.loader as wds
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.source import EpochReader, PositionSource
from wdscli.loader.place.ranks import Batches, Share
from wdscli.loader.read import reading
from wdscli.loader.read.fetch import METER
from wdscli.loader.stages.shared_memory import SHARED_FROM_BYTES, Packed
from wdscli.shards import ShardWriter
from wdscli.storage.ends import PIECE_BYTES
from wdscli.tar import core

Samples = list[tuple[str, dict[str, bytes]]]


class Slow(PositionSource, EpochReader):
    """A source of ``length`` positions whose reads wait. Position ``broken`` raises."""

    def __init__(self, length: int, broken: int = -1, size: int = 1000, waits: bool = True) -> None:
        self._length, self._broken, self.size, self.waits = length, broken, size, waits
        self.calls: list[tuple[str, list[int]]] = []
        self.closed = 0

    def identity(self) -> dict[str, Any]:
        return {"slow": self._length}

    def length(self, epoch: int) -> int:
        return self._length

    def reader(self, epoch: int) -> Slow:
        return self

    def read(self, positions: Any) -> list[Any]:
        assert not self.closed
        self.calls.append((threading.current_thread().name, positions.tolist()))
        if self._broken in positions:
            raise InputError("the server has gone")
        METER.add(self.size * len(positions))
        return [{"__key__": str(at), "number": at} for at in positions.tolist()]

    def close(self) -> None:
        self.closed += 1


@functools.cache
def before() -> frozenset[threading.Thread]:
    """The threads that were there when the first test of this file began."""
    return frozenset(threading.enumerate())


@pytest.fixture(autouse=True, scope="module")
def threads_before() -> None:
    before()


def of_ours() -> set[str]:
    """Names of our threads, but those that wait for stores: a process that has read from one keeps them; and those
    that tests of other files have left."""
    names = {
        one.name for one in threading.enumerate() if one.name.startswith("wdscli-") and one not in before()
    }
    return {name for name in names if not name.startswith("wdscli-ranges")}


def numbers(items: Iterator[Any]) -> list[int]:
    return [item["number"] for item in items]


class TestAhead:
    @pytest.mark.parametrize("prefetch", [0, 1, "10kB", "256MB"])
    def test_what_comes_is_the_same(self, prefetch: str | int) -> None:
        assert numbers(iter(PositionDataset(Slow(500), prefetch=prefetch))) == list(range(500))

    def test_batches_too(self) -> None:
        data = PositionDataset(Slow(10), rank=1, world_size=2, tail="uneven").listed(3)
        assert [numbers(iter(batch)) for batch in data] == [[1, 3, 5], [7, 9]]

    def test_a_thread_reads_where_reads_wait(self) -> None:
        source = Slow(500)
        list(PositionDataset(source))
        assert {name for name, _ in source.calls} == {"wdscli-ahead"}

    def test_no_thread_for_what_is_at_hand(self) -> None:
        source = Slow(500, waits=False)
        list(PositionDataset(source))
        assert {name for name, _ in source.calls} == {"MainThread"}

    def test_no_thread_without_a_budget(self) -> None:
        source = Slow(500)
        list(PositionDataset(source, prefetch=0))
        assert {name for name, _ in source.calls} == {"MainThread"}

    def test_a_thread_takes_over_when_reads_turn_out_to_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading.Watch, "has_waited", property(lambda watch: True))
        source = Slow(2000, waits=False, size=100_000)
        assert numbers(iter(PositionDataset(source))) == list(range(2000))
        names = [name for name, _ in source.calls]
        assert names[:2] == ["MainThread", "MainThread"]
        assert set(names[2:]) == {"wdscli-ahead"}

    def test_an_exception_comes_out_at_its_place(self) -> None:
        source = Slow(500, broken=150)
        data, found = PositionDataset(source), []
        with pytest.raises(InputError, match="gone"):
            for item in data:
                found.append(item["number"])
                if len(found) == 1:
                    time.sleep(0.05)  # the thread has met the error by now
        first_of_block = next(positions[0] for _, positions in source.calls if 150 in positions)
        assert found == list(range(first_of_block))
        assert data.state_dict()["batch"] == 1
        assert not of_ours()

    def test_the_state_is_of_what_was_given(self) -> None:
        data = PositionDataset(Slow(500))
        items = iter(data)
        for _ in range(7):
            next(items)
        time.sleep(0.05)
        state = data.state_dict()
        items.close()  # type: ignore[attr-defined]
        again = PositionDataset(Slow(500))
        again.load_state_dict(state)
        assert numbers(iter(again))[0] == 7

    def test_leaving_early_ends_the_thread_before_the_reader_is_closed(self) -> None:
        source = Slow(100_000)
        items = iter(PositionDataset(source))
        next(items)
        assert "wdscli-ahead" in of_ours()
        items.close()  # type: ignore[attr-defined]
        assert not of_ours()
        assert source.closed == 1

    def test_the_budget_bounds_what_is_held(self) -> None:
        source = Slow(10_000, size=1000)
        items = iter(PositionDataset(source, prefetch=200_000))
        next(items)
        time.sleep(0.1)
        read = sum(len(positions) for _, positions in source.calls)
        # A budget of 200 samples; one block more than it may be on its way.
        assert 100 <= read <= 300
        items.close()  # type: ignore[attr-defined]

    def test_what_is_too_large_for_the_budget_comes_one_by_one(self) -> None:
        source = Slow(10, size=1_000_000)
        assert numbers(iter(PositionDataset(source, prefetch=10).listed(1).unlisted())) == list(range(10))

    def test_remote_shards_are_read_ahead(self) -> None:
        pytest.importorskip("fsspec")
        with ShardWriter("memory://ahead/in-%d.tar", max_count=40) as writer:
            for number in range(100):
                writer.write(f"n{number:03d}", {"cls": b"%d" % number})
        data = wds.WebDataset("memory://ahead/in-manifest.json", shuffle="window")
        seen, found = set(), []
        for item in data:
            seen |= of_ours()
            found.append(int(item["cls"]))
        assert any(name.startswith("wdscli-fetch") for name in seen)
        plain = wds.WebDataset("memory://ahead/in-manifest.json", shuffle="window", prefetch=0)
        assert found == [int(item["cls"]) for item in plain]
        assert sorted(found) == list(range(100))
        assert not of_ours()

    def test_a_size_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="not a size"):
            PositionDataset(Slow(1), prefetch="much")
        for none in (None, -1, 1.5):
            with pytest.raises(UsageError, match="prefetch="):
                PositionDataset(Slow(1), prefetch=none)  # type: ignore[arg-type]


class TestAgenda:
    def test_blocks_grow_to_about_a_size(self) -> None:
        agenda = reading.Agenda(Batches(100_000, 1, Share()), range(100_000))
        sizes = []
        while (block := agenda.next()) is not None:
            sizes.append(len(block.positions))
            agenda.learn(len(block.positions), 1000 * len(block.positions))
        assert (sizes[0], max(sizes)) == (reading.FIRST_SAMPLES, reading.BLOCK_SAMPLES)
        assert sum(sizes) == 100_000

    def test_blocks_of_large_samples_are_short(self) -> None:
        agenda = reading.Agenda(Batches(1000, 1, Share()), range(1000))
        block = agenda.next()
        assert block is not None
        agenda.learn(len(block.positions), 1_000_000 * len(block.positions))
        block = agenda.next()
        assert block is not None
        assert len(block.positions) == reading.BLOCK_BYTES // 1_000_000

    @pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
    @pytest.mark.parametrize("world", [1, 3])
    def test_several_batches_are_the_batches(self, tail: Any, world: int) -> None:
        for rank in range(world):
            batches = Batches(50, 4, Share(rank, world, 0, 2), tail)
            some = range(1, batches.total, 2)
            positions, counts = batches.several(some)
            each = [batches.positions(number).tolist() for number in some]
            assert positions.tolist() == [place for places in each for place in places]
            assert counts == list(map(len, each))


class TestThreads:
    def data(self, function: Any, threads: int, length: int = 40) -> Any:
        return PositionDataset(Slow(length, waits=False), threads=threads).map(function)

    @pytest.mark.parametrize("batch", [None, 1, 7])
    def test_order_is_kept(self, batch: int | None) -> None:
        def late(item: Any) -> int:
            time.sleep(random.random() / 500)
            return int(item["number"])

        data = self.data(late, 4)
        data = data if batch is None else data.listed(batch).unlisted()
        assert list(data) == list(range(40))
        assert not of_ours()

    def test_they_run_at_the_same_time(self) -> None:
        together = threading.Barrier(4)

        def meet(item: Any) -> int:
            together.wait(timeout=10)
            return int(item["number"])

        assert list(self.data(meet, 4)) == list(range(40))

    def test_one_thread_is_this_one(self) -> None:
        assert set(self.data(lambda item: threading.current_thread().name, 1)) == {"MainThread"}

    def test_an_exception_comes_out_at_its_place(self) -> None:
        def fail(item: Any) -> int:
            if item["number"] == 11:
                raise ValueError("eleven")
            return int(item["number"])

        data, found = self.data(fail, 3), []
        with pytest.raises(ValueError, match="eleven"):
            for item in data:
                found.append(item)
        assert found == list(range(11))
        assert data.state_dict()["batch"] == 1
        assert not of_ours()

    def test_a_handler_drops_and_stops(self) -> None:
        def fail(item: Any) -> int:
            if item["number"] in (3, 11):
                raise ValueError("no")
            return int(item["number"])

        source = Slow(40, waits=False)
        dropping = PositionDataset(source, threads=3).map(fail, handler=wds.ignore_and_continue)
        assert list(dropping) == [number for number in range(40) if number not in (3, 11)]
        stopping = PositionDataset(Slow(40, waits=False), threads=3).map(fail, handler=wds.ignore_and_stop)
        assert list(stopping.listed(5)) == list(
            PositionDataset(Slow(40, waits=False)).map(fail, handler=wds.ignore_and_stop).listed(5)
        )

    def test_samples_of_large_batches_are_handed_over_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They come in order, up to an error among them, and handlers have the same say."""
        calls = []
        submit = ThreadPoolExecutor.submit

        def counted(*arguments: Any) -> Any:
            calls.append(arguments)
            return submit(*arguments)

        def fail(item: Any) -> int:
            if item["number"] in (130, 171):
                raise ValueError(f"number {item['number']}")
            return int(item["number"])

        monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
        assert list(self.data(lambda item: item["number"], 3, 300).listed(100).unlisted()) == list(range(300))
        assert len(calls) < 60
        data, found = self.data(fail, 3, 300).listed(100), []
        with pytest.raises(ValueError, match="number 130"):
            for batch in data:
                found.append(batch)
        assert found == [list(range(100))]
        for handler in (wds.ignore_and_continue, wds.ignore_and_stop):
            several, one = (
                PositionDataset(Slow(300, waits=False), threads=threads)
                .map(fail, handler=handler)
                .listed(100)
                for threads in (3, 1)
            )
            assert list(several) == list(one)

    def test_leaving_early_ends_them(self) -> None:
        items = iter(self.data(lambda item: item["number"], 3, 10_000))
        assert [next(items), next(items)] == [0, 1]
        items.close()
        assert not of_ours()

    def test_none_is_refused(self) -> None:
        with pytest.raises(UsageError, match="threads=0"):
            PositionDataset(Slow(1), threads=0)


class TestPacked:
    values: ClassVar = [b"ab", b"", b"cde", bytes(range(256))]

    @pytest.fixture(params=["parts", "buffer"])
    def column(self, request: pytest.FixtureRequest) -> Packed:
        column = Packed(self.values)
        return column if request.param == "parts" else pickle.loads(pickle.dumps(column))

    def test_is_a_sequence_of_bytes(self, column: Packed) -> None:
        assert len(column) == 4
        assert list(column) == self.values
        assert [column[number] for number in range(-4, 4)] == self.values * 2
        assert column[1:] == self.values[1:]
        assert column == self.values
        assert column == Packed(self.values)
        assert column != self.values[:3]
        assert column != self.values[::-1]
        assert list(reversed(column)) == self.values[::-1]
        assert b"cde" in column
        assert b"x" not in column
        assert {type(value) for value in column} == {bytes}
        with pytest.raises(IndexError):
            column[4]

    def test_has_one_buffer(self, column: Packed) -> None:
        assert bytes(column.buffer) == b"".join(self.values)
        assert column.offsets == [0, 2, 2, 5, 261]
        assert [bytes(column.view(number)) for number in range(4)] == self.values
        assert isinstance(column.view(-1), memoryview)
        with pytest.raises(IndexError):
            column.view(4)
        assert repr(column) == "<Packed: 4 values, 261 bytes>"

    def test_copies(self, column: Packed) -> None:
        assert copy.copy(column) == self.values
        assert pickle.loads(pickle.dumps(column)) == self.values

    def test_nothing_packed(self) -> None:
        assert list(pickle.loads(pickle.dumps(Packed([])))) == []

    def test_a_pickle_is_small(self) -> None:
        values = [b"x"] * 1000
        assert len(pickle.dumps(Packed(values))) < 10_000

    def test_as_a_collation(self, tmp_path: Path) -> None:
        data = wds.WebDataset(written(tmp_path, 5)).to_tuple("cls", "bin").batched(3, wds.packed)
        first, second = data
        assert isinstance(first[0], Packed)
        assert list(first[0]) == [b"0", b"1", b"2"]
        assert list(second[0]) == [b"3", b"4"]

    def test_lists_where_nothing_travels(self, tmp_path: Path) -> None:
        [batch] = wds.WebDataset(written(tmp_path, 5)).batched(5)
        assert type(batch["bin"]) is list


def written(folder: Path, count: int, size: int = 10, shards: int = 2) -> str:
    """A set with a number and ``size`` bytes of the number's own a sample."""
    with ShardWriter(f"{folder}/in-%d.tar", max_count=-(-count // shards)) as writer:
        for number in range(count):
            payload = random.Random(number).randbytes(size)
            writer.write(f"n{number:04d}", {"bin": payload, "cls": b"%d" % number})
    return f"{folder}/in-manifest.json"


def widest_pipe(_: Any) -> int:
    """Bytes that the widest pipe of this process holds."""
    from fcntl import F_GETPIPE_SZ, fcntl

    found = [0]
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(fcntl(int(name), F_GETPIPE_SZ))
    return max(found)


def _has_wide_pipes() -> bool:
    """Whether the system gives this user another wide pipe: all pipes of a user have a common limit."""
    from fcntl import F_SETPIPE_SZ, fcntl

    ends = os.pipe()
    try:
        return fcntl(ends[0], F_SETPIPE_SZ, PIECE_BYTES) >= PIECE_BYTES
    except OSError:
        return False
    finally:
        for end in ends:
            os.close(end)


def told(batch: Any) -> Any:
    keys = batch["__key__"]
    return [[*keys], keys[0], keys[1:], keys.index(keys[-1]), "n0000" in keys, len(set(batch["__url__"]))]


class TestWorkers:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("ours", [True, False])
    @pytest.mark.parametrize("size", [10, 100_000])
    def test_raw_batches_are_whole(self, tmp_path: Path, size: int, ours: bool) -> None:
        """Small ones come through a pipe, large ones in shared memory."""
        data = pytest.importorskip("torch.utils.data")
        batches = wds.WebDataset(written(tmp_path, 50, size)).batched(16)
        found = []
        loader = (
            wds.WebLoader(batches, num_workers=2) if ours else data.DataLoader(batches, None, num_workers=2)
        )
        for batch in loader:
            assert type(batch["bin"]) is list
            assert type(batch["__key__"]) is type(batch["__url__"]) is list
            assert batch["__key__"] == [f"n{int(number):04d}" for number in batch["cls"]]
            assert (16 * size >= SHARED_FROM_BYTES) == (size == 100_000)
            for number, payload in zip(batch["cls"], batch["bin"]):
                assert payload == random.Random(int(number)).randbytes(size)
            found += map(int, batch["cls"])
        assert found == list(range(50))

    def test_stages_behind_the_batches_see_what_they_would_see(self, tmp_path: Path) -> None:
        data = pytest.importorskip("torch.utils.data")
        batches = wds.WebDataset(written(tmp_path, 10)).batched(4).map(told)
        assert list(batches) == list(data.DataLoader(batches, batch_size=None, num_workers=2))

    def test_torch_may_make_batches_of_them(self, tmp_path: Path) -> None:
        data = pytest.importorskip("torch.utils.data")
        batches = wds.WebDataset(written(tmp_path, 8)).batched(2)
        first, _ = data.DataLoader(batches, batch_size=2, num_workers=1)
        assert first["__key__"] == [("n0000", "n0002"), ("n0001", "n0003")]
        assert first["cls"] == [(b"0", b"2"), (b"1", b"3")]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("method", ["fork", "forkserver"])
    def test_their_pipe_holds_a_batch(self, tmp_path: Path, method: str) -> None:
        pytest.importorskip("torch.utils.data")
        if not _has_wide_pipes():
            pytest.skip("pipes are narrow here")
        # The main process widens the pipe when the workers have begun.
        batches = wds.WebDataset(written(tmp_path, 8)).batched(2).map(widest_pipe).repeat(50)
        made = wds.WebLoader(batches, batch_size=None, num_workers=1, multiprocessing_context=method)
        assert max(made) == PIECE_BYTES

    def test_pinning_leaves_them(self) -> None:
        column = Packed([b"a"])
        assert column.pin_memory() is column

    def test_stats_reach_the_main_process(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        loader = wds.WebLoader(wds.WebDataset(written(tmp_path, 50)).batched(5), num_workers=2)
        assert sum(len(batch["cls"]) for batch in loader) == 50
        stats = loader.stats()
        assert stats["samples"] == 50
        assert stats["bytes"] == sum(10 + len(str(number)) for number in range(50))
        assert stats["seconds_reading"] > 0


class TestStats:
    def test_counts_what_was_read(self, tmp_path: Path) -> None:
        data = wds.WebDataset(written(tmp_path, 50), fields=["bin"])
        list(data)
        assert (data.stats()["samples"], data.stats()["bytes"]) == (50, 500)

    @pytest.mark.parametrize("prefetch", [0, "1MB"])
    def test_seconds_reading(self, monkeypatch: pytest.MonkeyPatch, prefetch: str | int) -> None:
        read = Slow.read
        monkeypatch.setattr(Slow, "read", lambda self, positions: time.sleep(0.2) or read(self, positions))
        data = PositionDataset(Slow(64), prefetch=prefetch)
        list(data)
        assert data.stats()["seconds_reading"] >= 0.1

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("batch", [0, 2])
    def test_seconds_working(self, threads: int, batch: int) -> None:
        data = PositionDataset(Slow(4, waits=False), threads=threads).map(
            lambda item: time.sleep(0.05) or item
        )
        list(data.listed(batch) if batch else data)
        # A loaded machine adds to both.
        assert data.stats()["seconds_working"] >= 0.09
        assert data.stats()["seconds_waiting"] < data.stats()["seconds_working"]

    @pytest.mark.parametrize("batch", [0, 2])
    def test_seconds_waiting(self, batch: int) -> None:
        data = PositionDataset(Slow(4, waits=False))
        for _ in data.listed(batch) if batch else data:
            time.sleep(0.02)
        assert data.stats()["seconds_waiting"] >= 0.035


class TestFetch:
    """Every way of reading gives what was written, and notices what was changed."""

    @pytest.fixture(autouse=True, params=["core", "plain"])
    def path(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "plain":
            monkeypatch.setattr(core, "CORE", None)
        elif core.CORE is None:
            pytest.skip("no compiled core")

    def shapes(self) -> dict[str, Samples]:
        rng = random.Random(1)

        def of(number: int, *sizes: tuple[str, int]) -> tuple[str, dict[str, bytes]]:
            return f"n{number:03d}", {field: rng.randbytes(size) for field, size in sizes}

        return {
            "one": [of(n, ("txt", 50)) for n in range(60)],
            "two": [of(n, ("a", 50), ("b", 0)) for n in range(60)],
            "three": [of(n, ("a", 5), ("jpg", 70_000), ("json", 30)) for n in range(60)],
            "four": [of(n, ("a", 5), ("b", 6), ("c", 7), ("d", 2000)) for n in range(60)],
            "large first": [of(n, ("a", 70_000), ("b", 5)) for n in range(30)],
            "uneven": [of(n, *[(f"f{i}", 40 * i) for i in range(1 + n % 4)]) for n in range(60)],
            "mixed": [of(n, ("a", 10), ("jpg", 10 if n % 3 else 90_000)) for n in range(60)],
        }

    @pytest.mark.parametrize("shape", ["one", "two", "three", "four", "large first", "uneven", "mixed"])
    @pytest.mark.parametrize("shuffle", ["none", "full"])
    def test_samples_are_as_they_were_written(self, tmp_path: Path, shape: str, shuffle: Any) -> None:
        kept = self.shapes()[shape]
        with ShardWriter(f"{tmp_path}/in-%d.tar", max_count=45) as writer:
            for key, fields in kept:
                writer.write(key, fields)
        for fields in (None, ["a", "json"], ["jpg"], ["none"]):
            found = {}
            for raw in wds.WebDataset(f"{tmp_path}/in-manifest.json", shuffle=shuffle, fields=fields):
                url = raw.pop("__url__")
                assert url.endswith(".tar")
                found[raw.pop("__key__")] = raw
            true = {
                key: {name: data for name, data in some.items() if fields is None or name in fields}
                for key, some in kept
            }
            assert found == true
            assert shuffle == "full" or list(found) == list(true)

    @pytest.mark.parametrize("shape", ["one", "three", "large first"])
    @pytest.mark.parametrize("few", [False, True])
    def test_another_key_than_the_index_says_is_noticed(self, tmp_path: Path, shape: str, few: bool) -> None:
        with ShardWriter(f"{tmp_path}/in-%d.tar") as writer:
            for key, fields in self.shapes()[shape]:
                writer.write(key, fields)
        path = tmp_path / "in-0.tar"
        data = wds.WebDataset(str(tmp_path / "in-manifest.json"))
        content = path.read_bytes()
        place = content.index(b"n007.")
        data.source.catalog.table(0)  # type: ignore[attr-defined]
        path.write_bytes(content[:place] + b"m" + content[place + 1 :])
        chosen = data.slice(7, 8) if few else data
        with pytest.raises(DataError, match="sample 7 differs from the index"):
            list(chosen)

    @pytest.mark.parametrize("threads", [1, 2, 3, 4])
    def test_large_samples_are_copied_by_several_threads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
    ) -> None:
        from wdscli.loader.read.fetch import Fetcher

        monkeypatch.setattr(Fetcher, "_threads", threads)
        fill, names = Fetcher._fill, set()

        def noted(self: Fetcher, *where: Any) -> None:
            names.add(threading.current_thread().name.rstrip("0123456789"))
            fill(self, *where)

        monkeypatch.setattr(Fetcher, "_fill", noted)
        found = list(wds.WebDataset(written(tmp_path, 200, 50_000), prefetch=0))
        assert names == ({"MainThread", "wdscli-copy_"} if threads > 1 else {"MainThread"})
        assert [int(raw["cls"]) for raw in found] == list(range(200))
        assert all(raw["bin"] == random.Random(int(raw["cls"])).randbytes(50_000) for raw in found[::17])
        assert not of_ours()

    def test_an_error_of_such_a_thread_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from wdscli.loader.read.fetch import Fetcher

        monkeypatch.setattr(Fetcher, "_threads", 2)
        data = wds.WebDataset(written(tmp_path, 60, 50_000, shards=1), prefetch=0)
        data.source.catalog.table(0)  # type: ignore[attr-defined]
        path = tmp_path / "in-0.tar"
        content = path.read_bytes()
        place = content.index(b"n0055.")
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(b"m")
        with pytest.raises(DataError, match="sample 55 differs from the index"):
            list(data)
        assert not of_ours()

    @pytest.mark.parametrize("local", [True, False])
    def test_long_stretches_are_read_in_parts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
    ) -> None:
        from wdscli.loader.read import rows
        from wdscli.storage.local import LocalSource

        monkeypatch.setattr(rows, "READ_BYTES", 5000)
        begin = LocalSource.__init__

        def opened(self: LocalSource, *facts: Any) -> None:
            begin(self, *facts)
            self.fd = self.fd if local else None

        monkeypatch.setattr(LocalSource, "__init__", opened)
        kept = self.shapes()["four"]
        with ShardWriter(f"{tmp_path}/in-%d.tar") as writer:
            for key, fields in kept:
                writer.write(key, fields)
        found = list(wds.WebDataset(f"{tmp_path}/in-manifest.json"))
        assert [raw["d"] for raw in found] == [fields["d"] for _, fields in kept]


def test_the_place_of_each_sample_is_known_and_a_stopped_iteration_keeps_no_samples(tmp_path: Path) -> None:
    data = wds.WebDataset(written(tmp_path, 30, 10), shuffle="window", seed=3)
    whole = list(data)
    for stop in (1, 7, 29, 30):
        data.set_epoch(0)
        running = iter(data)
        taken = [next(running) for _ in range(stop)]
        state = data.state_dict()
        assert data._state.place.batch == stop
        running.close()  # type: ignore[attr-defined]
        assert data.state_dict() == state
        latest = data._state.latest
        assert latest is None or not list(latest._following)
        resumed = wds.WebDataset(f"{tmp_path}/in-manifest.json", shuffle="window", seed=3)
        resumed.load_state_dict(state)
        assert taken == whole[:stop]
        if stop < 30:
            assert list(resumed) == whole[stop:]


def test_blocks_that_are_read_ahead_are_counted_as_they_are_taken() -> None:
    source = Slow(10_000, size=1000)
    data = PositionDataset(source, prefetch="1MB")
    items = iter(data)
    next(items)
    taken = data.stats()
    assert taken["samples"] <= reading.BLOCKS_AHEAD * 250
    assert taken["bytes"] == 1000 * taken["samples"]
    items.close()  # type: ignore[attr-defined]


def test_arrays_of_a_worker_are_tensors(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.arange(6, dtype="uint8").reshape(2, 3))
    with ShardWriter(f"{tmp_path}/in-%d.tar") as writer:
        for number in range(4):
            writer.write(f"n{number}", {"npy": buffer.getvalue()})
    batches = wds.WebDataset(f"{tmp_path}/in-0.tar").decode().to_tuple("npy").batched(2)
    shapes = [tuple(batch[0].shape) for batch in data.DataLoader(batches, batch_size=None, num_workers=1)]
    assert shapes == [(2, 2, 3), (2, 2, 3)]
