"""Lists of members, like tarp's recipes: one line per member, with its name and the source of its payload.

What it is: ``name<TAB>source``, or ``name source`` with blanks between. The source is ``text:...`` (the rest
of the line), ``file:PATH``, ``pipe:CMD``, a path, or any address. Blank lines and lines that begin with ``#``
are ignored. A name may contain blanks if a TAB follows it. Paths are relative to the current folder. How:
line by line, so that a list may come from a pipe. It must not know how samples are ordered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from wdscli.create.files import Files, Place, Skipped
from wdscli.create.keys import KeyRule, check_written
from wdscli.create.payloads import Named, Payloads
from wdscli.errors import DataError, WdsError
from wdscli.model import to_text
from wdscli.progress import QUIET, Progress
from wdscli.storage import is_local, open_source
from wdscli.storage.streams import stream_of

_BLANKS = re.compile(rb"[ \t]+")
_PROGRESS_LINES = 256


class Line(NamedTuple):
    """One entry: ``number`` counts the file's lines from 1."""

    number: int
    name: bytes
    source: bytes


def parse_line(number: int, line: bytes) -> Line | None:
    r"""An entry, or None for a blank line and a comment. Raises DataError for a name with no source.

    >>> parse_line(1, b"a b.txt\ttext: hello\n")
    Line(number=1, name=b'a b.txt', source=b'text: hello')
    >>> parse_line(2, b"a.jpg   pictures/1.jpg")
    Line(number=2, name=b'a.jpg', source=b'pictures/1.jpg')
    """
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if not text.strip() or text.lstrip().startswith(b"#"):
        return None
    if b"\t" in text:
        name, source = text.split(b"\t", 1)
        name, source = name.strip(b" "), source.lstrip(b" \t")
    else:
        name, *rest = _BLANKS.split(text.lstrip(b" "), maxsplit=1)
        source = rest[0] if rest else b""
    if not name or not source:
        raise DataError(
            f"a line with a name and no source: {to_text(text)[:80]!r}",
            code="bad-list",
            hint="use NAME<TAB>SOURCE, such as n01/img7.jpg<TAB>pictures/7.jpg; "
            r"for a list of paths: sed 's/.*/&\t&/'",
        )
    return Line(number, name, source)


def read_recipe(
    address: str,
    rule: KeyRule,
    files: Files,
    payloads: Payloads,
    skipped: Skipped,
    progress: Progress = QUIET,
) -> None:
    """Add the members of a list. Raises InputError for a source that cannot be read, DataError ``bad-list`` and
    ``unsafe-name`` for a wrong line, all with the line's number."""
    with open_source(address) as source:
        for number, text in payloads.ahead(enumerate(stream_of(source), 1), partial(_addresses, address)):
            try:
                if (line := parse_line(number, text)) is not None:
                    key, field = _split(line.name, rule)
                    found = locate(key, field, line.source, payloads, address)
                    if found is None:
                        skipped.add("no-source", line.name)
                    else:
                        files.add(key, field, *found)
            except WdsError as error:
                error.message = f"{address}, line {number}: {error.message}"
                raise
            if number % _PROGRESS_LINES == 0:
                progress.advance(_PROGRESS_LINES)


def _addresses(where: str, line: tuple[int, bytes]) -> Iterator[Named]:
    """The address in a line, if there is one."""
    if b"://" in line[1]:
        with suppress(WdsError):
            found = parse_line(*line)
            if found is not None and not found.source.startswith((b"text:", b"pipe:")):
                yield Named(os.fsdecode(found.source), where)


def _split(name: bytes, rule: KeyRule) -> tuple[bytes, bytes]:
    found = rule.split(name)
    if isinstance(found, str):
        raise DataError(
            f'"{to_text(name)}" is part of no sample ({found})',
            code="bad-list",
            hint="a name is a key, a dot and a field: n01/img7.jpg",
        )
    check_written(*found)
    return found


def locate(
    key: bytes, field: bytes, source: bytes, payloads: Payloads, where: str
) -> tuple[int, Place] | None:
    """Size and place of a member's source in the list at ``where``; None to leave it out."""
    if source.startswith(b"text:"):
        payload = source[5:]
        return len(payload), payloads.keep(payload)
    if source.startswith(b"file:") and not source.startswith(b"file://"):
        source = source[5:]
        if not is_local(where):
            source = b"file://" + source
    return payloads.of_member(key, field, Named(os.fsdecode(source), where))
