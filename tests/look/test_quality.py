"""``shuffle --quality``: numbers with known answers, and how the command tells them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy
import pytest
from shard_cases import content, no_new_files, numbered, sample, wds, write_shards

from wdscli.look.quality import MeasuredShuffle, measure
from wdscli.plan.cut import Cuts
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request

SHARDS = numpy.repeat(numpy.arange(10), 100)


def permutation(count: int) -> Any:
    return numpy.random.default_rng(7).permutation(count)


class TestKnownAnswers:
    def test_nothing_moved(self) -> None:
        found = measure(SHARDS, numpy.arange(1000), None, 50)
        assert found.output == found.input
        assert (found.output.displacement, found.output.correlation) == (0, 1)
        assert (found.output.shards_per_window, found.output.fewest_shards) == (1, 1)
        assert found.output.class_run is None
        assert measure(SHARDS, None, None, 50) == found

    def test_turned_round(self) -> None:
        found = measure(SHARDS, numpy.arange(1000)[::-1], None, 50).output
        assert (found.displacement, found.correlation) == (500, -1)

    def test_a_window_over_two_shards(self) -> None:
        found = measure(SHARDS, None, None, 200).input
        assert (found.shards_per_window, found.fewest_shards) == (2, 2)

    def test_dealt_in_turns(self) -> None:
        """One sample of each shard after the other."""
        order = numpy.arange(1000).reshape(10, 100).T.reshape(-1)
        found = measure(SHARDS, order, None, 10).output
        assert (found.shards_per_window, found.fewest_shards) == (10, 10)

    def test_uniform(self) -> None:
        count = 20_000
        shards = numpy.repeat(numpy.arange(200), 100)
        values = [b"%d" % (number // 2000) for number in range(count)]
        found = measure(shards, permutation(count), values, 100)
        assert found.output.displacement == pytest.approx(count / 3, rel=0.02)
        assert found.output.correlation == pytest.approx(0, abs=0.02)
        assert found.output.shards_per_window == pytest.approx(found.random.shards_per_window, rel=0.02)
        assert found.output.class_run == pytest.approx(found.random.class_run, rel=0.02)
        assert found.random.displacement == pytest.approx(count / 3, abs=0.01)
        assert found.random.class_run == pytest.approx(10 / 9, rel=0.001)
        assert (found.classes, found.input.class_run, found.shards) == (10, 2000, 200)

    def test_what_random_orders_give_is_what_all_orders_give(self) -> None:
        """On average over every order there is."""
        shards = numpy.array([0, 0, 0, 1, 1, 2])
        values = [b"x", b"y", b"y", b"x", b"x", b"z"]
        every = [measure(shards, numpy.array(order), values, 3) for order in itertools.permutations(range(6))]
        random = every[0].random
        assert numpy.mean([one.output.displacement for one in every]) == pytest.approx(
            random.displacement, abs=2e-3
        )
        assert numpy.mean([one.output.correlation for one in every]) == pytest.approx(0, abs=1e-6)
        assert numpy.mean([one.output.shards_per_window for one in every]) == pytest.approx(
            random.shards_per_window, abs=2e-3
        )
        # By runs, whose mean is what was computed: the mean of a quotient is another.
        runs = numpy.mean([6 / one.output.class_run for one in every if one.output.class_run])
        assert 6 / float(random.class_run or 0) == pytest.approx(runs, abs=5e-3)

    def test_correlation_is_what_numpy_says(self) -> None:
        order = permutation(500)
        ours = measure(numpy.zeros(500, dtype=int), order, None).output.correlation
        assert ours == pytest.approx(numpy.corrcoef(numpy.arange(500), order)[0, 1], abs=1e-6)

    def test_samples_without_a_class_are_a_class(self) -> None:
        found = measure(SHARDS[:4], None, [b"", b"1", b"1", b""])
        assert (found.classes, found.input.class_run) == (2, 1.333)
        assert measure(SHARDS[:2], None, [b"", b""]).classes is None

    def test_values_are_told_apart_to_the_last_byte(self) -> None:
        assert measure(SHARDS[:3], None, [b"a", b"a\0", b"a"]).classes == 2

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_hardly_any(self, count: int) -> None:
        found = measure(SHARDS[:count], numpy.arange(count), [b"7"] * count, 50)
        assert found.samples == count
        assert found.window == max(1, count)
        assert found.output.displacement == 0
        assert found.output.correlation == (1 if count == 2 else None)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Four shards, each of one class."""
    shards = [numbered(50, f"s{at}-") for at in range(4)]
    for at, one in enumerate(shards):
        for members in one:
            members[0] = (members[0][0], b"%d\n" % at)
    write_shards(tmp_path / "in", shards)
    return tmp_path


def quality(folder: Path, *args: object) -> dict[str, Any]:
    done = wds("shuffle", "in", "-o", "out/o-%06d.tar", "--measure", "--json", *args, cwd=folder)
    assert done.code == 0, done.err
    (found,) = [one["quality"] for one in done.objects if "quality" in one]
    assert isinstance(found, dict)
    return found


class TestCommand:
    def test_json(self, inputs: Path) -> None:
        found = quality(inputs, "--window", 20)
        assert (found["window"], found["samples"], found["shards"], found["classes"]) == (20, 200, 4, 4)
        assert found["input"] == {
            "shards_per_window": 1.2, "fewest_shards": 1, "displacement": 0.0, "correlation": 1.0, "class_run": 50.0,
        }  # fmt: skip
        assert found["output"]["shards_per_window"] > 3.5
        assert found["output"]["displacement"] == pytest.approx(200 / 3, rel=0.15)
        assert abs(found["output"]["correlation"]) < 0.2
        assert found["output"]["class_run"] < 1.6

    def test_the_output_has_that_order(self, inputs: Path) -> None:
        """Told of the plan, true of the shards."""
        from shard_cases import keys_of, outputs

        found = quality(inputs, "--seed", 3)
        before = keys_of(*sorted((inputs / "in").glob("*.tar")))
        place = {key: at for at, key in enumerate(before)}
        moved = [abs(place[key] - at) for at, key in enumerate(keys_of(*outputs(inputs / "out", "o-*.tar")))]
        assert found["output"]["displacement"] == pytest.approx(sum(moved) / 200, abs=1e-3)

    def test_a_table_and_a_dry_run(self, inputs: Path) -> None:
        args = ["shuffle", "in", "-o", "out/o-%06d.tar", "--measure", "-n"]
        with no_new_files(inputs):
            done = wds(*args, "--window", 50, cwd=inputs)
        assert done.code == 0, done.err
        lines = [line.split("\t") for line in done.out.decode().splitlines()]
        assert lines[0] == ["order", "input", "output", "random"]
        assert lines[1][:2] == ["shards in 50 samples", "1"]
        assert [line[0] for line in lines[1:6]] == [
            "shards in 50 samples", "fewest of these", "displacement", "rank correlation", "class run",
        ]  # fmt: skip
        assert lines[4][1] == "1"
        assert lines[6][0] == "out/o-000000.tar"

    def test_it_changes_no_byte(self, inputs: Path) -> None:
        quality(inputs, "--max-count", 30)
        done = wds("shuffle", "in", "-o", "plain/o-%06d.tar", "--max-count", 30, cwd=inputs)
        assert done.code == 0, done.err
        assert not done.out
        assert content(inputs / "out") == content(inputs / "plain")

    def test_without_classes(self, tmp_path: Path) -> None:
        write_shards(tmp_path / "in", [[sample(f"k{number}", number)[1:] for number in range(9)]])
        found = quality(tmp_path)
        assert (found["classes"], found["output"]["class_run"]) == (None, None)

    def test_what_does_not_go_together(self, inputs: Path) -> None:
        done = wds("shuffle", "in", "-o", "o-%06d.tar", "--window", 5, cwd=inputs)
        assert (done.code, "--window needs --measure" in done.err) == (2, True)
        done = wds("shuffle", "in", "-o", "-", "--measure", cwd=inputs)
        assert (done.code, "standard output" in done.err) == (2, True)
        assert wds("shuffle", "in", "-o", "-", "--measure", "-n", cwd=inputs).code == 0

    def test_the_library(self, inputs: Path) -> None:
        order = MeasuredShuffle(5, window=40)
        request = Request([str(inputs / "in")], str(inputs / "o-%06d.tar"), cuts=Cuts(max_count=10))
        plan = make_plan(request, order)
        assert order.quality is not None
        assert (order.quality.window, order.quality.samples) == (40, plan.samples)
        assert plan.provenance.seed == 5
