"""Common parts of decoders and encoders: a field's extension, handlers by extension, optional packages.

What it is: :func:`extension` and :func:`needed`; :class:`ByExtension`, the base of decoders that depend only on a
field's last extension (so that the search is done once per name, not per payload); :class:`Continue` and
:class:`HandleExtension`, which are webdataset's. It must not know samples or datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.errors import UsageError

Handler = Callable[[str, Any], Any]
"""(field with a leading dot, payload) -> value, or None for a field of another handler."""
Decode = Callable[[Any], Any]
"""Payload -> value; raises any error for a payload of another type."""

INSTALL_IMAGES = "'wdscli[images]'"


def extension(key: str) -> str:
    """The part after the last dot, in lower case.

    >>> extension(".seg.PNG"), extension("json"), extension("x.")
    ('png', 'json', '')
    """
    return key[key.rfind(".") + 1 :].lower()


def held_extension(field: str) -> tuple[str, bool]:
    """The extension of the content, and whether it is compressed (a ``.gz`` at the end).

    >>> held_extension("seg.PNG"), held_extension("json.gz")
    (('png', False), ('json', True))
    """
    is_packed = field.lower().endswith(".gz")
    return extension(field[:-3] if is_packed else field), is_packed


def needed(module: str, what: str, install: str) -> Any:
    """An optional module. Raises UsageError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0]
        raise UsageError(
            f"{what} needs {missing}, which cannot be imported: {error}", hint=f"pip install {install}"
        ) from error


class ByExtension:
    """A handler by last extension: ``decoders`` has a decoder for each. Those of ``limited`` may make values larger
    than their payload, and take a ``limit`` in bytes."""

    def __init__(self, decoders: Mapping[str, Callable[..., Any]], limited: Collection[str] = ()) -> None:
        self._decoders = decoders
        self._limited = limited

    def find(self, extension: str, limit: int = MAX_DECODED_BYTES) -> Decode | None:
        """The decoder of fields with this extension, limited to ``limit`` bytes; None for other fields."""
        decode = self._decoders.get(extension)
        return partial(decode, limit=limit) if decode is not None and extension in self._limited else decode

    def __call__(self, key: str, data: Any) -> Any:
        decode = self.find(extension(key))
        return None if decode is None else decode(data)


class Continue:
    """Returned by a handler that removed one layer (a compression): the next handlers continue with this name and
    payload."""

    def __init__(self, key: str, data: Any) -> None:
        self.key = key
        self.data = data


class HandleExtension:
    """A handler for :meth:`WebDataset.decode` of fields by extension, several separated by blanks. ``"png"`` fits
    every field that ends with it, ``"seg.png"`` only those with both parts; case is ignored.

    >>> handler = handle_extension("seg.png mask", len)
    >>> handler(".seg.png", b"1234"), handler(".png", b"1234"), handler(".MASK", b"1")
    (4, None, 1)
    """

    def __init__(self, extensions: str, f: Decode) -> None:
        self._targets = [target.split(".") for target in extensions.lower().split()]
        self._function = f

    def __call__(self, key: str, data: Any) -> Any:
        parts = key.lower().split(".")
        is_own = any(parts[-len(target) :] == target for target in self._targets)
        return self._function(data) if is_own else None


handle_extension = HandleExtension
"""webdataset's name."""
