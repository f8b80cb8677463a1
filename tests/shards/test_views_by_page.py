"""A reader of views from wdscli-manifest(5) alone, with ``json``, ``tarfile`` and ``struct``."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import pytest
from shard_cases import samples_of, wds

from wdscli.shards import ShardWriter

Sample = tuple[str, dict[str, bytes]]


def base_samples(path: Path) -> list[Sample]:
    found: list[Sample] = []
    with tarfile.open(path) as tar:
        for member in tar:
            folder, slash, name = member.name.rpartition("/")
            stem, _, field = name.partition(".")
            key = folder + slash + stem
            if not found or found[-1][0] != key:
                found.append((key, {}))
            found[-1][1][field] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return found


def read_view(path: Path) -> list[list[Sample]]:
    """The samples of each shard. ``fields`` of rules are not read."""
    document = json.loads(path.read_text())
    view, rows = document["view"], path.with_suffix(".rows")
    bases = [base_samples(path.parent / base["url"]) for base in document["bases"]]

    def numbers(start: int, length: int, seal: str) -> tuple[tuple[int, ...], bytes]:
        data = rows.read_bytes()[start : start + length]
        return struct.unpack(f"<{length // 4}I", data[: length // 4 * 4]), data

    def parts_of(rule: dict, sets: list[Sample | None]) -> dict[str, bytes]:  # type: ignore[type-arg]
        members: dict[str, bytes] = {}
        for number, (part, policy) in enumerate(zip(rule["parts"], rule["policies"]), 1):
            if part is None:
                one = sets.pop(0)
                fields = {} if one is None else one[1]
            else:
                fields = parts_of(part, sets)
            for field, payload in fields.items():
                if field in members and policy == "suffix":
                    members[f"{number}.{field}"] = payload
                elif field not in members or policy == "right":
                    members[field] = payload
        return members

    shards = []
    for info, shard in zip(document["shardlist"], view["shards"]):
        count, columns = info["nsamples"], []
        if "runs" in shard:
            for runs in shard["runs"]:
                columns.append([(base, first + at) for base, first, many in runs for at in range(many)])
        else:
            flat, _ = numbers(*shard["rows"])
            for at in range(0, len(flat), 2 * count):
                columns.append(list(zip(flat[at : at + count], flat[at + count : at + 2 * count])))
        samples = []
        for places in zip(*columns):
            sets = [None if base in (-1, 0xFFFFFFFF) else bases[base][place] for base, place in places]
            key = next(one[0] for one in sets if one is not None)
            samples.append((key, parts_of(view["rule"], sets)))
        if "keys" in shard:
            (many, *found), data = numbers(*shard["keys"])
            at = 4 + 8 * many
            for number, length in zip(found[:many], found[many : 2 * many]):
                samples[number] = (data[at : at + length].decode(), samples[number][1])
                at += length
        shards.append(samples)
    return shards


@pytest.mark.parametrize(
    "line",
    [
        "split a --slice ::3 -o v.json",
        "shuffle a --rekey new-{n} --max-count 7 -o v.json",
        "merge --join left a b -o v.json",
        "merge --join outer b a --on-conflict suffix -o v.json",
        "merge --join left a b c --on-conflict right -o v.json",
    ],
)
def test_a_reader_from_the_page(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = [f"d/k{number:02}" for number in range(20)]
    for name, field, some in (("a", "jpg", keys), ("b", "txt", keys[::-2]), ("c", "jpg", keys[3:9])):
        with ShardWriter(f"{name}/x-%06d.tar", max_count=8) as writer:
            for key in some:
                writer.write(key, {field: f"{name} {key}".encode(), f"{name}.cls": b"1", "same.x": name.encode()}
                             if "on-conflict" in line else {field: f"{name} {key}".encode()})  # fmt: skip
    assert wds(*line.split(), "-q").code == 0
    found = read_view(Path("v.json"))
    for info, samples in zip(json.loads(Path("v.json").read_text())["shardlist"], found, strict=True):
        ran = wds("cat", f"v.json/{info['url']}", "-o", "one.tar", "--force", "-q")
        assert ran.code == 0, ran.err
        assert [(key, dict(fields)) for key, fields in samples_of("one.tar")] == samples
