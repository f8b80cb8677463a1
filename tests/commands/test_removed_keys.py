"""A key that a view has taken out never comes back: whatever index lies beside its base, of what age, and whatever
the base has become. Each command and the loader gives what it gave before, or an error that names view and base."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran, foreign_tar, tar_of, wds

from wdscli.errors import DataError, WdsError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.shards import ShardReader
from wdscli.shards import view_shards as views

KEYS = [f"k{number:02}" for number in range(1, 12)]
"""Of one shard. An index is compared with the first, the middle and the last of them, so that the places of k02 and k03
are looked at by none but who reads them."""
GONE = "k03"
SWAPPED = [{"k02": "k03", "k03": "k02"}.get(key, key) for key in KEYS]

VIEWS = {
    "runs": "split a --not-keys-from out.txt -o v.json",
    "rows": "shuffle a --seed 1 --not-keys-from out.txt -o v.json",
    "rule": "split a --not-keys-from out.txt --rename text=txt -o v.json",
    "keys": "split a --not-keys-from out.txt --rekey x{n} -o v.json",
    "join": "merge --join inner a other --not-keys-from out.txt -o v.json",
    "foreign": "split foreign --not-keys-from out.txt -o v.json",
    "foreign rule": "split foreign --not-keys-from out.txt --rename text=txt -o v.json",
}

READERS = {
    "cat": "cat v.json -o -",
    "cat, slice": "cat v.json --slice : -o -",
    "cat, each": "cat v.json -o OUT/{name}.tar",
    "cat, keys": "cat v.json --keys *2 -o -",
    "cat, table": "cat v.json --to jsonl",
    "split": "split v.json -o OUT/o-%d.tar --max-count 2",
    "merge": "merge v.json third -o OUT/o-%d.tar",
    "join": "merge --join left v.json third -o OUT/o-%d.tar",
    "shuffle": "shuffle v.json -o OUT/o-%d.tar --max-count 3",
    "spill": "shuffle v.json -o OUT/o-%d.tar --strategy spill",
    "sort": "sort v.json --by key:r -o OUT/o-%d.tar",
    "sort, payload": "sort v.json --by md5 -o OUT/o-%d.tar",
    "map": "map v.json --filter cls cat -o OUT/o-%d.tar",
    "ls": "ls v.json",
    "ls, where": "ls v.json --where cls>=0",
    "verify": "verify v.json --json",
    "absent": "verify v.json --absent out.txt --report OUT/proof.json",
}


def payload(key: str) -> bytes:
    return b"secret" if key == GONE else f"of {key}".encode()


def members(keys: list[str]) -> list[tuple[str, bytes]]:
    return [
        (f"{key}.{field}", data) for key in keys for field, data in (("txt", payload(key)), ("cls", b"1"))
    ]


def base(keys: list[str], is_foreign: bool) -> bytes:
    if is_foreign:
        return foreign_tar(members(keys), format=tarfile.PAX_FORMAT, mtime=1.5)
    return tar_of(members(keys))


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "foreign", "other", "third", "strange"):
        Path(name).mkdir()
    for name in ("a", "foreign"):
        Path(name, "s-0.tar").write_bytes(base(KEYS, name == "foreign"))
    Path("other/s-0.tar").write_bytes(tar_of([(f"{key}.jpg", b"jpg") for key in KEYS]))
    Path("third/s-0.tar").write_bytes(tar_of([(f"z{number}.jpg", b"jpg") for number in range(3)]))
    # As large as the base, with other keys, and with k03 at another place.
    Path("strange/s-0.tar").write_bytes(base(KEYS[::-1], False))
    assert wds("index", "a", "foreign", "other", "strange", "-q").code in (0, 2)
    for name in ("a", "foreign", "other", "strange"):
        assert wds("index", name, "-q").code == 0
    Path("out.txt").write_text(f"{GONE}\n")


def _plain(data: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in data]


LOADED: dict[str, Callable[[], Any]] = {
    "in order": lambda: _plain(WebDataset("v.json")),
    "window": lambda: _plain(WebDataset("v.json", shuffle="window")),
    "fields": lambda: _plain(WebDataset("v.json", fields=["txt", "text"], shuffle="full")),
    "table": lambda: _plain(IndexedDataset("v.json")),
    "reader": lambda: [(one.key, dict(one)) for name in views.opened("v.json").places
                       for one in ShardReader(f"v.json/{name}")],
}  # fmt: skip


def read(name: str) -> tuple[Ran | None, bytes]:
    """What a reader gives: its exit code with its words, and all that it wrote."""
    views.forget()
    if name in LOADED:
        try:
            return None, repr(LOADED[name]()).encode()
        except WdsError as error:
            assert isinstance(error, DataError), error
            said = f"{error} {error.shard} {error.hint}"
            return Ran(error.exit_code, b"", said.encode()), b""
    shutil.rmtree("out", ignore_errors=True)
    Path("out").mkdir()
    words = READERS[name].replace("OUT", "out").split()
    ran = wds(*words, *(["-j1"] if words[0] in ("split", "merge", "shuffle", "sort", "map") else []))
    written = b"".join(
        path.read_bytes() for path in sorted(Path("out").rglob("*")) if path.suffix in (".tar", ".wdx")
    )
    return (ran if ran.code else None), ran.out + written


INDEXES = ["newer", "older", "missing", "strange", "made again"]


def put_index(kind: str, folder: str, before: bytes) -> None:
    """Put an index beside the base: that of before, of another shard, a new one, or none."""
    index, shard = Path(folder, ".wds/s-0.tar.wdx"), Path(folder, "s-0.tar")
    if kind == "missing":
        index.unlink()
    elif kind == "made again":
        assert wds("index", folder, "--force", "-q").code == 0
    else:
        index.write_bytes(Path("strange/.wds/s-0.tar.wdx").read_bytes() if kind == "strange" else before)
        os.utime(index, (1e9, 1e9) if kind == "older" else (2e9, 2e9))
        os.utime(shard, (1.5e9, 1.5e9))


@pytest.mark.parametrize("view", ["rows", "foreign rule"])
@pytest.mark.usefixtures("sets")
def test_a_removed_key_does_not_come_back(view: str) -> None:
    """By the readers that scan headers, those that go by the index, and the loader."""
    check(view, "swapped", "newer", ["cat", "cat, slice", "shuffle", "verify", "in order", "reader"])


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("change", ["none", "swapped"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.usefixtures("sets")
def test_a_removed_key_stays_removed(view: str, change: str, index: str) -> None:
    check(
        view, change, index, [name for name in [*READERS, *LOADED] if (name, view) != ("cat, keys", "keys")]
    )


def check(view: str, change: str, index: str, names: list[str]) -> None:
    """Make a view, change its base, put an index beside it, and read."""
    ran = wds(*VIEWS[view].split(), "-j1", "-q")
    assert ran.code == 0, ran.err
    before = {name: read(name) for name in names}
    assert all(trouble is None for trouble, _ in before.values()), [
        trouble.err for trouble, _ in before.values() if trouble
    ]
    folder = VIEWS[view].split()[3 if "--join" in VIEWS[view] else 1]
    kept = Path(folder, ".wds/s-0.tar.wdx").read_bytes()
    if change == "swapped":
        Path(folder, "s-0.tar").write_bytes(base(SWAPPED, folder == "foreign"))
    put_index(index, folder, kept)
    for name in names:
        trouble, found = read(name)
        assert b"secret" not in found, name
        assert GONE.encode() not in found or name == "absent", name
        if change == "none":
            assert trouble is None, (name, trouble.err)
            assert found == before[name][1], name
        elif trouble is None:
            # Keys alone, by an index that says what the base said.
            assert found == before[name][1], name
            assert name in ("ls", "ls, where") or change == "none", name
        else:
            text = trouble.err + trouble.out.decode()
            assert f"{folder}/s-0.tar" in text or "v.json" in text, (name, text)
            assert "Traceback" not in text
