"""``cat``: the selected samples of a set as one tar stream, in input order.

What it is: :func:`cat`, one pass over the inputs into one archive (the ``stream`` strategy).
How: of a seekable input, headers are read some hundred samples at a time, and runs of samples that need no more than
canonical headers are then copied by large reads; other samples, and all samples of a stream, are written member by
member with canonical headers, which gives the same bytes. A key that comes back is an error, or left out, or renamed.

It must not know about terminals or printing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from wdscli.arrays import numpy
from wdscli.copy.buffers import clear_padding, fill, packed
from wdscli.copy.preserve import Kept, check_preserve, kept_length, kept_mark, kept_members
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.executors import make_executor, run_shard_tasks, useful_shard_jobs
from wdscli.look.picking import Page, Picker
from wdscli.model import ShardInfo, to_text
from wdscli.plan.cut import END_BYTES, names_of
from wdscli.plan.duplicates import HINT
from wdscli.plan.inputs import Globals, cut_short, is_of_this_process, is_ours_alone, is_read_once
from wdscli.plan.names import DEFAULT, Rekey, check_names, is_suspect, shard_stem
from wdscli.plan.plan import shaping_options, sum_counts
from wdscli.plan.request import OnDuplicate, Request
from wdscli.plan.strategy import check_post
from wdscli.plan.survey import out_length, out_sizes
from wdscli.progress import QUIET, NullProgress, Progress
from wdscli.run.post_hook import run_post
from wdscli.samples import SampleBatch, iter_batches
from wdscli.samples.keyset import KeySet
from wdscli.samples.memory import keep_heap
from wdscli.selection import Selection
from wdscli.shards.index import Index
from wdscli.shards.inputs import (
    ShardSet,
    classes_of,
    fingerprint_of,
    missing_samples,
    say_missing,
    warn_unfinished,
    whole_set,
)
from wdscli.shards.manifest import Manifest
from wdscli.shards.moving import copied, find_original
from wdscli.shards.reading import index_batches
from wdscli.shards.writing import OutputSet, ShardFile
from wdscli.storage import Source, open_source
from wdscli.storage.patterns import NAME
from wdscli.tar import FOREIGN, GLOBAL, core

COPY_BUFFER_BYTES = 1 << 22
WORTH_COPYING_BYTES = 8 << 20
"""Below this many bytes of input, starting processes costs more than they bring: most of the work is compressing."""
LARGE_SAMPLE_BYTES = 1 << 20
"""A sample of more bytes is written piece by piece."""


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

    With ``preserve`` the headers of members stay as they are. Where ``request.output`` has ``{name}``, each input is
    written to a shard of its own, under its own name without suffixes: whole, by ``jobs`` processes.
    ``post`` of the request runs for each shard that has its name. ``cuts`` are not used, nor ``jobs`` of one archive.
    Raises UsageError, InputError, DataError, OutputError, EngineError.

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
    if NAME in request.output:
        return _cat_each(request, preserve, dry_run, progress)
    later = request.on_duplicate == "skip"
    picker = Picker(request, copies_streams=preserve, counts_later=later, progress=progress)
    output = OutputSet(request.output, request.settings)
    if not output.pattern.single:
        raise UsageError(f"{request.output} names more than one shard, and cat writes one", hint="-o all.tar")
    check_post(request.post, request.output, is_stream=output.pattern.is_stream)
    output.check(picker.set.addresses)
    picker.start("copying")
    keys = _Keys(request.on_duplicate, request.rekey, picker)
    if dry_run:
        return _report([_measure(picker, keys, request, preserve)])
    with output.claimed(picker.set.addresses):
        with output.settings.open(output.address(0)) as shard:
            _copy(picker, keys, request, preserve, shard)
            picker.check_empty(shard.samples)
            info = shard.commit()
        info = run_post(request.post, output.address(0), info)
        progress.finish()
        return _finish(output, [_Copied.of(info, picker)], request, preserve, picker.set)


def _copy(picker: Picker, keys: _Keys, request: Request, preserve: bool, shard: ShardFile) -> None:
    """All samples to one shard."""
    keep_heap()
    copier = _Copier(request.selection, preserve, shard)
    begin = None
    if core.CORE is not None and picker.takes_all and not preserve and keys.may_be_kept:
        begin = partial(copier.copy_usual, keys)
    try:
        for page, chosen in _chosen(picker, keys, begin):
            copier.copy(page, chosen)
    except DataError:
        shard.hand_on()
        raise


class CopyTask(NamedTuple):
    """One input, which is the request's only one, and the address of the shard that it becomes; None for a dry run."""

    request: Request
    preserve: bool
    output: str | None


class _Copied(NamedTuple):
    """What came of inputs that became one shard: the shard, the bytes that were read, samples and members that were
    left out by reason, and what the reader warned of."""

    info: ShardInfo
    bytes_in: int
    dropped: Mapping[str, int] = {}
    ignored: Mapping[str, int] = {}
    warnings: Sequence[str] = ()

    @classmethod
    def of(cls, info: ShardInfo, picker: Picker, warnings: Sequence[str] = ()) -> _Copied:
        return cls(info, picker.bytes_in, picker.dropped, picker.ignored, warnings)


def _finish(
    output: OutputSet, done: Sequence[_Copied], request: Request, preserve: bool, shards: ShardSet
) -> CatReport:
    """Write the manifest of what was copied from a set."""
    manifest = output.finish(
        [one.info for one in done],
        operation="cat",
        options=shaping_options(request, preserve),
        inputs=[fingerprint_of(shards)],
        classes=classes_of(shards),
    )
    return _report(done, manifest)


def _report(done: Sequence[_Copied], manifest: Manifest | None = None) -> CatReport:
    return CatReport(
        samples=sum(one.info.samples for one in done),
        members=sum(one.info.members for one in done),
        bytes_in=sum(one.bytes_in for one in done),
        bytes_out=sum(one.info.size_bytes for one in done),
        dropped=sum_counts([one.dropped for one in done]),
        ignored=sum_counts([one.ignored for one in done]),
        manifest=manifest,
    )


class _Warnings(NullProgress):
    """Keeps what is to be said where the user is."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, message: str) -> None:
        self.said.append(message)


def copy_shard(task: CopyTask) -> _Copied:
    """The task: one input, whole, as a shard of its own."""
    request, warnings = task.request, _Warnings()
    if task.output is not None and (moved := _by_store(task, task.output)) is not None:
        return moved
    picker = Picker(request, copies_streams=task.preserve, progress=warnings)
    keys = _Keys(request.on_duplicate, None, picker)
    if task.output is None:
        return _measure(picker, keys, request, task.preserve)._replace(warnings=warnings.said)
    with request.settings.open(task.output) as shard:
        _copy(picker, keys, request, task.preserve, shard)
        info = shard.commit()
    return _Copied.of(run_post(request.post, task.output, info), picker, warnings.said)


def _by_store(task: CopyTask, output: str) -> _Copied | None:
    """What comes of an input that the store itself copies."""
    request = task.request
    [address] = request.inputs
    index = None
    if not task.preserve and request.on_error == "stop" and request.use_index:
        index = find_original(address, output, request.settings)
    if index is None or not _is_sound(index, address):
        return None
    info = copied(address, index, output, request.settings)
    if info is None:
        return None
    info = run_post(request.post, output, info)
    return _Copied(info, info.size_bytes)


def _is_sound(index: Index, address: str) -> bool:
    """Whether nothing is wrong with the names that an index tells."""
    keys = KeySet()
    for batch in index_batches(index):
        check_names(batch, address)
        if not keys.add_new(batch.keys):
            return False
    return True


def _cat_each(request: Request, preserve: bool, dry_run: bool, progress: Progress) -> CatReport:
    """Each input to a shard of its own."""
    if not request.selection.is_trivial or request.rekey is not None or request.on_duplicate != "error":
        raise UsageError(
            f"{NAME} in -o copies whole shards, and no selection or new keys go with it",
            hint="choose first: wds cat OPTIONS SHARDS -o all.tar, or wds split OPTIONS SHARDS -o out-%06d.tar",
        )
    found = whole_set(request.inputs, request.on_error, trust_addresses=request.trust_addresses)
    warn_unfinished(found, progress.warn)
    if found.missing:
        progress.warn(say_missing(found.missing))
    output = OutputSet(request.output, request.settings, names=names_of(found.addresses))
    check_post(request.post, request.output, is_stream=output.pattern.is_stream)
    output.check(found.addresses)
    done: list[_Copied] = []
    with nullcontext() if dry_run else output.claimed(found.addresses):
        request = request._replace(settings=output.settings)
        tasks = [
            CopyTask(request._replace(inputs=[one]), preserve, None if dry_run else output.address(at))
            for at, one in enumerate(found.addresses)
        ]
        with make_executor(_jobs_for(request, found.addresses)) as executor:
            for one in run_shard_tasks(executor, copy_shard, tasks, progress, "copying", found.addresses):
                if one.info.is_copy:
                    progress.note(f"{output.address(len(done))}: copied by the store")
                done.append(one)
                for text in one.warnings:
                    progress.warn(text)
        report = _report(done) if dry_run else _finish(output, done, request, preserve, found)
    return replace(report, dropped=sum_counts([report.dropped, missing_samples(found.missing)]))


def _jobs_for(request: Request, addresses: Sequence[str]) -> int:
    """Processes for this work. What only this process can read, it copies alone."""
    if any(is_ours_alone(address) or is_of_this_process(address) for address in [*addresses, request.output]):
        return 1
    return useful_shard_jobs(request.jobs, addresses, WORTH_COPYING_BYTES)


def _chosen(
    picker: Picker, keys: _Keys, begin: Callable[[Source], tuple[int, int]] | None = None
) -> Iterator[tuple[Page, list[tuple[int, bytes]]]]:
    """The samples to write, up to the limit: the rows of each page and their keys. ``begin`` is as in
    :meth:`Picker.pages`."""
    left = picker.limit
    for page in picker.pages(begin):
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


def _measure(picker: Picker, keys: _Keys, request: Request, preserve: bool) -> _Copied:
    """What a dry run would write. Headers alone decide, but where ``--where`` looks into payloads."""
    samples = members = size = 0
    known: dict[str, Globals] = {}
    for page, chosen in _chosen(picker, keys):
        for row, key in chosen:
            sizes = out_sizes(page.batch, row, picker.selection, page.source.name, key)
            samples += 1
            members += len(sizes)
            if preserve:
                size += kept_length(_kept(page, row, request.selection, known))
            else:
                size += out_length(sizes, request.settings.form)
    picker.check_empty(samples)
    return _Copied.of(ShardInfo("", samples, members, size + END_BYTES, ""), picker)


class _Keys:
    """The policy for keys that come back, and for new keys."""

    def __init__(self, on_duplicate: OnDuplicate, rekey: str | None, picker: Picker) -> None:
        self._policy = on_duplicate
        self._all = Rekey.parse(rekey) if rekey is not None and on_duplicate != "rekey" else None
        self._later = Rekey.parse(rekey or DEFAULT)
        self._seen = KeySet()
        self._picker = picker

    @property
    def may_be_kept(self) -> bool:
        """Whether samples keep their keys as long as none comes back."""
        return self._all is None

    def add_new(self, keys: Sequence[bytes]) -> bool:
        """Take these keys as they are if none was there before; False, and none is taken, otherwise."""
        return self._seen.add_new(keys)

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
        stem, first = shard_stem(page.source.name), self._picker.first
        return rekey.key(page.batch.keys[row], stem, page.batch.index + row, first)

    def _error(self, page: Page, row: int, key: bytes) -> DataError:
        first = None if self._all is not None else self._first_place(key)
        before = "" if first is None else f" (first: sample {first[1]} of {first[0]})"
        return DataError(
            f'repeated key "{to_text(key)}"{before}',
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
    page.check(row)
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
        self._buffer = memoryview(bytearray(COPY_BUFFER_BYTES))

    def copy_usual(self, keys: _Keys, source: Source) -> tuple[int, int]:
        """All usual samples with which a plain file begins, here or on another machine, read once: the byte of the
        first that was not taken, and its place."""
        at = samples = held = 0
        if source.seekable and source.size is not None:
            source.expect([(0, source.size)])
        while source.seekable and source.size is not None:
            held += fill(self._buffer[held:], source, at + held)
            found = packed(self._buffer[:held], None, self._shard.form)
            if found is None or is_suspect(found.names, found.arrays.fields) or not keys.add_new(found.names):
                break
            self._shard.write_arrays(found.settle(self._buffer), found.arrays)
            self._shard.flush()
            rest = self._buffer[found.end : held]
            at, held, samples = at + found.end, len(rest), samples + len(found.names)
            self._buffer[:held] = rest
        return at, samples

    def copy(self, page: Page, chosen: Sequence[tuple[int, bytes]]) -> None:
        """Write the chosen rows of a page under their keys: those that lie side by side and need no more than canonical
        headers together, the others (of a stream all) member by member."""
        stands = self._stand(page, chosen)
        if all(stands) and _is_one_run(page.batch, len(chosen)):
            self._copy_run(page, 0, len(chosen))
            return
        batch, first = page.batch, 0
        while first < len(chosen):
            row, end = chosen[first][0], first + 1
            if stands[first]:
                while end < len(chosen) and stands[end]:
                    before, after = chosen[end - 1][0], chosen[end][0]
                    if after != before + 1 or batch.end(before) != batch.start(after):
                        break
                    end += 1
                self._copy_run(page, row, row + end - first)
            else:
                self._write(page, *chosen[first])
            first = end

    def _stand(self, page: Page, chosen: Sequence[tuple[int, bytes]]) -> list[bool]:
        """Which samples can be copied with their neighbours. Headers that are to be kept do not keep them from it."""
        if not page.source.seekable or not self._is_plain:
            return [False] * len(chosen)
        marks, keys = page.batch.marks, page.batch.keys
        may_have = {0}
        if self._preserve:
            marks = list(map(kept_mark, marks))
        elif core.CORE is not None:
            may_have.add(FOREIGN)
        return [marks[row] in may_have and key is keys[row] for row, key in chosen]

    def _copy_run(self, page: Page, first: int, end: int) -> None:
        """Samples ``first`` to ``end`` of the batch, which lie side by side: as many at a time as the buffer holds."""
        batch, length = page.batch, len(self._buffer)
        starts = list(map(batch.starts.__getitem__, batch.firsts[first:end]))
        while first < end:
            begin = batch.start(first)
            stop = end
            if batch.end(end - 1) - begin > length:
                stop = max(end - len(starts) + bisect_right(starts, begin + length) - 1, first + 1)
            if not self._copy_packed(page, first, stop):
                if page.by_index or (any(batch.marks[first:stop]) and not self._preserve):
                    for row in range(first, stop):
                        self._write(page, row, batch.keys[row])
                else:
                    self._copy_as_it_is(page, first, stop)
            first = stop

    def _copy_packed(self, page: Page, first: int, end: int) -> bool:
        """Some samples through the buffer, made canonical there; False when they do not fit in it, or when a quick look
        does not tell that they are what was found."""
        batch, begin = page.batch, page.batch.start(first)
        length = batch.end(end - 1) - begin
        if self._preserve or length > len(self._buffer):
            return False
        view = self._buffer[:length]
        if fill(view, page.source, begin) < length:
            raise cut_short(page.source.name, begin)
        firsts = batch.firsts[first : end + 1]
        members = slice(firsts[0], firsts[-1])
        begins = numpy.array(list(map(batch.starts.__getitem__, firsts[:-1])), dtype=numpy.int64) - begin
        found = packed(view, begins, self._shard.form)
        if found is None or found.names != batch.keys[first:end]:
            return False
        arrays = found.arrays
        fields = list(map(arrays.fields.__getitem__, arrays.codes.tolist()))
        if fields != batch.fields[members] or arrays.sizes.tolist() != batch.sizes[members]:
            return False
        self._shard.write_arrays(found.settle(view), arrays)
        self._shard.flush()
        return True

    def _copy_as_it_is(self, page: Page, first: int, end: int) -> None:
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
        if batch.end(row) - batch.start(row) > LARGE_SAMPLE_BYTES:
            self._shard.write_pieces(
                key, [(field, batch.sizes[first + at], page.pieces(first + at)) for at, field in plan]
            )
        else:
            self._shard.write(key, [(field, page.payload(first + at)) for at, field in plan])


def _is_one_run(batch: SampleBatch, samples: int) -> bool:
    """Whether so many samples are all that a batch has, and nothing lies between them."""
    if samples != len(batch.keys) or not samples:
        return False
    length = sum(batch.offsets) - sum(batch.starts) + sum([size + 511 & -512 for size in batch.sizes])
    return batch.end(samples - 1) - batch.start(0) == length


def _pieces(source: Source, start: int, stop: int, buffer: memoryview) -> Iterator[memoryview]:
    """A range of a source, piece by piece, by way of one buffer."""
    while start < stop:
        done = fill(buffer[: stop - start], source, start)
        if not done:
            raise cut_short(source.name, start)
        yield buffer[:done]
        start += done
