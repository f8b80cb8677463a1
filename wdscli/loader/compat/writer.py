"""webdataset's writers and encoders, by their module's name there. See :mod:`~wdscli.loader.writing`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wdscli.codecs.images import encode_image
from wdscli.codecs.values import ENCODERS
from wdscli.codecs.values import make_encoder as make_encoder
from wdscli.codecs.values import numpy_dumps as numpy_dumps
from wdscli.codecs.values import torch_dumps as torch_dumps
from wdscli.loader.compat.gone import add_hints
from wdscli.loader.writing import ShardWriter as ShardWriter
from wdscli.loader.writing import TarWriter as TarWriter

__all__ = [
    "ShardWriter",
    "TarWriter",
    "add_handlers",
    "default_handlers",
    "imageencoder",
    "make_encoder",
    "numpy_dumps",
    "torch_dumps",
]

default_handlers = ENCODERS


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode a picture, Pillow's or an array, as a file."""
    return encode_image(image, format.lower())


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Encode the extensions ``keys``, a list or text with blanks between them, by ``value``: in all writers that are
    made from now on."""
    for key in keys.split() if isinstance(keys, str) else keys:
        d[key] = value


add_hints(__name__)
