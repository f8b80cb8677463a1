"""``shuffle``: write all samples of a set in an order that depends only on the seed and each sample's place.

The order never changes between versions (:mod:`wdscli.ordering`). :mod:`wdscli.plan.plan` makes the plan.
"""

from __future__ import annotations

from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.request import Request
from wdscli.progress import QUIET, Progress
from wdscli.run.execute import ReorderReport, reorder


def shuffle(request: Request, seed: int = 0, *, progress: Progress = QUIET) -> ReorderReport:
    """Shuffle ``request.inputs`` into ``request.output``.

    The bytes depend on the inputs, the options and the seed (any integer, taken modulo 2^64), and on nothing else.
    Raises UsageError, InputError, DataError, OutputError.

    >>> from wdscli.shards import ShardWriter, ShardReader
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"0"})
    >>> report = shuffle(Request([f"{folder}/in-manifest.json"], f"{folder}/out.tar"), seed=1)
    >>> report.samples, [sample.key for sample in ShardReader(f"{folder}/out.tar")]
    (5, ['n2', 'n1', 'n3', 'n0', 'n4'])
    """
    return reorder(request, ShuffledOrder(seed), progress=progress)
