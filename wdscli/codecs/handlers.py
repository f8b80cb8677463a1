"""This module has what all decoders and encoders share: handlers by extension, limits of sizes, optional packages.

:class:`ByExtension` is the base of decoders that depend only on a field's last extension. So the search is done once
per name, not once per payload. :class:`Continue` and :class:`HandleExtension` are webdataset's. :func:`needed` imports
an optional package.

:data:`MAX_DECODED_BYTES` limits decoded payloads, whatever a payload says about its size. :func:`inflate` checks gzip,
:func:`check_zip` checks npz and torch's files, :func:`check_size` checks types that state their size (pictures, sound).
Of a payload without a size, at most one byte more than the limit is decompressed. A payload that is itself larger (a
plain npz) is in memory already, and may be decoded to its own size.

This module does not know samples, datasets or names of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from wdscli.errors import DataError, UsageError

Handler = Callable[[str, Any], Any]
"""(field with a leading dot, payload) -> value, or None for a field of another handler."""
Decode = Callable[[Any], Any]
"""Payload -> value; raises any error for a payload of another type."""

INSTALL_IMAGES = "'wdscli[images]'"
MAX_DECODED_BYTES = 256 << 20
"""The default limit. A megabyte of gzip can hold a gigabyte."""
_PIECE_BYTES = 1 << 20


def extension(key: str) -> str:
    """The part after the last dot, in lower case.

    >>> extension(".seg.PNG"), extension("json"), extension("x.")
    ('png', 'json', '')
    """
    return key[key.rfind(".") + 1 :].lower()


def held_extension(field: str) -> tuple[str, bool]:
    """The extension of the content, and whether it is compressed (a ``.gz`` at the end).

    >>> held_extension("seg.PNG"), held_extension("json.gz")
    (('png', False), ('json', True))
    """
    is_packed = field.lower().endswith(".gz")
    return extension(field[:-3] if is_packed else field), is_packed


def needed(module: str, what: str, install: str) -> Any:
    """An optional module. Raises UsageError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0]
        raise UsageError(
            f"{what} needs {missing}, which cannot be imported: {error}", hint=f"pip install {install}"
        ) from error


class ByExtension:
    """A handler by last extension: ``decoders`` has a decoder for each. Those of ``limited`` may make values larger
    than their payload, and take a ``limit`` in bytes."""

    def __init__(self, decoders: Mapping[str, Callable[..., Any]], limited: Collection[str] = ()) -> None:
        self._decoders = decoders
        self._limited = limited

    def find(self, extension: str, limit: int = MAX_DECODED_BYTES) -> Decode | None:
        """The decoder of fields with this extension, limited to ``limit`` bytes; None for other fields."""
        decode = self._decoders.get(extension)
        return partial(decode, limit=limit) if decode is not None and extension in self._limited else decode

    def __call__(self, key: str, data: Any) -> Any:
        decode = self.find(extension(key))
        return None if decode is None else decode(data)


class Continue:
    """Returned by a handler that removed one layer (a compression): the next handlers continue with this name and
    payload."""

    def __init__(self, key: str, data: Any) -> None:
        self.key = key
        self.data = data


class HandleExtension:
    """A handler for :meth:`WebDataset.decode` of fields by extension, several separated by blanks. ``"png"`` fits
    every field that ends with it, ``"seg.png"`` only those with both parts; case is ignored.

    >>> handler = handle_extension("seg.png mask", len)
    >>> handler(".seg.png", b"1234"), handler(".png", b"1234"), handler(".MASK", b"1")
    (4, None, 1)
    """

    def __init__(self, extensions: str, f: Decode) -> None:
        self._targets = [target.split(".") for target in extensions.lower().split()]
        self._function = f

    def __call__(self, key: str, data: Any) -> Any:
        parts = key.lower().split(".")
        is_own = any(parts[-len(target) :] == target for target in self._targets)
        return self._function(data) if is_own else None


handle_extension = HandleExtension
"""webdataset's name."""


def too_large(limit: int, size: int | None = None) -> DataError:
    """The error of a payload that would become more than ``limit`` bytes: ``size`` if known."""
    return DataError(
        f"decoded it has {'more' if size is None else f'{size} bytes, more'} than {limit} bytes "
        "(max_decoded, WDSCLI_MAX_DECODED)",
        code="undecodable",
        hint="raise the limit: decode(..., max_decoded=BYTES) in the loader, WDSCLI_MAX_DECODED=SIZE in commands",
    )


def check_size(size: int, limit: int) -> None:
    """Raise DataError for more than ``limit`` bytes."""
    if size > limit:
        raise too_large(limit, size)


def inflate(data: bytes, limit: int = MAX_DECODED_BYTES) -> bytes:
    """The content of a gzip payload: one stream or several, then perhaps zeros. Raises DataError for more than
    ``limit`` bytes, for a truncated stream and for other data; zlib.error for a broken stream.

    >>> import gzip
    >>> inflate(gzip.compress(b"abc") + gzip.compress(b"def"))
    b'abcdef'
    """
    import zlib

    if not data:
        raise DataError("the gzip stream is empty")
    parts: list[bytes] = []
    total, rest = 0, bytes(data)
    while rest:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            part = stream.decompress(rest, min(_PIECE_BYTES, limit - total + 1))
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            total += len(part)
            if total > limit:
                raise too_large(limit)
            if not (part or rest or stream.eof):
                raise DataError("the gzip stream is truncated")
            parts.append(part)
        # gzip's own format: zeros may follow, or another stream.
        rest = rest.lstrip(b"\0")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_zip(data: bytes, limit: int) -> None:
    """Raise DataError for a zip file whose files have more than ``limit`` bytes together, according to its
    directory; no reader reads more of a file than that. Other data are not checked."""
    import io
    import zipfile

    if bytes(data[:2]) != b"PK":
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_size(sum(entry.file_size for entry in archive.infolist()), max(limit, len(data)))
