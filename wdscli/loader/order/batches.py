"""This module plans batches by a value of each sample: buckets, budgets and packs.

A value is a number such as the number of tokens or the aspect ratio. The plan is a pure function of (values, order,
seed, epoch). The module cuts an epoch into windows of about ``rule.window`` positions, and plans each window
independently of other windows. So the batches of an epoch are one list, which is the same in every process, and a
resumed run plans only one window. Rank r of w ranks takes batch g + r of the list, where g is 0, w, 2w, ... The module
does not know what a value means, nor how samples are read.

* Buckets: the samples of a bucket are cut into batches of the bucket's size. In each window, the last batch of a bucket
  may be smaller. With ``together`` = t, the batches come in groups of t batches of one bucket. The samples of a
  bucket's last group are divided evenly among the group's batches. A bucket with fewer than t samples repeats samples.
* A budget: samples are sorted by length, longest first. Each batch takes as many samples as fit: the number of samples
  times the longest length is at most the budget.
* Packs: :mod:`wdscli.loader.order.packs` puts the lengths into packs. With ``in_sequence``, a pack has neighbours, and
  the packs keep the order of the epoch.

With ``also``, the sums of other values in a batch or pack also have limits.

With ``together`` = t, batches of a budget and packs come in groups of t batches of about equal work. They are sorted by
their work, and neighbours make a group. The work of a batch is its longest length, the work of a pack is the sum of its
squared lengths. If the last group has fewer batches, the samples of the batches with least work are dealt to more
batches; if they do not fit, batches are halved. Samples are repeated only if every batch has one sample.

:data:`KINDS` has the functions of each kind. A kind groups the values of a window into batches (:class:`Grouping`), and
says how full the batches are (:class:`Load`). All kinds share the rest: the batches of a window are permuted by
``Permutation`` with ``key(seed, 10, epoch, window)``; with ``together``, the groups are permuted. The samples of a
batch keep the order of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise, product
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

from wdscli.arrays import F64, I64, Mask, numpy
from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole
from wdscli.loader.order.order import Permutation, rising
from wdscli.loader.order.packs import ends_within, in_packs, in_runs, in_sequence

BATCH_SAMPLES = 20
"""The default number of samples in a batch, as in webdataset."""
WINDOW = 1 << 16
"""The default number of positions in a window."""
NO_BUCKET = (None, (), False)
NO_BUDGET = (None, None, None, False, None)
"""The default arguments of ``batched`` for buckets and for a budget."""
Edges: TypeAlias = "tuple[tuple[float, ...], ...]"
"""The edges of each number that chooses a bucket."""
HINT_OF_BUCKETS = "buckets=[0.8, 1.25] or buckets={(0, 256): 128, (256, 512): 64}"
HINT_OF_SEVERAL = (
    'bucket=["json.seconds", "json.tokens"], buckets=[[5, 10], [50]] or buckets={((0, 5), (0, 50)): 64, ...}'
)


class Misfit(Exception):
    """The error of a sample that fits into no batch. ``row`` is the sample's index in the values."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class Rule(NamedTuple):
    """How samples are grouped by their values. ``value`` is an expression, or for a mix a dict with an expression for
    each set.

    ``size`` is the budget, or the length of a pack. ``edges`` are the values between the buckets, and ``sizes`` has the
    batch size of each bucket, or 0 for a range of values outside all buckets. ``most`` is the largest number of samples
    in a batch, or 0 for no limit. ``together`` is the number of batches in a group, or -1 for the number of ranks.
    ``also`` has other expressions, each with its largest sum in a batch. Buckets by several numbers have other
    expressions in ``more_values``, their edges in ``more_edges``, and the bucket of each cell of the grid.
    """

    kind: Literal["bucket", "budget", "packed"]
    value: str | Mapping[str, str]
    size: float = 0
    edges: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    most: int = 0
    together: int = 1
    partial: bool = True
    too_long: Literal["error", "truncate", "drop"] = "error"
    window: int = WINDOW
    in_sequence: bool = False
    also: tuple[tuple[str, float], ...] = ()
    more_values: tuple[str, ...] = ()
    more_edges: tuple[tuple[float, ...], ...] = ()
    bucket_of_cell: tuple[int, ...] = ()

    @property
    def expressions(self) -> tuple[str | Mapping[str, str], ...]:
        """The expressions of the columns of values."""
        return self.value, *self.more_values, *(expression for expression, _ in self.also)

    @property
    def limits(self) -> list[float]:
        """The largest sums of the other expressions."""
        return [limit for _, limit in self.also]

    @property
    def name(self) -> str:
        """The text for this stage in the repr() of a dataset."""
        if self.kind == "bucket":
            bucket = [self.value, *self.more_values] if self.more_values else self.value
            return f"batched(bucket={bucket!r})"
        return f"packed({self.size})" if self.kind == "packed" else f"batched(budget={self.size})"

    def identity(self) -> list[Any]:
        """Return the facts that must be the same in a saved state and here, as plain values."""
        value = self.value if isinstance(self.value, str) else dict(self.value)
        edges_and_sizes = list(self.edges), list(self.sizes)
        limits = self.most, self.together, self.partial, self.too_long, self.window
        more: list[Any] = ["in sequence"] if self.in_sequence else []
        if self.more_values:
            edges = [list(of_number) for of_number in self.more_edges]
            more += [[*self.more_values], edges, list(self.bucket_of_cell)]
        more += [list(expression_and_limit) for expression_and_limit in self.also]
        return [self.kind, value, self.size, *edges_and_sizes, *limits, *more]


def rule_of_batches(size: int, partial: bool, window: int, by_bucket: Any, by_budget: Any) -> Rule | None:
    """Return the rule for ``batched(bucket, buckets, same_bucket)`` or ``batched(budget, length, max_samples, balance,
    also)``, or None if all these have their defaults. Raises UsageError for arguments that cannot be combined."""
    if (by_bucket, by_budget, window) == (NO_BUCKET, NO_BUDGET, WINDOW):
        return None
    window = want_whole("batched: window", window, 1)
    (bucket, buckets, same_bucket), (budget, length, max_samples, balance, also) = by_bucket, by_budget
    if size != BATCH_SAMPLES and (budget is not None or isinstance(buckets, Mapping)):
        raise UsageError(
            f"batched({size}) has a batch size, but also a budget or sizes of buckets",
            hint=f"leave out the batch size {size}",
        )
    if bucket is not None and buckets and by_budget == NO_BUDGET:
        rule = _rule_of_buckets(bucket, buckets, size)
        together = _together("batched: same_bucket", same_bucket)
        return rule._replace(together=together, partial=partial, window=window)
    if budget is not None and length is not None and by_bucket == NO_BUCKET:
        if not isinstance(budget, (int, float)) or not budget > 0:
            raise UsageError(f"batched(budget={budget!r}) is not a number above 0")
        want_expression("batched: length", length)
        if not partial:
            raise UsageError(
                "batched(budget=) has no incomplete batches to drop", hint="leave out partial=False"
            )
        rule = Rule("budget", length, budget, most=_most(max_samples), window=window)
        return rule._replace(together=_together("batched: balance", balance), also=_also("batched", also))
    raise UsageError(
        "batched() takes either bucket= with buckets=, or budget= with length=",
        hint='batched(64, bucket="json.width / json.height", buckets=[0.8, 1.25])',
    )


def _rule_of_buckets(bucket: Any, buckets: Any, size: int) -> Rule:
    """Return the rule for buckets by one expression, or by a list of several. ``buckets`` has the edges of each number,
    or is a dict {ranges of a bucket: batch size}. Raises UsageError."""
    has_several = isinstance(bucket, (list, tuple)) and len(bucket) > 1
    expressions = tuple(bucket) if has_several else (bucket,)
    for expression in expressions:
        want_expression("batched: bucket", expression)
    if isinstance(buckets, Mapping):
        edges, bucket_of_cell, sizes = _grid_of_ranges(buckets, len(expressions))
    else:
        edges = _edges(buckets, len(expressions))
        bucket_of_cell = [*range(prod(len(of_number) + 1 for of_number in edges))]
        sizes = [size] * len(bucket_of_cell)
    if not has_several:
        return Rule("bucket", bucket, 0, edges[0], tuple(sizes[number] for number in bucket_of_cell))
    rule = Rule("bucket", bucket[0], 0, edges[0], tuple(sizes))
    return rule._replace(
        more_values=expressions[1:], more_edges=edges[1:], bucket_of_cell=tuple(bucket_of_cell)
    )


def _edges(buckets: Any, count: int) -> Edges:
    """Return the edges of each of ``count`` numbers from a list. Raises UsageError if they do not increase."""
    if count > 1 and (not isinstance(buckets, Sequence) or len(buckets) != count):
        raise UsageError(
            f"buckets={buckets!r} is not a list of edges for each of {count} numbers", hint=HINT_OF_SEVERAL
        )
    edges = [_numbers_in(buckets, of_number) for of_number in (buckets if count > 1 else [buckets])]
    for of_number in edges:
        if any(first >= second for first, second in pairwise(of_number)):
            raise UsageError(
                f"buckets={list(of_number)}: the edges must increase", hint="buckets=[0.8, 1.25]"
            )
    return tuple(edges)


def _numbers_in(buckets: Any, values: Any) -> tuple[float, ...]:
    """Return edges as numbers. Raises UsageError, which shows ``buckets``."""
    try:
        return tuple(map(float, [None] if isinstance(values, str) else values))
    except (TypeError, ValueError):
        raise UsageError(
            f"batched: buckets={buckets!r} has no numbers as edges", hint=HINT_OF_BUCKETS
        ) from None


def _grid_of_ranges(buckets: Mapping[Any, Any], count: int) -> tuple[Edges, list[int], list[int]]:
    """Return the buckets of a dict {ranges: batch size}, where a bucket has a range of each of ``count`` numbers: the
    edges of each number, the bucket of each cell, and the batch size of each bucket. Bucket 0 has the cells outside all
    ranges, and its batch size is 0. Raises UsageError."""
    hint = HINT_OF_BUCKETS if count == 1 else HINT_OF_SEVERAL
    ranges_of_buckets = []
    for shown, size in buckets.items():
        ranges = [shown] if count == 1 else shown
        if not isinstance(ranges, Sequence) or isinstance(ranges, str) or len(ranges) != count:
            raise UsageError(f"buckets: {shown!r} is not a range for each of {count} numbers", hint=hint)
        bounds = tuple(_numbers_in(buckets, of_number) for of_number in ranges)
        if any(len(pair) != 2 or not pair[0] < pair[1] for pair in bounds):
            raise UsageError(f"buckets: {shown!r} has an empty range", hint=hint)
        ranges_of_buckets.append((bounds, want_whole(f"buckets: the size of {shown!r}", size, 1)))
    ranges_of_buckets.sort()
    edges: Edges = tuple(
        tuple(sorted(set(chain.from_iterable(pairs))))
        for pairs in zip(*(bounds for bounds, _ in ranges_of_buckets))
    )
    shape = [len(of_number) + 1 for of_number in edges]
    bucket_of_cell = [0] * prod(shape)
    for bucket, (bounds, _) in enumerate(ranges_of_buckets, 1):
        spans = [
            range(of_number.index(first) + 1, of_number.index(end) + 1)
            for of_number, (first, end) in zip(edges, bounds)
        ]
        for cell in [int(numpy.ravel_multi_index(places, shape)) for places in product(*spans)]:
            if bucket_of_cell[cell]:
                shown = bounds if count > 1 else bounds[0]
                raise UsageError(f"buckets: {shown} overlaps another bucket", hint=hint)
            bucket_of_cell[cell] = bucket
    return edges, bucket_of_cell, [0, *(size for _, size in ranges_of_buckets)]


def rule_of_packs(rule: Rule, limits: Any, order: Any, balance: Any) -> Rule:
    """Return the rule for ``packed()``. ``rule`` has the size, the length and the window. ``limits`` are truncate,
    drop, max_samples and also. Raises UsageError."""
    truncate, drop, max_samples, also = limits
    if truncate and drop:
        raise UsageError("packed(truncate=True, drop=True)", hint="give one of them")
    want_expression("packed: length", rule.value)
    if order not in ("free", "kept"):
        raise UsageError(f"packed: order={order!r}", hint='order="free" or order="kept"')
    together = _together("packed: balance", balance)
    if order == "kept" and together != 1:
        raise UsageError('packed(order="kept", balance=True): balanced packs cannot keep the order')
    return rule._replace(
        size=want_whole("packed: size", rule.size, 1),
        window=want_whole("packed: window", rule.window, 1),
        most=_most(max_samples),
        together=together,
        too_long="truncate" if truncate else "drop" if drop else "error",
        in_sequence=order == "kept",
        also=_also("packed", also),
    )


def _together(name: str, argument: Any) -> int:
    """Return :attr:`Rule.together` for True, False or a number of ranks."""
    return -1 if argument is True else max(1, want_whole(name, argument, 0))


def _most(max_samples: Any) -> int:
    """Return :attr:`Rule.most` for ``max_samples``."""
    return 0 if max_samples is None else want_whole("max_samples", max_samples, 1)


def _also(method: str, also: Any) -> tuple[tuple[str, float], ...]:
    """Return :attr:`Rule.also` for a dict of expressions and their largest sums. Raises UsageError."""
    if not isinstance(also or {}, Mapping):
        raise UsageError(f"{method}(also={also!r}) is not a dict", hint='also={"json.images": 18}')
    for expression, limit in (also or {}).items():
        want_expression(f"{method}: also", expression)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < float("inf"):
            raise UsageError(f"{method}(also={{{expression!r}: {limit!r}}}) is not a number above 0")
    return tuple(sorted((also or {}).items()))


def want_expression(name: str, expression: Any) -> None:
    """Raise UsageError for a value that is neither an expression nor a dict with an expression for each set."""
    values = expression.values() if isinstance(expression, Mapping) else [expression]
    if not all(isinstance(value, str) for value in values):
        raise UsageError(
            f"{name}={expression!r} is not an expression", hint=f'{name.split()[-1]}="json.tokens"'
        )


class Planned(NamedTuple):
    """The batches of one window. ``rows`` has the rows of the window, batch after batch, and ``ends`` has the end of
    each batch in ``rows``. Three arrays have a number for each batch, in the unit of the value: ``used`` is the sum of
    its samples, ``cells`` is this sum after padding to the longest sample, and ``room`` is the largest sum that fits.
    ``shortened`` is the number of samples that were shortened, and ``cut_off`` the sum of what they lost. ``left_out``
    has the rows of samples that fit into no batch."""

    rows: I64
    ends: I64
    used: F64
    cells: F64
    room: F64
    shortened: F64
    cut_off: F64
    left_out: I64


def planned(values: F64, rule: Rule, of_window: int, skips: bool = False) -> Planned:
    """Plan the batches of one window; the key ``of_window`` decides their order. ``values`` has a row for each of
    ``rule.expressions``, or is one such row. With ``skips``, samples that fit into no batch are left out. Raises
    Misfit."""
    kind, columns = KINDS[rule.kind], numpy.atleast_2d(values)
    fits, is_too_large = kind.fits(columns, rule), columns[0] > rule.size
    for amounts, (_, limit) in zip(columns[1:], rule.also):
        fits &= (amounts >= 0) & (amounts <= limit)
        is_too_large |= amounts > limit
    is_refused = ~fits & ~(skips or (rule.too_long == "drop" and is_too_large))
    if is_refused.any():
        row = int(is_refused.argmax())
        raise Misfit(row, _misfit(columns[:, row], rule))
    lengths = values = columns[0]
    if rule.too_long == "truncate":
        lengths = numpy.minimum(values, rule.size)
    used_columns = [lengths, *columns[1:]]
    if not fits.all():
        used_columns = [column[fits] for column in used_columns]
    rows, numbers = kind.grouped(used_columns, rule)
    if kind.work is not None and rule.together > 1:
        rows, numbers = _balanced(rows, numbers, used_columns, rule, kind.work)
    count = _count(numbers)
    rows = rows if fits.all() else fits.nonzero()[0][rows]
    places = numbers if rule.in_sequence else _permuted(count, rule.together, of_window)[numbers]
    order = rising(places)
    counts = numpy.bincount(places, minlength=count)
    ends = counts.cumsum()
    rows = rows[order]
    load = kind.load([column[rows] for column in (lengths, *columns[1:])], ends - counts, counts, rule)
    shortened: tuple[F64, F64] = (numpy.zeros(count), numpy.zeros(count))
    if lengths is not values:
        lost = (values - lengths)[rows]
        shortened = _sums((lost > 0).astype(float), ends - counts), _sums(lost, ends - counts)
    return Planned(rows, ends, *load, *shortened, (~fits).nonzero()[0])


def reason_of_misfit(values: F64, rule: Rule) -> str:
    """Return why no batch has room for a sample, as a reason for counting it. ``values`` has its value of each
    column."""
    expression, value, _ = _misfitting(values, rule)
    prefix = "" if expression is rule.value else f"{expression}: "
    if numpy.isnan(value):
        return f"{prefix}missing or not a number"
    if rule.kind == "bucket":
        return "in no bucket"
    return f"{prefix}below 0" if value < 0 else f"{prefix}too large" if prefix else "too long"


def _misfit(values: F64, rule: Rule) -> str:
    """Return why no batch has room for a sample, as a text for an error."""
    expression, value, limit = _misfitting(values, rule)
    what = expression if numpy.isnan(value) else f"{expression} = {value:g}"
    if rule.more_values and not numpy.isnan(value):
        what = ", ".join(f"{part} = {number:g}" for part, number in zip(rule.expressions, values))
    if numpy.isnan(value) or rule.kind == "bucket" or value < 0:
        return f"{what} is {reason_of_misfit(values, rule).rpartition(': ')[2]}"
    if expression is not rule.value:
        return f"{what} is more than {limit:g}, the largest sum in a batch"
    is_packed = rule.kind == "packed"
    return (
        f"{what} is more than {f'{limit:g}, the size of a pack' if is_packed else f'the budget of {limit:g}'}"
    )


def _misfitting(values: F64, rule: Rule) -> tuple[Any, float, float]:
    """Return the first expression of a sample that fits into no batch, with its value and limit."""
    for value, (expression, limit) in zip(values[1:], rule.also):
        if KINDS[rule.kind].fits(values[:, None], rule)[0] and not 0 <= value <= limit:
            return expression, float(value), limit
    for expression, value in zip(rule.more_values, values[1:]):
        if numpy.isnan(value):
            return expression, float(value), rule.size
    return rule.value, float(values[0]), rule.size


def _permuted(count: int, together: int, of_window: int) -> I64:
    """Return the place of each of ``count`` batches after groups of ``together`` batches were permuted."""
    batches: I64 = numpy.arange(count)
    groups, within = numpy.divmod(batches, together)
    place_of: I64 = numpy.empty(count // together, dtype=numpy.int64)
    place_of[Permutation(len(place_of), of_window).at(batches[: len(place_of)])] = batches[: len(place_of)]
    return place_of[groups] * together + within


Grouping: TypeAlias = tuple[I64, I64]
"""The batches of some values before they are permuted, as (rows, numbers): row ``rows[i]`` is in batch ``numbers[i]``.
The rows of a batch are in rising order."""


def _count(numbers: I64) -> int:
    """Return the number of batches."""
    return int(numbers.max()) + 1 if len(numbers) else 0


class Kind(NamedTuple):
    """The functions of a kind of batches. ``fits(columns, rule)`` says which samples fit into a batch.
    ``grouped(columns, rule)`` groups samples that all fit. ``load(columns, firsts, counts, rule)`` returns ``used``,
    ``cells`` and ``room`` of :class:`Planned`. ``work(lengths, firsts)`` says how much work the batches are, in any
    unit; without it, groups of batches are not balanced. Batch i has the ``counts[i]`` lengths from index ``firsts[i]``
    on."""

    fits: Callable[[F64, Rule], Mask]
    grouped: Callable[[Sequence[F64], Rule], Grouping]
    load: Callable[[Sequence[F64], I64, I64, Rule], tuple[F64, F64, F64]]
    work: Callable[[F64, I64], F64] | None = None


def _balanced(
    rows: I64, numbers: I64, columns: Sequence[F64], rule: Rule, work: Callable[[F64, I64], F64]
) -> Grouping:
    """Return the batches in groups of ``rule.together`` neighbours of about equal work. If the batches are no whole
    number of groups, the samples of the batches with least work are dealt to the batches of the last groups."""
    lengths, count = columns[0], _count(numbers)
    left_over = count % rule.together
    counts = numpy.bincount(numbers, minlength=count)
    order = rising(numbers)
    place_of: I64 = numpy.empty(count, dtype=numpy.int64)
    place_of[rising(work(lengths[rows[order]], counts.cumsum() - counts))[::-1]] = numpy.arange(count)
    balanced = place_of[numbers]
    if left_over:
        kept = count - left_over
        dealt = (balanced >= kept).nonzero()[0]
        places = _dealt([column[rows[dealt]] for column in columns], rule)
        if places is None:
            return _balanced(*_halved(rows, numbers, rule.together), columns, rule, work)
        balanced[dealt] = kept + places
    return rows, balanced


def _dealt(columns: Sequence[F64], rule: Rule) -> I64 | None:
    """Deal lengths to the t batches of a group: the longest first, to batches 0, 1, ..., t - 1, t - 1, ..., 1, 0, 0, 1,
    ... Return the batch of each length, or None if they do not fit, or a batch would be empty."""
    lengths = columns[0]
    turns, turn_places = numpy.divmod(numpy.arange(len(lengths)), rule.together)
    places = numpy.empty_like(turns)
    places[rising(lengths)[::-1]] = numpy.where(turns % 2, rule.together - 1 - turn_places, turn_places)
    if len(lengths) < rule.together:
        return None
    limited = [*zip(columns[1:], rule.limits), *([(lengths, rule.size)] if rule.kind == "packed" else [])]
    is_over = any((numpy.bincount(places, amounts) > limit).any() for amounts, limit in limited)
    return None if is_over else places


def _halved(rows: I64, numbers: I64, together: int) -> Grouping:
    """Return the samples in a number of batches that is a multiple of ``together``. The batches with most samples are
    halved. If every batch has one sample, samples are repeated."""
    missing = -_count(numbers) % together
    while missing:
        counts = numpy.bincount(numbers)
        halved = rising(counts)[::-1][:missing]
        halved = halved[counts[halved] > 1]
        if not len(halved):
            whole = len(counts) + missing
            return numpy.resize(rows, whole), numpy.arange(whole)
        second_half = numpy.full(len(counts), -1)
        second_half[halved] = numpy.arange(len(counts), len(counts) + len(halved))
        order = rising(numbers)
        place = numpy.empty_like(numbers)
        place[order] = numpy.arange(len(numbers)) - (counts.cumsum() - counts)[numbers[order]]
        is_second = (2 * place >= counts[numbers]) & (second_half[numbers] >= 0)
        numbers = numpy.where(is_second, second_half[numbers], numbers)
        missing -= len(halved)
    return rows, numbers


def _sums(lengths: F64, firsts: I64) -> F64:
    return numpy.add.reduceat(lengths, firsts) if len(firsts) else lengths[:0]


def _sums_of_squares(lengths: F64, firsts: I64) -> F64:
    return _sums(lengths * lengths, firsts)


def _longest(lengths: F64, firsts: I64) -> F64:
    return numpy.maximum.reduceat(lengths, firsts) if len(firsts) else lengths[:0]


def _buckets_of(columns: Sequence[F64], rule: Rule) -> I64:
    """Return the bucket of each sample. A cell has a range of each number, and the cells are numbered row by row, so
    the range of the last number changes fastest. Without ``bucket_of_cell``, each cell is a bucket."""
    cells: I64 = numpy.zeros(len(columns[0]), dtype=numpy.int64)
    for values, edges in zip(columns, [rule.edges, *rule.more_edges]):
        cells = cells * (len(edges) + 1) + numpy.searchsorted(edges, values, "right")
    return numpy.array(rule.bucket_of_cell)[cells] if rule.bucket_of_cell else cells


def _fits_bucket(columns: F64, rule: Rule) -> Mask:
    is_missing = numpy.isnan(columns).any(axis=0)
    return ~is_missing & (numpy.array(rule.sizes)[_buckets_of(columns, rule)] > 0)


def _fits_size(columns: F64, rule: Rule) -> Mask:
    values = columns[0]
    return (values >= 0) & ((values <= rule.size) | (rule.too_long == "truncate"))


def _by_bucket(columns: Sequence[F64], rule: Rule) -> Grouping:
    """Group samples by bucket."""
    of_row = _buckets_of(columns, rule)
    order = rising(of_row)
    ends = numpy.bincount(of_row, minlength=len(rule.sizes)).cumsum().tolist()
    rows, numbers, batches = [order[:0]], [order[:0]], 0
    for size, first, end in zip(rule.sizes, [0, *ends], ends):
        if not size:  # the gap between two buckets, which has no rows
            continue
        used_rows, numbers_in_bucket, count = _cut(order[first:end], size, rule)
        rows.append(used_rows)
        numbers.append(numbers_in_bucket + batches)
        batches += count
    return numpy.concatenate(rows), numpy.concatenate(numbers)


def _load_of_buckets(columns: Sequence[F64], firsts: I64, counts: I64, rule: Rule) -> tuple[F64, F64, F64]:
    """Count samples: a bucket has room for a number of samples."""
    sizes = numpy.array(rule.sizes, dtype=float)
    room = sizes[_buckets_of([column[firsts] for column in columns], rule)]
    return counts.astype(float), counts.astype(float), room


def _cut(rows: I64, size: int, rule: Rule) -> tuple[I64, I64, int]:
    """Return the used rows of one bucket, the number of each row's batch, and the number of batches."""
    together = rule.together
    whole = size * together
    if not rule.partial:
        rows = rows[: len(rows) // whole * whole]
    if together == 1 or not len(rows):
        return rows, numpy.arange(len(rows)) // size, -(-len(rows) // whole)
    if size == 1 or len(rows) < together:
        rows = numpy.resize(rows, -(-len(rows) // together) * together)
    groups = -(-len(rows) // whole)
    # The last group's samples are spread evenly over its batches. If the last group has fewer samples than batches, the
    # samples of the last two groups are spread together.
    shared = 1 if len(rows) - (groups - 1) * whole >= together else 2
    head = (groups - shared) * whole
    tail: I64 = numpy.arange(len(rows) - head) * (shared * together) // max(1, len(rows) - head)
    numbers = numpy.concatenate((numpy.arange(head) // size, tail + (groups - shared) * together))
    return rows, numbers, groups * together


def _by_budget(columns: Sequence[F64], rule: Rule) -> Grouping:
    """Group samples by the sum after padding to the longest."""
    values = columns[0]
    order = rising(values)[::-1]
    longest = values[order]
    most = min(rule.most or len(values), len(values))
    all_fit = longest * most <= rule.size
    fitting = numpy.where(all_fit, most, rule.size // numpy.where(all_fit, 1, longest))
    numbers = numpy.empty_like(order)
    ends = numpy.arange(len(values)) + fitting.astype(numpy.int64)
    amounts = [column[order] for column in columns[1:]]
    numbers[order] = in_runs(ends_within(ends, list(zip(amounts, rule.limits))))
    return numpy.arange(len(values), dtype=numpy.int64), numbers


def _load_of_budgets(columns: Sequence[F64], firsts: I64, counts: I64, rule: Rule) -> tuple[F64, F64, F64]:
    used, room = _sums(columns[0], firsts), numpy.full(len(firsts), float(rule.size))
    return used, counts * _longest(columns[0], firsts), room


def _packed(columns: Sequence[F64], rule: Rule) -> Grouping:
    """Group samples by the sums of their values."""
    pack, lengths = in_sequence if rule.in_sequence else in_packs, columns[0]
    numbers = pack(lengths, rule.size, rule.most, list(zip(columns[1:], rule.limits)))
    return numpy.arange(len(lengths), dtype=numpy.int64), numbers


def _load_of_packs(columns: Sequence[F64], firsts: I64, counts: I64, rule: Rule) -> tuple[F64, F64, F64]:
    used = _sums(columns[0], firsts)
    return used, used, numpy.full(len(firsts), float(rule.size))


KINDS: Mapping[str, Kind] = {
    "bucket": Kind(_fits_bucket, _by_bucket, _load_of_buckets),
    "budget": Kind(_fits_size, _by_budget, _load_of_budgets, _longest),
    "packed": Kind(_fits_size, _packed, _load_of_packs, _sums_of_squares),
}
"""The functions of each kind of batches, by :attr:`Rule.kind`."""
