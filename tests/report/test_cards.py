"""What a card shows of each kind of payload, and the room that it takes."""

from __future__ import annotations

import gzip
import io
from base64 import b64decode

import numpy
import pytest
from PIL import Image
from report_sets import picture, tone

from wdscli.report.looking import (
    MAX_CARD_CHARACTERS,
    MAX_PARTS,
    CardPart,
    DrawnSample,
    make_card,
    picture_size,
)

ROOM = 50_000
DRAWN = DrawnSample(0, "a.tar", 0, b"k", ())


def part(field: str, data: bytes | None, room: int = ROOM) -> CardPart:
    size = 0 if data is None else len(data)
    (only,) = make_card(DRAWN, [(field, size, data)], [], [], room, "a.tar").parts
    return only


def shown(one: CardPart) -> Image.Image:
    return Image.open(io.BytesIO(b64decode(one.uri.partition("base64,")[2])))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("field", "data", "kind", "text"),
    [
        ("txt", b"two\nlines", "text", "two\nlines"),
        ("cls", b"7\n", "text", "7"),
        ("json", b'{"a":[1,2]}', "text", '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        ("json", b"{", "note", "not what its name says: JSONDecodeError"),
        ("notes", "Füße".encode(), "text", "Füße"),
        ("bin", bytes(3), "note", "00 00 00"),
        ("pyd", b"\x80\x04K\x01.", "note", "80 04 4b 01 2e"),
        ("mp4", bytes(ROOM + 1), "note", "video, too large for this page"),
        ("wav", b"no sound", "audio", ""),
        ("jpg", b"no picture", "note", "not what its name says: DataError"),
        ("txt", None, "note", "cannot be read"),
    ],
)
def test_each_kind(field: str, data: bytes | None, kind: str, text: str) -> None:
    assert part(field, data)[1::2][:2] == (kind, text)


def test_arrays_by_type_and_shape() -> None:
    one, many = io.BytesIO(), io.BytesIO()
    numpy.save(one, numpy.zeros((3, 4), "f2"))
    numpy.savez(many, x=numpy.zeros(5, "i8"), y=numpy.float32(1))
    assert part("npy", one.getvalue()).text == "float16 3 × 4"
    assert part("npz", many.getvalue()).text == "x: int64 5, y: float32 number"


def test_sound_is_cut_where_its_format_allows_it() -> None:
    assert part("mp3", bytes(9000), 6000)[1:4] == ("audio", 9000, "the beginning")
    assert part("m4a", bytes(9000), 6000).kind == "note"
    assert len(b64decode(part("wav", tone(1), 4000).uri.partition(",")[2])) <= 4000


def test_pictures_fit_their_room_and_keep_their_shape() -> None:
    noise = encoded(Image.effect_noise((900, 600), 90).convert("RGB"))
    for room in (90_000, 20_000, 5_000):
        one = part("png", noise, room)
        assert (one.width, one.height) == (900, 600)
        assert len(b64decode(one.uri.partition(",")[2])) <= room
        width, height = shown(one).size
        assert abs(width / height - 1.5) < 0.02
    assert part("png", noise, 20).text == "image, too large for this page"
    assert part("png", noise, 0)[1:4] == ("note", len(noise), "image")


def test_faint_masks_are_stretched_and_small_pictures_keep_every_pixel() -> None:
    mask = Image.new("L", (8, 8), 0)
    mask.putpixel((3, 3), 5)
    assert shown(part("seg.png", encoded(mask))).getextrema() == (0, 255)
    deep = Image.new("I;16", (8, 8), 40_000)
    deep.putpixel((0, 0), 100)
    assert shown(part("png", encoded(deep))).getextrema() == (0, 255)
    heights = Image.new("F", (8, 8), 40_000)
    heights.putpixel((0, 0), 100)
    for gap in (float("nan"), float("inf")):
        heights.putpixel((7, 7), gap)
        assert shown(part("dem.tif", encoded(heights, "TIFF"))).getextrema() == (0, 255)
    whole = part("png", picture(3))
    assert whole.is_tiny
    assert shown(whole).tobytes() == Image.open(io.BytesIO(picture(3))).tobytes()
    clear = Image.new("RGBA", (9, 9), (1, 2, 3, 4))
    assert part("png", encoded(clear)).is_clear
    assert not whole.is_clear


def test_compressed_fields_are_shown_as_what_they_hold() -> None:
    # Who reads a payload has unpacked it.
    assert part("json.gz", gzip.decompress(gzip.compress(b"[1]"))).text == "[\n  1\n]"
    assert part("png.gz", picture(1)).kind == "image"


def test_a_card_has_its_bounds() -> None:
    payloads: list[tuple[str, int, bytes | None]] = [(f"f{at}.txt", 3000, b"x" * 3000) for at in range(99)]
    card = make_card(DRAWN, payloads, [("cls", "1")], [("txt", "y" * 999)], ROOM, "a.tar")
    assert len(card.parts) == MAX_PARTS + 1
    assert card.parts[-1].field == "and 59 more"
    assert sum(len(one.text) for one in card.parts) <= MAX_CARD_CHARACTERS + MAX_PARTS
    assert len(card.caption) < 300


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_the_size_of_a_picture_is_in_its_first_bytes(kind: str) -> None:
    whole = encoded(Image.new("RGB", (321, 123), (9, 9, 9)), kind)
    assert picture_size(whole[: max(200, len(whole) // 2)]) == (321, 123)
    assert picture_size(b"none") is None
