"""Keys that share a hash are distinct keys for every command: keys that strangers made for hashes without a secret, and
any keys where each hash is forced to be the same."""

from __future__ import annotations

import json
import os
from array import array
from pathlib import Path
from typing import Any

import pytest
from crafted_keys import one_core_hash, one_low_lane, one_xxh3_64, one_xxh3_128
from shard_cases import keys_of, outputs, samples_of, wds, write_shards

from wdscli.copy import copier
from wdscli.create import join_table
from wdscli.ops.create import create
from wdscli.plan import duplicates, plan, survey, table
from wdscli.plan.request import Request
from wdscli.samples import keys as keyset
from wdscli.verify import keys as verify_keys

FAMILIES = {
    "core": one_core_hash(6),
    "lane": one_low_lane(6),
    "xxh3-64": one_xxh3_64(6),
    "xxh3-128": one_xxh3_128(6),
    "forced": [b"k%d" % number for number in range(6)],
}


@pytest.fixture(params=FAMILIES)
def keys(request: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of one length that share a hash."""
    if request.param == "forced":
        monkeypatch.setattr(keyset, "MULTIPLIER", 0)
        for module in (survey, copier, duplicates, plan):
            monkeypatch.setattr(module, "hash_key", lambda key: 7)
        monkeypatch.setattr(verify_keys, "digest", lambda key, seed: 7)
        for module in (table, copier, verify_keys):
            monkeypatch.setattr(
                module, "hashes_of_joined", lambda keys, lengths, *seed: array("Q", [7] * len(lengths))
            )
        monkeypatch.setattr(duplicates, "digest_of", lambda pieces, seed: bytes(range(16)))
        monkeypatch.setattr(join_table, "hash", lambda key: 7, raising=False)
    return list(map(os.fsdecode, FAMILIES[request.param]))


def made(key: str, field: str = "txt") -> list[tuple[str, bytes]]:
    return [(f"{key}.cls", b"1"), (f"{key}.{field}", os.fsencode(key))]


@pytest.fixture
def shards(keys: list[str], tmp_path: Path) -> list[str]:
    """Two shards that have these keys."""
    half = len(keys) // 2
    return write_shards(tmp_path / "in", [list(map(made, keys[:half])), list(map(made, keys[half:]))])


def good(*words: object, **more: Any) -> bytes:
    ran = wds(*words, **more)
    assert ran.code == 0, ran.err
    return ran.out


def written(folder: Path, pattern: str = "out-*.tar") -> list[str]:
    """The keys of an output, each of which has its own payload."""
    for path in outputs(folder, pattern):
        for key, fields in samples_of(path):
            assert dict(fields)["txt"] == os.fsencode(key)
    return keys_of(*outputs(folder, pattern))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "words",
    [
        "cat",
        "cat --on-duplicate skip",
        "cat --on-duplicate rekey",
        "cat --drop cls",
        "merge",
        "merge --on-duplicate skip",
        "merge --on-duplicate rekey",
        "merge --dedup key",
        "merge --dedup key,txt",
        "shuffle",
        "shuffle --on-duplicate skip",
        "shuffle --strategy spill",
        "sort --by key",
        "split --shards 2",
        "map --filter cls cat",
        "repair",
    ],
)
def test_no_sample_is_lost_renamed_or_refused(
    words: str, keys: list[str], shards: list[str], tmp_path: Path
) -> None:
    out = f"{tmp_path}/out-0.tar" if words.startswith("cat") else f"{tmp_path}/out-%06d.tar"
    good(*words.split(), *shards, "-o", out, *(() if words.startswith("cat") else ("-j1",)))
    assert sorted(written(tmp_path)) == sorted(keys)


def test_a_stream_has_them_all(keys: list[str], shards: list[str], tmp_path: Path) -> None:
    """What was read from a pipe is not read again to compare keys."""
    data = good("cat", *shards, "-o", "-")
    for policy in ("error", "skip"):
        out = good("cat", "-", "-o", "-", "--on-duplicate", policy, stdin=data)
        assert out == data
    assert sorted(keys_of(data)) == sorted(keys)


def test_true_repeats_are_found(keys: list[str], shards: list[str], tmp_path: Path) -> None:
    for words in (["cat", "-o", f"{tmp_path}/out-0.tar"], ["merge", "-j1", "-o", f"{tmp_path}/out-%06d.tar"]):
        ran = wds(*words, *shards, shards[0])
        assert (ran.code, "repeated key" in ran.err) == (3, True)
        good(*words, *shards, *shards, "--on-duplicate", "skip")
        assert sorted(written(tmp_path)) == sorted(keys)
        for path in outputs(tmp_path, "out-*"):
            path.unlink()


def test_files_are_unpacked(keys: list[str], shards: list[str], tmp_path: Path) -> None:
    good("cat", *shards, "--to", f"{tmp_path / 'files'}/")
    assert {path.stem for path in (tmp_path / "files").iterdir()} == set(keys)


def test_they_are_indexed_and_counted(keys: list[str], shards: list[str], tmp_path: Path) -> None:
    good("index", *shards, "-j1", "--for", "dali")
    found = json.loads(good("ls", "--summary", "--json", *shards).splitlines()[-1])
    assert (found["samples"], found.get("repeated_keys", 0)) == (len(keys), 0)


def test_sets_are_joined(keys: list[str], tmp_path: Path) -> None:
    """Each key with its own partner, in another order; the first and the last have none."""
    one = write_shards(tmp_path / "one", [list(map(made, keys[:-1]))])
    two = write_shards(tmp_path / "two", [[[(f"{key}.tag", os.fsencode(key))] for key in reversed(keys[1:])]])
    good("merge", "--join", "inner", *one, *two, "-o", tmp_path / "inner.tar", "-j1")
    assert keys_of(tmp_path / "inner.tar") == keys[1:-1]
    good("merge", "--join", "outer", *one, *two, "-o", tmp_path / "outer.tar", "-j1")
    found = dict(samples_of(tmp_path / "outer.tar"))
    assert list(found) == keys
    for key in keys:
        assert dict(found[key]).get("tag") == (None if key == keys[0] else os.fsencode(key))
        assert dict(found[key]).get("txt") == (None if key == keys[-1] else os.fsencode(key))


def test_columns_go_into_the_json_of_their_own_key(keys: list[str], tmp_path: Path) -> None:
    if not all(key.isascii() for key in keys):
        pytest.skip("keys that no text has")
    one = write_shards(tmp_path / "one", [[[(f"{key}.json", b"{}")] for key in keys]])
    (tmp_path / "t.csv").write_text("id,n\n" + "".join(f"{key},{key[1:]}\n" for key in reversed(keys)))
    table = ["--table", tmp_path / "t.csv", "--key-column", "id", "--json-rest"]
    good("merge", *one, *table, "-o", tmp_path / "out.tar", "-j1")
    found = {key: dict(fields)["json"] for key, fields in samples_of(tmp_path / "out.tar")}
    assert found == {key: b'{"n":%d}' % int(key[1:]) for key in keys}


def test_files_become_samples(keys: list[str], tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for key in keys:
        for name, data in made(key):
            (tmp_path / "files" / name).write_bytes(data)
    create(Request([str(tmp_path / "files")], str(tmp_path / "out-%06d.tar"), rekey="{key}-x"))
    assert sorted(keys_of(*outputs(tmp_path))) == sorted(f"{key}-x" for key in keys)


class TestVerify:
    """Repeats that digests make likely are compared before anything is said or left out."""

    def test_nothing_is_found(self, keys: list[str], shards: list[str]) -> None:
        good("verify", *shards, "-j1")

    def test_true_repeats_are_found(self, keys: list[str], shards: list[str], tmp_path: Path) -> None:
        again = write_shards(tmp_path / "again", [[made(keys[0]), made(keys[1]), made(keys[0])]])
        ran = wds("verify", *again, "-j1")
        assert (ran.code, ran.out.count(b"duplicate-key")) == (1, 1)
        ran = wds("verify", shards[0], *write_shards(tmp_path / "more", [[made(keys[0])]]), "-j1")
        assert (ran.code, ran.out.count(b"duplicate-key")) == (1, 1)

    def test_parts_go_to_their_own_sample(self, keys: list[str], tmp_path: Path) -> None:
        first = [[(f"{key}.txt", os.fsencode(key))] for key in keys]
        later = [[(f"{key}.tag", os.fsencode(key))] for key in reversed(keys)]
        broken = write_shards(tmp_path / "in", [[*first, *later, *first[1:], first[0]]])
        ran = wds("repair", *broken, "-o", tmp_path / "out-%06d.tar", "-j1")
        assert (ran.code, f"left out: {len(keys)}" in ran.err) == (1, True)
        assert written(tmp_path) == keys
        for path in outputs(tmp_path):
            assert all(dict(fields)["tag"] == os.fsencode(key) for key, fields in samples_of(path))

    def test_only_repeats_of_an_earlier_shard_are_left_out(
        self, keys: list[str], shards: list[str], tmp_path: Path
    ) -> None:
        ran = wds("repair", *shards, shards[0], "-o", tmp_path / "out-%06d.tar", "-j1")
        assert ran.code in (0, 1), ran.err
        assert set(written(tmp_path)) == set(keys)
        # Of keys that share even the secret digest the first of a shard is compared, and all are kept.
        if verify_keys.digest(b"", 0) != 7:
            assert (ran.code, f"left out: {len(keys) // 2}" in ran.err) == (1, True)
