"""The loader on other machines: ``stats()`` counts requests and bytes, and the environment says how patient it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from shard_cases import numbered, write_shards
from storage_servers import Web, web_server

import wdscli.loader as wds
from wdscli.errors import InputError, UsageError
from wdscli.loader.read import rows
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


class TestWindowsThatCannotBeHeld:
    """Of four shards in use at a time, less than one may be on its way or held."""

    SHARDS = 4

    @pytest.fixture
    def address(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], str]]:
        with web_server("ranges") as server:
            server.validators = ("strong",)

            def make(samples: int, size_bytes: int) -> str:
                pattern = f"{tmp_path}/a-%06d.tar"
                with wds.ShardWriter(pattern, maxcount=samples // self.SHARDS, verbose=0) as writer:
                    for number in range(samples):
                        writer.write(
                            {"__key__": f"{number:06d}", "bin": number.to_bytes(4, "big") * (size_bytes // 4)}
                        )
                for path in (*tmp_path.glob("*.tar"), *tmp_path.glob(".wds/*"), *tmp_path.glob("*.json")):
                    server.files[str(path.relative_to(tmp_path))] = path.read_bytes()
                room = (tmp_path / "a-000000.tar").stat().st_size * 3 // 4
                monkeypatch.setenv("WDSCLI_READ_AHEAD", str(room))
                return server.url(f"a-{{000000..{self.SHARDS - 1:06d}}}.tar")

            yield make

    @staticmethod
    def stats_of(data: wds.WebDataset[wds.RawSample], samples: int) -> dict[str, Any]:
        take_traffic()
        numbers = sorted(int.from_bytes(sample["bin"][:4], "big") for sample in data)
        assert numbers == list(range(samples))
        return data.stats()

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("shuffle", ["window", "full"])
    def test_no_byte_of_a_large_sample_comes_twice(
        self, address: Callable[[int, int], str], shuffle: Literal["window", "full"]
    ) -> None:
        samples = 256
        stats = self.stats_of(wds.WebDataset(address(samples, 80_000), shuffle=shuffle), samples)
        # What is read at the beginning of each shard, and of its index, comes to this.
        beginnings = 2 * self.SHARDS
        assert stats["requests"] <= samples + 2 * beginnings
        assert stats["bytes_received"] <= 1.1 * stats["bytes"] + beginnings * 70_000

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("shuffle", ["window", "full"])
    def test_small_samples_come_with_their_neighbours(
        self, address: Callable[[int, int], str], shuffle: Literal["window", "full"]
    ) -> None:
        samples = 4000
        stats = self.stats_of(wds.WebDataset(address(samples, 500), shuffle=shuffle), samples)
        assert stats["requests"] < samples / 20
        assert stats["bytes_received"] < 12 * stats["bytes"]

    @pytest.mark.exhaustive
    def test_who_pays_much_for_small_samples_is_told(
        self, address: Callable[[int, int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows, "EXPENSIVE_SAMPLES", 500)
        monkeypatch.setattr(rows, "_has_warned", False)
        urls, samples = address(4000, 500), 4000
        with pytest.warns(UserWarning, match="cache_dir=FOLDER") as told:
            self.stats_of(wds.WebDataset(urls, shuffle="window"), samples)
        assert urls[:20] in str(told[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.stats_of(wds.WebDataset(urls, shuffle="window"), samples)  # said once
            monkeypatch.setattr(rows, "_has_warned", False)
            self.stats_of(wds.WebDataset(urls), samples)
            kept = wds.WebDataset(urls, shuffle="window", cache_dir=str(tmp_path / "cache"))
            assert self.stats_of(kept, samples)["bytes_received"] < 1.5 * samples * 1024
