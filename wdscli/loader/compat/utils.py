"""webdataset's small helpers: the rank and worker of a process, seeds, and functions of one payload.

Training code imports these names from ``webdataset.utils``, ``autodecode`` and ``writer``. The decoders and encoders
come from :mod:`wdscli.codecs`. Only ``unpickle_loads`` loads a pickle, for code that calls it by name. This module does
not know datasets."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any, NoReturn

from wdscli.codecs.images import encode_image
from wdscli.codecs.kinds import KINDS, by_form
from wdscli.codecs.values import DEFAULTS, basichandlers, decode_torch
from wdscli.errors import DataError, UsageError
from wdscli.loader.compat import add_hints
from wdscli.loader.compat.filters import PipelineStage as PipelineStage
from wdscli.loader.compat.filters import identity as identity
from wdscli.loader.place.ranks import find_worker, rank_in

__all__ = [
    "PipelineStage",
    "add_handlers",
    "identity",
    "imageencoder",
    "make_seed",
    "pytorch_worker_info",
    "pytorch_worker_seed",
]


class SecurityError(UsageError, ValueError):
    """An operation that WDS_SECURE, or ``enforce_security``, forbids."""


enforce_security = os.environ.get("WDS_SECURE", "0") not in ("", "0")
"""Whether ``gopen`` refuses commands and local files, and ``autodecode`` refuses pickles."""


def want_trust(said: str) -> None:
    """Raise SecurityError with this message if security is enforced."""
    if enforce_security:
        raise SecurityError(said)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers) of this process. The environment's ``WORKER`` and
    ``NUM_WORKERS`` come first. ``group`` is a group of torch.distributed; the ranks are those in the group."""
    rank, world = rank_in(group)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        return rank, world, int(os.environ["WORKER"]), int(os.environ["NUM_WORKERS"])
    return rank, world, *find_worker()


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a different number for each worker of each rank."""
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def make_seed(*args: Any) -> int:
    """Return a seed made of several values."""
    return reduce(lambda seed, arg: (seed * 31 + hash(arg)) & 0x7FFFFFFF, args, 0)


DecodingError = DataError
pytorch_weights_only = True
"""webdataset's switch for loading torch files without running code in them. Here, it is always on."""


def torch_loads(data: bytes) -> Any:
    """Load a payload of ``torch.save`` with ``weights_only``."""
    want_trust("torch.loads is not allowed for security reasons when enforce_security is set.")
    return decode_torch(data)


def unpickle_loads(data: bytes) -> Any:
    """Load a pickle, which may run any code. ``decode()`` of a dataset loads none unless ``"pickle"`` is named."""
    want_trust("Unpickling is not allowed for security reasons when enforce_security is set.")
    return pickle.loads(data)


class _Decoders(dict[str, Callable[[bytes], Any]]):
    """Functions of a payload by extension. The mapping is read-only, because ``decode()`` takes handlers as
    arguments."""

    def __setitem__(self, extension: str, function: Callable[[bytes], Any]) -> NoReturn:
        raise UsageError(
            f"autodecode.decoders[{extension!r}] = ... has no effect here",
            hint=f'decode(wds.handle_extension("{extension}", function))',
        )


decoders = _Decoders(
    {
        **{name: partial(basichandlers, f".{name}") for name in DEFAULTS if KINDS[name].hf},
        **by_form({"pickle": unpickle_loads}),
        "pth": torch_loads,
    }
)


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode a picture, Pillow's or an array, as a file."""
    return encode_image(image, format.lower())


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Encode the extensions ``keys`` (a list, or a text with blanks between extensions) with the function ``value``, in
    all writers that are made later."""
    for key in keys.split() if isinstance(keys, str) else keys:
        d[key] = value


add_hints(__name__)
