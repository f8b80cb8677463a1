"""The limit on the size of decoded payloads, for the loader and for commands.

What it is: :data:`MAX_DECODED_BYTES`, and its checks: :func:`inflate` for gzip, :func:`check_zip` for npz and
torch's files, :func:`check_size` for types that state their size (pictures, sound). How: nothing larger than the
limit is made, whatever the payload claims; of a payload without a size, at most one byte more is decompressed. A
payload that is itself larger (a plain npz) is in memory already, and may be decoded to its own size.

It must not know fields.
"""

from __future__ import annotations

from wdscli.errors import DataError

MAX_DECODED_BYTES = 256 << 20
"""The default limit. A megabyte of gzip can hold a gigabyte."""
_PIECE_BYTES = 1 << 20


def too_large(limit: int, size: int | None = None) -> DataError:
    """The error of a payload that would become more than ``limit`` bytes: ``size`` if known."""
    return DataError(
        f"decoded it has {'more' if size is None else f'{size} bytes, more'} than {limit} "
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
