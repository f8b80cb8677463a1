"""Some samples of one shard: which reads fetch them, whether what was read is what the index says, and the samples.

What it is: :class:`Rows`. How: numpy gathers the columns of all samples at once, and what follows walks lists, whose
numbers cost less than an array's. Small members are read with their neighbours, large payloads one by one, and the
headers in front of all of them too. The headers are compared together: what was read is seen as words, of which a few
in each header are compared with those that the canonical form would have there. What this does not take for granted
goes to :mod:`wdscli.samples.expected`, one by one, which has the last word. Where all samples have the same fields in
the same order, as in most shards, their dictionaries are made by columns. It must not know how bytes are read.
"""

from __future__ import annotations

from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wdscli.errors import DataError
from wdscli.loader.read.catalog import ShardTable, same_fields
from wdscli.samples.expected import FRONT_BYTES, are_harmless, is_there, says

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.loader.order.order import I64
    from wdscli.storage import Source

    U8: TypeAlias = NDArray[numpy.uint8]

HEADER_BYTES = 512
READ_BYTES = 4 << 20
"""About the most that one read of several samples has."""
_NAME_BYTES = 100
_COMPARED_BYTES = 352
"""What is looked at of a header."""
_SPARSE_BYTES = 1 << 12
"""What was read for each header, from which on headers are cut out of it rather than seen where they lie."""
_PAX_BYTES = 1024
"""A pax header with one block of records, as most writers put them in front of every member."""
_SPEAKS = (b"path=", b"size=", b"GNU.sparse.")
"""What no record may have in it that says nothing of name and size."""


class Reads(NamedTuple):
    """``bases`` and ``lengths`` are reads of whole blocks, each of so many ``members``: of what was read, the payload
    of a member lies from ``inside`` (and ``begins``, the same) to ``ends``, and what leads to it in front of that. Of
    the ``large`` members only what leads to them is there; their payloads are read by themselves."""

    bases: list[int]
    lengths: list[int]
    members: list[int]
    inside: I64
    begins: list[int]
    ends: list[int]
    large: list[int]

    def of_each(self, found: list[bytes]) -> chain[bytes]:
        """For each member, what was read where it lies."""
        return chain.from_iterable(map(repeat, found, self.members))


class Rows:
    """The samples of ``table`` at ``places``, which rise or are the same. ``fields`` are those that are wanted, None
    for all. ``offsets`` and ``sizes`` are those of the payloads, sample by sample."""

    def __init__(self, table: ShardTable, places: I64, fields: frozenset[str] | None) -> None:
        import numpy

        self.table = table
        self._places = places
        counts, rows = _members(table, places)
        ids, offsets, sizes = table.field_ids[rows], table.offsets[rows], table.sizes[rows]
        self._same = table.in_each
        """Fields of each sample where all have the same ones, else 0."""
        if fields is not None:
            wanted = numpy.array([name in fields for name in table.fields], dtype=bool)[ids]
            of_sample = numpy.arange(len(places)).repeat(counts)[wanted]
            counts = numpy.bincount(of_sample, minlength=len(places))
            ids, offsets, sizes, rows = ids[wanted], offsets[wanted], sizes[wanted], rows[wanted]
            self._same = same_fields(ids, counts)
        self._all_wanted = fields is None
        self._ids, self.offsets, self.sizes, self._counts = ids, offsets, sizes, counts
        self._heads: I64 = offsets - HEADER_BYTES if table.is_plain else table.heads[rows]
        self._keys, self._key_bytes = _keys(table, places)

    def reads(self, gap_bytes: int, large_bytes: int) -> Reads:
        """What to read: stretches with no more than ``gap_bytes`` between two things that are wanted. Payloads of
        ``large_bytes`` and more are read alone, where it is not whole samples that are wanted and all are small."""
        import numpy

        if self._all_wanted and int(self.sizes.max()) < large_bytes:
            table, places = self.table, self._places
            return self._stretches(table.starts[places], table.ends[places], gap_bytes, self._counts)
        # What lies far in front of a header is a member of no sample; it is looked at where the header says too little.
        heads = numpy.maximum(self._heads, self.offsets - FRONT_BYTES)
        is_large = self.sizes >= large_bytes
        # Whole blocks, so that all headers lie at the beginning of one.
        stops = self.offsets + numpy.where(is_large, 0, self.sizes + 511 & -512)
        return self._stretches(heads, stops, gap_bytes, large=is_large.nonzero()[0].tolist())

    def _stretches(
        self,
        begins: I64,
        stops: I64,
        gap_bytes: int,
        counts: I64 | None = None,
        large: list[int] | None = None,
    ) -> Reads:
        """Reads of things that lie from ``begins`` to ``stops``, with ``counts`` members each, None for one."""
        import numpy

        is_first: NDArray[numpy.bool_] = numpy.ones(len(begins), dtype=bool)
        is_last = is_first.copy()
        is_first[1:] = (begins[1:] - stops[:-1] > gap_bytes) | (begins[1:] < begins[:-1])
        if int(stops[-1] - begins[0]) > READ_BYTES:
            parts = (begins - begins[0]) // READ_BYTES
            is_first[1:] |= parts[1:] != parts[:-1]
        is_last[:-1] = is_first[1:]
        firsts, lasts = is_first.nonzero()[0], is_last.nonzero()[0]
        bases = begins[firsts]
        members = lasts - firsts + 1 if counts is None else numpy.add.reduceat(counts, firsts)
        inside = self.offsets - bases.repeat(members)
        return Reads(
            bases.tolist(),
            (stops[lasts] - bases).tolist(),
            members.tolist(),
            inside,
            inside.tolist(),
            (inside + self.sizes).tolist(),
            large or [],
        )

    def check(self, source: Source, found: list[bytes], reads: Reads) -> None:
        """Raise DataError unless the header in front of every payload says what the table says. ``found`` is what was
        read."""
        headers = _headers(found, reads)
        is_said = _are_of_sizes(headers, self.sizes) and self._are_named(headers)
        if is_said and not self.table.is_plain:
            is_said = _all_harmless(self._fronts(found, reads))
        if not is_said:
            self._check_each(source, found, reads)

    def _are_named(self, headers: Headers) -> bool:
        """Whether headers, those of all members, begin with their names."""
        keys, suffixes, count = self._keys, self.table.suffixes, self._same
        if not count:
            each = chain.from_iterable(map(repeat, keys, self._counts.tolist()))
            bare = [suffix[:-1] for suffix in suffixes]
            return headers.names() == list(
                map(bytes.__add__, each, map(bare.__getitem__, self._ids.tolist()))
            )
        of_sample = [suffixes[number] for number in self._ids[:count].tolist()]
        if not self._key_bytes:
            bare = [suffix[:-1] for suffix in of_sample]
            return headers.names() == [key + suffix for key in keys for suffix in bare]
        return all(
            self._key_bytes + len(suffix) <= _NAME_BYTES
            and headers.texts(self._key_bytes + len(suffix), at, count) == suffix.join(keys) + suffix
            for at, suffix in enumerate(of_sample)
        )

    def _fronts(self, found: list[bytes], reads: Reads) -> list[bytes]:
        """What was read in front of each header."""
        lengths = (self.offsets - self._heads - HEADER_BYTES).tolist()
        return [
            data[max(0, begin - HEADER_BYTES - length) : begin - HEADER_BYTES]
            for data, begin, length in zip(reads.of_each(found), reads.begins, lengths)
        ]

    def _check_each(self, source: Source, found: list[bytes], reads: Reads) -> None:
        """:meth:`check`, one by one, and exactly."""
        read = zip(reads.of_each(found), reads.begins, self._fronts(found, reads))
        samples = chain.from_iterable(map(repeat, range(len(self._keys)), self._counts.tolist()))
        suffixes = map(self.table.suffixes.__getitem__, self._ids.tolist())
        facts = zip(samples, suffixes, self._heads.tolist(), self.offsets.tolist(), self.sizes.tolist())
        for (data, begin, front), (at, suffix, head, offset, size) in zip(read, facts):
            name = self._keys[at] + suffix
            if says(data, begin - HEADER_BYTES, name, size) and are_harmless(front):
                continue
            if not is_there(source, head, offset, name[:-1], size):
                raise changed(self.table, int(self._places[at]))

    def samples(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        """The samples with their payloads."""
        keys = b"\n".join(self._keys).decode("utf-8", "surrogateescape").split("\n")
        if len(keys) != len(self._keys):  # a key with a line end in it
            keys = [key.decode("utf-8", "surrogateescape") for key in self._keys]
        url, names, count = self.table.address, self.table.fields, self._same
        if count and not self.table.has_twins:
            return _columns(url, keys, [names[number] for number in self._ids[:count].tolist()], payloads)
        found, first, ids = [], 0, self._ids.tolist()
        of_members = list(map(names.__getitem__, ids))
        for key, end in zip(keys, self._counts.cumsum().tolist()):
            raw: dict[str, Any] = {"__key__": key, "__url__": url}
            twins = self.table.has_twins
            of_sample = self.table.names_of(ids[first:end]) if twins else of_members[first:end]
            raw.update(zip(of_sample, payloads[first:end]))
            found.append(raw)
            first = end
        return found


def _members(table: ShardTable, places: I64) -> tuple[I64, I64]:
    """(how many members each sample has, which rows of the table they are)."""
    import numpy

    each = table.in_each
    if each:
        rows = places if each == 1 else (places[:, None] * each + numpy.arange(each)).reshape(-1)
        return numpy.full(len(places), each), rows
    firsts = numpy.where(places > 0, table.member_ends[places - 1], 0)
    counts = table.member_ends[places] - firsts
    begins = counts.cumsum() - counts
    return counts, (firsts - begins).repeat(counts) + numpy.arange(int(counts.sum()))


def _keys(table: ShardTable, places: I64) -> tuple[list[bytes], int]:
    """(the keys of some samples, how long each is: 0 when they are not of one length)."""
    ends = table.key_ends[places]
    begins = table.key_ends[places - 1]
    if not places[0]:
        begins[places == 0] = 0
    lengths = ends - begins
    length = int(lengths[0]) if (lengths == lengths[0]).all() else 0
    keys = table.keys
    return [keys[begin:end] for begin, end in zip(begins.tolist(), ends.tolist())], length


def _columns(url: str, keys: list[str], names: list[str], payloads: list[bytes]) -> list[dict[str, Any]]:
    """Samples of which all have the fields ``names``; the usual numbers of them are written out."""
    if len(names) == 1:
        (a,) = names
        return [{"__key__": key, "__url__": url, a: data} for key, data in zip(keys, payloads)]
    columns = [payloads[at :: len(names)] for at in range(len(names))]
    if len(names) == 2:
        a, b = names
        return [{"__key__": key, "__url__": url, a: x, b: y} for key, x, y in zip(keys, *columns)]
    if len(names) == 3:
        a, b, c = names
        return [{"__key__": key, "__url__": url, a: x, b: y, c: z} for key, x, y, z in zip(keys, *columns)]
    names = ["__key__", "__url__", *names]
    return [dict(zip(names, row)) for row in zip(keys, [url] * len(keys), *columns)]


def changed(table: ShardTable, sample: int) -> DataError:
    """What is raised where a sample is not what the index says."""
    return DataError(
        f"sample {sample} is not what the index says",
        code="changed",
        shard=table.address,
        offset=int(table.starts[sample]) if sample < table.samples else None,
        hint="the shard was changed, or its index is stale: make it again with `wds index`",
    )


class Headers(NamedTuple):
    """The headers of some members in ``rows`` of bytes, each of which begins in one of those ``at``."""

    rows: U8
    at: I64

    def words(self, byte: int) -> Any:
        """The four bytes of each header from ``byte`` on, as a little-endian number."""
        return self.rows.view("<u4")[self.at, byte // 4]

    def texts(self, length: int, first: int = 0, step: int = 1) -> bytes:
        """The first ``length`` bytes of every ``step``-th header from number ``first`` on, one behind the other."""
        import numpy

        rows = self.rows
        table: Any = numpy.ndarray((len(rows),), f"V{length}", rows, strides=rows.strides[:1])
        return bytes(table[self.at[first::step]].tobytes())

    def names(self) -> list[bytes]:
        """What each has for a name."""
        import numpy

        found: list[bytes] = numpy.frombuffer(self.texts(_NAME_BYTES), f"S{_NAME_BYTES}").tolist()
        return found


def _headers(found: list[bytes], reads: Reads) -> Headers:
    """The headers in front of payloads in what was read."""
    import numpy

    if len(found) > 1 and sum(map(len, found)) > _SPARSE_BYTES * len(reads.begins):
        heads = [begin - HEADER_BYTES for begin in reads.begins]
        cut = b"".join(
            [data[head : head + _COMPARED_BYTES] for data, head in zip(reads.of_each(found), heads)]
        )
        rows: U8 = numpy.frombuffer(cut, dtype=numpy.uint8).reshape(-1, _COMPARED_BYTES)
        return Headers(rows, numpy.arange(len(heads)))
    together, inside = found[0], reads.inside
    if len(found) > 1:
        together = b"".join(found)
        inside = inside + numpy.cumsum([0, *map(len, found[:-1])]).repeat(reads.members)
    rows = numpy.frombuffer(together, dtype=numpy.uint8).reshape(-1, HEADER_BYTES)
    return Headers(rows, (inside >> 9) - 1)


def _are_of_sizes(headers: Headers, sizes: I64) -> bool:
    """Whether these are headers of regular members of these sizes, whose names have no prefix."""
    largest = int(sizes.max())
    if largest >= 1 << 33:
        return False
    four, three = _digits()
    types = headers.words(156)
    return bool(
        (headers.words(132) == three[sizes & 511]).all()
        and (headers.words(128) == four[sizes >> 9 & 4095]).all()
        and (headers.words(124) == (four[sizes >> 21] if largest >> 21 else four[0])).all()
        and ((types == 48).all() or ((types & 0xFF == 48) | (types & 0xFF == 0)).all())
        and not (headers.words(344) & 0xFF00).any()
    )


@cache
def _digits() -> tuple[Any, Any]:
    """The words of four octal digits, and of three with a zero behind them."""
    import numpy

    four = b"".join([b"%04o" % number for number in range(1 << 12)])
    three = b"".join([b"%03o\0" % number for number in range(1 << 9)])
    return numpy.frombuffer(four, dtype="<u4"), numpy.frombuffer(three, dtype="<u4")


def _all_harmless(fronts: list[bytes]) -> bool:
    """Whether what stands in front of each header's block is nothing, or one pax header that says nothing of name and
    size, as far as a quick look tells."""
    import numpy

    fronts = [front for front in fronts if front]
    together = b"".join(fronts)
    if not all(len(front) == _PAX_BYTES for front in fronts) or any(word in together for word in _SPEAKS):
        return False
    heads: U8 = numpy.frombuffer(together, dtype=numpy.uint8).reshape(-1, _PAX_BYTES)
    # Fewer bytes of records than a block has: eight digits that are zero in front of the last three.
    return bool((heads[:, 156] == 120).all() and (heads[:, 124:132] == 48).all())
