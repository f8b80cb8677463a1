"""A long wait for a store is said once and counted, and so is what goes over the network."""

from __future__ import annotations

import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy
from shard_cases import numbered, wds, write_shards
from storage_servers import S3, Web, forget_s3, s3_server, web_server

import wdscli.loader as loader
from wdscli.cli.main import main
from wdscli.errors import InputError
from wdscli.storage import retry, scatter
from wdscli.storage.retry import Attempts, GaveUp, Transient, network, retried, take_traffic, using

SAMPLES = 300


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        yield server


@pytest.fixture
def proxy(web: Web, tmp_path: Path) -> Iterator[FaultProxy]:
    [name] = write_shards(tmp_path / "in", [numbered(SAMPLES, "a", [2000])])
    web.files["a.tar"] = Path(name).read_bytes()
    with fault_proxy(web.server_address[1]) as proxy:
        take_traffic()
        yield proxy


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_said_at", -1e9)


@contextmanager
def patience(notice_seconds: float, timeout_seconds: float = 60.0, **more: float) -> Iterator[None]:
    with using(
        network()._replace(notice_seconds=notice_seconds, timeout_seconds=timeout_seconds, **more)  # type: ignore[arg-type]
    ):
        yield


STALL = Fault("stall", 1, after=1000)
FAULTS = {
    "a stall": (STALL, "no data arrived for 0.3 s"),
    "many failures": (Fault("status", 4), "the server answered with status 503; attempt "),
    "a pause that the server wants": (
        Fault("status", 1, headers={"Retry-After": "1"}),
        "the server answered with status 503; attempt 2 of 6 in 1 s",
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", FAULTS)
def test_a_command_says_once_that_it_waits(proxy: FaultProxy, tmp_path: Path, case: str) -> None:
    fault, why = FAULTS[case]
    proxy.clear(Fault(**vars(fault)))
    url = f"{proxy.url}/a.tar"
    pause = {"pause_seconds": 0.2} if case == "many failures" else {}
    with patience(0.3, 1.0, **pause):
        ran = wds("cat", url, "-o", tmp_path / "o.tar", "-v")
    assert ran.code == 0, ran.err
    said = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1, ran.err
    assert said[0].startswith(f"warning: waiting for {url}: {why}")
    last = ran.err.splitlines()[-1]
    retries = 4 if case == "many failures" else 1
    assert f", retries: {retries}" in last
    assert last.endswith(", stalls: 1") == (case == "a stall")


def test_nothing_is_said_of_short_waits(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.clear(Fault("stall", 1, after=1000), Fault("status", 1))
    with patience(10.0, 0.3):
        ran = wds("cat", f"{proxy.url}/a.tar", "-o", tmp_path / "o.tar")
    assert (ran.code, "waiting" in ran.err) == (0, False), ran.err


@pytest.mark.exhaustive
def test_of_many_requests_that_wait_one_is_said(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 1 << 17)
    proxy.clear(Fault("stall", 4, skip=1))
    with patience(2.0, 2.5):
        ran = wds("cat", f"{proxy.url}/a.tar", "-o", tmp_path / "o.tar", "-v")
    assert ran.code == 0, ran.err
    assert ran.err.count("waiting for") == 1
    assert ran.err.splitlines()[-1].endswith(", retries: 4, stalls: 4")


def test_the_loader_warns_and_counts(proxy: FaultProxy) -> None:
    proxy.clear(Fault(**vars(STALL)))
    made: list[loader.WebDataset[loader.RawSample]] = []

    def read() -> int:
        made.append(loader.WebDataset(f"{proxy.url}/a.tar", shuffle="none"))
        return len(list(made[0]))

    with (
        patience(0.3, 1.0),
        pytest.warns(UserWarning, match=r"waiting for http.*/a.tar: no data arrived for 0.3 s"),
    ):
        assert read() == SAMPLES
    [data] = made
    stats = data.stats()
    assert (stats["retries"], stats["stalls"]) == (1, 1)
    assert data.stats() == stats


def test_a_training_waits_for_its_store(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """issue 35, 24: more failures than retries, for less than three minutes."""
    monkeypatch.setattr(retry, "TRAINING_SECONDS", 60.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(retry, "MAX_PAUSE_SECONDS", 0.01)
    monkeypatch.delenv("WDSCLI_RETRIES", raising=False)
    data = loader.WebDataset(f"{proxy.url}/a.tar", shuffle="none")
    proxy.clear(Fault("status", 9))
    assert len(list(data)) == SAMPLES
    proxy.clear(Fault("status", 9))
    monkeypatch.setenv("WDSCLI_RETRIES", "3")
    with pytest.raises(InputError, match=r"503 .*\(4 attempts\)"):
        list(loader.WebDataset(f"{proxy.url}/a.tar", shuffle="none"))


def test_a_training_gives_up_after_three_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "TRAINING_SECONDS", 180.0)
    monkeypatch.delenv("WDSCLI_RETRIES", raising=False)
    assert network().least_seconds == 180
    now, pauses = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry, "_said_at", -1e9)
    attempts = Attempts(network(), "s3://training/a.tar")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(GaveUp):
            while True:
                pauses.append(attempts.pause_after(Transient("the line is dead")))
                now[0] += pauses[-1]
                assert caught or now[0] <= 10
    assert 180 <= now[0] < 201
    [warning] = caught
    assert str(warning.message) == "waiting for s3://training/a.tar: the line is dead; retrying for 180 s"


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("store", ["http", "s3fs", "obstore"])
@pytest.mark.parametrize("words", ["ls {}", "cat {} -o {}/o.tar"])
def test_an_unreachable_host(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    words: str,
) -> None:
    """issue 35: a wrong port or endpoint is an error after three attempts, not after minutes."""
    place = f"http://127.0.0.1:{closed_port()}"
    address = f"{place}/a.tar"
    if store != "http":
        pytest.importorskip(store)
        address = f"s3://unreachable-{store}/a.tar"
        monkeypatch.setenv("WDSCLI_STORE", store.replace("s3fs", "fsspec"))
        for name, value in {
            "AWS_ENDPOINT_URL": place,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
        }.items():
            monkeypatch.setenv(name, value)
        forget_s3()
    assert main(words.format(address, tmp_path).split()) == 4
    assert "its host refuses connections (3 attempts)" in capfd.readouterr().err
    forget_s3()


def test_a_training_says_at_once_that_its_host_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address is noticed before the first warning about a slow store."""
    attempts = Attempts(network()._replace(least_seconds=180.0), "http://nowhere:1/a.tar")
    with pytest.warns(
        UserWarning,
        match="waiting for http://nowhere:1/a.tar: its host cannot be reached; retrying for 180 s",
    ):
        attempts.pause_after(ConnectionRefusedError(111, "refused"))


def test_a_question_that_is_not_answered() -> None:
    """What is asked of a store by a client that waits."""
    answers: list[Callable[[], object]] = [lambda: time.sleep(0.5), lambda: 1 / 0]

    def ask() -> str:
        if answers:
            answers.pop(0)()
            raise Transient("no answer")
        return "here"

    take_traffic()
    answers.pop()
    with patience(0.2), pytest.warns(UserWarning, match=r"waiting for s3://b/k: no data arrived for 0.2 s"):
        assert retried(ask, "s3://b/k") == "here"
    assert take_traffic()[::3] == (2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with patience(0.2):
            assert retried(ask, "s3://b/k") == "here"


@pytest.mark.exhaustive
def test_an_upload_that_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = write_shards(tmp_path / "in", [numbered(3, "a", [2000])])
    with s3_server() as s3, fault_proxy(int(s3.endpoint.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        forget_s3()
        bucket = s3.bucket("stalls")
        proxy.clear(Fault("stall", 1, where=r"^PUT .*/o\.tar "))
        with patience(0.3, 1.0):
            ran = wds("cat", name, "-o", f"s3://{bucket}/o.tar", "-v")
        _check_upload(ran.code, ran.err, s3, bucket)
    forget_s3()


def _check_upload(code: int, said: str, s3: S3, bucket: str) -> None:
    assert code == 0, said
    # Once for each object. On a busy machine, the object that no fault stalls may wait too.
    waits = re.findall(r"waiting for (\S+):", said)
    assert sorted(set(waits)) == sorted(waits)
    assert re.search(
        rf"warning: waiting for s3://{bucket}/(\.wds/)?o\.tar(\.wdx)?: no data arrived for 0\.\d+ s", said
    )
    assert int(s3.client.head_object(Bucket=bucket, Key="o.tar")["ContentLength"]) > 6000
    assert " sent" in said.splitlines()[-1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("jobs", [1, 2])
def test_requests_and_bytes_are_told(web: Web, tmp_path: Path, jobs: int) -> None:
    """Those of workers too."""
    names = write_shards(tmp_path / "in", [numbered(60, f"a{n}", [2000]) for n in range(4)])
    for name in names:
        web.files[Path(name).name] = Path(name).read_bytes()
    urls = [web.url(Path(name).name) for name in names]
    web.ranges.clear()
    before = web.sent_bytes
    ran = wds("shuffle", *urls, "-o", tmp_path / "o-%d.tar", "--shards", 4, "-j", jobs, "-v")
    assert ran.code == 0, ran.err
    found = re.fullmatch(r"network: (\d+) requests, ([\d.]+) (\w+) received", ran.err.splitlines()[-1])
    assert found, ran.err
    assert int(found[1]) == len(web.ranges)
    size = float(found[2]) * {"KiB": 1024, "kB": 1000, "MB": 1e6, "MiB": 1 << 20}[found[3]]
    assert size == pytest.approx(web.sent_bytes - before, rel=0.05)


def test_a_local_command_has_no_network(tmp_path: Path) -> None:
    [name] = write_shards(tmp_path / "in", [numbered(3, "a")])
    assert "network" not in wds("ls", name, "-v").err
