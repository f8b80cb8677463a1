"""``wds report``: parse the options, and write a page about a set."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from wdscli.cli.options import GeneralOptions, Positive, SelectionOptions, Shards, Text, Texts, grouped, panel
from wdscli.cli.output import Out, facts, plural
from wdscli.errors import UsageError
from wdscli.ops.report import CARDS, LOOKED_SAMPLES, ReportOptions
from wdscli.ops.report import report as make
from wdscli.plan.request import Request
from wdscli.report.facts import PageFacts
from wdscli.shards.writing import ShardSettings
from wdscli.shown import shown
from wdscli.units import human_size, whole_number

_TOTALS = "shards samples members bytes=size_bytes payload_bytes overhead_bytes repeated_keys"

_MIXING = "class_run classes_per_window=shards_per_window displacement correlation"


@panel("Output")("""
    -o, --output FILE  Page to write: a file, - or a URL.
    --force  Replace an existing file.
    +--card FILE  Write a dataset card for the Hub: README.md. Without -o, no page is written.
    +--croissant FILE  Write Croissant metadata as JSON: fields, records, shards and their SHA-256.
    +--license TEXT|PLACE  With --card or --croissant: the licence, as cc-by-4.0, or its place in JSON: json.license.
    """)
@panel("Page")("""
    --title TEXT  Heading of the page. Default: the names of the folder and of the set.
    --samples N|N:M  Show N samples on the page. Read the payloads of M samples for classes, texts and picture sizes.
        Default: 48:100000. Repeatable.
    --seed N  Seed for the choice of samples and for --sample.
    --skip images|checks,...  Leave out a part of the page: images (includes audio and video), or checks. Repeatable.
    --decode  Also check that every payload can be decoded.
    -j, --jobs N  The most processes. Fewer start if the work is small. Default: one per processor.
    """)
class PageOptions(NamedTuple):
    """The options about the page and its address."""

    output: Text = None
    force: bool = False
    card: Text = None
    croissant: Text = None
    license: Text = None
    title: Text = None
    samples: Texts = None
    seed: int = 0
    skip: Texts = None
    decode: bool = False
    jobs: Positive = None

    def parse(self) -> ReportOptions:
        """Return these options as the library's options. Raises UsageError, also if nothing would be written."""
        self._check_outputs()
        skipped = {word.strip() for text in self.skip or () for word in text.split(",")}
        if unknown := skipped - {"images", "checks"}:
            raise UsageError(f"--skip {min(unknown)}: no such part", hint="--skip images, or --skip checks")
        if self.decode and "checks" in skipped:
            raise UsageError("--decode and --skip checks exclude each other", hint="give one of them")
        return ReportOptions(
            self.title,
            self.seed,
            *self._counts(),
            "images" not in skipped,
            "checks" not in skipped,
            self.decode,
            self.card,
            self.croissant,
            self.license,
        )

    @property
    def outputs(self) -> list[str]:
        """The addresses of all outputs."""
        return [address for address in (self.output, self.card, self.croissant) if address is not None]

    def _check_outputs(self) -> None:
        outputs = self.outputs
        if not outputs:
            raise UsageError(
                "no output", hint="-o report.html, or --card README.md --croissant croissant.json"
            )
        if len({*outputs}) < len(outputs):
            raise UsageError("two outputs have the same name", hint="give each output its own name")
        if self.license is not None and self.card is None and self.croissant is None:
            raise UsageError("--license is for --card and --croissant", hint="add --card README.md")

    def _counts(self) -> tuple[int, int]:
        """Return how many samples are shown, and how many are read. Raises UsageError."""
        shown, read = CARDS, LOOKED_SAMPLES
        for text in self.samples or ():
            cards, _, looked = text.partition(":")
            if (
                not all(part == "" or part.isdecimal() for part in (cards, looked))
                or looked.strip("0") == "" != looked
            ):
                raise UsageError(
                    f"--samples {text}: expected N or N:M", hint="--samples 48, or --samples 48:100000"
                )
            shown = whole_number(cards) if cards else shown
            read = whole_number(looked) if looked else read
        return shown, read


@grouped
def report(
    *, shards: Shards, page: PageOptions, selection: SelectionOptions, general: GeneralOptions
) -> None:
    """Write a page about a set: samples, sizes, classes, texts, mixing, findings.

    The page is one HTML file for a browser, and needs no network. The same set gives the same page. The command needs
    some packages: `pip install 'wdscli[report]'`.

    Examples:

        wds report shards/ -o report.html
        wds report s3://bucket/train/ -o report.html --samples 100 --seed 7
        wds report shards/ -o cats.html --where 'json.label == "cat"' --title Cats
        wds report shards/ --card README.md --croissant croissant.json
        wds report train-manifest.json -o - --skip images | gzip > report.html.gz
    """
    options, output = page.parse(), page.output or ""
    out = Out.of(general, "-" if "-" in page.outputs else output)
    request = Request(
        shards,
        output,
        ShardSettings(force=page.force),
        selection=selection.parse(own_seed=True),
        trust_addresses=general.trust_addresses,
        jobs=page.jobs,
    )
    page_facts, size_bytes = make(request, options, progress=out.progress())
    _print_result(out, page.outputs, page_facts, size_bytes)
    # The page shows an incomplete set too, but the command fails like the others.
    if missing := page_facts.input.summary.report.missing:
        from wdscli.shards.inputs import missing_error

        raise missing_error(missing)


def _print_result(out: Out, outputs: Sequence[str], page_facts: PageFacts, size_bytes: int) -> None:
    """Print the page's totals, in one line or as JSON."""
    summary = page_facts.input.summary
    for remark in summary.report.remarks:
        out.warn(remark)
    if out.json:
        out.object(
            {"output": " ".join(map(shown, outputs)), "output_bytes": size_bytes, **_object(page_facts)}
        )
    total = f"{plural(summary.samples, 'sample')} in {plural(summary.shards, 'shard')}"
    judged = ", ".join(verdict.text for verdict in page_facts.verdicts)
    message = f"{total}: {judged}; wrote {', '.join(map(shown, outputs))}, {human_size(size_bytes)},"
    out.done(message, summary.size_bytes)


def _object(page: PageFacts) -> dict[str, Any]:
    """Return the page's totals as an object for JSON."""
    mixed = page.mixed
    return {
        **facts(page.input, "title seed looked"),
        **facts(page.input.summary, _TOTALS),
        "classes": {
            classes.source: {
                "distinct": classes.distinct,
                "counts": {row.value: row.samples for row in classes.rows},
            }
            for classes in page.classes
        },
        "texts": {
            texts.source: facts(texts, "texts empty characters words longest") for texts in page.captions
        },
        "pictures": {sizes.field: facts(sizes, "pictures distinct width height") for sizes in page.pictures},
        "mixing": None
        if mixed is None
        else {
            "here": facts(mixed.quality.output, _MIXING),
            "by_chance": facts(mixed.quality.random, _MIXING),
        },
        "findings": None if page.findings is None else {kind.code: kind.total for kind in page.findings},
        "verdicts": [verdict.text for verdict in page.verdicts],
    }
