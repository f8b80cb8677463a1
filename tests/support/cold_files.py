"""Files that the kernel has forgotten, and the ranges that are announced to it."""

from __future__ import annotations

import os

import pytest

from wdscli.storage.local import is_cold


def let_go_of(path: str) -> bool:
    """Have the kernel forget a file's bytes; whether it did."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return is_cold(descriptor, 0)
    finally:
        os.close(descriptor)


def announced_ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges (first byte, length) that are announced from now on."""
    found: list[tuple[int, int]] = []
    original = os.posix_fadvise

    def counted(descriptor: int, offset: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            found.append((offset, length))
        original(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", counted)
    return found
