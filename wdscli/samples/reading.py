"""This module reads samples: all samples of an archive with their payloads, one member at a known place, or the usual
samples of a buffer as arrays.

:func:`iter_samples` makes one pass over windows with payloads. The compiled core (``core.py``), if installed, takes
many samples together from a window's buffer. :meth:`_Reading._add` handles all other cases: members that belong to no
sample, new or repeated fields, and payloads of streams that continue after the buffer. Samples and errors are the same
in both ways.

:class:`ExpectedMember` is a member that an index or a plan describes. Its headers are compared before its payload is
used. Nearly always, the block before the payload is enough (:func:`says`). The exact scanner decides all other cases,
such as foreign members before the member (:func:`is_there`).

:func:`packed` finds the usual samples of one buffer with the compiled core, without a Python object per member.
:func:`walk_packed` reads a source buffer by buffer, and ends at the first unusual sample. :func:`walk_small` does so
only if this is faster than reading headers. :meth:`PackedSamples.settle` makes the samples canonical in place. The
callers leave unusual samples to the exact path.

This module does not know where bytes and expectations come from, why samples are read, or what is written, and does
not know shard sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wdscli.arrays import I64, Mask, SampleArrays, numpy
from wdscli.errors import DataError
from wdscli.samples.grouping import Grouper, duplicate_field
from wdscli.samples.keys import split_name
from wdscli.tar import KIND_MASK, ByteSource, Columns, Form, Scanner, Window, core, scan
from wdscli.tar.header import BLOCK, checksum_is_right
from wdscli.tar.reader import LARGE_STRIDE_BYTES, is_dense
from wdscli.text import to_bytes, to_text

if TYPE_CHECKING:
    from wdscli.model import Sample

_KNOWN_FIELDS = 1 << 12
HEAP_BLOCK_BYTES = 31 << 20
FRONT_BYTES = 1 << 16
"""The longest gap between two members of a sample that is read together with the next header."""
_LOOK_BYTES = 1 << 12
_heap_is_kept = False
SMALL_SHARD_BYTES = 1 << 24
"""For smaller shards, loading numpy would take longer than reading sample by sample."""
BUFFER_BYTES = 1 << 22


def iter_samples(source: ByteSource, *, fields: frozenset[str] | None = None) -> Iterator[Sample]:
    """Yield the samples of one archive with their payloads, as records. ``fields`` limits which payloads are read. A
    sample without any of these fields is skipped.

    Raises DataError for a damaged archive, for links, devices and sparse members, and for a repeated field of a
    sample.
    """
    keep_heap()
    reading = _Reading(source.name, fields)
    for window in scan(source, payloads=True):
        yield from reading.add(window)
    yield from reading.rest()


class _Reading:
    """The samples that were read but not yet yielded. The last sample may continue in the next window."""

    def __init__(self, shard: str, fields: frozenset[str] | None) -> None:
        from wdscli.model import Sample

        self._new_sample = Sample
        self._shard = shard
        self._fields = fields
        self._samples: list[Sample] = []
        self._prefix = b""
        """The key of the last sample and a dot."""
        self._texts: dict[bytes, str | None] = {}
        """Known fields: their names, None for unwanted ones."""
        self._grouper = Grouper(shard)

    def add(self, window: Window) -> Iterator[Sample]:
        """Take the members of one window, and yield the complete samples. Raises DataError."""
        row, count = 0, len(window.columns.names)
        while row < count:
            end = self._cut(window, row)
            if end == row:
                self._add(window, row)
                end += 1
            row = end
            if len(self._samples) > 1:
                yield from self._wanted(self._samples[:-1])
                del self._samples[:-1]

    def rest(self) -> list[Sample]:
        """Return the last sample."""
        return self._wanted(self._samples)

    def _cut(self, window: Window, row: int) -> int:
        """Take usual members, beginning with ``row``. Return the next row."""
        if core.CORE is None:
            return row
        source = window.source
        descriptor: int | None = getattr(source, "fd", None)
        end: int = core.CORE.cut(
            window.buffer,
            window.base,
            window.columns,
            row,
            -1 if descriptor is None else descriptor,
            source.size or 0,
            self._prefix,
            self._texts,
            self._new_sample,
            self._shard,
            self._samples,
        )
        if end > row:
            self._prefix = to_bytes(self._samples[-1].key) + b"."
        return end

    def _add(self, window: Window, row: int) -> None:
        """Take one member of any kind. This is the slow, exact path."""
        names, starts, _, sizes, flags = window.columns
        name, kind = names[row], flags[row] & KIND_MASK
        parts = None if kind else split_name(name)
        if parts is None:
            self._grouper.ignore(name, kind, starts[row], sizes[row])
            return
        key, field = parts
        if self._prefix != key + b".":
            index = self._samples[-1].index + 1 if self._samples else 0
            self._samples.append(self._new_sample(to_text(key), {}, self._shard, index))
            self._prefix = key + b"."
        text = self._text(field)
        if text is None:
            return
        payloads = self._samples[-1].fields
        if text in payloads:
            raise duplicate_field(self._shard, starts[row], name)
        payloads[text] = window.payload(row)

    def _text(self, field: bytes) -> str | None:
        """Return the name of a field as text, or None if the field is not wanted."""
        if field in self._texts:
            return self._texts[field]
        text = to_text(field)
        wanted = text if self._fields is None or text in self._fields else None
        if len(self._texts) < _KNOWN_FIELDS:
            self._texts[field] = wanted
        return wanted

    def _wanted(self, samples: list[Sample]) -> list[Sample]:
        return samples if self._fields is None else [sample for sample in samples if sample.fields]


def keep_heap() -> None:
    """Keep the memory of freed payloads and parts in this process, for the next ones. One call is enough, also for
    forked processes.

    If more than 128 KiB at the end of glibc's heap are free, glibc returns them to the kernel. Each payload then causes
    page faults, which cost more time than reading it. Measured: a payload of 100 KB took 100 microseconds, and 20 with
    this function; with 64 payloads at a time, 40 and 13. glibc raises this limit when a large mapped block is freed. So
    one block of nearly 32 MiB, the largest block with this effect, is allocated and freed, without using it. Up to 64
    MiB of free memory then stay in the process. Other C libraries ignore this.
    """
    global _heap_is_kept
    if not _heap_is_kept:
        _heap_is_kept = True
        bytes(HEAP_BLOCK_BYTES)


def says(headers: bytes, name: bytes, size: int) -> bool:
    """Return whether these blocks are exactly the headers of a regular member with this name and size. Also return
    False if only the exact scanner can decide this.

    >>> from wdscli.tar import build_header
    >>> says(build_header(b"a.txt", 5), b"a.txt", 5), says(build_header(b"a.txt", 5), b"a.txt", 6)
    (True, False)
    """
    if core.CORE is not None:
        return bool(core.CORE.says(headers, name, size))
    return (
        len(headers) == BLOCK
        and checksum_is_right(headers)
        and headers.startswith(name + b"\0")
        and headers[124:136] == b"%011o\0" % size
        and headers[156] in b"0\0"
        # A prefix, which would precede the name, is not allowed.
        and not headers[345]
    )


def is_there(source: ByteSource, head: int, offset: int, name: bytes, size: int) -> bool:
    """Return whether the headers at byte ``head`` belong to a regular member with this name. Its payload must begin at
    ``offset`` and have ``size`` bytes. Members that belong to no sample may come before it. Raises InputError."""
    columns = _walk(source, head, offset)
    if columns is None or (columns.offsets[-1:], columns.sizes[-1:]) != ([offset], [size]):
        return False
    return columns.names[-1] == name and not columns.flags[-1] & KIND_MASK and _are_of_no_sample(columns, -1)


def holds_no_sample(source: ByteSource, begin: int, end: int) -> bool:
    """Return whether no member of a sample begins in a range of bytes. The range must begin with a header or the end of
    the archive. Raises InputError."""
    columns = _walk(source, begin, end)
    return columns is not None and _are_of_no_sample(columns, len(columns.names))


def _are_of_no_sample(columns: Columns, count: int) -> bool:
    names, flags = columns.names[:count], columns.flags[:count]
    return all(flag & KIND_MASK or split_name(name) is None for name, flag in zip(names, flags))


class ExpectedMember(NamedTuple):
    """A member that an index describes. Its headers begin at byte ``head``."""

    head: int
    offset: int
    name: bytes
    size: int

    @property
    def first(self) -> int:
        """The first byte of a read that gets the payload together with its headers."""
        return max(self.head, self.offset - FRONT_BYTES)

    @property
    def end(self) -> int:
        """The byte after the payload."""
        return self.offset + self.size

    def payload(self, source: ByteSource, most: int | None = None) -> bytes:
        """Read the headers together with the payload, or with its first ``most`` bytes, and return these. Raises
        InputError, and DataError ``stale-index`` unless the headers have this name and size, and ``truncated``."""
        size = self.size if most is None else min(self.size, most)
        data = source.read_at(self.first, self.offset + size - self.first)
        self._want(source, data)
        payload = data[self.offset - self.first :]
        if len(payload) < size:
            raise self.truncated(source, len(payload))
        return payload

    def check(self, source: ByteSource) -> None:
        """Check the headers like :meth:`payload`, without reading the payload."""
        self._want(source, source.read_at(self.first, self.offset - self.first))

    def is_confirmed(self, source: ByteSource, data: bytes) -> bool:
        """Return whether the headers match. ``data`` has the bytes from ``first``. Raises InputError."""
        headers = data[: self.offset - self.first]
        is_all = self.first == self.head and len(headers) == self.offset - self.first
        return (is_all and says(headers, self.name, self.size)) or is_there(source, *self)

    def _want(self, source: ByteSource, data: bytes) -> None:
        if not self.is_confirmed(source, data):
            message = "the index is stale: the payload has another header"
            raise self._error(source, message, "stale-index", "rebuild the index with `wds index`")

    def truncated(self, source: ByteSource, read_bytes: int) -> DataError:
        """Return the error for an archive that ends after the first ``read_bytes`` of the payload."""
        message = f"archive ends after {read_bytes} of {self.size} payload bytes"
        return self._error(source, message, "truncated")

    def _error(self, source: ByteSource, message: str, code: str, hint: str | None = None) -> DataError:
        name = to_text(self.name)
        return DataError(message, code=code, shard=source.name, offset=self.head, member=name, hint=hint)


def _walk(source: ByteSource, begin: int, end: int) -> Columns | None:
    """Return the members with headers in a range of bytes, or None if the bytes are no tar."""
    scanner = Scanner(first=begin)
    try:
        while scanner.position < end and not scanner.ended:
            position, wanted = scanner.position, scanner.wanted
            scanner.feed(source.read_at(position, min(max(_LOOK_BYTES, wanted), end - position)), position)
            if (scanner.position, scanner.wanted) == (position, wanted):
                return None
    except DataError:
        return None
    return scanner.take()


class FileSource(ByteSource, Protocol):
    """A source that fills buffers. ``fd`` is the descriptor of a local file, or None."""

    @property
    def fd(self) -> int | None: ...

    def fill(self, offset: int, view: memoryview, /) -> int: ...


class PackedSamples(NamedTuple):
    """Usual samples in a buffer. ``arrays`` has their places after :meth:`settle`. ``heads`` has the beginnings of the
    members' headers before :meth:`settle`, and ``end`` the end of all samples before it. ``foreign`` is the number of
    members that are not canonical, or have a padding other than zeros. ``foreign_headers`` counts, for each sample, the
    members whose headers are not canonical."""

    arrays: SampleArrays
    heads: I64
    foreign_headers: I64
    end: int
    foreign: int
    form: Form

    def stored(self) -> SampleArrays:
        """Return the samples with their places before :meth:`settle`."""
        arrays = self.arrays
        if not self.foreign:
            return arrays
        starts = self.heads[arrays.counts.cumsum() - arrays.counts]
        offsets = numpy.append(self.heads[1:], self.end) - (arrays.sizes + 511 & -512)
        return arrays._replace(starts=starts, lengths=numpy.diff(starts, append=self.end), offsets=offsets)

    def is_foreign(self) -> Mask:
        """Return, for each sample, whether it has members whose headers are not canonical."""
        foreign: Mask = self.foreign_headers > 0
        return foreign

    def settle(self, view: memoryview) -> memoryview:
        """Make all members canonical in place, padding included. Return the part of the buffer that they fill now."""
        assert core.CORE is not None
        if not self.foreign:
            return view[: self.end]
        form = self.form
        return view[: core.CORE.settle(view[: self.end], form.mtime_field, form.long_names == "gnu")]


def packed(view: memoryview, begins: I64 | None, form: Form) -> PackedSamples | None:
    """Find samples in ``view`` by the compiled core. ``begins`` has the first bytes of the samples, which fill
    ``view``; the first is 0. Without ``begins``, find the complete samples at the start of ``view``. Return None if a
    sample is unusual, or without the core."""
    packing = None
    if core.CORE is not None:
        packing = core.CORE.pack(view, begins, form.mtime_field, form.long_names == "gnu")
    if packing is None:
        return None
    fields, keys, *columns, end, foreign = packing
    key_lengths, counts, starts, lengths, foreign_headers, heads, codes, offsets, sizes = [
        numpy.frombuffer(column, dtype=numpy.int64) for column in columns
    ]
    arrays = SampleArrays(keys, key_lengths, starts, lengths, counts, fields, codes, offsets, sizes)
    return PackedSamples(arrays, heads, foreign_headers, end, foreign, form)


def walk_packed(
    source: FileSource, spare: Callable[[], memoryview], form: Form
) -> Iterator[tuple[int, memoryview, PackedSamples]]:
    """Yield the usual samples at the beginning of a seekable source, a buffer at a time: the byte where they begin, the
    buffer, and the samples at its start. They end before the first unusual sample and before the last sample. After
    each buffer, ``spare`` returns the next one: the same, or another of equal size. Raises the errors of reading."""
    offset = held = 0
    buffer = spare()
    while True:
        held += source.fill(offset + held, buffer[held:])
        usual = packed(buffer[:held], None, form)
        if usual is None:
            return
        yield offset, buffer, usual
        left_over, buffer = buffer[usual.end : held], spare()
        offset, held = offset + usual.end, len(left_over)
        buffer[:held] = left_over


def walk_small(source: FileSource, form: Form) -> Iterator[tuple[int, PackedSamples]]:
    """Yield the small usual samples at the beginning of a local shard like :func:`walk_packed`. Yield nothing without
    the core, if the shard is small, or if its payloads are large."""
    if (
        core.CORE is None
        or source.fd is None
        or (source.size or 0) < SMALL_SHARD_BYTES
        or not is_dense(source)
    ):
        return
    buffer = memoryview(bytearray(BUFFER_BYTES))
    for offset, _, usual in walk_packed(source, lambda: buffer, form):
        if usual.end > LARGE_STRIDE_BYTES * len(usual.arrays.sizes):
            return
        yield offset, usual
