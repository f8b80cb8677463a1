"""The dice that stages throw: global generators of ``random``, numpy and torch, seeded for each batch.

What it is: :func:`seeded`, in which a batch is made. How: the seed is a function of the dataset's seed, the epoch, the
batch and the rank, so that random crops and flips are the same in a run that was interrupted and in one that was not,
whatever the number of workers. What the generators were is put back, for in the main process the model throws them too.
Threads that share them have no order. It must not know what stages do with them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from wdscli.loader.order.order import key

DICE = 9
"""What a key is for, as in :mod:`wdscli.loader.order.order`."""


@contextmanager
def seeded(*parts: int, kept: bool) -> Iterator[None]:
    """Generators begin at a function of ``parts``; with ``kept`` they are put back at the end."""
    import numpy

    seed = key(DICE, *parts)
    torch = sys.modules.get("torch")
    if kept:
        plain, arrays = random.getstate(), numpy.random.get_state()
        tensors = None if torch is None else torch.default_generator.get_state()
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        if kept:
            random.setstate(plain)
            numpy.random.set_state(arrays)
            if torch is not None:
                torch.default_generator.set_state(tensors)
