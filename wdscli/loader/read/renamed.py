"""This module groups the members of a set again, by the names that ``rename_files`` gives them.

In webdataset, ``rename_files`` and ``select_files`` get the name of each file before files are grouped to samples. The
index of a shard has samples that were grouped by the stored names. :func:`renamed` looks at the first shard, or at all
shards of a small set. If the new names make the same samples, a stage renames the fields of each sample.

Otherwise :class:`RenamedCatalog` reads the indexes of all shards, and counts and finds the new samples. A
:class:`RenamedPool` reads their members, which need not be members of one stored sample, and joins them. The reader
compares each header with the stored name. Streams are grouped in the same way while they are read
(:func:`regrouped`). This module knows neither orders nor stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.loader.order.order import groups
from wdscli.loader.read.catalog import TABLES_BYTES, Catalog, Loss, ShardTable
from wdscli.loader.read.fetch import Pool, Raw
from wdscli.samples import split_name
from wdscli.text import to_bytes, to_text
from wdscli.threads import Recent

Payload = TypeVar("Payload")
FEW_SAMPLES = 20_000
"""Of a set of more samples, only the first shard is looked at to find out whether new names make other samples."""
BYTES_PER_MEMBER = 100
"""The approximate memory of a member in a :class:`RenamedTable`."""


class Renaming(NamedTuple):
    """The functions of a member's name. ``handler`` decides about their exceptions: it raises the exception, or the
    member is left out."""

    rename: Callable[[str], str]
    select: Callable[[str], bool] | None
    handler: Callable[[Exception], bool]

    def parts(self, name: str) -> tuple[str, str] | None:
        """Return the new key and field of a member, or None if the member is left out."""
        try:
            name = self.rename(name)
            is_wanted = self.select is None or self.select(name)
        except Exception as error:
            self.handler(error)
            return None
        parts = split_name(to_bytes(name)) if is_wanted else None
        return None if parts is None else (to_text(parts[0]), to_text(parts[1]).lower())


class RuledNames:
    """A function of a member's name: the name by which ``key_rule`` splits it. A key has ``_`` for dots, as ``create
    --key-rule`` writes it. The result is empty for a member that belongs to no sample. Raises UsageError."""

    def __init__(self, key_rule: str) -> None:
        from wdscli.create.files import KeyRule

        self._key_rule, self._rule = key_rule, KeyRule(key_rule)
        self._last = b"", b""

    def __call__(self, name: str) -> str:
        """Raises DataError if two neighbouring keys become equal."""
        parts = self._rule.found(to_bytes(name))
        if isinstance(parts, str):
            return ""
        key, field = parts
        base = key.rfind(b"/") + 1
        new_key = key[:base] + key[base:].replace(b".", b"_")
        if self._last[1] == new_key and self._last[0] != key:
            keys = " and ".join(f'"{to_text(old)}"' for old in (self._last[0], key))
            raise DataError(f"key_rule= gives {keys} one key", code="duplicate-key", member=name)
        self._last = key, new_key
        return to_text(new_key + b"." + field)

    def __reduce__(self) -> tuple[Any, ...]:
        return RuledNames, (self._key_rule,)


def regrouped(
    members: Iterable[tuple[str, Payload]], renaming: Renaming, shard: str
) -> Iterator[tuple[str, dict[str, Payload]]]:
    """Yield the new key and the members of each new sample, by field. ``members`` are pairs (stored name, member).
    Raises DataError for a field that a sample has twice."""
    key, fields = "", dict[str, Payload]()
    for name, member in members:
        parts = renaming.parts(name)
        if parts is None:
            continue
        if parts[0] != key and fields:
            yield key, fields
            fields = {}
        key, field = parts
        if field in fields:
            message = f'rename_files gives two members of sample "{key}" the name "{field}"'
            raise DataError(message, code="duplicate-field", shard=shard, member=name)
        fields[field] = member
    if fields:
        yield key, fields


def with_new_names(
    samples: Iterable[tuple[str, dict[str, Payload]]], renaming: Renaming, shard: str
) -> Iterator[tuple[str, dict[str, Payload]]]:
    """Yield the new samples that the members of stored samples make (:func:`regrouped`)."""
    members = ((f"{key}.{field}", fields[field]) for key, fields in samples for field in fields)
    return regrouped(members, renaming, shard)


class RenamedTable:
    """The new samples of one shard. ``members`` has the numbers of the members, sample after sample, and ``fields`` has
    their new names. ``ends`` has the end of each sample in both."""

    def __init__(self, table: ShardTable, places: I64 | None, renaming: Renaming) -> None:
        samples = list(regrouped(_members(table, places), renaming, table.address))
        _check_order(samples, table.address)
        self.names = [key for key, _ in samples]
        self.fields = [field for _, fields in samples for field in fields]
        self.members: I64 = numpy.array(
            [member for _, fields in samples for member in fields.values()], dtype=numpy.int64
        )
        self.ends: I64 = numpy.array([0, *(len(fields) for _, fields in samples)], dtype=numpy.int64).cumsum()
        self.samples, self.sizes = len(samples), table.sizes[self.members]
        raw = [to_bytes(name) for name in self.names]
        self.keys, self.key_ends = b"".join(raw), numpy.array(list(map(len, raw)), dtype=numpy.int64).cumsum()

    def key(self, place: int) -> str:
        """Return the key of one sample."""
        return self.names[place]

    @property
    def bytes(self) -> int:
        """The approximate size of the table in memory."""
        return BYTES_PER_MEMBER * len(self.fields)

    def keeps(self, table: ShardTable) -> bool:
        """Return whether each new sample has members of one stored sample, and no two have members of the same."""
        of_member = table.member_ends.searchsorted(self.members, "right")
        firsts, lasts = of_member[self.ends[:-1]], of_member[self.ends[1:] - 1]
        return bool((firsts == lasts).all() and (firsts[1:] > lasts[:-1]).all())


def _members(table: ShardTable, places: I64 | None) -> Iterator[tuple[str, int]]:
    """Yield the stored name and the number of each member, for the samples at ``places`` (None: all samples)."""
    fields = [to_text(field) for field in table.packed.fields]
    _, _, _, _, _, ends, _, _, ids = table.packed
    for place in range(table.samples) if places is None else places.tolist():
        key = table.key(place)
        for member in range(ends[place - 1] if place else 0, ends[place]):
            yield f"{key}.{fields[ids[member]]}", member


def _check_order(samples: Sequence[tuple[str, dict[str, Any]]], shard: str) -> None:
    """Raise DataError if a key comes back with other fields: then the members of a sample are not adjacent."""
    earlier: dict[str, dict[str, Any]] = {}
    for key, fields in samples:
        if key in earlier and not earlier[key].keys() & fields.keys():
            raise DataError(
                f'rename_files gives the key "{key}" to members that are not next to each other',
                code="interleaved",
                shard=shard,
                member=key,
                hint="rewrite the shards: `wds create --from shards:SET --key-rule RULE -o OUT`",
            )
        earlier[key] = fields


def _unfiltered(base: Catalog) -> dict[str, Any]:
    """Return the attributes of a catalog without those of its filter."""
    own = {"_bits", "_chosen", "_unpacked", "_unfiltered", "check_table"}
    return {name: value for name, value in vars(base).items() if name not in own}


class _MemberCatalog(Catalog):
    """The shards of ``base``, where each member is a sample."""

    def __init__(self, base: Catalog) -> None:
        self.__dict__.update(_unfiltered(base))
        self._begin()

    def _table(self, number: int, *index: Any) -> ShardTable:
        table = super()._table(number, *index)
        members = copy(table)
        members.__dict__.pop("packed", None)
        members._wanted = {}
        firsts: I64 = numpy.append(0, table.member_ends[:-1])
        of_member = numpy.arange(table.samples).repeat(table.member_ends - firsts)
        # A header begins at the end of the previous member, or at the start of the sample.
        heads: I64 = numpy.append(0, (table.offsets + (table.sizes + 511) // 512 * 512)[:-1])
        heads[firsts] = table.starts
        keys = [table.keys[first:end] for first, end in pairwise([0, *table.key_ends.tolist()])]
        members.starts, members.samples, members.are_members = heads, len(heads), True
        members.member_ends = numpy.arange(1, len(heads) + 1, dtype=numpy.int64)
        members.keys = b"".join([keys[place] for place in of_member.tolist()])
        lengths: I64 = numpy.diff(table.key_ends, prepend=0)
        members.key_ends = lengths[of_member].cumsum()
        return members


class RenamedCatalog(Catalog):
    """A catalog of the samples that ``base`` has by other names. Raises DataError."""

    def __init__(self, base: Catalog, renaming: Renaming) -> None:
        from xxhash import xxh3_128

        self.__dict__.update(_unfiltered(base))
        self._base, self._renaming = base, renaming
        self.members = _MemberCatalog(base)
        self._begin()
        digest, counts = xxh3_128(base.fingerprint.encode()), []
        for table in self.each(self._opened_table):
            counts.append(0 if table is None else table.samples)
            if table is not None:
                digest.update(repr((table.names, table.fields, table.ends.tolist())).encode())
        self.counts = self._held = numpy.array(counts, dtype=numpy.int64)
        self.fingerprint = f"xxh3_128:{digest.hexdigest()}"

    def _begin(self) -> None:
        super()._begin()
        self._renamed: Recent[int, RenamedTable] = Recent(TABLES_BYTES, lambda table: table.bytes)

    def _opened_table(self, number: int) -> Any:
        try:
            return self.table(number)
        except (DataError, StorageError) as error:
            if not self._salvages:
                raise
            self.losses.setdefault(self.addresses[number], Loss(error))
            return None

    def table(self, number: int) -> Any:
        table = self._renamed.used(number)
        if table is not None:
            return table
        table = RenamedTable(self._base.table(number), self._base.kept(number), self._renaming)
        return self._renamed.keep(number, table)

    def find_values(self, expression: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(
            "batches by values need the stored samples, but rename_files= makes other samples",
            hint="rewrite the shards: `wds create --from shards:SET --key-rule RULE -o OUT`",
        )

    def _sent(self) -> dict[str, Any]:
        return {**super()._sent(), "_renamed": None}


class RenamedPool(Pool):
    """Reads the samples of a :class:`RenamedCatalog`: the members of each sample, which it joins."""

    def __init__(self, catalog: RenamedCatalog, *args: Any, **how: Any) -> None:
        super().__init__(catalog.members, *args, **how)
        self._tables = catalog.table

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        of_member, rows, members = self._located(shards, places)
        raws = super().fetch(of_member, members)
        joined: list[Raw] = [{} for _ in range(len(shards))]
        for row, raw in zip(rows.tolist(), raws):
            joined[row].setdefault("__url__", raw.pop("__url__"))
            del raw["__key__"]
            joined[row].setdefault("payloads", []).append(next(iter(raw.values()), None))
        return [self._named(int(shard), int(place), raw) for shard, place, raw in zip(shards, places, joined)]

    def _named(self, shard: int, place: int, raw: Raw) -> Raw:
        table = self._tables(shard)
        fields = table.fields[table.ends[place] : table.ends[place + 1]]
        payloads = {field: payload for field, payload in zip(fields, raw["payloads"]) if payload is not None}
        return {"__key__": table.names[place], "__url__": raw["__url__"], **payloads}

    def expect(self, shards: I64, places: I64) -> None:
        of_member, _, members = self._located(shards, places)
        super().expect(of_member, members)

    def _located(self, shards: I64, places: I64) -> tuple[I64, I64, I64]:
        """Return three arrays with a number for each member of the samples: its shard, the sample's row, and the
        member."""
        counts: I64 = numpy.empty(len(shards), dtype=numpy.int64)
        members: list[Any] = [None] * len(shards)
        for shard, rows in groups(shards):
            table = self._tables(shard)
            for row in rows.tolist():
                first, end = table.ends[places[row] : places[row] + 2]
                members[row], counts[row] = table.members[first:end], end - first
        rows = numpy.arange(len(shards)).repeat(counts)
        return shards[rows], rows, numpy.concatenate([numpy.empty(0, dtype=numpy.int64), *members])


def pool_of(catalog: Catalog, *args: Any, **how: Any) -> Pool:
    """Return a pool of readers for the samples of a catalog."""
    if isinstance(catalog, RenamedCatalog):
        return RenamedPool(catalog, *args, **how)
    return Pool(catalog, *args, **how)


def renamed(catalog: Catalog, renaming: Renaming) -> Catalog:
    """Return a catalog of the samples by their new names. If the new names keep the samples of the shards that this
    function looks at, return ``catalog`` itself: then a shard where they do not is an error. Raises DataError."""
    assert catalog.counts is not None
    shards = catalog.counts.nonzero()[0].tolist()
    if catalog.counts.sum() > FEW_SAMPLES:
        shards = shards[:1]
    try:
        keeps = all(_keeps(catalog, shard, renaming) for shard in shards)
    except (DataError, StorageError):
        keeps = False
    if not keeps:
        return RenamedCatalog(catalog, renaming)
    catalog.check_table = partial(_check, renaming)
    return catalog


def _keeps(catalog: Catalog, shard: int, renaming: Renaming) -> bool:
    table, places = catalog.table(shard), catalog.kept(shard)
    return RenamedTable(table, places, renaming).keeps(table)


def _check(renaming: Renaming, table: ShardTable) -> None:
    """Raise DataError if the new names make other samples of a shard."""
    if not RenamedTable(table, None, renaming).keeps(table):
        raise DataError(
            "rename_files makes other samples of this shard, but not of the first one",
            code="interleaved",
            shard=table.address,
            hint="give WebDataset the shards in another order, or rewrite them",
        )
