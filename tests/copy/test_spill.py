"""Spilling: the bytes that gather writes, whatever the chunks and the buckets; scratch space checked and cleaned up."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from awkward_sets import write_awkward
from reorders import shuffle
from shard_cases import Members, content, numbered, outputs, sample, samples_of, tar_of, wds, write_shards
from storage_servers import S3
from tiers import EXHAUSTIVE

from wdscli.cli.main import main
from wdscli.copy import spill
from wdscli.errors import DataError, OutputError, UsageError
from wdscli.plan import scratch
from wdscli.plan.cut import Cuts
from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.plan.strategy import MAIN_BYTES, limits_for
from wdscli.run.execute import ReorderReport, run_plan
from wdscli.storage import scatter
from wdscli.storage.ranges import RemoteSource

Fix = Callable[..., None]


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_awkward(tmp_path_factory.mktemp("awkward") / "in", repeats=True)


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> Fix:
    """Fix the sizes of chunks and buckets."""

    def fix(chunk: int, bucket: int, loaded: bool, rows: int = 1000, hold: int = 0) -> None:
        sizes = spill.SpillSizes(chunk, rows, bucket, loaded, hold)
        monkeypatch.setattr(spill, "sizes_for", lambda *_: sizes)

    return fix


def shuffled(names: list[str], folder: Path, **more: Any) -> dict[str, bytes]:
    """All files of an output."""
    wanted = {"cuts": Cuts(max_size=40_000), "jobs": 1, "on_duplicate": "skip", "strategy": "spill", **more}
    report = shuffle(Request(names, f"{folder}/out-%06d.tar", **wanted), 5)
    assert report.strategy == wanted["strategy"]
    return content(folder)


WAYS: dict[str, dict[str, Any]] = {
    "skip": {},
    "rekey": {"on_duplicate": "rekey"},
    "new keys": {"rekey": "{shard}/{index}"},
    "one shard": {"cuts": Cuts(shards=1)},
    "three shards": {"cuts": Cuts(shards=3)},
}


class TestSameBytes:
    @pytest.mark.parametrize("way", WAYS, ids=str)
    @pytest.mark.parametrize(
        ("chunk", "bucket", "loaded"),
        [
            (1, 1, False),
            (1, 1, True),
            (9_000, 30_000, True),
            (30_000, 9_000, False),
            (1 << 40, 1 << 40, True),
        ],
    )
    def test_whatever_the_chunks_and_buckets(
        self, awkward: list[str], tmp_path: Path, sized: Fix, way: str, chunk: int, bucket: int, loaded: bool
    ) -> None:
        by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather", **WAYS[way])
        sized(chunk, bucket, loaded)
        assert shuffled(awkward, tmp_path / "spill", **WAYS[way]) == by_gather

    @pytest.mark.parametrize("way", WAYS, ids=str)
    @pytest.mark.parametrize("hold", [9_000, 1 << 30])
    def test_buckets_held_in_memory(
        self, awkward: list[str], tmp_path: Path, sized: Fix, way: str, hold: int
    ) -> None:
        by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather", **WAYS[way])
        sized(60_000, 20_000, True, hold=hold)
        assert shuffled(awkward, tmp_path / "spill", **WAYS[way]) == by_gather

    @pytest.mark.parametrize("loaded", [True, False])
    def test_a_large_sample_at_the_edge_of_a_bucket_that_is_held(
        self, tmp_path: Path, sized: Fix, loaded: bool
    ) -> None:
        """In each place there is, so that it is the first, the last and between others."""
        shards = [
            [sample(f"{shard}-{n}", n, [1_200_000 if n == shard else 9_000]) for n in range(6)]
            for shard in range(6)
        ]
        names = write_shards(tmp_path / "in", shards)
        cuts = Cuts(shards=2)
        by_gather = shuffled(names, tmp_path / "gather", strategy="gather", cuts=cuts)
        for bucket in (1_500_000, 2_500_000, 1 << 30):
            sized(1_300_000, bucket, loaded, hold=1 << 30)
            assert shuffled(names, tmp_path / str(bucket), cuts=cuts) == by_gather

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("jobs", [2, 5])
    def test_whatever_the_jobs(self, awkward: list[str], tmp_path: Path, sized: Fix, jobs: int) -> None:
        by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather")
        sized(20_000, 20_000, jobs == 2)
        assert shuffled(awkward, tmp_path / "spill", jobs=jobs) == by_gather

    def test_few_rows_at_a_time(
        self, awkward: list[str], tmp_path: Path, sized: Fix, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather")
        sized(1 << 20, 1 << 20, True, rows=3)
        monkeypatch.setattr(spill, "ROWS_PER_BUCKET", 5)
        monkeypatch.setattr(spill, "ROWS_AT_ONCE", 2)
        assert shuffled(awkward, tmp_path / "spill") == by_gather

    def test_where_the_kernel_cannot_copy(
        self, awkward: list[str], tmp_path: Path, sized: Fix, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather")
        sized(1 << 20, 1 << 20, False)

        def refuse(*_: object) -> int:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuse)
        assert shuffled(awkward, tmp_path / "sent") == by_gather
        monkeypatch.setattr(os, "sendfile", refuse)
        assert shuffled(awkward, tmp_path / "spill") == by_gather

    def test_samples_are_read_from_scratch_space(
        self, awkward: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That the tests above mean something: the second pass finds no input but those with global headers."""
        original = spill.run_tasks

        def then_remove(*args: Any, **more: Any) -> Iterator[int]:
            yield from original(*args, **more)
            for name in names:
                os.unlink(name)

        names = [shutil.copy(name, tmp_path) for name in awkward if "in-08" not in name]
        monkeypatch.setattr(spill, "run_tasks", then_remove)
        assert shuffled(names, tmp_path / "spill")

    @pytest.mark.parametrize("cuts", [Cuts(shards=1), Cuts(max_count=9)])
    def test_scratch_space_shrinks_as_the_output_grows(
        self, awkward: list[str], tmp_path: Path, sized: Fix, monkeypatch: pytest.MonkeyPatch, cuts: Cuts
    ) -> None:
        """With one shard, too: the task removes what nobody else needs."""
        sized(1 << 20, 8_000, False)
        left: list[int] = []
        original = spill.Reading.enter

        def look(*args: Any) -> None:
            original(*args)
            left.append(len(list((tmp_path / "tmp").glob("*/*"))))

        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr(spill.Reading, "enter", look)
        assert shuffled(awkward, tmp_path / "out", cuts=cuts, tmp=str(tmp_path / "tmp"))
        assert left == sorted(left, reverse=True)
        assert left[0] > 20
        assert left[-1] <= 2

    def test_a_selection_that_leaves_gaps(self, awkward: list[str], tmp_path: Path, sized: Fix) -> None:
        sized(20_000, 9_000, True)
        for number, strategy in enumerate(["gather", "spill"]):
            command = ["shuffle", *awkward, "-o", f"{tmp_path}/{number}/out-%d.tar", "--strategy", strategy]
            options = [
                "--where",
                "index % 3 != 1",
                "--drop",
                "json",
                "--max-count",
                "9",
                "--on-duplicate",
                "skip",
            ]
            assert main([*command, *options, "-q"]) == 0
        assert content(tmp_path / "0") == content(tmp_path / "1")

    def test_nothing_selected(self, awkward: list[str], tmp_path: Path) -> None:
        out = tmp_path / "out.tar"
        assert (
            main(
                [
                    "shuffle",
                    *awkward,
                    "-o",
                    str(out),
                    "--keys",
                    "nothing",
                    "--allow-empty",
                    "--strategy",
                    "spill",
                ]
            )
            == 0
        )
        assert out.read_bytes() == bytes(1024)

    def test_inputs_that_can_be_read_only_once(self, tmp_path: Path, sized: Fix) -> None:
        names = write_shards(tmp_path / "in", [numbered(9, "a"), numbered(9, "b")])
        subprocess.run(["gzip", "-k", names[0]], check=True)
        piped = [f"{names[0]}.gz", f"pipe:cat {names[1]}"]
        by_gather = shuffled(names, tmp_path / "gather", strategy="gather")
        sized(5_000, 5_000, True)
        assert shuffled(piped, tmp_path / "spill") == by_gather

    @pytest.mark.exhaustive
    def test_random_sets(self, tmp_path: Path, sized: Fix) -> None:
        rng = random.Random(8)
        for number in range(12):
            shards: list[list[Members]] = [
                [
                    sample(f"{shard}-{n}", n, [rng.choice([0, 1, 600, 9000, 70_000])])
                    for n in range(rng.randrange(12))
                ]
                for shard in range(rng.randrange(1, 5))
            ]
            folder = tmp_path / str(number)
            folder.mkdir()
            how: dict[str, Any] = rng.choice([{}, {"format": tarfile.GNU_FORMAT, "mode": 0o600}])
            names = write_shards(folder / "in", shards, **how)
            by_gather = shuffled(names, folder / "gather", strategy="gather")
            sized(rng.choice([1, 50_000, 200_000]), rng.choice([1, 50_000, 200_000]), rng.random() < 0.5)
            assert shuffled(names, folder / "spill") == by_gather


class TestTrouble:
    def request(self, names: list[str], folder: Path, **more: Any) -> Request:
        return Request(names, f"{folder}/out-%06d.tar", jobs=1, strategy="spill", **more)

    @pytest.mark.parametrize("loaded", [True, False])
    def test_an_input_that_shrinks(self, tmp_path: Path, sized: Fix, loaded: bool) -> None:
        names = write_shards(tmp_path / "in", [numbered(9, "a"), numbered(9, "b")])
        sized(4_000, 4_000, loaded)
        plan = make_plan(self.request(names, tmp_path), ShuffledOrder())
        os.truncate(names[1], 5_000)
        with pytest.raises(DataError) as caught:
            run_plan(plan)
        assert (caught.value.code, caught.value.shard) == ("changed", names[1])
        assert outputs(tmp_path) == []

    def test_other_bytes_are_told_by_the_name_and_place_of_the_input(self, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(9, "a"), numbered(9, "b")])
        plan = make_plan(self.request(names, tmp_path), ShuffledOrder())
        data = bytearray(Path(names[1]).read_bytes())
        at = data.index(b"b004.cls")
        data[at] ^= 1
        Path(names[1]).write_bytes(data)
        with pytest.raises(DataError) as caught:
            run_plan(plan)
        error = caught.value
        assert (error.code, error.shard, error.offset) == ("changed", names[1], at)
        assert "sample 4" in str(error)

    def test_too_little_room_is_told_before_anything_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = write_shards(tmp_path / "in", [numbered(9)])
        monkeypatch.setattr(scratch.Scratch, "free_bytes", lambda _: 20_000)
        (tmp_path / "tmp").mkdir()
        with pytest.raises(OutputError) as caught:
            shuffle(self.request(names, tmp_path, tmp=str(tmp_path / "tmp")))
        assert "needs 32.3 kB" in str(caught.value)
        assert "20.0 kB free" in str(caught.value)
        assert "--tmp" in str(caught.value.hint)
        assert "--strategy gather" in str(caught.value.hint)
        assert list((tmp_path / "tmp").iterdir()) == outputs(tmp_path) == []

    def test_a_scratch_folder_that_is_not_there(self, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(9)])
        ran = wds(
            "shuffle", *names, "-o", tmp_path / "o.tar", "--strategy", "spill", "--tmp", tmp_path / "no"
        )
        assert ran.code == 4
        assert "--tmp DIR" in ran.err
        with pytest.raises(UsageError):
            scratch.Scratch("-")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("jobs", ["1", "2"])
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
    def test_nothing_is_left_after_a_signal(self, tmp_path: Path, jobs: str, number: int) -> None:
        names = write_shards(tmp_path / "in", [numbered(400, f"s{n}/", [50_000]) for n in range(4)])
        work = tmp_path / "tmp"
        work.mkdir()
        command = [sys.executable, "-m", "wdscli", "shuffle", *names, "-o", f"{tmp_path}/out-%03d.tar"]
        process = subprocess.Popen(
            [*command, "--strategy", "spill", "--tmp", str(work), "-j", jobs, "--max-count", "100", "-q"],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while not list(work.glob("*/*")) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.001)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(30) in (130, 143)
        assert list(work.iterdir()) == []
        assert list(tmp_path.glob("*.json")) == list(tmp_path.glob(".*.tmp")) == []

    def test_leftovers_of_a_killed_run_do_no_harm(self, awkward: list[str], tmp_path: Path) -> None:
        left = tmp_path / "tmp" / "wds-0123456789abcdef"
        left.mkdir(parents=True)
        (left / "spill-1").write_bytes(b"old")
        by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather")
        assert shuffled(awkward, tmp_path / "spill", tmp=str(tmp_path / "tmp")) == by_gather
        assert list((tmp_path / "tmp").iterdir()) == [left]


@pytest.mark.exhaustive
def test_scratch_space_in_this_process(awkward: list[str], tmp_path: Path) -> None:
    """No worker reaches it, so there are none."""
    by_gather = shuffled(awkward, tmp_path / "gather", strategy="gather")
    assert shuffled(awkward, tmp_path / "spill", tmp="memory://scratch", jobs=2) == by_gather


class TestTelling:
    def test_both_passes_are_shown(self, awkward: list[str], tmp_path: Path) -> None:
        seen: list[tuple[str, int | None]] = []
        moved: dict[str, int] = {}

        class Watch:
            def start(self, what: str, total: int | None, unit: str) -> None:
                seen.append((what, total))
                moved[what] = 0

            def advance(self, amount: int) -> None:
                moved[seen[-1][0]] += amount

            def finish(self) -> None: ...
            def warn(self, message: str) -> None: ...
            def note(self, message: str) -> None: ...

        wanted = Request(
            awkward, f"{tmp_path}/out.tar", strategy="spill", on_duplicate="skip", cuts=Cuts(shards=1), jobs=1
        )
        report: ReorderReport = shuffle(wanted, progress=Watch())
        assert [what for what, _ in seen] == ["reading headers", "spilling", "writing"]
        assert moved["writing"] == report.bytes_out
        assert 3_000_000 < moved["spilling"] <= (seen[1][1] or 0)

    def test_the_command_says_which_and_why(self, awkward: list[str], tmp_path: Path) -> None:
        options = [*awkward, "--on-duplicate", "skip", "--strategy", "spill", "--json", "-v"]
        told = wds("shuffle", *options, "-o", tmp_path / "o.tar")
        assert "strategy spill: as --strategy asks" in told.err
        assert told.objects[-1]["strategy"] == "spill"


class TestObjectStores:
    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize(("chunk", "bucket"), [(20_000, 30_000), (1, 1 << 30), (1 << 30, 1 << 30)])
    def test_scratch_space_on_one(self, s3: S3, tmp_path: Path, sized: Fix, chunk: int, bucket: int) -> None:
        names = write_awkward(tmp_path / "in")
        place = s3.bucket(f"scratch{chunk}-{bucket}")
        by_gather = shuffled(names, tmp_path / "gather", strategy="gather")
        sized(chunk, bucket, True)
        objects: list[str] = []
        original = spill.run_tasks

        def then_look(*args: Any, **more: Any) -> Iterator[int]:
            yield from original(*args, **more)
            objects.extend(s3.names(place))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spill, "run_tasks", then_look)
            assert shuffled(names, tmp_path / "spill", tmp=f"s3://{place}/t") == by_gather
        assert (len(objects) > 3) == (chunk < 1 << 30)
        assert objects
        assert all(name.startswith("t/wds-") for name in objects)
        assert s3.names(place) == s3.pending(place) == []

    @pytest.mark.exhaustive
    def test_copies_too(self, s3: S3, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(9)])
        place = s3.bucket("copies")
        found = shuffled([f"pipe:cat {names[0]}"], tmp_path / "a", tmp=f"s3://{place}", strategy="gather")
        plain = shuffled(names, tmp_path / "b", strategy="gather")
        assert found["out-000000.tar"] == plain["out-000000.tar"]
        assert s3.names(place) == []

    @pytest.mark.exhaustive(sample=False)
    def test_inputs_and_outputs_on_one(self, s3: S3, tmp_path: Path, sized: Fix, running_core: str) -> None:
        place = s3.bucket(f"inputs-{running_core}")
        for number, members in enumerate([numbered(9, "a"), numbered(5, "b")]):
            s3.client.put_object(
                Bucket=place, Key=f"in-{number}.tar", Body=tar_of([m for one in members for m in one])
            )
        names = [f"s3://{place}/in-{number}.tar" for number in range(2)]
        by_gather = shuffled(names, tmp_path / "gather", strategy="gather")
        for loaded in (True, False):
            sized(10_000, 1 << 20, loaded)
            assert shuffled(names, tmp_path / f"spill{loaded}") == by_gather
        shuffle(Request(names, f"s3://{place}/out-%d.tar", strategy="spill", cuts=Cuts(shards=1), jobs=1), 5)
        assert samples_of(s3.get(place, "out-0.tar"))[0] == samples_of(by_gather["out-000000.tar"])[0]

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("piece", [pytest.param(700, marks=EXHAUSTIVE), 1 << 26])
    def test_long_ranges_are_read_into_place(
        self, s3: S3, tmp_path: Path, sized: Fix, monkeypatch: pytest.MonkeyPatch, piece: int
    ) -> None:
        place = s3.bucket(f"long{piece}")
        data = tar_of([member for one in numbered(60) for member in one])
        s3.client.put_object(Bucket=place, Key="in.tar", Body=data)
        by_gather = shuffled([f"s3://{place}/in.tar"], tmp_path / "gather", strategy="gather")
        sized(30_000, 20_000, True)
        monkeypatch.setattr(scatter, "LONG_RANGE_BYTES", 1)
        monkeypatch.setattr(scatter, "FILL_BYTES", piece)
        names = []
        original = RemoteSource.start_fill
        monkeypatch.setattr(
            RemoteSource, "start_fill", lambda self, *args: names.append(self.name) or original(self, *args)
        )
        tmp = f"s3://{place}/t"
        assert shuffled([f"s3://{place}/in.tar"], tmp_path / "spill", tmp=tmp) == by_gather
        assert names.count(f"s3://{place}/in.tar") >= len(data) // min(piece, 30_000)

    @pytest.mark.parametrize("workers", [1, 4])
    def test_chunks_and_buckets_fill_the_memory(self, workers: int) -> None:
        contents = SimpleNamespace(row_lists=[None], inputs=[])
        plan: Any = SimpleNamespace(samples=1000, contents=contents)
        space, memory = scratch.ScratchPass("s3://bucket/t", is_local=False), 512 << 20
        for total in (10, 100 << 20, 4 << 30):
            sizes = spill.sizes_for(plan, space, limits_for(memory, 1), total, workers)
            assert sizes.bucket + spill.SENDING_BYTES + spill.CLIENT_BYTES + MAIN_BYTES <= memory
            assert sizes.chunk + spill.CLIENT_BYTES + MAIN_BYTES <= memory
            # Each worker has a chunk, and all chunks are equal.
            assert -(-total // sizes.chunk) == (workers if total < 1 << 30 else 14)
        assert sizes.bucket > memory // 3

    def test_a_bucket_is_fetched_by_few_requests(
        self, s3: S3, tmp_path: Path, sized: Fix, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = write_shards(tmp_path / "in", [numbered(60, "a"), numbered(60, "b")])
        place = s3.bucket("requests")
        reads = []
        original = RemoteSource._fetch
        monkeypatch.setattr(
            RemoteSource, "_fetch", lambda self, *args: reads.append(args[:2]) or original(self, *args)
        )
        sized(1 << 30, 100_000, True, rows=60)
        shuffled(names, tmp_path / "a", tmp=f"s3://{place}", cuts=Cuts(shards=2))
        # Two chunks; five buckets, some of which two shards share.
        assert 8 <= len(reads) <= 14
