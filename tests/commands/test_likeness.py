"""Pictures and texts that look alike: ``dhash()``, ``simhash()``, ``--near``, and values of lists with ``--on``."""

from __future__ import annotations

import io
import random
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import Command
from shard_cases import keys_of, wds, write_shards

from wdscli.errors import UsageError
from wdscli.selection.near import NearHashes, dhash, hash_of, simhash

COMMAND: list[str] = []
Image = pytest.importorskip("PIL.Image")


def picture(seed: int) -> Image.Image:
    """A smooth picture of random colours."""
    noise = random.Random(seed)
    small = Image.frombytes("RGB", (12, 12), noise.randbytes(3 * 12 * 12))
    return small.resize((96, 96), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def darker(image: Image.Image) -> Image.Image:
    copy = image.copy()
    copy.putpixel((5, 5), (0, 0, 0))
    return copy


COPIES = {
    "encoded again": lambda image: encoded(image, "JPEG", quality=60),
    "resized": lambda image: encoded(image.resize((64, 64)), "JPEG", quality=90),
    "a darker pixel": lambda image: encoded(darker(image)),
}
PICTURES = 60


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A set of pictures, and a set with copies of the first of them and two pictures of its own."""
    train = [[(f"t{seed}.jpg", encoded(picture(seed), "JPEG", quality=90))] for seed in range(PICTURES)]
    copies = [
        [(f"{how}{seed}.jpg", copy(picture(seed)))] for how, copy in COPIES.items() for seed in range(9)
    ]
    own = [[(f"own{seed}.jpg", encoded(picture(1000 + seed), "JPEG"))] for seed in range(2)]
    return write_shards(tmp_path_factory.mktemp("sets"), [train, [*copies, *own]])


class TestHashes:
    def test_copies_are_near(self) -> None:
        for how, copy in COPIES.items():
            distances = [
                bits_between(dhash(encoded(picture(seed))), dhash(copy(picture(seed)))) for seed in range(30)
            ]
            assert sum(distance <= 3 for distance in distances) >= 27, how
        others = [
            bits_between(dhash(encoded(picture(0))), dhash(encoded(picture(seed)))) for seed in range(1, 30)
        ]
        assert min(others) > 10

    @pytest.mark.skipif(find_spec("imagehash") is None, reason="imagehash is not installed")
    @pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "CMYK"])
    def test_the_same_as_imagehash(self, mode: str) -> None:
        import imagehash

        data = encoded(picture(7).convert(mode), "TIFF")
        expected = int(str(imagehash.dhash(Image.open(io.BytesIO(data)))), 16)
        assert dhash(data) % (1 << 64) == expected

    def test_pinned(self) -> None:
        """An index stores hashes, so they must never change."""
        step = Image.frombytes("L", (9, 8), bytes((x * y) % 7 * 30 for y in range(8) for x in range(9)))
        assert dhash(encoded(step)) == PINNED
        assert simhash("The quick brown fox") == 1237479473481660078

    @pytest.mark.parametrize("mode", ["I;16", "F"])
    def test_wide_values(self, mode: str) -> None:
        wide = Image.new(mode, (9, 8))
        wide.putdata([(x * y) % 7 * 3000 for y in range(8) for x in range(9)])
        assert dhash(encoded(wide, "TIFF")) == PINNED

    def test_texts(self) -> None:
        text = " ".join(f"word{number} is here" for number in range(200))
        assert bits_between(simhash(text), simhash(text.replace("word77 ", "word ").upper())) <= 3
        assert bits_between(simhash(text), simhash("Nothing of this is like the other text.")) > 10
        assert simhash(" .,") is None
        assert simhash("\udc80 \U0001f600a") is not None


PINNED = 71474671036498176


def bits_between(first: int | None, second: int | None) -> int:
    assert first is not None
    assert second is not None
    return ((first ^ second) % (1 << 64)).bit_count()


class TestNearHashes:
    @pytest.mark.parametrize("bits", [1, 2, 3])
    def test_like_all_pairs(self, bits: int) -> None:
        noise = random.Random(bits)
        numbers = [noise.getrandbits(64) for _ in range(40)]
        for number in numbers[:20]:
            flips = sum(1 << place for place in noise.sample(range(64), noise.randrange(6)))
            numbers.append(number ^ flips)
        noise.shuffle(numbers)
        hashes, kept = NearHashes(bits), list[int]()
        for number in numbers:
            near = [place for place, other in enumerate(kept) if (other ^ number).bit_count() <= bits]
            assert hashes.add(number) == (near[0] if near else None)
            if not near:
                kept.append(number)

    @pytest.mark.parametrize("value", [b"u0", b"1.5", str(1 << 64).encode(), str(-(1 << 63) - 1).encode()])
    def test_no_hash(self, value: bytes) -> None:
        with pytest.raises(UsageError, match="numbers of 64 bits, but --on is"):
            hash_of(value, "--on")


@pytest.mark.parametrize("command", ["split", "merge", "sort", "shuffle", "cat"])
def test_dedup(good: Command, names: list[str], tmp_path: Path, command: str) -> None:
    ran = good(command, *names, "-o", tmp_path / "o.tar", "--dedup", "dhash(jpg)", "--near", "3")
    kept = {key for key in keys_of(tmp_path / "o.tar") if key[0] != "t"}
    assert {"own0", "own1"} <= kept
    assert len(kept) <= 2 + 2
    assert len(keys_of(tmp_path / "o.tar")) == PICTURES + len(kept)
    assert f"left out {27 + 2 - len(kept)} samples: duplicate" in ran.err


def test_dedup_names_the_first(good: Command, tmp_path: Path) -> None:
    hashes = [0b0, 0b111, 0b11, 0b11111, -1]
    shards = write_shards(
        tmp_path / "in", [[[(f"k{place}.n", b"%d" % number)] for place, number in enumerate(hashes)]]
    )
    for command in ("merge", "cat"):
        good(command, *shards, "-o", tmp_path / f"{command}.tar", "--dedup", "n+0", "--near", "2")
        assert keys_of(tmp_path / f"{command}.tar") == ["k0", "k1", "k4"]
    lines = good(
        "merge", *shards, "-o", tmp_path / "o.tar", "--dedup", "n+0", "--near", "2", "--json"
    ).objects
    assert [(line["duplicate"], line["of"]["key"]) for line in lines[:-1]] == [("k2", "k0"), ("k3", "k1")]


def test_leaks(good: Command, names: list[str], tmp_path: Path) -> None:
    train, val = names
    good(
        "split", train, "-o", tmp_path / "o.tar", "--not-keys-from", val, "--on", "dhash(jpg)", "--near", "3"
    )
    assert keys_of(tmp_path / "o.tar") == [f"t{seed}" for seed in range(9, PICTURES)]
    listed = good("ls", train, "--keys-from", val, "--on", "dhash(jpg)", "--near", "3").out.decode()
    assert [line.split("\t")[0] for line in listed.splitlines()] == [f"t{seed}" for seed in range(9)]


def test_leaks_by_key(good: Command, tmp_path: Path) -> None:
    names = write_shards(tmp_path / "in", [[[("a.x", b"1")], [("b.x", b"2")]], [[("b.x", b"3")]]])
    assert good("ls", names[0], "--not-keys-from", names[1]).out.startswith(b"a\t")
    assert good("ls", names[0], "--keys-from", names[1]).out.startswith(b"b\t")


def test_a_column(good: Command, tmp_path: Path) -> None:
    names = write_shards(
        tmp_path / "in", [[[("a.json", b'{"u": "x"}')], [("b.json", b'{"u": "y"}')], [("c.txt", b"")]]]
    )
    table = tmp_path / "t.csv"
    table.write_text("n,url\n1,x\n")
    assert good("ls", *names, "--keys-from", table, "--on", "url=json.u").out.startswith(b"a\t")
    wrong = wds("ls", *names, "--not-keys-from", table, "--on", "link=json.u")
    assert (wrong.code, 'has no column "link"' in wrong.err) == (4, True)
    left = good("ls", *names, "--not-keys-from", table, "--on", "url=json.u").out
    assert [line[:1] for line in left.splitlines()] == [b"b", b"c"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "json.u"], "--on needs a list of values"),
        (["--near", "3"], "--near needs a hash"),
        (["--near", "4", "--dedup", "dhash(jpg)"], "--near 4: 1 to 3 bits may differ"),
        (["--near", "3", "--dedup", "jpg"], "--near compares one hash"),
        (["--near", "3", "--dedup", "key,dhash(jpg)"], "--near compares one hash"),
        (["--dedup", "1"], "--dedup 1 is the same for all samples"),
        (["--not-keys-from", "{}", "--on", "size.jpg > 1", "--near", "3"], "--on is true"),
    ],
)
def test_refused(names: list[str], tmp_path: Path, options: list[str], message: str) -> None:
    ran = wds("merge", *names, "-o", tmp_path / "o.tar", *(word.format(names[1]) for word in options))
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_payloads_without_a_hash(good: Command, tmp_path: Path) -> None:
    names = write_shards(tmp_path / "in", [[[("a.jpg", b"no picture")], [("b.jpg", encoded(picture(1)))]]])
    for command in ("merge", "cat"):
        options = [command, *names, "-o", tmp_path / f"{command}.tar", "--dedup", "dhash(jpg)"]
        ran = wds(*options)
        assert (ran.code, "dhash() fails: it is not an image" in ran.err) == (3, True)
        good(*options, "--on-error", "skip")
        assert keys_of(tmp_path / f"{command}.tar") == ["a", "b"]
    ran = good("ls", *names, "--not-keys-from", names[0], "--on", "size.jpg", "--on-error", "skip")
    assert ran.out == b""
