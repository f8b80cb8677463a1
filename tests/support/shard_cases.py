"""Sets made by other hands than ours, and what is in a tar by other eyes: for the tests of cat and shuffle."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash

from wdscli.cli.main import main
from wdscli.shards import locks
from wdscli.shards.proof import find_index, scan_index
from wdscli.storage import open_source
from wdscli.storage.local import LocalSink
from wdscli.tar import END_OF_ARCHIVE, build_header, padding

Members = list[tuple[str, bytes]]
Kept = tuple[str, tuple[tuple[str, bytes], ...]]


class Ran:
    """What one run of a command did."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out
        self.err = err.decode("utf-8", "replace")

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def wds(*args: object, stdin: bytes | None = None, cwd: str | Path | None = None, **more: Any) -> Ran:
    """The command, with standard streams of its own: in this process, because to start one takes longer than most
    commands. In one of its own with other surroundings, and from a thread: streams and folder are the whole
    process's."""
    if more or threading.current_thread() is not threading.main_thread():
        return wds_process(*args, stdin=stdin, cwd=cwd, **more)
    before = os.getcwd()
    with own_streams(stdin) as said:
        os.chdir(cwd or before)
        try:
            code = main([str(arg) for arg in args])
        finally:
            os.chdir(before)
    return Ran(code, *said)


@contextlib.contextmanager
def own_streams(stdin: bytes | None) -> Iterator[list[bytes]]:
    """Standard streams as a process of its own has them: pipes, or nothing to read. What was written is in the list
    when the block has ended. Processes may hold on to a pipe, so its end is told by a mark."""
    mark = os.urandom(16)
    said: list[bytes] = []
    read_out, write_out = os.pipe()
    read_err, write_err = os.pipe()
    read_in, write_in = os.pipe()
    saved = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    with ThreadPoolExecutor(3) as threads:
        told = [threads.submit(_read_to, mark, read) for read in (read_out, read_err)]
        threads.submit(_write_all, write_in, stdin or b"")
        if stdin is None:
            os.close(read_in)
            read_in = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((read_in, write_out, write_err)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        try:
            with (
                open(0, closefd=False) as sys.stdin,
                open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
                open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as sys.stderr,
            ):
                yield said
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            for number in (1, 2):
                os.write(number, mark)
            for number, descriptor in enumerate(saved):
                os.dup2(descriptor, number)
                os.close(descriptor)
    said += [one.result() for one in told]


def _read_to(mark: bytes, descriptor: int) -> bytes:
    data = bytearray()
    while not data.endswith(mark):
        data += os.read(descriptor, 1 << 16)
    os.close(descriptor)
    return bytes(data[: -len(mark)])


def _write_all(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb") as file:
        file.write(data)


def wds_process(*args: object, stdin: bytes | None = None, **more: Any) -> Ran:
    """The command, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "wdscli", *map(str, args)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=120,
        **more,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def wds_here(*args: object) -> Ran:
    """The command, in this process: for tests of what it does, where many processes would only take their time."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in args])
    return Ran(code, *(stream.buffer.getvalue() for stream in (out, err)))  # type: ignore[attr-defined]


def sample(key: str, number: int, sizes: Sequence[int] = (10, 700)) -> Members:
    """One sample: a cls, and as many jpg-like fields as there are sizes."""
    rng = random.Random(f"{key!a}/{number}")
    names = ["jpg", "seg.png", "npy", "txt"]
    return [(f"{key}.cls", b"%d" % number)] + [
        (f"{key}.{name}", rng.randbytes(size)) for name, size in zip(names, sizes)
    ]


def numbered(count: int, prefix: str = "n", sizes: Sequence[int] = (10, 700)) -> list[Members]:
    """Samples ``n000``, ``n001``, ..."""
    return [sample(f"{prefix}{number:03d}", number, sizes) for number in range(count)]


def tar_of(members: Iterable[tuple[str, bytes]], **how: Any) -> bytes:
    """A canonical tar, or one by Python's tarfile when anything is said of how."""
    if how:
        return foreign_tar(members, **how)
    parts = []
    for name, payload in members:
        parts += [
            build_header(name.encode("utf-8", "surrogateescape"), len(payload)),
            payload,
            padding(len(payload)),
        ]
    return b"".join(parts) + END_OF_ARCHIVE


def foreign_tar(
    members: Iterable[tuple[str, bytes]], *, format: int = tarfile.USTAR_FORMAT, **fields: Any
) -> bytes:
    """A tar by Python's tarfile, whose headers are never canonical. ``fields`` are set on every member."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=format, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(payload))
    return out.getvalue()


def write_shards(folder: Path, shards: Sequence[Sequence[Members]], **how: Any) -> list[str]:
    """``in-0.tar``, ``in-1.tar``, ... below ``folder``."""
    folder.mkdir(exist_ok=True)
    names = []
    for number, samples in enumerate(shards):
        path = folder / f"in-{number}.tar"
        path.write_bytes(tar_of([member for one in samples for member in one], **how))
        names.append(str(path))
    return names


def members_of(path: str | Path | bytes) -> Members:
    """The regular members of a tar. Usual ustar headers are read here, in a tenth of the time of Python's tarfile,
    which reads all other tars."""
    data = path if isinstance(path, bytes) else Path(path).read_bytes()
    members, position = [], 0
    while any(header := data[position : position + 512]):
        size = header[124:135]
        if header[156:157] != b"0" or header[257:263] != b"ustar\0" or not size.isdigit():
            return members_by_tarfile(data)
        position += 512
        payload = data[position : position + int(size, 8)]
        if len(payload) < int(size, 8) or int(header[148:154], 8) != byte_sum(header):
            return members_by_tarfile(data)
        names = [part.partition(b"\0")[0] for part in (header[345:500], header[:100])]
        members.append((b"/".join(filter(None, names)).decode("utf-8", "surrogateescape"), payload))
        position += (len(payload) + 511) & -512
    return members


def members_by_tarfile(data: bytes) -> Members:
    """The regular members of a tar, as Python's tarfile reads them."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar if info.isreg()]  # type: ignore[union-attr]


def byte_sum(header: bytes) -> int:
    """The checksum of a header: the sum of its bytes, with blanks for the checksum itself."""
    return sum(header[:148]) + 8 * ord(" ") + sum(header[156:])


def split(name: str) -> tuple[str, str]:
    """Key and field."""
    folder, slash, base = name.rpartition("/")
    stem, _, field = base.partition(".")
    return folder + slash + stem, field


def samples_of(path: str | Path | bytes) -> list[Kept]:
    """(key, ((field, payload), ...)) of each sample of a tar."""
    found: list[tuple[str, list[tuple[str, bytes]]]] = []
    for name, payload in members_of(path):
        key, field = split(name)
        if not found or found[-1][0] != key:
            found.append((key, []))
        found[-1][1].append((field, payload))
    return [(key, tuple(fields)) for key, fields in found]


def keys_of(*paths: str | Path | bytes) -> list[str]:
    """The keys of some tars, in order."""
    return [key for path in paths for key, _ in samples_of(path)]


def outputs(folder: Path, pattern: str = "out-*.tar") -> list[Path]:
    """Shards of an output, in order."""
    return sorted(folder.glob(pattern))


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, but what Python compiles for itself."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def by_gnu_tar(folder: Path, members: Sequence[tuple[str, bytes]], *options: str) -> bytes:
    """The canonical archive of these members, as GNU tar writes it."""
    files = folder / "gnu"
    files.mkdir()
    for name, payload in members:
        path = files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    names = folder / "gnu.list"
    names.write_bytes(b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name, _ in members))
    plain = [
        "--format=ustar",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=0644",
        "-b",
        "1",
    ]
    done = subprocess.run(
        ["tar", "-C", str(files), *plain, *options, "--null", "--no-recursion", "-T", str(names), "-cf", "-"],
        capture_output=True,
        check=True,
    )
    return done.stdout


def mix(x: int) -> int:
    """One step of splitmix64, written from its definition and not from wdscli."""
    m = 2**64
    x = (x + 0x9E3779B97F4A7C15) % m
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % m
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % m
    return x ^ (x >> 31)


def shuffled_by_the_book(shards: Sequence[Sequence[Any]], seed: int) -> list[Any]:
    """All samples of shards in the order that `wds shuffle --seed` promises: by rank, shard and place."""
    places = [(s, i) for s, shard in enumerate(shards) for i in range(len(shard))]
    places.sort(key=lambda at: (mix(mix(mix(seed) ^ at[0]) ^ at[1]), at[0], at[1]))
    return [shards[s][i] for s, i in places]


def assert_true_set(folder: Path, prefix: str = "out", *, checksum: str = "xxh3_128") -> dict[str, Any]:
    """The manifest beside some shards says what is there, and every index is believed and equal to a scan."""
    (manifest_path,) = folder.glob(f"{prefix}*manifest.json")
    manifest: dict[str, Any] = json.loads(manifest_path.read_bytes())
    shards = sorted(folder.glob(f"{prefix}*.tar"))
    assert sorted(one["url"] for one in manifest["shardlist"]) == [path.name for path in shards]
    for one in manifest["shardlist"]:
        path = folder / one["url"]
        data = path.read_bytes()
        assert (one["nsamples"], one["filesize"]) == (len(samples_of(data)), len(data))
        if checksum == "sha256":
            said = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
            assert said.split()[0] == hashlib.sha256(data).hexdigest()
            assert one["checksum"] == "sha256:" + said.split()[0]
        elif checksum == "xxh3_128":
            assert one["checksum"] == "xxh3_128:" + xxhash.xxh3_128_hexdigest(data)
        else:
            assert not one.get("checksum")
        assert_true_index(path)
    return manifest


def assert_true_index(path: Path) -> None:
    """The index of a shard is believed, and says what a scan says."""
    complaints: list[str] = []
    with open_source(str(path)) as source:
        index = find_index(str(path), source, complaints.append)
        assert index is not None, complaints
        assert scan_index(source, index.form)[0].digest() == index.digest


def leftovers(folder: Path) -> list[str]:
    """Names of temporary files."""
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp")]


@contextlib.contextmanager
def no_new_files(folder: Path) -> Any:
    """Nothing is added, removed or changed below a folder."""
    before = content(folder)
    yield
    assert content(folder) == before


def interrupt_at(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Interrupt what runs in this process, as Ctrl-C does, before the file of this number gets its name, or a receipt
    is removed."""
    left = steps
    commit, remove = LocalSink.commit, locks.remove

    def step() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise KeyboardInterrupt

    def named(sink: LocalSink) -> None:
        step()
        commit(sink)

    def removed(address: str) -> None:
        step()
        remove(address)

    monkeypatch.setattr(LocalSink, "commit", named)
    monkeypatch.setattr(locks, "remove", removed)
