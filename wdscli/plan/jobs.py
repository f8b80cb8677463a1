"""How many processes pay for their start: one rule for all commands that write shards.

It must not know what the work is, but for how much there is of it.
"""

from __future__ import annotations

from wdscli.errors import UsageError
from wdscli.executors import default_jobs

WORTH_BYTES = 64 << 20
"""Below this many bytes to be copied, starting processes costs more than they bring."""


def useful_jobs(jobs: int | None, tasks: int, size_bytes: int, worth_bytes: int = WORTH_BYTES) -> int:
    """As many as were asked for (None: one a processor, when there are ``worth_bytes`` to do), never more than there
    are tasks. Raises UsageError.

    >>> useful_jobs(8, 3, 0), useful_jobs(None, 3, 1000)
    (3, 1)
    """
    if jobs is None and size_bytes < worth_bytes:
        return 1
    wanted = default_jobs() if jobs is None else jobs
    if wanted < 1:
        raise UsageError(f"--jobs must be at least 1, not {wanted}")
    return max(1, min(wanted, tasks))
