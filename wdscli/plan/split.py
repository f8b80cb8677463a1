"""This module has the orders of ``split``: by ratio, by a field, by a map of keys.

:func:`split_order` makes the order of :class:`SplitOptions`. Options that contradict each other are refused there,
before anything is read. :class:`RatioOrder`, :class:`FamilyOrder` and :class:`MapOrder` assign samples to parts in
different ways. This module also has their extracts, and :func:`read_key_map`. Samples stay in input order within their
part. For a ratio, a hash of the sample's key (or of its group) decides (:mod:`wdscli.ordering`). With ``stratify``,
samples are counted first, and each class gets its own quotas. A sample's part then depends on the other samples, and
may change when the set grows. Values are bytes. Two reserved values mark samples without a value. This module does not
know where samples are written.

A map of keys is TSV or a JSON object. It may also be an external key map of AIStore's dSort. The shard names in such a
map (``dogs-%d.tar``) count as names of parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from wdscli.arrays import I64, U32, U64, blocks_of, numpy
from wdscli.errors import DataError, UsageError
from wdscli.ordering import parts_of_ranks, ranks_of, stratified
from wdscli.plan.cut import FIELD, Outputs, checked_part
from wdscli.plan.orders import Arrangement, InputOrder, Order, SurveyedSamples
from wdscli.plan.request import Request
from wdscli.plan.table import Extract, PackedValues, PlanTable, Values, packed_keys
from wdscli.samples.grouping import SampleAt
from wdscli.selection.expressions import Expression
from wdscli.selection.named import Named, field_hint, is_there
from wdscli.selection.places import OTHER_NAMES, class_number, parse_place
from wdscli.selection.where import Value
from wdscli.shards.index import Index
from wdscli.storage import addresses_of, base_name, read_all
from wdscli.storage.addresses import natural
from wdscli.text import to_bytes, to_text

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

    shares: Mapping[str, Fraction]
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
        return arranged([*self.shares], numbers)

    def _parts_of(self, digests: U64) -> I64:
        return parts_of_ranks(ranks_of(self.seed, digests), [*self.shares.values()])

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

        kept = values.taken(numpy.flatnonzero(numbers == stays))
        digests = kept.fixed(DIGEST_BYTES).view("<u8")[:, 0]
        if self.split_options.stratify is None:
            numbers[numbers == stays] = self._parts_of(digests)
            return numbers
        classes = sorted({value[DIGEST_BYTES:] for value in kept})
        places = {name: number for number, name in enumerate(classes)}
        class_of = numbered(kept, lambda value: places[value[DIGEST_BYTES:]])
        numbers[numbers == stays] = stratified(digests, class_of, self.seed, [*self.shares.values()])
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
    parts = {name: count for name, count in zip(names, counts) if count or keeps_empty}
    left = dict(zip(_LEFT_OUT.values(), counts[len(names) :], strict=True))
    order = order[: len(order) - sum(left.values())]
    return Arrangement(order, parts, {why: count for why, count in left.items() if count})


def parse_ratio(text: str) -> dict[str, Fraction]:
    """Return the share of each part; they sum to exactly 1. In the text, shares are fractions that sum to 1, or whole
    numbers as weights. Raises UsageError.

    >>> parse_ratio("train=8,val=2")
    {'train': Fraction(4, 5), 'val': Fraction(1, 5)}
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
    return {name: number / total for name, number in shares.items()}


def ratio_text(shares: Mapping[str, Fraction]) -> str:
    """Return the shares as a text for the manifest.

    >>> ratio_text(parse_ratio("train=2,val=0001"))
    'train=2/3,val=1/3'
    """
    return ",".join(f"{part}={share}" for part, share in shares.items())


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


# From options to orders.

_OF_RATIO = ("group_by", "stratify")


def split_order(request: Request, options: SplitOptions) -> Order:
    """Return the order for ``options``. Raises UsageError, also if the output's name does not fit, and
    OutputExistsError if a known part already exists."""
    ways = [name for name in ("ratio", "by", "by_map") if getattr(options, name) not in (None, ())]
    if len(ways) > 1:
        raise UsageError(
            f"{_option(ways[0])} and {_option(ways[1])} exclude each other", hint="give one of them"
        )
    _check_fit(request, options, ways)
    if not ways:
        return InputOrder("split")
    if options.ratio is not None:
        return _ratio_order(request, options)
    fallback = None if options.missing in ("error", "drop") else checked_part(options.missing)
    if options.by is not None:
        missing = options.missing if fallback is None else "drop"
        value = Value.of_payloads(options.by, "--by")
        chosen = OptionValue(value, "--by", missing, request.on_error == "skip")
        return FamilyOrder(options, FamilyNames(chosen, fallback))
    files = addresses_of(options.by_map, "--by")
    if "-" in files and "-" in request.inputs:
        raise UsageError("standard input cannot hold both the map and a shard", hint="--by @FILE")
    return MapOrder(options, read_key_map(files))


def _check_fit(request: Request, options: SplitOptions, ways: Sequence[str]) -> None:
    """Raise UsageError for an option without the other option that it needs, and for an output name that does not
    fit."""
    if ways != ["ratio"]:
        for name in _OF_RATIO:
            if getattr(options, name) is not None:
                raise UsageError(f"{_option(name)} needs --ratio", hint="--ratio train=0.9,val=0.1")
    if not ways and options.missing != "error":
        raise UsageError(
            "--missing needs --ratio or --by",
            hint="--by FIELD, or --ratio train=0.9,val=0.1 --stratify FIELD",
        )
    outputs = Outputs(request.output, request.settings)
    if ways and not outputs.has_parts:
        raise UsageError(
            f"{request.output} is for one set, but {_option(ways[0])} makes several sets",
            hint=f"write {FIELD} where the part's name goes: -o '{FIELD}-%06d.tar' or -o '{FIELD}/%06d.tar'",
        )
    if outputs.has_parts and not ways:
        raise UsageError(
            f"{FIELD} in {request.output} is the name of a part, but no option makes parts",
            hint="make parts with --ratio train=0.9,val=0.1, --by FIELD or --by @FILE",
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _ratio_order(request: Request, options: SplitOptions) -> RatioOrder:
    if options.missing not in ("error", "drop"):
        raise UsageError(
            f"--missing {options.missing} needs --by", hint="with --ratio, --missing is error or skip"
        )
    shares = parse_ratio(options.ratio or "")
    outputs = Outputs(request.output, request.settings, may_exist=request.resume or request.if_changed)
    outputs.check([*shares], ())
    missing, lenient = options.missing, request.on_error == "skip"
    group = BY_KEY
    if options.group_by is not None:
        group = OptionValue(field_or_pattern(options.group_by, "--group-by"), "--group-by", missing, lenient)
    kind = None
    if options.stratify is not None:
        kind = OptionValue(Value.of_payloads(options.stratify, "--stratify"), "--stratify", missing, lenient)
    keys_change = request.rekey is not None or request.on_duplicate == "rekey"
    # A row has the hash of the new key. Parts depend on the old key, so that a new key moves no sample to another part.
    plain = options.group_by is None and kind is None and not keys_change
    return RatioOrder(options, shares, None if plain else GroupDigests(group, kind), options.seed)
