"""``wds sort``: every order against sorted() and sort(1), stability, what is missing, what is wrong, every option."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reorders import sort
from shard_cases import (
    Members,
    Ran,
    assert_true_set,
    by_gnu_tar,
    content,
    keys_of,
    members_of,
    no_new_files,
    numbered,
    outputs,
    samples_of,
    wds,
    write_shards,
)
from tiers import examples

from wdscli.cli.main import main
from wdscli.errors import DataError, UsageError
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.plan.sort import MAX_VALUE_BYTES, SortValues, sort_key, sort_order
from wdscli.samples import SampleBatch
from wdscli.selection import where
from wdscli.selection.places import decoder_of

Command = Callable[..., Ran]
pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND = ["sort"]
GOOD = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def one(key: str, **fields: object) -> Members:
    """A sample; what is not bytes is written as JSON. ``seg_png`` is the field seg.png."""
    return [
        (f"{key}.{name.replace('_', '.')}", value if isinstance(value, bytes) else json.dumps(value).encode())
        for name, value in fields.items()
    ]


def spread(folder: Path, samples: Sequence[Members], shards: int = 3) -> list[str]:
    """Samples in their order over some shards, of which one is empty."""
    each = -(-len(samples) // shards)
    parts: list[Sequence[Members]] = [samples[at : at + each] for at in range(0, len(samples), each)]
    return write_shards(folder, [*parts[:1], [], *parts[1:]])


@pytest.fixture
def by(good: Command, tmp_path: Path) -> Callable[..., list[str]]:
    """The keys of samples in the order that some options give, one letter each, in a row."""

    def call(samples: Sequence[Members], *options: object) -> str:
        names = spread(tmp_path / "in", samples)
        good(*names, "-o", tmp_path / "out.tar", "--force", *options)
        return " ".join(keys_of(tmp_path / "out.tar"))

    return call


By = Callable[..., str]

SIZES = [
    one("a", json={"width": 640, "name": "x10", "box": [5, 1]}, cls=b"3"),
    one("b", json={"width": 32, "name": "x9", "box": [5]}, cls=b"20"),
    one("c", json={"width": 640, "name": "X9", "box": [4, 9]}, cls=b"1"),
    one("d", json={"width": 1e3, "name": "", "box": []}, cls=b"3"),
    one("e", json={"width": -1.5, "name": "x09", "box": [40]}, cls=b"-4"),
]


class TestByWhatIsItsOwn:
    """md5 and size, which no field is, and the field of such a name behind a dot."""

    SAMPLES = (
        one("a", md5=b"3", size=b"333", cls=b"22"),
        one("b", md5=b"2", size=b"22", cls=b"1"),
        one("c", md5=b"1", size=b"4444"),
        one("d", md5=b"4", size=b"1", cls=b"4444444"),
    )

    def test_md5_of_the_key(self, by: By) -> None:
        expected = sorted("abcd", key=lambda key: hashlib.md5(key.encode()).digest())
        assert by(self.SAMPLES, "--by", "md5").split() == expected
        assert by(self.SAMPLES, "--by", "md5:r").split() == expected[::-1]
        assert by(self.SAMPLES, "--by", ".md5") == "c b a d"

    def test_size(self, by: By) -> None:
        sizes = {key[0][0][0]: sum(len(data) for _, data in key) for key in self.SAMPLES}
        assert sizes == {"a": 6, "b": 4, "c": 5, "d": 9}
        assert by(self.SAMPLES, "--by", "size") == by(self.SAMPLES, "--by", "size:n") == "b c a d"
        assert by(self.SAMPLES, "--by", "size", "--reverse") == "d a c b"
        assert by(self.SAMPLES, "--by", "size.cls") == "b a d c"
        assert by(self.SAMPLES, "--by", "size.cls:r", "--missing", "first") == "c d a b"
        assert by(self.SAMPLES, "--by", ".size") == "d b a c"

    def test_what_ties(self, by: By) -> None:
        samples = [one(key, cls=b"1") for key in "dbca"]
        assert by(samples, "--by", "size") == "d b c a"
        assert by(samples, "--by", "size", "--by", "key:r") == "d c b a"

    @pytest.mark.parametrize("what", ["md5", "size", "md5:r", "size:r"])
    def test_an_index_says_the_same(self, good: Command, tmp_path: Path, what: str) -> None:
        names = spread(tmp_path / "in", numbered(30, sizes=(7, 300)) + numbered(20, "a", sizes=(200,)))
        good(*names, "-o", tmp_path / "a.tar", "--by", what)
        wds("index", *names)
        good(*names, "-o", tmp_path / "b.tar", "--by", what)
        assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()

    @pytest.mark.parametrize("what", ["md5:n", "md5:V", "size:V"])
    def test_in_one_way_only(self, run: Command, tmp_path: Path, what: str) -> None:
        ran = run("x.tar", "-o", tmp_path / "out.tar", "--by", what)
        assert ran.code == 2
        assert "cannot sort by" in ran.err


class TestListed:
    @pytest.fixture
    def listed(self, tmp_path: Path) -> Callable[..., str]:
        def write(*keys: str) -> str:
            (tmp_path / "keys").write_text("\n".join(keys) + "\r\n\n")
            return str(tmp_path / "keys")

        return write

    def test_as_the_file_says(self, by: By, listed: Callable[..., str]) -> None:
        assert by(SIZES, "--by", "@" + str(listed("d", "a", "e", "c", "b"))) == "d a e c b"

    def test_from_standard_input(self, tmp_path: Path) -> None:
        names = spread(tmp_path / "in", SIZES)
        ran = wds("sort", *names, "-o", tmp_path / "out.tar", "--by", "@-", stdin=b"c\nb\na\ne\nd\n")
        assert ran.code == 0
        assert keys_of(tmp_path / "out.tar") == ["c", "b", "a", "e", "d"]
        ran = wds("sort", "-", "-o", tmp_path / "x.tar", "--by", "@-", stdin=b"")
        assert ran.code == 2
        assert "standard input cannot hold both" in ran.err

    def test_samples_that_it_lacks(
        self, by: By, run: Command, listed: Callable[..., str], tmp_path: Path
    ) -> None:
        names = spread(tmp_path / "other", SIZES)
        file = listed("d", "a")
        ran = run(*names, "-o", tmp_path / "no.tar", "--by", f"@{file}")
        assert ran.code == 3
        assert f'{file} does not list "b" and 2 more keys' in ran.err
        assert not (tmp_path / "no.tar").exists()
        assert by(SIZES, "--by", f"@{file}", "--missing", "last") == "d a b c e"
        assert by(SIZES, "--by", f"@{file}", "--missing", "first") == "b c e d a"
        assert by(SIZES, "--by", f"@{file}", "--keys-from", file) == "d a"

    def test_keys_that_no_sample_has(
        self, good: Command, run: Command, listed: Callable[..., str], tmp_path: Path
    ) -> None:
        names = spread(tmp_path / "in", SIZES)
        options = (
            *names,
            "-o",
            tmp_path / "out.tar",
            "--by",
            "@" + str(listed("x", "d", "a", "b", "y", "c", "e")),
        )
        ran = run(*options)
        assert ran.code == 3
        assert "2 keys of" in ran.err
        assert "not found: x, y" in ran.err
        told = good(*options, "--allow-empty").err
        assert "warning: 2 keys of" in told
        assert keys_of(tmp_path / "out.tar") == ["d", "a", "b", "c", "e"]

    def test_a_key_twice(self, run: Command, listed: Callable[..., str], tmp_path: Path) -> None:
        for keys in (("a", "a"), ("a", "b", "a")):
            ran = run("x.tar", "-o", tmp_path / "out.tar", "--by", "@" + str(listed(*keys)))
            assert ran.code == 2
            assert 'has "a" twice' in ran.err

    @pytest.mark.parametrize("more", [["--by", "cls"], ["--reverse"]])
    def test_alone(self, run: Command, listed: Callable[..., str], tmp_path: Path, more: list[str]) -> None:
        ran = run("x.tar", "-o", tmp_path / "out.tar", "--by", "@" + str(listed("a")), *more)
        assert ran.code == 2
        assert "cannot be combined with another order" in ran.err

    def test_a_plan_and_a_resumed_run(
        self, good: Command, listed: Callable[..., str], tmp_path: Path
    ) -> None:
        names = spread(tmp_path / "in", SIZES)
        options = (*names, "-o", tmp_path / "out-%d.tar", "--max-count", 2, "--by")
        good(*options, f"@{listed('d', 'a', 'e', 'c', 'b')}", "--plan", tmp_path / "p")
        (tmp_path / "keys").unlink()
        assert wds("run", tmp_path / "p").code == 0
        assert keys_of(*outputs(tmp_path, "out-*.tar")) == ["d", "a", "e", "c", "b"]
        made = json.loads((tmp_path / "out-manifest.json").read_bytes())["wdscli"]["made"]
        assert made["options"]["order_from"].startswith("xxh3_128:")
        told = good(*options, f"@{listed('d', 'a', 'e', 'c', 'b')}", "--resume").err
        assert "kept 3 shards" in told
        ran = wds("sort", *options, f"@{listed('d', 'a', 'e', 'b', 'c')}", "--resume")
        assert ran.code == 4
        assert keys_of(*outputs(tmp_path, "out-*.tar")) == ["d", "a", "e", "c", "b"]


class TestByKey:
    @GOOD
    @given(st.permutations([f"k{n}" for n in (1, 2, 3, 9, 10, 11, 100)] + ["Z/a", "a/Z", "é", "k", "k-1"]))
    def test_as_sorted_would(self, tmp_path_factory: Any, keys: list[str]) -> None:
        folder = tmp_path_factory.mktemp("keys")
        names = spread(folder / "in", [one(key, cls=b"1") for key in keys])
        report = sort(Request(names, f"{folder}/out.tar"))
        assert report.samples == len(keys)
        assert keys_of(folder / "out.tar") == sorted(keys, key=str.encode)

    def test_as_sort_would(self, good: Command, tmp_path: Path) -> None:
        """GNU sort as the judge, on names that locales would order otherwise."""
        rng = random.Random(3)
        keys = list(
            {"".join(rng.choices("aAbB-_/09é ", k=rng.randrange(1, 8))).strip("/") for _ in range(200)}
        )
        keys = [key for key in keys if key and "//" not in key]
        names = spread(tmp_path / "in", [one(key, cls=b"1") for key in keys])
        for options, theirs in (([], []), (["--reverse"], ["-r"])):
            good(*names, "-o", tmp_path / "out.tar", "--force", *options)
            done = subprocess.run(
                ["sort", "-s", *theirs], input="\n".join(keys), env={**os.environ, "LC_ALL": "C"},
                capture_output=True, encoding="utf-8", check=True,
            )  # fmt: skip
            assert keys_of(tmp_path / "out.tar") == done.stdout.splitlines()

    def test_natural(self, by: By) -> None:
        samples = [one(key, cls=b"1") for key in ("i10", "i9", "i", "i9b", "i010", "j1")]
        assert by(samples) == "i i010 i10 i9 i9b j1"
        assert by(samples, "--by", "key:V") == "i i9 i9b i010 i10 j1"
        assert by(samples, "--by", "key:V") == "i i9 i9b i010 i10 j1"
        assert by(samples, "--by", "key:natural,reverse") == "j1 i10 i010 i9b i9 i"

    def test_numeric(self, by: By) -> None:
        samples = [one(key, cls=b"1") for key in ("10", "9", "-3", "007")]
        assert by(samples, "--by", "key:n") == "-3 007 9 10"

    def test_a_key_that_is_a_number_to_those_that_ask(self, run: Command, tmp_path: Path) -> None:
        names = spread(tmp_path / "in", [one("1", cls=b"1"), one("n2", cls=b"1")], 1)
        ran = run(*names, "-o", tmp_path / "out.tar", "--by", "key:n")
        assert ran.code == 3
        assert f'cannot sort by key: it is not a number in sample "n2" in {names[0]} at byte 1024' in ran.err

    def test_the_key_as_it_is_read(self, good: Command, tmp_path: Path) -> None:
        names = spread(tmp_path / "in", numbered(7, "b") + numbered(5, "a"))
        good(*names, "-o", tmp_path / "out.tar", "--rekey", "x{index:03d}-{shard}")
        found = samples_of(tmp_path / "out.tar")
        plain = sorted(one for name in names for one in samples_of(name))
        assert [fields for _, fields in found] == [fields for _, fields in plain]
        assert all(key.startswith("x0") for key, _ in found)


class TestByField:
    @GOOD
    @given(
        st.lists(
            st.binary(max_size=4) | st.sampled_from([b"a\0", b"a", b"a\0b", b""]), min_size=1, max_size=30
        )
    )
    def test_bytewise_and_stable(self, tmp_path_factory: Any, payloads: list[bytes]) -> None:
        folder = tmp_path_factory.mktemp("fields")
        samples = [one(f"{9 - number % 10}{number}", seg_png=data) for number, data in enumerate(payloads)]
        names = spread(folder / "in", samples)
        read = [one for name in names for one in samples_of(name)]
        for reverse in (False, True):
            sort(Request(names, f"{folder}/out-{reverse}.tar"), by=["seg.png"], reverse=reverse)
            expected = sorted(read, key=lambda one: one[1][0][1], reverse=reverse)
            assert samples_of(folder / f"out-{reverse}.tar") == expected

    @GOOD
    @given(
        st.lists(
            st.tuples(st.integers(-20, 20) | st.integers(2**53, 2**53 + 2), st.integers(-2, 2)),
            min_size=1,
            max_size=20,
        )
    )
    def test_numbers_exactly(self, tmp_path_factory: Any, pairs: list[tuple[int, int]]) -> None:
        folder = tmp_path_factory.mktemp("numbers")
        texts = [f" {number}e{power}\n" for number, power in pairs]
        names = spread(folder / "in", [one(f"k{at}", txt=text.encode()) for at, text in enumerate(texts)])
        sort(Request(names, f"{folder}/out.tar"), by=["txt"], how="numeric")
        order = sorted(range(len(texts)), key=lambda at: Decimal(texts[at].strip()))
        assert keys_of(folder / "out.tar") == [f"k{at}" for at in order]

    def test_numeric_natural_and_neither(self, by: By) -> None:
        assert by(SIZES, "--by", "cls") == "e c b a d"
        assert by(SIZES, "--by", "cls:n") == "e c a d b"
        assert by(SIZES, "--by", "cls:n") == "e c a d b"
        assert by(SIZES, "--by", "cls:V") == "e c a d b"
        assert by(SIZES, "--by", "cls:numeric,reverse") == "b a d c e"

    def test_the_field_as_the_input_names_it_and_whether_it_is_written_or_not(self, by: By) -> None:
        assert by(SIZES, "--by", "cls:n", "--drop", "cls") == "e c a d b"
        assert by(SIZES, "--by", "cls:n", "--rename", "label=cls") == "e c a d b"

    def test_a_field_with_a_colon(self, by: By) -> None:
        samples = [[("a.x:y", b"2")], [("b.x:y", b"1")]]
        assert by(samples, "--by", "x:y:plain") == "b a"

    def test_what_is_too_long_is_not_compared(self, run: Command, good: Command, tmp_path: Path) -> None:
        samples = [
            one("a", jpg=bytes(MAX_VALUE_BYTES)),
            one("b", jpg=bytes(MAX_VALUE_BYTES + 1)),
            one("c", jpg=b"\1"),
        ]
        names = spread(tmp_path / "in", samples, 1)
        ran = run(*names, "-o", tmp_path / "out.tar", "--by", "jpg")
        assert ran.code == 3
        assert "cannot sort by jpg: it has 1048577 bytes, and the limit is 1048576" in ran.err
        assert '"b.jpg"' in ran.err
        good(*names, "-o", tmp_path / "out.tar", "--by", "jpg", "--slice", "0::2", "--reverse")
        assert keys_of(tmp_path / "out.tar") == ["c", "a"]

    def test_with_an_index_and_from_a_pipe(self, by: By, good: Command, tmp_path: Path) -> None:
        first = by(SIZES, "--by", "json.width")
        names = sorted(map(str, (tmp_path / "in").glob("*.tar")))
        assert main(["index", *names]) == 0
        good(*names, "-o", tmp_path / "indexed.tar", "--by", "json.width")
        good(*[f"pipe:cat {name}" for name in names], "-o", tmp_path / "piped.tar", "--by", "json.width")
        assert " ".join(keys_of(tmp_path / "indexed.tar")) == first
        assert (tmp_path / "indexed.tar").read_bytes() == (tmp_path / "piped.tar").read_bytes()


class TestByJson:
    def test_numbers_are_numbers(self, by: By) -> None:
        assert by(SIZES, "--by", "json.width") == "e b a c d"
        assert by(SIZES, "--by", "json.width:r") == "d a c b e"

    def test_strings(self, by: By) -> None:
        assert by(SIZES, "--by", "json.name") == "d c e a b"
        assert by(SIZES, "--by", "json.name:V") == "d c e b a"

    @pytest.mark.parametrize("path", ["json.box[0]", "json.box.0", 'json["box"][0]', "json['box'].0"])
    def test_paths(self, by: By, path: str) -> None:
        assert by(SIZES, "--by", path) == "c a b e d"

    def test_places_from_the_end(self, by: By) -> None:
        assert by(SIZES, "--by", "json.box[-1]") == "a b c e d"

    def test_a_name_of_digits(self, by: By) -> None:
        samples = [one("a", json={"0": {"a.b": 2}}), one("b", json={"0": {"a.b": 1}})]
        assert by(samples, "--by", "json.0['a.b']") == "b a"
        assert by(samples, "--by", "json[0]", "--missing", "last") == "a b"

    def test_another_field_with_json(self, by: By) -> None:
        samples = [one("a", meta_json={"n": {"json": 2}}), one("b", meta_json={"n": {"json": 1}})]
        assert by(samples, "--by", "meta.json.n.json") == "b a"
        assert by(samples, "--by", "meta.json:r") == "a b"

    def test_values_of_all_types(self, by: By) -> None:
        values = [{"a": 1}, [2], [1, 5], "b", "a", 3, 2.5, True, False, None]
        samples = [one(letter, json={"v": value}) for letter, value in zip("abcdefghij", values, strict=True)]
        assert by(samples, "--by", "json.v") == "i h g f e d c b a j"

    def test_numbers_beyond_floats(self, by: By) -> None:
        texts = [b"9007199254740993", b"9007199254740992", b"1e400", b"-1e400", b"0." + b"1" * 40, b"1e-400"]
        samples = [[(f"{letter}.json", b"[%s]" % text)] for letter, text in zip("abcdef", texts, strict=True)]
        assert by(samples, "--by", "json[0]") == "d f e b a c"

    def test_numeric_takes_strings_too(self, by: By) -> None:
        samples = [one("a", json=["10"]), one("b", json=[11]), one("c", json=[" 9.5 "])]
        assert by(samples, "--by", "json[0]:n") == "c a b"
        assert by(samples, "--by", "json[0]") == "b c a"

    def test_the_document_is_decoded_once(self, by: By, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []

        def counting(field: str, exact: bool = False) -> Callable[[bytes], Any]:
            return lambda payload: seen.append(1) or decoder_of(field, exact)(payload)

        monkeypatch.setattr(where, "decoder_of", counting)
        by(SIZES, "--by", "json.width", "--by", "json.name", "--by", "json.box")
        assert len(seen) == len(SIZES)


class TestSeveralKeys:
    def test_one_after_the_other(self, by: By) -> None:
        assert by(SIZES, "--by", "json.width", "--by", "cls:nr") == "e b a c d"
        assert by(SIZES, "--by", "json.width:r", "--by", "cls:n") == "d c a b e"
        assert by(SIZES, "--by", "cls:n", "--by", "key:r") == "e c d a b"

    def test_flags_hold_where_there_are_no_modifiers(self, by: By) -> None:
        assert by(SIZES, "--by", "cls", "--by", "key", "--reverse") == "d a b c e"
        assert by(SIZES, "--by", "cls:n", "--by", "key", "--reverse") == "e c d a b"
        assert by(SIZES, "--by", "cls:plain", "--by", "key:r", "--reverse") == "e c b d a"

    @GOOD
    @given(st.data())
    def test_as_sorted_would(self, tmp_path_factory: Any, data: st.DataObject) -> None:
        folder = tmp_path_factory.mktemp("several")
        values = data.draw(
            st.lists(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "txt": st.sampled_from([b"", b"a", b"a\0", b"ab", b"b"]),
                        "cls": st.sampled_from([b"1", b"1.0", b"-2", b"1e1"]),
                        "json": st.sampled_from([None, 1, 2, "a", "b", [1]]).map(lambda value: {"v": value}),
                    },
                ),
                min_size=1,
                max_size=25,
            )
        )
        keys = data.draw(st.permutations(["txt", "cls:n", "json.v"]))
        turned = [data.draw(st.booleans()) for _ in keys]
        missing = data.draw(st.sampled_from(["first", "last"]))
        samples = [one(f"k{at:02d}", jpg=b"", **fields) for at, fields in enumerate(values)]
        texts = [
            key + (":r" if ":" not in key else "r") * turn for key, turn in zip(keys, turned, strict=True)
        ]
        report = sort(Request(spread(folder / "in", samples), f"{folder}/out.tar"), by=texts, missing=missing)
        assert (report.samples_in, report.samples, report.dropped) == (len(values), len(values), {})
        order = list(range(len(values)))
        for key, turn in list(zip(keys, turned, strict=True))[::-1]:
            have = [at for at in order if oracle(key, values[at]) is not None]
            lack = [at for at in order if oracle(key, values[at]) is None]
            have.sort(key=lambda at, key=key: oracle(key, values[at]), reverse=turn)  # type: ignore[misc]
            order = lack + have if missing == "first" else have + lack
        assert keys_of(folder / "out.tar") == [f"k{at:02d}" for at in order]
        written = Counter(members_of(folder / "out.tar"))
        assert written == Counter(member for sample in samples for member in sample)

    def test_more_than_eight(self, by: By) -> None:
        assert by(SIZES, *["--by", "json.width"] * 9, "--by", "key:r") == "e b c a d"


def oracle(key: str, fields: dict[str, Any]) -> Any:
    """The value that a sample is sorted by, comparable in Python."""
    if key == "json.v":
        value = fields.get("json", {}).get("v")
        return None if value is None else ((int, str, list).index(type(value)), value)
    value = fields.get(key.removesuffix(":n"))
    return value if value is None or key == "txt" else Decimal(value.decode())


MISSING = [
    one("a", cls=b"2", json={"v": None}),
    one("b", txt=b"x", json={"v": 1}),
    one("c", cls=b"1", json={}),
    one("d", txt=b"x", json={"v": 0}),
]


class TestMissing:
    def test_last_in_input_order(self, by: By) -> None:
        assert by(MISSING, "--by", "cls") == "c a b d"
        assert by(MISSING, "--by", "cls:r") == "a c b d"
        assert by(MISSING, "--by", "json.v") == "d b a c"
        assert by(MISSING, "--by", "cls", "--missing", "last") == "c a b d"

    def test_first(self, by: By) -> None:
        assert by(MISSING, "--by", "cls", "--missing", "first") == "b d c a"
        assert by(MISSING, "--by", "cls:r", "--missing", "first") == "b d a c"
        assert by(MISSING, "--by", "cls", "--by", "json.v", "--missing", "first") == "d b c a"

    def test_error(self, run: Command, tmp_path: Path) -> None:
        names = spread(tmp_path / "in", MISSING, 1)
        for what, key, byte in (("cls", "b", 2048), ("json.v", "a", 0)):
            ran = run(*names, "-o", tmp_path / "out.tar", "--by", what, "--missing", "error")
            assert ran.code == 3
            assert (
                f'the sample has no {what} to sort by in sample "{key}" in {names[0]} at byte {byte}'
                in ran.err
            )
            assert "hint: sort such samples before or after all others: --missing first|last" in ran.err
        assert not (tmp_path / "out.tar").exists()

    def test_a_value_that_no_sample_has(self, run: Command, by: By, tmp_path: Path) -> None:
        names = spread(tmp_path / "in", MISSING)
        ran = run(*names, "-o", tmp_path / "out.tar", "--by", "cls", "--by", "json.widht", "--by", "jpg")
        assert ran.code == 3
        assert "no sample has json.widht or jpg to sort by" in ran.err
        assert "hint: list the fields: wds ls --by member; sort anyway: --missing last" in ran.err
        ran = run(*names, "-o", tmp_path / "out.tar", "--by", "cls,key")
        assert "hint: give each sort key its own option: --by cls --by key" in ran.err
        assert by(MISSING, "--by", "json.widht", "--missing", "last") == "a b c d"
        assert by(MISSING, "--by", "json.widht", "--keys", "none", "--allow-empty") == ""

    def test_nan(self, by: By) -> None:
        samples = [
            one("a", txt=b"nan", json=float("nan")),
            one("b", txt=b"1", json=1),
            one("c", txt=b"-inf", json=0),
        ]
        assert by(samples, "--by", "txt:n") == "c b a"
        assert by(samples, "--by", "txt:n", "--missing", "first") == "a c b"
        samples[0] = [("a.json", b'{"v": NaN}')]
        samples[1] = [("b.json", b'{"v": Infinity}')]
        samples[2] = [("c.json", b'{"v": 1}')]
        assert by(samples, "--by", "json.v") == "c b a"


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("what", "member", "why"),
        [
            ("json.v", "b.json", "Expecting value: line 1 column 1 (char 0)"),
            ("txt:n", "b.txt", "it is not a number"),
            ("json:n", "b.json", "it is not a number"),
        ],
    )
    def test_values(self, run: Command, by: By, tmp_path: Path, what: str, member: str, why: str) -> None:
        samples = [
            one("a", txt=b"7", json=b"3"),
            one("b", txt=b"7th", json=b"x"),
            one("c", txt=b"6", json=b"2"),
        ]
        names = spread(tmp_path / "in", samples, 1)
        ran = run(*names, "-o", tmp_path / "out.tar", "--by", what, "--by", "key")
        assert ran.code == 3
        byte = 2048 + 1024 * (member == "b.json")
        place = f'in member "{member}" in {names[0]} at byte {byte}'
        what_fails = (
            "json cannot be decoded" if what == "json.v" else f"cannot sort by {what.removesuffix(':n')}"
        )
        assert f"{what_fails}: {why} {place}" in ran.err
        assert "hint: count such values as missing: --on-error skip" in ran.err
        if what != "json.v":
            assert by(samples, "--by", what, "--on-error", "skip") == "c a b"

    @pytest.mark.parametrize("value", [True, [1], {"a": 1}, "1_0", ""])
    def test_json_that_is_no_number(self, tmp_path: Path, value: object) -> None:
        names = spread(tmp_path / "in", [one("a", json=[value])], 1)
        with pytest.raises(DataError, match="not a number"):
            sort(Request(names, f"{tmp_path}/out.tar"), by=["json[0]:n"])

    @pytest.mark.parametrize(
        "payload",
        [
            b"[" * 100_000,
            b"\xff",
            b"",
            b"[1]]",
            b'{"v": 1e9999999999999999999}',
            b'{"v": ' * 900 + b"1" + b"}" * 900,
        ],
    )
    def test_hostile_json(self, tmp_path: Path, payload: bytes) -> None:
        names = write_shards(tmp_path / "in", [[[("a.json", payload)]]])
        try:
            sort(Request(names, f"{tmp_path}/out.tar"), by=["json.v"])
        except DataError as error:
            assert (error.code, error.member) == ("undecodable", "a.json")
        sort(Request(names, f"{tmp_path}/out2.tar", on_error="skip"), by=["json.v"], missing="first")
        assert keys_of(tmp_path / "out2.tar") == ["a"]

    @pytest.mark.parametrize("payload", ["é".encode(), "٣".encode(), b"\xff", b""])
    def test_text_that_is_no_number(self, tmp_path: Path, payload: bytes) -> None:
        names = spread(tmp_path / "in", [one("a", txt=payload)], 1)
        with pytest.raises(DataError, match="it is not a number"):
            sort(Request(names, f"{tmp_path}/out.tar"), by=["txt"], how="numeric")

    def test_a_long_value_in_json(self, tmp_path: Path) -> None:
        names = spread(tmp_path / "in", [one("a", json=["x" * (MAX_VALUE_BYTES + 1), 1])], 1)
        sort(Request(names, f"{tmp_path}/out.tar"), by=["json[1]"])
        with pytest.raises(DataError, match="it is longer than the limit of 1048576 bytes"):
            sort(Request(names, f"{tmp_path}/two.tar"), by=["json[0]"])

    def test_a_payload_that_cannot_be_read_is_not_taken_for_missing(self) -> None:
        batch = SampleBatch(0, [b"a"], [0, 1], [b"cls"], [0], [512], [1], [0], [0])

        def cut_short(row: int, field: bytes) -> bytes:
            raise DataError("archive ends", code="truncated")

        with pytest.raises(DataError, match="archive ends"):
            SortValues((sort_key("cls"),), lenient=True).values(batch, [0], "s", cut_short)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "--by is empty"),
            ("a b", "--by cannot be read"),
            ("cls:x", '"x" is not a way to sort'),
            ("cls:", '"" is not a way to sort'),
            ("cls:numerical", '"numerical" is not a way'),
            ("cls:nV", "natural and numeric exclude each other"),
            ("cls:plain,natural", "natural and plain exclude each other"),
            ("json.", "--by cannot be read"),
            ("json..a", "--by cannot be read"),
            ("json.a[", "--by cannot be read"),
            ("cls,key", 'cannot sort by "cls,key"'),
        ],
    )
    def test_sort_keys(self, run: Command, tmp_path: Path, text: str, told: str) -> None:
        with pytest.raises(UsageError) as caught:
            sort_key(text)
        assert told in str(caught.value)
        assert caught.value.hint or "exclude" in told
        ran = run("none.tar", "-o", tmp_path / "o.tar", "--by", text)
        assert ran.code == 2
        assert told in ran.err


class TestEngine:
    @pytest.fixture
    def names(self, tmp_path: Path) -> list[str]:
        return spread(tmp_path / "in", numbered(9, "b") + numbered(6, "a") + numbered(6, "c"))

    def test_the_same_bytes_whatever_the_number_of_jobs(
        self, good: Command, names: list[str], tmp_path: Path
    ) -> None:
        for jobs in (1, 2):
            out = tmp_path / str(jobs) / "out-%06d.tar"
            good(*names, "-o", out, "--max-count", 4, "-j", jobs, "--by", "cls:nr")
        assert content(tmp_path / "1") == content(tmp_path / "2")
        assert len(outputs(tmp_path / "1")) == 6

    def test_it_is_what_gnu_tar_writes(self, good: Command, names: list[str], tmp_path: Path) -> None:
        good(*names, "-o", tmp_path / "out.tar", "--by", "cls:n", "--mtime", 7)
        expected = by_gnu_tar(tmp_path, members_of(tmp_path / "out.tar"), "--mtime=@7")
        assert (tmp_path / "out.tar").read_bytes() == expected

    def test_the_manifest(self, good: Command, names: list[str], tmp_path: Path) -> None:
        options = ["--by", "cls:n", "--by", "key:r", "--missing", "first", "--max-size", "9kB"]
        good(*names, "-o", tmp_path / "out-%06d.tar", *options)
        made = assert_true_set(tmp_path)["wdscli"]["made"]
        assert made["operation"] == "sort"
        assert made["options"] == {"by": ["cls:numeric", "key:reverse"], "missing": "first", "max_size": 9000}
        good(*names, "-o", tmp_path / "two.tar")
        assert assert_true_set(tmp_path, "two")["wdscli"]["made"]["options"] == {"by": ["key"]}

    def test_a_dry_run_writes_nothing(self, good: Command, names: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            told = good(
                *names, "-o", tmp_path / "out-%d.tar", "-n", "--shards", 3, "--by", "cls"
            ).out.decode()
        good(*names, "-o", tmp_path / "out-%d.tar", "--shards", 3, "--by", "cls")
        assert [line.split("\t") for line in told.splitlines()] == [
            [str(path), str(len(keys_of(path))), str(path.stat().st_size)] for path in outputs(tmp_path)
        ]

    def test_json_and_selection(self, good: Command, names: list[str], tmp_path: Path) -> None:
        selection = ["--where", "cls < 3", "--fields", "jpg", "--keys", "[ab]*"]
        (told,) = good(*names, "-o", tmp_path / "out.tar", "--json", "--by", "cls:nr", *selection).objects
        assert (told["operation"], told["samples"], told["dropped"]) == ("sort", 6, {"keys": 6, "where": 9})
        assert keys_of(tmp_path / "out.tar") == ["b002", "a002", "b001", "a001", "b000", "a000"]
        assert {name.partition(".")[2] for name, _ in members_of(tmp_path / "out.tar")} == {"jpg"}

    def test_selection_and_keys(self, good: Command, names: list[str], tmp_path: Path) -> None:
        good(*names, "-o", tmp_path / "out.tar", "--keys", "[ac]*", "--slice", "1:11:2", "--reverse")
        selected = [key for key in keys_of(*names) if key[0] in "ac"][1:11:2]
        assert keys_of(tmp_path / "out.tar") == sorted(selected, reverse=True)

    def test_shards_that_are_no_local_files(self, names: list[str], tmp_path: Path) -> None:
        import fsspec

        addresses = [f"memory://sort-{tmp_path.name}/{Path(name).name}" for name in names]
        for name, address in zip(names, addresses, strict=True):
            with fsspec.open(address, "wb") as file:
                file.write(Path(name).read_bytes())
        for number, inputs in enumerate((names, addresses)):
            sort(Request(inputs, f"{tmp_path}/{number}/out.tar", jobs=1), by=["cls:nr", "key"])
        assert content(tmp_path / "0") == content(tmp_path / "1")

    def test_repeated_keys(self, run: Command, good: Command, tmp_path: Path) -> None:
        samples = [one("b", cls=b"1"), one("a", cls=b"1"), one("b", cls=b"2")]
        names = spread(tmp_path / "in", samples, 1)
        assert run(*names, "-o", tmp_path / "out.tar").code == 3
        good(*names, "-o", tmp_path / "out.tar", "--on-duplicate", "rekey")
        found = samples_of(tmp_path / "out.tar")
        assert [fields[0][1] for _, fields in found] == [b"1", b"1", b"2"]
        good(*names, "-o", tmp_path / "two.tar", "--on-duplicate", "skip", "--by", "cls", "--by", "key")
        assert keys_of(tmp_path / "two.tar") == ["a", "b"]

    def test_quiet_and_not(self, good: Command, names: list[str], tmp_path: Path) -> None:
        assert good(*names, "-o", tmp_path / "a.tar", "-q").err == ""
        assert "sorted 21 samples into 1 shard" in good(*names, "-o", tmp_path / "b.tar").err

    def test_a_sorted_set_stays_as_it_is(self, good: Command, names: list[str], tmp_path: Path) -> None:
        good(*names, "-o", tmp_path / "a.tar", "--by", "cls:n", "--by", "key:r")
        good(tmp_path / "a.tar", "-o", tmp_path / "b.tar", "--by", "cls:n", "--by", "key:r")
        assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()

    def test_the_installed_command(self, names: list[str], tmp_path: Path) -> None:
        ran = wds("sort", *names, "-o", "-", "--by", "cls:nr", "--limit", "4")
        assert ran.code == 0, ran.err
        assert keys_of(ran.out) == ["b008", "b007", "b006", "b005"]

    def test_a_plan_tells_the_order(self, names: list[str], tmp_path: Path) -> None:
        plan = make_plan(Request(names, f"{tmp_path}/out.tar"), sort_order(["key"], reverse=True))
        provenance = plan.provenance
        assert (provenance.operation, plan.samples, provenance.options) == (
            "sort",
            21,
            {"by": ["key:reverse"]},
        )
        assert plan.contents.ordered.part(0, 1).places.tolist() == [6]
