"""``shuffle``: all samples of a set in an order that depends on the seed and each sample's place alone.

The order is pinned in section 3 of the design (:mod:`wdscli.ordering`); the engine is :mod:`wdscli.ops.reorder`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from wdscli.ops.plan import shuffled
from wdscli.ops.reorder import ReorderPlan, ReorderReport, Request, make_plan, run_plan
from wdscli.progress import QUIET, Progress


def plan_shuffle(request: Request, seed: int = 0, *, progress: Progress = QUIET) -> ReorderPlan:
    """What :func:`shuffle` would do. Reads headers or indexes, writes nothing."""
    return make_plan(request, partial(shuffled, seed=seed), progress=progress)


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
    (5, ['n4', 'n3', 'n2', 'n0', 'n1'])
    """
    planned = plan_shuffle(request, seed, progress=progress)
    return run_plan(planned, "shuffle", seed=seed, options=shaping_options(request), progress=progress)


def shaping_options(request: Request) -> dict[str, Any]:
    """The options that shape the result, as the manifest tells them; those left at their default are not named."""
    given: dict[str, Any] = {
        "max_count": request.cuts.max_count,
        "max_size": request.cuts.max_size,
        "shards": request.cuts.shards,
        "on_duplicate": None if request.on_duplicate == "error" else request.on_duplicate,
        "rekey": request.rekey,
        "mtime": request.settings.form.mtime or None,
        "long_names": None if request.settings.form.long_names == "pax" else request.settings.form.long_names,
        **(request.selection_text or {}),
    }
    return {name: value for name, value in given.items() if value is not None}
