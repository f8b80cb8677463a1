"""The manifest: what it says of a set, who can read it, and what it refuses to say."""

from __future__ import annotations

import contextlib
import json
import os
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_cases import wds
from tiers import examples
from xxhash import xxh3_128

from wdscli.errors import DataError, InputError
from wdscli.model import FieldTotals, ShardInfo
from wdscli.shards import Manifest, ShardWriter, open_set, read_manifest
from wdscli.shards.inputs import fingerprint_of, manifest_beside
from wdscli.shards.manifest import fingerprint, parse_manifest
from wdscli.shards.view import SampleRun, View, ViewRule, ViewShard
from wdscli.tar import Form

SHARDS = (
    ShardInfo(
        "t-0.tar", 2, 4, 5120, "0a" * 8, "xxh3_128:" + "1" * 32,
        {"cls": FieldTotals(2, 2), "jpg": FieldTotals(2, 9)}, True,
    ),
    ShardInfo("t-1.tar", 1, 1, 2048, "0b" * 8, "xxh3_128:" + "2" * 32, {"cls": FieldTotals(1, 1)}, True),
)  # fmt: skip
MANIFEST = Manifest("t", SHARDS, {"operation": "write", "options": {}, "inputs": []}, ("cat", "dog"))


def write(folder: Path, count: int = 5) -> Manifest:
    with ShardWriter(str(folder / "t-%06d.tar"), max_count=2) as writer:
        for number in range(count):
            writer.write(f"k{number}", {"txt": b"%d" % number})
    return writer.manifest


class TestDocument:
    def test_it_reads_back_as_it_was_written(self) -> None:
        assert parse_manifest(MANIFEST.to_json(), "m") == MANIFEST
        # Objects like entries of the long lists.
        made = {"operation": "x", "options": {"a": [{"url": "u"}, {"digest": "d"}]}}
        assert parse_manifest(replace(MANIFEST, made=made).to_json(), "m").made == made

    @pytest.mark.exhaustive
    def test_a_view_of_many_shards_needs_little_memory(self) -> None:
        count, bases, shards = 2000, list[ShardInfo](), list[ViewShard]()
        for number in range(count):
            for folder in ("photos", "captions"):
                name, digest = f"{folder}/train-{number:06d}.tar", f"{number:016x}"
                bases.append(
                    ShardInfo(name, 10**4, 10**4, 10**9 + number, digest, f"xxh3_128:{2 * digest}", {}, False)
                )
            runs = tuple((SampleRun(2 * number + place, 0, 10**4),) for place in (0, 1))
            shards.append(ViewShard(f"{number:032x}", runs))
        view = View(bases, shards, ViewRule((None, None), ("error", "error")), Form())
        infos = tuple(
            ShardInfo(f"train-{n:06d}.tar", 10**4, 2 * 10**4, 2 * 10**9 + n, "", None, {}, False)
            for n in range(count)
        )
        text = Manifest("big", infos, view=view).to_json()
        tracemalloc.start()
        found = parse_manifest(text, "m").view
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found is not None
        assert (list(found.bases), list(found.shards)) == (bases, shards)
        assert kept < 2 * len(text)
        assert peak < 3 * len(text)

    def test_it_is_a_wids_document(self) -> None:
        document = json.loads(MANIFEST.to_json())
        assert document["__kind__"] == "wids-shard-index-v1"
        assert document["wids_version"] == 1
        assert [(s["url"], s["nsamples"], s["filesize"]) for s in document["shardlist"]] == [
            ("t-0.tar", 2, 5120),
            ("t-1.tar", 1, 2048),
        ]

    def test_totals_are_sums(self) -> None:
        ours = json.loads(MANIFEST.to_json())["wdscli"]
        assert (ours["shards"], ours["samples"], ours["members"], ours["bytes"]) == (2, 3, 5, 7168)
        assert ours["fields"] == {"cls": {"count": 3, "bytes": 3}, "jpg": {"count": 2, "bytes": 9}}
        assert ours["classes"] == ["cat", "dog"]
        assert ours["index"] == ".wds"

    def test_a_set_that_lacks_an_index_does_not_promise_any(self) -> None:
        shards = (SHARDS[0], replace(SHARDS[1], index=False))
        assert json.loads(replace(MANIFEST, shards=shards).to_json())["wdscli"]["index"] is None

    def test_it_knows_neither_time_nor_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path / "one")
        monkeypatch.setattr(time, "time", lambda: 0.0)
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        write(tmp_path / "two")
        texts = [(tmp_path / name / "t-manifest.json").read_bytes() for name in ("one", "two")]
        assert texts[0] == texts[1]
        assert os.fsencode(tmp_path.name) not in texts[0]

    def test_names_that_are_not_utf_8_are_ascii_escapes_and_come_back(self) -> None:
        shards = (replace(SHARDS[0], name="caf\udce9.tar", fields={"\udcff": FieldTotals(1, 1)}),)
        manifest = replace(MANIFEST, shards=shards)
        assert manifest.to_json().isascii()
        assert parse_manifest(manifest.to_json(), "m") == manifest


class TestContradictions:
    """A manifest whose totals are not the sums over its list."""

    CASES = (
        (("shards",), 3, "the total is 3 shards, but its list adds up to 2"),
        (("samples",), 4, "the total is 4 samples, but its list adds up to 3"),
        (("members",), 1, "the total is 1 members, but its list adds up to 5"),
        (("bytes",), "7168", "the total is 7168 bytes, but its list adds up to 7168"),
        (
            ("fields", "jpg", "count"),
            3,
            'the total is 3 members of the field "jpg", but its list adds up to 2',
        ),
        (("fields", "jpg", "bytes"), 8, 'the total is 8 bytes of the field "jpg", but its list adds up to 9'),
        (
            ("fields", "txt"),
            {"count": 1},
            'the total is 1 members of the field "txt", but its list adds up to 0',
        ),
    )

    @staticmethod
    def changed(text: str, path: tuple[str, ...], value: object) -> str:
        document = json.loads(text)
        place = document["wdscli"]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        return json.dumps(document)

    @pytest.mark.parametrize(("path", "value", "message"), CASES)
    def test_each_total(self, path: tuple[str, ...], value: object, message: str) -> None:
        with pytest.raises(DataError) as caught:
            parse_manifest(self.changed(MANIFEST.to_json(), path, value), "m.json")
        assert caught.value.message == f"m.json contradicts itself: {message}"
        assert caught.value.hint == "`wds index SHARDS --force` writes a new manifest"

    def test_what_is_not_said_contradicts_nothing(self) -> None:
        document = json.loads(MANIFEST.to_json())
        document["wdscli"] = {"fields": {}, "samples": 3}
        assert parse_manifest(json.dumps(document), "m").samples == 3
        document["shardlist"][0]["members"] = -1
        document["wdscli"] = {"members": 7}
        assert parse_manifest(json.dumps(document), "m").samples == 3

    @pytest.mark.parametrize("name", ["t-manifest.json", "", "t-*.tar"])
    def test_commands_and_the_loader_refuse_it(self, tmp_path: Path, name: str) -> None:
        import wdscli.loader

        write(tmp_path)
        manifest = tmp_path / "t-manifest.json"
        manifest.write_text(self.changed(manifest.read_text(), ("samples",), 7))
        address = str(tmp_path / name)
        for command in (["ls"], ["cat", "-o", os.devnull], ["split", "-n", "-o", str(tmp_path / "x.tar")]):
            done = wds(command[0], address, *command[1:])
            assert done.code == 3, (command, done)
            assert "the total is 7 samples, but its list adds up to 5" in done.err
        for dataset in (wdscli.loader.WebDataset, wdscli.loader.IndexedDataset):
            with pytest.raises(DataError, match="the total is 7 samples, but its list adds up to 5"):
                len(list(dataset(address)))

    def test_verify_finds_it_and_index_mends_it(self, tmp_path: Path) -> None:
        write(tmp_path)
        manifest = tmp_path / "t-manifest.json"
        good = manifest.read_bytes()
        bad = self.changed(good.decode(), ("bytes",), 1)
        manifest.write_text(bad)
        found = wds("verify", tmp_path)
        assert (found.code, b"the total is 1 bytes" in found.out) == (1, True)
        assert wds("index", tmp_path).code == 3
        assert manifest.read_text() == bad
        assert wds("index", tmp_path, "--force").code == 0
        assert manifest.read_bytes() == good


class TestFingerprint:
    def test_a_name_does_not_matter(self) -> None:
        assert fingerprint([replace(SHARDS[0], name="x")]) == fingerprint(SHARDS[:1])

    @pytest.mark.parametrize(
        "change", [{"samples": 3}, {"size_bytes": 1}, {"headers": "0c" * 8}, {"checksum": None}]
    )
    def test_everything_else_does(self, change: dict[str, object]) -> None:
        assert fingerprint([replace(SHARDS[0], **change)]) != fingerprint(SHARDS[:1])  # type: ignore[arg-type]

    def test_the_order_does(self) -> None:
        assert fingerprint(SHARDS) != fingerprint(SHARDS[::-1])

    def test_it_is_pinned(self) -> None:
        """Another program can work it out: xxh3_128 of one line a shard."""
        assert fingerprint(SHARDS) == "xxh3_128:" + PINNED


PINNED = xxh3_128(
    b"2 5120 0a0a0a0a0a0a0a0a xxh3_128:11111111111111111111111111111111\n"
    b"1 2048 0b0b0b0b0b0b0b0b xxh3_128:22222222222222222222222222222222\n"
).hexdigest()


class TestForeign:
    def test_a_plain_wids_document_is_a_manifest(self) -> None:
        text = '{"__kind__": "wids-shard-index-v1", "shardlist": [{"url": "a.tar", "nsamples": 3}]}'
        shard = parse_manifest(text, "m").shards[0]
        assert (shard.name, shard.samples, shard.size_bytes, shard.members) == ("a.tar", 3, -1, -1)
        assert (shard.headers, shard.checksum, shard.index) == ("", None, False)

    @pytest.mark.parametrize(
        "text",
        [
            "", "[]", "{}", "null", "{", '{"shardlist": 3}', '{"shardlist": [3]}', '{"shardlist": [{}]}',
            '{"shardlist": [{"url": "a"}]}', '{"shardlist": [{"url": "a", "nsamples": -1}]}',
            '{"shardlist": [{"url": "a", "nsamples": Infinity}]}', '{"shardlist": [{"url": "a", "nsamples": 1.5}]}',
            '{"shardlist": [{"url": "", "nsamples": 1}]}', '{"shardlist": [{"url": 7, "nsamples": 1}]}',
            '{"shardlist": [{"url": "a", "nsamples": 1, "checksum": 7}]}', '{"shardlist": [], "wdscli": 7}',
            '{"shardlist": [{"url": "a", "nsamples": 1, "fields": {"x": {"count": "y"}}}]}',
            "[" * 100_000,
        ],
    )  # fmt: skip
    def test_what_is_no_manifest_is_told(self, text: str) -> None:
        with pytest.raises(DataError) as caught:
            parse_manifest(text, "m.json")
        assert caught.value.code == "manifest-mismatch"
        assert "m.json is not a manifest" in caught.value.message

    @settings(max_examples=examples(200), deadline=None)
    @given(st.integers(0, 10**6), st.binary(max_size=3))
    def test_any_mutation_is_a_manifest_or_a_data_error(self, at: int, new: bytes) -> None:
        text = MANIFEST.to_json().encode()
        at %= len(text)
        with contextlib.suppress(DataError):
            parse_manifest(text[:at] + new + text[at + 1 :], "m")


class TestOpening:
    def test_a_manifest_stands_for_its_shards(self, tmp_path: Path) -> None:
        manifest = write(tmp_path)
        shards = open_set([str(tmp_path / "t-manifest.json")])
        assert shards.addresses == [str(tmp_path / f"t-00000{n}.tar") for n in range(3)]
        assert shards.manifest == manifest
        assert fingerprint_of(shards) == manifest.fingerprint

    def test_its_shards_may_lie_elsewhere(self, tmp_path: Path) -> None:
        shards = (replace(SHARDS[0], name="s3://b/t-0.tar"), replace(SHARDS[1], name="sub/t-1.tar"))
        (tmp_path / "m.json").write_text(replace(MANIFEST, shards=shards).to_json())
        assert open_set([str(tmp_path / "m.json")]).addresses == [
            "s3://b/t-0.tar",
            str(tmp_path / "sub/t-1.tar"),
        ]

    def test_the_manifest_of_named_shards_is_found_beside_them(self, tmp_path: Path) -> None:
        manifest = write(tmp_path)
        paths = [str(tmp_path / shard.name) for shard in manifest.shards]
        assert fingerprint_of(open_set(paths)) == manifest.fingerprint
        assert manifest_beside(paths[::-1]) is not None
        assert fingerprint_of(open_set(paths[::-1])) is None
        assert manifest_beside(paths[:2]) is None

    def test_one_that_is_not_there_is_an_input_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            read_manifest(str(tmp_path / "none.json"))
