"""Tests that run twice: with the compiled core, and with plain Python alone.

The tests of the folders and files in :data:`BOTH` do; all others run with what is there. Where no core was built,
tests/project/test_build.py says so. A test of the time or the memory of one of the two takes :func:`running_core` as
an argument and skips the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from wdscli.tar import core, crc

TESTS = Path(__file__).parent.parent
BOTH = [
    TESTS / "tar",
    TESTS / "samples",
    TESTS / "copy",
    TESTS / "commands" / "test_crafted_keys.py",
    TESTS / "loader" / "test_loader_errors.py",
    TESTS / "loader" / "test_loader_filters.py",
    TESTS / "loader" / "test_loader_indexed.py",
    TESTS / "loader" / "test_loader_renamed.py",
    TESTS / "loader" / "test_loader_streams.py",
]
ONLY_COMPILED = {"test_tar_crc.py"}


@functools.cache
def _is_for_both(path: Path) -> bool:
    return any(path == one or one in path.parents for one in BOTH) and path.name not in ONLY_COMPILED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _is_for_both(metafunc.definition.path):
        cores = ["plain"] if core.CORE is None else ["compiled", "plain"]
        metafunc.parametrize("running_core", cores, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def running_core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of the two runs, here and in programs that are started from here."""
    chosen = getattr(request, "param", "plain" if core.CORE is None else "compiled")
    with pytest.MonkeyPatch.context() as patch:
        if chosen == "plain":
            patch.setattr(core, "CORE", None)
            patch.setattr(crc, "CRC", None)
            patch.setenv("WDSCLI_PURE", "1")
        yield chosen
