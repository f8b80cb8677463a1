"""This module finds the rank and worker of this process, its share of the samples, and who else decides about it.

A :class:`Share` has the rank and the worker. The rank comes from arguments, from ``torch.distributed`` if it is in use,
or from the launcher's environment variables. The worker comes from ``torch.utils.data`` if it is loaded. This module
never imports torch: a process that uses torch has it in ``sys.modules``. :class:`Batches` has the positions of a share,
batch by batch. A :class:`Split` says whether ranks and workers divide the samples; webdataset's splitters change the
split.

With ``batch`` samples for each rank and ``world`` ranks, global batch k has the positions from k*G to (k+1)*G, where G
is batch * world. Rank r reads each position whose place in the global batch, modulo ``world``, is r. Worker (k - first)
modulo ``workers`` makes batch k of a rank, because a DataLoader takes a batch from each worker in turn. So the global
batches are the same for any numbers of ranks and workers. A splitter only turns this division on; without a splitter,
every rank or worker has all samples. For other items, such as shards or the samples of a generator, a splitter takes
every n-th item, as in webdataset.

accelerate and transformers wrap a loader: each rank takes its part of the dataset's items, or the first rank reads for
all ranks. If the dataset also divided its samples among the ranks, most samples would be lost, and neither library
informs the dataset. So :func:`is_dealt_out` searches the calling frames for the classes that divide samples. No other
module of the loader looks at its callers, and this module does so only if one of the two libraries is loaded. The
module knows the class names of accelerate 1.15 and transformers 5.24, and tests/interop runs each of these classes.
Other versions may have other names. The module warns once and names the class that it found. With ``WebDataset(...,
rank=0, world_size=1)`` no search is needed.

Ranks along some dimensions of a DeviceMesh of torch need the same batches, such as the ranks of tensor parallelism.
:func:`warn_of_peers` looks for the process groups that torch 2.13 makes for such dimensions. A mesh that has only one
dimension has no group of its own, so it is not noticed. This module does not know what is read."""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, UsageError
from wdscli.loader.checks import want_whole
from wdscli.loader.order.order import ENDLESS

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Horovod and most other launchers
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    # Not SLURM_NTASKS, because it is also set in the batch script, which is not one of the ranks.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
LIBRARIES = ("accelerate", "transformers")
DEALERS = ("BatchSamplerShard", "DataLoaderDispatcher", "IterableDatasetShard")
"""The names of the classes that divide samples, in both libraries, in accelerate, or in transformers."""
METHODS = ("__iter__", "__len__", "_iter_with_no_split", "_iter_with_split", "set_epoch")
"""The methods of these classes that call a dataset, directly or through a DataLoader."""

PEER_DIMENSIONS = ("tp", "cp", "pp", "sp", "tensor", "context", "pipeline", "sequence", "model")
"""The usual names of dimensions of a DeviceMesh whose ranks need the same batches."""

_warned: set[str] = set()
"""The subjects of warnings that this process has given."""


class Share(NamedTuple):
    """The share of worker ``worker`` of rank ``rank``. There are ``world`` ranks with ``workers`` workers each. Ranks
    and workers are numbered from 0."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1


def find_rank(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """Return (rank, world size): the arguments, or else the values of torch.distributed if it is initialised, or else
    the values of the launcher, or else (0, 1). Raises UsageError if only one of the arguments is given, and for an
    impossible rank."""
    if rank is None and world is None:
        share = (0, 1) if is_dealt_out() else launched_rank() or (0, 1)
    elif rank is None or world is None:
        raise UsageError("rank= and world_size= work only together", hint="give both or neither")
    else:
        share = want_whole("rank", rank), want_whole("world_size", world)
    if not 0 <= share[0] < share[1]:
        raise UsageError(f"rank {share[0]} of {share[1]} is impossible", hint="ranks count from 0")
    return share


def launched_rank() -> tuple[int, int] | None:
    """Return (rank, world size) from torch.distributed or from the launcher's variables, or None without both. Raises
    UsageError for variables that are not numbers."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in LAUNCHERS:
        if os.environ.get(rank) and os.environ.get(world):
            try:
                return int(os.environ[rank]), int(os.environ[world])
            except ValueError:
                raise UsageError(
                    f"{rank}={os.environ[rank]} and {world}={os.environ[world]} are not numbers",
                    hint="unset both variables, or give rank= and world_size=",
                ) from None
    return None


def is_dealt_out() -> bool:
    """Return whether a calling function divides the samples of this process among the ranks. In a forked worker, the
    search includes the functions that were running when the worker was started."""
    if sys.modules.keys().isdisjoint(LIBRARIES):
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in METHODS:
            kind = type(frame.f_locals.get("self"))
            if any(base.__name__ in DEALERS for base in kind.__mro__):
                _warn_once(
                    "dealer",
                    f"{kind.__module__}.{kind.__qualname__} divides the samples among ranks, so each rank reads all "
                    "samples;\nWebDataset(rank=0, world_size=1) silences this warning",
                )
                return True
        frame = frame.f_back
    return False


def warn_of_batches_of_batches() -> None:
    """Warn if the calling DataLoader joins batches of this dataset to larger batches."""
    frame: Any = sys._getframe(2)
    caller = frame.f_locals
    if type(caller.get("self")).__name__ == "_IterableDatasetFetcher" and caller.get("auto_collation"):
        warnings.warn(
            "DataLoader(batch_size=) makes batches of the batches of batched();\n"
            "use DataLoader(data, batch_size=None)",
            stacklevel=3,
        )


def warn_of_peers() -> None:
    """Warn once if ranks of this process need the same batches, but have different ranks."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    for group in tuple(getattr(world, "pg_map", ())):
        dimension = str(getattr(group, "group_desc", "")).removeprefix("mesh_")
        if dimension in PEER_DIMENSIONS and group.size() > 1:
            _warn_once(
                "peers",
                f"the {group.size()} ranks of the mesh dimension {dimension} read different batches;\n"
                'WebDataset(mesh=device_mesh["dp"]) gives them the same batches',
            )


def _warn_once(subject: str, message: str) -> None:
    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(message, stacklevel=3)


def rank_in_mesh(mesh: Any) -> tuple[int, int]:
    """Return (rank, world size) of this process in a DeviceMesh of torch. The ranks of a mesh with several dimensions
    are numbered row by row. Raises UsageError for another value, for a mesh without this process, and for a mesh with a
    dimension whose ranks need the same batches."""
    if not (hasattr(mesh, "get_coordinate") and hasattr(mesh, "mesh_dim_names")):
        raise UsageError(f"mesh={mesh!r} is not a DeviceMesh of torch", hint='mesh=device_mesh["dp"]')
    peers = [name for name in mesh.mesh_dim_names or () if name in PEER_DIMENSIONS]
    if peers:
        raise UsageError(
            f"mesh= has the dimension {peers[0]}, but ranks along it need the same batches",
            hint=f'give only the dimensions of data parallelism: mesh=device_mesh["dp"], not {peers[0]}',
        )
    places = mesh.get_coordinate()
    if places is None:
        raise UsageError("this process is not in mesh=", hint="make the loader only in processes of the mesh")
    rank = 0
    for place, size in zip(places, mesh.shape):
        rank = rank * size + place
    return int(rank), int(mesh.size())


def rank_in(group: Any) -> tuple[int, int]:
    """Return (rank, world size) in a process group of torch.distributed. With None, call :func:`find_rank`."""
    if group is None:
        return find_rank()
    from torch import distributed

    return int(distributed.get_rank(group)), int(distributed.get_world_size(group))


def find_worker() -> tuple[int, int]:
    """Return (worker, number of workers) in a DataLoader worker, and (0, 1) in other processes."""
    info = worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def in_worker() -> bool:
    """Return whether this process is a worker of a DataLoader."""
    return worker_info() is not None


Element = TypeVar("Element", covariant=True)
if TYPE_CHECKING:
    from torch.utils.data import Dataset as Dataset
else:

    class Dataset(Generic[Element]):
        """torch's class for type checkers. At run time it is an empty class, because torch takes seconds to import."""


class TorchIterable(Dataset[Element]):
    """The base of datasets that torch's DataLoader accepts as IterableDatasets. The program must import torch before it
    makes the dataset. This class is registered as a virtual subclass, because a real subclass would have to import
    torch, which takes seconds."""

    def __new__(cls, *args: Any, **kw: Any) -> Any:
        data = sys.modules.get("torch.utils.data")
        # If another thread is importing the module, it may have no IterableDataset yet.
        if data is not None and hasattr(data, "IterableDataset") and cls not in _registered:
            _registered.add(cls)
            data.IterableDataset.register(cls)
        return super().__new__(cls)

    def __getitem__(self, place: Any) -> Element:
        raise UsageError(
            f"a {type(self).__name__} cannot return samples by number; iterate over it",
            hint="import torch.utils.data before the dataset is made, or use IndexedDataset for samples by number",
        )


_registered: set[type] = set()


def worker_info() -> Any:
    """Return torch's information about this worker (``id``, ``num_workers``, ``seed``), or None in other processes."""
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


Tail = Literal["even", "drop", "pad", "uneven"]
"""How an epoch treats an incomplete last global batch. ``"even"`` gives all ranks the same number of samples; to do so,
it repeats fewer of the epoch's first samples than there are ranks. ``"drop"`` drops the batch. ``"pad"`` fills the
batch with the first samples of the epoch. ``"uneven"`` keeps the batch incomplete: some ranks may have fewer samples,
or no samples."""
TAILS = ("even", "drop", "pad", "uneven")


class Fill(NamedTuple):
    """How full a planned batch is. ``used``, ``cells`` and ``room`` are in the unit of the value: the sum of the
    samples, this sum with padding, and the largest sum that fits. ``shortened`` is the number of samples that were
    shortened, and ``cut_off`` is the sum of what they lost. ``left_out`` counts by shard and
    reason the samples that fit into no batch."""

    used: float
    cells: float
    room: float
    shortened: int
    cut_off: float
    left_out: Mapping[tuple[str, str], int]


class EpochBatches(ABC):
    """The batches of one epoch, for the worker ``share`` of a rank: which samples has batch k? There are two kinds:
    :class:`Batches` of equal size, and :class:`~wdscli.loader.place.planned.PlannedBatches`. The numbers of a rank's
    batches are ``stride`` apart, and worker i of the rank makes each of them whose place is i modulo the number of
    workers."""

    share: Share
    tail: Tail
    length: int
    """The number of positions in the epoch."""
    source_epoch: int
    """The epoch of the source, with its cuts, that has these batches."""
    stride = 1
    """The difference between the numbers of two neighbouring batches of a rank."""

    @property
    @abstractmethod
    def whole(self) -> int:
        """The number of samples in a global batch, for a state; 0 if the batches have several sizes."""

    @property
    @abstractmethod
    def typical(self) -> int:
        """The number of samples in a batch of one rank, which is approximate if the batches have several sizes."""

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """Whether the epoch has no last batch."""

    @property
    @abstractmethod
    def of_rank(self) -> int:
        """The number of this rank's batches in the epoch. A batch without a sample for this rank does not count."""

    @abstractmethod
    def ended(self, number: int) -> bool:
        """Return whether this rank has no batch with this or a higher number."""

    @abstractmethod
    def several(self, numbers: range) -> tuple[I64, list[int]]:
        """Return the positions of some batches, batch after batch, and the number of positions in each batch. Batches
        after the end of the epoch are left out."""

    @abstractmethod
    def find(self, position: int) -> tuple[int, int] | None:
        """Return (batch, rank) of a position, or None if no rank has the position."""

    def number_of(self, epoch: int, batch: int) -> int:
        """Return the number of the rank's batch ``batch`` (the first is 0) in the epoch ``epoch``. Raises UsageError if
        the epoch has no such batch."""
        number = want_whole("batch", batch, 0) * self.stride
        if self.ended(number):
            raise UsageError(f"epoch {epoch} has no batch {batch} on this rank", hint="batches count from 0")
        return number

    def positions(self, number: int) -> I64:
        """Return the positions of batch ``number`` for this rank, in order."""
        return self.several(range(number, number + 1))[0]

    def numbers(self, first: int) -> range:
        """Return the numbers of this worker's batches from ``first`` on. The range may have numbers after the last
        batch."""
        return range(first, ENDLESS, self.stride * self.share.workers)

    @property
    def varies(self) -> bool:
        """Whether other epochs may have more or fewer batches."""
        return False

    @property
    def searched(self) -> range:
        """The positions that may be in batches of this epoch."""
        return range(self.length)

    def fill(self, number: int) -> Fill | None:
        """Return how full batch ``number`` is, or None if the batches have no values."""
        return None

    def mark(self, number: int) -> list[Any] | None:
        """Return what a state needs besides the number of the next batch, or None."""
        return None


class Batches(EpochBatches):
    """Batches of equal size. ``length`` is the number of positions in the epoch, and ``batch`` the number of samples in
    a batch of one rank."""

    def __init__(self, length: int, batch: int, share: Share, tail: Tail = "even", epoch: int = 0) -> None:
        self.length, self.batch, self.share, self.tail = length, batch, share, tail
        self.source_epoch = epoch

    @property
    def typical(self) -> int:
        return self.batch

    @property
    def whole(self) -> int:
        return self.batch * self.share.world

    @property
    def is_endless(self) -> bool:
        return self.length >= ENDLESS

    @property
    def total(self) -> int:
        """The number of batches in an epoch, which is the same on every rank. With ``tail="uneven"`` the last batch may
        be empty on some ranks."""
        whole = self.length // self.whole
        return whole if self.tail == "drop" else -(-self.length // self.whole)

    def numbers(self, first: int) -> range:
        return range(first, self.total, self.share.workers)

    def ended(self, number: int) -> bool:
        return number >= self.of_rank

    @cached_property
    def of_rank(self) -> int:
        total = self.total
        if not total or self.is_endless:
            return total
        return total - (not len(self.positions(total - 1)))

    @property
    def end(self) -> int:
        """The number of samples in all batches of all ranks in the epoch. If this number is more than ``length``, the
        first samples of the epoch are repeated at the end."""
        if self.tail in ("drop", "pad"):
            return self.total * self.whole
        return self.length + (-self.length % self.share.world if self.tail == "even" else 0)

    def find(self, position: int) -> tuple[int, int] | None:
        number, place = divmod(position, self.whole)
        return (number, place % self.share.world) if number < self.total else None

    def several(self, numbers: range) -> tuple[I64, list[int]]:
        # The count is limited to the epoch's samples, because an array of a huge batch size would not fit into memory.
        count = min(self.batch, self.end)
        firsts: I64 = self.whole * numpy.arange(numbers.start, numbers.stop, numbers.step, dtype=numpy.int64)
        places: I64 = self.share.rank + self.share.world * numpy.arange(count, dtype=numpy.int64)
        positions: I64 = (firsts[:, None] + places).reshape(-1)
        if len(numbers) and (numbers[-1] + 1) * self.whole <= self.length:
            return positions, [self.batch] * len(numbers)
        inside = positions < self.end
        counts: list[int] = inside.reshape(len(numbers), count).sum(axis=1).tolist()
        return positions[inside] % max(1, self.length), counts


NAMES = ("single_node_only", "split_by_node", "split_by_worker", "non_empty")


class Split(NamedTuple):
    """How processes divide the samples. ``by_node`` says whether ranks divide the samples, and ``by_worker`` says
    whether the workers of a rank divide the rank's samples. With ``alone``, several ranks are an error. Processes that
    do not divide the samples have the same order; with ``apart``, each has its own order."""

    by_node: bool = True
    by_worker: bool = True
    alone: bool = False
    apart: bool = False

    def share(self, share: Share) -> Share:
        """Return the share of the samples that the process ``share`` reads. With ``alone``, raises UsageError for
        several ranks."""
        if self.alone and share.world > 1:
            raise several_nodes(share.world)
        if not self.by_node:
            share = share._replace(rank=0, world=1)
        return share if self.by_worker else share._replace(worker=0, workers=1)

    def order(self, share: Share) -> tuple[int, int]:
        """Return the number of the process's order, and the number of orders."""
        if not self.apart:
            return 0, 1
        rank, ranks = (0, 1) if self.by_node else share[:2]
        worker, workers = (0, 1) if self.by_worker else share[2:]
        return rank * workers + worker, ranks * workers

    def also(self, name: str) -> Split:
        """Return this split with the splitter ``name`` added."""
        if name == "single_node_only":
            return self._replace(alone=not self.by_node)
        return self._replace(
            by_node=self.by_node or name == "split_by_node",
            by_worker=self.by_worker or name == "split_by_worker",
        )


EXACT = Split()
"""The default: each sample is read by one worker of one rank."""


def several_nodes(world: int) -> UsageError:
    return UsageError(
        f"single_node_only does not work with {world} ranks",
        hint="split_by_node divides the samples among the nodes; nodesplitter=None gives every node all samples",
    )


class Splitter:
    """One of webdataset's splitter functions."""

    def __init__(self, split: Callable[[Iterable[Any], Any], Iterator[Any]]) -> None:
        self.__name__, self.__doc__ = split.__name__, split.__doc__
        self._split = split

    def __call__(self, src: Iterable[Any], group: Any = None) -> Iterator[Any]:
        return self._split(src, group)

    def added_to(self, dataset: Any) -> Any:
        """Return a copy of ``dataset`` with this splitter."""
        return dataset._splitting(self)

    def __repr__(self) -> str:
        return f"wdscli.loader.{self.__name__}"

    def __reduce__(self) -> str:
        return self.__name__


@Splitter
def single_node_only(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """Yield all items of ``src``. Raises UsageError for several ranks."""
    _, world = rank_in(group)
    if world > 1:
        raise several_nodes(world)
    yield from src


@Splitter
def split_by_node(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """Yield the items of ``src`` for this rank."""
    rank, world = rank_in(group)
    yield from islice(src, rank, None, world)


@Splitter
def split_by_worker(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """Yield the items of ``src`` for this worker."""
    worker, workers = find_worker()
    yield from islice(src, worker, None, workers)


@Splitter
def non_empty(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """Yield all items of ``src``. Raises DataError if there are none."""
    empty = True
    for item in src:
        empty = False
        yield item
    if empty:
        raise DataError(
            "non_empty: no items", hint="check that the number of shards is at least the number of workers"
        )


def name_of(splitter: Any) -> str | None:
    """Return the name of a splitter of wdscli or of webdataset, or None for a user's function."""
    if isinstance(splitter, Splitter):
        return splitter.__name__
    name = getattr(splitter, "__name__", "")
    if name in NAMES and str(getattr(splitter, "__module__", "")).startswith("webdataset"):
        return str(name)
    return None
