"""What is asked of a reordering command, and the plan that is made of it: records, no work.

What it is: :class:`Request`, the options that all such commands share; :class:`Plan`, what ``plan.py`` makes and
``run/`` carries out. It must not know how either is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.plan.cut import Cuts
from wdscli.plan.strategy import Strategy
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.shards.output import OutputSet, ShardSettings

if TYPE_CHECKING:
    from wdscli.plan.duplicates import Duplicates
    from wdscli.plan.join.parts import Joined
    from wdscli.plan.rekey import Rekey
    from wdscli.plan.scratch import Input
    from wdscli.plan.table import Ordered
    from wdscli.shards.inputs import ShardSet


class PlanMark(NamedTuple):
    """The fingerprint of a plan, in four parts so that it can be told what differs. Where it runs, with how many jobs
    and how much memory is no part of it: the bytes do not depend on these."""

    inputs: str
    options: str
    samples: str
    shards: str

    @property
    def text(self) -> str:
        """All four, as one word."""
        return "-".join(self)

    def difference(self, other: PlanMark) -> str:
        """In which way another plan is not this one."""
        if self.options != other.options:
            return "its options were others"
        if self.inputs != other.inputs:
            return "its inputs were others, or have been changed since"
        return "its samples or cuts were others"


OnDuplicate = Literal["error", "skip", "rekey"]


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


class PlannedShard(NamedTuple):
    """One shard to be made: samples ``first`` to ``end`` of the output order. ``part`` counts from 0, and ``number``
    the shard in its part; ``size`` is in bytes."""

    address: str
    part: int
    number: int
    first: int
    end: int
    size: int
    members: int

    @property
    def samples(self) -> int:
        return self.end - self.first


class PlannedPart(NamedTuple):
    """One set to be made; its name is empty where there is no ``{part}``."""

    name: str
    output: OutputSet


@dataclass(frozen=True, slots=True)
class ReorderPlan:
    """What would be done: the samples in output order, the shards they go to, and the counts on the way.

    ``dropped`` counts samples of the inputs that are not written, by reason; ``ignored`` members that belong to no
    sample, by reason; ``oversized`` samples larger than the limit for a shard, which get one of their own.
    """

    request: Request
    operation: str
    seed: int | None
    options: Mapping[str, Any]
    shards: ShardSet
    inputs: Sequence[Input]
    parts: tuple[PlannedPart, ...]
    planned: tuple[PlannedShard, ...]
    ordered: Ordered
    rekey: Rekey | None
    samples_in: int
    bytes_in: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    oversized: int
    strategy: str = "gather"
    reason: str = "as the plan says"
    """Why this strategy."""
    fingerprint_in: str | None = None
    """That of the input set, for the manifest."""
    mark: PlanMark | None = None
    """The plan's own fingerprint, when it is known."""
    is_stored: bool = False
    """The plan was read from a file: others may run tasks of it at the same time."""
    joined: Joined | None = None
    """The further parts of samples that are joined."""
    duplicates: Duplicates | None = None
    """What was left out because it repeats others, where that was asked for."""
    members_in: int = 0
    """Members of all samples that were read."""
    payload_bytes_in: int = 0
    """What is in these."""

    @property
    def samples(self) -> int:
        """Samples to be written."""
        return self.ordered.total

    @property
    def row_lists(self) -> list[Ordered]:
        """All rows of the plan in output order: one list, or with a join one for each set."""
        return [self.ordered, *(self.joined.others if self.joined is not None else ())]

    @property
    def made(self) -> dict[str, Any]:
        """How the output is made, as its manifest tells it."""
        return {
            "operation": self.operation,
            "options": self.options,
            "seed": self.seed,
            "inputs": [self.fingerprint_in],
        }

    @property
    def size_bytes(self) -> int:
        """Bytes to be written, all shards together."""
        return sum(shard.size for shard in self.planned)
