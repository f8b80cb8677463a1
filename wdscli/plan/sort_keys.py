"""What samples are sorted by: sort keys as they are typed, and the value of each sample as bytes.

What it is: :func:`sort_key`, from ``json.width:nr`` to a :class:`SortKey`; :class:`SortValues`, the
:class:`~wdscli.plan.survey.Extract` that takes the values of a sample by all sort keys as one byte string
(``sort_bytes.py``), such that the order of samples is the order of these strings. How: names are those of ``--where``
(``key``, a field by its own name, ``json.PATH``), and so are those of the errors; a batch is taken sort key by sort
key, and a JSON document is decoded once for all of them. It must not know the order of samples, only their values.

The value of a sample that is missing stands before all others or after them, whichever way the others are sorted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.plan.indexed import packed_keys
from wdscli.plan.json_paths import Absent, Path, at_path, field_and_path
from wdscli.plan.sort_codes import Number, json_code, natural_code, number_code, reversed_code, text_code
from wdscli.plan.survey import PayloadOf
from wdscli.samples import SampleBatch
from wdscli.selection.named import Named

if TYPE_CHECKING:
    from json import JSONDecoder

    from wdscli.plan.values import Packed
    from wdscli.shards.index import Index

How = Literal["plain", "natural", "numeric"]
Missing = Literal["first", "last", "error"]

MAX_VALUE = 1 << 20
"""A value of more than this many bytes is not compared: those of all samples are held together."""

KEY = "key"
_LETTERS = {"n": "numeric", "V": "natural", "r": "reverse"}
_MODIFIERS = ("numeric", "natural", "reverse", "plain")
_HINT = "by `key`, a field (cls, seg.png) or a place in JSON (json.width, json.box[0]), each with :n :V :r as needed"


TO_SORT_BY = " to sort by"


def lack_hint(text: str) -> str:
    """What helps where no sample has what a sort key names."""
    if "," in text:
        return "several sort keys are several options: --by cls --by key"
    return "`wds ls --members` shows the fields; --missing last sorts all the same"


class SortKey(NamedTuple):
    """One thing to sort by. ``field`` is None for the sample's key; ``path`` leads into the field's JSON, None for its
    payload as it is. ``text`` names it in messages."""

    text: str
    field: bytes | None
    path: Path | None = None
    how: How = "plain"
    reverse: bool = False

    def __str__(self) -> str:
        """As it could be typed; what is at its default is not named."""
        named = [self.how] * (self.how != "plain") + ["reverse"] * self.reverse
        return f"{self.text}:{','.join(named)}" if named else self.text


def sort_key(text: str, how: How = "plain", reverse: bool = False) -> SortKey:
    """A sort key as it is typed: ``WHAT`` or ``WHAT:MODIFIERS``; ``how`` and ``reverse`` hold where it has no
    modifiers of its own. Raises UsageError.

    >>> str(sort_key("json.width:nr")), str(sort_key("key", "natural")), str(sort_key("key:r", "natural"))
    ('json.width:numeric,reverse', 'key:natural', 'key:reverse')
    """
    match = re.fullmatch(r"(.*):([A-Za-z,]*)", text, re.DOTALL)
    if match is not None:
        text = match[1]
        how, reverse = _modifiers(match[2], match[0])
    if text == KEY:
        return SortKey(text, None, None, how, reverse)
    field, path = field_and_path(text, "cannot sort by", _HINT)
    return SortKey(text, to_bytes(field), path, how, reverse)


def _modifiers(text: str, whole: str) -> tuple[How, bool]:
    words = text.split(",")
    if len(words) == 1 and not set(text) - set(_LETTERS):
        words = [_LETTERS[letter] for letter in text]
    unknown = [word for word in words if word not in _MODIFIERS]
    if unknown or not words:
        raise UsageError(
            f'--by {whole}: "{text}" does not say how to sort',
            hint="numeric (n), natural (V), reverse (r), plain; several as :nr or :numeric,reverse. "
            "A name with a colon of its own ends in :plain",
        )
    hows = {word for word in words if word != "reverse"}
    if len(hows) > 1:
        raise UsageError(f"--by {whole}: {' and '.join(sorted(hows))} exclude each other")
    how: How = "numeric" if "numeric" in hows else "natural" if "natural" in hows else "plain"
    return how, "reverse" in words


class SortValues(NamedTuple):
    """The values of samples by some sort keys: an order's ``extract``.

    ``lenient`` takes what cannot be decoded or compared for missing; else it is a DataError ``undecodable``.
    ``may_lack`` says that what no sample has to sort by is no mistake.
    """

    keys: tuple[SortKey, ...]
    missing: Missing = "last"
    lenient: bool = False
    may_lack: bool = False

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return frozenset(key.field for key in self.keys if key.field is not None)

    @property
    def named(self) -> Sequence[Named]:
        return [
            Named(key.text, TO_SORT_BY, (to_text(key.field),), key.path, not self.may_lack, self._hint(key))
            for key in self.keys
            if key.field is not None
        ]

    def _hint(self, key: SortKey) -> str:
        return "" if self.may_lack else lack_hint(key.text)

    @property
    def _is_simple(self) -> bool:
        """Whether nothing can be missing or unfit: all sort keys are texts of the samples' own keys."""
        return all(key.field is None and key.how != "numeric" for key in self.keys)

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """One value a row, such that samples are in order when their values are.

        Samples sorted by their keys as they are have these for values. Others have a code for each sort key, one behind
        the other. Where a value can be missing, a byte before its code says so, and the whole ends with a bit for each
        sort key that has a value (:meth:`never_seen`), which changes no order, because the codes say the same.
        """
        if not self._is_simple:
            sample = _Sample(self, batch, shard, payload_of)
            return [sample.value(row) for row in rows]
        own = batch.keys if len(rows) == len(batch.keys) else [batch.keys[row] for row in rows]
        first, *more = self.keys
        if not more:
            return own if first.how == "plain" and not first.reverse else _codes(own, first)
        return list(map(b"".join, zip(*(_codes(own, key) for key in self.keys), strict=True)))

    def values_of_index(self, index: Index) -> Packed | None:
        """The same of all samples of an index, where their keys as they are are the values."""
        first = self.keys[0]
        is_key = self._is_simple and len(self.keys) == 1 and first.how == "plain" and not first.reverse
        return packed_keys(index) if is_key else None

    def never_seen(self, values: Iterable[bytes]) -> list[SortKey]:
        """The sort keys by which every one of ``values`` is missing; none when there are no values."""
        if self._is_simple:
            return []
        width = _width(self.keys)
        everything = (2 << len(self.keys)) - 1
        seen, value = 0, None
        for value in values:
            seen |= int.from_bytes(value[-width:], "big")
            if seen == everything:
                return []
        return [] if value is None else [key for place, key in enumerate(self.keys) if not seen & 2 << place]


def _width(keys: Sequence[SortKey]) -> int:
    """Bytes that have a bit for each sort key, and one more, the lowest, which is always set."""
    return (len(keys) + 8) // 8


def _codes(texts: Iterable[bytes], key: SortKey) -> list[bytes]:
    """Codes of texts."""
    codes = map(natural_code if key.how == "natural" else text_code, texts)
    return list(map(reversed_code, codes) if key.reverse else codes)


class _Missing(Exception):
    """The sample does not have what is asked for."""


class _Unfit(Exception):
    """What the sample has cannot be compared; the text says why."""


class _Sample:
    """The samples of a batch, one at a time: what each sort key finds there."""

    def __init__(self, wanted: SortValues, batch: SampleBatch, shard: str, payload_of: PayloadOf) -> None:
        self._wanted = wanted
        self._batch = batch
        self._shard = shard
        self._payload_of = payload_of
        self._absent = b"\0" if wanted.missing == "first" else b"\2"
        self._row = 0
        self._documents: dict[bytes, Any] = {}

    def value(self, row: int) -> bytes:
        """All codes of one sample. Raises DataError."""
        self._row = row
        self._documents.clear()
        codes, present = [], 1
        for place, key in enumerate(self._wanted.keys):
            code = self._code_or_none(key)
            if code is None:
                codes.append(self._absent)
            else:
                codes += (b"\1", reversed_code(code) if key.reverse else code)
                present |= 2 << place
        codes.append(present.to_bytes(_width(self._wanted.keys), "big"))
        return b"".join(codes)

    def _code_or_none(self, key: SortKey) -> bytes | None:
        """None where it is missing, and may be."""
        try:
            return self._code(key)
        except (_Missing, Absent):
            pass
        except _Unfit as unfit:
            if not self._wanted.lenient:
                raise self._unfit(key, str(unfit)) from None
        except DataError as error:
            if not self._wanted.lenient or error.code != "undecodable":
                raise
        if self._wanted.missing == "error":
            raise self._missing(key)
        return None

    def _code(self, key: SortKey) -> bytes:
        if key.field is None:
            return payload_code(self._batch.keys[self._row], key.how)
        if key.path is None:
            size = self._batch.sizes[self._member(key.field)]
            if size > MAX_VALUE:
                raise _Unfit(f"it has {size} bytes, and more than {MAX_VALUE} are not compared")
            return payload_code(self._payload_of(self._row, key.field), key.how)
        code = value_code(at_path(self._document(key.field), key.path), key.how)
        if len(code) > MAX_VALUE:
            raise _Unfit(f"it is longer than the {MAX_VALUE} bytes that are compared")
        return code

    def _member(self, field: bytes) -> int:
        """The member of this field in the batch."""
        batch, row = self._batch, self._row
        try:
            return batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])
        except ValueError:
            raise _Missing from None

    def _document(self, field: bytes) -> Any:
        """The field's JSON, decoded once a sample."""
        if field not in self._documents:
            self._member(field)
            self._documents[field] = decoded(self._payload_of(self._row, field))
        return self._documents[field]

    def _unfit(self, key: SortKey, why: str) -> DataError:
        batch, field = self._batch, key.field
        at = batch.firsts[self._row] if field is None else self._member(field)
        return DataError(
            f"cannot sort by {key.text}: {why}",
            code="undecodable",
            shard=self._shard,
            offset=batch.starts[at],
            member=to_text(batch.keys[self._row] + (b"" if field is None else b"." + field)),
            hint="such values count as missing with --on-error skip",
        )

    def _missing(self, key: SortKey) -> DataError:
        batch, row = self._batch, self._row
        return DataError(
            f"there is no {key.text} to sort by",
            code="missing-value",
            shard=self._shard,
            offset=batch.start(row),
            member=to_text(batch.keys[row]),
            hint="--missing first or last sorts such samples before or after all others",
        )


def payload_code(payload: bytes, how: How) -> bytes:
    """The code of a payload, or of a key: text, or the number that it says, with white space around."""
    if how == "plain":
        return text_code(payload)
    if how == "natural":
        return natural_code(payload)
    try:
        return _number(payload.strip().decode("ascii"))
    except UnicodeDecodeError:
        raise _Unfit("it is not a number") from None


def value_code(value: Any, how: How) -> bytes:
    """The code of a value from JSON."""
    if how == "numeric":
        if not isinstance(value, str):
            raise _Unfit("it is not a number")
        return _number(value.strip())
    if isinstance(value, Number) and value == "NaN":
        raise _Missing
    try:
        return json_code(value, natural_code if how == "natural" else text_code)
    except ValueError as error:
        raise _Unfit(str(error)) from None
    except RecursionError:
        raise _Unfit("it is nested too deeply") from None


def _number(text: str) -> bytes:
    try:
        code = number_code(text)
    except ValueError as error:
        raise _Unfit(str(error)) from None
    if code is None:
        raise _Missing
    return code


def decoded(payload: bytes) -> Any:
    """A JSON document in which numbers are as they are written."""
    import json

    try:
        text = payload.decode(json.detect_encoding(payload), "surrogatepass")
        return _decoder().decode(text.removeprefix("\ufeff"))
    except RecursionError:
        raise _Unfit("it is nested too deeply") from None
    except ValueError as error:
        raise _Unfit(f"it is not JSON: {error}") from None


@cache
def _decoder() -> JSONDecoder:
    from json import JSONDecoder

    return JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)
