"""This module reads and writes plan files (wdscli-plan(5)). With a plan file, any machine can make any of the shards.

:func:`write_plan` writes a plan file, and :func:`load_plan` reads one. The file has the rows first, in output order,
then a header in JSON, then a tail with the place of the header. So a plan is written in one pass. The rows of a shard
are a sealed section (:mod:`wdscli.shards.rows`), and a task that makes one shard reads only the header and the sections
of its shard. Local addresses in a plan are absolute, because its tasks may run in any folder. This module does not know
where or when tasks run.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cached_property, partial
from typing import Any, get_args

from wdscli import __version__
from wdscli.arrays import U64, numpy
from wdscli.errors import DataError, InputError, UsageError
from wdscli.plan.cut import Outputs, PlannedShard, names_of
from wdscli.plan.inputs import Input, Stamp
from wdscli.plan.names import Rekey
from wdscli.plan.plan import Contents, Counts, ReorderPlan
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.table import JoinCounts, JoinedParts, OrderedSamples, PlanTable, row_type
from wdscli.schema import check
from wdscli.selection import Selection
from wdscli.selection.choice import FIELD_RULE, FieldRule
from wdscli.selection.layers import OnConflict
from wdscli.shards.manifest import Provenance
from wdscli.shards.rows import SECTION, Section, SectionWriter, read_section
from wdscli.shards.writing import ShardSettings
from wdscli.shown import shown, shown_command, shown_in
from wdscli.storage import Source, is_local, is_stream, local_path, open_sink, open_source
from wdscli.storage.addresses import listed_address
from wdscli.storage.patterns import NAME
from wdscli.tar import Form
from wdscli.tar.header import MTIMES

MAGIC = b"WDSPLAN\x01"
VERSION = 3
TAIL = struct.Struct("<QQQ8s")
"""The tail of a plan file: the header's offset, length and seal, and the magic again."""
ROW_BYTES = 49
ROWS_PER_WRITE = 1 << 16
SHARD_NUMBERS = 6
"""A shard has the numbers of its PlannedShard, and then the three numbers of each section."""


HEADER: dict[str, Any] = {
    **dict.fromkeys(("format", "wdscli", "output"), str),
    "version": int,
    "made": {
        "operation": str,
        "options": dict,
        "seed": (range(-(1 << 512), 1 << 512), None),
        "inputs": [(str, None), ...],
        "classes": ([str, ...], None),
        "parts": [str, ...],
    },
    "plan": dict.fromkeys(PlanMark._fields, str),
    "settings": {
        "form": [MTIMES, ("pax", "gnu")],
        "checksum": str,
        **dict.fromkeys(("with_index", "force", "fsync"), bool),
        "values": [str, ...],
    },
    "fields": (FIELD_RULE, None),
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
    **dict.fromkeys(("rekey", "post"), (str, None)),
    "inputs": [[str, int, str, int], ...],
    "joined": (
        {
            "sets": [int, ...],
            "policies": [get_args(OnConflict), ...],
            "counts": {
                **dict.fromkeys(JoinCounts._fields, int),
                "unmatched": [int, ...],
                "kind": str,
                "conflicts": {...: {...: int}},
            },
        },
        None,
    ),
    "counts": {**{count.name: int for count in fields(Counts)}, "dropped": {...: int}, "ignored": {...: int}},
    "parcels": bool,
    "shards": SECTION,
}
"""The schema of a header (:mod:`wdscli.schema`). It is needed because a seal shows only that a plan was not changed
later. It does not show that wdscli wrote the plan."""


def write_plan(plan: ReorderPlan, mark: PlanMark, address: str, *, force: bool = False) -> None:
    """Write a plan with its fingerprint. Raises OutputError, and UsageError for a plan that depends on this process."""
    check_storable(plan, address)
    header = _header(plan, mark)
    with open_sink(address, force=force) as sink:
        sink.write(MAGIC)
        writer = SectionWriter(sink.write, sink.written)
        lists, shards = plan.contents.row_lists, []
        for number, shard in enumerate(plan.contents.shards):
            numbers = [*shard[1:]]
            rows = (_rows_of(ordered, shard) for ordered in lists)
            for pieces in rows if plan.parcel is None else [[plan.parcel(number)]]:
                numbers += writer.add(pieces)
            shards.append(numbers)
        header["shards"] = writer.add([numpy.array(shards, dtype="<u8").tobytes()]).plain()
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
        sink.write(TAIL.pack(*writer.add([text]), MAGIC))


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


def _rows_of(ordered: OrderedSamples, shard: PlannedShard) -> Iterator[bytes]:
    """Yield the rows of a shard in pieces."""
    for first in range(shard.first, shard.end, ROWS_PER_WRITE):
        yield ordered.part(first, min(first + ROWS_PER_WRITE, shard.end)).rows.tobytes()


def _plain_input(shard: Input) -> list[str | int]:
    stamp = shard.stamp or Stamp()
    return [absolute(shard.address), stamp.size_bytes, stamp.version, shard.first]


def _header(plan: ReorderPlan, mark: PlanMark) -> dict[str, Any]:
    """Return a header without the shards, whose places are known only after the rows are written."""
    request, provenance, contents = plan.request, plan.provenance, plan.contents
    joined, rekey = contents.joined, contents.rekey
    records = {
        "made": provenance._replace(options=shown_in(dict(provenance.options))),
        "settings": request.settings,
    }
    return {
        "format": "wdscli-plan",
        "version": VERSION,
        "wdscli": __version__,
        **{
            name: {field: getattr(record, field) for field in HEADER[name]}
            for name, record in records.items()
        },
        "plan": mark._asdict(),
        "output": absolute_output(request.output),
        "fields": request.selection.field_rule and request.selection.field_rule.plain(),
        "rekey": rekey and rekey.format,
        "transform": plan.transform and dict(plan.transform),
        "post": request.post,
        "inputs": [*map(_plain_input, contents.inputs)],
        "joined": joined
        and {"sets": joined.sets, "policies": joined.policies, "counts": joined.counts._asdict()},
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
        text = self._read(Section(offset, length, seal), "its header was changed")
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

    def _read(self, section: Section, why: str) -> bytes:
        """Return the bytes of a section. Raises DataError if they are missing or do not fit the seal."""
        data = read_section(self.source, section)
        if data is None:
            raise self.broken(why)
        return data

    def broken(self, why: str) -> DataError:
        return DataError(
            f"{self.address} is not a valid plan: {why}",
            code="bad-plan",
            hint="write it again with --plan FILE",
        )

    @cached_property
    def lists(self) -> int:
        """The number of sections of each shard."""
        joined = self.header["joined"]
        return 1 if joined is None else len(joined["policies"])

    @cached_property
    def shards(self) -> U64:
        """The numbers of each shard. Raises DataError, and ValueError for a list that is not whole."""
        data = self._read(Section.from_plain(self.header["shards"]), "its list of shards was changed")
        shards: U64 = numpy.frombuffer(data, dtype="<u8").reshape(-1, SHARD_NUMBERS + 3 * self.lists)
        firsts, ends, lengths = shards[:, 2], shards[:, 3], shards[:, SHARD_NUMBERS + 1 :: 3]
        has_rows = self.header["parcels"] or ((ends - firsts) * ROW_BYTES == lengths.T).all()
        bounds = [0, *ends.tolist()]
        if (
            bounds != [*firsts.tolist(), self.header["counts"]["samples"]]
            or (ends < firsts).any()
            or not has_rows
        ):
            raise self.broken("its shards do not have its samples")
        return shards

    def read(self, number: int, why: str, shard: int) -> bytes:
        """Return section ``number`` of a shard: rows, or a parcel. Raises DataError with the text ``why`` if it was
        changed."""
        section = self.shards[shard, SHARD_NUMBERS:].reshape(-1, 3)[number].tolist()
        return self._read(Section(*section), why.format(shard))


class StoredTable(PlanTable):
    """A list of rows in a plan file. Only :meth:`part` reads rows, and only all rows of a shard together."""

    __slots__ = ("_file", "_number", "_shards")

    def __init__(self, file: PlanFile, number: int) -> None:
        self._file = file
        self._number = number
        bounds = map(tuple, file.shards[:, 2:4].tolist())
        self._shards = {first_and_end: shard for shard, first_and_end in enumerate(bounds)}

    @property
    def total(self) -> int:
        return int(self._file.header["counts"]["samples"])

    def part(self, first: int, end: int) -> PlanTable:
        data = self._file.read(self._number, "the rows of task {} were changed", self._shards[first, end])
        return PlanTable(numpy.frombuffer(data, dtype=row_type()))


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
    header, provenance = file.header, Provenance(**file.header["made"])
    settings = ShardSettings(**{**header["settings"], "form": Form(*header["settings"]["form"])})
    selection = Selection(field_rule=FieldRule.from_plain(header["fields"]))
    contents = _contents(file, settings, provenance.parts or [""])
    request = Request(
        contents.addresses, header["output"], settings, selection=selection, post=header["post"]
    )
    return ReorderPlan(
        request._replace(strategy="gather", resume=True, **run_options),
        provenance,
        contents,
        Counts(**header["counts"]),
        mark=PlanMark(**header["plan"]),
        is_stored=True,
        transform=header["transform"],
        parcel=partial(file.read, 0, "the parcel of task {} was changed") if header["parcels"] else None,
    )


def _contents(file: PlanFile, settings: ShardSettings, parts: Sequence[str]) -> Contents:
    header = file.header
    inputs = [
        # The survey with --limit ends before the last inputs, which then have no stamp.
        Input(address, stamp=Stamp(size, version) if size or version else None, is_held=True, first=first)
        for address, size, version, first in header["inputs"]
    ]
    names = names_of([shard.address for shard in inputs]) if NAME in header["output"] else None
    outputs = Outputs(header["output"], settings, names=names, may_exist=True)
    sets = tuple(map(outputs.set_of, parts))
    shards = tuple(
        PlannedShard(sets[part].address(number), part, number, *numbers)
        for part, number, *numbers in file.shards[:, :SHARD_NUMBERS].tolist()
    )
    joined, rekey = header["joined"], header["rekey"]
    contents = Contents(sets, shards, inputs, rekey=rekey and Rekey.parse(rekey))
    if header["parcels"]:
        return contents
    ordered, *later_parts = (OrderedSamples(StoredTable(file, number)) for number in range(file.lists))
    return replace(contents, ordered=ordered, joined=joined and _joined(joined, later_parts))


def _joined(plain: Mapping[str, Any], later_parts: Sequence[OrderedSamples]) -> JoinedParts:
    counts = {**plain["counts"], "unmatched": tuple(plain["counts"]["unmatched"])}
    return JoinedParts(
        tuple(later_parts), tuple(plain["sets"]), tuple(plain["policies"]), JoinCounts(**counts)
    )
