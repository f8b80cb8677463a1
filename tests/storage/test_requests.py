"""The requests and bytes that commands take of an object store: nothing is read twice.

The table is printed with ``-s``. Bounds are for each shard of some MB and less, and in bytes received for each byte of
the set.
"""

from __future__ import annotations

import gzip
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from conftest import Command
from shard_cases import numbered, wds, write_shards
from storage_servers import S3, forget_listings, s3_server

import wdscli.loader as wds_loader
from wdscli.copy import maker
from wdscli.errors import DataError
from wdscli.plan.plan import make_plan
from wdscli.storage.ranges import RemoteSource

COMMAND: list[str] = []
SHARDS = 4


class Taken(NamedTuple):
    """What a command took of the store: requests by their verb, and bytes received by GET for each byte of the set."""

    gets: int
    heads: int
    lists: int
    ratio: float


class Store(NamedTuple):
    """Sets on a server, by name: the words for all of each, and the bytes of its shards."""

    server: S3
    sets: dict[str, tuple[str, int]]
    near: list[str]
    table: list[str]


def put(server: S3, folder: Path, place: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            server.client.put_object(
                Bucket="requests", Key=f"{place}/{path.relative_to(folder)}", Body=path.read_bytes()
            )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("sets")
    names = write_shards(folder / "plain", [numbered(120, f"p{at}-", [10, 3000]) for at in range(SHARDS)])
    size = sum(Path(name).stat().st_size for name in names)
    with s3_server() as server:
        server.bucket("requests")
        put(server, folder / "plain", "plain")
        for path in map(Path, names):
            body = gzip.compress(path.read_bytes(), 1)
            server.client.put_object(Bucket="requests", Key=f"gz/{path.name}.gz", Body=body)
        packed = sum(len(server.get("requests", f"gz/{Path(name).name}.gz")) for name in names)
        assert wds("index", *names, "-j1").code == 0
        put(server, folder / "plain", "indexed")
        sets = {
            "plain": ("s3://requests/plain/", size),
            "indexed": ("s3://requests/indexed/", size),
            "manifest": ("s3://requests/indexed/in-manifest.json", size),
            "gz": ("s3://requests/gz/", packed),
        }
        found = Store(server, sets, names, [])
        yield found
        print()
        print("\n".join(found.table))


def taken(store: Store, name: str, words: list[str], run: Command) -> Taken:
    """Run a command on a set, and tell what it took."""
    address, size = store.sets[name]
    forget_listings()
    store.server.seen.begin_anew()
    ran = run(words[0], address, *words[1:])
    assert ran.code == 0, ran.err
    verbs = Counter(one.verb for one in store.server.seen.settled())
    received = sum(one.sent for one in store.server.seen if one.verb == "GET")
    found = Taken(verbs["GET"], verbs["HEAD"], verbs["LIST"], received / size)
    shown = " ".join(word for word in words if not word.startswith(("/", "-j")) and word != "-o")
    store.table.append(
        f"{name:9} {shown:40} GET {found.gets:3} HEAD {found.heads:2} LIST {found.lists:2} {found.ratio:5.2f}x"
    )
    return found


def test_requests_of_clients_that_give_up_are_counted(store: Store) -> None:
    """Otherwise a request that one command has given up would be counted for the next one."""
    for _ in range(20):
        store.server.seen.begin_anew()
        with socket.create_connection(store.server.seen.address) as given_up:
            given_up.sendall(b"GET /requests/plain/in-0.tar HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert [(one.verb, one.key) for one in store.server.seen.settled()] == [("GET", "plain/in-0.tar")]


READING = {
    "ls": (4, 0.15),
    "ls --by member": (2, 1.02),
    "cat": (1, 1.02),
    "cat --fields cls": (2, 1.02),
    "verify -j1": (3, 1.05),
}
"""GETs a shard of an indexed set, and bytes."""
WRITING = [
    "split --shards 3",
    "split --shards 3 --slice ::2",
    "merge --shards 3",
    "shuffle --shards 3",
    "shuffle --shards 3 --strategy spill",
    "sort --by key --shards 3",
    "sort --by cls --shards 3",
]


@pytest.mark.parametrize("name", ["plain", "indexed", "manifest", "gz"])
@pytest.mark.parametrize("command", READING)
def test_reading(command: str, name: str, store: Store, run: Command, tmp_path: Path) -> None:
    words = command.split()
    if words[0] == "cat":
        words += ["-o", f"{tmp_path}/far.tar"]
        assert run("cat", *store.near, *words[1:-1], f"{tmp_path}/near.tar").code == 0
    found = taken(store, name, words, run)
    gets, ratio = READING[command]
    if name == "plain":
        gets, ratio = (1 if command == "cat" else 2), 1.02
    if name == "gz" and command != "cat":
        # The end is looked at too, for a table of blocks: 64 KiB of each of these small shards.
        gets, ratio = 3, 1.2
    # The checksum that a HEAD request returns proves an index, instead of a read of the shard.
    has_heads = words[0] == "ls" and name in ("indexed", "manifest")
    assert found.gets + found.heads <= gets * SHARDS + (name != "plain"), found
    assert found.ratio <= ratio, (found, store.server.seen)
    assert found.heads <= has_heads * SHARDS
    # Verify looks for what other programs keep beside the shards.
    lists = int(words[0] == "verify") if name == "manifest" else 3
    assert found.lists <= lists, store.server.seen
    if words[0] == "cat":
        assert (tmp_path / "far.tar").read_bytes() == (tmp_path / "near.tar").read_bytes()


@pytest.mark.parametrize("name", ["plain", "indexed", "manifest", "gz"])
@pytest.mark.parametrize("command", WRITING)
def test_writing(command: str, name: str, store: Store, run: Command, tmp_path: Path) -> None:
    """One request a shard, and every byte once, whatever the order."""
    words = command.split()
    found = taken(store, name, [*words, "-j1", "-o", f"{tmp_path}/far-%d.tar"], run)
    assert found.gets <= SHARDS + (name != "plain"), store.server.seen
    assert found.ratio <= 1.02
    assert found.heads == 0
    assert found.lists <= (0 if name == "manifest" else 3)
    assert run(words[0], *store.near, *words[1:], "-j1", "-o", f"{tmp_path}/near-%d.tar").code == 0
    made = sorted(tmp_path.glob("far-?.tar"))
    assert [path.read_bytes() for path in made] == [
        path.read_bytes() for path in sorted(tmp_path.glob("near-?.tar"))
    ]


BY_INDEX = [
    "ls", "ls --json", "ls --summary", "split --max-count 50 -n", "shuffle --seed 1 -n", "merge --shards 2 -n",
]  # fmt: skip
"""What no payload is wanted for."""


@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
@pytest.mark.parametrize("command", BY_INDEX)
@pytest.mark.parametrize("how", ["folder", "glob", "manifest"])
def test_a_set_that_wdscli_wrote(
    command: str,
    how: str,
    backend: str,
    store: Store,
    run: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request a shard, for its index, where a listing tells which version of the shard there is; one more, for the
    shard's first bytes, where nothing was listed."""
    if backend == "obstore":
        pytest.importorskip("obstore")
    place = "s3://requests/written/"
    if "written" not in store.sets:
        assert run("split", *store.near, "-o", f"{place}w-%d.tar", "--shards", str(SHARDS), "-j1").code == 0
        store.sets["written"] = place, store.sets["plain"][1]
    monkeypatch.setenv("WDSCLI_STORE", backend)
    named = {"folder": place, "glob": place + "w-*.tar", "manifest": place + "w-manifest.json"}[how]
    store.sets[f"by {how}"] = named, store.sets["written"][1]
    words = command.split()
    words += ["-j1", "-o", f"{tmp_path}/far-%d.tar"] if words[0] != "ls" else []
    found = taken(store, f"by {how}", words, run)
    assert found.gets <= SHARDS * (1 if how != "manifest" else 2) + 1, store.server.seen
    assert found.heads == 0
    assert found.lists <= (0 if how == "manifest" else 3), store.server.seen


def test_index_notes_the_versions_of_a_set_that_was_copied_there(store: Store, run: Command) -> None:
    """The indexes keep their bytes; who may not write goes without."""
    server, place = store.server, "s3://requests/copied/"
    for key in [one for one in server.names("requests") if one.startswith("indexed/")]:
        server.client.put_object(
            Bucket="requests", Key=key.replace("indexed", "copied"), Body=server.get("requests", key)
        )
    store.sets["copied"] = place, store.sets["plain"][1]
    before = taken(store, "copied", ["ls"], run)
    index = server.get("requests", "copied/.wds/in-0.tar.wdx")
    assert run("index", place, "--check", "-j1").code == 0
    assert server.client.head_object(Bucket="requests", Key="copied/.wds/in-0.tar.wdx")["Metadata"] == {}
    ran = run("index", place, "-j1")
    assert (ran.code, "4 kept" in ran.err or "5 kept" in ran.err) == (0, True), ran.err
    after = taken(store, "copied", ["ls"], run)
    # The store keeps a checksum of each shard, and a HEAD request returns it.
    assert (before.gets, before.heads) == (SHARDS + 1, SHARDS)
    assert (after.gets, after.heads) == (SHARDS + 1, 0)
    assert server.get("requests", "copied/.wds/in-0.tar.wdx") == index


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", ["index --no-index", "verify --checksums", "shuffle --shards 3"])
def test_shards_of_many_requests(
    command: str, store: Store, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers, payloads and checksums come from one pass, also where a shard is more than is held of it."""
    monkeypatch.setattr("wdscli.storage.scatter.REQUEST_BYTES", 1 << 16)
    monkeypatch.setattr("wdscli.storage.scatter.READ_AHEAD_BYTES", 1 << 18)
    name = "manifest" if command.startswith("verify") else "plain"
    words = [*command.split(), "-j1"]
    out = {"index": "m.json", "shuffle": "o-%d.tar"}.get(words[0])
    found = taken(store, name, words + (["-o", f"{tmp_path}/{out}"] if out else []), run)
    assert found.ratio <= 1.1, found
    if words[0] == "index":
        assert run("index", *store.near, "--no-index", "-j1", "-o", tmp_path / "near.json").code == 0
        checksums = re.findall(r"xxh3_128:\w+", (tmp_path / "near.json").read_text())
        assert len(checksums) == SHARDS + 1
        assert re.findall(r"xxh3_128:\w+", (tmp_path / "m.json").read_text()) == checksums


def test_cat_asks_for_no_byte_again_at_the_end_of_a_shard(
    store: Store, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a shard that is more than is held of it."""
    asked: list[tuple[str, int]] = []
    original = RemoteSource._fetch

    def noted(source: RemoteSource, begin: int, end: int) -> Any:
        asked.append((source.name, begin))
        return original(source, begin, end)

    monkeypatch.setattr(RemoteSource, "_fetch", noted)
    monkeypatch.setenv("WDSCLI_READ_AHEAD", "256KiB")
    taken(store, "plain", ["cat", "-o", f"{tmp_path}/far.tar"], run)
    assert len(asked) > 8 * SHARDS
    assert len(asked) == len(set(asked))


def test_a_checksum_that_is_wrong_is_noticed_in_the_one_pass(store: Store, run: Command) -> None:
    """A payload that was changed in place, of a shard whose headers say what they should."""
    server = store.server
    listing = server.client.list_objects_v2(Bucket="requests", Prefix="indexed/")["Contents"]
    for key in (one["Key"] for one in listing):
        server.client.put_object(
            Bucket="requests", Key=key.replace("indexed", "bad"), Body=server.get("requests", key)
        )
    data = bytearray(server.get("requests", "bad/in-2.tar"))
    data[513] ^= 1
    server.client.put_object(Bucket="requests", Key="bad/in-2.tar", Body=bytes(data))
    ran = run("verify", "s3://requests/bad/", "--checksums", "-j1")
    assert ran.code == 1
    assert "checksum-mismatch" in ran.out.decode()
    assert "in-2.tar" in ran.out.decode()
    assert "in-1.tar" not in ran.out.decode()


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("table", ["tsv", "parquet"])
@pytest.mark.parametrize("name", ["plain", "gz", "indexed"])
def test_a_table_takes_one_pass(
    table: str, name: str, store: Store, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if table == "parquet":
        pytest.importorskip("pyarrow")
    fields = ["--fields", "cls"] if table == "tsv" else []
    found = taken(store, name, ["cat", "--to", f"{table}:{tmp_path}/far", *fields], run)
    assert found.ratio <= (1.02 if name == "plain" else 1.2), store.server.seen
    assert run("cat", *store.near, "--to", f"{table}:{tmp_path}/near", *fields).code == 0
    assert (tmp_path / "far").read_bytes() == (tmp_path / "near").read_bytes()
    # Without the room, headers come first.
    monkeypatch.setattr("wdscli.look.table.disk_usage", lambda _: SimpleNamespace(free=1000))
    again = taken(store, name, ["cat", "--to", f"{table}:{tmp_path}/again", *fields], run)
    assert (again.ratio > 1.5) == (name != "indexed")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "near").read_bytes()


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["plain", "indexed", "manifest", "gz"])
def test_a_report_takes_one_pass(
    name: str, store: Store, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is listed, looked into and verified is read once; without the room for that, each time."""
    for package in ("jinja2", "pygal", "PIL"):
        pytest.importorskip(package)
    found = taken(store, name, ["report", "-o", f"{tmp_path}/page.html", "-j1"], run)
    assert found.ratio <= (1.03 if name != "gz" else 1.2), store.server.seen
    assert found.gets <= (1 if name in ("plain", "gz") else 3) * SHARDS + 2, store.server.seen
    assert found.heads == 0
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    again = taken(store, name, ["report", "-o", f"{tmp_path}/again.html", "-j1"], run)
    assert again.ratio > 2.5
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "again.html").read_bytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["plain", "indexed", "manifest", "gz"])
def test_a_diff_takes_one_pass(name: str, store: Store, run: Command) -> None:
    for words, ratio in (([], 1.02), (["--keys-only"], 1.2 if name == "gz" else 1.02)):
        found = taken(store, name, ["diff", store.near[0].replace("in-0", "in-{0..3}"), *words, "-j1"], run)
        assert found.ratio <= ratio, store.server.seen
        assert found.gets + found.heads <= (4 if words else 1) * SHARDS + 1
        assert found.heads <= (SHARDS if words and name in ("indexed", "manifest") else 0)


@pytest.mark.parametrize("name", ["plain", "indexed", "manifest"])
@pytest.mark.parametrize("words", ["verify", "verify --for webdataset", "repair"])
def test_a_small_shard_is_verified_by_one_request(
    words: str, name: str, store: Store, run: Command, tmp_path: Path
) -> None:
    """And one for its index; a repair reads it no more often."""
    repairs = ["-o", f"{tmp_path}/far-%d.tar"] if words == "repair" else []
    found = taken(store, name, [*words.split(), "-j1", *repairs], run)
    manifests = 0 if name == "plain" else 3 if repairs else 1
    assert found.gets <= (1 if name == "plain" else 2) * SHARDS + manifests, store.server.seen
    assert (found.ratio <= 1.03, found.heads) == (True, 0)
    if repairs:
        assert run(*words.split(), *store.near, "-j1", "-o", f"{tmp_path}/near-%d.tar").code == 0
        made = sorted(tmp_path.glob("far-?.tar"))
        assert len(made) == SHARDS
        assert [path.read_bytes() for path in made] == [
            path.read_bytes() for path in sorted(tmp_path.glob("near-?.tar"))
        ]


@pytest.mark.parametrize("words", ["ls", "ls --summary", "cat --fields cls -o", "cat -o"])
def test_a_small_shard_without_an_index_is_read_by_one_request(
    words: str, store: Store, run: Command, tmp_path: Path
) -> None:
    output = [f"{tmp_path}/far.tar"] if words.startswith("cat") else []
    found = taken(store, "plain", [*words.split(), *output], run)
    assert (found.gets, found.heads) == (SHARDS, 0), store.server.seen


class Stop(Exception):
    """What ends a run in the middle."""


BY_OBSTORE = ["ls", "cat", "cat --fields cls", "shuffle --shards 3"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", BY_OBSTORE)
def test_by_obstore(
    command: str, store: Store, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many requests as by s3fs, which is not needed."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("WDSCLI_STORE", "obstore")
    monkeypatch.setattr("wdscli.storage.s3_obstore._by_s3fs", None)
    words = command.split()
    if words[0] in ("cat", "shuffle"):
        words += ["-o", f"{tmp_path}/far-%d.tar" if words[0] == "shuffle" else f"{tmp_path}/far.tar"]
    gets, ratio = READING.get(command, (1, 1.02))
    for name in ("indexed", "manifest"):
        found = taken(store, name, [*words, "--force"] if "-o" in words else words, run)
        assert found.gets <= gets * SHARDS + 1, store.server.seen
        assert found.ratio <= ratio, store.server.seen
        assert found.heads == 0
        # Verify looks for what other programs keep beside the shards.
    lists = int(words[0] == "verify") if name == "manifest" else 3
    assert found.lists <= lists, store.server.seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("shuffle", ["none", "shards", "window", "blocks", "full"])
def test_the_loader(shuffle: str, store: Store) -> None:
    """Some requests to open a shard, and about one for its samples: each byte is received once, whatever the order."""
    address, size = store.sets["indexed"]
    forget_listings()
    store.server.seen.begin_anew()
    data = wds_loader.WebDataset(address, shuffle=shuffle, prefetch="1MB")
    assert len(list(data)) == 120 * SHARDS
    gets = [one for one in store.server.seen.settled() if one.verb == "GET"]
    assert len(gets) <= 10 * SHARDS, gets
    assert sum(one.sent for one in gets) <= 1.4 * size


def written_set(store: Store, run: Command, place: str) -> str:
    """The address of a set that wdscli wrote to the server: S3 keeps the versions of its shards by their indexes."""
    address = f"s3://requests/{place}/"
    assert run("split", *store.near, "-o", f"{address}w-%d.tar", "--shards", str(SHARDS), "-j1").code == 0
    return address


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["", "w-manifest.json", "w-{0..3}.tar"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_the_loader_opens_a_shard_by_its_index_alone(
    name: str, has_manifest: bool, store: Store, run: Command
) -> None:
    """One request for it where the set was written there, and what the samples take; none in the epochs that follow."""
    if not has_manifest and name == "w-manifest.json":
        pytest.skip("there is none")
    address = written_set(store, run, f"loader-{len(name)}-{has_manifest}")
    if not has_manifest:
        store.server.client.delete_object(Bucket="requests", Key=f"{address[14:]}w-manifest.json")
    forget_listings()
    store.server.seen.begin_anew()
    data = wds_loader.WebDataset(address + name, shuffle="none")
    for epoch in range(2):
        data.set_epoch(epoch)
        assert len(list(data)) == 120 * SHARDS
        gets = [one for one in store.server.seen.settled() if one.verb == "GET"]
        indexes = [one for one in gets if one.key.endswith(".wdx")]
        shards = [one for one in gets if one.key.endswith(".tar")]
        assert (len(indexes), "HEAD" in {one.verb for one in store.server.seen}) == (
            SHARDS * (not epoch),
            False,
        )
        assert len(shards) <= 2 * SHARDS, shards
        assert sum(one.sent for one in shards) <= 1.02 * store.sets["plain"][1]
        store.server.seen.begin_anew()


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("when", ["before", "opened", "between"])
@pytest.mark.parametrize("manifest", ["kept", "gone"])
def test_the_loader_believes_no_index_of_another_version(
    when: str, manifest: str, store: Store, run: Command
) -> None:
    """Whenever a shard is replaced, what comes is what it has now, or an error where that is another set."""
    server, address = store.server, written_set(store, run, f"loader-{when}-{manifest}")
    place = address[14:]
    if manifest == "gone":
        server.client.delete_object(Bucket="requests", Key=f"{place}w-manifest.json")
    right = list(wds_loader.WebDataset(address, shuffle="none"))

    def replace(body: bytes) -> None:
        server.client.put_object(Bucket="requests", Key=f"{place}w-1.tar", Body=body)

    body = bytearray(server.get("requests", f"{place}w-1.tar"))
    body[1536] ^= 1
    data = wds_loader.WebDataset(address, shuffle="none") if when != "before" else None
    if data is not None and when == "between":
        assert [one["__key__"] for one in data] == [one["__key__"] for one in right]
    replace(bytes(body))
    forget_listings()
    data = data or wds_loader.WebDataset(address, shuffle="none")
    found = list(data)
    assert [one["__key__"] for one in found] == [one["__key__"] for one in right]
    different = [row for row, (one, other) in enumerate(zip(found, right)) if one != other]
    assert different == [120]
    # Another set's shard, of as many samples.
    replace(Path(store.near[0]).read_bytes())
    forget_listings()
    if manifest == "kept":
        with pytest.raises(DataError):
            list(wds_loader.WebDataset(address, shuffle="none"))
    else:
        found = list(wds_loader.WebDataset(address, shuffle="none"))
        assert [one["__key__"] for one in found[120:240]] == [one["__key__"] for one in right[:120]]


def test_the_loader_reads_some_shards_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from wdscli.loader.read import fetch

    address, _ = store.sets["indexed"]
    right = list(wds_loader.WebDataset(address, shuffle="full"))
    monkeypatch.setattr(fetch, "SHARDS_TOGETHER", 3)
    monkeypatch.setattr(fetch, "OPEN_SOURCES", 2)
    assert list(wds_loader.WebDataset(address, shuffle="full")) == right


RESUMED = ["split --shards 4", "shuffle --shards 4", "sort --by cls --shards 4"]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["plain", "indexed"])
@pytest.mark.parametrize("command", RESUMED)
def test_a_resumed_run_takes_no_more_than_a_fresh_one(
    command: str, name: str, store: Store, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended half way, from store to store; then resumed once more, when the set is complete."""
    place = f"s3://requests/{command.split()[0]}-{name}/"
    words = [*command.split(), "-j1", "-o"]
    fresh = taken(store, name, [*words, place + "fresh-%d.tar"], run)
    fresh_requests = len(store.server.seen.settled())
    original, done = maker.gather, []

    def some(task: Any) -> Any:
        if len(done) == 2:
            raise Stop
        done.append(task)
        return original(task)

    with monkeypatch.context() as patch:
        patch.setattr(maker, "gather", some)
        assert run(words[0], store.sets[name][0], *words[1:], place + "o-%d.tar").code == 5
    resumed = taken(store, name, [*words, place + "o-%d.tar", "--resume"], run)
    assert len(store.server.seen) <= fresh_requests
    assert resumed.ratio <= fresh.ratio + 0.03, store.server.seen
    whole = [store.server.get("requests", f"{place[14:]}fresh-{at}.tar") for at in range(4)]
    assert [store.server.get("requests", f"{place[14:]}o-{at}.tar") for at in range(4)] == whole
    names = store.server.names("requests")
    assert not [one for one in names if one.endswith(".done")]
    finished = taken(store, name, [*words, place + "o-%d.tar", "--resume"], run)
    store.table.append(f"{' ' * 9} (finished)")
    # It surveys the inputs again, but copies and writes nothing.
    assert not {"PUT", "POST"} & {one.verb for one in store.server.seen.settled()}
    assert finished.gets <= 6 * SHARDS
    is_read = name == "plain" or words[0] == "sort"
    assert finished.ratio < (1.03 if is_read else 0.15)
    if words[0] == "split":
        assert resumed.ratio < 0.7


@pytest.mark.exhaustive
def test_a_kept_plan_is_of_inputs_and_options_that_were_not_changed(
    store: Store, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, original = store.server, maker.gather
    for key in [one for one in server.names("requests") if one.startswith("plain/")]:
        server.client.put_object(
            Bucket="requests", Key=key.replace("plain", "changes"), Body=server.get("requests", key)
        )
    words = ["s3://requests/changes/", "-j1", "--shards", "3", "-o", "s3://requests/changed/o-%d.tar"]

    def never(task: Any) -> Any:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(maker, "gather", never)
        assert run("shuffle", *words).code == 5
    kept = {one for one in server.names("requests") if one.startswith("changed/") and "done" in one}
    assert len(kept) == 2
    planned = []
    monkeypatch.setattr(
        "wdscli.run.execute.make_plan", lambda *args, **more: planned.append(1) or make_plan(*args, **more)
    )
    monkeypatch.setattr(maker, "gather", never)
    assert run("shuffle", *words, "--resume").code == 5
    assert not planned
    assert run("shuffle", *words, "--resume", "--seed", "1").code == 5
    assert len(planned) == 1
    assert run("split", *words, "--resume").code == 5
    assert len(planned) == 2
    data = bytearray(server.get("requests", "changes/in-1.tar"))
    data[520] ^= 1
    server.client.put_object(Bucket="requests", Key="changes/in-1.tar", Body=bytes(data))
    monkeypatch.setattr(maker, "gather", original)
    assert run("split", *words, "--resume").code == 0
    assert len(planned) == 3
    assert kept.isdisjoint(server.names("requests"))
