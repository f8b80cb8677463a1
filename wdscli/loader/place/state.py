"""An exact place in an epoch, and the state that says it: plain values, which training keeps in a checkpoint.

What it is: :class:`Place`, a few numbers, its way to a state and back, and what a state is refused for. How: batch k of
an epoch is a pure function of the source, the seed and the epoch, so a state has nothing but these, and goes on with
any number of ranks and workers. A state that is of other data, another order or another global batch is refused by
name. It must not know what is iterated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wdscli.errors import UsageError

STATE_VERSION = 1
ANY = 0
"""Ranks or workers of a topology in which their number makes no difference."""
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
        place = {"epoch": self.epoch, "next": self.batch}
        more: dict[str, Any] = {"item": self.item or None, "topology": self.topology, "worker": self.worker}
        more = {
            name: list(value) if isinstance(value, tuple) else value for name, value in more.items() if value
        }
        return {"wdscli": STATE_VERSION, "source": dict(source), "batch": batch, **place, **more}

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
            raise _no_state() from None
        if min(place[:3]) < 0:
            raise UsageError("this is no state of a wdscli loader: a number in it is below 0")
        return place._replace(worker=worker, topology=topology)


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)


def _no_state() -> UsageError:
    return UsageError("this is no state of a wdscli loader", hint="give back what state_dict() gave")


def check_fits(state: Mapping[str, Any], source: Mapping[str, Any], batch: int, world: int) -> None:
    """Raise UsageError, by name, when ``state`` is of other data, another order or another global batch."""
    hint = "load_state_dict(state, force=True) goes on nevertheless"
    theirs = state.get("source")
    if not isinstance(theirs, Mapping):
        raise _no_state()
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
    if theirs[0] != ours[0]:
        return "another weight", theirs[0], ours[0]
    if not (isinstance(theirs[1], dict) and isinstance(ours[1], dict)):
        return "other data", theirs[1], ours[1]
    names = sorted({*theirs[1], *ours[1]}, key=lambda name: (name != "fingerprint", name))
    name = next(name for name in names if theirs[1].get(name) != ours[1].get(name))
    return _difference(name, theirs[1].get(name), ours[1].get(name))


def of_loader(state: Any) -> Any:
    """The state of the dataset in that of torchdata's StatefulDataLoader, for any number of workers; any other state as
    it is. Raises UsageError where its workers do not stand one behind the other, and for what is no dict."""
    if not isinstance(state, Mapping):
        raise _no_state()
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
    from json import dumps, loads

    return loads(dumps(value, default=str))


def check_topology(start: Place, topology: tuple[int, int] | None) -> None:
    """Raise UsageError when a state is of what generators or streams gave, and here they would give something else."""
    if start.topology is not None and start.topology[0] == ANY:
        theirs, ours = start.topology[1], None if topology is None else topology[1]
        if theirs not in (ANY, ours):
            raise UsageError(
                f"the state was made by {theirs} workers, of which each has so many, here are {ours or 1}",
                hint="with_epoch(samples=) and with_epoch(batches=) are for any number of workers",
            )
        return
    if (start.item or start.topology is not None) and start.topology != topology:
        raise UsageError(
            f"the state was made by {start.topology} ranks and workers, here are {topology}",
            hint="a stream, and what is behind a generator in compose(), go on with as many as before only",
        )
