"""Values of tables as payloads, by ``create --from`` and ``merge --table``."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from shard_cases import Ran, members_of, tar_of
from shard_cases import wds_here as wds

Write = Callable[..., Ran]


@pytest.fixture(params=["create", "merge"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    """A command that makes a set of one sample, ``a``, with fields of a table."""
    start = tmp_path / "start.tar"
    start.write_bytes(tar_of([("a.bin", b"...")]))

    def run(table: Path, *fields: str) -> Ran:
        words = [word for field in fields for word in ("--column", field)]
        out = ["-o", tmp_path / "out.tar", "--force"]
        if request.param == "create":
            return wds("create", "--from", table, "--key-column", "id", *words, *out)
        return wds("merge", start, "--table", table, "--key-column", "id", *words, *out)

    return run


def payload(folder: Path, field: str) -> bytes:
    return dict(members_of(folder / "out.tar"))[f"a.{field}"]


def jsonl(folder: Path, **columns: Any) -> Path:
    path = folder / "t.jsonl"
    path.write_text(json.dumps({"id": "a", **columns}) + "\n")
    return path


def csv(folder: Path, value: str) -> Path:
    import csv as module

    path = folder / "t.csv"
    with path.open("w", newline="") as file:
        module.writer(file).writerows([["id", "x"], ["a", value]])
    return path


def array(data: bytes) -> Any:
    return numpy.load(io.BytesIO(data), allow_pickle=False)


def picture(kind: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("RGB", (4, 3), (250, 10, 20)).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2, 3], numpy.array([1, 2, 3])),
        ([[0.5, 1], [2, 3]], numpy.array([[0.5, 1], [2, 3]])),
        ([True, False], numpy.array([True, False])),
        ([], numpy.array([])),
        (7, numpy.array(7)),
    ],
)
def test_npy_of_json_lines(write: Write, tmp_path: Path, value: Any, expected: Any) -> None:
    ran = write(jsonl(tmp_path, x=value), "emb.npy=x")
    assert ran.code == 0, ran.err
    found = array(payload(tmp_path, "emb.npy"))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert (found == expected).all()


def test_npy_of_csv(write: Write, tmp_path: Path) -> None:
    assert write(csv(tmp_path, "[0.25, 4]"), "npy=x").code == 0
    assert array(payload(tmp_path, "npy")).tolist() == [0.25, 4]


def test_npz_msgpack_and_gz(write: Write, tmp_path: Path) -> None:
    import gzip

    import msgpack

    table = jsonl(tmp_path, d={"a": [1, 2], "b": [[0.5]]}, o={"k": [1, "ü"]}, t="text")
    ran = write(table, "npz=d", "msgpack=o", "c.txt.gz=t", "o.json.gz=o")
    assert ran.code == 0, ran.err
    found = array(payload(tmp_path, "npz"))
    assert {name: found[name].tolist() for name in found.files} == {"a": [1, 2], "b": [[0.5]]}
    assert msgpack.unpackb(payload(tmp_path, "msgpack")) == {"k": [1, "ü"]}
    assert gzip.decompress(payload(tmp_path, "c.txt.gz")) == b"text"
    assert json.loads(gzip.decompress(payload(tmp_path, "o.json.gz"))) == {"k": [1, "ü"]}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "int32"])
@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_parquet_lists_keep_their_type(
    write: Write, tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    wanted = (numpy.arange(numpy.prod(shape)) * 3).astype(dtype).reshape(shape)
    kind = pyarrow.list_(pyarrow.from_numpy_dtype(numpy.dtype(dtype)))
    for _ in shape[1:]:
        kind = pyarrow.list_(kind)
    rows = pyarrow.table({"id": ["a"], "x": pyarrow.array([wanted.tolist()], kind)})
    write_table(rows, tmp_path / "t.parquet")
    assert write(tmp_path / "t.parquet", "x.npy=x", "json=x").code == 0
    found = array(payload(tmp_path, "x.npy"))
    assert found.dtype == wanted.dtype
    assert (found == wanted).all()
    assert json.loads(payload(tmp_path, "json")) == wanted.tolist()


def test_bytes_of_parquet_stand_as_they_are(write: Write, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    stream = io.BytesIO()
    numpy.save(stream, numpy.arange(3))
    png = picture("PNG")
    write_table(pyarrow.table({"id": ["a"], "n": [stream.getvalue()], "p": [png]}), tmp_path / "t.parquet")
    assert write(tmp_path / "t.parquet", "npy=n", "seg.png=p", "bin2=p").code == 0
    assert payload(tmp_path, "npy") == stream.getvalue()
    assert payload(tmp_path, "seg.png") == payload(tmp_path, "bin2") == png
    ran = write(tmp_path / "t.parquet", "jpg=p")
    assert ran.code == 3
    assert 't.parquet, row 1: column "p" cannot be written as jpg' in ran.err


def test_pixels_are_encoded(write: Write, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    assert write(jsonl(tmp_path, x=[[0, 255], [7, 9]]), "png=x").code == 0
    assert numpy.asarray(image.open(io.BytesIO(payload(tmp_path, "png")))).tolist() == [[0, 255], [7, 9]]


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        ("x", "txt", b"x"),
        (5, "txt", b"5"),
        (7, "cls", b"7"),
        (3.0, "cls", b"3"),
        ("12", "cls", b"12"),
        ("3.0", "cls", b"3"),
        ("1e3", "id", b"1000"),
        ("007", "index", b"007"),
        (12.0, "count", b"12"),
        (0.5, "count", b"0.5"),
        ("cat", "class", b"cat"),
        ('{"a": NaN}', "json", b'{"a":null}'),
        ('{"a": "NaN"}', "json", b'{"a": "NaN"}'),
        ("<svg/>", "svg", b"<svg/>"),
        ("P1 1 1 0", "pbm", b"P1 1 1 0"),
        ({"a": [1, "ü"]}, "json", '{"a":[1,"ü"]}'.encode()),
        ('{"a": 1}', "json", b'{"a": 1}'),
        ("any", "other", b"any"),
        (1.5, "other", b"1.5"),
    ],
)
def test_what_fits(write: Write, tmp_path: Path, value: Any, field: str, expected: bytes) -> None:
    ran = write(jsonl(tmp_path, x=value), f"{field}=x")
    assert ran.code == 0, ran.err
    assert payload(tmp_path, field) == expected


@pytest.mark.parametrize(
    ("value", "field", "why"),
    [
        (["a", "b"], "npy", "not an array of numbers"),
        ([1, None], "npy", "not an array of numbers"),
        ([[1], [1, 2]], "npy", "not an array of numbers"),
        ("hello", "npy", "not JSON"),
        ({"a": 1}, "npy", "not an array of numbers"),
        ([1, 2], "npz", "npz takes a dict of arrays"),
        ("cat", "cls", "not a whole number"),
        (0.5, "cls", "not a whole number"),
        ("0.5", "id", "not a whole number"),
        ("nan", "count", "not a number"),
        (True, "cls", "not a number"),
        ([1], "cls", "not a number"),
        ("hello", "json", "not JSON"),
        ([1, 2], "txt", "text is not list"),
        ("images/7.jpg", "jpg", "EXT=@COLUMN"),
        ([[0, 256]], "png", "0 to 255"),
        ([0.5, 1], "wav", "no encoder for list as wav"),
        ("x", "pyd", "pickle"),
    ],
)
def test_what_does_not_fit_names_its_place(
    write: Write, tmp_path: Path, value: Any, field: str, why: str
) -> None:
    table = jsonl(tmp_path, x=value)
    ran = write(table, f"f.{field}=x")
    assert ran.code == 3, ran.err
    assert f'{table}, row 1 (line 1): column "x" cannot be written as f.{field}: ' in ran.err
    assert why in ran.err
    assert not (tmp_path / "out.tar").exists()


def test_text_of_csv_that_does_not_fit(write: Write, tmp_path: Path) -> None:
    for value, field in (("[1, ", "npy"), ("[1, ", "json"), ("nan", "cls")):
        ran = write(csv(tmp_path, value), f"{field}=x")
        assert ran.code == 3
        assert f't.csv, row 1 (line 2): column "x" cannot be written as {field}' in ran.err


BINARY = [
    *(
        "aac",
        "apng",
        "avi",
        "avif",
        "bmp",
        "dcm",
        "flac",
        "gif",
        "h5",
        "heic",
        "jpg",
        "m4a",
        "mkv",
        "mov",
        "mp3",
    ),
    *(
        "mp4",
        "mpg",
        "npy",
        "npz",
        "ogg",
        "opus",
        "png",
        "pt",
        "pth",
        "safetensors",
        "ten",
        "tif",
        "wav",
        "webp",
    ),
]


@pytest.mark.parametrize("name", ["/data/x.wav", "x.bin", "https://h/x?y=1"])
def test_a_forgotten_at_sign_is_an_error_for_all_that_is_no_text(
    write: Write, tmp_path: Path, name: str
) -> None:
    """Issue 35, point 4."""
    for field in BINARY:
        ran = write(csv(tmp_path, name), f"{field}=x")
        assert ran.code == 3, field
        assert f't.csv, row 1 (line 2): column "x" cannot be written as {field}: ' in ran.err, field
        assert "--column EXT=@COLUMN" in ran.err, field
    assert write(csv(tmp_path, name), "other=x", "svg=x", "txt=x").code == 0


def test_whole_numbers_are_the_same_bytes_in_every_table(write: Write, tmp_path: Path) -> None:
    """Issue 35, point 3: pandas writes a column of whole numbers with a gap as 3.0."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    table = pyarrow.table({"id": ["a"], "x": [3.0], "n": [float("nan")], "b": [b"3.0"]})
    write_table(table, tmp_path / "t.parquet")
    for path in (csv(tmp_path, "3.0"), jsonl(tmp_path, x=3.0), tmp_path / "t.parquet"):
        assert write(path, "cls=x", "count=x").code == 0
        assert (payload(tmp_path, "cls"), payload(tmp_path, "count")) == (b"3", b"3")
    assert write(tmp_path / "t.parquet", "cls=n", "txt=n", "other=n", "json=n", "id=b").code == 0
    members = dict(members_of(tmp_path / "out.tar"))
    assert {name: data for name, data in members.items() if name != "a.bin"} == {
        "a.json": b"null",
        "a.id": b"3",
    }


def test_fractions_are_no_names_of_classes(tmp_path: Path) -> None:
    ran = wds(
        "create",
        "--from",
        csv(tmp_path, "0.5"),
        "--key-column",
        "id",
        "--column",
        "cls=x",
        "-o",
        tmp_path / "o.tar",
    )
    assert ran.code == 3
    assert "'0.5' is not a whole number" in ran.err
