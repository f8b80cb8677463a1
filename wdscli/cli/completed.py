"""Names for completion: fields and keys in shards, columns of tables, folders of stores.

How: it reads little, and only local files: the first samples of a few shards, the head of a table. A thread lists a
store, for :data:`STORE_SECONDS` at most. This module does not know shells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from threading import Thread

STORE_SECONDS = 2.0
_MOST_SHARDS, _MOST_KEYS = 3, 500

is_waiting = False
"""Whether a store has not answered yet, so that a normal exit of Python would wait for it."""


def names_in(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Fields and keys of the first samples in local shards."""
    from wdscli.errors import WdsError
    from wdscli.model import to_text
    from wdscli.samples import iter_batches
    from wdscli.storage import open_source

    fields: dict[str, None] = {}
    keys: list[str] = []
    for address in islice(_local_shards(given), _MOST_SHARDS):
        with suppress(WdsError), open_source(address) as source:
            for batch in islice(iter_batches(source), 2):
                fields |= dict.fromkeys(map(to_text, batch.fields))
                keys += map(to_text, batch.keys)
    return sorted(fields), keys[:_MOST_KEYS]


def _local_shards(given: Sequence[str]) -> Iterator[str]:
    from wdscli.errors import WdsError
    from wdscli.shards.inputs import open_set
    from wdscli.storage import is_local

    for text in given:
        if is_local(text) and text != "-":
            try:
                yield from filter(is_local, open_set([os.path.expanduser(text)], pipes=False).addresses)
            except WdsError:
                continue


def places_in(given: Sequence[str], before: str) -> list[str]:
    """Paths in JSON fields of the first samples, one level below the field or path ``before``: ``json.width`` for
    ``json``."""
    import json

    from wdscli.errors import WdsError
    from wdscli.samples import iter_samples
    from wdscli.storage import open_source

    found: dict[str, None] = {}
    for address in islice(_local_shards(given), _MOST_SHARDS):
        with suppress(WdsError), open_source(address) as source:
            for sample in islice(iter_samples(source), 20):
                for field, payload in sample.fields.items():
                    if field.rpartition(".")[2] == "json" and f"{before}.".startswith(f"{field}."):
                        with suppress(ValueError, LookupError, TypeError, AttributeError):
                            value = json.loads(payload)
                            for name in filter(None, before[len(field) :].split(".")):
                                value = value[name]
                            found |= {f"{before}.{name}": None for name in value}
    return list(found)


def columns_of(tables: Sequence[str]) -> list[str]:
    """Columns of local tables."""
    from wdscli.create.rows import column_names, table_files
    from wdscli.storage import is_local

    found: dict[str, None] = {}
    for text in tables:
        with suppress(Exception):
            if is_local(text) and text != "-":
                found |= dict.fromkeys(column_names(table_files(os.path.expanduser(text), "")[0]))
    return list(found)


def entries_of_store(folder: str) -> dict[str, bool]:
    """Names in a folder of a store, and whether each is a folder; none if the store does not answer in time."""
    global is_waiting
    found: dict[str, bool] = {}

    def fetch() -> None:
        from wdscli.storage.remote import entries_in
        from wdscli.storage.retry import Network, using

        with suppress(Exception), using(Network(retries=0, timeout_seconds=STORE_SECONDS)):
            found.update(entries_in(folder))

    if folder.endswith("://"):
        return {}
    thread = Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(STORE_SECONDS)
    is_waiting = thread.is_alive()
    return dict(found)
