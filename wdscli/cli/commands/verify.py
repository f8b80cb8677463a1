"""``wds verify``: options in, one call into ops (and one more to repair), one report out."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from wdscli.cli.options import (
    DecodeOptions,
    GeneralOptions,
    OutputOptions,
    Positive,
    Shards,
    Text,
    Texts,
    changed_options,
    grouped,
    panel,
)
from wdscli.cli.output import Out, facts, plural
from wdscli.errors import UsageError
from wdscli.ops.verify import VerifyReport
from wdscli.ops.verify import verify as run
from wdscli.shown import shown
from wdscli.units import human_size
from wdscli.verify.findings import MAX_FINDINGS, FindingKind, by_kind

if TYPE_CHECKING:
    from wdscli.shards.writing import ShardSettings
    from wdscli.verify.repair import RepairReport

_check = panel("Checks")
_repair = panel("Repair")


@_repair("""
    --repair  Write the samples that can be saved to new shards, one for each input, and list the others.
    -o, --output OUT  With --repair: shards to write, such as repaired-%06d.tar.
    """)
class RepairOptions(NamedTuple):
    """Whether anything is written, and where."""

    repair: bool = False
    output: Text = None

    def settings(self, written: OutputOptions) -> "ShardSettings | None":
        """How --repair writes, None without it. Raises UsageError."""
        if not self.repair:
            for option in changed_options(self) + changed_options(written):
                raise UsageError(f"{option} is for --repair, which was not given")
            return None
        if self.output is None:
            raise UsageError(
                "--repair needs an output", hint="wds verify SHARDS --repair -o repaired-%06d.tar"
            )
        return written.settings()


@_check("""
    --decode  Decode the payloads that the loader can decode: json, cls, txt, npy, npz, msgpack, images ...
    --checksums  Compare every byte with the checksums of the manifest.
    --require EXT,...  Fields that every sample must have, besides those that every sample has according to
        the manifest.
    --profile READER  Also check for this reader: webdataset, hf, dali or energon. Repeatable.
    --strict  Exit with 1 for warnings too.
    --max-findings N  List N findings of each kind, and count the rest.
    -j, --jobs N  Number of processes. Default: chosen by the amount of work.
    """)
class CheckOptions(NamedTuple):
    """What is looked for, and what is told of it."""

    decode: bool = False
    decoding: DecodeOptions = DecodeOptions()
    checksums: bool = False
    require: Texts = None
    profile: Texts = None
    strict: bool = False
    max_findings: Annotated[int, 0] = MAX_FINDINGS
    jobs: Positive = None

    def parse(self) -> dict[str, Any]:
        """What checking and repairing have in common, as ops take it. Raises UsageError."""
        return {
            "require": [field for text in self.require or () for field in text.split(",") if field],
            "decode": self.decode,
            "max_decoded": self.decoding.limit(None if self.decode else "--decode"),
            "max_findings": self.max_findings,
            "jobs": self.jobs,
        }


@grouped
def verify(
    shards: Shards,
    general: GeneralOptions,
    repairing: RepairOptions,
    written: Annotated[OutputOptions, "without output checksum"],
    checks: CheckOptions,
) -> int:
    """Check shards and report everything that is wrong with them.

    Reads the headers of every shard, compares them with the index and the manifest beside it, and continues after
    damage. Exit status: 0 when no error was found, 1 when one was, 4 when a shard could not be read.

    Examples:

        wds verify shards/
        wds verify 'train-{000000..000009}.tar' --checksums --decode --strict
        wds verify shards/ --profile webdataset --profile hf --require jpg,cls
        wds verify broken.tar --repair -o repaired.tar
    """
    if general.network.cache is not None or general.network.cache_limit is not None:
        raise UsageError("verify looks at what is stored, and at no copy of it", hint="leave --cache out")
    how = {**checks.parse(), "trust_addresses": general.trust_addresses}
    settings = repairing.settings(written)
    out = Out.of(general)
    output = repairing.output or ""
    with ExitStack() as stack:
        if settings is not None:
            from wdscli.verify.repair import check_repair, read_once, repair

            found, target = check_repair(shards, output, settings, trust_addresses=general.trust_addresses)
            stack.enter_context(read_once(found, out.progress()))
            if target.pattern.count is not None:
                # Whether so many can be saved is known only to who has looked.
                repair(shards, output, **how, settings=settings, dry_run=True)
        report = run(
            shards, **how, profiles=checks.profile or (), checksums=checks.checksums, progress=out.progress()
        )
        _print_report(out, report)
        if settings is not None:
            dry_run, progress = written.dry_run, out.progress()
            saved = repair(shards, output, **how, settings=settings, dry_run=dry_run, progress=progress)
            _print_repair(out, saved, dry_run=dry_run)
    # A shard that could not be read leaves the check incomplete.
    return 4 if not report.is_complete else 1 if report.errors or (checks.strict and report.warnings) else 0


def _print_report(out: Out, report: VerifyReport) -> None:
    if out.json:
        _print_json(out, report)
    else:
        _print_text(out, report)
    words = ((report.errors, "error"), (report.warnings, "warning"))
    found = ", ".join(plural(count, word) for count, word in words if count) or "nothing wrong"
    total = f"{plural(report.shards, 'shard')}, {plural(report.samples, 'sample')}"
    out.done(f"{total}, {human_size(report.size_bytes)}: {found}; checked", report.size_bytes)


def _print_repair(out: Out, report: "RepairReport", *, dry_run: bool) -> None:
    left_out = sum(report.counts.values())
    if out.json:
        for finding in report.left_out:
            out.object({"left_out": True, **finding._asdict()})
        out.object(
            {
                "repair": True,
                "samples": report.samples,
                "shards": [shown(shard.name) for shard in report.written],
                "manifest": report.manifest and shown(report.manifest),
                "dry_run": dry_run,
                "left_out": report.counts,
            }
        )
    else:
        for kind in by_kind(report.left_out, report.counts):
            out.line(f"not saved, {kind.code}: {kind.total}")
            _print_lines(out, kind)
            out.line("")
    would = "would save" if dry_run else "saved"
    out.summary(f"{would} {plural(report.samples, 'sample')}; left out: {left_out or 'nothing'}")


def _print_json(out: Out, report: VerifyReport) -> None:
    """One object a finding, then one with the totals."""
    for finding in report.findings:
        out.object(finding._asdict())
    totals = "shards samples members bytes=size_bytes errors warnings counts untold ignored"
    out.object({"summary": True, **facts(report, totals)})


def _print_text(out: Out, report: VerifyReport) -> None:
    """Findings under their kind: a heading, a line each, what to do."""
    for kind in by_kind(report.findings, report.counts):
        out.line(f"{kind.code}: {plural(kind.total, kind.severity)}")
        _print_lines(out, kind)
        for hint in kind.hints:
            out.line(f"  hint: {hint}")
        out.line("")


def _print_lines(out: Out, kind: FindingKind) -> None:
    for finding in kind.findings:
        offset = "" if finding.offset is None else f" at byte {finding.offset}"
        member = "" if finding.member is None else f' "{finding.member}"'
        out.line(f"  {finding.shard}{offset}{member}: {finding.message}")
    if kind.total > len(kind.findings):
        out.line(f"  ... and {kind.total - len(kind.findings)} more")
