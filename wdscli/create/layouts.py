"""This module has the options and the layouts of tables: files with rows, and columns that become fields.

:class:`TableOptions` has the options that turn rows into samples. A :class:`TableLayout` has the files, the function
that reads rows, and the options with the defaults of the kind of table. For example, the key of a line of text is its
number. :func:`exported_layout` is for tables written by ``wds cat``, whose columns are the key and the fields.

:func:`hf_layout` is for datasets of Hugging Face's library. ``datasets`` loads folders written by
:func:`~datasets.save_to_disk`, and any name or folder that ``load_dataset`` accepts. Each split is a file with rows. It
is read as Arrow, so that pictures and sounds are not decoded. If no columns are named, the dataset's features decide
which field each column becomes. ``datasets`` is imported when a dataset is named.

:func:`shards_layout` is for existing shards, read by another key rule or with repeated keys (``--from shards:SET``). A
row is one sample: adjacent members with the same key by ``--key-rule``. Shards are read in order, and damaged shards
are an error. Indexes are not read, because they group members by the usual rule. A sample's payloads are in memory
together.

This module does not know where payloads go.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from wdscli.create.delimited import PLAIN, Row, RowPlace, TextReading, numbered
from wdscli.create.files import KeyRule
from wdscli.create.rows import batch_rows, class_names, number_type, read_exact
from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.look.unpack import is_coded, text_form
from wdscli.samples.grouping import not_regular
from wdscli.shards.inputs import classes_of, open_set
from wdscli.shards.tables import field_of_column
from wdscli.storage import addresses_of, open_source
from wdscli.tar import DIRECTORY, KIND_MASK, REGULAR
from wdscli.tar.reader import scan
from wdscli.text import to_bytes, to_text

Kind = Literal["table", "lines", "hf", "coco", "shards"]
"""The kinds of sources with rows: tables; lines of text; datasets of Hugging Face's library; COCO annotations; the
samples of existing shards."""
OPTIONS: dict[Kind, str] = {
    "table": "--from",
    "lines": "--from lines:",
    "hf": "--from hf:",
    "coco": "--from coco:",
    "shards": "--from shards:",
}
_NAME = re.compile(r"(?P<name>.+?)(?:,(?P<config>[^,:/]+))?(?::(?P<split>[^/:][^/]*))?")
"""Matches NAME[,CONFIG][:SPLIT]. A colon before a slash belongs to a URL."""
_SAVED = ("dataset_dict.json", "state.json")
_BATCH_ROWS = 256
_OWN = ("split", "row")
"""Columns that are added to each row: the split's name, and the row's number in the split."""


class TableOptions(NamedTuple):
    """The options of a table. ``address`` is one or several tables, read one after the other. Each must have all
    columns. The key comes from the column ``key``, or from the format ``rekey``, which may contain columns and
    ``index`` (the row's number in all tables, from 0). ``fields`` are ``EXT=COLUMN`` and ``EXT=@COLUMN``. ``json_rest``
    puts the other columns into the field ``json``. ``json_merge`` adds them to the sample's existing JSON object.
    ``kind`` is the kind of table, and ``images`` is the folder of COCO's pictures. ``reading`` says how text becomes
    rows. With ``has_lists``, JSON fields hold lists (:func:`wdscli.create.grouping.in_lists`)."""

    address: str | Sequence[str]
    key: str | None = None
    rekey: str | None = None
    fields: Sequence[str] = ()
    json_rest: bool = False
    json_merge: bool = False
    kind: Kind = "table"
    images: str | None = None
    reading: TextReading = PLAIN
    has_lists: bool = False

    @property
    def is_exported(self) -> bool:
        """Whether rows are whole samples: those of shards, or of tables of ``wds cat`` if no option names a column."""
        named = (self.key, self.rekey, *self.fields, self.json_rest, self.json_merge)
        return self.kind == "shards" or (self.kind == "table" and not any(named))


class TableLayout(NamedTuple):
    """The layout of a table. It has the files, and a function that reads a file's rows; the function gets the columns
    in use, and whether all other columns are needed too. It also has the completed options, and the class names for the
    numbers in ``cls``, if known. With ``has_samples``, a row has payloads by field, and its key in the column
    :data:`SAMPLE_KEY`."""

    files: Sequence[str]
    rows: Callable[[str, Collection[str], bool], Iterator[Row]]
    options: TableOptions
    classes: tuple[str, ...] | None = None
    has_samples: bool = False


SAMPLE_KEY = ""
"""The column of the key. No field can have this name."""
_KEY = "key"
_AFTER_BLANKS = re.compile(r"[ \t\r\n:,]*")
_LINE = {_KEY, "shard", "index", "fields"}


def no_key_option(names: Sequence[str], hint_end: str = "") -> UsageError:
    """Return the error for a table without --key-column and --rekey. ``names`` are its columns, if known."""
    column = "id" if "id" in names else next(iter(names), "COLUMN")
    columns = f"; the columns are {', '.join(names)}" if names else ""
    return UsageError(
        "a table needs one of --key-column and --rekey",
        hint=f"--key-column {column}, or --rekey '{{index:08d}}'{columns}{hint_end}",
    )


def exported_layout(options: TableOptions, files: Sequence[str]) -> TableLayout:
    """Return the layout of tables that ``wds cat`` wrote as Parquet, TSV or JSON Lines."""
    classes = {class_names(file, "cls") for file in files}
    return TableLayout(
        files,
        lambda file, *_: _samples(file, options.reading),
        options._replace(key=SAMPLE_KEY),
        classes.pop() if len(classes) == 1 else None,
        has_samples=True,
    )


def _samples(file: str, reading: TextReading) -> Iterator[Row]:
    """Yield the key and the payloads of each row. Raises UsageError for a table that ``wds cat`` did not write."""
    for kind, row, line in read_exact(file, reading, (_KEY,)):
        cells = row.cells
        if next(iter(cells), None) != _KEY or (kind == "jsonl" and cells.keys() != _LINE):
            raise no_key_option(list(cells), "; tables that wds cat wrote need neither option")
        sample = {SAMPLE_KEY: cells[_KEY]}
        try:
            if kind == "jsonl":
                fields = _payloads_of_line(cells["fields"], line)
            else:
                fields = {
                    to_text(field_of_column(name)): _payload(kind, name, cell)
                    for name, cell in cells.items()
                    if cell is not None and name != _KEY
                }
        except DataError as error:
            reading.refuse(row.place, error)
        else:
            yield row._replace(cells=sample | fields)


def _payload(kind: str, column: str, cell: Any) -> bytes:
    """Return the payload in a cell. Raises DataError."""
    if isinstance(cell, bytes):
        return cell
    if not isinstance(cell, str):
        raise _no_payload(column, f"{type(cell).__name__} is neither text nor bytes")
    is_text = kind == "parquet" or text_form(field_of_column(column))
    return to_bytes(cell) if is_text else _decoded(cell, column)


def _payloads_of_line(fields: Any, line: str) -> dict[str, bytes]:
    """Return the payloads in a line of JSON. JSON fields keep their exact text. Raises DataError."""
    if not isinstance(fields, dict):
        raise _no_payload("fields", "it is not a JSON object")
    payloads: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if is_coded(value) and "bytes" in value:
            raise _no_payload(
                name,
                "the line gives only the size of the payload",
                "write the payloads too: wds cat --to jsonl --base64",
            )
        if is_coded(value):
            payloads[name] = _decoded(value["base64"], name)
        elif text_form(to_bytes(name)) == "json":
            texts = texts or dict(_members(dict(_members(line))["fields"]))
            payloads[name] = to_bytes(texts[name])
        elif isinstance(value, str):
            payloads[name] = to_bytes(value)
        else:
            raise _no_payload(name, f"{json.dumps(value)[:40]} is not text")
    return payloads


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Return the names in a valid JSON object, with the text of their values."""
    decode, offset = json.JSONDecoder().raw_decode, text.index("{") + 1
    while (offset := _AFTER_BLANKS.match(text, offset).end()) < len(text) and text[offset] != "}":  # type: ignore[union-attr]
        name, offset = decode(text, offset)
        begin = _AFTER_BLANKS.match(text, offset).end()  # type: ignore[union-attr]
        _, offset = decode(text, begin)
        yield name, text[begin:offset]


def _decoded(text: Any, column: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (TypeError, ValueError):
        data = None
    if data is None or b64encode(data).decode("ascii") != text:
        raise _no_payload(column, f"{str(text)[:40]!r} is not base 64")
    return data


def _no_payload(column: str, why: str, hint: str | None = None) -> DataError:
    return DataError(
        f'column "{column}" was not written by wds cat: {why}',
        code="bad-value",
        hint=hint or f"read other tables with --key-column key --column {column}={column}",
    )


def shards_layout(options: TableOptions, rule: KeyRule) -> TableLayout:
    """Return the layout of existing shards. Raises UsageError, and InputError for missing shards."""
    if options.key is not None or options.fields or options.json_rest or options.json_merge:
        raise UsageError(
            "--from shards: takes whole samples, without --key-column, --column, --json-rest and --json-merge",
            hint="join columns to them later with wds merge --table",
        )
    shards = open_set(addresses_of(options.address, OPTIONS["shards"]))
    rows = partial(_regrouped, rule, options)
    options = options._replace(key=SAMPLE_KEY)
    return TableLayout(
        shards.addresses, lambda file, *_: rows(file), options, classes_of(shards), has_samples=True
    )


def _regrouped(rule: KeyRule, options: TableOptions, address: str) -> Iterator[Row]:
    """Yield the samples of a shard. A field that comes twice begins another sample, so ``a.jpg a.txt a.jpg a.txt`` are
    two samples with one key, and ``--on-duplicate`` decides about the second. Members that belong to no sample are left
    out. Raises DataError."""
    number, key, fields = 0, b"", dict[str, bytes]()
    for name, payload in _regular_members(address):
        parts = rule.found(name)
        if isinstance(parts, str):
            options.reading.leave_out(parts, name)
            continue
        field = to_text(parts[1])
        if fields and (parts[0] != key or field in fields):
            number += 1
            yield Row(RowPlace(address, number), {SAMPLE_KEY: to_text(key), **fields})
            fields = {}
        key, fields[field] = parts[0], payload
    if fields:
        yield Row(RowPlace(address, number + 1), {SAMPLE_KEY: to_text(key), **fields})


def _regular_members(address: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and payload of each regular member. Raises DataError for links and damage."""
    with open_source(address, whole=True) as source:
        for window in scan(source, payloads=True):
            for row, name in enumerate(window.columns.names):
                kind = window.columns.flags[row] & KIND_MASK
                if kind == REGULAR:
                    yield name, window.payload(row)
                elif kind != DIRECTORY:
                    raise not_regular(kind, source.name, window.columns.starts[row], name)


def hf_layout(options: TableOptions) -> TableLayout:
    """Return the layout of datasets. If no fields are named, the features decide them. Raises UsageError if
    ``datasets`` is not installed, and InputError if it cannot load the datasets."""
    try:
        import datasets
    except ImportError:
        raise UsageError("Hugging Face's datasets need an extra", hint="pip install 'wdscli[hf]'") from None
    rows_by_split: dict[str, Any] = {}
    for name in addresses_of(options.address, "--from hf:"):
        rows_by_split |= _splits(datasets, name)
    first = next(iter(rows_by_split.values()))
    taken = set(first.column_names)
    classes = None
    if not (options.fields or options.json_rest or options.json_merge):
        options, classes = _by_features(datasets, first, options)
    if options.key is None and options.rekey is None:
        splits = {name.rpartition(":")[2] for name in rows_by_split}
        is_one = len(rows_by_split) == 1 or "split" in taken or len(splits) < len(rows_by_split)
        options = options._replace(rekey="{index:08d}" if is_one or "row" in taken else "{split}/{row:08d}")

    def rows(name: str, columns: Collection[str], whole: bool) -> Iterator[Row]:
        return numbered(name, cells_of(name, columns, whole))

    def cells_of(name: str, columns: Collection[str], whole: bool) -> Iterator[Mapping[str, Any]]:
        own = [column for column in _OWN if column in columns and column not in taken]
        split = name.rpartition(":")[2]
        for number, row in enumerate(_rows(rows_by_split[name], name, columns, whole=whole)):
            for column in own:
                row[column] = split if column == "split" else number
            yield row

    return TableLayout(list(rows_by_split), rows, options, classes)


def _splits(datasets: Any, text: str) -> dict[str, Any]:
    """Return the splits of a dataset, by name and split. Raises InputError."""
    name, config, split = text, None, None
    if not os.path.exists(text):
        match = _NAME.fullmatch(text)
        name, config, split = match.group("name", "config", "split") if match else (text, None, None)
    datasets.disable_progress_bars()
    try:
        if any(os.path.exists(os.path.join(name, file_name)) for file_name in _SAVED):
            loaded = datasets.load_from_disk(name)
            if split is not None and not isinstance(loaded, datasets.Dataset):
                if split not in loaded:
                    raise InputError(f"{name} has no split {split}", hint=f"it has {', '.join(loaded)}")
                loaded = loaded[split]
        else:
            loaded = datasets.load_dataset(name, config, split=split)
    except WdsError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot load {text}: {why}", hint="--from hf:NAME[,CONFIG][:SPLIT], or a folder"
        ) from error
    if isinstance(loaded, datasets.Dataset):
        return {f"{name}:{split or loaded.split or 'train'}": loaded}
    return {f"{name}:{split_name}": rows for split_name, rows in loaded.items()}


def _rows(dataset: Any, name: str, columns: Collection[str], *, whole: bool) -> Iterator[dict[str, Any]]:
    import pyarrow

    if not whole:
        used = {*columns, *(column.partition(".")[0] for column in columns)}
        dataset = dataset.select_columns([column for column in dataset.column_names if column in used])
    try:
        for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
            for batch in table.to_batches():
                yield from batch_rows(batch, columns)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read {name}: {error}") from None


def _by_features(
    datasets: Any, dataset: Any, options: TableOptions
) -> tuple[TableOptions, tuple[str, ...] | None]:
    """Return the fields for the columns of a dataset, and the names of its classes. Pictures and sounds get their own
    extension; if there are several, the column's name comes before it. The first label becomes ``cls``, lists of
    numbers become arrays, and a single text column becomes ``txt``. Other columns go into ``json``."""
    import pyarrow

    schema = dataset.data.schema
    fields: list[str] = []
    classes = None
    media = [
        name for name, kind in dataset.features.items() if isinstance(kind, (datasets.Image, datasets.Audio))
    ]
    texts = []
    for name, kind in dataset.features.items():
        if "/" in name or "*" in name or name.startswith("@"):
            continue
        if name in media:
            is_only = sum(type(dataset.features[column]) is type(kind) for column in media) == 1
            fields.append(f"*={name}" if is_only else f"{name}.*={name}")
        elif isinstance(kind, datasets.ClassLabel) and classes is None:
            classes = tuple(kind.names)
            fields.append(f"cls={name}")
        elif number_type(schema.field(name).type, pyarrow):
            fields.append(f"{name}.npy={name}")
        elif getattr(kind, "dtype", "") in ("string", "large_string"):
            texts.append(name)
    if len(texts) == 1:
        fields.append(f"txt={texts[0]}")
    used = {field.partition("=")[2] for field in fields}
    return options._replace(fields=tuple(fields), json_rest=not used >= dataset.features.keys()), classes
