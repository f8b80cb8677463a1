"""Words of earlier versions: they work for one more release, with a note, and no help shows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from shard_cases import write_shards

from wdscli.cli.former import FORMER, renamed
from wdscli.cli.main import COMMANDS, load

VALUES = {
    **{
        name: f"{name}.tar"
        for name in ("--from-coco", "--from-lines", "--from-list", "--from-table", "--by-map")
    },
    "--checksum": "sha256",
    "--resize-mode": "border",
}
PAIRS = [
    pytest.param(command, old, today, id=f"{command or 'all'} {old}")
    for command, table in FORMER.items()
    for old, today in table.items()
]


def options_of(command: str) -> dict[str, Any]:
    return {name: one for one in load(command).params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize(("command", "old", "today"), PAIRS)
def test_every_old_word_is_one_of_today(command: str, old: str, today: str) -> None:
    """The old one is gone, and the options that stand for it are there and shown, in every command that has them."""
    names = re.findall(r"--[a-z-]+", today)
    commands = [command] if command else [name for name in COMMANDS if names[0] in options_of(name)]
    assert names
    assert commands
    for name in commands:
        there = options_of(name)
        assert all(not there[one].hidden for one in names)
        assert "=" in old or old not in there


def test_values_and_other_words_stay() -> None:
    takes = {"--title": 1, "--json": 0, "--fields": 1}
    given = ["--title", "--field", "a.tar", "--json", "--", "--field", "x"]
    assert renamed("cat", given, takes) == (given, [])
    assert renamed("cat", ["a=b", "pipe:x=1 y", "-o=1"], takes) == (["a=b", "pipe:x=1 y", "-o=1"], [])
    assert renamed("cat", ["--key", "a[1]*"], {})[0] == ["--keys", "a[[]1][*]"]
    assert renamed("map", ["--on-error", "stop"], {"--on-error": 1})[0] == ["--on-error", "error"]
    assert renamed("map", ["--on-error=stop"], {"--on-error": 1})[0] == ["--on-error", "error"]
    assert renamed("map", ["--on-error", "skip"], {"--on-error": 1}) == (["--on-error", "skip"], [])
    assert renamed("cat", ["--field"], {})[0] == ["--to", "raw", "--fields", ""]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    samples = [[(f"n{n}.txt", b"%d" % (n % 2)), (f"n{n}.json", b'{"a": 1}')] for n in range(4)]
    write_shards(tmp_path, [samples])
    (tmp_path / "t.csv").write_text("id,a\nn0,1\nn1,2\nn2,3\nn3,4\n")
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    (tmp_path / "list.tsv").write_text("a.txt\ttext:one\n")
    (tmp_path / "keys.txt").write_text("n3\nn1\nn2\nn0\n")
    (tmp_path / "map.txt").write_text("".join(f"n{n}\tp{n % 2}\n" for n in range(4)))
    return tmp_path


SAME = [
    ("cat in.tar --on-error stop -o OUT", "cat in.tar --on-error error -o OUT"),
    ("cat in.tar --field txt", "cat in.tar --to raw --fields txt"),
    ("cat in.tar --field txt --key n1", "cat in.tar --to raw --fields txt --keys n1"),
    ("cat in.tar --to-jsonl", "cat in.tar --to jsonl"),
    ("cat in.tar --to-tsv -", "cat in.tar --to tsv"),
    ("cat in.tar --to-tsv OUT.tsv", "cat in.tar --to OUT.tsv"),
    ("cat in.tar --to-dir OUT", "cat in.tar --to OUT/"),
    ("ls in.tar --csv -", "ls in.tar --to csv"),
    ("ls in.tar --csv OUT.csv", "ls in.tar --to OUT.csv"),
    ("ls in.tar --shards", "ls in.tar --by shard"),
    ("ls in.tar --by-shard", "ls in.tar --by shard"),
    ("ls in.tar --members -l", "ls in.tar --by member -l"),
    ("ls in.tar --to csv --with json", "ls in.tar --to csv --column json"),
    ("ls in.tar --bytes", "ls in.tar"),
    ("ls in.tar --retries 1 --cache-limit 5GB --cache C", "ls in.tar"),
    ("shuffle in.tar -o OUT --checksum sha256", "shuffle in.tar -o OUT --hash sha256"),
    ("shuffle in.tar -o OUT -n --quality", "shuffle in.tar -o OUT -n --measure"),
    ("sort in.tar -o OUT --order-from keys.txt", "sort in.tar -o OUT --by @keys.txt"),
    ("sort in.tar -o OUT --by txt --numeric --reverse", "sort in.tar -o OUT --by txt:nr"),
    ("split in.tar -o OUT-{part}.tar --by-map map.txt", "split in.tar -o OUT-{part}.tar --by @map.txt"),
    (
        "split in.tar -o OUT-{part}.tar --by cls --missing drop --allow-empty",
        "split in.tar -o OUT-{part}.tar --by cls --missing skip --allow-empty",
    ),
    (
        "merge in.tar in.tar -o OUT --interleave --rekey {n}",
        "merge in.tar in.tar -o OUT --weights equal --rekey {n}",
    ),
    (
        "merge in.tar --table t.csv --key id --field txt=a -o OUT",
        "merge in.tar --table t.csv --key-column id --column txt=a -o OUT",
    ),
    (
        "merge in.tar --table t.csv --key-column id --json-merge -o OUT",
        "merge in.tar --table t.csv --key-column id --json-rest -o OUT",
    ),
    (
        "create --from-table t.csv --key id --field=txt=a -o OUT --incomplete skip",
        "create --from t.csv --key-column id --column txt=a -o OUT --missing skip",
    ),
    ("create --from-lines lines.txt -o OUT", "create --from lines:lines.txt -o OUT"),
    ("create --from-list list.tsv -o OUT", "create --from list:list.tsv -o OUT"),
    ("verify in.tar --profile webdataset", "verify in.tar --for webdataset"),
    ("verify in.tar --repair -o OUT", "repair in.tar -o OUT"),
    ("index in.tar --dialect dali -n", "index in.tar --for dali -n"),
]


@pytest.mark.parametrize(("old", "today"), SAME)
def test_an_old_word_does_what_today_s_does(old: str, today: str, place: Path) -> None:
    from shard_cases import wds

    found = []
    (source,) = place.glob("*.tar")
    for number, line in enumerate((old, today)):
        folder = place / str(number)
        folder.mkdir()
        (folder / "in.tar").write_bytes(source.read_bytes())
        for path in place.glob("*.[tc][xs]*"):
            (folder / path.name).write_bytes(path.read_bytes())
        line = (
            line.replace("OUT.", "out.")
            .replace("OUT-", "out-")
            .replace("OUT", "out.tar" if "--to" not in line else "out")
        )
        ran = wds(*line.split(), cwd=folder)
        quiet = wds(*line.split(), "-q", *(["--force"] if "out" in line else []), cwd=folder)
        assert ran.code == quiet.code == 0, ran.err
        assert ("note: " in ran.err) == (number == 0)
        assert "note: " not in quiet.err
        files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        found.append((ran.out, {name: path.read_bytes() for name, path in files.items() if name[:2] != "C/"}))
    assert found[0] == found[1]


def test_no_page_shows_an_old_word() -> None:
    from shard_cases import wds

    for name in COMMANDS:
        shown = set(re.findall(r"--[a-z-]+", wds(name, "--help-all").out.decode()))
        assert shown.isdisjoint({old for old in FORMER.get(name, {}) if "=" not in old} - {"--seed"})


def test_dsort_is_another_name_of_run(tmp_path: Path) -> None:
    from shard_cases import wds

    assert wds("dsort", "--help").out == wds("run", "--help").out.replace(b"wds run", b"wds run")
    assert "dsort" not in wds("--help").out.decode().split()
