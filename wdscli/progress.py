"""How long work tells what it is doing, without knowing who listens.

The operations call a :class:`Progress`; the command line gives one that draws a bar, the library's default is
:class:`NullProgress`. This module knows nothing of terminals.
"""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["bytes", "samples", "shards", "files"]
FEW_SHARDS = 8
"""So few shards whose sizes nobody knows are counted in bytes, without a total: each may take very long."""


class Progress(Protocol):
    """What an operation may say while it works. One operation at a time, from one thread."""

    def start(self, what: str, total: int | None, unit: Unit) -> None:
        """Begin a stage: ``what`` is a short verb phrase, ``total`` its size in ``unit`` or None when unknown.

        A stage that was open is closed first.
        """

    def advance(self, amount: int) -> None:
        """``amount`` more units of the open stage are done."""

    def finish(self) -> None:
        """The open stage is over; a no-op when none is open."""

    def warn(self, message: str) -> None:
        """One line that the user should see and that does not stop the work."""

    def note(self, message: str) -> None:
        """One line for those who asked to hear more (``-v``)."""


class NullProgress:
    """Says nothing."""

    def start(self, what: str, total: int | None, unit: Unit) -> None: ...

    def advance(self, amount: int) -> None: ...

    def finish(self) -> None: ...

    def warn(self, message: str) -> None: ...

    def note(self, message: str) -> None: ...


QUIET: Progress = NullProgress()
