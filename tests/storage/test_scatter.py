"""Many ranges of many files are read at once. Ranges that were expected are fetched together and ahead, within bounds.
All are the bytes that they should be."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from queue import Queue
from threading import Barrier, Event

import pytest
from conftest import Command
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_cases import numbered, write_shards
from storage_servers import S3, Web, web_server

from wdscli.arrays import numpy
from wdscli.errors import InputError
from wdscli.plan.inputs import Input
from wdscli.plan.survey import REMOTE_SHARD_BYTES, SurveyTask, bytes_of
from wdscli.selection import Selection
from wdscli.storage import Source, expand, open_source, opening, scatter
from wdscli.storage.ends import EndsEarly
from wdscli.storage.local import HeldSource
from wdscli.storage.ranges import RemoteSource
from wdscli.storage.scatter import Ahead, Line, Ranges, Sources, fill_all, joined, load, read, together
from wdscli.tar import CANONICAL, core

COMMAND: list[str] = []
DATA = random.Random(0).randbytes(300_000)


class Store:
    """Answers requests when they are waited for, and remembers them."""

    def __init__(self) -> None:
        self.requested: list[tuple[int, int]] = []
        self.answers: dict[Future[bytes], tuple[int, int]] = {}
        self.most_pending = 0

    def fetch(self, begin: int, end: int) -> Future[bytes]:
        self.requested.append((begin, end))
        answer: Future[bytes] = Future()
        self.answers[answer] = begin, end
        return answer

    def result(self, answer: Future[bytes], begin: int, end: int) -> bytes:
        assert self.answers[answer] == (begin, end)
        return DATA[begin:end]


class Files(Sources):
    """Local files, one of them in blocks of its own, and an object of a store, all with parts of :data:`DATA`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.contents = [DATA[:100_000], DATA[100_000:150_000], DATA[150_000:], DATA[1000:2000]]
        for number, content in enumerate(self.contents[:2]):
            if not (folder / f"{number}").exists():
                (folder / f"{number}").write_bytes(content)
        MemoryFileSystem().pipe_file("/scattered/2", self.contents[2])
        self.addresses = [f"{folder}/0", f"{folder}/1", "memory://scattered/2", "held"]
        super().__init__(self.open_file, {2})

    def open_file(self, number: int) -> Source:
        data = self.contents[number]
        return HeldSource("held", data) if number == 3 else open_source(self.addresses[number])


@st.composite
def ranges_of_files(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    sizes = [100_000, 50_000, 150_000, 1000]
    ranges = []
    for _ in range(draw(st.integers(0, 40))):
        file = draw(st.integers(0, 3))
        begin = draw(st.integers(0, sizes[file]))
        ranges.append((file, begin, draw(st.integers(0, min(3000, sizes[file] - begin)))))
        if draw(st.booleans()):
            # A neighbour, which may be read together with it.
            begin += ranges[-1][2]
            ranges.append((file, begin, min(50, sizes[file] - begin)))
    return ranges


def laid_out(ranges: list[tuple[int, int, int]]) -> Ranges:
    return Ranges.in_turn(*numpy.array(ranges, dtype=numpy.int64).reshape(-1, 3).T)


@pytest.mark.parametrize("how", ["read", "load", "joined"])
@pytest.mark.parametrize("has_core", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ranges=ranges_of_files(), swap=st.booleans())
def test_ranges_come_to_their_places(
    how: str,
    has_core: bool,
    tmp_path_factory: pytest.TempPathFactory,
    ranges: list[tuple[int, int, int]],
    swap: bool,
) -> None:
    columns = laid_out(ranges)
    if swap:
        # Their places in the buffer have another order than their bytes in the files.
        backward = laid_out(ranges[::-1])
        columns = columns._replace(places=backward.places[::-1].copy())
    buffer = memoryview(bytearray(int(columns.lengths.sum())))
    with pytest.MonkeyPatch.context() as patch, Files(tmp_path_factory.getbasetemp() / "scattered") as files:
        if not has_core:
            patch.setattr("wdscli.tar.core.CORE", None)
        patch.setattr(scatter, "LONG_RANGE_BYTES", 2000)
        (load if how == "load" else read)(files, columns.joined() if how == "joined" else columns, buffer)
        for file, begin, length, place in zip(*(column.tolist() for column in columns)):
            assert buffer[place : place + length] == files.contents[file][begin : begin + length]


@pytest.mark.parametrize("has_core", [True, False])
@pytest.mark.parametrize("file", range(4))
def test_a_file_that_ends_early(
    file: int, has_core: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_core:
        monkeypatch.setattr("wdscli.tar.core.CORE", None)
    with Files(tmp_path) as files:
        size = len(files.contents[file])
        for wanted in (
            [(0, 0, 10), (file, size - 10, 11), (1, 5, 5)],
            [(0, 0, 10), (file, size - 10, 5), (file, size - 5, 6)],
            [(0, 5, 5), (file, size + 10, 1)],
        ):
            with pytest.raises(EndsEarly) as caught:
                read(files, laid_out(wanted), memoryview(bytearray(100)))
            first = next(row for row, (_, begin, length) in enumerate(wanted) if begin + length > size)
            assert (caught.value.row, caught.value.name) == (first, files.addresses[file])
            assert caught.value.offset == max(size, wanted[first][1])


def test_neighbours_are_joined_if_they_are_in_the_file_and_in_the_buffer() -> None:
    ranges = laid_out([(0, 0, 10), (0, 10, 5), (1, 15, 5), (1, 20, 0), (1, 21, 4), (1, 25, 5)])
    assert [column.tolist() for column in ranges.joined()] == [
        [0, 1, 1],
        [0, 15, 21],
        [15, 5, 9],
        [0, 15, 20],
    ]
    apart = ranges._replace(places=ranges.places[::-1].copy())
    assert len(apart.joined().files) == 6
    assert len(laid_out([]).joined().files) == 0


def test_few_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was opened first is closed, after it was compared with its name; a store needs no descriptor."""
    monkeypatch.setattr(scatter, "MOST_LOCAL", 1)
    confirmed = []
    with Files(tmp_path) as files:
        monkeypatch.setattr(files, "confirm_file", lambda number, source: confirmed.append(number))
        buffer = memoryview(bytearray(40))
        for _ in range(2):
            read(files, laid_out([(0, 0, 10), (2, 0, 10), (1, 0, 10), (0, 50, 10)]), buffer)
            assert bytes(buffer) == DATA[:10] + DATA[150_000:150_010] + DATA[100_000:100_010] + DATA[50:60]
            assert files.opened.keys() == {1, 2}
            assert files.descriptors.keys() == {1}
        assert confirmed == [0, 1, 0]
    assert files.opened == files.descriptors == {}


@pytest.mark.skipif(core.CORE is None, reason="plain Python reads file by file")
def test_the_core_reads_local_files_also_if_they_are_many_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = [(number % 5, number, 3) for number in range(20)]
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(DATA[number * 1000 :][:1000])
    monkeypatch.setattr(scatter, "MOST_LOCAL", 2)
    monkeypatch.setattr(Source, "scatter", None)
    with Sources(lambda number: open_source(f"{tmp_path}/{number}")) as files:
        buffer = memoryview(bytearray(60))
        for last in range(5):
            read(files, laid_out(ranges), buffer)
            assert bytes(buffer) == b"".join(DATA[file * 1000 + begin :][:3] for file, begin, _ in ranges)
            assert len(files.opened) <= 2
            # Whichever file is the oldest open one, none is closed between opening and reading.
            read(files, laid_out([(last, 0, 3)]), buffer)


@pytest.mark.parametrize("has_core", [True, False])
def test_a_short_file_among_many_is_named_by_its_row(
    has_core: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_core:
        monkeypatch.setattr("wdscli.tar.core.CORE", None)
    monkeypatch.setattr(scatter, "MOST_LOCAL", 1)
    with Files(tmp_path) as files, pytest.raises(EndsEarly) as caught:
        read(files, laid_out([(1, 0, 10), (0, 0, 10), (1, 49_995, 10)]), memoryview(bytearray(30)))
    assert caught.value.row == 2


@pytest.mark.skipif(core.CORE is None, reason="plain Python slices its buffers")
@pytest.mark.parametrize(("place", "length"), [(-1, 5), (0, 11), (11, 0), (8, 3), (0, -1), (1 << 62, 1)])
def test_a_range_that_is_longer_than_its_place(place: int, length: int, tmp_path: Path) -> None:
    ranges = Ranges(*(numpy.array([number]) for number in (0, 0, length, place)))
    with Files(tmp_path) as files:
        assert files[0].fd is not None, "it is open, so that the core reads it"
        with pytest.raises(ValueError, match="does not fit in the buffer"):
            read(files, ranges, memoryview(bytearray(10)))


class Slow(Source):
    """Fills a buffer when it is waited for, and counts the fills in flight."""

    def __init__(self, flying: list[int]) -> None:
        super().__init__("slow", size=len(DATA), seekable=True)
        self._flying = flying

    def read_at(self, offset: int, length: int) -> bytes:
        return DATA[offset : offset + length]

    def start_fill(self, offset: int, view: memoryview) -> Callable[[], object]:
        self._flying.append(self._flying[-1] + 1)
        wait = super().start_fill(offset, view)
        return lambda: (self._flying.append(self._flying[-1] - 1), wait())


def test_buffers_are_filled_by_a_few_requests_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "FILL_BYTES", 1000)
    flying = [0]
    views = [memoryview(bytearray(size)) for size in (25_000, 10, 0, 999)]
    fill_all((Slow(flying), 100 * number, view) for number, view in enumerate(views))
    assert [bytes(view) for view in views] == [
        DATA[100 * at : 100 * at + len(view)] for at, view in enumerate(views)
    ]
    assert (max(flying), flying[-1], len(flying)) == (scatter.FILLS_AT_ONCE, 0, 1 + 2 * 27)
    with pytest.raises(InputError, match="cannot read slow, from byte 299500: it was replaced"):
        fill_all([(Slow(flying), len(DATA) - 1500, memoryview(bytearray(5000)))])


ranges = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 300)).map(lambda one: (one[0], sum(one))))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ranges, st.integers(0, 100), st.integers(0, 4000))
def test_what_is_joined_holds_all_and_little_more(wanted: list[tuple[int, int]], gap: int, most: int) -> None:
    found = joined(wanted, gap, most)
    assert found == sorted(found)
    assert all(begin < end for begin, end in found)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    needed = {byte for begin, end in wanted for byte in range(begin, end)}
    read = {byte for begin, end in found for byte in range(begin, end)}
    assert needed <= read
    assert read == needed or len(read) <= most
    # No gap that was left out is shorter than one that was read, nor of those that fit.
    if len(read) < most:
        edges = sorted(needed)
        gaps = [other - one - 1 for one, other in pairwise(edges) if other - one > 1]
        read_gaps = [size for size in gaps if size < gap]
        assert len(found) <= len(gaps) + 1 - len(read_gaps) or sum(read_gaps) + len(needed) > most


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ranges, st.lists(st.tuples(st.integers(0, 2300), st.integers(1, 400))), st.data())
def test_what_is_read_is_what_is_there(
    expected: list[tuple[int, int]], reads: list[tuple[int, int]], draw: st.DataObject
) -> None:
    """Also when something else was expected before, some of which is held."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter, "REQUEST_BYTES", draw.draw(st.integers(1, 500)))
        patch.setattr(scatter, "READ_AHEAD_BYTES", draw.draw(st.integers(1, 1500)))
        store = Store()
        blocks = Ahead(store.fetch, store.result, Line())
        blocks.expect(draw.draw(ranges))
        for begin, size in reads[:2]:
            blocks.read(begin, begin + size)
        blocks.expect(expected, keep=draw.draw(st.booleans()))
        for begin, size in reads:
            found = blocks.read(begin, begin + size)
            assert found in (None, DATA[begin : begin + size])
            if found is None:
                assert not any(one <= begin and begin + size <= end for one, end in expected)
        blocks.close()


def test_a_whole_object_is_read_once_by_large_requests_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 10_000)
    monkeypatch.setattr(scatter, "READ_AHEAD_BYTES", 60_000)
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line())
    blocks.expect([(0, len(DATA))])
    for begin in range(0, len(DATA), 700):
        # Headers first, and then the payloads behind them.
        for _ in range(2):
            assert blocks.read(begin, min(begin + 700, len(DATA))) == DATA[begin : begin + 700]
        assert blocks._held_bytes <= 60_000
        assert store.requested[-1][1] - begin <= 41_000
    assert store.requested == [(at, at + 10_000) for at in range(0, len(DATA), 10_000)]


def test_who_reads_on_has_all_but_one_request_of_the_room_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 10_000)
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line(), 60_000)
    blocks.will_be_used(60_000)
    blocks.expect([(0, len(DATA))])
    for begin in range(0, len(DATA), 5000):
        assert blocks.read(begin, begin + 5000) == DATA[begin : begin + 5000]
        assert blocks._held_bytes <= 60_000
        assert store.requested[-1][1] == min(begin // 10_000 * 10_000 + 50_000, len(DATA))
    assert store.requested == [(at, at + 10_000) for at in range(0, len(DATA), 10_000)]


def test_bytes_go_to_where_they_are_wanted() -> None:
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line(), 100_000)
    blocks.expect([(1000, 90_000)])
    view = bytearray(50_000)
    assert blocks.read_into(20_000, memoryview(view))
    assert view == DATA[20_000:70_000]
    assert not blocks.read_into(80_000, memoryview(view))


def test_what_is_held_is_not_asked_for_again() -> None:
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line())
    blocks.expect([(0, 100_000)])
    assert blocks.read(0, 10) == DATA[:10]
    blocks.expect([(90_000, 120_000)])
    assert blocks.read(90_000, 120_000) == DATA[90_000:120_000]
    assert store.requested == [(0, 100_000), (100_000, 120_000)]


def test_what_is_kept_goes_when_others_need_the_room() -> None:
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line(), 100_000)
    for begin in (0, 200_000):
        blocks.expect([(begin, begin + 20_000)], keep=True)
        assert blocks.read(begin, begin + 20_000)
    assert blocks.read(0, 10) == DATA[:10]
    assert len(store.requested) == 2
    blocks.expect([(100_000, 190_000)], keep=True)
    assert blocks.read(100_000, 190_000) == DATA[100_000:190_000]
    assert blocks._held_bytes <= 100_000
    assert blocks.read(0, 10) is None
    blocks.expect([])
    assert blocks.read(100_000, 100_010) is None


def test_what_is_kept_stays_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 2)
    monkeypatch.setattr(scatter, "READ_AHEAD_BYTES", 3)
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line())
    blocks.expect([(0, 3)])
    assert blocks.read(0, 3) == DATA[:3]
    blocks.expect([(0, 1), (3, 4)], keep=True)
    assert blocks.read(0, 3) in (None, DATA[:3])


def test_a_line_tells_how_long_a_gap_pays() -> None:
    line = Line()
    assert line.gap_bytes == scatter.FIRST_GAP_BYTES
    for _ in range(50):
        line.note(1000, 0.020)
        line.note(8 << 20, 0.020 + (8 << 20) / 100e6)
    assert line.gap_bytes == pytest.approx(0.020 * 100e6, rel=0.01)
    for _ in range(50):
        line.note(1000, 0.000_01)
        line.note(8 << 20, 1.0)
    assert line.gap_bytes == scatter.LEAST_GAP_BYTES


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        yield server


def test_from_a_web_server(web: Web) -> None:
    web.files["a.bin"] = DATA
    with open_source(web.url("a.bin")) as source:
        web.ranges.clear()
        source.expect([(200_000, 200_500), (100_000, 100_500), (200_700, 201_000)])
        assert source.read_at(100_000, 500) == DATA[100_000:100_500]
        assert source.read_at(200_700, 300) == DATA[200_700:201_000]
        assert source.read_at(65_000, 36_000) == DATA[65_000:101_000]
        assert len(web.ranges) == 2


def test_an_answer_that_is_cut_is_no_answer(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["cut.bin"] = DATA
    with open_source(web.url("cut.bin")) as source:
        monkeypatch.setattr(web, "mode", "short")
        source.expect([(0, len(DATA))])
        with pytest.raises(InputError, match=r"cut\.bin"):
            source.read_at(100_000, 500)


@pytest.mark.parametrize(
    ("command", "most_requests", "most_bytes"),
    [
        ("split --shards 1", 6, 1.2),
        ("split --shards 1 --slice ::2", 6, 1.2),
        ("shuffle --shards 1", 6, 1.2),
        ("sort --by key --shards 1", 6, 1.2),
        ("cat", 2, 1.01),
    ],
)
def test_few_requests(
    command: str,
    most_requests: int,
    most_bytes: float,
    s3: S3,
    run: Command,
    tmp_path: Path,
) -> None:
    """Each request costs a round trip: the requests and bytes of a command for each shard of 240 samples."""
    place = s3.bucket("few-" + re.sub("[^a-z]+", "-", command).strip("-"))
    names = write_shards(
        tmp_path / "in",
        [numbered(240, f"p{shard}-", [10, 3000]) for shard in range(3)],
    )
    assert run("index", *names).code == 0
    size = 0
    for name in names:
        path = Path(name)
        size += path.stat().st_size
        for one in (path, *path.parent.glob(f".wds/{path.name}.wdx")):
            key = str(one.relative_to(tmp_path / "in"))
            s3.client.put_object(Bucket=place, Key=key, Body=one.read_bytes())
    verb, *options = command.split()
    near, far = tmp_path / "near-%d.tar", tmp_path / "far-%d.tar"
    if verb == "cat":
        near, far = tmp_path / "near.tar", tmp_path / "far.tar"
    else:
        options += ["-j", "1"]
    assert run(verb, *names, "-o", near, *options).code == 0
    s3.seen.clear()
    assert run(verb, f"s3://{place}/", "-o", far, *options).code == 0
    made = sorted(tmp_path.glob("far*.tar"))
    assert [path.read_bytes() for path in made] == [
        path.read_bytes() for path in sorted(tmp_path.glob("near*.tar"))
    ]
    of_shards = [(one.key, one.sent) for one in s3.seen if one.verb == "GET" and "manifest" not in one.key]
    assert len(of_shards) <= most_requests * len(names), of_shards
    assert sum(count for _, count in of_shards) <= most_bytes * size


def test_what_is_spilled_to_a_store_is_read_once(s3: S3, run: Command, tmp_path: Path) -> None:
    """Each output shard reads its own part of a chunk, by one request."""
    place = s3.bucket("spilled")
    names = write_shards(tmp_path / "in", [numbered(240, "a", [10, 3000])])
    s3.client.put_object(Bucket=place, Key="in/a.tar", Body=Path(names[0]).read_bytes())
    words = ["--shards", 4, "--strategy", "spill", "--tmp", f"s3://{place}/tmp", "-j", 1]
    s3.seen.clear()
    done = run("shuffle", f"s3://{place}/in/a.tar", "-o", tmp_path / "out-%d.tar", *words)
    assert done.code == 0, done.err
    spilled = [one for one in s3.seen if "spill" in one.key]
    reads = [one.sent for one in spilled if one.verb == "GET"]
    assert len(reads) == 4
    assert sum(reads) == Path(names[0]).stat().st_size - 1024


def test_objects_share_what_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "LEAST_GAP_BYTES", 1000)
    monkeypatch.setattr(scatter, "LEAST_SHARE_BYTES", 4000)
    store = Store()
    several = [Ahead(store.fetch, store.result, Line(), 40_000) for _ in range(4)]
    for blocks in several:
        blocks.expect([(0, len(DATA))])
    for begin in range(0, len(DATA), 700):
        for blocks in several:
            assert blocks.read(begin, min(begin + 700, len(DATA))) == DATA[begin : begin + 700]
        assert sum(blocks._held_bytes for blocks in several) <= 40_000 + 4 * 10_000
    for blocks in several:
        blocks.close()


def test_what_is_announced_together_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where most of the bytes are of one object, and the first object is announced before the others."""
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 10_000)
    stores = [Store() for _ in range(4)]
    objects = [Ahead(store.fetch, store.result, Line(), 60_000) for store in stores]
    chance = random.Random(0)
    wanted = [
        (at, chance.randrange(len(DATA) - 100))
        for at, count in enumerate([240, 20, 20, 20])
        for _ in range(count)
    ]
    with together(100 * len(wanted)):
        for at, one in enumerate(objects):
            one.expect([(begin, begin + 100) for of, begin in wanted if of == at])
    chance.shuffle(wanted)
    for at, begin in wanted:
        assert objects[at].read(begin, begin + 100) == DATA[begin : begin + 100]
    requests = [(at, *one) for at, store in enumerate(stores) for one in store.requested]
    assert len(requests) == len(set(requests))
    assert sum(end - begin for _, begin, end in requests) <= 60_000


def test_ranges_before_the_head_take_no_part() -> None:
    """A range that ends before its first byte, because the head of the object has it, does not count."""
    store = Store()
    blocks = Ahead(store.fetch, store.result, Line(), 60_000)
    with together(2000):
        blocks.expect([(6000, 1000), (6000, 7000)])
    assert blocks.read(6000, 7000) == DATA[6000:7000]
    assert store.requested == [(6000, 7000)]


def test_what_is_read_ahead_is_a_variable(
    web: Web, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request, and no requests together, are for more."""
    [name] = write_shards(tmp_path, [numbered(400, "a", [3000])])
    web.files["b.tar"] = Path(name).read_bytes()
    requests = []
    for size in ("", "256KiB"):
        monkeypatch.setenv("WDSCLI_READ_AHEAD", size)
        web.ranges.clear()
        assert run("cat", web.url("b.tar"), "-o", tmp_path / "o.tar", "--force").code == 0
        asked = [re.match(r"bytes=(\d+)-(\d+)", one or "") for one in web.ranges]
        requests.append([int(one[2]) - int(one[1]) + 1 for one in asked if one])
        assert (tmp_path / "o.tar").read_bytes() == Path(name).read_bytes()
    assert max(requests[0]) > 1 << 20
    assert max(requests[1]) <= 1 << 16


class Closing(Source):
    """Tells when it is closed."""

    def __init__(self, name: str) -> None:
        super().__init__(name, size=0, seekable=True)
        self.closed = Event()

    def close(self) -> None:
        self.closed.set()


def test_the_next_shard_is_opened_while_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Queue[Closing] = Queue()

    def open_one(address: str, **_: object) -> Source:
        if address.endswith("3"):
            raise InputError("no such object")
        opened.put(Closing(address))
        return opened.queue[-1]

    monkeypatch.setattr(opening, "open_source", open_one)
    some = opening.open_in_turn([f"s3://b/{number}" for number in range(4)])
    first = next(some)
    assert (first.name, opened.get(timeout=60)) == ("s3://b/0", first)
    second = opened.get(timeout=60)
    assert next(some) is second
    third = opened.get(timeout=60)
    some.close()
    assert third.closed.wait(60)
    assert not second.closed.is_set()
    # An error is the one of its turn.
    some = opening.open_in_turn(["s3://b/2", "s3://b/3"])
    assert next(some).name == "s3://b/2"
    with pytest.raises(InputError, match="no such object"):
        next(some)


def test_a_whole_object_of_known_size_is_requested_at_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """By several ranges, before the first has come."""
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 100_000)
    place = s3.bucket("at-once")
    s3.client.put_object(Bucket=place, Key="a.tar", Body=DATA)
    requests: list[tuple[int, int]] = []
    original = RemoteSource._fetch

    def noted(source: RemoteSource, begin: int, end: int) -> Future[bytes]:
        requests.append((begin, end))
        return original(source, begin, end)

    monkeypatch.setattr(RemoteSource, "_fetch", noted)
    monkeypatch.setattr(RemoteSource, "peek", lambda source, length: b"")
    [address] = expand(f"s3://{place}/")
    with opening.open_source(address, whole=True) as source:
        assert requests == [(0, 100_000), (100_000, 200_000), (200_000, 300_000)]
        assert source.read_at(0, len(DATA)) == DATA
    assert len(requests) == 3


def test_clients_that_wait_read_several_ranges_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store whose client knows no asyncio, as Hugging Face's."""
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 100_000)
    together = Barrier(3)

    class Waiting(MemoryFileSystem):
        protocol = "waiting"

        def cat_file(self, path: str, start: int = 0, end: int = 0, **options: object) -> bytes:
            together.wait(60)
            return DATA[start:end]

        def info(self, path: str, **options: object) -> dict[str, object]:
            return {"name": path, "size": len(DATA), "type": "file"}

    register_implementation("waiting", Waiting, clobber=True)
    with opening.open_source("waiting://a.tar", decompress=False) as source:
        source._ahead.will_be_used(300_000)  # type: ignore[attr-defined]
        source.expect([(0, 300_000)])
        assert source.read_at(0, 300_000) == DATA


@pytest.mark.parametrize("store", ["fsspec", "obstore"])
def test_a_small_set_that_was_listed_is_known_to_be_small(
    store: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No processes are started for it."""
    if store == "obstore":
        pytest.importorskip("obstore")
    monkeypatch.setenv("WDSCLI_STORE", store)
    place = s3.bucket(f"small-{store}")
    for number in range(8):
        s3.client.put_object(Bucket=place, Key=f"d/a-{number}.tar", Body=DATA)
    addresses = expand(f"s3://{place}/d/")
    assert [opening.size_hint(address) for address in addresses] == [len(DATA)] * 8
    assert opening.size_hint(f"s3://{place}/other/a.tar") is None
    known = [SurveyTask(Input(address), CANONICAL, Selection()) for address in addresses]
    assert bytes_of(known) == 8 * len(DATA)
    unknown = [SurveyTask(Input(f"s3://{place}/other/a.tar"), CANONICAL, Selection())]
    assert bytes_of(unknown) == REMOTE_SHARD_BYTES
