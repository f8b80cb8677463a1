"""A set for the tests of report: pictures, sound, classes, captions, JSON, arrays, and names that are no friends."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import wave
from html.parser import HTMLParser
from pathlib import Path

import numpy
from PIL import Image

from wdscli.shards import ShardWriter

EVIL = '<script>document.title = "taken"</script><img src=x onerror="document.title=1">'
CLASSES = ["cat", "dog", "emu", "<b>fox</b>"]


def picture(number: int, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (20 + number % 5, 30), (number * 6 % 256, 90, 200)).save(stream, kind)
    return stream.getvalue()


def tone(seconds: float = 0.05) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        wave_form = (int(9000 * math.sin(at / 3)) for at in range(int(8000 * seconds)))
        sound.writeframes(b"".join(struct.pack("<h", one) for one in wave_form))
    return stream.getvalue()


def sample(number: int) -> dict[str, bytes]:
    stream = io.BytesIO()
    numpy.save(stream, numpy.zeros((2, number), "f4"))
    words = {"score": number / 2, "label": CLASSES[number % 4], "note": EVIL}
    return {
        "cls": b"%d" % (number % 4),
        "json": json.dumps(words).encode(),
        "npy": stream.getvalue(),
        "png": picture(number),
        "txt": (EVIL if number % 8 == 0 else f"sample number {number}").encode(),
        "wav": tone(),
    }


def write_set(folder: Path, count: int = 40, max_count: int = 10) -> Path:
    """Shards and a manifest."""
    with ShardWriter(f"{folder}/train-%06d.tar", max_count=max_count) as writer:
        for number in range(count):
            writer.write(f"n{number:03d}", sample(number))
    return folder


class Page(HTMLParser):
    """A page as a browser takes it apart: tags with their attributes, and the text of each section."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self._section = ""
        self._silent = False
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in ("script", "style")
        self.sections[self._section] += "" if tag == "wbr" else " "
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
            self.sections[self._section] = ""

    def handle_endtag(self, tag: str) -> None:
        self._silent = False
        self.sections[self._section] += " "
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.sections[self._section] += data

    def text(self, section: str = "") -> str:
        return re.sub(r"\s+", " ", self.sections[section]).strip()

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def keys(self) -> list[str]:
        """Of the samples on the contact sheet."""
        return re.findall(r"\bn\d{3}\b(?= )", self.text("samples")) if "samples" in self.sections else []
