"""Stages that find fields by patterns of their names, or members by functions of theirs.

They copy what they change and give exceptions to a handler, as all of :mod:`wdscli.loader.stages.stages` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any

from wdscli.errors import DataError
from wdscli.loader.stages.fields import FieldError, alternatives, missing, named, several, url_of, want_dict
from wdscli.loader.stages.policy import Guard
from wdscli.loader.stages.recipe import DROPPED
from wdscli.loader.stages.stages import Function, Stage
from wdscli.model import to_bytes, to_text
from wdscli.samples import split_name


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
        for name, value in want_dict(item, "rename_keys").items():
            base = name.rpartition("/")[2].lower()
            pattern, new = next((pair for pair in self._pairs if fnmatchcase(base, pair[0])), ("", None))
            unmatched.discard(pattern)
            if new is None:
                if self._keep:
                    found[name] = value
            elif new not in found:
                found[new] = value
            elif self._unique:
                raise several(item, new)
        if self._must_match and unmatched:
            raise missing(item, ", ".join(sorted(unmatched)))
        return found


class ExtractKeys(Stage):
    """Fields as a tuple, found by patterns."""

    def __init__(
        self, patterns: Sequence[str | Sequence[str]], unique: bool, ignore_missing: bool, guard: Guard
    ) -> None:
        super().__init__(guard)
        self._patterns = [alternatives(pattern) for pattern in patterns]
        self._unique, self._ignore_missing = unique, ignore_missing

    def apply(self, item: Any) -> Any:
        found = []
        for patterns in self._patterns:
            names = [name for name in want_dict(item, "extract_keys") if _matches(name, patterns)]
            if len(names) > 1 and self._unique:
                raise several(item, ";".join(patterns))
            if names:
                found.append(item[names[0]])
            elif not self._ignore_missing:
                raise missing(item, ";".join(patterns))
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
        return {name: self._decoded(item, name) for name in want_dict(item, "xdecode")}

    def _decoded(self, item: Any, name: str) -> Any:
        value = item[name]
        base = name.rpartition("/")[2].lower()
        if name.startswith("__") or base.startswith("__"):
            return value
        decoder = next((function for pattern, function in self._pairs if _matches(base, [pattern])), None)
        if decoder is None and self._must_decode:
            raise FieldError(f'no decoder for field "{name}" of {named(item)}', shard=url_of(item))
        if decoder is None or decoder is False:
            return value
        return decoder(BytesIO(value) if isinstance(value, bytes) else value)


class Files(Stage):
    """Members chosen and renamed by functions of their names, as they are spelled in the shard; the fields are in lower
    case afterwards."""

    def __init__(
        self,
        select: Callable[[str], bool] | None,
        rename: Callable[[str], str] | None,
        guard: Guard,
    ) -> None:
        super().__init__(guard)
        self._select, self._rename = select, rename

    def apply(self, item: Any) -> Any:
        key, found = None, {"__key__": item["__key__"], "__url__": item["__url__"]}
        for field, payload in item.items():
            if field.startswith("__"):
                continue
            name = f"{item['__key__']}.{field}"
            name = name if self._rename is None else self._rename(name)
            split = split_name(to_bytes(name))
            if split is None or (self._select is not None and not self._select(name)):
                continue
            key = self._one_key(item, key, to_text(split[0]))
            found["__key__"] = key
            if to_text(split[1]).lower() in found:
                raise several(item, to_text(split[1]).lower())
            found[to_text(split[1]).lower()] = payload
        if key is None:
            self.guard.drop(item)
            return DROPPED
        return found

    def _one_key(self, item: Any, known: str | None, key: str) -> str:
        if known not in (None, key):
            raise DataError(
                f'rename_files gives {named(item)} two keys, "{known}" and "{key}"',
                code="interleaved",
                shard=url_of(item),
                hint="rewrite the shards with `wds create` or `wds cat --rename`",
            )
        return key


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase("." + name, pattern) or fnmatchcase(name, pattern) for pattern in patterns)
