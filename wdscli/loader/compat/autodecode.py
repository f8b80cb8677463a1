"""webdataset's decoders of payloads, by their module's name there. See :mod:`~wdscli.loader.stages.decoding`.

What it is: the handlers and functions of one payload that training code imports from ``webdataset.autodecode``. How:
they are wdscli's. ``unpickle_loads`` loads a pickle, for who calls it by name; nothing else here does. It must not know
samples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from wdscli.codecs.decode_images import EXTENSIONS, SPECS, Images
from wdscli.codecs.decode_images import imagehandler as imagehandler
from wdscli.codecs.decode_media import torch_audio as torch_audio
from wdscli.codecs.decode_media import torch_video as torch_video
from wdscli.codecs.decode_values import (
    DEFAULTS,
    basichandlers,
    decode_cbor,
    decode_msgpack,
    decode_npy,
    decode_npz,
    decode_torch,
)
from wdscli.codecs.kinds import KINDS, by_form
from wdscli.codecs.parts import Continue as Continue
from wdscli.codecs.parts import handle_extension as handle_extension
from wdscli.codecs.tenbin import decode_tensors
from wdscli.errors import DataError, UsageError
from wdscli.loader.compat.utils import SecurityError as SecurityError
from wdscli.loader.compat.utils import want_trust
from wdscli.loader.stages.decoding import Decoder as Decoder
from wdscli.loader.stages.decoding import gzfilter as gzfilter

DecodingError = DataError
ImageHandler = Images
IMAGE_EXTENSIONS = sorted(EXTENSIONS)
imagespecs = {
    name: (
        spec.kind,
        None if spec.kind == "pil" else "float" if spec.is_float else "uint8",
        spec.mode.lower(),
    )
    for name, spec in sorted(SPECS.items(), key=lambda one: one[1].kind)
}
"""What is made of a picture, by name."""
pytorch_weights_only = True
"""webdataset's switch for loading torch files without running what is in them. Here it is always on."""
cbor_loads, msgpack_loads, npy_loads, npz_loads = decode_cbor, decode_msgpack, decode_npy, decode_npz
tenbin_loads = decode_tensors
default_pre_handlers: list[Callable[[str, bytes], Any]] = [gzfilter]
default_post_handlers: list[Callable[[str, bytes], Any]] = [basichandlers]
default_decoder = Decoder([])


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
            f"autodecode.decoders[{extension!r}] = ...: nothing would call it",
            hint=f'decode(wds.handle_extension("{extension}", function))',
        )


decoders = _Decoders(
    {
        **{name: partial(basichandlers, f".{name}") for name in DEFAULTS if KINDS[name].hf},
        **by_form({"pickle": unpickle_loads}),
        "pth": torch_loads,
    }
)
