"""How well mixed the orders of training are: ours beside webdataset's buffer and MosaicML's py1e, in one table.

What it is: the part behind ``scripts/bench --order``. How: a set of ``SHARDS`` equal shards that is never written, and
the order of one epoch as numbers of its samples, in global batches of ``BATCH`` samples over all ranks. Nothing of a
peer is done again here: webdataset's own functions deal out and shuffle, MosaicML's own functions permute and divide,
loaded without the rest of their package, which wants torch and more. The numbers are those of ``wds shuffle
--measure``. Nothing is random but by seed, so that the table comes out the same each time.

A rank's batch comes from one worker, and from its workers in turn, as with torch's DataLoader.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple

import numpy

from wdscli.loader.order.order import EpochOrder
from wdscli.look.quality import Mixing, measure

SHARDS, EACH, BATCH, WORKERS = 512, 1000, 256, 4
RANKS = (1, 8)
WINDOWS = (16, 64, 256)
BUFFERS = (1_000, 10_000)
"""Of webdataset's samples. Its ``shardshuffle`` holds all shards that a worker has."""
BLOCK = 40
"""Samples of a block of ``shuffle="blocks"``: 4 MB of pictures."""
BLOCKS = (None, 1 << 16)
"""MosaicML's ``shuffle_block_size``: its default, and about as many samples as lie in our window."""


class Row(NamedTuple):
    """An order: ``ranks`` 0 stands for any. ``in_use`` is how many shards are begun and not done with, at most."""

    name: str
    ranks: int
    mixing: Mixing
    in_use: int | None

    def cells(self) -> list[str]:
        """As they are printed."""
        one = self.mixing
        return [
            self.name,
            str(self.ranks or "any"),
            f"{one.shards_per_window:.1f}",
            "" if one.fewest_shards is None else str(one.fewest_shards),
            f"{one.displacement:,.0f}",
            f"{abs(one.correlation or 0):.2f}",
            "" if self.in_use is None else str(self.in_use),
        ]


HEADS = ["order", "ranks", "shards", "fewest", "moved", "corr", "in use"]
"""``shards`` in a batch, on average and at the ``fewest``; how far a sample is ``moved``, on average; ``corr``, the
correlation (Spearman's) of places before and after; ``in use`` as in :class:`Row`."""


def row(name: str, ranks: int, samples: Any) -> Row:
    """The numbers of an order, given as the sample at each position."""
    order = numpy.asarray(samples, dtype=numpy.int64)
    found = measure(numpy.repeat(numpy.arange(SHARDS), EACH), order, None, BATCH)
    return Row(name, ranks, found.output, in_use(order // EACH))


def in_use(shards: Any) -> int:
    """How many shards are begun and not done with, at most."""
    firsts = numpy.unique(shards, return_index=True)[1]
    lasts = len(shards) - 1 - numpy.unique(shards[::-1], return_index=True)[1]
    changes = numpy.zeros(len(shards) + 1, dtype=numpy.int64)
    numpy.add.at(changes, firsts, 1)
    numpy.add.at(changes, lasts + 1, -1)
    return int(changes.cumsum().max())


def ours() -> Iterator[Row]:
    """The same for any ranks and workers."""
    counts = numpy.full(SHARDS, EACH, dtype=numpy.int64)
    positions = numpy.arange(SHARDS * EACH, dtype=numpy.int64)
    for window in WINDOWS:
        shards, samples = EpochOrder(counts, window=window).locate(positions)
        yield row(f"window={window}", 0, shards * EACH + samples)
    blocks = EpochOrder(counts, shuffle="blocks", block=numpy.full(SHARDS, BLOCK, dtype=numpy.int64))
    shards, samples = blocks.locate(positions)
    yield row('shuffle="blocks"', 0, shards * EACH + samples)
    shards, samples = EpochOrder(counts, shuffle="full").locate(positions)
    yield row('shuffle="full"', 0, shards * EACH + samples)
    mean = measure(numpy.repeat(numpy.arange(SHARDS), EACH), None, None, BATCH).random
    yield Row("random, on average", 0, mean, None)


def webdatasets(buffer: int, ranks: int) -> Row:
    """``WebDataset(shards, shardshuffle=SHARDS, nodesplitter=split_by_node).shuffle(buffer)``."""
    lines = [
        [buffered_samples(buffer, rank, ranks, worker) for worker in range(WORKERS)] for rank in range(ranks)
    ]
    return row(f"webdataset, shuffle({buffer:,})", ranks, list(in_batches(lines)))


def buffered_samples(buffer: int, rank: int, ranks: int, worker: int) -> Iterator[int]:
    """What one worker gives: its shards, shuffled, and their samples, through a buffer."""
    from webdataset.filters import _shuffle

    mine = islice(
        islice(range(SHARDS), rank, None, ranks), worker, None, WORKERS
    )  # split_by_node, split_by_worker
    shards = _shuffle(mine, SHARDS, rng=random.Random(rank * WORKERS + worker))
    samples = (shard * EACH + place for shard in shards for place in range(EACH))
    return _shuffle(samples, buffer, rng=random.Random(1000 + rank * WORKERS + worker))  # type: ignore[no-any-return]


def in_batches(lines: list[list[Iterator[int]]]) -> Iterator[int]:
    """Global batches out of what each worker of each rank gives."""
    share = BATCH // len(lines)
    for number in range(SHARDS * EACH // BATCH):
        for workers in lines:
            yield from islice(workers[number % WORKERS], share)


def mosaics(block: int | None, ranks: int) -> Row:
    """StreamingDataset on one node, with the defaults of everything but ``shuffle_block_size``."""
    get_shuffle, get_partitions = mosaic_functions()
    sizes = numpy.full(SHARDS, EACH, dtype=numpy.int64)
    shuffled = get_shuffle(sizes, 1, 0, 0, block or max(4_000_000, 1 << 18))
    parts = get_partitions("relaxed", SHARDS * EACH, 1, 1, ranks, WORKERS, BATCH // ranks)
    # (node, rank, worker, batch, sample) -> (batch, worker, rank, sample): as they come
    positions = parts[0].transpose(2, 1, 0, 3).reshape(-1)
    name = "py1e, default block" if block is None else f"py1e, block {block:,}"
    return row(name, ranks, shuffled[positions[positions >= 0]])


def skip_beginning(*names: str) -> None:
    """Let parts of packages be imported without the packages' own beginnings."""
    for name in names:
        spec = find_spec(name)
        if spec is not None and name not in sys.modules:
            package = sys.modules[name] = ModuleType(name)
            package.__spec__ = spec
            package.__path__ = list(spec.submodule_search_locations or [])


MOSAIC = "streaming", "streaming.base"
"""Whose beginnings import torchvision and clients of clouds."""


def mosaic_functions() -> tuple[Any, Any]:
    """py1e and the division among ranks."""
    skip_beginning(*MOSAIC)
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle.py1e import get_shuffle_py1e

    return get_shuffle_py1e, get_partitions


def peers() -> Iterator[Row]:
    """Of those that are installed; the others are skipped by name."""
    made: list[tuple[str, Iterable[Any]]] = [
        ("webdataset", [partial(webdatasets, size, ranks) for ranks in RANKS for size in BUFFERS]),
        ("streaming", [partial(mosaics, block, ranks) for ranks in RANKS for block in BLOCKS]),
    ]
    for package, functions in made:
        if find_spec(package) is None:
            print(f"skipped: {package} is not installed", file=sys.stderr)
            continue
        for function in functions:
            yield function()


def table(rows: Iterable[Row]) -> str:
    """Rows under their heads, in columns."""
    lines = [HEADS, *(one.cells() for one in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() + "\n"
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench --order", description=__doc__.splitlines()[0])
    parser.parse_args()
    print(f"{SHARDS} shards of {EACH:,} samples, global batches of {BATCH}, {WORKERS} workers a rank")
    print(table([*ours(), *peers()]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
