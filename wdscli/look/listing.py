"""This module lists samples, members and shards. :mod:`wdscli.look.summary` sums up a listing.

:func:`ls` returns a :class:`Listing`. It yields rows while the shards are read, so that the first row comes
immediately, and memory does not grow with the set. Rows come as columns of a batch. Members are grouped into samples
only if a selection needs samples. Links, devices and repeated fields are shown or counted. They are no errors here,
because nothing is copied.

:class:`SetReader` is the base of :class:`Listing` and of :class:`~wdscli.look.picking.SampleReader`. It reads a set
shard by shard, and counts samples. For a remote shard, the index is used if only a part of the shard is wanted, which
saves requests. A local shard is scanned, because a scan is as fast; its index is used only if it has values that
replace payloads. If a folder listing has the version for which the index was made, the shard needs no request.

This module does not know how rows are laid out or printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.progress import QUIET, Progress
from wdscli.samples import SampleBatch, new_batch
from wdscli.samples.grouping import SampleAt
from wdscli.samples.keys import JOIN_HINT, SeparatedSamples
from wdscli.selection import Selection
from wdscli.selection.choice import OnError, SelectionState
from wdscli.selection.named import MissingName
from wdscli.selection.reading import MemberReader, Salvage, Walk
from wdscli.shards.inputs import (
    Missing,
    ShardSet,
    ShardStage,
    classes_of,
    known_samples,
    missing_samples,
    open_set,
    without_index,
)
from wdscli.storage import Source, is_local, open_source
from wdscli.storage.addresses import view_of
from wdscli.storage.opening import is_one_request, listed_version
from wdscli.tar import CANONICAL, Columns, Form, padded, scan
from wdscli.text import to_text

if TYPE_CHECKING:
    from wdscli.shards.proof import StoredIndex


class Page(NamedTuple):
    """Some selected samples of one shard.

    ``batch`` has only these samples, with the selected fields under their new names. ``places`` are the samples' places
    in the shard, from 0. ``stored`` are the fields' names in the shard. ``payload(row, member)`` returns the payload of
    a member of ``batch``, if its field was requested. It may be called until the next page.
    """

    shard: str
    batch: SampleBatch
    places: Sequence[int]
    stored: Sequence[bytes]
    payload: Callable[[int, int], bytes]


class ReadSamples(NamedTuple):
    """The samples at the beginning of a shard that a caller has already read: the offset after them, their number, and
    the search for separated samples that knows them."""

    offset: int = 0
    samples: int = 0
    search: SeparatedSamples | None = None


UNREAD = ReadSamples()


class ShardRow(NamedTuple):
    """The row for one shard. ``size_bytes`` is the size of the archive, or with a selection, of the selected members'
    blocks. ``payload_bytes`` is the size of the payloads."""

    shard: str
    samples: int
    members: int
    size_bytes: int
    payload_bytes: int


class LsReport(NamedTuple):
    """The counts of a listing that has ended.

    ``samples`` counts selected samples, and ``dropped`` counts skipped samples by reason. Both are empty for members
    without a selection. ``ignored`` counts members that belong to no sample, by reason. ``broken`` has the skipped
    errors, and ``remarks`` has the warnings about the selection. ``missing`` has the shards that a manifest lists but
    that do not exist.
    """

    shards: int
    samples: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    broken: list[DataError]
    remarks: list[str]
    missing: tuple[Missing, ...] = ()


def ls(
    addresses: Sequence[str],
    *,
    selection: Selection = Selection(),  # noqa: B008  (immutable)
    trust_addresses: bool = False,
    on_error: OnError = "stop",
    progress: Progress = QUIET,
) -> Listing:
    """Return the listing of the shards at ``addresses``, in the form of :func:`wdscli.shards.open_set`.

    Nothing is read before the listing is iterated. With ``on_error="skip"``, the undamaged samples of a damaged shard
    are listed, and samples next to damage are counted as ``damaged``. Otherwise DataError is raised after the samples
    before the damage. Missing shards are in the report. Raises UsageError, InputError, DataError.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(str(folder / "a.tar")) as writer:
    ...     writer.write("cat1", {"jpg": b"...", "cls": b"0"})
    >>> [page.batch.keys for page in ls([str(folder)]).samples()]
    [[b'cat1']]
    """
    shards = open_set(addresses, missing="list", warn=progress.warn, trust_addresses=trust_addresses)
    return Listing(shards, selection, on_error, progress)


class SetReader:
    """The shards of a set, and counts of the samples read so far.

    ``troubles`` has the errors skipped by ``on_error="skip"``. An index is used only if it has this ``form``; None
    accepts any form. Raises UsageError if standard input is used for both keys and a shard.
    """

    def __init__(
        self,
        shards: ShardSet,
        selection: Selection,
        on_error: OnError,
        progress: Progress = QUIET,
        form: Form | None = None,
    ) -> None:
        if selection.reads_stdin and "-" in shards.addresses:
            raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
        self.set = shards
        self.selection = selection.with_classes(lambda: classes_of(shards))
        self.state = self.selection.new_state(on_error)
        self.skips = on_error == "skip"
        """Whether damaged samples are skipped and counted."""
        self.troubles: list[DataError] = []
        self._on_error: OnError = on_error
        self._progress = progress
        self._form = form
        self._ignored = Counter[str]()
        self.names: dict[str, str] = {}
        """Names for warnings of shards that are local copies, by the copy's address."""
        self._has_parts = self._writes_names = self._lenient = False
        self._damaged = missing_samples(shards.missing)
        self._known = known_samples(shards) if self.skips else {}
        self._stored: dict[str, StoredIndex] = {}
        self._unproven_bytes = self._indexed_bytes = 0
        """The sizes of indexed shards, and of those whose stored values are not proven, so that payloads are read."""

    @property
    def dropped(self) -> dict[str, int]:
        """The counts of skipped samples, by reason."""
        return dict(sorted((Counter(self.state.dropped) + Counter(self._damaged)).items()))

    @property
    def ignored(self) -> dict[str, int]:
        """The counts of members that belong to no sample, by reason."""
        return dict(sorted(self._ignored.items()))

    def drop(self, reason: str, count: int = 1) -> None:
        """Count samples that the caller skips."""
        self._damaged[reason] = self._damaged.get(reason, 0) + count

    def skip_undecodable(self, error: DataError) -> None:
        """Count a sample that cannot be decoded. Raise other errors, and raise every error if errors stop the
        command."""
        if not self.skips or error.code != "undecodable":
            raise error
        self.drop("undecodable")

    def _trouble(self, error: DataError) -> None:
        self.troubles.append(error)
        self._progress.warn(str(error))

    @cached_property
    def _unindexed(self) -> frozenset[str]:
        """Return the shards without an index, if this is known without a request per shard."""
        return frozenset() if all(map(is_local, self.set.addresses)) else without_index(self.set)

    def _open_by_index(self, address: str, whole: bool = False) -> Source:
        """Open a shard by its index, if possible without a request. Without an index, pass ``whole`` to
        :func:`open_source`."""
        if address in self._unindexed:
            return open_source(address, whole=whole)
        listed = listed_version(address) if address in self.set.listed else None
        if listed is None:
            return open_source(address)
        from wdscli.shards.proof import open_by_index

        source, self._stored[address] = open_by_index(address, listed)
        return source or open_source(address)

    def _indexed(self, source: Source, payloads: MemberReader) -> Iterator[SampleBatch] | None:
        """Return the samples of a shard from its index, or None if the index is not used. For a local shard that is not
        a view's shard, the index is used only if its stored values can replace payloads."""
        is_near = is_local(source.name) and view_of(source.name) is None
        if not source.seekable or source.name in self._unindexed or (is_near and not payloads.fields):
            return None
        from wdscli.shards.index import Check
        from wdscli.shards.proof import find_index, unproven_bytes
        from wdscli.shards.reading import index_batches

        warn, stored = None if is_near else self._progress.warn, self._stored.pop(source.name, None)
        index = find_index(source.name, source, warn, form=self._form, check=Check.ALL_LOCAL, stored=stored)
        if index is not None:
            self._indexed_bytes += index.size
            self._unproven_bytes += unproven_bytes(index, payloads.fields)
        if index is None or (is_near and not index.exact):
            return None
        payloads.by_index = True
        return index_batches(index, self._ignored)

    def _chosen(
        self, reader: MemberReader, indexed: Iterator[SampleBatch] | None, beginning: ReadSamples = UNREAD
    ) -> Iterator[tuple[SampleBatch, list[int]]]:
        """Yield the selected samples of the shard that ``reader`` reads, in the way of :class:`Walk`. Warn once about a
        sample whose members are not next to each other."""
        shard, form = reader.source.name, self._form or CANONICAL
        search = beginning.search or SeparatedSamples()
        salvage = Salvage(self._trouble, self._damaged, self._known.get(shard, -1)) if self.skips else None
        begin = beginning.offset, beginning.samples
        how = form, self._ignored, salvage, self._writes_names, self._lenient, begin
        for batch, rows in Walk(self.selection, self.state, reader, *how).chosen(indexed):
            row = (
                None
                if self._has_parts
                else next(iter(search.add_batch(batch.keys, batch.firsts, batch.fields)), None)
            )
            if row is not None:
                self._has_parts = True
                name = self.names.get(shard, shard)
                self._progress.warn(
                    f'"{to_text(batch.keys[row])}" of {name} is in several parts: {JOIN_HINT}'
                )
            yield batch, rows


class Listing(SetReader):
    """A listing: call :meth:`samples`, :meth:`members` or :meth:`shards` once, then :meth:`report`.

    With ``by_index``, remote shards are listed from their indexes. This is the default unless errors are skipped,
    because an index does not show damage.
    """

    def __init__(
        self,
        shards: ShardSet,
        selection: Selection,
        on_error: OnError,
        progress: Progress,
        *,
        by_index: bool | None = None,
    ) -> None:
        super().__init__(shards, selection, on_error, progress)
        self._lenient = True
        self._lack = ""
        self._by_index = not self.skips if by_index is None else by_index
        self._absences: list[MissingName] = []
        self._read = 0

    def samples(self, payloads_of: frozenset[bytes] = frozenset()) -> Iterator[Page]:
        """Yield the selected samples in order, with the payloads of some fields. ``fields`` are names after
        ``--rename``."""
        rule = self.selection.field_rule
        renames = {} if rule is None else rule.renames
        olds = {old for new in payloads_of for old in renames.get(new, ())}
        for source in self._sources():
            yield from self._pages(source, payloads_of | olds)

    def each(self, payloads_of: Callable[[frozenset[str]], frozenset[bytes]]) -> Iterator[SampleAt]:
        """Yield the selected samples in order, with all fields under their names in the shard. Some payloads can be
        read until the next sample. ``payloads_of`` returns the fields of these payloads; its argument is the names of
        the stored values in a shard."""
        for source in self._sources():
            for batch, rows, payloads in self._selected(source, payloads_of(frozenset()), payloads_of):
                for row in rows:
                    yield SampleAt(batch, row, source.name, payloads)

    def remark(self, missing_names: Iterable[MissingName]) -> None:
        """Add a warning to the report about names that no sample has."""
        self._absences += missing_names

    def members(self) -> Iterator[tuple[str, Columns]]:
        """Yield the shard and the columns of some members at a time. Without a selection, these are all members of the
        shards, also members that belong to no sample. With a selection, these are the selected members, named by key
        and field."""
        self._by_index = self._by_index and not self.selection.is_trivial
        for source in self._sources():
            if self.selection.is_trivial:
                windows = scan(source)
                if self.skips:
                    from wdscli.tar.reader import scan_salvaging

                    windows = scan_salvaging(source, self._trouble)
                for window in windows:
                    yield source.name, window.columns
            else:
                for page in self._pages(source):
                    yield source.name, page.batch.columns()

    def shards(self, visit: Callable[[Page], None] | None = None) -> Iterator[ShardRow]:
        """Yield a row for each shard after it was read. ``visit`` is called with each page of samples."""
        for source in self._sources():
            samples = members = size = payload = 0
            for page in self._pages(source):
                batch = page.batch
                samples += len(batch.keys)
                members += len(batch.fields)
                payload += sum(batch.sizes)
                size += sum(map(padded, batch.sizes)) + sum(batch.offsets) - sum(batch.starts)
                if visit is not None:
                    visit(page)
            if self.selection.is_trivial and source.size is not None:
                size = source.size
            yield ShardRow(source.name, samples, members, size, payload)

    def report(self) -> LsReport:
        """Return counts and warnings. Call this after the listing has ended."""
        state = self.state
        missing_names = [*self.selection.missing_names(state), *self._absences]
        remarks = [*self.selection.remarks(state), *(absence.text for absence in missing_names), self._lack]
        if not missing_names:
            remarks.append(_empty_where(state))
        if self._unproven_bytes:
            from wdscli.shards.proof import unproven_text

            remarks.append(unproven_text(self._unproven_bytes, self._indexed_bytes, self.set.addresses[0]))
        return LsReport(
            self._read,
            state.kept,
            self.dropped,
            self.ignored,
            self.troubles,
            list(filter(None, remarks)),
            self.set.missing,
        )

    def _opened(self, address: str, whole: bool) -> Source:
        """Open a shard. The bases of a view are compared with their indexes, like shards that are listed."""
        open_one = self._open_by_index if self._by_index else open_source
        if view_of(address) is None:
            return open_one(address, whole=whole)
        from wdscli.shards.index import Check
        from wdscli.shards.proof import checking

        with checking(Check.ALL_LOCAL):
            return open_one(address, whole=whole)

    def _sources(self) -> Iterator[Source]:
        """Open the shards one after the other until no further sample can be selected."""
        self.selection, self._lack = settled(
            self.set, self.selection, self._on_error, by_index=self._by_index
        )
        stage = ShardStage(self._progress, "reading", self.set.addresses)
        for address in self.set.addresses:
            if self.state.done:
                break
            whole = self.selection.limit is None and is_one_request(address)
            with self._opened(address, whole) as source:
                yield source
            self._read += 1
            stage.next()
        self._progress.finish()

    def _pages(self, source: Source, payloads_of: frozenset[bytes] = frozenset()) -> Iterator[Page]:
        for batch, rows, payloads in self._selected(source, payloads_of):
            yield _project(source.name, batch, rows, self.selection, payloads)

    def _selected(
        self,
        source: Source,
        payloads_of: frozenset[bytes],
        with_values: Callable[[frozenset[str]], frozenset[bytes]] | None = None,
    ) -> Iterator[tuple[SampleBatch, list[int], MemberReader]]:
        payloads = MemberReader(source, self.selection.payload_fields | payloads_of)
        indexed = self._indexed(source, payloads) if self._by_index else None
        try:
            for batch, rows in self._chosen(payloads, indexed):
                if payloads.by_index and payloads_of:
                    fields = payloads_of if with_values is None else with_values(frozenset(batch.values))
                    payloads.request(fields, rows)
                yield batch, rows, payloads
        except DataError as error:
            if not self.skips:
                raise
            self._trouble(error)

    def _trouble(self, error: DataError) -> None:
        error.shard = self.names.get(error.shard or "", error.shard)
        super()._trouble(error)


def _empty_where(state: SelectionState) -> str:
    """Return the warning that ``--where`` matches no sample. It is empty if it matches a sample."""
    count = state.dropped.get("where", 0)
    if not count or state.kept or not {"keys", "not-keys", "where"}.issuperset(state.dropped):
        return ""
    return (
        f"--where matches none of {count} samples" if count > 1 else "--where does not match the only sample"
    )


def settled(
    shards: ShardSet,
    selection: Selection,
    on_error: OnError,
    *,
    distinct: bool = False,
    by_index: bool | None = None,
) -> tuple[Selection, str]:
    """Return the selection with the ranks that ``--sample N`` chooses. Also return a warning if there are fewer
    samples, or "".

    To choose a number of samples, all keys are read first. With ``distinct``, a repeated key counts once. ``by_index``
    has the meaning of :class:`Listing`. Raises UsageError if a shard cannot be read twice.
    """
    draw = selection.draw
    if draw is None or not draw.is_open:
        return selection, ""
    from wdscli.selection.draw import LowestRanks, check_rereadable

    check_rereadable(draw, shards.addresses)
    lowest = LowestRanks(draw, distinct=distinct)
    for page in Listing(shards, selection.before_draw, on_error, QUIET, by_index=by_index).samples():
        lowest.add(page.batch.keys)
    return selection._replace(draw=draw.settled(lowest)), draw.lack(lowest.total)


def _project(
    shard: str, batch: SampleBatch, rows: list[int], selection: Selection, payloads: MemberReader
) -> Page:
    """Return a page with the selected samples of a batch."""
    if len(rows) == len(batch.keys) and not selection.changes_members:
        whole = range(batch.index, batch.index + len(rows))
        return Page(
            shard, batch, whole, batch.fields, lambda row, member: payloads(row, batch.fields[member])
        )
    page = new_batch(batch.index)
    stored: list[bytes] = []
    for row in rows:
        first = batch.firsts[row]
        for place, name in selection.plan_of(batch, row, shard):
            member = first + place
            page.fields.append(name)
            stored.append(batch.fields[member])
            page.starts.append(batch.starts[member])
            page.offsets.append(batch.offsets[member])
            page.sizes.append(batch.sizes[member])
            page.flags.append(batch.flags[member])
        page.keys.append(batch.keys[row])
        page.firsts.append(len(page.fields))
        page.marks.append(batch.marks[row])
    places = [batch.index + row for row in rows]
    return Page(shard, page, places, stored, lambda row, member: payloads(rows[row], stored[member]))
