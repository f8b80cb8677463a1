"""Every error wdscli raises on purpose, and the exit code that each one means.

    WdsError
    ├── UsageError           2   the call itself is wrong
    ├── DataError            3   a shard's bytes are wrong: carries shard, byte offset, member and a finding code
    ├── StorageError         4   bytes cannot be had or put
    │   ├── InputError           an input cannot be read
    │   └── OutputError          an output cannot be written
    │       └── OutputExistsError    ... because it is there already
    └── EngineError          5   a task, or the engine that runs it, failed

Library code raises these and nothing else for bad input; only ``wdscli.cli.main`` turns one into text and an exit
code. They survive pickling, because tasks in other processes raise them too.
"""

from __future__ import annotations

from typing import Any, ClassVar

from wdscli.shown import shown

_SHOWN = ("message", "hint", "shard")


class WdsError(Exception):
    """Base of all errors raised on purpose.

    ``message`` is one line that says what is wrong and where; ``hint`` (optional) names the command or option that
    helps. ``str(error)`` is the message without the hint; a traceback ends in both, from Python 3.11 on. Addresses
    in both are shown without their secrets (:func:`wdscli.shown.shown`).
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(self.message)
        if hint is not None:
            self.__notes__ = [f"hint: {self.hint}"]

    def __setattr__(self, name: str, value: Any) -> None:
        # Whenever it is said, what is said of an address has no secrets in it.
        super().__setattr__(name, shown(value) if isinstance(value, str) and name in _SHOWN else value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(kind: type[WdsError], state: dict[str, Any]) -> WdsError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message", ""))
    error.__dict__.update(state)
    return error


class UsageError(WdsError):
    """An option, an address or an expression that cannot mean anything."""

    exit_code = 2


class DataError(WdsError):
    """Bytes that break a promise of the format.

    ``code`` is a finding code of ``wds verify`` (``truncated``, ``bad-checksum``, ...), ``shard`` the address as it
    is shown, ``offset`` the byte at which the trouble starts, ``member`` the member's name when it is known.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        code: str = "bad-data",
        shard: str | None = None,
        offset: int | None = None,
        member: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.shard = shard
        self.offset = offset
        self.member = member

    def __str__(self) -> str:
        member = "" if self.member is None else f' in member "{printable(self.member)}"'
        shard = "" if self.shard is None else f" in {printable(self.shard)}"
        offset = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.message}{member}{shard}{offset}"


class StorageError(WdsError):
    """Bytes that cannot be had or put: a missing file, a refused connection, a full disc."""

    exit_code = 4


class InputError(StorageError):
    """An input that cannot be read."""


class OutputError(StorageError):
    """An output that cannot be written."""


class OutputExistsError(OutputError):
    """An output that is there already and was not meant to be replaced."""


class EngineError(WdsError):
    """A task that failed for a reason of its own, or an engine that lost it."""

    exit_code = 5


def printable(text: str) -> str:
    """``text`` with what a terminal would act on, and what UTF-8 cannot say, written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
