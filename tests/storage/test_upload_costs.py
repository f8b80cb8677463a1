"""What an upload to S3 does not compute twice, and does not copy."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_servers import S3, forget_s3, s3_server

from wdscli.samples import reading
from wdscli.shards.writing import ShardFile
from wdscli.storage import open_sink, uploads
from wdscli.storage.ends import SEND_BYTES, SMALL_BYTES, RequestBody
from wdscli.storage.remote import store_of
from wdscli.storage.retry import network

DATA = random.Random(4).randbytes(6_000_000)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("size", [1000, 6_000_000])
@pytest.mark.parametrize("has_md5_etags", [True, False])
def test_one_md5_tells_what_the_etags_of_a_bucket_are(
    s3: S3, monkeypatch: pytest.MonkeyPatch, size: int, has_md5_etags: bool
) -> None:
    """issue 37, 6: the ETag of every object is known to be made from its bytes."""
    monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)
    bodies: list[bytes] = []

    def computed(body: RequestBody) -> str:
        bodies.append(b"".join(body.pieces))
        return hashlib.md5(bodies[-1]).hexdigest() if has_md5_etags else "1f" * 16

    monkeypatch.setattr(uploads, "_md5_of", computed)
    bucket = s3.bucket(f"md5-{size}-{has_md5_etags}".lower())
    for number in range(3):
        with open_sink(f"s3://{bucket}/{number}.tar") as sink:
            sink.write(DATA[:size])
        etag = s3.client.head_object(Bucket=bucket, Key=f"{number}.tar")["ETag"]
        assert sink.stored_version == (f"s3 {etag}" if has_md5_etags else "")
        assert sink.version == "etag:" + etag.strip('"')
    assert bodies == [DATA[: min(size, 5 << 20)]] * (1 if has_md5_etags else 3)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([], 1), ([0], 1), ([1], 1), ([SMALL_BYTES] * 9, 3), ([3, SEND_BYTES + 7, 5, 4 * SEND_BYTES, 9], 8)],
)
def test_a_body_is_sent_in_order_and_large_pieces_are_not_copied(sizes: list[int], count: int) -> None:
    pieces = [memoryview(random.Random(number).randbytes(size)) for number, size in enumerate(sizes)]
    body = RequestBody(pieces)

    async def sent() -> list[Any]:
        return [chunk async for chunk in body]

    chunks = asyncio.run(sent())
    data = b"".join(pieces)
    assert b"".join(chunks) == data == b"".join(iter(body.read, b""))
    assert len(chunks) == count
    assert all(len(chunk) <= SEND_BYTES for chunk in chunks)
    large = {id(piece.obj) for piece in pieces if len(piece) > SEND_BYTES}
    views = [chunk for chunk in chunks if isinstance(chunk, memoryview)]
    assert large == {id(view.obj) for view in views}


@pytest.mark.parametrize("is_remote", [True, False])
def test_the_memory_of_parts_is_used_again(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    """issue 37, 6: without it, the kernel clears new pages for every part. A local shard has no parts."""
    monkeypatch.setattr(reading, "_heap_is_kept", False)
    folder = f"s3://{s3.bucket('heap')}" if is_remote else str(tmp_path)
    ShardFile(f"{folder}/a.tar").discard()
    assert reading._heap_is_kept is is_remote


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_over_tls_a_body_with_a_checksum_is_not_hashed_for_the_signature(
    s3: S3, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """issue 37, 6: as boto3 does. A plain connection still needs the signature of the body."""
    from aiobotocore.awsrequest import AioAWSResponse

    class Empty:
        async def read(self) -> bytes:
            return b""

    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{scheme}://127.0.0.1:9")
    forget_s3()
    headers: list[dict[str, Any]] = []

    def answered(request: Any, **_: Any) -> AioAWSResponse:
        headers.append(dict(request.headers))
        return AioAWSResponse(request.url, 200, {"etag": '"0"'}, Empty())

    store, path = store_of("s3://bucket/a.tar", fresh=False)
    body = RequestBody([memoryview(DATA)])
    upload = uploads._S3Object(store, path, network())  # type: ignore[arg-type]
    assert upload.algorithm
    upload.fs._s3.meta.events.register("before-send.s3", answered)
    upload.send("upload_part", body, UploadId="1", PartNumber=1).result()
    upload.send("put_object", body).result()
    forget_s3()
    expected = b"UNSIGNED-PAYLOAD" if scheme == "https" else hashlib.sha256(DATA).hexdigest().encode()
    assert [sent["X-Amz-Content-SHA256"] for sent in headers] == [expected, expected]
    assert all("x-amz-checksum-crc32" in sent for sent in headers)
