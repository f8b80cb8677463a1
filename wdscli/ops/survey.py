"""What a plan needs to know of one input shard: where its selected samples lie and how long each will be.

What it is: a task, :func:`survey`, that reads headers (or the index) of one shard and gives packed columns, some forty
bytes a sample. How: keys are not kept, only their XXH3-64, from which repeated keys are found over all shards and the
few candidates compared by name (:func:`samples_at`). It must not know orders, cuts or outputs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.ops.preserve import kept_length, kept_mark, kept_members
from wdscli.ops.rekey import Rekey, shard_stem
from wdscli.ops.runs import Globals
from wdscli.ops.salvage import salvaged_batches
from wdscli.ops.scratch import Input, refused, spool
from wdscli.samples import Ignored, SampleBatch
from wdscli.selection import Selection, SelectionState
from wdscli.selection.choice import OnError
from wdscli.selection.reading import iter_selected
from wdscli.shards.find import batches
from wdscli.storage import Source
from wdscli.tar import GLOBAL, Form, build_header, padded
from wdscli.tar.header import BLOCK

RENAMED = 0b1000000
"""Mark of a sample that gets a new key."""

hash_key = xxh3_64_intdigest
"""What a survey keeps of a key."""


class SurveyTask(NamedTuple):
    """One input shard and what is wanted of it. ``rekey`` gives all samples new keys; ``spool`` is where an input that
    can be read only once is copied to."""

    input: Input
    form: Form
    selection: Selection
    rekey: Rekey | None = None
    use_index: bool = True
    on_error: OnError = "stop"
    preserve: bool = False
    spool: str = ""

    @property
    def address(self) -> str:
        """The shard as the user named it."""
        return self.input.address


class Survey(NamedTuple):
    """Columns with one entry a selected sample: its place in the shard (counted before selection), the run's first byte
    and length, the length it will have in the output, its mark (0: copy the run as it stands) and the XXH3-64 of its
    (new) key. ``members`` and ``payload_bytes`` count those to be written. ``copy`` is the path of the shard's copy, if
    it had to be copied."""

    places: array[int]
    starts: array[int]
    lengths: array[int]
    out_lengths: array[int]
    marks: bytearray
    keys: array[int]
    members: int
    payload_bytes: int
    size_bytes: int
    ignored: dict[str, int]
    dropped: dict[str, int]
    warnings: list[str]
    copy: str = ""


def new_survey() -> Survey:
    return Survey(
        array("Q"), array("Q"), array("Q"), array("Q"), bytearray(), array("Q"), 0, 0, 0, {}, {}, []
    )


def survey(task: SurveyTask, state: SelectionState | None = None) -> Survey:
    """Read one shard's headers. Raises InputError, DataError."""
    found, ignored = new_survey(), Ignored()
    state = state or task.selection.new_state(task.on_error)
    members = payload_bytes = 0
    task = _at_any_place(task, found.warnings)
    with task.input.open() as source:
        size = source.size or 0
        for batch, rows in _selected(task, source, state, ignored, found.dropped, found.warnings):
            counts = _add(found, task, batch, rows)
            members += counts[0]
            payload_bytes += counts[1]
    return found._replace(
        members=members,
        payload_bytes=payload_bytes,
        size_bytes=size,
        ignored=ignored.counts,
        copy=task.input.copy,
    )


def _at_any_place(task: SurveyTask, warnings: list[str]) -> SurveyTask:
    """The task with an input that can be read at any place: the one it has, or a copy."""
    with task.input.open() as source:
        if source.seekable:
            return task
        if not task.spool:
            raise refused(task.address)
        spool(source, task.spool, cut=_warner(warnings) if task.on_error == "skip" else None)
    return task._replace(input=Input(task.address, task.spool))


def _selected(
    task: SurveyTask,
    source: Source,
    state: SelectionState,
    ignored: Ignored,
    dropped: dict[str, int],
    warnings: list[str],
) -> Iterator[tuple[SampleBatch, list[int] | None]]:
    """Batches with the rows that are selected, None for all."""
    if task.on_error == "skip":
        sound = salvaged_batches(source, _warner(warnings), dropped, form=task.form, ignored=ignored)
        yield from iter_selected(
            source, task.selection, state, form=task.form, batches=keep_safe(sound, dropped)
        )
        return
    if task.selection.needs_payload:
        yield from iter_selected(source, task.selection, state, form=task.form, ignored=ignored)
        return
    trivial = task.selection.is_trivial
    use_index = task.use_index and not task.input.copy
    for batch in batches(
        task.address, source, form=task.form, use_index=use_index, ignored=ignored, warn=warnings.append
    ):
        yield batch, None if trivial else task.selection.apply(batch, source.name, state)
        if state.done:
            return


def _add(found: Survey, task: SurveyTask, batch: SampleBatch, rows: list[int] | None) -> tuple[int, int]:
    """Add one batch; returns members and payload bytes that will be written."""
    check_keys(batch, task.address)
    if rows is None and task.rekey is None and not any(batch.marks):
        return _add_plain(found, batch)
    if task.preserve:
        return _add_kept(found, task, batch, rows)
    members = payload_bytes = 0
    stem = shard_stem(task.address)
    for row in range(len(batch.keys)) if rows is None else rows:
        key = batch.keys[row]
        new = key if task.rekey is None else task.rekey.key(key, stem, batch.index + row)
        sizes = out_sizes(batch, row, task.selection, task.address, new)
        found.places.append(batch.index + row)
        start = batch.start(row)
        found.starts.append(start)
        found.lengths.append(batch.end(row) - start)
        found.out_lengths.append(out_length(sizes, task.form))
        found.marks.append(batch.marks[row] | (RENAMED if task.rekey is not None else 0))
        found.keys.append(hash_key(new))
        members += len(sizes)
        payload_bytes += sum(size for _, size in sizes)
    return members, payload_bytes


def _add_plain(found: Survey, batch: SampleBatch) -> tuple[int, int]:
    """All samples of a canonical batch, as they stand."""
    firsts, offsets, sizes = batch.firsts, batch.offsets, batch.sizes
    starts = [batch.starts[first] for first in firsts[:-1]]
    lengths = [
        (offsets[last - 1] + sizes[last - 1] + 511 & -512) - start
        for last, start in zip(firsts[1:], starts, strict=True)
    ]
    found.places.extend(range(batch.index, batch.index + len(starts)))
    found.starts.extend(starts)
    found.lengths.extend(lengths)
    found.out_lengths.extend(lengths)
    found.marks.extend(bytes(len(starts)))
    found.keys.extend(map(hash_key, batch.keys))
    return len(batch.fields), sum(sizes)


def _add_kept(found: Survey, task: SurveyTask, batch: SampleBatch, rows: list[int] | None) -> tuple[int, int]:
    """Samples whose headers stay as they are."""
    members = payload_bytes = 0
    with task.input.open() as source:
        before = Globals(source) if any(mark & GLOBAL for mark in batch.marks) else None
        for row in range(len(batch.keys)) if rows is None else rows:
            start, end, mark = batch.start(row), batch.end(row), kept_mark(batch.marks[row], task.selection)
            length = end - start
            if mark:
                known = before.before(start) if before is not None and mark & GLOBAL else None
                length = kept_length(kept_members(source, batch, row, task.selection, known))
            found.places.append(batch.index + row)
            found.starts.append(start)
            found.lengths.append(end - start)
            found.out_lengths.append(length)
            found.marks.append(mark)
            found.keys.append(hash_key(batch.keys[row]))
            sizes = out_sizes(batch, row, task.selection, task.address, batch.keys[row])
            members += len(sizes)
            payload_bytes += sum(size for _, size in sizes)
    return members, payload_bytes


def check_keys(batch: SampleBatch, shard: str) -> None:
    """Raise DataError for a key that would make an unsafe name."""
    if _may_be_unsafe(batch):
        for row, key in enumerate(batch.keys):
            if is_unsafe(key):
                raise DataError(
                    "unsafe name",
                    code="unsafe-name",
                    shard=shard,
                    offset=batch.start(row),
                    member=to_text(key + b"." + batch.fields[batch.firsts[row]]),
                    hint="leave such samples out with --on-error skip, or see them all with `wds verify`",
                )


def _may_be_unsafe(batch: SampleBatch) -> bool:
    """A quick look at all keys together."""
    together = b"\n".join(batch.keys)
    return b".." in together or b"\n/" in together or together.startswith(b"/")


def is_unsafe(key: bytes) -> bool:
    """Whether names of this key would lead out of the folder they are unpacked in."""
    return key.startswith(b"/") or b".." in key.split(b"/")


def keep_safe(batches: Iterator[SampleBatch], dropped: dict[str, int]) -> Iterator[SampleBatch]:
    """The samples with safe names; the others are counted in ``dropped``."""
    for batch in batches:
        if not _may_be_unsafe(batch):
            yield batch
            continue
        for row, key in enumerate(batch.keys):
            if is_unsafe(key):
                dropped["unsafe-name"] = dropped.get("unsafe-name", 0) + 1
            else:
                yield batch.part(row, row + 1)


def _warner(warnings: list[str]) -> Callable[[DataError], None]:
    return lambda error: warnings.append(str(error))


def out_sizes(
    batch: SampleBatch, row: int, selection: Selection, shard: str, key: bytes
) -> list[tuple[bytes, int]]:
    """Name and payload bytes of the members that one sample will have."""
    first = batch.firsts[row]
    return [
        (key + b"." + field, batch.sizes[first + at]) for at, field in selection.plan_of(batch, row, shard)
    ]


def out_length(sizes: list[tuple[bytes, int]], form: Form) -> int:
    """Bytes that members of these names and sizes take, headers and padding included."""
    length = 0
    for name, size in sizes:
        simple = len(name) <= 100 and size < 1 << 33
        length += (BLOCK if simple else len(build_header(name, size, form))) + padded(size)
    return length


def samples_at(task: SurveyTask, places: Sequence[int]) -> Iterator[tuple[SampleBatch, int]]:
    """Some samples of a shard, by their places in rising order, each as a batch and a row of it."""
    wanted = iter(places)
    place = next(wanted, None)
    with task.input.open() as source:
        for batch in _all(task, source):
            while place is not None and place < batch.index + len(batch.keys):
                yield batch, place - batch.index
                place = next(wanted, None)
            if place is None:
                return


def _all(task: SurveyTask, source: Source) -> Iterator[SampleBatch]:
    """All samples of a shard, as :func:`survey` saw them."""
    if task.on_error == "skip":
        return keep_safe(salvaged_batches(source, lambda _: None, {}, form=task.form), {})
    use_index = task.use_index and not task.input.copy
    return batches(task.address, source, form=task.form, use_index=use_index)
