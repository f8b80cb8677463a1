"""This module turns columns of files into samples: it sorts, groups, checks, labels, selects and orders them, and makes
new keys.

The columns do not change; arrays of file numbers refer to them. A file's row sorts by (key, field), so grouping is one
pass. Blocks of some ten thousand rows are sorted and then merged, so that only these rows are Python objects at the
same time.

For ``--on-duplicate``, files with the same key are one sample if no field is repeated. If a field is repeated, the
files of each source (a folder, a row of a table) stay together. If the sample before has none of their fields, they are
added to it; otherwise they are a new sample. The first sample keeps the key. For ``--on-duplicate list``, a table
writes each value of a JSON field as a list with one element, and :func:`in_lists` joins the lists of a sample.

This module does not read or write anything.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from wdscli.arrays import I64, U8, numpy
from wdscli.codecs.cells import is_json
from wdscli.create.files import (
    SEPARATOR,
    FileColumns,
    Files,
    Inline,
    Place,
    describe_place,
    is_value,
    numbers_of,
)
from wdscli.create.left_out import INCOMPLETE, LeftOut, Unit
from wdscli.create.payloads import payload_at
from wdscli.errors import DataError
from wdscli.ordering import rank_places
from wdscli.plan.names import Rekey
from wdscli.plan.plan import DUPLICATE_KEY
from wdscli.plan.request import OnDuplicate
from wdscli.samples.keys import KeySet
from wdscli.selection.named import Named, SeenNames
from wdscli.tar import Form, build_header, core
from wdscli.text import to_bytes, to_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS_TOGETHER = 1 << 10
_FILES_TOGETHER = 1 << 16
LABEL = b"cls"
REKEY_NAMES = ("index", "n", "key")
"""The names that a ``--rekey`` format for files may contain."""
DEFAULT_REKEY = "{key}-{index:09d}"
"""The format of ``--on-duplicate rekey`` without ``--rekey``."""
_KEYS_TOGETHER = 1 << 10
_NUMBERED = re.compile(rb"[0-9]{2}")
_NEAR_SAMPLES = 50


class Samples(NamedTuple):
    """Samples made of ``files``. ``order`` has file numbers. Sample ``i`` has the numbers from ``order[firsts[i]]`` to
    before ``order[firsts[i + 1]]``. ``places[i]`` is its place among all samples found, before any sample was left
    out."""

    files: Files
    order: array[int]
    firsts: array[int]
    places: array[int]

    @property
    def total(self) -> int:
        return len(self.places)

    def columns(self) -> Iterator[FileColumns]:
        """Yield the files in order as columns, some thousand files at a time."""
        for first in range(0, len(self.order), _FILES_TOGETHER):
            yield self.files.gather(self.order[first : first + _FILES_TOGETHER])

    def key(self, sample: int) -> bytes:
        return self.files.row(self.order[self.firsts[sample]]).partition(SEPARATOR)[0]

    def members(self, sample: int) -> array[int]:
        """Return the numbers of a sample's files."""
        return self.order[self.firsts[sample] : self.firsts[sample + 1]]

    def fields(self, sample: int) -> list[bytes]:
        return [_field(self.files, file) for file in self.members(sample)]


def sorted_numbers(files: Files) -> array[int]:
    """Return the numbers of all files, sorted bytewise by row. Files with equal rows stay in their order."""
    count = len(files)
    packed = None if core.CORE is None else core.CORE.order(files.blocks())
    if packed is not None:
        return array("I", packed)
    blocks: list[array[int]] = []
    for low, rows in files.all_rows():
        block = sorted(range(len(rows)), key=rows.__getitem__)
        blocks.append(numbers_of((low + position for position in block), count))
    order = numbers_of((0,), count) * count
    for place, (_, file) in enumerate(merge(*[_with_rows(files, block) for block in blocks])):
        order[place] = file
    return order


def _with_rows(files: Files, numbers: array[int]) -> Iterator[tuple[bytes, int]]:
    for first in range(0, len(numbers), _ROWS_TOGETHER):
        block = numbers[first : first + _ROWS_TOGETHER]
        yield from zip(map(files.row, block), block)


def group(files: Files, *, without: Collection[int] = (), twice: list[int] | None = None) -> Samples:
    """Sort the files bytewise by key and field, and find the samples. The files ``without`` are left out. Raises
    DataError for a repeated field. If ``twice`` is given, it collects the numbers of such samples instead."""
    order = sorted_numbers(files)
    if without:
        order = numbers_of((file for file in order if file not in without), len(files))
    heads: U8 = numpy.empty(len(order), numpy.uint8)
    for first in range(0, len(order), _FILES_TOGETHER):
        # Compare the first row with the last row before.
        shared = min(first, 1)
        numbers = numpy.array(order[first - shared : first + _FILES_TOGETHER], numpy.int64)
        heads[first : first + _FILES_TOGETHER] = numpy.frombuffer(files.heads(numbers), numpy.uint8)[shared:]
    firsts, repeated = numpy.flatnonzero(heads == 1), numpy.flatnonzero(heads == 2)
    if len(repeated) and twice is None:
        position = int(repeated[0])
        name = to_text(files.row(order[position]).replace(SEPARATOR, b"."))
        raise _twice(name, files, order[position - 1], order[position])
    if twice is not None:
        twice += numpy.unique(firsts.searchsorted(repeated, side="right") - 1).tolist()
    places = numbers_of(numpy.arange(len(firsts)), len(firsts))
    return Samples(files, order, numbers_of(numpy.append(firsts, len(order)), len(order) + 1), places)


def _twice(name: str, files: Files, first: int, second: int) -> DataError:
    """Return the error for a repeated field, by the numbers of its files."""
    places = files.place(first), files.place(second)
    message = f'"{name}" comes twice: from {describe_place(places[0])} and from {describe_place(places[1])}'
    if all(map(is_value, places)) or (first >= files.first_listed and places[0] == places[1]):
        message = f'"{name}" comes twice in the lists and tables'
    hint = "name the field of one folder: wds create images mask.png=masks; "
    hint += "--on-duplicate rekey keeps both as separate samples"
    if first >= files.first_listed:
        hint = (
            "--on-duplicate list makes lists in JSON fields, skip takes the first row, rekey gives new keys; "
        )
        hint += "--rekey '{COLUMN!k}_{index:05d}' gives each row its own key"
    elif second >= files.first_listed:
        hint = "use --on-duplicate skip or rekey; `wds create --help` explains them"
    return DataError(message, code="duplicate-field", hint=hint)


def dotted_names(samples: Samples) -> str:
    """Return a warning if the files of the largest sample have names with dots, such as time stamps and DICOM UIDs:
    their fields have numbers and one suffix, are no plain counters (0.jpg, 1.jpg), and no other sample has them."""
    sizes = numpy.diff(numpy.asarray(samples.firsts))
    if not len(sizes) or (largest := int(sizes.argmax())) < 0 or sizes[largest] < 2:
        return ""
    files = samples.files
    numbers = samples.members(largest)
    by_suffix: dict[bytes, list[bytes]] = {}
    for number, field in zip(numbers, samples.fields(largest)):
        middle, dot, suffix = field.rpartition(b".")
        if dot and number < files.first_listed and _NUMBERED.search(middle):
            by_suffix.setdefault(suffix, []).append(middle)
    for suffix, middles in by_suffix.items():
        digits = [
            int(digits) if (digits := middle.rpartition(b".")[2]).isdigit() else -1 for middle in middles
        ]
        is_counter = sorted(digits) in (list(range(len(digits))), list(range(1, len(digits) + 1)))
        neighbours = range(max(0, largest - _NEAR_SAMPLES), min(samples.total, largest + _NEAR_SAMPLES))
        shared = {field for sample in neighbours if sample != largest for field in samples.fields(sample)}
        if (
            len(middles) > 1
            and not is_counter
            and shared.isdisjoint(b"%b.%b" % (middle, suffix) for middle in middles)
        ):
            key, name = to_text(samples.key(largest)), to_text(suffix)
            return f'sample "{key}" has {len(middles)} {name} files, because the key ends at the first dot'
    return ""


def as_given(samples: Samples, walked: array[int]) -> Samples:
    """Return the samples in the order in which their keys were first given, and number their places in this order. The
    files from folders (``walked``) come first, sorted by name."""
    ranks = numpy.arange(len(samples.files))
    ranks[numpy.asarray(walked, numpy.int64)] = numpy.arange(len(walked))
    lowest_ranks = numpy.minimum.reduceat(ranks[numpy.asarray(samples.order)], _numbers(samples.firsts)[:-1])
    ordered = take(samples, lowest_ranks.argsort(kind="stable"))
    return ordered._replace(places=numbers_of(numpy.arange(samples.total), samples.total))


def require(
    samples: Samples, fields: Sequence[str], incomplete: str, left_out: LeftOut
) -> tuple[Samples, int]:
    """Return samples, and how many of them lack one of ``fields``. If ``incomplete`` is ``error``, an incomplete sample
    raises DataError ``missing-field``; ``skip`` leaves it out, and ``keep`` keeps it. ``jpg;png`` means that one of the
    two fields is enough."""
    wanted = [(text, {to_bytes(name) for name in text.split(";")}) for text in fields]
    whole = numbers_of((), samples.total)
    first = ""
    for sample in range(samples.total):
        sample_fields = samples.fields(sample)
        missing = ", ".join(text for text, names in wanted if names.isdisjoint(sample_fields))
        if not missing:
            whole.append(sample)
        elif incomplete == "skip":
            key, text = samples.key(sample), f"no {missing}"
            left_out.add(INCOMPLETE, key + to_bytes(f" ({text})"), "samples", text=text, key=to_text(key))
        first = first or (missing and f'sample "{to_text(samples.key(sample))}" has no {missing}')
    lacking = samples.total - len(whole)
    if not lacking:
        return samples, 0
    if incomplete == "error":
        further_samples = f", and {lacking - 1} more samples lack some" if lacking > 1 else ""
        raise DataError(
            first + further_samples,
            code="missing-field",
            hint="leave such samples out with --missing skip, or write them unchanged with --missing keep",
        )
    seen_names = SeenNames()
    for sample in range(samples.total):
        seen_names.fields.update(samples.fields(sample))
    names = [Named(text, " for --require", tuple(text.split(";"))) for text in fields]
    for absence in seen_names.absent(names):
        raise DataError(absence.message, code="missing-field", hint=absence.hint)
    return (take(samples, whole) if incomplete == "skip" else samples), lacking


def without(samples: Samples, keys: Collection[bytes]) -> Samples:
    """Return all samples except samples with these keys."""
    return take(samples, (sample for sample in range(samples.total) if samples.key(sample) not in keys))


def take(samples: Samples, chosen: Iterable[int]) -> Samples:
    """Return some samples, in the order of ``chosen``."""
    chosen = chosen if isinstance(chosen, numpy.ndarray) else numpy.fromiter(chosen, numpy.int64)
    order, firsts, places = map(numpy.asarray, (samples.order, samples.firsts, samples.places))
    members = numbers_of((), len(samples.files))
    starts = numbers_of((0,), len(samples.files) + 1)
    chosen_places = numbers_of((), samples.total)
    # Whole columns of 64 bits would need more memory than all names.
    for first in range(0, len(chosen), _FILES_TOGETHER):
        numbers = chosen[first : first + _FILES_TOGETHER]
        begins = firsts[numbers].astype(numpy.int64)
        counts = firsts[numbers + 1] - begins
        ends = counts.cumsum()
        positions = (begins - ends + counts).repeat(counts) + numpy.arange(ends[-1])
        starts.frombytes((ends + len(members)).astype(starts.typecode).tobytes())
        members.frombytes(order[positions].astype(members.typecode).tobytes())
        chosen_places.frombytes(places[numbers].astype(chosen_places.typecode).tobytes())
    return Samples(samples.files, members, starts, chosen_places)


def _numbers(numbers: array[int]) -> I64:
    return numpy.asarray(numbers, numpy.int64)


def fields_as_given(samples: Samples) -> Samples:
    """Return the samples with their fields in the order in which the fields were given, not sorted by name."""
    order, counts = _numbers(samples.order), numpy.diff(_numbers(samples.firsts))
    order = order[numpy.lexsort((order, numpy.arange(samples.total).repeat(counts)))]
    return samples._replace(order=numbers_of(order, len(samples.files)))


def add_labels(samples: Samples, which: str = "parent") -> Samples:
    """Add a field ``cls`` to each sample. Its payload is the name of the key's last folder, or of its ``top`` folder.
    :func:`number_labels` later replaces names by numbers. Raises DataError."""
    files = samples.files
    without = range(len(files)) if len(samples.order) < len(files) else ()
    left_out = frozenset(without).difference(samples.order)
    kept: dict[bytes, int] = {}
    for sample in range(samples.total):
        key = samples.key(sample)
        if LABEL in samples.fields(sample):
            raise DataError(
                f'sample "{to_text(key)}" already has a field cls',
                code="duplicate-field",
                hint="leave out --label-from, or leave out the files: --exclude '*.cls'",
            )
        # Use a folder of the key. If the key has no folder, use the folder of the first field's file.
        folders = key.rpartition(b"/")[0]
        label = folders.partition(b"/")[0] if which == "top" else folders.rpartition(b"/")[2]
        place = b"" if label else files.place(samples.order[samples.firsts[sample]])
        if isinstance(place, bytes) and place:
            label = os.path.basename(os.path.dirname(os.path.abspath(place)))
        if not label:
            raise DataError(
                f'sample "{to_text(key)}" is in no folder, so it has no class',
                code="missing-field",
                hint=f"--label-from {which} needs paths such as cats/img7.jpg",
            )
        if label not in kept:
            kept[label] = files.keep(Inline(label))
        files.add_row(key + SEPARATOR + LABEL, 0, kept[label])
    return group(files, without=left_out)


def number_labels(samples: Samples, known_classes: Sequence[str] = ()) -> list[str]:
    """Replace label names by their places in the list of classes, and return the list. It has the
    ``known_classes`` in their order, then the other classes, sorted bytewise. Raises DataError for a label from a
    file."""
    files = samples.files
    end = SEPARATOR + LABEL
    labelled = numbers_of((file for file in samples.order if files.row(file).endswith(end)), len(files))
    names: dict[int, bytes] = {}
    for file in labelled:
        place = files.place_number(file)
        if place not in names:
            label = files.place(file)
            if not isinstance(label, Inline):
                raise DataError(
                    f'sample "{to_text(files.row(file)[: -len(end)])}" already has a field cls, '
                    "but other samples get class names",
                    code="duplicate-field",
                    hint="leave out the files with --exclude '*.cls'",
                )
            names[place] = label.payload
    before = list(map(to_bytes, known_classes))
    classes = before + sorted(set(names.values()).difference(before))
    numbers = {name: b"%d" % number for number, name in enumerate(classes)}
    kept = {place: (len(numbers[name]), files.keep(Inline(numbers[name]))) for place, name in names.items()}
    for file in labelled:
        files.put(file, *kept[files.place_number(file)])
    return [to_text(name) for name in classes]


def shuffled(samples: Samples, seed: int) -> Samples:
    """Return the samples in the shuffled order of a seed. The order depends on their places among all samples found, as
    if all were in shard 0."""
    if not samples.places:
        return samples
    places = numpy.frombuffer(samples.places, numpy.dtype(f"u{samples.places.itemsize}"))
    ranks = rank_places(seed, numpy.zeros_like(places), places)
    return take(samples, numpy.argsort(ranks, kind="stable"))


def sample_ends(samples: Samples, form: Form) -> I64:
    """Return the end of each sample in bytes, as if all samples were in one tar. A 0 comes before the first end."""
    lengths: I64 = numpy.empty(len(samples.files), numpy.int64)
    first = 0
    for name_lengths, sizes in samples.files.measured():
        block = lengths[first : first + len(sizes)]
        numpy.add(sizes + 511 & -512, 512, out=block)
        for slot in numpy.flatnonzero((name_lengths > 100) | (sizes >= 1 << 33)).tolist():
            name = samples.files.row(first + slot).replace(SEPARATOR, b".")
            block[slot] += len(build_header(name, int(sizes[slot]), form)) - 512
        first += len(sizes)
    ends: I64 = numpy.zeros(len(samples.order) + 1, numpy.int64)
    # Without "clip", numpy takes into another array first.
    lengths.take(samples.order, out=ends[1:], mode="clip")
    ends.cumsum(out=ends)
    return ends[_numbers(samples.firsts)]


def separated(
    files: Files, policy: OnDuplicate, rekey: Rekey | None, left_out: LeftOut, first_index: int = 0
) -> tuple[Samples, int]:
    """Group files into samples by key. Return the samples, and how many were left out because of a repeated key.
    ``{index}`` in a format counts from ``first_index``. If ``policy`` is ``error``, a repeated field raises DataError;
    otherwise only a new key that already exists does."""
    if policy == "error":
        return group(files), 0
    twice: list[int] = []
    samples = group(files, twice=twice)
    if not twice:
        return samples, 0
    # The samples with a repeated key, and for each the number of the first sample with its key.
    later = [
        (sample, members)
        for sample in twice
        for members in _apart(files, sorted(samples.members(sample)))[1:]
    ]
    if policy == "skip":
        for sample, members in later:
            key, place, source = samples.key(sample), files.row_place(members[0]), files.place(members[0])
            name = "" if is_value(source) else describe_place(source)
            unit: Unit = "samples" if place is None else "rows"
            left_out.add(DUPLICATE_KEY, key, unit, place=place, key=to_text(key), source=name)
        return group(files, without={file for _, members in later for file in members}), len(later)
    return _with_new_keys(samples, later, rekey or Rekey(DEFAULT_REKEY), first_index), 0


def _with_new_keys(
    samples: Samples, later: Iterable[tuple[int, list[int]]], rekey: Rekey, first_index: int
) -> Samples:
    """Return the samples, with a sample of its own for each of ``later``: the sample that it repeats, and its files.
    Raises DataError for a new key that already exists."""
    files = samples.files
    rows: dict[int, bytes] = {}
    sizes: dict[bytes, int] = {}
    for added_samples, (sample, members) in enumerate(later, 1):
        new_key = rekey.key(samples.key(sample), "", first_index + sample + added_samples)
        if new_key in sizes:
            raise taken(new_key)
        sizes[new_key] = len(members)
        rows.update((file, new_key + SEPARATOR + _field(files, file)) for file in members)
    repeated: list[int] = []
    all_rows = (rows.get(file) or files.row(file) for file in range(len(files)))
    samples = group(files.part(range(len(files)), all_rows), twice=repeated)
    if repeated:
        raise taken(samples.key(repeated[0]))
    for sample in range(samples.total):
        count = len(samples.members(sample))
        if sizes.get(key := samples.key(sample), count) != count:
            raise taken(key)
    return samples


def _apart(files: Files, members: Sequence[int]) -> list[list[int]]:
    """Separate the files with one key into samples."""
    separate: list[list[int]] = []
    sample_fields: set[bytes] = set()
    for _, run in groupby(members, files.source):
        for unit in _units(files, run):
            fields = {_field(files, file) for file in unit}
            if not separate or fields & sample_fields:
                separate.append([])
                sample_fields = set()
            separate[-1] += unit
            sample_fields |= fields
    return separate


def _units(files: Files, members: Iterator[int]) -> Iterator[list[int]]:
    """Yield runs of files from the same source without a repeated field."""
    unit: list[int] = []
    fields: set[bytes] = set()
    for file in members:
        field = _field(files, file)
        if field in fields:
            yield unit
            unit, fields = [], set()
        unit.append(file)
        fields.add(field)
    yield unit


def _field(files: Files, file: int) -> bytes:
    return files.row(file).partition(SEPARATOR)[2]


def rekeyed(
    samples: Samples, rekey: Rekey, first_index: int = 0, only: Collection[int] | None = None
) -> Samples:
    """Return the samples in their order, with new keys for all samples, or for ``only`` some. Raises DataError for two
    equal keys."""
    new_keys, together = KeySet(), []

    def new_rows() -> Iterator[bytes]:
        for sample in range(samples.total):
            key = samples.key(sample)
            if only is None or sample in only:
                key = rekey.key(key, "", first_index + samples.places[sample])
            together.append(key)
            if len(together) >= _KEYS_TOGETHER or sample + 1 == samples.total:
                if repeated := new_keys.add(together):
                    raise taken(together[repeated[0]])
                together.clear()
            yield from (key + SEPARATOR + field for field in samples.fields(sample))

    files = samples.files.part(samples.order, new_rows())
    order = array(samples.order.typecode, range(len(samples.order)))
    return samples._replace(files=files, order=order)


def in_lists(files: Files, keep: Callable[[bytes], Place]) -> Samples:
    """Group files into samples, and join the lists of rows with the same key. ``keep`` stores a payload. Raises
    DataError for another field that differs, or that does not come from a table."""
    twice: list[int] = []
    samples, repeated = group(files, twice=twice), set[int]()
    for sample in twice:
        for row, members in groupby(samples.members(sample), files.row):
            first, *others = sorted(members)
            if not others:
                continue
            places = [_place_of_row(files, file) for file in (first, *others)]
            field = to_text(row.partition(SEPARATOR)[2])
            if first >= files.first_listed and is_json(field):
                values = [place.payload[1:-1] for place in places if isinstance(place, Inline)]
                joined = b"[%b]" % b",".join(values)
                files.put(first, len(joined), files.keep(keep(joined)))
            elif any(place != places[0] for place in places):
                raise DataError(
                    f'"{to_text(row.replace(SEPARATOR, b"."))}" differs between rows with the same key',
                    code="duplicate-field",
                    hint="a list needs a JSON field: --column captions.json=COLUMN",
                )
            repeated.update(others)
    return group(files, without=repeated)


def _place_of_row(files: Files, file: int) -> Place:
    """Return a value of a table as bytes in memory, and any other payload as its place."""
    place = files.place(file)
    return Inline(payload_at(place, files.size(file))) if is_value(place) else place


def settled(
    samples: Samples,
    keys: Callable[[], Iterable[Sequence[bytes]]],
    policy: OnDuplicate,
    rekey: Rekey | None,
    first_index: int,
    left_out: LeftOut,
) -> tuple[Samples, int]:
    """Return the samples that may be added to a set with these ``keys``, and how many were left out. If ``policy`` is
    ``error``, a sample with an existing key raises DataError. Otherwise only a new key from a format that already
    exists does."""
    existing = found_among(samples, keys())
    if not existing:
        return samples, 0
    if policy == "error":
        raise DataError(
            f'the set already has a sample "{to_text(samples.key(existing[0]))}"'
            + (f", and {len(existing) - 1} more of these" if len(existing) > 1 else ""),
            code="duplicate-key",
            hint="leave such samples out with --on-duplicate skip, or give them new keys with --on-duplicate rekey",
        )
    if policy == "skip":
        for key in map(samples.key, existing):
            left_out.add(DUPLICATE_KEY, key, "samples", text="key in the set already", key=to_text(key))
        gone = frozenset(existing)
        return take(samples, (sample for sample in range(samples.total) if sample not in gone)), len(existing)
    samples = rekeyed(samples, rekey or Rekey(DEFAULT_REKEY), first_index, frozenset(existing))
    if repeated := found_among(samples, keys()):
        raise taken(samples.key(repeated[0]))
    return samples, 0


def found_among(samples: Samples, keys: Iterable[Sequence[bytes]]) -> list[int]:
    """Return the samples with a key in ``keys``, which come in batches."""

    def hashes(key_batch: Iterable[bytes]) -> NDArray[numpy.int64]:
        return numpy.fromiter(map(hash, key_batch), numpy.int64)

    own_hashes = hashes(map(samples.key, range(samples.total)))
    order = own_hashes.argsort()
    own_hashes = own_hashes[order]
    matching: set[int] = set()
    for batch in keys if samples.total else ():
        begins = own_hashes.searchsorted(batch_hashes := hashes(batch))
        ends = own_hashes.searchsorted(batch_hashes, side="right")
        for position in numpy.flatnonzero(begins < ends).tolist():
            candidates = order[int(begins[position]) : int(ends[position])].tolist()
            matching.update(sample for sample in candidates if samples.key(sample) == batch[position])
    return sorted(matching)


def taken(key: bytes) -> DataError:
    """Return the error for a new key that already exists."""
    return DataError(
        f'two samples would have the key "{to_text(key)}"',
        code="duplicate-key",
        hint="use a --rekey FORMAT with {index}: '{key}-{index:09d}'",
    )
