"""webdataset's writers and encoders, by their module's name there. See :mod:`~wdscli.loader.write.writing`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wdscli.codecs import encode
from wdscli.codecs.encode import make_encoder as make_encoder
from wdscli.codecs.encode import numpy_dumps as numpy_dumps
from wdscli.codecs.encode import torch_dumps as torch_dumps
from wdscli.loader.write.writing import ShardWriter as ShardWriter
from wdscli.loader.write.writing import TarWriter as TarWriter

__all__ = [
    "ShardWriter",
    "TarWriter",
    "add_handlers",
    "bytestr",
    "cbor_dumps",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "mp_dumps",
    "numpy_dumps",
    "numpy_npz_dumps",
    "tenbin_dumps",
    "torch_dumps",
]

default_handlers = encode.ENCODERS
cbor_dumps, mp_dumps = encode.encode_cbor, encode.encode_msgpack
numpy_npz_dumps, tenbin_dumps = encode.encode_npz, encode.encode_bundle


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """A picture, Pillow's or an array, as a file."""
    return encode.encode_image(image, format.lower())


def bytestr(data: Any) -> bytes:
    """``data`` as ASCII."""
    return data if isinstance(data, bytes) else str(data).encode("ascii")


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Let ``value`` encode the extensions ``keys``, a text with blanks between them or a list: in ``default_handlers``
    for all writers that are made from now on."""
    for key in keys.split() if isinstance(keys, str) else keys:
        d[key] = value


def make_handlers() -> dict[str, Any]:
    """Encoders by extension."""
    return dict(default_handlers)


def encode_based_on_extension1(data: Any, tname: str, handlers: Any) -> Any:
    """One value, encoded as its field's extension says."""
    return data if tname.startswith("_") else encode.encode_field(data, tname, handlers)


def encode_based_on_extension(sample: dict[str, Any], handlers: Any) -> dict[str, Any]:
    """All values of a sample, encoded as their fields' extensions say."""
    return {name: encode_based_on_extension1(value, name, handlers) for name, value in sample.items()}
