"""The transform of ``wds map``. It is a record in tasks, plan files and manifests, and selects a function.

A :class:`Transform` has only plain values, so that it can be sent to other processes and stored in plan files. The code
of each kind is imported at its first call. :class:`Taken` is a sample before its transform, and :data:`Made` a sample
after it. This module does not know shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple

from wdscli.codecs.handlers import INSTALL_IMAGES, MAX_DECODED_BYTES, extension, needed
from wdscli.codecs.images import Recoding, ResizeMode, opened_image
from wdscli.codecs.kinds import PictureFormat, find
from wdscli.errors import UsageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.samples import check_name

Kind = Literal["cmd", "filter", "python", "resize"]
OnFailure = Literal["stop", "skip", "keep"]


class Taken(NamedTuple):
    """A sample before its transform: key, fields and payloads in order, and the sample's shard and place in the
    shard."""

    key: bytes
    fields: list[tuple[bytes, bytes]]
    shard: str
    place: int


Made = tuple[bytes, list[tuple[bytes, bytes]]]
"""A sample after its transform: key, and fields and payloads in order."""
Call = Callable[[Sequence[Taken]], list[Made]]


class CallError(Exception):
    """A failed call. The text is the reason, on one line."""


class Transform(NamedTuple):
    """The options of a transform. ``what`` is the command, or ``module:function``. ``field`` is the field of a filter.

    One call gets ``batch`` samples. With ``multi``, a command may make several samples from one sample. ``timeout`` is
    the longest time of a call in seconds. The fields from ``size`` to ``quality`` are for ``resize``: pixels,
    :data:`ResizeMode`, and the options for encoding pictures. With ``new_fields``, a new sample has only the fields
    that its source lacks.

    >>> Transform("cmd", "rm sample.txt").options()
    {'kind': 'cmd', 'what': 'rm sample.txt'}
    """

    kind: Kind
    what: str = ""
    field: str = ""
    batch: int = 1
    multi: bool = False
    on_failure: OnFailure = "stop"
    timeout: float | None = None
    size: int = 0
    mode: ResizeMode = "keep_ratio"
    only_if_bigger: bool = False
    format: PictureFormat | None = None
    quality: int | None = None
    new_fields: bool = False

    @property
    def may_change_keys(self) -> bool:
        """Whether a sample may get another key."""
        return (self.multi or self.kind == "python") and not self.new_fields

    @property
    def is_slow(self) -> bool:
        """Whether each call starts a process."""
        return self.kind in ("cmd", "filter")

    def options(self) -> dict[str, Any]:
        """Return the options for the manifest: those that change the result and are not at their default."""
        plain = self._asdict()
        given = {name: value for name, value in plain.items() if value != self._field_defaults.get(name)}
        given.pop("timeout", None)
        return given

    def checked(self) -> Transform:
        """Return this transform after a check. Raises UsageError for values that are out of range or contradict each
        other."""
        if self.new_fields and (self.multi or self.on_failure == "keep"):
            other = (
                "--multi, which makes new keys" if self.multi else "--on-error keep, which writes old fields"
            )
            raise UsageError(f"--new-fields cannot be combined with {other}", hint="leave one of them out")
        if self.kind == "resize" and self.mode != "no" and self.size < 1:
            raise UsageError("--resize needs a number of pixels", hint="--resize 256")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"the quality of --format must be 1 to 100, not {self.quality}")
        if self.kind != "resize" and not self.what.strip():
            raise UsageError(f"--{self.kind} is empty")
        return self

    def call(self, folder: str) -> Call:
        """Return the function that transforms samples. Commands make their scratch folders in ``folder``. Raises
        UsageError for a function that cannot be found, or a package that is not installed."""
        if self.kind == "resize":
            return _resizing(self)
        if self.kind not in _MODULES:
            raise UsageError(f'unknown transform "{self.kind}"')
        made: Call = import_module(f"wdscli.transform.{_MODULES[self.kind]}").call_of(self, folder)
        return made


_MODULES = {"cmd": "commands", "filter": "commands", "python": "functions"}


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """Turn errors in the block into a CallError that names a field."""
    try:
        yield
    except CallError as error:
        raise CallError(f"field {name}: {error}") from None
    except WdsError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise CallError(f"field {name}: {error.message}{hint}") from None
    except Exception as error:
        raise CallError(f"field {name}: {type(error).__name__}: {error}") from error


def checked(key: bytes, fields: list[tuple[bytes, bytes]]) -> Made:
    """Check that the names of a new sample can be written and read back, and return the sample. Raises CallError."""
    try:
        for field, _ in fields:
            check_name(key, field)
    except WdsError as error:
        raise CallError(error.message) from None
    return key, fields


def _resizing(transform: Transform) -> Call:
    """Return the function that resizes pictures. Raises UsageError if Pillow is missing."""
    needed("PIL.Image", "--resize", INSTALL_IMAGES)
    recoding = Recoding(transform.size, transform.mode, transform.only_if_bigger, transform.quality)
    return partial(_resized, recoding, transform.format)


def _resized(recoding: Recoding, form: PictureFormat | None, samples: Sequence[Taken]) -> list[Made]:
    made = []
    for sample in samples:
        fields, names = [], set()
        for raw, payload in sample.fields:
            field, data = _picture(recoding, form, to_text(raw), payload)
            if field in names:
                raise CallError(f"two fields would be named {field}")
            names.add(field)
            fields.append((to_bytes(field), data))
        made.append(checked(sample.key, fields))
    return made


def _picture(recoding: Recoding, form: PictureFormat | None, name: str, payload: bytes) -> tuple[str, bytes]:
    """Return a field's new name and payload. A field that is no picture stays unchanged."""
    kind = extension(name)
    old, new = find(kind).pillow, find(form or kind).pillow
    if not old:
        return name, payload
    if new != old:
        name = name[: len(name) - len(kind)] + (form or kind)
    with of_field(name):
        return name, recoding.payload(opened_image(payload, MAX_DECODED_BYTES), payload, old, new)
