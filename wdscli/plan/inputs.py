"""This module has the input shards of a plan: their addresses, and the sources that one task opens.

:class:`Input` has an address, the path of its copy, and a stamp that shows changes. :class:`Inputs` opens the inputs of
a task. Functions read the members and payloads in a range of a shard's bytes. Standard input, a command's output and a
named pipe can be read only once, so a survey copies them first. This module does not know why inputs are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from wdscli.arrays import I64, U64, edges, numpy
from wdscli.errors import DataError, InputError, InputNotFoundError, UsageError
from wdscli.plan.table import PlanTable
from wdscli.samples import SampleBatch, group_columns
from wdscli.storage import Source, is_local, is_stream, local_path, open_source, scheme
from wdscli.storage.ahead import together
from wdscli.storage.ends import PIECE_BYTES
from wdscli.storage.local import may_open, reason
from wdscli.storage.opening import is_device, open_pinned
from wdscli.tar import FOREIGN, Columns, Scanner
from wdscli.tar.reader import Globals
from wdscli.tar.scan import new_columns

REMOTE_READ_BYTES = 8 << 20
OPEN_SOURCES = 64
"""The most local inputs that a task has open at once."""
OPEN_REMOTE_SOURCES = 1 << 12
"""The same for remote inputs, which have no descriptor of their own."""


class Stamp(NamedTuple):
    """Size and version of an input when the plan was made."""

    size_bytes: int = 0
    version: str = ""
    is_pinned: bool = False
    """Whether the store promises to return only bytes of this version, and the shard is not compressed."""


class TableShard(NamedTuple):
    """A table that became a shard. It has counts of omitted rows by reason, the number of bytes read, and a stamp of
    the content. A resumed run compares the stamp. ``report`` has a line of JSON for each omitted row and field."""

    dropped: dict[str, int]
    size_bytes: int
    stamp: Stamp
    report: Sequence[bytes] = ()


class Input(NamedTuple):
    """One input shard. ``copy`` is the path of its copy; it is empty without a copy."""

    address: str
    copy: str = ""
    stamp: Stamp | None = None
    """The stamp at planning time. An input with another stamp is refused, at the latest after the last read. None if no
    byte was read, because the limit of samples was reached before."""
    is_held: bool = False
    """Whether an input with another stamp is refused before any byte is read."""
    is_packed: bool = False
    """Whether the shard is compressed in blocks. A block is always decompressed as a whole."""
    first: int = 0
    """The number of samples in all inputs before this input."""

    @property
    def is_near(self) -> bool:
        """Whether the bytes are on this machine."""
        return is_local(self.copy or self.address)

    def open(self) -> Source:
        """Open the bytes under the name that the user gave. Raises InputError, and DataError if the bytes have
        changed."""
        if self.copy:
            source = open_source(self.copy, decompress=False)
            source.name = self.address
            return source
        stamp = self.stamp
        if stamp is not None and stamp.is_pinned and not self.is_held:
            return open_pinned(self.address, stamp.size_bytes, stamp.version)
        source = open_source(self.address)
        if stamp is None or (stamp.size_bytes, stamp.version) == (source.size, source.version):
            return source
        if source.fd is None or self.is_held:
            source.close()
            raise DataError(
                "the input was changed after the plan was made",
                code="changed",
                shard=self.address,
                hint="run the command again when no other program writes there",
            )
        # The check of a local file's headers gives a more precise error; confirm() checks payloads.
        source.version = stamp.version
        return source

    def confirm(self) -> None:
        """Raise InputError if a local file was replaced after the plan was made. An open file that was removed is still
        read."""
        if self.stamp is not None and not self.copy and is_local(self.address):
            with suppress(InputNotFoundError), self.open() as source:
                source.confirm()


def is_read_once(address: str) -> bool:
    """Return whether an address can be read only once. The answer is a guess, because the address is not opened."""
    return is_stream(address) or is_ours_alone(address)


def is_ours_alone(address: str) -> bool:
    """Return whether no other process can read an address. This is so for standard input, ``<(...)``, and a named pipe,
    which has only one reader."""
    return address == "-" or (is_local(address) and is_device(local_path(address)))


def is_of_this_process(address: str) -> bool:
    """Return whether the bytes are in the memory of this process, which no worker can read."""
    return scheme(address) == "memory"


def refused(address: str) -> UsageError:
    """Return the error for an input that needs a copy if there is no scratch folder."""
    return UsageError(
        f"{address} can be read only once, but a new order needs to read it twice",
        hint="store it first: wds cat SHARD -o plain.tar",
    )


class Inputs:
    """The open inputs of one task, at most :data:`OPEN_SOURCES` at a time. ``open_other`` opens an input with a number
    that is not in ``inputs``. With ``later``, the caller checks for changes of local files."""

    def __init__(
        self,
        inputs: dict[int, Input],
        open_other: Callable[[int], Source] | None = None,
        *,
        later: bool = False,
    ) -> None:
        self._inputs = inputs
        self._later = later
        self._open_other = open_other
        self._open: dict[int, Source] = {}
        self._remote = {number for number, shard in inputs.items() if not shard.is_near}
        self.descriptors: dict[int, int] = {}
        """The descriptors of open inputs that are plain local files."""
        self._globals: dict[int, Globals] = {}

    def __getitem__(self, number: int) -> Source:
        source = self._open.get(number)
        if source is None:
            self._make_room(is_remote=number in self._remote)
            if self._open_other is not None and number not in self._inputs:
                source = self._open[number] = self._open_other(number)
            else:
                source = self._open[number] = self._inputs[number].open()
            if source.fd is not None:
                self.descriptors[number] = source.fd
        return source

    def _is_remote(self, number: int) -> bool:
        """Whether the bytes of an open input come from another machine."""
        return number in self._remote and number not in self.descriptors

    def _make_room(self, is_remote: bool) -> None:
        """Close remote or local inputs that were opened first, if too many are open."""
        alike = [number for number in self._open if self._is_remote(number) == is_remote]
        while alike and not (
            len(alike) < OPEN_REMOTE_SOURCES if is_remote else may_open(len(alike), OPEN_SOURCES)
        ):
            number = alike.pop(0)
            self.descriptors.pop(number, None)
            with self._open.pop(number) as source:
                self._confirm(number, source)

    def expect(self, files: I64, begins: I64 | U64, lengths: I64 | U64) -> None:
        """Announce to remote inputs the ranges that will be read next. Each column has one number per range."""
        if not self._remote:
            return
        wanted = self._remote.intersection(numpy.unique(files).tolist())
        for number in self._open.keys() & self._remote - wanted:
            self._open[number].expect(())
        with together(int(lengths[numpy.isin(files, list(wanted))].sum())):
            for number in sorted(wanted):
                of_it = files == number
                starts = begins[of_it].astype(numpy.int64)
                ends = starts + lengths[of_it].astype(numpy.int64)
                self[number].expect(zip(starts.tolist(), ends.tolist()))

    def globals_before(self, number: int, start: int) -> dict[bytes, bytes]:
        """Return the records of pax global headers that apply at a byte of an input."""
        global_headers = self._globals.get(number)
        if global_headers is None:
            global_headers = self._globals[number] = Globals(self[number])
        return global_headers.before(start)

    def __enter__(self) -> Inputs:
        return self

    def confirm(self) -> None:
        """Raise InputError for an input that was changed during the reads. Call it after the last read."""
        for number, source in self._open.items():
            self._confirm(number, source)

    def _confirm(self, number: int, source: Source) -> None:
        # The second pass reads scratch files, and removes them while it reads. Its check of headers gives a more
        # precise error for a local file.
        if number in self._inputs and not (self._later and source.fd is not None):
            source.confirm()

    def __exit__(self, *_: object) -> None:
        for source in self._open.values():
            source.close()


def totals_of(samples: PlanTable) -> I64:
    """Return the number of bytes before each sample if samples follow each other. The last value has the bytes of all
    samples."""
    totals: I64 = numpy.zeros(samples.total + 1, dtype=numpy.int64)
    numpy.cumsum(samples.lengths, out=totals[1:], dtype=numpy.int64)
    return totals


def edges_of(files: I64, begins: U64, lengths: U64) -> list[int]:
    """Return the rows that do not begin where the row before ends, and the number of rows."""
    apart = (files[1:] != files[:-1]) | (begins[1:] != begins[:-1] + lengths[:-1])
    edge_rows: list[int] = edges(apart, len(files)).tolist()
    return edge_rows


def members_of_run(
    source: Source, start: int, end: int, globals_before: dict[bytes, bytes] | None = None
) -> Columns:
    """Return the members between two bytes of a shard. Only headers are read. Raises DataError ``changed``."""
    scanner = Scanner(source.name, limit=end, first=start)
    if globals_before:
        scanner.extensions.put_globals(globals_before)
    while scanner.position < end:
        offset, wanted = scanner.position, scanner.wanted
        scanner.feed(source.read_at(offset, min(max(4096, wanted), end - offset)), offset)
        if scanner.position == offset and scanner.wanted == wanted:
            break
    columns = scanner.take()
    if scanner.position != end or not scanner.is_at_member or not columns.names:
        raise DataError(
            "the planned range does not end with a sample", code="changed", shard=source.name, offset=start
        )
    return columns


def pieces_of(source: Source, offset: int, size: int) -> Iterator[bytes]:
    """Yield a payload in pieces. Raises DataError if the source ends first."""
    end = offset + size
    while offset < end:
        data = source.read_at(offset, min(PIECE_BYTES, end - offset))
        if not data:
            raise cut_short(source.name, offset)
        offset += len(data)
        yield data


def fill(view: memoryview, source: Source, offset: int) -> int:
    """Read from byte ``offset`` of a source until ``view`` is full or the source ends. Return the number of bytes read.
    Raises InputError."""
    done = 0
    while done < len(view):
        if source.fd is not None:
            try:
                count = os.preadv(source.fd, [view[done:]], offset + done)
            except OSError as error:
                raise InputError(f"cannot read {source.name}: {reason(error)}") from error
        else:
            count = source.read_into(offset + done, view[done : done + REMOTE_READ_BYTES])
        if not count:
            break
        done += count
    return done


def cut_short(shard: str, offset: int) -> DataError:
    """Return the error for a payload that ends too early."""
    return DataError("archive ends inside a payload", code="truncated", shard=shard, offset=offset)


def grouped_as_planned(columns: Columns, begins: list[int], shard: str) -> SampleBatch:
    """Group members into samples by their planned starts. Keys are not enough, because neighbours may have the same key
    until they get new keys.

    The result has fewer samples than planned if the members do not fit the plan.
    """
    whole = group_columns(new_columns(), shard)
    bounds = [*begins[1:], 1 << 63]
    member, count = 0, len(columns.names)
    for begin, bound in zip(begins, bounds, strict=True):
        first = member
        while member < count and columns.starts[member] < bound:
            member += 1
        sample = group_columns(columns.part(first, member), shard)
        if len(sample.keys) != 1 or sample.starts[0] < begin:
            break
        _append(whole, sample)
    return whole


def _append(whole: SampleBatch, sample: SampleBatch) -> None:
    shift = len(whole.fields)
    whole.keys.extend(sample.keys)
    whole.firsts.extend(first + shift for first in sample.firsts[1:])
    whole.fields.extend(sample.fields)
    for column, values in zip(whole.numbers(), sample.numbers(), strict=True):
        column.extend(values)
    whole.marks.extend(mark | FOREIGN for mark in sample.marks)
