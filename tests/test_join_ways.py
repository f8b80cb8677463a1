"""Joins by every way of doing them: with little memory and much, by gather and by spill, on one machine and others.

The plan of a way is compared row by row with that of another, and the output byte by byte.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dask_cluster import dask_cluster
from memory_of import peak_of_all
from shard_cases import content, leftovers, members_of, tar_of, wds
from storage_servers import S3, s3_server
from test_join import Sample, Set, members, oracle, write

from wdscli.errors import DataError, EngineError
from wdscli.ops import external, join_large, joined, large, memory, spill, strategy, survey
from wdscli.ops import join as join_module
from wdscli.ops.in_turn import OneByOne
from wdscli.ops.join import Join, join
from wdscli.ops.join_table import Table
from wdscli.ops.large import StoredOrdered
from wdscli.ops.plan import Cuts
from wdscli.ops.planfile import load_plan, write_plan
from wdscli.ops.reorder import Request, make_plan
from wdscli.ops.rows import row_type
from wdscli.ops.running import run_plan
from wdscli.ops.scratch import Scratch
from wdscli.ops.spilled import SPILLED, Reading
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
    read = joined.Joiner._read

    def watched(self: Any, first: Any, views: Any) -> None:
        seen.add(first.file)
        read(self, first, views)

    monkeypatch.setattr(joined.Joiner, "_read", watched)
    return seen


def buckets_entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows at which tasks enter a bucket from now on. A task must enter all that it has, and hold none."""
    seen: list[int] = []
    expected: list[int] = []

    def begun(self: Any, task: Any, *more: Any) -> None:
        assert seen == expected
        assert task.spilled is not None
        assert task.spilled.hold == 0
        expected.extend([0, *task.spilled.buckets])
        begin(self, task, *more)

    def watched(self: Any, row: int, open_part: Any) -> int:
        seen.append(row)
        return enter(self, row, open_part)

    begin, enter = joined.Joiner.__init__, Reading.enter
    monkeypatch.setattr(joined.Joiner, "__init__", begun)
    monkeypatch.setattr(Reading, "enter", watched)
    return seen


class TestSpill:
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    @pytest.mark.parametrize("policy", ["left", "suffix"])
    def test_same_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, policy: Any
    ) -> None:
        inputs = write(tmp_path, sets_of(3), shards=3)
        wanted = way(tmp_path / "gather", inputs, Join(kind, policy), strategy="gather")
        assert len(wanted) > 4
        assert way(tmp_path / "spill", inputs, Join(kind, policy), strategy="spill") == wanted
        monkeypatch.setattr(spill, "BUCKET_ROWS", 64)
        monkeypatch.setattr(spill, "LEAST_BUCKET", 20_000)
        monkeypatch.setattr(joined, "BUFFER", 9000)
        monkeypatch.setattr(joined, "AT_ONCE", 7)
        entered = buckets_entered(monkeypatch)
        assert way(tmp_path / "small", inputs, Join(kind, policy), strategy="spill") == wanted
        assert len(entered) > len(wanted)
        assert not leftovers(tmp_path)

    def test_what_is_not_there_breaks_no_run(self, tmp_path: Path) -> None:
        """A set that lacks every other key is still read from one end to the other."""
        sets: list[Set] = [
            [(f"k{n}", {f"s{number}": b""}) for n in range(0, 100, number)] for number in (1, 2)
        ]
        plan = Join("left").plan(Request(write(tmp_path, sets), "/nowhere/o.tar", jobs=1))
        run, total = strategy.mean_run(OneByOne(plan.row_lists))
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

    @pytest.mark.parametrize("limit", [1, 4 << 30])
    @pytest.mark.usefixtures("tiny")
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


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --memory 1 all that can be is on disc, some samples at a time."""
    monkeypatch.setattr(memory, "LEAST_PLAN", 1000)
    for module, name, value in [
        (large, "LEAST_SHARE", 7),
        (join_large, "LEAST_AT_ONCE", 10),
        (join_large, "BLOCK", 13),
        (external, "LEAST_RUN", 50),
        (external, "LEAST_READ", 10),
        (external, "BLOCK", 16),
    ]:
        monkeypatch.setattr(module, name, value)


TINY, LARGE = 1, 4 << 30


def rows_of(inputs: list[str], how: Join, **more: Any) -> tuple[list[bytes], Any, dict[str, int], bool]:
    """The rows of a plan, its counts, and whether it is on disc."""
    with Scratch(None) as scratch:
        plan = how.plan(Request(inputs, "/nowhere/o-%d.tar", jobs=1, **more), scratch)
        assert plan.joined is not None
        found = [b"".join(block.rows.tobytes() for block in one.blocks()) for one in plan.row_lists]
        return found, plan.joined.counts, plan.dropped, isinstance(plan.ordered, StoredOrdered)


@pytest.mark.usefixtures("tiny")
class TestOnDisc:
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    @pytest.mark.parametrize("policy", ["left", "right", "suffix"])
    @pytest.mark.parametrize("count", [2, 3])
    def test_the_plan_is_that_of_memory(self, tmp_path: Path, kind: Any, policy: Any, count: int) -> None:
        sets = sets_of(count)
        inputs = write(tmp_path, sets, shards=3)
        *held, is_stored = rows_of(inputs, Join(kind, policy), memory=LARGE)
        assert not is_stored
        *stored, is_stored = rows_of(inputs, Join(kind, policy), memory=TINY)
        assert is_stored
        assert stored == held
        join(Request(inputs, f"{tmp_path}/o.tar", jobs=1, memory=TINY), Join(kind, policy))
        assert (tmp_path / "o.tar").read_bytes() == tar_of(members(oracle(sets, kind, policy)))

    def test_surveys_hold_no_more_than_their_share(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inputs = write(tmp_path, sets_of(2), shards=2)
        taken: list[Any] = []
        stored_rows = join_module.stored_rows

        def watched(some: Any, *more: Any) -> Any:
            taken.extend(some)
            return stored_rows(some, *more)

        monkeypatch.setattr(join_module, "stored_rows", watched)
        assert rows_of(inputs, Join("left", "right"), memory=TINY)[3]
        assert len(taken) == 4
        for one in taken:
            assert one.survey.stored is not None
            for words in (one.shape_of, one.plain, one.renamed):
                assert words.stored is not None
                assert not words.held

    def test_fields_apart(self, tmp_path: Path) -> None:
        """Under the policy ``error`` no blocks of members are known."""
        sets = sets_of(3)
        sets = [
            [(key, {f: p for f, p in fields.items() if f != "txt"}) for key, fields in one] for one in sets
        ]
        inputs = write(tmp_path, sets)
        *stored, is_stored = rows_of(inputs, Join("outer"), memory=TINY)
        assert is_stored
        assert stored == [*rows_of(inputs, Join("outer"), memory=LARGE)[:3]]

    def test_a_suffix_that_looks_like_a_field_of_a_later_set(self, tmp_path: Path) -> None:
        sets: list[Set] = [
            [(f"k{n}", {"txt": b"1"}) for n in range(40)],
            [(f"k{n}", {"txt": b"2" * 600}) for n in reversed(range(40))],
            [(f"k{n}", {"2.txt": b"3" * n * 30}) for n in range(40)],
        ]
        inputs = write(tmp_path, sets)
        how = Join("inner", "suffix")
        assert rows_of(inputs, how, memory=TINY)[:3] == rows_of(inputs, how, memory=LARGE)[:3]
        wanted = way(tmp_path / "a", inputs, how, memory=LARGE)
        assert way(tmp_path / "b", inputs, how, memory=TINY) == wanted

    def test_repeated_keys_are_left_out(self, tmp_path: Path) -> None:
        sets = sets_of(2)
        inputs = write(tmp_path, [one + [(key, {"z": b"again"}) for key, _ in one[10:60:3]] for one in sets])
        found = []
        for limit in (LARGE, TINY):
            found.append(rows_of(inputs, Join("outer", "left"), memory=limit, on_duplicate="skip"))
            with pytest.raises(DataError, match="a second time") as raised:
                rows_of(inputs, Join("outer", "left"), memory=limit)
            found[-1] = (*found[-1], str(raised.value))
        assert found[0][:3] == found[1][:3]
        assert found[0][4] == found[1][4]
        assert found[1][2]["duplicate-key"] == 34
        assert found[1][3]

    def test_no_partners(self, tmp_path: Path) -> None:
        sets: list[Set] = [[(f"{number}/{n}", {"x": b""}) for n in range(50)] for number in range(2)]
        inputs = write(tmp_path, sets)
        for kind, total in (("inner", 0), ("left", 50), ("outer", 100)):
            *stored, is_stored = rows_of(inputs, Join(kind), memory=TINY)  # type: ignore[arg-type]
            assert is_stored
            assert stored == [*rows_of(inputs, Join(kind), memory=LARGE)[:3]]  # type: ignore[arg-type]
            assert len(stored[0][0]) == row_type().itemsize * total

    def test_empty_sets(self, tmp_path: Path) -> None:
        sets = sets_of(1)
        for number, pair in enumerate([[sets[0], []], [[], sets[0]]]):
            inputs = write(tmp_path / str(number), pair, shards=2)
            for kind in ("inner", "left", "outer"):
                found = [rows_of(inputs, Join(kind, "left"), memory=limit) for limit in (LARGE, TINY)]  # type: ignore[arg-type]
                assert found[0][:3] == found[1][:3]

    def test_the_first_conflict_is_told(self, tmp_path: Path) -> None:
        sets = sets_of(2)
        inputs = write(tmp_path, sets, shards=2)
        told = []
        for limit in (LARGE, TINY):
            with pytest.raises(DataError, match='has a field "txt" in two sets') as raised:
                rows_of(inputs, Join("outer"), memory=limit)
            told.append((str(raised.value), raised.value.shard, raised.value.offset))
        assert told[0] == told[1]
        first = next(
            key for key, fields in sets[0] if "txt" in fields and "txt" in dict(sets[1]).get(key, {})
        )
        assert f'"{first}"' in told[0][0]

    def test_two_keys_of_one_hash(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = write(tmp_path, sets_of(2))
        monkeypatch.setattr(survey, "hash_key", lambda key: len(key))
        told = []
        for limit in (LARGE, TINY):
            with pytest.raises(DataError, match="have one XXH3-64") as raised:
                rows_of(inputs, Join("outer", "left"), memory=limit)
            told.append((str(raised.value), raised.value.shard, raised.value.offset))
        assert told[0] == told[1]

    @pytest.mark.parametrize("at", range(0, 30, 3))
    def test_two_of_one_hash_wherever_they_lie(self, tmp_path: Path, at: int) -> None:
        import numpy

        records = numpy.zeros(40, dtype=join_large._kind(0))
        records["row"]["key"] = [key - (key > at) for key in range(40)]
        records["row"]["place"] = range(40)
        found = join_large.ByKey(external.store([records], records.dtype, f"{tmp_path}/s"), [], {})
        both = join_large.twice_stored(found)
        assert both is not None
        assert both.places.tolist() == [at, at + 1]

    def test_tables(self, tmp_path: Path) -> None:
        sets = sets_of(1)
        inputs = write(tmp_path, sets, shards=2)
        lines = [f"{key},{number}" for number, (key, _) in enumerate(reversed(sets[0][::2]))]
        (tmp_path / "t.csv").write_text("\n".join(["id,caption", *lines]) + "\n")
        how = Join("left", table=Table(f"{tmp_path}/t.csv", "id", ("txt=caption",)))
        wanted = way(tmp_path / "a", inputs, how, memory=LARGE)
        assert way(tmp_path / "b", inputs, how, memory=TINY) == wanted
        assert way(tmp_path / "c", inputs, how, memory=TINY, strategy="spill") == wanted

    def test_plans_that_are_stored(self, tmp_path: Path) -> None:
        inputs = write(tmp_path, sets_of(3), shards=2)
        found = []
        for name, limit in (("a", LARGE), ("b", TINY)):
            address = f"{tmp_path}/{name}.plan"
            request = Request(inputs, f"{tmp_path}/out/o-%d.tar", jobs=1, plan_file=address, memory=limit)
            with Scratch(None) as scratch:
                plan = make_plan(request, Join("outer", "left"), scratch)
                assert isinstance(plan.ordered, StoredOrdered) == (limit == TINY)
                write_plan(plan, address)
            found.append(load_plan(address))
        assert found[0].mark == found[1].mark
        wanted = way(tmp_path / "a", inputs, Join("outer", "left"))
        (tmp_path / "out").mkdir()
        run_plan(found[1])
        made = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("*.tar")))
        assert members_of(made) == [m for data in _shards(wanted).values() for m in members_of(data)]

    @pytest.mark.parametrize("strategy", ["gather", "spill"])
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    def test_every_strategy(self, tmp_path: Path, strategy: Any, kind: Any) -> None:
        inputs = write(tmp_path, sets_of(3), shards=2)
        wanted = way(tmp_path / "a", inputs, Join(kind, "suffix"), memory=LARGE, strategy="gather")
        found = way(tmp_path / "b", inputs, Join(kind, "suffix"), memory=TINY, strategy=strategy)
        assert found == wanted
        assert not leftovers(tmp_path)


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


class TestMemory:
    def test_resident_bytes_are_bounded(self, many: list[str]) -> None:
        words = ["merge", "--join", "outer", "--on-conflict", "suffix", *many, "-o", "/nowhere/o.tar"]
        limited, free = [peak_of_all(*words, "-n", "-j1", "--memory", limit) for limit in ("1MiB", "4GiB")]
        assert limited < memory.least(1) * 5 // 4 < free

    def test_same_bytes(self, many: list[str], tmp_path: Path) -> None:
        words = ["merge", "--join", "inner", *many, "--limit", "30000", "--max-count", "8000"]
        for name, *more in [
            ("wanted", "-j1", "--memory", "4GiB"),
            ("gather", "-j1", "--memory", "1MiB", "--strategy", "gather"),
            ("spill", "-j2", "--memory", "1MiB", "--strategy", "spill"),
        ]:
            ran = wds(*words, "-o", f"{tmp_path}/{name}/o-%d.tar", *more)
            assert ran.code == 0, ran.err
            assert content(tmp_path / name) == content(tmp_path / "wanted")
        assert len(content(tmp_path / "wanted")) > 8


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


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
        monkeypatch.setattr(strategy, "WORTH_BYTES", 1)
        plan = Join("left", "suffix").plan(Request(inputs, "/nowhere/o.tar", jobs=1))
        assert plan.strategy == "spill"
        assert "samples lie scattered" in plan.reason
        seen = files_read(monkeypatch)
        for number, tmp in enumerate([None, f"s3://{place}/t"]):
            found = way(tmp_path / f"far{number}", inputs, Join("left", "suffix"), tmp=tmp)
            assert _shards(found) == _shards(wanted)
        assert min(seen) >= SPILLED
        assert s3.names(place) == ["set0.tar", "set1.tar"]

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
            monkeypatch.setattr(join_module, "ROW_BYTES", 1 << 20)
            warned = Warned()
            how.plan(Request(inputs, "/nowhere/o.tar", engine=cluster.url, memory=1), None, progress=warned)
        assert any("a join on an engine holds its plan in memory: about" in one for one in warned.told)


def _shards(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without the manifest, which names the set's fingerprint."""
    return {name: data for name, data in found.items() if name.endswith(".tar")}
