"""Option groups: what Typer sees, and what a command gets."""

from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from wdscli.cli.commands import COMMANDS
from wdscli.cli.group import WdsCommand, load, typed
from wdscli.cli.options import (
    REQUIRED,
    CommonOptions,
    CutOptions,
    DuplicateOptions,
    Json,
    NetworkOptions,
    OnError,
    Option,
    OutputOptions,
    SelectionOptions,
    Shards,
    TaskOptions,
    grouped,
    parameters_of,
    read_plain,
)


def call(*args: str) -> dict[str, Any]:
    """What a command with every group gets from a command line."""
    got: dict[str, Any] = {}

    @grouped
    def command(
        *,
        shards: Shards,
        selection: SelectionOptions,
        cuts: CutOptions,
        output: OutputOptions,
        tasks: TaskOptions,
        duplicates: DuplicateOptions,
        common: CommonOptions,
        on_error: OnError = "error",
        json: Json = False,
        extra: Annotated[int, Option(("--extra",), None, "One of its own.")] = 3,
    ) -> None:
        """Do it."""
        got.update(shards=shards, extra=extra, on_error=on_error, json=json)
        for group in (selection, cuts, output, tasks, duplicates, common):
            got.update(group._asdict())

    app = typer.Typer(add_completion=False)
    app.command()(typed(command))
    result = CliRunner().invoke(app, ["a.tar", "-o", "out.tar", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return got


def test_defaults() -> None:
    assert call() == {
        "shards": ["a.tar"], "extra": 3,
        "fields": None, "drop": None, "rename": None, "keys": None, "keys_from": None, "not_keys_from": None,
        "on": None, "near": None,
        "where": None, "slice": None, "sample": None, "seed": None,
        "limit": None,
        "max_count": None, "max_size": None, "shard_count": None, "divisible_by": None,
        "output": "out.tar", "force": False, "fsync": False, "no_index": False, "checksum": "xxh3_128", "mtime": None,
        "long_names": "pax", "dry_run": False, "jobs": None, "post": None,
        "on_error": "error", "on_duplicate": "error", "rekey": None,
        "json": False, "quiet": False, "verbose": False, "progress": None, "debug": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--fields jpg,cls --fields json", "fields", ["jpg,cls", "json"]),
        ("--drop txt", "drop", ["txt"]),
        ("--rename image=jpg --rename data=json", "rename", ["image=jpg", "data=json"]),
        ("--keys a* --keys b*", "keys", ["a*", "b*"]),
        ("--keys-from list", "keys_from", ["list"]),
        ("--where index<3", "where", ["index<3"]),
        ("--slice 1:2", "slice", "1:2"),
        ("--sample 10%", "sample", "10%"),
        ("--sample 3 --seed 5", "seed", 5),
        ("--limit 0", "limit", 0),
        ("--max-count 7", "max_count", 7),
        ("--max-size 64k", "max_size", 64_000),
        ("--shards 4", "shard_count", 4),
        ("--output other", "output", "other"),
        ("--force", "force", True),
        ("--fsync", "fsync", True),
        ("--no-index", "no_index", True),
        ("--hash sha256", "checksum", "sha256"),
        ("--mtime 12", "mtime", 12),
        ("--long-names gnu", "long_names", "gnu"),
        ("-n", "dry_run", True),
        ("-j 2", "jobs", 2),
        ("--on-error skip", "on_error", "skip"),
        ("--on-duplicate rekey", "on_duplicate", "rekey"),
        ("--rekey {index}", "rekey", "{index}"),
        ("--json", "json", True),
        ("-q", "quiet", True),
        ("-v", "verbose", True),
        ("--progress", "progress", True),
        ("--no-progress", "progress", False),
        ("--debug", "debug", True),
        ("--extra 5", "extra", 5),
    ],
)
def test_each_option_reaches_its_group(words: str, name: str, value: Any) -> None:
    assert call(*words.split())[name] == value


def test_two_options_of_one_name_are_told_at_once() -> None:
    def command(common: CommonOptions, quiet: bool = False) -> None: ...

    with pytest.raises(ValueError, match="quiet"):
        grouped(command)


@pytest.mark.parametrize(
    "group",
    [
        CommonOptions,
        SelectionOptions,
        CutOptions,
        OutputOptions,
        TaskOptions,
        DuplicateOptions,
    ],
)
def test_every_option_of_a_group_names_its_panel_and_has_help(group: Any) -> None:
    for parameter in parameters_of(group):
        assert parameter.option.panel
        assert parameter.option.help.endswith(".")


def test_the_selection_is_parsed_by_the_library() -> None:
    assert SelectionOptions().parse().is_trivial
    assert SelectionOptions(limit=3).parse().limit == 3


def test_the_network_is_in_force_while_a_command_runs() -> None:
    from wdscli.storage.retry import Network, network

    got: list[Network] = []

    @grouped
    def command(shards: Shards, options: NetworkOptions) -> None:
        """Do it."""
        got.append(network())

    app = typer.Typer(add_completion=False)
    app.command()(typed(command))
    before = network()
    for args in ([], ["--timeout", "1.5", "--cache", "copies"]):
        assert CliRunner().invoke(app, ["a.tar", *args], catch_exceptions=False).exit_code == 0
    assert got == [before, before._replace(timeout_seconds=1.5, cache_dir="copies")]
    assert network() == before


@pytest.mark.parametrize("words", ["--timeout 0", "--timeout nan"])
def test_a_network_that_makes_no_sense(words: str) -> None:
    from wdscli.cli.main import main

    assert main(["ls", "a.tar", *words.split()]) == 2


def typed_values(parameter: Any) -> list[list[str]]:
    """Words for a parameter: several values, right and wrong ones, glued and apart."""
    if not parameter.option.names:
        return [["one"], ["one", "two"], ["-"], []]
    names = [name for names in parameter.option.names for name in names.split("/")]
    values = ["", "3", "0", "-1", "x", "a=b", "-", "1e3", "10 kB", "-x", *get_args(parameter.kind)]
    texts = [value for value in values if isinstance(value, str)]
    words = [[name] for name in names] + [[name, value] for name in names for value in texts]
    glued = [[f"{name}={value}"] for name in names for value in texts]
    glued += [[f"{name}{value}"] for name in names if name[1] != "-" for value in texts]
    long = max(names, key=len)
    return words + glued + [[long, "3", long, "3"], [long, long], [*words[0], "--"], [words[0][0], "-q"]]


def recorder(name: str, function: Any) -> Any:
    """Typer's command with these parameters, and the list of the values that it is called with."""
    app = typer.Typer(add_completion=False)
    got: list[dict[str, Any]] = []

    def record(**values: Any) -> None:
        got.append(values)

    record.parameters = function.parameters  # type: ignore[attr-defined]
    app.command(name, cls=WdsCommand)(typed(record))
    return typer.main.get_command.__wrapped__(app), got  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_plain_line_means_what_typer_reads(name: str) -> None:
    """For each option of each command: the values are those of Typer, and a line that Typer refuses is not plain."""
    function = getattr(import_module(f"wdscli.cli.commands.{name}"), name)
    positional = [parameter for parameter in function.parameters if not parameter.option.names]
    needs_output = any(one.name == "output" and one.default is REQUIRED for one in function.parameters)
    command, got = recorder(name, function)
    plain = 0
    for parameter in function.parameters:
        for words in typed_values(parameter):
            line = [*words, *([] if parameter in positional else ["in.tar"] * len(positional))]
            line += ["-o", "out.tar"] if needs_output and parameter.name != "output" else []
            values = read_plain(function.parameters, line)
            got.clear()
            with suppress(Exception):
                command(line, standalone_mode=False)
            if values is not None:
                plain += 1
                assert got == [values], line
    assert plain > 3 * len(function.parameters)


def every_option() -> list[tuple[str, Any]]:
    """Each option of each command."""

    return [(name, one) for name in COMMANDS for one in load(name).params if one.param_type_name == "option"]


OTHER_WORDS = {
    "--batch", "--by", "--column", "--fields", "--jobs", "--missing", "--on-duplicate", "--on-error",
    "--order", "--output", "--rekey", "--to",
}  # fmt: skip
"""What has one meaning, and in some command another choice of values or another default."""


def test_a_name_means_one_thing_in_every_command() -> None:
    """Where a name is shown in two commands it is a flag in both or in none, and takes the same kind of value."""
    kinds: dict[str, dict[Any, str]] = {}
    for command, option in every_option():
        for name in () if option.hidden else option.opts:
            kind = "flag" if option.is_flag else option.metavar or str(option.type)
            kinds.setdefault(name, {})[kind] = command
    assert {
        name: kind for name, kind in kinds.items() if len(kind) > 1 and name not in OTHER_WORDS | {"-o"}
    } == {}
