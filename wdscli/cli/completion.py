"""Completion for TAB. It offers commands, options and their values, paths of shards, and the fields and keys of shards.

A short script for each shell runs the command with ``_WDS_COMPLETE=complete_SHELL`` and the line in ``COMP_LINE``. The
command answers with one value on each line; for zsh and fish, a TAB and a help text follow the value. The answer
``!files`` means that the shell offers file names. An incomplete line is parsed up to the cursor. Fields and keys come
only from local files, and only from the first samples of a few shards or the head of a table. A thread lists a store,
for at most :data:`STORE_SECONDS`. After an error, nothing is offered.

Typer's own scripts have three faults. In bash they split words at ``=`` and ``:`` (``s3://``, ``--column txt=``). In
zsh they evaluate the answer, which may contain names from untrusted shards. They also change the user's files. The
scripts here are written to the folders where the shells look for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from threading import Thread
from typing import Any, NamedTuple

from wdscli.cli.commands import COMMANDS
from wdscli.cli.options import WORDS
from wdscli.errors import WdsError

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
"""Values for which neither candidates nor file names are offered."""
STORE_SECONDS = 2.0
_MOST_SHARDS, _MOST_KEYS = 3, 500

is_waiting = False
"""True while a store has not answered. A normal exit of Python would then wait for the store."""


class Candidate(NamedTuple):
    """A word that may be inserted at the cursor."""

    value: str
    help: str = ""


class TypedWords(NamedTuple):
    """A line's arguments, and the values of its options by field name."""

    arguments: list[str]
    values: dict[str, list[str]]


class TypedLine(NamedTuple):
    """A command line up to the cursor. ``words`` are the complete words after the program. The last, incomplete word
    has two forms: ``typed`` is without quotes, and ``raw`` is as on the line. ``quote`` is its open quote."""

    words: list[str]
    typed: str
    raw: str
    quote: str


def script(shell: str, program: str) -> str:
    """Return the script that makes ``shell`` complete ``program``."""
    name = re.sub(r"\W", "_", program)
    return _SCRIPTS[shell].format(
        program=program, function=f"_{name}_completion", variable=f"_{name.upper()}_COMPLETE"
    )


def install(shell: str) -> tuple[list[str], str | None]:
    """Write the scripts to the folder of ``shell``. Return their paths, and instructions for the user, which may be
    empty."""
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
    instructions = {
        "bash": "bash needs the package bash-completion for this; without it, add this line to ~/.bashrc:\n"
        f"    source {places[0]}",
        "zsh": "zsh finds it when its folder is in fpath; if it is not, add this line to ~/.zshrc:\n"
        f"    fpath+=({folder}); autoload -Uz compinit; compinit",
    }
    return places, instructions.get(shell)


def current_shell() -> str | None:
    """Return the name of the shell that started this program, if known."""
    from shellingham import ShellDetectionFailure, detect_shell

    try:
        return str(detect_shell()[0])
    except ShellDetectionFailure:
        return os.path.basename(os.environ.get("SHELL", "")) or None


def answer(instruction: str, program: str, group: Any) -> str:
    """Return the text for one request of a shell: candidates for ``complete_bash``, the script for ``source_bash``."""
    what, _, shell = instruction.partition("_")
    if shell not in SHELLS or "_TYPER_COMPLETE_ARGS" in os.environ:
        return ""  # scripts of earlier versions would evaluate it
    if what == "source":
        return script(shell, program)
    line = _typed_line()
    offers = candidates(line.words, line.typed, group)
    if offers is None:
        return FILES
    fitting = [offer for offer in dict.fromkeys(offers) if offer.value.startswith(line.typed)]
    if shell == "bash":
        return "\n".join(_for_bash(offer.value, line) for offer in fitting)
    return "\n".join(f"{value}\t{' '.join(help.split())}" if help else value for value, help in fitting)


def _typed_line() -> TypedLine:
    """Return the line up to the cursor, from the shell's variables."""
    line = os.environb[b"COMP_LINE"]
    point = os.environ.get("COMP_POINT", "")
    return split_line(os.fsdecode(line[: int(point)] if point.isdecimal() else line))


def split_line(line: str) -> TypedLine:
    r"""Split a line into words by the shell's rules. The last word may be incomplete.

    >>> split_line("wds ls 'a b' --keys \"n01/")
    TypedLine(words=['ls', 'a b', '--keys'], typed='n01/', raw='"n01/', quote='"')
    """
    words: list[str] = []
    word, raw, quote, is_open, position = "", "", "", False, 0
    while position < len(line):
        char = line[position]
        if not quote and char.isspace():
            if is_open:
                words.append(word)
            word, raw, is_open = "", "", False
            position += 1
            continue
        is_open = True
        raw += char
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif char == "\\" and quote != "'":
            position += 1
            word += line[position : position + 1]
            raw += line[position : position + 1]
        else:
            word += char
        position += 1
    return TypedLine(words[1:], word, raw, quote)


def _for_bash(value: str, line: TypedLine) -> str:
    """Return a value for bash. Bash replaces only the text after its last word break, so the earlier text is cut off.
    Special characters are escaped."""
    breaks = os.environ.get("COMP_WORDBREAKS", "")
    if line.quote:
        before = line.raw[: line.raw.rindex(line.quote) + 1]
    else:
        plain = re.sub(r"\\.", "xx", line.raw)
        before = line.raw[: max(map(plain.rfind, breaks), default=-1) + 1]
    ending = value[len(split_line("x " + before).typed) :]
    return ending if line.quote else re.sub(r"([\s'\"\\$`!&|;<>(){}*?#\[\]])", r"\\\1", ending)


def candidates(words: Sequence[str], typed: str, group: Any) -> list[Candidate] | None:
    """Return the words that may come next, also words that do not begin with ``typed``. None means that the shell
    offers file names. ``group`` has the commands."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        listed = [Candidate(name, summary) for name, summary in COMMANDS.items()]
        return _option_names(group, words) if typed.startswith("-") else listed
    if name not in COMMANDS:
        return []
    command = group.get_command(None, name)
    parsed, waiting, place = _follow(command, words[list(words).index(name) + 1 :])
    if waiting is not None:
        return _values(waiting, place, typed, parsed)
    if typed.startswith("--") and "=" in typed:
        spelled, _, value = typed.partition("=")
        option = next((parameter for parameter in command.params if spelled in parameter.opts), None)
        values = _values(option, 0, value, parsed) if option is not None else []
        return (
            None if values is None else [offer._replace(value=f"{spelled}={offer.value}") for offer in values]
        )
    if typed.startswith("-"):
        return _option_names(command, words)
    reads_shards = any(param.metavar in ("SHARDS...", "SETS...", "A", "B") for param in command.params)
    return _shard_paths(typed) if reads_shards else None


def _follow(command: Any, words: Sequence[str]) -> tuple[TypedWords, Any, int]:
    """Return the arguments and option values among the words of a command. If an option's value comes next, also return
    that option and the number of the value; the option is None otherwise."""
    options = {
        spelled: param
        for param in command.params
        for spelled in param.opts
        if param.param_type_name == "option"
    }
    parsed = TypedWords([], {})
    remaining = iter(words)
    for word in remaining:
        spelled, equals, value = word.partition("=")
        if word == "--":
            parsed.arguments.extend(remaining)
        elif not word.startswith("-") or word == "-":
            parsed.arguments.append(word)
        elif equals and spelled in options:
            parsed.values.setdefault(options[spelled].name, []).append(value)
        elif (option := options.get(word)) is not None and not option.is_flag:
            taken = list(islice(remaining, option.nargs))
            if len(taken) < option.nargs:
                return parsed, option, len(taken)
            parsed.values.setdefault(option.name, []).extend(taken)
    return parsed, None, 0


def _option_names(command: Any, words: Sequence[str]) -> list[Candidate]:
    """Return the options that may still follow."""
    context = command.context_class(command, info_name=command.name, **command.context_settings)
    offers = []
    for option in command.get_params(context):
        if option.param_type_name == "option":
            names = [*option.opts, *option.secondary_opts]
            if option.multiple or set(names).isdisjoint(words):
                offers += [Candidate(name, option.help or "") for name in names]
    return offers


def _values(option: Any, place: int, typed: str, parsed: TypedWords) -> list[Candidate] | None:
    """Return candidates for the value of an option."""
    choices = getattr(option.type, "choices", None)
    if choices:
        return [Candidate(str(choice)) for choice in choices]
    metavar = (option.metavar or "").split(" ")[place]
    offers = [Candidate(word) for word in _known(option.name)]
    # In a metavar such as first-dot|last-dot|REGEX, the words in lower case are literal values.
    offers += [Candidate(word) for word in re.split(r"[|,]", metavar) if re.fullmatch(r"[a-z][a-z-]*", word)]
    if option.name == "keys":
        return [Candidate(key) for key in fields_and_keys(parsed.arguments)[1]]
    if metavar.endswith("COLUMN"):
        before = re.match(r"(.*=@?)?", typed).group()  # type: ignore[union-attr]
        if not before and metavar != "COLUMN":
            return []
        tables = [table for name in ("rows", "table") for table in parsed.values.get(name, ())]
        return [Candidate(before + name, "column") for name in columns_of(tables)]
    if "FIELD" in metavar or metavar.startswith(("EXT,", "WHAT", "NEW=")):
        offers += [Candidate(name, "field") for name in fields_and_keys(parsed.arguments)[0]]
        if metavar.startswith("WHAT"):
            offers.insert(0, Candidate("key"))
        if option.name == "by" and "." in typed:
            offers += [Candidate(name) for name in places_in(parsed.arguments, typed.rpartition(".")[0])]
        before = ""
        if ",..." in metavar:
            before = typed[: typed.rfind(",") + 1]
        elif metavar.startswith("NEW="):
            before = typed[: re.match(r"(.*[=;])?", typed).end()]  # type: ignore[union-attr]
        named = set(before.split(","))
        return [offer._replace(value=before + offer.value) for offer in offers if offer.value not in named]
    return offers if offers or metavar in _FREE else None


def _known(option: str) -> Iterable[str]:
    """Return the values of an option that its group or the entry points of other packages name."""
    if option == "engine":
        from importlib.metadata import entry_points

        return sorted({f"{point.name}://" for point in entry_points(group="wdscli.executors")})
    return sorted(WORDS.get(option, ()))


def _shard_paths(typed: str) -> list[Candidate] | None:
    """Return the folders, shards and manifests whose names begin with ``typed``. Return None, which means the shell's
    own file names, if there are none."""
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
    paths = []
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
                full = before + os.path.join(folder, entry.name)
                if entry.is_dir():
                    paths.append(Candidate(full + "/"))
                elif _SHARD.search(entry.name):
                    paths.append(Candidate(full))
    return sorted(paths) or None


def fields_and_keys(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return fields and keys of the first samples in local shards."""
    from wdscli.samples import iter_batches
    from wdscli.storage import open_source
    from wdscli.text import to_text

    fields: dict[str, None] = {}
    keys: list[str] = []
    for address in islice(_local_shards(arguments), _MOST_SHARDS):
        with suppress(WdsError), open_source(address) as source:
            for batch in islice(iter_batches(source), 2):
                fields |= dict.fromkeys(map(to_text, batch.fields))
                keys += map(to_text, batch.keys)
    return sorted(fields), keys[:_MOST_KEYS]


def _local_shards(arguments: Sequence[str]) -> Iterator[str]:
    from wdscli.shards.inputs import open_set
    from wdscli.storage import is_local

    for text in arguments:
        if is_local(text) and text != "-":
            try:
                shards = open_set(
                    [os.path.expanduser(text)], missing="accept", takes_unfinished=True, pipes=False
                )
                yield from filter(is_local, shards.addresses)
            except WdsError:
                continue


def places_in(arguments: Sequence[str], before: str) -> list[str]:
    """Return paths in JSON fields of the first samples, one level below the field or path ``before``. Example:
    ``json.width`` for ``json``."""
    import json

    from wdscli.samples import iter_samples
    from wdscli.storage import open_source

    paths: dict[str, None] = {}
    for address in islice(_local_shards(arguments), _MOST_SHARDS):
        with suppress(WdsError), open_source(address) as source:
            for sample in islice(iter_samples(source), 20):
                for field, payload in sample.fields.items():
                    if field.rpartition(".")[2] == "json" and f"{before}.".startswith(f"{field}."):
                        with suppress(ValueError, LookupError, TypeError, AttributeError):
                            value = json.loads(payload)
                            for name in filter(None, before[len(field) :].split(".")):
                                value = value[name]
                            paths |= {f"{before}.{name}": None for name in value}
    return list(paths)


def columns_of(tables: Sequence[str]) -> list[str]:
    """Return the column names of local tables."""
    from wdscli.create.rows import column_names, table_files
    from wdscli.storage import is_local

    names: dict[str, None] = {}
    for text in tables:
        with suppress(Exception):
            if is_local(text) and text != "-":
                names |= dict.fromkeys(column_names(table_files(os.path.expanduser(text), "")[0]))
    return list(names)


def entries_of_store(folder: str) -> dict[str, bool]:
    """Return the names in a folder of a store, each with whether it is a folder. Return no names if the store is too
    slow."""
    global is_waiting
    entries: dict[str, bool] = {}

    def fetch() -> None:
        from wdscli.storage.remote import entries_in
        from wdscli.storage.retry import Network, using

        with suppress(Exception), using(Network(retries=0, timeout_seconds=STORE_SECONDS)):
            entries.update(entries_in(folder))

    if folder.endswith("://"):
        return {}
    thread = Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(STORE_SECONDS)
    is_waiting = thread.is_alive()
    return dict(entries)
