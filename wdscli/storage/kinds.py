"""This module has the table of stores. It contains all differences between kinds of stores, except S3's client.

:data:`KINDS` has a row for each scheme. A row names the Python package for a store, and the hints for users. It defines
how versions are distinguished, and how only one version is read. It also defines which errors of the client are
transient, and how a write ends. :class:`Store` wraps an fsspec client, and its answers are :class:`Entry`. Other
modules get a row by :func:`kind_of`, and have no list of schemes. A scheme without a row uses fsspec with the defaults.
To add a store that fsspec knows, add its row here, a server to ``tests/support/stores.py``, and a line to ``man
wdscli-storage``.

This module does not know when a request is retried, or how an error is shown to users.
"""

from __future__ import annotations

import os
import re
from binascii import a2b_base64
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from wdscli.errors import UsageError, nearest
from wdscli.shown import PLAIN_LOGINS
from wdscli.storage.addresses import PORTS, is_local, is_web, scheme

TOKEN = "WDSCLI_HTTP_TOKEN"
AIS = "AIS_ENDPOINT"
# RFC 6750, 2.1: b64token = 1*( ALPHA / DIGIT / "-" / "." / "_" / "~" / "+" / "/" ) *"="
_TOKEN_OF_HOST = r"([A-Za-z0-9.\-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?=([A-Za-z0-9\-._~+/]+=*)"
_HOST = r"(?i)https?://(?:[^/?#]*@)?(\[[^\]/]*\]|[^/?#:]*)(:[0-9]+)?"
_WORD = r"(?s)([A-Za-z][A-Za-z0-9+.\-]+):(/{0,2})([^/].*)"
_FILES = (".json", ".done", ".wdx")
NOTE = "wdscli-note"
"""The name of an object's note on S3; the prefix is ``x-amz-meta-``."""

ReadVersion = Callable[[Any, str, Any], Callable[[int, int], Awaitable[bytes]]]
"""A function that takes a client, a path and a version. It returns a function that reads a range of that version."""


DiscardBlocks = Callable[[Any, str, Callable[[str], bool]], Coroutine[Any, Any, list[str]]]
"""A function that takes a client, a path prefix and a filter for the rest of a path. It returns the rests of the paths
that were not discarded."""


class StoreKind(NamedTuple):
    """A row of the table. The defaults fit a usual remote file system of fsspec."""

    package: str | None = None
    """The package to install with pip, besides fsspec."""
    container: str = ""
    """The store's word for a container of objects. It is empty if the store has folders."""
    login: str = "check the credentials"
    """The hint if the store refuses an account."""
    no_login: str = "log in with the store's own tool first"
    """The hint if the client finds no account."""
    has_plain_login: bool = False
    """Whether a login without password in an address is the name of a user or a container."""
    is_account_checked: bool = False
    """Whether the client raises ValueError for a missing or malformed account."""
    is_s3: bool = False
    """Whether the store has the S3 interface. Then a read can require an ETag, listings have ETags, and an object may
    have a note."""
    versions: tuple[str, ...] = (
        "ETag", "etag", "blob_id", "md5Hash", "LastModified", "last_modified", "mtime", "created",
    )  # fmt: skip
    """The names under which the client may report a version, the best name first."""
    etags: Literal["", "bytes", "versions"] = ""
    """What the store's ETags surely identify: nothing, the bytes by MD5, or each version."""
    pin: str = ""
    """The name under which the client reports the version for ``read_version``."""
    read_version: ReadVersion | None = None
    replaced: frozenset[str] = frozenset()
    """Error classes that ``read_version`` raises if the object was replaced."""
    passing: frozenset[str] = frozenset()
    """Transient error classes of the client, and transient error codes of the store."""
    writes: Literal["parts", "upload", "rename", "never"] = "rename"
    """How a write ends: by wdscli's multipart upload, by the client's upload, by a rename, or never (no writes)."""
    discard_blocks: DiscardBlocks | None = None
    """A function that discards the blocks left by an aborted upload. Only a special listing finds these blocks."""
    endpoint: Callable[[], str] | None = None
    """The S3 endpoint, for a store whose addresses imply it."""
    options: Callable[[str], dict[str, Any]] | None = None
    """A function that returns the options for making an address's client."""
    prepare: Callable[[Any], None] | None = None
    """A function that changes a client after it is made."""


def kind_of(address: str) -> StoreKind:
    """Return the row for an address."""
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


async def _discard_azure_blocks(fs: Any, start: str, is_chosen: Callable[[str], bool]) -> list[str]:
    """Discard uncommitted blocks of missing Azure blobs. The blobs have names that begin with ``start``, and the filter
    accepts the rest of the name. Return the names that remain."""
    container, _, prefix = start.partition("/")
    kept: list[str] = []
    async with fs.service_client.get_container_client(container) as client:
        async for blob in client.list_blobs(name_starts_with=prefix, include=["uncommittedblobs"]):
            name = blob.name.removeprefix(prefix)
            if blob.size or not is_chosen(name) or await client.get_blob_client(blob.name).exists():
                continue
            kept.append(name)
            # A later writer's blocks are younger. An ETag condition is impossible, because uncommitted blocks have no
            # ETag.
            if blob.last_modified:
                with suppress(Exception):
                    await client.delete_blob(blob.name, if_unmodified_since=blob.last_modified)
                    kept.remove(name)
    return kept


def _google_options(address: str) -> dict[str, Any]:
    from logging import NullHandler, getLogger

    # Without a handler, Python would print gcsfs's log records, with tracebacks of errors that wdscli explains itself.
    if not getLogger("gcsfs").handlers:
        getLogger("gcsfs").addHandler(NullHandler())
    # Any option, even an empty option, makes a separate client, so that other code in this process keeps its own
    # client.
    return {"session_kwargs": {}}


def _without_google_retries(fs: Any) -> None:
    """Switch off the six attempts of gcsfs, which would make each attempt of wdscli take half a minute."""
    from functools import partial

    once = getattr(type(fs)._request, "__wrapped__", None)
    if once is not None:
        fs._request = partial(once, fs)


def _web_options(address: str) -> dict[str, Any]:
    token = token_for(address)
    if token is not None:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    # With trust_env, aiohttp takes logins from ~/.netrc (or $NETRC), and proxies from the environment.
    return {"client_kwargs": {"trust_env": True}}


def ais_endpoint() -> str:
    """Return the S3 endpoint of AIStore. Raises UsageError if AIS_ENDPOINT is missing or is no URL."""
    endpoint = os.environ.get(AIS, "").strip().rstrip("/")
    if not endpoint:
        raise UsageError(
            f"ais:// needs the address of an AIStore: {AIS} is not set", hint=f"export {AIS}=http://HOST:PORT"
        )
    if not is_web(endpoint):
        raise UsageError(
            f"{AIS} is not the address of a server: {endpoint}", hint=f"export {AIS}=http://HOST:PORT"
        )
    return f"{endpoint}/s3"


def token_for(address: str) -> str | None:
    """Return the token for the host of a web address, from the environment. Raises UsageError for a token without a
    host.

    >>> import os
    >>> os.environ["WDSCLI_HTTP_TOKEN"] = "data.example.org=abc other.org:8080=d"
    >>> token_for("https://data.example.org/a.tar"), token_for("https://example.org/a.tar")
    ('abc', None)
    >>> del os.environ["WDSCLI_HTTP_TOKEN"]
    """
    tokens = os.environ.get(TOKEN, "")
    host_match = re.match(_HOST, address) if tokens else None
    if host_match is None:
        return None
    host, port = host_match[1].lower(), host_match[2] or PORTS[scheme(address)]
    for token in tokens.split():
        match = re.fullmatch(_TOKEN_OF_HOST, token)
        if match is None:
            raise UsageError(
                f"{TOKEN} has a token without a host", hint=f"export {TOKEN}=HOST=TOKEN, or HOST:PORT=TOKEN"
            )
        if match[1].lower() == host and match[2] in (None, port):
            return match[3]
    return None


_OTHER = StoreKind(
    passing=frozenset(
        (
            "FSTimeoutError",  # fsspec
            "ProtocolError", "ChunkedEncodingError", "IncompleteRead", "RemoteDisconnected",  # urllib3, requests, http
            "TimeoutError",  # asyncio, before Python 3.11
        )
    )
)  # fmt: skip
_S3 = StoreKind(
    package="s3fs",
    container="bucket",
    no_login="set AWS_PROFILE or AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for a public bucket",
    is_s3=True,
    etags="bytes",
    pin="ETag",
    passing=frozenset(
        (
            "HTTPClientError", "EndpointConnectionError", "ConnectTimeoutError", "IncompleteReadError",
            "ResponseParserError",
            # S3's error codes.
            "SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException",
        )
    ),
    writes="parts",
)  # fmt: skip
_GOOGLE = StoreKind(
    package="gcsfs",
    container="bucket",
    login="choose the account with gcloud auth application-default login or GOOGLE_APPLICATION_CREDENTIALS",
    etags="versions",
    pin="generation",
    read_version=_read_google,
    replaced=frozenset(("FileNotFoundError",)),
    writes="upload",
    options=_google_options,
    prepare=_without_google_retries,
)
_AZURE = StoreKind(
    package="adlfs",
    container="container",
    has_plain_login=True,
    login="set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with a key or login",
    is_account_checked=True,
    etags="versions",
    pin="etag",
    read_version=_read_azure,
    replaced=frozenset(("ResourceModifiedError", "ResourceNotFoundError")),
    passing=frozenset(("ServiceRequestError", "ServiceResponseError")),
    writes="upload",
    discard_blocks=_discard_azure_blocks,
)
_WEB = StoreKind(
    package="aiohttp",
    login=f"logins are taken from ~/.netrc, tokens from {TOKEN}=HOST=TOKEN",
    passing=frozenset(
        ("ClientConnectionError", "ClientPayloadError", "ClientOSError", "HttpProcessingError")
    ),
    writes="never",
    options=_web_options,
)
_HUB = StoreKind(
    package="huggingface_hub",
    container="repository",
    has_plain_login=True,
    login="choose the account with hf auth login or HF_TOKEN",
    writes="upload",
)
_SSH = StoreKind(package="paramiko", has_plain_login=True)
KINDS: dict[str, StoreKind] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    "ais": _S3._replace(endpoint=ais_endpoint),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
    **dict.fromkeys(("http", "https"), _WEB),
    **dict.fromkeys(("sftp", "ssh"), _SSH),
    "hf": _HUB,
    "oss": StoreKind(package="ossfs", container="bucket", writes="upload", etags="bytes"),
    "adl": StoreKind(package="adlfs", has_plain_login=True),
    "smb": StoreKind(package="smbprotocol", has_plain_login=True),
    **dict.fromkeys(("wasb", "wasbs", "scp", "ftp", "hdfs", "git", "svn"), StoreKind(has_plain_login=True)),
}
PLAIN_LOGINS.update(name for name, kind in KINDS.items() if kind.has_plain_login)
CLOUDS = {"aws": "s3", "gcp": "gs", "google": "gs", "azure": "az"}
"""The scheme of a cloud's store, by the names that other programs use for the cloud."""
PASSING = frozenset().union(*(kind.passing for kind in (_OTHER, *KINDS.values())))
"""The transient errors of all stores together, because clients use each other's libraries."""


def root_of(address: str) -> str:
    """Return the address of an object's container."""
    name, _, path = address.partition("://")
    parts = path.split("/")
    # The address is hf://datasets/owner/name, or hf://owner/name for a model.
    depth = 1 if name != "hf" else 3 if parts[0] in ("datasets", "spaces", "buckets") else 2
    return f"{name}://{'/'.join(parts[:depth])}"


def container_of(address: str) -> str:
    """Return the name of an object's container.

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


# For every object, some stores report the MD5 of zero bytes, or only zeros.
_MD5 = r'"(?!(.)\1{31}|d41d8cd98f00b204e9800998ecf8427e)[0-9a-f]{32}(-[0-9]+)?"'


def stored_version(address: str, version: str) -> str:
    """Return the scheme of a store and the version of a source, in the form of an index. The result is empty for a
    local file. It is also empty for a time of change, which belongs to a copy and not to the bytes."""
    is_etag = version.startswith(("etag:", '"')) and scheme(address) not in ("file", "local")
    return f"{scheme(address)} {version.removeprefix('etag:')}" if is_etag else ""


def source_version(stored: str) -> str:
    """Return the version of a source, from its :func:`stored_version`."""
    return f"etag:{stored.partition(' ')[2]}"


def etag_of(stored: str) -> str:
    """Return the ETag in a :func:`stored_version`, without quotes."""
    return stored.partition(" ")[2].strip('"')


def note_of(stored: str, checksum: str | None = None) -> str:
    """Return the note that S3 stores with an index: the :func:`stored_version` of the shard, and its checksum if
    known."""
    return f"{etag_of(stored)} {checksum}" if checksum else etag_of(stored)


def parse_note(address: str, note: str) -> tuple[str, str]:
    """Return the version and checksum of the shard at ``address``, from the note of its index (:func:`note_of`). They
    are empty if unknown."""
    etag, _, checksum = note.partition(" ")
    return stored_version(address, etag and f'"{etag}"'), checksum


def tells_bytes(stored: str) -> bool:
    """Return whether this :func:`stored_version` proves that an object still has the same bytes. It does if the store
    makes ETags from the bytes, or a new ETag for each version. Web servers make ETags from times of change, and some
    S3-like stores have the same ETag for all objects.

    >>> [tells_bytes(f's3 "{one}"') for one in ("900150983cd24fb0d6963f7d28e17f72-2", "5f3e1a2b-1c00", "0" * 32 + "-1")]
    [True, False, False]
    """
    kind, _, etag = stored.partition(" ")
    etags = KINDS.get(kind, _OTHER).etags
    return etags == "versions" or (etags == "bytes" and re.fullmatch(_MD5, etag) is not None)


def is_other_version(before: str, now: str) -> bool:
    """Return whether two stored versions come from the same kind of store and differ. Versions from different kinds of
    stores cannot be compared."""
    return bool(before and now) and before != now and before.partition(" ")[0] == now.partition(" ")[0]


_CHECKSUMS = {
    "ChecksumCRC64NVME": "crc64nvme",
    **dict.fromkeys(("ChecksumCRC32C", "crc32c"), "crc32c"),
    "ChecksumCRC32": "crc32",
    "md5Hash": "md5",
}
"""The names of checksums in wdscli-index(5), by the names in the answers of S3 and Google."""


class Entry(NamedTuple):
    """A store's facts about an object or a folder. ``version`` has the form of a Source's version. ``pin`` is the
    version that a read can require. ``etag`` has the store's own form. ``checksums`` are those that the store keeps of
    all bytes, in the form for :func:`wdscli.tar.crc.agrees`. A missing value is empty or None."""

    path: str
    size: int | None = None
    is_folder: bool = False
    version: str = ""
    etag: str = ""
    pin: Any = None
    checksums: Mapping[str, str] = {}


class Store:
    """A store, accessed by fsspec's client ``fs``. Paths have the client's form, and errors are the client's errors."""

    def __init__(self, kind: StoreKind, fs: Any) -> None:
        self.kind = kind
        self._fs = fs

    @property
    def fs(self) -> Any:
        """fsspec's client."""
        return self._fs

    def prepare(self) -> None:
        """Start to create the client in the background."""

    def forget(self) -> None:
        """Drop cached answers, so that the next answers are current."""
        self.fs.invalidate_cache()

    def look(self, path: str) -> Entry:
        """Return the entry at a path. Raises FileNotFoundError."""
        return self.info(path)

    def info(self, path: str) -> Entry:
        """Do the same as :meth:`look`, for a path that may be a folder."""
        return self._entry(self.fs.info(path))

    def with_checksums(self, path: str) -> Entry:
        """Return the entry of the object at a path, with its checksums. Raises FileNotFoundError."""
        return self.info(path)

    def entries(self, path: str) -> list[Entry]:
        """Return the entries of a folder."""
        return list(map(self._entry, self.fs.ls(path, detail=True)))

    def glob(self, path: str) -> list[Entry]:
        """Return the entries that match a pattern."""
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
        size = None if about.get("size") is None else checked_size(int(about["size"]), about["name"])
        pin, checksums = about.get(self.kind.pin), _checksums_in(about)
        return Entry(about["name"], size, is_folder, version, etag, pin, checksums)


def _checksums_in(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums in a store's answer. S3 and Google write them in Base64. S3 adds the number of parts to the
    CRC of parts. Some stores write this number only into the ETag."""
    checksums = {}
    parts_of_etag = "" if about.get("ChecksumType") == "FULL_OBJECT" else str(about.get("ETag", ""))
    for answer_name in _CHECKSUMS.keys() & about.keys():
        name = _CHECKSUMS[answer_name]
        text, _, parts = str(about[answer_name]).partition("-")
        parts = parts or ("" if name == "crc64nvme" else parts_of_etag.strip('"').partition("-")[2])
        with suppress(ValueError):
            checksums[name] = a2b_base64(text).hex() + (parts and f"-{parts}")
    return checksums


def checked_size(size: int, path: str) -> int:
    """Return the size of an object, as its store reports it. Raises OSError for a size that no object has."""
    if not 0 <= size < 1 << 63:
        raise OSError(f"the store reports {size} bytes for {path}")
    return size


def is_file_name(path: str) -> bool:
    """Return whether a path has the name of a shard or of a side file. Such a path is not checked for being a
    folder."""
    name = path.rpartition("/")[2]
    return ".tar" in name or name.endswith(_FILES)


def meant_address(address: str) -> str | None:
    """Return a hint for a local address, or an address of an unknown scheme, that looks like a mistyped URL or command:
    ``s3:/bucket/x``, ``htps://host/x``, ``pip:CMD``. Return None for the name of an existing file."""
    match = re.match(_WORD, address)
    if match is None or (is_local(address) and os.path.lexists(address)):
        return None
    word, slashes, after = match[1].lower(), match[2], match[3]
    if word not in KINDS:
        word = next(iter(nearest(word, KINDS if slashes else ["pipe"], 0.74)), "")
    elif slashes == "//":
        return None
    return f"did you mean {word}:{after if word == 'pipe' else '//' + after}?" if word else None
