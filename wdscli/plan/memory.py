"""How memory is shared out: among processes, the plan, and what tasks hold.

What it is: :class:`Limits`, made by :func:`limits_for` from ``--memory`` or from what the machine has to spare. How: a
process costs what Python and numpy cost before it has done anything (measured); the number of processes is the largest
that fits, the rest is shared between the plan and the tasks. Too little is a warning and the least there can be, never
a failure. The page cache is counted by nobody, but buckets are cut so that some of them fit in it.

It must not know what is done with the memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from wdscli.errors import EngineError, UsageError
from wdscli.executors import default_jobs
from wdscli.units import human_size

MIB = 1 << 20
MAIN = 44 * MIB
"""Resident bytes of the command itself with numpy and its bars, before it holds a row."""
WORKER = 34 * MIB
"""Resident bytes of a worker that has done nothing yet, and those by which the command grows that starts it."""
LEAST_TASK = 8 * MIB
"""What a task holds at least: buffers, rows of some thousand samples, an index of some."""
LEAST_PLAN = 4 * MIB
_UNLIMITED = 1 << 60


class Limits(NamedTuple):
    """``plan`` bytes for columns while a plan is made, when no other process is at work. Afterwards ``jobs`` processes
    at most, ``task`` bytes for what one task loads, and ``cache`` bytes that lie in the page cache for sure. ``given``
    is whether somebody asked for a limit."""

    jobs: int
    plan: int
    task: int
    cache: int
    given: bool = False
    warning: str = ""


def limits_for(memory: int | None, jobs: int | None, held: int = 0) -> Limits:
    """The shares for ``--memory`` (None: what the machine has to spare) and ``--jobs``, where a plan that is made
    already has ``held`` bytes."""
    wanted = default_jobs() if jobs is None else jobs
    free = available()
    cache = _between(64 * MIB, free // (4 * wanted), 1 << 30)
    if memory is None:
        spare = max(free // 2, 256 * MIB)
        return Limits(wanted, spare // 2, _between(LEAST_TASK, spare // (4 * wanted), 64 * MIB), cache)
    fitting = max((count for count in range(1, wanted + 1) if least(count) + held <= memory), default=1)
    warning = ""
    if least(1) > memory:
        warning = f"--memory {human_size(memory)} is less than the least there can be, {human_size(least(1))}"
    rest = max(0, memory - least(fitting) - held)
    return Limits(
        fitting,
        max(LEAST_PLAN, memory - MAIN),
        _between(MIB, rest // (3 * fitting), 256 * MIB),
        cache,
        True,
        warning,
    )


def least(jobs: int) -> int:
    """What so many jobs take at least, in bytes; one job is done by the command itself."""
    processes = MAIN if jobs == 1 else MAIN + jobs * WORKER
    return processes + jobs * LEAST_TASK + LEAST_PLAN


def check_fits(samples: int, bytes_per_sample: int, limits: Limits) -> None:
    """Refuse a plan over so many samples that does not fit, before anything is done about it. Raises UsageError where
    ``--memory`` is too little for it, EngineError where the machine is."""
    needed = samples * bytes_per_sample
    text = f"a plan of {samples} samples takes {human_size(needed)} of memory"
    if limits.given and needed > limits.plan:
        raise UsageError(
            f"{text}, and --memory leaves {human_size(limits.plan)} for it",
            hint=f"--memory {-(-(needed + MAIN) // MIB)}MiB",
        )
    if not limits.given and needed > available():
        raise EngineError(
            f"{text}, and {human_size(available())} are free",
            hint="reorder parts of the set, or use a larger machine",
        )


def give_back() -> None:
    """Hand memory that is free to the kernel. The C library keeps what was let go of, tens of MB after a sort, and the
    processes that are started next have a share of the same limit."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def available() -> int:
    """Bytes that can be had without pushing anybody out: of the machine, or of the control group we are in."""
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
"""Version 2 and version 1: controller, limit, use, and what of the use is cache that goes when it must."""


def _group(controller: str, limit: str, use: str, cache: str, root: str = "") -> int:
    """Bytes that are left in the control group, as far as it has a limit."""
    root = root or _ROOT
    left = _UNLIMITED
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
    """Our group's folder and those above it: each may have a limit. In a container the group's own is the root."""
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
