"""The indexes of a set's remote shards, read where they save requests: what ``ls`` and ``cat`` share.

What it is: :class:`Indexes`, which opens shards and gives the samples that their indexes list. How: a shard on this
machine is scanned, which is as fast. A shard that a listing has just named is not requested at all where its index is
of the listed version. It must not know what the samples are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from wdscli.samples import Ignored, SampleBatch
from wdscli.selection import Selection
from wdscli.selection.reading import Payloads
from wdscli.storage import Source, is_local, open_source
from wdscli.storage.opening import version_listed
from wdscli.tar import Form

if TYPE_CHECKING:
    from wdscli.shards.inputs import ShardSet
    from wdscli.shards.reading import Beside


class Indexes:
    """The indexes of a set. ``warn`` is called for one that is stale. An index of another ``form`` is not used."""

    def __init__(self, shards: ShardSet, warn: Callable[[str], None], form: Form | None = None) -> None:
        self._listed, self._warn, self._form = shards.listed, warn, form
        self._missing = frozenset[str]()
        if not all(map(is_local, shards.addresses)):
            from wdscli.shards.inputs import without_index

            self._missing = without_index(shards)
        self._beside: dict[str, Beside] = {}

    def open(self, address: str, whole: bool = False) -> Source:
        """A shard, by its index if possible; without one ``whole`` is as :func:`open_source` has it."""
        if address in self._missing:
            return open_source(address, whole=whole)
        listed = version_listed(address) if address in self._listed else None
        if listed is None:
            return open_source(address)
        from wdscli.shards.reading import open_by_index

        source, self._beside[address] = open_by_index(address, *listed)
        return source or open_source(address)

    def batches(self, source: Source, ignored: Ignored) -> Iterator[SampleBatch] | None:
        """The samples of a shard from its index; None for a local shard and where no index can be used."""
        if is_local(source.name) or not source.seekable or source.name in self._missing:
            return None
        from wdscli.shards.reading import find_index, index_batches

        index = find_index(source.name, source, self._warn, beside=self._beside.pop(source.name, None))
        if index is None or (self._form is not None and index.form != self._form):
            return None
        return index_batches(index, ignored)


def expecting(
    source: Source, batches: Iterable[SampleBatch], selection: Selection, payloads: Payloads
) -> Iterator[SampleBatch]:
    """The batches; the payloads that ``--where`` reads come by a few requests, unless keys leave most samples out."""
    for batch in batches:
        payloads.batch = batch
        if selection.needs_payload and selection.key_rule is None:
            source.expect(payloads.ranges(range(len(batch.keys)), selection.payload_fields))
        yield batch
