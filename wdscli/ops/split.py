"""``split``: a set into shards of another size, and into parts: by ratio, by a field, by a map of keys.

What it is: :class:`SplitOptions`, what may be asked; :func:`split_order`, the
:class:`~wdscli.ops.orders.Order` that does it; :func:`split`. How: samples stay in input order within their part. A
ratio compares a hash of the sample's key (or of its group) with shares of 2^64, so that a sample stays in its part
whatever else is in the set; only ``stratify`` counts. The engine is :mod:`wdscli.ops.reorder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.ops.field_values import FieldValue, WholeKey, field_or_pattern
from wdscli.ops.key_map import KeyMap, read_key_map
from wdscli.ops.orders import Arranged, InputOrder, Order, Part, Pool
from wdscli.ops.outputs import FIELD, Outputs, checked_part
from wdscli.ops.parts import Share, parse_ratio, parts_of_ranks, ranks_of, stratified
from wdscli.ops.reorder import Request
from wdscli.ops.running import ReorderReport, reorder
from wdscli.ops.split_values import DIGEST_BYTES, MISSING, UNDECODABLE, Asked, FamilyNames, GroupDigests, Keys
from wdscli.progress import QUIET, Progress
from wdscli.storage.addresses import natural

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U64
    from wdscli.ops.survey import Extract

MOST_PARTS = 10_000
_LEFT_OUT = {MISSING: "missing", UNDECODABLE: "undecodable"}
_OF_RATIO = ("group_by", "stratify")


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
    by_map: str | None = None
    missing: str = "error"


PLAIN = SplitOptions()
"""No parts."""


def split(request: Request, options: SplitOptions = PLAIN, *, progress: Progress = QUIET) -> ReorderReport:
    """Split ``request.inputs`` into ``request.output``, where ``{part}`` stands for the name of a part.

    Raises UsageError, InputError, DataError, OutputError.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in.tar") as writer:
    ...     for number in range(10):
    ...         writer.write(f"n{number}", {"cls": b"0"})
    >>> report = split(Request([f"{folder}/in.tar"], f"{folder}/{{part}}-%06d.tar"), SplitOptions("train=8,val=2"))
    >>> dict(zip(report.parts, [manifest.samples for manifest in report.manifests]))
    {'train': 8, 'val': 2}
    """
    return reorder(request, split_order(request, options), progress=progress)


def split_order(request: Request, options: SplitOptions = PLAIN) -> Order:
    """The order that does what ``options`` ask. Raises UsageError, also when the output's name does not fit, and
    OutputExistsError when a part that is known already is there."""
    ways = [name for name in ("ratio", "by", "by_map") if getattr(options, name) is not None]
    if len(ways) > 1:
        raise UsageError(
            f"{_option(ways[0])} and {_option(ways[1])} exclude each other", hint="give one of them"
        )
    _check_fit(request, options, ways)
    if not ways:
        return InputOrder("split")
    if options.ratio is not None:
        return _ratio_order(request, options)
    if options.by is not None:
        return _family_order(request, options, options.by)
    return _map_order(request, options, options.by_map or "")


def _check_fit(request: Request, options: SplitOptions, ways: Sequence[str]) -> None:
    """Options that mean nothing without another one, and the output's name."""
    if ways != ["ratio"]:
        for name in _OF_RATIO:
            if getattr(options, name) is not None:
                raise UsageError(f"{_option(name)} goes with --ratio", hint="--ratio train=0.9,val=0.1")
    if not ways and options.missing != "error":
        raise UsageError("--missing goes with --ratio, --by or --by-map")
    outputs = Outputs(request.output, request.settings)
    if ways and not outputs.has_parts:
        raise UsageError(
            f"{request.output} names one set, and {_option(ways[0])} makes several",
            hint=f"write {FIELD} where the part's name goes: -o '{FIELD}-%06d.tar' or -o '{FIELD}/%06d.tar'",
        )
    if outputs.has_parts and not ways:
        raise UsageError(
            f"{FIELD} in {request.output} stands for a part's name, and there are no parts",
            hint="make parts with --ratio train=0.9,val=0.1, --by FIELD or --by-map FILE",
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


class RatioOrder(NamedTuple):
    """Parts by a hash. ``extract`` is None where the hash of the (unchanged) key, which every row has, is enough."""

    shares: tuple[Share, ...]
    asked: SplitOptions
    extract: Extract | None = None
    operation: str = "split"

    @property
    def seed(self) -> int:
        return self.asked.seed

    def options(self) -> dict[str, Any]:
        given = {"ratio": ratio_text(self.shares), **_given(self.asked, "group_by", "stratify")}
        return given | _missing_given(self.asked)

    def arrange(self, pool: Pool) -> Arranged:
        names = [share.part for share in self.shares]
        if pool.values is None:
            return arranged(self.part_of_digests(pool.samples.keys), names)
        return _without_left_out(pool.values, names, self._parts_of)

    def part_of_digests(self, digests: U64) -> I64:
        """The part of each group; without ``stratify`` it depends on nothing else."""
        return parts_of_ranks(ranks_of(self.seed, digests), self.shares)

    def _parts_of(self, values: Sequence[bytes]) -> I64:
        import numpy

        digests = numpy.frombuffer(b"".join(value[:DIGEST_BYTES] for value in values), dtype="<u8")
        digests = digests.astype(numpy.uint64)
        if self.asked.stratify is None:
            return self.part_of_digests(digests)
        numbers, _ = numbered([value[DIGEST_BYTES:] for value in values])
        return stratified(digests, numbers, self.seed, self.shares)


class FamilyOrder(NamedTuple):
    """A part for each value, in natural order of their names."""

    asked: SplitOptions
    extract: Extract | None
    operation: str = "split"
    seed: int | None = None

    def options(self) -> dict[str, Any]:
        return _given(self.asked, "by") | _missing_given(self.asked)

    def arrange(self, pool: Pool) -> Arranged:
        values = pool.values or []
        names = sorted({to_text(value) for value in set(values) - set(_LEFT_OUT)}, key=natural)
        if len(names) > MOST_PARTS:
            raise UsageError(
                f"--by {self.asked.by} makes {len(names)} parts, and {MOST_PARTS} are the most",
                hint="put several values into one part with --by-map FILE",
            )
        numbers = {name.encode("utf-8", "surrogateescape"): number for number, name in enumerate(names)}
        return _without_left_out(values, names, lambda kept: _looked_up(kept, numbers))


class MapOrder(NamedTuple):
    """The parts that a map names, as far as they have samples."""

    asked: SplitOptions
    key_map: KeyMap
    extract: Extract | None = Keys()
    operation: str = "split"
    seed: int | None = None

    def options(self) -> dict[str, Any]:
        return {"by_map": f"xxh3_128:{self.key_map.digest}"} | _missing_given(self.asked)

    def arrange(self, pool: Pool) -> Arranged:
        import numpy

        keys, part_of = pool.values or [], self.key_map.part_of
        if self.asked.missing == "error":
            self._check_all(keys)
        names, rest = list(self.key_map.parts), -1
        if self.asked.missing not in ("error", "drop"):
            names = sorted({*names, self.asked.missing}, key=natural)
            rest = names.index(self.asked.missing)
        places = numpy.array([names.index(name) for name in self.key_map.parts] + [rest], dtype=numpy.int64)
        found = numpy.fromiter((part_of.get(key, -1) for key in keys), dtype=numpy.int64, count=len(keys))
        return arranged(places[found], names, "missing", keep_empty=False)

    def _check_all(self, keys: Sequence[bytes]) -> None:
        lacking = [key for key in keys if key not in self.key_map.part_of]
        if lacking:
            more = f" and for {len(lacking) - 1} more keys" if len(lacking) > 1 else ""
            raise DataError(
                f'{self.key_map.name} has no part for "{to_text(lacking[0])}"{more}',
                code="missing",
                hint="leave such samples out with --missing drop, or name a part for them: --missing PART",
            )


def _ratio_order(request: Request, options: SplitOptions) -> RatioOrder:
    if options.missing not in ("error", "drop"):
        raise UsageError(
            f"--missing {options.missing} goes with --by and --by-map",
            hint="with --ratio it is error or drop",
        )
    shares = parse_ratio(options.ratio or "")
    outputs = Outputs(request.output, request.settings, may_exist=request.resume)
    outputs.check([share.part for share in shares], ())
    missing, lenient = options.missing, request.on_error == "skip"
    group = Asked(WholeKey(), "--group-by")
    if options.group_by is not None:
        group = Asked(field_or_pattern(options.group_by, "--group-by"), "--group-by", missing, lenient)
    kind = None
    if options.stratify is not None:
        kind = Asked(FieldValue.parse(options.stratify, "--stratify"), "--stratify", missing, lenient)
    keys_change = request.rekey is not None or request.on_duplicate == "rekey"
    # What a row has is the hash of the new key; parts go by the old one, so that another name changes no part.
    plain = options.group_by is None and kind is None and not keys_change
    return RatioOrder(shares, options, None if plain else GroupDigests(group, kind))


def _family_order(request: Request, options: SplitOptions, by: str) -> FamilyOrder:
    fallback = _fallback(options)
    missing = options.missing if fallback is None else "drop"
    asked = Asked(FieldValue.parse(by, "--by"), "--by", missing, request.on_error == "skip")
    return FamilyOrder(options, FamilyNames(asked, fallback))


def _map_order(request: Request, options: SplitOptions, address: str) -> MapOrder:
    _fallback(options)
    if address == "-" and "-" in request.inputs:
        raise UsageError("standard input cannot hold both the map and a shard", hint="--by-map FILE")
    return MapOrder(options, read_key_map(address))


def _fallback(options: SplitOptions) -> str | None:
    """The part of samples that have no other."""
    return None if options.missing in ("error", "drop") else checked_part(options.missing)


def _given(options: SplitOptions, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _missing_given(options: SplitOptions) -> dict[str, Any]:
    return {} if options.missing == "error" else {"missing": options.missing}


def ratio_text(shares: Sequence[Share]) -> str:
    """The shares as the manifest tells them.

    >>> ratio_text(parse_ratio("train=2,val=0001"))
    'train=2/3,val=1/3'
    """
    return ",".join(f"{share.part}={share.share}" for share in shares)


def numbered(values: Sequence[bytes]) -> tuple[I64, list[bytes]]:
    """The values as numbers, and the different ones in bytewise order."""
    names = sorted(set(values))
    return _looked_up(values, {name: number for number, name in enumerate(names)}), names


def _looked_up(values: Sequence[bytes], numbers: dict[bytes, int]) -> I64:
    import numpy

    return numpy.fromiter(map(numbers.__getitem__, values), dtype=numpy.int64, count=len(values))


def _without_left_out(values: Sequence[bytes], names: Sequence[str], parts_of: Any) -> Arranged:
    """The parts of the samples that have a value; the others are counted."""
    import numpy

    counts = {why: sum(1 for value in values if value == mark) for mark, why in _LEFT_OUT.items()}
    dropped = {why: count for why, count in counts.items() if count}
    if not dropped:
        return arranged(parts_of(values), names)
    rows = [row for row, value in enumerate(values) if value not in _LEFT_OUT]
    numbers: I64 = numpy.full(len(values), -1, dtype=numpy.int64)
    numbers[rows] = parts_of([values[row] for row in rows])
    return arranged(numbers, names)._replace(dropped=dropped)


def arranged(numbers: I64, names: Sequence[str], why: str = "", *, keep_empty: bool = True) -> Arranged:
    """Samples by the number of their part, in each in input order; those of number -1 are left out."""
    import numpy

    counts = numpy.bincount(numbers + 1, minlength=len(names) + 1).tolist()
    # Few parts: numpy sorts small numbers by counting them.
    small = numbers.astype(numpy.int16 if len(names) < 1 << 15 else numpy.int64)
    order = numpy.argsort(small, kind="stable")[counts[0] :].astype(numpy.int64, copy=False)
    parts = [Part(name, count) for name, count in zip(names, counts[1:], strict=True) if count or keep_empty]
    return Arranged(order, parts, {why: counts[0]} if why and counts[0] else {})
