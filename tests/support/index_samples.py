"""Samples of an index that no shard has."""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.shards.index import IndexBuilder


def add_sample(
    builder: IndexBuilder,
    key: bytes,
    start: int,
    fields: Sequence[bytes],
    offsets: Sequence[int],
    sizes: Sequence[int],
) -> None:
    """Add one canonical sample that begins at byte ``start``."""
    for column, new in zip(builder.places, (fields, offsets, sizes)):
        column.extend(new)  # type: ignore[arg-type]
    builder.end_sample(key, start)
