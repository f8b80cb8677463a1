"""This module has the input shards of a plan: their addresses, and the sources that one task opens.

:class:`Input` has an address, the path of its copy, and a stamp that shows changes. :class:`Inputs` opens the inputs of
a task. Functions read the members and payloads in a range of a shard's bytes. Standard input, a command's output and a
named pipe can be read only once, so a survey copies them first. This module does not know why inputs are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from wdscli.errors import DataError, InputNotFoundError, UsageError
from wdscli.samples import SampleBatch, group_columns
from wdscli.storage import Source, is_local, is_stream, open_source, scheme
from wdscli.storage.opening import is_device, open_pinned
from wdscli.storage.scatter import Sources
from wdscli.tar import FOREIGN, Columns, Scanner
from wdscli.tar.reader import Globals
from wdscli.tar.scan import new_columns


class Stamp(NamedTuple):
    """Size and version of an input when the plan was made."""

    size_bytes: int = 0
    version: str = ""
    is_pinned: bool = False
    """Whether the store promises to return only bytes of this version, and the shard is not compressed."""

    def has_same_bytes(self, other: Stamp) -> bool:
        """Return whether size and version are the same."""
        return (self.size_bytes, self.version) == (other.size_bytes, other.version)


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
    return address == "-" or is_device(address)


def is_of_this_process(address: str) -> bool:
    """Return whether the bytes are in the memory of this process, which no worker can read."""
    return scheme(address) == "memory"


def refused(address: str) -> UsageError:
    """Return the error for an input that needs a copy if there is no scratch folder."""
    return UsageError(
        f"{address} can be read only once, but a new order needs to read it twice",
        hint="store it first: wds cat SHARD -o plain.tar",
    )


class Inputs(Sources):
    """The open inputs of one task. ``open_other`` opens an input with a number that is not in ``inputs``. With
    ``later``, the caller checks for changes of local files."""

    def __init__(
        self,
        inputs: dict[int, Input],
        open_other: Callable[[int], Source] | None = None,
        *,
        later: bool = False,
    ) -> None:
        super().__init__(self._open, {number for number, shard in inputs.items() if not shard.is_near})
        self._inputs = inputs
        self._later = later
        self._open_other = open_other
        self._globals: dict[int, Globals] = {}

    def _open(self, number: int) -> Source:
        if self._open_other is not None and number not in self._inputs:
            return self._open_other(number)
        return self._inputs[number].open()

    def globals_before(self, number: int, start: int) -> dict[bytes, bytes]:
        """Return the records of pax global headers that apply at a byte of an input."""
        global_headers = self._globals.get(number)
        if global_headers is None:
            global_headers = self._globals[number] = Globals(self[number])
        return global_headers.before(start)

    def confirm_file(self, number: int, source: Source) -> None:
        """Raise InputError if an input was changed during the reads."""
        # The second pass reads scratch files, and removes them while it reads. Its check of headers gives a more
        # precise error for a local file.
        if number in self._inputs and not (self._later and source.fd is not None):
            source.confirm()


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
