"""An option that is given twice: it adds up, it narrows, it is a flag, or it is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from shard_cases import keys_of, members_of, write_shards

from wdscli.cli.commands import COMMANDS
from wdscli.cli.group import build, load
from wdscli.cli.main import main

SAYS_SO = re.compile("[Rr]epeatable|option is repeated|second --")
"""How the help of an option says that it may be repeated. Options with lists of several names need not say it."""


def value_of(option: Any) -> str:
    """A value that the option takes."""
    choices = getattr(option.type, "choices", None)
    return str(next(iter(choices))) if choices else "7"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command(name: str, capsys: Any) -> None:
    command = load(name)
    for option in command.params:
        if option.param_type_name == "option":
            check_option(name, command, option, capsys)


def check_option(name: str, command: Any, option: Any, capsys: Any) -> None:
    capsys.readouterr()  # of the options before
    spelled = max(option.opts, key=len)
    required = [] if spelled == "--output" else ["-o", "out.tar"]
    takes_output = any("--output" in one.opts and one.required for one in command.params)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = ["in.tar"] * len(arguments) + (required if takes_output else [])
    if option.is_flag:
        assert main([name, *words, spelled, spelled, "--help"]) == 0
        assert not option.multiple
        return
    value = value_of(option)
    twice = [spelled, *[value] * option.nargs] * 2
    says_so, is_list = bool(SAYS_SO.search(option.help)), ",..." in (option.metavar or "")
    assert says_so <= option.multiple <= (says_so or is_list), spelled
    if option.multiple:
        ctx = command.make_context(name, [*words, *twice])
        assert list(ctx.params[option.name]) == [value, value]
    else:
        assert main([name, *words, *twice]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith(f"error: {spelled} was given twice\n")
        assert "hint: " in told.err


def test_the_group_has_flags_only() -> None:
    assert all(option.is_flag for option in build().params)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["shuffle", "in.tar", "-o", "a.tar", "--output", "b.tar"], "--output"),
        (["shuffle", "in.tar", "-oa.tar", "--seed=1", "--seed=1"], "--seed"),
        (["ls", "in.tar", "--limit", "3", "--", "--limit"], None),
        (["ls", "--limit", "3", "--keys", "--limit", "in.tar"], None),
    ],
)
def test_however_it_is_spelled(words: list[str], name: str | None, capsys: Any) -> None:
    code = main(words)
    told = capsys.readouterr().err
    assert ("was given twice" in told) == (name is not None)
    if name is not None:
        assert code == 2
        assert f"{name} was given twice" in told


def test_flags_may_repeat_and_not_contradict(tmp_path: Path, capsys: Any) -> None:
    """``alias wls="wds ls -q"`` with another ``-q``."""
    (shard,) = write_shards(tmp_path, [[[("a.x", b"1")]]])
    assert main(["ls", "-q", "-qv", shard, "--no-progress", "--no-progress", "-q", "--json", "--json"]) == 0
    assert main(["ls", shard, "--progress", "--no-progress"]) == 2
    assert "--progress and --no-progress exclude each other" in capsys.readouterr().err


class TestWhatAddsUp:
    """What was written when only the last counted."""

    @pytest.fixture
    def shard(self, tmp_path: Path) -> str:
        samples = [[(f"k{n}.cls", b"%d" % n), (f"k{n}.json", b'{"w": %d}' % (n * 10))] for n in range(6)]
        return write_shards(tmp_path / "in", [samples])[0]

    def ls(self, capfdbinary: Any, *words: str) -> list[str]:
        capfdbinary.readouterr()
        assert main(["ls", *words]) == 0
        return [line.split(b"\t")[0].decode() for line in capfdbinary.readouterr().out.splitlines()]

    def test_where_narrows(self, shard: str, capfdbinary: Any) -> None:
        def ls(*words: str) -> list[str]:
            return self.ls(capfdbinary, shard, *words)

        assert ls("--where", "cls > 1", "--where", "json.w < 40") == ["k2", "k3"]
        assert ls("--where", "cls == 0 or cls == 5", "--where", "cls > 0 # not the first") == ["k5"]
        assert ls("--where", "cls > 0 # not the first", "--where", "cls < 2") == ["k1"]
        assert ls("--where", "(\ncls > 3\n)", "--where", "cls < 5") == ["k4"]

    @pytest.mark.parametrize("one", ["cls > 1) or (cls < 9", "cls >", ""])
    def test_each_expression_is_read_by_itself(self, shard: str, capfdbinary: Any, one: str) -> None:
        assert main(["ls", shard, "--where", one, "--where", "cls < 2"]) == 2
        assert main(["ls", shard, "--where", "cls < 2", "--where", one]) == 2

    def test_the_manifest_tells_all(self, shard: str, tmp_path: Path) -> None:
        out, keys = tmp_path / "o.tar", tmp_path / "keys"
        keys.write_text("k2\nk3\n")
        words = ["--where", "cls > 1", "--where", "cls < 3", "--keys-from", str(keys)]
        assert main(["split", shard, "-o", str(out), *words]) == 0
        told = json.loads((tmp_path / "o-manifest.json").read_bytes())["wdscli"]["made"]["options"]
        assert told["where"] == ["cls > 1", "cls < 3"]
        assert isinstance(told["keys_from"], str)

    def test_files_of_keys(self, shard: str, tmp_path: Path, capfdbinary: Any) -> None:
        for name, keys in (("a", "k0\nk4\n"), ("b", "k1\nk9\n")):
            (tmp_path / name).write_text(keys)
        assert self.ls(
            capfdbinary, shard, "--keys-from", f"{tmp_path}/a", "--keys-from", f"{tmp_path}/b"
        ) == ["k0", "k1", "k4"]
        assert main(["ls", shard, "--keys-from", f"{tmp_path}/a", "--keys-from", f"{tmp_path}/b"]) == 0
        assert (
            f"1 key of {tmp_path}/a and {tmp_path}/b not found: k9" in capfdbinary.readouterr().err.decode()
        )

    def test_lists_and_tables(self, tmp_path: Path) -> None:
        for name, text in (("a", "x/1.txt text:a\n"), ("b", "x/0.txt text:b\n")):
            (tmp_path / name).write_text(text)
        for name, text in (("t", "id,cap\nz1,one\n"), ("u", "cap,id\ntwo,z0\n")):
            (tmp_path / f"{name}.csv").write_text(text)
        words = [*("--from", f"list:{tmp_path}/a", "--from", f"list:{tmp_path}/b")]
        words += ["--from", f"{tmp_path}/t.csv", "--from", f"{tmp_path}/u.csv"]
        words += ["--key-column", "id", "--column", "txt=cap", "-o", f"{tmp_path}/o.tar"]
        assert main(["create", *words]) == 0
        assert members_of(tmp_path / "o.tar") == [
            ("x/1.txt", b"a"),
            ("x/0.txt", b"b"),
            ("z1.txt", b"one"),
            ("z0.txt", b"two"),
        ]

    def test_rows_are_numbered_through(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / f"{name}.csv").write_text(f"cap\n{name}0\n{name}1\n")
        words = ["--from", f"{tmp_path}/a.csv", "--from", f"{tmp_path}/b.csv"]
        words += ["--rekey", "r{index}", "--column", "txt=cap", "-o", f"{tmp_path}/o.tar"]
        assert main(["create", *words]) == 0
        assert members_of(tmp_path / "o.tar")[3] == ("r3.txt", b"b1")

    def test_a_join_with_two_tables(self, shard: str, tmp_path: Path, capfd: Any) -> None:
        (tmp_path / "t.csv").write_text("id,cap\nk1,one\n")
        (tmp_path / "u.csv").write_text("id,cap\nk3,three\n")
        words = [
            "merge",
            shard,
            "--table",
            f"{tmp_path}/t.csv",
            "--table",
            f"{tmp_path}/u.csv",
            "--key-column",
            "id",
        ]
        words += ["--column", "txt=cap", "-o", f"{tmp_path}/o.tar"]
        assert main(words) == 0
        found = [one for one in members_of(tmp_path / "o.tar") if one[0].endswith(".txt")]
        assert found == [("k1.txt", b"one"), ("k3.txt", b"three")]
        made = json.loads((tmp_path / "o-manifest.json").read_bytes())["wdscli"]["made"]["options"]
        assert made["table"] == ["t.csv", "u.csv"]
        (tmp_path / "u.csv").write_text("id,cap\nk1,three\n")
        assert main([*words, "--force"]) == 3
        assert f'{tmp_path}/u.csv, row 1 (line 2): repeated key "k1"' in capfd.readouterr().err
        (tmp_path / "u.csv").write_text("id,caption\nk3,three\n")
        assert main([*words, "--force"]) == 2
        assert 'there is no column "cap"' in capfd.readouterr().err

    def test_maps(self, shard: str, tmp_path: Path, capfd: Any) -> None:
        (tmp_path / "a").write_text("".join(f"k{n}\tlow\n" for n in range(3)))
        (tmp_path / "b").write_text(json.dumps({"high": ["k3", "k4", "k5"]}))
        words = ["split", shard, "--by", f"@{tmp_path}/a", "--by", f"@{tmp_path}/b"]
        words += ["-o", f"{tmp_path}/{{part}}.tar"]
        assert main(words) == 0
        assert keys_of(tmp_path / "high.tar") == ["k3", "k4", "k5"]
        assert keys_of(tmp_path / "low.tar") == ["k0", "k1", "k2"]
        (tmp_path / "b").write_text("k0\thigh\n")
        assert main([*words, "--force"]) == 2
        assert 'b: "k0" has a second part' in capfd.readouterr().err.replace(", line 1", "")

    @pytest.mark.parametrize(
        "words",
        [
            ["ls", "in.tar", "--keys-from", "-", "--keys-from", "-"],
            ["create", "-o", "o.tar", "--from", "list:-", "--from", "list:-"],
            [
                "create",
                "-o",
                "o.tar",
                "--key-column",
                "a",
                "--column",
                "b=b",
                "--from",
                "-",
                "--from",
                "-",
            ],
            [
                "merge",
                "in.tar",
                "-o",
                "o.tar",
                "--key-column",
                "a",
                "--column",
                "b=b",
                "--table",
                "-",
                "--table",
                "-",
            ],
            ["split", "in.tar", "-o", "{part}.tar", "--by", "@-", "--by", "@-"],
        ],
        ids=lambda words: words[-2],
    )
    def test_standard_input_once(
        self, words: list[str], shard: str, tmp_path: Path, monkeypatch: Any, capfd: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main([shard if one == "in.tar" else one for one in words]) == 2
        option = "--from list:" if "list:-" in words else words[-2]
        assert f"{option} names standard input twice" in capfd.readouterr().err
