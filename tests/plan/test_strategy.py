"""Which strategy is chosen, and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest
from cold_files import let_go_of
from shard_cases import numbered, wds, write_shards

from wdscli.plan import strategy
from wdscli.plan.inputs import Input
from wdscli.plan.orders import shuffled
from wdscli.plan.request import Request, Strategy
from wdscli.plan.scratch import Scratch
from wdscli.plan.strategy import Choice, Disc, choose, disc_of, mean_run
from wdscli.plan.table import OrderedSamples, PlanTable, row_type
from wdscli.storage.local import LocalSource
from wdscli.storage.scatter import Line

GIB = 1 << 30


def plan(count: int, size: int, *, in_order: bool = False) -> OrderedSamples:
    """``count`` samples of ``size`` bytes in one shard, shuffled or not."""
    rows = numpy.zeros(count, dtype=row_type())
    rows["place"] = numpy.arange(count)
    rows["start"] = numpy.arange(count) * size
    rows["length"] = rows["out"] = size
    samples = PlanTable(rows)
    return OrderedSamples(samples, None if in_order else shuffled(samples, 1))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say what the machine is like."""

    def set_up(*, free: int = 10_000 * GIB) -> None:
        monkeypatch.setattr(Scratch, "free_bytes", lambda _: free)

    set_up()
    return set_up


NEAR = [Input("in-0.tar")]
FAR = [Input("s3://b/in-0.tar")]


def auto(inputs: list[Input], ordered: OrderedSamples, tmp: str | None = None) -> Choice:
    return choose(Request([], "o.tar", tmp=tmp), inputs, [ordered])


class TestAuto:
    def test_files_of_this_machine(self, here: Any) -> None:
        assert auto(NEAR, plan(10_000, 10_240)) == Choice(
            "gather", "the inputs can be read in any order, 10.2 kB at a time"
        )

    def test_small_samples_far_away(self, here: Any) -> None:
        found = auto(FAR, plan(10_000, 10_240))
        assert found.strategy == "spill"
        numbers = re.fullmatch(
            r"1 of 1 inputs are remote: gathering takes (\d+) requests and (\d+) MB, spilling 13 requests and 102 MB",
            found.reason,
        )
        # A part of the output that fits in memory lies all over the input.
        assert numbers
        assert int(numbers[2]) > 250
        mixed = [*NEAR, *FAR, Input("pipe:x", "/tmp/copy")]
        assert auto(mixed, plan(10_000, 10_240)).strategy == "spill"
        assert "1 of 3 inputs are remote" in auto(mixed, plan(10_000, 10_240)).reason
        assert "1 of 3 inputs copied first" in auto(mixed, plan(10_000, 10_240)).reason

    def test_a_copy_here_of_what_is_far_away(self, here: Any) -> None:
        assert auto([Input("s3://b/x.tar.gz", "/tmp/copy")], plan(10_000, 10_240)).strategy == "gather"

    def test_large_samples_or_long_runs_far_away(self, here: Any) -> None:
        assert auto(FAR, plan(100, 2 << 20)).strategy == "gather"
        found = auto(FAR, plan(10_000, 10_240, in_order=True))
        assert found.strategy == "gather"
        assert "at a time" in found.reason

    def test_little_far_away(self, here: Any) -> None:
        assert auto(FAR, plan(100, 10_240)) == Choice(
            "gather",
            "1 of 1 inputs are remote: gathering takes 1 request and 1.02 MB, spilling 1 request and 1.02 MB, "
            "10.7 kB at a time",
        )

    def test_by_the_line_that_was_measured(self, here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many requests cost more than many bytes, or less."""
        scattered = plan(3000, 300_000)
        for latency, rate, name in ((0.5, 1e9, "spill"), (0.0001, 1e7, "gather")):
            line = Line()
            line.note(100, latency)
            for _ in range(50):
                line.note(8 << 20, latency + (8 << 20) / rate)
            monkeypatch.setattr("wdscli.plan.strategy.line_to", lambda _, line=line: line)
            assert auto(FAR, scattered).strategy == name

    def test_too_little_scratch_space(self, here: Any) -> None:
        here(free=1000)
        found = auto(FAR, plan(10_000, 10_240))
        assert found.strategy == "gather"
        assert found.reason.endswith("but spilling needs 102 MB and 1.00 kB are free")
        assert auto(FAR, plan(10_000, 10_240), "s3://b/tmp").strategy == "spill"

    @pytest.mark.parametrize(
        ("disc", "free", "name"),
        [
            (Disc(1e7, 2e8), 10_000 * GIB, "spill"),
            (Disc(1e7, 2e8), GIB, "gather"),
            (Disc(1e9, 2e9), 10_000 * GIB, "gather"),
        ],
    )
    def test_a_set_on_a_disc(
        self, here: Any, monkeypatch: pytest.MonkeyPatch, disc: Disc, free: int, name: str
    ) -> None:
        here(free=free)
        monkeypatch.setattr("wdscli.plan.strategy.disc_of", lambda *_: disc)
        reason = f"{disc}, 102 kB at a time"
        assert auto(NEAR, plan(20_000, 102_400)) == Choice(name, reason)
        assert "the disc reads" not in auto(NEAR, plan(20_000, 102_400, in_order=True)).reason

    def test_a_disc_is_measured_by_its_own_reads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(strategy, "MEASURED_ROWS", 8)
        path = tmp_path / "in.tar"
        path.write_bytes(bytes(100 * 40_960))
        inputs, samples = [Input(str(path))], plan(100, 40_960)
        assert disc_of(inputs, samples) is None, "the file is in memory"
        if not let_go_of(str(path)):
            pytest.skip("this file system keeps its files in memory")
        monkeypatch.setattr(strategy, "LONG_RUN_BYTES", 30_000)
        lengths, read_at = list[int](), LocalSource.read_at
        monkeypatch.setattr(LocalSource, "read_at", lambda *args: lengths.append(args[2]) or read_at(*args))
        found = disc_of(inputs, samples)
        assert max(lengths[:-1]) == 30_000, "however large a sample is"
        assert found is not None
        assert min(found) > 0
        assert disc_of(inputs, samples) is None, "now these samples are in memory"

    def test_nothing(self, here: Any) -> None:
        assert auto(FAR, plan(0, 1)).strategy == "gather"
        assert auto([], plan(0, 1)).strategy == "gather"


def test_what_is_asked_for_is_done(here: Any) -> None:
    names: list[Strategy] = ["gather", "spill"]
    for name in names:
        request = Request([], "o.tar", strategy=name)
        assert choose(request, FAR, [plan(10, 512)]) == Choice(name, "as --strategy asks")


def test_mean_run() -> None:
    assert mean_run([plan(1000, 512)]) == (pytest.approx(512, abs=30), 512_000)
    assert mean_run([plan(100_000, 512, in_order=True)])[0] > 1 << 20
    assert mean_run([plan(0, 512)]) == (0, 0)


def test_a_dry_run_and_v_say_it(tmp_path: Path) -> None:
    names = write_shards(tmp_path / "in", [numbered(5)])
    command = ["shuffle", *names, "-o", tmp_path / "out.tar", "--strategy", "spill"]
    assert "(spill: as --strategy asks)" in wds(*command, "-n").err
    assert not (tmp_path / "out.tar").exists()
    assert "strategy spill: as --strategy asks" in wds(*command, "-v").err
