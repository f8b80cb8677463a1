"""The layout of a view's shard. Such a shard is a tar file that is not stored. Its headers are made from an index, and
its payloads are in other shards, which are called bases.

:func:`laid_out` makes a :class:`Layout` of samples from some base shards. :class:`ViewSource` reads the bytes of such a
shard as a :class:`~wdscli.storage.Source`. The layout is an index (:class:`~wdscli.shards.index.Index`) with two more
columns: the base and the first byte of each member. If a member has canonical form in its base, it is read together
with its header. Neighbouring members of this kind are a run, which one call reads. The headers of all other members are
made from the index. So the shard has the same bytes that a command would have written. This module does not know where
a view is stored, or how samples were chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from wdscli.arrays import I64, Mask, SampleArrays, edges, joined_keys, numpy, spread, steps
from wdscli.errors import DataError
from wdscli.samples.reading import ExpectedMember
from wdscli.selection.layers import Shape
from wdscli.selection.values import Numbers, fields_of, joined
from wdscli.shards.index import Check, Index
from wdscli.storage import Source
from wdscli.storage.ends import EndsEarly
from wdscli.storage.scatter import END, MOST_LOCAL, Ranges, Sources, read
from wdscli.tar import END_OF_ARCHIVE, Columns, Form, build_header
from wdscli.tar.header import BLOCK, NAME_BYTES, ONE_BLOCK_SIZE

FEW_MEMBERS = 1 << 10

Arrange: TypeAlias = "Callable[[dict[int, Shape]], Sequence[tuple[bytes, int, int]]]"
"""A function from a sample's fields in each set to its members. A member has a name, a set, and a number in the set."""
Origins: TypeAlias = "tuple[I64, I64, Callable[[], I64], Mask]"
Renamed: TypeAlias = "Mapping[int, bytes]"
"""New keys, by the sample's number."""


class Layer:
    """The samples of one base shard in a layout. ``index`` has only these samples. ``subset`` has their numbers in
    the layout, in rising order; None means all samples of the layout. ``set_number`` counts the sets of bases from 0.
    ``codes`` are the numbers of its fields in the layout's index, or -1 if no sample of the layout has the field."""

    def __init__(self, base: int, index: Index, subset: I64 | None, set_number: int = 0) -> None:
        self.base = base
        self.index = index
        self.subset = subset
        self.set_number = set_number
        self.codes: list[int] = []
        self.members: Any = slice(None)
        """The numbers of this layer's members among the members of all layers. If all samples have equally many
        members, this is a slice of each sample."""
        self.table: Any = None
        """The data that a reader of samples has computed from ``index``."""

    def is_like(self, layer: Layer) -> bool:
        """Return whether both layers have all samples of the layout, and the same keys."""
        index, layer_index = self.index, layer.index
        is_all = self.subset is None and layer.subset is None and index.keys == layer_index.keys
        return is_all and numpy.array_equal(index.key_ends, layer_index.key_ends)

    @cached_property
    def samples(self) -> I64:
        """The numbers of this layer's samples in the layout."""
        numbers: I64 = numpy.arange(self.index.samples) if self.subset is None else self.subset
        return numbers


class Runs(NamedTuple):
    """Ranges of bases. A run is one range of a base: adjacent members in canonical form, or one payload. ``begins`` and
    ``ends`` are offsets in the shard; adding ``shifts`` gives the offsets in the base. ``made_members`` have made
    headers. The headers go from ``made_begins`` to ``made_ends``, and the payloads end at ``made_stops``.
    ``made_of`` are the numbers of these members among the members of all layers."""

    begins: I64
    ends: I64
    bases: I64
    shifts: I64
    made_begins: I64
    made_ends: I64
    made_members: I64
    made_stops: I64
    made_of: I64


class Layout:
    """A shard of a view. ``index`` is its index. ``origins`` returns three arrays and a function. The arrays have, for
    each member, the base, the payload's first byte in the base, and whether the base has the same header and padding.
    The function returns the members' numbers among the members of all layers. ``is_plain`` says that each sample is its
    unchanged parts, in the order of the layers. ``is_base`` says that the shard has the same bytes as its only base."""

    def __init__(
        self,
        index: Index,
        layers: Sequence[Layer],
        origins: Callable[[], Origins],
        *,
        is_plain: bool,
        is_base: bool,
    ) -> None:
        self.index = index
        self.layers = layers
        self.is_plain = is_plain
        self.is_base = is_base
        self._origins = origins
        self.size = index.size

    @cached_property
    def runs(self) -> Runs:
        """The ranges of bases, and the headers between them."""
        bases, sources, numbers, is_whole = self._origins()
        offsets: I64 = self.index.member_offsets.astype(numpy.int64)
        sizes: I64 = self.index.member_sizes.astype(numpy.int64)
        ends: I64 = offsets + (sizes + 511 & -512)
        begins: I64 = numpy.append(0, ends)[:-1]
        shifts = sources - offsets
        heads, stops = (numpy.where(is_whole, begins, offsets), numpy.where(is_whole, ends, offsets + sizes))
        is_next: Mask = is_whole[1:] & is_whole[:-1] & (bases[1:] == bases[:-1]) & (shifts[1:] == shifts[:-1])
        bounds = edges(~is_next, len(offsets))
        firsts, lasts = bounds[:-1], bounds[1:] - 1
        made_members: I64 = numpy.flatnonzero(~is_whole)
        return Runs(
            heads[firsts],
            stops[lasts],
            bases[firsts],
            shifts[firsts],
            begins[made_members],
            offsets[made_members],
            made_members,
            stops[made_members],
            numbers()[made_members] if len(made_members) else made_members,
        )

    @cached_property
    def rows(self) -> list[tuple[list[int], list[int]]]:
        """Return, for each set, the layer number of each sample, or -1, and the sample's row in the layer's index."""
        total, sets = self.index.samples, 1 + max((layer.set_number for layer in self.layers), default=-1)
        rows_by_set: I64 = numpy.full((sets, 2, total), -1, dtype=numpy.int64)
        for number, layer in enumerate(self.layers):
            rows_by_set[layer.set_number, 0, layer.samples] = number
            rows_by_set[layer.set_number, 1, layer.samples] = numpy.arange(len(layer.samples))
        return [(numbers, rows) for numbers, rows in rows_by_set.tolist()]

    @property
    def memory_bytes(self) -> int:
        """The approximate size in memory, with all layers."""
        indexes = (self.index, *(layer.index for layer in self.layers))
        return 24 * self.index.members + sum(index.memory_bytes for index in indexes)

    def base_of(self, member: int) -> int:
        """Return the base of a member."""
        return int(self._origins()[0][member])

    def expected(self, made_number: int) -> tuple[int, ExpectedMember]:
        """Return the base of a member with a made header, and the member's headers in the base."""
        number = int(self.runs.made_of[made_number])
        for layer in self.layers:
            if number < layer.index.members:
                return layer.base, layer.index.member(number)
            number -= layer.index.members
        raise IndexError(number)

    def header(self, member: int) -> bytes:
        """Return the header blocks of a member."""
        index = self.index
        row = int(numpy.searchsorted(index.member_ends, member, "right"))
        name = index.key(row) + b"." + index.fields[int(index.member_fields[member])]
        return build_header(name, int(index.member_sizes[member]), index.form)


def laid_out(
    name: str,
    total: int,
    layers: Sequence[Layer],
    form: Form,
    arrange: Arrange | None = None,
    keys: Renamed | None = None,
) -> Layout:
    """Lay out the shard ``name`` with ``total`` samples. A sample has the members of all layers, or the members that
    ``arrange`` returns. It has the key of its first part, or a new key from ``keys``. Raises DataError if a base has
    changed."""
    keys = keys or {}
    is_plain = arrange is None and not keys
    if is_plain and len(layers) == 1 and layers[0].subset is None and layers[0].index.is_canonical:
        index = layers[0].index.renamed(name)
        layers[0].codes = list(range(len(index.fields)))
        return Layout(index, layers, lambda: _origins(layers, keys), is_plain=True, is_base=True)
    names, lengths = _names(layers, total, keys)
    sample = _place_members(layers, total)
    fields: dict[bytes, int] = {}
    for layer in layers:
        layer.codes = [fields.setdefault(field, len(fields)) for field in layer.index.fields]
    code = _column(layers, lambda layer: numpy.array(layer.codes)[layer.index.member_fields])
    size = _column(layers, lambda layer: layer.index.member_sizes)
    origins = partial(_origins, layers, keys)
    if arrange is not None:
        set_numbers = _column(layers, lambda layer: layer.set_number)
        chosen, codes = _arranged(sample, code, set_numbers, fields, arrange)
        origins = partial(_origins, layers, keys, chosen, codes == code[chosen])
        sample, size, code = sample[chosen], size[chosen], codes
    texts, code = _by_appearance(list(fields), code, layers)
    index = _LaidMembers(sample, code, size).index_of(name, form, texts, names, lengths)
    index.numbers = {} if arrange is not None else _values(layers, total)
    return Layout(index, layers, origins, is_plain=is_plain, is_base=False)


class _LaidMembers(NamedTuple):
    """All members of a shard, in order: the number of the sample, the number of the field, and the payload's size."""

    sample: I64
    code: I64
    size: I64

    def index_of(self, name: str, form: Form, fields: list[bytes], keys: bytes, key_lengths: I64) -> Index:
        """Return the index of the shard ``name`` with these members. ``keys`` are the joined keys of all samples."""
        key_ends, total = numpy.cumsum(key_lengths), len(key_lengths)
        header = self._header_bytes(form, fields, keys, key_lengths)
        blocks = header + (self.size + 511 & -512)
        ends = numpy.cumsum(blocks)
        member_ends = numpy.bincount(self.sample, minlength=total).cumsum()
        stops = numpy.append(0, ends)[member_ends]
        sample_bytes = steps(stops)
        columns = {
            "key_ends": key_ends,
            "starts": stops - sample_bytes,
            "lengths": sample_bytes,
            "member_ends": member_ends,
            "marks": numpy.zeros(total, dtype=numpy.uint8),
            "member_fields": self.code,
            "member_offsets": ends - blocks + header,
            "member_sizes": self.size,
        }
        end = (int(ends[-1]) if len(ends) else 0) + len(END_OF_ARCHIVE)
        return Index.of(name, end, form, fields, keys, columns)

    def _header_bytes(self, form: Form, fields: list[bytes], keys: bytes, key_lengths: I64) -> I64:
        """Return the size of each member's header. Only a large payload or a long name needs more than one block."""
        sample, code, size = self
        widths: I64 = numpy.array([len(field) for field in fields] or [0], dtype=numpy.int64)
        header: I64 = numpy.full(len(sample), BLOCK, dtype=numpy.int64)
        longs = size >= ONE_BLOCK_SIZE
        if key_lengths.max(initial=0) + 1 + widths.max() > NAME_BYTES:
            longs |= key_lengths[sample] + 1 + widths[code] > NAME_BYTES
        key_ends = numpy.cumsum(key_lengths)
        for member in numpy.flatnonzero(longs).tolist():
            row = int(sample[member])
            key = keys[int(key_ends[row] - key_lengths[row]) : int(key_ends[row])]
            member_name = key + b"." + fields[int(code[member])]
            header[member] = len(build_header(member_name, int(size[member]), form))
        return header


def _values(layers: Sequence[Layer], total: int) -> dict[str, Numbers]:
    """Return the stored values of the samples. From each set come the values that all its layers have, if these layers
    have all samples, and if no other set has a field of the value."""
    values: dict[str, Numbers] = {}
    for number in {layer.set_number for layer in layers}:
        set_layers = [layer for layer in layers if layer.set_number == number]
        other_layers = (layer for layer in layers if layer.set_number != number)
        other_fields = {field for layer in other_layers for field in layer.index.fields}
        samples: I64 = numpy.arange(total)[set_layers[0].samples]
        if len(set_layers) > 1:
            samples = numpy.concatenate([numpy.arange(total)[layer.samples] for layer in set_layers])
        if len(samples) != total:
            continue
        for name in set[str].intersection(*(set(layer.index.numbers) for layer in set_layers)):
            if not other_fields.isdisjoint(fields_of(name)):
                continue
            numbers = joined([layer.index.numbers[name] for layer in set_layers])
            array = numpy.empty_like(numbers.array)
            array[samples] = numbers.array
            values[name] = Numbers(array, numbers.exact)
    return values


def _place_members(layers: Sequence[Layer], total: int) -> I64:
    """Return the sample number of each member, and store the numbers of its members in each layer."""
    widths_of: list[I64] = [steps(layer.index.member_ends) for layer in layers]
    counts: I64 = numpy.zeros(total, dtype=numpy.int64)
    for layer, widths in zip(layers, widths_of):
        counts[layer.samples] += widths
    if total and all(
        layer.subset is None and widths.min() == widths.max() for layer, widths in zip(layers, widths_of)
    ):
        # All samples have the same number of members.
        for layer, widths, end in zip(layers, widths_of, accumulate(int(widths[0]) for widths in widths_of)):
            layer.members = numpy.s_[:, end - int(widths[0]) : end]
        return numpy.arange(total).repeat(int(counts[0]))
    place = numpy.cumsum(counts) - counts
    for layer, widths in zip(layers, widths_of):
        if len(layers) > 1:
            first = place[layer.samples]
            layer.members = spread(first, widths)
            place[layer.samples] = first + widths
    return numpy.arange(total).repeat(counts)


def _column(layers: Sequence[Layer], values: Callable[[Layer], Any]) -> I64:
    """Return one number for each member of all layers."""
    column: I64 = numpy.empty(sum(layer.index.members for layer in layers), dtype=numpy.int64)
    for layer in layers:
        layer_values = values(layer)
        if isinstance(layer.members, tuple):
            part = column.reshape(layer.index.samples, -1)[layer.members]
            part[...] = layer_values if isinstance(layer_values, int) else layer_values.reshape(part.shape)
        else:
            column[layer.members] = layer_values
    return column


def _origins(
    layers: Sequence[Layer], renamed: Renamed, chosen: I64 | None = None, has_name: Mask | None = None
) -> Origins:
    """Return the origins of all members, or of some members. A member with a new name has a made header."""

    def is_canonical(layer: Layer) -> Any:
        if not (renamed or layer.index.marks.any()):
            return 1
        canonical: Mask = (layer.index.marks == 0) & ~numpy.isin(layer.samples, list(renamed))
        return canonical.repeat(steps(layer.index.member_ends))

    bases = _column(layers, lambda layer: layer.base)
    sources = _column(layers, lambda layer: layer.index.member_offsets)
    firsts = dict(zip(map(id, layers), accumulate((layer.index.members for layer in layers), initial=0)))
    numbers = partial(_column, layers, lambda layer: firsts[id(layer)] + numpy.arange(layer.index.members))
    is_whole: Mask = _column(layers, is_canonical).astype(bool)
    if chosen is None:
        return bases, sources, numbers, is_whole
    return bases[chosen], sources[chosen], lambda: numbers()[chosen], is_whole[chosen] & has_name


def _by_appearance(fields: list[bytes], code: I64, layers: Sequence[Layer]) -> tuple[list[bytes], I64]:
    """Return the fields in the order of their first members, like a writer, and each member's field number in this
    order."""
    firsts: I64 = numpy.full(len(fields), -1, dtype=numpy.int64)
    # Usually all fields are in the first samples. If numbers repeat, the last assignment counts.
    for looked_at in (code[:FEW_MEMBERS], code):
        if (firsts < 0).any():
            firsts[looked_at[::-1]] = numpy.arange(len(looked_at))[::-1]
    order: list[int] = [number for number in numpy.argsort(firsts).tolist() if firsts[number] >= 0]
    table: I64 = numpy.full(len(fields) + 1, -1, dtype=numpy.int64)
    table[order] = numpy.arange(len(order))
    for layer in layers:
        layer.codes = table[layer.codes].tolist()
    return [fields[number] for number in order], table[code]


def _names(layers: Sequence[Layer], total: int, renamed: Renamed) -> tuple[bytes, I64]:
    """Return the joined keys of all samples, and their lengths. Raises DataError if two parts of a sample have
    different keys."""
    if not renamed and layers and all(map(layers[0].is_like, layers)):
        return layers[0].index.keys, steps(layers[0].index.key_ends)
    # The number of the layer that gives the key, and where the key begins and ends in that layer's keys.
    keys: I64 = numpy.full((3, total), -1, dtype=numpy.int64)
    for number, layer in enumerate(layers):
        ends: I64 = layer.index.key_ends.astype(numpy.int64)
        mine: I64 = numpy.stack((numpy.full(len(ends), number), numpy.append(0, ends)[:-1], ends))
        theirs = keys[:, layer.samples]
        both = theirs[0] >= 0
        if both.any() and not _are_equal(layers, mine[:, both], theirs[:, both]):
            raise _other_key(layers, mine, theirs)
        keys[:, layer.samples] = numpy.where(both, theirs, mine)
    names, lengths = _joined(layers, keys), keys[2] - keys[1]
    if renamed:
        bounds = [0, *numpy.cumsum(lengths).tolist()]
        old_names = (names[low:high] for low, high in pairwise(bounds))
        all_names = [renamed.get(sample, name) for sample, name in enumerate(old_names)]
        lengths = numpy.fromiter(map(len, all_names), dtype=numpy.int64, count=total)
        names = b"".join(all_names)
    return names, lengths


def _joined(layers: Sequence[Layer], keys: I64) -> bytes:
    return joined_keys([layer.index.keys for layer in layers], *keys)


def _are_equal(layers: Sequence[Layer], mine: I64, theirs: I64) -> bool:
    is_long = numpy.array_equal(mine[2] - mine[1], theirs[2] - theirs[1])
    return is_long and _joined(layers, mine) == _joined(layers, theirs)


def _other_key(layers: Sequence[Layer], mine: I64, theirs: I64) -> DataError:
    """Return the error for the first sample with different keys."""
    row = next(
        row
        for row in range(mine.shape[1])
        if theirs[0, row] >= 0 and not _are_equal(layers, mine[:, [row]], theirs[:, [row]])
    )
    return DataError(
        f"sample {row} has another key than when the view was made",
        code="changed",
        shard=layers[int(mine[0, row])].index.shard,
        hint="the shard was changed after the view was made: make the view again",
    )


def _arranged(
    sample: I64, code: I64, of_set: I64, fields: dict[bytes, int], arrange: Arrange
) -> tuple[I64, I64]:
    """Return the members of each sample that ``arrange`` chooses, in order, and the numbers of their new fields."""
    names, members_by_shape = list(fields), dict[bytes, tuple[list[int], list[int]]]()
    both = numpy.stack((of_set, code), axis=1)
    taken: list[int] = []
    codes: list[int] = []
    for low, high in pairwise(edges(sample[1:] != sample[:-1], len(sample)).tolist()):
        shape = both[low:high].tobytes()
        if shape not in members_by_shape:
            parts: dict[int, list[bytes]] = {}
            firsts: dict[int, int] = {}
            for member in range(low, high):
                part = int(of_set[member])
                firsts.setdefault(part, member - low)
                parts.setdefault(part, []).append(names[int(code[member])])
            slots = arrange({part: tuple(field_names) for part, field_names in parts.items()})
            members_by_shape[shape] = (
                [firsts[part] + member for _, part, member in slots],
                [fields.setdefault(field, len(fields)) for field, _, _ in slots],
            )
        places, new_codes = members_by_shape[shape]
        taken += [low + place for place in places]
        codes += new_codes
    return numpy.array(taken, dtype=numpy.int64), numpy.array(codes, dtype=numpy.int64)


class ViewSource(Source):
    """Reads the bytes of a view's shard. ``layout`` returns the shard's layout after a check of the bases; a caller may
    raise :attr:`check`. ``open_base`` opens a base by its number, and ``changed`` returns the error for a changed base.
    ``is_remote`` says whether some base is on a store. This source closes the bases that it opens.

    Before a payload with a made header is read, the header in its base is compared with the index. All other headers
    are read from the bases, and a scan of this source compares them by :meth:`check_members`."""

    def __init__(
        self,
        name: str,
        layout: Callable[[Check], Layout],
        check: Check,
        open_base: Callable[[int], Source],
        changed: Callable[[int, str], DataError],
        *,
        is_remote: bool,
    ) -> None:
        now = layout(check)
        super().__init__(name, size=now.size, seekable=True)
        self._layout = layout
        self.check = check
        self.bases = Sources(open_base, range(END) if is_remote else ())
        self._changed = changed
        self._confirmed = bytearray()
        self.is_remote = is_remote
        self.version = f"view:{now.index.digest}"
        if now.is_base and not is_remote:
            self.fd = self.bases[now.layers[0].base].fd

    @property
    def layout(self) -> Layout:
        """The layout, from a cache of limited size. Raises DataError."""
        return self._layout(self.check)

    @property
    def is_of_files(self) -> bool:
        """Whether all bases are uncompressed local files, and so few that they stay open."""
        bases = {layer.base for layer in self.layout.layers}
        return (
            not self.is_remote
            and len(bases) <= MOST_LOCAL
            and all(self.bases[base].fd is not None for base in bases)
            and bases <= self.bases.opened.keys()
        )

    def read_at(self, offset: int, length: int) -> bytes:
        buffer = bytearray(max(0, min(length, (self.size or 0) - offset)))
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, view: memoryview) -> int:
        end = min(offset + len(view), self.size or 0)
        if end <= offset:
            return 0
        # Fill the bytes after the last payload, with the end of the archive. :meth:`scatter` fills all bytes before.
        ends = self.layout.runs.ends
        first = max(offset, int(ends[-1])) if len(ends) else offset
        if first < end:
            view[first - offset : end - offset] = bytes(end - first)
        begins, lengths, places = numpy.array([[offset], [end - offset], [0]])
        self.scatter(begins, lengths, places, view)
        return end - offset

    def scatter(self, begins: I64, lengths: I64, places: I64, buffer: memoryview) -> None:
        """Read ranges of the shard to places in a buffer. The end of the archive is left out. Raises DataError,
        InputError."""
        if len(self.layout.runs.made_members):
            for begin, size, place in zip(begins.tolist(), lengths.tolist(), places.tolist()):
                buffer[place : place + size] = bytes(size)
                self._make_headers(buffer[place:], begin, begin + size)
        try:
            read(self.bases, self._in_bases(begins, begins + lengths, places), buffer)
        except EndsEarly as error:
            raise DataError(
                "the shard ends before a payload of the view",
                code="changed",
                shard=error.name,
                offset=error.offset,
                hint="the shard was changed after the view was made: make the view again",
            ) from None

    def _make_headers(self, view: memoryview, offset: int, end: int) -> None:
        """Put made headers into a buffer, which begins with the byte ``offset``. Before that, compare the members'
        headers in the bases with the index. Raises DataError."""
        layout, runs = self.layout, self.layout.runs
        for made_number in self._made(offset, end):
            self._confirm(layout, made_number)
        headers = slice(runs.made_ends.searchsorted(offset, "right"), runs.made_begins.searchsorted(end))
        for begin, stop, member in zip(*(column[headers].tolist() for column in runs[4:7])):
            low, high = max(begin, offset), min(stop, end)
            view[low - offset : high - offset] = layout.header(member)[low - begin : high - begin]

    def _confirm(self, layout: Layout, made_number: int) -> None:
        """Compare the headers that a member with a made header has in its base with the index. Raises DataError."""
        if not self._confirmed:
            self._confirmed = bytearray(len(layout.runs.made_of))
        if self._confirmed[made_number]:
            return
        base, expected = layout.expected(made_number)
        source = self.bases[base]
        data = source.read_at(expected.first, expected.offset - expected.first)
        if not expected.is_confirmed(source, data):
            raise self._changed(base, "its headers differ")
        self._confirmed[made_number] = 1

    def _made(self, offset: int, end: int) -> range:
        """Return the members with made headers that have payload bytes in this range."""
        runs = self.layout.runs
        first = int(runs.made_stops.searchsorted(offset, "right"))
        return range(first, int(runs.made_ends.searchsorted(end)))

    def check_members(self, columns: Columns) -> None:
        """Raise DataError unless the members that a scan has found are the members in the index."""
        if not columns.names:
            return
        index = self.layout.index
        first = int(numpy.searchsorted(index.member_offsets, columns.offsets[0]))
        end = first + len(columns.names)
        row = int(numpy.searchsorted(index.member_ends, first, "right"))
        skipped = first - (int(index.member_ends[row - 1]) if row else 0)
        last = int(numpy.searchsorted(index.member_ends, end))
        listed = index.batch(row, last + 1).columns().part(skipped, skipped + end - first)
        if (listed.names, listed.offsets, listed.sizes) != (columns.names, columns.offsets, columns.sizes):
            pairs = zip(listed.names, columns.names)
            differing = (row for row, (indexed, scanned) in enumerate(pairs) if indexed != scanned)
            member = min(first + next(differing, 0), index.members - 1)
            raise self._changed(self.layout.base_of(member), "its headers differ")

    def check_arrays(self, first: int, samples: SampleArrays) -> None:
        """Do the work of :meth:`check_members` for samples from number ``first``, by their keys, fields and sizes."""
        index = self.layout.index
        if not index.has(first, samples):
            member = int(index.member_ends[first - 1]) if first else 0
            raise self._changed(self.layout.base_of(member), "its headers differ")

    def _in_bases(self, begins: I64, ends: I64, places: I64) -> Ranges:
        """Return the ranges of bases that have the bytes of some ranges of this shard."""
        runs = self.layout.runs
        firsts = runs.ends.searchsorted(begins, "right")
        counts = runs.begins.searchsorted(ends) - firsts
        rows, numbers = numpy.arange(len(begins)).repeat(counts), spread(firsts, counts)
        lows = numpy.maximum(runs.begins[numbers], begins[rows])
        highs = numpy.minimum(runs.ends[numbers], ends[rows])
        in_buffer = lows + (places - begins)[rows]
        return Ranges(runs.bases[numbers], lows + runs.shifts[numbers], highs - lows, in_buffer)

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        if not self.is_remote:
            return
        spans = list(ranges)
        made = (self.layout.expected(number) for span in spans for number in self._made(*span))
        headers = [(base, member.first, member.offset - member.first) for base, member in made]
        begins, ends = numpy.array(spans, dtype=numpy.int64).reshape(-1, 2).T
        columns = zip(
            self._in_bases(begins, ends, begins), numpy.array(headers, dtype=numpy.int64).reshape(-1, 3).T
        )
        files, firsts, lengths = map(numpy.concatenate, columns)
        self.bases.expect(Ranges.in_turn(files, firsts, lengths), gap_bytes, keep=keep)

    def confirm(self) -> None:
        self.bases.confirm()

    def close(self) -> None:
        self.bases.close()
