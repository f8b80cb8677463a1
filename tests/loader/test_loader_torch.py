"""At home in PyTorch: DataLoader, WebLoader and StatefulDataLoader with real workers."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
from loader_cases import Cls, Even, make_set
from torch_processes import Program

import wdscli.loader as wds
from wdscli.errors import InputError, UsageError
from wdscli.shards import ShardWriter

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class MultipleOf:
    """A predicate that leaves whole batches empty."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, value: int) -> bool:
        return value % self.number == 0


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set"))


def data(manifest: str, batch: int = 6, **how: Any) -> wds.WebDataset:
    return wds.WebDataset(manifest, **{"shuffle": "window", "seed": 3, **how}).map(Cls()).listed(batch)


def epoch_of(manifest: str, epoch: int, batch: int = 6) -> list[list[int]]:
    plain = data(manifest, batch)
    plain.set_epoch(epoch)
    return list(plain)


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [one for batch in batches for one in batch]


def loader(dataset: Any, workers: int, **options: Any) -> Any:
    return torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=workers, collate_fn=list, **options
    )


def test_a_dataset_is_an_iterable_dataset_without_being_derived_from_one(manifest: str) -> None:
    import torch.utils.data

    assert isinstance(data(manifest), torch.utils.data.IterableDataset)
    assert type(data(manifest)).__mro__[1].__name__ == "PositionDataset"
    assert not isinstance(wds.IndexedDataset(manifest), torch.utils.data.IterableDataset)


LATE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import wdscli.errors
import wdscli.loader as wds
from loader_cases import Cls

def main():
    early = wds.WebDataset({manifest!r}, shuffle="window", seed=3).map(Cls()).listed(6)
    assert "torch" not in sys.modules
    import torch.utils.data
    try:
        list(torch.utils.data.DataLoader(early, batch_size=None))
    except wdscli.errors.UsageError as error:
        assert "import torch.utils.data before" in error.hint
    data = early.map(list)
    assert isinstance(data, torch.utils.data.IterableDataset)
    spawned = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=1, multiprocessing_context="spawn", collate_fn=list
    )
    data.set_epoch(2)
    assert len(spawned) == 17
    print(list(spawned))

if __name__ == "__main__":
    main()
"""


@pytest.mark.exhaustive
def test_torch_may_be_imported_last_and_workers_may_be_spawned(manifest: str, tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE.format(tests=str(Path(__file__).parents[1] / "support"), manifest=manifest))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == epoch_of(manifest, 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_plain_dataloader_gives_the_same_batches_with_any_workers(manifest: str, workers: int) -> None:
    plain = data(manifest)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        for epoch in (0, 4):
            plain.set_epoch(epoch)
            torch_loader = loader(plain, workers)
            assert len(torch_loader) == 17
            assert list(torch_loader) == epoch_of(manifest, epoch)


@pytest.mark.exhaustive
def test_more_workers_than_shards_and_than_batches(tmp_path: Path) -> None:
    few = make_set(tmp_path, count=10, max_count=10)
    plain = data(few, 6)
    assert list(loader(plain, 5)) == epoch_of(few, 0)


def test_a_state_of_the_main_process_is_refused_while_only_workers_know(manifest: str) -> None:
    plain = data(manifest)
    source = iter(loader(plain, 2))
    given = [next(source) for _ in range(5)]
    with pytest.raises(UsageError, match="position unknown"):
        plain.state_dict()
    other = data(manifest)
    other.load_state_dict(plain.state_dict(batches=5))
    assert given + list(loader(other, 3)) == epoch_of(manifest, 0)


def test_epochs_advance_by_themselves_in_workers_that_stay(manifest: str) -> None:
    staying = loader(data(manifest), 2, persistent_workers=True)
    assert list(staying) == epoch_of(manifest, 0)
    assert list(staying) == epoch_of(manifest, 1)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("workers", [1, 3])
def test_samples_that_the_dataloader_puts_together(manifest: str, workers: int) -> None:
    """Without batched(): every sample once; the same batches when the dataset knows how many go together."""
    plain = wds.WebDataset(manifest, shuffle="window", seed=3).map(Cls())
    together = torch.utils.data.DataLoader(plain, batch_size=6, num_workers=workers, collate_fn=list)
    assert sorted(flat(together)) == list(range(101))
    told = wds.WebDataset(manifest, shuffle="window", seed=3, batch_size=6).map(Cls())
    together = torch.utils.data.DataLoader(told, batch_size=6, num_workers=workers, collate_fn=list)
    assert len(together) == 17
    assert list(together) == epoch_of(manifest, 0)
    other = wds.WebDataset(manifest, shuffle="window", seed=3, batch_size=6).map(Cls())
    other.load_state_dict(told.state_dict(batches=4))
    assert flat(epoch_of(manifest, 0)[4:]) == list(other)


@pytest.mark.exhaustive
def test_batches_that_the_dataloader_makes_smaller_are_warned_of_once(
    manifest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 101 samples in batches of 8 three workers make 8 ... 2 2 1."""
    log = tmp_path / "warnings"

    def note(message: Warning | str, *_: Any) -> None:
        with log.open("a") as file:
            print(message, file=file)

    monkeypatch.setattr("warnings.showwarning", note)

    def said(**how: Any) -> int:
        plain = wds.WebDataset(manifest, **how).map(Cls())
        together = torch.utils.data.DataLoader(plain, batch_size=8, num_workers=3, collate_fn=list)
        sizes = sorted(len(batch) for _ in range(2) for batch in together)
        assert sizes == ([5, 5, *[8] * 24] if how else [1, 1, 2, 2, 2, 2, *[8] * 24])
        return log.read_text().count("last batch of each worker is smaller")

    assert said() == 1
    assert said(batch_size=8) == 1  # that of before


# WebLoader


@pytest.mark.exhaustive
@pytest.mark.parametrize(("before", "after"), [(0, 3), (2, 0), (3, 2)])
@pytest.mark.parametrize("staying", [False, True])
def test_webloader_goes_on_with_another_number_of_workers(
    manifest: str, before: int, after: int, staying: bool
) -> None:
    first = wds.WebLoader(data(manifest), num_workers=before, persistent_workers=staying and before > 0)
    assert len(first) == 17
    assert list(first) == epoch_of(manifest, 0)
    source = iter(first)
    given = [next(source) for _ in range(7)]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1000
    assert (state["epoch"], state["next"]) == (1, 7)
    assert first.dataset.state_dict() == state
    second = wds.WebLoader(data(manifest), num_workers=after, persistent_workers=staying and after > 0)
    second.load_state_dict(state)
    assert given + list(second) == epoch_of(manifest, 1)
    assert list(second) == epoch_of(manifest, 2)
    second.set_epoch(0)
    assert next(iter(second)) == epoch_of(manifest, 0)[0]
    assert list(second) == epoch_of(manifest, 0)
    assert second.epoch == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_webloader_keeps_the_order_where_filters_leave_batches_empty(manifest: str, workers: int) -> None:
    def thin() -> wds.WebDataset:
        return wds.WebDataset(manifest, shuffle="window").map(Cls()).select(MultipleOf(9)).listed(5)

    expected = list(thin())
    assert len(expected) < 12
    webloader = wds.WebLoader(thin(), num_workers=workers)
    source = iter(webloader)
    given = [next(source) for _ in range(4)]
    other = wds.WebLoader(thin(), num_workers=2)
    other.load_state_dict(webloader.state_dict())
    assert given + list(source) == expected
    assert list(other) == expected[4:]


@pytest.mark.parametrize("workers", [0, 2])
def test_webloader_knows_what_all_workers_left_out(manifest: str, workers: int) -> None:
    webloader = wds.WebLoader(data(manifest).unlisted().select(Even()), num_workers=workers)
    assert sorted(webloader) == list(range(0, 101, 2))
    list(webloader)
    left_out = sum(sum(reasons.values()) for reasons in webloader.stats()["dropped"].values())
    assert left_out == 100


@pytest.mark.exhaustive
def test_workers_of_a_plain_dataloader_warn_of_what_errors_took(tmp_path: Path) -> None:
    with wds.ShardWriter(f"{tmp_path}/in-%d.tar", maxcount=10) as writer:
        for number in range(40):
            writer.write({"__key__": f"n{number}", "cls": number, "json": b"{" if number % 4 == 0 else b"{}"})
    script = """if True:
        import sys, torch.utils.data, wdscli.loader as wds
        data = wds.WebDataset(sys.argv[1], on_error="skip").decode()
        data = data.select(lambda sample: sample["cls"] % 4 < 3).batched(5)
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2)
        for _ in range(2):
            list(loader)
        list(wds.WebLoader(data, num_workers=2))
    """
    (tmp_path / "script.py").write_text(script)
    ran = Program(tmp_path / "script.py", tmp_path)
    _, errors = ran.communicate()
    assert ran.wait() == 0, errors
    told = [line for line in errors.splitlines() if "Warning: worker" in line]
    numbers = [int(line.partition("skipped ")[2].split()[0]) for line in told]
    assert len(told) == 4
    assert sum(numbers) == 20
    assert all(f"(decode: DataError {number})" in line for number, line in zip(numbers, told))


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_that_may_have_fewer_batches_are_told(manifest: str, workers: int) -> None:
    def of(rank: int, keep: Any) -> Any:
        return wds.WebDataset(manifest, rank=rank, world_size=2).map(Cls()).select(keep)

    with pytest.warns(UserWarning, match="batch 0 of rank 1 has no samples left"):
        assert len(list(wds.WebLoader(of(1, MultipleOf(9)).listed(4)))) < len(of(1, MultipleOf(9)).listed(4))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="batch .* has no samples left")
        list(of(1, MultipleOf(3)).listed(3))
        list(wds.WebDataset(manifest).map(Cls()).select(MultipleOf(9)).listed(4))
        list(wds.WebDataset(manifest, rank=1, world_size=2, tail="uneven").map(Cls()).listed(50))
    # The way out that the warning names.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rank in range(2):
            loader = wds.WebLoader(of(rank, MultipleOf(9)).listed(4).repeat(), num_workers=workers)
            loader = loader.unlisted().listed(4).with_epoch(10)
            assert [len(batch) for batch in loader] == [4] * 10


def test_webloader_makes_tensors_and_batches_as_torch_does(manifest: str) -> None:
    tuples = wds.WebDataset(manifest).to_tuple("cls", "__key__").map_tuple(int)
    webloader = wds.WebLoader(tuples, 40, num_workers=2, drop_last=True)
    batches = list(webloader)
    assert [batch[0].tolist() for batch in batches] == [list(range(40)), list(range(40, 80))]
    assert list(batches[0][1][:2]) == ["n0000", "n0001"]
    assert len(webloader) == 2
    arrays = wds.WebLoader(tuples.batched(50), num_workers=1)
    assert isinstance(next(iter(arrays))[0], torch.Tensor)
    own = wds.WebLoader(tuples, 50, collate_fn=len, num_workers=1)
    assert list(own) == [50, 50, 1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 3])
def test_stages_of_a_webloader_run_over_all_workers(manifest: str, workers: int) -> None:
    def make(workers: int) -> wds.WebLoader:
        return (
            wds.WebLoader(data(manifest), num_workers=workers)
            .unlisted()
            .shuffle(30)
            .batched(9, collation_fn=None)
        )

    expected = list(make(0))
    assert sorted(flat(expected)) == list(range(101))
    assert [len(batch) for batch in expected] == [9] * 11 + [2]
    webloader = make(workers)
    source = iter(webloader)
    given = [next(source) for _ in range(4)]
    state = json.loads(json.dumps(webloader.state_dict()))
    assert given + list(source) == expected
    other = make(2)
    other.load_state_dict(state)
    assert list(other) == expected[4:]
    assert list(other) == list(webloader) != expected
    with pytest.raises(UsageError, match="ranks and workers"):
        bare = data(manifest)
        bare.load_state_dict(state)
        list(bare)


@pytest.mark.parametrize("kind", ["plain", "with_epoch", "repeat", "mix"])
def test_the_epoch_of_a_dataset_reaches_its_webloader(manifest: str, kind: str) -> None:
    def made() -> Any:
        if kind == "mix":
            return wds.mix([data(manifest), data(manifest)], per="batch")
        return {"plain": lambda: data(manifest), "repeat": lambda: data(manifest).repeat(2)}.get(
            kind, lambda: data(manifest).with_epoch(batches=5)
        )()

    dataset, other = made(), made()
    webloader = wds.WebLoader(dataset)
    dataset.set_epoch(3)
    other.set_epoch(3)
    assert list(webloader) == list(other)
    batches = iter(other)
    next(batches)
    dataset.load_state_dict(other.state_dict())
    assert list(webloader) == list(batches)


@pytest.mark.exhaustive
def test_epochs_of_another_length(manifest: str) -> None:
    webloader = wds.WebLoader(data(manifest), num_workers=2).with_epoch(4)
    assert len(webloader) == 4
    epochs = [list(webloader) for _ in range(4)]
    assert flat(epochs) == epoch_of(manifest, 0)[:16]
    staged = wds.WebLoader(data(manifest), num_workers=2).unlisted().with_epoch(30)
    assert len(staged) == 30
    assert list(staged) == flat(epoch_of(manifest, 0))[:30]
    assert list(staged) == flat(epoch_of(manifest, 1))[:30]
    assert len(wds.WebLoader(data(manifest)).with_length(99)) == 99
    with pytest.raises(TypeError, match="with_length"):
        len(wds.WebLoader(data(manifest)).unlisted())


def test_behind_generators_of_the_dataset_a_webloader_replays_with_as_many_workers(manifest: str) -> None:
    def make(workers: int) -> wds.WebLoader:
        return wds.WebLoader(data(manifest).compose(_numbered), num_workers=workers)

    webloader = make(2)
    source = iter(webloader)
    given = [next(source) for _ in range(5)]
    state = webloader.state_dict()
    rest = list(source)
    other = make(2)
    other.load_state_dict(state)
    assert list(other) == rest
    assert sorted(flat((batch for _, batch in given + rest))) == list(range(101))
    third = make(3)
    third.load_state_dict(state)
    with pytest.raises(UsageError, match=r"\(1, 2\) ranks and workers, but this run has \(1, 3\)"):
        list(third)


def _numbered(items: Any) -> Any:
    return enumerate(items)


def test_going_on_takes_no_seeds_from_torch(manifest: str) -> None:
    """Or weights would differ between a run that was interrupted and one that was not."""
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    list(wds.WebLoader(data(manifest), num_workers=1))
    assert torch.rand(1) == expected


def _cast(number: int) -> tuple[int, float, float, float]:
    return number, random.random(), float(numpy.random.rand()), float(torch.rand(1))


@pytest.mark.exhaustive
def test_dice_of_stages_are_the_same_for_any_workers_and_when_gone_on_with(manifest: str) -> None:
    def make(workers: int, rank: int = 0, **how: Any) -> wds.WebLoader:
        ranks = {"rank": rank, "world_size": 2}
        plain = wds.WebDataset(manifest, shuffle="window", seed=3, **ranks).map(Cls()).map(_cast).listed(6)
        return wds.WebLoader(plain, num_workers=workers, collate_fn=list, **how)

    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    expected = list(make(0))
    mine = torch.rand(1).item(), random.random(), numpy.random.rand()
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    assert (torch.rand(1).item(), random.random(), numpy.random.rand()) == mine
    assert list(make(1)) == list(make(3)) == expected
    first = make(2)
    source = iter(first)
    given = [next(source) for _ in range(4)]
    second = make(3)
    second.load_state_dict(first.state_dict())
    assert given + list(second) == expected
    dice = [tuple(one[1:]) for batch in expected + list(second) + list(make(0, rank=1)) for one in batch]
    assert len(set(dice)) == len(dice)


def test_other_datasets_work_in_a_webloader(manifest: str) -> None:
    table = wds.WebLoader(range(10), num_workers=0).batched(4, collation_fn=None)
    assert list(table) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(UsageError, match="no state"):
        table.state_dict()
    with pytest.raises(UsageError, match=r"shuffle=\) is not supported"):
        wds.WebLoader(data(manifest), shuffle=True)


def test_two_iterations_of_a_loader(manifest: str) -> None:
    expected = epoch_of(manifest, 0)
    webloader = wds.WebLoader(data(manifest), num_workers=1)
    first, second = iter(webloader), iter(webloader)
    assert next(first) == next(second) == expected[0]
    assert list(second) == expected[1:]
    assert list(first) == expected[1:]
    staying = wds.WebLoader(data(manifest), num_workers=1, persistent_workers=True)
    first = iter(staying)
    next(first)
    second = iter(staying)
    next(second)
    with pytest.raises(UsageError, match="another iteration"):
        next(first)


def test_batches_out_of_order_are_refused(manifest: str) -> None:
    with pytest.raises(UsageError, match="in_order"):
        wds.WebLoader(data(manifest), num_workers=2, in_order=False)


def test_a_set_without_samples_is_an_error_in_a_loader_too(manifest: str) -> None:
    none = wds.WebDataset(manifest, where="cls > 1000")
    with pytest.raises(InputError, match="no samples"):
        list(wds.WebLoader(none, num_workers=1))
    empty = wds.WebDataset(manifest, where="cls > 1000", empty_check=False)
    assert list(wds.WebLoader(empty, num_workers=1)) == []


def test_an_error_in_a_worker_reaches_the_loop_with_its_place(manifest: str) -> None:
    def fail(number: int) -> int:
        if number == 77:
            raise ValueError(f"no {number}")
        return number

    webloader = wds.WebLoader(
        wds.WebDataset(manifest, shuffle="window", seed=3).map(Cls()).map(fail).listed(6), num_workers=2
    )
    expected = epoch_of(manifest, 0)
    given = []
    with pytest.raises(ValueError, match="no 77"):
        for batch in webloader:
            given.append(batch)
    first = next(number for number, batch in enumerate(expected) if 77 in batch)
    assert given == expected[:first]
    assert webloader.state_dict()["next"] == first


# StatefulDataLoader


def stateful(dataset: Any, workers: int, **options: Any) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module.StatefulDataLoader(
            dataset, **{"batch_size": None, "num_workers": workers, "collate_fn": list, **options}
        )


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("given", [0, 1, 7, 16, 17])
def test_stateful_dataloader_goes_on_with_as_many_workers(manifest: str, workers: int, given: int) -> None:
    first = stateful(data(manifest), workers)
    source = iter(first)
    expected = epoch_of(manifest, 0)
    assert [next(source) for _ in range(given)] == expected[:given]
    state = first.state_dict()
    other = stateful(data(manifest), workers)
    other.load_state_dict(state)
    assert list(other) == expected[given:]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("given", [0, 1, 2, 7, 16, 17])
def test_its_state_goes_on_with_any_number_in_our_hands(manifest: str, workers: int, given: int) -> None:
    first = stateful(data(manifest), workers)
    source = iter(first)
    expected = epoch_of(manifest, 0)
    assert [next(source) for _ in range(given)] == expected[:given]
    state = json.loads(json.dumps(first.state_dict()))
    bare = data(manifest)
    bare.load_state_dict(state)
    assert list(bare) == expected[given:]
    loader = wds.WebLoader(data(manifest), num_workers=2)
    loader.load_state_dict(state)
    assert list(loader) == expected[given:]
    assert list(loader) == epoch_of(manifest, 1)
    with pytest.raises(UsageError, match="another seed"):
        data(manifest, seed=9).load_state_dict(state)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_its_state_is_refused_where_it_is_not_exact(manifest: str) -> None:
    def state_of(dataset: Any, given: int, **options: Any) -> Any:
        loader = stateful(dataset, 2, **options)
        source = iter(loader)
        for _ in range(given):
            next(source)
        return loader.state_dict()

    emptied = data(manifest).map(Emptied())
    with pytest.raises(UsageError, match="batches that do not follow each other"):
        emptied.load_state_dict(state_of(emptied, 5))
    with pytest.raises(UsageError, match="not saved at the last step"):
        data(manifest).load_state_dict(state_of(data(manifest), 2, snapshot_every_n_steps=4))


class Emptied:
    """Leaves out the first batches of odd numbers."""

    number = 0

    def __call__(self, batch: Any) -> Any:
        self.number += 1
        is_odd = torch.utils.data.get_worker_info().id == 1
        return None if is_odd and self.number < 3 else batch


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_stateful_dataloader_resumes_twice_and_by_samples(manifest: str) -> None:
    def make() -> Any:
        plain = wds.WebDataset(manifest, shuffle="window", seed=3).map(Cls()).select(Even())
        return stateful(plain, 2, batch_size=5)

    expected = list(make())
    assert sorted(flat(expected)) == list(range(0, 101, 2))
    got, state = [], None
    for steps in (3, 4, 100):
        torch_loader = make()
        if state is not None:
            torch_loader.load_state_dict(state)
        for batch, _ in zip(torch_loader, range(steps)):
            got.append(batch)
            state = torch_loader.state_dict()
    assert got == expected


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_workers_state_is_refused_by_others(manifest: str) -> None:
    torch_loader = stateful(data(manifest), 2)
    source = iter(torch_loader)
    next(source)
    inner = torch_loader.state_dict()["_snapshot"]["_worker_snapshots"]["worker_0"]
    state = inner["dataset_state"]
    assert state["worker"] == [0, 2]
    assert len(json.dumps(state)) < 1000
    with pytest.raises(UsageError, match="worker 0 of 2") as caught:
        data(manifest).load_state_dict(state)
    assert "WebLoader" in (caught.value.hint or "")


# a process that dies


def train(manifest: str, workers: int, place: Path, notes: Any) -> None:
    """Three epochs, in which what was seen and the state are written down together behind every batch."""
    webloader = wds.WebLoader(data(manifest), num_workers=workers)
    saved = {"seen": [], "state": webloader.state_dict()}
    if place.exists():
        saved = json.loads(place.read_text())
    webloader.load_state_dict(saved["state"])
    for _ in range(webloader.epoch, 3):
        for batch in webloader:
            saved["seen"].append(batch)
            saved["state"] = webloader.state_dict()
            place.with_suffix(".new").write_text(json.dumps(saved))
            place.with_suffix(".new").replace(place)
            notes.send(len(saved["seen"]))


@pytest.mark.exhaustive
def test_training_that_is_killed_goes_on_in_a_new_process_with_other_workers(
    manifest: str, tmp_path: Path
) -> None:
    """Forked from here, where torch is loaded already."""
    processes = multiprocessing.get_context("fork")
    place = tmp_path / "place.json"
    heard, told = processes.Pipe(duplex=False)
    first = processes.Process(target=train, args=(manifest, 2, place, told))
    first.start()
    while heard.recv() < 22:
        pass
    os.kill(first.pid or 0, signal.SIGKILL)
    first.join()
    assert first.exitcode == -signal.SIGKILL
    killed = json.loads(place.read_text())
    assert 22 <= len(killed["seen"]) < 51
    second = processes.Process(target=train, args=(manifest, 3, place, told))
    second.start()
    second.join()
    assert second.exitcode == 0
    seen = json.loads(place.read_text())["seen"]
    assert seen == [batch for epoch in range(3) for batch in epoch_of(manifest, epoch)]


# what an import costs


def test_importing_the_loader_loads_nothing_heavy() -> None:
    from loaded_modules import HEAVY, loaded

    names = loaded("import wdscli.loader")
    assert not names & (HEAVY | {"typer", "s3fs", "fsspec", "torch", "numpy", "webdataset"})
    names = loaded("from wdscli.loader import WebDataset, WebLoader, IndexedDataset, mix")
    assert not names & {"typer", "rich", "s3fs", "fsspec", "torch", "numpy", "PIL"}
    assert not [name for name in names if name.startswith(("wdscli.cli", "wdscli.ops"))]


def test_importing_the_loader_takes_under_five_times_nothing() -> None:
    def seconds(code: str) -> float:
        best = 9.0
        for _ in range(7):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-I", "-c", code], check=True, env=dict(os.environ))
            best = min(best, time.perf_counter() - begin)
        return best

    assert seconds("import wdscli.loader") < 5 * seconds("pass")


def test_a_loader_hears_of_epochs_by_its_sampler_and_says_what_it_is(tmp_path: Path) -> None:
    """Lightning tells the sampler, when it has the iterator already."""
    with ShardWriter(f"{tmp_path}/in-%06d.tar", max_count=4) as writer:
        for number in range(8):
            writer.write(f"n{number}", {"cls": b"0"})
    data = wds.WebDataset(str(tmp_path), shuffle="window", seed=3).map(lambda sample: sample["__key__"])
    epochs = [list(data), list(data)]
    loader = wds.WebLoader(data.listed(1))
    items = iter(loader)
    loader.sampler.set_epoch(1)
    assert [key for [key] in items] == epochs[1]
    assert repr(loader).startswith("<WebLoader of <WebDataset of 2 shards, 8 samples")
    assert repr(wds.WebLoader(data, num_workers=2).batched(3)).endswith(" by 2 workers, then regroup>")
