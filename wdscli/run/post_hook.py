"""The command that runs for each shard after its commit: ``--post 'CMD {}'``.

What it is: :func:`run_post`. How: a shell runs the command on the machine that made the shard. ``{}`` becomes the
shard's address, quoted for the shell; without it the address comes last, as with xargs. The command's output goes to
standard error. A command that fails is an error, and no manifest is written. It must not know what the command does.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import IO

from wdscli.errors import EngineError, printable
from wdscli.model import ShardInfo
from wdscli.shown import shown_command
from wdscli.storage import is_local, local_path
from wdscli.storage.opening import GONE, current_versions

STANDS_FOR_SHARD = "{}"


def post_command(command: str, address: str) -> str:
    """The command for one shard.

    >>> post_command("gzip -k {}", "out 1.tar")
    "gzip -k 'out 1.tar'"
    >>> post_command("sha256sum", "s3://bucket/out-000000.tar")
    'sha256sum s3://bucket/out-000000.tar'
    """
    from shlex import quote

    name = local_path(address) if is_local(address) else address
    # A file's name must not look like an option.
    name = quote(f"./{name}" if name.startswith("-") else name)
    return command.replace(STANDS_FOR_SHARD, name) if STANDS_FOR_SHARD in command else f"{command} {name}"


def run_post(command: str | None, address: str, shard: ShardInfo) -> ShardInfo:
    """Run the command, if any, for one shard, and wait for it. Return the shard with its version after the command.
    Raises EngineError if the command fails."""
    if command is None:
        return shard
    import subprocess
    from tempfile import TemporaryFile

    from wdscli.transform.commands import last_lines

    line = post_command(command, address)
    # A file, not a pipe, because a process that the command leaves behind would keep a pipe open.
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
            lines = f" ({output})" if (output := last_lines(said)) else ""
            raise EngineError(
                f"the command after {printable(address)} {how}: {printable(shown_command(line))}{lines}",
                hint="whole shards stay, without a manifest",
            )
    return after_hook(shard, address)


def _pass_on(said: IO[bytes]) -> None:
    """Copy the command's output to standard error."""
    said.seek(0)
    while data := said.read(1 << 16):
        while data:
            data = data[os.write(2, data) :]


def after_hook(shard: ShardInfo, address: str) -> ShardInfo:
    """A shard as its command left it, which may have changed or removed it."""
    found = next(iter(current_versions([address])))
    return replace(shard, version="" if found == GONE else found)
