"""The group of commands, and the one place where an error becomes text and an exit code.

A command is imported when it is called. ``wds --help`` and completion load no command, because the table below contains
all texts that they need. This module prints no data.

Exit codes: 0 success, 1 ``verify`` or ``diff`` found something, 2 wrong usage, 3 bad data, 4 storage error, 5 error of
an engine or a bug, 130 interrupted. A closed pipe (``| head``) ends the command quietly with 0.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wdscli.cli import output
from wdscli.cli.help import HelpEntry, WdsCommand, render, summary_of
from wdscli.errors import MORE_FILES, WdsError, did_you_mean, printable, ran_out_of_files, ran_out_of_memory
from wdscli.shown import shown

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
PANELS = {
    "Make and change": {
        "create": "Make shards from folders, files, lists or tables.",
        "split": "Rewrite a set with other shard sizes, or divide it into parts.",
        "merge": "Write several sets as one: one after the other, interleaved, or joined by key.",
        "shuffle": "Shuffle all samples; the order depends only on the seed.",
        "sort": "Write all samples sorted by key, by a field, by a value in JSON, or in the order of a list.",
        "map": "Transform samples with a command or a Python function, or resize pictures.",
        "run": "Run a plan or some of its tasks, or a dSort job of AIStore.",
        "cat": "Write the selected samples as one tar, in input order.",
    },
    "Look and check": {
        "ls": "List samples, members or shards, count values, or show samples.",
        "verify": "Check shards and report everything that is wrong with them.",
        "repair": "Save the intact samples of damaged shards.",
        "report": "Write a page about a set: samples, sizes, classes, texts, mixing, findings.",
        "diff": "Compare two sets as data: keys, fields, payloads, order, shards.",
        "index": "Write indexes and manifests for shards made elsewhere.",
        "bench": "Measure how fast the loader reads a set, and what limits it.",
    },
}
"""The commands in the panels of ``wds --help``, each with the first line of its docstring."""
COMMANDS = {name: summary for panel in PANELS.values() for name, summary in panel.items()}

# The base of Typer's usage errors, which Typer does not export.
_TyperError: Any = typer.BadParameter.__mro__[2]


class WdsGroup(TyperGroup):
    """The group of commands. A command is imported when it is called."""

    summaries = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            meant = [line for line, words in WISHES.items() if args[0] in words.split()]
            hint = f"try wds {meant[0]}" if meant else did_you_mean(args[0], COMMANDS)
            raise WdsUsage(f'no such command: "{printable(args[0])}"', hint, ctx)
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


class WdsUsage(typer.BadParameter):
    """A usage error with its own hint."""

    def __init__(self, message: str, hint: str | None, ctx: Any) -> None:
        super().__init__(message, ctx)
        self.hint = hint

    def format_message(self) -> str:
        return self.message


class OnceCommand(WdsCommand):
    """A command that refuses repeated options (:func:`check_once`)."""

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
                check_once(order, words, ctx)
            return values, leftover, order

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


def check_once(order: Sequence[Any], words: Sequence[str], ctx: Any) -> None:
    """Raise WdsUsage for a repeated option. Options that take several values (``multiple``) and repeated equal flags
    are allowed. ``order`` has the parameters in the order of the command line, and ``words`` has the words of the
    line."""
    for option in order:
        if option.param_type_name != "option" or option.multiple or order.count(option) == 1:
            continue
        if not option.is_flag:
            name = _long(option)
            hint = "it takes one value; an alias or a script may give the other"
            raise WdsUsage(f"{name} was given twice", hint, ctx)
        both = [name for name in (*option.opts, *option.secondary_opts) if name in words]
        if not set(both).isdisjoint(option.opts) and not set(both).isdisjoint(option.secondary_opts):
            raise WdsUsage(f"{' and '.join(both)} exclude each other", "give one of them", ctx)


def _long(option: Any) -> str:
    """Return the long name of an option."""
    return str(next(name for name in option.opts if name.startswith("--")))


def load(name: str) -> Any:
    """Import and build the command ``name``."""
    function = getattr(import_module(f"wdscli.cli.commands.{name}"), name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=OnceCommand, context_settings=_SETTINGS)(function)
    return typer.main.get_command(app)


def build() -> Any:
    """Build the whole group."""
    return typer.main.get_command(app)


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
    """Return the named shell, or the shell that started this process. Raises WdsUsage."""
    from wdscli.cli import completion

    shell = context.meta.get("shell") or completion.current_shell()
    if shell not in completion.SHELLS:
        what = f"there is no completion for {shell}" if shell else "cannot detect the shell"
        raise WdsUsage(what, "write bash, zsh or fish after the option", context)
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


TERMINATED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors are printed on standard error."""
    args = sys.argv[1:] if argv is None else argv
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: output.say(str(message), label="warning")
            try:
                code = _run(list(args))
                output.note_costs()
            finally:
                output.close()
            output.flush()
    except BaseException as error:
        # Search the words for the flag, because parsing may have failed.
        words = args[: args.index("--")] if "--" in args else args
        debug = "--debug" in words or os.environ.get("WDSCLI_DEBUG", "") not in ("", "0")
        return _explain(error, debug=debug)
    return code


def _run(args: list[str]) -> int:
    name = os.path.basename(sys.argv[0])
    name = name if name in ("wds", "wdscli") else "wds"
    group = build()
    if instruction := os.environ.get(f"_{name.upper()}_COMPLETE"):
        return _complete(instruction, name, group)
    if not args:
        output.show(group.get_help(group.context_class(group, info_name=name, **group.context_settings)))
        return 2
    with group.make_context(name, args) as ctx:
        result = group.invoke(ctx)
    return result if isinstance(result, int) else 0


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


def _explain(error: BaseException, *, debug: bool) -> int:
    """Print an error, and return its exit code."""
    if isinstance(error, typer.Exit):
        return _flushed(error.exit_code)
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        output.say("terminated")
        return TERMINATED
    if isinstance(error, SystemExit):
        return _flushed(error.code if isinstance(error.code, int) else 0 if error.code is None else 1)
    if isinstance(error, BrokenPipeError) and output.reader_is_gone():
        output.abandon()
        return 0
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        output.say(": ".join(filter(None, ["interrupted", *map(str, error.args)])))
        return 130
    if debug:
        import traceback

        sys.stderr.write(shown("".join(traceback.format_exception(type(error), error, error.__traceback__))))
    message, hint, code = _describe(error)
    output.say(message, label="error")
    for line in getattr(error, "details", ()):
        output.say(f"  {line}")
    if hint:
        output.say(hint, label="hint")
    output.abandon_if_broken()
    return code


def _flushed(code: int) -> int:
    """Flush the help or version text, and return ``code``."""
    try:
        output.stdout()
        output.flush()
    except (OSError, WdsError) as error:
        return _explain(error, debug=False)
    return code


def _describe(error: BaseException) -> tuple[str, str | None, int]:
    """Return message, hint and exit code of an error."""
    if isinstance(error, WdsError):
        return str(error), error.hint, error.exit_code
    if isinstance(error, _TyperError):
        return _describe_usage(error)
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the current folder does not exist any more", "cd to another folder", 4
    if isinstance(error, OSError) and error.strerror:
        where = f": {printable(str(error.filename))}" if error.filename else ""
        return f"{error.strerror.lower()}{where}", MORE_FILES if ran_out_of_files(error) else None, 4
    if ran_out_of_memory(error):
        return "out of memory", "try fewer --jobs, or allow more (ulimit -v)", 5
    return (
        f"internal error: {type(error).__name__}: {error}",
        "this is a bug in wdscli; run the same command with --debug for a traceback",
        5,
    )


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


def _describe_usage(error: Any) -> tuple[str, str | None, int]:
    """Return Typer's message in lower case without a full stop, and a hint."""
    ctx = error.ctx
    path = ctx.command_path if ctx else "wds"
    hint = getattr(error, "hint", None)
    message = error.format_message()
    if hasattr(error, "possibilities"):
        message = f"no such option: {printable(error.option_name)}"
        hint = _meant_option(error.option_name, ctx)
    elif hint is None and (param := _parameter_of(error)) is not None:
        hint = summary_of(param, ctx)
    message = message[:1].lower() + message[1:].strip().removesuffix(".").removesuffix(" range")
    return message, hint or f"see `{path} --help`", 2
