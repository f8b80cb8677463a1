"""The requests that a loader, a list and a comparison make on S3: with proven indexes, they read only wanted bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shard_cases import wds
from storage_servers import S3, forget_listings, forget_s3

import wdscli.loader as loader
from wdscli.shards import ShardWriter, view_shards

SAMPLES, SHARDS = 240, 4
Read = Callable[..., tuple[int, int, int]]
"""A function that returns the GETs of shards in a folder, their bytes, and the number of all requests."""


@pytest.fixture(params=["fsspec", "obstore"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two clients of S3."""
    if request.param == "obstore":
        pytest.importorskip("obstore")
    monkeypatch.setenv("WDSCLI_STORE", request.param)
    forget_s3()


@pytest.fixture(scope="module")
def bucket(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bucket with a set whose values are stored, a layer for it, and views."""
    name = s3.bucket("loader-requests")
    for place, payloads in (("set", {"bin": bytes(4000)}), ("layer", {"txt": bytes(1000)})):
        folder = tmp_path_factory.mktemp(place)
        with ShardWriter(f"{folder}/a-%06d.tar", max_count=SAMPLES // SHARDS) as writer:
            for number in range(SAMPLES):
                fields = {"json": b'{"tokens": %d}' % number, **payloads} if place == "set" else payloads
                writer.write(f"{number:06d}", fields)
        for path in folder.glob("*.tar"):
            s3.client.upload_file(str(path), name, f"{place}/{path.name}")
        values = ["--values", "json.tokens"] if place == "set" else []
        assert wds("index", f"s3://{name}/{place}/", *values, "-j1").code == 0
    sets = f"s3://{name}/set/", f"s3://{name}/layer/"
    assert wds("merge", *sets, "--join", "inner", "-o", f"s3://{name}/joined.json").code == 0
    for seed in "12":
        assert wds("shuffle", sets[0], "--seed", seed, "-o", f"s3://{name}/shuffled-{seed}.json").code == 0
    return name


@pytest.fixture
def read(s3: S3, bucket: str, client: None) -> Read:
    def measure(question: Callable[[], object], folder: str = "set/") -> tuple[int, int, int]:
        forget_listings()
        view_shards.forget()
        s3.seen.begin_anew()
        question()
        seen = s3.seen.settled()
        gets = [
            request.sent
            for request in seen
            if request.verb == "GET" and request.key.endswith(".tar") and request.key.startswith(folder)
        ]
        return len(gets), sum(gets), len(seen)

    return measure


def size_of(s3: S3, bucket: str) -> int:
    listed = s3.client.list_objects_v2(Bucket=bucket, Prefix="set/a-")["Contents"]
    return sum(shard["Size"] for shard in listed)


def test_where_reads_the_wanted_samples(s3: S3, bucket: str, read: Read) -> None:
    def train() -> None:
        samples = list(loader.WebDataset(f"s3://{bucket}/set/", where="json.tokens >= 230"))
        assert len(samples) == 10

    # The wanted samples are neighbours: 10 of 240 samples, in one of the shards.
    gets, received, requests = read(train)
    assert (gets, received <= 0.05 * size_of(s3, bucket)) == (1, True)
    assert requests <= 2 * SHARDS + 3


@pytest.mark.parametrize("kind", ["packed", "bucket"])
def test_values_are_read_once_and_shards_once(s3: S3, bucket: str, read: Read, kind: str) -> None:
    def train() -> None:
        data = loader.WebDataset(f"s3://{bucket}/set/", shuffle="blocks")
        if kind == "packed":
            batches = data.packed(2000, "json.tokens", collation_fn=list)
        else:
            batches = data.batched(16, bucket="json.tokens", buckets=[100, 200])
        assert sum(1 for _ in batches)

    gets, received, requests = read(train)
    assert received <= 1.05 * size_of(s3, bucket)
    assert (gets, requests <= 3 * SHARDS + 3) == (SHARDS, True)


def test_keys_read_no_shard(s3: S3, bucket: str, read: Read) -> None:
    address = f"s3://{bucket}/set/"
    words = ["--epoch", "0", "--batch", "3", "--batch-size", "8", "--shuffle", "full"]
    by_command = read(lambda: wds("ls", address, *words))
    by_loader = read(lambda: loader.WebDataset(address, shuffle="full").batched(8).keys(0, 3))
    for gets, _, requests in (by_command, by_loader):
        assert (gets, requests <= SHARDS + 2) == (0, True)
    # Without a listing, a request for the version takes the place of the shard's first bytes.
    by_manifest = read(lambda: wds("ls", f"{address}a-manifest.json", *words))
    assert (by_manifest[0], by_manifest[2] <= 2 * SHARDS + 2) == (0, True)


def test_blocks_need_one_request_for_each_small_shard(s3: S3, bucket: str, read: Read) -> None:
    gets, received, requests = read(lambda: list(loader.WebDataset(f"s3://{bucket}/set/", shuffle="blocks")))
    assert (gets, received <= 1.01 * size_of(s3, bucket)) == (SHARDS, True)
    assert requests <= 2 * SHARDS + 2


@pytest.mark.exhaustive
def test_a_view_reads_no_shard_of_an_unused_layer(bucket: str, read: Read) -> None:
    view = f"s3://{bucket}/joined.json"
    assert read(lambda: list(loader.WebDataset(view, fields=["bin"])), "layer/")[0] == 0
    assert read(lambda: wds("cat", view, "--fields", "bin", "-o", "/dev/null"), "layer/")[0] == 0
    assert read(lambda: wds("ls", view), "")[0] == 0


def test_a_comparison_of_views_reads_no_shard(bucket: str, read: Read) -> None:
    views = [f"s3://{bucket}/shuffled-{seed}.json" for seed in "12"]
    assert read(lambda: wds("diff", *views), "")[0] == 0


def test_a_replaced_payload_is_never_believed(s3: S3, bucket: str, client: None) -> None:
    """Neither by an index that names another version, nor by a listing of an earlier time."""
    name = s3.bucket(f"replaced-{id(bucket)}")
    for key in ("a-000000.tar", ".wds/a-000000.tar.wdx"):
        s3.client.put_object(Bucket=name, Key=f"set/{key}", Body=s3.get(bucket, f"set/{key}"))
    before = s3.get(bucket, "set/a-000000.tar")
    after = before.replace(b'{"tokens": 59}', b'{"tokens": 99}')
    assert after != before
    s3.client.put_object(Bucket=name, Key="set/a-000000.tar", Body=after)
    forget_listings()
    for address in (f"s3://{name}/set/", f"s3://{name}/set/a-000000.tar"):
        keys = [sample["__key__"] for sample in loader.WebDataset(address, where="json.tokens == 99")]
        assert keys == ["000059"]
