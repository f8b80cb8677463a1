"""What ``wds --version`` says: the version, and which of the two cores runs.

How: the compiled core is loaded by its place, as ``tar/core.py`` would by its name, because the package around it is
not wanted for one line. It must not know what a core does.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from wdscli import __version__

_CORE = "wdscli.tar._core"


def version_line() -> str:
    """The line, without its end."""
    return f"wdscli {__version__} ({'compiled' if _is_compiled() else 'plain Python'} core)"


def _is_compiled() -> bool:
    if os.environ.get("WDSCLI_PURE", "") not in ("", "0"):
        return False
    if _CORE in sys.modules:
        return True
    spec = PathFinder.find_spec(_CORE, [os.path.join(os.path.dirname(__file__), "tar")])
    if spec is None or spec.loader is None:
        return False
    try:
        return spec.loader.create_module(spec) is not None
    except ImportError:
        return False
