"""The runs of a damaged shard: members of one key that stand side by side, as far as they can be had.

What it is: :func:`read_runs`, the reading half of a repair. How: members are taken one by one from a scan that goes on
after damage; what no good shard may hold is left out and told; a run next to a place where bytes were lost is marked,
because it may lack members. It must not decide what is written, nor write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import split_name, why_ignored, why_unsafe
from wdscli.tar import DIRECTORY, KIND_MASK, KIND_NAMES, REGULAR, ByteSource, Window
from wdscli.tar.recover import scan_salvaging
from wdscli.verify.findings import Ledger


class Part(NamedTuple):
    """One member of a run and the place of its payload."""

    field: bytes
    offset: int
    size: int


class Run:
    """Members of one key side by side. ``is_hit`` says that bytes were lost next to it."""

    __slots__ = ("is_hit", "key", "parts", "row", "start")

    def __init__(self, row: int, key: bytes, start: int, *, is_hit: bool) -> None:
        self.row = row
        self.key = key
        self.start = start
        self.is_hit = is_hit
        self.parts: list[Part] = []


def read_runs(source: ByteSource, ledger: Ledger) -> Iterator[Run]:
    """The runs of a shard in order, numbered from 0; what is left out goes to ``ledger``."""
    reader = _RunReader(ledger)
    for window in scan_salvaging(source, reader.on_error):
        yield from reader.add(window)
    if reader.run is not None:
        yield reader.run


class _RunReader:
    def __init__(self, ledger: Ledger) -> None:
        self.run: Run | None = None
        self._ledger = ledger
        self._next_is_hit = False
        self._rows = 0

    def on_error(self, error: DataError) -> None:
        """Bytes were lost: between the last member and the next one a sample may lack what it had.

        So too after an end of archive in the middle: it may be a hole of zeros.
        """
        self._next_is_hit = True
        if self.run is None:
            return
        cut = split_name(error.member.encode("utf-8", "surrogateescape")) if error.member else None
        # A member that is known to be of another sample says that the one before had ended.
        if cut is None or cut[0] == self.run.key:
            self.run.is_hit = True

    def add(self, window: Window) -> Iterator[Run]:
        """The runs that end in a window."""
        names, starts, offsets, sizes, flags = window.columns
        for name, start, offset, size, flag in zip(names, starts, offsets, sizes, flags):
            parts = self._allowed(name, flag & KIND_MASK, start)
            if parts is None:
                continue
            key, field = parts
            run = self.run
            if run is None or run.key != key:
                if run is not None:
                    yield run
                run = self.run = Run(self._rows, key, start, is_hit=self._next_is_hit)
                self._rows += 1
            elif self._next_is_hit:
                run.is_hit = True
            self._next_is_hit = False
            if any(part.field == field for part in run.parts):
                self._leave_out("duplicate-field", "left out: the sample has this field already", start, name)
            else:
                run.parts.append(Part(field, offset, size))

    def _allowed(self, name: bytes, kind: int, start: int) -> tuple[bytes, bytes] | None:
        """Key and field of a member that may be written."""
        if kind == DIRECTORY:
            return None
        if kind != REGULAR:
            self._leave_out(KIND_NAMES[kind], f"left out: a {KIND_NAMES[kind]} member", start, name)
            return None
        reason = why_unsafe(name)
        if reason is not None:
            self._leave_out("unsafe-name", f"left out: {reason}", start, name)
            return None
        parts = split_name(name)
        if parts is None:
            self._leave_out(
                "no-field", f"left out: it belongs to no sample ({why_ignored(name, kind)})", start, name
            )
        return parts

    def _leave_out(self, code: str, message: str, start: int, name: bytes) -> None:
        self._ledger.add(code, message, offset=start, member=to_text(name))
