"""Tables as they come: delimiters, transcripts, lists of pictures; and ``EXT=FOLDER`` among the sources of create."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from shard_cases import members_of, wds, write_shards

COMMAND = ["create"]


def members(path: Path) -> dict[str, bytes]:
    return dict(members_of(path))


class TestDelimiters:
    @pytest.mark.parametrize("mark", [";", "|", "\t", ","])
    def test_the_same_set(self, good: Command, tmp_path: Path, mark: str) -> None:
        """All delimiters give the set that the JSON Lines of the same rows give."""
        rows = [{"key": "a", "text": f'x{mark}"y",z', "n": 1}, {"key": "b", "text": "", "n": 2}]
        lines = [mark.join(['"key"', "text", "n"])]
        lines += [
            mark.join([row["key"], '"' + row["text"].replace('"', '""') + '"', str(row["n"])]) for row in rows
        ]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        (tmp_path / "t.jsonl").write_text(
            "".join(json.dumps({**row, "text": row["text"] or None}) + "\n" for row in rows)
        )
        for suffix in ("csv", "jsonl"):
            words = [
                "--from",
                tmp_path / f"t.{suffix}",
                "--key-column",
                "key",
                "--column",
                "txt=text",
                "--json-rest",
                "-v",
            ]
            ran = good(*words, "-o", tmp_path / suffix / "o.tar")
            is_said = f"the header has no comma, so {mark!r} separates columns" in ran.err
            assert is_said == (suffix == "csv" and mark != ",")
        assert members(tmp_path / "csv" / "o.tar") == members(tmp_path / "jsonl" / "o.tar")

    def test_a_comma_in_the_header_stays_the_delimiter(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("key,tags(a;b;c)\nk,x;y\n")
        good(
            "--from",
            tmp_path / "t.csv",
            "--key-column",
            "key",
            "--column",
            "txt=tags(a;b;c)",
            "-o",
            tmp_path / "o.tar",
        )
        assert members(tmp_path / "o.tar") == {"k.txt": b"x;y"}

    def test_lists_of_keys(self, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[[("a.x", b"")], [("b.x", b"")]]])
        (tmp_path / "k.csv").write_text("n;key\n1;b\n")
        assert wds("ls", *names, "--keys-from", tmp_path / "k.csv").out.startswith(b"b\t")

    def test_join(self, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[[("a.x", b"")], [("b.x", b"")]]])
        (tmp_path / "k.csv").write_text("n;key\n1;b\n")
        words = [
            "--table",
            tmp_path / "k.csv",
            "--key-column",
            "key",
            "--column",
            "txt=n",
            "-o",
            tmp_path / "o.tar",
            "-v",
        ]
        ran = wds("merge", *names, *words)
        assert (ran.code, "so ';' separates columns" in ran.err) == (0, True)
        assert members(tmp_path / "o.tar")["b.txt"] == b"1"

    def test_rows_with_empty_texts(self, good: Command, tmp_path: Path) -> None:
        """A table that wds cat wrote, with another delimiter: an empty text is not an absent field."""
        names = write_shards(tmp_path / "in", [[[("a.txt", b"")], [("b.cls", b"1")]]])
        assert wds("cat", *names, "--to", "csv", "-o", tmp_path / "t.csv").code == 0
        (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace(",", "|"))
        good("--from", tmp_path / "t.csv", "-o", tmp_path / "o.tar")
        assert members(tmp_path / "o.tar") == {"a.txt": b"", "b.cls": b"1"}


class TestTranscripts:
    def test_rows(self, good: Command, tmp_path: Path) -> None:
        path = tmp_path / "84-121.trans.txt"
        path.write_text("84-121-0000 GO DO, YOU  HEAR\r\n\n84-121-0001\n84-121-0002\tEND\n")
        good("--from", path, "--key-column", "key", "--column", "txt=text", "-o", tmp_path / "o.tar")
        assert members(tmp_path / "o.tar") == {
            "84-121-0000.txt": b"GO DO, YOU  HEAR",
            "84-121-0002.txt": b"END",
        }

    def test_a_folder_of_them(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        for chapter in ("1", "2"):
            (tmp_path / "t" / f"{chapter}.trans.txt").write_text(f"k{chapter} text {chapter}\n")
        (tmp_path / "t" / "readme.txt").write_text("no table")
        good(
            "--from", tmp_path / "t", "--key-column", "key", "--column", "txt=text", "-o", tmp_path / "o.tar"
        )
        assert members(tmp_path / "o.tar") == {"k1.txt": b"text 1", "k2.txt": b"text 2"}


class TestListsOfPictures:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        media = [{"bytes": b"\xff\xd8\xff1", "path": "a.jpg"}, {"bytes": b"\xff\xd8\xff2", "path": None}]
        columns: dict[str, Any] = {
            "id": ["a", "b", "c"],
            "images": [media, None, []],
            "raw": [[b"\xff\xd8\xff3"], [b"\xff\xd8\xff4"], []],
        }
        write_table(pyarrow.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    def test_fields(self, good: Command, table: Path, tmp_path: Path) -> None:
        words = ["--column", "jpg=images", "--column", "raw.*=raw"]
        good("--from", table, "--key-column", "id", *words, "-o", tmp_path / "o.tar")
        assert members(tmp_path / "o.tar") == {
            "a.0.jpg": b"\xff\xd8\xff1",
            "a.0.raw.jpg": b"\xff\xd8\xff3",
            "a.1.jpg": b"\xff\xd8\xff2",
            "b.0.raw.jpg": b"\xff\xd8\xff4",
        }


class TestFoldersWithAField:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> tuple[Path, Path]:
        for name in ("img", "masks"):
            (tmp_path / name / "a").mkdir(parents=True)
            for number in range(3):
                (tmp_path / name / "a" / f"c{number}.png").write_text(f"{name}{number}")
        return tmp_path / "img", tmp_path / "masks"

    def test_side_by_side(self, good: Command, folders: tuple[Path, Path], tmp_path: Path) -> None:
        good(folders[0], f"mask.png={folders[1]}/", "-o", tmp_path / "o.tar")
        expected = {f"a/c{number}.png": f"img{number}".encode() for number in range(3)}
        expected |= {f"a/c{number}.mask.png": f"masks{number}".encode() for number in range(3)}
        assert members(tmp_path / "o.tar") == expected

    def test_other_extensions_are_counted(
        self, good: Command, folders: tuple[Path, Path], tmp_path: Path
    ) -> None:
        (folders[1] / "note.txt").write_text("x")
        (folders[1] / "b.jpeg").write_text("y")
        ran = good(folders[0], f"mask.png={folders[1]}", "-o", tmp_path / "o.tar")
        assert "other-extension 2" in ran.err
        good(f"m.jpg={folders[1]}", "-o", tmp_path / "j.tar")
        assert members(tmp_path / "j.tar") == {"b.m.jpg": b"y"}

    def test_globs_and_plain_python(self, good: Command, folders: tuple[Path, Path], tmp_path: Path) -> None:
        good(f"x.png={folders[1]}", "--include", "*1.png", "-o", tmp_path / "o.tar")
        assert members(tmp_path / "o.tar") == {"a/c1.x.png": b"masks1"}

    def test_a_path_with_an_equals_sign(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "a=b").mkdir()
        (tmp_path / "a=b" / "k.x").write_text("1")
        good(tmp_path / "a=b", "-o", tmp_path / "o.tar")
        assert members(tmp_path / "o.tar") == {"k.x": b"1"}

    def test_the_hint_leads_here(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        ran = wds("create", *folders, "-o", tmp_path / "o.tar")
        assert (ran.code, "wds create images mask.png=masks" in ran.err) == (3, True)

    @pytest.mark.parametrize("name", ["mask.png={}/a/c0.png", "mask.png={}/none"])
    def test_refused(self, folders: tuple[Path, Path], tmp_path: Path, name: str) -> None:
        assert wds("create", name.format(folders[1]), "-o", tmp_path / "o.tar").code in (2, 4)
        assert not (tmp_path / "o.tar").exists()
