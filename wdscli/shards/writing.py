"""This module writes the output of a command: first the shards, one after the other, and last the manifest.

:class:`ShardFile` writes one shard. :class:`OutputSet` knows the names and rules of a whole set.

One method hashes and writes all bytes of a shard while they are in the processor's cache. The index of a compressed
shard describes the decompressed tar. :meth:`ShardFile.commit` publishes the shard, then its index. If an old set is
replaced, its manifest is removed first, so that no manifest ever lists shards of two runs. At the end, a check proves
that all shards are from this run. Then the manifest is written, and unused shards of the old set are removed. Until
then, a file next to the shards marks the set as unfinished (:mod:`~wdscli.shards.locks`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from wdscli.arrays import SampleArrays
from wdscli.codecs.handlers import whole_names
from wdscli.errors import DataError, InputError, OutputError, OutputExistsError, UsageError, WdsError
from wdscli.model import PendingCommit, ShardInfo
from wdscli.samples import new_batch
from wdscli.samples.reading import keep_heap
from wdscli.selection.values import SampleNumbers
from wdscli.shards.index import Index, IndexBuilder, index_address
from wdscli.shards.inputs import MANIFEST_SUFFIX, read_manifest
from wdscli.shards.locks import (
    FOLDER,
    SUFFIX,
    Change,
    OutputLock,
    StateFile,
    Ticket,
    UnfinishedSet,
    lock_address,
    remove_abandoned,
    remove_receipts,
    state_address,
)
from wdscli.shards.manifest import Manifest, Provenance, Standing
from wdscli.shards.reading import Digest, index_batches, is_shard, new_digest, written
from wdscli.shown import shown_in
from wdscli.storage import (
    OutputPattern,
    Sink,
    base_name,
    check_place,
    exists,
    folder_of,
    is_local,
    is_stream,
    open_sink,
    remove,
)
from wdscli.storage.addresses import local_path
from wdscli.storage.blocks import WITH_BLOCKS, kind_of_name, packer_for
from wdscli.storage.kinds import note_of
from wdscli.storage.opening import GONE, abort_uploads, current_versions, do_together, is_device
from wdscli.tar import CANONICAL, Form, TarWriter, padding
from wdscli.tar.crc import StoreDigest, with_md5
from wdscli.text import to_text
from wdscli.threads import WriteBehind

WRITE_BEHIND_BYTES = 1 << 19
"""Smaller buffers are not worth a thread."""
Payload = bytes | bytearray | memoryview
Witness = Callable[[str, ShardInfo, str], None]
"""A function that is called for each complete shard, before it gets its name. Its arguments are the address, the facts,
and the XXH3-64 of the index ("" without an index)."""


class ShardSettings(NamedTuple):
    """The settings for writing shards, which are sent to tasks in other processes. With ``with_index``, each shard gets
    an index. ``witness`` is called for each shard. The outputs ``-``, ``pipe:`` and devices have neither. ``ticket``
    identifies the folder of the run. ``values`` are the normal names of the values stored in indexes. ``links`` allows
    hard links to unchanged files."""

    form: Form = CANONICAL
    checksum: str = "xxh3_128"
    with_index: bool = True
    force: bool = False
    fsync: bool = False
    witness: Witness | None = None
    ticket: Ticket | None = None
    values: Sequence[str] = ()
    links: bool = False

    def check_folder(self, address: str) -> None:
        """Raise OutputError if the folder of a shard was replaced since the run began."""
        if self.ticket is not None:
            self.ticket.check(address)

    def open(self, address: str) -> ShardFile:
        """Open a new shard at ``address``."""
        return ShardFile(address, self)


def _hash_and_write(digests: Sequence[Digest | StoreDigest], sink: Sink, data: Payload) -> None:
    for digest in digests:
        digest.update(data)
    sink.write(data)


class ShardFile:
    """Writes one shard to ``address``. Call :meth:`commit` or :meth:`end` last. If it is used as a context manager, an
    unfinished shard is removed.

    If ``sink`` is given, the bytes are written to it, with the compression ``kind``, and ``address`` is only a name.
    Raises OutputError, OutputExistsError.

    >>> folder = getfixture("tmp_path")
    >>> with ShardFile(str(folder / "a.tar")) as shard:
    ...     shard.write(b"cat1", [(b"cls", b"0"), (b"jpg", b"...")])
    ...     info = shard.commit()
    >>> info.samples, info.size_bytes, sorted(path.name for path in folder.iterdir())
    (1, 3072, ['.wds', 'a.tar'])
    """

    is_ended = False

    def __init__(
        self,
        address: str,
        settings: ShardSettings | None = None,
        sink: Sink | None = None,
        kind: str | None = None,
    ) -> None:
        self.address = address
        self._settings = settings = settings or ShardSettings()
        self.form = settings.form
        settings.check_folder(address)
        self._has_place = sink is None and not (is_stream(address) or is_device(address))
        """Whether it can have an index and a receipt."""
        kind = kind if sink else kind_of_name(address)
        self._with_index = settings.with_index and self._has_place and kind in (None, *WITH_BLOCKS)
        self._digest = new_digest(settings.checksum)
        self._sink = sink or open_sink(
            address,
            force=settings.force,
            fsync=settings.fsync,
            packed=kind is not None,
            at_leisure=settings.witness is not None,  # a run checks all names before it begins
        )
        if self._sink.waits:
            keep_heap()  # the sink copies parts, and frees them when they are sent
        self._crcs = StoreDigest() if self._with_index and kind is None else None
        digests = [each for each in (self._digest, self._crcs) if each is not None]
        put = partial(_hash_and_write, digests, self._sink)
        try:
            self._packer = None if kind is None else packer_for(kind, put)
        except BaseException:
            self._sink.discard()
            raise
        self._behind = WriteBehind(self._packer.write if self._packer else put)
        self._tar = TarWriter(self._behind, settings.form)
        self.index = IndexBuilder()
        self.numbers = SampleNumbers(settings.values if self._with_index else ())
        self._value_fields = whole_names(self.numbers.payload_fields)
        self.ignored: dict[str, int] = {}
        self._checksums: Mapping[str, str] = {}

    @property
    def position(self) -> int:
        """The number of bytes of the shard so far, without the end of archive."""
        return self._tar.position

    @property
    def samples(self) -> int:
        return self.index.samples

    def write(self, key: bytes, fields: Sequence[tuple[bytes, Payload]]) -> None:
        """Write one sample. The caller must have checked ``key`` and field names (:func:`~wdscli.samples.check_name`).
        If a value of the sample cannot be computed, raises DataError before the sample is written."""
        if self.numbers.names:
            self.numbers.add_fields(key, fields, self.address)
        start = self._tar.position
        self._tar.add_all(key + b".", fields, self.index.places)
        self.index.end_sample(key, start)

    def spare(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes, to be filled for :meth:`write_arrays`."""
        return self._behind.spare(size)

    def write_arrays(self, data: memoryview, samples: SampleArrays) -> None:
        """Write complete canonical samples, which are in the buffer of :meth:`spare`. Their places count from the first
        byte of ``data``. A second thread writes large buffers to a file, because this cannot wait for other
        machines."""
        shift = self._tar.position
        if len(data) < WRITE_BEHIND_BYTES or self._sink.fd is None:
            self._tar.raw(data)
        else:
            self._tar.skip(len(data))
            self._behind.lend(data)
        self.index.add_arrays(samples, shift)

    def write_pieces(self, key: bytes, fields: Iterable[tuple[bytes, int, Iterable[Payload]]]) -> None:
        """Write one sample with payloads in pieces: (field, length in bytes, pieces). Raises DataError if a payload has
        another length, and for a value of the sample that cannot be computed."""
        tar, start = self._tar, self._tar.position
        batch, payloads = new_batch(), dict[bytes, bytes]()
        for field, size, pieces in fields:
            name = key + b"." + field
            if field in self._value_fields:
                payloads[field] = b"".join(pieces)
                pieces = [payloads[field]]
            batch.starts.append(tar.position)
            tar.begin(name, size)
            offset = tar.position
            for piece in pieces:
                tar.raw(piece)
            if tar.position != offset + size:
                raise DataError(
                    f"the payload has {tar.position - offset} bytes instead of {size}",
                    code="changed",
                    member=to_text(name),
                )
            tar.raw(padding(size))
            batch.fields.append(field)
            batch.offsets.append(offset)
            batch.sizes.append(size)
        if not batch.fields:
            raise DataError("the sample has no members", code="changed", member=to_text(key), offset=start)
        batch.keys.append(key)
        batch.firsts.append(len(batch.fields))
        batch.marks.append(0)
        self.index.add_batch(batch)
        if self.numbers.names:
            self.numbers.add_batch(batch, self.address, lambda _, field: payloads[field])

    def flush(self) -> None:
        """Write all buffered bytes. An output that cannot be discarded then ends with complete samples."""
        self._tar.flush()
        self._behind.wait()
        self._sink.flush()

    def commit(self) -> ShardInfo:
        """End the archive, and publish the shard, then its index."""
        return self.end().result()

    def end(self) -> PendingCommit[ShardInfo]:
        """End the archive. A call of the returned commit publishes it; without the call, nothing remains."""
        with self._in_folder():
            self._tar.close()
            self._behind.close()
            if self._packer is not None:
                self._packer.finish()
            self._settings.check_folder(self.address)
            return self._ending(self._info(self._tar.position))

    @contextmanager
    def _in_folder(self) -> Iterator[None]:
        try:
            yield
        except OutputError:
            self._settings.check_folder(self.address)  # this check has a better message for a removed folder
            raise

    def commit_copy(self, address: str, version: str, index: Index, checksum: str | None) -> ShardInfo:
        """Let the store publish a copy of a version of the shard at ``address``, or publish a link. After NotCopied,
        nothing is published, and this object cannot be used."""
        self._sink.copy_of(address, version, index.size)
        for batch in index_batches(index):
            self.index.add_batch(batch)
        self.index.values, self._checksums = index.numbers, index.checksums
        self._settings.check_folder(self.address)
        return self._ending(replace(self._info(index.size), checksum=checksum, is_copy=True)).result()

    def _ending(self, info: ShardInfo) -> PendingCommit[ShardInfo]:
        index, seal = None, ""
        if self._with_index:
            # If a user deleted a shard, its index may still exist. Existing shards are checked elsewhere.
            index = open_sink(index_address(self.address), force=True, fsync=self._settings.fsync)
            try:
                seal = self._write_index(index, info)
            except BaseException:
                index.discard()
                raise
        sinks = [self._sink, *([] if index is None else [index])]

        def discard() -> None:
            for sink in sinks:
                sink.discard()

        def commit() -> ShardInfo:
            try:
                with self._in_folder():
                    self._take_name(info, seal, index)
            except BaseException:
                discard()
                raise
            return replace(info, version=self._sink.version)

        self.is_ended = True
        return PendingCommit(commit, discard, self._sink.waits, sum(sink.held_bytes for sink in sinks))

    def _take_name(self, info: ShardInfo, index_seal: str, index: Sink | None = None) -> None:
        """Call the witness, publish the shard, and then its index. Independent requests run at the same time."""
        self._sink.check_free()
        witness = self._settings.witness if self._has_place else None
        before: list[Callable[[], None]] = []
        if witness is not None:
            before.append(partial(witness, self.address, info, index_seal))
        if self._settings.force and self._has_place:
            # Remove the index of the replaced shard, because it would be stale.
            before.append(partial(remove, index_address(self.address)))
        do_together(self.address, before)
        self._sink.commit()
        after: list[Callable[[], None]] = []
        if witness is not None and self._sink.version and not is_local(self.address):
            # Later, the version identifies the shard without reading it.
            versioned = replace(info, version=self._sink.version)
            after.append(partial(witness, self.address, versioned, index_seal))
        if index is not None:
            if self._sink.stored_version:
                index.note = note_of(self._sink.stored_version, info.checksum)
            after.append(index.commit)
        do_together(self.address, after)

    def _write_index(self, sink: Sink, info: ShardInfo) -> str:
        """Write the index in pieces, because it may be large. Return the XXH3-64 of its bytes."""
        from xxhash import xxh3_64

        seal = xxh3_64()
        self.index.values = self.index.values or self.numbers.numbers()
        if self._crcs is not None:
            self._checksums = self._checksums or self._crcs.checksums()
        for piece in self.index.pieces(
            shard=base_name(self.address),
            size=info.tar_bytes,
            form=self.form,
            ignored=self.ignored,
            checksums=self._checksums if self._packer else with_md5(self._checksums, info.checksum),
        ):
            seal.update(piece)
            sink.write(piece)
        return seal.hexdigest()

    def _info(self, size: int) -> ShardInfo:
        return self.index.facts().of_shard(
            base_name(self.address),
            size if self._packer is None else self._sink.written,
            checksum=written(self._settings.checksum, self._digest),
            index=self._with_index,
            tar_bytes=size,
        )

    def discard(self) -> None:
        """Remove an unfinished shard. Do nothing after :meth:`commit` and :meth:`end`."""
        if not self.is_ended:
            self._behind.stop()
            self._sink.discard()

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


class OutputSet:
    """The output of one command, with a pattern for its shards. If ``names`` is given, each of them replaces ``{name}``
    in turn. ``settings`` apply to every shard. With ``standing``, the shards are appended to an existing set. ``part``
    is the name of this part of an output. Raises UsageError for an invalid pattern or checksum.

    Call :meth:`begin` once before the first shard, and :meth:`finish` once after the last commit. The output lock must
    be held during both. :meth:`claimed` takes the lock and calls :meth:`begin`. :meth:`hold` uses a lock that covers
    several sets.
    """

    def __init__(
        self,
        pattern: str,
        settings: ShardSettings | None = None,
        *,
        names: Sequence[str] | None = None,
        standing: Standing | None = None,
        part: str = "",
    ) -> None:
        self.part = part
        self.pattern = (
            OutputPattern.parse(pattern) if names is None else OutputPattern.of_names(pattern, names)
        )
        self.settings = settings or ShardSettings()
        self.standing = standing
        new_digest(self.settings.checksum)
        self.there: list[str] | None = None
        """The existing shards, set by :meth:`check`; None before it."""
        self.has_manifest: bool | None = None
        """Whether a manifest existed, set by :meth:`check`; None before it."""
        self.state = StateFile("" if self.pattern.is_stream else state_address(self._manifest()))
        self._claim = OutputLock()

    @contextmanager
    def claimed(self, inputs: Iterable[str] = ()) -> Iterator[None]:
        """Hold the output lock until the block ends. Raises the errors of :meth:`begin`, and OutputError if another run
        holds the lock."""
        self.claim(inputs)
        try:
            yield
        finally:
            self.release()

    def claim(self, inputs: Iterable[str] = (), options: Mapping[str, Any] | None = None) -> None:
        """Take the lock like :meth:`claimed`, for callers without a ``with`` block. :meth:`release` releases the
        lock."""
        self.hold(OutputLock.take(lock_address(self.pattern.text)))
        try:
            self.begin(inputs, options=options)
        except BaseException:
            self.release()
            raise

    def hold(self, claim: OutputLock) -> None:
        """Use a lock that the caller holds and releases."""
        self._claim = claim
        self.settings = self.settings._replace(ticket=claim.ticket)

    def check_claim(self, address: str) -> None:
        """Raise OutputError if this run no longer holds the output lock."""
        self._claim.check(address)

    def release(self) -> None:
        """Release the output lock. A second call does nothing."""
        self.withdraw()
        self._claim.release()

    @property
    def manifest_address(self) -> str | None:
        """The address of the manifest. It is None for ``-`` and commands."""
        return None if self.pattern.is_stream else self.pattern.prefix_address(MANIFEST_SUFFIX)

    def check(self, inputs: Iterable[str] = (), *, may_exist: bool = False) -> None:
        """Raise OutputExistsError if a shard or manifest with these names exists and must not be replaced. Raise
        UsageError if an output is also an input. Nothing is written. ``may_exist`` allows existing output, because the
        run may resume."""
        if self.pattern.is_stream:
            return
        check_place(self._manifest())
        self.there = self.existing()
        self.has_manifest = self.standing is None and exists(self._manifest())
        existing = [*self.there, *([self._manifest()] if self.has_manifest else [])]
        # A single name without a number may be a folder. Then check_place gives the better error.
        if existing and is_local(existing[0]) and self.pattern.number_of(existing[0]) is None:
            check_place(existing[0])
        self.pattern.check_name()
        taken = {_place(address) for address in existing}
        for address in inputs if taken else ():
            if _place(address) in taken:
                raise UsageError(
                    f"{address} would be both an input and an output", hint="choose another output name"
                )
        if existing and not self.settings.force and not may_exist:
            suffix = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
            raise OutputExistsError(f"output exists: {existing[0]}{suffix}", hint=self._way_out())

    def existing(self) -> list[str]:
        """Return the existing shards with names of this output. If shards are appended to a set, the old shards are
        left out."""
        addresses = self.pattern.existing()
        if self.standing is not None:
            first = self.standing.first
            addresses = [address for address in addresses if (self.pattern.number_of(address) or 0) >= first]
        return addresses

    def _way_out(self) -> str:
        """Return the hint for existing output, which an interrupted run may have left."""
        if (state := self.state.read()) is not None and state.run:
            return "an unfinished run left it: continue with --resume, or replace it with --force"
        if self.standing is not None:
            return "the manifest does not list it: write a new one with `wds index`, or replace the shard with --force"
        return "choose another name, replace it with --force, or add to it with wds create --append"

    def begin(
        self, inputs: Iterable[str] = (), run: str = "", options: Mapping[str, Any] | None = None
    ) -> None:
        """Call :meth:`check`, then remove the manifest of a replaced set and the remains of killed runs."""
        self.check(inputs)
        self.declare(run, options)
        if self.settings.force and not self.pattern.is_stream:
            if self.standing is None:
                remove(self._manifest())
            if self.there:
                remove_receipts([*self.there, self._manifest()], self._is_own)
        self.remove_abandoned()

    def declare(
        self, run: str = "", options: Mapping[str, Any] | None = None, *, replaces: bool = False
    ) -> None:
        """Mark the set as unfinished. ``replaces`` means that shards will be replaced without ``force``. If the run can
        resume, ``run`` identifies it, and ``options`` are its options."""
        if self.pattern.single and not run:
            self.state = StateFile("")  # a single file is replaced atomically, and its run cannot resume
        change: Change = "new"
        first = 0 if self.standing is None else self.standing.first
        if self.standing is not None:
            change = "append"
        elif replaces or (self.settings.force and (self.existing() if self.there is None else self.there)):
            change = "replace"
        how = (self.pattern.text, first, run, self._claim.path, shown_in(dict(options or {})))
        self.state.begin(UnfinishedSet(self.state.address, change, *how), fsync=self.settings.fsync)

    def withdraw(self) -> None:
        """After a failed run, remove the mark of a new set without shards."""
        is_ours = self._claim.path or not is_local(self.state.address)
        if self.state.is_of_new_shards and is_ours and not self.existing():
            self.state.end()

    def tidy(self, addresses: Sequence[str]) -> None:
        """Remove the files that only an unfinished set of these shards needs. :meth:`finish` does this after the
        manifest is written."""
        if (state := self.state.read()) is not None:
            if state.change == "replace":
                self._remove_leftovers(len(addresses))
            self.state.end()
        remove_receipts([*addresses, self._manifest()], self._is_own)

    def remove_abandoned(self) -> None:
        """Remove temporary files of this output that remain from killed runs."""
        if self.pattern.is_stream or not is_local(self._manifest()):
            return
        folder = folder_of(self._manifest())
        remove_abandoned(folder, lambda name: self._is_own(folder + name))

    def _is_own(self, address: str) -> bool:
        """Return whether an address is the manifest, the state, a shard or an index of this set."""
        folder, name = folder_of(address), base_name(address)
        if folder.endswith(f"{FOLDER}/") and name.endswith(SUFFIX):
            address = folder.removesuffix(f"{FOLDER}/") + name.removesuffix(SUFFIX)
        manifest = self._manifest()
        return address in (manifest, state_address(manifest)) or self.pattern.could_name(address)

    def address(self, index: int) -> str:
        """Return the address of shard ``index``."""
        return self.pattern.address(index + (0 if self.standing is None else self.standing.first))

    def _manifest(self) -> str:
        return self.pattern.prefix_address(MANIFEST_SUFFIX)

    def finish(self, shards: Sequence[ShardInfo], **provenance: Any) -> Manifest:
        """Write :meth:`manifest_of` the shards, then remove the rest of a replaced set. Raises OutputError if another
        program has replaced or removed a shard."""
        manifest = self.manifest_of(shards, Provenance(**provenance))
        if not self.pattern.is_stream:
            self._check_own(shards)
            self._check_standing()
            force = self.settings.force or self.standing is not None
            with open_sink(self._manifest(), force=force, fsync=self.settings.fsync) as sink:
                sink.write(manifest.to_json().encode("ascii"))
            self._remove_leftovers(len(shards))
            self.state.end()
            abort_uploads(folder_of(self._manifest()), self._is_own)
        return manifest

    def _check_standing(self) -> None:
        """Raise OutputError if the set was changed while shards were appended to it."""
        if self.standing is None:
            return
        try:
            fingerprint = read_manifest(self._manifest()).fingerprint
        except WdsError:
            fingerprint = ""
        if fingerprint != self.standing.manifest.fingerprint:
            raise OutputError(
                f"{self._manifest()} was changed by another program during this run",
                hint="the new shards exist, but the manifest does not list them; run the command again with --force",
            )

    def _check_own(self, shards: Sequence[ShardInfo]) -> None:
        """Raise OutputError unless every shard has the bytes that this run wrote. A replaced shard is read and
        compared, because another run of the same plan writes the same bytes."""
        self.check_claim(self._manifest())
        pairs = [(self.address(number), shard) for number, shard in enumerate(shards) if shard.version]
        replaced = []
        for (address, shard), version in zip(pairs, current_versions([address for address, _ in pairs])):
            if version not in ("", shard.version) and not self._is_same(address, shard, version):
                replaced.append(address)
        if not replaced:
            return
        self._remove_lies({address for address, _ in pairs} - set(replaced))
        suffix = f" (and {len(replaced) - 1} more)" if len(replaced) > 1 else ""
        raise OutputError(
            f"{replaced[0]}{suffix} was replaced or removed by another program during this run",
            hint="no manifest was written; stop other programs that write there; all workers must share the folder",
        )

    def _remove_lies(self, ours: set[str]) -> None:
        """Remove another run's manifest if it lists shards of this run."""
        if self.standing is not None:
            return
        try:
            names = {shard.name for shard in read_manifest(self._manifest()).shards}
        except InputError:
            return
        except DataError:
            names = set()
        if not names or any(address.removeprefix(folder_of(self._manifest())) in names for address in ours):
            remove(self._manifest())

    def _is_same(self, address: str, shard: ShardInfo, version: str) -> bool:
        with suppress(InputError):
            return version != GONE and is_shard(address, shard, self.settings.form)
        return False

    def manifest_of(self, shards: Sequence[ShardInfo], origin: Provenance) -> Manifest:
        """Return the manifest of these shards."""
        facts = origin.facts()
        if origin.stamp is not None:
            facts |= {"stamp": origin.stamp, **({"parts": list(origin.parts)} if origin.parts else {})}
        named = tuple(map(self._named, range(len(shards)), shards))
        classes = None if origin.classes is None else tuple(origin.classes)
        stem = "" if self.pattern.is_stream else base_name(self._manifest())[: -len(MANIFEST_SUFFIX)]
        manifest = Manifest(stem.rstrip("-"), named, facts, classes)
        return manifest if self.standing is None else self.standing.followed_by(manifest, origin.plan)

    def _named(self, index: int, shard: ShardInfo) -> ShardInfo:
        """Return the shard with its path relative to the manifest's folder, because the pattern may number folders."""
        if self.pattern.is_stream:
            return shard
        return replace(shard, name=self.address(index).removeprefix(folder_of(self._manifest())))

    def _remove_leftovers(self, count: int) -> None:
        """Remove the shards of the replaced set that are not in the new set, and their indexes."""
        kept = {self.address(index) for index in range(count)}
        for address in self.there or ():
            if address not in kept:
                remove(index_address(address))
                remove(address)


def _place(address: str) -> str:
    """Return an address that is equal for all names of the same file. Local symlinks are resolved."""
    return os.path.realpath(local_path(address)) if is_local(address) else address
