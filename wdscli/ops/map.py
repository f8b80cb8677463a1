"""``map``: transform the samples of a set into new samples.

:func:`map_order` makes an order for a plan from a :class:`~wdscli.transform.transform.Transform`. Samples stay in input
order. Each input shard becomes one output shard unless a cut is given. The plan is made from headers, like the plans of
other commands, so that plan files, engines and ``--resume`` work in the same way. This module does not know how a
sample is transformed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wdscli.arrays import numpy
from wdscli.errors import UsageError
from wdscli.plan.cut import Cuts
from wdscli.plan.orders import Arrangement, InputOrder, SurveyedSamples
from wdscli.plan.request import Request
from wdscli.plan.table import Extract
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import Named
from wdscli.shown import shown_in
from wdscli.storage import OutputPattern, read_all
from wdscli.storage.patterns import NAME
from wdscli.transform.functions import function_workers
from wdscli.transform.transform import Transform


@dataclass(frozen=True)
class FieldNamed(Extract):
    """An extract without values. It checks that at least one sample has each field, with the option that names it."""

    options_by_field: Mapping[str, str]

    @property
    def named(self) -> Sequence[Named]:
        return [Named(field, f" for {option}", (field,)) for field, option in self.options_by_field.items()]

    def value(self, sample: SampleAt) -> bytes:
        return b""


@dataclass(frozen=True)
class MappedOrder(InputOrder):
    """An order for transformed samples. It keeps input order, and makes one shard for each input shard. ``transform``
    has the form of a plan file (the fields of :class:`wdscli.transform.transform.Transform`), and ``shaping`` is for
    the manifest. Without a transform, samples are copied, with new fields."""

    shaping: Mapping[str, Any]
    keeps_shards: bool
    transform: Mapping[str, Any] | None
    extract: Extract | None = None
    is_repeatable = False

    @property
    def keeps_labels(self) -> bool:
        transform = None if self.transform is None else Transform(**self.transform)
        return transform is None or (
            transform.kind not in ("cmd", "python") and transform.field != "cls" and not transform.new_fields
        )

    def options(self) -> dict[str, Any]:
        return dict(self.shaping)

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        if not self.keeps_shards:
            return Arrangement()
        ends = surveyed.samples.shards.searchsorted(numpy.arange(len(surveyed.sets)), side="right")
        return Arrangement(ends=ends.tolist())


@contextmanager
def map_order(request: Request, transform: Transform | None) -> Iterator[tuple[Request, MappedOrder]]:
    """A context manager that returns the order with a transform, and the request. In its block, the request has the
    worker processes for a Python function. Raises UsageError for a function that cannot be imported, and for impossible
    cuts."""
    if transform is None or transform.kind != "python":
        if transform is not None:
            transform.call("", Counter())  # raises UsageError if a package is missing
        yield request, _order(request, transform)
        return
    is_local = request.engine is None
    with function_workers(transform.what, request.jobs if is_local else 1) as workers:
        yield request._replace(workers=workers if is_local else None), _order(request, transform)


def _check(request: Request, transform: Transform) -> None:
    """Raise UsageError for options that the transform cannot follow."""
    if request.cuts.max_size is not None:
        raise UsageError(
            "--max-size: the sizes of new samples are unknown before they are made",
            hint="use --max-count or --shards, or cut afterwards: wds split --max-size",
        )
    if request.cuts.max_count is not None and transform.may_change_counts:
        for option, value in (("--plan", request.plan_file), ("--divisible-by", request.cuts.divisible_by)):
            if value is not None:
                raise UsageError(
                    f"{option} and --max-count: the number of new samples is unknown before they are made",
                    hint="use --shards, or cut afterwards: wds split --max-count",
                )
    if transform.new_fields and request.selection.changes_members:
        raise UsageError(
            "--new-fields needs all fields of the samples", hint="leave out --fields, --drop and --rename"
        )


def _order(request: Request, transform: Transform | None) -> MappedOrder:
    if transform is not None:
        _check(request, transform)
    keeps_shards = request.cuts == Cuts()
    if NAME not in request.output:
        pattern = OutputPattern.parse(request.output)
        keeps_shards = keeps_shards and not pattern.single and pattern.count is None
    if transform is None:
        return MappedOrder("map", {}, keeps_shards, None)
    options_by_field = {} if request.selection.changes_members else _named_fields(transform)
    named = FieldNamed(options_by_field) if options_by_field else None
    return MappedOrder("map", _shaping(transform), keeps_shards, transform._asdict(), named)


def _named_fields(transform: Transform) -> dict[str, str]:
    """Return the fields that options of a transform name, each with its option."""
    words = [
        ("--filter", transform.field),
        ("--resize nearest", transform.nearest),
        ("--only", transform.only),
    ]
    return {field: option for option, fields in words for field in fields.split(",") if field}


def _shaping(transform: Transform) -> dict[str, Any]:
    """Return the options for the manifest. They include a digest of a function's file, so that a changed file makes a
    new plan."""
    plain: dict[str, Any] = dict(shown_in(transform.options()))
    place = transform.what.rpartition(":")[0]
    if transform.kind == "python" and place.endswith(".py"):
        from xxhash import xxh3_64_hexdigest

        plain["source"] = xxh3_64_hexdigest(read_all(place))
    return plain
