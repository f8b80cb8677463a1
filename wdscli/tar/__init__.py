"""Bytes to members and back. Knows nothing of samples, files or networks."""

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
from wdscli.tar.reader import ByteSource, Window, members, scan
from wdscli.tar.scan import Columns, Scanner
from wdscli.tar.writer import ByteSink, TarWriter, padding

__all__ = [
    "ByteSink",
    "ByteSource",
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
    "padded",
    "padding",
    "scan",
]
