"""Sets and worlds for the loader's tests: a source without files, and ranks and workers without processes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, zip_longest
from itertools import count as numbers_from
from math import ceil
from pathlib import Path
from typing import Any

import numpy
import pytest
from shard_cases import mix, tar_of

from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.batches import Rule, planned
from wdscli.loader.order.order import EpochOrder
from wdscli.loader.order.schedule import shares_of
from wdscli.loader.order.source import EpochReader, PositionSource
from wdscli.shards import ShardWriter

RAGGED = (13, 0, 1, 30, 7, 19, 2, 25, 4)
"""Samples of shards: 101 in all."""
TABLE_SAMPLES = 10_000
"""All samples of an epoch of so many are located at once."""


class Numbers(PositionSource):
    """A source of positions without files: the sample of shard s and place p is the number 1000 * s + p."""

    def __init__(
        self, counts: Sequence[int] = RAGGED, seed: int = 0, shuffle: Any = "window", window: int = 3
    ) -> None:
        self.counts = numpy.array(counts, dtype=numpy.int64)
        self.seed = seed
        self._how: dict[str, Any] = {"shuffle": shuffle, "window": window}

    def identity(self) -> dict[str, Any]:
        return {"fingerprint": f"numbers-{self.counts.sum()}", "seed": self.seed, **self._how}

    def length(self, epoch: int) -> int:
        return int(self.counts.sum())

    def reader(self, epoch: int) -> Any:
        counts = tuple(self.counts.tolist())
        if sum(counts) > TABLE_SAMPLES:
            return _Reader(_order(counts, self.seed, epoch, **self._how).locate)
        places = _places(counts, self.seed, epoch, *self._how.values())
        return _Reader(lambda positions: places[:, positions])


def _order(counts: Sequence[int], seed: int, epoch: int, shuffle: Any, window: int) -> EpochOrder:
    block = numpy.full(len(counts), 4, dtype=numpy.int64) if shuffle == "blocks" else None
    how: dict[str, Any] = {"shuffle": shuffle, "window": window, "block": block}
    return EpochOrder(numpy.array(counts, dtype=numpy.int64), seed=seed, epoch=epoch, **how)


@functools.lru_cache(256)
def _places(*order: Any) -> Any:
    """The shards and places of an epoch's samples, located once for all ranks, workers and worlds."""
    epoch = _order(*order)
    return numpy.array(epoch.locate(numpy.arange(epoch.total)))


class _Reader(EpochReader):
    def __init__(self, locate: Callable[[Any], Any]) -> None:
        self._locate = locate

    def read(self, positions: Any) -> list[Any]:
        shards, samples = self._locate(positions)
        return (1000 * shards + samples).tolist()  # type: ignore[no-any-return]

    def about(self, positions: Any, fact: Any) -> Any:
        return fact(_Facts(), *self._locate(positions))

    def close(self) -> None:
        pass


def value_of(number: int, expression: str) -> int:
    """The value of a sample of :class:`Numbers`: from 1 to the number in ``expression``."""
    return mix(number) % int(expression) + 1


class _Facts:
    """Keys and values of :class:`Numbers`, as a catalog has them."""

    def __init__(self, shard: int = 0) -> None:
        self._shard = shard

    @staticmethod
    @functools.cache
    def values(shard: int, expression: str) -> Any:
        return numpy.array([value_of(1000 * shard + place, expression) for place in range(1000)], dtype=float)

    @property
    def addresses(self) -> Any:
        """Shard ``number`` has the address \"shard number\"."""
        return {number: f"shard {number}" for number in range(len(RAGGED) + 9)}

    def table(self, shard: int) -> _Facts:
        return _Facts(shard)

    def key(self, place: int) -> str:
        return str(1000 * self._shard + place)

    def find(self, key: str) -> tuple[int, int]:
        return divmod(int(key), 1000)


def everything(counts: Sequence[int] = RAGGED) -> list[int]:
    """All samples of :class:`Numbers`, in order."""
    return [1000 * shard + place for shard, count in enumerate(counts) for place in range(count)]


class Cls:
    """The number in a sample's ``cls``; picklable, for workers that are spawned."""

    def __call__(self, sample: dict[str, Any]) -> int:
        return int(sample["cls"])


class Even:
    """A predicate."""

    def __call__(self, number: int) -> bool:
        return number % 2 == 0


def make_set(folder: Path, count: int = 101, max_count: int = 13, size: int = 10) -> str:
    """Samples with ``cls`` from 0 on and ``bin`` of ``size`` bytes, in shards of ``max_count``; the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with ShardWriter(f"{folder}/in-%06d.tar", max_count=max_count) as writer:
        for number in range(count):
            writer.write(f"n{number:04d}", {"bin": bytes([number % 251]) * size, "cls": b"%d" % number})
    return f"{folder}/in-manifest.json"


def make_ragged(folder: Path, counts: Sequence[int] = RAGGED) -> str:
    """Shards of so many samples, with neither manifest nor index; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, count in enumerate(counts):
        members = [(f"s{shard}-{place:03d}.cls", b"%d" % (1000 * shard + place)) for place in range(count)]
        (folder / f"r-{shard:03d}.tar").write_bytes(tar_of(members))
    return str(folder)


def key(*parts: int) -> int:
    """As man wdscli-loader has it."""
    state = mix(parts[0])
    for part in parts[1:]:
        state = mix(state ^ part)
    return state


def _blocks(quotas: Sequence[int], sets: Sequence[int], seed: int | None, phase: int) -> Iterator[int]:
    """The sets of a phase without end, from the words of wdscli.loader.order.schedule."""
    common = numpy.gcd.reduce([quotas[one] for one in sets])
    labels = [one for one in sets for _ in range(quotas[one] // common)]
    for block in numbers_from(0):
        if seed is None:
            yield from labels
            continue
        of_block = key(seed, 4, phase, block)
        yield from (labels[place] for place in sorted(range(len(labels)), key=lambda i: mix(of_block ^ i)))


def by_the_book(
    quotas: Sequence[int], lengths: Sequence[int], stop: str, seed: int | None
) -> list[tuple[int, int]]:
    """(set, how many it gave before) of one epoch, one after the other."""
    found: list[tuple[int, int]] = []
    given, sets = [0] * len(quotas), list(range(len(quotas)))
    for phase in range(len(quotas)):
        for one in _blocks(quotas, sets, seed, phase):
            if stop == "repeat" and all(have >= length for have, length in zip(given, lengths)):
                return found
            if stop != "repeat" and given[one] == lengths[one]:
                break
            found.append((one, given[one]))
            given[one] += 1
        if stop == "first":
            return found
        at = sets.index(one)
        sets = sets[at + 1 :] + sets[:at] if seed is None else sets[:at] + sets[at + 1 :]
    return found


def by_step(
    points: Sequence[tuple[int, Sequence[Any]]], size: int, seed: int | None, first: int, count: int
) -> list[tuple[int, int]]:
    """(set, how many it gave before) at each of the ``size`` positions of ``count`` steps from ``first`` on, from the
    words of wdscli.loader.order.schedule."""
    found: list[tuple[int, int]] = []
    given = [0] * len(points[0][1])
    for step in range(first + count):
        turn = Fraction(633 * step % 1024, 1024)
        ends = [0] + [ceil(size * end - turn) for end in accumulate(_shares(points, step))]
        labels = [one for one in range(len(given)) for _ in range(ends[one], ends[one + 1])]
        if seed is not None:
            of_step = key(seed, 4, 0, step)
            labels = [labels[place] for place in sorted(range(size), key=lambda i: mix(of_step ^ i))]
        for one in labels:
            if step >= first:
                found.append((one, given[one]))
            given[one] += 1
    return found


def _shares(points: Sequence[tuple[int, Sequence[Any]]], step: int) -> list[Fraction]:
    """The share of each set at a step."""
    before = [point for point in points if point[0] <= step][-1:] or points[:1]
    after = [point for point in points if point[0] > step][:1] or points[-1:]
    (start, old), (end, new) = before[0], after[0]
    part = Fraction(step - start, end - start) if start <= step < end else Fraction(0)
    olds, news = shares_of(old), shares_of(new)
    return [Fraction(one + part * (other - one)) / 65536 for one, other in zip(olds, news)]


def drawn_places(length: int, count: int, seed: int, epoch: int) -> list[int]:
    """The places of ``count`` samples of ``length`` that are drawn in an epoch, from the words of Thinned in
    wdscli.loader.order.source."""
    of_epoch = key(seed, epoch, 5)
    places = []
    for stretch in range(count):
        begin, end = length * stretch // count, length * (stretch + 1) // count
        places.append(begin + mix(of_epoch ^ stretch) % (end - begin))
    return sorted((place + key(of_epoch, 1)) % length for place in places)


def drawn_world(draw: random.Random, worlds: Sequence[int] = range(1, 9)) -> tuple[int, int]:
    """A number of ranks, and of workers of each: at most 8 ranks or processes."""
    ranks = draw.choice(worlds)
    return ranks, draw.randint(0, min(4, max(1, 8 // ranks)))


def _planned(values: Any, rule: Rule, *how: Any) -> Any:
    """The plan of a window, computed once for all ranks, workers and worlds: it depends on nothing else."""
    return _plan_of(values.tobytes(), values.shape, rule, *how)


@functools.lru_cache(1024)
def _plan_of(values: bytes, shape: tuple[int, ...], *how: Any) -> Any:
    return planned(numpy.frombuffer(values).reshape(shape), *how)


class World:
    """Ranks and workers of a simulated world, whose DataLoaders take a batch of each worker in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: int, workers: int) -> None:
        self._patch = monkeypatch
        self._patch.setattr("wdscli.loader.place.planned.planned", _planned)
        self.world = world
        self.workers = workers

    def _as_worker(self, worker: int, workers: int) -> None:
        self._patch.setattr("wdscli.loader.dataset.find_worker", lambda: (worker, workers))

    def of_rank(
        self, make: Callable[..., PositionDataset], rank: int, state: Any = None, epoch: int = 0
    ) -> list[Any]:
        """What the DataLoader of one rank gives."""
        lists = []
        for worker in range(max(1, self.workers)):
            data = make(rank=rank, world_size=self.world)
            data.set_epoch(epoch)
            if state is not None:
                data.load_state_dict(state)
            self._as_worker(worker, max(1, self.workers))
            lists.append(list(iter(data)))  # list(data) would plan the whole epoch for its length
            self._as_worker(0, 1)
        return [one for row in zip_longest(*lists, fillvalue=None) for one in row if one is not None]

    def batches(
        self, make: Callable[..., PositionDataset], state: Any = None, epoch: int = 0
    ) -> list[list[Any]]:
        """The global batches: of each the samples of all ranks, in the order of their positions."""
        ranks = [self.of_rank(make, rank, state, epoch) for rank in range(self.world)]
        assert len({len(batches) for batches in ranks}) == 1, "ranks see different numbers of batches"
        missing = object()
        return [
            [one for row in zip_longest(*those, fillvalue=missing) for one in row if one is not missing]
            for those in zip(*ranks)
        ]
