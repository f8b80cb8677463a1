"""This module has the base :class:`Order` of all orders, and the orders that need only places.

An order decides the columns to sort by, and the parts to make. It says which value of each sample it needs
(:class:`~wdscli.plan.table.Extract`). It then arranges the samples of all inputs (:class:`SurveyedSamples`) into rows
in output order, and into parts, which become sets. It may leave samples out, and counts them. Input order,
the shuffled order (:class:`ShuffledOrder`) and the order in which sets take turns (:class:`MergeOrder`) are here.
:mod:`wdscli.plan.sort`, :mod:`wdscli.plan.split`, :mod:`wdscli.plan.join` and ``map`` have other orders.

If samples are read in output order, ``--limit`` ends the reading early (:func:`reading_selection`). Otherwise
``--limit`` cuts the arranged samples (:func:`first_to_arrange`, :func:`first_arranged`). This module does not know
where samples are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from wdscli.arrays import I64, U64, Rows, blocks_of, numpy
from wdscli.errors import UsageError
from wdscli.ordering import Stop, interleaved, order_of_hashes, parse_weights, rank_places
from wdscli.plan.duplicates import Pairs, Rereader
from wdscli.plan.inputs import Input, TableShard
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.survey import SurveyTask
from wdscli.plan.table import Extract, JoinedParts, PlanTable, Values
from wdscli.progress import Progress
from wdscli.selection import Selection
from wdscli.selection.named import MissingName

PLAIN_BYTES = 32
"""Bytes of memory per sample for an order that needs one or two numbers: a shuffle, a split, a merge."""
VALUED_BYTES = 48
"""Bytes of memory per sample for an order that compares values: a sort, a join, duplicates by content."""
LIMIT = "limit"
"""The reason for leaving out samples beyond ``--limit``."""
SET_ENDED = "set-ended"
"""The reason for leaving out samples with ``stop="first"``."""


Look: TypeAlias = "Callable[[Callable[[int, Selection], Extract]], None]"
"""A function that reads the samples of all sets of shards. Its argument is a function that makes the extract of a set
from the set's number and selection."""


class SurveyedSamples(NamedTuple):
    """The selected samples of all inputs, in input order.

    ``values`` has the values from the order's ``extract``, or None. ``sets`` has the number of each input shard's set.
    The command's arguments are the sets from 0; a joined table is the last of ``total_sets``. ``reader`` reads samples
    again. ``shapes`` has, for each input shard of a join, the lists of fields to which the values refer.
    """

    samples: PlanTable
    values: Values | None
    sets: Sequence[int]
    total_sets: int
    reader: Rereader
    shapes: Sequence[Sequence[tuple[bytes, ...]]] = ()

    def counts_of_sets(self) -> list[int]:
        """Return the number of samples in each set."""
        of_shard: I64 = numpy.zeros(len(self.sets) + 1, dtype=numpy.int64)
        for part in blocks_of(self.samples.total):
            # The placeholder row has no shard.
            shards = numpy.minimum(self.samples.shards[part], numpy.uint32(len(self.sets)))
            of_shard += numpy.bincount(shards, minlength=len(of_shard))
        counts: I64 = numpy.zeros(self.total_sets, dtype=numpy.int64)
        numpy.add.at(counts, list(self.sets), of_shard[:-1])
        sample_counts: list[int] = counts.tolist()
        return sample_counts

    def first(self, count: int) -> SurveyedSamples:
        """Return the first ``count`` samples, or all samples if there are fewer."""
        values = None if self.values is None else self.values.first(count)
        return self._replace(samples=self.samples.part(0, count), values=values)

    def without(self, gone: Sequence[int] | I64) -> SurveyedSamples:
        """Return all samples except the rows ``gone``, which are in ascending order. This object must not be used
        again."""
        values = None if self.values is None else self.values.without(gone)
        return self._replace(samples=self.samples.without(gone), values=values)


class Arrangement(NamedTuple):
    """Samples in output order. ``order`` has row numbers of the table; None means all rows in their order. ``parts``
    has the number of samples in each part, which divides ``order``; None means that there is one set. ``dropped``
    counts omitted samples by reason. ``joined`` has the further rows of joined samples, and ``absent`` the names of the
    order that no sample has. If the order keeps the input's shards, ``ends`` has their ends."""

    order: I64 | None = None
    parts: Mapping[str, int] | None = None
    dropped: Mapping[str, int] = {}
    joined: JoinedParts | None = None
    absent: MissingName | None = None
    ends: Sequence[int] | None = None


class Order:
    """The base class for orders. An order decides the order and the parts of the samples."""

    operation: str
    """The command's name, for the manifest."""
    extract: Extract | None = None
    """The extract that takes a value of each sample during the survey, or None."""
    seed: int | None = None
    """The seed for the manifest, or None."""
    bytes_per_sample: int = PLAIN_BYTES
    """Bytes of memory for each sample while the order is made."""
    makes_parts: bool = False
    """Whether the order divides samples into parts, and keeps input order in each part."""

    is_repeatable: bool = False
    """Whether operation, options and seed completely decide the result. An earlier run's plan may then be used."""

    def with_classes(self, class_names: Callable[[], Sequence[str] | None]) -> Order:
        """Return the same order for a set with class names in its manifest. ``class_names`` returns the names of the
        numbers in ``cls``."""
        return self

    transform: Mapping[str, Any] | None = None
    """The transform of each sample, in the form of a plan file (the fields of
    :class:`wdscli.transform.transform.Transform`)."""

    @property
    def may_keep_names(self) -> bool:
        """Return whether each shard of the first set can become one output shard with the same name."""
        return False

    @property
    def keeps_labels(self) -> bool:
        """Whether the numbers in ``cls`` stay the same."""
        return True

    is_join: bool = False
    """Whether the order joins samples of several sets. Each set then has its own template and rows."""

    @property
    def placeholder(self) -> Rows | None:
        """The placeholder row after all other rows, for missing parts of a join."""
        return None

    def check_request(self, request: Request, addresses: Sequence[str]) -> None:
        """Raise UsageError for options that contradict the order; ``addresses`` are the shards of all inputs."""

    def other_files(self) -> Sequence[str]:
        """Return the files that the order reads besides shards. Raises UsageError if such a file names further
        files."""
        return ()

    def table_shard(
        self, request: Request, scratch: Scratch | None, number: int, progress: Progress, look: Look
    ) -> tuple[Input, TableShard] | None:
        """Return a table as input ``number``, with its rows in a shard, and the facts about the table. Return None
        without a table."""
        return None

    def templates(self, template: SurveyTask, request: Request, sets: int) -> list[SurveyTask]:
        """Return the survey tasks for shards: one task for all shards, or for a join one task for each of ``sets``
        sets."""
        return [template._replace(selection=reading_selection(request, self))]

    def repeated(self, surveyed: SurveyedSamples, request: Request) -> Pairs | None:
        """Return the rows to leave out because they repeat a key of their set. None means that all sets are compared
        together. Raises DataError if repeats are an error."""
        return None

    def may_leave_out(self) -> bool:
        """Return whether some samples may belong to no part."""
        return False

    def is_left_out(self, value: bytes) -> bool:
        """Return whether a sample with this value belongs to no part."""
        return False

    def options(self) -> dict[str, Any]:
        """Return this order's options for the manifest: those that change the result and are not at their default."""
        return {}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        """Arrange all samples. Raises DataError, UsageError."""
        return Arrangement()


@dataclass(frozen=True)
class InputOrder(Order):
    """All samples in input order."""

    operation: str
    is_repeatable = True

    @property
    def may_keep_names(self) -> bool:
        # Merged sets often have shards with the same name.
        return self.operation != "merge"


@dataclass(frozen=True)
class ShuffledOrder(Order):
    """The order by a keyed hash of each sample's place (:mod:`wdscli.ordering`)."""

    seed: int = 0
    operation = "shuffle"
    is_repeatable = True

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        return Arrangement(shuffled(surveyed.samples, self.seed))


@dataclass(frozen=True)
class MergeOrder(Order):
    """An order in which sets take turns. ``shares`` are the shares of the sets in the output."""

    shares: tuple[int, ...]
    stop: Stop = "all"
    operation = "merge"

    def options(self) -> dict[str, Any]:
        is_equal = set(self.shares) == {1}
        options: dict[str, Any] = {"interleave": True} if is_equal else {"weights": list(self.shares)}
        return options if self.stop == "all" else {**options, "stop": self.stop}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        # The rows are in input order, so the samples of a set are adjacent.
        order, left = interleaved(surveyed.counts_of_sets(), self.shares, self.stop)
        return Arrangement(order, dropped={SET_ENDED: left} if left else {})


def merge_order(
    request: Request, *, weights: str | None = None, stop: Stop | None = None
) -> MergeOrder | InputOrder:
    """Return the order of a merge from options as typed. By default, one set follows the other. With ``weights``, the
    sets take turns; the weights (such as ``"0.7,0.3"``, or ``"equal"``) are their shares of the output. ``stop`` says
    when the output ends (:func:`~wdscli.ordering.interleaved`); by default, it ends when all sets have ended. Raises
    UsageError."""
    if weights is None:
        if stop is not None:
            raise UsageError(f"--stop {stop} works only with --weights", hint="add --weights")
        return InputOrder("merge")
    option, sets = f"--weights {weights}", len(request.inputs)
    shares = (1,) * sets if weights == "equal" else parse_weights(weights)
    hint = "each argument is one set, of any number of shards: wds merge A.tar 'B-*.tar' ..."
    if sets < 2:
        raise UsageError(
            f"{option} takes samples from several sets in turn, but there is only one set", hint=hint
        )
    if sets != len(shares):
        weighed = "1 weight" if len(shares) == 1 else f"{len(shares)} weights"
        raise UsageError(f"{option} has {weighed}, but there are {sets} sets", hint=hint)
    return MergeOrder(shares, stop or "all")


def shuffled(samples: PlanTable, seed: int) -> I64:
    """Return the rows sorted by (rank, shard, place). This order never changes, so that other programs can make the
    same shuffle."""

    def ranks(rows: Any) -> U64:
        table_rows = samples.rows[rows]
        return rank_places(seed, table_rows["shard"], table_rows["place"])

    # The rows are in the order of (shard, place). Rows with equal ranks keep this order.
    return order_of_hashes(samples.total, ranks)


def is_in_input_order(order: Order, request: Request) -> bool:
    """Return whether the output is in input order, and no sample is left out as a repeat."""
    return isinstance(order, InputOrder) and not request.dedup


def reading_selection(request: Request, order: Order) -> Selection:
    """Return the selection for reading. It includes the limit if the first selected samples are the output."""
    in_input_order = isinstance(order, InputOrder) or (order.makes_parts and not order.may_leave_out())
    selection = request.selection.before_draw
    if in_input_order and request.on_duplicate != "skip" and not request.dedup:
        return selection
    return selection._replace(limit=None)


def first_to_arrange(order: Order, surveyed: SurveyedSamples, limit: int | None) -> SurveyedSamples:
    """For an order that makes parts, return the samples up to the last sample within the limit."""
    if limit is None or not order.makes_parts:
        return surveyed
    end = limit
    if order.may_leave_out() and surveyed.values is not None:
        those = (row for row, value in enumerate(surveyed.values, 1) if not order.is_left_out(value))
        end = next(islice(those, limit - 1, None), surveyed.samples.total) if limit else 0
    return surveyed.first(end)


def first_arranged(arranged: Arrangement, samples: int, limit: int | None) -> Arrangement:
    """Keep the first ``limit`` samples of an order over ``samples``. The other samples count as left out, with all
    their parts of a join."""
    total = samples if arranged.order is None else len(arranged.order)
    if limit is None or arranged.parts is not None or limit >= total:
        return arranged
    order = numpy.arange(limit) if arranged.order is None else arranged.order[:limit]
    left, joined = total - limit, arranged.joined
    if joined is not None:
        later_parts = tuple(ordered.slice(0, limit) for ordered in joined.later_parts)
        # A negative row number is a missing part.
        partners = sum(
            int((ordered.order >= 0).sum()) for ordered in later_parts if ordered.order is not None
        )
        left += joined.counts.partners - partners
        joined = joined._replace(later_parts=later_parts, counts=joined.counts._replace(partners=partners))
    return arranged._replace(order=order, dropped={**arranged.dropped, LIMIT: left}, joined=joined)
