"""This module accesses S3 by obstore if it is installed. Otherwise it uses s3fs, which starts more slowly.

:func:`open_s3` chooses the client. :class:`ObstoreS3` uses obstore for ranges, heads and listings; :class:`S3Store`
uses s3fs. The environment variable ``WDSCLI_STORE=fsspec`` or ``obstore`` forces the choice. botocore finds region,
endpoint and credentials (:func:`usual_account`). obstore makes the requests, without its own retries.

s3fs is used for settings that obstore does not have, and for keys that obstore may encode differently in a URL. If a
request by obstore fails before the first byte, s3fs repeats it. s3fs then succeeds, or gives the error. So results and
errors are the same with and without obstore. s3fs is also used for writing, because obstore cannot upload single parts
with conditions.

A forked process does not have the threads of obstore's runtime, and would wait forever. So if a process that used
obstore is forked, the new process reads by s3fs. Spawned workers use obstore.

This module does not know versions of objects, or when a request is retried.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cache
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from wdscli.errors import UsageError
from wdscli.storage.ends import PIECE_BYTES
from wdscli.storage.kinds import KINDS, NOTE, Entry, Store, container_of, is_file_name, kind_of
from wdscli.storage.retry import (
    CONNECT_SECONDS,
    ObjectReplaced,
    RangeAnswer,
    Transient,
    answer_of,
    code_of,
    network,
)
from wdscli.threads import ForkLock

STORE = "WDSCLI_STORE"
CONNECTIONS = 32
"""The limit of connections from one process to one store."""
_UNSIGNED = ("AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE", "FSSPEC_S3_ANON")
_NO = frozenset(("", "0", "false", "no", "off"))
_PLAIN_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*(/|$)")
_NO_LIMIT = f"{7 * 86_400}s"
"""The time for a whole answer is not limited. Only the time without a byte is."""
_CREDENTIALS_SECONDS = 300
_FAILURES_IN_A_ROW = 3
_NOTICE_SECONDS = 0.05
"""The time that obstore's threads need to notice a cancelled answer."""
# obstore and s3fs may encode other names differently in a URL.
_PLAIN_KEY = re.compile(r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_\-.=]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_\-.=]+)*")
_NO_FOLDER = ".wdscli-no-such-folder"
_SETTINGS = re.compile(r"AWS_|FSSPEC_|HOME$|(?i:https?|all)_(?i:proxy)$|REQUESTS_CA_BUNDLE$|SSL_CERT_FILE$")
"""The variables that decide how to reach S3."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_USUAL_CERTIFICATES = (
    None,
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
Answer = TypeVar("Answer")
Ask = Callable[[Any, str, str], Coroutine[Any, Any, Answer]]
Range = tuple[int, int]
Object = tuple[str, str, str | None]
"""Bucket, key and version."""
Check = Callable[[RangeAnswer], None]
Keep = Callable[[memoryview], object]
_STORES: dict[tuple[Any, ...], ObstoreS3 | None] = {}
_process = 0
"""The id of the process with obstore's threads. Processes forked from it do not have these threads."""
_is_able_here = True
_beginning, _choosing = ForkLock(), ForkLock()
_running: set[asyncio.Task[Any]] = set()
"""The asyncio tasks that read a range."""
_cancelled_at = -math.inf
"""The time when such a task was last cancelled."""


def open_s3(address: str) -> tuple[S3Store, str]:
    """Return the store of an address and the path in the store. It uses obstore if possible, otherwise s3fs. Raises
    UsageError."""
    if not container_of(address):
        raise UsageError(f"{address} has no bucket", hint="s3://BUCKET/KEY")
    kind = kind_of(address)
    endpoint = kind.endpoint() if kind.endpoint else ""
    path = address.partition("://")[2].rstrip("/")
    # Only s3fs supports the names of access points, and versions in a path.
    if _PLAIN_BUCKET.match(path) and "?versionId=" not in path:
        store = _by_obstore(endpoint, is_unsigned(), lambda: _by_s3fs(address)[0])
        if store is not None:
            return store, path
    fs, path = _by_s3fs(address)
    return S3Store(kind, fs), path


def _by_s3fs(address: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    config, kind = _s3_config(), kind_of(address)
    options: dict[str, Any] = {"config_kwargs": config}
    place = "s3://" + address.partition("://")[2]
    if kind.endpoint:
        options["endpoint_url"] = kind.endpoint()
        config["s3"] = {"addressing_style": "path"}
    if region := os.environ.get("AWS_REGION"):  # all AWS tools except botocore know this variable
        options["client_kwargs"] = {"region_name": region}
    unsigned = is_unsigned()
    if unsigned is not None:
        options["anon"] = unsigned
    fs, path = url_to_fs(place, **options)
    if unsigned is None and not fs.anon and not _has_credentials(fs):
        fs, path = url_to_fs(place, **options, anon=True)
    fs.retries = 1
    return fs, path


def _s3_config() -> dict[str, Any]:
    """Return settings that switch off botocore's retries and time limits, because wdscli has its own. They also make a
    separate client, so that other code in this process keeps its client."""
    from botocore.config import Config
    from fsspec.config import conf

    silence = network().timeout_seconds
    own: dict[str, Any] = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},  # the first attempt is counted
        "max_pool_connections": CONNECTIONS,
        "connect_timeout": min(silence, CONNECT_SECONDS),
        "read_timeout": silence,
    }
    if "response_checksum_validation" in Config.OPTION_DEFAULTS:
        # Some stores send the checksum of the whole object with a range. botocore would compare it with the range.
        own["response_checksum_validation"] = "when_required"
    return {**own, **conf.get("s3", {}).get("config_kwargs", {})}


def is_unsigned() -> bool | None:
    """Return whether the environment switches signatures off, or None if it has no such setting."""
    texts = [os.environ[name] for name in _UNSIGNED if name in os.environ]
    return any(text.strip().lower() not in _NO for text in texts) if texts else None


def _has_credentials(fs: Any) -> bool:
    """Return whether the client of an S3 file system has found credentials."""
    client = fs._s3
    if client is None:
        fs.connect()
        client = fs._s3
    return getattr(getattr(client, "_request_signer", None), "_credentials", fs) is not None


def why_denied(store: S3Store | None) -> str:
    """Return the hint for a denied access, or None for another kind of store."""
    unsigned = is_unsigned() if store else False
    if unsigned is None and store and not store.is_signed:
        return "no credentials were found: set AWS_PROFILE or AWS_ACCESS_KEY_ID"
    if unsigned:
        return f"requests are not signed, because the environment says so ({' or '.join(_UNSIGNED)})"
    return "check the credentials and the bucket's policy"


def store_name() -> str:
    """Return the library that reads from S3: ``obstore`` or ``s3fs``. Raises UsageError for an impossible choice."""
    choice = os.environ.get(STORE, "").strip().lower()
    if choice not in ("", "fsspec", "obstore"):
        raise UsageError(f"{STORE} must be fsspec or obstore, not {choice}")
    if choice == "fsspec":
        return "s3fs"
    missing = _why_missing()
    if not missing:
        return "obstore"
    if choice:
        raise UsageError(f"{STORE}=obstore: {missing}", hint="pip install obstore")
    return "s3fs"


def _why_missing() -> str:
    """Return the reason why obstore cannot be used. It is empty if obstore can be used."""
    from importlib.util import find_spec

    if find_spec("obstore") is None:
        return "it is not installed"
    try:
        import obstore.store  # noqa: F401
    except Exception as error:  # the package is for another machine or another Python
        reason = str(error).partition("\n")[0]
        return f"it cannot be loaded ({reason})"
    return ""


def _may_run() -> bool:
    """Return whether obstore works in this process. It does not if this process was forked from a process that used
    obstore."""
    if _process != os.getpid():
        with _beginning:
            if _process != os.getpid():
                _begin()
    return _is_able_here


def _begin() -> None:
    """Set up this process once. State from a parent process cannot be used."""
    global _process, _is_able_here
    if _process:
        _STORES.clear()
        _running.clear()
        _loop.cache_clear()
        _is_able_here = False
    else:
        atexit.register(_cancel_all)
    _process = os.getpid()


def _cancel_all() -> None:
    """Cancel the running tasks before the interpreter shuts down. Otherwise an answer that arrives in a thread of
    obstore would abort the process."""
    if _process != os.getpid():
        return
    for task in list(_running):
        with suppress(RuntimeError):  # the loop is closed
            task.get_loop().call_soon_threadsafe(task.cancel)
    since = 0.0 if _running else monotonic() - _cancelled_at
    sleep(max(_NOTICE_SECONDS - since, 0))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return an event loop in its own thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="obstore", daemon=True).start()
    return loop


class Account(NamedTuple):
    """The endpoint of S3 and botocore's credentials. Without credentials, requests are not signed."""

    endpoint: str
    region: str
    credentials: Any = None

    async def provide(self) -> dict[str, Any]:
        """Return the credentials in obstore's form. obstore calls this again when they expire, and botocore refreshes
        them."""
        frozen = await asyncio.to_thread(self.credentials.get_frozen_credentials)
        keys = {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
        }
        return {**keys, "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_CREDENTIALS_SECONDS)}


def usual_account(endpoint: str, unsigned: bool | None) -> Account | None:
    """Return endpoint, region and credentials from botocore's session. Return None for settings that only s3fs
    supports, and for settings that botocore rejects. ``endpoint`` overrides the settings. ``unsigned`` says whether the
    environment switches signatures off."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session()
    try:
        if _is_unusual(session):
            return None
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or ""
        endpoint = endpoint or _endpoint_of(session, region)
        if not endpoint or (endpoint.startswith("https:") and _has_own_certificates(session)):
            return None
        credentials = None if unsigned else session.get_credentials()
    except BotoCoreError:
        return None
    if credentials is None and unsigned is False:
        return None
    return Account(endpoint.rstrip("/"), region or "us-east-1", credentials)


def _is_unusual(session: Any) -> bool:
    """Return whether the settings need a feature that obstore does not have."""
    style = session.get_config_variable("s3") or {}
    switches = {name: value for name, value in style.items() if name != "addressing_style"}
    return (
        any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
        or style.get("addressing_style", "auto") not in ("auto", "path")
        or any(str(value).lower() == "true" for value in switches.values())
        or bool(session.get_config_variable("use_dualstack_endpoint"))
        or bool(session.get_config_variable("use_fips_endpoint"))
        or _has_fsspec_settings()
    )


def _has_fsspec_settings() -> bool:
    """Return whether fsspec has settings for S3. fsspec is imported only if it may have settings."""
    folder = os.environ.get("FSSPEC_CONFIG_DIR") or os.path.expanduser("~/.config/fsspec")
    named = any(name.startswith("FSSPEC_S3_") for name in os.environ.keys() - {"FSSPEC_S3_ANON"})
    if not (named or "fsspec.config" in sys.modules or os.path.isdir(folder)):
        return False
    from fsspec.config import conf

    return bool(set(conf.get("s3", {})) - {"anon"})


def _has_own_certificates(session: Any) -> bool:
    named = (
        session.get_config_variable("ca_bundle"),
        *map(os.environ.get, ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")),
    )
    return any(path not in _USUAL_CERTIFICATES for path in named)


def _endpoint_of(session: Any, region: str) -> str:
    """Return the endpoint in the settings, or else the endpoint of the region. It is empty if there is neither."""
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.regions import EndpointResolver

    if not session.get_config_variable("ignore_configured_endpoint_urls"):
        settings = session.full_config, session.get_scoped_config(), "s3"
        if named := ConfiguredEndpointProvider(*settings).provide():
            return str(named)
    endpoint = region and EndpointResolver(session.get_data("endpoints")).construct_endpoint("s3", region)
    return f"https://{endpoint['hostname']}" if endpoint else ""


def _by_obstore(endpoint: str, unsigned: bool | None, make: Callable[[], Any]) -> ObstoreS3 | None:
    """Return the store that uses obstore, or None if s3fs is needed. Equal settings share one store. ``make()`` makes
    s3fs's client. Raises UsageError."""
    if store_name() != "obstore" or not _may_run():
        return None
    settings = sorted(setting for setting in os.environ.items() if _SETTINGS.match(setting[0]))
    key = endpoint, unsigned, network().timeout_seconds, *settings
    with _choosing:
        if key not in _STORES:
            account = usual_account(endpoint, unsigned)
            _STORES[key] = account and ObstoreS3(account, make)
        return _STORES[key]


class S3Store(Store):
    """S3, accessed by s3fs."""

    @property
    def client(self) -> Any:
        """An object that is shared by equal stores."""
        return self.fs

    @property
    def loop(self) -> Any:
        """The event loop in which :meth:`fetch` runs."""
        return self.fs.loop

    @property
    def is_signed(self) -> bool:
        """Whether requests are signed."""
        return not self.fs.anon

    def split(self, path: str) -> Object:
        """Split a path into bucket, key and version."""
        bucket, key, version = self.fs.split_path(path)
        return bucket, key, version

    def look(self, path: str) -> Entry:
        return self.head(path) if is_file_name(path) else self.info(path)

    def head(self, path: str) -> Entry:
        """Return the entry of the object at a path. Raises FileNotFoundError."""
        from fsspec.asyn import sync

        bucket, key, _ = self.split(path)
        what = {"Bucket": bucket, "Key": key, "ChecksumMode": "ENABLED"}
        answer = sync(self.fs.loop, self.fs._call_s3, "head_object", **what)
        return self._entry({**answer, "name": path, "size": answer["ContentLength"]})

    def with_checksums(self, path: str) -> Entry:
        return S3Store.head(self, path)

    def _entry(self, about: Mapping[str, Any]) -> Entry:
        entry = super()._entry(about)
        if not (entry.version or entry.is_folder):
            raise Transient("the answer does not describe an object")
        return entry

    async def fetch(self, of: Object, part: Range, etag: str, check: Check, keep: Keep) -> None:
        """Fetch a range, by the contract in :mod:`wdscli.storage.retry`. With an ETag, only this version is fetched; an
        empty ETag means any version. ``check`` is called before ``keep`` gets bytes, and may raise Replaced and
        Transient."""
        await _fetch(self.fs, of, part, etag, check, keep)


async def _fetch(fs: Any, of: Object, part: Range, etag: str, check: Check, keep: Keep) -> None:
    """Do the work of :meth:`S3Store.fetch` by s3fs. This calls a function below s3fs's ``cat_file``, which supports no
    condition."""
    what = {"Bucket": of[0], "Key": of[1], **({"VersionId": of[2]} if of[2] else {})}
    condition = {"IfMatch": etag} if etag else {}
    try:
        answer = await fs._call_s3("get_object", **what, Range=f"bytes={part[0]}-{part[1] - 1}", **condition)
    except Exception as error:
        # If an object no longer has this range, it was replaced. If it never had the range, it may be empty.
        out_of_range = ("InvalidRange", "416") if etag or part[0] else ()
        if code_of(error.__cause__) in ("PreconditionFailed", "412", *out_of_range):
            raise ObjectReplaced from None
        raise
    body = answer["Body"]
    try:
        about = answer["ResponseMetadata"]
        check(answer_of(about["HTTPStatusCode"], about["HTTPHeaders"]))
        while data := await body.read(PIECE_BYTES):
            keep(data)
    finally:
        body.close()


class ObstoreS3(S3Store):
    """S3, accessed by obstore. ``make()`` makes s3fs's client when it is needed."""

    def __init__(self, account: Account, make: Callable[[], Any]) -> None:
        super().__init__(KINDS["s3"], None)
        self._account, self._make = account, make
        self._seconds = network().timeout_seconds
        self._buckets: dict[str, Any] = {}
        self._failures: Counter[str] = Counter()
        """By bucket: failures in a row."""
        self._making = ForkLock()

    @property
    def fs(self) -> Any:
        with self._making:
            if self._fs is None:
                self._fs = self._make()
                self._fs.connect()
            return self._fs

    def prepare(self) -> None:
        def make() -> None:
            with suppress(Exception):  # the first use raises the error again
                _ = self.fs

        if self._fs is None and not self._making.locked():
            threading.Thread(target=make, name="wdscli-s3fs", daemon=True).start()

    @property
    def client(self) -> Any:
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return _loop()

    @property
    def is_signed(self) -> bool:
        return self._account.credentials is not None

    def forget(self) -> None:
        if self._fs is not None:
            self._fs.invalidate_cache()

    def split(self, path: str) -> Object:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def _client(self, bucket: str, key: str) -> Any:
        """Return obstore's client for a bucket, or None if s3fs is needed."""
        if (key and not _PLAIN_KEY.fullmatch(key)) or self._failures[bucket] >= _FAILURES_IN_A_ROW:
            return None
        if bucket not in self._buckets:
            from obstore.store import S3Store

            limit = f"{max(1, int(min(self._seconds, 30)))}s"
            signed = self._account.provide if self.is_signed else None
            self._buckets[bucket] = S3Store(
                bucket,
                endpoint=self._account.endpoint,
                region=self._account.region,
                virtual_hosted_style_request=False,
                client_options={"allow_http": True, "timeout": _NO_LIMIT, "connect_timeout": limit},
                retry_config={"max_retries": 0},
                credential_provider=signed,
                **({} if signed else {"skip_signature": True}),
            )
        return self._buckets[bucket]

    def _note(self, bucket: str, *, failed: bool) -> None:
        self._failures[bucket] = self._failures[bucket] + 1 if failed else 0

    async def fetch(self, of: Object, part: Range, etag: str, check: Check, keep: Keep) -> None:
        if not await self._is_fetched(of, part, etag, check, keep):
            fs = await asyncio.to_thread(lambda: self.fs)
            work = _fetch(fs, of, part, etag, check, keep)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, fs.loop))

    async def _is_fetched(self, of: Object, part: Range, etag: str, check: Check, keep: Keep) -> bool:
        """Do the work of :meth:`fetch` by obstore. Return False if no bytes came, so that s3fs must try."""
        global _cancelled_at
        client = self._client(*of[:2])
        task = asyncio.current_task()
        if client is None or task is None:
            return False
        kept = False
        _running.add(task)
        try:
            async for piece in _pieces(client, of[1], part, etag, check):
                kept = True
                keep(memoryview(piece))
        except asyncio.CancelledError:
            _cancelled_at = monotonic()
            raise
        except (ObjectReplaced, Transient):
            raise
        except Exception as error:
            if kept:
                raise Transient(str(error).partition("\n")[0]) from error
            if _says(error, "NoSuchKey"):
                raise FileNotFoundError(of[1]) from None
            if etag and _says(error, "PreconditionFailed"):
                raise ObjectReplaced from None
            self._note(of[0], failed=True)
            return False
        finally:
            _running.discard(task)
        self._note(of[0], failed=False)
        return True

    def head(self, path: str) -> Entry:
        return self._answer(path, self._head, super().head)

    def info(self, path: str) -> Entry:
        return self._answer(path, self._info, super().info)

    def entries(self, path: str) -> list[Entry]:
        return self._answer(path, self._list, super().entries)

    def _answer(self, path: str, ask: Ask[Answer], otherwise: Callable[[str], Answer]) -> Answer:
        """Return the answer to a request about a path, by obstore or else by s3fs."""
        bucket, key, _ = self.split(path)
        client = self._client(bucket, key)
        if client is None:
            return otherwise(path)
        seconds = network().timeout_seconds
        work = asyncio.wait_for(ask(client, bucket, key), seconds)
        try:
            answer = asyncio.run_coroutine_threadsafe(work, self.loop).result()
        except FileNotFoundError:
            self._note(bucket, failed=False)
            raise
        except (TimeoutError, asyncio.TimeoutError):
            raise Transient(f"no data arrived for {seconds:g} seconds") from None
        except Exception:
            self._note(bucket, failed=True)
            return otherwise(path)
        self._note(bucket, failed=False)
        return answer

    async def _head(self, client: Any, bucket: str, key: str) -> Entry:
        import obstore

        return self._described(bucket, await obstore.head_async(client, key))

    async def _info(self, client: Any, bucket: str, key: str) -> Entry:
        import obstore

        if key:
            with suppress(FileNotFoundError):
                return await self._head(client, bucket, key)
        # The listing shows whether the folder or the bucket exists.
        async for page in obstore.list(client, key or _NO_FOLDER, chunk_size=1):
            if page:
                break
        else:
            if key:
                raise FileNotFoundError(f"{bucket}/{key}")
        return Entry(f"{bucket}/{key}", 0, is_folder=True)

    async def _list(self, client: Any, bucket: str, key: str) -> list[Entry]:
        import obstore

        answer = await obstore.list_with_delimiter_async(client, key or None)
        entries = [Entry(f"{bucket}/{name}", 0, is_folder=True) for name in answer["common_prefixes"]]
        entries += [self._described(bucket, meta) for meta in answer["objects"]]
        if key and not entries:
            raise FileNotFoundError(f"{bucket}/{key}")
        return entries

    def _described(self, bucket: str, meta: Mapping[str, Any]) -> Entry:
        return self._entry({"name": f"{bucket}/{meta['path']}", "size": meta["size"], "ETag": meta["e_tag"]})


async def _pieces(client: Any, key: str, part: Range, etag: str, check: Check) -> AsyncIterator[Any]:
    import obstore

    pinned = {"if_match": etag} if etag else {}
    answer = await obstore.get_async(client, key, options={"range": part, **pinned})
    (first, stop), meta = answer.range, answer.meta
    note = getattr(answer, "attributes", {}).get(NOTE, "")
    # obstore raises an error for an answer without status 206 or Content-Range.
    check(RangeAnswer(206, (first, stop), meta["size"], None, meta["e_tag"] or "", note=note))
    if part[1] - part[0] <= PIECE_BYTES:
        yield await answer.bytes_async()
    else:
        async for piece in answer.stream(min_chunk_size=PIECE_BYTES):
            yield piece


def _says(error: Exception, code: str) -> bool:
    """Return whether obstore's error contains this code of S3."""
    return f"<Code>{code}</Code>" in str(error)
