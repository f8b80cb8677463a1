"""Decoders: webdataset's own are the oracle, on the same bytes; and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest

from wdscli.codecs.handlers import Continue, handle_extension
from wdscli.codecs.images import SPECS, imagehandler
from wdscli.codecs.media import AV_SOUND, FILM, MEDIA, SOUNDFILE
from wdscli.codecs.values import DEFAULTS, ENCODERS, decode_tensors, encode_tensors
from wdscli.errors import DataError, UsageError
from wdscli.loader import IndexedDataset, ShardWriter, WebDataset, ignore_and_continue, mix, reraise_exception
from wdscli.loader.stages.per_sample import Decoder

autodecode = pytest.importorskip("webdataset.autodecode")
Image = pytest.importorskip("PIL.Image")


def make_decoder(*handlers: Any, **options: Any) -> Decoder:
    """A decoder with its handlers as arguments, as ``decode(...)`` of a dataset takes them."""
    return Decoder(handlers, **options)


def theirs(*handlers: Any, **options: Any) -> Any:
    """webdataset's decoder of the same arguments."""
    return autodecode.Decoder(
        [autodecode.imagehandler(one) if isinstance(one, str) else one for one in handlers], **options
    )


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


def picture(mode: str, height: int = 37, width: int = 51) -> Any:
    """Something with edges and slopes."""
    rows, columns = numpy.mgrid[:height, :width]
    planes = [(rows * 5 + columns * (3 + band) + (rows // 8 % 2) * 70) % 256 for band in range(len(mode))]
    array = numpy.stack(planes, axis=-1).astype(numpy.uint8)
    return Image.fromarray(array[:, :, 0] if len(mode) == 1 else array).convert(mode)


def encoded(mode: str, form: str, **options: Any) -> bytes:
    return saved(lambda stream: picture(mode).save(stream, form, **options))


PICTURES = {
    "rgb.jpg": encoded("RGB", "JPEG", quality=80),
    "progressive.jpeg": encoded("RGB", "JPEG", progressive=True),
    "sharp.jpg": encoded("RGB", "JPEG", subsampling=0),
    "gray.jpg": encoded("L", "JPEG"),
    "cmyk.jpg": encoded("CMYK", "JPEG"),
    "keeprgb.jpg": encoded("RGB", "JPEG", keep_rgb=True),
    "rgb.png": encoded("RGB", "PNG"),
    "rgba.png": encoded("RGBA", "PNG"),
    "gray.png": encoded("L", "PNG"),
    "palette.png": saved(lambda stream: picture("RGB").quantize(9).save(stream, "PNG")),
    "one.png": saved(lambda stream: picture("L").convert("1").save(stream, "PNG")),
    "a.ppm": encoded("RGB", "PPM"),
    "a.pgm": encoded("L", "PPM"),
    "a.bmp": encoded("RGB", "BMP"),
    "a.gif": encoded("P", "GIF"),
    "a.tiff": encoded("RGBA", "TIFF"),
    "a.tif": encoded("RGB", "TIFF", compression="tiff_lzw"),
    "a.webp": encoded("RGB", "WEBP", lossless=True),
    "a.tga": encoded("RGB", "TGA"),
    # What is in it counts, not what it is called.
    "misnamed.jpg": encoded("RGB", "PNG"),
}
SAMPLE = {"__key__": "a", **PICTURES}


@pytest.mark.parametrize("spec", sorted(name for name, spec in SPECS.items() if spec.mode))
def test_images_are_what_webdataset_makes_of_them(spec: str) -> None:
    if "torch" in spec:
        pytest.importorskip("torch")
    expected, found = theirs(spec)(SAMPLE), make_decoder(spec)(SAMPLE)
    for name in PICTURES:
        one, other = found[name], expected[name]
        assert numpy.shape(one) == numpy.shape(other), name
        if spec.startswith("pil"):
            assert (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes()), name
        else:
            assert one.dtype == other.dtype, name
            assert numpy.array_equal(numpy.asarray(one), numpy.asarray(other)), name


def test_shapes_types_and_ranges_of_images() -> None:
    data = {"png": PICTURES["rgb.png"]}
    rgb8, rgb, gray = (make_decoder(spec)(data)["png"] for spec in ("rgb8", "rgb", "l8"))
    assert (rgb8.shape, rgb8.dtype, rgb.shape, rgb.dtype) == ((37, 51, 3), "uint8", (37, 51, 3), "float32")
    assert gray.shape == (37, 51)
    assert 0 <= rgb.min() < rgb.max() <= 1
    rgb8[0] = rgb[0] = 0  # they may be changed


def test_torch_images_have_the_channels_first() -> None:
    torch = pytest.importorskip("torch")
    found = make_decoder("torchrgb")({"png": PICTURES["rgb.png"]})["png"]
    assert (tuple(found.shape), found.dtype) == ((3, 37, 51), torch.float32)
    assert found.is_contiguous()
    found[0] = 0


def test_jpegs_by_simplejpeg_have_pillows_pixels() -> None:
    pytest.importorskip("simplejpeg")
    assert imagehandler("rgb8").uses_simplejpeg
    assert not imagehandler("rgb8", jpeg="pillow").uses_simplejpeg
    assert not imagehandler("rgba8").uses_simplejpeg
    rng = numpy.random.default_rng(0)
    array = rng.integers(0, 256, (61, 45, 3), dtype=numpy.uint8)
    for quality in (30, 75, 92):
        for subsampling in (0, 1, 2):
            data = saved(
                lambda stream, q=quality, s=subsampling: Image.fromarray(array).save(
                    stream, "JPEG", quality=q, subsampling=s
                )
            )
            fast, slow = imagehandler("rgb8")(".jpg", data), imagehandler("rgb8", jpeg="pillow")(".jpg", data)
            assert numpy.array_equal(fast, slow)


def test_without_simplejpeg_pillow_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    handler = imagehandler("rgb8")
    assert not handler.uses_simplejpeg
    assert handler(".jpg", PICTURES["rgb.jpg"]).shape == (37, 51, 3)


@pytest.mark.parametrize("spec", ["rgb8", "pil"])
@pytest.mark.parametrize("cut", [4, 300])
def test_a_broken_image_is_an_error(spec: str, cut: int) -> None:
    with pytest.raises(DataError, match=r'cannot decode: .* in member "a\.jpg" in x\.tar'):
        make_decoder(spec)({"__key__": "a", "__url__": "x.tar", "jpg": PICTURES["rgb.jpg"][:-cut]})


def test_no_other_program_is_started_for_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PostScript file called a.png would be given to Ghostscript by Pillow."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a process is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "system", refuse)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(DataError, match="not an image"):
        make_decoder("rgb8")({"png": script})
    assert make_decoder("rgb8")({"eps": script}) == {"eps": script}


ARRAYS = {
    "f4": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
    "u1": numpy.arange(5, dtype=numpy.uint8),
    "i8": numpy.array(7, dtype=numpy.int64),
    "f2": numpy.zeros((0, 3), numpy.float16),
}
OTHER_ARRAYS = {
    "fortran": numpy.asfortranarray(numpy.arange(24, dtype=numpy.int16).reshape(2, 3, 4)),
    "big-endian": numpy.arange(5, dtype=">i4"),
    "text": numpy.array(["a", "äb"]),
    "no text": numpy.array([""], dtype="U0"),
    "record": numpy.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "utf-8 record": numpy.array([(1,)], dtype=[("ä", "i4")]),
    "long header": numpy.zeros(1, dtype=[(f"field{number:05d}", "i1") for number in range(300)]),
    "time": numpy.array(["2020-01-01"], dtype="datetime64[D]"),
    "bool": numpy.array([True, False]),
    "complex": numpy.array([1 + 2j]),
}


def values() -> dict[str, bytes]:
    """Payloads of every default that webdataset has too, without torch."""
    from webdataset import tenbin

    found = {
        "txt": "grüße\n".encode(),
        "text": b"",
        "a.transcript": b"hm",
        "cls": b"7",
        "cls2": b"-12\n",
        "index": b"0",
        "inx": b"3",
        "id": b" 12345678901234567890 ",
        "json": b'{"a": [1, 2.5, null], "b": "\\u00e9"}',
        "jsn": b"[]",
        "seg.json": b"3",
        "mp": msgpack.packb({"a": [1, b"x", "y"]}),
        "msg": msgpack.packb([1, None]),
        "ten": bytes(tenbin.encode_buffer([ARRAYS["f4"], ARRAYS["u1"]])),
        "tb": bytes(tenbin.encode_buffer([ARRAYS["f2"]])),
        "npz": saved(lambda stream: numpy.savez_compressed(stream, **ARRAYS)),
        "other": b"\x00\xff",
        "html": b"<p>",
        "class": b"5",
    }
    for name, array in ARRAYS.items():
        found[f"{name}.npy"] = saved(lambda stream, array=array: numpy.save(stream, array))
    found |= {f"{name}.gz": gzip.compress(data) for name, data in list(found.items())}
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(other, numpy.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_values_are_what_webdataset_makes_of_them() -> None:
    sample = {"__key__": "a", **values()}
    expected, found = theirs()(sample), make_decoder()(sample)
    assert [name for name in expected if not same(found[name], expected[name])] == []
    assert list(found) == list(sample)
    assert found["cls.gz"] == 7
    assert found["other"] == b"\x00\xff"


def test_what_webdataset_does_not_know_or_gets_wrong() -> None:
    found = make_decoder()(
        {"json": b"null", "JSON": b"1", "msgpack": msgpack.packb(5), "a.json.GZ": gzip.compress(b"2")}
    )
    assert found == {"json": None, "JSON": 1, "msgpack": 5, "a.json.GZ": 2}
    (array,) = make_decoder()({"ten": encode_tensors([numpy.arange(3, dtype=numpy.uint32)])})["ten"]
    assert array.dtype == numpy.uint32


@pytest.mark.filterwarnings("ignore:Stored array in format")
@pytest.mark.parametrize("name", sorted(OTHER_ARRAYS))
def test_arrays_of_every_kind(name: str) -> None:
    array = OTHER_ARRAYS[name]
    data = saved(lambda stream: numpy.save(stream, array))
    found = make_decoder()({"npy": data})["npy"]
    assert same(found, array)
    assert (found.flags.writeable, found.flags.f_contiguous) == (True, array.flags.f_contiguous)
    assert same(make_decoder()({"npy": data + b"more"})["npy"], array)
    if array.nbytes:
        with pytest.raises(DataError):
            make_decoder()({"npy": data[:-1]})


def test_an_array_that_says_it_is_huge_takes_no_memory() -> None:
    head = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + bytes(100)
    with pytest.raises(DataError, match="100 bytes are too few for an array of shape"):
        make_decoder()({"npy": data})


def test_arrays_may_be_changed() -> None:
    found = make_decoder()(values())
    found["f4.npy"][0] = found["ten"][0][0] = found["npz"]["f4"][0] = 5


def test_cbor() -> None:
    cbor2 = pytest.importorskip("cbor2")
    value = {"a": [1, b"x", "y", None, 2.5]}
    assert make_decoder()({"cbor": cbor2.dumps(value)}) == {"cbor": value}


def test_torch_files_hold_tensors() -> None:
    torch = pytest.importorskip("torch")
    value = {"a": torch.arange(6).reshape(2, 3), "b": [1, "x"]}
    found = make_decoder()({"pth": saved(lambda stream: torch.save(value, stream))})["pth"]
    assert found["b"] == [1, "x"]
    assert torch.equal(found["a"], value["a"])


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def malicious(path: Path) -> dict[str, bytes]:
    """Pickles wherever one may hide."""
    data = pickle.dumps(Trap(path))
    array = numpy.array([Trap(path)], dtype=object)
    npy = saved(lambda stream: numpy.save(stream, array, allow_pickle=True))
    found = dict.fromkeys(("pyd", "pickle", "pkl", "npy", "npz", "pth", "ten", "json", "cbor", "msg"), data)
    found |= {
        "a.pyd.gz": gzip.compress(data),
        "PYD": data,
        "objects.npy": npy,
        "objects.npz": saved(lambda stream: numpy.savez(stream, a=array)),
    }
    with io.BytesIO() as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/version", "3\n")
        found["zip.pth"] = stream.getvalue()
    return found


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", sorted(malicious(Path("x"))))
def test_no_pickle_is_loaded_unless_it_is_named(name: str, tmp_path: Path) -> None:
    if name.endswith("pth"):
        pytest.importorskip("torch")
    trap = tmp_path / "sprung"
    sample = {"__key__": "a", name: malicious(trap)[name]}
    # What is no pickle for one decoder may be an innocent value for another.
    try:
        found = make_decoder()(sample)
    except (DataError, UsageError):
        found = {}
    assert not trap.exists()
    assert name in ("cbor", "msg") or not found
    if name.lower().removesuffix(".gz").rpartition(".")[2] in ("pyd", "pickle", "pkl"):
        make_decoder("pickle")(sample)
        assert trap.is_dir()


def test_a_pickle_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="needs an explicit decoder") as caught:
        make_decoder()({"__key__": "a", "pyd": pickle.dumps(1)})
    assert 'decode("pickle")' in (caught.value.hint or "")
    assert make_decoder("pickle")({"pyd": pickle.dumps([1])}) == {"pyd": [1]}
    # Other fields can be had all the same.
    assert make_decoder(only="cls")({"pyd": b"x", "cls": b"1"}) == {"pyd": b"x", "cls": 1}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_torch_files_stay_shut_even_with_pickles(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(DataError, match="weights_only"):
        make_decoder("pickle")({"pth": malicious(tmp_path / "sprung")["zip.pth"]})


def test_only_partial_and_names_that_are_left_alone() -> None:
    sample = {"__key__": "a", "__url__": "x.tar", "__x__": b"1", "cls": b"1", "json": b"2", "png": 5}
    assert make_decoder(only="cls;txt")({**sample}) == {**sample, "cls": 1}
    assert make_decoder(only=["json"])(sample) == {**sample, "json": 2}
    assert make_decoder(partial=True)(sample) == {**sample, "cls": 1, "json": 2}
    with pytest.raises(DataError, match="int, not bytes") as caught:
        make_decoder()(sample)
    assert "partial=True" in (caught.value.hint or "")
    assert sample["cls"] == b"1"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_payloads_of_any_kind(kind: Any) -> None:
    found = make_decoder("rgb8")({"json": kind(b"[1]"), "cls": kind(b"3"), "png": kind(PICTURES["rgb.png"])})
    assert (found["json"], found["cls"], found["png"].shape) == ([1], 3, (37, 51, 3))


def shout(key: str, data: bytes) -> str | None:
    return f"{key} {data.decode()}!" if key.endswith(".txt") else None


def test_own_handlers_come_before_the_defaults_and_may_pass() -> None:
    sample = {"a.txt": b"x", "text": b"y", "b.txt.gz": gzip.compress(b"z")}
    expected = {"a.txt": ".a.txt x!", "text": "y", "b.txt.gz": ".b.txt z!"}
    assert make_decoder(shout)(sample) == expected == theirs(shout)(sample)


def test_handlers_that_take_off_a_layer() -> None:
    def rot(key: str, data: bytes) -> Any:
        return Continue(key[:-4], bytes(data[::-1])) if key.endswith(".rev") else None

    def theirs_rot(key: str, data: bytes) -> Any:
        return autodecode.Continue(key[:-4], bytes(data[::-1])) if key.endswith(".rev") else None

    sample = {"json.rev": b"]1[", "rev": b"ab"}
    assert make_decoder(rot)(sample) == make_decoder(theirs_rot)(sample) == {"json.rev": [1], "rev": b"ba"}
    # Each handler is asked once.
    once = make_decoder(lambda key, data: Continue(key, data[1:]))
    assert once({"cls": b"12", "x": b"12"}) == {"cls": 2, "x": b"2"}


def test_extensions_of_several_parts() -> None:
    decode = make_decoder(handle_extension("seg.png mask.PNG", len), "pil")
    found = decode({"seg.png": b"12345", "a.mask.png": b"1", "png": PICTURES["rgb.png"]})
    assert (found["seg.png"], found["a.mask.png"], found["png"].mode) == (5, 1, "RGB")


def test_pre_and_post_stand_for_the_defaults() -> None:
    assert Decoder([], post=[])({"cls": b"1"}) == {"cls": b"1"}
    data = gzip.compress(b"1")
    assert Decoder([], pre=[])({"cls.gz": data}) == {"cls.gz": data}
    assert Decoder([], post=[shout])({"a.txt": b"1"}) == {"a.txt": ".a.txt 1!"}


def test_what_a_handler_raises_is_told_with_shard_key_and_field() -> None:
    def broken(key: str, data: bytes) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(DataError) as caught:
        make_decoder(broken)({"__key__": "n/7", "__url__": "s3://b/x.tar", "cls": b"1"})
    error = caught.value
    assert (error.shard, error.member, error.code) == ("s3://b/x.tar", "n/7.cls", "undecodable")
    assert str(error) == "cannot decode: KeyError: 'no such thing' in member \"n/7.cls\" in s3://b/x.tar"
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("json", b"{"),
        ("json", b"[" * 100_000),
        ("cls", b"x"),
        ("txt", b"\xff"),
        ("npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9, 9), }"),
        ("npz", b"PK"),
        ("msgpack", b"\xc1"),
        ("json.gz", b"\x1f\x8b"),
        ("ten", b"~TenBin~" + struct.pack("<q", 1 << 60)),
        ("ten", b"~TenBin~" + struct.pack("<q", 24) + b"f4" + bytes(62)),
        ("ten", b"~TenBin~" + struct.pack("<q", -64) + bytes(64)),
        ("ten", b"nonsense" * 2),
    ],
)
def test_garbage_is_a_data_error(field: str, data: bytes) -> None:
    with pytest.raises(DataError, match="cannot decode"):
        make_decoder()({"__key__": "a", field: data})


def test_bundles_go_round_and_are_webdatasets() -> None:
    from webdataset import tenbin

    arrays = list(ARRAYS.values())
    assert encode_tensors(arrays) == bytes(tenbin.encode_buffer(arrays))
    assert all(map(same, decode_tensors(encode_tensors(arrays)), arrays))
    data = encode_tensors(arrays)
    for end in range(1, len(data), 7):
        try:
            decode_tensors(data[:end])
        except DataError:
            continue
    with pytest.raises(UsageError, match="cannot hold"):
        encode_tensors([numpy.array(["text"])])


def test_a_bundle_that_leads_back_to_its_beginning_ends() -> None:
    part = encode_tensors([numpy.zeros(0, numpy.uint8)])
    assert len(part) == 96
    with pytest.raises(DataError, match="-192 bytes"):
        decode_tensors(part + part[:88] + struct.pack("<q", -192))


def test_names_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="no such decoder") as caught:
        make_decoder("rgb16")
    assert "torchrgb8" in str(caught.value)
    with pytest.raises(UsageError, match="a name or a function"):
        make_decoder(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handlers", "field", "module", "install"),
    [
        (("rgb8",), "png", "PIL.Image", "'wdscli[images]'"),
        (("torchrgb",), "png", "torch", "torch"),
        ((), "pth", "torch", "torch"),
        ((), "cbor", "cbor2", "cbor2"),
        (("audio",), "wav", "soundfile", "soundfile"),
        (("video",), "mp4", "av", "av"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    handlers: tuple[str, ...], field: str, module: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=module.partition(".")[0]) as caught:
        make_decoder(*handlers)({field: b"x"})
    assert caught.value.hint == f"pip install {install}"


def test_sound() -> None:
    soundfile = pytest.importorskip("soundfile")
    wave = numpy.sin(numpy.arange(800) / 20).astype(numpy.float32)
    stereo = numpy.stack([wave, wave / 2], axis=1)
    for form in ("wav", "flac", "ogg"):
        data = saved(lambda stream, form=form: soundfile.write(stream, stereo, 16000, format=form.upper()))
        samples, rate = make_decoder("audio")({form: data})[form]
        assert (samples.shape, samples.dtype, rate) == ((2, 800), numpy.float32, 16000)
        assert numpy.abs(samples - stereo.T).max() < (0.2 if form == "ogg" else 0.001)
    torch = pytest.importorskip("torch")
    tensor, rate = make_decoder("torch_audio")({form: data})[form]
    assert torch.equal(tensor, torch.from_numpy(samples))
    with pytest.raises(DataError):
        make_decoder("audio")({"wav": b"RIFF"})


def test_sound_that_was_cut_off(tmp_path: Path) -> None:
    """Issue 35, point 5: libsndfile gives what is there."""
    soundfile = pytest.importorskip("soundfile")
    data = saved(lambda stream: soundfile.write(stream, numpy.zeros(16000), 16000, format="WAV"))
    with ShardWriter(f"{tmp_path}/x-%d.tar") as writer:
        writer.write({"__key__": "whole", "wav": data})
        writer.write({"__key__": "cut", "wav": data[:1000]})
    samples = iter(WebDataset(f"{tmp_path}/x-0.tar").decode("audio"))
    assert next(samples)["wav"][0].shape == (1, 16000)
    with pytest.raises(DataError, match="it is cut off: the sound has 32000 bytes") as caught:
        next(samples)
    assert "cut.wav" in str(caught.value)


def film(container: str, frames: int, sound: bool) -> bytes:
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as out:
        pictures = out.add_stream("mpeg4", rate=25)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        voice = out.add_stream("aac", rate=16000, layout="mono") if sound else None
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(numpy.full((48, 64, 3), number * 20, numpy.uint8), "rgb24")
            out.mux(pictures.encode(frame))
        out.mux(pictures.encode(None))
        if voice is not None:
            wave = numpy.zeros((1, 16000), numpy.float32)
            tone = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
            tone.sample_rate = 16000
            out.mux(voice.encode(tone))
            out.mux(voice.encode(None))
    return stream.getvalue()


def test_film() -> None:
    pytest.importorskip("av")
    frames, sound, info = make_decoder("video")({"mp4": film("mp4", 6, True)})["mp4"]
    assert (frames.shape, frames.dtype) == ((6, 48, 64, 3), numpy.uint8)
    assert abs(int(frames[3].mean()) - 60) < 5
    assert (info["video_fps"], info["audio_fps"]) == (25.0, 16000)
    assert sound.dtype == numpy.float32
    assert sound.shape[0] == 1
    assert sound.shape[1] >= 16000
    frames, sound, info = make_decoder("video")({"avi": film("avi", 3, False)})["avi"]
    assert (len(frames), sound.shape, info) == (3, (1, 0), {"video_fps": 25.0})
    assert make_decoder("audio")({"m4a": film("mp4", 1, True)})["m4a"][1] == 16000
    with pytest.raises(DataError):
        make_decoder("video")({"mp4": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"})


def test_no_other_file_is_opened_for_a_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of files that ffmpeg would follow, were it asked to find out what the payload is."""
    av = pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.mp4").write_bytes(film("mp4", 2, False))
    script = b"ffconcat version 1.0\nfile secret.mp4\n"
    (tmp_path / "list").write_bytes(script)
    with av.open(str(tmp_path / "list")) as followed:
        assert len(list(followed.decode(video=0))) == 2
    for name in FILM:
        with pytest.raises(DataError):
            make_decoder("video")({name: script})


def test_films_as_tensors() -> None:
    pytest.importorskip("av")
    torch = pytest.importorskip("torch")
    frames, sound, info = make_decoder("torch_video")({"mp4": film("mp4", 2, True)})["mp4"]
    assert (tuple(frames.shape), frames.dtype, sound.dtype) == ((2, 48, 64, 3), torch.uint8, torch.float32)
    assert info["video_fps"] == 25


def test_decoders_travel() -> None:
    decode = make_decoder("rgb8", shout, only=["a.txt", "png"])
    sample = {"a.txt": b"x", "png": PICTURES["rgb.png"], "cls": b"1"}
    decode(sample)
    found = pickle.loads(pickle.dumps(decode))(sample)
    assert (found["a.txt"], found["png"].shape, found["cls"]) == (".a.txt x!", (37, 51, 3), b"1")


@pytest.mark.exhaustive
def test_torch_is_loaded_when_a_tensor_is_made_and_not_before() -> None:
    sample = {
        "png": PICTURES["rgb.png"],
        "json": b"1",
        **{name: values()[name] for name in ("f4.npy", "ten")},
    }
    code = (
        "import sys, json; from wdscli.loader.stages.per_sample import Decoder\n"
        f"data = {sample!r}\n"
        "assert 'numpy' not in sys.modules and 'PIL' not in sys.modules\n"
        "Decoder(['rgb'])(data)\n"
        "Decoder(['pil'])(data)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = set(json.loads(done.stdout))
    assert not names & {"torch", "soundfile", "av", "msgpack", "webdataset"}


def test_the_manual_tells_of_every_name() -> None:
    text = (Path(__file__).parents[2] / "man" / "man7" / "wdscli-fields.7").read_text()
    words = set(re.findall(r"[A-Za-z0-9_]+", text))
    decoding, _, encoding = text.partition(".Sh ENCODERS")
    assert not {*SPECS, *DEFAULTS, *MEDIA, *FILM, *SOUNDFILE, *AV_SOUND} - words
    assert not set(ENCODERS) - set(re.findall(r"[A-Za-z0-9_]+", encoding))
    for package in ("cbor2", "soundfile", "av", "'wdscli[images]'"):
        assert f"pip install {package}" in decoding


@pytest.fixture
def broken_set(tmp_path: Path) -> str:
    """Ten samples, the JSON of the sixth broken."""
    with ShardWriter(f"{tmp_path}/x-%d.tar", maxcount=4) as writer:
        for number in range(10):
            writer.write({"__key__": str(number), "cls": number, "json": b"{" if number == 5 else b"{}"})
    return f"{tmp_path}/x-manifest.json"


def numbers(data: Any) -> list[int]:
    return [sample["cls"] for sample in data]


REST = [0, 1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", [WebDataset, IndexedDataset])
def test_a_broken_payload_stops_unless_told_otherwise(kind: Any, broken_set: str) -> None:
    data = kind(broken_set).decode()
    with pytest.raises(DataError, match=r'in member "5\.json" in .*x-1\.tar'):
        list(data)
    assert numbers(kind(broken_set).decode(only="cls")) == list(range(10))


@pytest.mark.parametrize(("policy", "wanted"), [("skip", REST), ("substitute", [*REST[:5], 6, *REST[5:]])])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_policy_of_a_dataset_is_the_decoders(
    policy: Any, wanted: list[int], threads: int, broken_set: str
) -> None:
    data = WebDataset(broken_set, on_error=policy, threads=threads).decode()
    with pytest.warns(UserWarning, match="skipped: cannot decode.*5.json"):
        assert numbers(data) == wanted
    ((shard, reasons),) = data.stats()["dropped"].items()
    assert (Path(shard).name, reasons) == ("x-1.tar", {"decode: DataError": 1})


def test_the_policy_of_a_table_and_of_a_set_in_a_mix(broken_set: str) -> None:
    table = IndexedDataset(broken_set, on_error="skip").decode()
    with pytest.warns(UserWarning, match="skipped"):
        assert numbers(table.__getitems__(range(10))) == REST
    with pytest.raises(DataError, match="skipped"):
        table[5]
    mixed = mix([WebDataset(broken_set, on_error="skip").decode()])
    with pytest.warns(UserWarning, match="skipped"):
        assert numbers(mixed) == REST


def test_a_handler_comes_before_the_policy(broken_set: str) -> None:
    data = WebDataset(broken_set, on_error="skip").decode(handler=reraise_exception)
    with pytest.raises(DataError):
        list(data)
    seen: list[Exception] = []
    data = WebDataset(broken_set).decode(handler=lambda error: not seen.append(error))
    assert numbers(data) == REST
    assert [type(error) for error in seen] == [DataError]


def test_a_missing_package_is_never_skipped(broken_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(key: str, data: bytes) -> Any:
        raise UsageError("a package is missing")

    for data in (
        WebDataset(broken_set, on_error="skip").decode(needs),
        WebDataset(broken_set).decode(needs, handler=ignore_and_continue),
    ):
        with pytest.raises(UsageError, match="a package is missing"):
            list(data)
