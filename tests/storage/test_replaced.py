"""An object that is replaced while it is read is an error, and never a mixture of two versions."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from shard_cases import numbered, tar_of
from storage_servers import S3, Web, s3_server, web_server

from wdscli.errors import DataError, InputError
from wdscli.plan.inputs import Input, Stamp
from wdscli.storage import open_sink, open_source

COMMAND: list[str] = []
OLD, NEW = (random.Random(seed).randbytes(300_000) for seed in (1, 2))
SAMPLES = 400


def shard_of(letter: bytes, samples: int = SAMPLES) -> bytes:
    """A shard of which every payload is of one letter, so that a mixture shows."""
    return tar_of([(f"s{number:04d}.txt", letter * 1000) for number in range(samples)])


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        server.validators = ("strong",)
        server.files["a.tar"] = OLD
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("replaced")
        yield server


class TestSources:
    @pytest.mark.parametrize(
        "validators",
        [("strong",), ("strong", "ignores"), ("weak",), ("date",), ("strong", "date", "ignores")],
    )
    def test_http(self, web: Web, validators: tuple[str, ...]) -> None:
        web.validators = validators
        with open_source(web.url("a.tar")) as source:
            assert source.version
            assert source.read_at(100_000, 10) == OLD[100_000:100_010]
            web.files["a.tar"], web.dates["a.tar"] = NEW, 60
            with pytest.raises(InputError) as caught:
                source.read_at(200_000, 10)
        assert web.url("a.tar") in str(caught.value)
        assert "from byte 200000: it was replaced or changed while it was read" in str(caught.value)
        assert caught.value.hint == "read it again when no other program writes there"
        with open_source(web.url("a.tar")) as source:
            assert source.read_at(200_000, 10) == NEW[200_000:200_010]

    def test_http_without_a_word_about_versions(self, web: Web) -> None:
        """Only another size can be seen then."""
        web.validators = ()
        with open_source(web.url("a.tar")) as source:
            web.files["a.tar"] = NEW + b"more"
            with pytest.raises(InputError, match="was replaced"):
                source.read_at(200_000, 10)

    @pytest.mark.parametrize("size", [100_000, 250_000, 300_001])
    def test_http_another_size(self, web: Web, size: int) -> None:
        web.validators = ("date",)
        with open_source(web.url("a.tar")) as source:
            web.files["a.tar"] = (NEW * 2)[:size]
            with pytest.raises(InputError, match="was replaced"):
                source.read_at(200_000, 10)

    def test_http_says_what_it_read(self, web: Web) -> None:
        """A proxy that answers with other bytes than were asked for."""
        answers: list[Callable[..., None]] = []
        original = web.RequestHandlerClass._range  # type: ignore[attr-defined]

        def shifted(self: Any, data: bytes, asked: str) -> None:
            original(self, data, "bytes=5-14" if answers else asked)

        web.RequestHandlerClass = type("Shifted", (web.RequestHandlerClass,), {"_range": shifted})
        with open_source(web.url("a.tar")) as source:
            answers.append(shifted)
            with pytest.raises(InputError, match="the server sent bytes 5-14 instead of 200000-200009"):
                source.read_at(200_000, 10)

    def test_http_asks_for_one_version(self, web: Web) -> None:
        conditions: list[str | None] = []
        original = web.RequestHandlerClass.do_GET  # type: ignore[attr-defined]

        def watched(self: Any) -> None:
            conditions.append(self.headers.get("If-Match"))
            original(self)

        web.RequestHandlerClass = type("Watched", (web.RequestHandlerClass,), {"do_GET": watched})
        with open_source(web.url("a.tar")) as source:
            source.read_at(200_000, 10)
            version = source.version
        assert conditions == [None, version]

    def test_s3(self, s3: S3) -> None:
        put(s3, "a.tar", OLD)
        with open_source("s3://replaced/a.tar") as source:
            assert source.read_at(100_000, 10) == OLD[100_000:100_010]
            put(s3, "a.tar", NEW)
            with pytest.raises(InputError) as caught:
                source.read_at(200_000, 10)
        expected = (
            "cannot read s3://replaced/a.tar, from byte 200000: it was replaced or changed while it was read"
        )
        assert str(caught.value) == expected
        with open_source("s3://replaced/a.tar") as source:
            assert source.read_at(200_000, 10) == NEW[200_000:200_010]

    def test_s3_that_does_not_know_the_condition(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        from s3fs import S3FileSystem

        original, conditions = S3FileSystem._call_s3, []

        async def without(self: Any, method: str, *args: Any, **options: Any) -> Any:
            if method == "get_object":
                conditions.append(options.pop("IfMatch", None))
            return await original(self, method, *args, **options)

        monkeypatch.setattr(S3FileSystem, "_call_s3", without)
        put(s3, "a.tar", OLD)
        with open_source("s3://replaced/a.tar") as source:
            source.read_at(100_000, 10)
            put(s3, "a.tar", NEW)
            with pytest.raises(InputError, match="was replaced"):
                source.read_at(200_000, 10)
        assert conditions[0] is None
        assert conditions[1] == conditions[2] is not None

    def test_s3_what_a_listing_said_may_be_old(self, s3: S3) -> None:
        """The first answer counts: nothing has been read before it."""
        from wdscli.storage import expand

        put(s3, "b.tar", OLD)
        [address] = expand("s3://replaced/b*.tar")
        put(s3, "b.tar", NEW)
        with open_source(address) as source:
            assert source.read_at(200_000, 10) == NEW[200_000:200_010]
            assert source.read_at(0, 10) == NEW[:10]
            first = source.version
        with open_source(address) as source:
            assert source.version == first

    def test_other_stores_are_asked_at_the_end(self) -> None:
        put_memory("a.tar", OLD)
        with open_source("memory://replaced/a.tar") as source:
            source.read_at(200_000, 10)
            source.confirm()
            put_memory("a.tar", NEW)
            with pytest.raises(InputError, match="was replaced or changed"):
                source.confirm()

    def test_local_files(self, tmp_path: Path) -> None:
        """A file that is renamed away is still read whole; one that is written over is noticed at the end."""
        path = tmp_path / "a.tar"
        path.write_bytes(OLD)
        with open_source(str(path)) as source:
            (tmp_path / "b.tar").write_bytes(NEW)
            os.replace(tmp_path / "b.tar", path)
            assert source.read_at(200_000, 10) == OLD[200_000:200_010]
            source.confirm()
        with open_source(str(path)) as source:
            path.write_bytes(OLD)
            os.utime(path, ns=(5, 5))
            with pytest.raises(InputError, match="was replaced or changed"):
                source.confirm()

    def test_an_input_is_that_of_the_plan_wherever_it_is_opened(self, web: Web, tmp_path: Path) -> None:
        for address, change in (
            (web.url("a.tar"), lambda: web.files.update({"a.tar": NEW})),
            (str(tmp_path / "a.tar"), lambda: os.utime(tmp_path / "a.tar", ns=(5, 5))),
        ):
            (tmp_path / "a.tar").write_bytes(OLD)
            with open_source(address) as source:
                stamp = Stamp(source.size or 0, source.version)
            Input(address, stamp=stamp).open().close()
            change()
            with pytest.raises(DataError, match="was changed after the plan was made"):
                Input(address, stamp=stamp, is_held=True).open()
            # Of a local file its headers may tell more.
            with (
                pytest.raises((DataError, InputError), match=r"was changed after|was replaced or changed"),
                Input(address, stamp=stamp).open() as source,
            ):
                source.confirm()


def put(s3: S3, name: str, data: bytes) -> None:
    s3.client.put_object(Bucket="replaced", Key=name, Body=data)


def put_memory(name: str, data: bytes) -> None:
    with open_sink(f"memory://replaced/{name}", force=True) as sink:
        sink.write(data)


COMMANDS = {
    "cat": ["cat", "{}", "-o", "out.tar"],
    "shuffle": ["shuffle", "{}", "-o", "out-%d.tar", "--max-count", "50", "-j", "1"],
    "spill": ["shuffle", "{}", "-o", "out-%d.tar", "--max-count", "50", "-j", "1", "--strategy", "spill"],
    "merge": ["merge", "{}", "-o", "out-%d.tar", "--max-count", "50", "-j", "1"],
    "sort": ["sort", "{}", "-o", "out-%d.tar", "--by", "txt", "--max-count", "50", "-j", "1"],
    "verify": ["verify", "{}", "--decode"],
    "ls": ["ls", "{}", "--where", "txt != 'x'"],
    "index": ["index", "{}", "--no-index", "-o", "m.json"],
}


@pytest.mark.parametrize("after", [2, 3, 5, 7])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands(
    command: str, after: int, web: Web, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced (same size) before request ``after``: an error and no output, or the new one or the old one whole."""
    monkeypatch.chdir(tmp_path)
    requests = []
    web.files["a.tar"] = shard_of(b"a")

    def replace(name: str) -> None:
        requests.append(name)
        if requests.count("a.tar") == after:
            web.files["a.tar"] = shard_of(b"b")

    web.on_get = replace
    ran = run(*[word.replace("{}", web.url("a.tar")) for word in COMMANDS[command]])
    is_over = requests.count("a.tar") < after
    assert ran.code in ((0,) if is_over else (0, 3, 4)), ran.err
    if ran.code:
        assert "was replaced or changed while it was read" in ran.err + ran.out.decode() or (
            "was changed after the plan was made" in ran.err
        )
        assert web.url("a.tar") in ran.err + ran.out.decode()
    written = b"".join(path.read_bytes() for path in tmp_path.glob("*.tar"))
    assert not (b"a" * 1000 in written and b"b" * 1000 in written)
    if ran.code:
        assert not list(tmp_path.glob("*manifest.json"))
        assert not list(tmp_path.rglob("*.tmp"))
        # A shard that was whole before stays, with its index.
        assert all((tmp_path / path.stem).exists() for path in tmp_path.rglob("*.wdx"))


@pytest.mark.parametrize("command", ["cat", "shuffle", "merge"])
def test_commands_on_s3(
    command: str, s3: S3, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from s3fs import S3FileSystem

    monkeypatch.chdir(tmp_path)
    put(s3, "set/a.tar", shard_of(b"a"))
    original, requests, is_other = S3FileSystem._call_s3, [], asyncio.Event()
    # Else one request has all of it.
    monkeypatch.setattr("wdscli.storage.scatter.REQUEST_BYTES", 1 << 17)

    async def watched(self: Any, method: str, *args: Any, **options: Any) -> Any:
        """All but the first answer are of another object, whenever they were requested."""
        if method != "get_object" or options.get("Key") != "set/a.tar":
            return await original(self, method, *args, **options)
        requests.append(options["Range"])
        if len(requests) > 1:
            await is_other.wait()
            return await original(self, method, *args, **options)
        answer = await original(self, method, *args, **options)
        put(s3, "set/a.tar", shard_of(b"b"))
        is_other.set()
        return answer

    monkeypatch.setattr(S3FileSystem, "_call_s3", watched)
    ran = run(*[word.replace("{}", "s3://replaced/set/a.tar") for word in COMMANDS[command]])
    assert ran.code in (3, 4), ran.err
    assert "s3://replaced/set/a.tar" in ran.err
    assert not list(tmp_path.glob("*.tar"))
    assert not list(tmp_path.glob("*.json"))


def test_the_loader(web: Web) -> None:
    import wdscli.loader as wds

    web.files["a.tar"] = shard_of(b"a", 1500)
    seen, replaced = [], False
    with pytest.raises(InputError, match="was replaced or changed"):
        for sample in wds.WebDataset(web.url("a.tar"), prefetch="1MB"):
            seen.append(sample["txt"][:1])
            if not replaced:
                web.files["a.tar"], replaced = shard_of(b"b", 1500), True
    assert set(seen) == {b"a"}


def test_a_file_that_still_grows(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wdscli.plan import survey

    monkeypatch.chdir(tmp_path)
    data = tar_of([member for one in numbered(5, "a") for member in one])
    Path("a.tar").write_bytes(data)
    original = survey.hash_key

    def growing(key: bytes) -> int:
        with open("a.tar", "ab") as file:
            file.write(b"\0" * 512)
        return original(key)

    monkeypatch.setattr(survey, "hash_key", growing)
    ran = run("shuffle", "a.tar", "-o", "o.tar", "-j", "1", "--where", "index < 4")
    assert ran.code == 4
    assert "a.tar: it was replaced or changed while it was read" in ran.err
    assert not Path("o.tar").exists()


def test_verify_compares_the_checksum_of_what_it_checked(web: Web, run: Command, tmp_path: Path) -> None:
    """The headers of one version and the checksum of another, which is right, are no whole shard."""
    manifest = tmp_path / "m.json"
    web.files["a.tar"] = shard_of(b"a")
    assert run("index", web.url("a.tar"), "--no-index", "-o", manifest).code == 0
    web.files["set-manifest.json"] = manifest.read_bytes().replace(web.url("a.tar").encode(), b"a.tar")
    good, odd = shard_of(b"a"), shard_of(b"b")
    web.files["a.tar"] = odd
    digests: list[bytes] = []

    def replace(name: str) -> None:
        if name == "a.tar":
            digests.append(b"")
        if len(digests) == 8:
            web.files["a.tar"] = good

    web.on_get = replace
    for after in range(1, 12):
        digests[:], web.files["a.tar"] = [b""] * (8 - after), odd
        assert run("verify", web.url("set-manifest.json"), "--checksums").code != 0 or after == 1
