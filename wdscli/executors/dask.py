"""This module runs tasks on a Dask cluster, as the engine ``dask``.

:func:`connect` connects to the cluster. Dask's ``Client.get_executor`` already returns a
``concurrent.futures.Executor``. This module adds its size, and closes the connection when it is shut down. Tasks are
submitted with ``pure=False``, so that a cluster runs each task and does not reuse a result. Dask's own shuffle is not
used, because it promises no order. This module does not know what a task does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wdscli.errors import UsageError

if TYPE_CHECKING:
    import logging

    from distributed import Client

CONNECT_SECONDS = 10
LEAVE_SECONDS = 2
LOOK_SECONDS = 5
"""The known size of a cluster is reused for this time."""


def connect(url: str) -> Executor:
    """Connect to ``dask://HOST:PORT``, or to the scheduler that wrote the file of ``dask:///PATH``. Raises UsageError,
    OSError."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("Dask needs extra packages", hint="pip install 'wdscli[dask]'") from None
    place = url.partition("://")[2]
    if not place:
        raise UsageError(
            f"{url} names no Dask scheduler", hint="use dask://HOST:PORT, or dask:///path/scheduler.json"
        )
    _quiet()
    if place.startswith("/"):
        client = Client(scheduler_file=place, timeout=CONNECT_SECONDS, set_as_default=False)
    else:
        address = place if "://" in place else f"tcp://{place}"
        _probe(address)
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    return DaskExecutor(client)


class DaskExecutor(Executor):
    """The executor of a client. Shutting it down closes the client. ``workers`` is the number of the cluster's
    threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inner: Executor = client.get_executor(pure=False)
        self._size, self._due = 0, 0.0

    @property
    def workers(self) -> int:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LOOK_SECONDS
            with suppress(Exception):
                if self._client.status == "running":
                    self._size = sum(self._client.nthreads().values())
        return self._size

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._client.status != "running":
            # Otherwise Dask would keep the task for as long as it tries to reconnect.
            raise ConnectionError("the connection to its scheduler is lost")
        with warnings.catch_warnings():
            # Dask warns about large tasks. A task for a shard with a million samples is large.
            warnings.simplefilter("ignore", UserWarning)
            return self._inner.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with suppress(Exception):
            if self._client.status == "running":
                self._inner.shutdown(wait)
        with suppress(Exception):
            self._client.close(LEAVE_SECONDS)


def _probe(address: str) -> None:
    """Probe the port first, so that a wrong address fails at once and not after Dask's timeout. Raises OSError."""
    import socket

    host, _, port = address.partition("://")[2].rpartition(":")
    if address.startswith(("tcp://", "tls://")) and host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def _quiet() -> None:
    """Silence Dask's log records of lost connections and cancelled tasks, because wdscli reports them in one error."""
    import logging

    for name in ("distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("tornado.application").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for a log record about a cancelled task."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or "Cancelled" not in kind.__name__
