"""wds ls: every list and option, in a pipe and on a terminal, of whole and of broken shards."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import tar_of, wds
from terminals import on_terminal

from wdscli.cli.main import main
from wdscli.look import listing as ls_module
from wdscli.look import summary as summary_module
from wdscli.look.listing import ls
from wdscli.look.summary import summarize
from wdscli.selection import Selection
from wdscli.shards import ShardWriter
from wdscli.tar import TarWriter

WDS = [sys.executable, "-m", "wdscli", "ls"]
Fields = dict[str, bytes]

CATS: list[tuple[str, Fields]] = [
    ("n01/a", {"jpg": b"x" * 1000, "json": b'{"width": 100}', "cls": b"0"}),
    ("n01/b", {"jpg": b"x" * 2000, "json": b'{"width": 600}'}),
]
DOGS: list[tuple[str, Fields]] = [
    ("n02/c", {"jpg": b"", "cls": b"1"}),
    ("n02/d", {"jpg": b"x" * 512, "cls": b"2"}),
    ("n01/a", {"jpg": b"x" * 10, "cls": b"3"}),
]


def write(path: Path, samples: list[tuple[str, Fields]]) -> str:
    with path.open("wb") as out, TarWriter(out) as tar:
        for key, fields in samples:
            for field, payload in fields.items():
                tar.add(f"{key}.{field}".encode("utf-8", "surrogateescape"), payload)
    return str(path)


NUMBERS = [(f"n{number:03d}", {"cls": b"%d" % number}) for number in range(300)]


HOW = "--epoch 3 --batch 2 --batch-size 8 --seed 1 --shuffle window --window 2 --world 4 --rank 3"


class TestBatches:
    """--epoch prints the keys that the loader's batch has."""

    @pytest.fixture
    def numbers(self, tmp_path: Path) -> str:
        for number in range(6):
            write(tmp_path / f"s-{number}.tar", NUMBERS[50 * number : 50 * number + 50])
        return str(tmp_path)

    @staticmethod
    def keys(numbers: str, *words: str) -> list[str]:
        done = wds("ls", numbers, *words)
        assert (done.code, done.err) == (0, "")
        return done.out.decode().splitlines()

    def test_every_option_counts(self, numbers: str) -> None:
        from wdscli.loader import WebDataset

        data = WebDataset(numbers, shuffle="window", window=2, seed=1, rank=3, world_size=4).listed(8)
        data.set_epoch(3)
        whole = [[sample["__key__"] for sample in batch] for batch in data]  # type: ignore[attr-defined]
        how = HOW.split()
        assert self.keys(numbers, *how) == whole[2]
        for at in range(0, len(how), 2):
            other = [*how[:at], *how[at + 2 :]]
            if how[at] == "--epoch":
                other += ["--epoch", "0"]
            elif how[at] == "--world":
                other = other[:-2]
            assert self.keys(numbers, *other) != whole[2]
        assert [json.loads(line) for line in self.keys(numbers, *how, "--json")] == [
            {"key": key} for key in whole[2]
        ]

    def test_of_selected_samples(self, numbers: str, tmp_path: Path) -> None:
        how = ["--epoch", "0", "--batch", "1", "--batch-size", "3"]
        assert self.keys(numbers, *how) == ["n003", "n004", "n005"]
        assert self.keys(numbers, *how, "--keys", "n1*") == ["n103", "n104", "n105"]
        odd = ["--where", "cls % 2 == 1 or cls < 3", "--where", "cls > 0"]
        assert self.keys(numbers, *how, *odd) == ["n005", "n007", "n009"]
        (tmp_path / "some.txt").write_text("".join(f"n{number:03d}\n" for number in range(0, 300, 9)))
        assert self.keys(numbers, *how, "--keys-from", str(tmp_path / "some.txt")) == ["n027", "n036", "n045"]

    def test_of_a_shard_that_is_cut(self, tmp_path: Path) -> None:
        cut = tmp_path / "s.tar"
        write(cut, NUMBERS[:4])
        os.truncate(cut, 3 * 1024 + 100)
        how = ["--epoch", "0", "--batch-size", "4"]
        assert wds("ls", cut, *how).code == 3
        skipped = wds("ls", cut, *how, "--on-error", "skip")
        assert (skipped.code, skipped.out.split()) == (0, [b"n000", b"n001", b"n002"])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--batch 2", "--batch needs --epoch"),
            ("--world 2", "--world needs --epoch"),
            ("--epoch 0 --long", "--long does not work with --epoch"),
            ("--epoch 0 --to csv", "--to does not work with --epoch"),
            ("--epoch 0 --limit 3", "--limit does not work with --epoch"),
            ("--epoch 0 --keys-from a --keys-from b", "a second --keys-from does not work"),
            ("--epoch 0 --batch 300", "epoch 0 has no batch 300 on this rank"),
            ("--epoch 0 --rank 2 --world 2", "rank 2 of 2 is impossible"),
        ],
    )
    def test_what_cannot_be_meant(
        self, numbers: str, words: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["ls", numbers, *words.split()]) == 2
        assert message in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards, cats.tar and dogs.tar, in the current folder."""
    write(tmp_path / "cats.tar", CATS)
    write(tmp_path / "dogs.tar", DOGS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Run = Callable[..., "Done"]


class Done:
    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.decode().splitlines()]

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """``wds ls`` in this process."""

    def call(*args: str, code: int = 0) -> Done:
        found = main(["ls", *args])
        out, err = capfdbinary.readouterr()
        done = Done(found, out, err.decode())
        assert found == code, done.err
        return done

    return call


# The lists


def test_a_row_for_each_sample(folder: Path, run: Run) -> None:
    assert run("cats.tar", "dogs.tar").out == (
        b"n01/a\tjpg,json,cls\t1015\nn01/b\tjpg,json\t2014\nn02/c\tjpg,cls\t1\nn02/d\tjpg,cls\t513\nn01/a\tjpg,cls\t11\n"
    )


def test_long_rows_say_where(folder: Path, run: Run) -> None:
    rows = run("-l", "cats.tar", "dogs.tar").rows
    assert rows[1] == ["n01/b", "jpg,json", "2014", "cats.tar", "3584", "2000,14"]
    assert rows == run("--long", "cats.tar", "dogs.tar").rows
    for key, fields, _, shard, offset, _ in rows:
        with tarfile.open(shard) as tar:
            first = next(member for member in tar if member.offset == int(offset))
        assert first.name == f"{key}.{fields.split(',')[0]}"


def test_samples_as_json(folder: Path, run: Run) -> None:
    assert run("--json", "cats.tar").objects[1] == {"key": "n01/b", "fields": ["jpg", "json"], "bytes": 2014}
    assert run("--json", "-l", "cats.tar").objects[1] == {
        "key": "n01/b",
        "fields": ["jpg", "json"],
        "bytes": 2014,
        "shard": "cats.tar",
        "index": 1,
        "offset": 3584,
        "sizes": [2000, 14],
    }


def test_members(folder: Path, run: Run) -> None:
    assert run("--by", "member", "dogs.tar").rows[:3] == [
        ["n02/c.jpg", "0"],
        ["n02/c.cls", "1"],
        ["n02/d.jpg", "512"],
    ]
    assert run("--by", "member", "-l", "dogs.tar").rows[1] == [
        "n02/c.cls",
        "1",
        "dogs.tar",
        "1024",
        "regular",
        "cls",
    ]
    assert run("--by", "member", "--json", "dogs.tar").objects[1] == {"name": "n02/c.cls", "bytes": 1}
    assert run("--by", "member", "--json", "-l", "dogs.tar").objects[1] == {
        "name": "n02/c.cls",
        "bytes": 1,
        "shard": "dogs.tar",
        "offset": 1024,
        "kind": "regular",
        "field": "cls",
    }


def test_shards(folder: Path, run: Run) -> None:
    size = os.path.getsize
    assert run("--by", "shard", "cats.tar", "dogs.tar").rows == [
        ["cats.tar", "2", "5", str(size("cats.tar")), "3029", "1514"],
        ["dogs.tar", "3", "6", str(size("dogs.tar")), "525", "175"],
    ]
    assert run("--by", "shard", "--json", "dogs.tar").objects == [
        {
            "shard": "dogs.tar",
            "samples": 3,
            "members": 6,
            "bytes": size("dogs.tar"),
            "payload_bytes": 525,
            "mean_sample_bytes": 175,
        }
    ]


def test_a_selection_counts_only_what_it_leaves(folder: Path, run: Run) -> None:
    assert run("--by", "shard", "--fields", "cls", "cats.tar", "dogs.tar").rows == [
        ["cats.tar", "1", "1", "1024", "1", "1"],
        ["dogs.tar", "3", "3", "3072", "3", "1"],
    ]


def test_summary(folder: Path, run: Run) -> None:
    total = os.path.getsize("cats.tar") + os.path.getsize("dogs.tar")
    facts, _, fields = run("--summary", "cats.tar", "dogs.tar").out.decode().partition("\n\n")
    assert dict(line.split("\t") for line in facts.splitlines()) == {
        "shards": "2",
        "samples": "5",
        "members": "11",
        "bytes": str(total),
        "payload bytes": "3554",
        "overhead bytes": str(total - 3554),
        "repeated keys": "1",
        "fewest samples in a shard": "2",
        "most samples in a shard": "3",
        "smallest shard": str(os.path.getsize("dogs.tar")),
        "largest shard": str(os.path.getsize("cats.tar")),
    }
    rows = [line.split("\t") for line in fields.splitlines()]
    assert rows[0][:7] == ["field", "count", "share", "min", "median", "max", "total"]
    assert rows[2][:7] == ["jpg", "5", "100.0%", "0", "512", "2000", "3522"]
    assert rows[1][:7] == ["cls", "4", "80.0%", "1", "1", "1", "4"]
    assert set(rows[2][7]) <= set("·▁▂▃▄▅▆▇█")


def test_summary_as_json(folder: Path, run: Run) -> None:
    (found,) = run("--summary", "--json", "cats.tar", "dogs.tar").objects
    assert (found["samples"], found["members"], found["repeated_keys"]) == (5, 11, 1)
    assert found["balance"]["most_samples"] == 3
    assert found["fields"]["jpg"] | {"histogram": 0} == {
        "count": 5,
        "min": 0,
        "median": 512,
        "median_is_exact": True,
        "max": 2000,
        "total": 3522,
        "histogram": 0,
    }
    assert sum(found["fields"]["jpg"]["histogram"]) == 5


def test_three_different_lists_do_not_mix(folder: Path, run: Run) -> None:
    for pair in (
        ["--by", "member", "--count", "cls"],
        ["--by", "member", "--summary"],
        ["--by", "shard", "--summary"],
    ):
        assert "different lists" in run(*pair, "cats.tar", code=2).err
    assert "hint:" in run("-l", "--summary", "cats.tar", code=2).err


def test_a_folder_and_a_manifest_are_sets(folder: Path, run: Run) -> None:
    shards = [{"url": name, "nsamples": count} for name, count in (("dogs.tar", 3), ("cats.tar", 2))]
    (folder / "set.json").write_text(json.dumps({"shardlist": shards}))
    assert [row[0] for row in run("--by", "shard", ".").rows] == ["./cats.tar", "./dogs.tar"]
    assert [row[1] for row in run("--by", "shard", "set.json").rows] == ["3", "2"]


def test_parts_in_folders_are_one_set(folder: Path, run: Run) -> None:
    for part in ("train", "val/b", ".hidden"):
        (folder / "set" / part).mkdir(parents=True)
        write(folder / "set" / part / "000000.tar", CATS if part == "train" else DOGS)
    rows = run("--by", "shard", "set", "dogs.tar").rows
    assert [row[:2] for row in rows] == [
        ["set/train/000000.tar", "2"],
        ["set/val/b/000000.tar", "3"],
        ["dogs.tar", "3"],
    ]
    write(folder / "set" / "own.tar", DOGS)
    assert [row[0] for row in run("--by", "shard", "set/").rows] == ["set/own.tar"]
    (folder / "empty").mkdir()
    assert "no shard matches empty" in run("empty", code=4).err
    assert "no shard matches empty" in run("set", "empty", code=4).err


def test_parts_in_folders_of_a_store(folder: Path, run: Run) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, part in (("cats.tar", "train"), ("dogs.tar", "val")):
        memory.pipe(f"/ls-parts/{part}/000000.tar", (folder / name).read_bytes())
    try:
        rows = run("--by", "shard", "memory://ls-parts/").rows
        assert [row[1] for row in rows] == ["2", "3"]
    finally:
        memory.rm("/ls-parts", recursive=True)


def test_what_is_not_there_is_an_input_error(folder: Path, run: Run) -> None:
    assert "none.tar" in run("none.tar", code=4).err


# Selections


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--keys", "n01/*"], "n01/a n01/b n01/a"),
        (["--keys", "n02/c", "--keys", "*/b"], "n01/b n02/c"),
        (["--keys-from", "keys"], "n02/d"),
        (["--where", "json.width > 500"], "n01/b"),
        (["--where", "cls > 1"], "n02/d n01/a"),
        (["--where", "shard == 'dogs.tar' and index == 0"], "n02/c"),
        (["--slice", "1:4:2"], "n01/b n02/d"),
        (["--limit", "3"], "n01/a n01/b n02/c"),
        (["--keys", "n01/*", "--where", "size.jpg < 1500", "--slice", "1:", "--limit", "1"], "n01/a"),
        (["--fields", "json"], "n01/a n01/b"),
        (["--drop", "jpg,cls"], "n01/a n01/b"),
    ],
)
@pytest.mark.parametrize(
    "view", [[], ["-l"], ["--json"], ["--by", "member"], ["--by", "shard"], ["--summary"]]
)
def test_every_list_takes_every_selection(
    folder: Path, run: Run, view: list[str], options: list[str], keys: str
) -> None:
    (folder / "keys").write_text("n02/d\n")
    done = run(*view, *options, "cats.tar", "dogs.tar")
    if view == ["--by", "shard"]:
        assert sum(int(row[1]) for row in done.rows) == len(keys.split())
    elif view == ["--summary"]:
        assert ["samples", str(len(keys.split()))] in done.rows
    elif view == ["--json"]:
        assert [found["key"] for found in done.objects] == keys.split()
    elif view == ["--by", "member"]:
        names = [row[0].split(".")[0] for row in done.rows]
        assert [name for place, name in enumerate(names) if names[:place][-1:] != [name]] == keys.split()
    else:
        assert [row[0] for row in done.rows] == keys.split()


def test_fields_are_left_out_and_renamed_in_every_list(folder: Path, run: Run) -> None:
    options = ["--fields", "jpg,cls", "--rename", "image=jpg", "cats.tar"]
    assert run(*options).rows == [["n01/a", "image,cls", "1001"], ["n01/b", "image", "2000"]]
    assert run("-l", *options).rows[0] == ["n01/a", "image,cls", "1001", "cats.tar", "0", "1000,1"]
    assert run("--by", "member", "-l", *options).rows == [
        ["n01/a.image", "1000", "cats.tar", "512", "regular", "image"],
        ["n01/a.cls", "1", "cats.tar", "3072", "regular", "cls"],
        ["n01/b.image", "2000", "cats.tar", "4096", "regular", "image"],
    ]
    assert list(run("--summary", "--json", *options).objects[0]["fields"]) == ["cls", "image"]


def test_keys_that_are_nowhere_are_named(folder: Path, run: Run) -> None:
    (folder / "keys").write_text("n02/d\nnowhere\n")
    assert "warning: 1 key of keys not found: nowhere" in run("--keys-from", "keys", "dogs.tar").err


def test_a_where_that_takes_nothing_is_told(folder: Path, run: Run) -> None:
    done = run("--where", "index > 99", "cats.tar", "dogs.tar")
    assert not done.out
    assert "warning: --where matches none of" in done.err
    assert "matches" not in run("--where", "index > 99 or shard == 'dogs.tar'", "cats.tar", "dogs.tar").err
    assert "matches" not in run("--where", "index >= 0", "--slice", "99:", "cats.tar").err


def test_standard_input_is_read_once(folder: Path, run: Run) -> None:
    assert "standard input" in run("--keys-from", "-", "-", code=2).err
    done = subprocess.run(
        [*WDS, "--keys-from", "-", "dogs.tar"], input=b"n02/c\n", capture_output=True, check=True
    )
    assert done.stdout == b"n02/c\tjpg,cls\t1\n"


def test_verbose_counts_what_was_left_out(folder: Path, run: Run) -> None:
    assert "samples left out: 2 keys" in run("-v", "--keys", "n02/*", "cats.tar", "dogs.tar").err.replace(
        "3", "2"
    )
    assert run("--keys", "n02/*", "cats.tar", "dogs.tar").err == ""


def test_mistakes_in_a_selection_are_told_before_anything_is_read(folder: Path, run: Run) -> None:
    done = run("--where", "lenn(json) > 1", "cats.tar", code=2)
    assert done.out == b""
    assert "len" in done.err


def test_a_field_that_no_sample_has_is_told_with_the_nearest(folder: Path, run: Run) -> None:
    done = run("--where", "jsn.width > 1", "cats.tar")
    assert done.out == b""
    assert "did you mean json?" in done.err


# Against other readers


def gnu_tar(folder: Path, *options: str) -> str:
    """What GNU tar makes of a folder with everything in it that may be in a tar."""
    tree = folder / "tree"
    (tree / "sub").mkdir(parents=True)
    for name in (
        "a.jpg",
        "a.cls",
        "README",
        "sub/b.seg.png",
        "sub/._b.png",
        "deep" * 20 + "/" + "long" * 20 + ".txt",
    ):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(name.encode() * 7)
    (tree / "link.jpg").symlink_to("a.jpg")
    subprocess.run(["tar", "cf", "made.tar", *options, "-C", "tree", "."], cwd=folder, check=True)
    return "made.tar"


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_members_are_those_that_tarfile_sees(folder: Path, run: Run, form: str) -> None:
    if form == "v7":
        write(folder / "made.tar", CATS)
    else:
        gnu_tar(folder, f"--format={form}")
    with tarfile.open("made.tar") as tar:
        members = [(m.name + "/" * m.isdir(), m.size, m.offset_data) for m in tar]
    found = [
        (name, int(size), int(offset))
        for name, size, _, offset, *_ in run("--by", "member", "-l", "made.tar").rows
    ]
    assert found == members
    assert [(name, int(size)) for name, size in run("--by", "member", "made.tar").rows] == [
        m[:2] for m in members
    ]


def test_samples_are_those_that_webdataset_sees(folder: Path, run: Run) -> None:
    webdataset = pytest.importorskip("webdataset")
    chance = random.Random(0)
    fields = ["jpg", "cls", "seg.png", "json"]
    samples = [
        (
            f"{chance.choice('ab')}/{n:03}",
            {f: bytes(chance.randrange(3000)) for f in chance.sample(fields, 1 + n % 4)},
        )
        for n in range(300)
    ]
    write(folder / "all.tar", samples)
    theirs = [
        [
            s["__key__"],
            ",".join(k for k in s if k[0] != "_"),
            str(sum(len(v) for k, v in s.items() if k[0] != "_")),
        ]
        for s in webdataset.WebDataset("all.tar", shardshuffle=False)
    ]
    assert run("all.tar").rows == theirs


def test_links_and_the_like_are_shown_and_told(folder: Path, run: Run) -> None:
    gnu_tar(folder)
    done = run("made.tar")
    assert {"./a", "./sub/b"} < {row[0] for row in done.rows}
    assert "./link" not in done.out.decode()
    assert "1 link" in done.err
    kinds = {row[0]: row[4:] for row in run("--by", "member", "-l", "made.tar").rows}
    assert kinds["./link.jpg"] == ["link", ""]
    assert kinds["./sub/"] == ["directory", ""]
    assert kinds["./sub/b.seg.png"] == ["regular", "seg.png"]
    assert kinds["./README"] == ["regular", ""]
    assert run("--by", "member", "-l", "--json", "--limit", "1", "made.tar").objects[0]["kind"] == "regular"
    ignored = run("--summary", "--json", "made.tar").objects[0]["ignored"]
    assert ignored == {"appledouble": 1, "directory": 3, "link": 1, "no-field": 1}
    assert "ignored" not in run("--summary", "cats.tar").out.decode()


# Names


def test_names_reach_a_pipe_as_bytes_and_json_as_escapes(folder: Path, run: Run) -> None:
    write(folder / "odd.tar", [("a\udcff", {"jpg": b"1"}), ("bü", {"jpg": b"2"})])
    assert run("odd.tar").out == b"a\xff\tjpg\t1\nb\xc3\xbc\tjpg\t1\n"
    assert run("--by", "member", "odd.tar").out == b"a\xff.jpg\t1\nb\xc3\xbc.jpg\t1\n"
    done = run("--json", "odd.tar")
    assert b"\\udcff" in done.out
    assert [found["key"].encode("utf-8", "surrogateescape") for found in done.objects] == [
        b"a\xff",
        "bü".encode(),
    ]


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "a\rb"])
def test_a_name_cannot_make_two_cells_or_two_rows(folder: Path, run: Run, name: str) -> None:
    write(folder / "odd.tar", [(name, {"jpg": b"1"}), ("plain", {"jpg": b"2"})])
    escaped = name.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    assert run("odd.tar").out.decode() == f"{escaped}\tjpg\t1\nplain\tjpg\t1\n"
    assert run("--by", "member", "odd.tar").out.decode() == f"{escaped}.jpg\t1\nplain.jpg\t1\n"
    assert run("--json", "odd.tar").objects[0]["key"] == name


# Broken shards


@pytest.fixture
def cut(folder: Path) -> str:
    whole = (folder / "dogs.tar").read_bytes()
    (folder / "cut.tar").write_bytes(whole[:2900])
    return "cut.tar"


@pytest.mark.parametrize("view", [[], ["-l"], ["--json"], ["--by", "member"]])
@pytest.mark.parametrize("address", ["cut.tar", "pipe:cat cut.tar"])
def test_what_comes_before_the_damage_is_listed(run: Run, cut: str, view: list[str], address: str) -> None:
    done = run(*view, address, "cats.tar", code=3)
    assert b"n02/c" in done.out
    assert b"n01/b" not in done.out
    assert address in done.err
    assert "at byte" in done.err


@pytest.mark.parametrize("view", [[], ["--by", "member"], ["--by", "shard"], ["--summary"]])
def test_skip_goes_on_and_says_so(run: Run, cut: str, view: list[str]) -> None:
    done = run("--on-error", "skip", *view, cut, "cats.tar")
    assert "warning: " in done.err
    assert "cut.tar" in done.err
    expected = {
        "": b"n01/b\t",
        "member": b"n01/b.jpg",
        "shard": b"cats.tar\t2",
        "--summary": b"samples\t3",
    }
    assert expected[view[-1] if view else ""] in done.out
    if view == ["--summary"]:
        assert b"broken shards\t1" in done.out


@pytest.mark.parametrize("address", ["hurt.tar", "pipe:cat hurt.tar"])
def test_skip_lists_what_is_whole_behind_the_damage(folder: Path, run: Run, address: str) -> None:
    write(folder / "hurt.tar", [(f"s{number}", {"cls": b"1", "jpg": b"22"}) for number in range(5)])
    data = bytearray((folder / "hurt.tar").read_bytes())
    data[2 * 2048 + 1024 + 3] ^= 1  # in the name of s2.jpg
    (folder / "hurt.tar").write_bytes(data)
    listed = run("--on-error", "skip", address)
    assert [row[0] for row in listed.rows] == ["s0", "s1", "s3", "s4"]
    assert "at byte 5120" in listed.err
    members = [row[0] for row in run("--by", "member", "--on-error", "skip", address).rows]
    assert members == [
        f"s{n}.{field}" for n in range(5) for field in ("cls", "jpg") if (n, field) != (2, "jpg")
    ]
    assert b"left out damaged\t1" in run("--summary", "--on-error", "skip", address).out


def test_skip_passes_over_what_where_cannot_decode(folder: Path, run: Run) -> None:
    write(folder / "odd.tar", [("a", {"json": b"{"}), ("b", {"json": b'{"n": 1}'})])
    assert "a.json" in run("--where", "json.n == 1", "odd.tar", code=3).err
    assert run("--where", "json.n == 1", "--on-error", "skip", "odd.tar").rows == [["b", "json", "8"]]


def test_not_a_tar(folder: Path, run: Run) -> None:
    (folder / "x.tar").write_text("hello")
    assert "not a tar archive" in run("x.tar", code=3).err


# Streams and terminals


def test_streams_and_compressed_shards_are_listed_alike(folder: Path, run: Run) -> None:
    subprocess.run(["gzip", "-k", "dogs.tar"], check=True)
    for view in ([], ["--by", "member"], ["-l", "--json"]):
        listed = run(*view, "dogs.tar").out
        assert run(*view, "dogs.tar.gz").out.replace(b".gz", b"") == listed
        assert run(*view, "pipe:cat dogs.tar").out.replace(b"pipe:cat ", b"") == listed
    size = str(os.path.getsize("dogs.tar"))
    assert [run("--by", "shard", a).rows[0][3] for a in ("dogs.tar", "dogs.tar.gz", "pipe:cat dogs.tar")] == [
        size
    ] * 3


def test_a_terminal_gets_columns(folder: Path) -> None:
    write(folder / "odd.tar", [("esc\x1b[31m", {"jpg": b"1"})])
    shown = on_terminal([*WDS, "cats.tar", "odd.tar"], cwd=folder, NO_COLOR="1").splitlines()
    assert shown[0].split() == ["key", "fields", "bytes"]
    assert shown[1].split() == ["n01/a", "jpg,json,cls", "1.01", "kB"]
    assert len({line.index("jpg") for line in shown[1:3]}) == 1
    assert "\x1b" not in "".join(shown)
    assert "\x1b[1m" in on_terminal([*WDS, "cats.tar"], cwd=folder, NO_COLOR="")


@pytest.mark.parametrize(
    ("view", "people", "exact"),
    [
        ([], "2.01 kB", "2014"),
        (["-l"], "2.00 kB, 14 B", "2000,14"),
        (["--by", "member"], "2.00 kB", "2000"),
        (["--by", "member", "-l"], "2.00 kB", "2000"),
        (["--by", "shard"], "3.03 kB", "3029"),
        (["--summary"], "2.00 kB", "2000"),
    ],
)
def test_sizes_are_for_people_on_a_terminal_and_exact_in_a_pipe(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, view: list[str], people: str, exact: str
) -> None:
    assert exact in run(*view, "cats.tar").out.decode(), "in a pipe"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("wdscli.cli.output._is_terminal", lambda stream: stream is sys.stdout)
    shown = run(*view, "cats.tar").out.decode()
    assert people in shown
    assert exact not in shown


def test_a_terminal_gets_a_summary_for_people(folder: Path) -> None:
    shown = on_terminal([*WDS, "--summary", "cats.tar", "dogs.tar"], cwd=folder, NO_COLOR="1")
    assert "of headers and padding" in shown
    assert "1 key is repeated" in shown
    assert "2, of 2 to 3 samples" in shown
    assert "2.00 kB" in shown
    assert "\t" not in shown


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("view", "narrow", "wide"),
    [
        (["-l"], "key fields bytes shard", "key fields bytes shard offset bytes by field"),
        (["--by", "shard", "-l"], "shard samples members bytes", "mean sample checksum"),
        (["--by", "member", "-l"], "name bytes shard offset", "name bytes shard offset kind field"),
        (["--summary"], "field count share min median max total", "sizes (log)"),
        (["--count", "len(fields)"], "len(fields) count share", "███"),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns(folder: Path, view: list[str], narrow: str, wide: str) -> None:
    name = "a-rather-long-name-of-a-shard.tar"
    shutil.copy("cats.tar", name)
    shown = on_terminal([*WDS, *view, name], cwd=folder, NO_COLOR="1", COLUMNS="64")
    assert all(len(line) <= 64 for line in shown.splitlines() if ":" not in line), shown
    assert any(line.split() == narrow.split() for line in shown.splitlines()), shown
    full = on_terminal([*WDS, *view, name], cwd=folder, NO_COLOR="1", COLUMNS="160")
    assert " ".join(wide.split()) in " ".join(full.split())


def test_a_long_list_of_shards_has_their_checksums(tmp_path: Path, run: Run) -> None:
    with ShardWriter(str(tmp_path / "s-%d.tar"), max_count=1) as writer:
        writer.write("a", {"txt": b"1"})
        writer.write("b", {"txt": b"2"})
    listed = json.loads((tmp_path / "s-manifest.json").read_text())["shardlist"]
    for given in (tmp_path, tmp_path / "s-manifest.json"):
        rows = [
            json.loads(line) for line in run("--by", "shard", "-l", "--json", str(given)).out.splitlines()
        ]
        assert [row["checksum"] for row in rows] == [shard["checksum"] for shard in listed]
        assert [row[-1] for row in run("--by", "shard", "-l", str(given)).rows] == [
            shard["checksum"] for shard in listed
        ]
    (tmp_path / "s-manifest.json").unlink()
    assert [row[-1] for row in run("--by", "shard", "-l", str(tmp_path)).rows] == ["", ""]


def test_json_on_a_terminal_is_still_json(folder: Path) -> None:
    shown = on_terminal([*WDS, "--json", "cats.tar"], cwd=folder)
    assert json.loads(shown.splitlines()[0])["key"] == "n01/a"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A shard of 100 thousand members; its samples repeat every thousand."""
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for n in range(1000):
            tar.add(b"k%06d.jpg" % n, b"")
            tar.add(b"k%06d.cls" % n, b"7")
    body = out.getvalue()[:-1024]
    path = tmp_path / "big.tar"
    with path.open("wb") as file:
        for _ in range(50):
            file.write(body)
        file.write(bytes(1024))
    return path


def test_a_reader_that_leaves_ends_it_quietly(big: Path) -> None:
    for view in ("", "--by member", "--json"):
        command = " ".join([*WDS, view, str(big)]) + " | head -n 1"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=30, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.count(b"\n") == 1


def test_rows_come_before_the_stream_ends_and_an_interrupt_stops_it(folder: Path) -> None:
    command = [*WDS, "pipe:cat cats.tar; exec sleep 3600"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"n01/a\t")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert b"interrupted" in process.stderr.read()


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("view", [[], ["--by", "member"], ["--by", "shard"], ["--summary"]])
def test_memory_does_not_grow_with_the_set(big: Path, view: list[str]) -> None:
    code = (
        "import sys, resource; from wdscli.cli.main import main; code = main(['ls', *sys.argv[1:]]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    peaks = []
    for count in (1, 4):
        done = subprocess.run(
            [sys.executable, "-c", code, *view, *[str(big)] * count], capture_output=True, check=True
        )
        peaks.append(int(done.stderr.split()[-1]))
    digests = 3 * 50_000 * 16 // 1024 if view == ["--summary"] else 0
    numpy = 30_000 if view == ["--summary"] else 0
    assert peaks[1] - peaks[0] < 4000 + digests + numpy


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "view", [[], ["-l"], ["--by", "member"], ["--by", "shard"], ["--limit", "1"], ["--keys", "n01/a"]]
)
def test_a_local_listing_loads_nothing_heavy(folder: Path, view: list[str]) -> None:
    code = (
        "import sys; before = set(sys.modules); from wdscli.cli.main import main; main(['ls', *sys.argv[1:]]);"
        "heavy = {'numpy', 'fsspec', 's3fs', 'pydantic', 'json', 'rich', 'simpleeval', 'msgpack', 'xxhash',"
        "'braceexpand', 'multiprocessing', 'concurrent', 'wdscli.shards.index', 'wdscli.shards.manifest', 'asyncio'};"
        "print(sorted(heavy & (set(sys.modules) - before)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *view, "cats.tar"], capture_output=True, check=True)
    assert done.stderr.decode().strip() == "[]"


# The library


def test_a_listing_is_read_as_it_is_asked_for(folder: Path) -> None:
    listing = ls(["cats.tar", "none.tar"])
    pages: Iterator[ls_module.Page] = listing.samples()
    assert next(pages).batch.keys == [b"n01/a"]
    report = ls(["cats.tar"], selection=Selection.parse(keys=["*/a"]))
    assert [list(page.places) for page in report.samples()] == [[0]]
    assert report.report().dropped == {"keys": 1}
    assert (report.report().shards, report.report().samples) == (1, 1)


def test_repeated_keys_are_counted_alike_by_few_and_by_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "a", "c", "b", "a", "d"]
    write(folder / "twice.tar", [(name, {"x": b""}) for name in names])
    assert summarize(ls(["twice.tar"])).repeated_keys == 2
    monkeypatch.setattr(summary_module, "_FEW", 1)
    assert summarize(ls(["twice.tar"])).repeated_keys == 2
    assert summarize(ls(["cats.tar"])).repeated_keys == 0
    assert summarize(ls(["cats.tar", "cats.tar"])).repeated_keys == 2


def test_medians_of_many_sizes_are_close_and_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    sizes = [int(chance.lognormvariate(7, 1)) for _ in range(801)]
    write(folder / "many.tar", [(f"{n}", {"bin": bytes(size)}) for n, size in enumerate(sizes)])
    (exact,) = summarize(ls(["many.tar"])).fields
    assert (exact.median, exact.is_exact) == (statistics.median(sizes), True)
    monkeypatch.setattr(summary_module, "MAX_VALUES", 64)
    (close,) = summarize(ls(["many.tar"])).fields
    assert not close.is_exact
    assert exact.median * (1 - 1 / 128) <= close.median <= exact.median
    assert close[:3] + close[4:6] == exact[:3] + exact[4:6]
    assert sum(close.histogram) == sum(exact.histogram) == 801


def test_endless_fields_are_counted_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "MAX_FIELDS", 3)
    write(folder / "wide.tar", [(f"{n}", {f"f{n}": bytes(n)}) for n in range(10)])
    fields = {field.field: field.occurrences for field in summarize(ls(["wide.tar"])).fields}
    assert fields == {"f0": 1, "f1": 1, "f2": 1, "(others)": 7}


def test_far_away_shards_are_listed_from_their_index(folder: Path, run: Run) -> None:
    fsspec = pytest.importorskip("fsspec")
    from wdscli.samples import iter_batches
    from wdscli.shards.index import IndexBuilder
    from wdscli.storage import open_source

    builder, marked = IndexBuilder(), IndexBuilder()
    with open_source("dogs.tar") as source:
        for batch in iter_batches(source):
            builder.add_batch(batch)
            marked.add_batch(batch._replace(keys=[key.replace(b"n02/d", b"n02/D") for key in batch.keys]))
    data = (folder / "dogs.tar").read_bytes()
    memory = fsspec.filesystem("memory")
    base = f"/ls-{os.getpid()}"
    memory.pipe(f"{base}/dogs.tar", data)
    address = f"memory:/{base}/dogs.tar"
    expected = run("-l", "dogs.tar").out.replace(b"dogs.tar", address.encode())
    assert run("-l", address).out == expected
    memory.pipe(f"{base}/.wds/dogs.tar.wdx", marked.to_bytes(shard="dogs.tar", size=len(data)))
    assert "index" in run(address).err or b"n02/D" in run(address).out
    memory.pipe(f"{base}/.wds/dogs.tar.wdx", builder.to_bytes(shard="dogs.tar", size=len(data)))
    assert run("-l", address).out == expected
    assert run("--where", "cls == 2", address).rows == [["n02/d", "jpg,cls", "513"]]
    memory.pipe(f"{base}/dogs.tar", (folder / "cats.tar").read_bytes())
    stale = run(address)
    assert "is not used" in stale.err
    assert stale.rows[0][0] == "n01/a"


def test_samples_in_several_parts_are_said(tmp_path: Path) -> None:
    """`ls` printed four half samples without a word."""
    for name in ("i.tar", "j.tar"):
        (tmp_path / name).write_bytes(
            tar_of([("0.png", b""), ("1.png", b""), ("0.txt", b""), ("1.txt", b"")])
        )
    for words in (
        ["ls"],
        ["ls", "--summary"],
        ["ls", "--by", "shard"],
        ["ls", "--show"],
        ["cat", "--to", "jsonl"],
    ):
        ran = wds(*words, f"{tmp_path}/i.tar", f"{tmp_path}/j.tar")
        assert ran.err.count(f'warning: "0" of {tmp_path}/i.tar is in several parts: ') == 1, words
        assert "wds repair" in ran.err
