"""``index`` as a function: the settings are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wdscli.ops.index import IndexReport, IndexSettings
from wdscli.ops.index import index as run_index

RUNS = ("trust_addresses", "jobs", "progress")
"""The arguments that are no settings."""


def index(inputs: Sequence[str], **options: Any) -> IndexReport:
    """Index the shards of ``inputs``."""
    how = {name: options.pop(name) for name in RUNS if name in options}
    return run_index(inputs, IndexSettings(**options), **how)
