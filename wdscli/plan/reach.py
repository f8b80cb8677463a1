"""What the workers of an engine can reach.

What it is: :func:`check_reach`, which refuses, before anything is read, what only this process could read or write. A
path is taken for one that all workers share; whether it is, only they can say. It must not know any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wdscli.errors import UsageError
from wdscli.plan.scratch import is_read_once
from wdscli.storage import scheme

if TYPE_CHECKING:
    from wdscli.plan.request import Request

SHARED = "--tmp DIR names a folder, or an address, that all workers share"
ALONE = "the workers of the engine share no scratch space (--tmp)"
STORED = "the tasks of a stored plan share no scratch space"


def check_reach(request: Request, inputs: Sequence[str], *, is_stream: bool) -> None:
    """Raise UsageError for an engine that is not there, and for inputs, outputs and options that need this process."""
    check_post(request.post, request.output, is_stream=is_stream)
    if request.plan_file is not None and request.strategy == "spill":
        raise UsageError(STORED, hint="leave --strategy spill out")
    if request.plan_file is not None and request.resume:
        raise UsageError(
            "--plan writes no shard, so there is nothing to --resume",
            hint="wds run FILE makes what is not there",
        )
    if request.engine is None:
        return
    from wdscli.executors.engines import find_engine

    find_engine(request.engine)
    for address in inputs:
        if is_read_once(address) or scheme(address) == "memory":
            raise UsageError(
                f"the workers of {request.engine} cannot read {address}",
                hint="store it where they can first: wds cat SHARD -o plain.tar",
            )
    if is_stream or scheme(request.output) == "memory":
        raise UsageError(
            f"the workers of {request.engine} cannot write {request.output}",
            hint="-o 'DIR/out-%06d.tar', a folder or an address that all workers share",
        )
    if request.strategy == "spill":
        check_scratch(request)


def check_scratch(request: Request) -> None:
    """Raise UsageError when samples are to be spilled where workers cannot reach them."""
    if request.engine is not None and request.tmp is None:
        raise UsageError("to spill on an engine needs scratch space", hint=SHARED)


def away(request: Request) -> bool:
    """Whether tasks run where nothing can be left for others: from a stored plan, or on an engine with no scratch space
    that all share."""
    return request.plan_file is not None or (request.engine is not None and request.tmp is None)


def check_post(command: str | None, output: str, *, is_stream: bool) -> None:
    """Raise UsageError for a command after shards that have no name."""
    if command is not None and is_stream:
        raise UsageError(
            f"--post needs shards that have names, and {output} has none", hint="-o out-%06d.tar"
        )
    if command is not None and not command.strip():
        raise UsageError("--post needs a command", hint="--post 'sha256sum {}'")
