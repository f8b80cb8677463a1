"""The codes of values: their order is the order of the values, by oracles in plain Python."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wdscli import ordering
from wdscli.plan.sort import (
    json_code,
    natural_code,
    number_code,
    reversed_code,
    text_code,
)
from wdscli.plan.table import GrowingValues, PackedValues
from wdscli.selection.places import decoder_of

texts = st.binary(max_size=20) | st.lists(st.sampled_from([b"\0", b"\xff", b"a", b"\1"])).map(b"".join)
natural_texts = st.lists(
    st.sampled_from([b"a", b".", b"0", b"00", b"1", b"10", b"9", b"\0", b"/", b":"])
).map(b"".join)
number_texts = (
    st.integers().map(str)
    | st.decimals(allow_nan=False).map(str)
    | st.floats(allow_nan=False).map(repr)
    | st.tuples(st.integers(-(2**70), 2**70), st.integers(-200, 200)).map(lambda pair: f"{pair[0]}e{pair[1]}")
    | st.from_regex(r"[+-]?[0-9]{1,4}\.[0-9]{0,4}", fullmatch=True)
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def compared(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


def naturally(text: bytes) -> Any:
    """Characters, with numbers in the place of 0; then the zeros before each number, more of them first."""
    parts = re.findall(rb"[0-9]+|[^0-9]", text, re.DOTALL)
    numbers = [part for part in parts if part.isdigit()]
    return [(48, int(part)) if part.isdigit() else (part[0], 0) for part in parts], [
        len(str(int(part))) - len(part) for part in numbers
    ]


def jq(value: Any) -> Any:
    """jq's order as a key for sorted()."""
    if value is None or isinstance(value, bool):
        return [None, False, True].index(value), 0
    if isinstance(value, (int, float)):
        return 3, Decimal(value)
    if isinstance(value, str):
        return 4, value
    if isinstance(value, list):
        return 5, [jq(one) for one in value]
    return 6, (sorted(value), [jq(value[name]) for name in sorted(value)])


class TestOrder:
    @given(texts, texts)
    @example(b"", b"\0")
    @example(b"a\0\0", b"a\0")
    def test_texts(self, one: bytes, other: bytes) -> None:
        assert compared(text_code(one), text_code(other)) == compared(one, other)

    @given(natural_texts, natural_texts)
    @example(b"a", b"a0")
    @example(b"a01b1", b"a1b01")
    def test_natural(self, one: bytes, other: bytes) -> None:
        assert compared(natural_code(one), natural_code(other)) == compared(naturally(one), naturally(other))

    @pytest.mark.parametrize("length", [252, 253, 254, 255, 256, 600])
    def test_natural_with_long_numbers(self, length: int) -> None:
        numbers = [b"9" * length, b"1" + b"0" * length, b"1" + b"0" * (length - 1) + b"1", b"2" * length]
        assert sorted(numbers, key=natural_code) == [numbers[3], numbers[0], numbers[1], numbers[2]]

    @given(number_texts, number_texts)
    @example("-0", "0.0e7")
    @example("9007199254740993", "9007199254740992")
    @example("1e3", "1000")
    @example("1e-99999999", "0")
    @example("-1e999999999999999", "-1e64")
    @example("0.1", "0.10000000000000000001")
    def test_numbers(self, one: str, other: str) -> None:
        assert compared(number_code(one), number_code(other)) == compared(Decimal(one), Decimal(other))

    @given(documents, documents)
    @example(1.5, 1)
    @example([1], [1, None])
    @example({"a": 2}, {"a": 1, "b": 0})
    def test_json(self, one: Any, other: Any) -> None:
        codes = [
            json_code(decoder_of("json", exact=True)(json.dumps(value).encode())) for value in (one, other)
        ]
        assert compared(*codes) == compared(jq(one), jq(other))

    @given(st.lists(documents, max_size=5))
    def test_json_strings_naturally(self, values: list[Any]) -> None:
        values = [value for value in values if isinstance(value, str)]
        codes = [json_code(value, natural_code) for value in values]
        expected = sorted(values, key=lambda text: naturally(text.encode()))
        assert [value for _, value in sorted(zip(codes, values, strict=True))] == expected


CODES = [
    pytest.param(texts, text_code, id="text"),
    pytest.param(natural_texts, natural_code, id="natural"),
    pytest.param(number_texts, number_code, id="number"),
    pytest.param(
        documents.map(json.dumps),
        lambda text: json_code(decoder_of("json", exact=True)(text.encode())),
        id="json",
    ),
]


@pytest.mark.parametrize(("values", "code"), CODES)
def test_no_code_is_the_beginning_of_another(values: Any, code: Any) -> None:
    """So codes can be put one behind the other, and turned around."""

    @given(values, values)
    def check(one: Any, other: Any) -> None:
        a, b = code(one), code(other)
        assert a == b or not (a.startswith(b) or b.startswith(a))
        assert compared(reversed_code(a), reversed_code(b)) == -compared(a, b)

    check()


@given(st.lists(st.tuples(texts, natural_texts, number_texts)))
def test_several_codes_one_behind_the_other(values: list[Any]) -> None:
    codes = [text_code(a) + reversed_code(natural_code(b)) + number_code(c) for a, b, c in values]  # type: ignore[operator]

    def by_the_book(one: Any, other: Any) -> int:
        return (
            compared(one[0], other[0])
            or -compared(naturally(one[1]), naturally(other[1]))
            or compared(Decimal(one[2]), Decimal(other[2]))
        )

    expected = sorted(values, key=cmp_to_key(by_the_book))
    assert [values[row] for row in order_by_values(codes)] == expected


@pytest.mark.parametrize(
    "text", ["", ".", "+", "e5", "1e", "1_000", "0x10", "1 2", "--1", "1e" + "9" * 19, "١"]
)
def test_what_is_not_a_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        number_code(text)


def test_numbers_in_words() -> None:
    words = ["0", "Infinity", "-inf", "1e9999", "-1e9999"]
    in_order = ["-inf", "-1e9999", "0", "1e9999", "Infinity"]
    assert sorted(words, key=number_code) == in_order  # type: ignore[arg-type,return-value]
    assert number_code("nan") is number_code("-NaN") is None


def order_by_values(values: list[bytes]) -> Any:
    found = GrowingValues()
    for first in range(0, len(values), 7):
        found.append(PackedValues.of(values[first : first + 7]))
    return found.values().order()


class TestOrderByValues:
    @given(st.lists(texts | st.binary(min_size=30, max_size=60), max_size=40))
    def test_it_is_a_stable_sort(self, values: list[bytes]) -> None:
        assert order_by_values(values).tolist() == sorted(range(len(values)), key=values.__getitem__)

    @given(
        st.lists(st.sampled_from([0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40]), max_size=40),
        st.binary(max_size=9),
    )
    def test_values_that_differ_in_nuls_at_their_end(self, lengths: list[int], start: bytes) -> None:
        values = [start + bytes(length) for length in lengths]
        assert order_by_values(values).tolist() == sorted(range(len(values)), key=values.__getitem__)

    @given(
        st.lists(st.lists(st.sampled_from([b"", b"\0", b"a", b"b" * 8, b"\0" * 8]), max_size=5), max_size=60),
        st.sampled_from([b"", b"in common/"]),
        st.sampled_from([1, 2, 3, 7, 64]),
    )
    def test_a_few_rows_at_a_time(self, parts: list[list[bytes]], start: bytes, rows: int) -> None:
        values = [start + b"".join(some) for some in parts]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wdscli.arrays.ROWS_PER_BLOCK", rows)
            patch.setattr("wdscli.ordering.ROWS_PER_BLOCK", rows)
            assert order_by_values(values).tolist() == sorted(range(len(values)), key=values.__getitem__)

    def test_one_value_much_longer_than_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The others are not looked at as often as it has words."""
        values = [b"ab"[: number % 3] for number in range(50)]
        values[7] += bytes(1 << 20)
        rounds = []
        refine = ordering._Ordering._refine
        monkeypatch.setattr(ordering._Ordering, "_refine", lambda *args: rounds.append(1) or refine(*args))
        assert order_by_values(values).tolist() == sorted(range(50), key=values.__getitem__)
        assert len(rounds) < 3

    @pytest.mark.parametrize("values", [[], [b""], [b"", b""], [b"", b"a", b""]])
    def test_nothing(self, values: list[bytes]) -> None:
        assert order_by_values(values).tolist() == sorted(range(len(values)), key=values.__getitem__)
