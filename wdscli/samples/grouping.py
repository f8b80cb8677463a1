"""This module groups adjacent members that share a key into samples, as columns, one window at a time.

:class:`SampleBatch` has complete samples as lists of columns, because a record per sample would cost as much time as
parsing its headers. :class:`Grouper` makes the batches. A sample that continues in the next window is kept for the next
batch, so that samples do not depend on buffers. Members that belong to no sample are counted. A :class:`SampleAt` is
one sample of a batch.

:func:`iter_batches` yields the samples of one archive. A :class:`Salvager` yields the intact samples of a damaged
archive, for ``--on-error skip``. Dropped samples are counted by reason. :func:`is_whole` is the rule for every sample
of a damaged shard, here and in ``wds repair``: a sample that lost a member is not whole, and a sample next to damage
may have lost one.

This module does not know where bytes come from, and does not know shard sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple, TypeVar

from wdscli.errors import DataError
from wdscli.samples.keys import split_name, why_ignored
from wdscli.tar import (
    CANONICAL,
    DIRECTORY,
    KIND_MASK,
    KIND_NAMES,
    LINK,
    REGULAR,
    SPARSE,
    SPECIAL,
    ByteSource,
    Columns,
    Form,
    Window,
    core,
    padded,
)
from wdscli.tar.reader import CHUNK_BYTES, new_scanner, scan_salvaging, walk
from wdscli.text import to_bytes, to_text

Dropped = dict[str, int]
_MAKE_REGULAR = {
    LINK: "--dereference --hard-dereference",
    SPECIAL: "without --label, --listed-incremental and --multi-volume",
    SPARSE: "without --sparse",
}
"""GNU tar's options that store members of these kinds as regular files."""
NO_FIELDS: frozenset[bytes] = frozenset()
RAGGED = 0b100000
"""Flag of a sample with foreign members (folders, names without a dot) between its own. It cannot be copied as one
run."""


class SampleBatch(NamedTuple):
    """Complete samples as columns. Sample ``i`` has the members from ``firsts[i]`` to before ``firsts[i + 1]``;
    ``firsts`` has one more entry than ``keys``. Each member has five columns: its field, the offset of its first header
    block, the offset and the size of its payload, and flags of ``wdscli.tar``. ``index`` is the place of the first
    sample in its shard. ``marks[i]`` is 0 if sample ``i`` is a run of canonical members, which may be copied unchanged.
    Otherwise it has the flags FOREIGN, GLOBAL and RAGGED. ``values`` are the exact stored values of the whole shard by
    name (:class:`~wdscli.selection.values.Numbers`)."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    keys: list[bytes]
    firsts: list[int]
    fields: list[bytes]
    starts: list[int]
    offsets: list[int]
    sizes: list[int]
    flags: list[int]
    marks: list[int]
    values: Mapping[str, Any] = {}

    def numbers(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return the columns with one number per member."""
        return self.starts, self.offsets, self.sizes, self.flags

    def columns(self) -> Columns:
        """Return the members as the columns of an archive."""
        names = [
            key + b"." + field
            for key, (first, end) in zip(self.keys, pairwise(self.firsts))
            for field in self.fields[first:end]
        ]
        return Columns(names, *self.numbers())

    def start(self, row: int) -> int:
        """Return the first byte of sample ``row``."""
        return self.starts[self.firsts[row]]

    def end(self, row: int) -> int:
        """Return the byte after sample ``row`` and its padding."""
        last = self.firsts[row + 1] - 1
        return self.offsets[last] + padded(self.sizes[last])

    def part(self, first: int, end: int) -> SampleBatch:
        """Return the samples ``first`` to ``end - 1`` as a separate batch."""
        low, high = self.firsts[first], self.firsts[end]
        return SampleBatch(
            self.index + first,
            self.keys[first:end],
            [member - low for member in self.firsts[first : end + 1]],
            self.fields[low:high],
            self.starts[low:high],
            self.offsets[low:high],
            self.sizes[low:high],
            self.flags[low:high],
            self.marks[first:end],
            self.values,
        )

    def twin(self, row: int) -> int:
        """Return the first member of sample ``row`` whose field the sample already has. There must be one."""
        first, end = self.firsts[row], self.firsts[row + 1]
        return next(
            member for member in range(first, end) if self.fields[member] in self.fields[first:member]
        )

    def sizes_by_field(self, row: int) -> dict[str, int]:
        """Return the payload sizes of one sample by field."""
        first, end = self.firsts[row], self.firsts[row + 1]
        return {to_text(self.fields[member]): self.sizes[member] for member in range(first, end)}


def new_batch(index: int = 0) -> SampleBatch:
    return SampleBatch(index, [], [0], [], [], [], [], [], [])


class Grouper:
    """Groups columns into batches. Call ``add`` with every window in order, then ``finish`` once.

    ``ignored`` counts the members that belong to no sample, by reason. Links, devices and sparse members raise
    DataError; with ``lenient``, they are counted too. A repeated
    field in a sample raises DataError ``duplicate-field``; with ``lenient``, both members are kept. With
    ``keeps_lost``, which needs ``lenient``, a lost member (:func:`lost_name`) stays in its sample, with its kind in the
    flags and in the sample's mark.
    """

    def __init__(
        self,
        shard: str,
        *,
        lenient: bool = False,
        keeps_lost: bool = False,
        index: int = 0,
        ignored: Counter[str] | None = None,
    ) -> None:
        self.shard = shard
        self.lenient = lenient
        self.keeps_lost = keeps_lost
        self.ignored = Counter[str]() if ignored is None else ignored
        self._batch = new_batch(index)
        self._prefix = b""
        self._junk_since = False

    def add(self, window: Window) -> SampleBatch:
        """Return the samples that are complete after this window."""
        self._take(window.columns)
        return self._cut(self._batch)

    def group(self, columns: Columns) -> SampleBatch:
        """Return the samples in columns that begin and end with complete samples."""
        self._take(columns)
        return self.finish()

    def _take(self, columns: Columns) -> None:
        batch, row = self._batch, 0
        while row < len(columns.names):
            # A sample that continues after an ignored member is ragged.
            if core.CORE is not None and not self._junk_since:
                end = core.CORE.group(
                    columns.names, columns.flags, row, self._prefix, batch.keys, batch.firsts, batch.fields
                )
                if end > row:
                    if batch.keys:  # otherwise it was salvaged, and its sample was already returned
                        self._prefix = batch.keys[-1] + b"."
                    part = columns if end - row == len(columns.names) else columns.part(row, end)
                    for column, column_part in zip(batch.numbers(), part[1:], strict=True):
                        column.extend(column_part)
                    row = end
                    continue
            self._add_row(batch, columns, row)
            row += 1

    def _add_row(self, batch: SampleBatch, columns: Columns, row: int) -> None:
        """Add one member of any kind. This is the slow, exact path."""
        name, flag = columns.names[row], columns.flags[row]
        kind = flag & KIND_MASK
        parts = split_name(name) if kind == REGULAR else None
        if (
            parts is None
            and self.keeps_lost
            and (parts := lost_name(name, kind, columns.sizes[row])) is not None
        ):
            flag |= SPECIAL if kind == REGULAR else kind
        if parts is None:
            self.ignore(name, kind, columns.starts[row], columns.sizes[row])
            return
        key, field = parts
        if self._prefix != key + b".":
            batch.keys.append(key)
            batch.firsts.append(len(batch.fields))
            self._prefix = key + b"."
        elif self._junk_since:
            flag |= RAGGED
        self._junk_since = False
        batch.fields.append(field)
        batch.starts.append(columns.starts[row])
        batch.offsets.append(columns.offsets[row])
        batch.sizes.append(columns.sizes[row])
        batch.flags.append(flag)

    def ignore(self, name: bytes, kind: int, start: int, size: int) -> None:
        """Count a member that belongs to no sample. Raise DataError if shards must not have such a member."""
        self._junk_since = True
        if kind == REGULAR and size and name.endswith(b"/") and not self.lenient:
            raise hidden(self.shard, start, name, size)
        if kind in (REGULAR, DIRECTORY):
            self.ignored[why_ignored(name, kind)] += 1
        elif self.lenient:
            self.ignored[KIND_NAMES[kind]] += 1
        else:
            raise not_regular(kind, self.shard, start, name)

    def _cut(self, batch: SampleBatch) -> SampleBatch:
        """Return all samples except the last, which may continue."""
        if len(batch.keys) < 2:
            return new_batch(batch.index)
        open_batch = new_batch(batch.index + len(batch.keys) - 1)
        last = batch.firsts.pop()
        open_batch.keys.append(batch.keys.pop())
        open_batch.firsts.append(0)
        open_batch.fields.extend(batch.fields[last:])
        del batch.fields[last:]
        for column, tail in zip(batch.numbers(), open_batch.numbers()):
            tail.extend(column[last:])
            del column[last:]
        self._batch = open_batch
        return self._closed(batch)

    def finish(self) -> SampleBatch:
        """Return the last sample."""
        batch, self._batch = self._batch, new_batch()
        return self._closed(batch)

    def _closed(self, batch: SampleBatch) -> SampleBatch:
        """Complete ``firsts``, check the fields, and set the marks of the samples."""
        firsts, fields, flags = batch.firsts, batch.fields, batch.flags
        del firsts[0]
        firsts.append(len(fields))
        if len(fields) > len(batch.keys) and not self.lenient:
            row = _row_with_twins(batch)
            if row is not None:
                # finish() then returns the complete samples before it.
                self._batch = _opened(batch, row)
                twin = batch.twin(row)
                raise duplicate_field(self.shard, batch.starts[twin], batch.keys[row] + b"." + fields[twin])
        if any(flags):
            batch.marks.extend([reduce(or_, flags[first:end], 0) for first, end in pairwise(firsts)])
        else:
            batch.marks.extend([0] * len(batch.keys))
        return batch


def _row_with_twins(batch: SampleBatch) -> int | None:
    """Return the first sample with a repeated field."""
    fields, firsts = batch.fields, batch.firsts
    for row, first in enumerate(firsts[:-1]):
        end = firsts[row + 1]
        if end - first == 2:
            twice = fields[first] == fields[first + 1]
        else:
            twice = end - first > 2 and len(set(fields[first:end])) < end - first
        if twice:
            return row
    return None


def _opened(batch: SampleBatch, rows: int) -> SampleBatch:
    """Return the first ``rows`` samples of a closed batch as an open batch, for :meth:`Grouper.finish`."""
    part = batch.part(0, rows)
    part.firsts.insert(0, 0)
    part.firsts.pop()
    part.marks.clear()
    return part


def iter_batches(
    source: ByteSource,
    *,
    form: Form = CANONICAL,
    lenient: bool = False,
    ignored: Counter[str] | None = None,
    see: Callable[[Window], None] | None = None,
    begin: tuple[int, int] = (0, 0),
) -> Iterator[SampleBatch]:
    """Yield the samples of one archive, some hundreds at a time. Only headers are read, and memory is limited. With
    ``see``, payloads are read too, and ``see`` is called with every window before its samples are yielded. ``begin`` is
    the offset of the first sample to yield, and the number of samples before it.

    Members that belong to no sample are counted in ``ignored``. For a damaged archive, DataError is raised after all
    complete samples before the damage. The last sample before it is complete if the damage is in a member with another
    key, or after the last member.
    """
    grouper = Grouper(source.name, lenient=lenient, index=begin[1], ignored=ignored)
    scanner = new_scanner(source, form)
    scanner.position = begin[0]
    try:
        for window in walk(source, scanner, payloads=see is not None, chunk=CHUNK_BYTES):
            if see is not None:
                see(window)
            batch = grouper.add(window)
            if batch.keys:
                yield batch
    except DataError as error:
        last = grouper.finish()
        whole = len(last.keys)
        if whole and not _is_behind(error, last.keys[-1]):
            whole -= 1
        if whole:
            yield last.part(0, whole)
        raise
    last = grouper.finish()
    if last.keys:
        yield last


def _is_behind(error: DataError, key: bytes) -> bool:
    """Return whether the error is after the sample with this key. The sample is then complete."""
    if error.code in ("no-end-of-archive", "data-after-end"):
        return True
    parts = None if error.member is None else split_name(to_bytes(error.member))
    return parts is not None and parts[0] != key


def not_regular(kind: int, shard: str, offset: int, name: bytes) -> DataError:
    """Return the error for a link, a device or a sparse file."""
    return DataError(
        f"{KIND_NAMES[kind]} member: samples consist of regular files",
        code=KIND_NAMES[kind],
        shard=shard,
        offset=offset,
        member=to_text(name),
        hint=f"archive regular files (GNU tar: {_MAKE_REGULAR[kind]}), or save the intact samples with "
        "`wds repair SHARDS -o OUT`",
    )


def lost_name(name: bytes, kind: int, size: int) -> tuple[bytes, bytes] | None:
    """Return key and field of a member that its sample loses, because readers disagree about its payload: a link, a
    device, a sparse file, or a file whose name ends with a slash. Return None if no sample loses a member.

    >>> lost_name(b"a.jpg", LINK, 0), lost_name(b"a.jpg/", REGULAR, 5), lost_name(b"latest", LINK, 0)
    ((b'a', b'jpg'), (b'a', b'jpg'), None)
    """
    if kind == DIRECTORY or (kind == REGULAR and not (size and name.endswith(b"/"))):
        return None
    return split_name(name.rstrip(b"/"))


FieldSet = TypeVar("FieldSet", int, frozenset[bytes])
"""The fields of a sample: a set, or one bit for each field."""


def is_whole(
    fields: FieldSet, usual: FieldSet | None, required: FieldSet, *, is_next_to_damage: bool, is_cut: bool
) -> bool:
    """Return whether a sample of a damaged shard surely has all its members.

    ``is_cut`` means that the sample lost a member. ``required`` are fields that every sample must have. Without them, a
    sample next to damage must have all fields that intact samples have (``usual``), and no others. ``usual`` is None if
    no intact sample is known.

    >>> is_whole(0b01, 0b11, 0, is_next_to_damage=True, is_cut=False)
    False
    """
    if is_cut or fields & required != required:
        return False
    return bool(required) or not is_next_to_damage or fields == usual


def hidden(shard: str, offset: int, name: bytes, size: int) -> DataError:
    """Return the error for a regular file with a slash at the end of its name. bsdtar treats it as a folder, and reads
    its payload as members. tarfile, webdataset and GNU tar read it as a payload."""
    return DataError(
        f"a file's name ends with a slash, so some readers read its {size} bytes as members",
        code="bad-size",
        shard=shard,
        offset=offset,
        member=to_text(name),
        hint="write the archive again, or skip the member with --on-error skip",
    )


def duplicate_field(shard: str, offset: int, name: bytes) -> DataError:
    """Return the error for a repeated field in a sample."""
    return DataError(
        "the same field twice in one sample",
        code="duplicate-field",
        shard=shard,
        offset=offset,
        member=to_text(name),
        hint="two samples may have the same key: `wds create --from shards:SET --on-duplicate rekey` parts them",
    )


def group_columns(columns: Columns, shard: str) -> SampleBatch:
    """Return one batch from columns that begin and end with complete samples. Links and other members that belong to no
    sample are left out."""
    return Grouper(shard, lenient=True).group(columns)


class Salvager:
    """Finds every sample of one archive that is surely complete.

    ``report`` is called with each error of the archive, and with the first lost member and the first repeated field.
    ``dropped`` counts dropped samples: ``damaged`` (next to damage), ``link``, ``special`` and ``sparse`` (a member is
    lost), ``duplicate-field``. ``see`` is called with every window before its samples are yielded, because the payloads
    of a stream must be read at this time. If ``see`` finds a truncated payload, the shard ends there."""

    def __init__(
        self,
        source: ByteSource,
        report: Callable[[DataError], None],
        dropped: Dropped,
        *,
        form: Form = CANONICAL,
        ignored: Counter[str] | None = None,
        see: Callable[[Window], None] | None = None,
    ) -> None:
        self.source, self.form, self.see = source, form, see
        self.report, self.dropped = report, dropped
        self.grouper = Grouper(source.name, lenient=True, keeps_lost=True, ignored=ignored)
        self.is_hurt = self.was_hurt = False
        self.reported: set[str] = set()
        self.seen = 0
        self.usual: frozenset[bytes] | None = None
        self.cut: bytes | None = None
        """The key of the sample that the end of a truncated shard cuts."""

    def batches(self, expected_samples: int = -1) -> Iterator[SampleBatch]:
        """Yield the samples. ``expected_samples`` is the number of samples that the shard should have, or -1. If a
        damaged shard has fewer samples, the missing samples are counted as ``lost``."""
        yield from self._batches()
        if self.was_hurt and expected_samples > self.seen:
            self.dropped["lost"] = self.dropped.get("lost", 0) + expected_samples - self.seen

    def _batches(self) -> Iterator[SampleBatch]:
        after_damage = False
        for window in self._windows():
            if self.is_hurt and window.columns.names:
                yield from self._sound(self.grouper.finish(), after_damage, last_hurt=True)
                self.is_hurt, after_damage = False, True
            batch = self.grouper.add(window)
            if batch.keys:
                yield from self._sound(batch, after_damage, last_hurt=False)
                after_damage = False
        last = self.grouper.finish()
        # If a later sample is cut, the last one is complete.
        cuts_next = self.cut is not None and self.cut not in last.keys[-1:]
        yield from self._sound(last, after_damage, last_hurt=self.is_hurt and not cuts_next)
        if cuts_next:
            self.seen += 1
            self._drop("damaged")

    def _windows(self) -> Iterator[Window]:
        payloads = self.see is not None
        for window in scan_salvaging(self.source, self._damage, form=self.form, payloads=payloads):
            if self.see is not None:
                try:
                    self.see(window)
                except DataError as error:
                    for column in window.columns:
                        column.pop()
                    yield window
                    self._damage(error)
                    return
            yield window

    def _damage(self, error: DataError) -> None:
        self.is_hurt = self.was_hurt = True
        if error.code == "truncated" and error.member is not None:
            self.cut = (split_name(to_bytes(error.member)) or (None,))[0]
        self.report(error)

    def _sound(self, batch: SampleBatch, first_hurt: bool, *, last_hurt: bool) -> Iterator[SampleBatch]:
        """Return ``batch`` without samples that may be incomplete. The first or last sample may be next to damage."""
        rows = []
        self.seen += len(batch.keys)
        last = len(batch.keys) - 1
        for row in range(len(batch.keys)):
            reason = self._why_dropped(batch, row, (first_hurt and row == 0) or (last_hurt and row == last))
            if reason:
                self._drop(reason)
            else:
                rows.append(row)
        if len(rows) == len(batch.keys):
            if rows:
                yield batch
            return
        for row in rows:
            yield batch.part(row, row + 1)

    def _why_dropped(self, batch: SampleBatch, row: int, is_next_to_damage: bool) -> str | None:
        """Return the reason why a sample is dropped, or None for an intact sample."""
        first, end = batch.firsts[row], batch.firsts[row + 1]
        fields = frozenset(batch.fields[first:end])
        if len(fields) < end - first:
            return self._reported(duplicate_field, batch, row, batch.twin(row))
        if batch.marks[row] & KIND_MASK:
            member = next(member for member in range(first, end) if batch.flags[member] & KIND_MASK)
            return self._reported(partial(not_regular, batch.flags[member] & KIND_MASK), batch, row, member)
        is_cut = is_next_to_damage and batch.keys[row] == self.cut
        if not is_whole(fields, self.usual, NO_FIELDS, is_next_to_damage=is_next_to_damage, is_cut=is_cut):
            return "damaged"
        self.usual = fields if self.usual is None else self.usual | fields
        return None

    def _reported(
        self, make_error: Callable[[str, int, bytes], DataError], batch: SampleBatch, row: int, member: int
    ) -> str:
        """Return the code of an error of a member. Report the shard's first error with this code."""
        error = make_error(
            self.source.name, batch.starts[member], batch.keys[row] + b"." + batch.fields[member]
        )
        if error.code not in self.reported:
            self.reported.add(error.code)
            self.report(error)
        return error.code

    def _drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


PayloadOf = Callable[[int, bytes], bytes]
"""A function ``payload_of(row, field)`` that returns one payload of a batch. The sample must have the field."""


class SampleAt(NamedTuple):
    """Sample ``row`` of a batch from ``shard``. ``payload_of`` returns its payloads. It is None if payloads cannot be
    read."""

    batch: SampleBatch
    row: int
    shard: str
    payload_of: PayloadOf | None = None

    @property
    def key(self) -> bytes:
        return self.batch.keys[self.row]

    @property
    def fields(self) -> list[bytes]:
        """The fields of the sample's members, in their order."""
        return self.batch.fields[self.batch.firsts[self.row] : self.batch.firsts[self.row + 1]]

    def member(self, field: bytes) -> int | None:
        """Return the place of a field's member in the batch, or None if the sample lacks the field."""
        fields = self.fields
        return self.batch.firsts[self.row] + fields.index(field) if field in fields else None

    def payload(self, field: bytes) -> bytes:
        """Return the payload of a field. The sample must have the field."""
        assert self.payload_of is not None
        return self.payload_of(self.row, field)

    def parts(self, field: bytes) -> Any:
        """Return the payload of a field for reading headers: only the parts in use are read, if the reader can do
        so (:class:`wdscli.codecs.handlers.PartialPayload`)."""
        read_parts = getattr(self.payload_of, "parts", None)
        return self.payload(field) if read_parts is None else read_parts(self.row, field)

    def error(
        self, message: str, code: str, field: bytes | None = None, hint: str | None = None
    ) -> DataError:
        """Return a DataError with the place of the sample, or of its member with this field."""
        member = None if field is None else self.member(field)
        offset = self.batch.start(self.row) if member is None else self.batch.starts[member]
        name = to_text(self.key if field is None else self.key + b"." + field)
        error = DataError(message, code=code, shard=self.shard, offset=offset, member=name, hint=hint)
        error.of = "sample" if field is None else "member"
        return error
