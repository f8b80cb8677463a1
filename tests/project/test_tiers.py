"""Every option, and every file without the mark ``exhaustive``, has a test in the fast tier. A run of all tests leaves
none out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import (
    FEWEST,
    MANY,
    MOST,
    ONE_IN,
    WHOLE,
    Tiers,
    fast_tier,
    is_file_exhaustive,
    runs_with_plain_python,
)

TABLES = f"""
import pytest
from tiers import EXHAUSTIVE

@pytest.mark.parametrize("number", range({MANY}))
def test_few(number): ...

@pytest.mark.parametrize("number", range(80))
def test_many(number): ...

@pytest.mark.parametrize("number", range(300))
def test_table(number): ...

@pytest.mark.parametrize("number", range({MANY + 1}))
def test_some_more(number): ...

@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(5))
def test_marked(number): ...

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=EXHAUSTIVE), 3])
def test_one_case(number): ...

@pytest.mark.exhaustive
def test_long(): ...

@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("number", range(3))
def test_left(number): ...
"""
CONFTEST = """
from tiers import Tiers

def pytest_configure(config):
    config.pluginmanager.register(Tiers(config), "tiers")
"""


@pytest.fixture
def tiers(request: pytest.FixtureRequest) -> Tiers:
    found = request.config.pluginmanager.get_plugin("tiers")
    assert isinstance(found, Tiers)
    return found


def test_every_file_has_a_test_in_the_fast_tier(tiers: Tiers) -> None:
    files = {item.path for item in tiers.collected if not is_file_exhaustive(item)}
    assert files - {item.path for item in fast_tier(tiers.collected)} == set()


def test_tests_of_options_and_files_are_in_the_fast_tier(tiers: Tiers) -> None:
    left_out = set(tiers.collected) - fast_tier(tiers.collected)
    # With plain Python they run again.
    unmarked = [
        item
        for item in left_out
        if not (item.get_closest_marker("exhaustive") or runs_with_plain_python(item))
    ]
    assert [item.nodeid for item in unmarked if item.nodeid.startswith(WHOLE)] == []


def test_all_tests_are_all(tiers: Tiers, request: pytest.FixtureRequest) -> None:
    if not tiers.fast:
        assert tiers.left_out == 0
        assert set(request.session.items) == set(tiers.collected)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of its own with tables of tests of both tiers."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_tables.py").write_text(TABLES)
    (tmp_path / "tests" / "test_only_long.py").write_text(
        "import pytest\n\n@pytest.mark.exhaustive\ndef test_long(): ...\n"
    )
    (tmp_path / "tests" / "test_marked_file.py").write_text(
        "import pytest\n\npytestmark = pytest.mark.exhaustive\n\ndef test_slow(): ...\n"
    )
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    support = Path(__file__).parent.parent / "support"
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = tests\npythonpath = {support}\nmarkers = exhaustive\n"
    )
    return tmp_path


def ran(project: Path, *words: str, **environment: str) -> list[str]:
    """The names of the tests that pytest runs for these words, and what it says of those that it leaves out."""
    known = {name: value for name, value in os.environ.items() if name != "WDSCLI_TESTS"}
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--color=no", *words],
        cwd=project,
        env=known | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = process.stdout.splitlines()
    left_out = [line for line in lines if "left to scripts/test --all" in line]
    return sorted(line.rpartition("::")[2] for line in lines if line.startswith("PASSED ")) + left_out


EVERY = MANY + 80 + 300 + MANY + 1 + 5 + 3 + 1 + 3 + 1 + 1
ALL = {"WDSCLI_TESTS": "all"}


@pytest.mark.exhaustive
def test_what_runs(project: Path) -> None:
    fast = ran(project)
    count = {
        name: sum(one.startswith(name) for one in fast)
        for name in ("test_few", "test_some", "test_marked", "test_left", "test_slow")
    }
    assert count == {"test_few": MANY, "test_some": FEWEST, "test_marked": 1, "test_left": 0, "test_slow": 0}
    assert [one for one in fast if one.startswith("test_one_case")] == [
        "test_one_case[1]",
        "test_one_case[3]",
    ]
    assert 0 < sum(one.startswith("test_many") for one in fast) <= MOST < 80 / ONE_IN
    assert sum(one.startswith("test_table") for one in fast) == MOST
    assert fast.count("test_long") == 1  # of the file that has no other
    assert fast[-1] == f"fast tier: {EVERY - (len(fast) - 1)} tests are left to scripts/test --all"
    assert len(ran(project, **ALL)) == EVERY


@pytest.mark.exhaustive
def test_what_runs_in_workers(project: Path) -> None:
    assert ran(project, "-n2", PYTHONHASHSEED="7") == ran(project)
    assert len(ran(project, "-n2", **ALL)) == EVERY


@pytest.mark.exhaustive
def test_what_is_named_runs(project: Path) -> None:
    assert len(ran(project, "tests/test_tables.py::test_table")) == 300
    # A file or a folder keeps the tier.
    assert len(ran(project, "tests")) == len(ran(project)) < EVERY
    assert len(ran(project, "-k", "test_many")) == 80


def test_the_test_files_near_a_change() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    import _near

    assert "tests/commands/test_cmd_split.py" in [*_near.near(["wdscli/cli/commands/split.py"])]
    files = [*_near.near(["wdscli/plan/sort.py"])]
    assert "tests/commands/test_cmd_sort.py" in files
    assert len(files) < 20
    assert [*_near.near(["tests/tar/test_tar_writer.py", "README.md"])] == ["tests/tar/test_tar_writer.py"]
