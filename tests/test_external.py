"""Records on disc, sorted: against numpy, whatever the memory and the ties; and plans that are larger than memory."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from awkward_sets import write_awkward
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_cases import content, numbered, sample, write_shards

from wdscli.cli.main import main
from wdscli.errors import OutputError
from wdscli.ops import dedup, external, large, reorder, sifting, strata, turns
from wdscli.ops import survey as survey_module
from wdscli.ops.external import Stored, sort_by_values, sort_records, store
from wdscli.ops.overflow import Keep
from wdscli.ops.rows import row_type
from wdscli.ops.scratch import Input
from wdscli.ops.survey import SurveyTask, survey
from wdscli.ops.value_order import order_by_values
from wdscli.selection import Selection
from wdscli.shards import ShardReader
from wdscli.tar import Form

KIND = numpy.dtype([("key", "<u8"), ("more", "<u2"), ("at", "<u4")])
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def new_path(tmp_path: Path) -> Callable[[str], str]:
    def new(name: str) -> str:
        return str(tmp_path / f"{name}-{os.urandom(6).hex()}")

    return new


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and reads of very few records, whatever the limit."""
    monkeypatch.setattr(external, "LEAST_RUN", 4)
    monkeypatch.setattr(external, "LEAST_READ", 2)
    monkeypatch.setattr(external, "BLOCK", 3)


def records(keys: list[int]) -> Any:
    rows = numpy.zeros(len(keys), dtype=KIND)
    rows["key"], rows["at"] = keys, numpy.arange(len(keys))
    return rows


def in_blocks(rows: Any, size: int) -> Iterator[Any]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


class TestNumbers:
    @quick
    @given(
        st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=120),
        st.integers(1, 40),
        st.sampled_from([1, 500, 3000, 1 << 20]),
    )
    def test_as_numpy_sorts(
        self, small: None, new_path: Any, keys: list[int], block: int, limit: int
    ) -> None:
        rows = records(keys)
        found = sort_records(in_blocks(rows, block), KIND, lambda some: some["key"], new_path, limit)
        expected = rows[numpy.lexsort((rows["at"], rows["key"]))]
        assert found.total == len(keys)
        assert found.read(0, found.total).tobytes() == expected.tobytes()
        assert b"".join(part.tobytes() for part in found.blocks(7)) == expected.tobytes()

    @pytest.mark.parametrize("keys", ["all equal", "sorted", "reversed", "random"])
    def test_many_records_in_little_memory(self, new_path: Any, tmp_path: Path, keys: str) -> None:
        count = 200_000
        made = {
            "all equal": numpy.full(count, 7),
            "sorted": numpy.arange(count),
            "reversed": numpy.arange(count)[::-1],
            "random": numpy.random.default_rng(1).integers(0, 1000, count),
        }[keys]
        rows = records(made.tolist())
        found = sort_records(in_blocks(rows, 10_000), KIND, lambda some: some["key"], new_path, 1 << 19)
        assert found.read(0, count).tobytes() == rows[numpy.argsort(made, kind="stable")].tobytes()
        # The runs are gone, the result is there.
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [count * KIND.itemsize]

    def test_nothing(self, new_path: Any) -> None:
        found = sort_records(iter([]), KIND, lambda some: some["key"], new_path, 1 << 20)
        assert found.total == 0
        assert len(found.read(0, 5)) == 0

    def test_a_disc_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError) as caught:
            sort_records([records([1])], KIND, lambda some: some["key"], lambda _: str(tmp_path / "no/x"), 9)
        assert "--tmp" in str(caught.value.hint)


class TestValues:
    @quick
    @given(
        st.lists(st.one_of(st.sampled_from([b"", b"a", b"b", b"a\0"]), st.binary(max_size=9)), max_size=80),
        st.integers(1, 30),
        st.sampled_from([1, 2000, 1 << 20]),
    )
    def test_as_python_sorts(self, new_path: Any, values: list[bytes], block: int, limit: int) -> None:
        rows = records([0] * len(values))
        blocks = [(values[at : at + block], rows[at : at + block]) for at in range(0, len(values), block)]
        found = sort_by_values(blocks, KIND, order_by_values, new_path, limit)
        expected = sorted(range(len(values)), key=values.__getitem__)
        assert found.read(0, found.total)["at"].tolist() == expected


class TestStored:
    def test_take_and_put(self, new_path: Any) -> None:
        rows = records(random.Random(3).choices(range(100), k=50))
        stored = store(in_blocks(rows, 8), KIND, new_path("x"))
        places = [3, 7, 49, 3]
        assert stored.take(places).tobytes() == rows[places].tobytes()
        changed = rows[[3, 9]].copy()
        changed["more"] = 5
        stored.put([3, 9], changed)
        rows["more"][[3, 9]] = 5
        assert Stored(stored.path, KIND, 50).read(0, 50).tobytes() == rows.tobytes()


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_awkward(tmp_path_factory.mktemp("awkward") / "in", repeats=True)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No plan fits: surveys hold four rows, sorts some more. The list tells what was done on disc."""
    done: list[str] = []
    limits = reorder.limits_for
    arranged = reorder.arranged_on_disc
    monkeypatch.setattr(reorder, "limits_for", lambda *args: limits(*args)._replace(plan=2000))
    monkeypatch.setattr(large, "LEAST_SHARE", 4)
    monkeypatch.setattr(large, "HELD", 7)
    monkeypatch.setattr(external, "LEAST_RUN", 16)
    monkeypatch.setattr(external, "LEAST_READ", 4)
    monkeypatch.setattr(sifting, "_LEAST", 3)
    for module in (large, strata, turns):
        monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(
        reorder, "arranged_on_disc", lambda *args: done.append(args[0].operation) or arranged(*args)
    )
    return done


def key_map(path: Path, names: list[str]) -> str:
    """A file that takes two of three keys to parts."""
    keys = sorted({sample.key for name in names for sample in ShardReader(name)})
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{key}\tp{at % 3}\n" for at, key in enumerate(keys) if at % 3))
    return str(path)


def made(folder: Path, names: list[str], *words: str) -> dict[str, bytes]:
    has_parts = not {"--ratio", "--by", "--by-map"}.isdisjoint(words) and words[0] == "split"
    out = f"{folder}/{'{part}-' if has_parts else ''}out-%06d.tar"
    if "MAP" in words:
        words = tuple(key_map(folder.with_suffix(".map"), names) if word == "MAP" else word for word in words)
    command = [words[0], *names, "-o", out, "-q", "-j", "1", *words[1:]]
    assert main(command) == 0, command
    return content(folder)


WEIGHTS = "3,1/99,0.5,1/7,2,2,2,9,1,4,1,1"
"""One for each of the awkward shards, the second of which is empty."""
WORDS = {
    "shuffle": ["shuffle", "--seed", "3", "--on-duplicate", "skip", "--max-count", "9"],
    "shuffle, repeats renamed": ["shuffle", "--on-duplicate", "rekey", "--max-size", "64KiB"],
    "shuffle, keys renamed": ["shuffle", "--rekey", "{shard}-{index}", "--shards", "3"],
    "shuffle, some": ["shuffle", "--where", "index % 3 == 1", "--on-duplicate", "skip", "--shards", "1"],
    "shuffle, new keys that come twice": ["shuffle", "--rekey", "x{index}", "--on-duplicate", "skip"],
    "sort": ["sort", "--by", "cls", "--on-duplicate", "skip", "--shards", "3"],
    "sort, repeats renamed": ["sort", "--by", "key:r", "--on-duplicate", "rekey", "--shards", "2"],
    "split": ["split", "--on-duplicate", "skip", "--max-size", "64KiB"],
    "split by ratio": ["split", "--on-duplicate", "skip", "--ratio", "a=0.5,b=0.5", "--shards", "2"],
    "split in groups": [
        *["split", "--on-duplicate", "skip", "--ratio", "a=1,b=1", "--group-by", "cls", "--missing", "drop"]
    ],
    "split, keys renamed": ["split", "--rekey", "{shard}-{index}", "--ratio", "a=1,b=1", "--shards", "2"],
    "split by quotas": [
        *[
            "split",
            "--on-duplicate",
            "skip",
            "--ratio",
            "a=5,b=3,c=1",
            "--stratify",
            "cls",
            "--missing",
            "drop",
        ]
    ],
    "split by quotas in groups": [
        *["split", "--on-duplicate", "rekey", "--ratio", "a=2,b=1", "--stratify", "json.w", "--seed", "7"],
        *["--group-by", "cls", "--missing", "drop", "--max-count", "5"],
    ],
    "split by quotas, one part": [
        *["split", "--rekey", "{shard}-{index}", "--ratio", "all=1", "--stratify", "cls", "--missing", "drop"]
    ],
    "split by field": ["split", "--on-duplicate", "skip", "--by", "cls", "--missing", "none"],
    "split by map": ["split", "--on-duplicate", "rekey", "--by-map", "MAP", "--missing", "drop"],
    "merge": ["merge", "--on-duplicate", "skip", "--shards", "2"],
    "merge in turn": ["merge", "--interleave", "--on-duplicate", "skip", "--max-count", "9"],
    "merge in turn, repeats renamed": ["merge", "--interleave", "--on-duplicate", "rekey", "--shards", "1"],
    "merge by weights": ["merge", "--weights", WEIGHTS, "--on-duplicate", "skip", "--max-size", "64KiB"],
    "merge until one has ended": [
        *["merge", "--weights", WEIGHTS, "--stop", "first", "--on-duplicate", "skip", "--max-count", "9"]
    ],
    "merge until one has ended, some": [
        *[
            "merge",
            "--weights",
            WEIGHTS,
            "--stop",
            "first",
            "--where",
            "index % 3 != 1",
            "--rekey",
            "{shard}-{index}",
        ]
    ],
    "merge without repeated keys": ["merge", "--dedup", "key", "--shards", "2"],
    "merge without repeated classes": ["merge", "--dedup", "cls", "--on-duplicate", "skip", "--shards", "2"],
    "merge without repeats": [
        "merge",
        "--dedup",
        "key,jpg,cls",
        "--on-duplicate",
        "rekey",
        "--max-count",
        "9",
    ],
    "merge without repeats of old keys": ["merge", "--dedup", "key", "--rekey", "{shard}-{index}"],
    "merge without repeats in turn": [
        *["merge", "--dedup", "jpg", "--weights", WEIGHTS, "--stop", "repeat", "--on-duplicate", "skip"]
    ],
    "merge without what nothing has": ["merge", "--dedup", "mp3", "--on-duplicate", "skip"],
    "merge again and again": ["merge", "--weights", WEIGHTS, "--stop", "repeat", "--on-duplicate", "skip"],
    "merge again and again, repeats renamed": [
        *["merge", "--weights", WEIGHTS, "--stop", "repeat", "--on-duplicate", "rekey", "--shards", "3"]
    ],
    "merge again and again, keys renamed": [
        *["merge", "--interleave", "--stop", "repeat", "--rekey", "{shard}-{index}", "--max-count", "100"]
    ],
}


class TestPlans:
    """Plans that do not fit in memory give the same bytes."""

    @pytest.mark.parametrize("strategy", ["gather", "spill"])
    @pytest.mark.parametrize("name", WORDS, ids=str)
    def test_same_bytes(
        self, awkward: list[str], tmp_path: Path, request: Any, name: str, strategy: str
    ) -> None:
        words = [*WORDS[name], "--strategy", strategy]
        expected = made(tmp_path / "a", awkward, *words)
        tiny = request.getfixturevalue("tiny")
        assert made(tmp_path / "b", awkward, *words) == expected
        assert tiny == [words[0]]

    def test_the_same_error_for_a_repeated_key(
        self, awkward: list[str], tmp_path: Path, request: Any, capfd: Any
    ) -> None:
        told = []
        for number in range(2):
            assert main(["shuffle", *awkward, "-o", str(tmp_path / "o.tar")]) == 3
            told.append(capfd.readouterr().err)
            if number == 0:
                request.getfixturevalue("tiny")
        assert told[0] == told[1]

    def test_the_same_error_for_a_key_of_a_later_round(
        self, tmp_path: Path, request: Any, capfd: Any
    ) -> None:
        taken = [sample(key, 1) for key in ("a003-1", "c001-2", "a001-2", "c000-1")]
        sets = [numbered(5, "a"), [*numbered(20, "b"), *taken], numbered(3, "c")]
        names = write_shards(tmp_path / "in", sets)
        told = []
        for number in range(2):
            out = str(tmp_path / "o.tar")
            assert main(["merge", *names, "--interleave", "--stop", "repeat", "-o", out]) == 3
            told.append(capfd.readouterr().err)
            if number == 0:
                request.getfixturevalue("tiny")
        assert "a second time" in told[0]
        assert told[0] == told[1]

    def test_what_is_left_out_is_not_planned(
        self, awkward: list[str], tmp_path: Path, request: Any, capfd: Any
    ) -> None:
        command = ["split", *awkward, "-n", "-o", str(tmp_path / "{part}.tar"), "--on-duplicate", "skip"]
        told = []
        for number in range(2):
            assert main([*command, "--by", "cls", "--missing", "drop"]) == 0
            told.append(capfd.readouterr().err.replace(" in runs of", ""))
            if number == 0:
                request.getfixturevalue("tiny")
        assert "missing " in told[0]
        assert told[0] == told[1]

    @pytest.mark.parametrize("collide", [False, True])
    @pytest.mark.parametrize("by", ["key", "jpg", "key,cls"])
    def test_the_same_duplicates_are_told(
        self, awkward: list[str], tmp_path: Path, request: Any, capfd: Any, by: str, collide: bool
    ) -> None:
        """Also where all hashes are the same, so that groups are in many blocks and hold samples that differ."""
        if collide:
            patch = request.getfixturevalue("monkeypatch")
            patch.setattr(dedup, "digest_of", lambda _: bytes(range(16)))
            patch.setattr(survey_module, "hash_key", lambda _: 77)
        told: list[Any] = []
        for number in range(2):
            report, out = tmp_path / f"{number}.jsonl", tmp_path / f"{number}-%06d.tar"
            words = ["merge", *awkward, "--dedup", by, "--on-duplicate", "skip", "-j", "1", "-o", str(out)]
            # Whoever copies samples would notice hashes that are none.
            more = ["-n", "--json"] if collide else ["--report", str(report), "-v"]
            assert main([*words, *more]) == 0
            data = [path.read_bytes() for path in sorted(tmp_path.glob(f"{number}-*.tar"))]
            listed, said = capfd.readouterr()
            listed = listed if collide else report.read_text()
            said = [line for line in said.splitlines() if line.startswith("left out")]
            assert '"duplicate":"a/s000"' in listed
            told.append((re.sub("[01]-", "", listed), said, data))
            if number == 0:
                done = request.getfixturevalue("tiny")
        assert told[0] == told[1]
        assert done == ["merge"]

    def test_a_value_that_no_sample_has(self, awkward: list[str], tmp_path: Path, tiny: list[str]) -> None:
        command = ["sort", *awkward, "-o", str(tmp_path / "o.tar"), "--on-duplicate", "skip"]
        assert main([*command, "--by", "nothing"]) == 3

    def test_in_processes(self, awkward: list[str], tmp_path: Path, request: Any) -> None:
        words = [*WORDS["shuffle"], "-j", "2", "--strategy", "spill"]
        expected = made(tmp_path / "a", awkward, *words)
        tiny = request.getfixturevalue("tiny")
        assert made(tmp_path / "b", awkward, *words) == expected
        assert tiny == ["shuffle"]

    def test_scratch_space_is_empty_in_the_end(
        self, awkward: list[str], tmp_path: Path, tiny: list[str]
    ) -> None:
        (tmp_path / "tmp").mkdir()
        made(tmp_path / "a", awkward, *WORDS["sort"], "--tmp", str(tmp_path / "tmp"), "--strategy", "spill")
        assert tiny == ["sort"]
        assert list((tmp_path / "tmp").iterdir()) == []

    def test_what_cannot_is_told(
        self, awkward: list[str], tmp_path: Path, tiny: list[str], capfd: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = ["merge", *awkward, "--interleave", "--on-duplicate", "skip", "-o"]
        monkeypatch.setattr(reorder, "can_be_external", lambda order: False)
        assert main([*command, str(tmp_path / "a.tar"), "--memory", "1MiB"]) == 0
        assert "holds all samples in memory" in capfd.readouterr().err
        monkeypatch.setattr(large, "available", lambda: 1000)
        assert main([*command, str(tmp_path / "b.tar")]) == 5
        assert "1.00 kB are free" in capfd.readouterr().err


@pytest.mark.parametrize("indexed", [False, True])
def test_a_survey_holds_no_more_rows_than_it_may(tmp_path: Path, indexed: bool) -> None:
    (name,) = write_shards(tmp_path / "in", [numbered(5000, sizes=[1])])
    if indexed:
        assert main(["index", "-q", name]) == 0
    task = SurveyTask(Input(name), Form(), Selection())
    whole = survey(task)
    assert whole.stored is None
    stored = survey(task._replace(keep=Keep(100, str(tmp_path / "tmp" / "rows"))))
    assert (len(stored.rows), stored.total) == (0, 5000)
    assert b"".join(rows.tobytes() for rows in stored.blocks()) == whole.rows.tobytes()
    assert (tmp_path / "tmp" / "rows").stat().st_size == 5000 * row_type().itemsize


def test_a_large_index_is_not_read_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers are read instead; the bytes are the same."""
    names = write_shards(tmp_path / "in", [numbered(40, "a"), numbered(30, "b")])
    assert main(["index", *names, "-q"]) == 0
    read = []
    original = survey_module._index_for

    def noted(task: Any, *more: Any) -> Any:
        read.append(task.use_index)
        return original(task, *more)

    monkeypatch.setattr(survey_module, "_index_for", noted)
    for number, cost in enumerate((large.INDEX_COST, 1 << 40)):
        monkeypatch.setattr(large, "INDEX_COST", cost)
        out = f"{tmp_path}/{number}/out-%d.tar"
        assert main(["shuffle", *names, "-o", out, "--memory", "256MiB", "-j", "1", "-q"]) == 0
    assert read == [True, True, False, False]
    assert content(tmp_path / "0") == content(tmp_path / "1")
