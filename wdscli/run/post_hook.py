"""The hook that runs for each shard once it has its name: ``--post 'CMD {}'``.

What it is: :func:`run_post`. How: a shell runs the command where the shard was made. ``{}`` becomes the shard's
address, quoted for the shell; without it the address comes last, as with xargs. What the command prints goes to
standard error, never among data. A command that fails is an error, and keeps the manifest from being written. It must
not know what the command is for.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import IO

from wdscli.errors import EngineError, printable
from wdscli.model import ShardInfo
from wdscli.shown import shown_command
from wdscli.storage import is_local, local_path
from wdscli.storage.opening import GONE, versions_at

STANDS_FOR_SHARD = "{}"
SAID_LINES = 3
SAID_BYTES = 4096


def post_command(command: str, address: str) -> str:
    """The command for one shard.

    >>> post_command("gzip -k {}", "out 1.tar")
    "gzip -k 'out 1.tar'"
    >>> post_command("sha256sum", "s3://bucket/out-000000.tar")
    'sha256sum s3://bucket/out-000000.tar'
    """
    from shlex import quote

    name = local_path(address) if is_local(address) else address
    # No command may take a file's name for an option.
    name = quote(f"./{name}" if name.startswith("-") else name)
    return command.replace(STANDS_FOR_SHARD, name) if STANDS_FOR_SHARD in command else f"{command} {name}"


def run_post(command: str | None, address: str, shard: ShardInfo) -> ShardInfo:
    """Run the hook for one shard, if there is one, and wait for it; returns what the shard is afterwards. Raises
    EngineError when it fails."""
    if command is None:
        return shard
    import subprocess
    from tempfile import TemporaryFile

    line = post_command(command, address)
    # A file, not a pipe: what the command leaves running must not hold us.
    with TemporaryFile() as said:
        folder = local_path(".")
        status = subprocess.run(
            ["/bin/sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=said,
            cwd=folder if os.path.isdir(folder) else None,
        ).returncode
        _pass_on(said)
        if status:
            how = f"failed with status {status}" if status > 0 else f"was ended by signal {-status}"
            raise EngineError(
                f"the command after {printable(address)} {how}: {printable(shown_command(line))}{_last_words(said)}",
                hint="the shards that are whole stay, without a manifest",
            )
    return after_hook(shard, address)


def _pass_on(said: IO[bytes]) -> None:
    """What the command said, to standard error."""
    said.seek(0)
    while data := said.read(1 << 16):
        while data:
            data = data[os.write(2, data) :]


def _last_words(said: IO[bytes]) -> str:
    """The last lines that the command said."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - SAID_BYTES))
    lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f" ({' | '.join(map(printable, lines[-SAID_LINES:]))})" if lines else ""


def after_hook(shard: ShardInfo, address: str) -> ShardInfo:
    """A shard with which a hook may have done what it likes: what it has left is its own, and nothing there is no
    reason to complain."""
    found = next(iter(versions_at([address])))
    return replace(shard, version="" if found == GONE else found)
