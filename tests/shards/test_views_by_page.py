"""A reader of views from wdscli-manifest(5) alone, with ``json``, ``tarfile`` and ``struct``; and ``xxhash`` for the
digests and the fingerprint."""

from __future__ import annotations

import json
import struct
import tarfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from shard_cases import samples_of, wds
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from wdscli.shards import ShardWriter

Sample = tuple[str, dict[str, bytes]]
STORED = ("rows", "keys")


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


def chosen(rule: dict, fields: dict[str, bytes]) -> dict[str, bytes]:  # type: ignore[type-arg]
    olds = [(new, next((old for old in some if old in fields), None)) for new, some in rule["rename"]]
    names = {old: new for new, old in olds}
    sources = {old for _, some in rule["rename"] for old in some}
    found = {}
    for field, payload in fields.items():
        new = names.get(field, field)
        known = {field} if new in fields or new in sources else {field, new}

        def matches(patterns: list[str], known: set[str] = known) -> bool:
            return any(fnmatchcase(name, pattern) for name in known for pattern in patterns)

        if (rule["keep"] is None or matches(rule["keep"])) and not matches(rule["drop"]):
            found[new] = payload
    return found


def read_view(path: Path) -> list[list[Sample]]:
    """The samples of each shard."""
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
            fields = fields if rule["fields"] is None else chosen(rule["fields"], fields)
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


def fingerprint_of(path: Path) -> str:
    document = json.loads(path.read_text())
    view, rows, text = document["view"], path.with_suffix(".rows"), ""
    form = [view["mtime"], view["long_names"]]
    rule = xxh3_128_hexdigest(json.dumps([view["rule"], form], sort_keys=True).encode())
    held = [
        xxh3_64_intdigest(f"{one['headers']} {one.get('checksum')}".encode()) for one in document["bases"]
    ]
    for info, shard in zip(document["shardlist"], view["shards"]):
        stored = {
            name: rows.read_bytes()[shard[name][0] :][: shard[name][1]] for name in shard if name in STORED
        }
        hashed = stored.get("keys", b"")
        numbers = struct.unpack(f"<{len(stored.get('rows', b'')) // 4}I", stored.get("rows", b""))
        for of_set in range(len(shard.get("runs", ())) or len(numbers) // info["nsamples"] // 2):
            count = info["nsamples"]
            column = numbers[2 * count * of_set :][: 2 * count]
            pairs = list(zip(column[:count], column[count:]))
            for base, first, many in shard["runs"][of_set] if "runs" in shard else ():
                pairs += [(base, 0xFFFFFFFF if base < 0 else first + at) for at in range(many)]
            hashed += b"".join(
                struct.pack("<Q", held[one] if 0 <= one < len(held) else 0) for one, _ in pairs
            )
            hashed += b"".join(struct.pack("<I", place) for _, place in pairs)
        assert xxh3_128_hexdigest(hashed) == shard["digest"]
        last = (
            f"{info['headers']} {info.get('checksum', '-')}"
            if info["headers"]
            else f"{shard['digest']} {rule}"
        )
        text += f"{info['nsamples']} {info['filesize']} {last}\n"
    return f"xxh3_128:{xxh3_128_hexdigest(text.encode())}"


@pytest.mark.parametrize(
    "line",
    [
        "split a --slice ::3 -o v.json",
        "shuffle a --rekey new-{n} --max-count 7 -o v.json",
        "merge --join left a b -o v.json",
        "merge --join outer b a --on-conflict suffix -o v.json",
        "merge --join left a b c --on-conflict right -o v.json",
        "split a --keys *[0-7] -o v.json",
        "split a --rename image=png;jpg --fields im* -o v.json",
        "merge --join left a b --on-conflict left --rename image=jpg --fields im*,txt,same.x -o v.json",
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
    assert fingerprint_of(Path("v.json")) == json.loads(Path("v.json").read_text())["wdscli"]["fingerprint"]
    for info, samples in zip(json.loads(Path("v.json").read_text())["shardlist"], found, strict=True):
        ran = wds("cat", f"v.json/{info['url']}", "-o", "one.tar", "--force", "-q")
        assert ran.code == 0, ran.err
        assert [(key, dict(fields)) for key, fields in samples_of("one.tar")] == samples
