"""This module checks names on a command line that some sample must have: fields, places in JSON, keys.

:class:`Named` is a name and its purpose. :class:`SeenNames` collects the names seen while samples are read.
:class:`MissingName` has names that no sample has, with a hint about similar names. All fields are collected, because a
set has few fields. JSON is parsed until a place was found once. A key is kept only if it may be similar to a missing
key. The SeenNames of several processes are merged. This module does not know whether a missing name is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import nearest
from wdscli.samples import SampleBatch
from wdscli.text import to_bytes, to_text

if TYPE_CHECKING:
    from wdscli.selection.places import Path, Place

_SHOWN = 8
_NAMED_AT_MOST = 3
_MOST_ALTERNATIVES = 1000
_KEYS_KEPT = 1000
_KEYS_FOLLOWED = 8
_MAGIC = frozenset("*?[")


class Named(NamedTuple):
    """A name as it was typed: a sample must have one of ``fields`` (names or globs), and ``path`` in its JSON.
    ``purpose`` ends the message, ``hint`` begins the hint. If it is not ``needed``, its absence is only a warning."""

    text: str
    purpose: str
    fields: tuple[str, ...]
    path: Path | None = None
    needed: bool = True
    hint: str = ""

    @property
    def place(self) -> Place | None:
        from wdscli.selection.places import Place

        return None if self.path is None else Place(to_bytes(self.fields[0]), self.path)


class MissingName(NamedTuple):
    """Names that no sample has."""

    message: str
    hint: str
    needed: bool = True

    @property
    def text(self) -> str:
        """Message and hint in one line."""
        return f"{self.message}: {self.hint}" if self.hint else self.message


class SeenNames:
    """The names seen so far. ``fields`` has the fields of all samples read, and ``places`` has the places in JSON found
    at least once. For places not found yet, ``alternatives`` has the names found there instead."""

    def __init__(self) -> None:
        self.fields: set[bytes] = set()
        self.places: set[Place] = set()
        self.alternatives: dict[Place, set[str]] = {}
        self.keys: dict[bytes, None] = {}
        self._followed: dict[bytes, tuple[bytes | None, bytes | None]] = {}

    def see_document(self, place: Place, document: Any) -> bool:
        """Look for a place in one JSON document, and return whether it has the place."""
        from wdscli.selection.places import Absent, EachValue, step_into

        for step in place.path:
            try:
                value = step_into(document, step)
            except Absent:
                value = EachValue()
            if type(value) is EachValue and not value:
                alternatives = self.alternatives.setdefault(place, set())
                for element in document if isinstance(document, list) else [document]:
                    if isinstance(element, dict) and len(alternatives) < _MOST_ALTERNATIVES:
                        alternatives.update(element)
                return False
            document = value
        self.places.add(place)
        self.alternatives.pop(place, None)
        return True

    def look(
        self,
        named: Iterable[Named],
        batch: SampleBatch,
        rows: Sequence[int],
        payload_of: Callable[[int, bytes], bytes],
    ) -> None:
        """Look for names in a batch. Places in JSON are searched only in ``rows``; ``payload_of`` returns their
        payloads."""
        self.fields.update(batch.fields)
        for name in named:
            place = name.place
            if place is not None and place not in self.places:
                self._look_into(place, batch, rows, payload_of)

    def _look_into(
        self, place: Place, batch: SampleBatch, rows: Sequence[int], payload_of: Callable[[int, bytes], bytes]
    ) -> None:
        from wdscli.selection.places import field_value

        for row in rows:
            if place.field not in batch.fields[batch.firsts[row] : batch.firsts[row + 1]]:
                continue
            try:
                document = field_value(to_text(place.field), payload_of(row, place.field))
            except Exception:
                continue  # the reader of the value raises the error
            if self.see_document(place, document):
                return

    def see_keys(self, keys: Sequence[bytes], missing: Iterable[bytes]) -> None:
        """Keep some of ``keys`` for hints: the first keys, and the nearest keys before and after each missing key."""
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

    def similar_keys(self, wanted: bytes) -> list[str]:
        """Return keys that are similar to a key."""
        candidates = dict(self.keys)
        candidates.update((key, None) for key in self._followed.get(wanted, ()) if key is not None)
        return nearest(to_text(wanted), map(to_text, candidates))

    def merge(self, seen_elsewhere: SeenNames) -> None:
        """Add the names seen by another process."""
        self.fields |= seen_elsewhere.fields
        self.places |= seen_elsewhere.places
        for place, names in seen_elsewhere.alternatives.items():
            self.alternatives.setdefault(place, set()).update(names)
        self.alternatives = {
            place: names for place, names in self.alternatives.items() if place not in self.places
        }
        for wanted, pair in seen_elsewhere._followed.items():
            self._followed.setdefault(wanted, (None, None))
            self.see_keys([key for key in pair if key is not None], [wanted])
        self.see_keys(list(seen_elsewhere.keys), ())

    def absent(self, named: Iterable[Named]) -> list[MissingName]:
        """Return the names that were not seen, one entry per purpose."""
        hints_by_purpose: dict[str, dict[Named, str]] = {}
        fields = sorted(map(to_text, self.fields))
        for name in dict.fromkeys(named):
            if not any(is_there(field, fields) for field in name.fields):
                hints_by_purpose.setdefault(name.purpose, {})[name] = field_hint(name, fields)
            elif name.path is not None and name.place in self.alternatives:
                steps = [step for step in name.path if isinstance(step, str)]
                hints_by_purpose.setdefault(name.purpose, {})[name] = hint_of(
                    steps, sorted(self.alternatives[name.place])
                )
        return [_absence(purpose, hints) for purpose, hints in hints_by_purpose.items()]


def is_there(name: str, fields: Sequence[str]) -> bool:
    """Return whether one of the fields has this name, or matches this glob."""
    return name in fields or (not _MAGIC.isdisjoint(name) and any(is_like(field, name) for field in fields))


def is_like(name: str, glob: str) -> bool:
    """Return whether a glob matches a name. Case matters."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, glob)


def _absence(purpose: str, names: Mapping[Named, str]) -> MissingName:
    hints = dict.fromkeys([*(name.hint for name in names), *names.values()])
    message = f"no sample has {listed([name.text for name in names], ' or ')}{purpose}"
    return MissingName(message, "; ".join(filter(None, hints)), any(name.needed for name in names))


def hint_of(words: Iterable[str], names: Sequence[str], most: int = _SHOWN) -> str:
    """Return a hint: names similar to some words, or else the first names in ``there``.

    >>> hint_of(["width"], ["widht", "x"]), hint_of(["y"], ["a", "x"]), hint_of(["y"], [])
    ('did you mean widht?', 'there are a, x', '')
    """
    close = dict.fromkeys(name for word in words for name in nearest(word, names))
    if close:
        return f"did you mean {listed(list(close), ' or ')}?"
    return f"there {'are' if len(names) > 1 else 'is'} {listed(names, ', ', most)}" if names else ""


def field_hint(name: Named, fields: Sequence[str]) -> str:
    """Return a hint for a field that no sample has: similar fields, and the place in JSON with this name."""
    is_in_json = "json" in fields and name.purpose in _OF_VALUES and name.text.isidentifier()
    return hint_of(name.fields, fields) + f"; a value in JSON is json.{name.text}" * is_in_json


_OF_VALUES = (" for --where", " to sort by", " for --count", " for --by", " for --stratify", " to compare")


def listed(names: Sequence[str], join: str, most: int = _NAMED_AT_MOST) -> str:
    """Join the first names, and add the number of other names.

    >>> listed(["a", "b", "c", "d", "e"], " or ")
    'a or b or c and 2 more'
    """
    rest_text = f" and {len(names) - most} more" if len(names) > most else ""
    return join.join(names[:most]) + rest_text
