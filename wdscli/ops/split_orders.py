"""The orders of ``split``: by ratio, by a field, by a map of keys.

What it is: three orders that differ in what they call a part. How: samples stay in input order within their part. A
ratio compares a hash of the sample's key (or of its group) with shares of 2^64, so that a sample stays in its part
whatever else is in the set. All take a sample to its part by its own value (:class:`Routes`), once the parts are
known, so that an external sort can do the work of ``arrange``; only ``stratify`` counts first, on disc where it must.
It must not know where samples are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.ops.key_map import KeyMap
from wdscli.ops.orders import Arranged, Part, Pool
from wdscli.ops.parts import Share, parts_of_ranks, ranks_of, stratified
from wdscli.ops.plan import BLOCK
from wdscli.ops.split_values import DIGEST_BYTES, MISSING, UNDECODABLE, Keys
from wdscli.ops.strata import stratified_on_disc
from wdscli.storage.addresses import natural

if TYPE_CHECKING:
    from typing import TypeAlias

    from wdscli.ops.external import NewPath, Stored
    from wdscli.ops.rows import I64, U32, U64, Samples
    from wdscli.ops.survey import Extract

    Numbers: TypeAlias = I64 | U32
    Blocks: TypeAlias = Callable[[], Iterable[Sequence[bytes]]]
    """All values, some at a time, as often as they are asked for."""
    Sorting: TypeAlias = tuple[NewPath, int]
    """Where sorts may write, and how much memory they may have."""

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

    @property
    def seed(self) -> int:
        return self.asked.seed

    @property
    def may_leave_out(self) -> bool:
        return self.extract is not None

    def is_left_out(self, value: bytes) -> bool:
        return value in _LEFT_OUT

    @property
    def part_names(self) -> list[str]:
        """The parts, in the order of the numbers that :meth:`ranks` gives."""
        return [share.part for share in self.shares]

    def options(self) -> dict[str, Any]:
        return {"ratio": ratio_text(self.shares), **_given(self.asked, "group_by", "stratify", "missing")}

    def arrange(self, pool: Pool) -> Arranged:
        parts_of = self._by_digests if self.asked.stratify is None else self._quotas
        routes = self._with_left_out(parts_of)
        if pool.values is None:
            return arranged(routes, self._parts_of_keys(pool.samples))
        return arranged(routes, routes.numbers_of(pool.values))

    @property
    def by_routes(self) -> bool:
        """Whether :meth:`routes` are all there is to the order."""
        return self.extract is not None

    def routes(self, values: Blocks, sorting: Sorting) -> Routes:
        """How values lead to parts, for an external sort in place of :meth:`arrange`. With quotas these are for all
        values, some at a time in their order, once."""
        if self.asked.stratify is None:
            return self._with_left_out(self._by_digests)
        classes: set[bytes] = set()
        for some in values():
            classes.update(_class_of(value) for value in some if value not in _LEFT_OUT)
        numbers = {name: number for number, name in enumerate(sorted(classes))}
        kept = ([value for value in some if value not in _LEFT_OUT] for some in values())
        blocks = ((_digests(some), _looked_up(list(map(_class_of, some)), numbers)) for some in kept)
        parts = stratified_on_disc(blocks, len(numbers), self.seed, self.shares, *sorting)
        return self._with_left_out(_one_after_another(parts))

    def ranks(self, samples: Samples) -> U64:
        """The part of each sample, where there is no ``extract``."""
        import numpy

        return self._parts_of(samples.keys).astype(numpy.uint64)

    def _parts_of(self, digests: U64) -> I64:
        return parts_of_ranks(ranks_of(self.seed, digests), self.shares)

    def _parts_of_keys(self, samples: Samples) -> Numbers:
        """Some at a time, because all hashes together are a fifth of a plan."""
        import numpy

        found: U32 = numpy.empty(samples.total, dtype=numpy.uint32)
        for first in range(0, samples.total, BLOCK):
            found[first : first + BLOCK] = self._parts_of(samples.keys[first : first + BLOCK])
        return found

    def _by_digests(self, values: Sequence[bytes]) -> I64:
        return self._parts_of(_digests(values))

    def _quotas(self, values: Sequence[bytes]) -> I64:
        classes = list(map(_class_of, values))
        numbers = {name: number for number, name in enumerate(sorted(set(classes)))}
        return stratified(_digests(values), _looked_up(classes, numbers), self.seed, self.shares)

    def _with_left_out(self, numbers_of: Callable[[Sequence[bytes]], I64]) -> Routes:
        """Routes by digests, which leave out what has none."""

        def numbers(values: Sequence[bytes]) -> I64:
            import numpy

            marks = {mark: len(self.shares) + place for place, mark in enumerate(_LEFT_OUT)}
            found: I64 = numpy.fromiter((marks.get(value, -1) for value in values), numpy.int64, len(values))
            rows = numpy.flatnonzero(found < 0).tolist()
            found[rows] = numbers_of(values if len(rows) == len(values) else [values[row] for row in rows])
            return found

        return Routes(self.part_names, numbers)


class FamilyOrder(NamedTuple):
    """A part for each value, in natural order of their names."""

    asked: SplitOptions
    extract: Extract | None
    operation: str = "split"
    seed: int | None = None
    by_routes: bool = True
    may_leave_out: bool = True

    def is_left_out(self, value: bytes) -> bool:
        return value in _LEFT_OUT

    def options(self) -> dict[str, Any]:
        return _given(self.asked, "by", "missing")

    def arrange(self, pool: Pool) -> Arranged:
        values = pool.values or []
        routes = self.routes(lambda: [values])
        return arranged(routes, routes.numbers_of(values))

    def routes(self, values: Blocks, _: Sorting | None = None) -> Routes:
        """How values lead to parts, from all values, some at a time. Raises UsageError."""
        seen: set[bytes] = set()
        for some in values():
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
    by_routes: bool = True

    @property
    def may_leave_out(self) -> bool:
        return self.asked.missing == "drop"

    def is_left_out(self, value: bytes) -> bool:
        return self.may_leave_out and value not in self.key_map.part_of

    def options(self) -> dict[str, Any]:
        return {"by_map": f"xxh3_128:{self.key_map.digest}", **_given(self.asked, "missing")}

    def arrange(self, pool: Pool) -> Arranged:
        keys = pool.values or []
        routes = self.routes(lambda: [keys])
        return arranged(routes, routes.numbers_of(keys))

    def routes(self, values: Blocks, _: Sorting | None = None) -> Routes:
        """How keys lead to parts. Raises DataError for keys that are not in the map, unless these go elsewhere."""
        missing, part_of = self.asked.missing, self.key_map.part_of
        if missing == "error":
            self._check_all(values())
        fallback = [] if missing in ("error", "drop") else [missing]
        names: list[str] = sorted({*self.key_map.parts, *fallback}, key=natural)
        places = {name: place for place, name in enumerate(names)}
        self._check_any(values())
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

    >>> from wdscli.ops.parts import parse_ratio
    >>> ratio_text(parse_ratio("train=2,val=0001"))
    'train=2/3,val=1/3'
    """
    return ",".join(f"{share.part}={share.share}" for share in shares)


def _class_of(value: bytes) -> bytes:
    """What follows the hash in a value."""
    return value[DIGEST_BYTES:]


def _one_after_another(parts: Stored) -> Callable[[Sequence[bytes]], I64]:
    """The numbers of parts that lie on disc, as many as values are asked for each time."""
    at = 0

    def taken(values: Sequence[bytes]) -> I64:
        nonlocal at
        at += len(values)
        numbers: I64 = parts.read(at - len(values), at)["part"].astype("<i8")
        return numbers

    return taken


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

    blocks = [numbers[first : first + BLOCK] for first in range(0, len(numbers), BLOCK)]
    tallies = (numpy.bincount(some, minlength=routes.total) for some in blocks)
    counts = sum(tallies, numpy.zeros(routes.total, dtype=numpy.int64)).tolist()
    ends = [0, *accumulate(counts)][: len(counts)]
    order: I64 = numpy.empty(len(numbers), dtype=numpy.int64)
    for block, some in enumerate(blocks):
        rows = numpy.argsort(some, kind="stable") + block * BLOCK
        for number, taken in enumerate(numpy.bincount(some).tolist()):
            order[ends[number] : ends[number] + taken] = rows[:taken]
            ends[number] += taken
            rows = rows[taken:]
    return routes.arranged(counts, order)
