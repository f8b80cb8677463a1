"""This module turns the names in archives from bytes into text, and back.

Names are ``str``, decoded from the tar's bytes as UTF-8 with ``surrogateescape``, so that any name survives a round
trip.
"""

from __future__ import annotations


def to_text(raw: bytes) -> str:
    """Return a name's bytes as text. Bytes that are not UTF-8 become lone surrogates (PEP 383)."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return a name's text as bytes. This is the inverse of :func:`to_text`."""
    return text.encode("utf-8", "surrogateescape")
