"""Files that commands write besides shards: tables, payloads, lines of JSON.

:func:`parse_form` parses ``--to``. :func:`write_file` writes pieces of bytes to standard output or to a file. A file
gets its name only when it is complete. This module does not know what is in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wdscli.cli.output import Out
from wdscli.errors import UsageError


def parse_form(text: str) -> tuple[str, str | None]:
    """Return the format and the address in a value of ``--to``. The value is ``FORMAT``, ``FORMAT:FILE``,
    ``FILE.FORMAT`` or ``FOLDER/``; the format of a folder is "dir". Raises UsageError.

    >>> parse_form("tsv"), parse_form("s3://b/t.parquet"), parse_form("csv:-"), parse_form("out/")
    (('tsv', None), ('parquet', 's3://b/t.parquet'), ('csv', '-'), ('dir', 'out'))
    """
    from wdscli.shards.tables import FORMATS
    from wdscli.storage.opening import COMPRESSED_SUFFIX

    forms = ("raw", "jsonl", *FORMATS)
    form, colon, address = text.partition(":")
    if form in forms and (address or not colon):
        return form, address or None
    if text.endswith("/"):
        return "dir", text.rstrip("/") or "/"
    form = COMPRESSED_SUFFIX.sub("", text).rpartition(".")[2].lower()
    if form in forms:
        return form, text
    raise UsageError(
        f"--to {text} has no known format",
        hint=f"use a name such as captions.csv, a folder such as {text}/, or one of {', '.join(forms)}",
    )


class FileTarget(NamedTuple):
    """The address and the kind of a file to write. ``table`` is the format of a table; it is None for other files."""

    address: str
    table: str | None = None
    force: bool = False
    fsync: bool = False


def write_file(out: Out, target: FileTarget, pieces: Iterable[bytes], inputs: Sequence[str]) -> int:
    """Write ``pieces`` and return their size in bytes. The file's name is checked before the first piece is made.
    Raises OutputExistsError and OutputError. Raises UsageError if the file is one of ``inputs``, if a table has a
    suffix for compressed files, and for Parquet on a terminal."""
    address, table, force, fsync = target
    if table is not None:
        from wdscli.storage.opening import COMPRESSED_SUFFIX

        if match := COMPRESSED_SUFFIX.search(address):
            raise UsageError(
                f"{address} would not be compressed",
                hint=f"leave out {match[0]}; Parquet is compressed inside",
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
                f"{one} would be both an input and an output", hint="give the output another name"
            )
    with open_sink(address, force=force, fsync=fsync) as sink:
        for piece in pieces:
            sink.write(piece)
    return sink.written
