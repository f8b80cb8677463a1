"""This module has webdataset's WebLoader: torch's DataLoader for our datasets, with an exact state for any number of
workers.

The main process requests each batch from a worker by its epoch and number, as from a map-style dataset
(:class:`_BatchesByNumber`). So batches come in the same order with any number of workers, and a batch that ``select``
made empty does not move other batches. The main process knows which batches were yielded and which samples were
skipped. Persistent workers follow ``set_epoch``. Each worker reads ahead for its own batches. For a dataset with
generators, or a dataset of another library, a WebLoader is a plain DataLoader. torch is imported when the first batch
is requested.

Each worker of WebLoader ends itself some seconds after the trainer has ended (:func:`install_worker_cleanup`). A normal
worker waits until all its batches are received, even if a scheduler has killed the trainer. torch's worker checks its
parent process only between batches, and with the context "forkserver" the parent is not the trainer. A worker ignores
Ctrl-C, which the terminal sends to every process, because the main process ends its workers. This module does not know
how samples are read.
"""

# mypy: disable-error-code="assignment, overload-overlap"

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset, ProcessDataset, Tally
from wdscli.loader.order.order import seeded
from wdscli.loader.order.source import Slice
from wdscli.loader.place.cuts import Epochs
from wdscli.loader.place.iteration import IterationState
from wdscli.loader.place.ranks import find_worker, in_worker
from wdscli.loader.place.state import ANY, Place
from wdscli.loader.read.failures import SkipCounts, warning_of_drops
from wdscli.loader.stages.flow import Item, Pipeline, Unit
from wdscli.loader.stages.fluent import Fluent, PerSample
from wdscli.loader.stages.generators import Regroup, through, want_own_order
from wdscli.loader.stages.per_batch import default_convert, stacked_tensors
from wdscli.loader.stages.shared_memory import crossing, lend_here
from wdscli.storage.streams import is_running, widen_pipe

if TYPE_CHECKING:
    from wdscli.loader.stages.flow import giving

    _ANYTHING = cast("WebLoader[Any]", None)

Self = TypeVar("Self", bound="WebLoader")
Function = Callable[[Any], Any]

LOOK_SECONDS = 2.0
"""A worker checks at this interval whether the trainer still runs."""
GRACE_SECONDS = 6.0
"""After the trainer's end, a worker has this time to end normally. torch checks for the end of the trainer every 5
seconds."""


class WebLoader(Fluent[Item]):
    """Iterates ``dataset`` with torch's DataLoader. ``options`` are arguments of DataLoader. ``batch_size`` means
    ``dataset.batched(batch_size)`` with torch's collation. With ``batch_size=None``, the loader yields the dataset's
    own items. If the dataset makes batches, the default is None; otherwise the default is 1, as in torch and
    webdataset.

    For each batch, WebLoader seeds the global generators of ``random``, numpy and torch. So if the dataset's
    ``threads`` is 1, random stages give the same results with any number of workers and in a resumed run.

    Each iteration is one epoch. Stages of the loader (``unbatched shuffle batched map with_epoch ...``) run in the main
    process, over the items of all workers. With such stages, a state is still exact for any number of workers, but to
    resume, the loader replays the epoch. ``with_epoch(n)`` counts the items of all workers together. If no stage comes
    before ``with_epoch``, the next epoch continues with the next item. ``repeat(n)`` joins n epochs of the dataset to
    one epoch."""

    if TYPE_CHECKING:
        map = giving(Fluent.map, _ANYTHING)
        map_tuple = giving(Fluent.map_tuple, _ANYTHING)
        to_tuple = giving(Fluent.to_tuple, _ANYTHING)
        extract_keys = giving(Fluent.extract_keys, _ANYTHING)
        decode = giving(Fluent.decode, _ANYTHING)
        associate = giving(Fluent.associate, _ANYTHING)
        batched = giving(Fluent.batched, _ANYTHING)
        listed = giving(Fluent.listed, _ANYTHING)
        unbatched = giving(Fluent.unbatched, _ANYTHING)
        unlisted = giving(Fluent.unlisted, _ANYTHING)
        compose = giving(Fluent.compose, _ANYTHING)

    @overload
    def __init__(
        self: WebLoader[dict[str, Any]],
        dataset: Iterable[dict[str, Any]],
        batch_size: int | Literal["auto"] | None = ...,
        *,
        num_workers: int = ...,
        collate_fn: None = ...,
        drop_last: bool = ...,
        **options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self: WebLoader[list[Any]],
        dataset: Iterable[tuple[Any, ...] | list[Any]],
        batch_size: int | Literal["auto"] | None = ...,
        *,
        num_workers: int = ...,
        collate_fn: None = ...,
        drop_last: bool = ...,
        **options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self: WebLoader[Any],
        dataset: object,
        batch_size: int | Literal["auto"] | None = ...,
        *,
        num_workers: int = ...,
        collate_fn: Function | None = ...,
        drop_last: bool = ...,
        **options: Any,
    ) -> None: ...
    def __init__(
        self,
        dataset: Any,
        batch_size: int | Literal["auto"] | None = "auto",
        *,
        num_workers: int = 0,
        collate_fn: Function | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(dataset, Fluent):
            _refuse(options)
        if batch_size == "auto":
            batch_size = None if _makes_batches(dataset) or "batch_sampler" in options else 1
        self.dataset = dataset
        self.num_workers = num_workers
        self._collate = collate_fn
        self._batch: dict[str, Any] = {}
        self._exact = _is_exact(dataset, num_workers)
        if self._exact:
            self.dataset = dataset = dataset._of_workers(num_workers)
        if batch_size is not None and self._exact and not dataset.pipeline.spreads:
            collate = collate_fn or _batch_of
            self.dataset = dataset._in_samples().batched(batch_size, collate, partial=not drop_last)
            self._collate = _same
        elif batch_size is not None:
            self._exact = False
            self._batch = {"batch_size": batch_size, "drop_last": drop_last}
        init = partial(_begin_worker, options.pop("worker_init_fn", None))
        self._options = {"num_workers": num_workers, "worker_init_fn": init, **options}
        self.pipeline = Pipeline(generators=(iter,))
        self._counts = self.dataset._counts if isinstance(self.dataset, PerSample) else SkipCounts()
        if isinstance(self.dataset, Fluent):
            self.source = self.dataset.source
        self._loader: Any = None
        self._numbers = _NumberSampler()

    def _with(self: Self, **changes: Any) -> Self:
        return super()._with(**{"_loader": None, "_numbers": _NumberSampler(), **changes})

    @property
    def _staged(self) -> bool:
        return len(self.pipeline.generators) > 1

    def _in_epochs(self: Self, span: Epochs, begins_anew: bool = False) -> Self:
        """Set the length of epochs. If the loader has no stages, the dataset counts the items, and the next epoch
        continues with the next item."""
        counts = self._exact and not self._staged
        if span.samples and not counts:
            raise UsageError(
                "WebLoader.with_epoch(samples=) cannot follow stages of the loader",
                hint="with_epoch(batches=n)",
            )
        if span.items and counts and not begins_anew:
            whole = span if span.samples else span._replace(of="rank")
            return self._with(dataset=self.dataset._with_span(whole))
        new = super()._in_epochs(Epochs(None, span.items))
        return new._with(dataset=self.dataset._with().repeat(span.passes or -1))

    def slice(self: Self, *args: int | None) -> Self:
        """Keep a slice of the batches in each epoch. After stages of the loader, keep a slice of the items of these
        stages."""
        if self._exact and not self._staged and self.dataset.pipeline.batch is not None:
            sliced = self.dataset.slice(*args)
            if not sliced.pipeline.generators and not sliced.pipeline.spreads:
                return self._with(dataset=sliced)
        if self._span is None or self._span.items is None:
            return super().slice(*args)
        counted = self._span.items
        new = self._through(Slice(None, counted, None))._with_span(None)
        return super(WebLoader, new).slice(*args).with_length(len(range(counted)[slice(*args)]))

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration, or resume at the place of a loaded state of this epoch."""
        self.dataset.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self.dataset.epoch)

    @property
    def sampler(self) -> Any:
        """The dataset if it has ``set_epoch``, for trainers that call ``loader.sampler.set_epoch(epoch)``, such as
        Lightning; otherwise None."""
        return self.dataset if hasattr(self.dataset, "set_epoch") else None

    def state_dict(self) -> dict[str, Any]:
        """Return a state: the exact place as plain values. A state is valid for any number of workers, smaller than 1
        KB, and the same on every rank."""
        want_own_order(self.pipeline.generators)
        data = self._ours()
        return data._state_of(data._state.place)

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Resume at the place in ``state``, like :meth:`PositionDataset.load_state_dict`."""
        want_own_order(self.pipeline.generators)
        self._ours().load_state_dict(state, force=force)

    @property
    def is_exact(self) -> bool:
        """Whether the batches are the same for any numbers of ranks and workers, and a state fits any such numbers. If
        not, :attr:`why_not_exact` has the reason."""
        return self.why_not_exact is None

    @property
    def why_not_exact(self) -> str | None:
        """The reason why the loader is not exact, or None."""
        if not isinstance(self.dataset, ProcessDataset):
            return f"a {type(self.dataset).__name__} is not a dataset of wdscli"
        if self.dataset.why_not_exact is not None:
            return self.dataset.why_not_exact
        if not self._exact:
            return "the DataLoader makes batches from the items of each worker"
        needs = "a state needs the same number of ranks, and replays the epoch"
        return f"stages of the WebLoader make its items: {needs}" if self._replays else None

    def seek(self, epoch: int, batch: int) -> None:
        """Begin the next iteration at a batch, like :meth:`PositionDataset.seek`. Raises UsageError also for a loader
        with stages."""
        self._counted("seek").seek(epoch, batch)

    def skip(self, batches: int) -> None:
        """Leave out the next batches, like :meth:`PositionDataset.skip`. Raises UsageError also for a loader with
        stages."""
        self._counted("skip").skip(batches)

    def _counted(self, method: str) -> PositionDataset:
        """Return the dataset. Raises UsageError if its batches are not the items of this loader."""
        if self._replays:
            raise UsageError(
                f"{method}() cannot count the items that stages of a WebLoader make",
                hint="call these stages of the dataset, before WebLoader()",
            )
        return self._ours()

    def stats(self) -> dict[str, Any]:
        """Return the statistics of :meth:`PositionDataset.stats` for all workers together. Times are sums over the
        workers."""
        found = self.dataset.stats() if isinstance(self.dataset, PerSample) else {}
        return {"dropped": self._counts.by_shard(), **found}

    def _ours(self) -> PositionDataset:
        if not isinstance(self.dataset, PositionDataset):
            raise UsageError(f"a WebLoader around a {type(self.dataset).__name__} has no state")
        return self.dataset

    def __repr__(self) -> str:
        stages = "".join(f", then {name}" for name in self.pipeline.names()[1:])
        workers = f"{self.num_workers} workers" if self.num_workers else "no workers"
        exact = "" if self._exact else ", as torch's DataLoader"
        return f"<{type(self).__name__} of {self.dataset!r} by {workers}{exact}{stages}>"

    def __len__(self) -> int:
        """Return the number of items in an epoch. Raises TypeError for an unknown length."""
        if self._length is not None:
            return self._length
        if self._span is not None and self._span.items is not None:
            return self._span.items
        if self._staged or self._batch or not isinstance(self.dataset, Sized):
            raise TypeError("the length of this loader is unknown; call with_length(n) to set it")
        return len(self.dataset)

    def __iter__(self) -> Iterator[Item]:
        """Yield the items from the current place to the end of the epoch. The epoch is decided when the first item is
        requested, because Lightning calls set_epoch() after iter()."""
        yield from self._items()

    def _items(self) -> Iterator[Any]:
        data = self.dataset
        if not isinstance(data, PositionDataset):
            return self._run(self._plain(data), data.epoch if isinstance(data, Fluent) else 0)
        data._check_samples()
        iteration = data._state.begin(data._state.next_start(), self._topology(data), data._by_worker)
        start = iteration.start
        if not self._replays:
            batches = data._batches(None, start.epoch)
            found = iteration.of_units(self._units(start), batches.stride, batches.ended)
            return iteration.until(found, self._length)
        # No worker starts before the first item is requested.
        if self._exact:
            items = chain.from_iterable(unit.items for unit in self._units(start))
        else:
            begun = data._with(_state=IterationState(start._replace(item=0, topology=None)))
            items = chain.from_iterable(map(self._plain, [begun]))
        found = iteration.of_items(self._run(items, start.epoch))
        return iteration.until(found, self._length or (self._span and self._span.items))

    @property
    def _replays(self) -> bool:
        """Whether a state counts the items that come out of stages of the loader, so that an epoch is replayed to
        resume."""
        return self._staged or self._span is not None or not self._exact

    def _topology(self, dataset: PositionDataset) -> tuple[int, int] | None:
        """Return the numbers of ranks and workers for which a state is valid, or None if any numbers are valid."""
        if not self._replays and not dataset.is_stream:
            return None
        workers = ANY if self._exact and not dataset.is_stream else max(1, self.num_workers)
        return dataset._share().world, workers

    def _run(self, items: Iterator[Any], epoch: int) -> Iterator[Any]:
        items = through(self.pipeline.generators, items, epoch)
        limit = None if self._span is None else self._span.items
        return islice(items, limit)

    def _units(self, start: Place) -> Iterator[Unit]:
        """Yield the units that workers make from batches, in order. Warn if a stage drops all samples."""
        return warning_of_drops(self._units_of_workers(start), self._ours()._losses)

    def _units_of_workers(self, start: Place) -> Iterator[Unit]:
        torch = _torch()
        data = self._ours()
        if self._loader is None:
            # With its own generator, the DataLoader takes no numbers from torch's global generator when a run resumes.
            options = {"generator": torch.Generator(), **self._options}
            self._loader = torch.utils.data.DataLoader(
                _BatchesByNumber(data._of_rank(), self._collate or default_convert),
                batch_size=None,
                sampler=self._numbers,
                collate_fn=_same,
                **options,
            )
        share = data._share()._replace(worker=0, workers=1)
        self._numbers.epoch = start.epoch
        self._numbers.numbers = data._batches(None, start.epoch, share).numbers(start.batch)
        self._numbers.run = run = self._numbers.run + 1
        ended = 0
        for unit, tally in _given_by(self._loader):
            if self._numbers.run != run and self._options.get("persistent_workers"):
                raise UsageError(
                    "another iteration of this loader uses its workers",
                    hint="end the first iteration before you start another",
                )
            if tally is not None:
                data._add_tally(tally)
            if unit is not None:
                yield unit
            ended = ended + 1 if unit is None else 0
            if (unit is not None and unit.stops) or ended >= max(1, self.num_workers):
                return

    def _plain(self, dataset: Any) -> Iterator[Any]:
        """Yield the items of a plain DataLoader."""
        torch = _torch()
        batch = self._batch or {"batch_size": None}
        collate = self._collate or (
            _batch_of if self._batch or "batch_sampler" in self._options else default_convert
        )
        options = {**batch, "collate_fn": partial(_sent, collate), **self._options}
        return _given_by(torch.utils.data.DataLoader(dataset, **options))


def _given_by(loader: Any) -> Iterator[Any]:
    """Yield the items of a DataLoader. Its pipe is enlarged, if the system allows it. With the usual 64 KiB, a worker
    waits for the main process several times for each batch. If the pipe holds a whole batch, text arrives 1.5 times as
    fast."""
    items = iter(loader)
    with suppress(AttributeError, OSError, ValueError):
        widen_pipe(items._worker_result_queue._writer.fileno())
    yield from items


def _begin_worker(user_init: Function | None, number: int) -> None:
    """Prepare a worker of WebLoader. ``user_init`` is the user's ``worker_init_fn``."""
    install_worker_cleanup()
    lend_here()
    if user_init is not None:
        user_init(number)


def _sent(collate: Function, items: Any) -> Any:
    """Collate ``items`` to a batch. In a worker, also mark the columns to send through shared memory."""
    return crossing(collate(items)) if in_worker() else collate(items)


def _torch() -> Any:
    """Import torch with its DataLoader. Raises UsageError if torch is not installed."""
    try:
        import torch
        import torch.utils.data
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "WebLoader needs torch, which is not installed",
            hint="pip install 'wdscli[torch]', or iterate over the dataset itself with threads=",
        ) from None
    return torch


class _NumberSampler:
    """A sampler for torch's DataLoader that yields (epoch, number) for each batch."""

    def __init__(self) -> None:
        self.epoch, self.numbers = 0, range(0)
        self.run = 0
        """The number of the latest iteration. Persistent workers make batches only for the latest iteration."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        return ((epoch, number) for number in self.numbers)


class _BatchesByNumber:
    """A map-style dataset for torch's DataLoader, which returns batches by (epoch, number). Requests are fastest if
    ``number`` grows by the number of workers from request to request. An item is a pair: a unit (None after the last
    unit of this worker), and the counts since the previous item."""

    def __init__(self, dataset: PositionDataset, convert: Function) -> None:
        self._dataset = dataset
        self._convert = convert
        self._process = os.getpid()
        self._units: Iterator[Unit] = iter(())
        self._expected: tuple[int, int] | None = None

    def __getitem__(self, wanted: tuple[int, int]) -> tuple[Unit | None, Tally | None]:
        if self._process != os.getpid():
            # Counts from before the fork belong to the parent process.
            self._dataset._take_tally()
            self._process = os.getpid()
        epoch, number = wanted
        _, workers = find_worker()
        if wanted != self._expected:
            share = self._dataset._share()._replace(worker=0, workers=workers)
            self._units = self._dataset._units(Place(epoch, number), share)
        self._expected = epoch, number + workers * self._dataset._sizes.stride(self._dataset._share())
        with self._seeded(epoch, number):
            unit = next(self._units, None)
            if unit is not None:
                unit = unit._replace(items=[_sent(self._convert, item) for item in unit.items])
        # Without workers, the counts are already in the dataset itself.
        return unit, self._dataset._take_tally() if in_worker() else None

    def _seeded(self, epoch: int, number: int) -> AbstractContextManager[None]:
        if not (self._dataset.pipeline.before or self._dataset.pipeline.after):
            return nullcontext()
        seed, rank = self._dataset.source.seed, self._dataset._share().rank
        return seeded(seed, epoch, number, rank, kept=not in_worker())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_units": iter(()), "_expected": None}


def _is_exact(dataset: Any, workers: int) -> bool:
    """Return whether workers can make the batches of ``dataset`` by number."""
    return (
        isinstance(dataset, PositionDataset)
        and not dataset.pipeline.generators
        and not dataset._has_own_iter
        and (workers < 2 or dataset._split.by_worker)
    )


def _makes_batches(dataset: Any) -> bool:
    """Return whether ``dataset`` has a stage that makes batches."""
    if not isinstance(dataset, PerSample):
        return False
    pipeline = dataset.pipeline
    return pipeline.batch is not None or any(isinstance(one, Regroup) for one in pipeline.generators)


def _batch_of(items: list[Any]) -> Any:
    """Make a batch with torch's default collation. In a worker, tensors are joined in shared memory, which the main
    process reads without a copy."""
    import torch
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    return collate(items, collate_fn_map={**default_collate_fn_map, torch.Tensor: stacked_tensors})


def _same(item: Any) -> Any:
    return item


def _refuse(options: dict[str, Any]) -> None:
    if not options.get("in_order", True):
        raise UsageError(
            "WebLoader(in_order=False) is not supported", hint="a state needs batches in a fixed order"
        )
    for name in ("shuffle", "sampler", "batch_sampler"):
        if options.pop(name, None):
            raise UsageError(
                f"WebLoader({name}=) is not supported",
                hint="the dataset decides the order: WebDataset(shuffle=...)",
            )


def install_worker_cleanup() -> None:
    """Ignore Ctrl-C in this worker, and end the worker after its trainer has ended. The function must be called in the
    main thread."""
    import signal
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_follow, args=(_trainer_ended(),), name="wdscli-trainer", daemon=True).start()


def _trainer_ended() -> Callable[[], bool]:
    """Return a function that returns whether the trainer has ended."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    trainer: Any = parent_process()
    if trainer is None:
        return lambda: False
    # A forked worker cannot use the sentinel, because workers that were forked later hold it open too.
    if trainer.pid == os.getppid():
        return lambda: os.getppid() != trainer.pid
    return lambda: bool(wait([trainer.sentinel], timeout=0)) or not is_running(trainer.pid)


def _follow(has_ended: Callable[[], bool]) -> None:
    """Wait until the trainer has ended, and then end this process, even if its main thread waits for something."""
    while not has_ended():
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
