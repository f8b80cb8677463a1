"""webdataset's decoders of payloads, by their module's name there. See :mod:`~wdscli.loader.stages.decoding`.

What it is: the handlers and functions of one payload that training code imports from ``webdataset.autodecode``. How:
they are wdscli's. ``unpickle_loads`` loads a pickle, for who calls it by name; nothing else here does. It must not know
samples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from wdscli.codecs.decode_images import Images
from wdscli.codecs.decode_images import imagehandler as imagehandler
from wdscli.codecs.decode_media import torch_audio as torch_audio
from wdscli.codecs.decode_media import torch_video as torch_video
from wdscli.codecs.decode_values import DEFAULTS, decode_torch
from wdscli.codecs.decode_values import basichandlers as basichandlers
from wdscli.codecs.kinds import KINDS, by_form
from wdscli.codecs.parts import Continue as Continue
from wdscli.codecs.parts import handle_extension as handle_extension
from wdscli.errors import DataError, UsageError
from wdscli.loader.compat.gone import lacking
from wdscli.loader.compat.utils import SecurityError as SecurityError
from wdscli.loader.compat.utils import want_trust
from wdscli.loader.stages.decoding import Decoder as Decoder
from wdscli.loader.stages.decoding import gzfilter as gzfilter

DecodingError = DataError
ImageHandler = Images
pytorch_weights_only = True
"""webdataset's switch for loading torch files without running what is in them. Here it is always on."""


def torch_loads(data: bytes) -> Any:
    """A payload of ``torch.save``, loaded with ``weights_only``."""
    want_trust("torch.loads is not allowed for security reasons when enforce_security is set.")
    return decode_torch(data)


def unpickle_loads(data: bytes) -> Any:
    """A pickle, which may run anything. ``decode()`` of a dataset loads none unless ``"pickle"`` is named."""
    want_trust("Unpickling is not allowed for security reasons when enforce_security is set.")
    return pickle.loads(data)


class _Decoders(dict[str, Callable[[bytes], Any]]):
    """Functions of a payload by extension, to be read. What ``decode()`` does with an extension is said to it."""

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


if not TYPE_CHECKING:  # a type checker would take every name for one that is there
    __getattr__ = partial(lacking, __name__)
