"""The plan of a run over remote inputs, kept until its manifest exists, so that ``--resume`` needs no second survey.

What it is: :func:`keep_plan`, which stores a plan as a plan file in ``.wds/`` beside the receipts, and
:func:`plan_of_run`, which loads it or makes a new one. How: a kept plan is used if its options are those of this run
and every input has the same size and version; else the inputs are surveyed again. It is removed with the receipts. It
must not know how shards are made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from wdscli.errors import WdsError
from wdscli.plan.cut import Outputs
from wdscli.plan.orders import InputOrder, Order
from wdscli.plan.plan import ReorderPlan, make_plan, provenance_of
from wdscli.plan.planfile import ROW_BYTES, absolute_output, load_plan, shaping_mark, write_plan
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.progress import Progress
from wdscli.run.input_versions import same_inputs
from wdscli.shards.claims import receipt_address
from wdscli.shards.inputs import open_sets
from wdscli.storage import is_local, open_sink, read_all

MAX_SHARE = 20
"""A plan is kept if it has at most one byte for this many bytes of the inputs."""


def plan_of_run(request: Request, order: Order, scratch: Scratch, progress: Progress) -> ReorderPlan:
    """The plan of a run that follows at once. Raises what :func:`~wdscli.plan.plan.make_plan` raises."""
    if request.resume and order.is_repeatable:
        # A survey finds what is wrong with the kept plan or with the inputs.
        with suppress(WdsError):
            if (kept := _kept_plan(request, order, scratch)) is not None:
                return kept
    return make_plan(request, order, scratch, brings=True, progress=progress)


def keep_plan(plan: ReorderPlan) -> None:
    """Store the plan of a run that begins, if a survey is more expensive. A failure to store it is no error."""
    contents = plan.contents
    manifest = contents.outputs[0].manifest_address
    is_far = not all(map(is_local, contents.addresses))
    is_known = all(one.stamp is not None and one.stamp.version for one in contents.inputs)
    is_small = plan.samples * ROW_BYTES * MAX_SHARE <= plan.counts.bytes_in
    if manifest is None or not (plan.is_repeatable and is_far and is_known and is_small):
        return
    contents = replace(contents, inputs=[one._replace(copy="") for one in contents.inputs])
    with suppress(WdsError):
        write_plan(replace(plan, contents=contents), receipt_address(manifest), force=True)


def _kept_plan(request: Request, order: Order, scratch: Scratch) -> ReorderPlan | None:
    """The plan that an earlier run has kept, if its options and inputs are the same. Raises WdsError."""
    outputs = Outputs(request.output, request.settings, may_exist=True)
    if outputs.is_stream or outputs.has_parts or not scratch.is_local or request.engine is not None:
        return None
    output = outputs.set_of()
    assert output.manifest_address is not None
    data = read_all(receipt_address(output.manifest_address))
    path = scratch.path_of("plan")
    os.makedirs(scratch.folder, 0o700, exist_ok=True)
    with open_sink(path) as sink:
        sink.write(data)
    kept = load_plan(path)
    shards, _ = open_sets(request.inputs, request.on_error, trust_addresses=request.trust_addresses)
    inputs = same_inputs(kept.contents.inputs, shards.addresses)
    if inputs is None or kept.request.output != absolute_output(request.output):
        return None
    contents = replace(
        kept.contents,
        outputs=(output,),
        shards=tuple(one._replace(address=output.address(one.number)) for one in kept.contents.shards),
        inputs=inputs,
    )
    plan = replace(
        kept,
        request=request,
        made=provenance_of(request, order, shards)._replace(classes=kept.made.classes),
        contents=contents,
        choice=kept.choice._replace(reason="reusing the interrupted run's plan"),
        is_stored=False,
        is_repeatable=True,
        brings=not isinstance(order, InputOrder),
    )
    return plan if kept.mark is not None and shaping_mark(plan) == kept.mark.options else None
