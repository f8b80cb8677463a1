"""Records on disc, sorted: against numpy, whatever the memory and the ties; and plans that are larger than memory."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wdscli.errors import OutputError
from wdscli.ops import external
from wdscli.ops.external import Stored, sort_by_values, sort_records, store
from wdscli.ops.value_order import order_by_values

KIND = numpy.dtype([("key", "<u8"), ("more", "<u2"), ("at", "<u4")])
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def new_path(tmp_path: Path) -> Callable[[str], str]:
    def new(name: str) -> str:
        return str(tmp_path / f"{name}-{os.urandom(6).hex()}")

    return new


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and reads of very few records, whatever the limit."""
    monkeypatch.setattr(external, "LEAST_RUN", 4)
    monkeypatch.setattr(external, "LEAST_READ", 2)
    monkeypatch.setattr(external, "BLOCK", 3)


def records(keys: list[int]) -> Any:
    rows = numpy.zeros(len(keys), dtype=KIND)
    rows["key"], rows["at"] = keys, numpy.arange(len(keys))
    return rows


def in_blocks(rows: Any, size: int) -> Iterator[Any]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


class TestNumbers:
    @quick
    @given(
        st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=120),
        st.integers(1, 40),
        st.sampled_from([1, 500, 3000, 1 << 20]),
    )
    def test_as_numpy_sorts(
        self, small: None, new_path: Any, keys: list[int], block: int, limit: int
    ) -> None:
        rows = records(keys)
        found = sort_records(in_blocks(rows, block), KIND, lambda some: some["key"], new_path, limit)
        expected = rows[numpy.lexsort((rows["at"], rows["key"]))]
        assert found.total == len(keys)
        assert found.read(0, found.total).tobytes() == expected.tobytes()
        assert b"".join(part.tobytes() for part in found.blocks(7)) == expected.tobytes()

    @pytest.mark.parametrize("keys", ["all equal", "sorted", "reversed", "random"])
    def test_many_records_in_little_memory(self, new_path: Any, tmp_path: Path, keys: str) -> None:
        count = 200_000
        made = {
            "all equal": numpy.full(count, 7),
            "sorted": numpy.arange(count),
            "reversed": numpy.arange(count)[::-1],
            "random": numpy.random.default_rng(1).integers(0, 1000, count),
        }[keys]
        rows = records(made.tolist())
        found = sort_records(in_blocks(rows, 10_000), KIND, lambda some: some["key"], new_path, 1 << 19)
        assert found.read(0, count).tobytes() == rows[numpy.argsort(made, kind="stable")].tobytes()
        # The runs are gone, the result is there.
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [count * KIND.itemsize]

    def test_nothing(self, new_path: Any) -> None:
        found = sort_records(iter([]), KIND, lambda some: some["key"], new_path, 1 << 20)
        assert found.total == 0
        assert len(found.read(0, 5)) == 0

    def test_a_disc_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError) as caught:
            sort_records([records([1])], KIND, lambda some: some["key"], lambda _: str(tmp_path / "no/x"), 9)
        assert "--tmp" in str(caught.value.hint)


class TestValues:
    @quick
    @given(
        st.lists(st.one_of(st.sampled_from([b"", b"a", b"b", b"a\0"]), st.binary(max_size=9)), max_size=80),
        st.integers(1, 30),
        st.sampled_from([1, 2000, 1 << 20]),
    )
    def test_as_python_sorts(self, new_path: Any, values: list[bytes], block: int, limit: int) -> None:
        rows = records([0] * len(values))
        blocks = [(values[at : at + block], rows[at : at + block]) for at in range(0, len(values), block)]
        found = sort_by_values(blocks, KIND, order_by_values, new_path, limit)
        expected = sorted(range(len(values)), key=values.__getitem__)
        assert found.read(0, found.total)["at"].tolist() == expected


class TestStored:
    def test_take_and_put(self, new_path: Any) -> None:
        rows = records(random.Random(3).choices(range(100), k=50))
        stored = store(in_blocks(rows, 8), KIND, new_path("x"))
        places = [3, 7, 49, 3]
        assert stored.take(places).tobytes() == rows[places].tobytes()
        changed = rows[[3, 9]].copy()
        changed["more"] = 5
        stored.put([3, 9], changed)
        rows["more"][[3, 9]] = 5
        assert Stored(stored.path, KIND, 50).read(0, 50).tobytes() == rows.tobytes()
