"""``wds verify``: options in, one call into ops, one report out."""

from typing import Annotated

import typer

from wdscli.cli.options import CommonOptions, JsonOptions, Shards, grouped
from wdscli.cli.output import Out
from wdscli.ops.verify import Finding, VerifyReport
from wdscli.ops.verify import verify as run
from wdscli.ops.verify.findings import kind_of
from wdscli.units import human_size


@grouped
def verify(
    shards: Shards,
    json: JsonOptions,
    common: CommonOptions,
    decode: Annotated[
        bool,
        typer.Option("--decode", help="Decode json, cls, txt, npy, npz, msgpack, images, and .gz of these."),
    ] = False,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every byte with the checksums of the manifest.")
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option("--require", metavar="EXT,...", help="Fields that every sample must have."),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="READER",
            help="Also what this reader demands: webdataset, hf, dali or energon. May be given more than once.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    max_findings: Annotated[
        int,
        typer.Option(
            "--max-findings", metavar="N", min=0, help="Tell N of each kind a shard; count the rest."
        ),
    ] = 100,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j", "--jobs", metavar="N", min=1, help="Processes to work in. Default: what the work is worth."
        ),
    ] = None,
) -> int:
    """Check shards and report everything that is wrong with them."""
    out = Out(common, json=json.json)
    report = run(
        shards,
        require=[field for text in require or () for field in text.split(",") if field],
        profiles=profile or (),
        decode=decode,
        checksums=checksums,
        max_findings=max_findings,
        jobs=jobs,
        progress=out.progress(),
    )
    if json.json:
        _print_json(out, report)
    else:
        _print_text(out, report)
    out.summary(_summary(report))
    return exit_code(report, strict)


def exit_code(report: VerifyReport, strict: bool) -> int:
    """4 when a shard could not be read, because then the check is not complete; 1 for findings; 0."""
    if not report.is_complete:
        return 4
    return 1 if report.errors or (strict and report.warnings) else 0


def _print_json(out: Out, report: VerifyReport) -> None:
    """One object a finding, then one with the totals."""
    for finding in report.findings:
        out.object(finding._asdict())
    out.object(
        {
            "summary": True,
            "shards": report.shards,
            "samples": report.samples,
            "members": report.members,
            "bytes": report.size_bytes,
            "errors": report.errors,
            "warnings": report.warnings,
            "counts": report.counts,
            "untold": report.untold,
            "ignored": report.ignored,
        }
    )


def _print_text(out: Out, report: VerifyReport) -> None:
    """Findings under their kind: a heading, a line each, what to do."""
    by_code: dict[str, list[Finding]] = {code: [] for code in report.counts}
    for finding in report.findings:
        by_code[finding.code].append(finding)
    untold = report.untold
    for code, findings in by_code.items():
        severity, count = kind_of(code).severity, report.counts[code]
        out.line(f"{code}: {_plural(count, severity)}")
        for finding in findings:
            out.line("  " + _place(finding) + finding.message)
        if untold.get(code):
            out.line(f"  ... and {untold[code]} more")
        for hint in dict.fromkeys(finding.hint for finding in findings if finding.hint):
            out.line(f"  hint: {hint}")
        out.line("")


def _place(finding: Finding) -> str:
    offset = "" if finding.offset is None else f" at byte {finding.offset}"
    member = "" if finding.member is None else f' "{finding.member}"'
    return f"{finding.shard}{offset}{member}: "


def _summary(report: VerifyReport) -> str:
    found = [
        _plural(count, word)
        for count, word in ((report.errors, "error"), (report.warnings, "warning"))
        if count
    ]
    return (
        f"{_plural(report.shards, 'shard')}, {_plural(report.samples, 'sample')}, {human_size(report.size_bytes)}: "
        + (", ".join(found) or "nothing wrong")
    )


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
