"""The shards of a set as the loader knows them: how many samples each has, and where they lie.

What it is: :class:`Catalog`. How: counts come from the manifest when there is one, else from the indexes, else from a
scan of local shards; where the samples of a shard lie is read when it is needed and forgotten again, least recently
used first. What travels to workers is the addresses and the counts. It must not know orders, ranks or stages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from warnings import warn

from wdscli.errors import DataError, InputError, StorageError, WdsError
from wdscli.model import to_text
from wdscli.shards.inputs import ShardSet, manifest_beside, missing_shards, open_set
from wdscli.shards.manifest import Manifest, fingerprint
from wdscli.shards.reading import find_index, scan_index
from wdscli.storage import is_local, is_stream, local_path, open_source
from wdscli.storage.opening import COMPRESSED_SUFFIX, is_device

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.shards.index import Index
    from wdscli.storage import Source

    I64: TypeAlias = NDArray[numpy.int64]

Result = TypeVar("Result")

REMOTE_THREADS = 16
"""Shards on other machines that are asked at a time."""
KEPT_BYTES = 256 << 20
"""About how much of the shards' tables is kept in memory."""


class ShardTable:
    """Where the samples of one shard lie: numpy columns of its index, and names of fields as text, in lower case unless
    ``spelled``. ``same`` when some are several names of the shard in lower case."""

    def __init__(self, address: str, index: Index, *, spelled: bool = False) -> None:
        import numpy

        self.address = address
        self.version = "" if is_local(address) else index.seen
        """The version of the shard that this is true of: of a local one what who opened it first saw, whose headers are
        compared in any case."""
        self.size = index.size
        self.samples = index.samples
        self.starts: I64 = index.starts.view(numpy.int64)
        self.ends: I64 = self.starts + index.lengths.view(numpy.int64)
        self.member_ends: I64 = index.member_ends.view(numpy.int64)
        self.offsets: I64 = index.member_offsets.view(numpy.int64)
        self.sizes: I64 = index.member_sizes.view(numpy.int64)
        self.field_ids = index.member_fields
        self.suffixes = [b"." + field + b"\0" for field in index.fields]
        """What a key is followed by in the name of a member, by the number of its field."""
        self.spellings = [to_text(field) for field in index.fields]
        self.fields = self.spellings if spelled else [name.lower() for name in self.spellings]
        self.same = len(set(self.fields)) < len(self.fields)
        self.keys = index.keys
        self.key_ends: I64 = index.key_ends.view(numpy.int64)
        self.marks = index.marks
        self.columns: Any = None
        """Views of these for :func:`~wdscli.loader.read.pick.pick`."""

    @cached_property
    def in_each(self) -> int:
        """Members of each sample where all have the same fields in the same order, else 0."""
        each, rest = divmod(len(self.field_ids), max(1, self.samples))
        if rest or not each or not (self.member_ends % each == 0).all():
            return 0
        ids = self.field_ids.reshape(-1, each)
        in_order = int(self.member_ends[0]) == each and (self.member_ends[1:] > self.member_ends[:-1]).all()
        return each if in_order and (ids == ids[0]).all() else 0

    @cached_property
    def heads(self) -> I64:
        """For each member, where what stands in front of its payload begins: behind the member before it, or where its
        sample does."""
        import numpy

        heads: I64 = numpy.empty_like(self.offsets)
        heads[1:] = self.offsets[:-1] + (self.sizes[:-1] + 511 & -512)
        heads[numpy.append(0, self.member_ends[:-1])] = self.starts
        return heads

    @cached_property
    def is_plain(self) -> bool:
        """Whether one block stands in front of every payload."""
        return bool((self.offsets - self.heads == 512).all())

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        return 40 * self.samples + 32 * len(self.offsets) + len(self.keys)

    def key(self, sample: int) -> str:
        """The key of one sample."""
        return to_text(
            self.keys[int(self.key_ends[sample - 1]) if sample else 0 : int(self.key_ends[sample])]
        )


class Catalog:
    """The shards that ``urls`` name, in order. Raises InputError and DataError when they cannot be had or counted.

    ``counts`` has the samples of each shard, ``fingerprint`` tells this set from others. ``is_indexed`` is False when
    some shard can only be streamed; then there are no counts. With ``spelled`` fields keep their capitals.
    ``trust_addresses`` and ``pipes`` are those of :func:`~wdscli.shards.inputs.open_set`.
    With ``salvage`` a shard that is damaged and has no index has the samples that are whole, and ``losses`` says so.
    """

    spelled = False

    _salvages = False

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        salvage: bool = False,
        trust_addresses: bool = False,
        pipes: bool = True,
    ) -> None:
        self._salvages = salvage
        self.losses: dict[str, WdsError] = {}
        """What is wrong with shards of which only a part, or nothing, can be had."""
        found = open_set(
            [urls] if isinstance(urls, str) else list(urls), trust_addresses=trust_addresses, pipes=pipes
        )
        self.addresses = found.addresses
        if not self.addresses:
            raise InputError("no shards", hint="name shards, a folder, a glob or a manifest")
        self.manifest: Manifest | None = found.manifest
        self._tables: OrderedDict[int, ShardTable] = OrderedDict()
        self._kept_bytes = 0
        self._scanned: dict[int, Index] = {}
        self.is_indexed = not any(map(is_stream, self.addresses))
        self.counts: I64 | None = None
        self._digests: NDArray[numpy.uint16] | None = None
        """Short digests of the shards' headers, as a manifest tells them; 0 where it does not."""
        self.undecodable: dict[str, int] = {}
        """Samples by shard that a filter left out because it could not decode them."""
        self.fingerprint = ""
        if self.is_indexed:
            self._count(found)
        if self.manifest is None:
            _note_missing(found)

    @property
    def fields(self) -> list[str] | None:
        """Names of the fields of the set, where a manifest counted them."""
        manifest = self.manifest
        if manifest is None or not all(shard.fields for shard in manifest.shards if shard.samples):
            return None
        return list(manifest.fields)

    @property
    def total(self) -> int | None:
        """Samples of all shards, None when that is not known."""
        return None if self.counts is None else int(self.counts.sum())

    def _count(self, found: ShardSet) -> None:
        import numpy

        manifest = self.manifest = self.manifest or _beside(found)
        if any(map(only_streams, self.addresses)) if manifest is None else not self._is_seekable():
            self.is_indexed = False
            return
        if manifest is not None:
            self.counts = numpy.array([shard.samples for shard in manifest.shards], dtype=numpy.int64)
            digests = [_short(shard.headers) for shard in manifest.shards]
            self._digests = numpy.array(digests, dtype=numpy.uint16)
            self.fingerprint = fingerprint(manifest.shards)
            return
        from xxhash import xxh3_128

        digest, counts = xxh3_128(), []
        for index in each_shard(self.addresses, self._found_index):
            if index is None:
                self.is_indexed = False
                return
            counts.append(index.samples)
            digest.update(f"{index.samples} {index.size} {index.digest}\n".encode())
        self.counts = numpy.array(counts, dtype=numpy.int64)
        self.fingerprint = f"xxh3_128:{digest.hexdigest()}"

    def _is_seekable(self) -> bool:
        """Whether shards that a manifest counts can be read at any place, as far as names and one web server tell."""
        if any(map(COMPRESSED_SUFFIX.search, self.addresses)):
            return False
        if not self.addresses[0].startswith(("http:", "https:")):
            return True
        with open_source(self.addresses[0]) as source:
            return source.seekable

    def _found_index(self, number: int) -> Index | None:
        """The index of one shard, found or made by a scan; None for one that can only be streamed."""
        if number in self._scanned:
            return self._scanned[number]
        address = self.addresses[number]
        try:
            with open_source(address) as source:
                index = find_index(address, source)
                if index is None and source.seekable:
                    index = self._scanned[number] = _scan(address, source)
                    index.seen = source.version
                return index
        except (DataError, StorageError) as error:
            if not self._salvages:
                raise
            from wdscli.loader.read.damage import salvaged_index

            salvaged = salvaged_index(address)
            if self.counts is not None and salvaged.samples != self.held(number):
                raise  # it was not so when it was counted
            self.losses[address] = error
            return self._scanned.setdefault(number, salvaged)

    def index(self, number: int) -> Index:
        """The index of shard ``number``, which is not kept unless a scan made it. Raises DataError when it no longer
        has the samples that were counted."""
        index = self._found_index(number)
        counted = self.held(number)
        if index is None or index.samples != counted:
            raise DataError(
                f"{'no' if index is None else index.samples} samples where {counted} were counted",
                code="changed",
                shard=self.addresses[number],
                hint="the shard was changed since the set was opened, or its manifest is not its own",
            )
        promised = 0 if self._digests is None else int(self._digests[number])
        if promised and _short(index.digest) != promised:
            raise DataError(
                "other samples than the manifest says",
                code="changed",
                shard=self.addresses[number],
                hint="if it was changed on purpose, make manifest and index again with `wds index`",
            )
        return index

    def held(self, number: int) -> int:
        """Samples that shard ``number`` was counted to have, whether a filter leaves some out or not."""
        assert self.counts is not None
        return int(self.counts[number])

    def table(self, number: int) -> ShardTable:
        """Where the samples of shard ``number`` lie; for any thread. Raises DataError as :meth:`index` does."""
        known = self._tables.get(number)
        if known is not None:
            # Another thread may have let go of it meanwhile.
            with suppress(KeyError):
                self._tables.move_to_end(number)
            return known
        table = self._tables[number] = ShardTable(
            self.addresses[number], self.index(number), spelled=self.spelled
        )
        self._kept_bytes += table.bytes
        while self._kept_bytes > KEPT_BYTES and len(self._tables) > 1:
            with suppress(KeyError):
                self._kept_bytes -= self._tables.popitem(last=False)[1].bytes
        return table

    def forget(self, number: int) -> None:
        """Read where the samples of shard ``number`` lie again when they are needed."""
        self._scanned.pop(number, None)
        known = self._tables.pop(number, None)
        self._kept_bytes -= 0 if known is None else known.bytes

    def places(self, shards: I64, samples: I64) -> I64:
        """The places in their shards of samples that are numbered as ``counts`` counts them: the same numbers here,
        where nothing is left out."""
        return samples

    def place(self, shard: int, sample: int) -> int:
        """:meth:`places` of one."""
        return sample

    def __getstate__(self) -> dict[str, Any]:
        """Addresses and counts, packed: names of shards that differ by a number take a few bytes each."""
        from zlib import compress

        counts = None if self.counts is None else compress(self.counts.tobytes())
        names = compress("\0".join(self.addresses).encode("utf-8", "surrogateescape"), 9)
        digests = None if self._digests is None else self._digests.tobytes()
        packed = {"addresses": names, "counts": counts, "_digests": digests}
        empty = {"_tables": OrderedDict(), "_scanned": {}, "_kept_bytes": 0, "manifest": None}
        return {**self.__dict__, **empty, **packed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from zlib import decompress

        self.__dict__.update(state)
        self.addresses = decompress(state["addresses"]).decode("utf-8", "surrogateescape").split("\0")
        import numpy

        if state["counts"] is not None:
            self.counts = numpy.frombuffer(decompress(state["counts"]), dtype=numpy.int64)
        if state["_digests"] is not None:
            self._digests = numpy.frombuffer(state["_digests"], dtype=numpy.uint16)


def _short(digest: str) -> int:
    return int(digest or "0", 16) & 0xFFFF


def each_shard(addresses: Sequence[str], function: Callable[[int], Result]) -> Iterator[Result]:
    """``function`` of the number of every shard, in order; of remote ones several at a time, because each waits."""
    shards = range(len(addresses))
    if all(map(is_local, addresses)):
        yield from map(function, shards)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(REMOTE_THREADS, thread_name_prefix="wdscli-shards")
    try:
        yield from pool.map(function, shards)
    finally:
        pool.shutdown(cancel_futures=True)


def only_streams(address: str) -> bool:
    """Whether an address alone tells that its bytes come once, from front to back. Nothing is opened: who opens a named
    pipe has begun to read it."""
    if is_stream(address) or COMPRESSED_SUFFIX.search(address):
        return True
    return is_local(address) and is_device(local_path(address))


def _beside(shards: ShardSet) -> Manifest | None:
    """The manifest beside shards that names exactly them, in this order."""
    from wdscli.storage import base_name

    found = manifest_beside(shards.addresses, shards.given)
    names = [base_name(one) for one in shards.addresses]
    return None if found is None or [shard.name for shard in found[1].shards] != names else found[1]


def _note_missing(found: ShardSet) -> None:
    """Warn where a folder or a glob that was named has not all the shards of a manifest in it."""
    from wdscli.storage import base_name, folder_of

    gone = missing_shards(found)
    for where in dict.fromkeys(shard.manifest for shard in gone):
        names = [base_name(shard.address) for shard in gone if shard.manifest == where]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        folder = folder_of(where).rstrip("/")
        warn(
            f"{names[0]}{more} of {base_name(where)} {'are' if more else 'is'} not in {folder}", stacklevel=2
        )


def _scan(address: str, source: Source) -> Index:
    from wdscli.shards.index import parse_index
    from wdscli.storage import base_name

    builder, ignored = scan_index(source)
    data = builder.to_bytes(shard=base_name(address), size=source.size or 0, ignored=ignored)
    return parse_index(data, address)
