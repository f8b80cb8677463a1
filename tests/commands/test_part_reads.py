"""What a command that wants a part of a remote set reads: requests and bytes, by selection, by index, by store."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy
import pytest
from shard_cases import Ran, content, tar_of, wds
from storage_servers import S3, Web, forget_listings, web_server

from wdscli.codecs.handlers import HEAD_BYTES
from wdscli.plan import plan, scratch
from wdscli.storage import scatter
from wdscli.tar import core

SAMPLES, PICTURE_BYTES = 40, 150_000
KEY = "k27"


class Cost(NamedTuple):
    """What the shards of a set and their indexes cost: requests, and bytes of the answers."""

    requests: int
    received: int


class Stored(NamedTuple):
    """One set in a store. ``cost`` runs a command and gives what it cost."""

    url: str
    cost: Callable[..., tuple[Cost, Ran]]
    size_bytes: int
    has_index: bool


def _members() -> list[tuple[str, bytes]]:
    draw = random.Random(0)
    found = []
    for number in range(SAMPLES):
        found += [
            (f"k{number:02d}.cls", str(number % 10).encode()),
            (f"k{number:02d}.json", b'{"n": %d}' % number),
            (f"k{number:02d}.png", draw.randbytes(PICTURE_BYTES)),
        ]
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set in a folder: ``plain`` without index, ``indexed`` with one."""
    folder = tmp_path_factory.mktemp("here")
    data = tar_of(_members())
    for name in ("plain", "indexed"):
        (folder / name).mkdir()
        (folder / name / "a.tar").write_bytes(data)
    assert wds("index", folder / "indexed").code == 0
    (folder / "keys").write_text("k27\n")
    (folder / "table.jsonl").write_text('{"key": "k27", "more": 1}\n')
    return folder


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        server.validators = ("strong",)
        server.heads = []
        yield server


@pytest.fixture(scope="module")
def bucket(s3: S3, here: Path) -> str:
    name = s3.bucket("part-reads")
    for path, data in content(here).items():
        s3.client.put_object(Bucket=name, Key=path, Body=data)
    return name


@pytest.fixture
def stored(
    request: pytest.FixtureRequest, here: Path, s3: S3, web: Web, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Stored:
    kind, name = request.param
    monkeypatch.delenv("WDSCLI_STORE", raising=False)
    # How long a gap is read rather than left out is learnt from the requests before.
    monkeypatch.setattr(scatter, "_LINES", {})
    size = (here / name / "a.tar").stat().st_size

    def of_s3(*words: object) -> tuple[Cost, Ran]:
        forget_listings()
        s3.seen.begin_anew()
        ran = wds(*words)
        seen = [one for one in s3.seen.settled() if one.key.startswith(f"{name}/")]
        return Cost(len(seen), sum(one.sent for one in seen)), ran

    def of_web(*words: object) -> tuple[Cost, Ran]:
        assert web.heads is not None
        before = web.sent_bytes
        web.ranges.clear()
        web.heads.clear()
        ran = wds(*words)
        return Cost(len(web.ranges) + len(web.heads), web.sent_bytes - before), ran

    if kind == "s3":
        return Stored(f"s3://{bucket}/{name}/a.tar", of_s3, size, name == "indexed")
    web.files.update(content(here))
    return Stored(web.url(f"{name}/a.tar"), of_web, size, name == "indexed")


class Row(NamedTuple):
    """A command, and at most how many requests and how much of the shard it may read: with an index beside the shard,
    and without one, where all headers are read and these lie too near to each other to leave payloads out."""

    line: str
    requests: int
    share: float
    requests_plain: int = 4
    share_plain: float = 1.01


ROWS = [
    Row("cat --keys k27 --to raw --fields png {0} -o {1}/x.tar", 6, 0.04),
    Row("cat --keys k27 --to raw --fields cls {0} -o {1}/x.tar", 6, 0.02),
    Row("cat --to raw --fields png --keys k27 {0} -o {1}/x.tar", 6, 0.04),
    Row("cat --keys k27 {0} -o {1}/x.tar", 6, 0.04),
    Row("cat --keys k2* {0} -o {1}/x.tar", 6, 0.28),
    Row("cat --keys-from {2} {0} -o {1}/x.tar", 6, 0.04),
    Row("cat --keys k27 --drop json {0} -o {1}/x.tar", 6, 0.04),
    Row("cat --keys k27 --rekey {{key}}-{{index}} {0} -o {1}/x.tar", 6, 0.04),
    Row("cat --keys k27 --where json.n==27 {0} -o {1}/x.tar", 7, 0.04),
    Row("cat --slice 20:23 {0} -o {1}/x.tar", 6, 0.10),
    Row("cat --limit 2 {0} -o {1}/x.tar", 6, 0.06),
    # A number of samples is drawn after all keys were seen.
    Row("cat --sample 3 {0} -o {1}/x.tar", 11, 0.50, 8, 2.01),
    Row("cat --sample 5% {0} -o {1}/x.tar", 8, 0.50),
    Row("cat --keys k27 --to {1}/x/ {0}", 6, 0.04),
    Row("cat --keys k27 --to jsonl {0} -o {1}/lines", 7, 0.02),
    Row("cat --keys k27 --to jsonl --base64 {0} -o {1}/lines", 6, 0.04),
    # The columns of a table are known once all headers were read.
    Row("cat --keys k27 --fields cls --to tsv:{1}/x {0}", 11, 0.03, 8, 2.01),
    Row("cat --keys k27 --to parquet:{1}/x {0}", 11, 0.06, 8, 2.01),
    Row("cat {0} -o {1}/x.tar", 3, 1.01),
    Row("cat --to {1}/x/ {0}", 3, 1.01),
    Row("split --keys k27 {0} -o {1}/x-%d.tar -j 1", 6, 0.05),
    Row("merge --keys k27 {0} -o {1}/x-%d.tar -j 1", 6, 0.05),
    Row(
        "merge --keys k27 {0} --table {3} --key-column key --column txt=more -o {1}/x-%d.tar -j 1", 9, 0.10, 6
    ),
    Row("shuffle --keys k27 {0} -o {1}/x-%d.tar -j 1", 6, 0.05),
    Row("sort --by key --keys k27 {0} -o {1}/x-%d.tar -j 1", 6, 0.05),
    Row("map --keys k27 --filter cls cat {0} -o {1}/x-%d.tar -j 1", 6, 0.05),
    Row("split --keys k27 --where json.n==27 {0} -o {1}/x-%d.tar -j 1", 7, 0.05),
    Row("merge --keys k2* --where json.n==27 {0} -o {1}/x-%d.tar -j 1", 9, 0.30),
    Row("map --keys-from {2} --where json.n==27 --filter cls cat {0} -o {1}/x-%d.tar -j 1", 7, 0.05),
    Row("sort --by json.n --keys k27 {0} -o {1}/x-%d.tar -j 1", 8, 0.05),
    Row("ls {0}", 5, 0.02),
    Row("ls --keys k27 {0}", 5, 0.02),
    Row("ls --keys k27 --by member {0}", 5, 0.02),
    Row("ls --count size.png --count key {0}", 5, 0.02),
    Row("ls --count json.n --keys k2* {0}", 6, 0.28),
    Row("ls --count cls --keys k27 {0}", 6, 0.02),
    Row("ls --show --keys k27 {0}", 6, 0.04),
    Row("ls --sample 3 {0}", 10, 0.03, 8, 2.01),
    Row("ls --keys k27 --where json.n==27 {0}", 6, 0.02),
    Row("report --skip checks --sample 3 {0} -o {1}/page", 12, 0.60, 10, 2.50),
    Row("report --skip checks --keys k27 {0} -o {1}/page", 7, 0.06, 6, 1.10),
    # These read all that there is, once.
    Row("report --sample 3 {0} -o {1}/page", 5, 1.01),
    Row("verify {0}", 5, 1.01),
    Row("diff {0} {0}", 10, 2.02, 4, 2.02),
]
STORES = [("s3", "indexed"), ("s3", "plain"), ("web", "indexed"), ("web", "plain")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", ROWS, ids=[row.line.partition(" {0}")[0] for row in ROWS])
@pytest.mark.parametrize("stored", STORES, ids="-".join, indirect=True)
def test_a_part_costs_a_part(row: Row, stored: Stored, here: Path, tmp_path: Path) -> None:
    """The output, byte for byte, is that of the same command on the same set in a folder."""
    near, far = tmp_path / "near", tmp_path / "far"
    for folder, url in ((near, here / "plain" / "a.tar"), (far, stored.url)):
        folder.mkdir()
        words = [one.format(url, folder, here / "keys", here / "table.jsonl") for one in row.line.split()]
        cost, ran = stored.cost(*words)
        assert ran.code == 0, ran.err
    assert _written(near) == _written(far)
    requests, share = row[1:3] if stored.has_index else row[3:5]
    # What is read of a shard at first, its index, and what surrounds them.
    assert cost.received <= share * stored.size_bytes + 70_000, cost
    assert cost.requests <= requests, cost


def _written(folder: Path) -> dict[str, bytes]:
    """The outputs that do not name their inputs."""
    return {
        name: data
        for name, data in content(folder).items()
        if name.startswith("x") and not name.endswith("manifest.json")
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("core", [None, core.CORE], ids=["plain", "compiled"])
@pytest.mark.parametrize(
    "options",
    [
        "-o {}/x.tar",
        "--fields cls -o {}/x.tar",
        "--to raw --fields cls -o {}/x",
        "--to raw --fields cls --keys k13 -o {}/x",
        "--to {}/x/",
        "--to jsonl -o {}/x",
    ],
)
def test_a_stale_index_is_noticed(
    web: Web, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, core: object
) -> None:
    """One sample has another class, in as many bytes of the shard, and no version tells."""
    monkeypatch.setattr("wdscli.tar.core.CORE", core)
    data = (here / "indexed" / "a.tar").read_bytes()
    web.files.update(content(here), **{"indexed/a.tar": data.replace(*_one_longer("k13.cls"))})
    words = options.format(tmp_path).split()
    failed = wds("cat", web.url("indexed/a.tar"), "--keys", "k1[34]", *words)
    assert (failed.code, "the index is stale" in failed.err) == (3, True), failed.err
    web.files.update(content(here))
    assert wds("cat", web.url("indexed/a.tar"), "--keys", "k1[34]", *words, "--force").code == 0


def _one_longer(name: str) -> tuple[bytes, bytes]:
    """The header and payload of a member of one byte, and those of the same with two."""
    [short, long] = (tar_of([(name, data)])[:1024] for data in (b"3", b"33"))
    return short, long


def test_a_large_shard_with_an_index_is_requested_once(
    web: Web, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading all of it is begun early only where a copy will be made."""
    for module in (scratch, plan):
        monkeypatch.setattr(module, "REQUEST_BYTES", 1 << 22)
    web.files.update(content(here))
    before, url = web.sent_bytes, web.url("indexed/a.tar")
    assert wds("diff", url, url, "-j", 1).code == 0
    assert web.sent_bytes - before < 2.1 * len(web.files["indexed/a.tar"])


def _film(moov_is_last: bool, noise: bytes) -> bytes:
    """A film of 3 seconds and 64 x 48 pixels, with its header before or after the pictures."""

    def box(kind: bytes, *parts: bytes) -> bytes:
        content = b"".join(parts)
        return struct.pack(">I4s", 8 + len(content), kind) + content

    description = bytes(8) + struct.pack(">I4s24xHH", 40, b"avc1", 64, 48)
    stbl = box(b"stbl", box(b"stsd", description))
    track = box(b"trak", box(b"mdia", box(b"minf", box(b"vmhd", bytes(12)), stbl)))
    moov = box(b"moov", box(b"mvhd", bytes(12), struct.pack(">II", 30, 90), bytes(80)), track)
    mdat = box(b"mdat", noise)
    return box(b"ftyp", b"isomisom") + (mdat + moov if moov_is_last else moov + mdat)


def test_headers_cost_their_parts(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in headers of films, sounds and pictures read the head, and the box ``moov`` where it is."""
    draw, members = random.Random(1), list[tuple[str, bytes]]()
    for number in range(6):
        noise = draw.randbytes(400_000 - 400_000 % 4)
        sizes = (36 + len(noise), b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16, b"data", len(noise))
        wave = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", *sizes)
        picture = io.BytesIO()
        numpy.lib.format.write_array(picture, numpy.frombuffer(noise, dtype="u1").reshape(4, -1))
        members += [
            (f"k{number}.mp4", _film(number % 2 == 0, noise)),
            (f"k{number}.npy", picture.getvalue()),
            (f"k{number}.wav", wave + noise),
        ]
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    assert wds("index", tmp_path).code == 0
    web.files.update(content(tmp_path))
    place, url, size = tmp_path / "a.tar", web.url("a.tar"), (tmp_path / "a.tar").stat().st_size
    for expression in ("seconds(mp4)", "width(mp4) * height(mp4)", "seconds(wav)", "shape(npy)[0]"):
        # How long a gap is read rather than left out is learnt from the requests before.
        monkeypatch.setattr(scatter, "_LINES", {})
        web.ranges.clear()
        before = web.sent_bytes
        counted = wds("ls", "--count", expression, url)
        assert (counted.code, counted.out) == (0, wds("ls", "--count", expression, place).out)
        assert b"100.0%" in counted.out
        assert web.sent_bytes - before < 6 * 2 * HEAD_BYTES + 70_000 < size / 10
        assert len(web.ranges) <= 6 + 3 + 3
        where = ("--where", f"{expression} > 0", "-o", tmp_path / "s.json", "--force")
        assert wds("split", url, *where).code == 0
