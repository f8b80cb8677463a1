"""Transform samples by a shell command: files in a scratch folder, or one field through the command's standard input
and output.

Each call has its own folder, with a file ``sample.<field>`` for each field, like in tarp's ``proc``. The files in the
folder at the end of the command are the new sample. An empty folder means no sample. If a call has several samples,
their files are ``sample-000000.<field>``, ``sample-000001.<field>`` and so on. With ``multi``, the text between
``sample`` and the first dot is added to the key. ``/bin/sh -c`` runs the command in a new session. All processes of the
session end with the command, also after a timeout or Ctrl-C. If the command fails, its output is part of the error.
This module does not know where samples come from.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from wdscli.errors import printable
from wdscli.executors import defer_signals
from wdscli.storage import local_path
from wdscli.storage.local import write_all
from wdscli.text import to_bytes
from wdscli.transform.transform import Call, CallError, InputSample, OutputSample, Remark, Transform, checked

if TYPE_CHECKING:
    from typing import IO

STEM = b"sample"
RUNNING = "running-"
"""Prefix of the files that record running commands."""
LOG_BYTES = 4096
LOG_LINES = 3
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def call_of(transform: Transform, folder: str, remarks: Counter[Remark]) -> Call:
    """Return the function that runs the command."""
    return partial(_filtered if transform.kind == "filter" else _in_folder, transform, folder)


def _filtered(transform: Transform, folder: str, samples: Sequence[InputSample]) -> list[OutputSample]:
    """Replace one field of each sample by the command's output. A sample without the field stays unchanged."""
    name = to_bytes(transform.field)
    filtered = []
    for sample in samples:
        fields = [
            (field, _piped(transform, folder, sample, payload) if field == name else payload)
            for field, payload in sample.fields
        ]
        filtered.append((sample.key, fields))
    return filtered


def _piped(transform: Transform, folder: str, sample: InputSample, payload: bytes) -> bytes:
    from tempfile import TemporaryFile

    with TemporaryFile(dir=folder or None) as source, TemporaryFile(dir=folder or None) as output:
        # Use files, because a command that does not read its input, or leaves a child process, would block a pipe.
        source.write(payload)
        source.seek(0)
        _run(transform, [sample], local_path("."), folder, source, output)
        output.seek(0)
        return output.read()


def _in_folder(transform: Transform, folder: str, samples: Sequence[InputSample]) -> list[OutputSample]:
    from shutil import rmtree
    from tempfile import mkdtemp

    place = os.fsencode(mkdtemp(prefix="wds-", dir=folder or None))
    try:
        numbered = [STEM + b"-%06d" % number for number in range(len(samples))]
        stems = [STEM] if transform.batch == 1 else numbered
        for stem, sample in zip(stems, samples, strict=True):
            for field, payload in sample.fields:
                _store(place + b"/" + stem + b"." + field, payload)
        _run(transform, samples, os.fsdecode(place), folder, None, None)
        try:
            return list(_collected(transform, place, stems, samples))
        except (FileNotFoundError, PermissionError) as error:
            raise CallError(f"cannot read the command's files: {error.strerror}") from None
    finally:
        rmtree(place, ignore_errors=True)


def _store(path: bytes, payload: bytes) -> None:
    try:
        with open(os.open(path, _FLAGS, 0o600), "wb", buffering=0) as file:
            write_all(file.fileno(), payload)
    except OSError as error:
        raise CallError(f"cannot write {printable(os.fsdecode(path))}: {error.strerror}") from None


def _collected(
    transform: Transform, place: bytes, stems: Sequence[bytes], samples: Sequence[InputSample]
) -> Iterator[OutputSample]:
    """Return the samples in the command's folder. Old fields come in their order, then new fields by name. Raises
    CallError."""
    fields_by_stem: dict[bytes, dict[bytes, bytes]] = {}
    for entry in os.scandir(place):
        stem, dot, field = entry.name.partition(b".")
        name = printable(os.fsdecode(entry.name))
        if not entry.is_file(follow_symlinks=False):
            raise CallError(f"the command wrote {name}, which is not a file")
        if not dot or not any(stem == old or (transform.multi and stem.startswith(old)) for old in stems):
            raise CallError(
                f"the command wrote the unexpected file {name}; files of a sample must be named {_pattern(transform)}"
            )
        with open(entry.path, "rb") as file:
            fields_by_stem.setdefault(stem, {})[field] = file.read()
    for stem, sample in zip(stems, samples, strict=True):
        order = {field: number for number, (field, _) in enumerate(sample.fields)}
        for new_stem in sorted(name for name in fields_by_stem if name.startswith(stem)):
            fields = sorted(
                fields_by_stem[new_stem].items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0])
            )
            yield checked(sample.key + new_stem[len(stem) :], fields)


def _pattern(transform: Transform) -> str:
    number = "" if transform.batch == 1 else "-NNNNNN"
    return f"sample{number}{'-NAME' if transform.multi else ''}.FIELD"


def _run(
    transform: Transform,
    samples: Sequence[InputSample],
    place: str,
    folder: str,
    source: IO[bytes] | None,
    output: IO[bytes] | None,
) -> None:
    """Run the command in the folder ``place``. Raises CallError when it fails or takes too long."""
    import subprocess
    from tempfile import TemporaryFile

    with ExitStack() as stack:
        log = stack.enter_context(TemporaryFile())
        with defer_signals():
            process = subprocess.Popen(
                ["/bin/sh", "-c", transform.what],
                cwd=place,
                env=_environment(samples),
                stdin=subprocess.DEVNULL if source is None else source,
                stdout=log if output is None else output,
                stderr=log,
                start_new_session=True,
            )
            # At the end of the block, end its session.
            stack.callback(process.wait)
            stack.callback(end_group, process.pid)
        stack.enter_context(_noted(process.pid, folder))
        try:
            status = process.wait(transform.timeout)
        except subprocess.TimeoutExpired:
            raise CallError(f"it took more than {transform.timeout:g} s{_last_words(log)}") from None
        if status:
            how = f"it ended with status {status}" if status > 0 else f"signal {-status} ended it"
            raise CallError(f"{how}{_last_words(log)}")


def end_group(process: int) -> None:
    """End all processes of a command's session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


@contextmanager
def _noted(process: int, folder: str) -> Iterator[None]:
    """Record the process id of a running command as a file name in ``folder``. If the worker is killed, the run ends
    the command."""
    note = f"{folder}/{RUNNING}{process}"
    if folder:
        os.close(os.open(note, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        yield
    finally:
        if folder:
            with suppress(OSError):
                os.unlink(note)


def _environment(samples: Sequence[InputSample]) -> dict[str, str]:
    """Return the environment for a command. WDS_KEY, WDS_SHARD and WDS_INDEX have a line for each sample of the call.
    WDS_PWD is the current folder of wds."""
    return {
        **os.environ,
        "WDS_KEY": "\n".join(os.fsdecode(sample.key) for sample in samples),
        "WDS_SHARD": "\n".join(sample.shard for sample in samples),
        "WDS_INDEX": "\n".join(str(sample.place) for sample in samples),
        "WDS_PWD": os.path.abspath(local_path(".")),
    }


def _last_words(log: IO[bytes]) -> str:
    return f": {lines}" if (lines := last_lines(log)) else ""


def last_lines(output: IO[bytes]) -> str:
    """Return the last lines of a command's output, joined into one line."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - LOG_BYTES))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(map(printable, lines[-LOG_LINES:]))
