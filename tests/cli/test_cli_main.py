"""The group of commands: what it says when something is wrong, and with which code it leaves.

Most tests run a made-up command, so that they hold whatever the real ones do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from shard_cases import Ran, numbered, wds, write_shards

from wdscli import __version__
from wdscli.cli import group as cli
from wdscli.tar.core import CORE

# A stand-in for a command: its argument decides what happens in it.
ACT = '''
import time
from wdscli import errors
from wdscli.cli.options import *
from wdscli.cli.output import Out

@grouped
def act(
    *,
    what: Annotated[str, Option((), "WHAT", "What happens.")],
    common: CommonOptions,
    cuts: CutOptions,
    count: Annotated[int, Option(("--count",), None, "How many rows.")] = 1,
):
    """Do something."""
    out = Out(common)
    if what == "rows":
        for number in range(count):
            out.write(b"row %d\\n" % number)
    elif what == "data-error":
        raise errors.DataError("wrong checksum", shard="a.tar", offset=512, member="x\\x1b[1m.jpg", hint="look")
    elif what == "bug":
        raise RuntimeError("a bug")
    elif what == "os-error":
        open("/nonexistent/file")
    elif what == "wait":
        print("ready", flush=True)
        time.sleep(60)
    elif what == "found":
        return 1
    elif what == "size":
        print(cuts.max_size)
    elif what == "other-pipe":
        raise BrokenPipeError(32, "Broken pipe")
    elif what == "talk":
        out.warn("a warning"); out.note("a note"); out.summary("a summary")
'''
STAND_IN = """
import sys, types
from wdscli.__main__ import main
from wdscli.cli import group as cli
from wdscli.tar.core import CORE

module = sys.modules["wdscli.cli.commands.act"] = types.ModuleType("wdscli.cli.commands.act")
exec(ACT, module.__dict__)
cli.COMMANDS["act"] = "Do something."
main()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    """The words that start it in a process of its own, for what only a process has: signals, pipes, closed streams."""
    script = tmp_path / "wds"
    script.write_text(f"ACT = {ACT!r}\n{STAND_IN}")
    return [sys.executable, str(script)]


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """The stand-in, in this process."""
    module = ModuleType("wdscli.cli.commands.act")
    exec(compile(ACT, "act", "exec", dont_inherit=True), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "act", "Do something.")
    monkeypatch.delenv("WDSCLI_DEBUG", raising=False)
    return partial(wds, "act")


def run(command: list[str], *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "WDSCLI_DEBUG"} | environ
    return subprocess.run(
        [*command, *args], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL
    )


WDS = [sys.executable, "-m", "wdscli"]


def test_version_is_told_at_once_and_by_the_group() -> None:
    """And which core runs, which must be the one that does."""
    told = f"wdscli {__version__} ({'plain Python' if CORE is None else 'compiled'} core)\n"
    assert run(WDS, "--version").stdout == told
    assert run(WDS, "--debug", "--version").stdout == told


def test_version_knows_that_the_plain_core_was_chosen() -> None:
    for words in (["--version"], ["--debug", "--version"]):
        assert run(WDS, *words, WDSCLI_PURE="1").stdout == f"wdscli {__version__} (plain Python core)\n"


def test_help_names_every_command() -> None:
    done = run(WDS, "--help")
    assert done.returncode == 0
    for name, summary in cli.COMMANDS.items():
        assert f" {name} {summary}" in " ".join(done.stdout.split())


def test_no_command_shows_help_and_is_a_usage_error() -> None:
    done = run(WDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: wds" in done.stderr


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_listing_is_the_first_line_of_the_docstring(name: str) -> None:
    function = getattr(import_module(f"wdscli.cli.commands.{name}"), name)
    assert function.__doc__.strip().splitlines()[0] == cli.COMMANDS[name]


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_option_has_help(name: str) -> None:
    for parameter in cli.load(name).params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith("."), parameter.help


def test_unknown_command_is_told_with_the_nearest_one() -> None:
    done = run(WDS, "shufle")
    assert done.returncode == 2
    assert done.stderr == 'error: no such command: "shufle"\nhint: did you mean shuffle?\n'


def test_unknown_option_is_told_with_the_nearest_one(act: Callable[..., Ran]) -> None:
    done = act("rows", "--max-cuont", "3")
    assert done.code == 2
    assert done.err == "error: no such option: --max-cuont\nhint: did you mean --max-count or --count?\n"


def test_an_option_of_other_commands_hints_at_what_does_the_work() -> None:
    done = wds("cat", "--max-count", "3", "set.tar")
    assert done.code == 2
    assert done.err.startswith(
        "error: no such option: --max-count\nhint: --limit N keeps the first N samples"
    )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ls -n 3 set.tar", "did you mean --limit?"),
        ("split set.tar -o x.tar --overwrite", "did you mean --force?"),
        ("cat set.tar --filter txt", "did you mean --where?"),
        ("cat set.tar --preserve", "wds writes one canonical form of tar; copy the file to keep its headers"),
        ("sort set.tar -o x.tar --desc", "did you mean --reverse?"),
        ("split set.tar -o x-%d.tar --num-shards 3", "did you mean --shards?"),
        ("-cf x.tar folder", "try wds create SOURCE -o OUT"),
        ("split set.tar", "-o, --output OUT: Shards to write, such as out-%06d.tar"),
        ("split set.tar -o x-%d.tar --shards x", "--shards N: Write N shards of about equal size"),
        ("ls set.tar --count", "--count FIELD: Count the values of a field, most frequent first"),
    ],
)
def test_hints_for_words_of_other_programs_and_for_missing_options(line: str, hint: str) -> None:
    done = wds(*line.split())
    assert (done.code, done.err.splitlines()[1:]) == (2, [f"hint: {hint}"])


def test_words_of_other_programs_are_not_words_of_ours_for_the_same_option() -> None:
    for name, words in cli.OTHER_WORDS.items():
        mine = {one for command in cli.COMMANDS for param in cli.load(command).params for one in param.opts}
        assert name in mine
        assert name not in words.split()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["act"], "missing argument 'what'"),
        (["act", "rows", "--count", "x"], "invalid value for '--count': 'x' is not a valid int"),
        (["act", "rows", "--max-size", "12parsecs"], 'not a size: "12parsecs"'),
        (["act", "rows", "--max-count", "0"], "invalid value for '--max-count': 0 is not in the range x>=1"),
    ],
)
def test_usage_errors_are_two_lines_and_code_2(act: Callable[..., Ran], args: list[str], words: str) -> None:
    done = act(*args[1:])
    lines = done.err.splitlines()
    assert done.code == 2
    assert lines[0].lower().startswith(f"error: {words.lower()}")
    assert len(lines) == 2
    assert lines[1].startswith("hint: ")


def test_an_error_is_told_with_its_place_its_hint_and_its_code(act: Callable[..., Ran]) -> None:
    done = act("data-error")
    assert done.code == 3
    assert done.err == ('error: wrong checksum in member "x\\x1b[1m.jpg" in a.tar at byte 512\nhint: look\n')


def test_a_traceback_comes_only_when_asked_for(
    act: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in act("data-error").err
    asked = [act("data-error", "--debug"), wds("--debug", "act", "data-error")]
    monkeypatch.setenv("WDSCLI_DEBUG", "1")
    asked.append(act("data-error"))
    for done in asked:
        assert "Traceback" in done.err
        assert "error: wrong checksum" in done.err
        assert done.code == 3


def test_a_mistake_of_ours_is_told_as_one(act: Callable[..., Ran]) -> None:
    done = act("bug")
    assert done.code == 5
    assert done.err.startswith("error: internal error: RuntimeError: a bug\nhint: ")
    assert "--debug" in done.err


def test_an_os_error_names_the_file(act: Callable[..., Ran]) -> None:
    done = act("os-error")
    assert (done.code, done.err) == (4, "error: no such file or directory: /nonexistent/file\n")


def test_a_command_may_choose_its_code(act: Callable[..., Ran]) -> None:
    assert act("found").code == 1


def test_sizes_are_parsed(act: Callable[..., Ran]) -> None:
    assert act("size", "--max-size", "1GiB").out == b"%d\n" % (1 << 30)


def test_a_reader_that_goes_away_ends_it_quietly(stand_in: list[str]) -> None:
    with subprocess.Popen(
        [*stand_in, "act", "rows", "--count", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"row 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_a_reader_that_was_never_there_ends_it_quietly(stand_in: list[str]) -> None:
    for args in (["act", "rows"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([*stand_in, *args], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b""), args


def test_a_broken_pipe_elsewhere_is_an_error(act: Callable[..., Ran]) -> None:
    done = act("other-pipe")
    assert (done.code, done.err) == (4, "error: broken pipe\n")


def every_command() -> list[list[str]]:
    """A line of each command that prints or writes to standard output."""
    return [
        ["--version"],
        ["--help"],
        ["ls", "--help"],
        ["ls", "a.tar"],
        ["ls", "a.tar", "--summary"],
        ["ls", "a.tar", "--json"],
        ["verify", "cut.tar"],
        ["verify", "a.tar", "--json"],
        ["index", "a.tar", "--dry-run"],
        ["cat", "a.tar"],
        ["cat", "a.tar", "--to", "jsonl"],
        ["create", "files", "-o", "-"],
        ["split", "a.tar", "-o", "o-%d.tar", "--dry-run"],
        ["merge", "a.tar", "-o", "-"],
        ["shuffle", "a.tar", "-o", "-"],
        ["sort", "a.tar", "-o", "-"],
        ["run", "plan", "--dry-run"],
        ["bench", "a.tar", "--seconds", "0.1"],
    ]


@pytest.fixture(scope="module")
def set_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard, one that is cut, files and a plan."""
    folder = tmp_path_factory.mktemp("one")
    [shard] = write_shards(folder, [numbered(3)])
    os.rename(shard, folder / "a.tar")
    (folder / "cut.tar").write_bytes((folder / "a.tar").read_bytes()[:700])
    (folder / "files").mkdir()
    (folder / "files/a.txt").write_text("a")
    assert wds("split", "a.tar", "-o", "p-%d.tar", "--plan", "plan", cwd=folder).code == 0
    return folder


def redirected(words: list[str], redirection: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """A command as a shell starts it, with some stream led elsewhere."""
    line = f'exec "$0" -m wdscli "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, *words], capture_output=True, cwd=folder, timeout=60
    )


class TestStreamsThatCannotBeUsed:
    """No traceback, whatever standard output and standard error are."""

    @pytest.mark.exhaustive
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    @pytest.mark.parametrize("words", every_command(), ids=" ".join)
    def test_a_full_output(self, words: list[str], set_of_one: Path) -> None:
        done = redirected(words, ">/dev/full", set_of_one)
        assert done.returncode == 4
        errors = [line for line in done.stderr.splitlines() if line.startswith(b"error: ")]
        assert errors == done.stderr.splitlines()[-1:]
        assert b"no space left on device" in errors[0]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("words", every_command(), ids=" ".join)
    def test_a_closed_output(self, words: list[str], set_of_one: Path) -> None:
        done = redirected(words, ">&-", set_of_one)
        assert (done.returncode, done.stderr) == (4, b"error: standard output is closed\n")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "words",
        [["--version"], ["ls", "a.tar"], ["verify", "cut.tar"], ["ls", "no.tar"], ["nope"], []],
        ids=" ".join,
    )
    def test_nobody_to_tell(self, words: list[str], set_of_one: Path) -> None:
        told = redirected(words, "", set_of_one)
        for redirection in ("2>&-", "2>/dev/full"):
            done = redirected(words, redirection, set_of_one)
            assert (done.returncode, done.stdout, done.stderr) == (told.returncode, told.stdout, b"")

    def test_closed_input_is_no_file_that_is_opened_next(self, set_of_one: Path) -> None:
        for words in (["ls", "-"], ["ls", "a.tar", "-"], ["merge", "a.tar", "-", "-o", "-"]):
            done = redirected(words, "<&-", set_of_one)
            assert done.returncode == 4
            assert b"cannot read -: bad file descriptor" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_an_error(stand_in: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*stand_in, "act", "rows"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert done.stderr == "error: cannot write to standard output: no space left on device\n"


def test_closed_standard_output_is_an_error(stand_in: list[str]) -> None:
    command = " ".join([*stand_in, "act", "rows", ">&-"])
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (4, "error: standard output is closed\n")


def test_interrupt_leaves_with_130(stand_in: list[str]) -> None:
    with subprocess.Popen(
        [*stand_in, "act", "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"interrupted\n"
        assert process.wait() == 130


@pytest.mark.parametrize(("error", "code"), [("KeyboardInterrupt", 130), ("SystemExit(143)", 143)])
def test_an_interrupt_that_python_loses_is_heeded(error: str, code: int) -> None:
    """In a finalizer, or in a callback of the import system, it would be printed and forgotten."""
    program = f"""
import sys, time
from wdscli.__main__ import _heed_lost_signals
class Finalized:
    def __del__(self):
        raise {error}
_heed_lost_signals()
Finalized()
try:
    time.sleep(20)
except KeyboardInterrupt:
    sys.exit(130)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=15)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], ["warning: a warning", "a summary"]),
        (["-v"], ["warning: a warning", "a note", "a summary"]),
        (["--quiet"], ["warning: a warning"]),
    ],
)
def test_how_much_is_said(act: Callable[..., Ran], flags: list[str], said: list[str]) -> None:
    told = act("talk", *flags).err.splitlines()
    assert told[: len(said)] == said
    # With -v also what it took.
    assert [line.split()[0] for line in told[len(said) :]] == (["took"] if "-v" in flags else [])


def test_completion_script_and_words() -> None:
    script = run(WDS, "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_WDS_COMPLETE=complete_bash" in script.stdout
    words = run(WDS, _WDS_COMPLETE="complete_bash", COMP_LINE="wds shu", WDSCLI_DEBUG="")
    assert "shuffle" in words.stdout.split()
