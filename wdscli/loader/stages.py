"""What each stage does to one sample: small picklable functions, after webdataset's filters.

What it is: one class a stage, of which the methods of :class:`~wdscli.loader.fluent.Fluent` are made. How: a stage is
called with a sample and gives what becomes of it, or :data:`~wdscli.loader.pipeline.DROPPED`; its
:class:`~wdscli.loader.handlers.Guard` decides about exceptions and counts. A sample that is changed is copied first,
because a cache may hold it. It must not know of positions, ranks and epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any

from wdscli.errors import DataError
from wdscli.loader.handlers import Guard
from wdscli.loader.pipeline import DROPPED
from wdscli.loader.ranks import find_rank, find_worker

Function = Callable[[Any], Any]


class FieldError(DataError, ValueError, KeyError):
    """A field that is not there, or not once. Also a ValueError and a KeyError, for code that catches those."""


class Stage:
    """A function of a sample whose exceptions go to a handler."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def apply(self, item: Any) -> Any:
        """What becomes of ``item``."""
        raise NotImplementedError

    def __call__(self, item: Any) -> Any:
        try:
            return self.apply(item)
        except Exception as error:
            self.guard.caught(error, item)
            return DROPPED


class Apply(Stage):
    """A function, as it is."""

    def __init__(self, function: Function, guard: Guard) -> None:
        super().__init__(guard)
        self.apply = function  # type: ignore[method-assign,assignment]


class Map(Stage):
    """A function that leaves out by None; a dict that it makes of a dict keeps the key."""

    def __init__(self, function: Function, guard: Guard) -> None:
        super().__init__(guard)
        self._function = function

    def apply(self, item: Any) -> Any:
        found = self._function(item)
        if found is None:
            self.guard.drop(item, "None")
            return DROPPED
        if isinstance(found, dict) and isinstance(item, dict) and "__key__" in item:
            found["__key__"] = item["__key__"]
        return found


class Select(Stage):
    """What a predicate holds for."""

    def __init__(self, predicate: Callable[[Any], bool], guard: Guard) -> None:
        super().__init__(guard)
        self._predicate = predicate

    def apply(self, item: Any) -> Any:
        if self._predicate(item):
            return item
        self.guard.drop(item)
        return DROPPED


class MapDict(Stage):
    """Functions of named fields."""

    def __init__(self, functions: Mapping[str, Function], guard: Guard) -> None:
        super().__init__(guard)
        if not functions:
            raise TypeError("map_dict() without a field")
        for name, function in functions.items():
            _want_callable(function, f"map_dict({name}=)")
        self._functions = dict(functions)

    def apply(self, item: Any) -> Any:
        found = dict(_want_dict(item, "map_dict"))
        for name, function in self._functions.items():
            if name not in found:
                raise _missing(item, name)
            found[name] = function(found[name])
        return found


class MapTuple(Stage):
    """Functions of the first values of a tuple."""

    def __init__(self, functions: Sequence[Function | None], guard: Guard) -> None:
        super().__init__(guard)
        for place, function in enumerate(functions):
            if function is not None:
                _want_callable(function, f"map_tuple, value {place}")
        self._functions = list(functions)

    def apply(self, item: Any) -> Any:
        if not isinstance(item, (list, tuple)):
            raise TypeError(f"map_tuple() wants tuples, not {type(item).__name__}: call to_tuple() first")
        found = list(item)
        for place, function in enumerate(self._functions[: len(found)]):
            if function is not None:
                found[place] = function(found[place])
        return tuple(found)


class ToTuple(Stage):
    """Fields as a tuple."""

    def __init__(
        self, fields: Sequence[str | Sequence[str]], missing: bool, none: bool | None, guard: Guard
    ) -> None:
        super().__init__(guard)
        if len(fields) == 1 and isinstance(fields[0], str) and " " in fields[0]:
            fields = fields[0].split()
        self._fields = [_alternatives(field) for field in fields]
        self._missing = missing
        self._none = missing if none is None else none

    def apply(self, item: Any) -> Any:
        item = _want_dict(item, "to_tuple")
        found = tuple([_first_of(item, names, self._missing) for names in self._fields])
        if self._none and any(value is None for value in found):
            raise FieldError(f"a field is None in {_named(item)}", code="missing-field", shard=_url(item))
        return found


class Rename(Stage):
    """Fields by other names."""

    def __init__(self, names: Mapping[str, str | Sequence[str]], keep: bool, guard: Guard) -> None:
        super().__init__(guard)
        self._names = {new: _alternatives(old) for new, old in names.items()}
        self._replaced = {name for old in self._names.values() for name in old}
        self._keep = keep

    def apply(self, item: Any) -> Any:
        item = _want_dict(item, "rename")
        found = {new: _first_of(item, old) for new, old in self._names.items()}
        if not self._keep:
            return found
        kept = {name: value for name, value in item.items() if name not in self._replaced}
        kept.update(found)
        return kept


class RenameKeys(Stage):
    """Fields by other names, found by patterns."""

    def __init__(
        self, pairs: Sequence[tuple[str, str]], keep: bool, must_match: bool, unique: bool, guard: Guard
    ) -> None:
        super().__init__(guard)
        self._pairs = list(reversed(pairs))
        self._keep, self._must_match, self._unique = keep, must_match, unique

    def apply(self, item: Any) -> Any:
        found: dict[str, Any] = {}
        unmatched = {pattern for pattern, _ in self._pairs}
        for name, value in _want_dict(item, "rename_keys").items():
            base = name.rpartition("/")[2].lower()
            pattern, new = next((pair for pair in self._pairs if fnmatchcase(base, pair[0])), ("", None))
            unmatched.discard(pattern)
            if new is None:
                if self._keep:
                    found[name] = value
            elif new not in found:
                found[new] = value
            elif self._unique:
                raise _several(item, new)
        if self._must_match and unmatched:
            raise _missing(item, ", ".join(sorted(unmatched)))
        return found


class ExtractKeys(Stage):
    """Fields as a tuple, found by patterns."""

    def __init__(
        self, patterns: Sequence[str | Sequence[str]], unique: bool, ignore_missing: bool, guard: Guard
    ) -> None:
        super().__init__(guard)
        self._patterns = [_alternatives(pattern) for pattern in patterns]
        self._unique, self._ignore_missing = unique, ignore_missing

    def apply(self, item: Any) -> Any:
        found = []
        for patterns in self._patterns:
            names = [name for name in _want_dict(item, "extract_keys") if _matches(name, patterns)]
            if len(names) > 1 and self._unique:
                raise _several(item, ";".join(patterns))
            if names:
                found.append(item[names[0]])
            elif not self._ignore_missing:
                raise _missing(item, ";".join(patterns))
        return tuple(found)


def _read(stream: Any) -> Any:
    return stream.read()


def _read_text(stream: Any) -> Any:
    return stream.read().decode()


XDECODERS: tuple[tuple[str, Function], ...] = (("*.bin", _read), ("*.txt", _read_text))
"""What ``xdecode`` decodes unless told. webdataset's has ``*.pyd`` too, which is pickle: name it if you want it."""


class XDecode(Stage):
    """Payloads through functions of a stream, found by patterns; the last that fits counts."""

    def __init__(self, pairs: Sequence[tuple[str, Any]], must_decode: bool, guard: Guard) -> None:
        super().__init__(guard)
        self._pairs = list(reversed(pairs))
        self._must_decode = must_decode

    def apply(self, item: Any) -> Any:
        return {name: self._decoded(item, name) for name in _want_dict(item, "xdecode")}

    def _decoded(self, item: Any, name: str) -> Any:
        value = item[name]
        base = name.rpartition("/")[2].lower()
        if name.startswith("__") or base.startswith("__"):
            return value
        decoder = next((function for pattern, function in self._pairs if _matches(base, [pattern])), None)
        if decoder is None and self._must_decode:
            raise FieldError(f'no decoder for field "{name}" of {_named(item)}', shard=_url(item))
        if decoder is None or decoder is False:
            return value
        return decoder(BytesIO(value) if isinstance(value, bytes) else value)


class LogKeys:
    """Writes what passes to a file that several processes may append to."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = 0

    def __call__(self, item: Any) -> Any:
        key = item.get("__key__") if isinstance(item, dict) else None
        line = f"{self._number}\t{find_worker()[0]}\t{find_rank()[0]}\t{key}\n"
        self._number += 1
        # One write of a file opened to append: lines of several processes do not run into each other.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line.encode("utf-8", "surrogateescape"))
        finally:
            os.close(handle)
        return item


class Remembered:
    """What functions make of each sample, kept by its shard and key; not pickled with the dataset."""

    def __init__(self, functions: tuple[Function, ...]) -> None:
        self._functions = functions
        self._known: dict[tuple[str, str], Any] = {}

    def __call__(self, item: Any) -> Any:
        place = item["__url__"], item["__key__"]
        found = self._known.get(place, self)
        if found is self:
            found = item
            for function in self._functions:
                found = function(found)
                if found is DROPPED:
                    break
            self._known[place] = found
        return dict(found) if isinstance(found, dict) else found

    def __getstate__(self) -> dict[str, Any]:
        return {"_functions": self._functions, "_known": {}}


def collated(samples: list[Any]) -> Any:
    """One batch of samples, by :func:`wdscli.loader.collate.default_collation`."""
    from wdscli.loader.collate import default_collation

    return default_collation(samples)


def unbatched(batch: Any) -> Iterator[Any]:
    """The samples of a batch of columns. Raises TypeError, ValueError."""
    if not isinstance(batch, (dict, list, tuple)):
        raise TypeError(f"unbatched() wants batches that are tuples or dicts, not {type(batch).__name__}")
    columns = batch.values() if isinstance(batch, dict) else batch
    if len({len(column) for column in columns}) > 1:
        raise ValueError("unbatched(): columns of different lengths")
    rows = zip(*columns)
    return (dict(zip(batch, row)) for row in rows) if isinstance(batch, dict) else rows


def unlisted(batch: Any) -> Iterable[Any]:
    """The samples of a list. Raises TypeError."""
    if not isinstance(batch, list):
        raise TypeError(f"unlisted() wants lists, not {type(batch).__name__}")
    return batch


def getfirst(
    a: Mapping[str, Any], keys: str | Sequence[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """The value of the first of ``"jpg;png"`` that is there. Raises FieldError, which is a ValueError."""
    return _first_of(a, _alternatives(keys), missing_is_error, default)


def _first_of(item: Mapping[str, Any], names: Sequence[str], must: bool = True, default: Any = None) -> Any:
    for name in names:
        if name in item:
            return item[name]
    if must:
        raise _missing(item, ";".join(names))
    return default


def _alternatives(names: str | Sequence[str]) -> list[str]:
    return names.split(";") if isinstance(names, str) else list(names)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase("." + name, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


def _want_dict(item: Any, stage: str) -> Any:
    if not isinstance(item, Mapping):
        raise TypeError(f"{stage}() wants samples that are dicts, not {type(item).__name__}")
    return item


def _want_callable(function: Any, where: str) -> None:
    if not callable(function):
        raise TypeError(f"{where}: {function!r} is no function")


def _named(item: Mapping[str, Any]) -> str:
    return f'sample "{item["__key__"]}"' if "__key__" in item else "a sample"


def _url(item: Mapping[str, Any]) -> str | None:
    return item.get("__url__")


def _missing(item: Mapping[str, Any], wanted: str) -> FieldError:
    there = ", ".join(name for name in item if not name.startswith("__")) or "none"
    return FieldError(
        f'no field "{wanted}" in {_named(item)}, which has {there}', code="missing-field", shard=_url(item)
    )


def _several(item: Mapping[str, Any], wanted: str) -> FieldError:
    return FieldError(
        f'several fields are "{wanted}" in {_named(item)}', code="duplicate-field", shard=_url(item)
    )
