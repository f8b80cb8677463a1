"""Sets for the tests of the loader, what is in them by other eyes than the loader's, and counts of what is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from storage_servers import Web

from wdscli.shards import ShardReader, ShardWriter
from wdscli.tar import core

Raw = dict[str, Any]


def oracle(addresses: list[str]) -> list[Raw]:
    """All samples of some shards, as ShardReader reads them one behind the other."""
    found = []
    for address in addresses:
        with ShardReader(address) as reader:
            found += [{"__key__": one.key, "__url__": address, **one} for one in reader]
    return found


def write_set(
    folder: Path, count: int = 23, per_shard: int = 5, image: int = 700, prefix: str = "in"
) -> list[str]:
    """A set with a manifest and indexes: a class, a JSON with ``width`` and an image of ``image`` bytes a sample."""
    with ShardWriter(f"{folder}/{prefix}-%03d.tar", max_count=per_shard) as writer:
        for number in range(count):
            payloads = {
                "cls": b"%d" % (number % 3),
                "jpg": bytes([number % 251]) * image,
                "json": b'{"width": %d}' % number,
            }
            writer.write(f"n{number % 4:02d}/img{number:04d}", payloads)
    return [f"{folder}/{shard.name}" for shard in writer.manifest.shards]


def serve(web: Web, folder: Path) -> None:
    """Every file below ``folder`` by its path in it."""
    for path in folder.rglob("*"):
        if path.is_file():
            web.files[path.relative_to(folder).as_posix()] = path.read_bytes()


class Reads:
    """The (offset, bytes) of every read of files of this process, and where they lay; without the compiled core, whose
    reads are not seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[tuple[str, int, int]] = []
        real = os.pread

        def pread(descriptor: int, size: int, offset: int) -> bytes:
            data = real(descriptor, size, offset)
            self.of.append((os.readlink(f"/proc/self/fd/{descriptor}"), offset, len(data)))
            return data

        def refuse(_: int, views: object, offset: int, flags: int = 0) -> int:
            # With flags, this only asks whether a byte is in memory.
            if flags:
                return 1
            raise AssertionError("a read that is not counted")

        monkeypatch.setattr(core, "CORE", None)
        monkeypatch.setattr(os, "pread", pread)
        monkeypatch.setattr(os, "preadv", refuse)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.of)

    def forget(self) -> None:
        self.of.clear()
