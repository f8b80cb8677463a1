"""What the compiled core writes is what plain Python writes, and its functions look at nothing beyond what they are
given."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from wdscli.errors import DataError
from wdscli.tar import Form, TarWriter, core
from wdscli.tar.writer import GATHER_BYTES

MTIME = b"%011o\0" % 0
NAMES = [
    b"a.txt",
    b"\xff" * 100,
    b"x" * 101,
    b"d" * 90 + b"/" + b"e" * 90,
    b"d" * 155 + b"/" + b"e" * 100,
    b"d" * 156 + b"/" + b"e" * 99,
    b"/" * 120,
    b"y" * 300,
]
SIZES = [0, 1, 511, 512, 513, GATHER_BYTES - 1, GATHER_BYTES, GATHER_BYTES + 1]
FORMS = [Form(), Form(1234567890, "gnu"), Form(8**11 - 1)]


@pytest.fixture(scope="module", autouse=True)
def compiled(running_core: str) -> None:
    if running_core == "plain":
        pytest.skip("both are compared where the compiled core runs")


def both(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> tuple[object, object]:
    """What ``write`` returns with the core and without."""
    one = write()
    with monkeypatch.context() as patch:
        patch.setattr(core, "CORE", None)
        return one, write()


@pytest.mark.parametrize("form", FORMS)
def test_members_have_the_same_bytes(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> tuple[bytes, list[int]]:
        out, positions = io.BytesIO(), []
        with TarWriter(out, form) as tar:
            for name in NAMES:
                for size in SIZES:
                    tar.add(
                        name,
                        bytes(range(256)) * (size // 256) + b"x" * (size % 256),
                    )
                    positions.append(tar.position)
        return out.getvalue(), positions

    one, other = both(monkeypatch, write)
    assert one == other


@pytest.mark.parametrize("form", FORMS)
def test_runs_of_members_have_the_same_bytes_and_places(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [[(b"f%d" % at, bytes(size)) for at, size in enumerate(SIZES[:count])] for count in range(9)]
    runs += [[(b"f%d" % at, memoryview(b"xyz")) for at in range(count)] for count in (63, 64, 65, 200)]
    runs += [[(name, b"payload")] for name in NAMES]

    def write() -> tuple[bytes, list[tuple[list[bytes], list[int], list[int]]]]:
        out, found = io.BytesIO(), []
        with TarWriter(out, form) as tar:
            for run in runs:
                for prefix in (b"key.", b"p" * 99 + b"/", b"q" * 300 + b"."):
                    found.append(([], [], []))
                    tar.add_all(prefix, run, found[-1])
        return out.getvalue(), found

    one, other = both(monkeypatch, write)
    assert one == other


@pytest.mark.parametrize("pure", [False, True])
def test_a_run_with_a_name_that_no_tar_can_hold_writes_nothing(
    pure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pure:
        monkeypatch.setattr(core, "CORE", None)
    places: tuple[list[bytes], list[int], list[int]] = ([], [], [])
    tar = TarWriter(io.BytesIO())
    with pytest.raises(DataError, match="a tar cannot hold"):
        tar.add_all(b"key.", [(b"a", b"1"), (b"b\0", b"2")], places)
    assert (tar.position, places) == (0, ([], [], []))


@pytest.mark.parametrize("pure", [False, True])
def test_a_payload_may_change_once_it_is_added(pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pure:
        monkeypatch.setattr(core, "CORE", None)
    out, payload = io.BytesIO(), bytearray(b"before")
    with TarWriter(out) as tar:
        tar.add(b"a", payload)
        payload[:] = b"after!"
    assert out.getvalue()[512:518] == b"before"


def test_members_that_have_no_room_are_left() -> None:
    assert core.CORE is not None
    for room in (0, 1, 511, 512, 1023):
        assert core.CORE.members(bytearray(room), 0, b"k.", [(b"a", b"x")], MTIME, 0, ([], [], [])) == 0
    for used, end in ((0, 1024), (1, 0)):
        columns: tuple[list[bytes], list[int], list[int]] = ([], [], [])
        members = [(b"a", b"x")]
        assert core.CORE.members(bytearray(1024), used, b"", members, MTIME, 0, columns) == end
        assert columns == (([b"a"], [512], [1]) if end else ([], [], []))


@pytest.mark.parametrize("used", [-1, 1025, 1 << 62])
def test_a_place_outside_the_buffer(used: int) -> None:
    assert core.CORE is not None
    with pytest.raises(ValueError, match="behind what a buffer has"):
        core.CORE.members(bytearray(1024), used, b"", [(b"a", b"x")], MTIME, 0, ([], [], []))


def read(
    folder: Path, rows: list[bytes], sizes: list[int], room: int = 1 << 16
) -> tuple[object, bytes, object]:
    assert core.CORE is not None
    buffer, columns = bytearray(room), ([], [], [])
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        done = core.CORE.files(buffer, 1 << 15, descriptor, rows, sizes, 0, len(rows), MTIME, 1000, columns)
    finally:
        os.close(descriptor)
    return done, bytes(buffer), columns


def test_files_are_read_behind_their_headers(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "a.txt").write_bytes(b"hello")
    (tmp_path / "b.c.d").write_bytes(b"y" * 600)
    done, buffer, columns = read(tmp_path, [b"n/a\0txt", b"b\0c.d"], [5, 600])
    out = io.BytesIO()
    with TarWriter(out) as tar:
        tar.add(b"n/a.txt", b"hello")
        tar.add(b"b.c.d", b"y" * 600)
    assert done == (2560, 2)
    assert buffer[:2560] == out.getvalue()[:2560]
    assert columns == ([b"txt", b"c.d"], [1000, 2024], [1512, 2536])


@pytest.mark.parametrize(
    ("row", "size"),
    [(b"a\0txt", size) for size in (-1, 0, 4, 6, 1 << 20, 1 << 62)]
    + [(row, 5) for row in (b"a.txt", b"\0txt", b"a\0", b"b\0txt", b"", b"a\0t\0xt", b"x" * 300 + b"\0txt")],
)
def test_a_file_that_is_not_as_it_should_be_is_left(row: bytes, size: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    done, _, columns = read(tmp_path, [b"a\0txt", row, b"a\0txt"], [5, size, 5])
    assert done == (1024, 1)
    assert columns == ([b"txt"], [1000], [1512])


@pytest.mark.parametrize("room", [0, 512, 517, 1023])
def test_a_file_that_has_no_room_is_left(room: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    assert read(tmp_path, [b"a\0txt"], [5], room)[0] == (0, 0)


def test_enough_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    done, _, columns = read(tmp_path, [b"a\0txt"] * 100, [5] * 100)
    assert done == (1 << 15, 32)
    assert len(columns[0]) == 32  # type: ignore[index]


def test_a_folder_is_listed(tmp_path: Path) -> None:
    assert core.CORE is not None
    for name in ("a.txt", "b.c.d", "plain", ".hidden.x", "end.", "__x__.y", "c-m"):
        (tmp_path / name).write_bytes(bytes(len(name)))
    (tmp_path / "folder.d").mkdir()
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "broken.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    found: list[tuple[bytes, int]] = []
    others: list[bytes] = []
    ending: list[bytes] = []
    core.CORE.folder(
        os.fsencode(tmp_path), b"p/", b"-m", lambda it: not ending.extend(it), found.extend, others.extend
    )
    assert ending == [b"c-m"]
    assert sorted(found) == [(b"p/a\0txt", 5), (b"p/b\0c.d", 5)]
    rest = [
        b".hidden.x",
        b"__x__.y",
        b"broken.txt",
        b"c-m",
        b"end.",
        b"folder.d",
        b"link.txt",
        b"pipe.txt",
        b"plain",
    ]
    assert sorted(others) == rest, "links are left to the exact path"
    found.clear()
    core.CORE.folder(os.fsencode(tmp_path), b"p/", b".d", lambda _: False, found.extend, found.extend)
    assert found == []
    with pytest.raises(FileNotFoundError) as error:
        core.CORE.folder(os.fsencode(tmp_path / "no"), b"", b"", bool, found.extend, others.extend)
    assert error.value.filename == os.fsencode(tmp_path / "no")


def test_a_large_folder_is_listed_whole(tmp_path: Path) -> None:
    assert core.CORE is not None
    for number in range(5000):
        (tmp_path / f"{number:0100d}.txt").touch()
    found: list[tuple[bytes, int]] = []
    calls: list[int] = []

    def take(some: list[tuple[bytes, int]]) -> None:
        calls.append(len(some))
        found.extend(some)

    ending: list[bytes] = []
    core.CORE.folder(
        os.fsencode(tmp_path), b"", b"99.txt", lambda it: not ending.extend(it), take, found.extend
    )
    assert len(ending) == 50
    assert len(set(found)) == 5000
    assert max(calls) < 5000
