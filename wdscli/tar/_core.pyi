"""What the compiled core has; the essays are at the heads of ``_core.c`` and ``_files.c``."""

from collections.abc import Callable, Sequence
from typing import Any

from wdscli.model import Sample
from wdscli.tar.scan import Columns

Buffer = bytes | bytearray | memoryview
Archive = tuple[int, Columns, bytes, bool, int, int]
Column = Any
"""Packed i64: bytes, or an array of numpy."""
Block = tuple[Any, ...]
Places = tuple[list[bytes], list[int], list[int]]

def scan(buffer: Buffer, at: int, base: int, archive: Archive, /) -> int: ...
def hop(descriptor: int, at: int, most: int, archive: Archive, /) -> int: ...
def group(
    names: list[bytes],
    flags: list[int],
    row: int,
    prefix: bytes,
    keys: list[bytes],
    firsts: list[int],
    fields: list[bytes],
    /,
) -> int: ...
def cut(
    buffer: Buffer,
    base: int,
    columns: Columns,
    row: int,
    descriptor: int,
    limit: int,
    prefix: bytes,
    texts: dict[bytes, str | None],
    kind: type[Sample],
    shard: str,
    samples: list[Sample],
    /,
) -> int: ...
def says(headers: bytes, name: bytes, size: int, /) -> bool: ...
def read(
    table: tuple[Any, ...],
    names: list[str | None],
    places: list[int],
    descriptor: int,
    limit: int,
    buffers: list[bytes],
    bases: list[int],
    begun: list[Any] | None = ...,
    known: list[Any] | None = ...,
    rows: list[int] | None = ...,
    /,
) -> tuple[list[dict[str, Any] | None], int, int]: ...
def header(name: bytes, size: int, mtime_field: bytes, /) -> bytes | None: ...
def pack(
    buffer: Buffer, begins: Any | None, mtime_field: bytes, gnu_names: bool, /
) -> (
    tuple[list[bytes], bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, int, int] | None
): ...
def settle(buffer: bytearray | memoryview, mtime_field: bytes, gnu_names: bool, /) -> int: ...
def hashes(keys: Buffer, lengths: Any, seed: int, /) -> bytes | None: ...
def remember(
    table: bytearray,
    keys: Any,
    log: Buffer,
    at: int,
    factor: int | None,
    repeated: list[int] | None,
    /,
) -> bool: ...
def members(
    buffer: bytearray,
    used: int,
    prefix: bytes,
    members: Sequence[tuple[bytes, Buffer]],
    mtime_field: bytes,
    base: int,
    columns: Places,
    /,
) -> int: ...
def headers(
    buffer: bytearray, rows: bytes, ends: Column, sizes: Column, places: Column, mtime_field: bytes, /
) -> int: ...
def order(blocks: list[Block], /) -> bytes | None: ...
def heads(blocks: list[Block], numbers: Column, /) -> bytes: ...
def gather(blocks: list[Block], numbers: Column, /) -> tuple[bytes, bytes, bytes, bytes]: ...
def load(
    buffer: bytearray, descriptors: Column, rows: bytes, ends: Column, sizes: Column, places: Column, /
) -> int: ...
def folder(
    path: bytes,
    prefix: bytes,
    suffix: bytes,
    begin: Callable[[list[bytes]], bool],
    take: Callable[[bytes, bytes, bytes], object],
    others: Callable[[list[bytes]], object],
    /,
) -> None: ...
