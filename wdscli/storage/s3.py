"""Objects on S3, each read as one version of itself.

What it is: the range requests of an object, through s3fs's client. How: the first answer says which version there is
(its ETag), every other request asks for that one (If-Match), and every answer is compared with it, because some stores
that speak S3 do not know If-Match. s3fs's own ``cat_file`` takes no condition and shows no headers, hence the call one
step below it. It must not import s3fs, which whoever has a file system of its has loaded.
"""

from __future__ import annotations

from typing import Any

from wdscli.storage.ends import Source
from wdscli.storage.remote import RemoteSource, Replaced
from wdscli.storage.web import check_range


def open_s3(address: str, fs: Any, path: str, size: int, version: str) -> Source:
    """A source for an object of which a listing, or the answer to a question, has said size and version."""
    from fsspec.asyn import sync

    pinned = _Pinned(fs, path, size)

    def read_range(start: int, end: int) -> bytes:
        data: bytes = sync(fs.loop, pinned.read, start, end)
        if pinned.etag:
            # What a listing said may be older than the first answer.
            source.version = f"etag:{pinned.etag}"
        return data

    source = RemoteSource(address, size, read_range)
    source.version = version
    return source


class _Pinned:
    """One object, of the version that the first answer is of."""

    def __init__(self, fs: Any, path: str, size: int) -> None:
        self._fs = fs
        self._size = size
        self.etag = ""
        bucket, key, version_id = fs.split_path(path)
        self._of = {"Bucket": bucket, "Key": key, **({"VersionId": version_id} if version_id else {})}

    async def read(self, start: int, end: int) -> bytes:
        """One range. Raises Replaced, and what s3fs raises."""
        try:
            return await _retried(self._fs, self._read, start, end)
        except Exception as error:
            response = getattr(error.__cause__, "response", None) or {}
            if str(response.get("Error", {}).get("Code", "")) in ("PreconditionFailed", "412"):
                self._fs.invalidate_cache()
                raise Replaced from None
            raise

    async def _read(self, start: int, end: int) -> bytes:
        condition = {"IfMatch": self.etag} if self.etag else {}
        answer = await self._fs._call_s3(
            "get_object", **self._of, Range=f"bytes={start}-{end - 1}", **condition
        )
        body = answer["Body"]
        try:
            etag = answer.get("ETag") or ""
            if self.etag and etag and etag != self.etag:
                self._fs.invalidate_cache()
                raise Replaced
            check_range(answer.get("ContentRange") or "", start, end, self._size)
            data = bytes(await body.read())
        finally:
            body.close()
        self.etag = self.etag or etag
        return data


async def _retried(fs: Any, function: Any, *arguments: Any) -> bytes:
    """As s3fs reads: a body that breaks off is asked for again, as often as it is told to."""
    from s3fs.core import _error_wrapper

    data: bytes = await _error_wrapper(function, args=arguments, retries=fs.retries)
    return data
