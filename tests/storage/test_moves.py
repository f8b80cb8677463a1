"""Whole shards that S3 copies itself: what comes of it has the bytes that reading and writing would give,
and no payload travels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import numbered, wds, write_shards
from storage_servers import S3, forget_listings, s3_server
from stores import STORES
from tiers import EXHAUSTIVE

from wdscli.storage import uploads

PER_SHARD, SHARDS = 10, 2
LINES = {
    "cat": "cat {0} -o {1}/{{name}}.tar",
    "cat-zip": "cat {0} -o {1}/{{name}}.tar.zst",
    "merge": "merge {0} -o {1}/out-%d.tar --max-count 10",
    "split": "split {0} -o {1}/out-%d.tar --shards 2",
    "no-index": "split {0} -o {1}/out-%d.tar --shards 2 --no-index",
    "no-checksum": "split {0} -o {1}/out-%d.tar --shards 2 --hash none",
    "jobs": "split {0} -o {1}/out-%d.tar --shards 2 -j 2",
}
READ = {
    "checksum": "split {0} -o {1}/out-%d.tar --shards 2 --hash sha256",
    "fields": "split {0} -o {1}/out-%d.tar --shards 2 --fields jpg",
    "rekey": "split {0} -o {1}/out-%d.tar --shards 2 --rekey {{n}}",
    "mtime": "cat {0} -o {1}/{{name}}.tar --mtime 5",
    "shuffle": "shuffle {0} -o {1}/out-%d.tar --shards 2",
    "other cut": "split {0} -o {1}/out-%d.tar --max-count 11",
}


class Store:
    """Shards of 9 MB, that wdscli wrote, on a server and near."""

    def __init__(self, server: S3, folder: Path) -> None:
        self.server, self.folder, self.made = server, folder, 0
        samples = [numbered(PER_SHARD, f"p{at}-", [900_000, 10]) for at in range(SHARDS)]
        self.near = write_shards(folder / "in", samples)
        self.address, self.count = self.fresh(), PER_SHARD
        ran = wds("split", *self.near, "-o", f"{self.address}/in-%d.tar", "--shards", SHARDS, "-j", 1)
        assert ran.code == 0, ran.err

    def fresh(self) -> str:
        """A bucket."""
        self.made += 1
        return "s3://" + self.server.bucket(f"moves-{self.made}")

    def objects(self, address: str) -> dict[str, bytes]:
        """All of a bucket, in which nothing is half done."""
        bucket = address[5:]
        assert self.server.pending(bucket) == []
        return {name: self.server.get(bucket, name) for name in self.server.names(bucket)}

    def run(self, line: str, source: str, output: str) -> tuple[Any, int, int]:
        """What a command says, and the bytes and whole shards that were read for it."""
        forget_listings()
        self.server.seen.begin_anew()
        ran = wds(*line.format(source, output).split(), "-v", *([] if "-j" in line else ["-j", 1]))
        shards = [one for one in self.server.seen.settled() if one.verb == "GET" and one.key.endswith(".tar")]
        return ran, sum(one.sent for one in self.server.seen if one.verb == "GET"), len(shards)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    pytest.importorskip("moto")
    with s3_server() as server:
        yield Store(server, tmp_path_factory.mktemp("moves"))


def near(line: str, store: Store, folder: Path) -> dict[str, bytes]:
    """What the same command makes of the same shards here."""
    ran = wds(*line.format(f"{store.folder}/in", folder).split(), *([] if "-j" in line else ["-j", 1]))
    assert ran.code == 0, ran.err
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_inputs(objects: dict[str, bytes]) -> dict[str, bytes]:
    """The sets here have no manifest to name a fingerprint of."""
    found = {}
    for name, data in objects.items():
        if name.endswith("manifest.json"):
            manifest = json.loads(data)
            manifest["wdscli"]["made"]["inputs"] = []
            data = json.dumps(manifest).encode()
        found[name] = data
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "part_bytes"), [*((name, 256 << 20) for name in LINES), ("cat", 5 << 20), ("split", 5 << 20)]
)
def test_the_store_copies(
    store: Store, name: str, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "COPY_BYTES", part_bytes)
    output = store.fresh()
    ran, received, shards = store.run(LINES[name], store.address, output)
    assert ran.code == 0, ran.err
    assert without_inputs(store.objects(output)) == without_inputs(near(LINES[name], store, tmp_path))
    if name == "cat-zip":
        assert shards
        return
    assert ran.err.count("copied by the store") == SHARDS, ran.err
    assert (shards, received < 20_000) == (0, True)
    # What was copied is as good as what was written.
    if name == "no-checksum":
        return
    if name != "no-index":
        again, _, shards = store.run(LINES["cat"], output + "/", store.fresh())
        assert (again.code, again.err.count("copied by the store"), shards) == (0, SHARDS, 0)
    assert wds("verify", output + "/", "--checksums", "-j", 1).code == 0


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", READ)
def test_what_would_have_other_bytes_is_read(store: Store, name: str, tmp_path: Path) -> None:
    output = store.fresh()
    ran, _, shards = store.run(READ[name], store.address, output)
    assert ran.code == 0, ran.err
    assert "copied by the store" not in ran.err
    assert shards >= SHARDS
    assert without_inputs(store.objects(output)) == without_inputs(near(READ[name], store, tmp_path))


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("change", ["", pytest.param("headers", marks=EXHAUSTIVE), "payload"])
def test_whole_shards_of_a_view_are_moved(store: Store, change: str, tmp_path: Path) -> None:
    """Only the shard that lost samples is read, as without the view. A base that was replaced is never moved."""
    source, output = store.fresh(), store.fresh()
    ran = wds("split", *store.near, "-o", f"{source}/in-%d.tar", "--shards", SHARDS, "-j", 1)
    assert ran.code == 0, ran.err
    out = tmp_path / "out.txt"
    out.write_text("p0-003\n")
    ran = wds("split", f"{source}/", "--not-keys-from", out, "-o", f"{source}/v2.json")
    assert ran.code == 0, ran.err
    if change:
        data = bytearray(store.server.get(source[5:], "in-1.tar"))
        data[512 if change == "payload" else 0] ^= 1
        if change == "headers":
            data = bytearray(Path(store.near[0]).read_bytes())
        store.server.client.put_object(Bucket=source[5:], Key="in-1.tar", Body=bytes(data))
    ran, received, _ = store.run("cat {0}/v2.json -o {1}/{{name}}.tar", source, output)
    if change == "headers":
        assert ran.code == 3, ran.err
        assert "was changed after" in ran.err
        return
    assert (ran.code, ran.err.count("moved by the store:")) == (0, not change), ran.err
    assert (
        wds("split", *store.near, "--not-keys-from", out, "-o", tmp_path / "near/{name}.tar", "-j", 1).code
        == 0
    )
    expected = {path.name: path.read_bytes() for path in (tmp_path / "near").glob("*.tar")}
    made = {name: data for name, data in store.objects(output).items() if name.endswith(".tar")}
    if change:
        assert made.pop("in-1.tar")[512] == data[512]
        return
    assert [made[f"in-{at}.tar"] for at in range(SHARDS)] == list(expected.values())
    size = len(made["in-0.tar"])
    assert size < received < 1.25 * size, (size, received)
    assert f"moved by the store: {len(made['in-1.tar'])} bytes; copied by this command: " in ran.err
    assert wds("verify", output + "/", "--checksums", "-j", 1).code == 0


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("split {0}/v2.json -o {1}/{{name}}.tar", marks=EXHAUSTIVE),
        "merge --join left {0}/ {0}/more/ -o {1}/{{name}}.tar",
    ],
)
def test_split_and_joins_move_whole_shards(store: Store, line: str, tmp_path: Path) -> None:
    """The other shard lost a sample, or gets captions."""
    source, output = store.fresh(), store.fresh()
    assert wds("split", *store.near, "-o", f"{source}/in-%d.tar", "--shards", SHARDS, "-j", 1).code == 0
    texts = [[(f"p0-{number:03d}.txt", b"text")] for number in range(PER_SHARD)]
    [captions] = write_shards(tmp_path / "more", [texts])
    assert wds("cat", captions, "-o", f"{source}/more/a.tar").code == 0
    out = tmp_path / "out.txt"
    out.write_text("p0-003\n")
    assert wds("split", f"{source}/", "--not-keys-from", out, "-o", f"{source}/v2.json").code == 0
    ran, _, _ = store.run(line, source, output)
    assert (ran.code, ran.err.count("copied by the store")) == (0, 1), ran.err
    here = ["split", *store.near, "--not-keys-from", out]
    if "join" in line:
        here = ["merge", "--join", "left", Path(store.near[0]).parent, tmp_path / "more"]
    assert wds(*here, "-o", tmp_path / "here/{name}.tar", "-j", 1).code == 0
    made = store.objects(output)
    for path in (tmp_path / "here").glob("*.tar"):
        assert made[path.name] == path.read_bytes()
    assert wds("verify", output + "/", "--checksums", "-j", 1).code == 0


class Refused(Exception):
    """An answer of a store, as botocore has it."""

    def __init__(self, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    ("name", "code", "part_bytes"),
    [
        ("cat", "AccessDenied", 256 << 20), ("cat", "NotImplemented", 5 << 20), ("cat", "InvalidRequest", 256 << 20),
        ("split", "PreconditionFailed", 256 << 20), ("split", "AccessDenied", 5 << 20),
    ],
)  # fmt: skip
def test_a_store_that_refuses_is_read(
    store: Store, name: str, code: str, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "COPY_BYTES", part_bytes)
    original, asked = uploads._S3Object.begin, []

    def begin(one: Any, method: str, **options: Any) -> Any:
        if "copy" in method:
            asked.append(method)
            raise Refused(code)
        return original(one, method, **options)

    monkeypatch.setattr(uploads._S3Object, "begin", begin)
    output = store.fresh()
    ran, _, shards = store.run(LINES[name], store.address, output)
    assert (ran.code, bool(asked), shards >= SHARDS) == (0, True, True), ran.err
    assert "copied by the store" not in ran.err
    assert without_inputs(store.objects(output)) == without_inputs(near(LINES[name], store, tmp_path))


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["cat", "split"])
def test_a_shard_that_was_replaced_is_not_copied(store: Store, name: str, tmp_path: Path) -> None:
    """Its headers say what they said; the index, and what is noted beside it, are of another version."""
    source, output = store.fresh(), store.fresh()
    client, bucket = store.server.client, source[5:]
    for key, body in store.objects(store.address).items():
        noted = client.head_object(Bucket=store.address[5:], Key=key)["Metadata"]
        client.put_object(Bucket=bucket, Key=key, Body=body, Metadata=noted)
    data = bytearray(store.server.get(bucket, "in-1.tar"))
    data[512] ^= 1
    client.put_object(Bucket=bucket, Key="in-1.tar", Body=bytes(data))
    ran, _, _ = store.run(LINES[name], source, output)
    assert ran.code == 0, ran.err
    assert store.server.get(output[5:], {"cat": "in-1.tar"}.get(name, "out-1.tar"))[512] == data[512]
    assert wds("verify", output + "/", "--checksums", "-j", 1).code == 0


SMALL = {
    "split {0}/ -o {1}/o-%d.tar --shards 2": (2, 2),
    "split {0}/in-manifest.json -o {1}/o-%d.tar --shards 2": (2, 2),
    "split {0}/in-{{0..1}}.tar -o {1}/o-%d.tar --max-count 10": (2, 2),
    "merge {0}/ {0}x/ -o {1}/o-%d.tar --max-count 10": (4, 4),
    "merge {0}/ {0}x/ -o {1}/o-%d.tar --max-count 11": (4, 0),
    "merge {0}/ -o {1}/o-%d.tar": (2, 0),
    "split {0}/ -o {1}/o-%d.tar --shards 3": (2, 0),
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("line", SMALL)
def test_small_shards_are_not_read_for_it(line: str, store: Store, tmp_path: Path) -> None:
    """They would be read by one request each, where the store could not copy them; however they are named."""
    near, output, source = tmp_path / "set", store.fresh(), f"{store.fresh()}/set"
    for more in ("", "x"):
        names = write_shards(
            tmp_path / f"of{more}", [numbered(PER_SHARD, f"p{more}{at}-", [9000, 10]) for at in range(2)]
        )
        for folder in (f"{source}{more}", f"{near}{more}"):
            assert wds("split", *names, "-o", f"{folder}/in-%d.tar", "--shards", 2, "-j", 1).code == 0
    ran, _, shards = store.run(line, source, output)
    read, moved = SMALL[line]
    assert (ran.code, ran.err.count("copied by the store"), shards) == (0, moved, 0 if moved else read), (
        ran.err
    )
    assert len([one for one in store.server.seen.settled() if one.verb == "GET"]) <= 2 * read + 4
    assert wds(*line.format(near, tmp_path / "out").split(), "-j", 1).code == 0
    expected = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tar")}
    made = store.objects(output)
    assert {name: data for name, data in made.items() if name.endswith(".tar")} == expected


@pytest.mark.exhaustive
def test_a_small_shard_that_was_replaced_is_read(store: Store, tmp_path: Path) -> None:
    """Whatever its index says, and the manifest."""
    output, source = store.fresh(), store.fresh()
    [name] = write_shards(tmp_path, [numbered(PER_SHARD, "p", [9000, 10])])
    assert wds("split", name, "-o", f"{source}/in-%d.tar", "--shards", 1).code == 0
    data = bytearray(store.server.get(source[5:], "in-0.tar"))
    data[512] ^= 1
    store.server.client.put_object(Bucket=source[5:], Key="in-0.tar", Body=bytes(data))
    for words in ("in-0.tar", "in-manifest.json", ""):
        ran, _, shards = store.run(
            "split {0} -o {1}/out-%d.tar --shards 1 --force", f"{source}/{words}", output
        )
        assert (ran.code, shards > 0) == (0, True), ran.err
        assert store.server.get(output[5:], "out-0.tar") == bytes(data)


@pytest.mark.exhaustive
def test_what_is_there_is_refused_and_replaced_when_asked(store: Store) -> None:
    output = store.fresh()
    assert store.run(LINES["split"], store.address, output)[0].code == 0
    before = store.objects(output)
    assert store.run(LINES["split"], store.address, output)[0].code == 4
    assert store.objects(output) == before
    ran, _, shards = store.run(LINES["split"] + " --force", store.address, output)
    assert (ran.code, shards) == (0, 0), ran.err
    assert store.objects(output) == before


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", [pytest.param("cat", marks=EXHAUSTIVE), "split"])
def test_an_end_in_the_middle_leaves_nothing(
    store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "COPY_BYTES", 5 << 20)
    output = store.fresh()
    original, asked = uploads._S3Object.begin, []

    def begin(one: Any, method: str, **options: Any) -> Any:
        asked.append(method)
        if asked.count("upload_part_copy") == 4:
            raise KeyboardInterrupt
        return original(one, method, **options)

    with monkeypatch.context() as patch:
        patch.setattr(uploads._S3Object, "begin", begin)
        assert store.run(LINES[name], store.address, output)[0].code == 130
    assert [one for one in store.objects(output) if one.endswith(".tar")] == [
        {"cat": "in-0.tar"}.get(name, "out-0.tar")
    ]
    if name == "split":
        ran, _, shards = store.run(LINES[name] + " --resume", store.address, output)
        assert (ran.code, shards, ran.err.count("copied by the store")) == (0, 0, 1), ran.err
        assert wds("verify", output + "/", "--checksums", "-j", 1).code == 0


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("kind", ["seaweedfs", "rclone"])
def test_servers_of_other_makes(kind: str, store: Store, tmp_path: Path) -> None:
    """Both copy. An older rclone tells another ETag than it gave to the upload, so that its shards are read."""
    (tmp_path / "server").mkdir()
    with STORES[kind](tmp_path / "server") as other:
        source, output = f"{other.url}/a", f"{other.url}/b"
        assert wds("split", *store.near, "-o", f"{source}/in-%d.tar", "--shards", SHARDS, "-j", 1).code == 0
        ran = wds(*LINES["cat"].format(source + "/", output).split(), "-v", "-j", 1)
        assert ran.code == 0, ran.err
        assert ran.err.count("copied by the store") in ([SHARDS] if kind == "seaweedfs" else [0, SHARDS])
        expected = without_inputs(near(LINES["cat"], store, tmp_path / "near"))
        assert without_inputs(other.objects("b/")) == expected
        assert other.pending() == []
