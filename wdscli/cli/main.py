"""One command line is run here, and here an error becomes text and an exit code.

A command is imported when it is called. :func:`~wdscli.cli.options.read_plain` reads a plain line; Typer, which
``wdscli.cli.group`` loads, reads all others, prints help, and explains wrong ones. This module prints no data.

Exit codes: 0 success, 1 ``verify`` or ``diff`` found something, 2 wrong usage, 3 bad data, 4 storage error, 5 error of
an engine or a bug, 130 interrupted. A closed pipe (``| head``) ends the command quietly with 0.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from wdscli.cli import output
from wdscli.cli.commands import COMMANDS
from wdscli.cli.options import read_plain
from wdscli.errors import MORE_FILES, WdsError, printable, ran_out_of_files, ran_out_of_memory
from wdscli.shown import shown

TERMINATED = 143


def main(argv: Sequence[str] | None = None, loaded: Callable[[], None] = lambda: None) -> int:
    """Run one command line and return its exit code. Errors are printed on standard error. ``loaded`` is called when
    the command is imported, before it runs."""
    args = sys.argv[1:] if argv is None else argv
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: output.say(str(message), label="warning")
            try:
                code = _run(list(args), loaded)
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


def _run(args: list[str], loaded: Callable[[], None]) -> int:
    name = os.path.basename(sys.argv[0])
    name = name if name in ("wds", "wdscli") else "wds"
    completion = os.environ.get(f"_{name.upper()}_COMPLETE")
    result, values = None, None
    if args and args[0] in COMMANDS and not completion:
        command = getattr(import_module(f"wdscli.cli.commands.{args[0]}"), args[0])
        values = read_plain(command.parameters, args[1:])
    loaded()
    if values is not None:
        result = command(**values)
    else:
        from wdscli.cli import group

        result = group.run(args, name, completion)
    return result if isinstance(result, int) else 0


def _explain(error: BaseException, *, debug: bool) -> int:
    """Print an error, and return its exit code."""
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        output.say("terminated")
        return TERMINATED
    if isinstance(error, SystemExit):
        return _flushed(error.code if isinstance(error.code, int) else 0 if error.code is None else 1)
    if isinstance(error, BrokenPipeError) and output.reader_is_gone():
        output.abandon()
        return 0
    if isinstance(error, KeyboardInterrupt):
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
