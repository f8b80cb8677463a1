"""The same bytes as before: forty command lines over seeded sets, with digests of all that they write.

Each case runs in a folder of its own, on sets that :mod:`awkward_sets` and :mod:`shard_cases` make from fixed numbers:
canonical and foreign headers, pax names, global headers, repeated keys, empty shards, samples larger than a buffer.
Compared are one digest of the shards, one of all other files (manifests, indexes), and the exit codes. The digests lie
in ``golden/same_bytes.json``. Where output is *meant* to change, ``WDSCLI_NEW_DIGESTS=1 pytest
tests/commands/test_same_bytes.py`` writes them anew, and the change of that file is what a reviewer looks at.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from awkward_sets import flat, plain, write_awkward
from shard_cases import numbered, tar_of

from wdscli.cli.main import main

GOLDEN = Path(__file__).parents[1] / "golden" / "same_bytes.json"
NEW = os.environ.get("WDSCLI_NEW_DIGESTS") == "1"
OUT = "out/o-%06d.tar"
PARTS = "out/{part}-%06d.tar"
CUT = ("--max-size", "64KiB")

# name -> command lines, run one after the other; the digest is of what is in out/ in the end.
CASES: dict[str, Sequence[Sequence[str]]] = {
    "split by count": [("split", "all", "-o", OUT, "--max-count", "9")],
    "split by size": [("split", "all", "-o", OUT, *CUT)],
    "split into five": [("split", "all", "-o", OUT, "--shards", "5")],
    "split divisible": [("split", "all", "-o", OUT, "--max-count", "20", "--divisible-by", "4")],
    "split by ratio": [("split", "all", "-o", PARTS, "--ratio", "train=0.7,val=0.2,test=0.1", "--max-count", "9")],
    "split by ratio, groups": [
        ("split", "all", "-o", PARTS, "--ratio", "a=3,b=1", "--group-by", r"(\w)\d*$", "--missing", "skip")
    ],
    "split by ratio, classes": [
        ("split", "even", "-o", PARTS, "--ratio", "a=0.6,b=0.4", "--stratify", "cls", "--seed", "5")
    ],
    "split by class": [("split", "all", "-o", PARTS, "--by", "cls", "--missing", "none", *CUT)],
    "split by place in JSON": [("split", "all", "-o", PARTS, "--by", "json.w", "--missing", "skip")],
    "split by map": [("split", "even", "-o", PARTS, "--by", "@map.tsv", "--missing", "rest")],
    "split, some fields": [("split", "all", "-o", OUT, "--fields", "cls,json", *CUT)],
    "split, renamed": [("split", "even", "-o", OUT, "--rename", "label=cls", "--drop", "txt", "--shards", "2")],
    "split, a slice": [("split", "even", "-o", OUT, "--slice", "3:40:2", "--max-count", "7")],
    "split, where": [("split", "even", "-o", OUT, "--where", "json.w >= 2", "--max-count", "7")],
    "split, keys": [("split", "all", "-o", OUT, "--keys", "*s*", "--shards", "2")],
    "shuffle": [("shuffle", "all", "-o", OUT, "--seed", "3", *CUT)],
    "shuffle, spill": [("shuffle", "all", "-o", OUT, "--seed", "3", "--strategy", "spill", *CUT)],
    "shuffle, spill of the indexed": [
        ("shuffle", "indexed", "-o", OUT, "--seed", "4", "--strategy", "spill", "--max-count", "8")
    ],
    "shuffle, two jobs": [("shuffle", "all", "-o", OUT, "--seed", "3", "-j2", *CUT)],
    "shuffle, keys renamed": [("shuffle", "all", "-o", OUT, "--rekey", "{shard}-{index:09d}", *CUT)],
    "shuffle, repeats refused": [("shuffle", "repeats", "-o", OUT)],
    "shuffle, repeats left out": [("shuffle", "repeats", "-o", OUT, "--on-duplicate", "skip", "--max-count", "7")],
    "shuffle, repeats renamed": [("shuffle", "repeats", "-o", OUT, "--on-duplicate", "rekey", "--max-count", "7")],
    "shuffle of a cut shard": [("shuffle", "cut", "-o", OUT)],
    "shuffle of a cut shard, salvaged": [("shuffle", "cut", "-o", OUT, "--on-error", "skip", "--shards", "2")],
    "shuffle by a plan": [
        ("shuffle", "all", "-o", OUT, "--seed", "9", "--plan", "the.plan", *CUT),
        ("run", "the.plan", "--task", "1"),
        ("run", "the.plan"),
    ],
    "shuffle gone on with": [
        ("shuffle", "all", "-o", OUT, "--seed", "3", "--plan", "the.plan", *CUT),
        ("run", "the.plan", "--task", "0-2"),
        ("shuffle", "all", "-o", OUT, "--seed", "3", "--resume", *CUT),
    ],
    "sort by key": [("sort", "all", "-o", OUT, "--by", "key", *CUT)],
    "sort by key, natural, reverse": [("sort", "all", "-o", OUT, "--by", "key:Vr", *CUT)],
    "sort by class, then key": [("sort", "all", "-o", OUT, "--by", "cls", "--by", "key:r", *CUT)],
    "sort by place in JSON": [("sort", "all", "-o", OUT, "--by", "json.w:n", "--missing", "first", *CUT)],
    "sort by payload": [("sort", "even", "-o", OUT, "--by", "txt", "--strategy", "spill", "--shards", "3")],
    "merge": [("merge", "even", "all", "-o", OUT, "--shards", "3")],
    "merge in turns": [("merge", "even", "indexed", "-o", OUT, "--weights", "equal", *CUT)],
    "merge by weight": [
        ("merge", "even", "indexed", "-o", OUT, "--weights", "0.7,0.3", "--stop", "first", "--max-count", "9")
    ],
    "merge, repeats left out": [("merge", "repeats", "-o", OUT, "--dedup", "key", "--max-count", "9")],
    "merge, equal payloads left out": [("merge", "repeats", "-o", OUT, "--dedup", "cls,json", "--max-count", "9")],
    "join, inner": [("merge", "even", "beside", "-o", OUT, "--join", "inner", "--max-count", "9")],
    "join, outer": [("merge", "even", "beside", "indexed", "-o", OUT, "--join", "outer", "--max-count", "9")],
    "join, the right wins": [
        ("merge", "even", "again", "-o", OUT, "--join", "left", "--on-conflict", "right", "--shards", "3")
    ],
    "join, both stay": [
        ("merge", "even", "again", "-o", OUT, "--join", "inner", "--on-conflict", "suffix", "--strategy", "spill")
    ],
    "join with a table": [
        ("merge", "even", "-o", OUT, "--table", "table.csv", "--key-column", "id", "--column", "cap.txt=caption")
    ],
    "cat": [("cat", "all", "-o", "out/o.tar")],
    "create from a table": [
        ("create", "--from", "table.csv", "--key-column", "id", "--column", "txt=caption", "-o", OUT,
         "--max-count", "7")
    ],
}  # fmt: skip


def write_sets(folder: Path) -> None:
    """``all`` and ``repeats`` have everything that is awkward, ``even`` and the others are plain; ``beside`` and
    ``again`` have keys of ``even``, in another order, and ``again`` fields of it too."""
    write_awkward(folder / "all")
    write_awkward(folder / "repeats", repeats=True)
    even = plain("e", 43)
    for number, sample in enumerate(even):
        sample.append((f"{sample[0][0][:-4]}.txt", b"text %d" % (number * 31 % 17)))
    sets = {
        "even": [tar_of(flat(even[:20])), tar_of(flat(even[20:]), format=tarfile.PAX_FORMAT, mtime=7.5)],
        "indexed": [tar_of(flat(numbered(31, "n"))), tar_of(flat(numbered(12, "m", (5, 60000, 3))))],
        "beside": [
            tar_of([(f"{one[0][0][:-4]}.seg.png", b"seg" * n) for n, one in enumerate(even[40:4:-1])])
        ],
        "again": [tar_of([(one[0][0], b"9") for one in even[30:3:-1]])],
        "cut": [tar_of(flat(plain("c", 9))), tar_of(flat(plain("d", 9)))[:-9000]],
    }
    for name, shards in sets.items():
        (folder / name).mkdir()
        for number, data in enumerate(shards):
            (folder / name / f"{name}-{number}.tar").write_bytes(data)
    keys = [one[0][0][:-4] for one in even]
    (folder / "map.tsv").write_text("".join(f"{key}\t{'xyz'[n % 3]}\n" for n, key in enumerate(keys[:30])))
    rows = [f"{key},caption {n}\n" for n, key in enumerate(keys[5:])]
    (folder / "table.csv").write_text("id,caption\n" + "".join(rows))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("same")
    write_sets(folder)
    shards = sorted(map(str, (folder / "indexed").glob("*.tar")))
    assert main(["index", "-q", *shards]) == 0
    return folder


def digest_of(files: Sequence[Path], root: Path) -> str:
    """One digest of names and contents."""
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", CASES)
def test_same_bytes_as_before(name: str, sets: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for item in sets.iterdir():
        if item.is_dir():
            shutil.copytree(item, tmp_path / item.name)
        else:
            shutil.copy(item, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    jobs = [
        [] if words[0] == "run" or "-j2" in words or words[0] in ("cat", "create") else ["-j1"]
        for words in CASES[name]
    ]
    codes = [main([*words, *more, "-q"]) for words, more in zip(CASES[name], jobs, strict=True)]
    files = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())
    shards = [path for path in files if path.suffix == ".tar"]
    found = {
        "exit": codes,
        "files": len(files),
        "shards": digest_of(shards, tmp_path),
        "others": digest_of([path for path in files if path not in shards], tmp_path),
    }
    if NEW:
        known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        lines = [
            f'"{case}": {json.dumps(known[case])}'
            for case in CASES
            if case in (known := {**known, name: found})
        ]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == json.loads(GOLDEN.read_text())[name]


SETS = ("all", "even", "indexed", "beside", "again")
"""The sets that can be bases of a view: no key comes twice, and no shard is cut."""
OF_VIEWS = [
    name
    for name, lines in CASES.items()
    if not {"repeats", "cut", "create"} & {word for words in lines for word in words}
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OF_VIEWS)
def test_views_as_inputs_give_the_same_bytes(name: str, sets: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Each input is a view of the whole set."""
    for item in sets.iterdir():
        if item.is_dir():
            shutil.copytree(item, tmp_path / item.name)
        else:
            shutil.copy(item, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    given = {word for words in CASES[name] for word in words} & set(SETS)
    for one in given:
        assert main(["cat", one, "-o", f"{one}.json", "-q"]) == 0
    for words in CASES[name]:
        line = [f"{word}.json" if word in given else word for word in words]
        assert main([*line, "-q"]) == 0
    assert (
        digest_of(sorted((tmp_path / "out").rglob("*.tar")), tmp_path)
        == json.loads(GOLDEN.read_text())[name]["shards"]
    )


def test_there_are_forty_and_each_is_known() -> None:
    assert len(CASES) >= 40
    assert list(json.loads(GOLDEN.read_text())) == list(CASES)
