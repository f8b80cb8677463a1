"""CSV, TSV and JSON Lines: one type for a column, encodings, the largest cell."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import samples_of, wds, write_shards

from wdscli.create.delimited import is_number

COMMAND: list[str] = []


def rests(path: Path) -> list[dict[str, Any]]:
    return [json.loads(dict(held)["json"]) for _, held in samples_of(path)]


@pytest.fixture
def rest(good: Command, tmp_path: Path) -> Any:
    """The JSON of each row of a table."""

    def made(table: object, *options: object) -> list[dict[str, Any]]:
        words = ["create", "--from", table, "--key-column", "id", "--json-rest", *options]
        good(*words, "-o", tmp_path / "o.tar", "--force")
        return rests(tmp_path / "o.tar")

    return made


class TestTypes:
    def test_a_column_has_one_type(self, rest: Any, tmp_path: Path) -> None:
        text = "id,price,zip,n,x,e\na,1.10,7,7,7,\nb,2.5,00501,-3,0.5,\nc,3,8,0,1e-05,\n"
        (tmp_path / "t.csv").write_text(text)
        made = rest(tmp_path / "t.csv")
        assert made == [
            {"price": "1.10", "zip": "7", "n": 7, "x": 7, "e": None},
            {"price": "2.5", "zip": "00501", "n": -3, "x": 0.5, "e": None},
            {"price": "3", "zip": "8", "n": 0, "x": 1e-05, "e": None},
        ]
        assert isinstance(made[0]["x"], int)
        (tmp_path / "t.tsv").write_text(text.replace(",", "\t"))
        assert rest(tmp_path / "t.tsv") == made

    def test_over_all_files(self, rest: Any, tmp_path: Path) -> None:
        (tmp_path / "1.csv").write_text("id,n,m\na,1,1\n")
        (tmp_path / "2.csv").write_text("id,n,m\nb,x,2\n")
        (tmp_path / "3.jsonl").write_text('{"id": "c", "n": 3, "m": "4"}')
        files = [
            f"{tmp_path}/1.csv",
            "--from",
            f"{tmp_path}/2.csv",
            "--from",
            f"{tmp_path}/3.jsonl",
        ]
        assert rest(*files) == [{"n": "1", "m": 1}, {"n": "x", "m": 2}, {"n": 3, "m": "4"}]

    def test_text_stays_text(self, rest: Any, run: Command, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("id,n,m\na,1,2\n")
        assert rest(tmp_path / "t.csv", "--text", "n") == [{"n": "1", "m": 2}]
        assert rest(tmp_path / "t.csv", "--text", "n", "--text", "m") == [{"n": "1", "m": "2"}]
        (tmp_path / "t.jsonl").write_text('{"id": "a", "n": 1}')
        table = ["create", "-o", tmp_path / "x.tar", "--key-column", "id"]
        for words, said in (
            (["--from", tmp_path / "t.csv", "--json-rest", "--text", "no"], "there are id, n, m"),
            (["--from", tmp_path / "t.jsonl", "--json-rest", "--text", "n"], "have their own types"),
            (["--from", tmp_path / "t.csv", "--column", "txt=n", "--text", "m"], "--json-rest"),
        ):
            ran = run(*table, *words)
            assert (ran.code, said in ran.err) == (2, True), ran.err

    def test_of_what_can_be_read_once(self, good: Command, tmp_path: Path) -> None:
        content = "id,n,m\na,1,1.0\nb,x,1.10\n"
        (tmp_path / "t.csv").write_text(content)
        words = ["create", "--key-column", "id", "--json-rest", "--force", "-o"]
        expected = [{"n": "1", "m": "1.0"}, {"n": "x", "m": "1.10"}]
        good(*words, tmp_path / "a.tar", "--from", f"pipe:cat {tmp_path}/t.csv")
        ran = wds(*words, tmp_path / "b.tar", "--from", "-", stdin=content.encode())
        assert ran.code == 0, ran.err
        assert rests(tmp_path / "a.tar") == rests(tmp_path / "b.tar") == expected

    def test_of_a_server_is_fetched_once(self, rest: Any) -> None:
        from storage_servers import web_server

        with web_server("ranges") as web:
            web.files["t.csv"] = b"id,n\n" + b"".join(b"k%d,%d\n" % (n, n) for n in range(2000))
            assert rest(web.url("t.csv"))[7] == {"n": 7}
            assert web.sent_bytes < 1.5 * len(web.files["t.csv"])

    def test_in_a_join(self, good: Command, tmp_path: Path) -> None:
        write_shards(tmp_path / "set", [[[("a.json", b'{"k":1}')], [("b.json", b"{}")]]])
        (tmp_path / "t.csv").write_text("id,n,m,z\na,1,1.10,1\nb,2,3,2\n")
        words = [
            "merge",
            tmp_path / "set",
            "--table",
            tmp_path / "t.csv",
            "--key-column",
            "id",
            "--json-rest",
        ]
        good(*words, "--text", "z", "-o", tmp_path / "o.tar")
        assert rests(tmp_path / "o.tar") == [
            {"k": 1, "n": 1, "m": "1.10", "z": "1"},
            {"n": 2, "m": "3", "z": "2"},
        ]

    @pytest.mark.exhaustive
    def test_the_same_whatever_the_number_of_jobs(self, good: Command, tmp_path: Path) -> None:
        rows = "".join(f"k{n},{n},{n if n < 900 else 'x'}\n" for n in range(1000))
        (tmp_path / "t.csv").write_text("id,n,m\n" + rows)
        words = [
            "create",
            "--from",
            tmp_path / "t.csv",
            "--key-column",
            "id",
            "--json-rest",
            "--max-count",
            300,
        ]
        good(*words, "-o", tmp_path / "a-%d.tar", "-j", 1)
        good(*words, "-o", tmp_path / "b-%d.tar", "-j", 2)
        (tmp_path / "b-1.tar").unlink()
        good(*words, "-o", tmp_path / "b-%d.tar", "-j", 2, "--resume", "--force")
        for number in range(4):
            assert (tmp_path / f"a-{number}.tar").read_bytes() == (tmp_path / f"b-{number}.tar").read_bytes()
        assert rests(tmp_path / "a-0.tar")[0] == {"n": 0, "m": "0"}

    @given(
        st.one_of(
            st.integers().map(str), st.floats().map(repr), st.text("0123456789-+.eE_ infaN", max_size=6)
        )
    )
    def test_a_number_is_written_as_it_was(self, cell: str) -> None:
        if is_number(cell):
            assert json.dumps(json.loads(cell)) == cell
        else:
            with contextlib.suppress(ValueError):
                assert json.dumps(json.loads(cell)) != cell or cell in ("NaN", "Infinity", "-Infinity")

    def test_a_number_of_many_digits(self, rest: Any, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text(f"id,a,b\nk,{'7' * 400},{'7' * 5000}\n")
        assert rest(tmp_path / "t.csv") == [{"a": int("7" * 400), "b": "7" * 5000}]


class TestEncodings:
    @pytest.mark.parametrize(
        ("name", "content", "where"),
        [
            ("t.csv", "id,name\na,fine\n\nb,caf\xe9\n", 'row 2 (line 4): column "name"'),
            ("t.csv", 'id,name\na,"\nx"\n\xe9,caf\n', 'row 2 (line 4): column "id"'),
            ("t.tsv", "id\tname\na\tcaf\xe9\n", 'row 1 (line 2): column "name"'),
            ("t.csv", "id,n\xe9,name\na,b,c\n", "header: column"),
            (
                "t.jsonl",
                '{"id": "a", "name": "x"}\n{"id": "b", "name": "caf\xe9"}\n',
                'row 2 (line 2): column "name"',
            ),
        ],
    )
    def test_not_utf8(
        self, run: Command, rest: Any, tmp_path: Path, name: str, content: str, where: str
    ) -> None:
        (tmp_path / name).write_bytes(content.encode("latin-1"))
        words = ["--key-column", "id", "--column", "txt=name", "-o", tmp_path / "x.tar"]
        for command in (["create", "--from"], ["merge", tmp_path / "set", "--table"]):
            write_shards(tmp_path / "set", [[[("a.cls", b"1")]]])
            ran = run(*command, tmp_path / name, *words)
            assert (ran.code, where in ran.err, "0xe9" in ran.err) == (3, True, True), ran.err
            assert "--encoding latin-1" in ran.err
        utf8 = tmp_path / f"utf8-{name}"
        utf8.write_bytes(content.encode("utf-8-sig"))
        latin = rest(tmp_path / name, "--encoding", "latin-1")
        assert rest(utf8) == latin
        utf8.write_bytes(content.encode("utf-16"))
        assert rest(utf8, "--encoding", "utf-16") == latin

    def test_encodings_that_do_not_fit(self, run: Command, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes("id,t\na,\xe9\n".encode("latin-1"))
        (tmp_path / "l.txt").write_text("x\n")
        key = ["--key-column", "id", "--column", "txt=t", "-o", tmp_path / "x.tar"]
        for code, said, *words in (
            (2, "no such text encoding", "--from", tmp_path / "t.csv", *key, "--encoding", "klingon"),
            (2, "no such text encoding", "--from", tmp_path / "t.csv", *key, "--encoding", "hex"),
            (3, "not ascii (byte 0xe9)", "--from", tmp_path / "t.csv", *key, "--encoding", "ascii"),
            (3, "not utf-16", "--from", tmp_path / "t.csv", *key, "--encoding", "utf-16"),
            (
                2,
                "--encoding works only for a table",
                "--from",
                "lines:" + str(tmp_path / "l.txt"),
                "-o",
                "x.tar",
                "--encoding",
                "ascii",
            ),
            (2, "--text works only for a table", tmp_path, "-o", "x.tar", "--text", "a"),
        ):
            ran = run("create", *words)
            assert (ran.code, said in ran.err) == (code, True), ran.err

    def test_parquet_has_none(self, run: Command, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet is read with pyarrow")
        import pyarrow

        parquet.write_table(pyarrow.table({"id": ["a"]}), tmp_path / "t.parquet")
        words = ["--from", tmp_path / "t.parquet", "--key-column", "id", "--column", "txt=id"]
        ran = run("create", *words, "--encoding", "latin-1", "-o", tmp_path / "x.tar")
        assert (ran.code, "--encoding does not apply" in ran.err) == (2, True), ran.err


class TestLargeCells:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("t.csv", "id,t\na,b\nb,{}\n"),
            ("t.csv", 'id,t\na,b\nb,"x\n{}"\n'),
            ("t.csv", 'id,t\na,b\nb,"{}"\n'),
            ("t.tsv", "id\tt\na\tb\nb\t{}\n"),
            ("t.jsonl", '{{"id": "a", "t": "b"}}\n{{"id": "b", "t": "{}"}}\n'),
        ],
    )
    def test_are_errors(
        self,
        run: Command,
        good: Command,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        content: str,
    ) -> None:
        words = ["--key-column", "id", "--column", "txt=t", "--force", "-o", tmp_path / "x.tar"]
        write_shards(tmp_path / "set", [[[("a.cls", b"1")]]])
        for payload in ("y" * 3000, "é" * 1500 if "jsonl" not in name else "y" * 2500, "y" * 9000):
            (tmp_path / name).write_text(content.format(payload))
            for command in (["create", "--from"], ["merge", tmp_path / "set", "--table"]):
                monkeypatch.setenv("WDSCLI_MAX_DECODED", "2000")
                ran = run(*command, tmp_path / name, *words)
                assert (ran.code, "a cell is longer than 2000 bytes" in ran.err) == (3, True), ran.err
                assert "WDSCLI_MAX_DECODED=SIZE" in ran.err
                assert "2" in ran.err.partition(":")[2]
                monkeypatch.setenv("WDSCLI_MAX_DECODED", "10kB")
                good(*command, tmp_path / name, *words)

    def test_lines(self, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "l.txt").write_text("x\n" + "y" * 3000 + "\n" + "z" * 2000)
        words = [
            "create",
            "--from",
            "lines:" + str(tmp_path / "l.txt"),
            "-o",
            tmp_path / "x.tar",
        ]
        monkeypatch.setenv("WDSCLI_MAX_DECODED", "2999")
        ran = run(*words)
        assert (ran.code, "l.txt, line 2: it is longer than 2999 bytes" in ran.err) == (3, True), ran.err
        monkeypatch.setenv("WDSCLI_MAX_DECODED", "3000")
        assert run(*words).code == 0

    @pytest.mark.exhaustive
    def test_memory_does_not_grow_with_a_line(self, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "t.csv.gz", "wb", compresslevel=1) as file:
            file.write(b"id,t\na,")
            for _ in range(200):
                file.write(b"x" * 1_000_000)
        program = "import re, sys; from wdscli.cli.main import main; code = main(sys.argv[1:]); "
        program += "print(code, open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
        words = ["create", "--from", tmp_path / "t.csv.gz", "--key-column", "id", "--column", "txt=t"]
        words += ["-o", tmp_path / "x.tar"]
        environ = {**os.environ, "WDSCLI_MAX_DECODED": "1MB"}
        out = subprocess.check_output(
            [sys.executable, "-c", program, *map(str, words)], text=True, env=environ
        )
        code, peak = map(int, out.split())
        assert (code, peak < 150_000) == (3, True), peak
