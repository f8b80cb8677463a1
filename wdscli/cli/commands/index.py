"""``wds index``: parse the options, make indexes, and print the names of the written files."""

from typing import Annotated, NamedTuple

from wdscli.cli.options import (
    Algorithm,
    GeneralOptions,
    Positive,
    Shards,
    Text,
    Texts,
    Values,
    grouped,
    panel,
)
from wdscli.cli.output import Out, plural
from wdscli.errors import UsageError
from wdscli.ops.index import IndexReport, IndexSettings
from wdscli.ops.index import index as run
from wdscli.shards.dialects import DIALECTS
from wdscli.shown import shown
from wdscli.units import human_size

_WOULD = {"there was none": "missing", "it was stale": "stale"}


@panel("Output")("""
    -o, --output FILE  Manifest to write. Default: <prefix>-manifest.json next to the shards.
    dialect: --for READER  Write only the index that another program reads: dali, energon, webshart or wids; or
        parquet, a table of samples. Repeatable.
    --no-manifest  Write only indexes.
    --no-index  Write only a manifest.
    checksum: --hash  Checksum algorithm of the manifest. With none, the command reads only headers.
    --force  Rewrite existing files, even if they are up to date.
    --adopt  For a copied set: read each shard once, compare it with its index's or the manifest's checksum, and note
        its version. Later readers then trust the index.
    --trust-sizes  With --adopt, compare only sizes and some headers. The manifest says so.
    --check  List missing and stale files, and write nothing. This compares all headers. Exit status 1 if there are
        such files.
    -n, --dry-run  Print what would be written, and write nothing.
    -j, --jobs N  The most processes. Fewer start if the work is small. Default: one per processor.
    """)
class IndexOptions(NamedTuple):
    """The options about the written files."""

    output: Text = None
    no_manifest: bool = False
    no_index: bool = False
    checksum: Algorithm = "xxh3_128"
    dialect: Annotated[Texts, DIALECTS] = None
    force: bool = False
    adopt: bool = False
    trust_sizes: bool = False
    check: bool = False
    dry_run: bool = False
    jobs: Positive = None

    def parse(self) -> IndexSettings:
        """Return these options as the library's settings. Raises UsageError for options that exclude each other."""
        if self.dialect and (self.output or self.no_manifest or self.no_index):
            raise UsageError(
                "--for writes only the index of another program, not wdscli's manifest and index",
                hint="leave out -o, --no-manifest and --no-index, or run wds index again without --for",
            )
        if self.no_manifest and (self.output or self.no_index):
            raise UsageError(
                "--no-index and --no-manifest leave nothing to write"
                if self.no_index
                else "-o is the manifest's name, but --no-manifest writes no manifest",
                hint="give one of them",
            )
        if self.trust_sizes and not self.adopt:
            raise UsageError(
                "--trust-sizes is an option of --adopt", hint="wds index --adopt --trust-sizes SET"
            )
        if self.adopt and (self.dialect or self.no_index or self.force or self.check):
            raise UsageError(
                "--adopt makes no indexes", hint="leave out --for, --no-index, --force and --check"
            )
        return IndexSettings(
            self.output,
            not self.no_manifest,
            not self.no_index,
            self.checksum,
            self.dialect or (),
            force=self.force,
            dry_run=self.dry_run or self.check,
            check=self.check,
            adopt="" if not self.adopt else "sizes" if self.trust_sizes else "bytes",
        )


@grouped
def index(shards: Shards, *, options: IndexOptions, values: Values = None, general: GeneralOptions) -> int:
    """Write indexes and manifests for shards made elsewhere.

    The index of a shard is the file .wds/<shard>.wdx next to it. If indexes and manifests are up to date, they are
    kept. Damaged shards and repeated keys are errors.

    Examples:

        wds index shards/
        wds index shards/ --hash none -o shards/train-manifest.json
        wds index --for dali --for energon shards/
        wds index --for parquet shards/
        wds index --values 'json.width,width(jpg)' shards/
        wds index --check shards/ || wds index --force shards/
        wds index --adopt s3://bucket/train/
    """
    settings, out = options.parse()._replace(values=values), Out.of(general)
    if options.adopt and values:
        raise UsageError("--adopt makes no indexes, so it stores no values", hint="leave out --values")
    trusts, progress = general.trust_addresses, out.progress()
    report = run(shards, settings, trust_addresses=trusts, jobs=options.jobs, progress=progress)
    _print_report(out, report, dry=settings.dry_run)
    return 1 if options.check and report.made else 0


def _print_report(out: Out, report: IndexReport, *, dry: bool) -> None:
    """Print the files, then the totals. Without ``--json``, print only files that a dry run would write."""
    for side in report.files:
        shard = side.shard and shown(side.shard)
        side = side._replace(file=shown(side.file), reason=shown(side.reason), shard=shard)
        if out.json:
            out.object(side._asdict())
        elif dry and side.state == "made":
            out.line(f"{side.file}: {_WOULD.get(side.reason, side.reason)}")
    samples = sum(shard.samples for shard in report.shards)
    size = sum(shard.size_bytes for shard in report.shards)
    total = f"{plural(len(report.shards), 'shard')}, {plural(samples, 'sample')}, {human_size(size)}"
    verb = "to be made" if dry else "made"
    out.done(f"{total}: {plural(report.made, 'file')} {verb}, {report.kept} kept", size, dry_run=dry)
