"""Files that will become members, as columns.

What it is: what the walk, the list and the table all give, and what the plan sorts and cuts. How: three
parallel lists, because a record a file would cost as much as reading the file. It must not know where files
come from, nor shards.
"""

from __future__ import annotations

from typing import NamedTuple

from wdscli.model import to_text
from wdscli.progress import QUIET, Progress

SEPARATOR = b"\0"
"""Between key and field in a row. It sorts before every byte that a name can hold, so that rows sort by (key,
field)."""


class Inline(NamedTuple):
    """A payload that is at hand."""

    payload: bytes


class Stored(NamedTuple):
    """A payload that was put into a scratch file at ``offset``."""

    path: str
    offset: int


class Remote(NamedTuple):
    """A payload at an address that is no local path."""

    address: str


Place = bytes | Inline | Stored | Remote
"""Where a payload is; bytes are a local path."""


class Files:
    """Columns, one entry a file: ``rows`` (key, NUL, field), planned payload ``sizes`` in bytes, and
    ``places``."""

    __slots__ = ("places", "rows", "sizes")

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.sizes: list[int] = []
        self.places: list[Place] = []

    def add(self, key: bytes, field: bytes, size: int, place: Place) -> None:
        self.rows.append(key + SEPARATOR + field)
        self.sizes.append(size)
        self.places.append(place)

    def permute(self, order: list[int]) -> None:
        """Bring the entries into this order; those it leaves out are dropped."""
        self.rows = [self.rows[at] for at in order]
        self.sizes = [self.sizes[at] for at in order]
        self.places = [self.places[at] for at in order]

    def describe(self, at: int) -> str:
        """Where the payload of entry ``at`` comes from, for a message."""
        return describe_place(self.places[at])


def describe_place(place: Place) -> str:
    """A place as a user knows it."""
    if isinstance(place, bytes):
        return to_text(place)
    if isinstance(place, Remote):
        return place.address
    return "a value of the list or table"


class Skipped:
    """Counts of what was found and is part of no sample, by reason; each one is told under ``-v``."""

    def __init__(self, progress: Progress = QUIET) -> None:
        self.counts: dict[str, int] = {}
        self._note = progress.note

    def add(self, reason: str, name: bytes, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
        self._note(f"skipped {to_text(name)}: {reason}")
