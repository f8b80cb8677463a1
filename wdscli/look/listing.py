"""What is in shards: their samples, their members, the shards themselves; :mod:`wdscli.look.summary` adds it
all up.

What it is: :func:`ls`, which gives a :class:`Listing` to iterate over while the shards are read, so that the
first row is there at once and memory does not grow with the set. How: columns all the way; members are not
grouped into samples unless a selection asks for samples. An index is used for addresses that are far away,
where it saves requests; a local scan is as fast. A look is not a copy: links, devices and fields that come
twice are shown or counted, not refused.

It must not know how rows are laid out or printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from wdscli.errors import DataError, InputNotFoundError
from wdscli.look.reader import SetReader
from wdscli.progress import QUIET, Progress
from wdscli.samples import SampleBatch, new_batch
from wdscli.selection import Selection, iter_selected
from wdscli.selection.choice import OnError, SelectionState
from wdscli.selection.named import Absence
from wdscli.selection.reading import Payloads
from wdscli.shards.inputs import Missing, ShardSet, ShardStage, missing_shards, open_set, whole_set
from wdscli.storage import Source, folders_below, open_source
from wdscli.storage.opening import is_one_request
from wdscli.tar import Columns, padded, scan


class Page(NamedTuple):
    """Some selected samples of one shard. ``batch`` holds them alone, with the fields that were selected
    under their new names; ``places`` are their places in the shard, from 0; ``stored`` are the fields'
    names as the shard has them. ``payload(row, member)`` gives the payload of a member of ``batch`` whose field was
    asked for, until the next page is."""

    shard: str
    batch: SampleBatch
    places: Sequence[int]
    stored: Sequence[bytes]
    payload: Callable[[int, int], bytes]


class MemberPage(NamedTuple):
    """Some members of one shard, in order."""

    shard: str
    columns: Columns


class ShardRow(NamedTuple):
    """One shard: ``size_bytes`` are those of the archive as it is (with a selection: of the blocks that the
    selected members take), ``payload_bytes`` what is in these members."""

    shard: str
    samples: int
    members: int
    size_bytes: int
    payload_bytes: int


class LsReport(NamedTuple):
    """What was read: ``samples`` were selected and ``dropped`` left out, by reason (these two stay empty
    where members were listed without a selection); ``ignored`` are members that are part of no sample, by
    reason; ``broken`` the errors that were skipped, ``remarks`` what the user should hear of the
    selection, ``missing`` the shards that are not there although a manifest beside the others lists them."""

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
    """The listing of the shards at ``addresses`` (as :func:`wdscli.shards.open_set` takes them); nothing is
    read before it is iterated. A folder without shards stands for those below it that have some: the parts of a set.
    With ``on_error="skip"`` what can be told to be whole in a broken shard is
    listed, and samples beside damage are counted as ``damaged``; else the DataError comes after what is
    before it. Shards that are missing are in the report. Raises UsageError, InputError, DataError.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(str(folder / "a.tar")) as writer:
    ...     writer.write("cat1", {"jpg": b"...", "cls": b"0"})
    >>> [page.batch.keys for page in ls([str(folder)]).samples()]
    [[b'cat1']]
    """
    open_all = partial(whole_set, on_error="skip") if on_error == "skip" else open_set
    try:
        shards = open_all(addresses, trust_addresses=trust_addresses)
    except InputNotFoundError:
        parts = [part for address in addresses for part in folders_below(address) or [address]]
        if parts == list(addresses):
            raise
        shards = open_all(parts, trust_addresses=trust_addresses)
    return Listing(shards, selection, on_error, progress)


class Listing(SetReader):
    """Shards that are being listed. Take one of :meth:`samples`, :meth:`members`, :meth:`shards`, once, then
    :meth:`report`. Remote shards are listed from their indexes ``by_index``, by default unless errors are skipped: an
    index does not say which of its samples are damaged."""

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
        self.names: dict[str, str] = {}
        """What warnings call the shards that are copies, by their addresses."""
        self._lack = ""
        self._missing = shards.missing or tuple(missing_shards(shards))
        self._by_index = not self.skips if by_index is None else by_index
        self._absences: list[Absence] = []
        self._read = 0

    def samples(self, payloads_of: frozenset[bytes] = frozenset()) -> Iterator[Page]:
        """The selected samples, in order, with the payloads of some fields (under their new names)."""
        rule = self.selection.field_rule
        renames = () if rule is None else rule.renames
        olds = {old for one in renames if one.new in payloads_of for old in one.olds}
        for source in self._sources():
            yield from self._pages(source, payloads_of | olds)

    def remark(self, absences: Iterable[Absence]) -> None:
        """Say in the report which names no sample has."""
        self._absences += absences

    def members(self) -> Iterator[MemberPage]:
        """Every member of the shards, those of no sample too; with a selection, the members that it leaves,
        named by key and field."""
        self._by_index = self._by_index and not self.selection.is_trivial
        for source in self._sources():
            if self.selection.is_trivial:
                windows = scan(source)
                if self.skips:
                    from wdscli.tar.recover import scan_salvaging

                    windows = scan_salvaging(source, self._trouble)
                for window in windows:
                    yield MemberPage(source.name, window.columns)
            else:
                for page in self._pages(source):
                    yield MemberPage(source.name, _as_members(page.batch))

    def shards(self, visit: Callable[[Page], None] | None = None) -> Iterator[ShardRow]:
        """A row for each shard, when it has been read; ``visit`` is called with the samples on the way."""
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
        """What came of it."""
        state = self.state
        absences = [*self.selection.absences(state), *self._absences]
        told = [*self.selection.remarks(state), *(one.text for one in absences), self._lack]
        if not absences:
            told.append(_empty_where(state))
        return LsReport(
            self._read,
            state.kept,
            self.dropped,
            self.ignored,
            self.troubles,
            list(filter(None, told)),
            self._missing,
        )

    def _sources(self) -> Iterator[Source]:
        """The shards, opened one after the other, until no further sample can be selected. Those of which an index is
        used are opened by it where they can."""
        self.selection, self._lack = settled(
            self.set, self.selection, self._on_error, by_index=self._by_index
        )
        stage = ShardStage(self._progress, "reading", self.set.addresses)
        open_one = self._open_by_index if self._by_index else open_source
        for address in self.set.addresses:
            if self.state.done:
                break
            whole = self.selection.limit is None and is_one_request(address)
            with open_one(address, whole=whole) as source:
                yield source
            self._read += 1
            stage.next()
        self._progress.finish()

    def _pages(self, source: Source, payloads_of: frozenset[bytes] = frozenset()) -> Iterator[Page]:
        wanted = self.selection.payload_fields | payloads_of
        payloads = Payloads(source, wanted)
        batches = self._indexed(source, payloads) if self._by_index else None
        # A stream whose payloads are needed cannot be looked through twice.
        if batches is None and self.skips and (source.seekable or not wanted):
            batches = self._sound(source)
        found = iter_selected(
            source,
            self.selection,
            self.state,
            lenient=True,
            ignored=self._ignored,
            batches=batches,
            payloads=payloads,
        )
        try:
            for batch, rows in found:
                if payloads.by_index and payloads_of:
                    source.expect(payloads.ranges(rows, payloads_of))
                yield _project(source.name, batch, rows, self.selection, payloads)
        except DataError as error:
            if not self.skips:
                raise
            self._trouble(error)

    def _trouble(self, error: DataError) -> None:
        error.shard = self.names.get(error.shard or "", error.shard)
        super()._trouble(error)


def _empty_where(state: SelectionState) -> str:
    """What to say of a ``--where`` that no sample fulfils, whatever is said of the samples after it."""
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
    """The selection, and what to say of it: where a number of samples is drawn, all of them are seen first, which
    ``distinct`` keys count once. ``by_index`` is as :class:`Listing` has it. Raises UsageError where shards cannot be
    read twice."""
    draw = selection.draw
    if draw is None or not draw.is_open:
        return selection, ""
    from wdscli.selection.draw import Lowest, check_again

    check_again(draw, shards.addresses)
    lowest = Lowest(draw, distinct=distinct)
    # Headers alone, by indexes where these save requests.
    for page in Listing(shards, selection.before_draw, on_error, QUIET, by_index=by_index).samples():
        lowest.add(page.batch.keys)
    return selection._replace(draw=draw.settled(lowest)), draw.lack(lowest.total)


def _project(
    shard: str, batch: SampleBatch, rows: list[int], selection: Selection, payloads: Payloads
) -> Page:
    """The selected samples of a batch, alone."""
    if len(rows) == len(batch.keys) and not selection.changes_members:
        whole = range(batch.index, batch.index + len(rows))
        return Page(
            shard, batch, whole, batch.fields, lambda row, member: payloads.of(row, batch.fields[member])
        )
    page = new_batch(batch.index)
    stored: list[bytes] = []
    for row in rows:
        first = batch.firsts[row]
        for place, name in selection.plan_of(batch, row, shard):
            at = first + place
            page.fields.append(name)
            stored.append(batch.fields[at])
            page.starts.append(batch.starts[at])
            page.offsets.append(batch.offsets[at])
            page.sizes.append(batch.sizes[at])
            page.flags.append(batch.flags[at])
        page.keys.append(batch.keys[row])
        page.firsts.append(len(page.fields))
        page.marks.append(batch.marks[row])
    places = [batch.index + row for row in rows]
    return Page(shard, page, places, stored, lambda row, member: payloads.of(rows[row], stored[member]))


def _as_members(batch: SampleBatch) -> Columns:
    """The members of samples as columns of an archive."""
    names = [
        key + b"." + field
        for key, (first, end) in zip(batch.keys, pairwise(batch.firsts), strict=True)
        for field in batch.fields[first:end]
    ]
    return Columns(names, batch.starts, batch.offsets, batch.sizes, batch.flags)
