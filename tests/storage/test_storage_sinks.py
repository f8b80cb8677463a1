"""One contract for every kind of sink, and what each must do when things go wrong."""

from __future__ import annotations

import _thread
import asyncio
import base64
import errno
import gc
import os
import random
import shlex
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from left_open import leaves_nothing
from s3fs import S3FileSystem
from shard_cases import numbered, wds, write_shards
from storage_servers import S3, forget_s3, s3_server, web_server

from wdscli.errors import InputError, OutputError, OutputExistsError, UsageError
from wdscli.storage import Sink, exists, expand, open_sink, read_all, remove, uploads

PIECES = [random.Random(n).randbytes(n) for n in (0, 1, 511, 65_535, 65_536, 200_000, 3, 70_000)]
DATA = b"".join(PIECES)
KINDS = ["file", "memory", "s3"]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("sinks")
        yield server


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh folder."""
    if request.param == "memory":
        return f"memory://{tmp_path}"
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://sinks/{tmp_path.name}"
    return str(tmp_path)


def names(folder: str, s3: S3 | None = None) -> list[str]:
    """Every file below a folder, temporary ones and unfinished uploads included."""
    if folder.startswith("memory:"):
        import fsspec

        path = folder.removeprefix("memory://")
        return sorted(name.removeprefix(path + "/") for name in fsspec.filesystem("memory").find(path))
    if folder.startswith("s3:"):
        assert s3 is not None
        key = folder.removeprefix("s3://sinks/") + "/"
        found = s3.names("sinks") + s3.pending("sinks")
        return sorted(name.removeprefix(key) for name in found if name.startswith(key))
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


@pytest.fixture
def there(folder: str, request: pytest.FixtureRequest) -> Any:
    server = request.getfixturevalue("s3") if folder.startswith("s3:") else None
    return lambda: names(folder, server)


class TestEveryKind:
    def test_commit(self, folder: str, there: Any) -> None:
        with open_sink(f"{folder}/b/out.tar") as sink:
            assert sink.name == f"{folder}/b/out.tar"
            for piece in PIECES:
                sink.write(piece)
            assert not exists(sink.name)
            assert sink.written == len(DATA)
        assert read_all(f"{folder}/b/out.tar") == DATA
        assert there() == ["b/out.tar"]

    def test_buffers_may_be_reused(self, folder: str) -> None:
        buffer = bytearray(b"abcd")
        with open_sink(f"{folder}/out.tar") as sink:
            sink.write(memoryview(buffer)[:2])
            sink.write(buffer)
            buffer[:] = b"zzzz"
            sink.write(b"")
        assert read_all(f"{folder}/out.tar") == b"ababcd"

    def test_empty(self, folder: str) -> None:
        open_sink(f"{folder}/out.tar").commit()
        assert read_all(f"{folder}/out.tar") == b""

    def test_discard(self, folder: str, there: Any) -> None:
        sink = open_sink(f"{folder}/out.tar")
        sink.write(DATA)
        sink.discard()
        sink.discard()
        assert there() == []

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
    def test_an_exception_discards(self, folder: str, there: Any, error: type[BaseException]) -> None:
        with pytest.raises(error), open_sink(f"{folder}/out.tar") as sink:
            sink.write(DATA)
            raise error
        assert there() == []

    def test_closed_sinks_refuse(self, folder: str) -> None:
        sink = open_sink(f"{folder}/out.tar")
        sink.commit()
        with pytest.raises(OutputError, match="closed"):
            sink.write(b"x")
        with pytest.raises(OutputError, match="closed"):
            sink.commit()
        sink.discard()
        assert exists(f"{folder}/out.tar")

    def test_what_exists_is_refused(self, folder: str) -> None:
        put(f"{folder}/out.tar", b"old")
        with pytest.raises(OutputExistsError) as caught:
            open_sink(f"{folder}/out.tar")
        assert "exists already" in str(caught.value)
        assert "--force" in str(caught.value.hint)
        assert read_all(f"{folder}/out.tar") == b"old"

    def test_force_replaces_at_commit(self, folder: str, there: Any) -> None:
        put(f"{folder}/out.tar", b"old")
        with open_sink(f"{folder}/out.tar", force=True) as sink:
            sink.write(DATA)
            sink.flush()
            assert read_all(f"{folder}/out.tar") == b"old"
        assert read_all(f"{folder}/out.tar") == DATA
        assert there() == ["out.tar"]

    def test_a_failed_force_leaves_the_old(self, folder: str, there: Any) -> None:
        put(f"{folder}/out.tar", b"old")
        with pytest.raises(ValueError), open_sink(f"{folder}/out.tar", force=True) as sink:
            sink.write(DATA)
            raise ValueError
        assert read_all(f"{folder}/out.tar") == b"old"
        assert there() == ["out.tar"]

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_of_two_writers_the_second_fails(self, folder: str, there: Any, size: int) -> None:
        first, second = open_sink(f"{folder}/out.tar"), open_sink(f"{folder}/out.tar")
        first.write(b"1" * size)
        second.write(b"2" * size)
        first.commit()
        with pytest.raises(OutputExistsError):
            second.commit()
        assert read_all(f"{folder}/out.tar") == b"1" * size
        assert there() == ["out.tar"]

    def test_remove(self, folder: str, there: Any) -> None:
        put(f"{folder}/out.tar", b"old")
        remove(f"{folder}/out.tar")
        remove(f"{folder}/out.tar")
        assert there() == []

    @pytest.mark.parametrize("name", ["out.tar.gz", "out.tgz", "out.tar.zst"])
    def test_compressed_names_are_refused(self, folder: str, there: Any, name: str) -> None:
        """What is no shard (a plan, a list, raw payloads) is not compressed, whatever its name promises."""
        with pytest.raises(UsageError, match="the output is not a shard") as caught:
            open_sink(f"{folder}/{name}")
        assert caught.value.hint == f"leave out {name[3:]}"
        assert there() == []


def put(address: str, data: bytes) -> None:
    with open_sink(address) as sink:
        sink.write(data)


class TestFiles:
    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
    def test_the_mode_follows_the_umask(self, tmp_path: Path, umask: int, mode: int) -> None:
        before = os.umask(umask)
        try:
            put(f"{tmp_path}/out.tar", b"")
        finally:
            os.umask(before)
        assert (tmp_path / "out.tar").stat().st_mode & 0o777 == mode

    def test_the_temporary_name(self, tmp_path: Path) -> None:
        with open_sink(f"{tmp_path}/out.tar"):
            (name,) = os.listdir(tmp_path)
            assert name.startswith(".out.tar.")
            assert name.endswith(".tmp")

    def test_a_long_name(self, tmp_path: Path) -> None:
        name = "ä" * 125 + ".tar"
        put(f"{tmp_path}/{name}", b"hi")
        assert os.listdir(tmp_path) == [name]

    def test_a_name_in_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        put("out.tar", b"hi")
        with open_sink("out.tar", force=True, fsync=True) as sink:
            sink.write(b"ho")
        assert read_all("out.tar") == b"ho"

    @pytest.mark.parametrize("force", [False, True])
    def test_fsync_comes_before_the_name_and_the_folder_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
    ) -> None:
        seen: list[tuple[str, bool]] = []
        fsync = os.fsync

        def watched(descriptor: int) -> None:
            what = os.readlink(f"/proc/self/fd/{descriptor}")
            seen.append(("folder" if what == str(tmp_path) else "file", (tmp_path / "out.tar").exists()))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", watched)
        put(f"{tmp_path}/other.tar", b"")
        assert seen == []
        with open_sink(f"{tmp_path}/out.tar", force=force, fsync=True) as sink:
            sink.write(DATA)
        assert seen == [("file", False), ("folder", True)]

    def test_a_failed_fsync_gives_no_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))
        )
        with (
            pytest.raises(OutputError, match="input/output error"),
            open_sink(f"{tmp_path}/o", fsync=True) as sink,
        ):
            sink.write(DATA)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("fails_at", [1, 2, 4])
    def test_a_full_disc_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
    ) -> None:
        fail_write(monkeypatch, fails_at)
        with (
            pytest.raises(OutputError, match="no space left on device"),
            open_sink(f"{tmp_path}/out.tar") as sink,
        ):
            for _ in range(4):
                sink.write(bytes(100_000))
        assert os.listdir(tmp_path) == []

    def test_a_full_disc_at_the_commit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fail_write(monkeypatch, 1)
        with pytest.raises(OutputError, match=f"cannot write {tmp_path}/out.tar: no space"):
            put(f"{tmp_path}/out.tar", b"gathered until the commit")
        assert os.listdir(tmp_path) == []

    def test_a_failed_write_cannot_be_committed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fail_write(monkeypatch, 1)
        sink = open_sink(f"{tmp_path}/out.tar")
        with pytest.raises(OutputError):
            sink.write(bytes(100_000))
        with pytest.raises(OutputError):
            sink.commit()
        assert os.listdir(tmp_path) == []

    def test_short_writes_go_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:1000]))
        with open_sink(f"{tmp_path}/out.tar") as sink:
            for piece in PIECES:
                sink.write(piece)
        monkeypatch.undo()
        assert (tmp_path / "out.tar").read_bytes() == DATA

    def test_without_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        first, second = open_sink(f"{tmp_path}/out.tar"), open_sink(f"{tmp_path}/out.tar")
        first.write(b"1")
        first.commit()
        with pytest.raises(OutputExistsError):
            second.commit()
        assert os.listdir(tmp_path) == ["out.tar"]
        assert (tmp_path / "out.tar").read_bytes() == b"1"

    def test_a_forgotten_sink_leaves_nothing(self, tmp_path: Path) -> None:
        sink = open_sink(f"{tmp_path}/out.tar")
        sink.write(DATA)
        del sink
        gc.collect()
        assert os.listdir(tmp_path) == []

    def test_folders_and_bad_names(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(OutputError, match="it is a folder"):
            open_sink(str(tmp_path), force=True)
        with pytest.raises(OutputError, match=r"not a directory|exists"):
            open_sink(f"{tmp_path}/file/out.tar")
        with pytest.raises(OutputError, match="embedded null"):
            open_sink(f"{tmp_path}/a\0b")

    def test_what_has_the_name_of_its_folder_is_named(self, tmp_path: Path) -> None:
        """No file stands in the way of the shard, as "file exists" would say."""
        (tmp_path / "link").symlink_to("nowhere")
        (tmp_path / "file").write_bytes(b"")
        for name, what in (
            ("link", "a broken symlink"),
            ("file", "not a directory"),
            ("file/deep", "not a directory"),
        ):
            with pytest.raises(OutputError) as caught:
                open_sink(f"{tmp_path}/{name}/out.tar")
            stands = f"{tmp_path}/{name.partition('/')[0]}"
            assert caught.value.message == f"cannot write {tmp_path}/{name}/out.tar: {stands} is {what}"

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real.tar").write_bytes(b"old")
        (tmp_path / "link.tar").symlink_to("real.tar")
        with open_sink(f"{tmp_path}/link.tar", force=True) as sink:
            sink.write(b"new")
        assert (tmp_path / "link.tar").is_symlink()
        assert (tmp_path / "real.tar").read_bytes() == b"new"

    def test_writing_to_the_descriptor(self, tmp_path: Path) -> None:
        with open_sink(f"{tmp_path}/out.tar") as sink:
            sink.write(b"ab")
            sink.flush()
            assert sink.fd is not None
            os.write(sink.fd, b"cd")
            sink.wrote(2)
            sink.write(b"ef")
            assert sink.written == 6
        assert read_all(f"{tmp_path}/out.tar") == b"abcdef"

    def test_a_killed_writer_leaves_nothing_under_the_name(self, tmp_path: Path) -> None:
        script = f"""if True:
            import os
            from wdscli.storage import open_sink
            with open_sink({str(tmp_path / "out.tar")!r}) as sink:
                sink.write(bytes(1_000_000))
                os.kill(os.getpid(), 9)
        """
        assert subprocess.run([sys.executable, "-c", script]).returncode == -9
        (left,) = os.listdir(tmp_path)
        assert left.startswith(".out.tar.")
        with pytest.raises(InputError, match="no shard matches"):
            expand(str(tmp_path))

    def test_descriptors_are_closed(self, tmp_path: Path) -> None:
        def make() -> None:
            with open_sink(f"{tmp_path}/out.tar", force=True) as sink:
                sink.write(DATA)
            open_sink(f"{tmp_path}/b.tar").discard()

        assert leaves_nothing(make)


def fail_write(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """The disc is full from the given write on; the write before it is cut short, as the kernel would."""
    write, calls = os.write, [0]

    def failing(descriptor: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] >= call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, memoryview(data)[: len(data) // 2 + 1])

    monkeypatch.setattr(os, "write", failing)


class TestDevices:
    def test_dev_null_stays_a_device(self) -> None:
        with open_sink("/dev/null") as sink:
            sink.write(DATA)
        assert not Path("/dev/null").is_file()

    def test_named_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        reader = subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE)
        with open_sink(f"{tmp_path}/fifo") as sink:
            sink.write(b"hi")
        assert reader.communicate()[0] == b"hi"

    @pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
    def test_a_descriptor_goes_on_where_it_is(self, tmp_path: Path, name: str) -> None:
        script = (
            f"from wdscli.storage import open_sink\nwith open_sink({name!r}) as sink: sink.write(b'more')"
        )
        with open(tmp_path / "out", "wb") as out:
            out.write(b"header ")
            out.flush()
            subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
        assert (tmp_path / "out").read_bytes() == b"header more"

    def test_a_named_pipe_whose_reader_left(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        reader = subprocess.Popen(["head", "-c", "1", tmp_path / "fifo"], stdout=subprocess.DEVNULL)
        with pytest.raises(OutputError, match="broken pipe"), open_sink(f"{tmp_path}/fifo") as sink:
            for _ in range(100):
                sink.write(bytes(100_000))
        reader.wait()

    def test_full_device(self) -> None:
        with pytest.raises(OutputError, match="no space"), open_sink("/dev/full") as sink:
            sink.write(DATA)

    def test_terminal(self) -> None:
        master, slave = os.openpty()
        try:
            with pytest.raises(UsageError, match="cannot write a tar to a terminal"):
                open_sink(os.ttyname(slave))
        finally:
            os.close(master)
            os.close(slave)


class TestStdout:
    SCRIPT = """if True:
        from wdscli.storage import open_sink
        with open_sink("-") as sink:
            for _ in range(20):
                sink.write(bytes(9999))
    """

    def test_bytes(self) -> None:
        done = subprocess.run([sys.executable, "-c", self.SCRIPT], capture_output=True, check=True)
        assert done.stdout == bytes(9999 * 20)

    def test_a_closed_pipe_is_a_broken_pipe(self) -> None:
        script = self.SCRIPT.replace("range(20)", "range(1000)")
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        assert b"BrokenPipeError" in process.stderr.read()
        process.stderr.close()
        assert process.wait() == 1

    def test_no_tar_to_a_terminal(self) -> None:
        master, slave = os.openpty()
        done = subprocess.run([sys.executable, "-c", self.SCRIPT], stdout=slave, stderr=subprocess.PIPE)
        os.close(slave)
        os.close(master)
        assert b"UsageError: cannot write a tar to a terminal" in done.stderr

    def test_a_discarded_rest_is_not_written(self) -> None:
        script = "from wdscli.storage import open_sink\ns = open_sink('-'); s.write(b'x'); s.discard()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        assert done.stdout == b""


class TestCommands:
    def test_bytes(self, tmp_path: Path) -> None:
        with open_sink(f"pipe:cat > {quoted(tmp_path)}/out") as sink:
            for piece in PIECES:
                sink.write(piece)
        assert (tmp_path / "out").read_bytes() == DATA

    def test_commit_waits(self, tmp_path: Path) -> None:
        put(
            f"pipe:cat > {quoted(tmp_path)}/a; sleep 0.2; mv {quoted(tmp_path)}/a {quoted(tmp_path)}/b", b"hi"
        )
        assert (tmp_path / "b").read_bytes() == b"hi"

    @pytest.mark.exhaustive
    def test_a_hundred_leave_nothing(self) -> None:
        """Committed, discarded, failing: neither descriptors nor processes stay."""

        def make() -> None:
            for number in range(34):
                put("pipe:cat > /dev/null", b"hi")
                with pytest.raises(ValueError), open_sink("pipe:cat > /dev/null") as sink:
                    sink.write(b"hi")
                    raise ValueError
                with pytest.raises(OutputError, match=f"exit status {number + 1}"):
                    put(f"pipe:cat > /dev/null; exit {number + 1}", b"hi")

        assert leaves_nothing(make)

    def test_a_failing_command(self) -> None:
        with pytest.raises(OutputError, match="exit status 7"):
            put("pipe:cat > /dev/null; exit 7", DATA)

    @pytest.mark.parametrize("command", ["head -c 10 > /dev/null", "true", "exit 3"])
    def test_a_command_that_stops_reading(self, command: str) -> None:
        with (
            pytest.raises(OutputError, match=r"stopped reading|failed"),
            open_sink(f"pipe:{command}") as sink,
        ):
            for _ in range(100):
                sink.write(bytes(100_000))

    @pytest.mark.parametrize(
        "command", ["cat > {0}/out; touch {0}/done", "(cat; touch {0}/done) | cat > {0}/out"]
    )
    def test_discard_ends_it_before_it_takes_a_part_for_the_whole(self, tmp_path: Path, command: str) -> None:
        sink = open_sink("pipe:" + command.format(quoted(tmp_path)))
        sink.write(DATA)
        time.sleep(0.1)
        sink.discard()
        time.sleep(0.1)
        assert not (tmp_path / "done").exists()


def quoted(path: Path) -> str:
    return shlex.quote(str(path))


class TestS3:
    """What a failed upload leaves behind: nothing, not even the parts that were sent."""

    @pytest.fixture(autouse=True)
    def _small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)

    @pytest.fixture
    def bucket(self, s3: S3, tmp_path: Path) -> str:
        name = "up-" + tmp_path.name.lower().replace("_", "-")[:50].strip("-")
        return s3.bucket(name)

    def _begin(self, bucket: str, **options: bool) -> Sink:
        """A sink that has sent two parts of six million bytes."""
        sink = open_sink(f"s3://{bucket}/out.tar", **options)
        for _ in range(2):
            sink.write(b"x" * 6_000_000)
        return sink

    def test_commit(self, s3: S3, bucket: str) -> None:
        sink = self._begin(bucket)
        assert s3.pending(bucket) == ["out.tar"]
        assert s3.names(bucket) == []
        sink.commit()
        assert s3.get(bucket, "out.tar") == b"x" * 12_000_000
        assert s3.pending(bucket) == []

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("is_lent", [False, True])
    def test_later_parts_are_larger(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, is_lent: bool
    ) -> None:
        sizes = []

        async def noted(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            if method == "upload_part" and options["Bucket"] == bucket:
                sizes.append(len(options["Body"]) >> 20)
            return await call_s3(fs, method, *args, **options)

        monkeypatch.setattr(S3FileSystem, "_call_s3", noted)
        monkeypatch.setattr(uploads, "_LARGE_PART_BYTES", 20 << 20)
        data = random.Random(1).randbytes(43 << 20)
        buffer = bytearray(7 << 20)
        with open_sink(f"s3://{bucket}/out.tar") as sink:
            for first in range(0, len(data), len(buffer)):
                piece = data[first : first + len(buffer)]
                if is_lent:
                    sink.write_lent(
                        memoryview(piece)[at : at + 100_000] for at in range(0, len(piece), 100_000)
                    )
                else:
                    buffer[: len(piece)] = piece
                    sink.write(memoryview(buffer)[: len(piece)])
            assert sink.written == len(data)
        assert s3.get(bucket, "out.tar") == data
        assert sorted(sizes) == ([3, 20, 20] if is_lent else [3, 5, 5, 5, 5, 10, 10])

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_exception_aborts(self, s3: S3, bucket: str, error: type[BaseException]) -> None:
        with pytest.raises(error), self._begin(bucket):
            raise error
        assert s3.names(bucket) == s3.pending(bucket) == []

    def test_a_forgotten_sink_commits_nothing(self, s3: S3, bucket: str) -> None:
        sink = self._begin(bucket)
        del sink
        gc.collect()
        assert s3.names(bucket) == s3.pending(bucket) == []

    def test_a_failing_part_aborts(self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sink = self._begin(bucket)
        fail_requests(monkeypatch, "upload_part")
        with pytest.raises(OutputError, match="the line went dead"):
            for _ in range(20):
                sink.write(b"y" * 6_000_000)
        monkeypatch.undo()
        assert s3.names(bucket) == s3.pending(bucket) == []

    def test_a_failing_completion_aborts(self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sink = self._begin(bucket)
        fail_requests(monkeypatch, "complete_multipart_upload")
        with pytest.raises(OutputError, match="the line went dead"):
            sink.commit()
        monkeypatch.undo()
        assert s3.names(bucket) == s3.pending(bucket) == []

    @pytest.mark.parametrize("when", ["create_multipart_upload", "upload_part"])
    def test_an_interrupt_in_mid_request_aborts(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        """Also of an upload whose beginning was not answered yet."""
        asked = threading.Event()

        async def slow(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            if method == when:
                asked.set()
                await asyncio.sleep(0.5)
            return await call_s3(fs, method, *args, **options)

        monkeypatch.setattr(S3FileSystem, "_call_s3", slow)

        def interrupt() -> None:
            asked.wait(30)
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt), open_sink(f"s3://{bucket}/out.tar") as sink:
            while True:
                sink.write(b"x" * 6_000_000)
        thread.join()
        assert s3.names(bucket) == s3.pending(bucket) == []

    @pytest.mark.exhaustive
    def test_parts_go_out_several_at_a_time(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(uploads, "UNDER_WAY_BYTES", 16 << 20)
        under_way, most = 0, 0

        async def counted(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            nonlocal under_way, most
            # Parts of an upload that another test has given up may still be on their way.
            if method != "upload_part" or options["Bucket"] != bucket:
                return await call_s3(fs, method, *args, **options)
            under_way += 1
            most = max(most, under_way)
            end = time.monotonic() + 30
            while most < 3 and time.monotonic() < end:  # wait for the others
                await asyncio.sleep(0.01)
            try:
                return await call_s3(fs, method, *args, **options)
            finally:
                under_way -= 1

        monkeypatch.setattr(S3FileSystem, "_call_s3", counted)
        data = random.Random(1).randbytes(50_000_000)
        with open_sink(f"s3://{bucket}/out.tar") as sink:
            sink.write(data)
        assert most == 3  # of 5 MiB in 16
        assert s3.get(bucket, "out.tar") == data

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("size", [10, 12_000_000])
    def test_checksums_go_along(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        sent = []

        async def noted(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            # Parts of an upload that another test has given up may still be on their way.
            if "Body" in options and options["Bucket"] == bucket:
                sent.append((options["Body"], options.get("ChecksumCRC32")))
            return await call_s3(fs, method, *args, **options)

        monkeypatch.setattr(S3FileSystem, "_call_s3", noted)
        put(f"s3://{bucket}/out.tar", b"x" * size)
        assert sum(len(body) for body, _ in sent) == size
        for body, checksum in sent:
            assert checksum == base64.b64encode(zlib.crc32(b"".join(body.pieces)).to_bytes(4, "big")).decode()
        sent.clear()
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        forget_s3()
        put(f"s3://{bucket}/plain.tar", b"x" * size)
        assert {checksum for _, checksum in sent} == {None}
        forget_s3()

    @pytest.mark.parametrize("says", ["the store", "the answer"])
    @pytest.mark.parametrize(("times", "size"), [(1, 10), (1, 6_000_000), (99, 10), (99, 6_000_000)])
    def test_bytes_that_change_on_their_way(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, says: str, times: int, size: int
    ) -> None:
        """They are sent again, and refused at last. The store compares the checksum, or only names its own."""
        left = times

        async def changing(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            nonlocal left
            if not left or "Body" not in options:
                return await call_s3(fs, method, *args, **options)
            left -= 1
            if says == "the store":
                answer = {"Error": {"Code": "BadDigest"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
                raise OSError(errno.EIO, "bad digest") from ClientError(answer, method)  # type: ignore[arg-type]
            return {"ETag": "x", "ChecksumCRC32": "AAAAAA=="}

        monkeypatch.setattr(S3FileSystem, "_call_s3", changing)
        monkeypatch.setattr("wdscli.storage.retry.FIRST_PAUSE_SECONDS", 0.001)
        if times == 1:
            put(f"s3://{bucket}/out.tar", b"x" * size)
            assert s3.get(bucket, "out.tar") == b"x" * size
        else:
            with pytest.raises(OutputError, match="are not those that were sent"):
                put(f"s3://{bucket}/out.tar", b"x" * size)
            assert s3.names(bucket) == []
        assert s3.pending(bucket) == []

    @pytest.mark.parametrize("size", [10, 12_000_000])
    def test_an_answer_that_is_lost(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        """The second attempt finds the name taken, by the first."""
        lost = []

        async def losing(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            answer = await call_s3(fs, method, *args, **options)
            if method in ("put_object", "complete_multipart_upload") and not lost:
                lost.append(method)
                raise ConnectionResetError("reset by peer")
            return answer

        monkeypatch.setattr(S3FileSystem, "_call_s3", losing)
        monkeypatch.setattr("wdscli.storage.retry.FIRST_PAUSE_SECONDS", 0.001)
        put(f"s3://{bucket}/out.tar", b"x" * size)
        assert lost
        assert s3.get(bucket, "out.tar") == b"x" * size
        assert s3.pending(bucket) == []

    def test_a_name_taken_meanwhile(self, s3: S3, bucket: str) -> None:
        sink = self._begin(bucket)
        s3.client.put_object(Bucket=bucket, Key="out.tar", Body=b"other")
        with pytest.raises(OutputExistsError):
            sink.commit()
        assert s3.get(bucket, "out.tar") == b"other"
        assert s3.pending(bucket) == []

    def test_force_does_not_ask(self, s3: S3, bucket: str) -> None:
        sink = self._begin(bucket, force=True)
        s3.client.put_object(Bucket=bucket, Key="out.tar", Body=b"other")
        sink.commit()
        assert s3.get(bucket, "out.tar") == b"x" * 12_000_000

    @pytest.mark.parametrize("size", [10, 12_000_000])
    def test_a_store_without_conditions(
        self, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        async def refusing(fs: Any, method: str, *args: Any, **options: Any) -> Any:
            if "IfNoneMatch" in options:
                answer = {"Error": {"Code": "NotImplemented", "Message": "A header you provided ..."}}
                raise OSError("not implemented") from ClientError(answer, method)  # type: ignore[arg-type]
            return await call_s3(fs, method, *args, **options)

        monkeypatch.setattr(S3FileSystem, "_call_s3", refusing)
        put(f"s3://{bucket}/out.tar", b"x" * size)
        assert s3.get(bucket, "out.tar") == b"x" * size
        assert s3.pending(bucket) == []
        with pytest.raises(OutputExistsError):
            put(f"s3://{bucket}/out.tar", b"y")

    def test_no_bucket(self, s3: S3) -> None:
        with pytest.raises(OutputError, match=r"cannot write s3://no-such-bucket-here/a\.tar"):
            put("s3://no-such-bucket-here/a.tar", b"hi")

    def test_what_killed_writers_have_left(self, s3: S3, bucket: str, tmp_path: Path) -> None:
        """Whoever finishes a set aborts the uploads that were begun under its names, and no others."""
        shards = write_shards(tmp_path, [numbered(3)])
        ours = ("d/out-000007.tar", "d/out-manifest.json", "d/.wds/out-000001.tar.wdx")
        for key in (*ours, "d/out-7.tar", "out-000007.tar"):
            s3.client.create_multipart_upload(Bucket=bucket, Key=key)
        done = wds("merge", *shards, "-o", f"s3://{bucket}/d/out-%06d.tar")
        assert done.code == 0, done.err
        assert s3.pending(bucket) == ["d/out-7.tar", "out-000007.tar"]


class TestUploadsByFsspec:
    """The way of other stores than S3, with the one fsspec client that is here."""

    @pytest.fixture(autouse=True)
    def _as_other_stores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploads, "S3Sink", uploads.UploadSink)
        monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)

    @pytest.mark.parametrize("size", [0, 10, 12_000_000])
    def test_commit_and_discard(self, s3: S3, tmp_path: Path, size: int) -> None:
        bucket = s3.bucket("up-" + tmp_path.name.replace("_", "-")[:50].strip("-"))
        with pytest.raises(ValueError), open_sink(f"s3://{bucket}/out.tar") as sink:
            sink.write(b"x" * size)
            raise ValueError
        assert s3.names(bucket) == s3.pending(bucket) == []
        put(f"s3://{bucket}/out.tar", b"x" * size)
        assert s3.get(bucket, "out.tar") == b"x" * size

    def test_a_name_taken_meanwhile(self, s3: S3, tmp_path: Path) -> None:
        bucket = s3.bucket("taken-by-fsspec")
        sink = open_sink(f"s3://{bucket}/out.tar")
        sink.write(b"x")
        s3.client.put_object(Bucket=bucket, Key="out.tar", Body=b"other")
        with pytest.raises(OutputExistsError):
            sink.commit()
        assert s3.get(bucket, "out.tar") == b"other"


call_s3 = S3FileSystem._call_s3


def fail_requests(monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
    async def failing(fs: Any, method: str, *args: Any, **options: Any) -> Any:
        if method in methods:
            raise OSError(errno.EIO, "the line went dead")
        return await call_s3(fs, method, *args, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", failing)


def test_web_servers_are_only_read() -> None:
    with web_server("ranges") as server, pytest.raises(OutputError, match="read-only"):
        open_sink(server.url("a.tar"))


def test_unknown_scheme() -> None:
    with pytest.raises(OutputError, match="xyz:// is no known kind of address"):
        open_sink("xyz://a/b.tar")


@pytest.mark.parametrize("name", ["x.parquet", "n" * 220 + ".json"])
def test_the_next_run_removes_what_a_killed_run_left(tmp_path: Path, name: str) -> None:
    """issue 35, 19: the temporary file of a killed process, but not the file of a running one, or of another output."""
    before = {path.name for path in tmp_path.iterdir()}
    code = f"import os, wdscli.storage as s; a = s.open_sink({str(tmp_path / name)!r}); a.write(b'x'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    [left] = {path.name for path in tmp_path.iterdir()} - before
    other = tmp_path / ".y.parquet.0123456789ab.tmp"
    other.write_bytes(b"x")
    with open_sink(str(tmp_path / name), force=True) as running:
        assert not (tmp_path / left).exists()
        names = {path.name for path in tmp_path.iterdir()}
        with open_sink(str(tmp_path / name), force=True) as sink:
            assert names < {path.name for path in tmp_path.iterdir()}
            sink.write(b"new")
        running.write(b"newer")
    assert {path.name for path in tmp_path.iterdir()} == {name, other.name}


@pytest.mark.parametrize(
    "words", ["cat {}/a.tar --to {}/x.parquet", "index --force {}/a.tar", "ls {}/a.tar --to {}/x.csv"]
)
def test_a_killed_command_leaves_nothing_for_good(tmp_path: Path, words: str) -> None:
    if "parquet" in words:
        pytest.importorskip("pyarrow")
    [shard] = write_shards(tmp_path, [numbered(3, "a")])
    os.replace(shard, tmp_path / "a.tar")
    (tmp_path / ".wds").mkdir(exist_ok=True)
    target = tmp_path / (".wds/a.tar.wdx" if words.startswith("index") else words.rpartition("/")[2])
    left = target.parent / f".{target.name}.0123456789ab.tmp"
    left.write_bytes(b"x")
    ran = wds(*words.replace("{}", str(tmp_path)).split())
    assert ran.code == 0, ran.err
    assert target.exists()
    assert not left.exists()


def test_receipts_are_removed_where_the_listing_fails(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """issue 35, 19: a role may write and delete, but not list."""
    from wdscli.shards.locks import remove_receipts
    from wdscli.storage import remote

    for key in ("r/.wds/a-0.tar.done", "r/.wds/a-1.tar.done", "r/.wds/b-0.tar.done"):
        s3.client.put_object(Bucket="sinks", Key=key, Body=b"{}")

    def refused(*_: object) -> None:
        raise PermissionError("access denied")

    monkeypatch.setattr(remote, "_listing", refused)
    remove_receipts(["s3://sinks/r/a-0.tar", "s3://sinks/r/a-1.tar", "s3://sinks/r/a-2.tar"])
    monkeypatch.undo()
    assert [key for key in s3.names("sinks") if key.startswith("r/")] == ["r/.wds/b-0.tar.done"]
