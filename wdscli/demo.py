"""This module writes small labelled pictures to try commands on: ``python -m wdscli.demo FOLDER [COUNT]``.

The program makes a folder of JPEG pictures for each shape. Next to each picture are its caption (txt) and its facts
(json). The same count gives the same files. The program needs Pillow, and no other module of wdscli.
"""

from __future__ import annotations

import json
import random
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

SHAPES = ("circle", "square", "triangle")
COLOURS = ("crimson", "darkorange", "gold", "forestgreen", "royalblue", "purple")
LICENCES = ("cc0", "cc-by", None)
WIDTH, HEIGHT = 128, 96


def write_pictures(folder: Path, count: int) -> None:
    """Write ``count`` pictures, with their captions and facts, below ``folder``."""
    for number in range(count):
        draw = random.Random(number)
        shape, colour = SHAPES[number % len(SHAPES)], draw.choice(COLOURS)
        stem = folder / shape / f"{number:04d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        picture = paint(draw, shape, colour)
        picture.save(stem.with_suffix(".jpg"), quality=85)
        stem.with_suffix(".txt").write_text(f"a {colour} {shape}")
        facts = {"width": WIDTH, "height": HEIGHT, "score": number % 40 / 40, "licence": LICENCES[number % 3]}
        stem.with_suffix(".json").write_text(json.dumps(facts))


def paint(draw: random.Random, shape: str, colour: str) -> Image.Image:
    """Paint a coloured shape on a noisy grey background."""
    from PIL import Image, ImageDraw

    noise = draw.randbytes((WIDTH // 8) * (HEIGHT // 8))
    picture = Image.frombytes("L", (WIDTH // 8, HEIGHT // 8), noise).resize((WIDTH, HEIGHT)).convert("RGB")
    side = draw.randrange(30, 60)
    left, top = draw.randrange(WIDTH - side), draw.randrange(HEIGHT - side)
    pen = ImageDraw.Draw(picture)
    if shape == "circle":
        pen.ellipse((left, top, left + side, top + side), fill=colour)
    else:
        corners = 4 if shape == "square" else 3
        pen.regular_polygon((left + side // 2, top + side // 2, side // 2), corners, fill=colour)
    return picture


if __name__ == "__main__":
    parser = ArgumentParser(
        "python -m wdscli.demo", description="Write small labelled pictures to try commands on."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int, nargs="?", default=120)
    arguments = parser.parse_args()
    try:
        write_pictures(arguments.folder, arguments.count)
    except ImportError:
        sys.exit("error: the pictures are drawn with Pillow\nhint: pip install Pillow")
