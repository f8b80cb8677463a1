"""This module has webdataset's small helpers: they find the rank and worker of a process, make seeds, and decode or
encode one payload.

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
    """The error of an operation that the variable WDS_SECURE or ``enforce_security`` forbids."""


enforce_security = os.environ.get("WDS_SECURE", "0") not in ("", "0")
"""Whether ``gopen`` refuses commands and local files, and ``autodecode`` refuses pickles."""


def want_trust(message: str) -> None:
    """Raise SecurityError with the message ``message`` if security is enforced."""
    if enforce_security:
        raise SecurityError(message)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers) of this process. If both environment variables ``WORKER``
    and ``NUM_WORKERS`` are set, they give the last two values. ``group`` is a process group of torch.distributed; the
    returned rank and world size are within this group."""
    rank, world = rank_in(group)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        return rank, world, int(os.environ["WORKER"]), int(os.environ["NUM_WORKERS"])
    return rank, world, *find_worker()


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a seed that is different for each worker of each rank."""
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def make_seed(*args: Any) -> int:
    """Return a seed that depends on several values."""
    return reduce(lambda seed, arg: (seed * 31 + hash(arg)) & 0x7FFFFFFF, args, 0)


DecodingError = DataError
pytorch_weights_only = True
"""webdataset's switch to load torch files without running the code in them. wdscli never runs this code."""


def torch_loads(data: bytes) -> Any:
    """Load a payload that ``torch.save`` made, with ``weights_only=True``."""
    want_trust("torch.loads is not allowed for security reasons when enforce_security is set.")
    return decode_torch(data)


def unpickle_loads(data: bytes) -> Any:
    """Load a pickle, which may run any code. A dataset's ``decode()`` loads no pickles unless its arguments name
    ``"pickle"``."""
    want_trust("Unpickling is not allowed for security reasons when enforce_security is set.")
    return pickle.loads(data)


class _Decoders(dict[str, Callable[[bytes], Any]]):
    """A mapping from extensions to functions that decode a payload. The mapping is read-only, because ``decode()``
    takes handlers as arguments."""

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
    """Return the bytes of a picture file. The picture is a Pillow image or an array."""
    return encode_image(image, format.lower())


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Register the function ``value`` as the encoder of the extensions ``keys``, for all writers that are made later.
    ``keys`` is a list, or text with blanks between extensions."""
    for key in keys.split() if isinstance(keys, str) else keys:
        d[key] = value


add_hints(__name__)
