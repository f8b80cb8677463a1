"""webdataset's writers: its own reader reads what they write, and nothing else about them is left to the clock."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from shard_cases import wds_here as wds

from wdscli.errors import DataError, OutputError, OutputExistsError, UsageError
from wdscli.loader import WebDataset
from wdscli.shards import ShardWriter as PlainWriter
from wdscli.shards import find_index, read_manifest
from wdscli.shards.webdataset_writers import ShardWriter, TarWriter
from wdscli.storage import open_source


def raw(paths: list[Path] | list[str]) -> list[dict[str, Any]]:
    """The samples as webdataset reads them, without what it adds."""
    webdataset = pytest.importorskip("webdataset")
    data = webdataset.WebDataset([str(path) for path in paths], shardshuffle=False)
    return [
        {name: value for name, value in one.items() if name[:2] != "__" or name == "__key__"} for one in data
    ]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*.tar*"))


def samples(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"__key__": f"s{number:04d}", "cls": number, "json": {"n": number}}


def test_the_snippet_with_a_count_and_a_hook(tmp_path: Path) -> None:
    """``ShardWriter(..., maxcount=400, post=upload)``: every shard is uploaded once it is whole."""
    uploaded: dict[str, int] = {}

    def upload(fname: str) -> None:
        with tarfile.open(fname) as tar:  # whole, or this raises
            uploaded[Path(fname).name] = len(tar.getnames())
        Path(fname).unlink()

    with ShardWriter(f"{tmp_path}/train-%06d.tar", maxcount=400, post=upload) as sink:
        for sample in samples(1000):
            sink.write(sample)
            assert len(shards(tmp_path)) <= 1
    assert uploaded == {"train-000000.tar": 800, "train-000001.tar": 800, "train-000002.tar": 400}
    assert shards(tmp_path) == []
    assert [shard.samples for shard in read_manifest(f"{tmp_path}/train-manifest.json").shards] == [
        400,
        400,
        200,
    ]


def test_the_snippet_with_fields_of_no_type(tmp_path: Path) -> None:
    """``TarWriter`` with ``image`` and ``label`` as bytes."""
    path = tmp_path / "dest.tar"
    sink = TarWriter(str(path))
    for number in range(3):
        assert (
            sink.write({"__key__": f"{number:06d}", "image": b"\xff\xd8 jpeg", "label": b"%d" % number}) == 8
        )
    assert shards(tmp_path) == []
    sink.close()
    sink.close()
    expected = [
        {"__key__": f"{number:06d}", "image": b"\xff\xd8 jpeg", "label": b"%d" % number}
        for number in range(3)
    ]
    assert raw([path]) == expected


def test_the_readers_example_of_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    image = numpy.arange(60, dtype=numpy.uint8).reshape(4, 5, 3)
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a/b", "png": image, "output.png": image / 255.0, "__url__": "left out"})
    (sample,) = WebDataset(str(tmp_path / "a.tar")).decode("rgb8")
    assert sample["__key__"] == "a/b"
    assert numpy.array_equal(sample["png"], image)
    assert numpy.array_equal(sample["output.png"], image)
    assert set(raw([tmp_path / "a.tar"])[0]) == {"__key__", "png", "output.png"}


def test_shards_are_what_our_own_writer_writes(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/a/x-%06d.tar", maxcount=3) as writer:
        for sample in samples(7):
            writer.write(sample)
    with PlainWriter(f"{tmp_path}/b/x-%06d.tar", max_count=3, max_size=3_000_000_000) as plain:
        for sample in samples(7):
            fields = {"cls": b"%d" % sample["cls"], "json": json.dumps(sample["json"]).encode()}
            plain.write(sample["__key__"], fields)
    one, other = (
        {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
            if path.is_file()
        }
        for name in "ab"
    )
    assert one == other
    assert len(one) == 3 + 3 + 1
    assert writer.manifest == plain.manifest


def test_the_clock_is_in_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, now in (("a", 1e9), ("b", 1.5e9)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        for suffix in ("tar", "tar.gz", "tar.bz2", "tar.xz"):
            with ShardWriter(f"{tmp_path}/{name}/x-%d.{suffix}", maxcount=2) as writer:
                for sample in samples(3):
                    writer.write(sample)
    names = [path.name for path in shards(tmp_path / "a")]
    assert len(names) == 8
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_mtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(**options: Any) -> list[float]:
        stream = io.BytesIO()
        with TarWriter(stream, **options) as writer:
            writer.write(next(samples(1)))
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            return [member.mtime for member in tar]

    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert (times(), times(mtime=7.9)) == ([0, 0], [7, 7])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert (times(), times(mtime=7)) == ([12, 12], [7, 7])
    with ShardWriter(f"{tmp_path}/x-%d.tar", mtime=5) as shard_writer:
        shard_writer.write(next(samples(1)))
    with tarfile.open(tmp_path / "x-0.tar") as tar:
        assert [member.mtime for member in tar] == [5, 5]


@pytest.mark.parametrize(
    ("compress", "suffix", "unpack"),
    [
        (None, ".tar", bytes),
        (False, ".tar", bytes),
        (None, ".tar.gz", gzip.decompress),
        (None, ".tgz", gzip.decompress),
        (True, ".tar", gzip.decompress),
        ("gz", ".tar.gz", gzip.decompress),
        ("bz2", ".tar.bz2", bz2.decompress),
        (None, ".tar.bz2", bz2.decompress),
        ("xz", ".tar", lzma.decompress),
        (None, ".tar.xz", lzma.decompress),
    ],
)
def test_compression(compress: Any, suffix: str, unpack: Any, tmp_path: Path) -> None:
    path, stream = tmp_path / f"a{suffix}", io.BytesIO()
    for target in (path, stream):
        with TarWriter(target, compress=compress) as writer:
            for sample in samples(5):
                writer.write(sample)
    plain = io.BytesIO()
    with TarWriter(plain) as writer:
        for sample in samples(5):
            writer.write(sample)
    assert unpack(path.read_bytes()) == plain.getvalue()
    # A file object has no name that could ask for it.
    assert (stream.getvalue() if compress is None else unpack(stream.getvalue())) == plain.getvalue()
    assert [sample["__key__"] for sample in raw([path])] == [f"s{number:04d}" for number in range(5)]


@pytest.mark.parametrize(
    ("suffix", "unpack"), [("gz", gzip.decompress), ("bz2", bz2.decompress), ("xz", lzma.decompress)]
)
def test_compression_of_much(suffix: str, unpack: Any, tmp_path: Path) -> None:
    noise = numpy.random.default_rng(0).integers(0, 256, 90_000, dtype=numpy.uint8).tobytes()
    plain = io.BytesIO()
    for target in (tmp_path / f"a.tar.{suffix}", plain):
        with TarWriter(target) as writer:
            for number in range(5):
                writer.write({"__key__": str(number), "bin": noise})
    assert unpack((tmp_path / f"a.tar.{suffix}").read_bytes()) == plain.getvalue()


def test_compression_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such compression"):
        TarWriter(tmp_path / "a.tar", compress="zip")
    with pytest.raises(UsageError, match="suffix means compression"):
        TarWriter(tmp_path / "a.tar.gz", compress=False)


def test_commands_compress_by_themselves(tmp_path: Path) -> None:
    with TarWriter(f"pipe:gzip > {tmp_path}/a.tar.gz") as writer:
        writer.write(next(samples(1)))
    assert len(raw([tmp_path / "a.tar.gz"])) == 1
    with ShardWriter(f"pipe:cat > {tmp_path}/x-%02d.tar", maxcount=1) as shard_writer:
        for sample in samples(2):
            shard_writer.write(sample)
    assert [path.name for path in shards(tmp_path)] == ["a.tar.gz", "x-00.tar", "x-01.tar"]


@pytest.mark.parametrize("kind", ["tar", "set"])
def test_an_exception_leaves_no_half_shard(kind: str, tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        with writer:
            for sample in samples(5):
                writer.write(sample)
            raise KeyError

    with pytest.raises(KeyError):
        fill(TarWriter(tmp_path / "x.tar.gz"))
    with pytest.raises(KeyError):
        fill(
            TarWriter(tmp_path / "x.tar")
            if kind == "tar"
            else ShardWriter(f"{tmp_path}/x-%d.tar", maxcount=2)
        )
    assert [path.name for path in shards(tmp_path)] == ([] if kind == "tar" else ["x-0.tar", "x-1.tar"])
    assert not list(tmp_path.glob("*manifest*"))


def test_a_file_object_is_left_without_an_end() -> None:
    stream = io.BytesIO()
    with pytest.raises(KeyError), TarWriter(stream) as writer:
        writer.write(next(samples(1)))
        raise KeyError
    assert not stream.getvalue().endswith(bytes(1024))
    with TarWriter(stream):
        pass
    assert stream.getvalue().endswith(bytes(1024))
    assert not stream.closed


def test_a_file_object_that_takes_a_little_at_a_time() -> None:
    class Slow(io.RawIOBase):
        def __init__(self) -> None:
            self.taken = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.taken += bytes(data[:1000])
            return min(1000, len(data))

    slow, stream = Slow(), io.BytesIO()
    for target in (slow, stream):
        with TarWriter(target) as writer:  # type: ignore[arg-type]
            writer.write({"__key__": "a", "x": bytes(range(256)) * 40})
    assert bytes(slow.taken) == stream.getvalue()

    class Full(Slow):
        def write(self, data: Any) -> int:
            return 0

    with pytest.raises(OutputError, match="wrote only 0 of"), TarWriter(Full()) as writer:  # type: ignore[arg-type]
        writer.write({"__key__": "a", "x": b"1"})


def test_what_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    def write(**options: Any) -> None:
        with ShardWriter(f"{tmp_path}/x-%d.tar", maxcount=1, **options) as writer:
            for sample in samples(options.pop("count", 2)):
                writer.write(sample)
        with TarWriter(tmp_path / "one.tar.gz", **options) as tar:
            tar.write(next(samples(1)))

    write()
    for make in (
        lambda: ShardWriter(f"{tmp_path}/x-%d.tar"),
        lambda: TarWriter(tmp_path / "x-0.tar"),
        lambda: TarWriter(tmp_path / "one.tar.gz"),
    ):
        with pytest.raises(OutputExistsError) as caught:
            make()
        assert "force=True" in (caught.value.hint or "")
    write(force=True)
    assert len(shards(tmp_path)) == 3


def test_maxsize_counts_the_bytes_of_the_shard(tmp_path: Path) -> None:
    limit = 21_900  # a sample more would fit, were it not for headers and padding
    with ShardWriter(f"{tmp_path}/x-%03d.tar", maxsize=float(limit)) as writer:
        for number in range(30):
            writer.write({"__key__": f"{number:03d}", "bin": bytes(3000), "long" * 40: b"1"})
        writer.write({"__key__": "large", "bin": bytes(50_000)})
        writer.write({"__key__": "last", "bin": b""})
    sizes = [path.stat().st_size for path in shards(tmp_path)]
    assert [size for size in sizes if size > limit] == [50_176 + 512 + 1024]
    # As full as may be: one sample more would not have fitted.
    length = 512 + 3072 + 512 + 512 + 512 + 512
    assert all(size + length > limit for size in sizes[:5])
    assert len(raw(shards(tmp_path))) == 32


def test_limits_that_cannot_be_meant(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/x-%d.tar", maxcount=None, maxsize=float("inf")) as writer:
        for sample in samples(3):
            writer.write(sample)
    assert len(shards(tmp_path)) == 1
    for limits in ({"maxcount": 0}, {"maxsize": 0.5}):
        with pytest.raises(UsageError, match="at least 1"):
            ShardWriter(f"{tmp_path}/y-%d.tar", **limits)  # type: ignore[arg-type]


def test_a_later_start_is_part_of_a_larger_set(tmp_path: Path) -> None:
    pattern = f"{tmp_path}/x-%03d.tar"
    with ShardWriter(pattern, maxcount=1) as writer:
        for sample in samples(2):
            writer.write(sample)
    before = (tmp_path / "x-manifest.json").read_bytes()
    with ShardWriter(pattern, maxcount=1, start_shard=2) as writer:
        assert writer.shard == 2
        for number, sample in enumerate(samples(3)):
            writer.write({**sample, "__key__": f"t{number}"})
    assert [path.name for path in shards(tmp_path)] == [f"x-{number:03d}.tar" for number in range(5)]
    # The manifest names the shards it named.
    assert (tmp_path / "x-manifest.json").read_bytes() == before
    with pytest.raises(OutputExistsError), ShardWriter(pattern, start_shard=4) as writer:
        writer.write(next(samples(1)))


def test_an_opener_gives_the_file_objects(tmp_path: Path) -> None:
    opened: list[io.BytesIO] = []

    class Kept(io.BytesIO):
        data = b""

        def close(self) -> None:
            self.data = self.getvalue()
            super().close()

    def opener(name: str) -> Any:
        opened.append(Kept())
        opened[-1].name = name
        return opened[-1]

    posted: list[str] = []
    with ShardWriter("any://%02d", maxcount=2, opener=opener, post=posted.append) as writer:
        for sample in samples(3):
            writer.write(sample)
        assert (writer.fname, writer.total, writer.count, writer.shard) == ("any://01", 3, 1, 2)
    assert posted == ["any://00", "any://01"]
    assert [one.closed for one in opened] == [True, True]
    for one, count in zip(opened, (4, 2)):
        with tarfile.open(fileobj=io.BytesIO(one.data)) as tar:  # type: ignore[attr-defined]
            assert len(tar.getnames()) == count
    with pytest.raises(UsageError, match="needs %06d"), ShardWriter("same", opener=opener) as writer:
        writer.write(next(samples(1)))


def test_next_stream_and_finish(tmp_path: Path) -> None:
    writer = ShardWriter(f"{tmp_path}/x-%d.tar")
    for sample in samples(4):
        writer.write(sample)
        writer.next_stream() if sample["cls"] == 0 else writer.finish()
    writer.close()
    assert [shard.samples for shard in writer.manifest.shards] == [1, 1, 1, 1]
    with pytest.raises(UsageError, match="closed"):
        writer.write(next(samples(1)))


def test_no_samples(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/x-%d.tar", post=lambda name: pytest.fail(name)):
        pass
    assert shards(tmp_path) == []
    with ShardWriter(f"{tmp_path}/one.tar") as writer:
        pass
    assert (tmp_path / "one.tar").read_bytes() == bytes(1024)
    assert writer.manifest.samples == 0


def test_encoders(tmp_path: Path) -> None:
    with ShardWriter(
        f"{tmp_path}/x-%d.tar", encoder=lambda sample: {**sample, "cls": b"own"}, keep_meta=True
    ) as own:
        own.write({"__key__": "a", "cls": 5, "__url__": "kept", "_note": b"too"})
    with tarfile.open(tmp_path / "x-0.tar") as tar:
        assert tar.getnames() == ["a.__url__", "a._note", "a.cls"]
        member = tar.extractfile("a.cls")
        assert member is not None
        assert member.read() == b"own"
    with TarWriter(io.BytesIO(), encoder=False) as writer, pytest.raises(UsageError, match="int, not bytes"):
        writer.write({"__key__": "a", "cls": 5})
    with TarWriter(io.BytesIO(), encoder="pickle") as writer:
        assert writer.write({"__key__": "a", "pyd": [1]}) > 0


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"cls": 1}, 'the "__key__" of a sample'),
        ({"__key__": 5, "cls": 1}, 'the "__key__" of a sample'),
        ({"__key__": "a"}, "has no fields"),
        ({"__key__": "a", "_x": b""}, "has no fields"),
        ({"__key__": "a.b", "cls": 1}, "would be read back as another key and field"),
        ({"__key__": "../a", "cls": 1}, "unsafe name"),
        ({"__key__": "a", "b/c": b"1"}, "would be read back as another key and field"),
        ({"__key__": "__a", "x__": b"1", "y": b"2"}, "would be read back as another key and field"),
        ({"__key__": "a", "label": 5}, "there is no encoder for int as label"),
    ],
)
def test_samples_that_cannot_be_written(sample: dict[str, Any], message: str, tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/x-%d.tar") as writer:
        writer.write({"__key__": "ok", "y": b"1", "x__": b"", "cls": 1})
        with pytest.raises(UsageError, match=message):
            writer.write(sample)
        writer.write({"__key__": "ok2", "cls": 1})
    assert [one["__key__"] for one in raw(shards(tmp_path))] == ["ok", "ok2"]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_key_comes_once_in_a_shard(suffix: str, tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/x-%d.{suffix}", maxcount=2) as writer:
        for sample in samples(2):
            writer.write(sample)
        for sample in samples(2):
            with pytest.raises(DataError, match="repeated key"):
                writer.write(sample)
    assert len(raw(shards(tmp_path))) == 2


def test_indexes_lie_beside_plain_shards(tmp_path: Path) -> None:
    for name, options in (("a.tar", {}), ("b.tar", {"index": False}), ("c.tar", {"checksum": "sha256"})):
        with TarWriter(tmp_path / name, **options) as writer:  # type: ignore[arg-type]
            writer.write(next(samples(1)))
        with open_source(str(tmp_path / name)) as source:
            assert (find_index(str(tmp_path / name), source) is None) is (name == "b.tar")
    assert writer.info is not None
    assert str(writer.info.checksum).startswith("sha256")
    with ShardWriter(f"{tmp_path}/x-%d.tar", index=False, checksum="none") as shard_writer:
        shard_writer.write(next(samples(1)))
    assert shard_writer.manifest.shards[0].checksum is None
    assert not (tmp_path / ".wds" / "x-0.tar.wdx").exists()


def test_arguments_that_change_nothing_say_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="user, mode: ignored") as caught:
        TarWriter(io.BytesIO(), user="me", mode=0o600)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="format"):
        ShardWriter(f"{tmp_path}/x-%d.tar", format="PAX_FORMAT")
    with pytest.raises(UsageError, match="no such option: colour"):
        ShardWriter(f"{tmp_path}/x-%d.tar", colour=1)


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ShardWriter(f"{tmp_path}/x-%d.tar", 1, 3e9, None, 0, 1) as writer:
        for sample in samples(2):
            writer.write(sample)
    assert capfd.readouterr() == ("", "")


def test_a_writer_that_is_not_closed_warns(tmp_path: Path) -> None:
    """Issue 35, point 12."""
    writer = ShardWriter(f"{tmp_path}/s-%03d.tar", maxcount=2)
    for number in range(5):
        writer.write({"__key__": str(number), "txt": "a"})
    with pytest.warns(
        UserWarning, match="ShardWriter was not closed: .*s-002.tar with 1 sample .* has 2 finished"
    ):
        del writer
    archive = TarWriter(str(tmp_path / "a.tar"))
    archive.write({"__key__": "a", "txt": "a"})
    with pytest.warns(UserWarning, match="TarWriter was not closed: .*a.tar with 1 sample is not complete"):
        del archive
    ran = wds("ls", tmp_path)
    assert "close its writer" in ran.err
    assert "same command" not in ran.err


def test_a_writer_without_lost_samples_does_not_warn(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for number, end in enumerate((ShardWriter.close, ShardWriter.discard, None)):
        writer = ShardWriter(f"{tmp_path}/{number}-%03d.tar")
        if end is not None:
            writer.write({"__key__": "a", "txt": "a"})
            end(writer)
        del writer
    assert not recwarn.list


def test_a_program_that_forgets_to_close_its_writers_is_told_at_its_end(tmp_path: Path) -> None:
    script = f"""
import os, wdscli.loader as wds
from wdscli.shards import ShardWriter
class Own(wds.ShardWriter):
    def next_stream(self):
        self.finish()
        self.fname = {str(tmp_path / "own.tar")!r}
        self.tarstream = wds.TarWriter(self.fname, **self.kw)
cycle = {{"writer": wds.ShardWriter({str(tmp_path / "s-%03d.tar")!r}), "own": Own("x-%d.tar")}}
cycle["self"] = cycle
for writer in (cycle["writer"], cycle["own"]):
    for number in range(5):
        writer.write({{"__key__": str(number), "txt": "a"}})
plain = ShardWriter({str(tmp_path / "p-%03d.tar")!r})
plain.write("a", {{"txt": b"a"}})
if os.fork() == 0:
    raise SystemExit
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "was not closed" in line]
    assert sorted(line.partition("Warning: a ")[2].partition(" is not")[0] for line in lines) == [
        f"Own was not closed: {tmp_path}/own.tar with 5 samples",
        f"ShardWriter was not closed: {tmp_path}/p-000.tar with 1 sample",
        f"ShardWriter was not closed: {tmp_path}/s-000.tar with 5 samples",
    ]
