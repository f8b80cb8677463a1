"""The plan of a run over far-away inputs, kept until its manifest is there, so that ``--resume`` surveys nothing again.

What it is: :func:`keep_plan`, which stores it as a plan file in ``.wds/`` beside the receipts; :func:`plan_of_run`,
which goes on with it or makes a new one; :func:`inputs_to_hold`, the inputs of a kept plan that are copied to scratch
space because its order would read them in small pieces; and :func:`finished_set`, which knows a complete set by its
manifest and by what was noted of its inputs. How: a kept plan is used when its options are those of this run and every
input has the size and version that it had; else the inputs are surveyed again. It goes with the receipts. It must not
know how shards are made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from wdscli.errors import WdsError
from wdscli.plan.cut import Outputs, PlannedPart
from wdscli.plan.inputs import Input, Stamp
from wdscli.plan.orders import InputOrder, Order
from wdscli.plan.plan import ReorderPlan, make_plan, open_sets, shaping_options
from wdscli.plan.planfile import (
    ROW_BYTES,
    absolute,
    absolute_output,
    digest_of,
    load_plan,
    shaping_mark,
    write_plan,
)
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.progress import Progress
from wdscli.run.resume import are_there, list_folders, says_the_same
from wdscli.shards.claims import receipt_address
from wdscli.shards.inputs import fingerprint_of, manifest_beside
from wdscli.shards.manifest import Manifest, parse_manifest
from wdscli.shards.writing import OutputSet
from wdscli.storage import base_name, is_local, open_sink, open_source, read_all
from wdscli.storage.kinds import stored_version, tells_bytes
from wdscli.storage.opening import at_once, read_noted
from wdscli.tar import Form

WORTH_SHARE = 20
"""A plan is kept when it is at most one part in so many of what the inputs have."""


def plan_of_run(request: Request, order: Order, scratch: Scratch, progress: Progress) -> ReorderPlan:
    """The plan of a run that follows at once. Raises what :func:`~wdscli.plan.plan.make_plan` raises."""
    if request.resume and order.is_repeatable:
        # Whatever is wrong with it, or with the inputs, is found by a survey.
        with suppress(WdsError):
            if (kept := _kept_plan(request, order, scratch)) is not None:
                return kept
    return make_plan(request, order, scratch, brings=True, progress=progress)


def keep_plan(plan: ReorderPlan) -> None:
    """Store the plan of a run that begins, if a survey costs more. That it cannot be stored is no error."""
    manifest = plan.parts[0].output.manifest_address
    is_far = not all(is_local(one.address) for one in plan.inputs)
    is_known = all(one.stamp is not None and one.stamp.version for one in plan.inputs)
    is_small = plan.samples * ROW_BYTES * WORTH_SHARE <= plan.counts.bytes_in
    if manifest is None or not (plan.is_repeatable and is_far and is_known and is_small):
        return
    inputs = [one._replace(copy="") for one in plan.inputs]
    with suppress(WdsError):
        write_plan(replace(plan, inputs=inputs), receipt_address(manifest), force=True)


def _kept_plan(request: Request, order: Order, scratch: Scratch) -> ReorderPlan | None:
    """The plan that an earlier run has kept, if it is of these options and inputs. Raises WdsError."""
    outputs = Outputs(request.output, request.settings, may_exist=True)
    if outputs.is_stream or outputs.has_parts or not scratch.is_local or request.engine is not None:
        return None
    output = outputs.set_of("part")
    assert output.manifest_address is not None
    data = read_all(receipt_address(output.manifest_address))
    path = scratch.path_of("plan")
    os.makedirs(scratch.folder, 0o700, exist_ok=True)
    with open_sink(path) as sink:
        sink.write(data)
    kept = load_plan(path)
    shards, _ = open_sets(request)
    inputs = _unchanged(kept.inputs, shards.addresses)
    if inputs is None or kept.request.output != absolute_output(request.output):
        return None
    part = PlannedPart(kept.parts[0].name, output)
    plan = replace(
        kept,
        request=request,
        operation=order.operation,
        seed=order.seed,
        options={**order.options(), **shaping_options(request)},
        shards=shards,
        inputs=inputs,
        parts=(part,),
        planned=tuple(one._replace(address=output.address(one.number)) for one in kept.planned),
        reason="as the run that is gone on with has planned",
        fingerprint_in=fingerprint_of(shards),
        is_stored=False,
        is_repeatable=True,
        brings=not isinstance(order, InputOrder),
    )
    return plan if kept.mark is not None and shaping_mark(plan) == kept.mark.options else None


class Finished(NamedTuple):
    """A complete set, and the bytes of what it was made of, of which all samples are in it."""

    manifest: Manifest
    bytes_in: int
    output: OutputSet


def finished_set(request: Request, order: Order) -> Finished | None:
    """The complete set that this run would write, where ``--resume`` was given and a look shows that it and its inputs
    are there: by manifests and the sizes of shards, or for inputs without a manifest by the versions that were noted
    (:func:`note_of_inputs`). None where more than a look is needed."""
    is_plain = request.is_repeatable and request.selection.is_trivial and request.rekey is None
    outputs = Outputs(request.output, request.settings, may_exist=True)
    if not (request.resume and order.is_repeatable and is_plain) or outputs.is_stream or outputs.has_parts:
        return None
    with suppress(WdsError):
        output = outputs.set_of("part")
        shards, _ = open_sets(request)
        source = shards.manifest
        if source is None and (beside := manifest_beside(shards.addresses, shards.given)) is not None:
            source = beside[1]
        places = [*shards.addresses, output.address(0)]
        if output.manifest_address is None or all(map(is_local, places)):
            return None
        # What a listing does not have costs one request, what is looked for by its name three.
        list_folders([output.manifest_address])
        if output.state.read() is not None:
            return None
        data, note = read_noted(output.manifest_address)
        if source is None and not note:
            return None
        manifest = parse_manifest(data, output.manifest_address)
        options = {**order.options(), **shaping_options(request)}
        made = output.manifest_of(
            manifest.shards,
            operation=order.operation,
            options=options,
            seed=order.seed,
            inputs=[fingerprint_of(shards)],
        )
        if not says_the_same(manifest, made):
            return None
        mine = [output.address(number) for number in range(len(manifest.shards))]
        form = request.settings.form
        if source is None:
            is_same, bytes_in = _are_noted(shards.addresses, note), int(note.partition(" ")[2] or 0)
        else:
            is_same = (manifest.samples, manifest.members) == (source.samples, source.members)
            is_same = is_same and None not in made.made["inputs"]
            is_same, bytes_in = is_same and _are_there(shards.addresses, source, form), source.size_bytes
        if is_same and _are_there(mine, manifest, form):
            return Finished(manifest, bytes_in, output)
    return None


def note_of_inputs(plan: ReorderPlan) -> str:
    """What is kept beside the manifest of a set all of whose inputs are in it and have no manifest: by which versions
    of them ``--resume`` knows that the set is made, and how many bytes they have. Empty where that cannot be told."""
    is_plain = plan.is_repeatable and plan.request.selection.is_trivial and plan.joined is None
    if not is_plain or plan.fingerprint_in is not None or plan.counts.dropped or plan.counts.ignored:
        return ""
    stamps = [one.stamp or Stamp(0, "") for one in plan.inputs]
    digest = _digest_of_versions([one.address for one in plan.inputs], stamps)
    return digest and f"{digest} {plan.counts.bytes_in}"


def _are_noted(addresses: Sequence[str], note: str) -> bool:
    """Whether these are the inputs that a note speaks of."""
    list_folders(addresses)
    digest = _digest_of_versions(addresses, list(at_once(_stamp_of, addresses)))
    return digest != "" and digest == note.partition(" ")[0]


def _digest_of_versions(addresses: Sequence[str], stamps: Sequence[Stamp]) -> str:
    """The digest of inputs by their names and versions; empty where a version may be that of any bytes."""
    versions = [stored_version(address, stamp.version) for address, stamp in zip(addresses, stamps)]
    is_known = all(map(tells_bytes, versions))
    return digest_of([base_name(address) for address in addresses] + versions) if is_known else ""


def _are_there(addresses: Sequence[str], manifest: Manifest, form: Form) -> bool:
    """Whether the shards of a manifest are there."""
    is_all = len(addresses) == len(manifest.shards)
    return is_all and are_there(addresses, manifest.shards, form, reads_local=True)


def _unchanged(inputs: Sequence[Input], addresses: Sequence[str]) -> tuple[Input, ...] | None:
    """The inputs of a plan under the names that were given now, None where one is another or was changed."""
    if [one.address for one in inputs] != list(map(absolute, addresses)):
        return None
    list_folders(addresses)
    found = tuple(
        Input(address, stamp=stamp) for address, stamp in zip(addresses, at_once(_stamp_of, addresses))
    )
    same = all(one.stamp and now.stamp and one.stamp[:2] == now.stamp[:2] for one, now in zip(inputs, found))
    return found if same else None


def _stamp_of(address: str) -> Stamp:
    with open_source(address, decompress=False) as source:
        return Stamp(source.size or 0, source.version, source.is_pinned)


def inputs_to_hold(plan: ReorderPlan, numbers: Sequence[int]) -> list[str]:
    """The addresses that some tasks of a kept plan read, if copies of them are worth it; none for other plans."""
    if not plan.brings:
        return []
    needed = {
        number
        for shard in (plan.planned[number] for number in numbers)
        for number in plan.ordered.slice(shard.first, shard.end).shard_numbers()
    }
    return [plan.inputs[number].address for number in sorted(needed)]
