"""This module has requirements on names, fields and values. Some come from all readers, and others only from one of
four readers.

:func:`judge_fields` finds problems in a sample's fields that matter for every reader. :class:`Judge` searches the
columns of one shard for violations of :data:`~wdscli.verify.findings.DEMANDS`. Samples have few different lists of
fields, so the caller passes each list once, and keeps the result. The requirements come from the source code of the
readers: webdataset 1.0, Hugging Face datasets 5.2, NVIDIA DALI 2.4 and its ``wds2idx``, Megatron-Energon 7.4.
Each requirement on a single name or field is a row of one of two tables. :data:`MEMBER_RULES` are reported for each
member, and :data:`FIELD_RULES` once per shard for each field. Other requirements are methods.

:class:`HfValues` checks the values that Hugging Face datasets parses: integers, text, and the types inside JSON. Its
``webdataset`` builder infers one Arrow type for each place in a JSON field, from the first five samples of the first
shard. It converts every later value to that type, and fails if this is impossible. :func:`type_of` and :func:`merged`
infer types by Arrow's rules. Some conversions succeed but change the value. For example, 2.5 becomes 2 if the first
five samples have whole numbers. Such a value is an error here. Conversions without a loss are accepted. A type is None
(only nulls so far), ``"int"``, ``"float"``, ``"bool"``, ``"text"``, ``[type]`` for a list's elements, or ``{key:
type}``.

This module does not know how members are grouped or how findings are printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.codecs.kinds import find
from wdscli.errors import UsageError
from wdscli.samples import SampleBatch, is_dunder, split_name
from wdscli.tar import GLOBAL, KIND_MASK, REGULAR, ByteSource, Window
from wdscli.text import to_text
from wdscli.verify.findings import Ledger

Fields = tuple[bytes, ...]
PROFILES = ("webdataset", "hf", "dali", "energon")
MAX_SEEN_FIELDS = 1 << 14
"""How many fields are remembered. The limit keeps memory small for a shard with a million different fields."""

_RESERVED = (b"__key__", b"__url__", b"__local_path__")
_BLANKS = (b" ", b"\t", b"\r", b"\v", b"\f", b"\n")
_COMPRESSED = frozenset((b"gz", b"bz2", b"xz", b"lz4", b"zst"))


class Problem(NamedTuple):
    """A problem with the fields of a sample. ``place`` is the member's place in the sample; it is None if the problem
    concerns the whole sample."""

    code: str
    message: str
    place: int | None


def judge_fields(fields: Fields, required: Fields) -> list[Problem]:
    """Yield the problems with the fields of a sample, in the order of its members."""
    problems = [
        Problem("missing-field", f'the sample has no field "{to_text(field)}"', None)
        for field in required
        if field not in fields
    ]
    for place, like_field in _alike(fields):
        field = to_text(fields[place])
        if fields[place] in fields[:place]:
            problems.append(Problem("duplicate-field", f'the sample has the field "{field}" twice', place))
        else:
            message = f'the fields "{to_text(like_field)}" and "{field}" differ only in case'
            problems.append(Problem("case-collision", message, place))
    return problems


def _alike(fields: Fields) -> Iterator[tuple[int, bytes]]:
    """Yield the places of fields that repeat an earlier field, perhaps in another case. Each comes with the earlier
    field."""
    first: dict[bytes, int] = {}
    for place, field in enumerate(fields):
        before = first.setdefault(field.lower(), place)
        if before != place:
            yield place, fields[before]


class ReaderRule(NamedTuple):
    """A requirement on the name and kind of single members, or on fields. A message about fields may contain
    ``{field}``, and ``{lower}`` for the field in lower case. All names of a window are joined, each after a NUL. Single
    members are checked only if this text contains one of ``marks``."""

    code: str
    message: str
    breaks: Callable[..., bool]
    marks: tuple[bytes, ...] = ()


def _is_skipped(name: bytes, kind: int) -> bool:
    return kind == REGULAR and is_dunder(name)


MEMBER_RULES = (
    ReaderRule("webdataset-skipped", "webdataset skips the member", _is_skipped, (b"__",)),
    ReaderRule("energon-skipped", "Energon skips the member", _is_skipped, (b"__",)),
    ReaderRule(
        "hf-skipped",
        "Hugging Face datasets skips the member",
        lambda name, kind: kind == REGULAR and name[name.rfind(b"/") + 1 :].startswith((b".", b"__")),
        (b"__", b"/.", b"\0."),
    ),
    ReaderRule(
        "dali-blank",
        "DALI: the name has a blank",
        lambda name, _: len(name.split()) > 1 or name.strip() != name,
        _BLANKS,
    ),
)


def _is_raw_for_hf(field: bytes) -> bool:
    parts = field.lower().split(b".")
    if len(parts) > 1 and parts[-1] in _COMPRESSED:
        parts.pop()
    return not find(to_text(parts[-1])).hf


FIELD_RULES = (
    ReaderRule(
        "webdataset-reserved-field", "webdataset reserves the field's name", lambda field: field in _RESERVED
    ),
    ReaderRule(
        "webdataset-upper-case",
        'webdataset returns the field "{field}" as "{lower}"',
        lambda field: field != field.lower(),
    ),
    ReaderRule(
        "hf-raw-field", 'Hugging Face datasets returns the field "{field}" as raw bytes', _is_raw_for_hf
    ),
)


def parse_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen profiles, without repeats. Raises UsageError."""
    for name in names:
        if name not in PROFILES:
            raise UsageError(f"--for {name}: no such reader", hint="choose from " + ", ".join(PROFILES))
    return tuple(dict.fromkeys(names))


class Judge:
    """Checks one shard for ``profiles``. ``hf_types`` are the JSON types from the set's first shard. It is None for the
    first shard itself."""

    def __init__(
        self, ledger: Ledger, profiles: Sequence[str], source: ByteSource, hf_types: dict[bytes, Type] | None
    ) -> None:
        self._ledger = ledger
        self._profiles = frozenset(profiles)
        self._member_rules = [rule for rule in MEMBER_RULES if rule.code.partition("-")[0] in profiles]
        self._field_rules = [rule for rule in FIELD_RULES if rule.code.partition("-")[0] in profiles]
        self._source = source
        self._looks_at_first = hf_types is None and "hf" in profiles
        self.hf_values = HfValues(ledger, hf_types) if "hf" in profiles else None
        self._seen: set[bytes] = set()
        self._first_fields: list[frozenset[bytes]] = []
        self._component: frozenset[bytes] | None = None

    def fields(self, names: Fields) -> list[Problem]:
        """Return the problems with a list of fields. They apply to every sample with this list."""
        problems = []
        if "webdataset" in self._profiles:
            for place, like_name in _alike(names):
                if like_name != names[place]:
                    both = f'"{to_text(like_name)}" and "{to_text(names[place])}"'
                    message = f"webdataset lowercases the fields {both} to one name"
                    problems.append(Problem("webdataset-case-collision", message, place))
        if "dali" in self._profiles:
            if self._component is None:
                self._component = frozenset(names)
            for field in sorted(self._component.symmetric_difference(names)):
                message = f'DALI: not all samples of this shard have the component "{to_text(field)}"'
                problems.append(Problem("dali-missing-component", message, None))
        return problems

    def members(self, window: Window) -> None:
        """Check the names and headers of a window's members."""
        names, starts, offsets, _, flags = window.columns
        joined = b"\0" + b"\0".join(names)
        for rule in self._member_rules:
            if any(mark in joined for mark in rule.marks):
                for name, start, flag in zip(names, starts, flags):
                    if rule.breaks(name, flag & KIND_MASK):
                        self._ledger.add(rule.code, rule.message, offset=start, member=name)
        if "dali" in self._profiles:
            for row, (start, offset, flag) in enumerate(zip(starts, offsets, flags)):
                if (offset - start > 512 or flag & GLOBAL) and self._has_pax(window, row):
                    message = "DALI: the member has a pax header"
                    self._ledger.add("dali-pax-header", message, offset=start, member=names[row])
        if self.hf_values is not None:
            self.hf_values.add(window)

    def _has_pax(self, window: Window, row: int) -> bool:
        start = window.columns.starts[row]
        type_offset = start - window.base + 156
        if window.columns.flags[row] & GLOBAL:
            return True
        if 0 <= type_offset < len(window.buffer):
            typeflag = window.buffer[type_offset : type_offset + 1]
        else:
            typeflag = self._source.read_at(start + 156, 1) if self._source.seekable else b""
        return typeflag in (b"x", b"g")

    def samples(self, batch: SampleBatch) -> None:
        """Check complete samples for problems that are reported once per shard for each field."""
        if self._looks_at_first:
            self._hf_first(batch)
        for field in dict.fromkeys(batch.fields):
            if field not in self._seen:
                if len(self._seen) < MAX_SEEN_FIELDS:
                    self._seen.add(field)
                self._field(field, batch.starts[batch.fields.index(field)])

    def _hf_first(self, batch: SampleBatch) -> None:
        for row in range(min(len(batch.keys), HF_FIRST_SAMPLES - len(self._first_fields))):
            fields = frozenset(batch.fields[batch.firsts[row] : batch.firsts[row + 1]])
            self._first_fields.append(fields)
            if fields != self._first_fields[0]:
                message = (
                    "Hugging Face datasets: one of the first five samples has other fields than the first"
                )
                self._ledger.add("hf-mixed-fields", message, offset=batch.start(row), member=batch.keys[row])

    def _field(self, field: bytes, start: int) -> None:
        """Check a new field."""
        name, lower = to_text(field), to_text(field.lower())
        for rule in self._field_rules:
            if rule.breaks(field):
                message = rule.message.format(field=name, lower=lower)
                self._ledger.add(rule.code, message, offset=start, member=field)
        if self._looks_at_first and not any(field in fields for fields in self._first_fields):
            message = f'Hugging Face datasets: the field "{name}" is in none of the first five samples'
            self._ledger.add("hf-dropped-field", message, offset=start, member=field)

    def finish(self, *, samples: int, is_compressed: bool) -> None:
        """Report problems of the whole shard."""
        if "energon" in self._profiles and not samples:
            self._ledger.add("energon-empty-shard", "Energon: the shard has no samples")
        if self._looks_at_first and not samples:
            message = "Hugging Face datasets: the first shard has no samples"
            self._ledger.add("hf-empty-shard", message)
        for profile in ("dali", "energon"):
            if profile in self._profiles and is_compressed:
                self._ledger.add(f"{profile}-compressed", f"{profile}: the shard is compressed")


HF_FIRST_SAMPLES = 5
_MAX_NUMBER_BYTES = 64
_MAX_PLACES = 1 << 12
"""How many dropped places in JSON are reported only once per shard. Further places are reported for each sample."""
_MAX_INT = (1 << 63) - 1
_MAX_EXACT_INT = 1 << 53
"""A float represents all whole numbers up to this number exactly."""

Type: TypeAlias = "str | list[Any] | dict[str, Any] | None"
_NOUNS = {None: "null", "int": "whole numbers", "float": "fractions", "bool": "true or false", "text": "text"}


class TypeClash(Exception):
    """A value has another type than earlier values at its place."""


class HfValues:
    """Checks the payloads of one shard. ``types`` are the types of JSON fields by name, from the first shard. It is
    None for the first shard itself, because its first samples define the types."""

    def __init__(self, ledger: Ledger, types: dict[bytes, Type] | None) -> None:
        self.types: dict[bytes, Type] = {} if types is None else types
        self._ledger = ledger
        self._samples_left = HF_FIRST_SAMPLES if types is None else -1
        self._key: bytes | None = None
        self._dropped: set[str] = set()
        self._checks = {"json": self._json, "integer": self._integer, "text": self._text}

    def add(self, window: Window) -> None:
        """Check the members of the next window."""
        columns = window.columns
        for row, name in enumerate(columns.names):
            if columns.flags[row] & KIND_MASK != REGULAR:
                continue
            if self._samples_left >= 0:
                self._count(name)
            check = self._checks.get(find(to_text(name[name.rfind(b".") + 1 :].lower())).form)
            if check is not None:
                check(window, row)

    def _count(self, name: bytes) -> None:
        """Count the first samples."""
        parts = split_name(name)
        if parts is not None and parts[0] != self._key:
            self._key = parts[0]
            self._samples_left -= 1

    def _add(self, code: str, message: str, window: Window, row: int, hint: str | None = None) -> None:
        columns, text = window.columns, f"Hugging Face datasets: {message}"
        self._ledger.add(code, text, offset=columns.starts[row], member=columns.names[row], hint=hint)

    def _integer(self, window: Window, row: int) -> None:
        if window.columns.sizes[row] > _MAX_NUMBER_BYTES or not _is_integer(window.payload(row)):
            self._add("hf-not-an-integer", "the payload is not an integer of 64 bits", window, row)

    def _text(self, window: Window, row: int) -> None:
        if self._is_small(window, row):
            try:
                window.payload(row).decode()
            except UnicodeDecodeError as error:
                self._add("hf-undecodable", f"the text is not UTF-8 at its byte {error.start}", window, row)

    def _json(self, window: Window, row: int) -> None:
        if not self._is_small(window, row):
            return
        parts = split_name(window.columns.names[row])
        field = parts[1] if parts is not None else b""
        try:
            value = json.loads(window.payload(row))
            if self._samples_left >= 0 or field in self.types:
                self._typed(field, value, window, row)
        except TypeClash as clash:
            self._add("hf-mixed-types", str(clash), window, row)
        except (ValueError, RecursionError) as error:
            self._add("hf-undecodable", f"the JSON cannot be read: {error}"[:200], window, row)

    def _is_small(self, window: Window, row: int) -> bool:
        size = window.columns.sizes[row]
        if size > MAX_DECODED_BYTES:
            hint = "keep data of this size out of JSON and text fields"
            self._add("unchecked", f"the payload has {size} bytes and was not decoded", window, row, hint)
        return size <= MAX_DECODED_BYTES

    def _typed(self, field: bytes, value: Any, window: Window, row: int) -> None:
        """Compare a value with the field's types. The first samples add to the types."""
        place, dropped = to_text(field), set[str]()
        if self._samples_left >= 0:
            self.types[field] = merged(self.types.get(field), type_of(value, place), place)
        _check_stored(self.types[field], _encoded(self.types[field], value, place, dropped), place)
        for lost in sorted(dropped - self._dropped):
            if len(self._dropped) < _MAX_PLACES:
                self._dropped.add(lost)
            self._add("hf-dropped-field", f"{lost} is in none of the first five samples", window, row)


def _noun(kind: Type) -> str:
    if isinstance(kind, dict):
        return "objects"
    return "lists" if isinstance(kind, list) else _NOUNS[kind]


def _clash(place: str, value: Any, kind: Type) -> TypeClash:
    has = _noun({} if isinstance(value, dict) else [] if isinstance(value, list) else "text")
    if not isinstance(value, (dict, list, str)):
        has = json.dumps(value)[:24]
    return TypeClash(f"{place} has {has}, but earlier values are {_noun(kind)}")


def type_of(value: Any, place: str) -> Type:
    """Return the Arrow type of one sample's value. Raises TypeClash if the elements of a list have no common type."""
    if isinstance(value, dict):
        for key in value:
            key.encode()
        return {key: type_of(element, f"{place}.{key}") for key, element in value.items()}
    if isinstance(value, list):
        kind: Type = None
        for element in value:
            kind = merged(kind, type_of(element, f"{place}[]"), f"{place}[]", numbers=True)
        return [kind]
    if isinstance(value, str):
        value.encode()
        return "text"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and not -_MAX_INT - 1 <= value <= _MAX_INT:
        raise ValueError(f"{place} is a number of more than 64 bits")
    return None if value is None else type(value).__name__


def merged(first_type: Type, second_type: Type, place: str, *, numbers: bool = False) -> Type:
    """Return the common type of two samples, or of two elements of a list. With ``numbers``, whole numbers and
    fractions may be mixed. Raises TypeClash."""
    if first_type is None or second_type is None or first_type == second_type:
        return first_type if second_type is None else second_type
    if isinstance(first_type, dict) and isinstance(second_type, dict):
        both = dict(first_type)
        for key, kind in second_type.items():
            both[key] = merged(first_type.get(key), kind, f"{place}.{key}", numbers=numbers)
        return both
    if isinstance(first_type, list) and isinstance(second_type, list):
        return [merged(first_type[0], second_type[0], f"{place}[]", numbers=numbers)]
    if numbers and (first_type, second_type) in (("int", "float"), ("float", "int")):
        return "float"
    raise TypeClash(f"{place} has {_noun(second_type)}, but earlier values are {_noun(first_type)}")


def _encoded(kind: Type, value: Any, place: str, dropped: set[str]) -> Any:
    """Return the value in the form that datasets writes (its ``encode_nested_example``). Objects get all expected keys,
    and lose other keys. In a list, the first element that is neither null nor empty decides. If it would not change, no
    element changes."""
    if isinstance(kind, dict) and isinstance(value, dict):
        dropped.update(f"{place}.{key}" for key in value.keys() - kind.keys())
        return {
            key: _encoded(key_kind, value.get(key), f"{place}.{key}", dropped)
            for key, key_kind in kind.items()
        }
    if isinstance(kind, list) and isinstance(value, list) and value:
        first = next((element for element in value if _is_filled(element, kind[0])), value[-1])
        if _encoded(kind[0], first, place, set()) != first:
            return [_encoded(kind[0], element, f"{place}[]", dropped) for element in value]
    is_exact = kind == "float" and type(value) is int and abs(value) <= _MAX_INT and float(value) == value
    return float(value) if is_exact else value


def _is_filled(value: Any, kind: Type) -> bool:
    if isinstance(value, list) and isinstance(kind, list):
        return bool(value) and _is_filled(value[0], kind[0])
    return value is not None


def _check_stored(kind: Type, value: Any, place: str) -> None:
    """Raise TypeClash for a value that Arrow cannot convert to ``kind`` without a loss."""
    if isinstance(kind, dict) and isinstance(value, dict):
        for key, element in value.items():
            if key not in kind:
                raise TypeClash(f"{place} has the key {json.dumps(key)}, which earlier lists do not have")
            _check_stored(kind[key], element, f"{place}.{key}")
    elif isinstance(kind, list) and isinstance(value, list):
        for element in value:
            _check_stored(kind[0], element, f"{place}[]")
    elif value is not None and not (isinstance(kind, str) and _FITS[kind](value)):
        raise _clash(place, value, kind)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.encode() or True)


def _is_whole(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= _MAX_EXACT_INT
    return type(value) is int and -_MAX_INT - 1 <= value <= _MAX_INT


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= _MAX_EXACT_INT)


_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_whole,
    "float": _is_fraction,
    "bool": lambda value: isinstance(value, bool),
    "text": _is_text,
}


def _is_integer(payload: bytes) -> bool:
    try:
        return abs(int(payload)) <= _MAX_INT
    except ValueError:
        return False
