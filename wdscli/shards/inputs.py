"""This module answers one question: which shards are in a set, and in which order?

:func:`open_set` is the only answer, for every command and for the loader. It expands addresses (:mod:`wdscli.storage`)
and manifests. A manifest is a JSON file. Its shards are in its folder unless it has full addresses. The shards of
folders and globs are compared with the manifests in the same folders, on any store that can be listed: a shard that a
manifest lists but that does not exist is an error, or is left out. A set that a run is replacing is refused
(:func:`unfinished_sets`). This module opens no shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from wdscli.errors import DataError, InputError, InputIsFolderError, InputNotFoundError, UsageError, WdsError
from wdscli.progress import FEW_SHARDS
from wdscli.shards.locks import MANIFEST_SUFFIX as MANIFEST_SUFFIX
from wdscli.shards.locks import UnfinishedSet, is_state_name, read_state
from wdscli.shown import shown
from wdscli.storage import (
    Words,
    base_name,
    expand,
    folder_of,
    has_folder,
    is_local,
    known_sizes,
    list_folder,
    scheme,
)
from wdscli.storage.addresses import STREAM, is_web, natural, shard_address, view_of
from wdscli.storage.opening import read_noted

if TYPE_CHECKING:
    from wdscli.model import ShardInfo
    from wdscli.progress import Progress
    from wdscli.shards.manifest import Manifest

_NAMED_AT_MOST = 5


MissingPolicy: TypeAlias = Literal["stop", "skip", "list", "keep", "accept"]
"""What :func:`open_set` does about missing shards: ``"stop"`` raises InputNotFoundError, ``"skip"`` leaves the shards
out and warns, ``"list"`` leaves them out for a caller that reports :attr:`ShardSet.missing`, ``"keep"`` keeps their
places for a caller that handles unreadable shards, and ``"accept"`` does not look. If all shards would be left out,
that is an error. A manifest that contradicts itself is an error unless all is accepted."""


class ListingCache(Words):
    """The folders and globs in the inputs. Each folder is listed at most once, and each manifest is read at most
    once."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: dict[str, Manifest | None] = {}
        """By address; None for a file that is no manifest."""

    def learn(self, listings: ListingCache) -> None:
        """Add the listings and manifests that another set has read."""
        self.names.update(listings.names)
        self.manifests.update(listings.manifests)


class Missing(NamedTuple):
    """A shard that a manifest lists but that does not exist. ``samples`` is its number of samples, or -1 if unknown."""

    address: str
    samples: int
    manifest: str


class ShardSet(NamedTuple):
    """The shards of a set, in order. ``manifest`` is the given manifest, if it was the only input and no shard is
    missing. ``listings`` has the folders and globs among the inputs. ``missing`` has the shards that were left out. If
    this set joins several sets, they are in ``sets``. ``listed`` has the remote shards that a listing found.
    ``unfinished`` has the sets that a run has not finished."""

    addresses: list[str]
    manifest: Manifest | None
    manifest_address: str | None = None
    listings: ListingCache | None = None
    missing: tuple[Missing, ...] = ()
    sets: tuple[ShardSet, ...] = ()
    listed: frozenset[str] = frozenset()
    unfinished: tuple[UnfinishedSet, ...] = ()


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
    missing: MissingPolicy = "stop",
    takes_unfinished: bool = False,
    warn: Callable[[str], object] = str,
    trust_addresses: bool = False,
    pipes: bool = True,
) -> ShardSet:
    """Return the shards that ``inputs`` name: paths, folders, globs, braces, ``@lists``, streams, URLs and manifests. A
    folder without shards means the folders with shards below it, which are the parts of a set.

    A shard is missing if a given manifest lists it, or a manifest next to other shards of a given folder or glob that
    covers it, but it does not exist. If shards are named one by one, none is missing.

    Manifests and downloaded lists may name shards in and below their folder; with ``trust_addresses``, any shards.
    Commands are accepted only in ``inputs`` and local lists, and only if ``pipes`` is true. ``warn`` is called about a
    set that a run has not finished. If the run replaces or extends a set, InputError is raised, unless
    ``takes_unfinished`` is true. Raises InputError for a name that matches nothing, and for an address that is not
    allowed. Raises UsageError for a command that is not accepted, and for standard input named twice. Raises DataError
    for a file that is no manifest.
    """
    listings, trusts = ListingCache(), trust_addresses
    named = [name for text in inputs for name in expand(text, listings, trust_addresses=trusts, pipes=pipes)]
    manifests = {name: _opened_manifest(name, trusts) for name in filter(is_manifest_name, named)}
    loose = [name for name in named if name not in manifests]
    addresses = _shards_of(named, manifests)
    looks, lists_stores = missing != "accept", missing == "skip"
    lost = _lost(addresses, manifests, listings, lists_stores=lists_stores) if looks else []
    if lost:
        addresses = _with(lost, addresses) if missing == "keep" else _without(lost, addresses, missing, warn)
    for manifest_address, (manifest, shards) in manifests.items():
        if shards == addresses:
            return ShardSet(addresses, manifest, manifest_address, listings)
    unfinished = unfinished_sets(loose, listings)
    if not takes_unfinished:
        refuse_unfinished(unfinished, warn)
    listed = frozenset(shard for shard in addresses if not is_local(shard) and listings.cover(shard))
    return ShardSet(addresses, None, None, listings, tuple(lost), listed=listed, unfinished=unfinished)


def _shards_of(named: Iterable[str], manifests: Mapping[str, tuple[Manifest, list[str]]]) -> list[str]:
    """Return the given shards, and the shards of given manifests. Raises UsageError if standard input is named
    twice."""
    addresses = [shard for name in named for shard in (manifests[name][1] if name in manifests else [name])]
    if addresses.count(STREAM) > 1:
        raise UsageError("standard input is named twice", hint="it can be read once")
    return addresses


def _opened_manifest(address: str, trusted: bool) -> tuple[Manifest, list[str]]:
    """Return a given manifest, and the addresses of its shards."""
    manifest = read_manifest(address)
    return manifest, shard_addresses(address, manifest, trust_addresses=trusted)


def _without(
    lost: Sequence[Missing], addresses: Sequence[str], policy: MissingPolicy, warn: Callable[[str], object]
) -> list[str]:
    """Return the shards that are left. Raises InputNotFoundError if missing shards are an error, or none is left."""
    gone = {shard.address for shard in lost}
    left = [address for address in addresses if address not in gone]
    if policy == "stop" or not left:
        raise missing_error(lost)
    if policy == "skip":
        warn(say_missing(lost))
    return left


def _with(lost: Sequence[Missing], addresses: Sequence[str]) -> list[str]:
    """Return the shards and the missing shards, in natural order if the shards are in this order. Otherwise missing
    shards come last."""
    present = {*addresses}
    lost_addresses = [shard.address for shard in lost if shard.address not in present]
    order = [*map(natural, addresses)]
    if order == sorted(order):
        return sorted([*addresses, *lost_addresses], key=natural)
    return [*addresses, *lost_addresses]


def unfinished_sets(addresses: Sequence[str], listings: ListingCache) -> tuple[UnfinishedSet, ...]:
    """Return the unfinished sets to which these shards belong. A shard that is named alone needs no set. Folders of web
    servers cannot be listed, and count as finished."""
    folders: dict[str, list[str]] = {}
    for address in addresses:
        if has_folder(address):
            folders.setdefault(folder_of(address), []).append(address)
    sets = {
        folder: shards for folder, shards in folders.items() if len(shards) > 1 or listings.cover(shards[0])
    }
    # If a pattern numbers folders, the state is in the folder above them.
    above = {folder_of(folder.rstrip("/")) for folder in sets} if len(sets) > 1 else set()
    states = (state for folder in {**sets, **dict.fromkeys(above)} for state in _states_in(folder, listings))
    return tuple(state for state in states if any(any(map(state.covers, shards)) for shards in sets.values()))


def _states_in(folder: str, listings: ListingCache) -> Iterator[UnfinishedSet]:
    is_listed = folder in listings.names or not is_local(folder)
    names = names_in(folder, listings) if is_listed else names_in(folder, keep=is_state_name)
    for name in filter(is_state_name, names):
        if (state := read_state(folder + name)) is not None:
            yield state


def refuse_unfinished(states: Sequence[UnfinishedSet], warn: Callable[[str], object] = str) -> None:
    """Raise InputError for a set that a run began to replace or to extend. The finished shards of a new set may be
    read; then ``warn`` is called."""
    for state in states:
        if state.change != "new":
            text, hint = state.describe()
            raise InputError(text, hint=hint)
    for state in states:
        warn("; ".join(state.describe()))


def is_manifest_name(address: str) -> bool:
    """Return whether an address names a manifest: it ends in ``.json`` and is no stream."""
    return address.endswith(".json") and has_folder(address)


def read_manifest(address: str) -> Manifest:
    """Read the manifest at ``address``. Raises InputError, DataError ``manifest-mismatch``."""
    # This import is here because most calls have no manifest.
    from wdscli.shards.manifest import parse_manifest

    return parse_manifest(read_noted(address)[0], address)


def shard_addresses(manifest_address: str, manifest: Manifest, *, trust_addresses: bool = False) -> list[str]:
    """Return the addresses of a manifest's shards: full addresses, or files in its folder. Raises InputError for an
    address that an untrusted manifest must not name."""
    if manifest.view is not None:
        from wdscli.shards.view_shards import opened

        opened(manifest_address, trusted=trust_addresses, manifest=manifest)
        return [f"{manifest_address}/{shard.name}" for shard in manifest.shards]
    return [shard_address(manifest_address, shard.name, trusted=trust_addresses) for shard in manifest.shards]


def manifest_beside(
    addresses: Sequence[str], listings: ListingCache | None = None
) -> tuple[str, Manifest] | None:
    """Return address and content of the manifest in the shards' folder that lists exactly these shards, in any order.
    Return None if there is none. A folder on an object store must be listed for this, unless it is in ``listings``."""
    folders = {folder_of(address) for address in addresses}
    if len(folders) != 1 or not all(map(has_folder, addresses)):
        return None
    names = sorted(base_name(address) for address in addresses)
    for address, manifest in manifests_in(folders.pop(), listings):
        if sorted(shard.name for shard in manifest.shards) == names:
            return address, manifest
    return None


def manifests_in(
    folder: str, listings: ListingCache | None = None, *, strict: bool = False
) -> Iterator[tuple[str, Manifest]]:
    """Return the manifests in a folder, each with its address. Other files with such names are skipped. With
    ``strict``, a manifest that contradicts itself is an error. Raises InputError for a file that cannot be read."""
    from wdscli.shards.manifest import ContradictoryManifestError

    manifests = {} if listings is None else listings.manifests
    for name in names_in(folder, listings):
        if not name.endswith(MANIFEST_SUFFIX):
            continue
        address = folder + name
        if address not in manifests:
            try:
                manifests[address] = read_manifest(address)
            except ContradictoryManifestError:
                if strict:
                    raise
            except (DataError, InputNotFoundError, InputIsFolderError):
                manifests[address] = None
        manifest = manifests.get(address)
        if manifest is not None:
            yield address, manifest


def _manifests_beside(
    addresses: Iterable[str], listings: ListingCache | None
) -> Iterator[tuple[str, Manifest]]:
    """Return the manifests in the shards' folders, each with its folder."""
    for folder in dict.fromkeys(folder_of(address) for address in addresses if has_folder(address)):
        for _, manifest in manifests_in(folder, listings):
            yield folder, manifest


def names_in(
    folder: str, listings: ListingCache | None = None, keep: Callable[[str], bool] = bool
) -> list[str]:
    """Return the names in a folder for which ``keep`` returns true. With the same ``listings``, a folder is listed only
    once. If a folder cannot be listed, for example on a web server, return no names."""
    if listings is not None and folder in listings.names:
        return listings.names[folder]
    if is_web(folder):
        return []
    try:
        names = list_folder(folder, keep)
    except WdsError:
        return []
    if listings is not None:
        listings.names[folder] = names
    return names


def check_mixing(shards: ShardSet, output: str, *, force: bool, warn: Callable[[str], object]) -> None:
    """Raise UsageError if the new shard ``output`` would be one of the inputs after the command. With ``force``, only
    warn."""
    for part in shards.sets or [shards]:
        if part.listings is not None and (glob := part.listings.cover(output)):
            text = f"{output} also belongs to the input {glob}, so that its samples would be there twice"
            if not force:
                raise UsageError(text, hint="write to another folder, or accept it with --force")
            warn(text)


def _lost(
    addresses: Sequence[str],
    manifests: Mapping[str, tuple[Manifest, list[str]]],
    listings: ListingCache,
    *,
    lists_stores: bool,
    strict: bool = True,
) -> list[Missing]:
    """Return the missing shards of given manifests, if their folders can be listed, and of manifests next to the shards
    that folders and globs found. A manifest that lists none of these shards belongs to a different set. An object store
    is listed for a given manifest only with ``lists_stores``; otherwise the error comes when a missing shard is
    opened."""
    gone: dict[str, Missing] = {}
    for where, (manifest, shards) in manifests.items():
        names: dict[str, set[str]] = {}
        for address, shard in zip(shards, manifest.shards) if manifest.view is None else ():
            folder = folder_of(address)
            if folder not in names:
                may_list = has_folder(address) and (lists_stores or is_local(folder))
                names[folder] = set(names_in(folder, listings) if may_list else ())
            if names[folder] and base_name(address) not in names[folder]:
                gone[address] = Missing(address, shard.samples, where)
    present = {*addresses} - gone.keys()
    for folder in dict.fromkeys(folder_of(address) for address in present if listings.cover(address)):
        for where, manifest in manifests_in(folder, listings, strict=strict):
            listed = _beside(folder, manifest)
            if not present.isdisjoint(listed):
                gone.update(
                    (address, Missing(address, samples, where))
                    for address, samples in listed.items()
                    if address not in present and listings.cover(address)
                )
    return list(gone.values())


def stale_manifests(shards: ShardSet) -> list[str]:
    """Return the manifests that list one of these shards, and a shard that is missing. The set was opened with
    ``missing="accept"``."""
    listings = shards.listings or ListingCache()
    lost = _lost(shards.addresses, {}, listings, lists_stores=True, strict=False)
    return list(dict.fromkeys(shard.manifest for shard in lost))


def _beside(folder: str, manifest: Manifest) -> dict[str, int]:
    """Return the addresses of a manifest's shards in its own folder, with their numbers of samples."""
    return {
        folder + shard.name: shard.samples
        for shard in manifest.shards
        if "/" not in shard.name and scheme(shard.name) == "file"
    }


def missing_error(gone: Sequence[Missing]) -> InputNotFoundError:
    """Return the error for an incomplete set."""
    folder = shown(folder_of(gone[0].manifest)) or "."
    return InputNotFoundError(
        say_missing(gone),
        hint="copy the set again; or use --on-error skip; "
        f"or accept the set as it is: wds index --force {folder}",
    )


def say_missing(gone: Sequence[Missing]) -> str:
    """Return a text that names the missing shards and their manifests."""
    names = ", ".join(base_name(shard.address) for shard in gone[:_NAMED_AT_MOST])
    unnamed = f" and {len(gone) - _NAMED_AT_MOST} more" if len(gone) > _NAMED_AT_MOST else ""
    manifests = list(dict.fromkeys(shard.manifest for shard in gone))
    verb = "lists" if len(manifests) == 1 else "list"
    what = (
        "a shard that {} does not exist" if len(gone) == 1 else f"{len(gone)} shards that {{}} do not exist"
    )
    return f"{what.format(' and '.join(manifests) + ' ' + verb)}: {names}{unnamed}"


def missing_samples(gone: Sequence[Missing]) -> dict[str, int]:
    """Return the number of samples in missing shards, by the reason for counting them as skipped."""
    return {"missing-shard": sum(max(0, shard.samples) for shard in gone)} if gone else {}


def known_samples(shards: ShardSet) -> dict[str, int]:
    """Return the number of samples in each shard, from the given manifest or the manifests in the shards' folders."""
    return {address: shard.samples for address, shard in listed_shards(shards).items()}


def listed_shards(shards: ShardSet, addresses: Iterable[str] | None = None) -> dict[str, ShardInfo]:
    """Return the entries for the shards in the given manifest, or in the manifests of the shards' folders, or of the
    folders of ``addresses``."""
    if shards.manifest is not None:
        return dict(zip(shards.addresses, shards.manifest.shards))
    entries: dict[str, ShardInfo] = {}
    for folder, manifest in _manifests_beside(
        shards.addresses if addresses is None else addresses, shards.listings
    ):
        entries.update({folder + shard.name: shard for shard in manifest.shards})
    return entries


def without_index(shards: ShardSet) -> frozenset[str]:
    """Return the shards on object stores that have no index, from a manifest and one listing per folder. So their
    indexes are not requested one by one. Local shards, shards of web servers, and folders that cannot be listed are
    left out."""
    from wdscli.shards.index import index_address

    remote = [
        address
        for address in shards.addresses
        if has_folder(address) and not (is_local(address) or is_web(address) or view_of(address))
    ]
    indexed = {address for address, shard in listed_shards(shards, remote).items() if shard.index}
    by_folder: dict[str, dict[str, str]] = {}
    for address in remote:
        if address not in indexed:
            place = index_address(address)
            by_folder.setdefault(folder_of(place), {})[base_name(place)] = address
    unindexed: set[str] = set()
    for folder, by_name in by_folder.items():
        try:
            names = set(list_folder(folder))
        except InputNotFoundError:
            names = set()
        except WdsError:
            continue
        unindexed.update(address for name, address in by_name.items() if name not in names)
    return frozenset(unindexed)


def manifest_of(shards: ShardSet) -> Manifest | None:
    """Return the manifest of the set. It is the given manifest, or a manifest in the shards' folder that lists exactly
    these shards in this order. The same shards in a different order are a different set."""
    if shards.manifest is not None:
        return shards.manifest
    _, manifest = manifest_beside(shards.addresses, shards.listings) or ("", None)
    names = [base_name(address) for address in shards.addresses]
    in_order = manifest is not None and [shard.name for shard in manifest.shards] == names
    return manifest if in_order else None


def fingerprint_of(shards: ShardSet) -> str | None:
    """Return the fingerprint of the set from its manifest, or None without a manifest."""
    manifest = manifest_of(shards)
    return None if manifest is None else manifest.fingerprint


def parents_of(shards: ShardSet) -> list[tuple[str, Manifest | None]]:
    """Return each set with some of these shards, as the address of a shard and the manifest. Shards without a manifest
    form one set per folder."""
    parents: dict[object, tuple[str, Manifest | None]] = {}
    for part in shards.sets or (shards,):
        for first in part.addresses[:1]:
            folder, parent = folder_of(first), part.manifest
            for _, manifest in manifests_in(folder, shards.listings) if parent is None else ():
                if any(shard.name == base_name(first) for shard in manifest.shards):
                    parent = manifest
                    break
            parents.setdefault(folder if parent is None else id(parent), (first, parent))
    return list(parents.values())


def classes_of(shards: ShardSet, *, joined: bool = False) -> tuple[str, ...] | None:
    """Return the class names for the numbers in ``cls`` from the manifests of all shards. Return None if a manifest has
    no names, or if names differ. Some of the ``joined`` sets may have no names. No request is sent to a store."""
    if shards.manifest is not None:
        return shards.manifest.classes
    if shards.sets or shards.listings is None:
        classes = {*map(classes_of, shards.sets)} - ({None} if joined else set())
        return classes.pop() if len(classes) == 1 else None
    by_shard: dict[str, tuple[str, ...] | None] = {}
    listings = shards.listings
    readable = [
        address for address in shards.addresses if is_local(address) or folder_of(address) in listings.names
    ]
    for folder, manifest in _manifests_beside(readable, listings):
        by_shard.update(dict.fromkeys(_beside(folder, manifest), manifest.classes))
    classes = {by_shard.get(address) for address in shards.addresses}
    return classes.pop() if len(classes) == 1 else None


def open_sets(
    inputs: Sequence[str],
    on_error: Literal["stop", "skip"] = "stop",
    warn: Callable[[str], object] = str,
    *,
    trust_addresses: bool = False,
) -> tuple[ShardSet, list[int]]:
    """Open each input as a set of its own (:func:`open_set`). Return the shards of all inputs, and for each shard the
    number of its input."""
    sets = [open_set([text], missing=on_error, warn=warn, trust_addresses=trust_addresses) for text in inputs]
    set_numbers = [number for number, shards in enumerate(sets) for _ in shards.addresses]
    if len(sets) == 1:
        return sets[0], set_numbers
    if len({*map(classes_of, sets)} - {None}) > 1:
        warn("according to the manifests, the same number in cls means different classes in different inputs")
    addresses = [address for shards in sets for address in shards.addresses]
    listed = frozenset[str]().union(*(shards.listed for shards in sets))
    missing = tuple(shard for shards in sets for shard in shards.missing)
    listings = ListingCache()
    for shards in sets:
        listings.learn(shards.listings or ListingCache())
    # Perhaps the shell expanded a pattern into single shards.
    loose = [address for shards in sets if shards.manifest is None for address in shards.addresses]
    refuse_unfinished(unfinished_sets(loose, listings))
    return ShardSet(addresses, None, None, listings, missing, tuple(sets), listed), set_numbers
