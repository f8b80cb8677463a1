"""What is named on a command line and has to be somewhere: fields, places in JSON, keys.

What it is: :class:`Named`, a name and what it is for; :class:`Sightings`, what was seen of names while samples went by;
:func:`absences`, the names that no sample has, each with the nearest that there are. How: fields are a set that grows
by batches, since a set of samples has few; a JSON document is looked into until a place was found once; of keys only
those are kept that may be near a missing one. Sightings of several processes are put together. It must not know what
is done about a name that is nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from wdscli.errors import DataError, nearest
from wdscli.model import to_bytes, to_text
from wdscli.samples import SampleBatch

Path: TypeAlias = tuple[str | int, ...]

_SHOWN = 8
_NAMED_AT_MOST = 3
_MOST_BESIDE = 1000
_KEYS_KEPT = 1000
_KEYS_FOLLOWED = 8
_MAGIC = frozenset("*?[")


def class_number(text: str) -> int | None:
    """The number that a ``cls`` payload is, as webdataset reads it; None for text."""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 100 else None


class Place(NamedTuple):
    """A place in the JSON of a field."""

    field: bytes
    path: Path


class Named(NamedTuple):
    """A name as it was typed: one of ``fields`` (names or globs) must be there, and ``path`` in its JSON. ``purpose``
    ends the message, ``hint`` begins the hint. One that is not ``needed`` may be nowhere, but is told."""

    text: str
    purpose: str
    fields: tuple[str, ...]
    path: Path | None = None
    needed: bool = True
    hint: str = ""

    @property
    def place(self) -> Place | None:
        return None if self.path is None else Place(to_bytes(self.fields[0]), self.path)


class Absence(NamedTuple):
    """Names that no sample has."""

    message: str
    hint: str
    needed: bool = True

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.message}: {self.hint}" if self.hint else self.message


class Sightings:
    """What was seen of what is named. ``fields`` are those of all samples that were looked at; ``places`` were found
    at least once; ``beside`` has, for places that were looked for and not found so far, the names that are there
    instead."""

    __slots__ = ("_followed", "beside", "fields", "keys", "places")

    def __init__(self) -> None:
        self.fields: set[bytes] = set()
        self.places: set[Place] = set()
        self.beside: dict[Place, set[str]] = {}
        self.keys: dict[bytes, None] = {}
        self._followed: dict[bytes, tuple[bytes | None, bytes | None]] = {}

    def see_document(self, place: Place, document: Any) -> bool:
        """Look for a place in one document; whether it is there."""
        for step in place.path:
            if isinstance(document, list) and isinstance(step, str) and step.isdecimal() and len(step) < 10:
                step = int(step)
            try:
                document = document[step]
            except (LookupError, TypeError):
                beside = self.beside.setdefault(place, set())
                if isinstance(document, dict) and len(beside) < _MOST_BESIDE:
                    beside.update(document)
                return False
        self.places.add(place)
        self.beside.pop(place, None)
        return True

    def look(
        self,
        named: Iterable[Named],
        batch: SampleBatch,
        rows: Sequence[int],
        payload_of: Callable[[int, bytes], bytes],
    ) -> None:
        """Look for names in a batch; for places in JSON, which ``payload_of`` gives, in ``rows`` of it."""
        self.fields.update(batch.fields)
        for name in named:
            place = name.place
            if place is not None and place not in self.places:
                self._look_into(place, batch, rows, payload_of)

    def _look_into(
        self, place: Place, batch: SampleBatch, rows: Sequence[int], payload_of: Callable[[int, bytes], bytes]
    ) -> None:
        import json

        for row in rows:
            if place.field not in batch.fields[batch.firsts[row] : batch.firsts[row + 1]]:
                continue
            try:
                document = json.loads(payload_of(row, place.field))
            except (ValueError, RecursionError, DataError):
                continue  # whoever wants its value says so
            if self.see_document(place, document):
                return

    def see_keys(self, keys: Sequence[bytes], missing: Iterable[bytes]) -> None:
        """Keep some of ``keys``: the first ones, and those on either side of a missing one, whose beginning is most
        like it."""
        if len(self.keys) < _KEYS_KEPT:
            self.keys.update(dict.fromkeys(keys))
        for wanted in missing:
            below, above = self._followed.get(wanted, (None, None))
            if below is None and above is None and len(self._followed) >= _KEYS_FOLLOWED:
                return
            lower = [key for key in keys if key < wanted]
            upper = [key for key in keys if key > wanted]
            self._followed[wanted] = (
                max([*lower, *([] if below is None else [below])], default=None),
                min([*upper, *([] if above is None else [above])], default=None),
            )

    def near_keys(self, wanted: bytes) -> list[str]:
        """Keys that are like one."""
        known = dict(self.keys)
        known.update((key, None) for key in self._followed.get(wanted, ()) if key is not None)
        return nearest(to_text(wanted), map(to_text, known))

    def merge(self, other: Sightings) -> None:
        """Add what was seen elsewhere."""
        self.fields |= other.fields
        self.places |= other.places
        for place, names in other.beside.items():
            self.beside.setdefault(place, set()).update(names)
        self.beside = {place: names for place, names in self.beside.items() if place not in self.places}
        for wanted, pair in other._followed.items():
            self._followed.setdefault(wanted, (None, None))
            self.see_keys([key for key in pair if key is not None], [wanted])
        self.see_keys(list(other.keys), ())

    def absent(self, named: Iterable[Named]) -> list[Absence]:
        """The names that nothing was seen of, together where they are for the same."""
        found: dict[str, dict[Named, str]] = {}
        fields = sorted(map(to_text, self.fields))
        for name in dict.fromkeys(named):
            if not any(_is_there(one, fields) for one in name.fields):
                found.setdefault(name.purpose, {})[name] = near(name.fields, fields)
            elif name.path is not None and name.place in self.beside:
                steps = [step for step in name.path if isinstance(step, str)]
                found.setdefault(name.purpose, {})[name] = near(steps, sorted(self.beside[name.place]))
        return [_absence(purpose, some) for purpose, some in found.items()]


def _is_there(name: str, fields: Sequence[str]) -> bool:
    return name in fields or (not _MAGIC.isdisjoint(name) and any(is_like(field, name) for field in fields))


def is_like(name: str, glob: str) -> bool:
    """Whether a glob means a name; case counts."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, glob)


def _absence(purpose: str, names: Mapping[Named, str]) -> Absence:
    hints = dict.fromkeys([*(name.hint for name in names), *names.values()])
    message = f"no sample has {listed([name.text for name in names], ' or ')}{purpose}"
    return Absence(message, "; ".join(filter(None, hints)), any(name.needed for name in names))


def near(words: Iterable[str], there: Sequence[str], most: int = _SHOWN) -> str:
    """What may have been meant by one of some words, or what there is.

    >>> near(["width"], ["widht", "x"]), near(["y"], ["a", "x"]), near(["y"], [])
    ('did you mean widht?', 'there are a, x', '')
    """
    close = dict.fromkeys(one for word in words for one in nearest(word, there))
    if close:
        return f"did you mean {listed(list(close), ' or ')}?"
    return f"there {'are' if len(there) > 1 else 'is'} {listed(there, ', ', most)}" if there else ""


def listed(names: Sequence[str], join: str, most: int = _NAMED_AT_MOST) -> str:
    """
    >>> listed(["a", "b", "c", "d", "e"], " or ")
    'a or b or c and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return join.join(names[:most]) + more
