"""``wds shuffle``: the pinned order, the same bytes whatever the circumstances, cuts and every option."""

from __future__ import annotations

import hashlib
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reorders import shuffle
from shard_cases import (
    Ran,
    assert_true_set,
    by_gnu_tar,
    content,
    keys_of,
    leftovers,
    members_of,
    no_new_files,
    numbered,
    outputs,
    sample,
    samples_of,
    shuffled_by_the_book,
    split,
    wds,
    write_shards,
)
from tiers import examples

from wdscli.cli.main import main
from wdscli.copy.copier import COPY_BUFFER_BYTES
from wdscli.plan.cut import Cuts
from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.storage import open_sink
from wdscli.tar import build_header, padded

Command = Callable[..., Ran]
COMMAND = ["shuffle"]


def all_samples(names: list[str]) -> list[list[Any]]:
    return [samples_of(name) for name in names]


class TestOrder:
    @pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
    def test_it_is_that_of_the_design(
        self, good: Command, shards: list[str], tmp_path: Path, seed: int
    ) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--seed", seed, "--max-count", 6)
        found = [one for path in outputs(tmp_path) for one in samples_of(path)]
        assert found == shuffled_by_the_book(all_samples(shards), seed)

    def test_the_seed_is_0_unless_given(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "a.tar")
        good(*shards, "-o", tmp_path / "b.tar", "--seed", 0)
        good(*shards, "-o", tmp_path / "c.tar", "--seed", 1)
        a, b, c = [(tmp_path / name).read_bytes() for name in ("a.tar", "b.tar", "c.tar")]
        assert a == b
        assert a != c

    def test_golden(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        """These bytes are a promise: a change here breaks every published shuffle."""
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--seed", 7, "--max-count", 8)
        digests = [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in outputs(tmp_path)]
        assert digests == GOLDEN
        assert keys_of(outputs(tmp_path)[0]) == GOLDEN_KEYS

    @pytest.mark.parametrize(
        "selection",
        [
            ["--keys", "a*"],
            ["--keys", "c00[1357]"],
            ["--where", "index % 3 == 1"],
            ["--where", "size.jpg > 5 and cls < 4"],
            ["--slice", "2:15:2"],
            ["--limit", "9"],
        ],
        ids=" ".join,
    )
    def test_a_selection_does_not_reorder_what_it_keeps(
        self, good: Command, shards: list[str], tmp_path: Path, selection: list[str]
    ) -> None:
        good(*shards, "-o", tmp_path / "all.tar", "--seed", 3)
        good(*shards, "-o", tmp_path / "some.tar", "--seed", 3, *selection)
        some = keys_of(tmp_path / "some.tar")
        assert 0 < len(some) < 21
        assert some == [key for key in keys_of(tmp_path / "all.tar") if key in some]

    def test_nothing_selected(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        ran = good(*shards, "-o", tmp_path / "out.tar", "--keys", "nothing", "--json", "--allow-empty")
        assert (tmp_path / "out.tar").read_bytes() == bytes(1024)
        assert ran.objects[0]["samples"] == 0
        assert ran.objects[0]["dropped"] == {"keys": 21}


GOLDEN = ["d090d32a33eb82aa", "30668350dfaac238", "0bc3df6db2a21984"]
GOLDEN_KEYS = ["a008", "c006", "a005", "a003", "a002", "a010", "c001", "b000"]


class TestSameBytes:
    @pytest.mark.exhaustive
    def test_whatever_the_number_of_jobs(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        for jobs in (1, 2, 5):
            good(*shards, "-o", tmp_path / str(jobs) / "out-%06d.tar", "--max-count", 4, "-j", jobs)
        assert content(tmp_path / "1") == content(tmp_path / "2") == content(tmp_path / "5")
        assert len(content(tmp_path / "1")) == 6 + 6 + 1

    def test_with_and_without_indexes(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "1" / "out-%06d.tar", "--max-count", 4)
        assert main(["index", *shards]) == 0
        assert len(list((tmp_path / "in" / ".wds").iterdir())) == 3
        good(*shards, "-o", tmp_path / "2" / "out-%06d.tar", "--max-count", 4)
        first, second = content(tmp_path / "1"), content(tmp_path / "2")
        first.pop("out-manifest.json")
        second.pop("out-manifest.json")
        assert first == second

    def test_with_an_index_no_header_of_the_survey_is_read(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That the test above means something: the index is what is read."""
        assert main(["index", *shards]) == 0

        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError("scanned")

        monkeypatch.setattr("wdscli.shards.reading.iter_batches", refuse)
        good(*shards, "-o", tmp_path / "out.tar")

    @pytest.mark.exhaustive
    def test_whatever_the_environment(self, shards: list[str], tmp_path: Path) -> None:
        for number, more in enumerate(
            [
                {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C"},
                {"PYTHONHASHSEED": "2", "TZ": "America/Caracas", "LC_ALL": "C.UTF-8"},
            ]
        ):
            ran = wds(
                "shuffle", *shards, "-o", tmp_path / str(number) / "out-%06d.tar", "--max-count", 4,
                env={**os.environ, **more}, umask=(0o022, 0o077)[number],
            )  # fmt: skip
            assert ran.code == 0, ran.err
        assert content(tmp_path / "0") == content(tmp_path / "1")

    def test_after_a_dry_run(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "1" / "out.tar", "--seed", 4)
        good(*shards, "-o", tmp_path / "2" / "out.tar", "--seed", 4, "-n")
        assert not (tmp_path / "2").exists()
        good(*shards, "-o", tmp_path / "2" / "out.tar", "--seed", 4)
        assert content(tmp_path / "1") == content(tmp_path / "2")

    def test_from_another_folder_and_by_a_manifest(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good(*shards, "-o", tmp_path / "set" / "s-%02d.tar", "--max-count", 5)
        good(tmp_path / "set" / "s-manifest.json", "-o", tmp_path / "1" / "out.tar")
        monkeypatch.chdir(tmp_path / "set")
        good("s-{00..04}.tar", "-o", "../2/out.tar")
        assert content(tmp_path / "1") == content(tmp_path / "2")


class TestWhatIsWritten:
    def test_nothing_is_lost_or_changed(self, good: Command, tmp_path: Path) -> None:
        rng = random.Random(2)
        names = write_shards(
            tmp_path / "in",
            [
                [sample(f"d/{s}.x/k{n}", n, [rng.choice([0, 1, 511, 512, 513, 9000])]) for n in range(30)]
                for s in range(3)
            ],
        )
        good(*names, "-o", tmp_path / "out-%06d.tar", "--max-size", "40kB")
        before = sorted(one for name in names for one in samples_of(name))
        assert sorted(one for path in outputs(tmp_path) for one in samples_of(path)) == before

    def test_it_is_what_gnu_tar_writes(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out.tar")
        assert (tmp_path / "out.tar").read_bytes() == by_gnu_tar(tmp_path, members_of(tmp_path / "out.tar"))

    def test_the_manifest_and_the_indexes_are_true(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 5, "--seed", 9, "--keys", "[ac]*")
        manifest = assert_true_set(tmp_path)
        made = manifest["wdscli"]["made"]
        assert (made["operation"], made["seed"]) == ("shuffle", 9)
        assert made["options"] == {"max_count": 5, "keys": ["[ac]*"]}
        assert str(tmp_path) not in json.dumps(manifest)

    def test_shards_of_one_sample_and_of_none(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[one] for one in numbered(7)] + [[], []])
        good(*reversed(names), "-o", tmp_path / "out.tar")
        expected = shuffled_by_the_book([samples_of(name) for name in reversed(names)], 0)
        assert samples_of(tmp_path / "out.tar") == expected

    def test_samples_larger_than_the_buffer(self, good: Command, tmp_path: Path) -> None:
        """Some as one large member, some of many, canonical and not."""
        large = [sample(f"l{n}", n, [COPY_BUFFER_BYTES + 80_000, 5, 3_000_000]) for n in range(3)]
        exact = [
            sample(f"e{n}", n, [COPY_BUFFER_BYTES - 2048 + step]) for n, step in enumerate([-512, 0, 512])
        ]
        names = write_shards(tmp_path / "in", [large[:2] + numbered(5), [*exact, large[2]]])
        names += write_shards(tmp_path / "old", [large[1:2]], format=tarfile.GNU_FORMAT, mode=0o600)
        good(*names, "-o", tmp_path / "out.tar", "--on-duplicate", "rekey")
        found = samples_of(tmp_path / "out.tar")
        assert sorted(fields for _, fields in found) == sorted(
            fields for name in names for _, fields in samples_of(name)
        )
        (again,) = [key for key, _ in found if key.startswith("l1-")]
        assert again == "l1-in-0-000000000"
        assert_true_set(tmp_path)


class TestCuts:
    @settings(
        max_examples=examples(25),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(st.integers(0, 6000), min_size=1, max_size=25), st.integers(3000, 30_000))
    def test_no_shard_exceeds_the_size_by_one_byte(
        self, tmp_path_factory: Any, sizes: list[int], limit: int
    ) -> None:
        folder = tmp_path_factory.mktemp("sizes")
        names = write_shards(folder / "in", [[[(f"k{n}.bin", bytes(size))] for n, size in enumerate(sizes)]])
        planned = make_plan(
            Request(names, f"{folder}/out-%06d.tar", cuts=Cuts(max_size=limit)), ShuffledOrder()
        )
        shuffle(Request(names, f"{folder}/out-%06d.tar", cuts=Cuts(max_size=limit), jobs=1))
        shards = [samples_of(path) for path in outputs(folder)]
        assert [shard.size_bytes for shard in planned.contents.shards] == [
            path.stat().st_size for path in outputs(folder)
        ]
        assert [shard.samples for shard in planned.contents.shards] == list(map(len, shards))
        for number, path in enumerate(outputs(folder)):
            size = path.stat().st_size
            assert size <= limit or len(shards[number]) == 1
            if number + 1 < len(shards):
                key, ((field, payload),) = shards[number + 1][0]
                header = len(build_header(f"{key}.{field}".encode(), len(payload)))
                assert size + header + padded(len(payload)) > limit

    def test_a_sample_that_is_larger_gets_its_own_shard(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[*numbered(6), sample("big", 1, [50_000]), *numbered(6, "m")]])
        ran = good(*names, "-o", tmp_path / "out-%06d.tar", "--max-size", "20kB")
        assert "warning: 1 sample larger than --max-size" in ran.err
        (alone,) = [path for path in outputs(tmp_path) if "big" in keys_of(path)]
        assert keys_of(alone) == ["big"]
        assert all(path.stat().st_size <= 20_000 for path in outputs(tmp_path) if path != alone)

    @pytest.mark.parametrize("count", [1, 4, 21, 30])
    def test_a_number_of_shards(self, good: Command, shards: list[str], tmp_path: Path, count: int) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--shards", count)
        counts = [len(keys_of(path)) for path in outputs(tmp_path)]
        assert (len(counts), sum(counts)) == (count, 21)
        assert max(counts) - min(counts) <= 1
        good(*shards, "-o", tmp_path / "two" / f"out-{{000..{count - 1:03d}}}.tar")
        assert [path.read_bytes() for path in outputs(tmp_path / "two")] == [
            path.read_bytes() for path in outputs(tmp_path)
        ]
        assert_true_set(tmp_path)

    def test_max_count(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 8)
        assert [len(keys_of(path)) for path in outputs(tmp_path)] == [8, 8, 5]

    def test_one_file_is_not_cut(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        ran = run(*shards, "-o", tmp_path / "out.tar", "--max-count", 3)
        assert ran.code == 2
        assert "out-%06d.tar" in ran.err

    def test_cuts_that_contradict(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        assert run(*shards, "-o", tmp_path / "o-%d.tar", "--max-count", 3, "--shards", 2).code == 2
        assert run(*shards, "-o", tmp_path / "o-{0..3}.tar", "--shards", 2).code == 2


class TestOptions:
    def test_a_dry_run_writes_nothing_and_says_what_is_then_written(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        options = [*shards, "-o", tmp_path / "out-%06d.tar", "--max-size", "15kB"]
        options += ["--rekey", "k" * 120 + "{index}-{shard}"]
        with no_new_files(tmp_path):
            told = good(*options, "-n").out.decode().splitlines()
        good(*options)
        assert [line.split("\t") for line in told] == [
            [str(path), str(len(keys_of(path))), str(path.stat().st_size)] for path in outputs(tmp_path)
        ]

    def test_json_of_a_dry_run(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        options = [*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 9, "--json"]
        told = good(*options, "-n").objects
        good(*options)
        assert [one["samples"] for one in told if "samples" in one][:3] == [9, 9, 3]
        sizes = [path.stat().st_size for path in outputs(tmp_path)]
        assert [one["bytes"] for one in told][:3] == sizes

    def test_json(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        (told,) = good(*shards, "-o", tmp_path / "out-%06d.tar", "--json", "--slice", "1::2").objects
        manifest = json.loads((tmp_path / "out-manifest.json").read_bytes())
        assert told["operation"] == "shuffle"
        assert (told["samples_in"], told["samples"], told["members"]) == (21, 10, 30)
        assert told["dropped"] == {"slice": 11}
        assert (told["shards"], told["bytes"]) == (1, (tmp_path / "out-000000.tar").stat().st_size)
        assert told["bytes_in"] == sum(Path(name).stat().st_size for name in shards)
        assert told["fingerprint"] == manifest["wdscli"]["fingerprint"]

    def test_members_and_payload_in_are_those_out(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        """The command compares samples, members and bytes in and out, and reports them."""
        told = []
        for number, options in enumerate([[], ["--strategy", "spill", "-j", 2], ["--on-error", "skip"]]):
            (one,) = good(*shards, "-o", tmp_path / f"{number}.tar", "--json", *options).objects
            told.append(one)
        (again,) = good(tmp_path / "0.tar", "-o", tmp_path / "again.tar", "--json").objects
        payload = sum(len(data) for name in shards for _, data in members_of(name))
        for one in [*told, again]:
            assert (one["members_in"], one["members"]) == (63, 63)
            assert one["payload_bytes_in"] == one["payload_bytes"] == payload

    def test_members_in_are_of_all_samples_read(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        """What the selection leaves out is counted as read."""
        options = ["--slice", "1::2", "--fields", "cls", "-v"]
        ran = good(*shards, "-o", tmp_path / "out.tar", "--json", *options)
        (told,) = ran.objects
        assert (told["members_in"], told["members"]) == (63, 10)
        assert told["payload_bytes_in"] > told["payload_bytes"] > 0
        assert f"in: 21 samples, 63 members, {told['payload_bytes_in']} bytes of payload" in ran.err
        assert f"out: 10 samples, 10 members, {told['payload_bytes']} bytes of payload" in ran.err

    @pytest.mark.parametrize(
        "options",
        [
            ["--limit", "5"],
            ["--limit", "0", "--allow-empty"],
            ["--slice", "3:9"],
            ["--where", "cls < 3"],
            ["--keys", "a*", "--limit", "3"],
            ["--on-duplicate", "skip"],
        ],
        ids=" ".join,
    )
    def test_samples_in_are_samples_and_dropped(
        self, good: Command, shards: list[str], tmp_path: Path, options: list[str]
    ) -> None:
        more = [] if "--on-duplicate" in options else ["--rekey", "{key}-{index}-{shard}"]
        (told,) = good(*shards, "-o", tmp_path / "o.tar", "--json", *options, *more).objects
        assert told["samples_in"] == told["samples"] + sum(told["dropped"].values())

    def test_a_slice_does_not_open_what_comes_after(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        """A slice with an end needs no later shard, so damage there is no error."""
        Path(shards[2]).write_bytes(b"broken" * 1000)
        good(*shards, "-o", tmp_path / "out.tar", "--slice", ":12")
        assert sorted(keys_of(tmp_path / "out.tar")) == sorted(keys_of(shards[0]))

    def test_what_exists_is_refused(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "out-000007.tar").write_bytes(b"mine")
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "out-%06d.tar")
        assert ran.code == 4
        assert "out-000007.tar" in ran.err
        assert "--force" in ran.err

    def test_force_replaces_the_whole_set(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 2)
        assert len(outputs(tmp_path)) == 11
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 10, "--force")
        good(*shards, "-o", tmp_path / "new" / "out-%06d.tar", "--max-count", 10)
        assert {
            name: data for name, data in content(tmp_path).items() if not name.startswith(("in", "new"))
        } == (content(tmp_path / "new"))

    def test_an_output_that_is_an_input(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", tmp_path / "in" / "in-%d.tar", "--force")
            assert ran.code == 2
            assert "both an input and an output" in ran.err
            assert run(*shards, "-o", shards[1], "--force").code == 2

    def test_no_index(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--no-index")
        assert not (tmp_path / ".wds").exists()
        good(*shards, "-o", tmp_path / "two-%06d.tar")
        assert (tmp_path / ".wds" / "two-000000.tar.wdx").exists()

    @pytest.mark.parametrize("checksum", ["sha256", "xxh3_128", "none"])
    def test_checksum(self, good: Command, shards: list[str], tmp_path: Path, checksum: str) -> None:
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--hash", checksum, "--max-count", 9)
        assert_true_set(tmp_path, checksum=checksum)

    def test_mtime(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good(*shards, "-o", tmp_path / "a.tar", "--mtime", 1_000_000_000)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
        good(*shards, "-o", tmp_path / "b.tar")
        good(*shards, "-o", tmp_path / "c.tar", "--mtime", 7)
        times = [mtimes(tmp_path / f"{name}.tar") for name in "abc"]
        assert times == [{1_000_000_000}, {1_000_000_000}, {7}]
        assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
        members = members_of(tmp_path / "a.tar")
        expected = by_gnu_tar(tmp_path, members, "--mtime=@1000000000")
        assert (tmp_path / "a.tar").read_bytes() == expected

    def test_long_names(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(
            tmp_path / "in", [numbered(4, "long" * 40), numbered(3)], format=tarfile.PAX_FORMAT
        )
        for kind in ("pax", "gnu"):
            good(*names, "-o", tmp_path / f"{kind}.tar", "--long-names", kind)
            found = members_of(tmp_path / f"{kind}.tar")
            assert sorted(found) == sorted(one for shard in names for one in members_of(shard))
        pax, gnu = (tmp_path / "pax.tar").read_bytes(), (tmp_path / "gnu.tar").read_bytes()
        assert (b"PaxHeader" in pax, b"@LongLink" in pax) == (True, False)
        assert (b"PaxHeader" in gnu, b"@LongLink" in gnu) == (False, True)

    def test_fields(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", tmp_path / "a.tar", "--fields", "cls,jpg")
        good(*shards, "-o", tmp_path / "b.tar", "--drop", "seg.png")
        good(*shards, "-o", tmp_path / "c.tar", "--drop", "seg.png", "--rename", "image=jpg;png")
        assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
        everything = shuffled_by_the_book(all_samples(shards), 0)
        assert samples_of(tmp_path / "a.tar") == [(key, fields[:2]) for key, fields in everything]
        renamed = [(key, (cls, ("image", jpg[1]))) for key, (cls, jpg, _) in everything]
        assert samples_of(tmp_path / "c.tar") == renamed
        assert (tmp_path / "c.tar").read_bytes() == by_gnu_tar(tmp_path, members_of(tmp_path / "c.tar"))

    def test_keys_from(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("a003\nc001\nzzz\n")
        ran = good(*shards, "-o", tmp_path / "a.tar", "--keys-from", tmp_path / "keys")
        assert sorted(keys_of(tmp_path / "a.tar")) == ["a003", "c001"]
        assert "1 key" in ran.err
        assert "zzz" in ran.err

    def test_fsync(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = []
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
        good(*shards, "-o", tmp_path / "a-%d.tar", "-j", 1)
        assert synced == []
        good(*shards, "-o", tmp_path / "b-%d.tar", "-j", 1, "--fsync")
        assert (tmp_path / "b-0.tar").stat().st_size in synced
        assert (tmp_path / "b-manifest.json").stat().st_size in synced

    @pytest.mark.exhaustive
    def test_jobs_start_processes(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from wdscli.executors import local

        started = []
        original = local.Processes
        monkeypatch.setattr(
            local, "Processes", lambda jobs, *more: started.append(jobs) or original(jobs, *more)
        )
        good(*shards, "-o", tmp_path / "a-%d.tar", "-j", 1)
        assert started == []
        good(*shards, "-o", tmp_path / "b-%d.tar", "-j", 2, "--max-count", 9)
        assert set(started) == {2}

    def test_quiet_and_verbose(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        assert good(*shards, "-o", tmp_path / "a.tar", "-q").err == ""
        assert "shuffled 21 samples" in good(*shards, "-o", tmp_path / "b.tar").err
        told = good(*shards, "-o", tmp_path / "c.tar", "-v").err
        assert "strategy gather: the inputs can be read in any order" in told

    def test_to_standard_output(self, shards: list[str], tmp_path: Path) -> None:
        ran = wds("shuffle", *shards, "-o", "-")
        assert ran.code == 0, ran.err
        assert samples_of(ran.out) == shuffled_by_the_book(all_samples(shards), 0)

    def test_into_a_command(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "-o", f"pipe:cat > {tmp_path}/piped")
        good(*shards, "-o", tmp_path / "plain.tar")
        assert (tmp_path / "piped").read_bytes() == (tmp_path / "plain.tar").read_bytes()

    def test_nothing_half_written_is_left(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        data = bytearray(Path(shards[2]).read_bytes())
        data[1024 + 10] ^= 1
        Path(shards[2]).write_bytes(data)
        assert run(*shards, "-o", tmp_path / "out-%06d.tar", "--max-count", 5).code == 3
        assert outputs(tmp_path) == []
        assert leftovers(tmp_path) == []


def mtimes(path: Path) -> set[float]:
    with tarfile.open(path) as tar:
        return {info.mtime for info in tar}


def test_split_is_the_key_rule() -> None:
    assert split("a.b/c.d.e") == ("a.b/c", "d.e")


def test_a_set_in_the_memory_of_this_process(tmp_path: Path) -> None:
    """No worker could read or write it, however many are asked for."""
    names = write_shards(tmp_path / "in", [numbered(9, "a"), numbered(9, "b")])
    address = f"memory://{tmp_path.name}"
    for number, name in enumerate(names):
        with open_sink(f"{address}/in-{number}.tar") as sink:
            sink.write(Path(name).read_bytes())
    report = shuffle(
        Request([f"{address}/in-*.tar"], f"{address}/out-%06d.tar", cuts=Cuts(max_count=5), jobs=2)
    )
    assert (report.samples, report.shards) == (18, 4)


@pytest.mark.parametrize("exact", [False, True])
def test_jobs_are_an_upper_limit(exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few samples are no work for a second process; -v says how many worked."""
    monkeypatch.setenv("WDSCLI_JOBS", "exact" if exact else "")
    shards = write_shards(tmp_path / "in", [[sample(f"k{number}", number)] for number in range(3)])
    ran = wds("shuffle", *shards, "-o", tmp_path / "o-%06d.tar", "--shards", "3", "-j3", "-v")
    assert ran.code == 0, ran.err
    assert (" in 3 workers" in ran.err) == (" workers" in ran.err) == exact
