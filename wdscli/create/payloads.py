"""Payloads that are in no file of their own: values of a list or table, and what commands print.

What it is: :class:`Payloads`, which keeps small payloads in memory up to a limit and puts the rest into one
temporary file, so that memory does not grow with a table, and tasks in other processes can read it. How: the
file is made when it is first needed and removed when this is closed. It must not know what payloads
mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import IO, NamedTuple, TypeVar

from wdscli.create.files import Inline, Place, Remote, Stored
from wdscli.create.walk import Outputs
from wdscli.errors import InputError, InputNotFoundError, OutputError, WdsError
from wdscli.model import to_text
from wdscli.selection.choice import OnError

Row = TypeVar("Row")
_ROWS_AHEAD = 64
_SMALL_BYTES = 256
_MAX_IN_MEMORY_BYTES = 1 << 24
_PIECE_BYTES = 1 << 20
_HINT = "set TMPDIR to a folder with room"


class Named(NamedTuple):
    """An address, that of the list or table that names it, and whether a cell of a table does."""

    address: str
    where: str
    is_cell: bool = False

    def resolved(self, trusted: bool) -> str:
        """The address from the current folder. Raises InputError for one that the list or table may not name."""
        from wdscli.storage.addresses import listed_address

        return listed_address(self.where, self.address, trusted=trusted, is_cell=self.is_cell)


class Unread(NamedTuple):
    """A source that could not be read, and the member that it was to be; a folder has neither key nor field."""

    key: str
    field: str
    source: str
    reason: str


class Payloads:
    """Use it as a context manager around planning and writing.

    ``on_error="skip"`` goes on after a source that cannot be read, as ``incomplete`` other than ``error`` does after
    one that is not there: the member is left out, and ``unread`` tells of it. With ``incomplete="skip"`` its sample is
    to be left out too: ``lacking`` has the keys.
    """

    outputs: Outputs | None = None
    """What is about to be written, and cannot be a payload."""

    def __init__(
        self, trust_addresses: bool = False, *, on_error: OnError = "stop", incomplete: str = "error"
    ) -> None:
        self.unread: list[Unread] = []
        self.lacking: set[bytes] = set()
        self._trusts = trust_addresses
        self._on_error = on_error
        self._incomplete = incomplete
        from xxhash import xxh3_128

        self._digest = xxh3_128()
        self._in_memory = 0
        self._known: dict[str, int | InputError | None] = {}
        """The sizes of what lies on other machines, or why nobody tells; None for what has none."""
        self._scratch: IO[bytes] | None = None
        self._end = 0

    def keep(self, payload: bytes) -> Place:
        """A place for these bytes."""
        self._digest.update(b"%d:" % len(payload))
        self._digest.update(payload)
        if len(payload) <= _SMALL_BYTES and self._in_memory < _MAX_IN_MEMORY_BYTES:
            self._in_memory += len(payload) + 64
            return Inline(payload)
        file, place = self._file(), self._end
        self._append(file, payload)
        return Stored(file.name, place)

    @property
    def digest(self) -> str:
        """A digest of all payloads that were kept, which have no times that tell whether they have changed."""
        return self._digest.hexdigest()

    def of_member(self, key: bytes, field: bytes, named: Named) -> tuple[int, Place] | None:
        """What :func:`fetch` gives for one member; None for one that is left out. Raises InputError."""
        try:
            return self.fetch(named)
        except InputError as error:
            self.lose(key, field, named.address, error)
        return None

    def lose(self, key: bytes, field: bytes, source: str, error: InputError) -> None:
        """Go on without a source that cannot be read; raise the error where the options do not say so."""
        is_absent = isinstance(error, InputNotFoundError) and self._incomplete != "error"
        if not (is_absent or self._on_error == "skip"):
            error.hint = error.hint or "--on-error skip leaves it out"
            raise error
        self.unread.append(Unread(to_text(key), to_text(field), source, error.message))
        if key and self._incomplete == "skip":
            self.lacking.add(key)

    def ahead(self, rows: Iterable[Row], named: Callable[[Row], Iterable[Named]]) -> Iterator[Row]:
        """The same rows, some at a time: what they name on other machines is asked for its size several at a time,
        before :meth:`fetch` is. What is wrong with an address is said there."""
        coming, failure = iter(rows), None
        while failure is None:
            some: list[Row] = []
            try:
                for row in islice(coming, _ROWS_AHEAD):
                    some.append(row)
            except WdsError as error:
                failure = error
            if not some and failure is None:
                return
            self._ask(dict.fromkeys(one for row in some for one in named(row)))
            yield from some
        raise failure

    def _ask(self, addresses: Iterable[Named]) -> None:
        from wdscli.storage import is_local, is_stream
        from wdscli.storage.opening import at_once

        far = []
        for one in addresses:
            with suppress(WdsError):
                found = one.resolved(self._trusts)
                if not (is_stream(found) or is_local(found)):
                    far.append(found)
        self._known = dict(zip(far, at_once(_size_at, far))) if len(far) > 1 else {}

    def fetch(self, named: Named) -> tuple[int, Place]:
        """Bytes and place of what lies at an address that a list or table names. A stream and a command's output are
        read here, once, because only their end tells how long they are. Raises InputError."""
        if named.address == "-":
            raise InputError("standard input cannot be a payload", hint="name a file, or pipe:CMD")
        from wdscli.storage import is_local, local_path, open_source

        address = named.resolved(self._trusts)
        if self.outputs is not None and is_local(address):
            self.outputs.refuse(os.fsencode(local_path(address)))
        known = self._known.pop(address, None)
        if isinstance(known, InputError):
            raise known
        if known is not None:
            return known, Remote(address)
        with open_source(address, decompress=False) as source:
            if source.size is not None and source.seekable:
                place = os.fsencode(address.removeprefix("file://")) if is_local(address) else Remote(address)
                return source.size, place
            file, begin = self._file(), self._end
            while data := source.read_some(self._end - begin, _PIECE_BYTES):
                self._digest.update(data)
                self._append(file, data)
            return self._end - begin, Stored(file.name, begin)

    def _file(self) -> IO[bytes]:
        if self._scratch is None:
            from tempfile import NamedTemporaryFile

            try:
                self._scratch = NamedTemporaryFile(prefix="wdscli-", buffering=0)  # noqa: SIM115 - see __exit__
            except OSError as error:
                raise OutputError(f"cannot make a temporary file: {error}", hint=_HINT) from None
        return self._scratch

    def _append(self, file: IO[bytes], data: bytes) -> None:
        from wdscli.storage.local import write_all

        try:
            write_all(file.fileno(), data)
        except OSError as error:
            raise OutputError(f"cannot write {file.name}: {error}", hint=_HINT) from None
        self._end += len(data)

    def __enter__(self) -> Payloads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def _size_at(address: str) -> int | InputError | None:
    """The bytes of what lies at an address; None where only its end tells."""
    from wdscli.storage import open_source

    try:
        with open_source(address, decompress=False) as source:
            return source.size if source.seekable else None
    except InputError as error:
        return error
