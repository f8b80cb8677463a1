"""This module opens an address as a Source or a Sink.

It has ``open_source``, ``open_sink``, and functions that answer small questions about an address: whether it exists,
and which names a folder has. The kind of the address decides the class. The first bytes of an input, not its name, show
whether it is compressed. Modules that are slow to import (commands, decompressors, fsspec) are imported when an address
needs them.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from wdscli.errors import InputError, InputNotFoundError, OutputError, OutputIsFolderError, UsageError
from wdscli.storage.addresses import (
    HELD,
    OPENERS,
    PIPE,
    STREAM,
    check_pipe,
    is_local,
    is_stream,
    is_web,
    local_path,
    scheme,
    split_folder,
    view_of,
)
from wdscli.storage.ends import DigestedSource, Sink, Source
from wdscli.storage.kinds import Entry, kind_of
from wdscli.storage.local import (
    HeldSource,
    LocalSink,
    LocalSource,
    local_version,
    open_descriptor,
    reason,
    version_of,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

LOOK_BYTES = 512
"""One block, which is enough to distinguish a compressed stream from a tar."""
_COMPRESSED = r"\.(gz|bz2|xz|zst|lz4|Z|tgz|tbz2?|txz|tzst)$"
_COMPRESSED_TAR = r"\.(tar\.(gz|bz2|xz|zst|lz4|Z)|tgz|tbz2?|txz|tzst)$"
MAX_READ_WHOLE_BYTES = 1 << 30
"""The most bytes that are read from a stream, because it may have no end."""
GONE = "gone"
"""The version of a missing file."""
Answer = TypeVar("Answer")

REQUESTS_AT_ONCE = 16
_FIRST_TWO = (b"\x1f\x8b", b"\x1f\x9d", b"BZ", b"\xfd7", b"\x28\xb5", b"\x04\x22")
_SKIPPABLE = b"\x2a\x4d\x18"
_DESCRIPTOR_PATHS = ("/dev/stdout", "/dev/fd/", "/proc/self/fd/")


def open_source(
    address: str,
    *,
    decompress: bool = True,
    whole: bool = False,
    digest: Callable[[bytes], None] | None = None,
) -> Source:
    """Open the bytes at one address. (``expand`` returns the addresses that a text names.)

    With ``decompress``, the contents of a gzip, bzip2, xz, zstd or lz4 file are read. If the file has no table of
    blocks, the source is not seekable, and its size is unknown until the end. ``whole`` says that the caller will read
    all bytes; a remote source then begins with a large request. If the source is seekable, ``digest`` is called with
    all stored bytes (:class:`~wdscli.storage.ends.DigestedSource`). Raises InputError if the address cannot be read.
    """
    kind = scheme(address)
    source: Source
    if view_of(address) is not None:
        return _with_digest(VIEWS[-1]().open_view_shard(address), digest)
    if kind in OPENERS:
        from wdscli.storage.streams import FileReader, StreamSource

        source = StreamSource(address, FileReader(address, OPENERS[kind]))
    elif kind == "file":
        source = _open_local(address)
    elif kind in (STREAM, "pipe"):
        source = _open_stream(address, is_command=kind == "pipe")
    else:
        from wdscli.storage.ranges import HEAD_BYTES, open_remote
        from wdscli.storage.scatter import REQUEST_BYTES

        kept = _kept_here(address, is_stored=not decompress)
        source = kept or open_remote(address, REQUEST_BYTES if whole else HEAD_BYTES)
    source = _with_digest(source, digest)
    return _decompressed(source) if decompress else source


def _open_stream(address: str, *, is_command: bool) -> Source:
    """Open standard input, or the output of a command. Raises InputError for a terminal."""
    from wdscli.storage.streams import CommandReader, DescriptorReader, StreamSource, refuse_terminal

    if is_command:
        return StreamSource(address, CommandReader(address, _command(address)))
    refuse_terminal(address, 0, output=False)
    return StreamSource(address, DescriptorReader(address, 0, owned=False))


def _with_digest(source: Source, digest: Callable[[bytes], None] | None) -> Source:
    return source if digest is None or not source.seekable else DigestedSource(source, digest)


def _no_views() -> NoReturn:
    raise InputError("cannot read the shard of a view", hint="import wdscli.shards first")


VIEWS: list[Callable[[], Any]] = [_no_views]
"""The last entry imports the module that opens the shards of views: ``open_view_shard`` and ``size_of``.
:mod:`wdscli.shards` sets it, because that module reads the manifests and indexes of views."""


def open_in_turn(
    addresses: Sequence[str],
    *,
    whole: bool = False,
    ahead: bool = True,
    open_one: Callable[[str, bool], Source] | None = None,
) -> Generator[Source, None, None]:
    """Yield the sources of several addresses, one after the other. ``open_one(address, whole)`` opens each (default:
    :func:`open_source`), and the caller closes each. With ``ahead``, the next remote address is opened while the
    current source is read; the caller should then read all sources. InputError for an address is raised when its source
    would be yielded."""

    def opened(address: str) -> Source:
        at_once = whole or (ahead and is_one_request(address))
        return open_source(address, whole=at_once) if open_one is None else open_one(address, at_once)

    following: Future[Source] | None = None
    try:
        for number, address in enumerate(addresses):
            source = opened(address) if following is None else following.result()
            following = _open_soon(opened, addresses[number + 1 : number + 2]) if ahead else None
            yield source
    finally:
        if following is not None:
            following.add_done_callback(_close_opened)


def _open_soon(opened: Callable[[str], Source], addresses: Sequence[str]) -> Future[Source] | None:
    """Open a remote address in a thread. Return None for a local address, and for None."""
    if not addresses or is_stream(addresses[0]) or is_local(addresses[0]):
        return None
    return begun(lambda: opened(addresses[0]))


def begun(work: Callable[[], Answer]) -> Future[Answer]:
    """Start ``work`` in a new thread, and return its future, which cannot be cancelled."""
    from concurrent.futures import Future
    from threading import Thread

    answer: Future[Answer] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    # Do not use a pool, because the exit of the process would wait for its threads, or the work could be cancelled
    # before it begins.
    Thread(target=copy_context().run, args=(run,), name="wdscli-work", daemon=True).start()
    return answer


def _close_opened(answer: Future[Source]) -> None:
    if answer.exception() is None:
        answer.result().close()


def open_pinned(address: str, size: int, version: str) -> Source:
    """Open an uncompressed shard with a known version. No request is made until its bytes are read. Only bytes of this
    version are read."""
    from wdscli.storage.ranges import open_remote

    return _kept_here(address, (size, version)) or open_remote(address, version=(size, version))


def _kept_here(
    address: str, version: tuple[int, str] | None = None, *, is_stored: bool = False
) -> Source | None:
    """Open the copy of a remote shard on this machine. Return None if the shard must be read from its store.
    ``is_stored`` means that the caller reads the stored bytes to check the store, so they never come from the cache."""
    from wdscli.storage.retry import network

    chosen = network()
    is_cached = chosen.cache_dir and not is_stored and scheme(address) != "memory"
    if not (chosen.held_dir or is_cached):
        return None
    from wdscli.storage.cache import open_cached, open_held

    held = open_held(address, chosen.held_dir, version) if chosen.held_dir else None
    return held or (open_cached(address, chosen, version) if is_cached else None)


def _open_local(address: str) -> Source:
    if (held := HELD.get(address)) is not None:
        return HeldSource(address, held.data)
    descriptor, status = open_descriptor(address, local_path(address))
    if stat.S_ISREG(status.st_mode):
        source = LocalSource(address, descriptor, status.st_size)
        source.version = version_of(status)
        return source
    from wdscli.storage.streams import DescriptorReader, StreamSource

    return StreamSource(address, DescriptorReader(address, descriptor, owned=True))


def _command(address: str) -> str:
    check_pipe(address)
    command = address[len(PIPE) :].strip()
    if not command:
        raise UsageError("pipe: needs a command", hint="pipe:CMD, for example 'pipe:curl -sf URL'")
    return command


def _decompressed(source: Source) -> Source:
    try:
        head = source.peek(LOOK_BYTES)
        # Do the fast check first. Nearly every shard is uncompressed, and does not need the module with the decoders.
        if head[:2] not in _FIRST_TWO and head[1:4] != _SKIPPABLE:
            return source
        from wdscli.storage.compressed import decompressed

        expanded = decompressed(source, head)
        if source.size is not None and source.seekable > expanded.seekable:
            source.expect([(0, source.size)])
        return expanded
    except BaseException:
        source.close()
        raise


def open_sink(
    address: str, *, force: bool = False, fsync: bool = False, packed: bool = False, at_leisure: bool = False
) -> Sink:
    """Open a sink for one address. With ``packed``, the caller compresses the bytes in the format of the name.

    ``fsync`` forces a local file to the device before it gets its name, and the folder after that. With ``at_leisure``,
    the check for an existing object runs in the background, and its error is raised before any byte is sent. Raises
    OutputExistsError if the output exists and ``force`` is false, and OutputError if it cannot be written. Raises
    UsageError for ``-`` on a terminal, and for the suffix of a compressed tar.
    """
    kind = scheme(address)
    if kind == STREAM:
        return _open_stdout(address)
    if kind == "pipe":
        from wdscli.storage.streams import CommandSink

        return CommandSink(address, _command(address))
    if not packed:
        _refuse_compressed(address)
    if kind == "file":
        path = local_path(address)
        if not path:
            raise UsageError("an output needs a name", hint="out-%06d.tar, out.tar, - or pipe:CMD")
        if is_device(address):
            return _open_device(address, path)
        return LocalSink(address, path, force=force, fsync=fsync)
    from wdscli.storage.uploads import open_remote_sink

    return open_remote_sink(address, force=force, begin=begun if at_leisure else None)


def _refuse_compressed(address: str) -> None:
    """Refuse to write uncompressed bytes under the name of a compressed file."""
    match = re.search(_COMPRESSED_TAR, address)
    if match:
        raise UsageError(
            f"cannot write {address}: the suffix means compression, but the output is not a shard",
            hint=f"leave out {match[0]}",
        )


def _open_stdout(address: str) -> Sink:
    from wdscli.storage.streams import DescriptorSink, refuse_terminal

    refuse_terminal(address, 1, output=True)
    return DescriptorSink(address, 1, owned=False)


def _open_device(address: str, path: str) -> Sink:
    """Open /dev/null, a named pipe or ``>(...)``. Bytes are written directly, without a temporary file."""
    from wdscli.storage.streams import DescriptorSink, refuse_terminal

    if path in ("/dev/stdout", "/dev/fd/1"):
        return _open_stdout(address)
    try:
        # If /dev/fd/3 were opened again, its file would be overwritten from the start.
        own = _own_descriptor(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if own is None else os.dup(own)
    except OSError as error:
        raise OutputError(f"cannot write {address}: {reason(error)}", cause=error) from error
    try:
        refuse_terminal(address, descriptor, output=True)
    except UsageError:
        os.close(descriptor)
        raise
    return DescriptorSink(address, descriptor, owned=True)


def _own_descriptor(path: str) -> int | None:
    """Return the number in a path such as /dev/fd/63. A shell's ``>(...)`` has this form."""
    folder, _, number = path.rpartition("/")
    is_one = folder in ("/dev/fd", "/proc/self/fd") and number.isdecimal() and len(number) < 10
    return int(number) if is_one else None


def is_device(address: str) -> bool:
    """Return whether an address is a local path that exists and is neither file nor folder: /dev/null, a named pipe, a
    shell's ``>(...)``."""
    if not is_local(address):
        return False
    path = local_path(address)
    if path.startswith(_DESCRIPTOR_PATHS):
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def refuse_device(address: str) -> None:
    """Raise InputError for a named pipe or a device where a file is needed, because its reader might wait forever."""
    if is_device(address):
        raise InputError(f"cannot read {address}: it is a pipe or a device, not a file")


def check_place(address: str) -> None:
    """Raise OutputError if an address cannot be written, because its bucket does not exist or because it is a local
    folder. The first write finds other problems."""
    if is_stream(address):
        return
    if not is_local(address):
        from wdscli.storage.uploads import check_container

        check_container(address)
    elif os.path.isdir(local_path(address)):
        hint = f"{address}/%06d.tar names shards in it"
        raise OutputIsFolderError(f"cannot write {address}: it is a folder", hint=hint)


def has_temporaries(folder: str) -> bool:
    """Return whether files in a folder are first written under temporary names. This is so on this machine, and in
    stores whose objects do not appear atomically."""
    return is_local(folder) or kind_of(folder).writes not in ("parts", "upload")


def abort_uploads(folder: str, is_own: Callable[[str], bool]) -> None:
    """Abort the unfinished uploads of killed processes in or below a folder of a store. ``is_own`` says whether an
    address belongs to the caller."""
    if not (is_stream(folder) or is_local(folder)):
        from wdscli.storage import uploads

        uploads.abort_uploads(folder, is_own)


def exists(address: str) -> bool:
    """Return whether a file or folder exists at ``address``. Raises InputError if this cannot be found out."""
    if is_stream(address):
        return False
    if is_local(address):
        return os.path.exists(local_path(address))
    if is_web(address):
        try:
            open_source(address, decompress=False).close()
        except InputNotFoundError:
            return False
        return True
    from wdscli.storage.remote import remote_exists

    return remote_exists(address)


def known_sizes(addresses: Sequence[str]) -> list[int] | None:
    """Return the size of each file in bytes, if all are local files or in folders that were listed. Return None if
    requests would be needed."""
    sizes = [size for size in map(size_hint, addresses) if size is not None]
    return sizes if len(sizes) == len(addresses) else None


def size_hint(address: str) -> int | None:
    """Return the approximate size of an address in bytes, if it is known without a request and without opening a
    file."""
    if is_stream(address):
        return None
    if view_of(address) is not None:
        view_bytes: int | None = VIEWS[-1]().size_of(address)
        return view_bytes
    if is_local(address):
        try:
            status = os.stat(local_path(address))
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    from wdscli.storage.remote import found_listed

    entry = found_listed(address)
    return None if entry is None else entry.size


def is_one_request(address: str, size: int | None = None) -> bool:
    """Return whether one request should read a whole remote shard, because that is faster than a read of its beginning
    and a second request. The ``size`` must be known, for example from a listing."""
    if is_stream(address) or is_local(address):
        return False
    from wdscli.storage.scatter import REQUEST_BYTES

    size_bytes = size_hint(address) if size is None else size
    return size_bytes is not None and size_bytes <= REQUEST_BYTES


def listed_version(address: str) -> tuple[int, str] | None:
    """Return size and version of an object from the last listing of its folder, for :func:`open_pinned`. Return None if
    a read cannot require a version, and if shards are cached."""
    from wdscli.storage.remote import found_listed

    return _version_by(found_listed, address)


def _version_by(find: Callable[[str], Entry | None], address: str) -> tuple[int, str] | None:
    from wdscli.storage.retry import network

    entry = find(address) if has_notes(address) and not network().cache_dir else None
    return (entry.size, entry.version) if entry and entry.size and entry.etag else None


def compression_of(name: str) -> str:
    """Return the suffix of the name of a compressed file, or an empty text.

    >>> compression_of("a.tar.zst"), compression_of("a.tgz"), compression_of("a.tar")
    ('.zst', '.tgz', '')
    """
    match = re.search(_COMPRESSED, name)
    return match[0] if match else ""


def is_pinnable(address: str) -> bool:
    """Return whether :func:`open_pinned` can open an address. It must be a shard on S3 with the name of an uncompressed
    tar, and shards must not be cached."""
    from wdscli.storage.retry import network

    chosen = network()
    return has_notes(address) and not (chosen.cache_dir or chosen.held_dir) and not compression_of(address)


def has_notes(address: str) -> bool:
    """Return whether a store's listings have versions that a read can require, and whether it can store a note with an
    object."""
    return kind_of(address).is_s3


def current_version(address: str) -> tuple[int, str] | None:
    """Return the same as :func:`listed_version` for an object that was not listed, by one request (HEAD). Also return
    None if the request fails; the first read then raises the error."""
    from wdscli.storage.remote import remote_look

    with suppress(Exception):  # clients raise errors of any class
        return _version_by(partial(remote_look, fresh=False), address)
    return None


def current_versions(addresses: Sequence[str]) -> Iterator[str]:
    """Return the current version of each address, in the form of :attr:`Sink.version` after a commit. It is inode and
    size of a local file, the ETag of an object, :data:`GONE`, or empty if unknown. If two versions differ, the bytes
    may differ, and the caller compares them."""
    return at_once(_version_at, addresses)


def at_once(
    function: Callable[[Any], Answer], addresses: Sequence[str], items: Sequence[Any] | None = None
) -> Iterator[Answer]:
    """Call ``function`` with each address, or with the item of each address. For remote addresses, several calls run at
    the same time."""
    items = addresses if items is None else items
    if all(map(is_local, addresses)):
        yield from map(function, items)
        return
    from wdscli.threads import DaemonPool

    # Pass on the folder of relative paths and the network options, because threads do not inherit them.
    around = [copy_context() for _ in addresses]
    with DaemonPool(REQUESTS_AT_ONCE, "wdscli-requests") as threads:
        yield from threads.map(lambda context, argument: context.run(function, argument), around, items)


def do_together(address: str, works: Sequence[Callable[[], None]]) -> None:
    """Call several functions for one address. If it is remote, they run at the same time. After all calls have ended,
    raise the first error."""
    if is_local(address):
        for work in works:
            work()
        return
    from concurrent.futures import wait

    answers = list(map(begun, works))
    wait(answers)
    for answer in answers:
        answer.result()


def _version_at(address: str) -> str:
    try:
        if is_local(address):
            return local_version(os.stat(local_path(address)))
        from wdscli.storage.remote import etag_version, remote_look

        return etag_version(remote_look(address).etag)
    except FileNotFoundError:
        return GONE
    except Exception:  # backends raise errors of any class; a failed request means that the answer is unknown
        return ""


def remove(address: str) -> None:
    """Remove one file, if it exists. Raises OutputError."""
    if is_stream(address):
        raise UsageError(f"{address} cannot be removed")
    if is_local(address):
        try:
            os.unlink(local_path(address))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise OutputError(f"cannot remove {address}: {reason(error)}", cause=error) from error
        return
    from wdscli.storage.remote import remove_remote

    remove_remote(address)


def read_all(address: str) -> bytes:
    """Return all stored bytes at ``address``, for small files that a user names. Raises InputError."""
    with open_source(address, decompress=False, whole=True) as source:
        return _all_bytes(source, math.inf if is_local(address) else MAX_READ_WHOLE_BYTES)


def read_noted(address: str) -> tuple[bytes, str]:
    """Return all bytes of a manifest or an index, and the note stored with the bytes. Raises InputError."""
    refuse_device(address)
    with open_source(address, decompress=False, whole=True) as source:
        return _all_bytes(source, MAX_READ_WHOLE_BYTES), source.note


def _all_bytes(source: Source, size_limit: float) -> bytes:
    if source.size is None:  # a stream may have no end
        data = source.read_at(0, MAX_READ_WHOLE_BYTES + 1)
        is_too_long = len(data) > MAX_READ_WHOLE_BYTES
    else:
        is_too_long = source.size > size_limit
        data = b"" if is_too_long else source.read_at(0, source.size)
    if is_too_long:
        raise InputError(
            f"cannot read all of {source.name}: it has more than {MAX_READ_WHOLE_BYTES >> 20} MiB",
            hint="copy a list or table of this size to a local file",
        )
    return data


def list_folder(address: str, keep: Callable[[str], bool] = bool) -> list[str]:
    """Return the names (not addresses) in a folder for which ``keep`` returns true, in bytewise order. Raises
    InputError.

    ``address`` is the folder's address, with or without its last slash. An empty address is the current folder.
    """
    if is_stream(address):
        raise UsageError(f"{address} is not a folder")
    if not is_local(address):
        from wdscli.storage.remote import entries_in

        return sorted(filter(keep, entries_in(address)))
    try:
        with os.scandir(local_path(address) or ".") as entries:
            return sorted((entry.name for entry in entries if keep(entry.name)), key=os.fsencode)
    except OSError as error:
        raise InputError(f"cannot list {address}: {reason(error)}", cause=error) from error


def folder_of(address: str) -> str:
    """Return the folder of a file's address, with its last slash. It is empty for a name without folder."""
    return split_folder(address)[0]
