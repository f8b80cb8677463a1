"""Joins by every way of doing them: with little memory and much, by gather and by spill, on one machine and others.

The plan of a way is compared row by row with that of another, and the output byte by byte.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from dask_cluster import dask_cluster
from memory_of import peak_of_all
from reorders import join
from shard_cases import content, leftovers, tar_of, wds
from storage_servers import S3
from test_join import Sample, Set, members, oracle, write

from wdscli.copy import copier, spill
from wdscli.copy.spill import SPILLED, Reading
from wdscli.errors import EngineError, UsageError
from wdscli.plan import strategy
from wdscli.plan.cut import Cuts
from wdscli.plan.join import Join
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.plan.scratch import NO_ROOM
from wdscli.progress import NullProgress
from wdscli.tar import END_OF_ARCHIVE, build_header


def sets_of(count: int, total: int = 300) -> list[Set]:
    """Sets in different orders, each with keys that others have not, of several shapes, with fields in common."""
    rng = random.Random(count)
    made: list[Set] = []
    for number in range(count):
        some: list[Sample] = []
        for key in rng.sample(range(total + 50), total):
            fields = {f"s{number}": rng.randbytes(rng.choice([0, 1, 511, 512, 700])), "txt": b"%d" % number}
            if key % 3 == number:
                fields[f"more{number}"] = b"m"
            if key % 7 == 0:
                del fields["txt"]
            some.append((f"n{key % 5}/k{key}" + "x" * (85 if key % 11 == 0 else 0), fields))
        made.append(some)
    return made


def way(folder: Path, inputs: list[str], how: Join, **more: Any) -> dict[str, bytes]:
    """All shards of a join done in some way."""
    folder.mkdir()
    request = Request(inputs, f"{folder}/o-%03d.tar", cuts=Cuts(max_count=40), **{"jobs": 1, **more})
    join(request, how)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file()}


def files_read(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of what joins read from now on; those of shards are small."""
    seen: set[int] = set()
    read = copier.read

    def watched(sources: Any, ranges: Any, buffer: memoryview) -> None:
        seen.update(ranges.files.tolist())
        read(sources, ranges, buffer)

    monkeypatch.setattr(copier, "read", watched)
    return seen


def buckets_entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows at which tasks enter a bucket from now on. A task must enter all that it has."""
    seen: list[int] = []
    expected: list[int] = []

    def begun(self: Any, task: Any, *more: Any) -> None:
        assert seen == expected
        assert task.spilled is not None
        expected.extend([0, *task.spilled.buckets])
        begin(self, task, *more)

    def watched(self: Any, spilled: Any, row: int, end: int) -> None:
        seen.append(row)
        enter(self, spilled, row, end)

    begin, enter = copier.Copier.__init__, Reading.enter
    monkeypatch.setattr(copier.Copier, "__init__", begun)
    monkeypatch.setattr(Reading, "enter", watched)
    return seen


class TestSpill:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    @pytest.mark.parametrize("policy", ["left", "suffix"])
    def test_same_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, policy: Any
    ) -> None:
        inputs = write(tmp_path, sets_of(3), shards=3)
        wanted = way(tmp_path / "gather", inputs, Join(kind, policy), strategy="gather")
        assert len(wanted) > 4
        assert way(tmp_path / "spill", inputs, Join(kind, policy), strategy="spill") == wanted
        monkeypatch.setattr(spill, "ROWS_PER_BUCKET", 64)
        monkeypatch.setattr(spill, "LEAST_BUCKET_BYTES", 20_000)
        monkeypatch.setattr(copier, "COPY_BUFFER_BYTES", 9000)
        monkeypatch.setattr(copier, "ROWS_PER_CHUNK", 21)
        entered = buckets_entered(monkeypatch)
        assert way(tmp_path / "small", inputs, Join(kind, policy), strategy="spill") == wanted
        assert len(entered) > len(wanted)
        assert not leftovers(tmp_path)

    def test_what_is_not_there_breaks_no_run(self, tmp_path: Path) -> None:
        """A set that lacks every other key is still read from one end to the other."""
        sets: list[Set] = [
            [(f"k{n}", {f"s{number}": b""}) for n in range(0, 100, number)] for number in (1, 2)
        ]
        plan = make_plan(Request(write(tmp_path, sets), "/nowhere/o.tar", jobs=1), Join("left"))
        run, total = strategy.mean_run(plan.contents.row_lists)
        assert total == 150 * 512
        assert run == total // 2

    def test_samples_are_read_from_scratch_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sets = sets_of(2)
        inputs = write(tmp_path, sets)
        seen = files_read(monkeypatch)
        join(Request(inputs, f"{tmp_path}/o.tar", strategy="spill", jobs=1), Join("left", "right"))
        assert min(seen) >= SPILLED
        assert (tmp_path / "o.tar").read_bytes() == tar_of(members(oracle(sets, "left", "right")))

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("limit", [1, 4 << 30])
    def test_going_on_spills_what_is_missing(self, tmp_path: Path, limit: int) -> None:
        """Shards that are whole are kept, whatever way made them."""
        inputs = write(tmp_path, sets_of(3), shards=2)
        how = Join("outer", "suffix")
        way(tmp_path / "wanted", inputs, how)
        hook = f"case {{}} in *o-003*) test -e {tmp_path}/go;; esac"
        out = tmp_path / "out"
        with pytest.raises(EngineError):
            way(out, inputs, how, strategy="gather", post=hook)
        before = (out / "o-000.tar").stat().st_ino
        (tmp_path / "go").touch()
        request = Request(
            inputs, f"{out}/o-%03d.tar", cuts=Cuts(max_count=40), jobs=1, post=hook, resume=True
        )
        report = join(request._replace(strategy="spill", memory=limit), how)
        assert 3 <= report.kept < report.shards
        assert (out / "o-000.tar").stat().st_ino == before
        assert content(out) == content(tmp_path / "wanted")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two sets of 150 thousand samples of 512 bytes, in different orders."""
    folder = tmp_path_factory.mktemp("many")
    names = []
    for number, field in enumerate([b"jpg", b"txt"]):
        keys = list(range(150_000))
        random.Random(number).shuffle(keys)
        path = folder / f"set{number}.tar"
        with path.open("wb") as file:
            file.writelines(build_header(b"n%07d.%s" % (key, field), 0) for key in keys)
            file.write(END_OF_ARCHIVE)
        names.append(str(path))
    return names


@pytest.mark.exhaustive
class TestMemory:
    def test_resident_bytes_are_bounded(self, many: list[str]) -> None:
        words = ["merge", "--join", "outer", "--on-conflict", "suffix", *many, "-o", "/nowhere/o.tar"]
        assert peak_of_all(*words, "-n", "-j1", what="RssAnon") < strategy.MAIN_BYTES + 300_000 * 48

    def test_same_bytes(self, many: list[str], tmp_path: Path) -> None:
        words = ["merge", "--join", "inner", *many, "--limit", "30000", "--max-count", "8000"]
        for name, *more in [
            ("wanted", "-j1", "--memory", "4GiB"),
            ("gather", "-j1", "--memory", "64MiB", "--strategy", "gather"),
            ("spill", "-j2", "--memory", "64MiB", "--strategy", "spill"),
        ]:
            ran = wds(*words, "-o", f"{tmp_path}/{name}/o-%d.tar", *more)
            assert ran.code == 0, ran.err
            assert content(tmp_path / name) == content(tmp_path / "wanted")
        assert len(content(tmp_path / "wanted")) > 8


class Warned(NullProgress):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def warn(self, message: str) -> None:
        self.told.append(message)


class TestElsewhere:
    def test_remote_sets_in_other_orders(
        self, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spilled unasked, here or to scratch space on the store; no task asks for a sample of an input."""
        sets = sets_of(2, 120)
        wanted = way(tmp_path / "near", write(tmp_path, sets), Join("left", "suffix"))
        place = s3.bucket("join")
        for number, one in enumerate(sets):
            s3.client.put_object(Bucket=place, Key=f"set{number}.tar", Body=tar_of(members(one)))
        inputs = [f"s3://{place}/set{number}.tar" for number in range(2)]
        # Such little sets are copied, or gathered, as long as nobody says that it costs more.
        monkeypatch.setattr("wdscli.plan.plan._Planning._room", lambda *_: NO_ROOM)
        monkeypatch.setattr(strategy, "cost_of_gathering", lambda *_: strategy.Cost(1000, 1 << 30))
        plan = make_plan(Request(inputs, "/nowhere/o.tar", jobs=1), Join("left", "suffix"))
        assert plan.choice.strategy == "spill"
        assert "gathering takes 1000 requests" in plan.choice.reason
        seen = files_read(monkeypatch)
        for number, tmp in enumerate([None, f"s3://{place}/t"]):
            found = way(tmp_path / f"far{number}", inputs, Join("left", "suffix"), tmp=tmp)
            assert _shards(found) == _shards(wanted)
        assert min(seen) >= SPILLED
        assert s3.names(place) == ["set0.tar", "set1.tar"]

    @pytest.mark.exhaustive
    def test_on_dask(
        self, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("distributed")
        inputs = write(tmp_path, sets_of(2, 120))
        how = Join("outer", "left")
        wanted = way(tmp_path / "a", inputs, how)
        with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
            for number, asked in enumerate(("gather", "spill")):
                more = {"engine": cluster.url, "strategy": asked, "tmp": str(tmp_path)}
                assert way(tmp_path / f"dask{number}", inputs, how, **more) == wanted
            monkeypatch.setattr(strategy, "LEAST_PLAN_BYTES", 1000)
            with pytest.raises(UsageError, match="a plan of 240 samples takes"):
                make_plan(Request(inputs, "/nowhere/o.tar", engine=cluster.url, memory=1), how)


def _shards(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without the manifest, which names the set's fingerprint."""
    return {name: data for name, data in found.items() if name.endswith(".tar")}
