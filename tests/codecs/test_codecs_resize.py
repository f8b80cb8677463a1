"""``size=`` and ``crop=`` of pictures: which shapes, which pixels, and what is no size."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("PIL.Image")

from PIL import Image, ImageOps

import wdscli.loader as wds
from wdscli.codecs import images as resize
from wdscli.codecs.images import SPECS, imagehandler
from wdscli.errors import DataError, UsageError
from wdscli.loader.stages.per_sample import Decoder
from wdscli.shards import ShardWriter

ORIENTATION = 274


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Waves and some noise: like a photograph, most of it is in low frequencies."""
    rng = numpy.random.default_rng(0)
    rows, columns = (numpy.arange(side, dtype=numpy.float32) / 40 for side in (height, width))
    factors = rng.uniform(0.3, 1.5, (len(mode), 3)).astype(numpy.float32)
    waves = [numpy.outer(numpy.sin(rows * a + c), numpy.cos(columns * b)) for a, b, c in factors]
    noise = rng.integers(-6, 7, (height, width, 1), dtype=numpy.int8)
    pixels = (127 + 90 * numpy.stack(waves, 2) + noise).clip(0, 255).astype(numpy.uint8)
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels)


def saved(image: Image.Image, form: str = "JPEG", **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **how)
    return stream.getvalue()


@pytest.fixture(params=["all", "no OpenCV", "Pillow"])
def jpeg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What decodes and resizes: the value for ``jpeg=``."""
    if request.param != "Pillow":
        pytest.importorskip("simplejpeg")
    if request.param == "all":
        pytest.importorskip("cv2")
    else:
        monkeypatch.setattr(resize, "_opencv", lambda: None)
    return "pillow" if request.param == "Pillow" else "auto"


SHAPES = [
    # (height, width), size, crop, expected
    ((300, 400), (224, 224), None, (224, 224)),
    ((300, 400), (40, 350), None, (40, 350)),
    ((300, 401), 224, None, (224, 299)),
    ((401, 300), 224, None, (299, 224)),
    ((300, 400), 256, 224, (224, 224)),
    ((900, 700), 64, (48, 64), (48, 64)),
    ((30, 20), 64, None, (96, 64)),
    ((30, 21), None, (10, 11), (10, 11)),
]


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize(("given", "size", "crop", "expected"), SHAPES)
def test_shapes_are_those_of_torchvision(
    given: tuple[int, int], size: Any, crop: Any, expected: tuple[int, int], form: str, jpeg: str
) -> None:
    data = saved(picture(given[1], given[0]), form)
    found = imagehandler("rgb8", jpeg=jpeg, size=size, crop=crop)(f".{form}", data)
    assert (found.shape, found.dtype, found.flags.c_contiguous) == ((*expected, 3), "uint8", True)
    found[0] = 0  # it may be changed
    image = imagehandler("pil", jpeg=jpeg, size=size, crop=crop)(f".{form}", data)
    assert (image.mode, image.size) == ("RGB", expected[::-1])


@pytest.mark.parametrize("spec", sorted(name for name, spec in SPECS.items() if spec.mode))
def test_every_spec_has_the_size(spec: str) -> None:
    if SPECS[spec].kind == "torch":
        pytest.importorskip("torch")
    for form, mode in (("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGBA"), ("PNG", "L")):
        found = imagehandler(spec, size=(20, 30))(".png", saved(picture(91, 64, mode), form))
        if spec.startswith("pil"):
            assert found.size == (30, 20)
        else:
            assert sorted(found.shape) == sorted({20, 30} | ({found.ndim and len(SPECS[spec].mode)} - {1}))


@pytest.mark.parametrize("given", [(75, 105), (113, 128), (225, 300), (480, 500)])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pixels_are_near_those_of_decoding_all_and_resizing(
    given: tuple[int, int], form: str, jpeg: str
) -> None:
    data = saved(picture(given[1], given[0]), form)
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    handler = imagehandler("rgb8", jpeg=jpeg, size=(56, 58))
    found = handler(".png", data).astype(float)
    expected = numpy.asarray(whole.resize((58, 56), Image.Resampling.BILINEAR)).astype(float)
    assert abs(found - expected).mean() < (2.5 if form == "JPEG" else 0.6)
    assert abs((found - expected).mean()) < 0.5  # neither brighter nor darker
    shifted = numpy.roll(expected, 1, 1)
    assert abs(found - expected).mean() < abs(found - shifted).mean() / 1.3


def test_pillow_does_draft_convert_and_resize() -> None:
    data = saved(picture(1200, 900))
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (298, 224))
    assert image.size == (300, 225)
    expected = image.resize((298, 224), Image.Resampling.BILINEAR).crop((37, 0, 261, 224))
    found = imagehandler("pil", jpeg="pillow", size=224, crop=224)(".jpg", data)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("given", [(75, 105), (113, 113), (112, 128), (225, 301), (500, 470)])
def test_simplejpeg_decodes_to_the_size_that_pillow_decodes_to(
    given: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    monkeypatch.setattr(resize, "_opencv", lambda: None)
    for subsampling in (0, 1, 2):
        data = saved(picture(given[1], given[0]), subsampling=subsampling)
        for size in (56, (28, 30)):
            fast, slow = (
                imagehandler("rgb8", jpeg=jpeg, size=size)(".jpg", data) for jpeg in ("auto", "pillow")
            )
            assert numpy.array_equal(fast, slow)


def test_a_jpeg_is_decoded_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    shapes: list[tuple[int, ...]] = []
    decode = simplejpeg.decode_jpeg

    def watched(*args: Any, **how: Any) -> Any:
        array = decode(*args, **how)
        shapes.append(array.shape[:2])
        return array

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    for height, width in ((55, 56), (111, 150), (112, 150), (225, 225), (450, 1000)):
        imagehandler("rgb8", size=(56, 56))(".jpg", saved(picture(width, height)))
    assert shapes == [(55, 56), (111, 150), (56, 75), (57, 57), (57, 125)]


def test_images_of_pillow_keep_what_is_beside_the_pixels(jpeg: str) -> None:
    """Pixels stay as they are stored; the orientation is there for who wants it."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = saved(picture(60, 40), exif=exif, dpi=(72, 72), icc_profile=b"profile")
    found = imagehandler("pil", jpeg=jpeg)(".jpg", data)
    plain = Image.open(io.BytesIO(data))
    assert (found.size, found.tobytes()) == ((60, 40), plain.tobytes())
    assert found.info == plain.info
    assert found.getexif()[ORIENTATION] == 6
    assert ImageOps.exif_transpose(found).size == (40, 60)
    found.putpixel((0, 0), (1, 2, 3))
    assert imagehandler("rgb8", jpeg=jpeg)(".jpg", data).shape == (40, 60, 3)
    small = imagehandler("pil", jpeg=jpeg, size=(20, 30))(".jpg", data)
    assert small.size == (30, 20)
    assert small.getexif()[ORIENTATION] == 6


@pytest.mark.parametrize("bad", [0, -1, 1.5, "224", (1,) * 3, (0, 3), (), True])
def test_no_size(bad: Any) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        imagehandler("rgb8", size=bad)
    with pytest.raises(UsageError, match=r"crop=.* is not a size"):
        imagehandler("rgb8", crop=bad)


def test_a_size_without_a_spec_is_refused() -> None:
    for handlers in ([], ["audio"], [lambda key, data: None]):
        with pytest.raises(UsageError, match="needs an image format"):
            Decoder(handlers, size=224)


def test_a_picture_smaller_than_the_crop_is_an_error(jpeg: str) -> None:
    for form in ("JPEG", "PNG"):
        data = saved(picture(60, 40), form)
        with pytest.raises(DataError, match="40 x 60 pixels cannot be cropped to 41 x 2 "):
            imagehandler("rgb8", jpeg=jpeg, crop=(41, 2))(".png", data)
        with pytest.raises(DataError, match="10 x 15 pixels cannot be cropped to 10 x 16 "):
            imagehandler("pil", jpeg=jpeg, size=10, crop=(10, 16))(".png", data)


def test_a_thin_picture_does_not_become_a_huge_one(jpeg: str) -> None:
    for form in ("JPEG", "PNG"):
        data = saved(picture(2000, 1), form)
        with pytest.raises(DataError, match="301056000 bytes, more than"):
            imagehandler("rgb8", jpeg=jpeg, size=224)(".png", data)


def test_a_broken_picture_is_an_error_with_a_size_too(jpeg: str) -> None:
    data = saved(picture(600, 500))
    for spec in ("rgb8", "pil"):
        with pytest.raises(OSError, match="truncated"):
            imagehandler(spec, jpeg=jpeg, size=100)(".jpg", data[:-2000])


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("spec", ["rgb8", "torchrgb"])
def test_threads_workers_and_a_resume_change_no_pixel(tmp_path: Path, spec: str) -> None:
    pytest.importorskip("torch")
    with ShardWriter(str(tmp_path / "in-%06d.tar"), max_count=7) as writer:
        for number in range(25):
            writer.write(f"n{number}", {"jpg": saved(picture(100 + 7 * number, 140)), "cls": b"%d" % number})

    def loader(threads: int, workers: int) -> wds.WebLoader:
        data = wds.WebDataset(str(tmp_path), shuffle="window", seed=1, threads=threads)
        data = data.decode(spec, size=64, crop=(64, 48)).to_tuple("cls", "jpg").batched(4)
        return wds.WebLoader(data, num_workers=workers)

    whole = [(classes.tolist(), pixels.numpy().tobytes()) for classes, pixels in loader(1, 0)]
    assert len(whole) == 7
    for threads, workers in ((1, 2), (3, 0), (2, 1)):
        first, second = loader(threads, workers), loader(workers + 1, threads - 1)
        batches = iter(first)
        found = [next(batches) for _ in range(3)]
        second.load_state_dict(first.state_dict())
        found += second
        assert [(classes.tolist(), pixels.numpy().tobytes()) for classes, pixels in found] == whole


@pytest.mark.parametrize("options", [{"size": 32}, {"size": (32, 20)}, {"size": 48, "crop": 32}])
@pytest.mark.parametrize("spec", ["l8", "rgb8", "pil", "stored", "pilstored"])
def test_palettes_and_bits_are_resized_by_the_nearest_pixel(spec: str, options: dict[str, Any]) -> None:
    """Issue 35: a mask of the classes 0, 7 and 200 had 9 values."""
    classes = numpy.zeros((64, 64), numpy.uint8)
    classes[:, 21:], classes[:, 43:] = 7, 200
    indexed = Image.fromarray(classes)
    indexed.putpalette([level for index in range(256) for level in (index, 255 - index, 9)])
    for image in (indexed, Image.fromarray(classes > 5)):
        data = saved(image, "PNG")
        values = [
            set(
                map(
                    tuple,
                    numpy.asarray(imagehandler(spec, **how)(".png", data))
                    .reshape(-1, 3 if spec in ("rgb8", "pil") else 1)
                    .tolist(),
                )
            )
            for how in ({}, options)
        ]
        assert values[1] == values[0]


def test_gray_pictures_and_photos_are_resized_smoothly() -> None:
    for form in ("PNG", "JPEG"):
        data = saved(picture(640, 640, "L"), form)
        smooth = imagehandler("l8", size=64)(".png", data).astype(float)
        nearest = imagehandler("stored", size=64)(".png", data).astype(float)
        whole = Image.open(io.BytesIO(data)).resize((64, 64), Image.Resampling.BILINEAR)
        assert abs(smooth - numpy.asarray(whole)).mean() < 1 < abs(nearest - numpy.asarray(whole)).mean()


def test_decode_of_a_dataset(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "in-%06d.tar")) as writer:
        for number in range(5):
            fields = {"jpg": saved(picture(100 + 30 * number, 140)), "cls": b"%d" % number}
            writer.write(f"n{number}", {**fields, "small.png": saved(picture(31, 30), "PNG")})
    data = wds.WebDataset(str(tmp_path)).decode("rgb8", size=(64, 48)).to_tuple("jpg", "small.png", "cls")
    ((pictures, small, classes),) = data.batched(5)
    assert (pictures.shape, small.shape, classes.tolist()) == (
        (5, 64, 48, 3),
        (5, 64, 48, 3),
        [0, 1, 2, 3, 4],
    )
    decode = pickle.loads(pickle.dumps(Decoder(["rgb8"], size=20, crop=(10, 12))))
    assert decode({"jpg": saved(picture(60, 40))})["jpg"].shape == (10, 12, 3)
