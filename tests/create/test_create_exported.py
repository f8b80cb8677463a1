"""What ``wds cat`` wrote as Parquet, CSV, TSV and JSON Lines is read back by ``create --from`` with no option; and
its keys keep the type of their column."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shard_cases import samples_of, wds, write_shards
from tiers import examples

from wdscli.text import to_bytes, to_text

pyarrow = pytest.importorskip("pyarrow", reason="Parquet is written with pyarrow")

COMMAND: list[str] = []
FORMATS = {
    "t.parquet": ["--to"],
    "t.csv": ["--base64", "--to"],
    "t.tsv": ["--base64", "--to"],
    "t.jsonl": ["--base64", "--to", "jsonl", "-o"],
}
Sample = tuple[bytes, dict[bytes, bytes]]

names = st.lists(
    st.sampled_from(
        [b"a", b"Z", b"\t", b"\n", b"\r", b'"', b"'", b" ", b",", b"\\u005c", b"\\", b"\xff", b"\xc3\xa9"]
    ),
    min_size=1,
    max_size=4,
).map(b"".join)
keys = st.lists(names, min_size=1, max_size=3).map(b"/".join)
fields = st.one_of(
    st.sampled_from(
        [
            b"txt",
            b"cls",
            b"json",
            b"meta.json",
            b"jpg",
            b"bin",
            b"key",
            b"field.key",
            b"field.field.key",
            b"fields",
        ]
    ),
    names,
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).map(str.encode)
documents = st.one_of(
    st.sampled_from(
        [
            b"",
            b'{"base64":"QUJD"}',
            b'{"bytes": 3}',
            b"{\n}",
            b" [1]\t",
            b'{"a":1.10,"a":2}',
            b"NaN",
            b'"t"',
            b"null",
        ]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inside: (
            st.lists(inside, max_size=2) | st.dictionaries(st.text(max_size=3), inside, max_size=2)
        ),
        max_leaves=4,
    ).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")),
    texts,
)


@st.composite
def sets(draw: Any) -> list[Sample]:
    samples: dict[bytes, dict[bytes, bytes]] = {}
    for key in draw(st.lists(keys, min_size=1, max_size=4, unique=True)):
        samples[key] = {
            field: draw(
                documents
                if field.endswith(b"json")
                else texts
                if field in (b"txt", b"cls")
                else st.binary(max_size=6)
            )
            for field in draw(st.lists(fields, min_size=1, max_size=4, unique=True))
        }
    return list(samples.items())


def members_of(samples: list[Sample]) -> list[list[tuple[str, bytes]]]:
    return [[(to_text(key + b"." + name), held[name]) for name in sorted(held)] for key, held in samples]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMATS)
@example([(b"n/\xff", {b"jpg": b"", b"txt": b""}), (b"plain", {b"txt": b"a\tb\n", b"f\xff": b"x"})])
@example([(b"a", {b"key": b"1", b"field.key": b"2", b"json": b'{"b": 1.10}'}), (b"b", {b"json": b"{}\n"})])
@settings(max_examples=examples(40), deadline=None)
@given(sets())
def test_the_same_shards_come_back(name: str, samples: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        (shard,) = write_shards(folder / "set", [members_of(samples)])
        table = folder / name
        done = wds("cat", *FORMATS[name], table, shard)
        assert done.code == 0, done.err
        done = wds("create", "--from", table, "-o", folder / "again.tar")
        assert done.code == 0, done.err
        assert samples_of(folder / "again.tar") == samples_of(shard)
        assert (folder / "again.tar").read_bytes() == Path(shard).read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_fields_keep_their_order(good: Command, tmp_path: Path, name: str) -> None:
    """Also when the first samples lack a field that stands before theirs."""
    samples = [
        [("a.txt", b"1"), ("a.cls", b"0")],
        [("b.jpg", b"b"), ("b.txt", b"2"), ("b.cls", b"1")],
        [("c.npy", b"c"), ("c.cls", b"1"), ("c.bin", b"c")],
    ]
    (shard,) = write_shards(tmp_path / "set", [samples])
    good("cat", *FORMATS[name], tmp_path / name, shard)
    for source in (tmp_path / name, f"pipe:cat {tmp_path / name}"):
        good("create", "--from", source, "-o", tmp_path / "again.tar", "--force")
        assert (tmp_path / "again.tar").read_bytes() == Path(shard).read_bytes()
    good("cat", *FORMATS[name], tmp_path / f"s-{name}", f"pipe:cat {shard}")
    good("create", "--from", tmp_path / f"s-{name}", "-o", tmp_path / "again.tar", "--force")
    assert (tmp_path / "again.tar").read_bytes() == Path(shard).read_bytes()


def test_samples_that_disagree_on_the_order_of_fields(good: Command, tmp_path: Path) -> None:
    samples = [[("a.txt", b"1"), ("a.cls", b"0")], [("b.cls", b"1"), ("b.txt", b"2")]]
    (shard,) = write_shards(tmp_path / "set", [samples])
    good("cat", "--to", tmp_path / "t.csv", shard)
    assert (tmp_path / "t.csv").read_bytes() == b"key,txt,cls\na,1,0\nb,2,1\n"


def test_class_names_come_back_from_parquet(good: Command, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "1.txt").write_text(name)
    good("create", tmp_path / "in", "--label-from", "parent", "-o", tmp_path / "set.tar")
    good("cat", "--to", tmp_path / "t.parquet", tmp_path / "set-manifest.json")
    columns = ["--key-column", "key", "--column", "cls=cls"]
    for more in ([], columns):
        good("create", "--from", tmp_path / "t.parquet", *more, "-o", tmp_path / "again.tar", "--force")
        manifest = json.loads((tmp_path / "again-manifest.json").read_text())
        assert manifest["wdscli"]["classes"] == ["cat", "dog"]


def test_text_of_json_lines_that_is_not_utf8(good: Command, tmp_path: Path) -> None:
    (shard,) = write_shards(tmp_path / "set", [[[("a.json", b"\xff"), ("a.txt", b"\xff\n")]]])
    good("cat", "--base64", "--to", "jsonl", "-o", tmp_path / "t.jsonl", shard)
    good("create", "--from", tmp_path / "t.jsonl", "-o", tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == Path(shard).read_bytes()


def test_the_error_of_a_text_has_the_place_of_its_member(run: Command, tmp_path: Path) -> None:
    [shard] = write_shards(tmp_path / "in", [[[("k.cls", b"1"), ("k.txt", b"\xff")]]])
    ran = run("cat", shard, "--to", tmp_path / "t.parquet")
    assert f'text that is not UTF-8 in member "k.txt" in {shard} at byte 1024' in ran.err


@pytest.mark.parametrize("name", FORMATS)
def test_several_tables_and_streams(good: Command, tmp_path: Path, name: str) -> None:
    shards = write_shards(tmp_path / "set", [[[("a.txt", b"1")]], [[("b.jpg", b""), ("b.txt", b"2")]]])
    for number, shard in enumerate(shards):
        good("cat", *FORMATS[name], tmp_path / f"{number}-{name}", shard)
    good("create", "--from", f"{tmp_path}/?-{name}", "-o", tmp_path / "again.tar")
    good("cat", *shards, "-o", tmp_path / "all.tar")
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "all.tar").read_bytes()
    stream = f"pipe:cat {tmp_path}/1-{name}"
    good("create", "--from", stream, "-o", tmp_path / "one.tar")
    assert (tmp_path / "one.tar").read_bytes() == Path(shards[1]).read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("t.csv", b"id,txt\na,b\n", 2, "--key-column"),
        ("t.tsv", b"id\ttxt\na\tb\n", 2, "tables that wds cat wrote need neither"),
        ("t.tsv", b"key\tjpg\na\tno base 64\n", 3, "is not base 64"),
        ("t.tsv", b"key\tjpg\na\tQUJ=\n", 3, "is not base 64"),
        ("t.jsonl", b'{"key": "a", "txt": "b"}', 2, "--key-column"),
        ("t.jsonl", b'{"key": "a", "shard": "", "index": 0, "fields": []}', 3, "not a JSON object"),
        ("t.jsonl", b'{"key": "a", "shard": "", "index": 0, "fields": {"jpg": {"bytes": 3}}}', 3, "--base64"),
        ("t.jsonl", b'{"key": "a", "shard": "", "index": 0, "fields": {"txt": 3}}', 3, "3 is not text"),
        ("t.jsonl", b'{"key": 1.5, "shard": "", "index": 0, "fields": {"txt": ""}}', 3, "nor a whole number"),
    ],
)
def test_tables_of_other_makes(
    run: Command, tmp_path: Path, name: str, content: bytes, code: int, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    ran = run("create", "--from", tmp_path / name, "-o", tmp_path / "o.tar")
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "o.tar").exists()


def test_numbers_of_parquet_are_no_payloads(run: Command, tmp_path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"key": ["a"], "width": [640]}), tmp_path / "t.parquet")
    ran = run("create", "--from", tmp_path / "t.parquet", "-o", tmp_path / "o.tar")
    assert (ran.code, "int is neither text nor bytes" in ran.err) == (3, True), ran.err


class TestKeys:
    def test_of_bytes(self, good: Command, tmp_path: Path) -> None:
        from pyarrow import parquet

        table = pyarrow.table({"id": [b"plain", b"n/\xff"], "t": ["1", "2"], "p": [b"x", b"x"]})
        parquet.write_table(table, tmp_path / "t.parquet")
        (tmp_path / "x").write_bytes(b"file")
        columns = ["--column", "txt=t", "--column", f"bin=@{tmp_path}/{{p}}"]
        for key in (["--key-column", "id"], ["--rekey", "{id}"], ["--rekey", "{id!k}"]):
            good(
                "create",
                "--from",
                tmp_path / "t.parquet",
                *key,
                *columns,
                "-o",
                tmp_path / "o.tar",
                "--force",
            )
            expected = [
                (to_text(one), (("bin", b"file"), ("txt", two)))
                for one, two in ((b"plain", b"1"), (b"n/\xff", b"2"))
            ]
            assert samples_of(tmp_path / "o.tar") == expected
        good("merge", tmp_path / "o.tar", "--table", tmp_path / "t.parquet", "--key-column", "id", "--column", "bin=p",
             "-o", tmp_path / "p.tar")  # fmt: skip
        assert [dict(held)["bin"] for _, held in samples_of(tmp_path / "p.tar")] == [b"x", b"x"]

    @pytest.mark.parametrize(
        ("value", "option"),
        [
            *((value, "--key-column id") for value in (1.5, True, ["a"], {"a": 1})),
            *((value, "--rekey x{id}") for value in (["a"], {"a": 1})),
        ],
    )
    def test_that_are_none(self, run: Command, tmp_path: Path, value: object, option: str) -> None:
        (tmp_path / "t.jsonl").write_text(json.dumps({"id": value, "t": "x"}))
        words = ["create", "--from", tmp_path / "t.jsonl", *option.split(), "--column", "txt=t"]
        ran = run(*words, "-o", tmp_path / "o.tar")
        assert (ran.code, "row 1" in ran.err, '"id"' in ran.err) == (3, True, True), ran.err
        write_shards(tmp_path / "set", [[[("a.txt", b"")]]])
        words = [
            "--table",
            tmp_path / "t.jsonl",
            "--key-column",
            "id",
            "--column",
            "x=t",
            "-o",
            tmp_path / "p.tar",
        ]
        ran = run("merge", tmp_path / "set", *words)
        assert (ran.code, "row 1" in ran.err) == (3, True), ran.err
        (tmp_path / "keys.jsonl").write_text(json.dumps({"key": value}))
        ran = run("ls", tmp_path / "set", "--keys-from", tmp_path / "keys.jsonl")
        assert (ran.code, "neither text, bytes nor a whole number" in ran.err) == (4, True), ran.err


def test_names_of_columns_lead_back() -> None:
    from wdscli.shards.tables import column_of_field, field_of_column

    for field in (
        b"jpg",
        b"key",
        b"field.key",
        b"field.field.key",
        b"\xff",
        b"\\udcff",
        b"\\u005c",
        b"\\",
        b"\\\xff",
    ):
        assert field_of_column(column_of_field(field)) == field
        assert column_of_field(field) != "key"
        column_of_field(field).encode()
    assert to_bytes(column_of_field(b"a\xff")) == b"a\\udcff"
