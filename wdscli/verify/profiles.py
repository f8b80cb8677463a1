"""What is demanded of names and fields: by any reader, and by four of them beyond that.

What it is: :func:`judge_fields`, which says what is wrong with the fields of a sample whoever reads it, and
:class:`Judge`, which looks for breaches of :data:`~wdscli.verify.findings.DEMANDS` in the columns of one shard. How:
samples share few lists of fields, so each list is judged once and the verdict is kept by whoever asks. The demands were
read in the readers' sources (webdataset 1.0, Hugging Face datasets 5.2, NVIDIA DALI 2.4 and its ``wds2idx``,
Megatron-Energon 7.4). Those about a name or a field as such are rows of two tables, :data:`MEMBER_RULES` (reported for
each member) and :data:`FIELD_RULES` (once a shard for each field); the rest are methods.

It must not know how findings are shown, nor read payloads: :mod:`~wdscli.verify.hf_values` reads those that Hugging
Face parses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import SampleBatch, is_dunder
from wdscli.tar import GLOBAL, KIND_MASK, REGULAR, ByteSource, Window
from wdscli.verify.findings import Ledger
from wdscli.verify.hf_values import HF_FIRST_SAMPLES, HfValues, Type

Fields = tuple[bytes, ...]
PROFILES = ("webdataset", "hf", "dali", "energon")
MAX_SEEN_FIELDS = 1 << 14
"""A shard of a million different fields is not remembered whole."""

_RESERVED = (b"__key__", b"__url__", b"__local_path__")
_KNOWN_TO_HF = frozenset(
    b"""txt text transcript cls cls2 index inx id json jsn ten tb mp msg npy npz cbor pth
    blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib h5 hdf png apng jp2 j2k jpc jpf jpx
    j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb
    vda vst webp wmf emf xbm xpm aiff au avr caf flac htk svx mat4 mat5 mpc2k ogg paf pvf raw rf64 sd2 sds ircam voc
    w64 wav nist wavex wve xi mp3 opus mkv mp4 avi mov glb ply stl""".split()
)
_BLANKS = (b" ", b"\t", b"\r", b"\v", b"\f", b"\n")
_COMPRESSED = frozenset((b"gz", b"bz2", b"xz", b"lz4", b"zst"))


class Problem(NamedTuple):
    """Something wrong with the fields of a sample. ``place`` is the member's place in the sample, or None when it is
    the sample as a whole that is wrong."""

    code: str
    message: str
    place: int | None


def judge_fields(fields: Fields, required: Fields) -> list[Problem]:
    """What is wrong with the fields of a sample, in its order of members."""
    problems = [
        Problem("missing-field", f'the sample has no field "{to_text(field)}"', None)
        for field in required
        if field not in fields
    ]
    for place, other in _alike(fields):
        field = to_text(fields[place])
        if fields[place] in fields[:place]:
            problems.append(
                Problem("duplicate-field", f'the field "{field}" comes twice in one sample', place)
            )
        else:
            message = f'the fields "{to_text(other)}" and "{field}" differ in case only'
            problems.append(Problem("case-collision", message, place))
    return problems


def _alike(fields: Fields) -> Iterator[tuple[int, bytes]]:
    """The places of fields that an earlier one is like, but perhaps for its case, and the first such."""
    first: dict[bytes, int] = {}
    for place, field in enumerate(fields):
        before = first.setdefault(field.lower(), place)
        if before != place:
            yield place, fields[before]


class MemberRule(NamedTuple):
    """A demand on single members. ``breaks`` takes a name and its kind, and is asked where any of ``marks`` is in the
    names of a window; a NUL stands before each name there."""

    code: str
    message: str
    marks: tuple[bytes, ...]
    breaks: Callable[[bytes, int], bool]


def _is_skipped(name: bytes, kind: int) -> bool:
    return kind == REGULAR and is_dunder(name)


MEMBER_RULES = (
    MemberRule("webdataset-skipped", "webdataset passes over the member", (b"__",), _is_skipped),
    MemberRule("energon-skipped", "energon passes over the member", (b"__",), _is_skipped),
    MemberRule(
        "hf-skipped",
        "Hugging Face datasets passes over the member",
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
    """A demand on fields, whatever the sample. The message may have ``{field}`` and ``{lower}``, the same in lower
    case."""

    code: str
    message: str
    breaks: Callable[[bytes], bool]


def _is_raw_for_hf(field: bytes) -> bool:
    parts = field.lower().split(b".")
    if len(parts) > 1 and parts[-1] in _COMPRESSED:
        parts.pop()
    return parts[-1] not in _KNOWN_TO_HF


FIELD_RULES = (
    FieldRule(
        "webdataset-reserved-field",
        "webdataset: the field's name is reserved",
        lambda field: field in _RESERVED,
    ),
    FieldRule(
        "webdataset-upper-case",
        'webdataset: the field "{field}" is given as "{lower}"',
        lambda field: field != field.lower(),
    ),
    FieldRule(
        "hf-raw-field", 'Hugging Face datasets: the field "{field}" is given as raw bytes', _is_raw_for_hf
    ),
)


def parse_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """The profiles asked for, each once. Raises UsageError."""
    for name in names:
        if name not in PROFILES:
            raise UsageError(f'no such profile: "{name}"', hint="choose from " + ", ".join(PROFILES))
    return tuple(dict.fromkeys(names))


class Judge:
    """Looks at one shard for ``profiles``. ``hf_types`` are the types inside JSON of the set's first shard; None for
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
        """What is wrong with the fields of a sample, for each sample that has them."""
        problems = []
        if "webdataset" in self._profiles:
            for place, other in _alike(names):
                if other != names[place]:
                    both = f'"{to_text(other)}" and "{to_text(names[place])}"'
                    message = f"webdataset: the fields {both} are one in lower case"
                    problems.append(Problem("webdataset-case-collision", message, place))
        if "dali" in self._profiles:
            if self._component is None:
                self._component = frozenset(names)
            for field in sorted(self._component.symmetric_difference(names)):
                message = f'DALI: the samples of this shard do not all have the component "{to_text(field)}"'
                problems.append(Problem("dali-missing-component", message, None))
        return problems

    def members(self, window: Window) -> None:
        """Names and headers of a window's members."""
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
        """Whole samples: what is reported once a shard for each field."""
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
        """A field seen for the first time."""
        name, lower = to_text(field), to_text(field.lower())
        for rule in self._field_rules:
            if rule.breaks(field):
                message = rule.message.format(field=name, lower=lower)
                self._ledger.add(rule.code, message, offset=start, member=field)
        if self._looks_at_first and not any(field in fields for fields in self._first_fields):
            message = f'Hugging Face datasets: the field "{name}" is in none of the first five samples'
            self._ledger.add("hf-dropped-field", message, offset=start, member=field)

    def finish(self, *, samples: int, is_compressed: bool) -> None:
        """What only the whole shard tells."""
        if "energon" in self._profiles and not samples:
            self._ledger.add("energon-empty-shard", "Energon: the shard has no samples")
        if self._looks_at_first and not samples:
            message = "Hugging Face datasets: the first shard has no samples"
            self._ledger.add("hf-empty-shard", message)
        for profile in ("dali", "energon"):
            if profile in self._profiles and is_compressed:
                self._ledger.add(f"{profile}-compressed", f"{profile}: the shard is compressed")
