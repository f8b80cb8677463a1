"""A column of bytes, such as the pictures of a batch, that travels between processes as one buffer.

What it is: :class:`Packed`, and :func:`packed`, a collation function. How: a list of bytes objects is pickled one by
one through a pipe, which is what limits a DataLoader of raw samples; a packed column is one buffer and the sizes of its
parts. A large one travels by torch's shared memory where there is torch, and nothing of it is copied in the main
process before somebody asks for a part. Under the workers of a DataLoader :meth:`batched` packs by itself. It must not
know what the bytes mean.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, overload

from wdscli.loader.place.ranks import in_worker

SHARED = 1 << 20
"""Bytes from which on shared memory costs less than a pipe: torch makes a connection for each tensor."""
IOV = 512
"""Buffers that one system call takes for sure."""


class Packed:
    """Bytes objects in one buffer: a sequence of them, each made when it is asked for.

    It is no list: nothing can be added or changed, ``list(column)`` makes one. Equal to a list with the same values.

    >>> column = Packed([b"ab", b"", b"cde"])
    >>> column[0], column[-1], column[1:], len(column), list(column)
    (b'ab', b'cde', [b'', b'cde'], 3, [b'ab', b'', b'cde'])
    >>> column == [b"ab", b"", b"cde"], bytes(column.view(2)), column.offsets
    (True, b'cde', [0, 2, 2, 5])
    """

    __slots__ = ("_buffer", "_parts", "offsets")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts: Sequence[bytes] | None = parts
        self._buffer: Any = None
        self.offsets = [0, *accumulate(map(len, parts))]
        """Where each part begins in the buffer, and where the last one ends."""

    @property
    def buffer(self) -> memoryview:
        """All parts, one after the other."""
        if self._buffer is None:
            self._buffer = b"".join(self._parts or ())
            self._parts = None
        # A tensor is asked through numpy: it has no buffer of its own.
        return memoryview(self._buffer if isinstance(self._buffer, bytes) else self._buffer.numpy())

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

    def __reversed__(self) -> Iterator[bytes]:
        return iter(list(self)[::-1])

    def __contains__(self, value: object) -> bool:
        return any(part == value for part in self)

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
        data: Any = self._buffer
        # What a worker pickles goes through torch's shared memory.
        if data is None and total >= SHARED and in_worker():
            data = _shared(self._parts or (), total)
        return _unpacked, (self.buffer.tobytes() if data is None else data, sizes)


def _unpacked(buffer: Any, sizes: bytes) -> Packed:
    column = Packed(())
    column._parts, column._buffer = None, buffer
    column.offsets = [0, *accumulate(array("q", sizes))]
    return column


def _shared(parts: Sequence[bytes], total: int) -> Any:
    """The parts in a tensor of bytes in shared memory, written there at once."""
    import torch

    storage = torch.UntypedStorage._new_shared(total)
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    if not _written(storage, parts):
        target = memoryview(tensor.numpy())
        begin = 0
        for part in parts:
            end = begin + len(part)
            target[begin:end] = part
            begin = end
    return tensor


def _written(storage: Any, parts: Sequence[bytes]) -> bool:
    """Whether the parts were written to a storage by its file: pages written so need not be mapped first, which
    takes half the time."""
    try:
        file = storage._get_shared_fd()
    except (AttributeError, RuntimeError):
        return False
    at = 0
    for first in range(0, len(parts), IOV):
        some = parts[first : first + IOV]
        size = sum(map(len, some))
        if size and os.pwritev(file, some, at) != size:
            return False
        at += size
    return True


def packed(samples: Sequence[Any]) -> Any:
    """A batch as :func:`~wdscli.loader.stages.collate.default_collation` makes it, but columns of bytes are
    :class:`Packed`: ``batched(64, collation_fn=wds.packed)``."""
    from wdscli.loader.stages.collate import default_collation

    return in_columns(default_collation(samples))


def in_columns(batch: Any) -> Any:
    """``batch``, a tuple or dict of columns, with those that are lists of bytes packed."""
    if isinstance(batch, dict):
        return {name: _column(values) for name, values in batch.items()}
    return tuple(map(_column, batch)) if isinstance(batch, tuple) else _column(batch)


class Names:
    """Keys or addresses of a batch in a worker: a list of them once it has arrived, and until then nothing that torch
    would look through value by value, which takes as long as all else it does with a batch.

    >>> import pickle
    >>> names = Names(["a", "b"])
    >>> len(names), names[-1], list(names), names == ["a", "b"], names.index("b"), names
    (2, 'b', ['a', 'b'], True, 1, ['a', 'b'])
    >>> pickle.loads(pickle.dumps(names))
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
        return self._values == (other._values if isinstance(other, Names) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._values,)


def for_transport(batch: Any) -> Any:
    """The same where it pays, in a worker process of a DataLoader, with keys and addresses as :class:`Names`."""
    if not in_worker():
        return batch
    batch = in_columns(batch)
    if isinstance(batch, dict):
        _tell_torch()
        for name in ("__key__", "__url__"):
            if type(batch.get(name)) is list:
                batch[name] = Names(batch[name])
    return batch


@cache
def _tell_torch() -> None:
    """Let torch's default_collate, for a DataLoader that makes batches of our batches, take these columns as lists."""
    from torch.utils.data._utils import collate

    def as_lists(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return collate.collate([list(column) for column in batch], collate_fn_map=collate_fn_map)

    for kind in (Packed, Names):
        collate.default_collate_fn_map[kind] = as_lists


def _column(values: Any) -> Any:
    is_bytes = type(values) is list and set(map(type, values)) == {bytes}
    return Packed(values) if is_bytes else values
