"""Sets that were made here and uploaded by another program: the store's checksums prove what the indexes say.

Every row of the table counts the requests and bytes of one question, by both S3 clients. Run it with ``-s`` to see the
table. A payload that was replaced on the way, by one of the same length, is never believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from shard_cases import wds
from storage_servers import S3, forget_listings, forget_s3

from wdscli.shards import ShardWriter
from wdscli.shards.proof import Evidence, read_index
from wdscli.shards.reading import values_of
from wdscli.storage import open_source
from wdscli.tar import crc
from wdscli.units import human_size

SHARDS, SAMPLES = 8, 2000
pytestmark = pytest.mark.skipif(crc.CRC is None, reason="this processor computes no CRCs quickly")


class Uploaded(NamedTuple):
    """A set on this machine and its copy in a bucket."""

    server: S3
    folder: Path
    address: str
    size_bytes: int


def write_set(
    folder: Path, samples: int = SAMPLES, shards: int = SHARDS, payload: int = 10_000, **settings: Any
) -> None:
    draw = random.Random(samples)
    settings = {"max_count": samples // shards, "values": "json.tokens", **settings}
    with ShardWriter(str(folder / "a-%06d.tar"), **settings) as writer:
        for number in range(samples):
            text = json.dumps({"tokens": (number * 37) % 5000}).encode()
            writer.write(f"k{number:06d}", {"jpg": draw.randbytes(payload), "json": text})


def upload(server: S3, folder: Path, bucket: str, place: str) -> str:
    """Upload a folder as users do: each file by boto3's ``upload_file``."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        server.client.upload_file(str(path), bucket, f"{place}/{path.relative_to(folder)}")
    return f"s3://{bucket}/{place}/"


@pytest.fixture(scope="module")
def uploaded(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Uploaded:
    folder = tmp_path_factory.mktemp("made") / "set"
    write_set(folder)
    address = upload(s3, folder, s3.bucket("travelled"), "set")
    return Uploaded(s3, folder, address, sum(path.stat().st_size for path in folder.glob("*.tar")))


@pytest.fixture(params=["fsspec", "obstore"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both S3 clients."""
    monkeypatch.setenv("WDSCLI_STORE", request.param)
    forget_s3()
    yield request.param
    forget_s3()


class Taken(NamedTuple):
    """What one question took of the store."""

    requests: int
    shard_gets: int
    heads: int
    ratio: float


def taken(of: Uploaded, title: str) -> Taken:
    verbs = Counter(request.verb for request in of.server.seen.settled())
    shard_gets = sum(request.verb == "GET" and request.key.endswith(".tar") for request in of.server.seen)
    received = sum(request.sent for request in of.server.seen if request.verb == "GET")
    counts = Taken(verbs.total(), shard_gets, verbs["HEAD"], received / of.size_bytes)
    print(f"{title:45} {dict(verbs)} shards {shard_gets} {counts.ratio:.3f}")
    return counts


def begin(of: Uploaded) -> None:
    forget_listings()
    of.server.seen.begin_anew()


QUESTIONS = {
    "ls": "ls {}",
    "where": "ls {} --where 'json.tokens > 3000' --summary",
    "count": "ls {} --count json.tokens",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_read_indexes_and_one_head_a_shard(uploaded: Uploaded, client: str, question: str) -> None:
    import shlex

    words = shlex.split(QUESTIONS[question])
    here = wds(*(word.format(uploaded.folder) for word in words))
    begin(uploaded)
    there = wds(*(word.format(uploaded.address) for word in words))
    assert (there.code, there.err) == (0, here.err)
    assert there.out.replace(uploaded.address.encode(), b"") == here.out.replace(
        f"{uploaded.folder}/".encode(), b""
    )
    counts = taken(uploaded, f"{client} {question}")
    assert counts.requests <= 2 * SHARDS + 3
    assert counts.shard_gets == 0
    assert counts.ratio <= 0.01


@pytest.mark.exhaustive
def test_a_payload_that_was_replaced_on_the_way_is_never_believed(
    uploaded: Uploaded, client: str, tmp_path: Path
) -> None:
    """By one of the same length, with the same headers: all but the bytes agrees."""
    address, shard, old, new = replaced_payload(uploaded, tmp_path, f"swapped-{client}")
    begin(uploaded)
    assert wds("ls", address, "--count", "json.tokens").out.count(old) == 0
    ran = wds("ls", address, "--where", f"json.tokens == {new.decode()}")
    assert ran.out.count(b"\n") == 1, ran.err
    assert "another checksum" in ran.err
    ran = wds("index", "--adopt", address)
    assert (ran.code, "checksum differs" in ran.err, shard in ran.err) == (3, True, True)


def replaced_payload(uploaded: Uploaded, folder: Path, place: str) -> tuple[str, str, bytes, bytes]:
    """Upload the set with another number in one sample. Return its address, the shard, and both numbers."""
    copy = folder / "set"
    shutil.copytree(uploaded.folder, copy)
    shard = copy / "a-000003.tar"
    data, new = shard.read_bytes(), b"9753"
    old = next(b"%d" % number for number in range(1000, 5000) if b'{"tokens": %d}' % number in data)
    shard.write_bytes(data.replace(b'{"tokens": %s}' % old, b'{"tokens": %s}' % new))
    return upload(uploaded.server, copy, "travelled", place), shard.name, old, new


@pytest.mark.exhaustive
def test_an_index_without_checksums_is_adopted(
    uploaded: Uploaded, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(crc, "CRC", None)
        write_set(tmp_path / "set", 80, 4)
    small = uploaded._replace(address=upload(uploaded.server, tmp_path / "set", "travelled", f"old-{client}"))
    shards = [f"{small.address}a-{number:06d}.tar" for number in range(4)]
    assert not read_index(shards[0]).index.checksums
    # Reads for want of a proof are said once, with their bytes and the command that ends them.
    size = human_size(sum(path.stat().st_size for path in (tmp_path / "set").glob("*.tar")))
    line = f"so {size} are read: `wds index --adopt {small.address}` proves it once"
    forget_listings()
    ran = wds("ls", small.address, "--count", "json.tokens")
    assert (ran.code, ran.err.count(line)) == (0, 1), ran.err
    warnings: list[str] = []
    values_of(shards, "json.tokens", warn=warnings.append)
    assert [line in warning for warning in warnings] == [True]
    begin(small)
    ran = wds("index", "--adopt", small.address)
    assert (ran.code, "4 files made" in ran.err) == (0, True), ran.err
    taken(small, f"{client} adopt")
    begin(small)
    assert wds("ls", small.address, "--where", "json.tokens > 100").code == 0
    assert taken(small, f"{client} where, adopted")[:3] == (6, 0, 0)
    assert "--adopt" not in wds("ls", small.address, "--count", "json.tokens").err
    values_of(shards, "json.tokens", warn=pytest.fail)


@pytest.mark.exhaustive(sample=False)
def test_trust_in_sizes_is_noted_in_the_manifest(
    uploaded: Uploaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = replaced_payload(uploaded, tmp_path, "trusted")[0]
    ran = wds("index", "--adopt", "--trust-sizes", address)
    assert (ran.code, "another checksum" in ran.err) == (3, True)  # no matter of trust
    with monkeypatch.context() as patched:
        patched.setattr(crc, "CRC", None)
        write_set(tmp_path / "old", 80, 4)
    old = uploaded._replace(address=upload(uploaded.server, tmp_path / "old", "travelled", "trusted-old"))
    begin(old)
    assert wds("index", "--adopt", "--trust-sizes", old.address).code == 0
    assert taken(old, "trust sizes").ratio < 0.02

    def made() -> dict[str, Any]:
        document = json.loads(uploaded.server.get("travelled", "trusted-old/a-manifest.json"))
        return dict(document["wdscli"]["made"])

    assert made()["believed"] == "sizes"
    begin(old)
    assert wds("ls", old.address, "--where", "json.tokens > 100").code == 0
    assert taken(old, "where, trusted").requests == 4 + 2
    assert wds("index", "--adopt", old.address).code == 0
    assert "believed" not in made()


@pytest.mark.exhaustive(sample=False)
def test_parts_of_a_large_upload_are_proven(uploaded: Uploaded, client: str, tmp_path: Path) -> None:
    """boto3 uploads shards of 8 MiB and more in parts, and the store keeps a checksum of the parts' checksums."""
    write_set(tmp_path / "set", 60, 2, payload=600_000)
    large = uploaded._replace(
        address=upload(uploaded.server, tmp_path / "set", "travelled", f"large-{client}")
    )
    begin(large)
    assert wds("ls", large.address, "--where", "json.tokens > 100").code == 0
    assert taken(large, f"{client} where, parts").shard_gets == 0


def by_fsspec(server: S3, folder: Path, place: str) -> None:
    import fsspec

    options = {"endpoint_url": server.endpoint, "key": "k", "secret": "s"}
    fsspec.filesystem("s3", **options).put(f"{folder}/", f"{place}/", recursive=True)


def by_program(*words: str) -> Any:
    def copy(server: S3, folder: Path, place: str) -> None:
        name = shutil.which(words[0], path=os.path.dirname(sys.executable)) or shutil.which(words[0])
        if name is None:
            pytest.skip(f"{words[0]} is not installed")
        own = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        for setting in ("TYPE=s3", "ENV_AUTH=true", f"ENDPOINT={server.endpoint}", "PROVIDER=Other"):
            own["RCLONE_CONFIG_STORE_" + setting.partition("=")[0]] = setting.partition("=")[2]
        made = [word.format(endpoint=server.endpoint, folder=folder, place=place) for word in words[1:]]
        subprocess.run([name, *made], check=True, env={**os.environ, **own}, capture_output=True)

    return copy


UPLOADERS = {
    "fsspec": by_fsspec,
    "s5cmd": by_program("s5cmd", "--endpoint-url", "{endpoint}", "cp", "{folder}/", "s3://{place}/"),
    "rclone": by_program("rclone", "copy", "{folder}", "store:{place}"),
}


@pytest.mark.parametrize("program", UPLOADERS)
def test_an_md5_proves_what_any_program_uploads(
    s3: S3, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3's ETag of an object in one part is its MD5, which a listing has."""
    bucket = s3.bucket(f"by-{program}")
    for algorithm in ("md5", "xxh3_128"):
        folder = tmp_path / algorithm
        write_set(folder, 200, 4, checksum=algorithm)
        UPLOADERS[program](s3, folder, f"{bucket}/{algorithm}")
        address, size_bytes = f"s3://{bucket}/{algorithm}/", sum(map(os.path.getsize, folder.glob("*.tar")))
        copied = Uploaded(s3, folder, address, size_bytes)
        begin(copied)
        ran = wds("ls", address, "--where", "json.tokens > 4000")
        assert (ran.code, ran.out.count(b"\n")) == (0, sum(n * 37 % 5000 > 4000 for n in range(200))), ran.err
        counts = taken(copied, f"{program} where, {algorithm}")
        assert (counts.shard_gets == 0) == (algorithm == "md5" or "--adopt" not in ran.err), ran.err
        if algorithm == "md5":
            assert (counts.heads, counts.requests <= SHARDS + 3) == (0, True)


def test_an_index_gets_its_md5_later(tmp_path: Path) -> None:
    write_set(tmp_path / "set", 20, 2)
    shard = tmp_path / "set" / "a-000001.tar"
    for said in ("3 files made, 0 kept", "0 files made, 3 kept"):
        ran = wds("index", "--hash", "md5", tmp_path / "set")
        assert (ran.code, said in ran.err) == (0, True), ran.err
        index = read_index(str(shard)).index
        assert index is not None
        assert index.checksums["md5"] == hashlib.md5(shard.read_bytes()).hexdigest()
        assert index.numbers


def test_a_local_copy_is_adopted(tmp_path: Path) -> None:
    """``cp -r`` may write a shard after its index."""

    write_set(tmp_path / "set", 80, 4)
    shard = tmp_path / "set" / "a-000001.tar"
    os.utime(shard)
    assert Evidence.of_source(str(shard), open_source(str(shard))).is_newer
    assert wds("index", "--adopt", tmp_path / "set").code == 0
    assert Evidence.of_source(str(shard), open_source(str(shard))).is_newer is False
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    ran = wds("index", "--adopt", tmp_path / "set")
    assert (ran.code, "a-000001.tar" in ran.err) == (3, True)


@pytest.mark.exhaustive(sample=False)
def test_a_view_of_a_copied_base_is_believed(uploaded: Uploaded, client: str, tmp_path: Path) -> None:
    """A base that was uploaded has another time and another ETag than the base of which the view was made."""
    shutil.copytree(uploaded.folder, tmp_path / "set")
    assert wds("shuffle", tmp_path / "set", "-o", tmp_path / "view.json", "--seed", "1", "-q").code == 0
    base = f"viewed-{client}"
    upload(uploaded.server, tmp_path, "travelled", base)
    here = wds("ls", tmp_path / "view.json", "--where", "json.tokens > 4000")
    begin(uploaded)
    there = wds("ls", f"s3://travelled/{base}/view.json", "--where", "json.tokens > 4000")
    assert (there.code, there.out.count(b"\n")) == (0, here.out.count(b"\n")), there.err
    counts = taken(uploaded, f"{client} view")
    assert counts.shard_gets == 0
    assert counts.heads <= SHARDS
    assert counts.requests <= 2 * SHARDS + 6


def loaded(address: str, **options: Any) -> int:
    """The number of samples that a loader gives."""
    from wdscli.loader import WebDataset

    with WebDataset(address, shuffle="none", **options) as data:
        return sum(1 for _ in data)


def test_a_loader_with_stored_values_reads_its_samples_and_no_more(uploaded: Uploaded, client: str) -> None:
    wanted = sum((number * 37) % 5000 > 4900 for number in range(SAMPLES))
    begin(uploaded)
    assert loaded(uploaded.address, where="json.tokens > 4900") == wanted
    counts = taken(uploaded, f"{client} loader where= ({wanted / SAMPLES:.1%})")
    assert counts.heads <= SHARDS
    # On a slow line, a gap between two samples is read if this is faster than a request.
    assert counts.ratio < 0.5


def test_the_batches_of_an_epoch_read_no_shard(uploaded: Uploaded, client: str) -> None:
    begin(uploaded)
    ran = wds("ls", "--epoch", 0, "--batch", "8", uploaded.address)
    assert ran.code == 0, ran.err
    assert taken(uploaded, f"{client} ls --epoch --batch").shard_gets == 0


@pytest.mark.exhaustive(sample=False)
def test_a_difference_of_views_reads_no_shard(uploaded: Uploaded, client: str, tmp_path: Path) -> None:
    shutil.copytree(uploaded.folder, tmp_path / "set")
    for seed in ("1", "2"):
        name = tmp_path / f"view{seed}.json"
        assert wds("shuffle", tmp_path / "set", "-o", name, "--seed", seed, "-q").code == 0
    place = upload(uploaded.server, tmp_path, "travelled", f"differ-{client}")
    begin(uploaded)
    ran = wds("diff", f"{place}view1.json", f"{place}view2.json")
    assert ran.code in (0, 1), ran.err
    assert taken(uploaded, f"{client} diff of views").shard_gets == 0


@pytest.mark.exhaustive(sample=False)
def test_packs_by_a_stored_value_read_the_set_once(uploaded: Uploaded, client: str) -> None:
    from wdscli.loader import WebDataset

    begin(uploaded)
    with WebDataset(uploaded.address, shuffle="none") as data:
        packs = sum(1 for _ in data.packed(8192, "json.tokens", collation_fn=list))
    assert packs
    assert taken(uploaded, f"{client} packs").ratio <= 1.05
