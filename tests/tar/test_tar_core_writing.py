"""What the compiled core writes is what plain Python writes, and its functions look at nothing beyond what they are
given."""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
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


def packed(*numbers: int) -> bytes:
    return array("q", numbers).tobytes()


def read(folder: Path, rows: list[bytes], sizes: list[int], room: int = 1 << 16) -> tuple[int, bytearray]:
    """Read files to every 1024th byte. Return how many were read, and the buffer."""
    assert core.CORE is not None
    buffer = bytearray(b"?" * room)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        ends = packed(*accumulate(map(len, rows), initial=0))
        places = packed(*range(512, 1024 * len(rows), 1024))
        columns = b"".join(rows), ends, packed(*sizes), places
        done = core.CORE.load(buffer, packed(*[descriptor] * len(rows)), *columns)
    finally:
        os.close(descriptor)
    assert core.CORE.headers(buffer, *columns, MTIME) >= done
    return done, buffer


def test_files_are_read_behind_their_headers(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "a.txt").write_bytes(b"hello")
    (tmp_path / "b.c.d").write_bytes(b"y" * 512)
    done, buffer = read(tmp_path, [b"n/a\0txt", b"b\0c.d"], [5, 512])
    out = io.BytesIO()
    with TarWriter(out) as tar:
        tar.add(b"n/a.txt", b"hello")
        tar.add(b"b.c.d", b"y" * 512)
    assert done == 2
    assert buffer[:2048] == out.getvalue()[:2048]


@pytest.mark.parametrize(
    ("row", "size"),
    [(b"a\0txt", size) for size in (-1, 0, 4, 6, 1 << 20, 1 << 62)]
    + [(row, 5) for row in (b"a.txt", b"\0txt", b"a\0", b"b\0txt", b"", b"a\0t\0xt", b"x" * 5000 + b"\0txt")],
)
def test_a_file_that_is_not_as_it_should_be_is_left(row: bytes, size: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    assert read(tmp_path, [b"a\0txt", row, b"a\0txt"], [5, size, 5])[0] == 1


@pytest.mark.parametrize("room", [0, 512, 517, 1023])
def test_a_file_that_has_no_room_is_left(room: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    assert read(tmp_path, [b"a\0txt"], [5], room)[0] == 0


def test_a_folder_without_a_descriptor(tmp_path: Path) -> None:
    assert core.CORE is not None
    columns = b"a\0b", packed(0, 3), packed(5), packed(512)
    assert core.CORE.load(bytearray(2048), packed(-1), *columns) == 1, "its payload is in memory"
    for descriptor in (-2, 1 << 40):
        assert core.CORE.load(bytearray(2048), packed(descriptor), *columns) == 0


@pytest.mark.parametrize(
    ("row", "place", "written"),
    [
        (b"d" * 155 + b"/" + b"e" * 98 + b"\0c", 512, 1),
        (b"d" * 155 + b"/" + b"e" * 99 + b"\0c", 512, 0),
        (b"a.c", 512, 0),
        (b"a\0c", 511, 0),
        (b"a\0c", -1, 0),
        (b"a\0c", 2048, 1),
        (b"a\0c", 2049, 0),
    ],
)
def test_headers_that_need_more_than_a_block_or_have_no_room(row: bytes, place: int, written: int) -> None:
    assert core.CORE is not None
    columns = row, packed(0, len(row)), packed(5), packed(place)
    assert core.CORE.headers(bytearray(2048), *columns, MTIME) == written


@pytest.mark.parametrize(
    "block",
    [
        (b"a\0b", array("I", [0, 4]), array("I", [1]), -1),
        (b"a\0b", array("I", [2, 1]), array("I", [1]), -1),
    ],
)
def test_rows_outside_their_block_are_empty(block: tuple[object, ...]) -> None:
    assert core.CORE is not None
    assert core.CORE.gather([block], packed(0))[0] == b""


def test_columns_of_other_lengths() -> None:
    assert core.CORE is not None
    good = (b"a\0b", array("I", [0, 3]), array("I", [1]), array("q", [7]))
    assert core.CORE.gather([good], packed(0)) == (b"a\0b", packed(0, 3), packed(1), packed(7))
    for part, bad in ((1, array("I")), (2, array("I")), (3, array("q"))):
        with pytest.raises(ValueError, match="different lengths"):
            core.CORE.order([(*good[:part], bad, *good[part + 1 :])])
    with pytest.raises(ValueError, match="not full"):
        core.CORE.order([good, good])
    for number in (-1, 1):
        with pytest.raises(IndexError, match="fewer files"):
            core.CORE.heads([good], packed(number))


def test_a_folder_is_listed(tmp_path: Path) -> None:
    assert core.CORE is not None
    for name in ("a.txt", "b.c.d", "plain", ".hidden.x", "end.", "__x__.y", "c-m"):
        (tmp_path / name).write_bytes(bytes(len(name)))
    (tmp_path / "folder.d").mkdir()
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "broken.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    found: list[bytes] = []
    others: list[bytes] = []
    ending: list[bytes] = []
    taken = lambda *columns: found.extend(columns)  # noqa: E731
    core.CORE.folder(
        os.fsencode(tmp_path), b"p/", b"-m", lambda it: not ending.extend(it), taken, others.extend
    )
    assert ending == [b"c-m"]
    assert found == [b"p/a\0txtp/b\0c.d", packed(0, 7, 14), packed(5, 5)]
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
    core.CORE.folder(os.fsencode(tmp_path), b"p/", b".d", lambda _: False, taken, found.extend)
    assert found == []
    with pytest.raises(FileNotFoundError) as error:
        core.CORE.folder(os.fsencode(tmp_path / "no"), b"", b"", bool, taken, others.extend)
    assert error.value.filename == os.fsencode(tmp_path / "no")


def test_a_large_folder_is_listed_whole(tmp_path: Path) -> None:
    assert core.CORE is not None
    for number in range(5000):
        (tmp_path / f"{number:0100d}.txt").touch()
    found: list[bytes] = []
    calls: list[int] = []

    def take(rows: bytes, ends: bytes, sizes: bytes) -> None:
        names = [rows[begin:end] for begin, end in pairwise(array("q", ends))]
        assert names == sorted(names)
        calls.append(len(names))
        found.extend(names)

    ending: list[bytes] = []
    core.CORE.folder(
        os.fsencode(tmp_path), b"", b"99.txt", lambda it: not ending.extend(it), take, found.extend
    )
    assert len(ending) == 50
    assert len(set(found)) == 5000
    assert max(calls) < 5000
