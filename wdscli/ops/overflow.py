"""What a survey of one shard does with more rows than it may hold: it writes them to scratch files.

What it is: :class:`Overflow`, which a survey asks as its columns grow, and :class:`StoredRows`, what it returns in
place of rows. It must not know what the rows are for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from wdscli.errors import OutputError
from wdscli.ops.external import write_values
from wdscli.ops.rows import row_type
from wdscli.ops.scratch import HINT
from wdscli.storage.local import reason

if TYPE_CHECKING:
    from wdscli.ops.rows import Rows

BLOCK = 1 << 14
VALUES = ".values"
"""What the file of byte strings is called, after the file of rows."""


class Keep(NamedTuple):
    """How many rows a survey may hold, and where it writes them when there are more."""

    rows: int
    path: str


class StoredRows(NamedTuple):
    """Rows in a file; beside it, perhaps, what was taken of each sample."""

    path: str
    total: int

    def blocks(self) -> Iterator[Rows]:
        """All rows, some thousand at a time."""
        import numpy

        size = row_type().itemsize
        for first in range(0, self.total, BLOCK):
            count = min(BLOCK, self.total - first)
            yield numpy.fromfile(self.path, dtype=row_type(), count=count, offset=first * size)


class Overflow:
    """Where the rows of one survey go; a context manager that closes the files. ``keep`` None is for no limit."""

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self._files = ExitStack()
        self._rows: BinaryIO | None = None
        self._values: BinaryIO | None = None
        self.total = 0

    def is_due(self, held: int) -> bool:
        """Whether so many rows are too many."""
        return self._keep is not None and held > self._keep.rows

    def write(self, rows: Rows, values: list[bytes] | None) -> None:
        """Write rows. Raises OutputError."""
        assert self._keep is not None
        try:
            if self._rows is None:
                with suppress(FileExistsError):
                    os.mkdir(os.path.dirname(self._keep.path), 0o700)
                self._rows = self._opened(self._keep.path)
                if values is not None:
                    self._values = self._opened(self._keep.path + VALUES)
            rows.tofile(self._rows)
            if values is not None and self._values is not None:
                for first in range(0, len(values), BLOCK):
                    write_values(values[first : first + BLOCK], self._values)
        except OSError as error:
            raise OutputError(f"cannot write {self._keep.path}: {reason(error)}", hint=HINT) from error
        self.total += len(rows)

    def _opened(self, path: str) -> BinaryIO:
        return self._files.enter_context(open(path, "wb"))

    def stored(self) -> StoredRows | None:
        """What was written; None when everything could be held."""
        return StoredRows(self._keep.path, self.total) if self._keep is not None and self.total else None

    def __enter__(self) -> Overflow:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
