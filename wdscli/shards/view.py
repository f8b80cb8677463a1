"""The contents of a view: its bases, and the samples that each of its shards takes from them.

:class:`View` is the part of a manifest that makes it a view. wdscli-manifest(5) documents its form in JSON. For each
joined set, a shard lists runs of samples: the base shard, the first sample and the number of samples. If there would be
too many runs, the file ``VIEW.rows`` next to the view has the base and the place of each sample.

A plan has the same two files, ``NAME.json`` and ``NAME.rows``. :func:`write_both` writes both or neither. The rows are
sealed sections: a :class:`Section` is a range of the file with a checksum, which is called its seal.
:class:`SectionWriter` writes sections one after the other. :func:`read_section` returns the bytes only if they fit the
seal, so damage is always noticed. A seal does not show who wrote the bytes. This module does not know how the bytes of
shards are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, get_args

from xxhash import xxh3_64, xxh3_64_intdigest

from wdscli.arrays import I64, edges, numpy, spread
from wdscli.errors import InputError, InputNotFoundError, UsageError
from wdscli.model import ShardInfo
from wdscli.schema import Records, check
from wdscli.selection.choice import FIELD_RULE, FieldRule
from wdscli.selection.layers import OnConflict, Shape, lay_out
from wdscli.storage import Source, base_name, exists, is_stream, open_sink, open_source, remove
from wdscli.storage.addresses import VIEW_SUFFIX
from wdscli.storage.ends import taken
from wdscli.storage.opening import refuse_device
from wdscli.storage.patterns import NAME, has_braces
from wdscli.tar import Form

MISSING = -1
"""The base number for a sample without a part in a set."""
COPY_BOTH = "copy both files of the view or plan, or make it again"
ROWS_SUFFIX = ".rows"

SECTION = [int, int, str]
"""The form of a section in JSON (:mod:`wdscli.schema`)."""
_RULE = {
    "parts": [(dict, None), ...],
    "policies": [get_args(OnConflict), ...],
    "fields": (FIELD_RULE, None),
}
"""See :mod:`wdscli.schema` for the form of this table. Each part is again an object of this form."""
_DEEPEST_RULE = 200
"""The most levels of a rule. Python limits the depth of calls."""


class Section(NamedTuple):
    """The place of some bytes in a file: the first byte, the length in bytes, and the XXH3-64 of the bytes."""

    start: int
    length: int
    seal: int

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Section:
        """Parse the result of :meth:`plain`. Raises ValueError."""
        start, length, seal = plain
        return cls(start, length, int(seal, 16))

    def plain(self) -> list[Any]:
        """Return the section for JSON, with the seal in hexadecimal."""
        return [self.start, self.length, f"{self.seal:016x}"]


class SampleRun(NamedTuple):
    """Adjacent samples of a base shard: the base's number, the first sample, and the number of samples."""

    base: int
    first: int
    samples: int


class ViewRule(NamedTuple):
    """The rule by which the fields of a sample are made from the fields of its parts. A part is a sample of a set
    (None), or is itself made by another rule. ``fields`` chooses and renames the fields of each part. The fields of all
    parts are then combined, with a policy for each part about fields that already exist."""

    parts: tuple[ViewRule | None, ...]
    policies: tuple[OnConflict, ...]
    fields: FieldRule | None = None

    @property
    def sets(self) -> int:
        """The number of sets."""
        return sum(1 if part is None else part.sets for part in self.parts)

    @property
    def is_plain(self) -> bool:
        """Whether a sample is just its unchanged parts, one after the other."""
        return (
            self.fields is None and all(part is None for part in self.parts) and {*self.policies} <= {"error"}
        )

    def slots(self, shapes: Mapping[int, Shape], first: int = 0) -> list[tuple[bytes, int, int]]:
        """Return the members of a sample, each with its name, its set, and its number in the set. ``shapes`` has the
        sample's fields in each set. The sets of this rule have numbers from ``first``. Raises DataError for a
        conflict."""
        members: list[list[tuple[bytes, int, int]]] = []
        for part in self.parts:
            if part is None:
                slots = [(field, first, member) for member, field in enumerate(shapes.get(first, ()))]
            else:
                slots = part.slots(shapes, first)
            first += 1 if part is None else part.sets
            if self.fields is not None and slots:
                plan = self.fields.plan(tuple(field for field, _, _ in slots))
                slots = [(field, *slots[member][1:]) for member, field in plan]
            members.append(slots)
        parts = [tuple(field for field, _, _ in slots) or None for slots in members]
        return [
            (slot.field, *members[slot.part][slot.member][1:]) for slot in lay_out(parts, self.policies).slots
        ]

    def plain(self) -> dict[str, Any]:
        """Return the rule as an object for JSON."""
        return {
            "parts": [None if part is None else part.plain() for part in self.parts],
            "policies": list(self.policies),
            "fields": self.fields and self.fields.plain(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], depth: int = 0) -> ViewRule:
        """Parse a rule; this is the inverse of :meth:`plain`. Raises ValueError. A view of a view of a view has a rule
        with a ``depth`` of 2."""
        check(plain, _RULE)
        if depth > _DEEPEST_RULE:
            raise ValueError(f"its rule has more than {_DEEPEST_RULE} levels")
        if len(plain["parts"]) != len(plain["policies"]):
            raise ValueError("its rule has another number of policies than parts")
        parts = tuple(None if part is None else cls.from_plain(part, depth + 1) for part in plain["parts"])
        return cls(parts, tuple(plain["policies"]), FieldRule.from_plain(plain["fields"]))


class ViewShard(NamedTuple):
    """The samples of a shard. Each set has runs, or ``rows`` has stored little-endian u32 numbers: for each set the
    base of every sample, then the place of every sample. ``keys`` are stored new keys: their number, the numbers of
    their samples, their lengths, and the keys themselves. ``digest`` identifies samples and keys. It does not depend on
    the numbering of bases."""

    digest: str
    runs: tuple[tuple[SampleRun, ...], ...] | None
    rows: Section | None = None
    keys: Section | None = None


class Ancestor(NamedTuple):
    """A set from which a view was made: its name, and its fingerprint if it has a manifest. If it is a view itself,
    ``parents`` are the numbers of the sets from which it was made."""

    name: str
    fingerprint: str | None
    parents: tuple[int, ...] = ()


class View(NamedTuple):
    """The bases of a view, its shards, and the rule for the fields of its samples. ``ancestors`` are all sets from
    which the view was made, directly or indirectly, each after its own parents. ``parents`` are the numbers of the
    direct ancestors."""

    bases: Sequence[ShardInfo]
    shards: Sequence[ViewShard]
    rule: ViewRule
    form: Form
    ancestors: tuple[Ancestor, ...] = ()
    parents: tuple[int, ...] = ()

    def descent(self, name: str) -> Iterator[list[str]]:
        """Yield the lines of descent of the view, which has this name. A line is a set, its parent, the parent's
        parent, and so on. A set with several parents ends a line. Its parents then begin new lines, if they have
        parents themselves.

        >>> sets = Ancestor("photos", None), Ancestor("captions", None), Ancestor("v2", None, (0,))
        >>> [*View((), (), ViewRule((), ()), Form(), sets, (2, 1)).descent("v3")]
        [['v3', 'v2 + captions'], ['v2', 'photos']]
        """
        waiting, visited = [(name, self.parents)], set[int]()
        for name, parents in waiting:
            line = [name]
            while parents:
                sets = [self.ancestors[number] for number in parents]
                line.append(" + ".join(ancestor.name for ancestor in sets))
                is_new = [
                    ancestor.parents != () and number not in visited
                    for ancestor, number in zip(sets, parents)
                ]
                visited.update(parents)
                if len(sets) > 1:
                    waiting += [
                        (ancestor.name, ancestor.parents) for ancestor, new in zip(sets, is_new) if new
                    ]
                parents = sets[0].parents if len(sets) == 1 and is_new[0] else ()
            if len(line) > 1:
                yield line

    def root(self, shards: Sequence[ShardInfo]) -> str:
        """Return the fingerprint of the set, as defined in wdscli-manifest(5). Equal views have equal fingerprints,
        even if they were made in different ways. A shard that is a whole base counts like in the manifest of its
        base."""
        import json

        from xxhash import xxh3_128, xxh3_128_hexdigest

        rule = xxh3_128_hexdigest(json.dumps([self.rule.plain(), self.form], sort_keys=True).encode())
        digest = xxh3_128()
        for info, shard in zip(shards, self.shards, strict=True):
            last = f"{info.headers} {info.checksum or '-'}" if info.headers else f"{shard.digest} {rule}"
            digest.update(f"{info.samples} {info.size_bytes} {last}\n".encode())
        return f"xxh3_128:{digest.hexdigest()}"


def to_json(view: View) -> dict[str, Any]:
    """Return a view as an object for its manifest, without the bases. :func:`from_json` is the inverse."""
    return {
        "mtime": view.form.mtime,
        "long_names": view.form.long_names,
        "rule": view.rule.plain(),
        "ancestors": [ancestor._asdict() for ancestor in view.ancestors],
        "parents": view.parents,
        "shards": [
            {
                name: value.plain() if isinstance(value, Section) else value
                for name, value in shard._asdict().items()
                if value is not None
            }
            for shard in view.shards
        ],
    }


def from_json(document: Mapping[str, Any], bases: Sequence[ShardInfo], shards: Sequence[ShardInfo]) -> View:
    """Parse the ``view`` of a manifest. Raises ValueError for samples that do not exist."""
    rule = ViewRule.from_plain(document["rule"])
    if len(document["shards"]) != len(shards):
        raise ValueError("the view describes another number of shards")
    view_shards, counts = Records(document["shards"], _shard_of), [base.samples for base in bases]
    for shard, info in zip(view_shards, shards):
        sets = rule.sets if shard.runs is None else len(shard.runs)
        if (shard.runs is None) == (shard.rows is None) or sets != rule.sets:
            raise ValueError(f"{info.name} has samples of another number of sets")
        # Each sample has four bytes for its base and four for its place.
        if shard.rows is not None and shard.rows.length != 8 * sets * info.samples:
            raise ValueError(f"{info.name} has another number of rows than samples")
        for runs in shard.runs or ():
            _check_runs(runs, counts, info)
        if shard.runs is not None and has_gap(shard.runs):
            raise ValueError(f"{info.name} has a sample that all sets lack")
    ancestors = tuple(
        Ancestor(ancestor["name"], ancestor["fingerprint"], tuple(ancestor["parents"]))
        for ancestor in document.get("ancestors", ())
    )
    parents = tuple(document.get("parents", ()))
    if any(max(ancestor.parents, default=-1) >= number for number, ancestor in enumerate(ancestors)) or (
        max(parents, default=-1) >= len(ancestors)
    ):
        raise ValueError("a set comes before the sets that it was made from")
    form = Form(document["mtime"], document["long_names"])
    return View(bases, view_shards, rule, form, ancestors, parents)


def _shard_of(plain: Mapping[str, Any]) -> ViewShard:
    runs = plain.get("runs")
    stored = {name: Section.from_plain(plain[name]) for name in ("rows", "keys") if name in plain}
    return ViewShard(
        plain["digest"],
        None if runs is None else tuple(tuple(SampleRun(*run) for run in set_runs) for set_runs in runs),
        **stored,
    )


def _check_runs(runs: Sequence[SampleRun], counts: Sequence[int], info: ShardInfo) -> None:
    """Raise ValueError for runs that are not in the bases. ``counts`` has the number of samples of each base."""
    for base, first, samples in runs:
        if base != MISSING and not (base < len(counts) and 0 < samples <= counts[base] - first):
            raise ValueError(f"{info.name} takes samples that no base has")
    if sum(run.samples for run in runs) != info.samples:
        raise ValueError(f"{info.name} takes another number of samples than it has")


def has_gap(set_runs: Sequence[Sequence[SampleRun]]) -> bool:
    """Return whether all sets lack the same sample. ``set_runs`` has the runs of each set.

    >>> has_gap([[SampleRun(MISSING, 0, 2), SampleRun(0, 0, 3)], [SampleRun(0, 0, 2), SampleRun(MISSING, 0, 3)]])
    False
    >>> has_gap([[SampleRun(MISSING, 0, 3), SampleRun(0, 0, 2)], [SampleRun(0, 0, 2), SampleRun(MISSING, 0, 3)]])
    True
    """
    lacking_sets: dict[int, int] = {}
    for runs in set_runs:
        if all(run.base != MISSING for run in runs):
            return False
        ends = accumulate(run.samples for run in runs)
        for run, end in zip(runs, ends):
            if run.base == MISSING and run.samples:
                lacking_sets[end - run.samples] = lacking_sets.get(end - run.samples, 0) + 1
                lacking_sets[end] = lacking_sets.get(end, 0) - 1
    return len(set_runs) in accumulate(change for _, change in sorted(lacking_sets.items()))


def runs_of(bases: I64, places: I64, most: int) -> tuple[SampleRun, ...] | None:
    """Return samples as runs, or None if there are more than ``most`` runs."""
    if not len(bases):
        return ()
    step = numpy.where(bases[1:] == MISSING, 0, 1)
    apart = (bases[1:] != bases[:-1]) | ((places[1:] != places[:-1] + step) & (bases[1:] != MISSING))
    bounds = edges(apart, len(bases))
    firsts, counts = bounds[:-1], numpy.diff(bounds)
    if len(firsts) > most:
        return None
    return tuple(
        SampleRun(base, max(place, 0), count)
        for base, place, count in zip(bases[firsts].tolist(), places[firsts].tolist(), counts.tolist())
    )


def samples_of(runs: Sequence[SampleRun]) -> tuple[I64, I64]:
    """The base and the place of each sample of some runs."""
    bases, firsts, counts = numpy.array(runs, dtype=numpy.int64).reshape(-1, 3).T
    return bases.repeat(counts), spread(firsts, counts)


def is_view(output: str) -> bool:
    """Return whether an output is a view and not shards."""
    return output.endswith(VIEW_SUFFIX) and not is_stream(output)


def refuse_view(output: str) -> None:
    """Raise UsageError if the output of a command that makes new bytes has the name of a view."""
    if is_view(output):
        raise UsageError(
            f"{output} is the name of a view, and this command writes new bytes",
            hint="name shards: -o 'out-%06d.tar'",
        )


def check_new_names(output: str) -> None:
    """Raise UsageError if the output of a command without input names has the name of a view, or {name} in it."""
    refuse_view(output)
    if NAME in output:
        raise UsageError(
            f"{NAME} is the name of an input shard; only cat, map, split and merge --join keep such names",
            hint="number the shards: -o out-%06d.tar",
        )


def view_address(pattern: str) -> str:
    """Return the address of the view in a shard pattern ``VIEW.json/NAME``."""
    return pattern[: pattern.rindex(VIEW_SUFFIX + "/") + len(VIEW_SUFFIX)].replace("%%", "%")


def shards_of_view(output: str, *, keeps_shards: bool) -> str:
    """Return the pattern for the shards of a view. Shards have the names of the input's shards, or numbers. Raises
    UsageError for a name that could be several names.

    >>> shards_of_view("sets/{part}.json", keeps_shards=False)
    'sets/{part}.json/{part}-%06d.tar'
    """
    if NAME in output or "%" in output.replace("%%", "") or has_braces(output):
        raise UsageError(f"{output} names several files, but a view is one file", hint="-o train.json")
    stem = NAME if keeps_shards else base_name(output).removesuffix(VIEW_SUFFIX) + "-%06d"
    return f"{output}/{stem}.tar"


class SectionWriter:
    """Writes sections to a new file by calls of ``write``. ``position`` is the number of bytes so far."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write = write
        self.position = 0

    def add(self, pieces: Iterable[bytes]) -> Section:
        """Write the pieces of one section, one after the other. Raises the errors of ``write``."""
        start, digest = self.position, xxh3_64()
        for piece in pieces:
            digest.update(piece)
            self._write(piece)
            self.position += len(piece)
        return Section(start, self.position - start, digest.intdigest())


def read_section(source: Source, section: Section) -> bytes | None:
    """Return the bytes of a section, or None if bytes are missing or do not fit the seal. Raises InputError."""
    if source.size is None or section.start + section.length > source.size:
        return None
    data = source.read_at(section.start, section.length)
    return data if len(data) == section.length and xxh3_64_intdigest(data) == section.seal else None


def rows_address(address: str) -> str:
    """Return the address of the rows of a view or plan.

    >>> rows_address("sets/train.json"), rows_address("mixed.plan")
    ('sets/train.rows', 'mixed.plan.rows')
    """
    return address.removesuffix(VIEW_SUFFIX) + ROWS_SUFFIX


def open_rows(address: str) -> Source:
    """Open the rows of the view or plan at an address. Raises InputError."""
    rows = rows_address(address)
    refuse_device(rows)
    try:
        source = open_source(rows, decompress=False)
    except InputNotFoundError as error:
        error.hint = COPY_BOTH
        raise
    if source.size is None:
        with source:
            raise needs_ranges(rows, address)
    return source


def needs_ranges(file: str, address: str) -> InputError:
    """Return the error for a file of the view or plan at an address that can only be read from its beginning."""
    return InputError(
        f"cannot read {file} for {address}: its server does not support ranges",
        hint="copy the files to a folder or to a server with ranges",
    )


def refuse_existing(address: str) -> None:
    """Raise OutputExistsError if a file of the view or plan at an address exists."""
    for file in (address, rows_address(address)):
        if exists(file):
            raise taken(file)


def write_both(
    address: str,
    text: Callable[[], bytes],
    write_rows: Callable[[Callable[[Any], Any]], object] | None,
    *,
    force: bool,
    replaces_rows: bool,
    fsync: bool = False,
) -> None:
    """Write a view or plan and its rows, or neither. ``write_rows`` writes the rows by calls of a function; ``text`` is
    called after it. The view gets its name last, and an old view loses its name before its rows are replaced. Raises
    OutputError."""
    place, has_rows = rows_address(address), False
    sink = open_sink(address, force=force, fsync=fsync)
    try:
        if write_rows is None:
            sink.write(text())
        else:
            with open_sink(place, force=replaces_rows, fsync=fsync) as beside:
                write_rows(beside.write)
                beside.flush()
                sink.write(text())
                sink.flush()
                if force:
                    remove(address)
            has_rows = True
        sink.commit()
    except BaseException:
        sink.discard()
        if has_rows:
            remove(place)
        raise
