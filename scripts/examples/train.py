"""Train a small network on labelled pictures, and continue after a kill at any moment: ``train.py SET``.

    wds create photos -o 'set/train-%06d.tar' --label-from parent
    python scripts/examples/train.py set --checkpoint run.pt --workers 2        # kill it after a while
    python scripts/examples/train.py set --checkpoint run.pt --workers 3        # continues with the next batch

The final weights are exactly those of an uninterrupted run, for any numbers of workers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import wdscli.loader as wds

SIDE = 32


def prepare(picture: Any) -> numpy.ndarray:
    """A picture as 3 x SIDE x SIDE numbers from 0 to 1."""
    small = picture.convert("RGB").resize((SIDE, SIDE))
    return numpy.asarray(small, dtype=numpy.float32).transpose(2, 0, 1) / 255


def network(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 7 * 7, classes),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.partition("\n")[0])
    parser.add_argument("set", help="a folder of shards, a manifest, ...")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=5, help="batches between checkpoints")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    data = (
        wds.WebDataset(options.set, shuffle="window", seed=1)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(prepare, int)
        .batched(options.batch)
    )
    loader = wds.WebLoader(data, num_workers=options.workers)
    steps = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        steps = saved["steps"]
        print(f"continuing after batch {steps}", flush=True)

    while loader.epoch < options.epochs:
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(torch.as_tensor(pictures)), torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % options.every == 0:
                save(options.checkpoint, model, optimizer, loader, steps)
                print(f"epoch {loader.epoch} batch {steps}: loss {loss.item():.3f}", flush=True)
    print(f"{steps} batches, weights {fingerprint(model)}")


def save(path: Path, model: nn.Module, optimizer: Any, loader: Any, steps: int) -> None:
    """Write a checkpoint atomically: a kill during the write leaves the old one."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "steps": steps,
    }
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def fingerprint(model: nn.Module) -> str:
    """A digest of all weights."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:32]


if __name__ == "__main__":
    main()
