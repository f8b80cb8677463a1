"""Count the samples of sets with webdataset, and compare with their manifests: ``_readback.py FOLDER...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# webdataset can count without torch, which takes two seconds to load.
sys.modules["torch"] = None  # type: ignore[assignment]
import webdataset  # noqa: E402


def main(folder: Path) -> int:
    manifest = json.loads(next(folder.glob("*manifest.json")).read_text())
    urls = [str(folder / shard["url"]) for shard in manifest["shardlist"]]
    read = sum(1 for _ in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
    listed = sum(shard["nsamples"] for shard in manifest["shardlist"])
    print(f"webdataset read {read} samples from {len(urls)} shards; the manifest says {listed}")
    return 0 if read == listed else 1


if __name__ == "__main__":
    sys.exit(max([main(Path(folder)) for folder in sys.argv[1:]]))
