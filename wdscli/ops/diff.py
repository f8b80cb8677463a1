"""``diff``: compare two sets sample by sample.

:func:`diff` passes every :class:`Difference` to its caller and returns a :class:`DiffReport`. It surveys both sets like
a plan, and matches keys by sorting their hashes. The copier then reads samples with the same key from both sets, some
hundred at a time. It reads them in canonical form, so that headers of another tar writer are no difference. If the
bytes differ, the samples are compared field by field, and JSON fields value by value. Payloads are compared byte by
byte, because a manifest's checksum may be older than its shard. The comparison needs the memory of two plans, and 32
bytes for each sample of either set.

For two views, the places of samples in the base shards are compared first (:class:`_ViewPlaces`). A sample is equal if
both views take it from the same place of the same base. For the other samples, only keys are read. If no such key is in
both views, the comparison is complete. Otherwise the views are surveyed too, and these other samples are copied and
compared. This module does not print.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from wdscli.arrays import I64, U64, numpy
from wdscli.copy.copier import GatherTask
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.executors import make_executor, run_tasks, useful_jobs
from wdscli.ordering import mix_array
from wdscli.plan.duplicates import Rereader
from wdscli.plan.inputs import Input
from wdscli.plan.names import unquoted
from wdscli.plan.orders import InputOrder
from wdscli.plan.plan import ReorderPlan, make_plan
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.survey import SurveyTask
from wdscli.plan.table import OrderedSamples
from wdscli.progress import QUIET, Progress
from wdscli.selection import Selection
from wdscli.shards.index import Check
from wdscli.shards.inputs import is_manifest_name, open_set
from wdscli.shards.view import MISSING
from wdscli.shards.view_shards import OpenView, forget, opened
from wdscli.shards.writing import ShardSettings
from wdscli.text import to_bytes, to_text
from wdscli.transform.shards import gathered_bytes, parsed_samples, payloads_of

SLICE_SAMPLES = 512
SLICE_BYTES = 1 << 23
"""A task compares at most this many samples and bytes. A larger sample is a task of its own."""
MOST_KEYS = 1 << 20
"""If more samples than this are in only one of two views, their keys are not compared in memory."""
MOST_PLACES = 3
"""The most places in JSON that are listed for a sample."""
MOST_JSON_BYTES = 1 << 24
"""In a larger JSON document, the places that differ are not searched."""
_ABSENT = object()
ONLY_A, ONLY_B, CHANGED = "only-a", "only-b", "changed"


class Difference(NamedTuple):
    """One sample that differs. ``kind`` is ``only-a``, ``only-b`` or ``changed``. ``added`` are fields only in the
    second set, ``gone`` are fields only in the first set, and ``differ`` are fields with different payloads."""

    kind: str
    key: str
    added: Sequence[str] = ()
    gone: Sequence[str] = ()
    differ: Sequence[str] = ()
    reordered: bool = False
    """Whether the two sets have the sample's fields in different order."""
    places: Sequence[str] = ()
    """The first places in JSON that differ, with both values: ``json.meta.width: 640 -> 512``."""


class DiffReport(NamedTuple):
    """Counts of samples: in each set, in both sets, and with each kind of difference. ``order`` describes how the order
    of samples differs, and ``shards`` how the boundaries of shards differ. They are empty if equal or not compared."""

    samples_a: int
    samples_b: int
    both: int
    only_a: int
    only_b: int
    changed: int
    order: str
    shards: str

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return not (self.only_a or self.only_b or self.changed or self.order or self.shards)


class _Match(NamedTuple):
    """Rows of matched samples, in the order of set A, and rows of samples that are in only one set, in rising order."""

    rows_a: I64
    rows_b: I64
    only_a: I64
    only_b: I64


def diff(
    request: Request,
    each: Callable[[Difference], None],
    *,
    keys_only: bool = False,
    ignore_order: bool = False,
    on: str | None = None,
    progress: Progress = QUIET,
) -> DiffReport:
    """Compare the two ``inputs`` of a request, A and B. Samples are matched by key, or by the value of the expression
    ``on``. Then this value is the key in differences.

    ``each`` is called with every difference. First come samples that are only in A, then samples in both sets that
    differ, then samples that are only in B. Each group is in the order of its set. ``keys_only`` compares only keys. If
    both sets have the same keys, the order of samples and the boundaries of shards are compared too, unless
    ``ignore_order`` is true. The output of the request has no effect.

    Raises UsageError, InputError, and DataError for damaged shards and for a repeated key.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> for name, text in (("a", b"1"), ("b", b"2")):
    ...     with ShardWriter(f"{folder}/{name}.tar") as writer:
    ...         writer.write("n1", {"txt": text})
    >>> sets = Request([f"{folder}/a.tar", f"{folder}/b.tar"], "-")
    >>> report = diff(sets, lambda difference: print(difference.key, difference.differ))
    n1 ['txt']
    >>> report.changed, report.same
    (1, False)
    """
    views = _named(request) if on is None else None
    if views is not None and not request.selection.changes_members:
        named = _compare_names(views, each, ignore_order)
        if named is not None:
            return named
    rekey = None if on is None else f"{{{on}!q}}"
    requests = [request._replace(inputs=[text], allow_empty=True, rekey=rekey) for text in request.inputs]
    return _compared(requests, views, each, keys_only=keys_only, ignore_order=ignore_order, progress=progress)


def _compared(
    requests: Sequence[Request],
    views: tuple[_ViewPlaces, _ViewPlaces] | None,
    each: Callable[[Difference], None],
    *,
    keys_only: bool,
    ignore_order: bool,
    progress: Progress,
) -> DiffReport:
    """Plan two sets, and compare them. If both are views, ``views`` has the places that they name."""
    with Scratch() as scratch_a, Scratch() as scratch_b:
        pairs = zip("AB", requests, (scratch_a, scratch_b))
        plans = [_planned(*pair, brings=not keys_only, progress=progress) for pair in pairs]
        match = _match(*(plan.contents.ordered.column("key", 0, plan.samples) for plan in plans))
        doubtful, changed = match if views is None else _at_other_places(plans, match, views), 0
        for key in _keys(plans[0], match.only_a):
            each(Difference(ONLY_A, key))
        for difference in () if keys_only else _changes(plans, doubtful, progress):
            each(difference)
            changed += 1
        for key in _keys(plans[1], match.only_b):
            each(Difference(ONLY_B, key))
        only_a, only_b = len(match.only_a), len(match.only_b)
        order = "" if ignore_order else _order(match, [partial(_key_of, plan) for plan in plans])
        shards = "" if ignore_order or only_a or only_b else _boundaries(*map(_counts, plans))
        samples_a, samples_b = (plan.samples for plan in plans)
    return DiffReport(samples_a, samples_b, len(match.rows_a), only_a, only_b, changed, order, shards)


class _ViewPlaces:
    """The samples of a view, in order. ``columns`` has a column for each joined set. For each sample, this column has a
    number that contains the base's number and the place in the base. A missing part is -1. ``numbers`` maps the
    contents of bases to their numbers, so that equal bases of two views have equal numbers."""

    def __init__(self, view: OpenView, numbers: dict[tuple[object, ...], int]) -> None:
        self.view = view
        self.counts = [shard.samples for shard in view.manifest.shards]
        identities = [
            (base.headers, base.size_bytes, base.checksum or name)
            for base, name in zip(view.view.bases, view.bases)
        ]
        base_numbers = [numbers.setdefault(identity, len(numbers)) for identity in identities]
        self._bases = {number: base for base, number in enumerate(base_numbers)}
        of_base: I64 = numpy.array([*base_numbers, MISSING], dtype=numpy.int64)
        self.columns: list[I64] = [numpy.empty(0, dtype=numpy.int64)] * view.view.rule.sets
        shards = [view.samples_of(number) for number in range(len(self.counts))]
        for of_set, parts in enumerate(zip(*shards, strict=True)):
            bases, places = (numpy.concatenate(arrays) for arrays in zip(*parts, strict=True))
            self.columns[of_set] = numpy.where(bases == MISSING, MISSING, of_base[bases] << 32 | places)

    @property
    def hashes(self) -> U64:
        """One number for each sample. It is the first part, or a hash of all parts if some sample has no first part."""
        hashes: U64 = self.columns[0].view(numpy.uint64)
        if (self.columns[0] == MISSING).any():
            for column in self.columns[1:]:
                hashes = mix_array(hashes ^ column.view(numpy.uint64))
        return hashes

    def key(self, row: int) -> str:
        """The key of a sample. Raises DataError if a base has changed."""
        part = next(number for column in self.columns if (number := int(column[row])) != MISSING)
        return to_text(self.view.index(self._bases[part >> 32], Check.ALL_LOCAL).key(part & 0xFFFFFFFF))

    def check(self) -> None:
        """Raise DataError if a base has another size or other headers than at first."""
        for base in range(len(self.view.bases)):
            self.view.index(base, Check.ALL_LOCAL)


def _named(request: Request) -> tuple[_ViewPlaces, _ViewPlaces] | None:
    """Return the places that two views name. Return None if one set is no view, or if the two views make fields from
    their bases by different rules."""
    if not all(map(is_manifest_name, request.inputs)):
        return None
    views = []
    # Forget indexes in memory, because they would not show that a base has changed.
    forget()
    for address in request.inputs:
        manifest = open_set([address], trust_addresses=request.trust_addresses).manifest
        if manifest is None or manifest.view is None:
            return None
        views.append(opened(address))
    if views[0].view.rule.plain() != views[1].view.rule.plain():
        return None
    numbers: dict[tuple[object, ...], int] = {}
    return _ViewPlaces(views[0], numbers), _ViewPlaces(views[1], numbers)


def _same(views: tuple[_ViewPlaces, _ViewPlaces]) -> _Match | None:
    """Match the samples of two views by their places. Return None for crafted views that name a sample twice."""
    view_a, view_b = views
    match = _match(view_a.hashes, view_b.hashes)
    for rows, of in zip((match.rows_a, match.rows_b), views):
        if len(rows) and not (0 <= rows.min() <= rows.max() < sum(of.counts)):
            return None
    equal = (
        column_a[match.rows_a] == column_b[match.rows_b]
        for column_a, column_b in zip(view_a.columns, view_b.columns)
    )
    return match if all(column.all() for column in equal) else None


def _compare_names(
    views: tuple[_ViewPlaces, _ViewPlaces], each: Callable[[Difference], None], ignore_order: bool
) -> DiffReport | None:
    """Compare two views by the places that they name. Return None if samples at different places have the same key, if
    too many samples are in only one view, or if a view gives samples new keys. Raises DataError if a base has
    changed."""
    if any(shard.keys for view in views for shard in view.view.view.shards):
        return None
    match = _same(views)
    if match is None or len(match.only_a) + len(match.only_b) > MOST_KEYS:
        return None
    for view in views:
        view.check()
    keys = [
        [view.key(row) for row in rows.tolist()] for view, rows in zip(views, (match.only_a, match.only_b))
    ]
    if not {*keys[0]}.isdisjoint(keys[1]):
        return None
    for kind, side_keys in zip((ONLY_A, ONLY_B), keys):
        for key in side_keys:
            each(Difference(kind, key))
    order = "" if ignore_order else _order(match, [view.key for view in views])
    shards = "" if ignore_order or any(keys) else _boundaries(*(view.counts for view in views))
    samples_a, samples_b = (len(view.columns[0]) for view in views)
    only_a, only_b = map(len, keys)
    return DiffReport(samples_a, samples_b, len(match.rows_a), only_a, only_b, 0, order, shards)


def _at_other_places(
    plans: Sequence[ReorderPlan], match: _Match, views: tuple[_ViewPlaces, _ViewPlaces]
) -> _Match:
    """Return the matched rows whose samples the two views take from different places."""
    rows = []
    for plan, view, matched in zip(plans, views, (match.rows_a, match.rows_b)):
        inputs, places = (
            plan.contents.ordered.column(name, 0, plan.samples)[matched].astype(numpy.int64)
            for name in ("shard", "place")
        )
        rows.append((numpy.cumsum(view.counts) - view.counts)[inputs] + places)
    pairs = zip(*(view.columns for view in views))
    differs = numpy.any([column_a[rows[0]] != column_b[rows[1]] for column_a, column_b in pairs], axis=0)
    return match._replace(rows_a=match.rows_a[differs], rows_b=match.rows_b[differs])


def _planned(
    name: str, request: Request, scratch: Scratch, *, brings: bool, progress: Progress
) -> ReorderPlan:
    """Plan the set A or B. Raises DataError for a repeated key or value."""
    try:
        plan = make_plan(request, InputOrder("diff"), scratch, brings=brings, progress=progress)
    except (DataError, UsageError) as error:
        if isinstance(error, DataError) and error.code == "duplicate-key":
            error.hint = "samples are matched by key; `wds verify` lists repeated keys"
        if request.rekey is not None:
            _name_on(error)
        raise
    shards = len(plan.contents.inputs)
    progress.note(f"{name}: {request.inputs[0]}: {shards} shards, {plan.samples} samples")
    return plan


def _name_on(error: WdsError) -> None:
    """Name ``--on`` in an error about the keys that it makes."""
    text = error.message.replace("--rekey", "--on").replace("repeated key", "repeated value")
    error.message = unquoted(to_bytes(text))
    if isinstance(error, DataError):
        error.hint = "each sample needs another value; views select: wds split A -o a.json --where EXPR"


def _match(keys_a: U64, keys_b: U64) -> _Match:
    """Match samples by the hashes of their keys. The keys in a set are distinct. If two different keys have the same
    hash, the later comparison of samples notices it."""
    _, rows_a, rows_b = numpy.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
    order = numpy.argsort(rows_a, kind="stable")
    rows_a, rows_b = rows_a[order], rows_b[order]
    only_a, only_b = (
        numpy.setdiff1d(numpy.arange(len(keys)), rows, assume_unique=True)
        for keys, rows in ((keys_a, rows_a), (keys_b, rows_b))
    )
    return _Match(rows_a, rows_b, only_a, only_b)


def _keys(plan: ReorderPlan, rows: I64) -> Iterator[str]:
    """Yield the keys of some samples, read from headers or the index."""
    template, rekey = SurveyTask(Input(""), plan.request.settings.form, Selection()), plan.contents.rekey
    for sample in Rereader(plan.contents.inputs, template).samples(
        plan.contents.ordered.samples, rows.tolist()
    ):
        yield to_text(sample.key) if rekey is None else unquoted(sample.new_key(rekey))


def _key_of(plan: ReorderPlan, row: int) -> str:
    return next(_keys(plan, numpy.array([row], dtype=numpy.int64)))


def _changes(plans: Sequence[ReorderPlan], match: _Match, progress: Progress) -> Iterator[Difference]:
    """Yield the differences between samples that both sets have."""
    lengths = [plan.contents.ordered.column("length", 0, plan.samples) for plan in plans]
    jobs = plans[0].request.jobs
    total = int(lengths[0][match.rows_a].sum())
    progress.start("comparing", total, "bytes")
    slices = list(_slices(match, lengths))
    with make_executor(useful_jobs(jobs, len(slices), total)) as executor:
        tasks = (tuple(_task(plan, rows) for plan, rows in zip(plans, pair, strict=True)) for pair in slices)
        for (rows, _), differences in zip(slices, run_tasks(executor, compare, tasks), strict=True):
            yield from differences
            progress.advance(int(lengths[0][rows].sum()))
    progress.finish()


def _slices(match: _Match, lengths: Sequence[Any]) -> Iterator[tuple[I64, I64]]:
    def size(first: int, end: int) -> int:
        return max(int(of[rows[first:end]].sum()) for of, rows in zip(lengths, (match.rows_a, match.rows_b)))

    first = 0
    while first < len(match.rows_a):
        end = min(first + SLICE_SAMPLES, len(match.rows_a))
        while end > first + 1 and size(first, end) > SLICE_BYTES:
            end = first + (end - first) // 2
        yield match.rows_a[first:end], match.rows_b[first:end]
        first = end


def _task(plan: ReorderPlan, rows: I64) -> GatherTask:
    contents = plan.contents
    samples = OrderedSamples(contents.ordered.samples.take(rows))
    inputs = {number: contents.inputs[number] for number in samples.shard_numbers()}
    return GatherTask(
        contents.inputs[next(iter(inputs))].address,
        ShardSettings(plan.request.settings.form),
        inputs,
        samples,
        Selection(field_rule=plan.request.selection.field_rule),
        contents.rekey,
    )


def compare(sides: Sequence[GatherTask]) -> list[Difference]:
    """Return the differences between matched samples of two sets. Raises InputError, DataError."""
    data = [gathered_bytes(side) for side in sides]
    if data[0] == data[1]:
        return []
    batches = [
        parsed_samples(raw, side.address, side.settings.form) for raw, side in zip(data, sides, strict=True)
    ]
    differences: list[Difference] = []
    for row, keys in enumerate(zip(*(batch.keys for batch in batches), strict=True)):
        key_a, key_b = map(to_text if sides[0].rekey is None else unquoted, keys)
        if key_a != key_b:
            # Two keys with the same hash.
            differences += [Difference(ONLY_A, key_a), Difference(ONLY_B, key_b)]
            continue
        fields_a, fields_b = (
            dict(payloads_of(raw, batch, row)) for raw, batch in zip(data, batches, strict=True)
        )
        added = [to_text(name) for name in fields_b if name not in fields_a]
        gone = [to_text(name) for name in fields_a if name not in fields_b]
        differ = [to_text(name) for name in fields_a if name in fields_b and fields_a[name] != fields_b[name]]
        reordered = [name for name in fields_a if name in fields_b] != [
            name for name in fields_b if name in fields_a
        ]
        if added or gone or differ or reordered:
            places = [
                place
                for name in fields_a
                if to_text(name) in differ and (b"." + name).endswith(b".json")
                for place in _json_places(to_text(name), bytes(fields_a[name]), bytes(fields_b[name]))
            ]
            differences.append(
                Difference(CHANGED, key_a, added, gone, differ, reordered, places[:MOST_PLACES])
            )
    return differences


def _json_places(field: str, json_a: bytes, json_b: bytes) -> list[str]:
    """Return the first places in which two JSON documents differ, or nothing if one of them is not JSON."""
    if len(json_a) + len(json_b) > MOST_JSON_BYTES:
        return []
    try:
        return list(islice(_places(field, json.loads(json_a), json.loads(json_b)), MOST_PLACES))
    except (ValueError, RecursionError):
        return []


def _places(path: str, value_a: Any, value_b: Any) -> Iterator[str]:
    """Yield the places in which two JSON values differ, each with its values."""
    if isinstance(value_a, dict) and isinstance(value_b, dict):
        for name in {**value_a, **value_b}:
            step = f".{name}" if name.isidentifier() else f"[{_shown(name)}]"
            yield from _places(path + step, value_a.get(name, _ABSENT), value_b.get(name, _ABSENT))
    elif isinstance(value_a, list) and isinstance(value_b, list):
        for position, pair in enumerate(zip_longest(value_a, value_b, fillvalue=_ABSENT)):
            yield from _places(f"{path}[{position}]", *pair)
    elif (before := _shown(value_a)) != (after := _shown(value_b)):
        yield f"{path}: {_shortened(before)} -> {_shortened(after)}"


def _shown(value: Any) -> str:
    """Return a JSON value as text."""
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _shortened(text: str) -> str:
    """Shorten a text to at most 40 characters."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def _order(match: _Match, keys: Sequence[Callable[[int], str]]) -> str:
    """Return a text on how the order of samples differs, empty if it is the same. ``keys`` are two functions that
    return the key of a row."""
    rising = numpy.sort(match.rows_b)
    moved = numpy.flatnonzero(match.rows_b != rising)
    if not len(moved):
        return ""
    key_a, key_b = keys[0](int(match.rows_a[moved[0]])), keys[1](int(rising[moved[0]]))
    return f'{len(moved)} of {len(rising)} samples are in a different place; the first: "{key_a}" in A, "{key_b}" in B'


def _boundaries(counts_a: Sequence[int], counts_b: Sequence[int]) -> str:
    """Return a text on how the samples per shard differ, empty if they are the same."""
    if counts_a == counts_b:
        return ""
    if len(counts_a) != len(counts_b):
        return f"{len(counts_a)} shard{'s' * (len(counts_a) != 1)} in A, {len(counts_b)} in B"
    shard_number = next(number for number in range(len(counts_a)) if counts_a[number] != counts_b[number])
    return f"shard {shard_number} has {counts_a[shard_number]} samples in A, {counts_b[shard_number]} in B"


def _counts(plan: ReorderPlan) -> list[int]:
    counts: Counter[int] = Counter()
    for _, shards in plan.contents.ordered.blocks_of("shard"):
        counts.update(shards.tolist())
    return [counts[number] for number in range(len(plan.contents.inputs))]
