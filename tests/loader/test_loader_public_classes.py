"""What public code puts in the place of webdataset's insides, webdataset being the oracle: classes with an iteration of
their own, steps of ``tariterators`` that are replaced, openers of addresses that only the program knows."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

import wdscli.loader as ours
from wdscli.errors import InputError, UsageError
from wdscli.loader.compat import gopen as opening
from wdscli.shards import ShardWriter
from wdscli.storage import OPENERS

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore")
BOTH = pytest.mark.parametrize("wds", [theirs, ours], ids=["webdataset", "wdscli"])
COUNT = 12


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("classes")
    with ShardWriter(str(folder / "s-%06d.tar"), max_count=COUNT // 3) as writer:
        for number in range(COUNT):
            writer.write(f"{number:03d}", {"cls": b"%d" % number, "txt": b"picture"})
    return [str(folder / f"s-{number:06d}.tar") for number in range(3)]


def even(wds: Any) -> Any:
    """A class that gives a part of what its base gives, as filters of tables and of meshes do."""

    class Even(wds.WebDataset):
        def __init__(self, urls: Any, **more: Any) -> None:
            super().__init__(urls, shardshuffle=False, **more)

        def __iter__(self) -> Any:
            for sample in super().__iter__():
                if int(sample["cls"]) % 2 == 0:
                    yield {"cls": int(sample["cls"])}

    return Even


class TestAClassWithAnIterationOfItsOwn:
    @pytest.mark.exhaustive
    @BOTH
    def test_in_a_loader(self, wds: Any, shards: list[str]) -> None:
        loader = wds.WebLoader(even(wds)(shards), batch_size=2, num_workers=2)
        for _ in range(2):
            seen = sorted(int(number) for batch in loader for number in batch["cls"])
            assert seen == list(range(0, COUNT, 2))

    @BOTH
    def test_at_the_beginning_of_a_pipeline(self, wds: Any, shards: list[str]) -> None:
        data = wds.DataPipeline(even(wds)(shards), wds.map(lambda sample: sample["cls"]))
        assert list(data) == list(range(0, COUNT, 2))

    @BOTH
    def test_in_a_mix(self, wds: Any, shards: list[str]) -> None:
        sets = [even(wds)(shards[:1]), even(wds)(shards[1:])]
        assert [one["cls"] for one in wds.RoundRobin(sets, longest=True)] == [0, 4, 2, 6, 8, 10]
        assert len(list(wds.RandomMix(sets, longest=True))) == COUNT // 2

    def test_our_own_mix_names_the_class_that_mixes_it(self, shards: list[str]) -> None:
        sets = [even(ours)(shards[:1]), even(ours)(shards[1:])]
        with pytest.raises(UsageError, match="an Even with its own __iter__ cannot be mixed") as caught:
            ours.mix({sets[0]: 1, sets[1]: 2})
        assert "RandomMix" in str(caught.value.hint)

    @BOTH
    def test_that_goes_on_for_ever(self, wds: Any, shards: list[str]) -> None:
        class Forever(wds.WebDataset):
            def __iter__(self) -> Any:
                left = self.iterator()
                while True:
                    try:
                        yield next(left)
                    except StopIteration:
                        left = self.iterator()

        data = Forever(shards, shardshuffle=False)
        assert [int(one["cls"]) for one in islice(iter(data), 20)] == [n % COUNT for n in range(20)]

    @BOTH
    def test_by_a_method_that_webdataset_calls(self, wds: Any, shards: list[str]) -> None:
        class Chosen(wds.WebDataset):
            def iterator(self) -> Any:
                for _ in range(self.repetitions):
                    for sample in self.iterator1():
                        if int(sample["cls"]) > 3:
                            yield sample

        data = Chosen(shards, shardshuffle=False)
        assert [int(one["cls"]) for one in data] == list(range(4, COUNT))
        assert [int(one["cls"]) for one in data.repeat(2)] == [*range(4, COUNT)] * 2
        cut = Chosen(shards, shardshuffle=False).with_epoch(3)
        assert [int(one["cls"]) for one in cut] == [4, 5, 6]

    def test_that_is_cut_gets_another_order_in_the_next_epoch(self, shards: list[str]) -> None:
        class Chosen(ours.WebDataset[Any]):
            def iterator(self) -> Iterator[Any]:
                for sample in self.iterator1():
                    yield int(sample["cls"])

        data = Chosen(shards, shuffle="window").with_epoch(5)
        assert len({tuple(data) for _ in range(4)}) > 1

    @BOTH
    def test_of_a_pipeline_that_counts(self, wds: Any, shards: list[str]) -> None:
        class Finite(wds.DataPipeline):
            def __iter__(self) -> Any:
                return islice(self.iterator(), self.nsamples) if self.nsamples > 0 else self.iterator()

        data = Finite(wds.SimpleShardList(shards), wds.tarfile_to_samples(), wds.to_tuple("cls"))
        assert [int(number) for (number,) in data] == list(range(COUNT))
        assert [int(number) for (number,) in data.with_epoch(15)] == [n % COUNT for n in range(15)]


def test_a_list_of_stages_that_is_changed_is_an_error_that_says_what_to_write(shards: list[str]) -> None:
    data = ours.DataPipeline(ours.split_by_worker, ours.tarfile_to_samples())
    for call in ("insert", "append", "pop"):
        with pytest.raises(AttributeError, match=rf"pipeline\.{call}\(\).*compose\(stage\)"):
            getattr(data.pipeline, call)


class TestAStepThatIsReplaced:
    @BOTH
    def test_grouping(self, wds: Any, shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """As a trainer of sounds does it, for names that come twice."""

        def group_by_keys(data: Any, keys: Any = wds.tariterators.base_plus_ext, **more: Any) -> Any:
            current = None
            for file in filter(None, data):
                prefix, suffix = keys(file["fname"])
                if current is None or prefix != current["__key__"]:
                    if wds.tariterators.valid_sample(current):
                        yield current
                    current = {"__key__": prefix, "__url__": file["__url__"], "mine": True}
                current[suffix] = file["data"]
            yield current

        monkeypatch.setattr(wds.tariterators, "group_by_keys", group_by_keys)
        stages = [wds.tarfile_to_samples(handler=wds.warn_and_continue), wds.shuffle(3)]
        data = wds.DataPipeline(wds.SimpleShardList(shards), *stages, wds.to_tuple("cls", "mine"))
        assert sorted(int(number) for number, mine in data if mine) == list(range(COUNT))

    @BOTH
    def test_opening(self, wds: Any, shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """As toolkits for speech do it, for stores of their own."""

        def url_opener(data: Any, handler: Any = None, **more: Any) -> Any:
            for sample in data:
                yield {**sample, "stream": io.BytesIO(Path(sample["url"][8:]).read_bytes())}

        monkeypatch.setattr(wds.tariterators, "url_opener", url_opener)
        urls = [f"store://{path}" for path in shards]
        data = wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples())
        assert [int(one["cls"]) for one in data] == list(range(COUNT))
        drawn = wds.DataPipeline(wds.ResampledShards(urls), wds.tarfile_to_samples()).with_epoch(7)
        assert len(list(drawn)) == 7


class TestAnOpenerOfOnesOwn:
    @pytest.fixture(autouse=True)
    def forgotten(self) -> Iterator[None]:
        yield
        for wds in (theirs, ours):
            for name in ("mine", "s3"):
                wds.gopen_schemes.pop(name, None)
        OPENERS.clear()

    @BOTH
    @pytest.mark.parametrize("scheme", ["mine", "s3"])
    def test_is_what_a_dataset_reads_by(self, wds: Any, shards: list[str], scheme: str) -> None:
        opened = []

        def open_mine(url: str, mode: str = "rb", bufsize: int = 8192, **more: Any) -> Any:
            opened.append(url)
            return Path(url.partition("://")[2]).open(mode)

        wds.gopen_schemes[scheme] = open_mine
        urls = [f"{scheme}://{path}" for path in shards]
        data = wds.WebDataset(urls, shardshuffle=False).shuffle(5).decode().to_tuple("cls")
        assert sorted(number for (number,) in data) == list(range(COUNT))
        data = wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples())
        assert [int(one["cls"]) for one in data] == list(range(COUNT))
        assert sorted(set(opened)) == urls

    @BOTH
    def test_braces_and_workers(self, wds: Any, shards: list[str]) -> None:
        wds.gopen_schemes["mine"] = lambda url, *args, **more: io.BytesIO(Path(url[7:]).read_bytes())
        url = "mine://" + shards[0].replace("000000.tar", "{000000..000002}.tar")
        data = wds.WebDataset(url, shardshuffle=False).map(lambda sample: int(sample["cls"]))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
        assert sorted(int(number) for batch in loader for number in batch) == list(range(COUNT))

    def test_its_failure_names_the_shard_and_asks_the_handler(self, shards: list[str]) -> None:
        class Body:
            def __init__(self, data: bytes) -> None:
                self.data = io.BytesIO(data)

            def __enter__(self) -> io.BytesIO:
                return self.data

            def __exit__(self, *args: object) -> None:
                self.data.close()

        def body(url: str, *args: Any, **more: Any) -> Any:
            if "000001" in url:
                raise RuntimeError("no token")
            return Body(Path(url[7:]).read_bytes())

        ours.gopen_schemes["mine"] = body
        urls = [f"mine://{path}" for path in shards]
        with pytest.raises(InputError, match=r"s-000001\.tar: no token"):
            list(ours.WebDataset(urls))
        kept = ours.WebDataset(urls, handler=ours.ignore_and_continue)
        assert len(list(kept)) == COUNT * 2 // 3
        assert kept.stats()["dropped"]
        del ours.gopen_schemes["mine"]
        with pytest.raises(InputError, match="no known kind"):
            ours.WebDataset(urls)

    def test_what_is_written_is_not_its_business(self, shards: list[str], tmp_path: Path) -> None:
        opening.gopen_schemes["memory"] = lambda url, *args: (_ for _ in ()).throw(AssertionError)
        pytest.importorskip("fsspec")
        with ours.ShardWriter("memory://classes/a-%03d.tar", maxcount=2) as writer:
            for number in range(3):
                writer.write({"__key__": f"{number}", "cls": number})
        assert writer.shard == 2
        del opening.gopen_schemes["memory"]
        assert len(list(ours.WebDataset("memory://classes/a-{000..001}.tar"))) == 3
        with pytest.raises(UsageError):
            ours.gopen("memory://x", "r")


def shards_in(folder: Path) -> dict[str, list[str]]:
    return {path.name: [one.name for one in tarfile.open(path)] for path in sorted(folder.glob("*.tar"))}


class TestAWriterOfOnesOwn:
    @BOTH
    def test_that_names_its_shards(self, wds: Any, tmp_path: Path) -> None:
        """One of several processes, each of which writes every fourth shard; as code for TPUs does it."""
        closed: list[str] = []

        class Fourth(wds.ShardWriter):
            def next_stream(self) -> None:
                self.finish()
                self.fname = self.pattern % self.shard
                if self.verbose:
                    print(self.fname, self.count, self.size, self.total)
                self.shard += 4
                self.tarstream = wds.TarWriter(self.fname, **self.kw)
                self.count = self.size = 0

        with Fourth(
            f"{tmp_path}/s-%03d.tar", maxcount=2, start_shard=1, encoder=True, post=closed.append
        ) as sink:
            for number in range(5):
                sink.write({"__key__": f"{number}", "cls": number})
        assert shards_in(tmp_path) == {
            "s-001.tar": ["0.cls", "1.cls"],
            "s-005.tar": ["2.cls", "3.cls"],
            "s-009.tar": ["4.cls"],
        }
        assert [Path(name).name for name in closed] == ["s-001.tar", "s-005.tar", "s-009.tar"]

    @BOTH
    def test_that_has_no_pattern(self, wds: Any, tmp_path: Path) -> None:
        class Plain(wds.ShardWriter):
            def __init__(self, folder: Path, **more: Any) -> None:
                self.folder = folder
                super().__init__("", **more)

            def next_stream(self) -> None:
                self.finish()
                self.fname = str(self.folder / f"{self.shard:04d}.tar")
                self.shard += 1
                self.tarstream = wds.TarWriter(self.fname, **self.kw)
                self.count = self.size = 0

        sink = Plain(tmp_path, maxcount=1)
        for number in range(2):
            sink.write({"__key__": f"{number}", "txt": "a"})
        sink.close()
        assert shards_in(tmp_path) == {"0000.tar": ["0.txt"], "0001.tar": ["1.txt"]}

    @BOTH
    def test_that_does_more_when_a_shard_is_whole(self, wds: Any, tmp_path: Path) -> None:
        uploaded = []

        class Uploading(wds.ShardWriter):
            def finish(self) -> None:
                is_open = self.count > 0
                super().finish()
                if is_open:
                    uploaded.append(len(list(tmp_path.glob("*.tar"))))

        with Uploading(f"{tmp_path}/s-%03d.tar", maxcount=2) as sink:
            for number in range(3):
                sink.write({"__key__": f"{number}", "cls": number})
        assert uploaded == [1, 2]

    def test_that_sets_no_stream(self, tmp_path: Path) -> None:
        class Empty(ours.ShardWriter):
            def next_stream(self) -> None:
                self.finish()

        sink = Empty("")
        with pytest.raises(UsageError, match=r"next_stream\(\) of Empty set no tarstream"):
            sink.write({"__key__": "a", "cls": 1})
        sink.discard()

    @BOTH
    def test_an_address_that_begins_with_file(self, wds: Any, tmp_path: Path) -> None:
        with wds.ShardWriter(f"file:{tmp_path}/s-%03d.tar", maxcount=2) as sink:
            sink.write({"__key__": "a", "cls": 1})
        with wds.TarWriter(f"file://{tmp_path}/t.tar") as sink:
            sink.write({"__key__": "a", "cls": 1})
        assert set(shards_in(tmp_path)) == {"s-000.tar", "t.tar"}

    @BOTH
    def test_encoders_that_are_added_for_all(self, wds: Any, tmp_path: Path) -> None:
        handlers = wds.writer.default_handlers
        wds.writer.add_handlers(handlers, "jpgs pngs", b"|".join)
        try:
            with wds.TarWriter(f"{tmp_path}/t.tar") as sink:
                sink.write({"__key__": "a", "jpgs": [b"1", b"2"]})
        finally:
            del handlers["jpgs"], handlers["pngs"]
        [sample] = wds.WebDataset(f"{tmp_path}/t.tar", shardshuffle=False)
        assert sample["jpgs"] == b"1|2"


@BOTH
def test_a_decoder_of_ones_own(wds: Any, shards: list[str]) -> None:
    """As a toolkit for diffusion has it, in the method ``decode`` of a base of its own."""

    class Passing(wds.Decoder):
        def decode(self, sample: Any) -> Any:
            left = self.only is not None or self.partial
            found = {
                key: value if key[0] == "_" else self.decode1(key, value) for key, value in sample.items()
            }
            return {**found, "left": left}

    class Fluid(wds.FluidInterface):
        def decode(self, *args: Any, **more: Any) -> Any:
            return self.map(Passing([one for one in args if callable(one)], **more))

    class Data(wds.DataPipeline, Fluid):
        def __init__(self, urls: Any) -> None:
            super().__init__(
                wds.SimpleShardList(urls), wds.tarfile_to_samples(), handler=wds.warn_and_continue
            )

    data = Data(shards).decode("pil", lambda key, value: 7 if key == ".txt" else None)
    assert [(one["cls"], one["txt"], one["left"]) for one in data] == [(n, 7, False) for n in range(COUNT)]
    data.close()
    one = wds.Decoder([], only="cls txt").decode1("cls", b"3")
    assert one == 3


def same(samples: Any) -> Any:
    yield from samples


@pytest.mark.parametrize("how", [{"shardshuffle": True}, {"shardshuffle": False}, {"resampled": True}])
def test_a_generator_behind_shuffle_gets_shuffled_samples(how: Any, shards: list[str]) -> None:
    data = ours.WebDataset(shards, **how).shuffle(100).compose(same).map(lambda sample: int(sample["cls"]))
    seen = list(islice(iter(data), COUNT))
    assert sorted(seen) == list(range(COUNT))
    assert [b - a for a, b in pairwise(seen)].count(1) < COUNT // 2, "neighbours of a shard"


def test_whole_batches_behind_a_filter(shards: list[str]) -> None:
    """select() leaves gaps, which is said where whole batches are requested; a generator leaves none."""

    def third(sample: Any) -> bool:
        return int(sample["cls"]) % 3 == 0

    data = ours.WebDataset(shards, resampled=True).shuffle(5)
    gaps = data.select(third).batched(4, partial=False, collation_fn=len).with_epoch(5)
    with pytest.warns(UserWarning, match=r"partial=False.*compose\(lambda samples: filter\(f, samples\)\)"):
        assert min(gaps) < 4
    whole = data.compose(lambda samples: filter(third, samples)).batched(4, partial=False, collation_fn=len)
    assert list(whole.with_epoch(5)) == [4] * 5


def test_names_that_webdataset_had_once_say_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"removed it in version 1; write tarfile_to_samples\(\)"):
        _ = ours.cached_tarfile_to_samples
    assert ours.tariterators.meta_prefix == theirs.tariterators.meta_prefix
