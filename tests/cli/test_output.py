"""Where data, messages and progress go, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shard_cases import numbered, tar_of, write_shards
from terminals import on_terminal

from wdscli.cli import output
from wdscli.cli.main import main
from wdscli.cli.options import CommonOptions
from wdscli.cli.output import Out

LOUD = CommonOptions()


@pytest.fixture(autouse=True)
def _close() -> object:
    yield
    output.close()


def said_by(code: str, **environ: str) -> str:
    """What ``code`` writes to a terminal that is its standard output and error, 80 columns wide."""
    code = f"from wdscli.cli import output\nfrom wdscli.cli.output import *\nfrom wdscli.cli.options import *\n{code}"
    command = [sys.executable, "-c", f"{code}\noutput.close()\n"]
    return on_terminal(command, shown="stdout stderr", **{"COLUMNS": "80"} | environ)


def test_rows_in_a_pipe_are_raw_bytes_between_tabs(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = Out(LOUD)
    out.rows(["key", "bytes"], [(b"caf\xe9", 1), ("caf\udce9", 20), ("a\tb\nc\rd", 3), ("\x1b[1m", 4)])
    out.flush()
    assert capfdbinary.readouterr().out == b"caf\xe9\t1\ncaf\xe9\t20\na\\tb\\nc\\rd\t3\n\x1b[1m\t4\n"


def test_rows_on_a_terminal_are_aligned_and_safe() -> None:
    said = said_by(
        'Out(CommonOptions()).rows(["key", "bytes"], [("a\\x1b[1m", 1), (b"caf\\xe9", 20)], right=[1])',
        NO_COLOR="1",
    )
    assert said == "key        bytes\na\\x1b[1m       1\ncaf\\udce9     20\n"


def test_rows_are_bold_and_colours_are_refused_by_no_color() -> None:
    code = 'Out(CommonOptions()).rows(["key"], [("a",)])'
    assert "\x1b[1mkey\x1b[0m" in said_by(code)
    assert "\x1b" not in said_by(code, NO_COLOR="1")


def test_rows_come_at_once_and_later_ones_keep_the_columns() -> None:
    said = said_by(
        'Out(CommonOptions()).rows(["a", "b"], ((("x" * 9 if i == 300 else "x"), i) for i in range(302)))',
        NO_COLOR="1",
    ).splitlines()
    assert said[:2] == ["a  b", "x  0"]
    assert said[-2:] == ["xxxxxxxxx  300", "x          301"]


def test_what_is_held_back_is_written_when_its_time_has_come(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = Out(LOUD)
    out.write(b"first\n")
    assert capfdbinary.readouterr().out == b"first\n"
    out._due = time.monotonic() + 1000
    out.write(b"second\n")
    assert capfdbinary.readouterr().out == b""
    out._due = 0
    out.write(b"third\n")
    assert capfdbinary.readouterr().out == b"second\nthird\n"


def test_objects_are_json_lines_whatever_the_names(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = Out(LOUD, json=True)
    out.object({"key": "é"})
    out.object({"key": "caf\udce9"})
    out.flush()
    lines = capfdbinary.readouterr().out.splitlines()
    assert lines[0] == '{"key":"é"}'.encode()
    assert json.loads(lines[1]) == {"key": "caf\udce9"}


def test_table_in_a_pipe_has_a_header(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = Out(LOUD)
    out.table(["field", "count"], [("jpg", 2)])
    out.flush()
    assert capfdbinary.readouterr().out == b"field\tcount\njpg\t2\n"


def test_table_on_a_terminal_is_ruled() -> None:
    said = said_by('Out(CommonOptions()).table(["field", "n"], [("j\\x1bpg", 2)], right=[1])', NO_COLOR="1")
    assert "─" in said
    assert "j\\x1bpg" in said
    assert "j\x1b" not in said


def test_messages_go_to_standard_error_with_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    Out(LOUD).warn("odd name \x1b[1m")
    assert capfd.readouterr() == ("", "warning: odd name \\x1b[1m\n")


@pytest.mark.parametrize("unit", ["bytes", "samples", "shards", "files"])
def test_progress_asked_for_in_a_pipe_is_a_line(capfd: pytest.CaptureFixture[str], unit: str) -> None:
    bar = Out(CommonOptions(progress=True)).progress()
    bar.start("copying", 2000, unit)
    bar.advance(1500)
    bar.finish()
    said = capfd.readouterr().err
    count = "copying: 1.50 kB of 2.00 kB, " if unit == "bytes" else f"copying: 1.50k of 2.00k {unit}, "
    assert said.startswith(count)
    assert "/s" in said
    assert "left" in said


@pytest.mark.parametrize(
    "options", [CommonOptions(), CommonOptions(progress=False), CommonOptions(quiet=True)], ids=str
)
def test_progress_not_asked_for_in_a_pipe_is_nothing(
    capfd: pytest.CaptureFixture[str], options: CommonOptions
) -> None:
    bar = Out(options).progress()
    bar.start("copying", 2000, "bytes")
    bar.advance(2000)
    bar.finish()
    assert capfd.readouterr().err == ""


BAR = """
out = Out(CommonOptions({options}))
bar = out.progress()
bar.start("copying", 2000, "bytes")
bar._next = 0
bar.advance(1500)
out.warn("above it")
bar.finish()
"""


def test_a_bar_on_a_terminal() -> None:
    said = said_by(BAR.format(options=""))
    assert "copying" in said
    assert "1.50 kB of 2.00 kB" in said
    assert "warning: above it\n" in said


@pytest.mark.parametrize("options", ["quiet=True", "progress=False"])
def test_no_bar_on_a_terminal_when_it_is_not_wanted(options: str) -> None:
    assert said_by(BAR.format(options=options), NO_COLOR="1") == "warning: above it\n"


def test_a_quick_stage_draws_nothing_and_loads_no_rich() -> None:
    code = BAR.format(options="").replace("bar._next = 0\n", "").replace('out.warn("above it")\n', "")
    assert said_by(code + "import sys\nassert 'rich' not in sys.modules") == ""


class Clock:
    """A clock that only goes on when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    return clock


def lines_of(
    clock: Clock, capfd: pytest.CaptureFixture[str], options: CommonOptions
) -> list[tuple[int, str]]:
    """What two stages of 70 seconds each say without a terminal, with the second in which it is said."""
    bar, said = Out(options).progress(), []
    for what in ("reading headers", "writing"):
        bar.start(what, 7_000_000_000, "bytes")
        for _ in range(70):
            clock.now += 1
            bar.advance(100_000_000)
            said += [(int(clock.now) - 1000, line) for line in capfd.readouterr().err.splitlines()]
        bar.finish()
    return said + [(140, line) for line in capfd.readouterr().err.splitlines()]


def test_long_work_without_a_terminal_says_a_line_every_30_seconds(
    clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(clock, capfd, CommonOptions()) == [
        (30, "reading headers: 3.00 GB of 7.00 GB, 100 MB/s, 40.0 s left"),
        (60, "reading headers: 6.00 GB of 7.00 GB, 100 MB/s, 10.0 s left"),
        (90, "writing: 2.00 GB of 7.00 GB, 100 MB/s, 50.0 s left"),
        (120, "writing: 5.00 GB of 7.00 GB, 100 MB/s, 20.0 s left"),
    ]


def test_it_says_nothing_where_that_is_not_wanted_and_more_with_progress(
    clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(clock, capfd, CommonOptions(quiet=True)) == []
    assert lines_of(clock, capfd, CommonOptions(progress=False)) == []
    clock.now = 1000
    assert [second for second, _ in lines_of(clock, capfd, CommonOptions(progress=True))][:3] == [5, 10, 15]


def test_stages_share_one_bar() -> None:
    code = BAR.format(options="").replace(
        "bar.finish()", 'live = bar._live\nbar.start("writing", None, "samples")'
    )
    said = said_by(
        code + "\nbar.advance(7)\nassert bar._live is live\nbar.finish()\nassert bar._live is live\n"
    )
    assert "writing" in said
    assert "7 samples" in said


def test_the_last_line_says_how_long_and_how_fast(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    out = Out(LOUD)
    clock.now += 90
    out.done("wrote 5 samples", 4_500_000_000)
    out.done("compared 5 samples", 0)
    out.done("would write 5 samples", 7, dry_run=True)
    Out(CommonOptions(quiet=True)).done("wrote 5 samples", 1)
    assert capfd.readouterr().err.splitlines() == [
        "wrote 5 samples in 1:30, 50.0 MB/s",
        "compared 5 samples in 1:30",
        "would write 5 samples",
    ]


def test_notes_and_warnings_of_an_operation_obey_the_options(capfd: pytest.CaptureFixture[str]) -> None:
    bar = Out(CommonOptions(verbose=True)).progress()
    bar.note("a note")
    bar.warn("a warning")
    Out(CommonOptions()).progress().note("not this")
    assert capfd.readouterr().err == "a note\nwarning: a warning\n"


def test_verbose_says_more_in_every_command(tmp_path: Path) -> None:
    """Than the same command without, and last what it took."""
    from shard_cases import numbered, wds, write_shards

    from wdscli.cli.commands import COMMANDS

    [shard] = write_shards(tmp_path, [numbered(3)])
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.txt").write_text("a")
    job = {"extension": ".tar", "bck": {"name": "b"}, "output_format": "d-%d", "output_shard_size": "1MB"}
    job["input_format"] = os.path.basename(shard).removesuffix(".tar")
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert wds("split", shard, "-o", "p-%d.tar", "--plan", "plan", cwd=tmp_path).code == 0
    inputs = {
        "create": ["files"],
        "run": ["plan"],
        "diff": [shard, shard],
    }
    outputs = {"verify": [], "ls": [], "diff": [], "index": [], "run": [], "report": ["-o", "-"]}
    more = {"bench": ["--seconds", "0.01"], "map": ["--filter", "cls", "cat"]}
    for name in COMMANDS:
        output = [] if name == "bench" else outputs.get(name, ["-o", f"{name}.tar"])
        ran = wds(
            name,
            *inputs.get(name, [shard]),
            *output,
            *more.get(name, []),
            "-v",
            "--no-progress",
            cwd=tmp_path,
        )
        if ran.code and "pip install" in ran.err:
            continue
        assert ran.code == 0, f"{name}: {ran.err}"
        said = ran.err.splitlines()
        assert said[-1].startswith("took "), name
        assert len(said) >= (2 if name == "report" else 3 if name not in ("ls", "bench") else 2), (
            f"{name}: {said}"
        )


@pytest.mark.parametrize(
    "line", ["shuffle", "split", "sort", "merge", "cat", "map --cmd true", "create", "report"]
)
def test_data_and_json_do_not_share_standard_output(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    [shard] = write_shards(tmp_path, [numbered(2, "a", [10])])
    name, *options = line.split()
    assert main([name, shard, *options, "-o", "-", "--json"]) == 2
    said = capfdbinary.readouterr()
    assert (said.out, b"both write to standard output" in said.err) == (b"", True)


@pytest.mark.parametrize("words", [["ls", "--json"], ["cat", "--to", "jsonl"]])
def test_json_on_a_terminal_has_no_control_characters(tmp_path: Path, words: list[str]) -> None:
    """issue 35, 20: U+009B begins a command of the terminal, and U+202E turns the text around. A pipe gets them."""
    key = "a\u009b31m\u202eä\x7f"
    (tmp_path / "a.tar").write_bytes(tar_of([(f"{key}.txt", key.encode())]))
    command = [sys.executable, "-m", "wdscli", words[0], "a.tar", *words[1:]]
    said = on_terminal(command, cwd=tmp_path)
    assert r"a\u009b31m\u202eä\u007f" in said
    assert not set(said) & set("\u009b\u202e\x7f")
    assert all(json.loads(line) for line in said.splitlines())
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout.decode()
    assert key in piped
    assert [*map(json.loads, piped.splitlines())] == [*map(json.loads, said.splitlines())]
