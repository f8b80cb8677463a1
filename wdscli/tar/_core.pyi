"""What the compiled core has; the essay is at the head of ``_core.c``."""

from collections.abc import Callable, Sequence
from typing import Any

from wdscli.model import Sample
from wdscli.tar.scan import Columns

Buffer = bytes | bytearray | memoryview
Archive = tuple[int, Columns, bytes, bool, int, int]
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
def files(
    buffer: bytearray,
    enough: int,
    folder: int,
    rows: list[bytes],
    sizes: list[int],
    at: int,
    end: int,
    mtime_field: bytes,
    base: int,
    columns: tuple[list[bytes], list[int], list[int]],
    /,
) -> tuple[int, int]: ...
def folder(
    path: bytes,
    prefix: bytes,
    suffix: bytes,
    begin: Callable[[list[bytes]], bool],
    take: Callable[[list[tuple[bytes, int]]], object],
    others: Callable[[list[bytes]], object],
    /,
) -> None: ...
