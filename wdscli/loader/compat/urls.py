"""What webdataset takes for shards, as addresses that wdscli takes: paths, lists of them, ``${VAR}``.

It must not know what an address stands for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from wdscli.errors import UsageError

Urls: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def addresses_of(urls: Urls) -> list[str]:
    """Addresses, in order. ``${NAME}`` is replaced by the variable ``WDS_NAME`` of the environment, as webdataset does,
    but in ``pipe:``, where it is the shell's unless there is such a variable. Raises UsageError."""
    if isinstance(urls, (str, os.PathLike)):
        urls = [urls]
    if isinstance(urls, dict) or not isinstance(urls, Iterable):
        raise UsageError(
            f"shards are named by strings, not by a {type(urls).__name__}",
            hint="several sets with weights: wds.mix({...})",
        )
    return [_address(url) for url in urls]


def _address(url: Any) -> str:
    if not isinstance(url, (str, os.PathLike)):
        raise UsageError(f"a shard is named by a string, not by a {type(url).__name__}")
    address = os.fspath(url)
    if address.startswith("file:"):
        address = urlsplit(address).path
    if address.endswith((".yaml", ".yml")):
        raise UsageError(f"{address}: webdataset's specifications are not read", hint="wds.mix({...})")
    return _VARIABLE.sub(lambda found: _variable(found, address), address)


def _variable(found: re.Match[str], address: str) -> str:
    value = os.environ.get(f"WDS_{found[1]}")
    if value is None:
        if address.startswith("pipe:"):
            return found[0]
        raise UsageError(f"{address}: WDS_{found[1]} is not in the environment")
    return value
