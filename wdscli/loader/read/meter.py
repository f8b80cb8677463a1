"""Where the time of an iteration goes, and how much was read.

What it is: :class:`Times`, which an iteration adds to and ``stats()`` shows, and :data:`METER`, which counts the bytes
of payloads that this process has read. How: a few looks at the clock for each block and each batch, none for a single
sample. It must not know what is timed.
"""

from __future__ import annotations

from threading import Lock
from typing import Any


class Meter:
    """A number of bytes that several threads add to."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = Lock()

    def add(self, size_bytes: int) -> None:
        """So many more."""
        with self._lock:
            self.bytes += size_bytes


METER = Meter()


class Times:
    """Seconds of an iteration: ``reading`` waited for bytes, ``working`` in stages, ``waiting`` for whoever takes what
    comes out; and what came out: ``samples`` read and their ``bytes``.

    >>> times = Times()
    >>> times.reading += 1.5
    >>> times.add({"reading": 0.5, "samples": 3})
    >>> times.shown()["seconds_reading"], times.samples
    (2.0, 3)
    """

    def __init__(self) -> None:
        self.reading = self.working = self.waiting = 0.0
        self.samples = self.bytes = 0

    def add(self, other: dict[str, Any]) -> None:
        """What :meth:`take` of another gave."""
        for name, value in other.items():
            setattr(self, name, getattr(self, name) + value)

    def take(self) -> dict[str, Any]:
        """What was counted, which is not counted any more."""
        found = dict(self.__dict__)
        Times.__init__(self)
        return found

    def shown(self) -> dict[str, Any]:
        """For ``stats()``: ``samples``, ``bytes`` and ``seconds_*``."""
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "seconds_reading": self.reading,
            "seconds_working": self.working,
            "seconds_waiting": self.waiting,
        }
