"""The samples of a set that a view shows, in its order: numbers in the set, by numbers in the view.

What it is: :class:`Ordinals`, immutable, and :class:`Layout`, a view's samples by shard, for a sampler. How: a slice of
a slice is a range and costs nothing; any other choice is an array. It must not know what is in a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from wdscli.arrays import I64, numpy


class Ordinals:
    """``numbers`` in the set, for 0, 1, 2, ... in the view."""

    def __init__(self, numbers: range | I64) -> None:
        self.numbers = numbers
        self._order: I64 | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> int:
        try:
            return int(self.numbers[number])
        except IndexError:
            raise IndexError(f"no sample {number}: there are {len(self)}") from None

    def is_all(self, total: int) -> bool:
        """Whether the view is a range of all ``total`` samples in order."""
        return isinstance(self.numbers, range) and self.numbers == range(total)

    def at(self, numbers: I64) -> I64:
        """Return the numbers in the set of some numbers in the view, 0 <= number < length."""
        if isinstance(self.numbers, range):
            return self.numbers.start + self.numbers.step * numbers
        return self.numbers[numbers]

    def every(self) -> I64:
        """All of them as an array."""
        numbers = self.numbers
        if isinstance(numbers, range):
            return numpy.arange(numbers.start, numbers.stop, numbers.step, dtype=numpy.int64)
        return numbers

    def cut(self, part: slice) -> Ordinals:
        """A slice of the view."""
        return Ordinals(self.numbers[part])

    def chosen(self, numbers: Sequence[int] | I64) -> Ordinals:
        """Some of the view by their numbers in it (negative ones from the end) or by a mask. Raises IndexError."""
        return Ordinals(self.at(self.checked(numbers)))

    def checked(self, numbers: Sequence[int] | I64) -> I64:
        """Return numbers in the view as an array, from 0. Raises IndexError, naming the first invalid one."""
        given = numpy.asarray(numbers if isinstance(numbers, Sequence) else _listed(numbers))
        if given.ndim != 1:
            raise TypeError(f"numbers of samples are a flat list, not {given.ndim} deep")
        if given.dtype == bool:
            if len(given) != len(self):
                raise IndexError(f"a mask of {len(given)} for {len(self)} samples")
            return given.nonzero()[0]
        if len(given) and given.dtype.kind not in "iu":
            raise TypeError(
                f"a sample number is a whole number, not {given.dtype}; table.number(key) returns the number of a key"
            )
        found: I64 = given.astype(numpy.int64)
        outside = (found < -len(self)) | (found >= len(self))
        if outside.any():
            raise IndexError(f"no sample {int(found[outside][0])}: there are {len(self)}")
        found[found < 0] += len(self)
        return found

    def find(self, number: int) -> int | None:
        """Return the first place in the view of a number in the set, None if the view does not have it."""
        numbers = self.numbers
        if isinstance(numbers, range):
            return numbers.index(number) if number in numbers else None
        if self._order is None:
            self._order = numbers.argsort(kind="stable")
        at = int(numbers.searchsorted(number, sorter=self._order))
        found = int(self._order[at]) if at < len(numbers) else -1
        return found if found >= 0 and int(numbers[found]) == number else None

    def __getstate__(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "_order": None}


class Layout(NamedTuple):
    """The samples of a view by shard: ``counts`` of each, and ``order``, the numbers in the view of the samples by
    place in the set, None if the view shows the whole set in order. ``fingerprint`` identifies the view."""

    counts: I64
    order: I64 | None
    fingerprint: str

    def numbers(self, shards: I64, samples: I64) -> I64:
        """Return the numbers in the view of samples by shard and place among the shard's shown ones."""
        places: I64 = (self.counts.cumsum() - self.counts)[shards] + samples
        return places if self.order is None else self.order[places]


def layout(ordinals: Ordinals, counts: I64, fingerprint: str) -> Layout:
    """The layout of a view of a set whose shards have ``counts`` samples."""
    if ordinals.is_all(int(counts.sum())):
        return Layout(counts, None, fingerprint)
    from xxhash import xxh3_128

    every = ordinals.every()
    order = every.argsort(kind="stable")
    shards = counts.cumsum().searchsorted(every, "right")
    digest = xxh3_128(fingerprint.encode())
    digest.update(every.astype("<i8").tobytes())
    shown = numpy.bincount(shards, minlength=len(counts)).astype(numpy.int64)
    return Layout(shown, order, f"xxh3_128:{digest.hexdigest()}")


def _listed(numbers: Any) -> Any:
    """Return something that numpy makes an array of, for any iterable and for a tensor."""
    return numbers if hasattr(numbers, "__array__") or not isinstance(numbers, Iterable) else list(numbers)
