"""Files that commands write besides shards: tables, payloads, lines of JSON.

What it is: :func:`parse_form`, which reads ``--to``, and :func:`write_file`. How: text for standard output is printed
like all other text; a file is written through a sink, which gives it its name when it is complete. This module does
not know what is in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wdscli.cli.output import Out
from wdscli.errors import UsageError


def parse_form(text: str) -> tuple[str, str | None]:
    """Format and address that ``--to`` names: ``FORMAT`` alone, ``FORMAT:FILE``, ``FILE.FORMAT``, or ``FOLDER/``,
    whose format is "dir". Raises UsageError.

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
        f"--to {text} names no format",
        hint=f"a name such as captions.csv, a folder such as {text}/, or one of {', '.join(forms)}",
    )


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
    """Write ``pieces`` and return their size in bytes. Before the first one is made, the file's name is checked.
    ``table`` is the format of a table. Raises OutputExistsError, OutputError, UsageError for one of ``inputs``, for a
    table whose name promises compressed bytes, and for Parquet on a terminal."""
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
