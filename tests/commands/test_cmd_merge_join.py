"""``wds merge --join`` and ``--table``: every option, tables of each kind, and what is said of the result."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shard_cases import (
    Members,
    Ran,
    assert_true_set,
    content,
    keys_of,
    leftovers,
    members_of,
    no_new_files,
    outputs,
    samples_of,
    tar_of,
    wds,
)

from wdscli.cli.main import main

Command = Callable[..., Ran]
pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND = ["merge"]


def put(folder: Path, name: str, *samples: Members) -> str:
    """A shard of these samples."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tar_of([member for one in samples for member in one]))
    return str(path)


def image(number: int) -> Members:
    return [(f"k{number}.cls", b"%d" % number), (f"k{number}.jpg", b"j" * number * 300)]


def caption(number: int) -> Members:
    return [(f"k{number}.txt", b"caption %d" % number)]


@pytest.fixture
def images(tmp_path: Path) -> str:
    """Two shards, k0 to k5."""
    put(tmp_path / "images", "a-0.tar", *map(image, range(4)))
    put(tmp_path / "images", "a-1.tar", *map(image, range(4, 6)))
    return str(tmp_path / "images")


@pytest.fixture
def captions(tmp_path: Path) -> str:
    """Another order, other keys."""
    return put(tmp_path, "captions.tar", *map(caption, (9, 4, 1, 5)))


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "captions.csv"
    path.write_text(
        'id,caption,score\nk4,"four, ""4""",0.5\nk9,nine,1\nk0,,2\nk2,zwei ü,\n', encoding="utf-8"
    )
    return str(path)


def of_table(table: object, *columns: str) -> list[object]:
    """The options of a table with the keys in its column ``id``."""
    return ["--table", table, "--key-column", "id", *(word for one in columns for word in ("--column", one))]


class TestKinds:
    def test_inner(self, good: Command, images: str, captions: str, tmp_path: Path) -> None:
        good("--join", "inner", images, captions, "-o", tmp_path / "out.tar")
        found = tar_of([one for number in (1, 4, 5) for one in image(number) + caption(number)])
        assert (tmp_path / "out.tar").read_bytes() == found
        assert_true_set(tmp_path)

    def test_left(self, good: Command, images: str, captions: str, tmp_path: Path) -> None:
        good("--join", "left", images, captions, "-o", tmp_path / "out-%d.tar", "--max-count", 4)
        assert keys_of(*outputs(tmp_path)) == [f"k{number}" for number in range(6)]
        assert [dict(fields).get("txt") for path in outputs(tmp_path) for _, fields in samples_of(path)] == [
            None,
            b"caption 1",
            None,
            None,
            b"caption 4",
            b"caption 5",
        ]

    def test_outer(self, good: Command, images: str, captions: str, tmp_path: Path) -> None:
        third = put(tmp_path, "third.tar", [("k8.x", b"8")], [("k9.x", b"9")], [("k1.x", b"1")])
        good("--join", "outer", images, captions, third, "-o", tmp_path / "out.tar")
        found = samples_of(tmp_path / "out.tar")
        assert [key for key, _ in found] == [*(f"k{number}" for number in range(6)), "k9", "k8"]
        assert found[1][1] == (("cls", b"1"), ("jpg", b"j" * 300), ("txt", b"caption 1"), ("x", b"1"))
        assert found[6:] == [("k9", (("txt", b"caption 9"), ("x", b"9"))), ("k8", (("x", b"8"),))]

    def test_from_a_process_with_verify(self, images: str, captions: str, tmp_path: Path) -> None:
        ran = wds("merge", "--join", "inner", images, captions, "-o", tmp_path / "out-%06d.tar", "-j", 2)
        assert ran.code == 0, ran.err
        *before, last = ran.err.splitlines()
        assert before == [
            "matched 3 of 6 samples; 3 of the first set have no partner (left out: --join inner); "
            "1 of the second set has no partner (left out: --join inner)",
            "left out 4 samples: no-partner 4",
        ]
        assert last.startswith("joined 3 samples into 1 shard, 12.3 kB in ")
        assert wds("verify", tmp_path / "out-manifest.json").code == 0

    def test_manifest_says_how(self, good: Command, images: str, table: str, tmp_path: Path) -> None:
        good(
            *of_table(table, "txt=caption"),
            images,
            "-o",
            tmp_path / "out.tar",
        )
        made = json.loads((tmp_path / "out-manifest.json").read_bytes())["wdscli"]["made"]
        assert made["operation"] == "merge"
        assert made["options"] == {
            "join": "left",
            "table": "captions.csv",
            "key": "id",
            "field": ["txt=caption"],
        }


class TestConflicts:
    @pytest.mark.parametrize(
        ("policy", "fields"),
        [
            ("left", {"cls": b"1", "jpg": b"j" * 300}),
            ("right", {"cls": b"new", "jpg": b"j" * 300}),
            ("suffix", {"cls": b"1", "jpg": b"j" * 300, "2.cls": b"new"}),
        ],
    )
    def test_policies(
        self, good: Command, images: str, tmp_path: Path, policy: str, fields: dict[str, bytes]
    ) -> None:
        other = put(tmp_path, "other.tar", [("k1.cls", b"new")])
        good("--join", "inner", images, other, "-o", tmp_path / "out.tar", "--on-conflict", policy)
        assert samples_of(tmp_path / "out.tar") == [("k1", tuple(fields.items()))]
        assert_true_set(tmp_path)

    @pytest.mark.parametrize(
        ("policy", "done"), [("left", "left out"), ("right", "replaced"), ("suffix", "renamed")]
    )
    def test_the_summary_names_fields_and_partners(
        self, good: Command, images: str, captions: str, tmp_path: Path, policy: str, done: str
    ) -> None:
        other = put(tmp_path, "other.tar", [("k1.cls", b"new")], [("k2.cls", b"new")], [("x.cls", b"new")])
        joined = ["--join", "outer", images, other, "--on-conflict", policy]
        plan = tmp_path / "plan"
        texts = [
            good(*joined, "-o", tmp_path / "o.tar", "-n").err,
            good(*joined, "-o", tmp_path / "a.tar").err,
            good(*joined, "-o", tmp_path / "b.tar", "--plan", plan).err,
        ]
        done_by_run = wds("run", plan, "-j", 1)
        for text in (*texts[:2], done_by_run.err):
            assert (
                "matched 2 of 6 samples; 4 of the first set have no partner (kept: --join outer); "
                "1 of the second set has no partner (kept: --join outer)\n"
            ) in text
            assert f"\ncls: {done} in 2 samples\n" in text
        three = good("--join", "left", images, captions, other, *joined[4:], "-o", tmp_path / "c.tar").err
        assert (
            "matched 1 of 6 samples in all 3 sets; 5 of the first set have no partner in some set "
            "(kept: --join left); 3 of the second set have no partner in some set"
        ) in three

    def test_error_is_the_default(self, run: Command, images: str, tmp_path: Path) -> None:
        other = put(tmp_path, "other.tar", [("k4.x", b"")], [("k1.cls", b"new")])
        with no_new_files(tmp_path):
            ran = run("--join", "inner", images, other, "-o", tmp_path / "out.tar")
        assert ran.code == 3
        assert f'sample "k1" has a field "cls" in two sets: {images}/a-0.tar, {other}' in ran.err
        assert f"in {other} at byte 512" in ran.err
        assert "hint: use --on-conflict left, right or suffix" in ran.err

    def test_a_table_replaces_unless_told_otherwise(
        self, run: Command, good: Command, images: str, table: str, tmp_path: Path
    ) -> None:
        Path(table).write_text(Path(table).read_text().replace(",0.5", ",7"))
        joined = [*of_table(table, "cls=score"), images, "-o"]
        good(*joined, tmp_path / "out.tar")
        found = [dict(fields)["cls"] for _, fields in samples_of(tmp_path / "out.tar")]
        assert found == [b"2", b"1", b"2", b"3", b"7", b"5"]
        good(*joined, tmp_path / "b.tar", "--on-conflict", "left")
        assert members_of(tmp_path / "b.tar") == [one for number in range(6) for one in image(number)]
        ran = run(*joined, tmp_path / "c.tar", "--on-conflict", "error")
        assert ran.code == 3
        assert f'has a field "cls" in two sets: {images}/a-0.tar, {table}' in ran.err
        assert "at byte" not in ran.err


class TestTables:
    def test_fields_of_a_table(self, good: Command, images: str, table: str, tmp_path: Path) -> None:
        fields = ["--column", "txt=caption", "--column", "score=score"]
        good(images, "--table", table, "--key-column", "id", *fields, "-o", tmp_path / "out.tar")
        found = {key: dict(fields) for key, fields in samples_of(tmp_path / "out.tar")}
        assert list(found) == [f"k{number}" for number in range(6)]
        assert found["k4"]["txt"] == b'four, "4"'
        assert found["k2"]["txt"] == "zwei ü".encode()
        assert "score" not in found["k2"]
        assert "txt" not in found["k0"]
        assert found["k0"]["score"] == b"2"

    @pytest.mark.parametrize("kind", ["inner", "outer"])
    def test_other_joins(self, good: Command, images: str, table: str, tmp_path: Path, kind: str) -> None:
        good(
            *("--join", kind, images, *of_table(table, "txt=caption")),
            *("-o", tmp_path / "out.tar"),
        )
        expected = {"inner": ["k2", "k4"], "outer": [*(f"k{number}" for number in range(6)), "k9"]}
        assert keys_of(tmp_path / "out.tar") == expected[kind]

    @pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "csv.gz", "parquet"])
    def test_kinds_give_the_same_bytes(self, good: Command, images: str, tmp_path: Path, kind: str) -> None:
        rows = [("k3", "drei"), ("k1", "eins")]
        path = tmp_path / f"t.{kind}"
        if kind == "parquet":
            pyarrow = pytest.importorskip("pyarrow")
            from pyarrow.parquet import write_table

            write_table(pyarrow.table({"id": [a for a, _ in rows], "cap": [b for _, b in rows]}), path)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps({"id": a, "cap": b}) + "\n" for a, b in rows))
        else:
            tab = "\t" if kind == "tsv" else ","
            data = "".join(f"{a}{tab}{b}\n" for a, b in [("id", "cap"), *rows]).encode()
            path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
        good(images, *of_table(path, "txt=cap"), "-o", tmp_path / "out.tar")
        texts = {1: b"eins", 3: b"drei"}
        expected = [
            one
            for number in range(6)
            for one in image(number) + ([(f"k{number}.txt", texts[number])] if number in texts else [])
        ]
        assert (tmp_path / "out.tar").read_bytes() == tar_of(expected)

    def test_values_of_json_lines(self, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "t.jsonl").write_text(
            '{"id": "k0", "n": 5, "o": {"a": [1, "ü"]}}\n{"id": "k1", "n": null, "o": true}\n'
        )
        fields = ["--column", "cls=n", "--column", "json=o"]
        good(
            *("--join", "inner", images, "--table", tmp_path / "t.jsonl", "--key-column", "id", *fields),
            *("-o", tmp_path / "out.tar"),
        )
        found = {key: dict(fields) for key, fields in samples_of(tmp_path / "out.tar")}
        assert found["k0"]["cls"] == b"5"
        assert found["k0"]["json"] == '{"a":[1,"ü"]}'.encode()
        assert found["k1"]["cls"] == b"1"
        assert found["k1"]["json"] == b"true"

    def test_a_column_may_name_files(self, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "mask").write_bytes(b"m" * 2_000_000)
        (tmp_path / "t.csv").write_text(f"id,path\nk1,{tmp_path}/mask\nk2,pipe:printf abc\n")
        good(
            *(
                "--join",
                "inner",
                images,
                *of_table(tmp_path / "t.csv", "m=@path"),
            ),
            *("-o", tmp_path / "out.tar", "--trust-addresses"),
        )
        found = {key: dict(fields)["m"] for key, fields in samples_of(tmp_path / "out.tar")}
        assert found == {"k1": b"m" * 2_000_000, "k2": b"abc"}

    def test_three_sets(self, good: Command, images: str, captions: str, table: str, tmp_path: Path) -> None:
        good(
            *(
                "--join",
                "left",
                images,
                captions,
                *of_table(table, "txt=caption"),
            ),
            *("-o", tmp_path / "out.tar"),
        )
        found = [dict(fields).get("txt") for _, fields in samples_of(tmp_path / "out.tar")]
        assert found == [None, b"caption 1", "zwei ü".encode(), None, b'four, "4"', b"caption 5"]

    def test_columns_go_into_the_json_that_is_there(
        self, run: Command, good: Command, tmp_path: Path
    ) -> None:
        put(
            tmp_path / "set",
            "a-0.tar",
            [("k1.cls", b"1"), ("k1.json", b'{"w": 1, "score": 0}')],
            [("k2.cls", b"2")],
        )
        put(tmp_path / "set", "a-1.tar", [("k4.json", b"[]"), ("k4.txt", b"4")], [("k3.info", b'{"w": 3}')])
        for name in ("t-1.csv", "t-2.csv"):
            number = int(name[2])
            (tmp_path / name).write_text(
                f"id,score,cap\nk{number},0.{number},c\nk{number + 2},,c\nx{number},7,\n"
            )
        joined = ["--table", f"{tmp_path}/t-*.csv", "--key-column", "id", "--json-rest"]
        good(f"{tmp_path}/set", *joined, "--keys", "k[123]", "--column", "txt=cap", "-o", tmp_path / "a.tar")
        assert [(key, dict(fields)) for key, fields in samples_of(tmp_path / "a.tar")] == [
            ("k1", {"cls": b"1", "json": b'{"w":1,"score":0.1}', "txt": b"c"}),
            ("k2", {"cls": b"2", "json": b'{"score":0.2}', "txt": b"c"}),
            ("k3", {"info": b'{"w": 3}', "txt": b"c"}),
        ]
        ran = run(f"{tmp_path}/set", *joined, "-o", tmp_path / "b.tar")
        assert ran.code == 3
        assert "json is not a JSON object" in ran.err
        assert "a-1.tar" in ran.err
        assert "k4.json" in ran.err
        assert not (tmp_path / "b.tar").exists()
        stdin = b"".join((tmp_path / "set" / name).read_bytes()[:-1024] for name in ("a-0.tar", "a-1.tar"))
        options = [*joined, "--join", "outer", "--keys", "[kx][123]", "--rename", "json=info", "-o", "-"]
        made = wds("merge", "-", *options, stdin=stdin + bytes(1024)).out
        assert dict(samples_of(made))["k3"] == (("json", b'{"w":3,"cap":"c"}'),)
        assert dict(samples_of(made))["x1"] == (("json", b'{"score":7}'),)
        for policy in ("left", "suffix", "error"):
            ran = run(f"{tmp_path}/set", *joined, "--on-conflict", policy, "-o", tmp_path / "b.tar")
            assert (ran.code, "--json-rest and --on-conflict" in ran.err) == (2, True)
        ran = run(f"{tmp_path}/set", "--json-rest", "-o", tmp_path / "b.tar")
        assert ran.code == 2

    def test_bad_rows(self, run: Command, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "pic.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        path = tmp_path / "t.csv"
        path.write_text(f"id,p\nk0,{tmp_path}/pic.png\nk1\nk2,{tmp_path}/none.png\nk3,\n")
        options = [images, *of_table(path, "png=@p"), "-o", tmp_path / "o.tar"]
        ran = run(*options)
        assert ran.code == 3
        for row in (
            "row 2 (line 3): 1 cells",
            "row 3 (line 4): cannot read",
            'row 4 (line 5): column "p" is empty',
        ):
            assert row in ran.err
        good(*options, "--on-error", "skip")
        pictures = [key for key, fields in samples_of(tmp_path / "o.tar") if "png" in dict(fields)]
        assert pictures == ["k0"]

    def test_keys_twice_in_the_table(self, run: Command, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("id,cap\nk1,a\nk2,b\nk1,c\nk1,d\n")
        joined = [images, *of_table(tmp_path / "t.csv", "txt=cap"), "-o"]
        with no_new_files(tmp_path):
            ran = run(*joined, tmp_path / "out.tar")
        assert ran.code == 3
        assert f'{tmp_path}/t.csv, row 3 (line 4): repeated key "k1"' in ran.err
        assert "hint: leave out the later rows with --on-duplicate skip" in ran.err
        ran = good(*joined, tmp_path / "out.tar", "--on-duplicate", "skip", "--json")
        assert ran.objects[0]["dropped"] == {"duplicate-key": 2}
        assert dict(samples_of(tmp_path / "out.tar")[1][1])["txt"] == b"a"

    def test_rows_of_a_key_as_lists(self, run: Command, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("id,cap,lang\nk1,a,en\nk2,b,de\nk1,c,en\nk9,z,fr\nk1,d,en\n")
        table = of_table(tmp_path / "t.csv", "captions.json=cap", "txt=lang")
        good(images, *table, "-o", tmp_path / "out.tar", "--on-duplicate", "list")
        samples = {key: dict(fields) for key, fields in samples_of(tmp_path / "out.tar")}
        assert samples["k1"]["captions.json"] == b'["a","c","d"]'
        assert (samples["k2"]["captions.json"], samples["k2"]["txt"]) == (b'["b"]', b"de")
        # The same rows by a value of the samples, and with a row that has no partner.
        by_value = [*table[: table.index("--key-column")], *table[table.index("--key-column") + 2 :]]
        good(images, *by_value, "--on", "id=key", "-o", tmp_path / "on.tar", "--on-duplicate", "list")
        assert (tmp_path / "on.tar").read_bytes() == (tmp_path / "out.tar").read_bytes()
        good(images, *table, "-o", tmp_path / "all.tar", "--on-duplicate", "list", "--join", "outer")
        assert samples_of(tmp_path / "all.tar")[-1][0] == "k9"
        # A field that is no list must be the same in all rows.
        ran = run(
            images,
            *of_table(tmp_path / "t.csv", "txt=cap"),
            "-o",
            tmp_path / "b.tar",
            "--on-duplicate",
            "list",
        )
        assert ran.code == 3
        assert '"k1.txt" differs between rows with the same key' in ran.err
        for words in ([images], [images, *table, "--json-rest"]):
            ran = run(*words, "-o", tmp_path / "b.tar", "--on-duplicate", "list")
            assert (ran.code, "--on-duplicate list needs --table" in ran.err) == (2, True)

    def test_rows_without_a_value_are_counted(self, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("id,cap\nk1,a\nk2,\nk3,\n")
        joined = [images, *of_table(tmp_path / "t.csv", "txt=cap"), "-o"]
        ran = good(*joined, tmp_path / "out.tar", "--json")
        assert ran.objects[0]["dropped"] == {"no-value": 2}
        assert ran.objects[0]["samples_in"] == 6 + 3

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("id,cap\n,x\n", 'row 1 (line 2): no key in column "id"'),
            ("id,cap\nk1,x\nk.2,x\n", 'row 2 (line 3): the key "k.2" has a dot'),
            ("id,cap\nk1.jpg,x\n", "hint: the column needs the keys of the samples"),
            ("id,cap\n../k,x\n", "row 1 (line 2): unsafe name"),
            ("id,cap\nk1,x,y\n", "row 1 (line 2): 3 cells, but the header has 2"),
            ("", "has no header line"),
            ("a,b\n1,2\n", 'there is no column "id"'),
            ("id,b\n1,2\n", 'there is no column "cap"'),
        ],
    )
    def test_bad_tables(self, run: Command, images: str, tmp_path: Path, content: str, said: str) -> None:
        (tmp_path / "t.csv").write_text(content)
        with no_new_files(tmp_path):
            ran = run(
                images,
                "--table",
                tmp_path / "t.csv",
                "--key-column",
                "id",
                "--column",
                "txt=cap",
                "-o",
                tmp_path / "o.tar",
            )
        assert ran.code == (2 if "there is no column" in said else 3)
        assert said in ran.err
        assert "Traceback" not in ran.err

    def test_a_table_that_is_not_there(self, run: Command, images: str, tmp_path: Path) -> None:
        ran = run(
            images,
            "--table",
            tmp_path / "t.csv",
            "--key-column",
            "id",
            "--column",
            "txt=cap",
            "-o",
            tmp_path / "o.tar",
        )
        assert ran.code == 4
        assert "t.csv" in ran.err

    def test_scratch_space_is_left_clean(
        self, good: Command, images: str, table: str, tmp_path: Path
    ) -> None:
        (tmp_path / "scratch").mkdir()
        joined = [images, *of_table(table, "txt=caption")]
        good(*joined, "-o", tmp_path / "o.tar", "--tmp", tmp_path / "scratch")
        assert list((tmp_path / "scratch").iterdir()) == []

    def test_the_scratch_folder_is_used(self, run: Command, images: str, table: str, tmp_path: Path) -> None:
        joined = [images, *of_table(table, "txt=caption")]
        ran = run(*joined, "-o", tmp_path / "o.tar", "--tmp", tmp_path / "none")
        assert ran.code == 4
        assert f"{tmp_path}/none" in ran.err
        assert "--tmp DIR" in ran.err


class TestDuplicates:
    def test_error_and_skip(self, run: Command, good: Command, images: str, tmp_path: Path) -> None:
        other = put(tmp_path, "b.tar", caption(1), caption(2), [("k1.txt", b"later")])
        joined = ["--join", "inner", images, other, "-o"]
        ran = run(*joined, tmp_path / "out.tar")
        assert ran.code == 3
        assert f'repeated key "k1" (first: sample 0 of {other})' in ran.err
        assert "--on-duplicate skip" in ran.err
        ran = good(*joined, tmp_path / "out.tar", "--on-duplicate", "skip", "--json")
        assert ran.objects[-1]["dropped"] == {"duplicate-key": 1, "no-partner": 4}
        assert [dict(fields)["txt"] for _, fields in samples_of(tmp_path / "out.tar")] == [
            b"caption 1",
            b"caption 2",
        ]

    def test_skip_does_not_shift_what_is_measured(self, good: Command, tmp_path: Path) -> None:
        one = put(
            tmp_path, "a.tar", [("a.x", b"1" * 600)], [("b.x", b"2")], [("a.x", b"3")], [("c.x", b"4" * 2000)]
        )
        two = put(tmp_path, "b.tar", [("c.x", b"5"), ("c.y", b"6")], [("b.x", b"7")], [("a.x", b"8")])
        for policy in ("left", "right", "suffix"):
            out = tmp_path / f"{policy}.tar"
            good("--join", "inner", one, two, "-o", out, "--on-duplicate", "skip", "--on-conflict", policy)
            assert keys_of(out) == ["a", "b", "c"]


class TestSelection:
    def test_samples_are_chosen_in_the_first_set(
        self, good: Command, images: str, captions: str, tmp_path: Path
    ) -> None:
        joined = ["--join", "left", images, captions, "-o"]
        for name, options in (
            ("a", ["--where", "cls > 3"]),
            ("b", ["--slice", "4:"]),
            ("c", ["--keys", "k[45]"]),
        ):
            ran = good(*joined, tmp_path / f"{name}.tar", *options, "--json")
            assert samples_of(tmp_path / f"{name}.tar") == [
                (f"k{number}", tuple((m.partition(".")[2], p) for m, p in image(number) + caption(number)))
                for number in (4, 5)
            ]
            told = ran.objects[0]
            joined_away = told["joined"]["partners"]
            assert told["samples_in"] == told["samples"] + joined_away + sum(told["dropped"].values())
        good(*joined, tmp_path / "d.tar", "--limit", 2)
        assert keys_of(tmp_path / "d.tar") == ["k0", "k1"]

    def test_keys_choose_in_every_set(
        self, good: Command, images: str, captions: str, tmp_path: Path
    ) -> None:
        (tmp_path / "keys").write_text("k9\nk1\nk77\n")
        ran = good(
            *("--join", "outer", images, captions, "-o", tmp_path / "o.tar"),
            *("--keys-from", tmp_path / "keys"),
        )
        assert keys_of(tmp_path / "o.tar") == ["k1", "k9"]
        assert f"1 key of {tmp_path}/keys not found: k77" in ran.err

    def test_fields_of_every_set(self, good: Command, images: str, table: str, tmp_path: Path) -> None:
        good(
            *(
                images,
                *of_table(table, "txt=caption", "score=score"),
            ),
            *("-o", tmp_path / "o.tar", "--fields", "jpg,caption", "--rename", "caption=txt"),
        )
        found = samples_of(tmp_path / "o.tar")
        assert {name for _, fields in found for name, _ in fields} == {"jpg", "caption"}


class TestCommand:
    def test_dry_run(self, good: Command, images: str, table: str, tmp_path: Path) -> None:
        joined = [
            images,
            "--table",
            table,
            "--key-column",
            "id",
            "--column",
            "txt=caption",
            "-o",
            tmp_path / "out-%d.tar",
        ]
        with no_new_files(tmp_path):
            ran = good(*joined, "-n", "--max-count", 4)
        good(*joined, "--max-count", 4)
        lines = [line.split() for line in ran.out.decode().splitlines()]
        assert [line[1:] for line in lines[-2:]] == [
            ["4", str(outputs(tmp_path)[0].stat().st_size)],
            [
                "2",
                str(outputs(tmp_path)[1].stat().st_size),
            ],
        ]
        assert "would write 6 samples" in ran.err
        assert "matched 2 of 6 samples; 4 of the first set have no partner (kept: --join left)" in ran.err

    def test_json_of_a_dry_run(self, good: Command, images: str, captions: str, tmp_path: Path) -> None:
        words = ["--join", "left", images, captions, "--json", "-o", tmp_path / "o.tar"]
        *shards, counts = good(*words, "-n").objects
        assert [shard["samples"] for shard in shards] == [6]
        assert counts == {"joined": good(*words).objects[0]["joined"]}

    def test_json(self, good: Command, images: str, captions: str, tmp_path: Path) -> None:
        ran = good("--join", "left", images, captions, "-o", tmp_path / "o.tar", "--json")
        told = ran.objects[0]
        assert told["joined"] == {
            "matched": 3,
            "unmatched": [3, 1],
            "partners": 3,
            "fields_replaced": 0,
            "fields_left_out": 0,
            "fields_renamed": 0,
        }
        assert (told["samples"], told["samples_in"], told["dropped"]) == (6, 10, {"no-partner": 1})

    def test_quiet_and_verbose(self, good: Command, images: str, captions: str, tmp_path: Path) -> None:
        assert good("--join", "left", images, captions, "-o", tmp_path / "a.tar", "-q").err == ""
        ran = good("--join", "left", images, captions, "-o", tmp_path / "b.tar", "-v")
        assert "strategy gather: the inputs can be read in any order" in ran.err

    def test_standard_input_and_compressed_inputs(self, images: str, captions: str, tmp_path: Path) -> None:
        data = Path(captions).read_bytes()
        (tmp_path / "b.tar.gz").write_bytes(gzip.compress(data))
        made = []
        for number, (other, stdin) in enumerate(
            [(captions, None), ("-", data), (f"{tmp_path}/b.tar.gz", None)]
        ):
            out = tmp_path / f"{number}.tar"
            ran = wds("merge", "--join", "inner", images, other, "-o", out, stdin=stdin)
            assert ran.code == 0, ran.err
            made.append(out.read_bytes())
        assert len(set(made)) == 1

    def test_a_table_from_standard_input(self, images: str, table: str, tmp_path: Path) -> None:
        joined = ["--key-column", "id", "--column", "txt=caption", images, "-o"]
        made = []
        for name, stdin in ((table, None), ("-", Path(table).read_bytes())):
            ran = wds("merge", "--table", name, *joined, tmp_path / f"{len(made)}.tar", stdin=stdin)
            assert ran.code == 0, ran.err
            made.append((tmp_path / f"{len(made)}.tar").read_bytes())
        assert made[0] == made[1]

    def test_one_standard_input_for_one_thing(self, run: Command, tmp_path: Path) -> None:
        table = [*of_table("-", "txt=caption")]
        ran = run("-", *table, "-o", tmp_path / "out.tar")
        assert ran.code == 2
        assert "standard input can be only one input" in ran.err

    def test_broken_shards(
        self, run: Command, good: Command, images: str, captions: str, tmp_path: Path
    ) -> None:
        data = Path(captions).read_bytes()
        Path(captions).write_bytes(data[: 3 * 1024 + 300])
        joined = ["--join", "inner", images, captions, "-o"]
        with no_new_files(tmp_path):
            ran = run(*joined, tmp_path / "out.tar")
        assert ran.code == 3
        assert captions in ran.err
        ran = good(*joined, tmp_path / "out.tar", "--on-error", "skip")
        assert keys_of(tmp_path / "out.tar") == ["k1", "k4"]
        assert captions in ran.err

    def test_a_table_with_other_keys(self, run: Command, good: Command, images: str, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("id,url,t\nk1,http://x/1,one\n")
        options = [images, "--table", tmp_path / "t.csv", "--column", "txt=t", "-o", tmp_path / "o.tar"]
        ran = run(*options, "--key-column", "url")
        assert ran.code == 3
        assert 'no sample has a key of the column "url": the table has "http://x/1"' in ran.err
        assert "no sample has a key" in good(*options, "--key-column", "url", "--allow-empty").err

    def test_nothing_in_common(self, good: Command, images: str, tmp_path: Path) -> None:
        other = put(tmp_path, "b.tar", [("zz.txt", b"")])
        ran = good("--join", "inner", images, other, "-o", tmp_path / "o-%d.tar", "--allow-empty")
        assert "no key is in all 2 sets: each argument is one set, so quote patterns" in ran.err

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--key-column", "id"], "--key-column, --column and --json-rest need --table"),
            (["--column", "a=b"], "--key-column, --column and --json-rest need --table"),
            (["--on-conflict", "left"], "--on-conflict needs a join"),
            (["--table", "t.csv", "--key-column", "id"], "--table needs --key-column and --column"),
            (["--table", "t.csv", "--column", "a=b"], "--table needs --key-column and --column"),
            ([*of_table("t.csv", "a")], "is not EXT=COLUMN"),
            ([*of_table("t.csv", "a=b", "a=c")], "two columns"),
            (["--join", "left"], "two sets, or a table"),
            (
                ["--join", "left", "b.tar", "--weights", "equal"],
                "--weights cannot change the order of a join",
            ),
            (["--join", "left", "b.tar", "--dedup", "key"], "--dedup does not work with a join"),
            (["--join", "left", "b.tar", "--rekey", "{key}-{index}"], "it cannot give new keys"),
            (["--join", "left", "b.tar", "--plan", "p", "--resume"], "--resume cannot be combined"),
            (["--join", "outer", "b.tar", "--slice", ":3"], "an outer join keeps all samples"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_usage(
        self, run: Command, images: str, captions: str, tmp_path: Path, options: list[str], said: str
    ) -> None:
        options = [captions if one == "b.tar" else one for one in options]
        ran = run(images, *options, "-o", tmp_path / "out.tar")
        assert ran.code == 2, ran.err
        assert said in ran.err
        assert leftovers(tmp_path) == []


class TestPlans:
    """A join is planned here and made elsewhere, or made in two attempts: the same bytes."""

    @pytest.mark.parametrize("policy", ["error", "suffix"])
    def test_a_stored_plan(
        self, good: Command, images: str, captions: str, tmp_path: Path, policy: str
    ) -> None:
        if policy == "suffix":
            captions = put(tmp_path, "more.tar", [("k3.txt", b"3"), ("k3.cls", b"c")], caption(7), image(1))
        joined = ["--join", "outer", images, captions, "--on-conflict", policy, "--max-count", 3, "-o"]
        good(*joined, tmp_path / "one" / "out-%d.tar")
        ran = good(*joined, tmp_path / "two" / "out-%d.tar", "--plan", tmp_path / "plan")
        assert "planned 7 samples in 3 shards" in ran.err
        for task in (2, 0, 1):
            assert main(["run", str(tmp_path / "plan"), "--task", str(task), "-q"]) == 0
        assert main(["run", str(tmp_path / "plan"), "--finish", "-q"]) == 0
        assert content(tmp_path / "one") == content(tmp_path / "two")
        assert_true_set(tmp_path / "two")

    def test_a_plan_holds_no_table(self, run: Command, images: str, table: str, tmp_path: Path) -> None:
        joined = [
            images,
            *of_table(table, "txt=caption"),
            "-o",
            tmp_path / "o.tar",
        ]
        with no_new_files(tmp_path):
            ran = run(*joined, "--plan", tmp_path / "plan")
        assert ran.code == 2
        assert "cannot read the table" in ran.err
        assert "wds create --from" in ran.err

    def test_resume(self, run: Command, good: Command, images: str, table: str, tmp_path: Path) -> None:
        joined = [
            images,
            *of_table(table, "txt=caption"),
            "--max-count",
            2,
            "-o",
        ]
        good(*joined, tmp_path / "one" / "out-%d.tar")
        out = tmp_path / "two" / "out-%d.tar"
        (tmp_path / "two").mkdir()
        # The second shard has no room for its name, so that only the first is made.
        (tmp_path / "two" / "out-1.tar").mkdir()
        assert run(*joined, out, "-j", 1, "--force").code != 0
        assert (tmp_path / "two" / "out-0.tar").exists()
        (tmp_path / "two" / "out-1.tar").rmdir()
        changed = Path(table).read_text().replace("zwei", "deux")
        Path(table).write_text(changed)
        ran = run(*joined, out, "--resume")
        assert ran.code == 4, ran.err
        Path(table).write_text(changed.replace("deux", "zwei"))
        before = (tmp_path / "two" / "out-0.tar").stat().st_mtime_ns
        good(*joined, out, "--resume")
        assert (tmp_path / "two" / "out-0.tar").stat().st_mtime_ns == before
        assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.exhaustive
def test_what_the_guide_shows(images: str, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "man" / "guides" / "join.md").read_text(encoding="utf-8")
    lines = guide.split("<!-- join -->\n```sh\n")[1].split("```")[0]
    (tmp_path / "set").symlink_to(images)
    script = re.sub(r"\bwds\b(?= )", f"{sys.executable} -m wdscli", "set -e\n" + lines)
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [one for path in outputs(tmp_path / "again", "train-*.tar") for one in samples_of(path)]
    assert [(key, [field for field, _ in fields]) for key, fields in found] == [
        (f"k{number}", ["cls", "jpg", "txt"]) for number in range(6)
    ]
    assert {dict(fields)["txt"] for _, fields in found} == {b"a picture"}
