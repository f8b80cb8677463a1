"""Where a dataset stands: an exact place in an epoch, and who may know it.

What it is: :class:`Place`, a few numbers, and :class:`Standing`, which a dataset has. How: iterations begin at
``start``, which only the end of an epoch, ``set_epoch`` and ``load_state_dict`` move; so an iteration that is left
early and begun again begins where it began before. ``place`` is behind the last thing that the latest iteration gave.
Workers of a DataLoader iterate copies, and what they gave nobody tells the original: when copies were made (by a fork,
by pickling) and nothing was iterated here since, the place is not known, and asking for it is an error rather than a
wrong answer. Which epochs they began is told by a :class:`~wdscli.loader.place.board.Board`, so that the next iteration
is of the next one. It must not know what is iterated."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock, local
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from wdscli.errors import UsageError
from wdscli.loader.place.ranks import in_worker, iteration_of_worker

if TYPE_CHECKING:
    from wdscli.loader.place.board import Board

STATE_VERSION = 1
TOLD_FIRST = ("fingerprint", "seed", "shuffle")
"""What others follow from, where a state does not fit."""


class Place(NamedTuple):
    """Before batch ``batch`` of epoch ``epoch``, or behind the first ``item`` things that are made of it.

    ``worker`` is (number, workers) when batches before are missing that other workers of a DataLoader make; the next
    batch is then this worker's own. ``topology`` is (ranks, workers) when only as many would make the same again: of a
    stream, and when ``item`` counts what generators made of all that follows ``batch``.
    """

    epoch: int = 0
    batch: int = 0
    item: int = 0
    worker: tuple[int, int] | None = None
    topology: tuple[int, int] | None = None

    def to_state(self, source: Mapping[str, Any], batch: int) -> dict[str, Any]:
        """Plain values, fresh ones. ``batch`` is the samples of a global batch, ``source`` tells the source's
        identity."""
        state: dict[str, Any] = {
            "wdscli": STATE_VERSION,
            "source": dict(source),
            "batch": batch,
            "epoch": self.epoch,
            "next": self.batch,
        }
        if self.item:
            state["item"] = self.item
        if self.topology is not None:
            state["topology"] = list(self.topology)
        if self.worker is not None:
            state["worker"] = list(self.worker)
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Place:
        """The place that a state tells. Raises UsageError for one that tells none."""
        try:
            if state["wdscli"] != STATE_VERSION:
                raise UsageError(f"a state of version {state['wdscli']}, here is {STATE_VERSION}")
            place = cls(int(state["epoch"]), int(state["next"]), int(state.get("item", 0)))
            worker, topology = (
                _pair(state[name]) if name in state else None for name in ("worker", "topology")
            )
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                "this is no state of a wdscli loader", hint="give back what state_dict() gave"
            ) from None
        if min(place[:3]) < 0:
            raise UsageError("this is no state of a wdscli loader: a number in it is below 0")
        return place._replace(worker=worker, topology=topology)


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)


def check_fits(state: Mapping[str, Any], source: Mapping[str, Any], batch: int, world: int) -> None:
    """Raise UsageError, by name, when ``state`` is of other data, another order or another global batch."""
    hint = "load_state_dict(state, force=True) goes on nevertheless"
    theirs = state.get("source")
    if not isinstance(theirs, Mapping):
        raise UsageError("this is no state of a wdscli loader", hint="give back what state_dict() gave")
    if ("mix" in theirs) != ("mix" in source):
        kinds = "one set", "a mix"
        raise UsageError(
            f"the state is of {kinds['mix' in theirs]}, here is {kinds['mix' in source]}", hint=hint
        )
    for name in sorted({*theirs, *source}, key=lambda name: (name not in TOLD_FIRST, name)):
        if _plain(theirs.get(name)) != _plain(source.get(name)):
            what, one, other = _difference(name, _plain(theirs.get(name)), _plain(source.get(name)))
            raise UsageError(f"the state is of {what}: {one!r}, here is {other!r}", hint=hint)
    if state.get("batch") != batch:
        if isinstance(state.get("batch"), int) and state["batch"] % world == 0 and state["batch"]:
            hint = f"{world} ranks go on exactly with batches of {state['batch'] // world}; {hint}"
        raise UsageError(
            f"the state is of another batch: {state.get('batch')} samples of all ranks, here {batch}",
            hint=hint,
        )


def _difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """What is another one, and both of it: of a mix only what differs first."""
    if name == "mix" and isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return "another number of sets", len(theirs), len(ours)
        for number, (one, other) in enumerate(zip(theirs, ours)):
            if one != other and isinstance(one, list) and isinstance(other, list):
                what, *both = _difference_of_set(one, other)
                return f"{what} of set {number}", *both
    return "other data" if name == "fingerprint" else f"another {name}", theirs, ours


def _difference_of_set(theirs: list[Any], ours: list[Any]) -> tuple[str, Any, Any]:
    """``theirs`` and ``ours`` are [weight, identity]."""
    if theirs[0] != ours[0] or not (isinstance(theirs[1], dict) and isinstance(ours[1], dict)):
        return (
            ("another weight", theirs[0], ours[0])
            if theirs[0] != ours[0]
            else ("other data", theirs[1], ours[1])
        )
    names = sorted({*theirs[1], *ours[1]}, key=lambda name: (name != "fingerprint", name))
    name = next(name for name in names if theirs[1].get(name) != ours[1].get(name))
    return _difference(name, theirs[1].get(name), ours[1].get(name))


def of_loader(state: Any) -> Any:
    """The state of the dataset in that of torchdata's StatefulDataLoader, for any number of workers; any other state as
    it is. Raises UsageError where its workers do not stand one behind the other, and for what is no dict."""
    if not isinstance(state, Mapping):
        raise UsageError("this is no state of a wdscli loader", hint="give back what state_dict() gave")
    if "wdscli" in state:
        return state
    if isinstance(state.get("dataset_state"), Mapping):
        return state["dataset_state"]
    try:
        told = [one["dataset_state"] for one in state["_snapshot"]["_worker_snapshots"].values()]
        places = [Place.of_state(one) for one in told]
    except (KeyError, TypeError, AttributeError):
        return state
    if state.get("_steps_since_snapshot"):
        raise UsageError(
            "this state of a StatefulDataLoader says where it was some steps before",
            hint="StatefulDataLoader(..., snapshot_every_n_steps=1), which is its default",
        )
    batches = sorted(place.batch for place in places)
    together = len({place.epoch for place in places}) == 1 and batches == [
        *range(batches[0], batches[-1] + 1)
    ]
    if not together or any(place.item or place.topology for place in places):
        raise UsageError(
            "the workers in this state of a StatefulDataLoader do not stand one behind the other",
            hint="it goes on with as many workers, by its own load_state_dict(); WebLoader with any number",
        )
    return {**{name: value for name, value in told[0].items() if name != "worker"}, "next": batches[0]}


def regrouped(state: Mapping[str, Any], batch: int) -> Mapping[str, Any]:
    """``state`` in global batches of ``batch`` samples, where its place is between two of them: for who has no batches,
    to whom they make no difference."""
    theirs, number = state.get("batch"), state.get("next")
    if not (isinstance(theirs, int) and isinstance(number, int)) or {"item", "topology", "worker"} & {*state}:
        return state
    if theirs < 1 or number * theirs % batch:
        return state
    return {**state, "batch": batch, "next": number * theirs // batch}


def _plain(value: Any) -> Any:
    """``value`` as it is after a way through JSON."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def check_topology(start: Place, topology: tuple[int, int] | None) -> None:
    """Raise UsageError when a state is of what generators or streams gave, and here they would give something else."""
    if (start.item or start.topology is not None) and start.topology != topology:
        raise UsageError(
            f"the state was made by {start.topology} ranks and workers, here are {topology}",
            hint="a stream, and what is behind a generator in compose(), go on with as many as before only",
        )


class Cursor:
    """The place behind sample ``number`` of an iteration from ``start`` on by one of ``workers``; -1 for none yet. A
    number is set for each sample, a :class:`Place` is made when somebody asks."""

    __slots__ = ("_start", "_workers", "number")

    def __init__(self, start: Place, workers: int) -> None:
        self._start, self._workers = start, workers
        self.number = -1

    @property
    def place(self) -> Place:
        """Where it is."""
        if self.number < 0:
            return self._start
        return self._start._replace(batch=self.number + self._workers, item=0)


class Standing:
    """Where iterations of a dataset begin, and where the latest of them is."""

    _board: Board | None = None
    _turn = 0
    """Of the board, when it was heard last."""
    _birth: int | None = None
    """What the thread that sent this copy had started before, when it was sent."""

    def __init__(self, start: Place | None = None) -> None:
        self._latest = self._times = 0
        _standings.add(self)
        self._cursor: Cursor | None = None
        self.move(start or Place())

    def move(self, start: Place) -> None:
        """Begin at ``start`` from now on."""
        self.start = self.place = start
        self._moved = in_worker()
        self._followed = self._sent = False
        self._forks = _forks[0]
        self._latest += 1

    @property
    def start(self) -> Place:
        """Where the next iteration begins, whoever makes it."""
        latest = self._latest_of_workers
        return self._start if latest is None else Place(latest + 1)

    @start.setter
    def start(self, start: Place) -> None:
        self._start = start
        if self._board is not None and self._board.is_mine:
            self._tell(self._board)

    @property
    def begun(self) -> Place:
        """Where the latest iteration of workers began, ``start`` when there was none."""
        latest = self._latest_of_workers
        return self._start if latest in (None, self._start.epoch) else Place(latest)

    @property
    def _latest_of_workers(self) -> int | None:
        return self._board.latest if self._board is not None and self._board.is_mine else None

    def _tell(self, board: Board) -> None:
        self._origin = self._start
        board.tell(*self._start[:3], self._start.topology)
        self._turn = board.turn

    def shared(self) -> Board:
        """What workers that are started from now on read and write."""
        from wdscli.loader.place.board import Board

        with _sharing[0]:
            if self._board is None or not self._board.is_mine:
                board = Board.made()
                self._tell(board)
                self._board = board
            return self._board

    def begins(self) -> Place:
        """Where an iteration begins that begins now; in a worker, where all that began it do."""
        worker = iteration_of_worker()
        if worker is None or self._board is None or self._board.is_mine:
            if self._latest_of_workers is not None:
                self.start = self.start
            return self._start
        from wdscli.loader.place.board import Begun

        self._times += 1
        birth = _started() if self._birth is None else self._birth
        begun = Begun(worker.seed, birth - worker.number, self._times, worker.workers)
        if self._moved:  # a state was loaded in this worker
            self._moved = False
            self._board.note(begun, self._start.epoch)
            return self._start
        if self._board.turn != self._turn:
            epoch, batch, item, topology = self._board.told()
            self._origin, self._turn = Place(epoch, batch, item, topology=topology), self._board.turn
        epoch = self._board.epoch_of(begun, self._origin.epoch)
        return self._origin if epoch == self._origin.epoch else Place(epoch)

    def begin(self, place: Place | None = None) -> int:
        """A new iteration, which is the one that counts from now on; its number."""
        self.place = place or self.start
        self._followed = True
        self._latest += 1
        return self._latest

    @property
    def place(self) -> Place:
        """Behind the last thing that the latest iteration gave."""
        return self._place if self._cursor is None else self._cursor.place

    @place.setter
    def place(self, place: Place) -> None:
        self._place, self._cursor = place, None

    def follow(self, iteration: int, cursor: Cursor) -> None:
        """Iteration ``iteration`` is where ``cursor`` is."""
        if iteration == self._latest:
            self._cursor = cursor

    def at(self, iteration: int, place: Place) -> None:
        """Iteration ``iteration`` has come to ``place``."""
        if iteration == self._latest:
            self.place = place

    def finish(self, iteration: int, start: Place, place: Place) -> None:
        """Iteration ``iteration`` has come to the end of its epoch: the next one begins at ``start``, and until then
        this is at ``place``."""
        if iteration == self._latest:
            self.start, self.place = start, place

    @property
    def is_known(self) -> bool:
        """Whether ``place`` is true: False when it may be copies that are iterated."""
        forked = _forks[0] > max(self._forks, _forks_before[0]) and "torch.utils.data" in sys.modules
        return self._followed or not (self._sent or forked)

    def copy(self) -> Standing:
        """The standing of another dataset that begins at the same place."""
        new = Standing(self.start)
        new.place, new._followed, new._sent, new._forks = self.place, self._followed, self._sent, self._forks
        return new

    def __getstate__(self) -> dict[str, Any]:
        self._sent = True
        if not _is_spawning() or in_worker():
            return {"_start": self.start}
        board, birth = self.shared(), _started()
        _of_thread.started = birth + 1
        return {"_start": self._origin, "_board": board, "_turn": self._turn, "_birth": birth}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_start"])  # type: ignore[misc]
        self._origin = self._start
        self.__dict__.update(state)


def _is_spawning() -> bool:
    """Whether a process is being started, which gets what is pickled."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


_standings: WeakSet[Standing] = WeakSet()
_forks = [0]
"""How often this process was forked, and its parents before they made it, ..."""
_forks_before = [0]
"""... which is this part of it."""


_sharing = [Lock()]
_of_thread = local()


def _started() -> int:
    """What this thread has forked and sent to others; in a process that was forked, what the one who did it had."""
    return int(getattr(_of_thread, "started", 0))


def _note_fork() -> None:
    _forks[0] += 1
    _of_thread.started = _started() + 1


def _note_birth() -> None:
    _sharing[0] = Lock()  # of a thread that is not here
    _forks_before[0] = _forks[0]


def _share() -> None:
    """Whatever is forked may be a worker."""
    if "torch.utils.data" in sys.modules and not in_worker():
        with suppress(OSError):
            for standing in list(_standings):
                standing.shared()


os.register_at_fork(before=_share, after_in_parent=_note_fork, after_in_child=_note_birth)
