"""Joins by every way of doing them: with little memory and much, by gather and by spill, on one machine and others.

The plan of a way is compared row by row with that of another, and the output byte by byte.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from shard_cases import leftovers, tar_of
from test_join import Sample, Set, members, oracle, write

from wdscli.errors import DataError
from wdscli.ops import external, join_large, joined, large, memory, spill, survey
from wdscli.ops.join import Join, join
from wdscli.ops.join_table import Table
from wdscli.ops.large import StoredOrdered
from wdscli.ops.plan import Cuts
from wdscli.ops.reorder import Request
from wdscli.ops.scratch import Scratch
from wdscli.ops.spilled import SPILLED


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
        assert way(tmp_path / "small", inputs, Join(kind, policy), strategy="spill") == wanted
        assert not leftovers(tmp_path)

    def test_samples_are_read_from_scratch_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sets = sets_of(2)
        inputs = write(tmp_path, sets)
        seen: set[int] = set()
        read = joined.Joiner._read

        def watched(self: Any, first: Any, views: Any) -> None:
            seen.add(first.file)
            read(self, first, views)

        monkeypatch.setattr(joined.Joiner, "_read", watched)
        join(Request(inputs, f"{tmp_path}/o.tar", strategy="spill", jobs=1), Join("left", "right"))
        assert min(seen) >= SPILLED
        assert (tmp_path / "o.tar").read_bytes() == tar_of(members(oracle(sets, "left", "right")))


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
            assert len(stored[0][0]) == 45 * total

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

    def test_tables(self, tmp_path: Path) -> None:
        sets = sets_of(1)
        inputs = write(tmp_path, sets, shards=2)
        lines = [f"{key},{number}" for number, (key, _) in enumerate(reversed(sets[0][::2]))]
        (tmp_path / "t.csv").write_text("\n".join(["id,caption", *lines]) + "\n")
        how = Join("left", table=Table(f"{tmp_path}/t.csv", "id", ("txt=caption",)))
        wanted = way(tmp_path / "a", inputs, how, memory=LARGE)
        assert way(tmp_path / "b", inputs, how, memory=TINY) == wanted
        assert way(tmp_path / "c", inputs, how, memory=TINY, strategy="spill") == wanted

    @pytest.mark.parametrize("strategy", ["gather", "spill"])
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    def test_every_strategy(self, tmp_path: Path, strategy: Any, kind: Any) -> None:
        inputs = write(tmp_path, sets_of(3), shards=2)
        wanted = way(tmp_path / "a", inputs, Join(kind, "suffix"), memory=LARGE, strategy="gather")
        found = way(tmp_path / "b", inputs, Join(kind, "suffix"), memory=TINY, strategy=strategy)
        assert found == wanted
        assert not leftovers(tmp_path)
