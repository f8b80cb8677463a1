"""webdataset's writer of one archive, of samples that are dicts.

What it is: :class:`TarWriter`, with webdataset's arguments and defaults. How: a sample is encoded
(:mod:`~wdscli.codecs.encode`), its fields sorted by name, its names checked, and written in the canonical form by
:class:`~wdscli.shards.writing.ShardFile`, which hashes and indexes on the way. It must not know of sets.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any

from wdscli.codecs.encode import Encode, make_encoder
from wdscli.errors import DataError, OutputExistsError, UsageError
from wdscli.loader.write.writing_ends import StreamEnd, packing
from wdscli.model import ShardInfo, to_bytes
from wdscli.samples import check_name
from wdscli.shards.claims import Ticket
from wdscli.shards.writing import Payload, ShardFile, ShardSettings, make_form
from wdscli.tar import Form, build_header, padded

Encoding = bool | str | Mapping[str, Encode] | Encode | None
Members = list[tuple[bytes, Payload]]
_MAX_KNOWN = 1024


class Encoded:
    """One sample as members."""

    __slots__ = ("key", "members", "size_bytes", "text")

    def __init__(self, text: str, members: Members) -> None:
        self.text = text
        self.key = to_bytes(text)
        self.members = members
        self.size_bytes = sum(len(data) for _, data in members)
        """Of payloads alone."""

    def length(self, form: Form) -> int:
        """Bytes it takes in an archive."""
        return sum(
            len(build_header(self.key + b"." + field, len(data), form)) + padded(len(data))
            for field, data in self.members
        )


class SampleEncoder:
    """From sample dicts to members."""

    def __init__(self, encoder: Encoding, keep_meta: bool) -> None:
        self._encode = make_encoder(encoder)
        self._keep_meta = keep_meta
        self._known: dict[str, bytes] = {}

    def encoded(self, sample: Mapping[str, Any]) -> Encoded:
        """Raises UsageError for what cannot be encoded, or has names that would not read back."""
        sample = self._encode(sample)
        text = sample.get("__key__")
        if not isinstance(text, str) or not text:
            raise UsageError(f'a sample needs a "__key__" that is text, not {text!r}')
        names = [
            name for name in sample if not name.startswith("_") or (self._keep_meta and name != "__key__")
        ]
        if not names:
            raise UsageError(f'sample "{text}" has no fields')
        key = to_bytes(text)
        members: Members = []
        for name in sorted(names):
            members.append((self._field(key, name, first=not members), _payload(text, name, sample[name])))
        return Encoded(text, members)

    def _field(self, key: bytes, name: str, first: bool) -> bytes:
        """A field that was good with one key is good with every key that is good with some field (but see
        ``__x__``)."""
        raw = self._known.get(name)
        if raw is None or first or key.startswith(b"__"):
            raw = to_bytes(name)
            check_name(key, raw)
            if len(self._known) < _MAX_KNOWN:
                self._known[name] = raw
        return raw


def _payload(key: str, name: str, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str) and name.startswith("_"):
        return value.encode("utf-8")
    raise UsageError(
        f'field "{name}" of sample "{key}" is {type(value).__name__}, not bytes',
        hint="encoder=True encodes by the field's extension",
    )


def tell_ignored(**given: Any) -> None:
    """Warn of arguments of webdataset's that change nothing here."""
    named = [name for name, value in given.items() if value is not None]
    if named:
        warnings.warn(
            f"{', '.join(named)}: not written, archives have no owner and one form everywhere", stacklevel=3
        )


def form_of(mtime: float | None) -> Form:
    """The canonical form with this mtime; None is SOURCE_DATE_EPOCH, else 0."""
    return make_form(None if mtime is None else int(mtime))


@contextmanager
def says_how_to_replace() -> Iterator[None]:
    """Raises OutputExistsError again, with the way out that a program has."""
    try:
        yield
    except OutputExistsError as error:
        raise OutputExistsError(
            error.message, hint="choose another name, or replace it with force=True"
        ) from error


class TarWriter:
    """One archive, to an address (``a.tar``, ``-``, ``pipe:CMD``, ``s3://...``) or to a file object, which stays open.

    ``encoder`` is True for encoding by extension, False or None for samples of bytes, ``"pickle"`` to pickle ``pyd``
    fields, a dict of functions by extension, or a function of the sample. ``compress`` is True or ``"gz"``, ``"bz2"``,
    ``"xz"``, False; None goes by the address (``.tar.gz``). ``mtime`` is in seconds; None is SOURCE_DATE_EPOCH, else 0.
    ``keep_meta`` writes fields ``_like_this`` too. ``user``, ``group``, ``mode`` and ``format`` are taken and not
    written. ``index``, ``checksum``, ``force`` and ``fsync`` are as everywhere in wdscli; only plain archives under an
    address have an index. ``ticket`` is given by :class:`~wdscli.loader.write.writing.ShardWriter`.

    Use it as a context manager, or call :meth:`close`. Raises UsageError for samples that cannot be written (the writer
    can go on), DataError for a key that was there, OutputError, OutputExistsError.

    >>> import io
    >>> out = io.BytesIO()
    >>> with TarWriter(out) as writer:
    ...     writer.write({"__key__": "n1", "cls": 7, "json": {"a": 1}, "image": b"..."})
    12
    """

    def __init__(
        self,
        fileobj: str | os.PathLike[str] | IO[bytes],
        user: str | None = None,
        group: str | None = None,
        mode: int | None = None,
        compress: bool | str | None = None,
        encoder: Encoding = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: Any = None,
        *,
        index: bool = True,
        checksum: str = "xxh3_128",
        force: bool = False,
        fsync: bool = False,
        ticket: Ticket | None = None,
    ) -> None:
        tell_ignored(user=user, group=group, mode=mode, format=format)
        self._encoder = SampleEncoder(encoder, keep_meta)
        self._keys: set[bytes] = set()
        form = form_of(mtime)
        target = os.fspath(fileobj) if isinstance(fileobj, (str, os.PathLike)) else fileobj
        self._name = target if isinstance(target, str) else str(getattr(target, "name", "a file object"))
        kind = packing(target if isinstance(target, str) else None, compress)
        self._end: ShardFile | StreamEnd
        with says_how_to_replace():
            if isinstance(target, str) and kind is None:
                settings = ShardSettings(form, checksum, index, force, fsync, ticket=ticket)
                self._end = settings.open(target)
            else:
                self._end = StreamEnd(target, kind, form, force=force, fsync=fsync)
        self._open = True
        self.info: ShardInfo | None = None
        """The facts of a plain archive under an address, once it is closed."""

    def write(self, obj: Mapping[str, Any]) -> int:
        """One sample; returns the bytes of its payloads."""
        return self.put(self._encoder.encoded(obj))

    def put(self, sample: Encoded) -> int:
        """One sample that is encoded."""
        if not self._open:
            raise UsageError(f"{self._name} is closed: nothing more can be written")
        if self.has(sample.key):
            raise DataError(f'key "{sample.text}" a second time', code="duplicate-key", shard=self._name)
        self._end.write(sample.key, sample.members)
        self._keys.add(sample.key)
        return sample.size_bytes

    def has(self, key: bytes) -> bool:
        """Whether a sample of this key is in it."""
        return key in self._keys

    @property
    def position(self) -> int:
        """Bytes of the archive so far, without its end."""
        return self._end.position

    def close(self) -> None:
        """End the archive. A second call does nothing."""
        if self._open:
            self._open = False
            self.info = self._end.commit()

    def discard(self) -> None:
        """Leave nothing under an address; a file object is left with an archive that has no end."""
        if self._open:
            self._open = False
            self._end.discard()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
