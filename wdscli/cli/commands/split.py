"""``wds split``: options in, smaller shards or several sets out."""

from typing import NamedTuple

from wdscli.cli.options import OutputOptions, ReorderOptions, Shards, Text, Texts, grouped, panel
from wdscli.cli.reordering import read_options, reorder

_parts = panel("Parts")


@_parts("""
    --ratio PART=SHARE,...  Divide by a hash of the key: train=0.8,val=0.1,test=0.1, or weights such as 8, 1
        and 1.
    --group-by REGEX|FIELD  With --ratio: keep samples together that have the same FIELD, json.PATH, or
        match of REGEX in the key.
    --stratify FIELD  With --ratio: keep the shares for each value of FIELD or json.PATH. Samples may then change
        their part when the set grows.
    --seed N  Seed of --ratio and --sample.
    --by FIELD  Make one part for each value of FIELD or json.PATH, named after the value.
    --by-map FILE  Read the parts from a file: lines of KEY<TAB>PART, or a JSON object. Repeatable.
    --missing error|drop|PART  Sample without a value: stop, leave it out, or (with --by and --by-map) put
        it into PART.
    """)
class PartOptions(NamedTuple):
    """What becomes a set of its own."""

    ratio: Text = None
    group_by: Text = None
    stratify: Text = None
    seed: int = 0
    by: Text = None
    by_map: Texts = None
    missing: str = "error"


@grouped
def split(*, shards: Shards, output: OutputOptions, parts: PartOptions, more: ReorderOptions) -> None:
    """Cut a set into other shards, or divide it into parts.

    Samples stay in input order. {part} in OUT is the name of the part; each part is a set of its own, with its own
    manifest. Shards hold at most 1 GB unless their size is given.

    Examples:

        wds split big.tar -o 'part-%06d.tar' --max-size 500MB
        wds split shards/ -o 'even-%06d.tar' --max-count 10000 --divisible-by 8
        wds split shards/ -o 'parts/{part}-%06d.tar' --ratio train=0.9,val=0.1
        wds split shards/ -o '{part}/%06d.tar' --by cls
    """
    from wdscli.ops.split import SplitOptions, split_order

    out, request = read_options(shards, output, more, own_seed=True)
    order = split_order(request, SplitOptions(**{**parts._asdict(), "by_map": tuple(parts.by_map or ())}))
    reorder(out, request, order, dry_run=output.dry_run)
