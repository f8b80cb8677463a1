"""The memory that ``create`` takes for each file, the files that it knows as its own output, and what a killed run
leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shard_cases import content, keys_of, leftovers
from shard_cases import wds_here as wds

import wdscli.loader
from wdscli.shards import ShardWriter
from wdscli.storage import open_sink

FEW, MANY = 40_000, 160_000
MOST_BYTES_A_FILE = 110
GROWN = """
import ctypes, resource, sys
# No huge pages (PR_SET_THP_DISABLE): whether the kernel has one at hand is two megabytes more or less.
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
from wdscli.cli.main import main

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

code = main(sys.argv[1:])
assert code == 0, code
print(peak())
"""


def make_files(folder: Path, count: int) -> Path:
    """Empty files in folders of a thousand, as pictures of classes lie."""
    for first in range(0, count, 1000):
        below = folder / f"n{first // 1000:08d}"
        below.mkdir(parents=True)
        descriptor = os.open(below, os.O_RDONLY)
        for number in range(first, min(first + 1000, count)):
            os.close(
                os.open(
                    f"n{number // 1000:08d}_{number:06d}.JPEG",
                    os.O_CREAT | os.O_WRONLY,
                    0o600,
                    dir_fd=descriptor,
                )
            )
        os.close(descriptor)
    return folder


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    shm = Path("/dev/shm")
    base = tmp_path_factory.mktemp("trees")
    if os.access(shm, os.W_OK):
        base = shm / f"wdscli-test-{os.getpid()}"
    return make_files(base / "few", FEW), make_files(base / "many", MANY)


@pytest.fixture(scope="module", autouse=True)
def no_trees_left(trees: tuple[Path, Path]) -> object:
    import shutil

    yield
    shutil.rmtree(trees[0].parent)


def peak_bytes(*words: object) -> int:
    done = subprocess.run(
        [sys.executable, "-c", GROWN, *map(str, words)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) * 1024


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--order", "shuffle", "--seed", "3"],
        ["--label-from", "parent"],
        ["--key-rule", "last-dot", "--require", "JPEG"],
    ],
    ids=["path", "shuffle", "labels", "last-dot"],
)
def test_memory_a_file(trees: tuple[Path, Path], tmp_path: Path, options: list[str]) -> None:
    most = MOST_BYTES_A_FILE * (2 if "parent" in options else 1)  # a label is a member too
    found = []
    # What a busy machine does to an allocator is only ever more.
    while len(found) < 4 and not (found and min(found) < most):
        peaks = [
            peak_bytes("create", tree, "-o", f"{tmp_path}/{tree.name}.tar", "-n", "-q", *options)
            for tree in trees
        ]
        found.append((peaks[1] - peaks[0]) / (MANY - FEW))
    assert min(found) < most, found


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("cut", [["-j", "1"], ["--shards", "12", "-j", "2"]], ids=["one shard", "processes"])
def test_memory_while_writing(trees: tuple[Path, Path], tmp_path: Path, cut: list[str]) -> None:
    names = ["-o", f"{tmp_path}/%d.tar"] if "--shards" in cut else ["-o", f"{tmp_path}/x.tar"]
    peaks = []
    for tree in trees:
        peaks.append(peak_bytes("create", tree, *names, "--force", "-q", *cut))
    assert (peaks[1] - peaks[0]) / (MANY - FEW) < MOST_BYTES_A_FILE


@pytest.mark.exhaustive
def test_memory_of_a_table(tmp_path: Path) -> None:
    peaks = []
    for count in (FEW, MANY):
        table = tmp_path / f"{count}.csv"
        table.write_text("id,t\n" + "".join(f"k{number:07d},caption {number}\n" for number in range(count)))
        command = ["create", "--from", table, "--key-column", "id", "--column", "txt=t"]
        peaks.append(peak_bytes(*command, "-o", tmp_path / "o.tar", "-n", "-q"))
    # Up to 16 MiB of small values stay in memory, whatever the table.
    assert (peaks[1] - peaks[0] - (16 << 20)) / (MANY - FEW) < MOST_BYTES_A_FILE


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder that is input and output."""
    folder = tmp_path / "OV"
    folder.mkdir()
    for number in range(5):
        (folder / f"s{number}.txt").write_text(str(number))
    return folder


SAMPLES = [f"s{number}" for number in range(5)]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    "address", ["{}/t-%06d.tar", "file://{}/t-%06d.tar", "{}/../OV/t-%06d.tar", "{}/t-{{0..2}}.tar"]
)
@pytest.mark.parametrize("more", [[], ["--key-rule", "last-dot"], ["--exclude", "*.jpg"]])
def test_create_never_packs_its_own(mixed: Path, address: str, more: list[str]) -> None:
    out = address.format(mixed)
    cut = [] if "0..2" in out else ["--max-count", 2]
    for _ in range(2):
        ran = wds("create", mixed, "-o", out, *cut, "--force", "--json", *more)
        assert ran.code == 0, ran.err
        assert keys_of(*sorted(mixed.glob("t-*.tar"))) == SAMPLES
    assert ran.objects[-1]["skipped"]["output"] == 4
    # Another run into other names: the set that is there is no sample either.
    ran = wds("create", mixed, "-o", mixed / "u-%06d.tar", "--json", *more)
    assert ran.code == 0, ran.err
    assert keys_of(mixed / "u-000000.tar") == SAMPLES
    assert ran.objects[-1]["skipped"]["shard-set"] == 4


def test_leftovers_under_names_of_the_output_are_no_samples(mixed: Path) -> None:
    """A run that was killed has left shards and no manifest."""
    (mixed / "t-000007.tar").write_bytes(b"...")
    ran = wds("create", mixed, "-o", mixed / "t-%06d.tar", "--force", "--json")
    assert ran.objects[-1]["skipped"] == {"output": 1}
    assert keys_of(mixed / "t-000000.tar") == SAMPLES
    assert not (mixed / "t-000007.tar").exists()


def test_what_only_looks_like_a_set_is_taken(mixed: Path) -> None:
    (mixed / "a-manifest.json").write_text('{"a": 1}')
    (mixed / "b.tar").write_bytes(b"...")
    ran = wds("create", mixed, "-o", mixed / "t.tar", "--json")
    assert keys_of(mixed / "t.tar") == ["a-manifest", "b", *SAMPLES]
    assert ran.objects[-1]["skipped"] == {}


def test_an_output_that_is_named_as_a_source(mixed: Path, tmp_path: Path) -> None:
    out = mixed / "t-%06d.tar"
    assert wds("create", mixed, "-o", out).code == 0
    (tmp_path / "list").write_text(f"a.tar {mixed}/t-000000.tar\n")
    (tmp_path / "t.csv").write_text(f"id,p\na,{mixed}/t-000000.tar\n")
    for source in (
        [mixed / "t-000000.tar"],
        ["--from", "list:" + str(tmp_path / "list")],
        ["--from", tmp_path / "t.csv", "--key-column", "id", "--column", "bin=@p"],
    ):
        ran = wds("create", *source, "-o", out, "--force")
        assert ran.code == 2, ran.err
        assert "t-000000.tar would be both an input and an output" in ran.err


@pytest.mark.parametrize(
    "command",
    [
        ["cat", "{}", "-o", "{}/x.tar"],
        ["cat", "{}/*.tar", "-o", "{}/x.tar"],
        ["merge", "{}/*.tar", "-o", "{}/all.tar"],
        ["split", "{}", "-o", "{}/part-%06d.tar", "--max-count", "2"],
        ["shuffle", "{}/", "-o", "{}/part-%06d.tar", "--max-count", "2"],
        ["sort", "{}", "-o", "file://{}/part-%06d.tar", "--max-count", "2"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_command_reads_what_it_writes(mixed: Path, tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "set"
    assert wds("create", mixed, "-o", folder / "in-%06d.tar", "--max-count", 3).code == 0
    words = [word.format(folder) for word in command]
    refused = wds(*words)
    assert (refused.code, "also belongs to the input" in refused.err) == (2, True)
    assert wds(*words, "--force").code == 0
    before = content(folder)
    ran = wds(*words, "--force")
    assert ran.code in (2, 3, 4), ran.err
    assert content(folder) == before


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("more", [[], ["--force"]])
@pytest.mark.parametrize("kind", ["create", "cat", "shuffle", "writer", "loader"])
def test_the_next_run_removes_what_a_killed_run_left(
    mixed: Path, tmp_path: Path, kind: str, more: list[str]
) -> None:
    folder = tmp_path / "out"
    (folder / ".wds").mkdir(parents=True)
    single = kind == "cat"
    shard = "t.tar" if single else "t-000003.tar"
    dead = [
        f".{shard}.0123456789ab.tmp",
        ".t-manifest.json.0123456789ab.tmp",
        f".wds/.{shard}.wdx.0123456789ab.tmp",
        f".wds/.{shard}.done.0123456789ab.tmp",
    ]
    others = [".v-000003.tar.0123456789ab.tmp", ".t-manifest.json.tmp", ".t-000003.tar.0123456789ab"]
    for name in (*dead, *others):
        (folder / name).write_bytes(b"...")
    # A run that is alive: its file is locked.
    alive = open_sink(f"{folder}/{shard.replace('3', '4')}")
    alive.write(b"alive")
    held = [path.name for path in folder.glob(".*.tmp") if path.name not in (*dead, *others)]
    assert len(held) == 1
    out = folder / ("t.tar" if single else "t-%06d.tar")
    if kind in ("writer", "loader"):
        if kind == "writer":
            with ShardWriter(str(out), force=bool(more)) as writer:
                writer.write("a", {"txt": b"a"})
        else:
            with wdscli.loader.ShardWriter(str(out), force=bool(more)) as other:
                other.write({"__key__": "a", "txt": "a"})
    else:
        assert wds("create", mixed, "-o", tmp_path / "in.tar").code == 0
        source = mixed if kind == "create" else tmp_path / "in.tar"
        ran = wds(kind, source, "-o", out, *more)
        assert ran.code == 0, ran.err
    assert sorted(leftovers(folder)) == sorted([name for name in others if name.endswith(".tmp")] + held)
    alive.discard()


@pytest.mark.exhaustive
def test_keys_that_become_one_after_many(tmp_path: Path) -> None:
    """Two keys that are written as one are found whichever comes first, and however many there are."""
    lines = [f"k.{number:05d}.txt\ttext:\n" for number in range(10_100)]
    words = ["--from", "list:" + str(tmp_path / "list"), "-o", tmp_path / "o.tar", "--key-rule", "last-dot"]
    (tmp_path / "list").write_text("".join([*lines, "k_10050.txt\ttext:\n"]))
    ran = wds("create", *words)
    assert ran.code == 3
    assert 'would both be written as "k_10050"' in ran.err
    (tmp_path / "list").write_text("".join(lines))
    ran = wds("create", *words, "--json")
    assert ran.code == 0
    assert "renamed 10100 keys" in ran.err
    assert len(json.loads(ran.out)["renamed"]) == 10_000
