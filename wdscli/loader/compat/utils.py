"""webdataset's small helpers: which rank and worker this is, seeds.

What it is: functions that training code imports from ``webdataset.utils``. It must not know datasets.
"""

from __future__ import annotations

import os
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from wdscli.errors import UsageError
from wdscli.loader.compat.filters import PipelineStage as PipelineStage
from wdscli.loader.compat.filters import identity as identity
from wdscli.loader.compat.gone import lacking
from wdscli.loader.place.ranks import find_worker, rank_in

__all__ = ["PipelineStage", "identity", "make_seed", "pytorch_worker_info", "pytorch_worker_seed"]


class SecurityError(UsageError, ValueError):
    """An operation that WDS_SECURE, or ``enforce_security``, forbids."""


enforce_security = os.environ.get("WDS_SECURE", "0") not in ("", "0")
"""Whether ``gopen`` refuses commands and files of this machine, and ``autodecode`` pickles."""


def want_trust(said: str) -> None:
    """Raise SecurityError, which says this, where security is enforced."""
    if enforce_security:
        raise SecurityError(said)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """(rank, world size, worker, number of workers) of this process; ``WORKER`` and ``NUM_WORKERS`` of the environment
    count first. ``group`` is a group of torch.distributed, whose ranks are meant then."""
    rank, world = rank_in(group)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        return rank, world, int(os.environ["WORKER"]), int(os.environ["NUM_WORKERS"])
    return rank, world, *find_worker()


def pytorch_worker_seed(group: Any = None) -> int:
    """A number for each worker of each rank."""
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def make_seed(*args: Any) -> int:
    """A seed of several values."""
    return reduce(lambda seed, arg: (seed * 31 + hash(arg)) & 0x7FFFFFFF, args, 0)


if not TYPE_CHECKING:  # a type checker would take every name for one that is there
    __getattr__ = partial(lacking, __name__)
