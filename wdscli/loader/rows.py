"""The members of some samples of one shard, as plain lists, and samples made of them and their payloads.

What it is: :class:`Rows`. How: numpy gathers the columns of all samples at once, and what follows walks lists, whose
numbers cost less than an array's. Where all samples have the same fields in the same order, as in most shards, their
dictionaries are made by columns. It must not know how payloads are read.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.errors import DataError
from wdscli.loader.catalog import ShardTable

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

NAME = 100
"""Bytes of a header's first field; a longer key is told elsewhere."""


class Rows:
    """``places`` are samples of ``table`` that rise, ``fields`` those that are wanted, None for all.

    ``starts`` and ``ends`` have one offset a sample; ``offsets`` and ``sizes`` one number a wanted member, and those of
    sample i are ``bounds[i]`` to ``bounds[i + 1]``. ``widest`` is the size of the largest payload.
    """

    def __init__(self, table: ShardTable, places: I64, fields: frozenset[str] | None) -> None:
        import numpy

        self.table = table
        self._places = places
        lasts = table.member_ends[places]
        firsts = numpy.where(places > 0, table.member_ends[places - 1], 0)
        counts = lasts - firsts
        rows: Any
        if len(places) == int(places[-1]) - int(places[0]) + 1:
            rows = slice(int(firsts[0]), int(lasts[-1]))
        else:
            begins = numpy.cumsum(counts) - counts
            rows = numpy.repeat(firsts - begins, counts) + numpy.arange(int(counts.sum()))
        ids, offsets, sizes = table.field_ids[rows], table.offsets[rows], table.sizes[rows]
        if fields is not None:
            wanted = numpy.array([name in fields for name in table.fields], dtype=bool)[ids]
            of_sample = numpy.repeat(numpy.arange(len(places)), counts)[wanted]
            counts = numpy.bincount(of_sample, minlength=len(places))
            ids, offsets, sizes = ids[wanted], offsets[wanted], sizes[wanted]
        self.all_wanted = fields is None
        self.widest = int(sizes.max()) if len(sizes) else 0
        self.starts: list[int] = table.starts[places].tolist()
        self.ends: list[int] = table.ends[places].tolist()
        self.offsets: list[int] = offsets.tolist()
        self.sizes: list[int] = sizes.tolist()
        self._same = _same_fields(ids, counts)
        """Fields of each sample where all have the same ones, else 0."""
        self.bounds: list[int] = [0, *numpy.cumsum(counts).tolist()]
        self._ids = ids
        self._cut_keys()

    def _cut_keys(self) -> None:
        table, places = self.table, self._places
        ends = table.key_ends[places].tolist()
        begins = table.key_ends[places - 1].tolist()
        if places[0] == 0:
            begins[0] = 0
        keys = table.keys
        self.keys = [keys[begin:end] for begin, end in zip(begins, ends)]
        marks = table.marks[places]
        self._marks: list[int] | None = marks.tolist() if marks.any() else None

    def __len__(self) -> int:
        return len(self.starts)

    def check(self, data: bytes, base: int, first: int, end: int) -> None:
        """Raise DataError unless samples ``first`` to ``end`` begin with a header of their key, in what was read from
        ``base`` on."""
        starts, keys = self.starts, self.keys
        for at in range(first, end):
            if not data.startswith(keys[at], starts[at] - base) and self._is_told(at):
                raise changed(self.table, int(self._places[at]))

    def check_member(self, data: bytes, base: int, member: int) -> None:
        """The same for the sample whose first member is ``member``."""
        sample = bisect_right(self.bounds, member) - 1
        self.check(data, base, sample, sample + 1)

    def begins(self, gap: int) -> list[int]:
        """From where each member is read: its payload, or the start of its sample where it is the first one and no
        more than ``gap`` bytes behind, so that the first header comes along."""
        found = self.offsets.copy()
        for start, first, bound in zip(self.starts, self.bounds, self.bounds[1:]):
            if first < bound and found[first] - start <= gap:
                found[first] = start
        return found

    def _is_told(self, at: int) -> bool:
        """Whether the first header of a sample must begin with its key."""
        return len(self.keys[at]) < NAME and not (self._marks and self._marks[at])

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
