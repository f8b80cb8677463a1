"""Quotas by class on disc are those in memory, whatever the groups, the ties and the blocks."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wdscli.ops import external, strata
from wdscli.ops.parts import parse_ratio, stratified
from wdscli.ops.strata import stratified_on_disc

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and runs of very few records."""
    monkeypatch.setattr(strata, "BLOCK", 4)
    monkeypatch.setattr(external, "LEAST_RUN", 8)
    monkeypatch.setattr(external, "LEAST_READ", 2)


def on_disc(folder: Path, digests: Any, classes: Any, seed: int, ratio: str, size: int) -> list[int]:
    number = itertools.count()
    folder = Path(tempfile.mkdtemp(dir=folder))

    def blocks() -> Iterator[tuple[Any, Any]]:
        for first in range(0, len(digests), size):
            yield digests[first : first + size], classes[first : first + size]

    found = stratified_on_disc(
        blocks(),
        int(classes.max(initial=-1)) + 1,
        seed,
        parse_ratio(ratio),
        lambda name: str(folder / f"{name}-{next(number)}"),
        1,
    )
    parts: list[int] = found.read(0, found.total)["part"].tolist()
    if parts:
        assert [path.name for path in folder.iterdir()] == [Path(found.path).name]
    return parts


@quick
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=90),
    st.integers(0, 3),
    st.sampled_from(["a=1", "a=1,b=1", "a=8,b=1,c=1", "a=0.001,b=0.999"]),
    st.integers(1, 30),
)
def test_as_in_memory(
    small: None, tmp_path: Path, samples: list[tuple[int, int]], seed: int, ratio: str, size: int
) -> None:
    digests = numpy.array([group for group, _ in samples], dtype=numpy.uint64)
    classes = numpy.array([kind for _, kind in samples], dtype=numpy.int64)
    expected = stratified(digests.copy(), classes, seed, parse_ratio(ratio)).tolist()
    assert on_disc(tmp_path, digests, classes, seed, ratio, size) == expected


@pytest.mark.parametrize("groups", [1, 40, 50_000])
def test_many_samples(tmp_path: Path, groups: int) -> None:
    """Blocks as they are: one group is in many of them, or many groups in one."""
    rng = numpy.random.default_rng(groups)
    digests = rng.integers(0, groups, 50_000).astype(numpy.uint64)
    classes = rng.integers(0, 300, 50_000)
    expected = stratified(digests.copy(), classes, 5, parse_ratio("a=7,b=2,c=1")).tolist()
    assert on_disc(tmp_path, digests, classes, 5, "a=7,b=2,c=1", 1 << 14) == expected
