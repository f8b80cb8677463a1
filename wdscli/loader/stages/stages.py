"""What each stage does to one sample: small picklable functions, after webdataset's filters.

What it is: one class a stage, of which the methods of :class:`~wdscli.loader.stages.fluent.Fluent` are made. How: a
stage is called with a sample and gives what becomes of it, or :data:`~wdscli.loader.stages.recipe.DROPPED`; its
:class:`~wdscli.loader.stages.policy.Guard` decides about exceptions and counts. A sample that is changed is copied
first, because a cache may hold it. It must not know of positions, ranks and epochs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.place.ranks import find_rank, find_worker
from wdscli.loader.stages.fields import (
    FieldError,
    alternatives,
    first_of,
    missing,
    named,
    url_of,
    want_callable,
    want_dict,
)
from wdscli.loader.stages.policy import Guard
from wdscli.loader.stages.recipe import DROPPED

Function = Callable[[Any], Any]


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
            want_callable(function, f"map_dict({name}=)")
        self._functions = dict(functions)

    def apply(self, item: Any) -> Any:
        found = dict(want_dict(item, "map_dict"))
        for name, function in self._functions.items():
            if name not in found:
                raise missing(item, name)
            found[name] = function(found[name])
        return found


class MapTuple(Stage):
    """Functions of the first values of a tuple."""

    def __init__(self, functions: Sequence[Function | None], guard: Guard) -> None:
        super().__init__(guard)
        for place, function in enumerate(functions):
            if function is not None:
                want_callable(function, f"map_tuple, value {place}")
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
        if not fields:
            raise UsageError("to_tuple() without a field", hint='to_tuple("jpg;png", "json")')
        if len(fields) == 1 and isinstance(fields[0], str) and " " in fields[0]:
            fields = fields[0].split()
        self._fields = [alternatives(field) for field in fields]
        plain = all(len(names) == 1 for names in self._fields)
        self._plain = [names[0] for names in self._fields] if plain else None
        self._missing = missing
        self._none = missing if none is None else none

    def apply(self, item: Any) -> Any:
        found = self._values(want_dict(item, "to_tuple"))
        if self._none:
            for value in found:
                if value is None:
                    said = f"a field is None in {named(item)}"
                    raise FieldError(said, code="missing-field", shard=url_of(item))
        return found

    def _values(self, item: Any) -> tuple[Any, ...]:
        if self._plain is not None:  # nearly always, and then nearly all samples have all fields
            try:
                return tuple([item[name] for name in self._plain])
            except KeyError:
                pass
        return tuple([first_of(item, names, self._missing) for names in self._fields])


class Rename(Stage):
    """Fields by other names."""

    def __init__(self, names: Mapping[str, str | Sequence[str]], keep: bool, guard: Guard) -> None:
        super().__init__(guard)
        self._names = {new: alternatives(old) for new, old in names.items()}
        self._replaced = {name for old in self._names.values() for name in old}
        self._keep = keep

    def apply(self, item: Any) -> Any:
        item = want_dict(item, "rename")
        found = {new: first_of(item, old) for new, old in self._names.items()}
        if not self._keep:
            return found
        kept = {name: value for name, value in item.items() if name not in self._replaced}
        kept.update(found)
        return kept


class Associate(Stage):
    """More fields, found by the key."""

    def __init__(self, associator: Any, guard: Guard) -> None:
        super().__init__(guard)
        self._associator = associator

    def apply(self, item: Any) -> Any:
        key = want_dict(item, "associate")["__key__"]
        found = self._associator(key) if callable(self._associator) else self._associator.get(key, {})
        return {**item, **found}


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


class Info:
    """Shows some of what passes."""

    def __init__(self, fmt: str | None, n: int, every: int, width: int, stream: Any, name: str) -> None:
        self._fmt, self._first, self._every, self._width = fmt, n, every, width
        self._stream, self._name = stream, name
        self._number = 0

    def __call__(self, item: Any) -> Any:
        self._number += 1
        if self._number <= self._first or (self._every > 0 and self._number % self._every == 0):
            print(self._shown(item), file=self._stream or sys.stderr)
        return item

    def _shown(self, item: Any) -> str:
        if self._fmt is not None:
            return self._fmt.format(**item)
        return "\n".join([f"--- {self._name}", *(f"{k} {v!r:.{self._width}}" for k, v in item.items())])


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
    """One batch of samples, by :func:`wdscli.loader.stages.collate.default_collation`; under the workers of a
    DataLoader with columns of bytes packed, see :mod:`wdscli.loader.stages.packing`."""
    from wdscli.loader.stages.collate import default_collation
    from wdscli.loader.stages.packing import for_transport

    return for_transport(default_collation(samples))


def unbatched(batch: Any) -> Iterator[Any]:
    """The samples of a batch of columns. Raises TypeError, ValueError."""
    if not isinstance(batch, (dict, list, tuple)):
        raise TypeError(f"unbatched() wants batches that are tuples or dicts, not {type(batch).__name__}")
    columns = batch.values() if isinstance(batch, dict) else batch
    if len({len(column) for column in columns}) > 1:
        raise ValueError("unbatched() wants batches: here are columns of different lengths")
    rows = zip(*columns)
    return (dict(zip(batch, row)) for row in rows) if isinstance(batch, dict) else rows


def unlisted(batch: Any) -> Iterable[Any]:
    """The samples of a list. Raises TypeError."""
    if not isinstance(batch, list):
        raise TypeError(f"unlisted() wants lists, not {type(batch).__name__}")
    return batch
