"""Small sets with everything in them that a reordering command may trip over: for the tests of byte identity."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from shard_cases import Members, numbered, tar_of

LARGE = 3 << 20
"""Payload bytes of a sample that is larger than the least memory a test asks for, and than any buffer."""


def plain(prefix: str, count: int) -> list[Members]:
    """Samples with a class that ties, a caption, and now and then a JSON that lacks the path looked for."""
    found = []
    for number in range(count):
        facts = {"w": number * 7 % 5} if number % 4 else {"other": 1}
        found.append(
            [
                (f"{prefix}/s{number:03d}.cls", b"%d" % (number % 3)),
                (f"{prefix}/s{number:03d}.json", json.dumps(facts).encode()),
                (f"{prefix}/s{number:03d}.jpg", bytes([number % 251]) * (number * 97 % 2000)),
            ]
        )
    return found


def flat(samples: list[Members]) -> Members:
    return [member for sample in samples for member in sample]


def ragged(samples: list[Members]) -> bytes:
    """Folders and files without a field between the members, by tarfile with times and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (name, payload) in enumerate(flat(samples)):
            if number % 4 == 1:
                tar.addfile(_info(f"folder{number}", 0, type=tarfile.DIRTYPE))
                tar.addfile(_info(f"README{number}", 5), io.BytesIO(b"hello"))
            tar.addfile(_info(name, len(payload), mtime=1.5 + number, uname="ann"), io.BytesIO(payload))
    return out.getvalue()


def _info(name: str, size: int, **facts: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info


def with_globals(samples: list[Members]) -> bytes:
    """A shard whose pax global header says something of all members."""
    out = io.BytesIO()
    told = {"comment": "of all", "ARCHIVE.id": "abc"}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers=told) as tar:
        for name, payload in flat(samples):
            tar.addfile(_info(name, len(payload), mode=0o600), io.BytesIO(payload))
    return out.getvalue()


def write_awkward(folder: Path, *, repeats: bool = False) -> list[str]:
    """Shards of every kind; all keys differ unless ``repeats`` adds two shards that say some again."""
    folder.mkdir(parents=True)
    long_name = "d" * 90 + "/" + "k" * 95
    shards = [
        tar_of(flat(plain("a", 23))),
        tar_of([]),
        tar_of(flat(plain("one", 1))),
        tar_of(flat(plain("foreign", 9)), format=tarfile.PAX_FORMAT, mtime=3.25, uid=7),
        tar_of([(f"{long_name}{n}.{f}", b"x" * n) for n in range(6) for f in ("cls", "txt", "jpg")]),
        tar_of([("sm\u00f6rg\u00e5s/\u2603.cls", b"1"), ("sm\u00f6rg\u00e5s/\u2603.txt", b"snow")]),
        tar_of([("huge.bin", b"h" * LARGE), ("huge.cls", b"2"), *flat(plain("beside", 3))]),
        ragged(plain("ragged", 7)),
        with_globals(plain("globals", 5)),
        tar_of(flat(numbered(31, "n"))),
    ]
    if repeats:
        shards += [tar_of(flat(plain("a", 9))), tar_of(flat([*plain("one", 1), *plain("last", 4)]))]
    names = []
    for number, data in enumerate(shards):
        path = folder / f"in-{number:02d}.tar"
        path.write_bytes(data)
        names.append(str(path))
    return names
