"""This module decides where one output shard ends and the next begins, and names the shards.

:class:`Cuts` holds the options. :class:`Outputs` makes the :class:`~wdscli.shards.writing.OutputSet` of each part from
the text of ``-o``. :func:`planned_shards` cuts samples in output order into :class:`PlannedShard` and gives each its
address. An array has the number of bytes before each sample; a binary search in it finds the end of a shard. Two parts
must not share a file. This module does not know how samples were ordered and divided into parts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from wdscli.arrays import I64, U32, blocks_of, numpy
from wdscli.errors import UsageError
from wdscli.model import ShardInfo
from wdscli.plan.table import OrderedSamples
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import base_name
from wdscli.storage.patterns import MAX_NAMES, plain_name
from wdscli.tar import END_OF_ARCHIVE

DEFAULT_MAX_SIZE_BYTES = 1_000_000_000
END_BYTES = len(END_OF_ARCHIVE)
FIELD = "{part}"
_BESIDE_NUMBER = re.compile(r"\{part\}[0-9]*(%0?[0-9]*d|\{[0-9])|(%0?[0-9]*d|[0-9]\})[0-9]*\{part\}")
_SAFE_IN_SHELL = re.compile(r"[A-Za-z0-9_.+=-]+")
_LONGEST_BYTES = 200
"""The longest name of a part. With prefix and number, it must still fit in a file name."""
_SHOWN = 40
"""Characters of a name in an error message."""


class Cuts(NamedTuple):
    """The options that decide where shards end. Without the first three, a shard has at most 1 GB. ``shards`` is a
    number of shards, with sample counts that differ by at most one. ``divisible_by`` rounds the number of shards up to
    a multiple. Sizes are real tar bytes, end of archive included."""

    max_count: int | None = None
    max_size: int | None = None
    shards: int | None = None
    divisible_by: int | None = None

    def checked(self, fixed: int | None) -> Cuts:
        """Return the cuts for an output pattern that names exactly ``fixed`` shards; None means any number. Raises
        UsageError."""
        wanted = self.shards
        if fixed is not None:
            if wanted not in (None, fixed):
                raise UsageError(
                    f"-o is for {fixed} shards, but --shards is {wanted}", hint="give one of them"
                )
            wanted = fixed
        if wanted is not None and (self.max_count is not None or self.max_size is not None):
            raise UsageError(
                "--shards excludes --max-count and --max-size",
                hint="give a number of shards (--shards, or braces in -o) or limits per shard, but not both",
            )
        for name, value in self._replace(shards=wanted)._asdict().items():
            option = f"--{name.replace('_', '-')}"
            if value is not None and value < 1:
                raise UsageError(f"{option} must be at least 1, not {value}")
            if value is not None and name in ("shards", "divisible_by") and value > MAX_NAMES:
                raise UsageError(f"{option} {value} is more than {MAX_NAMES} shards")
        if fixed is not None and fixed % (self.divisible_by or 1):
            raise UsageError(
                f"the output names {fixed} shards, which is not a multiple of {self.divisible_by}",
                hint="change the number of shards, or allow any number of shards: -o out-%06d.tar",
            )
        if wanted is not None:
            wanted = multiple(wanted, self.divisible_by)
        if wanted is None and self.max_count is None and self.max_size is None:
            return self._replace(max_size=DEFAULT_MAX_SIZE_BYTES)
        return self._replace(shards=wanted)

    def may_keep(self, counts: Sequence[int], sizes: Sequence[int | None]) -> bool:
        """Return whether an output shard may contain exactly the samples of one input shard. This depends on the sample
        counts of the inputs (-1: unknown) and on their sizes (None: unknown).

        >>> Cuts(shards=3).may_keep([5, 5], [9, 9]), Cuts(max_count=5).may_keep([5, 4], [None, None])
        (False, True)
        """
        if len(counts) == 1 or self.shards is not None:
            return self.shards in (None, len(counts))
        if self.max_count is not None and not {self.max_count, -1} & {*counts}:
            return False
        # Two inputs that fit in one shard are merged.
        max_size = self.max_size
        return max_size is None or any(
            (size or max_size) + (next_size or max_size) > max_size for size, next_size in pairwise(sizes)
        )


class Outputs:
    """The sets that one command writes. ``names`` has a value of ``{name}`` for each shard. ``may_exist`` allows
    existing files, because the run may resume. Raises UsageError for a text that cannot name shards."""

    def __init__(
        self,
        text: str,
        settings: ShardSettings,
        *,
        names: Sequence[str] | None = None,
        may_exist: bool = False,
    ) -> None:
        self.text = text
        self.names = names
        self.may_exist = may_exist
        self._settings = settings
        self._probe = OutputSet(text.replace(FIELD, "part"), settings, names=names)
        if self.has_parts:
            self._check_apart()

    @property
    def has_parts(self) -> bool:
        """Whether the text contains ``{part}``, so that each part becomes a set."""
        return FIELD in self.text

    def _check_apart(self) -> None:
        """Refuse output texts in which one file name could belong to two parts."""
        if beside := _BESIDE_NUMBER.search(self.text):
            raise UsageError(
                f'{self.text}: "{beside[0]}" does not separate the part\'s name from the number',
                hint=f"write a separator between them: {FIELD}-%06d.tar",
            )
        manifest = OutputSet(self.text.replace(FIELD, "trap"), self._settings).manifest_address
        if manifest is not None and manifest == self._probe.manifest_address:
            raise UsageError(
                f"{self.text} gives the manifests of all parts the same name",
                hint=f"put {FIELD} before the number: {FIELD}-%06d.tar or {FIELD}/%06d.tar",
            )

    @property
    def is_stream(self) -> bool:
        """Whether shards go to standard output, a command or a device."""
        return self._probe.pattern.is_stream

    @property
    def first_address(self) -> str | None:
        """The address of the first shard. A part has the name ``part``. Without names of shards, it is None."""
        return None if self.names is not None and not self.names else self._probe.address(0)

    def cuts(self, cuts: Cuts) -> Cuts:
        """Return the cuts of each part for this output. A single file is one shard, and braces give the exact number of
        shards. Raises UsageError."""
        pattern = self._probe.pattern
        if pattern.single:
            if cuts != Cuts() and cuts.shards != 1:
                raise UsageError(
                    f"{self.text} is for one shard, so the samples cannot be divided",
                    hint="name the shards: -o out-%06d.tar",
                )
            return Cuts(shards=1)
        return cuts.checked(pattern.count or None)

    def set_of(self, part: str = "") -> OutputSet:
        """Return the set of one part. ``part`` is empty if the output has no parts. Raises UsageError for a part's name
        that does not fit the text."""
        if not self.has_parts:
            return OutputSet(self.text, self._settings, names=self.names)
        if self.is_stream and not _SAFE_IN_SHELL.fullmatch(part):
            raise UsageError(
                f'"{part}" cannot be the name of a part in a command',
                hint="in pipe:CMD a part's name has letters, digits, - _ . + = only",
            )
        text = self.text.replace(FIELD, checked_part(part))
        return OutputSet(text, self._settings, names=self.names, part=part)

    def check(self, parts: Sequence[str] | None, inputs: Sequence[str]) -> None:
        """Refuse existing files of the known parts. None means that the parts are not known yet."""
        if not self.has_parts:
            self._probe.check(inputs, may_exist=self.may_exist)
        for part in parts or () if self.has_parts else ():
            self.set_of(part).check(inputs, may_exist=self.may_exist)


@lru_cache(maxsize=1024)
def checked_part(name: str) -> str:
    """Return a part's name. Raises UsageError for a name that cannot be used in an address.

    >>> checked_part("train")
    'train'
    """
    bad = not name or name.startswith((".", "-", "~", " ")) or any(mark in name for mark in "/\\{}%*?[]@|:")
    if bad or not name.isprintable() or len(name.encode("utf-8", "surrogateescape")) > _LONGEST_BYTES:
        raise UsageError(
            f'"{name if len(name) <= _SHOWN else name[:_SHOWN] + "..."}" cannot be the name of a part',
            hint="use only characters allowed in file names, such as letters, digits, - _ .",
        )
    return name


class PlannedShard(NamedTuple):
    """An output shard, with the samples ``first`` to ``end - 1`` of the output order. ``part`` is the part's number
    from 0, and ``number`` is the shard's number in the part."""

    address: str
    part: int
    number: int
    first: int
    end: int
    size_bytes: int
    members: int

    @property
    def samples(self) -> int:
        return self.end - self.first

    def info(self, name: str) -> ShardInfo:
        """Return the facts of the shard that are known before it is made."""
        return ShardInfo(name, self.samples, self.members, self.size_bytes, "", None, {}, index=False)


class Sizes(NamedTuple):
    """Sizes of samples in output order. ``totals`` has the number of bytes before each sample, and as last value the
    bytes of all samples. ``members`` has the number of members in each sample,
    in a type that may be small."""

    totals: I64
    members: U32

    @classmethod
    def of(cls, ordered: OrderedSamples) -> Sizes:
        """The sizes of all samples."""
        total = ordered.total
        totals: I64 = numpy.zeros(total + 1, dtype=numpy.int64)
        for first, lengths in ordered.blocks_of("out"):
            block = totals[first + 1 : first + 1 + len(lengths)]
            lengths.cumsum(dtype=numpy.int64, out=block)
            block += totals[first]
        members = [members for _, members in ordered.blocks_of("members")]
        return cls(totals, numpy.concatenate(members) if members else numpy.zeros(0, numpy.uint32))

    def shards(
        self, output: OutputSet, ends: Iterable[int], part: int = 0, begin: int = 0
    ) -> Iterator[PlannedShard]:
        """Yield the shards of one part. The samples of the part begin at ``begin``, and ``ends`` count from there."""
        for number, (first, end) in enumerate(pairwise([begin, *(begin + end for end in ends)])):
            size = int(self.totals[end] - self.totals[first]) + END_BYTES
            members = int(self.members[first:end].sum())
            yield PlannedShard(output.address(number), part, number, first, end, size, members)

    def oversized(self, cuts: Cuts) -> int:
        """Return how many samples are larger than the limit of a shard."""
        if cuts.max_size is None:
            return 0
        room = max(0, cuts.max_size - END_BYTES)
        blocks = (self.totals[part.start : part.stop + 1] for part in blocks_of(len(self.members)))
        return sum(int((numpy.diff(totals) > room).sum()) for totals in blocks)


def names_of(addresses: Sequence[str]) -> list[str]:
    """Return the values of :data:`NAME`, one for each input. Raises UsageError for two inputs with the same name."""
    first: dict[str, str] = {}
    for address in addresses:
        name = plain_name(base_name(address))
        if name in first:
            raise UsageError(
                f"{first[name]} and {address} would both be written as {name}",
                hint="number the shards: wds split SHARDS --max-size 1GB, with -o out-%06d.tar or -o NAME.json",
            )
        first[name] = address
    return list(first)


def cut(totals: I64, cuts: Cuts) -> list[int]:
    """Return the exclusive ends of shards. ``totals`` has the number of bytes before each sample, and as last value the
    bytes of all samples. Raises UsageError if ``divisible_by`` needs more shards than there are samples."""
    total = len(totals) - 1
    if cuts.divisible_by is not None:
        return _cut_to_multiple(totals, cuts, cuts.divisible_by)
    if cuts.shards is not None:
        return evenly(total, cuts.shards)
    count, room = cuts.max_count or total, (cuts.max_size or 1 << 62) - END_BYTES
    ends, begin = [], 0
    while begin < total:
        fits = int(totals.searchsorted(int(totals[begin]) + room, side="right")) - 1
        # A sample larger than the limit gets its own shard.
        begin = max(min(begin + count, fits), begin + 1)
        ends.append(begin)
    return ends


def multiple(count: int, of: int | None) -> int:
    """Return the smallest multiple of ``of`` that is at least ``count``.

    >>> multiple(9, 8), multiple(16, 8), multiple(9, None)
    (16, 16, 9)
    """
    return count if of is None else -(-count // of) * of


def evenly(total: int, shards: int) -> list[int]:
    """Return the ends of shards with sample counts that differ by at most one."""
    return [total * (number + 1) // shards for number in range(shards)]


def _cut_to_multiple(totals: I64, cuts: Cuts, of: int) -> list[int]:
    """Return the ends of shards if their number must be a multiple. The number is the smallest that keeps the limits,
    and the shards are balanced by count. Without samples, there are no ends."""
    total = len(totals) - 1
    if not total:
        return []
    limits = cuts._replace(divisible_by=None)
    needed = cut(totals, limits) if cuts.shards is None else []
    shards = multiple(cuts.shards or len(needed), of)
    if total < shards:
        raise UsageError(
            f"{total} samples are too few for {shards} shards with --divisible-by",
            hint="use a smaller --divisible-by or --shards, or a larger --max-count or --max-size",
        )
    ends = evenly(total, shards)
    if cuts.shards is not None or _fits(totals, ends, limits):
        return ends
    fullest = max(end - first for first, end in pairwise([0, *needed]))
    return _divided(cut(totals, _tightest(totals, limits, shards, fullest)), shards)


def _fits(totals: I64, ends: Sequence[int], limits: Cuts) -> bool:
    """Return whether no shard exceeds its limits. A shard with a single sample may exceed them."""
    bounds = numpy.array([0, *ends], dtype=numpy.int64)
    counts, sizes = numpy.diff(bounds), numpy.diff(totals[bounds]) + END_BYTES
    is_over = (sizes > (limits.max_size or 1 << 62)) & (counts > 1)
    return not is_over.any() and (limits.max_count is None or int(counts.max()) <= limits.max_count)


def _tightest(totals: I64, limits: Cuts, shards: int, high: int) -> Cuts:
    """Return the limits with the smallest maximum count for which ``shards`` shards are enough. The count ``high`` is
    known to be large enough."""
    counts = range(-(-(len(totals) - 1) // shards), high)

    def are_enough(count: int) -> bool:
        return len(cut(totals, limits._replace(max_count=count))) <= shards

    return limits._replace(max_count=counts.start + bisect_left(counts, True, key=are_enough))


def _divided(ends: list[int], shards: int) -> list[int]:
    """Halve the fullest shards until there are ``shards`` shards. Among equally full shards, halve the first. There
    must be at least ``shards`` samples."""
    from heapq import heapify, heappop, heappush

    heap = [(first - end, first, end) for first, end in pairwise([0, *ends])]
    heapify(heap)
    while len(heap) < shards:
        _, first, end = heappop(heap)
        middle = (first + end + 1) // 2
        heappush(heap, (first - middle, first, middle))
        heappush(heap, (middle - end, middle, end))
    return sorted(end for _, _, end in heap)


def planned_shards(
    outputs: Outputs,
    parts: Mapping[str, int] | None,
    sizes: Sizes,
    cuts: Cuts,
    ends: Sequence[int] | None = None,
) -> tuple[tuple[OutputSet, ...], tuple[PlannedShard, ...]]:
    """Return the sets and shards to write. ``parts`` has the number of samples in each part. ``ends`` may give the ends
    of shards if there are no parts. Raises UsageError if the output's name does not fit the parts."""
    sets: list[OutputSet] = []
    shards: list[PlannedShard] = []
    begin = 0
    whole = {"": len(sizes.members)}
    for number, (name, samples) in enumerate((whole if parts is None else parts).items()):
        sets.append(outputs.set_of(name))
        totals = sizes.totals[begin : begin + samples + 1]
        shards += sizes.shards(sets[-1], cut(totals, cuts) if ends is None else ends, number, begin)
        begin += samples
    return tuple(sets), tuple(shards)
