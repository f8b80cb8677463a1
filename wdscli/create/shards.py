"""This module reads samples from existing shards by another key rule, or with repeated keys (``--from shards:SET``).

:func:`shards_layout` returns the layout. A row is one sample: adjacent members with the same key by ``--key-rule``. A
field that comes twice begins another sample, so ``a.jpg a.txt a.jpg a.txt`` are two samples with one key, and
``--on-duplicate`` decides about the second. Shards are read in order, and damaged shards are an error. Indexes are not
read, because they group members by the usual rule. A sample's payloads are in memory together. This module does not
know where payloads go.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from wdscli.create.delimited import Record
from wdscli.create.files import KeyRule
from wdscli.create.layouts import SAMPLE_KEY, TableLayout, TableOptions
from wdscli.errors import UsageError
from wdscli.samples.grouping import not_regular
from wdscli.shards.inputs import classes_of, open_set
from wdscli.storage import addresses_of, open_source
from wdscli.tar import DIRECTORY, KIND_MASK, REGULAR
from wdscli.tar.reader import scan
from wdscli.text import to_text

OPTION = "--from shards:"


def shards_layout(options: TableOptions, rule: KeyRule) -> TableLayout:
    """Return the layout of existing shards. Raises UsageError, and InputError for missing shards."""
    if options.key is not None or options.fields or options.json_rest or options.json_merge:
        raise UsageError(
            f"{OPTION} takes whole samples, without --key-column, --column, --json-rest and --json-merge",
            hint="join columns to them later with wds merge --table",
        )
    shards = open_set(addresses_of(options.address, OPTION))
    rows = partial(_samples, rule, options)
    options = options._replace(key=SAMPLE_KEY)
    return TableLayout(
        shards.addresses, lambda file, *_: rows(file), options, classes_of(shards), has_samples=True
    )


def _samples(rule: KeyRule, options: TableOptions, address: str) -> Iterator[Record]:
    """Yield the samples of a shard. Members that belong to no sample are left out. Raises DataError."""
    number, key, fields = 0, b"", dict[str, bytes]()
    for name, payload in _members(address):
        parts = rule.found(name)
        if isinstance(parts, str):
            options.reading.leave_out(parts, name)
            continue
        field = to_text(parts[1])
        if fields and (parts[0] != key or field in fields):
            number += 1
            yield Record(number, 0, {SAMPLE_KEY: to_text(key), **fields})
            fields = {}
        key, fields[field] = parts[0], payload
    if fields:
        yield Record(number + 1, 0, {SAMPLE_KEY: to_text(key), **fields})


def _members(address: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and payload of each regular member. Raises DataError for links and damage."""
    with open_source(address, whole=True) as source:
        for window in scan(source, payloads=True):
            for row, name in enumerate(window.columns.names):
                kind = window.columns.flags[row] & KIND_MASK
                if kind == REGULAR:
                    yield name, window.payload(row)
                elif kind != DIRECTORY:
                    raise not_regular(kind, source.name, window.columns.starts[row], name)
