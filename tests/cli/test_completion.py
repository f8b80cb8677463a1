"""What TAB offers: asked in this process, and of the shells that are here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shard_cases import tar_of, wds

from wdscli.cli import completion
from wdscli.cli.commands import COMMANDS
from wdscli.cli.group import build, load
from wdscli.shards.dialects import DIALECTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set, and one whose names want quotes."""
    folder = tmp_path_factory.mktemp("tab")
    shard = tar_of([("n/0.jpg", b"0"), ("n/0.json", b"{}"), ("n/1.cls", b"1")])
    for name in ("set/train-0.tar", "set/train-1.tar", "odd name/a b.tar"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(shard)
    (folder / "set/notes.txt").write_text("no shard")
    (folder / "t.csv").write_text("id,path,label\n1,a.jpg,cat\n")
    (folder / "t.jsonl").write_text('{"name": "a", "size": 1}\n')
    (folder / "deep").mkdir()
    deep = [("0.cls", b"1"), ("0.json", b'{"size": {"width": 1, "height": 2}}')]
    (folder / "deep/d.tar").write_bytes(tar_of(deep))
    (folder / "set/train-manifest.json").write_text("{}")
    program = folder / "bin" / "wds"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nsys.argv[0] = 'wds'\n"
        "from wdscli.__main__ import main\nmain()\n"
    )
    program.chmod(0o755)
    return folder


@pytest.fixture
def offered(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The values that are offered at the end of a line; None for file names."""
    monkeypatch.chdir(place)

    def call(line: str) -> list[str] | None:
        words, typed, *_ = completion.split_line(line)
        found = completion.candidates(words, typed, build())
        return None if found is None else [one.value for one in found if one.value.startswith(typed)]

    return call


SHARDS = ["set/train-0.tar", "set/train-1.tar", "set/train-manifest.json"]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("wds shu", ["shuffle"]),
        ("wds --vers", ["--version"]),
        ("wds --debug ver", ["verify"]),
        ("wds ls set/", SHARDS),
        ("wds ls set/train-0.tar set/train-1", ["set/train-1.tar"]),
        ("wds ls 'odd name/", ["odd name/a b.tar"]),
        ("wds ls x::set/train-1", ["x::set/train-1.tar"]),
        ("wds diff set o", ["odd name/"]),
        ("wds ls s3://b/", []),
        ("wds ls @", None),
        ("wds create ", None),
        ("wds run ", None),
        ("wds sort set -o ", None),
        ("wds split set --max-count ", []),
        ("wds index --for ", list(DIALECTS)),
        ("wds verify --for=h", ["--for=hf"]),
        ("wds map --on-error k", ["keep"]),
        ("wds create --key-rule ", ["first-dot", "last-dot"]),
        ("wds bench --decoder pi", ["pil", "pill", "pilrgb", "pilrgba", "pilstored"]),
        ("wds shuffle --engine d", ["dask://"]),
        ("wds ls set --fields ", ["cls", "jpg", "json"]),
        ("wds ls set --fields jpg,", ["jpg,cls", "jpg,json"]),
        ("wds ls set/train-0.tar --rename image=j", ["image=jpg", "image=json"]),
        ("wds merge set --dedup k", ["key"]),
        ("wds sort set --by ", ["key", "cls", "jpg", "json"]),
        ("wds map set --filter j", ["jpg", "json"]),
        ("wds map set --filter json ", None),
        ("wds cat set --to raw --fields jpg --keys n/", ["n/0", "n/1", "n/0", "n/1"]),
        ("wds ls nowhere --fields ", []),
        ("wds ls --key", ["--keys", "--keys-from"]),
        ("wds ls --json --json", []),
        ("wds merge --key", ["--key-column", "--keys", "--keys-from"]),
        ("wds nope ", []),
        ("wds create --from t.csv --key-column ", ["id", "path", "label"]),
        ("wds create --from=t.csv --column jpg=@p", ["jpg=@path"]),
        ("wds create --from t.csv --column cls=l", ["cls=label"]),
        ("wds create --from t.csv --column ", []),
        ("wds create --from nowhere.csv --key-column ", []),
        ("wds merge set --table t.jsonl --key-column ", ["name", "size"]),
        ("wds ls set --column j", ["jpg", "json"]),
        ("wds sort deep --by json.s", ["json.size"]),
        ("wds split deep --by json.size.", ["json.size.width", "json.size.height"]),
        ("wds sort deep --by cls.", []),
    ],
)
def test_what_is_offered(offered: Any, line: str, values: list[str] | None) -> None:
    assert offered(line) == values


def test_every_value_of_every_choice_is_offered(offered: Any) -> None:
    tried = 0
    for name in COMMANDS:
        for option in load(name).params:
            if choices := getattr(option.type, "choices", None):
                assert offered(f"wds {name} x {option.opts[0]} ") == list(map(str, choices))
                tried += 1
    assert tried > 20


def test_columns_of_parquet(offered: Any, place: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"url": ["a"], "caption": ["b"]}), place / "p.parquet")
    assert offered("wds create --from p.parquet --column txt=") == ["txt=url", "txt=caption"]


def test_a_folder_of_a_store_is_listed(offered: Any) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("train-0.tar", "train-manifest.json", "notes.txt", "deep.v1/a.tar"):
        memory.pipe(f"/tab/{name}", b"")
    found = ["memory://tab/deep.v1/", "memory://tab/train-0.tar", "memory://tab/train-manifest.json"]
    assert offered("wds ls memory://tab/") == found
    assert offered("wds ls x.tar::memory://tab/d") == ["x.tar::memory://tab/deep.v1/"]
    assert offered("wds ls memory://") == offered("wds ls nope://x/") == offered("wds ls s3://") == []


@pytest.mark.exhaustive
def test_a_store_that_does_not_answer_is_not_waited_for(place: Path) -> None:
    """Neither for its answer nor by Python's end."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
            "_WDS_COMPLETE": "complete_bash",
            "COMP_LINE": "wds ls s3://bucket/x",
        }
        done = subprocess.run([place / "bin/wds"], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_mistake_of_ours_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_WDS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_LINE", "wds ls ")
    monkeypatch.delenv("WDSCLI_DEBUG", raising=False)
    monkeypatch.setattr(completion, "candidates", lambda *_: 1 / 0)
    ran = wds()
    assert (ran.code, ran.out, ran.err) == (1, b"", "")


def test_scripts_of_an_earlier_version_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs for zsh evaluates what it gets."""
    monkeypatch.setenv("_WDS_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "wds l")
    assert wds().out == b""


class TestShells:
    def run(self, place: Path, shell: str, program: str, *args: str) -> list[str]:
        path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [shell, *args, program],
            cwd=place,
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": path},
        )
        return done.stdout.splitlines()

    @pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
    def test_bash(self, place: Path) -> None:
        """Words end where bash ends them: behind = and :, and not behind a blank that is quoted."""

        def tab(line: str) -> str:
            words = f"COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}; _wds_completion wds"
            return f"{words}; printf '%s|' \"${{COMPREPLY[@]}}\"; echo"

        lines = ["wds shu", "wds ls set --fields=jpg,c", r"wds ls odd\ n", "wds ls 'odd n", "wds create o"]
        program = "\n".join([completion.script("bash", "wds"), *map(tab, lines), "complete -p wds"])
        assert self.run(place, "bash", program, "--norc", "-c") == [
            "shuffle|", "jpg,cls|", r"odd\ name/|", "odd name/|", "|", "complete -F _wds_completion wds",
        ]  # fmt: skip

    @pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
    def test_fish(self, place: Path) -> None:
        tabs = "\n".join(f"complete -C {shlex.quote(line)}" for line in ("wds shu", "wds ls set --fields c"))
        program = completion.script("fish", "wds") + tabs
        assert self.run(place, "fish", program, "--no-config", "-c") == [
            f"shuffle\t{COMMANDS['shuffle']}",
            "cls\tfield",
        ]

    @pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
    def test_zsh(self, place: Path) -> None:
        """The function that the completion system calls, with what it calls standing in."""
        stand_ins = "compdef() {}\n_files() { print files }\n_describe() { print -rl -- ${(P)3} }\n"
        tabs = "\n".join(
            f"words=({line}); CURRENT=$#words; _wds_completion"
            for line in ("wds shu", "wds index --for d", "wds create x")
        )
        program = stand_ins + completion.script("zsh", "wds") + tabs
        assert self.run(place, "zsh", program, "-f", "-c") == [
            f"shuffle:{COMMANDS['shuffle']}",
            "dali",
            "files",
        ]


class TestInstalling:
    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "BASH_COMPLETION_USER_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name in (".bashrc", ".zshrc", ".profile"):
            (tmp_path / name).write_text("# mine\n")
        return tmp_path

    @pytest.mark.parametrize(
        ("shell", "file", "more"),
        [
            ("bash", ".local/share/bash-completion/completions/{}", "source "),
            ("zsh", ".local/share/zsh/site-functions/_{}", "fpath+="),
            ("fish", ".config/fish/completions/{}.fish", ""),
        ],
    )
    def test_it_changes_no_file_of_the_user(self, home: Path, shell: str, file: str, more: str) -> None:
        files = [file.format("wds"), file.format("wdscli")]
        for _ in range(2):
            ran = wds("--install-completion", shell)
            assert ran.code == 0, ran.err
            assert all(f"wrote {home / name}" in ran.err for name in files)
            assert more in ran.err
        written = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
        assert written == {".bashrc", ".zshrc", ".profile", *files}
        assert {(home / name).read_text() for name in (".bashrc", ".zshrc", ".profile")} == {"# mine\n"}
        assert (home / files[0]).read_text() == wds("--show-completion", shell).out.decode()

    def test_the_shell_is_found_or_named(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(completion, "current_shell", lambda: "fish")
        assert wds("--show-completion").out.startswith(b"function _wds_completion")
        monkeypatch.setattr(completion, "current_shell", lambda: "tcsh")
        ran = wds("--install-completion")
        assert (ran.code, ran.err) == (
            2,
            "error: there is no completion for tcsh\nhint: write bash, zsh or fish after the option\n",
        )
