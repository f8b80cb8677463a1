"""``--sample N|P --seed``: how many, the same whatever the order of shards, and the same in every command."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from shard_cases import keys_of, mix, numbered, outputs, wds, write_shards

from wdscli.errors import UsageError
from wdscli.selection import Selection
from wdscli.selection.draw import Draw, LowestRanks

pytestmark = pytest.mark.usefixtures("shared_workers")
KEYS = [f"{prefix}{number:03d}" for prefix in "abc" for number in range(20)]


def rank(key: str, seed: int = 0) -> int:
    """As the page says."""
    return mix(mix(seed ^ 0x73616D706C65) ^ xxhash.xxh3_64_intdigest(key.encode()))


def lowest(count: int, seed: int = 0, keys: list[str] = KEYS) -> list[str]:
    """By the book, in input order."""
    drawn = set(sorted(keys, key=lambda key: rank(key, seed))[:count])
    return [key for key in keys if key in drawn]


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "in", [numbered(20, prefix, (10,)) for prefix in "abc"])


@pytest.fixture
def ls(shards: list[str]) -> Callable[..., list[str]]:
    def call(*options: object, names: list[str] | None = None) -> list[str]:
        ran = wds("ls", *(names or shards), *options)
        assert ran.code == 0, ran.err
        return [line.split("\t")[0] for line in ran.out.decode().splitlines()]

    return call


Ls = Callable[..., list[str]]


class TestWhatIsDrawn:
    @pytest.mark.parametrize("seed", [0, 7, -1])
    def test_a_number(self, ls: Ls, seed: int) -> None:
        assert ls("--sample", 11, "--seed", seed) == lowest(11, seed)

    @pytest.mark.parametrize(
        ("text", "share"), [("30%", 0.3), ("0.3", 0.3), (".3", 0.3), ("100%", 1), ("1.0", 1)]
    )
    def test_a_share(self, ls: Ls, text: str, share: float) -> None:
        assert (
            ls("--sample", text, "--allow-empty")
            if False
            else ls("--sample", text) == [key for key in KEYS if rank(key) < share * 2**64]
        )

    def test_whatever_the_order_of_shards(self, ls: Ls, shards: list[str]) -> None:
        for sample in ("9", "20%"):
            again = ls("--sample", sample, names=shards[::-1])
            assert sorted(again) == sorted(ls("--sample", sample))
            assert again != ls("--sample", sample)

    def test_more_than_there_are(self, ls: Ls, shards: list[str]) -> None:
        assert ls("--sample", 61) == KEYS
        ran = wds("ls", *shards, "--sample", 61)
        assert "draws all 60 selected samples" in ran.err

    def test_behind_the_other_options_and_before_the_limit(self, ls: Ls) -> None:
        assert ls("--keys", "a*", "--sample", 5) == lowest(5, keys=KEYS[:20])
        assert ls("--slice", "10:50:2", "--sample", 5) == lowest(5, keys=KEYS[10:50:2])
        assert ls("--where", "cls > 9", "--sample", 5) == lowest(
            5, keys=[key for key in KEYS if int(key[1:]) > 9]
        )
        assert ls("--sample", 5, "--limit", 2) == lowest(5)[:2]
        assert ls("--sample", "50%", "--slice", ":20") == [key for key in KEYS[:20] if rank(key) < 1 << 63]

    def test_none_of_the_parts_of_a_split(self, shards: list[str], tmp_path: Path) -> None:
        out = tmp_path / "{part}.tar"
        assert wds("split", *shards, "-o", out, "--ratio", "a=0.5,b=0.5").code == 0
        for part in "ab":
            ran = wds("ls", tmp_path / f"{part}.tar", "--sample", "50%")
            assert 3 < len(ran.out.splitlines()) < len(keys_of(tmp_path / f"{part}.tar")) - 3

    @pytest.mark.parametrize("text", ["0", "0%", "0.0", "101%", "1.5", "-3", "x", "", ".", "1e3", "10 %"])
    def test_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="--sample"):
            Draw.parse(text)

    def test_a_seed_that_nothing_draws_by(self, shards: list[str], tmp_path: Path) -> None:
        for words in (["ls"], ["sort", "-o", tmp_path / "x.tar"], ["cat", "-o", tmp_path / "x.tar"]):
            ran = wds(*words, *shards, "--seed", 3)
            assert (ran.code, "--seed needs --sample" in ran.err) == (2, True)


class TestEverywhere:
    @pytest.mark.parametrize("sample", ["13", "25%"])
    @pytest.mark.parametrize("indexed", [False, True])
    def test_one_sample_in_all_commands(
        self, ls: Ls, shards: list[str], tmp_path: Path, sample: str, indexed: bool
    ) -> None:
        if indexed:
            wds("index", *shards)
        drawn = ls("--sample", sample, "--seed", 5)
        options = ("--sample", sample, "--seed", 5, "-o")
        for command in ("cat", "split", "merge", "sort", "map"):
            more = ("--filter", "cls", "cat") if command == "map" else ()
            ran = wds(command, *shards, *more, *options, tmp_path / f"{command}.tar")
            assert ran.code == 0, ran.err
            assert keys_of(tmp_path / f"{command}.tar") == drawn
            assert (
                f"left out {60 - len(drawn)} samples: sample {60 - len(drawn)}" in ran.err or command == "cat"
            )
        wds("shuffle", *shards, *options, tmp_path / "s.tar")
        wds("shuffle", *shards, "--seed", 5, "-o", tmp_path / "all.tar")
        assert keys_of(tmp_path / "s.tar") == [key for key in keys_of(tmp_path / "all.tar") if key in drawn]

    def test_parts_and_a_limit(self, shards: list[str], tmp_path: Path) -> None:
        options = ("--ratio", "a=0.5,b=0.5", "--sample", 30, "-o", tmp_path / "{part}.tar")
        assert wds("split", *shards, *options).code == 0
        assert sorted(keys_of(tmp_path / "a.tar", tmp_path / "b.tar")) == lowest(30)
        assert (
            wds("sort", *shards, "--sample", 30, "--limit", 4, "-o", tmp_path / "s.tar", "--reverse").code
            == 0
        )
        assert keys_of(tmp_path / "s.tar") == lowest(30)[:-5:-1]

    def test_by_the_keys_that_there_are(self, shards: list[str], tmp_path: Path) -> None:
        """Whatever keys the samples get."""
        for command in ("split", "cat"):
            out = tmp_path / f"{command}.tar"
            ran = wds(command, *shards, "--sample", 8, "--rekey", "new-{key}", "-o", out)
            assert ran.code == 0, ran.err
            assert keys_of(out) == [f"new-{key}" for key in lowest(8)]

    def test_keys_that_come_again(self, shards: list[str], tmp_path: Path) -> None:
        twice = [*shards, shards[0]]
        for command in ("split", "cat"):
            out = tmp_path / f"{command}.tar"
            ran = wds(command, *twice, "--sample", 25, "--on-duplicate", "skip", "-o", out)
            assert ran.code == 0, ran.err
            assert keys_of(out) == lowest(25)
            ran = wds(command, *twice, "--sample", 25, "--on-duplicate", "rekey", "-o", out, "--force")
            assert ran.code == 0, ran.err
        assert (tmp_path / "split.tar").read_bytes() == (tmp_path / "cat.tar").read_bytes()
        ran = wds("ls", *twice, "--sample", 25)
        assert len(ran.out.splitlines()) == 25

    def test_the_manifest_says_so_and_a_plan_holds_it(self, shards: list[str], tmp_path: Path) -> None:
        options = ("--sample", 9, "--seed", 2, "--max-count", 5, "-o", tmp_path / "o-%d.tar")
        assert wds("sort", *shards, *options, "--plan", tmp_path / "p").code == 0
        assert wds("run", tmp_path / "p").code == 0
        assert keys_of(*outputs(tmp_path, "o-*.tar")) == lowest(9, 2)
        made = json.loads((tmp_path / "o-manifest.json").read_bytes())["wdscli"]["made"]
        assert (made["options"]["sample"], made["options"]["seed"]) == ("9", 2)
        ran = wds("sort", *shards, *options, "--resume")
        assert "kept 2 shards" in ran.err
        ran = wds("sort", *shards, *options[:2], *options[4:], "--resume")
        assert ran.code == 4

    def test_jobs(self, shards: list[str], tmp_path: Path) -> None:
        for jobs in (1, 3):
            out = tmp_path / f"j{jobs}.tar"
            assert wds("shuffle", *shards, "--sample", 21, "-j", jobs, "-o", out).code == 0
        assert (tmp_path / "j1.tar").read_bytes() == (tmp_path / "j3.tar").read_bytes()

    def test_streams(self, shards: list[str], tmp_path: Path) -> None:
        data = Path(shards[0]).read_bytes()
        for command in (["ls", "-"], ["cat", "-", "-o", tmp_path / "c.tar"]):
            ran = wds(*command, "--sample", 5, stdin=data)
            assert (ran.code, "can be read only once" in ran.err) == (2, True)
            assert wds(*command, "--sample", "50%", stdin=data).code == 0
        assert keys_of(tmp_path / "c.tar") == [key for key in KEYS[:20] if rank(key) < 1 << 63]
        assert wds("split", "-", "-o", tmp_path / "s.tar", "--sample", 5, stdin=data).code == 0
        assert keys_of(tmp_path / "s.tar") == lowest(5, keys=KEYS[:20])

    def test_a_join(self, shards: list[str], tmp_path: Path) -> None:
        wds("cat", *shards, "--rename", "class=cls", "--fields", "class", "-o", tmp_path / "b.tar")
        wds("cat", *shards, "-o", tmp_path / "a.tar")
        sets = (tmp_path / "a.tar", tmp_path / "b.tar", "-o", tmp_path / "j.tar", "--join", "outer")
        assert wds("merge", *sets, "--sample", "30%").code == 0
        assert keys_of(tmp_path / "j.tar") == [key for key in KEYS if rank(key) < 0.3 * 2**64]
        ran = wds("merge", *sets, "--sample", 3, "--force")
        assert (ran.code, "a join has several" in ran.err) == (2, True)

    def test_in_a_program(self) -> None:
        assert Selection.parse(sample="10%", seed=3).draw == Draw.parse("10%", 3)
        assert Selection.parse(sample=10).draw == Draw.parse("10")
        assert Selection.parse().is_trivial


def test_the_lowest_ranks() -> None:
    """Against sorted(), with keys that come again."""
    rng = random.Random(4)
    keys = [b"%d" % rng.randrange(300) for _ in range(500)]
    for number in (1, 7, 150):
        draw = Draw.parse(str(number))
        for distinct in (False, True):
            found = LowestRanks(draw, distinct=distinct)
            found.add(keys[:200])
            found.add(keys[200:])
            bound, ties = found.end()
            ranks = sorted(map(draw.rank, set(keys) if distinct else keys))
            assert bound == ranks[number - 1]
            assert distinct or ties == number - ranks.index(bound)
