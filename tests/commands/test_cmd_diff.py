"""``wds diff``: every kind of difference, found and counted; and none where there is none, whoever wrote the sets."""

from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_cases import Members, Ran, foreign_tar, numbered, wds, wds_here, write_shards
from tiers import examples

from wdscli.ops.diff import diff
from wdscli.plan.request import Request

Command = Callable[..., Ran]
pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND = ["diff"]
Samples = list[Members]


def of(key: str, **fields: str) -> Members:
    return [(f"{key}.{name}", text.encode()) for name, text in fields.items()]


BASE: Samples = [of(f"n{number}", cls=str(number), txt=f"text {number}") for number in range(10)]


@pytest.fixture
def sets(tmp_path: Path) -> Callable[..., list[str]]:
    """Two sets in folders, of shards of samples."""

    def write(*both: Sequence[Samples]) -> list[str]:
        for name, shards in zip("ab", both, strict=True):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            write_shards(tmp_path / name, shards)
        return [str(tmp_path / "a"), str(tmp_path / "b")]

    return write


class TestTheSame:
    def test_a_set_and_itself(self, good: Command, sets: Callable[..., list[str]]) -> None:
        ran = good(*sets([BASE[:5], BASE[5:]], [BASE[:5], BASE[5:]]))
        assert ran.out == b""
        assert "10 samples in both: no sample differs" in ran.err

    def test_whoever_wrote_the_headers(self, good: Command, tmp_path: Path) -> None:
        samples = numbered(50, "k")
        shards = write_shards(tmp_path / "a", [samples])
        other = tmp_path / "b.tar"
        other.write_bytes(foreign_tar([member for sample in samples for member in sample]))
        good(shards[0], other)

    def test_by_their_indexes_too(self, good: Command, sets: Callable[..., list[str]]) -> None:
        both = sets([BASE], [BASE])
        assert wds("index", both[0]).code == 0
        good(*both)

    def test_of_nothing(self, good: Command, sets: Callable[..., list[str]]) -> None:
        good(*sets([[]], [[]]))


class TestDifferences:
    def test_samples_of_one_alone(self, run: Command, sets: Callable[..., list[str]]) -> None:
        ran = run(*sets([BASE[:8]], [BASE[2:]]))
        assert ran.code == 1
        assert ran.out.decode().splitlines() == ["-\tn0\t", "-\tn1\t", "+\tn8\t", "+\tn9\t"]
        assert "6 samples in both: 2 only in A, 2 only in B" in ran.err

    def test_what_differs_in_a_sample(self, run: Command, sets: Callable[..., list[str]]) -> None:
        changed = [
            of("n0", cls="0", txt="text X"),
            of("n1", txt="text 1"),
            of("n2", cls="2", json="{}", txt="text 2"),
            of("n3", txt="text 3", cls="3"),
            of("n4", cls="44", txt="text 4", jpg=""),
            *BASE[5:],
        ]
        ran = run(*sets([BASE], [changed]), "--json")
        assert ran.code == 1
        *found, summary = ran.objects
        assert [
            (one["key"], one["added"], one["gone"], one["differ"], one["reordered"]) for one in found
        ] == [
            ("n0", [], [], ["txt"], False),
            ("n1", [], ["cls"], [], False),
            ("n2", ["json"], [], [], False),
            ("n3", [], [], [], True),
            ("n4", ["jpg"], [], ["cls"], False),
        ]
        assert (summary["both"], summary["changed"], summary["same"]) == (10, 5, False)
        text = run(*sets([BASE], [changed])).out.decode().splitlines()
        assert text[1:3] == ["!\tn1\t-cls", "!\tn2\t+json"]

    def test_places_in_json(self, run: Command, sets: Callable[..., list[str]]) -> None:
        old = '{"meta": {"width": 640, "a": [1, 2]}, "same": 1, "gone": "x"}'
        new = '{"same": 1, "meta": {"width": 512, "a": [1, 3, null]}, "new": true}'
        long = f'{{"text": "{"y" * 99}"}}'
        before = [
            of("n0", json=old),
            of("n1", **{"x.json": '{"a": 1}'}),
            of("n2", json="{"),
            of("n3", json="{}"),
            of("n4", json='{"a.b": 1}'),
        ]
        after = [
            of("n0", json=new),
            of("n1", **{"x.json": '{"a": 1.0}'}),
            of("n2", json="["),
            of("n3", json=long),
            of("n4", json='{"a.b": 2}'),
        ]
        both = sets([before], [after])
        *found, _ = run(*both, "--json").objects
        assert [one["places"] for one in found] == [
            ["json.meta.width: 640 -> 512", "json.meta.a[1]: 2 -> 3", "json.meta.a[2]: nothing -> null"],
            ["x.json.a: 1 -> 1.0"],
            [],
            [f'json.text: nothing -> "{"y" * 36}...'],
            ['json["a.b"]: 1 -> 2'],
        ]
        lines = run(*both).out.decode().splitlines()
        assert lines[1:3] == ["!\tn1\tx.json (x.json.a: 1 -> 1.0)", "!\tn2\tjson"]

    def test_one_byte_of_a_large_payload(self, run: Command, tmp_path: Path) -> None:
        data = random.Random(1).randbytes(9_000_000)
        a = write_shards(tmp_path / "a", [[[("n.bin", data)], *BASE]])
        b = write_shards(tmp_path / "b", [[[("n.bin", data[:-1] + bytes([data[-1] ^ 1]))], *BASE]])
        assert run(*a, *b).out == b"!\tn\tbin\n"

    def test_order(self, run: Command, good: Command, sets: Callable[..., list[str]]) -> None:
        both = sets([BASE], [[*BASE[:3], BASE[5], *BASE[3:5], *BASE[6:]]])
        ran = run(*both)
        assert ran.code == 1
        assert ran.out == b""
        assert 'order: 3 of 10 samples are in a different place; the first: "n3" in A, "n5" in B' in ran.err
        good(*both, "--ignore-order")

    def test_shards(self, run: Command, good: Command, sets: Callable[..., list[str]]) -> None:
        both = sets([BASE[:5], BASE[5:]], [BASE[:4], BASE[4:]])
        ran = run(*both)
        assert ran.code == 1
        assert "shards: shard 0 has 5 samples in A, 4 in B" in ran.err
        good(*both, "--ignore-order")
        assert "shards: 2 shards in A, 1 in B" in run(*sets([BASE[:5], BASE[5:]], [BASE])).err


class TestOptions:
    def test_keys_only(self, run: Command, good: Command, sets: Callable[..., list[str]]) -> None:
        both = sets([BASE], [[of(f"n{number}", jpg="x") for number in range(10)]])
        assert run(*both).code == 1
        good(*both, "--keys-only")
        assert run(*sets([BASE], [BASE[1:]]), "--keys-only").out == b"-\tn0\t\n"

    def test_some_fields(self, run: Command, good: Command, sets: Callable[..., list[str]]) -> None:
        both = sets([BASE], [[of(f"n{number}", cls=str(number), txt="other") for number in range(10)]])
        good(*both, "--fields", "cls")
        assert run(*both, "--fields", "t*").code == 1

    @pytest.mark.exhaustive
    def test_jobs(self, run: Command, tmp_path: Path) -> None:
        a = write_shards(tmp_path / "a", [numbered(1200, "n", [50])])
        b = write_shards(tmp_path / "b", [[*numbered(1200, "n", [50])[:-1], of("n1199", a="x")]])
        assert run(*a, *b, "-j1").out == run(*a, *b, "-j3").out != b""


class TestTrouble:
    def test_a_set_that_is_not_there(self, run: Command, sets: Callable[..., list[str]]) -> None:
        assert run(sets([BASE], [BASE])[0], "nowhere").code == 4

    def test_a_key_that_comes_twice(self, run: Command, sets: Callable[..., list[str]]) -> None:
        ran = run(*sets([BASE], [[*BASE, of("x", a=""), *BASE[:1]]]))
        assert ran.code == 3
        assert "n0" in ran.err

    def test_a_shard_that_is_cut(self, run: Command, sets: Callable[..., list[str]], tmp_path: Path) -> None:
        both = sets([BASE], [BASE])
        shard = next((tmp_path / "b").glob("*.tar"))
        shard.write_bytes(shard.read_bytes()[:5000])
        assert run(*both).code == 3

    def test_a_fetched_manifest_with_a_terminal(self, sets: Callable[..., list[str]]) -> None:
        ran = wds("diff", *sets([BASE], [BASE[1:]]), "--json")
        assert json.loads(ran.out.splitlines()[-1])["only_a"] == 1


PAYLOADS = st.sampled_from(["", "a", "b", "x" * 600])
FIELDS = st.dictionaries(st.sampled_from(["cls", "txt", "a.b"]), PAYLOADS, min_size=1)
KEYS = st.dictionaries(st.sampled_from([f"k{n}" for n in range(6)] + ["d/k1"]), FIELDS, max_size=6)


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(a=KEYS, b=KEYS)
def test_against_dictionaries(
    tmp_path: Path, a: dict[str, dict[str, str]], b: dict[str, dict[str, str]]
) -> None:
    for name, samples in (("a", a), ("b", b)):
        write_shards(tmp_path / name, [[of(key, **fields) for key, fields in samples.items()]])
    ran = wds_here("diff", tmp_path / "a", tmp_path / "b", "--json", "--ignore-order", "-j1")
    *found, summary = ran.objects
    assert {one["key"] for one in found if one["kind"] == "only-a"} == set(a) - set(b)
    assert {one["key"] for one in found if one["kind"] == "only-b"} == set(b) - set(a)
    differ = {key for key in a if key in b and list(a[key].items()) != list(b[key].items())}
    assert {one["key"] for one in found if one["kind"] == "changed"} == differ
    assert summary["both"] == len(set(a) & set(b))
    assert ran.code == (1 if found else 0)


class TestViews:
    """Two views of the same bases: what they name is compared, and payloads only where this does not decide."""

    @pytest.fixture
    def base(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Members]:
        monkeypatch.chdir(tmp_path)
        samples = [of(f"n{number:02}", cls=str(number % 3), txt="x" * 5000) for number in range(24)]
        write_shards(tmp_path / "a", [samples[:9], samples[9:]])
        write_shards(tmp_path / "b", [[of(f"n{number:02}", cap="y" * 3000) for number in range(0, 24, 2)]])
        assert wds("index", "a", "-q").code == wds("index", "b", "-q").code == 0
        (tmp_path / "out.txt").write_text("n03\nn17\n")
        for words in (
            ("split", "a", "-o", "v1.json"),
            ("split", "a", "--not-keys-from", "out.txt", "-o", "v2.json"),
            ("shuffle", "v2.json", "--seed", "1", "--max-count", "5", "-o", "v3.json"),
            ("merge", "--join", "left", "a", "b", "-o", "j1.json"),
            ("merge", "--join", "left", "v2.json", "b", "-o", "j2.json"),
            ("merge", "--join", "outer", "b", "v3.json", "-o", "j3.json"),
            ("split", "a", "--rekey", "x{n}", "-o", "renamed.json"),
            ("shuffle", "renamed.json", "--slice", "2:", "-o", "renamed2.json"),
        ):
            assert wds(*words, "-q").code == 0
        return samples

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("a", "b"),
        [("v1", "v2"), ("v2", "v1"), ("v1", "v3"), ("v2", "v3"), ("v3", "v3"), ("j1", "j2"), ("j2", "j1"),
         ("j3", "j3"), ("v1", "j1"), ("v1", "renamed"), ("renamed", "renamed"), ("renamed", "renamed2")],
    )  # fmt: skip
    @pytest.mark.usefixtures("base")
    def test_the_findings_are_those_of_flat_sets(self, run: Command, a: str, b: str) -> None:
        for one in {a, b}:
            assert wds("cat", f"{one}.json", "-o", f"{one}/{{name}}.tar", "-q").code == 0
        for more in ([], ["--ignore-order"], ["--keys-only"], ["--fields", "cls"], ["--json"]):
            flat, views = (run(*some, *more) for some in ([a, b], [f"{a}.json", f"{b}.json"]))
            assert (views.code, views.out) == (flat.code, flat.out)

    @pytest.mark.parametrize(
        ("a", "b", "reads"),
        [("v1", "v2", 0), ("v1", "v3", 0), ("j1", "j2", 0), ("renamed", "renamed2", 0), ("v1", "j1", 1)],
    )
    @pytest.mark.usefixtures("base")
    def test_no_payload_is_read(
        self, a: str, b: str, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = 0

        def counted(
            function: Callable[..., object], length_of: Callable[[Any], int]
        ) -> Callable[..., object]:
            def reading(descriptor: int, what: Any, offset: int, *flags: int) -> object:
                nonlocal read
                path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                if path.suffix == ".tar":
                    with tarfile.open(path) as tar:
                        ranges = [(one.offset_data, one.offset_data + one.size) for one in tar]
                    end = offset + length_of(what)
                    read += sum(max(0, min(end, high) - max(offset, low)) for low, high in ranges)
                return function(descriptor, what, offset, *flags)

            return reading

        monkeypatch.setattr(os, "pread", counted(os.pread, int))
        monkeypatch.setattr(os, "preadv", counted(os.preadv, lambda views: sum(map(len, views))))
        diff(Request([f"{a}.json", f"{b}.json"], "-", jobs=1), lambda found: None)
        # The payloads of keys that both have at other places are read.
        assert (read > 0) == bool(reads)

    @pytest.mark.usefixtures("base")
    def test_a_changed_base_is_an_error(self, run: Command, tmp_path: Path) -> None:
        write_shards(tmp_path / "a", [[of("other", cls="1")]])
        ran = run("v1.json", "v2.json")
        assert (ran.code, "was changed after v1.json was made" in ran.err) == (3, True), ran.err


class TestOn:
    URLS: tuple[str, ...] = ("http://x/a.jpg", "a b%", "\u00e9/..", "__x__", "1")

    def samples(self, prefix: str, captions: Sequence[str] = "abcde") -> Samples:
        return [
            of(f"{prefix}{number}", json=json.dumps({"url": url}), txt=text)
            for number, (url, text) in enumerate(zip(self.URLS, captions, strict=False))
        ]

    def test_keys_make_no_difference(self, good: Command, sets: Callable[..., list[str]]) -> None:
        ran = good(*sets([self.samples("a")], [self.samples("b")]), "--on", "json.url")
        assert (ran.out, "5 samples in both: no sample differs" in ran.err) == (b"", True)
        ran = good(
            *sets([self.samples("a")], [self.samples("b")[::-1]]), "--on", "json.url", "--ignore-order"
        )
        assert ran.out == b""

    @pytest.mark.parametrize("options", [(), ("--keys-only",)])
    def test_samples_are_named_by_the_value(
        self, sets: Callable[..., list[str]], options: tuple[str, ...]
    ) -> None:
        both = sets([self.samples("a")], [self.samples("b", "axcd")[:0:-1], [of("a0", json='{"url": 7}')]])
        ran = wds("diff", *both, "--on", "json.url", *options)
        changed = [] if options else [["!", "a b%", "txt"]]
        assert [line.split("\t") for line in ran.out.decode().splitlines()] == [
            ["-", self.URLS[0], ""],
            ["-", self.URLS[4], ""],
            *changed,
            ["+", "7", ""],
        ]

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("len(txt)", 'repeated value "1" (first: sample 0 of'),
            ("json.ur", 'no value of json.ur for --on in sample "a0"'),
            ("txt ==", "--on cannot be read"),
            ("7", "there is no {7}"),
        ],
    )
    def test_refused(self, sets: Callable[..., list[str]], value: str, message: str) -> None:
        ran = wds("diff", *sets([self.samples("a")], [self.samples("b")]), "--on", value)
        assert (ran.code in (2, 3), message in ran.err) == (True, True), ran.err

    def test_views(self, good: Command, sets: Callable[..., list[str]], tmp_path: Path) -> None:
        first, second = sets([self.samples("a")], [self.samples("b")])
        for name, source in (("v", first), ("w", second)):
            assert wds("split", source, "-o", tmp_path / f"{name}.json").code == 0
        good(tmp_path / "v.json", tmp_path / "w.json", "--on", "json.url")
