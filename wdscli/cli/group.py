"""The command line in Typer: help, completion, and all lines that :func:`~wdscli.cli.options.read_plain` does not read.

Typer gets the same parameters as ``read_plain``. A command is imported when it is called. ``wds --help`` and completion
load no command, because the tables contain all texts that they need. :func:`run` turns Typer's errors into errors of
wdscli, so that no other module knows Typer. This module prints no data.

:func:`render` makes the text of ``--help`` without loading rich, because Typer's own help takes twice as long as all
other work of ``wds --help``. The facts are the same: usage, description, and a heading for each panel with two columns
below it. Bold and colour are used only on a terminal, and not with NO_COLOR. Man pages are made from :func:`panels`
too, so that they agree with the help.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from wdscli.cli import MORE, output
from wdscli.cli.commands import COMMANDS, PANELS
from wdscli.cli.options import REQUIRED
from wdscli.errors import UsageError, did_you_mean, printable

WISHES = {
    "cat SHARDS -o 'OUT/{name}.tar'": "copy cp download upload",
    "cat SHARDS --to FOLDER/": "extract unpack untar",
    "cat SHARDS --to raw --keys KEY --fields FIELD": "get print",
    "cat SHARDS --to x.parquet": "export",
    "cat SHARDS --to x.parquet, or wds create --from x.parquet": "convert",
    "create --from x.parquet -o OUT": "import",
    "create SOURCE -o OUT": "build make pack tar",
    "create SOURCE -o OUT --append": "add append",
    "ls SHARDS": "keys list",
    "ls SHARDS --count FIELD": "count",
    "ls SHARDS --limit 10": "head",
    "ls SHARDS --sample 3 --show": "sample",
    "ls SHARDS --show": "preview show",
    "ls SHARDS --summary": "describe du info inspect size stat stats summary wc",
    "ls SHARDS --where EXPR": "find grep query search",
    "map SHARDS --resize 256 -o 'OUT/{name}.tar'": "resize",
    "merge --join inner SETS -o OUT": "join",
    "merge SETS -o OUT": "concat",
    "merge SETS -o OUT --weights equal": "interleave mix",
    "repair SHARDS -o OUT": "fix recover",
    "split SHARDS --dedup FIELD -o OUT": "dedup dedupe deduplicate uniq",
    "split SHARDS --max-count 1000 -o 'out-%06d.tar'": "reshard",
    "split SHARDS --not-keys-from LIST -o OUT": "delete remove rm",
    "split SHARDS --rename NEW=OLD -o OUT": "rename",
    "split SHARDS --sample 10% -o OUT": "subset",
    "split SHARDS --where EXPR -o OUT": "filter select",
    "split SHARDS -o x.json": "view",
    "verify SHARDS": "check validate",
}
"""Commands to use instead of names that people expect but that do not exist."""
WISHED_OPTIONS = {
    "bench --prefetch": "set WDSCLI_READ_AHEAD=SIZE in the environment",
    "cat --max-count": "--limit N keeps the first N samples; wds split --max-count N cuts a set into shards",
    "cat --preserve": "wds writes one canonical form of tar; copy the file to keep its headers",
    "cat --order": "try wds shuffle SHARDS -o OUT, or wds sort SHARDS -o OUT --by WHAT",
    "cat --shuffle": "try wds shuffle SHARDS -o OUT",
    "cat --sort": "try wds sort SHARDS -o OUT --by WHAT",
    **{
        f"{command} --key-rule": "wds create --from shards:SET --key-rule RULE -o OUT makes the samples again"
        for command in ("split", "cat", "merge", "map", "shuffle", "sort")
    },
    "create --shuffle": "write the set first, then try wds shuffle SHARDS -o OUT",
    "cat --max-size": "wds split --max-size SIZE cuts a set into shards",
    "cat --shards": "wds split --shards N cuts a set into shards",
    "ls --bytes": "a pipe gets exact sizes: wds ls ... | cat",
    "ls --max-count": "--limit N lists the first N samples",
    "merge --shuffle": "write the set first, then try wds shuffle SHARDS -o OUT",
    "split --shuffle": "try wds shuffle SHARDS -o OUT",
    "wds -c": "try wds create SOURCE -o OUT",
    "wds -t": "try wds ls SHARDS",
    "wds -x": "try wds cat SHARDS --to FOLDER/",
}
"""Hints for options that do not exist, but that people expect. A name is a command and an option."""
OTHER_WORDS = {
    "-o": "--dest --destination --out --output-dir",
    "--dedup": "--deduplicate --uniq --unique",
    "--drop": "--exclude --ignore --remove --without",
    "--fields": "--include --only --select",
    "--force": "-f --clobber --overwrite --replace",
    "--join": "--how --on",
    "--jobs": "-p --parallel --processes --num-workers --workers",
    "--limit": "-N -n --first --head --max-samples --num-samples --take",
    "--max-count": "-c --count --maxcount --per-shard --samples-per-shard",
    "--max-size": "-s --maxsize --shard-size --size",
    "--not-keys-from": "--exclude-keys --remove-keys --skip-keys",
    "--on-error": "--keep-going --ignore-errors --skip-errors",
    "--reverse": "--desc --descending",
    "--sample": "--fraction --random --subset",
    "--summary": "--info --stats --total --totals",
    "--where": "--filter --query",
}
"""Words of other programs for options. A word counts only in commands that have the option but not the word."""

_PLAIN_PANELS = {"argument": "Arguments", "option": "Options"}
_SENTENCE = re.compile(r"(?<=\.) +(?=[A-Z-])")
_LAST = ("Errors", "Network", "General")

# The base of Typer's usage errors, which Typer does not export.
_TyperError: Any = typer.BadParameter.__mro__[2]


class WdsGroup(TyperGroup):
    """The group of commands. A command is imported when it is called."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            meant = [line for line, words in WISHES.items() if args[0] in words.split()]
            hint = f"try wds {meant[0]}" if meant else did_you_mean(args[0], COMMANDS)
            raise UsageError(
                f'no such command: "{printable(args[0])}"', hint=hint or f"see `{ctx.command_path} --help`"
            )
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the optional shell name of --install-completion before commands are parsed."""
        if len(args) > 1 and args[0].endswith("-completion") and args[1] in ("bash", "zsh", "fish"):
            ctx.meta["shell"] = args.pop(1)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        sections = {
            title: [HelpEntry([name], "", summary, "") for name, summary in panel.items()]
            for title, panel in PANELS.items()
        }
        formatter.write(render(self, ctx, sections.items()))


class WdsCommand(TyperCommand):
    """A command that refuses repeated options (:func:`check_once`). ``--help`` shows the usual options, each with its
    first sentence; ``--help-all`` shows all options."""

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
            output.stdout().write(render(self, ctx).encode())
            ctx.exit()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(render(self, ctx, usual=True))

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            words = list(args)
            try:
                values, leftover, order = parse(args)
            except _TyperError as error:
                # Typer's parser does not set the error's command.
                error.ctx = error.ctx or ctx
                raise
            if not ctx.resilient_parsing:
                check_once(order, words)
            return values, leftover, order

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


def check_once(order: Sequence[Any], words: Sequence[str]) -> None:
    """Raise UsageError for a repeated option. Options that take several values (``multiple``) and repeated equal flags
    are allowed. ``order`` has the parameters in the order of the command line, and ``words`` has the words of the
    line."""
    for option in order:
        if option.param_type_name != "option" or option.multiple or order.count(option) == 1:
            continue
        if not option.is_flag:
            name = next(name for name in option.opts if name.startswith("--"))
            hint = "it takes one value; an alias or a script may give the other"
            raise UsageError(f"{name} was given twice", hint=hint)
        both = [name for name in (*option.opts, *option.secondary_opts) if name in words]
        if not set(both).isdisjoint(option.opts) and not set(both).isdisjoint(option.secondary_opts):
            raise UsageError(f"{' and '.join(both)} exclude each other", hint="give one of them")


def load(name: str) -> Any:
    """Import and build the command ``name``."""
    function = getattr(import_module(f"wdscli.cli.commands.{name}"), name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=WdsCommand, context_settings=_SETTINGS)(typed(function))
    return typer.main.get_command(app)


def typed(function: Any) -> Any:
    """Give a command the signature that Typer reads."""
    parameters = []
    for name, kind, (names, *described), default in function.parameters:
        facts: Any = dict(zip(("metavar", "help", "rich_help_panel", "min", "parser"), described))
        annotation: Any = Annotated[kind, (typer.Option if names else typer.Argument)(*names, **facts)]
        default = inspect.Parameter.empty if default is REQUIRED else default
        parameters.append(inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation))
    function.__signature__ = inspect.Signature(parameters)
    return function


def build() -> Any:
    """Build the whole group."""
    return typer.main.get_command(app)


def run(args: list[str], name: str, completion: str | None) -> Any:
    """Run a command line of the program ``name``, or answer a shell's request for completion. Return the command's
    result. Raises SystemExit for the end after help, and UsageError."""
    group = build()
    if completion:
        return _complete(completion, name, group)
    if not args:
        output.show(group.get_help(group.context_class(group, info_name=name, **group.context_settings)))
        return 2
    try:
        with group.make_context(name, args) as ctx:
            return group.invoke(ctx)
    except typer.Exit as end:
        raise SystemExit(end.exit_code) from None
    except _TyperError as error:
        raise _usage_error(error) from error


_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=WdsGroup,
    add_completion=False,
    context_settings=_SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _at_once(name: str, act: Callable[[typer.Context], None], help: str) -> Any:
    """Return a flag that acts before all other options, and then exits."""

    def callback(context: typer.Context, wanted: bool) -> None:
        if wanted:
            act(context)
            raise typer.Exit

    return typer.Option(name, callback=callback, is_eager=True, help=help)


def _print_version(_: typer.Context) -> None:
    from wdscli import version_line

    output.stdout().write(f"{version_line()}\n".encode())


def _shell(context: typer.Context) -> str:
    """Return the named shell, or the shell that started this process. Raises UsageError."""
    from wdscli.cli import completion

    shell = context.meta.get("shell") or completion.current_shell()
    if shell not in completion.SHELLS:
        what = f"there is no completion for {shell}" if shell else "cannot detect the shell"
        raise UsageError(what, hint="write bash, zsh or fish after the option")
    return str(shell)


def _install_completion(context: typer.Context) -> None:
    from wdscli.cli import completion

    places, instructions = completion.install(_shell(context))
    for place in places:
        output.say(f"wrote {place}")
    output.say("completion works for wds and wdscli in shells that you open from now on")
    if instructions is not None:
        output.show(instructions)


def _show_completion(context: typer.Context) -> None:
    from wdscli.cli import completion

    text = completion.script(_shell(context), context.info_name or "wds")
    output.stdout().write(text.encode())


_version = _at_once("--version", _print_version, "Print the version and exit.")
_install = _at_once(
    "--install-completion",
    _install_completion,
    "Install completion for this shell, or for the named shell: bash, zsh, fish. Start-up files do not change.",
)
_show = _at_once("--show-completion", _show_completion, "Print what --install-completion installs.")


@app.callback(
    epilog="See `wds COMMAND --help` for the options of a command, and `man wdscli-COMMAND` for its manual page."
)
def wds(
    version: Annotated[bool, _version] = False,
    install_completion: Annotated[bool, _install] = False,
    show_completion: Annotated[bool, _show] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Make, look at, check and reorder WebDataset shard sets.

    Examples:

        wds create photos/ -o 'set/train-%06d.tar'
        wds ls --summary set/
        wds shuffle set/ -o 'mixed/train-%06d.tar' --seed 7
    """


def _complete(instruction: str, name: str, group: Any) -> int:
    """Answer a shell's request for completion. Print no errors, because the shell is showing its prompt."""
    from wdscli.cli import completion

    try:
        text = completion.answer(instruction, name, group)
    except Exception:
        if os.environ.get("WDSCLI_DEBUG", "") not in ("", "0"):
            raise
        return 1
    output.stdout().write(os.fsencode(f"{text}\n" if text else ""))
    if completion.is_waiting:
        output.flush()
        os._exit(0)
    return 0


def _meant_option(wrong: str, ctx: Any) -> str | None:
    """Return a hint for an option that does not exist."""
    options = ctx.command.get_params(ctx) if ctx else []
    names = [name for option in options for name in option.opts if name[0] == "-"]
    wished = WISHED_OPTIONS.get(f"{ctx.info_name} {wrong}") if ctx else None
    meant = [name for name, words in OTHER_WORDS.items() if name in names and wrong in words.split()]
    return wished or (f"did you mean {meant[0]}?" if meant else did_you_mean(wrong, names))


def _parameter_of(error: Any) -> Any:
    """Return the parameter that a usage error is about, or None."""
    params = error.ctx.command.params if error.ctx else []
    named = (parameter for parameter in params if getattr(error, "option_name", None) in parameter.opts)
    return getattr(error, "param", None) or next(named, None)


def _usage_error(error: Any) -> UsageError:
    """Return Typer's error with its message in lower case without a full stop, and with a hint."""
    ctx = error.ctx
    path = ctx.command_path if ctx else "wds"
    hint = None
    message = error.format_message()
    if hasattr(error, "possibilities"):
        message = f"no such option: {printable(error.option_name)}"
        hint = _meant_option(error.option_name, ctx)
    elif (param := _parameter_of(error)) is not None:
        hint = summary_of(param, ctx)
    message = message[:1].lower() + message[1:].strip().removesuffix(".").removesuffix(" range")
    return UsageError(message, hint=hint or f"see `{path} --help`")


class HelpEntry(NamedTuple):
    """One line of help: ``terms`` are an option's names, ``value`` its metavar, ``notes`` its default."""

    terms: list[str]
    value: str
    text: str
    notes: str

    def short(self) -> HelpEntry:
        """This entry, with only the first sentence of its text."""
        return self._replace(text=_SENTENCE.split(self.text)[0], notes="")


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
        self.colour = output.takes_colour(sys.stdout)
        self.width = max(50, min(shutil.get_terminal_size((80, 24)).columns, 110))

    def head(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def term(self, text: str) -> str:
        return f"\x1b[36m{text}\x1b[0m" if self.colour else text
