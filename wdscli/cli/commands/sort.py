"""``wds sort``: sort keys and their modifiers in, a sorted set out."""

from typing import Literal, NamedTuple

from wdscli.cli.options import OutputOptions, ReorderOptions, Shards, Text, Texts, grouped, panel
from wdscli.cli.reordering import read_options, reorder
from wdscli.errors import UsageError

_order = panel("Order")


@_order("""
    --by WHAT[:nVr]  key, md5 (of the key), size (in bytes; size.jpg), a field (cls, seg.png) or a place in
        JSON (json.width, json.box[0]); again for what ties. Behind a colon: n numeric, V natural, r
        reverse. Default: key.
    --natural  Sort img9 before img10; for each --by without a colon, like the next two.
    --numeric  Sort texts as numbers.
    --reverse  Sort the largest first.
    --order-from FILE  Use the order of the keys in FILE, a list or table as for --keys-from; - is standard
        input.
    --missing  Where to put samples without the value, or whose key is not in FILE. Default: last, but a
        value that no sample has, or a key that is not in FILE, is an error.
    """)
class OrderOptions(NamedTuple):
    """By what samples are sorted."""

    by: Texts = None
    natural: bool = False
    numeric: bool = False
    reverse: bool = False
    order_from: Text = None
    missing: Literal["first", "last", "error"] | None = None


@grouped
def sort(*, shards: Shards, output: OutputOptions, order: OrderOptions, more: ReorderOptions) -> None:
    """Write all samples sorted by key, by a field, by a value in JSON, or in the order of a list.

    Text is compared byte by byte, numbers in JSON as numbers. Samples with equal values stay in input order, also in
    reverse, and none is dropped. --natural, --numeric and --reverse apply to each --by without a colon. A key in
    --order-from that no sample has is an error unless --allow-empty is given.

    Examples:

        wds sort set -o 'sorted-%06d.tar'
        wds sort set -o 'sorted-%06d.tar' --by json.width:r --by key:V
        wds sort set -o 'sorted-%06d.tar' --by cls --numeric --missing first
        wds sort set -o 'sorted-%06d.tar' --order-from keys.txt
    """
    from wdscli.ops.sort import listed_order, sort_order

    if order.natural and order.numeric:
        raise UsageError("--natural and --numeric exclude each other", hint="--by WHAT:n --by WHAT:V")
    if order.order_from is not None and (order.by or order.natural or order.numeric or order.reverse):
        raise UsageError(
            "--order-from is an order of its own, without --by, --natural, --numeric and --reverse"
        )
    out, request = read_options(shards, output, more)
    if order.order_from is not None:
        listed = listed_order(request, order.order_from, order.missing)
        reorder(out, request, listed, dry_run=output.dry_run)
        return
    how = sort_order(
        order.by or [],
        how="natural" if order.natural else "numeric" if order.numeric else "plain",
        reverse=order.reverse,
        missing=order.missing,
        lenient=request.on_error == "skip",
    )
    reorder(out, request, how, dry_run=output.dry_run)
