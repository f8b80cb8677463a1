"""The programs of the guides on frameworks, man/guides/train-*.md, with the real packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import check, check_packed


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers", "jax", "tensorflow"])
def test_a_program_of_the_guide(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    check(name, tmp_path)


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers"])
def test_a_program_with_packs(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    check_packed(name, tmp_path)
