"""What the options of the network say holds wherever a task runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from wdscli import executors
from wdscli.executors.tasks import Engine
from wdscli.storage import opening
from wdscli.storage.retry import Network, network, using

CHOSEN = Network(1 << 20, 2, 3.5, 0.001)


def here(_: object) -> Network:
    return network()


class Elsewhere:
    """Runs a task where nothing was chosen."""

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        from contextvars import Context

        future: Future[Any] = Future()
        future.set_result(Context().run(function, *args))
        return future


def test_in_processes_engines_and_threads(tmp_path: Path) -> None:
    with executors.local_executor(2) as pool:
        with using(CHOSEN):
            assert pool.submit(here, 0).result() == CHOSEN
        assert pool.submit(here, 0).result() == network()
    engine = Engine("odd://", Elsewhere())  # type: ignore[arg-type]
    with using(CHOSEN):
        assert engine.submit(here, 0).result() == CHOSEN
        assert list(opening.at_once(here, ["s3://a", "s3://b"])) == [CHOSEN, CHOSEN]
    assert engine.submit(here, 0).result() == network()


def test_threads_that_leave_in_another_order_leave_nothing() -> None:
    before = network()
    entered, left = Barrier(3), [Event(), Event()]

    def task(number: int) -> None:
        with using(CHOSEN._replace(retries=number)):
            entered.wait()
            left[number].wait()

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(task, number) for number in range(2)]
        entered.wait()
        for number in range(2):
            left[number].set()
            running[number].result()
    assert network() == before


def test_the_environment_goes_to_engines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("odd://", Elsewhere())  # type: ignore[arg-type]
    monkeypatch.setenv("WDSCLI_RETRIES", "9")
    before = engine.submit(network_of_nobody)
    assert before.result() == 9


def network_of_nobody() -> int:
    import os

    del os.environ["WDSCLI_RETRIES"]
    return network().retries
