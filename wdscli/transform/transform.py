"""What is done to each sample: a record that tasks, plan files and manifests hold, and the calls it stands for.

What it is: :class:`Transform`, made of options by :func:`make_transform`; :class:`Taken` and :data:`Made`, samples
before and after; :class:`CallError`. How: a transform is plain values, so that it travels to other processes and into
plan files; the code behind a kind is imported when it is first called. It must not know shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple

from wdscli.codecs.kinds import PictureFormat, find
from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.codecs.parts import INSTALL_IMAGES, extension, needed
from wdscli.codecs.resize import Recoding, ResizeMode
from wdscli.errors import UsageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.samples import check_name

Kind = Literal["cmd", "filter", "python", "resize"]
OnFailure = Literal["stop", "skip", "keep"]


class Taken(NamedTuple):
    """One sample before: its key, its fields and payloads in order, and the shard and place it came from."""

    key: bytes
    fields: list[tuple[bytes, bytes]]
    shard: str
    place: int


Made = tuple[bytes, list[tuple[bytes, bytes]]]
"""One sample after: its key, and its fields and payloads in order."""
Call = Callable[[Sequence[Taken]], list[Made]]


class CallError(Exception):
    """A call failed; the text says why, on one line."""


class Transform(NamedTuple):
    """What is done. ``what`` is the command, or ``module:function``; ``field`` is the one that a filter takes.

    ``batch`` samples go into one call; ``multi`` lets a command make several samples of one. ``timeout`` is in seconds
    and for a call. The last five are of ``resize``: pixels, :data:`ResizeMode`, and how a picture is written.
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

    @property
    def may_change_keys(self) -> bool:
        """Whether a sample may come out under another key than its own."""
        return self.multi or self.kind == "python"

    @property
    def is_slow(self) -> bool:
        """Whether a call takes a process of its own."""
        return self.kind in ("cmd", "filter")

    def options(self) -> dict[str, Any]:
        """All that shapes the result, as the manifest tells it; what is at its default is left out."""
        plain = self._asdict()
        given = {name: value for name, value in plain.items() if value != self._field_defaults.get(name)}
        given.pop("timeout", None)
        return given

    def call(self, folder: str) -> Call:
        """What does it; commands make their scratch folders below ``folder``. Raises UsageError for a function that
        cannot be found, or a package that is not installed."""
        if self.kind == "resize":
            return _resizing(self)
        if self.kind not in _MODULES:
            raise UsageError(f'unknown transform "{self.kind}"')
        made: Call = import_module(f"wdscli.transform.{_MODULES[self.kind]}").call_of(self, folder)
        return made


_MODULES = {"cmd": "commands", "filter": "commands", "python": "functions"}


def make_transform(
    *,
    cmd: str | None = None,
    filter: tuple[str, str] | None = None,
    python: str | None = None,
    resize: int | None = None,
    format: PictureFormat | None = None,
    resize_mode: ResizeMode = "keep_ratio",
    only_if_bigger: bool = False,
    quality: int | None = None,
    multi: bool = False,
    batch: int | None = None,
    timeout: float | None = None,
    on_failure: OnFailure = "stop",
) -> Transform:
    """The transform that the options of ``wds map`` ask for. Raises UsageError for what cannot be meant.

    >>> make_transform(cmd="rm sample.txt").options()
    {'kind': 'cmd', 'what': 'rm sample.txt'}
    """
    is_resize = resize is not None or format is not None
    named = {"--cmd": cmd, "--filter": filter, "--python": python, "--resize": is_resize or None}
    ways = [name for name, given in named.items() if given is not None]
    if len(ways) != 1:
        raise UsageError(
            f"{ways[0]} and {ways[1]} exclude each other" if ways else "nothing to do to the samples",
            hint="give one of --cmd, --filter, --python, --resize",
        )
    for option, value, goes_with in (
        ("--multi", multi, ("--cmd",)),
        ("--batch", batch, ("--cmd", "--python")),
        ("--format :N", quality, ("--resize",)),
        ("--resize shrink", only_if_bigger, ("--resize",)),
    ):
        if value and ways[0] not in goes_with:
            raise UsageError(f"{option} needs {' or '.join(goes_with)}")
    if (resize is None and only_if_bigger) or (resize is not None and resize < 1):
        raise UsageError("--resize takes a number of pixels", hint="--resize 256")
    if quality is not None and not 1 <= quality <= 100:
        raise UsageError(f"the quality of --format must be 1 to 100, not {quality}")
    kind: Kind = "resize" if is_resize else "cmd" if cmd else "filter" if filter else "python"
    field, command = filter or ("", cmd or python or "")
    if not is_resize and not command.strip():
        raise UsageError(f"{ways[0]} is empty")
    common = Transform(kind, command, field, batch or 1, multi, on_failure, timeout)
    if not is_resize:
        return common
    mode: ResizeMode = "no" if resize is None else resize_mode
    return common._replace(
        size=resize or 0, mode=mode, only_if_bigger=only_if_bigger, format=format, quality=quality
    )


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """What fails in the block is a CallError that names a field."""
    try:
        yield
    except CallError as error:
        raise CallError(f"field {name}: {error}") from None
    except WdsError as error:
        raise CallError(f"field {name}: {error.message}") from None
    except Exception as error:
        raise CallError(f"field {name}: {type(error).__name__}: {error}") from error


def checked(key: bytes, fields: list[tuple[bytes, bytes]]) -> Made:
    """A sample that can be written and reads back as such. Raises CallError."""
    try:
        for field, _ in fields:
            check_name(key, field)
    except WdsError as error:
        raise CallError(error.message) from None
    if not fields:
        raise CallError(f'the sample "{to_text(key)}" has no fields')
    return key, fields


def _resizing(transform: Transform) -> Call:
    """What resizes. Raises UsageError where Pillow is missing."""
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
    """A field's new name and payload; what is no picture stays as it is."""
    from wdscli.codecs.decode_images import opened_image

    kind = extension(name)
    old, new = find(kind).pillow, find(form or kind).pillow
    if not old:
        return name, payload
    if new != old:
        name = name[: len(name) - len(kind)] + (form or kind)
    with of_field(name):
        return name, recoding.payload(opened_image(payload, MAX_DECODED_BYTES), payload, old, new)
