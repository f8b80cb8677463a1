"""Which of the two paths runs: the compiled core, or plain Python alone.

What it is: :data:`CORE`, the compiled module ``_core`` or None. How: who has a hot loop asks for it each time, so that
a test can take it away. ``WDSCLI_PURE=1`` in the environment takes it away from the start, as does an installation
without a compiler. Both paths give the same columns, the same bytes and the same errors.

It must not know what either path does.
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
