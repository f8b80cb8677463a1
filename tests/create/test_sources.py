"""Tables and what is read like one: formats, types, paths into columns, files named by patterns, lines, JSON that takes
columns."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from shard_cases import samples_of
from storage_servers import web_server

from wdscli.cli.main import main
from wdscli.create.rows import read_rows, table_files

PNG, JPG, WAV = b"\x89PNG\r\n\x1a\n...", b"\xff\xd8\xff...", b"RIFF....WAVE..."
Create = Callable[..., dict[str, bytes]]


@pytest.fixture
def create(tmp_path: Path) -> Create:
    """Runs ``wds create``, which must end well; the members of the one shard, in order."""

    def run(*args: object) -> dict[str, bytes]:
        out = tmp_path / "out.tar"
        assert main(["create", *map(str, args), "-o", str(out), "--force"]) == 0
        with tarfile.open(out) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]

    return run


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: object) -> str:
    """What a command that must end with ``code`` says."""
    capsys.readouterr()
    assert main(["create", *map(str, args), "-o", "/nonexistent/o.tar"]) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said
    return said


# Files


def test_a_table_may_be_many_files(create: Create, tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"part-{number}.jsonl").write_text(json.dumps({"id": f"n{number}", "t": "x"}))
    (tmp_path / "notes.md").write_text("no table")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/part-3.csv.gz").write_bytes(gzip.compress(b"id,t\nn3,x\n"))
    options = ["--key-column", "id", "--column", "txt=t"]
    every = ["n1.txt", "n2.txt", "n10.txt"]
    for given in (tmp_path, f"{tmp_path}/part-*", f"{tmp_path}/part-{{1,2,10}}.jsonl", f"file://{tmp_path}"):
        assert list(create("--from", given, *options)) == every, given
    both = create("--from", f"{tmp_path}/**/*.csv.gz", "--from", tmp_path / "part-2.jsonl", *options)
    assert list(both) == ["n3.txt", "n2.txt"]


def test_tables_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    options = ["--key-column", "id", "--json-rest"]
    assert "no table in" in fails(capsys, 4, "--from", tmp_path / "empty", *options)
    assert "no table matches" in fails(capsys, 4, "--from", f"{tmp_path}/*.csv", *options)
    (tmp_path / "a.json").write_text('[{"id": 1}]')
    assert "jq -c '.[]'" in fails(capsys, 3, "--from", tmp_path / "a.json", *options)


def test_tables_of_a_web_server_and_a_store() -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    for name in ("t-1.csv", "t-2.csv", "x.txt"):
        store.pipe(f"/sources/{name}", b"id,n\n%b,1\n" % name.encode())
    both = ["memory://sources/t-1.csv", "memory://sources/t-2.csv"]
    assert table_files("memory://sources/t-*.csv", "--from") == both
    assert table_files("memory://sources", "--from") == both
    with web_server("ranges") as web:
        web.files = {"t.tsv": b"id\tn\na\t1\n"}
        assert [record.cells for record in read_rows(web.url("t.tsv"))] == [{"id": "a", "n": "1"}]
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        sink = io.BytesIO()
        parquet.write_table(pyarrow.table({"id": ["a"], "n": [1]}), sink)
        web.files["t.parquet"] = sink.getvalue()
        assert [record.cells for record in read_rows(web.url("t.parquet"), {"n"}, whole=False)] == [{"n": 1}]


# Types


def test_numbers_of_csv_stay_numbers_in_json(create: Create, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a,b,c,d,e,f\n007,0.5,007,-3e2,1e999,+1,9007199254740993\n")
    made = create("--from", tmp_path / "t.csv", "--key-column", "id", "--json-rest")
    assert made == {"007.json": b'{"a":0.5,"b":"007","c":"-3e2","d":"1e999","e":"+1","f":9007199254740993}'}


def arrow_table() -> Any:
    pa = pytest.importorskip("pyarrow")
    media = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table(
        {
            "id": ["a", "b"],
            "image": pa.array([{"bytes": PNG, "path": "x.png"}, {"bytes": JPG, "path": None}], media),
            "sound": pa.array([{"bytes": WAV, "path": None}, {"bytes": b"?", "path": "n/b.OPUS"}], media),
            "n": pa.array([1, None], pa.uint64()),
            "f": [0.1, float("nan")],
            "yes": [True, None],
            "price": pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(9, 2)),
            "at": pa.array([datetime(2020, 1, 2, 3, 4, 5), None]),
            "ns": pa.array([-1, 1_577_934_245_000_001_000], pa.timestamp("ns", "UTC")),
            "day": [date(2020, 1, 2)] * 2,
            "took": pa.array([timedelta(seconds=1.5), None]),
            "vector": pa.array([[1, 2], None], pa.list_(pa.float32(), 2)),
            "tokens": pa.array([[1, 2, 3], []], pa.list_(pa.int16())),
            "matrix": pa.array([[[1], [2]], [[3]]], pa.list_(pa.list_(pa.uint8()))),
            "meta": [{"label": 7, "deep": {"v": [1.0], "rest": "r"}}, {"label": 8, "deep": None}],
            "text": ['{"q": {"w": "in text"}}', None],
        }
    )


COLUMNS = (
    "*=image s.*=sound v.npy=vector t.npy=tokens m.npy=matrix cls=meta.label d.npy=meta.deep.v txt=text.q.w"
)
OF_ARROW = ["--key-column", "id", *(f"--column={column}" for column in COLUMNS.split()), "--json-rest"]


def test_arrow_in_all_its_files_with_its_types(create: Create, tmp_path: Path) -> None:
    table = arrow_table()
    numpy, pa = pytest.importorskip("numpy"), pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, str(tmp_path / "t.feather"), compression="zstd")
    with pa.OSFile(str(tmp_path / "nameless"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "t.arrow.gz").write_bytes(gzip.compress((tmp_path / "t.feather").read_bytes()))
    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress((tmp_path / "t.parquet").read_bytes()))
    made = create("--from", tmp_path / "t.parquet", *OF_ARROW)
    for name in ("t.feather", "nameless", "t.arrow.gz", "t.parquet.gz"):
        assert create("--from", tmp_path / name, *OF_ARROW) == made, name
    assert [name for name in made if not name.endswith((".npy", ".json"))] == [
        *("a.cls", "a.png", "a.s.wav", "a.txt"),
        *("b.cls", "b.jpg", "b.s.opus"),
    ]
    assert made["b.jpg"] == JPG
    assert made["a.txt"] == b"in text"
    assert json.loads(made["a.json"]) == {
        "n": 1,
        "f": 0.1,
        "yes": True,
        "price": 1.5,
        "at": "2020-01-02T03:04:05",
        "day": "2020-01-02",
        "ns": "1969-12-31T23:59:59.999999999+00:00",
        "took": 1.5,
        "meta": {"deep": {"rest": "r"}},
        "text": '{"q": {"w": "in text"}}',
    }
    assert made["b.json"] == (
        b'{"n":null,"f":null,"yes":null,"price":2,"at":null,"ns":"2020-01-02T03:04:05.000001+00:00",'
        b'"day":"2020-01-02","took":null,"meta":{"deep":null},"text":null}'
    )
    (tmp_path / "x").mkdir()
    shapes = {}
    for name, data in made.items():
        if name.endswith(".npy"):
            (tmp_path / "x" / name).write_bytes(data)
            array = numpy.load(tmp_path / "x" / name)
            shapes[name] = str(array.dtype), array.tolist()
    assert shapes == {
        "a.d.npy": ("float64", [1.0]),
        "a.m.npy": ("uint8", [[1], [2]]),
        "a.t.npy": ("int16", [1, 2, 3]),
        "a.v.npy": ("float32", [1.0, 2.0]),
        "b.m.npy": ("uint8", [[3]]),
        "b.t.npy": ("int16", []),
    }


def test_names_of_labels_in_a_schema(create: Create, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = {
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        "n": {"dtype": "int64", "_type": "Value"},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"id": ["a"], "label": [1], "n": [2]}).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "t.parquet")
    for column, classes in {"label": ["cat", "dog"], "n": None, "id": None}.items():
        field = "txt" if column == "id" else "cls"
        create("--from", tmp_path / "t.parquet", "--key-column", "id", "--column", f"{field}={column}")
        made = json.loads((tmp_path / "out-manifest.json").read_text())["wdscli"]
        assert made.get("classes") == classes


def test_a_column_of_class_names(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def classes() -> Any:
        return json.loads((tmp_path / "out-manifest.json").read_text())["wdscli"].get("classes")

    table = tmp_path / "t.csv"
    options = ["--from", table, "--key-column", "id", "--column", "cls=kind"]
    table.write_text("id,kind\na,dog\nb,\nc,cat\nd,dog\n")
    made = create(*options, "--column", "txt=id")
    numbers = {name: data for name, data in made.items() if name.endswith("cls")}
    assert numbers == {"a.cls": b"1", "c.cls": b"0", "d.cls": b"1"}
    assert classes() == ["cat", "dog"]
    table.write_text("id,kind\na,7\nb,8\n")
    assert create(*options) == {"a.cls": b"7", "b.cls": b"8"}
    assert classes() is None
    for rows, said in {
        "a,dog\nb,7\n": 'row 2 (line 3): column "kind" has class names, but also the number 7',
        "a,7\nb,dog\n": 'row 2 (line 3): column "kind" cannot be written as cls',
        "a,nan\n": 'row 1 (line 2): column "kind" cannot be written as cls',
    }.items():
        table.write_text("id,kind\n" + rows)
        assert said in fails(capsys, 3, *options)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "z.cls").write_text("3")
    table.write_text("id,kind\na,dog\n")
    assert 'sample "z" already has a field cls' in fails(capsys, 3, tmp_path / "in", *options)


def test_class_names_of_an_appended_table(tmp_path: Path) -> None:
    for name, rows in {"one": "a,dog\nb,cat\n", "two": "c,ant\nd,dog\n"}.items():
        (tmp_path / f"{name}.csv").write_text("id,kind\n" + rows)
        options = ["--from", tmp_path / f"{name}.csv", "--key-column", "id", "--column", "cls=kind"]
        words = [*options, "-o", tmp_path / "set/x-%d.tar", *["--append"] * (name == "two")]
        assert main(["create", *map(str, words)]) == 0
    manifest = json.loads((tmp_path / "set/x-manifest.json").read_text())
    assert manifest["wdscli"]["classes"] == ["cat", "dog", "ant"]
    found = [dict(fields)["cls"] for at in "01" for _, fields in samples_of(tmp_path / f"set/x-{at}.tar")]
    assert found == [b"1", b"0", b"2", b"1"]


def test_damaged_tables_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa = pytest.importorskip("pyarrow")
    whole = io.BytesIO()
    table = pa.table({"id": ["a", "b"], "t": ["one", "two"]})
    with pa.ipc.new_stream(whole, table.schema) as writer:
        writer.write_table(table)
    data = whole.getvalue()
    at = data.rindex(b"\0\0\0\0\x03\0\0\0\x06\0\0\0")
    damaged = {
        "cut.arrow": data[:-200],
        "far.arrow": data[: at + 8] + b"\xff\xff\xff\x7f" + data[at + 12 :],
        "name.arrow": data.replace(b"t\0\0\0", b"\xfd\0\0\0", 1),
        "no.parquet": b"PAR1" + bytes(50) + b"PAR1",
        "empty.arrow": b"",
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        said = fails(capsys, 4, "--from", tmp_path / name, "--key-column", "id", "--json-rest")
        assert f"cannot read {tmp_path / name}" in said


def test_pictures_that_a_struct_or_a_column_names(
    create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in {"p/1.JPG": JPG, "p/2.png": PNG}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    table = tmp_path / "t.jsonl"
    rows = [
        {"id": n, "at": {"path": f"{tmp_path}/p/{name}", "bytes": None}}
        for n, name in enumerate(["1.JPG", "2.png"])
    ]
    table.write_text("\n".join(map(json.dumps, rows)))
    expected = {"0.jpg": JPG, "1.png": PNG}
    assert create("--from", table, "--key-column", "id", "--column", "*=at") == expected
    assert create("--from", table, "--key-column", "id", "--column", "*=@at.path") == expected
    said = fails(capsys, 3, "--from", table, "--key-column", "id", "--json-rest")
    assert 'row 1 (line 1): column "at" has bytes' in said
    table.write_text('{"id": 1, "at": "words"}')
    assert "neither bytes nor paths" in fails(
        capsys, 3, "--from", table, "--key-column", "id", "--column", "*=at"
    )
    assert "have no known extension" in fails(
        capsys, 3, "--from", table, "--key-column", "id", "--column", "*=@at"
    )


@pytest.mark.parametrize(
    ("cell", "column", "code", "said"),
    [
        ('"plain"', "a.b", 3, 'column "a" holds no JSON object'),
        ("[1]", "a.b", 2, 'no column "a.b"'),
        ('{"x": 1}', "a.b", 2, 'no column "a.b"'),
    ],
)
def test_paths_that_lead_nowhere(
    cell: str, column: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text(f"""{{"id": 1, "a": {cell}}}""")
    assert said in fails(capsys, code, "--from", table, "--key-column", "id", "--column", f"txt={column}")


# Lines


def test_a_line_is_a_sample(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "l.txt").write_bytes(b"one\ntwo \xff\r\n\n fo\x0cur")
    assert create("--from", "lines:" + str(tmp_path / "l.txt")) == {
        "00000000.txt": b"one",
        "00000001.txt": b"two \xff",
        "00000003.txt": b" fo\x0cur",
    }
    assert "1 row left out: empty cell" in capsys.readouterr().err
    (tmp_path / "l.jsonl").write_text('{"id": "x", "n": 1}\n')
    made = create(
        "--from", "lines:" + str(tmp_path / "l.jsonl"), "--column", "json=line", "--rekey", "s/{index}"
    )
    assert made == {"s/0.json": b'{"id": "x", "n": 1}'}
    assert list(
        create("--from", "lines:" + str(tmp_path / "l.jsonl"), "--key-column", "line.id", "--json-rest")
    ) == ["x.json"]
    said = fails(capsys, 2, "--from", "lines:a", "--from", "b")
    assert "--from cannot mix sources of different kinds: table and lines" in said


# JSON that takes columns


def test_columns_go_into_the_json_that_is_there(
    create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in {"a.json": '{"w": 1,\n "score": 0}', "a.txt": "", "b.txt": "", "c.json": "[1]"}.items():
        (folder / name).write_text(text)
    (tmp_path / "list").write_text('d.json text:{"deep": {"x": 1}}\n')
    table = tmp_path / "t.csv"
    table.write_text("id,score,cap\na,0.5,hi\nb,,yo\nd,,\n")
    options = ["--from", table, "--key-column", "id", "--json-merge"]
    made = create(
        folder, "--from", "list:" + str(tmp_path / "list"), *options, "--exclude", "c.json", "--order", "path"
    )
    assert made == {
        "a.json": b'{"w":1,"score":0.5,"cap":"hi"}',
        "a.txt": b"",
        "b.json": b'{"cap":"yo"}',
        "b.txt": b"",
        "d.json": b'{"deep": {"x": 1}}',
    }
    table.write_text("id,n\nc,1\n")
    assert "row 1 (line 2): the field json is not a JSON object" in fails(capsys, 3, folder, *options)
    table.write_text("id,n\na,1\na,2\n")
    assert 'row 2 (line 3): repeated key "a"' in fails(capsys, 3, folder, *options)
    assert "--json-rest" in fails(capsys, 2, folder, *options, "--json-rest")


# COCO


def test_coco_annotations(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in {"val2017/1.JPG": JPG, "val2017/sub/2.png": PNG}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "annotations").mkdir()
    file = tmp_path / "annotations/instances_val2017.json"
    first, second = {"id": 1, "file_name": "1.JPG", "width": 3}, {"id": "x", "file_name": "sub/2.png"}
    found = [
        {"id": 7, "image_id": "x", "category_id": 3, "bbox": [0, 1.5]},
        {"id": 8, "image_id": 1, "category_id": 3},
        {"id": 9, "image_id": 1, "category_id": 4},
        {"id": 10, "image_id": "1"},
    ]
    whole = {
        "info": {"images": 1},
        "images": [first, second],
        "annotations": found,
        "categories": [{"id": 3, "name": "cät"}],
    }
    for indent in (None, 1):
        file.write_text(json.dumps(whole, indent=indent), "utf-8")
        made = create("--from", f"coco:{file}")
        assert list(made) == ["1.jpg", "1.json", "sub/2.json", "sub/2.png"]
        assert made["1.jpg"] == JPG
        seen = json.loads(made["1.json"])
        assert seen == {**first, "annotations": [{**found[1], "category": "cät"}, found[2]]}
        seen = json.loads(made["sub/2.json"])
        assert seen == {**second, "annotations": [{**found[0], "category": "cät"}]}
    moved = (tmp_path / "val2017").rename(tmp_path / "elsewhere")
    assert "--from images:FOLDER" in fails(capsys, 4, "--from", f"coco:{file}")
    assert create("--from", f"coco:{file}", "--from", f"images:{moved}") == made
    assert create(
        "--from", f"coco:{file}", "--from", f"images:{moved}", "--column", "png=@image", "--limit", "1"
    ) == {"1.png": JPG}
    assert "give --from images:FOLDER at most once" in fails(capsys, 2, moved, "--from", f"images:{moved}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"images": [1]}',
        '{"images": [{"id": 1}]}',
        '{"images": [{"file_name": "a"}',
        '{"images": {"a": 1',
        "\ufeffx",
    ],
)
def test_what_is_not_coco(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")
    assert "a.json" in fails(capsys, 3, "--from", "coco:" + str(tmp_path / "a.json"))


def test_coco_of_many_pieces(create: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdscli.create.coco._PIECE_CHARACTERS", 7)
    images = [{"id": 10**n, "file_name": f"{n}.jpg"} for n in range(20)]
    for one in images:
        (tmp_path / str(one["file_name"])).write_bytes(JPG)
    whole = {
        "version": 12345678901,
        "images": images,
        "annotations": [{"image_id": 100, "n": 1}],
        "end": 123456789,
    }
    (tmp_path / "a.json").write_text(json.dumps(whole))
    made = create("--from", "coco:" + str(tmp_path / "a.json"))
    assert len(made) == 40
    assert json.loads(made["2.json"])["annotations"] == [{"image_id": 100, "n": 1}]


def annotations(file: Path, images: list[dict[str, Any]], found: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    categories = [{"id": 1, "name": "cat"}] if "instances" in file.name else []
    file.write_text(json.dumps({"images": images, "annotations": found, "categories": categories}))
    return file


@pytest.fixture
def pictures(tmp_path: Path) -> list[dict[str, Any]]:
    """What COCO says of two pictures of val2017 that are there."""
    (tmp_path / "val2017").mkdir()
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (tmp_path / "val2017" / name).write_bytes(JPG)
    return [{"id": number, "file_name": f"{number}.jpg", "width": 5} for number in (1, 2)]


def test_coco_annotations_of_the_same_pictures_are_joined(
    create: Create, tmp_path: Path, pictures: list[dict[str, Any]]
) -> None:
    """As COCO has them: instances and captions of val2017, of which one has a picture more."""
    folder, third = tmp_path / "annotations", {"id": 3, "file_name": "3.jpg"}
    cat = {"id": 7, "image_id": 1, "category_id": 1}
    instances = annotations(folder / "instances_val2017.json", pictures, [cat])
    said = [{"id": 7, "image_id": 1, "caption": "a"}, {"id": 8, "image_id": 3, "caption": "b"}]
    more = [third, {**pictures[0], "flickr_url": "u"}]
    captions = annotations(folder / "captions_val2017.json", more, said)
    made = create("--from", f"coco:{instances}", "--from", f"coco:{captions}")
    assert list(made) == ["1.jpg", "1.json", "2.jpg", "2.json", "3.jpg", "3.json"]
    assert json.loads(made["1.json"]) == {
        **pictures[0],
        "flickr_url": "u",
        "instances": [{**cat, "category": "cat"}],
        "captions": said[:1],
    }
    assert json.loads(made["2.json"]) == {**pictures[1], "instances": [], "captions": []}
    assert json.loads(made["3.json"]) == {**third, "instances": [], "captions": said[1:]}
    assert json.loads(create("--from", f"coco:{captions}")["1.json"]) == {**more[1], "annotations": said[:1]}


def test_coco_annotations_of_other_pictures_follow(
    create: Create, tmp_path: Path, pictures: list[dict[str, Any]]
) -> None:
    """Two parts that number their pictures alike have nothing in common."""
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017/9.jpg").write_bytes(PNG)
    folder = tmp_path / "annotations"
    val = annotations(folder / "instances_val2017.json", pictures, [{"image_id": 1}])
    train = annotations(
        folder / "instances_train2017.json",
        [{"id": 1, "file_name": "9.jpg"}],
        [{"image_id": 1, "of": "train"}],
    )
    made = create("--from", f"coco:{val}", "--from", f"coco:{train}")
    assert list(made) == ["1.jpg", "1.json", "2.jpg", "2.json", "9.jpg", "9.json"]
    assert json.loads(made["1.json"])["annotations"] == [{"image_id": 1}]
    assert json.loads(made["9.json"])["annotations"] == [{"image_id": 1, "of": "train"}]


def test_coco_annotations_of_any_names_are_joined(
    create: Create, tmp_path: Path, pictures: list[dict[str, Any]]
) -> None:
    """Their lists are called what they are called; of one name they become one list."""
    names = ("a.json", "b_x.json", "more/b_x.json")
    files = [annotations(tmp_path / name, pictures, [{"image_id": 1, "of": name}]) for name in names]
    words = [word for file in files for word in ("--from", f"coco:{file}")]
    seen = json.loads(create(*words, "--from", f"images:{tmp_path}/val2017")["1.json"])
    assert seen["a"] == [{"image_id": 1, "of": "a.json"}]
    assert [one["of"] for one in seen["b_x"]] == ["b_x.json", "more/b_x.json"]


@pytest.mark.parametrize(
    ("name", "image", "says"),
    [
        ("captions_val2017.json", {"id": 4}, "1.jpg has id 1 in "),
        ("captions_val2017.json", {"width": 6}, "1.jpg has width 5 in "),
        ("width_val2017.json", {}, 'an image already has "width"'),
    ],
)
def test_coco_annotations_that_disagree(
    name: str,
    image: dict[str, Any],
    says: str,
    tmp_path: Path,
    pictures: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "annotations"
    one = annotations(folder / "instances_val2017.json", pictures, [])
    other = annotations(folder / name, [{**pictures[0], **image}], [])
    assert says in fails(capsys, 3, "--from", f"coco:{one}", "--from", f"coco:{other}")


# Hugging Face


def test_datasets_of_hugging_face(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "text": datasets.Value("string"),
            "vector": datasets.Sequence(datasets.Value("float32")),
            "grid": datasets.Array2D((1, 2), "uint8"),
            "score": datasets.Value("float64"),
        }
    )
    rows = {
        "image": [{"bytes": data, "path": None} for data in (PNG, JPG)],
        "label": [1, 0],
        "text": ["one", "two"],
        "vector": [[1.0, 2.5], [3.0]],
        "grid": [[[1, 2]], [[3, 4]]],
        "score": [0.5, None],
    }
    one = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": one.select([1, 0]), "test": one.select([0])}).save_to_disk(tmp_path / "d")
    made = create("--from", "hf:" + str(tmp_path / "d"))
    assert [name for name in made if name.endswith(("g", "txt"))] == [
        *("train/00000000.jpg", "train/00000000.txt", "train/00000001.png", "train/00000001.txt"),
        *("test/00000000.png", "test/00000000.txt"),
    ]
    assert made["train/00000000.jpg"] == JPG
    assert made["train/00000001.cls"] == b"1"
    assert made["train/00000001.json"] == b'{"score":0.5}'
    assert made["test/00000000.vector.npy"].endswith(b"\0\0\x80?\0\0 @")
    assert made["test/00000000.grid.npy"].endswith(b"\x01\x02")
    assert json.loads((tmp_path / "out-manifest.json").read_text())["wdscli"]["classes"] == [
        "cat",
        "dog",
    ]
    options = ["--column", "*=image", "--column", "id=label", "--rekey", "{text}"]
    assert create("--from", f"hf:{tmp_path}/d:test", *options) == {"one.id": b"1", "one.png": PNG}
    assert "it has train, test" in fails(capsys, 4, "--from", f"hf:{tmp_path}/d:dev")


def test_hugging_face_without_its_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'wdscli[hf]'" in fails(capsys, 2, "--from", f"hf:{tmp_path}")


# Formats over columns


def test_the_pets_of_a_table_as_it_stands(
    create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AIStore's post: images and masks beside a list of names; records that lack a file are left out."""
    monkeypatch.chdir(tmp_path)
    for name in ("images/a_1.jpg", "images/b_2.jpg", "masks/a_1.png", "masks/c_3.png"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(name.encode())
    Path("pets.csv").write_text("name,class\na_1,1\nb_2,2\nc_3,3\n")
    columns = ["image.jpg=@images/{name}.jpg", "cls=class", "mask.png=@masks/{name}.png"]
    options = ["--rekey", "sample_{index:04d}", *(f"--column={one}" for one in columns)]
    assert "row 2 (line 3): cannot read masks/b_2.png" in fails(capsys, 4, "--from", "pets.csv", *options)
    made = create("--from", "pets.csv", *options, "--missing", "skip", "--report", "lost.jsonl")
    assert made == {
        "sample_0000.cls": b"1",
        "sample_0000.image.jpg": b"images/a_1.jpg",
        "sample_0000.mask.png": b"masks/a_1.png",
    }
    lost = [json.loads(line) for line in Path("lost.jsonl").read_text().splitlines()]
    assert [(one["key"], one["field"], one["source"]) for one in lost] == [
        ("sample_0001", "mask.png", "masks/b_2.png"),
        ("sample_0002", "image.jpg", "images/c_3.jpg"),
    ]


def test_formats_over_columns(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text('{"path": "d/x.v1.png", "n": 3, "m": {"a": "z"}}\n{"path": "y", "n": 4, "m": null}\n')
    options = ["--from", table, "--rekey", "{path!k}-{n}"]
    made = create(*options, "--column", "txt={index}: {m.a} {n:03d} of {path!k}", "--json-rest")
    assert made == {"d/x-3.json": b"{}", "d/x-3.txt": b"0: z 003 of d/x", "y-4.json": b'{"m":null}'}
    assert '"{path:d}" cannot be filled in' in fails(capsys, 3, *options, "--column", "txt={path:d}")
    assert 'no column "no"' in fails(capsys, 2, *options, "--column", "txt={no}")
    assert "cannot use --column" in fails(capsys, 2, *options, "--column", "txt={n")
