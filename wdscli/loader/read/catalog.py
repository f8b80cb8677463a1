"""This module has the catalog of a set's shards: how many samples each shard has, and where these samples are.

:class:`Catalog` takes counts from the manifest, or else from the indexes, or else from a scan of local shards. The
table of a shard has the offsets of its samples. A table is made when it is first needed, and the least recently used
tables are dropped. What is proven about the shard (:mod:`wdscli.shards.proof`) is the table's state:

    table.proof         event                                                           then
    no table            samples are read, and the index names a version on S3           NOTHING
    no table            keys or numbers are needed: a listing or HEAD has this version  PAYLOADS
    no table            otherwise: the shard is opened and compared with its index      HEADERS or PAYLOADS
    NOTHING             bytes of the named version arrive                               PAYLOADS
    NOTHING             keys or numbers are needed, not samples                         no table: compare
    any                 a read fails, or brings no byte (:meth:`Catalog.doubt`)         no table; from now on, compare

A table without a proof describes the version that the index names, and only this version is read. So no sample is valid
before a byte arrives. In every state, the header of each payload is compared when the payload is read. Workers receive
the addresses and the counts. This module does not know orders, ranks or stages."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pickle import dumps, loads
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from warnings import warn
from zlib import compress, decompress

from wdscli.arrays import F64, I64, U16, numpy
from wdscli.errors import DataError, InputError, StorageError, WdsError
from wdscli.loader.checks import cache_of
from wdscli.samples.reading import ExpectedMember
from wdscli.selection.values import Numbers
from wdscli.shards.index import Index, IndexBuilder
from wdscli.shards.inputs import ShardSet, manifest_of, open_set
from wdscli.shards.manifest import Manifest
from wdscli.shards.proof import (
    Proof,
    ProvenIndex,
    StoredIndex,
    open_by_index,
    prove_index,
    read_index,
    scanned_index,
)
from wdscli.shards.reading import check_joined, without_parts
from wdscli.shards.view_shards import check_view
from wdscli.shown import shown
from wdscli.storage import Source, folder_of, has_folder, is_local, local_path, open_source
from wdscli.storage.addresses import TRUSTED, HeldBytes, is_web
from wdscli.storage.kinds import stored_version
from wdscli.storage.opening import (
    at_once,
    compression_of,
    is_device,
    is_pinnable,
    listed_version,
    open_pinned,
)
from wdscli.storage.retry import cached_in, expect_training
from wdscli.tar import padded
from wdscli.text import to_bytes, to_text
from wdscli.threads import Recent

if TYPE_CHECKING:
    from wdscli.plan.join import JoinKind

Result = TypeVar("Result")
expect_training()

TABLES_BYTES = 256 << 20
"""The approximate largest memory for shards' tables."""
SHARDS_SOUGHT = 256
"""The number of shards that are searched together for a key."""
ORDER_BLOCK_BYTES, MEMBER_BYTES = 1 << 22, 1 << 10
"""The approximate bytes of an order block, and the bytes that each member's header and padding add to its payload."""


class CoreTable(NamedTuple):
    """A table in the form that the compiled core accepts, with memory views as columns."""

    address: str
    keys: bytes
    fields: list[bytes]
    key_ends: memoryview
    starts: memoryview
    member_ends: memoryview
    offsets: memoryview
    sizes: memoryview
    field_ids: memoryview


class Access(NamedTuple):
    """The arguments that say how shards are opened. ``trust_addresses`` and ``pipes`` are arguments of
    :func:`~wdscli.shards.inputs.open_set` too. ``cache_dir`` is a folder for copies of remote shards, and
    ``cache_size`` is its limit. ``join`` is the kind of join. ``values`` is a table of numbers by key, for
    :meth:`Catalog.find_values`."""

    trust_addresses: bool = False
    pipes: bool = True
    cache_dir: str | None = None
    cache_size: int = -1
    join: JoinKind | None = None
    values: str | None = None


USUAL = Access()


class ShardTable:
    """A table that says where the samples of one shard are. The table has the numpy columns of the shard's index, and
    the field names as text. Field names are in lower case unless ``spelled`` is set. With ``are_members``, each sample
    is one member of the shard."""

    are_members = False

    def __init__(
        self,
        address: str,
        index: Index,
        version: str = "",
        proof: Proof = Proof.HEADERS,
        *,
        spelled: bool = False,
    ) -> None:
        self.address = address
        self.version = "" if is_local(address) else version
        """The version of the shard that this table describes. For a local shard, the version is set when the shard is
        first opened."""
        self.proof = proof
        """What is proven about the shard; see the table of this module."""
        self.size = index.size
        self.samples = index.samples
        self.starts: I64 = index.starts.view(numpy.int64)
        self.member_ends: I64 = index.member_ends.view(numpy.int64)
        self.offsets: I64 = index.member_offsets.view(numpy.int64)
        self.sizes: I64 = index.member_sizes.view(numpy.int64)
        self.field_ids = index.member_fields
        self._raw_fields = index.fields
        self._spellings = [to_text(field) for field in index.fields]
        self.fields = self._spellings if spelled else [name.lower() for name in self._spellings]
        self._wanted: dict[frozenset[str] | None, list[str | None]] = {}
        self.keys = index.keys
        self.key_ends: I64 = index.key_ends.view(numpy.int64)

    @cached_property
    def packed(self) -> CoreTable:
        """The columns for the compiled core. To read a single number from such a column is three times as fast as from
        an array."""
        return CoreTable(
            self.address,
            self.keys,
            self._raw_fields,
            memoryview(self.key_ends),
            memoryview(self.starts),
            memoryview(self.member_ends),
            memoryview(self.offsets),
            memoryview(self.sizes),
            memoryview(self.field_ids),
        )

    def wanted(self, fields: frozenset[str] | None) -> list[str | None]:
        """Return the name of each field, or None for a field that is not in ``fields``. ``fields`` has lower-case
        names; None means all fields."""
        if fields not in self._wanted:
            self._wanted[fields] = [
                name if fields is None or name in fields else None for name in self.fields
            ]
        return self._wanted[fields]

    def members(self, place: int) -> list[tuple[int, ExpectedMember]]:
        """Return pairs (number of the field, member) for the members of one sample. The header of a member begins at
        the end of the previous member, or at the start of the sample."""
        _, keys, fields, key_ends, starts, ends, offsets, sizes, ids = self.packed
        first, begin = (ends[place - 1], key_ends[place - 1]) if place else (0, 0)
        prefix, head = keys[begin : key_ends[place]] + b".", starts[place]
        members = []
        for number in range(first, ends[place]):
            field, offset, size = ids[number], offsets[number], sizes[number]
            members.append((field, ExpectedMember(head, offset, prefix + fields[field], size)))
            head = offset + padded(size)
        return members

    @property
    def bytes(self) -> int:
        """The approximate size of the table in memory."""
        return 24 * self.samples + 20 * len(self.offsets) + len(self.keys)

    def key(self, place: int) -> str:
        """Return the key of one sample."""
        return to_text(self.keys[int(self.key_ends[place - 1]) if place else 0 : int(self.key_ends[place])])

    def names_of(self, ids: list[int]) -> list[str]:
        """Return the names of a sample's fields, which are given by their numbers. If two names differ only in case,
        such as ``img.jpg`` and ``img.JPG``, both names keep their spelling."""
        names = [self.fields[number] for number in ids]
        return [
            name if names.count(name) == 1 else self._spellings[number] for name, number in zip(names, ids)
        ]


class Loss(NamedTuple):
    """The first error of a shard, and the number of samples that are left out because of the shard's damage. The number
    is 1 if it is unknown."""

    error: WdsError
    samples: int = 1


class Catalog:
    """The shards of ``urls``, in order. Raises InputError or DataError if shards cannot be opened, or their samples
    cannot be counted.

    ``counts`` has the number of samples in each shard, and ``fingerprint`` identifies the set. ``is_indexed`` is False
    if a shard can only be streamed, and then there are no counts. With ``spelled``, field names keep their capital
    letters. ``held`` is a view in memory, which is sent to workers too. With ``salvage``, missing shards keep their
    places, the catalog counts the intact samples of a damaged shard without an index, and ``losses`` has the shard's
    error and the number of its other samples."""

    counts: I64 | None = None
    fingerprint = ""
    _digests: U16 | None = None
    """Short digests of the shards' headers, from the manifest. 0 means that the manifest has no digest."""
    _listed_as: str | None = None
    """The fingerprint in the manifest."""
    check_table: Callable[[ShardTable], None] | None = None
    """A function that raises DataError for the table of a shard that the loader cannot use."""

    def __init__(
        self,
        urls: str | Sequence[str],
        access: Access = USUAL,
        *,
        salvage: bool = False,
        spelled: bool = False,
        held: Sequence[HeldBytes] = (),
    ) -> None:
        self._view = held
        self._salvages, self.spelled = salvage, spelled
        self._seen_fields: set[bytes] = set()
        self._cache = cache_of(access.cache_dir, access.cache_size)
        self.losses: dict[str, Loss] = {}
        """The losses of shards that can be read only in part or not at all, by address."""
        shards = open_set(
            [urls] if isinstance(urls, str) else list(urls),
            missing="keep" if salvage else "stop",
            warn=partial(warn, stacklevel=2),
            trust_addresses=access.trust_addresses,
            pipes=access.pipes,
        )
        self._trusted = frozenset(TRUSTED)
        self._folders = frozenset(() if shards.listings is None else shards.listings.names)
        """The folders that were listed. The listings have the versions of their shards."""
        self.addresses = shards.addresses
        if not self.addresses:
            raise InputError("no shards", hint="name shards, a folder, a glob or a manifest")
        self.manifest: Manifest | None = shards.manifest
        self.is_indexed = all(map(has_folder, self.addresses))
        self.undecodable: dict[str, int] = {}
        """For each shard, the number of samples that a filter skipped because it could not decode them."""
        self._read_values: dict[str, list[F64]] = {}
        """The values that were read from payloads or a table, by expression: an array for each shard."""
        self._values_table = access.values
        self._begin()
        if self.is_indexed:
            self._count(shards)
        self._held = self.counts
        """The number of samples in each shard, including samples that a filter drops."""

    def open(self, address: str) -> Source:
        """Open the shard ``address``. Raises InputError, DataError."""
        if self._listed_as is not None:
            check_view(address, self._listed_as)
        with cached_in(*(self._cache or (None,))):
            return open_source(address)

    def _begin(self) -> None:
        """Begin with an empty cache of tables."""
        self._tables: Recent[int, ShardTable] = Recent(TABLES_BYTES, lambda table: table.bytes)
        self._values: Recent[tuple[int, str], F64] = Recent(TABLES_BYTES, lambda values: values.nbytes)
        self._scanned: dict[int, ProvenIndex] = {}
        self._doubted: set[int] = set()
        """Shards that may have another version than their indexes, and are opened before their indexes are used."""

    def find_values(self, expression: str) -> None:
        """Prepare the values of ``expression``, which has the form for :func:`~wdscli.shards.reading.values_of`. If the
        first index has the values, each index is read when its values are needed. Otherwise this method reads all
        values once: from the table ``values``, or, after a warning, from the payloads of all shards. Raises UsageError,
        InputError, DataError. A sample whose key is not in the table is also an error."""
        first = next(iter(self._held.nonzero()[0].tolist()), None) if self._held is not None else None
        name, table = self._value_name(expression), self._values_table
        if name in self._read_values or first is None or name in self.index(first).numbers:
            return
        whole = self._values_of(range(len(self.addresses)), name, table)
        numbers_by_shard = numpy.split(whole, numpy.cumsum(self._held)[:-1])
        for other, numbers in self._read_values.items() if table else ():
            if all(map(numpy.array_equal, numbers, numbers_by_shard)):
                warn(
                    f"{shown(table or '')} gives the same numbers for {other} and {name};\n"
                    "a table with one column of numbers gives it to every expression: add a column for each",
                    stacklevel=2,
                )
        self._read_values[name] = numbers_by_shard
        for shard, numbers in enumerate(numbers_by_shard if table and numpy.isnan(whole).any() else ()):
            places, missing = self.kept(shard), numpy.isnan(numbers)
            lacking = missing.nonzero()[0] if places is None else places[missing[places]]
            if len(lacking):
                raise DataError(
                    f"{shown(table or '')} has no number for the key",
                    code="missing-value",
                    shard=self.addresses[shard],
                    member=self.table(shard).key(int(lacking[0])),
                    hint="add a row to the table, or leave such samples out with where= or keys=",
                )

    def values(self, number: int, expression: str) -> F64:
        """Return the value of each sample of shard ``number``, including samples that a filter drops. A missing value
        is NaN."""
        name = self._value_name(expression)
        if name in self._read_values:
            return self._read_values[name][number]
        values = self._values.used((number, name))
        if values is None:
            values = self._values.keep((number, name), self._values_of([number], name))
        return values

    def _value_name(self, expression: str) -> str:
        """Return the name that the value ``expression`` has in indexes or in the table of values. Raises UsageError."""
        from wdscli.shards.reading import value_name

        return value_name(expression, self._values_table)

    def _values_of(self, numbers: Sequence[int], name: str, table: str | None = None) -> F64:
        from wdscli.shards.reading import values_of

        numbers_read = Numbers(
            values_of(
                [self.addresses[number] for number in numbers],
                name,
                table=table,
                index_of=lambda row: self.index(numbers[row]),
                open_shard=self.open,
                warn=partial(warn, stacklevel=2) if table is None else lambda text: None,
            ),
            exact=False,
        )
        whole: F64 = numbers_read.as_float().array
        return whole

    @property
    def fields(self) -> list[str] | None:
        """The fields of the set, if a manifest lists them or all shards were opened; otherwise None."""
        manifest = self.manifest
        if manifest is None:
            return sorted(map(to_text, self._seen_fields)) if self.is_indexed else None
        if not all(shard.fields for shard in manifest.shards if shard.samples):
            return None
        return list(manifest.fields)

    @cached_property
    def block_samples(self) -> I64:
        """For each shard, the number of samples that have about ``ORDER_BLOCK_BYTES`` together, rounded up. The number
        is computed from the mean size of the shard's samples. The numbers are the same whether the sizes come from a
        manifest or from the indexes."""
        assert self._held is not None
        if self.manifest is not None and self.fields is not None:
            totals = [shard.fields.values() for shard in self.manifest.shards]
            sizes = [
                sum(MEMBER_BYTES * field.count + field.size_bytes for field in fields) for fields in totals
            ]
        else:
            tables = self.each(self.table)
            sizes = [MEMBER_BYTES * len(table.sizes) + int(table.sizes.sum()) for table in tables]
        at_least_one: I64 = numpy.maximum(1, numpy.array(sizes, dtype=numpy.int64))
        return numpy.maximum(1, -(-ORDER_BLOCK_BYTES * self._held // at_least_one))

    def each(self, function: Callable[[int], Result]) -> Iterator[Result]:
        """Yield ``function(number)`` for every shard, in order. Calls for remote shards run at the same time."""
        return at_once(function, self.addresses, range(len(self.addresses)))

    @property
    def total(self) -> int | None:
        """The number of samples in all shards, or None if it is unknown."""
        return None if self.counts is None else int(self.counts.sum())

    def _count(self, shards: ShardSet) -> None:
        manifest = self.manifest = manifest_of(shards)
        if any(map(only_streams, self.addresses)) if manifest is None else not self._is_seekable():
            self.is_indexed = False
            return
        if manifest is not None:
            self.counts = numpy.array([shard.samples for shard in manifest.shards], dtype=numpy.int64)
            digests = [_short(shard.headers) for shard in manifest.shards]
            self._digests = numpy.array(digests, dtype=numpy.uint16)
            self.fingerprint = self._listed_as = manifest.fingerprint
            return
        from xxhash import xxh3_128

        digest = xxh3_128()
        counts: list[int] = []
        for proven in self.each(self._prove):
            index = proven.index
            if index is None:
                self.is_indexed = False
                return
            if not is_local(self.addresses[len(counts)]):
                self._keep_table(len(counts), index, proven)
            counts.append(index.samples)
            self._seen_fields.update(index.fields)
            digest.update(f"{index.samples} {index.size} {index.digest}\n".encode())
        self.counts = numpy.array(counts, dtype=numpy.int64)
        self.fingerprint = f"xxh3_128:{digest.hexdigest()}"

    def _is_seekable(self) -> bool:
        """Return whether all shards of a manifest can be read at any offset. To find out, the first shard that is
        compressed or on a web server is opened."""
        is_doubtful = [is_web(address) or bool(compression_of(address)) for address in self.addresses]
        if not any(is_doubtful):
            return True
        with self.open(self.addresses[is_doubtful.index(True)]) as source:
            return source.seekable

    def _prove(self, number: int, stored: StoredIndex | None = None) -> ProvenIndex:
        """Compare the index of one shard with the shard, or make it by a scan. The result has no index if the shard can
        only be streamed. ``stored`` is the index file, if it was already read."""
        if number in self._scanned:
            return self._scanned[number]
        address = self.addresses[number]
        try:
            source, stored = self._by_index(number, stored)
            with source or self.open(address) as source:
                proven = prove_index(address, source, stored=stored)
                if proven.index is not None:
                    check_joined(proven.index, address)
                elif source.seekable:
                    index = scanned_index(address, source)
                    check_joined(index, address)
                    proven = self._scanned[number] = ProvenIndex.of(index, Proof.HEADERS, source.version)
                return proven
        except (DataError, StorageError) as error:
            if not self._salvages:
                raise
            salvaged, dropped = _salvaged(address, self.open)
            if self.counts is not None and salvaged.samples != self.held(number):
                raise  # the shard was intact when its samples were counted
            self.losses[address] = Loss(error, dropped or 1)
            return self._scanned.setdefault(number, ProvenIndex.of(salvaged, Proof.HEADERS, ""))

    def _by_index(self, number: int, stored: StoredIndex | None) -> tuple[Source | None, StoredIndex | None]:
        """Do the work of :func:`~wdscli.shards.proof.open_by_index` for one shard on S3. The source is None for other
        shards, and after a doubt."""
        address = self.addresses[number]
        with cached_in(*(self._cache or (None,))):
            if number in self._doubted or not is_pinnable(address):
                return None, stored
            listed = listed_version(address) if folder_of(address) in self._folders else None
            return open_by_index(address, listed, stored)

    def index(self, number: int) -> Index:
        """Return the index of shard ``number``. The index is read again in each call, unless it was made by a scan.
        Raises DataError if the number of samples differs from the count."""
        proven = self._prove(number)
        index = self._counted(number, proven)
        if not is_local(self.addresses[number]):
            self._keep_table(number, index, proven)
        return index

    def _counted(self, number: int, proven: ProvenIndex) -> Index:
        """Return the index. Raises DataError unless it has the counted samples, and the headers in the manifest."""
        counted, index = self.held(number), proven.index
        if index is None or index.samples != counted:
            raise DataError(
                f"{'no' if index is None else index.samples} samples, but {counted} were counted before",
                code="changed",
                shard=self.addresses[number],
                hint="the shard was changed since the set was opened, or the manifest belongs to another set",
            )
        promised = 0 if self._digests is None else int(self._digests[number])
        if promised and _short(index.digest) != promised:
            raise DataError(
                "the samples differ from the manifest",
                code="changed",
                shard=self.addresses[number],
                hint="if the set was changed on purpose, rebuild its manifest and index with `wds index`",
            )
        return index

    def held(self, number: int) -> int:
        """Return the number of samples in shard ``number``, including samples that a filter drops."""
        assert self._held is not None
        return int(self._held[number])

    def table(self, number: int) -> ShardTable:
        """Return the table of shard ``number``, compared with the shard. Any thread may call this method. Raises
        DataError if the number of samples differs from the count."""
        table = self._tables.used(number)
        if table is not None and table.proof is not Proof.NOTHING:
            return table
        self._tables.forget(number)
        return self._compared(number)

    def table_to_read(self, number: int) -> ShardTable:
        """Return the table of shard ``number`` for reading samples. A shard on S3 may not yet be compared with its
        index; :meth:`open_as` then opens the version that the index names."""
        table = self._tables.used(number)
        if table is not None:
            return table
        address, stored = self.addresses[number], None
        with cached_in(*(self._cache or (None,))):
            if number not in self._doubted and is_pinnable(address) and number not in self._scanned:
                stored = read_index(address)
        pinned = None if stored is None else stored.pinned
        if pinned is None:
            return self._compared(number, stored)
        try:
            index = self._counted(number, pinned)
            check_joined(index, address)
        except DataError:
            # The manifest or the counts belong to another version, or samples are in several parts.
            return self._compared(number)
        return self._keep_table(number, index, pinned)

    def _compared(self, number: int, stored: StoredIndex | None = None) -> ShardTable:
        """Make a table that is compared with its shard."""
        proven = self._prove(number, stored)
        return self._keep_table(number, self._counted(number, proven), proven)

    def open_as(self, table: ShardTable, number: int) -> Source | None:
        """Open a shard, in the version that ``table`` describes, without sending a request. Return None if a request is
        needed."""
        with cached_in(*(self._cache or (None,))):
            is_known = stored_version(table.address, table.version) and number not in self._doubted
            if not is_known or not is_pinnable(table.address):
                return None
            return open_pinned(table.address, table.size, table.version)

    def doubt(self, number: int) -> None:
        """From now on, open and compare shard ``number`` before using its index."""
        self._doubted.add(number)
        self.forget(number)

    def _keep_table(self, number: int, index: Index, proven: ProvenIndex) -> ShardTable:
        """Make the table of a shard, and keep it, because loading it again may need requests."""
        return self._tables.keep(number, self._table(number, index, proven))

    def _table(self, number: int, index: Index, proven: ProvenIndex) -> ShardTable:
        table = ShardTable(self.addresses[number], index, proven.version, proven.proof, spelled=self.spelled)
        if self.check_table is not None:
            self.check_table(table)
        return table

    def forget(self, number: int) -> None:
        """Drop the table of shard ``number``."""
        self._scanned.pop(number, None)
        self._tables.forget(number)

    def places(self, shards: I64, samples: I64) -> I64:
        """Return the places of samples in their shards. ``samples`` are numbers among the counted samples of a shard.
        Without a filter, place and number are the same."""
        return samples

    def find(self, key: str) -> tuple[int, int] | None:
        """Return (shard, place) of a sample with this key, or None if there is none. Samples that a filter drops are
        found too. If keys rise from shard to shard, the indexes of some shards are read; otherwise, the indexes of all
        shards may be read."""
        assert self._held is not None
        raw, shards = to_bytes(key), self._held.nonzero()[0].tolist()
        guess = bisect_right(shards, raw, key=lambda shard: to_bytes(self.table(shard).key(0))) - 1
        if guess >= 0 and (place := self._place_of(raw, shards[guess])) is not None:
            return shards[guess], place
        for first in range(0, len(shards), SHARDS_SOUGHT):
            group = shards[first : first + SHARDS_SOUGHT]
            addresses = [self.addresses[shard] for shard in group]
            places = at_once(partial(self._place_of, raw), addresses, group)
            for shard, place in zip(group, places):
                if place is not None:
                    return shard, place
        return None

    def _place_of(self, key: bytes, shard: int) -> int | None:
        """Return the place of the sample with this key in a shard, or None if the shard does not have the key."""
        table = self.table(shard)
        if key not in table.keys:
            return None
        begins: I64 = numpy.append(0, table.key_ends[:-1])
        alike = (table.key_ends - begins == len(key)).nonzero()[0].tolist()
        return next((row for row in alike if table.keys[begins[row] : table.key_ends[row]] == key), None)

    def place(self, shard: int, sample: int) -> int:
        """Return the place of one sample in its shard, like :meth:`places`."""
        kept = self.kept(shard)
        return sample if kept is None else int(kept[sample])

    def kept(self, shard: int) -> I64 | None:
        """Return the places of a shard's counted samples, in rising order; None means all samples."""
        return None

    def _sent(self) -> dict[str, Any]:
        """Return the attributes that a worker receives."""
        return {**self.__dict__, "_tables": None, "_values": None, "_scanned": None, "manifest": None}

    def __getstate__(self) -> bytes:
        """Return a compressed pickle, in which shard names that differ only by a number take a few bytes each."""
        return compress(dumps(self._sent()), 9)

    def __setstate__(self, state: bytes) -> None:
        self.__dict__.update(loads(decompress(state)))
        TRUSTED.update(self._trusted)
        self._begin()


def _short(digest: str) -> int:
    return int(digest or "0", 16) & 0xFFFF


def only_streams(address: str) -> bool:
    """Return whether an address can only be streamed. Nothing is opened, because to open a named pipe would start to
    read it."""
    return not has_folder(address) or (is_local(address) and is_device(local_path(address)))


def _salvaged(address: str, open_shard: Callable[[str], Source]) -> tuple[Index, int]:
    """Return an index of the intact samples of a damaged shard, and the number of its other samples. The index is empty
    if the shard cannot be opened."""
    from wdscli.samples.grouping import Salvager

    builder, ignored, dropped, size = IndexBuilder(), Counter[str](), dict[str, int](), 0
    try:
        with open_shard(address) as source:
            size = source.size or 0
            for batch in Salvager(source, lambda error: None, dropped, ignored=ignored).batches():
                builder.add_batch(batch)
    except StorageError:
        builder, size = IndexBuilder(), 0
    index = builder.index(address, size, ignored)
    whole = without_parts(index)
    return whole, sum(dropped.values()) + index.samples - whole.samples
