"""``wds shuffle`` when something is wrong: repeated keys, stale indexes, changing and damaged inputs, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reorders import shuffle
from shard_cases import (
    content,
    keys_of,
    leftovers,
    members_of,
    numbered,
    outputs,
    sample,
    samples_of,
    shuffled_by_the_book,
    tar_of,
    wds,
    write_shards,
)
from tiers import EXHAUSTIVE

from wdscli.cli.main import main
from wdscli.copy import copier as gathering
from wdscli.copy import maker as running
from wdscli.errors import DataError, EngineError, UsageError, WdsError
from wdscli.plan import duplicates, survey
from wdscli.plan.cut import Cuts
from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.run.execute import run_plan
from wdscli.samples import iter_batches
from wdscli.shards import find_index
from wdscli.shards.index import IndexBuilder, index_address
from wdscli.storage import open_source


def request(names: list[str], folder: Path, **more: Any) -> Request:
    return Request(names, f"{folder}/out-%06d.tar", **{"cuts": Cuts(max_count=4), "jobs": 1, **more})


def assert_nothing_made(folder: Path) -> None:
    """No shard and no manifest under its name, and no temporary file."""
    assert outputs(folder) == []
    assert list(folder.glob("out-*manifest.json")) == []
    assert leftovers(folder) == []


@pytest.fixture
def twice(tmp_path: Path) -> list[str]:
    """Two shards that share the keys k001 and k003, with other payloads."""
    second = [sample("k003", 93), sample("m", 5), sample("k001", 91)]
    return write_shards(tmp_path / "in", [numbered(5, "k"), second])


class TestDuplicates:
    def test_the_error_names_both_places(self, twice: list[str], tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            shuffle(request(twice, tmp_path))
        error = caught.value
        assert (error.code, error.shard, error.offset) == ("duplicate-key", twice[1], 0)
        assert str(error) == (f'repeated key "k003" (first: sample 3 of {twice[0]}) in {twice[1]} at byte 0')
        assert "--on-duplicate" in str(error.hint)
        assert_nothing_made(tmp_path)

    def test_skip_keeps_the_first_of_the_input(self, twice: list[str], tmp_path: Path) -> None:
        for seed in range(4):
            report = shuffle(request(twice, tmp_path / str(seed), on_duplicate="skip"), seed)
            found = [one for path in outputs(tmp_path / str(seed)) for one in samples_of(path)]
            first, second = samples_of(twice[0]), samples_of(twice[1])
            dropped = {second[0], second[2]}
            expected = [one for one in shuffled_by_the_book([first, second], seed) if one not in dropped]
            assert found == expected
            assert report.dropped == {"duplicate-key": 2}
            assert (report.samples_in, report.samples) == (8, 6)

    def test_rekey_renames_the_later_ones(self, twice: list[str], tmp_path: Path) -> None:
        shuffle(request(twice, tmp_path, on_duplicate="rekey"), 2)
        found = dict(one for path in outputs(tmp_path) for one in samples_of(path))
        assert sorted(found) == sorted(
            ["k000", "k001", "k002", "k003", "k004", "m", "k001-in-1-000000002", "k003-in-1-000000000"]
        )
        assert found["k001-in-1-000000002"] == samples_of(twice[1])[2][1]
        assert found["k001"] == samples_of(twice[0])[1][1]

    def test_rekey_by_a_format(self, twice: list[str], tmp_path: Path) -> None:
        shuffle(request(twice, tmp_path, on_duplicate="rekey", rekey="again/{key}_{index}"))
        assert {"again/k001_2", "again/k003_0", "k001", "m"} < set(keys_of(*outputs(tmp_path)))

    def test_rekey_for_all(self, twice: list[str], tmp_path: Path) -> None:
        shuffle(request(twice, tmp_path, rekey="{shard}-{index:03d}"), 1)
        everything = [
            [(f"in-{s}-{n:03d}", fields) for n, (_, fields) in enumerate(samples_of(name))]
            for s, name in enumerate(twice)
        ]
        found = [one for path in outputs(tmp_path) for one in samples_of(path)]
        assert found == shuffled_by_the_book(everything, 1)

    def test_by_the_command(self, twice: list[str], tmp_path: Path) -> None:
        """Each option is passed on, and the manifest tells it."""
        out = str(tmp_path / "out.tar")
        assert main(["shuffle", *twice, "-o", out]) == 3
        assert main(["shuffle", *twice, "-o", out, "--on-duplicate", "skip"]) == 0
        assert len(keys_of(out)) == 6
        assert main(["shuffle", *twice, "-o", out, "--on-duplicate", "rekey", "--force"]) == 0
        assert len(keys_of(out)) == 8
        assert main(["shuffle", *twice, "-o", out, "--rekey", "x{shard}{index}", "--force"]) == 0
        assert all(key.startswith("x") for key in keys_of(out))
        made = json.loads((tmp_path / "out-manifest.json").read_bytes())["wdscli"]["made"]
        assert made["options"] == {"rekey": "x{shard}{index}"}

    def test_neighbours_of_one_key_keep_their_own_members(self, tmp_path: Path) -> None:
        """In the output order samples of one old key stand side by side in the buffer."""
        names = write_shards(tmp_path / "in", [[sample("same", n, [30 * n])] for n in range(12)])
        shuffle(request(names, tmp_path, on_duplicate="rekey", rekey="{shard}"), 3)
        found = [one for path in outputs(tmp_path) for one in samples_of(path)]
        everything = [
            [("same" if n == 0 else f"in-{n}", samples_of(name)[0][1])] for n, name in enumerate(names)
        ]
        assert found == shuffled_by_the_book(everything, 3)

    def test_a_new_key_that_is_taken(self, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[sample("a", 1), sample("in-1", 2)], [sample("a", 3)]])
        with pytest.raises(DataError) as caught:
            shuffle(request(names, tmp_path, on_duplicate="rekey", rekey="{shard}"))
        assert 'repeated key "in-1"' in str(caught.value)
        assert "{index}" in str(caught.value.hint)
        with pytest.raises(DataError, match='repeated key "in-0"'):
            shuffle(request(names, tmp_path, rekey="{shard}"))
        assert_nothing_made(tmp_path)

    def test_a_new_key_that_cannot_be(self, twice: list[str], tmp_path: Path) -> None:
        for text in ("{shard}.{index}", "../{index}", "fixed", "{key", "{key.x}", "/{key}"):
            with pytest.raises(UsageError):
                shuffle(request(twice, tmp_path, rekey=text))
        with pytest.raises(DataError, match="no value of nothing"):
            shuffle(request(twice, tmp_path, rekey="{nothing}"))

    def test_one_hash_does_not_make_one_key(
        self, twice: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a hash that says nothing, keys are still told apart, and the real repeats are found."""
        expected = {}
        for policy in ("skip", "rekey"):
            shuffle(request(twice, tmp_path / policy, on_duplicate=policy))
            expected[policy] = content(tmp_path / policy)
        monkeypatch.setattr(survey, "hash_key", lambda key: 7)
        monkeypatch.setattr(duplicates, "hash_key", lambda key: 7)
        monkeypatch.setattr("wdscli.copy.copier.hash_key", lambda key: 7)
        for policy in ("skip", "rekey"):
            shuffle(request(twice, tmp_path / (policy + "7"), on_duplicate=policy))
            assert content(tmp_path / (policy + "7")) == expected[policy]
        with pytest.raises(DataError, match=r'repeated key "k003" \(first: sample 3'):
            shuffle(request(twice, tmp_path))
        names = write_shards(tmp_path / "unlike", [numbered(20)])
        shuffle(request(names, tmp_path / "unlike"))

    def test_many_repeats_in_small_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(duplicates, "SAMPLES_AT_ONCE", 5)
        names = write_shards(
            tmp_path / "in", [numbered(20, "k", [1]), numbered(20, "k", [2]), numbered(9, "k", [3])]
        )
        report = shuffle(request(names, tmp_path, on_duplicate="skip"))
        assert report.dropped == {"duplicate-key": 29}
        found = {one for path in outputs(tmp_path) for one in samples_of(path)}
        assert found == set(samples_of(names[0]))

    def test_what_a_selection_leaves_out_is_no_repeat(self, twice: list[str], tmp_path: Path) -> None:
        out = str(tmp_path / "out.tar")
        assert main(["shuffle", *twice, "-o", out, "--where", "cls < 90"]) == 0
        assert sorted(keys_of(out)) == ["k000", "k001", "k002", "k003", "k004", "m"]


def other_tar(data: bytes, names: Callable[[str], str]) -> bytes:
    """The same payloads under other names: as many bytes."""
    return tar_of([(names(name), payload) for name, payload in members_of(data)])


@pytest.fixture
def indexed(tmp_path: Path) -> list[str]:
    names = write_shards(tmp_path / "in", [numbered(9, "a"), numbered(9, "b")])
    assert main(["index", *names]) == 0
    return names


class TestStaleIndex:
    """The survey may believe an index that is wrong in its middle; what is copied is looked at again."""

    def spoil(self, name: str, change: Callable[[str], str], only: str) -> None:
        data = Path(name).read_bytes()
        changed = other_tar(data, lambda member: change(member) if member.startswith(only) else member)
        assert len(changed) == len(data)
        assert changed != data
        Path(name).write_bytes(changed)
        index = index_address(name)
        # The index is made to look the younger.
        later = os.stat(name).st_mtime_ns + 10**9
        os.utime(index, ns=(later, later))

    def test_other_keys(self, indexed: list[str], tmp_path: Path) -> None:
        self.spoil(indexed[1], lambda name: "X" + name[1:], "b002")
        with pytest.raises(DataError) as caught:
            shuffle(request(indexed, tmp_path))
        assert (caught.value.code, caught.value.shard) == ("changed", indexed[1])
        assert "wds index" in str(caught.value.hint)
        assert list(tmp_path.glob("out-*.json")) == []
        for path in outputs(tmp_path):
            assert "X002" not in keys_of(path)
            assert "b002" not in keys_of(path)
        assert leftovers(tmp_path) == []

    def test_under_other_jobs(self, indexed: list[str], tmp_path: Path) -> None:
        self.spoil(indexed[1], lambda name: "X" + name[1:], "b002")
        with pytest.raises(DataError) as caught:
            shuffle(request(indexed, tmp_path, jobs=2, cuts=Cuts(max_count=100)))
        assert caught.value.shard == indexed[1]
        assert_nothing_made(tmp_path)

    def test_other_sizes(self, indexed: list[str], tmp_path: Path) -> None:
        """Headers in other places, in the same number of bytes."""
        data = Path(indexed[0]).read_bytes()
        members = members_of(data)
        at = [name for name, _ in members].index("a002.jpg")
        longer, shorter = members[at], members[at + 1]
        assert (len(longer[1]), len(shorter[1])) == (10, 700)
        members[at], members[at + 1] = (longer[0], shorter[1]), (shorter[0], longer[1])
        changed = tar_of(members)
        assert len(changed) == len(data)
        Path(indexed[0]).write_bytes(changed)
        later = os.stat(indexed[0]).st_mtime_ns + 10**9
        os.utime(index_address(indexed[0]), ns=(later, later))
        # The run of the sample is the same, and so is its length, but its headers are others.
        with pytest.raises(DataError, match="sample 2 differs from the planned sample") as caught:
            shuffle(request(indexed, tmp_path))
        assert (caught.value.code, caught.value.shard) == ("changed", indexed[0])
        assert list(tmp_path.glob("out-*.json")) == []

    def test_an_index_that_lies_about_a_length(self, indexed: list[str], tmp_path: Path) -> None:
        """Its size and the samples that are looked at are right, its digest fits; one sample is said to be shorter, so
        that something lies between it and the next: it is not believed."""
        name = indexed[0]
        with_lie = IndexBuilder()
        with open_source(name) as source:
            for batch in iter_batches(source):
                if b"a005" in batch.keys:
                    last = batch.firsts[batch.keys.index(b"a005") + 1] - 1
                    batch.sizes[last] -= 512
                with_lie.add_batch(batch)
        data = with_lie.to_bytes(
            shard="in-0.tar", size=os.path.getsize(name), form=request([], tmp_path).settings.form, ignored={}
        )
        Path(index_address(name)).write_bytes(data)
        with open_source(name) as source:
            assert find_index(name, source) is None
        shuffle(request(indexed, tmp_path, cuts=Cuts(max_count=100)))
        found = {one for path in outputs(tmp_path) for one in samples_of(path)}
        assert found == {one for name in indexed for one in samples_of(name)}

    def test_one_that_is_noticed_is_told_and_not_used(self, indexed: list[str], tmp_path: Path) -> None:
        Path(indexed[0]).write_bytes(tar_of([m for one in numbered(4, "new") for m in one]))
        ran = wds("shuffle", *indexed, "-o", tmp_path / "out.tar")
        assert ran.code == 0
        assert "warning" in ran.err
        assert "in-0.tar.wdx is not used" in ran.err
        assert len(keys_of(tmp_path / "out.tar")) == 13


class TestChangesMeanwhile:
    """Between the plan and its run."""

    @pytest.fixture(params=[[10, 700], [600_000]], ids=["small", "large"])
    def names(self, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setattr(gathering, "COPY_BUFFER_BYTES", 1 << 19)
        return write_shards(
            tmp_path / "in", [numbered(3, "a", request.param), numbered(3, "b", request.param)]
        )

    def fails(self, names: list[str], folder: Path, change: Callable[[Path], object]) -> WdsError:
        asked = request(names, folder, cuts=Cuts(max_count=100))
        planned = make_plan(asked, ShuffledOrder())
        change(Path(names[1]))
        with pytest.raises(WdsError) as caught:
            run_plan(planned)
        assert_nothing_made(folder)
        assert names[1] in str(caught.value)
        return caught.value

    @pytest.mark.parametrize("left", [0, 512, 700, 5000])
    def test_an_input_that_shrinks(self, names: list[str], tmp_path: Path, left: int) -> None:
        error = self.fails(names, tmp_path, lambda path: os.truncate(path, left))
        assert isinstance(error, DataError)
        assert error.exit_code == 3

    def test_an_input_that_is_emptied_under_a_stale_plan_of_zeros(
        self, names: list[str], tmp_path: Path
    ) -> None:
        self.fails(names, tmp_path, lambda path: path.write_bytes(bytes(path.stat().st_size)))

    @pytest.mark.parametrize("end", [512, 1024])
    def test_a_zero_block_at_a_run_s_end(self, tmp_path: Path, end: int) -> None:
        """The last member of a sample has become zeros: the members that are left would fill the run."""
        names = write_shards(tmp_path / "in", [[], [[*sample("b", 1, [1]), ("b.z", bytes(end - 512))]]])

        def spoil(path: Path) -> None:
            data = bytearray(path.read_bytes())
            data[2048 : 2048 + end] = bytes(end)
            path.write_bytes(data)

        self.fails(names, tmp_path, spoil)

    def test_other_samples(self, names: list[str], tmp_path: Path) -> None:
        self.fails(
            names,
            tmp_path,
            lambda path: path.write_bytes(other_tar(path.read_bytes(), lambda name: "z" + name[1:])),
        )

    def test_headers_that_break(self, names: list[str], tmp_path: Path) -> None:
        def spoil(path: Path) -> None:
            data = bytearray(path.read_bytes())
            data[1024 + 5] ^= 4
            path.write_bytes(data)

        self.fails(names, tmp_path, spoil)

    def test_an_input_that_is_gone(self, names: list[str], tmp_path: Path) -> None:
        assert self.fails(names, tmp_path, os.unlink).exit_code == 4

    def test_headers_that_would_be_longer_now(self, tmp_path: Path) -> None:
        """A member of another size under the same key and run: the shard would not have the bytes planned."""
        names = write_shards(
            tmp_path / "in", [[sample("a", 1)], [sample("b", 2, [600]), sample("c", 3)]], mtime=5
        )
        data = Path(names[1]).read_bytes()

        def spoil(path: Path) -> None:
            members = members_of(data)
            members[1:2] = [("b.jpg", b"x" * 80), ("b.new", b"y" * 4)]
            changed = tar_of(members, mtime=5)
            path.write_bytes(changed[: len(data)] if len(changed) >= len(data) else changed)

        self.fails(names, tmp_path, spoil)


class TestOnError:
    """``skip`` keeps whole samples of what is broken, counts the rest, and never writes half of one."""

    @pytest.fixture
    def broken(self, tmp_path: Path) -> tuple[list[str], list[Any]]:
        names = write_shards(tmp_path / "in", [numbered(8, "a"), numbered(8, "b"), numbered(8, "c")])
        whole = [samples_of(name) for name in names]
        data = bytearray(Path(names[0]).read_bytes())
        os.truncate(names[0], len(data) * 6 // 10)
        data = bytearray(Path(names[1]).read_bytes())
        at = data.index(b"b003.jpg")
        data[at] ^= 1
        Path(names[1]).write_bytes(data)
        return names, whole

    def test_stop(self, broken: tuple[list[str], list[Any]], tmp_path: Path) -> None:
        names, _ = broken
        with pytest.raises(DataError) as caught:
            shuffle(request(names, tmp_path))
        assert caught.value.shard == names[0]
        assert_nothing_made(tmp_path)

    @pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
    def test_skip(self, broken: tuple[list[str], list[Any]], tmp_path: Path, jobs: int) -> None:
        names, whole = broken
        report = shuffle(request(names, tmp_path, on_error="skip", jobs=jobs), 6)
        found = [one for path in outputs(tmp_path) for one in samples_of(path)]
        assert set(found) < {one for shard in whole for one in shard}, "never half a sample"
        lost = {key for shard in whole for key, _ in shard} - {key for key, _ in found}
        assert {key[0] for key in lost} == {"a", "b"}
        assert "b003" in lost
        assert len(lost) <= 8 - 4 + 3
        assert report.samples_in == report.samples + sum(report.dropped.values())
        order = [one for one in shuffled_by_the_book(whole, 6) if one in found]
        assert [one for one in found if one[0][0] in "ac"] == [one for one in order if one[0][0] in "ac"]

    def test_by_the_command(self, broken: tuple[list[str], list[Any]], tmp_path: Path) -> None:
        names, _ = broken
        ran = wds("shuffle", *names, "-o", tmp_path / "out.tar", "--on-error", "skip")
        assert ran.code == 0
        assert ran.err.count("warning:") >= 2
        assert "left out" in ran.err
        assert "damaged" in ran.err

    def test_streams(self, broken: tuple[list[str], list[Any]], tmp_path: Path) -> None:
        names, _ = broken
        shuffle(request(names, tmp_path / "1", on_error="skip"), 6)
        shuffle(request([f"pipe:cat {name}" for name in names], tmp_path / "2", on_error="skip"), 6)
        assert [path.read_bytes() for path in outputs(tmp_path / "1")] == [
            path.read_bytes() for path in outputs(tmp_path / "2")
        ]


def descendants(pid: int) -> set[int]:
    """Processes below ``pid``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if text[0] != "Z":
                parents[int(entry.name)] = int(text[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.005)


class TestInterrupts:
    @pytest.fixture
    def started(self, tmp_path: Path) -> Any:
        """A run with two workers, in a process group of its own, that takes its time: outputs are slow commands... and
        so it is caught while both are at work."""
        names = write_shards(tmp_path / "in", [numbered(40, f"p{n}-", [400_000]) for n in range(4)])
        (tmp_path / "t").mkdir()
        slow = f"pipe:exec tail -c +1 -f {names[3]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "wdscli", "shuffle", *names[:3], slow, "-o", f"{tmp_path}/out-%06d.tar",
             "-j", "2", "--tmp", str(tmp_path / "t"), "--max-count", "20"],
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self, process: Any, children: set[int], folder: Path) -> str:
        _, error = process.communicate(timeout=60)
        wait_until(lambda: not any(map(is_alive, children)))
        assert_nothing_made(folder)
        assert list((folder / "t").iterdir()) == []
        return str(error.decode())

    @pytest.mark.exhaustive
    def test_ctrl_c_while_copying_a_stream(self, started: Any, tmp_path: Path) -> None:
        wait_until(lambda: list((tmp_path / "t").glob("*/3.tar")))
        children = descendants(started.pid)
        os.killpg(started.pid, signal.SIGINT)
        error = self.end(started, children, tmp_path)
        assert started.returncode == 130
        assert "interrupted" in error
        assert "Traceback" not in error

    def test_what_a_scheduler_ends_is_tidied_up_too(self, started: Any, tmp_path: Path) -> None:
        wait_until(lambda: list((tmp_path / "t").glob("*/3.tar")))
        children = descendants(started.pid)
        started.terminate()
        error = self.end(started, children, tmp_path)
        assert started.returncode == 143
        assert error.splitlines()[-1] == "terminated"
        assert "Traceback" not in error

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.6])
    def test_ctrl_c_while_writing(self, tmp_path: Path, delay: float) -> None:
        """At several moments, the start of the workers among them."""
        names = write_shards(tmp_path / "in", [numbered(40, f"p{n}-", [700_000]) for n in range(4)])
        process = subprocess.Popen(
            [sys.executable, "-m", "wdscli", "shuffle", *names, "-o", f"{tmp_path}/out-%06d.tar",
             "-j", "2", "--shards", "1000", "--fsync"],
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: len(descendants(process.pid)) >= 2 or process.poll() is not None)
        time.sleep(delay)
        children = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130, error
        assert b"Traceback" not in error
        assert list(tmp_path.glob("out-*.json")) == []
        wait_until(lambda: not any(map(is_alive, children)))
        assert leftovers(tmp_path) == []
        for path in outputs(tmp_path):
            samples_of(path)

    @pytest.mark.exhaustive
    def test_a_worker_that_is_killed(self, started: Any, tmp_path: Path) -> None:
        wait_until(lambda: list((tmp_path / "t").glob("*/3.tar")))
        children = descendants(started.pid)
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 2
        # Not the one that runs the command: nobody could end that one's children.
        (idle,) = [pid for pid in workers if not descendants(pid)]
        os.kill(idle, signal.SIGKILL)
        error = self.end(started, children, tmp_path)
        assert started.returncode == 5
        assert "ended abruptly" in error
        assert "Traceback" not in error


@pytest.mark.parametrize(
    "wrong", [{"samples": 99}, {"members": 99}, {"size_bytes": 512}], ids=["samples", "members", "bytes"]
)
def test_what_was_written_is_compared_with_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, int]
) -> None:
    original = running.gather

    def gather_wrongly(task: Any) -> Any:
        later = original(task)
        return replace(later, result=lambda: replace(later.result(), **wrong))

    monkeypatch.setattr(running, "gather", gather_wrongly)
    names = write_shards(tmp_path / "in", [numbered(5)])
    with pytest.raises(EngineError, match="planned were"):
        shuffle(request(names, tmp_path))
    assert list(tmp_path.glob("out-*.json")) == []


def test_what_was_written_is_compared_with_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payload bytes are compared too, which no plan knows."""
    original = running.gather

    def without_fields(task: Any) -> Any:
        later = original(task)
        return replace(later, result=lambda: replace(later.result(), fields={}))

    monkeypatch.setattr(running, "gather", without_fields)
    names = write_shards(tmp_path / "in", [numbered(5)])
    with pytest.raises(EngineError, match=r"0 payload bytes were written or counted, but [1-9]\d* were read"):
        shuffle(request(names, tmp_path))
    assert list(tmp_path.glob("out-*.json")) == []
