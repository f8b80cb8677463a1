"""Ranges of objects on S3 by obstore, where it is installed: a tenth of the processor time of s3fs for a small one.

What it is: :func:`fast_reader`, who reads ranges from one bucket. How: obstore is given the endpoint, the region and
the credentials that s3fs's client has found, so that there is one way to find them, and makes no retries of its own. It
is for the usual case alone: whatever it cannot do, or fails at before the first byte, is left to s3fs, which does it or
says what is wrong; so results and errors are the same with it and without. ``WDSCLI_STORE`` chooses: ``fsspec`` or
``obstore``. It must not know versions of objects, nor when a request is made again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from wdscli.errors import UsageError
from wdscli.storage.retry import Network, Replaced, Transient

STORE = "WDSCLI_STORE"
_PIECE_BYTES = 1 << 20
_NO_LIMIT = f"{7 * 86_400}s"
"""For a whole answer; silence is what is limited."""
_CREDENTIALS_SECONDS = 300
_FAILURES_IN_A_ROW = 3
# Of other names it is not certain that two libraries write them alike in a URL.
_PLAIN_KEY = re.compile(r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_\-.=]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_\-.=]+)*")
_USUAL_CERTIFICATES = (
    True,
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_READERS: dict[tuple[Any, ...], FastReader] = {}
_process = 0
"""The one whose obstore has threads; a fork of it has none."""


def store_name() -> str:
    """Which library reads ranges from S3: ``obstore`` or ``s3fs``. Raises UsageError for a choice that is not there."""
    from importlib.util import find_spec

    said = os.environ.get(STORE, "").strip().lower()
    if said not in ("", "fsspec", "obstore"):
        raise UsageError(f"{STORE} is fsspec or obstore, not {said}")
    if said == "fsspec":
        return "s3fs"
    if find_spec("obstore") is not None:
        return "obstore"
    if said:
        raise UsageError(f"{STORE}=obstore: it is not installed", hint="pip install 'wdscli[fast]'")
    return "s3fs"


def fast_reader(fs: Any, bucket: str, key: str, patience: Network) -> FastReader | None:
    """Who reads an object that s3fs's ``fs`` can read; None where that is better left to ``fs``. Raises UsageError."""
    global _process
    if store_name() != "obstore" or not _PLAIN_KEY.fullmatch(key) or not _is_usual(fs):
        return None
    if _process not in (0, os.getpid()):
        return None
    _process = os.getpid()
    meta = fs._s3.meta
    found = None if fs.anon else fs._s3._request_signer._credentials
    place = (meta.endpoint_url, meta.region_name, bucket, id(found), patience.timeout_seconds)
    if place not in _READERS:
        _READERS[place] = FastReader(_store_of(meta, bucket, found, patience))
    reader = _READERS[place]
    return reader if reader.is_able else None


def _is_usual(fs: Any) -> bool:
    """Whether an S3 file system has no settings but those that :func:`_store_of` hands on."""
    if fs._s3 is None:
        fs.connect()
    client = fs._s3
    config = client.meta.config
    style = config.s3 or {}
    is_plain = client.meta.endpoint_url.startswith("http:")
    odd = (
        not client.meta.region_name,
        fs.requester_pays or fs.req_kw or fs.s3_additional_kwargs,
        style.get("addressing_style", "auto") not in ("auto", "path") or style.get("use_accelerate_endpoint"),
        config.use_dualstack_endpoint or config.use_fips_endpoint,
        config.proxies or config.client_cert,
        not is_plain and getattr(client._endpoint.http_session, "_verify", None) not in _USUAL_CERTIFICATES,
    )
    return not any(odd)


def _store_of(meta: Any, bucket: str, credentials: Any, patience: Network) -> Any:
    from obstore.store import S3Store

    limit = f"{max(1, int(min(patience.timeout_seconds, 30)))}s"
    given = {"skip_signature": True} if credentials is None else {}
    return S3Store(
        bucket,
        endpoint=meta.endpoint_url,
        region=meta.region_name,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": _NO_LIMIT, "connect_timeout": limit},
        retry_config={"max_retries": 0},
        credential_provider=None if credentials is None else _provider(credentials),
        **given,
    )


def _provider(credentials: Any) -> Callable[[], Any]:
    """What gives obstore the credentials that botocore has found, and finds anew when they end."""

    async def provide() -> dict[str, Any]:
        frozen = await credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_CREDENTIALS_SECONDS),
        }

    return provide


class FastReader:
    """Reads ranges from one bucket. ``is_able`` is False after some failures that s3fs did not share."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._failures = 0

    @property
    def is_able(self) -> bool:
        return self._failures < _FAILURES_IN_A_ROW

    async def fetch(
        self,
        key: str,
        begin: int,
        end: int,
        options: dict[str, Any],
        check: Callable[[Mapping[str, Any]], None],
        keep: Callable[[bytes], object],
    ) -> bool:
        """One range, as :mod:`wdscli.storage.retry` asks for it; False when nothing came and s3fs should be asked.
        ``check`` hears of the answer's headers, before ``keep`` gets its bytes, and may raise Replaced."""
        import obstore

        kept = False
        try:
            answer = await obstore.get_async(self._store, key, options={"range": (begin, end), **options})
            first, last = answer.range
            size = answer.meta["size"]
            check({"ETag": answer.meta["e_tag"], "ContentRange": f"bytes {first}-{last - 1}/{size}"})
            if end - begin <= _PIECE_BYTES:
                data = bytes(await answer.bytes_async())
                kept = True
                keep(data)
            else:
                async for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                    kept = True
                    keep(bytes(piece))
        except (Replaced, Transient):
            raise
        except Exception as error:
            if kept:
                raise Transient(str(error).partition("\n")[0]) from error
            self._failures += 1
            return False
        self._failures = 0
        return True
