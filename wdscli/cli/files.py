"""A file that a command writes and that is no shard: a table, payloads, lines of JSON.

What it is: :func:`write_file`, :func:`write_table`. How: text for standard output goes the way of everything that is
printed; anything else through a sink, which has its name only when it is whole. It must not know what is in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wdscli.cli.output import Out
from wdscli.errors import UsageError


def write_table(
    out: Out,
    address: str,
    form: str,
    pieces: Iterable[bytes],
    *,
    inputs: Sequence[str],
    force: bool,
    fsync: bool = False,
) -> int:
    """:func:`write_file` of a table in the format ``form``. Raises UsageError for a name that promises compressed
    bytes, and for Parquet on a terminal."""
    from wdscli.storage.opening import COMPRESSED_SUFFIX

    if match := COMPRESSED_SUFFIX.search(address):
        raise UsageError(
            f"{address} would not be compressed",
            hint=f"leave the {match[0]} off; Parquet is compressed inside",
        )
    is_binary = form == "parquet"
    return write_file(out, address, pieces, inputs=inputs, force=force, fsync=fsync, is_binary=is_binary)


def write_file(
    out: Out,
    address: str,
    pieces: Iterable[bytes],
    *,
    inputs: Sequence[str],
    force: bool,
    fsync: bool,
    is_binary: bool = False,
) -> int:
    """Write ``pieces``, and return how many bytes they are; none is made before it is known that the file may be there.
    Raises OutputExistsError, OutputError, UsageError for one of ``inputs``."""
    if address == "-" and not is_binary:
        size = 0
        for piece in pieces:
            out.write(piece)
            size += len(piece)
        out.flush()
        return size
    from wdscli.storage import open_sink, same_file

    for one in inputs:
        if same_file(one, address):
            raise UsageError(
                f"{one} is an input and would be an output too", hint="give the output another name"
            )
    with open_sink(address, force=force, fsync=fsync) as sink:
        for piece in pieces:
            sink.write(piece)
    return sink.written
