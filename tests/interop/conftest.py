"""Sets for the real readers: written by our own writer, small, with payloads that every reader can decode.

Run by ``scripts/test --interop`` in an environment of its own. Nothing here asks the network: Hugging Face's library is
told so before it is imported.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from wdscli.shards import ShardWriter

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["WIDS_VERBOSE"] = "0"

Fields = Mapping[str, bytes]


def png(shade: int) -> bytes:
    """A picture of one grey pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes([0, shade]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def samples(count: int = 10) -> dict[str, Fields]:
    """Samples with a class, a caption, a picture and a text; the text has no bytes in the third."""
    return {
        f"n01/img{number:04d}": {
            "cls": b"%d" % (number % 3),
            "json": json.dumps({"caption": f"picture {number}"}).encode(),
            "png": png(number),
            "txt": b"" if number == 2 else b"text of %d" % number,
        }
        for number in range(count)
    }


def write_set(folder: Path, content: Mapping[str, Fields], **options: object) -> list[str]:
    """``content`` as shards of four samples named train-000000.tar and so on; their paths."""
    options.setdefault("max_count", 4)
    with ShardWriter(str(folder / "train-%06d.tar"), **options) as writer:  # type: ignore[arg-type]
        for key, fields in content.items():
            writer.write(key, fields)
    return [str(folder / shard.name) for shard in writer.manifest.shards]


def flagged(shards: list[str], profile: str) -> set[str]:
    """The codes of what ``verify --profile`` finds that this reader alone minds."""
    from verify_options import checks_of

    from wdscli.verify.set import verify

    report = verify(shards, checks_of(profiles=[profile]))
    return {finding.code for finding in report.findings if finding.code.startswith(profile + "-")}


@pytest.fixture
def content() -> dict[str, Fields]:
    return samples()


@pytest.fixture
def shards(tmp_path: Path, content: dict[str, Fields]) -> list[str]:
    """The paths of a set of three shards."""
    return write_set(tmp_path / "set", content)


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of the readers go where the test's files go."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "wids"))


sys.path.insert(0, str(Path(__file__).parent))
