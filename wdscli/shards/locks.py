"""This module has the files that mark an output while it is written: its lock, its state, and the remains of killed
runs.

:class:`OutputLock` is the lock of a run. Each task of the run checks a :class:`Ticket`. If two runs have the same
output, the second run is refused. A run also notices if its folder is replaced. The file ``.wds/NAME.lock.tmp`` next to
the shards is locked with ``flock``. Such a lock ends with the process, so a killed run leaves no lock. Runs of the same
stored plan write the same bytes, and share a lock by the plan's mark. The ticket is the folder's device and inode,
which cannot change while the lock keeps the folder open. Object stores and some network file systems have no locks.
There, the only protection is a check of every shard before the manifest is written (:mod:`~wdscli.shards.writing`).

:class:`UnfinishedSet` is the state of a set: the contents of ``.NAME.unfinished``. A run writes this file before its
first change, and removes it when the manifest is complete. So the file remains after a killed run. It is in the folder
of the manifest. A listing of the shards also shows this file, so readers need no request for each shard.

A run that ended early also leaves receipts of complete shards (:func:`receipt_address`) and temporary files
(:func:`remove_temporaries`, :func:`remove_abandoned`). A temporary file is named ``.NAME.<12 hexadecimal digits>.tmp``.
A temporary file is removed only if NAME belongs to the caller, and the file is not locked. A locked file means that
another process is writing it. This module does not know what is written or what receipts contain.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from wdscli.errors import InputNotFoundError, OutputError, WdsError
from wdscli.shown import shown
from wdscli.storage import (
    OutputPattern,
    base_name,
    folder_of,
    is_local,
    is_stream,
    list_folder,
    open_sink,
    read_all,
    remove,
    sibling,
)
from wdscli.storage.addresses import is_web, local_path
from wdscli.storage.local import (
    NO_LOCKS,
    TEMPORARY,
    is_same_file,
    make_folders,
    remove_empty,
    remove_if_abandoned,
    short_name,
)
from wdscli.storage.opening import at_once, has_temporaries

FOLDER = ".wds"
"""The folder next to the shards with their indexes, receipts and locks."""
SUFFIX = ".wdx"
"""The suffix of an index: a shard's name and this."""
_PART = "{part}"
_PATIENCE_SECONDS = 1.0
"""How long a killed process may take to exit."""
_TOGETHER_SECONDS = 10.0
"""Runs that share a lock wait this long until the first run has written its mark."""
_STEP_SECONDS = 0.02
_LIVE: weakref.WeakValueDictionary[str, OutputLock] = weakref.WeakValueDictionary()
"""The locks of this process, by path."""


class Ticket(NamedTuple):
    """The identity of the folder in which a run began. It is small and picklable, for tasks in other processes of this
    machine."""

    folder: str
    device: int
    inode: int

    def check(self, address: str) -> None:
        """Raise OutputError if the path now leads to another folder, or to no folder."""
        try:
            status = os.stat(self.folder)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != (self.device, self.inode):
            raise OutputError(
                f"cannot write {address}: the folder {self.folder} was moved, removed or replaced during this run",
                hint="finished shards are in the original folder; run the command again",
            )


def lock_address(output: str) -> str | None:
    """Return the manifest's address for the lock of the whole output, or None if files cannot be locked there.

    >>> lock_address("a/out-%06d.tar"), lock_address("a/{part}/%06d.tar"), lock_address("s3://b/%06d.tar")
    ('a/out-manifest.json', 'a/{part}-manifest.json', None)
    """
    if is_stream(output) or not is_local(output):
        return None
    pattern = OutputPattern.parse(output)
    if pattern.is_stream:
        return None
    address = pattern.prefix_address(MANIFEST_SUFFIX)
    while _PART in folder_of(address):
        folder = folder_of(address).removesuffix("/")
        address = f"{folder}-{base_name(address)}"
    return address


class OutputLock:
    """The lock of an output. It is held until :meth:`release` or the end of a ``with`` block. ``ticket`` is None if
    files cannot be locked."""

    def __init__(self) -> None:
        self.ticket: Ticket | None = None
        self._process = os.getpid()
        self.path = ""
        """The path of the lock; empty without one."""
        self._lock = self._folder = -1
        self._made: list[str] = []
        self._mark = ""
        self._revoked = False

    @classmethod
    def take(cls, address: str | None, mark: str = "") -> OutputLock:
        """Lock the set with the manifest at ``address``, which need not exist. Runs with the same ``mark`` share the
        lock. The folder is created. An earlier lock of this process is revoked. Raises OutputError if another run is
        writing."""
        claim = cls()
        if address is None or is_stream(address) or not is_local(address):
            return claim
        path = os.path.abspath(local_path(address))
        folder, name = os.path.split(path)
        claim._mark = mark
        claim.path = os.path.join(folder, FOLDER, name + LOCK)
        before = _LIVE.get(claim.path)
        if before is not None and not mark:
            before.revoke()
        try:
            claim._open(folder)
            claim._wait_for_lock(address)
        except OutputError:
            claim.release()
            raise
        except OSError as error:
            if error.errno in NO_LOCKS:
                with contextlib.suppress(OSError):
                    os.unlink(claim.path)
                return claim
            # Writing a shard will fail for the same reason, and give a better message.
            claim.release()
            return cls()
        except BaseException:
            claim.release()
            raise
        else:
            _LIVE[claim.path] = claim
        return claim

    def _open(self, folder: str) -> None:
        self._made = make_folders(os.path.dirname(self.path))
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self._folder)
        self.ticket = Ticket(folder, status.st_dev, status.st_ino)

    def _wait_for_lock(self, address: str) -> None:
        begin = time.monotonic()
        while not self._try_lock():
            holder = _read(self.path)
            together = self._mark and holder.get("mark", self._mark) == self._mark
            if time.monotonic() - begin > (_TOGETHER_SECONDS if together else _PATIENCE_SECONDS):
                who = f" (process {holder['process']} on {holder['host']})" if holder else ""
                raise OutputError(
                    f"another run is writing {address.removesuffix(MANIFEST_SUFFIX)}...{who}",
                    hint="wait until it has ended, or choose another output name",
                )
            time.sleep(_STEP_SECONDS)

    def _try_lock(self) -> bool:
        """Try to take the lock. Raises OSError if files cannot be locked there."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            # Another run has just removed the empty .wds.
            self._made = [*make_folders(os.path.dirname(self.path)), *self._made]
            return False
        try:
            if self._has(descriptor, fcntl.LOCK_EX):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, self._says(), 0)
                kept = not self._mark or self._has(descriptor, fcntl.LOCK_SH)
            else:
                kept = bool(self._mark) and self._has(descriptor, fcntl.LOCK_SH)
            if kept and self._mark:
                kept = _read(self.path).get("mark") == self._mark
            if kept:
                self._lock, descriptor = descriptor, -1
            return kept
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _has(self, descriptor: int, how: int) -> bool:
        """Lock an open file. Return False if another run has removed the file, because releasing a lock removes it."""
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return is_same_file(descriptor, self.path)

    def _says(self) -> bytes:
        import json
        from socket import gethostname

        told = {"process": self._process, "host": gethostname(), "mark": self._mark}
        return json.dumps(told).encode("ascii")

    def check(self, address: str) -> None:
        """Raise OutputError if this run no longer holds the lock."""
        if self._revoked:
            raise OutputError(
                f"cannot write {address}: another writer of this process has taken over the output"
            )
        if self.ticket is not None:
            self.ticket.check(address)

    def revoke(self) -> None:
        """Give up this lock, because another lock of this process replaces it."""
        if self._process == os.getpid():
            self.release()
            self._revoked = True

    def release(self) -> None:
        """Release the lock, and remove the files made for it. A second call does nothing."""
        path, self.path = self.path, ""
        lock, self._lock = self._lock, -1
        folder, self._folder = self._folder, -1
        # A forked process has copies of these descriptors, but does not own the lock.
        if self._process == os.getpid() and path:
            _LIVE.pop(path, None)
            with contextlib.suppress(OSError):
                if lock >= 0 and is_same_file(lock, path):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
            if self.ticket is not None and folder >= 0 and is_same_file(folder, self.ticket.folder):
                remove_empty([os.path.dirname(path), *self._made])
        for descriptor in (lock, folder):
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> OutputLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release()


def _read(path: str) -> dict[str, str]:
    """Return a text that names the run with the lock. It is empty if the text is not written yet."""
    import json

    try:
        with open(path, "rb") as file:
            told = json.loads(file.read())
        return {"process": str(told["process"]), "host": str(told["host"]), "mark": str(told["mark"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


RECEIPT = ".done"
KEPT_ROWS = f"{RECEIPT}.rows"
"""The ending of the rows of a kept plan (:func:`~wdscli.run.execute.keep_plan`)."""


def receipt_address(address: str) -> str:
    """Return the address of a shard's receipt: ``.wds/<name>.done`` in the shard's folder."""
    return sibling(address, f"{FOLDER}/{base_name(address)}{RECEIPT}")


def _listed(folder: str, end: str = "") -> list[str] | None:
    """Return the names in a folder with this ending, or None if a store does not list the folder."""
    if is_web(folder):
        return []
    try:
        return list_folder(folder, lambda name: name.endswith(end))
    except WdsError as error:
        is_missing = is_local(folder) or isinstance(getattr(error, "cause", None), FileNotFoundError)
        return [] if is_missing else None


def _temporaries_in(folder: str) -> Iterator[tuple[str, str]]:
    """Return the temporary files in a folder, each with the name of its final file."""
    for name in _listed(folder, ".tmp") or ():
        if match := re.fullmatch(TEMPORARY, name):
            yield folder + name, match[1]


def remove_abandoned(folder: str, is_own: Callable[[str], bool]) -> None:
    """Remove the temporary files in a local folder, and in its ``.wds``, that no process is writing. ``is_own`` says
    whether the name of a shard or manifest belongs to the caller."""
    for inside, ends in ((folder, ("",)), (f"{folder}{FOLDER}/", (SUFFIX, RECEIPT))):
        for file, name in _temporaries_in(inside):
            if any(name.endswith(end) and is_own(name.removesuffix(end)) for end in ends):
                remove_if_abandoned(local_path(file))


def remove_temporaries(addresses: Iterable[str]) -> None:
    """Remove temporary files of these shards or other files, and of their indexes and receipts. This is done even if a
    process that writes them cannot be detected."""
    folders: dict[str, set[str]] = defaultdict(set)
    for address in addresses:
        folder, name = folder_of(address), base_name(address)
        folders[folder].add(name)
        folders[f"{folder}{FOLDER}/"].update((name + SUFFIX, name + RECEIPT, name + KEPT_ROWS))
    for folder, names in folders.items():
        if not has_temporaries(folder):
            continue
        names |= set(map(short_name, names))
        for file, name in _temporaries_in(folder):
            if name in names and (not is_local(file) or remove_if_abandoned(local_path(file)) is None):
                remove(file)


def remove_receipts(addresses: Iterable[str], is_own: Callable[[str], bool] = lambda address: False) -> None:
    """Remove the receipts of these shards, and receipts in the same folders for which ``is_own`` returns true. Then
    remove empty folders."""
    folders: dict[str, set[str]] = defaultdict(set)
    for address in addresses:
        folders[folder_of(address)] |= {base_name(address) + RECEIPT, base_name(address) + KEPT_ROWS}
    for folder, names in folders.items():
        inside = f"{folder}{FOLDER}/"
        # A store may allow to remove receipts, but not to list them, or its listing may fail.
        files = names if (listed := _listed(inside)) is None else set(listed)
        names |= {
            name for name in files if name.endswith(RECEIPT) and is_own(folder + name.removesuffix(RECEIPT))
        }
        for _ in at_once(remove, [inside + name for name in sorted(files & names)]):
            pass
        if files and files <= names and is_local(inside):
            remove_empty([local_path(inside)])


MANIFEST_SUFFIX = "manifest.json"
STATE_SUFFIX = ".unfinished"
LOCK = ".lock.tmp"
"""The ending of a lock file's name."""
Change = Literal["new", "replace", "append"]


def state_address(manifest: str) -> str:
    """Return the address of the state of a set, by the manifest's address.

    >>> state_address("out/train-manifest.json"), state_address("out/manifest.json")
    ('out/.train.unfinished', 'out/.unfinished')
    """
    prefix = base_name(manifest).removesuffix(MANIFEST_SUFFIX).removesuffix("-")
    return sibling(manifest, f".{prefix}{STATE_SUFFIX}" if prefix else STATE_SUFFIX)


def is_state_name(name: str) -> bool:
    """Return whether a file with this name marks a set as unfinished."""
    return name.startswith(".") and name.endswith(STATE_SUFFIX)


class UnfinishedSet(NamedTuple):
    """The state of a set that is not finished. ``address`` is the address of the state's file, and ``shards`` is the
    output pattern relative to its folder. ``first`` is the number of the first appended shard. ``run`` identifies the
    plan if the run can resume; otherwise it is empty. ``lock`` is the path of the run's lock relative to the folder,
    empty without a lock. ``options`` are the options that change the shards, if the run can resume. For a
    writer in Python, they have the operation ``write``."""

    address: str
    change: Change
    shards: str = ""
    first: int = 0
    run: str = ""
    lock: str = ""
    options: Mapping[str, Any] = {}

    def write(self, *, fsync: bool = False) -> None:
        """Store this state. Raises OutputError."""
        import json

        plain = {"format": "wdscli-unfinished", "version": 1, **self._asdict()}
        del plain["address"]
        with open_sink(self.address, force=True, fsync=fsync) as sink:
            sink.write(json.dumps(plain).encode("ascii"))

    def covers(self, address: str) -> bool:
        """Return whether the run may have changed, or may change, the shard at an address."""
        folder = folder_of(self.address)
        name = address.removeprefix(folder)
        if not address.startswith(folder) or not self.shards:
            return folder_of(address) == folder
        if "{" in self.shards:
            # Braces may give millions of names, and the names for {name} are unknown.
            before, after = self.shards.partition("{")[0], self.shards.rpartition("}")[2]
            return name.startswith(before) and name.endswith(after)
        try:
            pattern = OutputPattern.parse(self.shards)
        except WdsError:
            return True
        return pattern.could_name(name) and (pattern.number_of(name) or 0) >= self.first

    def is_running(self) -> bool:
        """Return whether the run still holds its lock. Return False on object stores, which have no locks."""
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
        """Return a sentence about the unfinished set, and a hint how to finish it."""
        name = shown(folder_of(self.address) + (self.shards or "*.tar"))
        if self.is_running():
            doing = {"new": "written", "replace": "replaced", "append": "appended to"}[self.change]
            return f"{name} is being {doing} by another run", "wait until that run has ended"
        again = "run the same command again with " + ("--resume" if self.run else "--force")
        if self.options.get("operation") == "write":
            again = "run the program again with force=True, and close its writer (a with block does it)"
        if self.change == "append":
            prefix = base_name(self.address).removesuffix(STATE_SUFFIX).removeprefix(".")
            manifest = sibling(self.address, f"{prefix}-{MANIFEST_SUFFIX}" if prefix else MANIFEST_SUFFIX)
            text = f"{name} is unfinished: a run has added shards that its manifest does not list yet"
            return text, f"{again}; or read {shown(manifest)}, which lists the shards before them"
        if self.change == "replace":
            text = f"{name} is unfinished: a run has replaced only some of its shards"
            return text, f"{again}; `wds index --force` accepts the shards as they are"
        return f"{name} is unfinished: a run has not written all of its shards", again


def read_state(address: str) -> UnfinishedSet | None:
    """Return the state at an address, or None if there is none. A file that cannot be parsed covers all shards in its
    folder. Raises InputError."""
    import json

    try:
        plain = json.loads(read_all(address))
        change = plain["change"]
        if change not in ("new", "replace", "append"):
            raise ValueError
        shards, run, lock = (str(plain[name]) for name in ("shards", "run", "lock"))
        return UnfinishedSet(address, change, shards, int(plain["first"]), run, lock, dict(plain["options"]))
    except InputNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return UnfinishedSet(address, "replace")


class StateFile:
    """The state file of one output. ``address`` is empty for a stream, which has no state."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._state: UnfinishedSet | None = None
        self._is_ended = not address
        self._made: list[str] = []

    def read(self) -> UnfinishedSet | None:
        """Return the stored state, or None if the set is finished. Raises InputError."""
        return None if self._is_ended else read_state(self.address)

    def begin(self, state: UnfinishedSet, *, fsync: bool) -> None:
        """Store that a run has begun. Pattern and lock in ``state`` are the addresses of the run; the file stores them
        relative to its folder. Raises OutputError."""
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
        """Whether this run has stored the state, and replaces no shard."""
        return self._state is not None and not self._is_ended and self._state.change != "replace"

    def end(self) -> None:
        """Remove the stored state. Raises OutputError."""
        if not self._is_ended:
            self._is_ended = True
            remove(self.address)
            remove_empty(self._made)
