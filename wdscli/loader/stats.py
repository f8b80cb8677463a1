"""What happened to samples that were not given: how many, of which shard, for which reason.

What it is: :class:`Counts`, which stages, handlers and readers add to, and which ``stats()`` shows. Threads of one
process may add at a time; counts of other processes are added with :meth:`Counts.merge`. It must not know who counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

from wdscli.shown import shown


class Counts:
    """Numbers of samples by (shard, reason).

    >>> counts = Counts()
    >>> counts.add("a.tar", "map: ValueError")
    >>> counts.add("a.tar", "map: ValueError", 2)
    >>> counts.by_shard(), counts.by_reason(), counts.total
    ({'a.tar': {'map: ValueError': 3}}, {'map: ValueError': 3}, 3)
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    def add(self, shard: str, reason: str, number: int = 1) -> None:
        """``number`` more of ``shard`` (its address, as it is shown), empty when it is not known, for ``reason``."""
        shard = shown(shard)
        with self._lock:
            self._numbers[shard, reason] = self._numbers.get((shard, reason), 0) + number

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

    def by_reason(self) -> dict[str, int]:
        """{reason: number}."""
        found: dict[str, int] = {}
        for _, reason, number in self.rows():
            found[reason] = found.get(reason, 0) + number
        return found

    @property
    def total(self) -> int:
        """Of all shards and reasons."""
        return sum(number for _, _, number in self.rows())

    def clear(self) -> None:
        """Begin at none again."""
        with self._lock:
            self._numbers.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_numbers": dict(self._numbers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())
