"""Make a folder of labelled pictures for the demo: ``_pictures.py FOLDER COUNT``.

One folder per class, JPEG pictures of a shape on a noisy ground, a JSON caption beside each. The same count gives the
same pictures.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SHAPES = ("ellipse", "rectangle", "pieslice", "chord", "line")
COLOURS = ("crimson", "darkorange", "gold", "forestgreen", "royalblue", "purple")


def main(folder: Path, count: int) -> None:
    for number in range(count):
        draw = random.Random(number)
        shape, colour = draw.choice(SHAPES), draw.choice(COLOURS)
        stem = folder / shape / f"img{number:05d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        picture = paint(draw, shape, colour)
        picture.save(stem.with_suffix(".jpg"), quality=85)
        caption = {"caption": f"a {colour} {shape}", "width": picture.width, "height": picture.height}
        stem.with_suffix(".json").write_text(json.dumps(caption))


def paint(draw: random.Random, shape: str, colour: str) -> Image.Image:
    width, height = draw.choice((96, 128, 160)), draw.choice((96, 128, 160))
    ground = Image.frombytes("L", (width // 8, height // 8), draw.randbytes((width // 8) * (height // 8)))
    picture = ground.resize((width, height)).convert("RGB")
    pen = ImageDraw.Draw(picture)
    left, top = draw.randrange(width // 3), draw.randrange(height // 3)
    box = (left, top, left + width // 2, top + height // 2)
    if shape in ("pieslice", "chord"):
        getattr(pen, shape)(box, 20, 200, fill=colour)
    elif shape == "line":
        pen.line(box, fill=colour, width=8)
    else:
        getattr(pen, shape)(box, fill=colour)
    return picture


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
