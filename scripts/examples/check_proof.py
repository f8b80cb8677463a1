"""Check a proof of absence without wdscli: ``check_proof.py PROOF LIST SHARD...``, where a SHARD may be a view.

It reads the names in local tars with Python's tarfile, and checks that the proof is of this list and of these keys, and
that no key of the list, which has one on each line, is among them. A search is complete only if every member is a file
or a folder with a safe name: a link could have the payload of a listed key. Payloads are not compared. ``wds verify
SHARDS --absent LIST --report PROOF`` makes a proof.
"""

import json
import re
import struct
import sys
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby
from pathlib import Path

NAME = re.compile(r"(?!__[^/]*__(?:/|$))((?:.*/)?[^./][^/.]*)\.[^/]+", re.DOTALL)


def keys_of(path: str) -> list[bytes]:
    """The keys of a tar: names up to the first dot after the last slash, once for neighbours with the same key."""
    with tarfile.open(path, "r:*", encoding="utf-8", errors="surrogateescape") as tar:
        members = tar.getmembers()
    for member in members:
        name = member.name
        is_file = member.isreg() and not member.issparse() and not (member.size and name.endswith("/"))
        is_safe = name and name[0] != "/" and ".." not in name.split("/") and "\0" not in name
        if not (is_safe and (is_file or member.isdir())):
            sys.exit(f"the search is not complete: {path} has a member that is no clear file: {name!r}")
    names = (NAME.fullmatch(member.name) for member in members if member.isreg())
    return [key for key, _ in groupby(name[1].encode("utf-8", "surrogateescape") for name in names if name)]


def keys_of_shards(path: str) -> Iterator[list[bytes]]:
    """The keys of a tar, or of each shard of a view: those of its bases, or new ones."""
    if not path.endswith(".json"):
        yield keys_of(path)
        return
    view, stored = json.loads(Path(path).read_text()), Path(path).with_suffix(".rows")
    bases = [keys_of(str(Path(path).parent / base["url"])) for base in view["bases"]]
    rows = stored.read_bytes() if stored.exists() else b""
    for shard, parts in zip(view["shardlist"], view["view"]["shards"], strict=True):
        count = shard["nsamples"]
        keys = [b""] * count
        if "runs" in parts:
            sets = [[(base, at + i) for base, at, n in some for i in range(n)] for some in parts["runs"]]
        else:
            numbers = struct.unpack_from(f"<{parts['rows'][1] // 4}I", rows, parts["rows"][0])
            starts = range(0, len(numbers), 2 * count)
            sets = [list(zip(numbers[at:][:count], numbers[at + count :][:count])) for at in starts]
        for places in sets:
            for sample, (base, place) in enumerate(places):
                keys[sample] = bases[base][place] if 0 <= base < len(bases) else keys[sample]
        if "keys" in parts:
            at = parts["keys"][0] + 4
            (renamed,) = struct.unpack_from("<I", rows, at - 4)
            numbers, at = struct.unpack_from(f"<{2 * renamed}I", rows, at), at + 8 * renamed
            for sample, length in zip(numbers[:renamed], numbers[renamed:], strict=True):
                keys[sample], at = rows[at : at + length], at + length
        yield keys


def main(proof_path: str, list_path: str, *shards: str) -> str:
    """Compare, and return what is wrong; empty if nothing is."""
    with open(proof_path, encoding="utf-8") as file, open(list_path, "rb") as listed:
        proof, text = json.load(file), listed.read()
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    absent = {line.removesuffix(b"\r") for line in lines if line.strip()}
    if proof["list"]["sha256"] != sha256(text).hexdigest():
        return "the proof is of another list"
    if proof["list"]["keys"] != len(absent) or b"".join(lines).lstrip()[:1] == b"{":
        return "the list is a table: make a proof of a text file with one key per line"
    if not proof["complete"]:
        return "the search was not complete: some members could not be read, or are links or other special members"
    keys_by_shard = [keys for path in shards for keys in keys_of_shards(path)]
    digests = [sha256(b"\n".join([*keys, b""])).hexdigest() for keys in keys_by_shard]
    if digests != [shard["keys"] for shard in proof["shards"]]:
        return "the proof is of shards with other keys"
    present = absent & {key for keys in keys_by_shard for key in keys}
    return f"{len(present)} keys of the list are there" if present or proof["found"] else ""


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]) or print("no key of the list is in these shards"))
