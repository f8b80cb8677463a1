"""Values of pictures that 8 bits cannot hold: what gives them as stored, and what refuses to clip them (issue 35)."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("PIL.Image")

from PIL import Image

import wdscli.loader as wds
from wdscli.codecs.images import SPECS, encode_image, imagehandler
from wdscli.errors import DataError, UsageError
from wdscli.loader.stages.per_sample import Decoder
from wdscli.shards import ShardWriter

DEPTH = (numpy.arange(4096, dtype=numpy.uint16) * 16).reshape(64, 64)
CLASSES = (numpy.arange(64, dtype=numpy.uint8) % 11).reshape(8, 8)


def saved(image: Any, form: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, form, **how)
    return stream.getvalue()


def indexed() -> Image.Image:
    image = Image.fromarray(CLASSES)
    image.putpalette([255 - level for level in range(256) for _ in range(3)])
    return image


def pgm(magic: bytes, values: Any, maximum: int) -> bytes:
    height, width = values.shape
    if magic == b"P2":
        pixels = b" ".join(b"%d" % value for value in values.ravel())
    else:
        pixels = values.astype(">u2" if maximum > 255 else "u1").tobytes()
    return b"%b\n%d %d\n%d\n%b" % (magic, width, height, maximum, pixels)


STORED = {
    "depth.png": (saved(DEPTH, "PNG"), DEPTH),
    "depth.tif": (saved(DEPTH, "TIFF"), DEPTH),
    "big.tif": (saved(DEPTH.astype(">u2"), "TIFF"), DEPTH),
    "raw.pgm": (pgm(b"P5", DEPTH, 65535), DEPTH),
    "kinect.pgm": (pgm(b"P5", DEPTH % 4096, 4095), DEPTH % 4096),
    "plain.pgm": (pgm(b"P2", DEPTH % 1000, 999), DEPTH % 1000),
    "classes.pgm": (pgm(b"P5", CLASSES, 10), CLASSES),
    "dem.tif": (saved(DEPTH.astype(numpy.float32) / 7, "TIFF"), DEPTH.astype(numpy.float32) / 7),
    "signed.tif": (saved(DEPTH.astype(numpy.int32) - 9, "TIFF"), DEPTH.astype(numpy.int32) - 9),
    "seg.png": (saved(indexed(), "PNG"), CLASSES),
    "seg.gif": (saved(indexed(), "GIF"), CLASSES),
    "bits.png": (saved(CLASSES > 5, "PNG"), CLASSES > 5),
    "bits.pbm": (saved(CLASSES > 5, "PPM"), CLASSES > 5),
    "gray.png": (saved(CLASSES, "PNG"), CLASSES),
    "rgb.png": (saved(numpy.dstack([CLASSES] * 3), "PNG"), numpy.dstack([CLASSES] * 3)),
}
WIDE = [name for name, (_, values) in STORED.items() if values.dtype.itemsize > 1]


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("spec", ["stored", "torchstored", "pilstored"])
def test_stored_gives_the_values_in_the_file(spec: str, name: str) -> None:
    if spec == "torchstored":
        pytest.importorskip("torch")
    data, expected = STORED[name]
    decoded = Decoder([spec])({name: data})[name]
    if spec == "torchstored" and expected.ndim == 3:
        expected = expected.transpose(2, 0, 1)
    values = numpy.asarray(decoded)
    assert values.shape == expected.shape
    assert numpy.array_equal(values, expected)
    if spec != "pilstored":
        assert (values.dtype, values.dtype.isnative) == (expected.dtype, True)


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("spec", sorted(name for name, spec in SPECS.items() if spec.mode))
def test_a_form_of_8_bits_refuses_to_clip(spec: str, name: str) -> None:
    if SPECS[spec].kind == "torch":
        pytest.importorskip("torch")
    for how in ({}, {"size": 8}, {"crop": 8}):
        with pytest.raises(DataError, match="would clip to 8 bits") as caught:
            Decoder([spec], **how)({"__key__": "a", "__url__": "x.tar", name: STORED[name][0]})
        assert f'in member "a.{name}" in x.tar' in str(caught.value)
        assert f'decode("{SPECS[spec].stored}")' in (caught.value.hint or "")
    assert SPECS[SPECS[spec].stored].kind == SPECS[spec].kind


@pytest.mark.parametrize("form", [".png", ".tiff", ".ppm"])
@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_16_bits(form: str, channels: int) -> None:
    """Pillow reads the upper 8 bits of them, and OpenCV reads all bits."""
    if (form, channels) == (".ppm", 4):
        pytest.skip("PPM has no transparency")
    opencv = pytest.importorskip("cv2")
    colours = numpy.random.default_rng(0).integers(0, 65536, (20, 30, channels), dtype=numpy.uint16)
    data = opencv.imencode(form, colours)[1].tobytes()
    expected = colours[..., [2, 1, 0, 3][:channels]]
    assert numpy.array_equal(imagehandler("stored")(".png", data), expected)
    small = imagehandler("stored", size=(10, 15))(".png", data)
    assert small.dtype == numpy.uint16
    assert numpy.array_equal(small, expected[1::2, 1::2])
    with pytest.warns(UserWarning, match='keeps the upper 8 of 16 bits a colour.*"stored"'):
        upper = imagehandler("rgba8" if channels == 4 else "rgb8")(".png", data)
    assert abs(upper.astype(int) - (expected >> 8)).max() <= 1
    with pytest.raises(DataError, match="16 bits a colour"):
        imagehandler("pilstored")(".png", data)


def test_photos_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form in ("PNG", "JPEG", "TIFF", "PPM", "WEBP"):
            imagehandler("rgb8")(".png", saved(numpy.dstack([CLASSES] * 3), form))


def test_stored_in_one_field_of_several(tmp_path: Path) -> None:
    """The hint of the error works: another form for the fields that end in depth.png."""
    with ShardWriter(str(tmp_path / "in-%06d.tar")) as writer:
        for number in range(4):
            photo = saved(numpy.full((64, 64, 3), number, numpy.uint8), "PNG")
            writer.write(
                f"n{number}", {"depth.png": STORED["depth.png"][0], "png": photo, "left.depth.png": photo}
            )
    data = wds.WebDataset(str(tmp_path))
    for names in ("depth.png", ["depth.png"], "x Depth.PNG"):
        sample = next(iter(data.decode(wds.imagehandler("stored", names), "rgb")))
        assert (sample["depth.png"].dtype, sample["left.depth.png"].dtype, sample["png"].dtype) == (
            "uint16",
            "uint8",
            "float32",
        )
    ((depths, photos),) = (
        data.decode(wds.imagehandler("stored", "depth.png", size=32), "rgb8", size=32)
        .to_tuple("depth.png", "png")
        .batched(4)
    )
    assert (depths.shape, depths.dtype, photos.shape) == ((4, 32, 32), "uint16", (4, 32, 32, 3))
    handler = pickle.loads(pickle.dumps(imagehandler("stored", "depth.png")))
    assert handler(".png", b"no picture") is None


def test_sizes_of_stored_values_choose_pixels() -> None:
    for name in ("depth.png", "dem.tif", "signed.tif"):
        data, expected = STORED[name]
        small = imagehandler("stored", size=32)(".png", data)
        assert numpy.array_equal(small, expected[1::2, 1::2])
        assert numpy.array_equal(imagehandler("stored", crop=(10, 64))(".png", data), expected[27:37])


def test_stored_values_can_be_written_again() -> None:
    for name in ("depth.png", "bits.png", "gray.png", "rgb.png"):
        values = STORED[name][1]
        payload = encode_image(values, "png")
        assert numpy.array_equal(imagehandler("stored")(".png", payload), values)


def test_a_gif_of_too_many_colours_is_refused() -> None:
    """The page says that gif is written without loss."""
    few = numpy.dstack([CLASSES] * 3)
    assert numpy.array_equal(imagehandler("rgb8")(".gif", encode_image(few, "gif")), few)
    many = numpy.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=numpy.uint8)
    with pytest.raises(UsageError, match="at most 256"):
        encode_image(many, "gif")


@pytest.mark.parametrize("kind", ["jpg", "webp", "gif", "bmp", "pgm"])
def test_a_writer_does_not_clip_them_either(kind: str) -> None:
    """Pillow writes them as webp and gif of 8 bits, without a word."""
    for picture in (DEPTH, Image.fromarray(DEPTH), Image.fromarray(DEPTH.astype(numpy.float32))):
        if kind == "pgm" and picture is DEPTH:
            continue
        with pytest.raises(UsageError, match=r"cannot hold|must be from 0 to 1|mode L"):
            encode_image(picture, kind)
