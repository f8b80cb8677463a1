"""This module writes a plan as a view. The view names the bytes of the planned shards; they are not copied.

:func:`write_views` writes the view. Each row of a plan names an input shard and a sample in it. A view stores both.
Adjacent samples are stored as runs, other samples as numbers in ``VIEW.rows``. If an input is a view, its samples are
traced to their bases, so that a view of a view refers only to shards. This module does not know how samples came into
their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TypeAlias

from wdscli.arrays import I64, U64, numpy
from wdscli.errors import DataError, InputError, InputNotFoundError, UsageError
from wdscli.model import FieldTotals, ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.duplicates import Rereader
from wdscli.plan.inputs import Input
from wdscli.plan.join import Join, JoinKind
from wdscli.plan.plan import ReorderPlan, make_plan
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.survey import SurveyTask, hash_key
from wdscli.plan.table import MISSING_SHARD, RENAMED, PlanTable
from wdscli.selection import Selection
from wdscli.selection.layers import OnConflict
from wdscli.shards.index import Check, Index
from wdscli.shards.inputs import (
    MANIFEST_SUFFIX,
    ListingCache,
    ShardSet,
    listed_shards,
    names_in,
    read_manifest,
)
from wdscli.shards.locks import remove_abandoned
from wdscli.shards.manifest import Manifest, name_from
from wdscli.shards.proof import find_index, scanned_index
from wdscli.shards.view import (
    MISSING,
    Ancestor,
    SampleRun,
    SectionWriter,
    View,
    ViewRule,
    ViewShard,
    refuse_existing,
    rows_address,
    runs_of,
    view_address,
    write_both,
)
from wdscli.shards.view_shards import OpenView, opened
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import (
    Source,
    base_name,
    exists,
    folder_of,
    has_folder,
    is_local,
    open_source,
    read_all,
    remove,
)
from wdscli.storage.addresses import VIEW_SUFFIX, HeldBytes, hold, view_of
from wdscli.storage.opening import abort_uploads, at_once
from wdscli.tar import END_OF_ARCHIVE

ALONE: OnConflict = "error"
"""The policy for parts without common fields."""
ROWS_PER_RUN = 4
"""A run is text, which needs as much space as this many rows."""


class _Input:
    """An input of a plan: a shard with bytes, or a view's shard."""

    def __init__(self, planned: Input) -> None:
        self.address = planned.address
        self.open = partial(open_source, planned.address) if planned.copy else planned.open
        place = view_of(planned.address)
        self.view: OpenView | None = None if place is None else opened(place[0])
        self.number = 0 if self.view is None or place is None else self.view.places[place[1]]

    @property
    def rule(self) -> ViewRule | None:
        """Return the rule that makes the fields of its samples from the fields of bases, or None if the fields are
        those of one base."""
        rule = None if self.view is None else self.view.view.rule
        return None if rule is None or (rule.is_plain and rule.sets == 1) else rule

    def used_bases(self) -> Iterator[str]:
        """Yield the addresses of the shards that have its bytes."""
        if self.view is None:
            yield self.address
            return
        for bases, _ in self.samples:
            yield from (self.view.bases[base] for base in numpy.unique(bases).tolist() if base != MISSING)

    @cached_property
    def samples(self) -> list[tuple[I64, I64]]:
        """Return, for each set of a view's shard, the base and the place of each sample."""
        assert self.view is not None
        return self.view.samples_of(self.number)

    @cached_property
    def new_keys(self) -> dict[int, bytes]:
        """Return the keys in a view's shard that differ from the keys in its bases."""
        return {} if self.view is None else self.view.new_keys(self.number)


_Base: TypeAlias = "tuple[ShardInfo, Mapping[str, FieldTotals] | None]"
"""A base, without its name and checksum, and its fields. They are None if the base is not as wdscli writes it."""


class _Writer:
    """The state of one call of :func:`write_views`. ``facts_of_bases`` has the bases that were read, by
    address."""

    def __init__(self, plan: ReorderPlan, folder: str, facts_of_bases: dict[str, _Base]) -> None:
        self.request = plan.request
        self.contents = contents = plan.contents
        self.folder = folder
        self.inputs = [*map(_Input, contents.inputs)]
        self.opening = {shard.address: shard.open for shard in self.inputs if shard.view is None}
        self.facts_of_bases = facts_of_bases
        self.numbers: dict[str, int] = {}
        self.bases: list[ShardInfo] = []
        self.totals: list[Mapping[str, FieldTotals] | None] = []
        """The fields of each base that is as wdscli writes it, None for other bases."""
        self.rows = bytearray()
        self.sections = SectionWriter(self.rows.extend)
        self.listed = listed_shards(ShardSet(contents.addresses, None, None, ListingCache()))
        joined = contents.joined
        sets = joined.sets if joined is not None else [0] * len(self.inputs)
        self.rules: list[list[ViewRule | None]] = [[] for _ in contents.row_lists]
        for shard, of_set in zip(self.inputs, sets):
            if shard.rule not in self.rules[of_set]:
                self.rules[of_set].append(shard.rule)
        policies: tuple[OnConflict, ...] = ("error",) if joined is None else joined.policies
        parts = [_either(rules) for rules in self.rules]
        self.rule = _flat(ViewRule(tuple(parts), policies, plan.request.selection.field_rule))

    def read_bases(self, planned: Sequence[PlannedShard]) -> None:
        """Read the bases on stores that shards need, several at the same time."""
        views = {id(source.view): source.view for source in self.inputs if source.view is not None}
        if all(map(is_local, chain(self.opening, *(view.bases for view in views.values())))):
            return
        columns = (
            ordered.column("shard", shard.first, shard.end)
            for ordered in self.contents.row_lists
            for shard in planned
        )
        used = {*chain.from_iterable(numpy.unique(column).tolist() for column in columns)} - {MISSING_SHARD}
        wanted = dict.fromkeys(base for number in sorted(used) for base in self.inputs[number].used_bases())
        remote = [base for base in wanted if not is_local(base) and base not in self.facts_of_bases]
        self.facts_of_bases.update(zip(remote, at_once(self._read, remote)))

    def base(self, address: str, checksum: str | None) -> int:
        """Return the number of the base at an address."""
        number = self.numbers.get(address)
        if number is None:
            number = self.numbers[address] = len(self.bases)
            shard, fields = self.facts_of_bases[address] = self.facts_of_bases.get(address) or self._read(
                address
            )
            self.totals.append(fields)
            self.bases.append(replace(shard, name=name_from(self.folder, address), checksum=checksum))
        return number

    def _read(self, address: str) -> _Base:
        """Read the facts of a base from its index."""
        opening = self.opening.get(address)
        with open_source(address) if opening is None else opening() as source:
            if not source.seekable or source.size is None:
                raise UsageError(
                    f"{address} can only be read from beginning to end, so a view cannot refer to its samples",
                    hint="store it as a plain tar first: wds cat SHARD -o plain.tar",
                )
            index = self._index(address, source)
            # Members that belong to no sample, and foreign headers, are not in the view.
            ends = int((index.starts[-1:] + index.lengths[-1:]).sum()) + len(END_OF_ARCHIVE)
            is_canonical = not index.marks.any() and not index.ignored and ends == source.size
            is_canonical = is_canonical and source.stored is source
            facts = index.facts()
            shard = facts._replace(fields={}).of_shard("", source.size, checksum=None, index=False)
            return shard, facts.fields if is_canonical else None

    def _index(self, address: str, source: Source) -> Index:
        """Return the index of a base."""
        form = self.request.settings.form
        try:
            index = find_index(address, source, form=form, check=Check.ALL_LOCAL)
            return index or scanned_index(address, source, form)
        except DataError as error:
            error.hint = "a view needs undamaged shards: `wds repair` writes the whole samples of this one"
            raise

    def shard(self, shard: PlannedShard) -> tuple[ViewShard, ShardInfo]:
        """Return the samples of a shard, and its entry."""
        columns: list[tuple[I64, I64]] = []
        for (inputs, places), rules in zip(
            self.contents.taken(shard.first, shard.end), self.rules, strict=True
        ):
            for rule in rules or [None]:
                columns += self._traced(inputs, places, rule)
        keys = self._new_keys(shard)
        digest = self._digest(columns, keys)
        info = shard.info(base_name(shard.address))
        runs_of_columns = [
            runs_of(*column_runs, max(1, shard.samples // ROWS_PER_RUN)) for column_runs in columns
        ]
        runs, rows = None, None
        if None in runs_of_columns:
            numbers: I64 = numpy.concatenate([column for pair in columns for column in pair])
            rows = self.sections.add([numbers.astype("<u4").tobytes()])
        else:
            runs = tuple(column_runs or () for column_runs in runs_of_columns)
        if keys:
            return ViewShard(digest, runs, rows, self.sections.add([keys])), info
        return ViewShard(digest, runs, rows), (runs and self._whole(runs, info)) or info

    def _digest(self, columns: Sequence[tuple[I64, I64]], keys: bytes) -> str:
        """Return a digest of samples and keys. It uses the contents of bases, not their numbers."""
        from xxhash import xxh3_64_intdigest, xxh3_128

        base_digests = [xxh3_64_intdigest(f"{base.headers} {base.checksum}".encode()) for base in self.bases]
        of_base: U64 = numpy.array([*base_digests, 0], dtype="<u8")
        digest = xxh3_128(keys)
        for bases, places in columns:
            digest.update(of_base[bases].tobytes())
            digest.update(places.astype("<u4").tobytes())
        return digest.hexdigest()

    def _whole(self, runs: Sequence[Sequence[SampleRun]], info: ShardInfo) -> ShardInfo | None:
        """Return the entry of a shard that is an unchanged base, otherwise None."""
        if not self.rule.is_plain or len(runs) != 1 or len(runs[0]) != 1:
            return None
        base = self.bases[runs[0][0].base]
        if (base.samples, base.members, base.size_bytes) != (info.samples, info.members, info.size_bytes):
            return None
        totals = self.totals[runs[0][0].base]
        return None if totals is None else replace(base, name=info.name, fields=totals)

    def _traced(self, inputs: I64, places: I64, rule: ViewRule | None) -> list[tuple[I64, I64]]:
        """Return base and place of samples in each set of a rule. Samples of inputs with another rule are
        :data:`MISSING`."""
        sets = 1 if rule is None else rule.sets
        missing: I64 = numpy.full((sets, 2, len(inputs)), MISSING, dtype=numpy.int64)
        columns = [(bases, places_in_bases) for bases, places_in_bases in missing]
        order: I64 = numpy.argsort(inputs, kind="stable")
        numbers_of, firsts = numpy.unique(inputs[order], return_index=True)
        for number, rows in zip(numbers_of.tolist(), numpy.split(order, firsts[1:])):
            shard = None if number == MISSING else self.inputs[number]
            if shard is None or shard.rule != rule:
                continue
            if shard.view is None:
                listed = self.listed.get(shard.address)
                bases, base_places = columns[0]
                bases[rows] = self.base(shard.address, listed.checksum if listed else None)
                base_places[rows] = places[rows]
                continue
            for (bases, base_places), (view_bases, view_places) in zip(columns, shard.samples, strict=True):
                inner = view_bases[places[rows]]
                numbers = {
                    base: MISSING
                    if base == MISSING
                    else self.base(shard.view.bases[base], shard.view.view.bases[base].checksum)
                    for base in numpy.unique(inner).tolist()
                }
                bases[rows] = [numbers[base] for base in inner.tolist()]
                base_places[rows] = numpy.where(inner == MISSING, MISSING, view_places[places[rows]])
        return columns

    def _new_keys(self, shard: PlannedShard) -> bytes:
        """Return the keys of samples that get new keys, or already have new keys in a view."""
        part = self.contents.ordered.part(shard.first, shard.end)
        renamed = part.marks & RENAMED if self.contents.joined is None else numpy.zeros(0, dtype=numpy.uint8)
        keys: dict[int, bytes] = {}
        for sample in range(part.total) if any(source.new_keys for source in self.inputs) else ():
            source, place = self.inputs[int(part.shards[sample])], int(part.places[sample])
            if place in source.new_keys:
                keys[sample] = source.new_keys[place]
        keys = dict(sorted((keys | dict(self._renamed(part, numpy.flatnonzero(renamed)))).items()))
        if not keys:
            return b""
        numbers = [len(keys), *keys, *map(len, keys.values())]
        words: I64 = numpy.array(numbers, dtype=numpy.int64)
        head: bytes = words.astype("<u4").tobytes()
        return head + b"".join(keys.values())

    def _renamed(self, part: PlanTable, rows: I64) -> Iterator[tuple[int, bytes]]:
        """Yield the new keys of some samples, each with its row. The hash in the plan decides."""
        rows = rows[numpy.lexsort((part.places[rows], part.shards[rows]))]
        template = SurveyTask(Input(""), self.request.settings.form, Selection(), check=Check.ALL_LOCAL)
        for sample in Rereader(self.contents.inputs, template).samples(part, rows.tolist()):
            rekey = self.contents.rekey
            new = sample.key if rekey is None else sample.new_key(rekey)
            yield sample.row, new if hash_key(new) == int(part.keys[sample.row]) else sample.key


def _either(rules: Sequence[ViewRule | None]) -> ViewRule | None:
    """Join several rules to one rule. Each sample has the parts of one of these rules."""
    if len(rules) < 2:
        return rules[0] if rules else None
    return ViewRule(tuple(rules), (ALONE,) * len(rules))


def _flat(rule: ViewRule) -> ViewRule:
    """Return the same rule without inner rules that change nothing."""
    if rule.fields is None and len(rule.parts) == 1 and rule.parts[0] is not None:
        return rule.parts[0]
    is_plain = rule.fields is None and {*rule.policies} == {ALONE}
    if is_plain and all(part is None or part.is_plain for part in rule.parts):
        return ViewRule((None,) * rule.sets, (ALONE,) * rule.sets)
    return rule


def write_views(plan: ReorderPlan) -> list[Manifest]:
    """Write the view of each part of a plan. Raises UsageError for inputs that cannot be bases, OutputExistsError,
    OutputError."""
    request, written = plan.request, list[Manifest]()
    settings = request.settings
    for address in map(_address, plan.contents.outputs):
        if is_local(address):
            own_names = {base_name(address), base_name(rows_address(address))}
            remove_abandoned(folder_of(address), own_names.__contains__)
        if not (settings.force or request.resume):
            refuse_existing(address)
    for address, manifest, rows in _views(plan):
        text = manifest.to_json().encode("ascii")
        if not (request.resume and _is_whole(address, text, rows)):
            _write(address, text, rows, settings, replaces_rows=settings.force or request.resume)
        written.append(manifest)
    return written


def _is_whole(address: str, text: bytes, rows: bytearray) -> bool:
    """Return whether an earlier run has written this view. The last step of a run gives the view its name."""
    with suppress(InputNotFoundError):
        return read_all(address) == text and (not rows or read_all(rows_address(address)) == rows)
    return False


def _write(
    address: str, text: bytes, rows: bytearray, settings: ShardSettings, *, replaces_rows: bool
) -> None:
    """Write a view and its rows, if it has any. Raises OutputError."""
    place, write_rows = rows_address(address), (lambda write: write(rows)) if rows else None
    write_both(
        address,
        lambda: text,
        write_rows,
        force=settings.force,
        replaces_rows=replaces_rows,
        fsync=settings.fsync,
    )
    if settings.force and not rows:
        remove(place)
    abort_uploads(folder_of(address), (address, place).__contains__)


def carry_views(
    addresses: Sequence[str], copies: Manifest, request: Request, warn: Callable[[str], object]
) -> None:
    """Copy the views in the shards' folder to the folder of the request's output. ``copies`` lists the copies of the
    shards, which are there. A view is copied if all of its bases were copied with their names, sizes and headers.
    Another view of the same name is kept without ``--force``, with a warning. Raises OutputError."""
    folders, settings = set(map(folder_of, addresses)), request.settings._replace(force=True)
    facts = {shard.name: (shard.size_bytes, shard.headers) for shard in copies.shards}
    for folder in folders if len(folders) == 1 and all(map(has_folder, addresses)) else ():
        for name in names_in(folder, keep=lambda name: name.endswith(VIEW_SUFFIX)):
            with suppress(DataError, InputError):
                view = None if name.endswith(MANIFEST_SUFFIX) else read_manifest(folder + name).view
                bases = () if view is None else view.bases
                if bases and all(facts.get(base.name) == (base.size_bytes, base.headers) for base in bases):
                    rows = rows_address(folder + name)
                    data = bytearray(read_all(rows) if exists(rows) else b"")
                    text, copy = read_all(folder + name), folder_of(request.output) + name
                    if request.settings.force or not exists(copy):
                        _write(copy, text, data, settings, replaces_rows=True)
                    elif read_all(copy) != text:
                        warn(f"{copy} is kept, which is not the view beside the input; --force replaces it")


def hold_join(inputs: Sequence[str], kind: JoinKind, *, trust_addresses: bool = False) -> list[HeldBytes]:
    """Make the view of some joined sets in memory, and its rows if it has any. Raises UsageError, InputError,
    DataError."""
    from xxhash import xxh3_128_hexdigest

    settings = ShardSettings(force=True)
    request = Request(inputs, "join.json", settings, jobs=1, trust_addresses=trust_addresses)
    with Scratch() as scratch:
        plan = make_plan(request, Join(kind), scratch)
        [(_, manifest, rows)] = _views(plan)
    text = manifest.to_json().encode("ascii")
    address = f"join-{kind}-{xxh3_128_hexdigest(text)}.json"
    return [hold(address, text), *([hold(rows_address(address), bytes(rows))] if rows else [])]


def _descent(plan: ReorderPlan, folder: str) -> tuple[tuple[Ancestor, ...], tuple[int, ...]]:
    """Return the sets from which a view of this plan comes, each after its own parents, and the numbers of the view's
    parents. A set of shards has the name of its folder, relative to the view's folder."""
    ancestors: dict[Ancestor, int] = {}
    parents = []
    for shard, manifest in plan.parents:
        view = None if manifest is None else manifest.view
        name = "" if view is not None else base_name(folder_of(name_from(folder, shard)))
        if name in ("", ".."):
            name = (manifest.name if manifest is not None else "") or base_name(shard)
        numbers: list[int] = []
        for ancestor in () if view is None else view.ancestors:
            ancestor = ancestor._replace(parents=tuple(numbers[number] for number in ancestor.parents))
            numbers.append(ancestors.setdefault(ancestor, len(ancestors)))
        own = () if view is None else tuple(numbers[number] for number in view.parents)
        this = Ancestor(name, None if manifest is None else manifest.fingerprint, own)
        parents.append(ancestors.setdefault(this, len(ancestors)))
    return tuple(ancestors), tuple(parents)


def _address(output: OutputSet) -> str:
    return view_address(output.pattern.text)


def _views(plan: ReorderPlan) -> Iterator[tuple[str, Manifest, bytearray]]:
    """Yield the address of the view for each part of a plan, its manifest and its rows."""
    facts_of_bases: dict[str, _Base] = {}
    for number, output in enumerate(plan.contents.outputs):
        address = _address(output)
        descent = _descent(plan, folder_of(address))
        writer = _Writer(plan, folder_of(address), facts_of_bases)
        planned = [shard for shard in plan.contents.shards if shard.part == number]
        writer.read_bases(planned)
        shards, infos = zip(*map(writer.shard, planned)) if planned else ((), ())
        manifest = replace(
            output.manifest_of(infos, plan.provenance),
            name=base_name(address).removesuffix(VIEW_SUFFIX),
            view=View(tuple(writer.bases), shards, writer.rule, plan.request.settings.form, *descent),
        )
        yield address, manifest, writer.rows
