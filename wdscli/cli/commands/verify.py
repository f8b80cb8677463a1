"""``wds verify``: options in, one call into ops (and one more to repair), one report out."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import typer

from wdscli.cli.made import plural
from wdscli.cli.options import (
    CommonOptions,
    JsonOptions,
    MaxDecoded,
    OutputOptions,
    Shards,
    TrustOptions,
    decoded_limit,
    grouped,
)
from wdscli.cli.output import Out
from wdscli.errors import UsageError
from wdscli.ops.verify import Finding, VerifyReport
from wdscli.ops.verify import verify as run
from wdscli.shards.writing import ShardSettings, make_form
from wdscli.shown import shown
from wdscli.units import human_size
from wdscli.verify.findings import MAX_FINDINGS, kind_of
from wdscli.verify.repair import RepairReport, check_repair, repair

_REPAIR = "Repair"


class RepairOptions(NamedTuple):
    """Where --repair writes; all but ``output`` as in every command that writes."""

    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Write what can be saved to new shards, one for each, and say what could not.",
            rich_help_panel=_REPAIR,
        ),
    ] = False
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="Shards that --repair writes, such as repaired-%06d.tar.",
            rich_help_panel=_REPAIR,
        ),
    ] = None
    force: bool = False
    fsync: bool = False
    no_index: bool = False
    mtime: int | None = None
    long_names: Literal["pax", "gnu"] = "pax"
    dry_run: bool = False


for _name in ("force", "fsync", "no_index", "mtime", "long_names", "dry_run"):
    RepairOptions.__annotations__[_name] = OutputOptions.__annotations__[_name]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=1,
        help="Processes to work in. Default: as many as the work is worth.",
    ),
]


@grouped
def verify(
    shards: Shards,
    json: JsonOptions,
    repairing: RepairOptions,
    trust: TrustOptions,
    common: CommonOptions,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Decode json, cls, txt, npy, npz, msgpack, images and what else the loader decodes.",
        ),
    ] = False,
    max_decoded: MaxDecoded = None,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every byte with the checksums of the manifest.")
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="EXT,...",
            help="Fields that every sample must have. Those that the manifest says every sample has are added.",
        ),
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
        typer.Option("--max-findings", metavar="N", min=0, help="Tell N of each kind; count the rest."),
    ] = MAX_FINDINGS,
    jobs: Jobs = None,
) -> int:
    """Check shards and report everything that is wrong with them.

    Reads the headers of every shard, compares them with the index and the manifest beside it, and goes on after
    damage. Exits with 0 when no error was found, 1 when one was, 4 when a shard could not be read.

    Examples:

        wds verify shards/
        wds verify 'train-{000000..000009}.tar' --checksums --decode --strict
        wds verify shards/ --profile webdataset --profile hf --require jpg,cls
        wds verify broken.tar --repair -o repaired.tar
    """
    limit = decoded_limit(max_decoded, None if decode else "--decode")
    fields = [field for text in require or () for field in text.split(",") if field]
    settings = _settings(repairing)
    out = Out(common, json=json.json)
    how: dict[str, Any] = {
        "settings": settings,
        "require": fields,
        "decode": decode,
        "max_decoded": limit,
        "trust_addresses": trust.trust_addresses,
        "max_findings": max_findings,
        "jobs": jobs,
    }
    if settings is not None:
        _, target = check_repair(
            shards, repairing.output or "", settings, trust_addresses=trust.trust_addresses
        )
        if target.pattern.count is not None:
            # Whether so many can be saved is known only to who has looked.
            repair(shards, repairing.output or "", **how, dry_run=True)
    report = run(
        shards,
        require=fields,
        profiles=profile or (),
        decode=decode,
        max_decoded=limit,
        checksums=checksums,
        trust_addresses=trust.trust_addresses,
        max_findings=max_findings,
        jobs=jobs,
        progress=out.progress(),
    )
    if json.json:
        _print_json(out, report)
    else:
        _print_text(out, report)
    out.summary(_summary(report))
    if settings is not None:
        saved = repair(
            shards, repairing.output or "", **how, dry_run=repairing.dry_run, progress=out.progress()
        )
        _print_repair(out, saved, dry_run=repairing.dry_run)
    return exit_code(report, strict)


def _settings(options: RepairOptions) -> ShardSettings | None:
    """How --repair writes, None without it."""
    given = [name for name in options._fields if getattr(options, name) != options._field_defaults[name]]
    if not options.repair:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} is for --repair, which was not given")
        return None
    if options.output is None:
        raise UsageError("--repair needs an output", hint="wds verify SHARDS --repair -o repaired-%06d.tar")
    return ShardSettings(
        form=make_form(options.mtime, options.long_names),
        with_index=not options.no_index,
        force=options.force,
        fsync=options.fsync,
    )


def _print_repair(out: Out, report: RepairReport, *, dry_run: bool) -> None:
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
        _print_left_out(out, report)
    would = "would save" if dry_run else "saved"
    out.summary(f"{would} {plural(report.samples, 'sample')}; left out: {left_out or 'nothing'}")


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
    for code, findings in _by_code(report.findings, report.counts).items():
        count = report.counts[code]
        out.line(f"{code}: {plural(count, kind_of(code).severity)}")
        _print_lines(out, findings, count)
        for hint in dict.fromkeys(finding.hint for finding in findings if finding.hint):
            out.line(f"  hint: {hint}")
        out.line("")


def _print_left_out(out: Out, report: RepairReport) -> None:
    """What was not saved, under its reason."""
    for code, findings in _by_code(report.left_out, report.counts).items():
        out.line(f"not saved, {code}: {report.counts[code]}")
        _print_lines(out, findings, report.counts[code])
        out.line("")


def _by_code(told: Sequence[Finding], counts: Mapping[str, int]) -> dict[str, list[Finding]]:
    by_code: dict[str, list[Finding]] = {code: [] for code in counts}
    for finding in told:
        by_code[finding.code].append(finding)
    return by_code


def _print_lines(out: Out, findings: Sequence[Finding], count: int) -> None:
    for finding in findings:
        out.line("  " + _place(finding) + finding.message)
    if count > len(findings):
        out.line(f"  ... and {count - len(findings)} more")


def _place(finding: Finding) -> str:
    offset = "" if finding.offset is None else f" at byte {finding.offset}"
    member = "" if finding.member is None else f' "{finding.member}"'
    return f"{finding.shard}{offset}{member}: "


def _summary(report: VerifyReport) -> str:
    found = [
        plural(count, word)
        for count, word in ((report.errors, "error"), (report.warnings, "warning"))
        if count
    ]
    return (
        f"{plural(report.shards, 'shard')}, {plural(report.samples, 'sample')}, {human_size(report.size_bytes)}: "
        + (", ".join(found) or "nothing wrong")
    )
