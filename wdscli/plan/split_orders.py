"""The orders of ``split``: by ratio, by a field, by a map of keys.

What it is: three orders that differ in what they call a part. How: samples stay in input order within their part. A
ratio compares a hash of the sample's key (or of its group) with shares of 2^64, so that a sample stays in its part
whatever else is in the set. All take a sample to its part by its own value (:class:`Routes`), once the parts are
known; only ``stratify`` counts first. It must not know where samples are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.plan.key_map import KeyMap
from wdscli.plan.orders import PLAIN_BYTES, Arranged, Part
from wdscli.plan.shares import Share, parts_of_ranks, ranks_of, stratified
from wdscli.plan.split_values import DIGEST_BYTES, MISSING, UNDECODABLE, Keys
from wdscli.plan.table import ROWS_PER_BLOCK
from wdscli.plan.values import Pool
from wdscli.storage.addresses import natural

if TYPE_CHECKING:
    from typing import TypeAlias

    from wdscli.plan.survey import Extract
    from wdscli.plan.table import I64, U32, U64, PlanTable
    from wdscli.plan.values import Values

    Numbers: TypeAlias = I64 | U32

MOST_PARTS = 10_000
_LEFT_OUT = {MISSING: "missing", UNDECODABLE: "undecodable"}


class SplitOptions(NamedTuple):
    """Into which parts. ``ratio``, ``by`` and ``by_map`` exclude each other; with none of them there are no parts.

    ``missing`` says what becomes of a sample without a value or a key that is not in the map: ``error``, ``drop``, or
    the name of a part to put it in.
    """

    ratio: str | None = None
    group_by: str | None = None
    stratify: str | None = None
    seed: int = 0
    by: str | None = None
    by_map: str | Sequence[str] | None = None
    missing: str = "error"


class Routes(NamedTuple):
    """Parts by name, and ``numbers_of``, which takes values to numbers of parts, from 0; after the last part come the
    numbers of samples that are left out (:data:`_LEFT_OUT`, in that order). Parts without samples are made only with
    ``keeps_empty``."""

    names: Sequence[str]
    numbers_of: Callable[[Sequence[bytes]], I64]
    keeps_empty: bool = True

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return len(self.names) + len(_LEFT_OUT)

    def of(self, values: Values) -> U32:
        """The number of each value."""
        import numpy

        found: U32 = numpy.empty(values.total, dtype=numpy.uint32)
        at = 0
        for some in values.blocks():
            found[at : at + len(some)] = self.numbers_of(some)
            at += len(some)
        return found

    def arranged(self, counts: Sequence[int], order: I64 | None) -> Arranged:
        """The parts, from how many samples each number has; ``order`` has the samples of all numbers."""
        parts = [Part(name, count) for name, count in zip(self.names, counts) if count or self.keeps_empty]
        left = dict(zip(_LEFT_OUT.values(), counts[len(self.names) :], strict=True))
        if order is not None:
            order = order[: len(order) - sum(left.values())]
        return Arranged(order, parts, {why: count for why, count in left.items() if count})


class RatioOrder(NamedTuple):
    """Parts by a hash. ``extract`` is None where the hash of the (unchanged) key, which every row has, is enough."""

    shares: tuple[Share, ...]
    asked: SplitOptions
    extract: Extract | None = None
    operation: str = "split"
    dedup: None = None
    bytes_per_sample: int = PLAIN_BYTES

    @property
    def seed(self) -> int:
        return self.asked.seed

    @property
    def may_leave_out(self) -> bool:
        return self.extract is not None

    def is_left_out(self, value: bytes) -> bool:
        return value in _LEFT_OUT

    def options(self) -> dict[str, Any]:
        return {"ratio": ratio_text(self.shares), **_given(self.asked, "group_by", "stratify", "missing")}

    def arrange(self, pool: Pool) -> Arranged:
        routes = Routes([share.part for share in self.shares], self._numbers_of)
        if pool.values is None:
            return arranged(routes, self._parts_of_keys(pool.samples))
        if self.asked.stratify is None:
            return arranged(routes, routes.of(pool.values))
        return arranged(routes, self._quotas(pool.values))

    def _parts_of(self, digests: U64) -> I64:
        return parts_of_ranks(ranks_of(self.seed, digests), self.shares)

    def _parts_of_keys(self, samples: PlanTable) -> Numbers:
        """Some at a time, because all hashes together are a fifth of a plan."""
        import numpy

        found: U32 = numpy.empty(samples.total, dtype=numpy.uint32)
        for first in range(0, samples.total, ROWS_PER_BLOCK):
            found[first : first + ROWS_PER_BLOCK] = self._parts_of(
                samples.keys[first : first + ROWS_PER_BLOCK]
            )
        return found

    def _numbers_of(self, values: Sequence[bytes]) -> I64:
        """The part of each value by its digest, or the number of what is left out."""
        import numpy

        found: I64 = numpy.fromiter(
            (self._marks.get(value, -1) for value in values), numpy.int64, len(values)
        )
        rows = numpy.flatnonzero(found < 0).tolist()
        found[rows] = self._parts_of(_digests([values[row] for row in rows]))
        return found

    @property
    def _marks(self) -> dict[bytes, int]:
        return {mark: len(self.shares) + place for place, mark in enumerate(_LEFT_OUT)}

    def _quotas(self, values: Values) -> Numbers:
        """The same by quotas for each class."""
        import numpy

        classes = sorted({value[DIGEST_BYTES:] for some in values.blocks() for value in some} - {b""})
        places = {name: number for number, name in enumerate(classes)}
        digests: U64 = numpy.empty(values.total, dtype=numpy.uint64)
        class_of: U32 = numpy.empty(values.total, dtype=numpy.uint32)
        at = 0
        for some in values.blocks():
            kept = [value for value in some if value not in _LEFT_OUT]
            digests[at : at + len(kept)] = _digests(kept)
            class_of[at : at + len(kept)] = _looked_up([value[DIGEST_BYTES:] for value in kept], places)
            at += len(kept)
        parts = stratified(digests[:at], class_of[:at], self.seed, self.shares)
        if at == values.total:
            return parts
        numbers: U32 = numpy.empty(values.total, dtype=numpy.uint32)
        at = first = 0
        for some in values.blocks():
            marks = numpy.fromiter((self._marks.get(value, -1) for value in some), numpy.int64, len(some))
            rows = numpy.flatnonzero(marks < 0)
            marks[rows] = parts[at : at + len(rows)]
            numbers[first : first + len(some)] = marks
            at, first = at + len(rows), first + len(some)
        return numbers


class FamilyOrder(NamedTuple):
    """A part for each value, in natural order of their names."""

    asked: SplitOptions
    extract: Extract | None
    operation: str = "split"
    seed: int | None = None
    dedup: None = None
    bytes_per_sample: int = PLAIN_BYTES
    may_leave_out: bool = True

    def is_left_out(self, value: bytes) -> bool:
        return value in _LEFT_OUT

    def options(self) -> dict[str, Any]:
        return _given(self.asked, "by", "missing")

    def arrange(self, pool: Pool) -> Arranged:
        assert pool.values is not None
        routes = self._routes(pool.values)
        return arranged(routes, routes.of(pool.values))

    def _routes(self, values: Values) -> Routes:
        """How values lead to parts, from all values. Raises UsageError."""
        seen: set[bytes] = set()
        for some in values.blocks():
            seen.update(some)
        names = sorted((to_text(value) for value in seen.difference(_LEFT_OUT)), key=natural)
        if len(names) > MOST_PARTS:
            raise UsageError(
                f"--by {self.asked.by} makes {len(names)} parts, and {MOST_PARTS} are the most",
                hint="put several values into one part with --by-map FILE",
            )
        places = {value: place for place, value in enumerate([*map(to_bytes, names), *_LEFT_OUT])}
        return Routes(names, lambda values: _looked_up(values, places))


class MapOrder(NamedTuple):
    """The parts that a map names, as far as they have samples."""

    asked: SplitOptions
    key_map: KeyMap
    extract: Extract | None = Keys()
    operation: str = "split"
    seed: int | None = None
    dedup: None = None
    bytes_per_sample: int = PLAIN_BYTES

    @property
    def may_leave_out(self) -> bool:
        return self.asked.missing == "drop"

    def is_left_out(self, value: bytes) -> bool:
        return self.may_leave_out and value not in self.key_map.part_of

    def options(self) -> dict[str, Any]:
        return {"by_map": f"xxh3_128:{self.key_map.digest}", **_given(self.asked, "missing")}

    def arrange(self, pool: Pool) -> Arranged:
        assert pool.values is not None
        routes = self._routes(pool.values)
        return arranged(routes, routes.of(pool.values))

    def _routes(self, keys: Values) -> Routes:
        """How keys lead to parts. Raises DataError for keys that are not in the map, unless these go elsewhere."""
        missing, part_of = self.asked.missing, self.key_map.part_of
        if missing == "error":
            self._check_all(keys.blocks())
        fallback = [] if missing in ("error", "drop") else [missing]
        names: list[str] = sorted({*self.key_map.parts, *fallback}, key=natural)
        places = {name: place for place, name in enumerate(names)}
        self._check_any(keys.blocks())
        # A key that is not there has the number -1, and so the last place.
        rest = places[missing] if fallback else len(names)
        new = [*(places[part] for part in self.key_map.parts), rest]
        return Routes(names, lambda keys: _mapped(keys, part_of, new), keeps_empty=False)

    def _check_any(self, values: Iterable[Sequence[bytes]]) -> None:
        """A map of which no sample has a key is one of another set."""
        keys: Sequence[bytes] = ()
        for keys in values:
            if not self.key_map.part_of.keys().isdisjoint(keys):
                return
        if keys:
            raise DataError(
                f"no sample has a key of {self.key_map.name} for --by-map",
                code="not-found",
                hint=f"keys are {', '.join(map(to_text, keys[:3]))}",
            )

    def _check_all(self, values: Iterable[Sequence[bytes]]) -> None:
        first, count = b"", 0
        for keys in values:
            lacking = [key for key in keys if key not in self.key_map.part_of]
            first = first if count or not lacking else lacking[0]
            count += len(lacking)
        if count:
            more = f" and for {count - 1} more keys" if count > 1 else ""
            raise DataError(
                f'{self.key_map.name} has no part for "{to_text(first)}"{more}',
                code="missing",
                hint="leave such samples out with --missing drop, or name a part for them: --missing PART",
            )


def _given(options: SplitOptions, *names: str) -> dict[str, Any]:
    """The options of these names that are not at their default."""
    defaults = SplitOptions._field_defaults
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value != defaults[name]}


def ratio_text(shares: Sequence[Share]) -> str:
    """The shares as the manifest tells them.

    >>> from wdscli.plan.shares import parse_ratio
    >>> ratio_text(parse_ratio("train=2,val=0001"))
    'train=2/3,val=1/3'
    """
    return ",".join(f"{share.part}={share.share}" for share in shares)


def _digests(values: Sequence[bytes]) -> U64:
    """The hashes at the beginning of values."""
    import numpy

    together = b"".join([value[:DIGEST_BYTES] for value in values])
    return numpy.frombuffer(together, dtype="<u8").astype(numpy.uint64)


def _looked_up(values: Sequence[bytes], numbers: dict[bytes, int]) -> I64:
    import numpy

    return numpy.fromiter(map(numbers.__getitem__, values), dtype=numpy.int64, count=len(values))


def _mapped(keys: Sequence[bytes], part_of: dict[bytes, int], new: Sequence[int]) -> I64:
    import numpy

    found = numpy.fromiter((part_of.get(key, -1) for key in keys), dtype=numpy.int64, count=len(keys))
    return numpy.array(new, dtype=numpy.int64)[found]


def arranged(routes: Routes, numbers: Numbers) -> Arranged:
    """All samples by the number of their part, in each in input order: a counting sort, which needs no memory but for
    the order."""
    import numpy

    blocks = [numbers[first : first + ROWS_PER_BLOCK] for first in range(0, len(numbers), ROWS_PER_BLOCK)]
    tallies = (numpy.bincount(some, minlength=routes.total) for some in blocks)
    counts = sum(tallies, numpy.zeros(routes.total, dtype=numpy.int64)).tolist()
    ends = [0, *accumulate(counts)][: len(counts)]
    order: I64 = numpy.empty(len(numbers), dtype=numpy.int64)
    for block, some in enumerate(blocks):
        rows = numpy.argsort(some, kind="stable") + block * ROWS_PER_BLOCK
        for number, taken in enumerate(numpy.bincount(some).tolist()):
            order[ends[number] : ends[number] + taken] = rows[:taken]
            ends[number] += taken
            rows = rows[taken:]
    return routes.arranged(counts, order)
