"""The loader on other machines: ``stats()`` counts requests and bytes, and the environment says how patient it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shard_cases import numbered, write_shards
from storage_servers import Web, web_server

import wdscli.loader as wds
from wdscli.errors import InputError, UsageError
from wdscli.storage.retry import take_traffic

SAMPLES = 300


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with web_server("ranges") as server:
        [name] = write_shards(tmp_path, [numbered(SAMPLES, "a", [2000])])
        server.files["a.tar"] = Path(name).read_bytes()
        yield server


@pytest.mark.parametrize("window", [0, 100])
def test_requests_and_bytes(web: Web, window: int) -> None:
    data = wds.WebDataset(web.url("a.tar"))
    if window:
        data = data.shuffle(window)
    take_traffic()
    web.ranges.clear()
    assert len(list(data)) == SAMPLES
    stats = data.stats()
    assert 0 < stats["requests"] == len(web.ranges)
    assert stats["bytes"] <= stats["bytes_received"]
    assert data.stats() == stats


def test_the_environment_says_how_patiently(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDSCLI_RETRIES", "some")
    with pytest.raises(UsageError, match="WDSCLI_RETRIES=some"):
        list(wds.WebDataset(web.url("a.tar")))
    monkeypatch.setenv("WDSCLI_RETRIES", "0")
    seen: list[str] = []

    def fail(name: str) -> None:
        seen.append(name)
        web.status["a.tar"] = 503

    web.on_get = fail
    with pytest.raises(InputError, match="503"):
        list(wds.WebDataset(web.url("a.tar")))
    assert seen.count("a.tar") == 1
