"""From a list of samples to a batch and back, and what a batch is on its way between processes.

What it is: :func:`default_collation`, webdataset's ``default_collation_fn``; :class:`Packed`, a column of bytes, such
as the pictures of a batch, as one buffer. How: samples are turned into columns, and each column is joined by the type
of its first value: arrays, tensors and numbers joined, anything else in a list. numpy does it; torch is not imported,
but whoever hands in tensors has it. Inside a DataLoader's worker arrays and tensors are joined in shared memory, from
which they cross without a copy (:mod:`~wdscli.loader.stages.shared_memory`). A list of bytes objects is pickled one by
one through a pipe, which is what limits a DataLoader of raw samples; a packed column is one buffer, in shared memory
when it is large, and the sizes of its parts, and nothing is copied in the main process before somebody asks for a part.
Under the workers of a DataLoader :meth:`batched` packs by itself. It must not know where samples come from, or what the
bytes mean.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, overload

from wdscli.arrays import numpy
from wdscli.errors import DataError
from wdscli.loader.place.ranks import in_worker
from wdscli.loader.stages.handlers import text_of
from wdscli.loader.stages.shared_memory import (
    SHARED_FROM_BYTES,
    Sent,
    lender,
    received,
    shared_array,
    use_here,
)


def default_collation(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """A batch of samples: tuples (or lists) give a tuple of columns, dicts a dict of columns, anything else one column.

    A column of numbers becomes a numpy array of shape (samples,); one of numpy arrays or torch tensors gets a dimension
    more in front; any other is a list. ``combine_scalars=False`` and ``combine_tensors=False`` leave lists. Raises
    DataError for samples that have not the same fields, and for arrays of different shapes.

    >>> default_collation([(1, "a"), (2, "b")])
    (array([1, 2]), ['a', 'b'])
    >>> default_collation([{"cls": 1.5}, {"cls": 2}], combine_scalars=False)
    {'cls': [1.5, 2]}
    """
    if not samples:
        raise DataError("a batch without samples", code="collation")
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
            hint = (
                "bring them to one shape with map_dict or map_tuple, or batched(collation_fn=None) for lists"
            )
            said = f"{column} cannot be batched, {error.message}"
            raise _misfit(samples[error.place], said, hint) from None
    return columns if isinstance(first, dict) else tuple(columns.values())


default_collation_fn = default_collation
"""webdataset's name."""


class _Shapes(DataError):
    """Arrays of different shapes; ``place`` is the first that differs."""

    place = 0


def combine_values(values: list[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """One column, joined by the type of its first value; see :func:`default_collation`."""
    first = values[0]
    if isinstance(first, (int, float, numpy.number, numpy.bool_)):
        if not combine_scalars:
            return values
        try:
            return numpy.array(values)
        except ValueError as error:
            raise DataError(f"numbers and other values in one column: {error}", code="collation") from error
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
    """Arrays of one shape as one, in a worker in memory from which it crosses without a copy."""
    dtype = values[0].dtype
    is_one_type = dtype.isnative and all(
        type(value) is numpy.ndarray and value.dtype == dtype for value in values
    )
    out = shared_array((len(values), *values[0].shape), dtype) if is_one_type else None
    return numpy.stack(values) if out is None else numpy.stack(values, out=out)


def stacked_tensors(values: list[Any], *, collate_fn_map: Any = None) -> Any:
    """The same of tensors, in the place of torch's function."""
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
            told = type(value).__name__ if other is None else tuple(other)
            error = _Shapes(f"shapes differ: {shape} and {told}", code="collation")
            error.place = place
            raise error


def _same_fields(samples: Sequence[Any]) -> None:
    wanted = samples[0].keys()
    for sample in samples:
        if not isinstance(sample, dict) or sample.keys() != wanted:
            odd = [type(sample).__name__]
            if isinstance(sample, dict):
                odd = sorted(map(str, wanted ^ sample.keys()))
            hint = "choose those that all have with to_tuple or rename(keep=False), or batched(collation_fn=None)"
            raise _misfit(sample, f"samples of one batch have different fields: {', '.join(odd)}", hint)


def _same_lengths(samples: Sequence[Any]) -> None:
    lengths = {len(sample) if isinstance(sample, (list, tuple)) else -1 for sample in samples}
    if len(lengths) > 1:
        raise DataError(f"samples of one batch have different lengths: {sorted(lengths)}", code="collation")


def _misfit(sample: Any, said: str, hint: str) -> DataError:
    shard, key = text_of(sample, "__url__"), text_of(sample, "__key__")
    return DataError(said, code="collation", shard=shard, member=key, hint=hint)


def collated(samples: list[Any]) -> Any:
    """One batch of samples, by :func:`default_collation`; under the workers of a DataLoader with columns of bytes
    packed."""
    return for_transport(default_collation(samples))


def unbatched(batch: Any) -> Iterator[Any]:
    """The samples of a batch of columns. Raises TypeError, ValueError."""
    if not isinstance(batch, (dict, list, tuple)):
        raise TypeError(f"unbatched() needs batches that are tuples or dicts, not {type(batch).__name__}")
    columns = batch.values() if isinstance(batch, dict) else batch
    if len({len(column) for column in columns}) > 1:
        raise ValueError("unbatched() needs batches: these have columns of different lengths")
    rows = zip(*columns)
    return (dict(zip(batch, row)) for row in rows) if isinstance(batch, dict) else rows


def unlisted(batch: Any) -> Iterable[Any]:
    """The samples of a list. Raises TypeError."""
    if not isinstance(batch, list):
        raise TypeError(f"unlisted() needs lists, not {type(batch).__name__}")
    return batch


class Packed:
    """Bytes objects in one buffer: a sequence of them, each made when it is asked for.

    Nothing can be added or changed: ``list(column)`` makes a list. Equal to a list with the same values; one that came
    from a worker passes for a list where ``isinstance`` asks, has its methods that change nothing, and of other things
    than bytes, ``Packed(...)`` is a list.

    >>> column = Packed([b"ab", b"", b"cde"])
    >>> column[0], column[-1], column[1:], len(column), list(column)
    (b'ab', b'cde', [b'', b'cde'], 3, [b'ab', b'', b'cde'])
    >>> column == [b"ab", b"", b"cde"], bytes(column.view(2)), column.offsets
    (True, b'cde', [0, 2, 2, 5])
    """

    __slots__ = ("_buffer", "_came", "_parts", "offsets")
    _parts: Sequence[bytes] | None
    _buffer: Any
    _came: bool
    """Whether a worker sent it: torch, in a worker, looks through lists value by value."""
    offsets: list[int]
    """Where each part begins in the buffer, and where the last one ends."""

    def __new__(cls, parts: Iterable[Any]) -> Any:
        """Of what are not only bytes a list: code that moves batches makes ``type(column)(new values)``."""
        values = parts if isinstance(parts, (list, tuple)) else list(parts)
        if not all(isinstance(value, bytes) for value in values):
            return list(values)
        new = object.__new__(cls)
        new._parts, new._buffer, new._came = values, None, False
        new.offsets = [0, *accumulate(map(len, values))]
        return new

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return list if self._came else Packed

    def __getattr__(self, name: str) -> Any:
        if name in ("copy", "count", "index"):
            return getattr(list(self), name)
        raise AttributeError(
            f"a column of bytes that workers sent as one buffer (wds.Packed) has no {name}: list(column) makes a list"
        )

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self]

    @property
    def buffer(self) -> memoryview:
        """All parts, one after the other."""
        if self._buffer is None:
            self._buffer = b"".join(self._parts or ())
            self._parts = None
        return memoryview(self._buffer)

    def view(self, number: int) -> memoryview:
        """One part without a copy. Raises IndexError."""
        place = range(len(self))[number]
        return self.buffer[self.offsets[place] : self.offsets[place + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, which: int) -> bytes: ...

    @overload
    def __getitem__(self, which: slice) -> list[bytes]: ...

    def __getitem__(self, which: int | slice) -> bytes | list[bytes]:
        if isinstance(which, slice):
            return [self[number] for number in range(len(self))[which]]
        if self._parts is not None:
            return self._parts[which]
        return bytes(self.view(which))

    def __iter__(self) -> Iterator[bytes]:
        if self._parts is not None:
            return iter(self._parts)
        buffer, offsets = self.buffer, self.offsets
        return (bytes(buffer[begin:end]) for begin, end in pairwise(offsets))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Packed, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Packed: {len(self)} values, {self.offsets[-1]} bytes>"

    def pin_memory(self, device: Any = None) -> Packed:
        """Itself: bytes do not go to a device as they are. DataLoader(pin_memory=True) asks."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = array("q", [end - begin for begin, end in pairwise(self.offsets)]).tobytes()
        total = self.offsets[-1]
        mine = lender() if total >= SHARED_FROM_BYTES else None
        parts = [self.buffer] if self._parts is None else self._parts
        sent = None if mine is None else mine.written(parts, total)
        return _unpacked, (self.buffer.tobytes() if sent is None else sent, sizes)


def _unpacked(data: Any, sizes: bytes) -> Packed:
    column: Packed = Packed(())
    column._parts, column._came = None, True
    column._buffer = received(data) if isinstance(data, Sent) else data
    column.offsets = [0, *accumulate(array("q", sizes))]
    return column


def packed(samples: Sequence[Any]) -> Any:
    """A batch as :func:`~wdscli.loader.stages.per_batch.default_collation` makes it, but columns of bytes are
    :class:`Packed`: ``batched(64, collation_fn=wds.packed)``."""
    return in_columns(default_collation(samples))


def in_columns(batch: Any) -> Any:
    """``batch``, a tuple or dict of columns, with those that are lists of bytes packed."""
    if isinstance(batch, dict):
        return {name: _column(values) for name, values in batch.items()}
    return tuple(map(_column, batch)) if isinstance(batch, tuple) else _column(batch)


class TextColumn:
    """Keys or addresses of a batch in a worker: a list of them once it has arrived, and until then nothing that torch
    would look through value by value, which takes as long as all else it does with a batch.

    >>> import pickle
    >>> column = TextColumn(["a", "b"])
    >>> len(column), column[-1], list(column), column == ["a", "b"], column.index("b"), column
    (2, 'b', ['a', 'b'], True, 1, ['a', 'b'])
    >>> pickle.loads(pickle.dumps(column))
    ['a', 'b']
    """

    __slots__ = ("_values",)

    def __init__(self, values: list[str]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, which: Any) -> Any:
        return self._values[which]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._values, name)

    def __eq__(self, other: object) -> bool:
        return self._values == (other._values if isinstance(other, TextColumn) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._values,)


def for_transport(batch: Any) -> Any:
    """The same where it pays, in a worker process of a DataLoader, with keys and addresses as :class:`TextColumn`."""
    if not in_worker():
        return batch
    prepare_worker()
    batch = in_columns(batch)
    if isinstance(batch, dict):
        for name in ("__key__", "__url__"):
            if type(batch.get(name)) is list:
                batch[name] = TextColumn(batch[name])
    return batch


@cache
def prepare_worker() -> None:
    """In a worker of a DataLoader: let large arrays cross in memory that is used again, also those that torch's own
    default_collate joins, and let it take our columns as lists."""
    import torch
    from torch.utils.data._utils import collate

    def as_lists(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return collate.collate([list(column) for column in batch], collate_fn_map=collate_fn_map)

    use_here()
    collate.default_collate_fn_map[torch.Tensor] = stacked_tensors
    for kind in (Packed, TextColumn):
        collate.default_collate_fn_map[kind] = as_lists


def _column(values: Any) -> Any:
    is_bytes = type(values) is list and set(map(type, values)) == {bytes}
    return Packed(values) if is_bytes else values
