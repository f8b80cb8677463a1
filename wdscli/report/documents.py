"""This module turns facts into documents: the page, and for publishing a set a dataset card for the Hub and Croissant
metadata.

:func:`make_page` makes one HTML file that needs only a browser. It fills the template in this folder with jinja2, which
escapes all text of a set; style and script are embedded. As a second protection, a policy in the page's head lets a
browser run only this script, which it recognizes by a hash. The browser loads nothing else.

:func:`make_readme` writes the card: Markdown with a head in YAML, which the Hub reads. :func:`make_croissant` writes
JSON-LD in Croissant 1.0: a file object for each shard, and for each field a set of files and a set of records with key
and content. All names and values of a set are escaped, because they may come from an attacker. Neither document has a
date, so the same set gives the same bytes. This module does not know how facts are found, and uploads nothing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

from wdscli import __version__
from wdscli.codecs.handlers import held_extension, needed
from wdscli.codecs.kinds import find
from wdscli.report.facts import Classes, PageFacts, lost_samples
from wdscli.report.looking import field_type
from wdscli.shown import shown
from wdscli.units import human_size

MAX_ROWS = 50
MAX_CHARACTERS = 500
"""The most rows of a table in the card, and the most characters of a text."""
MAX_PAGE_CHARACTERS = 2000
"""The most characters of any text on the page. A member's name may have a million."""
INSTALL = "'wdscli[report]'"
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""The Hub's names for 1,000 samples and each ten times as many."""
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""The words in the names of shards that name a split, and the Hub's names of these splits."""
_CREATIVE_COMMONS = re.compile(
    r"https?://creativecommons\.org/(?:licenses/([a-z-]+)|publicdomain/(zero))/([0-9.]+)"
)
_TERMS = """
citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes isLiveDataset jsonPath
key md5 parentField path recordSet references regex repeated replace samplingRate separator source subField transform
"""
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{name: f"cr:{name}" for name in _TERMS.split()},
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
}
"""Croissant's usual context."""


class PublishedShard(NamedTuple):
    """A shard: its name, relative to the document, its number of samples, its size in bytes, and its SHA-256 in
    hexadecimal."""

    name: str
    samples: int
    size_bytes: int
    sha256: str


Licences: TypeAlias = Sequence[tuple[str, int | None]]
"""Each licence with its number of samples. The number is None for a licence of the whole set, and the licence is empty
for samples without one."""


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
    if len(value) > MAX_PAGE_CHARACTERS:
        value = value[:MAX_PAGE_CHARACTERS] + "…"
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


def make_readme(facts: PageFacts, shards: Sequence[PublishedShard], licences: Licences) -> bytes:
    """Return the card in UTF-8."""
    title, summary = facts.input.title, facts.input.summary
    parts = [
        _head(facts, shards, licences),
        f"# {_plain(title)}\n\n{_description(facts)} Format: WebDataset.",
        _table("Fields", "Field|Type|Samples|Bytes", [
            (_code(row.sizes.field), row.type, f"{row.sizes.occurrences:,}", human_size(row.sizes.total))
            for row in facts.fields
        ]),
        _table("Names in JSON", f"Field|Name|Type|Share of {facts.input.looked:,} samples", [
            (_code(field), _code(name), types, f"{share:.0%}") for field, name, types, share in facts.names if name
        ]),
        *(_classes(classes, facts) for classes in facts.classes if classes.are_labels),
        _table("Licences", "Licence|Samples", [
            (_plain(licence) or "none", "all" if count is None else f"{count:,}")
            for licence, count in licences
        ]),
        _table("Shards", "Shard|Samples|Bytes|SHA-256", [
            (_code(shard.name), f"{shard.samples:,}", f"{shard.size_bytes:,}", shard.sha256)
            for shard in shards
        ]),
        _table("Provenance", "|", [(name, _plain(text)) for name, text in facts.input.provenance]),
    ]  # fmt: skip
    if summary.repeated_keys:
        parts.insert(2, f"{summary.repeated_keys:,} keys belong to more than one sample.")
    return ("\n\n".join(filter(None, parts)) + "\n").encode("utf-8", "backslashreplace")


def _description(facts: PageFacts) -> str:
    summary = facts.input.summary
    shards = f"{summary.shards:,} shard{'s' * (summary.shards != 1)}"
    samples = f"{summary.samples:,} sample{'s' * (summary.samples != 1)}"
    return f"{samples} in {shards}, {human_size(summary.size_bytes)}."


def _head(facts: PageFacts, shards: Sequence[PublishedShard], licences: Licences) -> str:
    """Return the head in YAML. JSON strings are YAML too."""
    samples = facts.input.summary.samples
    lines = [f"pretty_name: {json.dumps(facts.input.title)}"]
    if names := sorted({_hub_licence(licence) for licence, _ in licences if licence}):
        lines += ["license:", *(f"- {name}" for name in names)]
    types = {row.type for row in facts.fields} & {"image", "audio", "video", "text"}
    lines += [
        "size_categories:",
        f"- {_size_category(samples)}",
        "tags:",
        "- webdataset",
        *(f"- {name}" for name in sorted(types)),
    ]
    lines += ["configs:", "- config_name: default", "  data_files:"]
    for split, patterns in _patterns(shards).items():
        lines += [f"  - split: {split}", "    path:", *(f"    - {json.dumps(text)}" for text in patterns)]
    return "\n".join(("---", *lines, "---"))


def _size_category(samples: int) -> str:
    """
    >>> [_size_category(samples) for samples in (999, 1_000, 10**12 - 1, 10**12)]
    ['n<1K', '1K<n<10K', '100B<n<1T', 'n>1T']
    """
    place = max(0, len(str(samples)) - 3)
    if place >= len(_SIZES):
        return f"n>{_SIZES[-1]}"
    return f"{_SIZES[place - 1]}<n<{_SIZES[place]}" if place else f"n<{_SIZES[0]}"


def _hub_licence(licence: str) -> str:
    """Return the Hub's identifier of a licence.

    >>> _hub_licence("https://creativecommons.org/licenses/by-sa/2.0/"), _hub_licence("MIT"), _hub_licence("ask us")
    ('cc-by-sa-2.0', 'mit', 'other')
    """
    if match := _CREATIVE_COMMONS.match(licence):
        return f"cc0-{match[3]}" if match[2] else f"cc-{match[1]}-{match[3]}"
    return licence.lower() if re.fullmatch(r"[A-Za-z][A-Za-z0-9.-]*", licence) else "other"


def _patterns(shards: Sequence[PublishedShard]) -> dict[str, list[str]]:
    """Return the patterns of the shards of each split. A shard without the name of a split belongs to train."""
    patterns: dict[str, dict[str, None]] = {}
    for shard in shards:
        words = re.split(r"[/_.-]", shard.name.lower())
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "train")
        folder, slash, name = shard.name.rpartition("/")
        # The Hub's patterns know no escapes: a character that is special there becomes a question mark.
        pattern = re.sub(r"[\[\]{}*?]", "?", folder + slash) + re.sub(
            r"[0-9]+", "*", re.sub(r"[\[\]{}*?]", "?", name)
        )
        patterns.setdefault(split, {})[pattern] = None
    return {split: [*names] for split, names in patterns.items()}


def _classes(classes: Classes, facts: PageFacts) -> str:
    rows = [(_plain(row.value), _plain(row.name), f"{row.samples:,}") for row in classes.rows]
    return _table(
        f"Classes in {_plain(classes.source)}", f"Class|Name|Of {facts.input.looked:,} samples", rows
    )


def _table(title: str, header: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Return a section with a table in Markdown. It is empty without rows."""
    if not rows:
        return ""
    names = header.split("|")
    lines = [names, ["---"] * len(names), *rows[:MAX_ROWS]]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    rest = f"\n\nand {len(rows) - MAX_ROWS:,} more" if len(rows) > MAX_ROWS else ""
    return f"## {title}\n\n{table}{rest}"


def _plain(text: str) -> str:
    """Return a text of the set that is neither Markdown nor HTML.

    >>> print(_plain("<b>a|b</b> [x](y)"))
    &lt;b&gt;a\\|b&lt;/b&gt; \\[x\\](y)
    """
    text = re.sub(r"\s", " ", escape(shown(text)[:MAX_CHARACTERS], quote=False))
    return re.sub(r"[|`*_\[\]\\~#!]|:(?=//)", r"\\\g<0>", text)


def _code(name: str) -> str:
    return f"<code>{_plain(name)}</code>"


def make_croissant(facts: PageFacts, shards: Sequence[PublishedShard], licences: Licences) -> bytes:
    """Return the metadata as JSON-LD."""
    fields = [row.sizes.field for row in facts.fields]
    shard_ids = [{"@id": shard.name} for shard in shards]
    named_licences = [licence for licence, _ in licences if licence]
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": facts.input.title,
        "description": _description(facts),
        **({"license": named_licences} if named_licences else {}),
        "distribution": [
            *map(_file_object, shards),
            *(_file_set(field, fields, shard_ids) for field in fields),
        ],
        "recordSet": [_record_set(field, facts) for field in fields],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _file_object(shard: PublishedShard) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": shard.name,
        "name": shard.name,
        "contentUrl": shard.name,
        "contentSize": f"{shard.size_bytes} B",
        "encodingFormat": "application/x-tar",
        "sha256": shard.sha256,
    }


def _file_set(field: str, fields: Sequence[str], shards: list[dict[str, str]]) -> dict[str, Any]:
    """Describe the files of a field. Another field may end with the same name: ``seg.png`` and ``png``."""
    longer = [f"*.{name}" for name in fields if name.endswith(f".{field}")]
    return {
        "@type": "cr:FileSet",
        "@id": f"files-{field}",
        "name": f"files-{field}",
        "containedIn": shards,
        "encodingFormat": _media_type(field),
        "includes": f"*.{field}",
        **({"cr:excludes": longer} if longer else {}),
    }


def _media_type(field: str) -> str:
    """
    >>> [_media_type(field) for field in ("jpg", "seg.png", "txt", "json", "mp3", "npy")]
    ['image/jpeg', 'image/png', 'text/plain', 'application/json', 'audio/mpeg', 'application/octet-stream']
    """
    kind = find(held_extension(field)[0])
    if "/" in kind.card or held_extension(field)[1]:
        return "application/gzip" if held_extension(field)[1] else kind.card
    types = {"text": "text/plain", "number": "text/plain", "json": "application/json"}
    return f"image/{kind.pillow.lower()}" if kind.pillow else types.get(kind.card, "application/octet-stream")


def _record_set(field: str, facts: PageFacts) -> dict[str, Any]:
    """Describe a field's records: key and content. The description lists the names in JSON."""
    content_type = {"image": "sc:ImageObject", "audio": "sc:AudioObject"}.get(field_type(field), "sc:Text")
    names = [
        f"{name} ({types})" for json_field, name, types, _ in facts.names if json_field == field and name
    ]
    key = {"extract": {"fileProperty": "fullpath"}, "transform": {"regex": rf"^(.*)\.{re.escape(field)}$"}}
    content = {"extract": {"fileProperty": "content"}}
    return {
        "@type": "cr:RecordSet",
        "@id": field,
        "name": field,
        **({"description": "JSON with " + ", ".join(names[:MAX_ROWS])} if names else {}),
        "key": {"@id": f"{field}/key"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{field}/{name}",
                "name": name,
                "dataType": data_type,
                "source": {"fileSet": {"@id": f"files-{field}"}, **source},
            }
            for name, data_type, source in (("key", "sc:Text", key), ("content", content_type, content))
        ],
    }
