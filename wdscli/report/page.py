"""This module turns facts into the page: one HTML file that needs only a browser.

:func:`make_page` fills the template in this folder with jinja2, which escapes all text of a set; style and script are
embedded. As a second protection, a policy in the page's head lets a browser run only this script, which it recognizes
by a hash. The browser loads nothing else. This module does not know how facts are found.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from wdscli import __version__
from wdscli.codecs.handlers import needed
from wdscli.report.facts import PageFacts, lost_samples
from wdscli.units import human_size

MAX_CHARACTERS = 2000
"""The most characters of any text on the page. A member's name may have a million."""
INSTALL = "'wdscli[report]'"


def needed_packages() -> None:
    """Raise UsageError, with the command that installs it, for a package that is missing."""
    for module in ("jinja2", "pygal", "PIL.Image"):
        needed(module, "wds report", INSTALL)


def make_page(facts: PageFacts) -> bytes:
    """Return the page in UTF-8. Characters that UTF-8 cannot encode are shown as escapes."""
    from markupsafe import Markup

    script = _beside("page.js")
    text: str = _template().render(
        **{**facts.input._asdict(), **facts._asdict()},
        has_pictures=facts.has_pictures,
        losses=lost_samples(facts.input.summary),
        script=Markup(script),
        style=Markup(_beside("page.css")),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        version=__version__,
        svg=Markup,
    )
    return text.encode("utf-8", "backslashreplace")


@cache
def _template() -> Any:
    """Return the template, which is compiled once."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
    )
    environment.filters |= {
        "n": _number,
        "size": human_size,
        "percent": _percent,
        "short": _short,
        "key": _breakable,
    }
    return environment.from_string(_beside("page.html"))


def _beside(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _clean(value: Any) -> Any:
    """Shorten a text, and remove control characters and marks that change the direction of text."""
    if type(value) is not str:
        return value
    if len(value) > MAX_CHARACTERS:
        value = value[:MAX_CHARACTERS] + "…"
    if value.isascii() and value.isprintable():
        return value
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if (char not in "\n\t" and unicodedata.category(char) == "Cc") or char in _TURNS
        else char
        for char in value
    )


_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.3g}"


def _breakable(key: str) -> Any:
    """Return a key that a browser can break after a separator, but not inside a word.

    >>> _breakable("n01/a<b_1")
    Markup('n01/<wbr>a&lt;b_<wbr>1')
    """
    from markupsafe import Markup

    return Markup("<wbr>").join(re.findall(r"[^/_.-]*[/_.-]+|[^/_.-]+", _clean(key)))


def _percent(share: float) -> str:
    """
    >>> _percent(1.0), _percent(0.9999), _percent(0.1234), _percent(0.00067)
    ('100%', '99.9%', '12.3%', '0.067%')
    """
    if 0 < share < 0.01:
        return "<0.01%" if share < 0.0001 else f"{100 * share:.2g}%"
    percent = min(100 * share, 99.9) if share < 1 else 100.0
    return f"{percent:.1f}".removesuffix(".0") + "%"


def _short(value: float) -> str:
    """Format a number for the length of a bar."""
    return f"{100 * value:.1f}".removesuffix(".0")
