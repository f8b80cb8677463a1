"""This module has webdataset's writers, which write samples (dicts) to one archive or to several shards. They are
public names of ``wdscli.loader``.

:class:`TarWriter` and :class:`ShardWriter` have webdataset's arguments and defaults. Both classes are subclasses of
:class:`~wdscli.shards.writer.SampleWriter`. A writer encodes a sample (:mod:`~wdscli.codecs.values`) and sorts its
fields by name before it writes the sample.

The writers differ from webdataset's writers. By default archives contain no time and no owner, so the same samples give
the same bytes. A shard gets its name when it is complete, and an exception inside the ``with`` block leaves no partial
shard. Existing output is replaced only with ``force=True``. A set gets a manifest, and each shard an index. Repeated
keys, and names that readers would split differently, are errors. A shard is never larger than ``maxsize`` bytes.
Nothing is printed. This module does not know how shards are read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urlsplit

from wdscli.codecs.values import Encode, make_encoder
from wdscli.errors import OutputError, OutputExistsError, UsageError
from wdscli.model import ShardInfo
from wdscli.selection.values import value_names
from wdscli.shards.writer import SampleWriter, after_hook
from wdscli.shards.writing import OutputSet, ShardFile, ShardSettings
from wdscli.storage import Sink, open_sink
from wdscli.storage.blocks import kind_of_name
from wdscli.tar import Form, make_form

Encoding = bool | str | Mapping[str, Encode] | Encode | None


class SampleEncoder:
    """Encodes samples. A call with a sample returns its key, and its encoded fields sorted by name. Raises UsageError
    for a value that cannot be encoded."""

    def __init__(self, encoder: Encoding, keep_meta: bool) -> None:
        self._encode = make_encoder(encoder)
        self._keep_meta = keep_meta

    def __call__(self, sample: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
        sample = self._encode(sample)
        key = sample.get("__key__")
        if not isinstance(key, str) or not key:
            raise UsageError(f'the "__key__" of a sample must be text, not {key!r}')
        meta = self._keep_meta
        names = sorted([name for name in sample if name[:1] != "_" or (meta and name != "__key__")])
        fields = {name: sample[name] for name in names}
        for name, value in fields.items():
            if type(value) is not bytes:
                fields[name] = _payload(key, name, value)
        return key, fields


def _payload(key: str, name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str) and name.startswith("_"):
        return value.encode("utf-8")
    raise UsageError(
        f'field "{name}" of sample "{key}" is {type(value).__name__}, not bytes',
        hint="encoder=True encodes by the field's extension",
    )


def warn_of_ignored(**arguments: Any) -> None:
    """Warn about webdataset's arguments that have no effect here."""
    named = [name for name, value in arguments.items() if value is not None]
    if named:
        warnings.warn(
            f"{', '.join(named)}: ignored, because wdscli always writes the same tar format, without owners",
            stacklevel=3,
        )


def packing(address: str | None, compress: bool | str | None) -> str | None:
    """Return the kind of compression, or None. If ``compress`` is None, the suffix of the address decides. The suffix
    in a command does not count, because ``pipe:gzip > x.tar.gz`` compresses the data itself."""
    if compress is None:
        return None if address is None else kind_of_name(address)
    if compress is False and address is not None and kind_of_name(address):
        raise UsageError(
            f"cannot write {address} uncompressed: its suffix means compression",
            hint="leave compress=False out",
        )
    if isinstance(compress, bool):
        return "gzip" if compress else None
    kind = kind_of_name(f"a.{compress}")
    if kind is None:
        raise UsageError(f'no such compression: "{compress}"', hint="gz, bz2, xz, zst, lz4")
    return kind


class FileSink(Sink):
    """Writes to a file object and leaves it open. After :meth:`discard`, the file has an archive without an end, which
    readers notice."""

    def __init__(self, name: str, target: IO[bytes]) -> None:
        super().__init__(name)
        self._target: Any = target

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``, with several calls if the file object writes only a part in one call."""
        left = memoryview(data)
        while len(left):
            taken = self._target.write(left)
            if taken is None:  # a write() that returns None has written all
                return
            if not 0 < taken <= len(left):
                raise OutputError(f"a file object wrote only {taken} of {len(left)} bytes")
            left = left[taken:]

    def _commit(self) -> None:
        if hasattr(self._target, "flush"):
            self._target.flush()

    def _discard(self) -> None:
        """Leave the content unchanged, because it belongs to the owner of the file object."""


@contextmanager
def says_how_to_replace() -> Iterator[None]:
    """Set the hint of an OutputExistsError to the argument ``force=True``, which replaces the output."""
    try:
        yield
    except OutputExistsError as error:
        error.hint = "choose another name, or replace it with force=True"
        raise


def open_shard(
    address: str, settings: ShardSettings, kind: str | None = None, target: IO[bytes] | None = None
) -> ShardFile:
    """Open a shard for writing at ``address``, with the compression ``kind``. If ``target`` is given, write to this
    file object; then ``address`` is only the name in messages."""
    if target is not None:
        return ShardFile(address, ShardSettings(settings.form, "none"), FileSink(address, target), kind)
    with says_how_to_replace():
        if kind == kind_of_name(address):
            return settings.open(address)
        sink = open_sink(address, force=settings.force, fsync=settings.fsync, packed=True)
    return ShardFile(address, ShardSettings(settings.form, "none"), sink, kind)


class TarWriter(SampleWriter):
    """Writes one archive to an address (``a.tar``, ``-``, ``pipe:CMD``, ``s3://...``) or to a file object. A file
    object stays open.

    ``encoder`` is True to encode fields by their extensions, False or None if all fields are bytes, or ``"pickle"`` to
    pickle ``pyd`` fields too. ``encoder`` may also be a dict of functions by extension, or a function of the sample.
    ``compress`` is True (gzip), False, ``"gz"``, ``"bz2"``, ``"xz"``, ``"zst"`` or ``"lz4"``. With None, the suffix of
    the address decides (``.tar.gz``). ``mtime`` is the time of all members in seconds. None means the environment
    variable SOURCE_DATE_EPOCH, or 0. With ``keep_meta``, fields whose names begin with an underscore are written too.
    ``user``, ``group``, ``mode`` and ``format`` have no effect. ``index``, ``checksum``, ``force`` and ``fsync`` have
    the meaning of the command options of these names. An archive gets an index only if it has an address and is plain,
    ``.tar.gz`` or ``.tar.zst``. ``values`` names numbers of each sample to store in the index, like ``wds index
    --values``: ``"json.tokens,len(txt)"``.

    A program uses the writer as a context manager, or calls :meth:`close`. Raises UsageError for a sample that cannot
    be written; the writer can continue after it. Raises DataError for a repeated key, and OutputError and
    OutputExistsError for the output.

    >>> import io
    >>> out = io.BytesIO()
    >>> with TarWriter(out) as writer:
    ...     writer.write({"__key__": "n1", "cls": 7, "json": {"a": 1}, "image": b"..."})
    12
    """

    info: ShardInfo | None = None
    """The facts of the closed archive, if it was written to an address."""

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
        values: str | Sequence[str] | None = None,
        checksum: str = "xxh3_128",
        force: bool = False,
        fsync: bool = False,
    ) -> None:
        warn_of_ignored(user=user, group=group, mode=mode, format=format)
        self._encoded = SampleEncoder(encoder, keep_meta)
        target = None if isinstance(fileobj, (str, os.PathLike)) else fileobj
        name = _path(fileobj) if target is None else str(getattr(target, "name", "a file object"))  # type: ignore[arg-type]
        kind = packing(name if target is None else None, compress)
        settings = ShardSettings(_form(mtime), checksum, index, force, fsync, values=value_names(values))
        super().__init__(name, settings.form)
        self._archive = self._shard = open_shard(name, settings, kind, target)
        self._has_facts = target is None and kind == kind_of_name(name)

    def write(self, obj: Mapping[str, Any]) -> int:
        """Write one sample. Return the number of bytes in its payloads."""
        key, fields = self._encoded(obj)
        self._put(key, fields)
        return sum(map(len, fields.values()))

    @property
    def position(self) -> int:
        """The number of bytes of the archive so far, without its end."""
        return self._archive.position

    def close(self) -> None:
        """End the archive. A second call does nothing."""
        self._finish()
        if self._has_facts and self._done:
            self.info = self._done[0]


class ShardWriter(SampleWriter):
    """Writes shards that are named by ``pattern``, such as ``out-%06d.tar``. A shard has at most ``maxcount`` samples
    and ``maxsize`` bytes. A sample that is larger than ``maxsize`` gets a shard of its own.

    ``post(name)`` is called for each complete shard; it may upload and delete the shard. ``start_shard`` is the number
    of the first shard. If ``start_shard`` is not 0, the shards are part of a larger set, and this writer writes no
    manifest; use ``wds index`` to make the manifest. Compressed shards get no manifest either. ``opener(name)`` returns
    a file object for a shard, and the writer closes it. With ``opener``, there is no index and no manifest. ``options``
    are the arguments of :class:`TarWriter`. ``verbose`` has no effect. As in webdataset, a subclass may override
    :meth:`next_stream`, which sets ``fname``, ``shard`` and ``tarstream``, a :class:`TarWriter`. The shards of such a
    subclass have no manifest either.

    A program uses the writer as a context manager. The manifest is written last, and only if no error occurred.

    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/train-%06d.tar", maxcount=2, post=lambda name: print(name[-16:])) as writer:
    ...     for number in range(3):
    ...         writer.write({"__key__": f"n{number}", "cls": number})
    train-000000.tar
    train-000001.tar
    >>> writer.manifest.samples
    3
    """

    total = count = size = 0
    """``total`` is the number of samples so far. ``count`` and ``size`` are the samples and the payload bytes of the
    open shard."""
    fname: str | None = None
    tarstream: TarWriter | None = None
    _adopted: TarWriter | None = None
    _is_ending = False
    _stream: IO[bytes] | None = None

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int | None = 100000,
        maxsize: float | None = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], IO[bytes]] | None = None,
        *,
        encoder: Encoding = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        compress: bool | str | None = None,
        **options: Any,
    ) -> None:
        warn_of_ignored(**{name: options.pop(name, None) for name in ("user", "group", "mode", "format")})
        self.pattern = _path(pattern)
        self.maxcount, self.maxsize = _limit("maxcount", maxcount), _limit("maxsize", maxsize)
        self.post = post
        self.opener = opener
        self.shard = start_shard
        """The number of the next shard."""
        self.verbose = verbose
        own = {"encoder": encoder, "keep_meta": keep_meta, "mtime": mtime, "compress": compress}
        self.kw: dict[str, Any] = {**own, **options}
        """The arguments of :class:`TarWriter` that a subclass's :meth:`next_stream` may pass on."""
        self._encoded = SampleEncoder(encoder, keep_meta)
        self._kind = packing(self.pattern, compress)
        self._settings = _settings(mtime, options)
        # Shards get no manifest if they are compressed, written by an opener, or do not begin with number 0.
        self._is_own = type(self).next_stream is not ShardWriter.next_stream
        has_place = opener is None and self._kind is None and not self._is_own
        self._addresses = OutputSet(self.pattern, self._settings) if has_place else None
        output = None if start_shard else self._addresses
        limits = {"max_count": self.maxcount, "max_size": self.maxsize}
        with says_how_to_replace():
            super().__init__(self.pattern, self._settings.form, output, **limits)

    def write(self, obj: Mapping[str, Any]) -> None:
        """Write one sample. Raises UsageError for a sample that cannot be written; the writer can continue after it.
        Raises DataError for a repeated key."""
        key, fields = self._encoded(obj)
        self._put(key, fields)
        self.size += sum(map(len, fields.values()))
        self.count += 1
        self.total += 1

    def next_stream(self) -> None:
        """End the open shard, and begin the next shard."""
        self.finish()
        self._shard = self._open_shard()

    def _open_shard(self) -> ShardFile:
        if self._is_own:
            return self._open_own()
        self.fname = name = self._address(self.shard)
        if self.opener is not None:
            self._stream = self.opener(name)
        settings = self._settings if self._addresses is None else self._addresses.settings
        shard = open_shard(name, settings, self._kind, self._stream)
        self._name = name
        self.shard += 1
        self.count = self.size = 0
        return shard

    def _open_own(self) -> ShardFile:
        """Return the shard that the subclass has begun. If the subclass has not begun a shard, call its
        :meth:`next_stream` first."""
        if self.tarstream is self._adopted:
            self.next_stream()
        if not isinstance(self.tarstream, TarWriter):
            raise UsageError(
                f"next_stream() of {type(self).__name__} set no tarstream",
                hint="self.tarstream = wds.TarWriter(self.fname, **self.kw)",
            )
        self._adopted, self._name = self.tarstream, self.fname or self.pattern
        self.tarstream._process = 0  # this writer closes the shard
        return self.tarstream._archive

    def _address(self, number: int) -> str:
        if self._addresses is not None:
            return self._addresses.address(number)
        try:
            return self.pattern % number
        except TypeError:
            raise UsageError(f"{self.pattern} needs %06d for the shard's number") from None

    def finish(self) -> None:
        """End the open shard, if there is one, and pass its name to ``post``."""
        self._end_shard()

    def _end_shard(self) -> None:
        if self._shard is None:
            return
        if type(self).finish is not ShardWriter.finish and not self._is_ending:
            self._is_ending = True
            try:
                self.finish()  # the method of the subclass
            finally:
                self._is_ending = False
            return
        super()._end_shard()
        self._close_stream()
        if self.post is not None:
            self.post(self._name)
            if self._addresses is not None:
                self._done[-1] = after_hook(self._done[-1], self._name)

    def _close_stream(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def close(self) -> None:
        """End the last shard and write the manifest. A second call does nothing."""
        self._finish()
        self._name = self.pattern

    def discard(self) -> None:
        """Drop the open shard. Finished shards are kept, but there is no manifest."""
        super().discard()
        self._close_stream()


def _path(address: str | os.PathLike[str]) -> str:
    """Return an address as text. For a ``file:`` address, return its path, as readers do."""
    text = os.fspath(address)
    return urlsplit(text).path if text.startswith("file:") else text


def _form(mtime: float | None) -> Form:
    """Return the canonical form with this mtime. None means SOURCE_DATE_EPOCH, or 0."""
    return make_form(None if mtime is None else int(mtime))


def _settings(mtime: float | None, options: dict[str, Any]) -> ShardSettings:
    chosen = {"with_index" if name == "index" else name: value for name, value in options.items()}
    chosen["values"] = value_names(chosen.get("values"))
    try:
        return ShardSettings(_form(mtime), **chosen)
    except TypeError:
        raise UsageError(
            f"no such option: {', '.join(chosen)}", hint="use the options of TarWriter"
        ) from None


def _limit(name: str, value: float | None) -> int | None:
    if value is None or value == float("inf"):
        return None
    if value < 1:
        raise UsageError(f"{name} must be at least 1, not {value}")
    return int(value)
