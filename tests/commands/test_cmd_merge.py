"""``wds merge``: input order, sets in turn, stops, duplicates, and every option. Joins have a file of their own."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from reorders import merge
from shard_cases import (
    Ran,
    assert_true_set,
    by_gnu_tar,
    content,
    keys_of,
    leftovers,
    members_of,
    no_new_files,
    numbered,
    outputs,
    samples_of,
    tar_of,
    wds,
    write_shards,
)

from wdscli.cli.main import main
from wdscli.errors import DataError, UsageError
from wdscli.plan import duplicates as dedup_module
from wdscli.plan.duplicates import Dedup, Digests
from wdscli.plan.inputs import Input
from wdscli.plan.orders import InputOrder, merge_order
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.plan.survey import SurveyTask, survey
from wdscli.selection import Selection
from wdscli.tar import Form

Command = Callable[..., Ran]
pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND = ["merge"]


def letters(*paths: str | Path | bytes) -> str:
    """The first letter of each key."""
    return "".join(key[0] for key in keys_of(*paths))


class TestInputOrder:
    def test_many_shards_become_few(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(2, f"k{n:02d}-") for n in range(30)])
        good(*names, "-o", tmp_path / "out-%06d.tar", "--max-count", 25)
        before = [one for name in names for one in samples_of(name)]
        assert [one for path in outputs(tmp_path) for one in samples_of(path)] == before
        assert [len(keys_of(path)) for path in outputs(tmp_path)] == [25, 25, 10]
        assert_true_set(tmp_path)

    def test_it_is_what_gnu_tar_writes(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        foreign = write_shards(tmp_path / "foreign", [numbered(3, "f")], mode=0o600)
        good(*shards, *foreign, "-o", tmp_path / "out.tar")
        members = [one for name in [*shards, *foreign] for one in members_of(name)]
        assert (tmp_path / "out.tar").read_bytes() == by_gnu_tar(tmp_path, members)

    def test_the_order_is_that_of_the_arguments(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        good(*reversed(shards), "-o", tmp_path / "out.tar")
        assert letters(tmp_path / "out.tar") == "c" * 8 + "b" + "a" * 12

    @pytest.mark.parametrize("cut", [["--max-count", "6"], ["--max-size", "20kB"], ["--shards", "4"]])
    def test_cuts(self, good: Command, shards: list[str], tmp_path: Path, cut: list[str]) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", *cut)
        counts = [len(keys_of(path)) for path in outputs(tmp_path)]
        assert len(counts) == {"--max-count": 4, "--max-size": 5, "--shards": 4}[cut[0]]
        assert letters(*outputs(tmp_path)) == "a" * 12 + "b" + "c" * 8
        if cut[0] == "--max-size":
            assert all(path.stat().st_size <= 20_000 for path in outputs(tmp_path))

    def test_the_manifest_names_the_merge(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out.tar")
        made = assert_true_set(tmp_path)["wdscli"]["made"]
        assert (made["operation"], made["options"]) == ("merge", {})
        assert made.get("seed") is None

    def test_nothing_asked_for_is_no_work_for_each_sample(self, shards: list[str], tmp_path: Path) -> None:
        order = merge_order(Request(shards, str(tmp_path / "out.tar")))
        plan = make_plan(Request(shards, str(tmp_path / "out.tar")), order)
        assert isinstance(order, InputOrder)
        assert plan.contents.ordered.order is None

    def test_selection_and_names(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out.tar", "--keys", "a*", "--fields", "cls", "--limit", 3)
        assert [name for name, _ in members_of(tmp_path / "out.tar")] == ["a000.cls", "a001.cls", "a002.cls"]
        good(*shards, "-o", tmp_path / "new.tar", "--rekey", "{shard}/{index:03d}")
        assert keys_of(tmp_path / "new.tar")[11:14] == ["in-0/011", "in-1/000", "in-2/000"]

    @pytest.mark.parametrize(("policy", "keys"), [("skip", "aaa"), ("rekey", "aaaaaa")])
    def test_on_duplicate(self, good: Command, run: Command, tmp_path: Path, policy: str, keys: str) -> None:
        names = write_shards(tmp_path / "in", [numbered(3, "a"), numbered(3, "a")])
        ran = run(*names, "-o", tmp_path / "out.tar")
        assert ran.code == 3
        assert 'repeated key "a000"' in ran.err
        good(*names, "-o", tmp_path / "out.tar", "--on-duplicate", policy)
        assert letters(tmp_path / "out.tar") == keys
        assert len(set(keys_of(tmp_path / "out.tar"))) == len(keys)


class TestInTurn:
    def test_one_of_each(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out.tar", "--weights", "equal")
        assert letters(tmp_path / "out.tar") == "abc" + "ac" * 7 + "a" * 4
        assert [key for key in keys_of(tmp_path / "out.tar") if key[0] == "c"] == keys_of(shards[2])

    def test_weights(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(70, "a", []), numbered(30, "b", [])])
        good(*names, "-o", tmp_path / "out.tar", "--weights", "0.7,0.3")
        order = sorted(
            (Fraction(2 * turn + 1, share), number, letter)
            for number, (letter, share, count) in enumerate([("a", 7, 70), ("b", 3, 30)])
            for turn in range(count)
        )
        assert letters(tmp_path / "out.tar") == "".join(letter for _, _, letter in order)
        assert letters(tmp_path / "out.tar")[:10].count("a") == 7

    def test_weights_are_shares(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "a.tar", "--weights", "1,1,1")
        good(*shards, "-o", tmp_path / "b.tar", "--weights", "equal")
        good(*shards, "-o", tmp_path / "c.tar", "--weights", "4,2,2")
        good(*shards, "-o", tmp_path / "d.tar", "--weights", "0.5,1/4,.25")
        a, b, c, d = [(tmp_path / f"{name}.tar").read_bytes() for name in "abcd"]
        assert a == b
        assert c == d != a

    @pytest.mark.parametrize(
        ("stop", "weights", "order"),
        [
            ("first", "3,2", "ababa"),
            ("all", "3,2", "ababa" + "bbb"),
        ],
    )
    def test_stop(self, good: Command, tmp_path: Path, stop: str, weights: str, order: str) -> None:
        names = write_shards(tmp_path / "in", [numbered(3, "a"), numbered(5, "b")])
        options = ["--weights", weights, "--stop", stop, "--json"]
        (told,) = good(*names, "-o", tmp_path / "out.tar", *options).objects
        assert letters(tmp_path / "out.tar") == order
        assert told["dropped"] == ({"set-ended": 3} if stop == "first" else {})
        assert told["samples_in"] == told["samples"] + sum(told["dropped"].values())

    def test_a_set_is_an_argument_of_any_kind(self, good: Command, tmp_path: Path) -> None:
        """A folder, a glob, a manifest, braces and a list: five sets of two shards each."""
        kinds = []
        for letter in "abcde":
            folder = tmp_path / letter
            write_shards(folder, [numbered(2, f"{letter}0"), numbered(1, f"{letter}1")])
            kinds.append(folder)
        assert main(["index", str(tmp_path / "c")]) == 0
        (manifest,) = (tmp_path / "c").glob("*manifest.json")
        (tmp_path / "list").write_text(f"{tmp_path}/e/in-0.tar\n{tmp_path}/e/in-1.tar\n")
        sets = [
            kinds[0],
            f"{kinds[1]}/in-*.tar",
            manifest,
            f"{kinds[3]}/in-{{0..1}}.tar",
            f"@{tmp_path}/list",
        ]
        good(*sets, "-o", tmp_path / "out.tar", "--weights", "equal")
        assert letters(tmp_path / "out.tar") == "abcde" * 3

    def test_standard_input_is_a_set(self, shards: list[str], tmp_path: Path) -> None:
        ran = wds(
            "merge", shards[1], "-", "-o", "-", "--weights", "equal", stdin=Path(shards[2]).read_bytes()
        )
        assert ran.code == 0, ran.err
        assert letters(ran.out) == "bcccccccc"

    def test_a_list_from_standard_input_is_read_once(self, shards: list[str], tmp_path: Path) -> None:
        ran = wds(
            "merge", "@-", shards[2], "-o", "-", "--weights", "equal", stdin="\n".join(shards[:2]).encode()
        )
        assert ran.code == 0, ran.err
        assert letters(ran.out) == "ac" * 8 + "aaaab"

    @pytest.mark.exhaustive
    def test_same_bytes_whatever_the_jobs_and_the_strategy(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        options = ["--weights", "3,1,2", "--max-count", "4"]
        for name, more in [("1", ["-j", 1]), ("2", ["-j", 2]), ("3", ["--strategy", "spill"])]:
            good(*shards, "-o", tmp_path / name / "out-%06d.tar", *options, *more)
        assert content(tmp_path / "1") == content(tmp_path / "2") == content(tmp_path / "3")

    def test_empty_sets(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[], numbered(2, "b"), []])
        good(*names, "-o", tmp_path / "all.tar", "--weights", "equal")
        (told,) = good(
            *names,
            "-o",
            tmp_path / "first.tar",
            "--weights",
            "equal",
            "--stop",
            "first",
            "--json",
            "--allow-empty",
        ).objects
        assert letters(tmp_path / "all.tar") == "bb"
        assert (told["samples"], told["dropped"]) == (0, {"set-ended": 2})
        good(*names[::2], "-o", tmp_path / "none.tar", "--weights", "equal")
        assert keys_of(tmp_path / "none.tar") == []

    def test_the_manifest_tells_how(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(
            *shards,
            "-o",
            tmp_path / "out.tar",
            "--weights",
            ".5,.25,.25",
            "--stop",
            "first",
            "--dedup",
            "key,cls",
        )
        made = assert_true_set(tmp_path)["wdscli"]["made"]
        assert made["options"] == {"weights": [2, 1, 1], "stop": "first", "dedup": ["key", "cls"]}

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--weights", "0.7,0.3"], "has 2 weights, but there are 3 sets"),
            (["--weights", "0.7"], "has 1 weight, but there are 3 sets"),
            (["--weights", "1,1,0"], "a weight of 0"),
            (["--weights", "1,1,x"], "is not a weight"),
            (["--stop", "first"], "--stop first works only with --weights"),
            (["--dedup", "key", "--report", "-"], "--report needs a file name"),
            (["--dedup", ","], "--dedup needs a value"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_what_makes_no_sense(
        self, run: Command, shards: list[str], tmp_path: Path, options: list[str], said: str
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "out.tar", *options)
        assert ran.code == 2
        assert said in ran.err
        assert "hint: " in ran.err

    def test_one_set_takes_no_turns(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        ran = run(tmp_path / "in", "-o", tmp_path / "out.tar", "--weights", "equal")
        assert ran.code == 2
        assert "each argument is one set" in ran.err


def twins(folder: Path) -> list[str]:
    """Two shards of which the second repeats: a1's picture under another key, a2's key with another picture, a0 as a
    whole, and something without a picture."""
    return write_shards(
        folder,
        [
            [[(f"a{n}.jpg", b"picture %d" % n), (f"a{n}.txt", b"text %d" % n)] for n in range(3)]
            + [[("bare.txt", b"text 0")]],
            [
                [("b0.jpg", b"picture 1"), ("b0.txt", b"other")],
                [("a2.jpg", b"picture 9"), ("a2.txt", b"text 2")],
                [("a0.jpg", b"picture 0"), ("a0.txt", b"text 0")],
                [("bald.txt", b"text 1")],
            ],
        ],
    )


class TestDedup:
    @pytest.mark.parametrize(
        ("by", "more", "kept"),
        [
            (["key"], [], ["a0", "a1", "a2", "bare", "b0", "bald"]),
            (["jpg"], ["--on-duplicate", "rekey"], ["a0", "a1", "a2", "bare", "a2-in-1-000000001", "bald"]),
            ([".jpg"], ["--on-duplicate", "skip"], ["a0", "a1", "a2", "bare", "bald"]),
            (["txt"], [], ["a0", "a1", "a2", "b0"]),
            (["jpg,txt"], ["--on-duplicate", "skip"], ["a0", "a1", "a2", "bare", "b0", "bald"]),
            (["key", "jpg"], ["--on-duplicate", "skip"], ["a0", "a1", "a2", "bare", "b0", "bald"]),
        ],
        ids=["key", "jpg", "dot", "txt", "both fields", "key and field"],
    )
    def test_what_stays(
        self, good: Command, tmp_path: Path, by: list[str], more: list[str], kept: list[str]
    ) -> None:
        names = twins(tmp_path / "in")
        (*told, summary) = good(
            *names,
            "-o",
            tmp_path / "out.tar",
            *[word for one in by for word in ("--dedup", one)],
            *more,
            "--json",
        ).objects
        assert keys_of(tmp_path / "out.tar") == kept
        dropped = summary["dropped"]
        assert dropped["duplicate"] + dropped.get("duplicate-key", 0) == len(told)
        assert summary["samples_in"] == 8 == summary["samples"] + sum(summary["dropped"].values())
        assert_true_set(tmp_path)

    def test_a_repeat_of_other_content_is_still_an_error(self, run: Command, tmp_path: Path) -> None:
        """key,jpg takes for duplicates what agrees in both; the same key with another picture stays a mistake."""
        names = twins(tmp_path / "in")
        ran = run(*names, "-o", tmp_path / "out.tar", "--dedup", "key,jpg")
        assert ran.code == 3
        assert 'repeated key "a2"' in ran.err

    def test_what_went_is_told(self, good: Command, tmp_path: Path) -> None:
        names = twins(tmp_path / "in")
        options = [*names, "--dedup", "jpg", "--on-duplicate", "skip"]
        report = tmp_path / "dropped.jsonl"
        ran = good(*options, "-o", tmp_path / "a.tar", "--json", "-v", "--report", report)
        expected = [
            {
                "duplicate": "b0", "shard": names[1], "index": 0, "bytes": 2048, "by": ["jpg"],
                "of": {"key": "a1", "shard": names[0], "index": 1},
            },
            {
                "duplicate": "a0", "shard": names[1], "index": 2, "bytes": 2048, "by": ["jpg"],
                "of": {"key": "a0", "shard": names[0], "index": 0},
            },
        ]  # fmt: skip
        assert ran.objects[:-2] == expected
        repeated = ran.objects[-2]
        assert (repeated["duplicate"], repeated["by"]) == ("a2", ["key"])
        assert [json.loads(line) for line in report.read_text().splitlines()] == [*expected, repeated]
        assert f"left out b0 (sample 0 of {names[1]}): same jpg as a1 (sample 1 of {names[0]})" in ran.err
        assert "left out 3 samples: duplicate 2, duplicate-key 1" in ran.err
        quiet = good(*options, "-o", tmp_path / "b.tar")
        assert "same jpg as" not in quiet.err
        assert quiet.out == b""

    def test_the_report_replaces_nothing_unasked(self, run: Command, good: Command, tmp_path: Path) -> None:
        names = twins(tmp_path / "in")
        report = tmp_path / "dropped.jsonl"
        report.write_text("mine")
        options = [*names, "-o", tmp_path / "out.tar", "--dedup", "key", "--report", report]
        assert run(*options).code == 4
        assert not (tmp_path / "out.tar").exists()
        good(*options, "-n")
        assert report.read_text() == "mine"
        good(*options, "--force")
        assert len(report.read_text().splitlines()) == 2

    def test_a_dry_run_tells_and_writes_nothing(self, good: Command, tmp_path: Path) -> None:
        names = twins(tmp_path / "in")
        with no_new_files(tmp_path):
            ran = good(
                *names,
                "-o",
                tmp_path / "out.tar",
                "--dedup",
                "key",
                "--report",
                tmp_path / "r",
                "-n",
                "--json",
            )
        assert [one["duplicate"] for one in ran.objects if "duplicate" in one] == ["a2", "a0"]
        assert "left out 2 samples: duplicate 2" in ran.err

    def test_many_are_told_in_few_lines(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(50, "a", []), numbered(50, "a", [])])
        ran = good(*names, "-o", tmp_path / "out.tar", "--dedup", "key", "-v")
        assert ran.err.count("same key as") == 20
        assert "... and 30 more: --report FILE lists all" in ran.err

    @pytest.mark.parametrize("options", [[], ["--memory", "1"]], ids=["held", "on disc"])
    def test_a_field_that_none_has_is_told(self, good: Command, tmp_path: Path, options: list[str]) -> None:
        """A mistyped name would silently leave all duplicates in."""
        names = twins(tmp_path / "in")
        words = ["--dedup", "key,nope", "--on-duplicate", "rekey", "--allow-empty", *options]
        ran = good(*names, "-o", tmp_path / "out.tar", *words)
        assert "warning: no sample has nope to compare" in ran.err
        assert "to compare" not in good(*names, "-o", tmp_path / "2.tar", "--dedup", "key").err

    def test_the_first_in_input_order_stays_in_turns_too(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(
            tmp_path / "in",
            [[[(f"a{n}.x", b"%d" % n)] for n in range(4)], [[("b.x", b"3")], [("c.x", b"9")]]],
        )
        good(*names, "-o", tmp_path / "out.tar", "--dedup", "x", "--weights", "equal")
        assert keys_of(tmp_path / "out.tar") == ["a0", "c", "a1", "a2", "a3"]

    def test_by_the_old_keys_when_all_get_new_ones(self, good: Command, tmp_path: Path) -> None:
        names = twins(tmp_path / "in")
        good(*names, "-o", tmp_path / "out.tar", "--dedup", "key", "--rekey", "{shard}/{index}")
        assert keys_of(tmp_path / "out.tar") == ["in-0/0", "in-0/1", "in-0/2", "in-0/3", "in-1/0", "in-1/3"]

    def test_the_first_of_three(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[[(f"{key}.x", b"same")]] for key in "cab"])
        told = good(*names, "-o", tmp_path / "out.tar", "--dedup", "x", "--json").objects
        assert keys_of(tmp_path / "out.tar") == ["c"]
        assert [(one["duplicate"], one["of"]["key"]) for one in told[:-1]] == [("a", "c"), ("b", "c")]

    def test_a_collision_of_hashes_drops_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All hashes are made the same; what is equal is then found byte for byte."""
        monkeypatch.setattr(dedup_module, "digest_of", lambda pieces, seed: bytes(16))
        names = twins(tmp_path / "in")
        for by in ("jpg", "jpg,txt", "key,jpg"):
            request = Request(names, f"{tmp_path}/{by}.tar", on_duplicate="skip", jobs=1)
            report = merge(request, dedup=[by])
            assert report.dropped["duplicate"] == (2 if by == "jpg" else 1)
        assert keys_of(tmp_path / "jpg.tar") == ["a0", "a1", "a2", "bare", "bald"]

    def test_a_collision_with_the_beginning_of_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dedup_module, "digest_of", lambda pieces, seed: bytes(16))
        names = write_shards(
            tmp_path / "in", [[[("a.x", b"")], [("b.x", b"1")], [("c.x", b"12")], [("d.x", b"")]]]
        )
        assert merge(Request(names, f"{tmp_path}/out.tar"), dedup=["x"]).dropped == {"duplicate": 1}
        assert keys_of(tmp_path / "out.tar") == ["a", "b", "c"]

    def test_what_is_compared_first_is_xxh3(self, tmp_path: Path) -> None:
        """That few candidates are read a second time; the result would be the same with any hash."""
        import xxhash

        names = twins(tmp_path / "in")
        found = survey(
            SurveyTask(Input(names[0]), Form(), Selection(), extract=Digests(Dedup(False, (b"jpg",))))
        )
        digests = [xxhash.xxh3_128_digest(b"picture %d" % n) for n in range(3)]
        assert found.blocks[0].values.data.tobytes() == b"".join([*digests, b"\xff" * 16])
        assert found.blocks[0].values.lengths.tolist() == [16] * 4

    def test_payloads_of_many_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Larger than what --where looks into; they differ in the last byte only."""
        monkeypatch.setattr("wdscli.selection.reading.MAX_LOOKED_INTO_BYTES", 1 << 20)
        large = os.urandom(2_500_000)
        names = write_shards(
            tmp_path / "in",
            [[[("a.bin", large)], [("b.bin", large[:-1] + bytes([large[-1] ^ 1]))], [("c.bin", large)]]],
        )
        for digest in (dedup_module.digest_of, lambda pieces, seed: bytes(16)):
            monkeypatch.setattr(dedup_module, "digest_of", digest)
            report = merge(Request(names, f"{tmp_path}/out.tar", settings=forced()), dedup=["bin"])
            assert report.dropped == {"duplicate": 1}
            assert keys_of(tmp_path / "out.tar") == ["a", "b"]

    def test_pieces_are_divided_where_fields_end(self, good: Command, tmp_path: Path) -> None:
        """ "ab" and "c" are not "a" and "bc"."""
        names = write_shards(
            tmp_path / "in", [[[("k.x", b"ab"), ("k.y", b"c")], [("l.x", b"a"), ("l.y", b"bc")]]]
        )
        good(*names, "-o", tmp_path / "out.tar", "--dedup", "x,y")
        assert keys_of(tmp_path / "out.tar") == ["k", "l"]

    @pytest.mark.parametrize("how", ["index", "gz", "stdin", "skip", "jobs"])
    def test_inputs_of_every_sort(self, good: Command, tmp_path: Path, how: str) -> None:
        import gzip

        names = twins(tmp_path / "in")
        more: list[str] = []
        if how == "index":
            assert main(["index", *names]) == 0
        elif how == "gz":
            Path(names[1] + ".gz").write_bytes(gzip.compress(Path(names[1]).read_bytes()))
            names[1] += ".gz"
        elif how == "skip":
            Path(names[1]).write_bytes(Path(names[1]).read_bytes()[:-1536])
            more = ["--on-error", "skip"]
        elif how == "jobs":
            more = ["-j", "2"]
        options = ["--dedup", "txt", "--json", *more]
        if how == "stdin":
            ran = wds(
                "merge",
                names[0],
                "-",
                "-o",
                tmp_path / "out.tar",
                *options,
                stdin=Path(names[1]).read_bytes(),
            )
            assert ran.code == 0, ran.err
        else:
            ran = good(*names, "-o", tmp_path / "out.tar", *options)
        assert keys_of(tmp_path / "out.tar") == ["a0", "a1", "a2", "b0"]
        # What is cut short is lost, and no duplicate.
        firsts = ["a0", "a2", "a0", "a1"][: 3 if how == "skip" else 4]
        assert [one["of"]["key"] for one in ran.objects[:-1]] == firsts

    def test_inputs_that_are_far_away(self, good: Command, tmp_path: Path) -> None:
        import fsspec

        large = os.urandom(1_500_000)
        members = [[("a.x", b"1")], [("b.x", large)], [("c.x", b"1")], [("d.x", large)], [("e.x", b"2")]]
        data = tar_of([member for one in members for member in one])
        fsspec.filesystem("memory").pipe(f"{tmp_path}/far.tar", data)
        told = good(
            f"memory:/{tmp_path}/far.tar", "-o", tmp_path / "out.tar", "--dedup", "x", "--json"
        ).objects
        assert keys_of(tmp_path / "out.tar") == ["a", "b", "e"]
        assert [(one["duplicate"], one["of"]["key"]) for one in told[:-1]] == [("c", "a"), ("d", "b")]

    def test_nothing_to_compare(self, good: Command, tmp_path: Path) -> None:
        names = twins(tmp_path / "in")
        good(*names, "-o", tmp_path / "out.tar", "--dedup", "mp3", "--on-duplicate", "skip", "--allow-empty")
        assert len(keys_of(tmp_path / "out.tar")) == 6
        empty = write_shards(tmp_path / "empty", [[]])
        for by in ("key", "jpg"):
            good(*empty, "-o", tmp_path / f"{by}.tar", "--dedup", by)

    def test_a_shard_that_changes_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = twins(tmp_path / "in")
        original = dedup_module.repeated

        def cut(hashes: Any) -> Any:
            Path(names[1]).write_bytes(tar_of([("b0.jpg", b"picture 1")]))
            return original(hashes)

        monkeypatch.setattr(dedup_module, "repeated", cut)
        with pytest.raises(DataError):
            merge(Request(names, f"{tmp_path}/out.tar"), dedup=["jpg"])

    def test_payloads_that_are_gone_are_not_equal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = twins(tmp_path / "in")
        original = dedup_module.Comparison._read

        def cut(self: Any, rows: list[int]) -> Any:
            known = original(self, rows)
            os.truncate(names[1], 512)
            os.truncate(names[0], 512)
            return known

        monkeypatch.setattr(dedup_module.Comparison, "_read", cut)
        with pytest.raises(DataError, match="archive ends inside a payload"):
            merge(Request(names, f"{tmp_path}/out.tar"), dedup=["jpg"])


def forced() -> Any:
    from wdscli.shards.writing import ShardSettings

    return ShardSettings(force=True)


class TestNothingIsLost:
    @pytest.mark.parametrize(
        "options",
        [
            [],
            ["--weights", "equal"],
            ["--weights", "5,1,3", "--stop", "first"],
            ["--dedup", "cls"],
            ["--dedup", "key", "--weights", "equal", "--stop", "first"],
        ],
        ids=" ".join,
    )
    def test_what_comes_in_goes_out_or_is_counted(
        self, good: Command, shards: list[str], tmp_path: Path, options: list[str]
    ) -> None:
        (*_, told) = good(
            *shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 7, *options, "--json"
        ).objects
        before = Counter(one for name in shards for one in samples_of(name))
        after = Counter(one for path in outputs(tmp_path) for one in samples_of(path))
        missing = before - after
        assert sum(missing.values()) == sum(told["dropped"].values())
        assert after == before - missing
        assert told["samples"] == sum(after.values())
        assert_true_set(tmp_path)
        assert leftovers(tmp_path) == []


class TestOptions:
    def test_dry_run(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            told = good(
                *shards, "-o", tmp_path / "out-%06d.tar", "--shards", 2, "--weights", "equal", "-n"
            ).out
        assert [line.split(b"\t")[1] for line in told.splitlines()] == [b"10", b"11"]

    def test_quiet(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        assert good(*shards, "-o", tmp_path / "a.tar", "-q", "--dedup", "key").err == ""
        assert "merged 21 samples into 1 shard" in good(*shards, "-o", tmp_path / "b.tar").err

    def test_what_is_there_stays(
        self, run: Command, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        good(*shards, "-o", tmp_path / "out.tar")
        assert run(*shards, "-o", tmp_path / "out.tar").code == 4
        good(*shards, "-o", tmp_path / "out.tar", "--force", "--weights", "equal")
        assert letters(tmp_path / "out.tar").startswith("abc")

    def test_the_library_refuses_what_the_command_refuses(self, shards: list[str], tmp_path: Path) -> None:
        request = Request(shards, f"{tmp_path}/out.tar")
        with pytest.raises(UsageError):
            merge(request, weights="1,2")
        with pytest.raises(UsageError):
            merge(request, stop="first")
        with pytest.raises(UsageError):
            merge(request, dedup=[""])


def test_the_report_lists_repeated_keys_damage_and_rows(tmp_path: Path, good: Command) -> None:
    one = tar_of([("a.txt", b"a"), ("b.txt", b"b")])
    (tmp_path / "one.tar").write_bytes(one)
    (tmp_path / "two.tar").write_bytes(tar_of([("b.txt", b"c"), ("c.txt", b"c")]))
    (tmp_path / "cut.tar").write_bytes(tar_of([("d.txt", b"c"), ("e.txt", b"c")])[:1400])
    (tmp_path / "t.csv").write_text("id,t\na,x\nb\na,y\n")
    shards = [tmp_path / "one.tar", tmp_path / "two.tar", tmp_path / "cut.tar"]
    skips = ["--on-error", "skip", "--on-duplicate", "skip", "--report", tmp_path / "r.jsonl", "--force"]
    ran = good(*shards, "-o", tmp_path / "o.tar", *skips, "-v")
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [line.get("duplicate") for line in lines] == [None, "b"]
    assert "cut.tar at byte 1024" in lines[0]["reason"]
    assert lines[1]["of"]["shard"] == str(tmp_path / "one.tar")
    assert f"left out b (sample 0 of {tmp_path}/two.tar)" in ran.err
    table = ["--table", tmp_path / "t.csv", "--key-column", "id", "--column", "txt=t"]
    good(shards[0], *table, "-o", tmp_path / "j.tar", *skips)
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert sorted((line["row"], line["line"]) for line in lines) == [(2, 3), (3, 4)]
