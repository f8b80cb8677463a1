"""Views and manifests of a stranger, with numbers and names that no wdscli wrote: an error, soon, and no traceback."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from shard_cases import numbered, write_shards
from storage_servers import web_server

import wdscli.loader as loader
from wdscli.errors import DataError, InputError, WdsError
from wdscli.shards import view_shards
from wdscli.shards.manifest import parse_manifest

COMMAND: list[str] = []
SAMPLES = 6


@pytest.fixture
def view(run: Command, tmp_path: Path) -> Path:
    """A view of one shard, with runs instead of rows."""
    [shard] = write_shards(tmp_path, [numbered(SAMPLES, "a")])
    (tmp_path / "b.tar").write_bytes(Path(shard).read_bytes())
    Path(shard).unlink()
    path = tmp_path / "v.json"
    assert run("split", tmp_path / "b.tar", "-o", path, "-q").code == 0
    document = json.loads(path.read_text())
    assert document["view"]["shards"][0]["runs"] == [[[0, 0, SAMPLES]]]
    return path


Change = Callable[[dict[str, Any]], object]


def runs(*runs: list[list[int]], samples: int = SAMPLES) -> Change:
    def change(document: dict[str, Any]) -> None:
        document["view"]["shards"][0]["runs"] = list(runs)
        document["shardlist"][0]["nsamples"] = document["wdscli"]["samples"] = samples
        document["shardlist"][0].pop("members")
        document["shardlist"][0].pop("filesize")

    return change


def stored(start: int, length: int) -> Change:
    def change(document: dict[str, Any]) -> None:
        document["view"]["shards"][0] |= {"rows": [start, length, "0" * 16]}
        del document["view"]["shards"][0]["runs"]

    return change


def rename(new: str) -> Change:
    fields = {"keep": None, "drop": [], "rename": [[new, ["txt"]]]}
    return lambda document: document["view"]["rule"].update(fields=fields)


def nested(document: dict[str, Any]) -> None:
    for _ in range(250):
        rule = document["view"]["rule"]
        document["view"]["rule"] = {"parts": [rule], "policies": ["error"], "fields": None}


def all_big(document: dict[str, Any]) -> None:
    runs([[0, 0, 10**9]], samples=10**9)(document)
    document["bases"][0] |= {"nsamples": 10**9, "filesize": 10**13}


CHANGES: dict[str, tuple[Change, str]] = {
    "a sample that no set has": (
        runs([[-1, 0, 99_999_991], [0, 0, SAMPLES]], samples=99_999_997), "has a sample that all sets lack",
    ),
    "no sets": (runs(), "has samples of another number of sets"),
    "no runs": (runs([]), "takes another number of samples"),
    "a base with more samples than bytes": (
        lambda document: document["bases"][0].update(nsamples=10**9), "has 1000000000 members in",
    ),
    "odd rows": (stored(0, 13), "has another number of rows than samples"),
    "rows without end": (stored(2**62, 2**62), "has another number of rows than samples"),
    "a zero byte": (lambda document: document["bases"][0].update(url="b\0.tar"), "zero byte"),
    "time": (lambda document: document["view"].update(mtime=2**63 - 1), "view.mtime is 9223372036854775807"),
    "a size": (lambda document: document["bases"][0].update(filesize=2**63), "filesize is"),
    "no name": (rename(""), "a field is renamed to ''"),
    "a folder as a name": (rename("a/b"), "a field is renamed to 'a/b'"),
    "levels": (nested, "has more than 200 levels"),
    "its own base": (lambda document: document["bases"][0].update(url="v.json/b.tar"), "is a shard of a view"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_it_is_not_a_view(view: Path, run: Command, name: str) -> None:
    """issue 35, 17"""
    change, reason = CHANGES[name]
    document = json.loads(view.read_text())
    change(document)
    view.write_text(json.dumps(document))
    view_shards.forget()
    for words in (["ls", view], ["cat", view, "--to", "jsonl"], ["verify", view]):
        ran = run(*words)
        assert ran.code == 3, ran.err
        assert f"{view} is not a view: " in ran.err + ran.out.decode()
        assert reason in ran.err + ran.out.decode()
    with pytest.raises(DataError, match="is not a view"):
        list(loader.WebDataset(str(view)))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [(b"\xff" * 8 * SAMPLES, "does not belong to"), (b"", "does not belong to")], ids=["no base", "short"],
)  # fmt: skip
def test_rows_of_nothing(view: Path, run: Command, rows: bytes, reason: str) -> None:
    from xxhash import xxh3_64_hexdigest

    document = json.loads(view.read_text())
    stored(0, 8 * SAMPLES)(document)
    document["view"]["shards"][0]["rows"][2] = xxh3_64_hexdigest(rows)
    view.write_text(json.dumps(document))
    view.with_suffix(".rows").write_bytes(rows)
    ran = run("ls", view)
    assert ran.code == 3
    assert reason in ran.err


def test_a_base_is_opened_before_its_samples_are_counted(view: Path, run: Command) -> None:
    """10^9 samples would take 16 GB."""
    document = json.loads(view.read_text())
    all_big(document)
    view.write_text(json.dumps(document))
    for words in (["ls", view], ["cat", view, "--to", "jsonl"]):
        ran = run(*words)
        assert ran.code == 3, ran.err
        assert "bytes instead of the 10000000000000 bytes in the view" in ran.err
    with pytest.raises(DataError, match="bytes in the view"):
        list(loader.WebDataset(str(view)))


@pytest.mark.parametrize("place", ["b.tar", "v.rows", "v.json", ".wds/b.tar.wdx"])
def test_a_pipe_is_no_file(view: Path, run: Command, place: str) -> None:
    """Nothing waits for a writer that never comes."""
    if place == "v.rows":
        document = json.loads(view.read_text())
        stored(0, 8 * SAMPLES)(document)
        view.write_text(json.dumps(document))
    path = view.parent / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    ran = run("ls", view)
    if place.endswith(".wdx"):
        assert ran.code == 0, ran.err
        return
    assert ran.code == 4, ran.err
    assert f"cannot read {path}: it is a pipe or a device, not a file" in ran.err
    with pytest.raises(InputError, match="pipe or a device"):
        list(loader.WebDataset(str(view)))


def test_a_socket_is_no_file(view: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (view.parent / "b.tar").unlink()
    monkeypatch.chdir(view.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("b.tar")
        assert run("ls", view).code == 4


def test_a_base_on_a_server_without_ranges(view: Path, run: Command) -> None:
    with web_server("plain") as server:
        server.files["v.json"] = view.read_bytes()
        server.files["b.tar"] = (view.parent / "b.tar").read_bytes()
        ran = run("cat", server.url("v.json"), "--to", "jsonl")
        assert ran.code == 4, ran.err
        place = server.url("b.tar")
        assert (
            f"cannot read {place} for {server.url('v.json')}: its server does not support ranges" in ran.err
        )
        with pytest.raises(InputError, match="does not support ranges"):
            list(loader.WebDataset(server.url("v.json")))


@pytest.mark.parametrize(
    "entry",
    [
        {"nsamples": 10**9, "filesize": 10_240}, {"nsamples": 1, "filesize": 2**63},
        {"nsamples": 2**63, "filesize": 10_240}, {"nsamples": 1, "members": 21, "filesize": 10_240},
        {"nsamples": 1, "url": "a\0.tar"},
    ],
)  # fmt: skip
def test_it_is_not_a_manifest(entry: dict[str, Any]) -> None:
    document = {"shardlist": [{"url": "a.tar", **entry}]}
    with pytest.raises(WdsError, match=r"m\.json is not a manifest: ") as caught:
        parse_manifest(json.dumps(document), "m.json")
    assert caught.value.exit_code == 3


def test_a_compressed_shard_has_more_members_than_blocks() -> None:
    entry = {"url": "a.tar.gz", "nsamples": 1000, "filesize": 10_240}
    assert parse_manifest(json.dumps({"shardlist": [entry]}), "m.json").samples == 1000
