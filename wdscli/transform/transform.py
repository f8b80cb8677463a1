"""The transform of ``wds map``. It is a record in tasks, plan files and manifests, and selects a function.

A :class:`Transform` has only plain values, so that it can be sent to other processes and stored in plan files. The code
of each kind is imported at its first call. :class:`InputSample` is a sample before its transform, and
:data:`OutputSample` a sample after it. This module does not know shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, NamedTuple

from wdscli.codecs.handlers import extension
from wdscli.codecs.kinds import PictureFormat, find
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.samples import check_name
from wdscli.schema import check, table_of
from wdscli.selection.named import is_there

Kind = Literal["cmd", "filter", "python", "resize", "rename-by-content"]
ResizeMode = Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"]
OnFailure = Literal["stop", "skip", "keep"]


class InputSample(NamedTuple):
    """A sample before its transform: key, fields and payloads in order, and the sample's shard and place in the
    shard."""

    key: bytes
    fields: list[tuple[bytes, bytes]]
    shard: str
    place: int


OutputSample = tuple[bytes, list[tuple[bytes, bytes]]]
"""A sample after its transform: key, and fields and payloads in order."""
Call = Callable[[Sequence[InputSample]], list[OutputSample]]


class Remark(NamedTuple):
    """A change of a field that the user may not expect. It is said once for all samples of a run."""

    field: str
    change: str


class CallError(Exception):
    """A failed call. The text is the reason, on one line. ``field`` is the field that cannot be made, if only one
    field is the reason."""

    def __init__(self, reason: str, *, field: str = "", hint: str | None = None) -> None:
        super().__init__(reason)
        self.field, self.hint = field, hint


class Transform(NamedTuple):
    """The options of a transform. ``what`` is the command, or ``module:function``. ``field`` is the field of a filter.

    One call gets ``batch`` samples. With ``multi``, a command may make several samples from one sample. ``timeout`` is
    the longest time of a call in seconds. The fields from ``size`` to ``quality`` are for ``resize``: pixels,
    :data:`ResizeMode`, and the options for encoding pictures. With ``new_fields``, a new sample has only the fields
    that its source lacks. ``only`` and ``nearest`` are fields of pictures, with commas between them: the fields to
    change, and those to resize by the nearest pixel.

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
    only: str = ""
    nearest: str = ""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Transform:
        """Return the transform of a stored plan. Raises DataError."""
        try:
            check(plain, table_of(cls))
            return cls(**plain)
        except (TypeError, ValueError) as error:
            message = f"the plan has no valid transform: {error}"
            raise DataError(message, code="bad-plan", hint="write it again with --plan FILE") from None

    @property
    def may_change_keys(self) -> bool:
        """Whether a sample may get another key."""
        return (self.multi or self.kind == "python") and not self.new_fields

    @property
    def may_change_counts(self) -> bool:
        """Whether a sample may become no sample, or several samples."""
        return self.kind in ("cmd", "python") or self.new_fields or self.on_failure == "skip"

    @property
    def named_fields(self) -> str:
        """The fields that the transform changes, as typed. It is empty if no option names them."""
        return self.field or self.only

    def is_named(self, field: str) -> bool:
        """Return whether an option names this field, or this picture, to be changed."""
        return field == self.field or (find(extension(field)).is_picture and is_listed(field, self.only))

    @property
    def is_slow(self) -> bool:
        """Whether each call starts a process."""
        return self.kind in ("cmd", "filter")

    def options(self) -> dict[str, Any]:
        """Return the options for the manifest: those that change the result and are not at their default."""
        plain = self._asdict()
        changed = {name: value for name, value in plain.items() if value != self._field_defaults.get(name)}
        changed.pop("timeout", None)
        return changed

    def checked(self) -> Transform:
        """Return this transform after a check. Raises UsageError for values that are out of range or contradict each
        other."""
        if self.new_fields and (self.multi or self.on_failure == "keep"):
            option = (
                "--multi, which makes new keys" if self.multi else "--on-error keep, which writes old fields"
            )
            raise UsageError(f"--new-fields cannot be combined with {option}", hint="leave one of them out")
        if self.kind == "resize" and self.mode != "no" and self.size < 1:
            raise UsageError("--resize needs a number of pixels", hint="--resize 256")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"the quality of --format must be 1 to 100, not {self.quality}")
        if self.kind in ("cmd", "filter", "python") and not self.what.strip():
            raise UsageError(f"--{self.kind} is empty")
        return self

    def call(self, folder: str, remarks: Counter[Remark]) -> Call:
        """Return the function that transforms samples. Commands make their scratch folders in ``folder``. A change of a
        picture that the user may not expect is counted in ``remarks``. Raises UsageError for a function that cannot be
        found, or a package that is not installed."""
        if self.kind not in _MODULES:
            raise UsageError(f'unknown transform "{self.kind}"')
        call: Call = import_module(f"wdscli.transform.{_MODULES[self.kind]}").call_of(self, folder, remarks)
        return call


_MODULES = {
    "cmd": "commands",
    "filter": "commands",
    "python": "functions",
    "resize": "pictures",
    "rename-by-content": "pictures",
}
"""Modules with a function ``call_of(transform, folder, remarks)``, by the kind of the transform."""


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """Turn errors in the block into a CallError that names a field."""
    try:
        yield
    except WdsError as error:
        raise CallError(error.message, field=name, hint=error.hint) from None
    except Exception as error:
        raise CallError(f"{type(error).__name__}: {error}", field=name) from error


def is_listed(field: str, names: str) -> bool:
    """Return whether a field is one of some names or globs with commas between them.

    >>> is_listed("seg.png", "jpg,seg.*"), is_listed("seg.png", "png"), is_listed("jpg", "")
    (True, False, False)
    """
    return any(is_there(name, [field]) for name in names.split(",") if name)


def checked(key: bytes, fields: list[tuple[bytes, bytes]]) -> OutputSample:
    """Check that the names of a new sample can be written and read back, and return the sample. Raises CallError."""
    try:
        for field, _ in fields:
            check_name(key, field)
    except WdsError as error:
        raise CallError(error.message) from None
    return key, fields
