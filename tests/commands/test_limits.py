"""``--limit N`` is N samples that come out, in every command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import Command
from shard_cases import content, keys_of, members_of, numbered, write_shards

COMMAND: list[str] = []


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    """Sets of 12, 1 and 8 samples with keys a..., b..., c...; ``cls`` is the number."""
    return write_shards(tmp_path / "in", [numbered(12, "a"), numbered(1, "b"), numbered(8, "c")])


def told(ran: Any) -> dict[str, Any]:
    found = ran.objects[-1]
    assert found["samples_in"] + found.get("repeated", 0) == found["samples"] + sum(found["dropped"].values())
    return dict(found)


ORDERS: dict[str, list[str]] = {
    "split": ["split"],
    "merge": ["merge"],
    "interleave": ["merge", "--weights", "equal"],
    "weights": ["merge", "--weights", "3,1,2"],
    "first": ["merge", "--weights", "equal", "--stop", "first"],
    "dedup": ["merge", "--dedup", "cls"],
    "dedup in turn": ["merge", "--dedup", "cls", "--weights", "equal"],
    "shuffle": ["shuffle", "--seed", "3"],
    "sort": ["sort", "--by", "cls:nr"],
    "dedup and sort": ["sort", "--by", "cls:nr", "--dedup", "cls"],
}


class TestWhatComesOut:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("limit", [1, 5, 20, 99])
    @pytest.mark.parametrize("how", ORDERS.values(), ids=ORDERS)
    def test_it_is_the_beginning(
        self, good: Command, sets: list[str], tmp_path: Path, how: list[str], limit: int
    ) -> None:
        good(*how, *sets, "-o", tmp_path / "all.tar")
        ran = good(*how, *sets, "-o", tmp_path / "some.tar", "--limit", limit, "--json")
        assert members_of(tmp_path / "some.tar") == members_of(tmp_path / "all.tar")[: 3 * limit]
        assert told(ran)["samples"] == min(limit, len(keys_of(tmp_path / "all.tar")))

    def test_sets_in_turn(self, good: Command, sets: list[str], tmp_path: Path) -> None:
        """All twenty came from the first set."""
        sets = write_shards(tmp_path / "two", [numbered(30, "a"), numbered(30, "b")])
        good("merge", *sets, "-o", tmp_path / "o.tar", "--weights", "equal", "--limit", "20")
        assert Counter(key[0] for key in keys_of(tmp_path / "o.tar")) == {"a": 10, "b": 10}

    def test_a_slice_chooses_what_is_brought_into_order(
        self, good: Command, sets: list[str], tmp_path: Path
    ) -> None:
        words = [*sets, "-o", tmp_path / "o.tar", "--by", "key:r", "--slice", ":4", "--limit", "2"]
        good("sort", *words)
        assert keys_of(tmp_path / "o.tar") == ["a003", "a002"]

    @pytest.mark.parametrize("how", [["split"], ["cat"], ["shuffle"], ["sort"]], ids=" ".join)
    def test_repeated_keys_do_not_count(self, good: Command, tmp_path: Path, how: list[str]) -> None:
        sets = write_shards(tmp_path / "in", [numbered(4, "a"), numbered(3, "a"), numbered(4, "b")])
        good(*how, *sets, "-o", tmp_path / "all.tar", "--on-duplicate", "skip")
        good(*how, *sets, "-o", tmp_path / "o.tar", "--on-duplicate", "skip", "--limit", "6")
        assert len(keys_of(tmp_path / "o.tar")) == 6
        assert keys_of(tmp_path / "o.tar") == keys_of(tmp_path / "all.tar")[:6]

    def test_payloads(self, good: Command, tmp_path: Path) -> None:
        samples = [
            [(f"k{n}.x", b"%d" % n), *([(f"k{n}.y", b"%d" % n)] if n % 3 == 2 else [])] for n in range(12)
        ]
        (shard,) = write_shards(tmp_path / "in", [samples])
        for address in (shard, f"pipe:cat {shard}"):
            assert good("cat", address, "--to", "raw", "--fields", "y", "--limit", "3").out == b"258"
            assert good("cat", address, "--to", "raw", "--fields", "x", "--limit", "3").out == b"012"
        (tmp_path / "broken").write_bytes(b"broken" * 1000)
        assert (
            good("cat", shard, tmp_path / "broken", "--to", "raw", "--fields", "y", "--limit", "4").out
            == b"25811"
        )

    @pytest.mark.parametrize("how", ["split", "merge", "cat", "ls"])
    def test_reading_ends_where_input_order_is_output_order(
        self, good: Command, sets: list[str], tmp_path: Path, how: str
    ) -> None:
        Path(sets[2]).write_bytes(b"broken" * 1000)
        output = [] if how == "ls" else ["-o", tmp_path / "o.tar"]
        good(how, *sets, *output, "--limit", "12")

    def test_a_stored_plan(self, good: Command, sets: list[str], tmp_path: Path) -> None:
        words = [*sets, "--weights", "equal", "--limit", "9", "--max-count", "2"]
        good("merge", *words, "-o", f"{tmp_path}/one/o-%d.tar")
        good("merge", *words, "-o", f"{tmp_path}/two/o-%d.tar", "--plan", tmp_path / "plan")
        good("run", tmp_path / "plan")
        assert content(tmp_path / "two") == content(tmp_path / "one")

    def test_quality(self, good: Command, sets: list[str], tmp_path: Path) -> None:
        ran = good("shuffle", *sets, "-o", tmp_path / "o.tar", "--limit", "3", "--measure")
        assert len(keys_of(tmp_path / "o.tar")) == 3
        assert "displacement" in ran.out.decode() + ran.err


class TestParts:
    """The first samples of the input that come out, whatever their part."""

    WAYS: ClassVar[dict[str, list[str]]] = {
        "ratio": ["--ratio", "a=2,b=1"],
        "groups": ["--ratio", "a=2,b=1", "--group-by", "cls"],
        "strata": ["--ratio", "a=2,b=1", "--stratify", "cls"],
        "by": ["--by", "cls"],
        "map": ["--by", "@MAP"],
    }

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("limit", [1, 7, 99])
    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    @pytest.mark.parametrize("drops", [False, True])
    def test_as_if_the_rest_were_not_there(
        self,
        good: Command,
        tmp_path: Path,
        way: list[str],
        limit: int,
        drops: bool,
    ) -> None:
        """Samples with no value are left out, and do not count."""
        samples = [one if n % 3 or not drops else one[1:] for n, one in enumerate(numbered(20, "a"))]
        (shard,) = write_shards(tmp_path / "in", [samples])
        (tmp_path / "map").write_text(
            "".join(f"a{n:03d}\t{n % 4}\n" for n in range(20) if n % 3 or not drops)
        )
        words = [f"@{tmp_path}/map" if one == "@MAP" else one for one in way]
        words += ["--missing", "skip"] if drops else []
        kept = [
            one
            for n, one in enumerate(samples)
            if n % 3 or not drops or (way[1] == "a=2,b=1" and len(way) == 2)
        ]
        (other,) = write_shards(tmp_path / "first", [kept[:limit]])
        good("split", other, "-o", f"{tmp_path}/wanted/{{part}}.tar", *words)
        ran = good("split", shard, "-o", f"{tmp_path}/found/{{part}}.tar", *words, "--limit", limit, "--json")
        assert shards_of(tmp_path / "found") == shards_of(tmp_path / "wanted")
        assert told(ran)["samples"] == min(limit, len(kept))


def shards_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


class TestJoin:
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    @pytest.mark.parametrize("limit", [1, 3, 6, 99])
    def test_it_is_the_beginning(self, good: Command, tmp_path: Path, kind: str, limit: int) -> None:
        one = [[(f"k{n}.x", b"%d" % n)] for n in range(8)]
        other = [[(f"k{n}.y", b"%d" % n)] for n in (9, 7, 5, 3, 1)]
        sets = write_shards(tmp_path / "in", [one, other])
        words = ["merge", "--join", kind, *sets]
        (whole,) = good(*words, "-o", tmp_path / "all.tar", "--json").objects
        (found,) = good(*words, "-o", tmp_path / "some.tar", "--limit", limit, "--json").objects
        wanted = members_of(tmp_path / "all.tar")
        keys = keys_of(tmp_path / "all.tar")[:limit]
        assert keys_of(tmp_path / "some.tar") == keys
        assert members_of(tmp_path / "some.tar") == [one for one in wanted if one[0].split(".")[0] in keys]
        for report in (whole, found):
            partners = report["joined"]["partners"]
            assert report["samples_in"] == report["samples"] + partners + sum(report["dropped"].values())

    def test_repeats_do_not_count(self, good: Command, tmp_path: Path) -> None:
        one = [[(f"k{n // 2}.x", b"%d" % n)] for n in range(8)]
        sets = write_shards(tmp_path / "in", [one[::2], one[1::2], [[("k1.y", b"1")]]])
        words = ["merge", "--join", "left", "::".join(sets[:2]), sets[2], "--on-duplicate", "skip"]
        good(*words, "-o", tmp_path / "o.tar", "--limit", "3")
        assert keys_of(tmp_path / "o.tar") == ["k0", "k1", "k2"]


def test_the_manifest_tells(good: Command, sets: list[str], tmp_path: Path) -> None:
    ran = good("shuffle", *sets, "-o", tmp_path / "o.tar", "--limit", "4", "--json")
    assert told(ran)["dropped"] == {"limit": 17}
    made = json.loads((tmp_path / "o-manifest.json").read_bytes())["wdscli"]["made"]["options"]
    assert made == {"limit": 4}
