"""Views of each kind, and the sets of shards that the same commands write: for tests that give both to a command."""

from __future__ import annotations

import json
import random
from pathlib import Path

from shard_cases import wds

from wdscli.shards import ShardWriter

KEYS = [f"d/k{number:02d}" for number in range(26)]

# name -> the command without -o, and the names of the shards. The command reads sets by relative paths.
VIEWS: dict[str, tuple[str, str]] = {
    "whole": ("cat photos", "{name}"),
    "removed": ("split photos --not-keys-from out.txt", "{name}"),
    "aligned": ("merge --join left photos captions", "{name}"),
    "apart": ("merge --join left photos scores", "{name}"),
    "outer": ("merge --join outer scores photos captions", "v-%06d"),
    "shuffled": ("shuffle photos --seed 3 --max-count 11", "v-%06d"),
    "renamed": ("split photos --rekey x/{key}-{n} --rename image=jpg --drop cls2", "{name}"),
    "foreign": ("sort strangers --by key:r --max-count 9", "v-%06d"),
    "view of views": ("shuffle aligned.json removed.json --on-duplicate rekey --max-count 13", "v-%06d"),
}


def write_bases(folder: Path) -> None:
    """``photos`` in three shards; ``captions`` with the same keys in the same shards, ``scores`` of every other key in
    the opposite order; ``strangers``, a set by Python's tarfile, without indexes; ``other`` with keys of its own."""
    import tarfile

    from shard_cases import foreign_tar

    rng = random.Random(24)

    def photo(number: int) -> dict[str, bytes]:
        facts = {"w": number * 7 % 5, "name": f"p{number}"}
        fields = {"jpg": rng.randbytes(rng.choice([0, 300, 512, 5000])), "cls": b"%d" % (number % 3)}
        return {**fields, "cls2": b"z", "json": json.dumps(facts).encode()}

    sets = {
        "photos": {key: photo(number) for number, key in enumerate(KEYS)},
        "captions": {key: {"txt": f"caption of {key}".encode()} for key in KEYS},
        "scores": {key: {"score": key.encode()[-2:]} for key in KEYS[::-2]},
        "other": {f"o{number}": photo(number) for number in range(7)},
    }
    for name, samples in sets.items():
        with ShardWriter(f"{folder}/{name}/s-%06d.tar", max_count=10) as writer:
            for key, fields in samples.items():
                writer.write(key, fields)
    (folder / "strangers").mkdir()
    for number, form in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        members = [
            (f"f{number}/{'long' * 30 * (row == 3)}k{row}.{field}", payload)
            for row in range(8)
            for field, payload in photo(row).items()
        ]
        data = foreign_tar(members, format=form, mtime=1.5, uname="ann", mode=0o600)
        (folder / "strangers" / f"f-{number}.tar").write_bytes(data)
    (folder / "out.txt").write_text("".join(f"{key}\n" for key in (*KEYS[3:6], KEYS[0], KEYS[25])))
    (folder / "some.txt").write_text("d/k03\nd/k04\nx/d/k04-4\nf0/k1\n")


def write_views(folder: Path) -> None:
    """Write ``NAME.json``, and the same as shards into ``NAME/``, for each of :data:`VIEWS`."""
    for name, (command, shards) in VIEWS.items():
        plain = command.replace("aligned.json", "aligned").replace("removed.json", "removed")
        # Shards that a cut makes have the name of the view.
        stem = shards.replace("v-", f"{slug(name)}-")
        for line, output in ((command, f"{slug(name)}.json"), (plain, f"{slug(name)}/{stem}.tar")):
            ran = wds(*line.split(), "-o", output, "-q", cwd=folder)
            assert ran.code == 0, (line, ran.err)


def slug(name: str) -> str:
    return name.replace(" ", "-")
