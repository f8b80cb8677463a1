"""The selection itself: raw options in, rows of a batch out.

The order in which the options take hold is fixed, whatever their order on the command line: ``--keys`` and
``--keys-from``, then ``--where``, then the fields (a sample left with none is dropped), then ``--slice`` over
what remains, then ``--limit``, which a command that brings samples into another order, or leaves some out later,
counts itself. The same option given twice widens (``--keys A --keys B`` is either), but
``--where`` narrows; different options narrow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.samples import SampleBatch
from wdscli.selection.named import Absence, Named, Sightings

if TYPE_CHECKING:
    from wdscli.selection.fields import FieldRule, MemberPlan
    from wdscli.selection.keys import KeyRule
    from wdscli.selection.where import Where

PayloadOf = Callable[[int, bytes], bytes]
"""``payload_of(row, field)``: the payload of one member of a batch; called only for fields that the sample
has."""

OnError = Literal["stop", "skip"]
_NAMED_AT_MOST = 3


class SelectionState:
    """What a selection has counted so far, over the whole sequence of inputs; one for each run of a command.

    ``seen`` samples were looked at; of these ``kept`` were selected and the others are in ``dropped``, by
    reason: ``keys``, ``where``, ``undecodable`` (only with ``on_error="skip"``), ``no-fields``, ``slice``.
    ``done`` says that no further sample can be selected, so that reading may stop. ``members`` and ``payload_bytes``
    are those of the samples seen. ``found`` has the keys and globs that samples have, ``sightings`` what was seen of
    other names.
    """

    __slots__ = (
        "done",
        "dropped",
        "found",
        "kept",
        "matched",
        "members",
        "on_error",
        "payload_bytes",
        "seen",
        "sightings",
    )

    def __init__(self, on_error: OnError = "stop") -> None:
        self.on_error = on_error
        self.seen = 0
        self.matched = 0
        self.kept = 0
        self.members = 0
        self.payload_bytes = 0
        self.done = False
        self.dropped: dict[str, int] = {}
        self.found: set[bytes] = set()
        self.sightings = Sightings()

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

    @classmethod
    def parse(
        cls,
        *,
        fields: str | Sequence[str] | None = None,
        drop: str | Sequence[str] | None = None,
        rename: Sequence[str] | None = (),
        keys: Sequence[str] | None = (),
        keys_from: str | Sequence[str] | None = None,
        where: str | Sequence[str] | None = None,
        slice: str | None = None,
        limit: int | None = None,
    ) -> Selection:
        """A selection from options as they were typed. Raises UsageError for what cannot mean anything,
        InputError when ``keys_from`` cannot be read.

        >>> Selection.parse(keys=["n01/*"], slice="::2", limit=10).is_trivial
        False
        """
        return cls(
            key_rule=_key_rule(keys or (), keys_from),
            where=_where(where),
            field_rule=_field_rule(_words(fields, "--fields"), _words(drop, "--drop"), rename or ()),
            span=None if slice is None else parse_span(slice),
            limit=_checked_limit(limit),
        )

    @property
    def is_trivial(self) -> bool:
        """Everything is selected and nothing changed."""
        return self == _TRIVIAL

    @property
    def changes_members(self) -> bool:
        """Fields are left out or renamed."""
        return self.field_rule is not None

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads :meth:`apply` may ask for."""
        return self.where.payload_fields if self.where is not None else frozenset()

    @property
    def needs_payload(self) -> bool:
        """Whether :meth:`apply` must be given a ``payload_of``."""
        return bool(self.payload_fields)

    @property
    def reads_stdin(self) -> bool:
        """Whether standard input was spent on ``--keys-from -``, so that no shard can come from there."""
        return self.key_rule is not None and "-" in self.key_rule.sources

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
            self.key_rule.look(batch.keys, state.found, state.sightings)
        rows, before = [], state.seen
        for row in range(len(batch.keys)):
            state.seen += 1
            reason = self._reason_against(batch, row, shard, state, payload_of)
            if reason is None:
                reason = self._place_against(state)
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
        """Why one sample is not selected, whatever its place in the sequence, or None."""
        if self.key_rule is not None and not self.key_rule.matches(batch.keys[row], state.found):
            return "keys"
        try:
            if self.where is not None:
                holds = self.where.holds(batch, row, shard, payload_of)
                self.where.look(state.sightings)
                if not holds:
                    return "where"
        except DataError as error:
            if state.on_error == "stop" or error.code != "undecodable":
                raise
            return "undecodable"
        if self.field_rule is not None and not self.plan_of(batch, row, shard):
            return "no-fields"
        return None

    def _place_against(self, state: SelectionState) -> str | None:
        """Whether ``--slice`` takes the next sample of the sequence."""
        if self.span is None:
            return None
        place = state.matched
        state.matched += 1
        state.done = self.span.is_over(place + 1)
        return None if place in self.span else "slice"

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
        first, end = batch.firsts[row], batch.firsts[row + 1]
        try:
            return self.member_plan(tuple(batch.fields[first:end]))
        except DataError as error:
            raise DataError(
                error.message,
                code=error.code,
                shard=shard,
                offset=batch.starts[first],
                member=to_text(batch.keys[row]),
                hint=error.hint,
            ) from None

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
            text = f" among the {state.seen} that were read"
            return [one._replace(message=one.message + text, needed=False) for one in absences]
        if self.key_rule is not None and state.sightings.keys:
            absences += self.key_rule.absences(state.found, state.sightings)
        return absences

    def remarks(self, state: SelectionState) -> list[str]:
        """What the user should hear once everything was read: keys that ``--keys-from`` names and no shard
        holds, where there are others."""
        if self.key_rule is None or state.done:
            return []
        unseen = self.key_rule.unseen(state.found)
        if not unseen or len(unseen) == len(self.key_rule.listed or ()):
            return []
        named = ", ".join(to_text(key) for key in unseen[:_NAMED_AT_MOST])
        more = f" and {len(unseen) - _NAMED_AT_MOST} more" if len(unseen) > _NAMED_AT_MOST else ""
        noun = "key" if len(unseen) == 1 else "keys"
        files = " and ".join(self.key_rule.sources)
        return [f"{len(unseen)} {noun} of {files} not found: {named}{more}"]


_TRIVIAL = Selection()


def _words(given: str | Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Names separated by commas, from an option that may be given more than once."""
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        return None
    words = tuple(word.strip().removeprefix(".") for text in texts for word in text.split(","))
    if not all(words):
        raise UsageError(f"{option} has an empty name", hint=f"{option} jpg,json")
    return words


def _field_rule(
    fields: tuple[str, ...] | None, drop: tuple[str, ...] | None, rename: Sequence[str]
) -> FieldRule | None:
    if fields is None and drop is None and not rename:
        return None
    from wdscli.selection.fields import FieldRule

    return FieldRule.parse(fields, drop or (), rename)


def _key_rule(keys: Sequence[str], keys_from: str | Sequence[str] | None) -> KeyRule | None:
    keys_from = keys_from or None
    if not keys and keys_from is None:
        return None
    from wdscli.selection.keys import KeyRule

    return KeyRule.parse([keys] if isinstance(keys, str) else keys, keys_from)


def _where(given: str | Sequence[str] | None) -> Where | None:
    """One expression; of several, that all of them hold."""
    texts = [given] if isinstance(given, str) else list(given or ())
    if not texts:
        return None
    from wdscli.selection.where import Where

    found = [Where(text) for text in texts]
    # Each was read by itself, so that no bracket of one closes one of another. A comment ends with its line.
    return found[0] if len(found) == 1 else Where(" and ".join(f"({text}\n)" for text in texts))


def _checked_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 0:
        raise UsageError(f"--limit must not be negative: {limit}")
    return limit


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
    if step and not int(step):
        raise UsageError(f'not a slice: "{text}": its step is zero')
    return Span(int(start or 0), int(stop) if stop else None, int(step or 1))
