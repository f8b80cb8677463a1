"""The sets of the bench: the same seeded samples, written in three ways.

What it is: ``tiny`` has two members of a few bytes a sample, ``text`` one of 2 KB, ``images`` a picture of 100 KB
(random bytes: nothing here decodes), a JSON caption and a class. How: ``canonical`` sets are written by wdscli, with
their index and manifest; ``gnu`` ones are what ``tar --format=gnu -cf`` makes of files of many ages, with owner and
mode, by Python's tarfile, because making half a million files takes minutes (tests/project/test_bench.py compares both
byte for byte); ``webdataset`` ones come from webdataset's own TarWriter. It must not know what is measured.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

KINDS = ("tiny", "text", "images")
COUNTS = {"tiny": 400_000, "text": 400_000, "images": 20_000}
QUICK = {"tiny": 20_000, "text": 20_000, "images": 2_000}
WAYS = {"canonical": "canonical", "gnu": "GNU tar's", "webdataset": "webdataset's"}
SHARDS = 4
MOST_FILES_OF = 200_000
"""Samples that are files too: a file of few bytes takes a page of memory and more."""
BYTES_PER_PICTURE = 110_000
"""What a sample of the set with the most bytes takes, at most."""

Sample = tuple[str, dict[str, bytes]]
OWNER_ID, OWNER, GROUP, MODE = 1000, "user", "users", 0o664
"""Whose the files of a set by GNU tar were."""
FIRST_AGE, LAST_AGE = 1_400_000_000, 1_700_000_000
"""When they were written, in seconds since 1970."""


class Data(NamedTuple):
    """Where a set lies and what is in it; ``by_processor`` is whether commands on it are measured by processor time."""

    folder: Path
    kind: str
    count: int
    way: str = "canonical"
    by_processor: bool = False

    @property
    def shards(self) -> list[Path]:
        return sorted((self.folder / "set").glob("*.tar"))

    @property
    def whole(self) -> Path:
        """The same samples in one shard, where that was made."""
        return min((self.folder / "whole").glob("*.tar"))

    @property
    def total_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.shards)


def samples(kind: str, count: int) -> Iterator[Sample]:
    """The samples of one set, the same every time."""
    seeded = random.Random(kind)
    blob = seeded.randbytes(1 << 20)
    for number in range(count):
        key = f"n{number % 100:02d}/img{number:07d}"
        label = b"%d" % (number % 100)
        at = seeded.randrange(len(blob) - 120_000)
        if kind == "tiny":
            yield key, {"cls": label, "id": b"%08d" % number}
        elif kind == "text":
            yield key, {"txt": blob[at : at + seeded.randrange(1500, 2500)]}
        else:
            caption = b'{"width": 640, "height": 480, "caption": "picture %d"}' % number
            yield (
                key,
                {"cls": label, "jpg": blob[at : at + seeded.randrange(80_000, 120_000)], "json": caption},
            )


def make_set(data: Data, shards: int = SHARDS) -> None:
    """The set in some shards, in ``set``."""
    (data.folder / "set").mkdir(parents=True)
    in_shard = -(-data.count // shards)
    if data.way == "canonical":
        write_canonical(data, "set", in_shard)
        return
    given = samples(data.kind, data.count)
    for number in range(shards):
        path = data.folder / "set" / f"{data.kind}-{number:06d}.tar"
        FOREIGN[data.way](path, islice(given, in_shard), random.Random(number))


def make_whole(data: Data) -> None:
    """The same samples in one shard, in ``whole``."""
    (data.folder / "whole").mkdir(parents=True)
    if data.way == "canonical":
        write_canonical(data, "whole", data.count)
    else:
        concatenate(data.shards, data.folder / "whole" / f"{data.kind}-000000.tar")


def make_tree(data: Data) -> None:
    """The same samples as files, in ``tree``, but not too many of them."""
    for key, fields in samples(data.kind, min(data.count, MOST_FILES_OF)):
        for field, payload in fields.items():
            path = data.folder / "tree" / f"{key}.{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(payload)


def make_view(data: Data) -> None:
    """The set with a caption beside each sample: as a view (``view/v.json``) of two sets of shards, and as shards
    (``view/flat``). All shards are written by the copier: files in memory that another writer made in other pieces are
    read up to a quarter slower."""
    from wdscli.plan.join import Join
    from wdscli.plan.orders import InputOrder
    from wdscli.plan.request import Request
    from wdscli.run.execute import reorder

    folder, in_shard = data.folder / "view", -(-data.count // SHARDS)
    write_canonical(data, "captions", in_shard, captioned=True)
    sets = []
    for name in ("set", "captions"):
        sets.append(f"{folder}/{name}")
        reorder(Request([f"{data.folder}/{name}"], f"{sets[-1]}/{{name}}.tar", jobs=1), InputOrder("split"))
    shutil.rmtree(data.folder / "captions")
    for output in ("v.json", "flat/{name}.tar"):
        reorder(Request(sets, f"{folder}/{output}", jobs=1), Join("left"))


def write_canonical(data: Data, name: str, in_shard: int, *, captioned: bool = False) -> None:
    """The samples of a set, or only a caption of each."""
    from wdscli.shards import ShardWriter

    with ShardWriter(f"{data.folder}/{name}/{data.kind}-%06d.tar", max_count=in_shard) as writer:
        for key, fields in samples(data.kind, data.count):
            writer.write(key, {"cap.txt": b"a caption of %s" % key.encode()} if captioned else fields)


def write_gnu(path: Path, given: Iterable[Sample], ages: random.Random) -> None:
    """Members of files of whole seconds' ages: GNU format says no more of a time."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key, fields in given:
            for field, payload in fields.items():
                member = tarfile.TarInfo(f"{key}.{field}")
                member.size, member.mode = len(payload), MODE
                member.mtime = ages.randrange(FIRST_AGE, LAST_AGE)
                member.uid = member.gid = OWNER_ID
                member.uname, member.gname = OWNER, GROUP
                tar.addfile(member, io.BytesIO(payload))


def write_webdataset(path: Path, given: Iterable[Sample], ages: random.Random) -> None:
    """Each member with the moment at which it was written, as webdataset does it: the only thing that is not seeded."""
    import webdataset

    with open(path, "wb") as stream, webdataset.TarWriter(stream, encoder=False) as writer:
        for key, fields in given:
            writer.write({"__key__": key, **fields})


FOREIGN: dict[str, Callable[[Path, Iterable[Sample], random.Random], None]] = {
    "gnu": write_gnu,
    "webdataset": write_webdataset,
}


def concatenate(shards: Iterable[Path], whole: Path) -> None:
    """One archive of several, as ``tar -A`` makes it. No member here ends in a block of zeros."""
    with open(whole, "wb") as out:
        for shard in shards:
            with open(shard, "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
                file.seek(-min(file.tell(), 2 * tarfile.RECORDSIZE), os.SEEK_END)
                tail = file.read()
            zeros = len(tail) - len(tail.rstrip(b"\0"))
            out.seek(-(zeros // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE), os.SEEK_CUR)
            out.truncate()
        end = out.tell() + 2 * tarfile.BLOCKSIZE
        out.truncate(-(-end // tarfile.RECORDSIZE) * tarfile.RECORDSIZE)


def wanted_dir(given: str | None, needed_bytes: int) -> Path:
    """A folder in memory where there is room, so that the disc's moods do not count; else the temporary one."""
    base = given
    if base is None and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > needed_bytes:
        base = "/dev/shm"
    return Path(tempfile.mkdtemp(prefix="wds-bench-", dir=base))
