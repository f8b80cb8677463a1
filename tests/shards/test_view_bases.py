"""Views over shards of other programs: webdataset, GNU tar, bsdtar and Python's tarfile, with and without indexes. A
view's shards have the bytes of the command without ``.json``, and the loader reads the same samples."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from shard_cases import foreign_tar, wds

from wdscli.loader import IndexedDataset, WebDataset
from wdscli.shards import ShardWriter
from wdscli.shards import view_shards as views
from wdscli.storage import open_source

Sample = tuple[str, dict[str, bytes]]


def samples_of(first: int) -> list[Sample]:
    """Samples with small and empty payloads, in folders, and with a name that needs more than one block."""
    rng = random.Random(first)
    found = []
    for number in range(first, first + 9):
        key = f"d{number % 2}/" + ("long-" * 40 if number % 4 == 3 else "") + f"k{number:02d}"
        sizes = [rng.choice([0, 1, 512, 3000]) for _ in range(3)]
        found.append(
            (key, {field: rng.randbytes(size) for field, size in zip(("jpg", "cls", "seg.png"), sizes)})
        )
    return found


def by_webdataset(path: Path, samples: list[Sample], tmp: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(path), mtime=1700000000.123456, user="ann", group="lab") as writer:
        for key, fields in samples:
            writer.write({"__key__": key, **fields})


def by_program(path: Path, samples: list[Sample], tmp: Path, *words: str) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    files = tmp / f"files-{path.stem}"
    names = []
    for key, fields in samples:
        for field, payload in fields.items():
            names.append(f"{key}.{field}")
            file = files / names[-1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(payload)
            os.utime(file, (1.7e9 + 0.25, 1.7e9 + 0.25))
    (tmp / "names").write_text("\n".join(names) + "\n")
    folders = ["d0", "d1"] if "bsdtar" not in words else []
    subprocess.run(
        [*words, "-cf", path, "-C", files, "--no-recursion", *folders, "-T", tmp / "names"], check=True
    )


def by_tarfile(path: Path, samples: list[Sample], tmp: Path, form: int) -> None:
    members = [(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields.items()]
    path.write_bytes(
        foreign_tar(members, format=form, mtime=1.5 if form == tarfile.PAX_FORMAT else 7, uname="ann")
    )


WRITERS: dict[str, tuple[Any, ...]] = {
    "webdataset": (by_webdataset,),
    "gnu": (by_program, "tar", "--format=gnu"),
    "gnu pax": (by_program, "tar", "--format=pax"),
    "gnu posix, sparse files": (by_program, "tar", "--format=posix", "--pax-option=comment=x"),
    "gnu v7": (by_program, "tar", "--format=v7"),
    "gnu ustar, blocks": (by_program, "tar", "--format=ustar", "-b", "40"),
    "gnu oldgnu": (by_program, "tar", "--format=oldgnu"),
    "bsdtar pax": (by_program, "bsdtar", "--format=pax"),
    "bsdtar gnutar": (by_program, "bsdtar", "--format=gnutar"),
    "tarfile ustar": (by_tarfile, tarfile.USTAR_FORMAT),
    "tarfile gnu": (by_tarfile, tarfile.GNU_FORMAT),
    "tarfile pax": (by_tarfile, tarfile.PAX_FORMAT),
}
SHORT = ("gnu v7", "gnu ustar, blocks", "gnu oldgnu", "tarfile ustar")
"""Formats that cannot hold, or cannot hold in one way, a name of more than 255 bytes."""

LINES = {
    "split": ("split base", "{name}"),
    "some": ("split base --slice 1::2 --drop cls", "{name}"),
    "renamed": ("split base --rekey y/{key} --rename image=jpg", "{name}"),
    "shuffle": ("shuffle base --seed 2 --max-count 5", "v-%06d"),
    "join": ("merge --join left base captions", "{name}"),
    "below": ("merge --join outer captions base", "v-%06d"),
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
@pytest.mark.parametrize("writer", WRITERS)
def test_views_of_other_programs_shards(
    writer: str, indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()
    write, *how = WRITERS[writer]
    everything: list[Sample] = []
    for number in range(2):
        samples = samples_of(20 * number)
        if writer in SHORT:
            samples = [(key.replace("long-" * 40, "long-" * 6), fields) for key, fields in samples]
        everything += samples
        write(Path(f"base/s-{number}.tar"), samples, tmp_path, *how)
    with ShardWriter("captions/c-%06d.tar", max_count=9) as captions:
        for number, (key, _) in enumerate(everything):
            if number % 5:
                captions.write(key, {"txt": key.encode()})
    if indexed:
        assert wds("index", "base", "-q").code == 0
    before = {path: path.read_bytes() for path in Path("base").glob("*.tar")}
    for name, (line, stem) in LINES.items():
        for output in (f"v{name}.json", f"flat-{name}/{stem.replace('v-', f'v{name}-')}.tar"):
            ran = wds(*line.split(), "-j1", "-q", "-o", output)
            assert ran.code == 0, (line, ran.err)
        shards = sorted(Path(f"flat-{name}").glob("*.tar"))
        views.forget()
        assert list(views.opened(f"v{name}.json").places) == [shard.name for shard in shards]
        for shard in shards:
            with open_source(f"v{name}.json/{shard.name}") as source:
                assert b"".join(source.pieces()) == shard.read_bytes(), (name, shard)
        ran = wds("cat", f"v{name}.json", "-o", f"real-{name}/{{name}}.tar", "-q")
        assert ran.code == 0, ran.err
        for shard in shards:
            assert Path(f"real-{name}", shard.name).read_bytes() == shard.read_bytes()
        for make in (WebDataset, IndexedDataset):
            flat, view = (
                [{key: value for key, value in one.items() if key != "__url__"} for one in make(given)]
                for given in (f"flat-{name}/", f"v{name}.json")
            )
            assert view == flat
        assert wds("diff", f"v{name}.json", f"flat-{name}").code == 0
        assert wds("verify", f"v{name}.json").code == 0
    assert {path: path.read_bytes() for path in Path("base").glob("*.tar")} == before


def test_verify_finds_in_a_view_what_it_finds_in_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a.jpg", "a.txt", "cc/c.jpg", "bb.jpg", "B.txt", "b.jpg", "d.jpg", "d.JPG"]
    for number, some in enumerate((names[:5], names[5:])):
        members = [(name, b"" if name in ("a.txt", "d.jpg") else b"x") for name in some]
        Path("base").mkdir(exist_ok=True)
        Path(f"base/x-{number}.tar").write_bytes(foreign_tar(members))
    for output in ("v.json", "flat/{name}.tar"):
        assert wds("split", "base", "-o", output).code == 0
    view, flat = (wds("verify", "--json", name) for name in ("v.json", "flat"))
    assert view.code == flat.code == 0
    assert view.out.replace(b"v.json/", b"flat/") == flat.out
    for code in (b"case-collision", b"mixed-fields", b"empty-payload"):
        assert b'"code":"%s"' % code in flat.out
