"""What is done about an exception of a stage: webdataset's handlers, with nothing dropped uncounted.

What it is: a handler is a function of the exception that raises, or returns True (leave the sample out, go on) or
False (leave it out, end the epoch here). :class:`Guard` asks the handler of one stage and counts what it drops by shard
and reason. Unlike webdataset's, the handlers that warn do not sleep. It must not know what stages do.
"""

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
    """Raise the exception again: an error ends the run. The default everywhere."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Leave the sample out and count it."""
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Leave the sample out, count it and warn."""
    warnings.warn(repr(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """Leave the sample out, count it and end the epoch in this process."""
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Leave the sample out, count it, warn and end the epoch in this process."""
    warnings.warn(repr(exn), stacklevel=2)
    return False


def each(function: Callable[[Item], Result], items: Iterable[Item], handler: Handler) -> Iterator[Result]:
    """What ``function`` makes of each of ``items``, up to where the handler ends it."""
    for item in items:
        try:
            found = function(item)
        except Exception as error:
            if handler(error):
                continue
            return
        yield found


class StopEpoch(BaseException):
    """The epoch ends here, because a handler said so; ``items`` came out before. Not an Exception: nobody who handles
    errors may swallow it."""

    def __init__(self, items: Sequence[Any] = ()) -> None:
        super().__init__()
        self.items = list(items)


class Replaced(BaseException):
    """Another sample is wanted in the place of this one, which cannot be decoded because of ``error``; ``note`` counts
    it. Not an Exception, as :class:`StopEpoch`."""

    def __init__(self, error: DataError, note: Callable[[], None]) -> None:
        super().__init__()
        self.error, self.note = error, note


class Guard:
    """The handler of one stage, which is named in what is counted: ``map: ValueError``."""

    def __init__(self, stage: str, handler: Handler, counts: Counts) -> None:
        self.stage = stage
        self.handler = handler
        self.counts = counts

    def drop(self, item: Any, reason: str = "") -> None:
        """Count ``item`` as left out."""
        self.counts.add(text_of(item, "__url__") or "", f"{self.stage}: {reason}" if reason else self.stage)

    def caught(self, error: Exception, item: Any) -> None:
        """To be called where ``error`` was caught. Returns when ``item`` is to be left out; else raises: the error
        again, or StopEpoch."""
        if isinstance(error, UsageError):
            raise error  # wrong for every sample: a package that is missing, a call that makes no sense
        try:
            go_on = self.handler(error)
        except Exception as raised:
            if raised is error and not isinstance(error, WdsError):  # ours say where they are from
                self._name(error, item)
            raise
        self.drop(item, type(error).__name__)
        if not go_on:
            raise StopEpoch

    def _name(self, error: Exception, item: Any) -> None:
        """A traceback, from Python 3.11 on, ends in the sample."""
        if isinstance(item, dict) and "__key__" in item:
            shard = shown(text_of(item, "__url__") or "")
            said = printable(f'in {self.stage}() of sample "{item["__key__"]}" of {shard}')
            with suppress(AttributeError):
                error.__notes__ = [*getattr(error, "__notes__", ()), said]  # type: ignore[attr-defined]


def text_of(item: Any, field: str) -> str | None:
    """``__key__`` or ``__url__`` of what may be a sample; None for what does not say it."""
    found = item.get(field) if isinstance(item, Mapping) else None
    return found if isinstance(found, str) else None
