"""This module has webdataset's steps from addresses to samples. The steps list shards, open shards, read their files,
and group files into samples.

:class:`SimpleShardList`, :class:`ResampledShards` and :class:`MultiShardSample` yield ``{"url": ...}`` and begin a
``DataPipeline``. If the exact engine supports the pipeline, the engine takes the addresses from the list and finds
samples by position. Every other pipeline iterates the list.

:func:`tarfile_samples` does all later steps with wdscli's readers. :func:`url_opener`, :func:`tar_file_expander` and
:func:`group_by_keys` do one step each, for pipelines that replace a step. :mod:`wdscli.tar` reads and checks the
archive; a handler decides about damage. ``tarfile_samples`` yields the complete samples before the damage, and counts
the lost samples. As in webdataset, the single steps also yield the incomplete sample before the damage. If a program
replaces a step (``tariterators.url_opener = ...``), ``tarfile_samples`` also runs the single steps. This module does
not know which process reads a shard."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice
from random import Random
from typing import Any

from wdscli.errors import DataError, InputError, StorageError, UsageError
from wdscli.loader.checks import Urls, addresses_of
from wdscli.loader.compat import add_hints
from wdscli.loader.compat.filters import FilterFunction, NamedStage, redrawn
from wdscli.loader.compat.gopen import gopen, gopen_schemes
from wdscli.loader.compat.utils import make_seed, pytorch_worker_seed
from wdscli.loader.place.ranks import TorchIterable
from wdscli.loader.read.failures import (
    FailedSample,
    Guard,
    Handler,
    Policy,
    SkipCounts,
    StopEpoch,
    each,
    reraise_exception,
)
from wdscli.loader.read.renamed import Renaming, with_new_names
from wdscli.loader.stages.flow import DROPPED
from wdscli.loader.stages.per_sample import MemberFilter
from wdscli.loader.streams import fields_of
from wdscli.samples import Grouper, iter_samples, split_name
from wdscli.samples.keys import joined_samples
from wdscli.storage import Source, is_local, local_path, open_source, scheme
from wdscli.storage.compressed import decompressed
from wdscli.storage.patterns import expand_braces, has_braces
from wdscli.storage.streams import StreamSource
from wdscli.tar import DIRECTORY, KIND_MASK, REGULAR, scan
from wdscli.text import to_bytes, to_text

__all__ = [
    "MultiShardSample",
    "ResampledShards",
    "SimpleShardList",
    "StreamingOpen",
    "base_plus_ext",
    "expand_source",
    "expand_urls",
    "group_by_keys",
    "resampled",
    "shardspec",
    "tar_file_expander",
    "tar_file_iterator",
    "tarfile_samples",
    "tarfile_to_samples",
    "url_opener",
    "valid_sample",
]

Choose = Callable[[str], bool] | None
Rename = Callable[[str], str] | None
meta_prefix, meta_suffix = "__", "__"
HEAD_BYTES = 512
"""The size of one tar block, which is enough to distinguish a compressed stream from a tar."""


def expand_urls(urls: str) -> list[str]:
    """Return the addresses that a text with ``::``, ``${NAME}`` and braces means. This function does not look for
    files."""
    parts = addresses_of(urls.split("::"))
    return [
        url for part in parts for url in (expand_braces(part, UsageError) if has_braces(part) else [part])
    ]


def expand_source(source: Urls, max_urls: int = 10**9) -> list[str]:
    """Return the addresses that a text or a list of texts means, at most ``max_urls``."""
    if isinstance(source, (str, os.PathLike)):
        return expand_urls(os.fspath(source))
    return addresses_of(islice(source, max_urls))


class _Shards(TorchIterable[Any]):
    """The base class of lists of shards. A list yields ``{"url": ...}``, and torch's DataLoader treats the list as an
    IterableDataset."""

    urls: list[str]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.urls)} shards)"


class SimpleShardList(_Shards):
    """Yields the shards of ``urls``, a text with braces or a list. With ``seed`` (True means 0), the shards are
    shuffled. At the start of a pipeline of shards, ``urls`` may be any value that ``WebDataset`` accepts."""

    def __init__(self, urls: Urls, seed: int | bool | None = None) -> None:
        self.given: Any = urls if isinstance(urls, (str, os.PathLike)) else list(urls)
        self.urls = expand_source(self.given)
        self.seed = 0 if seed is True else seed

    def __len__(self) -> int:
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        urls = list(self.urls)
        if self.seed is not None:
            Random(self.seed).shuffle(urls)
        return ({"url": url} for url in urls)


class ResampledShards(_Shards):
    """Draws ``nshards`` random shards with replacement, or shards without end. If the exact engine runs the pipeline
    and ``nshards`` is not given, every sample comes once before a sample is repeated."""

    def __init__(
        self,
        urls: Urls,
        nshards: int | None = None,
        seed: int = 0,
        worker_seed: Callable[[], int] | None = None,
        deterministic: bool = False,
        max_urls: int = 10**6,
        empty_check: bool = True,
    ) -> None:
        self.given: Any = urls if isinstance(urls, (str, os.PathLike)) else list(urls)
        self.urls = expand_source(self.given, max_urls)
        if empty_check and not self.urls:
            raise InputError("ResampledShards() has no shards", hint="empty_check=False allows this")
        self.nshards, self.seed, self.deterministic = nshards, seed, deterministic
        self.worker_seed = worker_seed or pytorch_worker_seed
        self.epoch = -1

    @property
    def is_exact(self) -> bool:
        """Whether an endless order can replace the random draws."""
        return self.nshards is None and self.worker_seed is pytorch_worker_seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.epoch += 1
        seed = make_seed(self.worker_seed(), self.epoch, self.seed) if self.deterministic else None
        return ({"url": url} for url in redrawn(self.urls, self.nshards, Random(seed)))


def resampled(n: int | None = None) -> FilterFunction:
    """Return a stage that yields ``n`` random items of its input, with replacement. With ``n`` None, the items never
    end."""
    return FilterFunction(redrawn, n)


class MultiShardSample(_Shards):
    """Yields the shards of several sets in one order. The specification is a dict with ``datasets``, ``prefix`` and
    ``buckets``. Each item of ``datasets`` is a dict with ``shards`` and possibly ``resample`` or ``choose``."""

    def __init__(self, fname: dict[str, Any] | str) -> None:
        if not isinstance(fname, dict):
            message = f"MultiShardSample({fname!r}): a specification is a dict"
            raise UsageError(message, hint="MultiShardSample(yaml.safe_load(open(path)))")
        _want_names(fname, "prefix datasets buckets")
        self.sources = [_source(fname, dataset) for dataset in fname["datasets"]]
        self.urls = [url for urls, _, _ in self.sources for url in urls]
        self.rng = Random(0)  # a fixed seed: if ranks split the shards, all ranks must draw the same shards

    def set_epoch(self, seed: int) -> None:
        """Set the seed of the next epoch, which is the same for all ranks."""
        self.rng = Random(seed)

    def get_shards_for_epoch(self) -> list[str]:
        """Return the addresses of the shards of one epoch, in random order."""
        shards: list[str] = []
        for urls, resample, choose in self.sources:
            if resample > 0:
                shards += self.rng.choices(urls, k=resample)
            else:
                shards += self.rng.sample(urls, choose) if choose > 0 else urls
        self.rng.shuffle(shards)
        return shards

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"url": url} for url in self.get_shards_for_epoch())


def _want_names(spec: dict[str, Any], names: str) -> None:
    unknown = set(spec) - set(names.split())
    if unknown:
        raise UsageError(f"a specification cannot have the field {', '.join(sorted(unknown))}", hint=names)


def _source(spec: dict[str, Any], dataset: dict[str, Any]) -> tuple[list[str], int, int]:
    """Return the addresses of a set, the number of draws, and the number of chosen shards (0 for all)."""
    _want_names(dataset, "buckets name shards resample choose")
    buckets = dataset.get("buckets", spec.get("buckets")) or [""]
    buckets = [buckets] if isinstance(buckets, str) else buckets
    if len(buckets) > 1:
        raise UsageError(
            "a set in a specification names several buckets", hint="write one set for each bucket"
        )
    shards = [dataset["shards"]] if isinstance(dataset["shards"], str) else dataset["shards"]
    parts = [_variables(part) for part in (spec.get("prefix", ""), buckets[0])]
    names = [name for shard in shards for name in expand_braces(_variables(shard), UsageError)]
    urls = [parts[0] + os.path.join(parts[1], name) for name in names]
    resample, choose = int(dataset.get("resample", 0)), int(dataset.get("choose", 0))
    if (resample > 0 and choose > 0) or choose > len(urls):
        raise UsageError(
            f"a specification cannot choose {choose} or resample {resample} of {len(urls)} shards"
        )
    return urls, max(0, resample), max(0, choose)


def _variables(text: str) -> str:
    return os.path.expanduser(os.path.expandvars(text))


def shardspec(spec: str) -> _Shards:
    """Return a :class:`SimpleShardList` of the addresses. For a ``.yaml`` file, raise an error with a hint."""
    return MultiShardSample(spec) if spec.endswith(".yaml") else SimpleShardList(spec)


def base_plus_ext(path: str) -> tuple[str | None, str | None]:
    """Return the key and the field that a member's name contains, or (None, None) if the member belongs to no
    sample."""
    parts = split_name(to_bytes(path))
    return (None, None) if parts is None else (to_text(parts[0]), to_text(parts[1]))


def valid_sample(sample: Any) -> bool:
    """Return whether ``sample`` is a dict that is not empty and is not marked as ``__bad__``."""
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__", False)


class StreamingOpen:
    """Opens each address and yields ``{"url": ..., "stream": ...}``, with ``local_path`` for a local file."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each(_with_stream, urls, self.handler)


def _with_stream(source: Any) -> dict[str, Any]:
    url = source["url"] if isinstance(source, dict) else source
    opened = {"url": url, "stream": gopen(url)}
    return {**opened, "local_path": local_path(url)} if is_local(url) else opened


def url_opener(
    data: Iterable[dict[str, Any]], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[dict[str, Any]]:
    """Yield each dict ``{"url": ...}`` with the added item ``stream``, an open file object."""
    return each(lambda sample: {**sample, "stream": gopen(sample["url"], **kw)}, data, handler)


def tar_file_iterator(
    fileobj: Any,
    skip_meta: str | None = r"__[^/]*__($|/)",
    handler: Handler = reraise_exception,
    select_files: Choose = None,
    rename_files: Rename = None,
) -> Iterator[dict[str, Any]]:
    """Yield ``{"fname": ..., "data": ...}`` for each file in an archive. ``fileobj`` is a file object with the archive,
    which may be compressed. Raises DataError for a damaged archive. ``handler`` decides about errors of
    ``select_files`` and ``rename_files``."""
    with _source_of(fileobj) as source:
        for name, data in _members(source):
            if skip_meta is not None and re.match(skip_meta, name):
                continue
            try:
                name = name if rename_files is None else rename_files(name)
                is_wanted = select_files is None or select_files(name)
            except Exception as error:
                if handler(error):
                    continue
                return
            if is_wanted:
                yield {"fname": name, "data": data}


class _File:
    """A raw reader for a file object. The code that opened the file object closes it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, length: int, /) -> bytes:
        data: bytes = self._file.read(length)
        return data

    def close(self) -> None:
        pass


def _source_of(file: Any) -> Source:
    source = StreamSource(str(getattr(file, "name", "a file object")), _File(file))
    return decompressed(source, source.peek(HEAD_BYTES))


def _members(source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the payload of each file. Raises DataError for links, devices and sparse files."""
    grouper = Grouper(source.name)
    for window in scan(source, payloads=True):
        names, starts, _, sizes, flags = window.columns
        for row, name in enumerate(names):
            kind = flags[row] & KIND_MASK
            if kind not in (REGULAR, DIRECTORY):
                grouper.ignore(name, kind, starts[row], sizes[row])
            elif kind == REGULAR:
                yield to_text(name), window.payload(row)


def tar_file_expander(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Choose = None,
    rename_files: Rename = None,
    eof_value: Any = {},  # noqa: B006
) -> Iterator[dict[str, Any]]:
    """Yield the files of archives; each file is a dict with ``__url__``. An archive is a dict ``{"url": ..., "stream":
    ...}``. After each archive, yield ``eof_value`` unless it is None."""
    for source in data:
        origin = {"__url__": source["url"]}
        if source.get("local_path") is not None:
            origin["__local_path__"] = source["local_path"]
        try:
            files = tar_file_iterator(
                source["stream"], handler=handler, select_files=select_files, rename_files=rename_files
            )
            for file in files:
                yield {**file, **origin}
        except Exception as error:
            if handler(error):
                continue
            return
        if eof_value is not None:
            yield _End() if eof_value == {} else eof_value


class _End(dict[str, Any]):
    """The item that marks the end of an archive: an empty dict, as in webdataset. Older code, such as open_clip, does
    not know this item and reads its ``"fname"``. So a lookup returns a file name that belongs to no sample."""

    def __missing__(self, name: str) -> Any:
        return b"" if name == "data" else ""


def group_by_keys(
    data: Iterable[dict[str, Any]],
    keys: Callable[[str], tuple[str | None, str | None]] = base_plus_ext,
    lcase: bool = True,
    suffixes: Set[str] | None = None,
    handler: Handler = reraise_exception,
) -> Iterator[dict[str, Any]]:
    """Group neighbouring files with the same key, and yield each group as a sample. ``handler`` decides about a
    repeated field."""
    sample: dict[str, Any] | None = None
    for file in data:
        key, field = keys(file["fname"]) if file else (None, None)
        if file and (key is None or field is None):
            continue
        if sample is not None and (not file or key != sample["__key__"]):
            if valid_sample(sample):
                yield sample
            sample = None
        if not file or field is None:
            continue
        field = field.lower() if lcase else field
        sample = sample or {"__key__": key, "__url__": file["__url__"]}
        if field in sample:
            if handler(_twice(file, field)):
                continue
            break
        if suffixes is None or field in suffixes:
            sample[field] = file["data"]
        if "__local_path__" in file:
            sample["__local_path__"] = file["__local_path__"]
    if sample is not None and valid_sample(sample):
        yield sample


def _twice(file: dict[str, Any], field: str) -> DataError:
    message = f'field "{field}" comes twice in one sample'
    return DataError(message, code="duplicate-field", shard=file["__url__"], member=file["fname"])


_STEPS = (url_opener, tar_file_expander, tar_file_iterator, group_by_keys)


def is_changed() -> bool:
    """Return whether a program has replaced one of the steps in this module."""
    return any(globals()[step.__name__] is not step for step in _STEPS)


def tarfile_samples(
    src: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Choose = None,
    rename_files: Rename = None,
) -> Iterator[dict[str, Any]]:
    """Yield the samples of the shards in ``src``, which has a dict ``{"url": ...}`` for each shard. ``handler`` decides
    about a shard that cannot be read to its end; the complete samples before the damage are yielded first."""
    return _Samples(handler, select_files, rename_files, SkipCounts())(src)


def tarfile_to_samples(
    handler: Handler = reraise_exception, select_files: Choose = None, rename_files: Rename = None
) -> NamedStage:
    """Return the stage that opens shards and yields their samples. ``handler`` decides about a shard that cannot be
    read to its end. ``select_files`` and ``rename_files`` are functions of a member's name."""
    return Opening(handler=handler, select_files=select_files, rename_files=rename_files)


OPENS = "tarfile_to_samples"


class Opening(NamedStage):
    """The stage that :func:`tarfile_to_samples` returns."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(OPENS, **kw)
        self.f = tarfile_samples

    def counted_in(self, counts: SkipCounts) -> Any:
        """Return the stage as a function of shards that adds lost samples to ``counts``."""
        return _Samples(**self.kw, counts=counts)


class _Samples:
    """Reads the samples of shards and counts lost samples."""

    __name__ = OPENS

    def __init__(
        self, handler: Handler, select_files: Choose, rename_files: Rename, counts: SkipCounts
    ) -> None:
        self._policy = Policy("raise", counts, handler)
        how: dict[str, Any] = {"select_files": select_files, "rename_files": rename_files}
        self._by_steps = handler, how
        self._files: MemberFilter | None = None
        self._renaming = None if rename_files is None else Renaming(rename_files, select_files, handler)
        if select_files is not None and rename_files is None:
            self._files = MemberFilter(select_files, rename_files)
            self._files.guard = Guard("select_files", handler, counts)

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        if is_changed():
            handler, files = self._by_steps
            streams = url_opener(shards, handler=handler)
            yield from group_by_keys(tar_file_expander(streams, handler=handler, **files), handler=handler)
            return
        for shard in shards:
            if not isinstance(shard, dict) or "url" not in shard:
                raise UsageError(
                    f'tarfile_to_samples() cannot read {shard!r:.80}: shards are {{"url": ...}}',
                    hint="use SimpleShardList(urls), or a generator that yields {'url': ...}",
                )
            try:
                try:
                    yield from self._of_shard(shard)
                except (DataError, StorageError) as error:
                    self._policy.leave_out(FailedSample(error, shard["url"]))
            except StopEpoch:
                return

    def _of_shard(self, shard: dict[str, Any]) -> Iterator[dict[str, Any]]:
        spelled = self._files is not None or self._renaming is not None
        with _opened(shard) as source:
            stored = iter_samples(source)
            if self._renaming is None:
                stored = joined_samples(stored, shard["url"])
            samples: Iterator[Any] = ((sample.key, fields_of(sample.fields, spelled)) for sample in stored)
            if self._renaming is not None:
                samples = with_new_names(samples, self._renaming, shard["url"])
            for key, fields in samples:
                raw: dict[str, Any] = {"__key__": key, "__url__": shard["url"]}
                if shard.get("local_path") is not None:
                    raw["__local_path__"] = shard["local_path"]
                raw |= fields
                raw = raw if self._files is None else self._files(raw)
                if raw is not DROPPED:
                    yield raw


def _opened(shard: dict[str, Any]) -> Source:
    """Open a shard from its ``stream``, or from its address if it has no ``stream``."""
    if "stream" in shard:
        return _source_of(shard["stream"])
    [address] = addresses_of(shard["url"])
    if scheme(address) in gopen_schemes:
        return _source_of(gopen(address))
    return open_source(address)


add_hints(__name__)
