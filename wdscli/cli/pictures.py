"""Small pictures on a terminal: kitty's protocol, sixels, or half blocks.

:func:`draw` makes the bytes of a picture for standard output. Environment variables show whether the terminal knows
kitty's protocol or sixels. Other terminals get half blocks: two pixels in each character, as its foreground and
background colours. Nothing is drawn in a pipe, without colours, or without Pillow, which is optional. This module does
not know where pictures come from.
"""

from __future__ import annotations

import os
import shutil
import sys
from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from wdscli.arrays import numpy
from wdscli.cli.output import takes_colour
from wdscli.codecs.handlers import MAX_DECODED_BYTES

WIDTH, HEIGHT = 360, 240
"""Width and height of the largest picture, in pixels."""
COLUMNS, LINES = 60, 20
"""Width and height of the largest picture of half blocks, in characters."""
_COLOURS = 64
_CHUNK_BYTES = 4096
_KITTY, _SIXEL = ("WezTerm", "ghostty"), ("iTerm.app", "mintty")
_SIXEL_TERMS = ("foot", "mlterm", "contour", "yaft")


def draw(data: bytes) -> bytes:
    """Return a picture as bytes for standard output, with a line break at its end. They are empty if nothing can be
    drawn."""
    from wdscli.codecs.images import opened_image
    from wdscli.look.unpack import visible

    way = protocol(os.environ) if takes_colour(sys.stdout) else ""
    if not way:
        return b""
    is_blocks = way == "blocks"
    room = min(COLUMNS, shutil.get_terminal_size().columns - 1), 2 * LINES
    try:
        image = opened_image(data, MAX_DECODED_BYTES)
        image.draft(None, (2 * WIDTH, 2 * HEIGHT))
        image = visible(image)
        image.thumbnail(room if is_blocks else (WIDTH, HEIGHT))
    except Exception:
        # Pillow may be missing, and its plugins may raise any error for broken data.
        return b""
    return {"kitty": _kitty, "sixel": _sixels, "blocks": _blocks}[way](image)


def protocol(environ: Mapping[str, str]) -> str:
    """Return the best way to show pictures on a terminal: ``kitty``, ``sixel`` or ``blocks``.

    >>> protocol({"TERM": "xterm-kitty"}), protocol({"TERM": "foot"}), protocol({"TERM": "xterm"})
    ('kitty', 'sixel', 'blocks')
    """
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if environ.get("TMUX") or term.startswith(("screen", "tmux")):
        return "blocks"
    if "kitty" in term or environ.get("KITTY_WINDOW_ID") or program in _KITTY:
        return "kitty"
    return "sixel" if "sixel" in term or term.startswith(_SIXEL_TERMS) or program in _SIXEL else "blocks"


def _kitty(image: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    text = b64encode(stream.getvalue())
    parts = []
    for start in range(0, len(text), _CHUNK_BYTES):
        first = b"a=T,f=100," if start == 0 else b""
        is_continued = start + _CHUNK_BYTES < len(text)
        parts.append(b"\x1b_G%bm=%d;%b\x1b\\" % (first, is_continued, text[start : start + _CHUNK_BYTES]))
    return b"".join(parts) + b"\n"


def _sixels(image: Any) -> bytes:
    """Encode a picture as sixels: bands of six lines, and in each band one run of characters per colour."""
    image = image.convert("RGB").quantize(_COLOURS)
    palette = image.getpalette()
    pixels = numpy.asarray(image)
    parts = [b'\x1bPq"1;1;%d;%d' % image.size]
    for colour in range(len(palette) // 3):
        shares = [level * 100 // 255 for level in palette[3 * colour : 3 * colour + 3]]
        parts.append(b"#%d;2;%d;%d;%d" % (colour, *shares))
    for top in range(0, len(pixels), 6):
        band = pixels[top : top + 6]
        bits = 1 << numpy.arange(len(band))
        for colour in numpy.unique(band):
            line = (63 + bits @ (band == colour)).astype(numpy.uint8).tobytes()
            parts.append(b"#%d%b$" % (colour, line.rstrip(b"?")))
        parts.append(b"-")
    return b"".join(parts) + b"\x1b\\\n"


def _blocks(image: Any) -> bytes:
    """Draw two pixels, one above the other, as an upper half block in their two colours."""
    pixels = numpy.asarray(image.convert("RGB")).tolist()
    is_true = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    lines = []
    for upper, lower in zip(pixels[::2], [*pixels[1::2], pixels[-1]]):
        cells = [
            f"\x1b[{_colour(38, top, is_true)};{_colour(48, bottom, is_true)}m▀"
            for top, bottom in zip(upper, lower)
        ]
        lines.append("".join(cells) + "\x1b[0m\n")
    return "".join(lines).encode()


def _colour(layer: int, levels: list[int], is_true: bool) -> str:
    """Return the code of a 24-bit colour. Some terminals get the nearest of the 216 standard colours instead."""
    red, green, blue = levels if is_true else [round(level / 51) for level in levels]
    return f"{layer};2;{red};{green};{blue}" if is_true else f"{layer};5;{16 + 36 * red + 6 * green + blue}"
