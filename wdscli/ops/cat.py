"""``cat``: the selected samples of a set as one tar stream, in input order.

What it is: :func:`cat`, one pass over the inputs into one archive (the ``stream`` strategy of section 3 of the design).
How: of a seekable input, headers are read some hundred samples at a time, and runs of canonical samples are then copied
as they stand, adjacent ones by large reads; other samples, and all samples of a stream, are written member by member
with canonical headers, which gives the same bytes. A key that comes back is an error, or left out, or renamed.

It must not know about terminals or printing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from wdscli.copy.buffers import clear_padding
from wdscli.copy.preserve import Kept, check_preserve, kept_length, kept_mark, kept_members
from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.look.picking import Page, Picker
from wdscli.model import to_text
from wdscli.plan.cut import END_BYTES
from wdscli.plan.plan import shaping_options
from wdscli.plan.ranges import Globals, cut_short
from wdscli.plan.rekey import DEFAULT, Rekey, shard_stem
from wdscli.plan.repeats import HINT
from wdscli.plan.request import OnDuplicate, Request
from wdscli.plan.scratch import is_read_once
from wdscli.plan.survey import out_length, out_sizes
from wdscli.progress import QUIET, Progress
from wdscli.samples import SampleBatch, iter_batches
from wdscli.samples.keyset import KeySet
from wdscli.selection import Selection
from wdscli.shards.inputs import fingerprint_of
from wdscli.shards.manifest import Manifest
from wdscli.shards.output import OutputSet
from wdscli.shards.shardfile import ShardFile
from wdscli.storage import Source, open_source
from wdscli.tar import GLOBAL

BUFFER = 1 << 18
LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class CatReport:
    """What was written; ``manifest`` is None for a dry run, and was not stored for ``-`` and commands."""

    samples: int
    members: int
    bytes_in: int
    bytes_out: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    manifest: Manifest | None


def cat(
    request: Request, *, preserve: bool = False, dry_run: bool = False, progress: Progress = QUIET
) -> CatReport:
    """Write the selected samples of ``request.inputs`` to ``request.output``, one archive.

    With ``preserve`` the headers of members stay as they are.
    ``cuts`` and ``jobs`` of the request are not used. Raises UsageError, InputError, DataError, OutputError.

    >>> from wdscli.shards import ShardReader, ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"0"})
    >>> report = cat(Request([f"{folder}/in-manifest.json"], f"{folder}/all.tar"))
    >>> report.samples, [sample.key for sample in ShardReader(f"{folder}/all.tar")]
    (5, ['n0', 'n1', 'n2', 'n3', 'n4'])
    """
    if preserve:
        check_preserve(request.selection, request.rekey, request.on_duplicate)
    picker = Picker(
        request.inputs,
        request.selection,
        on_error=request.on_error,
        form=request.settings.form,
        copies_streams=preserve,
        allow_empty=request.allow_empty,
        counts_later=request.on_duplicate == "skip",
        trust_addresses=request.trust_addresses,
        progress=progress,
    )
    output = OutputSet(request.output, request.settings)
    if not output.pattern.single:
        raise UsageError(f"{request.output} names more than one shard, and cat writes one", hint="-o all.tar")
    output.check(picker.set.addresses)
    progress.start("copying", len(picker.set.addresses), "shards")
    keys = _Keys(request.on_duplicate, request.rekey, picker)
    if dry_run:
        return _measure(picker, keys, request, preserve)
    with output.claimed(picker.set.addresses):
        with output.settings.open(output.address(0)) as shard:
            copier, written = _Copier(request.selection, preserve, shard), 0
            for page, chosen in _chosen(picker, keys):
                copier.copy(page, chosen)
                written += len(chosen)
            picker.check_empty(written)
            info = shard.commit()
        progress.finish()
        manifest = output.finish(
            [info],
            operation="cat",
            options=shaping_options(request, preserve),
            inputs=[fingerprint_of(picker.set)],
        )
    return CatReport(
        info.samples, info.members, picker.bytes_in, info.size_bytes, picker.dropped, picker.ignored, manifest
    )


def _chosen(picker: Picker, keys: _Keys) -> Iterator[tuple[Page, list[tuple[int, bytes]]]]:
    """The samples to write, up to the limit: the rows of each page and their keys."""
    left = picker.limit
    for page in picker.pages():
        if left is None:
            yield page, keys.resolve(page)
            continue
        rows = page.rows
        while rows and left:
            some = page._replace(rows=rows[:left])
            chosen = keys.resolve(some)
            rows, left = rows[len(some.rows) :], left - len(chosen)
            yield some, chosen
        if not left:
            picker.stop()


def _measure(picker: Picker, keys: _Keys, request: Request, preserve: bool) -> CatReport:
    """What a dry run would write. Headers alone decide, but where ``--where`` looks into payloads."""
    samples = members = size = 0
    for page, chosen in _chosen(picker, keys):
        for row, key in chosen:
            sizes = out_sizes(page.batch, row, picker.selection, page.source.name, key)
            samples += 1
            members += len(sizes)
            if preserve:
                size += kept_length(_kept(page, row, request.selection, {}))
            else:
                size += out_length(sizes, request.settings.form)
    picker.check_empty(samples)
    return CatReport(
        samples, members, picker.bytes_in, size + END_BYTES, picker.dropped, picker.ignored, None
    )


class _Keys:
    """The policy for keys that come back, and for new keys."""

    def __init__(self, on_duplicate: OnDuplicate, rekey: str | None, picker: Picker) -> None:
        self._policy = on_duplicate
        self._all = Rekey.parse(rekey) if rekey is not None and on_duplicate != "rekey" else None
        self._later = Rekey.parse(rekey or DEFAULT)
        self._seen = KeySet()
        self._picker = picker

    def resolve(self, page: Page) -> list[tuple[int, bytes]]:
        """The rows to write and their keys."""
        batch = page.batch
        keys = [batch.keys[row] for row in page.rows]
        if self._all is not None:
            keys = [self._new(self._all, page, row) for row in page.rows]
        chosen = list(zip(page.rows, keys, strict=True))
        repeated = self._seen.add(keys)
        if not repeated:
            return chosen
        if self._policy == "error":
            raise self._error(page, *chosen[repeated[0]])
        if self._policy == "skip":
            self._picker.drop("duplicate-key", len(repeated))
            gone = set(repeated)
            return [pair for at, pair in enumerate(chosen) if at not in gone]
        for at in repeated:
            row = page.rows[at]
            chosen[at] = row, self._new(self._later, page, row)
            if self._seen.add([chosen[at][1]]):
                raise self._error(page, *chosen[at])
        return chosen

    def _new(self, rekey: Rekey, page: Page, row: int) -> bytes:
        return rekey.key(page.batch.keys[row], shard_stem(page.source.name), page.batch.index + row)

    def _error(self, page: Page, row: int, key: bytes) -> DataError:
        first = None if self._all is not None else self._first_place(key)
        before = "" if first is None else f" (first: sample {first[1]} of {first[0]})"
        return DataError(
            f'key "{to_text(key)}" a second time{before}',
            code="duplicate-key",
            shard=page.source.name,
            offset=page.batch.start(row),
            hint=HINT,
        )

    def _first_place(self, key: bytes) -> tuple[str, int] | None:
        """Shard and place of the first sample of a key, where all that was read can be read again."""
        if not self._picker.selection.is_trivial:
            return None
        with suppress(WdsError):
            for address in self._picker.set.addresses:
                if is_read_once(address):
                    return None
                with open_source(address) as source:
                    for batch in iter_batches(source, lenient=True):
                        if key in batch.keys:
                            return address, batch.index + batch.keys.index(key)
        return None


def _kept(page: Page, row: int, selection: Selection, known: dict[str, Globals]) -> Iterator[Kept]:
    """The members of one sample with their own headers. ``known`` remembers the global headers of the current input."""
    before = None
    if page.batch.marks[row] & GLOBAL:
        if page.source.name not in known:
            known.clear()
            known[page.source.name] = Globals(page.source)
        before = known[page.source.name].before(page.batch.start(row))
    return kept_members(page.source, page.batch, row, selection, before)


class _Copier:
    """Samples of pages into one shard."""

    def __init__(self, selection: Selection, preserve: bool, shard: ShardFile) -> None:
        self._shard = shard
        self._preserve = preserve
        self._globals: dict[str, Globals] = {}
        self._selection = selection
        self._is_plain = not selection.changes_members
        self._buffer = memoryview(bytearray(BUFFER))

    def copy(self, page: Page, chosen: Sequence[tuple[int, bytes]]) -> None:
        """Write the chosen rows of a page under their keys."""
        if not page.source.seekable or not self._is_plain:
            for row, key in chosen:
                self._write(page, row, key)
            return
        for first, end in self._runs(page, chosen):
            if end > first:
                self._copy_run(page, chosen[first][0], chosen[end - 1][0] + 1)
            else:
                self._write(page, *chosen[first])

    def _runs(self, page: Page, chosen: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, int]]:
        """Stretches (first, end) of ``chosen`` that lie side by side and are canonical; (at, at) for one sample that is
        not, or gets another key."""
        batch = page.batch
        marks, keys = self._marks(batch), batch.keys
        if len(chosen) == len(keys) and not any(marks) and all(key is keys[row] for row, key in chosen):
            length = _run_bytes(batch.starts, batch.offsets, batch.sizes)
            if batch.end(len(keys) - 1) - batch.start(0) == length:
                yield 0, len(chosen)
                return
        first = at = 0
        while at < len(chosen):
            row, key = chosen[at]
            if marks[row] or key is not keys[row]:
                yield at, at
                at += 1
                continue
            first = at
            at += 1
            while at < len(chosen) and self._continues(page, marks, chosen[at - 1][0], *chosen[at]):
                at += 1
            yield first, at

    def _marks(self, batch: SampleBatch) -> list[int]:
        """What keeps samples from being copied as they stand; headers that are to be kept do not."""
        if not self._preserve:
            return batch.marks
        return [kept_mark(mark) for mark in batch.marks]

    def _continues(self, page: Page, marks: list[int], before: int, row: int, key: bytes) -> bool:
        batch = page.batch
        return (
            row == before + 1
            and not marks[row]
            and key is batch.keys[row]
            and batch.end(before) == batch.start(row)
        )

    def _copy_run(self, page: Page, first: int, end: int) -> None:
        """Samples ``first`` to ``end`` of the batch, which lie side by side, as they stand."""
        batch = page.batch if (first, end) == (0, len(page.batch.keys)) else page.batch.part(first, end)
        start, stop = batch.start(0), batch.end(len(batch.keys) - 1)
        shift = self._shard.position - start
        member = 0
        for view in _pieces(page.source, start, stop, self._buffer):
            at = self._shard.position - shift
            if not self._preserve:
                member = clear_padding(view, at, batch.offsets, batch.sizes, member)
            self._shard.write_blocks(view)
            self._shard.flush()
        if shift:
            batch = batch._replace(
                starts=[at + shift for at in batch.starts], offsets=[at + shift for at in batch.offsets]
            )
        self._shard.announce(batch)

    def _write(self, page: Page, row: int, key: bytes) -> None:
        """One sample member by member."""
        batch, source = page.batch, page.source
        if self._preserve:
            self._shard.write_kept(key, _kept(page, row, self._selection, self._globals))
            return
        first = batch.firsts[row]
        plan = self._selection.plan_of(batch, row, source.name)
        if batch.end(row) - batch.start(row) > LARGE:
            self._shard.write_pieces(
                key, [(field, batch.sizes[first + at], page.pieces(first + at)) for at, field in plan]
            )
        else:
            self._shard.write(key, [(field, page.payload(first + at)) for at, field in plan])


def _run_bytes(starts: list[int], offsets: list[int], sizes: list[int]) -> int:
    """Bytes that members take when nothing lies between them."""
    return sum(offsets) - sum(starts) + sum([size + 511 & -512 for size in sizes])


def _pieces(source: Source, start: int, stop: int, buffer: memoryview) -> Iterator[memoryview]:
    """A range of a source, piece by piece, by way of one buffer."""
    while start < stop:
        length = min(len(buffer), stop - start)
        if source.fd is None:
            data = source.read_at(start, length)
            done = len(data)
            buffer[:done] = data
        else:
            try:
                done = os.preadv(source.fd, [buffer[:length]], start)
            except OSError as error:
                raise InputError(f"cannot read {source.name}: {error.strerror}") from error
        if not done:
            raise cut_short(source.name, start)
        yield buffer[:done]
        start += done
