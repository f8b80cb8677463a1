"""Encoders: webdataset's are the oracle, and everything comes back by our decoder and by webdataset's."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from decimal import Decimal
from typing import Any

import msgpack
import numpy
import pytest

from wdscli.codecs.values import ENCODERS, gzipped, make_encoder
from wdscli.errors import UsageError
from wdscli.loader.stages.per_sample import Decoder

Image = pytest.importorskip("PIL.Image")


def make_decoder(*handlers: Any) -> Decoder:
    """A decoder with its handlers as arguments, as ``decode(...)`` of a dataset takes them."""
    return Decoder(handlers)


RGB = (numpy.arange(20 * 30 * 3) % 251).astype(numpy.uint8).reshape(20, 30, 3)
GRAY = RGB[:, :, 0]
ARRAYS = {"a": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "b": numpy.array(3)}

SAMPLE: dict[str, Any] = {
    "__key__": "n/1",
    "cls": 7,
    "cls2": "8",
    "class": 3,
    "count": 12,
    "index": numpy.int64(4),
    "inx": 0,
    "id": 10**20,
    "txt": "grüße",
    "text": "",
    "transcript": "hm",
    "html": "<p>",
    "htm": "<i>",
    "json": {"b": [1, 2.5, None], "a": "é"},
    "jsn": [1],
    "raw.json": '{"text": "as it stands"}',
    "npy": ARRAYS["a"],
    "npz": ARRAYS,
    "mp": {"a": b"x"},
    "msgpack": [1, "y"],
    "msg": 5,
    "ten": [ARRAYS["a"], GRAY],
    "tb": GRAY,
    "tenbin": [GRAY],
    "jpg": RGB,
    "img": GRAY,
    "image": RGB,
    "png": RGB,
    "f.png": RGB / numpy.float32(255) * 0,
    "pil.png": Image.fromarray(RGB),
    "tiff": RGB,
    "tif": GRAY,
    "unknown": b"bytes",
    "note": "text of no type",
    "array.png": bytearray(b"not looked into"),
    "view": memoryview(b"1234")[1:3],
    "json.gz": {"a": 1},
    "bytes.gz": b"x",
    "txt.gz": "y",
}


def test_payloads_are_webdatasets() -> None:
    writer = pytest.importorskip("webdataset.writer")
    # webdataset leaves out views and bytearrays; they pass here.
    odd = {"array.png", "view"}
    sample = {name: value for name, value in SAMPLE.items() if name not in odd}
    expected = writer.make_encoder(True)(sample)
    found = make_encoder()(sample)
    for name, data in expected.items():
        if name.endswith(".gz"):
            assert gzip.decompress(found[name]) == gzip.decompress(data), name
        else:
            assert found[name] == data, name
    assert list(found) == list(sample)
    assert {name: make_encoder()(SAMPLE)[name] for name in odd} == {name: SAMPLE[name] for name in odd}


def test_values_come_back() -> None:
    values = {
        "cls": 7, "txt": "grüße", "json": {"a": [None]}, "npy": ARRAYS["a"], "msgpack": {"a": b"x"}, "png": RGB,
        "webp": RGB, "bmp": RGB, "ppm": RGB, "tiff": RGB, "a.json.gz": [1], "u4.npy": numpy.zeros(2, numpy.uint32),
    }  # fmt: skip
    found = make_decoder("rgb8")(make_encoder()(values))
    for name, value in values.items():
        assert (
            numpy.array_equal(found[name], value)
            if isinstance(value, numpy.ndarray)
            else found[name] == value
        )
    npz = make_decoder()(make_encoder()({"npz": ARRAYS}))["npz"]
    assert {name: array.tolist() for name, array in npz.items()} == {n: a.tolist() for n, a in ARRAYS.items()}
    assert numpy.array_equal(make_decoder("l8")(make_encoder()({"pgm": GRAY}))["pgm"], GRAY)
    assert make_decoder("l8")(make_encoder()({"pbm": GRAY}))["pbm"].shape == GRAY.shape


def test_floats_come_back_to_the_same_bytes() -> None:
    every = numpy.arange(256, dtype=numpy.uint8).reshape(16, 16)
    floats = make_decoder("l")(make_encoder()({"png": every}))["png"]
    assert floats.dtype == numpy.float32
    assert numpy.array_equal(make_decoder("l8")(make_encoder()({"png": floats}))["png"], every)
    assert make_encoder()({"png": floats.astype(numpy.float64)}) == make_encoder()({"png": every})


def test_floats_are_rounded_to_the_nearest() -> None:
    found = make_decoder("l8")(make_encoder()({"png": numpy.array([[0.999, 0.001, 1.0005, -0.0005]])}))["png"]
    assert found.tolist() == [[255, 0, 255, 0]]


def test_arrays_of_one_and_four_channels() -> None:
    rgba = numpy.dstack([RGB, GRAY])
    found = make_decoder("rgba8")(make_encoder()({"png": rgba}))["png"]
    assert numpy.array_equal(found, rgba)
    assert make_encoder()({"png": GRAY[:, :, None]}) == make_encoder()({"png": GRAY})


def test_the_same_value_gives_the_same_bytes_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_encoder()(SAMPLE)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert make_encoder()(SAMPLE) == before
    with zipfile.ZipFile(io.BytesIO(before["npz"])) as archive:
        assert {one.date_time[0] for one in archive.infolist()} == {1980}
    # RFC 1952: no time, no name, unknown system.
    assert gzipped(b"a" * 50)[:10].hex() == "1f8b08000000000002ff"
    assert gzip.decompress(gzipped(b"")) == b""


def test_cbor() -> None:
    cbor2 = pytest.importorskip("cbor2")
    assert cbor2.loads(make_encoder()({"cbor": {"a": [1, b"x"]}})["cbor"]) == {"a": [1, b"x"]}


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(RGB.copy())
    arrays = {"npy": RGB, "ten": [RGB], "png": RGB, "npz": {"a": RGB}, "cls": 5}
    tensors = {"npy": tensor, "ten": [tensor], "png": tensor, "npz": {"a": tensor}, "cls": torch.tensor(5)}
    assert make_encoder()(tensors) == make_encoder()(arrays)
    assert make_encoder()({"png": tensor.permute(2, 0, 1)}) == make_encoder()({"png": RGB})
    data = make_encoder()({"pth": {"a": tensor}})
    assert data == make_encoder()({"pth": {"a": tensor}})
    assert torch.equal(make_decoder()(data)["pth"]["a"], tensor)


def test_pickles_are_written_when_they_are_named() -> None:
    with pytest.raises(UsageError, match=r'field "pyd" of sample "a" .* needs an explicit encoder') as caught:
        make_encoder()({"__key__": "a", "pyd": [1]})
    assert 'encoder="pickle"' in (caught.value.hint or "")
    data = make_encoder("pickle")({"pyd": [1], "cls": 2})
    assert (pickle.loads(data["pyd"]), data["cls"]) == ([1], b"2")
    assert make_encoder()({"pyd": b"bytes"}) == {"pyd": b"bytes"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("image", 5, "a picture is an array"),
        ("label", 5, "there is no encoder for int as label"),
        ("txt", 5, "text must be str, not int"),
        ("json", "{", "must be JSON"),
        ("json", {1, 2}, "not JSON serializable"),
        ("cls", "é", "'é' is not a whole number"),
        ("cls", "cat", "'cat' is not a whole number"),
        ("id", 2.5, "2.5 is not a whole number"),
        ("index", True, "True is not a number"),
        ("index", numpy.bool_(True), "True is not a number"),
        ("cls", None, "None is not a number"),
        ("count", None, "None is not a number"),
        ("cls", float("nan"), "nan is not a number"),
        ("count", "nan", "'nan' is not a number"),
        ("cls", "1e999999999", "is not a whole number"),
        ("wav", "/data/x.wav", "'/data/x.wav' is text, not wav"),
        ("mp4", "x", "is text, not mp4"),
        ("dcm", "", "is text, not dcm"),
        ("pth", "x.pth", "is text, not pth"),
        ("flac", b"/data/x.flac", "is text, not flac"),
        ("x.safetensors", memoryview(b"m.safetensors"), "is text, not safetensors"),
        ("mp", {1: 2}, r"decode\(\) could not read the value"),
        ("npy", [1, 2], "must be an array or a tensor, not list"),
        ("npy", "text", "is text, not npy"),
        ("npy", numpy.array([{}]), "could only be written as a pickle"),
        ("npz", {"a": numpy.array([{}])}, "could only be written as a pickle"),
        ("npz", ARRAYS["a"], "a dict of arrays"),
        ("ten", numpy.array(["x"]), "cannot hold"),
        ("png", RGB.astype(numpy.int32), "not int32"),
        ("png", RGB.astype(numpy.float32), "from 0 to 1"),
        ("png", numpy.full((2, 2), numpy.nan), "from 0 to 1"),
        ("png", numpy.zeros((2, 3, 5), numpy.uint8), r"not \(2, 3, 5\)"),
        ("pgm", RGB, "mode L, not RGB"),
        ("jpg", numpy.dstack([RGB, GRAY]), "cannot hold a picture of mode RGBA"),
    ],
)
def test_what_a_field_cannot_hold(field: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_encoder()({"__key__": "a", field: value})
    assert f'field "{field}" of sample "a" cannot be encoded' in str(caught.value)


def test_whole_numbers_have_no_decimal_point() -> None:
    """Issue 35, point 3: ``int`` reads them back."""
    values = {
        "cls": 3.0, "id": numpy.float64(4), "index": numpy.float32(5), "inx": "6.0", "cls2": Decimal("7.00"),
        "count": 8.0, "class": "cat", "a.count": 0.5, "a.id": 1e300,
    }  # fmt: skip
    found = make_encoder()(values)
    assert [found[name] for name in ("cls", "id", "index", "inx", "cls2", "count")] == [
        b"3",
        b"4",
        b"5",
        b"6",
        b"7",
        b"8",
    ]
    assert (found["class"], found["a.count"], found["a.id"]) == (b"cat", b"0.5", b"%d" % int(1e300))


def test_bytes_are_kept_unless_they_are_the_name_of_a_file() -> None:
    payloads = {
        "wav": b"",
        "mp3": b"words",
        "flac": b"fLaC/x.y",
        "png": b"a/b\0",
        "txt": b"a/b.c",
        "jpg": b"p" * 2000 + b"/",
    }
    assert make_encoder()(payloads) == payloads


def test_an_array_in_pth_is_refused_because_decode_refuses_it() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r'field "pth" of sample "a" .* could not read the value') as caught:
        make_encoder()({"__key__": "a", "pth": numpy.zeros(2)})
    assert "torch.from_numpy" in (caught.value.hint or "")
    value = {"a": torch.zeros(2), "b": [1, "x", None, 0.5]}
    assert make_decoder()(make_encoder()({"pth": value}))["pth"]["b"] == value["b"]


def test_an_encoder_of_your_own_gets_text() -> None:
    own = make_encoder({"wav": lambda name: f"content of {name}".encode()})
    assert own({"wav": "x.wav"}) == {"wav": b"content of x.wav"}


def test_text_that_is_data_of_another_type() -> None:
    assert msgpack.unpackb(make_encoder()({"msgpack": "text"})["msgpack"]) == "text"


def test_specs_of_encoders() -> None:
    sample = {"__key__": "a", "cls": 5}
    assert make_encoder(False)(sample) == make_encoder(None)(sample) == sample
    assert make_encoder(lambda sample: {**sample, "x": 1})(sample) == {**sample, "x": 1}
    own = make_encoder({"up": lambda value: json.dumps(value).upper().encode()})
    assert own({"up": {"a": 1}, "b": b"x", "c": "y"}) == {"up": b'{"A": 1}', "b": b"x", "c": b"y"}
    with pytest.raises(UsageError, match="no encoder"):
        own(sample)
    with pytest.raises(UsageError, match="no such encoder"):
        make_encoder("zip")


def test_every_name_of_webdataset_is_known() -> None:
    writer = pytest.importorskip("webdataset.writer")
    assert set(writer.default_handlers) <= set(ENCODERS)
