"""``sort``: all samples of a set in the order of their keys, of a field, or of a value in a JSON field.

What it is: :class:`SortOrder`, which asks for one byte string of each sample (:mod:`wdscli.plan.sort`) and arranges
samples by these strings (:mod:`wdscli.plan.values`). Equal values stay in input order, in any case. The engine is
:mod:`wdscli.plan.plan`. It must not know fields or how values compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wdscli.errors import DataError
from wdscli.plan.orders import VALUED_BYTES, Arranged, Order, Surveyed
from wdscli.plan.request import Request
from wdscli.plan.sort import KEY, TO_SORT_BY, How, Missing, SortKey, SortValues, lack_hint, sort_key
from wdscli.progress import QUIET, Progress
from wdscli.run.execute import ReorderReport, reorder


@dataclass(frozen=True)
class SortOrder(Order):
    """Samples by the values that ``extract`` takes of them."""

    extract: SortValues
    missing: Missing | None = None
    """As it was asked for; None puts what is missing last, and takes a value that no sample has for a mistake."""
    operation = "sort"
    is_repeatable = True
    bytes_per_sample = VALUED_BYTES

    def options(self) -> dict[str, Any]:
        by: dict[str, Any] = {"by": [str(key) for key in self.extract.keys]}
        return by if self.missing is None else {**by, "missing": self.missing}

    def arrange(self, surveyed: Surveyed) -> Arranged:
        assert surveyed.values is not None
        self.check(surveyed.values)
        return Arranged(surveyed.values.order())

    def check(self, values: Iterable[bytes]) -> None:
        """Raise DataError when no sample at all has a value to sort by; ``values`` are those of all samples. It reads
        no more of them than it must."""
        absent = self.extract.never_seen(values) if self.missing is None else []
        if absent:
            text = " or ".join(key.text for key in absent)
            raise DataError(f"no sample has {text}{TO_SORT_BY}", code="missing-value", hint=lack_hint(text))


def sort_order(
    by: Sequence[str | SortKey] = (KEY,),
    *,
    how: How = "plain",
    reverse: bool = False,
    missing: Missing | None = None,
    lenient: bool = False,
) -> SortOrder:
    """The order by some sort keys, the first first (:func:`~wdscli.plan.sort.sort_key`). ``how`` and ``reverse``
    hold for those that have no modifiers; ``lenient`` takes what cannot be decoded or compared for missing.

    Raises UsageError.
    """
    keys = [sort_key(one, how, reverse) if isinstance(one, str) else one for one in by or (KEY,)]
    return SortOrder(SortValues(tuple(keys), missing or "last", lenient, missing is not None), missing)


def sort(
    request: Request,
    by: Sequence[str | SortKey] = (KEY,),
    *,
    how: How = "plain",
    reverse: bool = False,
    missing: Missing | None = None,
    progress: Progress = QUIET,
) -> ReorderReport:
    """Sort ``request.inputs`` into ``request.output``; see :func:`sort_order`.

    Ties stay in input order, reversed or not. Raises UsageError, InputError, DataError, OutputError.

    >>> from wdscli.shards import ShardWriter, ShardReader
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"%d" % (number * 7 % 10), "txt": b"x"})
    >>> report = sort(Request([f"{folder}/in-manifest.json"], f"{folder}/out.tar"), by=["txt", "cls:nr"])
    >>> report.samples, [sample.key for sample in ShardReader(f"{folder}/out.tar")]
    (5, ['n4', 'n1', 'n2', 'n3', 'n0'])
    """
    order = sort_order(by, how=how, reverse=reverse, missing=missing, lenient=request.on_error == "skip")
    return reorder(request, order, progress=progress)
