"""This module decides the fields of a joined sample, which are the fields of all its parts.

Plans, tasks and views all call :func:`lay_out`, so that their results cannot differ. Fields are merged like Python's
``{**a, **b}``. For equal names, there are the four policies of ``--on-conflict``. This module does not know how
partners were found or how they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from wdscli.errors import DataError
from wdscli.text import to_text

OnConflict = Literal["error", "left", "right", "suffix"]
Shape: TypeAlias = tuple[bytes, ...]
"""The fields of one part, in the part's order."""


class Slot(NamedTuple):
    """One member of a joined sample: its field, its part (from 0) and its number in that part."""

    field: bytes
    part: int
    member: int


class JoinedMembers(NamedTuple):
    """The members of a joined sample. ``out`` counts members of parts that are left out, and ``renamed`` counts members
    with a new name. ``replaced`` counts members of ``out`` that a later part replaces. ``conflicts`` are the fields
    that two parts have, each with the policy."""

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
    """Return a new name for a field if an earlier part has its name. The type stays at the end, because readers search
    it there.

    >>> suffixed(b"seg.png", 1)
    b'2.seg.png'
    """
    return b"%d.%s" % (part + 1, field)


def lay_out(parts: Sequence[Shape | None], policies: Sequence[OnConflict]) -> JoinedMembers:
    """The members of a sample with these parts; None is a missing part. ``policies`` has, for each part, the policy for
    a field that exists already. Raises DataError without a place.

    >>> lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "right"]).slots
    (Slot(field=b'jpg', part=0, member=0), Slot(field=b'txt', part=1, member=0))
    >>> [slot.field for slot in lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "suffix"]).slots]
    [b'jpg', b'txt', b'2.txt']
    """
    slot_by_field: dict[bytes, Slot] = {}
    out: list[Slot] = []
    renamed: list[Slot] = []
    replaced = 0
    conflicts: set[tuple[bytes, OnConflict]] = set()
    for part, shape in enumerate(parts):
        for member, field in enumerate(shape or ()):
            slot = Slot(field, part, member)
            before = slot_by_field.get(field)
            policy = policies[part]
            if before is None:
                slot_by_field[field] = slot
                continue
            conflicts.add((field, policy))
            if policy == "suffix":
                slot = slot._replace(field=_free(suffixed(field, part), slot_by_field, shape or ()))
                slot_by_field[slot.field] = slot
                renamed.append(slot)
            elif policy == "error" or before.part == part:
                raise conflict(f'has a field "{to_text(field)}" in two sets')
            else:
                loser = before if policy == "right" else slot
                replaced += policy == "right"
                out.append(loser)
                slot_by_field[field] = slot if policy == "right" else before
    return JoinedMembers(
        tuple(slot_by_field.values()), tuple(out), tuple(renamed), replaced, frozenset(conflicts)
    )


def _free(field: bytes, slot_by_field: dict[bytes, Slot], shape: Shape) -> bytes:
    if field in slot_by_field or field in shape:
        raise conflict(f'has a field "{to_text(field)}" already, and --on-conflict suffix needs this name')
    return field


def conflict(what: str) -> DataError:
    """Return the error for a field that cannot have its name. ``what`` says what the sample has."""
    return DataError(
        what,
        code="conflict",
        hint="use --on-conflict left, right or suffix; or drop (--drop) or rename one field first",
    )
