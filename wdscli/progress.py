"""This module has the interface by which operations report progress.

The operations call a :class:`Progress`. The command line passes one that draws a bar; the library's default is
:class:`NullProgress`. This module knows nothing about terminals.
"""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["bytes", "samples", "shards", "files"]
FEW_SHARDS = 8
"""Up to this many shards of unknown size, progress counts bytes without a total, because each shard may take very
long."""


class Progress(Protocol):
    """Receives the progress reports of one operation at a time, from one thread."""

    def start(self, what: str, total: int | None, unit: Unit) -> None:
        """Begin a stage. ``what`` is a short phrase with a verb. ``total`` is the size of the stage in ``unit``, or
        None.

        An open stage is closed first.
        """

    def advance(self, amount: int) -> None:
        """Add ``amount`` units to the open stage."""

    def finish(self) -> None:
        """Close the open stage, if any."""

    def warn(self, message: str) -> None:
        """Show one line of warning. The work continues."""

    def note(self, message: str) -> None:
        """Show one line under ``-v``."""


class NullProgress:
    """Reports nothing."""

    def start(self, what: str, total: int | None, unit: Unit) -> None: ...

    def advance(self, amount: int) -> None: ...

    def finish(self) -> None: ...

    def warn(self, message: str) -> None: ...

    def note(self, message: str) -> None: ...


QUIET: Progress = NullProgress()
