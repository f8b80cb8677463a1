"""The memory that this machine, or our control group, can spare.

What it is: :func:`available`. It must not know what the memory is for.
"""

from __future__ import annotations

import os
from contextlib import suppress

_UNLIMITED_BYTES = 1 << 60


def available() -> int:
    """Bytes that are available without swapping: of the machine, or of our control group."""
    return min(_machine(), *(_group(*names) for names in _GROUPS))


def _machine() -> int:
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 1 << 30


_GROUPS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Control groups of version 2 and 1: controller, limit, use, and the part of the use that is cache and can be freed."""


def _group(controller: str, limit: str, use: str, cache: str, root: str = "") -> int:
    """The bytes left in the control group, if it has a limit."""
    root = root or _ROOT
    left = _UNLIMITED_BYTES
    for folder in _folders_of(controller, root):
        with suppress(OSError, ValueError):
            most = int(_read(folder, limit))
            idle = sum(
                int(line.split()[1])
                for line in _read(folder, "memory.stat").splitlines()
                if line.startswith(cache + " ")
            )
            left = min(left, max(0, most - int(_read(folder, use)) + idle))
    return left


_ROOT = "/sys/fs/cgroup"


def _folders_of(controller: str, root: str) -> list[str]:
    """The folders of our group and of its parents: each may have a limit. In a container the group's own folder is the
    root."""
    path = "/"
    with suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, names, place = line.rstrip("\n").split(":", 2)
            if controller in names.split(","):
                path = place
    parts = [part for part in path.split("/") if part]
    base = os.path.join(root, controller) if controller else root
    return [os.path.join(base, *parts[:count]) for count in range(len(parts), -1, -1)]


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
