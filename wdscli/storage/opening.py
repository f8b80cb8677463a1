"""From an address to an end: the one place that chooses who serves an address.

What it is: ``open_source``, ``open_sink`` and the small questions about one address (is it there, what does
it hold). How: by the address's kind, and for input by the first bytes, which tell a compressed shard whatever
its name. The rooms that cost something to import (commands, decompressors, fsspec) are imported when an
address asks for them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from wdscli.errors import InputError, InputNotFoundError, OutputError, OutputIsFolderError, UsageError
from wdscli.storage.addresses import (
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
)
from wdscli.storage.ends import DigestedSource, Sink, Source
from wdscli.storage.kinds import Entry, kind_of
from wdscli.storage.local import LocalSink, LocalSource, local_version, open_descriptor, reason, version_of

if TYPE_CHECKING:
    from concurrent.futures import Future

LOOK_BYTES = 512
"""One block: enough to tell a compressed stream from a tar."""
COMPRESSED_SUFFIX = re.compile(r"\.(gz|bz2|xz|zst|lz4|Z|tgz|tbz2?|txz|tzst)$")
_COMPRESSED_TAR = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4|Z)|tgz|tbz2?|txz|tzst)$")
MAX_READ_WHOLE_BYTES = 1 << 30
"""Of a stream, which may have no end."""
GONE = "gone"
"""For what is not there."""
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
    """The bytes at one address (see ``expand`` for what stands for several).

    With ``decompress`` a gzip, bzip2, xz, zstd or lz4 stream is read as what it holds; unless the file has a table of
    its blocks, it is then not seekable and its size is not known before its end. Who reads the ``whole`` of it says so:
    a remote source then begins with more than a look. ``digest`` is given all bytes as they lie there
    (:class:`~wdscli.storage.ends.DigestedSource`), if they can be read at any place. Raises InputError when it cannot
    be read.
    """
    kind = scheme(address)
    source: Source
    if kind in OPENERS:
        from wdscli.storage.streams import FileReader, StreamSource

        source = StreamSource(address, FileReader(address, OPENERS[kind]))
    elif kind == "file":
        source = _open_local(address)
    elif kind in (STREAM, "pipe"):
        from wdscli.storage.streams import CommandReader, DescriptorReader, StreamSource, refuse_terminal

        if kind == "pipe":
            source = StreamSource(address, CommandReader(address, _command(address)))
        else:
            refuse_terminal(address, 0, output=False)
            source = StreamSource(address, DescriptorReader(address, 0, owned=False))
    else:
        from wdscli.storage.ahead import REQUEST_BYTES
        from wdscli.storage.ranges import HEAD_BYTES, open_remote

        kept = _kept_here(address, is_stored=not decompress)
        source = kept or open_remote(address, REQUEST_BYTES if whole else HEAD_BYTES)
    if digest is not None and source.seekable:
        source = DigestedSource(source, digest)
    return _decompressed(source) if decompress else source


def opened_in_turn(
    addresses: Sequence[str],
    *,
    whole: bool = False,
    ahead: bool = True,
    open_one: Callable[[str, bool], Source] | None = None,
) -> Generator[Source, None, None]:
    """The bytes at one address after the other, as ``open_one(address, whole)`` gives them, which is usually
    :func:`open_source`; the caller closes each. With ``ahead``, which is for who will come to the end, of addresses on
    other machines the next is opened while one is read. Raises InputError in an address's turn."""

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
    """An address on another machine, opened by a thread; None for any other and for none."""
    if not addresses or is_stream(addresses[0]) or is_local(addresses[0]):
        return None
    return begun(lambda: opened(addresses[0]))


def begun(work: Callable[[], Answer]) -> Future[Answer]:
    """What ``work`` gives, by a thread of its own."""
    from contextvars import copy_context

    from wdscli.threads import DaemonPool

    return DaemonPool(1, "wdscli-work").submit(copy_context().run, work)


def _close_opened(answer: Future[Source]) -> None:
    if answer.exception() is None:
        answer.result().close()


def open_again(address: str, size: int, version: str) -> Source:
    """A plain shard that was open before and said that it is pinned: no request is made before its bytes are wanted,
    and no bytes of another version are read."""
    from wdscli.storage.ranges import open_remote

    return _kept_here(address, (size, version)) or open_remote(address, known=(size, version))


def _kept_here(
    address: str, version: tuple[int, str] | None = None, *, is_stored: bool = False
) -> Source | None:
    """The copy of a remote shard on this machine; None where it is read from its store. The stored bytes of a shard
    (``is_stored``) are never taken from a cache, because their reader checks what the store has."""
    from wdscli.storage.retry import network

    chosen = network()
    is_cached = chosen.cache_dir and not is_stored and scheme(address) != "memory"
    if not (chosen.held_dir or is_cached):
        return None
    from wdscli.storage.cache import open_cached, open_held

    held = open_held(address, chosen.held_dir, version) if chosen.held_dir else None
    return held or (open_cached(address, chosen, version) if is_cached else None)


def _open_local(address: str) -> Source:
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
        # The cheap look first: nearly every shard is plain, and the decoders' module is not needed then.
        if head[:2] not in _FIRST_TWO and head[1:4] != _SKIPPABLE:
            return source
        from wdscli.storage.compressed import decompressed

        found = decompressed(source, head)
        if source.size is not None and source.seekable > found.seekable:
            source.expect([(0, source.size)])
        return found
    except BaseException:
        source.close()
        raise


def open_sink(
    address: str, *, force: bool = False, fsync: bool = False, packed: bool = False, at_leisure: bool = False
) -> Sink:
    """A sink for one address. With ``packed`` the caller compresses as the name says.

    Raises OutputExistsError when something is there and ``force`` is not given, OutputError when it cannot be
    written, UsageError for ``-`` on a terminal and for a compressed tar's suffix. ``fsync`` also forces a
    local file to the device before it takes its name, and the folder after. With ``at_leisure`` a store is asked what
    is there while the first bytes come: what it says is raised before any byte is sent.
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
            raise UsageError("an output needs a name")
        if is_device(path):
            return _open_device(address, path)
        return LocalSink(address, path, force=force, fsync=fsync)
    from wdscli.storage.uploads import open_remote_sink

    return open_remote_sink(address, force=force, begin=begun if at_leisure else None)


def _refuse_compressed(address: str) -> None:
    """Plain bytes under a name that promises compressed ones would mislead who goes by names."""
    match = _COMPRESSED_TAR.search(address)
    if match:
        raise UsageError(
            f"cannot write {address}: that is a compressed shard's name, and what goes there is no shard",
            hint=f"leave the {match[0]} off",
        )


def _open_stdout(address: str) -> Sink:
    from wdscli.storage.streams import DescriptorSink, refuse_terminal

    refuse_terminal(address, 1, output=True)
    return DescriptorSink(address, 1, owned=False)


def _open_device(address: str, path: str) -> Sink:
    """/dev/null, a named pipe, ``>(...)``: written as it stands, there is no other name to write beside."""
    from wdscli.storage.streams import DescriptorSink, refuse_terminal

    if path in ("/dev/stdout", "/dev/fd/1"):
        return _open_stdout(address)
    try:
        # Opened anew, a file behind /dev/fd/3 would be written over from its start.
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
    """The number in /dev/fd/63, which is how a shell's ``>(...)`` arrives."""
    folder, _, number = path.rpartition("/")
    is_one = folder in ("/dev/fd", "/proc/self/fd") and number.isdecimal() and len(number) < 10
    return int(number) if is_one else None


def is_device(path: str) -> bool:
    """Whether ``path`` is there and no file or folder: /dev/null, a named pipe, a shell's ``>(...)``."""
    if path.startswith(_DESCRIPTOR_PATHS):
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_place(address: str) -> None:
    """Raise OutputError for an address at which nothing can be written because its bucket is not there, or because it
    is a folder on this machine. Says nothing of other obstacles, which the first write meets."""
    if is_stream(address):
        return
    if not is_local(address):
        from wdscli.storage.uploads import check_container

        check_container(address)
    elif os.path.isdir(local_path(address)):
        hint = f"{address}/%06d.tar names shards in it"
        raise OutputIsFolderError(f"cannot write {address}: it is a folder", hint=hint)


def has_temporaries(folder: str) -> bool:
    """Whether what is written to a folder has a temporary name at first: on this machine, and in stores where an object
    does not appear whole."""
    if is_local(folder):
        return True
    from wdscli.storage.uploads import appears_whole

    return not appears_whole(folder)


def abort_uploads(folder: str, is_own: Callable[[str], bool]) -> None:
    """Abort what killed processes have begun to write in a folder of a store, or below, and not ended. ``is_own`` is
    asked of addresses."""
    if not (is_stream(folder) or is_local(folder)):
        from wdscli.storage import uploads

        uploads.abort_uploads(folder, is_own)


def exists(address: str) -> bool:
    """Whether something is at ``address``. Raises InputError when that cannot be told."""
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


def sizes_here(addresses: Sequence[str]) -> list[int] | None:
    """The bytes of each file, if all are plain files of this machine or in folders that were listed; None if this takes
    requests."""
    sizes = [size for size in map(size_hint, addresses) if size is not None]
    return sizes if len(sizes) == len(addresses) else None


def size_hint(address: str) -> int | None:
    """About how many bytes an address has, as far as that is known without a request or an open file."""
    if is_stream(address):
        return None
    if is_local(address):
        try:
            status = os.stat(local_path(address))
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    from wdscli.storage.remote import found_listed

    found = found_listed(address)
    return None if found is None else found.size


def is_one_request(address: str, size: int | None = None) -> bool:
    """Whether all of a remote shard comes by one request, which costs less than one for its first bytes and another:
    where its ``size`` is known, if only by a listing."""
    if is_stream(address) or is_local(address):
        return False
    from wdscli.storage.ahead import REQUEST_BYTES

    found = size_hint(address) if size is None else size
    return found is not None and found <= REQUEST_BYTES


def version_listed(address: str) -> tuple[int, str] | None:
    """Size and version of an object, as the last listing of its folder has them, for :func:`open_again`; None where a
    read cannot be held to them, and where copies are kept."""
    from wdscli.storage.remote import found_listed

    return _version_by(found_listed, address)


def _version_by(find: Callable[[str], Entry | None], address: str) -> tuple[int, str] | None:
    from wdscli.storage.retry import network

    found = find(address) if keeps_notes(address) and not network().cache_dir else None
    return (found.size, found.version) if found and found.size and found.etag else None


def is_pinnable(address: str) -> bool:
    """Whether :func:`open_again` takes an address: a shard of S3 that is plain by its name, where no copies are
    kept."""
    from wdscli.storage.retry import network

    chosen = network()
    return (
        keeps_notes(address)
        and not (chosen.cache_dir or chosen.held_dir)
        and COMPRESSED_SUFFIX.search(address) is None
    )


def keeps_notes(address: str) -> bool:
    """Whether a store holds reads to a version that its listings tell, and keeps a note with an object."""
    return kind_of(address).is_s3


def version_now(address: str) -> tuple[int, str] | None:
    """:func:`version_listed` of an object that was not listed, by one request (HEAD); None too where it fails: the
    first read says why."""
    from wdscli.storage.remote import found_now

    return _version_by(found_now, address)


def versions_at(addresses: Sequence[str]) -> Iterator[str]:
    """Which of several files that had one name stands at each address now, as a sink tells of what it has committed: a
    file of this machine is its inode and its size, an object its ETag, :data:`GONE` is nothing, and empty is where
    nobody can tell. Different texts mean that something else may stand there, not that it must: who hears of one looks
    at the bytes."""
    return at_once(_version_at, addresses)


def at_once(function: Callable[[str], Answer], addresses: Sequence[str]) -> Iterator[Answer]:
    """``function`` of each address; where most of the time is waiting for answers, of several at a time."""
    if all(map(is_local, addresses)):
        yield from map(function, addresses)
        return
    from contextvars import copy_context

    from wdscli.threads import DaemonPool

    # Threads begin without what holds here: relative paths, the options of the network.
    around = [copy_context() for _ in addresses]
    with DaemonPool(REQUESTS_AT_ONCE, "wdscli-requests") as threads:
        yield from threads.map(lambda context, address: context.run(function, address), around, addresses)


def do_at_once(address: str, works: Sequence[Callable[[], None]]) -> None:
    """Do what concerns one address: for one of another machine at the same time. Raises the error of the first that has
    one, when all have ended."""
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
    except Exception:  # backends raise what they like, and a question that fails says nothing
        return ""


def remove(address: str) -> None:
    """Remove one file; one that is not there is no error. Raises OutputError."""
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
    """All bytes at ``address`` as they are, compressed or not; for small files. Raises InputError."""
    return read_noted(address)[0]


def read_noted(address: str) -> tuple[bytes, str]:
    """:func:`read_all`, and what was noted beside the bytes when they were written."""
    with open_source(address, decompress=False, whole=True) as source:
        if source.size is not None:
            return source.read_at(0, source.size), source.note
        parts, have = [], 0
        for data in source.pieces():
            parts.append(data)
            have += len(data)
            if have > MAX_READ_WHOLE_BYTES:
                raise InputError(
                    f"cannot read {address} whole: it has more than {MAX_READ_WHOLE_BYTES >> 20} MiB",
                    hint="a list, a manifest or a table of that size is read from a file",
                )
        return b"".join(parts), ""


def list_folder(address: str, keep: Callable[[str], bool] = bool) -> list[str]:
    """The names (not addresses) of what lies in a folder, in bytewise order; of a large one only what ``keep`` is true
    of is held. Raises InputError.

    ``address`` is the folder's, with or without its last slash; an empty one is the current folder.
    """
    if is_stream(address):
        raise UsageError(f"{address} is no folder")
    if not is_local(address):
        from wdscli.storage.remote import entries_in

        return sorted(filter(keep, entries_in(address)))
    try:
        with os.scandir(local_path(address) or ".") as entries:
            return sorted((entry.name for entry in entries if keep(entry.name)), key=os.fsencode)
    except OSError as error:
        raise InputError(f"cannot list {address}: {reason(error)}", cause=error) from error


def folder_of(address: str) -> str:
    """The folder of a file's address, with its last slash; empty for a bare name."""
    return split_folder(address)[0]
