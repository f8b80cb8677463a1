"""From a list of samples to a batch: arrays, tensors and numbers joined, anything else in a list.

What it is: :func:`default_collation`, webdataset's ``default_collation_fn``. How: samples are turned into columns, and
each column is joined by the type of its first value. numpy does it; torch is not imported, but whoever hands in tensors
has it, and inside a DataLoader's worker torch joins them in shared memory. It must not know where samples come from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from wdscli.errors import DataError


def default_collation(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """A batch of samples: tuples (or lists) give a tuple of columns, dicts a dict of columns, anything else one column.

    A column of numbers becomes a numpy array of shape (samples,); one of numpy arrays or torch tensors gets a dimension
    more in front; any other is a list. ``combine_scalars=False`` and ``combine_tensors=False`` leave lists. Raises
    DataError for samples that have not the same fields, and for arrays of different shapes.

    >>> default_collation([(1, "a"), (2, "b")])
    (array([1, 2]), ['a', 'b'])
    >>> default_collation([{"cls": 1.5}, {"cls": 2}], combine_scalars=False)
    {'cls': [1.5, 2]}
    """
    if not samples:
        raise DataError("a batch of no samples", code="collation")
    first = samples[0]
    if isinstance(first, dict):
        _same_fields(samples)
        names = list(first)
    elif isinstance(first, (list, tuple)):
        _same_lengths(samples)
        names = list(range(len(first)))
    else:
        return combine_values(list(samples), combine_tensors, combine_scalars)
    columns = {}
    for name in names:
        try:
            columns[name] = combine_values(
                [sample[name] for sample in samples], combine_tensors, combine_scalars
            )
        except _Shapes as error:
            raise _unequal(samples, name, error) from None
    return columns if isinstance(first, dict) else tuple(columns.values())


default_collation_fn = default_collation
"""webdataset's name."""


class _Shapes(DataError):
    """Arrays of different shapes; ``place`` is the first that differs."""

    place = 0


def combine_values(values: list[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """One column, joined by the type of its first value; see :func:`default_collation`."""
    first = values[0]
    if _is_scalar(first):
        return _numbers(values) if combine_scalars else values
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        if not combine_tensors:
            return values
        from torch.utils.data import default_collate

        _same_shapes(values)
        return default_collate(values)
    if combine_tensors and _is_array(first):
        import numpy

        _same_shapes(values)
        return numpy.stack(values)
    return values


def _is_scalar(value: Any) -> bool:
    """A number, of Python or of numpy."""
    if isinstance(value, (int, float)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.number, numpy.bool_))


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _numbers(values: list[Any]) -> Any:
    import numpy

    try:
        return numpy.array(values)
    except ValueError as error:
        raise DataError(f"numbers and other values in one column: {error}", code="collation") from error


def _same_shapes(values: list[Any]) -> None:
    shape = tuple(values[0].shape)
    for place, value in enumerate(values):
        other = getattr(value, "shape", None)
        if other is None or tuple(other) != shape:
            told = type(value).__name__ if other is None else tuple(other)
            error = _Shapes(f"shapes differ: {shape} and {told}", code="collation")
            error.place = place
            raise error


def _same_fields(samples: Sequence[Any]) -> None:
    wanted = samples[0].keys()
    for sample in samples:
        if not isinstance(sample, dict) or sample.keys() != wanted:
            odd = (
                sorted(map(str, wanted ^ sample.keys()))
                if isinstance(sample, dict)
                else [type(sample).__name__]
            )
            raise DataError(
                f"samples of one batch have different fields: {', '.join(odd)}",
                code="collation",
                shard=_text(sample, "__url__"),
                member=_text(sample, "__key__"),
                hint="choose those that all have with to_tuple or rename(keep=False), or batched(collation_fn=None)",
            )


def _same_lengths(samples: Sequence[Any]) -> None:
    lengths = {len(sample) if isinstance(sample, (list, tuple)) else -1 for sample in samples}
    if len(lengths) > 1:
        raise DataError(f"samples of one batch have different lengths: {sorted(lengths)}", code="collation")


def _unequal(samples: Sequence[Any], name: str | int, error: _Shapes) -> DataError:
    sample = samples[error.place]
    column = f'field "{name}"' if isinstance(name, str) else f"value {name} of the tuples"
    return DataError(
        f"{column} cannot be batched, {error.message}",
        code="collation",
        shard=_text(sample, "__url__"),
        member=_text(sample, "__key__"),
        hint="bring them to one shape with map_dict or map_tuple, or batched(collation_fn=None) for lists",
    )


def _text(sample: Any, name: str) -> str | None:
    found = sample.get(name) if isinstance(sample, dict) else None
    return found if isinstance(found, str) else None
