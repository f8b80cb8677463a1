"""Commits that wait for a store, while the same worker runs its next task.

What it is: :class:`LaterResults`, the pending commits of one worker. A task may return a
:class:`~wdscli.model.PendingCommit` instead of its result; calling it commits. How: each runs in a thread of its own,
with limits on their number (:data:`AT_ONCE`) and bytes (:data:`HELD_BYTES`). :func:`result_of` waits for one at once.
After an error or Ctrl-C, pending commits get some seconds to end and are then discarded. It must not know the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wdscli.model import PendingCommit

if TYPE_CHECKING:
    from concurrent.futures import Future

Result = TypeVar("Result")

AT_ONCE = 8
"""Most pending commits in one worker."""
HELD_BYTES = 64 << 20
"""Most bytes that pending commits may hold when another task begins."""
SETTLE_SECONDS = 3.0
"""Shorter than the time that a worker gets to clean up."""


def result_of(result: Result | PendingCommit[Result]) -> Result:
    """The result of a task, after its commit."""
    return result.result() if isinstance(result, PendingCommit) else result


class LaterResults:
    """The pending commits, oldest first."""

    def __init__(self) -> None:
        self._under_way: list[tuple[Future[Any], PendingCommit[Any]]] = []

    def begin(self, later: PendingCommit[Result]) -> Future[Result]:
        from wdscli.storage.opening import begun

        future = begun(later.result)
        self._under_way.append((future, later))
        return future

    def make_room(self) -> None:
        """Wait until another task may begin, by number and bytes."""
        if self._under_way:
            self.wait(0)  # forget finished ones
        while len(self._under_way) >= AT_ONCE or self._held_bytes() > HELD_BYTES:
            self.wait(any_of_them=True)

    def _held_bytes(self) -> int:
        return sum(later.held_bytes for _, later in self._under_way)

    def wait(self, timeout_seconds: float | None = None, *, any_of_them: bool = False) -> None:
        """Wait until all have ended, or only one."""
        from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, wait

        futures = [future for future, _ in self._under_way]
        ended = wait(futures, timeout_seconds, FIRST_COMPLETED if any_of_them else ALL_COMPLETED).done
        self._under_way = [one for one in self._under_way if one[0] not in ended]

    def settle(self) -> None:
        """After an error or Ctrl-C: wait for some seconds, then discard the rest."""
        try:
            self.wait(SETTLE_SECONDS)
        finally:
            for _, later in self._under_way:
                later.discard()
