"""Check a proof of absence without wdscli: ``check_proof.py PROOF LIST SHARD...``, where a SHARD may be a view.

It reads the names in local tars with Python's tarfile, and checks that the proof is of this list and of these keys, and
that no key of the list is among them. ``wds verify SHARDS --absent LIST --report PROOF`` makes a proof.
"""

import json
import os
import re
import struct
import sys
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby

NAME = re.compile(r"(?!__[^/]*__(?:/|$))((?:.*/)?[^./][^/.]*)\.[^/]+", re.DOTALL)


def keys_of(path: str) -> list[bytes]:
    """The keys of a tar: names up to the first dot after the last slash, once for neighbours with the same key."""
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        found = (NAME.fullmatch(member.name) for member in tar if member.isreg())
        return [key for key, _ in groupby(one[1].encode("utf-8", "surrogateescape") for one in found if one)]


def keys_of_view(path: str) -> Iterator[list[bytes]]:
    """The keys of each shard of a view: those of its bases, or new ones."""
    with open(path, encoding="ascii") as file:
        view = json.load(file)
    bases = [keys_of(os.path.join(os.path.dirname(path), base["url"])) for base in view["bases"]]

    def stored(start: int, length: int, _: str) -> bytes:
        with open(path.removesuffix(".json") + ".rows", "rb") as file:
            file.seek(start)
            return file.read(length)

    for shard, parts in zip(view["shardlist"], view["view"]["shards"], strict=True):
        count = shard["nsamples"]
        keys = [b""] * count
        if "runs" in parts:
            sets = [[(base, at + i) for base, at, n in some for i in range(n)] for some in parts["runs"]]
        else:
            numbers = struct.unpack(f"<{parts['rows'][1] // 4}I", stored(*parts["rows"]))
            starts = range(0, len(numbers), 2 * count)
            sets = [list(zip(numbers[at:][:count], numbers[at + count :][:count])) for at in starts]
        for places in sets:
            for sample, (base, place) in enumerate(places):
                keys[sample] = bases[base][place] if 0 <= base < len(bases) else keys[sample]
        if "keys" in parts:
            data = stored(*parts["keys"])
            (renamed,) = struct.unpack_from("<I", data)
            numbers, end = struct.unpack_from(f"<{2 * renamed}I", data, 4), 4 + 8 * renamed
            for sample, length in zip(numbers[:renamed], numbers[renamed:], strict=True):
                keys[sample], end = data[end : end + length], end + length
        yield keys


def main(proof_path: str, list_path: str, *shards: str) -> str:
    """Compare, and return what is wrong; empty if nothing is."""
    with open(proof_path, encoding="utf-8") as file, open(list_path, "rb") as listed:
        proof, text = json.load(file), listed.read()
    absent = {line.removesuffix(b"\r") for line in text.split(b"\n") if line.strip()}
    if proof["list"] != {"sha256": sha256(text).hexdigest(), "keys": len(absent)}:
        return "the proof is of another list"
    found = [
        keys for one in shards for keys in (keys_of_view(one) if one.endswith(".json") else [keys_of(one)])
    ]
    digests = [sha256(b"\n".join([*keys, b""])).hexdigest() for keys in found]
    if digests != [shard["keys"] for shard in proof["shards"]]:
        return "the proof is of shards with other keys"
    there = absent & {key for keys in found for key in keys}
    return f"{len(there)} keys of the list are there" if there or proof["found"] else ""


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]) or print("no key of the list is in these shards"))
