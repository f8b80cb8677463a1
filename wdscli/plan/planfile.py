"""This module reads and writes plans (wdscli-plan(5)). With a plan, any machine can make any of the shards.

A plan is a view (wdscli-manifest(5)) with a part ``run``, so a plan that only reorders samples is also a set. The bases
of the view are the inputs, each with its size and version. :func:`write_plan` writes a plan, and :func:`load_plan`
reads one. The rows of a shard are sealed sections (:mod:`wdscli.shards.view`), and a task that makes one shard reads
only the sections of its shard. This module does not know where or when tasks run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

from xxhash import xxh3_64_hexdigest

from wdscli import __version__
from wdscli.arrays import numpy
from wdscli.errors import DataError, InputError, UsageError
from wdscli.model import UNKNOWN, ShardInfo
from wdscli.plan.cut import Outputs, PlannedShard, names_of
from wdscli.plan.inputs import Input, Stamp
from wdscli.plan.names import Rekey
from wdscli.plan.plan import Contents, Counts, ReorderPlan
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.table import JoinCounts, JoinedParts, OrderedSamples, PlanTable, row_type
from wdscli.schema import check, table_of
from wdscli.selection import Selection
from wdscli.selection.layers import OnConflict
from wdscli.shards.manifest import PLAN_VERSION, Manifest, Provenance, name_from, parse_manifest
from wdscli.shards.view import (
    SECTION,
    Section,
    SectionWriter,
    View,
    ViewRule,
    ViewShard,
    open_rows,
    read_section,
    write_both,
)
from wdscli.shards.writing import ShardSettings
from wdscli.shown import shown_command
from wdscli.storage import Source, base_name, folder_of, is_local, is_stream, local_path
from wdscli.storage.addresses import VIEW_SUFFIX, listed_address, shard_address, view_of
from wdscli.storage.opening import compression_of, read_noted
from wdscli.storage.patterns import NAME
from wdscli.tar import Form
from wdscli.tar.header import MTIMES

HEAD_BYTES = 512
"""The first bytes of a file show whether it is a plan."""
_VERSION = re.compile(rb'\{\s*"__kind__": "wdscli-plan-v([0-9]{1,9})')
_FIRST_MAGIC = b"WDSPLAN"
"""The first bytes of a plan of version 3 or earlier."""
_SEAL = re.compile(rb'(?<="seal": ")[0-9a-f]{16}(?=")')
ROW_BYTES = 49
ROWS_PER_WRITE = 1 << 16


_PLAN: dict[str, Any] = {
    "made": {
        "operation": str,
        "options": dict,
        "seed?": range(-(1 << 512), 1 << 512),
        "inputs": [(str, None), ...],
    },
    "run": {
        **dict.fromkeys(("wdscli", "output"), str),
        "parts": [str, ...],
        "mark": table_of(PlanMark),
        "settings": {
            "form": [MTIMES, ("pax", "gnu")],
            "checksum": str,
            **dict.fromkeys(("with_index", "force", "fsync"), bool),
            "values": [str, ...],
        },
        "transform": (dict, None),
        **dict.fromkeys(("rekey", "post"), (str, None)),
        "firsts": [int, ...],
        "joined": ({"sets": [int, ...], "counts": table_of(JoinCounts)}, None),
        "counts": table_of(Counts),
        "shards": [[int, int, [SECTION, ...]], ...],
    },
}
"""The schema of the parts that only plans have (:mod:`wdscli.schema`). It is needed because a seal shows only that a
plan was not changed later. It does not show that wdscli wrote the plan."""


def write_plan(plan: ReorderPlan, mark: PlanMark, address: str, *, force: bool = False) -> None:
    """Write a plan with its fingerprint. Raises OutputError, and UsageError for a plan that depends on this process."""
    check_storable(plan, address)
    taken, sections = list[Section](), list[list[Section]]()

    def write_rows(write: Callable[[Any], Any]) -> None:
        writer, lists = SectionWriter(write), plan.contents.row_lists
        for number, shard in enumerate(plan.contents.shards):
            if plan.parcel is None:
                taken.append(writer.add(_taken(plan.contents, shard)))
            rows = (_rows_of(ordered, shard) for ordered in lists)
            pieces = rows if plan.parcel is None else [[plan.parcel(number)]]
            sections.append([*map(writer.add, pieces)])

    def text() -> bytes:
        return _sealed(_manifest(plan, mark, address, taken, sections).to_json().encode("ascii"))

    write_both(address, text, write_rows, force=force, replaces_rows=force)


def _sealed(text: bytes) -> bytes:
    """Return the text of a plan with its seal, which is the XXH3-64 of the text with zeros in place of the seal."""
    zeros = _SEAL.sub(b"0" * 16, text, 1)
    return _SEAL.sub(xxh3_64_hexdigest(zeros).encode(), zeros, 1)


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
    for command in (plan.request.post, (plan.transform or {}).get("what")):
        check_shown(command or "")


def check_shown(text: str) -> None:
    """Raise UsageError for an address or a command with a secret, because readers of the plan could see it."""
    if shown_command(text) != text:
        raise UsageError(
            f"the plan would hold a password, token or signature: {shown_command(text)}",
            hint="leave it out; tasks find credentials in their environment or profile",
        )


def _rows_of(ordered: OrderedSamples, shard: PlannedShard) -> Iterator[bytes]:
    """Yield the rows of a shard in pieces."""
    for first, end in _pieces(shard):
        yield ordered.part(first, end).rows.tobytes()


def _taken(contents: Contents, shard: PlannedShard) -> Iterator[bytes]:
    """Yield the samples of a shard in the form of a view: for each set all inputs, then all places."""
    for set_number in range(len(contents.row_lists)):
        for column in range(2):
            for first, end in _pieces(shard):
                yield contents.taken(first, end)[set_number][column].astype("<u4").tobytes()


def _pieces(shard: PlannedShard) -> Iterator[tuple[int, int]]:
    return pairwise([*range(shard.first, shard.end, ROWS_PER_WRITE), shard.end])


def _manifest(
    plan: ReorderPlan,
    mark: PlanMark,
    address: str,
    taken: Sequence[Section],
    sections: Sequence[Sequence[Section]],
) -> Manifest:
    """Return a plan as the manifest of its shards. A shard is listed before its compression, as part of a view."""
    contents, provenance = plan.contents, plan.provenance
    folders = [folder_of(output.manifest_address or "") for output in contents.outputs]
    names = [shard.address.removeprefix(folders[shard.part]) for shard in contents.shards]
    shards = [
        shard.info(name.removesuffix(compression_of(name))) for shard, name in zip(contents.shards, names)
    ]
    return Manifest(
        base_name(address).removesuffix(VIEW_SUFFIX),
        tuple(shards),
        provenance.facts(),
        None if provenance.classes is None else tuple(provenance.classes),
        None if plan.parcel is not None else _view(plan, folder_of(address), taken),
        _run(plan, mark, sections),
    )


def _view(plan: ReorderPlan, folder: str, taken: Sequence[Section]) -> View:
    """Return the planned shards as a view of the inputs."""
    contents, request, joined = plan.contents, plan.request, plan.contents.joined
    bases = [_base_of(shard, folder) for shard in contents.inputs]
    policies: tuple[OnConflict, ...] = ("error",) if joined is None else joined.policies
    rule = ViewRule((None,) * len(policies), policies, request.selection.field_rule)
    stamps = [(base.name, base.size_bytes, base.version) for base in bases]
    identity = xxh3_64_hexdigest(repr(stamps).encode())
    shards = [ViewShard(f"{section.seal:016x}{identity}", None, section) for section in taken]
    return View(bases, shards, rule, request.settings.form)


def _base_of(shard: Input, folder: str) -> ShardInfo:
    """Return the entry of an input, with its stamp. A plan on a store has the full paths of local files."""
    has_path = is_local(shard.address) and is_local(folder)
    name = name_from(folder, shard.address) if has_path else absolute(shard.address)
    # The survey with --limit ends before the last inputs, which then have no stamp.
    size, version, _ = shard.stamp or Stamp(UNKNOWN)
    return ShardInfo(name, UNKNOWN, UNKNOWN, size, "", None, {}, index=False, version=version)


def _why_no_set(plan: ReorderPlan) -> str | None:
    """Return why a plan cannot be opened as a set, as the end of a sentence. Return None if it can be opened."""
    contents = plan.contents
    reasons = {
        "its samples are files": plan.parcel,
        "its run changes the samples": plan.transform,
        "its run makes several sets": plan.provenance.parts,
        "its run gives samples new keys": contents.rekey,
        "its inputs are views": any(view_of(shard.address) for shard in contents.inputs),
        "its inputs may be damaged": plan.request.on_error == "skip",
    }
    return next((why for why, is_so in reasons.items() if is_so), None)


def _run(plan: ReorderPlan, mark: PlanMark, sections: Sequence[Sequence[Section]]) -> dict[str, Any]:
    """Return the part ``run``: all that is needed to make the shards, and that a view does not have."""
    request, contents, joined = plan.request, plan.contents, plan.contents.joined
    return {
        "wdscli": __version__,
        "no_set": _why_no_set(plan),
        "output": absolute_output(request.output),
        "parts": list(plan.provenance.parts),
        "mark": mark._asdict(),
        "settings": {name: getattr(request.settings, name) for name in _PLAN["run"]["settings"]},
        "rekey": contents.rekey and contents.rekey.format,
        "transform": plan.transform and dict(plan.transform),
        "post": request.post,
        "firsts": [shard.first for shard in contents.inputs],
        "joined": joined and {"sets": joined.sets, "counts": joined.counts._asdict()},
        "counts": asdict(plan.counts),
        "shards": [
            [shard.part, shard.number, [section.plain() for section in shard_sections]]
            for shard, shard_sections in zip(contents.shards, sections, strict=True)
        ],
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


def plan_version(head: bytes) -> int | None:
    """Return the version of a plan with these first bytes. Return None for any other file. Plans of version 3 and
    earlier have another form; their version is 3 here."""
    match = _VERSION.match(head)
    return int(match[1]) if match else 3 if head.startswith(_FIRST_MAGIC) else None


class PlanFile:
    """An open plan. Its rows are read when they are needed."""

    def __init__(self, address: str) -> None:
        self.address = address
        text, _ = read_noted(address)
        version = plan_version(text)
        if version is None:
            raise self.broken("it is not a plan file (wrong bytes at its start)")
        if version != PLAN_VERSION:
            raise self.broken(f"it has version {version}, but this wdscli reads version {PLAN_VERSION}")
        if _SEAL.search(text) is None or _sealed(text) != text:
            raise self.broken("bytes are missing or were changed")
        try:
            self.manifest = parse_manifest(text, address, runs=True)
            self.run: Mapping[str, Any] = self.manifest.run or {}
            check({"made": self.manifest.made, "run": self.run}, _PLAN)
            self._sections = [[*map(Section.from_plain, plain)] for _, _, plain in self.run["shards"]]
        except (DataError, ValueError) as error:
            raise self.broken(str(error)) from None
        self.ends = [*accumulate((shard.samples for shard in self.manifest.shards), initial=0)]
        if not self._has_all_samples():
            raise self.broken("its shards do not have its samples")

    def _has_all_samples(self) -> bool:
        """Return whether the shards have the samples of the plan, with a row for each. A parcel has any length."""
        view, shards = self.manifest.view, self.manifest.shards
        lengths = [[section.length for section in sections] for sections in self._sections]
        wanted = [[ROW_BYTES * shard.samples] * (1 if view is None else view.rule.sets) for shard in shards]
        is_alike = [*map(len, lengths)] == [*map(len, wanted)] if view is None else lengths == wanted
        is_known = all(min(shard.members, shard.size_bytes) >= 0 for shard in shards)
        return is_alike and is_known and self.run["counts"]["samples"] == self.ends[-1]

    def broken(self, why: str) -> DataError:
        return DataError(
            f"{self.address} is not a valid plan: {why}",
            code="bad-plan",
            hint="write it again with --plan FILE",
        )

    @cached_property
    def source(self) -> Source:
        """The open file of rows."""
        return open_rows(self.address)

    def read(self, number: int, why: str, shard: int) -> bytes:
        """Return section ``number`` of a shard: rows, or a parcel. Raises DataError with the text ``why`` if it is
        missing or does not fit its seal."""
        data = read_section(self.source, self._sections[shard][number])
        if data is None:
            raise self.broken(why.format(shard))
        return data


class StoredTable(PlanTable):
    """A list of rows in a plan. Only :meth:`part` reads rows, and only all rows of a shard together."""

    __slots__ = ("_file", "_number", "_shards")

    def __init__(self, file: PlanFile, number: int) -> None:
        self._file = file
        self._number = number
        self._shards = {first_and_end: shard for shard, first_and_end in enumerate(pairwise(file.ends))}

    @property
    def total(self) -> int:
        return self._file.ends[-1]

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
        return _plan(file, trust_addresses, run_options)
    except DataError:
        raise
    except (UsageError, KeyError, TypeError, ValueError, IndexError) as error:
        raise file.broken(str(error)) from None


def _check_trust(file: PlanFile, trusted: bool) -> None:
    """Raise DataError for contents that wdscli never writes, and InputError for contents that a downloaded plan must
    not have."""
    run, view = file.run, file.manifest.view
    if any(
        map(is_stream, [run["output"], *(base.name for base in (view.bases if view is not None else ()))])
    ):
        raise file.broken("it names a command or standard input")
    if trusted or is_local(file.address):
        return
    listed_address(file.address, run["output"])
    what, post = run["transform"] and run["transform"]["what"], run["post"]
    instructions = {
        "reads files of this machine": view is None,
        f"runs a command after each shard: {shown_command(post or '')}": post is not None,
        f"runs a command for each sample: {shown_command(what or '')}": what is not None,
    }
    for text, is_so in instructions.items():
        if is_so:
            raise InputError(
                f"{file.address} was downloaded, but {text}",
                hint="use --trust-addresses if you trust it, or download the plan first",
            )


def _plan(file: PlanFile, trusted: bool, run_options: Mapping[str, Any]) -> ReorderPlan:
    run, manifest = file.run, file.manifest
    provenance = Provenance(**manifest.made, classes=manifest.classes, parts=run["parts"])
    settings = ShardSettings(**{**run["settings"], "form": Form(*run["settings"]["form"])})
    selection = Selection(field_rule=None if manifest.view is None else manifest.view.rule.fields)
    contents = _contents(file, settings, trusted)
    request = Request(contents.addresses, run["output"], settings, selection=selection, post=run["post"])
    return ReorderPlan(
        request._replace(strategy="gather", resume=True, **run_options),
        provenance,
        contents,
        Counts(**run["counts"]),
        mark=PlanMark(**run["mark"]),
        is_stored=True,
        transform=run["transform"],
        parcel=partial(file.read, 0, "the parcel of task {} was changed") if manifest.view is None else None,
    )


def _contents(file: PlanFile, settings: ShardSettings, trusted: bool) -> Contents:
    run, view = file.run, file.manifest.view
    bases = () if view is None else view.bases
    inputs = [
        Input(
            absolute(shard_address(file.address, base.name, trusted=trusted)),
            stamp=None if base.size_bytes == UNKNOWN else Stamp(base.size_bytes, base.version),
            is_held=True,
            first=first,
        )
        for base, first in zip(bases, run["firsts"], strict=True)
    ]
    names = names_of([shard.address for shard in inputs]) if NAME in run["output"] else None
    outputs = Outputs(run["output"], settings, names=names, may_exist=True)
    sets = tuple(map(outputs.set_of, run["parts"] or [""]))
    shards = tuple(
        PlannedShard(sets[part].address(number), part, number, first, end, shard.size_bytes, shard.members)
        for (part, number, _), (first, end), shard in zip(
            run["shards"], pairwise(file.ends), file.manifest.shards
        )
    )
    joined, rekey = run["joined"], run["rekey"]
    contents = Contents(sets, shards, inputs, rekey=rekey and Rekey.parse(rekey))
    if view is None:
        return contents
    ordered, *later_parts = (OrderedSamples(StoredTable(file, number)) for number in range(view.rule.sets))
    return replace(
        contents, ordered=ordered, joined=joined and _joined(joined, later_parts, view.rule.policies)
    )


def _joined(
    plain: Mapping[str, Any], later_parts: Sequence[OrderedSamples], policies: tuple[OnConflict, ...]
) -> JoinedParts:
    counts = {**plain["counts"], "unmatched": tuple(plain["counts"]["unmatched"])}
    return JoinedParts(tuple(later_parts), tuple(plain["sets"]), policies, JoinCounts(**counts))
