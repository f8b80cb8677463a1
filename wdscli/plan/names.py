"""This module checks new keys of samples, and names in options that no sample has.

:class:`Rekey` makes new keys by a format such as ``{shard}-{index:09d}``. Every command
that writes selected samples calls :func:`check_named` and :func:`check_empty` after it has seen all samples, and before
it publishes anything.

A format may contain these names: ``key`` (the old key), ``shard`` (the input shard's file name up to ``.tar``),
``index`` (the sample's place in that shard, from 0) and ``n`` (the sample's place in all shards together). Any other
text in braces is a place or an expression: ``{json.url}``. Readers must get the same key back from the member's name,
so the last part of a new key has no dot. This module does not know why samples are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from wdscli.errors import DataError, UsageError
from wdscli.progress import Progress
from wdscli.samples import check_name
from wdscli.samples.grouping import SampleAt
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.selection.named import MissingName
from wdscli.selection.where import ClassNumber, Value
from wdscli.storage import base_name
from wdscli.text import to_bytes, to_text

NAMES = ("index", "key", "n", "shard")
MAX_WIDTH_CHARACTERS = 4096
"""The largest width in a format, in characters."""
_NUMBER = re.compile("[0-9]+")
_NUMBERS = (int, float, ClassNumber)
DEFAULT = "{key}-{shard}-{index:09d}"
"""The format of ``--on-duplicate rekey`` without ``--rekey``."""


class KeyFormat(Formatter):
    """Fills in formats. The text in braces is looked up as it is. ``{path!k}`` is a path up to the first dot of its
    last part, and ``{url!q}`` quotes like a URL, dots too (:func:`unquoted`)."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "q":
            return quote(to_bytes(str(value)), safe="").replace(".", "%2E")
        if conversion != "k":
            return super().convert_field(value, conversion)
        folder, slash, name = str(value).rpartition("/")
        return folder + slash + name.partition(".")[0]


_FORMAT = KeyFormat()


def unquoted(key: bytes) -> str:
    """Return the value that ``{value!q}`` has quoted."""
    return to_text(unquote_to_bytes(key))


class Rekey(NamedTuple):
    """A checked format for new keys. ``values`` has the expressions in braces."""

    format: str
    values: Mapping[str, Value] = {}

    @classmethod
    def parse(cls, text: str, names: Sequence[str] = NAMES) -> Rekey:
        """Parse the format ``text``. It may contain expressions, unless it has ``names`` of its own. Raises UsageError
        for a format that cannot be filled in, or that contains unknown names."""
        values = {}
        try:
            pieces = list(Formatter().parse(text))
            used = {name for _, name, _, _ in pieces if name is not None}
            for name in sorted(used - {*names}):
                value = Value.of_payloads(name, "--rekey") if name and names is NAMES else None
                if value is None or not (value.named or value.names_sample):
                    raise ValueError(f"there is no {{{name}}}")
                values[name] = value
            for _, _, spec, _ in pieces:
                _check_width(spec or "")
            sample = "k" if values else text.format(key="key", shard="shard", index=0, n=0)
        except (ValueError, IndexError, KeyError) as error:
            more = " or an expression, such as {json.id}" if names is NAMES else ""
            raise UsageError(
                f'cannot use --rekey "{text}": {error}',
                hint=f"use {', '.join(f'{{{name}}}' for name in names)}{more}: {{{names[-1]}}}-{{index:09d}}",
            ) from None
        if not used:
            raise UsageError(
                f'--rekey "{text}" gives every sample the same key', hint=f"use {{{names[-1]}}}-{{index:09d}}"
            )
        check_name(to_bytes(sample), b"x")
        return cls(text, values)

    @property
    def counts_all(self) -> bool:
        """Whether new keys depend on the number of samples in the shards before."""
        return any(name == "n" for _, name, _, _ in Formatter().parse(self.format))

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads are read."""
        return frozenset[bytes]().union(*(value.payload_fields for value in self.values.values()))

    def key(self, old: bytes, stem: str, index: int, first: int = 0, sample: SampleAt | None = None) -> bytes:
        """Return the new key of sample ``index`` of a shard, after ``first`` samples of other shards. Expressions need
        the ``sample``. Raises UsageError if readers would not get this key back from a member's name, and for an
        expression DataError, also if the sample lacks a value."""
        parts = {"key": to_text(old), "shard": stem, "index": index, "n": first + index}
        if sample is None:
            new = to_bytes(self.format.format(**parts))
            check_name(new, b"x")
            return new
        for text, value in self.values.items():
            cell = value.value(sample)
            parts[text] = cell if type(cell) in _NUMBERS else to_text(value.of(sample) or b"")
            if parts[text] == "":
                raise sample.error(
                    f"no value of {text} for --rekey", "missing-field", hint=f"select: --where '{text}'"
                )
        try:
            new = to_bytes(_FORMAT.vformat(self.format, (), parts))
            check_name(new, b"x")
        except (UsageError, ValueError) as error:
            hint = f"{{{next(iter(self.values))}!k}} ends the key before a dot, and !q quotes dots"
            raise sample.error(
                f'cannot use --rekey "{self.format}": {error}', "unsafe-name", hint=hint
            ) from None
        return new


def _check_width(spec: str) -> None:
    """Raise ValueError for a width that would make too much text."""
    if "{" in spec:
        raise ValueError("a width must be a number")
    if any(
        len(number.lstrip("0")) > 4 or int(number) > MAX_WIDTH_CHARACTERS for number in _NUMBER.findall(spec)
    ):
        raise ValueError(f"it is wider than {MAX_WIDTH_CHARACTERS}")


def shard_stem(address: str) -> str:
    """Return the value of ``{shard}``: ``train-000007`` for ``s3://b/train-000007.tar.gz``.

    >>> shard_stem("s3://b/train-000007.tar.gz")
    'train-000007'
    """
    name = base_name(address)
    return name.partition(".")[0] or name


_ALLOW = "--allow-empty accepts this"


def check_named(missing_names: Iterable[MissingName], *, allow: bool, progress: Progress) -> None:
    """Raise DataError ``not-found`` for names that no sample has. For optional names, or with ``allow``, only warn."""
    refused = []
    for absence in missing_names:
        if absence.needed and not allow:
            refused.append(absence)
        else:
            progress.warn(absence.text)
    if refused:
        hints = [*dict.fromkeys(absence.hint for absence in refused if absence.hint), _ALLOW]
        message = "; ".join(absence.message for absence in refused)
        raise DataError(message, code="not-found", hint="; ".join(hints))


def check_empty(
    samples: int, selection: Selection, on_error: OnError, dropped: Mapping[str, int], *, allow: bool
) -> None:
    """Raise DataError ``empty`` if no sample of the inputs is left. Intact inputs without samples are allowed if
    nothing is selected. Their output has no samples."""
    if samples or allow or (selection.is_trivial and not dropped and on_error == "stop"):
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    raise DataError(
        "no sample is left to write" + (f": {counts}" if counts else ""),
        code="empty",
        hint="--allow-empty writes a set without samples",
    )
