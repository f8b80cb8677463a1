"""The programs of man/guides/train-*.md, run: to their end, as two processes, and stopped in the middle of an epoch.

Each is run in a process of its own, with ``learn`` writing down what it was given. It must not know any framework.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections import Counter
from itertools import chain
from pathlib import Path
from textwrap import dedent
from unittest import mock

from torch_processes import Program

from wdscli.shards import ShardWriter

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "man" / "guides").glob("train-*.md"))
TEXT = "".join(guide.read_text() for guide in GUIDES)
PROGRAMS = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
COUNT, BATCH = 40, 4
BEFORE = """
import json, os, sys, warnings

warnings.filterwarnings("ignore")
_seen = open(sys.argv[1], "a")
_stop = int(sys.argv[2])
_given = 0


def learn(batch):
    global _given
    if _given == _stop:
        _seen.close()
        os._exit(3)
    _given += 1
    print(json.dumps([int(number) for number in batch[0]]), file=_seen, flush=True)


if "jax" in sys.argv[3:] and "RANK" in os.environ:
    import jax

    jax.distributed.initialize(os.environ["ADDRESS"], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
"""
"""What stands in front of a program."""


def write_set(folder: Path) -> None:
    """The set that programs read."""
    with ShardWriter(f"{folder}/train/in-%06d.tar", max_count=7, values="len(txt)") as writer:
        for number in range(COUNT):
            writer.write(f"n{number}", {"cls": b"%d" % number, "txt": b"%d" % number})


PACKED = """
import numpy


def arrays(sample):
    return (numpy.full(len(str(sample["cls"])), sample["cls"]),)


"""


def packed(name: str) -> str:
    """A program with packs of at most 7 digits in place of batches of four numbers: a number once for each digit."""
    program = dedent(PROGRAMS[name])
    batches = '.decode().to_tuple("cls").batched(4)'
    assert program.count(batches) == 1
    return PACKED + program.replace(batches, '.decode().map(arrays).packed(7, "len(txt)")')


def started(
    name: str, folder: Path, stop: int = -1, rank: int | None = None, port: int = 0, packs: bool = False
) -> Program:
    """A program, begun; it ends at once when it has learned ``stop`` batches."""
    program = packed(name) if packs else dedent(PROGRAMS[name])
    (folder / "program.py").write_text(BEFORE + program)
    more = {"OMP_NUM_THREADS": "1"}
    if rank is not None:
        more |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ADDRESS": f"127.0.0.1:{port}"}
        more |= {"TORCHELASTIC_RUN_ID": "guides", "GROUP_RANK": "0"}
    with mock.patch.dict(os.environ, more):
        return Program(folder / "program.py", f"seen-{rank or 0}", stop, name, cwd=folder)


def learned(name: str, folder: Path, stop: int = -1, packs: bool = False) -> list[list[int]]:
    """The batches that a program learned, up to its end or to ``stop``."""
    (folder / "seen-0").unlink(missing_ok=True)
    _ended(started(name, folder, stop, packs=packs), 0 if stop < 0 else 3)
    return _batches(folder, 0)


def learned_by_two(name: str, folder: Path, packs: bool = False) -> list[list[list[int]]]:
    """The batches that each of two processes learned."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # A folder each: who starts late must not find what the other has saved meanwhile.
    folders = [folder / f"rank-{rank}" for rank in range(2)]
    for own in folders:
        own.mkdir()
        (own / "train").symlink_to(folder / "train")
    processes = [started(name, own, rank=rank, port=port, packs=packs) for rank, own in enumerate(folders)]
    for process in processes:
        _ended(process, 0)
    return [_batches(own, rank) for rank, own in enumerate(folders)]


def _ended(process: Program, code: int) -> None:
    said = process.communicate()
    assert process.wait() == code, said


def _batches(folder: Path, rank: int) -> list[list[int]]:
    return [json.loads(line) for line in (folder / f"seen-{rank}").read_text().splitlines()]


def check(name: str, tmp_path: Path) -> None:
    """Two epochs that differ, two processes that see every sample once, a stop in mid-epoch that goes on exactly."""
    whole, two, stopped = (tmp_path / part for part in ("whole", "two", "stopped"))
    for folder in (whole, two, stopped):
        folder.mkdir()
        write_set(folder)
    every = list(range(COUNT))
    batches = learned(name, whole)
    epochs = batches[: COUNT // BATCH], batches[COUNT // BATCH :]
    assert [sorted(chain(*epoch)) for epoch in epochs] == [every, every]
    assert epochs[0] != epochs[1]

    first = learned(name, stopped, stop=14)
    assert first == batches[:14]
    second = learned(name, stopped)
    assert batches[-len(second) :] == second
    assert COUNT // BATCH < len(batches) - len(second) <= 14, "from the middle of the second epoch"

    ranks = learned_by_two(name, two)
    half = COUNT // BATCH // 2
    for part in (slice(0, half), slice(half, None)):
        assert sorted(chain(*ranks[0][part], *ranks[1][part])) == every


def check_packed(name: str, tmp_path: Path) -> None:
    """The same as :func:`check` for packs: each number comes once for each of its digits."""
    whole, two, stopped = (tmp_path / part for part in ("whole", "two", "stopped"))
    for folder in (whole, two, stopped):
        folder.mkdir()
        write_set(folder)
    every = sorted(number for number in range(COUNT) for _ in str(number))
    batches = learned(name, whole, packs=True)
    half = len(batches) // 2
    epochs = batches[:half], batches[half:]
    assert [sorted(chain(*epoch)) for epoch in epochs] == [every, every]
    assert epochs[0] != epochs[1]
    assert max(map(len, batches)) == 7

    first = learned(name, stopped, stop=half + 4, packs=True)
    assert first == batches[: half + 4]
    second = learned(name, stopped, packs=True)
    assert batches[-len(second) :] == second
    assert half < len(batches) - len(second) <= half + 4, "from the middle of the second epoch"

    ranks = learned_by_two(name, two, packs=True)
    assert len(ranks[0]) == len(ranks[1])
    # With an odd number of packs one comes twice.
    steps = len(ranks[0]) // 2
    for part in (slice(0, steps), slice(steps, None)):
        given = Counter(map(tuple, [*ranks[0][part], *ranks[1][part]]))
        assert sorted(chain(*given)) == every
        assert sum(given.values()) - len(given) == half % 2
