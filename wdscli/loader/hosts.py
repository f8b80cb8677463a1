"""This module finds out who else decides which samples this process reads: accelerate, transformers, a mesh of torch.

Both libraries wrap a loader: each rank takes its part of the dataset's items, or the first rank reads for all ranks. If
the dataset also divided its samples among the ranks, most samples would be lost, and neither library informs the
dataset. So :func:`is_dealt_out` searches the calling frames for the classes that divide samples. No other module of the
loader looks at its callers, and this module does so only if one of the two libraries is loaded. The module knows the
class names of accelerate 1.15 and transformers 5.24, and tests/interop runs each of these classes. Other versions may
have other names. The module warns once and names the class that it found. With ``WebDataset(..., rank=0,
world_size=1)`` no search is needed.

Ranks along some dimensions of a DeviceMesh of torch need the same batches, such as the ranks of tensor parallelism.
:func:`warn_of_peers` looks for the process groups that torch 2.13 makes for such dimensions. A mesh that has only one
dimension has no group of its own, so it is not noticed. This module does not know what is read.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

LIBRARIES = ("accelerate", "transformers")
DEALERS = ("BatchSamplerShard", "DataLoaderDispatcher", "IterableDatasetShard")
"""The names of the classes that divide samples, in both libraries, in accelerate, or in transformers."""
METHODS = ("__iter__", "__len__", "_iter_with_no_split", "_iter_with_split", "set_epoch")
"""The methods of these classes that call a dataset, directly or through a DataLoader."""

PEER_DIMENSIONS = ("tp", "cp", "pp", "sp", "tensor", "context", "pipeline", "sequence", "model")
"""The usual names of dimensions of a DeviceMesh whose ranks need the same batches."""

_said: list[str] = []
_warned_of_peers: list[str] = []


def is_dealt_out() -> bool:
    """Return whether a calling function divides the samples of this process among the ranks. In a forked worker, the
    search includes the functions that were running when the worker was started."""
    if sys.modules.keys().isdisjoint(LIBRARIES):
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in METHODS:
            kind = type(frame.f_locals.get("self"))
            if any(one.__name__ in DEALERS for one in kind.__mro__):
                _say(f"{kind.__module__}.{kind.__qualname__}")
                return True
        frame = frame.f_back
    return False


def warn_of_batches_of_batches() -> None:
    """Warn if the calling DataLoader joins batches of this dataset to larger batches."""
    frame: Any = sys._getframe(2)
    caller = frame.f_locals
    if type(caller.get("self")).__name__ == "_IterableDatasetFetcher" and caller.get("auto_collation"):
        warnings.warn(
            "DataLoader(batch_size=) makes batches of the batches of batched();\n"
            "use DataLoader(data, batch_size=None)",
            stacklevel=3,
        )


def warn_of_peers() -> None:
    """Warn once if ranks of this process need the same batches, but have different ranks."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    for group in () if _warned_of_peers else tuple(getattr(world, "pg_map", ())):
        dimension = str(getattr(group, "group_desc", "")).removeprefix("mesh_")
        if dimension in PEER_DIMENSIONS and group.size() > 1:
            _warned_of_peers.append(dimension)
            warnings.warn(
                f"the {group.size()} ranks of the mesh dimension {dimension} read different batches;\n"
                'WebDataset(mesh=device_mesh["dp"]) gives them the same batches',
                stacklevel=2,
            )
            return


def _say(dealer: str) -> None:
    if not _said:
        _said.append(dealer)
        warnings.warn(
            f"{dealer} divides the samples among ranks, so each rank reads all samples;\n"
            "WebDataset(rank=0, world_size=1) silences this warning",
            stacklevel=2,
        )
