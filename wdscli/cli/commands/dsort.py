"""``wds dsort``: a job description of AIStore's dSort in, the set that it describes out."""

from typing import Annotated, NamedTuple

import typer

from wdscli.cli.options import (
    EngineOptions,
    ErrorOptions,
    GeneralOptions,
    InputOptions,
    OutputOptions,
    TaskOptions,
    Texts,
    grouped,
    panel,
)

_where = panel("Buckets")


@_where("""
    --bucket NAME=WHERE  Where a bucket is: a folder or a URL. Default: by its provider s3://NAME, gs://NAME
        or az://NAME; one of AIStore's own is the folder NAME. Repeatable.
    """)
class BucketOptions(NamedTuple):
    """Where buckets are."""

    bucket: Texts = None


@grouped
def dsort(
    *,
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="The job, in JSON or YAML: a file, a URL, -, or its text.")
    ],
    buckets: BucketOptions,
    output: Annotated[OutputOptions, "without output"],
    tasks: TaskOptions,
    engine: EngineOptions,
    errors: ErrorOptions,
    general: GeneralOptions,
) -> None:
    """Run a job description of AIStore's dSort on this machine.

    Formats, sizes, algorithms, external key maps and reactions mean the same as in dSort. No shard is larger than
    output_shard_size, and a shuffle without a seed has the seed 0. Fields about the cluster are listed and ignored.

    Examples:

        wds dsort job.json
        wds dsort job.json --bucket images=s3://my-images --bucket out=/data/out -n
        wds dsort - --bucket images=/data/images < job.json
    """
    from wdscli.cli.output import Out
    from wdscli.cli.reordering import read_request, reorder
    from wdscli.errors import DataError, UsageError
    from wdscli.ops.dsort import dsort_order
    from wdscli.ops.dsort_job import read_job

    where = {}
    for text in buckets.bucket or ():
        name, equals, place = text.partition("=")
        if not name or not equals or not place or name in where:
            raise UsageError(f"--bucket {text}: not NAME=WHERE, once a bucket", hint="--bucket images=DIR")
        where[name] = place
    out = Out.of(general)
    job = read_job(spec, where, trust_addresses=general.trust_addresses)
    if job.unused:
        out.summary(f"note: ignored here: {', '.join(job.unused)}")
    settings = {**errors._asdict(), **tasks._asdict(), **engine._asdict()}
    request = read_request((), output, InputOptions(), general, **settings)
    meant = dsort_order(job, request)
    dry_run = output.dry_run or job.is_dry
    try:
        reorder(out, meant.request, meant.order, dry_run=dry_run, planned=meant.check)
    except DataError as error:
        if error.code == "duplicate-key":
            error.hint = '"duplicated_records": "ignore" in the job leaves out the later ones'
        raise
