"""The options of a check, from words that are short in tests."""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.text import to_bytes
from wdscli.verify.findings import MAX_FINDINGS
from wdscli.verify.keys import KeyList
from wdscli.verify.shard import Checks


def checks_of(
    *,
    require: Sequence[str] = (),
    profiles: Sequence[str] = (),
    decode: bool = False,
    max_decoded: int = MAX_DECODED_BYTES,
    checksums: bool = False,
    max_findings: int = MAX_FINDINGS,
    absent: str | None = None,
) -> Checks:
    """The record of these options."""
    return Checks(
        tuple(map(to_bytes, require)),
        tuple(profiles),
        max_decoded if decode else None,
        checksums,
        max_findings,
        absent=None if absent is None else KeyList.at(absent),
    )
