"""The order of an epoch is written down and pinned: golden values, and its description done again in plain Python."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from math import isqrt
from pathlib import Path
from typing import Any

import numpy
import pytest

from wdscli.loader.order import order
from wdscli.loader.order.order import EpochOrder, Permutation

COUNTS = (13, 0, 1, 30, 7, 19, 2, 25, 4)
MASK = (1 << 64) - 1


def ordered(counts: Any, lanes: int = order.LANES, cap: int = order.CAP, **how: Any) -> EpochOrder:
    """An order with other constants than the loader's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "LANES", lanes)
        patch.setattr(order, "CAP", cap)
        return EpochOrder(counts, **how)


def located(counts: Any = COUNTS, **how: Any) -> list[tuple[int, int]]:
    """(shard, sample) at every position."""
    one = ordered(numpy.array(counts, dtype=numpy.int64), **how)
    shards, samples = one.locate(numpy.arange(one.total, dtype=numpy.int64))
    return list(zip(shards.tolist(), samples.tolist()))


def digest(places: list[Any]) -> str:
    return hashlib.sha256(repr(places).encode()).hexdigest()[:16]


# The docstring of the module, done with nothing but integers.


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key(first: int, *others: int) -> int:
    state = mix(first)
    for other in others:
        state = mix(state ^ other)
    return state


def permuted(n: int, key: int, i: int, most: int) -> int:
    if n <= most:
        return sorted(range(n), key=lambda place: (mix(key ^ place), place))[i]
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    while True:
        left, right = divmod(i, b)
        for j in range(6):
            k = mix((key + j) & MASK)
            if j % 2 == 0:
                left = (left + mix(k ^ right)) % a
            else:
                right = (right + mix(k ^ left)) % b
        i = left * b + right
        if i < n:
            return i


def described(
    counts: Any,
    position: int,
    *,
    seed: int,
    epoch: int,
    window: int,
    lanes: int,
    cap: int,
    most: int = 1 << 20,
) -> tuple[int, int]:
    shards = [permuted(len(counts), key(seed, epoch, 1), i, most) for i in range(len(counts))]
    line = [(shard, sample) for shard in shards for sample in range(counts[shard])]
    total = len(line)
    lanes = min(lanes, total)
    lane, place = position % lanes, position // lanes
    lengths = [total // lanes + (one < total % lanes) for one in range(lanes)]
    n = lengths[lane]
    size = min(cap, -(-window * total // (len(counts) * lanes)))
    m = -(-n // size)
    number = next(i for i in range(m) if n * i // m <= place < n * (i + 1) // m)
    first, end = n * number // m, n * (number + 1) // m
    within = permuted(end - first, key(seed, epoch, 2, lane, number), place - first, most)
    return line[sum(lengths[:lane]) + first + within]


@pytest.mark.parametrize("most", [1 << 20, 3], ids=["sorted", "feistel"])
@pytest.mark.parametrize(
    "how",
    [
        {"seed": 0, "epoch": 0, "window": 64, "lanes": 8, "cap": 1 << 18},
        {"seed": 7, "epoch": 3, "window": 2, "lanes": 3, "cap": 1 << 18},
        {"seed": 1 << 63, "epoch": 1, "window": 5, "lanes": 200, "cap": 4},
        {"seed": 1, "epoch": 0, "window": 9, "lanes": 1, "cap": 6},
    ],
)
def test_the_description_done_again_gives_the_same_order(
    how: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "SORTED", most)
    expected = [described(COUNTS, position, **how, most=most) for position in range(sum(COUNTS))]
    assert located(**how) == expected
    assert sorted(expected) == [
        (shard, sample) for shard, count in enumerate(COUNTS) for sample in range(count)
    ]


@pytest.mark.parametrize("most", [1 << 20, 3], ids=["sorted", "feistel"])
def test_the_full_order_done_again(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "SORTED", most)
    line = [(shard, sample) for shard, count in enumerate(COUNTS) for sample in range(count)]
    expected = [line[permuted(len(line), key(5, 2, 3), position, most)] for position in range(len(line))]
    assert located(seed=5, epoch=2, shuffle="full") == expected


@pytest.mark.parametrize("most", [1 << 20, 3], ids=["sorted", "feistel"])
def test_the_order_of_shards_done_again(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are permuted as for the window order, and samples stay in order within them."""
    monkeypatch.setattr(order, "SORTED", most)
    shards = [permuted(len(COUNTS), key(5, 2, 1), place, most) for place in range(len(COUNTS))]
    expected = [(shard, sample) for shard in shards for sample in range(COUNTS[shard])]
    assert located(seed=5, epoch=2, shuffle="shards") == expected
    assert located(seed=5, epoch=3, shuffle="shards") != expected


def described_blocks(
    counts: Any, block: Any, seed: int, epoch: int, window: int, most: int, group: int
) -> Any:
    """The order of blocks, as the page has it."""
    blocks = [min(n, max(1, n // b)) for n, b in zip(counts, block)]
    shards = [permuted(len(counts), key(seed, epoch, 1), i, most) for i in range(len(counts))]
    g = -(-sum(blocks) // group)
    for e in range(g):
        line = []
        of_group = shards[len(shards) * e // g : len(shards) * (e + 1) // g]
        p = max(1, len(of_group) // window)
        for s in of_group:
            n, m, v = counts[s], blocks[s], key(seed, epoch, 11, s) >> 32
            hashes = [key(seed, epoch, 11, s, j) for j in range(m)]
            for r, j in enumerate(sorted(range(m), key=lambda j: hashes[j])):
                samples = [(s, i) for i in range(n * j // m, n * (j + 1) // m)]
                place = ((r << 32) + ((mix(hashes[j]) % p << 32) + v) // p) // m
                line.append((place, shards.index(s), j, samples))
        line.sort()
        c, q = len(line), -(-len(line) // window)
        for i in range(q):
            samples = [one for *_, some in line[c * i // q : c * (i + 1) // q] for one in some]
            lanes = min(8, len(samples), sum(counts))
            sizes = [len(samples) // lanes + (one < len(samples) % lanes) for one in range(lanes)]
            parts = []
            for lane, n in enumerate(sizes):
                of_lane = key(seed, epoch, 12, e, i, lane)
                places = [permuted(n, of_lane, place, most) for place in range(n)]
                parts.append([samples[sum(sizes[:lane]) + place] for place in places])
            yield from (parts[p % lanes][p // lanes] for p in range(len(samples)))


@pytest.mark.parametrize("most", [1 << 20, 3], ids=["sorted", "feistel"])
@pytest.mark.parametrize("group", [1 << 16, 7], ids=["one-group", "groups"])
@pytest.mark.parametrize("window", [1, 3, 64])
def test_the_order_of_blocks_done_again(
    window: int, group: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "SORTED", most)
    monkeypatch.setattr(order, "GROUP", group)
    block = (3, 3, 5, 4, 1, 30, 1, 6, 2)
    expected = [*described_blocks(COUNTS, block, 5, 2, window, most, group)]
    how: dict[str, Any] = {"seed": 5, "epoch": 2, "shuffle": "blocks", "window": window}
    assert located(**how, block=numpy.array(block)) == expected
    assert sorted(expected) == [
        (shard, sample) for shard, count in enumerate(COUNTS) for sample in range(count)
    ]


@pytest.mark.parametrize("shuffle", order.ORDERS)
@pytest.mark.parametrize("most", [1 << 20, 3], ids=["sorted", "feistel"])
def test_a_sample_is_found_at_its_position(shuffle: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "SORTED", most)
    monkeypatch.setattr(order, "GROUP", 9)
    counts = numpy.array(COUNTS, dtype=numpy.int64)
    for window, lanes, seed in ((64, 8, 0), (3, 5, 1), (1, 1, 2)):
        how: dict[str, Any] = {"window": window, "lanes": lanes, "seed": seed, "block": counts // 3 + 1}
        one = ordered(counts, shuffle=shuffle, epoch=seed, cap=7, **how)
        places = located(shuffle=shuffle, epoch=seed, cap=7, **how)
        assert [one.find(*place) for place in places] == [*range(one.total)]


@pytest.mark.parametrize("counts", [(1000,) * 512, (2000,) * 64], ids=["512 shards", "64 shards"])
def test_a_batch_of_blocks_has_samples_of_most_shards(counts: tuple[int, ...]) -> None:
    places = located(counts, shuffle="blocks", block=numpy.full(len(counts), 40))
    distinct = [len({shard for shard, _ in places[at : at + 256]}) for at in range(0, len(places) - 255, 256)]
    assert min(distinct) >= 48


def test_a_batch_of_blocks_of_ragged_shards_has_samples_of_many_shards() -> None:
    counts = [1500 + 53 * number % 1000 for number in range(64)]
    places = located(counts, shuffle="blocks", block=numpy.full(64, 40))
    distinct = [len({shard for shard, _ in places[at : at + 256]}) for at in range(0, len(places) - 255, 256)]
    assert min(distinct) >= 48


def test_no_shuffle_is_the_order_of_the_shards() -> None:
    line = [(shard, sample) for shard, count in enumerate(COUNTS) for sample in range(count)]
    assert located(shuffle="none", seed=4, epoch=9) == line


# Pinned: these may never change, or every state and every seed that anybody wrote down means something else.


def test_golden_windows() -> None:
    assert located(seed=0, epoch=0)[:8] == GOLDEN_FIRST
    assert digest(located(seed=0, epoch=0)) == GOLDEN["window"]
    assert digest(located(seed=42, epoch=7, window=2, lanes=3, cap=5)) == GOLDEN["window, small"]
    assert digest(located((5000, 3, 70000, 1) * 9, seed=3, epoch=1)) == GOLDEN["window, large"]


def test_golden_full() -> None:
    assert digest(located(seed=0, epoch=0, shuffle="full")) == GOLDEN["full"]


def test_golden_shards() -> None:
    assert digest(located(seed=0, epoch=0, shuffle="shards")) == GOLDEN["shards"]


def test_golden_blocks() -> None:
    how: dict[str, Any] = {"shuffle": "blocks", "block": numpy.array((3, 3, 5, 4, 1, 30, 1, 6, 2))}
    assert located(seed=0, epoch=0, **how)[:8] == GOLDEN_BLOCKS
    assert digest(located(seed=0, epoch=0, **how)) == GOLDEN["blocks"]
    assert digest(located(seed=42, epoch=7, window=2, lanes=3, **how)) == GOLDEN["blocks, small"]
    large = numpy.full(36, 9)
    found = located((5000, 3, 70000, 1) * 9, seed=3, epoch=1, shuffle="blocks", block=large)
    assert digest(found) == GOLDEN["blocks, large"]


def test_golden_permutations() -> None:
    places = numpy.arange(50, dtype=numpy.int64)
    assert Permutation(50, 123).at(places).tolist()[:6] == GOLDEN_SORTED
    assert Permutation((1 << 20) + 1, 123).at(places).tolist()[:6] == GOLDEN_FEISTEL
    huge = Permutation(10**12, (1 << 64) - 1).at(numpy.array([0, 1, 10**12 - 1]))
    assert huge.tolist() == GOLDEN_HUGE


@pytest.mark.parametrize("count", [1, 2, 3, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1_500_007])
def test_a_permutation_has_everything_once(count: int) -> None:
    found = Permutation(count, 9).at(numpy.arange(count, dtype=numpy.int64))
    assert len(numpy.unique(found)) == count
    assert found.min() == 0
    assert found.max() == count - 1


def test_seeds_and_epochs_make_other_orders() -> None:
    orders = {tuple(located(seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


# Uniformity: over seeds, each sample is as often at each position as chance allows.


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("most", [1 << 20, 3], ids=["sorted", "feistel"])
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_every_sample_comes_to_every_position_as_often(
    shuffle: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 samples of 3 shards, 2500 seeds: chi squared with 23 x 23 degrees of freedom is 529 on average, with a
    deviation of 33. A window over all shards mixes all samples within a lane, and shards among lanes."""
    monkeypatch.setattr(order, "SORTED", most)
    counts = numpy.array([8, 8, 8], dtype=numpy.int64)
    places = numpy.arange(24, dtype=numpy.int64)
    seen = numpy.zeros((24, 24))
    seeds = 2500
    for seed in range(seeds):
        one = ordered(counts, seed=seed, shuffle=shuffle, window=3, lanes=1)
        shards, samples = one.locate(places)
        seen[places, shards * 8 + samples] += 1
    expected = seeds / 24
    chi_squared = ((seen - expected) ** 2 / expected).sum()
    assert 529 - 5 * 33 < chi_squared < 529 + 5 * 33


@pytest.mark.exhaustive
def test_lanes_let_every_shard_come_anywhere() -> None:
    """Where a shard's samples come differs by seed: with 8 lanes, every one of 16 shards is in the first 8 positions of
    some seeds, about as often as any other."""
    seen = numpy.zeros(16)
    for seed in range(2000):
        one = EpochOrder(numpy.full(16, 10, dtype=numpy.int64), seed=seed, window=2)
        seen[one.locate(numpy.arange(8, dtype=numpy.int64))[0]] += 1
    expected = seen.sum() / 16
    assert ((seen - expected) ** 2 / expected).sum() < 15 + 5 * 5.5


def test_a_batch_has_samples_of_a_windows_shards() -> None:
    places = located((100,) * 64, seed=1, window=16)
    distinct = [len({shard for shard, _ in places[at : at + 64]}) for at in range(0, 6400, 64)]
    assert sum(distinct) / len(distinct) > 15


BILLION = """
import json, sys
sys.path.insert(0, {tests!r})
import numpy
from loader_cases import Numbers
from wdscli.loader.dataset import PositionDataset

counts = numpy.full(100_000, 10_000, dtype=numpy.int64)
counts[::2] += 7
counts[1::2] -= 7
data = PositionDataset(Numbers(counts, seed=3, shuffle={shuffle!r}, window=64), rank=5, world_size=8).listed(128)
state = data.state_dict()
for number in (0, 1, 123_456, 488_280, 976_561):
    data.load_state_dict({{**state, "epoch": number % 7, "next": number}})
    batch = next(iter(data))
    assert len(set(batch)) == 128
with open("/proc/self/status") as file:
    [peak] = [int(line.split()[1]) for line in file if line.startswith("VmHWM")]
print(peak)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("shuffle", ["window", "blocks", "full"])
def test_a_billion_samples_in_a_hundred_thousand_shards(shuffle: str) -> None:
    """Any batch takes less than 200 MB: nothing is made for each sample."""
    script = BILLION.format(tests=str(Path(__file__).parents[1] / "support"), shuffle=shuffle)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200 * 1000  # KiB


GOLDEN_FIRST: list[tuple[int, int]] = [(5, 6), (3, 1), (3, 13), (3, 20), (4, 1), (0, 12), (7, 10), (7, 17)]
GOLDEN_BLOCKS: list[tuple[int, int]] = [(7, 8), (3, 6), (7, 1), (7, 15), (5, 3), (5, 18), (3, 25), (3, 17)]
GOLDEN: dict[str, str] = {
    "window": "55f4e6b86cc38832",
    "window, small": "e4b14313cd5919c6",
    "window, large": "09f69a50e70ac654",
    "blocks": "bc2b12e11bbe1b1b",
    "blocks, small": "07a1d5511a0c95a3",
    "blocks, large": "79d4a31e945f62ff",
    "full": "14a13931d841fee3",
    "shards": "1edea4a3b8f33f7a",
}
GOLDEN_SORTED: list[int] = [3, 40, 41, 29, 1, 28]
GOLDEN_FEISTEL: list[int] = [771442, 1019640, 236217, 87126, 814809, 667576]
GOLDEN_HUGE: list[int] = [162045804198, 915300332464, 444987121]
