"""From what a user writes for an output to the addresses of shards 0, 1, 2, ...

What it is: :class:`OutputPattern`. How: a printf field (``out-%06d.tar``) gives as many names as are needed,
braces (``out-{0000..0127}.tar``) exactly theirs, anything else one. A placeholder in braces (``{part}``) is
text here, for others to fill in. It must not open anything; :meth:`OutputPattern.existing` only lists.
"""

from __future__ import annotations

import re

from wdscli.errors import InputError, UsageError
from wdscli.storage.addresses import is_local, is_stream, local_path, natural, split_folder
from wdscli.storage.expand import BRACES, expand_braces
from wdscli.storage.trust import check_pipe

_PERCENT = re.compile(r"%%|%0?[0-9]*d|%")
_FIELD = re.compile(r"%0?[0-9]*d")
_TAR_SUFFIX = re.compile(r"\.tar(\.[A-Za-z0-9]+)?$|\.t[a-z0-9]z2?$")
_JOINTS = "-_."
MAX_DIGITS = 200
"""Of a shard's number. No file system has longer names."""


class OutputPattern:
    """The names of the shards that one command writes.

    ``text`` is as given. ``count`` is the exact number of shards for braces, else None. ``single`` says that
    all goes to one address (a file, ``-``, or ``pipe:`` without a field); ``is_stream`` that it goes to
    ``-``, a command or a device, which has no folder, no manifest beside it and no final name.

    >>> pattern = OutputPattern.parse("out-%06d.tar")
    >>> pattern.address(7), pattern.count, pattern.prefix_address("manifest.json")
    ('out-000007.tar', None, 'out-manifest.json')
    """

    __slots__ = ("_field", "_known", "_names", "_parts", "count", "is_stream", "single", "text")

    def __init__(
        self, text: str, parts: tuple[str, str], field: str | None, names: list[str] | None, is_stream: bool
    ) -> None:
        if field is not None and (len(field) > 8 or int(field.strip("%d") or 0) > MAX_DIGITS):
            raise UsageError(
                f"a shard's number of more than {MAX_DIGITS} digits: {text[:80]}",
                hint="%06d is the usual one",
            )
        self.text = text
        self._parts = parts
        self._field = field
        self._names = names
        self._known = frozenset(names or parts[:1])
        self.count = None if names is None else len(names)
        self.single = field is None and names is None
        self.is_stream = is_stream

    @classmethod
    def parse(cls, text: str) -> OutputPattern:
        """Raises UsageError for a text that cannot name shards."""
        if not text:
            raise UsageError("an output needs a name", hint="out-%06d.tar, out.tar, - or pipe:CMD")
        if is_stream(text):
            check_pipe(text)
            return _command_pattern(text)
        from wdscli.storage.opening import is_device, refuse_compressed

        refuse_compressed(text)
        parts, field = _fields(text)
        if BRACES.search(text):
            return _brace_pattern(text, parts, field)
        if field is None and text.endswith("/"):
            raise UsageError(f"{text} is a folder's name", hint=f"{text}%06d.tar names the shards in it")
        device = field is None and is_local(text) and is_device(local_path(parts[0]))
        return cls(text, parts, field, None, device)

    def address(self, index: int) -> str:
        """The address of shard ``index``, from 0. A single output has only shard 0."""
        if self._names is not None:
            if index >= len(self._names):
                raise UsageError(f"{self.text} names {len(self._names)} shards and more are needed")
            return self._names[index]
        if self._field is None:
            if index:
                raise UsageError(
                    f"{self.text} names one shard and more are needed",
                    hint="out-%06d.tar names as many as needed",
                )
            return self._parts[0]
        return self._parts[0] + self._field % index + self._parts[1]

    def prefix_address(self, suffix: str) -> str:
        """The address of the set's own file ``suffix`` beside the shards: ``out-manifest.json`` for
        ``manifest.json``.

        The prefix is the file name before the shard's number, or without ``.tar``, less the ``-_.`` that it
        ends with.
        """
        if self.is_stream:
            raise UsageError(f"{self.text} has no folder for {suffix}")
        folder, name = split_folder(self._prefix())
        name = name.rstrip(_JOINTS)
        return f"{folder}{name}-{suffix}" if name else folder + suffix

    def _prefix(self) -> str:
        if self._names is not None:
            return self._parts[0][: _first_brace(self._parts[0])]
        return self._parts[0] if self._field else _TAR_SUFFIX.sub("", self._parts[0])

    def could_name(self, address: str) -> bool:
        """Whether this pattern could give an address to any shard. Addresses are compared as they are written.

        >>> pattern = OutputPattern.parse("out-%06d.tar")
        >>> pattern.could_name("out-000007.tar"), pattern.could_name("out-7.tar"), pattern.could_name("x.tar")
        (True, False, False)
        """
        if self._field is None:
            return address in self._known
        before, after = self._parts
        digits = address[len(before) : len(address) - len(after)]
        is_number = digits.isascii() and digits.isdigit()
        return is_number and address.startswith(before) and address.endswith(after) and self._is_own(digits)

    def existing(self) -> list[str]:
        """What is there already under a name that this pattern could give to any shard, in natural order."""
        if self.is_stream:
            return []
        from wdscli.storage.opening import exists

        if self._field is None:
            return [name for name in self._names or [self._parts[0]] if exists(name)]
        return sorted(self._numbered(), key=natural)

    def _numbered(self) -> list[str]:
        """Names with a number in the field's place. The field may stand in a folder's name."""
        from wdscli.storage.opening import exists, list_folder

        folder, before = split_folder(self._parts[0])
        inside, slash, below = self._parts[1].partition("/")
        named = re.compile(re.escape(before) + r"([0-9]+)" + re.escape(inside), re.DOTALL)
        try:
            names = list_folder(folder, lambda name: named.fullmatch(name) is not None)
        except InputError:
            return []
        matches = [match for name in names if (match := named.fullmatch(name)) and self._is_own(match[1])]
        found = [folder + match[0] + slash + below for match in matches]
        return [address for address in found if exists(address)] if below else found

    def _is_own(self, digits: str) -> bool:
        return self._field is not None and self._field % int(digits) == digits


def _fields(text: str) -> tuple[tuple[str, str], str | None]:
    """(the text before and after the number, the field). ``%%`` is a percent sign, another ``%`` an error."""
    before, after, field = "", "", None
    position = 0
    for match in _PERCENT.finditer(text):
        token = match[0]
        plain = text[position : match.start()]
        position = match.end()
        if token == "%":
            raise UsageError(
                f"cannot read the % at character {match.start() + 1} of {text} as a shard's number",
                hint="%06d is the shard's number, %% a percent sign",
            )
        if token != "%%":
            if field is not None:
                raise UsageError(f"{text} has two fields for the shard's number", hint="leave one %06d")
            before, after, field = before + plain, "", token
        elif field is None:
            before += plain + "%"
        else:
            after += plain + "%"
    rest = text[position:]
    return ((before + rest, "") if field is None else (before, after + rest)), field


def _brace_pattern(text: str, parts: tuple[str, str], field: str | None) -> OutputPattern:
    if field is not None:
        raise UsageError(f"{text} has braces and a %d field", hint="braces for an exact number, %06d for any")
    names = expand_braces(parts[0], UsageError)
    if len(set(names)) < len(names):
        raise UsageError(f"{text} names the same shard twice")
    return OutputPattern(text, parts, None, names, False)


def _command_pattern(text: str) -> OutputPattern:
    """``-``, or a command: there only ``%d`` fields are ours, ``date +%s`` is the shell's."""
    fields = list(_FIELD.finditer(text.replace("%%", "\0\0")))
    if len(fields) > 1:
        raise UsageError(f"{text} has two fields for the shard's number", hint="%% is a percent sign")
    if not fields:
        return OutputPattern(text, (text.replace("%%", "%"), ""), None, None, True)
    start, end = fields[0].span()
    before, after = text[:start].replace("%%", "%"), text[end:].replace("%%", "%")
    return OutputPattern(text, (before, after), text[start:end], None, True)


def _first_brace(text: str) -> int:
    match = BRACES.search(text)
    return match.start() if match else len(text)
