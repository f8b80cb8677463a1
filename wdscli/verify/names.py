"""What fields a sample may have.

What it is: a pure function from a sample's fields in order to what is wrong with them. How: the fields of a sample are
its *shape*; samples share few shapes, so each shape is judged once and the verdict is kept.
It must not know where a sample was found.
"""

from __future__ import annotations

from typing import NamedTuple

from wdscli.model import to_text

Fields = tuple[bytes, ...]


class Problem(NamedTuple):
    """Something wrong with the fields of a sample. ``place`` is the member's place in the sample, or None when it is
    the sample as a whole that is wrong."""

    code: str
    message: str
    place: int | None


def judge_fields(fields: Fields, required: Fields) -> list[Problem]:
    """What is wrong with the fields of a sample, in its order of members."""
    problems = [
        Problem("missing-field", f'the sample has no field "{to_text(field)}"', None)
        for field in required
        if field not in fields
    ]
    if len({field.lower() for field in fields}) == len(fields):
        return problems
    return problems + _collisions(fields)


def _collisions(fields: Fields) -> list[Problem]:
    problems = []
    seen: set[bytes] = set()
    folded: dict[bytes, bytes] = {}
    for place, field in enumerate(fields):
        if field in seen:
            message = f'the field "{to_text(field)}" comes twice in one sample'
            problems.append(Problem("duplicate-field", message, place))
        elif field.lower() in folded:
            other = to_text(folded[field.lower()])
            message = f'the fields "{other}" and "{to_text(field)}" differ in case only'
            problems.append(Problem("case-collision", message, place))
        seen.add(field)
        folded.setdefault(field.lower(), field)
    return problems
