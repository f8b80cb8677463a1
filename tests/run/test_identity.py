"""Which options make two runs different, for every option of every command with ``--resume``.

A run is interrupted, and resumed with one option more.
same    the finished shards are kept
other   the run is refused, and the message names the option (``--by``: by this name)
input   the run is refused, because its samples are not the same
usage   the option needs another command line
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from shard_cases import content, keys_of, numbered, wds, write_shards

from wdscli.cli.commands import COMMANDS
from wdscli.cli.group import load

BASES = {
    "create": "{given}/files",
    "split": "{given}/in",
    "merge": "{given}/in {given}/more",
    "shuffle": "{given}/in",
    "sort": "{given}/in --by key",
    "map": "{given}/in --filter cls cat",
}
EVERY = """
    same   --jobs 2
    same   --post true
    same   --force
    same   --fsync
    same   --on-error skip
    same   --json
    same   --trust-addresses
    same   --timeout 9
    same   --cache {tmp}/cache
    same   --quiet
    same   --verbose
    same   --progress
    same   --debug
    same   --resume
    same   --dry-run
    other  --max-count 3
    other  --max-size 10KB
    other  --shards 3
    other  --hash sha256
    other  --no-index
    other  --mtime 7
    other  --long-names gnu
    other  --limit 5
    other  --on-duplicate skip
    other  --rekey {{n}}
    same   --if-changed
    usage  --plan {tmp}/plan
    usage  --engine none://
    usage  --output -
"""
SELECTING = """
    same   --allow-empty
    same   --memory 500MB
    same   --tmp {tmp}
    other  --divisible-by 2
    other  --fields cls
    other  --drop cls
    other  --rename class=cls
    other  --keys *0
    other  --keys-from {given}/keys
    other  --not-keys-from {given}/keys
    other  --on key --keys-from {given}/keys
    other  --near 3 --dedup cls+0
    other  --where index>0
    other  --slice 1:
    other  --sample 3
    other  --dedup key
    same   --report {tmp}/report
"""
TABLE = {
    "create": """
        same   --seed 3
        same   --report {tmp}/report
        input  --from list:{given}/list
        other  --include *.txt
        other  --exclude *1.txt
        other  --key-rule last-dot
        other  --require txt
        other  --label-from parent
        other  --order shuffle
        same   --missing skip
        usage  --append
        usage  --from {given}/table.csv
        usage  --from lines:{given}/list
        usage  --from hf:none
        usage  --from coco:{given}/list
        usage  --key-column key
        usage  --column txt=text
        usage  --json-rest
        usage  --json-merge
        usage  --text text
        usage  --encoding latin-1
        other  --no-follow
        other  --values size.txt
    """,
    "split": """
        same   --strategy spill
        same   --seed 3
        usage  --ratio a=1,b=1
        usage  --group-by json.x
        usage  --stratify cls
        usage  --by cls
        usage  --by @{given}/map
        usage  --missing skip
        other  --column txt=cls
    """,
    "merge": """
        same   --strategy spill
        usage  --seed 3
        other  --weights equal
        other  --weights 2,1
        usage  --stop first
        usage  --join inner
        usage  --table {given}/table.csv
        usage  --key-column key
        usage  --column txt=text
        usage  --json-rest
        usage  --on-conflict first
        usage  --text text
        usage  --encoding latin-1
    """,
    "shuffle": """
        same   --strategy spill
        same   --measure
        usage  --window 5
        other  --seed 3
        other  --column txt=cls
    """,
    "sort": """
        same   --strategy spill
        other  --by cls
        --by   --reverse
        other  --missing first
        usage  --seed 3
        usage  --by @{given}/keys
        other  --column txt=cls
    """,
    "map": """
        other  --cmd true
        usage  --python {given}/f.py:f
        usage  --only jpg
        usage  --resize 8
        usage  --multi
        usage  --max-size 10KB
        usage  --batch 2
        other  --values size.cls
        usage  --new-fields
        usage  --format png
        usage  --rename-by-content
        usage  --seed 3
        other  --column txt=cls
    """,
}


def rows_of(command: str) -> dict[str, tuple[str, str]]:
    """By option: whether two runs are different, and the words that say it."""
    tables = EVERY + TABLE[command] + (SELECTING if command != "create" else "")
    rows = [line.split(maxsplit=1) for line in tables.splitlines() if line.strip()]
    return {words.split()[0]: (verdict, words) for verdict, words in rows}


def options_of(command: str) -> set[str]:
    options = [one for one in load(command).params if one.param_type_name == "option"]
    return {next(name for name in one.opts if name.startswith("--")) for one in options}


def test_every_option_has_a_row() -> None:
    resuming = {name for name in COMMANDS if "--resume" in options_of(name)}
    # cat resumes only whole shards with {name}, which tests/commands/test_cmd_cat_each.py has.
    assert resuming == {*BASES, "cat", "run"}
    for command in BASES:
        assert options_of(command) == rows_of(command).keys() | {"--filter"} & options_of(command), command
    # A plan or a dSort job shapes the shards of run; its other options are those of shuffle.
    assert options_of("run") <= rows_of("shuffle").keys() | {"--bucket", "--task", "--finish", "--json"}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    (folder / "files").mkdir()
    for number in range(6):
        (folder / "files" / f"f{number}.txt").write_text(f"{number}")
    for name, prefix in (("in", "a"), ("more", "b")):
        write_shards(folder / name, [numbered(6, prefix)])
    (folder / "keys").write_text("".join(f"{key}\n" for key in keys_of(*(folder / "in").glob("*.tar"))[1:]))
    (folder / "list").write_text("l.txt\ttext:one\n")
    (folder / "table.csv").write_text("key,text\na,b\n")
    return folder


@pytest.fixture(scope="module", params=BASES)
def interrupted(request: pytest.FixtureRequest, given: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A command, where its run was ended after its first shard, and what a whole run writes."""
    folder = tmp_path_factory.mktemp(request.param)
    words = [request.param, *BASES[request.param].format(given=given).split(), "-q", "--max-count", "2"]
    assert wds(*words, "-o", folder / "whole" / "out-%d.tar").code == 0
    whole = content(folder / "whole")
    ended = wds(
        *words, "-o", folder / "out" / "out-%d.tar", "-j1", "--post", "case {} in *1.tar) exit 1;; esac"
    )
    assert ended.code == 5
    assert (folder / "out" / "out-0.tar").exists()
    return words, folder, whole


@pytest.mark.exhaustive(sample=False)
def test_every_option(interrupted: Any, given: Path, tmp_path: Path) -> None:
    words, folder, whole = interrupted
    wrong = {}
    for option, (verdict, text) in rows_of(words[0]).items():
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(folder / "out", tmp_path / "out")
        before = content(tmp_path / "out")
        more = shlex.split(text.format(given=given, tmp=tmp_path))
        base = [*words, "-o", f"{tmp_path}/out/out-%d.tar", *([] if option == "--resume" else ["--resume"])]
        for name in {option, "-o" if option == "--output" else "", "--filter" if option == "--cmd" else ""}:
            if name in base:
                del base[base.index(name) : base.index(name) + (3 if name == "--filter" else 2)]
        if option == "--max-size" or option == "--shards":
            del base[base.index("--max-count") : base.index("--max-count") + 2]
        if option == "--quiet":
            base.remove("-q")
        ran = wds(*base, *more)
        said = ran.err.partition("was made by another run: it was started with different options: ")[2]
        after = content(tmp_path / "out")
        if verdict == "same":
            if option == "--if-changed" or (option == "--on-error" and words[0] == "map"):
                # The manifest says so.
                after["out-manifest.json"] = whole["out-manifest.json"]
            right = ran.code == 0 and after == (before if option == "--dry-run" else whole)
        elif verdict == "usage":
            right = (ran.code != 0 or option == "--plan") and not said
        elif verdict == "input":
            right = ran.code == 4 and "its samples or cuts differ" in ran.err and after == before
        else:
            name = option if verdict == "other" else verdict
            right = ran.code == 4 and name in said.partition("\n")[0].split(", ") and after == before
        if not right:
            wrong[option] = f"{verdict} {ran.code} {ran.err[:120]}"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


@pytest.mark.exhaustive
def test_a_map_that_failed_is_resumed_as_its_error_says(given: Path, tmp_path: Path) -> None:
    """A run that stopped at a failure has made shards without one; --on-error skip and keep make others."""
    failing = 'test "$WDS_KEY" != a004 && cat'
    words = ["map", given / "in", "--filter", "cls", failing, "--max-count", "2", "-q", "-o"]
    assert wds(*words, tmp_path / "whole" / "out-%d.tar", "--on-error", "skip").code == 0
    out = [*words, tmp_path / "out" / "out-%d.tar"]
    ran = wds(*out)
    assert ran.code == 5
    assert "--on-error skip" in ran.err
    assert (tmp_path / "out" / "out-0.tar").exists()
    ran = wds(*out, "--on-error", "skip", "--resume")
    assert ran.code == 0, ran.err
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    # Ended after the shard that lacks a sample.
    ended = ["--on-error", "skip", "--max-count", "1", "--post", "case {} in *4.tar) exit 1;; esac"]
    del out[out.index("--max-count") : out.index("--max-count") + 2]
    shutil.rmtree(tmp_path / "out")
    assert wds(*out, *ended).code == 5
    ran = wds(*out, "--on-error", "keep", "--max-count", "1", "--resume")
    assert ran.code == 4
    assert "it was started with different options: --on-error" in ran.err
