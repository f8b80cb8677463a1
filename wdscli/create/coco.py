"""Annotations as COCO has them: one JSON file about many pictures, to a row a picture.

What it is: :func:`coco_layout`. A row has the columns ``key`` (the file's name without its extension), ``image`` (where
the picture is) and ``json`` (what ``images`` says of it, and under ``annotations`` the list of its annotations, each
with the name of its category). How: the file's lists are read element by element, and elements lie in a temporary file
until all of them are known, so that memory is some twenty bytes an annotation. It must not know samples.
"""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from typing import IO, Any

from wdscli.create.layouts import Layout, TableOptions
from wdscli.errors import DataError, InputError
from wdscli.storage import exists, open_source
from wdscli.storage.addresses import split_folder
from wdscli.storage.streams import stream_of

_PIECE_CHARACTERS = 1 << 18
_TRIED = 20
"""So many pictures are looked for in a folder before it is given up."""
_LISTS = ("images", "annotations", "categories")


def coco_layout(options: TableOptions, files: Sequence[str]) -> Layout:
    """What is read of annotations, with the fields of a picture and its JSON where no others are named."""
    if not (options.fields or options.json_rest or options.json_merge):
        options = options._replace(fields=("*=@image", "json=json"))
    if options.key is None and options.rekey is None:
        options = options._replace(key="key")
    return Layout(files, lambda file, *_: _rows(file, options.images), options)


def _rows(address: str, folder: str | None) -> Iterator[dict[str, Any]]:
    import numpy
    from xxhash import xxh3_64_intdigest

    def hash_of(identity: Any) -> int:
        return xxh3_64_intdigest(repr(identity).encode())

    images, places, owners = array("q"), array("q"), array("Q")
    categories: dict[Any, str] = {}
    with TemporaryFile() as scratch:
        for name, element in _elements(address):
            if name == "categories":
                categories[element.get("id")] = element.get("name", "")
                continue
            at = scratch.tell()
            if name == "images":
                if not isinstance(element.get("file_name"), str) or not element["file_name"]:
                    raise DataError(f'{address}: an image without "file_name": {element}', code="bad-table")
                images.append(at)
            else:
                places.append(at)
                owners.append(hash_of(element.get("image_id")))
            scratch.write(json.dumps(element).encode("ascii") + b"\n")
        hashes = numpy.frombuffer(owners.tobytes(), numpy.uint64)
        order = numpy.argsort(hashes, kind="stable")
        rising = hashes[order]
        known = [_at(scratch, at) for at in images[:_TRIED]]
        folder = _folder_of(address, [one["file_name"] for one in known], folder)
        for at in images:
            image = _at(scratch, at)
            file_name = image["file_name"]
            owner = numpy.uint64(hash_of(image.get("id")))
            first, end = rising.searchsorted(owner), rising.searchsorted(owner, side="right")
            found = [_at(scratch, places[number]) for number in order[first:end]]
            # Two ids may have one hash.
            found = [one for one in found if one.get("image_id") == image.get("id")]
            for one in found:
                if one.get("category_id") in categories:
                    one["category"] = categories[one["category_id"]]
            base = file_name.rfind("/") + 1
            dot = file_name.rfind(".", base + 1)
            key = file_name[:dot] if dot > 0 else file_name
            yield {"key": key, "image": folder + file_name, "json": {**image, "annotations": found}}


def _at(scratch: IO[bytes], at: int) -> dict[str, Any]:
    scratch.seek(at)
    element: dict[str, Any] = json.loads(scratch.readline())
    return element


def _folder_of(address: str, names: Sequence[str], given: str | None) -> str:
    """The folder of the pictures: the one that was named, or where some lie beside their annotations."""
    if given is not None:
        return given if given.endswith("/") else given + "/"
    here, name = split_folder(address)
    above = split_folder(here.rstrip("/"))[0] if here else "../"
    part = name.partition(".")[0].rpartition("_")[2]
    folders = [
        here,
        f"{here}images/",
        f"{here}{part}/",
        f"{above}{part}/",
        f"{above}images/{part}/",
        f"{above}images/",
    ]
    for folder in folders:
        if any(exists(folder + name) for name in names):
            return folder
    if not names:
        return here
    raise InputError(
        f"cannot find the images of {address}: no {names[0]} in {', '.join(folder or './' for folder in folders)}",
        hint="--images FOLDER says where they are",
    )


def _elements(address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The elements of the lists that count, each with its list's name. Raises DataError ``bad-table``."""
    with open_source(address) as source:
        text = _Text(io.TextIOWrapper(stream_of(source), "utf-8-sig"), address)
        text.expect("{")
        while text.after() != "}":
            if text.after() == ",":
                text.expect(",")
            name = text.value()
            text.expect(":")
            if name not in _LISTS or text.after() != "[":
                text.value()
                continue
            text.expect("[")
            while text.after() != "]":
                if text.after() == ",":
                    text.expect(",")
                element = text.value()
                if not isinstance(element, dict):
                    raise DataError(f'{address}: "{name}" has an element that is no object', code="bad-table")
                yield name, element
            text.expect("]")


class _Text:
    """JSON, of which no more is held than one value and what was read with it."""

    def __init__(self, text: io.TextIOWrapper, address: str) -> None:
        self._text, self._address = text, address
        self._buffer, self._at = "", 0
        self._decode = json.JSONDecoder().raw_decode

    def _more(self) -> bool:
        try:
            piece = self._text.read(max(_PIECE_CHARACTERS, len(self._buffer) - self._at))
        except UnicodeDecodeError as error:
            raise self._bad(f"not UTF-8: {error.reason}") from None
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return bool(piece)

    def _bad(self, what: str) -> DataError:
        return DataError(
            f"{self._address}: not annotations as COCO has them: {what}",
            code="bad-table",
            hint='they are one JSON object with lists "images", "annotations" and "categories"',
        )

    def after(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            while self._at < len(self._buffer):
                if not self._buffer[self._at].isspace():
                    return self._buffer[self._at]
                self._at += 1
            if not self._more():
                return ""

    def expect(self, character: str) -> None:
        if self.after() != character:
            raise self._bad(f"{character} expected, not {self._buffer[self._at : self._at + 20]!r}")
        self._at += 1

    def value(self) -> Any:
        self.after()
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                if not self._more():
                    raise self._bad(str(error)) from None
                continue
            # A number may go on in the next piece.
            if end < len(self._buffer):
                self._at = end
                return value
            if not self._more():
                self._at = len(self._buffer)
                return value
