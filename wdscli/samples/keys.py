"""The key rule: from a member's name to a key and a field.

The rule is webdataset's (``base_plus_ext``): the key is the folder and the file name up to its first dot, the field is
what follows that dot. Not part of any sample: folders, names without a dot, AppleDouble ``._x``, and what is named
``__x__`` or lies in a folder of such a name. This module looks at names alone.
"""

from __future__ import annotations

from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.tar import DIRECTORY


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and field of a member's name, or None when it belongs to no sample.

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
    """Whether webdataset passes over this name: its first part is ``__x__`` (``re.match(r"__[^/]*__($|/)", name)``)."""
    head = name.partition(b"/")[0]
    return len(head) >= 4 and head.startswith(b"__") and head.endswith(b"__")


def check_name(key: bytes, field: bytes) -> None:
    """Raise UsageError unless ``key.field`` is a name that is safe and reads back as this key and this field.

    Names are relative, have no ``..``, no NUL and no leading slash (section 5 of the design).
    """
    name = key + b"." + field
    if b"\0" in name or name.startswith(b"/") or b".." in name.split(b"/"):
        raise UsageError(f'unsafe name "{to_text(name)}": names are relative, without ".." and NUL')
    if split_name(name) != (key, field):
        raise UsageError(
            f'key "{to_text(key)}" and field "{to_text(field)}" do not read back as such',
            hint="the last part of a key has no dot, and a field has no slash",
        )


def why_ignored(name: bytes, kind: int) -> str:
    """The reason for which a member is part of no sample: ``directory``, ``appledouble``, ``dunder`` or
    ``no-field``."""
    if kind == DIRECTORY:
        return "directory"
    base = name[name.rfind(b"/") + 1 :]
    if base.startswith(b"._"):
        return "appledouble"
    if is_dunder(name):
        return "dunder"
    return "no-field"
