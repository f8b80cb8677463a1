"""This module turns all results into the form of the page: plain values and texts, sorted and rounded.

:func:`gather` makes :class:`PageFacts` of a summary, of the drawn samples, of the findings of verify and of a manifest.
Each section of the page has one function. Its result is empty if a set has no data for the section. All numbers become
texts here, so that the template only lays them out. This module does not know HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.look.quality import WINDOW, Mixing, Quality, measure
from wdscli.look.summary import FieldSizes, Summary, middle
from wdscli.report import charts
from wdscli.report.looking import CAPTIONS, CLASSES, Card, PayloadFacts, field_type
from wdscli.selection.places import class_name
from wdscli.storage.addresses import natural
from wdscli.text import to_text
from wdscli.units import human_size
from wdscli.verify.findings import FindingKind, by_kind, undecoded_text
from wdscli.verify.set import VerifyReport

if TYPE_CHECKING:
    from wdscli.arrays import I64
    from wdscli.shards.manifest import Manifest

MAX_CLASSES = 600
MAX_SHARDS = 1000
MAX_DOTS = 400
MAX_BARS = 60
MAX_NAMES = 200
"""The most rows, dots, bars and names of each kind on the page. The page also shows how many there are in total."""
STRIP_CLASSES, STRIP_BINS = 10, 60
FEW_SAMPLES = 30
"""With fewer samples than this, the page does not judge how mixed they are."""
MIXED_RUN, SORTED_RUN = 1.5, 4.0
"""Limits for the length of runs of one class, relative to random order. Up to the first number, a set is mixed; from
the second number, it is sorted."""
UNEVEN = 0.5
"""A set is uneven if a shard, except the last shard, has less than this share of the largest shard's samples."""
_LOSSES = ("damaged", "lost")
"""The reasons for which the page lacks samples because of damage."""
_GOOD, _FAIR, _BAD, _PLAIN = "good", "fair", "bad", "plain"


class Verdict(NamedTuple):
    """One line of judgement. ``tone`` is good, fair, bad or plain, and ``place`` is the section with details."""

    tone: str
    text: str
    place: str


class FieldRow(NamedTuple):
    """A field's row. ``share`` is of samples, ``weight`` of payload bytes, both from 0 to 1."""

    sizes: FieldSizes
    type: str
    share: float
    weight: float
    svg: str


class ClassRow(NamedTuple):
    """A class: its name in a manifest, its share of samples, and the length of its bar, from 0 to 1."""

    value: str
    name: str
    samples: int
    share: float
    length: float


class Classes(NamedTuple):
    """The classes of one source. ``effective`` is the number of classes of equal size with the same entropy."""

    source: str
    samples: int
    distinct: int
    rows: list[ClassRow]
    ratio: float
    effective: float
    are_labels: bool


class Captions(NamedTuple):
    """The facts about the texts of one source."""

    source: str
    texts: int
    empty: int
    characters: int
    words: int
    longest: int
    svg_characters: str
    svg_words: str


class Pictures(NamedTuple):
    """The sizes of one field's pictures, the most frequent first."""

    field: str
    pictures: int
    distinct: int
    width: int
    height: int
    usual: list[tuple[int, int, int]]
    svg: str


class Shards(NamedTuple):
    """Rows for the first shards, and the balance of all shards."""

    rows: list[tuple[str, int, int, int, int]]
    total: int
    svg_samples: str
    svg_bytes: str
    is_even: bool
    spread: str


class MixingFacts(NamedTuple):
    """How mixed the samples are. ``order`` is how close they are to the order of their keys. ``strip`` has each of the
    largest classes, with its share of the maximum, from 0 to 1, in each part of the set."""

    quality: Quality
    verdict: Verdict
    order: Verdict
    strip: list[tuple[str, list[float]]]


class PageInput(NamedTuple):
    """The input of a page. ``looked`` is the number of samples that were read, ``names`` has the name of each shard
    on the page."""

    title: str
    sources: list[str]
    seed: int
    summary: Summary
    looked: int
    payloads: PayloadFacts
    classes: Sequence[tuple[tuple[int, int], bytes, tuple[tuple[str, str], ...]]]
    names: Mapping[str, str]
    verified: VerifyReport | None
    decoded: bool
    manifest: Manifest | None
    provenance: list[tuple[str, str]]


class PageFacts(NamedTuple):
    """The content of a page. ``names`` has the field, name, types and share of each top-level name in JSON.
    ``findings`` are the findings of verify; it is None if verify did not run."""

    input: PageInput
    verdicts: list[Verdict]
    cards: list[Card]
    fields: list[FieldRow]
    names: list[tuple[str, str, str, float]]
    classes: list[Classes]
    captions: list[Captions]
    pictures: list[Pictures]
    shards: Shards
    mixed: MixingFacts | None
    findings: list[FindingKind] | None
    unread: list[tuple[str, int]]

    @property
    def has_pictures(self) -> bool:
        """Whether any card shows a picture or film."""
        return any(part.kind in ("image", "video") for card in self.cards for part in card.parts)


def gather(page_input: PageInput) -> PageFacts:
    """Collect all facts about a set."""
    summary, looked = page_input.summary, page_input.payloads
    classes = _classes(page_input)
    shards = _shards(page_input)
    primary = classes[0] if classes and classes[0].are_labels else None
    mixed = _mixed(page_input, primary)
    findings = None
    if (report := page_input.verified) is not None:
        findings = sorted(by_kind(report.findings, report.counts), key=lambda kind: kind.severity)
    cards = [
        card for _, card in sorted(looked.cards, key=lambda pair: (pair[0], pair[1].shard, pair[1].place))
    ]
    labels = {row.value: row.name for row in classes[0].rows if row.name} if classes else {}
    return PageFacts(
        input=page_input,
        verdicts=_verdicts(page_input, mixed, shards),
        cards=[
            card._replace(
                shard=page_input.names.get(card.shard, card.shard), label=_label(card.label, labels)
            )
            for card in cards
        ],
        fields=_fields(summary),
        names=_json_names(page_input),
        classes=classes,
        captions=_captions(looked),
        pictures=_pictures(looked),
        shards=shards,
        mixed=mixed,
        findings=findings,
        unread=sorted(looked.unread.items()),
    )


def _label(value: str, names: Mapping[str, str]) -> str:
    return f"{names[value]} ({value})" if value in names else value


def _fields(summary: Summary) -> list[FieldRow]:
    rows = []
    for field in summary.fields:
        labels = _size_labels(field)
        rows.append(
            FieldRow(
                field,
                field_type(field.field),
                field.occurrences / summary.samples if summary.samples else 0.0,
                field.total / summary.payload_bytes if summary.payload_bytes else 0.0,
                charts.spark(field.histogram, labels) if len(field.histogram) > 1 else "",
            )
        )
    return rows


def _size_labels(field: FieldSizes) -> list[str]:
    """Return texts for the bins of a field's histogram. The bins have equal width on a logarithmic scale."""
    bins = len(field.histogram)
    low, span = log(field.smallest + 1), log(field.largest + 1) - log(field.smallest + 1)
    edges = [exp(low + span * bin_number / bins) - 1 for bin_number in range(bins + 1)]
    return [
        f"{human_size(edges[bin_number])} to {human_size(edges[bin_number + 1])}: {count:,}"
        for bin_number, count in enumerate(field.histogram)
    ]


def _rank(source: str, order: Sequence[str]) -> tuple[int, int, str]:
    """Return a sort key that puts fields before names in JSON, and likely names first."""
    name = source.rpartition(": ")[2].rpartition(".")[2].lower()
    return ": " in source, order.index(name) if name in order else len(order), source


def _classes(page_input: PageInput) -> list[Classes]:
    counts: dict[str, Counter[str]] = {}
    for _, _, classes in page_input.classes:
        for source, value in classes:
            counts.setdefault(source, Counter())[value] += 1
    names = (page_input.manifest.classes if page_input.manifest is not None else None) or ()
    sources = sorted(counts, key=lambda source: _rank(source, CLASSES))
    return [_class(source, counts[source], names) for source in sources[:3]]


def _class(source: str, counts: Counter[str], names: Sequence[str]) -> Classes:
    total, most = sum(counts.values()), max(counts.values())
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], natural(pair[0])))
    rows = [
        ClassRow(value, class_name(value, names) or "", count, count / total, count / most)
        for value, count in ordered[:MAX_CLASSES]
    ]
    entropy = -sum(count / total * log(count / total) for count in counts.values())
    # If nearly every sample has its own value, it is a number or a name, not a class.
    are_labels = 1 < len(counts) <= max(20, total // 3)
    return Classes(source, total, len(counts), rows, most / min(counts.values()), exp(entropy), are_labels)


def _captions(looked: PayloadFacts) -> list[Captions]:
    sources = sorted(looked.characters, key=lambda source: _rank(source, CAPTIONS))
    return [_texts(source, looked.characters[source], looked.words[source]) for source in sources[:3]]


def _texts(source: str, characters: Counter[int], words: Counter[int]) -> Captions:
    lengths = [counts if len(counts) > 1 else None for counts in (characters, words)]
    svg_characters, svg_words = (
        charts.histogram(counts, "texts", alone=None in lengths) if counts else "" for counts in lengths
    )
    total = sum(characters.values())
    medians = middle(characters), middle(words)
    return Captions(source, total, characters[0], *medians, max(characters), svg_characters, svg_words)


def _pictures(looked: PayloadFacts) -> list[Pictures]:
    pictures = []
    for field, sizes in sorted(looked.pictures.items(), key=lambda pair: (-sum(pair[1].values()), pair[0])):
        usual = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
        widths, heights = Counter[int](), Counter[int]()
        for (width, height), count in sizes.items():
            widths[width] += count
            heights[height] += count
        dots = [
            (width, height, f"{width} × {height}: {count:,}") for (width, height), count in usual[:MAX_DOTS]
        ]
        pictures.append(
            Pictures(
                field,
                sum(sizes.values()),
                len(sizes),
                middle(widths),
                middle(heights),
                [(width, height, count) for (width, height), count in usual[:6]],
                charts.scatter(dots, "pictures") if len(dots) > 1 else "",
            )
        )
    return pictures[:3]


def _json_names(page_input: PageInput) -> list[tuple[str, str, str, float]]:
    types: dict[tuple[str, str], Counter[str]] = {}
    for (field, name, kind), count in page_input.payloads.names.items():
        types.setdefault((field, name), Counter())[kind] += count
    total = max(1, page_input.looked)
    frequent = sorted(types.items(), key=lambda pair: (-pair[1].total(), pair[0]))[:MAX_NAMES]
    return [
        (field, name, " or ".join(sorted(kinds)), kinds.total() / total)
        for (field, name), kinds in sorted(frequent, key=lambda pair: pair[0][0])
    ]


def _shards(page_input: PageInput) -> Shards:
    rows = [
        (
            page_input.names.get(row.shard, row.shard),
            row.samples,
            row.members,
            row.size_bytes,
            round(row.payload_bytes / row.samples) if row.samples else 0,
        )
        for row in page_input.summary.rows
    ]
    samples, sizes = [row[1] for row in rows], [row[3] for row in rows]
    # The last shard has the rest.
    full = samples[:-1] or samples
    is_even = not full or min(full) >= UNEVEN * max(full)
    spread = ""
    if len(rows) > 1:
        spread = _span(min(samples), max(samples), "{:,}".format) + " samples and "
        spread += _span(min(sizes), max(sizes), human_size)
    return Shards(rows[:MAX_SHARDS], len(rows), *_shard_charts(rows), is_even, spread)


def _span(least: int, most: int, number: Callable[[float], str]) -> str:
    return number(least) if least == most else f"{number(least)} to {number(most)}"


def _shard_charts(rows: Sequence[tuple[str, int, int, int, int]]) -> tuple[str, str]:
    """Return the charts of samples and of bytes: a bar for each of a few shards, a histogram for many shards with
    different numbers, and otherwise nothing."""
    if len(rows) < 2:
        return "", ""
    samples = [(row[0], row[1], f"{row[0]}: {row[1]:,} samples") for row in rows]
    sizes = [(row[0], row[3], f"{row[0]}: {human_size(row[3])}") for row in rows]
    if len(rows) <= MAX_BARS:
        return charts.bars(samples, "shards", "{:,.0f}".format), charts.bars(sizes, "shards", human_size)
    by_samples, by_bytes = (Counter(number for _, number, _ in numbers) for numbers in (samples, sizes))
    alone = min(len(by_samples), len(by_bytes)) < 2
    return (
        charts.histogram(by_samples, "shards", alone=alone) if len(by_samples) > 1 else "",
        charts.histogram(by_bytes, "shards", human_size, alone=alone) if len(by_bytes) > 1 else "",
    )


def _mixed(page_input: PageInput, classes: Classes | None) -> MixingFacts | None:
    """Return how mixed the drawn samples are, in the order of the set and in the order of their keys."""
    samples = sorted(page_input.classes, key=lambda sample: sample[0])
    total = len(samples)
    if total < FEW_SAMPLES:
        return None
    by_key = sorted(range(total), key=lambda row: (natural(to_text(samples[row][1])), row))
    places: I64 = numpy.empty(total, dtype=numpy.int64)
    places[by_key] = numpy.arange(total)
    values = [b""] * total
    if classes is not None:
        values = [dict(sample[2]).get(classes.source, "").encode("utf-8", "replace") for sample in samples]
    numbers: dict[bytes, int] = {}
    for value in values:
        numbers.setdefault(value, len(numbers))
    kinds = numpy.array([numbers[values[row]] for row in by_key], dtype=numpy.int64)
    quality = measure(kinds, places, [values[row] for row in by_key], min(WINDOW, max(20, total // 10)))
    return MixingFacts(
        quality,
        _mixing_verdict(quality.output, quality.random),
        _order_verdict(quality.output, total),
        [] if classes is None else _strip(classes, [to_text(value) for value in values]),
    )


def _mixing_verdict(output: Mixing, random: Mixing) -> Verdict:
    if output.class_run is None or random.class_run is None:
        return Verdict(_PLAIN, "no classes to judge by", "mixing")
    times = output.class_run / random.class_run
    if times <= MIXED_RUN:
        return Verdict(_GOOD, "classes well mixed", "mixing")
    if times < SORTED_RUN:
        return Verdict(_FAIR, "classes partly mixed", "mixing")
    return Verdict(_BAD, "sorted by class", "mixing")


def _order_verdict(output: Mixing, samples: int) -> Verdict:
    correlation = abs(output.correlation or 0.0)
    if correlation > 0.95:
        return Verdict(_PLAIN, "in the order of the keys", "mixing")
    # In random orders the correlation has a standard deviation of one over the root of the number of samples.
    if correlation < max(0.1, 3 / samples**0.5):
        return Verdict(_PLAIN, "not in the order of the keys", "mixing")
    return Verdict(_PLAIN, "partly in the order of the keys", "mixing")


def _strip(classes: Classes, values: Sequence[str]) -> list[tuple[str, list[float]]]:
    """Return the distribution of each of the largest classes over the set."""
    bins = min(STRIP_BINS, len(values) // 2)
    names = {row.value: row.name or row.value for row in classes.rows[:STRIP_CLASSES]}
    counts = {value: [0] * bins for value in names}
    for place, value in enumerate(values):
        if value in counts:
            counts[value][place * bins // len(values)] += 1
    return [
        (names[value], [round(count / max(1, *bin_counts), 2) for count in bin_counts])
        for value, bin_counts in counts.items()
    ]


def _verdicts(page_input: PageInput, mixed: MixingFacts | None, shards: Shards) -> list[Verdict]:
    verdicts = []
    summary, checked = page_input.summary, page_input.verified
    if checked is not None:
        counts = [(checked.errors, "error"), (checked.warnings, "warning")]
        text = ", ".join(f"{count:,} {word}{'s' * (count != 1)}" for count, word in counts if count)
        tone = _BAD if checked.errors else _FAIR if checked.warnings else _GOOD
        verdicts.append(Verdict(tone, text or "nothing wrong", "findings"))
        if checked.undecoded:
            verdicts.append(Verdict(_FAIR, f"not decoded: {undecoded_text(checked.undecoded)}", "findings"))
    if losses := lost_samples(summary):
        verdicts.append(Verdict(_BAD, losses, "findings"))
    if summary.report.missing:
        count = len(summary.report.missing)
        verdicts.append(Verdict(_BAD, f"{count:,} shard{'s' * (count != 1)} missing", "findings"))
    if summary.shards > 1:
        tone = _GOOD if shards.is_even else _FAIR
        verdicts.append(Verdict(tone, "even shards" if shards.is_even else "uneven shards", "shards"))
    if mixed is not None:
        has_classes = mixed.quality.output.class_run is not None
        verdicts.append(mixed.verdict if has_classes else mixed.order)
    if page_input.manifest is None:
        verdicts.append(Verdict(_PLAIN, "no manifest", "provenance"))
    return verdicts


def lost_samples(summary: Summary) -> str:
    """Return how many samples the page lacks because of damage, as a text: ``1 damaged, 12 lost``."""
    dropped = summary.report.dropped
    return ", ".join(f"{dropped[reason]:,} {reason}" for reason in _LOSSES if dropped.get(reason))


def plain_value(value: Any) -> str:
    """Return a value of a manifest as text."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} {plain_value(inner)}" for name, inner in value.items() if inner not in (None, "", [])
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
