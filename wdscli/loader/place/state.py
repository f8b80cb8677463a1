"""This module has exact places in an epoch, and converts them to states, which a training program keeps in a
checkpoint.

A :class:`Place` is a few numbers, and a state has them as plain values. Batch k of an epoch depends only on the source,
the seed and the epoch. So a state needs only these facts, and can be resumed with any numbers of ranks and workers.
Before a state is loaded, this module compares it with the dataset. If the data, the order or the global batch size
differs, it raises an error that names the difference. This module does not know what is iterated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wdscli.errors import UsageError

STATE_VERSION = 1
_END = 1 << 62
"""A bound for all numbers in states. Larger numbers do not fit into arrays."""
ANY = 0
"""The number in a topology that means any number of ranks or workers."""
NAMED_FIRST = ("fingerprint", "seed", "shuffle")
"""Facts that explain other differences. An error names these facts first."""


class Place(NamedTuple):
    """The place after the first ``item`` items of batch ``batch`` in epoch ``epoch``. With ``item`` 0, the place is
    before the batch.

    For the place of one DataLoader worker, ``worker`` is (number of the worker, number of workers). Then ``batch`` is
    the next batch of this worker. ``topology`` is (ranks, workers) if the place is valid only for the same numbers of
    ranks and workers, as in streams and with generators. With generators, ``item`` counts the items that they made from
    all batches from ``batch`` on.
    """

    epoch: int = 0
    batch: int = 0
    item: int = 0
    worker: tuple[int, int] | None = None
    topology: tuple[int, int] | None = None

    def to_state(self, source: Mapping[str, Any], batch: int) -> dict[str, Any]:
        """Return the state, a new dict of plain values. ``batch`` is the number of samples in a global batch, and
        ``source`` is the identity of the source."""
        place = {"epoch": self.epoch, "next": self.batch}
        details: dict[str, Any] = {
            "item": self.item or None,
            "topology": self.topology,
            "worker": self.worker,
        }
        details = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in details.items()
            if value
        }
        return {"wdscli": STATE_VERSION, "source": dict(source), "batch": batch, **place, **details}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Place:
        """Return the place in a state. Raises UsageError if the value is not a state."""
        try:
            if state["wdscli"] != STATE_VERSION:
                raise UsageError(
                    f"the state has version {state['wdscli']}, but this wdscli reads version {STATE_VERSION}"
                )
            place = cls(_number(state["epoch"]), _number(state["next"]), _number(state.get("item", 0)))
            worker, topology = (
                _pair(state[name]) if name in state else None for name in ("worker", "topology")
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _no_state() from None
        return place._replace(worker=worker, topology=topology)


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return _number(first), _number(second)


def _number(value: Any) -> int:
    """Return a number of a state. Raises UsageError if no position has it."""
    number = int(value)
    if not 0 <= number < _END:
        sort = "a negative number" if number < 0 else "the impossible number"
        raise UsageError(f"this is not the state of a wdscli loader: it has {sort} {number}")
    return number


def _no_state() -> UsageError:
    return UsageError("this is not the state of a wdscli loader", hint="pass the result of state_dict()")


def check_fits(state: Mapping[str, Any], source: Mapping[str, Any], batch: int, world: int) -> None:
    """Raise UsageError if a state belongs to other data, another order or another global batch size. The error names
    the difference."""
    hint = "load_state_dict(state, force=True) resumes nevertheless"
    theirs = state.get("source")
    if not isinstance(theirs, Mapping):
        raise _no_state()
    if ("mix" in theirs) != ("mix" in source):
        kinds = "one set", "a mix"
        raise UsageError(
            f"the state was saved with {kinds['mix' in theirs]}, but this loader has {kinds['mix' in source]}",
            hint=hint,
        )
    for name in sorted({*theirs, *source}, key=lambda name: (name not in NAMED_FIRST, name)):
        if _plain(theirs.get(name)) != _plain(source.get(name)):
            what, saved, current = _difference(name, _plain(theirs.get(name)), _plain(source.get(name)))
            raise UsageError(
                f"the state was saved with {what}: {saved!r}, but this loader has {current!r}", hint=hint
            )
    if state.get("batch") != batch:
        if isinstance(state.get("batch"), int) and state["batch"] % world == 0 and state["batch"]:
            hint = f"{world} ranks resume exactly with batches of {state['batch'] // world}; {hint}"
        raise UsageError(
            f"the state was saved with batches of {state.get('batch')} samples over all ranks, "
            f"but this loader has {batch}",
            hint=hint,
        )


def _difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """Return the name of a difference and both values. For mixes, return the first difference between their sets."""
    if name == "mix" and isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return "another number of sets", len(theirs), len(ours)
        for number, (saved, current) in enumerate(zip(theirs, ours)):
            if saved != current and isinstance(saved, list) and isinstance(current, list):
                what, *both = _difference_of_set(saved, current)
                return f"{what} of set {number}", *both
    return "other data" if name == "fingerprint" else f"another {name}", theirs, ours


def _difference_of_set(theirs: list[Any], ours: list[Any]) -> tuple[str, Any, Any]:
    """Return the first difference between two sets of mixes. ``theirs`` and ``ours`` are lists [weight, identity]."""
    if theirs[0] != ours[0]:
        return "another weight", theirs[0], ours[0]
    if not (isinstance(theirs[1], dict) and isinstance(ours[1], dict)):
        return "other data", theirs[1], ours[1]
    names = sorted({*theirs[1], *ours[1]}, key=lambda name: (name != "fingerprint", name))
    name = next(name for name in names if theirs[1].get(name) != ours[1].get(name))
    return _difference(name, theirs[1].get(name), ours[1].get(name))


def of_loader(state: Any) -> Any:
    """Return the dataset's state from a state of torchdata's StatefulDataLoader, for any number of workers. Other
    states are returned unchanged. Raises UsageError if the workers' next batches in the state are not consecutive, and
    if the value is not a dict."""
    if not isinstance(state, Mapping):
        raise _no_state()
    if "wdscli" in state:
        return state
    if isinstance(state.get("dataset_state"), Mapping):
        return state["dataset_state"]
    try:
        snapshots = state["_snapshot"]["_worker_snapshots"].values()
        states = [snapshot["dataset_state"] for snapshot in snapshots]
        places = [Place.of_state(worker_state) for worker_state in states]
    except (KeyError, TypeError, AttributeError):
        return state
    if state.get("_steps_since_snapshot"):
        raise UsageError(
            "this state of a StatefulDataLoader was not saved at the last step",
            hint="use StatefulDataLoader(..., snapshot_every_n_steps=1), which is the default",
        )
    batches = sorted(place.batch for place in places)
    together = len({place.epoch for place in places}) == 1 and batches == [
        *range(batches[0], batches[-1] + 1)
    ]
    if not together or any(place.item or place.topology for place in places):
        raise UsageError(
            "this state of a StatefulDataLoader has batches that do not follow each other",
            hint="call load_state_dict() of a StatefulDataLoader with the same number of workers",
        )
    # The state with the next batch also has the mark of its window.
    first = states[[place.batch for place in places].index(batches[0])]
    return {name: value for name, value in first.items() if name != "worker"}


def regrouped(state: Mapping[str, Any], batch: int) -> Mapping[str, Any]:
    """Return ``state`` converted to global batches of ``batch`` samples, if its place is at the beginning of such a
    batch. The function is for datasets of single samples, where the size of a global batch makes no difference."""
    theirs, number = state.get("batch"), state.get("next")
    if not (isinstance(theirs, int) and isinstance(number, int)) or {"item", "topology", "worker"} & {*state}:
        return state
    if theirs < 1 or number * theirs % batch:
        return state
    return {**state, "batch": batch, "next": number * theirs // batch}


def _plain(value: Any) -> Any:
    """Return ``value`` after a conversion to JSON and back."""
    from json import dumps, loads

    return loads(dumps(value, default=str))


def check_topology(start: Place, topology: tuple[int, int] | None) -> None:
    """Raise UsageError if ``start`` is a place in generators or streams, and its numbers of ranks or workers differ
    from ``topology``."""
    if start.topology is not None and start.topology[0] == ANY:
        theirs, ours = start.topology[1], None if topology is None else topology[1]
        if theirs not in (ANY, ours):
            raise UsageError(
                f"the state has the batches of {theirs} workers, but the number of workers is now {ours or 1}",
                hint="with_epoch(samples=) and with_epoch(batches=) resume with any number of workers",
            )
        return
    if (start.item or start.topology is not None) and start.topology != topology:
        raise UsageError(
            f"the state was saved by {start.topology} ranks and workers, but this run has {topology}",
            hint="use the saved numbers: a dataset with a stream or a generator can resume only with them",
        )
