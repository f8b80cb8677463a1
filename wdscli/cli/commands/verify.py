"""``wds verify``: parse the options, check the shards, and print the findings."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from wdscli.cli.options import GeneralOptions, Positive, Shards, Text, Texts, decode_limit, grouped, panel
from wdscli.cli.output import Out, facts, plural
from wdscli.errors import UsageError
from wdscli.text import to_bytes
from wdscli.units import human_size
from wdscli.verify.findings import MAX_FINDINGS, WARNINGS, FindingKind, by_kind, undecoded_text
from wdscli.verify.keys import PRESENT, KeyList
from wdscli.verify.profiles import PROFILES
from wdscli.verify.set import VerifyReport
from wdscli.verify.set import verify as run
from wdscli.verify.shard import Checks


@panel("Checks")("""
    --decode  Decode all payloads that the loader can decode: json, cls, txt, npy, images, sound, film and others.
    --checksums  Compare every byte with the checksums of the manifest.
    --require EXT,...  Fields that every sample must have. If every sample has a field according to the manifest, the
        field is always required.
    profile: --for READER  Also check the rules of this reader: webdataset, hf, dali or energon. Repeatable.
    --absent LIST  Check that no sample has a key that LIST contains. LIST has one key per line, or is a table with a
        column key. Exit with 1 if a sample has such a key.
    --report FILE  With --absent: write a proof as JSON. The proof names the searched shards and the keys found.
    --errors CODE,...  Treat warnings of these kinds as errors, such as empty-payload. Repeatable.
    --strict  Exit with 1 even if there are only warnings.
    --max-findings N  List N findings of each kind, and count the rest.
    -j, --jobs N  The most processes. Fewer start if the work is small. Default: one per processor.
    """)
class CheckOptions(NamedTuple):
    """The options about checks and reported findings."""

    decode: bool = False
    checksums: bool = False
    require: Texts = None
    profile: Annotated[Texts, PROFILES] = None
    absent: Text = None
    report: Text = None
    errors: Annotated[Texts, WARNINGS] = None
    strict: bool = False
    max_findings: Annotated[int, 0] = MAX_FINDINGS
    jobs: Positive = None

    def parse(self) -> Checks:
        """Return the library's options, which checks and repairs share. Raises UsageError."""
        limit = decode_limit()
        return Checks(
            tuple(map(to_bytes, _split(self.require))),
            tuple(self.profile or ()),
            limit if self.decode else None,
            self.checksums,
            self.max_findings,
            frozenset(_split(self.errors)),
            None if self.absent is None else KeyList.at(self.absent),
        )


def _split(texts: Sequence[str] | None) -> list[str]:
    """Return the parts of texts with commas."""
    return [part for text in texts or () for part in text.split(",") if part]


@grouped
def verify(shards: Shards, general: GeneralOptions, checks: CheckOptions) -> int:
    """Check shards and report everything that is wrong with them.

    Reads the headers of every shard, compares them with the index and the manifest next to it, and continues after
    damage. Exit status: 0 without errors, 1 if it finds an error, 4 if it cannot read a shard.

    Examples:

        wds verify shards/
        wds verify 'train-{000000..000009}.tar' --checksums --decode --strict
        wds verify shards/ --for webdataset --for hf --require jpg,cls
    """
    return check(Out.of(general), shards, general, checks)


def check(
    out: Out, shards: Sequence[str], general: GeneralOptions, checks: CheckOptions, *, hints: bool = True
) -> int:
    """Check shards, print the findings, and return the exit code. Raises UsageError, InputError."""
    if general.network.cache is not None:
        raise UsageError("verify checks the stored shards, not copies of them", hint="leave --cache out")
    if checks.report is not None and checks.absent is None:
        raise UsageError("--report needs --absent", hint="--absent LIST --report PROOF.json")
    trusts, progress = general.trust_addresses, out.progress()
    report = run(shards, checks.parse(), trust_addresses=trusts, jobs=checks.jobs, progress=progress)
    _print_report(out, report, checks, hints=hints)
    if checks.absent is not None and checks.report is not None:
        _write_proof(report, shards, checks.report, trusts)
    # A shard that could not be read leaves the check incomplete.
    return 4 if not report.is_complete else 1 if report.errors or (checks.strict and report.warnings) else 0


def _write_proof(report: VerifyReport, shards: Sequence[str], address: str, trusted: bool) -> None:
    """Write the proof of a search. Raises OutputError."""
    import json

    from wdscli.shards.inputs import fingerprint_of, open_set
    from wdscli.storage import open_sink

    opened = open_set(shards, missing="accept", takes_unfinished=True, trust_addresses=trusted)
    root = fingerprint_of(opened)
    with open_sink(address, force=True) as sink:
        sink.write((json.dumps(report.proof(root), indent=2) + "\n").encode())


def _print_report(out: Out, report: VerifyReport, checks: CheckOptions, *, hints: bool) -> None:
    if out.json:
        _print_json(out, report)
    else:
        _print_text(out, report, hints)
    words = ((report.errors, "error"), (report.warnings, "warning"))
    result = ", ".join(plural(count, word) for count, word in words if count) or "nothing wrong"
    if checks.absent is not None and PRESENT not in report.counts:
        result += f", none of {plural(report.absent_keys, 'key')} found"
        result += "" if report.is_search_complete else " (the search is not complete)"
    total = f"{plural(report.shards, 'shard')}, {plural(report.samples, 'sample')}"
    out.done(
        f"{total}, {human_size(report.size_bytes)}: {result}; checked {_compared(checks, report)}",
        report.size_bytes,
    )


def _compared(checks: CheckOptions, report: VerifyReport) -> str:
    """Return what a check compared, and what it did not, or the option that compares more."""
    text = "all bytes" if checks.checksums else "headers and structure (bytes with --checksums)"
    if checks.decode and not checks.checksums:
        text = "headers, structure and values"
    return text + (f", not decoded: {undecoded_text(report.undecoded)}" if report.undecoded else "")


def _print_json(out: Out, report: VerifyReport) -> None:
    """Print an object for each finding, and then an object with the totals."""
    for finding in report.findings:
        out.object(finding._asdict())
    totals = "shards samples members bytes=size_bytes errors warnings counts untold ignored undecoded"
    out.object({"summary": True, **facts(report, totals)})


def _print_text(out: Out, report: VerifyReport, hints: bool) -> None:
    """Print the findings of each kind: a heading, a line for each finding, and with ``hints`` how to mend them."""
    for kind in by_kind(report.findings, report.counts, report.error_codes):
        out.line(f"{kind.code}: {plural(kind.total, kind.severity)}")
        print_lines(out, kind)
        for hint in kind.hints if hints else ():
            out.line(f"  hint: {hint}")
        out.line("")


def print_lines(out: Out, kind: FindingKind) -> None:
    """Print one line for each finding of a kind."""
    for finding in kind.findings:
        offset = "" if finding.offset is None else f" at byte {finding.offset}"
        member = "" if finding.member is None else f' "{finding.member}"'
        out.line(f"  {finding.shard}{offset}{member}: {finding.message}")
    if kind.total > len(kind.findings):
        out.line(f"  ... and {kind.total - len(kind.findings)} more")
