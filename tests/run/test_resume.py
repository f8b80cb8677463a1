"""``--resume``: what an earlier run has left is kept when it is of the same plan and whole, else made or refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reorders import shuffle
from shard_cases import Ran, content, leftovers, outputs, tar_of, wds

from wdscli.copy import maker as gathering
from wdscli.errors import OutputExistsError
from wdscli.plan.cut import Cuts
from wdscli.plan.request import Request
from wdscli.run import execute as running
from wdscli.shards.writing import OutputSet, ShardSettings

Command = Callable[..., Ran]
COMMAND: list[str] = []


@pytest.fixture
def command(shards: list[str], tmp_path: Path) -> list[str]:
    """A shuffle into six shards, below ``out``."""
    return ["shuffle", *shards, "-o", f"{tmp_path}/out/out-%d.tar", "--max-count", "4", "-j", "1", "-q"]


def with_count(command: list[str], count: str) -> list[str]:
    """The same, with so many samples in a shard."""
    at = command.index("--max-count") + 1
    return [*command[:at], count, *command[at + 1 :]]


class Stop(Exception):
    """What ends a run in the middle."""


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, run: Command, tmp_path: Path) -> Callable[..., None]:
    """Run a command until so many shards are done, as if it were killed then."""

    def end(*args: object, after: int = 3) -> None:
        done = 0
        original = gathering.gather

        def some(task: Any) -> Any:
            nonlocal done
            if done == after:
                raise Stop
            done += 1
            return original(task)

        with monkeypatch.context() as patch:
            patch.setattr(gathering, "gather", some)
            assert run(*args).code == 5
        assert len(outputs(tmp_path / "out")) == after
        assert not list(tmp_path.glob("out/*.json"))

    return end


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that are made from now on."""
    names: list[str] = []
    original = gathering.gather

    def noted(task: Any) -> Any:
        names.append(os.path.basename(task.address))
        return original(task)

    monkeypatch.setattr(gathering, "gather", noted)
    return names


@pytest.fixture
def undisturbed(run: Command, command: list[str], tmp_path: Path) -> dict[str, bytes]:
    """All files of a run that nothing happened to, which is gone again."""
    assert run(*command).code == 0
    files = content(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    return files


class TestKept:
    def test_whole_shards_are_kept(
        self, run: Command, command: list[str], undisturbed: Any, interrupted: Any, tmp_path: Path,
        made: list[str],
    ) -> None:  # fmt: skip
        interrupted(*command)
        before = {path: path.stat().st_ino for path in outputs(tmp_path / "out")}
        made.clear()
        assert run(*command, "--resume").code == 0
        assert made == ["out-3.tar", "out-4.tar", "out-5.tar"]
        assert {path: path.stat().st_ino for path in before} == before
        assert content(tmp_path / "out") == undisturbed

    def test_nothing_is_there(
        self, run: Command, command: list[str], undisturbed: Any, tmp_path: Path
    ) -> None:
        assert run(*command, "--resume").code == 0
        assert content(tmp_path / "out") == undisturbed

    def test_the_set_is_complete(
        self, run: Command, command: list[str], undisturbed: Any, tmp_path: Path, made: list[str]
    ) -> None:
        assert run(*command).code == 0
        made.clear()
        ran = run(*command[:-1], "--resume", "--json")
        assert (ran.code, made) == (0, [])
        assert "kept 6 shards" in ran.err
        assert ran.objects[0]["kept"] == 6
        assert content(tmp_path / "out") == undisturbed

    @pytest.mark.parametrize("checksum", ["sha256", "none"])
    def test_other_checksums(
        self,
        run: Command,
        command: list[str],
        interrupted: Any,
        tmp_path: Path,
        checksum: str,
        made: list[str],
    ) -> None:
        command = [*command, "--hash", checksum]
        interrupted(*command)
        made.clear()
        assert run(*command, "--resume").code == 0
        assert made == ["out-3.tar", "out-4.tar", "out-5.tar"]
        kept = content(tmp_path / "out")
        shutil.rmtree(tmp_path / "out")
        assert run(*command).code == 0
        assert content(tmp_path / "out") == kept

    @pytest.mark.parametrize("there", [False, True], ids=["gone", "cut"])
    def test_an_index_that_is_not_whole_is_made_again_with_its_shard(
        self, run: Command, command: list[str], undisturbed: Any, interrupted: Any, tmp_path: Path,
        made: list[str], there: bool,
    ) -> None:  # fmt: skip
        """A run may be killed between a shard's name and its index."""
        interrupted(*command)
        index = tmp_path / "out" / ".wds" / "out-1.tar.wdx"
        data = index.read_bytes()
        index.unlink()
        if there:
            index.write_bytes(data[:-3])
        made.clear()
        assert run(*command, "--resume").code == 0
        assert made == ["out-1.tar", "out-3.tar", "out-4.tar", "out-5.tar"]
        assert content(tmp_path / "out") == undisturbed

    def test_without_indexes_no_folder_stays(
        self, run: Command, command: list[str], interrupted: Any, tmp_path: Path
    ) -> None:
        command = [*command, "--no-index"]
        interrupted(*command)
        assert run(*command, "--resume").code == 0
        assert not (tmp_path / "out" / ".wds").exists()

    def test_other_circumstances_are_the_same_plan(
        self, run: Command, command: list[str], undisturbed: Any, interrupted: Any, tmp_path: Path,
        made: list[str],
    ) -> None:  # fmt: skip
        interrupted(*command)
        made.clear()
        ran = run(*command, "--resume", "--memory", "200MB", "--strategy", "spill", "--tmp", tmp_path)
        assert ran.code == 0, ran.err
        assert len(made) == 3
        assert content(tmp_path / "out") == undisturbed

    def test_inputs_that_are_copied_first(
        self, run: Command, shards: list[str], interrupted: Any, tmp_path: Path, made: list[str]
    ) -> None:
        subprocess.run(["gzip", "-k", shards[0]], check=True)
        inputs = [f"{shards[0]}.gz", f"pipe:cat {shards[2]}"]
        command = ["shuffle", *inputs, "-o", f"{tmp_path}/out/out-%d.tar", "--max-count", "4", "-j", "1"]
        interrupted(*command)
        made.clear()
        assert run(*command, "--resume").code == 0
        assert made == ["out-3.tar", "out-4.tar"]

    def test_parts(
        self, run: Command, shards: list[str], interrupted: Any, tmp_path: Path, made: list[str]
    ) -> None:
        """Parts whose manifest is there are complete; the others go by receipts."""
        how = ["--ratio", "a=0.5,b=0.5", "--max-count", "4", "-j", "1"]
        command = ["split", *shards, "-o", f"{tmp_path}/out/out-{{part}}-%d.tar", *how]
        ran = run(*command)
        assert ran.code == 0, ran.err
        files = content(tmp_path / "out")
        (tmp_path / "out" / "out-b-manifest.json").unlink()
        made.clear()
        ran = run(*command, "--resume")
        assert ran.code == 4
        assert "out-b-0.tar exists, but no receipt shows" in ran.err
        shutil.rmtree(tmp_path / "out")
        interrupted(*command)
        made.clear()
        assert run(*command, "--resume").code == 0
        assert len(made) == len([name for name in files if name.endswith(".tar")]) - 3
        assert content(tmp_path / "out") == files

    def test_ended_between_the_manifests_of_parts(
        self, run: Command, shards: list[str], tmp_path: Path, made: list[str], monkeypatch: Any
    ) -> None:
        how = ["--ratio", "a=0.5,b=0.5", "--max-count", "4", "-j", "1"]
        command = ["split", *shards, "-o", f"{tmp_path}/out/out-{{part}}-%d.tar", *how]
        assert run(*command).code == 0
        files = content(tmp_path / "out")
        shutil.rmtree(tmp_path / "out")
        original = OutputSet.finish

        def some(output: OutputSet, *args: Any, **made: Any) -> Any:
            if "-b-" in output.pattern.text:
                raise Stop
            return original(output, *args, **made)

        with monkeypatch.context() as patch:
            patch.setattr(OutputSet, "finish", some)
            assert run(*command).code == 5
        assert [path.name for path in tmp_path.glob("out/*.json")] == ["out-a-manifest.json"]
        made.clear()
        assert run(*command, "--resume").code == 0
        assert made == []
        assert content(tmp_path / "out") == files

    def test_ended_before_the_receipts_were_removed(
        self, run: Command, command: list[str], undisturbed: Any, tmp_path: Path, monkeypatch: Any
    ) -> None:
        def stop(_: Any) -> None:
            raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(running, "tidy", stop)
            assert run(*command).code == 5
        assert len(list(tmp_path.glob("out/.wds/*.done"))) == 6
        assert run(*command, "--resume").code == 0
        assert content(tmp_path / "out") == undisturbed

    def test_in_the_current_folder(
        self, run: Command, shards: list[str], undisturbed: Any, tmp_path: Path, monkeypatch: Any
    ) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        command = ["shuffle", *shards, "-o", "out-%d.tar", "--max-count", "4", "-j", "1"]
        with monkeypatch.context() as patch:
            patch.setattr(running, "finish_plan", None)
            assert run(*command).code == 5
        assert "kept 6 shards" in run(*command, "--resume").err
        assert content(tmp_path / "here") == undisturbed

    def test_a_post_that_did_not_run_runs(
        self, run: Command, command: list[str], undisturbed: Any, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        fails = f"case {{}} in *2.tar) exit 3;; *) echo {{}} >> {log};; esac"
        assert run(*command, "--post", fails).code == 5
        assert len(outputs(tmp_path / "out")) == 3
        assert run(*command, "--resume", "--post", f"echo {{}} >> {log}").code == 0
        done = [os.path.basename(line) for line in log.read_text().split()]
        assert done == [f"out-{number}.tar" for number in range(6)]
        assert content(tmp_path / "out") == undisturbed

    def test_a_dry_run_tells_how_much_is_there(
        self, run: Command, command: list[str], interrupted: Any, tmp_path: Path
    ) -> None:
        interrupted(*command)
        before = content(tmp_path / "out")
        ran = run(*command[:-1], "--resume", "-n")
        assert ran.code == 0
        assert "3 of 6 shards are already done" in ran.err
        assert content(tmp_path / "out") == before


class TestRefused:
    def test_leftovers_without_resume(self, run: Command, command: list[str], interrupted: Any) -> None:
        interrupted(*command)
        ran = run(*command)
        assert ran.code == 4
        assert "output exists" in ran.err
        assert "--resume" in ran.err

    def test_a_complete_set_has_no_such_hint(self, run: Command, command: list[str]) -> None:
        assert run(*command).code == 0
        assert "--resume" not in run(*command).err

    @pytest.mark.parametrize(
        ("more", "why"),
        [
            (["--seed", "9"], "options"),
            (["--drop", "jpg"], "options"),
            (["--hash", "sha256"], "options"),
            (["--no-index"], "options"),
            (["--mtime", "7"], "options"),
        ],
        ids=str,
    )
    def test_other_options(
        self, run: Command, command: list[str], interrupted: Any, more: list[str], why: str, tmp_path: Path
    ) -> None:
        interrupted(*command)
        before = content(tmp_path / "out")
        ran = run(*command, *more, "--resume")
        assert ran.code == 4
        assert f"was made by another run: it was started with different {why}: {more[0]}\n" in ran.err
        assert content(tmp_path / "out") == before

    def test_another_count(self, run: Command, command: list[str], interrupted: Any, tmp_path: Path) -> None:
        interrupted(*command)
        before = content(tmp_path / "out")
        ran = run(*with_count(command, "5"), "--resume")
        assert ran.code == 4
        assert "was made by another run: it was started with different options: --max-count" in ran.err
        assert content(tmp_path / "out") == before

    def test_changed_inputs(
        self, run: Command, command: list[str], shards: list[str], interrupted: Any
    ) -> None:
        interrupted(*command)
        # The same members in the same places: only the time of change tells.
        data = Path(shards[0]).read_bytes()
        Path(shards[0]).write_bytes(data[:512] + b"!" + data[513:])
        ran = run(*command, "--resume")
        assert ran.code == 4
        assert "its inputs differ or have changed" in ran.err

    def test_another_order_of_inputs(self, run: Command, command: list[str], interrupted: Any) -> None:
        interrupted(*command)
        command[1:3] = command[2:0:-1]
        assert run(*command, "--resume").code == 4

    def test_a_shard_that_was_changed(
        self, run: Command, command: list[str], interrupted: Any, undisturbed: Any, tmp_path: Path
    ) -> None:
        interrupted(*command)
        path = tmp_path / "out" / "out-1.tar"
        data = bytearray(path.read_bytes())
        data[1030] ^= 1
        path.write_bytes(data)
        ran = run(*command, "--resume")
        assert ran.code == 4
        assert "out-1.tar exists, but its content differs from what was written" in ran.err
        assert path.read_bytes() == data
        assert run(*command, "--resume", "--force").code == 0
        assert content(tmp_path / "out") == undisturbed

    @pytest.mark.parametrize("receipt", [None, b"", b"[]", b'{"format": "wdscli-receipt", "version": 1}'])
    def test_a_shard_without_a_receipt(
        self, run: Command, command: list[str], interrupted: Any, tmp_path: Path, receipt: bytes | None
    ) -> None:
        interrupted(*command)
        path = tmp_path / "out" / ".wds" / "out-1.tar.done"
        path.unlink() if receipt is None else path.write_bytes(receipt)
        ran = run(*command, "--resume")
        assert ran.code == 4
        assert "no receipt shows that this shuffle made it" in ran.err

    def test_a_shard_that_is_not_made(
        self, run: Command, command: list[str], interrupted: Any, tmp_path: Path
    ) -> None:
        interrupted(*command)
        (tmp_path / "out" / "out-17.tar").write_bytes(tar_of([]))
        ran = run(*command, "--resume")
        assert ran.code == 4
        assert "out-17.tar exists, but this shuffle makes no shard of this name" in ran.err

    def test_the_manifest_of_another_set(self, run: Command, command: list[str]) -> None:
        assert run(*command).code == 0
        ran = run(*command, "--seed", 9, "--resume")
        assert ran.code == 4
        assert "is the manifest of another set" in ran.err

    def test_a_complete_set_that_was_damaged(
        self, run: Command, command: list[str], tmp_path: Path, undisturbed: dict[str, bytes]
    ) -> None:
        assert run(*command).code == 0
        (tmp_path / "out" / "out-3.tar").unlink()
        ran = run(*command, "--resume")
        assert ran.code == 3
        assert "out-3.tar" in ran.err
        assert run(*command, "--resume", "--force").code == 0
        assert content(tmp_path / "out") == undisturbed

    def test_a_stream(self, shards: list[str]) -> None:
        ran = wds("shuffle", *shards, "-o", "-", "--resume")
        assert ran.code == 2
        assert ran.out == b""

    def test_an_output_that_is_an_input(self, run: Command, command: list[str], tmp_path: Path) -> None:
        assert run(*command).code == 0
        out = str(tmp_path / "out" / "out-%d.tar")
        ran = run("shuffle", tmp_path / "out" / "out-0.tar", "-o", out, "--resume")
        assert ran.code == 2
        assert "would be both an input and an output" in ran.err


class TestTidying:
    def test_temporary_files_of_these_shards_go(
        self, run: Command, command: list[str], interrupted: Any, tmp_path: Path, undisturbed: Any
    ) -> None:
        interrupted(*command)
        out = tmp_path / "out"
        own = [".out-4.tar.0123456789ab.tmp", ".out-manifest.json.0123456789ab.tmp",
               ".wds/.out-4.tar.wdx.0123456789ab.tmp", ".wds/.out-4.tar.done.0123456789ab.tmp"]  # fmt: skip
        strange = [".other-4.tar.0123456789ab.tmp", ".out-4.tar.short.tmp", "out-4.tar.0123456789ab.tmp"]
        for name in own + strange:
            (out / name).write_bytes(b"?")
        assert run(*command, "--resume").code == 0
        assert leftovers(out) == sorted(strange) or set(leftovers(out)) == set(strange)
        assert {name: data for name, data in content(out).items() if name not in strange} == undisturbed

    def test_force_starts_anew(
        self, run: Command, command: list[str], interrupted: Any, tmp_path: Path, undisturbed: Any,
        made: list[str],
    ) -> None:  # fmt: skip
        interrupted(*command)
        (tmp_path / "out" / ".out-4.tar.0123456789ab.tmp").write_bytes(b"?")
        made.clear()
        assert run(*command, "--force").code == 0
        assert len(made) == 6
        assert content(tmp_path / "out") == undisturbed

    def test_force_that_was_interrupted(
        self, run: Command, command: list[str], tmp_path: Path, undisturbed: Any, monkeypatch: Any
    ) -> None:
        """Shards of the old set are not in the way of --resume of the run that has begun to replace them."""
        assert run(*with_count(command, "2"), "--seed", 5).code == 0
        original = gathering.gather

        def some(task: Any) -> Any:
            if task.address.endswith("2.tar"):
                raise Stop
            return original(task)

        with monkeypatch.context() as patch:
            patch.setattr(gathering, "gather", some)
            assert run(*command, "--force").code == 5
        assert not (tmp_path / "out" / "out-manifest.json").exists()
        shutil.copytree(tmp_path / "out", tmp_path / "copy")
        assert run(*command, "--seed", 6, "--resume").code == 4
        assert run(*command, "--resume").code == 0
        assert content(tmp_path / "out") == undisturbed
        shutil.rmtree(tmp_path / "out")
        (tmp_path / "copy").rename(tmp_path / "out")
        assert run(*command, "--resume", "--force").code == 0
        assert content(tmp_path / "out") == undisturbed

    def test_no_receipt_stays(self, run: Command, command: list[str], tmp_path: Path) -> None:
        assert run(*command).code == 0
        assert [name for name in content(tmp_path / "out") if name.endswith(".done")] == []


def test_in_the_library(shards: list[str], tmp_path: Path) -> None:
    request = Request(shards, f"{tmp_path}/out/out-%d.tar", cuts=Cuts(max_count=4), jobs=1)
    first = shuffle(request, 4)
    assert first.kept == 0
    again = shuffle(request._replace(resume=True), 4)
    assert again.kept == 6
    assert again.manifest == first.manifest
    with pytest.raises(OutputExistsError):
        shuffle(request, 4)
    assert shuffle(request._replace(settings=ShardSettings(force=True)), 4).kept == 0


def test_receipts_tell_the_shard(
    command: list[str], interrupted: Callable[..., None], tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    interrupted(*command)
    receipt = json.loads((tmp_path / "out" / ".wds" / "out-2.tar.done").read_bytes())
    listed = json.loads(undisturbed["out-manifest.json"])["shardlist"][2]
    assert receipt["shard"] == listed
    assert (receipt["task"], receipt["posted"]) == (2, True)
