"""Repeated keys and new keys: ``--on-duplicate`` and ``--rekey`` for files.

What it is: :func:`grouped`, which separates samples of one key, :func:`rekeyed`, which gives samples new keys, and
:func:`found_among`, which finds samples whose key a set has already. How: files of one key are one sample as long as no
field is repeated. If one is, the files of each source (a folder, a row of a table) stay together: they join the sample
before them if it has none of their fields, and are a new sample otherwise. The first of these keeps the key. It must
not read or write anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from wdscli.create.files import SEPARATOR, Files
from wdscli.create.grouping import Samples, group, take
from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.plan.names import Rekey
from wdscli.plan.request import OnDuplicate
from wdscli.samples.keys import KeySet

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

NAMES = ("index", "n", "key")
"""The names in a ``--rekey`` format for files."""
DEFAULT = "{key}-{index:09d}"
"""The format of ``--on-duplicate rekey`` without ``--rekey``."""
_KEYS_TOGETHER = 1 << 10


class Settled(NamedTuple):
    """Samples with different keys, and how many were left out because their key was a repeat."""

    samples: Samples
    left_out: int = 0


def grouped(files: Files, policy: OnDuplicate, rekey: Rekey | None, first_index: int = 0) -> Settled:
    """The samples of files by key; ``{index}`` in a format counts from ``first_index``. With ``policy`` ``error``
    raises DataError for a repeated field, otherwise only for a new key that exists already."""
    if policy == "error":
        return Settled(group(files))
    twice: list[int] = []
    samples = group(files, twice=twice)
    if not twice:
        return Settled(samples)
    rekey = rekey or Rekey(DEFAULT)
    left_out: set[int] = set()
    rows: dict[int, bytes] = {}
    sizes: dict[bytes, int] = {}
    more = 0
    for sample in twice:
        key = samples.key(sample)
        for members in _apart(files, sorted(samples.members(sample)))[1:]:
            more += 1
            if policy == "skip":
                left_out.update(members)
                continue
            new = rekey.key(key, "", first_index + sample + more)
            if new in sizes:
                raise taken(new)
            sizes[new] = len(members)
            rows.update((at, new + SEPARATOR + _field(files, at)) for at in members)
    if policy == "skip":
        return Settled(group(files, without=left_out), more)
    again: list[int] = []
    all_rows = (rows.get(at) or files.row(at) for at in range(len(files)))
    samples = group(files.part(range(len(files)), all_rows), twice=again)
    if again:
        raise taken(samples.key(again[0]))
    for sample in range(samples.total):
        count = len(samples.members(sample))
        if sizes.get(key := samples.key(sample), count) != count:
            raise taken(key)
    return Settled(samples)


def _apart(files: Files, members: Sequence[int]) -> list[list[int]]:
    """The files of one key, separated into samples."""
    found: list[list[int]] = []
    there: set[bytes] = set()
    for _, run in groupby(members, files.source):
        for unit in _units(files, run):
            fields = {_field(files, at) for at in unit}
            if not found or fields & there:
                found.append([])
                there = set()
            found[-1] += unit
            there |= fields
    return found


def _units(files: Files, members: Iterator[int]) -> Iterator[list[int]]:
    """Runs of files of one source without a repeated field."""
    unit: list[int] = []
    there: set[bytes] = set()
    for at in members:
        field = _field(files, at)
        if field in there:
            yield unit
            unit, there = [], set()
        unit.append(at)
        there.add(field)
    yield unit


def _field(files: Files, at: int) -> bytes:
    return files.row(at).partition(SEPARATOR)[2]


def rekeyed(
    samples: Samples, rekey: Rekey, first_index: int = 0, only: Collection[int] | None = None
) -> Samples:
    """The samples in their order with new keys, all or ``only`` some. Raises DataError for two equal keys."""
    seen, together = KeySet(), []

    def new_rows() -> Iterator[bytes]:
        for sample in range(samples.total):
            key = samples.key(sample)
            if only is None or sample in only:
                key = rekey.key(key, "", first_index + samples.places[sample])
            together.append(key)
            if len(together) >= _KEYS_TOGETHER or sample + 1 == samples.total:
                if repeated := seen.add(together):
                    raise taken(together[repeated[0]])
                together.clear()
            yield from (key + SEPARATOR + field for field in samples.fields(sample))

    files = samples.files.part(samples.order, new_rows())
    order = array(samples.order.typecode, range(len(samples.order)))
    return samples._replace(files=files, order=order)


def settled(
    samples: Samples,
    keys: Callable[[], Iterable[Sequence[bytes]]],
    policy: OnDuplicate,
    rekey: Rekey | None,
    first_index: int,
) -> Settled:
    """The samples that may be added to a set with these ``keys``. With ``policy`` ``error`` raises DataError for a
    sample whose key exists already, otherwise only for such a new key."""
    found = found_among(samples, keys())
    if not found:
        return Settled(samples)
    if policy == "error":
        raise DataError(
            f'the set already has a sample "{to_text(samples.key(found[0]))}"'
            + (f", and {len(found) - 1} more of these" if len(found) > 1 else ""),
            code="duplicate-key",
            hint="--on-duplicate skip leaves such samples out, --on-duplicate rekey gives them new keys",
        )
    if policy == "skip":
        gone = frozenset(found)
        return Settled(take(samples, (one for one in range(samples.total) if one not in gone)), len(found))
    samples = rekeyed(samples, rekey or Rekey(DEFAULT), first_index, frozenset(found))
    if again := found_among(samples, keys()):
        raise taken(samples.key(again[0]))
    return Settled(samples)


def found_among(samples: Samples, keys: Iterable[Sequence[bytes]]) -> list[int]:
    """The samples whose key is among ``keys``, which come in batches."""
    import numpy

    def hashes(some: Iterable[bytes]) -> NDArray[numpy.int64]:
        return numpy.fromiter(map(hash, some), numpy.int64)

    own = hashes(map(samples.key, range(samples.total)))
    order = own.argsort()
    own = own[order]
    found: set[int] = set()
    for batch in keys if samples.total else ():
        begins = own.searchsorted(given := hashes(batch))
        ends = own.searchsorted(given, side="right")
        for at in numpy.flatnonzero(begins < ends).tolist():
            same = order[int(begins[at]) : int(ends[at])].tolist()
            found.update(one for one in same if samples.key(one) == batch[at])
    return sorted(found)


def taken(key: bytes) -> DataError:
    """The error of a new key that exists already."""
    return DataError(
        f'two samples would have the key "{to_text(key)}"',
        code="duplicate-key",
        hint="use a --rekey FORMAT with {index}: '{key}-{index:09d}'",
    )
