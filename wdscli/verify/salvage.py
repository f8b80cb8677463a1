"""Which samples of one damaged shard can be saved: the plan of a repair.

What it is: :func:`plan_shard`. How: one pass over the headers gathers 24 bytes a run; runs whose key was there before
are joined to the first when all their fields are new to it, and left out otherwise; a sample next to lost bytes is kept
only when it has every field that most samples have, or that is required. A second pass reads the places of the runs
that are joined. It must not write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wdscli.model import to_text
from wdscli.samples import new_batch
from wdscli.tar import ByteSource
from wdscli.verify.findings import Ledger
from wdscli.verify.keys import KeyColumns
from wdscli.verify.names import Fields
from wdscli.verify.runs import Part, Run, read_runs

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Salvage:
    """The plan for one shard. ``count`` samples can be saved; ``digests`` are those of their keys, packed, in order."""

    def __init__(self, source: ByteSource, keys: KeyColumns) -> None:
        self._source = source
        self._keys = keys
        self.dropped: set[int] = set()
        self.joined: dict[int, list[Part]] = {}
        self.first_of: dict[int, int] = {}
        """For each run that is joined to another, that other."""
        self.digests = b""

    @property
    def count(self) -> int:
        return len(self.digests) // 8

    def samples(self) -> Iterator[Run]:
        """The samples to write, in the order of the shard, with the parts that were joined to them."""
        for run in read_runs(self._source, Ledger(self._source.name, 0)):
            if run.row not in self.dropped:
                run.parts += self.joined.get(run.row, ())
                yield run


def plan_shard(
    source: ByteSource, ledger: Ledger, *, max_decoded: int | None = None, required: Fields = ()
) -> Salvage:
    """What can be saved of ``source``, which must be seekable; what cannot goes to ``ledger``. ``required`` are the
    fields by which a whole sample is known; without them, those that most samples have. With ``max_decoded``, payloads
    that have and become no more bytes are decoded."""
    keys = KeyColumns()
    hit: dict[int, bytes] = {}
    undecodable = None if max_decoded is None else _Undecodable(source, ledger, max_decoded)
    plan = Salvage(source, keys)
    for run in read_runs(source, ledger):
        _add_run(keys, run)
        if run.is_hit:
            hit[run.row] = run.key
        if undecodable is not None and undecodable.has(run):
            plan.dropped.add(run.row)
    masks = _joined_masks(plan, ledger)
    _drop_incomplete(plan, masks, hit, keys.mask(required) or None, ledger)
    plan.digests = _kept_digests(plan)
    return plan


def _add_run(keys: KeyColumns, run: Run) -> None:
    batch = new_batch()
    batch.keys.append(run.key)
    batch.firsts.append(1)
    batch.starts.append(run.start)
    keys.add(batch, [keys.mask(part.field for part in run.parts)])


class _Undecodable:
    """Decodes payloads, to leave samples out that have one which cannot be."""

    def __init__(self, source: ByteSource, ledger: Ledger, max_decoded: int) -> None:
        from wdscli.verify.decode import Decoder

        self._decoder = Decoder(ledger, max_decoded)
        self._source = source
        self._ledger = ledger

    def has(self, run: Run) -> bool:
        for part in run.parts:
            if not self._decoder.is_checked(
                part.field, part.size, run.start, to_text(run.key + b"." + part.field)
            ):
                continue
            payload = self._source.read_at(part.offset, part.size)
            reason = self._decoder.why_not(part.field, payload)
            if reason is not None:
                message = f"sample left out: {to_text(part.field)} cannot be decoded: {reason}"
                self._ledger.add("undecodable", message, offset=run.start, member=to_text(run.key))
                return True
        return False


def _joined_masks(plan: Salvage, ledger: Ledger) -> NDArray[numpy.uint64]:
    """The bits of every run's fields, those of joined runs added to the first; later runs of a key are dropped."""
    import numpy

    keys = plan._keys
    masks = numpy.array(keys.masks, dtype=numpy.uint64)
    repeats = keys.repeats()
    if repeats is None:
        return masks
    firsts = repeats.firsts
    joined = repeats.interleaved
    numpy.bitwise_or.at(masks, firsts[joined], masks[joined])
    plan.first_of = {row: int(firsts[row]) for row in joined.tolist()}
    wanted = plan.first_of
    again = set(repeats.duplicate.tolist())
    for run in read_runs(plan._source, Ledger(plan._source.name, 0)) if wanted or again else ():
        if run.row in wanted:
            plan.joined.setdefault(wanted[run.row], []).extend(run.parts)
        elif run.row in again:
            message = (
                f"sample left out: its key was there before, at byte {keys.starts[int(firsts[run.row])]}"
            )
            ledger.add("duplicate-key", message, offset=run.start, member=to_text(run.key))
    # A sample of which one part is left out is left out as a whole.
    plan.dropped |= {wanted[row] for row in plan.dropped if row in wanted}
    plan.dropped |= wanted.keys() | again
    return masks


def _drop_incomplete(
    plan: Salvage, masks: NDArray[numpy.uint64], hit: dict[int, bytes], usual: int | None, ledger: Ledger
) -> None:
    """Leave out samples next to lost bytes that lack a field of ``usual``, or without it of most samples."""
    import numpy

    if not hit:
        return
    whole: NDArray[numpy.bool_] = numpy.ones(len(masks), dtype=bool)
    hit = {plan.first_of.get(row, row): key for row, key in hit.items()}
    whole[[*plan.dropped, *hit]] = False
    kinds, counts = numpy.unique(masks[whole], return_counts=True)
    if usual is None and len(kinds):
        usual = int(kinds[counts.argmax()])
    for row, key in hit.items():
        if row in plan.dropped:
            continue
        if usual is None or int(masks[row]) & usual != usual:
            plan.dropped.add(row)
            message = "sample left out: bytes were lost next to it, and it lacks fields of a whole one"
            ledger.add("damaged", message, offset=plan._keys.starts[row], member=to_text(key))


def _kept_digests(plan: Salvage) -> bytes:
    import numpy

    digests = numpy.array(plan._keys.digests, dtype=numpy.uint64)
    keep: NDArray[numpy.bool_] = numpy.ones(len(digests), dtype=bool)
    keep[list(plan.dropped)] = False
    kept: bytes = digests[keep].tobytes()
    return kept
