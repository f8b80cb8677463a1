"""This module keeps copies of remote shards on this machine: in a cache, or in scratch space for one command.

:func:`open_cached` opens a remote shard through a cache folder. :func:`hold` and :func:`open_held` keep a shard in the
scratch space of a command that reads it more than once.

A small request (HEAD) gets the current length and version: an ETag, or else the time of change. The name of the copy
depends on length, version and address, so that a replaced shard gets a new copy. A copy has two files: ``NAME.<hash>``,
which appears when it is complete, and ``NAME.<hash>.sum`` with the checksum. Each process checks a copy once, and
downloads a damaged copy again. A shard without version or length, or a shard that is too large, is read from its store.

Several processes may share a cache, also processes of different users who trust each other. A process that downloads a
shard locks the file that becomes the copy. Other processes wait for this process, and take over if it dies. To make
space for a new copy, a process removes the least recently used copies, if permissions allow. An open file stays
readable. Files of other users may be read, even if they cannot be written, locked or removed.

This module does not know shards, or how requests are made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_128

from wdscli.errors import InputError, StorageError, UsageError
from wdscli.shown import shown
from wdscli.storage.addresses import base_name
from wdscli.storage.ends import PIECE_BYTES, Source, replaced
from wdscli.storage.kinds import kind_of
from wdscli.storage.local import NO_LOCKS, LocalSource, is_same_file, reason, remove_if_abandoned, write_all
from wdscli.storage.scatter import REQUEST_BYTES

if TYPE_CHECKING:
    from wdscli.storage.retry import Network

SUM = ".sum"
PART = ".part"
_LOCK = ".lock"
_VERSION = ".version"
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LENGTH = 80
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CacheWarning(UserWarning):
    """The warning for a remote shard that cannot be cached. It is read from its store each time."""


Version: TypeAlias = tuple[int, str]
"""The size and version of an object. The version has the form of :attr:`Source.version`."""


def open_cached(address: str, chosen: Network, version: tuple[int, str] | None = None) -> Source | None:
    """Open a cached copy of the object at ``address``. If there is no copy, download it first. Return None if the
    object must be read from its store. With ``version``, only a copy of this version is used; otherwise only a copy
    of the current version.

    Raises UsageError for an impossible cache folder, and the errors of reading the original.
    """
    # Commands load this module for local sets too, and clients of stores load slowly.
    from wdscli.storage.ranges import version_at

    folder = _Folder.of(chosen.cache_dir)
    wanted = version or version_at(address)
    if wanted is None or not wanted[1]:
        _say(f"{shown(address)} is not cached: it has no length, or neither an ETag nor a time of change")
        return None
    if chosen.cache_bytes and wanted[0] > chosen.cache_bytes:
        _say(f"{shown(address)} is not cached: it is larger than the whole cache")
        return None
    name = _name_of(address, wanted)
    descriptor = folder.opened(name, wanted[0])
    if descriptor is None:
        descriptor = folder.add(name, wanted[0], lambda: _original(address, wanted), chosen.cache_bytes)
    return None if descriptor is None else CachedSource(address, descriptor, wanted)


def _original(address: str, version: Version) -> Source:
    """Open the object to copy. Raises InputError if its version has changed."""
    from wdscli.storage.ranges import open_remote

    source = open_remote(address, REQUEST_BYTES, version if kind_of(address).is_s3 else None)
    if (source.size, source.version) != version:
        source.close()
        raise replaced(address)
    return source


def _name_of(address: str, version: Version) -> str:
    """Return the name of a copy: a readable part, and a hash of address and version. The hash is cryptographic, so that
    a server cannot produce the name of another server's shard."""
    size, text = version
    whole = f"{address}\n{size}\n{text}".encode("utf-8", "surrogateescape")
    readable = _ODD.sub("_", base_name(address)).lstrip(".")[:_NAME_LENGTH]
    return f"{readable}.{_name_hash(whole)}"


def _name_hash(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()[:32]


class CachedSource(LocalSource):
    """A copy of an object, with the address and version of the original."""

    def __init__(self, name: str, descriptor: int, version: Version) -> None:
        super().__init__(name, descriptor, version[0])
        self.version = self._whole_version = version[1]
        self.is_pinned = kind_of(name).is_s3

    def confirm(self) -> None:
        # A copy does not change, but the plan may be from another version.
        if self.version != self._whole_version:
            raise replaced(self.name)


_said: set[str] = set()


def _say(text: str) -> None:
    """Print a warning only once in a process."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, CacheWarning, stacklevel=3)


def hold(source: Source, folder: str) -> bool:
    """Copy the stored bytes of ``source`` to the scratch folder of a command that reads them more than once. In a block
    of :func:`~wdscli.storage.retry.held_in`, the copy is read instead. Return False if the disc has too little space.
    Raises the errors of reading."""
    path = _held_path(source.name, folder)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        with open(f"{path}{PART}", "wb", buffering=0) as file:
            for data in source.pieces():
                write_all(file.fileno(), data)
        source.confirm()
        with open(f"{path}{_VERSION}", "w", encoding="utf-8", errors="surrogateescape") as note:
            note.write(source.version)
        os.rename(f"{path}{PART}", path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{PART}")
        return False
    return True


def open_held(address: str, folder: str, version: tuple[int, str] | None = None) -> Source | None:
    """Open the copy of an address that :func:`hold` has made in a folder. With ``version``, only a copy of this version
    is used. Return None if there is no copy."""
    path = _held_path(address, folder)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(f"{path}{_VERSION}", encoding="utf-8", errors="surrogateescape") as note:
            held_version = os.fstat(descriptor).st_size, note.read()
    except OSError:
        return None
    source = CachedSource(address, descriptor, held_version)
    if version in (None, held_version):
        return source
    source.close()
    return None


def _held_path(address: str, folder: str) -> str:
    return os.path.join(folder, _name_hash(address.encode("utf-8", "surrogateescape")))


class _Folder:
    """The folder of one cache."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._checked: dict[str, tuple[int, int, int]] = {}
        """Copies that this process has checked: inode, time of change, size."""
        self._may_write = True

    @staticmethod
    def of(path: str) -> _Folder:
        """Return the cache at ``path``. A missing folder is created. Raises UsageError for a folder that all users may
        write."""
        path = os.path.abspath(os.path.expanduser(path))
        folder = _folders.get(path)
        if folder is not None:
            return folder
        try:
            os.makedirs(path, 0o775, exist_ok=True)
            mode = os.stat(path).st_mode
        except OSError as error:
            raise UsageError(
                f"cannot use {path} as a cache: {reason(error)}", hint="name another folder: --cache DIR"
            ) from error
        if not stat.S_ISDIR(mode):
            raise UsageError(
                f"cannot use {path} as a cache: it is not a folder", hint="name a folder: --cache DIR"
            )
        if mode & stat.S_IWOTH:
            raise UsageError(
                f"cannot use {path} as a cache: all users may write there",
                hint=f"chmod o-w {path}, and for several users: chgrp GROUP {path}; chmod g+ws {path}",
            )
        return _folders.setdefault(path, _Folder(path))

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def opened(self, name: str, size: int) -> int | None:
        """Return a descriptor of an undamaged copy, or None. A damaged copy is removed."""
        path = self._at(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        if self._is_whole(name, descriptor, size):
            # For another user's file, only the system's access time is available.
            with contextlib.suppress(OSError):
                os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))
            return descriptor
        os.close(descriptor)
        self._remove(path)
        return None

    def _note(self, name: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._checked[name] = status.st_ino, status.st_mtime_ns, status.st_size

    def _is_whole(self, name: str, descriptor: int, size: int) -> bool:
        """Return whether a copy has the right length and checksum. The checksum is computed once in a process."""
        status = os.fstat(descriptor)
        if status.st_size != size or not stat.S_ISREG(status.st_mode) or status.st_mode & stat.S_IWOTH:
            return False
        if self._checked.get(name) == (status.st_ino, status.st_mtime_ns, status.st_size):
            return True
        try:
            with open(self._at(name + SUM), "rb") as file:
                expected = file.read(200).strip()
            digest = xxh3_128()
            offset = 0
            while data := os.pread(descriptor, PIECE_BYTES, offset):
                digest.update(data)
                offset += len(data)
        except OSError:
            return False
        if expected != _sum(digest):
            return False
        self._note(name, descriptor)
        return True

    def _remove(self, path: str) -> None:
        for file_path in (path, path + SUM):
            with contextlib.suppress(OSError):
                os.unlink(file_path)

    def add(self, name: str, size: int, original: Callable[[], Source], limit: int) -> int | None:
        """Return a descriptor of a copy that this process downloads, or that another process has just downloaded.
        Return None if space or permission is missing. Raises the errors of reading the original."""
        if not self._may_write:
            return None
        try:
            with self._part(name) as (path, descriptor):
                # Another process may have made the copy while this process waited for the lock.
                copy_descriptor = self.opened(name, size)
                if copy_descriptor is not None:
                    os.unlink(path)
                    return copy_descriptor
                self._make_room(size, descriptor, limit)
                return self._fill(name, path, descriptor, size, original)
        except StorageError:
            raise  # an error of reading the original
        except OSError as error:
            if error.errno in _FULL:
                _say(f"the cache {self.path} is full: shards are read from their store")
            else:
                self._may_write = False
                _say(f"cannot write the cache {self.path}: {reason(error)}; shards are read from their store")
            return None

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[tuple[str, int]]:
        """A context manager with path and descriptor of the locked file that becomes a copy. At the end, the file is
        removed if it is not complete. Raises OSError."""
        path = self._at(f".{name}{PART}")
        part = _locked(path) or _locked(self._at(f".{name}.{os.urandom(6).hex()}{PART}"))
        if part is None:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        try:
            yield part
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part[0])
            raise
        finally:
            _unlock(part[1])

    def _fill(self, name: str, path: str, part: int, size: int, original: Callable[[], Source]) -> int:
        """Download the original into the open file ``part``, and give the file its name. Raises OSError, and the errors
        of reading."""
        digest, received_bytes = xxh3_128(), 0
        with original() as source:
            source.peek(1)  # the first request; the next requests continue after it
            for data in source.pieces():
                digest.update(data)
                received_bytes += len(data)
                write_all(part, data)
            source.confirm()
            if received_bytes != size:
                raise InputError(f"cannot read {source.name}: only {received_bytes} of {size} bytes arrived")
        side = f"{path}{SUM}"
        try:
            # The mode of the folder, not the umask, decides who may read its files.
            mode = 0o600 | (stat.S_IMODE(os.stat(self.path).st_mode) & 0o044)
            os.fchmod(part, mode)
            with open(side, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(_sum(digest) + b"\n")
            # Open the file before it gets its name, because other processes may remove it after that.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.replace(side, self._at(name + SUM))
            os.replace(path, self._at(name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(side)
            raise
        self._note(name, descriptor)
        return descriptor

    def _make_room(self, size: int, descriptor: int, limit: int) -> None:
        """Remove old copies until ``size`` more bytes fit. Then extend the file of ``descriptor`` to this size, so that
        other processes count it."""
        lock = os.open(self._at(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if limit:
                entries = sorted(self._entries())
                total = size + sum(entry_bytes for _, entry_bytes, _ in entries)
                for _, entry_bytes, path in entries:
                    if total <= limit:
                        break
                    if self._is_removed(path):
                        total -= entry_bytes
                if total > limit:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(descriptor, size)
        finally:
            _unlock(lock)

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """List all copies and downloads, each with the time of its last use in nanoseconds, its size in bytes, and its
        path."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name != _LOCK and not entry.name.endswith(SUM):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        used = max(status.st_atime_ns, status.st_mtime_ns)
                        if stat.S_ISREG(status.st_mode) and status.st_size:
                            yield used, status.st_size, entry.path

    def _is_removed(self, path: str) -> bool:
        """Remove a copy, or the partial file of a dead process. Return False if the file is in use, or if permissions
        forbid it."""
        if path.endswith(PART):
            return remove_if_abandoned(path) is True
        self._remove(path)
        return not os.path.lexists(path)


_folders: dict[str, _Folder] = {}


def _locked(path: str) -> tuple[str, int] | None:
    """Open the partial file at ``path`` under an exclusive lock, and wait for another writer. Return path and
    descriptor, or None if the file belongs to another user. Raises OSError."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
        except PermissionError:
            if not os.path.lexists(path):
                raise
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                return path, descriptor
        except OSError as error:
            os.close(descriptor)
            # Without locks, two processes may download the same shard, each to its own file.
            if error.errno in NO_LOCKS:
                return None
            raise
        except BaseException:
            os.close(descriptor)
            raise
        # The file got its final name, or was removed, so try again.
        _unlock(descriptor)


def _unlock(descriptor: int) -> None:
    """Unlock and close a file. A forked process shares the open file. If it were only closed here, the file would stay
    locked until the forked process ends."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _sum(digest: xxh3_128) -> bytes:
    return b"xxh3_128:" + digest.hexdigest().encode()
