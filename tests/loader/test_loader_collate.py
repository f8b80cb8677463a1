"""Batches: webdataset's collation is the oracle where it has an answer."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections import OrderedDict, UserDict, UserList, deque
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from loader_cases import make_set

import wdscli.loader as wds
from wdscli.errors import DataError
from wdscli.loader.stages.per_batch import default_collation, default_convert

IMAGES = [numpy.full((2, 3), number, numpy.uint8) for number in range(3)]
BATCHES: dict[str, list[Any]] = {
    "tuples": [(1, 2.5, "a", b"x", image, None, [number], {"a": 1}) for number, image in enumerate(IMAGES)],
    "lists": [[number, "a"] for number in range(2)],
    "dicts": [{"__key__": str(number), "cls": number, "jpg": image} for number, image in enumerate(IMAGES)],
    "one": [(1,)],
    "bools": [(True, 1), (False, 2.5)],
    "mixed types": [(numpy.zeros(2, numpy.float32),), (numpy.zeros(2, numpy.int64),)],
    "empty arrays": [(numpy.zeros((0, 2)),), (numpy.zeros((0, 2)),)],
    "float64 scalars": [(numpy.float64(1),), (numpy.float64(2),)],
}


def same(one: Any, other: Any) -> bool:
    if isinstance(other, numpy.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("scalars", [True, False])
@pytest.mark.parametrize("name", sorted(BATCHES))
def test_batches_are_webdatasets(name: str, scalars: bool, tensors: bool) -> None:
    filters = pytest.importorskip("webdataset.filters")
    samples = BATCHES[name]
    expected = filters.default_collation_fn(samples, combine_tensors=tensors, combine_scalars=scalars)
    found = default_collation(samples, combine_tensors=tensors, combine_scalars=scalars)
    assert same(found, expected), (found, expected)


def test_columns_keep_the_order_of_the_fields() -> None:
    assert list(default_collation(BATCHES["dicts"])) == ["__key__", "cls", "jpg"]


def test_values_that_are_no_rows() -> None:
    assert same(default_collation([1, 2]), numpy.array([1, 2]))
    assert default_collation(["a", "b"]) == ["a", "b"]
    assert same(default_collation(IMAGES), numpy.stack(IMAGES))
    assert same(default_collation([numpy.float32(1)]), numpy.array([1], numpy.float32))


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    rows = [(torch.full((2, 2), number), number) for number in range(3)]
    images, numbers = default_collation(rows)
    assert torch.equal(images, torch.stack([row[0] for row in rows]))
    assert isinstance(numbers, numpy.ndarray)
    left, _ = default_collation(rows, combine_tensors=False)
    assert [type(one) for one in left] == [torch.Tensor] * 3


def test_shapes_that_differ_are_told_with_field_and_sample() -> None:
    samples = [
        {"__key__": "a", "__url__": "x.tar", "jpg": numpy.zeros((2, 3))},
        {"__key__": "b", "__url__": "x.tar", "jpg": numpy.zeros((2, 4))},
    ]
    with pytest.raises(DataError) as caught:
        default_collation(samples)
    assert str(caught.value) == (
        'field "jpg" cannot be batched, shapes differ: (2, 3) and (2, 4) in member "b" in x.tar'
    )
    assert "collation_fn=None" in (caught.value.hint or "")
    with pytest.raises(DataError, match=r"value 1 of the tuples .* \(3,\) and str"):
        default_collation([(0, numpy.zeros(3)), (0, "text")])
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match=r"\(3,\) and \(4,\)"):
        default_collation([(torch.zeros(3),), (torch.zeros(4),)])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"a": 1}, {"a": 1, "b": 2}], "different fields: b"),
        ([{"a": 1}, (1,)], "different fields: tuple"),
        ([(1, 2), (1,)], r"different lengths: \[1, 2\]"),
        ([(1,), ([1, 2],)], "numbers and other values"),
        ([], "has no samples"),
    ],
)
def test_samples_that_make_no_batch(samples: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        default_collation(samples)


def test_a_batch_of_arrays_loads_no_torch() -> None:
    code = (
        "import sys, json, numpy; from wdscli.loader.stages.per_batch import default_collation\n"
        "default_collation([(1, numpy.zeros(2), 'x')])\n"
        "print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False


def test_a_column_of_bytes_has_the_methods_of_a_list() -> None:
    values = [b"ab", b"", b"cde"]
    column = pickle.loads(pickle.dumps(wds.Packed(values)))
    assert isinstance(column, wds.Packed)
    assert column == values
    assert (column + [b"x"], [b"x"] + column) == ([*values, b"x"], [b"x", *values])  # noqa: RUF005
    assert (column.index(b"cde"), column.count(b""), column.copy(), sorted(column)[0]) == (2, 1, values, b"")
    for what in ("append", "sort"):
        with pytest.raises(AttributeError, match=r"wds.Packed.*list\(column\)"):
            getattr(column, what)
    assert type(type(column)(one for one in values)) is wds.Packed
    assert type(column)(len(one) for one in values) == [2, 0, 3]
    assert pickle.loads(pickle.dumps(column)) == copy.deepcopy(column) == values


@pytest.mark.exhaustive
def test_code_that_asks_for_lists_runs_on_what_workers_send(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    url = make_set(tmp_path, 12, 5)
    loader = data.DataLoader(
        wds.WebDataset(url).to_tuple("bin", "cls").batched(4), batch_size=None, num_workers=1
    )
    for pictures, classes in loader:
        assert isinstance(pictures, list)
        assert [len(one) for one in pictures] == [10] * 4
        assert isinstance(classes, list)


class Pair(NamedTuple):
    first: Any
    second: Any


class Text(str):
    pass


class Rows(list):  # type: ignore[type-arg]
    pass


class Fields(dict):  # type: ignore[type-arg]
    pass


TEXTS: list[Any] = [b"a", "b", 3, 1.5, None, True]
UNCONVERTED: list[Any] = [
    *TEXTS,
    TEXTS,
    [],
    (),
    {},
    (TEXTS, IMAGES[0]),
    {"txt": TEXTS, "npy": IMAGES[0], "nested": [[IMAGES[0]], TEXTS], 3: (1, "a")},
    Pair(IMAGES[0], TEXTS),
    Rows([IMAGES[0], "a"]),
    Fields(a=IMAGES[0], b=[1]),
    Text("a"),
    [Text("a"), "b"],
    OrderedDict(b=IMAGES[0], a=1),
    UserDict(a=IMAGES[0]),
    UserList([IMAGES[0], b"a"]),
    MappingProxyType({"a": IMAGES[0]}),
    deque([IMAGES[0], 1]),
    range(3),
    bytearray(b"ab"),
    memoryview(b"ab"),
    {1, 2},
    [numpy.float32(2), "a", numpy.bool_(True), numpy.int64(3)],
    [numpy.str_("a"), "a"],
    numpy.array(["a", "b"]),
    numpy.array([b"a"]),
    numpy.array([{}], object),
    numpy.array(3),
    2j,
    [1, 2j],
    wds.Packed([b"a", b"bc"]),
]
"""Values for torch's ``default_convert``: plain ones, subclasses, and containers that Python or a dataset may give."""


def described(value: Any) -> Any:
    """What a converted value is, with all types."""
    kind = type(value)
    if kind.__name__ == "Tensor":
        return kind, value.dtype, value.shape, repr(value.tolist())
    if isinstance(value, (dict, UserDict, MappingProxyType)):
        return kind, [(name, described(inner)) for name, inner in value.items()]
    if isinstance(value, (list, tuple, UserList, deque)):
        return kind, [described(inner) for inner in value]
    return kind, repr(value)


NESTS = st.recursive(
    st.one_of(
        st.sampled_from(UNCONVERTED),
        st.text(),
        st.binary(),
        st.integers(),
        st.floats(),
        arrays.arrays(
            st.sampled_from([numpy.dtype(code) for code in ("u1", "<i8", "f4", "?")]),
            arrays.array_shapes(max_dims=2, max_side=3),
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.lists(inner).map(Rows),
        st.dictionaries(st.text(), inner),
        st.dictionaries(st.text(), inner).map(Fields),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(NESTS)
def test_values_are_converted_as_torch_converts_them(value: Any) -> None:
    oracle = pytest.importorskip("torch.utils.data").default_convert
    assert described(default_convert(value)) == described(oracle(value))


@pytest.mark.parametrize("number", range(len(UNCONVERTED)))
def test_each_kind_of_value_is_converted_as_torch_converts_it(number: int) -> None:
    torch = pytest.importorskip("torch")
    value = UNCONVERTED[number]
    for nest in (value, [value], (value, "a"), {"a": value}, [torch.zeros(2), value], Pair(value, [value])):
        assert described(default_convert(nest)) == described(torch.utils.data.default_convert(nest))


def test_values_that_torch_cannot_convert_are_its_errors() -> None:
    oracle = pytest.importorskip("torch.utils.data").default_convert
    value = {"a": [numpy.array(["2026-11-29"], "M8[D]"), "b"]}
    with pytest.raises(TypeError) as expected:
        oracle(value)
    with pytest.raises(TypeError, match=str(expected.value)[:20]):
        default_convert(value)


def test_a_plain_dataloader_with_the_conversion_gives_what_torchs_own_gives(tmp_path: Path) -> None:
    """Texts are not looked at: a list of them is the batch's own."""
    data = pytest.importorskip("torch.utils.data")
    make_set(tmp_path, 8)
    batches = wds.WebDataset(str(tmp_path)).decode().batched(3)
    column = next(iter(batches))["__key__"]
    assert default_convert({"__key__": column})["__key__"] is column
    plain = data.DataLoader(batches, batch_size=None, num_workers=1)
    quick = data.DataLoader(batches, batch_size=None, num_workers=1, collate_fn=wds.default_convert)
    assert list(map(described, quick)) == list(map(described, plain))
