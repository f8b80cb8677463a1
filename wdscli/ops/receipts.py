"""Receipts: how a run that was ended early knows which of its shards are whole.

What it is: :class:`PlanMark`, the fingerprint of a plan; :class:`Witness`, which leaves a receipt in ``.wds/`` beside
a shard; and :func:`check_shard`, which tells whether shard and receipt agree. How: a receipt is written when the shard
is whole and has not got its name yet, so that no shard of ours has a name without one; it holds the shard's checksum,
which is read again before the shard is believed. Receipts are gone when the manifest is there. It must not know how
shards are made, nor who asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_128, xxh3_128_hexdigest

from wdscli.errors import WdsError
from wdscli.model import ShardInfo, to_text
from wdscli.ops.rows import stored_rows
from wdscli.shards.checksum import new_digest, written
from wdscli.shards.find import scan_index
from wdscli.shards.leftovers import receipt_address
from wdscli.shards.manifest import parse_shard, plain_shard
from wdscli.shards.shardfile import index_address
from wdscli.storage import base_name, exists, open_sink, open_source, read_all
from wdscli.tar import CANONICAL, Form

if TYPE_CHECKING:
    from wdscli.ops.reorder import ReorderPlan
    from wdscli.selection.fields import FieldRule

VERSION = 1
PIECE = 1 << 20


class PlanMark(NamedTuple):
    """The fingerprint of a plan, in four parts so that it can be told what differs. Where it runs, with how many jobs
    and how much memory is no part of it: the bytes do not depend on these."""

    inputs: str
    options: str
    samples: str
    shards: str

    def difference(self, other: PlanMark) -> str:
        """In which way another plan is not this one."""
        if self.options != other.options:
            return "its options were others"
        if self.inputs != other.inputs:
            return "its inputs were others, or have been changed since"
        return "its samples or cuts were others"


def mark_of(plan: ReorderPlan) -> PlanMark:
    """The fingerprint of a plan; of a stored one, the one that was stored."""
    if plan.mark is not None:
        return plan.mark
    rows = xxh3_128()
    for ordered in plan.row_lists:
        for block in ordered.blocks():
            rows.update(stored_rows(block.rows).tobytes())
    # Rounds after the first have the same inputs again.
    inputs = [
        [base_name(one.address), one.stamp.size_bytes, one.stamp.version]
        for one in plan.inputs
        if one.stamp is not None and not one.round
    ]
    shards = [
        [plan.parts[one.part].name, base_name(one.address), one.first, one.end, one.size, one.members]
        for one in plan.planned
    ]
    return PlanMark(
        _digest([len(plan.inputs), *inputs]), _digest(_shaping(plan)), rows.hexdigest(), _digest(shards)
    )


def _shaping(plan: ReorderPlan) -> dict[str, Any]:
    """All that decides the bytes besides the inputs and the samples' order."""
    settings = plan.request.settings
    return {
        "operation": plan.operation,
        "options": dict(plan.options),
        "seed": plan.seed,
        "form": [settings.form.mtime, settings.form.long_names],
        "checksum": settings.checksum,
        "index": settings.with_index,
        "fields": plain_rule(plan.request.selection.field_rule),
        "rekey": plan.rekey.format if plan.rekey else None,
        "preserve": plan.request.preserve,
    }


def plain_rule(rule: FieldRule | None) -> dict[str, Any] | None:
    """A field rule as JSON has it."""
    if rule is None:
        return None
    return {
        "keep": None if rule.keep is None else list(rule.keep),
        "drop": list(rule.drop),
        "rename": [[to_text(one.new), [to_text(old) for old in one.olds]] for one in rule.renames],
    }


def _digest(value: Any) -> str:
    return xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode("ascii"))


class Receipt(NamedTuple):
    """What is known of a shard that is whole. ``index_seal`` is the XXH3-64 of its index's bytes, empty for none;
    ``posted`` says that nothing is left to be done for it."""

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
            }
        ).encode("ascii")


class Witness(NamedTuple):
    """Leaves the receipt of one task's shard: :meth:`leave` is called by the shard. ``posted`` is False when
    more is to be done once the shard has its name; :meth:`done` then says that it was."""

    mark: PlanMark
    task: int
    posted: bool = True

    def leave(self, address: str, shard: ShardInfo, seal: str) -> None:
        _write(address, Receipt(self.mark, self.task, shard, seal, self.posted))

    def done(self, address: str) -> None:
        """Nothing is left to be done for the shard."""
        receipt = read_receipt(address)
        if receipt is not None and not receipt.posted:
            _write(address, receipt._replace(posted=True))


def _write(address: str, receipt: Receipt) -> None:
    with open_sink(receipt_address(address), force=True) as sink:
        sink.write(receipt.to_json())


def read_receipt(address: str) -> Receipt | None:
    """The receipt of a shard; None when there is none, or none that can be read."""
    try:
        return _parse(json.loads(read_all(receipt_address(address))))
    except (WdsError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _parse(plain: Mapping[str, Any]) -> Receipt:
    if (plain["format"], plain["version"]) != ("wdscli-receipt", VERSION):
        raise ValueError
    index = str(plain["index"])
    shard = parse_shard(plain["shard"], bool(index))
    return Receipt(PlanMark(**plain["plan"]), int(plain["task"]), shard, index, bool(plain["posted"]))


class CheckTask(NamedTuple):
    """A shard and what it should be. ``index_seal`` as in :class:`Receipt`, None when nobody knows."""

    address: str
    shard: ShardInfo
    index_seal: str | None
    form: Form = CANONICAL


def check_shard(task: CheckTask) -> str:
    """``whole``, ``unindexed`` (whole, but its index is not), or ``other``. Raises InputError."""
    if not exists(task.address) or not _is_it(task):
        return "other"
    if task.index_seal is None or not task.shard.index:
        return "whole"
    try:
        found = xxh3_64_hexdigest(read_all(index_address(task.address)))
    except WdsError:
        found = ""
    return "whole" if found == task.index_seal else "unindexed"


def _is_it(task: CheckTask) -> bool:
    """Whether the bytes are those that were written: by checksum, without one by size and headers."""
    with open_source(task.address, decompress=False) as source:
        if source.size != task.shard.size_bytes:
            return False
        algorithm = (task.shard.checksum or "none").partition(":")[0]
        digest = new_digest(algorithm)
        if digest is None:
            try:
                return scan_index(source, task.form)[0].digest() == task.shard.headers
            except WdsError:
                return False
        offset = 0
        while data := source.read_some(offset, PIECE):
            digest.update(data)
            offset += len(data)
        return written(algorithm, digest) == task.shard.checksum
