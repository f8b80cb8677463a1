"""This module packs files into shards. It has the maker and the task of ``create``.

:func:`pack` is a pure function of a :class:`PackTask`, and :class:`PackMaker` makes all shards of a plan by it. For
small files and values of tables, the compiled core reads whole files into a buffer, and writes their headers, many
samples at a time. Other files, and files that have changed, go through the buffer in pieces, so that memory is limited.
Each read requests one more byte than planned. So a file that has shrunk or grown is an error, never a broken tar, and
the shard is not published. This module does not know how files were found, ordered or cut.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice, pairwise
from typing import NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.copy.maker import Maker, ShardTasks
from wdscli.create.files import SEPARATOR, FileColumns, Files, Inline, Place, StoredPayload, numbers_of
from wdscli.create.payloads import payload_at, read_pieces
from wdscli.errors import DataError
from wdscli.executors import tick_of_task, useful_jobs, workers_of
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.planfile import check_shown
from wdscli.progress import Progress
from wdscli.samples.reading import packed
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.storage import is_local, local_path
from wdscli.storage.opening import at_once
from wdscli.tar import core, padding
from wdscli.tar.header import BLOCK

PIECE_BYTES = 1 << 20
"""Smaller files are read as a whole."""
_SAMPLES_TOGETHER = 1024
HELD_BYTES = 1 << 22
"""Remote payloads up to this size are read as a whole, several at the same time."""
AHEAD_BYTES = 1 << 24
"""The most bytes of remote payloads in memory at the same time."""
PROCESSES_FOR_BYTES = 400_000_000
"""With fewer bytes of files than this, no processes are started."""
BYTES_PER_MEMBER = 13_000
"""Opening a file takes as long as copying this many bytes."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC

_Values = dict[int, Inline | StoredPayload]
"""Values of lists and tables by the numbers of their places."""


class PackTask(NamedTuple):
    """The task for one shard: its address, its settings, and its members, as numbers of ``files`` in order. ``firsts``
    has the first member of each sample and, at the end, the number of members."""

    address: str
    settings: ShardSettings
    files: Files
    members: array[int]
    firsts: array[int]

    def portable(self, *, holds_all: bool = False) -> PackTask:
        """Return the same task with only its own files, for another process. With ``holds_all``, it is for another
        machine, which cannot read this machine's scratch files."""
        files = self.files.part(self.members)
        for number in range(len(files)) if holds_all else ():
            place, size = files.place(number), files.size(number)
            if isinstance(place, StoredPayload):
                files.put(number, size, files.keep(Inline(payload_at(place, size))))
        return self._replace(files=files, members=numbers_of(range(len(files)), len(files)))

    def parcel(self) -> bytes:
        """Return the task as bytes for a plan file. :func:`unpacked_task` is the inverse. Raises UsageError for an
        address with a password."""
        import msgpack

        part = self.portable(holds_all=True)
        places, roots = [], dict[bytes, int]()
        for number in part.members:
            place, kept = part.files.place(number), part.files.place_number(number)
            if kept < 0:
                root = os.path.abspath(part.files.folder(kept))
                places.append([ROOT, roots.setdefault(root, len(roots))])
            elif isinstance(place, str):
                check_shown(place)
                places.append([REMOTE, place])
            elif isinstance(place, Inline):
                places.append([INLINE, place.payload])
            else:
                assert isinstance(place, bytes)
                places.append([PATH, os.path.abspath(place)])
        plain = {
            "rows": part.files.gather(part.members).row_list(),
            "sizes": list(map(part.files.size, part.members)),
            "places": places,
            "roots": list(roots),
            "firsts": part.firsts.tolist(),
        }
        return bytes(msgpack.packb(plain))


PATH, ROOT, REMOTE, INLINE = "path", "root", "address", "bytes"
"""The kinds of places in a parcel."""


def unpacked_task(plan: ReorderPlan, number: int) -> PackTask:
    """Return the task in a parcel of a plan file. Raises DataError."""
    import msgpack

    assert plan.parcel is not None
    data = plan.parcel(number)
    try:
        plain = msgpack.unpackb(data)
        files = Files()
        roots = [files.root(root) for root in plain["roots"]]
        for row, size, (kind, value) in zip(plain["rows"], plain["sizes"], plain["places"], strict=True):
            if kind == ROOT:
                files.add_row(row, size, roots[value])
            else:
                files.add_row(row, size, files.keep(Inline(value) if kind == INLINE else value))
        count = len(files)
        members, firsts = numbers_of(range(count), count), numbers_of(plain["firsts"], count + 1)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the plan does not list the sources of task {number}", code="bad-plan") from error
    return PackTask(plan.contents.shards[number].address, plan.request.settings, files, members, firsts)


class PackMaker(Maker):
    """Packs files into shards. ``task_of`` returns the task of a shard by its number."""

    def __init__(self, plan: ReorderPlan, task_of: Callable[[int], PackTask]) -> None:
        super().__init__(plan)
        self.task_of = task_of

    @contextmanager
    def tasks(self, numbers: Sequence[int], progress: Progress) -> Iterator[ShardTasks]:
        request, shards = self.request, [self.contents.shards[number] for number in numbers]
        progress.start("writing shards", sum(shard.size_bytes for shard in shards), "bytes")
        # More processes cannot be faster than the task of the largest shard, and starting a process takes time too.
        work = [shard.size_bytes + BYTES_PER_MEMBER * shard.members for shard in shards]
        remaining_work = sum(work) - max(work)
        size = remaining_work + PROCESSES_FOR_BYTES
        # Opening many files may wait for a disc.
        jobs = useful_jobs(request.jobs, len(work), size, PROCESSES_FOR_BYTES, waits=True)
        is_here = request.engine is None and (jobs == 1 or self.stays_here)

        def task_of(number: int) -> PackTask:
            task = self.task_of(number)
            return task if is_here else task.portable(holds_all=request.engine is not None)

        with self.executor(jobs) as executor:
            yield ShardTasks(
                executor,
                ((task_of(number), pack) for number in numbers),
                progress.advance,
                # A task contains the names of its files, so only a few tasks are created before they are needed.
                workers_of(executor) + 1,
            )

    def outdated(self, numbers: Sequence[int]) -> set[int]:
        # Compare times, like make, because a file of the same size may have new contents.
        outdated = set()
        for number in numbers:
            address = self.contents.shards[number].address
            if is_local(address) and _is_newer(
                self.task_of(number), os.stat(local_path(address)).st_mtime_ns
            ):
                outdated.add(number)
        return outdated


def _is_newer(task: PackTask, than_ns: int) -> bool:
    """Return whether one of a shard's local files was written or renamed after a given time."""
    for number in task.members:
        place = task.files.place(number)
        # An existing shard stays correct if a file was removed.
        with suppress(FileNotFoundError):
            if isinstance(place, bytes) and os.stat(place).st_ctime_ns > than_ns:
                return True
    return False


def pack(task: PackTask) -> PendingCommit[ShardInfo]:
    """Write the shard. The caller commits it. Raises InputError, DataError ``changed-while-read``, OutputError."""
    advance = tick_of_task()
    with task.settings.open(task.address) as shard, ExitStack() as stack:
        packer = _Packer(shard, task, stack)
        for first in range(0, len(task.firsts) - 1, _SAMPLES_TOGETHER):
            done = packer.pack(first, min(first + _SAMPLES_TOGETHER, len(task.firsts) - 1))
            advance(done)
        done = shard.position
        ending = shard.end()
        advance(shard.position - done)
        return ending


class _Packer:
    """The state of one shard while it is filled."""

    def __init__(self, shard: ShardFile, task: PackTask, stack: ExitStack) -> None:
        self._shard = shard
        self._task = task
        self._mtime_field = task.settings.form.mtime_field
        self._stack = stack
        self._folders: dict[int, int] = {}
        """Descriptors of root folders, by the number of their place; -2 for one that cannot be opened."""
        self._scratches: dict[str, int] = {}
        """Descriptors of scratch files with values; -1 for one that cannot be opened."""

    def pack(self, first: int, end: int) -> int:
        """Write the samples ``first`` to ``end - 1``, and return their size in bytes."""
        task, begin = self._task, self._shard.position
        firsts = numpy.asarray(task.firsts[first : end + 1], numpy.int64)
        members = task.members[firsts[0] : firsts[-1]]
        firsts = firsts - firsts[0]
        columns = task.files.gather(members)
        values = self._values(members, columns.places)
        if values is None or core.CORE is None or self._shard.numbers.names:
            self._write_samples(members, columns.row_list(), firsts.tolist())
        else:
            self._pack_buffers(members, columns, values, firsts)
        return self._shard.position - begin

    def _pack_buffers(
        self, members: Sequence[int], columns: FileColumns, values: _Values, firsts: I64
    ) -> None:
        """Write samples, as many at a time as fit into the buffer. ``firsts`` has the first member of each sample, and
        the number of members."""
        ends: I64 = numpy.append(0, (columns.sizes + 2 * BLOCK - 1 & -BLOCK).cumsum())
        sample_ends, folders = ends[firsts], self._descriptors(columns.places)
        low, last = 0, len(firsts) - 1
        while low < last:
            limit = sample_ends[low] + PIECE_BYTES
            high = max(low + 1, int(sample_ends.searchsorted(limit, side="right")) - 1)
            if not self._load(columns, folders, values, ends, firsts[low : high + 1]):
                rows = slice(firsts[low], firsts[high])
                part = firsts[low : high + 1] - firsts[low]
                self._write_samples(members[rows], columns.row_list()[rows], part.tolist())
            low = high

    def _values(self, members: Sequence[int], places: I64) -> _Values | None:
        """Return the values of lists and tables by their places. Return None if other payloads are in no folder."""
        values: _Values = {}
        numbers, slots = numpy.unique(places, return_index=True)
        for number, slot in zip(numbers.tolist(), slots.tolist()):
            if number >= 0:
                place = self._task.files.place(members[slot])
                if not isinstance(place, (Inline, StoredPayload)):
                    return None
                values[number] = place
        return values

    def _load(self, columns: FileColumns, folders: I64, values: _Values, ends: I64, firsts: I64) -> bool:
        """Write usual samples by the compiled core: all payloads go into the buffer, then their headers, without an
        object per member. Return whether all samples were written; otherwise nothing was written. ``ends`` has a 0 and
        the ends of all members as if they were one tar, and ``firsts`` the first member of each sample and the last
        end."""
        assert core.CORE is not None
        rows = slice(firsts[0], firsts[-1])
        count, begin, end = int(firsts[-1] - firsts[0]), ends[firsts[0]], ends[firsts[-1]]
        if end - begin > PIECE_BYTES:
            return False
        places, sizes = columns.places[rows], columns.sizes[rows]
        offsets = ends[rows] - begin + BLOCK
        buffer = self._shard.spare(PIECE_BYTES + 1)  # the core reads one more byte than planned
        joined = columns.rows, columns.ends[firsts[0] : firsts[-1] + 1], sizes, offsets
        if core.CORE.load(buffer, folders[rows], *joined) < count:
            return False
        for slot in numpy.flatnonzero(places >= 0).tolist():
            offset, end_offset = int(offsets[slot]), int(offsets[slot] + sizes[slot])
            if not self._fill(buffer[offset:end_offset], values[int(places[slot])]):
                return False
            buffer[end_offset : end_offset + -end_offset % BLOCK] = padding(end_offset)
        if core.CORE.headers(buffer, *joined, self._mtime_field) < count:
            return False
        view = buffer[: end - begin]
        usual = packed(view, ends[firsts[:-1]] - begin, self._task.settings.form)
        if usual is None or usual.foreign:
            return False
        self._shard.write_arrays(view, usual.arrays)
        return True

    def _descriptors(self, places: I64) -> I64:
        """Return the descriptor of each member's folder: -1 for a payload in memory, -2 for a folder that cannot be
        opened."""
        descriptors = numpy.full(len(places), -1)
        for place in numpy.unique(places[places < 0]).tolist():
            if place not in self._folders:
                descriptor = self._open(self._task.files.folder(place), _FLAGS | os.O_DIRECTORY)
                self._folders[place] = -2 if descriptor < 0 else descriptor
            descriptors[places == place] = self._folders[place]
        return descriptors

    def _fill(self, room: memoryview, value: Inline | StoredPayload) -> bool:
        """Write a value of a list or table into the buffer. Return False if it cannot be read whole."""
        if isinstance(value, Inline):
            room[:] = value.payload
            return True
        if (scratch := self._scratches.get(value.path)) is None:
            scratch = self._scratches[value.path] = self._open(os.fsencode(value.path), _FLAGS)
        payload = os.pread(scratch, len(room), value.offset) if scratch >= 0 else b""
        if len(payload) != len(room):
            return False
        room[:] = payload
        return True

    def _write_samples(self, members: Sequence[int], rows: list[bytes], firsts: list[int]) -> None:
        """Write any samples, a member at a time."""
        files = self._task.files
        sizes = list(map(files.size, members))
        fetched = _fetched(files, members, sizes)
        fields = (
            (row[row.find(SEPARATOR) + 1 :], size, self._payload(files.place(member), size, fetched))
            for row, size, member in zip(rows, sizes, members)
        )
        for first, end in pairwise(firsts):
            key = rows[first][: rows[first].find(SEPARATOR)]
            self._shard.write_pieces(key, islice(fields, end - first))

    def _open(self, path: bytes, flags: int) -> int:
        try:
            descriptor = os.open(path, flags)
        except OSError:
            return -1
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _payload(
        self, place: Place, size: int, fetched: Iterator[bytes | None]
    ) -> Iterable[bytes | memoryview]:
        """Return the pieces of one payload. Those of a large one share a buffer. ``fetched`` has the remote ones."""
        payload = next(fetched) if isinstance(place, str) else None
        if payload is not None:
            return [payload]
        return read_pieces(place, size, self._shard.spare(PIECE_BYTES))


def _fetched(files: Files, members: Sequence[int], sizes: list[int]) -> Iterator[bytes | None]:
    """Yield the payloads of remote members. Several are requested at the same time. A payload that is too large for
    memory is None. Raises InputError, DataError ``changed-while-read``."""
    group: dict[str, int] = {}
    waiting: list[str] = []

    def answers() -> Iterator[bytes | None]:
        payloads = dict(zip(group, at_once(lambda address: payload_at(address, group[address]), list(group))))
        yield from map(payloads.get, waiting)
        group.clear()
        waiting.clear()

    for number, size in zip(members, sizes):
        place = files.place(number) if files.place_number(number) >= 0 else None
        if isinstance(place, str):
            if sum(group.values()) + size > AHEAD_BYTES:
                yield from answers()
            if size <= HELD_BYTES:
                group[place] = size
            waiting.append(place)
    yield from answers()
