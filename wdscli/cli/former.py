"""Options and values of earlier versions. Each works for one more release, and a note names the new word.

:data:`FORMER` maps old options and old values to new words, for each command; the name ``""`` means all commands.
:func:`renamed` replaces old words on a command line before it is parsed. In the new words, ``{}`` is the option's
value, and ``{glob}`` is a glob that matches only this value. Some old options have no replacement but still work. They
are hidden options of ``options.py``, and their help begins with "Now". Remove this module with the next release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

NOW = "Now "
"""The first word in the help of a hidden option. The help then names the option to use instead."""
MORE = "+"
"""The first character in the heading of an option that only ``--help-all`` shows."""
COMMANDS = {"dsort": "run"}
"""Other names of commands."""
_TABLE = {"--key": "--key-column {}", "--field": "--column {}"}
FORMER: dict[str, dict[str, str]] = {
    "": {"--on-error=stop": "--on-error error", "--checksum": "--hash {}"},
    "bench": {
        "--decode": "--decoder {}",
        "--shuffle": "--order {}",
        "--workers": "--jobs {}",
    },
    "cat": {
        "--field": "--to raw --fields {}",
        "--key": "--keys {glob}",
        "--to-dir": "--to {}/",
        "--to-jsonl": "--to jsonl",
        "--to-parquet": "--to parquet:{}",
        "--to-tsv": "--to tsv:{}",
    },
    "create": {
        **_TABLE,
        "--from-coco": "--from coco:{}",
        "--from-hf": "--from hf:{}",
        "--from-lines": "--from lines:{}",
        "--from-list": "--from list:{}",
        "--from-table": "--from {}",
        "--images": "--from images:{}",
        "--incomplete": "--missing {}",
    },
    "index": {"--dialect": "--for {}"},
    "ls": {
        "--by-shard": "--by shard",
        "--csv": "--to csv:{}",
        "--members": "--by member",
        "--parquet": "--to parquet:{}",
        "--shards": "--by shard",
        "--with": "--column {}",
    },
    "map": {
        "--quality": "--format :{}",
        "--resize-mode": "--resize {}",
        "--resize-only-if-bigger": "--resize shrink",
    },
    "merge": {**_TABLE, "--interleave": "--weights equal", "--json-merge": "--json-rest"},
    "report": {
        "--look-into": "--samples :{}",
        "--no-images": "--skip images",
        "--no-verify": "--skip checks",
    },
    "run": {"--list": "--dry-run"},
    "shuffle": {"--quality": "--measure"},
    "sort": {"--order-from": "--by @{}"},
    "split": {"--by-map": "--by @{}", "--missing=drop": "--missing skip"},
    "verify": {"--profile": "--for {}"},
}


def renamed(command: str, words: Sequence[str], takes: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Replace the old words of a command line. Return the new words, and a note for each replacement. ``takes`` gives
    the number of values that follow each current option.

    >>> renamed("cat", ["a.tar", "--key=n/1"], {})
    (['a.tar', '--keys', 'n/1'], ['--key n/1 is now --keys n/1'])
    """
    table = {**FORMER[""], **FORMER.get(command, {})}
    found: list[str] = []
    notes: dict[str, None] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--":
            found += [word, *rest]
            break
        if name in takes:
            values = [] if equals else list(islice(rest, takes[name]))
            today = table.get(f"{name}={value if equals else ' '.join(values)}", "").split()
            found += today or [word, *values]
        else:
            today = table.get(name, "").split()
            if "{" in "".join(today) and not equals:
                value = next(rest, "")
            globbed = re.sub(r"([*?[])", r"[\1]", value)
            today = [part.replace("{}", value).replace("{glob}", globbed) for part in today]
            found += today or [word]
            values = [value] if value else []
        if today:
            notes[f"{' '.join([name if values else word, *values])} is now {' '.join(today)}"] = None
    return found, list(notes)
