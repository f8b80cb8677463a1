"""The commands of the page on stores, run as they stand: the bucket is moto's, the
web server one on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_servers import S3, Web, s3_server, web_server

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "man" / "man7" / "wdscli-storage.7").read_text()
WEB = "data.example.org"
FROM_BUCKET = """#!{python}
import boto3, sys
bucket, _, key = sys.argv[3].removeprefix("s3://").partition("/")
sys.stdout.buffer.write(boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())
"""
"""Of `aws s3 cp ADDRESS -`, what is used here."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.bucket("mine")
        yield server


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: photos to make shards of, and the tools that they call."""
    made = tmp_path_factory.mktemp("docs")
    for number in range(12):
        file = made / "photos" / f"class{number % 3}" / f"img{number:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\xff\xd8 picture %d" % number)
        file.with_suffix(".cls").write_text(str(number % 3))
    tools = made / "bin"
    tools.mkdir()
    (tools / "wds").write_text(f'#!/bin/sh\nexec {sys.executable} -m wdscli "$@"\n')
    (tools / "aws").write_text(FROM_BUCKET.format(python=sys.executable))
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return made


def run(script: str, folder: Path, s3: S3, web: Web) -> str:
    for name in s3.names("mine"):
        web.files[name] = s3.get("mine", name)
        s3.client.put_object_acl(Bucket="mine", Key=name, ACL="public-read")
    host, port = web.server_address[:2]
    script = script.replace(f"https://{WEB}", f"http://{host!s}:{port}").replace(WEB, f"{host!s}:{port}")
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_page(folder: Path, s3: S3, web: Web) -> None:
    blocks = re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    said = [run(block.replace("\\e\n", "\\\n"), folder, s3, web) for block in blocks]
    assert "12" in said[0]
    assert [name for name in s3.names("mine") if re.match(r"(mixed|sorted)/[^.]*\.tar", name)] == [
        *[f"mixed/train-00000{number}.tar" for number in range(4)], "sorted/train-000000.tar",
    ]  # fmt: skip
    assert s3.pending("mine") == []
    assert not [name for name in s3.names("mine") if name.startswith("scratch")]
    shard = s3.get("mine", "photos/train-000000.tar")
    assert (folder / "all.tar").read_bytes() == shard
    unpacked = subprocess.run(["gzip", "-dc", folder / "all.tar.gz"], capture_output=True, check=True)
    assert unpacked.stdout == shard
    assert said[4].count("\n") == 12
    assert (folder / "plain.tar").read_bytes() == shard
    assert len(list((folder / "copies").glob("train-000000.tar.zst.*"))) == 2
