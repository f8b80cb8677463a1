"""wds bench: what it measures and says, what each option changes, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shard_cases import numbered, wds, write_shards

from wdscli.bench import BenchReport, TimeShares, _sentence, bench
from wdscli.errors import UsageError


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    many = numbered(200)
    return write_shards(tmp_path_factory.mktemp("set"), [many[:100], many[100:]])


def told(shards: list[str], *options: object) -> dict[str, Any]:
    seconds = [] if "--seconds" in options else ["--seconds", "0.15"]
    done = wds("bench", "--json", *seconds, *options, *shards)
    assert (done.code, done.err) == (0, "")
    [found] = done.objects
    return found


def test_says_three_lines(shards: list[str]) -> None:
    done = wds("bench", "--seconds", "0.2", *shards)
    rate, parts, last = done.out.decode().splitlines()
    assert done.code == 0
    assert "samples/s" in rate
    assert "the first batch took" in rate
    assert parts.startswith("reading ")
    assert last.endswith(".")


def test_json_adds_up(shards: list[str]) -> None:
    found = told(shards)
    assert found["samples"] > 200
    assert found["epochs"] > 1
    assert found["samples_per_second"] == pytest.approx(found["samples"] / found["seconds"], rel=0.01)
    # Payloads of 10 and 700 bytes, and a number.
    assert found["bytes"] == pytest.approx(712.5 * found["samples"], rel=0.01)
    assert sum(found["shares"].values()) == pytest.approx(1, abs=0.001)


def test_seconds_bound_it(shards: list[str]) -> None:
    assert 0.05 < told(shards)["seconds"] < 3
    for none in ("0", "-1", "nan", "inf"):
        done = wds("bench", "--seconds", none, *shards)
        assert done.code == 2
        assert "no time" in done.err


def test_fields_are_read_alone(shards: list[str]) -> None:
    alone = told(shards, "--fields", "cls")
    assert 0 < alone["bytes"] < 4 * alone["samples"]
    found = told(shards, "--fields", "cls,jpg", "--fields", "none")
    assert found["bytes"] == pytest.approx(12.5 * found["samples"], rel=0.01)


def test_without_batches(shards: list[str]) -> None:
    assert told(shards, "--batch", "0")["samples"] > 200


def test_batch_says_what_is_taken_at_a_time(shards: list[str]) -> None:
    # All samples of the set are the first batch, which is not counted.
    found = bench(shards, batch=200, seconds=0.0)
    assert (found.samples, found.epochs) == (0, 1)


def test_a_stream_has_bytes_too(shards: list[str]) -> None:
    found = told([f"pipe:cat '{shards[0]}'"])
    assert found["bytes"] == pytest.approx(712 * found["samples"], rel=0.01)


def test_standard_input_is_one_epoch(shards: list[str]) -> None:
    done = wds("bench", "--json", "--batch", "10", "-", stdin=Path(shards[0]).read_bytes())
    assert (done.code, done.err) == (0, "")
    [found] = done.objects
    assert (found["epochs"], found["samples"]) == (1, 90)


def test_warnings_are_those_of_a_command(shards: list[str]) -> None:
    done = wds("bench", "--seconds", "0.1", shards[0], f"pipe:cat '{shards[1]}'")
    assert done.code == 0
    assert done.err.startswith("warning: pipe:cat")
    assert ".py:" not in done.err


def test_shuffle_must_be_an_order(shards: list[str]) -> None:
    assert told(shards, "--order", "full")["samples"]
    assert told(shards, "--order", "shards")["samples"]
    assert wds("bench", "--order", "wild", *shards).code == 2


def test_decode_decodes(tmp_path: Path) -> None:
    from wdscli.shards import ShardWriter

    with ShardWriter(str(tmp_path / "in-%d.tar")) as writer:
        writer.write("n0", {"json": b"{"})
    address = str(tmp_path / "in-0.tar")
    assert bench(address, seconds=0.05).epochs
    done = wds("bench", "--decoder", "pil", "--seconds", "0.1", address)
    assert done.code == 3
    assert "Traceback" not in done.err
    assert "json" in done.err


def test_pictures_of_different_sizes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    from wdscli.shards import ShardWriter

    with ShardWriter(str(tmp_path / "in-%d.tar")) as writer:
        for number in range(8):
            buffer = io.BytesIO()
            image.new("RGB", (8 + number, 8)).save(buffer, "png")
            writer.write(f"n{number}", {"png": buffer.getvalue()})
    found = bench(str(tmp_path / "in-0.tar"), decode="rgb8", batch=4, threads=2, seconds=0.2)
    assert found.samples
    assert found.shares.decoding > found.shares.handing_over


@pytest.mark.exhaustive(sample=False)
def test_workers(shards: list[str]) -> None:
    pytest.importorskip("torch")
    found = told(shards, "--jobs", "2", "--batch", "10", "--seconds", "1")
    assert found["workers"] == 2
    assert found["samples"]
    assert found["shares"]["reading"] > 0


def test_workers_without_torch_name_the_extra(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        bench(shards, workers=2, seconds=0.1)
    assert caught.value.hint == "pip install 'wdscli[torch]'"


def test_without_workers_torch_is_not_loaded(shards: list[str]) -> None:
    program = (
        "import sys\n"
        "from wdscli.bench import bench\n"
        f"bench({shards!r}, seconds=0.1)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("shares", "workers", "decode", "words"),
    [
        (TimeShares(0.8, 0.1, 0.1), 0, None, "Reading is the bottleneck: 80% of the time"),
        (TimeShares(0.1, 0.8, 0.1), 0, "pil", "Decoding is the bottleneck: 80% of the time"),
        (TimeShares(0.1, 0.8, 0.1), 4, None, "Making batches is the bottleneck: 80% of the workers' time"),
        (TimeShares(0.1, 0.1, 0.8), 4, "pil", "The main process is the bottleneck: 80% of the workers' time"),
        (TimeShares(0.1, 0.1, 0.8), 0, None, "Nothing is slow here: 80% of the time"),
    ],
)
def test_the_bottleneck_is_named(shares: TimeShares, workers: int, decode: str | None, words: str) -> None:
    assert _sentence(shares, decode, workers, 1).startswith(words)


def test_rates_of_nothing() -> None:
    report = BenchReport(0, 0, 0.0, 0.1, 1, 0, TimeShares(1, 0, 0), "")
    assert (report.samples_per_second, report.bytes_per_second) == (0, 0)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (["--decoder", "rgb8"], "decode", "rgb8"),
        (["--jobs", "3"], "workers", 3),
        (["--threads", "2"], "threads", 2),
        (["--batch", "7"], "batch", 7),
        (["--order", "full"], "shuffle", "full"),
        (["--fields", "a,b", "--fields", "c"], "fields", ["a", "b", "c"]),
        (["--seconds", "2.5"], "seconds", 2.5),
    ],
)
def test_every_option_reaches_the_loader(
    monkeypatch: pytest.MonkeyPatch, options: list[str], name: str, value: object
) -> None:
    from wdscli.cli.commands import bench as command
    from wdscli.cli.main import main

    given: dict[str, Any] = {}

    def measured(urls: Any, **how: Any) -> BenchReport:
        given.update(how)
        return BenchReport(1, 1, 1.0, 0.0, 1, 0, TimeShares(1, 0, 0), "Fine.")

    monkeypatch.setattr(command, "run", measured)
    assert main(["bench", "x.tar"]) == 0
    assert given.get(name) != value
    assert main(["bench", *options, "x.tar"]) == 0
    assert given[name] == value


def test_arguments_reach_the_dataset(monkeypatch: pytest.MonkeyPatch, shards: list[str]) -> None:
    import wdscli.bench as home

    given: dict[str, Any] = {}
    true = home.WebDataset

    def made(urls: Any, **how: Any) -> Any:
        given.update(how)
        return true(urls, **how)

    monkeypatch.setattr(home, "WebDataset", made)
    bench(shards, shuffle="full", fields=["cls"], threads=3, seconds=0.05)
    assert given == {"shuffle": "full", "fields": ["cls"], "threads": 3}
