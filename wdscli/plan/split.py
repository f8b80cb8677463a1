"""This module has the orders of ``split``: by ratio, by a field, by a map of keys.

:class:`RatioOrder`, :class:`FamilyOrder` and :class:`MapOrder` assign samples to parts in different ways. This module
also has their extracts, the arithmetic of shares (:func:`parse_ratio`, :func:`parts_of_ranks`, :func:`stratified`), and
:func:`read_key_map`. Samples stay in input order within their part. For a ratio, a hash of the sample's key (or of its
group) is compared with shares of 2^64. So a sample's part does not depend on the other samples. Shares are exact
fractions, never floats. With ``stratify``, samples are counted first, and each class gets its own quotas. A sample's
part then depends on the other samples, and may change when the set grows. Values are bytes. Two reserved values mark
samples without a value. This module does not know where samples are written.

A map of keys is TSV or a JSON object. It may also be an external key map of AIStore's dSort. The shard names in such a
map (``dogs-%d.tar``) count as names of parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from wdscli.arrays import I64, U32, U64, numpy
from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.ordering import mix, mix_array
from wdscli.plan.cut import Part, checked_part
from wdscli.plan.orders import Arrangement, Order, SurveyedSamples
from wdscli.plan.survey import packed_keys
from wdscli.plan.table import PlanTable, blocks_of
from wdscli.plan.values import Extract, PackedValues, Values
from wdscli.samples.grouping import SampleAt
from wdscli.selection.expressions import Expression
from wdscli.selection.named import Named, field_hint, is_there
from wdscli.selection.places import OTHER_NAMES, class_number, parse_place
from wdscli.selection.where import Value
from wdscli.shards.index import Index
from wdscli.storage import addresses_of, base_name, read_all
from wdscli.storage.addresses import natural

MOST_PARTS = 10_000
MISSING = b""
"""The reserved value for a sample that has no value and is left out."""
UNDECODABLE = b"\0"
"""The reserved value for a value that cannot be decoded. No part can have this name."""
_LEFT_OUT = {MISSING: "missing", UNDECODABLE: "undecodable"}
_DROP = "leave out such samples: --missing skip"
DIGEST_BYTES = 8
_LONGEST_CLASS_BYTES = 64
"""The longest class name that is stored. A longer class name is stored as a hash."""
_RATIO_HINT = "--ratio train=0.8,val=0.1,test=0.1, or whole numbers: --ratio train=8,val=1,test=1"
_TOLERANCE = Fraction(1, 100)
"""The largest allowed difference between 1 and the sum of fractions. Users may write 0.33 three times."""
_SHARD_NUMBER = re.compile(r"[-_.]?(%0?[0-9]*d|\{[0-9]+\.\.[0-9]+\}).*", re.DOTALL)
_MAP_HINT = 'lines of KEY<TAB>PART, {"KEY": "PART"} or {"PART": ["KEY", ...]}'


class SplitOptions(NamedTuple):
    """The options for parts. ``ratio``, ``by`` and ``by_map`` exclude each other. Without any of them, there are no
    parts.

    ``missing`` is the policy for a sample that has no value, or that is not in the map. It is ``error``, ``drop``, or
    the name of a part.
    """

    ratio: str | None = None
    group_by: str | None = None
    stratify: str | None = None
    seed: int = 0
    by: str | None = None
    by_map: str | Sequence[str] | None = None
    missing: str = "error"


@dataclass(frozen=True)
class KeyValue:
    """The match of a pattern in the key: its first group, or the whole match if it has no group. Without a pattern, it
    is the key itself."""

    text: str
    pattern: Expression[str] | None = None
    payload_fields: ClassVar[frozenset[bytes]] = frozenset()

    def named_for(self, purpose: str) -> list[Named]:
        return []

    def of(self, sample: SampleAt) -> bytes | None:
        """Return the value of one sample, or None."""
        if self.pattern is None:
            return sample.key
        match = self.pattern.search(to_text(sample.key))
        text = match and match[1 if self.pattern.groups else 0]
        return to_bytes(text).strip() or None if text else None


def field_or_pattern(text: str, option: str) -> Value | KeyValue:
    """Parse a place (``cls``, ``json.user.id``), or else a regular expression over the key. Raises UsageError.

    >>> type(field_or_pattern("seg.png", "--group-by")).__name__, type(field_or_pattern("^p[0-9]+", "")).__name__
    ('Value', 'KeyValue')
    """
    if not text:
        raise UsageError(f"{option} is empty", hint=f"{option} json.patient, or {option} '^p[0-9]+'")
    if text in OTHER_NAMES or parse_place(text) is not None:
        return Value.of_payloads(text, option)
    return KeyValue(text, Expression(text, option))


class OptionValue(NamedTuple):
    """A value for an ``option``, and the policies for samples without it. ``missing`` is ``error`` or ``drop``. With
    ``lenient``, a sample with a value that cannot be decoded is left out; otherwise it is an error."""

    value: Value | KeyValue
    option: str
    missing: str = "error"
    lenient: bool = False

    @property
    def named(self) -> list[Named]:
        """The names of the option; some sample must have them."""
        return self.value.named_for(f" for {self.option}")

    def of(self, sample: SampleAt) -> bytes:
        """Return the value of one sample, or MISSING, or UNDECODABLE. Raises DataError."""
        try:
            value = self.value.of(sample)
        except DataError as error:
            if self.lenient and error.code == "undecodable":
                return UNDECODABLE
            raise
        if value is None and self.missing == "error":
            part = ", or name a part for them: --missing PART" if self.option == "--by" else ""
            text, hints = f"no value for {self.option} {self.value.text}", [f"{_DROP}{part}"]
            fields = [to_text(field) for field in sample.fields]
            for named in self.named:
                if not any(is_there(field, fields) for field in named.fields):
                    hints.insert(0, field_hint(named, fields))
            raise sample.error(text, "missing", hint="; ".join(hints))
        return MISSING if value is None else value


BY_KEY = OptionValue(KeyValue("key"), "--group-by")


@dataclass(frozen=True)
class FamilyNames(Extract):
    """The extract that takes the name of each sample's part. ``fallback`` is the part of samples without a value. If it
    is None, they are left out."""

    option: OptionValue
    fallback: str | None = None
    classes: Sequence[str] = ()
    """The class names for the numbers in ``cls``, if parts are named by class."""

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return self.option.value.payload_fields

    @property
    def named(self) -> Sequence[Named]:
        return self.option.named

    def value(self, sample: SampleAt) -> bytes:
        """Return the name of a sample's part. Raises DataError for a value that cannot be a name."""
        value = self.option.of(sample)
        if value == MISSING:
            return (self.fallback or "").encode()
        if value != UNDECODABLE:
            number = class_number(to_text(value)) if self.classes else None
            if number is not None and 0 <= number < len(self.classes):
                value = to_bytes(self.classes[number])
            try:
                checked_part(to_text(value[:4096]))
            except UsageError as error:
                text = f"{self.option.value.text}: {error.message}"
                hint = "assign keys to parts with --by @FILE"
                raise sample.error(text, "bad-part", hint=hint) from None
        return value


class KeyExtract(Extract):
    """The extract that takes each sample's key in the input."""

    def value(self, sample: SampleAt) -> bytes:
        return sample.key

    def values_of_index(self, index: Index) -> PackedValues | None:
        return packed_keys(index)


@dataclass(frozen=True)
class GroupDigests(Extract):
    """The extract that takes the XXH3-64 of each sample's group, as 8 little-endian bytes. With ``stratify``, the
    sample's class follows."""

    group: OptionValue = BY_KEY
    stratify: OptionValue | None = None

    @property
    def payload_fields(self) -> frozenset[bytes]:
        fields = self.group.value.payload_fields
        return fields if self.stratify is None else fields | self.stratify.value.payload_fields

    @property
    def named(self) -> Sequence[Named]:
        return self.group.named if self.stratify is None else [*self.group.named, *self.stratify.named]

    def value(self, sample: SampleAt) -> bytes:
        """Return a digest and possibly a class, or MISSING, or UNDECODABLE."""
        group = self.group.of(sample)
        kind = b"" if self.stratify is None else self.stratify.of(sample)
        for value in (group, kind) if self.stratify is not None else (group,):
            if value in _LEFT_OUT:
                return value
        if len(kind) > _LONGEST_CLASS_BYTES:
            kind = xxh3_128_digest(kind)
        return xxh3_64_intdigest(group).to_bytes(DIGEST_BYTES, "little") + kind


@dataclass(frozen=True)
class PartsOrder(Order):
    """The base class of orders that make parts. ``split_options`` are the options of the command."""

    split_options: SplitOptions
    operation = "split"
    makes_parts = True

    def may_leave_out(self) -> bool:
        return self.extract is not None

    def is_left_out(self, value: bytes) -> bool:
        return value in _LEFT_OUT


@dataclass(frozen=True)
class RatioOrder(PartsOrder):
    """An order that assigns parts by a hash. ``extract`` is None if the parts depend on the unchanged key, because
    every row has its hash."""

    shares: tuple[PartShare, ...]
    extract: Extract | None = None
    seed: int = 0

    def options(self) -> dict[str, Any]:
        return {
            "ratio": ratio_text(self.shares),
            **_not_default(self.split_options, "group_by", "stratify", "missing"),
        }

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        if surveyed.values is None:
            numbers = self._numbers_of_keys(surveyed.samples)
        else:
            numbers = self._numbers_of_values(surveyed.values)
        return arranged([share.part for share in self.shares], numbers)

    def _parts_of(self, digests: U64) -> I64:
        return parts_of_ranks(ranks_of(self.seed, digests), self.shares)

    def _numbers_of_keys(self, samples: PlanTable) -> U32:
        """Return the part of each sample by its key. This works in blocks, because all hashes together would take a
        fifth of a plan's memory."""
        part_numbers: U32 = numpy.empty(samples.total, dtype=numpy.uint32)
        for block in blocks_of(samples.total):
            part_numbers[block] = self._parts_of(samples.keys[block])
        return part_numbers

    def _numbers_of_values(self, values: Values) -> U32:
        """Return the part of each sample by the digests in the values. With ``stratify``, each class has its own
        quotas."""
        left_out = {value: len(self.shares) + place for place, value in enumerate(_LEFT_OUT)}
        stays = len(self.shares) + len(left_out)
        numbers = numbered(values, lambda value: left_out.get(value, stays))

        def kept() -> Iterator[bytes]:
            return (value for value in values if value not in left_out)

        words = (int.from_bytes(value[:DIGEST_BYTES], "little") for value in kept())
        digests: U64 = numpy.fromiter(words, dtype=numpy.uint64)
        if self.split_options.stratify is None:
            numbers[numbers == stays] = self._parts_of(digests)
            return numbers
        classes = sorted({value[DIGEST_BYTES:] for value in kept()})
        places = {name: number for number, name in enumerate(classes)}
        class_of: U32 = numpy.fromiter((places[value[DIGEST_BYTES:]] for value in kept()), dtype=numpy.uint32)
        numbers[numbers == stays] = stratified(digests, class_of, self.seed, self.shares)
        return numbers


@dataclass(frozen=True)
class FamilyOrder(PartsOrder):
    """An order with one part for each value. Parts are in natural order of their names."""

    extract: FamilyNames

    def with_classes(self, class_names: Callable[[], Sequence[str] | None]) -> FamilyOrder:
        if self.split_options.by != "cls":
            return self
        return replace(self, extract=replace(self.extract, classes=class_names() or ()))

    def options(self) -> dict[str, Any]:
        return _not_default(self.split_options, "by", "missing")

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        values: set[bytes] = set().union(*surveyed.values.blocks())
        names = sorted((to_text(value) for value in values.difference(_LEFT_OUT)), key=natural)
        if len(names) > MOST_PARTS:
            raise UsageError(
                f"--by {self.split_options.by} makes {len(names)} parts, more than {MOST_PARTS}",
                hint="assign several values to one part with --by @FILE",
            )
        places = {value: place for place, value in enumerate([*map(to_bytes, names), *_LEFT_OUT])}
        return arranged(names, numbered(surveyed.values, places.__getitem__))


@dataclass(frozen=True)
class MapOrder(PartsOrder):
    """An order with the parts of a map. Parts without samples are left out."""

    key_map: KeyMap
    extract = KeyExtract()

    def may_leave_out(self) -> bool:
        return self.split_options.missing == "drop"

    def is_left_out(self, value: bytes) -> bool:
        return self.may_leave_out() and value not in self.key_map.part_of

    def options(self) -> dict[str, Any]:
        return {"by_map": f"xxh3_128:{self.key_map.digest}", **_not_default(self.split_options, "missing")}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        missing, part_of = self.split_options.missing, self.key_map.part_of
        self._check(surveyed.values)
        fallback = [] if missing in ("error", "drop") else [missing]
        names: list[str] = sorted({*self.key_map.parts, *fallback}, key=natural)
        # A key that is not in the map has the number -1, which means the last place.
        new = [*map(names.index, [*self.key_map.parts, *fallback]), len(names)][: len(self.key_map.parts) + 1]
        numbers = numbered(surveyed.values, lambda key: new[part_of.get(key, -1)])
        return arranged(names, numbers, keeps_empty=False)

    def _check(self, keys: Values) -> None:
        """Raise DataError for samples that are not in the map, unless ``--missing`` allows them. Also raise it if no
        sample at all is in the map."""
        first: list[bytes] = []
        count = 0
        for block in keys.blocks():
            lacking = [key for key in block if key not in self.key_map.part_of]
            first = first or lacking[:3]
            count += len(lacking)
        if count and self.split_options.missing == "error":
            more_keys = f" and for {count - 1} more keys" if count > 1 else ""
            raise DataError(
                f'{self.key_map.name} has no part for "{to_text(first[0])}"{more_keys}',
                code="missing",
                hint=f"{_DROP}, or name a part for them: --missing PART",
            )
        if count and count == keys.total:
            raise DataError(
                f"--by: no sample has a key that {self.key_map.name} lists",
                code="not-found",
                hint=f"the keys of the samples are like {', '.join(map(to_text, first))}",
            )


def _not_default(options: SplitOptions, *names: str) -> dict[str, Any]:
    """Return the options with these names that are not at their default."""
    defaults = SplitOptions._field_defaults
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value != defaults[name]}


def ratio_text(shares: Sequence[PartShare]) -> str:
    """Return the shares as a text for the manifest.

    >>> from wdscli.plan.split import parse_ratio
    >>> ratio_text(parse_ratio("train=2,val=0001"))
    'train=2/3,val=1/3'
    """
    return ",".join(f"{share.part}={share.share}" for share in shares)


def numbered(values: Values, number_of: Callable[[bytes], int]) -> U32:
    """Return the number of each value."""
    numbers: U32 = numpy.empty(values.total, dtype=numpy.uint32)
    first = 0
    for block in values.blocks():
        numbers[first : first + len(block)] = numpy.fromiter(map(number_of, block), numpy.uint32, len(block))
        first += len(block)
    return numbers


def arranged(names: Sequence[str], numbers: U32, *, keeps_empty: bool = True) -> Arrangement:
    """Arrange all samples by the number of their part. Each part stays in input order. Numbers after the last part mark
    samples that are left out (in the order of :data:`_LEFT_OUT`). Parts without samples are made only with
    ``keeps_empty``."""
    total = len(names) + len(_LEFT_OUT)
    tallies = (numpy.bincount(numbers[part], minlength=total) for part in blocks_of(len(numbers)))
    counts: list[int] = sum(tallies, numpy.zeros(total, dtype=numpy.int64)).tolist()
    # numpy sorts 16-bit numbers fast, by radix sort.
    order: I64 = numpy.argsort(numbers.astype(numpy.uint16) if total <= 1 << 16 else numbers, kind="stable")
    parts = [Part(name, count) for name, count in zip(names, counts) if count or keeps_empty]
    left = dict(zip(_LEFT_OUT.values(), counts[len(names) :], strict=True))
    order = order[: len(order) - sum(left.values())]
    return Arrangement(order, parts, {why: count for why, count in left.items() if count})


class PartShare(NamedTuple):
    """A part and its share of the whole. The shares of all parts sum to exactly 1."""

    part: str
    share: Fraction


def parse_ratio(text: str) -> tuple[PartShare, ...]:
    """Parse shares. They are fractions that sum to 1, or whole numbers as weights. Raises UsageError.

    >>> parse_ratio("train=8,val=2")
    (PartShare(part='train', share=Fraction(4, 5)), PartShare(part='val', share=Fraction(1, 5)))
    """
    shares: dict[str, Fraction] = {}
    for word in text.split(","):
        name, equals, number = word.partition("=")
        name = checked_part(name.strip()) if equals else ""
        if not name:
            raise UsageError(f'--ratio: "{word.strip()}" is not PART=SHARE', hint=_RATIO_HINT)
        if name in shares:
            raise UsageError(f'--ratio names "{name}" twice', hint=_RATIO_HINT)
        try:
            shares[name] = Fraction(number.strip())
        except (ValueError, ZeroDivisionError):
            raise UsageError(
                f'--ratio: "{number.strip()}" of {name} is not a number', hint=_RATIO_HINT
            ) from None
        if shares[name] <= 0:
            raise UsageError(f"--ratio: the share of {name} must be more than 0", hint="leave the part out")
    total = sum(shares.values(), Fraction(0))
    if any(number.denominator > 1 for number in shares.values()) and abs(total - 1) > _TOLERANCE:
        raise UsageError(f"--ratio: the shares sum to {float(total):g}, not to 1", hint=_RATIO_HINT)
    return tuple(PartShare(name, number / total) for name, number in shares.items())


def bounds(shares: Sequence[PartShare]) -> list[int]:
    """Return the first rank of each part except the first part. A rank belongs to the first part for which the sum of
    shares, up to this part, is more than rank / 2^64."""
    sums = list(accumulate(share.share for share in shares))[:-1]
    # Round the sum up to a whole number.
    return [-(-(total.numerator << 64) // total.denominator) for total in sums]


def ranks_of(seed: int, digests: U64) -> U64:
    """Return the ranks of groups with these XXH3-64: ``mix(mix(seed) ^ digest)``. Like the order of a shuffle, this
    never changes."""
    return mix_array(digests ^ numpy.uint64(mix(seed)))


def parts_of_ranks(ranks: U64, shares: Sequence[PartShare]) -> I64:
    """Return the part number of each rank, from 0."""
    # A part may be so small that it has no rank. It then begins after the last rank.
    begins = numpy.array([min(bound, (1 << 64) - 1) for bound in bounds(shares)], dtype=numpy.uint64)
    return numpy.searchsorted(begins, ranks, side="right").astype(numpy.int64, copy=False)


def stratified(digests: U64, classes: I64 | U32, seed: int, shares: Sequence[PartShare]) -> I64:
    """Return the part of each sample, so that each class is divided by the shares.

    Samples with the same digest are a group, and stay together. A group belongs to the class of most of its samples; if
    classes are equal, to the class with the lowest number. In each class, groups in the order of their ranks fill the
    quota of the first part, then of the second part, and so on. A group on a boundary belongs to the part that contains
    its middle.
    """
    if not len(digests):
        return numpy.empty(0, dtype=numpy.int64)
    groups, group_of, sizes = numpy.unique(digests, return_inverse=True, return_counts=True)
    group_of = group_of.reshape(-1)
    class_of = _majorities(group_of, classes, len(groups))
    order = numpy.lexsort((ranks_of(seed, groups), class_of))
    sizes, ordered_classes = sizes[order].astype(numpy.int64), class_of[order]
    counts: I64 = numpy.zeros(int(classes.max()) + 1, dtype=numpy.int64)
    numpy.add.at(counts, ordered_classes, sizes)
    begins = numpy.cumsum(sizes) - sizes
    begins -= (numpy.cumsum(counts) - counts)[ordered_classes]
    middles = 2 * begins + sizes
    filled = numpy.cumsum(numpy.array(quotas(counts.tolist(), shares), dtype=numpy.int64), axis=1)
    part_of_group: I64 = numpy.empty(len(groups), dtype=numpy.int64)
    part_of_group[order] = sum(
        (middles > 2 * filled[ordered_classes, part]).astype(numpy.int64) for part in range(len(shares) - 1)
    )
    return part_of_group[group_of]


def _majorities(group_of: I64, classes: I64 | U32, groups: int) -> I64:
    """Return the class of most samples of each group. If classes are equal, return the lowest."""
    width = int(classes.max()) + 1
    pairs, counts = numpy.unique(group_of * width + classes, return_counts=True)
    # The order is from rare to frequent, then from the highest class to the lowest. So the last write has the right
    # class.
    order = numpy.lexsort((-(pairs % width), counts))
    majority_of: I64 = numpy.empty(groups, dtype=numpy.int64)
    majority_of[pairs[order] // width] = pairs[order] % width
    return majority_of


def quotas(counts: Sequence[int], shares: Sequence[PartShare]) -> list[list[int]]:
    """Return, for each class, the number of samples in each part. The method is the largest remainder; each number
    differs from the exact share by less than one. If a part got too few samples of earlier classes, the missing
    fraction is added to its remainder. So small parts also get samples of small classes.

    >>> quotas([10, 4, 4, 4], parse_ratio("train=0.8,val=0.1,test=0.1"))
    [[8, 1, 1], [3, 1, 0], [3, 0, 1], [4, 0, 0]]
    """
    from math import lcm

    whole = lcm(*(share.share.denominator for share in shares))
    weights = [int(share.share * whole) for share in shares]
    owed = [0] * len(shares)
    class_quotas = []
    for count in counts:
        quota, remainders = map(
            list, zip(*(divmod(count * weight, whole) for weight in weights), strict=True)
        )
        owed = [debt + remainder for debt, remainder in zip(owed, remainders, strict=True)]
        open_parts = sorted(
            (part for part, remainder in enumerate(remainders) if remainder), key=lambda part: -owed[part]
        )
        for part in open_parts[: count - sum(quota)]:
            quota[part] += 1
            owed[part] -= whole
        class_quotas.append(quota)
    return class_quotas


class KeyMap(NamedTuple):
    """A map from keys to parts. ``parts`` are in natural order, and ``part_of`` has the part number of each key.
    ``name`` has the names of the files, and ``digest`` is the XXH3-128 of their joined bytes."""

    name: str
    digest: str
    parts: tuple[str, ...]
    part_of: dict[bytes, int]


def read_key_map(files: str | Sequence[str]) -> KeyMap:
    """Read a key map from one or several files. Raises InputError, and UsageError for a file that is no key map."""
    digest, names = xxh3_128(), []
    numbers: dict[str, int] = {}
    number_of: dict[bytes, int] = {}
    for address in addresses_of(files, "--by"):
        data, name = read_all(address), base_name(address)
        digest.update(data)
        names.append(name)
        read = pairs_of_json if data.lstrip().startswith(b"{") else _pairs_of_lines
        for where, key, text in read(data, name):
            number = numbers.get(text)
            if number is None:
                number = numbers[text] = len(numbers)
            if number_of.setdefault(key, number) != number:
                raise UsageError(
                    f'{name}{where}: "{to_text(key)}" has a second part', hint="give each key one part"
                )
    together = " and ".join(names)
    parts, places = named_parts(numbers, together)
    part_of = {key: places[number] for key, number in number_of.items()}
    return KeyMap(together, digest.hexdigest(), parts, part_of)


def named_parts(numbers: dict[str, int], name: str) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of parts in natural order, and the new place of each part number."""
    names = []
    for text in numbers:
        try:
            names.append(checked_part(_SHARD_NUMBER.sub("", text)))
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", hint=error.hint) from None
    parts = tuple(sorted(set(names), key=natural))
    places = {part: place for place, part in enumerate(parts)}
    return parts, [places[part] for part in names]


def pairs_of_json(data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield (place in the file, key, part) for each entry of a JSON object."""
    import json

    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{name} is not a JSON object of keys and parts", hint=_MAP_HINT) from None
    for name_or_key, entry in whole.items():
        if isinstance(entry, str):
            yield "", to_bytes(name_or_key), entry
        elif isinstance(entry, list) and all(isinstance(key, str) for key in entry):
            for key in entry:
                yield "", to_bytes(key), name_or_key
        else:
            raise UsageError(f'{name}: "{name_or_key}" has neither a part nor a list of keys', hint=_MAP_HINT)


def _pairs_of_lines(data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield (place in the file, key, part) for each line. The last TAB separates key and part. The first line may have
    the names of the columns."""
    for number, line in enumerate(data.split(b"\n"), 1):
        key, _, part = line.removesuffix(b"\r").rpartition(b"\t")
        if not line.strip() or (number == 1 and (key.strip(), part.strip()) == (b"key", b"part")):
            continue
        if not key.strip() or not part.strip():
            raise UsageError(f"{name}, line {number}: not KEY<TAB>PART", hint=_MAP_HINT)
        yield f", line {number}", key, to_text(part.strip())
