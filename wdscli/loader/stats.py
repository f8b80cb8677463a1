"""What happened to samples that were not given: how many, of which shard, for which reason.

What it is: :class:`Counts`, which stages, handlers and readers add to, and which ``stats()`` shows, and
:func:`warning_of_losses` for a process whose counts nobody sees. Threads of one process may add at a time; counts of
other processes are added with :meth:`Counts.merge`. It must not know who counts, nor why something was left out.
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
        """``number`` more of ``shard`` (its address, as it is shown), empty when it is not known, for ``reason``."""
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
        """Begin at none again."""
        with self._lock:
            self._numbers.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_numbers": self._numbers.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=ForkLock())


def warning_of_losses(items: Iterator[Any], worker: int, counts: Callable[[], Counts]) -> Iterator[Any]:
    """``items``, and at their end, or when they are left, a warning of the samples that errors took since they began.
    For a worker of a plain DataLoader: what is counted there, ``stats()`` of the main process does not know. What
    ``select`` leaves out is wanted, and passed over."""
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
                f"worker {worker} left out {sum(by_reason.values())} samples ({reasons}); "
                "stats() of the main process has what the workers of a WebLoader left out, no others",
                stacklevel=2,
            )


def _errors(counts: Counts) -> Counter[tuple[str, str]]:
    """What errors took: their reasons name one."""
    return Counter({(shard, reason): number for shard, reason, number in counts.rows() if ": " in reason})
