"""webdataset's small helpers: which rank and worker this is, seeds, names with braces.

What it is: functions that training code imports from ``webdataset.utils``. It must not know datasets.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import reduce
from itertools import islice
from typing import Any

from wdscli.arrays import numpy
from wdscli.errors import UsageError
from wdscli.loader.compat.filters import PipelineStage as PipelineStage
from wdscli.loader.compat.filters import identity as identity
from wdscli.loader.place.ranks import find_worker, rank_in
from wdscli.storage.patterns import expand_braces

__all__ = [
    "PipelineStage",
    "compute_sample_weights",
    "fnmatch_with_braces",
    "glob_with_braces",
    "guess_batchsize",
    "identity",
    "is_iterable",
    "make_seed",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "repeatedly",
    "repeatedly0",
]


class SecurityError(UsageError, ValueError):
    """What WDS_SECURE, or ``enforce_security``, does not allow."""


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


def is_iterable(obj: Any) -> bool:
    """Whether ``obj`` can be iterated and is no text."""
    return isinstance(obj, Iterable) and not isinstance(obj, (str, bytes))


def glob_with_braces(pattern: str) -> list[str]:
    """Files by a pattern with braces."""
    return [path for one in expand_braces(pattern, UsageError) for path in glob.glob(one)]


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Whether a name fits a pattern with braces."""
    return any(fnmatch(filename, one) for one in expand_braces(pattern, UsageError))


def guess_batchsize(batch: Any) -> int:
    """Samples of a batch of columns."""
    return len(batch[0])


def repeatedly0(
    loader: Iterable[Any], nepochs: int | None = None, nbatches: int | None = None
) -> Iterator[Any]:
    """``nepochs`` iterations of ``loader``, of each the first ``nbatches``."""
    turn = 0
    while nepochs is None or turn < nepochs:
        yield from islice(loader, nbatches)
        turn += 1


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[..., int] = guess_batchsize,
) -> Iterator[Any]:
    """``source`` again and again, up to ``nepochs`` iterations, ``nbatches`` batches or ``nsamples`` samples, which
    ``batchsize`` counts of a batch."""
    samples = 0
    for number, batch in enumerate(repeatedly0(source, nepochs), 1):
        yield batch
        samples += 0 if nsamples is None else batchsize(batch)
        if number == nbatches or (nsamples is not None and samples >= nsamples):
            return


def compute_sample_weights(n_w_pairs: Iterable[tuple[int, float]]) -> Any:
    """Sizes times weights, of which the largest becomes 1."""
    weighted = numpy.array([number * weight for number, weight in n_w_pairs])
    return weighted / weighted.max()
