"""One shard, made once: what runs in a worker for each shard of a plan.

What it is: :func:`make`, around a task such as :func:`~wdscli.copy.copier.gather`. How: tasks may be run twice (a
scheduler that lost a worker, an array job that was sent again), so a shard that is there already is a success when an
earlier attempt of the same plan has made it, and an error when anybody else has. It must not know how a shard is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wdscli.errors import OutputExistsError
from wdscli.model import ShardInfo
from wdscli.run.post import run_post
from wdscli.run.receipts import CheckTask, Witness, check_shard, read_receipt
from wdscli.shards.writing import after_hook


class Making(NamedTuple):
    """``work(task)`` makes the shard; the task has an ``address`` and ``settings``, which the witness is in. ``post``
    is the command that is run for the shard once it has its name."""

    work: Callable[[Any], ShardInfo]
    task: Any
    witness: Witness | None = None
    post: str | None = None


def make(making: Making) -> ShardInfo:
    """Make one shard, or find that it is made. Raises what ``work`` raises, and EngineError when the command that
    follows fails; the shard stays."""
    try:
        info = _made(making, making.task)
    except OutputExistsError:
        earlier = None if making.witness is None else _earlier(making.witness, making.task)
        if earlier is None:
            raise
        if earlier[1] == "whole":
            return earlier[0]
        settings = making.task.settings._replace(force=True)
        info = _made(making, making.task._replace(settings=settings))
    if making.witness is not None and not making.witness.posted:
        making.witness.done(making.task.address)
    return info


def _made(making: Making, task: Any) -> ShardInfo:
    info = making.work(task)
    if making.post is not None:
        run_post(making.post, task.address)
        return after_hook(info, task.address)
    return info


def _earlier(witness: Witness, task: Any) -> tuple[ShardInfo, str] | None:
    """What an earlier attempt has made, and how far it came; None when it was somebody else."""
    receipt = read_receipt(task.address)
    if receipt is None or receipt.mark != witness.mark:
        return None
    state = check_shard(CheckTask(task.address, receipt.shard, receipt.index_seal, task.settings.form))
    if state == "other":
        return None
    return receipt.shard, state if receipt.posted else "unposted"
