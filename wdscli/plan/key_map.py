"""``--by-map``: which part each key belongs to, read from files.

What it is: :func:`read_key_map`. How: a JSON object, JSON Lines or lines of text, told apart by their content; keys are
kept as bytes, parts as numbers. The forms of AIStore dSort's external key map are among these, and its names of shards
(``dogs-%d.tar``) are taken for names of parts. It must not know samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wdscli.errors import UsageError
from wdscli.model import to_bytes, to_text
from wdscli.plan.outputs import checked_part
from wdscli.storage import addresses_of, base_name, read_all
from wdscli.storage.addresses import natural

_NUMBER = re.compile(r"[-_.]?(%0?[0-9]*d|\{[0-9]+\.\.[0-9]+\}).*", re.DOTALL)
_HINT = 'lines of KEY<TAB>PART, {"KEY": "PART"}, {"PART": ["KEY", ...]}, or JSON Lines of key and part'


class KeyMap(NamedTuple):
    """``parts`` in natural order; ``part_of`` has the number of each key's part. ``name`` is the file's, ``digest`` the
    XXH3-128 of its bytes, and of several files that of all, one after the other."""

    name: str
    digest: str
    parts: tuple[str, ...]
    part_of: dict[bytes, int]


def read_key_map(files: str | Sequence[str]) -> KeyMap:
    """One file or several, which add up. Raises UsageError for a file that is no key map, InputError for one that
    cannot be read."""
    from xxhash import xxh3_128

    digest, names = xxh3_128(), []
    numbers: dict[str, int] = {}
    found: dict[bytes, int] = {}
    for address in addresses_of(files, "--by-map"):
        data, name = read_all(address), base_name(address)
        digest.update(data)
        names.append(name)
        for where, key, text in _pairs(data, name):
            number = numbers.get(text)
            if number is None:
                number = numbers[text] = len(numbers)
            if found.setdefault(key, number) != number:
                raise UsageError(
                    f'{name}{where}: a second part for "{to_text(key)}"', hint="a key has one part"
                )
    together = " and ".join(names)
    parts, places = _named(numbers, together)
    part_of = {key: places[number] for key, number in found.items()}
    return KeyMap(together, digest.hexdigest(), parts, part_of)


def _named(numbers: dict[str, int], name: str) -> tuple[tuple[str, ...], list[int]]:
    """The names of parts in natural order, and the place among them of each number."""
    names = []
    for text in numbers:
        try:
            names.append(checked_part(_NUMBER.sub("", text)))
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", hint=error.hint) from None
    parts = tuple(sorted(set(names), key=natural))
    places = {part: place for place, part in enumerate(parts)}
    return parts, [places[part] for part in names]


def _pairs(data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    """(where in the file, key, part)."""
    if data.lstrip().startswith(b"{"):
        return _pairs_of_json(data, name)
    return _pairs_of_lines(data, name)


def _pairs_of_json(data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    import json

    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict) or set(whole) == {"key", "part"}:
        yield from _pairs_of_records(data, name)
        return
    for one, other in whole.items():
        if isinstance(other, str):
            yield "", to_bytes(one), other
        elif isinstance(other, list) and all(isinstance(key, str) for key in other):
            for key in other:
                yield "", to_bytes(key), one
        else:
            raise UsageError(f'{name}: "{one}" has neither a part nor a list of keys', hint=_HINT)


def _pairs_of_records(data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    import json

    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            key, part = record["key"], record["part"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UsageError(f"{name}, line {number}: no JSON object of key and part", hint=_HINT) from None
        if not isinstance(key, str) or not isinstance(part, str):
            raise UsageError(f"{name}, line {number}: key and part are text", hint=_HINT)
        yield f", line {number}", to_bytes(key), part


def _pairs_of_lines(data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    """Key and part are parted by the last TAB, comma or blank: the first of these that all lines have."""
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    mark = next((mark for mark in (b"\t", b",", b" ") if all(mark in line for _, line in numbered)), None)
    if mark is None:
        number = next(number for number, line in numbered if b" " not in line)
        raise UsageError(f"{name}, line {number}: no key and part", hint=_HINT)
    for place, (number, line) in enumerate(numbered):
        key, _, part = line.rpartition(mark)
        if place == 0 and (key.strip(), part.strip()) == (b"key", b"part"):
            continue
        if not key.strip() or not part.strip():
            raise UsageError(f"{name}, line {number}: no key and part", hint=_HINT)
        yield f", line {number}", key.rstrip(b" ") if mark == b" " else key, to_text(part.strip())
