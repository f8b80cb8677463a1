"""This module has the manifest of a set, ``<prefix>-manifest.json``. It is written last, so only complete sets have it.

A manifest is a JSON document that webdataset's ``wids`` can read (``wids-shard-index-v1``). It has more facts for each
shard, and for the set under ``wdscli``. wdscli-manifest(5) documents the format. A manifest has no time stamps and no
absolute paths, so the same set has the same manifest everywhere. This module also finds the folder and prefix of a set
that wdscli did not write (:func:`common_folder`, :func:`set_prefix`), and the names of shards in a manifest
(:func:`name_from`).

This module does not know how shards are made or which command runs, and opens no files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from wdscli.errors import DataError, InputError, UsageError
from wdscli.model import UNKNOWN, FieldTotals, ShardInfo
from wdscli.schema import PackedObject, Records, check, packed, unpacked
from wdscli.shards.locks import FOLDER
from wdscli.shards.view import SECTION, View, from_json, to_json
from wdscli.shown import shown, shown_in
from wdscli.storage import OutputPattern, base_name, folder_of, is_local, is_stream, scheme
from wdscli.storage.addresses import local_path
from wdscli.storage.opening import compression_of
from wdscli.tar.header import BLOCK, MTIMES

KIND = "wids-shard-index-v1"
VIEW_KIND = "wdscli-view-v1: a set without payloads, for wdscli alone"
"""The kind of a view. wids prints this text when it refuses the file."""
PLAN_VERSION = 4
PLAN_KIND = f"wdscli-plan-v{PLAN_VERSION}: shards that `wds run` makes, for wdscli alone"
"""The kind of a plan."""
VERSION = 1
MANY_SHARDS = 1 << 10
"""A view with at least this many shards is written as one line."""
_NO_FIELDS: Mapping[str, FieldTotals] = {}
_SHARD = {
    "url": str,
    "nsamples": int,
    "filesize?": range(-1, 1 << 63),
    "members?": range(-1, 1 << 63),
    "headers?": str,
    "checksum?": (str, None),
    "fields?": ({...: {"count": int, "bytes": int}}, None),
}
_BASE = {**_SHARD, "nsamples": range(-1, 1 << 63), "stored?": str}
_RUN = [range(-1, 1 << 32), range(1 << 32), range(1 << 32)]
_VIEW_SHARD = {"digest": str, "runs?": [[_RUN, ...], ...], "rows?": SECTION, "keys?": SECTION}
_OF_SHARD = {name.removesuffix("?") for name in _BASE}
_OF_VIEW_SHARD = {name.removesuffix("?") for name in _VIEW_SHARD}
_MANIFEST = {
    "bases?": [_BASE, ...],
    "view?": {
        "mtime": MTIMES,
        "long_names": ("pax", "gnu"),
        "rule": dict,
        "ancestors?": [{"name": str, "fingerprint": (str, None), "parents": [range(1 << 32), ...]}, ...],
        "parents?": [range(1 << 32), ...],
        "shards": [_VIEW_SHARD, ...],
    },
    "shardlist": [_SHARD, ...],
    "wdscli?": (
        {"made?": (dict, None), "classes?": ([object, ...], None), "fields?": ({...: dict}, None)},
        None,
    ),
    "run?": {"no_set": (str, None)},
}
"""See :mod:`wdscli.schema` for the form of this table. Totals have no types here, because they are compared with sums
later."""


class Provenance(NamedTuple):
    """The record of how a set is made, for its manifest."""

    operation: str
    options: Mapping[str, Any] = {}
    """The options that decide the bytes."""
    seed: int | None = None
    inputs: Sequence[str | None] = ()
    """The fingerprints of the input sets. A set without a manifest has None."""
    classes: Sequence[str] | None = None
    """The class names for the numbers in ``cls``."""
    plan: str | None = None
    """The fingerprint of the plan, if shards are added to a set."""
    stamp: str | None = None
    """The digest of all inputs and options, for ``--if-changed``."""
    parts: Sequence[str] = ()
    """With ``stamp``, the names of the sets that are made together."""

    def facts(self) -> dict[str, Any]:
        """Return the operation, its options, its seed, and its inputs, for a manifest."""
        seed = {} if self.seed is None else {"seed": self.seed}
        options = shown_in(dict(self.options))
        return {"operation": self.operation, "options": options, "inputs": list(self.inputs), **seed}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A shard set as described by its manifest.

    ``made`` describes how the set was made: ``operation``, ``options``, ``seed``, ``inputs`` (fingerprints).
    ``classes`` has the class names for the numbers in ``cls``, from ``create --label-from``.
    """

    name: str
    shards: tuple[ShardInfo, ...]
    made: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    view: View | None = None
    """The places of the bytes, if this set is a view."""
    run: Mapping[str, Any] | None = None
    """How the shards are made, if this is a plan (:mod:`wdscli.plan.planfile`)."""

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def members(self) -> int:
        return sum(shard.members for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def fields(self) -> dict[str, FieldTotals]:
        """Return count and bytes of every field over all shards, sorted by name."""
        return sum_fields(shard.fields for shard in self.shards)

    @property
    def common_fields(self) -> tuple[str, ...]:
        """Return the fields that every sample had when the manifest was written."""
        total = self.samples
        return tuple(name for name, field in self.fields.items() if total and field.count == total)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.shards) if self.view is None else self.view.root(self.shards)

    def to_json(self) -> str:
        """Return the JSON document with a newline at the end. It is indented by two spaces unless it is a large
        view."""
        import json

        is_set = self.view is None and self.run is None
        indent = 2 if is_set or len(self.shards) < MANY_SHARDS else None
        return json.dumps(self._document(), indent=indent, ensure_ascii=True) + "\n"

    def _document(self) -> dict[str, Any]:
        ours: dict[str, Any] = {
            "version": VERSION,
            "shards": len(self.shards),
            "samples": self.samples,
            "members": self.members,
            "bytes": self.size_bytes,
            "fields": _plain_fields(self.fields),
            "fingerprint": self.fingerprint,
            "index": FOLDER if self.shards and all(shard.index for shard in self.shards) else None,
            "made": dict(self.made),
        }
        if self.classes is not None:
            ours["classes"] = list(self.classes)
        view, run = self.view, self.run
        document = {
            "__kind__": PLAN_KIND if run is not None else VIEW_KIND if view is not None else KIND,
            "wids_version": 1 if view is None and run is None else None,
            "seal": None if run is None else "0" * 16,
            "name": self.name,
            "bases": None if view is None else [*map(_plain_base, view.bases)],
            "shardlist": [*map(plain_shard, self.shards)],
            "view": None if view is None else to_json(view),
            "wdscli": ours,
            "run": run,
        }
        return {name: value for name, value in document.items() if value is not None}


def _plain_base(base: ShardInfo) -> dict[str, Any]:
    """Return the entry of a base. In a plan, it has the base's version."""
    return plain_shard(base) | ({"stored": base.version} if base.version else {})


def plain_shard(shard: ShardInfo) -> dict[str, Any]:
    """Return a shard's entry in the manifest. :func:`parse_shard` is the inverse."""
    plain: dict[str, Any] = {
        "url": shard.name,
        "nsamples": shard.samples,
        "filesize": shard.size_bytes,
        "members": shard.members,
        "headers": shard.headers,
        "fields": _plain_fields(shard.fields),
    }
    if shard.checksum is not None:
        plain["checksum"] = shard.checksum
    return plain


def _plain_fields(fields: Mapping[str, FieldTotals]) -> dict[str, Any]:
    return {name: {"count": total.count, "bytes": total.size_bytes} for name, total in sorted(fields.items())}


def sum_fields(parts: Iterable[Mapping[str, FieldTotals]]) -> dict[str, FieldTotals]:
    """Sum totals by field, and sort them by name."""
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for part in parts:
        for name, total in part.items():
            counts[name] = counts.get(name, 0) + total.count
            sizes[name] = sizes.get(name, 0) + total.size_bytes
    return {name: FieldTotals(counts[name], sizes[name]) for name in sorted(counts)}


def fingerprint(shards: Sequence[ShardInfo]) -> str:
    """Return the fingerprint ``xxh3_128:hex`` over one line per shard: ``samples size headers checksum``. Shard names
    are left out, so that a set keeps its fingerprint if it is moved or renamed. A change of a sample's name, place or
    size changes the fingerprint. If there are checksums, a change of its bytes does too."""
    from xxhash import xxh3_128

    digest = xxh3_128()
    for shard in shards:
        digest.update(
            f"{shard.samples} {shard.size_bytes} {shard.headers} {shard.checksum or '-'}\n".encode()
        )
    return f"xxh3_128:{digest.hexdigest()}"


class ContradictoryManifestError(DataError):
    """The totals of a manifest differ from the sums over its shards. ``manifest`` has the shards as listed."""

    manifest: Manifest


def parse_manifest(text: str | bytes, address: str, *, runs: bool = False) -> Manifest:
    """Parse a manifest of wdscli, or a plain wids document. Raises DataError ``manifest-mismatch`` for anything else,
    and ContradictoryManifestError if the totals differ from the sums over the shards. Raises InputError for a plan
    whose shards are no view, unless the plan ``runs``."""
    import json

    is_view = False
    try:
        if isinstance(text, bytes):
            # A view of 100,000 shards has 60 MB of text, so keep only one copy in memory.
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        document = json.loads(text, object_hook=_pack)
        del text
        is_view = isinstance(document, dict) and "view" in document
        check(document, _MANIFEST)
        ours = document.get("wdscli") or {}
        has_index = bool(ours.get("index"))
        shards = (*Records(document["shardlist"], partial(_shard, has_index=has_index)),)
        labels = ours.get("classes")
        classes = None if labels is None else tuple(map(str, labels))
        bases = Records(document.get("bases") or [], _base)
        view = from_json(document["view"], bases, shards) if "view" in document else None
        made, run = json.loads(json.dumps([ours.get("made") or {}, document.get("run")], default=unpacked))
        manifest = Manifest(str(document.get("name", "")), shards, made, classes, view, run)
        contradiction = _contradiction(ours, manifest)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{address} is not a {'view' if is_view else 'manifest'}: {error}",
            code="manifest-mismatch",
            hint="a manifest is a JSON file with a shardlist, as `wds create` and `wds index` write it",
        ) from None
    if contradiction:
        raise _contradictory(manifest, address, contradiction)
    return manifest if runs else _checked_set(manifest, address)


def _contradictory(manifest: Manifest, address: str, contradiction: str) -> ContradictoryManifestError:
    """Return the error of a manifest whose totals are wrong."""
    problem = ContradictoryManifestError(
        f"{address} contradicts itself: {contradiction}",
        code="manifest-mismatch",
        hint="`wds index SHARDS --force` writes a new manifest",
    )
    problem.manifest = manifest
    return problem


def _checked_set(manifest: Manifest, address: str) -> Manifest:
    """Return the manifest. Raises InputError for a plan whose shards are no view."""
    if manifest.run is not None and (manifest.view is None or manifest.run["no_set"]):
        raise InputError(
            f"cannot read {address} as a set: it is a plan, and {manifest.run['no_set'] or 'has no view'}",
            hint=f"make its shards: wds run {address}",
        )
    return manifest


def _pack(value: dict[str, Any]) -> dict[str, Any] | PackedObject:
    """Pack the entries of a manifest's long lists."""
    names = _OF_SHARD if "url" in value else _OF_VIEW_SHARD if "digest" in value else ()
    return packed(value) if names and value.keys() <= names else value


def _contradiction(ours: Mapping[str, Any], manifest: Manifest) -> str | None:
    """Describe the first total that differs from the sum over the shards. If a shard lacks a fact, that fact is not
    summed."""
    shards = manifest.shards
    sums = {"shards": len(shards), "samples": manifest.samples}
    if all(shard.members != UNKNOWN for shard in shards):
        sums["members"] = manifest.members
    if all(shard.size_bytes != UNKNOWN for shard in shards):
        sums["bytes"] = manifest.size_bytes
    totals = {name: ours.get(name, count) for name, count in sums.items()}
    fields = ours.get("fields") or {}
    if fields and all(shard.fields or not shard.samples for shard in shards):
        listed = _plain_fields(manifest.fields)
        for name in {**fields, **listed}:
            for fact in ("count", "bytes"):
                what = f'{"members" if fact == "count" else fact} of the field "{name}"'
                totals[what], sums[what] = (of.get(name, {}).get(fact, 0) for of in (fields, listed))
    for what, total in totals.items():
        if total != sums[what]:
            return f"the total is {total} {what}, but its list adds up to {sums[what]}"
    return None


def parse_shard(entry: Any, has_index: bool) -> ShardInfo:
    """Parse one shard of a manifest. Facts that a plain wids document lacks are unknown. Raises ValueError."""
    check(entry, _SHARD)
    return _shard(entry, has_index=has_index)


def _base(entry: Mapping[str, Any]) -> ShardInfo:
    return replace(_shard(entry, has_index=False), version=entry.get("stored", ""))


def _shard(entry: Mapping[str, Any], *, has_index: bool) -> ShardInfo:
    name = entry["url"]
    if not name or "\0" in name:
        raise ValueError("the name of a shard has a zero byte" if name else "a shard has no name")
    size, members = entry.get("filesize", UNKNOWN), max(entry["nsamples"], entry.get("members", UNKNOWN))
    if 0 <= size < members * BLOCK and not compression_of(name):
        raise ValueError(f"{name} has {members} members in {size} bytes")
    return ShardInfo(
        name=name,
        samples=entry["nsamples"],
        members=entry.get("members", UNKNOWN),
        size_bytes=entry.get("filesize", UNKNOWN),
        headers=entry.get("headers", ""),
        checksum=entry.get("checksum"),
        fields={name: FieldTotals(total["count"], total["bytes"]) for name, total in entry["fields"].items()}
        if entry.get("fields")
        else _NO_FIELDS,
        index=has_index,
    )


_SUFFIX = re.compile(r"\.(tar|tgz)(\.[A-Za-z0-9]+)?$")
_NUMBER = re.compile(r"(^|[-_.])[0-9]+$")
_JOINTS = "-_."


def common_folder(addresses: Sequence[str]) -> str:
    """Return the address of the deepest folder that contains all shards, with a trailing slash. The current folder is
    an empty address.

    Raises UsageError if there is no such folder, for example for shards on two machines.
    """
    folders = {folder_of(address) for address in addresses}
    if len(folders) == 1:
        return folders.pop()
    common = _shared(folders)
    common = common[: common.rfind("/") + 1]
    everywhere_relative = all(is_local(path) and not local_path(path).startswith("/") for path in folders)
    if (
        not common.removesuffix("//").partition("://")[2 if "://" in common else 0]
        and not everywhere_relative
    ):
        raise UsageError(
            "the shards have no common folder for their manifest",
            hint="name the manifest with -o, or index each folder separately",
        )
    return common


def set_prefix(addresses: Sequence[str]) -> str:
    """Return the common beginning of the shards' file names, without number and separator. For ``train-000000.tar`` and
    so on, it is ``train``.

    >>> set_prefix(["a/train-000000.tar", "a/train-000001.tar"]), set_prefix(["train-000007.tar"])
    ('train', 'train')
    >>> set_prefix(["img7.tar"]), set_prefix(["000000.tar", "000001.tar"])
    ('img7', '')
    """
    stems = [_SUFFIX.sub("", base_name(address)) for address in addresses]
    if len(stems) == 1:
        return _NUMBER.sub("", stems[0]).rstrip(_JOINTS)
    return _shared(stems).rstrip("0123456789").rstrip(_JOINTS)


def _shared(texts: Collection[str]) -> str:
    """Return the common beginning of all texts."""
    first, last = min(texts), max(texts)
    length = next((number for number, pair in enumerate(zip(first, last)) if pair[0] != pair[1]), len(first))
    return first[:length]


def name_from(folder: str, address: str) -> str:
    """Return the path of the shard at ``address`` relative to the address ``folder``. If no relative path exists,
    return the address itself. The result is never an absolute local path, and never has a password. Raises UsageError.

    >>> name_from("data/", "data/train-0.tar"), name_from("s3://b/", "s3://b/x/0.tar"), name_from("", "s3://b/0.tar")
    ('train-0.tar', 'x/0.tar', 's3://b/0.tar')
    >>> name_from("data/meta/", "data/train-0.tar")
    '../train-0.tar'
    """
    if not is_local(address):
        name = address[len(folder) :] if folder and address.startswith(folder) else address
        if shown(name) != name:
            raise UsageError(
                f"the manifest would hold a password, token or signature: {address}",
                hint="remove it from the address, and set credentials in the environment",
            )
        return name
    path = local_path(address)
    if is_stream(folder) or not is_local(folder):
        raise UsageError(
            f"a manifest at {folder} cannot name {address}",
            hint=f"{scheme(folder)} cannot refer to files on this machine",
        )
    return os.path.relpath(path, local_path(folder) or ".")


class Standing(NamedTuple):
    """An existing set to which shards are appended. ``first`` is the number of the first new shard."""

    manifest: Manifest
    first: int

    @classmethod
    def of(cls, pattern: OutputPattern, manifest: Manifest, folder: str) -> Standing:
        """Return the set of a manifest in a folder. Raises UsageError if the pattern does not match the names of the
        set's shards."""
        numbers = [pattern.number_of(folder + shard.name) for shard in manifest.shards]
        for shard, number in zip(manifest.shards, numbers):
            if number is None:
                raise UsageError(
                    f"{pattern.text} does not match the names of the set's shards: {shard.name}",
                    hint="use the output pattern that made the set: out-%06d.tar",
                )
        return cls(manifest, 1 + max((number for number in numbers if number is not None), default=-1))

    def followed_by(self, added: Manifest, plan: str | None) -> Manifest:
        """Return the manifest with the added shards. ``plan`` is the fingerprint of the plan that made them."""
        before = self.manifest
        record = {**added.made, "first": len(before.shards), "shards": len(added.shards), "plan": plan}
        return replace(
            before,
            shards=before.shards + added.shards,
            made={**before.made, APPENDED: [*(before.made.get(APPENDED) or []), record]},
            classes=added.classes or before.classes,
        )

    def before_last(self) -> tuple[Standing, str] | None:
        """Return the set before the last append, and the fingerprint of the plan for that append. Return None if no
        shards were appended."""
        manifest, facts = self.manifest, dict(self.manifest.made)
        try:
            *facts[APPENDED], last = facts[APPENDED]
            count, plan = int(last["shards"]), str(last["plan"])
        except (KeyError, TypeError, ValueError):
            return None
        if not 0 < count <= len(manifest.shards):
            return None
        shards = manifest.shards[: len(manifest.shards) - count]
        return Standing(replace(manifest, shards=shards, made=facts), self.first - count), plan


APPENDED = "appended"
"""The key in a manifest for the list of appends since the set was made."""
