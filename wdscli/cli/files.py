"""A file that a command writes and that is no shard: a table, payloads, lines of JSON.

What it is: :func:`write_file`. How: text for standard output goes the way of everything that is
printed; anything else through a sink, which has its name only when it is whole. It must not know what is in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wdscli.cli.output import Out
from wdscli.errors import UsageError


def write_file(
    out: Out,
    address: str,
    pieces: Iterable[bytes],
    *,
    inputs: Sequence[str],
    force: bool,
    fsync: bool = False,
    table: str | None = None,
) -> int:
    """Write ``pieces``, and return how many bytes they are; none is made before it is known that the file may be there.
    ``table`` is the format of a table. Raises OutputExistsError, OutputError, UsageError for one of ``inputs``, for a
    table whose name promises compressed bytes, and for Parquet on a terminal."""
    if table is not None:
        from wdscli.storage.opening import COMPRESSED_SUFFIX

        if match := COMPRESSED_SUFFIX.search(address):
            raise UsageError(
                f"{address} would not be compressed",
                hint=f"leave the {match[0]} off; Parquet is compressed inside",
            )
    if address == "-" and table != "parquet":
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
