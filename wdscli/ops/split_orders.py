"""The orders of ``split``: by ratio, by a field, by a map of keys.

What it is: three orders that differ in what they call a part. How: samples stay in input order within their part. A
ratio compares a hash of the sample's key (or of its group) with shares of 2^64, so that a sample stays in its part
whatever else is in the set; only ``stratify`` counts. All but that take a sample to its part by its own value
(:class:`Routes`), once the parts are known, so that an external sort can do the work of ``arrange``.
It must not know where samples are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.ops.key_map import KeyMap
from wdscli.ops.orders import Arranged, Part, Pool
from wdscli.ops.parts import Share, parts_of_ranks, ranks_of, stratified
from wdscli.ops.split_values import DIGEST_BYTES, MISSING, UNDECODABLE, Keys
from wdscli.storage.addresses import natural

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U64, Samples
    from wdscli.ops.survey import Extract

MOST_PARTS = 10_000
_LEFT_OUT = {MISSING: "missing", UNDECODABLE: "undecodable"}


class SplitOptions(NamedTuple):
    """Into which parts. ``ratio``, ``by`` and ``by_map`` exclude each other; with none of them there are no parts.

    ``missing`` says what becomes of a sample without a value or a key that is not in the map: ``error``, ``drop``, or
    the name of a part to put it in.
    """

    ratio: str | None = None
    group_by: str | None = None
    stratify: str | None = None
    seed: int = 0
    by: str | None = None
    by_map: str | None = None
    missing: str = "error"


class Routes(NamedTuple):
    """Parts by name, and ``numbers_of``, which takes values to numbers of parts, from 0; after the last part come the
    numbers of samples that are left out (:data:`_LEFT_OUT`, in that order). Parts without samples are made only with
    ``keeps_empty``."""

    names: Sequence[str]
    numbers_of: Callable[[Sequence[bytes]], I64]
    keeps_empty: bool = True

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return len(self.names) + len(_LEFT_OUT)

    def arranged(routes: Routes, numbers: I64) -> Arranged:
    """All samples by the number of their part, in each in input order."""
    import numpy

    counts = numpy.bincount(numbers, minlength=routes.total).tolist()
    # Few parts: numpy sorts small numbers by counting them.
    small = numbers.astype(numpy.int16 if routes.total < 1 << 15 else numpy.int64)
    order = numpy.argsort(small, kind="stable").astype(numpy.int64, copy=False)
    return routes.arranged(counts, order)
