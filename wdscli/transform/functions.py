"""Transform samples by a user's Python function. It takes a sample as a dictionary, and returns a new sample, several,
or none.

The function is given as ``module:function`` or ``path/file.py:function``. The dictionary has the payloads as bytes, by
field. It also has webdataset's names ``__key__``, ``__url__`` (the shard) and ``__index__`` (the place in the shard,
from 0). The function returns a dictionary, a list or generator of dictionaries, or None to leave the sample out.
:mod:`wdscli.codecs.values` turns values into payloads. Names that begin with ``__`` are not fields. A new sample
without a ``__key__`` gets the key of its source. If a source gives several new samples, ``-000000``, ``-000001`` and so
on are added. With ``batch``, the function takes and returns lists.

The function could end its process, print to standard output or change the current folder. So the command's own process
never imports or calls it; it runs in :func:`function_workers`. This module does not know where samples come from.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from wdscli.codecs.values import encode_field
from wdscli.errors import UsageError, did_you_mean
from wdscli.executors import LostWorkerError, WorkerStopped, run_tasks, separate_executor
from wdscli.storage import local_path
from wdscli.text import to_bytes, to_text
from wdscli.transform.transform import (
    Call,
    CallError,
    InputSample,
    OutputSample,
    Remark,
    Transform,
    checked,
    of_field,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor


@contextmanager
def function_workers(spec: str, jobs: int | None) -> Iterator[Executor]:
    """Start worker processes for a function, and let one worker import it. Raises UsageError for a function that cannot
    be imported."""
    with separate_executor(jobs) as workers:
        try:
            list(run_tasks(workers, _import_function, [spec]))
        except LostWorkerError:
            raise UsageError(f"--python {spec}: its process ended while the module was imported") from None
        yield workers


def _import_function(spec: str) -> None:
    load_function(spec, local_path("."))


def call_of(transform: Transform, folder: str, remarks: Counter[Remark]) -> Call:
    """Return a function on samples that calls the user's function. Raises UsageError if the user's function does not
    exist."""
    function = load_function(transform.what, local_path("."))
    return partial(_called, function, transform.batch > 1)


@lru_cache(maxsize=8)
def load_function(spec: str, folder: str) -> Callable[[Any], Any]:
    """Return the function that ``spec`` names. Modules are also searched in ``folder``. Raises UsageError."""
    place, colon, name = spec.rpartition(":")
    if not (place and colon and name):
        raise UsageError(
            f"--python {spec} has no function", hint="use module:function, or path/file.py:function"
        )
    module: Any = _load_file(place) if place.endswith(".py") else _load_module(place, folder)
    for part in name.split("."):
        if not hasattr(module, part):
            raise UsageError(
                f'--python {spec}: {place} has no "{part}"', hint=did_you_mean(part, dir(module))
            )
        module = getattr(module, part)
    if not callable(module):
        raise UsageError(f"--python {spec}: {name} is not a function")
    function: Callable[[Any], Any] = module
    return function


def _load_module(name: str, folder: str) -> Any:
    from importlib import import_module

    # Search modules in the current folder first, like ``python -m``.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _importing(name):
        return import_module(name)


def _load_file(path: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    path = local_path(path)
    # Modules in the file's folder can be imported, like with ``python path/file.py``.
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = spec_from_file_location("wds_map_function", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Objects of a registered module can be pickled.
    sys.modules[spec.name] = module
    with _importing(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Turn every exception of a module's code into a UsageError."""
    try:
        yield
    except WorkerStopped:
        raise
    except BaseException as error:
        raise UsageError(f"--python: cannot import {name}: {_text_of(error)}") from error


def _called(
    function: Callable[[Any], Any], is_batch: bool, samples: Sequence[InputSample]
) -> list[OutputSample]:
    """Make one call. Every exception of the function becomes a CallError, also SystemExit and KeyboardInterrupt."""
    try:
        return _new_samples(function, is_batch, samples)
    except (CallError, WorkerStopped):
        raise
    except BaseException as error:
        raise CallError(f"{_text_of(error)}{_place_of(error)}") from error


def _new_samples(
    function: Callable[[Any], Any], is_batch: bool, samples: Sequence[InputSample]
) -> list[OutputSample]:
    dictionaries = list(map(_plain, samples))
    result = function(dictionaries if is_batch else dictionaries[0])
    if result is None:
        return []
    keys = [sample.key for sample in samples]
    if isinstance(result, Mapping):
        return [_encoded(result, keys[0])]
    new = list(_iterated(result))
    if is_batch and len(new) == len(keys):
        return [_encoded(sample, key) for sample, key in zip(new, keys) if sample is not None]
    numbered = [None if is_batch else b"%s-%06d" % (keys[0], number) for number in range(len(new))]
    return [_encoded(sample, key) for sample, key in zip(new, numbered) if sample is not None]


def _iterated(result: Any) -> Iterable[Any]:
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
        return result
    raise CallError(f"it returned a {type(result).__name__}, not a dictionary, None, or several dictionaries")


def _plain(sample: InputSample) -> dict[str, Any]:
    about = {"__key__": to_text(sample.key), "__url__": sample.shard, "__index__": sample.place}
    return {**about, **{to_text(field): payload for field, payload in sample.fields}}


def _encoded(sample: Any, key: bytes | None) -> OutputSample:
    """Return the new sample with encoded payloads. A sample without a key gets ``key``. Raises CallError."""
    if not isinstance(sample, Mapping):
        raise CallError(f"it returned a {type(sample).__name__} among its samples, not a dictionary")
    own = sample.get("__key__")
    if own is None and key is None:
        raise CallError("a sample of a batch has no __key__")
    if own is not None and not isinstance(own, (str, bytes)):
        raise CallError(f"a __key__ is text, not {type(own).__name__}")
    fields = []
    for name, value in sample.items():
        if not isinstance(name, str):
            raise CallError(f"a field's name is text, not {type(name).__name__}")
        if not name.startswith("__"):
            with of_field(name):
                fields.append((to_bytes(name), bytes(encode_field(value, name))))
    raw = key if own is None else to_bytes(own) if isinstance(own, str) else own
    return checked(raw or b"", fields)


def _text_of(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # a user's class may fail here
        text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place_of(error: BaseException) -> str:
    """Return the place in the user's code that raised an exception."""
    trace, last = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            last = trace
        trace = trace.tb_next
    return "" if last is None else f" ({last.tb_frame.f_code.co_filename}, line {last.tb_lineno})"
