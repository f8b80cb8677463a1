"""Where one output shard ends and the next begins, and what each is called.

What it is: :class:`Cuts`, what options say of it; :class:`Outputs`, from the text of ``-o`` to the
:class:`~wdscli.shards.writing.OutputSet` of each part; :func:`planned_shards`, which cuts samples in output order into
:class:`PlannedShard` and gives these their addresses. How: the bytes that lie before each sample make an array, in
which the end of a shard is looked up; ten million samples are cut in a second. ``{part}`` is replaced before anything
else is read in the text of ``-o``, which must be such that no two parts can have a file in common. It must not know how
samples came into their order and parts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from wdscli.arrays import I64, U32, numpy
from wdscli.errors import UsageError
from wdscli.plan.table import Ordered, blocks_of
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
"""Of a part's name: with prefix and number it must still be the name of a file."""
_SHOWN = 40
"""Characters of a name in an error: it may be an image that was taken for one."""


class Cuts(NamedTuple):
    """Where shards end. With none of the first three given, a shard holds at most 1 GB; ``shards`` makes that many,
    whose counts differ by at most one. ``divisible_by`` makes their number a multiple of itself, whatever the cut.
    Sizes are real tar bytes, end of archive included."""

    max_count: int | None = None
    max_size: int | None = None
    shards: int | None = None
    divisible_by: int | None = None

    def checked(self, fixed: int | None) -> Cuts:
        """The cuts together with an output pattern that names exactly ``fixed`` shards. Raises UsageError."""
        wanted = self.shards
        if fixed is not None:
            if wanted not in (None, fixed):
                raise UsageError(
                    f"the output names {fixed} shards, --shards asks for {wanted}", hint="give one of them"
                )
            wanted = fixed
        if wanted is not None and (self.max_count is not None or self.max_size is not None):
            raise UsageError(
                "a number of shards and a limit for each exclude each other",
                hint="give --shards (or braces in the output), or --max-count and --max-size",
            )
        for name, value in self._replace(shards=wanted)._asdict().items():
            option = f"--{name.replace('_', '-')}"
            if value is not None and value < 1:
                raise UsageError(f"{option} must be at least 1, not {value}")
            if value is not None and name in ("shards", "divisible_by") and value > MAX_NAMES:
                raise UsageError(f"{option} {value} is more than {MAX_NAMES} shards")
        if fixed is not None and fixed % (self.divisible_by or 1):
            raise UsageError(
                f"the output names {fixed} shards, which is no multiple of {self.divisible_by}",
                hint="name another number of shards, or any number: -o out-%06d.tar",
            )
        if wanted is not None:
            wanted = multiple(wanted, self.divisible_by)
        if wanted is None and self.max_count is None and self.max_size is None:
            return self._replace(max_size=DEFAULT_MAX_SIZE_BYTES)
        return self._replace(shards=wanted)

    def may_keep(self, counts: Sequence[int], sizes: Sequence[int | None]) -> bool:
        """Whether a shard may hold what one of the inputs holds and no more, as far as that can be told from their
        samples, -1 where nobody knows, and their sizes.

        >>> Cuts(shards=3).may_keep([5, 5], [9, 9]), Cuts(max_count=5).may_keep([5, 4], [None, None])
        (False, True)
        """
        if len(counts) == 1 or self.shards is not None:
            return self.shards in (None, len(counts))
        if self.max_count is not None and not {self.max_count, -1} & {*counts}:
            return False
        # Of two that fit in one, neither comes out alone.
        most = self.max_size
        return most is None or any((one or most) + (two or most) > most for one, two in pairwise(sizes))


class Outputs:
    """The sets that one command writes; ``names`` are those that ``{name}`` stands for, one a shard. Raises UsageError
    for a text that cannot name shards. ``may_exist`` is for who
    goes on with what is there."""

    def __init__(
        self,
        text: str,
        settings: ShardSettings,
        *,
        names: Sequence[str] | None = None,
        may_exist: bool = False,
    ) -> None:
        self.text = text
        self._names = names
        self.may_exist = may_exist
        self._settings = settings
        self._probe = OutputSet(text.replace(FIELD, "part"), settings, names=names)
        if self.has_parts:
            self._check_apart()

    @property
    def has_parts(self) -> bool:
        """Whether the text names a set for each part."""
        return FIELD in self.text

    def _check_apart(self) -> None:
        """Refuse names by which one part's files could be taken for another's."""
        if beside := _BESIDE_NUMBER.search(self.text):
            raise UsageError(
                f'"{beside[0]}" in {self.text}: where does the part\'s name end and the number begin?',
                hint=f"put something between them: {FIELD}-%06d.tar",
            )
        manifest = OutputSet(self.text.replace(FIELD, "trap"), self._settings).manifest_address
        if manifest is not None and manifest == self._probe.manifest_address:
            raise UsageError(
                f"{self.text} gives the manifests of all parts one name",
                hint=f"put {FIELD} before the number: {FIELD}-%06d.tar or {FIELD}/%06d.tar",
            )

    @property
    def is_stream(self) -> bool:
        """Whether shards go to standard output, a command or a device."""
        return self._probe.pattern.is_stream

    def cuts(self, cuts: Cuts) -> Cuts:
        """The cuts of each part, together with what the text says: a single file is one shard, braces are exactly
        theirs. Raises UsageError."""
        pattern = self._probe.pattern
        if pattern.single:
            if cuts != Cuts() and cuts.shards != 1:
                raise UsageError(
                    f"{self.text} is one shard and cannot be cut", hint="name the shards: -o out-%06d.tar"
                )
            return Cuts(shards=1)
        return cuts.checked(pattern.count)

    def set_of(self, part: str) -> OutputSet:
        """The set of one part. Raises UsageError for a name that cannot stand in the text."""
        if FIELD in self.text and self.is_stream and not _SAFE_IN_SHELL.fullmatch(part):
            raise UsageError(
                f'"{part}" cannot be the name of a part in a command',
                hint="in pipe:CMD a part's name has letters, digits, - _ . + = only",
            )
        return OutputSet(self.text.replace(FIELD, checked_part(part)), self._settings, names=self._names)

    def check(self, parts: Sequence[str] | None, inputs: Sequence[str]) -> None:
        """Refuse what is there already, as far as the parts are known: None for not yet."""
        if not self.has_parts:
            self._probe.check(inputs, may_exist=self.may_exist)
        for part in parts or () if self.has_parts else ():
            self.set_of(part).check(inputs, may_exist=self.may_exist)


@lru_cache(maxsize=1024)
def checked_part(name: str) -> str:
    """A part's name, if it can stand in an address. Raises UsageError.

    >>> checked_part("train")
    'train'
    """
    bad = not name or name.startswith((".", "-", "~", " ")) or any(mark in name for mark in "/\\{}%*?[]@|:")
    if bad or not name.isprintable() or len(name.encode("utf-8", "surrogateescape")) > _LONGEST_BYTES:
        raise UsageError(
            f'"{name if len(name) <= _SHOWN else name[:_SHOWN] + "..."}" cannot be the name of a part',
            hint="a part's name becomes part of a file's name: letters, digits, - _ . and such",
        )
    return name


class Part(NamedTuple):
    """A part of the output: its name, for ``{part}``, and how many samples it has."""

    name: str
    samples: int


class PlannedShard(NamedTuple):
    """One shard to be made: samples ``first`` to ``end`` of the output order. ``part`` counts from 0, and ``number``
    the shard in its part; ``size`` is in bytes."""

    address: str
    part: int
    number: int
    first: int
    end: int
    size: int
    members: int

    @property
    def samples(self) -> int:
        return self.end - self.first


class PlannedPart(NamedTuple):
    """One set to be made; its name is empty where there is no ``{part}``."""

    name: str
    output: OutputSet


class Sizes(NamedTuple):
    """What samples in output order take: ``totals`` has the bytes before each and behind the last, ``members`` how many
    each has."""

    totals: I64
    members: U32

    @classmethod
    def of(cls, ordered: Ordered) -> Sizes:
        """Those of all samples."""
        total = ordered.total
        found = cls(numpy.zeros(total + 1, dtype=numpy.int64), numpy.empty(total, dtype=numpy.uint32))
        for first, lengths in ordered.blocks_of("out"):
            end = first + len(lengths)
            found.totals[first + 1 : end + 1] = found.totals[first] + lengths.cumsum(dtype=numpy.int64)
        for first, members in ordered.blocks_of("members"):
            found.members[first : first + len(members)] = members
        return found

    def of_shard(self, first: int, end: int) -> tuple[int, int]:
        """The bytes, end of archive included, and members of a shard of samples ``first`` to ``end``."""
        size = int(self.totals[end] - self.totals[first]) + END_BYTES
        return size, int(self.members[first:end].sum())

    def oversized(self, cuts: Cuts) -> int:
        """How many samples are larger than a shard may be on their own."""
        if cuts.max_size is None:
            return 0
        room = max(0, cuts.max_size - END_BYTES)
        parts = (self.totals[part.start : part.stop + 1] for part in blocks_of(len(self.members)))
        return sum(int((numpy.diff(some) > room).sum()) for some in parts)


def names_of(addresses: Sequence[str]) -> list[str]:
    """What :data:`NAME` stands for. Raises UsageError for two inputs of one name."""
    first: dict[str, str] = {}
    for address in addresses:
        name = plain_name(base_name(address))
        if name in first:
            raise UsageError(
                f"{first[name]} and {address} would both be written as {name}",
                hint="copy one folder at a time, or number the shards: wds split SHARDS -o out-%06d.tar",
            )
        first[name] = address
    return list(first)


def cut(totals: I64, cuts: Cuts) -> list[int]:
    """The ends (exclusive) of the shards in a sequence of samples, of which ``totals`` has the bytes before each and
    behind the last. Raises UsageError when there are fewer samples than shards that must each have one."""
    total = len(totals) - 1
    if cuts.divisible_by is not None:
        return _cut_to_multiple(totals, cuts, cuts.divisible_by)
    if cuts.shards is not None:
        return evenly(total, cuts.shards)
    count, room = cuts.max_count or total, (cuts.max_size or 1 << 62) - END_BYTES
    ends, at = [], 0
    while at < total:
        fits = int(totals.searchsorted(int(totals[at]) + room, side="right")) - 1
        # A sample that is larger than a shard may be has one of its own.
        at = max(min(at + count, fits), at + 1)
        ends.append(at)
    return ends


def multiple(count: int, of: int | None) -> int:
    """The least multiple that is at least ``count``.

    >>> multiple(9, 8), multiple(16, 8), multiple(9, None)
    (16, 16, 9)
    """
    return count if of is None else -(-count // of) * of


def evenly(total: int, shards: int) -> list[int]:
    """The ends of shards whose counts differ by at most one."""
    return [total * (number + 1) // shards for number in range(shards)]


def _cut_to_multiple(totals: I64, cuts: Cuts, of: int) -> list[int]:
    """The least multiple of shards that the cuts need, balanced by count as far as the limits let; none for no
    samples."""
    total = len(totals) - 1
    if not total:
        return []
    limits = cuts._replace(divisible_by=None)
    needed = cut(totals, limits) if cuts.shards is None else []
    shards = multiple(cuts.shards or len(needed), of)
    if total < shards:
        raise UsageError(
            f"{total} samples do not fill {shards} shards, and --divisible-by leaves no shard empty",
            hint="a smaller --divisible-by or --shards, or a larger --max-count or --max-size",
        )
    ends = evenly(total, shards)
    if cuts.shards is not None or _fits(totals, ends, limits):
        return ends
    fullest = max(end - first for first, end in pairwise([0, *needed]))
    return _divided(cut(totals, _tightest(totals, limits, shards, fullest)), shards)


def _fits(totals: I64, ends: Sequence[int], limits: Cuts) -> bool:
    """Whether no shard is above its limits; a sample may be, in a shard of its own."""
    bounds = numpy.array([0, *ends], dtype=numpy.int64)
    counts, sizes = numpy.diff(bounds), numpy.diff(totals[bounds]) + END_BYTES
    is_over = (sizes > (limits.max_size or 1 << 62)) & (counts > 1)
    return not is_over.any() and (limits.max_count is None or int(counts.max()) <= limits.max_count)


def _tightest(totals: I64, limits: Cuts, shards: int, high: int) -> Cuts:
    """The limits with the smallest count with which so many shards are enough; ``high`` is large enough."""
    counts = range(-(-(len(totals) - 1) // shards), high)

    def are_enough(count: int) -> bool:
        return len(cut(totals, limits._replace(max_count=count))) <= shards

    return limits._replace(max_count=counts.start + bisect_left(counts, True, key=are_enough))


def _divided(ends: list[int], shards: int) -> list[int]:
    """So many shards: the fullest are halved, the first of several first, as long as there are too few. ``ends`` has
    at least so many samples."""
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
    parts: Sequence[Part] | None,
    sizes: Sizes,
    cuts: Cuts,
    ends: Sequence[int] | None = None,
) -> tuple[tuple[PlannedPart, ...], tuple[PlannedShard, ...]]:
    """The sets and shards to be made; ``ends``, where there are no parts, says where shards end. Raises UsageError when
    the output's name does not fit the parts."""
    made: list[PlannedPart] = []
    shards: list[PlannedShard] = []
    begin = 0
    for number, part in enumerate(parts if parts is not None else [Part("", len(sizes.members))]):
        made.append(PlannedPart(part.name, outputs.set_of(part.name or "part")))
        totals = sizes.totals[begin : begin + part.samples + 1]
        bounds = pairwise([begin, *(begin + end for end in (cut(totals, cuts) if ends is None else ends))])
        for at, (first, end) in enumerate(bounds):
            address = made[-1].output.address(at)
            shards.append(PlannedShard(address, number, at, first, end, *sizes.of_shard(first, end)))
        begin += part.samples
    return tuple(made), tuple(shards)
