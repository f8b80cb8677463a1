"""Where a run begins and where it ends: what an earlier run of the same plan has left is found, kept or refused.

What it is: :func:`begin`, which clears the way for a plan or finds what can be kept of it (:class:`Kept`), and
:func:`tidy`, which removes at the end what only an unfinished set needs. How: a shard is kept when its receipt tells of
the same plan and its bytes, read again, have the receipt's checksum. A part whose manifest is there is complete. It
must not know how shards are made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from wdscli.create.packing import PackTask
from wdscli.errors import DataError, InputNotFoundError, OutputExistsError, UsageError, WdsError
from wdscli.executors import make_executor, run_tasks, useful_jobs
from wdscli.model import ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.planfile import FAILURES, differing_options, shaping
from wdscli.plan.request import PlanMark
from wdscli.progress import Progress
from wdscli.run.receipts import CheckTask, Receipt, check_shard, read_receipt
from wdscli.run.tasks import pack_task
from wdscli.shards.claims import RECEIPT, remove_temporaries
from wdscli.shards.inputs import names_in, read_manifest
from wdscli.shards.manifest import INDEX_FOLDER, Manifest
from wdscli.shards.state import Unfinished, state_address
from wdscli.shards.writing import OutputSet
from wdscli.storage import base_name, exists, folder_of, is_local, local_path, open_source, remove
from wdscli.storage.blocks import kind_of_name
from wdscli.storage.opening import at_once, versions_at
from wdscli.tar import Form


class Kept(NamedTuple):
    """What is there already: shards by their task, tasks whose shard is there and is made once more (its index is
    missing, or its ``--post`` did not run), and the manifests of complete parts by their number."""

    shards: dict[int, ShardInfo]
    again: frozenset[int]
    manifests: dict[int, Manifest]


NOTHING = Kept({}, frozenset(), {})


class Found(NamedTuple):
    """A task and what lies in its shard's place, as far as names tell."""

    task: int
    shard: PlannedShard
    there: bool
    receipt: Receipt | None


def begin(plan: ReorderPlan, mark: PlanMark, progress: Progress) -> Kept:
    """Clear the way for all tasks of a plan. Raises OutputExistsError for what is there and must not be replaced."""
    is_stream = any(part.output.pattern.is_stream for part in plan.parts)
    if not plan.request.resume:
        for part in plan.parts:
            part.output.begin(plan.shards.addresses, mark.text, shaping(plan))
        if plan.request.settings.force and not is_stream:
            remove_temporaries(_own_files(plan))
        return NOTHING
    if is_stream:
        raise UsageError(
            "what went into a stream cannot be gone on with", hint="--resume is for shards in files"
        )
    if not plan.is_stored:
        remove_temporaries(_own_files(plan))
    for part in plan.parts:
        part.output.check(plan.shards.addresses, may_exist=True)
    return find_kept(plan, mark, range(len(plan.planned)), progress)


def _own_files(plan: ReorderPlan) -> list[str]:
    manifests = [one for part in plan.parts if (one := part.output.manifest_address) is not None]
    return [shard.address for shard in plan.planned] + manifests + list(map(state_address, manifests))


def find_kept(
    plan: ReorderPlan, mark: PlanMark, tasks: Sequence[int], progress: Progress, *, reading: bool = True
) -> Kept:
    """What is there of some tasks. With ``reading`` the bytes of what would be kept are compared with its checksum,
    else its size. Raises OutputExistsError."""
    everything = len(tasks) == len(plan.planned)
    parts = range(len(plan.parts)) if everything else sorted({plan.planned[task].part for task in tasks})
    manifests, others = complete_parts(plan, parts)
    states = {number: plan.parts[number].output.state.read() for number in parts if number not in manifests}
    # What an earlier attempt of this run has begun to replace, this one may replace without --force.
    replaced = {
        number
        for number, state in states.items()
        if plan.request.settings.force
        or (state is not None and (state.change, state.run) == ("replace", mark.text))
    }
    for number, state in states.items():
        if number not in replaced:
            _refuse_run(plan, mark, plan.parts[number].output, state)
    _refuse_manifests(plan, set(others) - replaced)
    if everything:
        _refuse_strangers(plan, manifests.keys() | replaced)
    form = plan.request.settings.form
    checks = [
        (found, found.receipt.check(found.shard.address, form))
        for found in look(plan, [task for task in tasks if plan.planned[task].part not in manifests])
        if found.there and _is_ours(plan, mark, found, replaced) and found.receipt is not None
    ]
    complete = [task for task in tasks if plan.planned[task].part in manifests]
    list_folders([plan.planned[task].address for task in complete])
    for task in complete:
        shard = plan.planned[task]
        info, address = manifests[shard.part].shards[shard.number], shard.address
        check = CheckTask(address, info, None, form, by_size=not is_local(address))
        checks.append((Found(task, shard, True, None), check))
    shards: dict[int, ShardInfo] = {}
    again = set()
    # Before they are read: what is replaced after that is noticed at the end.
    # Of a file of this machine, where asking costs nothing.
    versions = [
        next(iter(versions_at([check.address]))) if is_local(check.address) else "" for _, check in checks
    ]
    results = _states(plan, [one for _, one in checks], reading, progress)
    for (found, check), result, version in zip(checks, results, versions):
        posted = found.receipt is None or found.receipt.posted
        if result == "other":
            _refuse_other(plan, found, replaced)
        elif result == "unindexed" or not posted:
            again.add(found.task)
        else:
            shards[found.task] = replace(check.shard, version=version or check.shard.version)
    again.update(task for task in tasks if plan.planned[task].part in replaced and task not in shards)
    for number, state in states.items():
        if state is None or state.run != mark.text:
            plan.parts[number].output.declare(mark.text, shaping(plan))
    for number in others:
        remove(plan.parts[number].output.manifest_address or "")
    return Kept(shards, frozenset(again), manifests)


def are_there(
    addresses: Sequence[str], shards: Sequence[ShardInfo], form: Form, *, reads_local: bool = False
) -> bool:
    """Whether shards are there, by their sizes; with ``reads_local`` files of this machine by their bytes."""
    list_folders(addresses)
    checks = {
        address: CheckTask(address, shard, None, form, by_size=not (reads_local and is_local(address)))
        for address, shard in zip(addresses, shards)
    }
    return all(state == "whole" for state in at_once(lambda one: check_shard(checks[one]), addresses))


def list_folders(addresses: Sequence[str]) -> None:
    """List each folder of an object store once, which tells the sizes and versions of all that it holds."""
    for folder in dict.fromkeys(folder_of(one) for one in addresses if not is_local(one)):
        names_in(folder)


def look(plan: ReorderPlan, tasks: Sequence[int]) -> list[Found]:
    """What lies where some tasks put their shards, from one listing of each folder."""
    folders = {folder_of(plan.planned[task].address) for task in tasks}
    names = {folder: set(names_in(folder)) for folder in folders}
    receipts = {folder: set(names_in(f"{folder}{INDEX_FOLDER}/")) for folder in folders}
    found = []
    for task in tasks:
        shard = plan.planned[task]
        folder, name = folder_of(shard.address), base_name(shard.address)
        there = name + RECEIPT in receipts[folder]
        found.append((Found(task, shard, name in names[folder], None), there))
    read = at_once(read_receipt, [one.shard.address for one, there in found if there])
    return [one._replace(receipt=next(read)) if there else one for one, there in found]


def _refuse_run(plan: ReorderPlan, mark: PlanMark, output: OutputSet, state: Unfinished | None) -> None:
    """Raise OutputExistsError for the shards of an unfinished run of another plan, with what differs."""
    if state is None or state.run in ("", mark.text):
        return
    there = output.existing() if output.there is None else output.there
    parts = state.run.split("-")
    if there and len(parts) == len(mark.text.split("-")):
        why = mark.difference(PlanMark(*parts), differing_options(shaping(plan), state.options))
        raise _exists(plan, f"{there[0]} was made by another run: {why}")


def _is_ours(plan: ReorderPlan, mark: PlanMark, found: Found, replaced: Collection[int]) -> bool:
    """Whether the receipt of a shard that exists is this plan's. Raises OutputExistsError for one of a part that is not
    ``replaced``."""
    if found.receipt is not None and mark.accepts(found.receipt.mark):
        return True
    if found.shard.part in replaced:
        return False
    address = found.shard.address
    if found.receipt is None:
        raise _exists(plan, f"{address} is there, and no receipt says that this {plan.operation} made it")
    raise _exists(plan, f"{address} was made by another run: {mark.difference(found.receipt.mark)}")


def _exists(plan: ReorderPlan, text: str) -> OutputExistsError:
    """The error of a file in the way."""
    if plan.is_stored:
        hint = "remove it, or make the plan again: with --force, or for another output"
        return OutputExistsError(text, hint=hint)
    return OutputExistsError(text, hint="replace it with --force, or choose another name")


def _refuse_other(plan: ReorderPlan, found: Found, replaced: Collection[int]) -> None:
    if plan.request.settings.force or found.shard.part in replaced:
        return
    if found.receipt is None:
        raise DataError(
            "the shard differs from its manifest",
            code="manifest-mismatch",
            shard=found.shard.address,
            hint="make the set again with --force",
        )
    raise _exists(plan, f"{found.shard.address} is there and is not what was written under this name")


def _refuse_strangers(plan: ReorderPlan, but: Collection[int]) -> None:
    """Shards under names of the output that the plan does not make; ``but`` in these parts they are no obstacle."""
    if plan.request.settings.force:
        return
    own = {shard.address for shard in plan.planned}
    for number, part in enumerate(plan.parts):
        if number in but:
            continue
        there = part.output.there
        for address in part.output.existing() if there is None else there:
            if address not in own:
                raise _exists(plan, f"{address} is there, and this {plan.operation} makes no such shard")


def complete_parts(plan: ReorderPlan, parts: Iterable[int]) -> tuple[dict[int, Manifest], list[int]]:
    """Those of some parts whose manifest is there and says what this plan's would say, with it; and those that have
    something else in its place."""
    found: dict[int, Manifest] = {}
    others = []
    counts: dict[int, list[tuple[int, int, int]]] = {number: [] for number in parts}
    for shard in plan.planned:
        if shard.part in counts:
            # How many bytes a compressed shard has is known to its manifest alone.
            size = -1 if kind_of_name(shard.address) else shard.size
            counts[shard.part].append((shard.samples, shard.members, size))
    for number, wanted in counts.items():
        output = plan.parts[number].output
        if output.standing is not None or output.has_manifest is False or output.manifest_address is None:
            continue
        others.append(number)
        try:
            manifest = read_manifest(output.manifest_address)
        except InputNotFoundError:
            others.pop()
            continue
        except WdsError:
            continue
        there = [
            (one.samples, one.members, -1 if kind_of_name(one.name) else one.size_bytes)
            for one in manifest.shards
        ]
        # Nobody knows the sizes of transformed samples before they are there.
        is_alike = wanted == there or (plan.transform is not None and len(wanted) == len(there))
        if is_alike and says_the_same(manifest, output.manifest_of(manifest.shards, **plan.made)):
            found[number] = manifest
            others.pop()
    return found, others


def says_the_same(manifest: Manifest, ours: Manifest) -> bool:
    """Whether a manifest that was read tells that its set was made as ours would be. A stamp counts where both have
    one: that of another run may have been asked for none."""
    made, found = json.loads(json.dumps(dict(ours.made))), dict(manifest.made)
    if FAILURES not in (found.get("options") or {}):
        made["options"].pop(FAILURES, None)
    for one, other in ((made, found), (found, made)):
        if "stamp" not in one:
            other.pop("stamp", None)
            other.pop("parts", None)
    return (made, ours.name) == (found, manifest.name)


def _refuse_manifests(plan: ReorderPlan, parts: Iterable[int]) -> None:
    """Raise OutputExistsError for the manifest of another set in one of these parts."""
    for number in parts:
        address = plan.parts[number].output.manifest_address or ""
        if exists(address):
            raise _exists(plan, f"{address} is there and is the manifest of another set")


def _states(
    plan: ReorderPlan, checks: Sequence[CheckTask], reading: bool, progress: Progress
) -> Iterator[str]:
    """What each shard is found to be."""
    if not checks:
        return
    if not reading:
        sizes = at_once(_size_of, [check.address for check in checks])
        yield from (
            "whole" if size == check.shard.size_bytes else "other" for check, size in zip(checks, sizes)
        )
        return
    total = sum(check.shard.size_bytes for check in checks)
    jobs = useful_jobs(plan.request.jobs, len(checks), total)
    progress.start("checking what is there", total, "bytes")
    with make_executor(jobs) as executor:
        for check, state in zip(checks, run_tasks(executor, check_shard, checks, window=2 * jobs)):
            progress.advance(check.shard.size_bytes)
            yield state
    progress.finish()


def _size_of(address: str) -> int | None:
    with open_source(address, decompress=False) as source:
        return source.size


def tidy(plan: ReorderPlan) -> None:
    """Remove what only an unfinished set needs. Call it when all manifests are there."""
    if any(part.output.pattern.is_stream for part in plan.parts):
        return
    if plan.request.resume or plan.is_stored:
        remove_temporaries(_own_files(plan))
    addresses: list[list[str]] = [[] for _ in plan.parts]
    for shard in plan.planned:
        addresses[shard.part].append(shard.address)
    for part, own in zip(plan.parts, addresses):
        part.output.tidy(own)


def younger(plan: ReorderPlan, kept: Kept) -> Kept:
    """Of the shards that are there those that are younger than all of their files, as make has it; the others are made
    again. A file of the same size may hold something else by now."""
    if plan.parcel is None:
        return kept
    old = set()
    for number in kept.shards:
        shard = plan.planned[number].address
        if is_local(shard) and _is_newer(pack_task(plan, number), os.stat(local_path(shard)).st_mtime_ns):
            old.add(number)
    if not old:
        return kept
    shards = {number: info for number, info in kept.shards.items() if number not in old}
    manifest = plan.parts[0].output.manifest_address
    if plan.mark is not None:
        plan.parts[0].output.declare(plan.mark.text, shaping(plan), replaces=True)
    if kept.manifests and manifest is not None:
        remove(manifest)
    return Kept(shards, kept.again | old, {})


def _is_newer(task: PackTask, than_ns: int) -> bool:
    """Whether one of a shard's local files was written, or got its name, after a moment."""
    for number in task.members:
        place = task.files.place(number)
        # One that is gone since says nothing against a shard that is there.
        with suppress(FileNotFoundError):
            if isinstance(place, bytes) and os.stat(place).st_ctime_ns > than_ns:
                return True
    return False
