"""``--fields``, ``--drop`` and ``--rename``: which members of a sample stay, and what they are called.

A name in ``--fields`` and ``--drop`` means a field as the shard has it, or as ``--rename`` calls it, so that
both of the orders in which one may think of it work; where the shard has a field of the name itself, it means
that one. ``--rename NEW=OLD1;OLD2`` renames the first of the alternatives that a sample has, as webdataset's
``rename`` does; the others keep their names, because nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.samples import check_name
from wdscli.selection.named import Named

MemberPlan = tuple[tuple[int, bytes], ...]
_CACHE_LIMIT = 1 << 12


class Rename(NamedTuple):
    """``new`` is the name for the first of ``olds`` that is there."""

    new: bytes
    olds: tuple[bytes, ...]


class FieldRule:
    """What is done to the members of a sample. Immutable but for its memory of plans, which is not
    pickled."""

    __slots__ = ("_plans", "_sources", "drop", "keep", "renames")

    def __init__(
        self, keep: tuple[str, ...] | None, drop: tuple[str, ...], renames: tuple[Rename, ...]
    ) -> None:
        self.keep = keep
        self.drop = drop
        self.renames = renames
        self._sources = {old for rename in renames for old in rename.olds}
        self._plans: dict[tuple[bytes, ...], MemberPlan] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldRule, (self.keep, self.drop, self.renames)

    @classmethod
    def parse(cls, keep: tuple[str, ...] | None, drop: tuple[str, ...], renames: Sequence[str]) -> FieldRule:
        """A rule from the options' words. Raises UsageError."""
        parsed = tuple(map(parse_rename, [renames] if isinstance(renames, str) else renames))
        for names in ([r.new for r in parsed], [old for r in parsed for old in r.olds]):
            twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
            if twice is not None:
                raise UsageError(
                    f'--rename names "{to_text(twice)}" twice on one side',
                    hint="alternatives go into one option: --rename 'image=jpg;png'",
                )
        return cls(keep, drop, parsed)

    @property
    def named(self) -> list[Named]:
        """What samples must have somewhere."""
        words = [(word, " for --fields") for word in self.keep or ()]
        words += [(word, " for --drop") for word in self.drop]
        named = [Named(word, purpose, (word, *self._olds_of(word))) for word, purpose in words]
        for rename in self.renames:
            olds = tuple(map(to_text, rename.olds))
            named.append(Named(";".join(olds), " for --rename", olds))
        return named

    def _olds_of(self, word: str) -> list[str]:
        """The fields that a word means by their new names."""
        return [
            to_text(old)
            for rename in self.renames
            if fnmatchcase(to_text(rename.new), word)
            for old in rename.olds
        ]

    def plan(self, fields: tuple[bytes, ...]) -> MemberPlan:
        """See :meth:`wdscli.selection.Selection.member_plan`."""
        plan = self._plans.get(fields)
        if plan is None:
            if len(self._plans) >= _CACHE_LIMIT:
                self._plans.clear()
            plan = self._plans[fields] = self._make_plan(fields)
        return plan

    def _make_plan(self, fields: tuple[bytes, ...]) -> MemberPlan:
        new_names = self._renamed(fields)
        plan = tuple((place, new) for place, new in enumerate(new_names) if self._stays(fields, place, new))
        taken = [new for _, new in plan]
        for place, new in plan:
            if new != fields[place] and taken.count(new) > 1:
                name, old = to_text(new), to_text(fields[place])
                raise DataError(
                    f'--rename {name}={old}: the sample has a field "{name}" already',
                    code="duplicate-field",
                    hint=f"leave the other one out (--drop {name}) or give it a name of its own (--rename)",
                )
        return plan

    def _renamed(self, fields: tuple[bytes, ...]) -> list[bytes]:
        names = list(fields)
        for rename in self.renames:
            old = next((old for old in rename.olds if old in fields), None)
            if old is not None:
                names[fields.index(old)] = rename.new
        return names

    def _stays(self, fields: tuple[bytes, ...], place: int, new: bytes) -> bool:
        names = {to_text(fields[place])}
        if new not in self._sources and new not in fields:
            names.add(to_text(new))
        return (self.keep is None or _any_matches(names, self.keep)) and not _any_matches(names, self.drop)


def _any_matches(names: set[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def parse_rename(text: str) -> Rename:
    """
    >>> parse_rename("image=jpg;png")
    Rename(new=b'image', olds=(b'jpg', b'png'))
    """
    new, equals, olds = text.partition("=")
    names = [name.strip().removeprefix(".") for name in (new, *olds.split(";"))]
    if not equals or not all(names):
        raise UsageError(f'not a renaming: "{text}"', hint="--rename NEW=OLD, for example --rename image=jpg")
    raw = [to_bytes(name) for name in names]
    try:
        check_name(b"key", raw[0])
    except UsageError:
        raise UsageError(
            f'--rename: "{names[0]}" cannot be a field: it must have no slash and no NUL'
        ) from None
    return Rename(raw[0], tuple(raw[1:]))
