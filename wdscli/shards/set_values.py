"""One number for each sample of a set: from the indexes, from a table, or from the payloads.

:func:`values_of` is for callers that need the numbers of all samples before they read any sample, such as batches. The
module does not know what the numbers are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wdscli.errors import DataError, UsageError
from wdscli.selection import Selection
from wdscli.selection.keyfiles import NumbersByKey
from wdscli.selection.numbers import Numbers, SampleNumbers, joined, value_names
from wdscli.selection.reading import Payloads, expecting
from wdscli.shards.index import Index
from wdscli.shards.reading import index_batches, index_of_base
from wdscli.storage import Source, open_source
from wdscli.tar import CANONICAL


def values_of(
    addresses: Sequence[str],
    expression: str,
    *,
    table: str | None = None,
    index_of: Callable[[int], Index] | None = None,
    open_shard: Callable[[str], Source] = open_source,
    warn: Callable[[str], object] = lambda text: None,
) -> Any:
    """One number for each sample of some shards, in the order of the shards and of the samples in them: an int64 array,
    or a float64 array if one of the numbers is a fraction. A missing number is ``MISSING`` (-2^63) in an int64 array
    and NaN in a float64 array (:attr:`Numbers.missing <wdscli.selection.numbers.Numbers.missing>` finds both).

    ``expression`` is one value as ``--values`` takes it: ``json.tokens``, ``len(txt)``, ``json.w / json.h``. The
    numbers come from the file ``table`` if it is given (CSV, TSV, JSON Lines or Parquet with a column ``key``: see
    :class:`~wdscli.selection.keyfiles.NumbersByKey`), else from the indexes of the shards. With a table the expression
    can also be the name of a column. Shards whose index does not have them, or has those of other payloads, are read
    once, after one call of ``warn``. ``index_of`` returns the index
    of a shard by its number, and ``open_shard`` opens an address; the shards must be seekable. A second call of
    ``warn`` tells how many samples have no number because of a damaged payload, or no row in ``table``.

    Raises UsageError for an invalid expression, InputError for a broken table, DataError for a damaged shard and if no
    sample has a number.
    """
    name = value_name(expression, table)
    by_key = None if table is None else NumbersByKey(table, name)
    found, remarks, read = list[Numbers](), list[str](), 0
    for number, address in enumerate(addresses):
        index = index_of(number) if index_of is not None else _index_of(address, open_shard)
        if by_key is not None:
            found.append(by_key.of(key for batch in index_batches(index) for key in batch.keys))
        elif name in index.numbers:
            found.append(index.numbers[name])
        else:
            if not read:
                hint = f"`wds index --values '{name}'` stores the numbers in the indexes"
                warn(f"reading payloads for {name}, which not all indexes have: {hint}")
            read += 1
            numbers = SampleNumbers([name], lenient=True)
            with open_shard(address) as source:
                _read_all(source, index, numbers)
            remarks += numbers.remarks()
            found += numbers.numbers().values()
    whole = joined(found)
    missing = int(whole.missing.sum())
    if missing and missing == len(whole.array):
        where = "" if table is None else f" in {table}"
        raise DataError(
            f"no sample has {name}{where}", code="missing-field", hint="`wds ls SHARDS --show` shows a sample"
        )
    if remarks:
        warn(remarks[0])
    elif missing and by_key is not None:
        warn(f"{missing} of {len(whole.array)} samples have no row in {table}")
    return whole.array


def value_name(expression: str, table: str | None = None) -> str:
    """The normal form of one value; with a table also the name of a column. Raises UsageError."""
    try:
        names = value_names(expression, "values")
    except UsageError:
        if table is None:
            raise
        return expression
    if len(names) != 1:
        raise UsageError(
            f'one value for each sample is needed, not the {len(names)} of "{expression}"', hint="json.tokens"
        )
    return names[0]


def _index_of(address: str, open_shard: Callable[[str], Source]) -> Index:
    with open_shard(address) as source:
        return index_of_base(address, source, CANONICAL)


def _read_all(source: Source, index: Index, numbers: SampleNumbers) -> None:
    """Add the numbers of all samples of a shard, by its index."""
    payloads = Payloads(source, numbers.payload_fields, by_index=True)
    for batch in expecting(source, index_batches(index), Selection(), payloads, numbers.payload_fields):
        payloads.batch = batch
        numbers.add_batch(batch, source.name, payloads)
