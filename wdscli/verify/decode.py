"""Payloads decoded as their field says, to check that they can be (``--decode``).

What it is: :class:`Decoder`. It uses the loader's own decoders (:mod:`wdscli.codecs`), so that it accepts exactly
what training can decode. How: the last part of a field's name chooses the decoder, after a ``.gz`` at its end was
removed. Fields without a decoder and pickles are skipped. ``max_decoded`` bounds the memory of a decoded payload; a
larger payload is reported as unchecked.

It must not know where payloads come from. Nothing here unpickles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from wdscli.codecs.handlers import Decode, held_extension, inflate
from wdscli.codecs.images import open_image
from wdscli.codecs.kinds import find
from wdscli.codecs.values import basichandlers
from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import split_name
from wdscli.tar import KIND_MASK, REGULAR, Window
from wdscli.verify.findings import Ledger

MAX_FIELDS = 1 << 12
"""Decoders that are remembered."""
_OBJECT = re.compile(r" ?<[^>]* object at 0x[0-9a-f]+>")


class Decoder:
    """Decodes payloads, and reports those larger than ``max_decoded`` bytes. Raises UsageError at the first image
    when Pillow is missing."""

    def __init__(self, ledger: Ledger, max_decoded: int) -> None:
        self._ledger = ledger
        self._limit = max_decoded
        self._known: dict[bytes, Decode | None] = {}

    def check(self, window: Window) -> None:
        """Report every payload of a window that cannot be decoded."""
        columns = window.columns
        for row, name in enumerate(columns.names):
            parts = split_name(name) if columns.flags[row] & KIND_MASK == REGULAR else None
            if parts is not None:
                offset = columns.starts[row]
                read = partial(window.payload, row)
                reason = self.why_not(parts[1], columns.sizes[row], read, offset, name)
                if reason is not None:
                    message = f"cannot be decoded: {reason}"
                    self._ledger.add("undecodable", message, offset=offset, member=name)

    def why_not(
        self, field: bytes, size: int, read: Callable[[], bytes], offset: int, member: bytes
    ) -> str | None:
        """Why one payload cannot be decoded. None when it can, when its type has no decoder, or when it is too large;
        the last is reported at ``offset``."""
        decode = self._decoder(field)
        if decode is None:
            return None
        if size <= self._limit:
            return _why_undecodable(decode, read())
        self._ledger.add(
            "unchecked",
            f"not decoded: {size} bytes, and WDSCLI_MAX_DECODED is {self._limit}",
            offset=offset,
            member=member,
            hint="decode larger payloads with WDSCLI_MAX_DECODED=SIZE",
        )
        return None

    def _decoder(self, field: bytes) -> Decode | None:
        """The loader's decoder of a field; None without one, or without its package."""
        if field not in self._known:
            if len(self._known) >= MAX_FIELDS:
                self._known.clear()
            self._known[field] = self._find(to_text(field))
        return self._known[field]

    def _find(self, field: str) -> Decode | None:
        # A field "gz" does not say what it holds.
        last, is_packed = ("", True) if field.lower() == "gz" else held_extension(field)
        kind = find(last)
        if kind.form == "image":
            if find_spec("PIL") is None:
                raise UsageError("--decode needs Pillow for images", hint="pip install 'wdscli[images]'")
            decode: Decode | None = partial(open_image, limit=self._limit)
        else:
            decode = None if kind.form == "pickle" else basichandlers.find(last, self._limit)
        packages = kind.packages.split()
        if packages and not any(map(find_spec, packages)):
            self._ledger.add(
                "unchecked",
                f'fields "{field}" are not decoded: {packages[0]} is not installed',
                hint=f"pip install {packages[0]}",
            )
            return None
        return partial(_inflated, decode, self._limit) if is_packed else decode


def _inflated(inner: Decode | None, limit: int, payload: bytes) -> object:
    """Decompress a gzip payload and decode it with ``inner``, if given."""
    data = inflate(payload, limit)
    return None if inner is None else inner(data)


def _why_undecodable(decode: Decode, payload: bytes) -> str | None:
    """Why a payload cannot be decoded, in a few words; None when it can."""
    import warnings

    try:
        with warnings.catch_warnings():
            # Pillow warns about large pictures, which are no error below the limit.
            warnings.simplefilter("ignore")
            decode(payload)
    except (MemoryError, RecursionError) as error:
        return type(error).__name__
    except Exception as error:
        # Decoders raise any error at broken data: struct.error, SyntaxError (Pillow), zlib.error, KeyError ...
        text = " ".join(_OBJECT.sub("", str(error)).split())
        return text[:120] or type(error).__name__
    return None
