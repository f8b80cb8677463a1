"""Names of webdataset that are not here, and what to write in their place.

What it is: :func:`lacking`, the ``__getattr__`` of webdataset's modules and the last step of that of ``wdscli.loader``.
How: a name that webdataset has is an ImportError with a hint, so that ``from webdataset.cache import FileCache`` shows
the hint too: Python replaces an AttributeError there by a message of its own. Any other name is an AttributeError. It
must not know what the names are for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from wdscli.errors import nearest

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
    "encode_tensors(arrays) and decode_tensors(data) of wdscli.codecs.tenbin": "tenbin",
}
INSTEAD = {name: what for what, names in _GONE.items() for name in names.split()}
"""Replacements for names of webdataset 1.0.2 that no public pipeline of the tests uses."""

FORMER = {
    "ChoppedDataset": "with_epoch(n)",
    "Curried": "pipelinefilter",
    "Processor": "pipelinefilter",
    "PytorchShardList": "SimpleShardList(urls), split_by_node, split_by_worker",
    "ResizedDataset": "with_epoch(n)",
    "ShardList": "SimpleShardList(urls)",
    "cached_tarfile_to_samples": "tarfile_to_samples(), or WebDataset(urls, cache_dir=...) for remote shards",
}
"""Names that webdataset had before its version 1, and what to write in their place."""


def add_hints(module: str) -> None:
    """Let a module of webdataset's raise :func:`lacking` for names that it lacks. As a definition of ``__getattr__``
    there, it would make a type checker accept any name."""
    vars(sys.modules[module])["__getattr__"] = partial(lacking, module)


def lacking(module: str, name: str, names: Iterable[str] = ()) -> NoReturn:
    """Raise the error for a name that ``module`` lacks; the nearest of ``names`` may be meant."""
    if name in INSTEAD:
        raise ImportError(f"{module} has no {name}; write {INSTEAD[name]}", name=module)
    said = f"module {module!r} has no attribute {name!r}"
    if name in FORMER:
        raise AttributeError(f"{said}; webdataset removed it in version 1; write {FORMER[name]}")
    found = nearest(name, names)
    raise AttributeError(f"{said}; did you mean {found[0]}?" if found else said)
