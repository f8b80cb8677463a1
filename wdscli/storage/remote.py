"""Addresses on other machines, through fsspec: object stores, web servers, whatever it knows.

What it is: fsspec's file system for an address, the questions about remote addresses (what is there, what lies in a
folder), and what a backend raises in the words of ours (:func:`explained`). Backends raise what they like; here it
becomes InputError or OutputError with a hint. How a store is reached, the environment and the usual files say:

- ``s3://`` is left to botocore, which knows the variables and files of AWS (``AWS_PROFILE``, ``AWS_ENDPOINT_URL_S3``,
  ``~/.aws/config``); requests are not signed where ``AWS_NO_SIGN_REQUEST`` or ``FSSPEC_S3_ANON`` says so, nor where no
  credentials are found, so that public buckets can be read.
- ``ais://bucket/x`` is AIStore by its face of S3, ``AIS_ENDPOINT/s3``.
- ``http(s)://`` takes logins from ``~/.netrc`` and tokens from ``WDSCLI_HTTP_TOKEN``; a token goes to the host that it
  is for, and never along with a redirect to another.

It must not know shards. ``ranges`` has the reading half, ``uploads`` the writing one; this package is the only importer
of fsspec.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wdscli.errors import InputError, OutputError, UsageError, WdsError
from wdscli.shown import cause_of
from wdscli.storage.addresses import is_web, range_hint, scheme
from wdscli.storage.fast import FastS3, fast_s3
from wdscli.storage.retry import (
    EAI_AGAIN,
    GARBLED,
    TLS_KINDS,
    GaveUp,
    causes,
    code_of,
    kinds_of,
    network,
    retried,
    status_of,
    unresolved,
)

_PACKAGES = {
    "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs",
    "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko",
    "smb": "smbprotocol", "oss": "ossfs", "s3": "s3fs", "s3a": "s3fs", "ais": "s3fs",
}  # fmt: skip
NO_BUCKET_HINT = "check its name, and the account, region or endpoint that it is of"
CONNECTIONS = 32
"""At most, to one store from one process."""
CONNECT_SECONDS = 30.0
S3_KINDS = frozenset(("s3", "s3a", "ais"))
"""Kinds of address that S3's interface serves."""
_OTHER_BUCKETS = {
    "gs": "bucket", "gcs": "bucket", "oss": "bucket",
    "az": "container", "abfs": "container", "abfss": "container", "hf": "repository",
}  # fmt: skip
"""What objects lie in elsewhere; that it is missing is not told by the answer for an object."""
_AZURE_LOGIN = (
    "AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_NAME, with a key or login, names the account"
)
_GOOGLE_LOGIN = "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS, names the account"
_LOGINS = {
    "gs": _GOOGLE_LOGIN, "gcs": _GOOGLE_LOGIN, "hf": "hf auth login, or HF_TOKEN, names the account",
    "az": _AZURE_LOGIN, "abfs": _AZURE_LOGIN, "abfss": _AZURE_LOGIN,
}  # fmt: skip
"""Where clients of stores take accounts from."""
_found: set[str] = set()
"""Buckets that were there when this process asked."""
NOTE = "wdscli-note"
"""The name under which S3 keeps a note beside an object, behind ``x-amz-meta-``."""
TOKEN = "WDSCLI_HTTP_TOKEN"
AIS = "AIS_ENDPOINT"
_UNSIGNED = ("AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE", "FSSPEC_S3_ANON")
_NO = frozenset(("", "0", "false", "no", "off"))
# RFC 6750, 2.1: b64token = 1*( ALPHA / DIGIT / "-" / "." / "_" / "~" / "+" / "/" ) *"="
_TOKEN_OF_HOST = re.compile(r"([A-Za-z0-9.\-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?=([A-Za-z0-9\-._~+/]+=*)")
_HOST = re.compile(r"https?://(?:[^/?#]*@)?(\[[^\]/]*\]|[^/?#:]*)(:[0-9]+)?", re.IGNORECASE)
_PORTS = {"http": ":80", "https": ":443"}
_PLAIN_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*(/|$)")


def filesystem(address: str, *, fresh: bool = True) -> tuple[Any, str]:
    """fsspec's file system for ``address`` and its name there. Raises what fsspec raises. A ``fresh`` one tells what is
    there now, not what it was told before."""
    fs, path = client_of(address)
    if fresh:
        fs.invalidate_cache()
    return fs, path


def client_of(address: str) -> tuple[Any, str]:
    """fsspec's file system for ``address``, and its name there. Raises what fsspec raises, and UsageError."""
    if scheme(address) in S3_KINDS:
        return _s3(address)
    if scheme(address) in ("gs", "gcs"):
        return _google(address)
    from fsspec.core import url_to_fs

    options = web_options(address) if is_web(address) else {}
    fs, path = url_to_fs(address, **options)
    return fs, path


def _google(address: str) -> tuple[Any, str]:
    from functools import partial
    from logging import NullHandler, getLogger

    from fsspec.core import url_to_fs

    # Without any handler Python would print what gcsfs notes, tracebacks of what we explain among it.
    if not getLogger("gcsfs").handlers:
        getLogger("gcsfs").addHandler(NullHandler())
    # With an option, if only an empty one, it is one of our own; others in this process keep theirs.
    fs, path = url_to_fs(address, session_kwargs={})
    # Behind its own six attempts, each of ours would take half a minute.
    once = getattr(type(fs)._request, "__wrapped__", None)
    if once is not None:
        fs._request = partial(once, fs)
    return fs, path


def _s3(address: str) -> tuple[Any, str]:
    """By obstore where that can be, else by s3fs."""
    if not bucket_of(address):
        raise UsageError(f"{address} names no bucket", hint="s3://BUCKET/KEY")
    endpoint = ais_endpoint() if scheme(address) == "ais" else ""
    path = address.partition("://")[2].rstrip("/")
    # Of an access point's name, and of a version in it, s3fs knows the meaning.
    if _PLAIN_BUCKET.match(path) and "?versionId=" not in path:
        fast = fast_s3(endpoint, is_unsigned(), lambda: _by_s3fs(address)[0])
        if fast is not None:
            return fast, path
    return _by_s3fs(address)


def _by_s3fs(address: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    config = _s3_config()
    options: dict[str, Any] = {"config_kwargs": config}
    place = address
    if scheme(address) == "ais":
        place = "s3://" + address.partition("://")[2]
        options["endpoint_url"] = ais_endpoint()
        config["s3"] = {"addressing_style": "path"}
    if region := os.environ.get("AWS_REGION"):  # as all of AWS's tools but botocore know it
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
    """What makes a client leave retries to us, and wait as long as we do; a file system made with it is one of our own,
    so that others in this process keep theirs."""
    from botocore.config import Config
    from fsspec.config import conf

    silence = network().timeout_seconds
    own: dict[str, Any] = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},  # the first is counted
        "max_pool_connections": CONNECTIONS,
        "connect_timeout": min(silence, CONNECT_SECONDS),
        "read_timeout": silence,
    }
    if "response_checksum_validation" in Config.OPTION_DEFAULTS:
        # Some stores send the checksum of a whole object with a part of it, which the client would compare.
        own["response_checksum_validation"] = "when_required"
    return {**own, **conf.get("s3", {}).get("config_kwargs", {})}


def signs(address: str) -> bool:
    """Whether requests for an address of S3 are signed. Raises what :func:`client_of` raises."""
    return not client_of(address)[0].anon


def is_unsigned() -> bool | None:
    """Whether the environment says that requests to S3 carry no signature; None where it says nothing of it."""
    said = [os.environ[name] for name in _UNSIGNED if name in os.environ]
    return any(text.strip().lower() not in _NO for text in said) if said else None


def _has_credentials(fs: Any) -> bool:
    """Whether the client of an S3 file system has found any; it looks once, when it is made."""
    client = fs._s3
    if client is None:
        fs.connect()
        client = fs._s3
    return getattr(getattr(client, "_request_signer", None), "_credentials", fs) is not None


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


def web_options(address: str) -> dict[str, Any]:
    """What a client for a web address is made with: a token for its host, else logins from netrc."""
    token = token_for(address)
    if token is not None:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    # aiohttp's word for: logins from ~/.netrc (or $NETRC), and proxies, as the environment has them.
    return {"client_kwargs": {"trust_env": True}}


def token_for(address: str) -> str | None:
    """The token that the environment has for the host of a web address. Raises UsageError for one that is for no host.

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


@contextmanager
def explained(
    address: str, kind: type[InputError] | type[OutputError] = InputError, verb: str = "read"
) -> Iterator[None]:
    """What a backend raises in the block, in the words of ours."""
    try:
        yield
    except WdsError:
        raise
    except Exception as error:
        reason, hint = explain(address, error)
        cause = error.error if isinstance(error, GaveUp) else error
        raise kind(f"cannot {verb} {address}: {reason}", hint=hint, cause=cause) from cause_of(cause)


def remote_exists(address: str) -> bool:
    """Whether an object is there. Raises InputError when that cannot be told."""
    with explained(address):
        try:
            fs, path = filesystem(address)
            retried(lambda: look_at(fs, path), address)
        except FileNotFoundError:
            return False
    return True


def look_at(fs: Any, path: str) -> dict[str, Any]:
    """What a store says of what is at a path: ``type``, ``size`` and what tells versions apart. Raises what its client
    raises."""
    found: dict[str, Any]
    if isinstance(fs, FastS3) and is_file_name(path):
        found = fs.head(path)
    elif hasattr(fs, "_call_s3") and is_file_name(path):
        from fsspec.asyn import sync

        bucket, key, _ = fs.split_path(path)
        found = sync(fs.loop, fs._call_s3, "head_object", Bucket=bucket, Key=key)
        found |= {"type": "file", "size": found["ContentLength"]}
    else:
        found = fs.info(path)
    return found


def is_file_name(path: str) -> bool:
    """Whether a path is named as a shard or what lies beside one: no folder is looked for there."""
    name = path.rpartition("/")[2]
    return ".tar" in name or name.endswith(_FILES)


def remote_etag(address: str) -> str:
    """The ETag of an object as :func:`etag_version` writes it. Raises what its backend raises."""
    fs, path = filesystem(address)
    found = retried(lambda: look_at(fs, path), address)
    return etag_version(found.get("ETag") or found.get("etag"))


def etag_version(etag: Any) -> str:
    """What tells an object from another of its name; empty where its store gives no ETag."""
    return "etag:" + str(etag).strip('"') if etag else ""


def remove_remote(address: str) -> None:
    """Remove one object; one that is not there is no error. Raises OutputError."""
    with explained(address, OutputError, "remove"):
        try:
            fs, path = filesystem(address, fresh=False)
            retried(lambda: fs.rm_file(path), address)
        except FileNotFoundError:
            pass


def is_remote_folder(address: str) -> bool:
    """Whether what stands at an address is a folder, and no object. Raises InputError when that cannot be told."""
    with explained(address):
        try:
            fs, path = filesystem(address)
            return bool(retried(lambda: fs.info(path), address).get("type") == "directory")
        except FileNotFoundError as error:
            if is_bucket_missing(error):
                raise
            return False


def list_remote(address: str) -> list[str]:
    """The names in a remote folder, in bytewise order. Raises InputError."""
    return sorted(entries_in(address))


def entries_in(address: str) -> dict[str, bool]:
    """The names in a remote folder, and whether each is a folder itself. Raises InputError."""
    with explained(address, verb="list"):
        fs, path = filesystem(address)
        listed = retried(lambda: fs.ls(path, detail=True), address)
    _remember(address.rstrip("/"), listed)
    # A folder's own marker (an empty object whose name ends with a slash) is listed with what it holds.
    own = path.rstrip("/")
    found = ((one["name"].rstrip("/"), one.get("type") == "directory") for one in listed)
    return {name.rpartition("/")[2]: is_folder for name, is_folder in found if name not in (own, "")}


_FILES = (".json", ".done", ".wdx")


class Listed(NamedTuple):
    """What a listing tells of an object; its ETag as the store writes it, empty where it tells none."""

    size: int | None
    etag: str


_FOLDERS = 16
_listed: dict[str, dict[str, Listed]] = {}
"""What the last listings told, by the folder's address and the file's name in its store."""


def _remember(folder: str, listed: Iterable[dict[str, Any]]) -> None:
    _listed.pop(folder, None)
    _listed[folder] = {
        one["name"].lstrip("/"): Listed(one.get("size"), str(one.get("ETag") or "")) for one in listed
    }
    while len(_listed) > _FOLDERS:
        del _listed[next(iter(_listed))]


def found_listed(address: str) -> Listed | None:
    """What was told of an object when its folder was listed the last time; None where it was not."""
    folder, _, name = address.rpartition("/")
    return _listed.get(folder, {}).get(f"{folder.partition('://')[2]}/{name}")


def found_now(address: str) -> Listed | None:
    """What its store says of an object now; None where it says nothing."""
    try:
        fs, path = filesystem(address, fresh=False)
        found = retried(lambda: look_at(fs, path), address)
    except Exception:  # backends raise what they like, and a question that fails says nothing
        return None
    return Listed(found.get("size"), str(found.get("ETag") or ""))


def glob_remote(address: str) -> list[str]:
    """The addresses of the files that match, in no promised order. Raises InputError."""
    with explained(address, verb="list"):
        try:
            fs, path = filesystem(address)
            found = retried(lambda: fs.glob(path, detail=True), address)
        except FileNotFoundError:
            return []
    # What fsspec took off the address to get its own name for it is put back.
    prefix = address[: -len(path)] if address.endswith(path) else f"{scheme(address)}://"
    folder = address.rpartition("/")[0]
    if not set("*?[") & set(folder):
        _remember(folder, found.values())
    return [prefix + name for name, one in found.items() if one.get("type") != "directory"]


def explain(address: str, error: Exception) -> tuple[str, str | None]:
    """(why, what helps)."""
    if isinstance(error, GaveUp):
        reason, hint = explain(address, error.error)
        often = f" ({error.attempts} attempts)" if error.attempts > 1 else ""
        return reason + often, hint or "try again later, or be more patient: --retries 20 --timeout 300"
    kind = type(error).__name__
    if is_bucket_missing(error) or (
        isinstance(error, FileNotFoundError) and scheme(address) in _OTHER_BUCKETS and is_bucket_gone(address)
    ):
        return no_bucket(address), NO_BUCKET_HINT
    if isinstance(error, FileNotFoundError):
        return "no such object", range_hint(address)
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme(address))
        return f"its backend is not installed ({_line(error)})", package and f"pip install {package}"
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return f"{scheme(address)}:// is no known kind of address", None
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        if scheme(address) in S3_KINDS:
            hint = "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for a public bucket"
        else:
            hint = "log in with the store's own tool first"
        return "no credentials were found", hint
    if kind in ("ProfileNotFound", "ConfigParseError"):
        return _line(error), "AWS_PROFILE names a profile of ~/.aws/config or ~/.aws/credentials"
    if isinstance(error, PermissionError):
        return f"access denied ({_line(error)})", _denied_hint(address)
    if isinstance(error, ValueError) and _OTHER_BUCKETS.get(scheme(address)) == "container":
        return _line(error), _LOGINS["az"]  # adlfs found no account, or none that makes sense
    if isinstance(error, NotImplementedError):
        return f"{scheme(address)}:// does not support this", None
    return _explain_answer(address, error) or _explain_connection(error) or (_line(error), None)


def _explain_answer(address: str, error: Exception) -> tuple[str, str | None] | None:
    """The same for an answer with a status that says what is wrong."""
    status = status_of(error)
    if status is None:
        return None
    said = " ".join(str(getattr(error, "message", None) or _line(error)).split())
    reason = f"the server answered {status}" + ("" if said == str(status) else f" ({said})")
    if status in (401, 403) and is_web(address):
        return reason, f"logins are taken from ~/.netrc, tokens from {TOKEN}=HOST=TOKEN"
    if status in (401, 403):
        return reason, _LOGINS.get(scheme(address), "check the credentials")
    if status in (429, 503):
        return reason, "it wants fewer requests: try later, with fewer jobs (-j), or with more --retries"
    return reason, None


def _explain_connection(error: Exception) -> tuple[str, str | None] | None:
    """The same where no server answered."""
    resolver = unresolved(error)
    if resolver is not None and resolver.errno == EAI_AGAIN:
        return "the name of its host could not be looked up", "is there a network, and a name server?"
    if resolver is not None:
        return "its host has no address", "check the name of the host, or of the endpoint"
    if kinds_of(error) & TLS_KINDS:
        found = next((text for one in causes(error) if (text := getattr(one, "verify_message", ""))), "")
        reason = (
            f"the certificate of its host is refused ({found})" if found else f"TLS failed ({_line(error)})"
        )
        return reason, "check the name of the host; SSL_CERT_FILE names certificates to trust"
    if any(isinstance(one, ConnectionRefusedError) for one in causes(error)):
        return "its host refuses connections", "check the host and the port, or the endpoint"
    if kinds_of(error) & {GARBLED, "ClientPayloadError", "IncompleteReadError", "ResponseStreamingError"}:
        return "its answer broke off, or makes no sense", None
    return None


def _denied_hint(address: str) -> str:
    if scheme(address) in S3_KINDS and is_unsigned() is None and not signs(address):
        return "no credentials were found: set AWS_PROFILE or AWS_ACCESS_KEY_ID"
    if scheme(address) in S3_KINDS and is_unsigned():
        return f"requests are not signed, because the environment says so ({' or '.join(_UNSIGNED)})"
    return "check the credentials and the bucket's policy"


def no_bucket(address: str) -> str:
    """Why there is nothing at an address, and can be nothing."""
    return f'there is no {_OTHER_BUCKETS.get(scheme(address), "bucket")} "{bucket_of(address)}"'


def bucket_of(address: str) -> str:
    """What objects of an address lie in.

    >>> bucket_of("s3://bucket/a.tar"), bucket_of("abfs://container@account.dfs.core.windows.net/a.tar")
    ('bucket', 'container')
    >>> bucket_of("hf://datasets/owner/name@main/a.tar")
    'owner/name'
    """
    place = _root_of(address).partition("://")[2]
    if _OTHER_BUCKETS.get(scheme(address)) == "repository":
        return "/".join(place.partition("@")[0].split("/")[-2:])
    before, _, behind = place.rpartition("@")
    return before if before and _OTHER_BUCKETS.get(scheme(address)) == "container" else behind


def _root_of(address: str) -> str:
    """The address of the bucket."""
    kind, _, path = address.partition("://")
    parts = path.split("/")
    # hf://datasets/owner/name, or hf://owner/name for a model.
    depth = 1 if kind != "hf" else 3 if parts[0] in ("datasets", "spaces", "buckets") else 2
    return f"{kind}://{'/'.join(parts[:depth])}"


def is_bucket_gone(address: str) -> bool:
    """Whether the store says that the bucket that an object would lie in is not there: one small request, once a
    process and bucket. False where it does not tell."""
    bucket = _root_of(address)
    if scheme(address) not in _OTHER_BUCKETS.keys() | S3_KINDS or bucket in _found:
        return False
    try:
        fs, path = filesystem(bucket)
        if isinstance(fs, FastS3):
            fs.prepare()
        fs.info(path)
    except FileNotFoundError:
        return True
    except Exception:
        return False
    _found.add(bucket)
    return False


def is_bucket_missing(error: BaseException) -> bool:
    """Whether it is not the object alone that is not there. Stores say so in a code, or only in words."""
    words = str(error).lower()
    return isinstance(error, FileNotFoundError) and (
        code_of(error.__cause__ or error.__context__) == "NoSuchBucket"
        or "bucket does not exist" in words
        or "nosuchbucket" in words
    )


def _line(error: Exception) -> str:
    """An error's text on one line, with its kind where the text says nothing."""
    text = re.sub(r"\s+", " ", getattr(error, "strerror", None) or str(error)).strip()
    return text or type(error).__name__
