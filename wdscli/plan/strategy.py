"""Which strategy makes the output, and why: what ``--strategy auto`` picks, and what ``-v`` and ``-n`` say.

What it is: :func:`choose`. How: from what is known before a payload is read: how long the runs are that lie side by
side in the inputs as in the output, where the inputs are, and what kind of disc. The choice changes no byte of the
output. It must not know how either strategy works.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from wdscli.plan.memory import available
from wdscli.plan.scratch import Input, Scratch
from wdscli.plan.table import PlanTable
from wdscli.storage import is_local
from wdscli.storage.addresses import local_path
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.plan.table import Ordered

Strategy = Literal["auto", "gather", "spill"]
LONG_BYTES = 1 << 20
"""Runs of so many bytes are read about as fast as a whole file, wherever they are."""
WORTH_BYTES = 32 << 20
"""Below this many bytes in all, a second pass never pays."""
_LOOKS = 16
_LOOK_ROWS = 4096


class Choice(NamedTuple):
    """A strategy and the reason for it."""

    strategy: str
    reason: str


def choose(asked: str, inputs: Sequence[Input], ordered: Ordered, tmp: str | None) -> Choice:
    """The strategy for this order over these inputs; ``tmp`` is the place of scratch space."""
    copies = _copies(inputs)
    if asked != "auto":
        return Choice(asked, f"as --strategy asks{copies}")
    run, total = mean_run(ordered)
    runs = f"in runs of {human_size(run)}"
    slow = _slow(inputs, total)
    if slow is None:
        return Choice("gather", f"all inputs can be read at any place, {runs}{copies}")
    if run >= LONG_BYTES or total < WORTH_BYTES:
        what = f"what is read lies {runs}" if run >= LONG_BYTES else f"{human_size(total)} are little to read"
        return Choice("gather", f"{slow}, but {what}{copies}")
    reason = f"{slow}, and samples lie scattered, {runs}"
    free = _free(tmp)
    if free is not None and free < total:
        return Choice(
            "gather", f"{reason}; but spilling needs {human_size(total)} and {human_size(free)} are free"
        )
    return Choice("spill", reason + copies)


def _copies(inputs: Sequence[Input]) -> str:
    copies = sum(1 for one in inputs if one.copy)
    if not copies:
        return ""
    return f"; {copies} of {len(inputs)} inputs copied first, because they can be read only once"


def mean_run(ordered: Ordered) -> tuple[int, int]:
    """Bytes that adjoin in the inputs as in the output, on average; and all bytes to be read, about. Looks at some
    thousands of samples all over."""
    total = ordered.total
    if not total:
        return 0, 0
    size = seen = runs = 0
    step = max(1, total // _LOOKS, _LOOK_ROWS)
    for first in range(0, total, step):
        rows = ordered.part(first, min(first + _LOOK_ROWS, total)).rows
        seen += len(rows)
        # Of no bytes is what stands for a part that a joined sample lacks.
        some = PlanTable(rows[rows["length"] > 0])
        ends = some.starts + some.lengths
        breaks = (some.shards[1:] != some.shards[:-1]) | (some.starts[1:] != ends[:-1])
        runs += 1 + int(breaks.sum())
        size += int(some.lengths.sum())
    return size // runs, size * total // seen


def _slow(inputs: Sequence[Input], total: int) -> str | None:
    """Why reading at any place is slow here, if it is."""
    remote = sum(1 for one in inputs if not one.is_near)
    if remote:
        return f"{remote} of {len(inputs)} inputs are remote"
    if total > available() and any(map(is_rotational, _folders(inputs))):
        return f"{human_size(total)} on a disc that turns are more than memory can hold"
    return None


def _folders(inputs: Sequence[Input]) -> set[str]:
    paths = (local_path(one.copy or one.address) for one in inputs)
    return {os.path.dirname(path) or "." for path in paths}


def is_rotational(path: str) -> bool:
    """Whether a path is on a disc whose head must move, as far as the kernel says."""
    with suppress(OSError, ValueError):
        device = os.stat(path).st_dev
        block = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
        for place in (block, os.path.join(os.path.realpath(block), "..")):
            with suppress(OSError), open(os.path.join(place, "queue/rotational"), encoding="ascii") as file:
                return file.read().strip() == "1"
    return False


def _free(tmp: str | None) -> int | None:
    if tmp is not None and not is_local(tmp):
        return None
    return Scratch(tmp).free_bytes()
