"""This module reads the selected samples of a set in input order, with access to their payloads, for ``cat``.

A :class:`SampleReader` reads the inputs one after the other, and yields the selected rows of each batch. With
``--dedup``, it leaves out samples that repeat an earlier sample. From a seekable input, it reads headers first, and
payloads only when the caller wants them. A remote shard is read by its index if only a part of it is wanted. The ranges
of a page are then requested together. With ``--dedup``, payloads are read twice, so a remote shard is first copied to
scratch space. Only one window of headers is in memory.

This module does not know what the samples are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from typing import NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.look.listing import UNREAD, ReadSamples, SetReader, settled
from wdscli.plan.duplicates import DUPLICATE, Dedup
from wdscli.plan.inputs import Input
from wdscli.plan.names import check_empty, check_named
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch, spool
from wdscli.progress import QUIET, Progress
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.samples.keys import KeySet
from wdscli.selection.named import MissingName
from wdscli.selection.near import NearHashes, hash_of
from wdscli.selection.reading import MemberReader
from wdscli.selection.where import Value
from wdscli.shards.inputs import ShardStage, open_set
from wdscli.storage import Source, open_source
from wdscli.storage.addresses import view_of
from wdscli.storage.opening import is_one_request, open_in_turn


class Page(NamedTuple):
    """Some selected samples of one input: the rows of ``batch``.

    ``reader`` reads payloads of the batch's members until the next page. If the batch comes from an index,
    its other bytes must be compared before they are copied.
    """

    reader: MemberReader
    batch: SampleBatch
    rows: Sequence[int]

    @property
    def source(self) -> Source:
        """The input."""
        return self.reader.source

    def sample(self, row: int) -> SampleAt:
        """Return a sample of the batch with its payloads."""
        return SampleAt(self.batch, row, self.source.name, self.reader)

    def members(self, row: int) -> Iterator[tuple[bytes, int, Iterator[bytes]]]:
        """Yield the members of a sample: field, size and the pieces of the payload."""
        batch = self.batch
        for member in range(batch.firsts[row], batch.firsts[row + 1]):
            yield batch.fields[member], batch.sizes[member], self.reader.pieces(member)


class Part(NamedTuple):
    """The payloads that a caller reads. ``fields`` says whether a field, by its new name, is read. With ``key``, only
    payloads of this sample are read."""

    fields: Callable[[bytes], object]
    key: bytes | None = None


class SampleReader(SetReader):
    """Reads the inputs of a request. Its counts are final when :meth:`pages` has ended.

    With ``writes_names``, an unsafe name is an error. With ``counts_later``, the caller itself skips samples, and
    counts the other samples for ``limit``. It must call :meth:`stop` when the limit is reached. ``part`` says which
    payloads the caller reads; None means all.
    """

    def __init__(
        self,
        request: Request,
        *,
        writes_names: bool = True,
        counts_later: bool = False,
        part: Part | None = None,
        progress: Progress = QUIET,
    ) -> None:
        shards = open_set(
            request.inputs,
            missing=request.on_error,
            warn=progress.warn,
            trust_addresses=request.trust_addresses,
        )
        super().__init__(shards, request.selection, request.on_error, progress, request.settings.form)
        self._seen = _seen_content(request)
        limit = request.selection.limit
        self.limit = limit if counts_later else None
        self._left = None if counts_later or self._seen is None else limit
        """With ``--dedup``: the samples left of ``--limit``, unless the caller counts them."""
        if counts_later or self._seen is not None:
            self.selection = self.selection._replace(limit=None)
            self.state = self.selection.new_state(request.on_error)
            self.state.done = limit == 0
        self.bytes_in = 0
        self.samples = 0
        """Samples that the caller used, set by :meth:`check_empty`."""
        self.first = 0
        """Samples in the inputs before the current one."""
        self._request = request
        self._counts_later = counts_later
        self._writes_names = writes_names
        self._part = part
        self._by_index = False
        self._stage: ShardStage | None = None

    @property
    def takes_all(self) -> bool:
        """Whether all samples are selected, and a damaged sample is an error."""
        is_plain = self.selection.is_trivial and self.limit is None and self._seen is None
        return is_plain and not self.skips and not self.state.done

    def stop(self) -> None:
        """Stop reading, because the limit is reached."""
        self.state.done = True

    def start(self, what: str) -> None:
        """Begin a stage of the progress; it advances as pages are taken."""
        self._stage = ShardStage(self._progress, what, self.set.addresses)

    def pages(self, begin: Callable[[Source], ReadSamples] | None = None) -> Iterator[Page]:
        """Yield the selected samples of all inputs, in order. ``begin`` is called first for each input. It may read the
        first samples itself, and returns what it has read. Raises InputError and DataError, at the end also for names
        that no sample has."""
        # With counts_later, the caller skips repeated keys itself.
        self.selection, lack = settled(self.set, self.selection, self._on_error, distinct=self._counts_later)
        if lack:
            self._progress.warn(lack)
        addresses = () if self.state.done else self.set.addresses
        unlimited = self.limit is None and self.selection.limit is None
        takes_all = self.selection.is_trivial and self._part is None
        self._by_index = not (self.skips or takes_all or self._seen is not None)
        sources = open_in_turn(addresses, whole=self._takes_all_bytes, ahead=unlimited, open_one=self._open)
        with closing(sources):
            for opened in sources:
                with opened as source:
                    beginning, self.state.end = UNREAD if begin is None else begin(source), 0
                    try:
                        for page in self._pages(source, beginning):
                            yield page if self._seen is None else self._distinct(page, self._seen)
                            if self._stage is not None and page.batch.keys:
                                self._stage.at(page.batch.start(len(page.batch.keys) - 1))
                        source.confirm()
                    finally:
                        self.bytes_in += source.size or 0
                self.first += max(self.state.end, beginning.samples)
                if self._stage is not None:
                    self._stage.next()
                if self.state.done:
                    break
        for remark in self.selection.remarks(self.state):
            self._progress.warn(remark)
        dedup = None if self._seen is None else self._seen.dedup
        named = () if dedup is None else dedup.named
        self.check_names(self.selection.missing_names(self.state, named))
        if dedup is not None and self._seen is not None and self.state.seen_samples and not self._seen.total:
            dedup.warn_of_none(self.state.seen_names.fields, self._progress)

    def _distinct(self, page: Page, seen_content: SeenContent) -> Page:
        """Return the page without samples that repeat an earlier sample, and without samples after the limit."""
        named = seen_content.dedup.named
        self.state.seen_names.look(named, page.batch, page.rows, page.reader)
        rows: list[int] = []
        for row in page.rows:
            if self._left is not None and len(rows) == self._left:
                break
            if seen_content.has(page.sample(row), page.reader.pieces):
                self.drop(DUPLICATE)
            else:
                rows.append(row)
        if self._left is not None:
            self._left -= len(rows)
            if not self._left:
                self.stop()
        return page._replace(rows=rows)

    def check_names(self, missing_names: Sequence[MissingName]) -> None:
        """Raise DataError for names that no sample has. With ``allow_empty``, only warn."""
        check_named(missing_names, allow=self._request.allow_empty, progress=self._progress)

    def check_empty(self, samples: int) -> None:
        """Store the number of samples used. Raise DataError if it is 0 although samples were read."""
        self.samples = samples
        request = self._request
        check_empty(samples, request.selection, request.on_error, self.dropped, allow=request.allow_empty)

    def _pages(self, source: Source, beginning: ReadSamples) -> Iterator[Page]:
        if self._seen is None or not source.seekable or source.fd is not None:
            yield from self._picked(source, beginning)
            return
        with Scratch() as scratch:
            copy = Input(source.name, scratch.place(0))
            spool(source, copy.copy, cut=self._trouble if self.skips else None)
            with copy.open() as again:
                yield from self._picked(again)

    def _open(self, address: str, whole: bool) -> Source:
        open_one = self._open_by_index if self._pays_index(address) else open_source
        return open_one(address, whole=whole)

    def _pays_index(self, address: str, size: int | None = None) -> bool:
        """Return whether reading the index saves bytes or requests. It saves nothing if most of a shard is wanted, and
        one request can fetch the whole shard. To open a view's shard, its indexes are read anyway."""
        takes_most = self.selection.takes_most and (self._part is None or self._part.key is None)
        is_one = view_of(address) is None and is_one_request(address, size)
        return self._by_index and not (takes_most and is_one)

    @property
    def _takes_all_bytes(self) -> bool:
        """Return whether a remote shard without an index is read from its first byte to its last byte."""
        return self.selection.is_trivial and (self._part is None or self._part.key is None)

    def _picked(self, source: Source, beginning: ReadSamples = UNREAD) -> Iterator[Page]:
        fields, keeps_all = self.selection.payload_fields, not source.seekable
        reader = MemberReader(source, fields, keeps_all=keeps_all)
        indexed = self._indexed(source, reader) if self._pays_index(source.name, source.size) else None
        if indexed is None and source.seekable and source.size and self._takes_all_bytes:
            source.expect([(beginning.offset, source.size)])
        new_names = self.selection.new_names
        for batch, rows in self._chosen(reader, indexed, beginning):
            if reader.by_index and (wanted := list(self._wanted(reader, rows[: self.limit]))):
                source.expect(wanted)
            if self.selection.new_fields:
                self.state.seen_names.look(new_names, batch, rows, reader)
            yield Page(reader, batch, rows)

    def _wanted(self, reader: MemberReader, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Return the byte ranges of a shard that will be read for these rows."""
        part, batch = self._part, reader.batch
        for row in rows:
            if part is None and not self.selection.changes_members:
                yield batch.start(row), batch.end(row)
            elif part is None or part.key is None or part.key == batch.keys[row]:
                for place, field in self.selection.plan_of(batch, row, reader.source.name):
                    if part is None or part.fields(field):
                        expected = reader.expected(batch.firsts[row] + place)
                        yield expected.first, expected.end


class SeenContent:
    """Finds duplicates among samples that are read once, by the SHA-256 of their content. Each sample needs 16 bytes of
    memory, and 33 bytes in scratch space."""

    def __init__(self, dedup: Dedup) -> None:
        self.dedup = dedup
        self._seen = KeySet()
        self._near = None if dedup.near is None else NearHashes(dedup.near)
        self.total = 0
        """The samples so far that have all fields."""

    def has(self, sample: SampleAt, pieces_of: Callable[[int], Iterable[bytes]]) -> bool:
        """Return whether a sample repeats an earlier sample, and remember it. ``pieces_of`` reads the payload of a
        member."""
        content = self.dedup.content(sample, pieces_of)
        if content is None:
            return False
        self.total += 1
        if self._near is not None:
            return self._near.add(hash_of(b"".join(content), "--dedup")) is not None
        state = sha256()
        for piece in content:
            state.update(piece)
        return not self._seen.add_new([state.digest()])


def set_values(address: str, value: Value | None) -> Iterator[bytes]:
    """Yield the values of the samples of a set, without samples that lack the value, or with None the keys. Raises
    InputError, DataError."""
    reader = SampleReader(Request([address], "-"), writes_names=False)
    for page in reader.pages():
        if value is None:
            yield from (page.batch.keys[row] for row in page.rows)
            continue
        for row in page.rows:
            sample = page.sample(row)
            try:
                text = value.of(sample)
            except DataError as error:
                error.hint = (
                    f"{value.option} must be known for each sample of {address}: wds cat --where selects"
                )
                raise
            if text is not None:
                yield text


def _seen_content(request: Request) -> SeenContent | None:
    """Return the memory of ``--dedup`` for earlier samples, or None without ``--dedup``. Raises UsageError for a second
    pass."""
    dedup, draw = Dedup.of(request), request.selection.draw
    if dedup is not None and draw is not None and draw.is_open:
        raise UsageError(
            f"--sample {draw.text} and --dedup need two passes, but cat reads the input once",
            hint="draw a share: --sample 10%; or use wds merge SET --dedup FIELD --sample N",
        )
    return None if dedup is None else SeenContent(dedup)
