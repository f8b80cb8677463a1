"""Columns of files to samples in order, and the cuts between them.

What it is: what happens between finding files and writing them: sort, group, check, label, select, order,
cut. How: lists of numbers into the columns; a file's row sorts by (key, field), so grouping is one pass. It
must not read or write anything.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from wdscli.create.columns import SEPARATOR, Files, Inline, Skipped
from wdscli.errors import DataError
from wdscli.model import to_bytes, to_text
from wdscli.ordering import ranks
from wdscli.plan.cut import END_BYTES, Cuts
from wdscli.selection.named import Named, Sightings
from wdscli.tar import Form, build_header


class Samples(NamedTuple):
    """Samples over the columns of ``files``: sample ``i`` has the files ``firsts[i]`` to ``firsts[i + 1]``;
    ``places[i]`` is its place among all samples that were found, before any was left out."""

    files: Files
    firsts: list[int]
    places: list[int]

    @property
    def total(self) -> int:
        return len(self.places)

    def key(self, sample: int) -> bytes:
        return self.files.rows[self.firsts[sample]].partition(SEPARATOR)[0]

    def fields(self, sample: int) -> list[bytes]:
        rows = self.files.rows[self.firsts[sample] : self.firsts[sample + 1]]
        return [row.partition(SEPARATOR)[2] for row in rows]


def group(files: Files) -> Samples:
    """Sort the files by key and field, bytewise, and find the samples. Raises DataError for a field that
    comes twice."""
    rows = files.rows
    order = sorted(range(len(rows)), key=rows.__getitem__)
    files.permute(order)
    rows = files.rows
    firsts: list[int] = []
    prefix = SEPARATOR
    before = b""
    for at, row in enumerate(rows):
        if not row.startswith(prefix):
            firsts.append(at)
            prefix = row[: row.find(SEPARATOR) + 1]
        elif row == before:
            raise _twice(files, at)
        before = row
    places = list(range(len(firsts)))
    firsts.append(len(rows))
    return Samples(files, firsts, places)


def _twice(files: Files, at: int) -> DataError:
    name = to_text(files.rows[at].replace(SEPARATOR, b"."))
    return DataError(
        f'"{name}" comes twice: from {files.describe(at - 1)} and from {files.describe(at)}',
        code="duplicate-field",
        hint="give the sources one folder above them, or leave one out with --exclude",
    )


def as_given(samples: Samples, first_rows: Mapping[bytes, int]) -> Samples:
    """The samples in the order in which their keys were first given; that order is then their place."""
    order = sorted(range(samples.total), key=lambda sample: first_rows[samples.key(sample)])
    ordered = take(samples, order)
    return Samples(ordered.files, ordered.firsts, list(range(len(order))))


def require(
    samples: Samples, fields: Sequence[str], incomplete: str, skipped: Skipped
) -> tuple[Samples, int]:
    """Samples that have all ``fields``, and how many lack some. What becomes of those is up to
    ``incomplete``: ``error`` raises DataError ``missing-field``, ``skip`` leaves them out, ``keep`` keeps
    them. ``jpg;png`` means either."""
    wanted = [(text, {to_bytes(name) for name in text.split(";")}) for text in fields]
    lacking: dict[int, str] = {}
    for sample in range(samples.total):
        there = samples.fields(sample)
        missing = [text for text, names in wanted if names.isdisjoint(there)]
        if missing:
            lacking[sample] = ", ".join(missing)
    if lacking and incomplete == "error":
        raise _incomplete(samples, lacking)
    if lacking:
        _check_named(samples, fields)
    if not lacking or incomplete == "keep":
        return samples, len(lacking)
    for sample, names in lacking.items():
        skipped.add("incomplete", samples.key(sample) + b" (no " + to_bytes(names) + b")")
    return take(samples, [sample for sample in range(samples.total) if sample not in lacking]), len(lacking)


def _check_named(samples: Samples, fields: Sequence[str]) -> None:
    """Raise DataError for a required field that no sample has."""
    sightings = Sightings()
    sightings.fields.update(row.partition(SEPARATOR)[2] for row in samples.files.rows)
    for absence in sightings.absent(Named(text, " for --require", tuple(text.split(";"))) for text in fields):
        raise DataError(absence.message, code="missing-field", hint=absence.hint)


def _incomplete(samples: Samples, lacking: Mapping[int, str]) -> DataError:
    first = next(iter(lacking))
    more = f", and {len(lacking) - 1} more samples lack some" if len(lacking) > 1 else ""
    return DataError(
        f'sample "{to_text(samples.key(first))}" has no {lacking[first]}{more}',
        code="missing-field",
        hint="--incomplete skip leaves such samples out, --incomplete keep writes them as they are",
    )


def take(samples: Samples, chosen: Sequence[int]) -> Samples:
    """Some samples, in the order of ``chosen``."""
    files, firsts = samples.files, samples.firsts
    order: list[int] = []
    starts = [0]
    for sample in chosen:
        order.extend(range(firsts[sample], firsts[sample + 1]))
        starts.append(len(order))
    files.permute(order)
    return Samples(files, starts, [samples.places[sample] for sample in chosen])


def add_labels(samples: Samples, field: bytes = b"cls") -> None:
    """Give every sample the field ``cls`` with the name of its parent folder for a payload;
    :func:`number_labels` turns names to numbers. The files are no longer grouped after this."""
    files = samples.files
    labels = [_parent(samples, sample) for sample in range(samples.total)]
    for sample in range(samples.total):
        if field in samples.fields(sample):
            raise DataError(
                f'sample "{to_text(samples.key(sample))}" has a {to_text(field)} of its own',
                code="duplicate-field",
                hint="leave out --label-from, or the files with --exclude '*.cls'",
            )
    for key, label in zip([samples.key(sample) for sample in range(samples.total)], labels):
        files.add(key, field, 0, Inline(label))


def _parent(samples: Samples, sample: int) -> bytes:
    """The last folder of the key, or where the key has none, of the file that the sample's first field comes
    from."""
    key = samples.key(sample)
    label = key.rpartition(b"/")[0].rpartition(b"/")[2]
    place = samples.files.places[samples.firsts[sample]]
    if not label and isinstance(place, bytes):
        label = os.path.basename(os.path.dirname(os.path.abspath(place)))
    if not label:
        raise DataError(
            f'sample "{to_text(key)}" lies in no folder that could label it',
            code="missing-field",
            hint="--label-from parent takes names such as cats/img7.jpg",
        )
    return label


def number_labels(samples: Samples, field: bytes = b"cls") -> list[str]:
    """Replace label names by their place in the bytewise sorted list of them; that list."""
    files = samples.files
    end = SEPARATOR + field
    rows = [at for at, row in enumerate(files.rows) if row.endswith(end)]
    names = {at: place.payload for at in rows if isinstance(place := files.places[at], Inline)}
    classes = sorted(set(names.values()))
    numbers = {name: b"%d" % number for number, name in enumerate(classes)}
    for at, name in names.items():
        files.places[at] = Inline(numbers[name])
        files.sizes[at] = len(numbers[name])
    return [to_text(name) for name in classes]


def shuffled(samples: Samples, seed: int) -> Samples:
    """The samples by the pinned rank of their place among all that were found (as of one shard, number 0)."""
    if not samples.places:
        return samples
    by_place = ranks(seed, 0, max(samples.places) + 1)
    order = sorted(range(samples.total), key=lambda sample: (by_place[samples.places[sample]], sample))
    return take(samples, order)


def sample_ends(samples: Samples, form: Form) -> list[int]:
    """The byte at which each sample ends, were all of them in one tar, preceded by 0."""
    rows, sizes = samples.files.rows, samples.files.sizes
    lengths = [(size + 511 & -512) + 512 for size in sizes]
    if rows and (max(map(len, rows)) > 100 or max(sizes) >= 1 << 33):
        for at, (row, size) in enumerate(zip(rows, sizes)):
            if len(row) > 100 or size >= 1 << 33:
                header = build_header(row.replace(SEPARATOR, b"."), size, form)
                lengths[at] = len(header) + (size + 511 & -512)
    ends = list(accumulate(lengths, initial=0))
    return ends if samples.total == len(rows) else [ends[first] for first in samples.firsts]


def cut(ends: list[int], cuts: Cuts) -> list[int]:
    """Where shards begin among the samples, and at the end their number; ``ends`` is what :func:`sample_ends`
    gives."""
    count = len(ends) - 1
    if cuts.shards is not None:
        return [count * number // cuts.shards for number in range(cuts.shards + 1)]
    bounds = [0]
    while bounds[-1] < count:
        first = bounds[-1]
        end = count if cuts.max_count is None else min(count, first + cuts.max_count)
        if cuts.max_size is not None:
            room = ends[first] + cuts.max_size - END_BYTES
            end = bisect_right(ends, room, first + 1, end + 1) - 1
        bounds.append(max(end, first + 1))
    return bounds
