"""This module has the stages that work on one sample: small picklable functions with webdataset's names, and decoding.

The methods of :class:`~wdscli.loader.stages.fluent.Fluent` use one class or function of this module for each stage. A
stage is called with a sample, and returns the new sample or :data:`~wdscli.loader.stages.flow.DROPPED`. The
:class:`~wdscli.loader.read.failures.Guard` of the stage decides about exceptions and counts dropped samples. A sample
is copied before it is changed, because a cache may have the old sample.

:class:`Decoder` converts payloads to values. The handlers of a decoder try a field one after the other: first
decompression, then the handlers named in ``decode``, then the defaults (:mod:`~wdscli.codecs.values`). The handlers for
a field name are found only once. A field without a handler stays bytes. Names are compared by their last extension, in
lower case: ``seg.png`` is a png. :class:`Decoder` differs from webdataset's decoder in some points. No pickle is loaded
unless ``"pickle"`` is named. pth files are loaded with ``weights_only=True``. JSON's ``null`` becomes None and not
``b"null"``. The extension ``msgpack`` is known too. The decoded arrays are writable. A field that cannot be decoded is
a :class:`~wdscli.errors.DataError` that names shard, key and field.

This module does not know positions, ranks and epochs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from io import BytesIO
from operator import methodcaller
from typing import Any, TypeAlias

from wdscli.codecs.handlers import MAX_DECODED_BYTES, ByExtension, Continue, Decode, Handler, inflate
from wdscli.codecs.images import SPECS, Images, Size
from wdscli.codecs.media import MEDIA
from wdscli.codecs.values import basichandlers, pickles
from wdscli.errors import DataError, UsageError
from wdscli.loader.place.ranks import find_rank, find_worker
from wdscli.loader.read.failures import reraise_exception, text_of
from wdscli.loader.read.renamed import Renaming
from wdscli.loader.stages.flow import DROPPED, Function, Stage


class FieldError(DataError, ValueError, KeyError):
    """The error of a missing or repeated field, which is also a ValueError and a KeyError, for code that catches
    these."""


class Label(str):
    """The value of the field that a mix adds to its samples. ``decode`` leaves it unchanged."""

    __slots__ = ()


def getfirst(
    a: Mapping[str, Any], keys: str | Sequence[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """Return the value of the first field in ``keys``, such as ``"jpg;png"``, that the sample has. Raises FieldError,
    which is a ValueError."""
    names = keys.split(";") if isinstance(keys, str) else keys
    for name in names:
        if name in a:
            return a[name]
    if missing_is_error:
        raise missing(a, ";".join(names))
    return default


def alternatives(names: str | Sequence[str]) -> list[str]:
    return names.split(";") if isinstance(names, str) else list(names)


def want_dict(sample: Any, stage: str) -> Any:
    if not isinstance(sample, (dict, Mapping)):
        raise TypeError(f"{stage}() needs samples that are dicts, not {type(sample).__name__}")
    return sample


def want_callable(function: Any, where: str) -> None:
    if not callable(function):
        raise TypeError(f"{where}: {function!r} is not a function")


def named(sample: Mapping[str, Any]) -> str:
    return f'sample "{sample["__key__"]}"' if "__key__" in sample else "a sample"


def missing(sample: Mapping[str, Any], wanted: str) -> FieldError:
    field_names = ", ".join(name for name in sample if not name.startswith("__")) or "none"
    return unfit(sample, f'no field "{wanted}" in {named(sample)}, which has {field_names}')


def several(sample: Mapping[str, Any], wanted: str) -> FieldError:
    return unfit(sample, f'several fields are "{wanted}" in {named(sample)}', "duplicate-field")


def unfit(sample: Mapping[str, Any], message: str, code: str = "missing-field") -> FieldError:
    return FieldError(message, code=code, shard=text_of(sample, "__url__"))


class Map(Stage):
    """Applies a function to samples. If the function returns None, the sample is dropped. If the function returns a
    dict, the dict gets the sample's key."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def apply(self, sample: Any) -> Any:
        result = self._function(sample)
        if result is None:
            self.guard.drop(sample, "None")
            return DROPPED
        if isinstance(result, dict) and isinstance(sample, dict) and "__key__" in sample:
            result["__key__"] = sample["__key__"]
        return result


class Select(Stage):
    """Keeps samples for which a predicate is true."""

    def __init__(self, predicate: Callable[[Any], bool]) -> None:
        self._predicate = predicate

    def apply(self, sample: Any) -> Any:
        if self._predicate(sample):
            return sample
        self.guard.drop(sample)
        return DROPPED


def map_dict(functions: Mapping[str, Function], sample: Any) -> Any:
    """Apply each function to the field of the sample that it is named for."""
    mapped = dict(want_dict(sample, "map_dict"))
    for name, function in functions.items():
        if name not in mapped:
            raise missing(sample, name)
        mapped[name] = function(mapped[name])
    return mapped


def map_tuple(functions: Sequence[Function | None], sample: Any) -> Any:
    """Apply functions to the first values of a tuple."""
    if not isinstance(sample, (list, tuple)):
        raise TypeError(f"map_tuple() needs tuples, not {type(sample).__name__}: call to_tuple() first")
    mapped = list(sample)
    for place, function in enumerate(functions[: len(mapped)]):
        if function is not None:
            mapped[place] = function(mapped[place])
    return tuple(mapped)


class ToTuple:
    """Makes a tuple of fields of a sample."""

    def __init__(self, fields: Sequence[str | Sequence[str]], missing: bool, none: bool | None) -> None:
        if not fields:
            raise UsageError("to_tuple() needs at least one field", hint='to_tuple("jpg;png", "json")')
        if len(fields) == 1 and isinstance(fields[0], str) and " " in fields[0]:
            fields = fields[0].split()
        self._fields = [alternatives(field) for field in fields]
        plain = all(len(names) == 1 for names in self._fields)
        self._plain = [names[0] for names in self._fields] if plain else None
        self._missing = missing
        self._none = missing if none is None else none

    def __call__(self, sample: Any) -> Any:
        values = self._values(want_dict(sample, "to_tuple"))
        if self._none:
            for value in values:
                if value is None:
                    raise unfit(sample, f"a field is None in {named(sample)}")
        return values

    def _values(self, sample: Any) -> tuple[Any, ...]:
        if self._plain is not None:  # in the usual case, nearly all samples have all fields
            try:
                return tuple([sample[name] for name in self._plain])
            except KeyError:
                pass
        return tuple([getfirst(sample, names, missing_is_error=self._missing) for names in self._fields])


def rename(names: Mapping[str, Sequence[str]], replaced: Set[str] | None, sample: Any) -> Any:
    """Rename fields. Other fields are kept, except the fields in ``replaced``. With ``replaced`` None, all other fields
    are dropped."""
    sample = want_dict(sample, "rename")
    renamed = {new: getfirst(sample, old) for new, old in names.items()}
    if replaced is None:
        return renamed
    kept = {name: value for name, value in sample.items() if name not in replaced}
    return {**kept, **renamed}


def associate(associator: Any, sample: Any) -> Any:
    """Add the fields that ``associator`` has for the key of the sample."""
    key = want_dict(sample, "associate")["__key__"]
    added_fields = associator(key) if callable(associator) else associator.get(key, {})
    return {**sample, **added_fields}


class LogKeys:
    """Writes the key of each sample to a file that several processes may append to."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = 0

    def __call__(self, sample: Any) -> Any:
        key = sample.get("__key__") if isinstance(sample, dict) else None
        line = f"{self._number}\t{find_worker()[0]}\t{find_rank()[0]}\t{key}\n"
        self._number += 1
        # A single write to a file opened for appending keeps the lines of several processes apart.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line.encode("utf-8", "surrogateescape"))
        finally:
            os.close(handle)
        return sample


class Info:
    """Prints some samples, for :meth:`info`."""

    def __init__(self, fmt: str | None, n: int, every: int, width: int, stream: Any, name: str) -> None:
        self._fmt, self._first, self._every, self._width = fmt, n, every, width
        self._stream, self._name = stream, name
        self._number = 0

    def __call__(self, sample: Any) -> Any:
        self._number += 1
        if self._number <= self._first or (self._every > 0 and self._number % self._every == 0):
            print(self._shown(sample), file=self._stream or sys.stderr)
        return sample

    def _shown(self, sample: Any) -> str:
        if self._fmt is not None:
            return self._fmt.format(**sample)
        return "\n".join([f"--- {self._name}", *(f"{k} {v!r:.{self._width}}" for k, v in sample.items())])


class MapOnce:
    """Applies functions to each sample once, and keeps the results by shard and key. A pickle does not include the
    results."""

    def __init__(self, functions: tuple[Function, ...]) -> None:
        self._functions = functions
        self._known: dict[tuple[str, str], Any] = {}

    def __call__(self, sample: Any) -> Any:
        place = sample["__url__"], sample["__key__"]
        result = self._known.get(place, self)
        if result is self:
            result = sample
            for function in self._functions:
                result = function(result)
                if result is DROPPED:
                    break
            self._known[place] = result
        return dict(result) if isinstance(result, dict) else result

    def __getstate__(self) -> dict[str, Any]:
        return {"_functions": self._functions, "_known": {}}


def rename_keys(
    pairs: Sequence[tuple[str, str]], keep: bool, must_match: bool, unique: bool, sample: Any
) -> Any:
    """Rename fields by patterns. If several patterns match a field, the first one counts."""
    renamed: dict[str, Any] = {}
    unmatched = {pattern for pattern, _ in pairs}
    for name, value in want_dict(sample, "rename_keys").items():
        base = name.rpartition("/")[2].lower()
        pattern, new = next((pair for pair in pairs if fnmatchcase(base, pair[0])), ("", None))
        unmatched.discard(pattern)
        if new is None:
            if keep:
                renamed[name] = value
        elif new not in renamed:
            renamed[new] = value
        elif unique:
            raise several(sample, new)
    if must_match and unmatched:
        raise missing(sample, ", ".join(sorted(unmatched)))
    return renamed


def extract_keys(
    several_patterns: Sequence[Sequence[str]], unique: bool, ignore_missing: bool, sample: Any
) -> Any:
    """Return a tuple of the fields that match the patterns."""
    payloads = []
    for patterns in several_patterns:
        names = [name for name in want_dict(sample, "extract_keys") if _matches(name, patterns)]
        if len(names) > 1 and unique:
            raise several(sample, ";".join(patterns))
        if names:
            payloads.append(sample[names[0]])
        elif not ignore_missing:
            raise missing(sample, ";".join(patterns))
    return tuple(payloads)


def _read_text(stream: Any) -> Any:
    return stream.read().decode()


XDECODERS: tuple[tuple[str, Function], ...] = (("*.bin", methodcaller("read")), ("*.txt", _read_text))
"""The default decoders of ``xdecode``. webdataset's defaults also have ``*.pyd``, which is a pickle. A program that
needs ``*.pyd`` must pass a decoder for it."""


def xdecode(pairs: Sequence[tuple[str, Any]], must_decode: bool, sample: Any) -> Any:
    """Decode payloads by functions of a stream. The first pattern that matches a field's name chooses the function."""
    decoded = dict(want_dict(sample, "xdecode"))
    for name, value in decoded.items():
        base = name.rpartition("/")[2].lower()
        if name.startswith("__") or base.startswith("__"):
            continue
        decoder = next((function for pattern, function in pairs if _matches(base, [pattern])), None)
        if decoder is None and must_decode:
            raise FieldError(
                f'no decoder for field "{name}" of {named(sample)}', shard=text_of(sample, "__url__")
            )
        if decoder is not None and decoder is not False:
            decoded[name] = decoder(BytesIO(value) if isinstance(value, bytes) else value)
    return decoded


class MemberFilter(Stage):
    """Chooses and renames members with functions of their names. The functions get the names as they are spelled in the
    shard. Afterwards, field names are converted to lower case."""

    def __init__(self, select: Callable[[str], bool] | None, rename: Callable[[str], str] | None) -> None:
        # The guard of this stage decides about exceptions of the functions.
        self._renaming = Renaming(rename or str, select, reraise_exception)

    def apply(self, sample: Any) -> Any:
        key, files = None, {"__key__": sample["__key__"], "__url__": sample["__url__"]}
        for field, payload in sample.items():
            parts = None if field.startswith("__") else self._renaming.parts(f"{sample['__key__']}.{field}")
            if parts is None:
                continue
            if key not in (None, parts[0]):
                raise DataError(
                    f'rename_files gives {named(sample)} two keys, "{key}" and "{parts[0]}"',
                    code="interleaved",
                    shard=text_of(sample, "__url__"),
                    hint="rewrite the shards with `wds create` or `wds cat --rename`",
                )
            key, renamed = parts
            if renamed in files:
                raise several(sample, renamed)
            files["__key__"], files[renamed] = key, payload
        if key is None:
            self.guard.drop(sample)
            return DROPPED
        return files


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase("." + name, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


Payload = (bytes, bytearray, memoryview)


def gzfilter(key: str, data: bytes) -> Continue | None:
    """Decompress a field if its name ends in ``.gz``."""
    return Continue(key[:-3], inflate(data)) if key.lower().endswith(".gz") else None


Plan: TypeAlias = tuple[list[tuple[int, Handler]], Decode | None]
"""How a field name is decoded: pairs (position, handler) of handlers that try each payload, then the decoder to use if
none of these returns a value."""


class Decoder:
    """A function that decodes the fields of a sample. A decoder can be pickled if its handlers can be pickled.

    ``handlers`` are names or functions. A name is an image spec (``"pil"``, ``"rgb8"``, ``"torchrgb"``, ...: see
    :mod:`~wdscli.codecs.images`), ``"audio"``, ``"video"``, ``"torch_audio"``, ``"torch_video"`` or ``"pickle"``. A
    function takes the field name with a leading dot and the payload; it returns a value, or None for fields of other
    handlers. ``pre`` replaces the handler before ``handlers``, which is gzip, and ``post`` replaces the defaults after
    them. ``only`` names the fields to decode; other fields stay unchanged. With ``partial``, values that are not bytes
    stay unchanged; without ``partial``, such values are an error. ``max_decoded`` is the largest size in bytes of a
    value decoded from gzip, npz, pictures, sound and film. Your own handlers are not limited. Pictures of an image spec
    are resized to ``size``: height and width, or a number for the shorter side. ``crop`` keeps the middle of a picture.
    ``size`` and ``crop`` work like torchvision's Resize and CenterCrop. Fields with names such as ``__key__`` never
    change.

    A call with a sample returns a new sample. Raises DataError for a field that cannot be decoded. Raises UsageError
    for a missing package, and for a pickle if ``"pickle"`` is not named.

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
        names = [handler for handler in handlers if isinstance(handler, str)]
        if (size, crop) != (None, None) and SPECS.keys().isdisjoint(names):
            raise UsageError("decode(size=, crop=) needs an image format", hint='decode("rgb8", size=224)')
        named = [_named(handler, size, crop) if isinstance(handler, str) else handler for handler in handlers]
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
                hint="call decode() before to_tuple()",
            )
        return self.decode(sample)

    def decode1(self, key: str, data: Any) -> Any:
        """Return the value of one field, decoded from its name and payload."""
        return self._value("." + key, data, 0)

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode all fields of a sample. As in webdataset, a subclass may override this method and :meth:`decode1`."""
        decoded = {}
        for field, data in sample.items():
            if self._is_left(field, data):
                decoded[field] = data
                continue
            try:
                decoded[field] = self.decode1(field, data)
            except UsageError:
                raise
            except Exception as error:
                raise _undecodable(sample, field, error) from error
        return decoded

    def _is_left(self, field: str, data: Any) -> bool:
        if field.startswith("__") or (self.only is not None and field not in self.only):
            return True
        return isinstance(data, Label) or (self.partial and not isinstance(data, Payload))

    def _value(self, key: str, data: Any, first: int) -> Any:
        """Return the value of a payload. The first ``first`` handlers are skipped."""
        if not isinstance(data, Payload):
            raise DataError(
                f"the value has the type {type(data).__name__}, not bytes",
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
            last = handler.find(key, self._max_decoded)
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
    known_names = ", ".join(sorted((*SPECS, *MEDIA, "pickle")))
    raise UsageError(f'no such decoder: "{name}"; known: {known_names}')


def _continues(result: Any) -> bool:
    # Handlers that were written for webdataset return webdataset's class of this name.
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
