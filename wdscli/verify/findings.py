"""What verify says: findings, the table of their kinds, and the ledger that gathers them within bounds.

What it is: a :class:`Finding` is one thing that is wrong, at one place, with what to do about it. How: every kind has
a code, a severity and a default hint in a table, :data:`KINDS` or :data:`DEMANDS`, from which the man page's list is
made too. A :class:`Ledger` keeps the first findings of each kind and counts the rest, so that a shard of a million bad
members costs no more memory than one of a hundred; the ledger of a set does the same with those of its shards.

It must not know how anything is found, nor how it is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.shown import shown

Severity = Literal["error", "warning"]

MAX_FINDINGS = 100
"""Findings of one kind that are reported in full."""


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
    """One row of the table: what it means, what to do, how bad it is."""

    meaning: str
    hint: str | None = None
    severity: Severity = "error"


_COPY_AGAIN = "make or copy the shard again, or save its whole samples with `wds repair -o OUT`"
_REPAIR = "write what can be kept with `wds repair -o OUT`"

_SIDE_FILES = ("stale-index", "manifest-mismatch")
_ENTRY = re.compile(r"\n {4}(?! )")


def _table(text: str) -> dict[str, Kind]:
    """Kinds by code: ``code: meaning``, or ``code (warning): meaning``, and behind an arrow what to do."""
    kinds = {}
    for entry in _ENTRY.split(text.strip()):
        what, _, hint = " ".join(entry.split()).partition(" -> ")
        name, _, meaning = what.partition(": ")
        code, _, mark = name.partition(" ")
        hint = hint.format(copy=_COPY_AGAIN, repair=_REPAIR)
        kinds[code] = Kind(meaning, hint or None, "warning" if mark else "error")
    return kinds


_OF_ARCHIVES = _table("""
    not-a-tar: the file does not begin with a tar header, or is empty
        -> {copy}
    truncated: the file ends inside a member, a header or a compressed stream
        -> {copy}
    no-end-of-archive: the two zero blocks at the end are missing
        -> {copy}
    data-after-end: bytes follow the end of the archive; readers pass over them
        -> join archives with `wds cat A B -o OUT`, or {repair}
    bad-checksum: a header's checksum is wrong
        -> {copy}
    bad-size: a member's size cannot be, or readers disagree whether its bytes are there
        -> {copy}
    bad-header: a header's field cannot be read
        -> {copy}
    bad-extended-header: a pax or GNU extended header cannot be read
        -> {copy}
    corrupt: a compressed shard cannot be decompressed
        -> {copy}
    unreadable: the shard cannot be opened or read
        -> see whether the address is right and may be read, and try again
    """)
STRUCTURAL = frozenset(_OF_ARCHIVES)
"""Kinds after which a shard's members are not all known."""
_OF_SAMPLES = _table("""
    interleaved-key: a key comes back later in its shard with other fields
        -> `wds repair -o OUT` joins such samples
    duplicate-key: a key comes a second time, in its shard or in another
        -> give new keys, or {repair}
    duplicate-field: a field comes twice in one sample
        -> {repair}
    missing-field: a sample lacks a field of --require, or one that the manifest says every sample has
        -> make these samples again, or leave them out when they are read
    case-collision (warning): names differ in upper and lower case only: two fields of a sample, or two keys of a
        shard
        -> webdataset reads fields in lower case, and some file systems keep only one of such files: rename one
    mixed-fields (warning): samples have other fields than most
        -> name what every sample must have with --require
    no-field (warning): a file belongs to no sample: its name has no dot, or begins with one, as ._x of macOS
        -> readers pass over such files
    empty-payload (warning): a member has no bytes
        -> see whether its source was empty
    undecodable: a payload is not what its field says (--decode)
        -> make the payload again
    """)
_OF_MEMBERS = _table("""
    unsafe-name: a name is absolute, has a `..` or a NUL, or is empty
        -> give the member another name, or {repair}
    link: a member is a link
        -> GNU tar stores the files themselves with --dereference --hard-dereference; or {repair}
    special: a member is a device, a fifo or of some vendor's kind
        -> if it was made with GNU tar's --label, --listed-incremental or --multi-volume, make it without; or {repair}
    sparse: a member is a sparse file
        -> make the archive without --sparse, or {repair}
    damaged: a sample next to lost bytes is not saved by `wds repair`, because it lacks fields
    """)
_OF_SIDE_FILES = _table("""
    stale-index: an index beside a shard or a set, ours or another program's, is damaged or does not fit any more
        -> make it again with `wds index`
    manifest-mismatch: the manifest and the shards disagree
        -> copy the set again, or write a new manifest with `wds index --force`
    unfinished: a run has not finished writing, replacing or appending to the set
        -> run the same command again with --resume
    checksum-mismatch: a shard's bytes are not those of the manifest's checksum (--checksums)
        -> copy the shard again
    unchecked (warning): there is no checksum to compare with (--checksums), a payload is larger than
        WDSCLI_MAX_DECODED, or what decodes a field is not installed (--decode)
        -> `wds index` writes checksums
    """)
KINDS: dict[str, Kind] = {**_OF_ARCHIVES, **_OF_SAMPLES, **_OF_MEMBERS, **_OF_SIDE_FILES}
DEMANDS = _table("""
    webdataset-upper-case (warning): webdataset gives a field in lower case: the code must ask for it so
        -> write the field in lower case
    webdataset-case-collision: webdataset stops at two fields of a sample that differ in case only
        -> rename one of the fields
    webdataset-reserved-field: webdataset keeps __key__, __url__ and __local_path__ for itself
        -> rename the field
    webdataset-skipped (warning): webdataset passes over names of the form __x__
        -> rename the member
    hf-empty-shard: Hugging Face datasets needs a sample in the first shard
        -> remove the shard from the set
    hf-mixed-fields: Hugging Face datasets wants the same fields in the first five samples
        -> put samples that have every field first
    hf-dropped-field (warning): Hugging Face datasets drops a field, or a key inside JSON, that the first five samples
        lack
        -> put samples that have every field first, or give load_dataset its features
    hf-mixed-types: Hugging Face datasets takes the types inside JSON from the first five samples, and fails at a
        value of another type or changes it
        -> write each place in JSON with one type, or give load_dataset its features
    hf-undecodable: Hugging Face datasets cannot read the payload: broken JSON, or text that is not UTF-8
        -> replace the file
    hf-not-an-integer: Hugging Face datasets parses cls, cls2, index, inx and id as integers
        -> rename the field, or mend it
    hf-raw-field (warning): Hugging Face datasets knows no feature for the field and gives raw bytes
        -> decode it in your own code
    hf-skipped (warning): Hugging Face datasets passes over files that begin with "." or "__"
        -> rename the member
    dali-pax-header: DALI cannot read pax headers, unless it has an index that leads past them
        -> write the shards again with --long-names gnu, or make an index with `wds index --for dali`
    dali-blank: a DALI index cannot hold names with blanks
        -> rename the member
    dali-missing-component (warning): DALI gives an empty tensor for a component that a sample lacks
        -> choose missing_component_behavior, or make samples whole
    dali-compressed: DALI reads plain tar only
        -> decompress the shard: `wds cat SHARD -o OUT.tar`
    energon-empty-shard: Energon refuses a shard without samples
        -> remove the shard from the set
    energon-compressed: Energon's index points into the plain tar
        -> decompress the shard: `wds cat SHARD -o OUT.tar`
    energon-skipped (warning): Energon passes over names of the form __x__
        -> rename the member
    """)
"""What four readers demand beyond what any reader does; each code begins with the reader's name."""


def kind_of(code: str) -> Kind:
    """The row of a code."""
    return KINDS.get(code) or DEMANDS.get(code) or Kind("")


class FindingKind(NamedTuple):
    """All findings of one kind: how many there are, those that are reported in full, and what to do."""

    code: str
    severity: Severity
    meaning: str
    total: int
    findings: list[Finding]
    hints: list[str]


def by_kind(findings: Iterable[Finding], counts: Mapping[str, int]) -> list[FindingKind]:
    """Findings under their kinds, in the order of ``counts``."""
    by_code: dict[str, list[Finding]] = {code: [] for code in counts}
    for finding in findings:
        by_code[finding.code].append(finding)
    return [
        FindingKind(
            code,
            kind_of(code).severity,
            kind_of(code).meaning,
            counts[code],
            found,
            list(dict.fromkeys(one.hint for one in found if one.hint)),
        )
        for code, found in by_code.items()
    ]


class Ledger:
    """The findings of one shard, or of a set: of each kind the first ``limit``, and the count of all."""

    def __init__(self, shard: str = "", limit: int = MAX_FINDINGS) -> None:
        self.shard = shown(shard)
        self.limit = limit
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()

    def add(
        self,
        code: str,
        message: str,
        *,
        offset: int | None = None,
        member: bytes | str | None = None,
        hint: str | None = None,
    ) -> None:
        """One finding; reported in full while its kind has had fewer than ``limit``."""
        self.counts[code] += 1
        if self.room(code):
            kind = kind_of(code)
            text, hint = shown(message), shown(hint) if hint else kind.hint
            name = to_text(member) if isinstance(member, bytes) else member
            self._report(Finding(code, kind.severity, self.shard, offset, name, text, hint))

    def _report(self, finding: Finding) -> None:
        self._reported[finding.code] += 1
        self.findings.append(finding)

    def add_error(self, error: DataError) -> None:
        """A finding from an error that a reader raised."""
        self.add(error.code, error.message, offset=error.offset, member=error.member, hint=error.hint)

    def add_all(self, ledger: Ledger) -> None:
        """What the ledger of one shard says."""
        self.counts.update(ledger.counts)
        for finding in ledger.findings:
            if self.room(finding.code):
                self._report(finding)

    def more(self, code: str, count: int) -> None:
        """``count`` findings that are counted only."""
        if count > 0:
            self.counts[code] += count

    def room(self, code: str) -> int:
        """How many more findings of this kind are reported in full."""
        return self.limit - self._reported[code]

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
