"""Copies of remote shards on this machine: how few requests they take, and what never happens to them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from shard_cases import numbered, tar_of, wds
from storage_servers import S3, Web, forget_listings, s3_server, web_server

from wdscli.errors import InputError, UsageError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.storage import cache, open_source, read_all
from wdscli.storage.retry import cached_in, network, using


def shard(number: int) -> bytes:
    return tar_of(member for members in numbered(12, "abc"[number], (10, 9000)) for member in members)


SHARDS = [shard(number) for number in range(3)]


@pytest.fixture(autouse=True)
def _anew() -> None:
    """Each test is a process that knows nothing yet."""
    cache._folders.clear()
    cache._said.clear()


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        server.heads = []
        server.validators = ("strong",)
        server.files = {f"d/{number}.tar": data for number, data in enumerate(SHARDS)}
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("bucket")
        for number, data in enumerate(SHARDS):
            server.client.put_object(Bucket="bucket", Key=f"d/{number}.tar", Body=data)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def read(address: str, folder: Path | None, limit: int = 0) -> bytes:
    with cached_in(None if folder is None else str(folder), limit), open_source(address) as source:
        return source.read_at(0, 1 << 30)


def copies(folder: Path) -> list[str]:
    """The names of the shards that are kept, without their hashes."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert [name + ".sum" for name in names if not name.endswith(".sum")] == [
        name for name in names if name.endswith(".sum")
    ]
    return [name[:-33] for name in names if not name.endswith(".sum")]


def copy_of(folder: Path, name: str) -> Path:
    [found] = [path for path in folder.glob(f"{name}.*") if path.suffix != ".sum"]
    return found


class TestWeb:
    def test_the_second_time_takes_one_small_request(self, web: Web, folder: Path) -> None:
        for _ in range(2):
            assert read(web.url("d/0.tar"), folder) == SHARDS[0]
        gets = len(web.ranges)
        assert (web.heads, gets >= 1) == (["d/0.tar"] * 2, True)
        cache._folders.clear()
        assert read(web.url("d/0.tar"), folder) == SHARDS[0]
        assert (len(web.heads or ()), len(web.ranges)) == (3, gets)
        assert copies(folder) == ["0.tar"]

    def test_two_shards_of_one_name(self, web: Web, folder: Path) -> None:
        web.files["e/0.tar"] = SHARDS[1]
        assert [read(web.url(f"{one}/0.tar"), folder) for one in "dede"] == [SHARDS[0], SHARDS[1]] * 2
        assert copies(folder) == ["0.tar", "0.tar"]

    def test_a_shard_that_was_replaced_is_another_copy(self, web: Web, folder: Path) -> None:
        read(web.url("d/0.tar"), folder)
        web.files["d/0.tar"] = SHARDS[1]
        assert read(web.url("d/0.tar"), folder) == SHARDS[1]
        assert copies(folder) == ["0.tar", "0.tar"]

    def test_a_shard_that_is_gone_is_an_error(self, web: Web, folder: Path) -> None:
        read(web.url("d/0.tar"), folder)
        del web.files["d/0.tar"]
        with pytest.raises(InputError, match="no such"):
            read(web.url("d/0.tar"), folder)

    @pytest.mark.parametrize("validators", [("weak",), ("date",), ("strong", "date")])
    def test_versions(self, web: Web, folder: Path, validators: tuple[str, ...]) -> None:
        web.validators = validators
        assert read(web.url("d/0.tar"), folder) == SHARDS[0]
        before = len(web.ranges)
        assert read(web.url("d/0.tar"), folder) == SHARDS[0]
        assert len(web.ranges) == before
        web.dates["d/0.tar"] = 5
        web.files["d/0.tar"] = bytes(reversed(SHARDS[0]))
        assert read(web.url("d/0.tar"), folder) == bytes(reversed(SHARDS[0]))

    def test_without_a_version_nothing_is_kept_which_is_said_once(self, web: Web, folder: Path) -> None:
        web.validators = ()
        with pytest.warns(cache.CacheWarning, match="neither an ETag nor a time of change") as said:
            assert [read(web.url("d/0.tar"), folder) for _ in range(2)] == [SHARDS[0]] * 2
        assert len(said) == 1
        assert copies(folder) == []

    def test_a_server_without_head(self, web: Web, folder: Path) -> None:
        web.heads = None
        assert [read(web.url("d/0.tar"), folder) for _ in range(2)] == [SHARDS[0]] * 2
        assert copies(folder) == ["0.tar"]

    def test_a_server_without_ranges_or_sizes(self, folder: Path) -> None:
        with web_server("chunked") as web, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            web.validators, web.files = ("strong",), {"a.tar": SHARDS[0]}
            assert read(web.url("a.tar"), folder) == SHARDS[0]
        assert copies(folder) == []

    def test_a_compressed_shard_is_kept_as_it_is(self, web: Web, folder: Path) -> None:
        import gzip

        web.files["z.tar.gz"] = gzip.compress(SHARDS[0])
        assert [read(web.url("z.tar.gz"), folder) for _ in range(2)] == [SHARDS[0]] * 2
        assert copy_of(folder, "z.tar.gz").read_bytes() == web.files["z.tar.gz"]

    def test_what_is_looked_at_as_it_is_stored_is_not_cached(self, web: Web, folder: Path) -> None:
        with cached_in(str(folder)):
            assert read_all(web.url("d/0.tar")) == SHARDS[0]
        assert not folder.exists()

    def test_replaced_while_it_is_copied(self, web: Web, folder: Path) -> None:
        def replace(name: str) -> None:
            web.files["d/0.tar"] = SHARDS[1]

        web.on_get = replace
        with pytest.raises(InputError, match="replaced"):
            read(web.url("d/0.tar"), folder)
        assert copies(folder) == []
        assert list(folder.glob(".*part*")) == []

    def test_names_are_plain_and_hold_no_secret(self, web: Web, folder: Path) -> None:
        read(web.url("d/0.tar") + "?token=secret", folder)
        text = " ".join(path.name for path in folder.iterdir())
        assert "secret" not in text
        assert "0.tar." in text


class TestCopies:
    def test_one_that_is_not_what_was_written_is_fetched_again(self, web: Web, folder: Path) -> None:
        address = web.url("d/0.tar")
        read(address, folder)
        for damage in (
            lambda path: path.write_bytes(SHARDS[0][:-512] + b"x" * 512),
            lambda path: path.write_bytes(SHARDS[0][:-512]),
            lambda path: path.write_bytes(b""),
            lambda path: Path(f"{path}.sum").unlink(),
            lambda path: Path(f"{path}.sum").write_text("xxh3_128:0\n"),
            lambda path: (path.unlink(), path.mkdir(), path.rmdir(), path.symlink_to("/dev/zero")),
            lambda path: path.chmod(0o666),
        ):
            cache._folders.clear()
            damage(copy_of(folder, "0.tar"))
            before = len(web.ranges)
            assert read(address, folder) == SHARDS[0]
            assert len(web.ranges) > before
            assert copy_of(folder, "0.tar").read_bytes() == SHARDS[0]

    def test_a_process_checks_a_copy_once(
        self, web: Web, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read(web.url("d/0.tar"), folder)
        cache._folders.clear()
        made: list[int] = []
        digest = cache.xxh3_128
        monkeypatch.setattr(cache, "xxh3_128", lambda: made.append(1) or digest())
        for _ in range(3):
            assert read(web.url("d/0.tar"), folder) == SHARDS[0]
        assert made == [1]

    def test_the_least_recently_used_go_first(self, web: Web, folder: Path) -> None:
        limit = len(SHARDS[0]) + len(SHARDS[1])
        for number in (0, 1):
            read(web.url(f"d/{number}.tar"), folder, limit)
            time.sleep(0.02)
        read(web.url("d/0.tar"), folder, limit)
        time.sleep(0.02)
        read(web.url("d/2.tar"), folder, limit)
        assert copies(folder) == ["0.tar", "2.tar"]

    def test_a_shard_larger_than_the_cache(self, web: Web, folder: Path) -> None:
        with pytest.warns(cache.CacheWarning, match="larger than the whole cache"):
            assert read(web.url("d/0.tar"), folder, 1000) == SHARDS[0]
        assert copies(folder) == []

    def test_a_copy_that_goes_while_it_is_read(self, web: Web, folder: Path) -> None:
        with cached_in(str(folder)), open_source(web.url("d/0.tar")) as source:
            read(web.url("d/1.tar"), folder, len(SHARDS[0]) + 100)
            assert copies(folder) == ["1.tar"]
            assert source.read_at(0, 1 << 30) == SHARDS[0]
            source.confirm()

    def test_what_a_killed_process_left(self, web: Web, folder: Path) -> None:
        read(web.url("d/0.tar"), folder)
        name = copy_of(folder, "0.tar").name
        copy_of(folder, "0.tar").rename(folder / f".{name}.part")
        (folder / ".other.part").write_bytes(bytes(len(SHARDS[0])))
        assert read(web.url("d/0.tar"), folder, len(SHARDS[0]) + 5000) == SHARDS[0]
        assert copies(folder) == ["0.tar"]
        assert not list(folder.glob(".*part"))

    def test_a_full_disc(self, web: Web, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache, "write_all", full)
        with pytest.warns(cache.CacheWarning, match="is full"):
            assert [read(web.url("d/0.tar"), folder) for _ in range(2)] == [SHARDS[0]] * 2
        assert copies(folder) == []

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
    def test_another_users_copies(self, web: Web) -> None:
        """Read where they can be, not touched; what cannot be written or read is read from afar."""
        with TemporaryDirectory() as folder:
            self._as_another_user(web, Path(folder))

    def _as_another_user(self, web: Web, folder: Path) -> None:
        folder.chmod(0o755)
        read(web.url("d/0.tar"), folder)
        read(web.url("d/1.tar"), folder)
        copy_of(folder, "1.tar").chmod(0o600)
        web.ranges.clear()
        program = """
            import os, sys, warnings
            from xxhash import xxh3_128
            from wdscli.storage import cache, open_source
            from wdscli.storage.retry import cached_in
            open_source(sys.argv[2]).close()
            os.setuid(65534)
            warnings.simplefilter("error")
            with cached_in(sys.argv[1]):
                def read(url):
                    with open_source(url) as source:
                        return len(source.read_at(0, 1 << 30)), source.fd is not None
                print(read(sys.argv[2]))
                try:
                    read(sys.argv[3])
                except cache.CacheWarning as said:
                    print("cannot write" in str(said))
                warnings.simplefilter("ignore")
                print(read(sys.argv[3]))
        """
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), folder, web.url("d/0.tar"), web.url("d/1.tar")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [str((len(SHARDS[0]), True)), "True", str((len(SHARDS[1]), False))]
        assert (ran.stdout.split("\n")[:3], ran.stderr) == (lines, "")

    def test_the_folder_says_who_may_read(self, web: Web, folder: Path) -> None:
        folder.mkdir()
        before = os.umask(0o077)
        try:
            for number, (mode, of_copy) in enumerate([(0o700, 0o600), (0o750, 0o640), (0o2775, 0o644)]):
                folder.chmod(mode)
                read(web.url(f"d/{number}.tar"), folder)
                assert copy_of(folder, f"{number}.tar").stat().st_mode & 0o777 == of_copy
            os.umask(0)
            read(web.url("d/0.tar"), folder / "new")
            assert (folder / "new").stat().st_mode & 0o777 == 0o775
        finally:
            os.umask(before)

    def test_a_folder_that_anybody_may_fill(self, web: Web, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o1777)
        with pytest.raises(UsageError, match="all users may write") as caught:
            read(web.url("d/0.tar"), folder)
        assert "chmod o-w" in (caught.value.hint or "")
        (folder.parent / "file").write_text("")
        with pytest.raises(UsageError, match="as a cache"):
            read(web.url("d/0.tar"), folder.parent / "file")


class TestManyAtOnce:
    def test_threads_fetch_a_shard_once(self, web: Web, folder: Path) -> None:
        web.on_get = lambda name: time.sleep(0.05)
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: found.append(read(web.url("d/0.tar"), folder))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone = Path(f"{folder}-alone")
        many = len(web.ranges)
        read(web.url("d/0.tar"), alone)
        assert (found, many) == ([SHARDS[0]] * 6, len(web.ranges) - many)
        assert copies(folder) == ["0.tar"]

    def test_a_process_that_is_killed_while_it_fetches(self, web: Web, folder: Path) -> None:
        """Who waits takes over."""
        begun, go = threading.Event(), threading.Event()

        def wait(name: str) -> None:
            if not begun.is_set():
                begun.set()
                go.wait(30)

        web.on_get = wait
        program = "import sys; from wdscli.storage import open_source; open_source(sys.argv[1])"
        environment = {**os.environ, "WDSCLI_CACHE": str(folder)}
        child = subprocess.Popen([sys.executable, "-c", program, web.url("d/0.tar")], env=environment)
        assert begun.wait(30)
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(read(web.url("d/0.tar"), folder)))
        thread.start()
        child.kill()
        child.wait()
        go.set()
        thread.join(30)
        assert found == [SHARDS[0]]
        assert copies(folder) == ["0.tar"]


@contextmanager
def requests(s3: S3) -> Iterator[Callable[[], dict[str, int]]]:
    """How many requests there are in the block, by their verb; of shards alone."""
    forget_listings()
    first = len(s3.seen)
    counts: dict[str, int] = {}

    def seen() -> dict[str, int]:
        counts.clear()
        for one in s3.seen[first:]:
            if one.key.endswith(".tar"):
                counts[one.verb] = counts.get(one.verb, 0) + 1
        return counts

    yield seen


class TestS3:
    @pytest.mark.exhaustive
    def test_commands_ask_once_a_shard_the_second_time(self, s3: S3, folder: Path, tmp_path: Path) -> None:
        for turn in range(2):
            for command in ("cat", "shuffle"):
                with requests(s3) as seen:
                    done = wds(
                        command, "s3://bucket/d/{0..2}.tar", "-o", f"{tmp_path}/{command}{turn}.tar", "--cache", folder,
                        "-q",
                    )  # fmt: skip
                    assert (done.code, done.err) == (0, "")
                if turn:
                    assert seen() == {"HEAD": 3}
            assert copies(folder) == ["0.tar", "1.tar", "2.tar"]
        for command in ("cat", "shuffle"):
            wds(command, "s3://bucket/d/{0..2}.tar", "-o", f"{tmp_path}/{command}.tar", "-q")
            plain = (tmp_path / f"{command}.tar").read_bytes()
            assert [(tmp_path / f"{command}{turn}.tar").read_bytes() for turn in range(2)] == [plain] * 2

    def test_the_environment_and_the_limit(
        self, s3: S3, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WDSCLI_CACHE", str(folder))
        limit = len(SHARDS[0]) + len(SHARDS[2]) + 100
        monkeypatch.setenv("WDSCLI_CACHE_LIMIT", str(limit))
        assert wds("cat", "s3://bucket/d/{0..2}.tar", "-o", tmp_path / "a.tar").code == 0
        assert len(copies(folder)) == 2
        monkeypatch.setenv("WDSCLI_CACHE_LIMIT", str(limit // 2))
        assert wds("cat", "s3://bucket/d/{0..2}.tar", "-o", tmp_path / "b.tar").code == 0
        assert len(copies(folder)) == 1

    def test_verify_looks_at_the_store(self, s3: S3, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WDSCLI_CACHE", str(folder))
        assert wds("verify", "-q", "s3://bucket/d/0.tar").code == 0
        assert not folder.exists()
        done = wds("verify", "s3://bucket/d/0.tar", "--cache", folder)
        assert (done.code, "not copies of them" in done.err) == (2, True)

    @pytest.mark.exhaustive
    def test_commands_warn_in_their_own_words(
        self, s3: S3, folder: Path, tmp_path: Path, shared_workers: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WDSCLI_CACHE_LIMIT", "1000")
        for jobs in (1, 2):
            done = wds(
                "cat", "s3://bucket/d/{0..1}.tar", "-o", f"{tmp_path}/{jobs}/{{name}}.tar", "-j", jobs,
                "--cache", folder,
            )  # fmt: skip
            assert done.code == 0
            said = "warning: s3://bucket/d/0.tar is not cached: it is larger than the whole cache"
            assert said in done.err.splitlines() or jobs == 2
            assert "CacheWarning" not in done.err

    def test_local_shards_are_not_copied(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(SHARDS[0])
        assert read(str(tmp_path / "a.tar"), folder) == SHARDS[0]
        assert not folder.exists()

    @pytest.mark.exhaustive
    def test_workers_have_the_cache_too(
        self, s3: S3, folder: Path, tmp_path: Path, shared_workers: Any
    ) -> None:
        done = wds(
            "cat",
            "s3://bucket/d/{0..2}.tar",
            "-o",
            f"{tmp_path}/{{name}}.tar",
            "-j",
            2,
            "--cache",
            folder,
            "-q",
        )
        assert done.code == 0
        assert copies(folder) == ["0.tar", "1.tar", "2.tar"]


class TestLoader:
    @pytest.fixture
    def urls(self, s3: S3) -> str:
        return "s3://bucket/d/{0..2}.tar"

    @pytest.mark.parametrize("kind", [WebDataset, IndexedDataset])
    def test_the_second_time_is_local(self, s3: S3, urls: str, folder: Path, kind: Any) -> None:
        keys = sorted(sample["__key__"] for sample in kind(urls))
        for turn in range(2):
            with requests(s3) as seen:
                data = kind(urls, cache_dir=folder)
                assert sorted(sample["__key__"] for sample in data) == keys
            if turn:
                assert set(seen()) == {"HEAD"}
        assert copies(folder) == ["0.tar", "1.tar", "2.tar"]

    def test_the_size(self, urls: str, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cache.CacheWarning)  # three threads, and room for one
            data = WebDataset(urls, cache_dir=str(folder), cache_size=len(SHARDS[0]) + 10)
            assert len(list(data)) == 36
        assert len(copies(folder)) == 1
        for wrong in ({"cache_size": 5}, {"cache_dir": folder, "cache_size": 0}, {"cache_dir": ""}):
            with pytest.raises(UsageError):
                WebDataset(urls, **wrong)  # type: ignore[arg-type]

    def test_replaced_between_epochs(self, s3: S3, folder: Path) -> None:
        s3.client.put_object(Bucket="bucket", Key="r/0.tar", Body=SHARDS[0])
        data = WebDataset("s3://bucket/r/0.tar", cache_dir=folder)
        first = [sample["__key__"] for sample in data]
        s3.client.put_object(Bucket="bucket", Key="r/0.tar", Body=SHARDS[1])
        again = WebDataset("s3://bucket/r/0.tar", cache_dir=folder)
        assert {key[0] for key in first} == {"a"}
        assert {sample["__key__"][0] for sample in again} == {"b"}

    def test_streams(self, s3: S3, folder: Path) -> None:
        import bz2

        s3.client.put_object(Bucket="bucket", Key="z/0.tar.bz2", Body=bz2.compress(SHARDS[0]))
        for _ in range(2):
            assert len(list(WebDataset("s3://bucket/z/0.tar.bz2", cache_dir=folder))) == 12
        assert copies(folder) == ["0.tar.bz2"]

    @pytest.mark.exhaustive
    def test_two_processes_with_two_workers_each(self, s3: S3, urls: str, folder: Path) -> None:
        pytest.importorskip("torch")
        program = """
            import sys
            from torch.utils.data import DataLoader
            from wdscli.loader import WebDataset
            data = WebDataset(sys.argv[1], cache_dir=sys.argv[2])
            if __name__ == "__main__":
                keys = [sample["__key__"] for sample in DataLoader(data, batch_size=None, num_workers=2)]
                print(len(keys), len(set(keys)))
        """
        with requests(s3) as seen:
            command = [sys.executable, "-c", textwrap.dedent(program), urls, str(folder)]
            children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
            assert [child.communicate(timeout=120)[0].strip() for child in children] == ["36 36"] * 2
        assert seen()["GET"] == 3
        assert copies(folder) == ["0.tar", "1.tar", "2.tar"]


def test_off_by_default_and_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WDSCLI_CACHE", raising=False)
    assert (network().cache_dir, network().cache_bytes) == ("", 0)
    monkeypatch.setenv("WDSCLI_CACHE", "/c")
    monkeypatch.setenv("WDSCLI_CACHE_LIMIT", "2MB")
    assert (network().cache_dir, network().cache_bytes) == ("/c", 2_000_000)
    with using(network()._replace(cache_dir="")):
        assert network().cache_dir == ""
