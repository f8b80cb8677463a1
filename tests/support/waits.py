"""Where the tests waited: after ``--durations``, the tests whose time was not processor time, and each worker's end."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

import pytest

MOST = 25


def processor_seconds() -> float:
    """Of this process and of those that it has joined."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def seconds_of(act: Callable[[], object]) -> float:
    """The processor time of ``act``, the best of three runs: to be compared with that of a smaller ``act``."""
    spent = []
    for _ in range(3):
        begin = time.process_time()
        act()
        spent.append(time.process_time() - begin)
    return min(spent)


class Waits:
    """The pytest plugin: notes the processor time of each phase of a test, and prints the sums at the end."""

    def __init__(self) -> None:
        self.last = 0.0
        self.seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Of each test, and of each worker: on the clock, and of a processor."""
        self.ends: dict[str, float] = {}

    def pytest_runtest_logstart(self) -> None:
        self.last = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_seconds()
        report.user_properties = [("processor_seconds", now - self.last)]
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worker = getattr(report, "worker_id", "the only worker")
        self.ends[worker] = time.monotonic()
        for name in (report.nodeid, worker):
            self.seconds[name][0] += report.duration
            self.seconds[name][1] += dict(report.user_properties).get("processor_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section(f"{MOST} longest waits: seconds waited, of a processor, test")
        waited = {name: clock - used for name, (clock, used) in self.seconds.items() if name not in self.ends}
        for name in sorted(waited, key=waited.__getitem__, reverse=True)[:MOST]:
            write(f"{waited[name]:8.2f} {self.seconds[name][1]:8.2f}  {name}")
        last = max(self.ends.values(), default=0.0)
        for worker in sorted(self.ends):
            clock, used = self.seconds[worker]
            idle = last - self.ends[worker]
            write(
                f"{worker}: {clock:.1f} s in tests, {used:.1f} s of a processor; idle for the last {idle:.1f} s"
            )
