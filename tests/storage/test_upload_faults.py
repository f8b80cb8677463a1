"""What networks do to writing to S3: the right object, or a clear error and nothing left behind."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple

import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy
from storage_servers import S3, forget_s3, s3_server

from wdscli.errors import OutputError
from wdscli.storage import open_sink, uploads
from wdscli.storage.ends import NotCopied
from wdscli.storage.kinds import stored_version
from wdscli.storage.retry import Network, using

SMALL = random.Random(1).randbytes(10_000)
LARGE = random.Random(2).randbytes(11_000_000)
PART, BEGIN, END, ABORT = r"^PUT .*partNumber=", r"^POST .*uploads", r"^POST .*uploadId=", "^DELETE "


class Place(NamedTuple):
    proxy: FaultProxy
    s3: S3


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with s3_server() as server, fault_proxy(int(server.endpoint.rpartition(":")[2])) as proxy:
        server.bucket("faults")
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        forget_s3()
        yield Place(proxy, server)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(uploads, "_ABORT_SECONDS", 2.0)


def put(place: Place, data: bytes, *faults: Fault, timeout: float = 30, old: bytes | None = None) -> None:
    """Write an object while there are faults. With ``old``, an object with these bytes is replaced."""
    place.proxy.clear()
    uploads.abort_uploads("s3://faults/", lambda address: True)
    for name in place.s3.names("faults"):
        place.s3.client.delete_object(Bucket="faults", Key=name)
    if old is not None:
        place.s3.client.put_object(Bucket="faults", Key="d/a.tar", Body=old)
    place.proxy.clear(*faults)
    with (
        using(Network(64 << 20, 3, timeout, 0.001)),
        open_sink("s3://faults/d/a.tar", force=old is not None) as sink,
    ):
        sink.write(data)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", 3, where="^(PUT|POST) ", status=503),
        Fault("status", 2, where="^(PUT|POST) ", status=500),
        Fault("status", 1, where="^(PUT|POST) ", status=429, headers={"Retry-After": "0"}),
        Fault("status", 2, where="^(HEAD|GET) ", status=503),
        Fault("status", 2, where=PART, status=503),
        Fault("status", 2, where=END, status=503),
        Fault("cut", 1, where=BEGIN, after=20),
        Fault("cut", 1, where=END, after=20),  # it was heard: the second attempt finds no such upload
        Fault("reset", 1, where="^(PUT|POST) "),
        Fault("slow", 1, where="^POST ", after=40, seconds=0.001),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.where.strip('^')}",
)
def test_what_passes(place: Place, data: bytes, fault: Fault) -> None:
    put(place, data, replace(fault))
    assert place.s3.get("faults", "d/a.tar") == data
    # An upload whose first answer was lost is begun twice; the end of a run aborts such ones.
    assert len(place.s3.pending("faults")) == (
        data is LARGE and fault.where in (BEGIN, "^(PUT|POST) ") and fault.kind in ("cut", "reset")
    )


def answer(kind: str, times: float, where: str, body: bytes = b"") -> Fault:
    """An answer 200 that is not the store's: ``lost`` if the store did what was requested, otherwise ``status``."""
    return Fault(kind, times, where=where, status=200, body=body)


ERROR = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>again</Message></Error>'


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (LARGE, answer("status", 2, END)), (LARGE, answer("status", 2, END, ERROR)),
        (LARGE, answer("status", 2, END, b"<html></html>")), (LARGE, answer("lost", 1, END)),
        (LARGE, answer("lost", 1, END, ERROR)), (LARGE, answer("status", 1, BEGIN)),
        (LARGE, answer("status", 2, PART)), (SMALL, answer("status", 2, "^PUT ", b"<html></html>")),
        (SMALL, answer("lost", 1, "^PUT ")),
    ],
)  # fmt: skip
def test_an_upload_counts_when_the_object_exists(
    place: Place, data: bytes, fault: Fault, force: bool
) -> None:
    """issue 35, 16: an answer 200 without an ETag says nothing about the object."""
    old = b"x" * len(data) if force else None
    put(place, data, replace(fault), old=old)
    assert place.s3.get("faults", "d/a.tar") == data
    assert place.s3.pending("faults") == []


@pytest.mark.parametrize(("data", "where"), [(LARGE, END), (SMALL, "^PUT "), (LARGE, PART), (LARGE, BEGIN)])
@pytest.mark.parametrize("body", [b"", ERROR])
def test_an_upload_that_is_never_confirmed(place: Place, data: bytes, where: str, body: bytes) -> None:
    with pytest.raises(OutputError, match=r"cannot write s3://faults/d/a\.tar: .* \(4 attempts\)"):
        put(place, data, answer("status", inf, where, body))
    assert place.s3.names("faults") == place.s3.pending("faults") == []


@pytest.mark.parametrize("times", [1, inf])
@pytest.mark.parametrize("body", [b"", ERROR])
def test_a_copy_counts_when_the_object_exists(place: Place, times: float, body: bytes) -> None:
    """A copy that is not confirmed is made by reading and writing."""
    put(place, SMALL)
    place.s3.client.copy_object(Bucket="faults", Key="old.tar", CopySource="faults/d/a.tar")
    version = f"etag:{place.s3.client.head_object(Bucket='faults', Key='old.tar')['ETag']}"
    place.proxy.clear(answer("status", times, "^PUT ", body))
    with using(Network(64 << 20, 3, 30, 0.001)):
        sink = open_sink("s3://faults/b.tar")
        sink.copy_of("s3://faults/old.tar", stored_version("s3://faults/old.tar", version), len(SMALL))
        with suppress(NotCopied):
            sink.commit()
    assert place.s3.names("faults") == (["b.tar"] if times == 1 else []) + ["d/a.tar", "old.tar"]


@pytest.mark.exhaustive
def test_an_answer_that_never_comes(place: Place) -> None:
    put(place, LARGE, Fault("stall", 1, where=END, after=10), timeout=1)
    assert place.s3.get("faults", "d/a.tar") == LARGE
    assert place.s3.pending("faults") == []


@pytest.mark.parametrize(
    ("data", "where", "status", "said"),
    [
        (SMALL, "^PUT ", 503, "the server answered 503"), (LARGE, PART, 503, "the server answered 503"),
        (LARGE, BEGIN, 500, "the server answered 500"), (LARGE, END, 500, "the server answered 500"),
        (SMALL, "^PUT ", 403, "access denied"), (LARGE, PART, 403, "access denied"),
        (LARGE, END, 400, "400"), (SMALL, "^PUT ", 507, "507"),
    ],
)  # fmt: skip
def test_what_does_not(place: Place, data: bytes, where: str, status: int, said: str) -> None:
    with pytest.raises(OutputError, match=r"cannot write s3://faults/d/a\.tar: ") as caught:
        put(place, data, Fault("status", inf, where=where, status=status))
    assert said in str(caught.value)
    assert place.s3.names("faults") == place.s3.pending("faults") == []


def test_an_abort_that_fails_is_not_what_is_said(place: Place) -> None:
    with pytest.raises(OutputError, match="the server answered 503"):
        put(place, LARGE, Fault("status", inf, where=PART), Fault("status", inf, where=ABORT))
    assert place.s3.names("faults") == []
    assert place.s3.pending("faults") == ["d/a.tar"]
    place.proxy.clear()
    uploads.abort_uploads("s3://faults/d/", lambda address: address == "s3://faults/d/a.tar")
    assert place.s3.pending("faults") == []
