"""Whether accelerate or transformers deals out to the ranks what this process reads.

What it is: :func:`is_dealt_out`. Why: both wrap a loader so that each rank takes its part of what the dataset gives, or
so that the first rank reads for all. A dataset that shared its samples among the ranks too would lose most of them, and
neither library informs the dataset. How: this looks at the calling frames for the classes that deal out. It is the only
place of the loader that looks at its callers, and only where one of the two libraries is loaded. The classes are those
that tests/interop meets in both libraries; other versions may name them otherwise. What was found is said once.
``WebDataset(..., rank=0, world_size=1)`` says the same for certain. It must not know what is read.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

LIBRARIES = ("accelerate", "transformers")
DEALERS = ("BatchSamplerShard", "DataLoaderDispatcher", "IterableDatasetShard")
"""The classes that deal out."""
METHODS = ("__iter__", "__len__", "_iter_with_no_split", "_iter_with_split", "set_epoch")
"""Their methods that call a dataset, directly or through a DataLoader."""

_said: list[str] = []


def is_dealt_out() -> bool:
    """Whether one of the callers deals out what this process reads. In a worker that was forked the callers are also
    those that started it."""
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


def _say(dealer: str) -> None:
    if not _said:
        _said.append(dealer)
        warnings.warn(
            f"{dealer} shares the samples among the ranks, so this dataset gives all of them to each rank; "
            "WebDataset(..., rank=0, world_size=1) says so for certain",
            stacklevel=2,
        )
