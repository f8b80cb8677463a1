"""The programs of the guides on frameworks, with the frameworks that the tests have; the others are in tests/interop."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import PROGRAMS, TEXT, check


def test_the_guides_have_a_program_for_each_framework() -> None:
    assert len(PROGRAMS) == TEXT.count("\n```python ") == 7


@pytest.mark.parametrize("name", ["torch", "torchdata"])
def test_a_program_of_the_guide(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    check(name, tmp_path)
