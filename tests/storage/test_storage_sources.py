"""One contract for every kind of source: a file, a stream, a web server, an object store, a compressed one."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from left_open import leaves_nothing
from shard_cases import numbered, wds, write_shards
from storage_servers import S3, s3_server, web_server

from wdscli.errors import InputError
from wdscli.storage import Source, exists, open_source, read_all

SIZE = 300_000
DATA = random.Random(5).randbytes(SIZE)
SEEKABLE = ["file", "file-url", "memory", "http", "s3", "s3-obstore"]
STREAMS = ["stdin", "pipe", "fifo", "http-plain", "http-chunked", "http-unsized", "gzip", "gzip-http"]

Opener = Callable[[bytes], Source]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("sources")
        yield server


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """What puts bytes at an address of the kind asked for and opens them."""
    kind = request.param
    yield from {
        "file": _file, "file-url": _file_url, "memory": _memory, "s3": _s3, "s3-obstore": _s3, "stdin": _stdin,
        "pipe": _pipe, "fifo": _fifo, "gzip": _gzip,
    }.get(kind, _web)(request, tmp_path)  # fmt: skip


def _file(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    def opened(data: bytes) -> Source:
        (folder / "a.tar").write_bytes(data)
        return open_source(str(folder / "a.tar"))

    yield opened


def _file_url(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    def opened(data: bytes) -> Source:
        (folder / "a.tar").write_bytes(data)
        return open_source(f"file://{folder}/a.tar")

    yield opened


def _memory(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    import fsspec

    fs = fsspec.filesystem("memory")

    def opened(data: bytes) -> Source:
        fs.pipe_file(f"{folder}/a.tar", data)
        return open_source(f"memory://{folder}/a.tar")

    yield opened
    fs.rm(str(folder), recursive=True)


def _s3(request: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    server = request.getfixturevalue("s3")
    if request.param == "s3-obstore":
        pytest.importorskip("obstore")
        request.getfixturevalue("monkeypatch").setenv("WDSCLI_STORE", "obstore")

    def opened(data: bytes) -> Source:
        server.client.put_object(Bucket="sources", Key=f"{folder.name}/a.tar", Body=data)
        return open_source(f"s3://sources/{folder.name}/a.tar")

    yield opened


def _stdin(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    saved = os.dup(0)

    def opened(data: bytes) -> Source:
        (folder / "in").write_bytes(data)
        descriptor = os.open(folder / "in", os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        return open_source("-")

    yield opened
    os.dup2(saved, 0)
    os.close(saved)


def _pipe(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    def opened(data: bytes) -> Source:
        (folder / "a.tar").write_bytes(data)
        return open_source(f"pipe:cat {shlex.quote(str(folder))}/a.tar")

    yield opened


def _fifo(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    writers = []

    def opened(data: bytes) -> Source:
        (folder / "in").write_bytes(data)
        os.mkfifo(folder / "fifo")
        writers.append(
            subprocess.Popen(f"cat {folder}/in > {folder}/fifo", shell=True, stderr=subprocess.DEVNULL)
        )
        return open_source(str(folder / "fifo"))

    yield opened
    for writer in writers:
        writer.wait(10)


def _gzip(_: pytest.FixtureRequest, folder: Path) -> Iterator[Opener]:
    import gzip

    def opened(data: bytes) -> Source:
        (folder / "a.tar").write_bytes(gzip.compress(data[:70_000]) + gzip.compress(data[70_000:]))
        return open_source(str(folder / "a.tar"))

    yield opened


def _web(request: pytest.FixtureRequest, _: Path) -> Iterator[Opener]:
    import gzip

    modes = {"http": "ranges", "gzip-http": "ranges"}
    with web_server(modes.get(request.param, request.param.removeprefix("http-"))) as server:

        def opened(data: bytes) -> Source:
            server.files["a.tar"] = gzip.compress(data) if request.param == "gzip-http" else data
            return open_source(server.url("a.tar"))

        yield opened


every = pytest.mark.parametrize("place", SEEKABLE + STREAMS, indirect=True)
seekable = pytest.mark.parametrize("place", SEEKABLE, indirect=True)
streams = pytest.mark.parametrize("place", STREAMS, indirect=True)


@every
def test_reads_agree_with_the_bytes_at_rising_offsets(place: Opener) -> None:
    rnd = random.Random(9)
    with place(DATA) as source:
        position = 0
        while position < SIZE + 1000:
            length = rnd.choice([1, 512, 4096, 65_536, 100_000])
            if rnd.random() < 0.5:
                assert source.read_at(position, length) == DATA[position : position + length]
                position += length
            else:
                data = source.read_some(position, length)
                assert DATA[position : position + len(data)] == data
                assert len(data) <= length
                assert bool(data) == (position < SIZE)
                position += len(data) or length
            position += rnd.choice([0, 0, 0, 7, 20_000])


@every
def test_read_whole_and_at_the_end(place: Opener) -> None:
    with place(DATA) as source:
        assert source.read_at(0, 1 << 40) == DATA
        assert source.read_at(SIZE, 10) == b""
        assert source.read_some(SIZE, 10) == b""
        assert source.size == SIZE


@every
def test_empty(place: Opener) -> None:
    with place(b"") as source:
        assert source.read_at(0, 512) == b""
        assert source.read_some(0, 512) == b""
        assert source.size == 0


@seekable
def test_seekable_sources_jump_and_go_back(place: Opener) -> None:
    rnd = random.Random(3)
    with place(DATA) as source:
        assert source.seekable
        assert source.size == SIZE
        for _ in range(40):
            offset, length = rnd.randrange(SIZE + 10), rnd.choice([0, 1, 512, 70_000])
            assert source.read_at(offset, length) == DATA[offset : offset + length]


@streams
def test_streams_say_so_and_refuse_to_go_back(place: Opener) -> None:
    with place(DATA) as source:
        assert not source.seekable
        assert source.fd is None
        assert source.size is None
        source.read_at(0, 1000)
        with pytest.raises(InputError, match="can be read only once"):
            source.read_at(10, 5)


@every
def test_closing_early_and_twice_is_quiet(place: Opener) -> None:
    source = place(DATA * 20)
    source.read_at(0, 10)
    source.close()
    source.close()


def test_descriptor_of_a_local_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    with open_source(str(tmp_path / "a")) as source:
        assert source.fd is not None
        assert os.preadv(source.fd, [bytearray(5)], 0) == 5
        assert not os.get_inheritable(source.fd)
    assert source.fd is None


def test_compressed_bytes_as_they_are(tmp_path: Path) -> None:
    import gzip

    packed = gzip.compress(DATA)
    (tmp_path / "a").write_bytes(packed)
    with open_source(str(tmp_path / "a"), decompress=False) as source:
        assert source.read_at(0, 2 * SIZE) == packed
    assert read_all(str(tmp_path / "a")) == packed


@pytest.mark.parametrize("name", ["", "train-000001.tar", "b/x.tar"])
def test_missing_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train-000000.tar").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        open_source(name)
    assert str(caught.value) == f"cannot read {name}: no such file"
    hints = {"train-000001.tar": "did you mean train-000000.tar?", "b/x.tar": "there is no folder b"}
    assert caught.value.hint == hints.get(name)


def test_folder_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a folder"):
        open_source(str(tmp_path))
    with pytest.raises(InputError, match="embedded null"):
        open_source("a\0b")


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.tar")
    (tmp_path / name).write_bytes(b"hi")
    assert read_all(str(tmp_path / name)) == b"hi"


def test_exists(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert exists(str(tmp_path / "a"))
    assert not exists(str(tmp_path / "b"))
    assert not exists("-")
    assert not exists("pipe:true")


class TestCommands:
    def test_a_failing_command_is_an_error_however_much_it_sent(self) -> None:
        with open_source("pipe:head -c 300000 /dev/zero; exit 3") as source:
            assert source.read_at(0, 300_000) == bytes(300_000)
            with pytest.raises(InputError, match="exit status 3"):
                source.read_at(300_000, 1)

    def test_a_failing_command_within_a_read(self) -> None:
        source = open_source("pipe:echo hi; exit 1", decompress=False)
        with source, pytest.raises(InputError, match="exit status 1"):
            source.read_at(0, 100)

    def test_a_killed_command(self) -> None:
        with pytest.raises(InputError, match="SIGKILL"):
            open_source("pipe:kill -9 $$")

    def test_a_command_that_is_not_there(self) -> None:
        with pytest.raises(InputError, match="exit status 127"):
            open_source("pipe:no-such-command-here 2>/dev/null")

    def test_an_endless_command_is_stopped(self, tmp_path: Path) -> None:
        with open_source(f"pipe:echo $$ > {tmp_path}/pid; exec yes") as source:
            assert source.read_at(0, 4) == b"y\ny\n"
        pid = int((tmp_path / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_what_a_command_has_started_is_stopped_too(self, tmp_path: Path) -> None:
        source = open_source(
            f"pipe:echo hi; sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600'; true", decompress=False
        )
        assert source.read_some(0, 10) == b"hi\n"
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            time.sleep(0.01)
        source.close()
        pid = int((tmp_path / "pid").read_text())
        assert wait_for(lambda: not is_running(pid))

    def test_what_a_failing_command_says_is_shown(self, tmp_path: Path) -> None:
        done = wds("cat", "pipe:echo no such bucket >&2; exit 3", "-o", tmp_path / "b.tar")
        assert done.code == 4
        assert "no such bucket\n" in done.err
        assert "failed: exit status 3" in done.err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("end", [2560, 3071, 3584, 4096])
    def test_a_command_that_succeeds_with_half_a_tar(self, tmp_path: Path, end: int) -> None:
        """As a pipeline does whose first command fails. The tar's own end counts too."""
        (shard,) = write_shards(tmp_path, [numbered(2)])
        done = wds("cat", f"pipe:head -c {end} {shard}", "-o", tmp_path / "b.tar")
        assert done.code == 3, done.err
        assert not (tmp_path / "b.tar").exists()

    @pytest.mark.exhaustive
    def test_a_hundred_leave_nothing(self) -> None:
        """Read to the end, left early, failing: neither descriptors nor processes stay."""

        def read() -> None:
            for number in range(34):
                with open_source("pipe:echo hi", decompress=False) as source:
                    assert source.read_at(0, 10) == b"hi\n"
                with open_source("pipe:yes", decompress=False) as source:
                    assert source.read_some(0, 2) == b"y\n"
                with (
                    pytest.raises(InputError),
                    open_source(f"pipe:exit {number + 1}", decompress=False) as source,
                ):
                    source.read_at(0, 10)

        assert leaves_nothing(read)

    def test_a_silent_command_is_stopped(self) -> None:
        source = open_source("pipe:echo hi; exec sleep 600", decompress=False)
        assert source.read_some(0, 10) == b"hi\n"
        source.close()

    def test_no_command(self) -> None:
        from wdscli.errors import UsageError

        with pytest.raises(UsageError, match="needs a command"):
            open_source("pipe: ")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_read_some_does_not_wait_for_more() -> None:
    script = "import sys,time; sys.stdout.write('hi'); sys.stdout.flush(); time.sleep(600)"
    command = f"pipe:exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    with open_source(command, decompress=False) as source:
        assert source.read_some(0, 1 << 20) == b"hi"


def test_no_tar_from_a_terminal() -> None:
    from wdscli.errors import UsageError

    master, slave = os.openpty()
    saved = os.dup(0)
    os.dup2(slave, 0)
    try:
        with pytest.raises(UsageError, match="cannot read a tar from a terminal"):
            open_source("-")
    finally:
        os.dup2(saved, 0)
        for descriptor in (saved, master, slave):
            os.close(descriptor)
