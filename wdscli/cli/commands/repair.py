"""``wds repair``: check the shards, print the findings, and write the intact samples to new shards."""

from typing import TYPE_CHECKING, Annotated

from wdscli.cli.commands.verify import CheckOptions, check, print_lines
from wdscli.cli.options import GeneralOptions, OutputOptions, Shards, grouped
from wdscli.cli.output import Out, plural
from wdscli.shown import shown
from wdscli.verify.findings import by_kind, undecoded_text

if TYPE_CHECKING:
    from wdscli.verify.repair import RepairReport


@grouped
def repair(
    shards: Shards,
    output: Annotated[OutputOptions, "without checksum"],
    checks: Annotated[CheckOptions, "without absent report errors"],
    general: GeneralOptions,
) -> int:
    """Save the intact samples of damaged shards.

    Checks the shards as `wds verify` does, writes a new shard for each input shard, and lists the lost samples. The
    inputs do not change. Exit status: 0 without errors, 1 if it finds an error, 4 if it cannot read a shard.

    Examples:

        wds repair broken.tar -o repaired.tar
        wds repair shards/ -o 'repaired-%06d.tar' --decode
        wds repair shards/ -o 'repaired-%06d.tar' --require jpg,cls -n
    """
    from wdscli.plan.request import Request
    from wdscli.verify.repair import check_repair, read_once
    from wdscli.verify.repair import repair as save

    out, trusts = Out.of(general), general.trust_addresses
    request = Request(shards, output.output, output.settings(), jobs=checks.jobs, trust_addresses=trusts)
    how = checks.parse()
    addresses, names = check_repair(request)
    with read_once(addresses, out.progress()):
        if names.pattern.count is not None:
            # Check by a dry run whether the output can name enough shards.
            save(request, how, dry_run=True)
        code = check(out, shards, general, checks, hints=False)
        saved = save(request, how, dry_run=output.dry_run, progress=out.progress())
        _print(out, saved, dry_run=output.dry_run)
    return code


def _print(out: Out, report: "RepairReport", *, dry_run: bool) -> None:
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
                "undecoded": report.undecoded,
            }
        )
    else:
        for kind in by_kind(report.left_out, report.counts):
            out.line(f"not saved, {kind.code}: {kind.total}")
            print_lines(out, kind)
            out.line("")
    would = "would save" if dry_run else "saved"
    undecoded = f"; not decoded: {undecoded_text(report.undecoded)}" if report.undecoded else ""
    out.summary(f"{would} {plural(report.samples, 'sample')}; left out: {left_out or 'nothing'}{undecoded}")
