"""Handlers of a stage's exceptions, as in webdataset; every skipped sample is counted.

What it is: a handler is a function of the exception that raises, or returns True (skip the sample and continue) or
False (skip it and end the epoch). :class:`Guard` calls the handler of one stage and counts skipped samples by shard and
reason. Unlike webdataset's, the handlers that warn do not sleep. It must not know what stages do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias, TypeVar

from wdscli.errors import DataError, UsageError, WdsError, printable
from wdscli.loader.stats import Counts
from wdscli.shown import shown

Handler: TypeAlias = Callable[[Exception], bool]
Item = TypeVar("Item")
Result = TypeVar("Result")


def reraise_exception(exn: Exception) -> NoReturn:
    """Raise the exception: an error ends the run. The default everywhere."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Skip the sample and count it."""
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Skip the sample, count it and warn."""
    warnings.warn(repr(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """Skip the sample, count it and end the epoch in this process."""
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Skip the sample, count it, warn and end the epoch in this process."""
    warnings.warn(repr(exn), stacklevel=2)
    return False


def each(function: Callable[[Item], Result], items: Iterable[Item], handler: Handler) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, until the handler ends it."""
    for item in items:
        try:
            found = function(item)
        except Exception as error:
            if handler(error):
                continue
            return
        yield found


class StopEpoch(BaseException):
    """Ends the epoch, as a handler decided; ``items`` came before. Not an Exception, so that error handling does not
    catch it."""

    def __init__(self, items: Sequence[Any] = ()) -> None:
        super().__init__()
        self.items = list(items)


class Replaced(BaseException):
    """Requests a substitute for a sample that cannot be decoded because of ``error``; ``note`` counts it. Not an
    Exception, as :class:`StopEpoch`."""

    def __init__(self, error: DataError, note: Callable[[], None]) -> None:
        super().__init__()
        self.error, self.note = error, note


class Guard:
    """The handler of one stage, whose name is part of the counted reason: ``map: ValueError``."""

    def __init__(self, stage: str, handler: Handler, counts: Counts) -> None:
        self.stage = stage
        self.handler = handler
        self.counts = counts

    def drop(self, item: Any, reason: str = "") -> None:
        """Count ``item`` as skipped."""
        self.counts.add(text_of(item, "__url__") or "", f"{self.stage}: {reason}" if reason else self.stage)

    def caught(self, error: Exception, item: Any) -> None:
        """Handle a caught ``error``: return if ``item`` is skipped, else raise the error or StopEpoch."""
        if isinstance(error, UsageError):
            raise error  # wrong for every sample: a missing package, a wrong call
        try:
            go_on = self.handler(error)
        except Exception as raised:
            if raised is error and not isinstance(error, WdsError):  # ours name the shard and the sample
                self._name(error, item)
            raise
        self.drop(item, type(error).__name__)
        if not go_on:
            raise StopEpoch

    def _name(self, error: Exception, item: Any) -> None:
        """Name the sample at the end of the traceback (Python 3.11 and later)."""
        if isinstance(item, dict) and "__key__" in item:
            shard = shown(text_of(item, "__url__") or "")
            said = printable(f'in {self.stage}() of sample "{item["__key__"]}" of {shard}')
            with suppress(AttributeError):
                error.__notes__ = [*getattr(error, "__notes__", ()), said]  # type: ignore[attr-defined]


def text_of(item: Any, field: str) -> str | None:
    """Return the text ``__key__`` or ``__url__`` of a possible sample, None without one."""
    found = item.get(field) if isinstance(item, Mapping) else None
    return found if isinstance(found, str) else None
