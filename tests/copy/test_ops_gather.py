"""What gather asks of the kernel, and that its buffers cannot be seen. Results are tested with the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from cold_files import announced_ranges, let_go_of
from reorders import shuffle
from shard_cases import numbered, outputs, samples_of, shuffled_by_the_book, write_shards

from wdscli.copy import copier as gathering
from wdscli.plan.cut import Cuts
from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.run.execute import run_plan
from wdscli.tar import core


@pytest.mark.parametrize("cold", [True, False])
def test_ranges_are_asked_for_ahead_where_they_lie_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    names = write_shards(tmp_path / "in", [numbered(30, f"p{n}-", [40_000]) for n in range(3)])
    expected = shuffled_by_the_book([samples_of(name) for name in names], 0)
    monkeypatch.setattr(gathering, "COPY_BUFFER_BYTES", 1 << 17)
    monkeypatch.setattr(gathering, "READ_AHEAD_BYTES", 1 << 19)
    announced = announced_ranges(monkeypatch)
    plan = make_plan(Request(names, f"{tmp_path}/out-%06d.tar", cuts=Cuts(shards=2), jobs=1), ShuffledOrder())
    if cold and any(not let_go_of(name) for name in names):
        pytest.skip("this file system keeps its files in memory")
    run_plan(plan)
    found = [one for path in outputs(tmp_path) for one in samples_of(path)]
    assert found == expected
    assert sum(length for _, length in announced) <= plan.size_bytes, "none twice"
    if cold:
        assert len(announced) > 20, announced
    else:
        assert announced == []


def test_a_sample_in_chunks_and_in_large_buffers_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many samples are looked at together."""
    names = write_shards(tmp_path / "in", [numbered(150, f"p{n}-", [n, 600]) for n in range(3)])
    made = []
    for name, chunk, buffer, compiled in (
        ("usual", 1 << 14, 1 << 20, core.CORE),
        ("one", 1, 1 << 12, core.CORE),
        ("few", 7, 1 << 14, core.CORE),
        ("exact", 64, 1 << 15, None),
    ):
        monkeypatch.setattr(gathering, "ROWS_PER_CHUNK", chunk)
        monkeypatch.setattr(gathering, "COPY_BUFFER_BYTES", buffer)
        monkeypatch.setattr(core, "CORE", compiled)
        shuffle(Request(names, f"{tmp_path}/{name}/out-%06d.tar", cuts=Cuts(shards=2), jobs=1))
        made.append([path.read_bytes() for path in sorted((tmp_path / name).rglob("*")) if path.is_file()])
    assert len(made[0]) == 5
    assert made[1] == made[2] == made[3] == made[0]
