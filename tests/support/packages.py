"""Optional packages: a case of a test that needs one is skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDS_ZSTANDARD = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")
NEEDS_LZ4 = pytest.mark.skipif(find_spec("lz4") is None, reason="lz4 is not installed")
ZST = pytest.param("zst", marks=NEEDS_ZSTANDARD)
LZ4 = pytest.param("lz4", marks=NEEDS_LZ4)
