"""Sets as tables: what ls and index write for DuckDB, pandas and spreadsheets, and keys that come back from there."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran, wds_here, write_shards

from wdscli.look import table as table_module
from wdscli.shards import tables
from wdscli.shards.tables import Rows, Spool, TableColumn, encoded

parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet is written with pyarrow")

CAPTIONS = ["plain", 'a "quoted", one', "two\nlines\r\n", "", "é\ttab"]


def document(number: int) -> bytes:
    """JSON with a value of each kind."""
    values: dict[str, Any] = {
        "width": number * 100,
        "score": number / 3,
        "ratio": number if number % 2 else number + 0.5,
        "ok": number > 2,
        "caption": CAPTIONS[number],
        "tags": [number, {"é": None}],
        "large": 2**63 + number,
        "larger": 2**64 + number,
        "mixed": number if number % 2 else "text",
        "nothing": None,
        "key": f"own{number}",
    }
    if number == 4:
        values["late"] = "here"
    return json.dumps(values).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five samples in two shards; the last has a txt."""
    samples = [
        [(f"n/{n}.jpg", b"\xff\xd8" + bytes(n)), (f"n/{n}.json", document(n)), (f"n/{n}.cls", b"%d\n" % n)]
        for n in range(5)
    ]
    samples[4].append(("n/4.txt", b"caption"))
    write_shards(tmp_path / "set", [samples[:3], samples[3:]])
    return tmp_path


def good(*args: object) -> Ran:
    done = wds_here(*args)
    assert done.code == 0, done.err
    return done


def bad(*args: object, code: int = 2) -> str:
    done = wds_here(*args)
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    return done.err


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def types_of(path: Path) -> dict[str, str]:
    return {field.name: str(field.type) for field in parquet.read_schema(path)}


class TestLs:
    def test_where_samples_are_as_csv(self, folder: Path) -> None:
        out = good("ls", "--to", "csv", folder / "set").out.decode()
        rows = list(csv.DictReader(out.splitlines()))
        listed = good("ls", "--json", "-l", folder / "set").objects
        assert list(rows[0]) == [
            *("key", "shard", "index", "offset", "bytes"),
            *("size.jpg", "size.json", "size.cls", "size.txt"),
        ]
        for row, sample in zip(rows, listed, strict=True):
            for name in ("key", "shard", "index", "offset", "bytes"):
                assert row[name] == str(sample[name])
            sizes = {name[5:]: int(size) for name, size in row.items() if name.startswith("size.") and size}
            assert sizes == dict(zip(sample["fields"], sample["sizes"], strict=True))

    def test_where_samples_are_as_parquet(self, folder: Path) -> None:
        good("ls", "--to", folder / "t.parquet", folder / "set")
        rows = rows_of(folder / "t.parquet")
        assert [row["key"] for row in rows] == [f"n/{n}" for n in range(5)]
        assert [row["size.jpg"] for row in rows] == [2, 3, 4, 5, 6]
        assert [row["size.txt"] for row in rows] == [None] * 4 + [7]
        assert set(types_of(folder / "t.parquet").values()) == {"string", "int64"}

    def test_values_of_fields_keep_their_types(self, folder: Path) -> None:
        good("ls", "--to", folder / "t.parquet", "--column", "json,cls", "--column", "txt", folder / "set")
        types = types_of(folder / "t.parquet")
        assert list(types)[9:] == [
            *("width", "score", "ratio", "ok", "caption", "tags", "large", "larger", "mixed"),
            *("nothing", "json.key", "late", "cls", "txt"),
        ]
        assert {name: types[name] for name in list(types)[9:]} == {
            "width": "int64", "score": "double", "ratio": "double", "ok": "bool", "caption": "string",
            "tags": "string", "large": "uint64", "larger": "string", "mixed": "string", "nothing": "string",
            "json.key": "string", "late": "string", "cls": "int64", "txt": "string",
        }  # fmt: skip
        for number, row in enumerate(rows_of(folder / "t.parquet")):
            values = json.loads(document(number))
            for name in ("width", "score", "ratio", "ok", "caption", "large", "nothing"):
                assert row[name] == values[name]
            for name in ("tags", "larger", "mixed"):
                assert json.loads(row[name]) == values[name]
            assert row["key"] == f"n/{number}"
            assert row["json.key"] == f"own{number}"
            assert row["cls"] == number
            assert (row["late"], row["txt"]) == (("here", "caption") if number == 4 else (None, None))

    def test_values_as_csv(self, folder: Path) -> None:
        good("ls", "--to", folder / "t.csv", "--column", "json", folder / "set")
        with (folder / "t.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
        assert [row["caption"] for row in rows] == CAPTIONS
        assert [row["score"] for row in rows] == [repr(n / 3) for n in range(5)]
        assert [row["ok"] for row in rows] == ["false"] * 3 + ["true"] * 2
        assert [row["mixed"] for row in rows] == ["text", "1", "text", "3", "text"]
        assert [json.loads(row["tags"])[0] for row in rows] == list(range(5))
        assert b',"",' in (folder / "t.csv").read_bytes(), "an empty text is none that is missing"

    def test_the_selection_and_streams(self, folder: Path) -> None:
        options = ["--column", "data,label.cls", "--rename", "data=json", "--rename", "label.cls=cls"]
        options = [option.replace("data", "data.json") for option in options]
        shards = f"pipe:cat {folder}/set/in-0.tar"
        out = [
            good("ls", "--to", "csv", "--where", "json.width > 50", *options, one).out
            for one in (shards, folder / "set/in-0.tar")
        ]
        assert out[0].replace(shards.encode(), str(folder / "set/in-0.tar").encode()) == out[1]
        rows = list(csv.DictReader(out[1].decode().splitlines()))
        assert [(row["key"], row["width"], row["label.cls"]) for row in rows if row["width"]] == [
            ("n/1", "100", "1"),
            ("n/2", "200", "2"),
        ]

    def test_many_chunks_and_row_groups(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = good("ls", "--to", "csv", "--column", "json", folder / "set").out
        monkeypatch.setattr(tables, "CHUNK_CELLS", 7)
        monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 2)
        assert good("ls", "--to", "csv", "--column", "json", folder / "set").out == whole
        good("ls", "--to", folder / "t.parquet", "--column", "json", folder / "set")
        assert parquet.ParquetFile(folder / "t.parquet").num_row_groups > 1
        assert [row["late"] for row in rows_of(folder / "t.parquet")] == [None] * 4 + ["here"]

    def test_the_same_bytes_each_time(self, folder: Path) -> None:
        for name in ("a", "b"):
            good("ls", "--to", f"parquet:{folder}/{name}", "--column", "json", folder / "set")
        assert (folder / "a").read_bytes() == (folder / "b").read_bytes()

    def test_an_output_is_replaced_only_when_asked(self, folder: Path) -> None:
        (folder / "t.csv").write_text("mine")
        assert "--force" in bad("ls", "--to", folder / "t.csv", folder / "set", code=4)
        assert (folder / "t.csv").read_text() == "mine"
        good("ls", "--to", folder / "t.csv", "--force", folder / "set")
        assert (folder / "t.csv").read_text().startswith("key,")

    def test_no_half_table(self, folder: Path) -> None:
        write_shards(folder / "hurt", [[[("a.json", b"{}")], [("b.json", b"{")]]])
        said = bad("ls", "--to", folder / "t.csv", "--column", "json", folder / "hurt", code=3)
        assert "b.json" in said
        assert "json cannot be decoded" in said
        assert not (folder / "t.csv").exists()
        done = good("ls", "-v", "--to", "csv", "--column", "json", "--on-error", "skip", folder / "hurt")
        assert len(done.out.splitlines()) == 2
        assert "1 undecodable" in done.err

    def test_to_a_store(self, folder: Path) -> None:
        import fsspec

        good("ls", "--to", "memory://tables/t.parquet", folder / "set")
        memory = fsspec.filesystem("memory")
        try:
            good("ls", "--to", folder / "t.parquet", folder / "set")
            assert memory.cat("/tables/t.parquet") == (folder / "t.parquet").read_bytes()
            bad("ls", "--to", "memory://tables/t.parquet", folder / "set", code=4)
            keys = ["--keys-from", "memory://tables/t.parquet", "--limit", "1"]
            assert good("ls", *keys, folder / "set").out.startswith(b"n/0\t")
        finally:
            memory.rm("/tables", recursive=True)

    def test_far_away_shards_by_their_index(self, folder: Path) -> None:
        import fsspec

        good("index", folder / "set")
        memory = fsspec.filesystem("memory")
        memory.put(f"{folder}/set/", "/tables/set", recursive=True)
        try:
            out = good("ls", "--to", "csv", "--column", "json,cls", "memory://tables/set/").out
        finally:
            memory.rm("/tables", recursive=True)
        here = good("ls", "--to", "csv", "--column", "json,cls", folder / "set").out
        assert out.replace(b"memory://tables/set", str(folder / "set").encode()) == here

    @pytest.mark.parametrize("options", [["--to", "csv", "--column", "json"], ["--where", "json.width >= 0"]])
    def test_payloads_far_away_come_by_few_requests(self, folder: Path, options: list[str]) -> None:
        from storage_servers import web_server

        samples = [[(f"n/{n}.jpg", bytes(9000)), (f"n/{n}.json", document(n % 5))] for n in range(60)]
        write_shards(folder / "set", [samples])
        good("index", folder / "set")
        with web_server("ranges") as server:
            for name in ("in-0.tar", ".wds/in-0.tar.wdx"):
                server.files[name] = (folder / "set" / name).read_bytes()
            out = good("ls", *options, server.url("in-0.tar")).out
        assert len(out.splitlines()) >= 60
        assert len(server.ranges) < 12

    def test_a_summary_as_json(self, folder: Path) -> None:
        (told,) = good("ls", "--json", "--to", folder / "t.parquet", folder / "set").objects
        size = (folder / "t.parquet").stat().st_size
        assert told == {"file": f"{folder}/t.parquet", "samples": 5, "columns": 9, "bytes": size}

    def test_a_set_without_samples(self, folder: Path) -> None:
        write_shards(folder / "empty", [[]])
        assert good("ls", "--to", "csv", folder / "empty").out == b"key,shard,index,offset,bytes\n"
        good("ls", "--to", folder / "t.parquet", folder / "empty")
        assert types_of(folder / "t.parquet")["index"] == "int64"

    def test_names_and_text_that_are_not_utf8(self, folder: Path) -> None:
        write_shards(
            folder / "odd",
            [[[("k\udcff.txt", b"\xff,"), ("k\udcff.f\udcff", b"")], [("l.txt", b"fine")]]],
        )
        done = good("ls", "--to", "csv", "--column", "txt", folder / "odd")
        assert done.out.splitlines()[1].startswith(b"k\xff,")
        assert done.out.splitlines()[1].endswith(b',"\xff,"')
        assert "warning: text that is not UTF-8" in done.err
        good("ls", "--to", folder / "t.parquet", "--column", "txt", folder / "odd")
        assert [(row["key"], row["txt"]) for row in rows_of(folder / "t.parquet")] == [
            (b"k\xff", b"\xff,"),
            (b"l", b"fine"),
        ]
        assert good("ls", "--keys-from", folder / "t.parquet", folder / "odd").out.count(b"\n") == 2

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--column", "json"], "--column needs --to"),
            (["--force"], "--force needs --to"),
            (["--to", "csv", "--to", "parquet:x"], "given twice"),
            (["--to", "csv", "--by", "member"], "row per sample"),
            (["--to", "csv", "--json"], "standard output"),
            (["--to", "csv", "--column", "jpg"], "cat --to FILE.parquet"),
            (["--to", "csv", "--column", "json,,txt"], "--column cannot be read"),
            (["--to", "t.csv.gz"], "leave out .gz"),
        ],
    )
    def test_options_that_do_not_go_together(self, folder: Path, options: list[str], said: str) -> None:
        assert said in bad("ls", *options, folder / "set")

    def test_a_field_that_is_nowhere(self, folder: Path) -> None:
        done = good("ls", "--to", "csv", "--column", "jsn.json", folder / "set")
        assert "no sample has jsn.json for --column" in done.err

    def test_too_many_columns(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "MAX_COLUMNS", 8)
        assert "more than 8 columns" in bad("ls", "--to", "csv", folder / "set", code=3)


class TestColumns:
    @pytest.mark.parametrize(
        ("cells", "kind", "in_table"),
        [
            ([1, None, -(2**63)], "int64", [1, None, -(2**63)]),
            ([2**64 - 1, 0], "uint64", [2**64 - 1, 0]),
            ([2**64, 0], "json", [str(2**64), "0"]),
            ([-1, 2**63], "json", ["-1", str(2**63)]),
            ([1, 0.5], "double", [1.0, 0.5]),
            ([2**53 + 1, 0.5], "json", [str(2**53 + 1), "0.5"]),
            ([True, 1], "json", ["true", "1"]),
            (["a", 1], "json", ['"a"', "1"]),
            (["a", ("[1]",)], "json", ['"a"', "[1]"]),
            (["\ud800", "a"], "json", ['"\\ud800"', '"a"']),
            (["a", b"\xff"], "binary", [b"a", b"\xff"]),
            ([None, None], "string", [None, None]),
        ],
    )
    def test_the_type_that_all_cells_have(self, cells: list[Any], kind: str, in_table: list[Any]) -> None:
        column, rows, spool = TableColumn(0, "x"), Rows(), Spool({})
        for cell in cells:
            rows.add([(column, cell)])
        spool.put(rows.take())
        schema = spool.schema()
        assert schema == {column: kind}
        import pyarrow

        data = b"".join(encoded("parquet", schema, spool.chunks()))
        assert parquet.read_table(pyarrow.BufferReader(data)).column("x").to_pylist() == in_table


class TestIndex:
    def test_the_index_as_a_table(self, folder: Path) -> None:
        done = good("index", "--for", "parquet", folder / "set")
        assert "1 file made" in done.err
        rows = rows_of(folder / "set/in-index.parquet")
        assert [(row["key"], row["shard"], row["index"]) for row in rows][2:4] == [
            ("n/2", "in-0.tar", 2),
            ("n/3", "in-1.tar", 0),
        ]
        for number, row in enumerate(rows):
            shard = (folder / "set" / row["shard"]).read_bytes()
            assert shard[row["offset.json"] :][: row["size.json"]] == document(number)
            assert shard[row["offset"] :].startswith(f"n/{number}.jpg".encode())
            assert row["length"] % 512 == 0
        assert [row["size.txt"] for row in rows] == [None] * 4 + [7]
        assert "0 files made, 1 kept" in good("index", "--for", "parquet", folder / "set").err
        assert good("ls", folder / "set/*").out.count(b"\n") == 5, "a glob of the folder has shards only"


class TestKeysFrom:
    def test_a_query_of_the_table(self, folder: Path) -> None:
        duckdb = pytest.importorskip("duckdb", reason="queries are DuckDB's here")
        good("ls", "--to", folder / "t.parquet", "--column", "json", folder / "set")
        for name in ("k.csv", "k.parquet", "k.jsonl"):
            kind = "json" if name.endswith("jsonl") else name[2:]
            duckdb.sql(
                f"COPY (SELECT key, width FROM '{folder}/t.parquet' WHERE width > 200 AND ok) "
                f"TO '{folder}/{name}' (FORMAT {kind})"
            )
            found = good("ls", "--keys-from", folder / name, folder / "set").out
            assert [line.split(b"\t")[0] for line in found.splitlines()] == [b"n/3", b"n/4"]

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("k.csv", b"width,key\n1,n/1\n,\n2,n/2\n"),
            ("k.csv", b'\xef\xbb\xbfkey\r\n"n/1"\r\nn/2\r\n'),
            ("k.tsv", b"key\twidth\nn/1\t7\nn/2\t\n"),
            ("k.jsonl", b'{"key": "n/1"}\n{"other": 1}\n{"key":"n/2"}\n'),
            ("k.csv", b"n/1\nn/2\n"),
            ("k.jsonl", b"n/1\nn/2\n"),
        ],
    )
    def test_tables_and_lists(self, folder: Path, name: str, data: bytes) -> None:
        (folder / name).write_bytes(data)
        done = good("ls", "--keys-from", folder / name, folder / "set")
        assert [line.split(b"\t")[0] for line in done.out.splitlines()] == [b"n/1", b"n/2"]
        assert done.err == ""
        assert good("ls", "--not-keys-from", folder / name, folder / "set").out.count(b"\n") == 3

    def test_parquet_through_standard_input(self, folder: Path) -> None:
        from shard_cases import wds

        good("ls", "--to", folder / "t.parquet", "--keys", "n/3", folder / "set")
        done = wds("ls", "--keys-from", "-", folder / "set", stdin=(folder / "t.parquet").read_bytes())
        assert done.out.startswith(b"n/3\t"), done.err

    def test_tables_that_are_none(self, folder: Path) -> None:
        import pyarrow

        parquet.write_table(pyarrow.table({"id": [1]}), folder / "k.parquet")
        assert 'no column "key"' in bad("ls", "--keys-from", folder / "k.parquet", folder / "set", code=4)
        (folder / "k.parquet").write_bytes(b"PAR1 broken")
        bad("ls", "--keys-from", folder / "k.parquet", folder / "set", code=4)
        for name, data in (("k.jsonl", b'{"key": 1}\n{'), ("k.csv", b'key\n"a" b\n')):
            (folder / name).write_bytes(data)
            assert "as a table" in bad("ls", "--keys-from", folder / name, folder / "set", code=4)


class TestCat:
    def test_payloads_as_parquet(self, folder: Path) -> None:
        done = good("cat", "--to", folder / "t.parquet", folder / "set")
        assert "wrote 5 samples" in done.err
        assert types_of(folder / "t.parquet") == {
            "key": "string",
            "jpg": "binary",
            "json": "string",
            "cls": "string",
            "txt": "string",
        }
        for number, row in enumerate(rows_of(folder / "t.parquet")):
            assert row["jpg"] == b"\xff\xd8" + bytes(number)
            assert row["json"].encode() == document(number)
            assert (row["key"], row["cls"]) == (f"n/{number}", f"{number}\n")
            assert row["txt"] == ("caption" if number == 4 else None)

    def test_streams_and_files_alike(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "CHUNK_CELLS", 4)
        shards = [f"{folder}/set/in-0.tar", f"{folder}/set/in-1.tar"]
        good("cat", "--to", f"parquet:{folder / 'a'}", "--limit", 4, "--rename", "x.bin=jpg", *shards)
        streams = [f"pipe:cat {shard}" for shard in shards]
        good("cat", "--to", f"parquet:{folder / 'b'}", "--limit", 4, "--rename", "x.bin=jpg", *streams)
        assert rows_of(folder / "a") == rows_of(folder / "b")
        assert types_of(folder / "a") == types_of(folder / "b")
        assert [len(row["x.bin"]) for row in rows_of(folder / "a")] == [2, 3, 4, 5]

    def test_text_comes_back_from_tsv(self, folder: Path) -> None:
        texts = ["plain", 'a "quoted"\tTAB', "two\nlines\r", "\\n, \\", '"', " é "]
        write_shards(folder / "texts", [[[(f"k{n}.txt", text.encode())] for n, text in enumerate(texts)]])
        good("cat", "--to", folder / "t.tsv", folder / "texts")
        with (folder / "t.tsv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, "excel-tab", strict=True))
        assert rows == [["key", "txt"], *([f"k{n}", text] for n, text in enumerate(texts))]
        table = ["--from", folder / "t.tsv", "--key-column", "key", "--column", "txt=txt"]
        good("create", *table, "-o", folder / "again.tar")
        assert (folder / "again.tar").read_bytes() == (folder / "texts/in-0.tar").read_bytes()

    def test_payloads_in_tsv(self, folder: Path) -> None:
        said = bad("cat", "--to", folder / "t.tsv", folder / "set")
        assert "--drop jpg" in said
        assert "--base64" in said
        assert not (folder / "t.tsv").exists()
        out = good("cat", "--to", "tsv", "--base64", "--fields", "jpg,txt", folder / "set").out
        assert out.splitlines()[0] == b"key\tjpg\ttxt"
        assert out.splitlines()[-1] == b"n/4\t/9gAAAAA\tcaption"
        assert good("cat", "--to", "tsv", "--fields", "cls", "--limit", 1, folder / "set").out == (
            b'key\tcls\nn/0\t"0\n"\n'
        )

    def test_text_that_is_not_utf8(self, folder: Path) -> None:
        write_shards(folder / "odd", [[[("a.txt", b"\xff")], [("k\udcff.txt", b"fine")]]])
        said = bad("cat", "--to", folder / "t.parquet", folder / "odd", code=3)
        assert "--rename txt.bin=txt" in said
        done = good("cat", "--to", folder / "t.parquet", "--on-error", "skip", folder / "odd")
        assert "undecodable 1" in done.err
        assert rows_of(folder / "t.parquet") == [{"key": b"k\xff", "txt": "fine"}]

    def test_a_sample_that_is_too_large(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WDSCLI_MAX_DECODED", "100")
        said = bad("cat", "--to", f"parquet:{folder / 't'}", folder / "set", code=3)
        assert "WDSCLI_MAX_DECODED" in said

    def test_shards_that_change_meanwhile(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = table_module.payload_schema

        def with_other_shards(*args: Any) -> Any:
            schema = real(*args)
            write_shards(folder / "set", [[[("n/0.new", b"")]]])
            return schema

        monkeypatch.setattr(table_module, "payload_schema", with_other_shards)
        assert "new field new" in bad("cat", "--to", f"parquet:{folder / 't'}", folder / "set", code=4)
        assert not (folder / "t").exists()

    def test_no_sample_no_table(self, folder: Path) -> None:
        bad("cat", "--to", f"parquet:{folder / 't'}", "--where", "index > 9", folder / "set", code=3)
        assert not (folder / "t").exists()

    @pytest.mark.parametrize(
        "options",
        [
            ["--to", "parquet:t", "-o", "x"],
            ["--to", "parquet:t", "--to", "tsv:u"],
            ["--to", "tsv:t", "--post", "true"],
            ["--to", "parquet:t", "--base64"],
            ["--to", "tsv:t", "-j", "2"],
            ["--to", "tsv:t.gz"],
            ["--to", "tsv", "--json"],
            ["--json"],
        ],
    )
    def test_options_that_do_not_go_together(self, folder: Path, options: list[str]) -> None:
        bad("cat", *options, folder / "set")

    def test_what_was_written_as_json(self, folder: Path) -> None:
        inputs, out = folder / "set", folder / "out"
        (told,) = good("cat", "--json", inputs, "-o", folder / "all.tar").objects
        assert told["bytes"] == (folder / "all.tar").stat().st_size
        assert {name: told[name] for name in ("operation", "samples", "members", "shards", "dropped")} == {
            "operation": "cat",
            "samples": 5,
            "members": 16,
            "shards": 1,
            "dropped": {},
        }
        (told,) = good("cat", "--json", inputs, "--to", f"{out}/", "--limit", 2).objects
        assert (told["output"], told["samples"], told["files"]) == (str(out), 2, 6)
        for options in (
            ["--to", "jsonl", "-o"],
            ["--to", "raw", "--fields", "cls", "-o"],
        ):
            (told,) = good("cat", "--json", inputs, *options, folder / options[1]).objects
            assert told["samples"] == 5
            assert told["bytes"] == (folder / options[1]).stat().st_size
        (told,) = good("cat", "--json", inputs, "--drop", "jpg", "--to", folder / "t.tsv").objects
        assert (told["samples"], told["bytes"]) == (5, (folder / "t.tsv").stat().st_size)

    def test_a_command_after_each_shard(self, folder: Path) -> None:
        good("cat", folder / "set", "-o", f"{folder}/all.tar", "--post", f"cp {{}} {folder}/copy")
        assert (folder / "copy").read_bytes() == (folder / "all.tar").read_bytes()
        good(
            "cat",
            folder / "set",
            "-o",
            f"{folder}/each/{{name}}.tar",
            "--post",
            f"echo {{}} >> {folder}/done",
        )
        assert (folder / "done").read_text().split() == [f"{folder}/each/in-{n}.tar" for n in range(2)]
        assert "--post needs" in bad("cat", folder / "set", "--post", "true")
        said = bad("cat", folder / "set", "-o", f"{folder}/more.tar", "--post", "exit 3; :", code=5)
        assert "status 3" in said
        assert not (folder / "more-manifest.json").exists()
