"""This module has the findings of verify: the table of their kinds, and the ledger, which collects a limited number of
them.

A :class:`Finding` is one problem at one place, with a hint how to mend it. The tables :data:`KINDS` and :data:`DEMANDS`
have the severity and the default hint of each code. A test compares the man page with them. A :class:`Ledger` keeps the
first findings of each kind, and counts the rest. So a shard with a million bad members needs no more memory than a
shard with a hundred. The ledger of a set collects the ledgers of its shards in the same way.

This module does not know how findings are found or shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from wdscli.errors import DataError, UsageError, did_you_mean
from wdscli.shown import shown
from wdscli.text import to_text

Severity = Literal["error", "warning"]

MAX_FINDINGS = 100
"""How many findings of one kind are reported in full."""


class Finding(NamedTuple):
    """One problem. ``shard`` is a redacted address, ``offset`` a byte of the shard, ``member`` a member's name or a
    sample's key."""

    code: str
    severity: Severity
    shard: str
    offset: int | None
    member: str | None
    message: str
    hint: str | None


class FindingRow(NamedTuple):
    """One row of the table: what the code means, the hint, and the severity."""

    meaning: str
    hint: str | None = None
    severity: Severity = "error"


_COPY_AGAIN = "copy or create the shard again, or save its whole samples with `wds repair SHARDS -o OUT`"
_REPAIR = "save the intact samples with `wds repair SHARDS -o OUT`"

_SIDE_FILES = ("stale-index", "manifest-mismatch")
_ENTRY = re.compile(r"\n {4}(?! )")


def _table(text: str) -> dict[str, FindingRow]:
    """Parse a table of kinds, and return the kinds by code. An entry is ``code: meaning`` or ``code (warning):
    meaning``. A hint may follow after an arrow."""
    kinds = {}
    for entry in _ENTRY.split(text.strip()):
        what, _, hint = " ".join(entry.split()).partition(" -> ")
        name, _, meaning = what.partition(": ")
        code, _, mark = name.partition(" ")
        hint = hint.format(copy=_COPY_AGAIN, repair=_REPAIR)
        kinds[code] = FindingRow(meaning, hint or None, "warning" if mark else "error")
    return kinds


_OF_ARCHIVES = _table("""
    not-a-tar: the file does not begin with a tar header, or is empty
        -> {copy}
    truncated: the file ends inside a member, a header or a compressed stream
        -> {copy}
    no-end-of-archive: the two zero blocks at the end are missing
        -> {copy}
    data-after-end: bytes follow the end of the archive; readers ignore them
        -> join archives with `wds cat A B -o OUT`, or {repair}
    bad-checksum: a header's checksum is wrong
        -> {copy}
    bad-size: a member's size is impossible, or readers disagree about where its payload ends
        -> {copy}
    bad-header: a header has a field that is no number
        -> {copy}
    bad-extended-header: a pax or GNU extended header cannot be parsed
        -> {copy}
    corrupt: a compressed shard cannot be decompressed
        -> {copy}
    unreadable: the shard cannot be opened or read
        -> check the address and your permission to read it, then try again
    """)
STRUCTURAL = frozenset(_OF_ARCHIVES)
"""Kinds after which some of a shard's members may be unknown."""
NOT_SEARCHED = STRUCTURAL | {"unsafe-name", "link", "special", "sparse"}
"""Kinds after which a tar reader may find a key that a search for keys does not find."""
_OF_SAMPLES = _table("""
    interleaved-key: a key comes back later in its shard with other fields
        -> join such samples with `wds repair SHARDS -o OUT`
    duplicate-key: two samples have the same key, in one shard or in two
        -> give the samples new keys, or {repair}
    duplicate-field: a sample has the same field twice
        -> {repair}
    missing-field: a sample lacks a field of --require, or a field that every sample has according to the manifest
        -> create these samples again, or leave them out: wds split SHARDS --where "'EXT' in fields" -o VIEW.json
    case-collision (warning): two fields of a sample, or two keys of a shard, differ only in upper and lower case
        -> rename one: webdataset lowercases fields, and some file systems keep only one of two such files
    mixed-fields (warning): some samples have different fields than most
        -> name the fields that every sample must have with --require
    no-field (warning): a file belongs to no sample: its name has no dot, or begins with one, as ._x of macOS
        -> readers skip such files; remove them to silence this
    empty-payload (warning): a member has no bytes
        -> check whether its source file is empty
    present-key: a sample has a key of --absent
        -> leave it out: wds split SHARDS --not-keys-from LIST -o VIEW.json
    similar-key (warning): a sample's key and a key of --absent are the same path, written in two ways
        -> write the key in the list as in the shard, and search again
    other-format (warning): a picture has another format than its field's name says (--decode)
        -> rename such fields with `wds map SHARDS -o OUT --rename-by-content`
    undecodable: a payload is not what its field's name says (--decode)
        -> replace the file
    """)
_OF_MEMBERS = _table("""
    unsafe-name: a name is absolute, empty, or contains `..` or a NUL
        -> rename the member, or {repair}
    link: a member is a link
        -> archive the files themselves (GNU tar: --dereference --hard-dereference), or {repair}
    special: a member is a device, a fifo or a vendor's own kind
        -> archive without GNU tar's --label, --listed-incremental and --multi-volume, or {repair}
    sparse: a member is a sparse file
        -> archive without --sparse, or {repair}
    damaged: a sample cannot be saved, because it lost a member, or lacks fields next to lost bytes
    """)
_OF_SIDE_FILES = _table("""
    stale-index: the index of a shard is damaged or out of date
        -> rebuild it with `wds index`
    manifest-mismatch: the manifest and the shards disagree
        -> copy the set again, or write a new manifest with `wds index --force`
    unfinished: a run has not finished writing, replacing or appending to the set
        -> run the same command again with --resume
    checksum-mismatch: a shard's bytes do not match the checksum in the manifest (--checksums)
        -> copy the shard again
    unchecked (warning): there is no checksum to compare with (--checksums), or payloads were not decoded (--decode):
        they are pickles or larger than WDSCLI_MAX_DECODED, or need a package that is not installed
        -> write checksums with `wds index`
    """)
KINDS: dict[str, FindingRow] = {**_OF_ARCHIVES, **_OF_SAMPLES, **_OF_MEMBERS, **_OF_SIDE_FILES}
DEMANDS = _table("""
    webdataset-upper-case (warning): webdataset returns a field in lower case, so code must ask for it in lower case
        -> rename the field to lower case
    webdataset-case-collision: webdataset fails at two fields of a sample that differ only in case
        -> rename one of the fields
    webdataset-reserved-field: webdataset uses __key__, __url__ and __local_path__ itself
        -> rename the field
    webdataset-skipped (warning): webdataset skips names of the form __x__
        -> rename the member
    hf-empty-shard: Hugging Face datasets needs a sample in the first shard
        -> remove the shard from the set
    hf-mixed-fields: Hugging Face datasets needs the same fields in the first five samples
        -> put samples that have every field first
    hf-dropped-field (warning): Hugging Face datasets drops a field, or a key inside JSON, that the first five samples
        lack
        -> put samples that have every field first, or pass features= to load_dataset
    hf-mixed-types: Hugging Face datasets takes the types inside JSON from the first five samples; it fails at a value
        of another type, or changes it
        -> write each place in JSON with one type, or pass features= to load_dataset
    hf-undecodable: Hugging Face datasets cannot read the payload: broken JSON, or text that is not UTF-8
        -> replace the file
    hf-not-an-integer: Hugging Face datasets parses cls, cls2, index, inx and id as integers
        -> rename the field, or correct its value
    hf-raw-field (warning): Hugging Face datasets has no decoder for the field and returns raw bytes
        -> decode it in your own code
    hf-skipped (warning): Hugging Face datasets skips files that begin with "." or "__"
        -> rename the member
    dali-pax-header: DALI cannot read pax headers without an index
        -> write the shards again with --long-names gnu, or write an index with `wds index --for dali`
    dali-blank: a DALI index cannot hold names with blanks
        -> rename the member
    dali-missing-component (warning): DALI returns an empty tensor for a component that a sample lacks
        -> choose missing_component_behavior, or add the missing fields
    dali-compressed: DALI reads only uncompressed tar
        -> decompress the shard: `wds cat SHARD -o OUT.tar`
    energon-empty-shard: Energon refuses a shard without samples
        -> remove the shard from the set
    energon-compressed: Energon's index needs an uncompressed tar
        -> decompress the shard: `wds cat SHARD -o OUT.tar`
    energon-skipped (warning): Energon skips names of the form __x__
        -> rename the member
    """)
"""Further requirements of four readers. Each code begins with the name of the reader."""


WARNINGS = sorted(code for code, kind in {**KINDS, **DEMANDS}.items() if kind.severity == "warning")
"""Kinds that are warnings unless a user makes them errors."""


def undecoded_text(undecoded: Mapping[str, str]) -> str:
    """Return the fields that were not decoded, and why, as text.

    >>> undecoded_text({"mp4": "av is not installed", "mov": "av is not installed"})
    'mov, mp4 (av is not installed)'
    """
    fields: dict[str, list[str]] = {}
    for field, why in sorted(undecoded.items()):
        fields.setdefault(why, []).append(field)
    return ", ".join(f"{', '.join(names)} ({why})" for why, names in fields.items())


def row_of_code(code: str) -> FindingRow:
    """Return the row of a code. It is empty for an unknown code."""
    return KINDS.get(code) or DEMANDS.get(code) or FindingRow("")


class FindingKind(NamedTuple):
    """All findings of one kind: the total, the findings reported in full, and their hints."""

    code: str
    severity: Severity
    meaning: str
    total: int
    findings: list[Finding]
    hints: list[str]


def parse_codes(codes: Iterable[str]) -> frozenset[str]:
    """Return the codes of ``--errors``. Raises UsageError for an unknown code."""
    chosen = frozenset(codes)
    for code in sorted(chosen - KINDS.keys() - DEMANDS.keys()):
        hint = did_you_mean(code, [*KINDS, *DEMANDS]) or "the man page wdscli-verify lists all codes"
        raise UsageError(f"--errors {code}: no such kind of finding", hint=hint)
    return chosen


def severity_of(code: str, errors: Collection[str]) -> Severity:
    """Return the severity of a kind. The kinds in ``errors`` are errors."""
    return "error" if code in errors else row_of_code(code).severity


def by_kind(
    findings: Iterable[Finding], counts: Mapping[str, int], errors: Collection[str] = ()
) -> list[FindingKind]:
    """Group findings by kind, in the order of ``counts``. The kinds in ``errors`` are errors."""
    by_code: dict[str, list[Finding]] = {code: [] for code in counts}
    for finding in findings:
        by_code[finding.code].append(finding)
    return [
        FindingKind(
            code,
            severity_of(code, errors),
            row_of_code(code).meaning,
            counts[code],
            reported,
            list(dict.fromkeys(finding.hint for finding in reported if finding.hint)),
        )
        for code, reported in by_code.items()
    ]


class Ledger:
    """The findings of one shard, or of a set. It has the first ``limit`` findings of each kind, and the count of all
    findings."""

    def __init__(self, shard: str = "", limit: int = MAX_FINDINGS) -> None:
        self.shard = shown(shard)
        self.limit = limit
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.undecoded: dict[str, str] = {}
        """The fields with payloads that ``--decode`` did not decode, and why."""
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
        """Add one finding. It is only counted if its kind already has ``limit`` findings."""
        self.counts[code] += 1
        if self.room(code):
            kind = row_of_code(code)
            text, hint = shown(message), shown(hint) if hint else kind.hint
            name = to_text(member) if isinstance(member, bytes) else member
            self._report(Finding(code, kind.severity, self.shard, offset, name, text, hint))

    def _report(self, finding: Finding) -> None:
        self._reported[finding.code] += 1
        self.findings.append(finding)

    def add_error(self, error: DataError) -> None:
        """Add a finding from an error that a reader raised."""
        if error.code == "changed" and error.shard and error.shard != self.shard:
            self.add(error.code, str(error), hint=error.hint)
        else:
            self.add(error.code, error.message, offset=error.offset, member=error.member, hint=error.hint)

    def add_all(self, ledger: Ledger) -> None:
        """Add the findings of one shard's ledger."""
        self.counts.update(ledger.counts)
        self.undecoded.update(ledger.undecoded)
        for finding in ledger.findings:
            if self.room(finding.code):
                self._report(finding)

    def more(self, code: str, count: int) -> None:
        """Count ``count`` findings without reporting them."""
        if count > 0:
            self.counts[code] += count

    def room(self, code: str) -> int:
        """Return how many more findings of this kind will be reported in full."""
        return self.limit - self._reported[code]

    def has(self, codes: Iterable[str]) -> bool:
        """Return whether there is a finding of any of these kinds."""
        return any(code in self.counts for code in codes)

    def blame_shard(self) -> None:
        """Change the hints about side files if the archive itself is damaged. If the side files were written again,
        they would hide the damage."""
        if self.has(STRUCTURAL):
            self.findings = [
                finding._replace(hint=_COPY_AGAIN) if finding.code in _SIDE_FILES else finding
                for finding in self.findings
            ]
