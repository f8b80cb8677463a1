"""Ends of tasks that wait for a store: how many, in which order, and what becomes of them when the work is given up."""

from __future__ import annotations

import threading
import time

import pytest

from wdscli.errors import DataError, OutputError
from wdscli.executors import local as later
from wdscli.executors import make_executor, run_tasks, run_together
from wdscli.model import PendingCommit


class Ends:
    """Tasks whose ends wait until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[int] = []
        self.most = self.now = 0
        self.discarded: list[int] = []
        self._lock = threading.Lock()

    def task(self, number: int, held_bytes: int = 0) -> PendingCommit[int]:
        self.begun.append(number)
        if number >= 3:
            self.go.set()
        return PendingCommit(
            lambda: self._end(number), lambda: self.discarded.append(number), True, held_bytes
        )

    def _end(self, number: int) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go.wait(10)
        time.sleep(0.001 * (10 - number % 10))
        with self._lock:
            self.now -= 1
        return number


def test_results_come_in_order_and_few_at_a_time() -> None:
    ends = Ends()
    with make_executor(1) as executor:
        assert list(run_tasks(executor, ends.task, range(40))) == list(range(40))
    assert 4 <= ends.most <= later.AT_ONCE
    assert ends.discarded == []


@pytest.mark.exhaustive
def test_no_task_begins_while_the_ends_hold_too_much() -> None:
    ends = Ends()
    ends.go.set()
    with make_executor(1) as executor:
        held = later.HELD_BYTES + 1
        list(run_tasks(executor, lambda number: ends.task(number, held), range(5)))
    assert ends.most == 1


def test_the_first_failure_is_raised_and_no_task_follows() -> None:
    begun = []

    def end(number: int) -> int:
        time.sleep(0.05)
        raise OutputError(f"end {number}")

    def task(number: int) -> PendingCommit[int]:
        begun.append(number)
        if number == 2:
            raise DataError("task 2", code="corrupt")
        return PendingCommit(lambda: end(number), lambda: None, True)

    with pytest.raises(OutputError, match="end 0"), make_executor(1) as executor:
        list(run_tasks(executor, task, range(9)))
    assert begun == [0, 1, 2]


@pytest.mark.exhaustive
def test_what_does_not_end_after_an_interruption_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "SETTLE_SECONDS", 0.1)
    ends, soon = Ends(), threading.Event()

    def task(number: int) -> PendingCommit[int]:
        if number == 2:
            raise KeyboardInterrupt
        return (
            ends.task(number)
            if number
            else PendingCommit(lambda: soon.set() or 0, lambda: ends.discarded.append(0), True)
        )

    with pytest.raises(KeyboardInterrupt), make_executor(1) as executor:
        list(run_tasks(executor, task, range(9)))
    assert soon.is_set()
    assert ends.discarded == [1]
    ends.go.set()


def slow(number: int) -> PendingCommit[int]:
    return PendingCommit(lambda: time.sleep(0.3) or number, lambda: None, True)


@pytest.mark.exhaustive
def test_a_worker_waits_for_several_ends_at_once() -> None:
    with make_executor(2) as executor:
        list(run_tasks(executor, slow, range(2)))  # they are started
        begin = time.monotonic()
        assert list(run_together(executor, slow, range(32), 8, amount=int)) == list(range(32))
        assert time.monotonic() - begin < 16 * 0.3  # one after the other
