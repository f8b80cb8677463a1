"""Where the parts of an output go: one set, or one for each part by ``{part}`` in its name.

What it is: :class:`Outputs`, from the text of ``-o`` to the :class:`~wdscli.shards.OutputSet` of each part. How:
``{part}`` is replaced before anything else is read in the text, which must be such that no two parts can have a file in
common. It must not know how samples come into their parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wdscli.errors import UsageError
from wdscli.plan.cut import Cuts
from wdscli.shards.writing import OutputSet, ShardSettings

FIELD = "{part}"
_BESIDE_NUMBER = re.compile(r"\{part\}[0-9]*(%0?[0-9]*d|\{[0-9])|(%0?[0-9]*d|[0-9]\})[0-9]*\{part\}")
_SAFE_IN_SHELL = re.compile(r"[A-Za-z0-9_.+=-]+")
_LONGEST = 200
"""Bytes of a part's name: with prefix and number it must still be the name of a file."""
_TOLD = 40
"""So many characters of a name are told in an error: it may be an image that was taken for one."""


class Outputs:
    """The sets that one command writes. Raises UsageError for a text that cannot name shards. ``may_exist`` is for who
    goes on with what is there."""

    def __init__(self, text: str, settings: ShardSettings, *, may_exist: bool = False) -> None:
        self.text = text
        self.may_exist = may_exist
        self._settings = settings
        self._probe = OutputSet(text.replace(FIELD, "part"), settings)
        if self.has_parts:
            self._check_apart()

    @property
    def has_parts(self) -> bool:
        """Whether the text names a set for each part."""
        return FIELD in self.text

    def _check_apart(self) -> None:
        """Refuse names by which one part's files could be taken for another's."""
        beside = _BESIDE_NUMBER.search(self.text)
        if beside is not None:
            raise UsageError(
                f'"{beside[0]}" in {self.text}: where does the part\'s name end and the number begin?',
                hint=f"put something between them: {FIELD}-%06d.tar",
            )
        other = OutputSet(self.text.replace(FIELD, "trap"), self._settings)
        if (
            self._probe.manifest_address is not None
            and self._probe.manifest_address == other.manifest_address
        ):
            raise UsageError(
                f"{self.text} gives the manifests of all parts one name",
                hint=f"put {FIELD} before the number: {FIELD}-%06d.tar or {FIELD}/%06d.tar",
            )

    @property
    def is_stream(self) -> bool:
        """Whether shards go to standard output, a command or a device."""
        return self._probe.pattern.is_stream

    def cuts(self, cuts: Cuts) -> Cuts:
        """The cuts of each part, together with what the text says: a single file is one shard, braces are exactly
        theirs. Raises UsageError."""
        pattern = self._probe.pattern
        if pattern.single:
            if cuts != Cuts() and cuts.shards != 1:
                raise UsageError(
                    f"{self.text} is one shard and cannot be cut", hint="name the shards: -o out-%06d.tar"
                )
            return Cuts(shards=1)
        return cuts.checked(pattern.count)

    def set_of(self, part: str) -> OutputSet:
        """The set of one part. Raises UsageError for a name that cannot stand in the text."""
        if FIELD in self.text and self.is_stream and not _SAFE_IN_SHELL.fullmatch(part):
            raise UsageError(
                f'"{part}" cannot be the name of a part in a command',
                hint="in pipe:CMD a part's name has letters, digits, - _ . + = only",
            )
        return OutputSet(self.text.replace(FIELD, checked_part(part)), self._settings)

    def check(self, parts: Sequence[str] | None, inputs: Sequence[str]) -> None:
        """Refuse what is there already, as far as the parts are known: None for not yet."""
        if not self.has_parts:
            self._probe.check(inputs, may_exist=self.may_exist)
        for part in parts or () if self.has_parts else ():
            self.set_of(part).check(inputs, may_exist=self.may_exist)


def checked_part(name: str) -> str:
    """A part's name, if it can stand in an address. Raises UsageError.

    >>> checked_part("train")
    'train'
    """
    bad = not name or name.startswith((".", "-", "~", " ")) or any(mark in name for mark in "/\\{}%*?[]@|:")
    if bad or not name.isprintable() or len(name.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise UsageError(
            f'"{name if len(name) <= _TOLD else name[:_TOLD] + "..."}" cannot be the name of a part',
            hint="a part's name becomes part of a file's name: letters, digits, - _ . and such",
        )
    return name
