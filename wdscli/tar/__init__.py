"""Bytes to members and back. Knows nothing of samples, files or networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wdscli.tar.columns import Columns
from wdscli.tar.header import (
    CANONICAL,
    DIRECTORY,
    END_OF_ARCHIVE,
    FOREIGN,
    GLOBAL,
    KIND_MASK,
    KIND_NAMES,
    LINK,
    REGULAR,
    SPARSE,
    SPECIAL,
    Form,
    build_header,
    padded,
)
from wdscli.tar.reader import ByteSource, BytesSource, Window, members, scan
from wdscli.tar.scan import Scanner
from wdscli.tar.writer import ByteSink, TarWriter, padding

if TYPE_CHECKING:
    from wdscli.tar.recover import next_header, scan_salvaging

__all__ = [
    "ByteSink",
    "ByteSource",
    "BytesSource",
    "CANONICAL",
    "Columns",
    "DIRECTORY",
    "END_OF_ARCHIVE",
    "FOREIGN",
    "Form",
    "GLOBAL",
    "KIND_MASK",
    "KIND_NAMES",
    "LINK",
    "REGULAR",
    "SPARSE",
    "SPECIAL",
    "Scanner",
    "TarWriter",
    "Window",
    "build_header",
    "members",
    "next_header",
    "padded",
    "padding",
    "scan",
    "scan_salvaging",
]


def __getattr__(name: str) -> Any:
    """What only damaged archives need is imported when it is asked for."""
    if name in ("next_header", "scan_salvaging"):
        from wdscli.tar import recover

        return getattr(recover, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
