"""What a command is about to write, and sets that are there already: neither is ever a sample.

What it is: :class:`Outputs`, which knows the output's files wherever a walk meets them, and :func:`set_members`, the
files of the sets whose manifests lie in a folder. How: an output is known by its folder, links followed, and by a name
that its pattern could give, whether a shard of that name will be written or not. It must not know how files become
samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from wdscli.errors import UsageError, WdsError
from wdscli.model import to_text
from wdscli.shards.inputs import MANIFEST_SUFFIX, read_manifest
from wdscli.shards.writing import OutputSet
from wdscli.storage import folder_of, is_local, local_path

MANIFEST = os.fsencode(MANIFEST_SUFFIX)
"""How the names of manifests end."""
_BESIDE = (b"", b".idx")


class Outputs:
    """The shards and the manifest of an output on this machine; nothing for any other."""

    def __init__(self, output: OutputSet) -> None:
        self._pattern = output.pattern
        self._manifest = output.manifest_address or ""
        self._folder = ""
        self._real = b""
        if self._manifest and is_local(self._manifest):
            self._folder = folder_of(self._manifest)
            self._real = os.fsencode(os.path.realpath(local_path(self._folder) or "."))

    def in_folder(self, path: bytes) -> Callable[[bytes], bool] | None:
        """Whether a name in a folder is the output's; None where none can be."""
        if not self._real:
            return None
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._real.rstrip(b"/") + b"/"):
            return None
        below = os.fsdecode(real[len(self._real) :].strip(b"/"))
        folder = self._folder + (below + "/" if below else "")

        def is_own(name: bytes) -> bool:
            address = folder + os.fsdecode(name)
            return address == self._manifest or self._pattern.could_name(address)

        return is_own

    def refuse(self, path: bytes) -> None:
        """Raise UsageError for a file that was named as an input and is the output's."""
        folder, name = os.path.split(os.path.realpath(path))
        is_own = self.in_folder(folder)
        if is_own is not None and is_own(name):
            raise UsageError(
                f"{to_text(path)} is an input and would be an output too", hint="give the output another name"
            )


def set_members(folder: bytes, names: Iterable[bytes]) -> set[bytes]:
    """The paths of manifests among ``names``, of the shards that they list, and of the indexes that other programs keep
    beside shards. What only has the name of a manifest is none."""
    found: set[bytes] = set()
    for name in names:
        path = folder + b"/" + name
        try:
            shards = read_manifest(os.fsdecode(path)).shards
        except WdsError:
            continue
        found.add(path)
        for shard in shards:
            listed = folder + b"/" + os.fsencode(shard.name)
            stem = listed[: listed.rfind(b".tar")] if listed.endswith(b".tar") else listed
            found.update(one + end for one in (listed, stem) for end in _BESIDE if one + end != stem)
    return found
