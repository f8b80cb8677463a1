"""Requests that fail: which are made again, how often, from which byte, and after which pause."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import aiohttp
import botocore.exceptions
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wdscli.errors import UsageError
from wdscli.storage import retry
from wdscli.storage.retry import (
    Attempts,
    GaveUp,
    Network,
    ObjectReplaced,
    Transient,
    answer_of,
    fetched,
    is_passing,
    retried,
)

DATA = random.Random(0).randbytes(1000)
QUICK = Network(retries=3, timeout_seconds=5, pause_seconds=0.0001)
Keep = Callable[[bytes], object]


class Store:
    """Answers each request with the next of ``answers``: so many bytes of it, and then what is raised."""

    def __init__(self, *answers: tuple[int, Exception | None]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []

    async def fetch(self, begin: int, end: int, keep: Keep) -> None:
        self.asked.append((begin, end))
        count, error = self.answers.pop(0) if self.answers else (end - begin, None)
        for at in range(begin, min(begin + count, len(DATA)), 7):
            keep(DATA[at : min(at + 7, begin + count)])
        if error:
            raise error

    def get(self, begin: int, end: int, patience: Network = QUICK) -> bytes:
        return asyncio.run(fetched(self.fetch, begin, end, Attempts(patience)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=30), st.integers(0, 500))
def test_a_range_goes_on_where_it_was(cuts: list[tuple[int, bool]], begin: int) -> None:
    """Whatever comes before each cut, told or not: the bytes are right, none is asked for twice, and what gives up has
    seen four answers in a row that brought nothing."""
    answers = [(min(count, 1000 - begin - sum(c for c, _ in cuts[:number])), ConnectionResetError() if told else None)
               for number, (count, told) in enumerate(cuts)]  # fmt: skip
    store = Store(*((max(0, count), error) for count, error in answers))
    try:
        assert store.get(begin, 1000) == DATA[begin:1000]
    except GaveUp as error:
        assert error.attempts == 4
        assert [asked[0] for asked in store.asked[-3:]] == [store.asked[-1][0]] * 3
    positions = [one for one, _ in store.asked]
    assert positions == sorted(positions)
    assert all(end == 1000 for _, end in store.asked)


def test_progress_begins_the_count_anew() -> None:
    reset = ConnectionResetError()
    store = Store(*[(0, reset), (0, reset), (0, reset), (10, reset)] * 5)
    assert store.get(0, 1000) == DATA
    store = Store(*[(0, reset)] * 4)
    with pytest.raises(GaveUp) as caught:
        store.get(0, 1000)
    assert caught.value.attempts == 4
    assert caught.value.error is reset


def test_no_retries_is_one_attempt() -> None:
    store = Store((5, ConnectionResetError()))
    with pytest.raises(GaveUp):
        store.get(0, 1000, QUICK._replace(retries=0))
    assert store.asked == [(0, 1000)]


def test_more_bytes_than_were_requested_are_an_error() -> None:
    with pytest.raises(OSError, match="more than were requested"):
        Store((600, None)).get(0, 500)


def test_another_version_is_not_tried_again() -> None:
    store = Store((10, ObjectReplaced()))
    with pytest.raises(ObjectReplaced):
        store.get(0, 1000)
    assert len(store.asked) == 1


def test_silence_ends_an_attempt_but_slowness_does_not() -> None:
    async def slow(begin: int, end: int, keep: Keep) -> None:
        for at in range(begin, end, 100):
            await asyncio.sleep(0.03)
            keep(DATA[at : at + 100])

    assert asyncio.run(fetched(slow, 0, 1000, Attempts(QUICK._replace(timeout_seconds=0.2)))) == DATA
    calls = []

    async def silent(begin: int, end: int, keep: Keep) -> None:
        calls.append(begin)
        keep(DATA[begin : begin + 1])
        await asyncio.sleep(60)

    assert asyncio.run(fetched(silent, 0, 3, Attempts(QUICK._replace(timeout_seconds=0.05)))) == DATA[:3]
    assert calls == [0, 1, 2]


def test_pauses_grow_and_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Network(retries=20, pause_seconds=0.25)
    many = [
        [attempts.pause_after(Transient()) for _ in range(12)]
        for attempts in [Attempts(patience) for _ in range(9)]
    ]
    for number in range(12):
        most = min(0.25 * 2**number, retry.MAX_PAUSE_SECONDS)
        assert all(most / 2 <= pauses[number] <= most for pauses in many)
        assert len({pauses[number] for pauses in many}) > 5


def answered(status: int, **headers: str) -> Exception:
    return aiohttp.ClientResponseError(None, (), status=status, headers=headers)  # type: ignore[arg-type]


def s3_answered(status: int, code: str, **headers: str) -> Exception:
    meta = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    error = OSError(5, "translated")
    error.__cause__ = botocore.exceptions.ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": meta}, "GetObject"
    )
    return error


@pytest.mark.parametrize("make", [answered, lambda status, **more: s3_answered(status, "SlowDown", **more)])
def test_a_server_may_ask_for_a_pause(make: Any) -> None:
    def pause(error: Exception) -> float:
        return Attempts(QUICK).pause_after(error)

    assert pause(make(503, **{"retry-after": "7"})) == 7
    assert pause(make(429, **{"retry-after": "86400"})) == retry.MAX_RETRY_AFTER_SECONDS
    assert 3 < pause(make(503, **{"retry-after": formatdate(time.time() + 5, usegmt=True)})) <= 5
    assert pause(make(503, **{"retry-after": "soon"})) < 1
    assert pause(make(503)) < 1


def made_of(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (asyncio.TimeoutError(), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError(), True),
        (botocore.exceptions.ConnectionClosedError(endpoint_url="x"), True),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), True),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), True),
        (answered(500), True),
        (answered(429), True),
        (answered(403), False),
        (answered(416), False),
        (answered(501), False),
        (s3_answered(503, "SlowDown"), True),
        (s3_answered(400, "RequestTimeout"), True),
        (s3_answered(400, "InvalidArgument"), False),
        (made_of(OSError("x"), socket.gaierror(socket.EAI_NONAME, "unknown")), False),
        (made_of(aiohttp.ClientConnectionError(), socket.gaierror(socket.EAI_NONAME, "unknown")), False),
        (made_of(aiohttp.ClientConnectionError(), socket.gaierror(socket.EAI_AGAIN, "later")), True),
        (botocore.exceptions.SSLError(endpoint_url="x", error="y"), False),
        (made_of(aiohttp.ClientConnectionError(), ssl.SSLCertVerificationError()), False),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (OSError(28, "no space"), False),
        (ValueError(), False),
        (ObjectReplaced(), False),
    ],
)  # fmt: skip
def test_what_may_pass(error: Exception, passes: bool) -> None:
    assert is_passing(error) is passes


def test_a_question_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [ConnectionResetError(), answered(503)]

    def call() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    with retry.using(QUICK):
        assert retried(call) == "answer"
        errors = [FileNotFoundError(), ConnectionResetError()]
        with pytest.raises(FileNotFoundError):
            retried(call)
        assert len(errors) == 1


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retry.network()[:3] == (64 << 20, 5, 60.0)
    monkeypatch.setenv("WDSCLI_RETRIES", "0")
    monkeypatch.setenv("WDSCLI_TIMEOUT", "1.5")
    monkeypatch.setenv("WDSCLI_READ_AHEAD", "8MiB")
    assert retry.network()[:3] == (8 << 20, 0, 1.5)
    with retry.using(QUICK):
        assert retry.network() == QUICK
    for name, text in (
        ("RETRIES", "many"),
        ("RETRIES", "-1"),
        ("TIMEOUT", "0"),
        ("TIMEOUT", "nan"),
        ("READ_AHEAD", "x"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"WDSCLI_{name}", text)
            with pytest.raises(UsageError, match=f"WDSCLI_{name}={text} in the environment"):
                retry.network()


OK = {"etag": '"a"', "content-range": "bytes 10-19/100", "content-length": "10"}


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (206, OK, 100), (206, {**OK, "content-range": "bytes 10-19/*"}, 100),
        (206, {**OK, "content-length": ""}, 100),
        # rclone's server answers so. A Content-Range of other bytes is no answer.
        (200, OK, 100), (200, {**OK, "content-range": "bytes 9-18/100"}, Transient),
        (200, {**OK, "content-length": "100"}, Transient),
        (200, {"etag": '"a"'}, Transient), (204, {}, Transient), (206, {}, Transient),
        (206, {**OK, "etag": ""}, Transient), (206, {**OK, "content-range": "bytes 9-18/100"}, Transient),
        (206, {**OK, "content-range": "bytes 10-18/100", "content-length": "9"}, Transient),
        (206, {**OK, "content-range": "bytes ten"}, Transient), (206, {**OK, "content-length": "9"}, Transient),
        (416, {"content-range": "bytes */100"}, Transient), (416, {"content-range": "bytes */99"}, ObjectReplaced),
        (412, {}, ObjectReplaced), (206, {**OK, "etag": '"b"'}, ObjectReplaced),
        (206, {**OK, "content-range": "bytes 10-19/99"}, ObjectReplaced),
        (200, {"etag": '"b"', "content-length": "0"}, Transient),
    ],
)  # fmt: skip
def test_an_answer_to_a_range(status: int, headers: dict[str, str], expected: int | type[Exception]) -> None:
    """issue 36, A 4: what counts as an answer, for every client."""
    answer = answer_of(status, headers)
    if isinstance(expected, int):
        assert answer.check(10, 20, expected, '"a"') == expected
    else:
        with pytest.raises(expected):
            answer.check(10, 20, 100, '"a"')


def test_the_first_answer_to_a_range() -> None:
    """It sets the size and the version."""
    first = {"ETag": '"a"', "Content-Range": "bytes 0-99/100", "Content-Length": "100"}
    answer = answer_of(206, {name.lower(): value for name, value in first.items()})
    assert answer.check(0, 65536, None, "") == 100
    assert (answer.part, answer.etag) == ((0, 100), '"a"')
    assert answer_of(200, {"etag": '"e"', "content-length": "0"}).check(0, 65536, None, "") == 0
    with pytest.raises(Transient, match="size"):
        answer_of(206, {"content-range": "bytes 0-99/*"}).check(0, 100, None, "")


def test_mirrors_may_have_other_times() -> None:
    answer = answer_of(206, {**OK, "last-modified": "Tuesday"})
    assert answer.check(10, 20, 100, '"a"', "Monday") == 100
    with pytest.raises(ObjectReplaced):
        answer.check(10, 20, 100, "", "Monday")
    assert answer.check(10, 20, 100, "") == 100
