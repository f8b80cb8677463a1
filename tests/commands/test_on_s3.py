"""Every command from S3 to S3: what is there afterwards is, byte for byte, what the same command writes on this
machine, and nothing else; a writer that is ended leaves nothing that the next run does not clear away."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy
from s3fs import S3FileSystem
from shard_cases import content, numbered, tar_of, wds, write_shards
from storage_servers import S3, forget_listings, forget_s3


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By obstore where it is there, as users have it."""
    monkeypatch.delenv("WDSCLI_STORE", raising=False)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sets, one with a manifest and indexes, and files to make shards of."""
    folder = tmp_path_factory.mktemp("here")
    write_shards(folder / "one", [numbered(20, "a"), numbered(31, "b"), numbered(1, "c")])
    assert wds("index", folder / "one").code == 0
    write_shards(folder / "two", [numbered(20, "a", sizes=(5, 50))])
    for number in range(5):
        for suffix in ("cls", "txt"):
            file = folder / "files" / f"k{number % 2}" / f"s{number}.{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{number} {suffix}")
    (folder / "rows.jsonl").write_text("".join(f'{{"key": "r{n}", "text": "row {n}"}}\n' for n in range(9)))
    (folder / "scratch").mkdir()
    (folder / "train.txt").write_text("".join(f"b{n:03d}\n" for n in range(0, 31, 2)))
    return folder


@pytest.fixture(scope="module")
def bucket(s3: S3, here: Path) -> str:
    """What is in the folder, in a bucket."""
    name = s3.bucket("everything")
    for path in sorted(path for path in here.rglob("*") if path.is_file()):
        s3.client.put_object(Bucket=name, Key=str(path.relative_to(here)), Body=path.read_bytes())
    return name


def objects(s3: S3, bucket: str, prefix: str) -> dict[str, bytes]:
    listed = s3.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    names = [item["Key"] for page in listed for item in page.get("Contents", [])]
    return {name.removeprefix(prefix): s3.get(bucket, name) for name in names}


WRITING = {
    "cat": "cat {0}/one -o {1}/out.tar",
    "cat-slice": "cat {0}/one/in-{{0..1}}.tar --slice ::3 --fields cls -o {1}/out.tar",
    "cat-keys": "cat {0}/one --keys-from HERE/train.txt -o {1}/out.tar",
    "cat-sample": "cat {0}/one --sample 10 -o {1}/out.tar",
    "split-sample": "split {0}/one/in-{{0..2}}.tar --sample 40% -o {1}/out-%d.tar --max-count 9 -j 1",
    "shuffle-sample": "shuffle {0}/one/in-manifest.json --sample 17 -o {1}/out-%d.tar --max-count 9 --seed 5 -j 1",
    "sort-sample": "sort {0}/one --by md5 --sample 17 -o {1}/out-%d.tar --max-count 9 -j 1",
    "split": "split {0}/one -o {1}/out-%d.tar --max-count 20 -j 1",
    "split-parts": "split {0}/one -o {1}/{{part}}/out-%d.tar --ratio train=3,val=1 --no-index -j 1",
    "merge": "merge {0}/one {0}/two -o {1}/out-%d.tar --max-count 30 --on-duplicate skip -j 1",
    "merge-join": "merge {0}/one/in-0.tar {0}/two --join inner --on-conflict suffix -o {1}/out-%d.tar -j 1",
    "shuffle": "shuffle {0}/one -o {1}/out-%d.tar --max-count 30 --seed 3 -j 1",
    "shuffle-spill": "shuffle {0}/one -o {1}/out-%d.tar --max-count 30 --strategy spill --tmp {0}/scratch -j 1",
    "sort": "sort {0}/one/in-manifest.json --by cls:nr -o {1}/out-%d.tar -j 1",
    "create-files": "create HERE/files -o {1}/out-%d.tar -j 1",
    "create-rows": "create --from {0}/rows.jsonl --key-column key --column txt=text -o {1}/out-%d.tar -j 1",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WRITING)
def test_what_is_written(s3: S3, bucket: str, here: Path, tmp_path: Path, name: str) -> None:
    def words(source: str, output: str) -> list[str]:
        return WRITING[name].format(source, output).replace("HERE", str(here)).split()

    local = wds(*words(str(here), str(tmp_path / "out")))
    assert local.code == 0, local.err
    remote = wds(*words(f"s3://{bucket}", f"s3://{bucket}/{name}"))
    assert remote.code == 0, remote.err
    found = objects(s3, bucket, f"{name}/")
    assert found == content(tmp_path / "out")
    assert s3.pending(bucket) == []
    assert objects(s3, bucket, "scratch") == {}
    again = wds(*words(f"s3://{bucket}", f"s3://{bucket}/{name}"))
    assert again.code == 4, again.err
    assert objects(s3, bucket, f"{name}/") == found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "line",
    [
        "ls {0}/one", "ls {0}/one/*.tar --by member", "ls {0}/one/in-manifest.json --json", "ls {0}/one/ --summary",
        "ls {0}/one/in-{{0..2}}.tar", "ls {0}/one --sample 7 --by member", "ls {0}/two::{0}/one", "verify {0}/one -j 1",
        "verify {0}/one --checksums --json -j 1", "cat {0}/one -o -", "index {0}/one --check -j 1",
    ],
)  # fmt: skip
def test_what_is_shown(s3: S3, bucket: str, here: Path, line: str) -> None:
    local, remote = (wds(*line.format(place).split()) for place in (here, f"s3://{bucket}"))
    assert (remote.code, remote.out) == (0, local.out.replace(bytes(here), f"s3://{bucket}".encode())), (
        remote.err
    )


JOBS: dict[str, dict[str, Any]] = {
    "template": {"input_format": "in-{0..2}", "algorithm": {"kind": "shuffle", "seed": "7"}},
    "prefix": {"input_format": {"prefix": "in-"}, "algorithm": {"kind": "md5"}},
    "regex": {
        "input_format": {"regex": r"in-[02]\.tar$"},
        "algorithm": {"kind": "content", "extension": "cls", "content_key_type": "int"},
    },
    "objnames": {"input_format": {"objnames": ["in-1.tar", "in-0.tar"]}, "algorithm": {"kind": "none"}},
    "mapped": {
        "input_format": "in-{0..2}",
        "ekm_file": {"low-%d.tar": ["^b00"], "high-%d.tar": ["^a", "^b0[123]", "^c"]},
    },
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_dsort(s3: S3, bucket: str, here: Path, tmp_path: Path, name: str) -> None:
    """Its buckets are those of S3 by their names, and those of their folders, the same."""
    job = {"extension": ".tar", "output_shard_size": "40KiB", "output_format": "out-%d", **JOBS[name]}
    if "ekm_file" in job:
        maps = s3.bucket("dsort-maps")
        s3.client.put_object(Bucket=maps, Key="map.json", Body=json.dumps(job["ekm_file"]).encode())
        job["ekm_file"] = f"s3://{maps}/map.json"
    out = s3.bucket(f"dsorted-{name}")
    job |= {"input_bck": {"name": bucket, "provider": "aws"}, "output_bck": {"name": out, "provider": "aws"}}
    near = ["--bucket", f"{bucket}={here}/one", "--bucket", f"{out}={tmp_path}/out"]
    local = wds("run", json.dumps(job), *near, "-j", 1)
    assert local.code == 0, local.err
    remote = wds("run", json.dumps(job), "--bucket", f"{bucket}=s3://{bucket}/one", "-j", 1)
    assert remote.code == 0, remote.err
    assert objects(s3, out, "") == content(tmp_path / "out")
    assert s3.pending(out) == []
    assert wds("run", json.dumps(job), "--bucket", f"{bucket}=s3://{bucket}/one", "-j", 1).code == 4


@pytest.mark.exhaustive
def test_a_set_that_grows(s3: S3, here: Path, tmp_path: Path) -> None:
    bucket = s3.bucket("grown-by-append")
    for place in (f"s3://{bucket}/g", str(tmp_path / "g")):
        words = ["create", here / "files" / "k0", "-o", f"{place}/out-%d.tar", "-j", 1]
        assert wds(*words, "--if-changed").code == 0
        assert "nothing to do" in wds(*words, "--if-changed").err
        more = ["create", here / "files" / "k1", "-o", f"{place}/out-%d.tar", "-j", 1, "--append"]
        for _ in range(2):
            ran = wds(*more, "--resume")
            assert ran.code == 0, ran.err
        assert wds(*more).code == 3
    assert objects(s3, bucket, "g/") == content(tmp_path / "g")


@pytest.mark.exhaustive
def test_a_shuffle_of_what_has_changed(s3: S3, here: Path) -> None:
    bucket = s3.bucket("changed-inputs")
    name = "in-0.tar"
    for data in ((here / "one" / name).read_bytes(), (here / "two" / name).read_bytes()):
        s3.client.put_object(Bucket=bucket, Key=f"in/{name}", Body=data)
        forget_listings()
        words = ["shuffle", f"s3://{bucket}/in", "-o", f"s3://{bucket}/out-%d.tar", "-j", 1, "--if-changed"]
        assert "shuffled" in wds(*words).err
        assert "nothing to do" in wds(*words).err


def test_index_in_place(s3: S3, here: Path, tmp_path: Path) -> None:
    bucket = s3.bucket("index-in-place")
    s3.client.put_object(Bucket=bucket, Key="two/in-0.tar", Body=(here / "two" / "in-0.tar").read_bytes())
    write_shards(tmp_path / "two", [numbered(20, "a", sizes=(5, 50))])
    assert wds("index", tmp_path / "two", "-j", 1).code == 0
    done = wds("index", f"s3://{bucket}/two", "-j", 1)
    assert done.code == 0, done.err
    found, wanted = objects(s3, bucket, "two/"), content(tmp_path / "two")
    assert found.keys() == wanted.keys()
    assert (
        found["in-manifest.json"] == wanted["in-manifest.json"]
    )  # an index says what tells its shard's versions
    assert wds("index", f"s3://{bucket}/two", "--check", "-j", 1).code == 0


@pytest.mark.parametrize(
    "command", ["ls", "ls --summary", "cat -o {0}/own/a.tar", "shuffle -o {0}/own/b.tar -j 1"]
)
def test_a_manifest_alone_opens_a_set(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Also where nobody may list: no folder of the set is listed."""
    original, listed = S3FileSystem._call_s3, []

    async def refusing(fs: Any, method: str, *args: Any, **options: Any) -> Any:
        if method == "list_objects_v2" and options["Prefix"].startswith("one"):
            listed.append(options["Prefix"])
            raise PermissionError("Access Denied: ListBucket")
        return await original(fs, method, *args, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", refusing)
    forget_listings()
    verb, *more = command.format(f"s3://{bucket}").split()
    done = wds(verb, f"s3://{bucket}/one/in-manifest.json", *more)
    assert done.code == 0, done.err
    assert listed == []


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_writer_that_is_ended_in_mid_upload(s3: S3, tmp_path: Path, number: signal.Signals) -> None:
    bucket = s3.bucket(f"ended-{number.name.lower()}")
    noise = random.Random(5).randbytes(1_000_000)
    (tmp_path / "big.tar").write_bytes(tar_of([(f"k{n:02d}.bin", noise) for n in range(20)]))
    output = f"s3://{bucket}/d/out.tar"
    os.mkfifo(tmp_path / "more")
    more = os.open(tmp_path / "more", os.O_RDWR)  # nothing comes as long as it is open
    command = f"pipe:head -c 19000000 {tmp_path}/big.tar; exec cat {tmp_path}/more"
    process = subprocess.Popen([sys.executable, "-m", "wdscli", "cat", command, "-o", output])
    end = time.monotonic() + 60
    while not s3.pending(bucket) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(60) == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    os.close(more)
    assert s3.names(bucket) == []
    assert s3.pending(bucket) == (["d/out.tar"] if number == signal.SIGKILL else [])
    done = wds("cat", tmp_path / "big.tar", "-o", output)
    assert done.code == 0, done.err
    assert s3.pending(bucket) == []
    assert len(s3.get(bucket, "d/out.tar")) > 20_000_000


@pytest.mark.exhaustive
def test_force_takes_the_old_set_away_after_the_new_one_stands(
    s3: S3, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # obstore's own requests do not come by here.
    monkeypatch.setenv("WDSCLI_STORE", "fsspec")
    bucket = s3.bucket("forced")
    output = ("-o", f"s3://{bucket}/out-%d.tar", "-j", 1)
    assert wds("split", here / "one", *output, "--max-count", 10).code == 0
    assert len(s3.names(bucket)) == 2 * 6 + 1
    original, order = S3FileSystem._call_s3, []

    async def noted(fs: Any, method: str, *args: Any, **options: Any) -> Any:
        if method in ("put_object", "delete_object"):
            order.append((method, options["Key"]))
        return await original(fs, method, *args, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", noted)
    assert wds("split", here / "one", *output, "--max-count", 30, "--force").code == 0
    assert s3.names(bucket) == [
        ".wds/out-0.tar.wdx", ".wds/out-1.tar.wdx", "out-0.tar", "out-1.tar", "out-manifest.json",
    ]  # fmt: skip
    stands = order.index(("put_object", "out-manifest.json"))
    gone = [order.index(("delete_object", f"out-{n}.tar")) for n in range(2, 6)]
    assert min(gone) > stands


@pytest.mark.exhaustive
def test_report_from_s3_to_s3(s3: S3, here: Path, bucket: str, tmp_path: Path) -> None:
    """The page is that of the same set on this machine, but for what the set is called."""
    url = f"s3://{bucket}/one"
    there = wds("report", url, "-o", f"s3://{bucket}/pages/one.html", "-j", 1)
    assert there.code == 0, there.err
    again = wds("report", url, "-o", f"s3://{bucket}/pages/one.html")
    assert (again.code, "exists already" in again.err) == (4, True)
    assert wds("report", here / "one", "-o", tmp_path / "one.html", "-j", 1).code == 0
    page = objects(s3, bucket, "pages/")["one.html"]
    assert (
        page.replace(f"<code>{url}</code>".encode(), b"<code>one</code>")
        == (tmp_path / "one.html").read_bytes()
    )


@pytest.fixture
def far(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The way to the server, on which a request takes longer than a shard does to be made."""
    with fault_proxy(int(s3.endpoint.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        forget_s3()
        yield proxy
    forget_s3()


OVERLAPPED = {
    "create": "create {here}/files --max-count 1",
    "shuffle": "shuffle {here}/one --max-count 13",
    "in workers": "shuffle {here}/one --max-count 2 -j 2",
    "map": "map {here}/one --filter cls cat --max-count 13 -j 1",
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("line", OVERLAPPED.values(), ids=OVERLAPPED)
def test_a_shard_is_made_while_the_one_before_gets_its_name(
    s3: S3, far: FaultProxy, here: Path, tmp_path: Path, line: str
) -> None:
    words = line.format(here=here).split()
    bucket = s3.bucket(f"apart-{len(s3.client.list_buckets()['Buckets'])}")
    ran = wds(*words, "-o", tmp_path / "out/s-%02d.tar")
    assert ran.code == 0, ran.err
    far.delay_seconds = 0.12
    done = wds(*words, "-o", f"s3://{bucket}/s-%02d.tar")
    assert done.code == 0, done.err
    got = {name: s3.get(bucket, name) for name in s3.names(bucket)}
    assert got == content(tmp_path / "out")
    order = [one for one in far.lines if "s-" in one]
    first, last = f"PUT /{bucket}/.wds/s-01.tar.done ", f"PUT /{bucket}/.wds/s-00.tar.wdx "
    assert order.index(next(one for one in order if first in f"{one} ")) < order.index(
        next(one for one in order if last in f"{one} ")
    )
    # Before a shard has its name there is a receipt, and after all of them comes the manifest.
    for number in range(len([name for name in got if name.endswith(".tar")])):
        name = f"s-{number:02d}.tar"
        puts = [one.split()[1] for one in order if one.startswith("PUT ") and name in one]
        assert puts[:2] == [f"/{bucket}/.wds/{name}.done", f"/{bucket}/{name}"]
    assert [one for one in order if one.startswith("PUT ")][-1].split()[1] == f"/{bucket}/s-manifest.json"


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_name_that_is_refused_stops_the_run(
    s3: S3, far: FaultProxy, here: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it did when the next shard was begun after it: the same words, and no manifest."""
    bucket = s3.bucket(f"refused-{jobs}")
    output = f"s3://{bucket}/s-%02d.tar"
    command = ["shuffle", here / "one", "--max-count", 3, "-o", output, "-j", jobs]
    monkeypatch.setenv("WDSCLI_RETRIES", "0")
    far.delay_seconds = 0.1
    far.clear(Fault("status", inf, where="^PUT .*/s-02.tar ", status=403))
    done = wds(*command)
    assert done.code == 4
    assert f"cannot write s3://{bucket}/s-02.tar: access denied" in done.err
    assert done.err.count("\n") <= 2
    there = s3.names(bucket)
    assert "s-02.tar" not in there
    assert "s-manifest.json" not in there
    assert {"s-00.tar", "s-01.tar"} <= set(there)
    assert len([name for name in there if name.endswith(".tar")]) < 17, "the run went on"
    far.clear()
    assert wds(*command, "--resume").code == 0
    assert s3.names(bucket)[-1] == "s-manifest.json"
    assert not [name for name in s3.names(bucket) if name.endswith(".done")]
