"""Other machines: few requests, exact ranges, and errors in plain words."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from fsspec.registry import _registry as KNOWN
from storage_servers import S3, Web, s3_server, web_server

from wdscli.errors import InputError, OutputError
from wdscli.shards import ShardWriter
from wdscli.storage import exists, expand, open_sink, open_source, opening, ranges, remote

DATA = random.Random(5).randbytes(300_000)


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        server.files["a.tar"] = DATA
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("remote")
        server.client.put_object(Bucket="remote", Key="d/a.tar", Body=DATA)
        yield server


class TestRequests:
    def test_the_first_answer_serves_the_first_reads(self, web: Web) -> None:
        with open_source(web.url("a.tar")) as source:
            assert source.size == len(DATA)
            assert source.read_at(0, 65_536) == DATA[:65_536]
            assert source.read_at(512, 512) == DATA[512:1024]
        assert web.ranges == ["bytes=0-65535"]

    def test_a_read_is_one_request_for_its_range(self, web: Web) -> None:
        with open_source(web.url("a.tar")) as source:
            source.read_at(200_000, 1000)
            source.read_at(299_000, 70_000)
        assert web.ranges[1:] == ["bytes=200000-200999", "bytes=299000-299999"]

    def test_a_server_without_ranges_is_asked_once(self) -> None:
        with web_server("plain") as server:
            server.files["a.tar"] = DATA
            with open_source(server.url("a.tar")) as source:
                assert source.read_at(0, len(DATA)) == DATA
            assert len(server.ranges) == 1

    def test_object_stores_are_asked_for_ranges(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        from s3fs import S3FileSystem

        asked = []
        original = S3FileSystem._call_s3

        async def watched(self: Any, method: str, *args: Any, **options: Any) -> Any:
            asked.append((method, options.get("Range")))
            return await original(self, method, *args, **options)

        monkeypatch.setattr(S3FileSystem, "_call_s3", watched)
        with open_source("s3://remote/d/a.tar") as source:
            assert source.read_at(0, 512) == DATA[:512]
            assert source.read_at(65_000, 600) == DATA[65_000:65_600]
        assert asked == [
            ("get_object", "bytes=0-65535"),
            ("get_object", "bytes=65000-65599"),
        ]

    def test_every_range_goes_through_one_place(
        self, s3: S3, web: Web, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []
        original = ranges.RemoteSource._fetch

        def watched(self: Any, start: int, end: int) -> bytes:
            seen.append((start, end))
            return original(self, start, end)

        monkeypatch.setattr(ranges.RemoteSource, "_fetch", watched)
        for address in ("s3://remote/d/a.tar", web.url("a.tar")):
            with open_source(address) as source:
                source.read_at(100_000, 10)
                source.read_some(200_000, 10)
        assert seen == [
            (0, 65_536),
            (100_000, 100_010),
            (200_000, 200_010),
            (100_000, 100_010),
            (200_000, 200_010),
        ]


class TestErrors:
    def test_missing(self, s3: S3, web: Web) -> None:
        for address in (
            "s3://remote/gone.tar",
            web.url("gone.tar"),
            "memory://gone/a.tar",
        ):
            with pytest.raises(InputError) as caught:
                open_source(address)
            assert str(caught.value) == f"cannot read {address}: no such object"

    def test_a_missing_bucket(self, s3: S3) -> None:
        """The error names the bucket, because the user mends that and not the object."""
        with pytest.raises(InputError) as caught:
            open_source("s3://gone/a.tar")
        assert str(caught.value) == 'cannot read s3://gone/a.tar: there is no bucket "gone"'
        assert "endpoint" in str(caught.value.hint)
        for address in ("s3://gone/d/", "s3://gone/*.tar"):
            with pytest.raises(InputError, match="gone"):
                expand(address)
        assert not exists("s3://gone/a.tar")

    def test_a_missing_bucket_takes_nothing(
        self, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is told before inputs are read, and before a sink takes bytes."""
        from wdscli.cli.main import main

        for force in (False, True):
            with pytest.raises(OutputError) as caught:
                open_sink("s3://gone/a.tar", force=force)
            assert str(caught.value) == 'cannot write s3://gone/a.tar: there is no bucket "gone"'
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("a", {"txt": b"a"})
        opened: list[str] = []
        original = opening._open_local
        monkeypatch.setattr(opening, "_open_local", lambda name: opened.append(name) or original(name))
        for words in (["shuffle"], ["cat"], ["split", "--max-count", "1"], ["create"]):
            for output in ("s3://gone/o-%d.tar", "s3://gone/o.tar"):
                if words == ["cat"] and "%d" in output:
                    continue
                if words[0] == "split" and "%d" not in output:
                    continue
                assert main([*words, str(tmp_path / "a.tar"), "-o", output]) == 4
                assert 'there is no bucket "gone"' in capsys.readouterr().err
        assert opened == []

    def test_a_bucket_that_is_closed(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        """403 is no 404."""
        from botocore.exceptions import ClientError
        from s3fs import S3FileSystem
        from s3fs.errors import translate_boto_error

        async def refused(self: Any, method: str, *args: Any, **options: Any) -> Any:
            raise translate_boto_error(
                ClientError({"Error": {"Code": "403", "Message": "Forbidden"}}, method)
            )

        monkeypatch.setattr(S3FileSystem, "_call_s3", refused)
        with pytest.raises(InputError, match="access denied"):
            open_source("s3://remote/d/a.tar")
        with pytest.raises(OutputError, match="access denied"):
            open_sink("s3://remote/d/b.tar")

    def test_folder(self, s3: S3) -> None:
        with pytest.raises(InputError, match="it is a folder") as caught:
            open_source("s3://remote/d")
        assert caught.value.hint == "use s3://remote/d/ for the shards in it"

    @pytest.mark.parametrize("status", [403, 500])
    def test_refused(self, web: Web, status: int) -> None:
        web.status["a.tar"] = status
        with pytest.raises(InputError, match=f"the server answered {status}"):
            open_source(web.url("a.tar"))

    def test_refused_later(self, web: Web) -> None:
        with open_source(web.url("a.tar")) as source:
            web.status["a.tar"] = 503
            with pytest.raises(InputError, match="the server answered 503"):
                source.read_at(100_000, 10)
            del web.status["a.tar"]
            web.mode = "plain"
            with pytest.raises(InputError, match=r"the answer is not the requested range \(status 200\) \("):
                source.read_at(100_000, 10)

    @pytest.mark.parametrize("kind", ["web", "s3"])
    def test_a_file_that_shrank(self, web: Web, s3: S3, kind: str) -> None:
        s3.client.put_object(Bucket="remote", Key="b.tar", Body=DATA)
        with open_source(web.url("a.tar") if kind == "web" else "s3://remote/b.tar") as source:
            web.files["a.tar"] = DATA[:150_000]
            s3.client.put_object(Bucket="remote", Key="b.tar", Body=DATA[:150_000])
            # The version is pinned, so an object of another size is reported as replaced.
            with pytest.raises(InputError, match="from byte 50000: it was replaced or changed"):
                source.read_at(50_000, 200_000)

    def test_an_answer_that_is_cut(self) -> None:
        with web_server("short") as server:
            server.files["a.tar"] = DATA
            with (
                pytest.raises(InputError, match="cannot read http"),
                open_source(server.url("a.tar")) as source,
            ):
                source.read_at(0, len(DATA))

    def test_no_server(self) -> None:
        with web_server("plain") as server:
            address = server.url("a.tar")
        with pytest.raises(InputError, match="cannot read http://127"):
            open_source(address)
        with pytest.raises(InputError):
            exists(address)

    def test_no_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        # fsspec keeps the class of every scheme that an earlier test of this process opened.
        monkeypatch.delitem(KNOWN, "gs", raising=False)
        with pytest.raises(InputError, match="its backend is not installed") as caught:
            open_source("gs://b/a.tar")
        assert caught.value.hint == "pip install gcsfs"

    def test_no_such_scheme(self) -> None:
        with pytest.raises(InputError, match="xyz:// is no known kind of address"):
            open_source("xyz://b/a.tar")

    @pytest.mark.parametrize(
        ("error", "reason", "hint"),
        [
            (
                type("NoCredentialsError", (Exception,), {})("Unable to locate"),
                "no credentials",
                "FSSPEC_S3_ANON=true",
            ),
            (PermissionError("Access Denied"), "access denied (Access Denied)", "credentials"),
            (TimeoutError(), "TimeoutError", None),
            (OSError(5, "an\n  odd error"), "an odd error", None),
        ],
    )
    def test_in_plain_words(self, error: Exception, reason: str, hint: str | None) -> None:
        why, help_ = remote.explain("s3://b/a.tar", error)
        assert reason in why
        assert (hint is None and help_ is None) or (hint or "") in (help_ or "")


class TestExists:
    def test_remote(self, s3: S3, web: Web) -> None:
        assert exists("s3://remote/d/a.tar")
        assert exists(web.url("a.tar"))
        for address in ("s3://remote/gone.tar", web.url("gone.tar"), "memory://gone"):
            assert not exists(address)

    def test_what_others_wrote_meanwhile(self, s3: S3) -> None:
        assert not exists("s3://remote/new/a.tar")
        s3.client.put_object(Bucket="remote", Key="new/a.tar", Body=b"x")
        assert exists("s3://remote/new/a.tar")

    def test_a_failing_server_is_no_answer(self, web: Web) -> None:
        web.status["a.tar"] = 500
        with pytest.raises(InputError):
            exists(web.url("a.tar"))


class TestOtherBackends:
    """fsspec's generic file system: no cat_file of its own, no unfinished uploads."""

    def test_ranges_without_blocks(self, tmp_path: Path) -> None:
        import zipfile

        with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
            archive.writestr("d/a.tar", DATA)
        with open_source(f"zip://d/a.tar::file://{tmp_path}/z.zip") as source:
            assert source.read_at(100_000, 1000) == DATA[100_000:101_000]

    def test_a_failed_move_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import fsspec

        from wdscli.errors import OutputError

        fs = fsspec.filesystem("memory")

        def failing(*_: object, **__: object) -> None:
            raise OSError(5, "the line went dead")

        monkeypatch.setattr(type(fs), "mv", failing)
        with (
            pytest.raises(OutputError, match="the line went dead"),
            open_sink(f"memory://{tmp_path}/a") as sink,
        ):
            sink.write(DATA)
        assert fs.find(str(tmp_path)) == []


def test_what_concerns_one_object_is_done_at_the_same_time_and_all_of_it() -> None:
    both, done = Barrier(2), []

    def work() -> None:
        both.wait(60)
        done.append("far")

    opening.do_together("memory://a.tar", [work, work])
    assert done == ["far", "far"]

    def failing() -> None:
        raise OutputError("full")

    with pytest.raises(OutputError, match="full"):
        opening.do_together("memory://a.tar", [failing, lambda: done.append("other")])
    assert done[2:] == ["other"]
    opening.do_together("a.tar", [lambda: done.append("first"), lambda: done.append("second")])
    assert done[3:] == ["first", "second"]
