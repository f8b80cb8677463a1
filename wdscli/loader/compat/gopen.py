"""This module has webdataset's ``gopen``, which returns a file object for any address that wdscli reads.

:func:`gopen` opens local files directly; :mod:`wdscli.storage` reads all other addresses, through a file object. A
function that a program puts into :data:`gopen_schemes` opens all addresses of a scheme for reading, for ``gopen`` and
for datasets. The file object that it returns is read from beginning to end. This module does not know archives."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import urlsplit

from wdscli.errors import UsageError
from wdscli.loader.compat import add_hints
from wdscli.loader.compat.utils import SecurityError as SecurityError
from wdscli.loader.compat.utils import want_trust
from wdscli.storage import OPENERS, is_local, local_path, open_source, scheme
from wdscli.storage.addresses import check_pipe
from wdscli.storage.streams import stream_of

__all__ = ["Pipe", "gopen", "gopen_schemes", "rewrite_url"]


class _Schemes(UserDict[str, Callable[..., Any]]):
    """A dict of the user's functions by scheme. A function takes an address, a mode and a buffer size."""

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        warnings.warn(
            f"gopen_schemes[{name!r}]: WebDataset opens {name}: addresses with this function "
            "and reads them sequentially",
            stacklevel=2,
        )
        super().__setitem__(name, function)
        OPENERS[name] = self._open

    @staticmethod
    def _open(url: str) -> Any:
        return gopen(url)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        OPENERS.pop(name, None)


gopen_schemes = _Schemes()


class Pipe:
    """A file object for the output (``mode="rb"``) or the input (``"wb"``) of a command, such as ``Pipe("zcat a.gz",
    shell=True)``. The arguments are the same as for ``subprocess.Popen``. If the exit status is neither 0 nor in
    ``ignore_status``, the end of reading and :meth:`close` raise OSError, unless ``ignore_errors`` is true."""

    def __init__(
        self,
        *args: Any,
        mode: str = "rb",
        timeout: float = 7200.0,
        ignore_errors: bool = False,
        ignore_status: Sequence[int] = (),
        **kw: Any,
    ) -> None:
        if mode[:1] not in ("r", "w"):
            raise UsageError(f"Pipe(mode={mode!r})", hint='"rb" or "wb"')
        want_trust("Pipe: unsafe_gopen is False, cannot run commands")
        check_pipe(f"pipe:{args[0] if args else kw.get('args')}")
        self.args, self.timeout = (args, kw), timeout
        self.ignore_errors, self.ignore_status = ignore_errors, [0, *ignore_status]
        end = "stdout" if mode[0] == "r" else "stdin"
        self.proc: Any = Popen(*args, **kw, **{end: PIPE})  # type: ignore[call-overload]
        self.stream: Any = getattr(self.proc, end)

    def __str__(self) -> str:
        return f"<Pipe {self.args}>"

    def __getattr__(self, name: str) -> Any:
        if name in ("stream", "proc"):  # if the command could not be started
            raise AttributeError(name)
        return getattr(self.stream, name)

    def read(self, *args: Any) -> bytes:
        """Read from the stream. At the end of the stream, check the command's exit status."""
        data: bytes = self.stream.read(*args)
        if not data and args != (0,):
            self._wait()
        return data

    def close(self) -> None:
        """Close the stream, and wait for the command."""
        if not self.stream.closed:
            self.stream.close()
            self._wait()

    def _wait(self) -> None:
        status = self.proc.wait(self.timeout)
        if status not in self.ignore_status and not self.ignore_errors:
            raise OSError(f"{self.args}: exit {status}")

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.stream)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def gopen(url: str, mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any:
    """Return a file object that reads ``url``: a path, ``-``, ``pipe:CMD``, ``file:``, ``http:``, ``s3:`` or any other
    address that wdscli reads."""
    if mode != "rb":
        raise UsageError(
            f'gopen(mode="{mode}"): gopen only reads',
            hint="write samples with wds.TarWriter or wds.ShardWriter, and other files with open(path, mode)",
        )
    if url == "-":
        return sys.stdin.buffer
    url = rewrite_url(url)
    kind = scheme(url)
    if kind == "pipe":
        want_trust("gopen_pipe: unsafe_gopen is False, cannot open pipe URLs")
    if is_local(url):
        want_trust("gopen: unsafe_gopen is False, cannot open local files")
    if kind in gopen_schemes:
        return gopen_schemes[kind](url, mode, bufsize, **kw)
    if kw:
        raise UsageError(f"gopen({', '.join(kw)}=): no such option")
    if url.startswith("file:"):
        url = urlsplit(url).path
    if is_local(url):
        return open(local_path(url), mode)
    return stream_of(open_source(url, decompress=False), bufsize)


def rewrite_url(url: str) -> str:
    """Return ``url`` changed by the rules in the environment variable ``GOPEN_REWRITE``. In the rules ``old=new;...``,
    each ``old`` is a pattern for the start of an address."""
    rules = os.environ.get("GOPEN_REWRITE")
    if rules is None:
        return url
    want_trust("rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables")
    for old, new in (rule.split("=", 1) for rule in rules.split(";")):
        changed = re.sub("^" + old, new, url)
        if changed != url:
            return changed
    return url


add_hints(__name__)
