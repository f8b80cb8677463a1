"""The table of a plan: what lies in scratch files and in memory, and what is refused because it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from awkward_sets import write_awkward
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_cases import content, no_new_files, numbered, write_shards

from wdscli import arrays
from wdscli.cli.main import main
from wdscli.errors import OutputError
from wdscli.ordering import order_of_hashes
from wdscli.plan import duplicates, strategy, table
from wdscli.plan import survey as survey_module
from wdscli.plan.inputs import Input
from wdscli.plan.survey import SurveyTask, survey
from wdscli.plan.table import Growing, moved_up, row_type
from wdscli.selection import Selection
from wdscli.tar import Form


def rows_of(total: int, first: int = 0) -> Any:
    rows = numpy.zeros(total, dtype=row_type())
    rows["key"] = numpy.arange(first, first + total)
    return rows


class TestGrowing:
    @pytest.mark.parametrize("held", [0, 100, 1 << 20])
    def test_it_holds_what_was_appended_and_can_be_changed(self, monkeypatch: Any, held: int) -> None:
        monkeypatch.setattr(table, "HELD_BYTES", held)
        growing = Growing()
        for first in range(0, 5000, 777):
            growing.append_rows(rows_of(min(777, 5000 - first), first))
        found = growing.table()
        assert found.keys.tolist() == list(range(5000))
        found.keys[17] = 99
        assert found.take([17]).keys.tolist() == [99]

    def test_nothing(self) -> None:
        assert Growing().table().total == 0

    def test_its_file_has_no_name(self, tmp_path: Path) -> None:
        growing = Growing(str(tmp_path))
        growing.append(bytes(table.HELD_BYTES + 1))
        assert list(tmp_path.iterdir()) == []
        assert len(growing.mapped()) == table.HELD_BYTES + 1

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="cannot write scratch space"):
            Growing(str(tmp_path / "none")).append(bytes(table.HELD_BYTES + 1))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.sampled_from([1, 2, 7, 100]))
def test_what_stays_moves_up(total: int, some: set[int], block: int) -> None:
    gone = sorted(one for one in some if one < total)
    before, arrays.ROWS_PER_BLOCK = arrays.ROWS_PER_BLOCK, block
    try:
        found = moved_up(numpy.arange(total), gone).tolist()
    finally:
        arrays.ROWS_PER_BLOCK = before
    assert found == [one for one in range(total) if one not in gone]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1 << 63]) | st.integers(0, 5), max_size=60),
    st.sampled_from([0, 7, 50]),
    st.sampled_from([2, 7, 1000]),
)
def test_hashes_are_ordered_as_a_stable_sort_does_it(hashes: list[int], shift: int, block: int) -> None:
    """Also those that differ in a few bits only, above or below those that the row's number takes."""
    column = numpy.array([one >> shift for one in hashes], dtype=numpy.uint64)
    before, arrays.ROWS_PER_BLOCK = arrays.ROWS_PER_BLOCK, block
    try:
        found = order_of_hashes(len(column), column.__getitem__).tolist()
    finally:
        arrays.ROWS_PER_BLOCK = before
    assert found == sorted(range(len(column)), key=column.tolist().__getitem__)


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_awkward(tmp_path_factory.mktemp("awkward") / "in", repeats=True)


@pytest.mark.parametrize("by", ["key", "jpg", "key,cls"])
def test_hashes_that_collide_make_no_duplicates(
    awkward: list[str], tmp_path: Path, monkeypatch: Any, capfd: Any, by: str
) -> None:
    """Where all hashes are the same all samples are compared, and the same duplicates are found."""
    told = []
    words = ["merge", *awkward, "--dedup", by, "--on-duplicate", "skip", "-o", str(tmp_path / "o.tar")]
    for _ in range(2):
        # Whoever copies samples would notice hashes that are none.
        assert main([*words, "-n", "--json"]) == 0
        told.append(capfd.readouterr().out)
        assert '"duplicate":"a/s000"' in told[0]
        monkeypatch.setattr(duplicates, "digest_of", lambda *_: bytes(range(16)))
        monkeypatch.setattr(survey_module, "hash_key", lambda _: 77)
    assert told[0] == told[1]


class TestMemory:
    def test_what_does_not_fit_is_refused_with_what_would_do(
        self, tmp_path: Path, monkeypatch: Any, capfd: Any
    ) -> None:
        names = write_shards(tmp_path / "in", [numbered(40, "a")])
        monkeypatch.setattr(strategy, "LEAST_PLAN_BYTES", 1000)
        words = ["shuffle", *names, "-o", str(tmp_path / "o.tar"), "--memory", "1MiB"]
        with no_new_files(tmp_path):
            assert main(words) == 2
        said = capfd.readouterr().err
        assert "a plan of 40 samples takes 1.28 kB of memory, but --memory leaves only 1.00 kB for it" in said
        hint = next(line for line in said.splitlines() if line.startswith("hint: "))
        assert main([*words[:-1], hint.split()[-1]]) == 0

    def test_a_machine_that_is_too_small(self, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
        names = write_shards(tmp_path / "in", [numbered(40, "a")])
        monkeypatch.setattr(strategy, "available", lambda: 1000)
        assert main(["sort", *names, "-o", str(tmp_path / "o.tar")]) == 5
        assert (
            "a plan of 40 samples takes 1.92 kB of memory, but only 1.00 kB are free"
            in capfd.readouterr().err
        )


@pytest.mark.parametrize("indexed", [False, True])
def test_a_survey_holds_no_more_rows_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    (name,) = write_shards(tmp_path / "in", [numbered(5000, sizes=[1])])
    if indexed:
        assert main(["index", "-q", name]) == 0
    task = SurveyTask(Input(name), Form(), Selection())
    whole = survey(task)
    assert whole.stored is None
    monkeypatch.setattr(survey_module, "HELD_ROWS", 100)
    stored = survey(task._replace(overflow=str(tmp_path / "tmp" / "rows")))
    assert (stored.blocks, stored.total) == ([], 5000)
    assert (tmp_path / "tmp" / "rows").stat().st_size > 5000 * row_type().itemsize
    assert b"".join(block.rows.tobytes() for block in stored.taken()) == whole.blocks[0].rows.tobytes()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_large_index_is_not_read_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers are read instead; the bytes are the same."""
    names = write_shards(tmp_path / "in", [numbered(40, "a"), numbered(30, "b")])
    assert main(["index", *names, "-q"]) == 0
    read = []
    original = survey_module._at_any_place

    def noted(task: Any, *more: Any) -> Any:
        read.append(task.use_index)
        return original(task, *more)

    monkeypatch.setattr(survey_module, "_at_any_place", noted)
    for number, cost in enumerate((survey_module.MEMORY_PER_INDEX_BYTE, 1 << 40)):
        monkeypatch.setattr(survey_module, "MEMORY_PER_INDEX_BYTE", cost)
        out = f"{tmp_path}/{number}/out-%d.tar"
        assert main(["shuffle", *names, "-o", out, "--memory", "256MiB", "-j", "1", "-q"]) == 0
    assert read == [True, True, False, False]
    assert content(tmp_path / "0") == content(tmp_path / "1")


@pytest.mark.parametrize("members", [1, 2, 3])
def test_samples_with_as_many_members_have_the_hashes_of_any(members: int) -> None:
    """The short way for them, and the long one that a further sample makes necessary."""
    names, sizes = (
        numpy.arange(1, 6 * members + 2, dtype=numpy.uint64) << numpy.uint64(40) for _ in range(2)
    )
    counts = numpy.array([members] * 5 + [members + 1])
    whole = table.headers_of(names[: counts.sum()], sizes[: counts.sum()], counts)
    same = table.headers_of(names[: 5 * members], sizes[: 5 * members], counts[:5])
    assert same.tolist() == whole[:5].tolist()
    assert len(set(whole.tolist())) == 6
