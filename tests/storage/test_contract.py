"""One contract, held by every kind of store: what is written is whole or not there, what stands is not written over,
what is read is of one version; and every command gives there what it gives on this machine.

The servers are of several makes, because a proof on one is half a proof. Where a store cannot do something, its name
stands in a table here."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from shard_cases import content, numbered, tar_of, wds, wds_process, write_shards
from storage_servers import forget_s3
from stores import STORES, Store, forget_clients, store
from tiers import EXHAUSTIVE

import wdscli.loader as loader
from wdscli.errors import InputError, OutputError, OutputExistsError
from wdscli.storage import exists, open_sink, open_source, ranges

DATA = random.Random(5).randbytes(20_000_000)
SMALL = DATA[:300_000]

BY_BOTH = ("moto", "seaweedfs", "rclone")
"""Read by s3fs and by obstore."""
READ_ONLY = ("http", "hf")
TOLD_AT_THE_END = ("file", "memory", "hf")
"""The others refuse the first read after an object was replaced."""
LEFT_TO_THE_STORE = ("gs",)
"""Uploads of a killed process, which cannot be listed, end by themselves after a week."""
IGNORES_CONDITIONS = ("rclone",)
"""Of two writers both are let through: only what stood there before the first one began is safe."""
BUCKETS = {"az": "container", "hf": "repository"}
"""What they are called there."""
KINDS = [
    f"{name}-obstore" if fast else name for name in STORES for fast in (False, True)[: 1 + (name in BY_BOTH)]
]
WRITABLE = [kind for kind in KINDS if kind not in READ_ONLY]
SLOW_TO_START = "seaweedfs"


def cases(kinds: Iterable[str]) -> list[Any]:
    """Kinds of stores as cases of a test. The fast tier leaves out a server that starts slowly."""
    return [
        pytest.param(kind, marks=EXHAUSTIVE) if kind.startswith(SLOW_TO_START) else kind for kind in kinds
    ]


def end_threads() -> None:
    """Those that wait for stores would be seen by tests that look for what is left."""
    ranges._threads_of(os.getpid()).shutdown()
    ranges._threads_of.cache_clear()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Store]]:
    """Gives a store by its name; one server runs at a time."""
    running: dict[str, Store] = {}
    with ExitStack() as stack:

        def give(name: str) -> Store:
            if name not in running:
                running.clear()
                stack.pop_all().close()
                running[name] = stack.enter_context(store(name, tmp_path_factory.mktemp(name)))
            return running[name]

        yield give
    end_threads()


@pytest.fixture(scope="module", params=cases(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(kind: str, servers: Callable[[str], Store]) -> Iterator[Store]:
    """A folder of the store, which holds nothing yet."""
    name, _, library = kind.partition("-")
    if library:
        pytest.importorskip(library)
    found = servers(name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WDSCLI_STORE", library or "fsspec")
        forget_s3()
        yield found.below(library or "folder")


writes = pytest.mark.parametrize("kind", cases(WRITABLE), indirect=True, scope="module")
"""For tests of what is written."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set, its manifest and indexes."""
    folder = tmp_path_factory.mktemp("here")
    write_shards(folder / "one", [numbered(20, "a"), numbered(31, "b"), numbered(1, "c")])
    assert wds("index", folder / "one").code == 0
    return folder


@pytest.fixture(scope="module")
def uploaded(place: Store, here: Path) -> str:
    """The same in the store."""
    for path in sorted(path for path in here.rglob("*") if path.is_file()):
        place.put(str(path.relative_to(here)), path.read_bytes())
    return place.url


class TestSource:
    def test_ranges(self, place: Store) -> None:
        place.put("r/a.tar", SMALL)
        with open_source(f"{place.url}/r/a.tar") as source:
            assert (source.size, source.seekable) == (len(SMALL), True)
            source.expect([(200_000, 210_000), (250_000, 300_000)])
            assert source.read_at(200_000, 10_000) == SMALL[200_000:210_000]
            assert source.read_at(299_990, 500) == SMALL[299_990:]
            assert source.read_at(0, 512) == SMALL[:512]
            assert source.read_at(400_000, 10) == b""

    def test_nothing_there(self, place: Store) -> None:
        assert not exists(f"{place.url}/gone/a.tar")
        with pytest.raises(InputError, match=r"gone/a\.tar"):
            open_source(f"{place.url}/gone/a.tar")

    def test_empty(self, place: Store) -> None:
        place.put("r/empty.tar", b"")
        with open_source(f"{place.url}/r/empty.tar") as source:
            assert source.read_at(0, 10) == b""

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("length", [len(SMALL), 150_000])
    def test_replaced_while_it_is_read(self, place: Store, kind: str, length: int) -> None:
        """Bytes of two versions are never given as one, and who has read everything hears of it."""
        name = f"replaced-{length}/b.tar"
        place.put(name, SMALL)
        with open_source(f"{place.url}/{name}") as source:
            assert source.read_at(0, 512) == SMALL[:512]
            place.put(name, SMALL[::-1][:length])
            with pytest.raises(InputError, match="replaced or changed"):
                source.read_at(100_000, 40_000)
                assert kind in TOLD_AT_THE_END
                source.confirm()


@writes
class TestSink:
    @pytest.mark.parametrize("size", [0, 1000, len(DATA)])
    def test_written(self, place: Store, size: int) -> None:
        name = f"w/{size}.tar"
        with open_sink(f"{place.url}/{name}") as sink:
            for start in range(0, size, 3_000_000):
                sink.write(DATA[start : min(size, start + 3_000_000)])
                assert name not in place.names()
        assert place.get(name) == DATA[:size]
        assert place.pending() == []

    @pytest.mark.parametrize("size", [1000, len(DATA)])
    def test_an_error_leaves_nothing(self, place: Store, size: int) -> None:
        with pytest.raises(ZeroDivisionError), open_sink(f"{place.url}/e/{size}.tar") as sink:
            sink.write(DATA[:size])
            raise ZeroDivisionError
        assert [name for name in place.names() if name.startswith("e/")] == []
        assert place.pending() == []

    def test_a_name_that_is_taken(self, place: Store) -> None:
        place.put("t/a.tar", SMALL)
        with pytest.raises(OutputExistsError):
            open_sink(f"{place.url}/t/a.tar")
        with open_sink(f"{place.url}/t/a.tar", force=True) as sink:
            sink.write(b"new")
        assert place.get("t/a.tar") == b"new"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("size", [1000, len(DATA)])
    def test_of_two_writers_one_fails(self, place: Store, kind: str, size: int) -> None:
        if kind.startswith(IGNORES_CONDITIONS):
            pytest.skip(f"{kind} does not know If-None-Match")
        name = f"t/two-{size}.tar"
        first, second = (open_sink(f"{place.url}/{name}") for _ in range(2))
        first.write(DATA[:size])
        second.write(DATA[:size][::-1])
        first.commit()
        with pytest.raises(OutputExistsError):
            second.commit()
        assert place.get(name) == DATA[:size]
        assert place.pending() == []


@pytest.mark.parametrize(
    "kind", cases(kind for kind in KINDS if kind not in ("file", "memory", "http")), indirect=True
)
def test_no_such_bucket(place: Store, kind: str) -> None:
    scheme = place.url.partition("://")[0]
    gone = f"{scheme}://datasets/o/nothing" if scheme == "hf" else f"{scheme}://no-such-bucket"
    said = (
        f'there is no {BUCKETS.get(kind, "bucket")} "{"o/nothing" if scheme == "hf" else "no-such-bucket"}"'
    )
    with pytest.raises(InputError, match=said):
        open_source(f"{gone}/a.tar")
    if kind in WRITABLE:
        with pytest.raises(OutputError, match=said):
            open_sink(f"{gone}/a.tar")


@pytest.mark.parametrize("kind", cases(["seaweedfs", "seaweedfs-obstore", "rclone", "az"]), indirect=True)
def test_wrong_credentials(place: Store, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("closed.tar", SMALL)
    account = "AZURE_STORAGE_CONNECTION_STRING" if kind == "az" else "AWS_SECRET_ACCESS_KEY"
    monkeypatch.setenv(account, os.environ[account].replace("Eby8", "Abc8") if kind == "az" else "wrong")
    forget_clients()
    try:
        with pytest.raises(InputError, match=r"denied|answered 403") as refused:
            open_source(f"{place.url}/closed.tar")
        with pytest.raises(OutputError, match=r"denied|answered 403"):
            open_sink(f"{place.url}/new.tar")
    finally:
        forget_clients()
    assert (account if kind == "az" else "credentials") in str(refused.value.hint)
    assert "new.tar" not in place.names()


WRITING = {
    "create": "create --from {0}/rows.jsonl --key-column key --column txt=text -o {1}/out-%d.tar --max-count 5 -j 1",
    "split": "split {0}/one --slice ::2 -o {1}/{{part}}/out-%d.tar --ratio train=3,val=1 -j 1",
    "shuffle": "shuffle {0}/one/*.tar -o {1}/out-%d.tar --max-count 30 --seed 3 -j 1",
    "spill": "shuffle {0}/one/ -o {1}/out-%d.tar --strategy spill --max-count 30 --seed 3 -j 1",
    "renamed": "cat {0}/one -o {1}/{{name}}.v2.tar -j 1",
    "packed": "cat {0}/one -o {1}/{{name}}.tar.gz -j 1",
    "whole-shards": "merge {0}/one {0}/one/in-2.tar --on-duplicate skip -o {1}/out-{{0..2}}.tar -j 1",
    "sort": "sort {0}/one/in-manifest.json --by cls:nr -o {1}/out-%d.tar --max-count 30 -j 1",
}


@pytest.mark.exhaustive
@writes
@pytest.mark.parametrize("name", WRITING)
def test_what_is_written(place: Store, uploaded: str, here: Path, tmp_path: Path, name: str) -> None:
    rows = "".join(f'{{"key": "r{n}", "text": "row {n}"}}\n' for n in range(9))
    (here / "rows.jsonl").write_text(rows)
    place.put("rows.jsonl", rows.encode())
    local = wds(*WRITING[name].format(here, tmp_path / "out").split())
    assert local.code == 0, local.err
    words = WRITING[name].format(uploaded, f"{uploaded}/{name}").split()
    remote = wds(*words)
    assert remote.code == 0, remote.err
    found = place.objects(f"{name}/")
    assert found == content(tmp_path / "out")
    again = wds(*words)
    assert (again.code, "exists" in again.err) == (4, True)
    forced = wds(*words, "--force")
    assert forced.code == 0, forced.err
    assert place.objects(f"{name}/") == found
    assert place.pending() == []


@writes
def test_whole_shards_that_are_moved(place: Store, here: Path) -> None:
    """Where the store is one of S3's it moves them itself."""
    first, second = f"{place.url}/moved/a", f"{place.url}/moved/b"
    assert wds("split", here / "one", "-o", f"{first}/out-%d.tar", "--max-count", 20, "-j", 1).code == 0
    ran = wds("cat", f"{first}/", "-o", f"{second}/{{name}}.tar", "-j", 1, "-v")
    assert ran.code == 0, ran.err
    shards = {name: data for name, data in place.objects("moved/a/").items() if name.endswith(".tar")}
    assert len(shards) == 3
    found = place.objects("moved/b/")
    assert {name: found.get(name) for name in shards} == shards
    assert ran.err.count("copied by the store") == (3 if place.url.startswith("s3://") else 0)


SHOWN = [
    "ls {0}/one", "ls {0}/one/*.tar --by member", "ls {0}/one/in-manifest.json --json", "ls {0}/one/in-{{0..2}}.tar",
    "verify {0}/one --checksums --json -j 1", "cat {0}/one/in-manifest.json -o -", "ls {0}/one/gone-*.tar",
]  # fmt: skip


@pytest.mark.parametrize("line", SHOWN)
def test_what_is_shown(place: Store, kind: str, uploaded: str, here: Path, line: str) -> None:
    if kind == "http":
        line = line.replace("{0}/one ", "{0}/one/in-manifest.json ").replace(
            "{0}/one/*", "{0}/one/in-{{0..2}}"
        )
        if "gone" in line or line.endswith("/one"):
            pytest.skip("http cannot list")
    local, remote = (wds(*line.format(root).split()) for root in (here, uploaded))
    assert (remote.code, remote.out) == (local.code, local.out.replace(bytes(here), uploaded.encode())), (
        remote.err
    )
    assert "Traceback" not in remote.err


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("kind", ["gs"], indirect=True)
def test_what_a_client_notes_is_not_printed(place: Store, uploaded: str) -> None:
    ran = wds_process("ls", f"{uploaded}/one/in-manifest.json", "-q")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("shuffle", [False, "window"])
def test_loader(place: Store, uploaded: str, here: Path, tmp_path: Path, shuffle: bool | str) -> None:
    def keys(root: object, **more: object) -> list[str]:
        return [
            sample["__key__"]
            for sample in loader.WebDataset(f"{root}/one/in-manifest.json", shuffle=shuffle, **more)
        ]

    expected = keys(here)
    assert len(expected) == 52
    assert keys(uploaded) == expected
    for _ in range(2):
        assert keys(uploaded, cache_dir=str(tmp_path / "cache")) == expected


def test_cache(place: Store, uploaded: str, here: Path, tmp_path: Path) -> None:
    words = ("cat", f"{uploaded}/one/in-manifest.json", "-o", "-", "--cache", tmp_path)
    first, second = wds(*words), wds(*words)
    assert first.code == second.code == 0, first.err
    assert first.out == second.out == wds("cat", here / "one/in-manifest.json", "-o", "-").out


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("kind", cases(kind for kind in WRITABLE if "obstore" not in kind), indirect=True)
def test_killed_in_mid_upload(place: Store, kind: str, tmp_path: Path) -> None:
    """Nothing stands under the name; the next run clears away what is left, and finishes."""
    if kind == "memory":
        pytest.skip("memory ends with its process")
    (tmp_path / "big.tar").write_bytes(tar_of([(f"k{n:02d}.bin", DATA[:1_000_000]) for n in range(20)]))
    output = f"{place.url}/killed/out.tar"
    os.mkfifo(tmp_path / "more")
    more = os.open(tmp_path / "more", os.O_RDWR)  # nothing comes as long as it is open
    command = f"pipe:head -c 19000000 {tmp_path}/big.tar; touch {tmp_path}/sent; exec cat {tmp_path}/more"
    process = subprocess.Popen([sys.executable, "-m", "wdscli", "cat", command, "-o", output])
    end = time.monotonic() + 30
    while not (tmp_path / "sent").exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -9
    os.close(more)
    left = [name for name in place.names() if name.startswith("killed/")]
    assert "killed/out.tar" not in left
    done = wds("cat", tmp_path / "big.tar", "-o", output)
    assert done.code == 0, done.err
    assert place.pending() == [] or kind in LEFT_TO_THE_STORE
    assert "warning" not in done.err
    assert place.get("killed/out.tar") == (tmp_path / "big.tar").read_bytes()


@pytest.mark.parametrize("kind", ["az"], indirect=True)
def test_what_a_smaller_set_leaves_of_a_killed_one(place: Store, tmp_path: Path) -> None:
    """Blocks of Azure that no later upload of the same name replaces."""
    blob = pytest.importorskip("azure.storage.blob")
    service = blob.BlobServiceClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"])
    container, _, folder = place.url.removeprefix("az://").partition("/")
    for name in ("out-7.tar", "other-7.tar"):
        service.get_blob_client(container, f"{folder}/smaller/{name}").stage_block("QUFB", b"x" * 1000)
    (tmp_path / "a.tar").write_bytes(tar_of([("k.bin", SMALL)]))
    done = wds("split", tmp_path / "a.tar", "-o", f"{place.url}/smaller/out-%d.tar", "--max-count", 1)
    assert done.code == 0, done.err
    assert place.pending() == ["smaller/other-7.tar"]
