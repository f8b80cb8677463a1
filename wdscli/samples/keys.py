"""This module splits a member's name into key and field, and finds keys that come back.

The rule is webdataset's (``base_plus_ext``). The key is the folder and the file name up to its first dot, and the field
is the rest after that dot. Some members belong to no sample: folders, names without a dot, AppleDouble ``._x``, names
of the form ``__x__``, and everything in a folder with such a name. :func:`why_unsafe` decides which names may be
written: relative, no ``..``, no NUL, no leading slash. :func:`may_be_unsafe` checks many names at once, and
:func:`joined_may_be_unsafe` many joined keys.

:class:`KeySet` is a set to which keys are added in batches. It needs 16 bytes of memory per key, and free places in its
hash table. :class:`KeyLog` keeps the keys themselves. Many keys are kept in a temporary file. For each key the set has
a 64-bit hash and the key's place in the log. A hash only finds candidates. Two keys are equal only if the log has the
same bytes for both.

The set is a hash table with linear probing. It is at most three quarters full, and then doubles its size. The compiled
core and plain Python fill the same table, each with its own hash.

Keys may come from an attacker. Each pair of keys with equal hashes costs a comparison, so an attacker must not know
such pairs. Therefore the hash has a secret of the process, :data:`MULTIPLIER`: the core takes XXH3 with this seed, and
plain Python takes its own SipHash; both are then multiplied by it. The output does not depend on these secrets.

:class:`SeparatedSamples` finds samples whose members are not next to each other, as in ``0.png 1.png 0.txt 1.txt``.
Readers group adjacent members, so such a sample would be read as several parts, each with some of its fields. A part is
recognised by its key: the key comes back in the same shard, with none of the fields that the earlier parts have. If the
key comes back with a field of an earlier part, the key is repeated, and readers may read both samples. While all
samples have a field in common, their keys are only collected.

This module does not know where names and samples come from.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

from wdscli.arrays import I64, SampleArrays, numpy
from wdscli.errors import DataError, UsageError, failing, printable
from wdscli.tar import DIRECTORY, core
from wdscli.text import to_text

if TYPE_CHECKING:
    from wdscli.model import Sample

MAX_NAME_BYTES = 1 << 16
"""The longest name that is written. No file system has longer names, and readers keep a whole header in memory."""


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a member's name into key and field. Return None if the member belongs to no sample.

    >>> split_name(b"n01/img7.seg.png")
    (b'n01/img7', b'seg.png')
    >>> split_name(b"README") is None, split_name(b"a/._img7.jpg") is None
    (True, True)
    """
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    if dot <= slash or dot + 1 == len(name):
        return None
    if name.startswith(b"__") and is_dunder(name):
        return None
    return name[:dot], name[dot + 1 :]


def is_dunder(name: bytes) -> bool:
    """Return whether webdataset skips this name, because its first part is ``__x__`` (``re.match(r"__[^/]*__($|/)",
    name)``)."""
    head = name.partition(b"/")[0]
    return len(head) >= 4 and head.startswith(b"__") and head.endswith(b"__")


def why_unsafe(name: bytes) -> str | None:
    """Return the reason why a name is unsafe, or None for a safe name. A member with an unsafe name could be unpacked
    outside its folder, or be lost.

    >>> why_unsafe(b"a/b.jpg"), why_unsafe(b"a/../b.jpg"), why_unsafe(b"a\\0b.jpg")
    (None, 'the name has a ".." in it', 'the name has a NUL in it')
    """
    if not name:
        return "the name is empty"
    if name.startswith(b"/"):
        return "the name is absolute"
    if b".." in name and b".." in name.split(b"/"):
        return 'the name has a ".." in it'
    # A NUL ends a name in a header: readers would find another name.
    return "the name has a NUL in it" if b"\0" in name else None


def may_be_unsafe(names: Sequence[bytes]) -> bool:
    """Check many names, or keys and fields, quickly. Return False if all of them are safe."""
    joined = b"\n".join(names)
    return (
        b".." in joined
        or b"\n/" in joined
        or b"\n\n" in joined
        or b"\0" in joined
        or joined.startswith((b"/", b"\n"))
        or (bool(names) and not names[-1])
    )


def joined_may_be_unsafe(keys: bytes, lengths: I64, fields: Sequence[bytes]) -> bool:
    """Check many joined keys, and all their fields, quickly. Return False if all names are safe."""
    if b".." in keys or b"\0" in keys or not lengths.all() or may_be_unsafe(fields):
        return True
    return bool((numpy.frombuffer(keys, dtype=numpy.uint8)[lengths.cumsum() - lengths] == ord("/")).any())


def hashes_of_joined(keys: bytes, lengths: I64 | array[int], seed: int = 0) -> array[int]:
    """Return the XXH3-64 of joined keys with these lengths in bytes.

    >>> [f"{key_hash:x}" for key_hash in hashes_of_joined(b"cat1cat22", array("q", [4, 5]))]
    ['144a54fa4bc2ed5e', 'bf733afe52c4de57']
    """
    packed = None if core.CORE is None else core.CORE.hashes(keys, lengths, seed)
    if packed is not None:
        return array("Q", packed)
    from xxhash import xxh3_64_intdigest

    bounds = pairwise(accumulate(lengths, initial=0))
    return array("Q", [xxh3_64_intdigest(keys[begin:end], seed) for begin, end in bounds])


def check_name(key: bytes, field: bytes) -> None:
    """Raise UsageError unless ``key.field`` is a safe name, and readers split it into this key and this field."""
    name = key + b"." + field
    if len(name) > MAX_NAME_BYTES:
        raise UsageError(f"the name has {len(name)} bytes, but at most {MAX_NAME_BYTES} can be written")
    reason = why_unsafe(name)
    if reason is not None:
        raise UsageError(
            f'unsafe name "{printable(to_text(name))}": {reason}',
            hint='use a relative name without ".." and NUL',
        )
    if split_name(name) != (key, field):
        raise UsageError(
            f'key "{to_text(key)}" and field "{to_text(field)}" would be read back as another key and field',
            hint="use a key without a dot after its last slash, and a field without a slash",
        )


def is_appledouble(name: bytes) -> bool:
    """Return whether the file name is ``._x``. macOS stores the attributes of ``x`` in such a file."""
    return name.startswith(b"._", name.rfind(b"/") + 1)


def why_ignored(name: bytes, kind: int) -> str:
    """Return the reason why a member belongs to no sample: ``directory``, ``appledouble``, ``dunder`` or
    ``no-field``."""
    if kind == DIRECTORY:
        return "directory"
    if is_appledouble(name):
        return "appledouble"
    if is_dunder(name):
        return "dunder"
    return "no-field"


MULTIPLIER = int.from_bytes(os.urandom(8), "little") | 1
"""The factor for all hashes. The factor 0, for tests, gives all keys the same hash."""
HELD_BYTES = 1 << 20
"""How many bytes of keys a log keeps in memory before it creates a file."""
_ALL = (1 << 64) - 1
_SLOT_BYTES = 16
_LENGTH_BITS = 24
_LONGEST = (1 << _LENGTH_BITS) - 1


class KeyLog:
    """A log of joined keys. A key's place has its first byte + 1 and its length, in 64 bits."""

    def __init__(self) -> None:
        self.data: Any = bytearray()
        """All keys, as a buffer."""
        self._file: BinaryIO | None = None
        self._end = 0

    def append(self, keys: Sequence[bytes]) -> int:
        """Add keys, and return the first byte of the first key. Raises OutputError, and DataError for a key that is too
        long."""
        return self.append_joined(b"".join(keys), map(len, keys))

    def append_joined(self, keys: bytes, lengths: Iterable[int]) -> int:
        """Do the work of :meth:`append` for joined keys with these lengths."""
        # Add one more byte, so that no key begins where the previous key ends.
        joined, begin = keys + b"\n", self._end
        if len(joined) > _LONGEST and max(lengths) > _LONGEST:
            raise DataError(f"a key of more than {_LONGEST} bytes", code="unsafe-name", hint="shorten it")
        self._end += len(joined)
        if self._file is None and self._end <= HELD_BYTES:
            self.data += joined
            return begin
        with failing("write scratch space", "set the variable TMPDIR to a folder with more free space"):
            if self._file is None:
                from tempfile import TemporaryFile

                self._file = TemporaryFile()  # noqa: SIM115 - lives as long as the log
                self._file.write(self.data)
            self._file.write(joined)
            self._file.flush()
            if self._end > len(self.data):
                # Map twice as much, so that later keys are visible without another call.
                self._file.truncate(2 * self._end)
                self.data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return begin

    @staticmethod
    def places(begin: int, keys: Iterable[bytes]) -> list[int]:
        """Return the places of keys that were added together."""
        lengths = array("Q", map(len, keys))
        begins = accumulate(lengths, initial=begin + 1)
        return [begin << _LENGTH_BITS | length for begin, length in zip(begins, lengths)]

    def has(self, place: int, key: bytes) -> bool:
        """Return whether the key at a place is this key."""
        begin = (place >> _LENGTH_BITS) - 1
        return place & _LONGEST == len(key) and self.data[begin : begin + len(key)] == key

    def key(self, place: int) -> bytes:
        """Return the key at a place."""
        begin = (place >> _LENGTH_BITS) - 1
        return bytes(self.data[begin : begin + (place & _LONGEST)])


class KeySet:
    """A set of keys. Call :meth:`add` with each batch of keys; it returns the positions of repeated keys.

    >>> keys = KeySet()
    >>> keys.add([b"a", b"b"]), keys.add([b"c", b"a", b"c"])
    ([], [1, 2])
    """

    def __init__(self) -> None:
        self._multiplier = MULTIPLIER
        self._log = KeyLog()
        self._core = core.CORE
        self._table = bytearray(_SLOT_BYTES << 12)
        self._count = 0

    def add(self, keys: Sequence[bytes]) -> list[int]:
        """Add ``keys``. Return the positions of keys that were already added, in this batch or an earlier batch. Raises
        DataError for a key that is too long, and OutputError if keys cannot be stored."""
        repeated: list[int] = []
        self._add(keys, repeated)
        return repeated

    def add_new(self, keys: Sequence[bytes]) -> bool:
        """Add ``keys`` if all keys are new and different. Otherwise add no key, and return False."""
        return self._add(keys, None)

    def add_joined(self, keys: bytes, lengths: I64) -> bool:
        """Do the work of :meth:`add_new` for joined keys with these lengths. Only with the compiled core."""
        return self._add_by_core(lengths, self._log.append_joined(keys, lengths), None)

    def _add(self, keys: Sequence[bytes], repeated: list[int] | None) -> bool:
        begin = self._log.append(keys)
        if self._core is None:
            return self._add_plain(keys, begin, repeated)
        return self._add_by_core(array("q", map(len, keys)), begin, repeated)

    def _add_by_core(self, lengths: I64 | array[int], begin: int, repeated: list[int] | None) -> bool:
        """Add the keys with these lengths in the log from byte ``begin``."""
        assert self._core is not None
        self._make_room(len(lengths))
        table, data = self._table, self._log.data
        is_new: bool = self._core.remember(table, lengths, data, begin, self._multiplier, repeated)
        self._count += len(lengths) - len(repeated or ()) if is_new else 0
        return is_new

    def _make_room(self, count: int) -> None:
        """Double the table until ``count`` more keys fit."""
        table = self._table
        while 4 * (self._count + count) > 3 * (len(table) // _SLOT_BYTES):
            table = bytearray(2 * len(table))
        if table is self._table:
            return
        if self._core is not None:
            self._core.remember(table, self._table, self._log.data, 0, None, None)
        else:
            slots, numbers = memoryview(table).cast("Q"), iter(memoryview(self._table).cast("Q"))
            for number, place in zip(numbers, numbers):
                slot = 2 * number & len(slots) - 2
                while place and slots[slot + 1]:
                    slot = slot + 2 & len(slots) - 2
                if place:
                    slots[slot], slots[slot + 1] = number, place
        self._table = table

    def _add_plain(self, keys: Sequence[bytes], begin: int, repeated: list[int] | None) -> bool:
        """Add keys without the core. A key has two numbers in the table: its hash, and its place in the log, which is 0
        in a free slot."""
        self._make_room(len(keys))
        slots, used_slots = memoryview(self._table).cast("Q"), list[int]()
        mask, has = len(slots) - 2, self._log.has
        for row, (key, place) in enumerate(zip(keys, self._log.places(begin, keys))):
            product = hash(key) * self._multiplier & _ALL
            number = product ^ product >> 32  # the secret factor changes the high bits most
            slot = 2 * number & mask
            while (earlier := slots[slot + 1]) and not (slots[slot] == number and has(earlier, key)):
                slot = slot + 2 & mask
            if not earlier:
                slots[slot], slots[slot + 1] = number, place
                used_slots.append(slot)
            elif repeated is not None:
                repeated.append(row)
            else:
                for used in used_slots:
                    slots[used] = slots[used + 1] = 0
                return False
        self._count += len(used_slots)
        return True


JOIN_HINT = "the files of a sample must be next to each other; `wds repair SHARDS -o OUT` joins them"
MOST_KEYS = 1 << 15
"""How many keys are remembered for a shard that is read only once, so that memory is bounded."""


class SeparatedSamples:
    """The keys of one shard. After ``most_keys`` samples, no further part is found.

    >>> search = SeparatedSamples()
    >>> [search.add(key, fields) for key, fields in [(b"0", [b"png"]), (b"1", [b"png"]), (b"0", [b"txt"])]]
    [False, False, True]
    """

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._room = most_keys
        self._last: Sequence[bytes | str] = ()
        self._shape: frozenset[bytes | str] = frozenset()
        self._common: frozenset[bytes | str] | None = None
        """The fields that all samples have."""
        self._blocks: list[SampleArrays] = []
        self._keys: list[bytes | str] = []
        self._shapes: list[frozenset[bytes | str]] = []
        self._fields: dict[bytes | str, frozenset[bytes | str]] = {}
        """The fields of each key, after two samples had no field in common."""

    def add(self, key: bytes | str, fields: Sequence[bytes | str]) -> bool:
        """Return whether a sample with these fields is a later part of an earlier sample."""
        if fields != self._last:
            self._last, self._shape = fields, frozenset(fields)
            self._common = self._shape if self._common is None else self._common & self._shape
        if self._room <= 0:
            self._blocks, self._keys, self._shapes, self._fields = [], [], [], {}
            return False
        self._room -= 1
        if self._common:
            self._keys.append(key)
            self._shapes.append(self._shape)
            return False
        self._remember_blocks()
        for earlier, shape in zip(self._keys, self._shapes):
            self._fields[earlier] = self._fields.get(earlier, shape) | shape
        self._keys, self._shapes = [], []
        known_fields = self._fields.get(key)
        self._fields[key] = self._shape if known_fields is None else known_fields | self._shape
        return known_fields is not None and known_fields.isdisjoint(self._shape)

    def add_batch(self, keys: list[bytes], firsts: list[int], fields: list[bytes]) -> Iterator[int]:
        """Add the samples of a :class:`~wdscli.samples.SampleBatch`. Yield the rows that are later parts."""
        width = firsts[1] if keys else 0
        is_uniform = fields[:width] * len(keys) == fields
        for row, key in enumerate(keys):
            if self.add(key, fields[firsts[row] : firsts[row + 1]]):
                yield row
            if is_uniform and not row and self._common and self._room > len(keys):
                self._keys += keys[1:]
                self._shapes += [self._shape] * (len(keys) - 1)
                self._room -= len(keys) - 1
                return

    def add_arrays(self, samples: SampleArrays) -> None:
        """Add the next samples at the beginning of the shard. Their keys must be different, and no sample may have a
        field twice. Objects are made for them only if they have no field in common with later samples."""
        if self._room <= 0:
            return
        total = len(samples.counts)
        in_all = numpy.flatnonzero(numpy.bincount(samples.codes) == total)
        common = frozenset(map(samples.fields.__getitem__, in_all.tolist()))
        self._common = common if self._common is None else self._common & common
        self._room -= total
        self._blocks.append(samples)

    def _remember_blocks(self) -> None:
        """Move the samples that were added as arrays to the fields of each key."""
        blocks, self._blocks = self._blocks, []
        for samples in blocks:
            fields = list(map(samples.fields.__getitem__, samples.codes.tolist()))
            key_start = first = 0
            for key_length, count in zip(samples.key_lengths.tolist(), samples.counts.tolist()):
                key = samples.keys[key_start : key_start + key_length]
                self._fields[key] = frozenset(fields[first : first + count])
                key_start, first = key_start + key_length, first + count


def joined_samples(samples: Iterable[Sample], shard: str) -> Iterator[Sample]:
    """Yield the samples of a shard in order. Raises DataError for a later part of a sample."""
    search = SeparatedSamples()
    for sample in samples:
        if search.add(sample.key, [*sample.fields]):
            raise separated(sample.key, shard)
        yield sample


def separated(key: bytes | str, shard: str, offset: int | None = None) -> DataError:
    """Return the error for a sample with a later part. ``offset`` is the first byte of this part."""
    error = DataError(
        "the key comes back with other fields",
        code="interleaved-key",
        shard=shard,
        offset=offset,
        member=key if isinstance(key, str) else to_text(key),
        hint=JOIN_HINT,
    )
    error.of = "sample"
    return error
