"""The end of a task that only waits for a store, while the next task is at work.

What it is: :class:`LaterResults`, those ends (:class:`~wdscli.model.Later`, which a task may return in the place of its
result) of one worker that are under way. How: each is worked out by a thread of its own; as many are under way as
:data:`AT_ONCE` and :data:`HELD_BYTES` let. Who runs a task where nothing else is to be done meanwhile asks
:func:`result_of`. When the work is given up, by an error or by Ctrl-C, those under way have some seconds to end, and
are discarded then. It must not know what is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wdscli.model import Later

if TYPE_CHECKING:
    from concurrent.futures import Future

Result = TypeVar("Result")

AT_ONCE = 8
"""Ends of tasks that are under way in one worker, at most."""
HELD_BYTES = 64 << 20
"""What they may hold together before another task begins."""
SETTLE_SECONDS = 3.0
"""Less than a worker has that is told to end."""


def result_of(result: Result | Later[Result]) -> Result:
    """What a task has come to."""
    return result.result() if isinstance(result, Later) else result


class LaterResults:
    """Those that are under way, oldest first."""

    def __init__(self) -> None:
        self._under_way: list[tuple[Future[Any], Later[Any]]] = []

    def begin(self, later: Later[Result]) -> Future[Result]:
        from wdscli.storage.opening import begun

        future = begun(later.result)
        self._under_way.append((future, later))
        return future

    def make_room(self) -> None:
        """Wait until another task may begin."""
        if self._under_way:
            self.wait(0)  # what has ended is let go of
        while len(self._under_way) >= AT_ONCE or self._held_bytes() > HELD_BYTES:
            self.wait(any_of_them=True)

    def _held_bytes(self) -> int:
        return sum(later.held_bytes for _, later in self._under_way)

    def wait(self, timeout_seconds: float | None = None, *, any_of_them: bool = False) -> None:
        """Wait until all have ended, or one."""
        from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, wait

        futures = [future for future, _ in self._under_way]
        ended = wait(futures, timeout_seconds, FIRST_COMPLETED if any_of_them else ALL_COMPLETED).done
        self._under_way = [one for one in self._under_way if one[0] not in ended]

    def settle(self) -> None:
        """Nobody asks for them any more: what does not end soon is discarded."""
        try:
            self.wait(SETTLE_SECONDS)
        finally:
            for _, later in self._under_way:
                later.discard()
