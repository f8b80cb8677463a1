"""``--engine dask://HOST:PORT`` on a real scheduler and real worker processes: the same bytes, and errors that say what
happened. The scheduler and two workers that are started again when they die serve all tests of this module."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_cluster import Cluster, dask_cluster, wait_for
from reorders import shuffle as by_function
from shard_cases import Ran, assert_true_set, content, numbered, tar_of, wds, write_shards
from storage_servers import S3, s3_server, web_server

from wdscli.copy import maker
from wdscli.errors import WdsError
from wdscli.plan.cut import Cuts
from wdscli.plan.request import Request
from wdscli.plan.strategy import Limits

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """Before the cluster, whose workers inherit where it is."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Iterator[Cluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), nanny=True) as made:
        yield made


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "in", [numbered(20, "a"), numbered(31, "b"), [], numbered(1, "c")])


def can_hide() -> bool:
    """Whether a process here may mount a folder of its own."""
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and not subprocess.run(words, capture_output=True).returncode


def shuffle(*args: object, cwd: Path, out: str, code: int = 0) -> Ran:
    done = wds("shuffle", "in", "-o", f"{out}/out-%06d.tar", "--max-count", 5, *args, cwd=cwd)
    assert done.code == code, done.err
    return done


class TestSameBytes:
    @pytest.mark.exhaustive
    def test_serial_processes_and_dask(self, cluster: Cluster, inputs: list[str], tmp_path: Path) -> None:
        """From relative paths, which are not relative to where the workers run."""
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        shuffle("-j", 2, cwd=tmp_path, out="processes")
        shuffle("--engine", cluster.url, cwd=tmp_path, out="dask")
        assert len(list((tmp_path / "dask").glob("*.tar"))) == 11
        assert content(tmp_path / "serial") == content(tmp_path / "processes") == content(tmp_path / "dask")
        assert_true_set(tmp_path / "dask")

    def test_the_tasks_do_run_there(self, cluster: Cluster, inputs: list[str], tmp_path: Path) -> None:
        shuffle("--engine", cluster.url, "--post", "echo $PPID >> pids; true", cwd=tmp_path, out="dask")
        pids = {int(line) for line in (tmp_path / "pids").read_text().split()}
        assert pids <= set(cluster.worker_processes())
        assert pids

    def test_by_the_file_that_the_scheduler_wrote(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path
    ) -> None:
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        shuffle("--engine", f"dask://{cluster.file}", cwd=tmp_path, out="dask")
        assert content(tmp_path / "serial") == content(tmp_path / "dask")

    def test_by_spill_through_a_folder_that_all_share(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "scratch").mkdir()
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        spilled = ["--strategy", "spill", "--tmp", "scratch"]
        shuffle("--engine", cluster.url, *spilled, cwd=tmp_path, out="dask")
        assert content(tmp_path / "serial") == content(tmp_path / "dask")
        assert not list((tmp_path / "scratch").iterdir())

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("strategy", [(), ("--strategy", "spill", "--tmp", "s3://TMP/scratch")])
    def test_from_s3_to_s3(
        self, cluster: Cluster, s3: S3, inputs: list[str], tmp_path: Path, strategy: tuple[str, ...]
    ) -> None:
        bucket = s3.bucket(f"engine-{len(strategy)}")
        for name in inputs:
            s3.client.put_object(Bucket=bucket, Key=f"in/{Path(name).name}", Body=Path(name).read_bytes())
        shuffle("-j", 1, "--no-index", cwd=tmp_path, out="serial")
        more = [word.replace("TMP", bucket) for word in strategy]
        there = [f"s3://{bucket}/in/in-{{0..3}}.tar", "-o", f"s3://{bucket}/out/out-%06d.tar"]
        done = wds("shuffle", *there, "--max-count", 5, "--no-index", "--engine", cluster.url, *more)
        assert done.code == 0, done.err
        found = {
            name.removeprefix("out/"): s3.get(bucket, name)
            for name in s3.names(bucket)
            if name.startswith("out/")
        }
        assert found == content(tmp_path / "serial")
        assert s3.pending(bucket) == []
        assert not [name for name in s3.names(bucket) if name.startswith("scratch")]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "args",
        [
            ["sort", "in", "--by", "cls:nr"],
            ["split", "in", "--max-count", "4"],
            ["shuffle", "in", "--sample", "30", "--seed", "4"],
            ["sort", "in", "--sample", "40%", "--by", "md5"],
            ["merge", "in", "more", "--on-duplicate", "rekey"],
            ["merge", "in", "more", "--join", "left", "--on-conflict", "suffix"],
        ],
        ids=lambda args: " ".join(args[:1] + args[3:4]),
    )
    def test_every_command_that_reorders(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path, args: list[str]
    ) -> None:
        write_shards(tmp_path / "more", [numbered(9, "b")])
        for name, where in (("serial", ["-j", "1"]), ("dask", ["--engine", cluster.url])):
            done = wds(*args, "-o", f"{name}/out-%06d.tar", *where, cwd=tmp_path)
            assert done.code == 0, done.err
        assert content(tmp_path / "serial") == content(tmp_path / "dask")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("kind", ["shuffle", "md5", "content", "mapped"])
    def test_a_job_of_dsort(self, cluster: Cluster, inputs: list[str], tmp_path: Path, kind: str) -> None:
        (tmp_path / "map.json").write_text(
            '{"low-%d.tar": ["^b00"], "high-%d.tar": ["^a", "^b0[123]", "^c"]}'
        )
        mapped = {"ekm_file": f"{tmp_path}/map.json"}
        ordered = {"algorithm": {"kind": kind, "extension": "cls"}, "output_format": "out-%d"}
        for name, where in (("serial", ["-j", "1"]), ("dask", ["--engine", cluster.url])):
            job = {
                "extension": ".tar",
                "input_bck": {"name": "in"},
                "output_bck": {"name": name},
                "input_format": "in-{0..3}",
                "output_shard_size": "20KiB",
                **(mapped if kind == "mapped" else ordered),
            }
            done = wds("run", json.dumps(job), *where, cwd=tmp_path)
            assert done.code == 0, done.err
        assert content(tmp_path / "serial") == content(tmp_path / "dask") != {}

    @pytest.mark.exhaustive
    def test_memory_is_for_one_task(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Limits] = []
        original = maker.limits_for
        monkeypatch.setattr(maker, "limits_for", lambda *args: seen.append(original(*args)) or seen[-1])
        for url in (cluster.url, None):
            output = f"{tmp_path}/{bool(url)}-%d.tar"
            by_function(Request([str(tmp_path / "in")], output, memory=1 << 29, engine=url, jobs=3))
        assert [one.jobs for one in seen] == [1, 3]
        assert seen[0].task > 2 * seen[1].task

    def test_the_library(self, cluster: Cluster, inputs: list[str], tmp_path: Path) -> None:
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        output = f"{tmp_path}/dask/out-%06d.tar"
        report = by_function(Request([str(tmp_path / "in")], output, cuts=Cuts(5), engine=cluster.url))
        assert report.samples == 52
        assert content(tmp_path / "serial") == content(tmp_path / "dask")


class TestLostWorkers:
    @pytest.mark.exhaustive
    def test_killed_when_a_shard_has_its_name_and_nobody_knows(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path
    ) -> None:
        """The hook runs in the worker once the shard is there; the first one ends its worker."""
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        kill = "mkdir killed 2>/dev/null && kill -9 $PPID; echo {} >> done"
        shuffle("--engine", cluster.url, "--post", kill, cwd=tmp_path, out="dask")
        assert (tmp_path / "killed").exists()
        assert content(tmp_path / "serial") == content(tmp_path / "dask")
        assert len(set((tmp_path / "done").read_text().split())) == 11

    @pytest.mark.exhaustive
    def test_killed_at_any_time(self, tmp_path: Path) -> None:
        """No nanny: the work goes to the worker that is left."""
        write_shards(tmp_path / "in", [numbered(40, "a", (10, 400_000)), numbered(40, "b", (10, 400_000))])
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        with dask_cluster(tmp_path / "cluster") as cluster:
            victim = cluster.worker_processes()[0]
            slow = "echo {} >> begun; sleep 0.2"
            running = start(tmp_path, "--engine", cluster.url, "--post", slow)
            wait_for(lambda: (tmp_path / "begun").exists())
            time.sleep(0.3)
            os.kill(victim, signal.SIGKILL)
            _, err = running.communicate(timeout=240)
            assert running.returncode == 0, err.decode() + cluster.logs()
        left = {name: data for name, data in content(tmp_path / "dask").items() if not name.endswith(".tmp")}
        assert left == content(tmp_path / "serial")

    @pytest.mark.exhaustive
    def test_a_worker_that_dies_of_a_task_again_and_again(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path
    ) -> None:
        done = shuffle("--engine", cluster.url, "--post", "kill -9 $PPID", cwd=tmp_path, out="dask", code=5)
        assert "KilledWorker" in done.err
        assert "hint:" in done.err
        assert not list((tmp_path / "dask").glob("*manifest*"))
        cluster.wait_for_workers(2)

    @pytest.mark.exhaustive
    def test_workers_come_and_go(self, inputs: list[str], tmp_path: Path) -> None:
        """One is added while the first works alone; then the first is sent away."""
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        pids = tmp_path / "pids"

        def begun() -> set[int]:
            return set(map(int, pids.read_text().split())) if pids.exists() else set()

        with dask_cluster(tmp_path / "cluster", 1) as cluster:
            # Shards are left for the second worker, however long it takes to start, and when the first is sent away.
            post = "echo $PPID >> pids; for i in $(seq 600); do [ -e go ] && break; sleep 0.1; done; true"
            running = start(tmp_path, "--engine", cluster.url, "--post", post)
            wait_for(begun)
            [first] = begun()
            cluster.add_worker()
            wait_for(lambda: len(begun()) == 2)
            os.kill(first, signal.SIGTERM)
            (tmp_path / "go").touch()
            _, err = running.communicate(timeout=240)
            assert running.returncode == 0, err.decode() + cluster.logs()
        assert content(tmp_path / "serial") == content(tmp_path / "dask")

    @pytest.mark.exhaustive
    def test_the_only_worker_is_started_again(self, inputs: list[str], tmp_path: Path) -> None:
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        with dask_cluster(tmp_path / "cluster", 1, nanny=True) as cluster:
            [victim] = cluster.worker_processes()
            running = start(tmp_path, "--engine", cluster.url, "--post", "echo {} >> begun; sleep 0.2")
            wait_for(lambda: (tmp_path / "begun").exists())
            os.kill(victim, signal.SIGKILL)
            _, err = running.communicate(timeout=240)
            assert running.returncode == 0, err.decode() + cluster.logs()
        left = {name: data for name, data in content(tmp_path / "dask").items() if not name.endswith(".tmp")}
        assert left == content(tmp_path / "serial")


def start(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "wdscli", "shuffle", "in", "-o", "dask/out-%06d.tar", "--max-count", "5"]
    return subprocess.Popen([*command, *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class TestLostScheduler:
    def test_nobody_is_there(self, inputs: list[str], tmp_path: Path) -> None:
        from dask import config

        with config.set({"distributed.comm.timeouts.connect": "1h"}):
            done = shuffle("--engine", "dask://127.0.0.1:1", cwd=tmp_path, out="dask", code=5)
        assert "cannot reach dask://127.0.0.1:1" in done.err
        assert "hint: check that its scheduler is running" in done.err
        assert not (tmp_path / "dask").exists()

    @pytest.mark.exhaustive
    def test_killed_in_the_middle(self, inputs: list[str], tmp_path: Path) -> None:
        with dask_cluster(tmp_path / "cluster", 1) as cluster:
            running = start(tmp_path, "--engine", cluster.url, "--post", "echo {} >> begun; sleep 0.5")
            wait_for(lambda: (tmp_path / "begun").exists())
            cluster.scheduler.kill()
            _, err = running.communicate(timeout=240)
        assert running.returncode == 5, err.decode()
        assert f"error: the engine {cluster.url} failed" in err.decode()
        assert len(err.decode().splitlines()) == 2
        assert not list((tmp_path / "dask").glob("*manifest*"))

    @pytest.mark.exhaustive
    def test_another_cluster_continues(self, inputs: list[str], tmp_path: Path) -> None:
        """After the scheduler was killed; finished shards are not made again."""
        shuffle("-j", 1, cwd=tmp_path, out="serial")
        done, posted = tmp_path / "done", "echo {} >> done; sleep 0.3"
        with dask_cluster(tmp_path / "first", 1) as cluster:
            running = start(tmp_path, "--engine", cluster.url, "--post", posted)
            wait_for(lambda: done.exists() and len(done.read_text().split()) > 3)
            cluster.scheduler.kill()
            running.communicate(timeout=240)
        assert running.returncode == 5
        with dask_cluster(tmp_path / "second", 1) as cluster:
            shuffle("--engine", cluster.url, "--post", posted, "--resume", cwd=tmp_path, out="dask")
        assert content(tmp_path / "serial") == content(tmp_path / "dask")
        names = done.read_text().split()
        assert len(set(names)) == 11
        assert len(names) <= 12


class TestErrors:
    def test_bad_data_keeps_its_code_and_its_names(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "in" / "in-1.tar"
        path.write_bytes(path.read_bytes()[:3000])
        done = shuffle("--engine", cluster.url, cwd=tmp_path, out="dask", code=3)
        alone = shuffle("-j", 1, cwd=tmp_path, out="serial", code=3)
        assert done.err == alone.err
        assert "in/in-1.tar at byte" in done.err
        assert str(tmp_path) not in done.err

    def test_an_input_that_only_the_workers_miss_is_named_as_typed(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "in" / "in-0.tar").unlink()
        (tmp_path / "in" / "in-0.tar").symlink_to("nowhere.tar")
        done = shuffle("--engine", cluster.url, cwd=tmp_path, out="dask", code=4)
        assert "cannot read in/in-0.tar: broken symlink" in done.err

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.skipif(not can_hide(), reason="needs the right to mount")
    @pytest.mark.parametrize(
        ("hidden", "message"),
        [
            ("in", "cannot read in/in-0.tar: no such file"),
            ("dask", "was replaced or removed by another program"),
        ],
    )
    def test_a_worker_without_the_same_discs(
        self, inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str, message: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / hidden).mkdir(exist_ok=True)
        with dask_cluster(tmp_path / "cluster", 0) as cluster:
            cluster.add_worker(hides=tmp_path / hidden)
            with pytest.raises(WdsError, match=message) as caught:
                by_function(Request(["in"], "dask/out-%06d.tar", cuts=Cuts(5), engine=cluster.url))
        assert "all workers" in str(caught.value.hint)
        assert not list((tmp_path / "dask").glob("*manifest*"))

    def test_a_hook_that_fails(self, cluster: Cluster, inputs: list[str], tmp_path: Path) -> None:
        done = shuffle("--engine", cluster.url, "--post", "false", cwd=tmp_path, out="dask", code=5)
        assert "dask/out-00000" in done.err
        assert "status 1" in done.err

    @pytest.mark.exhaustive
    def test_a_worker_is_as_patient_as_its_user(
        self, cluster: Cluster, inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last request of a run is a worker's."""
        with web_server("ranges") as web:
            web.files["a.tar"] = Path(inputs[0]).read_bytes()
            seen: list[str] = []
            failing = 0

            def fail(name: str) -> None:
                seen.append(name)
                web.status.clear()
                if len(seen) == failing:
                    web.status[name] = 503

            web.on_get = fail
            words = ["split", web.url("a.tar"), "--shards", 1, "--engine", cluster.url]
            monkeypatch.setenv("WDSCLI_RETRIES", "0")
            assert wds(*words, "-o", "one/%d.tar", cwd=tmp_path).code == 0
            failing = len(seen)
            for retries, code in ((0, 4), (1, 0)):
                seen.clear()
                monkeypatch.setenv("WDSCLI_RETRIES", str(retries))
                done = wds(*words, "-o", f"{retries}/%d.tar", cwd=tmp_path)
                assert done.code == code, done.err
                assert ("the server answered 503" in done.err) == (code == 4)
        assert content(tmp_path / "one") == content(tmp_path / "1")

    @pytest.mark.parametrize(
        ("shards", "output"),
        [
            ("-", "out-%06d.tar"),
            ("pipe:cat in/in-0.tar", "out-%06d.tar"),
            ("in", "-"),
            ("in", "pipe:cat > x"),
        ],
    )
    def test_what_only_this_process_can_reach(
        self, inputs: list[str], tmp_path: Path, shards: str, output: str
    ) -> None:
        """Told before anybody is asked."""
        done = wds("shuffle", shards, "-o", output, "--engine", "dask://127.0.0.1:1", cwd=tmp_path)
        assert done.code == 2
        assert "the workers of dask://127.0.0.1:1 cannot" in done.err
        assert "hint:" in done.err

    def test_spill_without_scratch_space_that_all_share(self, inputs: list[str], tmp_path: Path) -> None:
        done = shuffle("--engine", "dask://x:1", "--strategy", "spill", cwd=tmp_path, out="dask", code=2)
        assert "--tmp" in done.err

    def test_a_compressed_input_without_scratch_space_that_all_share(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        import gzip

        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.tar.gz").write_bytes(gzip.compress(tar_of(numbered(3)[0])))
        done = shuffle("--engine", cluster.url, cwd=tmp_path, out="dask", code=2)
        assert "in/a.tar.gz can be read only once" in done.err
        (tmp_path / "scratch").mkdir()
        shuffle("--engine", cluster.url, "--tmp", "scratch", cwd=tmp_path, out="dask")
        assert_true_set(tmp_path / "dask")

    def test_a_url_that_names_no_scheduler(self, inputs: list[str], tmp_path: Path) -> None:
        done = shuffle("--engine", "dask://", cwd=tmp_path, out="dask", code=2)
        assert "names no Dask scheduler" in done.err

    def test_without_the_extra(self, inputs: list[str], tmp_path: Path) -> None:
        (tmp_path / "distributed.py").write_text("raise ImportError('not here')")
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        args = ["shuffle", "in", "-o", "x/out-%06d.tar", "--engine", "dask://127.0.0.1:1"]
        done = wds(*args, cwd=tmp_path, env=env)
        assert done.code == 2
        assert "hint: pip install 'wdscli[dask]'" in done.err

    def test_a_worker_of_another_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from wdscli.errors import EngineError
        from wdscli.executors.tasks import run_elsewhere

        with pytest.raises(EngineError, match="a worker has wdscli") as caught:
            run_elsewhere("0.0.1-other", "/", len, [])
        assert caught.value.hint == "install the same version everywhere"


@pytest.mark.exhaustive
def test_dask_is_loaded_by_those_who_ask_for_it(inputs: list[str], tmp_path: Path) -> None:
    tell = "import sys; from wdscli.cli.main import main; main(); print(*sorted(sys.modules))"
    command = [sys.executable, "-c", tell, "shuffle", "in", "-o", "x/out-%06d.tar", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"distributed", "dask", "wdscli.executors.dask", "importlib.metadata"}
    assert "wdscli.run.execute" in loaded
