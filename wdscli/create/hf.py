"""Datasets of Hugging Face's library, to rows.

What it is: :func:`hf_layout`. How: ``datasets`` loads what :func:`~datasets.save_to_disk` wrote, or any name or folder
that its ``load_dataset`` takes; each split is a file of rows, read as Arrow, so that no picture and no sound is
decoded. Where no columns are named their features say what they become. ``datasets`` is imported when a dataset is
named. It must not know samples.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from wdscli.create.layouts import Layout, TableOptions
from wdscli.create.rows import batch_rows, number_type
from wdscli.errors import InputError, UsageError, WdsError
from wdscli.storage import addresses_of

_NAME = re.compile(r"(?P<name>.+?)(?:,(?P<config>[^,:/]+))?(?::(?P<split>[^/:][^/]*))?")
"""NAME[,CONFIG][:SPLIT]; a colon before a slash belongs to a URL."""
_SAVED = ("dataset_dict.json", "state.json")
_BATCH_ROWS = 256
_OWN = ("split", "row")
"""Columns added to each row: the split's name, and the row's number in it."""


def hf_layout(options: TableOptions) -> Layout:
    """The layout of datasets, with fields by their features if none are named. Raises UsageError if ``datasets`` is
    missing, InputError if it cannot load them."""
    try:
        import datasets
    except ImportError:
        raise UsageError("Hugging Face's datasets need an extra", hint="pip install 'wdscli[hf]'") from None
    found: dict[str, Any] = {}
    for name in addresses_of(options.address, "--from hf:"):
        found |= _splits(datasets, name)
    first = next(iter(found.values()))
    taken = set(first.column_names)
    classes = None
    if not (options.fields or options.json_rest or options.json_merge):
        options, classes = _by_features(datasets, first, options)
    if options.key is None and options.rekey is None:
        splits = {name.rpartition(":")[2] for name in found}
        is_one = len(found) == 1 or "split" in taken or len(splits) < len(found)
        options = options._replace(rekey="{index:08d}" if is_one or "row" in taken else "{split}/{row:08d}")

    def rows(name: str, columns: Collection[str], whole: bool) -> Iterator[Mapping[str, Any]]:
        own = [one for one in _OWN if one in columns and one not in taken]
        split = name.rpartition(":")[2]
        for number, row in enumerate(_rows(found[name], name, columns, whole=whole)):
            for one in own:
                row[one] = split if one == "split" else number
            yield row

    return Layout(list(found), rows, options, classes)


def _splits(datasets: Any, text: str) -> dict[str, Any]:
    """The splits of a dataset, by name and split. Raises InputError."""
    name, config, split = text, None, None
    if not os.path.exists(text):
        match = _NAME.fullmatch(text)
        name, config, split = match.group("name", "config", "split") if match else (text, None, None)
    datasets.disable_progress_bars()
    try:
        if any(os.path.exists(os.path.join(name, one)) for one in _SAVED):
            found = datasets.load_from_disk(name)
            if split is not None and not isinstance(found, datasets.Dataset):
                if split not in found:
                    raise InputError(f"{name} has no split {split}", hint=f"it has {', '.join(found)}")
                found = found[split]
        else:
            found = datasets.load_dataset(name, config, split=split)
    except WdsError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot load {text}: {why}", hint="--from hf:NAME[,CONFIG][:SPLIT], or a folder"
        ) from error
    if isinstance(found, datasets.Dataset):
        return {f"{name}:{split or found.split or 'train'}": found}
    return {f"{name}:{one}": rows for one, rows in found.items()}


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
    """Fields for the columns of a dataset, and the names of its classes. Pictures and sounds get their own extension,
    after the column's name if there are several. The first label becomes cls, lists of numbers become arrays, and the
    only column of text becomes txt. Other columns go into json."""
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
            is_only = sum(type(dataset.features[one]) is type(kind) for one in media) == 1
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
