"""A plan as a file, from which any machine makes any of its shards: wdscli-plan(5).

What it is: :func:`write_plan` and :func:`load_plan`. How: rows first, in output order, then the shards, then a header
in JSON, then a tail that says where the header is; so a plan is written in one go, and who makes one shard reads the
header and a slice of rows. Every part has a seal, and a task checks the seals of what it reads. Local addresses are
absolute in a plan, because its tasks may run in any folder. It must not know where or when tasks run.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from wdscli import __version__
from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes
from wdscli.ops.beside import JoinCounts, Joined
from wdscli.ops.outputs import Outputs
from wdscli.ops.receipts import PlanMark, mark_of, plain_rule
from wdscli.ops.rekey import Rekey
from wdscli.ops.reorder import PlannedPart, PlannedShard, ReorderPlan, Request
from wdscli.ops.rows import Ordered, Samples, row_type, stored_rows, stored_type
from wdscli.ops.scratch import Input, Stamp
from wdscli.selection import Selection
from wdscli.selection.fields import FieldRule, Rename
from wdscli.shards.inputs import ShardSet
from wdscli.shards.output import ShardSettings
from wdscli.storage import Source, is_local, is_stream, local_path, open_sink, open_source
from wdscli.tar import Form

if TYPE_CHECKING:
    from wdscli.ops.rows import U64, Rows
    from wdscli.storage import Sink

MAGIC = b"WDSPLAN\x01"
VERSION = 1
TAIL = struct.Struct("<QQQ8s")
"""Where the header begins, its bytes, its seal, and the magic again."""
SHARD = struct.Struct("<QQQQII")
"""First sample, end, bytes, members, part, number in the part; a seal for each list of rows follows."""
SEAL = struct.Struct("<Q")
ROW_BYTES = 45
BLOCK = 1 << 16


def write_plan(plan: ReorderPlan, address: str, *, force: bool = False) -> None:
    """Write a plan. Raises UsageError for one that needs what only this process has, OutputError."""
    check_storable(plan, address)
    header = _header(plan)
    with open_sink(address, force=force) as sink:
        sink.write(MAGIC)
        seals = []
        for ordered in plan.row_lists:
            header["rows"].append(sink.written)
            seals.append(list(_write_rows(plan, ordered, sink)))
        shards = b"".join(map(_packed_shard, plan.planned, zip(*seals, strict=True)))
        header["shards"] = [sink.written, len(plan.planned), f"{xxh3_64_intdigest(shards):016x}"]
        sink.write(shards)
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
        tail = TAIL.pack(sink.written, len(text), xxh3_64_intdigest(text), MAGIC)
        sink.write(text)
        sink.write(tail)


def check_storable(plan: ReorderPlan, address: str) -> None:
    """Raise UsageError for a plan that others cannot run, and for a place that cannot be read again."""
    if is_stream(address):
        raise UsageError(f"a plan is read in pieces, which {address} does not allow", hint="--plan FILE")
    if any(part.output.pattern.is_stream for part in plan.parts):
        raise UsageError(
            f"{plan.request.output} is a stream, and the tasks of a plan write shards of their own",
            hint="-o out-%06d.tar",
        )
    for one in plan.inputs:
        if one.copy:
            raise UsageError(
                f"{one.address} can be read only once, and the tasks of a plan read it again",
                hint="store it first: wds cat SHARD -o plain.tar",
            )


def _write_rows(plan: ReorderPlan, ordered: Ordered, sink: Sink) -> Iterator[int]:
    """All rows of one list. Gives a seal for each shard."""
    for shard in plan.planned:
        digest = xxh3_64()
        for first in range(shard.first, shard.end, BLOCK):
            data = stored_rows(ordered.part(first, min(first + BLOCK, shard.end)).rows).tobytes()
            digest.update(data)
            sink.write(data)
        yield digest.intdigest()


def _packed_shard(shard: PlannedShard, seals: Sequence[int]) -> bytes:
    fixed = SHARD.pack(shard.first, shard.end, shard.size, shard.members, shard.part, shard.number)
    return fixed + b"".join(map(SEAL.pack, seals))


def _header(plan: ReorderPlan) -> dict[str, Any]:
    request, settings = plan.request, plan.request.settings
    return {
        "format": "wdscli-plan",
        "version": VERSION,
        "wdscli": __version__,
        "operation": plan.operation,
        "seed": plan.seed,
        "options": dict(plan.options),
        "plan": mark_of(plan)._asdict(),
        "output": absolute_output(request.output),
        "parts": [part.name for part in plan.parts],
        "settings": {**settings._asdict(), "form": list(settings.form), "witness": None},
        "fields": plain_rule(request.selection.field_rule),
        "rekey": None if plan.rekey is None else plan.rekey.format,
        "preserve": request.preserve,
        "post": request.post,
        "inputs": [[absolute(one.address), one.round, *(one.stamp or Stamp(0, ""))] for one in plan.inputs],
        "fingerprint": plan.fingerprint_in,
        "joined": _plain_joined(plan.joined),
        "counts": {
            "samples": plan.samples,
            "samples_in": plan.samples_in,
            "members_in": plan.members_in,
            "payload_bytes_in": plan.payload_bytes_in,
            "bytes_in": plan.bytes_in,
            "dropped": plan.dropped,
            "ignored": plan.ignored,
            "oversized": plan.oversized,
            "repeated": plan.repeated,
        },
        "rows": [],
    }


def _plain_joined(joined: Joined | None) -> dict[str, Any] | None:
    if joined is None:
        return None
    return {
        "sets": list(joined.sets),
        "policies": list(joined.policies),
        "counts": joined.counts._asdict(),
    }


def absolute(address: str) -> str:
    """An address that means the same in any folder."""
    return os.path.abspath(local_path(address)) if is_local(address) else address


def absolute_output(text: str) -> str:
    """The text of an output that means the same in any folder. Raises UsageError for a folder whose name cannot stand
    in it."""
    if not is_local(text) or os.path.isabs(local_path(text)):
        return text
    folder = os.getcwd()
    if any(mark in folder for mark in "%{}"):
        raise UsageError(
            f"the folder {folder} cannot stand in an output's name, because of %, {{ or }}",
            hint="give -o from a folder without these",
        )
    return os.path.join(folder, local_path(text))


class PlanFile:
    """A plan's file, open as long as its rows may be asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.source: Source = open_source(address, decompress=False)
        try:
            self.header = self._read_header()
            self.shards = self._read_shards()
        except BaseException:
            self.source.close()
            raise

    def _read_header(self) -> dict[str, Any]:
        size = self.source.size
        if not self.source.seekable or size is None:
            raise UsageError(f"{self.address} cannot be read in pieces", hint="wds run FILE")
        if self.source.read_at(0, len(MAGIC)) != MAGIC:
            raise self._broken("it does not begin like one")
        tail = self.source.read_at(max(0, size - TAIL.size), TAIL.size)
        if len(tail) != TAIL.size or tail[-len(MAGIC) :] != MAGIC:
            raise self._broken("its end is missing")
        at, length, seal, _ = TAIL.unpack(tail)
        if at + length + TAIL.size != size:
            raise self._broken("bytes are missing, or were added")
        text = self.source.read_at(at, length)
        if xxh3_64_intdigest(text) != seal:
            raise self._broken("its header was changed")
        header: dict[str, Any] = json.loads(text)
        if header.get("version") != VERSION:
            raise self._broken(f"it has version {header.get('version')}, this wdscli reads {VERSION}")
        return header

    def _read_shards(self) -> list[tuple[Any, ...]]:
        at, count, seal = self.header["shards"]
        record = struct.Struct(SHARD.format + "Q" * len(self.header["rows"]))
        data = self.source.read_at(at, count * record.size)
        if f"{xxh3_64_intdigest(data):016x}" != seal:
            raise self._broken("its list of shards was changed")
        return list(record.iter_unpack(data))

    def _broken(self, why: str) -> DataError:
        return DataError(
            f"{self.address} is no whole plan: {why}", code="bad-plan", hint="make it again with --plan FILE"
        )

    def rows(self, number: int, first: int, end: int) -> bytes:
        """The rows of some samples, of list ``number``."""
        at = self.header["rows"][number]
        data = self.source.read_at(at + first * ROW_BYTES, (end - first) * ROW_BYTES)
        if len(data) != (end - first) * ROW_BYTES:
            raise self._broken("rows are missing")
        return data

    def check(self, number: int, shard: int, data: bytes) -> None:
        """Raise DataError when these are not the rows that were planned for a shard."""
        if xxh3_64_intdigest(data) != self.shards[shard][6 + number]:
            raise self._broken(f"the rows of task {shard} were changed")


class PlanRows(Ordered):
    """A list of rows in a plan's file."""

    __slots__ = ("_by_range", "_file", "_number", "_total")

    def __init__(self, file: PlanFile, number: int, total: int) -> None:
        import numpy

        super().__init__(Samples(numpy.empty(0, dtype=row_type())))
        self._file = file
        self._number = number
        self._total = total
        self._by_range = {(first, end): at for at, (first, end, *_) in enumerate(file.shards)}

    @property
    def total(self) -> int:
        return self._total

    def part(self, first: int, end: int) -> Samples:
        import numpy

        data = self._file.rows(self._number, first, end)
        shard = self._by_range.get((first, end))
        if shard is not None:
            self._file.check(self._number, shard, data)
        stored = numpy.frombuffer(data, dtype=stored_type())
        rows: Rows = numpy.zeros(len(stored), dtype=row_type())
        for name in stored.dtype.names or ():
            rows[name] = stored[name]
        return Samples(rows)

    def column(self, name: str, first: int, end: int) -> U64:
        values: U64 = self.part(first, end).rows[name]
        return values

    def out_lengths(self) -> U64:
        import numpy

        return numpy.concatenate([block.out_lengths for block in self.blocks()])


class Settings(NamedTuple):
    """Where and how the tasks of a stored plan are run: what a plan does not hold."""

    jobs: int | None = None
    engine: str | None = None
    memory: int | None = None


def load_plan(address: str, settings: Settings | None = None) -> ReorderPlan:
    """The plan in a file. Raises InputError, DataError for a file that is no whole plan."""
    file = PlanFile(address)
    try:
        return _plan(file, settings or Settings())
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, struct.error) as error:
        raise DataError(
            f"{address} is no plan of this version: {type(error).__name__}: {error}",
            code="bad-plan",
            hint="make it again with --plan FILE",
        ) from None


def _plan(file: PlanFile, settings: Settings) -> ReorderPlan:
    header = file.header
    counts = header["counts"]
    inputs = tuple(
        Input(address, round=round_, stamp=Stamp(size, version), is_held=True)
        for address, round_, size, version in header["inputs"]
    )
    request = _request(header, [one.address for one in inputs], settings)
    outputs = Outputs(request.output, request.settings, may_exist=True)
    parts = tuple(PlannedPart(name, outputs.set_of(name or "part")) for name in header["parts"])
    rows = [PlanRows(file, number, counts["samples"]) for number in range(len(header["rows"]))]
    return ReorderPlan(
        request=request,
        operation=header["operation"],
        seed=header["seed"],
        options=header["options"],
        shards=ShardSet(list(request.inputs), None),
        inputs=inputs,
        parts=parts,
        planned=tuple(_planned_shard(parts, record) for record in file.shards),
        ordered=rows[0],
        rekey=None if header["rekey"] is None else Rekey(header["rekey"]),
        samples_in=counts["samples_in"],
        members_in=counts["members_in"],
        payload_bytes_in=counts["payload_bytes_in"],
        bytes_in=counts["bytes_in"],
        dropped=counts["dropped"],
        ignored=counts["ignored"],
        oversized=counts["oversized"],
        fingerprint_in=header["fingerprint"],
        mark=PlanMark(**header["plan"]),
        is_stored=True,
        repeated=counts["repeated"],
        joined=_joined(header["joined"], rows[1:]),
    )


def _request(header: Mapping[str, Any], inputs: list[str], settings: Settings) -> Request:
    shard_settings = ShardSettings(**{**header["settings"], "form": Form(*header["settings"]["form"])})
    return Request(
        inputs=inputs,
        output=header["output"],
        settings=shard_settings,
        selection=Selection(field_rule=_field_rule(header["fields"])),
        preserve=header["preserve"],
        post=header["post"],
        strategy="gather",
        resume=True,
        jobs=settings.jobs,
        engine=settings.engine,
        memory=settings.memory,
    )


def _planned_shard(parts: Sequence[PlannedPart], record: Sequence[int]) -> PlannedShard:
    first, end, size, members, part, number = record[:6]
    return PlannedShard(parts[part].output.address(number), part, number, first, end, size, members)


def _joined(plain: Mapping[str, Any] | None, others: Sequence[Ordered]) -> Joined | None:
    if plain is None:
        return None
    counts = {**plain["counts"], "unmatched": tuple(plain["counts"]["unmatched"])}
    return Joined(tuple(others), tuple(plain["sets"]), tuple(plain["policies"]), JoinCounts(**counts))


def _field_rule(plain: Mapping[str, Any] | None) -> FieldRule | None:
    if plain is None:
        return None
    keep = None if plain["keep"] is None else tuple(plain["keep"])
    renames = tuple(Rename(to_bytes(new), tuple(map(to_bytes, olds))) for new, olds in plain["rename"])
    return FieldRule(keep, tuple(plain["drop"]), renames)
