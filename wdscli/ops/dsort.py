"""``dsort``: carry out a job description of AIStore's dSort.

:func:`dsort_order` translates a :class:`~wdscli.ops.dsort_job.Job` to a request and an order of ``sort``, ``shuffle``
or ``split``. :class:`ExternalMapOrder` makes the parts of an external key map, and sorts each part. A template of
inputs becomes braces or a glob, and a template of outputs becomes a printf field. The reactions ``ignore`` and ``warn``
are the same here, because omitted samples are always counted. This module does not know how samples are read, ordered
or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, InputNotFoundError, UsageError
from wdscli.ops.dsort_job import Algorithm, Job, refuse
from wdscli.plan.cut import FIELD, Cuts
from wdscli.plan.orders import (
    VALUED_BYTES,
    Arrangement,
    InputOrder,
    Order,
    ShuffledOrder,
    SurveyedSamples,
    shuffled,
)
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.request import Request
from wdscli.plan.sort import SortKey, md5_code, sort_order
from wdscli.plan.split import KeyMap, PartsOrder, SplitOptions, arranged, named_parts, numbered, pairs_of_json
from wdscli.plan.table import Extract, GrowingValues, PackedValues, PlanTable, Values, packed_keys
from wdscli.samples import split_name
from wdscli.samples.grouping import SampleAt
from wdscli.selection.expressions import Expression
from wdscli.selection.where import Value
from wdscli.shards.index import Index
from wdscli.storage import base_name, exists, is_local, read_all
from wdscli.storage.opening import at_once
from wdscli.storage.patterns import expand
from wdscli.text import to_bytes, to_text
from wdscli.units import whole_number

_BRACES = re.compile(r"\{([0-9]+)\.\.([0-9]+)(?:\.\.([0-9]+))?\}")
_AT = re.compile(r"@([0-9]+)")
_PRINTF = re.compile(r"%(?:0([0-9]+))?d")
_MARKED_BYTES = 4
_PATTERN = re.compile(r"[\\*+?\[\](){}|^$]")
"""A record of a map with one of these characters is a regular expression. A dot alone does not make it one."""


class JobOrder(NamedTuple):
    """The request and the order of a job. ``most`` is the number of shards that the output can name; None means any
    number."""

    request: Request
    order: Order
    most: int | None = None

    def check(self, plan: ReorderPlan) -> None:
        """Raise UsageError if the plan has more shards than the job has names."""
        count = len(plan.contents.shards)
        if self.most is not None and count > self.most:
            raise UsageError(
                f"output_format names {self.most} shards, but {count} shards of output_shard_size are needed",
                hint="use more names, or a larger output_shard_size",
            )


def dsort_order(job: Job, request: Request) -> JobOrder:
    """Return the request and the order of a job. ``request`` has the options that a job cannot contain. Raises
    UsageError, InputError.

    >>> from wdscli.ops.dsort_job import parse_job
    >>> from wdscli.run.execute import reorder
    >>> from wdscli.shards import ShardWriter
    >>> folder = str(getfixture("tmp_path"))
    >>> with ShardWriter(f"{folder}/samples-%02d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"0"})
    >>> job = parse_job({"bck": {"name": "images"}, "input_format": "samples-{00..02}", "output_shard_size": "1MB",
    ...                  "output_format": "shuffled-%d", "algorithm": {"kind": "shuffle"}}, {"images": folder})
    >>> meant = dsort_order(job, Request((), ""))
    >>> report = reorder(meant.request, meant.order, planned=meant.check)
    >>> report.samples, report.shards
    (5, 1)
    """
    request = request._replace(
        inputs=[_inputs(job)], on_duplicate="skip" if job.leaves_out("duplicated_records") else "error"
    )
    if job.key_map is not None:
        return _mapped(job, request)
    output, cuts, most = _outputs(job)
    return JobOrder(request._replace(output=job.target.at(output), cuts=cuts), _order(job.algorithm), most)


def _order(algorithm: Algorithm) -> Order:
    kind, decreasing = algorithm.kind, algorithm.decreasing
    if kind == "none":
        return InputOrder("split")
    if kind == "shuffle":
        return ShuffledOrder(algorithm.seed)
    if kind == "content":
        name = algorithm.field.removeprefix(".")
        key = SortKey(
            name,
            Value.of_payloads(name, "algorithm"),
            "numeric" if algorithm.numeric else "plain",
            decreasing,
        )
        order = sort_order([key], missing="error")
        hint = f"such samples come last with wds sort --by {name}"
        return replace(order, extract=replace(order.extract, hint=hint))
    return sort_order(["md5" if kind == "md5" else "key"], reverse=decreasing)


def _inputs(job: Job) -> str:
    """Return one address that names all input shards of a job. Raises UsageError, InputError."""
    ((way, value),) = job.inputs.items()
    root = job.source.root
    if is_local(root) and not exists(root):
        raise InputNotFoundError(
            f"the bucket {job.source.name} would be the folder {root}, which does not exist",
            hint=f"name its folder or URL: --bucket {job.source.name}=DIR or {job.source.name}=s3://...",
        )
    if way == "objnames":
        names = [name if name.endswith(job.suffix) else name + job.suffix for name in value]
        return _there(job, "::".join(map(job.source.at, names)))
    if way == "regex":
        pattern = Expression(value, "input_format.regex")
        return _matching(job, "", lambda name: pattern.search(name) is not None)
    text = value.removesuffix(job.suffix)
    if way == "prefix" or text in ("", "*"):
        return _matching(job, text.removesuffix("*"))
    text = _with_braces(text)
    if any(not _BRACES.fullmatch(braces) for braces in re.findall(r"\{[^}]*\}?", text)):
        refuse("input_format", value, 'a template such as "shard-{00..18}", "shard-@18" or "shard-%02d"')
    if "{" in text:
        return _there(job, job.source.at(text + job.suffix))
    if (number := _PRINTF.search(text)) is None:
        return _matching(job, text)
    digits = f"[0-9]{{{whole_number(number[1] or '1')},}}"
    ending = text[number.end() :] + job.suffix
    pattern = Expression(re.escape(text[: number.start()]) + digits + re.escape(ending), "input_format")
    return _matching(job, text[: number.start()], lambda name: pattern.fullmatch(name) is not None)


def _matching(job: Job, prefix: str, holds: Any = lambda name: True) -> str:
    """Return, in natural order, the shards of a bucket with names that begin with ``prefix`` and satisfy ``holds``."""
    glob = job.source.at(re.sub(r"([*?\[])", r"[\1]", prefix) + "*" + job.suffix)
    start = len(job.source.at("")) if prefix.count("/") else 0
    shards = [shard for shard in expand(glob) if holds(shard[start:] if start else base_name(shard))]
    if not shards:
        raise InputNotFoundError(f"no shard in {job.source.root} matches the job's input_format")
    return "::".join(shards)


def _there(job: Job, text: str) -> str:
    """Return an address. If the job ignores missing shards, they are left out; otherwise they raise
    InputNotFoundError."""
    if not job.leaves_out("missing_shards"):
        return text
    names = expand(text)
    existing = [name for name, is_there in zip(names, at_once(exists, names), strict=True) if is_there]
    if not existing:
        raise InputNotFoundError(f"none of the job's {len(names)} shards exists: {names[0]}, ...")
    return text if len(existing) == len(names) else "::".join(existing)


def _with_braces(text: str) -> str:
    """Write a template's ``@18`` as ``{00..18}``."""
    return text if "{" in text else _AT.sub(lambda match: f"{{{'0' * len(match[1])}..{match[1]}}}", text)


def _outputs(job: Job) -> tuple[str, Cuts, int | None]:
    """Return the output's name, the cuts, and how many shards the name allows. Raises UsageError."""
    text = job.output.removesuffix(job.output_suffix)
    if not text:
        raise UsageError("the job has no output_format", hint='"output_format": "new-%06d"')
    braces = _with_braces(text)
    ranges = list(_BRACES.finditer(braces))
    if not ranges:
        if len(_PRINTF.findall(text)) != 1:
            refuse("output_format", job.output, 'one number: "new-{0000..1000}", "new-@1000" or "new-%06d"')
        if job.shard_size is None:
            raise UsageError(
                "the job needs output_shard_size, because its output_format has no end", hint='"100MB"'
            )
        return text + job.output_suffix, Cuts(max_size=job.shard_size), None
    if job.shard_size is None:
        # Make as many shards as there are names.
        return braces + job.output_suffix, Cuts(), None
    first, last, step = ranges[0].groups()
    if len(ranges) > 1 or whole_number(first) or whole_number(step or "1") != 1:
        refuse(
            "output_format", job.output, 'shards that are cut by size are counted from 0: "new-{0000..1000}"'
        )
    width = min(len(first), len(last))
    number = f"%0{width}d" if width > 1 else "%d"
    name = braces[: ranges[0].start()] + number + braces[ranges[0].end() :]
    return name + job.output_suffix, Cuts(max_size=job.shard_size), whole_number(last) + 1


# External key maps.


@dataclass(frozen=True)
class MapKeys(Extract):
    """The keys of samples, as values to sort by. If the map has regular expressions, each key gets a number as a
    prefix: 0 if no expression matches, else 1 plus the number of the output part of the first match. Expressions are
    searched in the names of members and in the key."""

    patterns: tuple[tuple[Expression[str], int], ...] = ()

    @property
    def prefix_bytes(self) -> int:
        """The number of bytes before each key."""
        return _MARKED_BYTES if self.patterns else 0

    def value(self, sample: SampleAt) -> bytes:
        if not self.patterns:
            return sample.key
        names = [to_text(sample.key + b"." + field) for field in sample.fields] + [to_text(sample.key)]
        parts = {part for pattern, part in self.patterns if any(map(pattern.search, names))}
        if len(parts) > 1:
            text = "several regular expressions of ekm_file, of different shards, match"
            raise sample.error(
                text, "bad-map", hint="change the patterns so that only one matches: ^cat_[0-9]+$"
            )
        return (parts.pop() + 1 if parts else 0).to_bytes(_MARKED_BYTES, "big") + sample.key

    def values_of_index(self, index: Index) -> PackedValues | None:
        return None if self.patterns else packed_keys(index)


@dataclass(frozen=True)
class ExternalMapOrder(PartsOrder):
    """An order with the parts of a map. An algorithm that needs no payload orders each part."""

    key_map: KeyMap
    algorithm: Algorithm
    extract: MapKeys = MapKeys()
    drops: bool = False
    bytes_per_sample = VALUED_BYTES
    makes_parts = False
    """Samples in a part do not stay in input order."""

    def may_leave_out(self) -> bool:
        return self.drops

    def options(self) -> dict[str, Any]:
        shaping = {name: value for name, value in self.algorithm._asdict().items() if value}
        missing = {"missing": "drop"} if self.drops else {}
        return {"by_map": f"xxh3_128:{self.key_map.digest}", "algorithm": shaping, **missing}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        prefix, parts, part_of = self.extract.prefix_bytes, self.key_map.parts, self.key_map.part_of
        base = self._base(surveyed.samples, surveyed.values.behind(prefix))
        nowhere = len(parts)

        def number_of(value: bytes) -> int:
            marked = int.from_bytes(value[:prefix], "big")
            return marked - 1 if marked else part_of.get(value[prefix:], nowhere)

        values = surveyed.values.taken(base)
        numbers = numbered(values, number_of)
        self._check(values, numbers)
        arrangement = arranged(parts, numbers, keeps_empty=False)
        return arrangement._replace(order=base[arrangement.order])

    def _base(self, samples: PlanTable, keys: Values) -> I64:
        """Return all rows in the algorithm's order."""
        kind = self.algorithm.kind
        if kind == "shuffle":
            return shuffled(samples, self.algorithm.seed)
        if kind == "none":
            return numpy.arange(samples.total, dtype=numpy.int64)
        if kind == "md5":
            digests = GrowingValues()
            for block in keys.blocks():
                digests.append(PackedValues.of(list(map(md5_code, block))))
            keys = digests.values()
        order = keys.order()
        return order[::-1] if self.algorithm.decreasing else order

    def _check(self, values: Values, numbers: Any) -> None:
        """Raise DataError for keys that are not in the map, unless the job leaves them out."""
        lacking = (numbers == len(self.key_map.parts)).nonzero()[0]
        if len(lacking) and (not self.drops or len(lacking) == values.total):
            row = int(lacking[0])
            key = to_text(values.part(row, row + 1)[0][self.extract.prefix_bytes :])
            extra = f" and for {len(lacking) - 1} more keys" if len(lacking) > 1 else ""
            hint = (
                "no sample is in the map"
                if self.drops
                else '"ekm_missing_key": "ignore" leaves such samples out'
            )
            raise DataError(f'{self.key_map.name} has no shard for "{key}"{extra}', code="missing", hint=hint)


def _mapped(job: Job, request: Request) -> JobOrder:
    """Return the request and the order of a job with an external key map."""
    assert job.key_map is not None
    if job.shard_size is None:
        raise UsageError("a job with ekm_file needs output_shard_size", hint='"output_shard_size": "100MB"')
    if job.algorithm.kind == "content":
        raise UsageError(
            "a job with ekm_file cannot also sort by content",
            hint="run the sort job first, then a map job of kind none",
        )
    data, name = read_all(job.key_map), base_name(job.key_map)
    table = _Map(job, data, name)
    key_map, places = table.key_map()
    patterns = ((Expression(text, "ekm_file"), places[number]) for text, number in table.patterns)
    drops, extract = job.leaves_out("ekm_missing_key"), MapKeys(tuple(patterns))
    order = ExternalMapOrder(SplitOptions(by_map=name), key_map, job.algorithm, extract, drops)
    output = job.target.at(FIELD + table.number_form + job.output_suffix)
    return JobOrder(request._replace(output=output, cuts=Cuts(max_size=job.shard_size)), order)


class _Map:
    """An external key map, which gives the part of each record. Raises UsageError for a wrong map."""

    def __init__(self, job: Job, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self._numbers: dict[str, int] = {}
        self._part_of: dict[bytes, int] = {}
        self.patterns: list[tuple[str, int]] = []
        number_forms: dict[str, str] = {}
        for where, record, template in _pairs(job, data, name):
            stem, form = _stem_and_form(template.removesuffix(job.output_suffix), f"{name}{where}")
            number_forms.setdefault(form, template)
            self._add(record, self._numbers.setdefault(stem, len(self._numbers)), f"{name}{where}")
        if len(number_forms) != 1:
            shown = " and ".join(list(number_forms.values())[:2]) or "nothing"
            raise UsageError(
                f"{name}: all shards must be numbered in the same way, but the map names {shown}",
                hint='use one form for all, such as "cats-%06d" and "dogs-%06d"',
            )
        (self.number_form,) = number_forms

    def _add(self, record: bytes, number: int, where: str) -> None:
        if _PATTERN.search(to_text(record)):
            self.patterns.append((to_text(record), number))
            return
        parts = split_name(record)
        if self._part_of.setdefault(record if parts is None else parts[0], number) != number:
            raise UsageError(
                f'{where}: "{to_text(record)}" has a second shard', hint="give each record one shard"
            )

    def key_map(self) -> tuple[KeyMap, Sequence[int]]:
        """Return the map from keys to parts, and the place of each numbered part."""
        stems, places = named_parts(self._numbers, self._name)
        parts = {key: places[number] for key, number in self._part_of.items()}
        return KeyMap(self._name, xxh3_128_hexdigest(self._data), stems, parts), places


def _pairs(job: Job, data: bytes, name: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield the entries of a map: place in the file, record, template of shards. Raises UsageError for a malformed
    line, unless the job ignores such lines."""
    if data.lstrip().startswith(b"{"):
        yield from pairs_of_json(data, name)
        return
    for number, line in enumerate(data.splitlines(), 1):
        record, *template = to_text(line.strip()).split(job.separator)
        if not line.strip():
            continue
        if len(template) != 1 or not record or not template[0].strip():
            if job.leaves_out("ekm_malformed_line"):
                continue
            raise UsageError(
                f"{name}, line {number}: expected a record and a shard with {json.dumps(job.separator)} between them",
                hint='set "ekm_file_sep": " ", or "ekm_malformed_line": "ignore"',
            )
        yield f", line {number}", to_bytes(record.strip()), template[0].strip()


def _stem_and_form(template: str, where: str) -> tuple[str, str]:
    """Split a template of shards into the part's name and the format of the shard's number.

    >>> _stem_and_form("cats-%06d", ""), _stem_and_form("dogs_{000..100}", "")
    (('cats', '-%06d'), ('dogs', '_%03d'))
    """
    match = re.fullmatch(r"(.*?)([-_.]?)(?:%(?:0([0-9]+))?d|\{(0+)\.\.[0-9]+\}|@([0-9]+))", template)
    if match is None or not match[1]:
        raise UsageError(
            f'{where}: the shard name "{template}" does not end with a number',
            hint="cats-%06d, cats-{000..100}",
        )
    width = whole_number(match[3] or "0") or len(match[4] or match[5] or "")
    return match[1], match[2] + (f"%0{width}d" if width > 1 else "%d")
