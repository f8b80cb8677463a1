"""This module reads and writes plan files (wdscli-plan(5)). With a plan file, any machine can make any of the shards.

:func:`write_plan` writes a plan file, and :func:`load_plan` reads one. The file has the rows first, in output order,
then the shards, then a header in JSON, then a tail with the place of the header. So a plan is written in one pass. A
task that makes one shard reads only the header and a slice of the rows. Every section has a checksum, which is called
its seal. A task checks the seals of all sections that it reads. Local addresses in a plan are absolute, because its
tasks may run in any folder. This module does not know where or when tasks run.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128, xxh3_128_hexdigest

from wdscli import __version__
from wdscli.arrays import U64, numpy
from wdscli.errors import DataError, InputError, UsageError
from wdscli.plan.cut import Outputs, PlannedShard, names_of
from wdscli.plan.inputs import Input, Stamp
from wdscli.plan.names import Rekey
from wdscli.plan.plan import Contents, Counts, ReorderPlan
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.table import JoinCounts, Joined, Ordered, PlanTable, no_rows, row_type
from wdscli.schema import check
from wdscli.selection import Selection
from wdscli.selection.choice import FieldRule
from wdscli.shards.manifest import Provenance
from wdscli.shards.writing import ShardSettings
from wdscli.shown import shown, shown_command, shown_in
from wdscli.storage import Sink, Source, base_name, is_local, is_stream, local_path, open_sink, open_source
from wdscli.storage.addresses import listed_address
from wdscli.storage.patterns import NAME
from wdscli.tar import Form
from wdscli.tar.header import MTIMES

MAGIC = b"WDSPLAN\x01"
VERSION = 2
FAILURES = "on_failure"
"""The name of an option of a transform. The option does not change the shards of a run without failures."""
TAIL = struct.Struct("<QQQ8s")
"""The tail of a plan file: the header's offset, length and seal, and the magic again."""
ROW_BYTES = 49
_COLUMNS_OF_PARCELS = 3
ROWS_PER_WRITE = 1 << 16


def _shard_record(lists: int) -> struct.Struct:
    """Return the format of a shard's record: first sample, end, bytes, members, part, number in the part, and a seal
    for each list of rows."""
    return struct.Struct("<QQQQII" + "Q" * lists)


HEADER: dict[str, Any] = {
    **dict.fromkeys(("format", "wdscli", "operation", "output"), str),
    "version": int,
    "seed": (range(-(1 << 512), 1 << 512), None),
    "options": dict,
    "plan": dict.fromkeys(PlanMark._fields, str),
    "parts": [str, ...],
    "settings": {
        "form": [MTIMES, ("pax", "gnu")],
        "checksum": str,
        **dict.fromkeys(("with_index", "force", "fsync"), bool),
        "witness": None,
        "values": [str, ...],
    },
    "fields": ({"keep": ([str, ...], None), "drop": [str, ...], "rename": [[str, [str, ...]], ...]}, None),
    "transform": (
        {
            **dict.fromkeys(("kind", "what", "field", "on_failure", "mode"), str),
            **dict.fromkeys(("batch", "size"), int),
            **dict.fromkeys(("multi", "only_if_bigger"), bool),
            "timeout": (float, None),
            "format": (str, None),
            "quality": (int, None),
        },
        None,
    ),
    **dict.fromkeys(("rekey", "post", "fingerprint"), (str, None)),
    "inputs": [[str, int, str], ...],
    "firsts": ([int, ...], None),
    "joined": (
        {
            "sets": [int, ...],
            "policies": [("error", "left", "right", "suffix"), ...],
            "counts": {
                **dict.fromkeys(JoinCounts._fields, int),
                "unmatched": [int, ...],
                "kind": str,
                "conflicts": {...: {...: int}},
            },
        },
        None,
    ),
    "classes": ([str, ...], None),
    "counts": {**{count.name: int for count in fields(Counts)}, "dropped": {...: int}, "ignored": {...: int}},
    "parcels": bool,
    "rows": [int, ...],
    "shards": [int, int, str],
}
"""The schema of a header (:mod:`wdscli.schema`). It is needed because a seal shows only that a plan was not changed
later. It does not show that wdscli wrote the plan."""


def write_plan(plan: ReorderPlan, address: str, *, force: bool = False) -> None:
    """Write a plan. Raises OutputError, and UsageError for a plan that depends on this process."""
    check_storable(plan, address)
    header, contents = _header(plan), plan.contents
    with open_sink(address, force=force) as sink:
        sink.write(MAGIC)
        seals = [] if plan.parcel is None else _write_parcels(plan, plan.parcel, sink)
        header["rows"] = []
        for ordered in contents.row_lists if plan.parcel is None else ():
            header["rows"].append(sink.written)
            seals.append(list(_write_rows(contents, ordered, sink)))
        record = _shard_record(len(seals))
        shards = b"".join(
            record.pack(
                shard.first, shard.end, shard.size_bytes, shard.members, shard.part, shard.number, *of_lists
            )
            for shard, of_lists in zip(contents.shards, zip(*seals, strict=True), strict=True)
        )
        header["shards"] = [sink.written, len(contents.shards), f"{xxh3_64_intdigest(shards):016x}"]
        sink.write(shards)
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
        tail = TAIL.pack(sink.written, len(text), xxh3_64_intdigest(text), MAGIC)
        sink.write(text)
        sink.write(tail)


def check_storable(plan: ReorderPlan, address: str) -> None:
    """Raise UsageError for a plan that other processes cannot run, and for an address that cannot be read again."""
    if is_stream(address):
        raise UsageError(
            f"{address} is a stream, but a plan must be readable at any position", hint="--plan FILE"
        )
    if plan.contents.is_stream:
        raise UsageError(
            f"{plan.request.output} is a stream, but each task of a plan writes a shard of its own",
            hint="-o out-%06d.tar",
        )
    for shard in plan.contents.inputs:
        if shard.copy:
            raise UsageError(
                f"{shard.address} can be read only once, but the tasks of a plan would read it again",
                hint="store it first: wds cat SHARD -o plain.tar",
            )
        check_shown(shard.address)
    check_shown(plan.request.output)
    what = None if plan.transform is None else plan.transform["what"]
    for option, command in (("--post", plan.request.post), ("the command", what)):
        if command is not None and shown_command(command) != command:
            raise UsageError(
                f"the plan would hold a password, token or signature: {option} {shown_command(command)}",
                hint="let the command read it from the environment of the tasks",
            )


def check_shown(address: str) -> None:
    """Raise UsageError for an address with a secret, because readers of the plan could see it."""
    if shown(address) != address:
        raise UsageError(
            f"the plan would hold a password, token or signature: {address}",
            hint="leave it out; tasks find credentials in their environment or profile",
        )


def _write_rows(contents: Contents, ordered: Ordered, sink: Sink) -> Iterator[int]:
    """Write all rows of one list, and yield a seal for each shard."""
    for shard in contents.shards:
        digest = xxh3_64()
        for first in range(shard.first, shard.end, ROWS_PER_WRITE):
            data = ordered.part(first, min(first + ROWS_PER_WRITE, shard.end)).rows.tobytes()
            digest.update(data)
            sink.write(data)
        yield digest.intdigest()


def _write_parcels(plan: ReorderPlan, parcel: Callable[[int], bytes], sink: Sink) -> list[list[int]]:
    """Write the parcels of all shards: their samples as bytes. Return offset, length and seal of each parcel."""
    columns: list[list[int]] = [[], [], []]
    for number in range(len(plan.contents.shards)):
        data = parcel(number)
        for column, value in zip(columns, (sink.written, len(data), xxh3_64_intdigest(data)), strict=True):
            column.append(value)
        sink.write(data)
    return columns


def _stamped(shard: Input) -> list[str | int]:
    stamp = shard.stamp or Stamp()
    return [absolute(shard.address), stamp.size_bytes, stamp.version]


def _header(plan: ReorderPlan) -> dict[str, Any]:
    """Return a header without the places of rows and shards, which are known only after these are written."""
    request, provenance, contents = plan.request, plan.provenance, plan.contents
    joined, rekey = contents.joined, contents.rekey
    settings = {**request.settings._asdict(), "witness": None}
    del settings["ticket"], settings["links"]
    return {
        "format": "wdscli-plan",
        "version": VERSION,
        "wdscli": __version__,
        "operation": provenance.operation,
        "seed": provenance.seed,
        "options": shown_in(dict(provenance.options)),
        "plan": mark_of(plan)._asdict(),
        "output": absolute_output(request.output),
        "parts": [output.part for output in contents.outputs],
        "settings": settings,
        "fields": request.selection.field_rule and request.selection.field_rule.plain(),
        "rekey": rekey and rekey.format,
        "transform": plan.transform and dict(plan.transform),
        "post": request.post,
        "inputs": [_stamped(shard) for shard in contents.inputs],
        "firsts": [shard.first for shard in contents.inputs] if rekey and rekey.counts_all else None,
        "fingerprint": next(iter(provenance.inputs), None),
        "joined": joined
        and {"sets": joined.sets, "policies": joined.policies, "counts": joined.counts._asdict()},
        "classes": provenance.classes,
        "counts": asdict(plan.counts),
        "parcels": plan.parcel is not None,
    }


def absolute(address: str) -> str:
    """Return an address that means the same in any folder."""
    return os.path.abspath(local_path(address)) if is_local(address) else address


def absolute_output(text: str) -> str:
    """Return an output text that means the same in any folder. Raises UsageError if the current folder's name cannot be
    used in it."""
    if not is_local(text) or os.path.isabs(local_path(text)):
        return text
    folder = os.getcwd()
    if any(mark in folder for mark in "%{}"):
        raise UsageError(
            f"the folder {folder} cannot be part of an output's name, because its path has %, {{ or }}",
            hint="change to a folder whose path has none of these characters",
        )
    return os.path.join(folder, local_path(text))


class PlanFile:
    """An open plan file. Its rows are read when they are needed."""

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
            raise UsageError(
                f"{self.address} is a stream, but a plan must be readable at any position",
                hint="wds run FILE",
            )
        if self.source.read_at(0, len(MAGIC)) != MAGIC:
            raise self.broken("it is not a plan file (wrong bytes at its start)")
        tail = self.source.read_at(max(0, size - TAIL.size), TAIL.size)
        if len(tail) != TAIL.size or tail[-len(MAGIC) :] != MAGIC:
            raise self.broken("its end is missing")
        offset, length, seal, _ = TAIL.unpack(tail)
        if offset + length + TAIL.size != size:
            raise self.broken("bytes are missing or were added")
        text = self._sealed(offset, length, seal, "its header was changed")
        try:
            header: Any = json.loads(text)
        except (ValueError, RecursionError):
            raise self.broken("its header is not JSON") from None
        version = header.get("version") if isinstance(header, dict) else None
        if version != VERSION:
            raise self.broken(f"it has version {version}, but this wdscli reads version {VERSION}")
        try:
            check(header, HEADER)
            FieldRule.from_plain(header["fields"])
        except ValueError as error:
            raise self.broken(f"{error} in its header") from None
        checked: dict[str, Any] = header
        return checked

    def _read_shards(self) -> list[tuple[Any, ...]]:
        offset, count, seal = self.header["shards"]
        record = _shard_record(_COLUMNS_OF_PARCELS if self.header["parcels"] else len(self.header["rows"]))
        data = self.source.read_at(offset, count * record.size)
        if f"{xxh3_64_intdigest(data):016x}" != seal:
            raise self.broken("its list of shards was changed")
        return list(record.iter_unpack(data))

    def _sealed(self, offset: int, length: int, seal: int | None, why: str) -> bytes:
        """Return some bytes of the file. Raises DataError if bytes are missing or do not match the seal. A seal of None
        is not checked."""
        data = self.source.read_at(offset, length)
        if len(data) != length or (seal is not None and xxh3_64_intdigest(data) != seal):
            raise self.broken(why)
        return data

    def broken(self, why: str) -> DataError:
        return DataError(
            f"{self.address} is not a valid plan: {why}",
            code="bad-plan",
            hint="write it again with --plan FILE",
        )

    def rows(self, number: int, first: int, end: int, shard: int | None) -> bytes:
        """Return the rows of some samples from list ``number``. If they are all rows of ``shard``, their seal is
        checked."""
        offset, length = self.header["rows"][number] + first * ROW_BYTES, (end - first) * ROW_BYTES
        if shard is None:
            return self._sealed(offset, length, None, "rows are missing")
        return self._sealed(
            offset, length, self.shards[shard][6 + number], f"the rows of task {shard} were changed"
        )

    def parcel(self, shard: int) -> bytes:
        """Return the parcel of one shard. Raises DataError if it was changed."""
        offset, length, seal = self.shards[shard][6:]
        return self._sealed(offset, length, seal, f"the parcel of task {shard} was changed")


class PlanRows(Ordered):
    """A list of rows in a plan file."""

    __slots__ = ("_by_range", "_file", "_number")

    def __init__(self, file: PlanFile, number: int) -> None:
        super().__init__(PlanTable(no_rows()))
        self._file = file
        self._number = number
        self._by_range = {(first, end): shard for shard, (first, end, *_) in enumerate(file.shards)}

    @property
    def total(self) -> int:
        return int(self._file.header["counts"]["samples"])

    def part(self, first: int, end: int) -> PlanTable:
        data = self._file.rows(self._number, first, end, self._by_range.get((first, end)))
        return PlanTable(numpy.frombuffer(data, dtype=row_type()))

    def column(self, name: str, first: int, end: int) -> U64:
        values: U64 = self.part(first, end).rows[name]
        return values

    def slice(self, first: int, end: int) -> Ordered:
        return Ordered(self.part(first, end))


def load_plan(address: str, *, trust_addresses: bool = False, **run_options: Any) -> ReorderPlan:
    """Read a plan. ``run_options`` are fields of the request that are not in a plan: jobs, engine, memory. With
    ``trust_addresses``, a downloaded plan may name a command, and any input and output. Raises InputError, and
    DataError for a file that is not a complete plan."""
    file = PlanFile(address)
    try:
        _check_trust(file, trust_addresses)
        return _plan(file, run_options)
    except DataError:
        raise
    except (UsageError, KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        raise file.broken(str(error)) from None


def _check_trust(file: PlanFile, trusted: bool) -> None:
    """Raise DataError for contents that wdscli never writes, and InputError for contents that a downloaded plan must
    not have."""
    header = file.header
    named = [*(address for address, *_ in header["inputs"]), header["output"]]
    if any(map(is_stream, named)):
        raise file.broken("it names a command or standard input")
    if trusted or is_local(file.address):
        return
    for address in named:
        listed_address(file.address, address)
    what, post = header["transform"] and header["transform"]["what"], header["post"]
    instructions = [
        (header["parcels"] or None, "reads files of this machine"),
        (post, f"runs a command after each shard: {shown_command(post or '')}"),
        (what, f"runs a command for each sample: {shown_command(what or '')}"),
    ]
    for instruction, text in instructions:
        if instruction is not None:
            raise InputError(
                f"{file.address} was downloaded, but {text}",
                hint="use --trust-addresses if you trust it, or download the plan first",
            )


def _plan(file: PlanFile, run_options: Mapping[str, Any]) -> ReorderPlan:
    header = file.header
    settings = ShardSettings(**{**header["settings"], "form": Form(*header["settings"]["form"])})
    selection = Selection(field_rule=FieldRule.from_plain(header["fields"]))
    kept: dict[str, Any] = {
        "selection": selection,
        "post": header["post"],
        "strategy": "gather",
        **run_options,
    }
    contents = _contents(file, settings)
    return ReorderPlan(
        Request(contents.addresses, header["output"], settings, **kept, resume=True),
        Provenance(
            header["operation"],
            header["options"],
            header["seed"],
            [header["fingerprint"]] if contents.inputs else (),
            header["classes"],
            parts=[name for name in header["parts"] if name],
        ),
        contents,
        Counts(**header["counts"]),
        mark=PlanMark(**header["plan"]),
        is_stored=True,
        transform=header["transform"],
        parcel=file.parcel if header["parcels"] else None,
    )


def _contents(file: PlanFile, settings: ShardSettings) -> Contents:
    header = file.header
    firsts = [0] * len(header["inputs"]) if header["firsts"] is None else header["firsts"]
    inputs = [
        # The survey with --limit ends before the last inputs, which then have no stamp.
        Input(address, stamp=Stamp(size, version) if size or version else None, is_held=True, first=first)
        for (address, size, version), first in zip(header["inputs"], firsts, strict=True)
    ]
    names = names_of([shard.address for shard in inputs]) if NAME in header["output"] else None
    outputs = Outputs(header["output"], settings, names=names, may_exist=True)
    sets = tuple(map(outputs.set_of, header["parts"]))
    shards = (
        PlannedShard(sets[part].address(number), part, number, first, end, size, members)
        for first, end, size, members, part, number, *_ in file.shards
    )
    rekey = None if header["rekey"] is None else Rekey(header["rekey"])
    contents = Contents(sets, tuple(shards), inputs, rekey=rekey)
    if not header["rows"]:
        return contents
    rows = [PlanRows(file, number) for number in range(len(header["rows"]))]
    return replace(contents, ordered=rows[0], joined=header["joined"] and _joined(header["joined"], rows[1:]))


def _joined(plain: Mapping[str, Any], later_parts: Sequence[Ordered]) -> Joined:
    counts = {**plain["counts"], "unmatched": tuple(plain["counts"]["unmatched"])}
    return Joined(tuple(later_parts), tuple(plain["sets"]), tuple(plain["policies"]), JoinCounts(**counts))


def mark_of(plan: ReorderPlan) -> PlanMark:
    """Return the fingerprint of a plan. A stored plan has it in its file."""
    if plan.mark is not None:
        return plan.mark
    rows, contents = xxh3_128(), plan.contents
    for ordered in contents.row_lists:
        for block in ordered.blocks():
            rows.update(block.rows.tobytes())
    inputs = [
        [base_name(shard.address), shard.stamp.size_bytes, shard.stamp.version]
        for shard in contents.inputs
        if shard.stamp is not None
    ]
    shards = [
        [
            contents.outputs[shard.part].part,
            base_name(shard.address),
            shard.first,
            shard.end,
            shard.size_bytes,
            shard.members,
        ]
        for shard in contents.shards
    ]
    failures = (plan.transform or {}).get("on_failure", "stop")
    return PlanMark(
        digest_of([len(contents.inputs), *inputs]),
        shaping_mark(plan),
        rows.hexdigest(),
        digest_of(shards),
        "" if failures == "stop" else failures,
    )


def shaping_mark(plan: ReorderPlan) -> str:
    """Return the fingerprint of a plan's options."""
    return digest_of(shaping(plan))


def shaping(plan: ReorderPlan) -> dict[str, Any]:
    """Return everything that decides the bytes, except the inputs and the order of the samples."""
    settings, rekey = plan.request.settings, plan.contents.rekey
    rule = plan.request.selection.field_rule
    return {
        "operation": plan.provenance.operation,
        "options": {name: value for name, value in plan.provenance.options.items() if name != FAILURES},
        "seed": plan.provenance.seed,
        "form": [settings.form.mtime, settings.form.long_names],
        "checksum": settings.checksum,
        "index": settings.with_index,
        **({"values": list(settings.values)} if settings.values else {}),
        "fields": rule and rule.plain(),
        "rekey": rekey and rekey.format,
    }


def differing_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the options of the command in which two runs differ. Each run is given by the result of :func:`shaping`.

    >>> differing_options({"options": {"max_count": 3}, "seed": 1}, {"options": {}, "seed": 2})
    ['--max-count', '--seed']
    """

    def differ(first: Any, second: Any, names: Iterable[str]) -> set[str]:
        plain = json.loads(json.dumps([first, second], default=str))
        return {name for name in names if plain[0].get(name) != plain[1].get(name)}

    before, after = first.get("options") or {}, second.get("options") or {}
    names = differ(before, after, {*before, *after}) | differ(
        first, second, ("seed", "checksum", "index", "values")
    )
    return sorted({option_of(str(first.get("operation")), name) for name in names})


def option_of(operation: str, name: str) -> str:
    """Return the current option for a name in manifests and in :func:`shaping`.

    >>> option_of("merge", "key"), option_of("split", "max_count")
    ('--key-column', '--max-count')
    """
    return f"--{_OF_OPERATION.get(operation, {}).get(name) or _OPTIONS.get(name, name)}".replace("_", "-")


_OF_OPERATION = {
    "create": {"incomplete": "missing"},
    "map": {"field": "filter"},
    "merge": {"key": "key-column", "field": "column", "interleave": "weights", "json_merge": "json-rest"},
    "sort": {"order_from": "by"},
    "split": {"by_map": "by"},
}
_OPTIONS = {
    "checksum": "hash",
    "index": "no-index",
    "kind": "cmd",
    "what": "cmd",
    "source": "python",
    "size": "resize",
    "mode": "resize",
    "only_if_bigger": "resize",
    "on_failure": "on-error",
    "quality": "format",
}
"""Current options for the names in manifests that differ from them, for each operation and for all operations."""


def digest_of(value: Any) -> str:
    """Return a fingerprint of plain values."""
    return xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode("ascii"))
