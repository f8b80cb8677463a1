"""This module has the request of a reordering command, as records.

:class:`Request` has the options that all reordering commands share. :class:`PlanMark` is the fingerprint of a plan made
from a request. This module does not know how a plan is made or carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, NamedTuple

from wdscli.errors import UsageError
from wdscli.plan.cut import FIELD, Cuts
from wdscli.selection import Selection
from wdscli.selection.choice import OnError
from wdscli.shards.writing import ShardSettings
from wdscli.storage import exists
from wdscli.storage.ends import taken


class PlanMark(NamedTuple):
    """The fingerprint of a plan. It has four parts, so that a difference can be explained. ``failures`` is a
    transform's policy for failures; it is empty for "stop". The place, jobs and memory of a run are not included,
    because they do not change the bytes."""

    inputs: str
    options: str
    samples: str
    shards: str
    failures: str = ""

    @property
    def text(self) -> str:
        """The four parts as one word."""
        return f"{self.inputs}-{self.options}-{self.samples}-{self.shards}"

    def accepts(self, existing: PlanMark) -> bool:
        """Return whether this plan makes the same shards as an ``existing`` plan. If that plan stopped at failures, its
        shards contain no failures, so they are valid with every policy for failures."""
        return self.text == existing.text and existing.failures in ("", self.failures)

    def difference(self, existing: PlanMark, options: Sequence[str] = ()) -> str:
        """Return how an existing plan differs from this plan, as the end of a sentence. ``options`` are the options
        known to differ."""
        if self.text == existing.text:
            options = ["--on-error"]
        if options or self.options != existing.options:
            return "it was started with different options" + (f": {', '.join(options)}" if options else "")
        if self.inputs != existing.inputs:
            return "its inputs differ or have changed"
        return "its samples or cuts differ"


OnDuplicate = Literal["error", "skip", "rekey"]
Strategy = Literal["auto", "gather", "spill"]


class Request(NamedTuple):
    """The inputs, the output, and the options that all reordering commands share, apart from the order."""

    inputs: Sequence[str]
    output: str
    settings: ShardSettings = ShardSettings()
    cuts: Cuts = Cuts()
    selection: Selection = Selection()
    on_error: OnError = "stop"
    on_duplicate: OnDuplicate = "error"
    dedup: Sequence[str] = ()
    """Leave out selected samples that repeat the key (``key``), or the payloads or values of these names."""
    near: int | None = None
    """The hashes of ``dedup`` are the same if at most so many bits differ."""
    rekey: str | None = None
    jobs: int | None = None
    use_index: bool = True
    tmp: str | None = None
    """The folder or address for scratch files. None means TMPDIR."""
    selection_text: Mapping[str, Any] | None = None
    """The selection as it was typed, for the manifest."""
    strategy: Strategy = "auto"
    memory: int | None = None
    """The most bytes of memory for all processes together, or with ``engine`` for one task. None means the memory that
    the machine can spare."""
    engine: str | None = None
    """The engine for tasks: ``dask://HOST:PORT`` or another engine's URL. None means ``jobs`` processes on this
    machine."""
    workers: Executor | None = None
    """Worker processes that have already imported the code of a transform."""
    post: str | None = None
    """A shell command to run for each published shard. The shard's address replaces ``{}``."""
    resume: bool = False
    """Keep the shards that an earlier run of the same plan has made."""
    allow_empty: bool = False
    """Accept names that no sample has, and an output without samples."""
    trust_addresses: bool = False
    """Whether manifests and downloaded lists may name any shard."""
    plan_file: str | None = None
    """The address for a plan file. If it is given, the plan is stored and not run. Such a plan must not depend on this
    process."""

    report: str | None = None
    """The address of a file that gets a line of JSON for each sample, row and field that is left out."""
    if_changed: bool = False
    """Exit without writing if the output is up to date; replace it if the same command made it."""
    stamp: str | None = None
    """The digest that shows whether the output is up to date (:mod:`wdscli.run.digests`)."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the options alone decide the selected samples. This is false with key files, and with policies that
        skip samples or compare payloads."""
        return (
            not self.selection.files
            and self.on_error == "stop"
            and self.on_duplicate == "error"
            and not self.dedup
        )


def check_view(request: Request) -> None:
    """Raise UsageError for options that have no meaning for a view, and OutputExistsError if the view exists."""
    option_values = {
        "--plan": request.plan_file,
        "--post": request.post,
        "--if-changed": request.if_changed,
        "--no-index": not request.settings.with_index,
        "--column": request.selection.new_fields,
        "--hash": request.settings.checksum != ShardSettings().checksum,
    }
    option = next((name for name, value in option_values.items() if value), None)
    if option is not None:
        raise UsageError(
            f"{option} works only for shards, and {request.output} is a view", hint=f"leave {option} out"
        )
    may_exist = request.settings.force or request.resume
    if FIELD not in request.output and not may_exist and exists(request.output):
        raise taken(request.output)
