"""Keys that come again, and new keys: what ``--on-duplicate`` and ``--rekey`` make of files.

What it is: :func:`grouped`, which settles samples of one key, :func:`rekeyed`, which gives samples new keys, and
:func:`found_among`, which finds those whose key a set has already.
How: files of one key are one sample as long as no field comes twice. Where one does, what each source (a folder, a row
of a table) has stays together: it joins the sample before it when that has none of its fields, and is a sample of its
own otherwise. The first of these keeps the key. It must not read or write anything.
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
from wdscli.samples.keyset import KeySet

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

NAMES = ("index", "n", "key")
"""What ``--rekey`` knows of a sample of files."""
DEFAULT = "{key}-{index:09d}"
"""What ``--on-duplicate rekey`` uses when no ``--rekey`` is given."""
_KEYS_TOGETHER = 1 << 10


class Settled(NamedTuple):
    """Samples whose keys differ, and how many were left out because their key had come before."""

    samples: Samples
    left_out: int = 0


def grouped(files: Files, policy: OnDuplicate, rekey: Rekey | None, first_index: int = 0) -> Settled:
    """The samples of files by key. ``first_index`` is what a format's ``{index}`` counts from. Raises DataError for a
    field that comes twice, unless ``policy`` is another, and for a new key that is taken."""
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
    """The files of one key, by samples."""
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
    """Runs of files of one source, each of which has no field twice."""
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
    """The samples in their order under new keys, or ``only`` some of them. Raises DataError when two are the same."""
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
    """The samples that may be added to a set of these ``keys``. Raises DataError for one whose key is there, unless
    ``policy`` is another, and for a new key that is."""
    found = found_among(samples, keys())
    if not found:
        return Settled(samples)
    if policy == "error":
        raise DataError(
            f'the set has a sample "{to_text(samples.key(found[0]))}" already'
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
    """The samples whose key is among these, which may be many and come by batches."""
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
    """The error of a new key that is not new."""
    return DataError(
        f'the key "{to_text(key)}" is given to two samples',
        code="duplicate-key",
        hint="use a --rekey FORMAT with {index}: '{key}-{index:09d}'",
    )
