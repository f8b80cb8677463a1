"""Any sequence of iterating, leaving, saving, loading, setting epochs and changing ranks and workers: what comes is
always what the order says comes there."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any
from unittest import mock

import numpy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from loader_cases import RAGGED, Numbers
from tiers import examples

from wdscli.loader.dataset import PositionDataset

WHOLE = 12
WORLDS = st.sampled_from([1, 2, 3, 4])


@cache
def expected(epoch: int) -> list[list[int]]:
    """The global batches of an epoch, straight from the order: positions k*12 to (k+1)*12, the last one padded."""
    reader = Numbers(seed=9).reader(epoch)
    total = sum(RAGGED)
    padded = -(-total // WHOLE) * WHOLE
    line = reader.read(numpy.arange(padded, dtype=numpy.int64) % total)
    return [line[at : at + WHOLE] for at in range(0, padded, WHOLE)]


class Training(RuleBasedStateMachine):
    """Ranks that go in step. ``start`` and ``at`` are (epoch, batch): where iterations begin, what comes next."""

    states: Bundle[tuple[dict[str, Any], tuple[int, int]]] = Bundle("states")

    @initialize(world=WORLDS)
    def begin(self, world: int) -> None:
        self.ranks = self._of_world(world)
        self.start = self.at = (0, 0)
        self.running: list[Iterator[Any]] | None = None

    def _of_world(self, world: int) -> list[PositionDataset]:
        return [
            PositionDataset(Numbers(seed=9), rank=rank, world_size=world, tail="pad").listed(WHOLE // world)
            for rank in range(world)
        ]

    @staticmethod
    def _whole(batches: tuple[list[int], ...]) -> list[int]:
        return [one for row in zip(*batches) for one in row]

    @rule(count=st.integers(1, 5))
    def iterate(self, count: int) -> None:
        """A loop that goes on, or begins."""
        if self.running is None:
            self.running = [iter(data) for data in self.ranks]
            self.at = self.start
        for _ in range(count):
            epoch, batch = self.at
            given = [next(source, None) for source in self.running]
            if batch == len(expected(epoch)):
                assert given == [None] * len(given)
                self.start = self.at = (epoch + 1, 0)
                self.running = None
                return
            assert self._whole(tuple(one or [] for one in given)) == expected(epoch)[batch]
            self.at = (epoch, batch + 1)
            if batch + 1 == len(expected(epoch)):
                self.start = (epoch + 1, 0)  # whether more is asked for or not

    @rule()
    def leave(self) -> None:
        """The loop breaks, and its iterators are closed or only dropped."""
        for source in (self.running or [])[:1]:
            source.close()  # type: ignore[attr-defined]
        self.running = None

    @rule(epoch=st.integers(0, 4))
    def set_epoch(self, epoch: int) -> None:
        for data in self.ranks:
            data.set_epoch(epoch)
        if epoch != self.start[0]:
            self.start = (epoch, 0)
        self.at = self.start
        self.running = None

    @rule(target=states)
    def save(self) -> Any:
        return json.loads(json.dumps(self.ranks[-1].state_dict())), self.at

    @rule(saved=states, world=WORLDS)
    def load_in_another_world(self, saved: Any, world: int) -> None:
        self.ranks = self._of_world(world)
        self._load(saved)

    @rule(saved=states)
    def load_here(self, saved: Any) -> None:
        self._load(saved)

    def _load(self, saved: Any) -> None:
        state, place = saved
        for data in self.ranks:
            data.load_state_dict(copy.deepcopy(state))
        self.start = self.at = place
        self.running = None

    @rule(target=states, workers=st.integers(1, 5), count=st.integers(0, 9))
    def iterate_in_workers(self, workers: int, count: int) -> Any:
        """A plain DataLoader on each rank, of which the main process counts the batches."""
        self.running = None
        epoch, first = self.start
        left = expected(epoch)[first:]
        count = min(count, len(left))
        given = []
        for data in self.ranks:
            sources = []
            for worker in range(workers):
                with mock.patch("wdscli.loader.dataset.find_worker", lambda worker=worker: (worker, workers)):
                    sources.append(list(copy.deepcopy(data)))
            in_turn = (
                next(iter(sources[n % workers][n // workers : n // workers + 1])) for n in range(count)
            )
            given.append(list(islice(in_turn, count)))
        assert [self._whole(batches) for batches in zip(*given)] == left[:count]
        state = self.ranks[0].state_dict(batches=count)
        # Behind the last batch that was counted, the next epoch is next.
        saved = state, (epoch + 1, 0) if count == len(left) else (epoch, first + count)
        self._load(saved)
        return saved

    @invariant()
    def states_are_true_small_and_the_same(self) -> None:
        if not hasattr(self, "at") or self.running is None:
            return
        states = [data.state_dict() for data in self.ranks]
        assert all(state == states[0] for state in states)
        assert (states[0]["epoch"], states[0]["next"]) == self.at
        assert len(json.dumps(states[0])) < 1000


Training.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTraining = Training.TestCase
