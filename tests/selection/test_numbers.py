"""Values of samples: stored in indexes, looked up in tables, or read from payloads."""

import io
import json
import os
import shutil
import tarfile
import time
from pathlib import Path

import numpy
import pytest
from indexing import index
from shard_cases import wds

from wdscli.errors import DataError, InputError, UsageError
from wdscli.selection.values import MISSING, value_names
from wdscli.shards import ShardWriter
from wdscli.shards.proof import find_index, read_index
from wdscli.shards.reading import values_of
from wdscli.storage import open_source


def write(folder, documents, name="a-%03d.tar", **options):
    """A set of samples with these JSON documents (None for a sample without one) and a text."""
    with ShardWriter(str(folder / name), max_count=3, **options) as writer:
        for number, document in enumerate(documents):
            fields = {"txt": b"x" * number}
            if document is not None:
                fields["json"] = document if isinstance(document, bytes) else json.dumps(document).encode()
            writer.write(f"k{number}", fields)
    return sorted(str(path) for path in folder.glob("*.tar"))


def tokens(*numbers):
    return [None if one is None else {"tokens": one} for one in numbers]


def trusted(address):
    """The index that commands use."""
    with open_source(address) as source:
        return find_index(address, source)


def test_names_in_normal_form():
    assert value_names("json['tokens'] , len( txt )") == ("json.tokens", "len(txt)")
    assert value_names(["json.a", "json.a", "width('seg.png')"]) == ("json.a", "width(seg.png)")
    assert value_names("round(json.a, 2),height('2.png')") == ("round(json.a, 2)", "height('2.png')")
    assert value_names("lines( py ),len(a.py)+1") == ("lines(py)", "len(a.py) + 1")
    assert value_names(None) == ()


def test_texts_of_any_field_are_measured(tmp_path):
    texts = [b"a\nb", "äö\n".encode(), b"", b"\n\n", b"c\r\nd\r\n"]
    with tarfile.open(tmp_path / "t.tar", "w") as file:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.py")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text))
    values = "lines(py),len(py)"
    index([str(tmp_path / "t.tar")], values=values)
    assert values_of([str(tmp_path / "t.tar")], "lines(py)").tolist() == [2, 1, 0, 2, 2]
    assert values_of([str(tmp_path / "t.tar")], "len(py)").tolist() == [3, 3, 0, 2, 6]
    for stored in (True, False):
        if not stored:
            shutil.rmtree(tmp_path / ".wds")
        ran = wds("ls", tmp_path / "t.tar", "--where", "lines(py) == 2 and len(py) < 6", "--json")
        assert [json.loads(line)["key"] for line in ran.out.splitlines()] == ["0", "3"]


def test_bytes_that_are_no_text_have_no_lines(tmp_path):
    with tarfile.open(tmp_path / "t.tar", "w") as file:
        member = tarfile.TarInfo("a.py")
        member.size = 2
        file.addfile(member, io.BytesIO(b"\xff\xfe"))
    ran = wds("ls", tmp_path / "t.tar", "--where", "lines(py) > 0")
    assert ran.code == 3
    assert "py cannot be decoded: it is not UTF-8 at byte 0" in ran.err


@pytest.mark.parametrize(
    "text", ["", "key", "len(key)", "index + json.a", "sum(size)", "len(fields)", "1 + 1", "rand()"]
)
def test_names_that_are_no_values(text):
    with pytest.raises(UsageError, match="--values"):
        value_names(text)


@pytest.mark.parametrize(
    "text", ["json.a b", "json.a]", "foo(json)", "width()", "width(1)", "width(jpg, png)", "(" * 500]
)
def test_names_that_cannot_be_read(text):
    with pytest.raises(UsageError):
        value_names(text)


def test_index_stores_values(tmp_path):
    shards = write(tmp_path, tokens(5, None, 7, 8))
    report = index([str(tmp_path)], values="json.tokens,len(txt)")
    assert [file.reason for file in report.files[:2]] == ["it lacked values"] * 2
    assert values_of(shards, "json.tokens").tolist() == [5, MISSING, 7, 8]
    assert values_of(shards, "len( txt )").tolist() == [0, 1, 2, 3]
    again = index([str(tmp_path)], values="json.tokens")
    assert again.made == 0
    plain = index([str(tmp_path)])
    assert plain.made == 0
    assert read_index(shards[0]).index.values.keys() == {"json.tokens", "len(txt)"}


def test_more_values_keep_those_that_are_there(tmp_path):
    (shard,) = write(tmp_path, tokens(1, 2))
    index([shard], values="json.tokens")
    index([shard], values=["len(txt)"])
    assert {name: one.tolist() for name, one in trusted(shard).values.items()} == {
        "json.tokens": [1, 2],
        "len(txt)": [0, 1],
    }


def test_values_that_no_sample_has(tmp_path):
    (shard,) = write(tmp_path, tokens(1, 2))
    with pytest.raises(DataError, match=r"no sample has json[.]typo"):
        index([shard], values="json.typo,json.tokens")


def test_values_need_an_index(tmp_path):
    (shard,) = write(tmp_path, tokens(1))
    for options in ({"with_index": False}, {"dialects": ["wids"]}):
        with pytest.raises(UsageError, match="values"):
            index([shard], values="json.tokens", **options)


def test_a_changed_payload_makes_values_unbelievable(tmp_path):
    (shard,) = write(tmp_path, tokens(111, 222))
    index([shard], values="json.tokens")
    data = Path(shard).read_bytes()
    time.sleep(0.01)
    Path(shard).write_bytes(data.replace(b"222", b"999"))
    assert trusted(shard).values == {}  # the headers are equal, so the rest of the index is good
    said = []
    assert values_of([shard], "json.tokens", warn=said.append).tolist() == [111, 999]
    assert len(said) == 1
    assert "wds index --adopt" in said[0]
    assert index([shard], check=True, dry_run=True).files[0].reason == "its values were stale"
    assert index([shard], with_manifest=False).files[0].reason == "its values were stale"
    assert trusted(shard).values["json.tokens"].tolist() == [111, 999]


def test_a_changed_shard_keeps_the_names_of_its_values(tmp_path):
    (shard,) = write(tmp_path, tokens(1, 2))
    index([shard], values="json.tokens")
    os.rename(tmp_path / ".wds" / "a-000.tar.wdx", tmp_path / "kept.wdx")
    with ShardWriter(shard, force=True) as writer:
        writer.write("other", {"json": b'{"tokens": 40000}'})
    os.rename(tmp_path / "kept.wdx", tmp_path / ".wds" / "a-000.tar.wdx")
    assert trusted(shard) is None
    index([shard], with_manifest=False)
    assert trusted(shard).values["json.tokens"].tolist() == [40000]


def test_payloads_are_read_once_and_it_is_said(tmp_path):
    shards = write(tmp_path, tokens(5, 6, 7, 0.5, None))
    index([shards[0]], values="json.tokens", with_manifest=False)
    said = []
    found = values_of(shards, "json.tokens", warn=said.append)
    assert found.dtype == numpy.float64
    assert found[:4].tolist() == [5, 6, 7, 0.5]
    assert numpy.isnan(found[4])
    assert len(said) == 1


def test_damaged_payloads_are_missing_and_it_is_said(tmp_path):
    (shard,) = write(tmp_path, [{"tokens": 1}, b"{broken"])
    said = []
    assert values_of([shard], "json.tokens", warn=said.append).tolist() == [1, MISSING]
    assert len(said) == 2
    assert "k1.json" in said[1]
    index([shard], values="json.tokens")
    assert not trusted(shard).numbers["json.tokens"].exact


def test_only_numbers_with_their_type_are_exact(tmp_path):
    for number, (documents, exact) in enumerate(
        [
            (tokens(1, None, 3), True),
            (tokens(0.5, 2.0), True),
            (tokens(0.5, 2), False),
            (tokens(1, "2"), False),
            ([{"tokens": None}, {"tokens": 1}], False),
            (tokens(True, 1), False),
            (tokens(1 << 70, 1), False),
            ([b'{"tokens": 0.1000000000000000055511151231257827}', {"tokens": 0.5}], False),
            ([b'{"tokens": 1.50}', b'{"tokens": 1e3}'], True),
            ([b'{"tokens": NaN}', {"tokens": 1.5}], False),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (shard,) = write(folder, documents)
        index([shard], values="json.tokens")
        assert trusted(shard).numbers["json.tokens"].exact is exact, documents


def test_table_by_key(tmp_path):
    shards = write(tmp_path, tokens(1, 2, 3, 4))
    (tmp_path / "l.csv").write_text("key,n\nk0,10\nk1,\nk3,13\n")
    (tmp_path / "l.jsonl").write_text(
        '{"key": "k0", "json.tokens": 0.5, "x": 1}\n{"key": "k1", "x": 2, "json.tokens": 2}\n'
    )
    said = []
    assert values_of(shards, "json.tokens", table=str(tmp_path / "l.csv"), warn=said.append).tolist() == [
        10, MISSING, MISSING, 13,
    ]  # fmt: skip
    assert said == [f"2 of 4 samples have no row in {tmp_path}/l.csv"]
    found = values_of(shards, "json.tokens", table=str(tmp_path / "l.jsonl"))
    assert found[:2].tolist() == [0.5, 2.0]


def test_table_of_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    shards = write(tmp_path, tokens(1, 2))
    write_table(
        pyarrow.table({"json.tokens": [7, 8], "key": ["k1", "k0"], "x": [1, 2]}), tmp_path / "l.parquet"
    )
    assert values_of(shards, "json.tokens", table=str(tmp_path / "l.parquet")).tolist() == [8, 7]


BROKEN = {
    "text.csv": "key,n\nk0,many\n",
    "nokey.csv": "a,b\n1,2\n",
    "two.csv": "key,a,b\nk0,1,2\n",
    "list.txt": "k0\n",
    "list.jsonl": '{"key": "k0", "n": [1]}\n',
    "huge.csv": "key,n\nk0,99999999999999999999\n",
    "bad.parquet": "PAR1xxxx",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tables(tmp_path, name):
    if name == "bad.parquet":
        pytest.importorskip("pyarrow")
    shards = write(tmp_path, tokens(1))
    (tmp_path / name).write_text(BROKEN[name])
    with pytest.raises(InputError):
        values_of(shards, "json.tokens", table=str(tmp_path / name))
