"""Where the parts of an output go: one set, or one for each part by ``{part}`` in its name.

What it is: :class:`Outputs`, from the text of ``-o`` to the :class:`~wdscli.shards.output.OutputSet` of each part. How:
``{part}`` is replaced before anything else is read in the text. It must not know how samples come into their parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.errors import UsageError
from wdscli.ops.plan import Cuts
from wdscli.shards.output import OutputSet, ShardSettings

FIELD = "{part}"


class Outputs:
    """The sets that one command writes. Raises UsageError for a text that cannot name shards."""

    def __init__(self, text: str, settings: ShardSettings) -> None:
        self.text = text
        self._settings = settings
        self._probe = OutputSet(text.replace(FIELD, "part"), settings)

    @property
    def has_parts(self) -> bool:
        """Whether the text names a set for each part."""
        return FIELD in self.text

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
        """The set of one part."""
        return OutputSet(self.text.replace(FIELD, checked_part(part)), self._settings)

    def check(self, parts: Sequence[str] | None, inputs: Sequence[str]) -> None:
        """Refuse what is there already, as far as the parts are known: None for not yet."""
        if not self.has_parts:
            self._probe.check(inputs)
        for part in parts or () if self.has_parts else ():
            self.set_of(part).check(inputs)


def checked_part(name: str) -> str:
    """A part's name, if it can stand in an address. Raises UsageError.

    >>> checked_part("train")
    'train'
    """
    bad = not name or name in (".", "..") or any(mark in name for mark in "/\\{}%*?[]@|:\0\n")
    if bad or name.startswith(("-", "~")):
        raise UsageError(
            f'"{name}" cannot be the name of a part',
            hint="a part's name becomes part of a file's name: letters, digits, - _ . and such",
        )
    return name
