"""From payloads to values: what ``decode(...)`` of a dataset does to one sample.

What it is: :class:`Decoder`, with webdataset's signature. How: handlers try a field in turn, first those that
decompress, then the named ones, then the defaults (:mod:`~wdscli.codecs.values`); the handler of a name is found
once. A field without a handler stays bytes. Names are compared by their last extension, in lower case: ``seg.png`` is a
png.

Differences from webdataset: no pickle is loaded unless ``"pickle"`` is named; pth files are loaded with
``weights_only=True``. JSON's ``null`` is None and not ``b"null"``. msgpack is known by that name too. Arrays may be
changed. A field that cannot be decoded is a :class:`~wdscli.errors.DataError` that names shard, key and field.

It must not know how samples are read, or how errors are handled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from wdscli.codecs.handlers import (
    MAX_DECODED_BYTES,
    ByExtension,
    Continue,
    Decode,
    Handler,
    extension,
    inflate,
)
from wdscli.codecs.images import SPECS, Images, Size
from wdscli.codecs.media import MEDIA
from wdscli.codecs.values import basichandlers, pickles
from wdscli.errors import DataError, UsageError
from wdscli.loader.read.failures import text_of
from wdscli.loader.stages.per_sample import Label

Payload = (bytes, bytearray, memoryview)


def gzfilter(key: str, data: bytes) -> Continue | None:
    """Decompress a field whose name ends in ``.gz``."""
    return Continue(key[:-3], inflate(data)) if key.lower().endswith(".gz") else None


Plan: TypeAlias = tuple[list[tuple[int, Handler]], Decode | None]
"""How a name is decoded: by handlers that are called for each payload, with their places, and then by a last one."""


class Decoder:
    """A function of a sample that decodes its fields; picklable when its handlers are.

    ``handlers`` are names of image specs (``"pil"``, ``"rgb8"``, ``"torchrgb"``, ...: see
    :mod:`~wdscli.codecs.images`), ``"audio"``, ``"video"``, ``"torch_audio"``, ``"torch_video"``, ``"pickle"``,
    and functions of (field name with a dot before it, payload) that return a value, or None for other fields. ``pre``
    and ``post`` replace the handlers before and after them: gzip and the defaults. ``only`` has the names of the fields
    to decode, others stay unchanged. With ``partial`` values that are not bytes stay unchanged, else they are an error.
    ``max_decoded`` is the most bytes of a value after gzip, npz, pictures, sound and film; own handlers have limits of
    their own. Pictures of a spec are resized to one ``size``: height and width, or a number for the shorter side.
    ``crop`` keeps their middle. Both are as torchvision's Resize and CenterCrop. Fields ``__like_this__`` are never
    changed.

    Called with a sample it returns a new one. Raises DataError for a field that cannot be decoded, and UsageError for a
    missing package and for a pickle without ``"pickle"``.

    >>> decode = Decoder([])
    >>> decode({"__key__": "a", "cls": b"7", "txt": "é".encode(), "bin": b"..."})
    {'__key__': 'a', 'cls': 7, 'txt': 'é', 'bin': b'...'}
    """

    def __init__(
        self,
        handlers: Sequence[str | Handler],
        pre: Sequence[Handler] | None = None,
        post: Sequence[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        max_decoded: int = MAX_DECODED_BYTES,
        size: Size | None = None,
        crop: Size | None = None,
    ) -> None:
        if not isinstance(max_decoded, int) or max_decoded < 1:
            raise UsageError(f"max_decoded={max_decoded!r} must be a number of bytes")
        self._max_decoded = max_decoded
        if (size, crop) != (None, None) and SPECS.keys().isdisjoint(
            one for one in handlers if isinstance(one, str)
        ):
            raise UsageError("decode(size=, crop=) needs an image format", hint='decode("rgb8", size=224)')
        named = [_named(one, size, crop) if isinstance(one, str) else one for one in handlers]
        before = [gzfilter] if pre is None else list(pre)
        after = [basichandlers] if post is None else list(post)
        self.handlers: list[Handler] = [*before, *named, *after]
        for handler in self.handlers:
            if not callable(handler):
                raise UsageError(f"a handler must be a name or a function, not {handler!r}")
        if isinstance(only, str):
            only = only.replace(";", " ").split()
        self.only = None if only is None else frozenset(only)
        self.partial = partial
        self._plans: dict[tuple[str, int], Plan] = {}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(sample, dict):
            raise UsageError(
                f"decode() needs samples that are dicts, not {type(sample).__name__}",
                hint="decode before to_tuple",
            )
        return self.decode(sample)

    def decode1(self, key: str, data: Any) -> Any:
        """Return the value of one field, by its name and its payload."""
        return self._value("." + key, data, 0)

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode all fields of a sample. As in webdataset a subclass may override this and :meth:`decode1`."""
        found = {}
        for field, data in sample.items():
            if self._is_left(field, data):
                found[field] = data
                continue
            try:
                found[field] = self.decode1(field, data)
            except UsageError:
                raise
            except Exception as error:
                raise _undecodable(sample, field, error) from error
        return found

    def _is_left(self, field: str, data: Any) -> bool:
        if field.startswith("__") or (self.only is not None and field not in self.only):
            return True
        return isinstance(data, Label) or (self.partial and not isinstance(data, Payload))

    def _value(self, key: str, data: Any, first: int) -> Any:
        """Return the value of a payload by the handlers from number ``first`` on."""
        if not isinstance(data, Payload):
            raise DataError(
                f"a value of type {type(data).__name__}, not bytes",
                hint="decode(partial=True) keeps values that are decoded already",
            )
        if type(data) is memoryview:
            data = bytes(data)
        tried, last = self._plans.get((key, first)) or self._planned(key, first)
        for place, handler in tried:
            if handler is gzfilter:
                return self._value(key[:-3], inflate(data, self._max_decoded), place + 1)
            result = handler(key, data)
            if _continues(result):
                return self._value(result.key, result.data, place + 1)
            if result is not None:
                return result
        return data if last is None else last(data)

    def _planned(self, key: str, first: int) -> Plan:
        tried: list[tuple[int, Handler]] = []
        last = None
        for place in range(first, len(self.handlers)):
            handler = self.handlers[place]
            if not isinstance(handler, ByExtension):
                if handler is not gzfilter or key.lower().endswith(".gz"):
                    tried.append((place, handler))
                continue
            last = handler.find(extension(key), self._max_decoded)
            if last is not None:
                break
        self._plans[key, first] = tried, last
        return tried, last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}


def _named(name: str, size: Size | None, crop: Size | None) -> Handler:
    if name in SPECS:
        return Images(name, size=size, crop=crop)
    if name in MEDIA:
        return MEDIA[name]
    if name == "pickle":
        return pickles
    known = ", ".join(sorted((*SPECS, *MEDIA, "pickle")))
    raise UsageError(f'no such decoder: "{name}"; known: {known}')


def _continues(result: Any) -> bool:
    # Handlers that were written for webdataset return its own class.
    return isinstance(result, Continue) or type(result).__name__ == "Continue"


def _undecodable(sample: dict[str, Any], field: str, error: Exception) -> DataError:
    if isinstance(error, DataError):
        why, hint = error.message, error.hint
    else:
        text = str(error).partition("\n")[0]
        why, hint = f"{type(error).__name__}: {text}" if text else type(error).__name__, None
    return DataError(
        f"cannot decode: {why}",
        code="undecodable",
        shard=text_of(sample, "__url__"),
        member=f"{sample.get('__key__', '')}.{field}",
        hint=hint,
    )
