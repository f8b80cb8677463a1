"""``wds sort``: parse the sort keys and their modifiers, and write a sorted set."""

from typing import Literal, NamedTuple

from wdscli.cli.options import Column, OutputOptions, ReorderOptions, Shards, Texts, grouped, panel
from wdscli.cli.reordering import read_options, reorder
from wdscli.errors import UsageError


@panel("Order")("""
    --by WHAT[:nVr]|@FILE  Sort by key, size, md5, a field or a JSON path. WHAT is key, md5 (of the key), size (in
        bytes; size.jpg), a field (cls, seg.png) or a path in JSON (json.width, json.box[0]). Letters after a colon:
        n compares text as numbers, V puts img9 before img10, r puts the largest value first. With a second --by,
        samples with equal values of the first are sorted by the second. @FILE is a list or table of keys, as for
        --keys-from: samples are written in the order of its keys. @- is standard input. Default: key.
    --reverse  Put the largest value first, for each --by without letters after a colon.
    --missing  Position of samples without a value. These include samples whose key is not in @FILE. Default: last,
        but fail if no sample has a value, or if @FILE lacks the key of a sample.
    """)
class SortOptions(NamedTuple):
    """The options that say how samples are sorted."""

    by: Texts = None
    reverse: bool = False
    missing: Literal["first", "last", "error"] | None = None


@grouped
def sort(
    *,
    shards: Shards,
    output: OutputOptions,
    order: SortOptions,
    column: Column = None,
    options: ReorderOptions,
) -> None:
    """Write all samples sorted by key, by a field, by a value in JSON, or in the order of a list.

    Text is compared byte by byte, and numbers in JSON as numbers. Samples with equal values stay in input order, and no
    sample is dropped. -o NAME.json writes a view, which copies no bytes.

    Examples:

        wds sort set -o 'sorted-%06d.tar'
        wds sort set -o 'sorted-%06d.tar' --by json.width:r --by key:V
        wds sort set -o 'sorted-%06d.tar' --by cls:n --missing first
        wds sort set -o 'sorted-%06d.tar' --by @keys.txt
    """
    from wdscli.plan.sort import listed_order, sort_order

    lists = [text[1:] for text in order.by or () if text.startswith("@")]
    if lists and (len(order.by or ()) > 1 or order.reverse):
        raise UsageError(f"--by @{lists[0]} cannot be combined with another order", hint="give one --by")
    out, request = read_options(shards, output, options, column=column)
    missing, is_lenient = order.missing, request.on_error == "skip"
    how = (
        listed_order(request, lists[0], missing)
        if lists
        else sort_order(order.by or [], reverse=order.reverse, missing=missing, lenient=is_lenient)
    )
    reorder(out, request, how, dry_run=output.dry_run)
