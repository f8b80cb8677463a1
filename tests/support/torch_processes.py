"""Programs in processes that have torch already: to load it takes two seconds, more than what most of them do then.

A server of processes (``multiprocessing``'s forkserver) loads torch once for all tests of a process and forks itself
for each program, which finds the world as a new process does: a session, a folder, an environment, arguments and
standard streams of its own. The workers of a DataLoader of the context "forkserver" come from the same server: they too
get all that they know by pickling. What a test wants to know of loading torch, or of a process that is new from its
first byte, it must not ask here.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

multiprocessing.set_forkserver_preload(["torch.utils.data"])


class Program:
    """The program of a file, begun; the leader of a session. ``stdout`` is what it prints, as it comes."""

    def __init__(self, path: str | Path, *arguments: object, cwd: str | Path | None = None) -> None:
        read, write = os.pipe()
        self.stdout = open(read, encoding="utf-8")  # noqa: SIM115
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        streams = (_Descriptor(os.open(os.devnull, os.O_RDONLY)), _Descriptor(write))
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_run,
            args=(multiprocessing.get_start_method(), [str(path), *map(str, arguments)], str(cwd or os.getcwd()),
                  dict(os.environ), (*streams, _Descriptor(self._stderr.fileno()))),
        )  # fmt: skip
        self._process.start()
        for stream in streams:
            os.close(stream.number)
        self.pid: int = self._process.pid or 0

    def wait(self, seconds: float = 240) -> int:
        """Its exit code."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """The rest of what it prints, and what it said beside that."""
        with self.stdout, self._stderr:
            printed = self.stdout.read()
            self.wait()
            self._stderr.seek(0)
            return printed, self._stderr.read().decode()


class _Descriptor:
    """A file of this process that a process gets which is started."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _received, (DupFd(self.number),)


def _received(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


def _run(
    method: str, words: list[str], folder: str, environment: dict[str, str], streams: tuple[_Descriptor, ...]
) -> None:
    os.setsid()
    multiprocessing.set_start_method(method, force=True)
    for number, stream in enumerate(streams):
        os.dup2(stream.number, number)
        os.close(stream.number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    sys.path.insert(0, os.path.dirname(words[0]))
    runpy.run_path(words[0], run_name="__main__")
