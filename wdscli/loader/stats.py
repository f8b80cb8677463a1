"""Counts of skipped samples, by shard and reason.

What it is: :class:`Counts`, to which stages, handlers and readers add and which ``stats()`` returns, and
:func:`warning_of_losses` for workers whose counts do not reach the main process. Several threads may add;
:meth:`Counts.merge` adds the counts of other processes. It must not know the reasons.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wdscli.shown import shown
from wdscli.threads import ForkLock


class Counts:
    """Numbers of samples by (shard, reason).

    >>> counts = Counts()
    >>> counts.add("a.tar", "map: ValueError")
    >>> counts.add("a.tar", "map: ValueError", 2)
    >>> counts.by_shard(), counts.rows()
    ({'a.tar': {'map: ValueError': 3}}, [('a.tar', 'map: ValueError', 3)])
    """

    def __init__(self) -> None:
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._lock = ForkLock()

    def add(self, shard: str, reason: str, number: int = 1) -> None:
        """Add ``number`` samples of the address ``shard``, empty if unknown, for ``reason``."""
        shard = shown(shard)
        with self._lock:
            self._numbers[shard, reason] += number

    def merge(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Add the :meth:`rows` of another."""
        for shard, reason, number in rows:
            self.add(shard, reason, number)

    def rows(self) -> list[tuple[str, str, int]]:
        """(shard, reason, number), sorted."""
        with self._lock:
            return sorted((*of, number) for of, number in self._numbers.items())

    def by_shard(self) -> dict[str, dict[str, int]]:
        """{shard: {reason: number}}."""
        found: dict[str, dict[str, int]] = {}
        for shard, reason, number in self.rows():
            found.setdefault(shard, {})[reason] = number
        return found

    def clear(self) -> None:
        """Reset all numbers."""
        with self._lock:
            self._numbers.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_numbers": self._numbers.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=ForkLock())


def warning_of_losses(items: Iterator[Any], worker: int, counts: Callable[[], Counts]) -> Iterator[Any]:
    """Yield ``items``; at the end warn of samples that errors took since the beginning, but not of those that
    ``select`` dropped. For a worker of a plain DataLoader, whose counts ``stats()`` of the main process does not have.
    """
    before = _errors(counts())
    try:
        yield from items
    finally:
        by_reason: Counter[str] = Counter()
        for (_, reason), number in (_errors(counts()) - before).items():
            by_reason[reason] += number
        if by_reason:
            reasons = ", ".join(f"{reason} {number}" for reason, number in by_reason.items())
            warnings.warn(
                f"worker {worker} skipped {sum(by_reason.values())} samples ({reasons}); "
                "stats() of the main process counts those of WebLoader's workers only",
                stacklevel=2,
            )


def _errors(counts: Counts) -> Counter[tuple[str, str]]:
    """The counts of errors, whose reasons have a colon."""
    return Counter({(shard, reason): number for shard, reason, number in counts.rows() if ": " in reason})
