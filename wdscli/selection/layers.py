"""This module has the fields of a joined sample: those of its parts, side by side.

Plans, tasks and views all call :func:`lay_out`, so that their results cannot differ. Fields are merged as Python's
``{**a, **b}`` does it, with the four policies of ``--on-conflict`` for equal names. This module does not know how
partners were found or how they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from wdscli.errors import DataError
from wdscli.model import to_text

OnConflict = Literal["error", "left", "right", "suffix"]
Shape: TypeAlias = tuple[bytes, ...]
"""The fields of one part, in its own order."""


class Slot(NamedTuple):
    """One member of a joined sample: its field, its part (from 0) and its number in that part."""

    field: bytes
    part: int
    member: int


class Layout(NamedTuple):
    """The members of a joined sample. ``out`` are members of parts that are left out; ``renamed`` those with another
    name than in their part. ``replaced`` of ``out`` gave way to a later part. ``conflicts`` are the fields of two
    parts, each with the policy."""

    slots: tuple[Slot, ...]
    out: tuple[Slot, ...]
    renamed: tuple[Slot, ...]
    replaced: int
    conflicts: frozenset[tuple[bytes, OnConflict]]

    @property
    def is_plain(self) -> bool:
        """Whether the sample is its unchanged parts, one after the other."""
        return not self.out and not self.renamed


def suffixed(field: bytes, part: int) -> bytes:
    """The name of a field whose own name an earlier part has. The type stays at the end, where readers look for it.

    >>> suffixed(b"seg.png", 1)
    b'2.seg.png'
    """
    return b"%d.%s" % (part + 1, field)


def lay_out(parts: Sequence[Shape | None], policies: Sequence[OnConflict]) -> Layout:
    """The members of a sample with these parts; None is a missing part. ``policies`` has, for each part, the policy for
    a field that exists already. Raises DataError without a place.

    >>> lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "right"]).slots
    (Slot(field=b'jpg', part=0, member=0), Slot(field=b'txt', part=1, member=0))
    >>> [slot.field for slot in lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "suffix"]).slots]
    [b'jpg', b'txt', b'2.txt']
    """
    there: dict[bytes, Slot] = {}
    out: list[Slot] = []
    renamed: list[Slot] = []
    replaced = 0
    conflicts: set[tuple[bytes, OnConflict]] = set()
    for part, shape in enumerate(parts):
        for member, field in enumerate(shape or ()):
            slot = Slot(field, part, member)
            before = there.get(field)
            policy = policies[part]
            if before is None:
                there[field] = slot
                continue
            conflicts.add((field, policy))
            if policy == "suffix":
                slot = slot._replace(field=_free(suffixed(field, part), there, shape or ()))
                there[slot.field] = slot
                renamed.append(slot)
            elif policy == "error" or before.part == part:
                raise conflict(f'has a field "{to_text(field)}" in two sets')
            else:
                loser = before if policy == "right" else slot
                replaced += policy == "right"
                out.append(loser)
                there[field] = slot if policy == "right" else before
    return Layout(tuple(there.values()), tuple(out), tuple(renamed), replaced, frozenset(conflicts))


def _free(field: bytes, there: dict[bytes, Slot], shape: Shape) -> bytes:
    if field in there or field in shape:
        raise conflict(f'has a field "{to_text(field)}" already, and --on-conflict suffix needs this name')
    return field


def conflict(what: str) -> DataError:
    """The error of a field that cannot have its name. ``what`` is said of a sample."""
    return DataError(
        what,
        code="conflict",
        hint="use --on-conflict left, right or suffix; or drop (--drop) or rename one field first",
    )
