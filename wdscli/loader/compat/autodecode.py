"""webdataset's decoders of payloads, by their module's name there. See :mod:`~wdscli.loader.stages.decoding`.

What it is: the handlers and functions of one payload that training code imports from ``webdataset.autodecode``. How:
they are wdscli's. ``unpickle_loads`` loads a pickle, for code that calls it by name; nothing else here does. It must
not know samples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from wdscli.codecs.handlers import Continue as Continue
from wdscli.codecs.handlers import handle_extension as handle_extension
from wdscli.codecs.images import Images
from wdscli.codecs.images import imagehandler as imagehandler
from wdscli.codecs.kinds import KINDS, by_form
from wdscli.codecs.media import torch_audio as torch_audio
from wdscli.codecs.media import torch_video as torch_video
from wdscli.codecs.values import DEFAULTS, decode_torch
from wdscli.codecs.values import basichandlers as basichandlers
from wdscli.errors import DataError, UsageError
from wdscli.loader.compat.gone import add_hints
from wdscli.loader.compat.utils import SecurityError as SecurityError
from wdscli.loader.compat.utils import want_trust
from wdscli.loader.stages.decoding import Decoder as Decoder
from wdscli.loader.stages.decoding import gzfilter as gzfilter

DecodingError = DataError
ImageHandler = Images
pytorch_weights_only = True
"""webdataset's switch for loading torch files without running code in them. Here it is always on."""


def torch_loads(data: bytes) -> Any:
    """Load a payload of ``torch.save`` with ``weights_only``."""
    want_trust("torch.loads is not allowed for security reasons when enforce_security is set.")
    return decode_torch(data)


def unpickle_loads(data: bytes) -> Any:
    """Load a pickle, which may run any code. ``decode()`` of a dataset loads none unless ``"pickle"`` is named."""
    want_trust("Unpickling is not allowed for security reasons when enforce_security is set.")
    return pickle.loads(data)


class _Decoders(dict[str, Callable[[bytes], Any]]):
    """Functions of a payload by extension, for reading only: ``decode()`` takes handlers as arguments."""

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


add_hints(__name__)
