"""``wds split``: parse the options, and write other shards or several sets."""

from typing import NamedTuple

from wdscli.cli.options import (
    Column,
    OutputOptions,
    ReorderOptions,
    Shards,
    Text,
    Texts,
    grouped,
    panel,
)
from wdscli.cli.reordering import read_options, reorder
from wdscli.errors import UsageError


@panel("Parts")("""
    --ratio PART=SHARE,...  Divide by a hash of the key: train=0.9,val=0.1. Weights such as train=8,val=1 also work.
    +--group-by REGEX|FIELD  With --ratio: keep each group of samples in one part. A group is all samples with the same
        value of FIELD or json.PATH, or with the same match of REGEX in the key.
    --stratify FIELD  With --ratio: use the same shares for each value. FIELD may be json.PATH. Samples may change
        their part when the set grows.
    --seed N  Seed of --ratio and --sample.
    --by FIELD|@FILE  Make one part for each value of a field. FIELD may be json.PATH. The part is named after the
        value. @FILE lists the parts: lines of KEY<TAB>PART, or a JSON object; repeatable.
    --missing error|skip|PART  Sample without a value: fail, skip it, or put it into PART. PART needs --by.
    """)
class PartOptions(NamedTuple):
    """The options that divide a set into parts."""

    ratio: Text = None
    group_by: Text = None
    stratify: Text = None
    seed: int = 0
    by: Texts = None
    missing: str = "error"


@grouped
def split(
    *,
    shards: Shards,
    output: OutputOptions,
    parts: PartOptions,
    column: Column = None,
    options: ReorderOptions,
) -> None:
    """Rewrite a set with other shard sizes, or divide it into parts.

    Samples stay in input order. In OUT, {part} is the name of a part, and {name} the name of an input shard, which
    stays a shard. Otherwise shards hold at most 1 GB by default. -o NAME.json writes a view, which copies no bytes.

    Examples:

        wds split big.tar -o 'part-%06d.tar' --max-size 500MB
        wds split shards/ -o 'parts/{part}-%06d.tar' --ratio train=0.9,val=0.1
        wds split shards/ -o '{part}/%06d.tar' --by cls
        wds split shards/ -o 'new/{name}.tar' --where 'size.jpg > 600' --drop txt
    """
    from wdscli.plan.split import SplitOptions, split_order

    out, request = read_options(shards, output, options, own_seed=True, column=column)
    fields = [text for text in parts.by or () if not text.startswith("@")]
    lists = tuple(text[1:] for text in parts.by or () if text.startswith("@"))
    if len(fields) > 1 or (fields and lists):
        raise UsageError(
            "--by FIELD was given more than once",
            hint="give --by FIELD once; only lists may be repeated: --by @FILE --by @FILE",
        )
    missing = "drop" if parts.missing == "skip" else parts.missing
    division = {**parts._asdict(), "by": next(iter(fields), None), "by_map": lists, "missing": missing}
    order = split_order(request, SplitOptions(**division))
    reorder(out, request, order, dry_run=output.dry_run)
