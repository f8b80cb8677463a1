"""Which samples of one damaged shard can be saved: the plan of a repair.

What it is: :class:`Plan`. How: a scan that continues after damage gives members one by one; adjacent members with one
key make a *stretch*. Members that no sound shard may have are dropped and reported. A stretch next to lost bytes is
marked, because it may lack members. One pass over the headers collects 24 bytes per stretch. A stretch with a
repeated key is joined to the first one when all its fields are new, and dropped otherwise. A sample next to lost
bytes is kept only when it has every required field, or every field that most samples have. A second pass reads the
places of joined members.

It must not write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from wdscli.arrays import I64, U64, Mask, numpy
from wdscli.errors import DataError
from wdscli.model import to_bytes, to_text
from wdscli.samples import new_batch, split_name, why_ignored, why_unsafe
from wdscli.tar import DIRECTORY, KIND_MASK, KIND_NAMES, REGULAR, ByteSource, Window
from wdscli.tar.reader import scan_salvaging
from wdscli.verify.findings import Ledger
from wdscli.verify.keys import DUPLICATE, INTERLEAVED, KeyColumns
from wdscli.verify.profiles import Fields


class Payload(NamedTuple):
    """One member of a stretch: its field and the place of its payload."""

    field: bytes
    offset: int
    size: int


@dataclass(slots=True)
class Stretch:
    """Adjacent members of one key; ``row`` is its number in the shard. ``is_hit`` means that bytes next to it are
    lost."""

    row: int
    key: bytes
    start: int
    is_hit: bool
    members: list[Payload] = field(default_factory=list)


def read_stretches(source: ByteSource, ledger: Ledger) -> Iterator[Stretch]:
    """The stretches of a shard in order, numbered from 0; dropped members are reported to ``ledger``."""
    reader = _StretchReader(ledger)
    for window in scan_salvaging(source, reader.on_error):
        yield from reader.add(window)
    if reader.last is not None:
        yield reader.last


class _StretchReader:
    def __init__(self, ledger: Ledger) -> None:
        self.last: Stretch | None = None
        self._ledger = ledger
        self._next_is_hit = False

    def on_error(self, error: DataError) -> None:
        """Mark the stretches around lost bytes, which may lack members.

        An end of archive in the middle counts as lost bytes too: it may be a hole of zeros.
        """
        self._next_is_hit = True
        cut = split_name(to_bytes(error.member)) if error.member else None
        # A damaged member of another key shows that the sample before it was complete.
        if self.last is not None and (cut is None or cut[0] == self.last.key):
            self.last.is_hit = True

    def add(self, window: Window) -> Iterator[Stretch]:
        """Yield the stretches that end in a window."""
        names, starts, offsets, sizes, flags = window.columns
        for name, start, offset, size, flag in zip(names, starts, offsets, sizes, flags):
            parts = self._allowed(name, flag & KIND_MASK, start)
            if parts is None:
                continue
            key, field = parts
            stretch = self.last
            if stretch is None or stretch.key != key:
                if stretch is not None:
                    yield stretch
                row = 0 if stretch is None else stretch.row + 1
                stretch = self.last = Stretch(row, key, start, self._next_is_hit)
            elif self._next_is_hit:
                stretch.is_hit = True
            self._next_is_hit = False
            if any(member.field == field for member in stretch.members):
                self._leave_out("duplicate-field", "the sample already has this field", start, name)
            else:
                stretch.members.append(Payload(field, offset, size))

    def _allowed(self, name: bytes, kind: int, start: int) -> tuple[bytes, bytes] | None:
        """Key and field of a member that may be written; None for others."""
        if kind == DIRECTORY:
            return None
        if kind != REGULAR:
            self._leave_out(KIND_NAMES[kind], f"a {KIND_NAMES[kind]} member", start, name)
            return None
        reason = why_unsafe(name)
        if reason is not None:
            self._leave_out("unsafe-name", reason, start, name)
            return None
        parts = split_name(name)
        if parts is None:
            reason = f"it belongs to no sample ({why_ignored(name, kind)})"
            self._leave_out("no-field", reason, start, name)
        return parts

    def _leave_out(self, code: str, reason: str, start: int, name: bytes) -> None:
        self._ledger.add(code, f"left out: {reason}", offset=start, member=name)


class Plan:
    """What can be saved of ``source``, which must be seekable; losses are reported to ``ledger``. ``required`` are
    the fields that a sample next to damage must have; if empty, those of most samples. With ``max_decoded``, payloads
    that become at most so many bytes are decoded. ``digests`` are those of the keys of the samples to save, packed,
    in order; ``seed`` is their seed."""

    def __init__(
        self,
        source: ByteSource,
        ledger: Ledger,
        *,
        max_decoded: int | None = None,
        required: Fields = (),
        seed: int = 0,
    ) -> None:
        self._source, self._ledger = source, ledger
        self._keys = keys = KeyColumns(seed=seed)
        self._dropped: set[int] = set()
        """Stretches to drop."""
        self._first_of: dict[int, int] = {}
        """For each joined stretch, the first stretch of its key."""
        self._joined: dict[int, list[Payload]] = {}
        """Members of later stretches that are joined to a first one."""
        self._decoder = None
        if max_decoded is not None:
            from wdscli.verify.decode import Decoder

            self._decoder = Decoder(ledger, max_decoded)
        hit: dict[int, bytes] = {}
        for stretch in read_stretches(source, ledger):
            batch = new_batch()
            batch.keys.append(stretch.key)
            batch.firsts.append(1)
            batch.starts.append(stretch.start)
            keys.add(batch, [keys.mask(member.field for member in stretch.members)])
            if stretch.is_hit:
                hit[stretch.row] = stretch.key
            if self._is_undecodable(stretch):
                self._dropped.add(stretch.row)
        masks = self._join()
        if hit:
            self._drop_incomplete(masks, hit, keys.mask(required) or None)
        kept: Mask = numpy.ones(len(masks), dtype=bool)
        kept[list(self._dropped)] = False
        self.digests = keys.packed(kept)

    def samples(self) -> Iterator[Stretch]:
        """The samples to write, in the order of the shard, joined members included."""
        for stretch in read_stretches(self._source, Ledger(limit=0)):
            if stretch.row not in self._dropped:
                stretch.members += self._joined.get(stretch.row, ())
                yield stretch

    def _is_undecodable(self, stretch: Stretch) -> bool:
        """Whether a payload cannot be decoded, so that its sample is dropped."""
        for name, offset, size in stretch.members if self._decoder is not None else ():
            read = partial(self._source.read_at, offset, size)
            member = stretch.key + b"." + name
            reason = self._decoder and self._decoder.why_not(name, size, read, stretch.start, member)
            if reason:
                reason = f"{to_text(name)} cannot be decoded: {reason}"
                self._leave_out("undecodable", reason, stretch.start, stretch.key)
                return True
        return False

    def _join(self) -> U64:
        """The bits of every stretch's fields, those of joined stretches added to the first one; the others with the
        same key are dropped."""
        keys = self._keys
        masks = numpy.array(keys.masks, dtype=numpy.uint64)
        repeats = keys.repeats()
        if repeats is None:
            return masks
        rows: I64 = numpy.append(repeats.rows(INTERLEAVED), repeats.rows(DUPLICATE))
        likely, again = {*rows.tolist(), *repeats.firsts[rows].tolist()}, set[int]()
        first_of, firsts, seen = self._first_of, dict[bytes, int](), masks.copy()
        for stretch in read_stretches(self._source, Ledger(limit=0)) if likely else ():
            # Digests find candidates, keys decide.
            if (row := stretch.row) not in likely or (first := firsts.setdefault(stretch.key, row)) == row:
                continue
            if seen[first] & seen[row]:
                again.add(row)
                reason = f"the sample at byte {keys.starts[first]} has the same key"
                self._leave_out("duplicate-key", reason, stretch.start, stretch.key)
            else:
                first_of[row] = first
                masks[first] |= masks[row]
                self._joined.setdefault(first, []).extend(stretch.members)
            seen[first] |= seen[row]
        # A sample is dropped as a whole.
        self._dropped |= {first_of[row] for row in self._dropped if row in first_of}
        self._dropped |= first_of.keys() | again
        return masks

    def _drop_incomplete(self, masks: U64, hit: dict[int, bytes], usual: int | None) -> None:
        """Drop samples next to lost bytes that lack a field of ``usual``, or, if it is None, of most samples."""
        dropped = self._dropped
        whole: Mask = numpy.ones(len(masks), dtype=bool)
        hit = {self._first_of.get(row, row): key for row, key in hit.items()}
        whole[[*dropped, *hit]] = False
        kinds, counts = numpy.unique(masks[whole], return_counts=True)
        if usual is None and len(kinds):
            usual = int(kinds[counts.argmax()])
        for row, key in hit.items():
            if row not in dropped and (usual is None or int(masks[row]) & usual != usual):
                dropped.add(row)
                reason = "bytes next to it are lost, and it lacks fields"
                self._leave_out("damaged", reason, self._keys.starts[row], key)

    def _leave_out(self, code: str, reason: str, start: int, key: bytes) -> None:
        self._ledger.add(code, f"sample left out: {reason}", offset=start, member=key)
