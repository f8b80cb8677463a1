"""The last steps of one shard: its receipt, its name, and the command ``--post 'CMD {}'``.

:func:`make_shard` makes a shard once. A receipt (:class:`ReceiptWriter`) is a file in ``.wds/`` beside the shard. It is
written when the shard is whole and before the shard has its name, so that every named shard has one. It holds the
shard's checksum. A resumed run compares shards with their receipts (:func:`check_shard`): it reads the shard again
before it believes the receipt. Receipts are removed after the manifest is written.

:func:`run_post` runs the command, by a shell, on the machine that made the shard. ``{}`` becomes the shard's address,
quoted for the shell. Without ``{}`` the address comes last, as with xargs. The command's output goes to standard error.
A command that fails is an error, and no manifest is written.

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
from wdscli.schema import check
from wdscli.shards.claims import receipt_address
from wdscli.shards.index import index_address
from wdscli.shards.manifest import parse_shard, plain_shard
from wdscli.shards.reading import is_shard
from wdscli.shown import shown_command
from wdscli.storage import exists, is_local, local_path, open_sink, open_source, read_all
from wdscli.storage.opening import GONE, current_versions
from wdscli.tar import Form

STANDS_FOR_SHARD = "{}"
VERSION = 1
_RECEIPT = {
    "format": "wdscli-receipt",
    "version": VERSION,
    "plan": dict.fromkeys(PlanMark._fields, str),
    "task": int,
    "index": str,
    "posted": bool,
    "shard": object,
    "stored?": str,
}
""":mod:`wdscli.schema` explains the table. The manifest's table has the shard."""


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
                hint="finished shards remain, without a manifest; --resume continues the run",
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


class Receipt(NamedTuple):
    """A whole shard. ``index_seal`` is the XXH3-64 of its index's bytes, empty for none; ``posted`` means that its
    ``--post`` command has run, or that there is none."""

    mark: PlanMark
    task: int
    shard: ShardInfo
    index_seal: str
    posted: bool

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
            }
        ).encode("ascii")

    def check(self, address: str, form: Form) -> CheckTask:
        """The task that checks the shard at an address."""
        return CheckTask(address, self.shard, self.index_seal, form)


class ReceiptWriter(NamedTuple):
    """Writes the receipt of one task's shard: the shard calls :meth:`leave`. With ``posted`` False a command follows
    when the shard has its name; :meth:`done` records that it has run."""

    mark: PlanMark
    task: int
    posted: bool = True

    def leave(self, address: str, shard: ShardInfo, seal: str) -> None:
        _write(address, Receipt(self.mark, self.task, shard, seal, self.posted))

    def done(self, address: str) -> None:
        """Record that nothing is left to do for the shard."""
        receipt = read_receipt(address)
        if receipt is not None and not receipt.posted:
            _write(address, receipt._replace(posted=True))


class ShardTask(NamedTuple):
    """A worker's task for one shard: ``make`` makes it of ``given``, which has the shard's ``address`` and
    ``settings``; the witness writes the receipt; and the command ``post`` runs when the shard has its name."""

    given: Any
    make: Callable[[Any], PendingCommit[ShardInfo]]
    witness: ReceiptWriter
    post: str | None


def make_shard(task: ShardTask) -> ShardInfo | PendingCommit[ShardInfo]:
    """Make one shard, once. A task may run twice (a scheduler lost a worker, an array job was sent again), so an
    existing shard is a success if an earlier attempt of the same plan made it, else an error. Without a ``post``
    command the commit may wait while other shards are made. Raises what ``make`` raises, and EngineError if the command
    fails; the shard stays."""
    try:
        ending = task.make(task.given)
    except OutputExistsError as error:
        return _made_before(task, error)
    if ending.waits and task.post is None:
        return replace(ending, result=partial(_end, task, ending))
    return _end(task, ending)


def _end(task: ShardTask, ending: PendingCommit[ShardInfo]) -> ShardInfo:
    """Commit the shard and run the command after it."""
    try:
        return _post(task, ending)
    except OutputExistsError as error:
        return _made_before(task, error)


def _post(task: ShardTask, ending: PendingCommit[ShardInfo]) -> ShardInfo:
    address, witness = task.given.address, task.witness
    info = run_post(task.post, address, ending.result())
    if not witness.posted:
        task.given.settings.check_folder(address)
        witness.done(address)
    return info


def _made_before(task: ShardTask, error: OutputExistsError) -> ShardInfo:
    """The existing shard, if an earlier attempt made it. Raises ``error`` otherwise."""
    address, settings = task.given.address, task.given.settings
    receipt = read_receipt(address)
    if receipt is None or not task.witness.mark.accepts(receipt.mark):
        raise error
    state = check_shard(receipt.check(address, settings.form))
    if state == "other":
        raise error
    if state == "whole" and receipt.posted:
        return receipt.shard
    return _post(task, task.make(task.given._replace(settings=settings._replace(force=True))))


def _write(address: str, receipt: Receipt) -> None:
    with open_sink(receipt_address(address), force=True) as sink:
        sink.write(receipt.to_json())


def read_receipt(address: str) -> Receipt | None:
    """The receipt of a shard; None if it is missing or damaged."""
    try:
        plain = json.loads(read_all(receipt_address(address)))
        check(plain, _RECEIPT)
        shard = parse_shard(plain["shard"], bool(plain["index"]))
    except (WdsError, ValueError, RecursionError):
        return None
    mark = PlanMark(*map(plain["plan"].get, PlanMark._fields))
    shard = replace(shard, version=plain.get("stored", ""))
    return Receipt(mark, plain["task"], shard, plain["index"], plain["posted"])


class CheckTask(NamedTuple):
    """An address and the shard expected there. ``index_seal`` as in :class:`Receipt`, None if it is unknown. With
    ``by_size`` only the size is compared."""

    address: str
    shard: ShardInfo
    index_seal: str | None
    form: Form
    by_size: bool = False


def check_shard(task: CheckTask) -> str:
    """``whole``, ``unindexed`` (whole, but its index is missing or damaged), or ``other``. Raises InputError."""
    if not _is_there(task):
        return "other"
    if task.index_seal is None or not task.shard.index:
        return "whole"
    try:
        found = xxh3_64_hexdigest(read_all(index_address(task.address)))
    except WdsError:
        found = ""
    return "whole" if found == task.index_seal else "unindexed"


def _is_there(task: CheckTask) -> bool:
    """Whether a shard is the expected one: by its version in the store, if that is known, else by its bytes or size."""
    if task.shard.version and not is_local(task.address):
        found = next(iter(current_versions([task.address])))
        if found in (task.shard.version, GONE):
            return found != GONE
    if task.by_size:
        with suppress(InputNotFoundError), open_source(task.address, decompress=False) as source:
            return source.size == task.shard.size_bytes
        return False
    return exists(task.address) and is_shard(task.address, task.shard, task.form)
