"""This module finds engines, which run tasks on other machines, by name.

:func:`open_engine` makes an executor from a URL. The URL's scheme is the engine's name among the entry points of the
group ``wdscli.executors``. The entry point is called with the URL and returns a ``concurrent.futures.Executor``. The
class :class:`Engine` wraps this executor. Relative paths mean the same in its tasks, its workers must have the same
version of wdscli, and it separates failures of tasks from failures of the engine. This module does not know any engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from socket import gethostname
from typing import Any

from wdscli import __version__
from wdscli.errors import EngineError, InputNotFoundError, UsageError, WdsError
from wdscli.executors.local import result_of
from wdscli.executors.tasks import task_failed, workers_of
from wdscli.shown import cause_of
from wdscli.storage import relative_to
from wdscli.storage.retry import Network, network, using

GROUP = "wdscli.executors"


def find_engine(url: str) -> Callable[[str], Executor]:
    """Return the function that makes the executor for a URL. Raises UsageError for an unknown engine."""
    from importlib.metadata import entry_points

    name, points = url.partition("://")[0], entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            factory: Callable[[str], Executor] = point.load()
            return factory
    schemes = ", ".join(f"{scheme}://" for scheme in sorted({point.name for point in points})) or "none"
    raise UsageError(f'no engine "{name}"', hint=f"installed: {schemes}; other engines need another package")


def open_engine(url: str) -> Executor:
    """Return an executor for the engine at ``url``. Raises UsageError, EngineError."""
    factory = find_engine(url)
    try:
        return Engine(url, factory(url))
    except WdsError:
        raise
    except Exception as error:
        raise EngineError(
            f"cannot reach {url}: {_first_line(str(error)) or type(error).__name__}",
            hint="check that its scheduler is running and that this is its address",
        ) from cause_of(error)


class Engine(Executor):
    """An engine's executor. Its errors become EngineErrors. ``workers`` is the number of tasks that it runs at the same
    time."""

    def __init__(self, url: str, inner: Executor) -> None:
        self.url = url
        self._inner = inner
        self._folder = os.getcwd()

    @property
    def workers(self) -> int:
        return workers_of(self._inner)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            settings = (__version__, self._folder, network())
            return self._inner.submit(run_elsewhere, *settings, fn, *args, **kwargs)
        except WdsError:
            raise
        except Exception as error:
            raise self.explain(error) from cause_of(error)

    def explain(self, error: Exception) -> EngineError:
        """Return the error for an engine that lost a task. Errors raised by tasks are already converted on the
        worker."""
        reason = _first_line(str(error))
        what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        if isinstance(error, CancelledError):
            what = "the connection to its scheduler is lost or has cancelled a task"
        return EngineError(
            f"the engine {self.url} failed: {what}",
            hint="read the logs of its scheduler and workers; workers need the same wdscli and the same paths",
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        # All results have arrived, so errors of an engine while it closes do not matter.
        with suppress(Exception):
            self._inner.shutdown(wait, cancel_futures=cancel_futures)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)


def run_elsewhere(
    version: str, folder: str, patience: Network, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run one task on a worker. Relative paths begin in ``folder``."""
    if version != __version__:
        raise EngineError(
            f"a worker has wdscli {__version__}, but this machine has {version}",
            hint="install the same version everywhere",
        )
    try:
        with relative_to(folder), using(patience):
            return result_of(function(*args, **kwargs))
    except WdsError as error:
        if isinstance(error, InputNotFoundError):
            error.hint = f"it is missing on {gethostname()}: give a folder that all workers share, or s3://"
        # Remove the context of the error, because Dask would pickle it too. It may contain a whole request, or be
        # impossible to pickle.
        error.__context__ = None
        raise
    except Exception as error:
        raise task_failed(error) from cause_of(error)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
