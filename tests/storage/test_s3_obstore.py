"""Ranges of S3 by obstore: what it reads, what it leaves to s3fs, and that results and errors are those of s3fs."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from loaded_modules import loaded
from s3fs import S3FileSystem
from shard_cases import numbered, tar_of, wds
from storage_servers import S3, s3_server

from wdscli.errors import InputError, UsageError
from wdscli.storage import open_source, remote, s3_obstore

pytest.importorskip("obstore")
DATA = random.Random(3).randbytes(3_000_000)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("fast")
        for key in ("d/a.tar", "d/a+b c%20.tar", "d/é.tar"):
            server.client.put_object(Bucket="fast", Key=key, Body=DATA)
        server.client.put_object(Bucket="fast", Key="empty", Body=b"")
        server.client.put_object(
            Bucket="fast", Key="in.tar", Body=tar_of([m for one in numbered(9) for m in one])
        )
        yield server


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WDSCLI_STORE", "obstore")
    s3_obstore._STORES.clear()
    yield
    s3_obstore._STORES.clear()


@pytest.fixture
def by_s3fs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects that s3fs was asked for."""
    asked: list[str] = []
    original = S3FileSystem._call_s3

    async def noted(fs: Any, method: str, *args: Any, **options: Any) -> Any:
        if method == "get_object":
            asked.append(options["Key"])
        return await original(fs, method, *args, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", noted)
    return asked


def read_some(address: str) -> None:
    with open_source(address) as source:
        assert source.size == len(DATA)
        for begin, length in ((0, 100), (1_000_000, 10), (70_000, 2_500_000), (len(DATA) - 5, 100)):
            assert source.read_at(begin, length) == DATA[begin : begin + length]
        assert source.version.startswith("etag:")


def test_it_reads(s3: S3, by_s3fs: list[str]) -> None:
    read_some("s3://fast/d/a.tar")
    assert by_s3fs == []


@pytest.mark.parametrize("key", ["d/a+b c%20.tar", "d/é.tar"])
def test_odd_names_are_left_to_s3fs(s3: S3, by_s3fs: list[str], key: str) -> None:
    read_some(f"s3://fast/{key}")
    assert set(by_s3fs) == {key}


@pytest.mark.parametrize(
    "address",
    ["s3://arn:aws:s3:us-west-2:1:accesspoint/a/k.tar", "s3://fast/k.tar?versionId=1", "s3://u@fast/k"],
)
def test_odd_buckets_are_left_to_s3fs(s3: S3, address: str) -> None:
    assert isinstance(remote.store_of("s3://fast/k.tar")[0], s3_obstore.ObstoreS3)
    assert not isinstance(remote.store_of(address)[0], s3_obstore.ObstoreS3)


def test_odd_settings_are_left_to_s3fs(s3: S3, by_s3fs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    read_some("s3://fast/d/a.tar")
    assert set(by_s3fs) == {"d/a.tar"}


def test_a_role_reads_by_obstore(
    s3: S3, by_s3fs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Credentials that botocore has to fetch, and fetches again when they end."""
    ends = "2000-01-01T00:00:00Z"
    keys = {"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": ends}
    command = f"{sys.executable} {tmp_path}/keys.py"
    (tmp_path / "keys.py").write_text(
        f"open({str(tmp_path / 'calls')!r}, 'a').write('1')\nprint({json.dumps(keys).replace('2000', '2999')!r})"
    )
    (tmp_path / "config").write_text(f"[profile p]\ncredential_process = {command}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "p")
    read_some("s3://fast/d/a.tar")
    assert by_s3fs == []
    assert (tmp_path / "calls").read_text() == "1"


def in_fork(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a forked process."""
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    process = context.Process(target=lambda: told.put(work()))
    process.start()
    found = told.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    return found


@pytest.mark.exhaustive
def test_a_process_forked_from_one_that_used_obstore_reads_by_s3fs(s3: S3, by_s3fs: list[str]) -> None:
    """obstore's threads do not survive a fork."""

    def read() -> list[str]:
        read_some("s3://fast/d/a.tar")
        return by_s3fs

    assert read() == []
    assert set(in_fork(read)) == {"d/a.tar"}
    assert set(in_fork(lambda: in_fork(read))) == {"d/a.tar"}
    assert read() == []


def test_what_fails_again_and_again_is_left_to_s3fs(
    s3: S3, by_s3fs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    calls = []

    async def failing(*args: Any, **options: Any) -> Any:
        calls.append(args)
        raise obstore.exceptions.GenericError("a redirect without a place")

    monkeypatch.setattr(obstore, "get_async", failing)
    for _ in range(3):
        read_some("s3://fast/d/a.tar")
    assert len(calls) == 3
    assert len(by_s3fs) > 3


def test_a_body_that_breaks_off_goes_on(s3: S3, by_s3fs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    original = obstore.get_async
    ranges = []

    async def breaking(store: Any, key: str, *, options: Any) -> Any:
        answer = await original(store, key, options=options)
        ranges.append(options["range"])
        return Breaking(answer) if len(ranges) == 2 else answer

    class Breaking:
        def __init__(self, answer: Any) -> None:
            self.range, self.meta = answer.range, answer.meta
            self._answer = answer

        async def stream(self, min_chunk_size: int) -> Any:
            async for piece in self._answer.stream(min_chunk_size):
                yield piece
                raise obstore.exceptions.GenericError("connection closed before message completed")

    monkeypatch.setattr(obstore, "get_async", breaking)
    with open_source("s3://fast/d/a.tar") as source:
        assert source.read_at(70_000, 2_500_000) == DATA[70_000:2_570_000]
    assert ranges[1][0] < ranges[2][0]
    assert ranges[2][1] == ranges[1][1]
    assert by_s3fs == []


def test_what_is_under_way_is_given_up_before_python_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of obstore that brings an answer after that aborts the process, now and then."""
    import obstore

    asked = Event()

    async def never(*args: Any, **options: Any) -> Any:
        asked.set()
        await asyncio.sleep(3600)

    slept: list[float] = []
    began = time.monotonic()
    monkeypatch.setattr(obstore, "get_async", never)
    monkeypatch.setattr(s3_obstore, "sleep", slept.append)
    monkeypatch.setattr(s3_obstore, "_process", os.getpid())
    store = s3_obstore.ObstoreS3(s3_obstore.Account("http://127.0.0.1:1", "us-east-1"), lambda: None)
    work = store.fetch(("fast", "a.tar", None), (0, 9), "", print, print)
    answer = asyncio.run_coroutine_threadsafe(work, s3_obstore._loop())
    assert asked.wait(60)
    s3_obstore._cancel_all()
    with pytest.raises(CancelledError):
        answer.result(60)
    assert 0 < sum(slept) <= s3_obstore._NOTICE_SECONDS
    assert s3_obstore._cancelled_at > began


def said(address: str, store: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str | None]:
    monkeypatch.setenv("WDSCLI_STORE", store)
    with pytest.raises(InputError) as caught:
        open_source(address)
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize("address", ["s3://fast/no.tar", "s3://no-such-bucket/a.tar", "s3://fast/d"])
def test_errors_are_those_of_s3fs(s3: S3, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert said(address, "obstore", monkeypatch) == said(address, "fsspec", monkeypatch)


def test_an_empty_object(s3: S3) -> None:
    with open_source("s3://fast/empty") as source:
        assert (source.size, source.read_at(0, 10)) == (0, b"")


def test_an_object_that_is_replaced(s3: S3) -> None:
    s3.client.put_object(Bucket="fast", Key="r.tar", Body=DATA)
    with open_source("s3://fast/r.tar") as source:
        source.read_at(0, 10)
        s3.client.put_object(Bucket="fast", Key="r.tar", Body=DATA[::-1])
        with pytest.raises(InputError, match="was replaced"):
            source.read_at(1_000_000, 10)


def test_commands(s3: S3, by_s3fs: list[str]) -> None:
    for output in ("one", "two"):
        done = wds(
            "shuffle", "s3://fast/in.tar", "-o", f"s3://fast/{output}/out-%d.tar", "--max-count", 4, "-j", 1
        )
        assert done.code == 0, done.err
    assert s3.get("fast", "one/out-1.tar") == s3.get("fast", "two/out-1.tar")
    assert "in.tar" not in by_s3fs


def test_reading_loads_nothing_of_s3fs(s3: S3) -> None:
    code = "from wdscli.cli.main import main\nassert main() == 0"
    names = loaded(code, "cat", "s3://fast/i*.tar", "-o", "/dev/null", "-q")
    assert "obstore" in names
    assert not names & {"fsspec", "s3fs", "aiobotocore", "aiohttp"}


class TestChoice:
    @pytest.mark.parametrize(("store", "name"), [("fsspec", "s3fs"), ("obstore", "obstore"), ("", "obstore")])
    def test_by_name(self, monkeypatch: pytest.MonkeyPatch, store: str, name: str) -> None:
        monkeypatch.setenv("WDSCLI_STORE", store)
        assert s3_obstore.store_name() == name

    def test_another_name(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WDSCLI_STORE", "boto")
        with pytest.raises(UsageError, match="WDSCLI_STORE must be fsspec or obstore, not boto"):
            open_source("s3://fast/d/a.tar")

    def test_not_installed(self, s3: S3, by_s3fs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "obstore", raising=False)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UsageError, match="it is not installed") as caught:
            open_source("s3://fast/d/a.tar")
        assert caught.value.hint == "pip install obstore"
        monkeypatch.setenv("WDSCLI_STORE", "")
        read_some("s3://fast/d/a.tar")
        assert by_s3fs

    def test_broken(self, s3: S3, by_s3fs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "obstore.store", None)
        with pytest.raises(UsageError, match=r"WDSCLI_STORE=obstore: it cannot be loaded \(.*obstore.store"):
            open_source("s3://fast/d/a.tar")
        monkeypatch.setenv("WDSCLI_STORE", "")
        read_some("s3://fast/d/a.tar")
        assert by_s3fs


KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
HERE = {**KEYS, "AWS_ENDPOINT_URL": "http://h:1"}


class TestAccount:
    """What obstore is given: all that botocore finds, but for settings that only s3fs has."""

    @pytest.fixture(autouse=True)
    def _bare(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in list(os.environ):
            if s3_obstore._SETTINGS.match(name):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.delitem(sys.modules, "fsspec.config", raising=False)

    def found(self, endpoint: str = "", unsigned: bool | None = None) -> tuple[str, ...] | None:
        account = s3_obstore.usual_account(endpoint, unsigned)
        if account is None:
            return None
        keys = account.credentials and account.credentials.get_frozen_credentials()
        return account.endpoint, account.region, *(one or "" for one in (keys or ("", "", ""))[:3])

    @pytest.mark.parametrize(
        ("known", "account"),
        [
            (HERE, ("http://h:1", "us-east-1", "k", "s", "")),
            (HERE | {"AWS_SESSION_TOKEN": "t"}, ("http://h:1", "us-east-1", "k", "s", "t")),
            (HERE | {"AWS_ENDPOINT_URL_S3": "http://o:2/"}, ("http://o:2", "us-east-1", "k", "s", "")),
            (
                KEYS | {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"},
                ("https://s3.eu-west-1.amazonaws.com", "eu-west-1", "k", "s", ""),
            ),
            (
                KEYS | {"AWS_DEFAULT_REGION": "cn-north-1"},
                ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1", "k", "s", ""),
            ),
            ({"AWS_ENDPOINT_URL": "http://h:1"}, ("http://h:1", "us-east-1", "", "", "")),
            (KEYS, None),
            (HERE | {"AWS_USE_FIPS_ENDPOINT": "true"}, None),
            (HERE | {"AWS_USE_DUALSTACK_ENDPOINT": "true"}, None),
            (HERE | {"AWS_PROFILE": "nobody"}, None),
            (HERE | {"FSSPEC_S3_REQUESTER_PAYS": "true"}, None),
            (HERE | {"https_proxy": "http://p:1"}, None),
            (HERE | {"AWS_ENDPOINT_URL": "https://h:1", "AWS_CA_BUNDLE": "/own.pem"}, None),
        ],
    )
    def test_of_variables(
        self, monkeypatch: pytest.MonkeyPatch, known: dict[str, str], account: tuple[str, ...] | None
    ) -> None:
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        assert self.found() == account

    @pytest.mark.parametrize(
        ("config", "account"),
        [
            ("region = r-1\nendpoint_url = http://h:1\n", ("http://h:1", "r-1", "k", "s", "")),
            ("endpoint_url = http://h:1\noutput = json\n", ("http://h:1", "us-east-1", "k", "s", "")),
            (
                "endpoint_url = http://h:1\ns3 =\n  addressing_style = path\n",
                ("http://h:1", "us-east-1", "k", "s", ""),
            ),
            ("endpoint_url = http://h:1\ns3 =\n  addressing_style = virtual\n", None),
            ("endpoint_url = http://h:1\ns3 =\n  use_accelerate_endpoint = true\n", None),
            ("endpoint_url = http://h:1\nuse_dualstack_endpoint = true\n", None),
            ("nonsense", None),
        ],
    )
    @pytest.mark.parametrize("profile", ["default", "p"])
    def test_of_files(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        profile: str,
        config: str,
        account: tuple[str, ...] | None,
    ) -> None:
        section = "default" if profile == "default" else f"profile {profile}"
        keys = "aws_access_key_id = k\naws_secret_access_key = s\n"
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws/config").write_text(config if config == "nonsense" else f"[{section}]\n{config}")
        (tmp_path / ".aws/credentials").write_text(f"[{profile}]\n{keys}")
        if profile != "default":
            monkeypatch.setenv("AWS_PROFILE", profile)
        assert self.found() == account

    def test_no_signatures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found("http://h:1/s3", True) == ("http://h:1/s3", "us-east-1", "", "", "")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://o:2")
        assert self.found("http://h:1/s3", True) == ("http://h:1/s3", "us-east-1", "", "", "")
        assert self.found("http://h:1/s3", False) is None

    def test_settings_of_fsspec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from fsspec.config import conf

        for name, value in HERE.items():
            monkeypatch.setenv(name, value)
        assert self.found() is not None
        monkeypatch.setitem(conf, "s3", {"anon": True})
        assert self.found() is not None
        monkeypatch.setitem(conf, "s3", {"requester_pays": True})
        assert self.found() is None
