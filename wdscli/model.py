"""This module has the records of the public library: one sample, member or shard at a time.

Hot loops never make these records; they work on the columns of ``tar`` and ``samples``. All records are frozen and
slotted. Names are text (:mod:`wdscli.text`). Short commands need no records, and do not load this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Member:
    """One tar member: its name, its kind (``regular``, ``directory``, ``link``, ``special``, ``sparse``) and position.

    ``start`` is the offset of its first header block (extended headers included), ``offset`` the offset of its payload,
    and ``size`` the size of the payload in bytes.
    """

    name: str
    kind: str
    start: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Sample(Mapping[str, bytes]):
    """One sample: a read-only mapping from field to payload, in the order of the shard.

    ``key`` is the sample's key, ``shard`` the address of its shard, and ``index`` its number in the shard, from 0.

    >>> sample = Sample("n01/img7", {"jpg": b"...", "cls": b"7"}, "train-000000.tar", 0)
    >>> sample["cls"], list(sample)
    (b'7', ['jpg', 'cls'])
    """

    key: str
    fields: dict[str, bytes]
    shard: str = ""
    index: int = 0

    def __getitem__(self, name: str) -> bytes:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


@dataclass(frozen=True, slots=True)
class FieldTotals:
    """The number of payloads of a field, and their total size in bytes."""

    count: int
    size_bytes: int


UNKNOWN = -1
"""A count or size that a manifest lacks."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The facts of one whole shard, as in the manifest.

    ``name`` is the file's name without its folder. ``checksum`` is ``algorithm:hex`` or None. ``headers`` is the
    hexadecimal XXH3-64 over all header blocks (see the index format). ``index`` is true if a ``.wdx`` was written with
    the shard. The other fields are not in manifests: ``version`` identifies the written file
    (:mod:`~wdscli.storage.opening`), ``tar_bytes`` is the size of the uncompressed archive, and ``is_copy`` is true if
    the store has copied the shard. Missing facts are :data:`UNKNOWN`, empty or None.
    """

    name: str
    samples: int
    members: int
    size_bytes: int
    headers: str
    checksum: str | None
    fields: Mapping[str, FieldTotals]
    index: bool
    version: str = field(default="", compare=False)
    tar_bytes: int = field(default=UNKNOWN, compare=False)
    is_copy: bool = field(default=False, compare=False)


class Facts(NamedTuple):
    """The facts of a shard that its index has: counts, the digest of its headers, and count and bytes of each field."""

    samples: int
    members: int
    headers: str
    fields: Mapping[str, FieldTotals]

    def of_shard(
        self, name: str, size_bytes: int, *, checksum: str | None, index: bool, tar_bytes: int = UNKNOWN
    ) -> ShardInfo:
        """Return all facts of the shard."""
        return ShardInfo(
            name,
            self.samples,
            self.members,
            size_bytes,
            self.headers,
            checksum,
            self.fields,
            index,
            tar_bytes=tar_bytes,
        )


def contradictions(listed: ShardInfo, shard: ShardInfo | Facts) -> Iterator[str]:
    """Yield each fact of a manifest's entry that differs from the shard. A fact that one of them lacks does not
    differ."""
    for unit in ("samples", "members"):
        listed_count, count = getattr(listed, unit), getattr(shard, unit)
        if UNKNOWN not in (listed_count, count) and listed_count != count:
            yield f"says {listed_count} {unit}, the shard has {count}"
    if listed.headers and shard.headers:
        if listed.headers != shard.headers:
            yield "is for other names, places or sizes than the shard has"
        if listed.fields != shard.fields:
            yield "has other fields or bytes than the shard"


@dataclass(frozen=True, slots=True)
class PendingCommit(Generic[Result]):
    """A finished result that is not yet committed. Call ``result()`` once, or ``discard()``, also during this call. If
    ``waits`` is true, the commit mostly waits for another machine, and may run in another thread. Until it is
    committed, the result keeps ``held_bytes`` bytes in memory."""

    result: Callable[[], Result]
    discard: Callable[[], None] = lambda: None
    waits: bool = False
    held_bytes: int = 0
