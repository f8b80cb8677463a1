"""Shards of a run that cuts them while it writes: ``wds map --max-count`` with a transform that may drop or multiply
samples.

The plan knows the calls of the transform, but not the shards, because the number of new samples is known last. So one
process takes the results of all calls in input order, and begins a new shard after ``max_count`` new samples. The cut
depends only on the results of the calls, not on processes. The receipt of each shard has the position of the next
shard: the input row of a call, and how many of its new samples are already written. A resumed run continues there.

This module does not know how a sample is transformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import Any, NamedTuple

from wdscli.executors import make_executor, run_tasks
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.run.existing import Existing, Run, find_existing
from wdscli.run.receipts import ShardTask, make_shard, read_receipt
from wdscli.samples.keys import KeySet
from wdscli.shards.writing import ShardSettings
from wdscli.shown import shown
from wdscli.transform.shards import CallResult, TransformMaker, write_samples

_MOST_IN_FLIGHT = 64
"""More than the number of shards whose commits may be pending when a run is killed."""

_NO_CALL = CallResult(0, ())


class RolledTask(NamedTuple):
    """The task for one shard."""

    address: str
    settings: ShardSettings


class Rolling:
    """Writes the new samples of calls to shards of at most ``max_count`` samples. The first call begins at input
    ``row``, and its first ``written`` samples are left out, because an earlier shard has them."""

    def __init__(self, calls: Iterator[CallResult], row: int, written: int, max_count: int) -> None:
        self._calls, self._max_count = calls, max_count
        self._row, self._written = row, written
        self._taken, self._samples = next(calls, _NO_CALL)

    def has_samples(self) -> bool:
        """Return whether more samples follow. If so, the current call has some of them."""
        while self._taken and self._written >= len(self._samples):
            self._row, self._written = self._row + self._taken, 0
            self._taken, self._samples = next(self._calls, _NO_CALL)
        return bool(self._taken)

    def write(self, task: RolledTask) -> PendingCommit[ShardInfo]:
        """Write the next shard. Raises DataError for a repeated key."""
        settings, keys, position = task.settings, KeySet(), (0, 0)
        if settings.witness is not None:
            witness: Callable[..., None] = settings.witness
            settings = settings._replace(witness=lambda *facts: witness(*facts, position=position))
        with settings.open(task.address) as shard:
            while shard.samples < self._max_count and self.has_samples():
                end = self._written + self._max_count - shard.samples
                write_samples(self._samples[self._written : end], shard, keys)
                self._written = min(end, len(self._samples))
            is_whole = self._written == len(self._samples)
            position = (self._row + self._taken, 0) if is_whole else (self._row, self._written)
            return shard.end()


def write_rolled(
    run: Run, shard_task: Callable[[Run, Existing, int, Any, Any], ShardTask]
) -> tuple[Run, dict[int, ShardInfo], Existing]:
    """Write the missing shards. Return the run with its final shards, the facts of these shards by number, and the kept
    shards. ``shard_task`` returns the task of a shard from the run, the kept shards, the shard's number, the task for
    the maker and the function that makes the shard. Raises the errors of tasks."""
    run = _with_shards(run, _existing_addresses(run))
    kept, position = _usable(run, find_existing(run))
    shards, output = dict(kept.shards), run.contents.outputs[0]
    if position is not None:
        make_task = partial(shard_task, run, kept)
        for info in _written(run, len(shards), position, make_task):
            run.progress.note(f"{shown(info.name)}: {info.samples} samples, {info.size_bytes} bytes")
            shards[len(shards)] = info
    run = _with_shards(run, [output.address(number) for number in range(len(shards))])
    run.maker.contents = run.contents
    return run, shards, kept


def _written(
    run: Run, first: int, position: tuple[int, int], make_task: Callable[[int, Any, Any], ShardTask]
) -> Iterator[ShardInfo]:
    """Write the shards from number ``first`` on, and yield their facts. The first of them begins at ``position``. A set
    without new samples has one empty shard."""
    maker, request, output = run.maker, run.plan.request, run.contents.outputs[0]
    assert isinstance(maker, TransformMaker)
    assert request.cuts.max_count is not None
    with maker.calls_from(position[0], run.progress) as calls, make_executor(1) as main_process:
        rolling = Rolling(calls, *position, request.cuts.max_count)
        tasks = (
            make_task(number, RolledTask(output.address(number), request.settings), rolling.write)
            for number in takewhile(lambda number: not number or rolling.has_samples(), count(first))
        )
        with closing(run_tasks(main_process, make_shard, tasks)) as results:
            yield from results
        run.progress.finish()


def _existing_addresses(run: Run) -> list[str]:
    """Return the addresses of the shards that an interrupted run may have left, from the first shard on."""
    if not run.plan.request.resume or run.contents.is_stream:
        return []
    output = run.contents.outputs[0]
    existing = set(output.existing())
    addresses = [output.address(number) for number in range(len(existing) + _MOST_IN_FLIGHT)]
    while addresses and addresses[-1] not in existing:
        addresses.pop()
    return addresses


def _with_shards(run: Run, addresses: Sequence[str]) -> Run:
    """Return the run with shards of these addresses in its plan."""
    shards = tuple(PlannedShard(address, 0, number, 0, 0, 0, 0) for number, address in enumerate(addresses))
    return run._replace(plan=replace(run.plan, contents=replace(run.contents, shards=shards)))


def _usable(run: Run, existing: Existing) -> tuple[Existing, tuple[int, int] | None]:
    """Return the existing shards that can be kept, and the position of the next shard, or None if the set is complete.
    Without the position, no shard can be kept."""
    total = len(run.contents.shards)
    numbers = list(takewhile(existing.shards.__contains__, range(total)))
    position: tuple[int, int] | None = (0, 0)
    if existing.manifests and len(numbers) == total:
        position = None
    elif numbers:
        receipt = read_receipt(run.contents.shards[numbers[-1]].address)
        if receipt is not None and receipt.position is not None:
            position = receipt.position
        else:
            numbers = []
    shards = {number: existing.shards[number] for number in numbers}
    return Existing(shards, frozenset(range(len(numbers), total)), existing.manifests), position
