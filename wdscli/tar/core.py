"""This module chooses between the compiled core and plain Python.

:data:`CORE` is the compiled module ``_core``, or None. The code reads :data:`CORE` at each use, so that a test can
remove it. ``WDSCLI_PURE=1`` in the environment disables it. An installation without a compiler has no core. Both paths
give the same columns, bytes and errors.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def _compiled() -> ModuleType | None:
    if os.environ.get("WDSCLI_PURE", "") not in ("", "0"):
        return None
    try:
        from wdscli.tar import _core
    except ImportError:
        return None
    return _core


CORE = _compiled()
