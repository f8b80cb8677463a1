"""What decoders and encoders share: a field's extension, handlers that go by it, packages that may not be there.

What it is: :func:`extension` and :func:`needed`; :class:`ByExtension`, the base of decoders that go by a field's last
extension alone (so that the search is done once for each name and not for each payload); :class:`Continue` and
:class:`HandleExtension`, which are webdataset's. It must not know of samples or datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.errors import UsageError

Handler = Callable[[str, Any], Any]
"""(name of the field with a dot in front, payload) -> value, or None when the field is not its own."""
Decode = Callable[[Any], Any]
"""Payload -> value; raises anything at all for a payload that is not what its name says."""

INSTALL_IMAGES = "'wdscli[images]'"


def extension(key: str) -> str:
    """What follows the last dot, in lower case.

    >>> extension(".seg.PNG"), extension("json"), extension("x.")
    ('png', 'json', '')
    """
    return key[key.rfind(".") + 1 :].lower()


def held_extension(field: str) -> tuple[str, bool]:
    """The extension that says what a field holds, and whether it is compressed, which ``.gz`` behind that says.

    >>> held_extension("seg.PNG"), held_extension("json.gz")
    (('png', False), ('json', True))
    """
    is_packed = field.lower().endswith(".gz")
    return extension(field[:-3] if is_packed else field), is_packed


def needed(module: str, what: str, install: str) -> Any:
    """A module that is not always there. Raises UsageError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0]
        raise UsageError(
            f"{what} needs {missing}, which cannot be imported: {error}", hint=f"pip install {install}"
        ) from error


class ByExtension:
    """A handler that goes by the last extension alone: ``decoders`` has what decodes payloads of each. Those of
    ``limited`` become more than their payload, and take a ``limit`` in bytes."""

    def __init__(self, decoders: Mapping[str, Callable[..., Any]], limited: Collection[str] = ()) -> None:
        self._decoders = decoders
        self._limited = limited

    def find(self, extension: str, limit: int = MAX_DECODED_BYTES) -> Decode | None:
        """What decodes payloads of fields with this extension, inflating none to more than ``limit`` bytes; None when
        they are not its own."""
        decode = self._decoders.get(extension)
        return partial(decode, limit=limit) if decode is not None and extension in self._limited else decode

    def __call__(self, key: str, data: Any) -> Any:
        decode = self.find(extension(key))
        return None if decode is None else decode(data)


class Continue:
    """What a handler gives when it has taken off one layer (a compression): the handlers behind it go on with this
    name and this payload."""

    def __init__(self, key: str, data: Any) -> None:
        self.key = key
        self.data = data


class HandleExtension:
    """A handler for :meth:`WebDataset.decode` of fields by extension, several with blanks between them. ``"png"`` fits
    every field that ends so, ``"seg.png"`` only those with both parts; upper and lower case are the same.

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
"""webdataset's name for it."""
