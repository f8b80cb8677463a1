"""Make the text of ``--help`` from Typer's definitions, without loading rich.

Typer's own help takes twice as long as all other work of ``wds --help``. This module prints the same facts: usage,
description, and a heading for each panel with two columns below it. Bold and colour are used only on a terminal, and
not with NO_COLOR.

Man pages are made from :func:`panels` too, so that they agree with the help.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from typer.core import TyperCommand

from wdscli.cli import MORE
from wdscli.cli.output import stdout, takes_colour

_PLAIN_PANELS = {"argument": "Arguments", "option": "Options"}
_SENTENCE = re.compile(r"(?<=\.) +(?=[A-Z-])")
_LAST = ("Errors", "Network", "General")


class HelpEntry(NamedTuple):
    """One line of help: ``terms`` are an option's names, ``value`` its metavar, ``notes`` its default."""

    terms: list[str]
    value: str
    text: str
    notes: str

    def short(self) -> HelpEntry:
        """This entry, with only the first sentence of its text."""
        return self._replace(text=_SENTENCE.split(self.text)[0], notes="")


class WdsCommand(TyperCommand):
    """A command whose help comes from this module. ``--help`` shows the usual options, each with its first sentence;
    ``--help-all`` shows all options."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        if self._help_all is None:
            make: Any = type(params[-1])
            self._help_all = make(
                param_decls=["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help="Show all options.",
            )
        return [*params, self._help_all]

    _help_all: Any = None

    def _show_all(self, ctx: Any, _: Any, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            stdout().write(render(self, ctx).encode())
            ctx.exit()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(render(self, ctx, usual=True))


def render(
    command: Any, ctx: Any, extra: Iterable[tuple[str, list[HelpEntry]]] = (), *, usual: bool = False
) -> str:
    """Return the help of ``command`` as text. The ``extra`` panels come before its own panels: they list a group's
    commands. ``usual`` shows only the usual options."""
    style = _Style()
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    # Typer writes required parameters in braces.
    usage = usage.replace("{", "").replace("}", "")
    parts = [f"{style.head('Usage:')} {usage}", _prose(command.help or "", style.width)]
    sections = [*extra, *panels(command, ctx, usual=usual)]
    width = min(
        26 if usual else 30,
        max((len(_terms(entry)) for _, entries in sections for entry in entries), default=0),
    )
    for title, entries in sections:
        lines = [style.head(title + ":")]
        for entry in entries:
            lines += _entry(entry, width, style)
        parts.append("\n".join(lines))
    if usual:
        count = sum(len(entries) for _, entries in panels(command, ctx)) - sum(
            len(entries) for _, entries in sections
        )
        if count:
            parts.append(f"{count} more options: {ctx.command_path} --help-all, or man wdscli-{command.name}")
    if command.epilog:
        parts.append(_prose(command.epilog, style.width))
    return "\n\n".join(parts) + "\n"


def panels(command: Any, ctx: Any, *, usual: bool = False) -> list[tuple[str, list[HelpEntry]]]:
    """Return the parameters of ``command`` by panel. Panels come in the order of their first parameter, except that the
    common panels are last. With ``usual``, return only the usual options."""
    by_panel: dict[str, list[HelpEntry]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        panel = getattr(parameter, "rich_help_panel", None) or _PLAIN_PANELS[parameter.param_type_name]
        if usual and panel.startswith(MORE):
            continue
        if "--help" in parameter.opts or "--help-all" in parameter.opts:
            panel = "General" if "General" in by_panel else "Options"
        entry = _describe(parameter, ctx)
        by_panel.setdefault(panel.removeprefix(MORE), []).append(entry.short() if usual else entry)
    order = sorted(by_panel, key=lambda title: _LAST.index(title) + 1 if title in _LAST else 0)
    return [(title, by_panel[title]) for title in order if by_panel[title]]


def summary_of(parameter: Any, ctx: Any) -> str:
    """Return one parameter and the first sentence of its help, without the full stop."""
    entry = _describe(parameter, ctx).short()
    return f"{_terms(entry)}: {entry.text.removesuffix('.')}"


def _describe(parameter: Any, ctx: Any) -> HelpEntry:
    if parameter.param_type_name == "argument":
        return HelpEntry([parameter.make_metavar(ctx=ctx)], "", parameter.help or "", "")
    terms = sorted(parameter.opts, key=lambda name: name.startswith("--")) + list(parameter.secondary_opts)
    flag = parameter.is_flag or parameter.count
    value = "" if flag else parameter.make_metavar(ctx=ctx)
    notes = ["required"] if parameter.required else []
    default = parameter.default
    if parameter.show_default and not parameter.is_flag and default is not None and not callable(default):
        notes.append(f"default: {default}")
    return HelpEntry(terms, value, parameter.help or "", f"[{'; '.join(notes)}]" if notes else "")


def _terms(entry: HelpEntry) -> str:
    return ", ".join(entry.terms) + (" " + entry.value if entry.value else "")


def _entry(entry: HelpEntry, width: int, style: _Style) -> list[str]:
    """Lay out one entry. Its text is to the right of its terms, or below them if the terms are too long."""
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
    """Fill paragraphs to the width. Indented paragraphs are examples, and do not change."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(
        block if block.startswith(" ") else textwrap.fill(block, width, break_on_hyphens=False)
        for block in blocks
    )


class _Style:
    """Width and colour of standard output."""

    def __init__(self) -> None:
        self.colour = takes_colour(sys.stdout)
        self.width = max(50, min(shutil.get_terminal_size((80, 24)).columns, 110))

    def head(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def term(self, text: str) -> str:
        return f"\x1b[36m{text}\x1b[0m" if self.colour else text
