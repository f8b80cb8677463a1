"""What the engine is told of an order: the protocol :class:`Order`, and the two that need nothing but places.

What it is: an order says what it must know of each sample (:class:`~wdscli.ops.survey.Extract`) and arranges the
samples of all inputs, which are given as a :class:`Pool`. It may leave samples out, when it counts them, and divide the
rest into parts, each of which becomes a set of its own. It must not know where samples are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from wdscli.ops.plan import shuffled
from wdscli.ordering import rank_places

if TYPE_CHECKING:
    from wdscli.ops.reorder import ReorderPlan, Request
    from wdscli.ops.rows import I64, U32, U64, Samples
    from wdscli.ops.scratch import Input, Scratch
    from wdscli.ops.survey import Extract
    from wdscli.progress import Progress


class Pool(NamedTuple):
    """The selected samples of all inputs, in input order.

    ``values`` has what the order's ``extract`` took of each, None without one. ``sets`` has, for each input shard, the
    number of the input (an argument of the command, from 0) that named it.
    """

    samples: Samples
    values: list[bytes] | None
    sets: Sequence[int]

    def set_of_rows(self) -> U32:
        """The input of each sample."""
        import numpy

        of_shard: U32 = numpy.asarray(self.sets, dtype=numpy.uint32)
        return of_shard[self.samples.shards]

    def first(self, count: int) -> Pool:
        """The first so many, or all."""
        values = None if self.values is None else self.values[:count]
        return self._replace(samples=self.samples.first(count), values=values)

    def without(self, rows: Sequence[int]) -> Pool:
        """All samples but these."""
        values = self.values
        if values is not None:
            gone = set(rows)
            values = [value for row, value in enumerate(values) if row not in gone]
        return self._replace(samples=self.samples.without(rows), values=values)


class Part(NamedTuple):
    """A part of the output: its name, for ``{part}``, and how many samples it has."""

    name: str
    samples: int


class Again(NamedTuple):
    """How many samples came again, and the inputs, one for each time that they are gone through."""

    samples: int
    inputs: Sequence[Input]


class Arranged(NamedTuple):
    """Samples in output order. ``order`` has rows of the pool, None for all as they are; ``parts`` divide it, None for
    one set; ``dropped`` counts those that were left out, by reason. ``rounds`` is given when samples come more than
    once: how many times each one of ``order`` came before; ``again`` when that is done already."""

    order: I64 | None = None
    parts: Sequence[Part] | None = None
    dropped: Mapping[str, int] = {}
    rounds: U32 | None = None
    again: Again | None = None


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
        """See :func:`wdscli.ops.reorder.make_plan`."""


class InputOrder(NamedTuple):
    """All samples as they come."""

    operation: str
    extract: Extract | None = None
    seed: int | None = None

    def options(self) -> dict[str, Any]:
        return {}

    def arrange(self, pool: Pool) -> Arranged:
        return Arranged()


class ShuffledOrder(NamedTuple):
    """The keyed hash of section 3 of the design (:mod:`wdscli.ordering`)."""

    seed: int = 0
    operation: str = "shuffle"
    extract: Extract | None = None

    def options(self) -> dict[str, Any]:
        return {}

    def arrange(self, pool: Pool) -> Arranged:
        return Arranged(shuffled(pool.samples, self.seed))

    def ranks(self, samples: Samples) -> U64:
        """Samples are ordered by these numbers, equal ones as the inputs hold them; that is all there is to it, so an
        external sort may do it in place of :meth:`arrange`."""
        return rank_places(self.seed, samples.shards, samples.places)
