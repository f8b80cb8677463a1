"""This module walks local folders, and adds their files as columns.

:class:`FolderWalk` is the walk of ``create SOURCE...``. :class:`Globs` has the globs of ``--include`` and
``--exclude``. :class:`OwnOutputs` recognizes the command's own outputs during a walk. The walk is fast: one ``scandir``
per folder, one ``stat`` per file, paths as bytes, and no object per file. The order of the file system does not matter,
because the plan sorts the files. An output is recognized by its folder, after links are resolved, and by any name that
its pattern can give. Outputs are skipped. If a folder has a manifest, the files of its set are skipped too. Links are
followed, but a folder is never entered inside itself. A broken symlink counts as a source that cannot be read. Links
below a source can be left out, and links that point outside the source are counted. Names are relative to each given
folder. A given file has its own name.

A glob has the rules of gitignore. A glob without a slash, except at its end, is matched with the last part of a path,
at any depth. A glob with a slash is matched with the whole path. ``*`` and ``?`` match within a part, ``**`` matches
several parts, and ``[abc]`` and ``[!abc]`` are sets. All globs become one regular expression over bytes, so names need
not be UTF-8.

This module does not read files, and does not know shards.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EACCES
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from wdscli.codecs.kinds import find
from wdscli.create.files import SEPARATOR, Files, KeyRule, cannot_read, check_written
from wdscli.create.left_out import LeftOut
from wdscli.errors import InputError, InputNotFoundError, UsageError, WdsError
from wdscli.progress import QUIET, Progress
from wdscli.selection.expressions import Expression
from wdscli.shards.inputs import MANIFEST_SUFFIX, read_manifest
from wdscli.shards.writing import OutputSet
from wdscli.storage import folder_of, is_local, local_path
from wdscli.tar import core
from wdscli.text import to_bytes, to_text

MANIFEST = os.fsencode(MANIFEST_SUFFIX)
"""The suffix of a manifest's name."""
_BESIDE = (b"", b".idx")
_JUNK = {b".DS_Store": "ds-store"}
OTHER_EXTENSION = "other-extension"
"""The reason for leaving out a file that ``EXT=FOLDER`` does not take."""
_Inode = tuple[int, int]
_ENTRIES_TOGETHER = 4096
"""How many entries of a folder are read together."""


def translate(pattern: str) -> str:
    """Return the regular expression for one glob, as in git and rsync. It is for the bytes decoded as Latin-1, and for
    folders with their last slash. A glob with a slash at its end matches a folder, and everything below it.

    >>> [bool(re.fullmatch(translate(glob), "a/b/c.py")) for glob in ("a/**/*.py", "a/**.py", "*.py", "b/", "a/*.py")]
    [True, True, True, True, False]
    """
    text = to_bytes(pattern).decode("latin-1")
    body = _TOKEN.sub(_token, text.strip("/")) + ("/.*" if text.endswith("/") else "/?")
    return body if "/" in text.removesuffix("/") else f"(?:.*/)?{body}"


# "**/" matches any number of whole folders, also none. A "**" at the end of a path matches everything below. Any other
# "**" matches any text.
_MEANINGS = {"**/": "(?:[^/]+/)*", "/**": "/.+", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_TOKEN = re.compile(r"(?:^|(?<=/))\*\*/|/\*\*\Z|\*\*|\[(?P<set>[^/][^/\]]*)\]|.", re.DOTALL)


def _token(match: re.Match[str]) -> str:
    inside = match["set"]
    if inside is None:
        return _MEANINGS.get(match[0]) or re.escape(match[0])
    negated = inside[0] in "!^"
    # A set never matches the slash.
    return "(?!/)[" + "^" * negated + re.escape(inside[negated:]).replace(r"\-", "-") + "]"


class Globs:
    """The globs of one option. The object is false if there are no globs. ``matched`` counts the matching files and
    folders of each glob."""

    def __init__(self, patterns: Sequence[str], option: str) -> None:
        self.option = option
        self.matched = dict.fromkeys(patterns, 0)
        self.has_folders = False
        """Whether a glob has matched a folder. The files in an excluded folder are not compared with the globs."""
        self._expressions = {
            pattern: Expression(translate(pattern).encode("latin-1"), option, re.DOTALL)
            for pattern in self.matched
        }

    def __bool__(self) -> bool:
        return bool(self.matched)

    def match(self, path: bytes) -> bool:
        """Return whether any of the globs matches a file, or a folder with a slash at its end."""
        matching = [pattern for pattern, glob in self._expressions.items() if glob.fullmatch(path)]
        for pattern in matching:
            self.matched[pattern] += 1
        self.has_folders = self.has_folders or (bool(matching) and path.endswith(b"/"))
        return bool(matching)

    def check(self, progress: Progress) -> None:
        """Raise InputNotFoundError if a glob of ``--include`` matched nothing. It is only a warning if the glob might
        match inside an excluded folder, and for ``--exclude``, which scripts also give for clean folders."""
        for pattern in (pattern for pattern, count in self.matched.items() if not count):
            message = f"{self.option} {pattern} matches no file"
            if self.has_folders:
                progress.warn(f"{message} outside the excluded folders")
            elif self.option == "--exclude":
                progress.warn(message)
            else:
                hint = (
                    "a glob with a slash is compared with the path below SOURCE, others with the file name; "
                )
                raise InputNotFoundError(
                    message, hint=hint + "** matches slashes, and FOLDER/ all files below"
                )


class OwnOutputs:
    """The local shards and the manifest of an output. A remote output has none."""

    def __init__(self, output: OutputSet) -> None:
        self._pattern = output.pattern
        self._manifest = output.manifest_address or ""
        self._folder = ""
        self._real = b""
        if self._manifest and is_local(self._manifest):
            self._folder = folder_of(self._manifest)
            self._real = os.fsencode(os.path.realpath(local_path(self._folder) or "."))
        # Lists and tables name many files of one folder.
        self._in_recent_folder = lru_cache(maxsize=256)(self.in_folder)

    def in_folder(self, path: bytes) -> Callable[[bytes], bool] | None:
        """Return a function that says whether a name in a folder belongs to the output. Return None if no name can."""
        if not self._real:
            return None
        real = os.path.realpath(path)
        if not _is_below(real, self._real):
            return None
        below = os.fsdecode(real[len(self._real) :].strip(b"/"))
        folder = self._folder + (below + "/" if below else "")

        def is_own(name: bytes) -> bool:
            address = folder + os.fsdecode(name)
            return address == self._manifest or self._pattern.could_name(address)

        return is_own

    def refuse(self, path: bytes) -> None:
        """Raise UsageError for an input file that is also an output."""
        folder, name = os.path.split(os.path.realpath(path) if os.path.islink(path) else path)
        is_own = self._in_recent_folder(folder)
        if is_own is not None and is_own(name):
            raise UsageError(
                f"{to_text(path)} would be both an input and an output", hint="give the output another name"
            )


def _is_below(real: bytes, folder: bytes) -> bool:
    """Return whether a path is the folder, or is inside it. The path must not have links."""
    return real == folder or real.startswith(folder.rstrip(b"/") + b"/")


def _set_members(folder: bytes, names: Iterable[bytes]) -> set[bytes]:
    """Return the paths of manifests among ``names``, of the shards that they list, and of other programs' indexes next
    to the shards. A file with a manifest's name that is no manifest is ignored."""
    paths: set[bytes] = set()
    for name in names:
        path = folder + b"/" + name
        try:
            shards = read_manifest(os.fsdecode(path)).shards
        except WdsError:
            continue
        paths.add(path)
        for shard in shards:
            listed = folder + b"/" + os.fsencode(shard.name)
            stem = listed[: listed.rfind(b".tar")] if listed.endswith(b".tar") else listed
            paths.update(
                base_path + end for base_path in (listed, stem) for end in _BESIDE if base_path + end != stem
            )
    return paths


def field_and_source(source: str) -> tuple[bytes, bytes]:
    """Return the field in ``EXT=FOLDER``, or an empty field, and the path.

    >>> field_and_source("mask.png=masks/"), field_and_source("images")
    ((b'mask.png', b'masks/'), (b'', b'images'))
    """
    field, _, path = source.partition("=")
    is_field = bool(field and path) and "/" not in field and not os.path.lexists(source)
    return (os.fsencode(field), os.fsencode(path)) if is_field else (b"", os.fsencode(source))


def _is_one_kind(field: bytes, other: bytes) -> bool:
    """Return whether two fields end with the same extension, or with two names of it: ``jpg`` and ``jpeg``."""
    extension, other_extension = (to_text(name).rpartition(".")[2].lower() for name in (field, other))
    return extension == other_extension or extension in find(other_extension).names.split()


class _Folder(NamedTuple):
    """A folder to read: its path, the prefix for names in it, the folders that contain it, the place number of the
    source's files, and the path of the source without links."""

    path: bytes
    prefix: bytes
    above: frozenset[_Inode]
    root: int
    real: bytes
    sets: set[bytes]
    """The paths of files that belong to sets found in the walk."""
    field: bytes = b""
    """The field of all files, if the source names it."""


class FolderWalk(NamedTuple):
    """Adds folders and files to ``files``. ``include`` and ``exclude`` match paths relative to the source. ``outputs``
    are never inputs. With ``skips``, the permission to read each file is checked. Links below a source are left out
    unless ``follows`` is true."""

    rule: KeyRule
    include: Globs
    exclude: Globs
    outputs: OwnOutputs
    files: Files
    left_out: LeftOut
    progress: Progress = QUIET
    skips: bool = False
    follows: bool = True

    def add(self, source: str) -> None:
        """Add the folder or file ``source``. In ``EXT=FOLDER``, the files of the folder become the field EXT. Raises
        InputError if it cannot be read or is not a file, and UsageError for a wrong EXT."""
        field, path = field_and_source(source)
        if field:
            check_written(b"key", field, source)
        try:
            status = os.stat(path)
        except ValueError as error:
            raise cannot_read(path, error) from None
        except OSError as error:
            list_name = source.removeprefix("@") if source.startswith("@") else "FILE"
            self._lose(
                path, error, f"name files or folders; to read a list of files, use --from list:{list_name}"
            )
            return
        if stat.S_ISDIR(status.st_mode):
            self._add_folder(path.rstrip(b"/") or b"/", field)
            return
        if field:
            raise UsageError(f"{source}: EXT= needs a folder", hint="wds create images/ mask.png=masks/")
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file(path)
        self.outputs.refuse(path)
        name = path[path.rfind(b"/") + 1 :]
        if b"." not in name:
            raise UsageError(f"{to_text(path)} belongs to no sample: its name has no field after a dot")
        parts_or_reason = self._why_not(name) or self.rule.split(name)
        if isinstance(parts_or_reason, str):
            self.left_out.add(parts_or_reason, path)
        else:
            check_written(*parts_or_reason, to_text(path))
            self.files.add(*parts_or_reason, status.st_size, path)

    def _why_not(self, path: bytes) -> str:
        """Return the reason why the globs leave out a path. It is empty if they take the path."""
        is_excluded = self.exclude.match(path)
        if self.include and not self.include.match(path):
            return "not-included"
        return "excluded" if is_excluded else ""

    def _add_folder(self, root: bytes, field: bytes) -> None:
        place_number, real = self.files.root(root), os.path.realpath(root)
        pending = [_Folder(root, b"", frozenset(), place_number, real, set(), field)]
        while pending:
            folder, before = pending.pop(), len(self.files)
            try:
                subfolders = self._read(folder)
            except WdsError:
                raise
            except OSError as error:
                self._lose(folder.path, error)
                continue
            pending += self._enter(folder, subfolders)
            self.progress.advance(len(self.files) - before)

    def _lose(
        self, path: bytes, error: OSError, hint: str | None = None, member: tuple[bytes, bytes] = (b"", b"")
    ) -> None:
        """Leave out a file or folder that cannot be read, or raise InputError."""
        unread = cannot_read(path, error)
        unread.hint = hint if isinstance(unread, InputNotFoundError) else None
        if os.path.islink(path):
            unread.hint = "--on-error skip leaves it out, --no-follow leaves out all links"
        self.left_out.lose(*member, to_text(path), unread)

    def _enter(self, folder: _Folder, names: list[bytes]) -> list[_Folder]:
        """Return the subfolders to walk, in reverse order."""
        if not names:
            return []
        entered = []
        status = os.stat(folder.path)
        above = folder.above | {(status.st_dev, status.st_ino)}
        for name in sorted(names, reverse=True):
            path, relative = folder.path + b"/" + name, folder.prefix + name
            is_excluded = self.exclude.match(relative + b"/")
            why = "hidden-folder" if name.startswith(b".") else "excluded-folder" if is_excluded else ""
            if not why and os.path.islink(path):
                status = os.stat(path)
                why = "folder-loop" if (status.st_dev, status.st_ino) in above else ""
                if not (why or _is_below(os.path.realpath(path), folder.real)):
                    self.left_out.add_outside(path)
            if why:
                self.left_out.add(why, path)
            else:
                entered.append(folder._replace(path=path, prefix=relative + b"/", above=above))
        return entered

    def _read(self, folder: _Folder) -> list[bytes]:
        """Add the files of one folder, and return the names of its subfolders."""
        is_own = self.outputs.in_folder(folder.path)
        subfolders: list[bytes] = []

        # With ``skips``, the permission to read each file is checked.
        is_plain = core.CORE is not None and self.rule.is_first_dot and is_own is None
        is_plain = is_plain and not (self.include or self.exclude or self.skips)
        is_plain = is_plain and not (folder.field or folder.prefix.startswith(b"__"))

        def begin(manifests: list[bytes]) -> bool:
            """Return whether all files are taken without further checks."""
            nonlocal is_plain
            folder.sets.update(_set_members(folder.path, manifests))
            is_plain = is_plain and not folder.sets
            return is_plain

        def take(entries: Iterable[_Entry]) -> None:
            subfolders.extend(self._add_entries(entries, is_own, folder))

        if core.CORE is None:
            with os.scandir(folder.path) as entries:
                begin([entry.name for entry in entries if entry.name.endswith(MANIFEST)])
        else:
            core.CORE.folder(
                folder.path,
                folder.prefix,
                MANIFEST,
                begin,
                lambda rows, ends, sizes: self.files.add_folder(rows, ends, sizes, folder.root),
                lambda names: take(_Named(folder.path + b"/" + name, name) for name in names),
            )
        if not is_plain:
            with os.scandir(folder.path) as entries:
                # Do not list all entries together, because an entry takes a few hundred bytes.
                while batch := list(islice(entries, _ENTRIES_TOGETHER)):
                    take(batch)
        return subfolders

    def _add_entries(
        self, entries: Iterable[_Entry], is_own: Callable[[bytes], bool] | None, folder: _Folder
    ) -> Iterator[bytes]:
        """Add the files among some entries, and yield the names of subfolders. ``is_own`` says which names are
        outputs."""
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_link = not self.follows and entry.is_symlink()
            if not is_link and _is_folder(entry):
                yield entry.name
                continue
            why_not = self._why_not(folder.prefix + entry.name)
            if is_link:
                self.left_out.add("link", entry.path)
            elif is_own is not None and is_own(entry.name):
                self.left_out.add("output", entry.path)
            elif entry.path in folder.sets:
                self.left_out.add("shard-set", entry.path)
            elif why := _JUNK.get(entry.name) or why_not:
                self.left_out.add(why, entry.path)
            else:
                self._add_file(entry, folder)

    def _add_file(self, entry: _Entry, folder: _Folder) -> None:
        """Add one file, unless the key rule finds no sample for it."""
        path = folder.prefix + entry.name
        parts_or_reason = self.rule.split(path)
        if isinstance(parts_or_reason, str):
            self.left_out.add(parts_or_reason, entry.path)
            return
        try:
            status = entry.stat()
            if self.skips and not os.access(entry.path, os.R_OK):
                raise PermissionError(EACCES, os.strerror(EACCES))
        except OSError as error:
            self._lose(entry.path, error, member=parts_or_reason)
            return
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file(entry.path)
        if entry.is_symlink() and not _is_below(os.path.realpath(entry.path), folder.real):
            self.left_out.add_outside(entry.path)
        if not self.rule.is_first_dot:
            check_written(*parts_or_reason, to_text(entry.path))
        key, field = parts_or_reason
        if folder.field:
            if not _is_one_kind(field, folder.field):
                self.left_out.add(OTHER_EXTENSION, entry.path)
                return
            field = folder.field
        if key + b"." + field == path:
            self.files.add_row(key + SEPARATOR + field, status.st_size, folder.root)
        else:
            self.files.add(key, field, status.st_size, entry.path)


class _Named(NamedTuple):
    """An entry with only its name."""

    path: bytes
    name: bytes

    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.stat().st_mode)

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def stat(self) -> os.stat_result:
        return os.stat(self.path)


_Entry = os.DirEntry[bytes] | _Named


def _is_folder(entry: _Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # the reader of this file raises the error
        return False


def _not_a_file(path: bytes) -> InputError:
    return InputError(
        f"cannot read {to_text(path)}: it is a device, a socket or a named pipe",
        hint="leave it out with --exclude",
    )
