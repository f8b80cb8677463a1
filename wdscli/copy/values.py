"""Stored values of the inputs for the indexes of the output.

:class:`CarriedValues` holds the numbers that the indexes of all inputs have, in scratch space, and returns the numbers
of the samples in one output shard. The payloads of these samples do not change, so their values do not either. The
module does not know what the values mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from wdscli.arrays import I64, numpy
from wdscli.errors import WdsError
from wdscli.model import to_bytes
from wdscli.plan.inputs import Input
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.table import Growing, Ordered
from wdscli.selection.choice import FieldRule
from wdscli.selection.numbers import MISSING, Numbers
from wdscli.selection.where import Where
from wdscli.shards.index import Index
from wdscli.shards.reading import find_index
from wdscli.storage import is_local


class CarriedValues:
    """The values that all inputs have and that ``rule`` keeps. None of them is in memory."""

    def __init__(self, inputs: Sequence[Input], rule: FieldRule | None) -> None:
        self._names: list[str] = []
        self._firsts: I64 = numpy.zeros(len(inputs) + 1, dtype=numpy.int64)
        self._columns: dict[str, Growing] = {}
        self._has_floats: dict[str, list[bool]] = {}
        self._types: dict[str, set[str]] = {}
        self._exact: dict[str, bool] = {}
        has_begun = False
        for number, one in enumerate(inputs):
            index = _index_of(one)
            stored = {} if index is None else index.numbers
            if index is not None and index.samples and not has_begun:
                self._begin((name for name in stored if _is_kept(name, rule)), number)
                has_begun = True
            if index is None or (index.samples and not self._names):
                self._names = []
                return
            self._firsts[number + 1] = self._firsts[number] + index.samples
            if index.samples:
                self._names = [name for name in self._names if name in stored]
            for name in self._names:
                self._add(name, stored.get(name) or Numbers(numpy.zeros(0, dtype="<i8"), True))
        self._raw = {
            name: numpy.frombuffer(self._columns[name].mapped(), dtype="<i8") for name in self._names
        }

    def _begin(self, names: Iterable[str], number: int) -> None:
        """Take the names of input ``number``, the first that is not empty."""
        self._names = list(names)
        for name in self._names:
            self._columns[name], self._has_floats[name] = Growing(), [False] * number
            self._types[name], self._exact[name] = set(), True

    def _add(self, name: str, numbers: Numbers) -> None:
        self._columns[name].append(numbers.array.view("<i8"))
        self._has_floats[name].append(numbers.array.dtype.kind == "f")
        if not numbers.missing.all():
            self._types[name].add(numbers.array.dtype.kind)
        self._exact[name] &= numbers.exact

    @classmethod
    def of(cls, plan: ReorderPlan) -> CarriedValues | None:
        """The values that the shards of a plan get; None if it has none: for joins, for samples of damaged shards, for
        inputs that are read without an index, and for remote inputs, whose indexes would cost one more request each."""
        request, contents = plan.request, plan.contents
        if not all(is_local(one.address) for one in contents.inputs):
            return None
        is_plain = contents.joined is None and request.on_error == "stop" and request.use_index
        if not is_plain or not request.settings.with_index or not contents.inputs:
            return None
        found = cls(contents.inputs, request.selection.field_rule)
        return found if found._names else None

    def part(self, samples: Ordered) -> dict[str, Numbers]:
        """The values of some samples, in their order."""
        shards: Any = samples.column("shard", 0, samples.total).astype(numpy.int64)
        places = self._firsts[shards] + samples.column("place", 0, samples.total).astype(numpy.int64)
        return {name: self._numbers(name, shards, places) for name in self._names}

    @property
    def total(self) -> int:
        """The number of samples of all inputs; 0 without values."""
        return int(self._firsts[-1]) if self._names else 0

    def all(self) -> dict[str, Numbers]:
        """The values of all samples of the inputs."""
        shards: I64 = numpy.repeat(numpy.arange(len(self._firsts) - 1), numpy.diff(self._firsts))
        return {name: self._numbers(name, shards, numpy.arange(self.total)) for name in self._names}

    def _numbers(self, name: str, shards: Any, places: Any) -> Numbers:
        raw = self._raw[name][places]
        were_floats = numpy.array(self._has_floats[name])[shards]
        exact = self._exact[name] and len(self._types[name]) < 2
        if "f" not in self._types[name]:
            return Numbers(numpy.where(were_floats, MISSING, raw), exact)
        numbers = raw.astype("<f8")
        numbers[raw == MISSING] = math.nan
        return Numbers(numpy.where(were_floats, raw.view("<f8"), numbers), exact)


def _index_of(one: Input) -> Index | None:
    """The index of an input, if commands may use it."""
    if one.copy:
        return None
    try:
        with one.open() as source:
            return find_index(one.address, source)
    except WdsError:
        return None  # the task that reads it raises the error


def _is_kept(name: str, rule: FieldRule | None) -> bool:
    """Whether a field rule changes no field of an expression."""
    if rule is None:
        return True
    fields = {to_bytes(field) for one in Where(name).named for field in one.fields}
    renamed = {rename.new for rename in rule.renames}
    return all(rule.plan((field,)) == ((0, field),) and field not in renamed for field in fields)
