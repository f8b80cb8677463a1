"""webdataset's module for arrays in bytes: ``ten`` and ``tb`` fields. See :mod:`wdscli.codecs.tenbin`."""

from collections.abc import Sequence
from typing import Any

from wdscli.codecs.tenbin import decode_tensors, encode_tensors

__all__ = ["decode_buffer", "encode_buffer", "load", "save"]


def encode_buffer(l: Sequence[Any], infos: Any = None) -> bytes:  # noqa: E741
    """Arrays as bytes."""
    if infos is not None:
        raise TypeError("encode_buffer(infos=): names of arrays are not kept")
    return encode_tensors(l)


def decode_buffer(buf: bytes, infos: bool = False) -> list[Any]:
    """The arrays that :func:`encode_buffer` was given."""
    if infos:
        raise TypeError("decode_buffer(infos=True): names of arrays are not kept")
    return decode_tensors(buf)


def save(fname: str, *args: Any, infos: Any = None) -> None:
    """Write arrays to a file."""
    with open(fname, "wb") as file:
        file.write(encode_buffer(args, infos))


def load(fname: str, infos: bool = False) -> list[Any]:
    """The arrays of a file."""
    with open(fname, "rb") as file:
        return decode_buffer(file.read(), infos)
