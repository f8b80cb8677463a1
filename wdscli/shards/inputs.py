"""This module finds the shards of a set, in order, from the user's inputs.

:func:`open_set` expands addresses (:mod:`wdscli.storage`) and manifests. A manifest is a JSON file. Its shards are in
its folder unless it has full addresses. :func:`whole_set` also compares the shards of folders and globs with the
manifests in the same folders, on any store that can be listed. A set that a run is replacing is refused
(:func:`unfinished_sets`). This module opens no shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, InputError, InputIsFolderError, InputNotFoundError, UsageError, WdsError
from wdscli.progress import FEW_SHARDS
from wdscli.shards.locks import MANIFEST_SUFFIX as MANIFEST_SUFFIX
from wdscli.shards.locks import Unfinished, is_state_name, read_state
from wdscli.storage import (
    Words,
    base_name,
    expand,
    folder_of,
    has_folder,
    is_local,
    known_sizes,
    list_folder,
    read_all,
    scheme,
)
from wdscli.storage.addresses import STREAM, is_web, shard_address, view_of

if TYPE_CHECKING:
    from wdscli.model import ShardInfo
    from wdscli.progress import Progress
    from wdscli.shards.manifest import Manifest

_NAMED_AT_MOST = 5


class Given(Words):
    """The inputs and the folders of their shards. Each folder is listed at most once, and each manifest is read at most
    once."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: dict[str, Manifest | None] = {}
        """By address; None for a file that is no manifest."""

    def learn(self, other: Given) -> None:
        """Add the listings and manifests that another set has read."""
        self.names.update(other.names)
        self.manifests.update(other.manifests)


class Missing(NamedTuple):
    """A shard that a manifest lists but that does not exist. ``samples`` is its number of samples, or -1 if unknown."""

    address: str
    samples: int
    manifest: str


class ShardSet(NamedTuple):
    """The shards of a set, in order. ``manifest`` is the given manifest, if it was the only input. ``given`` has the
    folders and globs among the inputs. ``missing`` has the shards that :func:`whole_set` skips. If this set joins
    several sets, they are in ``sets``. ``listed`` has the remote shards that a listing found. ``unfinished`` has the
    sets that a run has not finished."""

    addresses: list[str]
    manifest: Manifest | None
    manifest_address: str | None = None
    given: Given | None = None
    missing: tuple[Missing, ...] = ()
    sets: tuple[ShardSet, ...] = ()
    listed: frozenset[str] = frozenset()
    unfinished: tuple[Unfinished, ...] = ()


class ShardStage:
    """A progress stage in which this process reads shards one after the other. It counts bytes if the sizes are known
    without a request, or if there are few shards. Otherwise it counts shards."""

    def __init__(self, progress: Progress, what: str, addresses: Sequence[str]) -> None:
        self._progress, self._sizes = progress, known_sizes(addresses)
        self._number = self._position = 0
        self._counts_bytes = self._sizes is not None or len(addresses) <= FEW_SHARDS
        if self._counts_bytes:
            progress.start(what, sum(self._sizes) if self._sizes is not None else None, "bytes")
        else:
            progress.start(what, len(addresses), "shards")

    def at(self, position: int) -> None:
        """Report that the current shard was read up to this byte of the decompressed data."""
        if self._counts_bytes:
            if self._sizes is not None:
                position = min(position, self._sizes[self._number])
            self._progress.advance(max(0, position - self._position))
            self._position = max(position, self._position)

    def next(self) -> None:
        """Report that the current shard was read."""
        if self._sizes is not None:
            self._progress.advance(max(0, self._sizes[self._number] - self._position))
        elif not self._counts_bytes:
            self._progress.advance(1)
        self._number, self._position = self._number + 1, 0


def open_set(
    inputs: Sequence[str],
    *,
    trust_addresses: bool = False,
    pipes: bool = True,
    takes_unfinished: bool = False,
) -> ShardSet:
    """Return the shards that ``inputs`` name: paths, folders, globs, braces, ``@lists``, streams, URLs and manifests.

    Manifests and downloaded lists may name shards in and below their folder; with ``trust_addresses``, any shards.
    Commands are accepted only in ``inputs`` and local lists, and only if ``pipes`` is true. Raises InputError for a
    name that matches nothing, and for an address that is not allowed. Also raises InputError for a set that a run is
    replacing or extending, unless ``takes_unfinished`` is true. Raises UsageError for a command that is not accepted,
    and for standard input named twice. Raises DataError for a file that is no manifest.
    """
    addresses: list[str] = []
    loose: list[str] = []
    manifest: Manifest | None = None
    manifest_address: str | None = None
    given = Given()
    for text in inputs:
        for address in expand(text, given, trust_addresses=trust_addresses, pipes=pipes):
            if is_manifest_name(address):
                manifest_address, manifest = address, read_manifest(address)
                addresses.extend(shard_addresses(address, manifest, trust_addresses=trust_addresses))
            else:
                addresses.append(address)
                loose.append(address)
    if addresses.count(STREAM) > 1:
        raise UsageError("standard input is named twice", hint="it can be read once")
    if manifest is not None and len(manifest.shards) == len(addresses):
        return ShardSet(addresses, manifest, manifest_address, given)
    unfinished = unfinished_sets(loose, given)
    if not takes_unfinished:
        refuse_unfinished(unfinished)
    listed = frozenset(one for one in addresses if not is_local(one) and given.cover(one))
    return ShardSet(addresses, None, None, given, listed=listed, unfinished=unfinished)


def unfinished_sets(addresses: Sequence[str], given: Given) -> tuple[Unfinished, ...]:
    """Return the unfinished sets to which these shards belong. A shard that is named alone needs no set. Folders of web
    servers cannot be listed, and count as finished."""
    folders: dict[str, list[str]] = {}
    for address in addresses:
        if has_folder(address):
            folders.setdefault(folder_of(address), []).append(address)
    sets = {folder: shards for folder, shards in folders.items() if len(shards) > 1 or given.cover(shards[0])}
    # If a pattern numbers folders, the state is in the folder above them.
    above = {folder_of(folder.rstrip("/")) for folder in sets} if len(sets) > 1 else set()
    found = (state for folder in {**sets, **dict.fromkeys(above)} for state in _states_in(folder, given))
    return tuple(one for one in found if any(any(map(one.covers, shards)) for shards in sets.values()))


def _states_in(folder: str, given: Given) -> Iterator[Unfinished]:
    is_listed = folder in given.names or not is_local(folder)
    names = names_in(folder, given) if is_listed else names_in(folder, keep=is_state_name)
    for name in filter(is_state_name, names):
        if (state := read_state(folder + name)) is not None:
            yield state


def refuse_unfinished(found: Iterable[Unfinished]) -> None:
    """Raise InputError for a set that a run began to replace or to extend. The finished shards of a new set may be
    read."""
    for one in found:
        if one.change != "new":
            text, hint = one.describe()
            raise InputError(text, hint=hint)


def warn_unfinished(shards: ShardSet, warn: Callable[[str], object]) -> None:
    """Warn about each unfinished set that may be read."""
    for one in shards.unfinished:
        warn("; ".join(one.describe()))


def is_manifest_name(address: str) -> bool:
    """Return whether an address names a manifest: it ends in ``.json`` and is no stream."""
    return address.endswith(".json") and has_folder(address)


def read_manifest(address: str) -> Manifest:
    """Read the manifest at ``address``. Raises InputError, DataError ``manifest-mismatch``."""
    # This import is here because most calls have no manifest.
    from wdscli.shards.manifest import parse_manifest

    return parse_manifest(read_all(address), address)


def shard_addresses(manifest_address: str, manifest: Manifest, *, trust_addresses: bool = False) -> list[str]:
    """Return the addresses of a manifest's shards: full addresses, or files in its folder. Raises InputError for an
    address that an untrusted manifest must not name."""
    if manifest.view is not None:
        from wdscli.shards.view_shards import opened

        opened(manifest_address, trusted=trust_addresses, manifest=manifest)
        return [f"{manifest_address}/{shard.name}" for shard in manifest.shards]
    return [shard_address(manifest_address, shard.name, trusted=trust_addresses) for shard in manifest.shards]


def manifest_beside(addresses: Sequence[str], given: Given | None = None) -> tuple[str, Manifest] | None:
    """Return address and content of the manifest in the shards' folder that lists exactly these shards, in any order.
    Return None if there is none. A folder on an object store must be listed for this, unless it is in ``given``."""
    folders = {folder_of(address) for address in addresses}
    if len(folders) != 1 or not all(map(has_folder, addresses)):
        return None
    names = sorted(base_name(address) for address in addresses)
    for found in _manifests_in(folders.pop(), given):
        if sorted(shard.name for shard in found[1].shards) == names:
            return found
    return None


def _manifests_in(
    folder: str, given: Given | None, *, strict: bool = False
) -> Iterator[tuple[str, Manifest]]:
    """Return the manifests in a folder, each with its address. Other files with such names are skipped. With
    ``strict``, a manifest that contradicts itself is an error. Raises InputError for a file that cannot be read."""
    from wdscli.shards.manifest import ContradictoryManifestError

    for name in names_in(folder, given):
        if not name.endswith(MANIFEST_SUFFIX):
            continue
        address = folder + name
        known = {} if given is None else given.manifests
        if address not in known:
            try:
                known[address] = read_manifest(address)
            except ContradictoryManifestError:
                if strict:
                    raise
            except (DataError, InputNotFoundError, InputIsFolderError):
                known[address] = None
        manifest = known.get(address)
        if manifest is not None:
            yield address, manifest


def _manifests_beside(addresses: Iterable[str], given: Given | None) -> Iterator[tuple[str, Manifest]]:
    """Return the manifests in the shards' folders, each with its folder."""
    for folder in dict.fromkeys(folder_of(address) for address in addresses if has_folder(address)):
        for _, manifest in _manifests_in(folder, given):
            yield folder, manifest


def names_in(folder: str, given: Given | None = None, keep: Callable[[str], bool] = bool) -> list[str]:
    """Return the names in a folder for which ``keep`` returns true. With the same ``given``, a folder is listed only
    once. If a folder cannot be listed, for example on a web server, return no names."""
    if given is not None and folder in given.names:
        return given.names[folder]
    if is_web(folder):
        return []
    try:
        names = list_folder(folder, keep)
    except WdsError:
        return []
    if given is not None:
        given.names[folder] = names
    return names


def whole_set(inputs: Sequence[str], on_error: str = "stop", *, trust_addresses: bool = False) -> ShardSet:
    """Call :func:`open_set` for a command that needs the whole set. Raises InputNotFoundError for missing shards
    (:func:`missing_shards`). With ``on_error="skip"``, the result has the missing shards in ``missing`` instead."""
    shards = open_set(inputs, trust_addresses=trust_addresses)
    gone = missing_shards(shards) or _missing_of(shards, on_error)
    if not gone:
        return shards
    without = {shard.address for shard in gone}
    left = [address for address in shards.addresses if address not in without]
    if on_error != "skip" or not left:
        raise missing_error(gone)
    manifest = shards.manifest if len(left) == len(shards.addresses) else None
    return shards._replace(addresses=left, manifest=manifest, missing=tuple(gone))


def warn_of_mixing(shards: ShardSet, output: str, warn: Callable[[str], object]) -> None:
    """Call ``warn`` if the shard ``output`` would be one of the inputs after the command."""
    for one in shards.sets or [shards]:
        if one.given is not None and (glob := one.given.cover(output)):
            warn(
                f"{output} also belongs to the input {glob}, so that old and new shards are one set: "
                "write to another folder"
            )


def missing_shards(shards: ShardSet) -> list[Missing]:
    """Return the missing shards of a set. A shard is missing if it does not exist, but a manifest next to other shards
    of the set lists it, and a given folder or glob covers it. If shards are named one by one, none is missing. A
    manifest that lists none of these shards belongs to a different set. Raises DataError for a manifest that
    contradicts itself."""
    given = shards.given
    if given is None:
        return []
    there = set(shards.addresses)
    gone: dict[str, Missing] = {}
    for folder in dict.fromkeys(folder_of(address) for address in shards.addresses if given.cover(address)):
        for where, manifest in _manifests_in(folder, given, strict=True):
            listed = _beside(folder, manifest)
            if any(address in there for address in listed):
                gone.update(
                    (address, Missing(address, samples, where))
                    for address, samples in listed.items()
                    if address not in there and given.cover(address)
                )
    return list(gone.values())


def _missing_of(shards: ShardSet, on_error: str) -> list[Missing]:
    """Return the missing shards of a given manifest, if its folder can be listed. An object store is listed only if
    missing shards are skipped. Otherwise the error comes when a missing shard is opened."""
    if shards.manifest is None or shards.manifest_address is None or shards.manifest.view is not None:
        return []
    if on_error != "skip" and not is_local(shards.manifest_address):
        return []
    folder = folder_of(shards.manifest_address)
    names = set(names_in(folder, shards.given))
    return [
        Missing(address, samples, shards.manifest_address)
        for address, samples in _beside(folder, shards.manifest).items()
        if names and base_name(address) not in names
    ]


def _beside(folder: str, manifest: Manifest) -> dict[str, int]:
    """Return the addresses of a manifest's shards in its own folder, with their numbers of samples."""
    return {
        folder + shard.name: shard.samples
        for shard in manifest.shards
        if "/" not in shard.name and scheme(shard.name) == "file"
    }


def missing_error(gone: Sequence[Missing]) -> InputNotFoundError:
    """Return the error for an incomplete set."""
    return InputNotFoundError(
        say_missing(gone),
        hint="copy the set again; or use --on-error skip, or name only the existing shards",
    )


def say_missing(gone: Sequence[Missing]) -> str:
    """Return a text that names the missing shards and their manifests."""
    names = ", ".join(base_name(shard.address) for shard in gone[:_NAMED_AT_MOST])
    more = f" and {len(gone) - _NAMED_AT_MOST} more" if len(gone) > _NAMED_AT_MOST else ""
    manifests = list(dict.fromkeys(shard.manifest for shard in gone))
    verb = "lists" if len(manifests) == 1 else "list"
    what = (
        "a shard that {} does not exist" if len(gone) == 1 else f"{len(gone)} shards that {{}} do not exist"
    )
    return f"{what.format(' and '.join(manifests) + ' ' + verb)}: {names}{more}"


def missing_samples(gone: Sequence[Missing]) -> dict[str, int]:
    """Return the number of samples in missing shards, by the reason for counting them as skipped."""
    return {"missing-shard": sum(max(0, shard.samples) for shard in gone)} if gone else {}


def known_samples(shards: ShardSet) -> dict[str, int]:
    """Return the number of samples in each shard, from the given manifest or the manifests in the shards' folders."""
    return {address: shard.samples for address, shard in listed_shards(shards).items()}


def listed_shards(shards: ShardSet) -> dict[str, ShardInfo]:
    """Return the entries for the shards in the given manifest, or in the manifests of the shards' folders."""
    if shards.manifest is not None:
        return dict(zip(shards.addresses, shards.manifest.shards))
    known: dict[str, ShardInfo] = {}
    for folder, manifest in _manifests_beside(shards.addresses, shards.given):
        known.update({folder + shard.name: shard for shard in manifest.shards})
    return known


def without_index(shards: ShardSet) -> frozenset[str]:
    """Return the shards on object stores that have no index, from a manifest and one listing per folder. So their
    indexes are not requested one by one. Local shards, shards of web servers, and folders that cannot be listed are
    left out."""
    from wdscli.shards.index import index_address

    remote = [
        one
        for one in shards.addresses
        if has_folder(one) and not (is_local(one) or is_web(one) or view_of(one))
    ]
    if shards.manifest is not None:
        indexed = {address for address, shard in zip(shards.addresses, shards.manifest.shards) if shard.index}
    else:
        told = _manifests_beside(remote, shards.given)
        indexed = {
            folder + shard.name for folder, manifest in told for shard in manifest.shards if shard.index
        }
    by_folder: dict[str, dict[str, str]] = {}
    for address in remote:
        if address not in indexed:
            place = index_address(address)
            by_folder.setdefault(folder_of(place), {})[base_name(place)] = address
    found: set[str] = set()
    for folder, by_name in by_folder.items():
        try:
            names = set(list_folder(folder))
        except InputNotFoundError:
            names = set()
        except WdsError:
            continue
        found.update(address for name, address in by_name.items() if name not in names)
    return frozenset(found)


def manifest_of(shards: ShardSet) -> Manifest | None:
    """Return the manifest of the set. It is the given manifest, or a manifest in the shards' folder that lists exactly
    these shards in this order. The same shards in a different order are a different set."""
    if shards.manifest is not None:
        return shards.manifest
    found = manifest_beside(shards.addresses, shards.given)
    names = [base_name(address) for address in shards.addresses]
    return None if found is None or [shard.name for shard in found[1].shards] != names else found[1]


def fingerprint_of(shards: ShardSet) -> str | None:
    """Return the fingerprint of the set from its manifest, or None without a manifest."""
    manifest = manifest_of(shards)
    return None if manifest is None else manifest.fingerprint


def parents_of(shards: ShardSet) -> list[tuple[str, Manifest | None]]:
    """Return each set with some of these shards, as the address of a shard and the manifest. Shards without a manifest
    form one set per folder."""
    found: dict[object, tuple[str, Manifest | None]] = {}
    for one in shards.sets or (shards,):
        for first in one.addresses[:1]:
            folder, manifest = folder_of(first), one.manifest
            for _, other in _manifests_in(folder, shards.given) if manifest is None else ():
                if any(shard.name == base_name(first) for shard in other.shards):
                    manifest = other
                    break
            found.setdefault(folder if manifest is None else id(manifest), (first, manifest))
    return list(found.values())


def classes_of(shards: ShardSet, *, joined: bool = False) -> tuple[str, ...] | None:
    """Return the class names for the numbers in ``cls`` from the manifests of all shards. Return None if a manifest has
    no names, or if names differ. Some of the ``joined`` sets may have no names. No request is sent to a store."""
    if shards.manifest is not None:
        return shards.manifest.classes
    if shards.sets or shards.given is None:
        found = {*map(classes_of, shards.sets)} - ({None} if joined else set())
        return found.pop() if len(found) == 1 else None
    known: dict[str, tuple[str, ...] | None] = {}
    near = [one for one in shards.addresses if is_local(one) or folder_of(one) in shards.given.names]
    for folder, manifest in _manifests_beside(near, shards.given):
        known.update(dict.fromkeys(_beside(folder, manifest), manifest.classes))
    said = {known.get(address) for address in shards.addresses}
    return said.pop() if len(said) == 1 else None


def open_sets(
    inputs: Sequence[str],
    on_error: str = "stop",
    warn: Callable[[str], object] = lambda message: None,
    *,
    trust_addresses: bool = False,
) -> tuple[ShardSet, list[int]]:
    """Return the shards of all inputs, and for each shard the number of its input. Raises InputNotFoundError if shards
    of a manifest are missing. With ``on_error="skip"``, only warn, and list them in ``missing``."""
    each = [whole_set([text], on_error, trust_addresses=trust_addresses) for text in inputs]
    missing = tuple(gone for one in each for gone in one.missing)
    if missing:
        warn(say_missing(missing))
    for one in each:
        warn_unfinished(one, warn)
    sets = [number for number, one in enumerate(each) for _ in one.addresses]
    if len(each) == 1:
        return each[0], sets
    if len({*map(classes_of, each)} - {None}) > 1:
        warn("according to the manifests, the same number in cls means different classes in different inputs")
    addresses = [address for one in each for address in one.addresses]
    listed = frozenset[str]().union(*(one.listed for one in each))
    given = Given()
    for one in each:
        given.learn(one.given or Given())
    # Perhaps the shell expanded a pattern into single shards.
    refuse_unfinished(
        unfinished_sets([address for one in each if one.manifest is None for address in one.addresses], given)
    )
    return ShardSet(addresses, None, None, given, missing, tuple(each), listed), sets
