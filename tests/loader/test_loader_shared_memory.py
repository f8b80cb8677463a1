"""What crosses from workers: large columns in memory that is used again, and never while somebody refers to it."""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy
import pytest

import wdscli.loader as wds
from wdscli.loader.place import ranks
from wdscli.loader.stages import shared_memory
from wdscli.loader.stages.per_batch import default_collation, packed
from wdscli.loader.stages.shared_memory import MOST_SEGMENTS, SHARED_FROM_BYTES, Lender, Packed, received
from wdscli.shards import ShardWriter

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

SIDE = 200
"""Of a picture of bytes; four of them are a large column."""
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory here")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("numbers")
    with ShardWriter(f"{folder}/n-%06d.tar", max_count=60) as writer:
        for number in range(120):
            writer.write(f"n{number:03d}", {"cls": b"%d" % number})
    return str(folder)


def pixels(number: int) -> Any:
    return numpy.full((SIDE, SIDE), number, numpy.uint8)


def pictured(make: Any, sample: dict[str, Any]) -> tuple[int, Any]:
    number = int(sample["cls"])
    return number, make(pixels(number))


def batches(numbers: str, make: Any = numpy.asarray, **how: Any) -> Any:
    return wds.WebDataset(numbers).map(partial(pictured, make)).batched(4, **how)


def same(item: Any) -> Any:
    return item


def check(batch: Any) -> None:
    wanted, found = batch
    assert found.shape == (len(wanted), SIDE, SIDE)
    for number, one in zip(wanted, found):
        assert (one == int(number)).all()


def by_webloader(dataset: Any, **how: Any) -> Iterator[Any]:
    return iter(wds.WebLoader(dataset, num_workers=2, **how))


def by_torch(dataset: Any, **how: Any) -> Iterator[Any]:
    return iter(data.DataLoader(dataset, batch_size=None, num_workers=2, **how))


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [numpy.asarray, torch.from_numpy])
def test_memory_is_used_again(numbers: str, make: Any) -> None:
    addresses = []
    for batch in by_webloader(batches(numbers, make).repeat(2)):
        check(batch)
        assert type(batch[1]) is torch.Tensor
        addresses.append(batch[1].data_ptr())
        batch[1][:] = 255  # it may be changed
        if len(addresses) == 60:
            break
    assert len(set(addresses)) < 30


@pytest.mark.exhaustive
@pytest.mark.parametrize("loader", [by_webloader, by_torch])
def test_what_is_kept_stays_as_it_is(numbers: str, loader: Any) -> None:
    draw = random.Random(0)
    kept: list[Any] = []
    for wanted, found in loader(batches(numbers).repeat(3)):
        # Views count as much as what they are of.
        view = [found, found[1:], found.numpy()[2:], found.view(torch.int8).reshape(-1)][draw.randrange(4)]
        kept.append((int(wanted[-1]), found.shape[0], view))
        del found, view
        if len(kept) > 12:
            number, _, view = kept.pop(draw.randrange(len(kept)))
            assert view.reshape(-1)[-1] == number % 256
        for number, _, view in kept:
            assert view.reshape(-1)[-1] == number % 256
        if number > 110 and len(kept) > 11 and draw.random() < 0.1:
            break


@pytest.mark.exhaustive
def test_all_batches_may_be_kept(numbers: str) -> None:
    """More than a worker lends: the rest goes the usual way."""
    some = list(by_webloader(batches(numbers).repeat(2 * MOST_SEGMENTS * 4 // 120 + 2)))
    assert len(some) > 2 * MOST_SEGMENTS + 20
    for batch in some:
        check(batch)


@pytest.mark.exhaustive
def test_batches_of_torch_cross_so_too(numbers: str) -> None:
    samples = wds.WebDataset(numbers).map(partial(pictured, numpy.asarray))
    loader = wds.WebLoader(samples.repeat(3), batch_size=4, num_workers=1)
    addresses = []
    for number, batch in enumerate(loader):
        check(batch)
        addresses.append(batch[1].data_ptr())
        if number == 80:
            break
    assert len(set(addresses)) < 30


def test_arrays_stay_arrays_for_who_collates_himself(numbers: str) -> None:
    for batch in by_webloader(batches(numbers), collate_fn=same):
        assert type(batch[1]) is numpy.ndarray
        check(batch)
        batch[1][:] = 0


@pytest.mark.exhaustive
def test_stages_behind_the_batches_have_arrays(numbers: str) -> None:
    before: deque[Any] = deque(maxlen=1)

    def with_the_one_before(batch: Any) -> Any:
        """Like mixup with the batch before, which the worker keeps after it was sent."""
        assert type(batch[1]) is numpy.ndarray
        last = before[0] if before else batch
        before.append(batch)
        return (*batch, last[0], last[1])

    for number, (wanted, found, wanted_before, found_before) in enumerate(
        by_webloader(batches(numbers).map(with_the_one_before).repeat(3))
    ):
        check((wanted, found))
        check((wanted_before, found_before))
        if number > 80:
            break


@pytest.mark.exhaustive
def test_the_same_batch_may_be_sent_again_and_again(numbers: str) -> None:
    once: list[Any] = []

    def always_the_first(batch: Any) -> Any:
        once.append(batch)
        return once[0]

    kept = []
    for batch in wds.WebLoader(batches(numbers).map(always_the_first), num_workers=1):
        check(batch)
        kept.append(batch)
        batch[1][0, 0, len(kept)] = 0  # each is a copy of its own, but for the first
    assert len(kept) == 30
    assert len({batch[1].data_ptr() for batch in kept}) == 30


def odd(kind: str, sample: dict[str, Any]) -> Any:
    number = int(sample["cls"])
    whole = numpy.full(SIDE * SIDE, number)
    found: Any = {
        "bool": lambda: torch.from_numpy(whole) > 60,
        "bfloat16": lambda: torch.from_numpy(whole).to(torch.bfloat16),
        "complex": lambda: torch.from_numpy(whole.astype(numpy.complex64)).conj(),
        "big-endian": lambda: whole.astype(">i4"),
        "record": lambda: whole.astype([("a", "i4"), ("b", "f8")]),
        "masked": lambda: numpy.ma.masked_equal(whole, 3),
        "transposed": lambda: torch.from_numpy(whole).view(SIDE, SIDE).t(),
        "sliced": lambda: torch.from_numpy(whole)[1:],
    }[kind]()
    return number, found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind",
    ["bool", "bfloat16", "complex", "big-endian", "record", "masked", "transposed", "sliced"],
)
def test_columns_are_what_they_are_without_workers(numbers: str, kind: str) -> None:
    made = wds.WebDataset(numbers).map(partial(odd, kind)).batched(4)
    for mine, theirs in zip(wds.WebLoader(made, num_workers=1, collate_fn=same), made):
        assert type(mine[1]) is type(theirs[1])
        assert (mine[1].dtype, mine[1].shape) == (theirs[1].dtype, theirs[1].shape)
        assert bool((mine[1] == theirs[1]).all())


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("collate", [default_collation, packed])
def test_columns_of_bytes(numbers: str, collate: Any) -> None:
    def payload(sample: dict[str, Any]) -> Any:
        return {"__key__": sample["__key__"], "bin": random.Random(sample["__key__"]).randbytes(50_000)}

    kept = []
    set_of = wds.WebDataset(numbers).map(payload)
    for number, batch in enumerate(by_webloader(set_of.batched(4, collation_fn=collate).repeat(3))):
        assert isinstance(batch["bin"], Packed if collate is packed else list)
        view = number % 3 == 0 and collate is packed
        kept.append((batch["__key__"], batch["bin"].view(2) if view else batch["bin"]))
        if number == 60:
            break
    for keys, found in kept:
        wanted = [random.Random(key).randbytes(50_000) for key in keys]
        assert found == (wanted[2] if isinstance(found, memoryview) else wanted)


@pytest.mark.exhaustive
def test_without_such_memory_batches_come_nevertheless(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> int:
        raise OSError("no such thing")

    monkeypatch.setattr(os, "memfd_create", refused)
    for batch in by_webloader(batches(numbers)):
        check(batch)
        assert batch[1].is_shared()  # as torch does it
    rows = wds.WebDataset(numbers).map(lambda sample: (bytes(60_000), sample["cls"])).batched(4)
    assert all(batch[0] == [bytes(60_000)] * 4 for batch in by_webloader(rows))


@pytest.mark.exhaustive
def test_workers_that_stay(numbers: str) -> None:
    loader = wds.WebLoader(batches(numbers), num_workers=2, persistent_workers=True)
    addresses = set()
    for epoch in range(5):
        loader.set_epoch(epoch)
        for batch in loader:
            check(batch)
            addresses.add(batch[1].data_ptr())
    assert len(addresses) < 40


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> Lender:
    """This process is a worker and the receiver at once."""
    monkeypatch.setattr(shared_memory, "_lenders", [])
    monkeypatch.setattr(shared_memory, "_received", {})
    shared_memory.lend_here()
    lender = shared_memory.lender()
    assert lender is not None
    return lender


def sent(lender: Lender, content: bytes) -> Any:
    found = lender.written([content], len(content))
    assert found is not None
    if found.file is not None:

        class Handle:
            def __init__(self, number: int) -> None:
                self.detach = partial(os.dup, number)

        found = found._replace(file=Handle(lender._segments[found.number].file))
    return found


@pytest.mark.exhaustive
def test_a_process_that_is_forked_gives_nothing_back(as_worker: Lender) -> None:
    array = received(sent(as_worker, b"a" * SHARED_FROM_BYTES))
    if not (child := os.fork()):
        del array
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    other = received(sent(as_worker, b"b" * SHARED_FROM_BYTES))
    assert (array[0], other[0], len(as_worker._segments)) == (ord("a"), ord("b"), 2)
    del array
    received(sent(as_worker, b"c" * SHARED_FROM_BYTES))
    assert (other[0], len(as_worker._segments)) == (ord("b"), 2)


def test_an_array_that_is_not_sent_gives_its_memory_back(as_worker: Lender) -> None:
    for _ in range(5):
        array: Any = shared_memory.shared_array((SHARED_FROM_BYTES,), numpy.dtype("u1"))
        array[:] = 1
        view = array[5:]
        del array
        assert shared_memory.shared_array((SHARED_FROM_BYTES,), numpy.dtype("u1")).base is not view.base
        del view
    assert len(as_worker._segments) == 2


def test_small_columns_take_the_pipe(as_worker: Lender) -> None:
    assert shared_memory.shared_array((SHARED_FROM_BYTES - 1,), numpy.dtype("u1")) is None
    assert pickle.loads(pickle.dumps(packed([b"a", b"b"]))) == [b"a", b"b"]
    assert as_worker._segments == []


def test_what_workers_had_that_have_ended_is_unmapped(as_worker: Lender) -> None:
    array = received(sent(as_worker, b"a" * SHARED_FROM_BYTES)._replace(process=ended_process()))
    assert len(shared_memory._received) == 1
    del array
    assert shared_memory._received == {}


def ended_process() -> int:
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_outside_of_workers_nothing_is_shared() -> None:
    assert not ranks.in_worker()
    assert shared_memory.lender() is None
