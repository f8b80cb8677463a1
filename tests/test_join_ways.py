"""Joins by every way of doing them: with little memory and much, by gather and by spill, on one machine and others.

The plan of a way is compared row by row with that of another, and the output byte by byte.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from shard_cases import leftovers, tar_of
from test_join import Sample, Set, members, oracle, write

from wdscli.ops import joined, spill
from wdscli.ops.join import Join, join
from wdscli.ops.plan import Cuts
from wdscli.ops.reorder import Request
from wdscli.ops.spilled import SPILLED


def sets_of(count: int, total: int = 300) -> list[Set]:
    """Sets in different orders, each with keys that others have not, of several shapes, with fields in common."""
    rng = random.Random(count)
    made: list[Set] = []
    for number in range(count):
        some: list[Sample] = []
        for key in rng.sample(range(total + 50), total):
            fields = {f"s{number}": rng.randbytes(rng.choice([0, 1, 511, 512, 700])), "txt": b"%d" % number}
            if key % 3 == number:
                fields[f"more{number}"] = b"m"
            if key % 7 == 0:
                del fields["txt"]
            some.append((f"n{key % 5}/k{key}" + "x" * (85 if key % 11 == 0 else 0), fields))
        made.append(some)
    return made


def way(folder: Path, inputs: list[str], how: Join, **more: Any) -> dict[str, bytes]:
    """All shards of a join done in some way."""
    folder.mkdir()
    request = Request(inputs, f"{folder}/o-%03d.tar", cuts=Cuts(max_count=40), **{"jobs": 1, **more})
    join(request, how)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file()}


class TestSpill:
    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    @pytest.mark.parametrize("policy", ["left", "suffix"])
    def test_same_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, policy: Any
    ) -> None:
        inputs = write(tmp_path, sets_of(3), shards=3)
        wanted = way(tmp_path / "gather", inputs, Join(kind, policy), strategy="gather")
        assert len(wanted) > 4
        assert way(tmp_path / "spill", inputs, Join(kind, policy), strategy="spill") == wanted
        monkeypatch.setattr(spill, "BUCKET_ROWS", 64)
        monkeypatch.setattr(spill, "LEAST_BUCKET", 20_000)
        monkeypatch.setattr(joined, "BUFFER", 9000)
        monkeypatch.setattr(joined, "AT_ONCE", 7)
        assert way(tmp_path / "small", inputs, Join(kind, policy), strategy="spill") == wanted
        assert not leftovers(tmp_path)

    def test_samples_are_read_from_scratch_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sets = sets_of(2)
        inputs = write(tmp_path, sets)
        seen: set[int] = set()
        read = joined.Joiner._read

        def watched(self: Any, first: Any, views: Any) -> None:
            seen.add(first.file)
            read(self, first, views)

        monkeypatch.setattr(joined.Joiner, "_read", watched)
        join(Request(inputs, f"{tmp_path}/o.tar", strategy="spill", jobs=1), Join("left", "right"))
        assert min(seen) >= SPILLED
        assert (tmp_path / "o.tar").read_bytes() == tar_of(members(oracle(sets, "left", "right")))
