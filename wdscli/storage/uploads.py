"""This module writes remote files and objects. They appear complete, or not at all.

There are three sinks. :class:`S3Sink` is for S3, where an object appears only when its upload is complete. It sends
each part as soon as the part is full, several at the same time, each with a checksum. A failure aborts the upload, and
nothing remains. The sink can also let the store copy another object. :class:`UploadSink` uses fsspec's file objects,
for other stores where an object appears at the end of its upload. :class:`RenameSink` is for all other file systems. It
writes a temporary file in the same folder, and renames it at the end. No sink uses ``with fsspec.open(...)``, because
it commits a truncated object if an exception leaves the block.

:func:`abort_uploads` finds the unfinished uploads of killed processes. This module does not know shards.

S3 is written by s3fs and not by obstore, although importing obstore takes half a second less processor time. obstore
(0.12) has conditions only for whole objects, not for the end of a multipart upload. It cannot list unfinished uploads,
and cannot remove one object by a plain DELETE. So a run that writes would need both packages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property, partial
from typing import Any

from wdscli.errors import OutputError, OutputIsFolderError
from wdscli.shown import cause_of
from wdscli.storage.ends import LARGE_BYTES, Data, NotCopied, RequestBody, Sink, taken
from wdscli.storage.kinds import NOTE, Store, container_of, etag_of, kind_of, stored_version
from wdscli.storage.remote import (
    NO_CONTAINER_HINT,
    etag_version,
    explained,
    is_bucket_missing,
    is_container_gone,
    no_container,
    store_of,
)
from wdscli.storage.retry import (
    Attempts,
    Network,
    Transient,
    causes,
    code_of,
    count_traffic,
    network,
    note_answer,
    noticed,
    retried,
)
from wdscli.storage.s3_obstore import S3Store
from wdscli.tar.crc import crc32_of

PART_BYTES = 2 * LARGE_BYTES
"""The size of the first parts of an upload. A part is kept in memory. Later parts are larger, because AWS charges 0.30
dollars for a TB of such parts."""
UNDER_WAY_BYTES = 64 << 20
"""The most bytes of parts in flight, for each upload."""
_FIRST_PARTS = 4
# S3 allows 10,000 parts. The first 5,000 have 168 GB, and all have 545 GB.
_USUAL_PARTS = 5_000
_LARGE_PART_BYTES = 72 << 20
_LENT_AT_ONCE = 4
"""The most parts in flight that take no memory of their own. They have the larger size."""
COPY_BYTES = 256 << 20
"""The size limit of a copy by one request."""
COPIES_AT_ONCE = 8
_SLOWEST_BYTES_PER_SECOND = 1 << 16
"""The smallest assumed speed of a line. An attempt fails if its body is sent more slowly."""
_ABORT_SECONDS = 10.0
_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412")
_NOT_WHAT_WAS_SENT = frozenset(
    ["BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"]
)
Begin = Callable[[Callable[[], None]], Future[None]]
_with_md5_etags: set[tuple[Any, str, str]] = set()
"""Client, bucket and method, if an ETag in an answer was the MD5 of the body."""
_CORRUPTED = "the bytes that arrived are not those that were sent"


def open_remote_sink(address: str, *, force: bool, begin: Begin | None = None) -> Sink:
    """Open a sink for a remote address. ``begin`` may start the check for an existing object in the background. The
    check ends before any byte is sent. Raises OutputExistsError and OutputError."""
    kind = kind_of(address)
    if kind.writes == "never":
        raise OutputError(
            f"cannot write {address}: web servers are read-only", hint="write to a file or an object store"
        )
    with explained(address, OutputError, "write"):
        store, path = store_of(address, fresh=False)
        if not isinstance(store, S3Store):
            _check(store, path, address, force)
            sink_class = UploadSink if kind.writes == "upload" else RenameSink
            return sink_class(address, store, path, force=force)
        if force:
            check_container(address)
        elif begin is None:
            _check(store, path, address, force)
        sink = S3Sink(address, store, path, force=force)
        if not force and begin is not None:
            sink.look = begin(partial(_check, store, path, address, force=False))
        return sink


def _check(store: Store, path: str, address: str, force: bool) -> None:
    """Raise OutputError if the object exists, or its name cannot be used."""
    with explained(address, OutputError, "write"):
        store.forget()
        try:
            entry = retried(lambda: store.look(path), address)
        except FileNotFoundError as error:
            if is_bucket_missing(error):
                raise
            check_container(address)
            return
    if entry.is_folder:
        raise OutputIsFolderError(f"cannot write {address}: it is a folder")
    if not force:
        raise taken(address)


def check_container(address: str) -> None:
    """Raise OutputError if the store reports that an object's container does not exist. If the store does not report
    it, the first write fails."""
    if is_container_gone(address):
        raise OutputError(f"cannot write {address}: {no_container(address)}", hint=NO_CONTAINER_HINT)


class S3Sink(Sink):
    """A sink for an object on S3. A small object is sent by one request, a larger object in parts.

    Each request has a checksum of its body, which the store compares. Without ``force``, each upload has the condition
    that the object does not exist (If-None-Match). In addition, ``look`` checks the name in the background. It ends
    before any byte is sent.
    """

    waits = True

    look: Future[None] | None = None

    def __init__(self, name: str, store: S3Store, path: str, *, force: bool) -> None:
        super().__init__(name)
        self._object = _S3Object(store, path, network())
        self._condition = {} if force else {"IfNoneMatch": "*"}
        self._pieces: list[memoryview] = []
        self._lends = False
        self._held = 0
        self._upload: Future[Any] | None = None
        self._parts: list[Future[Any]] = []
        self._under_way: list[Future[Any]] = []
        self._is_md5: Callable[[str], bool] | None = None
        self._original: dict[str, Any] = {}

    @property
    def held_bytes(self) -> int:
        sent = sum(not part.done() for part in self._under_way)
        return self._gathered + self._held + sent * self._part_bytes()

    def check_free(self) -> None:
        look, self.look = self.look, None
        if look is not None:
            look.result()

    def copy_of(self, address: str, version: str, size: int) -> None:
        etag = etag_of(version)
        # Some S3-like stores do not support conditions for a copy, so the ETag is compared here too.
        try:
            store, path = store_of(address, fresh=False)
            original = isinstance(store, S3Store) and _S3Object(store, path, network())
            if not (original and original.fs is self._object.fs and original.look()[0] == etag):
                raise NotCopied
        except Exception as error:
            raise NotCopied from error
        self._original = {"CopySource": original.place, "CopySourceIfMatch": f'"{etag}"'}
        self.written = size

    def write_lent(self, views: Iterable[memoryview]) -> None:
        self.flush()
        self._lends = True
        for view in views:
            self.written += len(view)
            self._take(view.toreadonly())

    def _put(self, data: Data) -> None:
        view = memoryview(data)
        # A read-only buffer does not change.
        view = view if view.readonly else memoryview(bytes(view))
        while view:
            room = self._part_bytes() - self._held
            self._pieces.append(view[:room])
            self._held += len(self._pieces[-1])
            view = view[room:]
            if self._held == self._part_bytes():
                with explained(self.name, OutputError, "write"):
                    self._send()

    def _part_bytes(self) -> int:
        number = len(self._parts)
        if self._lends or number >= _USUAL_PARTS:
            return _LARGE_PART_BYTES
        return PART_BYTES if number < _FIRST_PARTS else 2 * PART_BYTES

    def _send(self) -> None:
        """Start to send the collected bytes as one part. Raises the error of an earlier part."""
        self.check_free()
        if self._upload is None:
            self._upload = self._object.begin("create_multipart_upload", **self._object.algorithm)
        upload = self._upload.result()["UploadId"]
        self._make_room()
        body, self._pieces, self._held = RequestBody(self._pieces), [], 0
        # Lent buffers are scratch data, so their version is not needed.
        if not (self._parts or self._lends):
            self._is_md5 = self._object.etag_check("upload_part", body)
        part = self._object.send("upload_part", body, UploadId=upload, PartNumber=len(self._parts) + 1)
        self._parts.append(part)
        self._under_way.append(part)

    def _make_room(self) -> None:
        """Wait until another part may be in flight."""
        at_once = _LENT_AT_ONCE if self._lends else max(1, UNDER_WAY_BYTES // self._part_bytes())
        if len(self._under_way) >= at_once:
            wait(self._under_way, return_when=FIRST_COMPLETED)
        for part in self._under_way:
            if part.done():
                part.result()
        self._under_way = [part for part in self._under_way if not part.done()]

    def _commit(self) -> None:
        self.check_free()
        if self._original:
            try:
                etag = self._copy()
            except Exception as error:  # the caller then reads and writes the object, and gets the error
                raise NotCopied from error
            computed = etag.strip('"')
        else:
            with explained(self.name, OutputError, "write"):
                etag, computed = self._put_whole() if self._upload is None else self._complete()
        self.version = etag_version(etag)
        if computed and etag.strip('"') == computed:
            self.stored_version = stored_version(self.name, f'"{computed}"')

    def _copy(self) -> str:
        """Let the store copy the object, and return the new object's ETag. One request copies a small object. A larger
        object is copied in parts, which is faster. Raises the errors of the request."""
        begin, original = self._object.begin, self._original
        if self.written <= COPY_BYTES:
            # Copy no metadata and tags: objects written here have none, and reading them may be forbidden.
            how = {"MetadataDirective": "REPLACE", "TaggingDirective": "REPLACE", **self._object.algorithm}
            whole = partial(begin, "copy_object", **original, **how)
            return self._finished(whole, partial(str.strip, original["CopySourceIfMatch"], '"'))
        self._upload = begin("create_multipart_upload")
        upload = self._upload.result()["UploadId"]
        for first in range(0, self.written, COPY_BYTES):
            if len(self._under_way) >= COPIES_AT_ONCE:
                self._under_way.pop(0).result()
            span = f"bytes={first}-{min(first + COPY_BYTES, self.written) - 1}"
            number = len(self._parts) + 1
            part = begin(
                "upload_part_copy", **original, CopySourceRange=span, UploadId=upload, PartNumber=number
            )
            self._parts.append(part)
            self._under_way.append(part)
        etags = [part.result()["CopyPartResult"]["ETag"] for part in self._parts]
        return self._joined([{"ETag": etag} for etag in etags])

    def _joined(self, answers: list[dict[str, str]]) -> str:
        """Let the store join the parts, and return the object's ETag. ``answers`` has the store's answer for each
        part."""
        assert self._upload is not None
        parts = [{"PartNumber": index + 1, **answer} for index, answer in enumerate(answers)]
        upload = self._upload.result()["UploadId"]
        finish = partial(
            self._object.begin, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts}
        )
        return self._finished(finish, partial(_etag_of, [answer["ETag"] for answer in answers]))

    def _put_whole(self) -> tuple[str, str]:
        """Send the object by one request. Return the ETags of :meth:`_complete`."""
        body = RequestBody(self._pieces)
        is_md5 = self._object.etag_check("put_object", body)
        noted = {"Metadata": {NOTE: self.note}} if self.note else {}
        etag = self._finished(partial(self._object.send, "put_object", body, **noted), partial(_md5_of, body))
        return etag, etag.strip('"') if is_md5(etag) else ""

    def _complete(self) -> tuple[str, str]:
        """Complete the object. Return its ETag, and the ETag computed from its bytes. The computed ETag is empty if the
        store's ETags are no MD5."""
        if self._pieces:
            self._send()
        names = ("ETag", "ChecksumCRC32") if self._object.algorithm else ("ETag",)
        answers = [
            {name: answer[name] for name in names if answer.get(name)}
            for answer in (part.result() for part in self._parts)
        ]
        is_md5 = self._is_md5 is not None and self._is_md5(answers[0]["ETag"])
        return self._joined(answers), _etag_of([answer["ETag"] for answer in answers]) if is_md5 else ""

    def _finished(self, finish: Callable[..., Future[Any]], expected_etag: Callable[[], str]) -> str:
        """Return the ETag of the complete object. ``expected_etag()`` computes it, for a store that makes ETags from
        MD5. An answer without an ETag may come from a proxy, so the object is then looked at."""
        attempts = Attempts(network(), self.name)
        while True:
            answer = self._finish_answer(finish, expected_etag)
            reported = str(answer.get("ETag") or answer.get("CopyObjectResult", {}).get("ETag") or "")
            if reported:
                return reported
            stored_etag, stored_bytes = self._object.look()
            # With the condition, no older object can have this name. ETags of some stores are no MD5.
            if stored_bytes == self.written and (self._condition or stored_etag == expected_etag()):
                return stored_etag
            time.sleep(attempts.pause_after(Transient("the store did not confirm the upload")))
            self._object.repeated.append("finish")

    def _finish_answer(
        self, finish: Callable[..., Future[Any]], expected_etag: Callable[[], str]
    ) -> dict[str, Any]:
        """Return the answer to the last request of an upload."""
        try:
            answer: dict[str, Any] = finish(**self._condition).result()
            return answer
        except Exception as error:
            code = next((code for cause in causes(error) if (code := code_of(cause))), "")
            if code == "NotImplemented" and self._condition:
                # The store does not support If-None-Match, so only the check at the start protects existing objects.
                self._condition = {}
                return self._finish_answer(finish, expected_etag)
            # The first attempt may have succeeded although its answer was lost.
            if code in (*_TAKEN, "NoSuchUpload") and self._object.repeated:
                etag = self._object.look()[0]
                if etag == expected_etag():
                    return {"ETag": etag}
            # s3fs has several errors for an existing name.
            if isinstance(error, FileExistsError) or code in _TAKEN:
                raise taken(self.name) from cause_of(error)
            raise

    def _discard(self) -> None:
        self._pieces = []
        # While the interpreter shuts down, the thread that would send the request no longer exists.
        if self._upload is not None and not sys.is_finalizing():
            for part in self._under_way:
                part.cancel()
            self._object.abort(self._upload)


class _S3Object:
    """The requests for writing an object on S3. They run in fsspec's thread."""

    def __init__(self, store: S3Store, path: str, patience: Network) -> None:
        self._store, self._patience = store, patience
        bucket, key, _ = store.split(path)
        self.place = {"Bucket": bucket, "Key": key}
        self.repeated: list[str] = []
        """The methods of the requests that were retried."""

    @cached_property
    def fs(self) -> Any:
        """The client of s3fs. There is one client for each store and account."""
        return self._store.fs

    @cached_property
    def algorithm(self) -> dict[str, str]:
        """The option that names the checksum of requests with a body."""
        self.fs.connect()
        client = self.fs._s3.meta
        client.events.register("before-sign.s3", _say_checksum, unique_id="wdscli")
        setting = getattr(client.config, "request_checksum_calculation", None)
        # AWS_REQUEST_CHECKSUM_CALCULATION=when_required is for stores that do not support checksums.
        return {} if setting == "when_required" else {"ChecksumAlgorithm": "CRC32"}

    def begin(self, method: str, **options: Any) -> Future[Any]:
        """Start a request. It is retried after transient failures."""
        of = {**self.place, **options}
        return _begun(self.fs, _answered(self.fs, self._patience, self.repeated, method, of))

    def send(self, method: str, body: RequestBody, **options: Any) -> Future[Any]:
        """Start a request with a body."""
        from base64 import b64encode

        if self.algorithm:
            options["ChecksumCRC32"] = b64encode(crc32_of(body.pieces).to_bytes(4, "big")).decode()
        return self.begin(method, Body=body, **options)

    def etag_check(self, method: str, body: RequestBody) -> Callable[[str], bool]:
        """Return a function that says whether the ETag in the answer is an MD5. An MD5 takes longer than sending the
        body, so one body with this ETag answers for all later ones that this process sends to the bucket."""
        bucket = self.fs, self.place["Bucket"], method
        if bucket in _with_md5_etags:
            return bool
        md5 = _md5_of(body)

        def is_md5(etag: str) -> bool:
            if etag.strip('"') == md5:
                _with_md5_etags.add(bucket)
            return bucket in _with_md5_etags

        return is_md5

    def look(self) -> tuple[str, int]:
        """Return the current ETag and size of the object. The ETag is empty if there is no object."""
        try:
            answer = self.begin("head_object").result()
        except FileNotFoundError:
            return "", 0
        return str(answer.get("ETag", "")).strip('"'), int(answer.get("ContentLength") or 0)

    def abort(self, upload: Future[Any]) -> None:
        """Abort an upload. Its first request may still be unanswered. Never raises an error."""
        impatient = self._patience._replace(
            retries=min(self._patience.retries, 2), timeout_seconds=_ABORT_SECONDS
        )
        done = _begun(self.fs, _aborted(self.fs, impatient, self.place, upload))
        if not _is_inside(self.fs):
            with contextlib.suppress(Exception):
                done.result(4 * _ABORT_SECONDS)


def _begun(fs: Any, work: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(work, fs.loop)


def _is_inside(fs: Any) -> bool:
    """Return whether this is fsspec's thread, which cannot wait for itself. A sink may be garbage-collected in this
    thread."""
    try:
        return asyncio.get_running_loop() is fs.loop
    except RuntimeError:
        return False


# This is not a method, because a running request must not keep an unused sink alive.
async def _answered(
    fs: Any, patience: Network, again: list[str], method: str, options: dict[str, Any]
) -> Any:
    """Return the answer to a request. Raises GaveUp, and the errors of s3fs. Each retry adds the method to
    ``again``."""
    size = len(options.get("Body", b""))
    sending_seconds = size / _SLOWEST_BYTES_PER_SECOND
    seconds = patience.timeout_seconds + sending_seconds
    address = f"s3://{options['Bucket']}/{options.get('Key', '')}"
    attempts = Attempts(patience, address, sending_seconds)
    while True:
        count_traffic(requests=1, sent=size)
        try:
            answer = await asyncio.wait_for(noticed(fs._call_s3(method, **options), attempts), seconds)
            _check_stored(method, options, answer)
            note_answer(address)
            return answer
        except Exception as error:
            is_damaged = any(code_of(cause) in _NOT_WHAT_WAS_SENT for cause in causes(error))
            pause = attempts.pause_after(Transient(_CORRUPTED) if is_damaged else error)
        again.append(method)
        await asyncio.sleep(pause)


_NEEDED = {"create_multipart_upload": "UploadId", "upload_part": "ETag", "upload_part_copy": "CopyPartResult"}
"""What the answer of a store surely has, by method. The answer of a proxy does not have it."""


def _check_stored(method: str, options: dict[str, Any], answer: Any) -> None:
    """Raise Transient for an answer that is not from a store, and if the checksum that the store reports is not the
    checksum of the body."""
    if method in _NEEDED and not answer.get(_NEEDED[method]):
        raise Transient("the answer is not from a store")
    sent = options.get("ChecksumCRC32")
    stored = answer.get("ChecksumCRC32") if isinstance(answer, dict) else None
    if sent and stored and sent != stored:
        raise Transient(_CORRUPTED)


async def _aborted(fs: Any, patience: Network, of: dict[str, str], upload: Future[Any]) -> None:
    answer = await asyncio.wait_for(asyncio.wrap_future(upload), patience.timeout_seconds)
    await _answered(fs, patience, [], "abort_multipart_upload", {**of, "UploadId": answer["UploadId"]})


def _say_checksum(request: Any, **_: Any) -> None:
    """Name the checksum to botocore, which did not compute it. Over TLS, botocore then does not hash the body for the
    signature."""
    header = "x-amz-checksum-crc32"
    if header in request.headers:
        request.context["checksum"] = {"request_algorithm": {"in": "header", "name": header}}


def _md5_of(body: RequestBody) -> str:
    from hashlib import md5

    return md5(b"".join(body.pieces), usedforsecurity=False).hexdigest()


def _etag_of(parts: list[str]) -> str:
    """Return the ETag of an object with these parts, if the store makes ETags from MD5; otherwise an empty text."""
    from hashlib import md5

    with contextlib.suppress(ValueError):
        sums = b"".join(bytes.fromhex(part.strip('"')) for part in parts)
        return f"{md5(sums, usedforsecurity=False).hexdigest()}-{len(parts)}"
    return ""


def abort_uploads(folder: str, is_own: Callable[[str], bool]) -> None:
    """Abort uploads to S3 and Azure, in or below ``folder``, that killed processes did not complete. ``is_own`` says
    whether an address belongs to the caller. If a store cannot list or abort uploads, nothing is done."""
    kind = kind_of(folder)
    if kind.discard_blocks:
        with contextlib.suppress(Exception):
            store, path = store_of(folder, fresh=False)
            path = f"{path.rstrip('/')}/"
            wait = _begun(store.fs, kind.discard_blocks(store.fs, path, lambda name: is_own(folder + name)))
            for name in wait.result(network().timeout_seconds):
                warnings.warn(
                    f"{folder}{name} has blocks of a killed upload; Azure removes them within a week",
                    stacklevel=2,
                )
    if not kind.is_s3:
        return
    with contextlib.suppress(Exception):
        fs = store_of(folder, fresh=False)[0].fs
        bucket = container_of(folder)
        place, _, prefix = folder.partition(f"{bucket}/")
        place += f"{bucket}/"
        for upload in _unfinished(fs, bucket, prefix):
            if is_own(place + upload["Key"]):
                of = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                _begun(fs, _answered(fs, network(), [], "abort_multipart_upload", of)).result()


def _unfinished(fs: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    markers: dict[str, str] = {}
    while True:
        options = {"Bucket": bucket, "Prefix": prefix, **markers}
        answer = _begun(fs, _answered(fs, network(), [], "list_multipart_uploads", options)).result()
        yield from answer.get("Uploads", [])
        if not answer.get("IsTruncated"):
            return
        markers = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


class _FileSink(Sink):
    """A sink that writes through a file of fsspec."""

    _file: Any

    def __init__(self, name: str, store: Store, path: str, *, force: bool) -> None:
        super().__init__(name)
        self._store, self._fs, self._path, self._force = store, store.fs, path, force

    def _put(self, data: Data) -> None:
        with explained(self.name, OutputError, "write"):
            self._file.write(data)


class UploadSink(_FileSink):
    """A sink for an object that appears when fsspec completes its upload.

    Without ``force``, the upload has the condition that the object does not exist, if the client supports it. Otherwise
    only the check at the start protects an existing object.
    """

    def __init__(self, name: str, store: Store, path: str, *, force: bool) -> None:
        super().__init__(name, store, path, force=force)
        self._file = _open_upload(self._fs, path, force)

    def _commit(self) -> None:
        with explained(self.name, OutputError, "write"):
            try:
                self._file.close()
            except FileExistsError as error:
                raise taken(self.name) from cause_of(error)

    def _discard(self) -> None:
        # Mark the file as closed first. If an open fsspec file is garbage-collected, it commits its bytes.
        self._file.closed = True
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self._file.discard()
            discard = self._store.kind.discard_blocks
            if discard and self.written > PART_BYTES and not _is_inside(self._fs):
                with contextlib.suppress(Exception):
                    _begun(self._fs, discard(self._fs, self._path, "".__eq__)).result(_ABORT_SECONDS)


def _open_upload(fs: Any, path: str, force: bool) -> Any:
    if not force:
        with contextlib.suppress(NotImplementedError, ValueError):
            return fs.open(path, mode="xb", block_size=PART_BYTES)
    return fs.open(path, mode="wb", block_size=PART_BYTES)


class RenameSink(_FileSink):
    """A sink for a file that is written as ``.NAME.<random>.tmp``, and renamed when it is complete."""

    def __init__(self, name: str, store: Store, path: str, *, force: bool) -> None:
        super().__init__(name, store, path, force=force)
        folder, slash, base = path.rpartition("/")
        if folder:
            self._fs.makedirs(folder, exist_ok=True)
        self._temporary = f"{folder}{slash}.{base}.{os.urandom(6).hex()}.tmp"
        self._file = self._fs.open(self._temporary, mode="wb")

    def _commit(self) -> None:
        with explained(self.name, OutputError, "write"):
            self._file.close()
            _check(self._store, self._path, self.name, self._force)
            # Few of these file systems can rename onto an existing name.
            if self._force:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self._path)
            self._fs.mv(self._temporary, self._path)

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._temporary)
