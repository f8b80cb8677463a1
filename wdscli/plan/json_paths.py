"""A field, or a place in its JSON, as options name them: ``cls``, ``json.user.id``, ``json.boxes[0]``, ``json["a b"]``.

What it is: :func:`field_and_path`, from the text to its parts, and :func:`at_path`, from a document to what lies there.
It must not know what the values are for.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from wdscli.errors import UsageError

Path: TypeAlias = tuple[str | int, ...]

_IN_JSON = re.compile(r"((?:[^.\[]+\.)*?json)([.\[].*)", re.DOTALL)
_STEP = re.compile(r"""\.([^.\[\]"']+)|\[(-?[0-9]{1,9})\]|\["([^"]*)"\]|\['([^']*)'\]""")
_STEPS = re.compile(f"(?:{_STEP.pattern})+")

_HINT = "a field (cls, seg.png) or a place in JSON (json.width, json.box[0])"


class Absent(Exception):
    """Nothing lies at the path."""


def field_and_path(text: str, purpose: str, hint: str = _HINT) -> tuple[str, Path | None]:
    """A field, and the path into its JSON, which begins after the first part that is ``json``. ``purpose`` begins the
    message of the UsageError that is raised for anything else.

    >>> field_and_path("json.boxes[0]", "cannot sort by"), field_and_path("seg.png", "cannot sort by")
    (('json', ('boxes', 0)), ('seg.png', None))
    """
    match = _IN_JSON.fullmatch(text)
    if match is None:
        if not text or "/" in text:
            raise UsageError(f'{purpose} "{text}"', hint=hint)
        return text, None
    steps: list[str | int] = []
    at = 0
    while at < len(match[2]):
        step = _STEP.match(match[2], at)
        if step is None:
            raise UsageError(
                f'{purpose} "{text}": a path has no "{match[2][at:]}"',
                hint='paths are json.a.b, json.a[0], json["a name"]',
            )
        steps.append(int(step[2]) if step[2] else step[step.lastindex or 0])
        at = step.end()
    return match[1], tuple(steps)


def is_path(text: str) -> bool:
    """Whether a text is a field and a path into its JSON."""
    match = _IN_JSON.fullmatch(text)
    return match is not None and _STEPS.fullmatch(match[2]) is not None


def at_path(document: Any, path: Path) -> Any:
    """What lies at a path. A name is that of an object's member or, of digits, a place in an array. Raises Absent, also
    for null."""
    for step in path:
        if isinstance(document, list) and (isinstance(step, int) or (step.isdecimal() and len(step) < 10)):
            place = int(step)
            if not -len(document) <= place < len(document):
                raise Absent
            document = document[place]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise Absent
    if document is None:
        raise Absent
    return document
