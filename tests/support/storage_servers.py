"""Real servers on 127.0.0.1 for the storage tests: HTTP with and without ranges, and moto's S3."""

from __future__ import annotations

import functools
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import unquote

from wdscli.storage import remote, s3_obstore


class Web(ThreadingHTTPServer):
    """Serves ``files`` by path. ``mode`` says how well: ``ranges``, ``plain``, ``chunked``, ``short``, ``unsized``."""

    daemon_threads = True

    def __init__(self, mode: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = mode
        self.files: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.validators: tuple[str, ...] = ()
        """What answers say of a version: of ``strong``, ``weak`` (an ETag of that kind), ``date`` (Last-Modified); and
        ``ignores``, for a server that does not know If-Match."""
        self.dates: dict[str, int] = {}
        """When a file was changed last, for ``date``."""
        self.on_get: Callable[[str], None] = lambda name: None
        """Called with the name before each answer, in the server's thread."""
        self.ranges: list[str | None] = []
        self.sent_bytes = 0
        """Of bodies that were answered with."""
        """The Range header of each request, in order."""
        self.heads: list[str] | None = None
        """The names that HEAD asked for; None for a server that does not know HEAD."""

    def handle_error(self, *_: object) -> None:
        """A reader that hangs up early is what some tests are about."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        name = self.path.lstrip("/").partition("?")[0]
        self.server.on_get(name)
        self.name = name
        data = self.server.files.get(name)
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if name in self.server.status:
            self._answer(self.server.status[name], b"")
        elif data is None:
            self._answer(404, b"no such file")
        elif self._is_refused(data):
            self._answer(412, b"")
        elif self.server.mode in ("ranges", "unsized") and asked:
            self._range(data, asked)
        elif self.server.mode == "chunked":
            self._chunked(data)
        else:
            self._answer(200, data, short=self.server.mode == "short")

    def do_HEAD(self) -> None:
        self.name = name = self.path.lstrip("/").partition("?")[0]
        data = self.server.files.get(name)
        if self.server.heads is not None:
            self.server.heads.append(name)
        status = 501 if self.server.heads is None else 404 if data is None else 200
        self.send_response(self.server.status.get(name, status))
        for header, value in {**self._validators(), "Content-Length": str(len(data or b""))}.items():
            self.send_header(header, value)
        self.end_headers()

    def _is_refused(self, data: bytes) -> bool:
        asked = self.headers.get("If-Match")
        return asked is not None and "ignores" not in self.server.validators and asked != self._etag(data)

    def _etag(self, data: bytes) -> str:
        return f'{"W/" if "weak" in self.server.validators else ""}"{zlib.crc32(data):08x}"'

    def _validators(self) -> dict[str, str]:
        found = {}
        data = self.server.files.get(self.name)
        if data is not None and {"strong", "weak"} & set(self.server.validators):
            found["ETag"] = self._etag(data)
        if "date" in self.server.validators:
            found["Last-Modified"] = formatdate(
                1_700_000_000 + self.server.dates.get(self.name, 0), usegmt=True
            )
        return found

    def _range(self, data: bytes, asked: str) -> None:
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", asked)
        assert match
        start, end = int(match[1]), min(int(match[2]) + 1, len(data))
        if start >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        total = "*" if self.server.mode == "unsized" else len(data)
        self._answer(206, data[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{total}"})

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, short: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {**self._validators(), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.server.sent_bytes += len(body)
        self.wfile.write(body[: len(body) // 2] if short else body)
        self.close_connection = short

    def _chunked(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(data), 50_000):
            piece = data[start : start + 50_000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def web_server(mode: str) -> Iterator[Web]:
    server = Web(mode)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Seen(NamedTuple):
    """One request that a server answered. ``verb`` is its method, or LIST for a listing; ``part`` the range asked for,
    ``sent`` the bytes of the answer's body."""

    verb: str
    key: str
    part: str
    sent: int


class Requests(list[Seen]):
    """The requests that a server answered. ``under_way`` are the clients of the others, from the moment at which the
    server accepts their connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.under_way: set[tuple[str, int]] = set()
        self.changed = threading.Condition()

    def settled(self) -> Requests:
        """All, after every connection made before has ended, also those of clients that do not wait for an answer.
        Connections are accepted in their order, so that a connection of our own comes after them."""
        with socket.create_connection(self.address, 10) as last:
            last.shutdown(socket.SHUT_WR)
            assert last.recv(1) == b""
        with self.changed:
            assert self.changed.wait_for(lambda: not self.under_way, 10), self.under_way
        return self

    def begin_anew(self) -> None:
        """Forget them."""
        self.settled().clear()

    def accepted(self, client: tuple[str, int]) -> None:
        with self.changed:
            self.under_way.add(client)

    def ended(self, client: tuple[str, int], request: Seen | None = None) -> None:
        """Note the request of a client, if it made one, and that it is no longer under way."""
        with self.changed:
            if request is not None:
                self.append(request)
            self.under_way.discard(client)
            self.changed.notify_all()

    def noted(self, app: Callable[[Any, Any], Any], environ: dict[str, Any], start: Any) -> Iterator[bytes]:
        """A WSGI application that notes its requests and the size of their answers."""
        bucket, _, key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")
        verb, part = environ["REQUEST_METHOD"], environ.get("HTTP_RANGE", "")
        if verb == "GET" and bucket and not key:
            verb = "LIST"
        sent = 0
        try:
            with closing(app(environ, start)) as answer:
                for data in answer:
                    sent += len(data)
                    yield data
        finally:
            # The client may have its last byte already. The connection stays open a little longer.
            self.ended((environ["REMOTE_ADDR"], environ["REMOTE_PORT"]), Seen(verb, key, part, sent))


class S3:
    """A server of S3's and a client that looks at it from outside. ``seen`` are the requests that moto answered."""

    def __init__(self, endpoint: str, seen: Requests, key: str = "k", secret: str = "s") -> None:
        import boto3

        self.endpoint = endpoint
        self.seen = seen
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            region_name="us-east-1",
        )

    def bucket(self, name: str) -> str:
        self.client.create_bucket(Bucket=name)
        return name

    def names(self, bucket: str) -> list[str]:
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])]

    def pending(self, bucket: str) -> list[str]:
        """The uploads that were begun and neither completed nor aborted."""
        return [item["Key"] for item in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

    def get(self, bucket: str, name: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=bucket, Key=name)["Body"].read()
        return body


@functools.cache
def _s3_of_this_process() -> S3:
    """Moto's server in a thread, on a port of its own, until the process ends. Its buckets stay."""
    from botocore.loaders import JSONFileLoader
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import ThreadedWSGIServer

    # Each new client would parse botocore's descriptions of S3 and of all regions again.
    parsed = functools.cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda _, path: parsed(path)

    class Server(ThreadedWSGIServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            seen.accepted(client_address)
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                seen.ended(client_address)

    app = DomainDispatcherApplication(create_backend_app)
    server = Server(
        "127.0.0.1", 0, lambda environ, start: seen.noted(app, environ, start), MotoRequestHandler
    )
    seen = Requests(("127.0.0.1", server.port))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return S3(f"http://127.0.0.1:{server.port}", seen)


@contextmanager
def s3_server() -> Iterator[S3]:
    """The S3 server of this process, the same for all test files; until the block ends, the environment leads to it."""
    server = _s3_of_this_process()
    server.seen.begin_anew()
    wanted = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with patch.dict(os.environ, wanted):
        forget_s3()
        try:
            yield server
        finally:
            forget_s3()


def forget_listings() -> None:
    """Drop what fsspec's S3 clients have heard of the store. The clients stay: a new one takes half a second."""
    from s3fs import S3FileSystem

    for known in S3FileSystem._cache.values():
        known.invalidate_cache()
    remote._current.clear()
    remote._without_checksums.clear()


def forget_s3() -> None:
    """Drop fsspec's S3 clients, which keep the endpoint they were made with."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    s3_obstore._STORES.clear()
    remote._current.clear()
    remote._without_checksums.clear()
