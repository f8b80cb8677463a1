"""The two tiers of the tests: a fast one for each change, and all of them.

``pytest`` runs the fast tier, of all files or of those it is given. If ``-k``, ``-m`` or ``FILE::TEST`` name tests, it
runs all of them, and with ``WDSCLI_TESTS=all`` (``scripts/test --all``) every test. The fast tier leaves out

- a test with the mark ``exhaustive``; where it has several cases, a sample stays, but for ``exhaustive(sample=False)``;
- a case with this mark of its own, ``pytest.param(2, marks=EXHAUSTIVE)``, if other cases have none of their own;
- of each other test with more than :data:`MANY` cases all but a sample, except in the folders of :data:`WHOLE`, where a
  case can be the only test of an option or of a file;
- of the tests that run again with plain Python alone all but a sample, except in the folders of :data:`PLAIN`.

Of properties, hypothesis tries one example in ten (:func:`examples`).

The sample is one in ten by a checksum of the test's name, so it is the same everywhere and on every day. It has at
least :data:`FEWEST` and at most :data:`MOST` cases. A file keeps at least one test, unless its ``pytestmark`` marks the
whole file ``exhaustive``.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

from wdscli.tar import core

ONE_IN = 10
MANY = 2
FEWEST = 1
MOST = 3
WHOLE = ("tests/commands/", "tests/cli/", "tests/project/")
PLAIN = ("tests/tar/", "tests/samples/")
EXAMPLES = 10
"""Of a property in the fast tier. In a run of all tests, hypothesis tries :data:`USUAL_EXAMPLES`."""
USUAL_EXAMPLES = 100
EXHAUSTIVE = pytest.mark.exhaustive
"""For a case of a test, such as a run with two processes that repeats a run with one."""


def examples(usual: int) -> int:
    """How many examples hypothesis tries in this run, if it tries ``usual`` in a run of all tests."""
    return max(10, usual * settings.default.max_examples // USUAL_EXAMPLES)


def fast_tier(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those of the collected tests that the fast tier runs."""
    tables: dict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0], runs_with_plain_python(item)].append(item)
        files[item.nodeid.partition("::")[0]].append(item)
    kept: set[pytest.Item] = set()
    for (_, plain), table in tables.items():
        kept.update(_kept_of(table, plain))
    for tests in files.values():
        if kept.isdisjoint(tests) and not is_file_exhaustive(tests[0]):
            kept.add(min(tests, key=_checksum))
    return kept


def is_file_exhaustive(item: pytest.Item) -> bool:
    """Whether the file of a test has the mark ``exhaustive``, in its ``pytestmark``."""
    file = item.getparent(pytest.Module)
    return file is not None and any(mark.name == "exhaustive" for mark in file.own_markers)


def _kept_of(table: list[pytest.Item], plain: bool) -> list[pytest.Item]:
    """The cases of one test that the fast tier runs."""
    table = [item for item in table if not item.get_closest_marker("exhaustive")] or table
    if plain and not table[0].nodeid.startswith(PLAIN):
        return _one_in_ten(table)
    if mark := table[0].get_closest_marker("exhaustive"):
        table = [item for item in table if len([*item.iter_markers("exhaustive")]) == 1] or table
        return _sample(table, 1) if len(table) > 1 and mark.kwargs.get("sample", True) else []
    if len(table) > MANY and not table[0].nodeid.startswith(WHOLE):
        return _sample(table, FEWEST)
    return table


def _sample(table: list[pytest.Item], fewest: int) -> list[pytest.Item]:
    return max(_one_in_ten(table), sorted(table, key=_checksum)[:fewest], key=len)


def _one_in_ten(table: list[pytest.Item]) -> list[pytest.Item]:
    return sorted((item for item in table if _checksum(item) % ONE_IN == 0), key=_checksum)[:MOST]


def _checksum(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.encode())


def runs_with_plain_python(item: pytest.Item) -> bool:
    """It runs with plain Python, and again with the compiled core."""
    chosen = item.callspec.params.get("running_core") if hasattr(item, "callspec") else None
    return chosen == "plain" and core.CORE is not None


class Tiers:
    """The pytest plugin that leaves tests out, and says how many. ``collected`` are all tests, of both tiers."""

    def __init__(self, config: pytest.Config) -> None:
        worker = getattr(config, "workerinput", None)
        option = config.option
        named = option.keyword or option.markexpr or any("::" in argument for argument in config.args)
        self.fast = worker["fast"] if worker else not named and os.environ.get("WDSCLI_TESTS") != "all"
        if self.fast:
            settings.register_profile("fast tier", settings.default, max_examples=EXAMPLES)
            settings.load_profile("fast tier")
        self.collected: list[pytest.Item] = []
        self.left_out = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.collected = list(items)
        if self.fast:
            kept = fast_tier(items)
            items[:] = [item for item in items if item in kept]
            self.left_out = len(self.collected) - len(items)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["fast"] = self.fast

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.left_out:
            terminalreporter.write_line(f"fast tier: {self.left_out} tests are left to scripts/test --all")
