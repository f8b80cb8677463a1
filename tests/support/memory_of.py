"""The most memory that a command and all processes it started had at one time."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PERIOD = 0.01


def peak_of_all(*args: object, what: str = "VmRSS") -> int:
    """Run ``wds`` with these words; the greatest sum of resident bytes that was seen, or of ``RssAnon``, those that no
    file stands behind. It must succeed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wdscli", *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(_resident(one, what) for one in _family(process.pid)))
        time.sleep(PERIOD)
    assert process.stderr is not None
    told = process.stderr.read().decode()
    assert process.returncode == 0, told
    return peak


def _family(root: int) -> list[int]:
    """A process and all that descend from it."""
    found, at = [root], 0
    while at < len(found):
        for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
        at += 1
    return found


def _resident(process: int, what: str) -> int:
    with suppress(OSError, StopIteration, ValueError), open(f"/proc/{process}/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(what))
    return 0
