"""webdataset's names that are no methods of a dataset. This package also has the names of its module ``compat``."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    # Not "compat" itself, which import_module sets here.
    module = None if name.startswith("__") else import_module("wdscli.loader.compat.compat")
    if module is not None and name in module.__all__:
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
