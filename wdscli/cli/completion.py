"""Completion for TAB: commands, options, their values, shard paths, and field names and keys of the shards on a line.

A short script for each shell runs the command with ``_WDS_COMPLETE=complete_SHELL`` and the line in ``COMP_LINE``. It
gets one value on each line; for zsh and fish a TAB and a help text follow. ``!files`` means the shell's own file names.
The line is parsed as far as it goes. Names come from little reading, and only of local files: the first samples of a
few shards, the head of a table. A thread lists a store, for :data:`STORE_SECONDS` at most. Errors offer nothing.

Typer's own scripts would not do: in bash they split words at ``=`` and ``:`` (``s3://``, ``--column txt=``), in zsh
they evaluate the answer, which has names from shards of strangers, and they change the user's files. These scripts are
written to the folders where the shells look for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from threading import Thread
from typing import Any, NamedTuple

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("wds", "wdscli")
FILES = "!files"
_SHARD = re.compile(r"\.(tar|tgz)(\.(gz|bz2|xz|zst|lz4))?$|manifest\.json$")
_SCRIPTS = {
    "bash": """\
{function}() {{
    mapfile -t COMPREPLY < <(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" {variable}=complete_bash "$1" 2>/dev/null)
    if [[ ${{COMPREPLY[0]-}} == '!files' ]]; then
        COMPREPLY=()
        compopt -o default
    elif [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *[/=:,.] ]]; then
        compopt -o nospace
    fi
}}
complete -F {function} {program}
""",
    "zsh": """\
#compdef {program}
{function}() {{
    local -a lines closed open
    local line value
    lines=("${{(@f)$(env COMP_LINE="${{words[1,CURRENT]}}" {variable}=complete_zsh {program} 2>/dev/null)}}")
    if [[ $lines[1] == '!files' ]]; then
        _files
        return
    fi
    for line in $lines; do
        value=${{${{line%%$'\\t'*}}//:/\\\\:}}
        [[ $line == *$'\\t'* ]] && line="$value:${{line#*$'\\t'}}" || line=$value
        [[ $value == *[/=,.:] ]] && open+=("$line") || closed+=("$line")
    done
    (( $#closed )) && _describe -V {program} closed
    (( $#open )) && _describe -V {program} open -S ''
}}
if [[ $funcstack[1] == _{program} ]]; then
    {function} "$@"
else
    compdef {function} {program}
fi
""",
    "fish": """\
function {function}
    set -l found (env COMP_LINE=(commandline -cp | string collect) {variable}=complete_fish {program} 2>/dev/null)
    if test "$found[1]" = '!files'
        __fish_complete_path (commandline -ct)
    else if test (count $found) -gt 0
        printf '%s\\n' $found
    end
end
complete -c {program} -f -a '({function})'
""",
}


_FREE = ("N", "SIZE", "SECONDS", "S", "K", "TIME", "PIXELS", "SHARE", "GLOB", "EXPR", "A:B:STEP")
"""Values without candidates that are no file names either."""
STORE_SECONDS = 2.0
_MOST_SHARDS, _MOST_KEYS = 3, 500

is_waiting = False
"""Whether a store has not answered yet, so that a normal exit of Python would wait for it."""


class Candidate(NamedTuple):
    """A word for the place of the cursor."""

    value: str
    help: str = ""


class Given(NamedTuple):
    """Arguments of a line, and values of its options by their fields."""

    arguments: list[str]
    values: dict[str, list[str]]


class Line(NamedTuple):
    """A command line up to the cursor: the complete ``words`` after the program, and the last one without quotes
    (``typed``) and as it is on the line (``raw``), with its open quote."""

    words: list[str]
    typed: str
    raw: str
    quote: str


def script(shell: str, program: str) -> str:
    """The script that makes ``shell`` complete ``program``."""
    name = re.sub(r"\W", "_", program)
    return _SCRIPTS[shell].format(
        program=program, function=f"_{name}_completion", variable=f"_{name.upper()}_COMPLETE"
    )


def install(shell: str) -> tuple[list[str], str | None]:
    """Write the scripts to the folder of ``shell``. Return their paths, and instructions for the user if any."""
    home = os.path.expanduser("~")
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    bash = os.environ.get("BASH_COMPLETION_USER_DIR") or os.path.join(data, "bash-completion")
    folder, name = {
        "bash": (os.path.join(bash, "completions"), "{}"),
        "zsh": (os.path.join(data, "zsh", "site-functions"), "_{}"),
        "fish": (os.path.join(config, "fish", "completions"), "{}.fish"),
    }[shell]
    os.makedirs(folder, exist_ok=True)
    places = []
    for program in PROGRAMS:
        places.append(os.path.join(folder, name.format(program)))
        with open(places[-1], "w", encoding="utf-8") as file:
            file.write(script(shell, program))
    more = {
        "bash": "bash needs the package bash-completion for this; without it, add this line to ~/.bashrc:\n"
        f"    source {places[0]}",
        "zsh": "zsh finds it when its folder is in fpath; if it is not, add this line to ~/.zshrc:\n"
        f"    fpath+=({folder}); autoload -Uz compinit; compinit",
    }
    return places, more.get(shell)


def current_shell() -> str | None:
    """The shell that started this program, if known."""
    from shellingham import ShellDetectionFailure, detect_shell

    try:
        return str(detect_shell()[0])
    except ShellDetectionFailure:
        return os.path.basename(os.environ.get("SHELL", "")) or None


def answer(instruction: str, program: str, group: Any) -> str:
    """The answer to ``complete_bash``, or for ``source_bash`` the script itself."""
    what, _, shell = instruction.partition("_")
    if shell not in SHELLS or "_TYPER_COMPLETE_ARGS" in os.environ:
        return ""  # scripts of earlier versions would evaluate it
    if what == "source":
        return script(shell, program)
    line = _typed_line()
    found = candidates(line.words, line.typed, group)
    if found is None:
        return FILES
    fitting = [one for one in dict.fromkeys(found) if one.value.startswith(line.typed)]
    if shell == "bash":
        return "\n".join(_for_bash(one.value, line) for one in fitting)
    return "\n".join(f"{value}\t{' '.join(help.split())}" if help else value for value, help in fitting)


def _typed_line() -> Line:
    """The line up to the cursor, from the shell's variables."""
    if "COMP_LINE" not in os.environ:
        # Scripts of earlier versions give words.
        words = os.environ.get("COMP_WORDS", "").split()
        at = int(os.environ.get("COMP_CWORD", len(words)))
        typed = words[at] if at < len(words) else ""
        return Line(words[1:at], typed, typed, "")
    line = os.environb[b"COMP_LINE"]
    point = os.environ.get("COMP_POINT", "")
    return split_line(os.fsdecode(line[: int(point)] if point.isdecimal() else line))


def split_line(line: str) -> Line:
    r"""The words of a line as a shell splits it. The last word may be incomplete.

    >>> split_line("wds ls 'a b' --keys \"n01/")
    Line(words=['ls', 'a b', '--keys'], typed='n01/', raw='"n01/', quote='"')
    """
    words: list[str] = []
    word, raw, quote, is_open, at = "", "", "", False, 0
    while at < len(line):
        char = line[at]
        if not quote and char.isspace():
            if is_open:
                words.append(word)
            word, raw, is_open = "", "", False
            at += 1
            continue
        is_open = True
        raw += char
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif char == "\\" and quote != "'":
            at += 1
            word += line[at : at + 1]
            raw += line[at : at + 1]
        else:
            word += char
        at += 1
    return Line(words[1:], word, raw, quote)


def _for_bash(value: str, line: Line) -> str:
    """A value for bash: without the part up to the last of its word breaks, and with special characters escaped."""
    breaks = os.environ.get("COMP_WORDBREAKS", "")
    if line.quote:
        before = line.raw[: line.raw.rindex(line.quote) + 1]
    else:
        plain = re.sub(r"\\.", "xx", line.raw)
        before = line.raw[: max(map(plain.rfind, breaks), default=-1) + 1]
    rest = value[len(split_line("x " + before).typed) :]
    return rest if line.quote else re.sub(r"([\s'\"\\$`!&|;<>(){}*?#\[\]])", r"\\\1", rest)


def candidates(words: Sequence[str], typed: str, group: Any) -> list[Candidate] | None:
    """Words that may come next, also those that do not begin with ``typed``; None for the shell's own file names.
    ``group`` has the commands, and in ``listings`` their summaries."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        listed = [Candidate(name, listing.summary) for name, listing in group.listings.items()]
        return _option_names(group, words) if typed.startswith("-") else listed
    if name not in group.listings:
        return []
    command = group.get_command(None, name)
    given, waiting, place = _follow(command, words[list(words).index(name) + 1 :])
    if waiting is not None:
        return _values(waiting, place, typed, given)
    if typed.startswith("--") and "=" in typed:
        spelled, _, value = typed.partition("=")
        found = next((one for one in command.params if spelled in one.opts), None)
        values = _values(found, 0, value, given) if found is not None else []
        return None if values is None else [one._replace(value=f"{spelled}={one.value}") for one in values]
    if typed.startswith("-"):
        return _option_names(command, words)
    reads_shards = any(one.metavar in ("SHARDS...", "SETS...", "A", "B") for one in command.params)
    return _shard_paths(typed) if reads_shards else None


def _follow(command: Any, words: Sequence[str]) -> tuple[Given, Any, int]:
    """Arguments and values among the words of a command; and the option whose value comes next, or None, with the
    number of that value."""
    options = {
        spelled: one for one in command.params for spelled in one.opts if one.param_type_name == "option"
    }
    given = Given([], {})
    rest = iter(words)
    for word in rest:
        spelled, equals, value = word.partition("=")
        if word == "--":
            given.arguments.extend(rest)
        elif not word.startswith("-") or word == "-":
            given.arguments.append(word)
        elif equals and spelled in options:
            given.values.setdefault(options[spelled].name, []).append(value)
        elif (option := options.get(word)) is not None and not option.is_flag:
            taken = list(islice(rest, option.nargs))
            if len(taken) < option.nargs:
                return given, option, len(taken)
            given.values.setdefault(option.name, []).extend(taken)
    return given, None, 0


def _option_names(command: Any, words: Sequence[str]) -> list[Candidate]:
    """Options that may still follow."""
    context = command.context_class(command, info_name=command.name, **command.context_settings)
    found = []
    for option in command.get_params(context):
        if option.param_type_name == "option" and not option.hidden:
            names = [*option.opts, *option.secondary_opts]
            if option.multiple or set(names).isdisjoint(words):
                found += [Candidate(name, option.help or "") for name in names]
    return found


def _values(option: Any, place: int, typed: str, given: Given) -> list[Candidate] | None:
    """Values of an option."""
    choices = getattr(option.type, "choices", None)
    if choices:
        return [Candidate(str(one)) for one in choices]
    metavar = (option.metavar or "").split(" ")[place]
    found = [Candidate(one) for one in _known(option.name)]
    # Words in lower case are literal: first-dot|last-dot|REGEX.
    found += [Candidate(one) for one in re.split(r"[|,]", metavar) if re.fullmatch(r"[a-z][a-z-]*", one)]
    if option.name == "keys":
        return [Candidate(key) for key in names_in(given.arguments)[1]]
    if metavar.endswith("COLUMN"):
        before = re.match(r"(.*=@?)?", typed).group()  # type: ignore[union-attr]
        if not before and metavar != "COLUMN":
            return []
        tables = [table for name in ("rows", "table") for table in given.values.get(name, ())]
        return [Candidate(before + name, "column") for name in columns_of(tables)]
    if "FIELD" in metavar or metavar.startswith(("EXT,", "WHAT", "NEW=")):
        found += [Candidate(name, "field") for name in names_in(given.arguments)[0]]
        if metavar.startswith("WHAT"):
            found.insert(0, Candidate("key"))
        if option.name == "by" and "." in typed:
            found += [Candidate(name) for name in places_in(given.arguments, typed.rpartition(".")[0])]
        before = ""
        if ",..." in metavar:
            before = typed[: typed.rfind(",") + 1]
        elif metavar.startswith("NEW="):
            before = typed[: re.match(r"(.*[=;])?", typed).end()]  # type: ignore[union-attr]
        named = set(before.split(","))
        return [one._replace(value=before + one.value) for one in found if one.value not in named]
    return found if found or metavar in _FREE else None


def _known(option: str) -> Iterable[str]:
    """Values of an option from a table of a module, or from entry points of other packages."""
    if option == "engine":
        from importlib.metadata import entry_points

        return sorted({f"{point.name}://" for point in entry_points(group="wdscli.executors")})
    module, _, name = _KNOWN.get(option, "").partition(":")
    return sorted(getattr(import_module(module), name)) if module else []


_KNOWN = {
    "decode": "wdscli.codecs.images:SPECS",
    "dialect": "wdscli.shards.dialects:DIALECTS",
    "profile": "wdscli.verify.profiles:PROFILES",
}


def _shard_paths(typed: str) -> list[Candidate] | None:
    """Folders, shards and manifests that begin with ``typed``; if there are none, None for the shell's own file
    names."""
    if typed.startswith("@"):
        return None
    if typed.startswith("pipe:"):
        return []
    before, _, path = typed.rpartition("::")
    before += "::" if before else ""
    if "://" in path:
        folder = path[: path.rindex("/") + 1]
        return [
            Candidate(f"{before}{folder}{name}{'/' if is_folder else ''}")
            for name, is_folder in sorted(entries_of_store(folder).items())
            if is_folder or _SHARD.search(name)
        ]
    folder, name = os.path.split(path)
    found = []
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
                full = before + os.path.join(folder, entry.name)
                if entry.is_dir():
                    found.append(Candidate(full + "/"))
                elif _SHARD.search(entry.name):
                    found.append(Candidate(full))
    return sorted(found) or None


def names_in(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Fields and keys of the first samples in local shards."""
    from wdscli.errors import WdsError
    from wdscli.model import to_text
    from wdscli.samples import iter_batches
    from wdscli.storage import open_source

    fields: dict[str, None] = {}
    keys: list[str] = []
    for address in islice(_local_shards(given), _MOST_SHARDS):
        with suppress(WdsError), open_source(address) as source:
            for batch in islice(iter_batches(source), 2):
                fields |= dict.fromkeys(map(to_text, batch.fields))
                keys += map(to_text, batch.keys)
    return sorted(fields), keys[:_MOST_KEYS]


def _local_shards(given: Sequence[str]) -> Iterator[str]:
    from wdscli.errors import WdsError
    from wdscli.shards.inputs import open_set
    from wdscli.storage import is_local

    for text in given:
        if is_local(text) and text != "-":
            try:
                yield from filter(is_local, open_set([os.path.expanduser(text)], pipes=False).addresses)
            except WdsError:
                continue


def places_in(given: Sequence[str], before: str) -> list[str]:
    """Paths in JSON fields of the first samples, one level below the field or path ``before``: ``json.width`` for
    ``json``."""
    import json

    from wdscli.errors import WdsError
    from wdscli.samples import iter_samples
    from wdscli.storage import open_source

    found: dict[str, None] = {}
    for address in islice(_local_shards(given), _MOST_SHARDS):
        with suppress(WdsError), open_source(address) as source:
            for sample in islice(iter_samples(source), 20):
                for field, payload in sample.fields.items():
                    if field.rpartition(".")[2] == "json" and f"{before}.".startswith(f"{field}."):
                        with suppress(ValueError, LookupError, TypeError, AttributeError):
                            value = json.loads(payload)
                            for name in filter(None, before[len(field) :].split(".")):
                                value = value[name]
                            found |= {f"{before}.{name}": None for name in value}
    return list(found)


def columns_of(tables: Sequence[str]) -> list[str]:
    """Columns of local tables."""
    from wdscli.create.rows import column_names, table_files
    from wdscli.storage import is_local

    found: dict[str, None] = {}
    for text in tables:
        with suppress(Exception):
            if is_local(text) and text != "-":
                found |= dict.fromkeys(column_names(table_files(os.path.expanduser(text), "")[0]))
    return list(found)


def entries_of_store(folder: str) -> dict[str, bool]:
    """Names in a folder of a store, and whether each is a folder; none if the store does not answer in time."""
    global is_waiting
    found: dict[str, bool] = {}

    def fetch() -> None:
        from wdscli.storage.remote import entries_in
        from wdscli.storage.retry import Network, using

        with suppress(Exception), using(Network(retries=0, timeout_seconds=STORE_SECONDS)):
            found.update(entries_in(folder))

    if folder.endswith("://"):
        return {}
    thread = Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(STORE_SECONDS)
    is_waiting = thread.is_alive()
    return dict(found)
