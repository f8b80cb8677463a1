"""The search for keys that no sample may have.

What it is: :class:`Absence`, which looks at the keys of one shard. How: keys are read from headers, never from an
index. The SHA-256 of the list, and of the keys of each shard, let anyone repeat the search with other tools
(``scripts/examples/check_proof.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import SampleBatch
from wdscli.selection.keyfiles import key_lines
from wdscli.storage import base_name, is_stream
from wdscli.verify.findings import Ledger

PRESENT = "present-key"
"""The code of a finding: a sample has a key of the list."""


class Absence:
    """The search in one shard for the keys of a list."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._keys = listed_keys(address)
        self._message = f"{base_name(address)} lists this key"
        self._ledger = ledger
        self._digest = sha256()

    def look(self, batch: SampleBatch) -> None:
        """Look at the keys of a batch."""
        self._digest.update(b"".join(key + b"\n" for key in batch.keys))
        if self._keys.isdisjoint(batch.keys):
            return
        for row, key in enumerate(batch.keys):
            if key in self._keys:
                self._ledger.add(PRESENT, self._message, offset=batch.start(row), member=key)

    @property
    def digest(self) -> str:
        """The SHA-256 of all keys so far in hexadecimal, each followed by a newline."""
        return self._digest.hexdigest()


@lru_cache(1)
def listed_keys(address: str) -> frozenset[bytes]:
    """The keys of a list. Raises UsageError for a stream, which other processes cannot read, and InputError."""
    if is_stream(address):
        raise UsageError("--absent needs a file, because several processes read it", hint="--absent FILE")
    return frozenset(key_lines(address))


def impossible(keys: Iterable[bytes]) -> str:
    """A warning about listed keys that no sample can have, such as names of files; empty if there are none."""
    wrong = sorted(key for key in keys if b"." in key.rpartition(b"/")[2])
    if not wrong:
        return ""
    these = "a listed key has" if len(wrong) == 1 else f"{len(wrong)} listed keys have"
    return f'{these} a dot after the last slash, as no key has: "{to_text(wrong[0])}"; leave out .jpg and the like'
