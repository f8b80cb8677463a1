"""How stores and servers are reached: what the environment and the usual files say arrives at the server."""

from __future__ import annotations

import asyncio
import base64
import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fsspec.registry import _registry as KNOWN
from storage_servers import forget_s3

from wdscli.errors import InputError, UsageError
from wdscli.storage import expand, open_source, read_all
from wdscli.storage.retry import Network, using

BODY = bytes(range(256)) * 400
LOGIN = "Basic " + base64.b64encode(b"ann:secret").decode()


class Server:
    """A web server on two host names, which notes what each request says of itself."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None]] = []
        """Host, path and Authorization of each request."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _begin(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{path}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        login = request.headers.get("Authorization")
        path = request.path.lstrip("/")
        self.seen.append((request.host.partition(":")[0], path, login))
        kind, _, rest = path.partition("/")
        if kind == "away":
            raise web.HTTPFound(self.url(rest, "localhost"))
        if kind == "here":
            raise web.HTTPTemporaryRedirect(self.url(rest))
        if kind == "s3":  # AIStore: the gateway tells which target has it
            raise web.HTTPTemporaryRedirect(self.url("target/" + rest))
        if kind == "loop":
            raise web.HTTPFound(self.url(path))
        wanted = {"basic": (LOGIN,), "token": ("Bearer abc",), "public": (None,), "private": ("never",)}.get(
            kind
        )
        if wanted and login not in wanted:
            return web.Response(status=403 if kind in ("public", "private") else 401)
        return self._part(request)

    def _part(self, request: web.Request) -> web.Response:
        part = request.http_range
        body = BODY[part]
        headers = {"ETag": '"x"'}
        if part.start is None:
            return web.Response(body=BODY, headers=headers)
        headers["Content-Range"] = f"bytes {part.start}-{part.start + len(body) - 1}/{len(BODY)}"
        return web.Response(status=206, body=body, headers=headers)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """The server, and an environment in which nobody is logged in anywhere."""
    import os

    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_S3", "AIS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    running.seen.clear()
    forget_s3()
    yield running
    forget_s3()


class TestWeb:
    def test_a_login_from_netrc(self, server: Server, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="401") as caught:
            read_all(server.url("basic/a.tar"))
        assert "netrc" in str(caught.value.hint)
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password secret\n")
        with open_source(server.url("basic/a.tar")) as source:
            assert source.read_at(90_000, 100) == BODY[90_000:90_100]
        assert server.seen[-1] == ("127.0.0.1", "basic/a.tar", LOGIN)

    def test_a_token(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WDSCLI_HTTP_TOKEN", f"elsewhere.org=xyz 127.0.0.1:{server.port}=abc")
        assert read_all(server.url("token/a.tar")) == BODY

    @pytest.mark.parametrize("host", ["localhost=abc", "127.0.0.1:1=abc"])
    def test_a_token_of_another_host_stays_here(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, host: str
    ) -> None:
        monkeypatch.setenv("WDSCLI_HTTP_TOKEN", host)
        assert read_all(server.url("a.tar")) == BODY
        assert {login for _, _, login in server.seen} == {None}

    @pytest.mark.parametrize("said", ["abc", "=abc", "host=", "a b=c", "h=x\ny"])
    def test_a_token_for_nobody(self, server: Server, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
        monkeypatch.setenv("WDSCLI_HTTP_TOKEN", said)
        with pytest.raises(UsageError, match="has a token without a host") as caught:
            read_all(server.url("a.tar"))
        assert "HOST=TOKEN" in str(caught.value.hint)
        assert server.seen == []

    def test_redirects_take_a_token_along_on_one_host_alone(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WDSCLI_HTTP_TOKEN", f"127.0.0.1:{server.port}=abc")
        assert read_all(server.url("here/token/a.tar")) == BODY
        server.seen.clear()
        assert read_all(server.url("away/a.tar")) == BODY
        assert set(server.seen) == {
            ("127.0.0.1", "away/a.tar", "Bearer abc"),
            ("localhost", "a.tar", None),
        }

    def test_redirects_leave_a_login_behind(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password secret\n")
        assert read_all(server.url("away/a.tar")) == BODY
        assert set(server.seen) == {("127.0.0.1", "away/a.tar", LOGIN), ("localhost", "a.tar", None)}

    def test_redirects_without_end(self, server: Server) -> None:
        with pytest.raises(InputError, match=r"cannot read http://.*loop/a\.tar"):
            read_all(server.url("loop/a.tar"))


class TestS3:
    def test_a_profile(self, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "config").write_text(
            "[profile lab]\nregion = eu-north-1\nservices = here\n"
            f"[services here]\ns3 =\n  endpoint_url = {server.url('')}\n"
        )
        (tmp_path / "credentials").write_text(
            "[lab]\naws_access_key_id = LABKEY\naws_secret_access_key = s\n"
        )
        monkeypatch.setenv("AWS_PROFILE", "lab")
        assert read_all("s3://b/a.tar") == BODY
        assert "Credential=LABKEY/" in str(server.seen[0][2])
        assert "/eu-north-1/s3/" in str(server.seen[0][2])

    def test_no_such_profile(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(InputError, match="nobody") as caught:
            read_all("s3://b/a.tar")
        assert "AWS_PROFILE" in str(caught.value.hint)

    @pytest.mark.parametrize("endpoint", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
    @pytest.mark.parametrize("region", ["AWS_DEFAULT_REGION", "AWS_REGION"])
    def test_variables(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, endpoint: str, region: str
    ) -> None:
        monkeypatch.setenv(endpoint, server.url(""))
        monkeypatch.setenv(region, "us-west-2")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        assert read_all("s3://b/a.tar") == BODY
        assert "Credential=ENVKEY/" in str(server.seen[0][2])
        assert "/us-west-2/s3/" in str(server.seen[0][2])

    def test_a_public_bucket_needs_no_credentials(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
        assert read_all("s3://public/a.tar") == BODY
        with monkeypatch.context() as patch, pytest.raises(InputError, match="access denied") as caught:
            patch.setenv("AWS_NO_SIGN_REQUEST", "true")
            read_all("s3://private/a.tar")
        assert "not signed" in str(caught.value.hint)
        with pytest.raises(InputError, match="access denied") as caught:
            read_all("s3://private/a.tar")
        assert "no credentials were found" in str(caught.value.hint)

    @pytest.mark.parametrize("name", ["AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE", "FSSPEC_S3_ANON"])
    @pytest.mark.parametrize(("said", "unsigned"), [("true", True), ("YES", True), ("false", False)])
    def test_unsigned(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, name: str, said: str, unsigned: bool
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        monkeypatch.setenv(name, said)
        assert read_all("s3://b/a.tar") == BODY
        assert [login is None for _, _, login in server.seen] == [unsigned] * len(server.seen)


@pytest.mark.parametrize("address", ["s3://", "s3:///a.tar"])
def test_no_bucket(server: Server, address: str) -> None:
    with pytest.raises(UsageError, match=f"{address} has no bucket"):
        expand(address)
        open_source(address)


class TestAIStore:
    def test_its_face_of_s3(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIS_ENDPOINT", server.url(""))
        assert read_all("ais://b/d/a.tar") == BODY
        assert {path for _, path, _ in server.seen} == {"s3/b/d/a.tar", "target/b/d/a.tar"}

    @pytest.mark.parametrize(("said", "why"), [("", "is not set"), ("10.0.0.1:51080", "is not the address")])
    def test_no_endpoint(self, server: Server, monkeypatch: pytest.MonkeyPatch, said: str, why: str) -> None:
        monkeypatch.setenv("AIS_ENDPOINT", said)
        with pytest.raises(UsageError, match=why) as caught:
            expand("ais://b/d")
        assert "AIS_ENDPOINT=http://HOST:PORT" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("address", "module", "command"),
    [
        ("gs://b/a.tar", "gcsfs", "pip install gcsfs"),
        ("az://b/a.tar", "adlfs", "pip install adlfs"),
        ("hf://datasets/a/b/a.tar", "huggingface_hub", "pip install huggingface_hub"),
    ],
)
def test_a_package_that_is_not_there(
    address: str, module: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: Any = None
    monkeypatch.setitem(sys.modules, module, hidden)
    # fsspec keeps the class of every scheme that an earlier test of this process opened.
    monkeypatch.delitem(KNOWN, address.partition(":")[0], raising=False)
    with pytest.raises(InputError, match="is not installed") as caught:
        open_source(address)
    assert caught.value.hint == command


@pytest.mark.exhaustive
def test_google_s_client_makes_no_attempts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs")
    came = []

    class HangsUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            came.append(self.client_address)

    with socketserver.TCPServer(("127.0.0.1", 0), HangsUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_address[1]}")
        with (
            pytest.raises(InputError, match=r"\(2 attempts\)"),
            using(Network(retries=1, pause_seconds=0.0001)),
        ):
            open_source("gs://bucket/a.tar")
        server.shutdown()
    # An attempt takes up to four requests; six attempts of gcsfs's would be twelve of the first alone.
    assert len(came) < 12
