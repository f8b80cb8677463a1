"""Writing to other machines, all or nothing.

What it is: two sinks. :class:`UploadSink` is for stores where an object appears only when its upload is
completed (S3 and its kin): parts go out as they fill, and a failure aborts the upload, so that nothing stays
behind. :class:`RenameSink` is for the rest of what fsspec knows: bytes go under a temporary name in the same
folder, which is moved at the end. How: never by ``with fsspec.open(...)``, which commits what was written
when an exception passes through it. It must not know shards.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any
from weakref import ref

from wdscli.errors import OutputError, OutputIsFolderError
from wdscli.shown import cause_of
from wdscli.storage.addresses import is_web, scheme
from wdscli.storage.ends import Data, Sink, taken
from wdscli.storage.remote import (
    NO_BUCKET_HINT,
    bucket_of,
    code_of,
    etag_version,
    explained,
    filesystem,
    is_bucket_missing,
    no_bucket,
)

PART_BYTES = 16 << 20
"""One part of an upload, held in memory; S3 takes 10,000 parts, so an object may have 160 GB."""
_UPLOADING = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "oss"))
_BUCKETS = frozenset(("s3", "s3a", "gs", "gcs", "oss"))
_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412")
_found: set[str] = set()
"""Buckets that were there when this process asked."""


def open_remote_sink(address: str, *, force: bool) -> Sink:
    """A sink for an address with a scheme. Raises OutputExistsError and OutputError."""
    if is_web(address):
        raise OutputError(f"cannot write {address}: web servers are only read")
    with explained(address, OutputError, "write"):
        fs, path = filesystem(address, fresh=False)
        _check(fs, path, address, force)
        kind = UploadSink if scheme(address) in _UPLOADING else RenameSink
        return kind(address, fs, path, force=force)


def _check(fs: Any, path: str, address: str, force: bool) -> None:
    fs.invalidate_cache()
    try:
        about = fs.info(path)
    except FileNotFoundError as error:
        if is_bucket_missing(error):
            raise
        check_bucket(address)
        return
    if about.get("type") == "directory":
        raise OutputIsFolderError(f"cannot write {address}: it is a folder")
    if not force:
        raise taken(address)


def check_bucket(address: str) -> None:
    """Raise OutputError when the bucket that an object would lie in is not there: one small request, once a process and
    bucket. What cannot be told so is left to the first write."""
    if scheme(address) not in _BUCKETS:
        return
    bucket = f"{scheme(address)}://{bucket_of(address)}"
    if bucket in _found:
        return
    try:
        fs, path = filesystem(bucket)
        fs.info(path)
    except FileNotFoundError as error:
        why = no_bucket(address)
        raise OutputError(f"cannot write {address}: {why}", hint=NO_BUCKET_HINT) from cause_of(error)
    except Exception:
        return
    _found.add(bucket)


class UploadSink(Sink):
    """An object that appears when its upload is completed.

    Without ``force`` the store itself is asked to refuse a name that is taken by then (If-None-Match), where
    its backend can; the check at the start is for the rest.
    """

    def __init__(self, name: str, fs: Any, path: str, *, force: bool) -> None:
        super().__init__(name)
        self._file = _open_upload(fs, path, force)
        self._etags = _heard_etags(self._file)

    def _put(self, data: Data) -> None:
        with explained(self.name, OutputError, "write"):
            self._file.write(data)

    def _commit(self) -> None:
        with explained(self.name, OutputError, "write"):
            try:
                self._complete()
            except Exception as error:
                # s3fs says in more than one way that the store refused because the name is taken.
                if isinstance(error, FileExistsError) or code_of(error.__cause__) in _TAKEN:
                    raise taken(self.name) from cause_of(error)
                raise
        self.version = etag_version(self._etags[-1] if self._etags else "")

    def _complete(self) -> None:
        try:
            self._file.close()
        except Exception as error:
            if "x" not in self._file.mode or code_of(error.__cause__) != "NotImplemented":
                raise
            # A store that knows no If-None-Match: all parts are there, and the check at the start has to do.
            self._file.mode = "wb"
            self._file.commit()
            self._file.closed = True

    def _discard(self) -> None:
        # Marked as closed first: fsspec's file commits what it has when it is collected open.
        self._file.closed = True
        # While the interpreter ends, the thread that would carry the request is gone.
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self._file.discard()


def _heard_etags(file: Any) -> list[str]:
    """A list to which each answer of the store adds the ETag that it names, the whole object's last; s3fs keeps that to
    itself. It stays empty with other file systems."""
    found: list[str] = []
    if hasattr(file, "_call_s3"):
        kind, its = type(file), ref(file)  # no cycle: a file that is forgotten must go at once

        def heard(*args: Any, **options: Any) -> Any:
            answer = kind._call_s3(its(), *args, **options)
            if isinstance(answer, dict):
                found.append(answer.get("ETag") or "")
            return answer

        file._call_s3 = heard
    return found


def _open_upload(fs: Any, path: str, force: bool) -> Any:
    if not force:
        try:
            return fs.open(path, mode="xb", block_size=PART_BYTES)
        except (NotImplementedError, ValueError):
            pass
    return fs.open(path, mode="wb", block_size=PART_BYTES)


class RenameSink(Sink):
    """A file that is written under ``.NAME.<random>.tmp`` and moved to its name when it is whole."""

    def __init__(self, name: str, fs: Any, path: str, *, force: bool) -> None:
        super().__init__(name)
        self._fs, self._path, self._force = fs, path, force
        folder, slash, base = path.rpartition("/")
        if folder:
            fs.makedirs(folder, exist_ok=True)
        self._temporary = f"{folder}{slash}.{base}.{os.urandom(6).hex()}.tmp"
        self._file = fs.open(self._temporary, mode="wb")

    def _put(self, data: Data) -> None:
        with explained(self.name, OutputError, "write"):
            self._file.write(data)

    def _commit(self) -> None:
        with explained(self.name, OutputError, "write"):
            self._file.close()
            _check(self._fs, self._path, self.name, self._force)
            # Few of these systems move onto a name that is taken.
            if self._force:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self._path)
            self._fs.mv(self._temporary, self._path)

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._temporary)
