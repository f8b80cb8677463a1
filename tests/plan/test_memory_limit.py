"""``--memory`` bounds what all processes together have resident, changes no byte, and never makes a run fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_of import peak_of_all
from shard_cases import content, keys_of, outputs, wds

from wdscli.cli.main import main
from wdscli.executors import local as machine
from wdscli.executors.local import available
from wdscli.plan import strategy as memory
from wdscli.plan.strategy import (
    LEAST_PLAN_BYTES,
    LEAST_TASK_BYTES,
    MAIN_BYTES,
    MIB,
    Limits,
    least,
    limits_for,
)
from wdscli.tar import END_OF_ARCHIVE, build_header, padding

GIB = 1 << 30


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """30 thousand small samples in three shards."""
    folder = tmp_path_factory.mktemp("many")
    names = []
    for shard in range(3):
        path = folder / f"in-{shard}.tar"
        with path.open("wb") as file:
            for number in range(10_000):
                payload = b"%d" % (number % 7) * (number % 900)
                header = build_header(b"s%d/n%06d.cls" % (shard, number), len(payload))
                file.write(header + payload + padding(len(payload)))
            file.write(END_OF_ARCHIVE)
        names.append(path)
    return names


def peak(many: list[Path], folder: Path, *more: object) -> int:
    words = ["shuffle", *many, "-o", f"{folder}/out-%03d.tar", "--max-count", 2500, "-q", *more]
    return peak_of_all(*words, what="RssAnon")


@pytest.mark.exhaustive
class TestResidentMemory:
    def test_of_all_processes_together(self, many: list[Path], tmp_path: Path) -> None:
        """Mapped files aside, which are the page cache's; and the bytes are the same."""
        free = peak(many, tmp_path / "free", "-j", 5, "--memory", "4GiB")
        assert free > 96 * MIB
        for number, (limit, jobs, strategy) in enumerate(
            [(96, 1, "gather"), (96, 1, "spill"), (160, 2, "gather"), (160, 2, "spill"), (96, 5, "spill")]
        ):
            folder = tmp_path / str(number)
            options = ["-j", jobs, "--memory", f"{limit}MiB", "--strategy", strategy]
            assert peak(many, folder, *options) < limit * MIB
            assert content(folder) == content(tmp_path / "free")

    def test_of_shards_with_very_many_samples(self, tmp_path: Path) -> None:
        """Nothing grows with the samples of one shard: neither its index when it is read, nor that which is written,
        nor the rows of a task."""
        names = [tmp_path / f"in-{shard}.tar" for shard in range(2)]
        for shard, path in enumerate(names):
            with path.open("wb") as file:
                for number in range(150_000):
                    header = build_header(b"%d%093d.cls" % (shard, number), 6)
                    file.write(header + b"%06d" % number + padding(6))
                file.write(END_OF_ARCHIVE)
        assert main(["index", "-q", *map(str, names)]) == 0
        for limit, jobs, strategy in [(96, 1, "spill"), (144, 2, "gather")]:
            words = [*names, "-o", f"{tmp_path}/out-%03d.tar", "--max-count", 150_000, "-q", "--force"]
            options = ["-j", jobs, "--memory", f"{limit}MiB", "--strategy", strategy]
            assert peak_of_all("shuffle", *words, *options, what="RssAnon") < limit * MIB

    def test_too_little_is_a_warning_and_the_least_there_can_be(
        self, many: list[Path], tmp_path: Path
    ) -> None:
        for strategy in ("gather", "spill"):
            words = [*many, "-o", f"{tmp_path}/{strategy}/out-%03d.tar", "--max-count", 2500, "-j", 2]
            ran = wds("shuffle", *words, "--memory", "1MiB", "--strategy", strategy)
            assert ran.code == 0, ran.err
            assert "warning: --memory 1.05 MB is less than the minimum" in ran.err
            assert len(keys_of(*outputs(tmp_path / strategy))) == 30_000
        assert content(tmp_path / "gather") == content(tmp_path / "spill")
        assert peak(many, tmp_path / "again", "-j", 2, "--memory", "1MiB") < least(1)


class TestShares:
    def test_as_many_jobs_as_fit(self) -> None:
        assert limits_for(least(3), 8).jobs == 3
        assert limits_for(least(3) - 1, 8).jobs == 2
        assert limits_for(least(8), 2).jobs == 2
        assert limits_for(1, 8).jobs == 1
        assert limits_for(None, 7).jobs == 7

    def test_the_shares_are_not_more_than_all(self) -> None:
        for limit in range(least(1), 4 * GIB, 77 * MIB):
            for jobs in (1, 2, 5, 64):
                found = limits_for(limit, jobs)
                processes = least(found.jobs) - LEAST_PLAN_BYTES - found.jobs * LEAST_TASK_BYTES
                assert processes + found.jobs * found.task <= limit
                assert MAIN_BYTES + found.plan <= limit
                assert found.is_user_set
                assert not found.warning

    def test_what_the_machine_has_when_nobody_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "available", lambda: 8 * GIB)
        found = limits_for(None, 2)
        assert found == Limits(2, 2 * GIB, 64 * MIB, GIB)
        monkeypatch.setattr(memory, "available", lambda: 100 * MIB)
        assert limits_for(None, 2) == Limits(2, 128 * MIB, 32 * MIB, 64 * MIB)


class TestAvailable:
    def test_it_is_what_the_kernel_says(self) -> None:
        lines = Path("/proc/meminfo").read_text().splitlines()
        total = next(line for line in lines if line.startswith("MemTotal"))
        assert 0 < available() <= int(total.split()[1]) * 1024

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_control_group_s_limit(self, tmp_path: Path, version: int, monkeypatch: Any) -> None:
        root = tmp_path
        if version == 1:
            folder, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            stat = "total_inactive_file 1000\ninactive_file 1\n"
        else:
            folder, names = root, ("memory.max", "memory.current")
            stat = "anon 4\ninactive_file 1000\n"
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(machine, "_ROOT", str(root))
        before = available()
        for name, value in zip(names, ("500000", "200000"), strict=True):
            (folder / name).write_text(value + "\n")
        (folder / "memory.stat").write_text(stat)
        assert available() == 301_000 < before
        (folder / names[0]).write_text("max\n")
        assert available() > GIB // 100
