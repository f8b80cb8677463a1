"""Payloads decoded as their field says, only to see whether they can be (``--decode``).

What it is: :class:`Decoder`, which has the loader's own decoders (:mod:`wdscli.codecs`), so that what passes here can
be trained on and what does not cannot. How: the last part of a field's name chooses the decoder, ``.gz`` at its end is
taken off first; what has no decoder is passed over, and so are pickles. What a payload can make us hold is bounded by
``max_decoded``; one that is larger as it stands is reported as unchecked.

It must not know where payloads come from. Nothing here unpickles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from wdscli.codecs.decode_images import EXTENSIONS, open_image
from wdscli.codecs.decode_values import PICKLES, basichandlers
from wdscli.codecs.limits import inflate
from wdscli.codecs.parts import extension
from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import split_name
from wdscli.tar import KIND_MASK, REGULAR, Window
from wdscli.verify.findings import Ledger

_OBJECT = re.compile(r" ?<[^>]* object at 0x[0-9a-f]+>")
_PACKAGES = {"cbor": ("cbor2", "cbor"), "pth": ("torch",)}
"""Those that some fields need and that are not ours to ask for: without them a field is unchecked."""


class Decoder:
    """Decodes the payloads of whole windows and reports those that are not what their field says. Raises UsageError at
    the first image when Pillow is missing."""

    def __init__(self, ledger: Ledger, max_decoded: int) -> None:
        self._ledger = ledger
        self._limit = max_decoded
        self._known: dict[bytes, Callable[[bytes], object] | None] = {}

    def check(self, window: Window) -> None:
        """Every payload of a window that has a decoder."""
        columns = window.columns
        for row, name in enumerate(columns.names):
            if columns.flags[row] & KIND_MASK != REGULAR:
                continue
            parts = split_name(name)
            if parts is None:
                continue
            offset, member = columns.starts[row], to_text(name)
            if not self.is_checked(parts[1], columns.sizes[row], offset, member):
                continue
            reason = self.why_not(parts[1], window.payload(row))
            if reason is not None:
                self._ledger.add("undecodable", f"cannot be decoded: {reason}", offset=offset, member=member)

    def is_checked(self, field: bytes, size: int, offset: int, member: str) -> bool:
        """Whether a payload is decoded at all: there is a decoder, and it is not too large, which is reported."""
        if self._decoder(field) is None:
            return False
        if size > self._limit:
            self._ledger.add(
                "unchecked",
                f"not decoded: it has {size} bytes, and --max-decoded is {self._limit}",
                offset=offset,
                member=member,
                hint="--max-decoded SIZE decodes larger ones",
            )
        return size <= self._limit

    def why_not(self, field: bytes, payload: bytes) -> str | None:
        """Why one payload cannot be decoded; None when it can, or nobody here knows how."""
        decode = self._decoder(field)
        return None if decode is None else why_undecodable(decode, payload)

    def _decoder(self, field: bytes) -> Callable[[bytes], object] | None:
        if field not in self._known:
            if len(self._known) > 1 << 12:
                self._known.clear()
            name = to_text(field)
            self._known[field] = self._available(name, find_decoder(name, self._limit))
        return self._known[field]

    def _available(
        self, field: str, decode: Callable[[bytes], object] | None
    ) -> Callable[[bytes], object] | None:
        """``decode`` where its packages are there."""
        last = extension(_without_gz(field))
        if last in EXTENSIONS and find_spec("PIL") is None:
            raise UsageError("--decode needs Pillow for images", hint="pip install 'wdscli[images]'")
        packages = _PACKAGES.get(last, ())
        if not packages or any(find_spec(package) for package in packages):
            return decode
        self._ledger.add(
            "unchecked",
            f'fields "{field}" are not decoded: {packages[0]} is not installed',
            hint=f"pip install {packages[0]}",
        )
        return None


def _without_gz(field: str) -> str:
    return field[:-3] if field.lower().endswith(".gz") else field


def find_decoder(field: str, limit: int) -> Callable[[bytes], object] | None:
    """What decodes payloads of a field as the loader does, or None."""
    if field.lower() == "gz" or field.lower().endswith(".gz"):
        inner = _plain_decoder(extension(_without_gz(field)) if "." in field else "", limit)
        return partial(_inflated, inner, limit)
    return _plain_decoder(extension(field), limit)


def _plain_decoder(last: str, limit: int) -> Callable[[bytes], object] | None:
    if last in EXTENSIONS:
        return partial(open_image, limit=limit)
    return None if last in PICKLES else basichandlers.find(last, limit)


def _inflated(inner: Callable[[bytes], object] | None, limit: int, payload: bytes) -> object:
    """What a gzip payload holds, decoded by ``inner`` where there is one."""
    data = inflate(payload, limit)
    return None if inner is None else inner(data)


def why_undecodable(decode: Callable[[bytes], Any], payload: bytes) -> str | None:
    """Why a payload cannot be decoded, in a few words, or None when it can."""
    import warnings

    try:
        with warnings.catch_warnings():
            # Pillow warns of large pictures, which are no fault of the data below the limit.
            warnings.simplefilter("ignore")
            decode(payload)
    except (MemoryError, RecursionError) as error:
        return type(error).__name__
    except Exception as error:
        # Decoders raise whatever they like at broken data: struct.error, SyntaxError (Pillow), zlib.error, KeyError ...
        text = " ".join(_OBJECT.sub("", str(error)).split())
        return text[:120] or type(error).__name__
    return None
