"""Values in indexes: numbers that replace a read of payloads."""

import math

import numpy
import pytest
from index_samples import add_sample

from wdscli.errors import DataError
from wdscli.selection.values import MISSING, GrowingNumbers, Numbers, joined
from wdscli.shards.index import IndexBuilder, parse_index


def numbers(*given):
    growing = GrowingNumbers()
    for one in given:
        growing.add(one)
    return growing.numbers()


def file_of(values, shard="a.tar"):
    builder = IndexBuilder()
    for number in range(3):
        add_sample(builder, b"k%d" % number, number * 1024, [b"json"], [number * 1024 + 512], [10])
    builder.values = values
    return builder.to_bytes(shard=shard, size=4096)


def test_values_come_back_with_type_gaps_and_mark():
    index = parse_index(
        file_of({"json.b": numbers(0.5, None, 2.5), "json.a": numbers(1, None, 1 << 62)}), "x"
    )
    assert list(index.values) == ["json.a", "json.b"]
    assert index.values["json.a"].tolist() == [1, MISSING, 1 << 62]
    assert index.values["json.a"].dtype == numpy.int64
    assert index.values["json.b"].dtype == numpy.float64
    assert [index.numbers["json.b"].at(row) for row in range(3)] == [0.5, None, 2.5]
    assert set(index.exact) == {"json.a", "json.b"}


def test_the_digest_of_the_headers_does_not_change():
    plain, with_values = parse_index(file_of({}), "x"), parse_index(file_of({"a": numbers(1, 2, 3)}), "x")
    assert plain.digest == with_values.digest
    assert plain.values == {}
    assert len(file_of({"a": numbers(1, 2, 3)})) - len(file_of({})) < 150


def test_mixed_numbers_are_not_exact():
    mixed = numbers(1, 0.5, 2)
    assert mixed.array.tolist() == [1.0, 0.5, 2.0]
    assert not mixed.exact
    assert numbers(None, 0.5, None).exact
    assert numbers(None, 3, None).exact


def test_joined_keeps_the_type():
    nothing = Numbers(numpy.array([math.nan]), True)
    whole = joined([numbers(1, 2), nothing, numbers(None)])
    assert whole.array.tolist() == [1, 2, MISSING, MISSING]
    assert whole.exact
    mixed = joined([numbers(1, None), numbers(0.5)])
    assert mixed.array[[0, 2]].tolist() == [1.0, 0.5]
    assert math.isnan(mixed.array[1])
    assert not mixed.exact
    assert joined([]).array.dtype == numpy.int64


def changed(given, **entries):
    """An index whose own seal is right, with other entries."""
    import msgpack
    from xxhash import xxh3_64

    data = file_of(given)
    raw = msgpack.unpackb(data, raw=False)
    raw.pop("seal")
    raw |= entries
    body = msgpack.packb({**raw, "seal": b"12345678"})[:-8]
    return body + xxh3_64(body).digest()


def test_crafted_values_are_refused():
    values = {"a": numbers(1, 2, 3)}
    about = {"version": 1, "seal": "0" * 16, "columns": {"a": {"type": "int64", "exact": True}}}
    for entries in (
        {"value:a": numpy.array([1, 2, 4]).tobytes()},
        {"value:a": b""},
        {"value:a": "text"},
        {"values": about},
        {"values": {**about, "columns": {"a": {"type": "int8", "exact": True}}}},
        {"values": {**about, "columns": 3}},
        {"values": {"version": 1}},
        {"values": [1]},
    ):
        with pytest.raises(DataError, match="not a valid index"):
            parse_index(changed(values, **entries), "x")


def test_values_of_another_version_are_passed_over():
    values = {"a": numbers(1, 2, 3)}
    index = parse_index(changed(values, values={"version": 2, "anything": 1}), "x")
    assert index.values == {}
    assert index.samples == 3


def test_values_of_another_index_are_refused():
    import msgpack

    raw = msgpack.unpackb(file_of({"a": numbers(1, 2, 3)}), raw=False)
    about = raw["values"] | {"seal": "0123456789abcdef"}
    with pytest.raises(DataError, match="seal"):
        parse_index(changed({"a": numbers(1, 2, 3)}, values=about), "x")
