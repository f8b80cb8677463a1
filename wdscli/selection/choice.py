"""The selection itself: raw options in, rows of a batch out.

The order in which the options take hold is fixed, whatever their order on the command line: ``--keys``,
``--keys-from`` and ``--not-keys-from`` (:class:`KeyRule`), then ``--where``, then the fields (:class:`FieldRule`; a
sample left with none is dropped), then ``--slice`` over what remains, then ``--sample`` (:class:`Draw`), then
``--limit``, which a command that brings samples into another order, or leaves some out later, counts itself. The same
option given twice widens (``--keys A --keys B`` is either), but ``--where`` narrows; different options narrow each
other.

Keys: a glob is matched against the whole key, case counts, and ``*`` matches ``/`` too, as in Python's fnmatch and in
find's ``-path``. The lines of a key file are compared byte for byte.

Fields: a name in ``--fields`` and ``--drop`` means a field as the shard has it, or as ``--rename`` calls it, so that
both of the orders in which one may think of it work; where the shard has a field of the name itself, it means that one.
``--rename NEW=OLD1;OLD2`` renames the first of the alternatives that a sample has, as webdataset's ``rename`` does; the
others keep their names, because nothing is lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.samples import SampleBatch, check_name
from wdscli.selection.named import Absence, Named, Sightings, is_like, listed
from wdscli.selection.sample import PayloadOf, SampleAt
from wdscli.storage import addresses_of
from wdscli.units import whole_number

if TYPE_CHECKING:
    from wdscli.selection.draw import Draw
    from wdscli.selection.where import Where

OnError = Literal["stop", "skip"]


@dataclass(slots=True, eq=False)
class SelectionState:
    """What a selection has counted so far, over the whole sequence of inputs; one for each run of a command.

    ``seen`` samples were looked at; of these ``kept`` were selected and the others are in ``dropped``, by
    reason: ``keys``, ``not-keys``, ``where``, ``undecodable`` (only with ``on_error="skip"``), ``no-fields``,
    ``slice``, ``sample``.
    ``done`` says that no further sample can be selected, so that reading may stop. ``members`` and ``payload_bytes``
    are those of the samples seen. ``found`` has the keys and globs that samples have, ``sightings`` what was seen of
    other names. ``end`` is the place in its shard behind the batch that was looked at last. ``ties`` counts samples of
    the last rank that is drawn.
    """

    on_error: OnError = "stop"
    seen: int = 0
    matched: int = 0
    kept: int = 0
    members: int = 0
    payload_bytes: int = 0
    done: bool = False
    end: int = 0
    ties: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    found: set[bytes] = field(default_factory=set)
    sightings: Sightings = field(default_factory=Sightings)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def merge_names(self, other: SelectionState) -> None:
        """Add what another part of the same samples was seen to have."""
        self.found |= other.found
        self.sightings.merge(other.sightings)

    def count(self, batch: SampleBatch, samples: int) -> None:
        """Add the members of the first ``samples`` of a batch."""
        end = batch.firsts[samples]
        self.members += end
        self.end = batch.index + len(batch.keys)
        self.payload_bytes += sum(batch.sizes[:end] if end < len(batch.sizes) else batch.sizes)


class Span(NamedTuple):
    """``--slice A:B:STEP``: places ``start``, ``start + step``, ... below ``stop`` (None: no end)."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    def __contains__(self, place: object) -> bool:
        assert isinstance(place, int)
        below = self.stop is None or place < self.stop
        return below and place >= self.start and (place - self.start) % self.step == 0

    def is_over(self, place: int) -> bool:
        """Whether neither ``place`` nor any later one is in it."""
        return self.stop is not None and place >= self.stop


class Selection(NamedTuple):
    """A validated selection; make it with :meth:`parse`. The parts that are None select everything."""

    key_rule: KeyRule | None = None
    where: Where | None = None
    field_rule: FieldRule | None = None
    span: Span | None = None
    limit: int | None = None
    draw: Draw | None = None

    @classmethod
    def parse(
        cls,
        *,
        fields: str | Sequence[str] | None = None,
        drop: str | Sequence[str] | None = None,
        rename: Sequence[str] | None = (),
        keys: Sequence[str] | None = (),
        keys_from: str | Sequence[str] | None = None,
        not_keys_from: str | Sequence[str] | None = None,
        where: str | Sequence[str] | None = None,
        slice: str | None = None,
        sample: str | int | None = None,
        seed: int | None = None,
        limit: int | None = None,
    ) -> Selection:
        """A selection from options as they were typed. Raises UsageError for what cannot mean anything,
        InputError when ``keys_from`` or ``not_keys_from`` cannot be read.

        >>> Selection.parse(keys=["n01/*"], slice="::2", limit=10).is_trivial
        False
        """
        keep, leave = _words(fields, "--fields"), _words(drop, "--drop")
        draw = None
        if sample is not None:
            from wdscli.selection.draw import Draw

            draw = Draw.parse(str(sample), seed or 0)
        chosen = cls(
            key_rule=KeyRule.parse(texts_of(keys), keys_from or None, not_keys_from or None)
            if keys or keys_from or not_keys_from
            else None,
            where=_where(where),
            field_rule=None
            if keep is None and leave is None and not rename
            else FieldRule.parse(keep, leave or (), texts_of(rename)),
            span=None if slice is None else parse_span(slice),
            limit=limit,
            draw=draw,
        )
        if limit is not None and limit < 0:
            raise UsageError(f"--limit must not be negative: {limit}")
        return chosen

    @property
    def is_trivial(self) -> bool:
        """Everything is selected and nothing changed."""
        return self == _TRIVIAL

    @property
    def takes_most(self) -> bool:
        """Whether a good part of all samples is selected, wherever they lie, as far as that is known beforehand."""
        span = self.span or Span()
        is_near = (span.start, span.stop) == (0, None) and span.step <= 4
        is_drawn = self.draw is None or self.draw.takes_most
        return is_near and is_drawn and self.key_rule is None and self.where is None and self.limit is None

    @property
    def before_draw(self) -> Selection:
        """The same where all samples must be seen before some are drawn: what may be drawn, and no limit."""
        is_open = self.draw is not None and self.draw.is_open
        return self._replace(draw=None, limit=None) if is_open else self

    def with_classes(self, known: Callable[[], Sequence[str] | None]) -> Selection:
        """The same for a set whose manifest has names for the numbers in ``cls``; ``known`` looks for them."""
        if self.where is None or b"cls" not in self.where.payload_fields:
            return self
        return self._replace(where=self.where.with_classes(known() or ()))

    @property
    def changes_members(self) -> bool:
        """Fields are left out or renamed."""
        return self.field_rule is not None

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads :meth:`apply` may ask for."""
        return self.where.payload_fields if self.where is not None else frozenset()

    @property
    def reads_stdin(self) -> bool:
        """Whether standard input was spent on ``--keys-from -``, so that no shard can come from there."""
        return self.key_rule is not None and "-" in self.key_rule.files

    def new_state(self, on_error: OnError = "stop") -> SelectionState:
        """Fresh counts. With ``on_error="skip"`` a sample that ``--where`` cannot decode is dropped, not an
        error."""
        state = SelectionState(on_error)
        state.done = self.limit == 0 or (self.span is not None and self.span.is_over(self.span.start))
        return state

    def apply(
        self, batch: SampleBatch, shard: str, state: SelectionState, payload_of: PayloadOf | None = None
    ) -> list[int]:
        """The selected rows of ``batch``, in order; ``state`` goes on from batch to batch and shard to shard.

        Raises DataError when ``--where`` must decode what cannot be decoded, and when ``--rename`` would give
        a sample the same field twice.
        """
        state.done = state.done or state.kept == self.limit
        if state.done:
            return []
        if self.is_trivial:
            state.seen += len(batch.keys)
            state.kept += len(batch.keys)
            state.count(batch, len(batch.keys))
            return list(range(len(batch.keys)))
        if self.field_rule is not None or self.where is not None:
            state.sightings.fields.update(batch.fields)
        if self.key_rule is not None:
            # Keys are remembered that may be near those that were not found so far.
            exact = self.key_rule.exact
            missing = exact - state.found if len(exact) <= _FOLLOWED_AT_MOST else ()
            state.sightings.see_keys(batch.keys, missing)
        rows, before = [], state.seen
        for row in range(len(batch.keys)):
            state.seen += 1
            reason = self._reason_against(batch, row, shard, state, payload_of)
            if reason is None:
                rows.append(row)
                state.kept += 1
                state.done = state.done or state.kept == self.limit
            else:
                state.drop(reason)
            if state.done:
                break
        state.count(batch, state.seen - before)
        return rows

    def _reason_against(
        self, batch: SampleBatch, row: int, shard: str, state: SelectionState, payload_of: PayloadOf | None
    ) -> str | None:
        """Why the next sample of the sequence is not selected, or None."""
        key = batch.keys[row]
        if self.key_rule is not None and not self.key_rule.matches(key, state.found):
            return "keys"
        if self.key_rule is not None and self.key_rule.leaves_out(key, state.found):
            return "not-keys"
        if self.where is not None:
            try:
                holds = self.where.holds(SampleAt(batch, row, shard, payload_of))
            except DataError as error:
                if state.on_error == "stop" or error.code != "undecodable":
                    raise
                return "undecodable"
            self.where.look(state.sightings)
            if not holds:
                return "where"
        if self.field_rule is not None and not self.plan_of(batch, row, shard):
            return "no-fields"
        if self.span is not None:
            place = state.matched
            state.matched += 1
            state.done = self.span.is_over(place + 1)
            if place not in self.span:
                return "slice"
        if self.draw is not None:
            rank = self.draw.rank(key)
            if not self.draw.takes(rank, state.ties):
                return "sample"
            state.ties += rank == self.draw.bound
        return None

    def member_plan(self, fields: tuple[bytes, ...]) -> MemberPlan:
        """Which members of a sample with these ``fields`` stay, as (place, new name), in the sample's own
        order.

        Answers are remembered, since few lists of fields make up a set. Raises DataError ``duplicate-field``,
        without a place, when ``--rename`` gives the same name twice.
        """
        if self.field_rule is None:
            return tuple(enumerate(fields))
        return self.field_rule.plan(fields)

    def plan_of(self, batch: SampleBatch, row: int, shard: str) -> MemberPlan:
        """:meth:`member_plan` of one sample of a batch; an error says where."""
        try:
            return self.member_plan(tuple(batch.fields[batch.firsts[row] : batch.firsts[row + 1]]))
        except DataError as error:
            sample = SampleAt(batch, row, shard)
            raise sample.error(error.message, error.code, hint=error.hint) from None

    @property
    def named(self) -> list[Named]:
        """The fields and places in JSON that samples must have somewhere."""
        named = [] if self.field_rule is None else self.field_rule.named
        return named if self.where is None else [*named, *self.where.named]

    def absences(self, state: SelectionState, named: Sequence[Named] = ()) -> list[Absence]:
        """What was named, here and in ``named``, and no sample has; to be asked once everything was read.

        None when there was no sample to look at. Where reading ended early, because no further sample could be
        selected, a field may come yet: it is told and not needed; of keys nothing is said.
        """
        absences = []
        if state.sightings.fields:
            absences = state.sightings.absent([*self.named, *named])
        if state.done:
            text = (
                f" among the {state.seen} that were read" if state.seen != 1 else " in the one that was read"
            )
            absences = [one._replace(message=one.message + text, needed=False) for one in absences]
        elif self.key_rule is not None and state.sightings.keys:
            absences += self.key_rule.absences(state.found, state.sightings)
        return absences if self.where is None else [*absences, *self.where.absences]

    def remarks(self, state: SelectionState) -> list[str]:
        """What the user should hear once everything was read: keys that ``--keys-from`` names and no shard
        holds, where there are others."""
        if self.key_rule is None or state.done:
            return []
        rule, remarks = self.key_rule, []
        for keys, sources, may_be_all in (
            (rule.listed or {}, rule.sources, False),
            (rule.left_out or {}, rule.sources_left_out, True),
        ):
            unseen = [key for key in keys if key not in state.found]
            if unseen and (may_be_all or len(unseen) < len(keys)):
                named = listed([to_text(key) for key in unseen], ", ")
                noun = "key" if len(unseen) == 1 else "keys"
                remarks.append(f"{len(unseen)} {noun} of {' and '.join(sources)} not found: {named}")
        return remarks


_TRIVIAL = Selection()


def texts_of(given: str | Iterable[str] | None) -> list[str]:
    """What an option was given, once or more often, or not at all."""
    return [given] if isinstance(given, str) else list(given or ())


def _words(given: str | Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Names separated by commas, from an option that may be given more than once."""
    texts = texts_of(given)
    if not texts:
        return None
    words = tuple(word.strip().removeprefix(".") for text in texts for word in text.split(","))
    if not all(words):
        raise UsageError(f"{option} has an empty name", hint=f"{option} jpg,json")
    return words


def _where(given: str | Sequence[str] | None) -> Where | None:
    """One expression; of several, that all of them hold."""
    texts = texts_of(given)
    if not texts:
        return None
    from wdscli.selection.where import Where

    found = [Where(text) for text in texts]
    # Each was read by itself, so that no bracket of one closes one of another. A comment ends with its line.
    return found[0] if len(found) == 1 else Where(" and ".join(f"({text}\n)" for text in texts))


def parse_span(text: str) -> Span:
    """``A:B:STEP`` with any part left out.

    >>> parse_span("10:"), parse_span("::100")
    (Span(start=10, stop=None, step=1), Span(start=0, stop=None, step=100))
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) not in (2, 3) or not all(
        part == "" or (part.isascii() and part.isdigit()) for part in parts
    ):
        raise UsageError(
            f'not a slice: "{text}"',
            hint="A:B:STEP, whole numbers that are not negative, each of which may be left out: 0:1000, ::10",
        )
    start, stop, step = [*parts, ""][:3]
    if step and not whole_number(step):
        raise UsageError(f'not a slice: "{text}": its step is zero')
    return Span(whole_number(start), whole_number(stop) if stop else None, whole_number(step or "1"))


MemberPlan = tuple[tuple[int, bytes], ...]
_PLANS_REMEMBERED = 1 << 12


class Rename(NamedTuple):
    """``new`` is the name for the first of ``olds`` that is there."""

    new: bytes
    olds: tuple[bytes, ...]


class FieldRule:
    """What is done to the members of a sample. Immutable but for its memory of plans, which is not pickled."""

    def __init__(
        self, keep: tuple[str, ...] | None, drop: tuple[str, ...], renames: tuple[Rename, ...]
    ) -> None:
        self.keep = keep
        self.drop = drop
        self.renames = renames
        self._sources = {old for rename in renames for old in rename.olds}
        self.plan = lru_cache(_PLANS_REMEMBERED)(self._make_plan)
        """See :meth:`Selection.member_plan`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldRule, (self.keep, self.drop, self.renames)

    @classmethod
    def parse(cls, keep: tuple[str, ...] | None, drop: tuple[str, ...], renames: Sequence[str]) -> FieldRule:
        """A rule from the options' words. Raises UsageError."""
        parsed = tuple(map(parse_rename, renames))
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
            if is_like(to_text(rename.new), word)
            for old in rename.olds
        ]

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

        def are_any(patterns: tuple[str, ...]) -> bool:
            return any(is_like(name, pattern) for name in names for pattern in patterns)

        return (self.keep is None or are_any(self.keep)) and not are_any(self.drop)


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


_MAGIC = frozenset("*?[")
_FOLLOWED_AT_MOST = 64
_SHOWN = 3


class KeyRule(NamedTuple):
    """A key matches when it is one of ``exact`` or like one of ``globs`` (if any were given) and one of
    ``listed`` (if files were given) and none of ``left_out``. ``sources`` and ``sources_left_out`` are the files'
    addresses; ``any_glob`` is all globs together."""

    exact: frozenset[bytes] = frozenset()
    globs: tuple[tuple[bytes, re.Pattern[str]], ...] = ()
    any_glob: re.Pattern[str] | None = None
    listed: dict[bytes, None] | None = None
    sources: tuple[str, ...] = ()
    left_out: dict[bytes, None] | None = None
    sources_left_out: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        keys: Sequence[str],
        keys_from: str | Sequence[str] | None,
        not_keys_from: str | Sequence[str] | None = None,
    ) -> KeyRule:
        from fnmatch import translate

        if any(not key for key in keys):
            raise UsageError("--keys is empty", hint="--keys 'n01/*'")
        sources = addresses_of(keys_from, "--keys-from")
        left_out = addresses_of(not_keys_from, "--not-keys-from")
        if "-" in sources and "-" in left_out:
            raise UsageError("standard input holds one list of keys", hint="--not-keys-from FILE")
        globs = [key for key in dict.fromkeys(keys) if not _MAGIC.isdisjoint(key)]
        return cls(
            exact=frozenset(to_bytes(key) for key in keys if _MAGIC.isdisjoint(key)),
            globs=tuple((to_bytes(key), re.compile(translate(key))) for key in globs),
            any_glob=re.compile("|".join(map(translate, globs))) if globs else None,
            listed=None if keys_from is None else _keys_in(sources),
            sources=sources,
            left_out=_keys_in(left_out) if left_out else None,
            sources_left_out=left_out,
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The addresses of all files of keys."""
        return *self.sources, *self.sources_left_out

    @property
    def is_narrow(self) -> bool:
        """Whether keys are named that are selected, and not only such as are left out."""
        return bool(self.exact or self.globs or self.listed is not None)

    def selects(self, key: bytes) -> bool:
        """Whether the rule selects a key."""
        return self.matches(key, set()) and not self.leaves_out(key, set())

    def matches(self, key: bytes, found: set[bytes]) -> bool:
        """Whether ``key`` is selected; what names it, here or in a file, goes into ``found``."""
        is_listed = self.listed is None or key in self.listed
        if self.listed is not None and is_listed:
            found.add(key)
        if not self.exact and self.any_glob is None:
            return is_listed
        is_exact = key in self.exact
        if is_exact:
            found.add(key)
        text = to_text(key) if self.any_glob is not None else ""
        if self.any_glob is None or self.any_glob.match(text) is None:
            return is_exact and is_listed
        for glob, pattern in self.globs:
            if glob not in found and pattern.match(text):
                found.add(glob)
        return is_listed

    def leaves_out(self, key: bytes, found: set[bytes]) -> bool:
        """Whether ``key`` is one of those to leave out; it goes into ``found``."""
        if self.left_out is None or key not in self.left_out:
            return False
        found.add(key)
        return True

    def absences(self, found: set[bytes], sightings: Sightings) -> list[Absence]:
        """The keys and globs that no sample has, and files of which none has any."""
        absences = []
        like = f"keys are {listed([to_text(key) for key in sightings.keys], ', ')}"
        if missing := sorted(self.exact - found):
            close = dict.fromkeys(near for key in missing[:_SHOWN] for near in sightings.near_keys(key))
            hint = f"did you mean {listed(list(close), ' or ')}?" if close else like
            if any(b"," in key for key in missing):
                hint = f"several keys are several options: --keys a --keys b; {hint}"
            names = listed([to_text(key) for key in missing], " or ")
            noun = "key" if len(missing) == 1 else "keys"
            absences.append(Absence(f"no sample has the {noun} {names} for --keys", hint))
        if globs := [to_text(glob) for glob, _ in self.globs if glob not in found]:
            absences.append(Absence(f"no sample has a key like {listed(globs, ' or ')} for --keys", like))
        if self.listed is not None and found.isdisjoint(self.listed):
            files = " and ".join(self.sources)
            absences.append(Absence(f"no sample has a key of {files} for --keys-from", like))
        return absences


def _keys_in(addresses: Sequence[str]) -> dict[bytes, None]:
    """The keys of all these files."""
    from wdscli.selection.keyfiles import key_lines

    return {key: None for one in addresses for key in key_lines(one)}
