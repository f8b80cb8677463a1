"""webdataset's modules, by their names: the functions that public code imports, and pipelines as plain generators."""

from __future__ import annotations

import ast
import io
import pickle
import random
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from itertools import islice
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy
import pytest

import wdscli.loader as wds
import wdscli.loader.compat as gone
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader.compat import (
    autodecode,
    cache,
    filters,
    mix,
    names,
    shardlists,
    tariterators,
    utils,
    writer,
)
from wdscli.loader.compat import gopen as opening

STAGES = """
batched decode extract_keys info listed log_keys map map_dict map_tuple rename rename_keys rsample select shuffle
to_tuple unbatched unlisted xdecode
"""


def write_tar(path: Path, names: list[str]) -> None:
    """An archive as Python writes it."""
    with tarfile.open(path, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of four samples of two fields."""
    folder = tmp_path_factory.mktemp("compat")
    for shard in range(3):
        names = [f"n{shard}{n}.{field}" for n in range(4) for field in ("cls", "Txt")]
        write_tar(folder / f"in-{shard}.tar", names)
    return folder


@pytest.fixture
def urls(folder: Path) -> str:
    return f"{folder}/in-{{0..2}}.tar"


def keys(items: Any) -> list[str]:
    return [sample["__key__"] for sample in items]


KEYS = [f"n{shard}{n}" for shard in range(3) for n in range(4)]


class Mine(wds.DataPipeline, wds.FluidInterface):
    """A pipeline of one's own, as public code derives it."""

    def __init__(self, urls: str) -> None:
        super().__init__()
        self.append(wds.SimpleShardList(urls))
        self.append(wds.tarfile_to_samples())


class TestStages:
    def test_a_stage_takes_what_the_method_takes(self) -> None:
        renamed = {"shuffle": {"bufsize": "size"}}
        for name in STAGES.split():
            method = signature(getattr(wds.WebDataset, name)).parameters
            stage = signature(getattr(wds, name)).parameters
            wanted = {parameter for parameter in method if parameter != "self"}
            assert {renamed.get(name, {}).get(one, one) for one in stage} == wanted, name

    def test_every_stage_has_a_help_text_of_its_own(self) -> None:
        texts = {name: getattr(filters, name).__doc__ for name in filters.__all__}
        assert all(texts.values())
        assert len({texts[name] for name in STAGES.split()}) == len(STAGES.split())

    def test_a_misspelt_name_is_an_error_that_says_what_may_be_meant(self) -> None:
        with pytest.raises(AttributeError, match="did you mean shuffle"):
            wds.shufle  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(TypeError, match="bufsiz"):
            wds.shuffle(bufsiz=10)  # type: ignore[call-arg]

    def test_a_type_checker_knows_what_names_there_are(self) -> None:
        tree = ast.parse(Path(wds.__file__ or "").read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert "__getattr__" not in functions, "it is for Python alone"

    def test_help_on_a_dataset_reads_like_a_manual_page(self) -> None:
        text = wds.WebDataset.__doc__ or ""
        for name in signature(wds.WebDataset).parameters:
            assert re.search(rf"^ {{8}}(\w+, )*{name}\b", text, re.MULTILINE), name

    def test_stages_of_an_iterator(self) -> None:
        assert list(filters._map(range(3), lambda x: x * 2)) == [0, 2, 4]
        assert list(filters._select(range(4), lambda x: x > 1)) == [2, 3]
        assert list(filters._to_tuple([{"a": 1, "b": 2}], "b", "a")) == [(2, 1)]
        assert [len(batch) for batch in filters._batched(range(7), 3, partial=False)] == [3, 3]
        assert list(filters.slice(2)(range(9))) == [0, 1]
        assert list(filters._map(range(4), lambda x: 1 // (x % 2), handler=wds.ignore_and_continue)) == [1, 1]
        assert list(filters._map(range(4), lambda x: 1 // (x - 1), handler=wds.ignore_and_stop)) == [-1]

    def test_a_shuffle_of_an_iterator_has_webdatasets_meaning(self) -> None:
        def order(**how: Any) -> list[int]:
            return list(filters._shuffle(iter(range(100)), 20, initial=10, **how))

        assert sorted(order()) == list(range(100))
        assert order() != order()
        assert order(seed=3) == order(seed=3) == order(rng=random.Random(3)) != list(range(100))
        assert order(seed=3)[0] < 20, "it has begun before it is full"
        assert list(filters._shuffle(iter(range(3)), 1)) == [0, 1, 2]
        stage = wds.detshuffle(20, seed=1)
        first, second = (list(stage.run(iter(range(100)))) for _ in range(2))
        assert first != second
        assert list(wds.detshuffle(20, seed=1).run(iter(range(100)))) == first

    def test_stages_can_be_pickled(self) -> None:
        for stage in (wds.shuffle(10), wds.decode("rgb8"), wds.batched(3), filters._map, wds.resampled(3)):
            pickle.loads(pickle.dumps(stage))
        assert list(pickle.loads(pickle.dumps(wds.slice(2)))(range(5))) == [0, 1]

    def test_a_filter_of_ones_own(self) -> None:
        @wds.pipelinefilter
        def every(data: Any, step: int) -> Any:
            """Some."""
            return islice(data, 0, None, step)

        assert every.__doc__ == "Some."
        assert list(every(3)(range(7))) == [0, 3, 6]
        assert repr(every(3)) == "every(3)"


class TestPipelines:
    def test_what_the_exact_engine_understands_runs_there(self, urls: str) -> None:
        exact = wds.DataPipeline(
            wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples(), wds.slice(5)
        )
        assert isinstance(exact, wds.WebDataset)
        assert isinstance(exact, wds.DataPipeline)
        assert keys(exact) == KEYS[:5]
        by_function = wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_samples)
        assert keys(by_function) == KEYS
        assert by_function.state_dict()

    @pytest.mark.parametrize("how", ["function", "list", "own list", "between", "opener"])
    def test_anything_else_runs_as_plain_generators(self, urls: str, folder: Path, how: str) -> None:
        class Own:
            def __iter__(self) -> Any:
                return ({"url": f"{folder}/in-{n}.tar"} for n in range(3))

        def of_two(shards: Any) -> Any:
            return islice(shards, 2)

        first: list[Any] = {
            "function": [lambda: iter(Own())],
            "list": [Own()],
            "own list": [Own()],
            "between": [wds.SimpleShardList(urls), of_two],
            "opener": [wds.SimpleShardList(urls), cache.StreamingOpen()],
        }[how]
        data = wds.DataPipeline(first, None, wds.tarfile_to_samples(), wds.map(lambda sample: sample))
        assert keys(data) == (KEYS[:8] if how == "between" else KEYS)
        assert keys(data) == (KEYS[:8] if how == "between" else KEYS), "once more"
        assert set(next(iter(data))) >= {"__key__", "__url__", "cls", "txt"}
        assert "plain generators" in repr(data)
        assert "tarfile_to_samples" in repr(data)
        with pytest.raises(UsageError, match=r"position in .* cannot be saved"):
            data.state_dict()

    def test_stages_and_methods_of_plain_generators(self) -> None:
        data = wds.DataPipeline(
            lambda: iter(range(10)), [wds.map(lambda x: x + 1), wds.select(lambda x: x % 2)]
        )
        assert list(data.batched(2, collation_fn=None)) == [[1, 3], [5, 7], [9]]
        assert sorted(data.shuffle(10)) == [1, 3, 5, 7, 9]
        assert list(wds.DataPipeline(data, wds.Cached())) == [1, 3, 5, 7, 9]
        assert data.stage(0)
        nested = wds.DataPipeline(data, lambda items: (item * 2 for item in items))
        assert list(nested) == [2, 6, 10, 14, 18]
        assert data.with_epoch(12) is data
        assert len(list(data)) == 12

    def test_a_class_derived_from_a_pipeline(self, urls: str) -> None:
        assert keys(Mine(urls).map(lambda sample: sample)) == KEYS
        assert keys(pickle.loads(pickle.dumps(Mine(urls).slice(2)))) == KEYS[:2]

    def test_damage_is_asked_about_and_counted(self, folder: Path, tmp_path: Path) -> None:
        cut = tmp_path / "cut.tar"
        cut.write_bytes((folder / "in-0.tar").read_bytes()[: 4 * 1024 + 700])
        shards = [{"url": str(cut)}, {"url": str(tmp_path / "none.tar")}, {"url": f"{folder}/in-1.tar"}]
        data = wds.DataPipeline(lambda: iter(shards), wds.tarfile_to_samples(handler=wds.ignore_and_continue))
        with pytest.warns(UserWarning, match="skipped"):
            assert keys(data) == ["n00", *KEYS[4:8]], "what may go on behind the cut is not given"
        assert data.stats()["dropped"] == {
            str(cut): {"read: truncated": 1},
            str(tmp_path / "none.tar"): {"read: unreadable": 1},
        }
        with pytest.raises(DataError, match="cut"):
            list(tariterators.tarfile_samples(shards[:1]))
        stopped = tariterators.tarfile_samples(shards, handler=wds.ignore_and_stop)
        with pytest.warns(UserWarning, match="skipped"):
            assert keys(stopped) == ["n00"]

    def test_dice_of_ones_own_are_for_plain_generators(self, urls: str) -> None:
        shuffled = wds.shuffle(5, rng=random.Random(1))
        data = wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(), shuffled)
        assert sorted(keys(data)) == KEYS
        assert repr(data).endswith("tarfile_to_samples, shuffle>")
        with pytest.raises(UsageError, match=r"position in .* cannot be saved"):
            data.state_dict()
        with pytest.raises(UsageError, match="rng"):
            wds.WebDataset(urls).compose(shuffled).state_dict()

    def test_a_shard_is_named_by_a_dict(self) -> None:
        with pytest.raises(UsageError, match="url"):
            list(wds.DataPipeline(["a.tar"], wds.tarfile_to_samples()))

    def test_torchs_dataloader_takes_plain_generators(self, urls: str) -> None:
        torch_data = pytest.importorskip("torch.utils.data")
        data = wds.DataPipeline(wds.SimpleShardList(urls), lambda shards: shards, wds.tarfile_to_samples())
        assert isinstance(data, torch_data.IterableDataset)
        loader = torch_data.DataLoader(
            data.map(lambda sample: sample["__key__"]), batch_size=None, num_workers=2
        )
        assert sorted(loader) == sorted(KEYS * 2), "who splits nothing reads all in every worker"


class TestShardLists:
    def test_a_list_of_shards(self) -> None:
        shards = wds.SimpleShardList("a-{0..3}.tar::b.tar")
        assert len(shards) == 5
        assert [one["url"] for one in shards] == shards.urls == [*(f"a-{n}.tar" for n in range(4)), "b.tar"]
        mixed = wds.SimpleShardList([str(n) for n in range(20)], seed=5)
        assert list(mixed) == list(mixed) != [{"url": url} for url in mixed.urls]
        assert list(wds.SimpleShardList(mixed.urls, seed=True)) != list(wds.SimpleShardList(mixed.urls))
        assert [one["url"] for one in wds.shardspec("a-{0..1}.tar")] == ["a-0.tar", "a-1.tar"]

    def test_names_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WDS_HERE", "/data")
        assert shardlists.expand_urls("${HERE}/a.tar") == ["/data/a.tar"]
        assert shardlists.expand_source(["${HERE}/{0..1}", "b"], 1) == ["/data/{0..1}"]

    def test_shards_that_are_drawn(self) -> None:
        urls = [str(n) for n in range(5)]
        drawn = [one["url"] for one in wds.ResampledShards(urls, nshards=50)]
        assert len(drawn) == 50
        assert set(drawn) <= set(urls)
        assert max(Counter(drawn).values()) > 10, "with replacement"
        sure = wds.ResampledShards(urls, nshards=20, deterministic=True)
        first, second = list(sure), list(sure)
        assert first != second
        assert list(wds.ResampledShards(urls, nshards=20, deterministic=True)) == first
        assert len(list(islice(wds.ResampledShards(urls), 99))) == 99
        assert len(list(wds.resampled(7)([1, 2]))) == 7
        assert list(wds.resampled(7)([])) == []
        with pytest.raises(InputError):
            wds.ResampledShards([])
        assert list(wds.ResampledShards([], empty_check=False)) == []

    def test_several_sets_by_a_specification(self, tmp_path: Path) -> None:
        spec = {
            "prefix": "/p/",
            "datasets": [
                {"shards": "a-{0..9}.tar", "choose": 3, "buckets": "x"},
                {"shards": ["b.tar"], "resample": 4},
                {"shards": ["c-{0..1}.tar"]},
            ],
        }
        shards = wds.MultiShardSample(spec)
        found = Counter(one["url"] for one in shards)
        assert found["/p/b.tar"] == 4
        assert sum(number for url, number in found.items() if url.startswith("/p/x/a-")) == 3
        assert {"/p/c-0.tar", "/p/c-1.tar"} < set(found)
        shards.set_epoch(3)
        again = list(shards)
        shards.set_epoch(3)
        assert list(shards) == again
        for wrong in ({"datasets": [{"shards": "a", "weight": 1}]}, {"datasets": [], "seed": 1}, "a.yaml"):
            with pytest.raises(UsageError):
                wds.MultiShardSample(wrong)

    def test_mixes_of_plain_iterables(self) -> None:
        assert list(wds.RoundRobin([[1, 2], [3], [4, 5]])) == [1, 3, 4, 2]
        assert list(wds.RoundRobin([[1, 2], [3], [4, 5]], longest=True)) == [1, 3, 4, 2, 5]
        drawn = list(wds.RandomMix([[0] * 900, [1] * 900], [9, 1], seed=1))
        assert 0.05 < sum(drawn) / len(drawn) < 0.15
        assert sorted(wds.RandomMix([range(3), range(2)], longest=True)) == [0, 0, 1, 1, 2]
        assert len(list(wds.RandomMix([list("ab"), []], longest=True))) == 2
        with pytest.raises(UsageError):
            wds.RandomMix([[1], [2]], [1])

    @pytest.mark.parametrize("kind", [wds.RandomMix, wds.RoundRobin])
    def test_mixes_are_classes(self, kind: Any, urls: str) -> None:
        class Twice(kind):
            def __init__(self, sets: Any, note: str) -> None:
                super().__init__(sets, longest=True)
                self.note = note

            def __iter__(self) -> Iterator[Any]:
                return (one for item in super().__iter__() for one in (item, item))

        mixed = Twice([[1, 2], [3]], "mine")
        assert (sorted(mixed), mixed.note, mixed.datasets) == ([1, 1, 2, 2, 3, 3], "mine", [[1, 2], [3]])
        assert len(list(Twice([wds.WebDataset(urls)] * 2, "of shards"))) == 4 * len(
            list(wds.WebDataset(urls))
        )
        for one in (mixed, kind([[1], [2]]), kind([wds.WebDataset(urls)] * 2)):
            assert isinstance(one, kind)
        assert not isinstance(wds.WebDataset(urls), kind)
        assert sorted(pickle.loads(pickle.dumps(kind([[1, 2], [3]], longest=True)))) == [1, 2, 3]


class TestSteps:
    def test_from_addresses_to_samples_in_steps(self, urls: str, folder: Path) -> None:
        files = list(tariterators.tar_file_expander(tariterators.url_opener(wds.SimpleShardList(urls))))
        assert files[0] == {"fname": "n00.cls", "data": b"n00.cls", "__url__": f"{folder}/in-0.tar"}
        assert files.count({}) == 3
        samples = list(tariterators.group_by_keys(files))
        assert samples == list(tariterators.tarfile_samples(wds.SimpleShardList(urls)))
        assert set(next(tariterators.group_by_keys(files, lcase=False))) == {
            "__key__",
            "__url__",
            "cls",
            "Txt",
        }
        only = tariterators.group_by_keys(files, suffixes={"cls"})
        assert set(next(only)) == {"__key__", "__url__", "cls"}

    def test_compressed_archives_and_members_that_are_passed_over(self, folder: Path, tmp_path: Path) -> None:
        import gzip

        write_tar(tmp_path / "a.tar", ["__meta__", "__x__/a.cls", "README", "a.cls"])
        packed = io.BytesIO(gzip.compress((tmp_path / "a.tar").read_bytes()))
        names = [file["fname"] for file in tariterators.tar_file_iterator(packed)]
        assert names == ["README", "a.cls"]
        with open(tmp_path / "a.tar", "rb") as file:
            kept = tariterators.tar_file_iterator(
                file, skip_meta=None, select_files=lambda name: name != "README", rename_files=str.upper
            )
            assert [one["fname"] for one in kept] == ["__META__", "__X__/A.CLS", "A.CLS"]

    def test_a_field_that_comes_twice_is_asked_about(self) -> None:
        files = [{"fname": name, "data": b"", "__url__": "u"} for name in ("a.x", "a.X", "b.x")]
        with pytest.raises(DataError, match="twice"):
            list(tariterators.group_by_keys(files))
        assert keys(tariterators.group_by_keys(files, handler=lambda error: True)) == ["a", "b"]
        assert keys(tariterators.group_by_keys(files, handler=lambda error: False)) == ["a"]

    def test_handlers_of_what_cannot_be_opened(self, tmp_path: Path) -> None:
        shards = [{"url": str(tmp_path / "none.tar")}, {"url": __file__}]
        with pytest.raises(FileNotFoundError):
            list(tariterators.url_opener(shards))
        [found] = tariterators.url_opener(shards, handler=lambda error: True)
        assert found["url"] == __file__
        assert list(tariterators.url_opener(shards, handler=lambda error: False)) == []

    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("a/b.c.d", ("a/b", "c.d")),
            ("a.b/c.d", ("a.b/c", "d")),
            ("a", (None, None)),
            (".hidden", (None, None)),
        ],
    )
    def test_key_and_field(self, name: str, parts: tuple[str | None, str | None]) -> None:
        assert tariterators.base_plus_ext(name) == parts
        theirs = pytest.importorskip("webdataset.tariterators")
        assert theirs.base_plus_ext(name) == parts

    def test_what_is_a_sample(self) -> None:
        good = [tariterators.valid_sample(one) for one in ({"a": 1}, {}, None, {"__bad__": True}, [1])]
        assert good == [True, False, False, False, False]


class TestOpening:
    def test_a_command_as_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs = pytest.importorskip("webdataset.gopen")
        for pipe in (opening.Pipe, theirs.Pipe):
            with pipe(f"cat > {tmp_path}/a", mode="wb", shell=True) as stream:
                stream.write(b"one")
            with pipe(["cat", f"{tmp_path}/a"], mode="rb", bufsize=100) as stream:
                assert stream.read(2) + stream.read() == b"one"
            stream = pipe("echo x; exit 3", mode="rb", shell=True)
            with pytest.raises(
                OSError, match="exit 3"
            ):  # webdataset may see the status at the first read already
                stream.read(1)
                stream.close()
            for how in ({"ignore_status": [3]}, {"ignore_errors": True}):
                with pipe("echo x; exit 3", mode="rb", shell=True, **how) as stream:
                    assert stream.read() == b"x\n"
        ours = opening.Pipe("echo x; exit 3", shell=True)
        assert ours.read(2) == b"x\n"
        with pytest.raises(OSError, match="exit 3"):
            ours.read(1)
        monkeypatch.setenv("WDSCLI_NO_PIPE", "1")
        with pytest.raises(UsageError, match="WDSCLI_NO_PIPE"):
            opening.Pipe("echo x", mode="rb", shell=True)

    def test_files_and_commands(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"content")
        for url in (f"{tmp_path}/a", f"file:{tmp_path}/a", f"pipe:cat {tmp_path}/a"):
            with wds.gopen(url, "rb") as stream:
                assert stream.read(4) + stream.read() == b"content"
        with pytest.raises(UsageError):
            wds.gopen("a", "r")
        with pytest.raises(UsageError, match="only reads") as caught:
            wds.gopen(str(tmp_path / "a"), "wb")
        assert "TarWriter" in str(caught.value.hint)
        assert (tmp_path / "a").read_bytes() == b"content"
        with pytest.raises(UsageError, match="timeout"):
            wds.gopen("a", timeout=3)

    def test_schemes_of_ones_own(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opening, "gopen_schemes", opening._Schemes())
        monkeypatch.setattr(tariterators, "gopen_schemes", opening.gopen_schemes)
        with pytest.warns(UserWarning, match="WebDataset"):
            opening.gopen_schemes["mine"] = lambda url, mode, bufsize: (folder / url[7:]).open(mode)
        data = wds.DataPipeline(lambda: iter([{"url": "mine://in-1.tar"}]), wds.tarfile_to_samples())
        assert keys(data) == KEYS[4:8]

    def test_addresses_that_the_environment_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOPEN_REWRITE", "http://a/=/b/;s3:=/c")
        assert opening.rewrite_url("http://a/x") == "/b/x"
        assert opening.rewrite_url("s3://a/x") == "/c//a/x"
        assert opening.rewrite_url("/d") == "/d"

    def test_what_security_refuses(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(utils, "enforce_security", True)
        monkeypatch.setenv("GOPEN_REWRITE", "a=b")
        calls: list[Any] = [
            lambda: opening.rewrite_url("x"),
            lambda: autodecode.unpickle_loads(pickle.dumps(1)),
            lambda: autodecode.torch_loads(b""),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"security|unsafe"):
                call()
        monkeypatch.delenv("GOPEN_REWRITE")
        for url in ("pipe:true", str(tmp_path), f"file:{tmp_path}"):
            with pytest.raises(ValueError, match="unsafe_gopen"):
                wds.gopen(url)


class TestSmallThings:
    def test_who_this_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert utils.pytorch_worker_info() == (0, 1, 0, 1)
        for name, value in {"RANK": "2", "WORLD_SIZE": "4", "WORKER": "1", "NUM_WORKERS": "3"}.items():
            monkeypatch.setenv(name, value)
        assert utils.pytorch_worker_info() == (2, 4, 1, 3)
        assert utils.pytorch_worker_seed() == 2001

        assert utils.make_seed(1, 2) == 33

    def test_decoders_of_one_payload(self) -> None:
        assert autodecode.decoders["cls"](b"7") == 7
        assert autodecode.decoders["pyd"](pickle.dumps([1])) == [1]
        assert autodecode.basichandlers(".json", b'{"a": 1}') == {"a": 1}
        with pytest.raises(UsageError, match="has no effect here"):
            autodecode.decoders["mine"] = bytes.decode

    def test_pictures_by_a_handler(self) -> None:
        pytest.importorskip("PIL")
        data = writer.imageencoder(numpy.zeros((3, 4, 3), "uint8"), "PNG")
        assert autodecode.ImageHandler("rgb8")(".png", data).shape == (3, 4, 3)
        assert autodecode.ImageHandler("rgb8")(".txt", data) is None

    def test_functions_of_functions(self) -> None:
        assert filters.transform_with([1, 2], [None, str]) == [1, "2"]


class TestNamesThatAreGone:
    def test_an_attribute_says_what_to_write(self) -> None:
        for module, name, said in [
            (cache, "FileCache", "cache_dir="),
            (shardlists, "DirectoryShardList", "yields"),
            (filters, "compose2", r"DataPipeline\(source"),
            (opening, "gopen_pipe", "pipe:COMMAND"),
            (utils, "repeatedly", r"wdscli\.loader\.repeatedly"),
            (autodecode, "npy_loads", "basichandlers"),
            (writer, "bytestr", "TarWriter"),
            (tariterators, "shardlist", "SimpleShardList"),
            (mix, "random_samples", "RandomMix"),
            (wds, "LMDBCached", r"mcached\(\)"),
            (wds, "tenbin", r"wdscli\.codecs\.values"),
        ]:
            with pytest.raises(ImportError, match=rf"^{module.__name__} has no {name}; write .*{said}"):
                getattr(module, name)
            assert name not in dir(module)

    @pytest.mark.parametrize(
        "line",
        [
            "from wdscli.loader import LRUCleanup",
            "from wdscli.loader.compat.cache import LRUCleanup",
            "from wdscli.loader import pipe_cleaner",
        ],
    )
    def test_an_import_says_what_to_write(self, line: str) -> None:
        with pytest.raises(ImportError, match=r"has no \w+; write WebDataset\(urls, cache_dir="):
            exec(line)

    def test_any_other_name_is_an_attribute_error(self) -> None:
        for module in (cache, filters, gone, names, opening, shardlists, tariterators, utils, writer, wds):
            assert not hasattr(module, "nothing_of_the_kind")

    def test_what_has_a_hint_is_webdatasets_and_not_here(self) -> None:
        theirs = pytest.importorskip("webdataset")
        found = {one.name for one in iter_modules(theirs.__path__)} - {"multi"}
        modules = [import_module(f"webdataset.{name}") for name in found]
        for name in gone.INSTEAD:
            assert name == "tenbin" or any(hasattr(one, name) for one in modules), name
            assert name == "repeatedly" or name not in vars(names), name

    def test_the_loaders_own_names_load_none_of_webdatasets(self) -> None:
        program = (
            "import sys, wdscli.loader as wds; wds.WebDataset, wds.ShardWriter, wds.mix; print(*sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "wdscli.loader.names" in done.stdout.split()
        assert not [name for name in done.stdout.split() if name.startswith("wdscli.loader.compat")]


def test_a_reader_of_before_archives_had_ends_finds_none(tmp_path: Path) -> None:
    """open_clip's own ``group_by_keys`` asks every member for its name."""
    from wdscli.loader.compat.tariterators import base_plus_ext, tar_file_expander, url_opener
    from wdscli.shards import ShardWriter

    url = str(tmp_path / "in-000000.tar")
    with ShardWriter(str(tmp_path / "in-%06d.tar")) as writer:
        writer.write("a", {"cls": b"1", "txt": b"one"})
    members = list(tar_file_expander(url_opener([{"url": url}, {"url": url}])))
    assert members[2] == members[5] == {}
    names = [base_plus_ext(member["fname"]) for member in members]
    assert names == [("a", "cls"), ("a", "txt"), (None, None)] * 2
