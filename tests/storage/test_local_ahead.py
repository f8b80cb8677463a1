"""Ranges of files on a disc are announced to the kernel before they are read, and ranges in memory are not."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from cold_files import announced_ranges, let_go_of
from indexing import index
from reorders import sort
from shard_cases import numbered, write_shards

from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.fetch import Pool
from wdscli.plan.request import Request
from wdscli.selection import reading
from wdscli.storage import local, open_source

SAMPLES = 40


def forget(*paths: str) -> None:
    if not all(map(let_go_of, paths)):
        pytest.skip("this file system keeps its files in memory")


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Two indexed shards with samples of about 60 KB."""
    names = write_shards(tmp_path / "in", [numbered(SAMPLES, f"p{n}-", [60_000]) for n in range(2)])
    index(names)
    return names


def test_scattered_ranges_are_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    scattered = [(at, at + 5_000) for at in range(0, 4 << 20, 1 << 17)]
    forget(str(path))
    with open_source(str(path)) as source:
        announced = announced_ranges(monkeypatch)
        source.expect([(0, 4 << 20)])
        source.expect([(at, at + 1_000) for at in range(0, 100_000, 2_000)])
        assert announced == [], "the kernel reads in advance by itself"
        source.expect(reversed(scattered))
        assert announced == [(begin, 5_000) for begin, _ in scattered]
        announced.clear()
        source.read_at(0, 4 << 20)
        source.expect(scattered)
        assert announced == [], "all bytes are in memory"


@pytest.mark.parametrize("is_cold", [True, False])
def test_the_loader_announces_large_samples(
    shards: list[str], monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    pool = Pool(Catalog(shards))
    pool.one(0, 0), pool.one(1, 0)
    forget(*shards) if is_cold else [Path(name).read_bytes() for name in shards]
    announced = announced_ranges(monkeypatch)
    rows = numpy.arange(SAMPLES)
    pool.expect(rows % 2, rows[::-1].copy())
    assert len(announced) == (SAMPLES if is_cold else 0)
    found = pool.fetch(rows % 2, rows[::-1].copy())
    pool.close()
    assert len(found) == SAMPLES


def test_sort_announces_the_fields_that_it_sorts_by(
    shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel may keep some pages despite POSIX_FADV_DONTNEED, so all bytes count as cold.
    for module in (local, reading):
        monkeypatch.setattr(module, "is_cold", lambda descriptor, offset: True)
    announced = announced_ranges(monkeypatch)
    sort(Request(shards, f"{tmp_path}/out-%06d.tar", jobs=1), by=["cls"])
    assert sum(length < 5_000 for _, length in announced) >= 2 * SAMPLES
