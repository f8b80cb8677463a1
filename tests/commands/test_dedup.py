"""``--dedup`` in every command that takes it: the first of the selected samples stays."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
from conftest import Command
from shard_cases import assert_true_set, keys_of, members_of, tar_of, wds, write_shards

COMMAND: list[str] = []
COMMANDS: dict[str, list[str]] = {
    "cat": ["cat"],
    "split": ["split"],
    "split by": ["split", "--by", "cls"],
    "split stratified": ["split", "--ratio", "a=1,b=1", "--stratify", "cls"],
    "merge": ["merge"],
    "shuffle": ["shuffle", "--seed", "3"],
    "shuffle measured": ["shuffle", "--measure"],
    "sort": ["sort", "--by", "cls:nr"],
    "sort by key": ["sort"],
    "map": ["map", "--filter", "cls", "cat"],
}
KEPT = ["a0", "a1", "a2", "bare", "b2"]


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Two shards: the second has the texts of a1 and a0 again, and a sample of its own; two have no text."""
    first = [[(f"a{n}.cls", b"%d" % n), (f"a{n}.txt", b"text %d" % n)] for n in range(3)]
    second = [
        [("b0.cls", b"7"), ("b0.txt", b"text 1")],
        [("b1.cls", b"8"), ("b1.txt", b"text 0")],
        [("b2.cls", b"9")],
    ]
    return write_shards(tmp_path / "in", [[*first, [("bare.cls", b"5")]], second])


def out_of(words: list[str], folder: Path) -> str:
    return f"{folder}/{'{part}-' if words[0] == 'split' and len(words) > 1 else ''}out.tar"


@pytest.mark.parametrize("how", COMMANDS)
def test_first_stays(good: Command, names: list[str], tmp_path: Path, how: str) -> None:
    words = COMMANDS[how]
    ran = good(*words, *names, "-o", out_of(words, tmp_path), "--dedup", "txt", "--json")
    assert sorted(keys_of(*tmp_path.glob("*out.tar"))) == sorted(KEPT)
    assert ran.objects[-1]["dropped"] == {"duplicate": 2}
    assert "left out 2 samples: duplicate 2" in ran.err
    without = tmp_path / "without"
    good(*words, *names, "-o", out_of(words, without), "--keys", "a*", "--keys", "bare", "--keys", "b2")
    if how not in ("shuffle", "shuffle measured"):
        # A shuffle depends on the places of samples, which are equal too: before the selection.
        for path in without.glob("*out.tar"):
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    if "{" not in out_of(words, tmp_path):
        assert_true_set(tmp_path)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("how", COMMANDS)
def test_jobs_and_plans(good: Command, names: list[str], tmp_path: Path, how: str) -> None:
    words = COMMANDS[how]
    if words[0] == "cat":
        pytest.skip("cat has neither")
    options = [*words, *names, "--dedup", "txt"]
    good(*options, "-o", out_of(words, tmp_path / "one"), "-j", "1")
    good(
        *options,
        "-o",
        out_of(words, tmp_path / "two"),
        "-j",
        "2",
        "--strategy=spill" if words[0] != "map" else "-q",
    )
    good(*options, "-o", out_of(words, tmp_path / "three"), "--plan", tmp_path / "plan")
    good("run", tmp_path / "plan")
    for path in (tmp_path / "one").glob("*out.tar"):
        for other in ("two", "three"):
            assert (tmp_path / other / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("how", ["cat", "merge", "sort"])
def test_other_selections_come_first(good: Command, names: list[str], tmp_path: Path, how: str) -> None:
    good(how, *names, "-o", tmp_path / "o.tar", "--dedup", "txt", "--where", "key != 'a1'", "--limit", "4")
    assert (
        keys_of(tmp_path / "o.tar") == ["a0", "a2", "bare", "b0"]
        if how != "sort"
        else ["a0", "a2", "b0", "b2"]
    )


@pytest.mark.parametrize("how", ["cat", "split", "shuffle", "sort", "map"])
def test_names_that_no_sample_has(run: Command, names: list[str], tmp_path: Path, how: str) -> None:
    words = COMMANDS[how]
    ran = run(*words, *names, "-o", tmp_path / "o.tar", "--dedup", "txtt")
    assert ran.code == 3
    assert "no sample has txtt to compare" in ran.err
    assert "did you mean txt?" in ran.err


class TestCat:
    def test_streams(self, names: list[str], tmp_path: Path) -> None:
        data = Path(names[1]).read_bytes()
        ran = wds("cat", names[0], "-", "-o", tmp_path / "o.tar", "--dedup", "txt", stdin=data)
        assert ran.code == 0, ran.err
        assert keys_of(tmp_path / "o.tar") == KEPT

    def test_remote_shards(self, good: Command, tmp_path: Path) -> None:
        large = os.urandom(1_500_000)
        samples = [("a.x", b"1"), ("b.x", large), ("c.x", b"1"), ("d.x", large), ("e.x", b"2")]
        fsspec.filesystem("memory").pipe(f"{tmp_path}/far.tar", tar_of(samples))
        good("cat", f"memory:/{tmp_path}/far.tar", "-o", tmp_path / "o.tar", "--dedup", "x")
        assert members_of(tmp_path / "o.tar") == [samples[0], samples[1], samples[4]]

    @pytest.mark.parametrize("limit", [0, 1, 4, 9])
    @pytest.mark.parametrize("kind", ["jsonl", "tsv"])
    def test_other_formats(
        self, good: Command, names: list[str], tmp_path: Path, kind: str, limit: int
    ) -> None:
        ran = good("cat", *names, "--to", kind, "--dedup", "txt", "--limit", limit, "--allow-empty")
        lines = ran.out.splitlines()[kind == "tsv" :]
        assert len(lines) == min(limit, len(KEPT))

    def test_raw(self, good: Command, names: list[str]) -> None:
        assert (
            good("cat", *names, "--to", "raw", "--fields", "txt", "--dedup", "txt").out
            == b"text 0text 1text 2"
        )

    def test_key_and_field(self, good: Command, tmp_path: Path) -> None:
        sets = write_shards(tmp_path / "in", [[[("a.x", b"1")]], [[("a.x", b"1")]], [[("a.x", b"2")]]])
        good("cat", *sets, "-o", tmp_path / "o.tar", "--dedup", "key,x", "--on-duplicate", "rekey")
        assert keys_of(tmp_path / "o.tar") == ["a", "a-in-2-000000000"]

    def test_dry_run(self, good: Command, names: list[str], tmp_path: Path) -> None:
        (found,) = good("cat", *names, "-o", tmp_path / "o.tar", "--dedup", "txt", "-n", "--json").objects
        assert (found["samples"], found["dropped"]) == (5, {"duplicate": 2})

    def test_fields_that_no_sample_has_together(self, good: Command, tmp_path: Path) -> None:
        sets = write_shards(tmp_path / "in", [[[("a.x", b"1")], [("b.y", b"1")]]])
        ran = good("cat", *sets, "-o", tmp_path / "o.tar", "--dedup", "x,y")
        assert "no sample has x and y" in ran.err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["-o", "{name}.tar"], "copies whole shards, so it cannot select"),
            (["-o", "o.tar", "--sample", "2"], "--sample 2 and --dedup need two passes"),
            (["-o", "o.tar", "--report", "x"], "no such option"),
        ],
    )
    def test_refused(self, run: Command, names: list[str], options: list[str], message: str) -> None:
        ran = run("cat", *names, "--dedup", "txt", *options)
        assert ran.code == 2
        assert message.lower() in ran.err.lower()
