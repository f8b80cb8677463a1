"""This module writes samples in other forms than tar: raw payloads, files in a folder, JSON Lines, and readable text
(``ls --show``).

Pages of selected samples come from ``picking.py``. Each function yields bytes or records, or writes files. Files are
unpacked safely. No file is written outside the folder, links below it are not followed, and an existing file is
replaced only with ``force``.

:func:`show` describes the fields of samples; the report's cards use the same excerpts. The name of a field decides how
its payload is shown. Sound, film and payloads above the limit are not read. Of a text, only the beginning is read. This
module does not know terminals or pages.
"""

from __future__ import annotations

import errno
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.codecs import headers
from wdscli.codecs.handlers import MAX_DECODED_BYTES, extension, held_extension, inflate
from wdscli.codecs.images import has_wide_values, is_transparent
from wdscli.codecs.kinds import FieldKind, find
from wdscli.errors import DataError, OutputError, OutputExistsError, UsageError, WdsError
from wdscli.look.picking import SampleReader
from wdscli.samples.keys import KeySet
from wdscli.selection.named import Named, SeenNames, listed
from wdscli.selection.places import class_name
from wdscli.selection.reading import MemberReader
from wdscli.shards.inputs import classes_of
from wdscli.storage.local import write_all, write_error
from wdscli.text import to_bytes, to_text

MAX_TEXT_CHARACTERS = 1200
MAX_JSON_BYTES = 1 << 20
_HEX_BYTES = 48
_FAINT_LEVELS = 64
"""A grey picture with fewer levels than this is a mask or an index, and would look black. So its levels are
stretched."""


@lru_cache(1 << 12)
def text_form(field: bytes) -> str:
    """Return ``json`` or ``text`` for a field that JSON Lines contain unchanged, otherwise an empty text."""
    last = extension(to_text(field))
    return "json" if last == "json" else "text" if find(last).is_text else ""


class SelectedMember(NamedTuple):
    """One member of a selected sample: its field (after ``--rename``), its size in bytes, its reader, its number in the
    reader's batch, and the byte of its first header."""

    field: bytes
    size: int
    reader: MemberReader
    number: int = 0
    start: int = 0

    def pieces(self) -> Iterator[bytes]:
        """Yield the payload in pieces."""
        return self.reader.pieces(self.number)

    def whole(self) -> bytes:
        """Return the payload in one piece."""
        return self.reader.payload(self.number)


class SelectedSample(NamedTuple):
    """One selected sample: shard, place, key, byte of its first header, and its members in order."""

    shard: str
    place: int
    key: bytes
    start: int
    parts: list[SelectedMember]

    def error(self, message: str, code: str, *, hint: str, part: SelectedMember | None = None) -> DataError:
        """Return a DataError with the place of the sample, or of one of its members."""
        start, member = self.start, None
        if part is not None:
            start, member = part.start, to_text(self.key + b"." + part.field)
        return DataError(message, code=code, shard=self.shard, offset=start, member=member, hint=hint)


def selected_samples(picker: SampleReader) -> Iterator[SelectedSample]:
    """Yield the selected samples one at a time. Read the payloads of a sample before the next sample."""
    for page in picker.pages():
        batch = page.batch
        for row in page.rows:
            first = batch.firsts[row]
            plan = picker.selection.plan_of(batch, row, page.source.name)
            parts = [
                SelectedMember(field, batch.sizes[member], page.reader, member, batch.starts[member])
                for member, field in ((first + place, field) for place, field in plan)
            ]
            yield SelectedSample(
                page.source.name, batch.index + row, batch.keys[row], batch.start(row), parts
            )


def payloads(picker: SampleReader, field: str, key: str | None = None) -> Iterator[bytes]:
    """Yield the joined payloads of one field, at most as many as the picker's limit. Samples without the field are
    counted in ``dropped`` as ``no-such-field``. With ``key``, yield only the payload of that sample. Raises DataError
    if no sample has the field, or if the sample does not exist."""
    raw_key = None if key is None else to_bytes(key)
    name = to_bytes(field)
    seen_names, yielded = SeenNames(), 0
    for sample in selected_samples(picker):
        if yielded == picker.limit:
            continue
        if raw_key is not None and sample.key != raw_key:
            seen_names.see_keys([sample.key], [raw_key])
            continue
        parts = [part for part in sample.parts if part.field == name]
        if not parts:
            if raw_key is not None:
                fields = ", ".join(to_text(part.field) for part in sample.parts)
                message = f'sample "{to_text(sample.key)}" has no field "{field}"'
                raise sample.error(message, "missing-field", hint=f"it has {fields}")
            picker.drop("no-such-field")
            seen_names.fields.update(part.field for part in sample.parts)
        for part in parts:
            yielded += 1
            yield from part.pieces()
        if yielded == picker.limit:
            picker.stop()
        if raw_key is not None:
            picker.check_empty(1)
            return
    if raw_key is not None:
        close = seen_names.similar_keys(raw_key)
        hint = f"did you mean {listed(close, ' or ')}?" if close else "`wds ls` lists the keys"
        raise DataError(f'no sample has the key "{key}"', code="no-such-key", hint=hint)
    if not yielded and seen_names.fields:
        named = Named(field, " for --fields", (field,), needed=not picker.state.done)
        picker.check_names(seen_names.absent([named]))
    picker.check_empty(yielded)


def json_lines(
    picker: SampleReader, *, base64: bool = False, max_decoded: int = MAX_DECODED_BYTES
) -> Iterator[bytes]:
    """Yield one JSON object per sample: ``key``, ``shard``, ``index``, ``fields``. JSON is copied unchanged, and text
    becomes a string. Other payloads become ``{"bytes": N}``, or ``{"base64": "..."}`` with ``base64``. Text that is not
    UTF-8 and invalid JSON count as other payloads. With ``base64``, JSON with several lines does too.

    A line is built in memory, so payloads with more than ``max_decoded`` bytes in a line raise DataError
    ``undecodable``.
    """
    lines = 0
    for sample in selected_samples(picker):
        error = too_large(sample, base64, max_decoded, "a line of JSON")
        if error is not None:
            picker.skip_undecodable(error)
            continue
        lines += 1
        head = json.dumps({"key": to_text(sample.key), "shard": sample.shard, "index": sample.place})
        fields = ", ".join(
            f"{json.dumps(to_text(part.field))}: {_json_value(part, base64)}" for part in sample.parts
        )
        yield f'{head[:-1]}, "fields": {{{fields}}}}}\n'.encode()
    picker.check_empty(lines)


def too_large(sample: SelectedSample, takes_all: bool, max_decoded: int, what: str) -> DataError | None:
    """Return the error for a sample if its payloads have more than ``max_decoded`` bytes, or None. All payloads are
    counted, or only text and JSON."""
    total = 0
    for part in sample.parts:
        if takes_all or text_form(part.field):
            total += part.size
            if total > max_decoded:
                message = f"{what} with {total} bytes of payloads, more than {max_decoded}"
                hint = "WDSCLI_MAX_DECODED=SIZE allows more; --drop FIELD leaves the field out"
                return sample.error(message, "undecodable", hint=hint, part=part)
    return None


def _json_value(part: SelectedMember, base64: bool) -> str:
    if text_form(part.field):
        payload = part.whole()
        with suppress(ValueError, RecursionError):
            text = payload.decode("utf-8")
            if text_form(part.field) == "text":
                return json.dumps(text, ensure_ascii=False)
            value = json.loads(text, parse_constant=_refuse)
            # The JSON is not parsed, so that no number changes. Line breaks in valid JSON are outside strings.
            line = text.strip().replace("\r", " ").replace("\n", " ")
            if not is_coded(value) and (line == text or not base64):
                return line
    if base64:
        return f'{{"base64": "{b64encode(part.whole()).decode("ascii")}"}}'
    return f'{{"bytes": {part.size}}}'


def is_coded(value: object) -> bool:
    """Return whether a value in a line of JSON is an encoded payload."""
    return isinstance(value, dict) and value.keys() in ({"base64"}, {"bytes"})


def _refuse(name: str) -> object:
    """Raise ValueError, because NaN and infinities are not JSON."""
    raise ValueError(name)


def unpack(picker: SampleReader, folder: str, *, force: bool = False) -> tuple[int, int]:
    """Write every selected member to ``folder/<key>.<field>``. Return the number of files and their bytes. Missing
    folders are created.

    Raises OutputExistsError for an existing file (unless ``force``), OutputError, and DataError for a repeated key.
    """
    writer = _Folder(folder, force)
    written_keys = KeySet()
    samples = files = size = 0
    for sample in selected_samples(picker):
        # Two keys can name the same file: a//b and a/./b are a/b.
        if written_keys.add([os.path.normpath(sample.key)]):
            message = f'repeated key "{to_text(sample.key)}": its files would replace each other'
            raise sample.error(message, "duplicate-key", hint="unpack each shard into its own folder")
        samples += 1
        for part in sample.parts:
            writer.write(sample.key + b"." + part.field, part)
            files += 1
            size += part.size
    picker.check_empty(samples)
    return files, size


class _Folder:
    """Writes files, only below one folder."""

    def __init__(self, folder: str, force: bool) -> None:
        self._root = os.fsencode(folder)
        self._force = force
        self._made: set[bytes] = set()
        self._make(self._root)
        self._real = os.path.realpath(self._root)

    def write(self, name: bytes, part: SelectedMember) -> None:
        path = os.path.join(self._root, name)
        parent = os.path.dirname(path)
        try:
            if parent not in self._made:
                # A link below the root must not lead out of it.
                real = os.path.realpath(parent)
                if real != self._real and not real.startswith(self._real.rstrip(b"/") + b"/"):
                    raise OutputError(
                        f"{to_text(parent)} leads outside of {to_text(self._root)}",
                        hint="unpack into a folder that has no symlinks",
                    )
                self._make(parent)
            self._write(path, part)
        except WdsError:
            raise
        except OSError as error:
            raise self._error(path, error) from error

    def _make(self, path: bytes) -> None:
        try:
            os.makedirs(path, exist_ok=True)
            self._made.add(path)
        except FileExistsError as error:
            raise OutputError(f"cannot unpack into {to_text(path)}: it is not a folder") from error
        except OSError as error:
            raise self._error(path, error) from error

    def _write(self, path: bytes, part: SelectedMember) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        if self._force:
            # Remove the old file first. Otherwise a link would be followed, and a reader could see a partial file.
            with suppress(FileNotFoundError):
                os.unlink(path)
        descriptor = os.open(path, flags, 0o666)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                for piece in part.pieces():
                    write_all(file.fileno(), piece)
        except BaseException:
            os.unlink(path)
            raise

    def _error(self, path: bytes, error: OSError) -> OutputError:
        if error.errno == errno.EEXIST:
            return OutputExistsError(
                f"{to_text(path)} exists", hint="unpack elsewhere, or replace files with --force"
            )
        return write_error(to_text(path), error)


class ShownField(NamedTuple):
    """A field to show. ``text`` is an excerpt, or the type, shape or size of the payload. ``picture`` has the bytes of
    an image; it is empty for other fields."""

    field: str
    size_bytes: int
    text: str
    picture: bytes = b""


def show(picker: SampleReader) -> Iterator[tuple[SelectedSample, list[ShownField]]]:
    """Yield the selected samples and their fields. Raises InputError, DataError."""
    classes = classes_of(picker.set) or ()
    for sample in selected_samples(picker):
        fields = [_field(part) for part in sample.parts]
        names = [class_name(shown.text, classes) if shown.field == "cls" else None for shown in fields]
        yield (
            sample,
            [
                shown._replace(text=f"{shown.text} ({name})") if name else shown
                for shown, name in zip(fields, names)
            ],
        )


def _field(part: SelectedMember) -> ShownField:
    name = to_text(part.field)
    extension, is_packed = held_extension(name)
    kind = find(extension)
    media = kind.card.partition("/")[0] or kind.form
    if media in ("audio", "video") or part.size > MAX_DECODED_BYTES:
        return ShownField(name, part.size, media or "too large to show")
    is_text = not is_packed and media not in ("image", "json", "array")
    data = next(part.pieces(), b"") if is_text else part.whole()
    try:
        data = inflate(data) if is_packed else data
        if kind.form != "image":
            return ShownField(name, part.size, excerpt(kind, data)[0])
    except Exception as error:
        # Decoders raise any error at broken data.
        return ShownField(name, part.size, f"not what its name says: {type(error).__name__}")
    size = picture_size(data)
    if size is None:
        return ShownField(name, part.size, "a picture of unknown size")
    return ShownField(name, part.size, f"{size[0]} × {size[1]} pixels", data)


def excerpt(kind: FieldKind, data: bytes) -> tuple[str, bool]:
    """Return an excerpt of a payload: JSON with line breaks, text, the type and shape of arrays, or the first bytes.
    Also return whether this is text from the payload. Broken data may raise any error."""
    if kind.card == "json":
        return (text_excerpt(data) if len(data) > MAX_JSON_BYTES else _json(data)), True
    if kind.form in ("npy", "npz"):
        return _arrays(data), False
    if kind.card in ("text", "number"):
        return text_excerpt(data), True
    text = guessed_text(data)
    return (text, True) if text else (data[:_HEX_BYTES].hex(" ") + " …" * (len(data) > _HEX_BYTES), False)


def text_excerpt(data: bytes) -> str:
    """Return the beginning of a text."""
    return cut(data[: 4 * MAX_TEXT_CHARACTERS + 4].decode("utf-8", "replace").strip(), MAX_TEXT_CHARACTERS)


def _json(data: bytes) -> str:
    return cut(json.dumps(json.loads(data), ensure_ascii=False, indent=2), MAX_TEXT_CHARACTERS)


def _arrays(data: bytes) -> str:
    """Return type and shape of an array, or of each array in an archive."""
    from wdscli.codecs.values import decode_npy, decode_npz

    if data[:2] == b"PK":
        arrays = decode_npz(data, MAX_DECODED_BYTES)
        return ", ".join(f"{name}: {_array(array)}" for name, array in list(arrays.items())[:8])
    return _array(decode_npy(data))


def _array(array: Any) -> str:
    return f"{array.dtype} {' × '.join(map(str, array.shape)) or 'number'}"


def guessed_text(data: bytes, *, is_whole: bool = True) -> str:
    """Return an excerpt of a payload of unknown type if it is text, and otherwise an empty text. Without ``is_whole``,
    ``data`` is the beginning of a payload, and may end inside a character."""
    head = data[: 4 * MAX_TEXT_CHARACTERS]
    try:
        is_all = is_whole and len(head) == len(data)
        text = head.decode("utf-8") if is_all else head[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return ""
    is_text = all(character.isprintable() or character in "\n\r\t" for character in text)
    return cut(text, MAX_TEXT_CHARACTERS) if is_text else ""


def cut(text: str, characters: int) -> str:
    """Shorten a text to at most this many characters."""
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of a picture, which may be truncated. Return None for other data. Without
    Pillow, rare formats also give None."""
    try:
        return headers.picture_size(data)
    except (ValueError, UsageError):
        return None


def visible(image: Any) -> Any:
    """Convert a Pillow image to a mode that can be shown: L, RGB or RGBA. Faint gray levels are stretched."""
    if image.mode in ("1", "RGB", "RGBA"):
        return image.convert("L") if image.mode == "1" else image
    if image.mode == "L" or has_wide_values(image):
        if image.mode != "L":
            image = _finite(image.convert("F"))
        low, high = image.getextrema()
        if image.mode == "L" and high - low >= _FAINT_LEVELS:
            return image
        scale = 255 / (high - low) if high > low else 0.0
        return image.point(lambda value: value * scale - low * scale).convert("L")
    return image.convert("RGBA" if is_transparent(image) else "RGB")


def _finite(image: Any) -> Any:
    """Return a Pillow image of floats, with its smallest number instead of NaN and infinity."""
    from PIL import Image

    values = numpy.array(image)
    is_finite = numpy.isfinite(values)
    if is_finite.all():
        return image
    values[~is_finite] = values[is_finite].min() if is_finite.any() else 0
    return Image.fromarray(values)
