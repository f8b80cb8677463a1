"""The key rule: from a member's name to a key and a field.

The rule is webdataset's (``base_plus_ext``): the key is the folder and the file name up to its first dot, the field
is the rest after that dot. Members of no sample: folders, names without a dot, AppleDouble ``._x``, and names of
the form ``__x__`` or in a folder of such a name.

This module also has the one rule of names that may be written: relative, no ``..``, no NUL, no leading slash.
:func:`why_unsafe` checks one name, :func:`may_be_unsafe` many at once. It looks at names alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.errors import UsageError, printable
from wdscli.model import to_text
from wdscli.tar import DIRECTORY

MAX_NAME_BYTES = 1 << 16
"""The longest name that is written. No file system has longer ones, and readers hold a whole header in memory."""


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and field of a member's name; None when it belongs to no sample.

    >>> split_name(b"n01/img7.seg.png")
    (b'n01/img7', b'seg.png')
    >>> split_name(b"README") is None, split_name(b"a/._img7.jpg") is None
    (True, True)
    """
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    if dot <= slash or dot + 1 == len(name):
        return None
    if name.startswith(b"__") and is_dunder(name):
        return None
    return name[:dot], name[dot + 1 :]


def is_dunder(name: bytes) -> bool:
    """Whether webdataset skips this name: its first part is ``__x__`` (``re.match(r"__[^/]*__($|/)", name)``)."""
    head = name.partition(b"/")[0]
    return len(head) >= 4 and head.startswith(b"__") and head.endswith(b"__")


def why_unsafe(name: bytes) -> str | None:
    """Why a member of this name could be unpacked outside its folder, or be lost; None for a safe name.

    >>> why_unsafe(b"a/b.jpg"), why_unsafe(b"a/../b.jpg"), why_unsafe(b"a\\0b.jpg")
    (None, 'the name has a ".." in it', 'the name has a NUL in it')
    """
    if not name:
        return "the name is empty"
    if name.startswith(b"/"):
        return "the name is absolute"
    if b".." in name and b".." in name.split(b"/"):
        return 'the name has a ".." in it'
    # A NUL ends a name in a header: readers would find another name.
    return "the name has a NUL in it" if b"\0" in name else None


def may_be_unsafe(names: Sequence[bytes]) -> bool:
    """A quick check of many names, or keys and fields: False when all of them are safe."""
    joined = b"\n".join(names)
    return (
        b".." in joined
        or b"\n/" in joined
        or b"\n\n" in joined
        or b"\0" in joined
        or joined.startswith((b"/", b"\n"))
        or (bool(names) and not names[-1])
    )


def check_name(key: bytes, field: bytes) -> None:
    """Raise UsageError unless ``key.field`` is a safe name that reads back as this key and this field."""
    name = key + b"." + field
    if len(name) > MAX_NAME_BYTES:
        raise UsageError(f"the name has {len(name)} bytes, and at most {MAX_NAME_BYTES} can be written")
    reason = why_unsafe(name)
    if reason is not None:
        raise UsageError(
            f'unsafe name "{printable(to_text(name))}": {reason}',
            hint='use a relative name without ".." and NUL',
        )
    if split_name(name) != (key, field):
        raise UsageError(
            f'key "{to_text(key)}" and field "{to_text(field)}" would be read back as another key and field',
            hint="use a key without a dot after its last slash, and a field without a slash",
        )


def is_appledouble(name: bytes) -> bool:
    """Whether the file is ``._x``, in which macOS stores the attributes of ``x``."""
    return name.startswith(b"._", name.rfind(b"/") + 1)


def why_ignored(name: bytes, kind: int) -> str:
    """The reason why a member belongs to no sample: ``directory``, ``appledouble``, ``dunder`` or ``no-field``."""
    if kind == DIRECTORY:
        return "directory"
    if is_appledouble(name):
        return "appledouble"
    if is_dunder(name):
        return "dunder"
    return "no-field"
