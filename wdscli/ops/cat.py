"""``cat``: write the selected samples of a set as one tar stream, in input order.

:func:`cat` passes once over the inputs and writes one archive. It makes no plan. So output begins at once, and memory
is bounded for a set of any size. It has three ways to copy, which give the same bytes. Usual samples at the beginning
of a shard are read, checked and written in one pass. After the first unusual sample, it reads the headers of some
hundred samples, and then copies runs of adjacent usual samples by large reads. All other samples, and all samples of a
stream, are written member by member. A sample with a repeated key is an error, is skipped, or gets a new key.

This module does not print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile
from os.path import exists
from typing import NamedTuple

from wdscli.arrays import edges, numpy
from wdscli.copy.maker import CarriedValues
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.executors import copying_worth, make_executor, run_shard_tasks, useful_shard_jobs
from wdscli.look.listing import UNREAD, ReadSamples
from wdscli.look.picking import Page, SampleReader
from wdscli.model import ShardInfo
from wdscli.plan.cut import END_BYTES, names_of
from wdscli.plan.duplicates import HINT, HINT_IN_ONE_SHARD
from wdscli.plan.inputs import Input, is_of_this_process, is_ours_alone, is_read_once
from wdscli.plan.names import DEFAULT, Rekey, shard_stem
from wdscli.plan.orders import InputOrder
from wdscli.plan.plan import make_plan, shaping_options, sum_counts
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.strategy import check_post
from wdscli.plan.survey import out_length, out_sizes
from wdscli.progress import QUIET, NullProgress, Progress
from wdscli.run.execute import run_plan
from wdscli.run.receipts import run_post
from wdscli.samples import SampleBatch, iter_batches
from wdscli.samples.keys import KeySet, SeparatedSamples, joined_may_be_unsafe
from wdscli.samples.reading import keep_heap, packed, walk_packed
from wdscli.selection import Selection
from wdscli.selection.reading import check_names
from wdscli.shards.index import Index, index_address
from wdscli.shards.inputs import ShardSet, check_mixing, classes_of, fingerprint_of
from wdscli.shards.layout import ViewSource
from wdscli.shards.manifest import Manifest
from wdscli.shards.moving import copied, find_original
from wdscli.shards.reading import index_batches
from wdscli.shards.view import is_view
from wdscli.shards.writing import OutputSet, ShardFile
from wdscli.storage import Source, is_local, local_path, open_source
from wdscli.storage.ends import cut_short
from wdscli.storage.patterns import NAME
from wdscli.tar import FOREIGN, core
from wdscli.text import to_text
from wdscli.views.writing import carry_views

COPY_BUFFER_BYTES = 1 << 22
LARGE_SAMPLE_BYTES = 1 << 20
"""A larger sample is written in pieces."""


@dataclass(frozen=True, slots=True)
class CatReport:
    """Counts of the input and the output. ``manifest`` is None for a dry run. The manifest of an output ``-`` or
    ``pipe:`` is not stored. ``kept`` counts the shards that an interrupted run had finished."""

    samples: int
    members: int
    bytes_in: int
    bytes_out: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    manifest: Manifest | None
    kept: int = 0


def cat(request: Request, *, dry_run: bool = False, progress: Progress = QUIET) -> CatReport:
    """Write the selected samples of ``request.inputs`` to ``request.output``, one archive.

    If ``request.output`` contains ``{name}``, each input is copied as a whole to its own shard, by ``jobs`` processes.
    The input's name without suffixes replaces ``{name}``. The request's command ``post`` runs for each finished shard.
    ``cuts`` has no effect. For a single archive, ``jobs`` has no effect either. Raises UsageError, InputError,
    DataError, OutputError, EngineError.

    >>> from wdscli.shards import ShardReader, ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"0"})
    >>> report = cat(Request([f"{folder}/in-manifest.json"], f"{folder}/all.tar"))
    >>> report.samples, [sample.key for sample in ShardReader(f"{folder}/all.tar")]
    (5, ['n0', 'n1', 'n2', 'n3', 'n4'])
    """
    is_each = NAME in request.output
    if is_each:
        _check_whole(request)
    if is_view(request.output) or (is_each and (request.resume or not is_local(request.output))):
        return _planned(request, dry_run, progress)
    picker = _picker(request, progress)
    addresses, output = picker.set.addresses, _output(request, picker.set, progress)
    with nullcontext() if dry_run else output.claimed(addresses):
        request = request._replace(settings=output.settings)
        places = [
            None if dry_run else output.address(number) for number in range(len(addresses) if is_each else 1)
        ]
        done = list(_written(picker, request, places, progress))
        manifest = None if dry_run else _finish(output, done, request, picker.set)
    if is_each and manifest is not None:
        carry_views(addresses, manifest, request, progress.warn)
    return _report(done, manifest)


def _output(request: Request, shards: ShardSet, progress: Progress) -> OutputSet:
    """Return the output of a command that passes once over its inputs. Raises UsageError, and OutputExistsError."""
    names = names_of(shards.addresses) if NAME in request.output else None
    output = OutputSet(request.output, request.settings, names=names)
    if names is None and not output.pattern.single:
        raise UsageError(
            f"{request.output} is for more than one shard, but cat writes one shard",
            hint="-o all.tar, or -o 'OUT/{name}.tar' to copy each shard; wds split writes numbered shards",
        )
    check_post(request.post, request.output, is_stream=output.pattern.is_stream)
    output.check(shards.addresses)
    if shards.addresses and not output.pattern.is_stream:
        check_mixing(shards, output.address(0), force=request.settings.force, warn=progress.warn)
    return output


def _written(
    picker: SampleReader, request: Request, places: Sequence[str | None], progress: Progress
) -> Iterator[_Copied]:
    """Write one archive, or copy each input to its address in ``places``."""
    if NAME in request.output:
        yield _Copied(None, 0, picker.dropped)
        yield from _copy_each(request, picker.set.addresses, places, progress)
        return
    picker.start("copying")
    yield _copied(picker, request, places[0])
    progress.finish()


def _check_whole(request: Request) -> None:
    """Raise UsageError for options that select or rename samples, because each shard is copied whole."""
    takes_all = request.selection.is_trivial and not request.dedup
    if not (takes_all and request.rekey is None and request.on_duplicate == "error"):
        raise UsageError(
            f"-o with {NAME} copies whole shards, so it cannot select samples or change keys",
            hint=f"wds split takes the same options, and -o 'OUT/{NAME}.tar' keeps the names there too",
        )


def _finish(output: OutputSet, done: list[_Copied], request: Request, shards: ShardSet) -> Manifest:
    """Write the manifest of the new shards."""
    infos = [copy.info for copy in done if copy.info is not None]
    inputs, options = [fingerprint_of(shards)], shaping_options(request)
    classes = None if request.selection.makes_labels else classes_of(shards)
    return output.finish(infos, operation="cat", options=options, inputs=inputs, classes=classes)


def _report(done: list[_Copied], manifest: Manifest | None) -> CatReport:
    """Return the sums over all output shards."""
    infos = [copy.info for copy in done if copy.info is not None]
    return CatReport(
        samples=sum(info.samples for info in infos),
        members=sum(info.members for info in infos),
        bytes_in=sum(copy.bytes_in for copy in done),
        bytes_out=sum(info.size_bytes for info in infos),
        dropped=sum_counts([copy.dropped for copy in done]),
        ignored=sum_counts([copy.ignored for copy in done]),
        manifest=manifest,
    )


def _planned(request: Request, dry_run: bool, progress: Progress) -> CatReport:
    """Write a view, or copy each shard to its own name in a run that can be resumed. A dry run only plans it."""
    with Scratch(request.tmp) as scratch:
        plan = make_plan(request, InputOrder("cat"), scratch, progress=progress)
        report = None if dry_run else run_plan(plan, progress=progress)
    if report is not None and NAME in request.output:
        carry_views(plan.contents.addresses, report.manifest, request, progress.warn)
    counts = plan.counts
    return CatReport(
        counts.samples,
        sum(shard.members for shard in plan.contents.shards),
        counts.bytes_in,
        plan.size_bytes,
        counts.dropped,
        counts.ignored,
        None if report is None else report.manifest,
        0 if report is None else report.kept,
    )


def _picker(request: Request, progress: Progress) -> SampleReader:
    later = request.on_duplicate == "skip"
    return SampleReader(request, counts_later=later, progress=progress)


class _Copied(NamedTuple):
    """The result for one output shard. ``info`` has its facts, and ``bytes_in`` counts the bytes read. ``dropped``
    counts skipped samples and ``ignored`` counts ignored members, both by reason. ``warnings`` are the reader's
    warnings."""

    info: ShardInfo | None
    bytes_in: int
    dropped: Mapping[str, int] = {}
    ignored: Mapping[str, int] = {}
    warnings: Sequence[str] = ()


def _has_index(address: str) -> bool:
    """Return whether a local shard may have an index. If it has no index, numpy is not loaded, which saves 5 MB of
    memory."""
    return ".json/" in address or exists(local_path(index_address(address)))


def _copied(picker: SampleReader, request: Request, address: str | None) -> _Copied:
    """Copy the picker's samples to a shard. If ``address`` is None, only count them."""
    keys = _Keys(request, picker)
    if address is None:
        info = _measured(picker, keys, request)
    else:
        with request.settings.open(address) as shard:
            _copy(picker, keys, request, shard)
            if NAME not in request.output:
                picker.check_empty(shard.samples)
            addresses = picker.set.addresses
            # An index saves nothing for a remote shard: reading the index is a request, and cat reads the whole shard
            # by one request.
            is_cheap = all(
                is_local(source) and not is_read_once(source) and _has_index(source) for source in addresses
            )
            if picker.takes_all and request.use_index and is_cheap:
                carried = CarriedValues(list(map(Input, addresses)), None)
                if carried.total == shard.samples:
                    shard.index.values = carried.all()
            info = shard.commit()
        info = run_post(request.post, address, info)
    return _Copied(info, picker.bytes_in, picker.dropped, picker.ignored)


def _copy(picker: SampleReader, keys: _Keys, request: Request, shard: ShardFile) -> None:
    """Copy the picker's samples to one shard."""
    keep_heap()
    copier = _Copier(request.selection, shard)
    begin = None
    if core.CORE is not None and picker.takes_all and not keys.renames_all:
        begin = partial(copier.copy_usual, keys)
    try:
        for page, chosen in _chosen(picker, keys, begin):
            copier.copy(page, chosen)
    except DataError:
        shard.flush()
        raise


def _copy_each(
    request: Request, addresses: Sequence[str], places: Sequence[str | None], progress: Progress
) -> Iterator[_Copied]:
    """Copy each input to its own shard, by several processes if that is faster."""
    tasks, copy_one = list(zip(addresses, places, strict=True)), partial(copy_shard, request)
    # Other processes cannot read the standard input, the pipes or the memory of this process.
    is_ours = any(
        is_ours_alone(address) or is_of_this_process(address) for address in [*addresses, request.output]
    )
    worth = copying_worth(*addresses, request.output)
    waits = bool(request.post) or not is_local(request.output)
    jobs = 1 if is_ours else useful_shard_jobs(request.jobs, addresses, worth, waits=waits)
    with make_executor(jobs) as executor:
        copies = run_shard_tasks(executor, copy_one, tasks, progress, "copying", addresses)
        for place, copy in zip(places, copies, strict=True):
            if copy.info is not None and copy.info.is_copy:
                progress.note(f"{place}: {'linked' if request.settings.links else 'copied by the store'}")
            elif request.settings.links:
                progress.note(
                    f"{place}: copied, because only an unchanged shard with an index, on the same disc, can be linked"
                )
            for text in copy.warnings:
                progress.warn(text)
            yield copy


def copy_shard(request: Request, shard: tuple[str, str | None]) -> _Copied:
    """Copy one whole input to its own shard. This is the task that processes run. ``shard`` has the addresses of the
    input and the output; a dry run has None as output."""
    address, output = shard
    request = request._replace(inputs=[address])
    if output is not None and (info := _by_store(request, output)) is not None:
        return _Copied(info, info.size_bytes)
    warnings = _Warnings()
    picker = _picker(request, warnings)
    return _copied(picker, request, output)._replace(warnings=warnings.said)


class _Warnings(NullProgress):
    """Collects warnings, so that another process can show them."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, message: str) -> None:
        self.said.append(message)


def _by_store(request: Request, output: str) -> ShardInfo | None:
    """Let the store copy the shard, or link it. Return None if neither is possible."""
    [address] = request.inputs
    if request.on_error == "skip" or not request.use_index:
        return None
    original = find_original(address, output, request.settings)
    if original is None or not _is_sound(original.index, address):
        return None
    info = copied(original, output, request.settings)
    return None if info is None else run_post(request.post, output, info)


def _is_sound(index: Index, address: str) -> bool:
    """Return whether the keys of an index are distinct. Raises DataError for an unsafe name."""
    keys = KeySet()
    for batch in index_batches(index):
        check_names(batch, address)
        if not keys.add_new(batch.keys):
            return False
    return True


def _chosen(
    picker: SampleReader, keys: _Keys, begin: Callable[[Source], ReadSamples] | None = None
) -> Iterator[tuple[Page, list[tuple[int, bytes]]]]:
    """Yield the samples to write, up to the limit: each page, with its chosen rows and their new keys. ``begin`` is
    passed to :meth:`SampleReader.pages`."""
    left = picker.limit
    for page in picker.pages(begin):
        if left is None:
            yield page, keys.resolve(page)
            continue
        rows = page.rows
        while rows and left:
            part = page._replace(rows=rows[:left])
            chosen = keys.resolve(part)
            rows, left = rows[len(part.rows) :], left - len(chosen)
            yield part, chosen
        if not left:
            picker.stop()


def _measured(picker: SampleReader, keys: _Keys, request: Request) -> ShardInfo:
    """Return the facts of the shard that would be written. Payloads are read only for ``--where`` and ``--dedup``."""
    samples = members = size = 0
    for page, chosen in _chosen(picker, keys):
        for row, key in chosen:
            sizes = out_sizes(page.sample(row), picker.selection, key)
            samples += 1
            members += len(sizes)
            size += out_length(sizes, request.settings.form)
    if NAME not in request.output:
        picker.check_empty(samples)
    return ShardInfo("", samples, members, size + END_BYTES, "", None, {}, index=False)


class _Keys:
    """The policy for repeated keys and for new keys."""

    def __init__(self, request: Request, picker: SampleReader) -> None:
        self._policy = request.on_duplicate
        self._rekey = Rekey.parse(request.rekey or DEFAULT)
        self.renames_all = request.rekey is not None and self._policy != "rekey"
        """Whether all samples get new keys, not only those with a repeated key."""
        self.seen = KeySet()
        self._picker = picker

    def resolve(self, page: Page) -> list[tuple[int, bytes]]:
        """Return the rows to write, and their keys."""
        keys = [self._new(page, row) if self.renames_all else page.batch.keys[row] for row in page.rows]
        chosen = list(zip(page.rows, keys, strict=True))
        repeated = self.seen.add(keys)
        if repeated and self._policy == "error":
            raise self._error(page, *chosen[repeated[0]])
        if repeated and self._policy == "skip":
            self._picker.drop("duplicate-key", len(repeated))
            gone = set(repeated)
            return [pair for place, pair in enumerate(chosen) if place not in gone]
        for place in repeated:
            row = page.rows[place]
            chosen[place] = row, self._new(page, row)
            if self.seen.add([chosen[place][1]]):
                raise self._error(page, *chosen[place])
        return chosen

    def _new(self, page: Page, row: int) -> bytes:
        at = page.sample(row) if self._rekey.values else None
        stem, place = shard_stem(page.source.name), page.batch.index + row
        return self._rekey.key(page.batch.keys[row], stem, place, self._picker.first, at)

    def _error(self, page: Page, row: int, key: bytes) -> DataError:
        first = "" if self.renames_all else self._first_place(key)
        return DataError(
            f'repeated key "{to_text(key)}"{first}',
            code="duplicate-key",
            shard=page.source.name,
            offset=page.batch.start(row),
            hint=HINT_IN_ONE_SHARD if first.endswith(f" of {page.source.name})") else HINT,
        )

    def _first_place(self, key: bytes) -> str:
        """Return shard and place of the first sample with a key, as text. The text is empty if the inputs cannot be
        read again."""
        addresses = self._picker.set.addresses if self._picker.selection.is_trivial else []
        with suppress(WdsError):
            for address in takewhile(lambda source: not is_read_once(source), addresses):
                with open_source(address) as source:
                    for batch in iter_batches(source, lenient=True):
                        if key in batch.keys:
                            return f" (first: sample {batch.index + batch.keys.index(key)} of {address})"
        return ""


class _Copier:
    """Copies samples of pages to one shard."""

    def __init__(self, selection: Selection, shard: ShardFile) -> None:
        self._shard = shard
        self._selection = selection

    def _spare(self) -> memoryview:
        return self._shard.spare(COPY_BUFFER_BYTES)

    def copy_usual(self, keys: _Keys, source: Source) -> ReadSamples:
        """Copy the usual samples at the beginning of a seekable input in one pass. Return what was copied."""
        end, samples, search = 0, 0, SeparatedSamples()
        if not source.seekable or source.size is None:
            return UNREAD
        source.expect([(0, source.size)])
        for offset, buffer, usual in walk_packed(source, self._spare, self._shard.form):
            names = usual.arrays.keys, usual.arrays.key_lengths
            if joined_may_be_unsafe(*names, usual.arrays.fields) or not keys.seen.add_joined(*names):
                break
            if isinstance(source, ViewSource):
                source.check_arrays(samples, usual.arrays)
            self._shard.write_arrays(usual.settle(buffer), usual.arrays)
            search.add_arrays(usual.arrays)
            end, samples = offset + usual.end, samples + len(usual.arrays.counts)
        return ReadSamples(end, samples, search)

    def copy(self, page: Page, chosen: Sequence[tuple[int, bytes]]) -> None:
        """Write rows of a page under their keys. Adjacent usual samples are copied together, until the buffer is full.
        Other samples, and all samples of a stream, are written member by member."""
        samples = len(page.batch.keys)
        # Without samples that fit in the buffer, numpy is not loaded.
        can_pack = (
            core.CORE is not None
            and page.source.seekable
            and not self._selection.changes_members
            and page.batch.end(samples - 1) - page.batch.start(0) <= samples * COPY_BUFFER_BYTES
        )
        stretches = self._stretches(page.batch, chosen) if can_pack else [(0, len(chosen), False)]
        for first, end, is_usual in stretches:
            row = chosen[first][0] if is_usual else 0
            if not (is_usual and self._copy_packed(page, row, row + end - first)):
                for row, key in chosen[first:end]:
                    self._write(page, row, key)

    def _stretches(
        self, batch: SampleBatch, chosen: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[int, int, bool]]:
        """Yield stretches of adjacent usual samples that fit in the buffer, and single other samples: the place of the
        first, the end, and whether they are usual."""
        rows = numpy.array([row for row, _ in chosen], dtype=numpy.int64)
        firsts, starts, offsets, sizes, marks = (
            numpy.array(column, dtype=numpy.int64)
            for column in (batch.firsts, batch.starts, batch.offsets, batch.sizes, batch.marks)
        )
        begins, lasts = starts[firsts[rows]], firsts[rows + 1] - 1
        ends = offsets[lasts] + (sizes[lasts] + 511 & -512)
        is_new = numpy.array([key is not batch.keys[row] for row, key in chosen], dtype=bool)
        is_unusual = is_new | (marks[rows] & ~FOREIGN != 0)
        apart = (rows[1:] != rows[:-1] + 1) | (begins[1:] != ends[:-1]) | is_unusual[1:] | is_unusual[:-1]
        for first, stop in pairwise(edges(apart, len(rows)).tolist()):
            while first < stop:
                fitting = int(ends[first:stop].searchsorted(begins[first] + COPY_BUFFER_BYTES, "right"))
                end = first + max(1, fitting)
                yield first, end, not is_unusual[first]
                first = end

    def _copy_packed(self, page: Page, first: int, end: int) -> bool:
        """Copy samples through the buffer and give them canonical headers. Return False if they do not fit, or if the
        core does not find the samples that the batch lists."""
        batch, begin = page.batch, page.batch.start(first)
        length = batch.end(end - 1) - begin
        if length > COPY_BUFFER_BYTES:
            return False
        view = self._spare()[:length]
        if page.source.fill(begin, view) < length:
            raise cut_short(page.source.name, begin)
        members = slice(batch.firsts[first], batch.firsts[end])
        starts = list(map(batch.starts.__getitem__, batch.firsts[first:end]))
        begins = numpy.array(starts, dtype=numpy.int64) - begin
        samples = packed(view, begins, self._shard.form)
        if samples is None:
            return False
        keys, arrays = batch.keys[first:end], samples.arrays
        if arrays.keys != b"".join(keys) or arrays.key_lengths.tolist() != list(map(len, keys)):
            return False
        fields = list(map(arrays.fields.__getitem__, arrays.codes.tolist()))
        if fields != batch.fields[members] or arrays.sizes.tolist() != batch.sizes[members]:
            return False
        self._shard.write_arrays(samples.settle(view), arrays)
        return True

    def _write(self, page: Page, row: int, key: bytes) -> None:
        """Write one sample member by member."""
        batch, source = page.batch, page.source
        first = batch.firsts[row]
        plan = self._selection.plan_of(batch, row, source.name)
        new = self._selection.new_payloads(page.sample(row)) if self._selection.new_fields else {}
        if batch.end(row) - batch.start(row) > LARGE_SAMPLE_BYTES:
            pieces = page.reader.pieces
            members = {field: (batch.sizes[first + member], pieces(first + member)) for member, field in plan}
            members |= {field: (len(payload), iter([payload])) for field, payload in new.items()}
            self._shard.write_pieces(key, [(field, *rest) for field, rest in members.items()])
        else:
            payloads = {field: page.reader.payload(first + member) for member, field in plan} | new
            self._shard.write(key, list(payloads.items()))
