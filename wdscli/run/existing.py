"""Before a run writes an output, this module finds the shards and manifests that already exist.

:class:`Existing` is the result. With ``--if-changed``, :func:`find_unchanged_sets` looks for complete sets before a
plan is made. :func:`find_existing` looks for complete parts and single shards of a plan. A set is complete if its
manifest describes the set that this run would make, and its shards have the listed sizes or versions. Without a
manifest, two conditions must hold to keep a shard. The shard's receipt must be from the same plan. The shard is read
again, and its bytes must have the checksum in the receipt. The run refuses to replace any other file. At the end,
:func:`tidy` removes the files that only an unfinished set needs.

This module does not know how shards are made.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from wdscli.copy.maker import Maker
from wdscli.errors import DataError, InputNotFoundError, OutputExistsError, UsageError, WdsError
from wdscli.executors import make_executor, run_tasks, useful_jobs
from wdscli.model import ShardInfo
from wdscli.plan.cut import Outputs, names_of
from wdscli.plan.orders import Order
from wdscli.plan.plan import Contents, ReorderPlan
from wdscli.plan.request import PlanMark, Request
from wdscli.progress import QUIET, Progress
from wdscli.run.digests import FAILURES, differing_options, input_digest, list_folders, mark_of, shaping
from wdscli.run.receipts import CheckTask, Receipt, check_shard, read_receipt
from wdscli.shards.inputs import names_in, open_sets, read_manifest
from wdscli.shards.locks import FOLDER, RECEIPT, UnfinishedSet, remove_temporaries, state_address
from wdscli.shards.manifest import APPENDED, Manifest
from wdscli.shards.writing import OutputSet
from wdscli.storage import base_name, exists, expand, folder_of, is_local, remove
from wdscli.storage.blocks import kind_of_name
from wdscli.storage.opening import at_once, current_versions
from wdscli.storage.patterns import NAME
from wdscli.tar import Form

_ANY_PART = "wdscli-any-part"


class Run(NamedTuple):
    """A run of a plan: the plan, its fingerprint, and the maker of its shards."""

    plan: ReorderPlan
    mark: PlanMark
    maker: Maker
    progress: Progress

    @property
    def contents(self) -> Contents:
        return self.plan.contents


def run_of(plan: ReorderPlan, progress: Progress = QUIET, maker: Maker | None = None) -> Run:
    """Return the run of a plan. Without ``maker``, the plan, which may come from a file, decides how shards are
    made."""
    if maker is None and plan.transform is not None:
        from wdscli.transform.shards import TransformMaker
        from wdscli.transform.transform import Transform

        maker = TransformMaker(plan, Transform.from_plain(plan.transform))
    elif maker is None and plan.parcel is not None:
        from wdscli.create.packing import PackMaker, unpacked_task

        maker = PackMaker(plan, partial(unpacked_task, plan))
    return Run(plan, mark_of(plan), maker or Maker(plan), progress)


class Existing(NamedTuple):
    """The existing files of an output. ``shards`` are the kept shards, by task. The shards of the tasks ``again``
    exist, but must be remade, because the index is missing, a source file is newer, or ``--post`` did not run.
    ``manifests`` are the manifests of complete parts, by number."""

    shards: dict[int, ShardInfo]
    again: frozenset[int]
    manifests: dict[int, Manifest]


# Before a plan is made, with --if-changed: search for a complete set.


UnchangedSets = list[tuple[OutputSet, Manifest]]
"""The output set and the manifest of each part."""


def find_unchanged_sets(request: Request, order: Order) -> tuple[Request, UnchangedSets]:
    """With ``--if-changed``, return the request and the sets that are up to date. The request gets a digest of its
    inputs and options. The sets were made with the same digest. They are all parts of the output, or none. Raises
    UsageError and InputError for inputs that cannot be checked."""
    if not request.if_changed:
        return request, []
    if request.plan_file is not None:
        raise UsageError("--if-changed and --plan exclude each other", hint="give one of them")
    shards, sets = open_sets(request.inputs, request.on_error, trust_addresses=request.trust_addresses)
    digest = input_digest(request, order, shards, sets)
    names = names_of(shards.addresses) if NAME in request.output else None
    outputs = Outputs(request.output, request.settings, names=names, may_exist=True)
    unchanged: UnchangedSets = []
    for part in _parts_of(outputs, digest) if outputs.has_parts else [""]:
        output = outputs.set_of(part)
        if (manifest := find_unchanged(output, digest)) is None:
            unchanged = []
            break
        unchanged.append((output, manifest))
    # The existing set may be replaced, because check_replaceable looks at it first.
    settings = request.settings._replace(force=True)
    return request._replace(settings=settings, if_changed=not request.settings.force, stamp=digest), unchanged


def find_unchanged(output: OutputSet, digest: str | None) -> Manifest | None:
    """Return the manifest of a complete set that was made with this digest of inputs and options. Raises UsageError for
    an output that cannot be checked."""
    if output.manifest_address is None:
        raise UsageError(
            f"--if-changed cannot check what was written to {output.pattern.text}",
            hint="use --if-changed only with an output of files",
        )
    try:
        manifest = read_manifest(output.manifest_address)
    except WdsError:
        return None
    if manifest.made.get("stamp") != digest or output.state.read() is not None:
        return None
    return manifest if _have_all(_addresses(output, manifest), manifest, output.settings.form) else None


def _parts_of(outputs: Outputs, digest: str) -> list[str]:
    """Return the names of all parts, from the manifest of any part."""
    address = outputs.set_of(_ANY_PART).manifest_address or ""
    with suppress(WdsError):
        for manifest_address in expand(address.replace(_ANY_PART, "*")):
            with suppress(WdsError):
                provenance = read_manifest(manifest_address).made
                parts = provenance.get("parts")
                is_list = isinstance(parts, list) and all(isinstance(name, str) for name in parts)
                if provenance.get("stamp") == digest and is_list:
                    return list(parts or ())
    return []


def _addresses(output: OutputSet, manifest: Manifest) -> list[str]:
    """Return the addresses of a manifest's shards, which are in its folder."""
    folder = folder_of(output.manifest_address or "")
    return [folder + shard.name for shard in manifest.shards]


def _have_all(addresses: Sequence[str], manifest: Manifest, form: Form) -> bool:
    """Return whether the shards of a manifest exist with their sizes."""
    list_folders(addresses)
    checks = [
        CheckTask(address, shard, None, form, by_size=True)
        for address, shard in zip(addresses, manifest.shards, strict=True)
    ]
    return all(state == "whole" for state in at_once(check_shard, addresses, checks))


def check_replaceable(output: OutputSet, operation: str) -> None:
    """Raise OutputExistsError unless the output does not exist, or the same command made it, also in an interrupted
    run."""
    address = output.manifest_address or ""
    text = ""
    if exists(address):
        try:
            provenance = read_manifest(address).made
        except WdsError:
            provenance = {}
        if provenance.get("operation") != operation:
            text = f"{address} exists, and `wds {operation}` did not write it"
        elif provenance.get(APPENDED):
            text = f"shards were added to the set of {address}, and would be lost"
    elif (existing := output.existing()) and output.state.read() is None:
        text = f"{existing[0]} exists, and no manifest says which command wrote it"
    if text:
        raise OutputExistsError(text, hint="choose another name, or replace it with --force")


# For a plan that will run next: search for complete parts and single shards.


def find_existing(run: Run) -> Existing:
    """Prepare the output of a plan, and find the shards and manifests that can be kept. Raises OutputExistsError for
    other existing files, and UsageError for ``--resume`` with a stream."""
    plan, contents = run.plan, run.contents
    if not plan.request.resume:
        for output in contents.outputs:
            output.begin(contents.addresses, run.mark.text, shaping(plan))
        if plan.request.settings.force and not contents.is_stream:
            remove_temporaries(_own_files(contents))
        return Existing({}, frozenset(), {})
    if contents.is_stream:
        raise UsageError("a stream cannot be resumed", hint="use --resume only with an output of files")
    if not plan.is_stored:
        remove_temporaries(_own_files(contents))
    for output in contents.outputs:
        output.check(contents.addresses, may_exist=True)
    return find_shards(run, range(len(contents.shards)))


def _own_files(contents: Contents) -> list[str]:
    manifests = [address for output in contents.outputs if (address := output.manifest_address) is not None]
    return [shard.address for shard in contents.shards] + manifests + list(map(state_address, manifests))


def find_shards(run: Run, tasks: Sequence[int], *, reading: bool = True) -> Existing:
    """Find the existing shards of some tasks. With ``reading``, the bytes of each shard are compared with its checksum;
    otherwise only the size is compared. Raises OutputExistsError."""
    plan, planned, outputs, mark = run.plan, run.contents.shards, run.contents.outputs, run.mark
    everything = len(tasks) == len(planned)
    parts = range(len(outputs)) if everything else sorted({planned[task].part for task in tasks})
    manifests, other_parts = _complete_parts(run, parts)
    states = {number: outputs[number].state.read() for number in parts if number not in manifests}
    # If an earlier attempt of this run has begun to replace a part, --force is not needed again.
    replaced = {
        number
        for number, state in states.items()
        if plan.request.settings.force
        or (state is not None and (state.change, state.run) == ("replace", mark.text))
    }
    for number, state in states.items():
        if number not in replaced:
            _refuse_run(run, outputs[number], state)
    for number in set(other_parts) - replaced:
        if exists(address := outputs[number].manifest_address or ""):
            raise _in_the_way(plan, f"{address} exists and is the manifest of another set")
    if everything:
        _refuse_strangers(plan, manifests.keys() | replaced)
    receipts = _own_receipts(run, [task for task in tasks if planned[task].part not in manifests], replaced)
    checks = _checks(run, tasks, manifests, receipts)
    shards, again = _checked(run, checks, receipts, replaced, reading)
    again.update(task for task in tasks if planned[task].part in replaced and task not in shards)
    for number, state in states.items():
        if state is None or state.run != mark.text:
            outputs[number].declare(mark.text, shaping(plan))
    for number in other_parts:
        remove(outputs[number].manifest_address or "")
    if reading and (outdated := run.maker.outdated(sorted(shards))):
        outputs[0].declare(mark.text, shaping(plan), replaces=True)
        for number in manifests:
            remove(outputs[number].manifest_address or "")
        shards = {task: info for task, info in shards.items() if task not in outdated}
        return Existing(shards, frozenset(again | outdated), {})
    return Existing(shards, frozenset(again), manifests)


def _checks(
    run: Run, tasks: Sequence[int], manifests: Mapping[int, Manifest], receipts: Mapping[int, Receipt]
) -> dict[int, CheckTask]:
    """Return the checks of the existing shards of this plan, by task. They use receipts, or ``manifests`` for complete
    parts."""
    shards, form = run.contents.shards, run.plan.request.settings.form
    checks = {task: receipt.check(shards[task].address, form) for task, receipt in receipts.items()}
    complete = [task for task in tasks if shards[task].part in manifests]
    list_folders([shards[task].address for task in complete])
    for task in complete:
        info, address = manifests[shards[task].part].shards[shards[task].number], shards[task].address
        checks[task] = CheckTask(address, info, None, form, by_size=not is_local(address))
    return checks


def _checked(
    run: Run,
    checks: Mapping[int, CheckTask],
    receipts: Mapping[int, Receipt],
    replaced: Collection[int],
    reading: bool,
) -> tuple[dict[int, ShardInfo], set[int]]:
    """Return the intact shards by task, and the tasks of shards without an index or with a command that did not run.
    Raises OutputExistsError and DataError for other shards, unless their part is in ``replaced``."""
    # Get the versions before the shards are read. A later replacement is then noticed at the end.
    versions = [
        next(iter(current_versions([check.address]))) if is_local(check.address) else ""
        for check in checks.values()
    ]
    shards, again = dict[int, ShardInfo](), set[int]()
    results = _states(run, [*checks.values()], reading)
    for (task, check), result, version in zip(checks.items(), results, versions):
        if result == "other":
            if run.contents.shards[task].part not in replaced:
                _refuse_other(run.plan, check)
        elif result == "unindexed" or (task in receipts and not receipts[task].posted):
            again.add(task)
        else:
            shards[task] = replace(check.shard, version=version or check.shard.version)
    return shards, again


def _receipts_of(contents: Contents, tasks: Sequence[int]) -> dict[int, Receipt | None]:
    """Return the receipts of existing shards, by task, from one listing of each folder. A shard without a receipt has
    None."""
    planned = [(task, contents.shards[task]) for task in tasks]
    folders = {folder_of(shard.address) for _, shard in planned}
    names = {folder: set(names_in(folder)) for folder in folders}
    receipts = {folder: set(names_in(f"{folder}{FOLDER}/")) for folder in folders}

    def is_in(listed: Mapping[str, Collection[str]], address: str, suffix: str = "") -> bool:
        return base_name(address) + suffix in listed[folder_of(address)]

    existing = [(task, shard) for task, shard in planned if is_in(names, shard.address)]
    received = [shard.address for _, shard in existing if is_in(receipts, shard.address, RECEIPT)]
    by_address = dict(zip(received, at_once(read_receipt, received)))
    return {task: by_address.get(shard.address) for task, shard in existing}


def done_tasks(run: Run) -> set[int]:
    """Return the tasks with existing shards. Only names, receipts and manifests are read, no shards."""
    contents = run.contents
    complete, _ = _complete_parts(run, range(len(contents.outputs)))
    done = set()
    for task, receipt in _receipts_of(contents, range(len(contents.shards))).items():
        is_ours = receipt is not None and run.mark.accepts(receipt.mark) and receipt.posted
        if is_ours or contents.shards[task].part in complete:
            done.add(task)
    return done


def _complete_parts(run: Run, parts: Iterable[int]) -> tuple[dict[int, Manifest], list[int]]:
    """Return the manifests that agree with this plan, by part, and the parts with a manifest that does not agree."""
    contents, manifests = run.contents, dict[int, Manifest]()
    other_parts = []
    shards_of = contents.shards_of_outputs
    for number in parts:
        output, planned = contents.outputs[number], [contents.shards[task] for task in shards_of[number]]
        wanted = [
            _counts_of(shard.address, shard.samples, shard.members, shard.size_bytes) for shard in planned
        ]
        if output.standing is not None or output.has_manifest is False or output.manifest_address is None:
            continue
        with suppress(InputNotFoundError):
            try:
                manifest = read_manifest(output.manifest_address)
            except InputNotFoundError:
                raise
            except WdsError:
                other_parts.append(number)
                continue
            listed = [
                _counts_of(shard.name, shard.samples, shard.members, shard.size_bytes)
                for shard in manifest.shards
            ]
            is_alike = wanted == listed if run.maker.has_planned_sizes else len(wanted) == len(listed)
            # A manifest may list more shards than -o has names.
            if is_alike and _says_the_same(
                manifest, output.manifest_of(manifest.shards, run.plan.provenance)
            ):
                manifests[number] = manifest
            else:
                other_parts.append(number)
    return manifests, other_parts


def _counts_of(address: str, samples: int, members: int, size: int) -> tuple[int, int, int]:
    """Return the numbers to compare. A plan does not know the size of a compressed shard, so it is left out."""
    return samples, members, -1 if kind_of_name(address) else size


def _says_the_same(manifest: Manifest, ours: Manifest) -> bool:
    """Return whether a set was made in the same way as this run would make it. Digests of ``--if-changed`` are compared
    only if both have one."""
    wanted, existing = json.loads(json.dumps(dict(ours.made))), dict(manifest.made)
    if FAILURES not in (existing.get("options") or {}):
        wanted["options"].pop(FAILURES, None)
    for record, compared in ((wanted, existing), (existing, wanted)):
        if "stamp" not in record:
            compared.pop("stamp", None)
            compared.pop("parts", None)
    return (wanted, ours.name) == (existing, manifest.name)


def _states(run: Run, checks: Sequence[CheckTask], reading: bool) -> Iterator[str]:
    """Return the result of :func:`~wdscli.run.receipts.check_shard` for each check."""
    if not checks:
        return
    if not reading:
        sizes = [check._replace(by_size=True, index_seal=None) for check in checks]
        yield from at_once(check_shard, [check.address for check in checks], sizes)
        return
    total = sum(check.shard.size_bytes for check in checks)
    waits, progress = not all(is_local(check.address) for check in checks), run.progress
    jobs = useful_jobs(run.plan.request.jobs, len(checks), total, waits=waits)
    progress.start("checking existing shards", total, "bytes")
    with make_executor(jobs) as executor:
        for check, state in zip(checks, run_tasks(executor, check_shard, checks, window=2 * jobs)):
            progress.advance(check.shard.size_bytes)
            yield state
    progress.finish()


# Refusals.


def _refuse_run(run: Run, output: OutputSet, state: UnfinishedSet | None) -> None:
    """Raise OutputExistsError for shards that an unfinished run of another plan left. The error names the options that
    differ."""
    plan, mark = run.plan, run.mark
    if state is None or state.run in ("", mark.text):
        return
    existing = output.existing() if output.there is None else output.there
    parts = state.run.split("-")
    if existing and len(parts) == len(mark.text.split("-")):
        why = mark.difference(PlanMark(*parts), differing_options(shaping(plan), state.options))
        raise _in_the_way(plan, f"{existing[0]} was made by another run: {why}")


def _own_receipts(run: Run, tasks: Sequence[int], replaced: Collection[int]) -> dict[int, Receipt]:
    """Return the receipts of this plan, by task. Raises OutputExistsError for an existing shard with another receipt or
    without one, unless its part is in ``replaced``."""
    plan, mark, own = run.plan, run.mark, dict[int, Receipt]()
    for task, receipt in _receipts_of(run.contents, tasks).items():
        shard = run.contents.shards[task]
        if receipt is not None and mark.accepts(receipt.mark):
            own[task] = receipt
        elif shard.part not in replaced:
            why = (
                f"exists, but no receipt shows that this {plan.provenance.operation} made it"
                if receipt is None
                else f"was made by another run: {mark.difference(receipt.mark)}"
            )
            raise _in_the_way(plan, f"{shard.address} {why}")
    return own


def _refuse_other(plan: ReorderPlan, check: CheckTask) -> None:
    """Raise an error for a shard with changed bytes, unless it may be replaced."""
    if plan.request.settings.force:
        return
    if check.index_seal is None:
        # The manifest lists the shard.
        raise DataError(
            "the shard differs from its manifest",
            code="manifest-mismatch",
            shard=check.address,
            hint="make the set again with --force",
        )
    raise _in_the_way(plan, f"{check.address} exists, but its content differs from what was written")


def _refuse_strangers(plan: ReorderPlan, but: Collection[int]) -> None:
    """Raise OutputExistsError for existing shards with names of this output that the plan does not make. The parts
    ``but`` are not checked."""
    if plan.request.settings.force:
        return
    own = {shard.address for shard in plan.contents.shards}
    for number, output in enumerate(plan.contents.outputs):
        existing = output.there
        for address in (output.existing() if existing is None else existing) if number not in but else ():
            if address not in own:
                raise _in_the_way(
                    plan,
                    f"{address} exists, but this {plan.provenance.operation} makes no shard of this name",
                )


def _in_the_way(plan: ReorderPlan, text: str) -> OutputExistsError:
    """Return the error for an existing file that must not be replaced."""
    if plan.is_stored:
        hint = "remove it, or make the plan again: with --force, or for another output"
        return OutputExistsError(text, hint=hint)
    return OutputExistsError(text, hint="replace it with --force, or choose another name")


# The end of a run.


def tidy(plan: ReorderPlan) -> None:
    """Remove the files that only an unfinished set needs. Call it after all manifests are written."""
    contents = plan.contents
    if contents.is_stream:
        return
    if plan.request.resume or plan.is_stored:
        remove_temporaries(_own_files(contents))
    for output, own in zip(contents.outputs, contents.shards_of_outputs):
        output.tidy([contents.shards[number].address for number in own])


def tidy_set(output: OutputSet, manifest: Manifest) -> None:
    """Remove the receipts of a complete set. A run leaves them if it is killed immediately after writing its
    manifest."""
    output.tidy(_addresses(output, manifest))
