"""The loader over views of each kind, against the shards that the same command writes: orders, fields, mixes, resume;
and what it reads of the layers of a join."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from shard_cases import content, wds
from storage_servers import S3
from view_sets import VIEWS, slug, write_bases, write_views

from wdscli.loader import IndexedDataset, WebDataset, mix
from wdscli.shards import ShardWriter
from wdscli.shards import view_shards as views
from wdscli.tar import core


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    write_bases(folder)
    write_views(folder)
    return folder


@pytest.fixture(scope="module")
def bucket(s3: S3, sets: Path) -> str:
    name = s3.bucket("loader-views")
    for key, data in content(sets).items():
        s3.client.put_object(Bucket=name, Key=key, Body=data)
    return f"s3://{name}"


@pytest.fixture(params=["local", "S3"])
def place(request: pytest.FixtureRequest, sets: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(sets)
    views.forget()
    return "" if request.param == "local" else f"{request.getfixturevalue('bucket')}/"


def plain(data: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in data]


WAYS: dict[str, dict[str, Any]] = {
    "in order": {},
    "window": {"shuffle": "window", "seed": 1},
    "full": {"shuffle": "full", "seed": 1},
    "shards": {"shuffle": "shards", "seed": 1},
    "fields": {"shuffle": "window", "fields": ["txt", "cls", "score"]},
    "first fields": {"fields": ["jpg", "image"]},
    "no fields": {"fields": ["none"]},
    "some": {"where": "cls != 1"},
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VIEWS)
def test_the_same_samples(name: str, way: str, place: str) -> None:
    options = WAYS[way]
    flat, view = (WebDataset(given, **options) for given in (f"{slug(name)}/", f"{place}{slug(name)}.json"))
    for _ in range(2):
        assert plain(view) == plain(flat)


@pytest.mark.parametrize("name", VIEWS)
def test_the_same_table(name: str, place: str) -> None:
    flat, view = (IndexedDataset(given) for given in (f"{slug(name)}/", f"{place}{slug(name)}.json"))
    assert len(view) == len(flat)
    wanted = plain(flat)
    assert plain(view) == wanted
    assert plain([view[-1], view[wanted[3]["__key__"]]]) == [wanted[-1], wanted[3]]
    some = [5, 0, len(wanted) - 1, 5]
    assert plain(view.__getitems__(some)) == [wanted[row] for row in some]


@pytest.mark.parametrize("name", VIEWS)
def test_a_mix_with_a_view(name: str, place: str) -> None:
    def mixed(given: str) -> Any:
        sets = {"a": (WebDataset(given, shuffle="window"), 0.7), "b": (WebDataset("other/"), 0.3)}
        return mix(sets, seed=2)

    wanted = plain(islice(mixed(f"{slug(name)}/"), 40))
    assert plain(islice(mixed(f"{place}{slug(name)}.json"), 40)) == wanted


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_gone_on_with(name: str, place: str) -> None:
    given = f"{place}{slug(name)}.json"
    whole = plain(WebDataset(given, shuffle="window", seed=4))
    for stop in (1, 7, len(whole) - 1):
        first, then = (WebDataset(given, shuffle="window", seed=4) for _ in range(2))
        begun = plain(islice(iter(first), stop))
        then.load_state_dict(first.state_dict())
        assert begun + plain(then) == whole


LARGE_BYTES = 300_000


@pytest.fixture(params=["aligned", "apart"])
def layers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``v.json`` joins large pictures and small captions, in the same order or not."""
    monkeypatch.chdir(tmp_path)
    keys = [f"k{number:02d}" for number in range(12)]
    for name, field, some in (
        ("large", "jpg", keys), ("small", "txt", keys if request.param == "aligned" else keys[::-1])
    ):  # fmt: skip
        with ShardWriter(f"{name}/s-%06d.tar", max_count=6) as writer:
            for key in some:
                writer.write(key, {field: key.encode() * (LARGE_BYTES // 3 if name == "large" else 9)})
    assert wds("merge", "--join", "left", "large", "small", "-o", "v.json", "-q", "-j1").code == 0
    return tmp_path


def bytes_read() -> int:
    """By system calls of this process so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc/self/io here")
@pytest.mark.parametrize("core_or_plain", ["core", "plain"])
@pytest.mark.parametrize("shuffle", ["none", "window", "full"])
@pytest.mark.usefixtures("layers")
def test_only_the_layers_of_the_fields_are_read(
    shuffle: Any, core_or_plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if core_or_plain == "plain":
        monkeypatch.setattr(core, "CORE", None)
    for fields, low, high in ((["txt"], 0, LARGE_BYTES), (["jpg"], 12 * LARGE_BYTES, 14 * LARGE_BYTES)):
        views.forget()
        before = bytes_read()
        found = plain(WebDataset("v.json", shuffle=shuffle, fields=fields))
        table = plain(IndexedDataset("v.json", fields=fields))
        assert [len(found), len(table), *{*map(len, found)}] == [12, 12, 2]
        assert 2 * low <= bytes_read() - before < 2 * high


@pytest.mark.exhaustive
@pytest.mark.parametrize("shuffle", ["none", "window"])
def test_only_the_layers_of_the_fields_are_requested(shuffle: Any, layers: Path, s3: S3) -> None:
    bucket = s3.bucket(f"layers-{shuffle}-{len(s3.client.list_buckets()['Buckets'])}")
    for key, data in content(layers).items():
        s3.client.put_object(Bucket=bucket, Key=key, Body=data)
    for fields, most in ((["txt"], LARGE_BYTES), (["jpg"], 14 * LARGE_BYTES)):
        views.forget()
        s3.seen.begin_anew()
        assert len(plain(WebDataset(f"s3://{bucket}/v.json", shuffle=shuffle, fields=fields))) == 12
        sent = sum(
            one.sent for one in s3.seen.settled() if one.key.startswith("large/") and one.verb == "GET"
        )
        assert sent < most
        assert sent > 12 * LARGE_BYTES or fields == ["txt"]


CAPTIONED = 20_000


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of samples with a small caption beside each, as a view and as shards."""
    folder = tmp_path_factory.mktemp("captioned")
    for name, field, size in (("texts", "txt", 400), ("captions", "cap", 4)):
        with ShardWriter(f"{folder}/{name}/a-%06d.tar", max_count=CAPTIONED // 2) as writer:
            for number in range(CAPTIONED):
                writer.write(f"n{number}", {field: b"%05d" % number * size})
    for output in ("v.json", "flat/{name}.tar"):
        assert (
            wds(
                "merge", "--join", "left", f"{folder}/texts", f"{folder}/captions", "-o", folder / output
            ).code
            == 0
        )
    return folder


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc/self/io here")
@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_small_payloads_beside_are_read_together(shuffle: Any, captioned: Path, running_core: str) -> None:
    def calls() -> int:
        return int(Path("/proc/self/io").read_text().split("syscr: ")[1].split()[0])

    found, counts = [], [calls()]
    for name in ("flat", "v.json"):
        found.append(plain(WebDataset(f"{captioned}/{name}", shuffle=shuffle, seed=3)))
        counts.append(calls())
    assert found[0] == found[1]
    if running_core == "compiled":  # a call for each text, and for an eighth of the captions
        assert counts[2] - counts[1] < (counts[1] - counts[0]) * 1.2


def test_a_damaged_caption_is_not_taken_when_captions_are_read_together(
    captioned: Path, tmp_path: Path
) -> None:
    shutil.copytree(captioned, tmp_path / "set")
    data = WebDataset(f"{tmp_path}/set/v.json", shuffle="full", on_error="skip")
    samples = iter(data)
    next(samples)
    with open(tmp_path / "set" / "captions" / "a-000001.tar", "r+b") as file:
        for number in range(0, CAPTIONED // 2, 10):
            file.seek(1024 * number)
            file.write(b"damage")
    with pytest.warns(UserWarning, match="was changed after"):
        keys = {sample["__key__"] for sample in samples}
    lost = {f"n{number}" for number in range(CAPTIONED // 2, CAPTIONED, 10)}
    assert len(lost & keys) < len(lost) // 5  # those of the blocks that were read before
