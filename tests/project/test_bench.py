"""scripts/bench: the three ways of a set hold the same samples, and the tables say what was found. No times here."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture
def sets(scripts: None) -> Any:
    import _bench_sets

    return _bench_sets


@pytest.fixture
def bench(scripts: None) -> Any:
    import _bench

    return _bench


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("kind", ["tiny", "text", "images"])
def test_the_three_ways_hold_the_same_samples(sets: Any, kind: str, tmp_path: Path) -> None:
    expected = [
        (f"{key}.{field}", payload)
        for key, fields in sets.samples(kind, 10)
        for field, payload in fields.items()
    ]
    for way in sets.WAYS:
        data = sets.Data(tmp_path / way, kind, 10, way)
        sets.make_set(data)
        sets.make_whole(data)
        assert len(data.shards) == sets.SHARDS
        assert [member for path in data.shards for member in members(path)] == expected
        assert members(data.whole) == expected


def test_members_of_webdataset_have_a_pax_header_with_a_fraction_of_a_second(
    sets: Any, tmp_path: Path
) -> None:
    data = sets.Data(tmp_path, "tiny", 4, "webdataset")
    sets.make_set(data)
    with tarfile.open(data.shards[0]) as tar:
        assert all("." in member.pax_headers["mtime"] for member in tar)


def test_headers_of_the_second_way_are_those_of_gnu_tar(sets: Any, tmp_path: Path) -> None:
    data = sets.Data(tmp_path, "images", 4, "gnu")
    sets.make_set(data, 1)
    sets.make_tree(data)
    with tarfile.open(data.shards[0]) as tar:
        assert len({member.mtime for member in tar}) == len(tar.getnames()) == 12
        # The archive of GNU tar has one time for all of its files, so each member is compared by itself.
        for member in tar:
            words = f"--owner={sets.OWNER}:{sets.OWNER_ID} --group={sets.GROUP}:{sets.OWNER_ID}"
            done = subprocess.run(
                f"tar cf - --format=gnu {words} --mode={sets.MODE:o} --mtime=@{member.mtime} {member.name}".split(),
                cwd=tmp_path / "tree",
                check=True,
                capture_output=True,
            )
            with open(data.shards[0], "rb") as file:
                file.seek(member.offset)
                assert file.read(512) == done.stdout[:512]


@pytest.mark.exhaustive
def test_one_set_in_one_way_is_measured_in_the_rows_that_are_named(tmp_path: Path) -> None:
    program = "import _bench; _bench.QUICK['tiny'] = 200; _bench.main()"
    words = f"--quick --rounds 1 --set tiny --way gnu --way canonical --only ls --only none --dir {tmp_path}".split()
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("| wds")]
    assert [line.split()[1:4] for line in lines] == [["wds", "ls", "--by"]] * 2
    assert "(1.2x)" in lines[0]
    assert "(0.7)" in lines[1]
    assert "starting takes more than 10%" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive
def test_processor_time_is_that_of_the_programs_and_not_what_they_wait_for(
    bench: Any, tmp_path: Path
) -> None:
    data = bench.Data(tmp_path, "tiny", 1, by_processor=True)
    assert bench.timed_command("$ sleep 1", data) < 0.5
    assert bench.timed_command("$ sleep 1", data._replace(by_processor=False)) >= 1


def test_tables_fit_120_columns(bench: Any) -> None:
    table = {
        (way, row.work, kind): bench.Found(123.4, 1, 1, 0.2)
        for way in bench.WAYS
        for row in bench.ROWS
        for kind in bench.KINDS
    }
    for way in bench.WAYS:
        lines = list(bench.table_lines(table, bench.ROWS, way, list(bench.KINDS)))
        assert len({len(line) for line in lines}) == 1
        assert len(lines[0]) <= 120


def test_foreign_sets_show_the_share_of_the_canonical_ratio(bench: Any) -> None:
    canonical, foreign = bench.Found(20.0, 1, 1, 0), bench.Found(5.0, 1, 1, 0.2)
    assert bench.foreign_cell(foreign, canonical, 0.7) == "5.00x* 0.25 (0.7)"
    assert bench.foreign_cell(foreign, None, 0.7) == "5.00x*"


def test_a_row_whose_peer_is_missing_is_skipped_by_name(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "torch" else object())
    rows = bench.chosen("")
    assert "DataLoader, 2 workers, batched(64): torch is not installed" in capsys.readouterr().out
    assert len(rows) == len(bench.ROWS) - 3  # WebLoader and the conversion of batches need torch too


@pytest.mark.exhaustive
def test_efficiency_has_a_row_for_each_command(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.print_efficiency(tmp_path, {"tiny": 64}, (1,), 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("| wds")] == ["shuffle", "verify", "create"]
    assert all(line.endswith(" 1.00 |") for line in lines if line.startswith("| wds"))


@pytest.mark.exhaustive
def test_pictures_are_measured_in_the_rows_that_are_named(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    program = "import _bench_pictures as bench; bench.QUICK_COUNT = 6; bench.main()"
    words = ["--quick", "--rounds", "1", "--only", "1 thread", "--dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ours")]
    assert [line.split(" |")[0] for line in lines] == ["| ours, 1 thread" + 18 * " "]
    assert all(len(line) <= 120 and int(line.split("|")[2].split()[0]) > 0 for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive
def test_the_record_survives_a_killed_worker_and_prints_costs(tmp_path: Path) -> None:
    """The script itself fails if a shard differs from the one that a single process writes."""
    pytest.importorskip("distributed")
    pytest.importorskip("moto")
    done = subprocess.run(
        [sys.executable, "_record.py", "--size", "20MB", "--nodes", "2", "--dir", str(tmp_path)],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 of 2 workers; the output is verified" in done.stdout
    assert done.stdout.count("| c7") == 3
    assert not list(tmp_path.iterdir())
