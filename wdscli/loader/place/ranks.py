"""The rank of this process among those that train together, and its number among the rank's workers.

What it is: :class:`Share`, and how it is found: by arguments, by ``torch.distributed`` when it is in use, or by the
launcher's environment variables; the worker by ``torch.utils.data`` when it is loaded. torch is never imported here: a
process that uses it has it in ``sys.modules``. It must not know what is read.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole
from wdscli.loader.hosts import is_dealt_out

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
    """Return (rank, world size): the arguments, else torch.distributed's if it is initialised, else the launcher's,
    else (0, 1). Raises UsageError for one without the other, and for an impossible rank."""
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
    """Return (rank, world size) of torch.distributed or the launcher, None without both. Raises UsageError for
    variables that are no numbers."""
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
    """Return (rank, world size) in a group of torch.distributed; :func:`find_rank` for None."""
    if group is None:
        return find_rank()
    from torch import distributed

    return int(distributed.get_rank(group)), int(distributed.get_world_size(group))


def find_worker() -> tuple[int, int]:
    """Return (worker, workers) in a worker of a DataLoader; (0, 1) elsewhere."""
    info = worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def in_worker() -> bool:
    """Whether this process is a DataLoader's worker."""
    return worker_info() is not None


class TorchIterable:
    """An IterableDataset for torch's DataLoader, if torch was imported before the dataset was made. Its class is
    registered as a virtual subclass, because deriving from torch's class needs the import of torch, which takes
    seconds."""

    def __new__(cls, *args: Any, **kw: Any) -> Any:
        data = sys.modules.get("torch.utils.data")
        # Another thread may just be importing it.
        if data is not None and hasattr(data, "IterableDataset") and cls not in _registered:
            _registered.add(cls)
            data.IterableDataset.register(cls)
        return super().__new__(cls)

    def __getitem__(self, place: Any) -> Any:
        raise UsageError(
            f"a {type(self).__name__} has no samples by number: iterate it",
            hint="import torch.utils.data before the dataset is made, or use IndexedDataset for samples by number",
        )


_registered: set[type] = set()


def worker_info() -> Any:
    """Return torch's information about this worker (``id``, ``num_workers``, ``seed``), None outside of workers."""
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()
