"""Each fact of a shard is known in every place that makes, passes on, writes, reads or compares facts.

A new field of ``Facts`` fails here until all these places know it: the messages name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wdscli.model import UNKNOWN, Facts, FieldTotals, ShardInfo, contradictions
from wdscli.samples import iter_batches
from wdscli.samples.reading import walk_small
from wdscli.shards import ShardWriter
from wdscli.shards.index import IndexBuilder
from wdscli.shards.manifest import parse_shard, plain_shard
from wdscli.shards.proof import read_index
from wdscli.storage import open_source
from wdscli.tar import CANONICAL, core

MAN_PAGE = Path(__file__).parents[2] / "man/prose/wdscli-manifest.5"
INFO = ShardInfo("t-0.tar", 2, 4, 51200, "0a" * 8, None, {"cls": FieldTotals(2, 2)}, index=True)


def with_another(name: str) -> ShardInfo:
    """Return the shard with another value of one fact, which a manifest may hold."""
    value: Any = getattr(INFO, name)
    if isinstance(value, Mapping):
        value = {"other": FieldTotals(1, 1)}
    else:
        value = value[::-1] if isinstance(value, str) else value + 1
    changes: dict[str, Any] = {name: value}
    return replace(INFO, **changes)


def test_a_written_shard_is_described_with_each_fact() -> None:
    facts = Facts._make(map(str, range(len(Facts._fields))))
    info = facts.of_shard("t.tar", 10240, checksum=None, index=True)
    lost = [name for name in Facts._fields if getattr(info, name) != getattr(facts, name)]
    assert not lost, "Facts.of_shard in model.py loses them"


def test_writers_indexes_and_scans_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdscli.samples.reading.SMALL_SHARD_BYTES", 0)
    with ShardWriter(f"{tmp_path}/t-%d.tar") as writer:
        for number in range(100):
            writer.write(f"k{number}", {"txt": b"%d" % number, "cls": b"7"})
    address = f"{tmp_path}/t-0.tar"
    scanned, packed = IndexBuilder(), IndexBuilder()
    with open_source(address) as source:
        for batch in iter_batches(source):
            scanned.add_batch(batch)
        end = 0
        for offset, samples in walk_small(source, CANONICAL):
            packed.add_arrays(samples.stored(), offset)
            end = offset + samples.end
        assert packed.samples or core.CORE is None
        for batch in iter_batches(source, begin=(end, packed.samples)):
            packed.add_batch(batch)
    index = read_index(address).index
    assert index is not None
    facts = {
        "ShardWriter": writer.manifest.shards[0],
        "Index.facts": index.facts(),
        "IndexBuilder.facts after add_batch": scanned.facts(),
        "IndexBuilder.facts after add_arrays": packed.facts(),
    }
    for place, known in facts.items():
        for name in Facts._fields:
            value = getattr(known, name)
            assert value not in (UNKNOWN, "", {}, None), f"{place} does not know {name}"
            assert value == getattr(index.facts(), name), f"{place} has another value of {name}"


def test_a_manifest_has_each_fact() -> None:
    entry, page = plain_shard(INFO), MAN_PAGE.read_text()
    for name in Facts._fields:
        changed = with_another(name)
        changed_entry = plain_shard(changed)
        keys = [key for key in changed_entry if changed_entry[key] != entry.get(key)]
        assert len(keys) == 1, f"plain_shard in shards/manifest.py does not write {name}"
        assert parse_shard(changed_entry, True) == changed, f"parse_shard does not read {name}"
        with pytest.raises(ValueError, match=keys[0]):
            parse_shard({**entry, keys[0]: object()}, True)  # _SHARD has its bounds
        assert keys[0] in page, f"wdscli-manifest(5) does not name {keys[0]}"


def test_verify_and_index_compare_each_fact() -> None:
    assert not list(contradictions(INFO, INFO))
    same = [name for name in Facts._fields if not list(contradictions(with_another(name), INFO))]
    assert not same, "contradictions in model.py does not compare them"
