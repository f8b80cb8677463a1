"""This module reads and writes files of this machine.

The source reads a file with ``pread``, so it needs no position, buffer or lock. The sink gives a file its final name
only when the file is complete. The temporary file ``.NAME.<random>.tmp`` is in the same folder, so that the last step
is one rename. Without ``force``, the last step is a hard link, which fails if the name exists. If two writers have the
same name, one of them fails, and no bytes are lost. A temporary file is locked while it is written. So the file of a
killed run can be recognized and removed (:func:`remove_if_abandoned`).

This module does not know shards, or addresses other than paths.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import inf

from wdscli.errors import InputError, InputIsFolderError, OutputError, OutputIsFolderError, did_you_mean
from wdscli.storage.addresses import VIEW_SUFFIX, local_path, range_hint
from wdscli.storage.ends import Data, NotCopied, Sink, Source, replaced, taken
from wdscli.storage.kinds import meant_address

_WHOLE_READ_BYTES = 1 << 24
"""A longer read is first limited to the file's size, because a damaged header may contain any length."""
SCATTERED_BYTES = 1 << 15
"""Ranges are scattered if the gaps between them are at least this long on average."""
HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or choose an output on another disc")
HINTS |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "choose an output that you may write")
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors that file systems without locks raise."""
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
_MAX_NAME_BYTES = 200
_FEW_DESCRIPTORS = 256
_SPARE_DESCRIPTORS = 4
"""The descriptors that stay free for outputs, indexes and modules, if a process has few."""
_MOST_OPEN = (128, 4096)
"""The bounds for the number of shards that all pools of a process keep open together."""
_open_files: set[int] = set()
"""The descriptors of all open :class:`LocalSource` of this process."""


class LocalSource(Source):
    """A file that is open for reading. Closing the source closes ``descriptor``."""

    def __init__(self, name: str, descriptor: int, size: int) -> None:
        super().__init__(name, size=size, seekable=True, fd=descriptor)
        self._fd = descriptor
        _open_files.add(descriptor)

    def read_at(self, offset: int, length: int) -> bytes:
        if length > _WHOLE_READ_BYTES:
            length = min(length, max(os.fstat(self._fd).st_size - offset, 0))
        return super().read_at(offset, length)

    def read_some(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise InputError(f"cannot read {self.name}: {reason(error)}", cause=error) from error

    def read_into(self, offset: int, view: memoryview) -> int:
        try:
            return os.preadv(self._fd, [view], offset)
        except OSError as error:
            raise InputError(f"cannot read {self.name}: {reason(error)}", cause=error) from error

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        spans = sorted(ranges)
        # If the gaps are small, the kernel reads in advance anyway.
        gaps = spans[-1][1] - spans[0][0] - sum(end - begin for begin, end in spans) if spans else 0
        are_scattered = len(spans) > 1 and gaps >= (len(spans) - 1) * SCATTERED_BYTES
        # The check of an index reads the headers of the first, middle and last sample.
        probes = {len(spans) // 3, len(spans) * 2 // 3} if are_scattered else ()
        if any(is_cold(self._fd, spans[probe][0]) for probe in probes):
            will_need((self._fd, begin, end - begin) for begin, end in spans)

    def confirm(self) -> None:
        # If the file was replaced, the old file is still open here. If the file was overwritten, it has another time or
        # size.
        if self._fd >= 0 and self.version:
            now = os.fstat(self._fd)
            if (version_of(now), now.st_size) != (self.version, self.size):
                raise replaced(self.name)

    def close(self) -> None:
        if self._fd >= 0:
            _open_files.discard(self._fd)
            os.close(self._fd)
            self._fd, self.fd = -1, None

    def __del__(
        self, close: Callable[[int], None] = os.close, forget: Callable[[int], None] = _open_files.discard
    ) -> None:
        # Python's own files also close themselves. The functions are arguments because modules may be empty at
        # interpreter shutdown.
        if self._fd >= 0:
            forget(self._fd)
            close(self._fd)


class HeldSource(Source):
    """A source of bytes that this process keeps in memory."""

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        super().__init__(name, size=len(data), seekable=True)
        self.data = data

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])


def local_version(status: os.stat_result) -> str:
    """Return a version made of the inode and the size, which distinguish two files with the same name."""
    return f"inode:{status.st_ino}:{status.st_size}"


def version_of(status: os.stat_result) -> str:
    """Return the ``version`` of a local source."""
    return f"mtime:{status.st_mtime_ns}"


def open_descriptor(name: str, path: str) -> tuple[int, os.stat_result]:
    """Open a file for reading. Return the descriptor and the file's status. Raises InputError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise InputError(f"cannot read {name}: broken symlink", cause=error) from error
        raise InputError(f"cannot read {name}: no such file", hint=_near(path), cause=error) from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {name}: {reason(error)}", cause=error) from error
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise InputIsFolderError(f"cannot read {name}: it is a folder")
    return descriptor, status


def _near(path: str) -> str | None:
    """Return a hint for a missing file: a mistyped range of numbers, or similar names in its folder."""
    meant = range_hint(path) or meant_address(path)
    if meant:
        return meant
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return (
            f"there is no {'view' if folder.endswith(VIEW_SUFFIX) else 'folder'} {folder}" if folder else None
        )
    return did_you_mean(name, names[:10_000], cutoff=0.8)


def _make_folder(name: str, folder: str) -> None:
    """Make the folder of an output. Raises OutputError if a file or a broken symlink has its name."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        while folder and not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        what = "a broken symlink" if os.path.islink(folder) else "not a directory"
        raise OutputError(f"cannot write {name}: {folder} is {what}") from None
    except (OSError, ValueError) as error:
        raise write_error(name, error) from error


class LocalSink(Sink):
    """A sink for a file that appears when it is complete. Missing parent folders are created. The file's mode follows
    the umask."""

    def __init__(self, name: str, path: str, *, force: bool, fsync: bool) -> None:
        super().__init__(name)
        # With --force, a symlink stays, and its target is replaced. `tar cf` does the same.
        self._path = os.path.realpath(path) if force and os.path.islink(path) else path
        self._force, self._fsync = force, fsync
        self._original: tuple[str, str] | None = None
        if not force and os.path.lexists(path):
            raise taken(name)
        if os.path.isdir(self._path):
            raise OutputIsFolderError(f"cannot write {name}: it is a folder")
        self._folder, base = os.path.split(self._path)
        if self._folder:
            _make_folder(name, self._folder)
        _remove_leftovers(self._folder, base)
        try:
            # Set the name first. If an interrupt comes before the descriptor is set, the file must be removed too.
            self._temporary = _temporary_path(self._folder, base)
            self.fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            while not _is_ours(self.fd, self._temporary):
                # Another process has removed the file, because it was not locked yet.
                os.close(self.fd)
                self.fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError) as error:
            raise write_error(name, error) from error

    def copy_of(self, address: str, version: str, size: int) -> None:
        self._original = os.path.realpath(local_path(address)), version
        self.written = size

    def _put(self, data: Data) -> None:
        assert self.fd is not None
        try:
            write_all(self.fd, data)
        except OSError as error:
            raise write_error(self.name, error) from error

    def _commit(self) -> None:
        try:
            self._close()
            if self._original is not None:
                self._link(*self._original)
            self._take_name()
            if self._fsync:
                _sync_folder(self._folder)
        except FileExistsError as error:
            raise taken(self.name) from error
        except OSError as error:
            raise write_error(self.name, error) from error

    def _close(self) -> None:
        """Close the file. Some file systems report a failed write only at this point."""
        if self.fd is not None:
            descriptor, self.fd = self.fd, None
            try:
                if self._fsync:
                    os.fsync(descriptor)
                self.version = local_version(os.fstat(descriptor))
            finally:
                os.close(descriptor)

    def _link(self, path: str, version: str) -> None:
        """Replace the temporary file by a hard link to the file of this version. Raises NotCopied."""
        try:
            os.unlink(self._temporary)
            os.link(path, self._temporary)
            status = os.stat(self._temporary)
        except OSError as error:
            raise NotCopied from error
        if version_of(status) != version:
            raise NotCopied
        self.version = local_version(status)

    def _take_name(self) -> None:
        if self._force:
            os.replace(self._temporary, self._path)
            # The rename did nothing if both names were already links to the same file.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            return
        try:
            os.link(self._temporary, self._path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # Without hard links (FAT, some network mounts), check and rename are two steps.
            if os.path.lexists(self._path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(self._temporary, self._path)
        else:
            os.unlink(self._temporary)

    def _discard(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)


TEMPORARY = r"(?s)\.(.+)\.[0-9a-f]{12}\.tmp"
"""The name of a temporary file. The group is the name of the final file, or its first characters if it is long."""
_LIST_AGAIN_SECONDS = 10.0
_FOLDERS = 64
_leftovers: dict[str, tuple[float, dict[str, list[str]]]] = {}
"""By folder: when it was listed, and its temporary files by the name of the final file."""


def _temporary_path(folder: str, name: str) -> str:
    return os.path.join(folder, f".{short_name(name)}.{os.urandom(6).hex()}.tmp")


def short_name(name: str) -> str:
    """Return the part of a file's name that the names of its temporary files have."""
    return name if len(os.fsencode(name)) <= _MAX_NAME_BYTES else name[: _MAX_NAME_BYTES // 4]


def _remove_leftovers(folder: str, name: str) -> None:
    """Remove the temporary files of a file that killed processes left. The folder is not listed for each of its files,
    because it may have 100,000 files."""
    now = time.monotonic()
    listed_at, temporaries = _leftovers.get(folder, (-inf, {}))
    if now - listed_at >= _LIST_AGAIN_SECONDS:
        temporaries = {}
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for match in filter(None, (re.fullmatch(TEMPORARY, entry.name) for entry in entries)):
                temporaries.setdefault(match[1], []).append(match[0])
        if len(_leftovers) >= _FOLDERS:
            _leftovers.clear()
        _leftovers[folder] = now, temporaries
    for temporary in temporaries.pop(short_name(name), ()):
        remove_if_abandoned(os.path.join(folder, temporary))


def _is_ours(descriptor: int, path: str) -> bool:
    """Lock a temporary file that was just created. Return whether it still exists. Return True if files cannot be
    locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return True
    return is_same_file(descriptor, path)


def is_same_file(descriptor: int, path: str) -> bool:
    """Return whether the open file is the file at ``path``."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(os.fstat(descriptor), status)


def remove_if_abandoned(path: str) -> bool | None:
    """Remove a temporary file if its writer no longer runs. Return whether it was removed, or None if unknown."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return True


def write_all(descriptor: int, data: Data) -> None:
    """Write all of ``data``, even if the kernel accepts only a part at a time."""
    done = os.write(descriptor, data)
    if done < len(data):
        view = memoryview(data)
        while done < len(data):
            done += os.write(descriptor, view[done:])


def will_need(ranges: Iterable[tuple[int | None, int, int]], *, are_scattered: bool = True) -> None:
    """Let the kernel read some ranges (descriptor or None, first byte, length) in advance. The device then has many
    requests at a time, and can choose among them. Without a descriptor, or if the system has no such call, do nothing.

    If the ranges are scattered, the kernel reads nothing behind the ranges of these files from now on. Otherwise, it
    may read some MiB more for each range.
    """
    random = set[int]()
    for descriptor, begin, length in ranges if hasattr(os, "posix_fadvise") else ():
        if descriptor is None:
            continue
        if are_scattered and descriptor not in random:
            random.add(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(descriptor, begin, length, os.POSIX_FADV_WILLNEED)


@cache
def most_descriptors() -> float:
    """Return the number of files that this process may have open."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft > 0 else inf


def may_open(held: int, most: int) -> bool:
    """Return whether a pool of open shards, which holds ``held`` and at most ``most``, may open another one. Otherwise
    the pool first closes one of its own. All pools of a process share its descriptors."""
    limit = most_descriptors()
    if held >= most:
        return False
    if limit <= _FEW_DESCRIPTORS:
        with contextlib.suppress(OSError):
            return len(os.listdir("/dev/fd")) + _SPARE_DESCRIPTORS <= limit
    low, high = _MOST_OPEN
    return len(_open_files) < max(low, min(high, limit / 4))


def is_cold(descriptor: int, offset: int) -> bool:
    """Return whether a read of one byte would have to wait for the device. Return False if the system cannot answer
    this without waiting."""
    if not (hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")):
        return False
    try:
        return os.preadv(descriptor, (bytearray(1),), offset, os.RWF_NOWAIT) == 0
    except BlockingIOError:
        return True
    except OSError:
        return False


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(name: str, error: OSError | ValueError) -> OutputError:
    """Return the error for a file that cannot be written, with a hint for a full disc."""
    hint = HINTS.get(getattr(error, "errno", None) or 0)
    return OutputError(f"cannot write {name}: {reason(error)}", cause=error, hint=hint)


def reason(error: OSError | ValueError) -> str:
    """Return the system's text for an error, without the number and the path in `str(error)`."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


def make_folders(path: str) -> list[str]:
    """Create a folder and its parents. Return the created folders, deepest first."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    return missing


def remove_empty(folders: Sequence[str]) -> None:
    """Remove folders in this order, until a folder is not empty."""
    for folder in dict.fromkeys(folders):
        try:
            os.rmdir(folder)
        except OSError:
            return
