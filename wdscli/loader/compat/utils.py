"""webdataset's small helpers: which rank and worker this is, seeds.

What it is: functions that training code imports from ``webdataset.utils``. It must not know datasets.
"""

from __future__ import annotations

import os
from functools import reduce
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.compat.filters import PipelineStage as PipelineStage
from wdscli.loader.compat.filters import identity as identity
from wdscli.loader.compat.gone import add_hints
from wdscli.loader.place.ranks import find_worker, rank_in

__all__ = ["PipelineStage", "identity", "make_seed", "pytorch_worker_info", "pytorch_worker_seed"]


class SecurityError(UsageError, ValueError):
    """An operation that WDS_SECURE, or ``enforce_security``, forbids."""


enforce_security = os.environ.get("WDS_SECURE", "0") not in ("", "0")
"""Whether ``gopen`` refuses commands and local files, and ``autodecode`` refuses pickles."""


def want_trust(said: str) -> None:
    """Raise SecurityError with this message if security is enforced."""
    if enforce_security:
        raise SecurityError(said)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers) of this process. The environment's ``WORKER`` and
    ``NUM_WORKERS`` come first. ``group`` is a group of torch.distributed; the ranks are those in the group."""
    rank, world = rank_in(group)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        return rank, world, int(os.environ["WORKER"]), int(os.environ["NUM_WORKERS"])
    return rank, world, *find_worker()


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a different number for each worker of each rank."""
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def make_seed(*args: Any) -> int:
    """Return a seed made of several values."""
    return reduce(lambda seed, arg: (seed * 31 + hash(arg)) & 0x7FFFFFFF, args, 0)


add_hints(__name__)
