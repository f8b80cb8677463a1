"""What a dataset says of itself to who prints it: shards, samples, order, stages.

Reads nothing. It must not know how any of that is used.
"""

from __future__ import annotations

from typing import Any

from wdscli.loader.stages.recipe import Pipeline, Spread


def shown(kind: str, source: Any, pipeline: Pipeline) -> str:
    """``<WebDataset of 6 shards, 57 samples, shuffle="window", seed=0: decode, to_tuple, batched(64)>``."""
    stages = ", ".join(_stages(pipeline))
    return f"<{kind} of {', '.join(_facts(source))}{stages and ': ' + stages}>"


def _facts(source: Any) -> list[str]:
    while hasattr(source, "source"):
        source = source.source
    catalog = getattr(source, "catalog", None)
    if catalog is None:
        return ["a stream" if getattr(source, "is_stream", False) else "several sets"]
    total = "" if catalog.total is None else f", {catalog.total:,} samples"
    identity = source.identity()
    return [
        f"{len(catalog.addresses):,} shards{total}",
        *(f"{name}={identity[name]!r}" for name in ("shuffle", "seed") if name in identity),
    ]


def _stages(pipeline: Pipeline) -> list[str]:
    batch = [] if pipeline.batch is None else [f"batched({pipeline.batch.size})"]
    functions = [*map(_name, pipeline.before), *batch, *map(_name, pipeline.after)]
    return [*functions, *(_name(one) for one in pipeline.generators)]


def _name(stage: Any) -> str:
    if isinstance(stage, Spread):
        stage = stage.function
    guard = getattr(stage, "guard", None)
    return str(guard.stage if guard is not None else getattr(stage, "__name__", type(stage).__name__.lower()))
