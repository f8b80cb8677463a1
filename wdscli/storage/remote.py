"""Addresses on other machines, through fsspec: object stores, web servers, whatever it knows.

What it is: fsspec's file system for an address, the questions about remote addresses (what is there, what lies in a
folder), and what a backend raises in the words of ours (:func:`explained`). Backends raise what they like; here it
becomes InputError or OutputError with a hint. It must not know shards. ``ranges`` has the reading half, ``uploads`` the
writing one; this package is the only importer of fsspec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wdscli.errors import InputError, OutputError, WdsError
from wdscli.shown import cause_of
from wdscli.storage.addresses import range_hint, scheme

_PACKAGES = {
    "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs",
    "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko",
    "smb": "smbprotocol", "oss": "ossfs", "s3": "s3fs", "s3a": "s3fs", "ais": "aistore",
}  # fmt: skip
NO_BUCKET_HINT = "check its name, and the account, region or endpoint that it is of"


def filesystem(address: str, *, fresh: bool = True) -> tuple[Any, str]:
    """fsspec's file system for ``address`` and its name there. Raises what fsspec raises. A ``fresh`` one tells what is
    there now, not what it was told before."""
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(address)
    if fresh:
        fs.invalidate_cache()
    return fs, path


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
        raise kind(f"cannot {verb} {address}: {reason}", hint=hint, cause=error) from cause_of(error)


def remote_exists(address: str) -> bool:
    """Whether an object is there. Raises InputError when that cannot be told."""
    with explained(address):
        try:
            fs, path = filesystem(address)
            fs.info(path)
        except FileNotFoundError:
            return False
    return True


def remote_etag(address: str) -> str:
    """The ETag of an object as :func:`etag_version` writes it. Raises what its backend raises."""
    fs, path = filesystem(address)
    about = fs.info(path)
    return etag_version(about.get("ETag") or about.get("etag"))


def etag_version(etag: Any) -> str:
    """What tells an object from another of its name; empty where its store gives no ETag."""
    return "etag:" + str(etag).strip('"') if etag else ""


def remove_remote(address: str) -> None:
    """Remove one object; one that is not there is no error. Raises OutputError."""
    with explained(address, OutputError, "remove"):
        try:
            fs, path = filesystem(address, fresh=False)
            fs.rm_file(path)
        except FileNotFoundError:
            pass


def list_remote(address: str) -> list[str]:
    """The names in a remote folder, in bytewise order. Raises InputError."""
    with explained(address, verb="list"):
        fs, path = filesystem(address)
        found = fs.ls(path, detail=False)
    # A folder's own marker (an empty object whose name ends with a slash) is listed with what it holds.
    own = path.rstrip("/")
    names = {name.rstrip("/").rpartition("/")[2] for name in found if name.rstrip("/") != own}
    return sorted(names - {""})


def glob_remote(address: str) -> list[str]:
    """The addresses of the files that match, in no promised order. Raises InputError."""
    with explained(address, verb="list"):
        try:
            fs, path = filesystem(address)
            found = fs.glob(path, detail=True)
        except FileNotFoundError:
            return []
    # What fsspec took off the address to get its own name for it is put back.
    prefix = address[: -len(path)] if address.endswith(path) else f"{scheme(address)}://"
    return [prefix + name for name, about in found.items() if about.get("type") != "directory"]


def explain(address: str, error: Exception) -> tuple[str, str | None]:
    """(why, what helps)."""
    kind = type(error).__name__
    if is_bucket_missing(error):
        return no_bucket(address), NO_BUCKET_HINT
    if isinstance(error, FileNotFoundError):
        return "no such object", range_hint(address)
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme(address))
        return f"its backend is not installed ({_line(error)})", package and f"pip install {package}"
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return f"{scheme(address)}:// is no known kind of address", None
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        if scheme(address) in ("s3", "s3a"):
            hint = "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for a public bucket"
        else:
            hint = "log in with the store's own tool first"
        return "no credentials were found", hint
    if isinstance(error, PermissionError):
        return f"access denied ({_line(error)})", "check the credentials and the bucket's policy"
    if isinstance(error, NotImplementedError):
        return f"{scheme(address)}:// does not support this", None
    return _line(error), None


def no_bucket(address: str) -> str:
    """Why there is nothing at an address, and can be nothing."""
    return f'there is no bucket "{bucket_of(address)}"'


def bucket_of(address: str) -> str:
    """What stands behind the scheme: ``s3://bucket/a.tar``."""
    return address.partition("://")[2].partition("/")[0].rpartition("@")[2]


def is_bucket_missing(error: BaseException) -> bool:
    """Whether it is not the object alone that is not there. Stores say so in a code, or only in words."""
    words = str(error).lower()
    return isinstance(error, FileNotFoundError) and (
        code_of(error.__cause__ or error.__context__) == "NoSuchBucket"
        or "bucket does not exist" in words
        or "nosuchbucket" in words
    )


def code_of(error: BaseException | None) -> str:
    """S3's own code for what went wrong, from the error of its client, which s3fs's are raised from."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _line(error: Exception) -> str:
    """An error's text on one line, with its kind where the text says nothing."""
    text = re.sub(r"\s+", " ", getattr(error, "strerror", None) or str(error)).strip()
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    if isinstance(status, int) and status:
        return f"the server answered {status} {message or ''}".strip()
    return text or type(error).__name__
