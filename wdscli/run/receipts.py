"""This module does the last steps for one shard: write the receipt, publish the shard, and run the command ``--post
'CMD {}'``.

:func:`make_shard` makes a shard once. A receipt (:class:`Receipt`) is a file in ``.wds/`` beside the shard. It is
written when the shard is complete, but before the shard gets its name. So every published shard has a receipt. The
receipt contains the shard's checksum. A resumed run reads each shard again, and compares it with its receipt
(:func:`check_shard`). Receipts are removed after the manifest is written.

:func:`run_post` runs the command in a shell, on the machine that made the shard. The shard's address, quoted for the
shell, replaces ``{}``. Without ``{}``, the address comes last. The command's output goes to standard error. If the
command fails, this is an error, and no manifest is written.

This module does not know how shards are made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO, Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from wdscli.errors import EngineError, InputNotFoundError, OutputExistsError, WdsError, printable
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.request import PlanMark
from wdscli.schema import check, table_of
from wdscli.shards.index import index_address
from wdscli.shards.locks import receipt_address
from wdscli.shards.manifest import parse_shard, plain_shard
from wdscli.shards.reading import is_shard
from wdscli.shards.writer import after_hook
from wdscli.shown import shown_command
from wdscli.storage import exists, is_local, local_path, open_sink, open_source, read_all
from wdscli.storage.opening import GONE, current_versions
from wdscli.tar import Form

STANDS_FOR_SHARD = "{}"
VERSION = 1
_RECEIPT = {
    "format": "wdscli-receipt",
    "version": VERSION,
    "plan": table_of(PlanMark),
    "task": int,
    "index": str,
    "posted": bool,
    "shard": object,
    "stored?": str,
    "position?": ([int, int], None),
}
"""See :mod:`wdscli.schema` for the form of this table. The manifest's table describes the field ``shard``."""


def post_command(command: str, address: str) -> str:
    """The command for one shard.

    >>> post_command("gzip -k {}", "out 1.tar")
    "gzip -k 'out 1.tar'"
    >>> post_command("sha256sum", "s3://bucket/out-000000.tar")
    'sha256sum s3://bucket/out-000000.tar'
    """
    from shlex import quote

    name = local_path(address) if is_local(address) else address
    # The name of a file must not look like an option.
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
    # Use a file, because a background process of the command could keep a pipe open.
    with TemporaryFile() as printed:
        folder = local_path(".")
        status = subprocess.run(
            ["/bin/sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=printed,
            cwd=folder if os.path.isdir(folder) else None,
        ).returncode
        _pass_on(printed)
        if status:
            how = f"failed with status {status}" if status > 0 else f"was ended by signal {-status}"
            lines = f" ({output})" if (output := last_lines(printed)) else ""
            raise EngineError(
                f"the command after {printable(address)} {how}: {printable(shown_command(line))}{lines}",
                hint="finished shards remain, without a manifest; --resume continues the run",
            )
    return after_hook(shard, address)


def _pass_on(output: IO[bytes]) -> None:
    """Copy the command's output to standard error."""
    output.seek(0)
    while data := output.read(1 << 16):
        while data:
            data = data[os.write(2, data) :]


class Receipt(NamedTuple):
    """The receipt of a complete shard. ``index_seal`` is the XXH3-64 of the index's bytes, or empty without an index.
    ``posted`` means that the ``--post`` command has run, or that there is no command. ``position`` says where the next
    shard begins, if this depends on the samples that were written (:mod:`wdscli.run.rolling`)."""

    mark: PlanMark
    task: int
    posted: bool
    shard: ShardInfo
    index_seal: str
    position: tuple[int, int] | None = None

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "format": "wdscli-receipt",
                "version": VERSION,
                "plan": self.mark._asdict(),
                "task": self.task,
                "index": self.index_seal,
                "posted": self.posted,
                "shard": plain_shard(self.shard),
                "stored": self.shard.version,
                "position": self.position,
            }
        ).encode("ascii")

    def check(self, address: str, form: Form) -> CheckTask:
        """Return the task that checks the shard at an address."""
        return CheckTask(address, self.shard, self.index_seal, form)


def leave_receipt(
    receipt_of: Callable[..., Receipt],
    address: str,
    shard: ShardInfo,
    index_seal: str,
    position: tuple[int, int] | None = None,
) -> None:
    """Write the receipt for a shard. The shard calls this before it is published. ``receipt_of`` is :class:`Receipt`
    with its fields about the task."""
    _write(address, receipt_of(shard, index_seal, position))


class ShardTask(NamedTuple):
    """A worker's task for one shard of the plan with the fingerprint ``mark``. ``make`` makes the shard from
    ``maker_task``, which has the shard's ``address`` and ``settings``. The command ``post`` runs after the shard is
    published."""

    maker_task: Any
    make: Callable[[Any], PendingCommit[ShardInfo]]
    mark: PlanMark
    post: str | None


def make_shard(task: ShardTask) -> ShardInfo | PendingCommit[ShardInfo]:
    """Make one shard. A task may run twice, because a scheduler may lose a worker, or an array job may start again. So
    an existing shard is a success if an earlier attempt of the same plan made it; otherwise it is an error. Without a
    ``post`` command, the commit may be delayed while other shards are made. Raises the errors of ``make``, and
    EngineError if the command fails. The shard stays after a failed command."""
    try:
        ending = task.make(task.maker_task)
    except OutputExistsError as error:
        return _made_before(task, error)
    if ending.waits and task.post is None:
        return replace(ending, result=partial(_end, task, ending))
    return _end(task, ending)


def _end(task: ShardTask, ending: PendingCommit[ShardInfo]) -> ShardInfo:
    """Commit the shard, and then run its command."""
    try:
        return _post(task, ending)
    except OutputExistsError as error:
        return _made_before(task, error)


def _post(task: ShardTask, ending: PendingCommit[ShardInfo]) -> ShardInfo:
    address = task.maker_task.address
    info = run_post(task.post, address, ending.result())
    if task.post is not None:
        task.maker_task.settings.check_folder(address)
        receipt = read_receipt(address)
        if receipt is not None and not receipt.posted:
            _write(address, receipt._replace(posted=True))
    return info


def _made_before(task: ShardTask, error: OutputExistsError) -> ShardInfo:
    """Return the existing shard, if an earlier attempt made it. Otherwise raise ``error``."""
    address, settings = task.maker_task.address, task.maker_task.settings
    receipt = read_receipt(address)
    if receipt is None or not task.mark.accepts(receipt.mark):
        raise error
    state = check_shard(receipt.check(address, settings.form))
    if state == "other":
        raise error
    if state == "whole" and receipt.posted:
        return receipt.shard
    return _post(task, task.make(task.maker_task._replace(settings=settings._replace(force=True))))


def _write(address: str, receipt: Receipt) -> None:
    with open_sink(receipt_address(address), force=True) as sink:
        sink.write(receipt.to_json())


def read_receipt(address: str) -> Receipt | None:
    """Return the receipt of a shard, or None if it is missing or damaged."""
    try:
        plain = json.loads(read_all(receipt_address(address)))
        check(plain, _RECEIPT)
        shard = parse_shard(plain["shard"], bool(plain["index"]))
    except (WdsError, ValueError, RecursionError):
        return None
    mark = PlanMark(*map(plain["plan"].get, PlanMark._fields))
    shard = replace(shard, version=plain.get("stored", ""))
    position = plain.get("position")
    return Receipt(
        mark, plain["task"], plain["posted"], shard, plain["index"], position and (position[0], position[1])
    )


class CheckTask(NamedTuple):
    """The task of checking the shard at an address against the expected shard. ``index_seal`` has the meaning of
    :class:`Receipt`; it is None if unknown. With ``by_size``, only the size is compared."""

    address: str
    shard: ShardInfo
    index_seal: str | None
    form: Form
    by_size: bool = False


def check_shard(task: CheckTask) -> str:
    """Return ``whole`` for the expected shard, ``unindexed`` if only its index is missing or damaged, or ``other``.
    Raises InputError."""
    if not _is_there(task):
        return "other"
    if task.index_seal is None or not task.shard.index:
        return "whole"
    try:
        index_seal = xxh3_64_hexdigest(read_all(index_address(task.address)))
    except WdsError:
        index_seal = ""
    return "whole" if index_seal == task.index_seal else "unindexed"


def _is_there(task: CheckTask) -> bool:
    """Return whether the shard at the address is the expected shard. Compare its version in the store if known,
    otherwise its bytes or size."""
    if task.shard.version and not is_local(task.address):
        version = next(iter(current_versions([task.address])))
        if version in (task.shard.version, GONE):
            return version != GONE
    if task.by_size:
        with suppress(InputNotFoundError), open_source(task.address, decompress=False) as source:
            return source.size == task.shard.size_bytes
        return False
    return exists(task.address) and is_shard(task.address, task.shard, task.form)
