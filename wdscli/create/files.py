"""This module has the files that will become members, as packed columns, and the rules that split a path into key and
field.

:class:`Files` is the result of walk, lists and tables. The plan sorts and cuts these files. A file needs 8 bytes in
addition to its name. It needs 16 bytes if its payload is not in a file with this name. Names are joined; their ends,
sizes and places are arrays. All are kept in blocks, because a growing array would be copied and would fragment memory.
Python objects would need 300 bytes for each of millions of files. An order is an array of file numbers.

A :class:`KeyRule` is ``first-dot`` (webdataset's rule), ``last-dot``, or a regular expression. It returns key and field
of a path, or the reason why the path has none. With the last two rules, a key may have dots in its last part. Readers
would split such a key at the first dot, so dots are written as ``_``. The rule remembers renamed keys, to report them,
and to refuse two different keys that become equal. The first ten thousand are remembered as text, the others as hashes.

:class:`RowsByKey` finds rows by their keys, and :class:`JsonFiles` finds the JSON file of a sample, to which the
columns of a table are added.

This module does not open files, and does not know where they come from.
"""

from __future__ import annotations

import marshal
import os
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.create.delimited import RowPlace
from wdscli.errors import DataError, InputError, InputNotFoundError, UsageError
from wdscli.samples import check_name, is_dunder
from wdscli.selection.expressions import Expression
from wdscli.storage.local import reason
from wdscli.tar import core
from wdscli.text import to_bytes, to_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEPARATOR = b"\0"
"""The byte between key and field in a row. It sorts before every byte of a name, so that rows sort by (key, field)."""
FIRST_DOT = "first-dot"
LAST_DOT = "last-dot"
REMEMBERED_KEYS = 10_000
"""How many renamed keys are remembered as text."""


class Inline(NamedTuple):
    """A payload in memory."""

    payload: bytes


class StoredPayload(NamedTuple):
    """A payload in a scratch file, at ``offset``."""

    path: str
    offset: int


Place = bytes | str | Inline | StoredPayload
"""The place of a payload. Bytes are a local path, and text is a remote address."""
_KINDS: tuple[type[Inline | StoredPayload], ...] = (Inline, StoredPayload)
_ROW_NUMBERS = 4
"""The numbers of a row: its source, its table, its number and its line."""
_SHIFT = 15
_MASK = (1 << _SHIFT) - 1
"""A block has one more file than this number."""


class _Block:
    """Up to 32,768 files: joined rows, and their ends. ``places`` is a single number as long as all places are
    equal."""

    __slots__ = ("ends", "names", "places", "sizes")

    def __init__(self) -> None:
        self.names: bytearray | bytes = bytearray()
        self.ends = array("I", [0])
        self.sizes = array("Q")
        self.places: array[int] | int = array("q")

    def seal(self) -> None:
        """Pack a full block into as few bytes as possible."""
        self.names = bytes(self.names)
        self.ends = array("I", self.ends)
        self.sizes = array("I" if max(self.sizes) < 1 << 32 else "Q", self.sizes)
        if isinstance(self.places, array):
            first = self.places[0]
            self.places = first if self.places.count(first) == len(self.sizes) else array("q", self.places)

    def all_places(self) -> array[int]:
        if isinstance(self.places, int):
            self.places = array("q", [self.places]) * len(self.sizes)
        return self.places


class FileColumns(NamedTuple):
    """Some files as columns: their joined rows, a 0 and the ends of these rows, payload sizes in bytes, and the numbers
    of places."""

    rows: bytes
    ends: I64
    sizes: I64
    places: I64

    def row_list(self) -> list[bytes]:
        return [self.rows[begin:end] for begin, end in pairwise(self.ends.tolist())]


class Files:
    """All files, by number. Each file has a row (key, NUL, field), a planned payload size in bytes, and a place.

    A place is stored as a number. It is the offset in a buffer of places. A negative number is the number of a root
    folder, in which the file has its own name.

    >>> files = Files()
    >>> files.add(b"n1", b"txt", 2, Inline(b"hi"))
    >>> files.add_row(b"n2\\0txt", 5, files.root(b"in"))
    >>> len(files), files.row(1), files.size(1), files.place(0), files.place(1)
    (2, b'n2\\x00txt', 5, Inline(payload=b'hi'), b'in/n2.txt')
    """

    __slots__ = ("_begins", "_blocks", "_roots", "_rows", "_stored_places", "_tables", "first_listed")

    def __init__(self, *, by_source: bool = False) -> None:
        self.first_listed = sys.maxsize
        """The number of the first file that comes from a list or table. Files from folders are before it."""
        self._begins = array("Q") if by_source else None
        self._rows, self._tables = array("Q"), list[str]()
        self._blocks = [_Block()]
        self._stored_places = bytearray()
        self._roots: list[bytes] = []

    def __len__(self) -> int:
        return (len(self._blocks) - 1 << _SHIFT) + len(self._blocks[-1].sizes)

    def add(self, key: bytes, field: bytes, size: int, place: Place) -> None:
        self.add_row(key + SEPARATOR + field, size, self.keep(place))

    def add_row(self, row: bytes, size: int, place: int) -> None:
        """Add one file by the number of its place. If the place is a root folder, the file's path in this folder is its
        row, with a dot instead of the NUL."""
        block = self._open_block()
        block.names += row
        block.ends.append(len(block.names))
        block.sizes.append(size)
        block.all_places().append(place)

    def add_columns(self, columns: FileColumns) -> None:
        """Add files as columns. If they are sorted by row, the later sort of all files is faster."""
        rows, ends, sizes, places = columns
        done = 0
        while done < len(sizes):
            block = self._open_block()
            end = min(len(sizes), done + _MASK + 1 - len(block.sizes))
            shift = block.ends[-1] - ends[done]
            block.names += rows[ends[done] : ends[end]]
            block.ends.frombytes((ends[done + 1 : end + 1] + shift).astype(numpy.uint32).tobytes())
            block.sizes.frombytes(sizes[done:end].tobytes())
            block.all_places().frombytes(places[done:end].tobytes())
            done = end

    def add_folder(self, rows: bytes, ends: bytes, sizes: bytes, place: int) -> None:
        """Add files of one root folder, with ``ends`` and ``sizes`` as packed i64."""
        bounds, lengths = numpy.frombuffer(ends, numpy.int64), numpy.frombuffer(sizes, numpy.int64)
        self.add_columns(FileColumns(rows, bounds, lengths, numpy.full(len(lengths), place)))

    def _open_block(self) -> _Block:
        """Return the last block, with space for at least one file."""
        if len(self._blocks[-1].sizes) > _MASK:
            self._blocks[-1].seal()
            self._blocks.append(_Block())
        return self._blocks[-1]

    def begin_source(self, row: RowPlace | None = None) -> None:
        """Begin a new source: a folder, or a row of a table. The files added next belong to it."""
        if self._begins is None:
            return
        self._begins.append(len(self))
        if row is not None:
            if self._tables[-1:] != [row.table]:
                self._tables.append(row.table)
            self._rows.extend((len(self._begins), len(self._tables) - 1, row.row, row.line))

    def source(self, file: int) -> int:
        """Return the number of a file's source. This needs ``by_source``."""
        return bisect_right(self._begins or (), file)

    def row_place(self, file: int) -> RowPlace | None:
        """Return the row from which a file comes, or None. This needs ``by_source``."""
        source, count = self.source(file), len(self._rows) // _ROW_NUMBERS
        number = bisect_left(range(count), source, key=lambda entry: self._rows[entry * _ROW_NUMBERS])
        first = number * _ROW_NUMBERS
        if number == count or self._rows[first] != source:
            return None
        _, table, row, line = self._rows[first : first + _ROW_NUMBERS]
        return RowPlace(self._tables[table], row, line)

    def root(self, path: bytes) -> int:
        """Return the place number of all files in a folder."""
        self._roots.append(path if path.endswith(b"/") else path + b"/")
        return -len(self._roots)

    def keep(self, place: Place) -> int:
        """Store a place, and return its number."""
        number = len(self._stored_places)
        self._stored_places += marshal.dumps(
            place if isinstance(place, (bytes, str)) else (_KINDS.index(type(place)), *place)
        )
        return number

    def put(self, file: int, size: int, place: int) -> None:
        """Replace size and place of one file."""
        block = self._blocks[file >> _SHIFT]
        block.sizes[file & _MASK] = size
        block.all_places()[file & _MASK] = place

    def row(self, file: int) -> bytes:
        block = self._blocks[file >> _SHIFT]
        slot = file & _MASK
        return bytes(block.names[block.ends[slot] : block.ends[slot + 1]])

    def blocks(self) -> list[tuple[Any, ...]]:
        """Return the blocks for the compiled core."""
        return [(block.names, block.ends, block.sizes, block.places) for block in self._blocks]

    def gather(self, numbers: Any) -> FileColumns:
        """Return some files as columns. ``numbers`` is an array or a range."""
        numbers = numpy.asarray(numbers, numpy.int64)
        if core.CORE is not None:
            rows, *columns = core.CORE.gather(self.blocks(), numbers)
            return FileColumns(rows, *(numpy.frombuffer(column, numpy.int64) for column in columns))
        files = numbers.tolist()
        columns = _joined(list(map(self.row, files)), list(map(self.size, files)))
        return columns._replace(places=numpy.fromiter(map(self.place_number, files), numpy.int64, len(files)))

    def heads(self, numbers: I64) -> bytes:
        """Compare each file's row with the row before. Return a byte for each: 0 for another field of the same key, 1
        for another key, 2 for the same row. The first has a 1."""
        if core.CORE is not None:
            return bytes(core.CORE.heads(self.blocks(), numbers))
        heads, prefix, before = bytearray(), SEPARATOR, b""
        for row in map(self.row, numbers.tolist()):
            heads.append(2 if row == before else 0 if row.startswith(prefix) else 1)
            prefix, before = row[: row.find(SEPARATOR) + 1], row
        return bytes(heads)

    def all_rows(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the rows of each block, with the number of its first file."""
        for number, block in enumerate(self._blocks):
            names, ends = bytes(block.names), block.ends
            yield number << _SHIFT, [names[begin:end] for begin, end in zip(ends, islice(ends, 1, None))]

    def measured(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield the sizes of rows and of payloads of the files in each block."""
        for block in self._blocks:
            yield numpy.diff(numpy.array(block.ends)), numpy.array(block.sizes, numpy.int64)

    def keys(self) -> Iterator[bytes]:
        """Yield the key of each file, in the order in which files were added."""
        return (self.row(file).partition(SEPARATOR)[0] for file in range(len(self)))

    def size(self, file: int) -> int:
        return self._blocks[file >> _SHIFT].sizes[file & _MASK]

    def place_number(self, file: int) -> int:
        """Return the number of a file's place."""
        places = self._blocks[file >> _SHIFT].places
        return places if isinstance(places, int) else places[file & _MASK]

    def folder(self, place: int) -> bytes:
        """Return the root folder with this place number, with a slash at its end."""
        return self._roots[-1 - place]

    def place(self, file: int) -> Place:
        number = self.place_number(file)
        if number < 0:
            return self.folder(number) + self.row(file).replace(SEPARATOR, b".")
        return self._kept(number)

    def _kept(self, number: int) -> Place:
        stored = marshal.loads(memoryview(self._stored_places)[number:])
        place: Place = stored if isinstance(stored, (bytes, str)) else _KINDS[stored[0]](*stored[1:])
        return place

    def part(self, numbers: Sequence[int], rows: Iterable[bytes] | None = None) -> Files:
        """Return a copy of some files, in the given order, optionally with other ``rows``."""
        files, kept, new_rows = Files(), dict[int, int](), iter(rows or ())
        files._roots = self._roots
        for first in range(0, len(numbers), _MASK + 1):
            together = numbers[first : first + _MASK + 1]
            columns = self.gather(together)
            places = columns.places.copy()
            for place in numpy.unique(places[places >= 0]).tolist():
                if place not in kept:
                    kept[place] = files.keep(self._kept(place))
                places[columns.places == place] = kept[place]
            if rows is not None:
                row_list = list(islice(new_rows, len(together)))
                for slot, (file, old, new) in enumerate(zip(together, columns.row_list(), row_list)):
                    if new != old and places[slot] < 0:
                        places[slot] = files.keep(self.place(file))
                columns = _joined(row_list, columns.sizes)
            files.add_columns(columns._replace(places=places))
        return files


def _joined(row_list: Sequence[bytes], sizes: Any) -> FileColumns:
    """Return columns of rows and sizes, with places of 0."""
    ends = numpy.fromiter(accumulate(map(len, row_list), initial=0), numpy.int64)
    return FileColumns(
        b"".join(row_list), ends, numpy.asarray(sizes, numpy.int64), numpy.zeros(len(row_list), numpy.int64)
    )


def numbers_of(numbers: Iterable[int] | NDArray[Any], count: int) -> array[int]:
    """Return an array of numbers below ``count``, with as few bytes per number as possible."""
    typecode = "I" if count < 1 << 32 else "Q"
    if isinstance(numbers, numpy.ndarray):
        return array(typecode, numbers.astype(typecode).tobytes())
    return array(typecode, numbers)


class RowsByKey:
    """Finds rows by the hashes of their keys. Each row needs 12 bytes, or 16 bytes if there are more than 2^32 rows.
    Without ``rows``, the rows are numbered from 0. ``hashes`` are then in rising order."""

    def __init__(self, hashes: array[int], rows: array[int] | None = None) -> None:
        order = numpy.argsort(numpy.asarray(hashes), kind="stable")
        self.hashes = array("q", numpy.asarray(hashes)[order].tobytes())
        self._rows = numbers_of(order if rows is None else numpy.asarray(rows)[order], len(hashes))

    def find(self, wanted: int, has: Callable[[int], bool]) -> int | None:
        """Return the first row with a key, or None. The hash of the key finds candidates, and ``has`` says whether a
        row has the key."""
        return next(filter(has, self.candidates(wanted)), None)

    def candidates(self, wanted: int) -> Iterator[int]:
        """Yield the rows whose keys have a hash, in rising order."""
        candidate = bisect_left(self.hashes, wanted)
        while candidate < len(self.hashes) and self.hashes[candidate] == wanted:
            yield self._rows[candidate]
            candidate += 1


class JsonFiles:
    """The members with the field ``json`` among all files so far."""

    def __init__(self, files: Files) -> None:
        hashes, numbers = array("q"), array("Q")
        for first, rows in files.all_rows():
            for file, row in enumerate(rows, first):
                if row.endswith(SEPARATOR + b"json"):
                    hashes.append(hash(row))
                    numbers.append(file)
        self._rows, self._files = RowsByKey(hashes, numbers), files
        self._taken = bytearray(len(files))

    def take(self, key: bytes) -> int | None:
        """Return the number of a sample's JSON file, which may be replaced only once. Return None if there is no such
        file. Raises DataError for a repeated key."""
        row = key + SEPARATOR + b"json"
        number = self._rows.find(hash(row), lambda file: self._files.row(file) == row)
        if number is not None:
            if self._taken[number]:
                raise DataError(f'repeated key "{to_text(key)}"', code="duplicate-key")
            self._taken[number] = 1
        return number


def is_value(place: Place) -> bool:
    """Return whether the payload is a value in a list or table."""
    return isinstance(place, (Inline, StoredPayload))


def describe_place(place: Place) -> str:
    """Return the text for a place in messages."""
    if isinstance(place, bytes):
        return to_text(place)
    return place if isinstance(place, str) else "a value of the list or table"


def cannot_read(place: Place, error: OSError | ValueError) -> InputError:
    """Return the error for a payload or folder that cannot be read."""
    is_lost = isinstance(error, FileNotFoundError) and isinstance(place, bytes) and os.path.islink(place)
    why = "broken symlink" if is_lost else reason(error)
    kind = InputNotFoundError if isinstance(error, FileNotFoundError) else InputError
    return kind(f"cannot read {describe_place(place)}: {why}", cause=error)


class KeyRule:
    """The rule that splits a path: ``first-dot``, ``last-dot`` or a regular expression. The expression must match the
    whole path, and must have the groups ``key`` and ``field``, or exactly two groups.

    >>> KeyRule("last-dot").split(b"n01/img.v2.jpg")
    (b'n01/img_v2', b'jpg')
    >>> KeyRule("first-dot").split(b"n01/README")
    'no-field'
    """

    def __init__(self, text: str = FIRST_DOT) -> None:
        self.text = text
        self.is_first_dot = text == FIRST_DOT
        self._old_keys: dict[bytes, bytes] = {}
        self._seed = int.from_bytes(os.urandom(8), "little")
        """A secret, so that names with equal hashes cannot be constructed."""
        self._hashed = array("Q")
        """For each further key, the hashes of the written and of the found key."""
        self._pattern = None if text in (FIRST_DOT, LAST_DOT) else _compile(text)

    def split(self, path: bytes) -> tuple[bytes, bytes] | str:
        """Return key and field of a relative path, or the reason why it belongs to no sample: ``hidden``,
        ``appledouble``, ``dunder``, ``no-field``, ``no-match``. Raises DataError if two keys become equal."""
        parts_or_reason = self.found(path)
        if isinstance(parts_or_reason, str) or self.is_first_dot:
            return parts_or_reason
        key, field = parts_or_reason
        return self.written(key), field

    def found(self, path: bytes) -> tuple[bytes, bytes] | str:
        """Do the work of :meth:`split`, but return the key with its dots."""
        base = path.rfind(b"/") + 1
        if path.startswith(b".", base):
            return "appledouble" if path.startswith(b"._", base) else "hidden"
        if path.startswith(b"__") and is_dunder(path):
            return "dunder"
        return self._match(path, base)

    def _match(self, path: bytes, base: int) -> tuple[bytes, bytes] | str:
        if self._pattern is not None:
            match = self._pattern.fullmatch(to_text(path))
            named = {"key", "field"} <= set(self._pattern.groupindex)
            key, field = (
                ("", "") if match is None else match.group("key", "field") if named else match.groups()
            )
            return (to_bytes(key), to_bytes(field)) if key and field else "no-match"
        dot = path.find(b".", base) if self.is_first_dot else path.rfind(b".", base)
        if dot <= base or dot + 1 == len(path):
            return "no-field"
        return path[:dot], path[dot + 1 :]

    def written(self, key: bytes) -> bytes:
        """Return ``key`` without dots in its last part, so that every reader finds the same key. Raises DataError if
        another key becomes equal."""
        base = key.rfind(b"/") + 1
        new = key[:base] + key[base:].replace(b".", b"_")
        old = self._old_keys.get(new)
        if old is not None and old != key:
            raise _one_key(f'the keys "{to_text(old)}" and "{to_text(key)}"', new)
        if len(self._old_keys) < REMEMBERED_KEYS:
            self._old_keys[new] = key
        elif old is None:
            self._hashed.extend((self._hash(new), self._hash(key)))
        return new

    def _hash(self, key: bytes) -> int:
        from xxhash import xxh3_64_intdigest

        return xxh3_64_intdigest(key, self._seed)

    @property
    def renamed(self) -> dict[bytes, bytes]:
        """Return the new keys with the old keys from which they differ. Only remembered keys are included."""
        return {new: old for new, old in self._old_keys.items() if new != old}

    def count_renamed(self, keys: Callable[[], Iterable[bytes]]) -> int:
        """Return the number of renamed keys. Call it once, at the end. Raises DataError if two keys became equal;
        ``keys`` returns the written keys for the message."""
        remembered, hashed = len(self.renamed), self._hashed
        self._hashed = array("Q")
        if not hashed:
            return remembered
        import numpy

        pairs = numpy.unique(numpy.frombuffer(hashed, numpy.uint64).reshape(-1, 2), axis=0)
        written, counts = numpy.unique(pairs[:, 0], return_counts=True)
        # A written key with two different old keys is an error.
        twice = dict(zip(written[counts > 1].tolist(), counts[counts > 1].tolist()))
        new = b""
        for new in {key for key in keys() if self._hash(key) in twice} if twice else ():
            twice[self._hash(new)] -= 1
        if any(missing > 0 for missing in twice.values()):
            raise _one_key("two keys", new)
        return remembered + int((pairs[:, 0] != pairs[:, 1]).sum())


def _one_key(which: str, new: bytes) -> DataError:
    return DataError(
        f'{which} would both be written as "{to_text(new)}"',
        code="duplicate-key",
        hint="rename one of them, or choose another --key-rule",
    )


def _compile(text: str) -> Expression[str]:
    try:
        pattern = Expression(text, "--key-rule")
    except UsageError as error:
        error.hint = "use first-dot, last-dot or a regular expression with groups for key and field"
        raise
    if not {"key", "field"} <= set(pattern.groupindex) and pattern.groups != 2:
        raise UsageError(
            f'--key-rule "{text}" has no groups for key and field',
            hint=r"for example '(?P<key>.*)-(?P<field>[^-]*\.png)', or two groups without names",
        )
    return pattern


def check_written(key: bytes, field: bytes, path: str = "") -> None:
    """Raise DataError unless ``key.field`` is safe, and readers split it into this key and field. The error names the
    path."""
    try:
        check_name(key, field)
    except UsageError as error:
        where = f"{path}: " if path else ""
        raise DataError(where + error.message, code="unsafe-name", hint=error.hint) from None
