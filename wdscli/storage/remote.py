"""This module accesses remote addresses by fsspec: object stores, web servers, and all other schemes of fsspec.

It finds the store of an address. It finds out whether a remote address exists, and which names a folder has. It also
translates the errors of backends (:func:`explained`): an error of any class becomes InputError or OutputError with a
hint. The environment and the usual files configure the access to a store:

- ``s3://`` is configured by botocore, which knows the variables and files of AWS (``AWS_PROFILE``,
``AWS_ENDPOINT_URL_S3``, ``~/.aws/config``). Requests are not signed if ``AWS_NO_SIGN_REQUEST`` or ``FSSPEC_S3_ANON`` is
set, or if there are no credentials. So public buckets can be read.
- ``ais://bucket/x`` uses the S3 interface of AIStore, ``AIS_ENDPOINT/s3``.
- ``http(s)://`` uses logins from ``~/.netrc`` and tokens from ``WDSCLI_HTTP_TOKEN``. A token is sent only to its host,
and never to another host after a redirect.

``ranges`` reads and ``uploads`` writes. This module does not know shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from wdscli.errors import InputError, OutputError, WdsError
from wdscli.shown import cause_of
from wdscli.storage.addresses import range_hint, scheme
from wdscli.storage.kinds import Entry, Store, StoreKind, container_of, kind_of, meant_address, root_of
from wdscli.storage.retry import (
    EAI_AGAIN,
    GARBLED,
    TLS_KINDS,
    GaveUp,
    causes,
    code_of,
    kinds_of,
    retried,
    status_of,
    unresolved,
)
from wdscli.storage.s3_obstore import S3Store, open_s3, why_denied

NO_CONTAINER_HINT = "check its name, and the account, region or endpoint that it is of"
_found: set[str] = set()
"""The containers that this process has found."""
_without_checksums: set[str] = set()
"""The containers with an object for which the store keeps no checksum."""
_WILD = re.compile(r"[*?\[]")


def store_of(address: str, *, fresh: bool = True) -> tuple[Store, str]:
    """Return the store of an address, and the path in the store. With ``fresh``, the store returns current answers, not
    cached answers. Raises the errors of fsspec, and UsageError."""
    kind = kind_of(address)
    store: Store
    if kind.is_s3:
        store, path = open_s3(address)
    else:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(address, **(kind.options(address) if kind.options else {}))
        if kind.prepare is not None:
            kind.prepare(fs)
        store = Store(kind, fs)
    if fresh:
        if kind.is_s3:
            _current.clear()
        store.forget()
    return store, path


@contextmanager
def explained(
    address: str, kind: type[InputError] | type[OutputError] = InputError, verb: str = "read"
) -> Iterator[None]:
    """Translate the errors that a backend raises in the block."""
    try:
        yield
    except WdsError:
        raise
    except Exception as error:
        reason, hint = explain(address, error)
        cause = error.error if isinstance(error, GaveUp) else error
        raise kind(f"cannot {verb} {address}: {reason}", hint=hint, cause=cause) from cause_of(cause)


def remote_look(address: str, *, fresh: bool = True) -> Entry:
    """Return the entry at an address. If the name looks like a file, this takes one request. Raises the errors of the
    client."""
    store, path = store_of(address, fresh=fresh)
    return retried(lambda: store.look(path), address)


def remote_exists(address: str) -> bool:
    """Return whether an object exists. Raises InputError if this cannot be found out."""
    with explained(address):
        try:
            remote_look(address)
        except FileNotFoundError:
            return False
    return True


def etag_version(etag: str) -> str:
    """Return the version of an object by its ETag. It is empty without an ETag."""
    return "etag:" + etag.strip('"') if etag else ""


def remove_remote(address: str) -> None:
    """Remove one object, if it exists. Raises OutputError."""
    with explained(address, OutputError, "remove"):
        try:
            store, path = store_of(address, fresh=False)
            _current.pop(address.rpartition("/")[0], None)
            retried(lambda: store.remove(path), address)
        except FileNotFoundError:
            pass


def is_remote_folder(address: str) -> bool:
    """Return whether an address is a folder and not an object. Raises InputError if this cannot be found out."""
    with explained(address):
        try:
            store, path = store_of(address)
            return retried(lambda: store.info(path), address).is_folder
        except FileNotFoundError as error:
            if is_bucket_missing(error):
                raise
            return False


def entries_in(address: str) -> dict[str, bool]:
    """Return the names in a remote folder, each with whether it is a folder. Raises InputError."""
    with explained(address, verb="list"):
        store, path = store_of(address)
        listed = _listing(store, address.rstrip("/"), path)
    # The marker of a folder, an empty object with a slash at the end of its name, is listed with the folder's contents.
    own = path.rstrip("/")
    paths = ((entry.path.rstrip("/"), entry.is_folder) for entry in listed)
    return {name.rpartition("/")[2]: is_folder for name, is_folder in paths if name not in (own, "")}


_FOLDERS = 16
_listed: dict[str, dict[str, Entry]] = {}
"""The last listings, by the folder's address. A listing has entries by path in the store."""
_current: dict[str, Any] = {}
"""For each folder on S3 with a complete and current listing, the client that listed it."""


def _listing(store: Store, folder: str, path: str) -> list[Entry]:
    listed = retried(lambda: store.entries(path), folder)
    _remember(folder, listed)
    # A damaged answer may look like an empty folder.
    if isinstance(store, S3Store) and listed:
        _current[folder] = store.client
    return listed


def _remember(folder: str, listed: Iterable[Entry]) -> None:
    _listed.pop(folder, None)
    _listed[folder] = {entry.path.lstrip("/"): entry for entry in listed}
    while len(_listed) > _FOLDERS:
        del _listed[next(iter(_listed))]


def found_listed(address: str) -> Entry | None:
    """Return the entry of an object in the last listing of its folder, or None without a listing."""
    folder, _, name = address.rpartition("/")
    return _listed.get(folder, {}).get(f"{folder.partition('://')[2]}/{name}")


def found_current(address: str, store: S3Store) -> Entry | None:
    """Return :func:`found_listed` if the listing is current. Raises FileNotFoundError for an object that is not in the
    listing."""
    folder, _, name = address.rpartition("/")
    listing = _listed.get(folder) if _current.get(folder) is store.client else None
    if listing is None:
        return None
    entry = listing.get(f"{folder.partition('://')[2]}/{name}")
    if entry is None:
        raise FileNotFoundError(address)
    return None if entry.is_folder else entry


def with_checksums(address: str) -> Entry | None:
    """Return the current entry of an object with its checksums. Return None if the store does not answer, or if an
    earlier object in its container had no checksums."""
    container = root_of(address)
    try:
        store, path = store_of(address, fresh=False)
        entry = (
            None if container in _without_checksums else retried(lambda: store.with_checksums(path), address)
        )
    except Exception:  # clients raise errors of any class; a failed request means that the answer is unknown
        return None
    if entry is not None and not entry.checksums:
        _without_checksums.add(container)
    return entry


def glob_remote(address: str) -> list[str]:
    """Return the addresses of the files that match, in any order. Raises InputError."""
    with explained(address, verb="list"):
        try:
            store, path = store_of(address)
            entries = _matching(store, address, path)
        except FileNotFoundError:
            return []
    # Put back the prefix that fsspec removed from the address.
    prefix = address[: -len(path)] if address.endswith(path) else f"{scheme(address)}://"
    return [prefix + entry.path for entry in entries if not entry.is_folder]


def _matching(store: Store, address: str, path: str) -> list[Entry]:
    folder, _, pattern = path.rpartition("/")
    is_wild = bool(_WILD.search(folder))
    if store.kind.is_s3 and folder and not is_wild and "**" not in pattern:
        from fnmatch import translate

        is_like = re.compile(translate(pattern)).match
        listed = _listing(store, address.rpartition("/")[0], folder)
        return [entry for entry in listed if is_like(entry.path.rpartition("/")[2])]
    entries = retried(lambda: store.glob(path), address)
    if not is_wild:
        _remember(address.rpartition("/")[0], entries)
    return entries


def explain(address: str, error: Exception) -> tuple[str, str | None]:
    """Return the reason and the hint for an error."""
    if isinstance(error, GaveUp):
        reason, hint = explain(address, error.error)
        often = f" ({error.attempts} attempts)" if error.attempts > 1 else ""
        return reason + often, hint or "try again later, or be more patient: WDSCLI_RETRIES=20, --timeout 300"
    kind, name = kind_of(address), type(error).__name__
    if is_bucket_missing(error) or (
        isinstance(error, FileNotFoundError) and not kind.is_s3 and is_container_gone(address)
    ):
        return no_container(address), NO_CONTAINER_HINT
    if isinstance(error, FileNotFoundError):
        return "no such object", range_hint(address)
    if isinstance(error, ImportError):
        install = kind.package and f"pip install {kind.package}"
        return f"its backend is not installed ({_line(error)})", install
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return f"{scheme(address)}:// is no known kind of address", meant_address(address)
    if name in ("NoCredentialsError", "PartialCredentialsError"):
        return "no credentials were found", kind.no_login
    if name in ("ProfileNotFound", "ConfigParseError"):
        return _line(error), "AWS_PROFILE names a profile of ~/.aws/config or ~/.aws/credentials"
    if isinstance(error, PermissionError):
        store = store_of(address, fresh=False)[0]
        return f"access denied ({_line(error)})", why_denied(store if isinstance(store, S3Store) else None)
    if isinstance(error, ValueError) and kind.is_account_checked:
        return _line(error), kind.login
    if isinstance(error, NotImplementedError):
        return f"{scheme(address)}:// does not support this", None
    return _explain_answer(kind, error) or _explain_connection(error) or (_line(error), None)


def _explain_answer(kind: StoreKind, error: Exception) -> tuple[str, str | None] | None:
    """Return the reason and the hint for an answer with an error status."""
    status = status_of(error)
    if status is None:
        return None
    message = " ".join(str(getattr(error, "message", None) or _line(error)).split())
    reason = f"the server answered {status}" + ("" if message == str(status) else f" ({message})")
    if status in (401, 403):
        return reason, kind.login
    if status in (429, 503):
        return (
            reason,
            "the server is overloaded: try later, with fewer jobs (-j), or with a higher WDSCLI_RETRIES",
        )
    return reason, None


def _explain_connection(error: Exception) -> tuple[str, str | None] | None:
    """Return the reason and the hint if no server answered."""
    resolver = unresolved(error)
    if resolver is not None and resolver.errno == EAI_AGAIN:
        return "the name of its host could not be resolved", "check the network and the name server"
    if resolver is not None:
        return "its host has no address", "check the name of the host, or of the endpoint"
    if kinds_of(error) & TLS_KINDS:
        fault = next(filter(None, (getattr(cause, "verify_message", "") for cause in causes(error))), "")
        reason = (
            f"the certificate of its host is refused ({fault})" if fault else f"TLS failed ({_line(error)})"
        )
        return reason, "check the name of the host; SSL_CERT_FILE names certificates to trust"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes(error)):
        return "its host refuses connections", "check the host and the port, or the endpoint"
    if kinds_of(error) & {GARBLED, "ClientPayloadError", "IncompleteReadError", "ResponseStreamingError"}:
        return "its answer broke off or is malformed", None
    return None


def no_container(address: str) -> str:
    """Return the text for an object's container that does not exist."""
    return f'there is no {kind_of(address).container or "bucket"} "{container_of(address)}"'


def is_container_gone(address: str) -> bool:
    """Return whether the store reports that an object's container does not exist. This takes one small request per
    container and process. Return False if unknown."""
    container = root_of(address)
    if not kind_of(address).container or container in _found:
        return False
    try:
        store, path = store_of(container)
        store.prepare()
        store.info(path)
    except FileNotFoundError:
        return True
    except Exception:
        return False
    _found.add(container)
    return False


def is_bucket_missing(error: BaseException) -> bool:
    """Return whether the whole bucket is missing, not only the object. Stores report this by a code, or only by a
    text."""
    words = str(error).lower()
    return isinstance(error, FileNotFoundError) and (
        code_of(error.__cause__ or error.__context__) == "NoSuchBucket"
        or "bucket does not exist" in words
        or "nosuchbucket" in words
    )


def _line(error: Exception) -> str:
    """Return an error's text on one line, or its class if it has no text."""
    text = re.sub(r"\s+", " ", getattr(error, "strerror", None) or str(error)).strip()
    return text or type(error).__name__
