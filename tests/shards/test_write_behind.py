"""A shard's large buffers are written by a second thread: the same bytes, the same errors, and no thread that stays."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_cases import content, numbered, tar_of, wds_here, write_shards

from wdscli.errors import OutputError
from wdscli.samples.reading import packed
from wdscli.shards import writing
from wdscli.shards.writing import ShardFile
from wdscli.storage import local
from wdscli.tar import core
from wdscli.threads import WriteBehind

SIZES = [3_000, 40_000]
"""Twenty samples fill a megabyte."""
needs_core = pytest.mark.skipif(core.CORE is None, reason="without the core, no buffer is written as a whole")


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("wdscli-write")]


def lend(shard: ShardFile, prefix: str, sizes: list[int] = SIZES, count: int = 20) -> bytes:
    """Write samples through the spare buffer, and return their bytes."""
    data = tar_of([member for one in numbered(count, prefix, sizes) for member in one])[:-1024]
    view = shard.spare(len(data))
    view[:] = data
    usual = packed(view, None, shard.form)
    assert usual is not None
    shard.write_arrays(view[: usual.end], usual.arrays)
    return bytes(view[: usual.end])


class TestShard:
    @needs_core
    def test_all_bytes_are_in_order(self, tmp_path: Path) -> None:
        expected = b""
        with ShardFile(str(tmp_path / "a.tar")) as shard:
            for number in range(9):
                expected += lend(shard, f"l{number}-", count=20 + number % 3)
                shard.write(b"s%d" % number, [(b"txt", b"small"), (b"bin", bytes(number * 50_000))])
                sample = [(f"s{number}.txt", b"small"), (f"s{number}.bin", bytes(number * 50_000))]
                expected += tar_of(sample)[:-1024]
                assert shard.position == len(expected)
            assert len(writers()) == 1
            shard.commit()
        assert not writers()
        assert (tmp_path / "a.tar").read_bytes() == expected + bytes(1024)

    @needs_core
    def test_small_buffers_and_streams_need_no_thread(self, tmp_path: Path) -> None:
        with ShardFile(str(tmp_path / "a.tar")) as shard, ShardFile("pipe:cat > /dev/null") as stream:
            for number in range(9):
                lend(shard, f"n{number}-", [3_000], count=100)
                lend(stream, f"n{number}-")
            assert not writers()

    @needs_core
    @pytest.mark.parametrize("after", ["lend", "write", "flush", "commit"])
    def test_an_error_is_raised_once_by_the_next_call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        def fail(descriptor: int, data: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with ShardFile(str(tmp_path / "a.tar")) as shard:
            lend(shard, "a")
            shard.flush()
            monkeypatch.setattr(local, "write_all", fail)
            lend(shard, "b")
            calls: dict[str, Callable[[], object]] = {
                "lend": lambda: lend(shard, "c"),
                "write": lambda: shard.write(b"c", [(b"bin", bytes(1 << 20))]),
                "flush": shard.flush,
                "commit": shard.commit,
            }
            with pytest.raises(OutputError, match=r"cannot write .*a\.tar: no space left") as caught:
                calls[after]()
            assert caught.value.hint
        assert not writers()
        assert not any(name.endswith((".tar", ".tmp")) for name in content(tmp_path))

    @needs_core
    def test_an_interrupt_waits_for_the_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The descriptor was closed, and could be another file's, while the thread wrote to it."""
        begun, go_on = threading.Event(), threading.Event()
        descriptors = []

        def slow(descriptor: int, data: Any) -> None:
            begun.set()
            go_on.wait(60)
            descriptors.append(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(local, "write_all", slow)
        with pytest.raises(KeyboardInterrupt), ShardFile(str(tmp_path / "a.tar")) as shard:
            (temporary,) = tmp_path.glob(".a.tar.*.tmp")
            inode = temporary.stat().st_ino
            lend(shard, "a")
            begun.wait(60)
            threading.Timer(0.2, go_on.set).start()
            raise KeyboardInterrupt
        assert descriptors == [inode]
        assert not writers()
        assert not any(name.endswith((".tar", ".tmp")) for name in content(tmp_path))


@needs_core
def test_cat_says_that_a_file_is_too_large_for_its_limit(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "in", [numbered(400, sizes=SIZES)])
    limit = 9 << 20
    ran = subprocess.run(
        [sys.executable, "-m", "wdscli", "cat", *shards, "-o", tmp_path / "all.tar"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 4
    assert "all.tar: file too large" in ran.stderr
    assert ran.stderr.count("error:") == 1
    assert not [name for name in content(tmp_path) if "all" in name and name.endswith((".tar", ".tmp"))]


@needs_core
def test_the_bytes_do_not_depend_on_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "in", [numbered(300, sizes=SIZES), numbered(100, "m", SIZES)])
    for folder in ("behind", "plain"):
        assert wds_here("cat", *shards, "-o", tmp_path / folder / "all.tar").code == 0
        mixed = tmp_path / folder / "mixed-%03d.tar"
        assert wds_here("shuffle", *shards, "-j1", "--seed", 1, "-o", mixed).code == 0
        monkeypatch.setattr(writing, "WRITE_BEHIND_BYTES", 1 << 40)
    for name in ("all.tar", "mixed-000.tar"):
        assert (tmp_path / "behind" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


class TestBuffers:
    def test_two_buffers_are_enough_and_none_is_filled_while_it_is_written(self) -> None:
        written, spares, is_written = [], set(), threading.Event()

        def write(data: memoryview) -> None:
            before = bytes(data)
            is_written.wait(0.02)
            assert bytes(data) == before
            written.append(before)

        behind = WriteBehind(write)
        for number in range(12):
            view = behind.spare(100 + number % 2)
            spares.add(id(view.obj))
            view[:] = bytes([number]) * len(view)
            behind.lend(view)
        behind.close()
        assert written == [bytes([number]) * (100 + number % 2) for number in range(12)]
        assert len(spares) <= 4  # two of 100 bytes, two of 101

    def test_an_error_is_raised_once(self) -> None:
        behind = WriteBehind(lambda data: 1 // 0)
        behind.lend(behind.spare(9))
        with pytest.raises(ZeroDivisionError):
            behind.wait()
        behind.close()

    def test_a_buffer_that_is_not_lent_stays_spare(self) -> None:
        behind = WriteBehind(bytes)
        assert behind.spare(9).obj is behind.spare(9).obj
        behind.stop()
