"""What is particular of each kind of store: one table, and a store's answers in storage's own words.

What it is: :data:`KINDS`, a row for each scheme; :class:`Store`, a client of fsspec whose answers are :class:`Entry`.
How: a row says which package serves a store, what tells its versions apart, how a read is held to one of them, which
of its client's errors may pass, how a write ends, and which hints help. All other modules look a row up
(:func:`kind_of`) and hold no list of schemes. A scheme without a row is served by fsspec alone. To add a store that
fsspec knows: add its row here, a server to ``tests/support/stores.py``, and a line to ``man wdscli-storage``.

It must not know when a request is made again, nor what an error looks like to a user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from wdscli.errors import UsageError
from wdscli.storage.addresses import is_web, scheme

TOKEN = "WDSCLI_HTTP_TOKEN"
AIS = "AIS_ENDPOINT"
_PORTS = {"http": ":80", "https": ":443"}
# RFC 6750, 2.1: b64token = 1*( ALPHA / DIGIT / "-" / "." / "_" / "~" / "+" / "/" ) *"="
_TOKEN_OF_HOST = re.compile(r"([A-Za-z0-9.\-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?=([A-Za-z0-9\-._~+/]+=*)")
_HOST = re.compile(r"https?://(?:[^/?#]*@)?(\[[^\]/]*\]|[^/?#:]*)(:[0-9]+)?", re.IGNORECASE)
_FILES = (".json", ".done", ".wdx")

ReadVersion = Callable[[Any, str, Any], Callable[[int, int], Awaitable[bytes]]]
"""Of a client, a path and a version: what reads a range of that version."""


class Kind(NamedTuple):
    """A row of the table. The defaults are those of a file system on another machine, as fsspec has many."""

    package: str | None = None
    """What pip installs, beside fsspec."""
    container: str = ""
    """The store's word for what objects lie in; empty where objects lie in folders."""
    login: str = "check the credentials"
    """The hint where the store refuses an account."""
    no_login: str = "log in with the store's own tool first"
    """The hint where its client finds no account."""
    is_account_checked: bool = False
    """Whether its client refuses an account that it does not find, or that makes no sense, by a ValueError."""
    is_s3: bool = False
    """Whether it speaks S3: reads are held to an ETag, which listings tell too, and an object may have a note."""
    versions: tuple[str, ...] = (
        "ETag", "etag", "blob_id", "md5Hash", "LastModified", "last_modified", "mtime", "created",
    )  # fmt: skip
    """The names under which its client may tell a version, the best first."""
    pin: str = ""
    """The name under which its client tells the version that ``read_version`` takes."""
    read_version: ReadVersion | None = None
    replaced: frozenset[str] = frozenset()
    """Classes of errors by which ``read_version`` says that the object is another one now."""
    passing: frozenset[str] = frozenset()
    """Classes of its client's errors that may pass, and codes of the store's own."""
    writes: Literal["parts", "upload", "rename", "never"] = "rename"
    """How a write ends: by our own upload of parts, by the client's upload, by a rename, or not at all."""
    leaves_blocks: bool = False
    """Whether an upload that is given up leaves blocks that only a listing of them finds."""
    endpoint: Callable[[], str] | None = None
    """Where a store that speaks S3 is, if its addresses mean one endpoint."""
    options: Callable[[str], dict[str, Any]] | None = None
    """What the client for an address is made with."""
    prepare: Callable[[Any], None] | None = None
    """What is done to a client once it is made."""


def kind_of(address: str) -> Kind:
    """The row of an address."""
    return KINDS.get(scheme(address), _OTHER)


def _read_google(fs: Any, path: str, generation: Any) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(begin: int, end: int) -> bytes:
        data: bytes = await fs._cat_file(path, begin, end, generation=generation)
        return data

    return read


def _read_azure(fs: Any, path: str, etag: Any) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(begin: int, end: int) -> bytes:
        from azure.core import MatchConditions

        container, blob, _ = fs.split_path(path)
        pinned = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
            answer = await client.download_blob(offset=begin, length=end - begin, **pinned)
            data: bytes = await answer.readall()
        return data

    return read


def _google_options(address: str) -> dict[str, Any]:
    from logging import NullHandler, getLogger

    # Without any handler Python would print what gcsfs logs, with tracebacks of errors that we explain.
    if not getLogger("gcsfs").handlers:
        getLogger("gcsfs").addHandler(NullHandler())
    # An option, even an empty one, makes a client of our own: other programs in this process keep theirs.
    return {"session_kwargs": {}}


def _without_google_retries(fs: Any) -> None:
    """gcsfs makes six attempts, so that each of ours would take half a minute."""
    from functools import partial

    once = getattr(type(fs)._request, "__wrapped__", None)
    if once is not None:
        fs._request = partial(once, fs)


def _web_options(address: str) -> dict[str, Any]:
    token = token_for(address)
    if token is not None:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    # aiohttp's word for: logins from ~/.netrc (or $NETRC), and proxies from the environment.
    return {"client_kwargs": {"trust_env": True}}


def ais_endpoint() -> str:
    """Where AIStore speaks S3. Raises UsageError where that is not known."""
    endpoint = os.environ.get(AIS, "").strip().rstrip("/")
    if not endpoint:
        raise UsageError(
            f"ais:// needs the address of an AIStore: {AIS} is not set", hint=f"export {AIS}=http://HOST:PORT"
        )
    if not is_web(endpoint):
        raise UsageError(
            f"{AIS} is no address of a server: {endpoint}", hint=f"export {AIS}=http://HOST:PORT"
        )
    return f"{endpoint}/s3"


def token_for(address: str) -> str | None:
    """The token that the environment has for the host of a web address. Raises UsageError for one without a host.

    >>> import os
    >>> os.environ["WDSCLI_HTTP_TOKEN"] = "data.example.org=abc other.org:8080=d"
    >>> token_for("https://data.example.org/a.tar"), token_for("https://example.org/a.tar")
    ('abc', None)
    >>> del os.environ["WDSCLI_HTTP_TOKEN"]
    """
    said = os.environ.get(TOKEN, "")
    found = _HOST.match(address) if said else None
    if found is None:
        return None
    host, port = found[1].lower(), found[2] or _PORTS[scheme(address)]
    for one in said.split():
        match = _TOKEN_OF_HOST.fullmatch(one)
        if match is None:
            raise UsageError(
                f"{TOKEN} names no host that its token is for",
                hint=f"export {TOKEN}=HOST=TOKEN, or HOST:PORT=TOKEN",
            )
        if match[1].lower() == host and match[2] in (None, port):
            return match[3]
    return None


_OTHER = Kind(
    passing=frozenset(
        (
            "FSTimeoutError",  # fsspec
            "ProtocolError", "ChunkedEncodingError", "IncompleteRead", "RemoteDisconnected",  # urllib3, requests, http
            "TimeoutError",  # asyncio, before Python 3.11
        )
    )
)  # fmt: skip
_S3 = Kind(
    package="s3fs",
    container="bucket",
    no_login="set AWS_PROFILE or AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for a public bucket",
    is_s3=True,
    pin="ETag",
    passing=frozenset(
        (
            "HTTPClientError", "EndpointConnectionError", "ConnectTimeoutError", "IncompleteReadError",
            "ResponseParserError",
            # Codes of S3.
            "SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException",
        )
    ),
    writes="parts",
)  # fmt: skip
_GOOGLE = Kind(
    package="gcsfs",
    container="bucket",
    login="gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS, names the account",
    pin="generation",
    read_version=_read_google,
    replaced=frozenset(("FileNotFoundError",)),
    writes="upload",
    options=_google_options,
    prepare=_without_google_retries,
)
_AZURE = Kind(
    package="adlfs",
    container="container",
    login="AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_NAME, with a key or login, names the account",
    is_account_checked=True,
    pin="etag",
    read_version=_read_azure,
    replaced=frozenset(("ResourceModifiedError", "ResourceNotFoundError")),
    passing=frozenset(("ServiceRequestError", "ServiceResponseError")),
    writes="upload",
    leaves_blocks=True,
)
_WEB = Kind(
    package="aiohttp",
    login=f"logins are taken from ~/.netrc, tokens from {TOKEN}=HOST=TOKEN",
    passing=frozenset(
        ("ClientConnectionError", "ClientPayloadError", "ClientOSError", "HttpProcessingError")
    ),
    writes="never",
    options=_web_options,
)
_HUB = Kind(
    package="huggingface_hub",
    container="repository",
    login="hf auth login, or HF_TOKEN, names the account",
    writes="upload",
)
_SSH = Kind(package="paramiko")
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    "ais": _S3._replace(endpoint=ais_endpoint),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
    **dict.fromkeys(("http", "https"), _WEB),
    **dict.fromkeys(("sftp", "ssh"), _SSH),
    "hf": _HUB,
    "oss": Kind(package="ossfs", container="bucket", writes="upload"),
    "adl": Kind(package="adlfs"),
    "smb": Kind(package="smbprotocol"),
}
PASSING = frozenset().union(*(kind.passing for kind in (_OTHER, *KINDS.values())))
"""Of all stores: clients use each other's libraries."""


def root_of(address: str) -> str:
    """The address of the container that an object lies in."""
    name, _, path = address.partition("://")
    parts = path.split("/")
    # hf://datasets/owner/name, or hf://owner/name for a model.
    depth = 1 if name != "hf" else 3 if parts[0] in ("datasets", "spaces", "buckets") else 2
    return f"{name}://{'/'.join(parts[:depth])}"


def container_of(address: str) -> str:
    """The name of the container that an object lies in.

    >>> container_of("s3://bucket/a.tar"), container_of("abfs://container@account.dfs.core.windows.net/a.tar")
    ('bucket', 'container')
    >>> container_of("hf://datasets/owner/name@main/a.tar")
    'owner/name'
    """
    place, word = root_of(address).partition("://")[2], kind_of(address).container
    if word == "repository":
        return "/".join(place.partition("@")[0].split("/")[-2:])
    before, _, after = place.rpartition("@")
    return before if before and word == "container" else after


class Entry(NamedTuple):
    """What a store says of an object or a folder. ``version`` is that of a Source, ``pin`` what holds a read to it;
    ``etag`` is as the store writes it. What a store does not say is empty, or None."""

    path: str
    size: int | None = None
    is_folder: bool = False
    version: str = ""
    etag: str = ""
    pin: Any = None


class Store:
    """A store by fsspec's client for it, ``fs``. Paths are the client's, and so are errors."""

    def __init__(self, kind: Kind, fs: Any) -> None:
        self.kind = kind
        self._fs = fs

    @property
    def fs(self) -> Any:
        """fsspec's client."""
        return self._fs

    @property
    def client(self) -> Any:
        """The same object for two stores that are one."""
        return self.fs

    @property
    def loop(self) -> Any:
        """The event loop in which :meth:`fetch` runs."""
        return self.fs.loop

    @property
    def is_signed(self) -> bool:
        """Whether requests to S3 are signed."""
        return not self.fs.anon

    def prepare(self) -> None:
        """Begin to make the client, which will be needed."""

    def forget(self) -> None:
        """Have the next answers tell what is there now."""
        self.fs.invalidate_cache()

    def split(self, path: str) -> tuple[str, str, str | None]:
        """Bucket, key and version of a path of S3."""
        bucket, key, version = self.fs.split_path(path)
        return bucket, key, version

    def look(self, path: str) -> Entry:
        """What is at a path. Raises FileNotFoundError."""
        return self.head(path) if self.kind.is_s3 and is_file_name(path) else self.info(path)

    def head(self, path: str) -> Entry:
        """What is at a path of S3, if it is an object. Raises FileNotFoundError."""
        from fsspec.asyn import sync

        bucket, key, _ = self.split(path)
        found = sync(self.fs.loop, self.fs._call_s3, "head_object", Bucket=bucket, Key=key)
        return self._entry({**found, "name": path, "size": found["ContentLength"]})

    def info(self, path: str) -> Entry:
        """:meth:`look` at what may be a folder."""
        return self._entry(self.fs.info(path))

    def entries(self, path: str) -> list[Entry]:
        """What is in a folder."""
        return list(map(self._entry, self.fs.ls(path, detail=True)))

    def glob(self, path: str) -> list[Entry]:
        """What matches a pattern."""
        return list(map(self._entry, self.fs.glob(path, detail=True).values()))

    def remove(self, path: str) -> None:
        """Remove one object. Raises FileNotFoundError."""
        self.fs.rm_file(path)

    def _entry(self, about: Mapping[str, Any]) -> Entry:
        version = next(
            (f"{name.lower()}:{about[name]}" for name in self.kind.versions if about.get(name)), ""
        )
        etag = str(about.get("ETag") or about.get("etag") or "")
        is_folder = about.get("type") == "directory"
        size = None if about.get("size") is None else int(about["size"])
        return Entry(about["name"], size, is_folder, version, etag, about.get(self.kind.pin))


def is_file_name(path: str) -> bool:
    """Whether a path is named as a shard or what lies beside one: no folder is looked for there."""
    name = path.rpartition("/")[2]
    return ".tar" in name or name.endswith(_FILES)
