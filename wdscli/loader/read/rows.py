"""The members of some samples of one shard, as plain lists, and samples made of them and their payloads.

What it is: :class:`Rows`. How: numpy gathers the columns of all samples at once, and what follows walks lists, whose
numbers cost less than an array's. Where all samples have the same fields in the same order, as in most shards, their
dictionaries are made by columns. It must not know how payloads are read.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wdscli.errors import DataError
from wdscli.loader.read.catalog import ShardTable
from wdscli.loader.read.headers import BLOCK, Names, all_harmless, all_say, blocks_of
from wdscli.loader.read.pieces import Pieces, pieces_of
from wdscli.samples.expected import FRONT_BYTES, are_harmless, is_there, says

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.storage import Source

    I64: TypeAlias = NDArray[numpy.int64]


class Runs(NamedTuple):
    """Reads of several samples: ``bases`` and ``lengths`` of each, how many ``members`` it has, and where in what is
    read payloads begin (``inside``, ``begins``) and end."""

    bases: list[int]
    lengths: list[int]
    members: list[int]
    inside: I64
    begins: list[int]
    ends: list[int]


class Rows:
    """``places`` are samples of ``table`` that rise or are the same, ``fields`` those that are wanted, None for all.

    ``widest`` is the size of the largest payload that is wanted.
    """

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
            of_sample = numpy.repeat(numpy.arange(len(places)), counts)[wanted]
            counts = numpy.bincount(of_sample, minlength=len(places))
            ids, offsets, sizes, rows = ids[wanted], offsets[wanted], sizes[wanted], rows[wanted]
            self._same = _same_fields(ids, counts)
        self.all_wanted = fields is None
        self.widest = int(sizes.max()) if len(sizes) else 0
        self._ids, self._offsets, self._sizes, self._counts = ids, offsets, sizes, counts
        self._heads: I64 = offsets - BLOCK if table.is_plain else table.heads[rows]
        self.keys, self._width = _keys(table, places)

    @property
    def size_bytes(self) -> int:
        """Of all payloads."""
        return int(self._sizes.sum())

    @cached_property
    def offsets(self) -> list[int]:
        """Where each payload begins."""
        found: list[int] = self._offsets.tolist()
        return found

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each payload."""
        found: list[int] = self._sizes.tolist()
        return found

    @cached_property
    def bounds(self) -> list[int]:
        """Members of sample i are ``bounds[i]`` to ``bounds[i + 1]``."""
        import numpy

        return [0, *numpy.cumsum(self._counts).tolist()]

    def __len__(self) -> int:
        return len(self.keys)

    def runs(self, gap: int, most: int) -> Runs:
        """How whole samples are read: at once where no more than ``gap`` bytes lie between them, about ``most`` bytes
        at the most."""
        import numpy

        starts, ends = self.table.starts[self._places], self.table.ends[self._places]
        apart = starts[1:] - ends[:-1] > gap
        if int(ends[-1] - starts[0]) > most:
            blocks = (starts - starts[0]) // most
            apart |= blocks[1:] > blocks[:-1]
        lasts: I64 = numpy.append(numpy.flatnonzero(apart), len(starts) - 1)
        samples = lasts.copy()
        samples[0] += 1
        samples[1:] -= lasts[:-1]
        firsts = lasts - samples + 1
        bases = starts[firsts]
        if self.table.in_each and self.all_wanted:
            members = samples * self.table.in_each
        else:
            members = numpy.add.reduceat(self._counts, firsts)
        begins = self._offsets - bases.repeat(members)
        return Runs(
            bases.tolist(),
            (ends[lasts] - bases).tolist(),
            members.tolist(),
            begins,
            begins.tolist(),
            (begins + self._sizes).tolist(),
        )

    def pieces(self, *, gap: int, most: int, large: int) -> Pieces:
        """How members are read, see :func:`~wdscli.loader.read.pieces.pieces_of`."""
        import numpy

        # What lies far in front of a header is a member of no sample; it is looked at where the header says too little.
        heads = numpy.maximum(self._heads, self._offsets - FRONT_BYTES)
        return pieces_of(heads, self._offsets, self._sizes, gap=gap, most=most, large=large)

    def check(
        self, source: Source, found: list[bytes], members: list[int], inside: I64, begins: list[int]
    ) -> None:
        """Raise DataError unless the header in front of every payload says what the table says. ``found`` is what was
        read, with so many ``members`` each, whose payloads begin at ``inside`` (and ``begins``, the same)."""
        if not begins:
            return
        blocks = blocks_of(found, members, inside, begins)
        if not (
            all_say(blocks, self._names_of_members, self._sizes) and self._are_led_in(found, members, begins)
        ):
            self._check_each(source, found, members, begins)

    @cached_property
    def _names_of_members(self) -> Names:
        suffixes, count = self.table.suffixes, self._same
        if count:
            return Names(
                self.keys, self._width, [suffixes[number] for number in self._ids[:count].tolist()], None
            )
        return Names(self.keys, 0, list(map(suffixes.__getitem__, self._ids.tolist())), self._counts)

    def _are_led_in(self, found: list[bytes], members: list[int], begins: list[int]) -> bool:
        """Whether nothing in front of the headers says otherwise, as far as a quick look tells."""
        return self.table.is_plain or all_harmless(self._fronts(found, members, begins))

    def _fronts(self, found: list[bytes], members: list[int], begins: list[int]) -> list[bytes]:
        """What was read in front of each header."""
        lengths = (self._offsets - self._heads - BLOCK).tolist()
        each = chain.from_iterable(map(repeat, found, members))
        return [
            data[max(0, begin - BLOCK - length) : begin - BLOCK]
            for data, begin, length in zip(each, begins, lengths)
        ]

    def _check_each(self, source: Source, found: list[bytes], members: list[int], begins: list[int]) -> None:
        """:meth:`check`, one by one, and exactly."""
        fronts = self._fronts(found, members, begins)
        each = chain.from_iterable(map(repeat, found, members))
        samples = chain.from_iterable(map(repeat, range(len(self)), self._counts.tolist()))
        suffixes = map(self.table.suffixes.__getitem__, self._ids.tolist())
        facts = zip(samples, suffixes, self._heads.tolist(), self.offsets, self.sizes)
        for data, begin, front, (at, suffix, head, offset, size) in zip(each, begins, fronts, facts):
            name = self.keys[at] + suffix
            if says(data, begin - BLOCK, name, size) and are_harmless(front):
                continue
            if not is_there(source, head, offset, name[:-1], size):
                raise changed(self.table, int(self._places[at]))

    def samples(self, payloads: list[bytes]) -> list[dict[str, Any]]:
        """The samples with their payloads."""
        keys = b"\n".join(self.keys).decode("utf-8", "surrogateescape").split("\n")
        if len(keys) != len(self):  # a key with a line end in it
            keys = [key.decode("utf-8", "surrogateescape") for key in self.keys]
        count = self._same
        if count and not self.table.same:
            names = list(map(self.table.fields.__getitem__, self._ids[:count].tolist()))
            return _columns(self.table.address, keys, names, payloads)
        return self._each(keys, payloads)

    def _each(self, keys: list[str], payloads: list[bytes]) -> list[dict[str, Any]]:
        url, names, bounds = self.table.address, self._names(), self.bounds
        found = []
        for key, first, end in zip(keys, bounds, bounds[1:]):
            raw: dict[str, Any] = {"__key__": key, "__url__": url}
            raw.update(zip(names[first:end], payloads[first:end]))
            found.append(raw)
        return found

    def _names(self) -> list[str]:
        ids = self._ids.tolist()
        names = list(map(self.table.fields.__getitem__, ids))
        if not self.table.same:
            return names
        return told_apart(names, list(map(self.table.spellings.__getitem__, ids)), self.bounds)


def _members(table: ShardTable, places: I64) -> tuple[I64, I64]:
    """(how many members each sample has, which rows of the table they are)."""
    import numpy

    each = table.in_each
    if each:
        rows = places if each == 1 else (places[:, None] * each + numpy.arange(each)).reshape(-1)
        return numpy.full(len(places), each), rows
    lasts = table.member_ends[places]
    firsts = numpy.where(places > 0, table.member_ends[places - 1], 0)
    counts = lasts - firsts
    begins = numpy.cumsum(counts) - counts
    return counts, numpy.repeat(firsts - begins, counts) + numpy.arange(int(counts.sum()))


def _keys(table: ShardTable, places: I64) -> tuple[list[bytes], int]:
    """(the keys of some samples, how long each is: 0 when they are not of one length)."""
    ends = table.key_ends[places]
    begins = table.key_ends[places - 1]
    at = 0
    while at < len(begins) and places[at] == 0:
        begins[at] = 0
        at += 1
    lengths = ends - begins
    width = int(lengths[0]) if (lengths == lengths[0]).all() else 0
    keys = table.keys
    return [keys[begin:end] for begin, end in zip(begins.tolist(), ends.tolist())], width


def _same_fields(ids: I64, counts: I64) -> int:
    count = int(counts[0])
    if not count or len(ids) != count * len(counts):
        return 0
    table = ids.reshape(-1, count)
    return count if (counts == count).all() and (table == table[0]).all() else 0


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


def told_apart(names: list[str], spellings: list[str], bounds: list[int]) -> list[str]:
    """``names``, but as they are spelled where a sample has one several times: ``img.jpg`` and ``img.JPG``."""
    found = []
    for first, end in pairwise(bounds):
        of_sample = names[first:end]
        for name, spelling in zip(of_sample, spellings[first:end]):
            found.append(name if of_sample.count(name) == 1 else spelling)
    return found


def changed(table: ShardTable, sample: int) -> DataError:
    """What is raised where a sample is not what the index says."""
    return DataError(
        f"sample {sample} is not what the index says",
        code="changed",
        shard=table.address,
        offset=int(table.starts[sample]) if sample < table.samples else None,
        hint="the shard was changed, or its index is stale: make it again with `wds index`",
    )
