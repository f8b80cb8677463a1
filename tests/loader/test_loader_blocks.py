"""The order of blocks, read as blocks: the same batches in any world, each sample fetched once, by large requests. And
which samples a batch has, without reading it."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import pytest
from indexing import index
from loader_cases import Cls, Numbers, World, drawn_world, everything, make_ragged, make_set
from shard_cases import numbered, write_shards
from storage_servers import Web, web_server

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order import order
from wdscli.loader.order.order import ORDERS
from wdscli.loader.read import catalog as catalog_module
from wdscli.loader.read import reading
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.fetch import Pool
from wdscli.loader.read.reading import IndexedSource

OTHERS = (6, 0, 17, 1, 11)
WORLDS = (1, 2, 4, 8)
PERMUTED = functools.lru_cache(1 << 12)(order._permuted)


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> list[Catalog]:
    folder = tmp_path_factory.mktemp("sets")
    return [Catalog(make_ragged(folder / "a")), Catalog(make_ragged(folder / "b", OTHERS))]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of about 4 samples, all of them read ahead as those of a store are."""
    monkeypatch.setattr(catalog_module, "ORDER_BLOCK_BYTES", 4 * 1027)
    monkeypatch.setattr(reading, "ORDER_BLOCK_BYTES", 4 * 1027)
    monkeypatch.setattr(reading, "SLOW_BLOCKS", 0)


@pytest.fixture
def shared_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each permutation is made once for all ranks, workers and worlds: it depends only on its arguments."""
    monkeypatch.setattr(order, "_permuted", PERMUTED)


class Negative:
    def __call__(self, number: int) -> int:
        return -1 - number


def pipeline(catalogs: list[Catalog], draw: random.Random, tail: str, size: int) -> Callable[..., Any]:
    """A function that makes a dataset of one rank, with global batches of ``size`` numbers."""
    seed, window, kind = draw.randrange(99), draw.choice([1, 2, 5, 64]), draw.randrange(7)
    other, start, step = draw.choice(ORDERS), draw.randrange(30), draw.randint(1, 3)

    def make(rank: int = 0, world_size: int = 1) -> Any:
        share: Any = {"rank": rank, "world_size": world_size, "tail": tail}
        sources = [
            IndexedSource(one, seed=seed, shuffle=shuffle, window=window)  # type: ignore[arg-type]
            for one, shuffle in zip(catalogs, ("blocks", other))
        ]
        data: Any = PositionDataset(sources[0], **share)
        if kind == 1:
            data = data.slice(start, None, step)
        elif kind == 2:
            data = data.with_epoch(samples=80)
        elif kind == 3:
            data = data.repeat(2)
        elif kind == 4:
            data = data.rsample(0.5)
        elif kind == 5:
            parts = [PositionDataset(one, tail="uneven") for one in sources]
            data = wds.mix(
                {"a": (parts[0], 3), "b": (parts[1].map(Cls()).map(Negative()), 1)}, stop="all", **share
            )
            return data.map(_number).listed(size // world_size)
        return data.map(Cls()).listed(size // world_size)

    return make


def _number(sample: Any) -> int:
    return int(sample["cls"]) if isinstance(sample, dict) else sample


def check_world(catalogs: list[Catalog], monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    draw = random.Random(case)
    monkeypatch.setattr(order, "GROUP", draw.choice([1 << 16, 7]))
    # All blocks are read ahead by a thread, or none.
    monkeypatch.setattr(reading, "SLOW_BLOCKS", draw.choice([0, 1 << 30]))
    tail, size = draw.choice(["even", "drop", "pad", "uneven"]), draw.choice([8, 16, 24])
    make = pipeline(catalogs, draw, tail, size)
    epoch = draw.randrange(3)
    whole = World(monkeypatch, 1, 0).batches(make, epoch=epoch)
    world, workers = drawn_world(draw, WORLDS)
    ranks = [World(monkeypatch, world, workers).of_rank(make, rank, epoch=epoch) for rank in range(world)]
    check_same(ranks, whole, tail)
    given = draw.randrange(len(whole))
    before = make()
    before.set_epoch(epoch)
    assert list(islice(iter(before), given)) == whole[:given]
    state = json.loads(json.dumps(before.state_dict()))
    again = World(monkeypatch, *drawn_world(draw, WORLDS))
    rest = [again.of_rank(make, rank, state, epoch) for rank in range(again.world)]
    check_same(rest, whole[given:], tail)
    rank, number = draw.randrange(world), draw.randrange(len(ranks[0]))
    mine = make(rank=rank, world_size=world)
    if number < len(ranks[rank]):
        keys = mine.keys(epoch, number)
        assert [number_of(key) for key in keys] == [abs(one + (one < 0)) for one in ranks[rank][number]]


def number_of(key: str) -> int:
    """The number in the ``cls`` of the sample with a key, see make_ragged()."""
    shard, _, place = key[1:].partition("-")
    return 1000 * int(shard) + int(place)


def check_same(ranks: list[list[list[int]]], whole: list[list[int]], tail: str) -> None:
    """The ranks share the global batches ``whole``; with "even" less than a sample for each rank comes twice."""
    steps = max(map(len, ranks))
    found = [
        Counter(one for rank in ranks if step < len(rank) for one in rank[step]) for step in range(steps)
    ]
    expected = [Counter(batch) for batch in whole]
    if tail == "even" and found:
        twice = found[-1] - expected[-1]
        assert sum(twice.values()) < len(ranks)
        found[-1] -= twice
    assert found == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", range(0, 40, 10))
@pytest.mark.usefixtures("small_blocks", "shared_permutations")
def test_any_world_has_the_same_batches(
    catalogs: list[Catalog], monkeypatch: pytest.MonkeyPatch, case: int
) -> None:
    for number in range(10):
        check_world(catalogs, monkeypatch, case + number)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("case", range(100, 2100, 100))
@pytest.mark.usefixtures("small_blocks", "shared_permutations")
def test_many_worlds(catalogs: list[Catalog], monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    for number in range(100):
        check_world(catalogs, monkeypatch, case + number)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("window", [1, 4, 64])
@pytest.mark.usefixtures("small_blocks")
def test_each_sample_is_fetched_once_with_its_block_and_few_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, ranks: int
) -> None:
    """Blocks of 32 samples."""
    monkeypatch.setattr(catalog_module, "ORDER_BLOCK_BYTES", 32 * 2062)
    url, blocks = make_set(tmp_path, count=2000, max_count=300, size=10), 2000 / 32
    fetched: list[tuple[int, int]] = []
    fetch, fetch_blocks = Pool.fetch, reading._BlocksReader._fetch_blocks
    most = 0

    def counted(pool: Pool, shards: Any, places: Any) -> Any:
        fetched.extend(zip(shards.tolist(), places.tolist()))
        return fetch(pool, shards, places)

    def watched(reader: Any, blocks: list[int]) -> None:
        nonlocal most
        fetch_blocks(reader, blocks)
        most = max(most, len(reader._held))

    monkeypatch.setattr(Pool, "fetch", counted)
    monkeypatch.setattr(reading._BlocksReader, "_fetch_blocks", watched)
    samples = []
    for rank in range(ranks):
        before = len(fetched)
        share: Any = {"rank": rank, "world_size": ranks}
        data = wds.WebDataset(url, shuffle="blocks", seed=1, window=window, prefetch="256KB", **share)
        samples += [int(sample["cls"]) for sample in data]
        # A run of neighbours for each block, and for each end of a lane in a window.
        mine = sorted(fetched[before:])
        runs = 1 + sum(one[0] != two[0] or one[1] != two[1] + 1 for one, two in zip(mine[1:], mine))
        assert runs <= blocks / ranks + 9 * (blocks / window + 1)
    assert sorted(samples) == list(range(2000))
    assert len(fetched) == len(set(fetched)) == 2000
    # ``window`` blocks, and the blocks that a read needs.
    assert most <= 33 * (window + 9)


class TestRemote:
    SHARDS, EACH = 5, 200

    @pytest.fixture
    def web(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
        """Five shards of 500 KB in blocks of 50 KB."""
        monkeypatch.setattr(catalog_module, "ORDER_BLOCK_BYTES", 50_000)
        monkeypatch.setattr(reading, "ORDER_BLOCK_BYTES", 50_000)
        with web_server("ranges") as server:
            server.validators = ("strong",)
            sets = [numbered(self.EACH, f"s{shard}-", [1500]) for shard in range(self.SHARDS)]
            write_shards(tmp_path, sets)
            index([str(tmp_path)])
            for path in (*tmp_path.glob("*.tar"), *tmp_path.glob(".wds/*"), *tmp_path.glob("*.json")):
                server.files[str(path.relative_to(tmp_path))] = path.read_bytes()
            yield server

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("window", [4, 64])
    def test_blocks_are_read_by_large_requests_and_each_byte_once(self, web: Web, window: int) -> None:
        [manifest] = [name for name in web.files if name.endswith(".json")]
        size = sum(len(data) for name, data in web.files.items() if name.endswith(".tar"))
        data = wds.WebDataset(web.url(manifest), shuffle="blocks", window=window, seed=3)
        opened = len(web.ranges)
        expected = [sample["__key__"] for sample in wds.WebDataset(web.url(manifest), shuffle="none")]
        web.ranges.clear()
        found = [sample["__key__"] for sample in data]
        assert sorted(found) == sorted(expected)
        assert opened <= 3
        stats = data.stats()
        assert len(web.ranges) <= 1.2 * size / 50_000 + 3 * self.SHARDS
        assert stats["bytes"] <= 1500 * self.EACH * self.SHARDS * 1.01

    def test_the_next_blocks_are_requested_while_one_is_read(
        self, web: Web, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetch, counts = Pool.fetch, list[tuple[int, int]]()

        def counted(pool: Pool, shards: Any, places: Any) -> Any:
            counts.append((len(places), sum(map(len, pool._remote.soon.values()))))
            return fetch(pool, shards, places)

        monkeypatch.setattr(Pool, "fetch", counted)
        [manifest] = [name for name in web.files if name.endswith(".json")]
        assert len(list(wds.WebDataset(web.url(manifest), shuffle="blocks", seed=3))) == 1000
        assert max(samples for samples, _ in counts) <= 40
        assert all(soon for _, soon in counts[:-1])

    def test_all_next_blocks_are_requested_if_most_are_in_one_shard(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Samples of 500 KB are blocks here, and the memory is enough for twice the blocks."""
        monkeypatch.setenv("WDSCLI_READ_AHEAD", str(16 * 501_024))
        with web_server("ranges") as server:
            server.validators = ("strong",)
            write_shards(tmp_path, [numbered(10, f"s{shard}-", [500_000]) for shard in range(5)])
            index([str(tmp_path)])
            for path in (*tmp_path.glob("*.tar"), *tmp_path.glob(".wds/*"), *tmp_path.glob("*.json")):
                server.files[str(path.relative_to(tmp_path))] = path.read_bytes()
            [manifest] = [name for name in server.files if name.endswith(".json")]
            pool = Pool(Catalog(server.url(manifest)), reads_gaps=False)
            pool.fetch(numpy.arange(5), numpy.full(5, 1))  # opens the shards
            server.ranges.clear()
            pool.expect(numpy.array([0, 0, 0, 0, 0, 1, 2, 3]), numpy.array([0, 2, 4, 6, 8, 3, 3, 3]))
            pool.fetch(numpy.array([4]), numpy.array([3]))
            end = time.monotonic() + 10
            while len(server.ranges) < 9 and time.monotonic() < end:
                time.sleep(0.01)
            assert len(server.ranges) == 9
            pool.close()

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("wrapped", ["with_epoch", "mix", "slice"])
    def test_through_views_and_mixes(self, web: Web, wrapped: str) -> None:
        [manifest] = [name for name in web.files if name.endswith(".json")]
        size = sum(len(data) for name, data in web.files.items() if name.endswith(".tar"))
        data: Any = wds.WebDataset(web.url(manifest), shuffle="blocks", seed=3)
        if wrapped == "with_epoch":
            data = data.with_epoch(samples=2 * self.SHARDS * self.EACH)
        elif wrapped == "mix":
            other = wds.WebDataset(web.url(manifest), shuffle="blocks", seed=4)
            data = wds.mix({"a": (data, 1), "b": (other, 1)}, stop="all")
        else:
            data = data.slice(0, self.SHARDS * self.EACH)
        web.ranges.clear()
        times = 1 if wrapped == "slice" else 2
        assert set(Counter(sample["__key__"] for sample in data).values()) == {times}
        assert len(web.ranges) <= times * (1.3 * size / 50_000 + 4 * self.SHARDS)


def forbidden(*_: Any) -> Any:
    raise AssertionError("a payload was read")


class TestKeys:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return make_set(tmp_path, count=200, max_count=23)

    @pytest.mark.parametrize("shuffle", ORDERS)
    @pytest.mark.parametrize("world", [1, 3])
    def test_a_batch_of_a_rank(
        self, url: str, shuffle: Any, world: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ranks = [
            wds.WebDataset(url, shuffle=shuffle, seed=2, window=2, rank=rank, world_size=world).batched(8)
            for rank in range(world)
        ]
        for data in ranks:
            data.set_epoch(4)
        given = [[list(batch["__key__"]) for batch in data] for data in ranks]
        monkeypatch.setattr(Pool, "fetch", forbidden)
        for rank, data in enumerate(ranks):
            assert [data.keys(4, number) for number in range(len(data))] == given[rank]
            with pytest.raises(UsageError, match=f"no batch {len(data)} on"):
                data.keys(4, len(data))
        firsts: dict[str, tuple[int, int]] = {}
        for number in range(len(given[0])):
            for rank in range(world):
                for key in given[rank][number]:
                    firsts.setdefault(key, (number, rank))
        assert len(firsts) == 200
        assert all(ranks[0].find(key, 4) == step for key, step in firsts.items())

    def test_samples_without_batches(self, url: str) -> None:
        data = wds.WebDataset(url, shuffle="full")
        keys = [sample["__key__"] for sample in data]
        assert [data.keys(0, number) for number in range(200)] == [[key] for key in keys]
        assert data.find(keys[77], 0) == (77, 0)
        with pytest.raises(KeyError, match="epoch 1 has no sample n9999"):
            data.find("n9999", 1)

    def test_of_selected_samples_and_of_other_epochs(self, url: str) -> None:
        data: Any = wds.WebDataset(url, shuffle="blocks", where="cls % 2 == 1").listed(5)
        keys = [sample["__key__"] for sample in list(data)[3]]
        assert data.keys(0, 3) == keys
        assert data.find(keys[1], 0) == (3, 0)
        assert data.keys(1, 3) != keys
        with pytest.raises(KeyError, match="n0002"):
            data.find("n0002", 0)
        dropping = wds.WebDataset(url).batched(150, partial=False)
        assert dropping.find("n0149", 0) == (0, 0)
        with pytest.raises(KeyError, match="n0150"):
            dropping.find("n0150", 0)

    @pytest.mark.exhaustive
    def test_through_views_and_mixes(self, url: str, tmp_path: Path) -> None:
        def check(data: Any) -> None:
            data = data.listed(7)
            given = [[sample["__key__"] for sample in batch] for batch in data]
            assert [data.keys(0, number) for number in range(len(given))] == given
            assert data.find(given[5][2], 0)[0] == next(
                at for at, one in enumerate(given) if given[5][2] in one
            )

        check(wds.WebDataset(url, shuffle="window", seed=1).slice(20, 180, 3))
        check(wds.WebDataset(url, shuffle="blocks", seed=1).rsample(0.3))
        check(wds.WebDataset(url, shuffle="blocks", seed=1).with_epoch(samples=450))
        other = make_set(tmp_path / "more", count=90)
        parts = {"a": wds.WebDataset(url, shuffle="blocks"), "b": wds.WebDataset(other, shuffle="window")}
        check(wds.mix({name: (one, 1) for name, one in parts.items()}, stop="all", seed=1))
        endless = wds.WebDataset(url, shuffle="window", repeat=True).listed(7)
        assert endless.find(endless.keys(0, 100)[0], 0)[0] <= 100
        with pytest.raises(KeyError):
            endless.find("nothing", 0)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("kind", ["packed", "budget", "bucket"])
    @pytest.mark.parametrize("tail", ["even", "drop"])
    def test_of_planned_batches(self, kind: str, tail: Any) -> None:
        def make(rank: int) -> Any:
            source = Numbers((13, 0, 1, 30, 7, 19, 60), 5, "blocks")
            data = PositionDataset(source, rank=rank, world_size=3, tail=tail)
            if kind == "packed":
                return data.packed(100, "40", window=50, collation_fn=list)
            if kind == "budget":
                return data.batched(budget=100, length="40", window=50, collation_fn=None)
            return data.batched(6, bucket="40", buckets=[8, 20], window=50, collation_fn=None)

        ranks = [make(rank) for rank in range(3)]
        given = [list(data) for data in ranks]
        firsts: dict[int, tuple[int, int]] = {}
        for rank, data in enumerate(ranks):
            found = [data.keys(0, number) for number in range(len(given[rank]))]
            assert [[int(key) for key in batch] for batch in found] == given[rank]
        for step in range(len(given[0])):
            for rank in range(3):
                for number in given[rank][step]:
                    firsts.setdefault(number, (step, rank))
        for number in everything((13, 0, 1, 30, 7, 19, 60)):
            if number in firsts:
                assert ranks[0].find(str(number), 0) == firsts[number]
            else:
                with pytest.raises(KeyError):
                    ranks[0].find(str(number), 0)

    def test_of_streams(self, url: str) -> None:
        data = wds.WebDataset("pipe:cat " + str(Path(url).parent / "in-000000.tar"))
        with pytest.raises(UsageError, match="unknown before they are read"):
            data.keys(0, 0)

    def test_a_key_is_searched_in_all_shards_if_keys_do_not_rise(self, tmp_path: Path) -> None:
        names = write_shards(tmp_path, [numbered(9, prefix) for prefix in ("c", "a", "d", "b")])
        data = wds.WebDataset(names)
        keys = [sample["__key__"] for sample in data]
        assert [data.find(key, 0) for key in keys] == [(number, 0) for number in range(36)]


def test_sizes_of_blocks_are_the_same_with_and_without_a_manifest(tmp_path: Path) -> None:
    url = make_set(tmp_path, count=300, size=70_000)
    with_manifest = Catalog(url)
    names = sorted(str(path) for path in tmp_path.glob("*.tar"))
    assert with_manifest.block_samples.tolist() == Catalog(names).block_samples.tolist()
    # 2^22 / (70,000 + 1 to 3 + 2 * 1024), rounded up
    assert set(with_manifest.block_samples.tolist()) == {59}
    before = with_manifest.block_samples.tolist()
    some = wds.WebDataset(url, where="cls > 7", shuffle="blocks")
    assert some.source.catalog.block_samples.tolist() == before  # type: ignore[attr-defined]


BILLION = """
import json, sys
import numpy
import wdscli.loader as wds
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.reading import IndexedSource

SHARDS, EACH = 100_000, 10_000

class Table:
    def __init__(self, shard):
        self.keys = b"".join(b"%06d%05d" % (shard, place) for place in range(EACH))
        self.key_ends = numpy.arange(11, 11 * EACH + 1, 11)
    def key(self, place):
        return self.keys[11 * place : 11 * place + 11].decode()

class Made(Catalog):
    def __init__(self):
        self.addresses = ["%d.tar" % shard for shard in range(SHARDS)]
        self.counts = self._held = numpy.full(SHARDS, EACH, dtype=numpy.int64)
        self.is_indexed, self.manifest, self.fingerprint, self.reads = True, None, "made", 0
        self.block_samples = numpy.full(SHARDS, 1000, dtype=numpy.int64)
    def table(self, number):
        self.reads += 1
        return Table(number)

made = Made()
found = []
for shuffle in ("none", "shards", "window", "blocks", "full"):
    data = PositionDataset(IndexedSource(made, seed=3, shuffle=shuffle), rank=5, world_size=8).listed(64)
    made.reads = 0
    keys = data.keys(6, 1_234_567)
    of_keys = made.reads
    step = data.find(keys[9], 6)
    found.append([of_keys, made.reads - of_keys])
    assert len(set(keys)) == 64 and step == (1_234_567, 5), (shuffle, step)
print(json.dumps(found))
"""


@pytest.mark.exhaustive
def test_few_shards_of_a_billion_samples_are_read() -> None:
    done = subprocess.run([sys.executable, "-c", BILLION], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for tables_of_keys, tables_of_find in json.loads(done.stdout):
        assert tables_of_keys <= 64
        assert tables_of_find <= 20  # by halves of 100,000 shards
