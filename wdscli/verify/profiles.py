"""What four other readers demand of a shard, beyond what any reader does.

What it is: one table of demands, each with the reader's name in its code, and a :class:`Judge` that looks for breaches
of them in the columns of one shard. How: the demands were read in those readers' sources (webdataset 1.0, Hugging Face
datasets 5.2, NVIDIA DALI 2.4 and its ``wds2idx``, Megatron-Energon 7.4). Most are about a field or a name as such and
are told once a shard; what breaks single samples is told for each.

It must not know how findings are shown, nor read payloads but the few small ones that Hugging Face parses as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import SampleBatch, is_dunder
from wdscli.tar import GLOBAL, KIND_MASK, REGULAR, ByteSource, Window
from wdscli.verify.findings import Kind, Ledger
from wdscli.verify.names import Fields, Problem

PROFILES = ("webdataset", "hf", "dali", "energon")

DEMANDS: dict[str, Kind] = {
    "webdataset-upper-case": Kind(
        "warning",
        "webdataset gives a field in lower case: the code must ask for it so",
        "write the field in lower case",
    ),
    "webdataset-case-collision": Kind(
        "error",
        "webdataset stops at two fields of a sample that differ in case only",
        "rename one of the fields",
    ),
    "webdataset-reserved-field": Kind(
        "error", "webdataset keeps __key__, __url__ and __local_path__ for itself", "rename the field"
    ),
    "webdataset-skipped": Kind(
        "warning", "webdataset passes over names of the form __x__", "rename the member"
    ),
    "hf-mixed-fields": Kind(
        "error",
        "Hugging Face datasets wants the same fields in the first five samples",
        "put samples that have every field first",
    ),
    "hf-dropped-field": Kind(
        "warning",
        "Hugging Face datasets drops a field that the first five samples lack",
        "put samples that have every field first, or give load_dataset its features",
    ),
    "hf-not-an-integer": Kind(
        "error",
        "Hugging Face datasets parses cls, cls2, index, inx and id as integers",
        "rename the field, or mend it",
    ),
    "hf-raw-field": Kind(
        "warning",
        "Hugging Face datasets knows no feature for the field and gives raw bytes",
        "decode it in your own code",
    ),
    "hf-skipped": Kind(
        "warning", 'Hugging Face datasets passes over files that begin with "." or "__"', "rename the member"
    ),
    "dali-pax-header": Kind(
        "error",
        "DALI cannot read pax headers, unless it has an index that leads past them",
        "write the shards again with --long-names gnu, or make an index with `wds index --dialect dali`",
    ),
    "dali-blank": Kind("error", "a DALI index cannot hold names with blanks", "rename the member"),
    "dali-missing-component": Kind(
        "warning",
        "DALI gives an empty tensor for a component that a sample lacks",
        "choose missing_component_behavior, or make samples whole",
    ),
    "dali-compressed": Kind(
        "error", "DALI reads plain tar only", "decompress the shard: `wds cat SHARD -o OUT.tar`"
    ),
    "energon-empty-shard": Kind(
        "error", "Energon refuses a shard without samples", "remove the shard from the set"
    ),
    "energon-compressed": Kind(
        "error",
        "Energon's index points into the plain tar",
        "decompress the shard: `wds cat SHARD -o OUT.tar`",
    ),
    "energon-skipped": Kind("warning", "Energon passes over names of the form __x__", "rename the member"),
}

_RESERVED = (b"__key__", b"__url__", b"__local_path__")
_INTEGERS = frozenset((b"cls", b"cls2", b"index", b"inx", b"id"))
_KNOWN_TO_HF = frozenset(
    b"""txt text transcript cls cls2 index inx id json jsn ten tb mp msg npy npz cbor pth
    blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib h5 hdf png apng jp2 j2k jpc jpf jpx
    j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb
    vda vst webp wmf emf xbm xpm aiff au avr caf flac htk svx mat4 mat5 mpc2k ogg paf pvf raw rf64 sd2 sds ircam voc
    w64 wav nist wavex wve xi mp3 opus mkv mp4 avi mov glb ply stl""".split()
)
_BLANKS = (b" ", b"\t", b"\r", b"\v", b"\f")
_COMPRESSED = frozenset((b"gz", b"bz2", b"xz", b"lz4", b"zst"))
FIRST_SAMPLES = 5


def parse_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """The profiles asked for, each once. Raises UsageError."""
    for name in names:
        if name not in PROFILES:
            raise UsageError(f'no such profile: "{name}"', hint="choose from " + ", ".join(PROFILES))
    return tuple(dict.fromkeys(names))


class Judge:
    """Looks at one shard for ``profiles``. ``first_shard`` says whether the set begins with it."""

    def __init__(
        self, ledger: Ledger, profiles: Sequence[str], source: ByteSource, *, first_shard: bool
    ) -> None:
        self._ledger = ledger
        self._profiles = frozenset(profiles)
        self._source = source
        self._first_shard = first_shard
        self._seen: set[bytes] = set()
        self._first_fields: list[frozenset[bytes]] = []
        self._component: frozenset[bytes] | None = None

    def fields(self, names: Fields) -> list[Problem]:
        """What is wrong with the fields of a sample, for each sample that has them."""
        problems = []
        if "webdataset" in self._profiles:
            problems += _case_collisions(names)
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
        joined = b"\n".join(names)
        if "dali" in self._profiles:
            self._dali_names(window, joined)
            for row, (start, offset, flag) in enumerate(zip(starts, offsets, flags)):
                if offset - start > 512 or flag & GLOBAL:
                    self._dali_header(window, row)
        if b"__" in joined or b"/." in joined or names[:1] == [b"."]:
            self._skipped(window)
        if "hf" in self._profiles:
            self._hf_numbers(window)

    def _dali_names(self, window: Window, joined: bytes) -> None:
        names, starts = window.columns.names, window.columns.starts
        if any(blank in joined for blank in _BLANKS) or joined.count(b"\n") >= max(1, len(names)):
            for name, start in zip(names, starts):
                if len(name.split()) > 1 or name.strip() != name:
                    self._add("dali-blank", "DALI: the name has a blank", start, name)

    def _dali_header(self, window: Window, row: int) -> None:
        columns = window.columns
        start, name = columns.starts[row], columns.names[row]
        at = start - window.base + 156
        if columns.flags[row] & GLOBAL:
            typeflag = b"g"
        elif 0 <= at < len(window.buffer):
            typeflag = window.buffer[at : at + 1]
        else:
            typeflag = self._source.read_at(start + 156, 1) if self._source.seekable else b""
        if typeflag in (b"x", b"g"):
            self._add("dali-pax-header", "DALI: the member has a pax header", start, name)

    def _skipped(self, window: Window) -> None:
        names, starts, _, _, flags = window.columns
        for name, start, flag in zip(names, starts, flags):
            if flag & KIND_MASK != REGULAR:
                continue
            if is_dunder(name):
                for profile in ("webdataset", "energon"):
                    if profile in self._profiles:
                        self._add(f"{profile}-skipped", f"{profile} passes over the member", start, name)
            base = name[name.rfind(b"/") + 1 :]
            if "hf" in self._profiles and base.startswith((b".", b"__")):
                self._add("hf-skipped", "Hugging Face datasets passes over the member", start, name)

    def _hf_numbers(self, window: Window) -> None:
        columns = window.columns
        for row, name in enumerate(columns.names):
            extension = name[name.rfind(b".") + 1 :].lower()
            if extension not in _INTEGERS or columns.flags[row] & KIND_MASK != REGULAR:
                continue
            if columns.sizes[row] > 64 or not _is_integer(window.payload(row)):
                message = "Hugging Face datasets: the payload is not an integer"
                self._add("hf-not-an-integer", message, columns.starts[row], name)

    def samples(self, batch: SampleBatch) -> None:
        """Whole samples: what is told once a shard for each field."""
        if "hf" in self._profiles and self._first_shard and len(self._first_fields) < FIRST_SAMPLES:
            self._hf_first(batch)
        for field in set(batch.fields) - self._seen:
            # A shard of a million different fields is not remembered whole.
            if len(self._seen) < 1 << 14:
                self._seen.add(field)
            place = batch.fields.index(field)
            self._field(field, batch.starts[place])

    def _hf_first(self, batch: SampleBatch) -> None:
        for row in range(min(len(batch.keys), FIRST_SAMPLES - len(self._first_fields))):
            fields = frozenset(batch.fields[batch.firsts[row] : batch.firsts[row + 1]])
            self._first_fields.append(fields)
            if fields != self._first_fields[0]:
                message = (
                    "Hugging Face datasets: one of the first five samples has other fields than the first"
                )
                self._add("hf-mixed-fields", message, batch.start(row), batch.keys[row])

    def _field(self, field: bytes, start: int) -> None:
        """A field seen for the first time."""
        if "webdataset" in self._profiles:
            if field in _RESERVED:
                self._add(
                    "webdataset-reserved-field", "webdataset: the field's name is reserved", start, field
                )
            if field != field.lower():
                message = f'webdataset: the field "{to_text(field)}" is given as "{to_text(field.lower())}"'
                self._add("webdataset-upper-case", message, start, field)
        if "hf" in self._profiles:
            self._hf_field(field, start)

    def _hf_field(self, field: bytes, start: int) -> None:
        if self._first_shard and not any(field in fields for fields in self._first_fields):
            message = (
                f'Hugging Face datasets: the field "{to_text(field)}" is in none of the first five samples'
            )
            self._add("hf-dropped-field", message, start, field)
        parts = field.lower().split(b".")
        if len(parts) > 1 and parts[-1] in _COMPRESSED:
            parts.pop()
        if parts[-1] not in _KNOWN_TO_HF:
            message = f'Hugging Face datasets: the field "{to_text(field)}" is given as raw bytes'
            self._add("hf-raw-field", message, start, field)

    def finish(self, *, samples: int, is_compressed: bool) -> None:
        """What only the whole shard tells."""
        if "energon" in self._profiles and not samples:
            self._ledger.add("energon-empty-shard", "Energon: the shard has no samples")
        for profile in ("dali", "energon"):
            if profile in self._profiles and is_compressed:
                self._ledger.add(f"{profile}-compressed", f"{profile}: the shard is compressed")

    def _add(self, code: str, message: str, offset: int, member: bytes) -> None:
        self._ledger.add(code, message, offset=offset, member=to_text(member))


def _case_collisions(names: Fields) -> list[Problem]:
    seen: dict[bytes, bytes] = {}
    problems = []
    for place, field in enumerate(names):
        other = seen.setdefault(field.lower(), field)
        if other != field:
            message = (
                f'webdataset: the fields "{to_text(other)}" and "{to_text(field)}" are one in lower case'
            )
            problems.append(Problem("webdataset-case-collision", message, place))
    return problems


def _is_integer(payload: bytes) -> bool:
    try:
        int(payload)
    except ValueError:
        return False
    return True
