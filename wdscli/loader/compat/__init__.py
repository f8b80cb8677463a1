"""This package has the names of webdataset that are not methods of a dataset, in modules named like webdataset's.

Some modules of webdataset are modules of this package. Each other module of webdataset is a :class:`_Face`; the table
``_FACES`` says which module of wdscli defines each name. A name of webdataset that is missing here raises an
ImportError that suggests other code (:func:`lacking`). An AttributeError would not work, because ``from
webdataset.cache import FileCache`` would replace its message. For any other missing name, the error is an
AttributeError. The package also has the names of webdataset's module ``compat``. This package does not know the purpose
of the names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from wdscli.errors import nearest

_FACES = {
    "autodecode": """
        wdscli.codecs.images: imagehandler ImageHandler=Images
        wdscli.codecs.media: torch_audio torch_video
        wdscli.codecs.values: basichandlers
        wdscli.codecs.handlers: Continue handle_extension
        wdscli.loader.compat.utils: DecodingError SecurityError decoders pytorch_weights_only torch_loads unpickle_loads
        wdscli.loader.stages.per_sample: Decoder gzfilter
    """,
    "cache": "wdscli.loader.compat.tariterators: StreamingOpen",
    "compat": """
        wdscli.loader.compat.filters: FluidInterface FluidWrapper
        wdscli.loader.place.ranks: check_empty=non_empty
        wdscli.loader.torch_loader: WebLoader
        wdscli.loader.webdataset: WebDataset
    """,
    "extradatasets": """
        wdscli.loader.compat.filters: Dataset FluidWrapper MockDataset repeatedly with_epoch with_length
    """,
    "handlers": """
        wdscli.loader.read.failures: ignore_and_continue ignore_and_stop reraise_exception
        wdscli.loader.read.failures: warn_and_continue warn_and_stop
    """,
    "mix": "wdscli.loader.compat.pipeline: RandomMix RoundRobin",
    "pytorch": """
        torch: TorchTensor=Tensor
        torch.utils.data: DataLoader IterableDataset
    """,
    "shardlists": """
        wdscli.loader.compat.tariterators: MultiShardSample ResampledShards SimpleShardList
        wdscli.loader.compat.tariterators: expand_source expand_urls resampled shardspec
        wdscli.loader.place.ranks: non_empty single_node_only split_by_node split_by_worker
    """,
    "writer": """
        wdscli.codecs.values: default_handlers=ENCODERS make_encoder numpy_dumps torch_dumps
        wdscli.loader.compat.utils: add_handlers imageencoder
        wdscli.shards.webdataset_writers: ShardWriter TarWriter
    """,
}
"""Modules of webdataset whose names are defined in modules of wdscli. A line is ``module: name
webdatasets_name=our_name``."""

_GONE = {
    "WebDataset(urls, cache_dir=..., cache_size=...), which keeps whole remote shards": (
        "FileCache LRUCleanup default_cache_dir download pipe_cleaner url_to_cache_name"
    ),
    'DataPipeline(f, tarfile_to_samples()), where the generator function f yields {"url": path}': (
        "DirectoryShardList"
    ),
    "SimpleShardList(urls)": "shardlist",
    "ResampledShards": "ResampledShardList",
    "expand_urls(text)": "envsubst",
    "WebDataset(pattern), which takes globs and braces": "fnmatch_with_braces glob_with_braces",
    "mcached(), which keeps samples in memory": "LMDBCached",
    "DataPipeline(source, *stages), or one function that calls the others": "compose compose2 pipeline",
    'to_tuple("jpg;png", "cls"), which takes such fields': "parse_field_spec",
    "items.pop(random.randrange(len(items)))": "pick",
    "xdecode(ext=function)": "default_decoders",
    "RandomMix or RoundRobin": "random_samples round_robin_longest round_robin_shortest",
    "mix({urls: weight, ...})": "compute_sample_weights",
    "wdscli.loader.repeatedly(source, nepochs, nbatches)": "repeatedly repeatedly0",
    "len(batch[0])": "guess_batchsize",
    "isinstance(x, collections.abc.Iterable)": "is_iterable",
    'gopen("pipe:COMMAND"), or subprocess.Popen': "gopen_pipe",
    "gopen(address)": "reader",
    '"://" not in url': "islocal",
    "wds verify, which checks shards": "check_tar_format",
    'basichandlers(".cls", data), or decode() for samples': (
        "cbor_loads default_post_handlers default_pre_handlers msgpack_loads npy_loads npz_loads tenbin_loads"
    ),
    "Decoder([])": "default_decoder",
    'decode("rgb8"); wdscli-fields(7) lists such names': "IMAGE_EXTENSIONS imagespecs",
    "TarWriter(address, encoder=...), which encodes samples": (
        "bytestr cbor_dumps encode_based_on_extension encode_based_on_extension1 mp_dumps numpy_npz_dumps tenbin_dumps"
    ),
    "dict(default_handlers)": "make_handlers",
    "encode_tensors(arrays) and decode_tensors(data) of wdscli.codecs.values": "tenbin",
}
INSTEAD = {name: what for what, names in _GONE.items() for name in names.split()}
"""Replacements for names of webdataset 1.0.2 that are missing here. No public pipeline in the tests uses these
names."""

FORMER = {
    "ChoppedDataset": "with_epoch(n)",
    "Curried": "pipelinefilter",
    "Processor": "pipelinefilter",
    "PytorchShardList": "SimpleShardList(urls), split_by_node, split_by_worker",
    "ResizedDataset": "with_epoch(n)",
    "ShardList": "SimpleShardList(urls)",
    "cached_tarfile_to_samples": "tarfile_to_samples(), or WebDataset(urls, cache_dir=...) for remote shards",
}
"""Names that webdataset had before its version 1, and their replacements."""


class _Face(ModuleType):
    """A module of webdataset whose names are defined in other modules. Those modules are imported when a name is first
    used."""

    def __init__(self, name: str, table: str) -> None:
        super().__init__(f"{__name__}.{name}", f"webdataset's module {name}.")
        self.__spec__ = ModuleSpec(self.__name__, None)
        self._homes: dict[str, tuple[str, str]] = {}
        for line in filter(None, map(str.strip, table.splitlines())):
            home, _, names = line.partition(":")
            for entry in names.split():
                theirs, _, ours = entry.partition("=")
                self._homes[theirs] = home, ours or theirs
        self.__all__ = sorted(self._homes)

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            lacking(self.__name__, name)
        home, ours = self._homes[name]
        return getattr(import_module(home), ours)

    def __dir__(self) -> list[str]:
        return list(self.__all__)


def add_hints(module: str) -> None:
    """Make a module of webdataset call :func:`lacking` for names that it lacks. If the module itself defined
    ``__getattr__``, a type checker would accept any name."""
    vars(sys.modules[module])["__getattr__"] = partial(lacking, module)


def lacking(module: str, name: str, names: Iterable[str] = ()) -> NoReturn:
    """Raise the error for a name that ``module`` lacks; the error suggests the most similar of ``names``."""
    if name in INSTEAD:
        raise ImportError(f"{module} has no {name}; write {INSTEAD[name]}", name=module)
    message = f"module {module!r} has no attribute {name!r}"
    if name in FORMER:
        raise AttributeError(f"{message}; webdataset removed it in version 1; write {FORMER[name]}")
    suggestions = nearest(name, names)
    raise AttributeError(f"{message}; did you mean {suggestions[0]}?" if suggestions else message)


_MADE = {name: _Face(name, table) for name, table in _FACES.items()}
sys.modules.update({face.__name__: face for face in _MADE.values()})


def __getattr__(name: str) -> Any:
    if name in _MADE and name != "compat":
        return _MADE[name]
    if name in _MADE["compat"].__all__:
        return getattr(_MADE["compat"], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
