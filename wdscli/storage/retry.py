"""This module decides, for every store, whether and when a failed request is retried.

:class:`Network` has a command's settings for retries and timeouts, from its options or the environment.
:class:`Attempts` counts the failures of a request without progress, and computes the pause before the next attempt. Two
functions use it. :func:`retried` repeats a call that succeeds or fails as a whole, such as one part of an upload.
:func:`fetched` reads a range, and continues at the byte that was reached. The retries of backends are switched off if
possible. So ``WDSCLI_RETRIES`` and ``--timeout`` decide counts and times.

:func:`fetched` calls a function ``fetch`` with this contract to read ranges of one object::

    async def fetch(begin: int, end: int, keep: Callable[[bytes], object]) -> None

``fetch`` makes one request for the bytes ``begin`` to ``end - 1``. It describes the answer by a :class:`RangeAnswer`,
and :meth:`RangeAnswer.check` compares the answer with the request. ``fetch`` then passes the bytes to ``keep``, in
order, as soon as they arrive, and returns at the end of the answer. The check raises :class:`ObjectReplaced` if the
answer has another version of the object than the first answer, and :class:`Transient` for a body that is not the
requested range. ``fetch`` also raises any error of its client, and :func:`is_passing` decides whether that error is
transient. If the client's error does not show that a failure is transient, ``fetch`` raises :class:`Transient`.
``fetch`` counts its request, but not its bytes. It does not retry, and does not limit the time, because :func:`fetched`
cancels it. :func:`fetched` also detects an answer that ends early.

A long wait gives a warning, which commands print on standard error. This module imports no backend. It examines the
names and attributes of exceptions instead.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from operator import add
from threading import TIMEOUT_MAX, Timer
from typing import Any, NamedTuple, TypeVar

from wdscli.errors import UsageError
from wdscli.shown import shown
from wdscli.storage.addresses import TRUSTED
from wdscli.storage.ends import ReceivedBytes
from wdscli.storage.kinds import NOTE, PASSING
from wdscli.threads import ForkLock, holding
from wdscli.units import parse_size, whole_number

FIRST_PAUSE_SECONDS = 0.25
"""The pause before the second attempt. Each later pause is twice as long, minus a random part."""
MAX_PAUSE_SECONDS = 20.0
MAX_RETRY_AFTER_SECONDS = 60.0
"""The longest pause that a server may ask for."""
CONNECT_SECONDS = 30.0
"""The longest wait for a connection."""
TRAINING_SECONDS = 180.0
"""In a training, the shortest time without progress before a request fails, because a restart costs more."""
FIRST_ATTEMPTS = 3
"""The number of attempts to reach a host that has never answered."""
_UNREACHABLE = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH))
PASSING_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))
GARBLED = "HttpProcessingError"
"""aiohttp's error for an answer that is not HTTP or ends early. The status in it does not come from the server."""
TLS_KINDS = frozenset(("SSLError", "ClientSSLError", "CertificateError", "ClientConnectorCertificateError"))
EAI_AGAIN = -3
"""The error of the resolver if the resolver itself fails. Its other errors mean that the name does not exist."""

CACHE = "WDSCLI_CACHE"
Buffer = bytes | memoryview
Fetch = Callable[[int, int, Callable[[Buffer], object]], Awaitable[None]]
Answer = TypeVar("Answer")


class Traffic(NamedTuple):
    """The network traffic: ``requests``, bytes of bodies, ``retries`` among the requests, and ``stalls``. A stall is a
    request with a wait that is long enough for a warning. A listing counts as one request."""

    requests: int = 0
    received: int = 0
    sent: int = 0
    retries: int = 0
    stalls: int = 0


_traffic = Traffic()
_counting = ForkLock()
_said_at = -math.inf
_is_training = False
_reached: set[str] = set()
"""The hosts and buckets that have answered this process."""


def expect_training() -> None:
    """From now on, requests of this process are patient (:data:`TRAINING_SECONDS`), except in a :func:`using` block,
    and except if the environment limits the retries. The loader calls this when it is imported."""
    global _is_training
    _is_training = True


def note_answer(address: str) -> None:
    """Note that the host of an address has answered."""
    _reached.add(_host(address))


def _host(address: str) -> str:
    return "/".join(address.split("/", 3)[:3])


def take_traffic() -> Traffic:
    """Return the traffic of this process since the last call."""
    global _traffic
    with _counting:
        traffic, _traffic = _traffic, Traffic()
    return traffic


def count_traffic(**counts: int) -> None:
    """Add numbers to the fields of this process's :class:`Traffic`."""
    global _traffic
    with _counting:
        _traffic = Traffic(*map(add, _traffic, Traffic(**counts)))


def _is_due(seconds: float) -> bool:
    """Return whether enough time has passed since the last warning. Many requests may wait at the same time."""
    global _said_at
    with _counting:
        now = time.monotonic()
        is_due = now - _said_at >= seconds
        _said_at = now if is_due else _said_at
    return is_due


class Transient(Exception):
    """A transient failure. The text describes it."""


class ObjectReplaced(Exception):
    """The object's version differs from the version in the first answer. This is never retried."""


class GaveUp(Exception):
    """Transient failures were repeated until no attempt was left. ``error`` is the last failure, after ``attempts``
    attempts without progress."""

    def __init__(self, error: Exception, attempts: int) -> None:
        super().__init__(str(error))
        self.error, self.attempts = error, attempts


class RangeAnswer(NamedTuple):
    """What the headers of an answer say about its body. ``part`` is the range in the body: its first byte, and the byte
    after its last byte. ``size`` is the size of the whole object. A missing value is None or empty."""

    status: int
    part: tuple[int, int] | None
    size: int | None
    length: int | None
    etag: str
    changed: str = ""
    note: str = ""

    def check(self, begin: int, end: int, size: int | None, etag: str, changed: str = "") -> int:
        """Return the object's size. Raises ObjectReplaced if the object has another size, ETag or time of change, and
        Transient if the body is not the requested range, the bytes ``begin`` to ``end - 1``. A proxy may answer with a
        page of its own, for example."""
        if self.status == 412 or (self.status == 416 and self.size not in (None, size)):
            raise ObjectReplaced
        if self._is_empty_object and not begin and not size:
            return 0
        # rclone's server answers with 200 and Content-Range.
        if self.status not in (200, 206) or self.part is None:
            raise Transient(f"the answer is not the requested range (status {self.status})")
        self.check_version(etag, changed)
        if size is None:
            size = self.size
        if size is None:
            raise Transient("the answer does not report the size of the object")
        if self.size not in (None, size):
            raise ObjectReplaced
        wanted = begin, min(end, size)
        if self.part != wanted:
            sent, requested = (f"{first}-{stop - 1}" for first, stop in (self.part, wanted))
            raise Transient(f"the server sent bytes {sent} instead of {requested}")
        if self.length not in (None, wanted[1] - begin):
            raise Transient(f"the answer has {self.length} bytes instead of {wanted[1] - begin}")
        return size

    def check_version(self, etag: str, changed: str) -> None:
        """Raise ObjectReplaced for another ETag or time of change, and Transient if the answer has neither. Mirrors of
        the same file may have different times, but the same ETag."""
        if self.status == 412:
            raise ObjectReplaced
        version, expected = (self.etag, etag) if self.etag and etag else (self.changed, changed)
        if (etag or changed) and not (version and expected):
            raise Transient(f"the answer does not report the version of the file (status {self.status})")
        if version and expected and version != expected:
            raise ObjectReplaced

    @property
    def _is_empty_object(self) -> bool:
        # Some servers ignore the range in a request for an empty object (RFC 9110, 14.2).
        return self.status == 200 and self.length == 0 and bool(self.etag)


# RFC 9110, 14.4: bytes 0-65535/1000000, bytes 0-65535/*, or bytes */0 with 416.
_CONTENT_RANGE = re.compile(
    r"(?:bytes)?\s*(?:([0-9]{1,19})-([0-9]{1,19})|\*)/(?:([0-9]{1,19})|\*)\s*", re.ASCII
)


def answer_of(status: int, headers: Mapping[str, str]) -> RangeAnswer:
    """Describe an answer to a range request by its HTTP headers, which have names in lower case or of any case."""
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    length = headers.get("content-length", "")
    return RangeAnswer(
        status,
        (int(match[1]), int(match[2]) + 1) if match and match[1] else None,
        int(match[3]) if match and match[3] else None,
        whole_number(length) if length.isascii() and length.isdigit() else None,
        headers.get("etag") or "",
        headers.get("last-modified") or "",
        headers.get(f"x-amz-meta-{NOTE}", ""),
    )


class Network(NamedTuple):
    """A command's settings for retries, timeouts, reading ahead and caching."""

    read_ahead_bytes: int = 64 << 20
    """The limit for bytes in flight or in memory, for all objects that one process reads."""
    retries: int = 5
    """The number of retries without progress before a request fails. Progress resets the count."""
    timeout_seconds: float = 60.0
    """An attempt fails after this time without a byte."""
    pause_seconds: float = FIRST_PAUSE_SECONDS
    notice_seconds: float = 10.0
    """A warning is printed after a request has waited for this time."""
    cache_dir: str = ""
    """The folder of the cache (:mod:`wdscli.storage.cache`). It is empty if there is no cache."""
    cache_bytes: int = 0
    """The size limit of the cache. 0 means no limit."""
    held_dir: str = ""
    """The folder of the copies that a command has made (:func:`wdscli.storage.cache.hold`). It is empty if there are
    none."""
    trusted: frozenset[str] = frozenset()
    """The views that the process trusts that makes the tasks."""
    least_seconds: float = 0.0
    """The shortest time without progress before a request fails, even if no retry is left."""


_chosen: ContextVar[Network | None] = ContextVar("network", default=None)
_in_use: dict[object, Network] = {}
"""The settings of all open :func:`using` blocks, the latest last. New threads, which do not inherit a context, use
them. Blocks in different threads may end in any order."""


def network() -> Network:
    """Return the current settings, from :func:`using` or else from the environment. Raises UsageError."""
    settings = _chosen.get() or next(reversed([*_in_use.values()]), None) or _of_environment()
    return settings if settings.trusted == TRUSTED else settings._replace(trusted=frozenset(TRUSTED))


@contextmanager
def using(chosen: Network) -> Iterator[None]:
    """Use the settings ``chosen`` in the block, and in the threads and tasks that begin there."""
    this = object()
    _in_use[this] = chosen
    TRUSTED.update(chosen.trusted)
    try:
        with holding(_chosen, chosen):
            yield
    finally:
        del _in_use[this]


def changed(timeout_seconds: float | None = None, cache_dir: str | None = None) -> Network:
    """Return the current settings with these changes. Raises UsageError."""
    if timeout_seconds is not None and not 0 < timeout_seconds < math.inf:
        raise UsageError("--timeout must be more than 0 seconds", hint="--timeout 60")
    changes: dict[str, Any] = {"timeout_seconds": timeout_seconds, "cache_dir": cache_dir}
    return network()._replace(**{name: value for name, value in changes.items() if value is not None})


def cached_in(folder: str | None, size_bytes: int = 0) -> AbstractContextManager[None]:
    """In the block, cache remote shards in ``folder``. An empty name means no cache, and None changes nothing. Threads
    that begin in the block do not use this setting, because several threads may use different folders."""
    if folder is None:
        return nullcontext()
    return holding(_chosen, network()._replace(cache_dir=folder, cache_bytes=size_bytes))


def held_in(folder: str) -> AbstractContextManager[None]:
    """In the block, and in tasks that begin in it, read the copies in ``folder`` instead of the store, also for
    checks."""
    return holding(_chosen, network()._replace(held_dir=folder))


def _of_environment() -> Network:
    kinds: tuple[tuple[str, str, Callable[[str], float]], ...] = (
        ("read_ahead_bytes", "WDSCLI_READ_AHEAD", parse_size),
        ("retries", "WDSCLI_RETRIES", int),
        ("timeout_seconds", "WDSCLI_TIMEOUT", float),
        ("cache_bytes", "WDSCLI_CACHE_LIMIT", parse_size),
    )
    settings: dict[str, Any] = {"pause_seconds": FIRST_PAUSE_SECONDS, "cache_dir": os.environ.get(CACHE, "")}
    if _is_training and not os.environ.get("WDSCLI_RETRIES", "").strip():
        settings["least_seconds"] = TRAINING_SECONDS
    for field, name, parse in kinds:
        if text := os.environ.get(name, "").strip():
            try:
                settings[field] = parse(text)
                if not (0 <= settings[field] < math.inf and (settings[field] or field == "retries")):
                    raise ValueError
            except (ValueError, UsageError):
                raise UsageError(
                    f"{name}={text} in the environment is not a valid value for {field.replace('_', ' ')}"
                ) from None
    return Network(**settings)


class Attempts:
    """Counts the failures of one request without progress. ``since`` is the time of the last progress. A wait of
    ``notice_seconds`` plus ``more_seconds`` gives one warning, with the address ``name``."""

    def __init__(self, patience: Network, name: str = "", more_seconds: float = 0.0) -> None:
        self.patience, self.name = patience, name
        self._notice_seconds = patience.notice_seconds + more_seconds
        self._failures = 0
        self._is_said = False
        self.since = time.monotonic()

    def pause_after(self, error: Exception, *, progress: bool = False) -> float:
        """Return the seconds to wait before the next attempt. Raises ``error`` if another attempt would not help, and
        GaveUp after too many attempts."""
        from random import uniform

        if not is_passing(error):
            raise error
        retries, least_seconds = self.patience.retries, self.patience.least_seconds
        self._failures = 0 if progress and retries else self._failures + 1
        is_lost = is_unreachable(error) and _host(self.name) not in _reached
        if is_lost and not least_seconds and _is_main_process():
            retries = min(retries, FIRST_ATTEMPTS - 1)
        if self._failures > retries and time.monotonic() - self.since >= least_seconds:
            raise GaveUp(error, self._failures) from error
        pause = min(self.patience.pause_seconds * 2.0 ** max(self._failures - 1, 0), MAX_PAUSE_SECONDS)
        pause = max(pause * uniform(0.5, 1), min(retry_after(error), MAX_RETRY_AFTER_SECONDS))
        count_traffic(retries=1)
        if self.quiet_seconds <= pause or (is_lost and least_seconds and not self._is_said):
            limit = f"attempt {self._failures + 1} of {retries + 1} in {pause:.0f} s"
            if least_seconds:
                limit = f"retrying for {least_seconds:g} s"
            self._say(f"{_reason(error)}; {limit}")
        return pause

    @property
    def quiet_seconds(self) -> float:
        """Return the seconds until the warning."""
        return math.inf if self._is_said else self.since + self._notice_seconds - time.monotonic()

    def notice(self) -> None:
        """If the wait was long enough, warn that no data came."""
        if self.quiet_seconds <= 0:
            count_traffic(stalls=1)
            self._say(f"no data arrived for {self._notice_seconds:g} s")

    def _say(self, why: str) -> None:
        self._is_said = True
        if _is_due(self.patience.notice_seconds):
            warnings.warn(shown(f"waiting for {self.name or 'a store'}: {why}"), stacklevel=3)


def _reason(error: Exception) -> str:
    """Describe a failure in a few words."""
    status = status_of(error)
    if status is not None:
        return f"the server answered with status {status}"
    if is_unreachable(error):
        return "its host cannot be reached"
    return str(error) if isinstance(error, Transient) else type(error).__name__


def retried(call: Callable[[], Answer], name: str = "", *, counts: bool = True) -> Answer:
    """Call ``call()`` until it succeeds, with pauses after transient failures. ``name`` is the address for a warning.
    With ``counts``, each call counts as one request. Raises the errors of ``call``, and GaveUp."""
    attempts = Attempts(network(), name)
    while True:
        timer = Timer(min(attempts.quiet_seconds, TIMEOUT_MAX), attempts.notice)
        timer.daemon = True
        timer.start()
        count_traffic(requests=counts)
        try:
            answer = call()
            note_answer(name)
            return answer
        except Exception as error:
            pause = attempts.pause_after(error)
        finally:
            timer.cancel()
        time.sleep(pause)


async def noticed(work: Awaitable[Answer], attempts: Attempts) -> Answer:
    """Await ``work``, and print a warning if it takes long."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(attempts.quiet_seconds, 0))
        if not task.done():
            attempts.notice()
        return await task
    finally:
        task.cancel()


async def fetched(
    fetch: Fetch,
    begin: int,
    end: int,
    attempts: Attempts,
    size: Callable[[], int | None] = lambda: None,
    into: memoryview | None = None,
) -> ReceivedBytes:
    """Return the bytes ``begin`` to ``end - 1``, or up to the ``size`` that an answer has reported. If a request ends
    early, another request continues at that byte. ``attempts`` are new. The bytes are put into the buffer ``into``, if
    it is given. Raises ObjectReplaced, GaveUp, and the errors of ``fetch``."""
    import asyncio

    landing = _Landing(begin, end, attempts, into)
    while True:
        before = landing.at
        try:
            await _unless_silent(fetch(landing.at, end, landing.keep), landing, attempts)
            error: Exception | None = None
        except Exception as raised:
            error = raised
        count_traffic(received=landing.at - before)
        if landing.at > before:
            note_answer(attempts.name)
        reported_size = size()
        end = end if reported_size is None else min(end, reported_size)
        if landing.at == end and (error is None or is_passing(error)):
            return ReceivedBytes(landing.pieces)
        came = f"{landing.at - begin} of {end - begin} requested bytes came"
        await asyncio.sleep(attempts.pause_after(error or Transient(came), progress=landing.at > before))


class _Landing:
    """The received bytes of a range. ``at`` is the offset after the last received byte, and ``came_at`` is the time
    when this byte arrived."""

    def __init__(self, begin: int, end: int, attempts: Attempts, into: memoryview | None) -> None:
        self.at, self._end, self._into = begin, end, into
        self.came_at = time.monotonic()
        self._attempts = attempts
        self.pieces: list[memoryview] = []

    def keep(self, data: Buffer) -> None:
        self.at += len(data)
        self.came_at = self._attempts.since = time.monotonic()
        if self.at > self._end:
            raise OSError(f"the server sent {self.at - self._end} bytes more than were requested")
        piece = memoryview(data)
        if self._into is not None:
            self._into[: len(data)] = piece
            piece, self._into = self._into[: len(data)], self._into[len(data) :]
        self.pieces.append(piece)


async def _unless_silent(work: Awaitable[None], landing: _Landing, attempts: Attempts) -> None:
    """Await ``work``. It fails if no byte arrives for the seconds of ``--timeout``."""
    import asyncio

    timeout_seconds = attempts.patience.timeout_seconds
    task = asyncio.ensure_future(work)
    landing.came_at = time.monotonic()
    try:
        while not task.done():
            left = landing.came_at + timeout_seconds - time.monotonic()
            if left <= 0:
                raise Transient(f"no data arrived for {timeout_seconds:g} seconds")
            await asyncio.wait({task}, timeout=min(left, max(attempts.quiet_seconds, 0)))
            if not task.done():
                attempts.notice()
        task.result()
    finally:
        task.cancel()


def is_passing(error: BaseException) -> bool:
    """Return whether a failure is transient, so that a retry may succeed."""
    chain = list(causes(error))
    if isinstance(error, (ObjectReplaced, GaveUp, FileNotFoundError, PermissionError, FileExistsError)):
        return False
    if any(isinstance(cause, Transient) for cause in chain):
        return True
    kinds = kinds_of(error)
    if kinds & TLS_KINDS:
        return False
    if (status := status_of(error)) is not None:
        return status in PASSING_STATUS or any(code_of(cause) in PASSING for cause in chain)
    if (resolver := unresolved(error)) is not None:
        return resolver.errno == EAI_AGAIN
    return bool(kinds & PASSING) or isinstance(error, (ConnectionError, TimeoutError))


def is_unreachable(error: BaseException) -> bool:
    """Return whether no host accepted a connection, or the resolver did not know the host."""
    return unresolved(error) is not None or any(
        isinstance(cause, OSError) and cause.errno in _UNREACHABLE for cause in causes(error)
    )


def _is_main_process() -> bool:
    from multiprocessing import parent_process

    return parent_process() is None


def kinds_of(error: BaseException) -> set[str]:
    """Return the class names of an error and its causes."""
    return {kind.__name__ for cause in causes(error) for kind in type(cause).__mro__}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, because clients of stores wrap the original error."""
    for _ in range(8):
        if error is None:
            return
        yield error
        inner = getattr(error, "os_error", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__


def unresolved(error: BaseException) -> OSError | None:
    """Return the resolver's error among the causes of an error."""
    os_errors = (cause for cause in causes(error) if isinstance(cause, OSError))
    return next((cause for cause in os_errors if type(cause).__name__ == "gaierror"), None)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error. Clients use different attribute names for it."""
    if GARBLED in kinds_of(error):
        return None
    return next((status for cause in causes(error) if (status := _status(cause)) is not None), None)


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") or code_of(error)
    else:
        names = ("status", "status_code", "code")
        values = (getattr(answer, name, None) for answer in (error, response) for name in names)
        status = next((value for value in values if value is not None), None)
    text = str(status)
    return int(text) if text.isdecimal() and 100 <= whole_number(text) < 600 else None


def code_of(error: BaseException | None) -> str:
    """Return S3's code for a failure. It is in botocore's error, which is the cause of s3fs's error."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def retry_after(error: BaseException) -> float:
    """Return the pause in seconds that a server requests, or 0."""
    for cause in causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        else:
            headers = getattr(cause, "headers", None) or getattr(response, "headers", None)
        for name, value in dict(headers or {}).items():
            if str(name).lower() == "retry-after":
                return _seconds(str(value))
    return 0.0


def _seconds(text: str) -> float:
    """Parse a Retry-After and return seconds. RFC 9110, 10.2.3: a number of seconds, or a date."""
    if text.strip().isdecimal():
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0
