"""What verify says: findings, the table of their kinds, and the ledger that gathers them within bounds.

What it is: a :class:`Finding` is one thing that is wrong, at one place, with what to do about it. How: every kind has
a code, a severity and a default hint in one table, :data:`KINDS`, from which the man page's list is made too. A
:class:`Ledger` keeps the first findings of each kind and counts the rest, so that a shard of a million bad members
costs no more memory than one of a hundred; :class:`Findings` does the same for all shards.

It must not know how anything is found, nor how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from wdscli.errors import DataError
from wdscli.shown import shown

Severity = Literal["error", "warning"]

MAX_FINDINGS = 100
"""Findings of one kind that are told in full."""


class Finding(NamedTuple):
    """One thing that is wrong. ``shard`` is an address as it is shown, ``offset`` a byte of the shard, ``member`` a
    member's name or a sample's key."""

    code: str
    severity: Severity
    shard: str
    offset: int | None
    member: str | None
    message: str
    hint: str | None


class Kind(NamedTuple):
    """One row of the table: how bad it is, what it means, what to do."""

    severity: Severity
    meaning: str
    hint: str | None = None


_COPY_AGAIN = "make or copy the shard again, or save its whole samples with `wds verify --repair -o OUT`"
_REPAIR = "write what can be kept with `wds verify --repair -o OUT`"

KINDS: dict[str, Kind] = {
    # the archive
    "not-a-tar": Kind("error", "the file does not begin with a tar header, or is empty", _COPY_AGAIN),
    "truncated": Kind("error", "the file ends inside a member, a header or a compressed stream", _COPY_AGAIN),
    "no-end-of-archive": Kind("error", "the two zero blocks at the end are missing", _COPY_AGAIN),
    "data-after-end": Kind(
        "error",
        "bytes follow the end of the archive; readers pass over them",
        "join archives with `wds cat A B -o OUT`",
    ),
    "bad-checksum": Kind("error", "a header's checksum is wrong", _COPY_AGAIN),
    "bad-size": Kind(
        "error", "a member's size cannot be, or readers disagree whether its bytes are there", _COPY_AGAIN
    ),
    "bad-header": Kind("error", "a header's field cannot be read", _COPY_AGAIN),
    "bad-extended-header": Kind("error", "a pax or GNU extended header cannot be read", _COPY_AGAIN),
    "corrupt": Kind("error", "a compressed shard cannot be decompressed", _COPY_AGAIN),
    "unreadable": Kind(
        "error",
        "the shard cannot be opened or read",
        "see whether the address is right and may be read, and try again",
    ),
    # samples
    "interleaved-key": Kind(
        "error",
        "a key comes back later in its shard with other fields",
        "`wds verify --repair -o OUT` joins such samples",
    ),
    "duplicate-key": Kind(
        "error", "a key comes a second time, in its shard or in another", "give new keys, or " + _REPAIR
    ),
    "duplicate-field": Kind("error", "a field comes twice in one sample", _REPAIR),
    "missing-field": Kind(
        "error",
        "a sample lacks a field of --require, or one that the manifest says every sample has",
        "make these samples again, or leave them out when they are read",
    ),
    "case-collision": Kind(
        "warning",
        "names differ in upper and lower case only: two fields of a sample, or two keys of a shard",
        "webdataset reads fields in lower case, and some file systems keep only one of such files: rename one",
    ),
    "mixed-fields": Kind(
        "warning", "samples have other fields than most", "name what every sample must have with --require"
    ),
    "no-field": Kind(
        "warning",
        "a file belongs to no sample: its name has no dot, or begins with one",
        "readers pass over such files",
    ),
    "empty-payload": Kind("warning", "a member has no bytes", "see whether its source was empty"),
    "undecodable": Kind("error", "a payload is not what its field says (--decode)", "make the payload again"),
    # members
    "unsafe-name": Kind(
        "error",
        "a name is absolute, has a `..` or a NUL, or is empty",
        "give the member another name, or " + _REPAIR,
    ),
    "link": Kind(
        "error", "a member is a link", "GNU tar stores the files themselves with --dereference; or " + _REPAIR
    ),
    "special": Kind("error", "a member is a device, a fifo or of some vendor's kind", _REPAIR),
    "sparse": Kind("error", "a member is a sparse file", "make the archive without --sparse, or " + _REPAIR),
    "damaged": Kind("error", "a sample next to lost bytes is not saved by --repair, because it lacks fields"),
    # side files
    "stale-index": Kind(
        "error",
        "the index beside a shard is damaged or of another version of it",
        "make it again with `wds index`",
    ),
    "manifest-mismatch": Kind(
        "error",
        "the manifest and the shards disagree",
        "copy the set again, or write a new manifest with `wds index`",
    ),
    "checksum-mismatch": Kind(
        "error",
        "a shard's bytes are not those of the manifest's checksum (--checksums)",
        "copy the shard again",
    ),
    "unchecked": Kind(
        "warning",
        "there is no checksum to compare with (--checksums), a payload is larger than --max-decoded, or what decodes "
        "a field is not installed (--decode)",
        "`wds index` writes checksums",
    ),
}


def kind_of(code: str) -> Kind:
    """The row of a code; codes of profiles (``dali-pax-header``) are in ``profiles``."""
    known = KINDS.get(code)
    if known is None:
        from wdscli.verify.profiles import DEMANDS

        known = DEMANDS.get(code)
    return known or Kind("error", "", None)


class Ledger:
    """The findings of one shard: of each kind the first ``limit``, and the count of all."""

    def __init__(self, shard: str, limit: int = MAX_FINDINGS) -> None:
        self.shard = shown(shard)
        self.limit = limit
        self.findings: list[Finding] = []
        self.counts: dict[str, int] = {}

    def add(
        self,
        code: str,
        message: str,
        *,
        offset: int | None = None,
        member: str | None = None,
        hint: str | None = None,
    ) -> None:
        """One finding; told in full while its kind has had fewer than ``limit``."""
        count = self.counts.get(code, 0)
        self.counts[code] = count + 1
        if count < self.limit:
            kind = kind_of(code)
            text, hint = shown(message), shown(hint) if hint else kind.hint
            self.findings.append(Finding(code, kind.severity, self.shard, offset, member, text, hint))

    def add_error(self, error: DataError) -> None:
        """A finding from an error that a reader raised."""
        self.add(error.code, error.message, offset=error.offset, member=error.member, hint=error.hint)

    def more(self, code: str, count: int) -> None:
        """``count`` findings that are counted only."""
        if count > 0:
            self.counts[code] = self.counts.get(code, 0) + count

    def room(self, code: str) -> int:
        """How many more findings of this kind are told in full."""
        return max(0, self.limit - self.counts.get(code, 0))

    def has(self, codes: Iterable[str]) -> bool:
        """Whether there is any finding of these kinds."""
        return any(code in self.counts for code in codes)

    def blame_shard(self) -> None:
        """Where the archive itself is damaged its side files are not to blame, and to make them anew would hide it."""
        if self.has(STRUCTURAL):
            self.findings = [
                finding._replace(hint=_COPY_AGAIN) if finding.code in _SIDE_FILES else finding
                for finding in self.findings
            ]


class Findings:
    """What all ledgers of a set say: of each kind the first ``limit``, and the count of all."""

    def __init__(self, limit: int = MAX_FINDINGS) -> None:
        self.limit = limit
        self.told: list[Finding] = []
        self.counts: dict[str, int] = {}
        self._room: dict[str, int] = {}

    def add(self, findings: Sequence[Finding], counts: dict[str, int]) -> None:
        """The findings of one ledger, and its counts."""
        for finding in findings:
            room = self._room.get(finding.code, self.limit)
            if room:
                self._room[finding.code] = room - 1
                self.told.append(finding)
        for code, count in counts.items():
            self.counts[code] = self.counts.get(code, 0) + count


STRUCTURAL = frozenset(
    (
        "not-a-tar",
        "truncated",
        "no-end-of-archive",
        "data-after-end",
        "bad-checksum",
        "bad-size",
        "bad-header",
        "bad-extended-header",
        "corrupt",
        "unreadable",
    )
)
"""Kinds after which a shard's members are not all known."""
_SIDE_FILES = ("stale-index", "manifest-mismatch")
