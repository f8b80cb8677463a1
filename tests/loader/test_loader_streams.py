"""Shards that can only be read from front to back: every kind of them, shared, shuffled, broken, and gone on with."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from shard_cases import numbered, sample, tar_of, write_shards
from storage_servers import web_server

import wdscli.loader as wds
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader.place.ranks import Batches, Share
from wdscli.loader.stages.generators import through_buffer
from wdscli.ordering import mix

pytestmark = pytest.mark.filterwarnings("ignore:ranks may see", "ignore:This DataLoader will create")

COUNTS = (5, 8, 1, 12, 7, 3, 9)
Make = Callable[..., wds.WebDataset]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Seven shards of 45 samples in all."""
    shards = [numbered(count, f"s{shard}-", sizes=(10,)) for shard, count in enumerate(COUNTS)]
    return write_shards(tmp_path / "in", shards)


@pytest.fixture
def keys() -> list[str]:
    return [f"s{shard}-{number:03d}" for shard, count in enumerate(COUNTS) for number in range(count)]


@pytest.fixture
def make(paths: list[str]) -> Make:
    """The shards by ``cat``; what comes out are keys."""

    def open_them(**how: Any) -> wds.WebDataset:
        return wds.WebDataset([f"pipe:cat {path}" for path in paths], **how).map(key_of)

    return open_them


def key_of(one: dict[str, Any]) -> str:
    return str(one["__key__"])


class TestKinds:
    def test_a_command(self, paths: list[str], keys: list[str]) -> None:
        data = wds.WebDataset(f"pipe:cat {' '.join(paths[:1])}")
        [first, *_] = found = list(data)
        assert [one["__key__"] for one in found] == keys[:5]
        assert first == {
            "__key__": "s0-000",
            "__url__": f"pipe:cat {paths[0]}",
            **{name.partition(".")[2]: payload for name, payload in sample("s0-000", 0, (10,))},
        }

    def test_the_same_samples_as_from_files(self, paths: list[str]) -> None:
        def without_url(data: Any) -> list[Any]:
            return [{name: value for name, value in one.items() if name != "__url__"} for one in data]

        streamed = wds.WebDataset([f"pipe:cat {path}" for path in paths])
        assert without_url(streamed) == without_url(wds.WebDataset(paths))

    @pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
    @pytest.mark.parametrize("name", ["a.tar.gz", "a.tar"])
    def test_compressed(self, tmp_path: Path, keys: list[str], packed: Any, name: str) -> None:
        members = [member for one in numbered(5, "s0-") for member in one]
        (tmp_path / name).write_bytes(packed(tar_of(members)))
        assert [key_of(one) for one in wds.WebDataset(f"{tmp_path}/{name}")] == keys[:5]

    def test_compressed_with_a_manifest(self, tmp_path: Path, paths: list[str], keys: list[str]) -> None:
        packed = []
        for path in paths:
            packed.append(path + ".gz")
            Path(packed[-1]).write_bytes(gzip.compress(Path(path).read_bytes()))
        shards = [{"url": os.path.basename(path), "nsamples": n} for path, n in zip(packed, COUNTS)]
        manifest = Path(packed[0]).parent / "gz-manifest.json"
        about = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "gz"}
        manifest.write_text(json.dumps({**about, "shardlist": shards}))
        assert [key_of(one) for one in wds.WebDataset(str(manifest))] == keys

    @pytest.mark.parametrize("mode", ["plain", "chunked", "ranges"])
    def test_web_servers(self, paths: list[str], keys: list[str], mode: str) -> None:
        with web_server(mode) as web:
            for path in paths:
                web.files[os.path.basename(path)] = Path(path).read_bytes()
            data = wds.WebDataset([web.url(os.path.basename(path)) for path in paths])
            assert data.is_stream == (mode != "ranges")
            assert [key_of(one) for one in data] == keys
            if mode != "ranges":
                shuffled = list(data.shuffle(10).map(key_of))
                assert shuffled != keys
                assert sorted(shuffled) == keys

    def test_a_set_of_both_kinds_is_streamed_with_a_note(self, paths: list[str], keys: list[str]) -> None:
        with pytest.warns(UserWarning, match=r"pipe:cat .* can only be streamed, .* all 7 shards"):
            data = wds.WebDataset([*paths[:3], f"pipe:cat {paths[3]}", *paths[4:]])
        assert [key_of(one) for one in data] == keys

    def test_named_pipes_as_sagemakers_are_opened_once_and_in_turn(
        self, tmp_path: Path, paths: list[str], keys: list[str]
    ) -> None:
        """A folder whose files come from front to back: opening one to look at it would lose its beginning."""
        folder = tmp_path / "train"
        folder.mkdir()
        for path in paths:
            os.mkfifo(folder / os.path.basename(path))

        def feed() -> None:
            for path in paths:
                with open(folder / os.path.basename(path), "wb") as pipe:
                    pipe.write(Path(path).read_bytes())

        thread = threading.Thread(target=feed, daemon=True)
        data = wds.WebDataset([f"{folder}/{os.path.basename(path)}" for path in paths])
        assert data.is_stream
        thread.start()
        assert [key_of(one) for one in data] == keys
        thread.join(10)

    SCRIPT = """
import sys, warnings
import wdscli.loader as wds
data = wds.WebDataset("-").map(lambda sample: sample["__key__"])
print(*data)
try:
    print(*data)
except Exception as error:
    print(error)
assert not {"torch", "fsspec"} & set(sys.modules)
"""

    def test_standard_input_once(self, paths: list[str], keys: list[str]) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                self.SCRIPT.replace("except wds.WebDataset.__mro__[-1] as error: pass\n", ""),
            ],
            input=Path(paths[1]).read_bytes(),
            capture_output=True,
            timeout=60,
            check=True,
        )
        first, second = done.stdout.decode().splitlines()[:2]
        assert first.split() == keys[5:13]
        assert "standard input was read already" in second

    def test_fields(self, paths: list[str]) -> None:
        found = list(wds.WebDataset(f"pipe:cat {paths[0]}", fields=["cls"]))
        assert [set(one) for one in found] == [{"__key__", "__url__", "cls"}] * 5

    def test_what_was_read_is_counted(self, paths: list[str]) -> None:
        data = wds.WebDataset(f"pipe:cat {paths[0]}").shuffle(3).batched(2)
        raw = list(wds.WebDataset(paths[0]))
        list(data)
        stats = data.stats()
        assert stats["samples"] == len(raw) == 5
        assert stats["bytes"] == sum(len(one[field]) for one in raw for field in one if field[0] != "_")

    def test_fields_are_in_lower_case(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tar"
        path.write_bytes(tar_of([("a.JPG", b"1"), ("a.Cls", b"2")]))
        [one] = wds.WebDataset(f"pipe:cat {path}")
        assert (one["jpg"], one["cls"]) == (b"1", b"2")
        [one] = wds.WebDataset(f"pipe:cat {path}", rename_files=lambda name: name.replace("JPG", "png"))
        assert (one["png"], one["cls"]) == (b"1", b"2")
        path.write_bytes(tar_of([("a.JPG", b"1"), ("a.jpg", b"2")]))
        [one] = wds.WebDataset(f"pipe:cat {path}")
        assert (one["JPG"], one["jpg"]) == (b"1", b"2")

    def test_an_iteration_left_early_leaves_no_command(self, paths: list[str]) -> None:
        data = wds.WebDataset(f"pipe:cat {paths[3]}; exec sleep 100")
        iterator = iter(data)
        next(iterator)
        del iterator
        left = subprocess.run(
            ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True
        )
        assert "sleep 100" not in left.stdout


def buffered(items: Iterator[int], size: int, initial: int, state: int) -> Iterator[int]:
    draws = itertools.count()
    return through_buffer(items, size, initial, lambda _: mix(state ^ next(draws)))


class TestShuffle:
    def test_a_buffer_of_webdatasets_kind(self) -> None:
        """Draw by draw, from the words of the docstring."""

        def by_the_book(items: list[int], size: int, initial: int, key: int) -> Iterator[int]:
            held: list[int] = []
            draw = 0
            while items or held:
                if items:
                    held.append(items.pop(0))
                    if len(held) < size and items:
                        held.append(items.pop(0))
                if len(held) >= initial or not items:
                    place = mix(key ^ draw) % len(held)
                    held[place], held[-1] = held[-1], held[place]
                    draw += 1
                    yield held.pop()

        for size, initial in (7, 3), (2, 2), (50, 10), (10, 10), (200, 100):
            found = list(buffered(iter(range(100)), size, initial, 77))
            assert found == list(by_the_book(list(range(100)), size, initial, 77))
            assert sorted(found) == list(range(100))

    def test_the_first_comes_after_initial_samples(self) -> None:
        taken: list[int] = []

        def source() -> Iterator[int]:
            for number in range(1000):
                taken.append(number)
                yield number

        next(buffered(source(), 100, 20, 1))
        assert len(taken) == 20

    def test_order_is_of_seed_and_epoch(self, make: Make, keys: list[str]) -> None:
        data = make(seed=4).shuffle(10, initial=5)
        epochs = [list(data) for _ in range(3)]
        assert all(sorted(epoch) == keys for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2]
        again = make(seed=4).shuffle(10, initial=5)
        again.set_epoch(2)
        assert list(again) == epochs[2]
        assert list(make(seed=5).shuffle(10, initial=5)) != epochs[0]
        assert list(make(seed=4).shuffle(10, initial=9)) != epochs[0]
        assert list(make(seed=4).shuffle(11, initial=5)) != epochs[0]

    def test_workers_draw_by_themselves(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path / "same", [numbered(30, f"{shard}-", sizes=()) for shard in range(2)])
        orders = []
        for rank in range(2):
            data = wds.WebDataset([f"pipe:cat {path}" for path in paths], rank=rank, world_size=2)
            orders.append([key_of(one)[2:] for one in data.shuffle(10)])
        assert sorted(orders[0]) == sorted(orders[1])
        assert orders[0] != orders[1]

    def test_only_the_shards(self, make: Make) -> None:
        data = make(shardshuffle=True)
        orders = []
        for _ in range(2):
            found = list(data)
            order = list(dict.fromkeys(key[:2] for key in found))
            assert found == [f"{shard}-{n:03d}" for shard in order for n in range(COUNTS[int(shard[1])])]
            orders.append(order)
        assert orders[0] != orders[1]

    def test_nothing_is_shuffled_unless_asked(self, make: Make, keys: list[str]) -> None:
        assert list(make()) == list(make().shuffle(0)) == keys


class TestStages:
    def test_webdatasets_pipeline(self, paths: list[str]) -> None:
        data = (
            wds.WebDataset([f"pipe:cat {path}" for path in paths], shardshuffle=True)
            .shuffle(20)
            .decode()
            .to_tuple("cls", "__key__")
            .batched(8, collation_fn=list)
        )
        batches = list(data)
        assert [len(batch) for batch in batches] == [8, 8, 8, 8, 8, 5]
        assert sorted(key for batch in batches for _, key in batch)[0] == "s0-000"

    def test_of_positions(self, make: Make, keys: list[str]) -> None:
        assert list(make().slice(3, 30, 4)) == keys[3:30:4]
        thinned = list(make().rsample(0.5))
        assert 10 < len(thinned) < 35
        assert list(make().select(lambda key: key[1] == "3").listed(5)) != []
        assert list(make().listed(4).unlisted()) == keys

    def test_epochs_of_other_lengths(self, make: Make, keys: list[str]) -> None:
        assert list(make().repeat(2)) == keys * 2
        data = make().listed(4).with_epoch(20)
        assert len(data) == 20
        assert [len(list(data)) for _ in range(2)] == [20, 20]
        shuffled = list(make(shardshuffle=True).repeat(3))
        passes = [shuffled[at : at + 45] for at in (0, 45, 90)]
        assert all(sorted(one) == keys for one in passes)
        assert passes[0] != passes[1] != passes[2]

    def test_resampled(self, make: Make, keys: list[str]) -> None:
        found = list(make(resampled=True).with_epoch(100))
        assert len(found) == 100
        assert sorted(found[:45]) == sorted(found[45:90]) == keys
        assert found[:45] != found[45:90]

    def test_nothing_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(tar_of([]))
        with pytest.raises(InputError, match="no samples in this dataset"):
            list(wds.WebDataset(f"pipe:cat {tmp_path}/a.tar"))
        assert list(wds.WebDataset(f"pipe:cat {tmp_path}/a.tar", empty_check=False)) == []
        assert list(wds.WebDataset(f"pipe:cat {tmp_path}/a.tar", empty_check=False).repeat()) == []

    def test_length_is_not_known(self, make: Make) -> None:
        with pytest.raises(TypeError, match="length of this dataset is unknown"):
            len(make())
        assert len(make().with_length(45)) == 45

    def test_threads(self, make: Make, keys: list[str]) -> None:
        assert list(make(threads=3).listed(4).unlisted()) == keys

    @pytest.mark.parametrize(
        ("how", "what"),
        [
            ({"shuffle": "full"}, 'shuffle="full"'),
            ({"tail": "pad"}, 'tail="pad"'),
            ({"tail": "drop"}, 'tail="drop"'),
            ({"on_error": "substitute"}, 'on_error="substitute"'),
            ({"where": "cls == 1"}, "where=, keys= and sample="),
        ],
    )
    def test_what_needs_places_is_refused(self, make: Make, how: Any, what: str) -> None:
        with pytest.raises(UsageError, match=what):
            make(**how)

    def test_pickles(self, make: Make, keys: list[str]) -> None:
        assert list(pickle.loads(pickle.dumps(make().listed(100)))) == [keys]


class TestShares:
    @pytest.mark.parametrize(("world", "workers"), [(1, 1), (2, 1), (1, 3), (2, 2), (3, 4), (8, 1)])
    @pytest.mark.parametrize("shuffled", [False, True])
    def test_every_sample_once(
        self, make: Make, keys: list[str], world: int, workers: int, shuffled: bool
    ) -> None:
        found = []
        for rank in range(world):
            data = make(rank=rank, world_size=world)
            data = data.shuffle(10) if shuffled else data
            for worker in range(workers):
                found += self.of_worker(data, Share(rank, world, worker, workers))
        assert sorted(found) == keys

    @staticmethod
    def of_worker(data: Any, share: Share) -> list[str]:
        start = data._state.start._replace(batch=share.worker)
        batches = Batches(1 << 62, 1, share)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wdscli.loader.streams.warnings.warn", lambda *_, **__: None)
            return [key_of(one) for read in data._streamed(batches, start) for one in read.samples]

    def test_ranks_first_then_workers(self, make: Make) -> None:
        shards = [
            sorted({key[:2] for key in self.of_worker(make(rank=r, world_size=2), Share(r, 2, w, 2))})
            for r in range(2)
            for w in range(2)
        ]
        assert shards == [["s0", "s4"], ["s2", "s6"], ["s1", "s5"], ["s3"]]

    def test_those_without_a_shard_are_told(self, make: Make, keys: list[str]) -> None:
        data = make(rank=7, world_size=9)
        with pytest.warns(UserWarning, match="7 shards .* 9 workers: worker 0 of rank 7 gets no shard"):
            assert list(data) == []
        with pytest.warns(UserWarning, match="rank 8 gets no shard"):
            assert list(make(rank=8, world_size=9).repeat()) == []

    @pytest.mark.filterwarnings("default:ranks may see")
    def test_uneven_ranks_are_told_unless_epochs_are_cut(
        self, make: Make, recwarn: pytest.WarningsRecorder
    ) -> None:
        cut = make(rank=0, world_size=2).with_epoch(10)
        assert len(list(cut)) == len(list(make(rank=1, world_size=2).with_epoch(10))) == 10
        assert not [one for one in recwarn if "ranks may see" in str(one.message)]
        with pytest.warns(UserWarning, match="ranks may see different numbers"):
            list(make(rank=0, world_size=2))


BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) * 2 // 3 + 100],
    "corrupt": lambda data: data[: 12 * 1024] + b"\x07" * 512 + data[12 * 1024 + 512 :],
}


class TestErrors:
    def test_a_failing_command_is_named(self, paths: list[str], keys: list[str]) -> None:
        data = wds.WebDataset(f"pipe:cat {paths[1]}; exit 3")
        with pytest.raises(InputError, match=r"pipe:cat .*; exit 3 failed: exit status 3"):
            list(data)

    @pytest.mark.parametrize("how", [{"on_error": "skip"}, {"handler": wds.warn_and_continue}])
    def test_a_failing_command_is_left_out_and_counted(
        self, paths: list[str], keys: list[str], how: dict[str, Any]
    ) -> None:
        pipes = [
            f"pipe:cat {paths[0]}",
            f"pipe:cat {paths[1]}; exit 3",
            "pipe:exit 4",
            f"pipe:cat {paths[2]}",
        ]
        data = wds.WebDataset(pipes, **how)
        with pytest.warns(UserWarning, match="exit status 3"):
            found = [key_of(one) for one in data]
        # The last sample of a shard is whole when the shard is.
        assert found == [key for key in keys if key[:2] in ("s0", "s1", "s2") and key != "s1-007"]
        assert data.stats()["dropped"] == {pipe: {"read: unreadable": 1} for pipe in pipes[1:3]}
        with pytest.warns(UserWarning, match="exit status 4"), pytest.raises(InputError, match="no samples"):
            list(wds.WebDataset("pipe:exit 4", **how))

    def test_no_such_command(self) -> None:
        with pytest.raises(InputError, match="pipe:no-such-program-here failed: exit status 127"):
            list(wds.WebDataset("pipe:no-such-program-here"))

    @pytest.mark.parametrize("how", BREAKS)
    def test_a_broken_shard(self, paths: list[str], keys: list[str], make: Make, how: str) -> None:
        path = Path(paths[3])
        path.write_bytes(BREAKS[how](path.read_bytes()))
        with pytest.raises(DataError) as caught:
            list(make())
        assert paths[3] in str(caught.value)
        data = make(on_error="skip")
        with pytest.warns(UserWarning, match="skipped"):
            found = list(data)
        others = [key for key in keys if key[:2] != "s3"]
        assert [key for key in found if key[:2] != "s3"] == others
        assert 0 < len(found) - len(others) < 12
        [(shard, reasons)] = data.stats()["dropped"].items()
        assert shard == f"pipe:cat {paths[3]}"
        assert sum(reasons.values()) == 1

    @pytest.mark.parametrize("how", BREAKS)
    def test_webdatasets_handlers(self, paths: list[str], keys: list[str], how: str) -> None:
        path = Path(paths[3])
        path.write_bytes(BREAKS[how](path.read_bytes()))
        pipes = [f"pipe:cat {path}" for path in paths]
        found = list(wds.WebDataset(pipes, handler=wds.ignore_and_continue).map(key_of))
        assert found[-9:] == keys[-9:]
        for size in 0, 30:
            stopped = list(wds.WebDataset(pipes, handler=wds.ignore_and_stop).shuffle(size).map(key_of))
            assert 0 < len(stopped) < 45
            assert len(set(stopped)) == len(stopped)
        again = list(wds.WebDataset(pipes, handler=wds.ignore_and_stop).repeat(3).map(key_of))
        assert len(set(again)) == len(again)

    def test_an_epoch_that_a_handler_ends_at_once_is_not_called_empty(self) -> None:
        pipes = ["pipe:false", "pipe:false"]
        assert list(wds.WebDataset(pipes, handler=wds.ignore_and_stop)) == []
        with pytest.raises(InputError, match="no samples in this dataset"):
            list(wds.WebDataset(pipes, handler=wds.ignore_and_continue))

    def test_a_shard_that_is_not_there(self, make: Make, keys: list[str]) -> None:
        with web_server("plain") as web:
            web.files["a.tar"] = tar_of([member for one in numbered(3) for member in one])
            data = wds.WebDataset([web.url("a.tar"), web.url("b.tar")], on_error="skip")
            with pytest.warns(UserWarning, match="b.tar"):
                assert len(list(data)) == 3
            with pytest.raises(InputError, match=r"b\.tar"):
                list(wds.WebDataset([web.url("a.tar"), web.url("b.tar")]))

    def test_a_cut_answer(self, paths: list[str]) -> None:
        with web_server("short") as web:
            web.files["a.tar"] = Path(paths[3]).read_bytes()
            with pytest.raises((InputError, DataError)):
                list(wds.WebDataset(web.url("a.tar")))


STREAMS: dict[str, Callable[..., Any]] = {
    "plain": lambda make, **how: make(**how).listed(4),
    "shards": lambda make, **how: make(shardshuffle=True, seed=2, **how).listed(4),
    "buffer": lambda make, **how: make(**how).shuffle(9, initial=4).listed(4),
    "samples": lambda make, **how: make(**how).shuffle(9),
    "gaps": lambda make, **how: make(**how).select(lambda key: key[-1] in "0369").listed(4),
    "spread": lambda make, **how: make(**how).listed(4).unlisted(),
    "generator": lambda make, **how: make(**how).slice(2, 40).listed(3),
    "epochs": lambda make, **how: make(shardshuffle=True, **how).repeat(2).listed(4),
    "threads": lambda make, **how: make(threads=2, **how).listed(4),
    "together": lambda make, **how: make(batch_size=4, shardshuffle=True, **how),
}


class TestState:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("kind", STREAMS)
    def test_goes_on_from_anywhere(self, make: Make, kind: str) -> None:
        build = STREAMS[kind]
        data = build(make)
        expected = [*data, *data]
        for stopped in range(0, len(expected), 1 + len(expected) // 8):
            data = build(make)
            given = list(islice((one for _ in range(2) for one in data), stopped))
            state = json.loads(json.dumps(data.state_dict()))
            assert len(json.dumps(state)) < 1000
            other = build(make)
            other.load_state_dict(state)
            while other.epoch < 2:
                given += list(other)
            assert given == expected

    def test_of_other_ranks_and_workers_is_refused_by_name(self, make: Make) -> None:
        data = make(rank=0, world_size=2).listed(4)
        next(iter(data))
        state = data.state_dict()
        other = make().listed(8)
        other.load_state_dict(state)
        with pytest.raises(
            UsageError, match=r"was saved by \(2, 1\) ranks and workers, but this run has \(1, 1\)"
        ):
            list(other)

    def test_of_another_rank_goes_on_too(self, make: Make) -> None:
        """The first rank's state, which says where that one was in its shards, is everybody's."""
        first, second = (make(rank=rank, world_size=2).listed(3) for rank in range(2))
        expected = list(second)
        next(iter(first))
        other = make(rank=1, world_size=2).listed(3)
        other.load_state_dict(first.state_dict())
        assert list(other) == expected[1:]

    def test_of_other_data_or_another_order_is_refused(self, make: Make, paths: list[str]) -> None:
        state = make().state_dict()
        with pytest.raises(UsageError, match="another addresses"):
            wds.WebDataset(f"pipe:cat {paths[0]}").load_state_dict(state)
        with pytest.raises(UsageError, match="another stream"):
            make().shuffle(10).load_state_dict(state)

    def test_batches_do_not_say_where_it_is(self, make: Make) -> None:
        with pytest.raises(UsageError, match="cannot save the position in a stream"):
            make().state_dict(batches=3)


class TestLoaders:
    def expected(self, make: Make, workers: int) -> list[Any]:
        """What a DataLoader makes of it: a batch of each worker in turn."""
        torch = pytest.importorskip("torch.utils.data")
        loader = torch.DataLoader(make().shuffle(9).listed(4), batch_size=None, num_workers=workers)
        return list(loader)

    @pytest.mark.parametrize("workers", [0, 2, 3])
    def test_dataloader(self, make: Make, keys: list[str], workers: int) -> None:
        found = self.expected(make, workers)
        assert sorted(key for batch in found for key in batch) == keys

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("loader", ["WebLoader", "StatefulDataLoader"])
    def test_a_state_goes_on_with_as_many_workers(self, make: Make, workers: int, loader: str) -> None:
        stateful = pytest.importorskip("torchdata.stateful_dataloader")

        def build(data: Any, workers: int) -> Any:
            if loader == "WebLoader":
                return wds.WebLoader(data, num_workers=workers)
            return stateful.StatefulDataLoader(data, batch_size=None, num_workers=workers)

        expected = self.expected(make, workers)
        for stopped in (1, 7, len(expected) - 1):
            first = build(make().shuffle(9).listed(4), workers)
            iterator = iter(first)
            given = list(islice(iterator, stopped))
            state = first.state_dict()
            del iterator
            other = build(make().shuffle(9).listed(4), workers)
            other.load_state_dict(state)
            assert given + list(other) == expected

    def test_webloader_refuses_other_workers(self, make: Make) -> None:
        pytest.importorskip("torch")
        loader = wds.WebLoader(make().listed(4), num_workers=2)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        other = wds.WebLoader(make().listed(4), num_workers=1)
        other.load_state_dict(state)
        with pytest.raises(
            UsageError, match=r"was saved by \(1, 2\) ranks and workers, but this run has \(1, 1\)"
        ):
            list(other)

    def test_workers_do_not_read_standard_input(self) -> None:
        torch = pytest.importorskip("torch.utils.data")
        with pytest.raises(InputError, match="num_workers=0"):
            list(torch.DataLoader(wds.WebDataset("-"), batch_size=None, num_workers=1))
