"""This module makes a selection from raw options, and rows of a batch from a selection.

The options apply in a fixed order: ``--keys``, ``--keys-from`` and ``--not-keys-from``
(:mod:`wdscli.selection.listed`), then
``--where``, then the fields (:class:`FieldRule`; a sample without fields is dropped), then ``--slice`` over the
remaining samples, then ``--sample`` (:class:`Draw`), then ``--limit``. If a command reorders samples, or skips some of
them later, it counts ``--limit`` itself. A repeated option selects more (``--keys A --keys B`` means A or B), but a
repeated ``--where`` selects less. Samples must satisfy all options.

A key glob is matched with the whole key. Case matters, and ``*`` also matches ``/``, like in Python's fnmatch. The
lines of a key file are compared byte for byte.

A name in ``--fields`` and ``--drop`` is a field of the shard, or else a new name of ``--rename``. ``--rename
NEW=OLD1;OLD2`` renames the first of these fields that a sample has, like webdataset's ``rename``. The other field keeps
its name, so that no field is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from wdscli.arrays import SampleArrays
from wdscli.errors import DataError, UsageError
from wdscli.samples import SampleBatch, check_name
from wdscli.samples.grouping import PayloadOf, SampleAt
from wdscli.selection.named import MissingName, Named, SeenNames, is_like, listed
from wdscli.text import to_bytes, to_text
from wdscli.units import whole_number

if TYPE_CHECKING:
    from wdscli.selection.draw import Draw
    from wdscli.selection.listed import KeySelection, ListedValues, ReadSet
    from wdscli.selection.where import NewField, Value

OnError = Literal["stop", "skip"]
_FOLLOWED_AT_MOST = 64


class SelectionState:
    """The counts of a selection over all inputs. Each run of a command has its own.

    ``seen_samples`` counts samples read, and ``kept`` counts selected samples. ``dropped`` counts the other samples by
    reason: ``keys``, ``not-keys``, ``where``, ``undecodable`` (only with ``on_error="skip"``), ``no-fields``,
    ``slice``, ``sample``. ``matched`` counts samples that reached ``--slice``. ``done`` means that no further sample
    can be selected, so reading may stop. ``members`` and ``payload_bytes`` are totals of the samples seen.
    ``matched_keys`` has the keys and globs that samples match, and ``seen_names`` has other names seen. ``end`` is the
    place in the shard after the last batch. ``ties`` counts chosen samples with the last rank."""

    def __init__(self, on_error: OnError = "stop") -> None:
        self.on_error: OnError = on_error
        self.seen_samples = self.matched = self.kept = self.members = self.payload_bytes = 0
        self.done = False
        self.end = self.ties = 0
        self.dropped: Counter[str] = Counter()
        self.matched_keys: set[bytes] = set()
        self.seen_names = SeenNames()

    def merge_names(self, state: SelectionState) -> None:
        """Add the names seen in another part of the same samples."""
        self.matched_keys |= state.matched_keys
        self.seen_names.merge(state.seen_names)

    def count(self, batch: SampleBatch, samples: int) -> None:
        """Add the members of the first ``samples`` of a batch."""
        end = batch.firsts[samples]
        self.members += end
        self.end = batch.index + len(batch.keys)
        self.payload_bytes += sum(batch.sizes[:end] if end < len(batch.sizes) else batch.sizes)

    def count_arrays(self, samples: SampleArrays) -> None:
        """Count the next samples of a shard as selected."""
        total = len(samples.counts)
        self.seen_samples += total
        self.kept += total
        self.end += total
        self.members += len(samples.sizes)
        self.payload_bytes += int(samples.sizes.sum())


_NO_END = 1 << 400
"""The end of a ``--slice`` that has no end. It is larger than any number in an option."""


class Selection(NamedTuple):
    """A validated selection, made by :meth:`parse`. An attribute that is None selects everything."""

    key_rule: KeySelection | None = None
    where: Value | None = None
    field_rule: FieldRule | None = None
    span: range | None = None
    limit: int | None = None
    draw: Draw | None = None
    value_rule: ListedValues | None = None

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
        on: str | None = None,
        near: int | None = None,
        where: str | Sequence[str] | None = None,
        column: Sequence[str] | None = (),
        slice: str | None = None,
        sample: str | int | None = None,
        seed: int | None = None,
        limit: int | None = None,
        read_set: ReadSet | None = None,
    ) -> Selection:
        """Make a selection from raw options. ``read_set`` reads the values of sets in ``keys_from`` and
        ``not_keys_from``. Raises UsageError for an invalid option, and InputError if such a file cannot be read.

        >>> Selection.parse(keys=["n01/*"], slice="::2", limit=10).is_trivial
        False
        """
        if limit is not None and limit < 0:
            raise UsageError(f"--limit must not be negative: {limit}")
        lists = (keys_from or None, not_keys_from or None)
        key_rule, value_rule = _list_rules(texts_of(keys), lists, on, near, read_set)
        return cls(
            key_rule=key_rule,
            value_rule=value_rule,
            where=_where(where),
            field_rule=FieldRule.parse(fields, drop, texts_of(rename), texts_of(column)),
            span=None if slice is None else parse_span(slice),
            limit=limit,
            draw=None if sample is None else _draw(str(sample), seed or 0),
        )

    @property
    def is_trivial(self) -> bool:
        """Whether all samples are selected and unchanged."""
        return self == _TRIVIAL

    @property
    def takes_most(self) -> bool:
        """Whether the options may select at least a quarter of all samples, spread over the whole set."""
        span = self.span or range(_NO_END)
        is_spread = (span.start, span.stop) == (0, _NO_END) and span.step <= 4
        is_drawn = self.draw is None or self.draw.takes_most
        is_all = self.key_rule is None and self.where is None and self.value_rule is None
        return is_spread and is_drawn and is_all and self.limit is None

    @property
    def before_draw(self) -> Selection:
        """The selection without ``--sample N``, which must see all of these samples before it chooses."""
        is_open = self.draw is not None and self.draw.is_open
        return self._replace(draw=None, limit=None) if is_open else self

    def with_classes(self, read_classes: Callable[[], Sequence[str] | None]) -> Selection:
        """Return the selection with class names for the numbers in ``cls``. ``known`` reads the names from the set's
        manifest."""
        if self.where is None or b"cls" not in self.where.payload_fields:
            return self
        return self._replace(where=self.where.with_classes(read_classes() or ()))

    def using(self, names: frozenset[str]) -> Selection:
        """Return the selection that takes the values with these names from batches (:meth:`Value.using`)."""
        rule = self.value_rule
        if rule is not None and not rule.value.is_field:  # the text of a field is compared, not its number
            rule = rule._replace(value=rule.value.using(names))
        return self._replace(where=self.where and self.where.using(names), value_rule=rule)

    @property
    def changes_members(self) -> bool:
        """Whether fields are dropped, renamed or new."""
        return self.field_rule is not None

    @property
    def new_fields(self) -> Sequence[NewField]:
        """The fields of ``--column``."""
        return () if self.field_rule is None else self.field_rule.new_fields

    @property
    def new_names(self) -> list[Named]:
        """The names in new fields; some sample must have them."""
        return [] if self.field_rule is None else self.field_rule.new_names

    @property
    def makes_labels(self) -> bool:
        """Whether the field ``cls`` is new, so that the set's class names do not belong to it."""
        return any(new.field == b"cls" for new in self.new_fields)

    def new_payloads(self, sample: SampleAt) -> dict[bytes, bytes]:
        """Return the payloads of new fields, which replace fields of the same name. Raises DataError."""
        payloads = ((new.field, new.payload(sample)) for new in self.new_fields)
        return {field: payload for field, payload in payloads if payload is not None}

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads :meth:`apply` and :meth:`new_payloads` may read."""
        values = [
            self.where,
            self.value_rule and self.value_rule.value,
            *(new.value for new in self.new_fields),
        ]
        return frozenset[bytes]().union(*(value.payload_fields for value in values if value is not None))

    @property
    def reads_stdin(self) -> bool:
        """Whether a list of keys comes from standard input. A shard cannot be read from there then."""
        return "-" in self.files

    @property
    def files(self) -> tuple[str, ...]:
        """The addresses of all files of keys and values."""
        rules = [rule for rule in (self.key_rule, self.value_rule) if rule is not None]
        return tuple(file for rule in rules for file in rule.files)

    def new_state(self, on_error: OnError = "stop") -> SelectionState:
        """Return new counts. With ``on_error="skip"``, a sample that ``--where`` cannot decode is dropped."""
        state = SelectionState(on_error)
        state.done = self.limit == 0 or (self.span is not None and not self.span)
        return state

    def apply(
        self, batch: SampleBatch, shard: str, state: SelectionState, payload_of: PayloadOf | None = None
    ) -> list[int]:
        """Return the selected rows of ``batch`` in order. Pass the same ``state`` for all batches and shards.

        Raises DataError if ``--where`` cannot decode a payload, and if ``--rename`` would give a sample the same field
        twice.
        """
        state.done = state.done or state.kept == self.limit
        if state.done:
            return []
        if self.is_trivial:
            state.seen_samples += len(batch.keys)
            state.kept += len(batch.keys)
            state.count(batch, len(batch.keys))
            return list(range(len(batch.keys)))
        self._see_names(batch, state)
        rows, before = [], state.seen_samples
        for row in range(len(batch.keys)):
            state.seen_samples += 1
            reason = self._reason_against(batch, row, shard, state, payload_of)
            if reason is None:
                rows.append(row)
                state.kept += 1
                state.done = state.done or state.kept == self.limit
            else:
                state.dropped[reason] += 1
            if state.done:
                break
        state.count(batch, state.seen_samples - before)
        return rows

    def _see_names(self, batch: SampleBatch, state: SelectionState) -> None:
        """Remember names of a batch for hints about names that no sample has."""
        if any(rule is not None for rule in (self.field_rule, self.where, self.value_rule)):
            state.seen_names.fields.update(batch.fields)
        if self.key_rule is not None:
            exact = self.key_rule.exact
            missing = exact - state.matched_keys if len(exact) <= _FOLLOWED_AT_MOST else ()
            state.seen_names.see_keys(batch.keys, missing)

    def _reason_against(
        self, batch: SampleBatch, row: int, shard: str, state: SelectionState, payload_of: PayloadOf | None
    ) -> str | None:
        """The reason to drop the next sample, or None."""
        key = batch.keys[row]
        if self.key_rule is not None and not self.key_rule.matches(key, state.matched_keys):
            return "keys"
        if self.key_rule is not None and self.key_rule.leaves_out(key, state.matched_keys):
            return "not-keys"
        if self.where is not None or self.value_rule is not None:
            try:
                reason = self._reason_of_values(SampleAt(batch, row, shard, payload_of), state)
            except DataError as error:
                if state.on_error == "stop" or error.code != "undecodable":
                    raise
                return "undecodable"
            if reason is not None:
                return reason
        is_emptied = self.field_rule is not None and not self.plan_of(batch, row, shard)
        if is_emptied and not self.new_payloads(SampleAt(batch, row, shard, payload_of)):
            return "no-fields"
        if self.span is not None:
            place = state.matched
            state.matched += 1
            state.done = place + 1 >= self.span.stop
            if place not in self.span:
                return "slice"
        if self.draw is not None:
            rank = self.draw.rank(key)
            if not self.draw.takes(rank, state.ties):
                return "sample"
            state.ties += rank == self.draw.bound
        return None

    def _reason_of_values(self, sample: SampleAt, state: SelectionState) -> str | None:
        """The reason of ``--on`` or ``--where`` to drop a sample, or None. Raises DataError."""
        if (rule := self.value_rule) is not None:
            reason = rule.reason_against(sample)
            rule.value.look(state.seen_names)
            if reason is not None:
                return reason
        if self.where is None:
            return None
        holds = self.where.holds(sample)
        self.where.look(state.seen_names)
        return None if holds else "where"

    def member_plan(self, fields: tuple[bytes, ...]) -> MemberPlan:
        """Return the selected members of a sample with these ``fields``, as (place, new name), in the sample's order.

        Plans are cached, since a set has few lists of fields. Raises DataError ``duplicate-field``, without a place, if
        ``--rename`` gives the same name twice.
        """
        if self.field_rule is None:
            return tuple(enumerate(fields))
        return self.field_rule.plan(fields)

    def plan_of(self, batch: SampleBatch, row: int, shard: str) -> MemberPlan:
        """Return the :meth:`member_plan` of one sample of a batch. An error has the sample's place."""
        try:
            return self.member_plan(tuple(batch.fields[batch.firsts[row] : batch.firsts[row + 1]]))
        except DataError as error:
            sample = SampleAt(batch, row, shard)
            raise sample.error(error.message, error.code, hint=error.hint) from None

    @property
    def named(self) -> list[Named]:
        """The fields and places in JSON that some sample must have."""
        named = [] if self.field_rule is None else self.field_rule.named
        named = named if self.where is None else [*named, *self.where.named]
        return named if self.value_rule is None else [*named, *self.value_rule.value.named_for(" for --on")]

    def missing_names(self, state: SelectionState, named: Sequence[Named] = ()) -> list[MissingName]:
        """Return the names of the selection and of ``named`` that no sample has. Call it when everything was read.

        The list is empty if no sample was read. If reading ended early, a later sample may have a missing field. So a
        missing field is only a warning, and missing keys are not listed.
        """
        missing_names = []
        if state.seen_names.fields:
            missing_names = state.seen_names.absent([*self.named, *named])
        if state.done:
            text = (
                f" among the {state.seen_samples} that were read"
                if state.seen_samples != 1
                else " in the one that was read"
            )
            missing_names = [
                missing_name._replace(message=missing_name.message + text, needed=False)
                for missing_name in missing_names
            ]
        elif self.key_rule is not None and state.seen_names.keys:
            missing_names += self.key_rule.missing_names(state.matched_keys, state.seen_names)
        return missing_names if self.where is None else [*missing_names, *self.where.missing_names]

    def remarks(self, state: SelectionState) -> list[str]:
        """Return warnings, after everything was read, about keys in key files that no sample has, if other keys of
        these files were found."""
        if self.key_rule is None or state.done:
            return []
        rule, remarks = self.key_rule, []
        for keys, sources, may_be_all in (
            (rule.listed or {}, rule.sources, False),
            (rule.left_out or {}, rule.sources_left_out, True),
        ):
            unseen = [key for key in keys if key not in state.matched_keys]
            if unseen and (may_be_all or len(unseen) < len(keys)):
                named = listed([to_text(key) for key in unseen], ", ")
                noun = "key" if len(unseen) == 1 else "keys"
                remarks.append(f"{len(unseen)} {noun} of {' and '.join(sources)} not found: {named}")
        return remarks


_TRIVIAL = Selection()


def _draw(sample: str, seed: int) -> Draw:
    from wdscli.selection.draw import Draw

    return Draw.parse(sample, seed)


def _list_rules(
    keys: list[str],
    lists: tuple[str | Sequence[str] | None, str | Sequence[str] | None],
    on: str | None,
    near: int | None,
    read_set: ReadSet | None,
) -> tuple[KeySelection | None, ListedValues | None]:
    """Return the rules for keys and for values. The ``lists`` have values with ``on``, and keys without it."""
    if not keys and on is None and not any(lists):
        return None, None
    from wdscli.selection.listed import KeySelection, ListedValues

    if on is None:
        return KeySelection.parse(keys, *lists, read_set), None
    key_rule = KeySelection.parse(keys, None) if keys else None
    return key_rule, ListedValues.parse(on, near, lists, read_set)


def texts_of(text_or_texts: str | Iterable[str] | None) -> list[str]:
    """Return the values of a repeatable option as a list. The option may be missing."""
    return [text_or_texts] if isinstance(text_or_texts, str) else list(text_or_texts or ())


def _words(text_or_texts: str | Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Return the comma-separated names in a repeatable option."""
    texts = texts_of(text_or_texts)
    if not texts:
        return None
    words = tuple(word.strip().removeprefix(".") for text in texts for word in text.split(","))
    if not all(words):
        raise UsageError(f"{option} has an empty name", hint=f"{option} jpg,json")
    return words


def _where(text_or_texts: str | Sequence[str] | None) -> Value | None:
    """Return one expression. Several expressions are joined by ``and``."""
    texts = texts_of(text_or_texts)
    if not texts:
        return None
    from wdscli.selection.where import Value

    conditions = [Value(text) for text in texts]
    # Each expression was parsed alone, so its brackets are balanced. The line break ends a comment in it.
    return conditions[0] if len(conditions) == 1 else Value(" and ".join(f"({text}\n)" for text in texts))


def parse_span(text: str) -> range:
    """Parse ``A:B:STEP``. Each part may be missing.

    >>> parse_span("10:20"), parse_span("0:1000:100")
    (range(10, 20), range(0, 1000, 100))
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) not in (2, 3) or not all(
        part == "" or (part.isascii() and part.isdigit()) for part in parts
    ):
        raise UsageError(
            f'not a slice: "{text}"', hint="A:B:STEP with whole numbers, each optional: 0:1000, ::10"
        )
    start, stop, step = [*parts, ""][:3]
    if step and not whole_number(step):
        raise UsageError(f'not a slice: "{text}": its step is zero')
    return range(whole_number(start), whole_number(stop) if stop else _NO_END, whole_number(step or "1"))


MemberPlan = tuple[tuple[int, bytes], ...]
_PLANS_REMEMBERED = 1 << 12


Renames: TypeAlias = dict[bytes, tuple[bytes, ...]]
"""For each new name, the old names. The first of them that a sample has is renamed."""
FIELD_RULE = {
    "keep": ([str, ...], None),
    "drop": [str, ...],
    "rename": [[str, [str, ...]], ...],
    "column?": [str, ...],
}
"""The form of a rule in JSON (:mod:`wdscli.schema`)."""


class FieldRule:
    """The rule that decides which members of a sample are kept, and their new names."""

    def __init__(
        self,
        keep: tuple[str, ...] | None,
        drop: tuple[str, ...],
        renames: Renames,
        new_fields: tuple[NewField, ...] = (),
    ) -> None:
        self.keep = keep
        self.new_fields = new_fields
        self.drop = drop
        self.renames = renames
        self._sources = set(chain.from_iterable(renames.values()))
        self.plan = lru_cache(_PLANS_REMEMBERED)(self._make_plan)
        """See :meth:`Selection.member_plan`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldRule, (self.keep, self.drop, self.renames, self.new_fields)

    @classmethod
    def parse(
        cls,
        fields: str | Sequence[str] | None,
        drop: str | Sequence[str] | None,
        renames: Sequence[str],
        columns: Sequence[str] = (),
    ) -> FieldRule | None:
        """Make a rule from options; None keeps all fields. Raises UsageError."""
        keep, leave = _words(fields, "--fields"), _words(drop, "--drop")
        if keep is None and leave is None and not renames and not columns:
            return None
        pairs = list(map(parse_rename, renames))
        for names in ([new for new, _ in pairs], [old for _, olds in pairs for old in olds]):
            twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
            if twice is not None:
                raise UsageError(
                    f'--rename has "{to_text(twice)}" twice on one side',
                    hint="alternatives go into one option: --rename 'image=jpg;png'",
                )
        return cls(keep, leave or (), dict(pairs), _new_fields(columns))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any] | None) -> FieldRule | None:
        """Make a rule from the result of :meth:`plain`. None stays None. Raises ValueError for a new name that is no
        name of a field."""
        if plain is None:
            return None
        for new, _ in plain["rename"]:
            if not new or "/" in new or "\0" in new:
                raise ValueError(f"a field is renamed to {new!r}, which is no name of a field")
        renames = {to_bytes(new): tuple(map(to_bytes, olds)) for new, olds in plain["rename"]}
        keep = None if plain["keep"] is None else tuple(plain["keep"])
        return cls(keep, tuple(plain["drop"]), renames, _new_fields(plain.get("column", ())))

    def plain(self) -> dict[str, Any]:
        """Return the rule as an object for JSON."""
        return {
            "keep": None if self.keep is None else list(self.keep),
            "drop": list(self.drop),
            "rename": [[to_text(new), [*map(to_text, olds)]] for new, olds in self.renames.items()],
            **({"column": [new.text for new in self.new_fields]} if self.new_fields else {}),
        }

    @property
    def named(self) -> list[Named]:
        """The names that some sample must have."""
        words = [(word, " for --fields") for word in self.keep or ()]
        words += [(word, " for --drop") for word in self.drop]
        named = [Named(word, purpose, (word, *self._olds_of(word))) for word, purpose in words]
        for olds in self.renames.values():
            names = tuple(map(to_text, olds))
            named.append(Named(";".join(names), " for --rename", names))
        return named + self.new_names

    @property
    def new_names(self) -> list[Named]:
        """The names in new fields."""
        return [name for new in self.new_fields for name in new.value.named_for(" for --column")]

    def _olds_of(self, word: str) -> list[str]:
        """Return the old names of fields with a new name that matches a word."""
        renames = self.renames.items()
        return [to_text(old) for new, olds in renames if is_like(to_text(new), word) for old in olds]

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
                    hint=f"drop the other field (--drop {name}) or rename it too (--rename)",
                )
        return plan

    def _renamed(self, fields: tuple[bytes, ...]) -> list[bytes]:
        names = list(fields)
        for new, olds in self.renames.items():
            old = next((old for old in olds if old in fields), None)
            if old is not None:
                names[fields.index(old)] = new
        return names

    def _stays(self, fields: tuple[bytes, ...], place: int, new: bytes) -> bool:
        names = {to_text(fields[place])}
        if new not in self._sources and new not in fields:
            names.add(to_text(new))

        def are_any(patterns: tuple[str, ...]) -> bool:
            return any(is_like(name, pattern) for name in names for pattern in patterns)

        return (self.keep is None or are_any(self.keep)) and not are_any(self.drop)


def _new_fields(texts: Sequence[str]) -> tuple[NewField, ...]:
    if not texts:
        return ()
    from wdscli.selection.where import NewField

    return tuple(map(NewField.parse, texts))


def parse_rename(text: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the new name and the old names of a renaming. Raises UsageError.

    >>> parse_rename("image=jpg;png")
    (b'image', (b'jpg', b'png'))
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
            f'--rename: "{names[0]}" is not a field name: it must not contain a slash or NUL'
        ) from None
    return raw[0], tuple(raw[1:])
