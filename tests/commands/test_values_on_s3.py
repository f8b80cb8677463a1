"""Stored values on S3 and on sets of other programs."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from shard_cases import wds
from storage_servers import S3, forget_listings

from wdscli.shards.proof import find_index
from wdscli.storage import open_source


def files(folder: Path) -> Path:
    folder.mkdir()
    for number in range(12):
        (folder / f"k{number:02d}.json").write_text(json.dumps({"tokens": number * 10}))
        (folder / f"k{number:02d}.txt").write_text("x" * 3000)
    return folder


def stored(address: str) -> dict[str, list[int]]:
    with open_source(address) as source:
        found = find_index(address, source)
    assert found is not None
    return {name: one.tolist() for name, one in found.values.items()}


def test_values_on_s3_are_those_of_the_object(s3: S3, tmp_path: Path) -> None:
    bucket = s3.bucket("values")
    shard = f"s3://{bucket}/set/a.tar"
    assert wds("create", files(tmp_path / "files"), "-o", shard, "--values", "json.tokens").code == 0
    assert stored(shard) == {"json.tokens": [*range(0, 120, 10)]}
    listed = wds("ls", shard, "--where", "json.tokens >= 100")
    assert [line.split()[0] for line in listed.out.decode().splitlines()] == ["k10", "k11"]
    # The same object with other payloads of the same size: its version differs.
    data = s3.client.get_object(Bucket=bucket, Key="set/a.tar")["Body"].read()
    s3.client.put_object(
        Bucket=bucket, Key="set/a.tar", Body=data.replace(b'{"tokens": 50}', b'{"tokens": 99}')
    )
    forget_listings()
    found = wds("ls", shard, "--where", "json.tokens == 99")
    assert [line.split()[0] for line in found.out.decode().splitlines()] == ["k05"]
    assert (
        wds("index", f"s3://{bucket}/set/", "--values", "json.tokens", "--no-manifest", "--force").code == 0
    )
    forget_listings()
    assert stored(shard)["json.tokens"][5] == 99


@pytest.mark.parametrize("has_checksums", [True, False])
def test_values_of_an_object_of_unknown_version_need_its_checksum(
    s3: S3, tmp_path: Path, has_checksums: bool
) -> None:
    bucket = s3.bucket("uploaded")
    assert (
        wds("create", files(tmp_path / "files"), "-o", tmp_path / "a.tar", "--values", "json.tokens").code
        == 0
    )
    client = s3.client if has_checksums else client_without_checksums(s3)
    for path in ("a.tar", ".wds/a.tar.wdx"):
        client.put_object(Bucket=bucket, Key=f"set/{path}", Body=(tmp_path / path).read_bytes())
    forget_listings()
    shard, values = f"s3://{bucket}/set/a.tar", {"json.tokens": [*range(0, 120, 10)]}
    assert stored(shard) == (values if has_checksums else {})
    assert wds("index", shard, "--values", "json.tokens", "--no-manifest").code == 0
    forget_listings()
    assert stored(shard) == values


def client_without_checksums(s3: S3) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=s3.client.meta.endpoint_url,
        config=Config(request_checksum_calculation="when_required"),
    )


def by_gnu_tar(folder: Path, shard: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    subprocess.run(["tar", "-cf", shard, "-C", folder, *names], check=True)


def by_tarfile(folder: Path, shard: Path) -> None:
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as made:
        for path in sorted(folder.iterdir()):
            made.add(path, path.name)


def by_webdataset(folder: Path, shard: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(shard)) as writer:
        for path in sorted(folder.glob("*.json")):
            texts = {"json": path.read_bytes(), "txt": path.with_suffix(".txt").read_bytes()}
            writer.write({"__key__": path.stem, **texts})


@pytest.mark.parametrize("make", [by_gnu_tar, by_tarfile, by_webdataset])
def test_sets_of_other_programs(make, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    make(files(tmp_path / "files"), shard)
    wanted = wds("ls", shard, "--where", "json.tokens >= 100").out
    assert wds("index", shard, "--values", "json.tokens,len(txt)").code == 0
    assert stored(str(shard)) == {"json.tokens": [*range(0, 120, 10)], "len(txt)": [3000] * 12}
    assert wds("ls", shard, "--where", "json.tokens >= 100").out == wanted
    assert wanted.count(b"\n") == 2
