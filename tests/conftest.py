"""What all tests rely on."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from both_cores import pytest_generate_tests as pytest_generate_tests
from both_cores import running_core as running_core
from hypothesis import HealthCheck, settings
from lasting_workers import lasting_workers
from shard_cases import Ran, numbered, write_shards
from storage_servers import S3, s3_server
from tiers import Tiers
from waits import Waits

from wdscli.cli import group as cli
from wdscli.cli.main import main
from wdscli.executors import local
from wdscli.storage import retry
from wdscli.storage.addresses import TRUSTED
from wdscli.transform import shards as mapped_shards

Command = Callable[..., Ran]

# For scripts/sanitize, which makes everything slow.
settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])

# A shell ignores Ctrl-C on behalf of what it runs in the background, and programs started from there inherit that. The
# tests that interrupt a program must not depend on how they were started themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of commands are run in this process. What Typer makes of our functions is the same each time.
cli.load = functools.cache(cli.load)
typer.main.get_command = functools.cache(typer.main.get_command)

# Hundreds of processes are started here, and without bytecode each would compile everything again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False

# Tests that look into s3fs, or stand in for it, say nothing of obstore; those that are about it choose it.
os.environ.setdefault("WDSCLI_STORE", "fsspec")

# Small sets are enough to test what several processes do.
os.environ.setdefault("WDSCLI_JOBS", "exact")

# What fails here is meant to: no three minutes for a training's store.
retry.FIRST_PAUSE_SECONDS = 0.001
retry.TRAINING_SECONDS = 0.0

SECONDS = {
    "test_cache.py": 8,
    "test_cmd_map.py": 25,
    "test_contract.py": 50,
    "test_create_memory.py": 28,
    "test_demo.py": 11,
    "test_docs.py": 10,
    "test_engine_dask.py": 45,
    "test_example_train.py": 8,
    "test_executors.py": 15,
    "test_faults.py": 45,
    "test_house.py": 8,
    "test_join_ways.py": 20,
    "test_kill.py": 45,
    "test_loader_as_webdataset.py": 8,
    "test_loader_blocks.py": 10,
    "test_loader_ends.py": 30,
    "test_loader_epochs.py": 20,
    "test_loader_guides.py": 12,
    "test_loader_of_views.py": 10,
    "test_loader_plain_shards.py": 25,
    "test_loader_planned.py": 10,
    "test_loader_shared_memory.py": 15,
    "test_loader_sharing.py": 8,
    "test_loader_torch.py": 35,
    "test_matrix.py": 55,
    "test_memory.py": 15,
    "test_memory_limit.py": 25,
    "test_moves.py": 25,
    "test_on_s3.py": 25,
    "test_part_reads.py": 25,
    "test_post.py": 15,
    "test_progress.py": 15,
    "test_requests.py": 15,
    "test_shards_inputs.py": 25,
    "test_spill.py": 35,
    "test_stale_index.py": 30,
    "test_state.py": 10,
    "test_storage_sinks.py": 12,
    "test_two_runs.py": 35,
    "test_view_inputs.py": 12,
    "test_view_outputs.py": 12,
    "test_views.py": 12,
}
"""Of files that take longer than the number of their tests tells, about."""
USUAL_SECONDS_A_TEST = 0.05


def pytest_configure(config: pytest.Config) -> None:
    tiers = Tiers(config)
    config.pluginmanager.register(tiers, "tiers")
    if tiers.fast:
        # Without -j, map starts a process for each processor. Tests of several processes use -j.
        local.default_jobs = mapped_shards.default_jobs = lambda: 1
    if config.option.durations is not None:
        config.pluginmanager.register(Waits(), "waits")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes that take file by file, none is to begin a long one when the others are at their last."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: -SECONDS.get(item.path.name, USUAL_SECONDS_A_TEST * tests[item.path]))


def pytest_collection_finish() -> None:
    """The collected tests stay until the end. Without them, each collection of garbage takes half a second less."""
    gc.freeze()


def pytest_runtest_setup() -> None:
    """A view that one test trusts is not trusted in the next test of this process. And torch waits so many seconds for
    each worker of an iterator that is collected after an error, for nothing."""
    TRUSTED.clear()
    if (utilities := sys.modules.get("torch.utils.data._utils")) is not None:
        utilities.MP_STATUS_CHECK_INTERVAL = 0.5


@pytest.fixture
def run(request: Any, capfdbinary: Any) -> Command:
    """A command in this process: the words in the test file's ``COMMAND``, and what the test adds."""

    def call(*args: object) -> Ran:
        capfdbinary.readouterr()
        code = main([*request.module.COMMAND, *map(str, args)])
        captured = capfdbinary.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def good(run: Command) -> Command:
    """The same, which succeeds."""

    def call(*args: object) -> Ran:
        ran = run(*args)
        assert ran.code == 0, ran.err
        return ran

    return call


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Three shards of 12, 1 and 8 samples."""
    return write_shards(tmp_path / "in", [numbered(12, "a"), numbered(1, "b"), numbered(8, "c")])


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """The S3 server of this module's tests."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def shared_workers(running_core: str) -> Iterator[None]:
    """The commands of this module share worker processes."""
    with lasting_workers():
        yield
