"""What lies beside a shard, compared with it: its index, its entry in the manifest, the manifest's checksum.

What it is: functions that add to a shard's ledger what does not agree. How: the index is compared by the digest of its
columns with what the scan found, without loading it as arrays; the checksum is taken over the file's bytes as they lie
there, compressed or not. It must not know how the shard was scanned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, InputError, StorageError, UsageError
from wdscli.model import ShardInfo
from wdscli.shards.index import FORMAT, VERSION, IndexBuilder, check_seal, digest_of, index_address
from wdscli.shards.reading import checksum_of, etag_of, is_other_version, new_digest
from wdscli.storage import Source, base_name, exists, is_local, is_stream, open_source, read_all
from wdscli.storage.ends import replaced
from wdscli.tar import Form
from wdscli.verify.findings import Ledger

if TYPE_CHECKING:
    from wdscli.verify.headers import HeaderPass
    from wdscli.verify.shard import ShardTask

CHUNK = 1 << 20


class SideIndex(NamedTuple):
    """What an index says of its shard as a whole."""

    size: int
    samples: int
    members: int
    digest: str
    marks: bytes
    ignored: dict[str, int]
    form: Form
    etag: str


def load_index(address: str, source: Source, ledger: Ledger) -> SideIndex | None:
    """The index beside a shard, if there is one and it is whole; a finding when it is not, or not of this shard's
    size."""
    if is_stream(address) or not source.seekable:
        return None
    place = index_address(address)
    if is_local(place) and not exists(place):
        return None
    try:
        index = _parse(read_all(place))
    except InputError:
        return None
    except DataError as error:
        ledger.add("stale-index", f"{place} is not a whole index: {error.message}")
        return None
    if index.size != source.size:
        ledger.add("stale-index", f"{place} was made for {index.size} bytes, the shard has {source.size}")
        return None
    if is_other_version(index.etag, etag_of(address, source)):
        ledger.add("stale-index", f"{place} was made for another version of the shard than the store has")
        return None
    return index


def _parse(data: bytes) -> SideIndex:
    import msgpack

    try:
        check_seal(data)
        raw = msgpack.unpackb(data, raw=False, unicode_errors="surrogateescape")
        if raw["format"] != FORMAT or raw["version"] != VERSION:
            raise ValueError("another format or version")
        if digest_of(raw) != raw["digest"]:
            raise ValueError("its digest is not that of its columns")
        form = Form(int(raw["mtime"]), raw["long_names"])
        if not 0 <= form.mtime < 8**11 or form.long_names not in ("pax", "gnu"):
            raise ValueError("impossible form")
        whole = {name: raw[name] for name in ("size", "samples", "members", "digest", "marks", "ignored")}
        return SideIndex(**whole, form=form, etag=str(raw.get("etag", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, msgpack.UnpackException) as error:
        raise DataError(str(error) or type(error).__name__, code="stale-index") from None


def check_index(
    index: SideIndex, builder: IndexBuilder, ignored: dict[str, int], address: str, ledger: Ledger
) -> None:
    """Compare an index with what a scan of the whole shard found."""
    place = index_address(address)
    if index.digest != builder.digest() or index.marks != bytes(builder.columns()["marks"]):
        ledger.add("stale-index", f"{place} does not say what the shard's headers say")
    elif (index.samples, index.members, index.ignored) != (builder.samples, builder.members, ignored):
        ledger.add("stale-index", f"{place} counts other samples or members than the shard has")


def check_listed(
    task: ShardTask,
    listed: ShardInfo,
    check: HeaderPass | None,
    builder: IndexBuilder | None,
    size: int,
    ledger: Ledger,
) -> None:
    """Compare a shard with its entry in the manifest; ``check`` is None for a damaged one, of which the size alone is
    compared."""
    where = task.manifest
    if listed.size_bytes >= 0 and listed.size_bytes not in (size, _stored_size(task.address, size)):
        ledger.add("manifest-mismatch", f"{where} says {listed.size_bytes} bytes, the shard has {size}")
    if check is None:
        return
    if listed.samples != check.samples:
        ledger.add(
            "manifest-mismatch", f"{where} says {listed.samples} samples, the shard has {check.samples}"
        )
    if builder is None:
        return
    if listed.members >= 0 and listed.members != builder.members:
        ledger.add(
            "manifest-mismatch", f"{where} says {listed.members} members, the shard has {builder.members}"
        )
    if listed.headers != builder.digest():
        ledger.add("manifest-mismatch", f"{where} was made for other names, places or sizes than the shard's")
    if listed.fields != builder.totals():
        ledger.add("manifest-mismatch", f"{where} counts other fields or bytes than the shard has")


def _stored_size(address: str, size: int) -> int:
    """The bytes of the file as it lies there; of a compressed shard they are not those of the tar."""
    if is_stream(address):
        return size
    with open_source(address, decompress=False) as source:
        return size if source.size is None else source.size


def check_checksum(address: str, listed: ShardInfo | None, ledger: Ledger, version: str | None) -> None:
    """Compare a shard's bytes with the checksum that the manifest holds. ``version`` is that of the bytes whose headers
    were checked, None when they could not be read, which has been reported."""
    if listed is None or listed.checksum is None or is_stream(address):
        what = (
            "a stream has no checksum" if is_stream(address) else "no manifest holds a checksum of this shard"
        )
        ledger.add("unchecked", what)
        return
    algorithm, _, expected = listed.checksum.partition(":")
    try:
        digest = file_digest(address, algorithm, version or "")
    except UsageError:
        ledger.add("unchecked", f'the manifest\'s checksum is of an unknown kind, "{algorithm}"')
        return
    except StorageError as error:
        if version is not None:
            ledger.add("unreadable", error.message, hint=error.hint)
        return
    if digest != expected:
        ledger.add(
            "checksum-mismatch",
            f"the shard's {algorithm} is {digest}, the manifest says {expected}; {base_name(address)} was changed",
        )


def file_digest(address: str, algorithm: str, version: str = "") -> str:
    """The checksum of a file's bytes as they lie there, of ``version`` if one is given. Raises UsageError for an
    unknown algorithm, StorageError."""
    if new_digest(algorithm) is None:
        raise UsageError("no checksum to compute")
    with open_source(address, decompress=False) as source:
        found = checksum_of(source, algorithm) or ""
        source.confirm()
        if version and version != source.version:
            raise replaced(address)
    return found.partition(":")[2]
