"""COCO annotations. JSON files about many pictures become one row per picture.

:func:`coco_layout` returns the layout. A row has the columns ``key``, ``image`` and ``json``. The key is the file's
name without its extension, and the image is the picture's address. The JSON is the picture's entry in ``images``, with
a list ``annotations``. Each annotation has the name of its category. Several files may be about the same pictures, such
as COCO's instances and captions. They also make one row per picture, with one list for each file, named after the file.

A file's lists are read element by element. Elements are kept in a temporary file until the end. So an annotation or
image needs only some twenty bytes of memory. This module does not know samples.
"""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from tempfile import TemporaryFile
from typing import Any

from wdscli.create.delimited import numbered
from wdscli.create.files import RowsByKey
from wdscli.create.layouts import TableLayout, TableOptions
from wdscli.errors import DataError, InputError
from wdscli.storage import base_name, exists, open_source
from wdscli.storage.addresses import split_folder
from wdscli.storage.streams import stream_of

_PIECE_CHARACTERS = 1 << 18
_TRIED = 20
"""If none of this many pictures is found in a folder, the folder is rejected."""
_ANNOTATIONS = "annotations"
"""The name of the list of annotations if there is only one file."""
_LISTS = ("images", "annotations", "categories")


def coco_layout(options: TableOptions, files: Sequence[str]) -> TableLayout:
    """Return the layout of annotations. By default, the fields are the picture and its JSON."""
    if not (options.fields or options.json_rest or options.json_merge):
        options = options._replace(fields=("*=@image", "json=json"))
    if options.key is None and options.rekey is None:
        options = options._replace(key="key")
    joined = _Joined(files, options.images)
    return TableLayout(files, lambda file, *_: numbered(file, joined.rows(file)), options)


class _Joined:
    """Several files, which are read when the first row is needed. A picture in several files is yielded once, with the
    first of them."""

    def __init__(self, files: Sequence[str], folder: str | None) -> None:
        self._files, self._folder = list(dict.fromkeys(files)), folder
        self._read: list[_Annotations] = []
        self._groups: list[dict[int, str]] = []

    def rows(self, file: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of pictures that are not in an earlier file. Raises DataError if two files disagree about a
        picture."""
        if not self._read:
            self._read = [_Annotations(address, self._folder) for address in self._files]
            self._groups = _groups_of(self._read)
        number = self._files.index(file)
        first = self._read[number]
        group = next(group for group in self._groups if number in group)
        for place in first.images:
            image = first.at(place)
            picture = first.picture(image)
            row: dict[str, Any] = {}
            lists: dict[str, list[Any]] = {name: [] for name in group.values()}
            for file_number, name in group.items():
                entry = image if file_number == number else self._read[file_number].image_of(picture)
                if entry is not None and file_number < number:
                    break
                if entry is not None:
                    _check_same(picture, first.address, image, self._read[file_number].address, entry)
                    row = {**entry, **row}
                    lists[name] += self._read[file_number].annotations_of(entry.get("id"))
            else:
                for name in row.keys() & lists.keys() - {_ANNOTATIONS}:
                    raise DataError(
                        f'{first.address}: an image already has "{name}": {image}', code="bad-table"
                    )
                yield {"key": _key(image["file_name"]), "image": picture, "json": {**row, **lists}}


def _check_same(
    picture: str,
    first_address: str,
    first_image: dict[str, Any],
    second_address: str,
    second_image: dict[str, Any],
) -> None:
    for name in ("id", "width", "height"):
        if first_image.get(name, second_image.get(name)) != second_image.get(name, first_image.get(name)):
            raise DataError(
                f"{picture} has {name} {first_image[name]} in {first_address} "
                f"and {second_image[name]} in {second_address}",
                code="bad-table",
                hint="several annotation files must describe the same images",
            )


def _key(name: str) -> str:
    """Return a picture's name without its extension."""
    dot = name.rfind(".", name.rfind("/") + 2)
    return name[:dot] if dot > 0 else name


def _groups_of(files: Sequence[_Annotations]) -> list[dict[int, str]]:
    """Return groups of files with common pictures: the numbers of the files, and the name of the list for each file."""
    groups: list[list[int]] = []
    for number, file in enumerate(files):
        sharing = [
            group
            for group in groups
            if any(file.shares_pictures(files[file_number]) for file_number in group)
        ]
        groups = [group for group in groups if group not in sharing]
        groups.append([*sorted(file_number for group in sharing for file_number in group), number])
    named = []
    for group in groups:
        names = [base_name(files[number].address).partition(".")[0] for number in group]
        # Example: COCO's instances_val2017.json and captions_val2017.json.
        if len({name.rpartition("_")[2] for name in names}) == 1:
            names = [name.rpartition("_")[0] or name for name in names]
        named.append(dict(zip(group, names if len(group) > 1 else [_ANNOTATIONS])))
    return named


def _hash_of(value: Any) -> int:
    """Return the hash of any JSON value. Two values may have the same hash."""
    return hash(repr(value))


class _Annotations:
    """One file with annotations. ``images`` has the places of its images."""

    def __init__(self, address: str, folder: str | None) -> None:
        self.address, self.images = address, array("q")
        self._places, self._categories = array("q"), dict[Any, str]()
        self._scratch = TemporaryFile()  # noqa: SIM115  # lives as long as this object
        owners = array("q")
        for name, element in _elements(address):
            if name == "categories":
                self._categories[element.get("id")] = element.get("name", "")
                continue
            offset = self._scratch.tell()
            if name == "images":
                if not isinstance(element.get("file_name"), str) or not element["file_name"]:
                    raise DataError(f'{address}: an image has no "file_name": {element}', code="bad-table")
                self.images.append(offset)
            else:
                self._places.append(offset)
                owners.append(_hash_of(element.get("image_id")))
            self._scratch.write(json.dumps(element).encode("ascii") + b"\n")
        self._owners = RowsByKey(owners)
        self._folder = _folder_of(
            address, [self.at(offset)["file_name"] for offset in self.images[:_TRIED]], folder
        )

    @cached_property
    def pictures(self) -> RowsByKey:
        """The file's images, which are found by the addresses of pictures."""
        return RowsByKey(array("q", [_hash_of(self.picture(self.at(offset))) for offset in self.images]))

    def at(self, place: int) -> dict[str, Any]:
        """Return the element at an offset in the temporary file."""
        self._scratch.seek(place)
        element: dict[str, Any] = json.loads(self._scratch.readline())
        return element

    def picture(self, image: dict[str, Any]) -> str:
        """Return the address of an image."""
        return f"{self._folder}{image['file_name']}"

    def shares_pictures(self, annotations: _Annotations) -> bool:
        """Return whether this file and another file have a common image."""
        return not set(self.pictures.hashes).isdisjoint(annotations.pictures.hashes)

    def image_of(self, picture: str) -> dict[str, Any] | None:
        """Return the file's entry for the image at an address."""
        images = (self.at(self.images[number]) for number in self.pictures.candidates(_hash_of(picture)))
        return next((image for image in images if self.picture(image) == picture), None)

    def annotations_of(self, identity: Any) -> list[dict[str, Any]]:
        """Return the annotations of an image, each with the name of its category."""
        annotations = [
            self.at(self._places[number]) for number in self._owners.candidates(_hash_of(identity))
        ]
        annotations = [annotation for annotation in annotations if annotation.get("image_id") == identity]
        for annotation in annotations:
            if annotation.get("category_id") in self._categories:
                annotation["category"] = self._categories[annotation["category_id"]]
        return annotations


def _folder_of(address: str, names: Sequence[str], images_folder: str | None) -> str:
    """Return the folder of the pictures. It is the given folder, or a folder next to the annotations that has some of
    the pictures. Raises InputError."""
    if images_folder is not None:
        return images_folder if images_folder.endswith("/") else images_folder + "/"
    own_folder, name = split_folder(address)
    above = split_folder(own_folder.rstrip("/"))[0] if own_folder else "../"
    part = name.partition(".")[0].rpartition("_")[2]
    folders = [own_folder, f"{own_folder}images/", f"{own_folder}{part}/"]
    folders += [f"{above}{part}/", f"{above}images/{part}/", f"{above}images/"]
    for folder in folders:
        if any(exists(folder + name) for name in names):
            return folder
    if not names:
        return own_folder
    raise InputError(
        f"cannot find the images of {address}: no {names[0]} in {', '.join(folder or './' for folder in folders)}",
        hint="give the folder of the pictures with --from images:FOLDER",
    )


def _elements(address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the elements of the three known lists, each with its list's name. Raises DataError ``bad-table``."""
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
                    raise DataError(
                        f'{address}: "{name}" has an element that is not an object', code="bad-table"
                    )
                yield name, element
            text.expect("]")


class _Text:
    """A JSON stream. Only one value and the read buffer are in memory."""

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
            f"{self._address}: not COCO annotations: {what}",
            code="bad-table",
            hint='COCO annotations are one JSON object with the lists "images", "annotations" and "categories"',
        )

    def after(self) -> str:
        """Return the next non-blank character, or an empty text at the end."""
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
            # A number may continue in the next piece.
            if end < len(self._buffer):
                self._at = end
                return value
            if not self._more():
                self._at = len(self._buffer)
                return value
