"""Orders of sets of some ten thousand samples: the least memory and much of it, the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_of import peak_of_all
from shard_cases import content, wds

from wdscli.cli.main import main
from wdscli.plan.strategy import least
from wdscli.tar import END_OF_ARCHIVE, build_header, padding

COUNTS = [25_000, 0, 12_000, 1, 6_000]
FEWER = [6_000, 0, 3_000, 1, 1_500]
"""Of the sets whose bytes are compared."""
WEIGHTS = "3,1,2,1/5000,1/2"


def write_set(path: Path, number: int, count: int) -> str:
    """Tiny samples: classes and groups that tie, every 50th without a group; of the last set, all keys were seen."""
    prefix = 0 if number == 4 else number
    with path.open("wb") as file:
        for at in range(count):
            key = b"s%d/n%06d" % (prefix, at)
            for field, payload in [(b"cls", b"%d" % (at * at % 11)), (b"txt", b"g%d" % (at % 1009))]:
                if field == b"cls" or at % 50:
                    file.write(build_header(key + b"." + field, len(payload)))
                    file.write(payload + padding(len(payload)))
        file.write(END_OF_ARCHIVE)
    return str(path)


def write_sets(folder: Path, counts: list[int]) -> list[str]:
    names = [write_set(folder / f"in-{number}.tar", number, count) for number, count in enumerate(counts)]
    assert main(["index", "-q", *names]) == 0
    return names


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_sets(tmp_path_factory.mktemp("sets"), COUNTS)


@pytest.fixture(scope="module")
def small_sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_sets(tmp_path_factory.mktemp("small"), FEWER)


def made(folder: Path, sets: list[str], words: list[str], *more: object) -> dict[str, bytes]:
    part = "{part}-" if words[0] == "split" else ""
    out = f"{folder}/{part}out-%06d.tar"
    ran = wds(*words, *sets, "-o", out, "-q", "-j", "1", "--max-count", 5000, *more)
    assert ran.code == 0, ran.err
    assert "in memory" not in ran.err
    return content(folder)


ORDERS = {
    "in turn": ["merge", "--weights", "equal", "--on-duplicate", "skip"],
    "until one has ended": [
        "merge",
        "--weights",
        "1,1/50000,1,1/20000,1/50000",
        "--stop",
        "first",
        "--dedup",
        "key",
    ],
    "by weight": ["merge", "--weights", WEIGHTS, "--on-duplicate", "rekey"],
    "without repeats": ["merge", "--dedup", "key,txt", "--on-duplicate", "skip"],
    "without repeated payloads": ["merge", "--dedup", "txt", "--weights", WEIGHTS, "--on-duplicate", "skip"],
    "by quotas": [
        *["split", "--ratio", "a=0.7,b=0.2,c=0.1", "--stratify", "cls", "--on-duplicate", "skip"],
    ],
    "by quotas in groups": [
        *["split", "--ratio", "a=7,b=2,c=1", "--stratify", "cls", "--group-by", "txt", "--missing", "skip"],
        *["--on-duplicate", "rekey", "--seed", "5"],
    ],
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ORDERS)
def test_same_bytes(small_sets: list[str], tmp_path: Path, name: str) -> None:
    little = made(tmp_path / "little", small_sets, ORDERS[name], "--memory", "1MiB")
    assert little == made(tmp_path / "much", small_sets, ORDERS[name], "--memory", "4GiB")
    assert sum(map(len, little.values())) > 1 << 20


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["by weight", "without repeats", "by quotas in groups"])
def test_memory(sets: list[str], tmp_path: Path, name: str) -> None:
    words = ORDERS[name]
    part = "{part}-" if words[0] == "split" else ""
    command = [*words, *sets, "-o", f"{tmp_path}/{part}out-%06d.tar", "-q", "-j", "1", "--max-count", 5000]
    assert peak_of_all(*command, "--memory", "1MiB", what="RssAnon") < least(1)
