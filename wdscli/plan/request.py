"""What is asked of a reordering command: records, no work.

What it is: :class:`Request`, the options that all such commands share, and :class:`PlanMark`, the fingerprint of the
plan that is made of it. It must not know how a plan is made or carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from wdscli.plan.cut import Cuts
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.shards.writing import ShardSettings


class PlanMark(NamedTuple):
    """The fingerprint of a plan, in four parts, which show what differs, and what a transform does about ``failures``:
    empty if it stops. Where it runs, with how many jobs and how much memory is no part of it: the bytes do not depend
    on these."""

    inputs: str
    options: str
    samples: str
    shards: str
    failures: str = ""

    @property
    def text(self) -> str:
        """The four parts, as one word."""
        return "-".join(self[:4])

    def accepts(self, made: PlanMark) -> bool:
        """Whether this plan makes the shards that a run of another has made. A run that stops at a failure has made
        shards without one, which are the same for any ``failures``."""
        return self[:4] == made[:4] and made.failures in ("", self.failures)

    def difference(self, other: PlanMark, options: Sequence[str] = ()) -> str:
        """In which way another plan is not this one; ``options`` are those that differ, as far as known."""
        if self[:4] == other[:4]:
            options = ["--on-error"]
        if options or self.options != other.options:
            return "it was started with different options" + (f": {', '.join(options)}" if options else "")
        if self.inputs != other.inputs:
            return "its inputs differ, or have changed since"
        return "its samples or cuts differ"


OnDuplicate = Literal["error", "skip", "rekey"]
Strategy = Literal["auto", "gather", "spill"]


class Request(NamedTuple):
    """What is asked of the engine, apart from order: the inputs, the output and the options all such commands share."""

    inputs: Sequence[str]
    output: str
    settings: ShardSettings = ShardSettings()
    cuts: Cuts = Cuts()
    selection: Selection = Selection()
    on_error: OnError = "stop"
    on_duplicate: OnDuplicate = "error"
    rekey: str | None = None
    jobs: int | None = None
    use_index: bool = True
    tmp: str | None = None
    """Where inputs that can be read only once are copied to; None for TMPDIR."""
    selection_text: Mapping[str, Any] | None = None
    """The selection as it was asked for, to be told in the manifest."""
    strategy: Strategy = "auto"
    memory: int | None = None
    """Bytes that all processes together may have resident; None for what the machine has to spare."""
    engine: str | None = None
    """Where tasks run: ``dask://HOST:PORT`` or another engine's URL; None for this machine, with ``jobs``."""
    post: str | None = None
    """A shell command to run for each shard once it has its name; ``{}`` in it is the shard."""
    resume: bool = False
    """Keep the shards that an earlier run of the same plan has made."""
    allow_empty: bool = False
    """Names that no sample has, and an output without samples, are no errors."""
    trust_addresses: bool = False
    """Whether manifests and fetched lists may name any shard."""
    plan_file: str | None = None
    """Where the plan is to be stored instead of being run; then it can hold nothing that only this process has."""

    if_changed: bool = False
    """Make nothing when the output stands and was made of the same inputs by the same options; else replace it, if the
    same command made it."""
    stamp: str | None = None
    """The digest by which that is known (:mod:`wdscli.run.input_versions`)."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the options alone say which samples are wanted: no file of keys does, and no sample was left out."""
        has_files = self.selection.key_rule is not None and bool(self.selection.key_rule.files)
        return not has_files and self.on_error == "stop" and self.on_duplicate == "error"
