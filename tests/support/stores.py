"""Stores of several makes, each as a real server on 127.0.0.1, with a client that looks at it from outside.

What a store needs and is not installed skips the test by its name. Each is entered once a module; the environment
leads fsspec and obstore to it. It must not know wdscli, but for clients that keep the place they were made for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from requests import Request, Session
from storage_servers import S3, Requests, forget_s3, s3_server, web_server

BUCKET = "contract"
KEY, SECRET = "contract-key", "contract-secret"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of azurite's only account; it is no secret."""
START_SECONDS = 30.0


class Store(NamedTuple):
    """A place for objects. ``url`` is its address without the last slash; the functions look at it without wdscli."""

    url: str
    put: Callable[[str, bytes], object]
    names: Callable[[], list[str]]
    get: Callable[[str], bytes]
    pending: Callable[[], list[str]] = list
    """The uploads that were begun and neither completed nor aborted."""

    def objects(self, prefix: str) -> dict[str, bytes]:
        return {name.removeprefix(prefix): self.get(name) for name in self.names() if name.startswith(prefix)}

    def below(self, folder: str) -> Store:
        """A folder of it."""
        start = f"{folder}/"

        def inside(names: Callable[[], list[str]]) -> Callable[[], list[str]]:
            return lambda: [name.removeprefix(start) for name in names() if name.startswith(start)]

        return Store(
            f"{self.url}/{folder}",
            lambda key, data: self.put(start + key, data),
            inside(self.names),
            lambda key: self.get(start + key),
            inside(self.pending),
        )


@contextmanager
def store(name: str, folder: Path) -> Iterator[Store]:
    """The store of this name, empty; ``folder`` is for what it keeps."""
    with STORES[name](folder) as found:
        yield found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _program(name: str) -> str:
    """A program beside this Python, or in PATH."""
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextmanager
def _running(folder: Path, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    with (
        open(folder / "server.log", "wb") as log,
        subprocess.Popen(list(map(str, words)), stdout=log, stderr=log, cwd=folder) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _until(succeeds: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Try until it raises nothing; a server that has just started refuses for a while."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            succeeds()
            return
        except Exception:
            if process.poll() is not None or time.monotonic() > end:
                raise
        time.sleep(0.05)


def forget_clients() -> None:
    """Drop fsspec's clients, which keep the account that they were made with."""
    from fsspec.registry import _registry

    forget_s3()
    for loaded in _registry.values():
        loaded.clear_instance_cache()


@contextmanager
def _known_to_fsspec(*schemes: str) -> Iterator[None]:
    """What fsspec loads for the schemes is forgotten at the end: other tests are about clients that are missing."""
    from fsspec.registry import _registry

    try:
        yield
    finally:
        for scheme in schemes:
            if loaded := _registry.pop(scheme, None):
                loaded.clear_instance_cache()


@contextmanager
def _environment(**wanted: str) -> Iterator[None]:
    with patch.dict(os.environ, wanted):
        forget_s3()
        try:
            yield
        finally:
            forget_s3()


def _s3_store(client: S3) -> Store:
    def pending() -> list[str]:
        try:
            return client.pending(BUCKET)
        except client.client.exceptions.NoSuchUpload:  # rclone's word for none
            return []

    return Store(
        f"s3://{BUCKET}",
        lambda key, data: client.client.put_object(Bucket=BUCKET, Key=key, Body=data),
        lambda: client.names(BUCKET),
        lambda key: client.get(BUCKET, key),
        pending,
    )


@contextmanager
def _at(port: int, process: subprocess.Popen[bytes]) -> Iterator[Store]:
    """The store of a server of S3's, as soon as it takes objects."""
    endpoint = f"http://127.0.0.1:{port}"
    account = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    _until(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), process)
    client = S3(endpoint, Requests(("127.0.0.1", port)), KEY, SECRET)
    _until(lambda: client.bucket(BUCKET), process)
    _until(lambda: client.client.put_object(Bucket=BUCKET, Key="first", Body=b"x"), process)
    client.client.delete_object(Bucket=BUCKET, Key="first")
    with _environment(AWS_ENDPOINT_URL=endpoint, **account):
        yield _s3_store(client)


@contextmanager
def _moto(folder: Path) -> Iterator[Store]:
    with s3_server() as server:
        Session().post(f"{server.endpoint}/moto-api/reset").raise_for_status()  # one memory for a process
        server.bucket(BUCKET)
        yield _s3_store(server)


@contextmanager
def _seaweedfs(folder: Path) -> Iterator[Store]:
    weed = _program("weed")
    identity = {
        "name": "contract",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, _free_ports(len(names))))
    words = (
        "-logdir=.", "server", "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
        "-s3.config=s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
        "-master.telemetry=false", "-master.volumeSizeLimitMB=500", "-volume.max=20",
    )  # fmt: skip
    chosen = [f"-{name}={port}" for name, port in ports.items()]
    try:
        with _running(folder, weed, *words, *chosen) as process, _at(ports["s3.port"], process) as found:
            yield found
    finally:
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _rclone_with_s3() -> str:
    """rclone, which serves S3 from version 1.65 on; Debian 12 has an older one."""
    rclone = _program("rclone")
    said = subprocess.run([rclone, "serve", "--help"], capture_output=True, text=True, check=False).stdout
    if "\n  s3 " not in said:
        version = subprocess.run([rclone, "version"], capture_output=True, text=True, check=False).stdout
        pytest.skip(f"{(version or rclone).splitlines()[0]} has no `serve s3`, which came with 1.65")
    return rclone


@contextmanager
def _rclone(folder: Path) -> Iterator[Store]:
    (port,) = _free_ports(1)
    (folder / "data").mkdir()
    words = ("serve", "s3", "data", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}")
    with (
        _running(folder, _rclone_with_s3(), "--config=none.conf", *words) as process,
        _at(port, process) as found,
    ):
        yield found


@contextmanager
def _file(folder: Path) -> Iterator[Store]:
    def put(key: str, data: bytes) -> None:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)

    def names() -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    yield Store(str(folder), put, names, lambda key: (folder / key).read_bytes())


@contextmanager
def _memory(folder: Path) -> Iterator[Store]:
    import fsspec

    fs, root = fsspec.filesystem("memory"), f"/{BUCKET}/"
    yield Store(
        f"memory://{BUCKET}",
        lambda key, data: fs.pipe_file(root + key, data),
        lambda: [name.removeprefix(root) for name in sorted(fs.find(root))],
        lambda key: bytes(fs.cat_file(root + key)),
    )


@contextmanager
def _http(folder: Path) -> Iterator[Store]:
    with web_server("ranges") as server:
        server.validators = ("strong",)
        files = server.files
        yield Store(server.url("")[:-1], files.__setitem__, lambda: sorted(files), files.__getitem__)


@contextmanager
def _google(folder: Path) -> Iterator[Store]:
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    from gcp_storage_emulator.exceptions import NotFound

    storage = emulator.Storage(use_memory_fs=True)

    class Handler(emulator.RequestHandler):
        """The emulator, and what Google does besides: it refuses a name that is taken where it is asked to, gives
        bytes of the generation that is asked for, and cancels uploads."""

        def refuses(self) -> bool:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            key = query.get("name", [unquote(url.path.rpartition("/o/")[2])])[0]
            if "upload_id" in query:
                key = storage.resumable[query["upload_id"][0]]["name"]
            try:
                now = storage.get_file_obj(BUCKET, key)["generation"]
            except NotFound:
                now = "0"
            asked = query.get("ifGenerationMatch", query.get("generation", [now]))[0]
            if asked == now:
                return False
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_error(412 if "ifGenerationMatch" in query else 404)
            return True

        def do_GET(self) -> None:
            if not self.refuses():
                super().do_GET()

        def do_POST(self) -> None:
            if not self.refuses():
                super().do_POST()

        def do_PUT(self) -> None:
            if not self.refuses():
                super().do_PUT()

        def do_DELETE(self) -> None:
            if upload := parse_qs(urlsplit(self.path).query).get("upload_id"):
                storage.delete_resumable_file_obj(upload[0])
                self.send_error(499, "cancelled")
            else:
                super().do_DELETE()

    # Its own server answers one request after the other.
    with (
        _serving(_Quiet(("127.0.0.1", 0), partial(Handler, storage))) as endpoint,
        _environment(STORAGE_EMULATOR_HOST=endpoint),
        _known_to_fsspec("gs"),
    ):
        emulator.buckets.create_bucket(BUCKET, storage)
        yield _google_store(endpoint, storage)


def _google_store(endpoint: str, storage: Any) -> Store:
    session = Session()
    objects = f"{endpoint}/storage/v1/b/{BUCKET}/o"

    def put(key: str, data: bytes) -> None:
        about = {"name": key}
        parts = {
            "about": (None, json.dumps(about), "application/json"),
            "data": (None, data, "application/x-tar"),
        }
        request = Request(
            "POST", f"{endpoint}/upload/storage/v1/b/{BUCKET}/o", params={"uploadType": "multipart"}
        )
        request.files = parts
        session.send(session.prepare_request(request)).raise_for_status()

    def get(key: str) -> bytes:
        answer = session.get(f"{objects}/{quote(key, safe='')}", params={"alt": "media"})
        answer.raise_for_status()
        return answer.content

    def names() -> list[str]:
        return sorted(item["name"] for item in session.get(objects).json().get("items", []))

    def pending() -> list[str]:
        return sorted(one["name"] for one in storage.resumable.values())

    return Store(f"gs://{BUCKET}", put, names, get, pending)


@contextmanager
def _azure(folder: Path) -> Iterator[Store]:
    pytest.importorskip("adlfs")
    blob = pytest.importorskip("azure.storage.blob")
    (port,) = _free_ports(1)
    words = ("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--blobPort", port)
    address = f"http://127.0.0.1:{port}/devstoreaccount1"
    said = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURE_KEY};BlobEndpoint={address};"
    with (
        _running(folder, _program("azurite-blob"), *words) as process,
        _environment(AZURE_STORAGE_CONNECTION_STRING=said),
        _known_to_fsspec("az"),
    ):
        _until(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), process)
        container = blob.BlobServiceClient.from_connection_string(said).create_container(BUCKET)
        yield Store(
            f"az://{BUCKET}",
            lambda key, data: container.upload_blob(key, data, overwrite=True),
            lambda: sorted(container.list_blob_names()),
            lambda key: bytes(container.download_blob(key).readall()),
            lambda: sorted(
                {one.name for one in container.list_blobs(include=["uncommittedblobs"])}
                - set(container.list_blob_names())
            ),
        )


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A reader that hangs up early is no news."""


class Hub(_Quiet):
    """What the Hugging Face Hub answers to who reads one data set, or uploads it with the program hf."""

    def __init__(self, repository: str = f"o/{BUCKET}") -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.repository = repository
        self.files: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.seen: list[str] = []


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append(f"{self.command} {self.path} {self.headers.get('Range')}")
        query = parse_qs(urlsplit(self.path).query)
        name = re.escape(self.server.repository)
        if match := re.fullmatch(rf"/api/datasets/{name}/tree/([^/]+)/?(.*)", path):
            self._json(self._tree(match[2], query.get("recursive", [""])[0].lower() == "true"))
        elif re.fullmatch(rf"/api/datasets/{name}(/revision/[^/]+)?", path):
            self._json({"id": self.server.repository, "sha": "1" * 40, "private": False, "siblings": []})
        elif match := re.fullmatch(rf"/datasets/{name}/resolve/[^/]+/(.*)", path):
            self._file(match[1])
        else:
            self._none("RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.seen.append(f"POST {self.path} {body}")
        if "/paths-info/" not in self.path:
            self._json(self._upload(body))
            return
        try:
            asked = json.loads(body)["paths"]
        except ValueError:
            asked = parse_qs(body).get("paths", [])
        everything = {one["path"]: one for one in self._tree("", True)}
        self._json([everything[path] for path in asked if path in everything])

    def do_PUT(self) -> None:
        """Large files come here, named by their hash."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.blobs[self.path.rpartition("/")[2]] = data
        self._answer(200, b"", {})

    def _upload(self, body: str) -> object:
        """The answers to an upload: where to put the bytes of shards, and the commit, which has the small files."""
        end = self.path.partition("?")[0].removeprefix(f"/api/datasets/{self.server.repository}")
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        if end.startswith("/preupload/"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".tar") else "regular" for name in names}
            return {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
        if end.endswith("/objects/batch"):
            blobs = json.loads(body)["objects"]
            uploads = [{"upload": {"href": f"{url}/blobs/{blob['oid']}"}} for blob in blobs]
            return {
                "transfer": "basic",
                "objects": [blob | {"actions": one} for blob, one in zip(blobs, uploads)],
            }
        if end.startswith("/commit/"):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.server.files[value["path"]] = self.server.blobs[value["oid"]]
        name = self.server.repository
        return {"url": f"{url}/datasets/{name}", "id": name, "commitUrl": f"{url}/datasets/{name}/commit/{'1' * 40}",
                "commitOid": "1" * 40, "hookOutput": "", "pullRequestUrl": None}  # fmt: skip

    def _tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        start = f"{folder}/" if folder else ""
        for name, data in self.server.files.items():
            parts = name.removeprefix(start).split("/")
            if not name.startswith(start):
                continue
            for depth in range(1, len(parts)):
                path = start + "/".join(parts[:depth])
                if depth == 1 or recursive:
                    found[path] = {"type": "directory", "path": path, "size": 0, "oid": "2" * 40}
            if len(parts) == 1 or recursive:
                found[name] = {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
        return list(found.values())

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._none("EntryNotFound")
            return
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", ""))
        headers = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": "1" * 40}
        if match is None:
            self._answer(200, data, headers)
            return
        begin, end = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        self._answer(206, data[begin:end], headers)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _none(self, code: str) -> None:
        self._answer(404, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _oid(data: bytes) -> str:
    from hashlib import sha1

    return sha1(data, usedforsecurity=False).hexdigest()


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[str]:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hub(repository: str) -> Iterator[tuple[Hub, dict[str, str]]]:
    """The Hub with one data set, and the environment in which the program hf knows it."""
    server = Hub(repository)
    with _serving(server) as endpoint:
        yield server, {
            "HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_none", "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip


@contextmanager
def _hub(folder: Path) -> Iterator[Store]:
    pytest.importorskip("huggingface_hub")
    server = Hub()
    with _serving(server) as endpoint, _environment(HF_ENDPOINT=endpoint), _known_to_fsspec("hf"):
        from huggingface_hub import constants

        with patch.object(constants, "ENDPOINT", endpoint):
            files = server.files
            yield Store(
                f"hf://datasets/o/{BUCKET}", files.__setitem__, lambda: sorted(files), files.__getitem__
            )


STORES = {
    "file": _file, "memory": _memory, "http": _http, "moto": _moto, "seaweedfs": _seaweedfs, "rclone": _rclone,
    "gs": _google, "az": _azure, "hf": _hub,
}  # fmt: skip
