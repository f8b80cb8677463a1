"""This module checks that payloads can be decoded (``--decode``).

:class:`DecodeCheck` uses the loader's own decoders (:mod:`wdscli.codecs`), so that it accepts exactly what training can
decode. Sound and film are decoded, and nothing is kept of them. If a package is missing, the headers of sound and film
are checked, and the lengths in them. Nothing is unpickled. Whatever was not decoded is reported as ``unchecked``, once
for each field, and the ledger's ``undecoded`` says why.

This module does not know shards or samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wdscli.codecs.cells import held_picture
from wdscli.codecs.handlers import extension, held_extension, inflate
from wdscli.codecs.kinds import find
from wdscli.errors import UsageError
from wdscli.samples import split_name
from wdscli.tar import KIND_MASK, REGULAR, Window
from wdscli.text import to_text
from wdscli.verify.findings import Ledger

if TYPE_CHECKING:
    from wdscli.codecs.handlers import Decode

MAX_DECODERS = 1 << 12
"""How many decoders are remembered."""
_OBJECT = re.compile(r" ?<[^>]* object at 0x[0-9a-f]+>")


class DecodeCheck:
    """Decodes payloads. The last part of a field's name chooses the decoder; a ``.gz`` at the end is removed first.
    Fields of unknown types are skipped. Pickles, fields that need a missing package, and payloads of more than
    ``max_decoded`` bytes are reported as unchecked. Raises UsageError at the first image if Pillow is not installed."""

    def __init__(self, ledger: Ledger, max_decoded: int) -> None:
        self._ledger = ledger
        self._limit = max_decoded
        self._decoder = lru_cache(MAX_DECODERS)(self._find)

    def check(self, window: Window) -> None:
        """Report every payload of a window that cannot be decoded."""
        columns = window.columns
        for row, name in enumerate(columns.names):
            parts = split_name(name) if columns.flags[row] & KIND_MASK == REGULAR else None
            if parts is not None:
                offset = columns.starts[row]
                read = cache(partial(window.payload, row))  # a stream gives a payload only once
                reason = self.why_not(parts[1], columns.sizes[row], read, offset, name)
                if reason is not None:
                    message = f"cannot be decoded: {reason}"
                    self._ledger.add("undecodable", message, offset=offset, member=name)
                elif held := self._held_picture(to_text(parts[1]), columns.sizes[row], read):
                    self._ledger.add("other-format", f"holds {held}", offset=offset, member=name)

    def _held_picture(self, field: str, size: int, read: Callable[[], bytes]) -> str:
        """Return the extension of the picture in a payload if its name says another one, or else empty text."""
        is_decoded = size <= self._limit and find(extension(field)).form == "image"
        return held_picture(field, read()) if is_decoded else ""

    def why_not(
        self, field: bytes, size: int, read: Callable[[], bytes], offset: int, member: bytes
    ) -> str | None:
        """Return the reason why one payload cannot be decoded. Return None if it can be decoded, if its type has no
        decoder, or if it is too large. A payload that is too large is reported at ``offset``."""
        decode = self._decoder(field)
        if decode is None:
            return None
        if size <= self._limit:
            return _why_undecodable(decode, read())
        self._ledger.undecoded.setdefault(to_text(field), "some payloads are above WDSCLI_MAX_DECODED")
        self._ledger.add(
            "unchecked",
            f"not decoded: {size} bytes, and WDSCLI_MAX_DECODED is {self._limit}",
            offset=offset,
            member=member,
            hint="decode larger payloads with WDSCLI_MAX_DECODED=SIZE",
        )
        return None

    def _find(self, name: bytes) -> Decode | None:
        """Return the loader's decoder for a field, or None if there is no decoder or its package is missing."""
        from wdscli.codecs.images import open_image
        from wdscli.codecs.values import basichandlers

        field = to_text(name)
        # The field name "gz" does not show the type of the contents.
        last, is_packed = ("", True) if field.lower() == "gz" else held_extension(field)
        kind = find(last)
        packages = kind.packages.split()
        decode: Decode | None
        if kind.form == "image":
            if find_spec("PIL") is None:
                raise UsageError("--decode needs Pillow for images", hint="pip install 'wdscli[images]'")
            decode = partial(open_image, limit=self._limit)
        elif kind.form in ("audio", "video"):
            decode = partial(self._check_media, field, last)
        elif kind.form == "pickle":
            self._leave_undecoded(field, "loading a pickle runs its code", None)
            return None
        else:
            decode = basichandlers.find(last, self._limit)
        if packages and not any(map(find_spec, packages)):
            self._leave_undecoded(field, f"{packages[0]} is not installed", packages[0])
            return None
        return partial(_inflated, decode, self._limit) if is_packed else decode

    def _check_media(self, field: str, name: str, payload: bytes) -> None:
        """Decode sound or film of the type ``name``. Raises the decoder's errors."""
        from wdscli.codecs.media import check_media

        missing = check_media(payload, name)
        if missing and field not in self._ledger.undecoded:
            self._leave_undecoded(field, f"only headers were checked: {missing} is not installed", missing)

    def _leave_undecoded(self, field: str, why: str, package: str | None) -> None:
        """Report that a field is not decoded. ``package`` would decode it."""
        self._ledger.undecoded[field] = why
        hint = f"pip install {package}" if package else 'decode("pickle") in Python, if you trust the data'
        self._ledger.add("unchecked", f'fields "{field}" are not decoded: {why}', hint=hint)


def _inflated(inner: Decode | None, limit: int, payload: bytes) -> object:
    """Decompress a gzip payload and decode it with ``inner``, if given."""
    data = inflate(payload, limit)
    return None if inner is None else inner(data)


def _why_undecodable(decode: Decode, payload: bytes) -> str | None:
    """Return a short reason why a payload cannot be decoded, or None if it can."""
    import warnings

    try:
        with warnings.catch_warnings():
            # Pillow warns about large pictures. Below the limit, they are no error.
            warnings.simplefilter("ignore")
            decode(payload)
    except (MemoryError, RecursionError) as error:
        return type(error).__name__
    except Exception as error:
        # Decoders raise many kinds of errors for broken data: struct.error, SyntaxError (Pillow), zlib.error, KeyError
        # ...
        text = " ".join(_OBJECT.sub("", str(error)).split())
        return text[:120] or type(error).__name__
    return None
