"""wds ls --count and --show: values and their counts, and samples for people."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image
from shard_cases import Ran, wds
from terminals import on_terminal

from wdscli.cli import pictures
from wdscli.look import table as counts_module
from wdscli.look import unpack as show_module
from wdscli.shards import ShardWriter

Fields = dict[str, bytes]


def write(folder: Path, samples: list[Fields], *, max_count: int = 1000) -> Path:
    with ShardWriter(f"{folder}/t-%03d.tar", max_count=max_count) as writer:
        for number, fields in enumerate(samples):
            writer.write(f"n{number:04d}", fields)
    return folder


def documents(folder: Path, values: list[Any]) -> Path:
    """A set with one JSON document for each value, at ``a``."""
    return write(folder, [{"json": json.dumps({"a": value}).encode()} for value in values], max_count=7)


def ls(*args: object, code: int = 0) -> Ran:
    ran = wds("ls", *args)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    return ran


def rows(ran: Ran) -> list[list[str]]:
    return [line.split("\t") for line in ran.out.decode().splitlines()]


def counted(*args: object) -> list[tuple[Any, int]]:
    return [(one["value"], one["count"]) for one in ls(*args, "--json").objects]


class TestCounts:
    def test_the_most_frequent_first_and_ties_by_value(self, tmp_path: Path) -> None:
        values = ["10", "9", "9", "b", "a", "10", "x", "x", "x"]
        write(tmp_path, [{"cls": value.encode()} for value in values] + [{"txt": b"-"}])
        assert rows(ls(tmp_path, "--count", "cls")) == [
            ["cls", "name", "count", "share"],
            ["x", "", "3", "30.0%"],
            ["9", "", "2", "20.0%"],
            ["10", "", "2", "20.0%"],
            ["a", "", "1", "10.0%"],
            ["b", "", "1", "10.0%"],
            ["", "missing", "1", "10.0%"],
        ]

    def test_names_of_classes(self, tmp_path: Path) -> None:
        for kind in ("cat", "dog"):
            (tmp_path / "in" / kind).mkdir(parents=True)
            (tmp_path / "in" / kind / "1.txt").write_text(kind)
        (tmp_path / "in" / "cat" / "2.txt").write_text("cat")
        assert wds("create", tmp_path / "in", "-o", tmp_path / "s-%d.tar", "--label-from", "parent").code == 0
        assert ls(tmp_path, "--count", "cls", "--json").objects == [
            {"field": "cls", "value": 0, "name": "cat", "count": 2},
            {"field": "cls", "value": 1, "name": "dog", "count": 1},
        ]
        assert counted(tmp_path, "--count", "cls == 'cat'") == [(True, 2), (False, 1)]

    def test_values_of_json_keep_their_type(self, tmp_path: Path) -> None:
        values = [1, 1.0, "1", True, "true", None, [1, "x"], [1, "x"], {"b": 1, "a": 2}, "ü\ud800", math.nan]
        documents(tmp_path, values)
        found = counted(tmp_path, "--count", "json.a")
        assert sorted(found, key=repr) == sorted(
            [
                (1, 2),
                ("1", 1),
                (True, 1),
                ("true", 1),
                (None, 2),
                ([1, "x"], 2),
                ({"a": 2, "b": 1}, 1),
                ("ü\ud800", 1),
            ],
            key=repr,
        )
        assert ls(tmp_path, "--count", "json.a").out.decode("utf-8", "surrogatepass").count("\n") == 9

    @pytest.mark.parametrize(
        ("field", "expected"),
        [
            ("json.a", [(3, 2), (4, 1)]),
            ("json.a * 2", [(6, 2), (8, 1)]),
            ("meta.json.deep[0]", [("x", 2), ("y", 1)]),
            ('meta.json["deep"][0]', [("x", 2), ("y", 1)]),
            ("label", [("cat", 3)]),
            ("score", [(0.5, 2), ("007", 1)]),
            ("my-field", [(1, 3)]),
            ("size.label", [(3, 3)]),
            ("len(txt) > 1", [(True, 2), (False, 1)]),
            ("index", [(0, 2), (1, 1)]),
            ("'txt' in fields", [(True, 3)]),
            ("json.b", [(1, 1), (None, 2)]),
        ],
    )
    def test_fields_places_and_expressions(self, tmp_path: Path, field: str, expected: Any) -> None:
        each: list[tuple[Any, ...]] = [
            ({"a": 3}, "x", b"0.5", b"ab"),
            ({"a": 4, "b": 1}, "y", b"0.50", b"c"),
            ({"a": 3, "b": None}, "x", b"007", b"cd"),
        ]  # fmt: skip
        samples = [
            {
                "json": json.dumps(data).encode(), "meta.json": json.dumps({"deep": [deep]}).encode(),
                "label": b"cat", "my-field": b" 1\n", "score": score, "txt": text,
            }
            for data, deep, score, text in each
        ]  # fmt: skip
        write(tmp_path, samples, max_count=2)
        assert counted(tmp_path, "--count", field) == expected

    def test_many_numbers_are_quantiles(self, tmp_path: Path) -> None:
        chance = random.Random(1)
        values = [chance.choice([chance.gauss(0, 9), chance.randrange(50), -1e300]) for _ in range(997)]
        documents(tmp_path, [*values, None, None])
        found = {one["name"]: one for one in ls(tmp_path, "--count", "json.a", "--json").objects}
        assert list(found) == ["min", "1%", "25%", "median", "75%", "99%", "max", "mean", "missing"]
        for name, share in (("1%", 0.01), ("25%", 0.25), ("75%", 0.75), ("99%", 0.99)):
            assert found[name]["value"] == float(numpy.quantile(values, share, method="inverted_cdf"))
        assert [found[name]["value"] for name in ("min", "median", "max")] == [
            min(values), statistics.median_low(values), max(values),
        ]  # fmt: skip
        assert found["mean"]["value"] == pytest.approx(statistics.fmean(values))
        assert (found["missing"]["count"], found["missing"]["value"], found["max"]["count"]) == (
            2,
            None,
            None,
        )
        pipe = rows(ls(tmp_path, "--count", "json.a"))
        assert (pipe[0], pipe[-1]) == (["json.a", "value"], ["missing", "2"])

    def test_few_numbers_and_classes_are_values(self, tmp_path: Path) -> None:
        write(tmp_path, [{"cls": b"%d" % n, "id": b"%d" % (n % 100), "x": b"%d" % n} for n in range(150)])
        assert len(counted(tmp_path, "--count", "cls")) == 150
        assert len(counted(tmp_path, "--count", "id")) == 100
        assert ls(tmp_path, "--count", "x", "--json").objects[0]["name"] == "min"

    def test_more_values_than_memory_holds_are_exact(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chance = random.Random(2)
        kinds: list[Any] = ["a\0b", "a", "", "é", 7, -2.5, 10, True, [1, 2], {"x": None}]
        values = [chance.choice(kinds) for _ in range(300)] + [f"v{n % 40}" for n in range(90)]
        documents(tmp_path, values)
        whole = ls(tmp_path, "--count", "json.a", "--json").out
        assert Counter(one["count"] for one in map(json.loads, whole.splitlines())) == Counter(
            Counter(json.dumps(value) for value in values).values()
        )
        monkeypatch.setattr(counts_module, "MAX_VALUES", 3)
        assert ls(tmp_path, "--count", "json.a", "--json").out == whole
        monkeypatch.setattr(counts_module, "MAX_VALUES", 1 << 17)
        monkeypatch.setattr(counts_module, "MAX_BYTES", 9)
        assert ls(tmp_path, "--count", "json.a", "--json").out == whole

    def test_two_fields_are_two_tables(self, tmp_path: Path) -> None:
        write(tmp_path, [{"cls": b"1", "txt": b"a\tb"}])
        assert ls(tmp_path, "--count", "cls", "--count", "txt").out == (
            b"cls\tcount\tshare\n1\t1\t100.0%\n\ntxt\tcount\tshare\na\\tb\t1\t100.0%\n"
        )
        assert [one["field"] for one in ls(tmp_path, "--count", "cls", "--count", "txt", "--json").objects] == [
            "cls", "txt",
        ]  # fmt: skip

    def test_a_table_in_a_file(self, tmp_path: Path) -> None:
        write(tmp_path, [{"cls": b"1", "txt": b'a,"b'}, {"cls": b"1"}])
        text = ls(tmp_path, "--count", "cls", "--count", "txt", "--to", "csv").out.decode()
        assert list(csv.reader(io.StringIO(text))) == [
            ["field", "value", "name", "count"],
            ["cls", "1", "", "2"],
            ["txt", 'a,"b', "", "1"],
            ["txt", "", "missing", "1"],
        ]
        ran = ls(tmp_path, "--count", "cls", "--to", tmp_path / "c.parquet", "--json")
        assert (ran.objects[0]["rows"], ran.objects[0]["columns"]) == (1, 4)
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table(tmp_path / "c.parquet").to_pylist() == [
            {"field": "cls", "value": 1, "name": None, "count": 2}
        ]

    def test_of_the_selected_samples_of_several_sets(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        one = write(tmp_path / "a", [{"cls": b"%d" % (n % 3), "txt": b"t"} for n in range(9)], max_count=2)
        other = write(tmp_path / "b", [{"cls": b"7"}])
        assert counted(one, other, "--count", "cls") == [(0, 3), (1, 3), (2, 3), (7, 1)]
        assert counted(one, other, "--count", "cls", "--where", "cls > 1") == [(2, 3), (7, 1)]
        assert counted(one, "--count", "cls", "--limit", "4") == [(0, 2), (1, 1), (2, 1)]
        assert counted(one, "--count", "cls", "--slice", "::3") == [(0, 3)]
        # As in --where, fields have the names of the shard, and all are there.
        assert counted(one, "--count", "cls", "--fields", "txt", "--rename", "text=txt") == [
            (0, 3),
            (1, 3),
            (2, 3),
        ]
        assert sum(count for _, count in counted(one, "--count", "index", "--sample", "5")) == 5
        assert counted(tmp_path, "--count", "shard")[0][1] == 2, "the folders below"

    def test_streams(self, tmp_path: Path) -> None:
        write(tmp_path, [{"cls": b"%d" % (n % 2), "bin": bytes(n)} for n in range(5)])
        subprocess.run(["gzip", "-k", tmp_path / "t-000.tar"], check=True)
        for address in ("t-000.tar.gz", "pipe:cat t-000.tar"):
            ran = wds("ls", address, "--count", "cls", "--json", cwd=tmp_path)
            assert [one["count"] for one in ran.objects] == [3, 2]

    def test_what_is_nowhere_is_a_warning(self, tmp_path: Path) -> None:
        documents(tmp_path, [1])
        ran = ls(tmp_path, "--count", "json.A")
        assert "warning: no sample has json.A for --count: did you mean a?" in ran.err
        assert "no sample has clas for --count" in ls(tmp_path, "--count", "clas").err
        assert rows(ran) == [["json.A", "name", "count", "share"], ["", "missing", "1", "100.0%"]]
        assert ls(tmp_path, "--count", "json.a").err == ""

    def test_what_cannot_be_decoded(self, tmp_path: Path) -> None:
        write(tmp_path, [{"json": b'{"a": 1}'}, {"json": b"{"}, {"json": b'{"a": 0}'}])
        ran = ls(tmp_path, "--count", "json.a", code=3)
        assert "json cannot be decoded" in ran.err
        assert "n0001.json" in ran.err
        assert (
            "--count cannot be evaluated: division by zero"
            in ls(tmp_path, "--count", "1 / json.a", "--slice", "2:", code=3).err
        )
        ran = ls(tmp_path, "--count", "1 / json.a", "--count", "key", "--on-error", "skip", "-v", "--json")
        assert [(one["value"], one["count"]) for one in ran.objects] == [(1, 1), ("n0000", 1)]
        assert "samples left out: 2 undecodable" in ran.err

    def test_long_values_and_infinities(self, tmp_path: Path) -> None:
        write(tmp_path, [{"txt": b"x" * 70_000}, {"txt": b"y"}])
        ran = ls(tmp_path, "--count", "txt", code=3)
        assert "a value of 70002 characters, more than 65536" in ran.err
        assert "hint: --count 'len(txt)' counts lengths" in ran.err
        assert counted(tmp_path, "--count", "len(txt)") == [(1, 1), (70_000, 1)]
        (tmp_path / "more").mkdir()
        documents(tmp_path / "more", [math.inf, -math.inf, math.inf, 1])
        assert counted(tmp_path / "more", "--count", "json.a") == [("inf", 2), (1, 1), ("-inf", 1)]
        (tmp_path / "large").mkdir()
        documents(tmp_path / "large", [n * 1.7e306 for n in range(-105, 106)])
        found = ls(tmp_path / "large", "--count", "json.a", "--json").objects
        assert found[7]["value"] == pytest.approx(0, abs=1e295)

    def test_an_empty_set(self, tmp_path: Path) -> None:
        write(tmp_path, [{"cls": b"1"}])
        ran = ls(tmp_path, "--count", "cls", "--limit", "0")
        assert (ran.out, ran.err) == (b"cls\tcount\tshare\n", "")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--count", "a b"], "--count cannot be read"),
            (["--count", ""], "--count is empty"),
            (["--count", "foo(1)"], "--count: no such function: foo"),
            (["--count", "cls", "--summary"], "different lists"),
            (["--count", "cls", "--by", "shard"], "different lists"),
            (["--count", "cls", "--show"], "different lists"),
            (["--count", "cls", "-l"], "-l works only for"),
            (["--count", "cls", "--to", "csv", "--column", "json"], "--column works only for"),
            (["--show", "--to", "csv"], "row per sample"),
            (["--show", "--json"], "cat --to jsonl"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, options: list[str], said: str) -> None:
        write(tmp_path, [{"cls": b"1"}])
        ran = ls(tmp_path, *options, code=2)
        assert said in ran.err
        assert "--where" not in ran.err or "--where" in options
        assert ran.out == b""


def shown_by(*args: object, **environ: str) -> str:
    """What a terminal gets of ``ls`` with ``args``."""
    return on_terminal([sys.executable, "-m", "wdscli", "ls", *map(str, args)], **environ)


def test_a_terminal_gets_bars_and_the_beginning(tmp_path: Path) -> None:
    write(tmp_path, [{"cls": b"%d" % (n % 3), "x": b"k%d" % n, "n": b"%d.5" % n} for n in range(301)])
    shown = shown_by(tmp_path, "--count", "cls", "--count", "x", "--count", "n", NO_COLOR="1")
    first, second, third = shown.split("\n\n")
    assert [line.split() for line in first.splitlines()[2:]] == [
        ["0", "101", "33.6%", "█" * 24],
        ["1", "100", "33.2%", "█" * 23 + "▊"],
        ["2", "100", "33.2%", "█" * 23 + "▊"],
    ]
    assert len(second.splitlines()) == 43
    assert second.splitlines()[-1] == "and 261 more in 261 samples (a pipe gets all of them)"
    assert [line.split() for line in third.splitlines()][-2:] == [["mean", "150.5"], ["missing", "0"]]
    assert "\x1b" not in shown


def png(size: tuple[int, int], mode: str = "RGB", kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, 200 if mode == "L" else (200, 10, 10)).save(stream, kind)
    return stream.getvalue()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    array = io.BytesIO()
    numpy.save(array, numpy.zeros((2, 3), "f4"))
    sample = {
        "bin": bytes(range(60)),
        "broken.json": b"{",
        "cls": b"3",
        "json": json.dumps({"a": [1], "b": "é"}, ensure_ascii=False).encode(),
        "mp4": b"film",
        "npy": array.getvalue(),
        "png": png((40, 30)),
        "txt": b"one\x1b[31m\ntwo\n" + b"long " * 1000,
    }
    return write(tmp_path, [sample, {"txt": b"second"}, {"txt": b"third"}])


class TestShow:
    def test_each_field_in_its_form(self, made: Path) -> None:
        ran = ls(made, "--show")
        text = ran.out.decode()
        assert text.startswith(f"n0000  {made}/t-000.tar, sample 0\n")
        for line in (
            "  bin             60 B  " + bytes(range(48)).hex(" ") + " …",
            "  broken.json      1 B  not what its name says: JSONDecodeError",
            "  cls              1 B  3",
            '    {\n      "a": [\n        1\n      ],\n      "b": "é"\n    }',
            "  mp4              4 B  video",
            "  npy            152 B  float32 2 × 3",
            "B  40 × 30 pixels",
            "  txt          5.01 kB\n    one\\x1b[31m\n    two\n    long long",
        ):
            assert line in text, line
        assert text.endswith("…\n")
        assert (text.count("second"), ran.err) == (0, "")
        assert b"\x1b" not in ran.out

    def test_how_many(self, made: Path) -> None:
        def keys(*options: object) -> list[str]:
            text = ls(made, "--show", *options).out.decode()
            return [line.split()[0] for line in text.splitlines() if line.startswith("n0")]

        assert keys() == ["n0000"]
        assert keys("--where", "txt != 'x' and index > 0") == ["n0001"]
        assert len(keys("--sample", "2")) == 2
        assert keys("--limit", "2") == ["n0000", "n0001"]
        assert keys("--slice", "1:") == ["n0001", "n0002"]
        assert "  txt  6 B" not in ls(made, "--show", "--keys", "n0001", "--rename", "x=txt").out.decode()
        (made / "above").mkdir()
        (made / "above" / "part").mkdir()
        (made / "t-000.tar").rename(made / "above" / "part" / "t-000.tar")
        assert "n0000" in ls(made / "above", "--show").out.decode()

    def test_streams_and_damage(self, made: Path) -> None:
        ran = wds("ls", "pipe:cat t-000.tar", "--show", cwd=made)
        assert "40 × 30" in ran.out.decode()
        data = bytearray((made / "t-000.tar").read_bytes())
        data[600] ^= 0
        (made / "cut.tar").write_bytes(data[:3000])
        ran = ls(made / "cut.tar", "--show", code=3)
        assert "cut.tar" in ran.err

    def test_names_of_classes(self, tmp_path: Path) -> None:
        (tmp_path / "in" / "cat").mkdir(parents=True)
        (tmp_path / "in" / "cat" / "1.txt").write_text("x")
        assert wds("create", tmp_path / "in", "-o", tmp_path / "s-%d.tar", "--label-from", "parent").code == 0
        assert "0 (cat)" in ls(tmp_path, "--show").out.decode()

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
    def test_sizes_without_pillow(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def size_of(data: bytes) -> tuple[int, int] | None:
            with monkeypatch.context() as without:
                without.setitem(sys.modules, "PIL", None)
                return show_module.picture_size(data)

        options: list[dict[str, Any]] = [{}, {"lossless": True}] if kind == "WEBP" else [{}]
        for more in options:
            stream = io.BytesIO()
            Image.new("RGB", (301, 17), (9, 99, 199)).save(stream, kind, **more)
            data = stream.getvalue()
            assert size_of(data) == (301, 17) == show_module.picture_size(data)
            assert size_of(data[:9]) is None
        if kind == "WEBP":
            stream = io.BytesIO()
            Image.new("RGBA", (301, 17), (9, 99, 199, 7)).save(stream, kind, exif=b"Exif\0\0II*\0")
            assert size_of(stream.getvalue()) == (301, 17)
        assert size_of(b"no picture at all, but some text") is None

    @pytest.mark.exhaustive
    def test_pictures_on_terminals(self, made: Path) -> None:
        def shown(**environ: str) -> str:
            return shown_by(made, "--show", "--fields", "png", **environ)

        assert "\x1b[38;2;200;10;10;48;2;200;10;10m▀" in shown(COLORTERM="truecolor")
        assert shown().count("▀") == 40 * 15
        assert "38;5;160;48;5;160m▀" in shown()
        assert "\x1b_Ga=T,f=100,m=0;iVBOR" in shown(TERM="xterm-kitty")
        sixels = shown(TERM="foot")
        assert '\x1bPq"1;1;40;30#0;2;78;3;3' in sixels
        assert sixels.count("#0" + "~" * 40 + "$-") == 5
        for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            assert "\x1b" not in shown(**environ)
            assert "40 × 30" in shown(**environ)
        assert "\x1b" not in ls(made, "--show", "--fields", "png").out.decode()

    def test_no_picture_is_drawn_of_what_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pictures, "takes_colour", lambda stream: True)
        monkeypatch.delenv("TERM_PROGRAM", raising=False)
        assert pictures.draw(b"nothing") == b""
        assert pictures.draw(png((3, 3), "L")).count("▀".encode()) == 6
        data = png((3, 3))
        monkeypatch.setitem(sys.modules, "PIL", None)
        assert pictures.draw(data) == b""
        assert show_module.picture_size(data) == (3, 3)
