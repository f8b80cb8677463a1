"""What ``--help`` prints: Typer's definitions, laid out in panels, without loading rich.

Typer's own pretty help takes twice the time of everything else that ``wds --help`` does. This one prints the same
facts: usage, what the command is for, and a heading for each panel with two columns below it. Bold and colour only on
a terminal, and not with NO_COLOR.

:func:`panels` is also what man pages are made from, so that the two cannot tell different stories.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from typer.core import TyperCommand

from wdscli.cli.output import takes_colour

_PLAIN_PANELS = {"argument": "Arguments", "option": "Options"}
_LAST = ("Errors", "Network", "General")


class Entry(NamedTuple):
    """One line of help: ``terms`` are an option's names, ``value`` its metavar, ``notes`` its default."""

    terms: list[str]
    value: str
    text: str
    notes: str


class WdsCommand(TyperCommand):
    """A command whose help is laid out here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(render(self, ctx))


def render(command: Any, ctx: Any, extra: Iterable[tuple[str, list[Entry]]] = ()) -> str:
    """The whole help of ``command`` as text; ``extra`` panels come before its own (the group's commands)."""
    style = _Style()
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    # Typer's mark of what is required, a shell's of alternatives.
    usage = usage.replace("{", "").replace("}", "")
    parts = [f"{style.head('Usage:')} {usage}", _prose(command.help or "", style.width)]
    sections = [*extra, *panels(command, ctx)]
    width = min(30, max((len(_terms(e)) for _, entries in sections for e in entries), default=0))
    for title, entries in sections:
        lines = [style.head(title + ":")]
        for entry in entries:
            lines += _entry(entry, width, style)
        parts.append("\n".join(lines))
    if command.epilog:
        parts.append(_prose(command.epilog, style.width))
    return "\n\n".join(parts) + "\n"


def panels(command: Any, ctx: Any) -> list[tuple[str, list[Entry]]]:
    """The parameters of ``command`` by panel, in the order in which the panels first come, the common ones last."""
    found: dict[str, list[Entry]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        panel = getattr(parameter, "rich_help_panel", None)
        if "--help" in parameter.opts:
            panel = "General" if "General" in found else "Options"
        found.setdefault(panel or _PLAIN_PANELS[parameter.param_type_name], []).append(
            _describe(parameter, ctx)
        )
    order = sorted(found, key=lambda title: _LAST.index(title) + 1 if title in _LAST else 0)
    return [(title, found[title]) for title in order if found[title]]


def _describe(parameter: Any, ctx: Any) -> Entry:
    if parameter.param_type_name == "argument":
        return Entry([parameter.make_metavar(ctx=ctx)], "", parameter.help or "", "")
    from wdscli.cli.options import former_names

    former = former_names(parameter.opts)
    shown = [name for name in parameter.opts if name not in former]
    terms = sorted(shown, key=lambda name: name.startswith("--")) + list(parameter.secondary_opts)
    flag = parameter.is_flag or parameter.count
    value = "" if flag else parameter.make_metavar(ctx=ctx)
    notes = ["required"] if parameter.required else []
    default = parameter.default
    if parameter.show_default and not parameter.is_flag and default is not None and not callable(default):
        notes.append(f"default: {default}")
    return Entry(terms, value, parameter.help or "", f"[{'; '.join(notes)}]" if notes else "")


def _terms(entry: Entry) -> str:
    return ", ".join(entry.terms) + (" " + entry.value if entry.value else "")


def _entry(entry: Entry, width: int, style: _Style) -> list[str]:
    """One entry: its terms, then its text beside them, or below them when they are too long."""
    terms = _terms(entry)
    indent = " " * (width + 4)
    text = f"{entry.text} {entry.notes}".strip()
    lines = textwrap.wrap(
        text, style.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    shown = "  " + ", ".join(map(style.term, entry.terms)) + (" " + entry.value if entry.value else "")
    if len(terms) > width or not lines:
        return [shown, *lines]
    return [shown + " " * (width + 2 - len(terms)) + lines[0][width + 4 :], *lines[1:]]


def _prose(text: str, width: int) -> str:
    """Paragraphs filled to the width; indented ones, which are examples, as they are."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(
        b if b.startswith(" ") else textwrap.fill(b, width, break_on_hyphens=False) for b in blocks
    )


class _Style:
    """How wide standard output is, and whether it takes colour."""

    def __init__(self) -> None:
        self.colour = takes_colour(sys.stdout)
        self.width = max(50, min(shutil.get_terminal_size((80, 24)).columns, 110))

    def head(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def term(self, text: str) -> str:
        return f"\x1b[36m{text}\x1b[0m" if self.colour else text
