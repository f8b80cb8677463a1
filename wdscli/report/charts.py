"""This module draws histograms and bars as SVG by pygal. The page's style colours them.

pygal lays out axes, labels and bars. Then styles, scripts, times and random names are removed from its tree. So the
page's own style decides on light and dark, and the same numbers give the same bytes. Labels that pygal shows by its
script go into ``<title>``, which browsers show without one. This module does not know what is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections import Counter

WIDTH, HEIGHT = 360, 170
"""The size of a chart, in units of about a pixel. Pages show two or three charts next to each other, phones show
one."""
LABEL_PIXELS = 10
BINS = 24
_TAIL = 0.995
"""The share of all values inside the range of a histogram; larger values are in its last bin."""
_NUMBER = re.compile(r"-?\d+\.\d+")
_DROPPED = ("defs", "desc", "style", "script", "title")
_EMPTY_LAYERS = ("titles", "plot text-overlay", "plot tooltip-overlay")


class Bin(NamedTuple):
    """Values from ``low`` to ``high``, both included; the last bin of a histogram may be ``open`` to the right."""

    low: int
    high: int
    number: int
    open: bool = False

    @property
    def label(self) -> str:
        """The values as a text."""
        if self.open:
            return f"{self.low:,} and more"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


def binned(counts: Mapping[int, int]) -> list[Bin]:
    """Count whole numbers in bins of equal width. The few largest numbers are in the last bin.

    >>> [one.number for one in binned({1: 2, 2: 3, 4: 1})]
    [2, 3, 0, 1]
    """
    values = sorted(counts)
    low, last, high = values[0], values[-1], values[-1]
    left = sum(counts.values()) * (1 - _TAIL)
    for value in reversed(values):
        left -= counts[value]
        if left < 0:
            high = value
            break
    width = max(1, ceil((high - low + 1) / BINS))
    bin_counts = [0] * ceil((high - low + 1) / width)
    for value, count in counts.items():
        bin_counts[min((value - low) // width, len(bin_counts) - 1)] += count
    return [
        Bin(
            low + bin_number * width,
            low + (bin_number + 1) * width - 1,
            count,
            bin_number == len(bin_counts) - 1 and last >= low + (bin_number + 1) * width,
        )
        for bin_number, count in enumerate(bin_counts)
    ]


_SETTINGS: dict[str, Any] = {
    "width": WIDTH,
    "height": HEIGHT,
    "margin": 2,
    "spacing": 6,
    "css": (),
    "js": (),
    "title": None,
    "show_legend": False,
    "include_x_axis": True,
    "rounded_bars": 1,
    "min_scale": 2,
    "max_scale": 5,
    "show_x_guides": False,
    "no_data_text": "",
}


def whole(value: float) -> str:
    """Return a label for an axis of whole numbers.

    >>> whole(1200.0), whole(0.5)
    ('1,200', '')
    """
    return f"{value:,.0f}" if value == round(value) else ""


def histogram(
    counts: Counter[int], what: str, number: Callable[[float], str] = whole, *, alone: bool = False
) -> str:
    """Return an SVG with the frequency of whole numbers. ``what`` names the counted things. A chart without
    another one next to it (``alone``) is twice as wide."""
    bins = binned(counts)
    values = [
        {"value": (bar.number, bar.low, bar.high + 1), "label": f"{bar.label}: {bar.number:,} {what}"}
        for bar in bins
    ]
    options: dict[str, Any] = {"x_value_formatter": number, "width": WIDTH * (1 + alone)}
    if bins[-1].open:
        # The last bar has all larger values.
        low, last = bins[0].low, bins[-1].low
        quarters = {int(float(f"{low + (last - low) * part / 4:.1g}")) for part in (1, 2, 3)}
        places = [low, *sorted(place for place in quarters if low < place < last)]
        options["x_labels"] = [{"value": place, "label": number(place)} for place in places]
        options["x_labels"].append({"value": last, "label": f"≥ {number(last)}"})
    return _drawn("Histogram", values, what, **options)


def bars(rows: Sequence[tuple[str, int, str]], what: str, number: Callable[[float], str]) -> str:
    """Return an SVG with a bar and a tooltip for each name and number."""
    values = [{"value": value, "label": text} for _, value, text in rows]
    return _drawn("Bar", values, what, value_formatter=number, show_x_labels=False)


def scatter(points: Sequence[tuple[int, int, str]], what: str) -> str:
    """Return an SVG with a dot for each pair of numbers."""
    values = [{"value": (x, y), "label": text} for x, y, text in points]
    most_x, most_y = max(x for x, _, _ in points), max(y for _, y, _ in points)
    axes: dict[str, Any] = {"xrange": (0, most_x), "range": (0, most_y), "x_value_formatter": whole}
    return _drawn("XY", values, what, stroke=False, dots_size=3, **axes)


def spark(counts: Sequence[int], labels: Sequence[str]) -> str:
    """Return a small SVG for a row of a table."""
    # Every count above 0 must be visible.
    least = max(counts) / 14
    heights = [max(count, least) if count else 0 for count in counts]
    values = [{"value": height, "label": label} for height, label in zip(heights, labels)]
    size = {"width": 132, "height": 30}
    return _drawn("Bar", values, "", "spark", show_x_labels=False, show_y_labels=False, **size)


def _drawn(
    kind: str, values: Sequence[dict[str, Any]], what: str, name: str = "chart", **options: Any
) -> str:
    """Return a pygal chart as text. ``name`` is its class on the page."""
    from xml.etree import ElementTree

    import pygal
    from pygal.style import Style

    style = Style(label_font_size=LABEL_PIXELS, major_label_font_size=LABEL_PIXELS)
    chart = getattr(pygal, kind)(**{**_SETTINGS, "style": style, "value_formatter": whole, **options})
    chart.add(what, values)
    # Do not use lxml, which pygal prefers, because it writes namespaces differently.
    chart.etree = ElementTree
    root = chart.render_tree()
    for node in list(root.iter()):
        _clean(node)
    root.attrib.pop("id", None)
    root.attrib.pop("xmlns", None)
    root.set("class", name)
    root.set("role", "img")
    text = ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), text)


def _clean(node: Any) -> None:
    """Remove everything that is not drawn, and turn the label of a bar into its title."""
    for child in list(node):
        tag = child.tag if isinstance(child.tag, str) else ""
        if tag == "desc" and child.get("class") == "label":
            child.tag = "title"
            child.attrib.clear()
        elif not tag or tag in _DROPPED or (tag == "g" and child.get("class") in _EMPTY_LAYERS):
            node.remove(child)
