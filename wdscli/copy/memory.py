"""The samples of a task in memory, for commands that look at them instead of writing a shard.

What it is: :func:`gathered_bytes`, the bytes that the copier makes of a task, and their samples. It must not know what
these are for.
"""

from __future__ import annotations

from collections.abc import Iterator

from wdscli.copy.copier import Copier, GatherTask
from wdscli.plan.inputs import Inputs
from wdscli.samples import SampleBatch, group_columns
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.storage.ends import Data, Sink
from wdscli.tar import Form, Scanner


def gathered_bytes(task: GatherTask) -> memoryview:
    """The samples of a task in memory, in the bytes of the shard, without the end of archive. Raises as :func:`gather`
    does."""
    memory = _Memory(task.address)
    settings = ShardSettings(task.settings.form, "none", with_index=False)
    with Inputs(task.inputs) as inputs, ShardFile(task.address, settings, memory) as shard:
        Copier(task, inputs, shard).run()
        inputs.confirm()
        shard.flush()
        memory.flush()
    return memoryview(memory.data)


def samples_of(data: memoryview, address: str, form: Form) -> SampleBatch:
    """The samples in :func:`gathered_bytes`."""
    scanner = Scanner(address, form=form)
    scanner.feed(data, 0)
    return group_columns(scanner.take(), address)


def payloads_of(data: memoryview, batch: SampleBatch, row: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the fields of one of these samples with their payloads, in its own order."""
    for at in range(batch.firsts[row], batch.firsts[row + 1]):
        yield batch.fields[at], data[batch.offsets[at] :][: batch.sizes[at]]


class _Memory(Sink):
    """A sink that keeps its bytes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.data = bytearray()

    def _put(self, data: Data) -> None:
        self.data += data

    def _commit(self) -> None:
        """Do nothing."""

    def _discard(self) -> None:
        """Do nothing."""
