"""The programs of README and of the guides on PyTorch; those for other frameworks are run by tests/interop."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import PROGRAMS, ROOT, TEXT, check
from torch_processes import Program

from wdscli.demo import write_pictures
from wdscli.shards import ShardWriter


def test_the_guides_have_a_program_for_each_framework() -> None:
    assert len(PROGRAMS) == TEXT.count("\n```python ") == 7


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["torch", "torchdata"])
def test_a_program_of_the_guide(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    check(name, tmp_path)


@pytest.mark.exhaustive
def test_the_program_of_the_readme(tmp_path: Path) -> None:
    """It trains two epochs; started again, it has nothing left to do."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    write_pictures(tmp_path / "photos", 40)
    with ShardWriter(f"{tmp_path}/set/train-%06d.tar", max_count=20) as writer:
        for number, picture in enumerate(sorted((tmp_path / "photos").rglob("*.jpg"))):
            writer.write(picture.stem, {"jpg": picture.read_bytes(), "cls": b"%d" % (number % 3)})
    program = tmp_path / "program.py"
    program.write_text((ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0])
    batches = [f"torch.Size([{size}, 96, 128, 3]) torch.Size([{size}])" for size in (16, 16, 8) * 2]
    for expected in (batches, []):
        ran = Program(program, cwd=tmp_path)
        printed, errors = ran.communicate()
        assert ran.wait() == 0, errors
        assert printed.splitlines() == expected
