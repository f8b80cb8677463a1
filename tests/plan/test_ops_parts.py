"""Shares, hashes, quotas and maps of keys: the arithmetic of parts, against the text of the manual."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import mix

from wdscli.errors import UsageError
from wdscli.ordering import bounds, mix_array, parts_of_ranks, quotas, ranks_of, stratified
from wdscli.plan.cut import Outputs, checked_part
from wdscli.plan.split import (
    FamilyNames,
    GroupDigests,
    KeyValue,
    OptionValue,
    field_or_pattern,
    parse_ratio,
    read_key_map,
)
from wdscli.samples import SampleBatch
from wdscli.selection.where import Value
from wdscli.shards.writing import ShardSettings
from wdscli.text import to_text


def u64(numbers: Any) -> Any:
    return numpy.array(list(numbers), dtype=numpy.uint64)


def shares_of(text: str) -> list[Fraction]:
    return [*parse_ratio(text).values()]


def by_the_book(key: bytes, shares: list[tuple[str, Fraction]], seed: int) -> str:
    """DESCRIPTION of wdscli-split(1), word by word."""
    rank = mix(mix(seed % 2**64) ^ xxhash.xxh3_64_intdigest(key))
    total = Fraction(0)
    for part, share in shares:
        total += share
        if total > Fraction(rank, 2**64):
            return part
    raise AssertionError("the shares sum to 1")


class TestRatio:
    @pytest.mark.parametrize(
        ("text", "shares"),
        [
            ("train=0.8,val=0.1,test=0.1", [("train", "4/5"), ("val", "1/10"), ("test", "1/10")]),
            ("train=8,val=1,test=1", [("train", "4/5"), ("val", "1/10"), ("test", "1/10")]),
            (" a = 0.5 , b = 5e-1 ", [("a", "1/2"), ("b", "1/2")]),
            ("a=0.33,b=0.33,c=0.33", [("a", "1/3"), ("b", "1/3"), ("c", "1/3")]),
            ("a=2/3,b=1/3", [("a", "2/3"), ("b", "1/3")]),
            ("all=1", [("all", "1")]),
        ],
    )
    def test_shares(self, text: str, shares: list[tuple[str, str]]) -> None:
        assert [*parse_ratio(text).items()] == [(part, Fraction(share)) for part, share in shares]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "not PART=SHARE"),
            ("train", "not PART=SHARE"),
            ("train=0.8,", "not PART=SHARE"),
            ("train=0.8,test=0.1", "sum to 0.9, not to 1"),
            ("train=0.8,test=0.3", "sum to 1.1, not to 1"),
            ("train=80%,test=20%", "is not a number"),
            ("a=1,a=2", 'names "a" twice'),
            ("a=0,b=1", "must be more than 0"),
            ("a=-1,b=2", "must be more than 0"),
            ("a=nan,b=1", "is not a number"),
            ("a=1/0", "is not a number"),
            ("../a=1,b=1", "cannot be the name of a part"),
        ],
    )
    def test_what_is_none(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            parse_ratio(text)

    @given(
        st.binary(max_size=40), st.integers(-5, 2**64 + 5), st.sampled_from(["a=1,b=1,c=1", "a=9,b=1", "x=1"])
    )
    def test_the_part_of_a_key_is_that_of_the_manual(self, key: bytes, seed: int, text: str) -> None:
        shares = parse_ratio(text)
        digests = u64([xxhash.xxh3_64_intdigest(key)])
        (number,) = parts_of_ranks(ranks_of(seed, digests), [*shares.values()])
        assert [*shares][number] == by_the_book(key, [*shares.items()], seed)
        assert digests[0] == xxhash.xxh3_64_intdigest(key), "what is given stays as it is"

    def test_golden(self) -> None:
        """A promise: what changes here moves samples of published splits to other parts."""
        digests = [xxhash.xxh3_64_intdigest(key) for key in (b"a000", b"n01/img7", b"")]
        assert list(map(hex, ranks_of(0, u64(digests)).tolist())) == GOLDEN_RANKS
        assert list(map(hex, ranks_of(7, u64(digests)).tolist())) == GOLDEN_RANKS_OF_7

    def test_ranks_at_the_borders(self) -> None:
        shares = shares_of("a=1,b=1,c=2")
        assert bounds(shares) == [2**62, 2**63]
        ranks = [0, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
        assert parts_of_ranks(u64(ranks), shares).tolist() == [0, 0, 1, 1, 2, 2]
        third = shares_of("a=1,b=2")
        border = 2**64 // 3
        assert parts_of_ranks(u64([border, border + 1]), third).tolist() == [0, 1]

    def test_a_part_too_small_for_any_rank(self) -> None:
        shares = shares_of(f"a={10**30},b=1")
        assert parts_of_ranks(u64([0, 2**64 - 2]), shares).tolist() == [0, 0]

    def test_shares_are_met(self) -> None:
        """Within five standard deviations for 20000 keys."""
        digests = u64(xxhash.xxh3_64_intdigest(b"key%d" % number) for number in range(20_000))
        for seed in range(3):
            numbers = parts_of_ranks(ranks_of(seed, digests), shares_of("a=8,b=1,c=1"))
            counts = Counter(numbers.tolist())
            assert abs(counts[1] - 2000) < 5 * 43
            assert abs(counts[2] - 2000) < 5 * 43

    def test_mix_of_many_is_mix_of_each(self) -> None:
        numbers = [0, 1, 2**64 - 1, 2**63, 12345]
        assert mix_array(u64(numbers)).tolist() == list(map(mix, numbers))


class TestStrata:
    @given(
        st.lists(st.integers(0, 400), min_size=1, max_size=30),
        st.lists(st.integers(1, 20), min_size=1, max_size=5),
    )
    def test_quotas_are_within_one_of_the_share(self, counts: list[int], weights: list[int]) -> None:
        shares = shares_of(",".join(f"p{number}={weight}" for number, weight in enumerate(weights)))
        found = quotas(counts, shares)
        for count, quota in zip(counts, found, strict=True):
            assert sum(quota) == count
            for amount, share in zip(quota, shares, strict=True):
                assert abs(amount - count * share) < 1

    def test_small_classes_give_small_parts_their_due(self) -> None:
        """A thousand classes of four: no class can give a part 5 % of its own."""
        found = quotas([4] * 1000, shares_of("train=0.8,val=0.15,test=0.05"))
        assert [sum(column) for column in zip(*found, strict=True)] == [3200, 600, 200]

    def test_each_class_has_its_shares(self) -> None:
        rng = random.Random(1)
        classes = numpy.array([rng.choice([0, 0, 0, 0, 1, 2, 2]) for _ in range(3000)])
        digests = u64(xxhash.xxh3_64_intdigest(b"k%d" % number) for number in range(3000))
        shares = shares_of("train=0.8,val=0.1,test=0.1")
        found = stratified(digests, classes, 3, shares)
        for kind in range(3):
            mine = found[classes == kind]
            for part, share in enumerate(shares):
                assert abs(int((mine == part).sum()) - len(mine) * share) < 1
        # Each class by its own: in the order of ranks, quota after quota.
        ranks = ranks_of(3, digests)
        mine = numpy.flatnonzero(classes == 1)
        in_order = found[mine[numpy.argsort(ranks[mine])]].tolist()
        assert in_order == sorted(in_order)

    def test_groups_stay_whole_and_count_where_most_of_them_are(self) -> None:
        rng = random.Random(2)
        groups = [rng.randrange(200) for _ in range(2000)]
        classes = numpy.array([group % 2 if rng.random() < 0.8 else 1 - group % 2 for group in groups])
        digests = u64(xxhash.xxh3_64_intdigest(b"g%d" % group) for group in groups)
        found = stratified(digests, classes, 0, shares_of("a=1,b=1")).tolist()
        parts: dict[int, set[int]] = {}
        for group, part in zip(groups, found, strict=True):
            parts.setdefault(group, set()).add(part)
        assert all(len(seen) == 1 for seen in parts.values())
        # Half of the samples of each class of groups, but for half a group.
        for kind in range(2):
            mine = [part for group, part in zip(groups, found, strict=True) if group % 2 == kind]
            assert abs(mine.count(0) - len(mine) / 2) <= max(Counter(groups).values()) / 2 + 0.5

    def test_nothing(self) -> None:
        assert stratified(u64([]), numpy.array([], dtype=numpy.int64), 0, shares_of("a=1,b=1")).tolist() == []

    def test_a_tie_goes_to_the_lower_class(self) -> None:
        digests = u64([5, 5, 9])
        shares = shares_of("a=1,b=1")
        tie = stratified(digests, numpy.array([0, 1, 1]), 0, shares)
        assert tie.tolist() == stratified(digests, numpy.array([0, 0, 1]), 0, shares).tolist()


class TestValues:
    @pytest.mark.parametrize(
        "text", ["cls", "seg.png", "json.user.id", "json.a[0]", 'json["a b"].c', "txt-2", "é"]
    )
    def test_what_reads_like_a_field_is_one(self, text: str) -> None:
        assert isinstance(field_or_pattern(text, "--group-by"), Value)

    @pytest.mark.parametrize("text", ["^p[0-9]+", "(patient)", "a+", "json.[ab]", ".", "a/b", "[^/]+/"])
    def test_anything_else_is_a_pattern(self, text: str) -> None:
        assert isinstance(field_or_pattern(text, "--group-by"), KeyValue)

    @pytest.mark.parametrize(
        ("text", "said"), [("", "is empty"), ("(", "not a regular expression"), ("[z-a]", "not a regular")]
    )
    def test_what_is_neither(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            field_or_pattern(text, "--group-by")

    @pytest.mark.parametrize("text", ["", "a b", "json.", "json.a[", "json..a", "key.a"])
    def test_what_is_no_field(self, text: str) -> None:
        with pytest.raises(UsageError):
            Value.of_payloads(text, "--by")

    def test_the_fields_that_are_looked_into(self) -> None:
        """They are read together with the headers where a request for each would cost more."""
        cls = OptionValue(Value.of_payloads("cls", "--stratify"), "--stratify")
        meta = OptionValue(Value.of_payloads("json.a", "--group-by"), "--group-by")
        key = OptionValue(field_or_pattern("^p", "--group-by"), "--group-by")
        assert GroupDigests(meta, cls).payload_fields == {b"json", b"cls"}
        assert GroupDigests(key, cls).payload_fields == {b"cls"}
        assert GroupDigests(key).payload_fields == set()
        assert FamilyNames(meta).payload_fields == {b"json"}

    def test_a_long_class_is_kept_as_a_hash(self) -> None:
        batch = SampleBatch(0, [b"a"], [0, 1], [b"txt"], [0], [512], [5000], [0], [0])
        wanted = GroupDigests(stratify=OptionValue(Value.of_payloads("txt", "--stratify"), "--stratify"))
        (short,) = wanted.values(batch, [0], "", lambda row, field: b" cat\n")
        (long,) = wanted.values(batch, [0], "", lambda row, field: b"x" * 5000)
        assert short == xxhash.xxh3_64_digest(b"a")[::-1] + b"cat"
        assert long == xxhash.xxh3_64_digest(b"a")[::-1] + xxhash.xxh3_128_digest(b"x" * 5000)


class TestNames:
    @pytest.mark.parametrize(
        "name", ["train", "0", "golden retriever", "a.b", "x-1", "Ünïcode", "a" * 200, "a=b", "n't", "$1;"]
    )
    def test_names_of_parts(self, name: str) -> None:
        assert checked_part(name) == name

    @pytest.mark.parametrize(
        "name",
        [
            "",
            ".",
            "..",
            ".wds",
            "a/b",
            "a\\b",
            "a%d",
            "{a}",
            "a*",
            "a?",
            "[a]",
            "@a",
            "a|b",
            "c:",
            "a\0",
            "a\n",
            "-a",
            "~a",
            " a",
            "a\x1b[2J",
            "a\u202e",
            "a" * 201,
            "\udcff",
        ],
    )
    def test_names_that_are_none(self, name: str) -> None:
        with pytest.raises(UsageError, match="cannot be the name of a part"):
            checked_part(name)

    @pytest.mark.parametrize(
        "text",
        ["{part}%d.tar", "{part}7%06d.tar", "%06d{part}.tar", "{part}{000..007}.tar", "{0..7}1{part}.tar"],
    )
    def test_a_name_beside_the_number(self, text: str) -> None:
        """``a1`` and 0, or ``a`` and 10?"""
        with pytest.raises(UsageError, match="does not separate the part's name"):
            Outputs(text, ShardSettings())

    @pytest.mark.parametrize("text", ["x-%06d-{part}.tar", "%d/{part}.tar"])
    def test_parts_whose_manifests_would_have_one_name(self, text: str) -> None:
        with pytest.raises(UsageError, match="manifests of all parts the same name"):
            Outputs(text, ShardSettings())

    @pytest.mark.parametrize(
        "text",
        [
            "{part}-%06d.tar",
            "{part}/%06d.tar",
            "{part}.tar",
            "a/{part}/{part}-{00..07}.tar",
            "x{part}.0%d.tar",
        ],
    )
    def test_names_that_are_apart(self, text: str) -> None:
        assert Outputs(text, ShardSettings()).has_parts

    def test_a_command_takes_tame_names_only(self) -> None:
        outputs = Outputs("pipe:cat > {part}.tar", ShardSettings())
        assert outputs.set_of("a-1.b").address(0) == "pipe:cat > a-1.b.tar"
        for name in ("a b", "$(x)", "a;b", "`x`", "a'b", "é"):
            with pytest.raises(UsageError, match="in a command"):
                outputs.set_of(name)


class TestKeyMap:
    @pytest.mark.parametrize(
        "text",
        [
            "a/1\ttrain\na/2\ttest\n",
            "a/1\ttrain\r\n\r\na/2\t test",
            "key\tpart\na/1\ttrain\na/2\ttest\n",
            '{"a/1": "train", "a/2": "test"}',
            ' {"test": ["a/2"], "train": ["a/1"]}',
            # As in the documentation of dSort.
            "a/1\ttrain-%d.tar\na/2\ttest-%06d.tar\n",
            '{"train-{0..100}.tar": ["a/1"], "test-{0..9}": ["a/2"]}',
        ],
    )
    def test_forms(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "map").write_text(text)
        found = read_key_map(str(tmp_path / "map"))
        assert found.parts == ("test", "train")
        assert found.part_of == {b"a/1": 1, b"a/2": 0}
        assert found.digest == xxhash.xxh3_128_hexdigest(text.encode())

    def test_keys_with_blanks_commas_and_tabs(self, tmp_path: Path) -> None:
        (tmp_path / "map").write_text("a b\ttrain\nc,d\ttest\ne\tf\ttest\n")
        keys = list(map(to_text, read_key_map(str(tmp_path / "map")).part_of))
        assert keys == ["a b", "c,d", "e\tf"]

    def test_parts_are_in_natural_order(self, tmp_path: Path) -> None:
        (tmp_path / "map").write_text("a\tp10\nb\tp9\nc\tp1\nd\tp9\n")
        found = read_key_map(str(tmp_path / "map"))
        assert found.parts == ("p1", "p9", "p10")
        assert found.part_of == {b"a": 2, b"b": 1, b"c": 0, b"d": 1}

    def test_keys_are_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "map").write_bytes(b"\xff\xfe\ttrain\n")
        assert read_key_map(str(tmp_path / "map")).part_of == {b"\xff\xfe": 0}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a\n", "line 1: not KEY<TAB>PART"),
            ("a\ttrain\nb\n", "line 2: not KEY<TAB>PART"),
            ("a\ttrain\nb\t\n", "line 2: not KEY<TAB>PART"),
            ("a\ttrain\nb\ttest\na\ttest\n", 'line 3: "a" has a second part'),
            ('{"a": 1}', '"a" has neither a part nor a list of keys'),
            ('{"a": ["b", 1]}', "neither"),
            ('{"a": ["k"], "b": ["k"]}', '"k" has a second part'),
            ('{"key": "a", "part": "t"}\n{"key": "b", "part": "t"}\n', "not a JSON object"),
            ("{broken", "not a JSON object"),
            ("a train\nb,test\n", "line 1: not KEY<TAB>PART"),
            ("a\t../x\n", "cannot be the name of a part"),
            ("a\t-%d.tar\n", "cannot be the name of a part"),
        ],
    )
    def test_what_is_no_map(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "map").write_text(text)
        with pytest.raises(UsageError, match=said):
            read_key_map(str(tmp_path / "map"))

    def test_the_same_line_twice_does_no_harm(self, tmp_path: Path) -> None:
        (tmp_path / "map").write_text("a\ttrain\na\ttrain\n")
        assert read_key_map(str(tmp_path / "map")).part_of == {b"a": 0}


GOLDEN_RANKS = ["0x948af061eb06f0bd", "0x1c0ff3dd5529ee05", "0x9dc822abc1c5a68e"]
GOLDEN_RANKS_OF_7 = ["0xc7458850a55d6929", "0xbb4edfd52860e770", "0x7a1ed7ef75cbf2a4"]
