"""Rows of one survey that are more than a worker should hold: where they go until the plan's table takes them.

What it is: :class:`Overflow`, to which a survey writes, and :class:`StoredRows`, what was written. How: files of this
machine, of rows and, if an order wants values, of their lengths and bytes. The plan takes them in blocks and removes
them. It must not know what the rows are.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from wdscli.errors import OutputError
from wdscli.plan.scratch import HINT
from wdscli.plan.table import row_type
from wdscli.plan.values import Packed
from wdscli.storage.local import reason

if TYPE_CHECKING:
    from wdscli.plan.table import Rows

HELD_ROWS = 1 << 16
"""Rows that a survey holds."""
LENGTHS, DATA = ".lengths", ".data"
"""What the files of values are called, after the file of rows."""


class StoredRows(NamedTuple):
    """Rows in a file; beside it, perhaps, what was taken of each sample."""

    path: str
    total: int
    has_values: bool

    def blocks(self) -> Iterator[tuple[Rows, Packed | None]]:
        """All rows, some thousand at a time. Removes the files at the end. Raises OutputError."""
        import numpy

        try:
            with ExitStack() as files:
                rows, *values = [files.enter_context(open(path, "rb")) for path in self.paths]
                for first in range(0, self.total, HELD_ROWS):
                    count = min(HELD_ROWS, self.total - first)
                    yield numpy.fromfile(rows, dtype=row_type(), count=count), _read(values, count)
            for path in self.paths:
                os.unlink(path)
        except OSError as error:
            raise OutputError(f"cannot read {self.path}: {reason(error)}", hint=HINT) from error

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [self.path, *([self.path + LENGTHS, self.path + DATA] if self.has_values else [])]


def _read(values: Sequence[BinaryIO], count: int) -> Packed | None:
    if not values:
        return None
    lengths = array("I")
    lengths.fromfile(values[0], count)
    return Packed(lengths, values[1].read(sum(lengths)))


class Overflow:
    """Where the rows of one survey go; a context manager that closes the files. Without a ``path`` nothing is too
    many."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._has_values = False
        self._files = ExitStack()
        self._open: list[BinaryIO] = []
        self.total = 0

    def is_due(self, held: int) -> bool:
        """Whether so many rows are too many."""
        return self._path is not None and held > HELD_ROWS

    def write(self, rows: Rows, values: Packed | None) -> None:
        """Write rows. Raises OutputError."""
        assert self._path is not None
        try:
            if not self._open:
                with suppress(FileExistsError):
                    os.mkdir(os.path.dirname(self._path), 0o700)
                self._has_values = values is not None
                paths = StoredRows(self._path, 0, self._has_values).paths
                self._open = [self._files.enter_context(open(path, "wb")) for path in paths]  # noqa: SIM115
            rows.tofile(self._open[0])
            if values is not None:
                values.lengths.tofile(self._open[1])
                self._open[2].write(values.data)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {reason(error)}", hint=HINT) from error
        self.total += len(rows)

    def stored(self) -> StoredRows | None:
        """What was written; None when everything could be held."""
        return (
            None
            if self._path is None or not self.total
            else StoredRows(self._path, self.total, self._has_values)
        )

    def __enter__(self) -> Overflow:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
