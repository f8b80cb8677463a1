"""``sort``: write all samples of a set sorted by key, by a field, by a value in a JSON field, or in the order of a
list.

:class:`SortOrder` extracts one byte string of each sample (:mod:`wdscli.plan.sort`) and sorts by these strings.
:class:`ListedOrder` follows the lines of a file. Samples with equal values always stay in input order.
:mod:`wdscli.plan.plan` makes the plan. This module does not know fields, and does not know how values compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128_hexdigest

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.plan.orders import VALUED_BYTES, Arrangement, Order, SurveyedSamples
from wdscli.plan.request import Request
from wdscli.plan.sort import (
    KEY,
    LACK_HINT,
    TO_SORT_BY,
    How,
    Missing,
    SortKey,
    SortValues,
    order_of_values,
    sort_key,
)
from wdscli.plan.split import KeyExtract
from wdscli.plan.values import Values
from wdscli.selection.keyfiles import key_lines
from wdscli.selection.named import MissingName, listed


@dataclass(frozen=True)
class SortOrder(Order):
    """An order that sorts samples by the values of ``extract``."""

    extract: SortValues
    missing: Missing | None = None
    """The option ``--missing``. None puts samples without a value last, and is an error if no sample has a value."""
    operation = "sort"
    is_repeatable = True
    bytes_per_sample = VALUED_BYTES

    def options(self) -> dict[str, Any]:
        by: dict[str, Any] = {"by": [str(key) for key in self.extract.keys]}
        return by if self.missing is None else {**by, "missing": self.missing}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        self.check(surveyed.values)
        return Arrangement(order_of_values(surveyed.values))

    def check(self, values: Iterable[bytes]) -> None:
        """Raise DataError if no sample has a value to sort by. ``values`` yields the values of all samples, and is read
        only until a value is found."""
        absent = self.extract.never_seen(values) if self.missing is None else []
        if absent:
            text = " or ".join(key.text for key in absent)
            raise DataError(f"no sample has {text}{TO_SORT_BY}", code="missing-value", hint=LACK_HINT)


@dataclass(frozen=True)
class ListedOrder(Order):
    """An order that follows a list of keys. Unlisted samples go ``first`` or ``last``, in input order, or are an error.
    A listed key that no sample has is an error too. ``places`` has each key's line in the file ``name``."""

    name: str
    places: Mapping[bytes, int]
    missing: Missing = "error"
    operation = "sort"
    is_repeatable = True
    bytes_per_sample = VALUED_BYTES
    extract = KeyExtract()

    def options(self) -> dict[str, Any]:
        digest = xxh3_128_hexdigest(b"\n".join(self.places))
        by = {"order_from": f"xxh3_128:{digest}"}
        return by if self.missing == "error" else {**by, "missing": self.missing}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        places = self.places
        nowhere = -1 if self.missing == "first" else len(places)
        key_places: I64 = numpy.fromiter((places.get(key, nowhere) for key in surveyed.values), numpy.int64)
        self._check(surveyed.values, key_places)
        lacking = len(places) - len(numpy.unique(key_places[(key_places >= 0) & (key_places < len(places))]))
        absent = self._absent(lacking, key_places) if lacking else None
        return Arrangement(numpy.argsort(key_places, kind="stable"), absent=absent)

    def _check(self, keys: Values, key_places: I64) -> None:
        """Raise DataError for samples that are not in the list, unless the order allows them."""
        unlisted = numpy.flatnonzero(key_places == len(self.places))
        if self.missing == "error" and len(unlisted):
            first = keys.part(int(unlisted[0]), int(unlisted[0]) + 1)[0]
            more_keys = f" and {len(unlisted) - 1} more keys" if len(unlisted) > 1 else ""
            raise DataError(
                f'{self.name} does not list "{to_text(first)}"{more_keys}',
                code="missing",
                hint="use --missing first or --missing last to keep such samples,\n"
                f"or --keys-from {self.name} to leave them out",
            )

    def _absent(self, lacking: int, key_places: I64) -> MissingName:
        """Return the listed keys that no sample has."""
        sample_places = set(key_places.tolist())
        names = [to_text(key) for key, place in self.places.items() if place not in sample_places]
        noun = "key" if lacking == 1 else "keys"
        return MissingName(f"{lacking} {noun} of {self.name} for --by not found: {listed(names, ', ')}", "")


def listed_order(request: Request, address: str, missing: Missing | None = None) -> ListedOrder:
    """Return the order of a list of keys in the format of ``--keys-from``: one key per line. Raises InputError, and
    UsageError, also for a repeated key."""
    if address == "-" and "-" in request.inputs:
        raise UsageError("standard input cannot hold both keys and a shard", hint="--by @FILE")
    places: dict[bytes, int] = {}
    for place, key in enumerate(key_lines(address)):
        if places.setdefault(key, place) != place:
            raise UsageError(f'--by @{address} has "{to_text(key)}" twice', hint="list each key once")
    return ListedOrder(address, places, missing or "error")


def sort_order(
    by: Sequence[str | SortKey] = (KEY,),
    *,
    how: How = "plain",
    reverse: bool = False,
    missing: Missing | None = None,
    lenient: bool = False,
) -> SortOrder:
    """Return the order for some sort keys, the most significant first (:func:`~wdscli.plan.sort.sort_key`). ``how`` and
    ``reverse`` apply to sort keys without modifiers. With ``lenient``, values that cannot be decoded or compared count
    as missing.

    Raises UsageError.
    """
    keys = [sort_key(key, how, reverse) if isinstance(key, str) else key for key in by or (KEY,)]
    return SortOrder(SortValues(tuple(keys), missing or "last", lenient, missing is not None), missing)
