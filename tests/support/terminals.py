"""Commands on a terminal of their own."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

STYLE_VARIABLES = ("NO_COLOR", "CI", "TMUX", "TERM_PROGRAM", "COLORTERM")


def on_terminal(
    command: Sequence[str], *, shown: str = "stdout", cwd: Path | None = None, **environ: str
) -> str:
    """What a terminal of 100 columns gets of the streams in ``shown`` (``"stdout stderr"`` both).

    All of it is read: a terminal passes on what was written in pieces, and the last may come after the command's end.
    """
    leader, follower = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in STYLE_VARIABLES}
    env |= {"TERM": "xterm", "COLUMNS": "100"} | environ
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | dict.fromkeys(shown.split(), follower)
    with subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, env=env, **streams) as process:
        os.close(follower)
        said = b""
        while chunk := _read(leader):
            said += chunk
        os.close(leader)
        rest = process.communicate()
    assert process.returncode == 0, (said, rest)
    return said.decode().replace("\r\n", "\n")


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""
