"""This module has what all readers of payloads share: handlers by extension, size limits, payloads that are read in
part, optional packages.

:class:`ByExtension` is the base of decoders that depend only on the end of a field's name. So a decoder is searched
once for each name, not once for each payload. :class:`Continue` and :class:`HandleExtension` come from webdataset.
:func:`needed` imports an optional package.

:data:`MAX_DECODED_BYTES` limits the size of decoded payloads, because a small payload may become a huge value.
:func:`inflate` checks gzip, :func:`check_zip` checks npz and torch's files, :func:`check_size` checks types that state
their size (pictures, sound). If a payload does not state its size, at most one byte more than the limit is
decompressed. If the payload itself is larger than the limit (a plain npz), it is in memory already, and may be decoded
to its own size.

A header is a small part of a film or sound, and may be at its end. So a :class:`PartialPayload` has the operations of
bytes that readers of headers use, and keeps the parts that it has read. In a set of fields to read, :class:`HeadOf` is
a field whose first bytes are needed, and perhaps further parts.

This module does not know samples, datasets, headers, or where payloads are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from wdscli.errors import DataError, UsageError

Handler = Callable[[str, Any], Any]
"""A function of (field name with a leading dot, payload) that returns a value, or None for a field of another
handler."""
Decode = Callable[[Any], Any]
"""A function that converts a payload to a value. The function may raise any error for a payload of another type."""

INSTALL_IMAGES = "'wdscli[images]'"
MAX_DECODED_BYTES = 256 << 20
"""The default limit for a decoded payload. A megabyte of gzip can become a gigabyte."""
_PIECE_BYTES = 1 << 20
HEAD_BYTES = 1 << 14
"""How many bytes of a payload are read first, and at least at any other place. Larger payloads are read in parts."""
_TAIL_BYTES = 1 << 16
"""How many bytes are searched together from the end. A page of Ogg is smaller."""


def extension(key: str) -> str:
    """Return the part after the last dot, in lower case.

    >>> extension(".seg.PNG"), extension("json"), extension("x.")
    ('png', 'json', '')
    """
    return key[key.rfind(".") + 1 :].lower()


def endings(field: str) -> Iterator[str]:
    """Yield the ends of a field's name that begin after a dot, in lower case, the longest first.

    >>> list(endings(".left.seg.PNG")), list(endings("json"))
    (['left.seg.png', 'seg.png', 'png'], ['json'])
    """
    name = field.lower().removeprefix(".")
    yield name
    while "." in name:
        name = name.partition(".")[2]
        yield name


def held_extension(field: str) -> tuple[str, bool]:
    """Return the extension of the content, and whether the content is compressed (the name ends in ``.gz``).

    >>> held_extension("seg.PNG"), held_extension("json.gz")
    (('png', False), ('json', True))
    """
    is_packed = field.lower().endswith(".gz")
    return extension(field[:-3] if is_packed else field), is_packed


def needed(module: str, what: str, install: str) -> Any:
    """Import an optional module. Raises UsageError with the install command if the module is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0]
        raise UsageError(
            f"{what} needs {missing}, which cannot be imported: {error}", hint=f"pip install {install}"
        ) from error


class ByExtension:
    """A handler that chooses a decoder by the end of a field's name. ``decoders`` has a decoder for each extension,
    such as ``png``, or ``seg.png`` for fields that end in both parts; the longest end counts. The decoders of the
    extensions in ``limited`` may make values larger than their payload; they take a ``limit`` in bytes."""

    def __init__(self, decoders: Mapping[str, Callable[..., Any]], limited: Collection[str] = ()) -> None:
        self._decoders = decoders
        self._limited = limited

    def find(self, field: str, limit: int = MAX_DECODED_BYTES) -> Decode | None:
        """Return the decoder for this field, limited to ``limit`` bytes, or None if this handler has no decoder for
        it."""
        name = next((end for end in endings(field) if end in self._decoders), None)
        if name is None:
            return None
        decode = self._decoders[name]
        return partial(decode, limit=limit) if name in self._limited else decode

    def __call__(self, key: str, data: Any) -> Any:
        decode = self.find(key)
        return None if decode is None else decode(data)


class Continue:
    """The result of a handler that has only decompressed a payload. The next handlers get this name and payload."""

    def __init__(self, key: str, data: Any) -> None:
        self.key = key
        self.data = data


class HandleExtension:
    """A handler for :meth:`WebDataset.decode` that calls a function for fields with some extensions. Blanks separate
    the extensions. ``"png"`` matches every field that ends in ``png``; ``"seg.png"`` matches only fields that end in
    both parts. Case is ignored.

    >>> handler = handle_extension("seg.png mask", len)
    >>> handler(".seg.png", b"1234"), handler(".png", b"1234"), handler(".MASK", b"1")
    (4, None, 1)
    """

    def __init__(self, extensions: str, f: Decode) -> None:
        self._targets = frozenset(extensions.lower().split())
        self._function = f

    def __call__(self, key: str, data: Any) -> Any:
        # As in webdataset, ".png" matches only a field that is named png.
        names = (key.lower(), *endings(key))
        return None if self._targets.isdisjoint(names) else self._function(data)


handle_extension = HandleExtension
"""webdataset's name for :class:`HandleExtension`."""


def too_large(limit: int, size: int | None = None) -> DataError:
    """Return the error for a payload that would become more than ``limit`` bytes. ``size`` is its decoded size, if
    known."""
    return DataError(
        f"its decoded size is {'more' if size is None else f'{size} bytes, more'} than {limit} bytes "
        "(max_decoded, WDSCLI_MAX_DECODED)",
        code="undecodable",
        hint="raise the limit with decode(..., max_decoded=BYTES), or in commands with WDSCLI_MAX_DECODED=SIZE",
    )


def check_size(size: int, limit: int) -> None:
    """Raise DataError if ``size`` is more than ``limit`` bytes."""
    if size > limit:
        raise too_large(limit, size)


def inflate(data: bytes, limit: int = MAX_DECODED_BYTES) -> bytes:
    """Decompress a gzip payload, which may have several streams and zeros at the end. Raises DataError for more than
    ``limit`` bytes, for a truncated stream and for no data; raises zlib.error for a broken stream.

    >>> import gzip
    >>> inflate(gzip.compress(b"abc") + gzip.compress(b"def"))
    b'abcdef'
    """
    import zlib

    if not data:
        raise DataError("the gzip stream is empty")
    parts: list[bytes] = []
    total, remaining = 0, bytes(data)
    while remaining:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            part = stream.decompress(remaining, min(_PIECE_BYTES, limit - total + 1))
            remaining = stream.unused_data if stream.eof else stream.unconsumed_tail
            total += len(part)
            if total > limit:
                raise too_large(limit)
            if not (part or remaining or stream.eof):
                raise DataError("the gzip stream is truncated")
            parts.append(part)
        # The gzip format allows zeros or another stream after a stream.
        remaining = remaining.lstrip(b"\0")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_zip(data: bytes, limit: int) -> None:
    """Raise DataError if the files in a zip file have more than ``limit`` bytes together. The sizes are stated in the
    zip file's directory, and no reader reads more bytes of a file than the stated size. Other data are not checked."""
    import io
    import zipfile

    if bytes(data[:2]) != b"PK":
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_size(sum(entry.file_size for entry in archive.infolist()), max(limit, len(data)))


class HeadOf(bytes):
    """A field whose head is needed: a slash and its name. No name of a field begins with a slash.

    >>> HeadOf(b"mp4"), sorted(whole_names([HeadOf(b"mp4"), b"json"]))
    (b'/mp4', [b'json', b'mp4'])
    """

    def __new__(cls, field: bytes) -> HeadOf:
        return super().__new__(cls, b"/" + field)


def whole_names(fields: Iterable[bytes]) -> frozenset[bytes]:
    """Return the names of fields, also of the fields whose head is needed."""
    return frozenset(field[1:] if isinstance(field, HeadOf) else field for field in fields)


class PartialPayload:
    """A payload of ``size`` bytes that begins with ``head``. ``read(offset, length)`` returns other parts, and
    ``read_all()`` the whole payload. Both may raise InputError and DataError."""

    def __init__(
        self, head: bytes, size: int, read: Callable[[int, int], bytes], read_all: Callable[[], bytes]
    ) -> None:
        self._size, self._read, self._read_all = size, read, read_all
        self._offsets, self._parts = [0], [head]

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return self._read_all()

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            if not -self._size <= place < self._size:
                raise IndexError(place)
            return self._part(place % self._size, place % self._size + 1)[0]
        first, end, _ = place.indices(self._size)
        return self._part(first, end) if end > first else b""

    def _part(self, first: int, end: int) -> bytes:
        number = bisect_right(self._offsets, first) - 1
        offset, part = self._offsets[number], self._parts[number]
        if end > offset + len(part):
            length = min(max(end - first, HEAD_BYTES), self._size - first)
            offset, part = first, self._read(first, length)
            number = bisect_right(self._offsets, first)
            self._offsets.insert(number, offset)
            self._parts.insert(number, part)
        return part[first - offset : end - offset]

    def startswith(self, prefix: bytes | tuple[bytes, ...], start: int = 0) -> bool:
        longest = len(prefix) if isinstance(prefix, bytes) else max(map(len, prefix))
        return bool(self[start : start + longest].startswith(prefix))

    def rfind(self, wanted: bytes, first: int, end: int) -> int:
        """Return the last place of some bytes between ``first`` and ``end``, or -1."""
        end = min(end, self._size)
        while end - first >= len(wanted):
            begin = max(first, end - _TAIL_BYTES)
            place = self[begin:end].rfind(wanted)
            if place >= 0:
                return begin + int(place)
            if begin == first:
                break
            end = begin + len(wanted) - 1
        return -1


Payload = bytes | PartialPayload
