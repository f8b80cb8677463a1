"""New keys by a format such as ``{shard}-{index:09d}``.

The names are ``key`` (the old key), ``shard`` (the input shard's file name without ``.tar`` and what follows) and
``index`` (the sample's place in that shard, from 0). A new key must read back as the key of the sample: its last part
has no dot. This module knows nothing of shards' bytes.
"""

from __future__ import annotations

import re
from string import Formatter
from typing import NamedTuple

from wdscli.errors import UsageError
from wdscli.model import to_bytes, to_text
from wdscli.samples import check_name
from wdscli.storage import base_name

NAMES = ("index", "key", "shard")
MAX_WIDTH = 4096
"""Characters to which a format may fill a value up."""
_NUMBER = re.compile("[0-9]+")
DEFAULT = "{key}-{shard}-{index:09d}"
"""What ``--on-duplicate rekey`` uses when no ``--rekey`` is given."""


class Rekey(NamedTuple):
    """A validated format."""

    format: str

    @classmethod
    def parse(cls, text: str) -> Rekey:
        """Raises UsageError for a format that cannot be filled in."""
        try:
            pieces = list(Formatter().parse(text))
            names = {name for _, name, _, _ in pieces if name is not None}
            unknown = sorted(name for name in names if name.partition(".")[0].partition("[")[0] not in NAMES)
            if unknown or any("." in name or "[" in name for name in names):
                raise ValueError(f"there is no {{{unknown[0]}}}" if unknown else "names stand alone")
            for _, _, spec, _ in pieces:
                _check_width(spec or "")
            sample = text.format(key="key", shard="shard", index=0)
        except (ValueError, IndexError, KeyError) as error:
            raise UsageError(
                f'cannot use --rekey "{text}": {error}',
                hint="use {shard}, {index} and {key}: {shard}-{index:09d}",
            ) from None
        if not names:
            raise UsageError(
                f'--rekey "{text}" gives every sample the same key', hint="use {shard}-{index:09d}"
            )
        check_name(to_bytes(sample), b"x")
        return cls(text)

    def key(self, old: bytes, stem: str, index: int) -> bytes:
        """The new key. Raises UsageError when it would not read back as a key."""
        new = to_bytes(self.format.format(key=to_text(old), shard=stem, index=index))
        check_name(new, b"x")
        return new


def _check_width(spec: str) -> None:
    """Raise ValueError for what would make any amount of text, before any is made."""
    if "{" in spec:
        raise ValueError("a width is a number")
    if any(len(number.lstrip("0")) > 4 or int(number) > MAX_WIDTH for number in _NUMBER.findall(spec)):
        raise ValueError(f"it is wider than {MAX_WIDTH}")


def shard_stem(address: str) -> str:
    """What ``{shard}`` stands for: ``train-000007`` for ``s3://b/train-000007.tar.gz``.

    >>> shard_stem("s3://b/train-000007.tar.gz")
    'train-000007'
    """
    name = base_name(address)
    return name.partition(".")[0] or name
