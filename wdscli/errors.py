"""This module has every error that wdscli raises on purpose, with its exit code.

    WdsError
    ├── UsageError           2   the call itself is wrong
    ├── DataError            3   a shard's bytes are wrong: carries shard, byte offset, member and a finding code;
    │                            a ValueError too
    ├── StorageError         4   bytes cannot be read or written; an OSError too, with the errno of the system
    │   ├── InputError           an input cannot be read
    │   │   ├── InputNotFoundError      a FileNotFoundError too
    │   │   ├── InputPermissionError    a PermissionError too
    │   │   └── InputIsFolderError      an IsADirectoryError too
    │   └── OutputError          an output cannot be written
    │       ├── OutputPermissionError   a PermissionError too
    │       ├── OutputIsFolderError     an IsADirectoryError too
    │       └── OutputExistsError       it already exists; a FileExistsError too
    └── EngineError          5   a task, or the engine that runs it, failed

For bad input, the library raises only these errors. Only ``wdscli.cli.main`` turns an error into text and an exit code.
Training code that catches OSError and ValueError also catches these errors. So if code in wdscli catches OSError or
ValueError around its own functions, it must first re-raise a WdsError. All errors can be pickled, because tasks in
other processes raise them too."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from wdscli.shown import shown

_SHOWN = ("message", "hint", "shard")


class WdsError(Exception):
    """The base class of all errors that wdscli raises on purpose.

    ``message`` is one line that says what is wrong and where. ``hint`` (optional) names the command or option that
    helps. ``str(error)`` is the message without the hint; from Python 3.11 on, a traceback ends with message and hint.
    Both redact secrets in addresses (:func:`wdscli.shown.shown`).
    """

    exit_code: ClassVar[int] = 1
    details: tuple[str, ...] = ()
    """Further lines below the message, such as one for each bad row of a table."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(self.message)
        if hint is not None:
            self.__notes__ = [f"hint: {self.hint}"]

    def __setattr__(self, name: str, value: Any) -> None:
        # Redacted when set, so that no later use can show a secret.
        super().__setattr__(name, shown(value) if isinstance(value, str) and name in _SHOWN else value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(kind: type[WdsError], state: dict[str, Any]) -> WdsError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message", ""))
    for name, value in state.items():
        setattr(error, name, value)
    return error


class UsageError(WdsError):
    """An invalid option, address or expression."""

    exit_code = 2


class DataError(WdsError, ValueError):
    """Invalid bytes in a shard.

    ``code`` is a finding code of ``wds verify`` (``truncated``, ``bad-checksum``, ...). ``shard`` is the redacted
    address of the shard, ``offset`` the first bad byte, and ``member`` the name of the member, or the key of the sample
    if ``of`` is "sample"."""

    exit_code = 3
    of = "member"

    def __init__(
        self,
        message: str,
        *,
        code: str = "bad-data",
        shard: str | None = None,
        offset: int | None = None,
        member: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.shard = shard
        self.offset = offset
        self.member = member

    def __str__(self) -> str:
        member = "" if self.member is None else f' in {self.of} "{printable(self.member)}"'
        shard = "" if self.shard is None else f" in {printable(shard_words(self.shard))}"
        offset = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.message}{member}{shard}{offset}"


def shard_words(address: str) -> str:
    """Return a shard's address for messages, without secrets."""
    return "standard input" if address == "-" else shown(address)


class StorageError(WdsError, OSError):
    """Bytes cannot be read or written: a missing file, a refused connection, a full disc.

    ``cause`` is the error of the system or of a client. It decides the class of this error: an InputError whose cause
    is a FileNotFoundError becomes an InputNotFoundError. ``errno``, ``strerror`` and ``filename`` come from the cause.
    """

    exit_code = 4
    _errno: ClassVar[int | None] = None

    def __new__(
        cls, message: str = "", *, hint: str | None = None, cause: BaseException | None = None
    ) -> StorageError:
        kinds = _KINDS.get(cls, {})
        kind = next((kind for base, kind in kinds.items() if isinstance(cause, base)), cls)
        return OSError.__new__(kind, shown(message))

    def __init__(self, message: str, *, hint: str | None = None, cause: BaseException | None = None) -> None:
        super().__init__(message, hint=hint)
        system = cause if isinstance(cause, OSError) else OSError()
        self.errno = system.errno or self._errno
        self.strerror = system.strerror or (os.strerror(self.errno) if self.errno else None)
        self.filename = system.filename
        if hint is None and ran_out_of_files(system):
            self.hint = MORE_FILES

    def __reduce__(self) -> tuple[Any, ...]:
        system = {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return _rebuild, (type(self), {**self.__dict__, **system})


class InputError(StorageError):
    """An input that cannot be read."""


class InputNotFoundError(InputError, FileNotFoundError):
    """An input that does not exist."""

    _errno = errno.ENOENT


class InputPermissionError(InputError, PermissionError):
    """An input that this process has no permission to read."""

    _errno = errno.EACCES


class InputIsFolderError(InputError, IsADirectoryError):
    """A folder instead of an input file."""

    _errno = errno.EISDIR


class OutputError(StorageError):
    """An output that cannot be written."""


class OutputPermissionError(OutputError, PermissionError):
    """An output that this process has no permission to write."""

    _errno = errno.EACCES


class OutputIsFolderError(OutputError, IsADirectoryError):
    """A folder instead of an output file."""

    _errno = errno.EISDIR


class OutputExistsError(OutputError, FileExistsError):
    """An output that already exists and may not be replaced."""

    _errno = errno.EEXIST


_KINDS: dict[type[StorageError], dict[type[OSError], type[StorageError]]] = {
    InputError: {
        FileNotFoundError: InputNotFoundError,
        PermissionError: InputPermissionError,
        IsADirectoryError: InputIsFolderError,
    },
    OutputError: {PermissionError: OutputPermissionError, IsADirectoryError: OutputIsFolderError},
}


@contextmanager
def failing(what: str, hint: str | None = None) -> Iterator[None]:
    """In the block, raise an error of the system as an OutputError: ``cannot WHAT: REASON``."""
    try:
        yield
    except (WdsError, BrokenPipeError):
        raise
    except OSError as error:
        raise OutputError(f"cannot {what}: {error.strerror}", hint=hint) from error


class EngineError(WdsError):
    """A failed task, or an engine that lost it."""

    exit_code = 5


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is too small. Under a memory limit, this may be an ImportError of a
    library."""
    no_room = "failed to map segment", "annot allocate memory"
    return isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and any(text in str(error) for text in no_room)
    )


MORE_FILES = "allow more open files: ulimit -n 4096"


def ran_out_of_files(error: BaseException) -> bool:
    """Return whether an error means that a process, or the system, has too many open files."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def empty_stream(code: str) -> DataError:
    """Return the error for standard input that ends before its first byte."""
    return DataError("standard input is empty", code=code, hint="did the command before it fail?")


def printable(text: str) -> str:
    """``text`` with control characters, and characters that UTF-8 cannot encode, written as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return up to three names that are most similar to a word, the most similar name first. Case does not matter.

    >>> nearest("JPGG", ["cls", "jpg", "json"])
    ['jpg']
    """
    from difflib import get_close_matches

    spellings: dict[str, str] = {}
    for name in names:
        spellings.setdefault(name.casefold(), name)
    return [spellings[match] for match in get_close_matches(word.casefold(), spellings, n=3, cutoff=cutoff)]


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the hint that a word may be a misspelling of one of these names; None if no name is similar."""
    close = nearest(word, names, cutoff)
    return f"did you mean {' or '.join(close)}?" if close else None
