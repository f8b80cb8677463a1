"""This module checks new keys of samples, and names in options that no sample has.

:class:`Rekey` makes new keys by a format such as ``{shard}-{index:09d}``. Every command
that writes selected samples calls :func:`check_named` and :func:`check_empty` after it has seen all samples, and before
it publishes anything.

A format may contain these names: ``key`` (the old key), ``shard`` (the input shard's file name up to ``.tar``),
``index`` (the sample's place in that shard, from 0) and ``n`` (the sample's place in all shards together). Readers must
get the same key back from the member's name, so the last part of a new key has no dot. This module does not know why
samples are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.progress import Progress
from wdscli.samples import check_name
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.selection.named import MissingName
from wdscli.storage import base_name

NAMES = ("index", "key", "n", "shard")
MAX_WIDTH_CHARACTERS = 4096
"""The largest width in a format, in characters."""
_NUMBER = re.compile("[0-9]+")
DEFAULT = "{key}-{shard}-{index:09d}"
"""The format of ``--on-duplicate rekey`` without ``--rekey``."""


class Rekey(NamedTuple):
    """A checked format for new keys."""

    format: str

    @classmethod
    def parse(cls, text: str, names: Sequence[str] = NAMES) -> Rekey:
        """Parse the format ``text``. Raises UsageError for a format that cannot be filled in, or that contains unknown
        names."""
        try:
            pieces = list(Formatter().parse(text))
            used = {name for _, name, _, _ in pieces if name is not None}
            unknown = sorted(name for name in used if name.partition(".")[0].partition("[")[0] not in names)
            if unknown or any("." in name or "[" in name for name in used):
                raise ValueError(
                    f"there is no {{{unknown[0]}}}"
                    if unknown
                    else "a name in braces must not contain a dot or [ ]"
                )
            for _, _, spec, _ in pieces:
                _check_width(spec or "")
            sample = text.format(key="key", shard="shard", index=0, n=0)
        except (ValueError, IndexError, KeyError) as error:
            raise UsageError(
                f'cannot use --rekey "{text}": {error}',
                hint=f"use {', '.join(f'{{{name}}}' for name in names)}: {{{names[-1]}}}-{{index:09d}}",
            ) from None
        if not used:
            raise UsageError(
                f'--rekey "{text}" gives every sample the same key', hint=f"use {{{names[-1]}}}-{{index:09d}}"
            )
        check_name(to_bytes(sample), b"x")
        return cls(text)

    @property
    def counts_all(self) -> bool:
        """Whether new keys depend on the number of samples in the shards before."""
        return any(name == "n" for _, name, _, _ in Formatter().parse(self.format))

    def key(self, old: bytes, stem: str, index: int, first: int = 0) -> bytes:
        """Return the new key of sample ``index`` of a shard, after ``first`` samples of other shards. Raises UsageError
        if readers would not get this key back from a member's name."""
        new = to_bytes(self.format.format(key=to_text(old), shard=stem, index=index, n=first + index))
        check_name(new, b"x")
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
