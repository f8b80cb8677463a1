"""``wds split``: cuts, parts by ratio, by field and by map, and what is refused."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reorders import split
from shard_cases import (
    Kept,
    Members,
    Ran,
    assert_true_index,
    assert_true_set,
    content,
    keys_of,
    leftovers,
    mix,
    no_new_files,
    numbered,
    outputs,
    sample,
    samples_of,
    wds,
    write_shards,
)
from tiers import examples

from wdscli.cli.main import main
from wdscli.errors import UsageError
from wdscli.plan.cut import Cuts
from wdscli.plan.request import Request
from wdscli.plan.split import SplitOptions

Command = Callable[..., Ran]
pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND = ["split"]


def people(count: int = 60, start: int = 0) -> list[Members]:
    """Samples of some patients: ``p03/img7`` with a class, a site and JSON that says so."""
    rng = random.Random(5)
    made = []
    for number in range(count):
        patient, kind = rng.randrange(12), rng.choice(["cat", "cat", "cat", "dog"])
        document = {"who": {"id": patient, "site": f"s{patient % 3}"}, "kind": kind, "tags": [kind, number]}
        made.append(
            [
                (f"p{patient:02d}/img{number + start}.cls", f"{kind}\n".encode()),
                (f"p{patient:02d}/img{number + start}.json", json.dumps(document).encode()),
                (f"p{patient:02d}/img{number + start}.seg.png", b"%d" % (patient % 4)),
            ]
        )
    return made


@pytest.fixture
def clinic(tmp_path: Path) -> list[str]:
    everybody = people()
    return write_shards(tmp_path / "in", [everybody[:25], everybody[25:26], [], everybody[26:]])


def by_the_book(key: str, shares: dict[str, str], seed: int = 0) -> str:
    """The part of a sample, as the manual defines it."""
    rank, total = mix(mix(seed) ^ xxhash.xxh3_64_intdigest(key.encode())), Fraction(0)
    for part, share in shares.items():
        total += Fraction(share)
        if total > Fraction(rank, 2**64):
            return part
    raise AssertionError


def all_of(names: list[str]) -> list[Kept]:
    return [one for name in names for one in samples_of(name)]


def parts_of(folder: Path) -> dict[str, list[Kept]]:
    """The samples of each part in order, by its manifest; each manifest is true, and all shards are in one."""
    found, shards = {}, []
    for path in sorted(folder.glob("*-manifest.json")):
        listed = json.loads(path.read_bytes())["shardlist"]
        found[path.name.removesuffix("-manifest.json")] = []
        for one in listed:
            data = (folder / one["url"]).read_bytes()
            assert one["filesize"] == len(data)
            assert one["checksum"] == "xxh3_128:" + xxhash.xxh3_128_hexdigest(data)
            assert one["nsamples"] == len(samples_of(data))
            assert_true_index(folder / one["url"])
            found[path.name.removesuffix("-manifest.json")] += samples_of(data)
            shards.append(folder / one["url"])
    assert sorted(shards) == outputs(folder, "*.tar")
    return found


def keys_by_part(folder: Path) -> dict[str, list[str]]:
    return {part: [key for key, _ in samples] for part, samples in parts_of(folder).items()}


def expect(names: list[str], part_of: Callable[[Kept], str]) -> dict[str, list[Kept]]:
    """All samples by part, in input order."""
    found: dict[str, list[Kept]] = {}
    for one in all_of(names):
        found.setdefault(part_of(one), []).append(one)
    return found


SHARES = {"train": "0.6", "val": "0.25", "test": "0.15"}
RATIO = ",".join(f"{part}={share}" for part, share in SHARES.items())


class TestCuts:
    def test_input_order(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 5)
        assert [len(keys_of(path)) for path in outputs(tmp_path)] == [5, 5, 5, 5, 1]
        assert [one for path in outputs(tmp_path) for one in samples_of(path)] == all_of(shards)
        assert_true_set(tmp_path)

    @pytest.mark.parametrize("count", [1, 4, 21])
    def test_a_number_of_shards(self, good: Command, shards: list[str], tmp_path: Path, count: int) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--shards", count)
        counts = [len(keys_of(path)) for path in outputs(tmp_path)]
        assert (len(counts), sum(counts)) == (count, 21)
        assert max(counts) - min(counts) <= 1

    def test_more_shards_than_samples_are_told(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        ran = good(*shards, "-o", tmp_path / "out-%06d.tar", "--shards", 30)
        assert len(outputs(tmp_path)) == 30
        assert "warning: 9 shards without samples" in ran.err
        assert (
            "9 shards without samples"
            in good(*shards, "-o", tmp_path / "x-%06d.tar", "--shards", 30, "-n").err
        )
        assert "without samples" not in good(*shards, "-o", tmp_path / "y-%06d.tar", "--shards", 21).err

    def test_max_size(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--max-size", "10kB")
        assert len(outputs(tmp_path)) > 3
        assert all(path.stat().st_size <= 10_000 for path in outputs(tmp_path))

    @pytest.mark.parametrize("how", [["--ratio", "a=1,b=1"], ["--by", "cls"]])
    def test_max_size_of_each_part(
        self, good: Command, shards: list[str], tmp_path: Path, how: list[str]
    ) -> None:
        ran = good(*shards, "-o", tmp_path / "{part}-%d.tar", *how, "--max-size", "10kB", "--json")
        parts = ran.objects[-1]["parts"]
        assert max(part["shards"] for part in parts.values()) > 1
        for name, part in parts.items():
            found = sorted(tmp_path.glob(f"{name}-*.tar"))
            assert len(found) == part["shards"]
            assert all(path.stat().st_size <= 10_000 for path in found)

    @pytest.mark.parametrize(
        ("cut", "counts"),
        [
            (["--shards", 5, "--divisible-by", 4], [2, 3, 2, 3, 3, 2, 3, 3]),
            (["--shards", 8, "--divisible-by", 4], [2, 3, 2, 3, 3, 2, 3, 3]),
            (["--max-count", 10, "--divisible-by", 2], [5, 5, 5, 6]),
            (["--max-count", 10, "--divisible-by", 3], [7, 7, 7]),
            (["--divisible-by", 3], [7, 7, 7]),
            (["--divisible-by", 1], [21]),
        ],
        ids=str,
    )
    def test_divisible_by(
        self, good: Command, shards: list[str], tmp_path: Path, cut: list[object], counts: list[int]
    ) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", *cut)
        assert [len(keys_of(path)) for path in outputs(tmp_path)] == counts
        made = assert_true_set(tmp_path)["wdscli"]["made"]["options"]
        assert made["divisible_by"] == cut[-1]

    @pytest.mark.parametrize("command", ["shuffle", "sort", "merge"])
    def test_other_commands_cut_so_too(self, shards: list[str], tmp_path: Path, command: str) -> None:
        out = ["-o", f"{tmp_path}/out-%06d.tar", "--max-count", "10", "--divisible-by", "2", "-q"]
        assert main([command, *shards, *out]) == 0
        assert [len(keys_of(path)) for path in outputs(tmp_path)] == [5, 5, 5, 6]
        assert main([command, *shards, *out, "--force", "--divisible-by", "22"]) == 2

    def test_divisible_by_holds_for_each_part(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(60)])
        good(*names, "-o", tmp_path / "{part}-%06d.tar", "--by", "cls", "--divisible-by", 1)
        good(
            *names,
            "-o",
            tmp_path / "o" / "{part}-%06d.tar",
            "--ratio",
            RATIO,
            "--max-count",
            7,
            "--divisible-by",
            2,
        )
        for part in SHARES:
            assert len(outputs(tmp_path / "o", f"{part}-*.tar")) % 2 == 0
            counts = [len(keys_of(path)) for path in outputs(tmp_path / "o", f"{part}-*.tar")]
            assert max(counts) - min(counts) <= 1

    def test_divisible_by_leaves_no_shard_empty(
        self, run: Command, shards: list[str], tmp_path: Path
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "out-%06d.tar", "--divisible-by", 22)
        assert ran.code == 2
        assert "21 samples are too few for 22 shards" in ran.err
        assert "hint: " in ran.err

    def test_braces_and_divisible_by(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        assert run(*shards, "-o", tmp_path / "out-{0..7}.tar", "--divisible-by", 4).code == 0
        ran = run(*shards, "-o", tmp_path / "x-{0..6}.tar", "--divisible-by", 4)
        assert (ran.code, "7 shards, which is not a multiple of 4" in ran.err) == (2, True)

    @settings(
        max_examples=examples(20),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        st.lists(st.integers(0, 6000), min_size=4, max_size=25),
        st.integers(3000, 30_000),
        st.sampled_from([None, 1, 2, 3, 4]),
        st.sampled_from([None, "a=1,b=1"]),
    )
    def test_no_shard_exceeds_the_size_by_one_byte(
        self, tmp_path_factory: Any, sizes: list[int], limit: int, world: int | None, ratio: str | None
    ) -> None:
        folder = tmp_path_factory.mktemp("sizes")
        names = write_shards(folder / "in", [[[(f"k{n}.bin", bytes(size))] for n, size in enumerate(sizes)]])
        output = f"{folder}/out-{{part}}-%06d.tar" if ratio else f"{folder}/out-%06d.tar"
        asked = Request(names, output, cuts=Cuts(max_size=limit, divisible_by=world), jobs=1)
        try:
            report = split(asked, SplitOptions(ratio=ratio))
        except UsageError as error:
            assert world is not None
            assert "are too few for" in error.message
            return
        made = outputs(folder)
        assert sorted(keys_of(*made)) == sorted(keys_of(*names))
        for path in made:
            assert path.stat().st_size <= limit or len(keys_of(path)) == 1
        for manifest in report.manifests:
            assert world is None or len(manifest.shards) % world == 0
            assert all(shard.samples for shard in manifest.shards)


class TestRatio:
    def test_parts_are_those_of_the_manual(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        good(*clinic, "-o", tmp_path / "{part}-%06d.tar", "--ratio", RATIO, "--max-count", 10)
        expected = expect(clinic, lambda one: by_the_book(one[0], SHARES))
        assert parts_of(tmp_path) == expected
        assert len(outputs(tmp_path, "train-*.tar")) > 2

    def test_golden(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        """These bytes are a promise: a change here moves samples of published splits to other parts."""
        good(*shards, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--seed", 7)
        digests = {
            part: hashlib.sha256((tmp_path / f"{part}.tar").read_bytes()).hexdigest()[:16] for part in SHARES
        }
        assert digests == GOLDEN
        assert keys_by_part(tmp_path) == GOLDEN_KEYS

    def test_seed(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        for seed in (0, 1, -1, 2**64 - 1):
            good(*clinic, "-o", tmp_path / f"{seed}" / "{part}.tar", "--ratio", RATIO, "--seed", seed)
        good(*clinic, "-o", tmp_path / "none" / "{part}.tar", "--ratio", RATIO)
        found = {name: keys_by_part(tmp_path / name) for name in ("0", "1", "-1", str(2**64 - 1), "none")}
        assert found["0"] == found["none"] != found["1"]
        assert found["-1"] == found[str(2**64 - 1)]
        for seed in (0, 1):
            expected = expect(clinic, lambda one, seed=seed: by_the_book(one[0], SHARES, seed))
            assert parts_of(tmp_path / str(seed)) == expected
        made = json.loads((tmp_path / "1" / "val-manifest.json").read_bytes())["wdscli"]["made"]
        assert made == {
            "operation": "split",
            "options": {"ratio": "train=3/5,val=1/4,test=3/20"},
            "inputs": made["inputs"],
            "seed": 1,
        }

    def test_a_sample_stays_in_its_part_when_others_come_and_go(self, good: Command, tmp_path: Path) -> None:
        few, more = people(40), people(40) + people(50, start=1000)
        random.Random(3).shuffle(more)
        one = write_shards(tmp_path / "one", [few])
        other = write_shards(tmp_path / "other", [more[:10], more[10:70], more[70:]])
        good(*one, "-o", tmp_path / "a" / "{part}.tar", "--ratio", RATIO)
        good(*other, "-o", tmp_path / "b" / "{part}.tar", "--ratio", RATIO)
        good(*one, "-o", tmp_path / "c" / "{part}.tar", "--ratio", RATIO, "--slice", "::3")
        before, after, some = (keys_by_part(tmp_path / name) for name in "abc")
        for part in SHARES:
            assert set(before[part]) <= set(after[part])
            assert set(some[part]) <= set(before[part])
        assert sum(map(len, after.values())) == 90

    @pytest.mark.exhaustive
    def test_which_parts_are_stable_is_what_the_manual_says(self, good: Command, tmp_path: Path) -> None:
        few, added = people(200), people(100, start=1000)
        old, new = write_shards(tmp_path / "old", [few]), write_shards(tmp_path / "new", [added])
        folders = iter(range(100))

        def divided(names: list[str], *options: str) -> dict[str, set[str]]:
            folder = tmp_path / str(next(folders))
            good(*names, "-o", folder / "{part}.tar", "--ratio", RATIO, *options)
            return {part: set(keys) for part, keys in keys_by_part(folder).items()}

        for options in ([], ["--group-by", "json.who.site"], ["--group-by", "img[0-9]"]):
            before, after = divided(old, *options), divided([*old, *new], *options)
            assert all(before[part] <= after[part] for part in before), options
        before, after = divided(old, "--stratify", "cls"), divided([*old, *new], "--stratify", "cls")
        assert any(before[part] - after[part] for part in before)
        assert sum(len(before[part] - after[part]) for part in before) < 20
        # The way out: only the added samples are divided, and both meet the shares in each class.
        parts = divided(new, "--stratify", "cls")
        for kind in ("cat", "dog"):
            keys = {one[0][0].partition(".")[0] for one in few + added if one[0][1] == f"{kind}\n".encode()}
            for part, share in SHARES.items():
                mine = len((before[part] | parts[part]) & keys)
                assert abs(mine - len(keys) * Fraction(share)) < 2

    @pytest.mark.parametrize(
        "renaming",
        [["--rekey", "{index:05d}-{shard}"], ["--on-duplicate", "rekey"], ["--rename", "label=cls"]],
        ids=" ".join,
    )
    def test_another_name_changes_no_part(
        self, good: Command, clinic: list[str], tmp_path: Path, renaming: list[str]
    ) -> None:
        good(*clinic, "-o", tmp_path / "a" / "{part}.tar", "--ratio", RATIO)
        good(*clinic, "-o", tmp_path / "b" / "{part}.tar", "--ratio", RATIO, *renaming)
        plain, renamed = parts_of(tmp_path / "a"), parts_of(tmp_path / "b")
        for part in SHARES:
            assert [[payload for _, payload in fields] for _, fields in plain[part]] == [
                [payload for _, payload in fields] for _, fields in renamed[part]
            ]

    def test_samples_of_one_key_go_together(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(30), numbered(30)])
        good(*names, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--on-duplicate", "rekey")
        for part in keys_by_part(tmp_path).values():
            assert set(Counter(key.split("-")[0] for key in part).values()) == {2}

    def test_a_part_without_samples_has_a_manifest(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        (told,) = good(
            *shards, "-o", tmp_path / "{part}-%06d.tar", "--ratio", "all=1000000,none=1", "--json"
        ).objects
        assert told["parts"]["none"]["samples"] == told["parts"]["none"]["shards"] == 0
        assert json.loads((tmp_path / "none-manifest.json").read_bytes())["shardlist"] == []
        ran = wds("verify", tmp_path / "none-manifest.json")
        assert ran.code == 0, ran.err
        assert list(told["parts"]) == ["all", "none"]

    def test_each_part_is_one_file(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "{part}.tar", "--ratio", "all=1000000,none=1")
        assert keys_of(tmp_path / "all.tar") == keys_of(*shards)
        assert keys_of(tmp_path / "none.tar") == []

    @pytest.mark.parametrize("pattern", ["p[0-9]+", "^(p..)/", "(?:img)?(p\\d\\d)", "^([^/]*)/img"])
    def test_group_by_a_pattern(self, good: Command, clinic: list[str], tmp_path: Path, pattern: str) -> None:
        good(*clinic, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--group-by", pattern)
        assert parts_of(tmp_path) == expect(clinic, lambda one: by_the_book(one[0][:3], SHARES))

    def test_a_pattern_is_searched_for(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        good(*clinic, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--group-by", "[0-9]/(i)mg|(x)")
        assert len(keys_by_part(tmp_path)[by_the_book("i", SHARES)]) == 60

    @pytest.mark.parametrize(
        ("field", "group"),
        [
            ("seg.png", lambda fields: fields["seg.png"].decode()),
            ("cls", lambda fields: fields["cls"].decode().strip()),
            ("json.who.id", lambda fields: str(json.loads(fields["json"])["who"]["id"])),
            ("json.who.site", lambda fields: json.loads(fields["json"])["who"]["site"]),
            ("json.tags[0]", lambda fields: json.loads(fields["json"])["kind"]),
            (
                'json["who"]',
                lambda fields: json.dumps(json.loads(fields["json"])["who"], separators=(",", ":")),
            ),
        ],
        ids=lambda one: one if isinstance(one, str) else "",
    )
    def test_group_by_a_field(
        self, good: Command, clinic: list[str], tmp_path: Path, field: str, group: Callable[[Any], str]
    ) -> None:
        good(*clinic, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--group-by", field)
        expected = expect(clinic, lambda one: by_the_book(group(dict(one[1])), SHARES))
        assert {part: samples for part, samples in parts_of(tmp_path).items() if samples} == expected

    def test_fields_that_are_left_out_still_count(
        self, good: Command, clinic: list[str], tmp_path: Path
    ) -> None:
        good(*clinic, "-o", tmp_path / "a" / "{part}.tar", "--ratio", RATIO, "--group-by", "seg.png")
        good(
            *[*clinic, "-o", tmp_path / "b" / "{part}.tar", "--ratio", RATIO, "--group-by", "seg.png"],
            *["--fields", "cls", "--rename", "label=cls"],
        )
        assert keys_by_part(tmp_path / "a") == keys_by_part(tmp_path / "b")

    def test_stratify(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [people(300)])
        good(*names, "-o", tmp_path / "a" / "{part}.tar", "--ratio", RATIO, "--stratify", "cls")
        good(*names, "-o", tmp_path / "b" / "{part}.tar", "--ratio", RATIO, "--stratify", "json.kind")
        good(*names, "-o", tmp_path / "c" / "{part}.tar", "--ratio", RATIO)
        kinds = Counter(dict(fields)["cls"] for _, fields in all_of(names))
        found = parts_of(tmp_path / "a")
        for part, share in SHARES.items():
            mine = Counter(dict(fields)["cls"] for _, fields in found[part])
            assert all(abs(mine[kind] - count * Fraction(share)) < 1 for kind, count in kinds.items())
        assert keys_by_part(tmp_path / "a") == keys_by_part(tmp_path / "b") != keys_by_part(tmp_path / "c")
        assert sorted(one for samples in found.values() for one in samples) == sorted(all_of(names))

    def test_a_wrong_field_hints_at_the_fields_there(self, tmp_path: Path) -> None:
        (shard,) = write_shards(tmp_path, [[[("a.cls", b"0"), ("a.txt", b"")]]])
        done = wds("split", shard, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--stratify", "class")
        assert done.code == 3
        assert "hint: did you mean cls?; leave out such samples: --missing skip" in done.err

    def test_stratify_groups(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [people(300)])
        options = ["--ratio", "a=1,b=1", "--stratify", "json.who.site", "--group-by", "^p.."]
        good(*names, "-o", tmp_path / "{part}.tar", *options)
        found = parts_of(tmp_path)
        patients = {part: {key[:3] for key, _ in samples} for part, samples in found.items()}
        assert not patients["a"] & patients["b"]
        for part in found:
            # Four patients a site, two in each part of each.
            assert Counter(int(patient[1:]) % 3 for patient in patients[part]) == {0: 2, 1: 2, 2: 2}

    def test_stratify_depends_on_nothing_but_the_samples(self, good: Command, tmp_path: Path) -> None:
        everybody = people(200)
        one = write_shards(tmp_path / "one", [everybody])
        random.Random(1).shuffle(everybody)
        other = write_shards(tmp_path / "other", [everybody[:70], everybody[70:]])
        for names, name in ((one, "a"), (other, "b")):
            good(*names, "-o", tmp_path / name / "{part}.tar", "--ratio", RATIO, "--stratify", "cls")
        a, b = keys_by_part(tmp_path / "a"), keys_by_part(tmp_path / "b")
        assert {part: sorted(keys) for part, keys in a.items()} == {
            part: sorted(keys) for part, keys in b.items()
        }


class TestFamilies:
    @pytest.mark.parametrize("field", ["cls", "json.kind", "json.tags[0]", "json.tags.0"])
    def test_by(self, good: Command, clinic: list[str], tmp_path: Path, field: str) -> None:
        good(*clinic, "-o", tmp_path / "{part}-%06d.tar", "--by", field, "--max-count", 7)
        found = parts_of(tmp_path)
        assert found == expect(clinic, lambda one: dict(one[1])["cls"].decode().strip())
        assert list(found) == ["cat", "dog"]
        for part in found if field == "cls" else ():
            assert wds("verify", "--checksums", tmp_path / f"{part}-manifest.json").code == 0
        made = json.loads((tmp_path / "dog-manifest.json").read_bytes())["wdscli"]["made"]
        assert made["options"] == {"by": field, "max_count": 7}
        assert "seed" not in made

    def test_the_order_of_families_is_natural(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        (told,) = good(*shards, "-o", tmp_path / "{part}" / "%d.tar", "--by", "cls", "--json").objects
        assert list(told["parts"]) == [str(number) for number in range(12)]
        assert keys_of(tmp_path / "10" / "0.tar") == ["a010"]
        assert keys_of(tmp_path / "0" / "0.tar") == ["a000", "b000", "c000"]

    def test_families_are_the_whole_set(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        (told,) = good(*clinic, "-o", tmp_path / "{part}-%06d.tar", "--by", "json.who.id", "--json").objects
        found = parts_of(tmp_path)
        assert sorted(one for samples in found.values() for one in samples) == sorted(all_of(clinic))
        assert (
            told["samples"]
            == told["samples_in"]
            == sum(one["samples"] for one in told["parts"].values())
            == 60
        )

    @pytest.mark.parametrize("form", ["lines", "object"])
    def test_by_map(self, good: Command, shards: list[str], tmp_path: Path, form: str) -> None:
        part_of = {
            key: random.Random(key).choice(["fit", "hold out", "t10", "t9"]) for key in keys_of(*shards)
        }
        text = {
            "lines": "".join(f"{key}\t{part}\n" for key, part in part_of.items()),
            "object": json.dumps(part_of),
        }[form]
        (tmp_path / "map").write_text(text)
        (told,) = good(*shards, "-o", tmp_path / "{part}.tar", "--by", f"@{tmp_path}/map", "--json").objects
        assert parts_of(tmp_path) == expect(shards, lambda one: part_of[one[0]])
        assert list(told["parts"]) == ["fit", "hold out", "t9", "t10"]
        made = json.loads((tmp_path / "fit-manifest.json").read_bytes())["wdscli"]["made"]["options"]
        assert made == {"by_map": f"xxh3_128:{xxhash.xxh3_128_hexdigest(text.encode())}"}

    def test_a_map_from_standard_input(self, shards: list[str], tmp_path: Path) -> None:
        lines = "".join(f"{key}\t{key[0]}\n" for key in keys_of(*shards))
        ran = wds("split", *shards, "-o", tmp_path / "{part}.tar", "--by", "@-", stdin=lines.encode())
        assert ran.code == 0, ran.err
        assert {part: len(keys) for part, keys in keys_by_part(tmp_path).items()} == {"a": 12, "b": 1, "c": 8}
        ran = wds("split", "-", "-o", tmp_path / "x{part}.tar", "--by", "@-", stdin=lines.encode())
        assert (ran.code, "both the map and a shard" in ran.err) == (2, True)

    def test_parts_of_a_map_without_samples_are_not_made(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        lines = [f"{key}\tall\n" for key in keys_of(*shards)] + ["elsewhere\tother\n"]
        (tmp_path / "map").write_text("".join(lines))
        good(*shards, "-o", tmp_path / "{part}-%06d.tar", "--by", f"@{tmp_path}/map")
        assert list(keys_by_part(tmp_path)) == ["all"]

    def test_a_map_has_the_keys_of_the_inputs(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "map").write_text("".join(f"{key}\t{key[0]}\n" for key in keys_of(*shards)))
        options = ["--by", f"@{tmp_path}/map", "--rekey", "n{index}-{shard}"]
        good(*shards, "-o", tmp_path / "{part}.tar", *options)
        assert {part: len(keys) for part, keys in keys_by_part(tmp_path).items()} == {"a": 12, "b": 1, "c": 8}

    def test_too_many_parts(
        self, run: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wdscli.plan.split.MOST_PARTS", 11)
        ran = run(*shards, "-o", tmp_path / "{part}.tar", "--by", "cls")
        assert (ran.code, "makes 12 parts, more than 11" in ran.err) == (2, True)


class TestMissing:
    @pytest.fixture
    def holes(self, tmp_path: Path) -> list[str]:
        """Samples without a cls, with an empty one, with one of blanks; with a null, and with JSON that is none."""
        made: list[Members] = [
            sample("a", 1),
            [("b.txt", b"x")],
            [("c.cls", b"")],
            [("d.cls", b" \n")],
            [("e.cls", b"2"), ("e.json", b'{"who": null}')],
            [("f.cls", b"2"), ("f.json", b'{"who": "x"}')],
            [("g.cls", b"2"), ("g.json", b'{"who": ')],
        ]
        return write_shards(tmp_path / "in", [made])

    @pytest.mark.parametrize(
        "options",
        [
            ["--by", "cls"],
            ["--ratio", RATIO, "--group-by", "cls"],
            ["--ratio", RATIO, "--stratify", "cls"],
        ],
        ids=" ".join,
    )
    def test_error_and_drop(
        self, run: Command, good: Command, holes: list[str], tmp_path: Path, options: list[str]
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*holes, "-o", tmp_path / "{part}.tar", *options)
        assert ran.code == 3
        assert f'no value for {options[-2]} cls in sample "b" in {holes[0]} at byte 3584' in ran.err
        assert "--missing skip" in ran.err
        planned = good(*holes, "-o", tmp_path / "{part}.tar", *options, "--missing", "skip", "-n")
        assert "would write 4 samples" in planned.err
        (told,) = good(*holes, "-o", tmp_path / "{part}.tar", *options, "--missing", "skip", "--json").objects
        assert told["dropped"] == {"missing": 3}
        assert told["samples_in"] == told["samples"] + 3 == 7
        found = keys_by_part(tmp_path)
        assert sorted(key for keys in found.values() for key in keys) == ["a", "e", "f", "g"]

    def test_a_part_of_their_own(self, good: Command, holes: list[str], tmp_path: Path) -> None:
        good(*holes, "-o", tmp_path / "{part}.tar", "--by", "cls", "--missing", "none")
        assert keys_by_part(tmp_path) == {"1": ["a"], "2": ["e", "f", "g"], "none": ["b", "c", "d"]}
        made = json.loads((tmp_path / "1-manifest.json").read_bytes())["wdscli"]["made"]["options"]
        assert made == {"by": "cls", "missing": "none"}

    def test_json_that_is_none(self, run: Command, good: Command, holes: list[str], tmp_path: Path) -> None:
        options = [*holes, "-o", tmp_path / "{part}.tar", "--by", "json.who", "--missing", "none"]
        ran = run(*options)
        assert ran.code == 3
        assert (
            'json cannot be decoded: Expecting value: line 1 column 9 (char 8) in member "g.json"' in ran.err
        )
        (told,) = good(*options, "--on-error", "skip", "--json").objects
        assert told["dropped"] == {"undecodable": 1}
        assert keys_by_part(tmp_path) == {"none": ["a", "b", "c", "d", "e"], "x": ["f"]}

    def test_a_pattern_that_does_not_match(
        self, run: Command, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        options = [*shards, "-o", tmp_path / "{part}.tar", "--ratio", RATIO, "--group-by", "^[ab]"]
        ran = run(*options)
        assert (ran.code, 'no value for --group-by ^[ab] in sample "c000"' in ran.err) == (3, True)
        (told,) = good(*options, "--missing", "skip", "--json").objects
        assert told["dropped"] == {"missing": 8}

    def test_keys_that_a_map_lacks(
        self, run: Command, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "map").write_text(
            "".join(f"{key}\t{key[0]}\n" for key in keys_of(*shards) if key[0] != "c")
        )
        options = [*shards, "--by", f"@{tmp_path}/map"]
        with no_new_files(tmp_path):
            ran = run(*options, "-o", tmp_path / "{part}.tar")
        assert ran.code == 3
        assert 'map has no part for "c000" and for 7 more keys' in ran.err
        (told,) = good(*options, "-o", tmp_path / "x" / "{part}.tar", "--missing", "skip", "--json").objects
        assert told["dropped"] == {"missing": 8}
        assert list(keys_by_part(tmp_path / "x")) == ["a", "b"]
        good(*options, "-o", tmp_path / "y" / "{part}.tar", "--missing", "b")
        assert {part: len(keys) for part, keys in keys_by_part(tmp_path / "y").items()} == {"a": 12, "b": 9}
        good(*options, "-o", tmp_path / "z" / "{part}.tar", "--missing", "bb")
        assert {part: len(keys) for part, keys in keys_by_part(tmp_path / "z").items()} == {
            "a": 12,
            "bb": 8,
            "b": 1,
        }

    def test_a_part_called_drop(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "map").write_text("a000\tdrop\na001\terror\n")
        options = [*shards, "--by", f"@{tmp_path}/map", "--missing", "skip"]
        good(*options, "-o", tmp_path / "{part}.tar")
        assert keys_by_part(tmp_path) == {"drop": ["a000"], "error": ["a001"]}

    def test_values_that_cannot_name_a_part(self, run: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[sample("a", 1), [("b.cls", b"../x")]]])
        with no_new_files(tmp_path):
            ran = run(*names, "-o", tmp_path / "{part}.tar", "--by", "cls")
        assert ran.code == 3
        assert f'cls: "../x" cannot be the name of a part in sample "b" in {names[0]} at byte 3584' in ran.err
        assert "--by @FILE" in ran.err

    def test_an_image_taken_for_a_name_is_not_told_whole(self, run: Command, tmp_path: Path) -> None:
        """`split --by jpg` takes an image for the name of a part; the error prints its beginning only."""
        names = write_shards(tmp_path / "in", [[[("a.jpg", bytes(range(256)) * 9)]]])
        ran = run(*names, "-o", tmp_path / "{part}.tar", "--by", "jpg")
        assert ran.code == 3
        assert '..." cannot be the name of a part in sample "a"' in ran.err
        assert len(ran.err) < 600


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--ratio", RATIO, "--by", "cls"], "--ratio and --by exclude each other"),
            (["--by", "cls", "--by", "@m"], "--by FIELD was given more than once"),
            (["--by", "cls", "--group-by", "cls"], "--group-by needs --ratio"),
            (["--by", "@m", "--stratify", "cls"], "--stratify needs --ratio"),
            (["--ratio", "a=0.5,b=0.1"], "sum to 0.6"),
            (["--ratio", RATIO, "--missing", "none"], "--missing none needs --by"),
            (["--by", "cls", "--missing", "a/b"], "cannot be the name of a part"),
            (["--ratio", RATIO, "--group-by", "("], "--group-by: not a regular expression"),
            (["--ratio", RATIO, "--stratify", "json.["], "--stratify cannot be read"),
            (["--by", "a b"], "--by cannot be read"),
        ],
        ids=lambda one: " ".join(one) if isinstance(one, list) else "",
    )
    def test_options_that_cannot_be_meant(
        self, run: Command, shards: list[str], tmp_path: Path, options: list[str], said: str
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "{part}-%06d.tar", *options)
        assert ran.code == 2
        assert said in ran.err

    def test_part_and_no_parts(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        ran = run(*shards, "-o", tmp_path / "{part}-%06d.tar", "--max-count", 3)
        assert ran.code == 2
        assert "but no option makes parts" in ran.err
        assert "--ratio" in ran.err

    @pytest.mark.parametrize("name", ["out-%06d.tar", "{parts}-%06d.tar", "out.tar", "-"])
    def test_parts_and_no_part(self, run: Command, shards: list[str], tmp_path: Path, name: str) -> None:
        ran = run(*shards, "-o", name if name == "-" else tmp_path / name, "--ratio", RATIO)
        assert ran.code == 2
        assert "--ratio makes several" in ran.err
        assert "{part}" in ran.err.split("hint:")[1]

    def test_missing_without_parts(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        assert run(*shards, "-o", tmp_path / "o-%d.tar", "--missing", "skip").code == 2

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("options", [["--ratio", RATIO], ["--by", "cls"]], ids=" ".join)
    @pytest.mark.parametrize("there", ["{}-000007.tar", "{}-manifest.json"])
    def test_what_exists_of_any_part(
        self, run: Command, good: Command, shards: list[str], tmp_path: Path, options: list[str], there: str
    ) -> None:
        taken = there.format({"--ratio": "test", "--by": "11"}[options[0]])
        (tmp_path / taken).write_bytes(b"mine")
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "{part}-%06d.tar", *options)
        assert ran.code == 4
        assert taken in ran.err
        good(*shards, "-o", tmp_path / "{part}-%06d.tar", *options, "--force")
        good(*shards, "-o", tmp_path / "new" / "{part}-%06d.tar", *options)
        made = {name: data for name, data in content(tmp_path).items() if not name.startswith(("in", "new"))}
        assert made == content(tmp_path / "new")

    def test_an_output_that_is_an_input(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "in" / "{part}-%d.tar", "--ratio", "in=1,out=1", "--force")
        assert ran.code == 2
        assert "both an input and an output" in ran.err

    def test_nothing_half_written_is_left(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        assert run(*shards, "-o", tmp_path / "ok" / "{part}-%06d.tar", "--by", "cls").code == 0
        data = bytearray(Path(shards[2]).read_bytes())
        data[1024 + 10] ^= 1
        Path(shards[2]).write_bytes(data)
        assert run(*shards, "-o", tmp_path / "{part}-%06d.tar", "--by", "cls").code == 3
        assert outputs(tmp_path, "*.tar") == []
        assert leftovers(tmp_path) == []


class TestTold:
    def test_a_dry_run(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        options = [*clinic, "-o", tmp_path / "{part}-%06d.tar", "--ratio", f"{RATIO[:-4]}0.1,none=0.05"]
        options += ["--max-count", 9, "--group-by", "^p.."]
        with no_new_files(tmp_path):
            ran = good(*options, "-n")
            told = good(*options, "-n", "--json").objects
        good(*options)
        found = parts_of(tmp_path)
        rows = [line.split("\t") for line in ran.out.decode().splitlines()]
        made = [path for part in found for path in outputs(tmp_path, f"{part}-*.tar")]
        assert sorted(rows) == sorted(
            [str(path), str(len(keys_of(path))), str(path.stat().st_size)] for path in made
        )
        for part, samples in found.items():
            assert f"  {part}: {len(samples)} sample" in ran.err
        shards = [one for one in told if "shard" in one]
        assert {one["shard"]: one["part"] for one in shards} == {
            str(path): path.name.split("-")[0] for path in made
        }
        parts = {one["part"]: one["samples"] for one in told if "shard" not in one}
        assert parts == {part: len(samples) for part, samples in found.items()}
        assert list(parts) == ["train", "val", "test", "none"]

    def test_json(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        (told,) = good(*clinic, "-o", tmp_path / "{part}-%06d.tar", "--ratio", RATIO, "--json").objects
        assert told["operation"] == "split"
        assert list(told["parts"]) == list(SHARES)
        for part, one in told["parts"].items():
            manifest = json.loads((tmp_path / f"{part}-manifest.json").read_bytes())
            assert one == {
                "samples": manifest["wdscli"]["samples"],
                "shards": len(manifest["shardlist"]),
                "bytes": sum(path.stat().st_size for path in outputs(tmp_path, f"{part}-*.tar")),
                "fingerprint": manifest["wdscli"]["fingerprint"],
            }
        assert told["samples"] == sum(one["samples"] for one in told["parts"].values()) == 60

    def test_the_summary(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        said = good(*shards, "-o", tmp_path / "{part}.tar", "--ratio", "a=1,b=1").err
        counts = {part: len(keys) for part, keys in keys_by_part(tmp_path).items()}
        assert "split 21 samples into 2 shards" in said
        assert f"  a: {counts['a']} samples in 1 shard" in said
        assert good(*shards, "-o", tmp_path / "q{part}.tar", "--ratio", "a=1,b=1", "-q").err == ""

    def test_many_parts_are_told_with_v_only(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(30)])
        said = good(*names, "-o", tmp_path / "{part}.tar", "--by", "cls").err
        assert "  and 10 more parts" in said
        said = good(*names, "-o", tmp_path / "v{part}.tar", "--by", "cls", "-v").err
        assert "  29: 1 sample in 1 shard" in said

    def test_into_commands(self, good: Command, run: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", f"pipe:cat > {tmp_path}/p-{{part}}", "--by", "cls")
        good(*shards, "-o", tmp_path / "{part}.tar", "--by", "cls")
        for number in range(12):
            assert (tmp_path / f"p-{number}").read_bytes() == (tmp_path / f"{number}.tar").read_bytes()
        names = write_shards(tmp_path / "evil", [[[("a.cls", b"$(touch x)")]]])
        ran = run(*names, "-o", f"pipe:cat > {tmp_path}/{{part}}", "--by", "cls")
        assert (ran.code, "in a command" in ran.err) == (2, True)


class TestSameBytes:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "options",
        [
            ["--max-count", "7"],
            ["--ratio", RATIO],
            ["--ratio", RATIO, "--group-by", "^p..", "--stratify", "cls"],
            ["--by", "json.kind"],
        ],
        ids=" ".join,
    )
    def test_whatever_jobs_strategy_and_index(
        self, good: Command, tmp_path: Path, options: list[str]
    ) -> None:
        everybody = people(90)
        names = write_shards(tmp_path / "in", [everybody[:30], everybody[30:31], everybody[31:]])
        out = "out-%06d.tar" if options[0] == "--max-count" else "{part}-%06d.tar"
        found = []
        # Processes take seconds to start.
        jobs = 2 if "--stratify" in options else 1
        for number, more in enumerate((["-j", 1], ["-j", jobs], ["--strategy", "spill"], [])):
            if number == 3:
                assert wds("index", *names).code == 0
            good(*names, "-o", tmp_path / str(number) / out, *options, *more)
            found.append(content(tmp_path / str(number)))
        shards = [{name: data for name, data in one.items() if name.endswith(".tar")} for one in found]
        assert shards[0] == shards[1] == shards[2] == shards[3]
        assert found[0] == found[1] == found[2]

    @pytest.mark.parametrize("options", [["--ratio", RATIO], ["--by", "json.who.id"]], ids=" ".join)
    def test_whatever_is_looked_at_together(
        self,
        good: Command,
        clinic: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        options: list[str],
    ) -> None:
        good(*clinic, "-o", tmp_path / "a" / "{part}.tar", *options)
        monkeypatch.setattr("wdscli.arrays.ROWS_PER_BLOCK", 7)
        good(*clinic, "-o", tmp_path / "b" / "{part}.tar", *options)
        assert content(tmp_path / "a") == content(tmp_path / "b")

    @pytest.mark.exhaustive
    def test_from_a_stream(self, good: Command, clinic: list[str], tmp_path: Path) -> None:
        """As from plain files, by way of a scratch folder."""
        piped = [f"pipe:cat {name}" for name in clinic]
        good(*clinic, "-o", tmp_path / "a" / "{part}.tar", "--ratio", RATIO, "--group-by", "json.who.id")
        good(*piped, "-o", tmp_path / "b" / "{part}.tar", "--ratio", RATIO, "--group-by", "json.who.id")
        for part in SHARES:
            assert (tmp_path / "a" / f"{part}.tar").read_bytes() == (
                tmp_path / "b" / f"{part}.tar"
            ).read_bytes()


GOLDEN = {"train": "daa8529771b4a1d5", "val": "b048bfca830e501e", "test": "a243aa42d5d91ced"}
GOLDEN_KEYS = {
    "test": ["a001", "a002"],
    "train": [
        "a003",
        "a004",
        "a005",
        "a006",
        "a007",
        "a010",
        "a011",
        "c000",
        "c002",
        "c003",
        "c004",
        "c005",
        "c006",
    ],
    "val": ["a000", "a008", "a009", "b000", "c001", "c007"],
}
