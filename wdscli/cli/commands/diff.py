"""``wds diff``: print the differences between two sets, and return the same exit codes as diff(1)."""

from functools import partial
from typing import Annotated, NamedTuple

from wdscli.cli.options import GeneralOptions, Option, Positive, Text, Texts, grouped, panel
from wdscli.cli.output import Out, facts, plural
from wdscli.ops.diff import CHANGED, ONLY_A, ONLY_B, Difference, DiffReport
from wdscli.ops.diff import diff as compare
from wdscli.plan.request import Request
from wdscli.selection import Selection

_MARKS = {ONLY_A: "-", ONLY_B: "+", CHANGED: "!"}


@panel("Comparison")("""
    --keys-only  Compare only keys and their order.
    --fields EXT,...  Compare only these fields. Globs are allowed. Repeatable.
    --ignore-order  Ignore the order of samples and the boundaries of shards.
    --on EXPR  Match samples by this value instead of the key: json.url, 'dhash(jpg)'.
    -j, --jobs N  The most processes. Fewer start if the work is small. Default: one per processor.
    """)
class DiffOptions(NamedTuple):
    """The options that decide what counts as a difference."""

    keys_only: bool = False
    fields: Texts = None
    ignore_order: bool = False
    on: Text = None
    jobs: Positive = None


@grouped
def diff(
    *,
    a: Annotated[str, Option((), "A", "A set: a folder, a manifest, a glob, braces, a shard, a URL.")],
    b: Annotated[str, Option((), "B", "The set that is compared with A.")],
    options: DiffOptions,
    general: GeneralOptions,
) -> int:
    """Compare two sets as data: keys, fields, payloads, order, shards.

    The command compares only names and payloads. Each line shows a sample: - if only A has it, + if only B has it, ! if
    it differs. Exit status: 0 if the sets are the same, 1 if they differ.

    Examples:

        wds diff old/ new/
        wds diff train-manifest.json s3://bucket/train/ --ignore-order
        wds diff raw/ small/ --keys-only
    """
    out, trusts = Out.of(general), general.trust_addresses
    selection = Selection.parse(fields=options.fields)
    report = compare(
        Request([a, b], "-", selection=selection, jobs=options.jobs, trust_addresses=trusts),
        partial(_print_difference, out),
        keys_only=options.keys_only,
        ignore_order=options.ignore_order,
        on=options.on,
        progress=out.progress(),
    )
    _print(out, report)
    return 0 if report.same else 1


def _print_difference(out: Out, difference: Difference) -> None:
    """Print one sample that differs, as soon as it is found."""
    if out.json:
        out.object(difference._asdict())
    elif out.terminal:
        out.line(f"{_MARKS[difference.kind]} {difference.key}  {_details(difference)}".rstrip())
    else:
        out.rows((), [(_MARKS[difference.kind], difference.key, _details(difference))])


def _details(difference: Difference) -> str:
    """Return a text such as ``jpg -cls +json``: ``jpg`` differs, ``cls`` is only in A, ``json`` is only in B. Places in
    JSON that differ follow."""
    words = [
        *difference.differ,
        *(f"-{name}" for name in difference.gone),
        *(f"+{name}" for name in difference.added),
    ]
    if difference.reordered:
        words.append("(fields in another order)")
    if difference.places:
        words.append(f"({'; '.join(difference.places)})")
    return " ".join(words)


def _print(out: Out, report: DiffReport) -> None:
    if out.json:
        names = "same samples_a samples_b both only_a only_b changed order shards"
        out.object({"summary": True, **facts(report, names)})
    counts = {
        "only in A": report.only_a,
        "only in B": report.only_b,
        "differs" if report.changed == 1 else "differ": report.changed,
    }
    clauses = [f"{count} {what}" for what, count in counts.items() if count]
    for what, text in (("order", report.order), ("shards", report.shards)):
        if text:
            out.summary(f"{what}: {text}")
    total = f"{plural(report.both, 'sample')} in both"
    out.done(f"{total}: {', '.join(clauses) or 'no sample differs'}; compared", 0)
