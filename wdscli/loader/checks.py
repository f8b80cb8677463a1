"""This module checks arguments from training code, and turns webdataset's ways to name shards into addresses.

Each function returns a valid value or raises UsageError. Arguments are checked at the call, not at the first batch.
Messages name the argument of the call, even if the command wds has an option for the same value. This module does not
know the purpose of the arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit
from warnings import warn

from wdscli.errors import DataError, UsageError
from wdscli.units import parse_size

Urls: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"


@runtime_checkable
class ShardList(Protocol):
    """A list that draws random shards from the ``given`` shards, like webdataset's ResampledShards. ``is_exact`` is
    true if an endless shuffled order can replace the random draws."""

    given: Any
    is_exact: bool


_VARIABLE = re.compile(r"\$\{(\w+)\}")


def want_whole(name: str, value: Any, least: int | None = None, hint: str | None = None) -> int:
    """Return ``value`` as an int. The value may be an integer of Python, numpy or torch, or a float such as 1e6. Raises
    UsageError for other values, and for values below ``least``."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r} is not a whole number", hint=hint) from None
    if least is not None and number < least:
        raise UsageError(f"{name}={number} must be at least {least}", hint=hint)
    return number


def want_word(name: str, value: Any, words: tuple[str, ...], hint: str | None = None) -> None:
    """Raise UsageError for a value that is not among ``words``."""
    if value not in words:
        *others, last = (f'"{one}"' for one in words)
        raise UsageError(f"{name}={value!r} is not one of {', '.join(others)} and {last}", hint=hint)


def want_size(name: str, value: Any) -> int:
    """Return a number of bytes, which ``value`` gives as a number or as text such as ``"256MB"``. Raises UsageError."""
    if isinstance(value, str):
        return parse_size(value)
    return want_whole(name, value, 0, hint=f'use, for example, {name}="256MB", or 0 for no bytes')


def cache_of(folder: Any, size_bytes: Any) -> tuple[str, int] | None:
    """Return the cache folder and its limit in bytes (0: no limit) from webdataset's arguments. Raises UsageError."""
    if folder is None:
        if size_bytes not in (-1, None):
            raise UsageError(
                f"cache_size={size_bytes!r} needs cache_dir=", hint='cache_dir="/scratch/shards"'
            )
        return None
    path = os.fspath(folder)
    if not isinstance(path, str) or not path:
        raise UsageError(f"cache_dir={folder!r} is not the name of a folder")
    path = os.path.abspath(os.path.expanduser(path))
    if size_bytes in (-1, None):
        return path, 0
    size = parse_size(size_bytes) if isinstance(size_bytes, str) else size_bytes
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 1 <= size < 1 << 63:
        raise UsageError(
            f"cache_size={size_bytes!r} is not a number of bytes", hint="use -1 to keep as many shards as fit"
        )
    return path, int(size)


def wanted_fields(fields: Any, known: Iterable[str] | None = None) -> list[str] | None:
    """Return the names in ``fields=``, a list or text with commas. With None, return None, which means all fields.
    ``known`` are the fields that the set is known to have. Warn if none of the names is among the known fields. Raises
    UsageError for values that are not names."""
    if fields is None:
        return None
    given: Any = fields.split(",") if isinstance(fields, str) else fields
    names: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"fields={fields!r}: the names of fields must be text", hint='fields=["jpg", "json"]'
        )
    warn_of_missing(names, known or ())
    return names


def warn_of_missing(names: Iterable[str], known: Iterable[str], where: str = "") -> None:
    """Warn if none of the fields ``names`` is among the ``known`` fields. ``where`` is text for the message that names
    a shard."""
    have = sorted(known)
    if have and names and not {name.lower() for name in names} & {name.lower() for name in have}:
        what = " or ".join(names)
        warn(f"no sample{where} has a field {what}; the fields are {', '.join(have)}", stacklevel=4)


def texts(keys: str | Sequence[str] | None) -> list[str] | None:
    """Return ``keys=`` as a list. Raises UsageError."""
    if keys is None or isinstance(keys, str):
        return None if keys is None else [keys]
    found: list[Any] = list(keys) if isinstance(keys, Iterable) else [None]
    if not all(isinstance(key, str) for key in found):
        raise UsageError(f"keys={keys!r}: keys must be text", hint='keys=["n01/*", "n02/img7"]')
    if not found:
        raise UsageError("keys= is empty", hint="keys=None keeps all samples")
    return found


@contextmanager
def in_code() -> Iterator[None]:
    """Rewrite the messages of errors in the ``with`` block, so that they name arguments instead of options of wds."""
    try:
        yield
    except (DataError, UsageError) as error:
        error.message = argument(error.message)
        error.hint = None if error.hint is None else argument(error.hint)
        raise


def argument(text: str) -> str:
    """Return ``text`` after options of wds were replaced by arguments of a call.

    >>> argument("--where is empty"), argument("--keys 'n01/*'"), argument("skip them with --on-error skip")
    ('where is empty', "keys='n01/*'", 'skip them with on_error="skip"')
    """
    text = re.sub(r"--on-error (\w+)", r'on_error="\1"', text)
    text = re.sub(r"--(where|keys) (?=')", r"\1=", text)
    return (
        re.sub(r"--(where|keys|sample)\b(?!-)", r"\1", text)
        .replace("--keys-from", "keys_from")
        .replace(" for --on", " for keys_from")
    )


def addresses_of(urls: Urls) -> list[str]:
    """Return ``urls`` as a list of addresses. ``${NAME}`` is replaced by the environment variable ``WDS_NAME``, as in
    webdataset. If this variable is not set, the shell of a ``pipe:`` address replaces ``${NAME}``. Raises
    UsageError."""
    if isinstance(urls, (str, os.PathLike)):
        urls = [urls]
    if isinstance(urls, dict) or not isinstance(urls, Iterable):
        raise UsageError(
            f"shards must be strings, not a {type(urls).__name__}",
            hint="use wds.mix({...}) for several sets, and MultiShardSample in a DataPipeline for a specification",
        )
    return [_address(url) for url in urls]


def _address(url: Any) -> str:
    if isinstance(url, dict) and "url" in url:  # an item of a list of shards, such as SimpleShardList
        url = url["url"]
    if not isinstance(url, (str, os.PathLike)):
        raise UsageError(f"a shard must be a string, not a {type(url).__name__}")
    address = os.fspath(url)
    if address.startswith("file:"):
        address = urlsplit(address).path
    if address.endswith((".yaml", ".yml")):
        raise UsageError(f"{address}: webdataset's specifications are not supported", hint="wds.mix({...})")
    return _VARIABLE.sub(lambda found: _variable(found, address), address)


def _variable(found: re.Match[str], address: str) -> str:
    value = os.environ.get(f"WDS_{found[1]}")
    if value is None:
        if address.startswith("pipe:"):
            return found[0]
        raise UsageError(
            f"{address}: the environment variable WDS_{found[1]} is not set",
            hint=f"export WDS_{found[1]}=..., or write the address without ${{{found[1]}}}",
        )
    return value
