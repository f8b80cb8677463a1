"""The manifest of a set, ``<prefix>-manifest.json``: written last, so that a set is complete when it exists.

What it is: a JSON document that webdataset's ``wids`` reads (``wids-shard-index-v1``), with our own facts per shard and
under ``wdscli``. The layout is documented in wdscli-manifest(5). No time stamps and no absolute paths: the same
set gives the same manifest anywhere.

It must not know how shards are made, nor which command asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wdscli.errors import DataError
from wdscli.model import FieldTotals, ShardInfo

KIND = "wids-shard-index-v1"
VERSION = 1
INDEX_FOLDER = ".wds"
"""Beside each shard, the folder that holds ``<shard name>.wdx``."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A shard set as its manifest tells it.

    ``made`` says how: ``operation``, ``options``, ``seed``, ``inputs`` (fingerprints). ``classes`` is the list that
    ``cls`` numbers refer to, where ``create --label-from`` made them.
    """

    name: str
    shards: tuple[ShardInfo, ...]
    made: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None

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
        """Count and bytes of every field over all shards, sorted by name."""
        return sum_fields(shard.fields for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.shards)

    def to_json(self) -> str:
        """The document, two spaces of indent, ended by a newline."""
        import json

        return json.dumps(self._document(), indent=2, ensure_ascii=True) + "\n"

    def _document(self) -> dict[str, Any]:
        ours: dict[str, Any] = {
            "version": VERSION,
            "shards": len(self.shards),
            "samples": self.samples,
            "members": self.members,
            "bytes": self.size_bytes,
            "fields": _plain_fields(self.fields),
            "fingerprint": self.fingerprint,
            "index": INDEX_FOLDER if self.shards and all(shard.index for shard in self.shards) else None,
            "made": dict(self.made),
        }
        if self.classes is not None:
            ours["classes"] = list(self.classes)
        return {
            "__kind__": KIND,
            "wids_version": 1,
            "name": self.name,
            "shardlist": [plain_shard(shard) for shard in self.shards],
            "wdscli": ours,
        }


def plain_shard(shard: ShardInfo) -> dict[str, Any]:
    """A shard as a manifest has it; :func:`parse_shard` is the inverse."""
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
    """Totals added up by field, sorted by name."""
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for part in parts:
        for name, total in part.items():
            counts[name] = counts.get(name, 0) + total.count
            sizes[name] = sizes.get(name, 0) + total.size_bytes
    return {name: FieldTotals(counts[name], sizes[name]) for name in sorted(counts)}


def fingerprint(shards: Sequence[ShardInfo]) -> str:
    """``xxh3_128:hex`` over one line a shard: ``samples size headers checksum``. Names of shards are left out, so that
    a set keeps its fingerprint when it is moved or renamed; any change of a sample's name, place, size or (unless the
    checksum was left out) bytes changes it."""
    from xxhash import xxh3_128

    digest = xxh3_128()
    for shard in shards:
        digest.update(
            f"{shard.samples} {shard.size_bytes} {shard.headers} {shard.checksum or '-'}\n".encode()
        )
    return f"xxh3_128:{digest.hexdigest()}"


def parse_manifest(text: str | bytes, address: str) -> Manifest:
    """A manifest from a document of ours, or a plain wids one. Raises DataError ``manifest-mismatch`` for anything
    else."""
    import json

    try:
        document = json.loads(text)
        if not isinstance(document, dict) or not isinstance(document["shardlist"], list):
            raise ValueError("no shardlist")
        ours = document.get("wdscli") or {}
        has_index = bool(ours.get("index"))
        shards = tuple(parse_shard(entry, has_index) for entry in document["shardlist"])
        classes = ours.get("classes")
        return Manifest(
            name=str(document.get("name", "")),
            shards=shards,
            made=ours.get("made") or {},
            classes=None if classes is None else tuple(str(label) for label in classes),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(
            f"{address} is no manifest: {_why(error)}",
            code="manifest-mismatch",
            hint="a manifest is a JSON file with a shardlist, as `wds create` and `wds index` write it",
        ) from None


def _why(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def parse_shard(entry: Mapping[str, Any], has_index: bool) -> ShardInfo:
    """Facts that a plain wids document does not tell are -1, empty or None."""
    url, checksum = entry["url"], entry.get("checksum")
    if not isinstance(url, str) or not url or not isinstance(checksum, (str, type(None))):
        raise ValueError("a shard without a name, or with a checksum that is no text")
    fields = {
        str(name): FieldTotals(_count(total["count"]), _count(total["bytes"]))
        for name, total in (entry.get("fields") or {}).items()
    }
    return ShardInfo(
        name=url,
        samples=_count(entry["nsamples"]),
        members=_count(entry.get("members", -1), least=-1),
        size_bytes=_count(entry.get("filesize", -1), least=-1),
        headers=str(entry.get("headers", "")),
        checksum=checksum,
        fields=fields,
        index=has_index,
    )


def _count(number: Any, least: int = 0) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 1 << 63:
        raise ValueError(f"{number!r} where a number belongs")
    return number
