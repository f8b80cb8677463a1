"""IndexedDataset: every way to a sample gives what a plain read of the shards gives, wherever they lie."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
from pathlib import Path

import numpy
import pytest
from awkward_sets import write_awkward
from indexing import index
from loader_sets import Raw, Reads, oracle, serve, write_set
from storage_servers import s3_server, web_server

from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.shards import ShardWriter


@pytest.fixture(scope="module", params=["scanned", "indexed"])
def awkward(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Ragged, empty, foreign, long-named and large shards, without indexes and with."""
    names = write_awkward(tmp_path_factory.mktemp("set") / "in")
    if request.param == "indexed":
        index(names)
        assert len(list(Path(names[0]).parent.glob(".wds/*.wdx"))) == len(names)
    return names


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_set(tmp_path)


class TestEveryWay:
    def test_by_number(self, awkward: list[str]) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)
        assert len(table) == len(true)
        assert [table[number] for number in range(len(true))] == true
        assert [table[number] for number in range(-len(true), 0)] == true
        assert [table[numpy.int64(number)] for number in (3, -1)] == [true[3], true[-1]]

    def test_in_order(self, awkward: list[str]) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)
        assert list(table) == true
        assert list(table.keys()) == [one["__key__"] for one in true]

    def test_by_key(self, awkward: list[str]) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)
        for number, one in enumerate(true):
            assert table[one["__key__"]] == one
            assert table.number(one["__key__"]) == number
            assert one["__key__"] in table

    def test_keys_of_the_same_hash(self, shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("xxhash.xxh3_64_intdigest", lambda key, seed: key[-1])
        table = IndexedDataset(shards)
        for number, one in enumerate(oracle(shards)):
            assert table.number(one["__key__"]) == number
        assert "n00/img0001" not in table

    @pytest.mark.parametrize("count", [0, 1, 5, 60, 500])
    def test_many_at_once(self, awkward: list[str], count: int) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)
        rng = random.Random(count)
        numbers = [rng.randrange(-len(true), len(true)) for _ in range(count)]
        assert table.__getitems__(numbers) == [true[number] for number in numbers]

    @pytest.mark.parametrize(
        "part",
        [slice(None), slice(5, 40), slice(None, None, -1), slice(-9, None), slice(60, 10, -7), slice(4, 4)],
    )
    def test_slices_are_views(self, awkward: list[str], part: slice) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)[part]
        view = table[part]
        assert (len(view), list(view)) == (len(true), true)
        assert list(view[1::2]) == true[1::2]
        assert [view[number] for number in range(len(true))] == true
        assert all(view[one["__key__"]] == one for one in true)

    def test_subsets(self, awkward: list[str]) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)
        numbers = [7, 3, -1, 7, 20]
        subset = table.subset(numbers)
        assert list(subset) == [true[number] for number in numbers]
        assert subset.number(true[7]["__key__"]) == 0
        assert list(subset.subset([-1, 0])) == [true[20], true[7]]
        assert true[8]["__key__"] not in subset
        mask = numpy.arange(len(true)) % 3 == 0
        assert list(table.subset(mask)) == true[::3]

    @pytest.mark.parametrize("threads", [1, 3, 16])
    def test_threads(self, awkward: list[str], threads: int) -> None:
        table, true = IndexedDataset(awkward, threads=threads), oracle(awkward)
        numbers = random.Random(0).sample(range(len(true)), 50)
        assert table.__getitems__(numbers) == [true[number] for number in numbers]
        table.close()
        assert table[3] == true[3]

    def test_fields(self, awkward: list[str]) -> None:
        table, true = IndexedDataset(awkward, fields=["cls", "jpg"]), oracle(awkward)
        wanted = [
            {name: one[name] for name in one if name in ("__key__", "__url__", "cls", "jpg")} for one in true
        ]
        assert list(table) == wanted
        assert [table[number] for number in range(len(true))] == wanted

    def test_a_dict_of_all(self, shards: list[str]) -> None:
        assert dict(IndexedDataset(shards)) == {one["__key__"]: one for one in oracle(shards)}  # type: ignore[call-overload]


class TestNotThere:
    @pytest.mark.parametrize("number", [23, -24, 10**12])
    def test_numbers(self, shards: list[str], number: int) -> None:
        table = IndexedDataset(shards)
        with pytest.raises(IndexError, match=f"no sample {number}: there are 23"):
            table[number]
        with pytest.raises(IndexError, match=f"no sample {number}: there are 23"):
            table.__getitems__([0, number])

    def test_keys(self, shards: list[str]) -> None:
        table = IndexedDataset(shards)
        with pytest.raises(KeyError, match=r"no sample n01/img001; did you mean n01/img00"):
            table["n01/img001"]
        with pytest.raises(KeyError, match="no sample zzz'"):
            table["zzz"]
        assert "zzz" not in table
        assert 3 not in table

    def test_what_is_no_number(self, shards: list[str]) -> None:
        with pytest.raises(TypeError, match="subset"):
            IndexedDataset(shards)[[1, 2]]
        with pytest.raises(TypeError, match="float64"):
            IndexedDataset(shards).subset([0.5])  # type: ignore[list-item]
        with pytest.raises(IndexError, match="the mask has 2 values, but there are 23"):
            IndexedDataset(shards).subset(numpy.array([True, False]))

    def test_numbers_of_many(self, shards: list[str]) -> None:
        table = IndexedDataset(shards)
        assert table.__getitems__(iter([1, 0])) == [table[1], table[0]]  # type: ignore[arg-type]
        assert len(table.__getitems__({0, 1})) == 2  # type: ignore[arg-type]
        assert len(table.subset(number for number in (2, 1))) == 2  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"table\.number\(key\)"):
            table.__getitems__(["n0"])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="flat list"):
            table.__getitems__([[0, 1]])  # type: ignore[list-item]

    @pytest.mark.parametrize("threads", [0, -1, "2"])
    def test_threads_that_are_none(self, shards: list[str], threads: int) -> None:
        with pytest.raises(UsageError, match="threads="):
            IndexedDataset(shards, threads=threads)

    @pytest.mark.parametrize("urls", ["pipe:cat x.tar", "-"])
    def test_streams(self, urls: str) -> None:
        with pytest.raises(UsageError, match="streams"):
            IndexedDataset(urls)

    def test_a_compressed_shard(self, tmp_path: Path, shards: list[str]) -> None:
        import gzip

        path = tmp_path / "z.tar.gz"
        path.write_bytes(gzip.compress(Path(shards[0]).read_bytes()))
        with pytest.raises(UsageError, match="compressed"):
            IndexedDataset(str(path))

    def test_two_samples_of_one_key(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            with ShardWriter(f"{tmp_path}/{name}.tar") as writer:
                writer.write("same", {"txt": name.encode()})
        table = IndexedDataset([f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"])
        assert table["same"]["txt"] == b"a"
        assert table[1:]["same"]["txt"] == b"b"


class TestSelections:
    CASES = (
        ("cls == 1", lambda one: one["cls"] == b"1"),
        (
            "json.width >= 9 and size.jpg > 10",
            lambda one: one["json"] >= b'{"width": 9' or len(one["json"]) > 12,
        ),
        ("key.startswith('n01/')", lambda one: one["__key__"].startswith("n01/")),
        ("index == 0", lambda one: one["__key__"][-1] in "05"),
        ("False", lambda one: False),
        ("True", lambda one: True),
    )

    @pytest.mark.parametrize(("where", "holds"), CASES)
    def test_where(self, shards: list[str], where: str, holds: object) -> None:
        true = [one for one in oracle(shards) if holds(one)]  # type: ignore[operator]
        for table in (IndexedDataset(shards, where=where), IndexedDataset(shards).select(where)):
            assert (len(table), list(table)) == (len(true), true)
            assert [table[number] for number in range(len(true))] == true
            assert all(table[one["__key__"]] == one for one in true)
            assert list(table[::-1]) == true[::-1]

    @pytest.mark.parametrize(("where", "holds"), CASES)
    def test_of_a_view(self, shards: list[str], where: str, holds: object) -> None:
        true = [one for one in oracle(shards)[20:2:-3] if holds(one)]  # type: ignore[operator]
        assert list(IndexedDataset(shards)[20:2:-3].select(where)) == true

    def test_of_a_selection(self, shards: list[str]) -> None:
        twice = IndexedDataset(shards).select("cls == 1").select("json.width > 9")
        once = IndexedDataset(shards).select("cls == 1 and json.width > 9")
        assert list(twice) == list(once) != []
        assert twice.catalog.fingerprint == once.catalog.fingerprint

    def test_keys(self, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "keys.txt").write_text("n00/img0004\nn03/img0003\n")
        table = IndexedDataset(shards)
        assert list(table.select(keys="n00/*").keys()) == [f"n00/img{n:04d}" for n in range(0, 23, 4)]
        assert list(table.select(keys_from=str(tmp_path / "keys.txt")).keys()) == [
            "n03/img0003",
            "n00/img0004",
        ]
        assert table.select() is table
        with pytest.raises(UsageError, match="needs an expression"):
            table.select(lambda one: True)  # type: ignore[arg-type]

    def test_only_the_shards_of_a_view_are_looked_at(self, shards: list[str]) -> None:
        table = IndexedDataset(shards)
        Path(shards[-1]).unlink()
        assert len(table[:10].select("cls == 1")) == 3


class TestStages:
    def test_transform_and_map(self, shards: list[str]) -> None:
        true = [int(one["cls"]) for one in oracle(shards)]
        assert list(IndexedDataset(shards, transform=lambda one: int(one["cls"]))) == true
        table = IndexedDataset(shards).map(lambda one: int(one["cls"]))
        assert [table[number] for number in range(len(table))] == true
        assert table.__getitems__([5, 2]) == [true[5], true[2]]
        assert table[3:5].map(lambda number: -number)[1] == -true[4]

    def test_rename_and_to_tuple(self, shards: list[str]) -> None:
        table = IndexedDataset(shards).rename(image="png;jpg", target="cls").to_tuple("image", "target")
        assert table[4] == (b"\4" * 700, b"1")

    def test_decode(self, shards: list[str]) -> None:
        table = IndexedDataset(shards).decode().to_tuple("json", "cls")
        assert table[-1] == ({"width": 22}, 1)
        assert table.__getitems__([3, 0]) == [({"width": 3}, 0), ({"width": 0}, 0)]

    def test_a_sample_that_a_stage_leaves_out(self, shards: list[str]) -> None:
        table = IndexedDataset(shards).map(lambda one: one if one["cls"] == b"1" else None)
        assert [one["cls"] for one in table.__getitems__([0, 1, 2])] == [b"1"]
        with pytest.raises(DataError, match="sample 0 was skipped"):
            table[0]


class TestReading:
    def test_neighbours_are_read_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = write_set(tmp_path, count=200, per_shard=200)
        table = IndexedDataset(names)
        table[0]
        reads = Reads(monkeypatch)
        table.__getitems__(list(range(100, 164)))
        assert len(reads.of) == 1

    def test_the_index_is_loaded_once(self, shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        table = IndexedDataset(shards)
        list(table)
        reads = Reads(monkeypatch)
        table[7]
        assert [path for path, _, _ in reads.of] == [shards[1]]

    @pytest.mark.parametrize("image", [50_000, 200_000])
    def test_fields_leave_the_images_unread(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: int
    ) -> None:
        names = write_set(tmp_path, count=20, image=image)
        table = IndexedDataset(names, fields=["json"])
        table[0]
        reads = Reads(monkeypatch)
        assert [one["json"] for one in table] == [b'{"width": %d}' % number for number in range(20)]
        assert table[7]["json"] == b'{"width": 7}'
        assert reads.bytes < 20 * 20_000

    def test_a_shard_that_was_touched_is_looked_at_again(self, shards: list[str]) -> None:
        table = IndexedDataset(shards, where="cls == 1")
        some = list(table)
        table.close()
        os.utime(shards[0], ns=(5, 5))
        assert list(table) == some
        assert table[0] == some[0]

    def test_fields_that_differ_in_capitals(self, tmp_path: Path) -> None:
        names = []
        for number in range(3):
            names.append(f"{tmp_path}/{number}.tar")
            with ShardWriter(names[-1]) as writer:
                writer.write("a", {"JPG": b"1", "jpg": b"2"})
                writer.write("b", {"Txt": b"3"})
        table, data = IndexedDataset(names), list(WebDataset(names))
        assert (data[0]["JPG"], data[0]["jpg"], data[1]["txt"]) == (b"1", b"2", b"3")
        assert list(table) == [table[number] for number in range(6)] == data
        assert table.__getitems__([0, 3, 5]) == [data[0], data[3], data[5]]

    def test_a_stale_index(self, shards: list[str]) -> None:
        table = IndexedDataset(shards)
        data = Path(shards[1]).read_bytes()
        Path(shards[1]).write_bytes(data.replace(b"n02/img0006.", b"n02/img9996."))
        os.utime(shards[1], ns=(0, 0))
        with pytest.raises(DataError) as caught:
            table[6]
        assert (caught.value.code, caught.value.shard) == ("changed", shards[1])
        assert table[5]["__key__"] == "n01/img0005"


@pytest.mark.filterwarnings("ignore:skipped")
class TestErrors:
    def opened(self, shards: list[str], on_error: str) -> tuple[IndexedDataset, list[Raw]]:
        true = oracle(shards)
        table = IndexedDataset(f"{Path(shards[0]).parent}/in-manifest.json", on_error=on_error)  # type: ignore[arg-type]
        os.truncate(shards[1], 600)
        return table, true

    def test_raise(self, shards: list[str]) -> None:
        table, true = self.opened(shards, "raise")
        assert table[0] == true[0]
        for read in (lambda: table[6], lambda: table.__getitems__([0, 6]), lambda: list(table)):
            with pytest.raises((DataError, InputError)):
                read()

    def test_skip(self, shards: list[str]) -> None:
        table, true = self.opened(shards, "skip")
        assert list(table) == true[:5] + true[10:]
        assert table.__getitems__([4, 6, 11]) == [true[4], true[11]]
        assert table.stats()["dropped"] == {shards[1]: {"read: truncated": 6}}
        with pytest.raises(DataError, match="skipped"):
            table[6]

    def test_substitute(self, shards: list[str]) -> None:
        table, true = self.opened(shards, "substitute")
        assert table[6] == true[10]
        assert table.__getitems__([4, 8, 11]) == [true[4], true[10], true[11]]
        assert table.stats()["dropped"] == {shards[1]: {"read: truncated": 2}}

    def test_a_substitute_is_of_the_same_view(self, shards: list[str]) -> None:
        table, true = self.opened(shards, "substitute")
        assert table.subset([3, 6, 2])[1] == true[2]

    def test_what_is_whole_of_a_damaged_shard(self, shards: list[str]) -> None:
        true = oracle(shards)
        for path in Path(shards[0]).parent.glob("*manifest.json"):
            path.unlink()
        os.truncate(shards[1], os.stat(shards[1]).st_size * 2 // 3)
        with pytest.raises(DataError, match="ends"):
            IndexedDataset(shards)
        table = IndexedDataset(shards, on_error="skip")
        assert list(table) == true[:8] + true[10:]
        assert list(table.stats()["dropped"]) == [shards[1]]
        assert list(table.select("cls == 1")) == [one for one in list(table) if one["cls"] == b"1"]

    def test_no_substitute(self, shards: list[str]) -> None:
        table = IndexedDataset(shards[:1], on_error="substitute")
        os.truncate(shards[0], 600)
        with pytest.raises(DataError, match="found no readable sample"):
            table[2]

    def test_no_such_policy(self, shards: list[str]) -> None:
        with pytest.raises(UsageError, match=r"on_error=.* is not one of"):
            IndexedDataset(shards, on_error="ignore")  # type: ignore[arg-type]


class TestTravel:
    def test_pickled(self, awkward: list[str]) -> None:
        true = oracle(awkward)
        for table in (
            IndexedDataset(awkward),
            IndexedDataset(awkward)[::-2],
            IndexedDataset(awkward).subset([5, 2, 9]),
            IndexedDataset(awkward).select("cls == 1"),
        ):
            some = list(table)
            again = pickle.loads(pickle.dumps(table))
            assert list(again) == some
            assert again[some[1]["__key__"]] == some[1]
        assert some != true

    def test_a_thousand_shards_in_ten_thousand_bytes(self, tmp_path: Path) -> None:
        rng = random.Random(0)
        with ShardWriter(f"{tmp_path}/train-%06d.tar") as writer:
            writer.write("a", {"cls": b"1"})
        manifest = (tmp_path / "train-manifest.json").read_text()
        import json

        document = json.loads(manifest)
        (shard,) = document["shardlist"]
        document["shardlist"] = [
            {
                **shard,
                "url": f"train-{n:06d}.tar",
                "nsamples": rng.randrange(9000, 11000),
                "filesize": 1 << 25,
            }
            for n in range(1000)
        ]
        document["wdscli"] = {"index": ".wds"}
        (tmp_path / "train-manifest.json").write_text(json.dumps(document))
        table = IndexedDataset(f"{tmp_path}/train-manifest.json", on_error="skip")
        table[0:0]
        assert len(table) > 9_000_000
        assert len(pickle.dumps(table)) < 10_000

    def test_tables_do_not_travel(self, tmp_path: Path) -> None:
        names = write_set(tmp_path, count=2000, per_shard=1000, image=1)
        table = IndexedDataset(names)
        list(table)
        assert "n00/img0000" in table
        assert len(pickle.dumps(table)) < 2000

    def test_a_fork_opens_its_own_files(self, shards: list[str]) -> None:
        table, true = IndexedDataset(shards, threads=2), oracle(shards)
        assert table.__getitems__([0, 9, 22])
        child = os.fork()
        if not child:
            signal.alarm(20)
            good = table.__getitems__([3, 8, 21]) == [true[3], true[8], true[21]] and table[5] == true[5]
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert table[4] == true[4]

    def test_many_threads_of_one_table(self, awkward: list[str]) -> None:
        table, true = IndexedDataset(awkward), oracle(awkward)
        wrong: list[int] = []

        def read(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(60):
                numbers = [rng.randrange(len(true)) for _ in range(9)]
                if table.__getitems__(numbers) != [true[number] for number in numbers]:
                    wrong.append(seed)
                if table[numbers[0]] != true[numbers[0]]:
                    wrong.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestElsewhere:
    def test_http(self, tmp_path: Path) -> None:
        true = oracle(write_set(tmp_path, count=64, per_shard=16, image=3000))
        with web_server("ranges") as web:
            serve(web, tmp_path)
            table = IndexedDataset(web.url("in-manifest.json"))
            assert len(table) == 64
            assert _payloads(table) == _payloads(true)
            assert table["n01/img0009"]["json"] == b'{"width": 9}'
            web.ranges.clear()
            numbers = list(range(40, 48)) + list(range(3, 11))
            assert _payloads(table.__getitems__(numbers)) == _payloads([true[number] for number in numbers])
            assert len(web.ranges) <= 16

    def test_http_fields_leave_the_images(self, tmp_path: Path) -> None:
        write_set(tmp_path, count=40, per_shard=20, image=100_000)
        with web_server("ranges") as web:
            serve(web, tmp_path)
            table = IndexedDataset(web.url("in-manifest.json"), fields=["json"])
            assert [one["json"] for one in table] == [b'{"width": %d}' % number for number in range(40)]
            assert table[7]["json"] == b'{"width": 7}'
            assert web.sent_bytes < 40 * 30_000

    @pytest.mark.exhaustive
    def test_http_selections_read_what_they_look_into(self, tmp_path: Path) -> None:
        write_set(tmp_path, count=40, per_shard=20, image=100_000)
        with web_server("ranges") as web:
            serve(web, tmp_path)
            table = IndexedDataset(web.url("in-manifest.json"))
            assert len(table.select("json.width > 35")) == 4
            assert web.sent_bytes < 40 * 30_000

    def test_http_behind_a_fork(self, tmp_path: Path) -> None:
        true = _payloads(oracle(write_set(tmp_path)))
        with web_server("ranges") as web:
            serve(web, tmp_path)
            table = IndexedDataset(web.url("in-manifest.json"))
            assert _payloads(table[:9]) == true[:9]
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(0 if _payloads(table) == true else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert _payloads(table[9:]) == true[9:]

    @pytest.mark.parametrize("with_index", [False, True])
    def test_http_without_a_manifest(self, tmp_path: Path, with_index: bool) -> None:
        true = oracle(write_set(tmp_path, per_shard=2))
        with web_server("ranges") as web:
            serve(web, tmp_path)
            for name in list(web.files):
                if name.endswith("manifest.json") or (name.endswith(".wdx") and not with_index):
                    del web.files[name]
            table = IndexedDataset([web.url(f"in-{number:03d}.tar") for number in range(12)])
            assert table.catalog.counts.tolist() == [2] * 11 + [1]
            assert _payloads(table[::-1]) == _payloads(true[::-1])

    def test_http_without_ranges(self, tmp_path: Path) -> None:
        write_set(tmp_path)
        with web_server("chunked") as web:
            serve(web, tmp_path)
            with pytest.raises(UsageError, match="streams"):
                IndexedDataset(web.url("in-000.tar"))

    def test_s3(self, tmp_path: Path) -> None:
        pytest.importorskip("moto.server")
        true = oracle(write_set(tmp_path, count=10))
        with s3_server() as server:
            bucket = server.bucket("bucket")
            for path in tmp_path.rglob("*"):
                if path.is_file():
                    server.client.put_object(
                        Bucket=bucket, Key=path.relative_to(tmp_path).as_posix(), Body=path.read_bytes()
                    )
            table = IndexedDataset(f"s3://{bucket}/in-manifest.json")
            assert _payloads(table.__getitems__([9, 0, 4, 5])) == _payloads([true[n] for n in (9, 0, 4, 5)])
            assert len(table.select("cls == 1")) == 3
            table.close()


def _payloads(samples: object) -> list[Raw]:
    """Samples without where they come from."""
    return [{name: one[name] for name in one if name != "__url__"} for one in samples]  # type: ignore[attr-defined]
