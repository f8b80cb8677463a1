"""What the engine is told of an order: the protocol :class:`Order`, and the two that need nothing but places.

What it is: an order says what it must know of each sample (:class:`~wdscli.plan.survey.Extract`) and arranges the
samples of all inputs, which are given as a :class:`~wdscli.plan.values.Pool`. It may leave samples out, when it counts
them, and divide the rest into parts, each of which becomes a set of its own. It must not know where samples are
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from wdscli.plan.cut import shuffled

if TYPE_CHECKING:
    from wdscli.plan.dedup import Dedup
    from wdscli.plan.request import ReorderPlan, Request
    from wdscli.plan.scratch import Scratch
    from wdscli.plan.survey import Extract
    from wdscli.plan.table import I64
    from wdscli.plan.values import Pool
    from wdscli.progress import Progress


PLAIN_BYTES = 32
"""Bytes of memory for a sample whose order needs a number or two: a shuffle, a split, a merge."""
VALUED_BYTES = 48
"""The same where values of samples are compared: a sort, a join, duplicates by content."""


class Part(NamedTuple):
    """A part of the output: its name, for ``{part}``, and how many samples it has."""

    name: str
    samples: int


class Arranged(NamedTuple):
    """Samples in output order. ``order`` has rows of the pool, None for all as they are; ``parts`` divide it, None for
    one set; ``dropped`` counts those that were left out, by reason."""

    order: I64 | None = None
    parts: Sequence[Part] | None = None
    dropped: Mapping[str, int] = {}


class Order(Protocol):
    """What decides the order, and the parts."""

    @property
    def operation(self) -> str:
        """The command's name, for the manifest."""

    @property
    def extract(self) -> Extract | None:
        """What a survey must take of each sample."""

    @property
    def seed(self) -> int | None:
        """The seed, where there is one, for the manifest."""

    @property
    def dedup(self) -> Dedup | None:
        """Which samples are left out because they repeat others, None to keep all."""

    @property
    def bytes_per_sample(self) -> int:
        """What the order takes of memory for each sample while it is made."""

    def options(self) -> dict[str, Any]:
        """The options of this order that shape the result, for the manifest; defaults left out."""

    def arrange(self, pool: Pool) -> Arranged:
        """The order over all samples. Raises DataError, UsageError."""


@runtime_checkable
class Parting(Protocol):
    """An order that divides samples into parts, in each of which they stay in input order."""

    @property
    def may_leave_out(self) -> bool:
        """Whether some samples may come into no part."""

    def is_left_out(self, value: bytes) -> bool:
        """Whether a sample of this value, which ``extract`` took, comes into no part."""


@runtime_checkable
class Planner(Protocol):
    """What stands in for an order and makes the plan itself: a join, whose samples have parts in several inputs."""

    @property
    def operation(self) -> str:
        """The command's name, for the manifest."""

    def plan(self, request: Request, scratch: Scratch | None, *, progress: Progress) -> ReorderPlan:
        """See :func:`wdscli.plan.plan.make_plan`."""


class InputOrder(NamedTuple):
    """All samples as they come."""

    operation: str
    extract: Extract | None = None
    seed: int | None = None
    dedup: Dedup | None = None
    bytes_per_sample: int = PLAIN_BYTES

    def options(self) -> dict[str, Any]:
        return {}

    def arrange(self, pool: Pool) -> Arranged:
        return Arranged()


class ShuffledOrder(NamedTuple):
    """The keyed hash of section 3 of the design (:mod:`wdscli.ordering`)."""

    seed: int = 0
    operation: str = "shuffle"
    extract: Extract | None = None
    dedup: Dedup | None = None
    bytes_per_sample: int = PLAIN_BYTES

    def options(self) -> dict[str, Any]:
        return {}

    def arrange(self, pool: Pool) -> Arranged:
        return Arranged(shuffled(pool.samples, self.seed))
