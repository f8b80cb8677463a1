"""From what a user names to the shards of a set, in order.

What it is: :func:`open_set`, which expands addresses (``wdscli.storage`` knows how) and manifests (this room does).
How: a manifest is a JSON file; its shards lie beside it unless it gives full addresses. :func:`whole_set` also compares
what folders and globs gave with the manifests beside it, on any store that can be listed. A set that a run is
replacing is refused (:func:`unfinished_sets`). It must not open shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import InputError, InputNotFoundError, UsageError, WdsError
from wdscli.progress import FEW_SHARDS
from wdscli.shards.state import MANIFEST_SUFFIX as MANIFEST_SUFFIX
from wdscli.shards.state import Unfinished, is_state_name, read_state
from wdscli.storage import (
    Words,
    base_name,
    expand,
    folder_of,
    is_local,
    is_read_once,
    list_folder,
    read_all,
    scheme,
    sizes_here,
)
from wdscli.storage.addresses import STREAM, is_web, shard_address

if TYPE_CHECKING:
    from wdscli.progress import Progress
    from wdscli.shards.manifest import Manifest

_NAMED_AT_MOST = 5


class Given(Words):
    """What was given, and what lies beside the shards that it led to: each folder is listed, and each manifest read, at
    most once."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: dict[str, Manifest | None] = {}
        """By address; None for a file that is none, whatever its name."""

    def learn(self, other: Given) -> None:
        """Know what lies beside the shards of another set too."""
        self.names.update(other.names)
        self.manifests.update(other.manifests)


class Missing(NamedTuple):
    """A shard that a manifest lists and that is not there; ``samples`` are those it should have, -1 when not told."""

    address: str
    samples: int
    manifest: str


class ShardSet(NamedTuple):
    """Shards in order. ``manifest`` is the one that was given, when it alone was given. ``given`` are the folders
    and globs among what was given, ``missing`` the shards that :func:`whole_set` goes on without, ``classes`` what
    :func:`classes_of` says of each set, where several are one. ``listed`` are the shards on other machines that were
    found by listing a folder for this set. ``unfinished`` are the sets among them that a run has not finished."""

    addresses: list[str]
    manifest: Manifest | None
    manifest_address: str | None = None
    given: Given | None = None
    missing: tuple[Missing, ...] = ()
    classes: tuple[tuple[str, ...] | None, ...] = ()
    listed: frozenset[str] = frozenset()
    unfinished: tuple[Unfinished, ...] = ()


class ShardStage:
    """A stage of a progress in which this process reads shards one after the other: in bytes where their sizes are
    known without a request, or the shards few, else in shards."""

    def __init__(self, progress: Progress, what: str, addresses: Sequence[str]) -> None:
        self._progress, self._sizes = progress, sizes_here(addresses)
        self._number = self._position = 0
        self._counts_bytes = self._sizes is not None or len(addresses) <= FEW_SHARDS
        if self._counts_bytes:
            progress.start(what, sum(self._sizes) if self._sizes is not None else None, "bytes")
        else:
            progress.start(what, len(addresses), "shards")

    def at(self, position: int) -> None:
        """The shard that is read has been read up to a byte, of what is in it if it is compressed."""
        if self._counts_bytes:
            if self._sizes is not None:
                position = min(position, self._sizes[self._number])
            self._progress.advance(max(0, position - self._position))
            self._position = max(position, self._position)

    def next(self) -> None:
        """The shard has been read."""
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
    """The shards that ``inputs`` name: paths, folders, globs, braces, ``@lists``, streams, URLs and manifests.

    Manifests, and lists that were fetched, may name shards beside and below themselves, with ``trust_addresses`` any;
    commands are taken only from ``inputs`` and from local lists, without ``pipes`` from nowhere. Raises InputError for
    a name that matches nothing, for what may not be named and for a set that a run is replacing or appending to (with
    ``takes_unfinished`` it is returned), UsageError for a command that is not taken and for standard input named twice,
    DataError for a file that is no manifest.
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
    """The unfinished sets that some of these shards belong to. A shard that is named alone is whole by itself. Folders
    of web servers cannot be listed and count as finished."""
    folders: dict[str, list[str]] = {}
    for address in addresses:
        if not is_read_once(address):
            folders.setdefault(folder_of(address), []).append(address)
    sets = {folder: shards for folder, shards in folders.items() if len(shards) > 1 or given.cover(shards[0])}
    # A pattern may number folders; its state is then in the folder above.
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
    """Raise InputError for a set whose shards a run has replaced in part, or added to. The shards of a new set are all
    true, and reading them is not refused."""
    for one in found:
        if one.change != "new":
            text, hint = one.describe()
            raise InputError(text, hint=hint)


def warn_unfinished(shards: ShardSet, warn: Callable[[str], object]) -> None:
    """Warn of each unfinished set that may be read."""
    for one in shards.unfinished:
        warn("; ".join(one.describe()))


def is_manifest_name(address: str) -> bool:
    """Whether an address is taken for a manifest: it ends in ``.json`` and is no stream."""
    return address.endswith(".json") and not is_read_once(address)


def read_manifest(address: str) -> Manifest:
    """The manifest at ``address``. Raises InputError, DataError ``manifest-mismatch``."""
    # Here, because most calls name no manifest, and every command pays for what is imported above.
    from wdscli.shards.manifest import parse_manifest

    return parse_manifest(read_all(address), address)


def shard_addresses(manifest_address: str, manifest: Manifest, *, trust_addresses: bool = False) -> list[str]:
    """The addresses of a manifest's shards: as they stand when they are full addresses, else beside the manifest.
    Raises InputError for those that a manifest may not name, unless it is trusted."""
    return [shard_address(manifest_address, shard.name, trusted=trust_addresses) for shard in manifest.shards]


def manifest_beside(addresses: Sequence[str], given: Given | None = None) -> tuple[str, Manifest] | None:
    """Address and content of the manifest that lies beside shards and lists exactly them, in any order, if any. Where
    the folder is an object store's and not among ``given``, this costs a listing."""
    folders = {folder_of(address) for address in addresses}
    if len(folders) != 1 or any(map(is_read_once, addresses)):
        return None
    names = sorted(base_name(address) for address in addresses)
    for found in _manifests_in(folders.pop(), given):
        if sorted(shard.name for shard in found[1].shards) == names:
            return found
    return None


def _manifests_in(
    folder: str, given: Given | None, *, strict: bool = False
) -> Iterator[tuple[str, Manifest]]:
    """The manifests in a folder, each with its address. Other files of such a name are passed over; a manifest that
    contradicts itself is an error if ``strict``."""
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
            except WdsError:
                known[address] = None
        manifest = known.get(address)
        if manifest is not None:
            yield address, manifest


def _manifests_beside(addresses: Iterable[str], given: Given | None) -> Iterator[tuple[str, Manifest]]:
    """The manifests beside some shards, each with its folder."""
    for folder in dict.fromkeys(folder_of(address) for address in addresses if not is_read_once(address)):
        for _, manifest in _manifests_in(folder, given):
            yield folder, manifest


def names_in(folder: str, given: Given | None = None, keep: Callable[[str], bool] = bool) -> list[str]:
    """The names of what lies in a folder, as far as ``keep`` is true of it, listed once for all who share ``given``;
    none when that cannot be told, as on a web server."""
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
    """:func:`open_set` for who needs all of a set. Raises InputNotFoundError when a shard of it is gone, as
    :func:`missing_shards` tells; with ``on_error="skip"`` the set goes on without such shards, and names them.
    """
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


def missing_shards(shards: ShardSet) -> list[Missing]:
    """Shards that are gone: they are not there, a manifest beside others of the set lists them, and a folder or a glob
    that was given stands for them too. Shards that were named one by one are all that was meant, and of a manifest that
    lists none of these the set is another. Raises DataError for a manifest that contradicts itself."""
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
    """The shards of a manifest that was given that are not there, as far as a listing of its folder tells. An object
    store is not asked for one where who opens the first that is not there ends."""
    if shards.manifest is None or shards.manifest_address is None:
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
    """The addresses of the shards that a manifest lists and that lie beside it, and their samples."""
    return {
        folder + shard.name: shard.samples
        for shard in manifest.shards
        if "/" not in shard.name and scheme(shard.name) == "file"
    }


def missing_error(gone: Sequence[Missing]) -> InputNotFoundError:
    """The error of a set that is not whole."""
    return InputNotFoundError(
        say_missing(gone),
        hint="copy the set again; or --on-error skip, or names or a pattern of the shards that are there",
    )


def say_missing(gone: Sequence[Missing]) -> str:
    """In words which shards of which manifests are not there."""
    names = ", ".join(base_name(shard.address) for shard in gone[:_NAMED_AT_MOST])
    more = f" and {len(gone) - _NAMED_AT_MOST} more" if len(gone) > _NAMED_AT_MOST else ""
    manifests = list(dict.fromkeys(shard.manifest for shard in gone))
    verb = "lists" if len(manifests) == 1 else "list"
    what = "a shard that {} is not there" if len(gone) == 1 else f"{len(gone)} shards that {{}} are not there"
    return f"{what.format(' and '.join(manifests) + ' ' + verb)}: {names}{more}"


def missing_samples(gone: Sequence[Missing]) -> dict[str, int]:
    """How many samples missing shards had, under the reason that they are counted by."""
    return {"missing-shard": sum(max(0, shard.samples) for shard in gone)} if gone else {}


def known_samples(shards: ShardSet) -> dict[str, int]:
    """The samples of each shard as manifests tell them: the one that was given, else those beside the shards."""
    if shards.manifest is not None:
        return {address: shard.samples for address, shard in zip(shards.addresses, shards.manifest.shards)}
    known: dict[str, int] = {}
    for folder, manifest in _manifests_beside(shards.addresses, shards.given):
        known.update(_beside(folder, manifest))
    return known


def without_index(shards: ShardSet) -> frozenset[str]:
    """The shards of an object store beside which no index lies, as a manifest and one listing a folder tell, so that
    nobody has to look for each. Says nothing of those of this machine and of web servers, nor where nothing can be
    listed."""
    from wdscli.shards.index import index_address

    remote = [one for one in shards.addresses if not (is_read_once(one) or is_local(one) or is_web(one))]
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
    """The manifest of the set that was named: the one that was given, or one beside the shards that lists exactly them
    in this order. Shards given in another order are another set."""
    if shards.manifest is not None:
        return shards.manifest
    found = manifest_beside(shards.addresses, shards.given)
    names = [base_name(address) for address in shards.addresses]
    return None if found is None or [shard.name for shard in found[1].shards] != names else found[1]


def fingerprint_of(shards: ShardSet) -> str | None:
    """The fingerprint of the set that was named, from its manifest; None when there is none."""
    manifest = manifest_of(shards)
    return None if manifest is None else manifest.fingerprint


def classes_of(shards: ShardSet, *, joined: bool = False) -> tuple[str, ...] | None:
    """What the numbers in ``cls`` refer to, as the manifests of all shards say; None where one says nothing, or
    another thing. Of sets that are ``joined`` some may say nothing. No store is asked for it."""
    if shards.manifest is not None:
        return shards.manifest.classes
    if shards.classes or shards.given is None:
        found = {*shards.classes} - ({None} if joined else set())
        return found.pop() if len(found) == 1 else None
    known: dict[str, tuple[str, ...] | None] = {}
    near = [one for one in shards.addresses if is_local(one) or folder_of(one) in shards.given.names]
    for folder, manifest in _manifests_beside(near, shards.given):
        known.update(dict.fromkeys(_beside(folder, manifest), manifest.classes))
    said = {known.get(address) for address in shards.addresses}
    return said.pop() if len(said) == 1 else None
