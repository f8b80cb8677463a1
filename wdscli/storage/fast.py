"""S3 by obstore, where it can be loaded: listings, looks and ranges without s3fs, whose start takes half a second.

What it is: :class:`FastS3`, which has as much of the face of s3fs's file system as reading needs, and
:class:`FastReader`, who reads ranges of one bucket. How: both are for the usual case alone, and make no retries of
their own. Where the environment and the files of AWS say plainly which key, region and endpoint hold
(:func:`plain_account`), s3fs is not imported; where botocore must look further (roles, single sign-on, the metadata of
a machine), s3fs is made as before, and obstore is given what it found. Whatever obstore cannot do, or fails at before
the first byte, is left to s3fs, which does it or says what is wrong; so results and errors are the same with it and
without. Writing is left to s3fs: obstore tells neither parts nor conditions of an upload. ``WDSCLI_STORE`` chooses:
``fsspec`` or ``obstore``.

obstore's threads belong to a runtime that is made once for a loaded library, and a fork, such as a worker of torch's
DataLoader, has the runtime without the threads: whatever waits for it would wait forever. So s3fs reads in a process
that was forked from one that used obstore. Workers that are spawned, or that come from a forkserver, use obstore.

It must not know versions of objects, nor when a request is made again.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any, NamedTuple

from wdscli.errors import UsageError
from wdscli.storage.retry import Network, Replaced, Transient, network
from wdscli.threads import ForkLock

STORE = "WDSCLI_STORE"
_PIECE_BYTES = 1 << 20
_NO_LIMIT = f"{7 * 86_400}s"
"""For a whole answer; silence is what is limited."""
_CREDENTIALS_SECONDS = 300
_FAILURES_IN_A_ROW = 3
_HEARD_SECONDS = 0.05
"""After which obstore's threads have noticed that nobody waits for an answer any more."""
# Of other names it is not certain that two libraries write them alike in a URL.
_PLAIN_KEY = re.compile(r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_\-.=]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_\-.=]+)*")
_USUAL_CERTIFICATES = (
    True,
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_READERS: dict[tuple[Any, ...], FastReader] = {}
_process = 0
"""The one whose obstore has threads; a fork of it has none."""
_is_able_here = True
_beginning = ForkLock()
_under_way: set[asyncio.Task[Any]] = set()
"""Those that read a range."""
_cancelled_at = -math.inf
"""When the last of them was given up."""


def store_name() -> str:
    """Which library reads ranges from S3: ``obstore`` or ``s3fs``. Raises UsageError for a choice that is not there."""
    said = os.environ.get(STORE, "").strip().lower()
    if said not in ("", "fsspec", "obstore"):
        raise UsageError(f"{STORE} is fsspec or obstore, not {said}")
    if said == "fsspec":
        return "s3fs"
    missing = _why_missing()
    if not missing:
        return "obstore"
    if said:
        raise UsageError(f"{STORE}=obstore: {missing}", hint="pip install obstore")
    return "s3fs"


def _why_missing() -> str:
    """Why obstore cannot be used; empty where it can."""
    from importlib.util import find_spec

    if find_spec("obstore") is None:
        return "it is not installed"
    try:
        import obstore.store  # noqa: F401
    except Exception as error:  # of another machine's build, or of another Python's
        reason = str(error).partition("\n")[0]
        return f"it cannot be loaded ({reason})"
    return ""


def fast_reader(fs: Any, bucket: str, key: str, patience: Network) -> FastReader | None:
    """Who reads an object that the file system ``fs`` can read; None where that is better left to s3fs's. Raises
    UsageError."""
    if not _PLAIN_KEY.fullmatch(key):
        return None
    if isinstance(fs, FastS3):
        return fs.reader(bucket)
    if store_name() != "obstore" or not _is_usual(fs) or not _may_run():
        return None
    meta = fs._s3.meta
    found = None if fs.anon else fs._s3._request_signer._credentials
    place = (meta.endpoint_url, meta.region_name, bucket, id(found), patience.timeout_seconds)
    if place not in _READERS:
        provider = None if found is None else _provider(found)
        _READERS[place] = FastReader(
            _store_of(bucket, meta.endpoint_url, meta.region_name, provider, patience)
        )
    reader = _READERS[place]
    return reader if reader.is_able else None


def _may_run() -> bool:
    """Whether obstore has its threads here: not in a process that was forked from one that used it."""
    if _process == os.getpid():
        return _is_able_here
    with _beginning:
        if _process != os.getpid():
            _begin()
    return _is_able_here


def _begin() -> None:
    """Once a process: nothing of what a parent had is of use."""
    global _process, _is_able_here
    if _process:
        _READERS.clear()
        _made.clear()
        _under_way.clear()
        _loop.cache_clear()
        _is_able_here = False
    else:
        atexit.register(_give_up)
    _process = os.getpid()


def _give_up() -> None:
    """Give up what is under way, before Python is taken apart: a thread of obstore that brings an answer then aborts
    the process."""
    if _process != os.getpid():
        return
    for task in list(_under_way):
        with suppress(RuntimeError):  # a loop that is closed has nothing under way
            task.get_loop().call_soon_threadsafe(task.cancel)
    since = 0.0 if _under_way else time.monotonic() - _cancelled_at
    time.sleep(max(_HEARD_SECONDS - since, 0))


def _is_usual(fs: Any) -> bool:
    """Whether an S3 file system has no settings but those that :func:`_store_of` hands on."""
    if fs._s3 is None:
        fs.connect()
    client = fs._s3
    config = client.meta.config
    style = config.s3 or {}
    is_plain = client.meta.endpoint_url.startswith("http:")
    odd = (
        not client.meta.region_name,
        fs.requester_pays or fs.req_kw or fs.s3_additional_kwargs,
        style.get("addressing_style", "auto") not in ("auto", "path") or style.get("use_accelerate_endpoint"),
        config.use_dualstack_endpoint or config.use_fips_endpoint,
        config.proxies or config.client_cert,
        not is_plain and getattr(client._endpoint.http_session, "_verify", None) not in _USUAL_CERTIFICATES,
    )
    return not any(odd)


def _store_of(bucket: str, endpoint: str, region: str, provider: Any, patience: Network) -> Any:
    """obstore's client for a bucket; ``provider`` gives it credentials, None for requests without a signature."""
    from obstore.store import S3Store

    limit = f"{max(1, int(min(patience.timeout_seconds, 30)))}s"
    given = {"skip_signature": True} if provider is None else {}
    return S3Store(
        bucket,
        endpoint=endpoint,
        region=region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": _NO_LIMIT, "connect_timeout": limit},
        retry_config={"max_retries": 0},
        credential_provider=provider,
        **given,
    )


def _provider(credentials: Any) -> Callable[[], Any]:
    """What gives obstore the credentials that botocore has found, and finds anew when they end."""

    async def provide() -> dict[str, Any]:
        frozen = await credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_CREDENTIALS_SECONDS),
        }

    return provide


class FastReader:
    """Reads ranges from one bucket. ``is_able`` is False after some failures that s3fs did not share."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._failures = 0

    @property
    def is_able(self) -> bool:
        return self._failures < _FAILURES_IN_A_ROW

    def note(self, *, failed: bool) -> None:
        """One request more, and how it went."""
        self._failures = self._failures + 1 if failed else 0

    async def fetch(
        self,
        key: str,
        begin: int,
        end: int,
        options: dict[str, Any],
        check: Callable[[Mapping[str, Any]], None],
        keep: Callable[[memoryview], object],
    ) -> bool:
        """One range, as :mod:`wdscli.storage.retry` asks for it; False when nothing came and s3fs should be asked.
        ``check`` hears of the answer's headers, before ``keep`` gets its bytes, and may raise Replaced."""
        import obstore

        global _cancelled_at
        kept = False
        task = asyncio.current_task()
        assert task is not None
        _under_way.add(task)
        try:
            answer = await obstore.get_async(self.store, key, options={"range": (begin, end), **options})
            first, last = answer.range
            size = answer.meta["size"]
            about = {"ETag": answer.meta["e_tag"], "ContentRange": f"bytes {first}-{last - 1}/{size}"}
            check({**about, "Metadata": getattr(answer, "attributes", {})})
            if end - begin <= _PIECE_BYTES:
                data = await answer.bytes_async()
                kept = True
                keep(memoryview(data))
            else:
                async for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                    kept = True
                    keep(memoryview(piece))
        except asyncio.CancelledError:
            _cancelled_at = time.monotonic()
            raise
        except (Replaced, Transient):
            raise
        except Exception as error:
            if kept:
                raise Transient(str(error).partition("\n")[0]) from error
            if _says(error, "NoSuchKey"):
                raise FileNotFoundError(key) from None
            if options and _says(error, "PreconditionFailed"):
                raise Replaced from None
            self.note(failed=True)
            return False
        finally:
            _under_way.discard(task)
        self.note(failed=False)
        return True


def _says(error: Exception, code: str) -> bool:
    """Whether the answer that obstore's error quotes has this code of S3's."""
    return f"<Code>{code}</Code>" in str(error)


class Account(NamedTuple):
    """Where S3 is, and who asks; without a ``key`` requests are not signed."""

    endpoint: str
    region: str
    key: str = ""
    secret: str = ""
    token: str = ""

    async def credentials(self) -> dict[str, Any]:
        """As obstore wants them."""
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "token": self.token or None,
            "expires_at": None,
        }


# Other variables, and other words in a profile, mean more than is known here.
_KNOWN_VARIABLES = re.compile(
    r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION|NO_SIGN_REQUEST|SKIP_SIGNATURE"
    r"|ENDPOINT_URL(_\w+)?|CA_BUNDLE|PROFILE|CONFIG_FILE|SHARED_CREDENTIALS_FILE|EC2_METADATA_\w+|PAGER"
    r"|DEFAULT_OUTPUT|MAX_ATTEMPTS|RETRY_MODE|REQUEST_CHECKSUM_CALCULATION|EXECUTION_ENV)"
    r"|FSSPEC_S3_ANON|(?!AWS_|FSSPEC_).*",
    re.DOTALL,
)
_KNOWN_WORDS = frozenset(
    (
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region", "endpoint_url", "output",
        "cli_pager", "max_attempts", "retry_mode",
    )
)  # fmt: skip
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_USUAL_REGION = re.compile(r"(us|eu|ap|ca|sa|me|af|il|mx)-[a-z]+-[0-9]+")


def plain_account(endpoint: str, unsigned: bool | None) -> Account | None:
    """Where S3 is and who asks, as far as variables and files of AWS say it plainly; None where that is for botocore to
    find out. ``endpoint`` is one that is known already, ``unsigned`` what the environment says of signatures."""
    known = os.environ
    if not all(map(_KNOWN_VARIABLES.fullmatch, known)) or _has_own_settings():
        return None
    if any(known.get(name) or known.get(name.upper()) for name in _PROXIES):
        return None
    profile = _profile()
    if profile is None:
        return None
    region = known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION") or profile.get("region", "")
    said = (
        known.get("AWS_ENDPOINT_URL_S3") or known.get("AWS_ENDPOINT_URL") or profile.get("endpoint_url", "")
    )
    endpoint = endpoint or said
    if not endpoint and _USUAL_REGION.fullmatch(region):
        endpoint = f"https://s3.{region}.amazonaws.com"
    is_plain = endpoint.startswith("http://")
    if not endpoint or not (
        is_plain or all(known.get(name, True) in _USUAL_CERTIFICATES for name in _CERTIFICATES)
    ):
        return None
    account = Account(endpoint.rstrip("/"), region or "us-east-1")
    if unsigned:
        return account
    names = ("access_key_id", "secret_access_key", "session_token")
    keys = [known.get(f"AWS_{name.upper()}", "") for name in names]
    if not (keys[0] or keys[1]):
        keys = [profile.get(f"aws_{name}", "") for name in names]
    return account._replace(key=keys[0], secret=keys[1], token=keys[2]) if keys[0] and keys[1] else None


def _has_own_settings() -> bool:
    """Whether fsspec has settings for S3, in this process or in the files that it reads."""
    import sys

    folder = os.environ.get("FSSPEC_CONFIG_DIR") or os.path.join(os.path.expanduser("~"), ".config", "fsspec")
    # Another thread may just be loading it.
    loaded = getattr(sys.modules.get("fsspec.config"), "conf", {})
    return os.path.isdir(folder) or bool(set(loaded.get("s3", {})) - {"anon"})


def _profile() -> dict[str, str] | None:
    """What the files of AWS say of the chosen profile; None where they say more than is known here, or less."""
    chosen = os.environ.get("AWS_PROFILE", "")
    found: dict[str, str] = {}
    is_there = not chosen
    for variable, usual, sections in (
        ("AWS_CONFIG_FILE", "~/.aws/config", (f"profile {chosen}", chosen) if chosen else ("default",)),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", (chosen or "default",)),
    ):
        path = os.path.expanduser(os.environ.get(variable) or usual)
        if not os.path.exists(path):
            continue
        import configparser

        parser = configparser.RawConfigParser(default_section="")
        try:
            parser.read(path, "utf-8")
        except (OSError, ValueError, configparser.Error):
            return None
        for section in filter(parser.has_section, sections):
            is_there = True
            found.update(parser.items(section))
    return found if is_there and _KNOWN_WORDS.issuperset(found) else None


_WILD = re.compile(r"[*?\[]")
_NO_FOLDER = ".wdscli-no-such-folder"
_made: dict[tuple[Account, float], FastS3] = {}


def fast_s3(endpoint: str, unsigned: bool | None, make: Callable[[], Any]) -> FastS3 | None:
    """S3 without s3fs, where that can be; ``make()`` gives s3fs's file system. See :func:`plain_account`. Raises
    UsageError."""
    if store_name() != "obstore":
        return None
    account = plain_account(endpoint, unsigned)
    if account is None or not _may_run():
        return None
    key = account, network().timeout_seconds
    if key not in _made:
        _made[key] = FastS3(account, make)
    return _made[key]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="obstore", daemon=True).start()
    return loop


class FastS3:
    """What s3fs's file system is for reading, under the same names: paths are ``bucket/key``, errors FileNotFoundError
    and what s3fs raises. :meth:`full` is s3fs's, made when it is needed."""

    def __init__(self, account: Account, make: Callable[[], Any]) -> None:
        self._account, self._make = account, make
        self._readers: dict[str, FastReader] = {}
        self._listed: dict[str, dict[str, dict[str, Any]]] = {}
        """What folders hold, by their names, as they were listed."""
        self._full: Any = None
        self._making = ForkLock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return _loop()

    @property
    def anon(self) -> bool:
        return not self._account.key

    def full(self) -> Any:
        """s3fs's file system."""
        with self._making:
            if self._full is None:
                self._full = self._make()
                self._full.connect()
            return self._full

    def prepare(self) -> None:
        """Begin to make s3fs's file system, which will be needed."""
        if self._full is None and not self._making.locked():
            threading.Thread(target=self._prepare, name="wdscli-s3fs", daemon=True).start()

    def _prepare(self) -> None:
        with suppress(Exception):  # who needs it hears of it
            self.full()

    async def by_full(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """What ``work`` does with s3fs's file system, in whose thread it runs."""
        full = await asyncio.to_thread(self.full)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(full), full.loop))

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def reader(self, bucket: str) -> FastReader | None:
        """Who reads from a bucket; None where that is better left to s3fs."""
        if bucket not in self._readers:
            account = self._account
            provider = account.credentials if account.key else None
            self._readers[bucket] = FastReader(
                _store_of(bucket, account.endpoint, account.region, provider, network())
            )
        reader = self._readers[bucket]
        return reader if reader.is_able else None

    def invalidate_cache(self) -> None:
        self._listed.clear()
        if self._full is not None:
            self._full.invalidate_cache()

    def info(self, path: str) -> dict[str, Any]:
        """Name, type, size and ETag of an object; of a folder name and type."""
        found: dict[str, Any] = self._answer(path, self._info, "info")
        return found

    def head(self, path: str) -> dict[str, Any]:
        """:meth:`info` of what is an object or not there."""
        found: dict[str, Any] = self._answer(path, self._head, "info")
        return found

    def ls(self, path: str, *, detail: bool) -> list[Any]:
        """The paths in a folder, or what is known of them, which is remembered."""
        found: list[dict[str, Any]] = self._answer(path, self._ls, "ls", detail=True)
        return found if detail else [one["name"] for one in found]

    def glob(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        """What is known of what matches, by its path."""
        from fnmatch import translate

        folder, _, pattern = path.rpartition("/")
        if not folder or _WILD.search(folder) or "**" in pattern:
            found: dict[str, dict[str, Any]] = self.full().glob(path, detail=detail)
            return found
        is_like = re.compile(translate(pattern)).match
        listed = self.ls(folder, detail=True)
        return {one["name"]: one for one in listed if is_like(one["name"].rpartition("/")[2])}

    def rm_file(self, path: str) -> None:
        """Remove one object, as s3fs does: obstore asks for many to be removed, which not every store can do."""
        self._listed.pop(path.rpartition("/")[0], None)
        self.full().rm_file(path)

    def _ls_from_cache(self, path: str) -> list[dict[str, Any]] | None:
        """What a listing has said of a path; None where there was none. Raises FileNotFoundError for what is not in
        it."""
        listed = self._listed.get(path.rpartition("/")[0])
        if listed is None:
            return None
        if path not in listed:
            raise FileNotFoundError(path)
        return [listed[path]]

    def _answer(
        self, path: str, ask: Callable[[Any, str], Coroutine[Any, Any, Any]], name: str, **options: Any
    ) -> Any:
        """The answer to a question about a path: obstore's, else s3fs's."""
        bucket, key, _ = self.split_path(path)
        reader = self.reader(bucket) if not key or _PLAIN_KEY.fullmatch(key) else None
        if reader is None:
            return getattr(self.full(), name)(path, **options)
        seconds = network().timeout_seconds
        work = asyncio.wait_for(ask(reader.store, path), seconds)
        try:
            found = asyncio.run_coroutine_threadsafe(work, self.loop).result()
        except FileNotFoundError:
            reader.note(failed=False)
            raise
        except (TimeoutError, asyncio.TimeoutError):
            raise Transient(f"nothing came for {seconds:g} seconds") from None
        except Exception:
            reader.note(failed=True)
            return getattr(self.full(), name)(path, **options)
        reader.note(failed=False)
        return found

    async def _head(self, store: Any, path: str) -> dict[str, Any]:
        import obstore

        bucket, key, _ = self.split_path(path)
        return _about(bucket, await obstore.head_async(store, key))

    async def _info(self, store: Any, path: str) -> dict[str, Any]:
        import obstore

        _, key, _ = self.split_path(path)
        if key:
            try:
                return await self._head(store, path)
            except FileNotFoundError:
                pass
        # Whether it is a folder, and whether there is such a bucket, a listing tells.
        async for page in obstore.list(store, key or _NO_FOLDER, chunk_size=1):
            if page:
                break
        else:
            if key:
                raise FileNotFoundError(path)
        return {"name": path, "type": "directory", "size": 0}

    async def _ls(self, store: Any, path: str) -> list[dict[str, Any]]:
        import obstore

        bucket, key, _ = self.split_path(path)
        answer = await obstore.list_with_delimiter_async(store, key or None)
        found: list[dict[str, Any]] = [
            {"name": f"{bucket}/{name}", "type": "directory", "size": 0} for name in answer["common_prefixes"]
        ]
        found += [_about(bucket, one) for one in answer["objects"]]
        if key and not found:
            raise FileNotFoundError(path)
        self._listed[path] = {one["name"]: one for one in found}
        return found


def s3fs_of(fs: Any) -> Any:
    """s3fs's file system, of that or of :class:`FastS3`."""
    return fs.full() if isinstance(fs, FastS3) else fs


def _about(bucket: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """What obstore says of an object, in s3fs's words."""
    return {
        "name": f"{bucket}/{meta['path']}", "type": "file", "size": meta["size"], "ETag": meta["e_tag"],
        "LastModified": meta["last_modified"],
    }  # fmt: skip
