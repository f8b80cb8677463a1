"""A ``jpg`` that holds PNG or WebP: ``verify --decode`` finds it, and ``map --rename-by-content`` mends it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from shard_cases import samples_of, wds_here
from verify_cases import tar_bytes, write

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("shared_workers")


def picture(form: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (1, 2, 3)).save(stream, form)
    return stream.getvalue()


JPEG, PNG, WEBP = picture("JPEG"), picture("PNG"), picture("WEBP")
MEMBERS = (
    (b"a.jpg", PNG), (b"a.cls", b"1"), (b"b.seg.jpg", WEBP), (b"b.jpg", JPEG), (b"c.txt", PNG[:4] + b"x"),
    (b"d.JPEG", picture("TIFF")), (b"e.png", picture("GIF")),
)  # fmt: skip


def findings(*args: object) -> list[tuple[str, str, str]]:
    ran = wds_here("verify", *args, "--json", "--errors", "other-format")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    rows = [line for line in lines if line.get("code") == "other-format"]
    assert ran.code == (1 if rows else 0)
    return [(row["member"], row["message"], row["hint"]) for row in rows]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_verify_finds_the_pictures_with_a_wrong_name(tmp_path: Path, suffix: str) -> None:
    members = [pair for pair in MEMBERS if pair[0] != b"c.txt"] + [(b"f.jpg.gz", gzip.compress(PNG))]
    data = tar_bytes(*members)
    shard = tmp_path / f"a{suffix}"
    shard.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    hint = "rename such fields with `wds map SHARDS -o OUT --rename-by-content`"
    assert findings("--decode", shard) == [
        ("a.jpg", "holds png", hint),
        ("b.seg.jpg", "holds webp", hint),
        ("d.JPEG", "holds tif", hint),
        ("e.png", "holds gif", hint),
    ]
    assert findings(shard) == []
    assert wds_here("verify", "--decode", shard).code == 0


def test_map_gives_them_the_right_names(tmp_path: Path) -> None:
    write(tmp_path, tar_bytes(*MEMBERS))
    ran = wds_here("map", tmp_path, "-o", tmp_path / "out/%06d.tar", "--rename-by-content", "-v")
    assert ran.code == 0, ran.err
    samples = [(key, dict(fields)) for key, fields in samples_of(next((tmp_path / "out").glob("*.tar")))]
    assert samples == [
        ("a", {"png": PNG, "cls": b"1"}),
        ("b", {"seg.webp": WEBP, "jpg": JPEG}),
        ("c", {"txt": PNG[:4] + b"x"}),
        ("d", {"tif": picture("TIFF")}),
        ("e", {"gif": picture("GIF")}),
    ]
    assert "field jpg: 1 picture renamed to png" in ran.err


@pytest.mark.parametrize(
    ("on_error", "code", "keys"), [("error", 1, []), ("skip", 0, ["b"]), ("keep", 0, ["a", "b"])]
)
def test_a_name_that_is_taken(tmp_path: Path, on_error: str, code: int, keys: Sequence[str]) -> None:
    write(tmp_path, tar_bytes((b"a.jpg", PNG), (b"a.png", PNG), (b"b.jpg", PNG)))
    ran = wds_here(
        "map", tmp_path, "-o", tmp_path / "out/%06d.tar", "--rename-by-content", "--on-error", on_error
    )
    assert (ran.code != 0) == bool(code), ran.err
    if code:
        assert "it holds png, but the sample already has a field png" in ran.err
    else:
        assert [key for key, _ in samples_of(next((tmp_path / "out").glob("*.tar")))] == keys


def test_it_goes_alone(tmp_path: Path) -> None:
    write(tmp_path, tar_bytes(*MEMBERS))
    for other in (["--resize", "9"], ["--cmd", "true"], ["--new-fields"]):
        ran = wds_here("map", tmp_path, "-o", tmp_path / "out.tar", "--rename-by-content", *other)
        assert ran.code == 2
