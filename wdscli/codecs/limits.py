"""What a payload may become when it is decoded: one limit, the same for the loader and for commands.

What it is: :data:`MAX_DECODED_BYTES`, and what keeps it: :func:`inflate` for gzip, :func:`check_zip` for npz and
torch's files, :func:`check_size` for whatever says its size before it is made (pictures, sound). How: nothing is made
that is larger than the limit, whatever the payload says of itself; of what says nothing, one piece more than the limit
is. A payload that is larger as it stands (a plain npz) is there already, and may be decoded to its own size.

It must not know fields; who asks says which one it was.
"""

from __future__ import annotations

from wdscli.errors import DataError

MAX_DECODED_BYTES = 256 << 20
"""The limit unless another is asked for. A megabyte of gzip can hold a gigabyte."""
_PIECE_BYTES = 1 << 20


def too_large(limit: int, size: int | None = None) -> DataError:
    """The error of a payload that would become more than ``limit`` bytes, ``size`` where that is known."""
    return DataError(
        f"it becomes {'more' if size is None else f'{size} bytes, more'} than {limit} when it is decoded "
        "(max_decoded, WDSCLI_MAX_DECODED)",
        code="undecodable",
        hint="where that is meant: decode(..., max_decoded=BYTES) in the loader, WDSCLI_MAX_DECODED=SIZE in commands",
    )


def check_size(size: int, limit: int) -> None:
    """Raise DataError for what would have more than ``limit`` bytes."""
    if size > limit:
        raise too_large(limit, size)


def inflate(data: bytes, limit: int = MAX_DECODED_BYTES) -> bytes:
    """What a gzip payload holds: one stream or several, zeros behind them. Raises DataError for more than ``limit``
    bytes, for one that is cut and for what is none; zlib.error for one that is broken.

    >>> import gzip
    >>> inflate(gzip.compress(b"abc") + gzip.compress(b"def"))
    b'abcdef'
    """
    import zlib

    if not data:
        raise DataError("no gzip stream")
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
                raise DataError("the gzip stream is cut")
            parts.append(part)
        # gzip's own format: zeros may follow, or another stream.
        rest = rest.lstrip(b"\0")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_zip(data: bytes, limit: int) -> None:
    """Raise DataError for a zip file whose files have more than ``limit`` bytes together, by what its directory says:
    no reader takes more of a file than that. What is no zip file is left to others."""
    import io
    import zipfile

    if bytes(data[:2]) != b"PK":
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_size(sum(entry.file_size for entry in archive.infolist()), max(limit, len(data)))
