"""This module chooses between the compiled core and plain Python.

:data:`CORE` is the compiled module ``_core``, or None. The code reads :data:`CORE` at each use, so that a test can
remove it. ``WDSCLI_PURE=1`` in the environment disables it. An installation without a compiler has no core. Both paths
give the same columns, bytes and errors.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def _compiled(name: str) -> ModuleType | None:
    if os.environ.get("WDSCLI_PURE", "") not in ("", "0"):
        return None
    try:
        return import_module(f"wdscli.tar.{name}")
    except ImportError:
        return None


CORE = _compiled("_core")
CRC = _compiled("_crc")
"""The functions of ``_crc.c``, or None. They need instructions that not every processor has."""
