"""From option groups to what the operations take: parsed once, passed on as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wdscli.plan.cut import Cuts
from wdscli.plan.request import Request
from wdscli.selection import Selection
from wdscli.shards.forms import make_form
from wdscli.shards.output import ShardSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wdscli.cli.options import (
        CutOptions,
        DuplicateOptions,
        EngineOptions,
        ErrorOptions,
        OutputOptions,
        PlannedCutOptions,
        SelectionOptions,
        StreamOptions,
        TrustOptions,
    )


def shard_settings(output: OutputOptions | StreamOptions) -> ShardSettings:
    """How shards are written."""
    return ShardSettings(
        form=make_form(output.mtime, output.long_names),
        checksum=output.checksum,
        with_index=not output.no_index,
        force=output.force,
        fsync=output.fsync,
    )


def selection_text(selection: SelectionOptions) -> dict[str, Any]:
    """The selection as it was typed, without what was left at its default. An option that may be given more than once
    and usually is not stands as its one value."""
    given = {name: value for name, value in selection._asdict().items() if value not in (None, [], ())}
    for name in ("keys_from", "where"):
        if len(given.get(name, ())) == 1:
            given[name] = given[name][0]
    return given


def reorder_request(
    shards: Sequence[str],
    output: OutputOptions | StreamOptions,
    cuts: CutOptions | PlannedCutOptions,
    selection: SelectionOptions,
    duplicates: DuplicateOptions,
    errors: ErrorOptions,
    *,
    engine: EngineOptions | None = None,
    allow_empty: bool = False,
    trust: TrustOptions | None = None,
) -> Request:
    """What the reordering engine is asked for."""
    return Request(
        inputs=shards,
        output=output.output,
        settings=shard_settings(output),
        cuts=Cuts(*cuts),
        selection=Selection.parse(**selection._asdict()),
        on_error=errors.on_error,
        on_duplicate=duplicates.on_duplicate,
        rekey=duplicates.rekey,
        allow_empty=allow_empty,
        jobs=getattr(output, "jobs", 1),
        post=getattr(output, "post", None),
        selection_text=selection_text(selection),
        trust_addresses=trust is not None and trust.trust_addresses,
        **({} if engine is None else engine._asdict()),
    )
