"""Who reads what: the rank of this process among those that train together, and this worker among the rank's.

What it is: :class:`Share`, and where it is found: arguments, ``torch.distributed`` when it is in use, or what launchers
put into the environment; the worker from ``torch.utils.data`` when it is loaded. torch is never imported here: whoever
uses it has it in ``sys.modules``. It must not know what is read.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Horovod's and most others
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    # Not SLURM_NTASKS: the batch script itself has it too, and is no rank of so many.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Share(NamedTuple):
    """Rank ``rank`` of ``world`` ranks, worker ``worker`` of the rank's ``workers``; both count from 0."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1


def find_rank(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """(rank, world size): as given, else as torch.distributed says when it is initialised, else as the launcher says,
    else (0, 1). Raises UsageError for half an answer or an impossible one."""
    if rank is None and world is None:
        found = (0, 1) if is_dealt_out() else launched_rank() or (0, 1)
    elif rank is None or world is None:
        raise UsageError("rank and world_size belong together", hint="give both or neither")
    else:
        found = want_whole("rank", rank), want_whole("world_size", world)
    if not 0 <= found[0] < found[1]:
        raise UsageError(f"rank {found[0]} of {found[1]} is impossible", hint="ranks count from 0")
    return found


def launched_rank() -> tuple[int, int] | None:
    """(rank, world size) as torch.distributed or the launcher says, None when neither does. Raises UsageError for what
    are no numbers."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in LAUNCHERS:
        if os.environ.get(rank) and os.environ.get(world):
            try:
                return int(os.environ[rank]), int(os.environ[world])
            except ValueError:
                raise UsageError(
                    f"{rank}={os.environ[rank]} and {world}={os.environ[world]} are no numbers",
                    hint="unset them, or give rank= and world_size=",
                ) from None
    return None


def rank_in(group: Any) -> tuple[int, int]:
    """(rank, world size) in a group of torch.distributed, None for that of :func:`find_rank`."""
    if group is None:
        return find_rank()
    from torch import distributed

    return int(distributed.get_rank(group)), int(distributed.get_world_size(group))


DEALERS = ("BatchSamplerShard", "DataLoaderDispatcher", "IterableDatasetShard")
"""Classes of accelerate, and of transformers before it, which deal out to the ranks what one loader gives."""


DEALING = ("__iter__", "__len__", "_iter_with_no_split", "_iter_with_split", "set_epoch")
"""Their methods that call."""


def is_dealt_out() -> bool:
    """Whether one of the callers deals out to all ranks what this process reads. They tell nobody: this looks at who
    calls, which in a worker that was forked is also who started it."""
    if sys.modules.keys().isdisjoint(("accelerate", "transformers")):
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in DEALING:
            kinds = type(frame.f_locals.get("self")).__mro__
            if any(kind.__name__ in DEALERS for kind in kinds):
                return True
        frame = frame.f_back
    return False


def workers_of_caller() -> int:
    """The workers of the DataLoader in whose ``__len__`` the caller's length is asked for; 1 elsewhere."""
    frame = sys._getframe(2)
    loader = frame.f_locals.get("self") if frame.f_code.co_name == "__len__" else None
    return max(1, getattr(loader, "num_workers", 1))


def taken_by_caller(length: int) -> int | None:
    """How many of ``length`` samples a DataLoader without workers takes that iterates the caller: those of whole
    batches, where it drops the last one; None elsewhere."""
    if "torch.utils.data" not in sys.modules:
        return None
    frame: Any = sys._getframe(2)
    for _ in range(6):  # fetcher, its maker, iterator, loader
        loader = frame.f_locals.get("loader") if frame.f_code.co_name == "__init__" else None
        if loader is not None and getattr(loader, "drop_last", False):
            size = int(loader.batch_size or 1)
            return length // size * size
        frame = frame.f_back
        if frame is None:
            break
    return None


_DROPS = ("POP_TOP", "PRINT_EXPR")
_PRINTS = 1
"""The intrinsic function of Python 3.12 and later that is called for what an interactive line gives."""


def caller_drops() -> bool:
    """Whether what the caller gives is dropped by its own caller, as by a statement ``data.with_epoch(100)``."""
    import dis

    frame: Any = sys._getframe(2)
    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while dis.opname[code[at]] == "CACHE":
        at += 2
    name = dis.opname[code[at]]
    return name in _DROPS or (name == "CALL_INTRINSIC_1" and code[at + 1] == _PRINTS)


def find_worker() -> tuple[int, int]:
    """(worker, workers) of the DataLoader whose worker this process is; (0, 1) elsewhere."""
    info = worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def in_worker() -> bool:
    """Whether this process is a DataLoader's worker."""
    return worker_info() is not None


def worker_info() -> Any:
    """What torch says of the worker that this process is, None when it is none: ``id`` of ``num_workers``, ``seed``."""
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()
