"""A training program with types, as users write them: what mypy says of it is the test, with scripts/check.

Each ``assert_type`` is what a stage gives, and each ``type: ignore`` an error that mypy must find. It is run too, by
tests/loader/test_loader_types.py, for what is said of samples must be so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import wdscli.loader as wds

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, kind: Any) -> Any:
        return value


def labelled(sample: wds.RawSample) -> tuple[str, int] | None:
    """Functions of what was read know what they get."""
    number = int(sample["cls"])
    assert_type(sample["txt"], bytes)
    return (assert_type(sample["__key__"], str), number) if number % 2 else None


def made(urls: str, train: bool) -> wds.WebDataset:
    """A dataset step by step, the same name for all of them."""
    data = wds.WebDataset(urls, seed=1)
    if train:
        data = data.shuffle(100)
    data = data.decode()
    assert_type(data, "wds.WebDataset[dict[str, Any]]")
    data = data.to_tuple("cls", "txt")
    return data.batched(4)


def main(urls: str) -> list[Any]:
    raw = wds.WebDataset(urls)
    for sample in raw:
        key: str = sample["__key__"]
        text: bytes = sample["txt"]
    pairs = raw.map(labelled)
    assert_type(pairs, "wds.WebDataset[tuple[str, int]]")
    keys = [name.upper() for name, number in pairs if number > 0]

    decoded = raw.select(lambda one: len(one["txt"]) > 0).rename(label="cls").decode().map_dict(label=int)
    assert_type(decoded, "wds.WebDataset[wds.Sample]")
    assert_type(decoded.batched(4), "wds.WebDataset[Any]")
    assert_type(decoded.listed(4).map(len), "wds.WebDataset[int]")
    assert_type(pairs.listed(2).unlisted(), "wds.WebDataset[tuple[str, int]]")
    if TYPE_CHECKING:
        for batches in (
            decoded.batched(4, bucket="json.width", buckets=[3, 6], same_bucket=True),
            decoded.batched(budget=100, length="len(txt)", max_samples=4, window=5),
            decoded.batched(4, list, False, bucket="cls", buckets={(0, 5): 2, (5, 10): 3}),
        ):
            assert_type(batches, "wds.WebDataset[Any]")

    loader = wds.WebLoader(decoded, 4, num_workers=0)
    assert_type(loader, "wds.WebLoader[dict[str, Any]]")
    assert_type(loader.unbatched().batched(2), "wds.WebLoader[Any]")
    assert_type(wds.WebLoader(pairs, drop_last=True), "wds.WebLoader[list[Any]]")
    assert_type(wds.WebLoader(decoded, 4, collate_fn=len), "wds.WebLoader[Any]")
    columns = [len(batch["label"]) for batch in loader]

    table = wds.IndexedDataset(urls).decode()
    assert_type(table[2:4], "wds.IndexedDataset[wds.Sample]")
    assert_type(table["n3"], "dict[str, Any]")
    assert_type(table.map(lambda one: len(one["txt"]))[0], int)
    assert_type(table.to_tuple("cls", "txt").__getitems__([0]), "list[tuple[Any, ...]]")
    if TYPE_CHECKING:
        assert_type(next(iter(raw)), "wds.RawSample | Any")
        assert_type(DataLoader(table, batch_size=4), "DataLoader[wds.Sample]")
        assert_type(DataLoader(raw, batch_size=None), "DataLoader[wds.RawSample | Any]")
    for row in wds.IndexedDataset(urls):
        raw_text: bytes = row["txt"]

    both = wds.mix([(pairs, 2), (pairs, 1)])
    assert_type(both, wds.WebDataset[Any])
    assert_type(wds.mix([decoded, decoded]).map(len), "wds.WebDataset[int]")
    assert_type(wds.RandomMix([pairs, pairs], [0.7, 0.3]), "wds.RandomMix[tuple[str, int]]")
    assert_type(wds.RoundRobin([decoded, decoded]).map(len), "wds.DataPipeline[int]")
    for first in wds.mix({urls: 1}):
        raw_text = first["txt"]
    loaded = wds.WebLoader(wds.mix({decoded: 1, wds.WebDataset(urls).decode(): 2}).batched(4))
    assert_type(loaded, "wds.WebLoader[Any]")

    pipeline: wds.DataPipeline[tuple[str, int]] = wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.map(labelled)
    )
    assert_type(pipeline.map(lambda pair: pair[1]), "wds.DataPipeline[int]")
    assert_type(pipeline.listed(2), "wds.DataPipeline[list[tuple[str, int]]]")
    names = [name.upper() for name, _ in pipeline]
    assert_type(wds.DataPipeline(urls).batched(2), "wds.DataPipeline[Any]")
    assert (sorted(names), raw_text, {name for name, _ in both}) == (
        keys,
        b"text",
        {"n1", "n3", "n5", "n7", "n9"},
    )
    return [key, text, keys, columns, table[0]["cls"], [len(labels) for labels, _ in made(urls, True)]]


def refused(urls: str) -> None:
    """What is misspelt, or asked of bytes; never called."""
    data = wds.WebDataset(urls, shufle="window")  # type: ignore[call-arg]
    data.decod()  # type: ignore[attr-defined]
    data.decode("pil", hander=print)  # type: ignore[call-arg]
    data.decode().batched(4, parial=False)  # type: ignore[call-arg]
    data.batched(4, bucket="index", buckets=4)  # type: ignore[arg-type]
    wds.mix([data, data], stop="longest")  # type: ignore[arg-type]
    wds.shufle(100)  # type: ignore[attr-defined]
    wds.shuffle(bufsiz=100)  # type: ignore[call-arg]
    wds.WebLoader(data).unbached()  # type: ignore[attr-defined]
    for sample in data:
        print(sample["jpg"].size)  # type: ignore[union-attr]


if __name__ == "__main__":
    print(main(sys.argv[1]))
