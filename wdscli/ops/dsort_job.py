"""A job description of AIStore's dSort, parsed and checked.

:class:`Job` is a job, and :func:`read_job` reads one from a file. One table has the types of all fields. A field may
have its current name or an earlier name. Sizes are in powers of 1024, as in dSort. A bucket is a folder, or a bucket of
a cloud store. Fields about the cluster go to :attr:`Job.unused`, and an unknown field is an error. A job cannot name
commands or paths outside its buckets; a downloaded job needs ``--bucket`` for its buckets. This module does not know
how a job is carried out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from wdscli.errors import InputError, UsageError, WdsError
from wdscli.plan.planfile import HEAD_BYTES, plan_version
from wdscli.schema import check
from wdscli.selection.named import hint_of
from wdscli.storage import is_local, is_stream, open_source, read_all
from wdscli.storage.addresses import listed_address
from wdscli.storage.kinds import CLOUDS
from wdscli.text import to_bytes
from wdscli.units import parse_size

_OURS = ("", "ais")
"""The provider names of AIStore itself. Their buckets are folders here."""
SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.lz4")
_MAX_DIGITS = 4300
"""The most digits that Python's ``int`` accepts."""
KINDS = ("alphanumeric", "shuffle", "md5", "content", "none")
REACTIONS = ("ignore", "warn", "abort")
UNUSED = (
    "call_timeout",
    "compression",
    "create_concurrency_max_limit",
    "default_max_mem_usage",
    "dsorter_mem_threshold",
    "dsorter_type",
    "extended_metrics",
    "extract_concurrency_max_limit",
    "extracted_shards",
    "max_mem_usage",
    "stream_multiplier",
)
"""Fields about a cluster, which have no effect here."""
_ONE_OF = {
    "input_bck": "bck",
    "input_extension": "extension",
    "ekm_file": "order_file",
    "ekm_file_sep": "order_file_sep",
}
"""The current names of fields, by their earlier names."""
_FILE = re.compile(r"\.(json|ya?ml)$")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REACTIONS = ("missing_shards", "duplicated_records", "ekm_missing_key", "ekm_malformed_line")
_BUCKET = (str, {"name": str, "provider?": str})
_ALGORITHM = {
    "kind?": KINDS,
    "decreasing?": bool,
    "seed?": (str, range(10**_MAX_DIGITS)),
    "extension?": str,
    "content_key_type?": ("int", "float", "string"),
}
_JOB = {
    **dict.fromkeys(("input_bck?", "output_bck?"), _BUCKET),
    "input_format?": (str, {"template?": str, "regex?": str, "objnames?": [str, ...], "prefix?": str}),
    **dict.fromkeys(("output_format?", "input_extension?", "output_extension?"), str),
    **dict.fromkeys(("ekm_file?", "ekm_file_sep?"), str),
    "output_shard_size?": (str, int),
    "algorithm?": _ALGORITHM,
    "dry_run?": bool,
    "description?": object,
    **dict.fromkeys((f"{name}?" for name in _REACTIONS), REACTIONS),
}
"""See :mod:`wdscli.schema` for the form of this table."""
_FIELDS = [name[:-1] for name in _JOB]
_EXAMPLES = {
    "algorithm": '"algorithm": {"kind": "shuffle", "seed": "7"}',
    "input_format": 'a template such as "shard-{00..18}", or {"objnames": ["a.tar", ...]}',
}


class Bucket(NamedTuple):
    """A bucket of a job, and its address."""

    name: str
    root: str

    def at(self, text: str) -> str:
        """Return the address of an object in this bucket."""
        return f"{self.root.rstrip('/')}/{text}"


class Algorithm(NamedTuple):
    """How records are ordered. ``field`` and ``numeric`` apply only to the kind ``content``."""

    kind: str = KINDS[0]
    decreasing: bool = False
    seed: int = 0
    field: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class Job:
    """A checked job description. ``shard_size`` is in bytes. It is None if the output's names decide the number of
    shards. ``unused`` are the fields that have no effect here."""

    source: Bucket
    target: Bucket
    inputs: Mapping[str, Any]
    output: str
    suffix: str
    output_suffix: str
    shard_size: int | None
    algorithm: Algorithm
    key_map: str | None = None
    separator: str = "\t"
    reactions: Mapping[str, str] = field(default_factory=dict)
    is_dry: bool = False
    unused: tuple[str, ...] = ()

    def leaves_out(self, what: str) -> bool:
        """Return whether the job continues without the faulty record after a fault. By default it stops."""
        return self.reactions.get(what, "abort") != "abort"


def read_job(address: str, buckets: Mapping[str, str] | None = None, *, trust_addresses: bool = False) -> Job:
    """Read a job from a file of JSON, or of YAML if PyYAML is installed. ``address`` may also be the text of a job,
    which begins with a brace. ``buckets`` maps names of buckets to addresses. Raises UsageError and InputError, also
    for a bucket that a downloaded job may not name."""
    is_text = address.lstrip().startswith("{")
    name = "the job" if is_text else address
    data = to_bytes(address) if is_text else read_all(address)
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        plain = _yaml(data, f"{name} is not JSON: {error}")
    if not isinstance(plain, dict):
        raise UsageError(
            f"{name} is not a dSort job", hint="a job is a JSON object: input_bck, input_format, ..."
        )
    job = parse_job(plain, buckets or {})
    if is_text or is_local(address) or is_stream(address):
        return job
    for bucket in (job.source, job.target):
        if bucket.name not in (buckets or {}) and not trust_addresses:
            raise InputError(
                f"the downloaded job {address} would use {bucket.root} on this machine as its bucket {bucket.name}",
                hint=f"use --bucket {bucket.name}=DIR, or --trust-addresses if you trust the job",
            )
    key_map = None if job.key_map is None else listed_address(address, job.key_map, trusted=trust_addresses)
    return replace(job, key_map=key_map)


def is_job(address: str) -> bool:
    """Return whether an argument names a job and not a plan. A job is text that begins with a brace, standard input, a
    name that ends in .json or .yaml, or a local text file, but no plan."""
    if address.lstrip().startswith("{") or is_stream(address):
        return True
    has_name = _FILE.search(address) is not None
    if not (has_name or is_local(address)):
        return False
    try:
        with open_source(address, decompress=False) as source:
            head = source.read_at(0, min(HEAD_BYTES, source.size or 0))
    except WdsError:
        return has_name
    is_text = bool(head) and head.isascii() and "".join(head.decode().split()).isprintable()
    return (has_name or is_text) and plan_version(head) is None


def _yaml(data: bytes, why: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{why}, and YAML needs extra packages", hint="pip install 'wdscli[yaml]'") from None
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{why}, nor YAML: {' '.join(str(error).split())}") from None


def _checked(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job under their current names, without empty values. Raises UsageError for unknown names,
    and for values of wrong types."""
    earlier = {old: new for new, old in _ONE_OF.items()}
    fields: dict[str, Any] = {}
    for name, value in plain.items():
        new = earlier.get(name, name)
        if new in fields:
            raise UsageError(
                f"the job has {name} and {_ONE_OF[new] if name == new else new}, which mean the same",
                hint="leave one of them out",
            )
        if new not in _FIELDS and name not in UNUSED:
            raise UsageError(f'a job has no field "{name}"', hint=hint_of([name], [*_FIELDS, *UNUSED]))
        fields[new] = value
    fields = _filled(fields)
    try:
        check(fields, _JOB)
    except ValueError as error:
        path = str(error).partition(" ")[0]
        name = path.partition(".")[0]
        refuse(name, fields[name], _EXAMPLES.get(path, str(error)))
    return fields


def parse_job(plain: Mapping[str, Any], buckets: Mapping[str, str]) -> Job:
    """Make a job from plain values. Empty values count as missing. Raises UsageError for unknown names and wrong
    values."""
    fields = _checked(plain)
    unused = [name for name in UNUSED if name in fields]
    if "input_bck" not in fields:
        raise UsageError("the job has no input_bck", hint='"input_bck": {"name": "images"}')
    source = _bucket(fields["input_bck"], "input_bck", buckets)
    target = _bucket(fields.get("output_bck", fields["input_bck"]), "output_bck", buckets)
    if wrong := sorted(set(buckets) - {source.name, target.name}):
        raise UsageError(
            f"the job has no bucket {wrong[0]}", hint=hint_of([wrong[0]], [source.name, target.name])
        )
    suffix = _suffix(fields, "input_extension", SUFFIXES[0])
    key_map = fields.get("ekm_file")
    if key_map is not None and "output_format" in fields:
        unused.append("output_format (ekm_file names the shards)")
    if key_map is not None and is_stream(key_map):
        refuse("ekm_file", key_map, "a file or a URL")
    return Job(
        source,
        target,
        _input_format(fields.get("input_format", "")),
        object_name(fields.get("output_format", ""), "output_format"),
        suffix,
        _suffix(fields, "output_extension", suffix),
        _size(fields.get("output_shard_size", 0)) or None,
        _algorithm(fields.get("algorithm", {}), unused),
        key_map,
        fields.get("ekm_file_sep", "\t"),
        {name: fields[name] for name in _REACTIONS if name in fields},
        fields.get("dry_run", False),
        tuple(unused),
    )


def _filled(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its empty values."""
    inner = {name: _filled(entry) if isinstance(entry, dict) else entry for name, entry in plain.items()}
    return {name: entry for name, entry in inner.items() if entry not in (None, "", {}, [])}


def refuse(name: str, value: Any, expected: str = "") -> Any:
    raise UsageError(f"the job's {name} cannot be {json.dumps(value)}", hint=expected or None)


def object_name(text: str, name: str) -> str:
    """Check that a name or a template of names stays inside its bucket, and return it."""
    if "::" in text or "\0" in text or text.startswith("/") or ".." in text.split("/"):
        refuse(name, text, "a name in the bucket")
    return text


def _size(text: str | int) -> int:
    """Parse a size by AIStore's rules: powers of 1024, and MB means the same as MiB.

    >>> _size("100MB"), _size("10K"), _size("2048")
    (104857600, 10240, 2048)
    """
    return parse_size(re.sub(r"(?i)(?<=[kmgtp])b?$", "iB", text.strip()) if isinstance(text, str) else text)


def _bucket(value: Any, name: str, buckets: Mapping[str, str]) -> Bucket:
    """Return the bucket that a job names. Its address comes from ``buckets``, or else from its provider."""
    if isinstance(value, str):
        provider, _, bucket = value.rpartition("://")
        value = {"provider": provider, "name": bucket}
    bucket, provider = value["name"], value.get("provider", "")
    if not bucket:
        refuse(name, value, f'"{name}": {{"name": "images"}}')
    if bucket in buckets:
        return Bucket(bucket, buckets[bucket])
    if not _NAME.fullmatch(bucket):
        refuse(
            name,
            bucket,
            "a bucket's name has letters, digits, dots, dashes and underscores; or --bucket NAME=DIR",
        )
    kind = CLOUDS.get(provider, provider)
    if provider not in _OURS and kind not in CLOUDS.values():
        raise UsageError(
            f'the bucket {bucket} has the unknown provider "{provider}"',
            hint=f"name its folder or URL: --bucket {bucket}=DIR or {bucket}=URL",
        )
    return Bucket(bucket, bucket if provider in _OURS else f"{kind}://{bucket}")


def _suffix(fields: Mapping[str, Any], name: str, default: str) -> str:
    suffix = str(fields.get(name, default))
    suffix = suffix if suffix.startswith(".") else f".{suffix}"
    if suffix not in SUFFIXES:
        forms = f"shards are {', '.join(SUFFIXES)}"
        hint = (
            f"{forms}; unpack a zip and make shards of its files: wds create" if suffix == ".zip" else forms
        )
        raise UsageError(f"the job's {name} is {suffix}, but dsort reads and writes only tar", hint=hint)
    return suffix


def _input_format(value: Any) -> Mapping[str, Any]:
    """Return the input format, which has exactly one of ``template``, ``regex`` and ``objnames``."""
    plain = {"template": value} if isinstance(value, str) else value
    if len(plain) != 1 or plain.keys() - {"template", "regex", "objnames", "prefix"}:
        refuse("input_format", value, _EXAMPLES["input_format"])
    if not all(plain.get("objnames", ())):
        refuse("input_format", value, '{"objnames": ["a.tar", ...]}')
    for name in (*plain.get("objnames", ()), plain.get("template", ""), plain.get("prefix", "")):
        object_name(name, "input_format")
    return dict(plain)


def _algorithm(value: Mapping[str, Any], unused: list[str]) -> Algorithm:
    if wrong := [name for name in value if f"{name}?" not in _ALGORITHM]:
        field_names = [name[:-1] for name in _ALGORITHM]
        raise UsageError(f'an algorithm has no field "{wrong[0]}"', hint=hint_of(wrong, field_names))
    kind, decreasing = value.get("kind", KINDS[0]), value.get("decreasing", False)
    seed, extension = str(value.get("seed", 0)), value.get("extension", "").strip()
    if not (seed.isascii() and seed.isdecimal() and len(seed) <= _MAX_DIGITS):
        refuse("algorithm.seed", seed, f"a whole number in quotes, of at most {_MAX_DIGITS} digits")
    if kind == "content" and len(extension) < 2:
        refuse("algorithm.extension", extension, '"extension": ".cls", the field that is sorted by')
    of_kind = {"seed": "shuffle", "extension": "content", "content_key_type": "content"}
    unused += [
        f"algorithm.{name} (of {of})" for name, of in of_kind.items() if value.get(name) and kind != of
    ]
    if decreasing and kind in ("shuffle", "none"):
        unused.append("algorithm.decreasing (of sorts)")
        decreasing = False
    return Algorithm(
        kind, decreasing, int(seed), extension, value.get("content_key_type", "string") != "string"
    )
