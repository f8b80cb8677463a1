"""A user's Python function: it takes a sample as a dictionary and returns a new one, none, or several.

It is named ``module:function`` or ``path/file.py:function``. The dictionary has the payloads as bytes by field, and
``__key__``, ``__url__`` (the shard) and ``__index__`` (its place there, from 0), as webdataset names them. It returns a
dictionary, None to leave the sample out, or a list or generator of dictionaries. :mod:`wdscli.codecs.values` makes
payloads of values; names that begin with ``__`` are no fields. A new sample without a ``__key__`` gets the key of its
source, with ``-000000``, ``-000001`` added if there are several. With ``batch`` the function takes and returns lists.

The function is never called or imported in the command's process, because it may end that process, print to its
standard output or change its folder: it runs in :func:`function_workers`. This module does not know where
samples come from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from wdscli.codecs.values import encode_field
from wdscli.errors import UsageError, did_you_mean
from wdscli.executors import LostWorkerError, Stopped, run_tasks, separate_executor
from wdscli.model import to_bytes, to_text
from wdscli.storage import local_path
from wdscli.transform.transform import Call, CallError, Made, Taken, Transform, checked, of_field

if TYPE_CHECKING:
    from concurrent.futures import Executor


@contextmanager
def function_workers(spec: str, jobs: int | None) -> Iterator[Executor]:
    """Worker processes for a function, which one of them has imported. Raises UsageError for a function that cannot be
    imported."""
    with separate_executor(jobs) as workers:
        try:
            list(run_tasks(workers, _import_function, [spec]))
        except LostWorkerError:
            raise UsageError(f"--python {spec}: its process ended while the module was imported") from None
        yield workers


def _import_function(spec: str) -> None:
    load_function(spec, local_path("."))


def call_of(transform: Transform, folder: str) -> Call:
    """The function on samples that calls the user's function. Raises UsageError if it does not exist."""
    function = load_function(transform.what, local_path("."))
    return partial(_called, function, transform.batch > 1)


@lru_cache(maxsize=8)
def load_function(spec: str, folder: str) -> Callable[[Any], Any]:
    """The function that ``spec`` names; modules are searched in ``folder`` too. Raises UsageError."""
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

    # As ``python -m`` does.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _importing(name):
        return import_module(name)


def _load_file(path: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    path = local_path(path)
    # As ``python path/file.py`` does: modules beside it can be imported.
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = spec_from_file_location("wds_map_function", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # What is in it can then be pickled by the function itself.
    sys.modules[spec.name] = module
    with _importing(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Whatever the code of a module raises is a UsageError."""
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        raise UsageError(f"--python: cannot import {name}: {_text_of(error)}") from error


def _called(function: Callable[[Any], Any], is_batch: bool, samples: Sequence[Taken]) -> list[Made]:
    """One call. Whatever the function raises, SystemExit and KeyboardInterrupt too, is a CallError."""
    try:
        return _made(function, is_batch, samples)
    except (CallError, Stopped):
        raise
    except BaseException as error:
        raise CallError(f"{_text_of(error)}{_place_of(error)}") from error


def _made(function: Callable[[Any], Any], is_batch: bool, samples: Sequence[Taken]) -> list[Made]:
    given = list(map(_plain, samples))
    found = function(given if is_batch else given[0])
    several = found if found is None or isinstance(found, Mapping) else list(_iterated(found))
    if several is None:
        return []
    keys = [sample.key for sample in samples]
    if isinstance(several, Mapping):
        return [_encoded(several, keys[0])]
    if is_batch and len(several) == len(keys):
        return [_encoded(one, key) for one, key in zip(several, keys) if one is not None]
    named = [b"%s-%06d" % (keys[0], number) for number in range(len(several))]
    return [_encoded(one, None if is_batch else key) for one, key in zip(several, named) if one is not None]


def _iterated(found: Any) -> Iterable[Any]:
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        return found
    raise CallError(f"it gave a {type(found).__name__}, not a dictionary, None, or several dictionaries")


def _plain(sample: Taken) -> dict[str, Any]:
    about = {"__key__": to_text(sample.key), "__url__": sample.shard, "__index__": sample.place}
    return {**about, **{to_text(field): payload for field, payload in sample.fields}}


def _encoded(sample: Any, key: bytes | None) -> Made:
    """A sample as it is written; ``key`` is for one that names none. Raises CallError."""
    if not isinstance(sample, Mapping):
        raise CallError(f"it gave a {type(sample).__name__} among its samples, not a dictionary")
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
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _place_of(error: BaseException) -> str:
    """Where in the user's code it was raised."""
    trace, last = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            last = trace
        trace = trace.tb_next
    return "" if last is None else f" ({last.tb_frame.f_code.co_filename}, line {last.tb_lineno})"
