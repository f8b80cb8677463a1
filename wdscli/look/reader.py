"""The reader that ``ls`` and ``cat`` share: it reads a set shard by shard and counts samples.

:class:`SetReader` is the base of :class:`~wdscli.look.listing.Listing` and
:class:`~wdscli.look.picking.SampleReader`. The index serves a remote shard when only a part of it is wanted. A local
shard is scanned, which is as fast, unless its index has values that replace payloads. A shard found by listing a folder
needs no request if its index belongs to the listed version. The module does not know what the samples are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from wdscli.errors import DataError, UsageError
from wdscli.progress import QUIET, Progress
from wdscli.samples import Ignored, SampleBatch
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.selection.reading import Payloads, expecting
from wdscli.shards.inputs import (
    ShardSet,
    classes_of,
    known_samples,
    missing_samples,
    warn_unfinished,
    without_index,
)
from wdscli.storage import Source, is_local, open_source
from wdscli.storage.addresses import view_of
from wdscli.storage.opening import listed_version
from wdscli.tar import CANONICAL, Form, Window

if TYPE_CHECKING:
    from wdscli.shards.reading import Beside


class SetReader:
    """The shards of a set, and counts of the samples read so far.

    ``troubles`` holds the errors skipped by ``on_error="skip"``. An index is used only if it has this ``form``; None
    accepts any. Raises UsageError if standard input would have to hold both keys and a shard.
    """

    def __init__(
        self,
        shards: ShardSet,
        selection: Selection,
        on_error: OnError,
        progress: Progress = QUIET,
        form: Form | None = None,
    ) -> None:
        warn_unfinished(shards, progress.warn)
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
        self._ignored = Ignored()
        self._damaged = missing_samples(shards.missing)
        self._known = known_samples(shards) if self.skips else {}
        self._beside: dict[str, Beside] = {}

    @property
    def dropped(self) -> dict[str, int]:
        """Counts of skipped samples by reason."""
        return dict(sorted((Counter(self.state.dropped) + Counter(self._damaged)).items()))

    @property
    def ignored(self) -> dict[str, int]:
        """Counts of members outside any sample, by reason."""
        return dict(sorted(self._ignored.counts.items()))

    def drop(self, reason: str, count: int = 1) -> None:
        """Count samples that the caller skips."""
        self._damaged[reason] = self._damaged.get(reason, 0) + count

    def _trouble(self, error: DataError) -> None:
        self.troubles.append(error)
        self._progress.warn(str(error))

    @cached_property
    def _unindexed(self) -> frozenset[str]:
        """The shards without an index, as far as this is known without a request per shard."""
        return frozenset() if all(map(is_local, self.set.addresses)) else without_index(self.set)

    def _open_by_index(self, address: str, whole: bool = False) -> Source:
        """Open a shard, if possible without a request, from what its index says. ``whole`` is passed to
        :func:`open_source` if there is no index."""
        if address in self._unindexed:
            return open_source(address, whole=whole)
        listed = listed_version(address) if address in self.set.listed else None
        if listed is None:
            return open_source(address)
        from wdscli.shards.reading import open_by_index

        source, self._beside[address] = open_by_index(address, *listed)
        return source or open_source(address)

    def _indexed(self, source: Source, payloads: Payloads) -> Iterator[SampleBatch] | None:
        """The samples of a shard from its index; None if it has no usable index, and for a local shard, unless it is a
        view's, also if no stored values can replace payloads. Payloads for ``--where`` are requested in groups."""
        is_near = is_local(source.name) and view_of(source.name) is None
        if not source.seekable or source.name in self._unindexed or (is_near and not payloads.fields):
            return None
        from wdscli.shards.reading import find_index, index_batches

        beside = self._beside.pop(source.name, None)
        index = find_index(source.name, source, None if is_near else self._progress.warn, beside=beside)
        if index is None or (self._form is not None and index.form != self._form):
            return None
        if is_near and not index.exact:
            return None
        payloads.by_index = True
        batches = index_batches(index, self._ignored)
        selection = self.selection.using(frozenset(index.exact))
        return expecting(source, batches, selection, payloads, selection.payload_fields)

    def _sound(self, source: Source, see: Callable[[Window], None] | None = None) -> Iterator[SampleBatch]:
        """The undamaged samples; the others are counted."""
        from wdscli.samples.grouping import Salvager

        form, known = self._form or CANONICAL, self._known.get(source.name, -1)
        salvager = Salvager(source, self._trouble, self._damaged, form=form, ignored=self._ignored, see=see)
        return salvager.batches(known)
