"""This module makes a batch from a list of samples, and samples from a batch.

:func:`default_collation` is webdataset's ``default_collation_fn``, :func:`default_convert` is torch's function of this
name, and :func:`packed` keeps columns of bytes in one buffer. A batch has a column for each field. The type of a
column's first value decides its form: arrays, tensors and numbers become one array or tensor; other values stay in a
list. This module does not import torch at the start, because only samples with tensors need it. In a worker of
WebLoader, arrays and tensors are joined in shared memory, which the main process reads without a copy
(:mod:`~wdscli.loader.stages.shared_memory`). This module does not know where samples
come from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wdscli.arrays import numpy
from wdscli.errors import DataError
from wdscli.loader.read.failures import text_of
from wdscli.loader.stages.shared_memory import WITHOUT_ARRAYS, Packed, shared_array


def default_collation(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Make a batch of samples. Tuples (or lists) become a tuple of columns, dicts become a dict of columns, and other
    samples become one column.

    A column of numbers becomes a numpy array of shape (samples,). A column of numpy arrays or torch tensors becomes one
    array or tensor with a new first dimension. Any other column is a list. With ``combine_scalars=False``, columns of
    numbers stay lists; with ``combine_tensors=False``, columns of arrays and tensors stay lists. Raises DataError for
    samples with different fields, and for arrays of different shapes.

    >>> default_collation([(1, "a"), (2, "b")])
    (array([1, 2]), ['a', 'b'])
    >>> default_collation([{"cls": 1.5}, {"cls": 2}], combine_scalars=False)
    {'cls': [1.5, 2]}
    """
    if not samples:
        raise DataError("the batch has no samples", code="collation")
    first = samples[0]
    if isinstance(first, dict):
        _same_fields(samples)
        names = list(first)
    elif isinstance(first, (list, tuple)):
        _same_lengths(samples)
        names = list(range(len(first)))
    else:
        return combine_values(list(samples), combine_tensors, combine_scalars)
    columns = {}
    for name in names:
        try:
            columns[name] = combine_values(
                [sample[name] for sample in samples], combine_tensors, combine_scalars
            )
        except _Shapes as error:
            column = f'field "{name}"' if isinstance(name, str) else f"value {name} of the tuples"
            hint = "make one shape by map_dict or map_tuple, or use batched(collation_fn=None) for lists"
            said = f"{column} cannot be batched, {error.message}"
            raise _misfit(samples[error.place], said, hint) from None
    return columns if isinstance(first, dict) else tuple(columns.values())


default_collation_fn = default_collation
"""webdataset's name for :func:`default_collation`."""


class _Shapes(DataError):
    """The error of a column of arrays with different shapes. ``place`` is the index of the first array that differs."""

    place = 0


def combine_values(values: list[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """Join the values of one column, in the form that its first value decides; see :func:`default_collation`."""
    first = values[0]
    if isinstance(first, (int, float, numpy.number, numpy.bool_)):
        if not combine_scalars:
            return values
        try:
            return numpy.array(values)
        except ValueError as error:
            raise DataError(f"one column has numbers and other values: {error}", code="collation") from error
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        if not combine_tensors:
            return values
        _same_shapes(values)
        return stacked_tensors(values)
    if combine_tensors and isinstance(first, numpy.ndarray):
        _same_shapes(values)
        return _stacked(values)
    return values


def _stacked(values: list[Any]) -> Any:
    """Join arrays of the same shape. In a worker of WebLoader, the result is in shared memory, which the main process
    reads without a copy."""
    dtype = values[0].dtype
    is_one_type = dtype.isnative and all(
        type(value) is numpy.ndarray and value.dtype == dtype for value in values
    )
    out = shared_array((len(values), *values[0].shape), dtype) if is_one_type else None
    return numpy.stack(values) if out is None else numpy.stack(values, out=out)


def stacked_tensors(values: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Join tensors of the same shape, in the way that :func:`_stacked` joins arrays. The arguments are those of torch's
    ``collate_tensor_fn``."""
    import torch
    from torch.utils.data._utils.collate import collate_tensor_fn

    first = values[0]
    kind = first.dtype, first.layout, first.requires_grad, first.is_quantized
    is_plain = kind[1:] == (torch.strided, False, False) and all(
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and not value.is_nested
        and (value.dtype, value.layout, value.requires_grad, value.is_quantized) == kind
        and value.shape == first.shape
        for value in values
    )
    size_bytes = len(values) * first.nbytes if is_plain else 0
    memory = shared_array((size_bytes,), numpy.dtype("u1"))
    if memory is None:
        return collate_tensor_fn(values, collate_fn_map=collate_fn_map)
    out = torch.from_numpy(memory).view(first.dtype).view(len(values), *first.shape)
    return torch.stack(values, out=out)


def _same_shapes(values: list[Any]) -> None:
    shape = tuple(values[0].shape)
    for place, value in enumerate(values):
        other = getattr(value, "shape", None)
        if other is None or tuple(other) != shape:
            found = type(value).__name__ if other is None else tuple(other)
            error = _Shapes(f"shapes differ: {shape} and {found}", code="collation")
            error.place = place
            raise error


def _same_fields(samples: Sequence[Any]) -> None:
    wanted = samples[0].keys()
    for sample in samples:
        if not isinstance(sample, dict) or sample.keys() != wanted:
            odd = [type(sample).__name__]
            if isinstance(sample, dict):
                odd = sorted(map(str, wanted ^ sample.keys()))
            hint = "keep common fields by to_tuple or rename(keep=False), or use batched(collation_fn=None)"
            raise _misfit(sample, f"samples of one batch have different fields: {', '.join(odd)}", hint)


def _same_lengths(samples: Sequence[Any]) -> None:
    lengths = {len(sample) if isinstance(sample, (list, tuple)) else -1 for sample in samples}
    if len(lengths) > 1:
        raise DataError(f"samples of one batch have different lengths: {sorted(lengths)}", code="collation")


def _misfit(sample: Any, said: str, hint: str) -> DataError:
    shard, key = text_of(sample, "__url__"), text_of(sample, "__key__")
    return DataError(said, code="collation", shard=shard, member=key, hint=hint)


def default_convert(item: Any) -> Any:
    """Return ``item`` with its numpy arrays as tensors, exactly as torch's ``default_convert`` does, which a DataLoader
    without ``batch_size`` calls for each batch. Torch's function looks at each text of a batch, which takes longer than
    reading the batch. This function does not. Write ``DataLoader(batches, batch_size=None,
    collate_fn=wds.default_convert)``; a WebLoader needs no argument for it."""
    kind = type(item)
    if kind in WITHOUT_ARRAYS:
        return item
    if kind is dict:
        return {name: default_convert(value) for name, value in item.items()}
    if kind is list and WITHOUT_ARRAYS.issuperset(map(type, item)):
        return item
    if kind is list or kind is tuple:
        return list(map(default_convert, item))
    from torch.utils.data import default_convert as convert_as_torch

    return convert_as_torch(item)


def unbatched(batch: Any) -> Iterator[Any]:
    """Yield the samples in a batch of columns. Raises TypeError, ValueError."""
    if not isinstance(batch, (dict, list, tuple)):
        raise TypeError(f"unbatched() needs batches that are tuples or dicts, not {type(batch).__name__}")
    columns = batch.values() if isinstance(batch, dict) else batch
    if odd := [column for column in columns if isinstance(column, (dict, str, bytes))]:
        raise TypeError(
            f"unbatched() needs columns, not {type(odd[0]).__name__}; unlisted() splits lists of samples"
        )
    if len({len(column) for column in columns}) > 1:
        raise ValueError("unbatched() needs batches: these have columns of different lengths")
    rows = zip(*columns)
    return (dict(zip(batch, row)) for row in rows) if isinstance(batch, dict) else rows


def unlisted(batch: Any) -> Iterable[Any]:
    """Return the samples in a batch that is a list. Raises TypeError for other batches."""
    if not isinstance(batch, list):
        raise TypeError(f"unlisted() needs lists, not {type(batch).__name__}")
    return batch


def packed(samples: Sequence[Any]) -> Any:
    """Make a batch with :func:`~wdscli.loader.stages.per_batch.default_collation`, and turn columns of bytes into
    :class:`Packed`. Write ``batched(64, collation_fn=wds.packed)``."""
    return in_columns(default_collation(samples))


def concatenated(size: int, truncate: bool, samples: Sequence[Any]) -> Any:
    """Join the arrays of samples to one pack, with at most ``size`` values in all. With ``truncate``, longer arrays are
    shortened to ``size``. The pack is a dict of columns if the samples are dicts, otherwise a tuple of columns. Arrays,
    tensors and lists of numbers are concatenated; other values are joined as in :func:`default_collation`.
    ``position_ids`` counts from
    0 in each sample. ``cu_seqlens`` has 0 and then the end of each sample. In a tuple, ``position_ids`` and
    ``cu_seqlens`` are the last columns. Raises DataError if the arrays of one sample have different lengths, and if the
    pack has more than ``size`` values."""
    if _is_numbers(samples[0]) or not isinstance(samples[0], (dict, tuple, list)):
        samples = [(sample,) for sample in samples]
    rows = samples
    (_same_fields if isinstance(rows[0], dict) else _same_lengths)(rows)
    names = list(rows[0]) if isinstance(rows[0], dict) else list(range(len(rows[0])))
    columns = {name: [row[name] for row in rows] for name in names}
    lengths: list[int] = []
    for name, values in columns.items():
        if all(map(_is_numbers, values)):
            values = [numpy.asarray(value, dtype=None if value else int) for value in values]
        if not getattr(values[0], "shape", ()):
            columns[name] = combine_values(values)
            continue
        values = [value[:size] for value in values] if truncate else values
        found = [len(value) for value in values]
        if lengths and found != lengths:
            odd = next(at for at, (one, other) in enumerate(zip(lengths, found)) if one != other)
            said = f"field {name!r} has {found[odd]} values, another one has {lengths[odd]}"
            raise _misfit(samples[odd], said, "for arrays of different lengths, use packed(collation_fn=)")
        lengths = found
        tensor = type(values[0]).__module__.partition(".")[0] == "torch"
        columns[name] = sys.modules["torch"].cat(values) if tensor else numpy.concatenate(values)
    if not lengths or sum(lengths) > size:
        is_of_bytes = any(isinstance(value, bytes) for values in columns.values() for value in values)
        raise _no_pack(samples[0], sum(lengths), size, is_of_bytes)
    ends = numpy.cumsum([0, *lengths], dtype=numpy.int32)
    position_ids = numpy.concatenate([numpy.arange(length) for length in lengths])
    if isinstance(rows[0], dict):
        return {**columns, "position_ids": position_ids, "cu_seqlens": ends}
    return (*columns.values(), position_ids, ends)


def _no_pack(sample: Any, total: int, size: int, is_of_bytes: bool) -> DataError:
    """Return the error of a pack with ``total`` values: more than ``size``, or 0 if it has no arrays."""
    hint = "the expression of packed() must give the length of the arrays"
    if total:
        return _misfit(sample, f"a pack of {total} values, more than {size}", hint)
    if is_of_bytes:
        hint = "the fields are bytes: call decode() before packed()"
    return _misfit(sample, "a pack without an array", hint)


def _is_numbers(value: Any) -> bool:
    """Return whether a value is a list of numbers, such as the tokens in a JSON field."""
    return type(value) is list and all(type(number) in (int, float) for number in value)


def in_columns(batch: Any) -> Any:
    """Return ``batch`` with each list of bytes replaced by a :class:`Packed`. A batch is a tuple, a dict or a single
    column."""
    if isinstance(batch, dict):
        return {name: _column(values) for name, values in batch.items()}
    return tuple(map(_column, batch)) if isinstance(batch, tuple) else _column(batch)


def _column(values: Any) -> Any:
    is_bytes = type(values) is list and set(map(type, values)) == {bytes}
    return Packed(values) if is_bytes else values
