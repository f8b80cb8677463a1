"""``wds index``: options in, one call into ops, what was made out."""

from typing import NamedTuple

from wdscli.cli.options import Algorithm, GeneralOptions, Positive, Shards, Text, Texts, grouped, panel
from wdscli.cli.output import Out, plural
from wdscli.errors import UsageError
from wdscli.ops.index import index as run
from wdscli.shown import shown
from wdscli.units import human_size

_output = panel("Output")
_WOULD = {"there was none": "missing", "it was stale": "stale"}


@_output("""
    -o, --output FILE  Manifest to write. Default: <prefix>-manifest.json beside the shards.
    --no-manifest  Write only indexes.
    --no-index  Write only a manifest.
    --checksum  Checksum algorithm of the manifest; with none only headers are read.
    --dialect READER  Write only the index of another program: dali, energon, webshart, wids, or parquet for
        programs that query tables. Repeatable.
    --force  Rewrite existing files, up to date or not.
    --check  Write nothing; compare all headers, list what is missing or stale, and exit with 1 if there is
        any.
    -n, --dry-run  Print what would be written, and write nothing.
    """)
@panel(None)("""
    -j, --jobs N  Number of processes. Default: chosen by the amount of work.
    """)
class IndexOptions(NamedTuple):
    """What is written, and where."""

    output: Text = None
    no_manifest: bool = False
    no_index: bool = False
    checksum: Algorithm = "xxh3_128"
    dialect: Texts = None
    force: bool = False
    check: bool = False
    dry_run: bool = False
    jobs: Positive = None


@grouped
def index(
    shards: Shards,
    *,
    options: IndexOptions,
    general: GeneralOptions,
) -> int:
    """Write indexes and manifests for shards made elsewhere.

    An index (.wds/<shard>.wdx beside the shards) or a manifest that is up to date is kept. A shard that is damaged
    or has a repeated key is an error.

    Examples:

        wds index shards/
        wds index shards/ --checksum none -o shards/train-manifest.json
        wds index --dialect dali --dialect energon shards/
        wds index --dialect parquet shards/
        wds index --check shards/ || wds index --force shards/
    """
    if options.dialect and (options.output or options.no_manifest or options.no_index):
        raise UsageError(
            "--dialect writes the files of another program and no manifest or index of ours",
            hint="leave out -o, --no-manifest and --no-index, or run twice",
        )
    if options.no_manifest and (options.output or options.no_index):
        raise UsageError(
            "--no-manifest leaves nothing to write" if options.no_index else "-o with --no-manifest"
        )
    dry = options.dry_run or options.check
    out = Out.of(general)
    report = run(
        shards,
        manifest=options.output,
        with_manifest=not options.no_manifest,
        with_index=not options.no_index,
        checksum=options.checksum,
        dialects=options.dialect or (),
        force=options.force,
        trust_addresses=general.trust_addresses,
        dry_run=dry,
        check=options.check,
        jobs=options.jobs,
        progress=out.progress(),
    )
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
    made = "to be made" if dry else "made"
    out.done(f"{total}: {plural(report.made, 'file')} {made}, {report.kept} kept", size, dry_run=dry)
    return 1 if options.check and report.made else 0
