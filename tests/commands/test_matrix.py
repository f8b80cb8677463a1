"""The same bytes from every way of doing it: strategy, jobs, memory, engine, with and without indexes.

Every reordering command runs on a set with ties, repeated keys, empty shards, shards of one sample, samples larger than
the memory limit, names that need pax, foreign headers and global ones. The first way of each case is the oracle for the
others; what it must hold is compared with what tarfile reads in the inputs.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from awkward_sets import write_awkward
from dask_cluster import Cluster, dask_cluster
from shard_cases import assert_true_set, content, leftovers, members_of, outputs, split

from wdscli.cli.main import main

pytestmark = pytest.mark.usefixtures("shared_workers")
TINY, LARGE = "1MiB", "4GiB"
CUT = ["--max-size", "64KiB"]

# name -> (words of the command, the set, whether every sample comes out as it went in)
CASES: dict[str, tuple[list[str], str, bool]] = {
    "shuffle": (["shuffle", "--seed", "3", *CUT], "all", True),
    "shuffle, keys renamed": (["shuffle", "--rekey", "{shard}-{index:09d}", *CUT], "all", False),
    "shuffle, repeats left out": (
        ["shuffle", "--on-duplicate", "skip", "--max-count", "7"],
        "repeats",
        False,
    ),
    "shuffle, repeats renamed": (
        ["shuffle", "--on-duplicate", "rekey", "--max-count", "7"],
        "repeats",
        False,
    ),
    "shuffle, some fields": (
        ["shuffle", "--fields", "cls,txt", "--keys", "*s*", "--shards", "4"],
        "all",
        False,
    ),
    "sort by key": (["sort", "--by", "key", *CUT], "all", True),
    "sort by class": (["sort", "--by", "cls", *CUT], "all", True),
    "split": (["split", *CUT], "all", True),
    "merge": (["merge", "--shards", "3"], "all", True),
    "merge in turns": (["merge", "--weights", "equal", *CUT], "all", True),
    "join": (["merge", "--join", "outer", *CUT], "all", True),
    "join, fields in common": (
        ["merge", "--join", "outer", "--on-conflict", "right", "--max-count", "7"],
        "repeats",
        False,
    ),
}
EXTRA = {
    "split by ratio": (["split", "--ratio", "train=0.7,val=0.3", "--max-count", "9"], "all", True),
    "split by class": (["split", "--by", "cls", "--missing", "none", *CUT], "all", True),
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], list[str]]:
    """The inputs, without indexes and with."""
    folder = tmp_path_factory.mktemp("in")
    found = {
        ("all", False): write_awkward(folder / "all"),
        ("repeats", False): write_awkward(folder / "repeats", repeats=True),
    }
    for kind in ("all", "repeats"):
        shutil.copytree(folder / kind, folder / f"{kind}-wdx")
        names = [str(folder / f"{kind}-wdx" / Path(name).name) for name in found[kind, False]]
        assert main(["index", "-q", *names]) == 0
        # The output's manifest names the fingerprint of an input set that has a manifest: only the indexes may differ.
        for manifest in (folder / f"{kind}-wdx").glob("*manifest.json"):
            manifest.unlink()
        found[kind, True] = names
    return found


def made(
    case: tuple[list[str], str, bool], sets: Any, out: Path, indexed: bool, *more: str, part: str = ""
) -> dict[str, bytes]:
    """All files of one run, hidden ones too."""
    words, kind, _ = case
    out.mkdir()
    command = [words[0], *sets[kind, indexed], *words[1:], "-o", f"{out}/{part}out-%06d.tar", "-q", *more]
    assert main(command) == 0, command
    assert not leftovers(out)
    return content(out)


def by_key(path: str | Path) -> list[Any]:
    """(key, fields) of a shard, whatever lies between the members of a sample."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for name, payload in members_of(path):
        key, field = split(name)
        if field:
            found.setdefault(key, []).append((field, payload))
    return [(key, tuple(fields)) for key, fields in found.items()]


def assert_nothing_lost(case: tuple[list[str], str, bool], sets: Any, out: Path) -> None:
    """Every payload came out as it went in."""
    _, kind, whole = case
    before = Counter(one for name in sets[kind, False] for one in by_key(name))
    after = Counter(one for path in sorted(out.glob("*.tar")) for one in by_key(path))
    if whole:
        assert before == after
    else:
        payloads = Counter(member for _, fields in before.elements() for member in fields)
        assert not Counter(member for _, fields in after.elements() for member in fields) - payloads


WAYS = list(product(["gather", "spill"], [1, 2, 5], [TINY, LARGE], [False, True]))
# Processes take a second to start: all ways for one case, and for the others those in which any two choices meet.
FEWER = [
    *product(["gather", "spill"], [1], [TINY, LARGE], [False, True]),
    ("gather", 2, TINY, True),
    ("spill", 2, LARGE, False),
    ("gather", 5, LARGE, False),
    ("spill", 5, TINY, True),
]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", CASES)
def test_same_bytes(name: str, sets: Any, tmp_path: Path) -> None:
    case = CASES[name]
    wanted = made(case, sets, tmp_path / "wanted", False, "--strategy", "gather", "-j1")
    assert len(outputs(tmp_path / "wanted")) > 2
    assert_nothing_lost(case, sets, tmp_path / "wanted")
    assert_true_set(tmp_path / "wanted")
    for number, (strategy, jobs, memory, indexed) in enumerate(WAYS if name == "shuffle" else FEWER):
        way = ["--strategy", strategy, f"-j{jobs}", "--memory", memory, "--tmp", str(tmp_path)]
        found = made(case, sets, tmp_path / f"out{number}", indexed, *way)
        assert found == wanted, way
        shutil.rmtree(tmp_path / f"out{number}")


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", EXTRA)
def test_same_bytes_of_parts(name: str, sets: Any, tmp_path: Path) -> None:
    case = EXTRA[name]
    wanted = made(case, sets, tmp_path / "wanted", False, "--strategy", "gather", "-j1", part="{part}-")
    assert len(list((tmp_path / "wanted").glob("*-manifest.json"))) > 1
    assert_nothing_lost(case, sets, tmp_path / "wanted")
    for number, (strategy, jobs, memory, indexed) in enumerate(FEWER):
        way = ["--strategy", strategy, f"-j{jobs}", "--memory", memory]
        found = made(case, sets, tmp_path / f"out{number}", indexed, *way, part="{part}-")
        assert found == wanted, way
        shutil.rmtree(tmp_path / f"out{number}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    with dask_cluster(tmp_path_factory.mktemp("dask")) as found:
        yield found


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", [*CASES, *EXTRA])
def test_same_bytes_by_dask(name: str, sets: Any, cluster: Cluster, tmp_path: Path) -> None:
    case = {**CASES, **EXTRA}[name]
    part = "{part}-" if name in EXTRA else ""
    wanted = made(case, sets, tmp_path / "wanted", False, "--strategy", "gather", "-j1", part=part)
    for number, (strategy, memory, indexed) in enumerate([("gather", LARGE, True), ("spill", TINY, False)]):
        way = ["--engine", cluster.url, "--strategy", strategy, "--memory", memory, "--tmp", str(tmp_path)]
        assert made(case, sets, tmp_path / f"out{number}", indexed, *way, part=part) == wanted, way
