"""A set to write: its names, its rules, and its manifest at the end.

What it is: :class:`OutputSet`, which stands between a command and its output. How: before anything is written it
refuses what is there already; when it may replace a set, it takes the old manifest away first, so that at no moment a
manifest vouches for shards that are not its own; at the end it looks whether all shards are still those that were
written, writes the manifest, then removes shards of the old set that the new one has no use for. It must not know how
shards are filled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from wdscli.errors import DataError, InputError, OutputError, OutputExistsError, UsageError
from wdscli.model import ShardInfo
from wdscli.shards.checksum import new_digest
from wdscli.shards.claims import Claim, Ticket, claim_address
from wdscli.shards.inputs import MANIFEST_SUFFIX, read_manifest
from wdscli.shards.leftovers import receipt_address, remove_abandoned
from wdscli.shards.manifest import Manifest
from wdscli.shards.shardfile import ShardFile, Witness, index_address
from wdscli.shown import shown_in
from wdscli.storage import (
    OutputPattern,
    base_name,
    check_place,
    exists,
    folder_of,
    is_local,
    open_sink,
    remove,
)
from wdscli.storage.addresses import local_path
from wdscli.storage.versions import GONE, versions_at
from wdscli.tar import CANONICAL, Form


class ShardSettings(NamedTuple):
    """How shards are written; small and picklable, so that tasks in other processes can have it. ``ticket`` names the
    folder that they must still find."""

    form: Form = CANONICAL
    checksum: str = "xxh3_128"
    with_index: bool = True
    force: bool = False
    fsync: bool = False
    witness: Witness | None = None
    ticket: Ticket | None = None

    def open(self, address: str) -> ShardFile:
        """A shard to fill at ``address``."""
        return ShardFile(address, **self._asdict())


class OutputSet:
    """The output of one command, by its pattern. ``settings`` are those of every shard. Raises UsageError for a pattern
    or a checksum that cannot be meant.

    Call :meth:`begin` once before the first shard and :meth:`finish` once after the last one is committed; between them
    the output must be claimed: :meth:`claimed` does all of it but :meth:`finish`, and :meth:`hold` is for a claim of
    several sets.
    """

    def __init__(self, pattern: str, settings: ShardSettings | None = None) -> None:
        self.pattern = OutputPattern.parse(pattern)
        self.settings = settings or ShardSettings()
        new_digest(self.settings.checksum)
        self._replaced: list[str] = []
        self._claim: Claim | None = None

    @contextmanager
    def claimed(self, inputs: Iterable[str] = ()) -> Iterator[None]:
        """The only run that writes this set, until the block ends. Raises what :meth:`begin` raises, and OutputError
        when another run is writing it."""
        self.claim(inputs)
        try:
            yield
        finally:
            self.release()

    def claim(self, inputs: Iterable[str] = ()) -> None:
        """The first half of :meth:`claimed`, for who cannot use a block; :meth:`release` is the second."""
        self.hold(Claim.take(claim_address(self.pattern.text)))
        try:
            self.begin(inputs)
        except BaseException:
            self.release()
            raise

    def hold(self, claim: Claim) -> None:
        """Write under a claim that somebody else releases."""
        self._claim = claim
        self.settings = self.settings._replace(ticket=claim.ticket)

    def check_claim(self, address: str) -> None:
        """Raise OutputError when the output is not ours to write any more."""
        if self._claim is not None:
            self._claim.check(address)

    def release(self) -> None:
        """Let others write the set. May be called twice."""
        if self._claim is not None:
            self._claim.release()

    @property
    def manifest_address(self) -> str | None:
        """Where the manifest will lie; None for ``-`` and commands."""
        return None if self.pattern.is_stream else self.pattern.prefix_address(MANIFEST_SUFFIX)

    def check(self, inputs: Iterable[str] = (), *, may_exist: bool = False) -> None:
        """Raise OutputExistsError when a shard or a manifest of this name is there and may not be replaced, UsageError
        when an output is also an input. Writes nothing. ``may_exist`` is for who goes on with what is there."""
        if self.pattern.is_stream:
            return
        check_place(self._manifest())
        self._replaced = self.pattern.existing()
        there = [*self._replaced, *([self._manifest()] if exists(self._manifest()) else [])]
        taken = {_place(address) for address in there}
        for address in inputs if taken else ():
            if _place(address) in taken:
                raise UsageError(
                    f"{address} is an input and would be an output too", hint="give the output another name"
                )
        if there and not self.settings.force and not may_exist:
            more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
            raise OutputExistsError(f"output exists: {there[0]}{more}", hint=self._way_out())

    def _way_out(self) -> str:
        """What helps when a set is there: a run that ended early has left receipts and no manifest."""
        if any(exists(receipt_address(address)) for address in self._replaced):
            return "an unfinished run has left it: go on with --resume, or replace it with --force"
        return "choose another name, or replace it with --force"

    def begin(self, inputs: Iterable[str] = ()) -> None:
        """:meth:`check`, then take away the manifest of a set that is replaced, and what killed runs have left."""
        self.check(inputs)
        if self.settings.force and not self.pattern.is_stream:
            remove(self._manifest())
        self.remove_abandoned()

    def remove_abandoned(self) -> None:
        """Temporary files that killed runs have left under names of this output."""
        if self.pattern.is_stream or not is_local(self._manifest()):
            return
        folder = folder_of(self._manifest())

        def is_own(name: str) -> bool:
            return folder + name == self._manifest() or self.pattern.could_name(folder + name)

        remove_abandoned(folder, is_own)

    def address(self, index: int) -> str:
        """The address of shard ``index``."""
        return self.pattern.address(index)

    def _manifest(self) -> str:
        return self.pattern.prefix_address(MANIFEST_SUFFIX)

    def finish(self, shards: Sequence[ShardInfo], **made: Any) -> Manifest:
        """Write :meth:`manifest_of` the shards and remove what is left of a replaced set. Raises OutputError when one
        of them is not there any more, or not the one that was written."""
        manifest = self.manifest_of(shards, **made)
        if not self.pattern.is_stream:
            self._check_own(shards)
            with open_sink(self._manifest(), force=self.settings.force, fsync=self.settings.fsync) as sink:
                sink.write(manifest.to_json().encode("ascii"))
            self._remove_leftovers(len(shards))
        return manifest

    def _check_own(self, shards: Sequence[ShardInfo]) -> None:
        """Every shard that the manifest will name must be the one that was written. One that is another file is read:
        two runs of one plan write the same bytes."""
        self.check_claim(self._manifest())
        known = [(self.address(at), shard) for at, shard in enumerate(shards) if shard.version]
        others = []
        for (address, shard), found in zip(known, versions_at([address for address, _ in known])):
            if found not in ("", shard.version) and not self._is_same(address, shard, found):
                others.append(address)
        if not others:
            return
        self._remove_lies({address for address, _ in known} - set(others))
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise OutputError(
            f"{others[0]}{more} was replaced or removed by somebody else while this run was writing",
            hint="there is no manifest; see that nothing else writes there, and run the command again",
        )

    def _remove_lies(self, ours: set[str]) -> None:
        """A manifest that another run has written meanwhile, when it vouches for shards that are still ours."""
        try:
            told = read_manifest(self._manifest()).shards
        except InputError:
            return
        except DataError:
            told = ()
        names = {shard.name for shard in told}
        if not told or any(address.removeprefix(folder_of(self._manifest())) in names for address in ours):
            remove(self._manifest())

    def _is_same(self, address: str, shard: ShardInfo, found: str) -> bool:
        from wdscli.shards.find import is_shard

        try:
            return found != GONE and is_shard(address, shard, self.settings.form)
        except InputError:
            return False

    def manifest_of(
        self,
        shards: Sequence[ShardInfo],
        *,
        operation: str,
        options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        inputs: Sequence[str | None] = (),
        classes: Sequence[str] | None = None,
    ) -> Manifest:
        """The manifest of these shards. ``options`` are those that shape the result, ``inputs`` the fingerprints of the
        input sets (None for one that has no manifest)."""
        made: dict[str, Any] = {
            "operation": operation,
            "options": shown_in(dict(options or {})),
            "inputs": list(inputs),
        }
        if seed is not None:
            made["seed"] = seed
        return Manifest(
            name=self._name(),
            shards=tuple(map(self._named, range(len(shards)), shards)),
            made=made,
            classes=None if classes is None else tuple(classes),
        )

    def _name(self) -> str:
        if self.pattern.is_stream:
            return ""
        return base_name(self._manifest())[: -len(MANIFEST_SUFFIX)].rstrip("-")

    def _named(self, index: int, shard: ShardInfo) -> ShardInfo:
        """The shard as the manifest names it: by its path from the manifest's folder, which is more than its file name
        when the pattern numbers folders."""
        if self.pattern.is_stream:
            return shard
        name = self.address(index).removeprefix(folder_of(self._manifest()))
        return shard if name == shard.name else replace(shard, name=name)

    def _remove_leftovers(self, count: int) -> None:
        """Shards of the replaced set that the new one does not have, and their indexes."""
        kept = {self.address(index) for index in range(count)}
        for address in self._replaced:
            if address not in kept:
                remove(index_address(address))
                remove(address)


def after_hook(shard: ShardInfo, address: str) -> ShardInfo:
    """A shard with which a hook may have done what it likes: what it has left is its own, and nothing there is no
    reason to complain."""
    found = next(iter(versions_at([address])))
    return replace(shard, version="" if found == GONE else found)


def _place(address: str) -> str:
    """What tells whether two addresses are one file: links followed where they can be."""
    return os.path.realpath(local_path(address)) if is_local(address) else address
