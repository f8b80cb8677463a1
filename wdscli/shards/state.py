"""The state of a set: a file beside its shards while they are written, replaced or added to.

:class:`Unfinished` holds the contents of ``.NAME.unfinished``. A run writes the file before its first change and
removes it once the manifest is complete, so a run that was killed leaves it. The file lies in the folder of the
manifest, where a listing of the shards shows it: readers need no request for each shard. This module does not know who
reads or writes shards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from wdscli.errors import InputNotFoundError, WdsError
from wdscli.shown import shown
from wdscli.storage import OutputPattern, base_name, folder_of, is_local, open_sink, read_all, remove, sibling
from wdscli.storage.addresses import local_path
from wdscli.storage.local import make_folders, remove_empty

MANIFEST_SUFFIX = "manifest.json"
STATE_SUFFIX = ".unfinished"
LOCK = ".lock.tmp"
"""How the name of a run's lock ends."""
Change = Literal["new", "replace", "append"]


def state_address(manifest: str) -> str:
    """Where the state of the set of a manifest lies.

    >>> state_address("out/train-manifest.json"), state_address("out/manifest.json")
    ('out/.train.unfinished', 'out/.unfinished')
    """
    prefix = base_name(manifest).removesuffix(MANIFEST_SUFFIX).removesuffix("-")
    return sibling(manifest, f".{prefix}{STATE_SUFFIX}" if prefix else STATE_SUFFIX)


def is_state_name(name: str) -> bool:
    """Whether a file of this name says that a set is unfinished."""
    return name.startswith(".") and name.endswith(STATE_SUFFIX)


class Unfinished(NamedTuple):
    """A set that is not finished. ``address`` is the address of the file that says so, ``shards`` the output pattern
    relative to its folder; ``first`` is the number of the first shard that is appended. ``run`` identifies the plan of
    a run that can resume, and is empty for others; ``lock`` is the path of the run's lock from the folder, empty where
    there is none; ``options`` are what shapes the shards of a run that can resume."""

    address: str
    change: Change
    shards: str = ""
    first: int = 0
    run: str = ""
    lock: str = ""
    options: Mapping[str, Any] = {}

    def write(self, *, fsync: bool = False) -> None:
        """Store it. Raises OutputError."""
        import json

        plain = {"format": "wdscli-unfinished", "version": 1, **self._asdict()}
        del plain["address"]
        with open_sink(self.address, force=True, fsync=fsync) as sink:
            sink.write(json.dumps(plain).encode("ascii"))

    def covers(self, address: str) -> bool:
        """Whether the run may have changed, or will change, the shard at an address."""
        folder = folder_of(self.address)
        name = address.removeprefix(folder)
        if not address.startswith(folder) or not self.shards:
            return folder_of(address) == folder
        if "{" in self.shards:
            # The names in braces may be millions, and those of {name} are not known.
            before, after = self.shards.partition("{")[0], self.shards.rpartition("}")[2]
            return name.startswith(before) and name.endswith(after)
        try:
            pattern = OutputPattern.parse(self.shards)
        except WdsError:
            return True
        return pattern.could_name(name) and (pattern.number_of(name) or 0) >= self.first

    def is_running(self) -> bool:
        """Whether the run still holds its lock. False on object stores, which have no locks."""
        import fcntl

        folder = folder_of(self.address)
        if not (self.lock.endswith(LOCK) and is_local(folder)):
            return False
        path = os.path.join(local_path(folder), self.lock)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def describe(self) -> tuple[str, str]:
        """A sentence that says what is unfinished, and a hint that says how to finish it."""
        name = shown(folder_of(self.address) + (self.shards or "*.tar"))
        if self.is_running():
            doing = {"new": "written", "replace": "replaced", "append": "appended to"}[self.change]
            return f"{name} is being {doing} by another run", "wait until that run has ended"
        again = "run the same command again with " + ("--resume" if self.run else "--force")
        if self.change == "append":
            prefix = base_name(self.address).removesuffix(STATE_SUFFIX).removeprefix(".")
            manifest = sibling(self.address, f"{prefix}-{MANIFEST_SUFFIX}" if prefix else MANIFEST_SUFFIX)
            text = f"{name} is unfinished: a run has added shards that its manifest does not list yet"
            return text, f"{again}; or read {shown(manifest)}, which lists the shards before them"
        if self.change == "replace":
            text = f"{name} is unfinished: a run has replaced only some of its shards"
            return text, f"{again}; `wds index --force` accepts the shards as they are"
        return f"{name} is unfinished: a run has not written all of its shards", again


def read_state(address: str) -> Unfinished | None:
    """The state at an address; None where there is none. A file that cannot be parsed covers all shards beside it.
    Raises InputError."""
    import json

    try:
        plain = json.loads(read_all(address))
        change = plain["change"]
        if change not in ("new", "replace", "append"):
            raise ValueError
        shards, run, lock = (str(plain[name]) for name in ("shards", "run", "lock"))
        return Unfinished(address, change, shards, int(plain["first"]), run, lock, dict(plain["options"]))
    except InputNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return Unfinished(address, "replace")


class StateFile:
    """The state of one output while it is written; ``address`` is empty for a stream, which has none."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._state: Unfinished | None = None
        self._is_ended = not address
        self._made: list[str] = []

    def read(self) -> Unfinished | None:
        """What is stored; None where the set is finished. Raises InputError."""
        return None if self._is_ended else read_state(self.address)

    def begin(self, state: Unfinished, *, fsync: bool) -> None:
        """Store that a run has begun: ``state``, in which pattern and lock are as the run knows them. Raises
        OutputError."""
        if not self.address:
            return
        lock = state.lock
        if is_local(self.address):
            folder = os.path.dirname(os.path.abspath(local_path(self.address)))
            self._made = make_folders(folder)
            lock = lock and os.path.relpath(lock, folder)
        depth = folder_of(self.address).count("/")
        shards = "/".join(state.shards.split("/")[depth:])
        self._state = state._replace(shards=shards, lock=lock)
        self._state.write(fsync=fsync)

    @property
    def is_of_new_shards(self) -> bool:
        """Whether this run has stored it, and replaces no shard."""
        return self._state is not None and not self._is_ended and self._state.change != "replace"

    def end(self) -> None:
        """Remove it. Raises OutputError."""
        if not self._is_ended:
            self._is_ended = True
            remove(self.address)
            remove_empty(self._made)
