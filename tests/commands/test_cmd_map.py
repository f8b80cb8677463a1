"""``wds map``: what becomes of each sample, by every way, and that neither jobs nor engine nor a kill shows in it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from awkward_sets import write_awkward
from dask_cluster import dask_cluster
from shard_cases import (
    Ran,
    assert_true_set,
    by_gnu_tar,
    content,
    keys_of,
    leftovers,
    members_of,
    no_new_files,
    outputs,
    samples_of,
    wds,
    wds_process,
    write_shards,
)
from tiers import EXHAUSTIVE

from wdscli.storage import open_sink

Command = Callable[..., Ran]
pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND = ["map"]
FUNCTIONS = """
import os, pathlib, subprocess, sys

def odd(sample):
    number = int(sample["__key__"][1:])
    return {**sample, "number.cls": number} if number % 2 else None

def two(sample):
    yield {"txt": sample["txt"].decode().upper()}
    yield {"__key__": sample["__key__"] + "-b", "json": {"shard": pathlib.Path(sample["__url__"]).name,
                                                       "index": sample["__index__"]}}

def batch(samples):
    return [{**sample, "n.cls": len(samples)} for sample in samples]

def none(sample):
    return None

def unnamed(samples):
    return [{"txt": "x"}]

def same(sample):
    return {**sample, "__key__": "same"}

def fails(sample):
    if sample["__key__"] == "n3":
        raise ValueError("no good")
    return sample

def odd_value(sample):
    return {"x": object()}

def bad_name(sample):
    return {"a/../b": b""}

def number(sample):
    return 7

class Own(BaseException):
    pass

def raises(error):
    def function(sample):
        if sample["__key__"] == "n3":
            raise error
        return sample
    return function

class Mute(Exception):
    def __str__(self):
        raise ValueError

exits, interrupts, own = raises(SystemExit(0)), raises(KeyboardInterrupt()), raises(Own("no"))
mute = raises(Mute())

def dies(sample):
    if sample["__key__"] == "n3":
        os._exit(0)
    return sample

def says(sample):
    print("heard", sample["__key__"])
    os.system("echo heard too")
    return sample

def reads(sample):
    return {**sample, "in": sys.stdin.read() + subprocess.run("cat", capture_output=True, text=True).stdout}

def leaves(sample):
    os.chdir("/")
    return sample

def nan(sample):
    return {"json": {"x": float("nan")}}

def nan_text(sample):
    return {"json": '{"x": NaN}'}

class Made:
    def method(self, sample):
        return sample

made = Made()
not_a_function = 3
"""


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Three shards of 4, 1 and 3 samples, keys n0 to n7, fields json and txt."""
    numbers = iter(range(8))
    return write_shards(
        tmp_path / "in",
        [
            [
                [(f"n{n}.json", json.dumps({"n": n}).encode()), (f"n{n}.txt", b"text %d" % n)]
                for n in islice(numbers, count)
            ]
            for count in (4, 1, 3)
        ],
    )


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return str(path)


def fields(folder: Path, key: str) -> dict[str, bytes]:
    """The fields of one sample of the output."""
    for path in outputs(folder):
        for found, members in samples_of(path):
            if found == key:
                return dict(members)
    raise KeyError(key)


class TestACommand:
    def test_what_the_folder_holds_then_is_the_sample(
        self, good: Command, texts: list[str], tmp_path: Path
    ) -> None:
        command = "cat sample.json sample.txt > sample.both; rm sample.txt; echo seen"
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--cmd", command)
        names = [name for path in outputs(tmp_path) for name, _ in members_of(path)]
        assert names == [f"n{n}.{field}" for n in range(8) for field in ("json", "both")]
        assert fields(tmp_path, "n5")["both"] == b'{"n": 5}text 5'
        assert_true_set(tmp_path)

    def test_the_bytes_are_those_of_gnu_tar(self, good: Command, tmp_path: Path) -> None:
        given = write_shards(tmp_path / "in", [[[("a.txt", b"one")], [("b.txt", b"two")]]])
        good(*given, "-o", tmp_path / "out.tar", "--cmd", "wc -c < sample.txt > sample.len")
        members = [("a.txt", b"one"), ("a.len", b"3\n"), ("b.txt", b"two"), ("b.len", b"3\n")]
        assert (tmp_path / "out.tar").read_bytes() == by_gnu_tar(tmp_path, members)

    def test_an_empty_folder_drops_the_sample(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        ran = good(
            *texts, "-o", tmp_path / "out-%06d.tar", "--cmd", "case $WDS_KEY in n[2-6]) rm sample.*;; esac"
        )
        assert keys_of(*outputs(tmp_path)) == ["n0", "n1", "n7"]
        assert "left out 5 samples" in ran.err

    def test_what_it_finds_in_its_environment(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        command = 'printf "%s|%s|%s|%s" "$WDS_KEY" "$WDS_SHARD" "$WDS_INDEX" "$WDS_PWD" > sample.env'
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--cmd", command)
        found = fields(tmp_path, "n6")["env"].decode().split("|")
        assert found == ["n6", texts[2], "1", os.getcwd()]

    def test_several_of_one(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        command = "for n in 000000 000001; do cp sample.txt sample-$n.txt; done; rm sample.*"
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--multi", "--cmd", command)
        assert keys_of(*outputs(tmp_path)) == [f"n{n}-00000{i}" for n in range(8) for i in (0, 1)]
        assert_true_set(tmp_path)

    def test_several_need_multi(self, run: Command, texts: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--cmd", "cp sample.txt sample-1.txt")
        assert ran.code == 5
        assert "sample-1.txt" in ran.err
        assert "sample.FIELD" in ran.err

    def test_samples_by_the_batch(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        command = 'set -- sample-*; echo $# > sample-000000.count; echo "$WDS_KEY" > sample-000000.keys'
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--batch", 3, "--cmd", command)
        assert keys_of(*outputs(tmp_path)) == [f"n{n}" for n in range(8)]
        # A call begins anew with each shard.
        counts = {n: fields(tmp_path, f"n{n}")["keys"].decode().split() for n in (0, 3, 4, 5)}
        assert counts == {0: ["n0", "n1", "n2"], 3: ["n3"], 4: ["n4"], 5: ["n5", "n6", "n7"]}
        assert fields(tmp_path, "n0")["count"] == b"6\n"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("command", "said"),
        [
            ("echo oh; echo dear >&2; exit 3", "status 3: oh | dear"),
            ("kill -9 $$", "signal 9"),
            ("mkdir x", "the command wrote x, which is not a file"),
            ("ln -s sample.txt sample.link", "the command wrote sample.link"),
            ("cp sample.txt readme", "the command wrote the unexpected file readme"),
            ('rm -r "$PWD"', "cannot read the command's files: No such file or directory"),
        ],
    )
    def test_one_that_fails(
        self, run: Command, texts: list[str], tmp_path: Path, command: str, said: str
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--cmd", command)
        assert ran.code == 5
        assert 'cannot transform sample "n0" of' in ran.err
        assert said in ran.err

    def test_what_it_leaves_running_ends(self, run: Command, texts: list[str], tmp_path: Path) -> None:
        mark = f"3{os.getpid()}.5"
        ran = run(
            *texts,
            "-o",
            tmp_path / "out-%06d.tar",
            "--timeout",
            "0.2",
            "--cmd",
            f"sleep {mark} & sleep {mark}",
        )
        assert ran.code == 5
        assert "took more than 0.2 s" in ran.err
        assert not subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True).stdout

    def test_a_child_that_goes_on_does_not_hold_it(
        self, good: Command, texts: list[str], tmp_path: Path
    ) -> None:
        mark = f"4{os.getpid()}.5"
        good(*texts[:1], "-o", tmp_path / "out-%06d.tar", "--cmd", f"sleep {mark} &")
        assert not subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True).stdout


class TestAFilter:
    def test_one_field_goes_through(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "tr a-z A-Z")
        assert fields(tmp_path, "n4") == {"json": b'{"n": 4}', "txt": b"TEXT 4"}

    def test_nothing_changes_nothing(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "cat")
        good_split = wds("split", *texts, "-o", tmp_path / "cut-%06d.tar", "--max-count", 4)
        assert good_split.code == 0
        assert outputs(tmp_path)[0].read_bytes() == (tmp_path / "cut-000000.tar").read_bytes()

    def test_a_field_that_is_nowhere(self, run: Command, texts: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "jpg", "cat")
        assert ran.code == 3
        assert "no sample has jpg for --filter" in ran.err

    def test_samples_without_the_field_stay(self, good: Command, tmp_path: Path) -> None:
        given = write_shards(tmp_path / "in", [[[("a.txt", b"one")], [("b.cls", b"2")]]])
        good(*given, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "rev | tr -d '\\n'")
        assert members_of(outputs(tmp_path)[0]) == [("a.txt", b"eno"), ("b.cls", b"2")]

    def test_one_that_reads_nothing(self, good: Command, tmp_path: Path) -> None:
        given = write_shards(tmp_path / "in", [[[("a.txt", b"x" * 1_000_000)]]])
        good(*given, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "echo hi")
        assert members_of(outputs(tmp_path)[0]) == [("a.txt", b"hi\n")]


class TestAFunction:
    def test_a_dictionary_or_nothing(
        self, good: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:odd")
        assert keys_of(*outputs(tmp_path)) == ["n1", "n3", "n5", "n7"]
        assert fields(tmp_path, "n3") == {"json": b'{"n": 3}', "txt": b"text 3", "number.cls": b"3"}

    def test_several(self, good: Command, texts: list[str], functions: str, tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:two")
        assert keys_of(*outputs(tmp_path))[:3] == ["n0-000000", "n0-b", "n1-000000"]
        assert fields(tmp_path, "n6-000000") == {"txt": b"TEXT 6"}
        assert json.loads(fields(tmp_path, "n6-b")["json"]) == {"shard": Path(texts[2]).name, "index": 1}

    def test_by_the_batch(self, good: Command, texts: list[str], functions: str, tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:batch", "--batch", 3)
        assert [fields(tmp_path, f"n{n}")["n.cls"] for n in (0, 2, 3, 4, 7)] == [b"3", b"3", b"1", b"1", b"3"]

    @pytest.mark.exhaustive
    def test_one_of_a_module_beside(self, texts: list[str], functions: str, tmp_path: Path) -> None:
        out = tmp_path / "out-%06d.tar"
        ran = wds_process("map", *texts, "-o", out, "--python", "functions:made.method", "-j2", cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert len(keys_of(*outputs(tmp_path))) == 8

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("fails", 'cannot transform sample "n3" of'),
            ("fails", "ValueError: no good"),
            ("fails", "functions.py, line 27"),
            ("odd_value", "field x: there is no encoder for object as x"),
            ("bad_name", "unsafe name"),
            ("number", "it returned a int"),
            ("same", 'the key "same" is made twice'),
        ],
    )
    def test_one_that_is_no_good(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path, name: str, said: str
    ) -> None:
        ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:{name}")
        assert ran.code in (3, 5)
        assert said in ran.err
        assert not (tmp_path / "out-manifest.json").exists()

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ("{'cls': None}", "field cls: None is not a number\nhint: leave the field out"),
            (
                "{'cls': 'cat'}",
                "field cls: 'cat' is not a whole number\nhint: write the number of a class; `wds create",
            ),
            (
                "{'x.wav': '/data/x.wav'}",
                "field x.wav: '/data/x.wav' is text, not wav\nhint: write the content",
            ),
            ("{'cls': 3.0, 'id': 'x.wav' == ''}", "field id: False is not a number"),
        ],
    )
    def test_values_that_no_reader_decodes(
        self, run: Command, texts: list[str], tmp_path: Path, value: str, said: str
    ) -> None:
        """Issue 35, points 3 and 4."""
        (tmp_path / "f.py").write_text(f"def f(sample):\n    return {value}\n")
        ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{tmp_path}/f.py:f")
        assert ran.code == 5
        assert 'cannot transform sample "n0" of' in ran.err
        assert said in ran.err

    def test_a_batch_that_names_nothing(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:unnamed", "--batch", 2)
        assert ran.code == 5
        assert "has no __key__" in ran.err

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ("functions", "has no function"),
            ("nowhere:f", "cannot import nowhere"),
            ("{}:twoo", "did you mean two?"),
            ("{}:not_a_function", "is not a function"),
            ("missing.py:f", "cannot import missing.py"),
        ],
    )
    def test_one_that_is_not_there(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path, spec: str, said: str
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", spec.format(functions))
        assert ran.code == 2
        assert said in ran.err

    def test_keys_of_two_shards_that_collide(self, run: Command, texts: list[str], tmp_path: Path) -> None:
        (tmp_path / "f.py").write_text("def f(s): return {**s, '__key__': 'k%d' % s['__index__']}")
        ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{tmp_path}/f.py:f")
        assert ran.code == 3
        assert 'the key "k0" is made twice' in ran.err
        assert not (tmp_path / "out-manifest.json").exists()


class TestAFunctionInAProcessOfItsOwn:
    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("jobs", [1, 2])
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("exits", "SystemExit: 0"),
            ("interrupts", "KeyboardInterrupt"),
            ("own", "Own: no"),
            ("mute", "Mute"),
        ],
    )
    def test_whatever_it_raises_is_a_failure(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path, name: str, said: str, jobs: int
    ) -> None:
        out = tmp_path / "out-%06d.tar"
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", out, "--python", f"{functions}:{name}", "-j", jobs)
        assert ran.code == 5
        assert f'cannot transform sample "n3" of {texts[0]} with --' in ran.err
        assert f": {said}" in ran.err
        ran = run(*texts, "-o", out, "--python", f"{functions}:{name}", "-j", jobs, "--on-error", "skip")
        assert ran.code == 0
        assert keys_of(*outputs(tmp_path)) == ["n0", "n1", "n2", "n4", "n5", "n6", "n7"]

    @pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
    def test_one_that_ends_its_process(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path, jobs: int
    ) -> None:
        tmp = tmp_path / "scratch"
        tmp.mkdir()
        out = tmp_path / "out-%06d.tar"
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", out, "--python", f"{functions}:dies", "-j", jobs, "--tmp", tmp)
        assert ran.code == 5
        assert f'a worker process ended abruptly at sample "n3" of {texts[0]}\n' in ran.err

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("raise SystemExit(0)", "cannot import {}: SystemExit: 0"),
            ("raise KeyboardInterrupt", "cannot import {}: KeyboardInterrupt\n"),
            ("import os; os._exit(0)", "its process ended while the module was imported"),
        ],
    )
    @pytest.mark.parametrize("more", [(), ("-n",)])
    def test_a_module_that_ends_its_process(
        self, run: Command, texts: list[str], tmp_path: Path, text: str, said: str, more: tuple[str, ...]
    ) -> None:
        (tmp_path / "bad.py").write_text(text)
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{tmp_path}/bad.py:f", *more)
        assert ran.code == 2
        assert said.format(f"{tmp_path}/bad.py") in ran.err

    def test_what_it_prints_is_not_among_the_data(
        self, good: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        ran = good(*texts, "-o", "-", "--python", f"{functions}:says")
        assert ran.out == good(*texts, "-o", "-", "--filter", "txt", "cat").out
        assert ran.err.count("heard n") == ran.err.count("heard too") == 8

    @pytest.mark.exhaustive
    def test_what_it_reads_is_not_the_data(self, texts: list[str], functions: str, tmp_path: Path) -> None:
        out = tmp_path / "out.tar"
        data = Path(texts[0]).read_bytes()
        ran = wds_process("map", "-", "-o", out, "--python", f"{functions}:reads", "-j1", stdin=data)
        assert ran.code == 0, ran.err
        assert [dict(members)["in"] for _, members in samples_of(out)] == [b""] * 4

    def test_one_that_leaves_its_folder(
        self, good: Command, texts: list[str], tmp_path: Path, functions: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        given = [os.path.relpath(one, tmp_path) for one in texts]
        good(*given, "-o", "out-%06d.tar", "--python", f"{functions}:leaves", "-j1")
        assert len(keys_of(*outputs(tmp_path))) == 8

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", ["nan", "nan_text"])
    def test_numbers_that_json_does_not_have(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path, name: str
    ) -> None:
        ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:{name}")
        assert ran.code == 5
        assert "field json: " in ran.err

    def test_a_module_beside_the_file(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        (tmp_path / "beside_it.py").write_text("def up(s): return {**s, 'txt': s['txt'].upper()}")
        (tmp_path / "file.py").write_text("from beside_it import up")
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--python", f"{tmp_path}/file.py:up")
        assert fields(tmp_path, "n1")["txt"] == b"TEXT 1"

    @pytest.mark.exhaustive
    def test_of_shards_that_only_this_process_has(
        self, good: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        name = f"memory://{tmp_path.name}/in.tar"
        with open_sink(name) as sink:
            sink.write(Path(texts[0]).read_bytes())
        good(name, "-o", tmp_path / "out-%06d.tar", "--python", f"{functions}:odd", "-j", 2)
        assert keys_of(*outputs(tmp_path)) == ["n1", "n3"]

    @pytest.mark.exhaustive
    def test_one_that_will_not_end(self, texts: list[str], tmp_path: Path) -> None:
        (tmp_path / "f.py").write_text(ENDLESS)
        command = [
            "map",
            *texts,
            "-o",
            str(tmp_path / "out-%06d.tar"),
            "-j1",
            "--python",
            f"{tmp_path}/f.py:f",
        ]
        program = "import sys, wdscli.executors.local as local; local.PATIENCE_SECONDS = 600"
        program += "; from wdscli.cli.main import main; sys.exit(main(sys.argv[1:]))"
        with subprocess.Popen([sys.executable, "-c", program, *command], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == b"begun\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        assert process.returncode == 130
        assert b"Traceback" not in said
        assert not outputs(tmp_path)


ENDLESS = """
import time
def f(sample):
    print("begun")
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass
"""


class TestPictures:
    @pytest.fixture
    def pictures(self, tmp_path: Path) -> list[str]:
        """300 x 200, grey with transparency 64 x 64, one turned by EXIF, and one that is broken."""
        image = pytest.importorskip("PIL.Image")

        def saved(picture: Any, form: str, **more: Any) -> bytes:
            stream = io.BytesIO()
            picture.save(stream, form, **more)
            return stream.getvalue()

        wide = image.radial_gradient("L").resize((300, 200)).convert("RGB")
        turned = image.Exif()
        turned[0x0112] = 6
        return write_shards(
            tmp_path / "in",
            [
                [
                    [("a.jpg", saved(wide, "JPEG")), ("a.cls", b"1")],
                    [("b.png", saved(image.new("LA", (64, 64), (10, 0)), "PNG"))],
                    [("c.left.JPEG", saved(wide, "JPEG", exif=turned))],
                ]
            ],
        )

    def sizes(self, folder: Path) -> dict[str, Any]:
        from PIL import Image

        found = {}
        for name, payload in members_of(outputs(folder)[0]):
            if not name.endswith("cls"):
                picture = Image.open(io.BytesIO(payload))
                found[name] = (picture.format, picture.mode, picture.size)
        return found

    @pytest.mark.parametrize(
        ("options", "wanted"),
        [
            ([], [("JPEG", "RGB", (75, 50)), ("PNG", "LA", (50, 50)), ("JPEG", "RGB", (50, 75))]),
            (
                ["--resize", "keep_ratio_largest"],
                [("JPEG", "RGB", (50, 33)), ("PNG", "LA", (50, 50)), ("JPEG", "RGB", (33, 50))],
            ),
            (
                ["--resize", "center_crop"],
                [("JPEG", "RGB", (50, 50)), ("PNG", "LA", (50, 50)), ("JPEG", "RGB", (50, 50))],
            ),
            (
                ["--resize", "border"],
                [("JPEG", "RGB", (50, 50)), ("PNG", "LA", (50, 50)), ("JPEG", "RGB", (50, 50))],
            ),
        ],
    )
    def test_every_mode(
        self, good: Command, pictures: list[str], tmp_path: Path, options: list[str], wanted: Any
    ) -> None:
        good(*pictures, "-o", tmp_path / "out-%06d.tar", "--resize", 50, *options)
        assert self.sizes(tmp_path) == dict(zip(["a.jpg", "b.png", "c.left.JPEG"], wanted, strict=True))

    def test_another_format_and_quality(self, good: Command, pictures: list[str], tmp_path: Path) -> None:
        good(*pictures, "-o", tmp_path / "out-%06d.tar", "--resize", 40, "--format", "jpg:30")
        assert list(self.sizes(tmp_path)) == ["a.jpg", "b.jpg", "c.left.JPEG"]
        low = sum(path.stat().st_size for path in outputs(tmp_path))
        good(*pictures, "-o", tmp_path / "out-%06d.tar", "--resize", 40, "--format", "jpg", "--force")
        assert sum(path.stat().st_size for path in outputs(tmp_path)) > low

    def test_transparency_becomes_white(self, good: Command, pictures: list[str], tmp_path: Path) -> None:
        from PIL import Image

        good(*pictures, "-o", tmp_path / "out-%06d.tar", "--format", "jpg")
        payload = dict(members_of(outputs(tmp_path)[0]))["b.jpg"]
        assert Image.open(io.BytesIO(payload)).getpixel((30, 30)) == (255, 255, 255)

    def test_smaller_ones_stay_byte_for_byte(
        self, good: Command, pictures: list[str], tmp_path: Path
    ) -> None:
        good(*pictures, "-o", tmp_path / "out-%06d.tar", "--resize", 100, "--resize", "shrink")
        before, after = dict(members_of(pictures[0])), dict(members_of(outputs(tmp_path)[0]))
        assert after["b.png"] == before["b.png"]
        assert self.sizes(tmp_path)["a.jpg"] == ("JPEG", "RGB", (150, 100))

    def test_values_above_255_stay_or_are_an_error(self, run: Command, tmp_path: Path) -> None:
        """To Pillow's own conversion all that is above 255 is white."""
        image = pytest.importorskip("PIL.Image")
        samples = []
        for key, mode, form, value in (
            ("a.png", "I;16", "PNG", 32768),
            ("b.tif", "I;16", "TIFF", 300),
            ("c.tif", "F", "TIFF", 0.5),
        ):
            stream = io.BytesIO()
            image.new(mode, (40, 40), value).save(stream, form)
            samples.append([(key, stream.getvalue())])
        shards = write_shards(tmp_path / "in", [samples])
        options = [*shards, "-o", tmp_path / "out-%06d.tar", "--resize", 20]

        def pixels() -> dict[str, Any]:
            members = members_of(outputs(tmp_path)[0])
            return {name: image.open(io.BytesIO(data)).getpixel((3, 3)) for name, data in members}

        assert run(*options).code == 0
        assert pixels() == {"a.png": 32768, "b.tif": 300, "c.tif": 0.5}
        ran = run(*options, "--format", "png", "--force")
        assert ran.code == 3
        assert 'PNG cannot hold floats in member "c.tif"' in ran.err
        assert run(*options, "--format", "png", "--force", "--on-error", "skip").code == 0
        assert pixels() == {"a.png": 32768, "b.png": 300}
        for form in ("jpg", "webp"):
            ran = run(*options, "--format", form, "--force")
            assert ran.code == 3
            assert 'cannot hold gray of 16 bits in member "a.png"' in ran.err
            assert "--only" in ran.err
        assert run(*options, "--format", "jpg", "--force", "--on-error", "keep").code == 0
        assert pixels() == {"a.png": 32768, "b.tif": 300, "c.tif": 0.5}

    def test_one_that_is_broken(self, run: Command, pictures: list[str], tmp_path: Path) -> None:
        broken = write_shards(tmp_path / "broken", [[[("x.jpg", b"no picture")]]])
        ran = run(*pictures, *broken, "-o", tmp_path / "out-%06d.tar", "--resize", 20)
        assert ran.code == 3
        assert (
            'cannot resize the picture: it is not an image of a supported format in member "x.jpg"' in ran.err
        )
        options = ["-o", tmp_path / "piped.tar", "--format", "png"]
        piped = wds("map", "-", *options, stdin=Path(broken[0]).read_bytes())
        assert piped.code == 3
        assert "cannot encode the picture" in piped.err
        assert 'member "x.jpg" in standard input' in piped.err
        ran = run(
            *pictures,
            *broken,
            "-o",
            tmp_path / "out-%06d.tar",
            "--resize",
            20,
            "--on-error",
            "skip",
            "--force",
        )
        assert ran.code == 0
        assert "failed 1" in ran.err


class TestMasks:
    """Pictures whose numbers are classes, depths or bits, next to a photo (issue 35)."""

    @pytest.fixture
    def masks(self, tmp_path: Path) -> list[str]:
        numpy = pytest.importorskip("numpy")
        image = pytest.importorskip("PIL.Image")
        classes = numpy.zeros((64, 64), "uint8")
        classes[:, 21:], classes[:, 43:] = 7, 200
        indexed = image.fromarray(classes)
        indexed.putpalette([level for index in range(256) for level in (index, 255 - index, 9)])
        depth = numpy.arange(4096, dtype="uint16").reshape(64, 64) * 15
        pictures = {
            "jpg": (image.radial_gradient("L").resize((64, 64)).convert("RGB"), "JPEG"),
            "lab.png": (image.fromarray(classes), "PNG"),
            "seg.png": (indexed, "PNG"),
            "bit.png": (image.fromarray(classes > 5), "PNG"),
            "depth.png": (image.fromarray(depth), "PNG"),
            "dem.tif": (image.fromarray(depth.astype("float32")), "TIFF"),
        }
        members = []
        for field, (picture, form) in pictures.items():
            stream = io.BytesIO()
            picture.save(stream, form)
            members.append((f"a.{field}", stream.getvalue()))
        return write_shards(tmp_path / "in", [[members]])

    def values(self, shard: Path | str, kind: str = "") -> dict[str, Any]:
        """Format, mode, size and values by member, of the members whose name ends in ``kind``."""
        import numpy
        from PIL import Image

        found = {}
        for name, payload in members_of(shard):
            if not name.endswith(kind):
                continue
            picture = Image.open(io.BytesIO(payload))
            found[name] = (
                picture.format,
                picture.mode,
                picture.size,
                set(numpy.asarray(picture).ravel().tolist()),
            )
        return found

    def test_several_pictures_need_a_choice(self, run: Command, masks: list[str], tmp_path: Path) -> None:
        for options in (["--resize", 32], ["--format", "jpg"]):
            ran = run(*masks, "-o", tmp_path / "out-%06d.tar", *options)
            assert ran.code == 2
            assert 'sample "a" of ' in ran.err
            assert "one may be a mask: jpg, lab.png, seg.png, bit.png, depth.png, dem.tif" in ran.err
            assert "--only jpg" in ran.err
            assert not outputs(tmp_path)

    def test_photos_need_none(self, good: Command, masks: list[str], tmp_path: Path) -> None:
        photos = [(f"a.{field}", dict(members_of(masks[0]))["a.jpg"]) for field in ("jpg", "left.jpg")]
        shards = write_shards(tmp_path / "photos", [[photos]])
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--resize", 16)
        assert [size for _, _, size, _ in self.values(outputs(tmp_path)[0]).values()] == [(16, 16)] * 2

    @pytest.mark.parametrize("options", [["--resize", 32], ["--format", "webp"]])
    def test_only_some_fields(
        self, good: Command, masks: list[str], tmp_path: Path, options: list[Any]
    ) -> None:
        before = dict(members_of(masks[0]))
        good(*masks, "-o", tmp_path / "out-%06d.tar", *options, "--only", "jpg")
        after = dict(members_of(outputs(tmp_path)[0]))
        assert [payload for name, payload in after.items() if name not in ("a.jpg", "a.webp")] == [
            before[name] for name in before if name != "a.jpg"
        ]
        assert before["a.jpg"] not in after.values()

    def test_each_keeps_its_values(self, good: Command, masks: list[str], tmp_path: Path) -> None:
        before = self.values(masks[0])
        options = ["--resize", "32,nearest=lab.png", "--only", "*"]
        ran = good(*masks, "-o", tmp_path / "out-%06d.tar", *options)
        after = self.values(outputs(tmp_path)[0])
        assert "changed" not in ran.err
        for name, (form, mode, size, values) in after.items():
            assert (form, mode, size) == (*before[name][:2], (32, 32))
            assert values <= before[name][3] or name == "a.jpg"
        assert after["a.lab.png"][3] == after["a.seg.png"][3] == {0, 7, 200}
        assert len(after["a.depth.png"][3]) == len(after["a.dem.tif"][3]) == 1024

    def test_photo_and_mask_in_one_run(self, good: Command, masks: list[str], tmp_path: Path) -> None:
        shards = write_shards(tmp_path / "pair", [[members_of(masks[0])[:2]]])
        options = ["--resize", "32,center_crop,nearest=lab.png", "--format", "webp"]
        good(*shards, "-o", tmp_path / "out-%06d.tar", *options)
        after = self.values(outputs(tmp_path)[0])
        assert [(name, *picture[:3]) for name, picture in after.items()] == [
            ("a.webp", "WEBP", "RGB", (32, 32)),
            ("a.lab.png", "PNG", "L", (32, 32)),
        ]
        assert after["a.lab.png"][3] == {0, 7, 200}

    def test_border_pads_with_white_or_the_next_colour(
        self, good: Command, masks: list[str], tmp_path: Path
    ) -> None:
        from PIL import Image

        good(
            *masks,
            "-o",
            tmp_path / "out-%06d.tar",
            "--resize",
            "20,border",
            "--only",
            "bit.png,seg.png,depth.png",
        )
        after = dict(members_of(outputs(tmp_path)[0]))
        assert Image.open(io.BytesIO(after["a.seg.png"])).mode == "P"
        assert self.values(outputs(tmp_path)[0])["a.seg.png"][3] <= {0, 7, 200, 255}

    def test_a_change_of_mode_is_said_once(self, good: Command, masks: list[str], tmp_path: Path) -> None:
        members = members_of(masks[0])
        samples = [[(f"{key}{name[1:]}", payload) for name, payload in members] for key in "abc"]
        shards = write_shards(tmp_path / "three", [samples])
        ran = good(
            *shards, "-o", tmp_path / "out-%06d.tar", "--format", "webp", "--only", "seg.png,bit.png,lab.png"
        )
        said = [line for line in ran.err.splitlines() if "changed from" in line]
        assert sorted(said) == [
            "warning: field bit.png: 3 pictures changed from 1 bit to RGB",
            "warning: field lab.png: 3 pictures changed from gray to RGB",
            "warning: field seg.png: 3 pictures changed from a palette to RGB",
        ]

    def test_palettes_and_bits_become_lossless_webp(
        self, good: Command, masks: list[str], tmp_path: Path
    ) -> None:
        from PIL import Image

        good(*masks, "-o", tmp_path / "out-%06d.tar", "--format", "webp", "--only", "seg.png,bit.png")
        before, after = dict(members_of(masks[0])), dict(members_of(outputs(tmp_path)[0]))
        for field in ("seg", "bit"):
            old, new = (
                Image.open(io.BytesIO(payload)).convert("RGB")
                for payload in (before[f"a.{field}.png"], after[f"a.{field}.webp"])
            )
            assert old.tobytes() == new.tobytes()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--resize", 9, "--only", "jpg,sge.png"], "--only"),
            (["--resize", "9,nearest=sge.png", "--only", "jpg"], "--resize nearest"),
        ],
    )
    def test_a_field_that_no_sample_has(
        self, run: Command, masks: list[str], tmp_path: Path, options: list[Any], said: str
    ) -> None:
        ran = run(*masks, "-o", tmp_path / "out-%06d.tar", *options)
        assert ran.code == 3
        assert f"no sample has sge.png for {said}" in ran.err

    def test_a_renamed_field_has_its_new_name(
        self, run: Command, good: Command, masks: list[str], tmp_path: Path
    ) -> None:
        options = [*masks, "-o", tmp_path / "out-%06d.tar", "--resize", 9, "--rename", "photo.jpg=jpg"]
        assert 'no sample has a picture "jpg"' in run(*options, "--only", "jpg").err
        good(*options, "--only", "photo.jpg", "--force")
        assert self.values(outputs(tmp_path)[0])["a.photo.jpg"][2] == (9, 9)

    def test_pictures_that_pillow_only_reads(self, good: Command, run: Command, tmp_path: Path) -> None:
        """A format that map does not write is read, and written in another format; it was left out without a word."""
        image = pytest.importorskip("PIL.Image")
        stream = io.BytesIO()
        image.new("RGB", (20, 20), (1, 2, 3)).save(stream, "TGA")
        shards = write_shards(tmp_path / "tga", [[[("a.tga", stream.getvalue()), ("a.cls", b"1")]]])
        ran = good(*shards, "-o", tmp_path / "out-%06d.tar", "--resize", 9)
        assert members_of(outputs(tmp_path)[0]) == members_of(shards[0])
        assert "field tga: 1 picture unchanged, because wds map cannot write tga" in ran.err
        good(*shards, "-o", tmp_path / "out-%06d.tar", "--resize", 9, "--format", "png", "--force")
        assert self.values(outputs(tmp_path)[0], "png") == {"a.png": ("PNG", "RGB", (9, 9), {1, 2, 3})}
        ran = run(*shards, "-o", tmp_path / "out-%06d.tar", "--resize", 9, "--only", "cls", "--force")
        assert 'no sample has a picture "cls"' in ran.err

    def test_a_plan_has_the_options(self, good: Command, masks: list[str], tmp_path: Path) -> None:
        options = ["--resize", "32,nearest=lab.png", "--only", "lab.png,seg.png", "--format", "webp"]
        good(*masks, "-o", tmp_path / "out-%06d.tar", *options)
        plan = tmp_path / "map.wdsplan"
        good(*masks, "-o", tmp_path / "planned-%06d.tar", *options, "--plan", plan)
        ran = wds("run", plan)
        assert ran.code == 0
        assert "field seg.png: 1 picture changed from a palette to RGB" in ran.err
        one, two = (
            json.loads((tmp_path / f"{name}-manifest.json").read_bytes()) for name in ("out", "planned")
        )
        assert one["wdscli"]["fingerprint"] == two["wdscli"]["fingerprint"]
        assert one["wdscli"]["made"]["options"]["only"] == "lab.png,seg.png"
        assert one["wdscli"]["made"]["options"]["nearest"] == "lab.png"

    @pytest.mark.parametrize("orientation", [3, 6, 8])
    def test_pictures_of_a_sample_are_turned_together_or_not_at_all(
        self, good: Command, tmp_path: Path, orientation: int
    ) -> None:
        """A turned photo no longer fits its mask. A photo that is alone, or photos of one camera, are turned."""
        image = pytest.importorskip("PIL.Image")

        def saved(form: str, **how: Any) -> bytes:
            stream = io.BytesIO()
            picture = image.new("RGB", (64, 32))
            picture.paste((255, 255, 255), (0, 0, 32, 32))
            picture.save(stream, form, **how)
            return stream.getvalue()

        exif = image.Exif()
        exif[0x0112] = orientation
        photo, mask = saved("JPEG", exif=exif), saved("PNG")
        samples = [
            [("a.jpg", photo), ("a.png", mask)],
            [("b.jpg", photo)],
            [("c.left.jpg", photo), ("c.right.jpg", photo)],
        ]
        shards = write_shards(tmp_path / "in", [samples])
        upright = (16, 32) if orientation in (6, 8) else (32, 16)
        for options, untouched in (
            (["--resize", "16,nearest=png"], False),
            (["--resize", 16, "--only", "*jpg"], True),
            (["--resize", 16, "--only", "*jpg", "--format", "webp"], True),
        ):
            good(*shards, "-o", tmp_path / "out-%06d.tar", *options, "--force")
            pictures = {
                name.rpartition(".")[0]: image.open(io.BytesIO(payload))
                for name, payload in members_of(outputs(tmp_path)[0])
                if not name.endswith("png")
            }
            mask_size = image.open(io.BytesIO(dict(members_of(outputs(tmp_path)[0]))["a.png"])).size
            assert {key: (one.size, one.getexif().get(0x0112, 1)) for key, one in pictures.items()} == {
                "a": ((32, 16), orientation),
                "b": (upright, 1),
                "c.left": (upright, 1),
                "c.right": (upright, 1),
            }
            assert mask_size == ((64, 32) if untouched else (32, 16))
            assert pictures["a"].convert("L").getpixel((3, 3)) > 200


class TestFailures:
    FAILS = "test $WDS_KEY != n3 -a $WDS_KEY != n4; exit $?"

    def test_they_are_left_out_and_counted(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        ran = good(
            *texts, "-o", tmp_path / "out-%06d.tar", "--cmd", self.FAILS, "--on-error", "skip", "--json"
        )
        assert keys_of(*outputs(tmp_path)) == ["n0", "n1", "n2", "n5", "n6", "n7"]
        assert ran.objects[-1]["dropped"] == {"failed": 2}
        assert 'cannot transform sample "n3" of ' in ran.err

    def test_or_kept_as_they_were(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        command = f"rm sample.json; {self.FAILS}"
        ran = good(*texts, "-o", tmp_path / "out-%06d.tar", "--cmd", command, "--on-error", "keep")
        assert fields(tmp_path, "n3") == {"json": b'{"n": 3}', "txt": b"text 3"}
        assert fields(tmp_path, "n5") == {"txt": b"text 5"}
        assert "kept 2 samples" in ran.err

    def test_skip_saves_what_is_whole_of_a_broken_shard(
        self, run: Command, texts: list[str], tmp_path: Path
    ) -> None:
        data = Path(texts[0]).read_bytes()
        Path(texts[0]).write_bytes(data[:5000])
        out = tmp_path / "out-%06d.tar"
        assert run(*texts, "-o", out, "--filter", "txt", "cat").code == 3
        assert run(*texts, "-o", out, "--filter", "txt", "cat", "--on-error", "skip").code == 0
        assert "n0" in keys_of(*outputs(tmp_path))


class TestUsage:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ([], "no transform is given"),
            (["--cmd", "true", "--python", "a:b"], "--cmd and --python exclude each other"),
            (["--cmd", " "], "--cmd is empty"),
            (["--filter", "txt", "cat", "--multi"], "--multi needs --cmd"),
            (["--filter", "txt", "cat", "--batch", 2], "--batch needs --cmd or --python"),
            (["--cmd", "true", "--format", ":9"], "--format :N needs --resize"),
            (["--cmd", "true", "--timeout", 0], "--timeout"),
            (["--cmd", "true", "--only", "jpg"], "--only needs --resize"),
            (["--resize", "9,nearest="], "expected PIXELS, a mode, shrink, or nearest=FIELD"),
            (["--resize", "nearest=png"], "--resize needs a number of pixels"),
            (["--resize", 9, "--format", ":101"], "the quality of --format must be 1 to 100"),
            (["--format", "jpg", "--resize", "shrink"], "--resize needs"),
            (["--cmd", "true", "--max-size", "1MB"], "unknown before they are made"),
            (["--cmd", "true", "--max-count", 1, "--plan", "a.plan"], "the number of new samples is unknown"),
            (
                ["--cmd", "true", "--max-count", 1, "--divisible-by", 2],
                "the number of new samples is unknown",
            ),
        ],
    )
    def test_what_cannot_be_meant(
        self, run: Command, texts: list[str], tmp_path: Path, options: list[Any], said: str
    ) -> None:
        with no_new_files(tmp_path):
            ran = run(*texts, "-o", tmp_path / "out-%06d.tar", *options)
        assert ran.code == 2
        assert said in ran.err

    def test_a_dry_run_writes_nothing(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        with no_new_files(tmp_path):
            ran = good(*texts, "-o", tmp_path / "out-%06d.tar", "--cmd", "touch /dev/null", "-n")
        assert len(ran.out.splitlines()) == 3


class TestShards:
    def test_one_for_each_that_there_was(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "cat")
        assert [len(samples_of(path)) for path in outputs(tmp_path)] == [4, 1, 3]

    def test_of_those_that_are_selected(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(
            *texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "cat", "--slice", "1::3", "--limit", 2
        )
        assert [keys_of(path) for path in outputs(tmp_path)] == [["n1"], ["n4"], []]

    @pytest.mark.parametrize(
        ("cut", "wanted"),
        [(["--max-count", 3], [3, 3, 2]), (["--shards", 2], [4, 4]), (["--shards", 1], [8])],
    )
    def test_or_as_they_are_cut(
        self, good: Command, texts: list[str], tmp_path: Path, cut: list[Any], wanted: list[int]
    ) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "cat", *cut)
        assert [len(samples_of(path)) for path in outputs(tmp_path)] == wanted

    @pytest.mark.parametrize(
        ("name", "wanted"), [("odd", [["n1", "n3", "n5"], ["n7"]]), ("two", 5 * [3] + [1]), ("none", [[]])]
    )
    def test_max_count_counts_what_is_written(
        self, good: Command, texts: list[str], functions: str, tmp_path: Path, name: str, wanted: list[Any]
    ) -> None:
        options = ["--python", f"{functions}:{name}", "--max-count", 3]
        good(*texts, "-o", tmp_path / "a/out-%06d.tar", *options)
        keys = [keys_of(path) for path in outputs(tmp_path / "a")]
        assert (keys if isinstance(wanted[0], list) else list(map(len, keys))) == wanted
        # A cut between the samples of one call, and several samples in a call.
        good(*texts, "-o", tmp_path / "b/out-%06d.tar", *options, "-j", 2)
        assert content(tmp_path / "b") == content(tmp_path / "a")
        ran = good(*texts, "-o", tmp_path / "b/out-%06d.tar", *options, "--resume")
        assert f"kept {len(wanted)} shard" in ran.err
        assert content(tmp_path / "b") == content(tmp_path / "a")
        assert_true_set(tmp_path / "a")

    @pytest.mark.parametrize("name", ["two", "one"])
    def test_max_count_resumes_within_a_call(
        self, good: Command, run: Command, texts: list[str], tmp_path: Path, name: str
    ) -> None:
        """The third shard begins with the second sample of a call; finished calls are not made again."""
        path, log, broken = tmp_path / "logged.py", tmp_path / "log", tmp_path / "broken"
        copies = {"two": "[sample, {**sample, '__key__': sample['__key__'] + '-b'}]", "one": "sample"}[name]
        path.write_text(
            "import os\n\ndef copied(sample):\n"
            f"    assert sample['__key__'] != 'n6' or not os.path.exists({str(broken)!r})\n"
            f"    print(sample['__key__'], file=open({str(log)!r}, 'a'))\n"
            f"    return {copies}\n"
        )
        options = ["--python", f"{path}:copied", "--max-count", 3, "-j", 1]
        good(*texts, "-o", tmp_path / "a/out-%06d.tar", *options)
        log.unlink()
        broken.touch()
        assert run(*texts, "-o", tmp_path / "b/out-%06d.tar", *options).code
        finished = outputs(tmp_path / "b")
        assert 0 < len(finished) < len(outputs(tmp_path / "a"))
        samples = 3 * len(finished)
        log.unlink()
        broken.unlink()
        ran = good(*texts, "-o", tmp_path / "b/out-%06d.tar", *options, "--resume")
        assert f"kept {len(finished)} shard" in ran.err
        assert content(tmp_path / "b") == content(tmp_path / "a")
        first = samples // 2 if name == "two" else samples
        assert log.read_text().split() == [f"n{number}" for number in range(first, 8)]

    def test_or_of_its_own_name(self, good: Command, run: Command, texts: list[str], tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "{name}-big.tar", "--filter", "txt", "cat")
        names = [Path(text).name.replace(".tar", "-big.tar") for text in texts]
        assert [path.name for path in outputs(tmp_path, "*-big.tar")] == names
        plan = tmp_path / "p.plan"
        good(*texts, "-o", tmp_path / "b/{name}.tar", "--filter", "txt", "cat", "--plan", plan)
        assert wds("run", plan).code == 0
        assert [path.name for path in outputs(tmp_path / "b", "*.tar")] == [Path(text).name for text in texts]
        ran = run(*texts, "-o", tmp_path / "c/{name}.tar", "--filter", "txt", "cat", "--max-count", 1)
        assert ran.code == 2
        assert "{name} keeps the names of the input shards" in ran.err

    def test_a_stream_in_and_out(self, texts: list[str]) -> None:
        ran = wds("map", "-", "-o", "-", "--filter", "txt", "rev", stdin=Path(texts[2]).read_bytes())
        assert ran.code == 0
        assert dict(members_of(ran.out))["n7.txt"] == b"7 txet"

    def test_the_manifest_says_how(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "rev", "--on-error", "keep")
        made = json.loads((tmp_path / "out-manifest.json").read_bytes())["wdscli"]["made"]
        assert made["operation"] == "map"
        assert made["options"] == {"kind": "filter", "what": "rev", "field": "txt", "on_failure": "keep"}

    def test_post_runs_for_each(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(*texts, "-o", tmp_path / "out-%06d.tar", "--filter", "txt", "cat", "--post", "cp {} {}.copy")
        assert len(list(tmp_path.glob("*.copy"))) == 3


CHECKSUMS = ["--cmd", 'cksum < "$(ls | head -n 1)" > sample.sum', "--rekey", "{shard}-{index:09d}"]


class TestSameBytes:
    @pytest.fixture
    def awkward(self, tmp_path: Path) -> list[str]:
        return write_awkward(tmp_path / "awkward")

    def made(self, awkward: list[str], out: Path, *more: str) -> dict[str, bytes]:
        out.mkdir()
        ran = wds("map", *awkward, "-o", out / "out-%06d.tar", "-q", *CHECKSUMS, *more)
        assert ran.code == 0, ran.err
        assert not leftovers(out)
        return content(out)

    @pytest.mark.exhaustive
    def test_by_any_number_of_jobs_and_by_dask(self, awkward: list[str], tmp_path: Path) -> None:
        wanted = self.made(awkward, tmp_path / "wanted", "-j1")
        assert self.made(awkward, tmp_path / "three", "-j3", "--tmp", str(tmp_path)) == wanted
        plan = tmp_path / "plan"
        out = tmp_path / "planned"
        out.mkdir()
        ran = wds("map", *awkward, "-o", out / "out-%06d.tar", "-q", *CHECKSUMS, "--plan", plan)
        assert ran.code == 0, ran.err
        assert wds("run", plan, "--task", "0/2").code == 0
        assert wds("run", plan, "--task", "1/2").code == 0
        assert wds("run", plan, "--finish").code == 0
        assert content(out) == wanted
        pytest.importorskip("distributed")
        with dask_cluster(tmp_path / "dask") as cluster:
            assert self.made(awkward, tmp_path / "dasked", "--engine", cluster.url) == wanted

    @pytest.mark.exhaustive
    def test_after_a_kill(self, texts: list[str], tmp_path: Path) -> None:
        command = ["--cmd", "sleep 0.1; cksum < sample.txt > sample.sum", "-j2"]
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        for folder in (whole, killed):
            folder.mkdir()
        assert wds("map", *texts, "-o", whole / "out-%06d.tar", *command).code == 0
        out = killed / "out-%06d.tar"
        with subprocess.Popen(
            [sys.executable, "-m", "wdscli", "map", *texts, "-o", str(out), *command, "--tmp", str(tmp_path)],
            start_new_session=True,
        ) as process:
            while process.poll() is None and not outputs(killed):
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
        ran = wds("map", *texts, "-o", out, *command, "--resume", "--tmp", tmp_path)
        assert ran.code == 0, ran.err
        assert content(killed) == content(whole)
        assert not list(tmp_path.glob("wds-*"))

    def test_another_text_of_the_function_is_another_plan(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "out-%06d.tar"
        assert run(*texts, "-o", out, "--python", f"{functions}:odd").code == 0
        (tmp_path / "out-manifest.json").unlink()
        Path(functions).write_text(FUNCTIONS + "\n")
        assert run(*texts, "-o", out, "--python", f"{functions}:odd", "--resume").code == 4

    @pytest.mark.exhaustive
    def test_ctrl_c_leaves_nothing(self, texts: list[str], tmp_path: Path) -> None:
        mark = f"5{os.getpid()}.5"
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        out = str(tmp_path / "out-%06d.tar")
        command = ["map", *texts, "-o", out, "-j2", "--tmp", str(scratch), "--cmd", f"sleep {mark}"]
        with subprocess.Popen(
            [sys.executable, "-m", "wdscli", *command], stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            while not subprocess.run(["pgrep", "-f", f"^sleep {mark}"], capture_output=True).stdout:
                assert process.poll() is None
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in said
        assert not list(scratch.iterdir())
        assert not outputs(tmp_path)
        assert not subprocess.run(["pgrep", "-f", f"^sleep {mark}"], capture_output=True).stdout


class TestNewFields:
    """Only what the input sample lacks is written, so that the output is a layer beside its base."""

    def test_a_layer_beside_its_base(
        self, good: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        function = f"{functions}:captions"
        Path(functions).write_text(
            FUNCTIONS + "def captions(samples):\n"
            "    return [{**one, 'txt': 'other', 'cap.txt': one['__key__'] * 99} for one in reversed(samples)]\n"
        )
        out = tmp_path / "caps"
        good(*texts, "-o", out / "{name}.tar", "--python", function, "--batch", 3, "--new-fields")
        assert [path.name for path in outputs(out, "*.tar")] == [Path(one).name for one in texts]
        for base, layer in zip(texts, outputs(out, "*.tar"), strict=True):
            assert samples_of(layer) == [
                (key, (("cap.txt", key.encode() * 99),)) for key, _ in samples_of(base)
            ]
        # Besides the headers, at most 1.05 times the new payloads in whole blocks.
        payloads = sum(
            -(-len(payload) // 512) * 512 for path in outputs(out, "*.tar") for _, payload in members_of(path)
        )
        assert sum(path.stat().st_size for path in outputs(out, "*.tar")) == payloads + 8 * 512 + 3 * 1024
        view = tmp_path / "train.json"
        assert wds("merge", "--join", "left", tmp_path / "in", out, "-o", view).code == 0
        assert (
            wds("merge", "--join", "left", tmp_path / "in", out, "-o", tmp_path / "flat/{name}.tar").code == 0
        )
        assert wds("cat", view, "-o", tmp_path / "real/{name}.tar").code == 0
        shards = [outputs(tmp_path / one, "*.tar") for one in ("flat", "real")]
        assert [path.read_bytes() for path in shards[0]] == [path.read_bytes() for path in shards[1]]
        plain = json.loads(view.read_text())["view"]["shards"]
        assert [[len(runs) for runs in shard["runs"]] for shard in plain] == [[1, 1]] * 3
        assert not (tmp_path / "train.rows").exists()

    def test_samples_without_a_new_field_are_said(
        self, run: Command, texts: list[str], functions: str, tmp_path: Path
    ) -> None:
        Path(functions).write_text(
            FUNCTIONS + "def some(sample):\n    n = int(sample['__key__'][1:])\n"
            "    return [None, {}, {'txt': 'x'}, {'new': b'%d' % (6 // (n - 3))}][min(n, 3)]\n"
        )
        words = (*texts, "-o", tmp_path / "caps/{name}.tar", "--python", f"{functions}:some", "--new-fields")
        ran = run(*words)
        assert (ran.code, 'cannot transform sample "n3"' in ran.err) == (5, True)
        ran = run(*words, "--on-error", "skip")
        assert ran.code == 0
        assert "4 samples have no new fields: join both sets with wds merge --join left" in ran.err
        assert "left out 4 samples: failed 1, no-new-fields 3" in ran.err
        assert keys_of(*outputs(tmp_path / "caps", "*.tar")) == ["n4", "n5", "n6", "n7"]
        view = tmp_path / "train.json"
        assert wds("merge", "--join", "left", tmp_path / "in", tmp_path / "caps", "-o", view).code == 0
        found = wds("ls", view, "--json").objects
        assert [one["key"] for one in found] == [f"n{n}" for n in range(8)]

    def test_a_command_may_leave_old_fields(self, good: Command, texts: list[str], tmp_path: Path) -> None:
        good(
            *texts,
            "-o",
            tmp_path / "out-%06d.tar",
            "--new-fields",
            "--cmd",
            "cat sample.txt > sample.cap; rm sample.txt",
        )
        assert fields(tmp_path, "n5") == {"cap": b"text 5"}

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["--python", "{}:same"], 5, "it made the new key"),
            pytest.param(["--python", "{}:two"], 5, "it made the new key", marks=EXHAUSTIVE),
            (["--cmd", "true"], 3, "no call made a new field: all fields already exist in their samples"),
            (["--filter", "txt", "cat"], 2, "--new-fields needs --cmd or --python or --resize"),
            (["--cmd", "true", "--multi"], 2, "--new-fields cannot be combined with --multi"),
            (
                ["--cmd", "true", "--on-error", "keep"],
                2,
                "--new-fields cannot be combined with --on-error keep",
            ),
            (["--cmd", "true", "--fields", "txt"], 2, "--new-fields needs all fields"),
        ],
    )
    def test_what_no_layer_can_be(
        self,
        run: Command,
        texts: list[str],
        functions: str,
        tmp_path: Path,
        words: list[str],
        code: int,
        said: str,
    ) -> None:
        given = [word.format(functions) for word in words]
        ran = run(*texts, "-o", tmp_path / "out-%06d.tar", "--new-fields", *given)
        assert (ran.code, said in ran.err) == (code, True), ran.err
