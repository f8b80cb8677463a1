"""Requirements on names and fields: those of every reader, and further ones of four readers.

What it is: :func:`judge_fields` finds problems in a sample's fields that concern every reader. :class:`Judge` looks
for violations of :data:`~wdscli.verify.findings.DEMANDS` in the columns of one shard. How: samples share few lists of
fields, so the caller has each list judged once and keeps the result. The requirements come from the readers' sources
(webdataset 1.0, Hugging Face datasets 5.2, NVIDIA DALI 2.4 and its ``wds2idx``, Megatron-Energon 7.4). Those on a
single name or field are rows of two tables, :data:`MEMBER_RULES` (reported for each member) and :data:`FIELD_RULES`
(once per shard for each field); the rest are methods.

It must not know how findings are shown, nor read payloads: :mod:`~wdscli.verify.hf_values` reads those that Hugging
Face parses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from wdscli.codecs.kinds import find
from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import SampleBatch, is_dunder
from wdscli.tar import GLOBAL, KIND_MASK, REGULAR, ByteSource, Window
from wdscli.verify.findings import Ledger
from wdscli.verify.hf_values import HF_FIRST_SAMPLES, HfValues, Type

Fields = tuple[bytes, ...]
PROFILES = ("webdataset", "hf", "dali", "energon")
MAX_SEEN_FIELDS = 1 << 14
"""Fields that are remembered, so that a shard of a million different fields stays small in memory."""

_RESERVED = (b"__key__", b"__url__", b"__local_path__")
_BLANKS = (b" ", b"\t", b"\r", b"\v", b"\f", b"\n")
_COMPRESSED = frozenset((b"gz", b"bz2", b"xz", b"lz4", b"zst"))


class Problem(NamedTuple):
    """A problem with the fields of a sample. ``place`` is the member's place in the sample; None when the problem
    concerns the whole sample."""

    code: str
    message: str
    place: int | None


def judge_fields(fields: Fields, required: Fields) -> list[Problem]:
    """The problems with the fields of a sample, in the order of its members."""
    problems = [
        Problem("missing-field", f'the sample has no field "{to_text(field)}"', None)
        for field in required
        if field not in fields
    ]
    for place, other in _alike(fields):
        field = to_text(fields[place])
        if fields[place] in fields[:place]:
            problems.append(Problem("duplicate-field", f'the sample has the field "{field}" twice', place))
        else:
            message = f'the fields "{to_text(other)}" and "{field}" differ only in case'
            problems.append(Problem("case-collision", message, place))
    return problems


def _alike(fields: Fields) -> Iterator[tuple[int, bytes]]:
    """The places of fields that repeat an earlier one, perhaps in another case, each with that earlier field."""
    first: dict[bytes, int] = {}
    for place, field in enumerate(fields):
        before = first.setdefault(field.lower(), place)
        if before != place:
            yield place, fields[before]


class MemberRule(NamedTuple):
    """A requirement on single members. ``breaks`` takes a name and its kind. It is called only for windows whose
    names contain one of ``marks``; in them a NUL precedes each name."""

    code: str
    message: str
    marks: tuple[bytes, ...]
    breaks: Callable[[bytes, int], bool]


def _is_skipped(name: bytes, kind: int) -> bool:
    return kind == REGULAR and is_dunder(name)


MEMBER_RULES = (
    MemberRule("webdataset-skipped", "webdataset skips the member", (b"__",), _is_skipped),
    MemberRule("energon-skipped", "Energon skips the member", (b"__",), _is_skipped),
    MemberRule(
        "hf-skipped",
        "Hugging Face datasets skips the member",
        (b"__", b"/.", b"\0."),
        lambda name, kind: kind == REGULAR and name[name.rfind(b"/") + 1 :].startswith((b".", b"__")),
    ),
    MemberRule(
        "dali-blank",
        "DALI: the name has a blank",
        _BLANKS,
        lambda name, _: len(name.split()) > 1 or name.strip() != name,
    ),
)


class FieldRule(NamedTuple):
    """A requirement on fields, in any sample. The message may contain ``{field}`` and ``{lower}``, the field in lower
    case."""

    code: str
    message: str
    breaks: Callable[[bytes], bool]


def _is_raw_for_hf(field: bytes) -> bool:
    parts = field.lower().split(b".")
    if len(parts) > 1 and parts[-1] in _COMPRESSED:
        parts.pop()
    return not find(to_text(parts[-1])).hf


FIELD_RULES = (
    FieldRule(
        "webdataset-reserved-field",
        "webdataset reserves the field's name",
        lambda field: field in _RESERVED,
    ),
    FieldRule(
        "webdataset-upper-case",
        'webdataset returns the field "{field}" as "{lower}"',
        lambda field: field != field.lower(),
    ),
    FieldRule(
        "hf-raw-field", 'Hugging Face datasets returns the field "{field}" as raw bytes', _is_raw_for_hf
    ),
)


def parse_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """The chosen profiles, each once. Raises UsageError."""
    for name in names:
        if name not in PROFILES:
            raise UsageError(f'no such profile: "{name}"', hint="choose from " + ", ".join(PROFILES))
    return tuple(dict.fromkeys(names))


class Judge:
    """Checks one shard for ``profiles``. ``hf_types`` are the types inside JSON of the set's first shard; None for
    that shard itself."""

    def __init__(
        self,
        ledger: Ledger,
        profiles: Sequence[str],
        source: ByteSource,
        hf_types: dict[bytes, Type] | None,
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
        """The problems with a list of fields, for each sample that has it."""
        problems = []
        if "webdataset" in self._profiles:
            for place, other in _alike(names):
                if other != names[place]:
                    both = f'"{to_text(other)}" and "{to_text(names[place])}"'
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
        at = start - window.base + 156
        if window.columns.flags[row] & GLOBAL:
            return True
        if 0 <= at < len(window.buffer):
            typeflag = window.buffer[at : at + 1]
        else:
            typeflag = self._source.read_at(start + 156, 1) if self._source.seekable else b""
        return typeflag in (b"x", b"g")

    def samples(self, batch: SampleBatch) -> None:
        """Check whole samples: problems that are reported once per shard for each field."""
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
