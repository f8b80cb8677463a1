"""Which members a joined sample has: the fields of its parts beside each other, and what becomes of a field that two
parts have.

What it is: :func:`lay_out`, which plan and task both ask, so that they cannot differ. How: as Python's ``{**a, **b}``
does it, with the four policies of ``--on-conflict`` where a name is taken. It must not know keys, places or sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text

OnConflict = Literal["error", "left", "right", "suffix"]
Shape = tuple[bytes, ...]
"""The fields of one part, in its own order."""


class Slot(NamedTuple):
    """One member of a joined sample: its field, and where it is from: a part (from 0) and a member of that part."""

    field: bytes
    part: int
    member: int


class Layout(NamedTuple):
    """The members of a joined sample. ``out`` are those that are not among them; ``renamed`` those that have another
    name than in their part. Of ``out``, ``replaced`` gave way to a later part."""

    slots: tuple[Slot, ...]
    out: tuple[Slot, ...]
    renamed: tuple[Slot, ...]
    replaced: int

    @property
    def is_plain(self) -> bool:
        """Whether the parts, one behind the other as they stand, are the sample."""
        return not self.out and not self.renamed


def suffixed(field: bytes, part: int) -> bytes:
    """The name of a field whose own name an earlier part has. The type stays at the end, where readers look for it.

    >>> suffixed(b"seg.png", 1)
    b'2.seg.png'
    """
    return b"%d.%s" % (part + 1, field)


def lay_out(parts: Sequence[Shape | None], policies: Sequence[OnConflict]) -> Layout:
    """The members of a sample with these parts; None stands for a part that it lacks. ``policies`` has, for each part,
    what is done when it has a field that is there. Raises DataError without a place.

    >>> lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "right"]).slots
    (Slot(field=b'jpg', part=0, member=0), Slot(field=b'txt', part=1, member=0))
    >>> [slot.field for slot in lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "suffix"]).slots]
    [b'jpg', b'txt', b'2.txt']
    """
    there: dict[bytes, Slot] = {}
    out: list[Slot] = []
    renamed: list[Slot] = []
    replaced = 0
    for part, shape in enumerate(parts):
        for member, field in enumerate(shape or ()):
            slot = Slot(field, part, member)
            before = there.get(field)
            policy = policies[part]
            if before is None:
                there[field] = slot
            elif policy == "suffix":
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
    return Layout(tuple(there.values()), tuple(out), tuple(renamed), replaced)


def _free(field: bytes, there: dict[bytes, Slot], shape: Shape) -> bytes:
    if field in there or field in shape:
        raise conflict(
            f'has a field "{to_text(field)}" already, which --on-conflict suffix would give to another'
        )
    return field


def conflict(what: str) -> DataError:
    """The error of a field that cannot have its name. ``what`` is said of a sample."""
    return DataError(
        what,
        code="conflict",
        hint="--on-conflict left, right or suffix; or leave a field out (--drop), or rename it first",
    )
