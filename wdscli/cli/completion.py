"""What a shell offers when TAB is pressed: commands, options, their values, shard paths, and field names and keys that
are read from the shards on the line.

How: a short script for each shell asks the command itself, by ``_WDS_COMPLETE=complete_SHELL`` and the line in
``COMP_LINE``, and gets one value a line, for zsh and fish with a TAB and a help text behind it. ``!files`` instead says
that the shell's own file names are meant. A line is followed as the parser would follow it, as far as it goes. What
is read for it is in :mod:`wdscli.cli.completed`; whatever goes wrong offers nothing.

Scripts lie in the folders where the shells look for them by themselves, and no file of the user's is changed, unlike
with the installer that Typer has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import islice
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
"""Values of which there is none to offer, and that are no names of files."""


class Candidate(NamedTuple):
    """A word that may stand where the cursor is."""

    value: str
    help: str = ""


class Given(NamedTuple):
    """What stands on a line: arguments, and the values of options by their fields."""

    arguments: list[str]
    values: dict[str, list[str]]


class Line(NamedTuple):
    """A command line up to the cursor: the whole ``words`` behind the program, and the one that is being typed, as it
    is meant and as it stands (``raw``), with the quote that is open in it."""

    words: list[str]
    typed: str
    raw: str
    quote: str


def script(shell: str, program: str) -> str:
    """What makes ``shell`` complete ``program``."""
    name = re.sub(r"\W", "_", program)
    return _SCRIPTS[shell].format(
        program=program, function=f"_{name}_completion", variable=f"_{name.upper()}_COMPLETE"
    )


def install(shell: str) -> tuple[list[str], str | None]:
    """Write the scripts to where ``shell`` looks for them: their places, and what else there may be to do."""
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
        "bash": "bash finds it by the package bash-completion; without that, add this line to ~/.bashrc:\n"
        f"    source {places[0]}",
        "zsh": "zsh finds it when its folder is in fpath; if it is not, add this line to ~/.zshrc:\n"
        f"    fpath+=({folder}); autoload -Uz compinit; compinit",
    }
    return places, more.get(shell)


def current_shell() -> str | None:
    """The shell that this program was started from, if it can be told."""
    from shellingham import ShellDetectionFailure, detect_shell

    try:
        return str(detect_shell()[0])
    except ShellDetectionFailure:
        return os.path.basename(os.environ.get("SHELL", "")) or None


def answer(instruction: str, program: str, group: Any) -> str:
    """What a script gets that asks for ``complete_bash``, or ``source_bash`` for the script itself."""
    what, _, shell = instruction.partition("_")
    if shell not in SHELLS or "_TYPER_COMPLETE_ARGS" in os.environ:
        return ""  # a script that an earlier version installed would run what it gets
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
    """The line up to the cursor, as the shell says it."""
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
    r"""Words as a shell makes them of a line that may end in the middle of one.

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
    """A value as bash wants it: without what stands before the last character that ends words for it, and with a
    backslash before what means something to it."""
    breaks = os.environ.get("COMP_WORDBREAKS", "")
    if line.quote:
        before = line.raw[: line.raw.rindex(line.quote) + 1]
    else:
        plain = re.sub(r"\\.", "xx", line.raw)
        before = line.raw[: max(map(plain.rfind, breaks), default=-1) + 1]
    rest = value[len(split_line("x " + before).typed) :]
    return rest if line.quote else re.sub(r"([\s'\"\\$`!&|;<>(){}*?#\[\]])", r"\\\1", rest)


def candidates(words: Sequence[str], typed: str, group: Any) -> list[Candidate] | None:
    """What may come next, whether or not it begins as ``typed`` does; None for the shell's own file names. ``group``
    has the commands, and in ``listings`` what each is for."""
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
    """What is given among the words of a command; and the option whose value comes next, if one does, with the place of
    that value among its values."""
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
    """Options that may still be given."""
    from wdscli.cli.options import former_names

    context = command.context_class(command, info_name=command.name, **command.context_settings)
    found = []
    for option in command.get_params(context):
        if option.param_type_name == "option" and not option.hidden:
            names = [*option.opts, *option.secondary_opts]
            if option.multiple or set(names).isdisjoint(words):
                former = former_names(names)
                found += [Candidate(name, option.help or "") for name in names if name not in former]
    return found


def _values(option: Any, place: int, typed: str, given: Given) -> list[Candidate] | None:
    """Values of an option."""
    from wdscli.cli.completed import columns_of, names_in, places_in

    choices = getattr(option.type, "choices", None)
    if choices:
        return [Candidate(str(one)) for one in choices]
    metavar = (option.metavar or "").split(" ")[place]
    found = [Candidate(one) for one in _known(option.name)]
    # What stands in small letters is meant as it is: first-dot|last-dot|REGEX.
    found += [Candidate(one) for one in re.split(r"[|,]", metavar) if re.fullmatch(r"[a-z][a-z-]*", one)]
    if metavar == "KEY":
        return [Candidate(key) for key in names_in(given.arguments)[1]]
    if metavar.endswith("COLUMN"):
        before = re.match(r"(.*=@?)?", typed).group()  # type: ignore[union-attr]
        if not before and metavar != "COLUMN":
            return []
        tables = [table for name in ("from_table", "table") for table in given.values.get(name, ())]
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
    """Values of an option that a module holds, or that other packages have made known."""
    if option == "engine":
        from importlib.metadata import entry_points

        return sorted({f"{point.name}://" for point in entry_points(group="wdscli.executors")})
    module, _, name = _KNOWN.get(option, "").partition(":")
    return sorted(getattr(import_module(module), name)) if module else []


_KNOWN = {
    "decode": "wdscli.codecs.decode_images:SPECS",
    "dialect": "wdscli.shards.dialects:DIALECTS",
    "profile": "wdscli.verify.profiles:PROFILES",
}


def _shard_paths(typed: str) -> list[Candidate] | None:
    """Folders, shards and manifests that begin as ``typed`` does; where there is none of these, None for whatever files
    there are."""
    if typed.startswith("@"):
        return None
    if typed.startswith("pipe:"):
        return []
    before, _, path = typed.rpartition("::")
    before += "::" if before else ""
    if "://" in path:
        from wdscli.cli.completed import entries_of_store

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
