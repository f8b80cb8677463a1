"""Addresses on other machines, through fsspec: object stores, web servers, whatever it knows.

What it is: :class:`RemoteSource` (ranges of an object whose size is known), and the questions about remote
addresses. How: fsspec's file objects are not used for reading, since they fetch blocks of 5 to 50 MiB; each
read is one range request, and all of them go through :meth:`RemoteSource._fetch`, the place for retries,
read-ahead and caches. What has no size or no ranges is a stream. Backends raise what they like; here it
becomes InputError or OutputError with a hint. It must not know shards. ``uploads`` has the writing half,
``web`` plain web servers; this package is the only importer of fsspec.
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from wdscli.errors import InputError, InputIsFolderError, OutputError
from wdscli.shown import cause_of
from wdscli.storage.addresses import range_hint, scheme
from wdscli.storage.ends import Source, replaced
from wdscli.storage.streams import StreamSource

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_BYTES = 1 << 16
"""What the first read fetches at least, so that a look at the first bytes is no request of its own."""
_PACKAGES = {
    "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs",
    "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko",
    "smb": "smbprotocol", "oss": "ossfs", "s3": "s3fs", "s3a": "s3fs", "ais": "aistore",
}  # fmt: skip


class Replaced(Exception):
    """Raised by who reads ranges: the object is another one than the first answer was of."""


class RemoteSource(Source):
    """An object of known size, read by ranges. ``read_range(start, end)`` makes one request and raises
    :class:`Replaced` where it can tell; where it cannot, ``version_now()`` asks for the version there is now."""

    __slots__ = ("_head", "_length", "_read_range", "_version_now")

    def __init__(
        self,
        name: str,
        size: int,
        read_range: Callable[[int, int], bytes],
        head: bytes = b"",
        version_now: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(name, size=size, seekable=True)
        self._read_range = read_range
        self._version_now = version_now
        self._head = head
        self._length = size

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._length)
        if end <= offset:
            return b""
        if end > len(self._head) and offset == 0 and end <= HEAD_BYTES:
            self._head = self._fetch(0, min(HEAD_BYTES, self._length))
        if end <= len(self._head):
            return self._head[offset:end]
        return self._fetch(offset, end)

    def _fetch(self, start: int, end: int) -> bytes:
        """Every range request of every remote address goes through here. All of the range, or InputError."""
        try:
            data = self._read_range(start, end)
        except Replaced:
            raise replaced(self.name, start) from None
        except Exception as error:
            raise input_error(self.name, error) from cause_of(error)
        if len(data) != end - start:
            came = f"{len(data)} bytes came where {end - start} were asked for"
            raise InputError(f"cannot read {self.name}: {came}, from byte {start}")
        return data

    def confirm(self) -> None:
        if self._version_now is None or not self.version:
            return
        try:
            now = self._version_now()
        except FileNotFoundError:
            raise replaced(self.name) from None
        except Exception as error:
            raise input_error(self.name, error) from cause_of(error)
        if now != self.version:
            raise replaced(self.name)


class _FileReader:
    """A file object of fsspec as a raw reader, for what has no size."""

    def __init__(self, name: str, file: Any) -> None:
        self._name, self._file = name, file

    def read(self, length: int, /) -> bytes:
        try:
            return bytes(self._file.read(length))
        except Exception as error:
            raise input_error(self._name, error) from cause_of(error)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()


def filesystem(address: str) -> tuple[Any, str]:
    """fsspec's file system for ``address`` and its name there. Raises what fsspec raises."""
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(address)
    return fs, path


def open_remote(address: str) -> Source:
    """A source for an address with a scheme. Raises InputError."""
    try:
        fs, path = filesystem(address)
        if scheme(address) in ("http", "https"):
            from wdscli.storage.web import open_web

            return open_web(address, fs, path)
        about = fs.info(path)
        if about.get("type") == "directory":
            raise InputIsFolderError(
                f"cannot read {address}: it is a folder", hint=f"{address.rstrip('/')}/ stands for its shards"
            )
        if about.get("size") is None:
            return StreamSource(address, _FileReader(address, fs.open(path, "rb", block_size=0)))
    except InputError:
        raise
    except Exception as error:
        raise input_error(address, error) from cause_of(error)
    size, version = int(about["size"]), _version(about)
    if hasattr(fs, "_call_s3"):
        from wdscli.storage.s3 import open_s3

        return open_s3(address, fs, path, size, version)
    source = RemoteSource(address, size, _range_reader(fs, path), version_now=partial(_version_now, fs, path))
    source.version = version
    return source


def _version_now(fs: Any, path: str) -> str:
    fs.invalidate_cache()
    return _version(fs.info(path))


_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "created")


def _version(about: dict[str, Any]) -> str:
    """What a backend says that tells one content from another, by whichever of its names."""
    found = next((name for name in _VERSIONS if about.get(name)), None)
    return "" if found is None else f"{found.lower()}:{about[found]}"


def _range_reader(fs: Any, path: str) -> Callable[[int, int], bytes]:
    from fsspec.spec import AbstractFileSystem

    # The generic cat_file opens a file object; without a cache it fetches the range and no block around it.
    generic = type(fs).cat_file is AbstractFileSystem.cat_file and not fs.async_impl
    options = {"cache_type": "none"} if generic else {}

    def read_range(start: int, end: int) -> bytes:
        return bytes(fs.cat_file(path, start=start, end=end, **options))

    return read_range


def remote_exists(address: str) -> bool:
    """Whether an object is there. Raises InputError when that cannot be told."""
    try:
        if scheme(address) in ("http", "https"):
            open_remote(address).close()
            return True
        fs, path = filesystem(address)
        fs.invalidate_cache()
        fs.info(path)
    except FileNotFoundError:
        return False
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    except Exception as error:
        raise input_error(address, error) from cause_of(error)
    return True


def remove_remote(address: str) -> None:
    """Remove one object; one that is not there is no error. Raises OutputError."""
    try:
        fs, path = filesystem(address)
        fs.rm_file(path)
    except FileNotFoundError:
        pass
    except Exception as error:
        raise output_error(address, error, "remove") from cause_of(error)


def list_remote(address: str) -> list[str]:
    """The names in a remote folder, in bytewise order. Raises InputError."""
    try:
        fs, path = filesystem(address)
        fs.invalidate_cache()
        found = fs.ls(path, detail=False)
    except Exception as error:
        raise input_error(address, error, "list") from cause_of(error)
    # A folder's own marker (an empty object whose name ends with a slash) is listed with what it holds.
    own = path.rstrip("/")
    names = {name.rstrip("/").rpartition("/")[2] for name in found if name.rstrip("/") != own}
    return sorted(names - {""})


def glob_remote(address: str) -> list[str]:
    """The addresses of the files that match, in no promised order. Raises InputError."""
    try:
        fs, path = filesystem(address)
        fs.invalidate_cache()
        found = fs.glob(path, detail=True)
    except FileNotFoundError:
        return []
    except Exception as error:
        raise input_error(address, error, "list") from cause_of(error)
    # What fsspec took off the address to get its own name for it is put back.
    prefix = address[: -len(path)] if address.endswith(path) else f"{scheme(address)}://"
    return [prefix + name for name, about in found.items() if about.get("type") != "directory"]


def input_error(address: str, error: Exception, verb: str = "read") -> InputError:
    """What a backend raised, in the words of ours."""
    reason, hint = explain(address, error)
    return InputError(f"cannot {verb} {address}: {reason}", hint=hint, cause=error)


def output_error(address: str, error: Exception, verb: str = "write") -> OutputError:
    """What a backend raised, in the words of ours."""
    reason, hint = explain(address, error)
    return OutputError(f"cannot {verb} {address}: {reason}", hint=hint, cause=error)


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
        return "no credentials were found", _no_credentials(address)
    if isinstance(error, PermissionError):
        return f"access denied ({_line(error)})", "check the credentials and the bucket's policy"
    if isinstance(error, NotImplementedError):
        return f"{scheme(address)}:// does not support this", None
    return _line(error), None


NO_BUCKET_HINT = "check its name, and the account, region or endpoint that it is of"


def no_bucket(address: str) -> str:
    """Why there is nothing at an address, and can be nothing."""
    return f'there is no bucket "{bucket_of(address)}"'


def bucket_of(address: str) -> str:
    """What stands behind the scheme: ``s3://bucket/a.tar``."""
    return address.partition("://")[2].partition("/")[0].rpartition("@")[2]


def is_bucket_missing(error: BaseException) -> bool:
    """Whether it is not the object alone that is not there. Stores say so in a code, or only in words."""
    behind = error.__cause__ or error.__context__
    response = getattr(behind, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    words = str(error).lower()
    return isinstance(error, FileNotFoundError) and (
        code == "NoSuchBucket" or "bucket does not exist" in words or "nosuchbucket" in words
    )


def _no_credentials(address: str) -> str:
    if scheme(address) in ("s3", "s3a"):
        return "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for a public bucket"
    return "log in with the store's own tool first"


def _line(error: Exception) -> str:
    """An error's text on one line, with its kind where the text says nothing."""
    text = re.sub(r"\s+", " ", getattr(error, "strerror", None) or str(error)).strip()
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    if isinstance(status, int) and status:
        return f"the server answered {status} {message or ''}".strip()
    return text or type(error).__name__
