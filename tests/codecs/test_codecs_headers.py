"""Headers of payloads, compared with the libraries that decode them; damaged ones give ValueError and nothing else."""

import io
import random
import struct
import wave
from contextlib import suppress

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from wdscli.codecs.handlers import HEAD_BYTES, PartialPayload
from wdscli.codecs.headers import array_shape, check_container, picture_size, seconds

SIDES = st.integers(1, 300)


def picture(form, width, height, **options):
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", (width, height), (1, 2, 3)).save(out, form, **options)
    return out.getvalue()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(
        [
            ("PNG", {}),
            ("JPEG", {}),
            ("JPEG", {"progressive": True, "comment": b"\xff\xd8" * 9}),
            ("GIF", {}),
            ("WEBP", {"lossless": True}),
            ("WEBP", {}),
            ("WEBP", {"exif": b"Exif\0\0II*\0"}),
            ("BMP", {}),
            ("TIFF", {}),
        ]
    ),
    SIDES,
    SIDES,
)
def test_pictures(form, width, height):
    assert picture_size(picture(form[0], width, height, **form[1])) == (width, height)


def sound(frames, rate=8000, channels=1, width=2):
    out = io.BytesIO()
    with wave.open(out, "wb") as made:
        made.setnchannels(channels)
        made.setsampwidth(width)
        made.setframerate(rate)
        made.writeframes(bytes(frames * channels * width))
    return out.getvalue()


@given(
    st.integers(0, 5000),
    st.sampled_from([8000, 44100, 48000]),
    st.sampled_from([1, 2, 6]),
    st.sampled_from([1, 2, 3]),
)
def test_wave(frames, rate, channels, width):
    data = sound(frames, rate, channels, width)
    with wave.open(io.BytesIO(data)) as read:
        assert seconds(data) == read.getnframes() / read.getframerate()


def test_a_wave_that_was_cut_off():
    data = bytearray(sound(8000))
    data[40:44] = b"\xff\xff\xff\xff"
    assert seconds(bytes(data)) == 1.0
    assert seconds(bytes(data[: 44 + 8000])) == 0.5


def flac(rate, frames):
    bits = rate << 44 | 1 << 41 | 15 << 36 | frames
    return b"fLaC\0\0\0\x22" + bytes(10) + bits.to_bytes(8, "big") + bytes(16)


def page(granule, serial, packet, flags=0):
    head = b"OggS\0" + bytes([flags]) + struct.pack("<qIII", granule, serial, 0, 0)
    return head + bytes([1, len(packet)]) + packet


def mp3(tag, frames, version=3, is_mono=False):
    side = (17 if is_mono else 32) if version == 3 else (9 if is_mono else 17)
    header = bytes([0xFF, 0xE0 | version << 3 | 1 << 1 | 1, 9 << 4, 0xC0 if is_mono else 0])
    return header + bytes(side) + tag + struct.pack(">II", 1, frames) + bytes(400)


def test_other_sounds():
    assert seconds(flac(48000, 24000)) == 0.5
    opus = b"OpusHead\x01\x02" + struct.pack("<HIH", 312, 44100, 0) + b"\0"
    assert seconds(page(0, 7, opus, 2) + page(-1, 7, b"x") + page(48312, 7, b"y") + page(9, 8, b"z")) == 1.0
    vorbis = b"\x01vorbis" + struct.pack("<IBI", 0, 2, 22050) + bytes(16)
    assert seconds(page(0, 1, vorbis, 2) + page(11025, 1, b"x")) == 0.5
    assert seconds(mp3(b"Xing", 100)) == 100 * 1152 / 44100
    assert (
        seconds(b"ID3\4\0\0\0\0\1\2" + bytes(130) + mp3(b"Info", 50, version=2, is_mono=True))
        == 50 * 576 / 22050
    )


def box(kind, *parts, long=False):
    content = b"".join(parts)
    return struct.pack(">I4sQ", 1, kind, 16 + len(content)) + content if long else (
        struct.pack(">I4s", 8 + len(content), kind) + content
    )  # fmt: skip


def film(length=90, rate=30, size=(64, 48), version=0, last=True, long=False):
    """The boxes of an MP4, the header before the content or after it, with a track of sound before the pictures."""
    times = struct.pack(">QQIQ" if version else ">IIII", 0, 0, rate, length)
    header = box(b"mvhd", bytes([version, 0, 0, 0]), times, bytes(80))
    entry = struct.pack(">I4s24xHH50x", 86, b"avc1", *(size or (0, 0)))
    sound_track = box(
        b"trak", box(b"mdia", box(b"minf", box(b"smhd", bytes(8)), box(b"stbl", box(b"stsd", bytes(60)))))
    )
    table = box(b"stbl", box(b"stsd", bytes(4), struct.pack(">I", 1), entry))
    pictures = box(
        b"trak",
        box(b"tkhd", bytes(84)),
        box(b"mdia", box(b"mdhd", bytes(24)), box(b"minf", box(b"vmhd", bytes(12)), table)),
    )
    moov = box(b"moov", header, sound_track, pictures if size else b"")
    mdat = box(b"mdat", bytes(500), long=long)
    return box(b"ftyp", b"isomisom") + (mdat + moov if last else moov + mdat)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_films(version, last):
    data = film(90, 30, (1920, 1080), version, last, long=version == 1)
    assert seconds(data) == 3.0
    assert picture_size(data) == (1920, 1080)
    assert check_container(data)


@pytest.mark.parametrize("name", ["film", "first", "mp3", "ogg", "wave", "flac", "jpeg", "npy"])
def test_parts_of_a_payload_say_the_same(name, monkeypatch):
    """Each function reads few parts, and its value or error is that of the whole payload, also if it is cut off."""
    from test_codecs_containers import a_wave, flac, ogg

    noise, array = bytes(300_000), io.BytesIO()
    numpy.save(array, numpy.zeros((7, 50_000), dtype="u1"))
    page = b"OggS\0" + bytes([4]) + struct.pack("<q", 48_000) + bytes(12) + b"\0"
    whole = {
        "film": film().replace(box(b"mdat", bytes(500)), box(b"mdat", noise)),
        "first": film(last=False) + box(b"free", noise),
        "mp3": b"ID3\4\0\0" + bytes([0, 18, 79, 96]) + noise + mp3(b"Xing", 100),
        "ogg": ogg()[:40] + struct.pack("<I", 48_000) + ogg()[44:] + 5 * (page + bytes(60_000)) + page,
        "wave": a_wave(200_000),
        "flac": flac() + noise,
        "jpeg": b"\xff\xd8" + b"".join(struct.pack(">HH", 0xFFE1, 60_002) + bytes(60_000) for _ in range(5))
        + struct.pack(">HHBHH", 0xFFC0, 17, 8, 48, 64) + noise,
        "npy": array.getvalue(),
    }[name]  # fmt: skip

    def result(read, data):
        try:
            return read(data)
        except ValueError as error:
            return str(error)

    for data in (whole, whole[:-1], whole[:70_000], whole[:30]):
        for read in (seconds, array_shape, picture_size):
            lengths = []

            def part(offset, length, data=data, lengths=lengths):
                lengths.append(length)
                return data[offset : offset + length]

            payload = PartialPayload(data[:HEAD_BYTES], len(data), part, lambda data=data: data)
            assert result(read, payload) == result(read, data)
            assert sum(lengths) <= 6 * HEAD_BYTES + (1 << 16)


def test_films_without_a_length_or_pictures():
    """A film in fragments states no length; a sound has no pictures; AVIF is a picture with boxes."""
    for length in (0, 0xFFFFFFFF):
        with pytest.raises(ValueError, match="does not give its duration"):
            seconds(film(length))
    assert seconds(film(size=None)) == 3.0
    with pytest.raises(ValueError, match="it has no pictures"):
        picture_size(film(size=None))
    for read in (seconds, picture_size):
        with pytest.raises(ValueError, match="it has no header"):
            read(box(b"ftyp", b"isom") + box(b"mdat", bytes(9)))
        with pytest.raises(ValueError, match="cut off: the box 'moov'"):
            read(film()[:-1])
    with pytest.raises(ValueError, match="not an image"):
        picture_size(box(b"ftyp", b"avifmif1") + film())


@pytest.mark.parametrize(("form", "options"), [("mp4", {}), ("mp4", {"movflags": "faststart"}), ("mov", {})])
def test_films_of_a_real_writer(form, options, tmp_path):
    av = pytest.importorskip("av")
    file = str(tmp_path / f"film.{form}")
    with av.open(file, "w", format=form, options=options) as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(25):
            container.mux(stream.encode(av.VideoFrame(96, 64, "yuv420p")))
        container.mux(stream.encode())
    data = (tmp_path / f"film.{form}").read_bytes()
    assert (data.index(b"moov") < data.index(b"mdat")) == bool(options)
    assert picture_size(data) == (96, 64)
    assert seconds(data) == 2.5


@pytest.mark.parametrize(
    "data", [b"", b"text", mp3(b"\0\0\0\0", 5), flac(48000, 0), page(0, 1, b"\x80theora"), b"\xff\xfb"]
)
def test_sounds_that_do_not_say_their_length(data):
    with pytest.raises(ValueError, match=r"[a-z]"):
        seconds(data)


@given(st.lists(st.integers(0, 9), max_size=4), st.sampled_from(["<f4", ">i8", "u1", "<U3"]), st.booleans())
def test_arrays(shape, dtype, fortran):
    out = io.BytesIO()
    numpy.save(out, numpy.zeros(shape, dtype, order="F" if fortran else "C"))
    assert array_shape(out.getvalue()) == shape


def test_damaged_headers_raise_value_errors_only():
    rng = random.Random(5)
    out = io.BytesIO()
    numpy.save(out, numpy.zeros((3, 4)))
    seeds = [
        (picture_size, picture("PNG", 9, 9)),
        (picture_size, picture("JPEG", 9, 9)),
        (picture_size, picture("GIF", 9, 9)),
        (picture_size, picture("WEBP", 9, 9)),
        (picture_size, picture("BMP", 9, 9)),
        (seconds, sound(9)),
        (seconds, flac(8000, 9)),
        (seconds, page(0, 1, b"\x01vorbis" + bytes(30), 2) + page(5, 1, b"x")),
        (seconds, mp3(b"Xing", 4)),
        (seconds, film(last=False)),
        (picture_size, film()),
        (picture_size, film(last=False, version=1)),
        (check_container, sound(9)),
        (check_container, flac(8000, 9) + b"\xff\xf8" * 9),
        (check_container, page(0, 1, b"\x01vorbis" + bytes(30), 2) + page(5, 1, b"x")),
        (check_container, b"ID3\4\0\0\0\0\1\2" + bytes(130) + mp3(b"Xing", 4)),
        (check_container, b"RIFF" + struct.pack("<I", 30) + b"AVI LIST\4\0\0\0hdrl" + bytes(30)),
        (check_container, struct.pack(">I4s4sI4sI4s", 12, b"ftyp", b"isom", 8, b"moov", 8, b"mdat")),
        (check_container, b"\x1aE\xdf\xa3\x81\0\x18S\x80g\x83abc"),
        (
            check_container,
            bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c1800000000000000")
            + bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c1800000000000000"),
        ),
        (array_shape, out.getvalue()),
    ]
    for read, data in seeds:
        for size in range(min(len(data), 200)):
            with suppress(ValueError):
                read(data[:size])
        for _ in range(300):
            other = bytearray(data)
            for _ in range(rng.randrange(1, 6)):
                other[rng.randrange(min(len(other), 160))] = rng.choice(
                    [0, 1, 0x7F, 0xFF, rng.randrange(256)]
                )
            with suppress(ValueError):
                read(bytes(other))
